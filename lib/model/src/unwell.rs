//! Why a container is unhealthy, as its host or its checkers say: for people who ask why a name leaves it out.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::entity::{Container, Entity as _};
use crate::printable::printable;
use crate::value::{Map, Text, Value};

/// Field of an unhealthy container: who says why. Not shown on the wire.
pub const REASON: &str = "health_reason";

/// Field of an unhealthy container: since when, in seconds from the beginning of 1970 by its host's clock. Not shown on the wire.
pub const SINCE: &str = "health_since";

/// How the reason of a container begins whose `HEALTHCHECK` fails.
pub const HEALTHCHECK_FAILS: &str = "its HEALTHCHECK fails";

/// Most characters of the reason: three hosts with a reason each, and a host may write anything.
const REASON_MAX: usize = 400;

/// Why a container is unhealthy, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhyUnhealthy {
    /// Who says why.
    pub reason: Text,
    /// Seconds from the beginning of 1970, if its host says so.
    pub since: Option<u64>,
}

impl WhyUnhealthy {
    /// What is said of a container, in few and printable characters; `None` if nothing is.
    pub fn of(container: &Container) -> Option<Self> {
        let fields = container.fields();
        let reason = printable(fields.text(REASON)?, REASON_MAX).into();
        Some(Self { reason, since: fields.int(SINCE).and_then(|since| u64::try_from(since).ok()) })
    }

    /// The same, if it was stored so.
    pub fn of_map(fields: &Map) -> Option<Self> {
        let since = fields.int(SINCE).and_then(|since| u64::try_from(since).ok());
        Some(Self { reason: fields.text(REASON)?.clone(), since })
    }

    /// The fields that say so.
    pub fn fields(&self) -> impl Iterator<Item = (Text, Value)> {
        let since = self.since.and_then(|since| i64::try_from(since).ok());
        let since = since.map(|since| (SINCE.into(), Value::Int(since)));
        [(REASON.into(), Value::Text(self.reason.clone()))].into_iter().chain(since)
    }
}

/// What the checkers of a container say, each with its reason if it says that the container is down: `2 of 3 hosts: connect: refused
/// (win-3, win-7); win-9: well`.
pub fn reason_of<'t>(checkers: impl IntoIterator<Item = (&'t str, Option<&'t str>)>) -> Text {
    let (mut down, mut well, mut all) = (BTreeMap::<&str, Vec<&str>>::new(), Vec::new(), 0);
    for (name, reason) in checkers {
        all += 1;
        match reason {
            Some(reason) => down.entry(reason).or_default().push(name),
            None => well.push(name),
        }
    }
    let count: usize = down.values().map(Vec::len).sum();
    let mut text = format!("{count} of {all} hosts: ");
    for (at, (reason, names)) in down.iter().enumerate() {
        // Writing to a text cannot fail.
        let _ = write!(text, "{}{reason} ({})", if at > 0 { "; " } else { "" }, names.join(", "));
    }
    if !well.is_empty() {
        let _ = write!(text, "; {}: well", well.join(", "));
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkers_of_one_reason_are_named_together() {
        for (checkers, expected) in [
            (
                &[("a", Some("refused")), ("b", None), ("c", Some("refused"))][..],
                "2 of 3 hosts: refused (a, c); b: well",
            ),
            (&[("a", Some("refused")), ("b", Some("no answer"))], "2 of 2 hosts: no answer (b); refused (a)"),
        ] {
            assert_eq!(&*reason_of(checkers.iter().copied()), expected);
        }
    }

    #[test]
    fn what_a_host_writes_is_short_and_printable() {
        let said =
            format!(r#"{{"uuid": "a", "health_reason": "no\u001b[31m{}", "health_since": -5}}"#, "x".repeat(1000));
        let container = Container::new(serde_json::from_str(&said).unwrap(), Map::default()).unwrap();
        let unwell = WhyUnhealthy::of(&container).unwrap();
        assert!(unwell.reason.len() < 500 && !unwell.reason.contains('\u{1b}'), "{}", unwell.reason);
        assert_eq!(unwell.since, None);
        let stored: Map = WhyUnhealthy { since: Some(7), ..unwell.clone() }.fields().collect();
        assert_eq!(WhyUnhealthy::of_map(&stored), Some(WhyUnhealthy { since: Some(7), ..unwell }));
    }
}
