//! What a service waits for before it is started. ◇

use model::{Map, Text, Value};

use crate::cli::compose::section::{Section, unsupported};
use crate::cli::compose::service::{texts, truth};
use crate::place::invalid::Invalid;

/// What the other service has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// Its units run. The scheduler waits for their health too, if there is a check.
    Started,
    /// They are healthy.
    Healthy,
    /// It is a job, and its units have ended without an error.
    Completed,
}

impl Condition {
    fn of_word(word: &str) -> Option<Self> {
        Some(match word {
            "service_started" => Self::Started,
            "service_healthy" => Self::Healthy,
            "service_completed_successfully" => Self::Completed,
            _ => return None,
        })
    }

    /// A service and its condition, as a service of a stack has them.
    pub(super) fn written(self, service: &Text) -> Value {
        match self {
            Self::Started | Self::Healthy => Value::Text(service.clone()),
            Self::Completed => Map::new(vec![
                ("condition".into(), "service_completed_successfully".into()),
                ("service".into(), Value::Text(service.clone())),
            ])
            .into(),
        }
    }
}

/// One service that another one waits for.
pub(super) struct Dependency {
    pub(super) service: Text,
    pub(super) condition: Condition,
    /// Whether it has to be in the file.
    pub(super) is_required: bool,
}

/// The services that a service waits for.
pub(super) fn depends_on(service: &Section<'_>, for_stack: bool) -> Result<Vec<Dependency>, Invalid> {
    let plain = |service| Dependency { service, condition: Condition::Started, is_required: true };
    let Some(Value::Map(map)) = service.get("depends_on") else {
        return Ok(texts(service, "depends_on")?.into_iter().map(plain).collect());
    };
    let all = Section { path: service.at("depends_on"), map };
    let mut found = Vec::new();
    for (name, how) in map {
        if how.is_null() {
            found.push(plain(name.clone()));
            continue;
        }
        let how = Section::new(all.at(name), how)?;
        how.only(&["condition", "required", "restart"])?;
        if truth(&how, "restart")?.is_some() {
            let expected = "false: a service is not started again when another one is updated";
            return Err(Invalid::new(how.at("restart"), "true is not supported", expected));
        }
        let word = how.text("condition")?;
        let condition = match &word {
            None => Some(Condition::Started),
            Some(word) => Condition::of_word(word),
        };
        let known = ["service_started", "service_healthy", "service_completed_successfully"];
        let condition = condition.ok_or_else(|| unsupported(how.at("condition"), &known))?;
        if !for_stack && condition != Condition::Started {
            let expected = "service_started; stacks (`scheduler up`) wait for more";
            return Err(Invalid::new(
                how.at("condition"),
                "is not supported when containers are placed once",
                expected,
            ));
        }
        let is_required = how.get("required").is_none() || truth(&how, "required")?.is_some();
        found.push(Dependency { service: name.clone(), condition, is_required });
    }
    Ok(found)
}
