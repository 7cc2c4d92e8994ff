//! The book as one of several: what etcd says of it, what is still to be said to etcd, and in which transactions.
//!
//! The book is told by etcd in the order of revisions, its own writes included, so what it knows is always what etcd
//! was at one revision, plus what was promised here and is still to be written. A promise may be written as long as
//! the fences of its hosts are those that the book knew when it was made; whatever another scheduler promised in
//! between has put a fence, and the promise is made anew. Giving room back needs no fence: who does not know of it yet
//! only promises too little.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasher;
use std::time::Duration;

use foldhash::fast::{FixedState, RandomState};
use model::{Entity, Text};
use tracing::{info, warn};

use super::{Book, HeldState, LAPSE, Lapse, Record, Replica, Stage};
use crate::inventory::{Kind, key};
use crate::shared_keys::{Claim, Fence, Key, SharedRecord, name_claim, port_claim};

/// Most operations of a transaction: what the client takes, and less than etcd's own bound of 128.
pub const OPS_MAX: usize = 100;

/// Most octets of values in a transaction: etcd takes requests of 1.5 MiB, in which its gateway counts the keys too.
pub const OCTETS_MAX: usize = 1 << 20;

/// One thing that etcd says: a key was put, or deleted when there is no value.
#[derive(Clone, Debug)]
pub struct Told {
    /// The key.
    pub key: Key,
    /// In which revision.
    pub revision: i64,
    /// Its value.
    pub value: Option<Vec<u8>>,
}

/// Why a change is not in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unkept {
    /// Somebody else promised something on one of its hosts in between.
    Conflict,
    /// The placement is another scheduler's.
    Foreign,
    /// It is too large for a transaction.
    TooLarge,
    /// etcd cannot be reached, and certainly has not done it.
    Away(String),
}

/// When a placement is taken over from a scheduler that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// When it does not work on it.
    Idle,
    /// In any case: what it works with will never answer.
    Forced,
}

/// One transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draft {
    /// The revisions in which these keys have to have been put last; 0 means that they are not there.
    pub expects: BTreeMap<Key, i64>,
    /// What is put.
    pub puts: BTreeMap<Key, Vec<u8>>,
    /// What is deleted.
    pub deletes: BTreeSet<Key>,
    /// The placements it is about, each with what it expects.
    pub parts: Vec<(Text, BTreeSet<Key>)>,
    octets: usize,
}

/// What there is to do for some placements.
#[derive(Clone, Debug, Default)]
pub struct Drafted {
    /// To be done next.
    pub draft: Draft,
    /// Those with which etcd agrees.
    pub done: Vec<Text>,
    /// Those that cannot be written as they are.
    pub refused: Vec<(Text, Unkept)>,
}

/// What one placement adds to a transaction.
#[derive(Debug, Default)]
struct Part {
    expects: BTreeMap<Key, i64>,
    puts: BTreeMap<Key, Vec<u8>>,
    deletes: BTreeSet<Key>,
}

/// What becomes of one placement.
enum Step {
    Done,
    Refused(Unkept),
    Part(Part),
    /// There is no room for it beside the others.
    Later,
}

/// What etcd says.
#[derive(Clone, Debug)]
pub(super) struct Share {
    me: Text,
    /// Whether it was read.
    known: bool,
    revision: i64,
    records: HashMap<Text, Stored, RandomState>,
    claims: HashMap<Text, Text, RandomState>,
    claims_of: HashMap<Text, BTreeSet<Text>, RandomState>,
    fences: HashMap<Text, KnownFence, RandomState>,
    schedulers: BTreeMap<Text, i64>,
    /// Placements whose schedulers are gone.
    orphans: BTreeSet<Text>,
    /// The fences as they were when units that are not in etcd yet were promised: by placement, host and name.
    seen: HashMap<Text, BTreeMap<Place, i64>, RandomState>,
    /// Placements that became ours from schedulers that are gone.
    adopted: bool,
}

/// A unit's host and the name of its first container.
type Place = (Text, Text);

#[derive(Clone, Debug)]
struct Stored {
    revision: i64,
    owner: Text,
    growing: bool,
    hash: u64,
    places: BTreeSet<Place>,
}

#[derive(Clone, Copy, Debug, Default)]
struct KnownFence {
    revision: i64,
    /// When somebody else put it last.
    foreign: i64,
}

