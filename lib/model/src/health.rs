//! What is said of a container's health besides its state: the labels of checks, what a scheduler does about a container that has
//! failed, and that it has.

use std::time::Duration;

use thiserror::Error;

use crate::entity::{Container, Entity as _};
use crate::printable::printable;
use crate::value::{Map, Text, Value};

/// Labels of a container that say how it is checked begin like this: `io.berth.health.port`.
pub const LABEL: &str = "io.berth.health.";

/// What these labels are called without that. Headers are `header.NAME` beside them.
pub const FIELDS: [&str; 20] = [
    "body",
    "fast_interval",
    "from",
    "healthy_threshold",
    "host",
    "initializing_timeout",
    "interval",
    "port",
    "quorum",
    "reinitializing_timeout",
    "request_line",
    "response_timeout",
    "restart_first",
    "service",
    "status",
    "strategy",
    "type",
    "unhealthy_threshold",
    "verify",
    HEADER,
];

/// Begins the fields of a check with a header of its request, and its name after that.
pub const HEADER: &str = "header.";

/// Field of a container that its host gave up: why. A scheduler that placed it replaces it. Not shown on the wire.
pub const FAILED: &str = "health_failed";

/// Most characters of that reason: it is stored and shown, and a host may write anything.
const REASON_MAX: usize = 200;

/// Label of a container with the id of the request by which a scheduler started it.
pub const REQUEST_LABEL: &str = "io.berth.request";

/// A field of a check that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {reason}")]
pub struct BadCheck {
    /// The field or label, without the label's prefix.
    pub field: String,
    /// What is wrong with it, and what is expected.
    pub reason: String,
}

impl BadCheck {
    /// A field that is wrong for this reason.
    pub fn new(field: &str, reason: impl Into<String>) -> Self {
        Self { field: field.to_owned(), reason: reason.into() }
    }
}

/// Whether a check has a field of this name.
pub fn is_field(name: &str) -> bool {
    FIELDS.contains(&if name.starts_with(HEADER) { HEADER } else { name })
}

/// Whether a container has a check, which its labels say or its `health_check`; whether it is a right one is not looked at.
pub fn has_check(fields: &Map) -> bool {
    has_check_labels(fields) || fields.map("health_check").is_some()
}

/// Whether the labels of a container say how it is checked; then they alone do.
pub fn has_check_labels(fields: &Map) -> bool {
    fields.map("labels").is_some_and(|labels| labels.iter().any(|(name, _)| name.starts_with(LABEL)))
}

/// Why the host of a container gave it up, in few and printable characters; `None` if it did not.
pub fn failed(container: &Container) -> Option<Text> {
    Some(printable(container.fields().text(FAILED)?, REASON_MAX).into())
}

/// What a scheduler does about a container that it placed and that has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Nothing.
    None,
    /// It is started again.
    Restart,
    /// Another one takes its place.
    #[default]
    Recreate,
    /// Another one takes its place while at least so many of the service are healthy.
    RecreateOnQuorum(u32),
}

/// The fields of a check that say what is done when it fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnFailure {
    /// What is done.
    pub strategy: Strategy,
    /// Whether it is started again once before another one takes its place.
    pub restart_first: bool,
}

/// The same as they are written.
#[derive(Clone, Debug, Default)]
pub struct SaidOnFailure {
    strategy: Option<Text>,
    quorum: Option<u32>,
    restart_first: bool,
}

impl OnFailure {
    /// What the labels of a container say; `None` if they want neither a check nor a strategy.
    ///
    /// # Errors
    ///
    /// Fails if a field is wrong.
    pub fn of_labels(labels: &Map) -> Result<Option<Self>, BadCheck> {
        let (mut said, mut is_wanted) = (SaidOnFailure::default(), false);
        for (name, value) in labels.iter().filter_map(|(name, value)| Some((name.strip_prefix(LABEL)?, value))) {
            is_wanted |= matches!(name, "port" | "strategy");
            said.add(name, value)?;
        }
        let on_failure = said.resolve()?;
        Ok(is_wanted.then_some(on_failure))
    }
}

