//! The lines of the change stream (`GET /v1/changes`): one JSON object a line.
//!
//! `{"revision", "from", "put", "removed", "rest", "more"}` is a change: applied to the snapshot of revision `from` it gives
//! `revision`; `from` null starts from nothing. A change of more than [`LINE_BYTES`] goes on in the next line while `more` is true.
//! `{"revision", "heartbeat": true}` says that nothing changed; with `"live_clients": true`, that the sender's source is the
//! engine of its host, which reports containers a moment after they have begun to ask.

use std::fmt;
use std::iter::Peekable;

use serde::Serialize;

use crate::delta::Delta;
use crate::value::{Map, Text, Value};

/// Bytes after which a line goes on in the next one, so that neither side holds more than some megabytes of text at a time.
pub const LINE_BYTES: usize = 1 << 20;

/// Longest line that is written, and so the longest that is read.
///
/// It has room for [`LINE_BYTES`] and two items of [`ITEM_BYTES_MAX`]. A container has 2 MiB at most: 256 KiB of labels, each
/// byte of which may become six in JSON.
pub const LINE_BYTES_MAX: usize = 64 << 20;

/// Longest item of a line: an entity, or all that is none; a longer one is not sent.
const ITEM_BYTES_MAX: usize = 31 << 20;

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
    pub fn split(revision: &Text, from: Option<&Text>, delta: Delta) -> Lines<std::vec::IntoIter<Map>> {
        Lines::new(revision.clone(), from.cloned(), delta.put).with_removed(delta.removed).with_rest(delta.rest)
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

/// The lines of one change as bytes, with their line ends; each is written when it is asked for.
pub struct Lines<I: Iterator> {
    revision: Text,
    from: Option<Text>,
    put: Peekable<I>,
    removed: Peekable<std::vec::IntoIter<(Text, Text)>>,
    rest: Option<Vec<Map>>,
    left_out: usize,
    is_over: bool,
}

impl<I: Iterator<Item: Serialize>> Lines<I> {
    /// The lines that put these entities, which are written like those of [`Delta::put`].
    pub fn new(revision: Text, from: Option<Text>, put: impl IntoIterator<IntoIter = I>) -> Self {
        let (put, removed) = (put.into_iter().peekable(), Vec::new().into_iter().peekable());
        Self { revision, from, put, removed, rest: None, left_out: 0, is_over: false }
    }

    /// The same, and remove these.
    #[must_use]
    pub fn with_removed(self, removed: Vec<(Text, Text)>) -> Self {
        Self { removed: removed.into_iter().peekable(), ..self }
    }

    /// The same, and say what is no entity.
    #[must_use]
    pub fn with_rest(self, rest: Option<Vec<Map>>) -> Self {
        Self { rest, ..self }
    }

    /// How many items were too long for a line so far.
    pub fn left_out(&self) -> usize {
        self.left_out
    }
}

impl<I: Iterator<Item: Serialize>> Iterator for Lines<I> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        if self.is_over {
            return None;
        }
        let (mut put, mut removed) = (Items::default(), Items::default());
        while put.bytes.len() < LINE_BYTES
            && let Some(entity) = self.put.next()
        {
            put.push(&entity);
        }
        while put.bytes.len() + removed.bytes.len() < LINE_BYTES
            && let Some(gone) = self.removed.next()
        {
            removed.push(&gone);
        }
        let more = self.put.peek().is_some() || self.removed.peek().is_some();
        let mut rest = Items::default();
        if !more && let Some(objects) = self.rest.take() {
            rest.push(&objects);
        }
        self.is_over = !more;
        self.left_out += put.left_out + removed.left_out + rest.left_out;
        let rest = if rest.bytes.is_empty() { b"null" } else { &rest.bytes[..] };
        let [from, revision] = [self.from.as_ref(), Some(&self.revision)].map(|text| {
            // Text can always be written.
            serde_json::to_vec(&text).unwrap_or_default()
        });
        let parts: [&[u8]; 13] = [
            b"{\"from\":",
            &from,
            b",\"more\":",
            if more { b"true" } else { b"false" },
            b",\"put\":[",
            &put.bytes,
            b"],\"removed\":[",
            &removed.bytes,
            b"],\"rest\":",
            rest,
            b",\"revision\":",
            &revision,
            b"}\n",
        ];
        Some(parts.concat())
    }
}

impl<I: Iterator> fmt::Debug for Lines<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("revision", &self.revision).field("from", &self.from).finish_non_exhaustive()
    }
}