impl Share {
    fn is_foreign(&self, id: &str) -> bool {
        self.records.get(id).is_some_and(|stored| stored.owner != self.me)
    }

    /// The keys that are known to be there.
    fn keys(&self) -> impl Iterator<Item = Key> {
        let records = self.records.keys().cloned().map(Key::Placement);
        let fences = self.fences.iter().filter(|(_, fence)| fence.revision > 0);
        let fences = fences.map(|(host, _)| Key::Fence(host.clone()));
        let claims = self.claims.keys().cloned().map(Key::Claim);
        records.chain(fences).chain(claims).chain(self.schedulers.keys().cloned().map(Key::Scheduler))
    }

    /// Whether `told` is nothing new.
    fn knows(&self, told: &Told) -> bool {
        match &told.key {
            Key::Placement(id) => self.records.get(id).is_some_and(|stored| stored.revision == told.revision),
            Key::Fence(host) => self.fences.get(host).is_some_and(|fence| fence.revision == told.revision),
            Key::Scheduler(id) => self.schedulers.get(id) == Some(&told.revision),
            Key::Claim(claim) => {
                let holder = told.value.as_deref().map(Claim::holder);
                holder.is_some() && self.claims.get(claim) == holder.as_ref()
            }
        }
    }

    /// Whether nobody has this placement who lives; what cannot be read is nobody's and stays so.
    fn is_orphan(&self, owner: &Text) -> bool {
        *owner != self.me && !owner.is_empty() && !self.schedulers.contains_key(owner)
    }

    fn find_orphans(&mut self) {
        let orphans = self.records.iter().filter(|(_, stored)| self.is_orphan(&stored.owner));
        self.orphans = orphans.map(|(id, _)| id.clone()).collect();
    }

    /// Somebody else has what was ours: room of it that was given back here, and not in etcd, is not free after all, so
    /// what was promised in the meantime is to be looked at again.
    fn doubt_places(&mut self, id: &str, revision: i64) {
        for (host, _) in self.records.get(id).map(|stored| &stored.places).into_iter().flatten() {
            self.fences.entry(host.clone()).or_default().foreign = revision;
        }
    }

    fn learn_claim(&mut self, claim: Text, value: Option<&[u8]>) {
        if let Some(holder) = self.claims.remove(&claim)
            && let Some(held) = self.claims_of.get_mut(&holder)
        {
            held.remove(&claim);
            if held.is_empty() {
                self.claims_of.remove(&holder);
            }
        }
        if let Some(value) = value {
            let holder = Claim::holder(value);
            self.claims_of.entry(holder.clone()).or_default().insert(claim.clone());
            self.claims.insert(claim, holder);
        }
    }

    fn foreign_fence(&self, host: &str) -> i64 {
        self.fences.get(host).map_or(0, |fence| fence.foreign)
    }

    fn hash(value: &[u8]) -> u64 {
        FixedState::default().hash_one(value)
    }
}

fn place_of(replica: &Replica) -> Place {
    (replica.host.clone(), replica.members.first().map(|held| held.name.clone()).unwrap_or_default())
}

fn stands(replica: &Replica) -> bool {
    replica.members.iter().any(|held| held.state != HeldState::Over)
}

fn claims_of(replica: &Replica) -> BTreeSet<Text> {
    let members = replica.members.iter().filter(|held| held.state != HeldState::Over);
    let claims = members.flat_map(|held| {
        let ports = held.bound.iter().map(|bound| port_claim(&replica.host, bound));
        ports.chain([name_claim(&held.name)])
    });
    claims.collect()
}

fn is_at_work(record: &Record) -> bool {
    record.replicas.iter().any(|replica| matches!(replica.stage, Stage::Begun | Stage::Undoing))
}

impl Book {
    /// From now on the book is one of several; `me` is the id of this scheduler.
    pub fn share(&mut self, me: Text) {
        self.kept = true;
        self.share = Some(Box::new(Share {
            me,
            known: false,
            revision: 0,
            records: HashMap::default(),
            claims: HashMap::default(),
            claims_of: HashMap::default(),
            fences: HashMap::default(),
            schedulers: BTreeMap::new(),
            orphans: BTreeSet::new(),
            seen: HashMap::default(),
            adopted: false,
        }));
    }