impl SaidOnFailure {
    /// Takes a field in; `false` if it says something else.
    ///
    /// # Errors
    ///
    /// Fails if it is wrong.
    pub fn add(&mut self, name: &str, value: &Value) -> Result<bool, BadCheck> {
        match name {
            "strategy" => self.strategy = Some(text(name, value)?),
            "quorum" => self.quorum = Some(number(name, value, 1, u32::MAX)?),
            "restart_first" => self.restart_first = truth(name, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What they say together.
    ///
    /// # Errors
    ///
    /// Fails if there is no such strategy.
    pub fn resolve(&self) -> Result<OnFailure, BadCheck> {
        let strategy = match self.strategy.as_deref() {
            Some("none") => Strategy::None,
            Some("restart") => Strategy::Restart,
            None | Some("" | "recreate") => Strategy::Recreate,
            Some("recreateOnQuorum") => Strategy::RecreateOnQuorum(self.quorum.unwrap_or(1)),
            Some(other) => {
                let reason = format!("{other:?}, expected none, restart, recreate or recreateOnQuorum");
                return Err(BadCheck::new("strategy", reason));
            }
        };
        Ok(OnFailure { strategy, restart_first: self.restart_first })
    }
}

/// The text of a field.
///
/// # Errors
///
/// Fails if it is something else.
pub fn text(name: &str, value: &Value) -> Result<Text, BadCheck> {
    match value {
        Value::Text(text) => Ok(text.clone()),
        other => Err(BadCheck::new(name, format!("{other:?} is no text"))),
    }
}

/// The number in a field, or in its text.
///
/// # Errors
///
/// Fails if there is none between the bounds.
pub fn number(name: &str, value: &Value, least: u32, most: u32) -> Result<u32, BadCheck> {
    let number = value.as_int().or_else(|| value.as_text()?.trim().parse().ok());
    let number = number.and_then(|number| u32::try_from(number).ok()).filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| BadCheck::new(name, format!("expected a number from {least} to {most}")))
}

/// Whether a field is true, or says so.
///
/// # Errors
///
/// Fails if it is something else.
pub fn truth(name: &str, value: &Value) -> Result<bool, BadCheck> {
    let truth = value.as_bool().or_else(|| value.as_text()?.to_ascii_lowercase().parse().ok());
    truth.ok_or_else(|| BadCheck::new(name, "expected true or false"))
}

/// The time in a field: a number of milliseconds, or a number with `ms`, `s`, `m` or `h`.
///
/// # Errors
///
/// Fails if there is none between the bounds.
pub fn time(name: &str, value: &Value, least: Duration, most: Duration) -> Result<Duration, BadCheck> {
    let millis = value.as_int().and_then(|number| u64::try_from(number).ok()).or_else(|| {
        let text = value.as_text()?.trim();
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let factor = match text[digits.len()..].trim() {
            "" | "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        digits.trim().parse::<u64>().ok()?.checked_mul(factor)
    });
    let time = millis.map(Duration::from_millis).filter(|time| (least..=most).contains(time));
    time.ok_or_else(|| {
        let reason = format!("expected a time from {least:?} to {most:?}, in ms or with a unit (500ms, 2s, 1m)");
        BadCheck::new(name, reason)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_failure(labels: &str) -> Result<Option<OnFailure>, String> {
        OnFailure::of_labels(&serde_json::from_str(labels).unwrap()).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn what_a_host_says_of_a_failure_is_short_and_printable() {
        let said = format!(r#"{{"uuid": "a", "health_failed": "no\u001b[31m answer{}"}}"#, "x".repeat(1000));
        let container = Container::new(serde_json::from_str(&said).unwrap(), Map::default()).unwrap();
        let reason = failed(&container).unwrap();
        assert!(
            reason.starts_with("no") && !reason.contains('\u{1b}') && reason.chars().count() <= REASON_MAX,
            "{reason}"
        );
    }

    #[test]
    fn what_is_done_about_failures_is_in_labels() {
        let fine = |strategy, restart_first| Ok(Some(OnFailure { strategy, restart_first }));
        for (labels, expected) in [
            ("{}", Ok(None)),
            (r#"{"io.berth.health.interval": "2s"}"#, Ok(None)),
            (r#"{"io.berth.health.port": "80"}"#, fine(Strategy::Recreate, false)),
            // A HEALTHCHECK of the image needs no port.
            (r#"{"io.berth.health.strategy": "restart"}"#, fine(Strategy::Restart, false)),
            (r#"{"io.berth.health.port": "80", "io.berth.health.strategy": "none"}"#, fine(Strategy::None, false)),
            (
                r#"{"io.berth.health.strategy": "recreateOnQuorum", "io.berth.health.quorum": "2"}"#,
                fine(Strategy::RecreateOnQuorum(2), false),
            ),
            (
                r#"{"io.berth.health.strategy": "recreate", "io.berth.health.restart_first": "true"}"#,
                fine(Strategy::Recreate, true),
            ),
            (
                r#"{"io.berth.health.strategy": "reboot"}"#,
                Err("strategy: \"reboot\", expected none, restart, recreate or recreateOnQuorum".to_owned()),
            ),
        ] {
            assert_eq!(on_failure(labels), expected, "{labels}");
        }
    }
}
