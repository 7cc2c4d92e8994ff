//! What an event of the engine may have changed. Events are hints: what is there is read again, never believed.

use bollard::models::{EventMessage, EventMessageTypeEnum};
use model::Text;

use super::stopping::signal;

/// What to look at again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    /// A container, by id.
    Container(Text),
    /// A container that was sent a signal.
    Signal(Text, u8),
    /// A container that was removed; ids are not used again.
    Gone(Text),
    /// The list of networks.
    Networks,
    /// The engine's own facts.
    Host,
}

/// Actions that change nothing that is shown. Commands that run inside (health checks among them) make three events each.
const IRRELEVANT: [&str; 16] = [
    "archive-path",
    "attach",
    "checkpoint",
    "commit",
    "copy",
    "detach",
    "exec_create",
    "exec_detach",
    "exec_die",
    "exec_start",
    "export",
    "extract-to-dir",
    "oom",
    "resize",
    "top",
    "prune",
];

impl Hint {
    /// What this event may have changed.
    pub(super) fn of(event: &EventMessage) -> Option<Self> {
        // `health_status: healthy`, `exec_start: sh -c true`
        let action = event.action.as_deref().unwrap_or_default();
        let action = action.split(':').next().unwrap_or_default();
        let actor = event.actor.as_ref();
        let id = |id: Option<&String>| id.filter(|id| !id.is_empty()).map(|id| Text::from(id.as_str()));
        match event.typ? {
            EventMessageTypeEnum::CONTAINER if IRRELEVANT.contains(&action) => None,
            EventMessageTypeEnum::CONTAINER if action == "destroy" => id(actor?.id.as_ref()).map(Self::Gone),
            EventMessageTypeEnum::CONTAINER if action == "kill" => {
                let actor = actor?;
                let signal = signal(actor.attributes.as_ref()?.get("signal")?)?;
                id(actor.id.as_ref()).map(|id| Self::Signal(id, signal))
            }
            EventMessageTypeEnum::CONTAINER => id(actor?.id.as_ref()).map(Self::Container),
            EventMessageTypeEnum::NETWORK => match action {
                "connect" | "disconnect" => id(actor?.attributes.as_ref()?.get("container"))
                    .map_or(Some(Self::Networks), |id| Some(Self::Container(id))),
                _ => Some(Self::Networks),
            },
            EventMessageTypeEnum::DAEMON => Some(Self::Host),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_say_what_to_look_at() {
        let container = Some(Hint::Container("c1".into()));
        for (kind, action, expected) in [
            ("container", "start", container.clone()),
            ("container", "rename", container.clone()),
            ("container", "health_status: healthy", container.clone()),
            ("container", "something new", container.clone()),
            ("container", "destroy", Some(Hint::Gone("c1".into()))),
            ("container", "exec_start: sh -c true", None),
            ("container", "kill", Some(Hint::Signal("c1".into(), 15))),
            ("network", "connect", Some(Hint::Container("c2".into()))),
            ("network", "create", Some(Hint::Networks)),
            ("daemon", "reload", Some(Hint::Host)),
            ("image", "pull", None),
        ] {
            let json = format!(
                r#"{{"Type": "{kind}", "Action": "{action}", "Actor": {{"ID": "c1", "Attributes": {{"container": "c2", "signal": "15"}}}}}}"#
            );
            assert_eq!(Hint::of(&serde_json::from_str(&json).unwrap()), expected, "{kind} {action}");
        }
        for json in [
            "{}",
            r#"{"Type": "container"}"#,
            r#"{"Type": "network", "Action": "connect"}"#,
            r#"{"Type": "container", "Action": "kill", "Actor": {"ID": "c1", "Attributes": {"signal": "?"}}}"#,
        ] {
            assert_eq!(Hint::of(&serde_json::from_str(json).unwrap()), None, "{json}");
        }
    }
}