    /// Whether nothing can be said yet, because what others promised was not read.
    pub fn is_unread(&self) -> bool {
        self.share.as_ref().is_some_and(|share| !share.known)
    }

    /// Whether this is another scheduler's placement.
    pub fn is_foreign(&self, id: &str) -> bool {
        self.share.as_ref().is_some_and(|share| share.is_foreign(id))
    }

    /// Whether etcd has something under this id that cannot be read.
    pub fn is_unreadable(&self, id: &str) -> bool {
        self.share.as_ref().is_some_and(|share| share.records.get(id).is_some_and(|stored| stored.owner.is_empty()))
    }

    /// Whether the placement is no more, and etcd does not know that yet. Under the same id nothing may be promised before,
    /// or it would be taken for what was there.
    pub fn is_ending(&self, id: &str) -> bool {
        let own = |share: &Share| share.records.get(id).is_some_and(|stored| stored.owner == share.me);
        !self.records.contains_key(id) && self.share.as_deref().is_some_and(own)
    }

    /// Whether nobody may be told of this placement yet, because it is not in etcd.
    pub fn is_pending(&self, id: &str) -> bool {
        self.share.as_ref().is_some_and(|share| {
            share.seen.contains_key(id) && share.records.get(id).is_none_or(|stored| stored.growing)
        })
    }

    /// Whether some placement became ours since this was asked last.
    pub(crate) fn has_adopted(&mut self) -> bool {
        self.share.as_mut().is_some_and(|share| std::mem::take(&mut share.adopted))
    }

