//! The lines of the change stream (`GET /v1/changes`): one JSON object a line.
//!
//! `{"revision", "from", "put", "removed", "rest", "more"}` is a change: applied to the snapshot of revision `from` it gives
//! `revision`; `from` null starts from nothing. A change too large for one line goes on in the next one while `more` is true.
//! `{"revision", "heartbeat": true}` says that nothing changed; with `"live_clients": true`, that the sender's source is the
//! engine of its host, which reports containers a moment after they have begun to ask.

use crate::delta::Delta;
use crate::value::{Map, Text, Value};

/// Most entities in one line, so that neither side holds more than some megabytes of text at a time.
pub const LINE_ENTITIES_MAX: usize = 500;

/// One line.
#[derive(Clone, Debug)]
pub enum ChangeLine {
    /// Nothing changed; the sender lives.
    Heartbeat {
        /// The revision that is current.
        revision: Text,
        /// Whether the sender's source is the engine of its host.
        live_clients: bool,
    },
    /// A change, or a part of one.
    Change {
        /// The revision that it leads to.
        revision: Text,
        /// The revision that it starts from; `None` starts from an empty snapshot.
        from: Option<Text>,
        /// What changed.
        delta: Delta,
        /// Whether the next line belongs to the same change.
        more: bool,
    },
}

/// A line that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no line of changes: {0}")]
pub struct BadLine(&'static str);

impl ChangeLine {
    /// The lines of one change.
    pub fn split(revision: &Text, from: Option<&Text>, delta: Delta) -> Vec<Self> {
        let Delta { put, removed, rest } = delta;
        let line = |delta| Self::Change { revision: revision.clone(), from: from.cloned(), delta, more: true };
        let mut lines: Vec<_> =
            put.chunks(LINE_ENTITIES_MAX).map(|put| line(Delta { put: put.to_vec(), ..Delta::default() })).collect();
        lines.push(line(Delta { put: Vec::new(), removed, rest }));
        if let [.., Self::Change { delta: before, .. }, Self::Change { delta: last, .. }] = &mut lines[..] {
            // What is gone and what is no entity goes with the last entities.
            before.removed = std::mem::take(&mut last.removed);
            before.rest = last.rest.take();
            lines.pop();
        }
        if let Some(Self::Change { more, .. }) = lines.last_mut() {
            *more = false;
        }
        lines
    }

    /// The line as a value.
    pub fn to_value(&self) -> Value {
        let entries: Vec<(&str, Value)> = match self {
            Self::Heartbeat { revision, live_clients } => {
                let live_clients = live_clients.then(|| ("live_clients", true.into()));
                let entries = [("revision", revision.clone().into()), ("heartbeat", true.into())];
                entries.into_iter().chain(live_clients).collect()
            }
            Self::Change { revision, from, delta, more } => {
                let maps = |maps: &[Map]| Value::list(maps.iter().cloned().map(Value::Map));
                let removed = |(kind, id): &(Text, Text)| Value::list([kind.clone().into(), id.clone().into()]);
                vec![
                    ("revision", revision.clone().into()),
                    ("from", from.clone().into()),
                    ("put", maps(&delta.put)),
                    ("removed", Value::list(delta.removed.iter().map(removed))),
                    ("rest", delta.rest.as_deref().map(maps).unwrap_or_default()),
                    ("more", (*more).into()),
                ]
            }
        };
        Value::Map(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }

    /// The line that this value is.
    ///
    /// # Errors
    ///
    /// Fails if it is none.
    pub fn from_value(value: &Value) -> Result<Self, BadLine> {
        let map = value.as_map().ok_or(BadLine("not a map"))?;
        let revision = map.text("revision").ok_or(BadLine("no revision"))?.clone();
        if map.get("heartbeat").and_then(Value::as_bool) == Some(true) {
            let live_clients = map.get("live_clients").and_then(Value::as_bool).unwrap_or_default();
            return Ok(Self::Heartbeat { revision, live_clients });
        }
        let maps = |items: &[Value]| {
            let map = |item: &Value| item.as_map().cloned().ok_or(BadLine("an entity is no map"));
            items.iter().map(map).collect::<Result<Vec<_>, _>>()
        };
        let removed = |item: &Value| match item.as_list() {
            Some([Value::Text(kind), Value::Text(id)]) => Ok((kind.clone(), id.clone())),
            _ => Err(BadLine("what is removed has no kind and id")),
        };
        let delta = Delta {
            put: maps(map.list("put"))?,
            removed: map.list("removed").iter().map(removed).collect::<Result<_, _>>()?,
            rest: map.get("rest").and_then(Value::as_list).map(maps).transpose()?,
        };
        let more = map.get("more").and_then(Value::as_bool).unwrap_or_default();
        Ok(Self::Change { revision, from: map.text("from").cloned(), delta, more })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Snapshot, object};

    fn snapshot(containers: usize) -> Snapshot {
        let container = |id: usize| object("container", [("uuid", Value::text(format!("c{id}")))]);
        crate::objects::read((0..containers).map(container)).0
    }

    #[test]
    fn a_change_of_any_size_arrives_whole() {
        for (old, new) in [(0, 0), (0, 3), (3, 0), (0, LINE_ENTITIES_MAX), (2, 3 * LINE_ENTITIES_MAX + 1)] {
            let (old, new) = (snapshot(old), snapshot(new));
            let lines = ChangeLine::split(&"2".into(), Some(&"1".into()), Delta::between(&old, &new));
            let mut applied = old;
            for (index, line) in lines.iter().enumerate() {
                match ChangeLine::from_value(&line.to_value()).unwrap() {
                    ChangeLine::Change { delta, more, from, revision } => {
                        assert_eq!((&*revision, from.as_deref(), more), ("2", Some("1"), index + 1 < lines.len()));
                        applied = delta.apply(&applied).unwrap();
                    }
                    ChangeLine::Heartbeat { .. } => panic!("a heartbeat"),
                }
            }
            assert_eq!(applied, new);
        }
    }

    #[test]
    fn what_is_no_line_is_refused() {
        for json in ["[]", "{}", r#"{"revision":"1","put":[3]}"#, r#"{"revision":"1","removed":[["container"]]}"#] {
            assert!(ChangeLine::from_value(&serde_json::from_str(json).unwrap()).is_err(), "{json}");
        }
    }
}
