//! What changed lately, for followers of the change stream: the lines since a revision, or everything.
//!
//! A view of its own beside the tree. Lines are written once and shared by all followers. What only a container may see of
//! itself (a service's token, the answers written for it) is no part of them.

use std::sync::Arc;

use bytes::Bytes;
use imbl::Vector;
use model::{ChangeLine, Delta, Entity, Map, Service, Snapshot, Text, Value};

/// Most changes that are remembered: a follower that missed more reads everything, which is cheaper by then.
const ENTRIES_MAX: usize = 1024;

/// Most bytes of remembered lines.
const BYTES_MAX: usize = 16 << 20;

/// Most entities of a change that is logged. With two kilobytes each, more would not fit; a follower that has the revision
/// before then reads everything.
const CHANGED_MAX: usize = 8192;

/// The changes that are remembered, as of one snapshot.
#[derive(Clone, Debug)]
pub(crate) struct ChangeLog {
    /// The current revision; `None` before there are data.
    current: Option<(Text, Arc<Snapshot>)>,
    entries: Vector<Entry>,
    bytes: usize,
}

/// One change.
#[derive(Clone, Debug)]
struct Entry {
    from: Text,
    lines: Vec<Bytes>,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.lines.iter().map(Bytes::len).sum()
    }
}

/// What a follower lacks.
#[derive(Debug)]
pub(crate) enum Lacking {
    /// There are no data yet.
    NoData,
    /// Nothing; it has this revision.
    Nothing(Text),
    /// These lines, which lead to this revision.
    Lines(Text, Vec<Bytes>),
    /// Everything that this snapshot of this revision holds.
    Everything(Text, Arc<Snapshot>),
}

impl ChangeLog {
    /// The log before there are data.
    pub(crate) fn empty() -> Self {
        Self { current: None, entries: Vector::new(), bytes: 0 }
    }

    /// The log with the change to `snapshot`; `None` when there is none.
    pub(crate) fn next(&self, snapshot: &Arc<Snapshot>) -> Option<Self> {
        let revision = Text::from(snapshot.fingerprint().to_string());
        let mut next = self.clone();
        if let Some((from, old)) = &self.current {
            if *from == revision {
                return None;
            }
            if Delta::count(old, snapshot) > CHANGED_MAX {
                next.entries.clear();
                next.bytes = 0;
            } else {
                let mut lines = Vec::new();
                // A follower that lacks a change which does not fit reads everything.
                for line in written(&revision, from, Delta::between(old, snapshot)) {
                    next.bytes += line.len();
                    lines.push(line.into());
                    if next.bytes > 2 * BYTES_MAX {
                        break;
                    }
                }
                next.entries.push_back(Entry { from: from.clone(), lines });
            }
            while next.entries.len() > ENTRIES_MAX || next.bytes > BYTES_MAX {
                let Some(oldest) = next.entries.pop_front() else { break };
                next.bytes -= oldest.bytes();
            }
        }
        next.current = Some((revision, snapshot.clone()));
        Some(next)
    }

    /// What a follower lacks that has the revision `known`.
    pub(crate) fn lacking(&self, known: Option<&str>) -> Lacking {
        let Some((revision, snapshot)) = &self.current else { return Lacking::NoData };
        let Some(known) = known else { return Lacking::Everything(revision.clone(), snapshot.clone()) };
        if *known == **revision {
            return Lacking::Nothing(revision.clone());
        }
        // Content may have come back to an earlier revision: from its latest appearance on, least is to be sent.
        let Some(start) = self.entries.iter().rposition(|entry| *entry.from == *known) else {
            return Lacking::Everything(revision.clone(), snapshot.clone());
        };
        let lines = self.entries.iter().skip(start).flat_map(|entry| entry.lines.clone()).collect();
        Lacking::Lines(revision.clone(), lines)
    }
}