/// Items of a JSON list.
#[derive(Default)]
struct Items {
    bytes: Vec<u8>,
    left_out: usize,
}

impl Items {
    fn push(&mut self, item: &impl Serialize) {
        let before = self.bytes.len();
        if before > 0 {
            self.bytes.push(b',');
        }
        let written = serde_json::to_writer(&mut self.bytes, item);
        if written.is_err() || self.bytes.len() - before > ITEM_BYTES_MAX {
            self.bytes.truncate(before);
            self.left_out += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Snapshot, object};

    fn snapshot(containers: usize, label: &str) -> Snapshot {
        let container =
            |id: usize| object("container", [("uuid", Value::text(format!("c{id}"))), ("label", Value::text(label))]);
        crate::objects::read((0..containers).map(container)).0
    }

    /// What `old` becomes by the lines from it to `new`, and their lengths.
    fn follow(old: &Snapshot, new: &Snapshot) -> (Snapshot, Vec<usize>) {
        let lines: Vec<_> = ChangeLine::split(&"2".into(), Some(&"1".into()), Delta::between(old, new)).collect();
        let mut applied = old.clone();
        for (index, line) in lines.iter().enumerate() {
            assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
            match ChangeLine::from_value(&serde_json::from_slice(line).unwrap()).unwrap() {
                ChangeLine::Change { delta, more, from, revision } => {
                    assert_eq!((&*revision, from.as_deref(), more), ("2", Some("1"), index + 1 < lines.len()));
                    applied = delta.apply(&applied).unwrap();
                }
                ChangeLine::Heartbeat { .. } => panic!("a heartbeat"),
            }
        }
        (applied, lines.iter().map(Vec::len).collect())
    }

    #[test]
    fn a_change_of_any_size_arrives_whole() {
        let long = "x".repeat(LINE_BYTES / 10);
        for (old, new, label, expected) in
            [(0, 0, "", 1), (0, 3, "", 1), (3, 0, "", 1), (0, 10, &*long, 1), (2, 25, &long, 3), (25, 2, &long, 1)]
        {
            let (old, new) = (snapshot(old, label), snapshot(new, label));
            let (applied, lines) = follow(&old, &new);
            assert_eq!((applied, lines.len()), (new, expected));
        }
        let (many, none) = (snapshot(LINE_BYTES / 20, ""), Snapshot::default());
        let (applied, lines) = follow(&many, &none);
        assert!(applied == none && lines.len() > 1, "{lines:?}");
    }

    #[test]
    fn labels_that_json_writes_long_make_no_line_that_is_refused() {
        // Four labels of 64 KiB, as an engine allows, of a byte that becomes six.
        let (none, new) = (Snapshot::default(), snapshot(10, &"\u{1}".repeat(256 << 10)));
        let (applied, lines) = follow(&none, &new);
        assert_eq!(applied, new);
        assert!(lines.iter().all(|length| *length < 4 * LINE_BYTES), "{lines:?}");
    }

    #[test]
    fn no_line_is_longer_than_a_reader_takes() {
        let fits = Value::text("x".repeat(ITEM_BYTES_MAX - 100));
        let map = |text: &Value| Map::from_iter([("object".into(), text.clone())]);
        let small = Value::text("x".repeat(LINE_BYTES - 100));
        let lines = |put: &[&Value], rest: &Value| {
            let put: Vec<_> = put.iter().map(|text| map(text)).collect();
            let mut lines = Lines::new("2".into(), None, put).with_rest(Some(vec![map(rest)]));
            let longest = lines.by_ref().map(|line| line.len()).max().unwrap();
            (longest, lines.left_out())
        };
        let (longest, left_out) = lines(&[&small, &fits], &fits);
        assert!(longest > 2 * ITEM_BYTES_MAX && longest <= LINE_BYTES_MAX && left_out == 0, "{longest} {left_out}");
        let long = Value::text("x".repeat(ITEM_BYTES_MAX));
        let (longest, left_out) = lines(&[&small, &long, &small], &long);
        assert!(longest < 3 * LINE_BYTES && left_out == 2, "{longest} {left_out}");
    }

    #[test]
    fn what_is_no_line_is_refused() {
        for json in ["[]", "{}", r#"{"revision":"1","put":[3]}"#, r#"{"revision":"1","removed":[["container"]]}"#] {
            assert!(ChangeLine::from_value(&serde_json::from_str(json).unwrap()).is_err(), "{json}");
        }
    }
}
