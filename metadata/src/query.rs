//! What a query asks: to wait, for changes after a revision, or for a place on the page.

use std::borrow::Cow;
use std::time::Duration;

use crate::escape;

/// Longest time that a request waits when it states none.
const WAIT_DEFAULT: Duration = Duration::from_mins(1);

/// Longest time that any request waits.
const WAIT_MAX: Duration = Duration::from_mins(2);

/// A request that waits until a value changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// The value that the client knows.
    pub(crate) known: Vec<u8>,
    /// How long it waits for another one.
    pub(crate) longest: Duration,
}

impl Wait {
    /// What this query asks for; `None` when that is an answer at once.
    ///
    /// Of several parameters with one name the first counts. A known value with `&` or `?` in it made the
    /// predecessor's router look no further.
    pub(crate) fn of(query: &[u8]) -> Option<Self> {
        if *first(query, b"wait") != *b"true" {
            return None;
        }
        let known = first(query, b"value").into_owned();
        if known.iter().any(|byte| matches!(byte, b'&' | b'?')) {
            return None;
        }
        let seconds = std::str::from_utf8(&first(query, b"maxWait")).ok().and_then(|text| text.parse::<i64>().ok());
        let longest = match seconds.unwrap_or_default() {
            0 => WAIT_DEFAULT,
            seconds => Duration::from_secs(seconds.try_into().unwrap_or_default()).min(WAIT_MAX),
        };
        Some(Self { known, longest })
    }
}

/// The revision that a request for changes has.
pub(crate) fn revision(query: &[u8]) -> Option<String> {
    let after = first(query, b"after");
    (!after.is_empty()).then(|| String::from_utf8_lossy(&after).into_owned())
}

/// The text of a parameter, when it is there and not empty.
pub(crate) fn text(query: &[u8], name: &[u8]) -> Option<String> {
    let value = first(query, name);
    (!value.is_empty()).then(|| String::from_utf8_lossy(&value).into_owned())
}

/// The place that the page for people is asked to show, as a path.
pub(crate) fn path(query: &[u8]) -> Cow<'_, [u8]> {
    first(query, b"path")
}

/// The first value of a parameter; empty when there is none. Parameters with bad escapes or `;` are passed over.
fn first<'q>(query: &'q [u8], name: &[u8]) -> Cow<'q, [u8]> {
    let parameters = query.split(|byte| *byte == b'&').filter(|parameter| !parameter.contains(&b';'));
    for parameter in parameters {
        let at = parameter.iter().position(|byte| *byte == b'=').unwrap_or(parameter.len());
        let (key, value) = (&parameter[..at], parameter.get(at + 1..).unwrap_or_default());
        if let (Ok(key), Ok(value)) = (escape::query(key), escape::query(value))
            && key == name
        {
            return Cow::Owned(value);
        }
    }
    Cow::Borrowed(b"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_that_wait() {
        for (query, known, seconds) in [
            ("wait=true", "", 60),
            ("wait=true&value=prod", "prod", 60),
            ("wait=true&value=a%20b+c&maxWait=5", "a b c", 5),
            ("value=x&wait=%74rue", "x", 60),
            ("wait=true&value=x&value=y&maxWait=1&maxWait=2", "x", 1),
            ("wait=true&maxWait=0", "", 60),
            ("wait=true&maxWait=x", "", 60),
            ("wait=true&maxWait=99999999999999999999", "", 60),
            ("wait=true&maxWait=121", "", 120),
            ("wait=true&maxWait=%2B7", "", 7),
            ("wait=true&maxWait=-1", "", 0),
            ("wait=true&value=%zz&value=x", "x", 60),
            ("a;b&wait=true&value=1;2", "", 60),
        ] {
            let expected = Wait { known: known.as_bytes().to_vec(), longest: Duration::from_secs(seconds) };
            assert_eq!(Wait::of(query.as_bytes()), Some(expected), "{query}");
        }
    }

    #[test]
    fn queries_that_do_not() {
        for query in [
            "",
            "wait",
            "wait=TRUE",
            "wait=false&wait=true",
            "value=x",
            "wait=true&value=a%26b",
            "wait=true&value=a?b",
            "wait=true;",
        ] {
            assert_eq!(Wait::of(query.as_bytes()), None, "{query}");
        }
    }
}
