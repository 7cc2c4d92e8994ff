//! The mirror of the ledger in etcd, as far as this scheduler has read it.
//!
//! The book learns changes in the order of etcd's revisions, its own writes included, so it is always the state of etcd
//! at one revision, plus what was promised here and is still to be written. A promise may be written as long as the
//! fences of its hosts are those that the book knew when it was made; a promise of another scheduler in between has put
//! a fence, and ours is decided again. Giving room back needs no fence: a scheduler that does not know of it yet only
//! promises too little.

mod claims;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasher;
use std::time::Duration;

use foldhash::fast::{FixedState, RandomState};
use model::Text;

use super::record::{Eviction, PromiseState, Replica};
use super::remarks::Remarks;
use crate::ledger::etcd::keys::{Claim, Key, name_claim, port_claim};
use crate::ledger::etcd::seal::{Put, Seal};

/// Most unreadable values that are known to have been reported; then all may be reported again.
pub(super) const REPORTED_MAX: usize = 1000;

/// How long hosts are divided among schedulers after two of them wanted the same one: as long as a silent scheduler
/// counts as alive, so that no share stays unused for longer. Then the first by id is tried again, at the price of one
/// failed transaction.
pub(super) const HOST_SPLIT: Duration = Duration::from_secs(10);

/// The owner of a stack that its scheduler gave up. No scheduler has this id, so it counts as one whose scheduler is gone.
pub(super) const NOBODY: &str = "nobody";

/// A change in etcd: a key was put, or deleted when there is no value.
#[derive(Clone, Debug)]
pub(crate) struct KeyChange {
    pub(crate) key: Key,
    pub(crate) revision: i64,
    /// Which put of the key it is, for the seal.
    pub(crate) put: Put,
    pub(crate) value: Option<Vec<u8>>,
}

/// What etcd has.
#[derive(Clone, Debug, Default)]
pub(super) struct EtcdMirror {
    pub(super) me: Text,
    /// Seals and verifies records; without it none is read or written.
    pub(super) seal: Option<Seal>,
    pub(super) known: bool,
    pub(super) revision: i64,
    pub(super) records: HashMap<Text, MirroredRecord, RandomState>,
    /// What only one placement can have: which one has it, and in which revision that was put.
    pub(super) claims: HashMap<Text, (Text, i64), RandomState>,
    pub(super) claims_of: HashMap<Text, BTreeSet<Text>, RandomState>,
    pub(super) fences: HashMap<Text, KnownFence, RandomState>,
    pub(super) schedulers: BTreeMap<Text, i64>,
    /// Placements with evictions.
    pub(super) evicting: BTreeSet<Text>,
    /// Whether etcd's user may not write keys of evictions.
    pub(super) may_not_evict: bool,
    /// Placements that wait for that right: names would not lead to what they start.
    pub(super) hidden: BTreeSet<Text>,
    /// Placements whose schedulers are gone.
    pub(super) orphans: BTreeSet<Text>,
    /// Stacks, by the ids of their records, that this scheduler gave up and does not take over.
    pub(super) given_up: BTreeSet<Text>,
    /// Placements that are gone and whose claims are still there. A transaction writes or deletes both, so the
    /// placement was deleted by hand; the claims are deleted after it.
    pub(super) strays: BTreeSet<Text>,
    /// Placements for which that is to be checked.
    pub(super) doubtful: BTreeSet<Text>,
    /// The fences as they were when units that are not in etcd yet were promised: by placement, host and name.
    pub(super) seen: HashMap<Text, BTreeMap<UnitKey, i64>, RandomState>,
    /// Until when hosts are divided, because another scheduler wanted the same ones.
    pub(super) split_until: Option<Duration>,
    /// Placements that became ours from schedulers that are gone.
    pub(super) adopted: Vec<Text>,
    /// What the log should say about placements that were known.
    pub(super) remarks: Remarks,
    /// What it should say about others, of which there may be any number.
    pub(super) junk: Remarks,
    /// Which unreadable values it has said, by their hashes.
    pub(super) reported: BTreeSet<u64>,
}

/// A unit's host and the name of its first container.
pub(super) type UnitKey = (Text, Text);

#[derive(Clone, Debug)]
pub(super) struct MirroredRecord {
    pub(super) revision: i64,
    pub(super) put: Put,
    pub(super) owner: Text,
    pub(super) growing: bool,
    /// Of the value without its seal.
    pub(super) hash: u64,
    pub(super) places: BTreeSet<UnitKey>,
    pub(super) evictions: BTreeSet<Eviction>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KnownFence {
    pub(super) revision: i64,
    /// When another scheduler put it last.
    pub(super) foreign: i64,
}

impl EtcdMirror {
    pub(super) fn is_foreign(&self, id: &str) -> bool {
        self.records.get(id).is_some_and(|stored| stored.owner != self.me)
    }

