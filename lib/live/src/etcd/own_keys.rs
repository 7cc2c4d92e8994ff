//! The keys of this host in etcd, as far as they are known: what was listed, and our own transactions since.

use std::collections::{BTreeMap, BTreeSet};

use etcd::{KeyChange, Op};

use super::keys::{Key, host_path};
use super::plan::Leased;

/// Most own revisions that are remembered between two listings. A change of a forgotten one costs one more listing.
const WRITTEN_MAX: usize = 4096;

/// The keys of one host.
#[derive(Debug, Default)]
pub(super) struct OwnKeys {
    /// What all of them begin with.
    pub(super) prefix: String,
    /// The host's own key.
    pub(super) host: Vec<u8>,
    /// The key under which an operator gives it a new password.
    pub(super) password: Vec<u8>,
    /// What etcd has, when that is known.
    pub(super) there: Option<HostKeys>,
    /// As of which revision they were listed last.
    listed: i64,
    /// The revisions of our transactions since then.
    written: BTreeSet<i64>,
}

/// What etcd has of a host.
#[derive(Debug, Default)]
pub(super) struct HostKeys {
    /// The host's own key: its value, and when it was put.
    pub(super) host: Option<(Leased, i64)>,
    /// All others, by key.
    pub(super) entities: BTreeMap<Vec<u8>, Leased>,
}

impl OwnKeys {
    /// Those of the host of this name; `prefix` is that of all keys of ours.
    pub(super) fn new(prefix: &str, host: &str) -> Self {
        let key = |key: Key| format!("{prefix}{}", key.path()).into_bytes();
        let (own, password) = (key(Key::Host(host.into())), key(Key::Password(host.into())));
        Self { prefix: format!("{prefix}{}", host_path(host)), host: own, password, ..Self::default() }
    }

    /// They were listed as of this revision.
    pub(super) fn listed(&mut self, revision: i64) {
        self.listed = revision;
        self.written.clear();
    }

    /// One of our transactions is this revision.
    pub(super) fn written(&mut self, revision: i64) {
        self.written.insert(revision);
        if self.written.len() > WRITTEN_MAX {
            self.written.pop_first();
        }
    }

    /// Whether a change of one of them is neither ours nor contained in what was listed last.
    pub(super) fn is_foreign(&self, change: &KeyChange) -> bool {
        let is_known = change.revision <= self.listed || self.written.contains(&change.revision);
        !is_known && (!change.deleted || self.has(&change.key))
    }

    /// Whether etcd has this key, as far as we know.
    fn has(&self, key: &[u8]) -> bool {
        let has = |there: &HostKeys| there.entities.contains_key(key) || (there.host.is_some() && self.host == key);
        self.there.as_ref().is_some_and(has)
    }
}

impl HostKeys {
    /// How many keys another process has deleted since they were `known`.
    pub(super) fn deleted_since(&self, known: &Self) -> usize {
        let entities = known.entities.keys().filter(|key| !self.entities.contains_key(*key)).count();
        entities + usize::from(known.host.is_some() && self.host.is_none())
    }

    /// How many keys another process has written since they were `known`.
    pub(super) fn written_since(&self, known: &Self) -> usize {
        let entities = self.entities.iter().filter(|(key, leased)| known.entities.get(*key) != Some(leased)).count();
        let host = known.host.as_ref().zip(self.host.as_ref());
        entities + usize::from(host.is_some_and(|((known, _), (there, _))| known != there))
    }

    /// Takes in what a transaction of this revision did; `host` is the host's own key.
    pub(super) fn apply(&mut self, ops: Vec<Op>, revision: i64, host: &[u8]) {
        for op in ops {
            match op {
                Op::Put { key, value, lease } if key == host => self.host = Some(((value, lease), revision)),
                Op::Put { key, value, lease } => drop(self.entities.insert(key, (value, lease))),
                Op::Delete(key) => drop(self.entities.remove(&key)),
                Op::Get(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_others_did_since_the_listing_is_foreign() {
        let mut keys = OwnKeys::new("/berth/v1/", "a");
        keys.there = Some(HostKeys {
            host: Some(((b"{}".to_vec(), 1), 10)),
            entities: BTreeMap::from([(b"/berth/v1/hosts/a/containers/x".to_vec(), (b"{}".to_vec(), 1))]),
        });
        keys.listed(10);
        keys.written(12);
        for (key, revision, deleted, expected) in [
            ("host", 13, false, true),
            ("containers/x", 11, false, true),
            ("containers/new", 13, false, true),
            ("containers/x", 13, true, true),
            ("host", 13, true, true),
            // What we do not miss.
            ("containers/new", 13, true, false),
            // Our own transaction, and what the listing contained.
            ("host", 12, false, false),
            ("containers/x", 12, true, false),
            ("containers/x", 10, false, false),
        ] {
            let change = KeyChange { key: format!("{}{key}", keys.prefix).into_bytes(), revision, deleted };
            assert_eq!(keys.is_foreign(&change), expected, "{key} {revision} {deleted}");
        }
    }
}