    /// What is to be written.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Text> {
        std::mem::take(&mut self.changed)
    }

    /// The same once more, when it could not be written.
    pub(crate) fn change_again(&mut self, ids: impl IntoIterator<Item = Text>) {
        self.changed.extend(ids);
    }

    /// Placements whose schedulers are gone.
    pub(crate) fn orphans(&self) -> Vec<Text> {
        self.share.as_ref().map_or_else(Vec::new, |share| share.orphans.iter().cloned().collect())
    }

    /// As of which revision of etcd the book is.
    pub fn revision(&self) -> i64 {
        self.share.as_ref().map_or(0, |share| share.revision)
    }

    /// Learns what changed in etcd, in order; afterwards the book is as etcd was at the last change.
    pub fn learn(&mut self, told: Vec<Told>, now: Duration) {
        let known = self.revision();
        // A watch that began before a list was read tells what the list told.
        let new = told.into_iter().filter(|told| told.revision > known);
        let mut last = known;
        for told in new {
            last = last.max(told.revision);
            self.learn_one(told, now);
        }
        self.is_as_of(last);
    }

    /// Learns all that is in etcd at `revision`; gives how much of it the book did not know.
    pub fn learn_all(&mut self, told: Vec<Told>, revision: i64, now: Duration) -> usize {
        let Some(share) = &self.share else { return 0 };
        let mut gone: BTreeSet<Key> = share.keys().collect();
        let mut news = Vec::new();
        for told in told {
            gone.remove(&told.key);
            if !share.knows(&told) {
                news.push(told);
            }
        }
        let count = news.len() + gone.len();
        for key in gone {
            self.learn_one(Told { key, revision, value: None }, now);
        }
        for told in news {
            self.learn_one(told, now);
        }
        self.is_as_of(revision);
        count
    }

    fn is_as_of(&mut self, revision: i64) {
        if let Some(share) = &mut self.share {
            share.revision = share.revision.max(revision);
            share.known = true;
        }
    }

    fn learn_one(&mut self, told: Told, now: Duration) {
        let Some(share) = &mut self.share else { return };
        match (told.key, told.value) {
            (Key::Fence(host), Some(value)) => {
                let fence = share.fences.entry(host).or_default();
                fence.revision = told.revision;
                if Fence::writer(&value) != share.me {
                    fence.foreign = told.revision;
                }
            }
            // Nobody deletes fences but by hand: what was promised meanwhile is to be looked at again.
            (Key::Fence(host), None) => {
                share.fences.insert(host, KnownFence { revision: 0, foreign: told.revision });
            }
            (Key::Claim(claim), value) => share.learn_claim(claim, value.as_deref()),
            (Key::Scheduler(id), Some(_)) => {
                share.schedulers.insert(id, told.revision);
                share.find_orphans();
            }
            (Key::Scheduler(id), None) => {
                share.schedulers.remove(&id);
                share.find_orphans();
            }
            (Key::Placement(id), Some(value)) => self.learn_record(&id, told.revision, &value, now),
            (Key::Placement(id), None) => self.learn_end(&id),
        }
    }

    /// Forgets what etcd said, because it was set up anew: what is ours is written once more.
    pub(crate) fn unlearn(&mut self) {
        let Some(share) = &mut self.share else { return };
        let foreign: Vec<Text> = share.records.keys().filter(|id| share.is_foreign(id)).cloned().collect();
        let (me, seen) = (share.me.clone(), std::mem::take(&mut share.seen));
        for id in foreign {
            self.release_quietly(&id);
        }
        self.share(me);
        if let Some(share) = &mut self.share {
            share.seen = seen;
        }
        let own: Vec<Text> = self.records.keys().cloned().collect();
        self.changed.extend(own);
    }

    fn learn_record(&mut self, id: &Text, revision: i64, value: &[u8], now: Duration) {
        let read = SharedRecord::read(id, value);
        let Some(share) = &mut self.share else { return };
        let read = match read {
            Ok(read) => read,
            Err(error) => {
                warn!(%id, %error, "a placement in etcd cannot be read, and is left alone");
                // Nobody's, so that it is neither changed nor taken over.
                let owner = Text::default();
                let stored = Stored { revision, owner, growing: false, hash: 0, places: BTreeSet::new() };
                share.records.insert(id.clone(), stored);
                share.orphans.remove(id);
                self.release_quietly(id);
                return;
            }
        };
        let (owner, growing) = (read.owner.clone(), read.growing);
        let was_foreign = share.is_foreign(id);
        let ours = owner == share.me;
        if !ours && !was_foreign {
            share.doubt_places(id, revision);
        }
        let record = read.kept.record(now);
        let places = record.as_ref().map_or_else(
            |_| BTreeSet::new(),
            |record| record.replicas.iter().filter(|replica| stands(replica)).map(place_of).collect(),
        );
        if share.is_orphan(&owner) {
            share.orphans.insert(id.clone());
        } else {
            share.orphans.remove(id);
        }
        share.records.insert(id.clone(), Stored { revision, owner, growing, hash: Share::hash(value), places });
        if ours && !was_foreign {
            // The book is ahead of etcd; when it has no such record any more, etcd is to know that.
            if !self.records.contains_key(id) {
                self.note_change(id);
            }
            return;
        }
        if ours {
            self.adopt(id, growing);
            return;
        }
        self.release_quietly(id);
        match record {
            Ok(record) => {
                record.replicas.iter().for_each(|replica| self.promise(replica));
                self.insert(id.clone(), record);
                self.meet(id);
            }
            Err(error) => warn!(%id, %error, "a placement in etcd cannot be read, and is left alone"),
        }
    }

    /// A placement of a scheduler that is gone is ours from now on.
    fn adopt(&mut self, id: &Text, growing: bool) {
        if growing {
            // Nobody was told of it.
            self.release(id);
            return;
        }
        let Some(record) = self.records.get(id) else { return self.note_change(id) };
        self.lapses.insert((record.made.saturating_add(LAPSE), Lapse::Record(id.clone())));
        if let Some(share) = &mut self.share {
            share.adopted = true;
        }
        self.end_if_over(id);
    }

    fn learn_end(&mut self, id: &Text) {
        let Some(share) = &mut self.share else { return };
        let stored = share.records.remove(id);
        share.orphans.remove(id);
        let promised_anew = share.seen.contains_key(id);
        if promised_anew || !self.records.contains_key(id) {
            return;
        }
        if stored.is_some_and(|stored| self.share.as_ref().is_some_and(|share| stored.owner == share.me)) {
            info!(%id, "somebody else gave the room of a placement back");
        }
        self.release_quietly(id);
    }

    /// [`Book::release`] of what etcd knows already.
    fn release_quietly(&mut self, id: &str) {
        let kept = std::mem::replace(&mut self.kept, false);
        self.release(id);
        self.changed.remove(id);
        self.kept = kept;
    }

    /// Settles what is there already of a record that was learned.
    fn meet(&mut self, id: &Text) {
        let Some(record) = self.records.get(id) else { return };
        let names: Vec<Text> =
            record.replicas.iter().flat_map(|replica| &replica.members).map(|held| held.name.clone()).collect();
        let inventory = self.inventory.clone();
        let mut by_name = BTreeSet::new();
        for name in names {
            match inventory.placed(&name).and_then(|uuid| inventory.containers().get(uuid)) {
                Some(container) => self.appeared(container),
                None if inventory.occurrences(&key(Kind::Name, &[&name])).is_empty() => {}
                None => drop(by_name.insert(name.to_lowercase())),
            }
        }
        if by_name.is_empty() {
            return;
        }
        for container in inventory.containers().values() {
            if container.name().is_some_and(|name| by_name.contains(&name.to_lowercase())) {
                self.appeared(container);
            }
        }
    }

    /// Remembers the fence under which a unit is promised.
    pub(super) fn note_fence(&mut self, id: &Text, replica: &Replica) {
        if let Some(share) = &mut self.share
            && stands(replica)
        {
            let fence = share.foreign_fence(&replica.host);
            share.seen.entry(id.clone()).or_default().insert(place_of(replica), fence);
        }
    }

    pub(super) fn drop_fence(&mut self, id: &str, replica: &Replica) {
        if let Some(share) = &mut self.share
            && let Some(seen) = share.seen.get_mut(id)
        {
            seen.remove(&place_of(replica));
        }
    }

    pub(super) fn drop_fences(&mut self, id: &str) {
        if let Some(share) = &mut self.share {
            share.seen.remove(id);
        }
    }

    /// Takes those units of a placement back that were promised while somebody else promised something on their hosts.
    ///
    /// Gives the record without them, no longer in the book, and them. What stays is promised; its fences are as of
    /// now where nobody else had a part in them.
    pub(crate) fn recall(&mut self, id: &str) -> Option<(Record, Vec<Replica>)> {
        let seen = self.share.as_ref()?.seen.get(id).cloned().unwrap_or_default();
        let mut record = self.release(id)?;
        let share = self.share.as_ref()?;
        let stored = share.records.get(id).map(|stored| &stored.places);
        let (mut kept, mut recalled) = (Vec::new(), Vec::new());
        for replica in record.replicas.drain(..) {
            let place = place_of(&replica);
            let written = stored.is_some_and(|places| places.contains(&place));
            let taken = claims_of(&replica).into_iter().any(|claim| {
                share.claims.get(&claim).is_some_and(|holder| **holder != *id) && replica.overridden.is_empty()
            });
            let fresh = seen.get(&place).is_some_and(|fence| *fence == share.foreign_fence(&replica.host));
            if written || fresh && !taken { kept.push(replica) } else { recalled.push(replica) }
        }
        for replica in &kept {
            self.promise(replica);
        }
        record.replicas = kept;
        Some((record, recalled))
    }

    /// The next transaction for these placements: those that only give back first, since others may count on it.
    ///
    /// `presence` is the revision in which this scheduler said that it lives; when that is no more, nothing may be
    /// written. What is in `takes` is taken over from schedulers that live.
    pub fn draft(&mut self, ids: &[Text], takes: &BTreeMap<Text, Take>, presence: i64) -> Drafted {
        let mut drafted = Drafted::default();
        let Some(share) = &self.share else { return drafted };
        drafted.draft.expects.insert(Key::Scheduler(share.me.clone()), presence);
        let (ends, others): (Vec<_>, Vec<_>) = ids.iter().partition(|id| !self.records.contains_key(*id));
        for id in ends.into_iter().chain(others) {
            match self.step(id, takes.get(id).copied(), &drafted.draft) {
                Step::Done => drafted.done.push(id.clone()),
                Step::Refused(why) => drafted.refused.push((id.clone(), why)),
                Step::Part(part) => drafted.draft.add(id, part),
                Step::Later => break,
            }
        }
        if let Some(share) = &mut self.share {
            for id in &drafted.done {
                share.seen.remove(id);
            }
        }
        drafted
    }

    fn step(&self, id: &Text, take: Option<Take>, draft: &Draft) -> Step {
        let Some(share) = &self.share else { return Step::Done };
        match (self.records.get(id), share.records.get(id)) {
            (None, None) => Step::Done,
            (record, Some(stored)) if stored.owner != share.me => match record {
                Some(record) if !stored.owner.is_empty() => share.take_over(id, record, stored, take, draft),
                _ => Step::Refused(Unkept::Foreign),
            },
            (None, Some(stored)) => share.end(id, stored, draft),
            (Some(record), stored) => share.write(id, record, stored, draft),
        }
    }
}

