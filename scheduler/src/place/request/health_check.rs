//! The health check that an engine makes in a container. ◇

use model::{Text, Value};

use crate::place::fields::Fields;
use crate::place::invalid::Invalid;

/// Longest time of a check, in milliseconds: a day, far more than a check is worth waiting for.
const TIME_MAX: i64 = 24 * 3_600_000;

/// Most failures in a row until a container is unhealthy.
const RETRIES_MAX: i64 = 10_000;

/// Its fields; times are milliseconds, as in labels about health.
const FIELDS: &[&str] = &["interval", "retries", "start_interval", "start_period", "test", "timeout"];

/// A check that an engine makes by a command in the container. What is `None` is as the image says, or the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HealthCheck {
    /// `CMD` and a command, `CMD-SHELL` and a line for the shell, or `NONE`.
    pub(crate) test: Vec<Text>,
    pub(crate) retries: Option<i64>,
    /// In milliseconds.
    pub(crate) interval: Option<i64>,
    pub(crate) timeout: Option<i64>,
    pub(crate) start_period: Option<i64>,
    pub(crate) start_interval: Option<i64>,
}

impl HealthCheck {
    /// The check in these fields.
    ///
    /// # Errors
    ///
    /// Says which one is wrong.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, Invalid> {
        fields.only(&[FIELDS])?;
        let test = match fields.get("test") {
            Some(Value::Text(line)) => vec!["CMD-SHELL".into(), line.clone()],
            _ => fields.text_list("test")?,
        };
        let is_known = match (test.first().map(|word| &**word), test.len()) {
            (None, _) | (Some("NONE"), 1) => true,
            (Some("CMD"), words) => words > 1,
            (Some("CMD-SHELL"), words) => words == 2,
            _ => false,
        };
        if !is_known {
            let expected = "text for the shell, or a list that begins with NONE, CMD or CMD-SHELL";
            return fields.wrong("test", &Value::list(test.into_iter().map(Value::Text)), expected);
        }
        let time = |key| fields.int(key, 1, TIME_MAX);
        Ok(Self {
            test,
            retries: fields.int("retries", 1, RETRIES_MAX)?,
            interval: time("interval")?,
            timeout: time("timeout")?,
            start_period: fields.int("start_period", 0, TIME_MAX)?,
            start_interval: time("start_interval")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<HealthCheck, Invalid> {
        let map: model::Map = serde_json::from_str(json).unwrap();
        HealthCheck::read(&Fields { path: "healthcheck".into(), map: &map })
    }

    #[test]
    fn a_check_is_a_command_and_its_times() {
        let check =
            read(r#"{"test": "curl -f localhost", "interval": 1500, "retries": 3, "start_period": 0}"#).unwrap();
        assert_eq!(check.test, ["CMD-SHELL", "curl -f localhost"].map(Text::from));
        assert_eq!((check.interval, check.retries, check.timeout), (Some(1500), Some(3), None));
        assert_eq!(read(r#"{"test": ["NONE"]}"#).unwrap().test, ["NONE".into()]);
        for (json, field) in [
            (r#"{"test": ["curl"]}"#, "healthcheck.test"),
            (r#"{"test": ["CMD"]}"#, "healthcheck.test"),
            (r#"{"test": ["CMD-SHELL", "a", "b"]}"#, "healthcheck.test"),
            (r#"{"interval": 0}"#, "healthcheck.interval"),
            (r#"{"timeout": "1s"}"#, "healthcheck.timeout"),
            (r#"{"tests": "a"}"#, "healthcheck.tests"),
        ] {
            assert_eq!(read(json).unwrap_err().field, field, "{json}");
        }
    }
}
