//! How the units of a service are replaced by those of a new revision.

use model::{Map, Value};
use serde::{Deserialize, Serialize};

/// Longest time that a rule of an update may name, in seconds: a day, as large databases take to start.
const SECONDS_MAX: i64 = 86_400;

/// Most units of a batch, as many as one request may ask for.
const BATCH_MAX: i64 = 10_000;

/// A field that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}, expected {expected}")]
pub struct Invalid {
    /// Its path.
    pub field: String,
    /// What was found.
    pub problem: String,
    /// What is right.
    pub expected: String,
}

impl Invalid {
    pub(crate) fn new(field: &str, problem: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { field: field.to_owned(), problem: problem.into(), expected: expected.into() }
    }
}

/// What comes first: the new unit, or the end of the old one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// The new one where there is room for it, else the end of the old one.
    #[default]
    Auto,
    /// The new one; without room for it nothing is done.
    StartFirst,
    /// The end of the old one.
    StopFirst,
}

/// What follows when an update fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// The service goes back to what it was.
    #[default]
    Rollback,
    /// Everything stays as it is until a person decides.
    Pause,
}

/// The rules of an update. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    /// How many units are replaced at once.
    pub batch: u32,
    /// What comes first.
    pub order: Order,
    /// How long a unit has to be healthy until it is good.
    pub monitor: u64,
    /// Within what time from its creation a unit has to be good.
    pub deadline: u64,
    /// How many units may fail.
    pub max_failures: u32,
    /// What follows when more fail.
    pub on_failure: OnFailure,
    /// Whether the old units stay, stopped, until a person confirms the update.
    pub confirm: bool,
}

impl Default for Update {
    fn default() -> Self {
        Self {
            batch: 1,
            order: Order::Auto,
            monitor: 10,
            deadline: 300,
            max_failures: 0,
            on_failure: OnFailure::Rollback,
            confirm: false,
        }
    }
}

impl Update {
    /// The rules in a map, at this path of the request.
    ///
    /// # Errors
    ///
    /// Fails with the field that is wrong or unknown.
    pub fn parse(map: &Map, path: &str) -> Result<Self, Invalid> {
        let mut update = Self::default();
        for (key, value) in map {
            let field = format!("{path}.{key}");
            let number = |least: i64, most: i64| {
                let found = value.as_int().filter(|number| (least..=most).contains(number));
                found.and_then(|number| u64::try_from(number).ok()).ok_or_else(|| wrong(&field, value, least, most))
            };
            let count = |least: i64| number(least, BATCH_MAX).map(|count| u32::try_from(count).unwrap_or(u32::MAX));
            match &**key {
                "batch" => update.batch = count(1)?,
                "max_failures" => update.max_failures = count(0)?,
                "monitor" => update.monitor = number(0, SECONDS_MAX)?,
                "deadline" => update.deadline = number(1, SECONDS_MAX)?,
                "order" => {
                    update.order = match value.as_str() {
                        Some("auto") => Order::Auto,
                        Some("start-first") => Order::StartFirst,
                        Some("stop-first") => Order::StopFirst,
                        _ => return Err(word(&field, value, "auto, start-first or stop-first")),
                    };
                }
                "on_failure" => {
                    update.on_failure = match value.as_str() {
                        Some("rollback") => OnFailure::Rollback,
                        Some("pause") => OnFailure::Pause,
                        _ => return Err(word(&field, value, "rollback or pause")),
                    };
                }
                "confirm" => {
                    update.confirm = value.as_bool().ok_or_else(|| word(&field, value, "true or false"))?;
                }
                _ => {
                    let known = "batch, confirm, deadline, max_failures, monitor, on_failure or order";
                    return Err(Invalid::new(&field, "unknown field", known));
                }
            }
        }
        if update.monitor >= update.deadline {
            let problem = format!("{} s are not less than the deadline of {} s", update.monitor, update.deadline);
            return Err(Invalid::new(&format!("{path}.monitor"), problem, "less than the deadline"));
        }
        Ok(update)
    }
}

fn wrong(field: &str, value: &Value, least: i64, most: i64) -> Invalid {
    word(field, value, &format!("a whole number from {least} to {most}"))
}

fn word(field: &str, value: &Value, expected: &str) -> Invalid {
    let found = value.as_str().map_or_else(|| value.kind().to_owned(), |text| format!("{text:?}"));
    Invalid::new(field, format!("found {found}"), expected)
}
