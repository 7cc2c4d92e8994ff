//! The life of a container: what its engine, or the snapshot, says of it after its start.

use std::sync::Arc;

use bollard::models::{ContainerState, HealthStatusEnum};
use model::{Container, Text};
use serde::Serialize;

/// State of a container that its engine does not have any more.
pub(super) const GONE: &str = "gone";

/// How a container is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Life {
    /// `created`, `running`, `paused`, `restarting`, `exited`, `dead`, `removing`, `starting`, `gone`, or the source's own word.
    pub state: Text,
    /// `healthy`, `unhealthy` or `starting`, when something checks it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<Text>,
    /// With which code it ended last, unless it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    /// Since when it is so, as the engine writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Text>,
}

impl Life {
    /// What an engine says.
    pub(crate) fn of_engine(state: &ContainerState) -> Self {
        let word = state.status.map_or_else(|| "created".to_owned(), |status| status.to_string());
        let (runs, ended) =
            (matches!(&*word, "running" | "paused"), matches!(&*word, "exited" | "dead" | "restarting"));
        let moment = match (runs, ended) {
            (true, _) => state.started_at.as_deref(),
            (_, true) => state.finished_at.as_deref(),
            _ => None,
        };
        let health = state.health.as_ref().and_then(|health| health.status).filter(|_| runs);
        let health = health.filter(|health| !matches!(health, HealthStatusEnum::EMPTY | HealthStatusEnum::NONE));
        Self {
            health: health.map(|health| health.to_string().into()),
            exit_code: state.exit_code.filter(|_| ended),
            since: moment.and_then(whole_seconds),
            state: word.into(),
        }
    }

    /// What a snapshot says.
    pub(crate) fn of_snapshot(container: &Container) -> Self {
        let state = match container.state() {
            "stopped" => "exited",
            other => other,
        };
        let health = container.health_state().filter(|_| state == "running").map(Text::from);
        Self { state: state.into(), health, exit_code: None, since: None }
    }

    /// What an engine says that has no such container.
    pub(crate) fn gone() -> Self {
        Self { state: GONE.into(), health: None, exit_code: None, since: None }
    }

    /// Whether its engine has no such container.
    pub(crate) fn is_gone(&self) -> bool {
        &*self.state == GONE
    }

    /// Whether it runs or is about to.
    pub(crate) fn runs(&self) -> bool {
        !matches!(
            &*self.state,
            "created"
                | "restarting"
                | "exited"
                | "dead"
                | "removing"
                | "removed"
                | "paused"
                | "error"
                | "erroring"
                | GONE
        )
    }

    /// Whether it has a process that can be asked to end.
    pub(crate) fn is_alive(&self) -> bool {
        matches!(&*self.state, "running" | "paused" | "restarting")
    }

    /// Whether it ran to its end without an error.
    pub(crate) fn is_done(&self) -> bool {
        &*self.state == "exited" && self.exit_code == Some(0)
    }
}

/// What the engine of a container said last.
#[derive(Clone, Debug)]
pub(crate) struct EngineAnswer {
    /// How it is.
    pub(crate) life: Life,
    /// How the cluster showed it at that time.
    shown: Option<Arc<Container>>,
}

impl EngineAnswer {
    /// An answer of just now, while the cluster shows the container like this.
    pub(crate) fn now(life: Life, shown: Option<&Arc<Container>>) -> Self {
        Self { life, shown: shown.cloned() }
    }

    /// Whether the cluster showed it like this already.
    pub(crate) fn is_after(&self, container: &Arc<Container>) -> bool {
        self.shown.as_ref().is_some_and(|shown| Arc::ptr_eq(shown, container))
    }

    /// Whether a later answer says more: something else, or that the container runs although the cluster shows it differently by now.
    pub(crate) fn is_outdone_by(&self, later: &Self) -> bool {
        self.life != later.life || later.life.runs() && later.shown.as_ref().is_some_and(|shown| !self.is_after(shown))
    }
}

/// `2026-11-22T01:18:26Z` of `2026-11-22T01:18:26.123456789Z`; `None` for the year 1, by which engines say "never".
fn whole_seconds(text: &str) -> Option<Text> {
    let whole = text.split_once('.').map_or_else(|| text.to_owned(), |(whole, _)| format!("{whole}Z"));
    (!text.is_empty() && !text.starts_with("0001-")).then(|| whole.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str, expected: [&str; 4], runs: bool) {
        let life = Life::of_engine(&serde_json::from_str(json).unwrap());
        let text = |text: &Option<Text>| text.as_deref().unwrap_or("-").to_owned();
        let code = life.exit_code.map_or_else(|| "-".to_owned(), |code| code.to_string());
        assert_eq!([life.state.to_string(), text(&life.health), code, text(&life.since)], expected, "{json}");
        assert_eq!(life.runs(), runs, "{json}");
    }

    #[test]
    fn an_engine_says_how_a_container_is_and_since_when() {
        let (started, finished) =
            (r#""StartedAt": "2026-11-22T01:02:03.9Z""#, r#""FinishedAt": "2026-11-22T01:02:04Z""#);
        check(
            &format!(r#"{{"Status": "running", "ExitCode": 0, {started}, "Health": {{"Status": "unhealthy"}}}}"#),
            ["running", "unhealthy", "-", "2026-11-22T01:02:03Z"],
            true,
        );
        check(
            &format!(r#"{{"Status": "exited", "ExitCode": 137, {started}, {finished}}}"#),
            ["exited", "-", "137", "2026-11-22T01:02:04Z"],
            false,
        );
        check(
            &format!(r#"{{"Status": "restarting", "ExitCode": 1, {finished}}}"#),
            ["restarting", "-", "1", "2026-11-22T01:02:04Z"],
            false,
        );
        check(r#"{"Status": "created", "StartedAt": "0001-01-01T00:00:00Z"}"#, ["created", "-", "-", "-"], false);
        check("{}", ["created", "-", "-", "-"], false);
    }
}
