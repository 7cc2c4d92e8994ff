//! What an address of the page asks for: a path of names and parameters.

use std::collections::BTreeMap;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// What is escaped in a part of an address.
const PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Query {
    /// The steps below `/ui/`.
    pub(crate) path: Vec<String>,
    parameters: BTreeMap<String, String>,
}

impl Query {
    /// What the path below `/ui/` and the query of an address say; what is no UTF-8 is replaced. The server takes no addresses of more than
    /// 64 KiB.
    pub(crate) fn parse(path: &str, query: &str) -> Self {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let path = path.split('/').filter(|step| !step.is_empty()).map(decoded).collect();
        let parameter = |part: &str| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (decoded(name), decoded(&value.replace('+', " ")))
        };
        Self { path, parameters: query.split('&').filter(|part| !part.is_empty()).map(parameter).collect() }
    }

    /// A parameter without the space around it; empty if there is none.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.parameters.get(name).map(|value| value.trim()).unwrap_or_default()
    }

    /// The page of a long table, from 1 on.
    pub(crate) fn page(&self) -> usize {
        self.get("page").parse().unwrap_or(1).max(1)
    }

    /// The same address with another value for a parameter.
    pub(crate) fn with(&self, name: &str, value: &str) -> String {
        let mut other = self.clone();
        other.parameters.insert(name.to_owned(), value.to_owned());
        other.address()
    }

    /// The address that asks for this: the same for all spellings of it.
    pub(crate) fn address(&self) -> String {
        let parameters = self.parameters.iter().filter(|(_, value)| !value.is_empty());
        let parameters: Vec<_> = parameters.map(|(name, value)| format!("{}={}", part(name), part(value))).collect();
        let path: Vec<&str> = self.path.iter().map(|step| &**step).collect();
        let mark = if parameters.is_empty() { "" } else { "?" };
        format!("{}{mark}{}", link(&path), parameters.join("&"))
    }
}

/// The address of a page below `/ui/`.
pub(crate) fn link(path: &[&str]) -> String {
    let steps: Vec<_> = path.iter().map(|step| part(step)).collect();
    format!("/ui/{}", steps.join("/"))
}

/// Text as a part of an address.
pub(crate) fn part(text: &str) -> String {
    utf8_percent_encode(text, PART).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_to_what_it_was_made_of() {
        for name in ["web", "a/b", "ü %2f?&#", "..", "\u{202e}", "<img>"] {
            let link = link(&["hosts", name]);
            assert_eq!(Query::parse(link.strip_prefix("/ui/").unwrap(), "").path, ["hosts", name]);
        }
        let query = Query::parse("hosts", "q=zone%3Aa+b&page=0&os=");
        assert_eq!((query.get("q"), query.page(), query.get("nothing")), ("zone:a b", 1, ""));
        assert_eq!(query.with("page", "2"), "/ui/hosts?page=2&q=zone%3Aa%20b");
        assert_eq!((Query::default().address(), query.with("q", "")), ("/ui/".into(), "/ui/hosts?page=0".into()));
    }
}
