//! Keys and values as they are read, before anything is compared with what is known.
//!
//! Nothing is needed for that but the bytes, so a page of a list is read while etcd makes the next one; and the
//! documents of the hosts in it are made and resolved then, too.

use std::collections::{BTreeMap, HashMap};
use std::panic::catch_unwind;

use etcd::Pair;
use model::{Defect, Map, Pool, Text, Value};

use super::keys::{self, Key, Kind, PartId, own_key};
use super::value::{self, Published};
use crate::merge::{Resolved, SINCE};

/// A key that was put, as far as it was read.
#[derive(Debug)]
pub(super) enum Read {
    /// One of ours.
    Ours(Put),
    /// The word that the cluster is empty.
    Empty,
    /// One without an owner: what stands behind the prefix, and why.
    Foreign(Vec<u8>, String),
}

/// Most bytes of values that one host may have: 1,000 containers of 16 KiB. What follows etcd holds about eight times as many.
pub(super) const HOST_BYTES_MAX: usize = 16 << 20;

/// What is wrong with a key beyond [`HOST_BYTES_MAX`].
pub(super) fn too_much() -> String {
    format!("a host has at most {} MiB of values", HOST_BYTES_MAX >> 20)
}

/// A key of a part, put.
#[derive(Debug)]
pub(super) struct Put {
    pub(super) key: Key,
    /// The revision since which there is such a key.
    pub(super) since: i64,
    pub(super) mod_revision: i64,
    /// How often it was put since it was last deleted.
    pub(super) version: i64,
    /// How long the value is.
    pub(super) bytes: usize,
    pub(super) content: Content,
}

/// What a key says.
#[derive(Debug)]
pub(super) enum Content {
    /// Perhaps they are known, and need not be read.
    Bytes(Vec<u8>),
    Value(Result<Map, Defect>),
}

impl Content {
    /// What `key` says, or what is wrong with it.
    pub(super) fn value(self, key: &Key, pool: &mut Pool) -> Result<Map, Defect> {
        match self {
            Self::Value(value) => value,
            Self::Bytes(bytes) => value::read(key, &bytes, pool),
        }
    }
}

/// Reads keys under a prefix.
#[derive(Debug)]
pub(super) struct Reader {
    prefix: Text,
    pub(super) pool: Pool,
    pub(super) read: Vec<Read>,
    pub(super) prepared: HashMap<PartId, Prepared>,
    /// The host whose keys came last, and where among those that were read they begin.
    last: Option<(PartId, usize)>,
    /// Of the host whose keys came last, how many bytes of values.
    bytes: (Option<PartId>, usize),
}

/// A host's document, as it is when there is nothing but what was read.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) document: Map,
    pub(super) resolved: Resolved,
}

impl Reader {
    pub(super) fn new(prefix: Text, pool: Pool) -> Self {
        Self { prefix, pool, read: Vec::new(), prepared: HashMap::new(), last: None, bytes: (None, 0) }
    }

    /// Reads these keys, and what they say unless that may be known: then `lazy` leaves it for later.
    pub(super) fn page(&mut self, pairs: Vec<Pair>, lazy: bool) {
        for pair in pairs {
            let Some(read) = read(&self.prefix, pair, &mut self.pool) else { continue };
            let mut read = self.bounded(read);
            if let Read::Ours(Put { key, content, .. }) = &mut read
                && let Content::Bytes(bytes) = content
                && !lazy
            {
                *content = Content::Value(value::read(key, bytes, &mut self.pool));
            }
            if !lazy {
                self.prepare(&read);
            }
            self.read.push(read);
        }
    }

    /// What is beyond the bytes that a host may have is left out before it is read.
    fn bounded(&mut self, read: Read) -> Read {
        let Read::Ours(Put { key, bytes, .. }) = &read else { return read };
        let id = key.part();
        if self.bytes.0 != id {
            self.bytes = (id, 0);
        }
        let all = self.bytes.1.saturating_add(*bytes);
        if matches!(self.bytes.0, Some(PartId::Host(_))) && all > HOST_BYTES_MAX {
            return Read::Foreign(key.path().into_bytes(), too_much());
        }
        self.bytes.1 = all;
        read
    }

    /// Makes the document of the host before, when this is not of it any more: its keys come one after the other.
    fn prepare(&mut self, next: &Read) {
        let next = match next {
            Read::Ours(put) => put.key.part(),
            Read::Empty | Read::Foreign(..) => None,
        };
        if next.is_some() && self.last.as_ref().map(|(last, _)| last) == next.as_ref() {
            return;
        }
        if let Some((id, start)) = self.last.take()
            && let Some(prepared) = prepared(&id, &self.read[start..])
        {
            self.prepared.insert(id, prepared);
        }
        self.last = next.map(|id| (id, self.read.len()));
    }
}

/// The document that is in the keys of a host, if nothing is wrong with any of them.
fn prepared(id: &PartId, read: &[Read]) -> Option<Prepared> {
    if !matches!(id, PartId::Host(_) | PartId::Document(_)) {
        return None;
    }
    let values = read.iter().map(|read| match read {
        Read::Ours(Put { key, since, content: Content::Value(Ok(value)), .. }) => Some((key, value, *since)),
        _ => None,
    });
    let mut values: Vec<(&Key, &Map, i64)> = values.collect::<Option<_>>()?;
    // Escaped they may stand in another order.
    values.sort_unstable_by_key(|(key, ..)| *key);
    let own = own_key(id);
    let (_, own, _) = values.iter().find(|(key, value, _)| **key == own && is_whole(value))?;
    let document = assembled(id, own, values.iter().copied());
    // Its defect is reported when its turn comes.
    let resolved = catch_unwind(|| Resolved::of(&id.text(), &document)).ok()?.ok()?;
    Some(Prepared { document, resolved })
}

/// Whether a part's own value says that everything is there, to stay.
pub(super) fn is_whole(own: &Map) -> bool {
    let published = Published::read(own);
    !published.partial && !published.leaving
}

/// The document that a part is, out of its own value and all values in the order of their keys, each with the revision
/// since which there is such a key.
pub(super) fn assembled<'v>(id: &PartId, own: &Map, values: impl IntoIterator<Item = (&'v Key, &'v Map, i64)>) -> Map {
    let PartId::Host(host) = id else { return own.clone() };
    let mut lists: BTreeMap<Kind, Vec<Value>> = BTreeMap::new();
    let mut since: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for (key, value, revision) in values {
        let list = match key {
            Key::Entity(_, kind, _) => {
                lists.entry(*kind).or_default().push(Value::Map(value.without("berth")));
                kind.list()
            }
            _ => "hosts",
        };
        since.entry(list).or_default().push(Value::Int(revision));
    }
    let since = since.into_iter().map(|(list, revisions)| (list.into(), Value::List(revisions.into()))).collect();
    value::assemble(host, own, lists).with([(SINCE.into(), Value::Map(since))])
}

/// What a key is, its value not being looked at; `None` when it is none of those that are followed.
pub(super) fn read(prefix: &str, pair: Pair, pool: &mut Pool) -> Option<Read> {
    let path = keys::path_of(prefix, &pair.key)?;
    Some(match Key::parse_shared(path, pool) {
        Ok(Key::Empty) => Read::Empty,
        Ok(key) => Read::Ours(Put {
            key,
            since: pair.create_revision,
            mod_revision: pair.mod_revision,
            version: pair.version,
            bytes: pair.value.len(),
            content: Content::Bytes(pair.value),
        }),
        Err(problem) => Read::Foreign(path.to_vec(), problem),
    })
}