    /// The keys that are known to be there.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        let records = self.records.keys().cloned().map(Key::Placement);
        let fences = self.fences.iter().filter(|(_, fence)| fence.revision > 0);
        let fences = fences.map(|(host, _)| Key::Fence(host.clone()));
        let claims = self.claims.keys().cloned().map(Key::Claim);
        records.chain(fences).chain(claims).chain(self.schedulers.keys().cloned().map(Key::Scheduler))
    }

    /// Whether `change` is nothing new.
    pub(super) fn knows(&self, change: &KeyChange) -> bool {
        match &change.key {
            Key::Placement(id) => self.records.get(id).is_some_and(|stored| stored.revision == change.revision),
            Key::Fence(host) => self.fences.get(host).is_some_and(|fence| fence.revision == change.revision),
            Key::Scheduler(id) => self.schedulers.get(id) == Some(&change.revision),
            Key::Freed | Key::Seal | Key::Evicted(_) => true,
            Key::Claim(claim) => {
                let known = self.claims.get(claim);
                let holder = change.value.as_deref().map(Claim::holder);
                holder.is_some_and(|holder| known == Some(&(holder, change.revision)))
            }
        }
    }

    /// Whether this scheduler gave up a stack that no other one has taken yet.
    pub(super) fn is_nobodys(&self, id: &Text) -> bool {
        self.given_up.contains(id) && self.records.get(id).is_some_and(|stored| &*stored.owner == NOBODY)
    }

    /// The owner that a record of this scheduler is written with.
    pub(super) fn owner_of(&self, id: &Text) -> Text {
        if self.given_up.contains(id) { NOBODY.into() } else { self.me.clone() }
    }

    /// From now on etcd has this record of a placement.
    pub(super) fn insert(&mut self, id: &Text, stored: MirroredRecord) {
        if stored.evictions.is_empty() {
            self.evicting.remove(id);
        } else {
            self.evicting.insert(id.clone());
        }
        self.records.insert(id.clone(), stored);
    }

    /// Whether the owner of a placement is gone; what cannot be read has no owner and stays so.
    pub(super) fn is_orphan(&self, owner: &Text) -> bool {
        *owner != self.me && !owner.is_empty() && !self.schedulers.contains_key(owner)
    }

    pub(super) fn find_orphans(&mut self) {
        let orphans = self.records.iter().filter(|(_, stored)| self.is_orphan(&stored.owner));
        self.orphans = orphans.map(|(id, _)| id.clone()).collect();
    }

    /// Another scheduler has these places of a placement, in the revision in which its record was put, and this one did not know
    /// that: what was promised meanwhile on those hosts is decided again. Most were put with fences, which say the same. Not so
    /// where another one took over what was ours: room of it that was freed here, and not in etcd, is not free after all.
    pub(super) fn doubt_places(&mut self, id: &str, places: &BTreeSet<UnitKey>, revision: i64) {
        let nothing = BTreeSet::new();
        let is_foreign = self.is_foreign(id);
        let known = self.records.get(id).map_or(&nothing, |stored| &stored.places);
        let doubtful: Vec<&UnitKey> =
            if is_foreign { places.difference(known).collect() } else { places.union(known).collect() };
        for (host, _) in doubtful {
            self.fences.entry(host.clone()).or_default().foreign = revision;
        }
    }

    pub(super) fn foreign_fence(&self, host: &str) -> i64 {
        self.fences.get(host).map_or(0, |fence| fence.foreign)
    }

    pub(super) fn hash(value: &[u8]) -> u64 {
        FixedState::default().hash_one(value)
    }
}

pub(super) fn place_of(replica: &Replica) -> UnitKey {
    (replica.host.clone(), replica.members.first().map(|held| held.name.clone()).unwrap_or_default())
}

pub(super) fn claims_of(replica: &Replica) -> BTreeSet<Text> {
    let members = replica.members.iter().filter(|held| held.state != PromiseState::Over);
    let claims = members.flat_map(|held| {
        let bound = if replica.has_room() { &held.bound[..] } else { &[] };
        let ports = bound.iter().map(|bound| port_claim(&replica.host, bound));
        ports.chain([name_claim(&held.name)])
    });
    claims.collect()
}
