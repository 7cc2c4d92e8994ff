//! A host that follows an etcd, without one: what the fuzzer of etcd's keys (`fuzz/src/etcd.rs`) and the test of
//! noninterference (`tests/tests/noninterference.rs`) call; no part of the service.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use etcd::{LEASE, PREFIX, Pair};
use model::{Map, Snapshot};

use super::keys::Key;
use super::mirror::{KeyMirror, RETURN_GRACE};
use super::value::{Published, Values};
use crate::assemble::ClusterState;
use crate::host::HostDocument;

/// What a host sees that has this document of its own and follows an etcd where these paths get these values, one after the other.
pub fn followed<'b>(own: &Map, puts: impl IntoIterator<Item = (&'b [u8], &'b [u8])>) -> Snapshot {
    let own = HostDocument { host: "own".into(), document: own.clone(), ..HostDocument::default() };
    let mut follower = Follower::new(Some(&own));
    for (path, value) in puts {
        follower.put(path, value);
        follower.take();
    }
    follower.snapshot()
}

/// What the agent of a host with this document writes: paths behind the prefix, and values.
pub fn written(document: &HostDocument) -> BTreeMap<String, Vec<u8>> {
    let values = Values::of(document);
    let host = values.host_value(&Published::default());
    let entities = values.entities.into_iter().map(|(key, value)| (key.path(), value));
    entities.chain([(Key::Host(document.host.clone()).path(), host)]).collect()
}

/// A host that follows an etcd whose changes are given key by key.
pub struct Follower {
    mirror: KeyMirror,
    state: ClusterState,
    /// The revision since which there is a key, and how often it was put since then.
    keys: BTreeMap<Vec<u8>, (i64, i64)>,
    revision: i64,
    now: Duration,
}

impl Follower {
    /// One with this document of its own; one without reports no host, and only follows.
    pub fn new(own: Option<&HostDocument>) -> Self {
        let (mirror, state) = (KeyMirror::new(PREFIX.into(), LEASE), ClusterState::default());
        let mut follower = Self { mirror, state, keys: BTreeMap::new(), revision: 0, now: Duration::ZERO };
        if let Some(own) = own {
            follower.report(own);
        }
        follower
    }

    /// Its own engine says this from now on.
    pub fn report(&mut self, own: &HostDocument) {
        let change = self.state.of_this_host(own);
        self.state.apply(change);
    }

    /// Puts a key.
    pub fn put(&mut self, path: &[u8], value: &[u8]) {
        self.revision += 1;
        let (create_revision, version) =
            self.keys.get(path).map_or((self.revision, 1), |(since, version)| (*since, version + 1));
        self.keys.insert(path.to_vec(), (create_revision, version));
        let pair = Pair {
            key: [PREFIX.as_bytes(), path].concat(),
            value: value.to_vec(),
            create_revision,
            mod_revision: self.revision,
            version,
            lease: 0,
        };
        self.mirror.put(&pair, self.now, None);
    }

    /// Deletes a key, if there is one.
    pub fn delete(&mut self, path: &[u8]) {
        if self.keys.remove(path).is_some() {
            self.revision += 1;
            self.mirror.delete(&[PREFIX.as_bytes(), path].concat(), self.revision, self.now);
        }
    }

    /// Lets the time pass after which a host without keys is gone.
    pub fn pass(&mut self) {
        self.now += RETURN_GRACE;
        self.mirror.expire(self.now);
        self.take();
    }

    /// What it sees, as of all that was put since.
    pub fn snapshot(&mut self) -> Snapshot {
        self.take();
        self.state.snapshot()
    }

    fn take(&mut self) {
        for change in self.state.of_others(self.mirror.take()) {
            self.state.apply(change);
        }
    }
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower").field("revision", &self.revision).finish_non_exhaustive()
    }
}