impl Share {
    fn take_over(&self, id: &Text, record: &Record, stored: &Stored, take: Option<Take>, draft: &Draft) -> Step {
        let gone = self.is_orphan(&stored.owner);
        let may = match take {
            None => gone,
            Some(Take::Idle) => gone || !is_at_work(record),
            Some(Take::Forced) => true,
        };
        if !may {
            return Step::Refused(Unkept::Foreign);
        }
        let mut part = Part::default();
        let key = Key::Placement(id.clone());
        part.expects.insert(key.clone(), stored.revision);
        if gone {
            part.expects.insert(Key::Scheduler(stored.owner.clone()), 0);
        }
        part.puts.insert(key, SharedRecord::new(&self.me, stored.growing, id, record).written());
        if draft.takes(&part) { Step::Part(part) } else { Step::Later }
    }

    fn end(&self, id: &Text, stored: &Stored, draft: &Draft) -> Step {
        let mut part = Part::default();
        let key = Key::Placement(id.clone());
        part.expects.insert(key.clone(), stored.revision);
        let claims = self.claims_of.get(id).into_iter().flatten();
        part.deletes.extend(claims.map(|claim| Key::Claim(claim.clone())));
        part.deletes.insert(key.clone());
        if draft.takes(&part) {
            return Step::Part(part);
        }
        if !draft.parts.is_empty() {
            return Step::Later;
        }
        // Piece by piece, the record last: until then it counts.
        part.deletes.remove(&key);
        while !draft.takes(&part) {
            part.deletes.pop_last();
        }
        Step::Part(part)
    }