/// The line that says that nothing changed.
pub(crate) fn heartbeat(revision: &Text, live_clients: bool) -> Vec<u8> {
    let line = ChangeLine::Heartbeat { revision: revision.clone(), live_clients };
    let mut bytes = serde_json::to_vec(&line.to_value()).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

fn written(revision: &Text, from: &Text, mut delta: Delta) -> impl Iterator<Item = Vec<u8>> {
    for folded in &mut delta.put {
        if let Some(public) = folded.map("object").and_then(public) {
            *folded = folded.with([("object".into(), Value::Map(public))]);
        }
    }
    delta.rest = delta.rest.map(public_objects);
    ChangeLine::split(revision, Some(from), delta)
}

/// Objects without what only one container may see.
pub(crate) fn public_objects(objects: Vec<Map>) -> Vec<Map> {
    let public_object = |object: Map| match object.text("metadata_kind").map(|kind| &**kind) {
        Some("answers") => None,
        Some("external") => {
            let inner = object.list("objects").iter().filter_map(Value::as_map).cloned().collect();
            let inner = public_objects(inner).into_iter().map(Value::Map);
            Some(object.with([("objects".into(), Value::list(inner))]))
        }
        _ => Some(public(&object).unwrap_or(object)),
    };
    objects.into_iter().filter_map(public_object).collect()
}

/// The object without its secrets; `None` when it has none.
pub(crate) fn public(object: &Map) -> Option<Map> {
    let is_service = object.text("metadata_kind").is_some_and(|kind| &**kind == Service::KIND);
    let has_token = object.get("token").is_some_and(|token| !token.is_null());
    (is_service && has_token).then(|| object.with([("token".into(), Value::Null)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::whole::whole;

    fn snapshot(states: &[&str]) -> Arc<Snapshot> {
        let objects: Vec<Value> = serde_json::from_str(&format!(
            "[{}]",
            states
                .iter()
                .enumerate()
                .map(|(id, state)| format!(
                    r#"{{"metadata_kind":"service","uuid":"s{id}","name":"n","state":"{state}","token":"secret"}}"#
                ))
                .collect::<Vec<_>>()
                .join(",")
        ))
        .unwrap();
        Arc::new(model::objects::read(objects.iter().map(|object| object.as_map().unwrap().clone())).0)
    }

    /// What a follower has after it got what it lacked.
    fn follow(log: &ChangeLog, known: Option<(&str, &Snapshot)>) -> (String, Snapshot) {
        let (revision, lines) = match log.lacking(known.map(|(revision, _)| revision)) {
            Lacking::NoData => panic!("no data"),
            Lacking::Nothing(revision) => (revision, Vec::new()),
            Lacking::Lines(revision, lines) => (revision, lines),
            Lacking::Everything(revision, snapshot) => {
                let lines = whole(revision.clone(), &snapshot).map(Bytes::from).collect();
                (revision, lines)
            }
        };
        let mut has = known.map_or_else(Snapshot::default, |(_, snapshot)| snapshot.clone());
        for line in lines.concat().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            assert!(!String::from_utf8_lossy(line).contains("secret"));
            let value: Value = serde_json::from_slice(line).unwrap();
            let ChangeLine::Change { delta, from, .. } = ChangeLine::from_value(&value).unwrap() else { panic!() };
            let base = if from.is_none() { Snapshot::default() } else { has };
            has = delta.apply(&base).unwrap();
        }
        (revision.to_string(), has)
    }

    fn states(snapshot: &Snapshot) -> Vec<&str> {
        snapshot.services.values().map(|service| &**service.fields().text("state").unwrap()).collect()
    }

    #[test]
    fn a_follower_of_any_revision_arrives_at_the_current_one() {
        let mut log = ChangeLog::empty();
        assert!(matches!(log.lacking(None), Lacking::NoData));
        let mut revisions: Vec<(String, Snapshot)> = Vec::new();
        for content in [&["a"][..], &["a", "b"], &["a"], &["c", "b"], &[]] {
            log = log.next(&snapshot(content)).unwrap();
            assert!(log.next(&snapshot(content)).is_none());
            let whole = follow(&log, None);
            assert_eq!(states(&whole.1), content);
            for (known, had) in &revisions {
                let (revision, has) = follow(&log, Some((known, had)));
                assert_eq!((revision, states(&has)), (whole.0.clone(), content.to_vec()));
            }
            assert!(matches!(log.lacking(Some("never heard of")), Lacking::Everything(..)));
            revisions.push(whole);
        }
    }

    #[test]
    fn only_so_much_is_remembered() {
        let mut log = ChangeLog::empty();
        for change in 0..ENTRIES_MAX + 10 {
            log = log.next(&snapshot(&[&change.to_string()])).unwrap();
        }
        assert_eq!(log.entries.len(), ENTRIES_MAX);
        assert_eq!(log.bytes, log.entries.iter().map(Entry::bytes).sum::<usize>());
    }
}