    fn write(&self, id: &Text, record: &Record, stored: Option<&Stored>, draft: &Draft) -> Step {
        let key = Key::Placement(id.clone());
        let (none, nothing) = (BTreeSet::new(), BTreeMap::new());
        let places = stored.map_or(&none, |stored| &stored.places);
        let seen = self.seen.get(id).unwrap_or(&nothing);
        let held = self.claims_of.get(id);
        let mut wanted = BTreeSet::new();
        let mut new = Vec::new();
        for (at, replica) in record.replicas.iter().enumerate().filter(|(_, replica)| stands(replica)) {
            let claims = claims_of(replica);
            let place = place_of(replica);
            if !places.contains(&place) {
                let fence = seen.get(&place).copied();
                if fence.is_some_and(|fence| fence != self.foreign_fence(&replica.host)) {
                    return Step::Refused(Unkept::Conflict);
                }
                let mut part = Part::default();
                let host = Key::Fence(replica.host.clone());
                if fence.is_some() {
                    let known = self.fences.get(&replica.host).map_or(0, |fence| fence.revision);
                    part.expects.insert(host.clone(), known);
                }
                part.puts.insert(host, Fence::written(&self.me, id));
                for claim in claims.iter().filter(|claim| held.is_none_or(|held| !held.contains(*claim))) {
                    match self.claims.get(claim) {
                        // A host that the request names gives its ports to whoever asks; and what was promised before
                        // is promised.
                        Some(_) if !replica.overridden.is_empty() || fence.is_none() => {}
                        Some(_) => return Step::Refused(Unkept::Conflict),
                        None => {
                            part.expects.insert(Key::Claim(claim.clone()), 0);
                            part.puts.insert(Key::Claim(claim.clone()), Claim::written(id));
                        }
                    }
                }
                new.push((at, part));
            }
            wanted.extend(claims);
        }
        let dropped: BTreeSet<Key> =
            held.into_iter().flatten().filter(|claim| !wanted.contains(*claim)).cloned().map(Key::Claim).collect();
        let expected = (key.clone(), stored.map_or(0, |stored| stored.revision));
        let whole = SharedRecord::new(&self.me, false, id, record).written();
        if new.is_empty() && dropped.is_empty() && stored.is_some_and(|stored| stored.hash == Self::hash(&whole)) {
            return Step::Done;
        }
        if whole.len() > OCTETS_MAX {
            return Step::Refused(Unkept::TooLarge);
        }
        let mut part = Part::default();
        part.expects.extend([expected]);
        part.puts.insert(key.clone(), whole);
        part.deletes = dropped;
        for (_, unit) in &new {
            part.expects.extend(unit.expects.clone());
            part.puts.extend(unit.puts.clone());
        }
        if draft.takes(&part) {
            return Step::Part(part);
        }
        if !draft.parts.is_empty() {
            return Step::Later;
        }
        self.piece(id, record, stored, &new, part, draft)
    }

    /// As much of a large record as fits; it grows, and what it has no more goes, with the next transactions.
    fn piece(
        &self,
        id: &Text,
        record: &Record,
        stored: Option<&Stored>,
        new: &[(usize, Part)],
        whole: Part,
        draft: &Draft,
    ) -> Step {
        let key = Key::Placement(id.clone());
        let mut part = Part::default();
        part.expects.extend(whole.expects.get_key_value(&key).map(|(key, revision)| (key.clone(), *revision)));
        part.puts.extend(whole.puts.get_key_value(&key).map(|(key, value)| (key.clone(), value.clone())));
        let mut without: BTreeSet<usize> = new.iter().map(|(at, _)| *at).collect();
        for (at, unit) in new {
            let mut more = Part { expects: part.expects.clone(), puts: part.puts.clone(), deletes: BTreeSet::new() };
            more.expects.extend(unit.expects.clone());
            more.puts.extend(unit.puts.clone());
            if !draft.takes(&more) {
                break;
            }
            part = more;
            without.remove(at);
        }
        if without.len() == new.len() && !new.is_empty() {
            return Step::Refused(Unkept::TooLarge);
        }
        if !without.is_empty() {
            let growing = stored.is_none_or(|stored| stored.growing);
            let mut smaller = record.clone();
            smaller.unplaced += u32::try_from(without.len()).unwrap_or(u32::MAX);
            let mut at = 0;
            smaller.replicas.retain(|_| {
                at += 1;
                !without.contains(&(at - 1))
            });
            part.puts.insert(key, SharedRecord::new(&self.me, growing, id, &smaller).written());
        }
        for dropped in whole.deletes {
            part.deletes.insert(dropped.clone());
            if !draft.takes(&part) {
                part.deletes.remove(&dropped);
                break;
            }
        }
        Step::Part(part)
    }
}

impl Draft {
    /// Whether there is room for `part`.
    fn takes(&self, part: &Part) -> bool {
        let new = |keys: &BTreeMap<Key, i64>| keys.keys().filter(|key| !self.expects.contains_key(*key)).count();
        let puts = part.puts.keys().filter(|key| !self.puts.contains_key(*key)).count();
        let octets: usize = part.puts.values().map(Vec::len).sum();
        self.expects.len() + new(&part.expects) <= OPS_MAX
            && self.puts.len() + self.deletes.len() + puts + part.deletes.len() <= OPS_MAX
            && (self.octets + octets <= OCTETS_MAX || self.parts.is_empty())
            // One of them must not have what the other one gives back: no key may be changed twice.
            && !part.puts.keys().any(|key| self.deletes.contains(key))
            && !part.deletes.iter().any(|key| self.puts.contains_key(key))
            // Nor may two claim the same, which only one of them will get.
            && !part.puts.keys().any(|key| matches!(key, Key::Claim(_)) && self.puts.contains_key(key))
    }

    fn add(&mut self, id: &Text, part: Part) {
        self.octets += part.puts.values().map(Vec::len).sum::<usize>();
        self.parts.push((id.clone(), part.expects.keys().cloned().collect()));
        self.expects.extend(part.expects);
        self.puts.extend(part.puts);
        self.deletes.extend(part.deletes);
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The placements that did not go through because these keys are not as expected.
    pub fn hindered(&self, keys: &BTreeSet<Key>) -> Vec<Text> {
        let parts = self.parts.iter().filter(|(_, expects)| expects.iter().any(|key| keys.contains(key)));
        parts.map(|(id, _)| id.clone()).collect()
    }
}
