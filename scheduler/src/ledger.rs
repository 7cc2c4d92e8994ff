//! The ledger: what was promised and has not shown up in a snapshot yet. The only lock in the house.
//!
//! Who reserves takes the lock, *then* loads the inventory: a container that has just shown up is then either
//! in the inventory or still in the ledger, never in neither. Promises end in one of three ways: the container
//! shows up (settled), somebody gives the room back (released), or nothing happens for [`LAPSE`]. What the scheduler
//! starts itself does not lapse: it stays promised until its engine has told that the container is gone.
//!
//! With a [`Keeper`] all of this is on disk or in etcd before anybody hears of it, and known again after a crash.

pub mod draft;
pub mod share;
#[cfg(test)]
mod share_laws;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use model::{Change, Container, Entity, Fingerprint, Map, Text, changes};

use crate::hosts::{CPU, INSTANCES, MEMORY};
use crate::inventory::{Inventory, PLACEMENT_LABEL};
use crate::journal::Journal;
use crate::keeper::Keeper;
use crate::port::Bound;
use crate::room::{Promised, Room, bound_keys};
use crate::shared::Shared;

/// How long room is kept for a container that does not show up.
///
/// Long enough for an engine to pull a small image and for the snapshot to come round, short enough that a crash
/// between reserving and starting blocks nobody for long.
pub const LAPSE: Duration = Duration::from_mins(1);

/// Most replicas and event notes held at once: 64 times what 10,000 concurrent requests hold would be a mistake, and
/// each costs about 1 KiB.
const HELD_MAX: usize = 640_000;

/// The ledger.
#[derive(Debug, Default)]
pub struct Ledger {
    book: Mutex<Book>,
    keeper: Keeper,
}

impl Ledger {
    /// A ledger without promises, kept in memory only.
    pub fn new() -> Self {
        Self::default()
    }

    /// A ledger with these promises, kept by `journal`.
    pub fn kept(journal: Journal, records: impl IntoIterator<Item = (Text, Record)>) -> Self {
        let mut book = Book { kept: true, ..Book::default() };
        for (id, record) in records {
            book.enter(id, record);
        }
        Self { book: Mutex::new(book), keeper: Keeper::Disk(journal) }
    }

    /// A ledger that is shared with other schedulers; nothing is known of it yet.
    pub fn shared(shared: Arc<Shared>) -> Self {
        let mut book = Book::default();
        book.share(shared.me().clone());
        Self { book: Mutex::new(book), keeper: Keeper::Etcd(shared) }
    }

    /// Who writes it down.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Takes the lock, then loads the inventory, brings the book up to date with it and with `now`, and hands it to `act`.
    pub fn with<T>(&self, load: impl FnOnce() -> Arc<Inventory>, now: Duration, act: impl FnOnce(&mut Book) -> T) -> T {
        let mut poisoned = false;
        let mut book = self.book.lock().unwrap_or_else(|error| {
            poisoned = true;
            PoisonError::into_inner(error)
        });
        if poisoned {
            // Somebody panicked in between: the sums are made anew from the promises.
            self.book.clear_poison();
            book.recount();
        }
        book.follow(load());
        book.lapse(now);
        let done = act(&mut book);
        match &self.keeper {
            Keeper::Memory => {}
            Keeper::Disk(journal) => {
                // In the order in which things happened, which only the lock tells.
                for id in std::mem::take(&mut book.changed) {
                    match book.records.get(&id) {
                        Some(record) => journal.keep(&id, record),
                        None => journal.forget(&id),
                    }
                }
            }
            Keeper::Etcd(shared) => {
                if !book.changed.is_empty() {
                    shared.something_changed();
                }
            }
        }
        done
    }
}

/// What the ledger holds.
#[derive(Clone, Debug, Default)]
pub struct Book {
    inventory: Arc<Inventory>,
    promised: Promised,
    records: HashMap<Text, Record, RandomState>,
    /// Where the promise for a container of this (folded) name stands.
    names: HashMap<String, (Text, usize, usize), RandomState>,
    notes: BTreeMap<u64, Note>,
    /// Notes by the uuids they wait for.
    waiting: HashMap<Text, BTreeSet<u64>>,
    last_note: u64,
    lapses: BTreeSet<(Duration, Lapse)>,
    held: usize,
    /// Whether somebody writes down what changes.
    kept: bool,
    /// Records of which that is to be written down.
    changed: BTreeSet<Text>,
    /// What etcd says, when the ledger is shared.
    share: Option<Box<share::Share>>,
}

/// Something that lapses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lapse {
    Record(Text),
    Note(u64),
}

/// A placement that was promised.
#[derive(Clone, Debug)]
pub struct Record {
    /// Stands for the request.
    pub fingerprint: Fingerprint,
    /// When it was promised.
    pub made: Duration,
    /// The units.
    pub replicas: Vec<Replica>,
    /// How many units found no place.
    pub unplaced: u32,
    /// The request as it was written.
    pub asked: Map,
}

/// How far the scheduler itself got with a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Somebody else starts it, and the promise lapses when nobody does.
    #[default]
    Reserved,
    /// It is being created and started.
    Begun,
    /// Its engine has started it.
    Started,
    /// It is being removed.
    Undoing,
}

/// One unit and its host.
#[derive(Clone, Debug)]
pub struct Replica {
    /// How far the scheduler itself got.
    pub stage: Stage,
    /// Uuid of the host.
    pub host: Text,
    /// Its name.
    pub host_name: Text,
    /// The containers.
    pub members: Vec<Held>,
    /// What spoke against the host that the request named.
    pub overridden: Vec<String>,
}

/// One container of a unit.
#[derive(Clone, Debug)]
pub struct Held {
    /// The name it is to have.
    pub name: Text,
    /// Its ports.
    pub bound: Vec<Bound>,
    /// The entry of its image that the host would run.
    pub system: Option<Chosen>,
    /// The engine's id for it, once it is started.
    pub container: Option<Text>,
    /// What is still promised.
    pub promise: Promise,
    /// How far it got.
    pub state: HeldState,
}

/// The entry of an image that a host would run, in words.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Chosen {
    /// Operating system.
    pub os: Text,
    /// The entry's version, when it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os_version: Option<String>,
    /// The entry's architecture, when it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Text>,
    /// How the container is isolated, on Windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Text>,
    /// What may go wrong all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// How far a container got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldState {
    /// Promised.
    Reserved,
    /// There, under this uuid.
    Settled(Text),
    /// Never seen within [`LAPSE`], or gone again.
    Over,
}

/// What is kept on a host, or given back early when negative.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Promise {
    /// Amounts by the pool's name.
    pub amounts: Vec<(Text, i64)>,
    /// Ports.
    pub bound: Vec<Bound>,
    /// Ports that the inventory still shows and their owner let go of.
    pub released: Vec<Bound>,
    /// What it is found by.
    pub keys: Vec<Fingerprint>,
}

impl Promise {
    /// What is left of it once these containers are there: no snapshot tells of disk and the like, so that stays
    /// promised as long as they are.
    fn untold<'a>(&self, inventory: &Inventory, containers: impl IntoIterator<Item = &'a Text>) -> Self {
        let hosts = inventory.hosts();
        let accounts: Vec<_> = containers.into_iter().filter_map(|uuid| inventory.account(uuid)).collect();
        let told = |name: &Text| {
            let known = matches!(&**name, INSTANCES | CPU | MEMORY);
            let named = |(pool, _): &(usize, i64)| hosts.pools.get(*pool) == Some(name);
            known || accounts.iter().any(|account| account.amounts.iter().any(named))
        };
        Self { amounts: self.amounts.iter().filter(|(name, _)| !told(name)).cloned().collect(), ..Self::default() }
    }

    fn apply(&self, promised: &mut Promised, inventory: &Inventory, host: &str, more: bool) {
        let hosts = inventory.hosts();
        // A host that went away has no sums; should it come back, they are counted anew.
        let Some(host) = hosts.index(host) else { return };
        for (pool, amount) in &self.amounts {
            if let Some(pool) = hosts.pool(pool) {
                promised.add_amount(pool, host, if more { *amount } else { -amount });
            }
        }
        for bound in &self.bound {
            if more {
                promised.add_bound(host, bound.clone());
            } else {
                promised.remove_bound(host, bound);
            }
        }
        for bound in &self.released {
            if more {
                promised.add_released(host, bound.clone());
            } else {
                promised.remove_released(host, bound);
            }
        }
        for key in self.keys.iter().copied().chain(bound_keys(&self.bound)) {
            promised.count(key, host, more);
        }
    }
}

/// What one of the predecessor's events promised or gave back.
#[derive(Clone, Debug)]
pub struct Note {
    /// Uuid of the host.
    pub host: Text,
    /// What it is.
    pub promise: Promise,
    /// The containers it is about; empty when unknown.
    pub unit: BTreeSet<Text>,
    /// Those of them that have to show up (or, for what was given back, to go) before it ends.
    pub waits_for: BTreeSet<Text>,
    /// Whether all have shown up; what no snapshot tells of is then kept until they go.
    pub settled: bool,
    /// Whether it gives back.
    pub gives_back: bool,
    /// When it was made.
    pub made: Duration,
}

impl Note {
    /// A note that waits for all of `unit`.
    pub fn new(host: Text, promise: Promise, unit: BTreeSet<Text>, gives_back: bool, made: Duration) -> Self {
        Self { host, promise, waits_for: unit.clone(), unit, settled: false, gives_back, made }
    }
}

/// Why nothing more is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ledger holds {HELD_MAX} promises")]
pub struct Full;

impl Book {
    /// The inventory that the book agrees with.
    pub fn inventory(&self) -> &Arc<Inventory> {
        &self.inventory
    }

    /// What was promised.
    pub fn promised(&self) -> &Promised {
        &self.promised
    }

    /// What there is room for.
    pub fn room(&self) -> Room<'_> {
        Room { inventory: &self.inventory, promised: &self.promised }
    }

    /// How many units and notes are held.
    pub fn held(&self) -> usize {
        self.held + self.notes.len()
    }

    /// The placement with this id.
    pub fn record(&self, id: &str) -> Option<&Record> {
        self.records.get(id)
    }

    /// The placement that has promised a container of this name.
    pub fn owner_of(&self, name: &str) -> Option<&Text> {
        self.names.get(&name.to_lowercase()).map(|(id, ..)| id)
    }

    /// Refuses when so much is held that more would be a mistake.
    pub fn admit(&self, more: usize) -> Result<(), Full> {
        if self.held() + more > HELD_MAX { Err(Full) } else { Ok(()) }
    }

    /// Promises a unit before it is recorded, so that the next one sees it.
    pub fn promise(&mut self, replica: &Replica) {
        for held in &replica.members {
            held.promise.apply(&mut self.promised, &self.inventory, &replica.host, true);
        }
    }

    /// Takes a promise back that was not recorded.
    pub fn forget(&mut self, replica: &Replica) {
        for held in &replica.members {
            held.promise.apply(&mut self.promised, &self.inventory, &replica.host, false);
        }
    }

    /// Records promises that were made with [`Book::promise`].
    pub fn enter(&mut self, id: Text, record: Record) {
        for replica in &record.replicas {
            self.note_fence(&id, replica);
        }
        self.note_change(&id);
        self.insert(id, record);
    }

    fn insert(&mut self, id: Text, record: Record) {
        self.held += record.replicas.len();
        for (at, replica) in record.replicas.iter().enumerate() {
            for (member, held) in replica.members.iter().enumerate() {
                self.names.insert(held.name.to_lowercase(), (id.clone(), at, member));
            }
        }
        self.lapses.insert((record.made.saturating_add(LAPSE), Lapse::Record(id.clone())));
        self.records.insert(id, record);
    }

    /// The placements, by id.
    pub fn records(&self) -> impl Iterator<Item = (&Text, &Record)> {
        let mut records: Vec<_> = self.records.iter().collect();
        records.sort_unstable_by_key(|(id, _)| *id);
        records.into_iter()
    }

    /// Notes how far the scheduler got with a unit, and under which ids its engine has its containers.
    ///
    /// Says whether there is such a unit.
    pub fn reached(&mut self, id: &str, at: usize, stage: Stage, containers: &[Text]) -> bool {
        let Some(replica) = self.records.get_mut(id).and_then(|record| record.replicas.get_mut(at)) else {
            return false;
        };
        replica.stage = stage;
        for (held, container) in replica.members.iter_mut().zip(containers) {
            held.container = Some(container.clone());
        }
        self.note_change(id);
        true
    }

    /// Ends the promise for a unit where it is; its record waits for [`Book::settle_in`].
    pub fn vacate(&mut self, id: &str, at: usize) {
        let Some(mut record) = self.records.remove(id) else { return };
        if let Some(replica) = record.replicas.get_mut(at) {
            self.drop_fence(id, replica);
            self.forget(replica);
            for held in &mut replica.members {
                let own = |place: &(Text, usize, usize)| *place.0 == *id && place.1 == at;
                let settled = if let HeldState::Settled(uuid) = &held.state { Some(uuid) } else { None };
                for name in [Some(&held.name), settled].into_iter().flatten().map(|name| name.to_lowercase()) {
                    if self.names.get(&name).is_some_and(own) {
                        self.names.remove(&name);
                    }
                }
                held.promise = Promise::default();
                held.state = HeldState::Over;
                held.container = None;
            }
        }
        self.records.insert(id.into(), record);
        self.note_change(id);
    }

    /// Promises a vacated unit its new place, or gives it up.
    pub fn settle_in(&mut self, id: &str, at: usize, to: Option<Replica>) {
        let Some(mut record) = self.records.remove(id) else { return };
        if let Some(replica) = record.replicas.get_mut(at) {
            if let Some(to) = to {
                self.promise(&to);
                self.note_fence(&id.into(), &to);
                for (member, held) in to.members.iter().enumerate() {
                    self.names.insert(held.name.to_lowercase(), (id.into(), at, member));
                }
                *replica = to;
            } else {
                replica.stage = Stage::Reserved;
                record.unplaced += 1;
            }
        }
        let id = Text::from(id);
        self.note_change(&id);
        self.records.insert(id.clone(), record);
        self.end_if_over(&id);
    }

    /// The same promises over another inventory, and those units whose hosts it does not have.
    #[must_use]
    pub fn moved(&self, inventory: Arc<Inventory>) -> (Self, Vec<(Text, usize)>) {
        let mut book = Self { kept: false, ..self.clone() };
        book.inventory = inventory;
        book.recount();
        let lost = |replica: &Replica| book.inventory.hosts().index(&replica.host).is_none();
        let waiting = |replica: &Replica| replica.members.iter().any(|held| held.state == HeldState::Reserved);
        let mut without = Vec::new();
        for (id, record) in self.records() {
            let units = record.replicas.iter().enumerate().filter(|(_, replica)| lost(replica) && waiting(replica));
            without.extend(units.map(|(at, _)| (id.clone(), at)));
        }
        (book, without)
    }

    fn note_change(&mut self, id: &str) {
        // What another scheduler has is written by that one.
        if self.kept && !self.changed.contains(id) && !self.is_foreign(id) {
            self.changed.insert(id.into());
        }
    }

    /// Gives the room of a placement back and forgets it.
    pub fn release(&mut self, id: &str) -> Option<Record> {
        let record = self.records.remove(id)?;
        self.note_change(id);
        self.drop_fences(id);
        self.lapses.remove(&(record.made.saturating_add(LAPSE), Lapse::Record(id.into())));
        self.held -= record.replicas.len();
        for replica in &record.replicas {
            self.forget(replica);
            for held in &replica.members {
                self.names.remove(&held.name.to_lowercase());
                if let HeldState::Settled(uuid) = &held.state {
                    self.names.remove(&uuid.to_lowercase());
                }
            }
        }
        Some(record)
    }

    /// The notes of a host.
    pub fn notes(&self, host: &str) -> impl Iterator<Item = (u64, &Note)> {
        self.notes.iter().filter(move |(_, note)| &*note.host == host).map(|(at, note)| (*at, note))
    }

    /// Adds a note.
    pub fn add_note(&mut self, note: Note) {
        self.last_note += 1;
        let at = self.last_note;
        note.promise.apply(&mut self.promised, &self.inventory, &note.host, true);
        for uuid in &note.unit {
            self.waiting.entry(uuid.clone()).or_default().insert(at);
        }
        self.lapses.insert((note.made.saturating_add(LAPSE), Lapse::Note(at)));
        self.notes.insert(at, note);
    }

    /// Ends a note.
    pub fn remove_note(&mut self, at: u64) -> Option<Note> {
        let note = self.notes.remove(&at)?;
        note.promise.apply(&mut self.promised, &self.inventory, &note.host, false);
        self.lapses.remove(&(note.made.saturating_add(LAPSE), Lapse::Note(at)));
        for uuid in &note.unit {
            if let Some(notes) = self.waiting.get_mut(uuid) {
                notes.remove(&at);
                if notes.is_empty() {
                    self.waiting.remove(uuid);
                }
            }
        }
        Some(note)
    }

    /// Replaces what a note promises.
    pub fn change_note(&mut self, at: u64, promise: Promise) {
        if let Some(note) = self.notes.get_mut(&at) {
            note.promise.apply(&mut self.promised, &self.inventory, &note.host, false);
            note.promise = promise;
            note.promise.apply(&mut self.promised, &self.inventory, &note.host, true);
        }
    }

    fn recount(&mut self) {
        self.promised = Promised::new(&self.inventory);
        for replica in self.records.values().flat_map(|record| &record.replicas) {
            for held in &replica.members {
                held.promise.apply(&mut self.promised, &self.inventory, &replica.host, true);
            }
        }
        for note in self.notes.values() {
            note.promise.apply(&mut self.promised, &self.inventory, &note.host, true);
        }
    }

    fn follow(&mut self, inventory: Arc<Inventory>) {
        if Arc::ptr_eq(&inventory, &self.inventory) {
            return;
        }
        let same = inventory.hosts().same_layout(self.inventory.hosts());
        let before = std::mem::replace(&mut self.inventory, inventory);
        if !same {
            self.recount();
        }
        let after = self.inventory.clone();
        let given = self.notes.values().any(|note| note.gives_back);
        for change in changes(before.containers(), after.containers()) {
            if given && let Change::Changed { new: container, .. } | Change::Removed(container) = &change {
                self.used_less(&before, container.uuid());
            }
            match change {
                Change::Added(container) | Change::Changed { new: container, .. } => self.appeared(container),
                Change::Removed(container) => self.disappeared(container.uuid()),
            }
        }
    }

    /// What was given back without saying by whom ends as far as containers are seen to use less.
    fn used_less(&mut self, before: &Inventory, uuid: &str) {
        let Some((old, host)) = before.account(uuid).and_then(|account| Some((account, account.host?))) else { return };
        let host = before.hosts().facts(host).uuid.clone();
        let inventory = self.inventory.clone();
        let there = inventory.hosts().index(&host);
        let new = inventory.account(uuid).filter(|account| there.is_some() && account.host == there);
        for (pool, amount) in &old.amounts {
            let name = &before.hosts().pools[*pool];
            let still = inventory.hosts().pool(name).zip(new).and_then(|(pool, account)| {
                account.amounts.iter().find(|(known, _)| *known == pool).map(|(_, amount)| *amount)
            });
            self.give_back_less(&host, name, amount - still.unwrap_or(0));
        }
    }

    fn give_back_less(&mut self, host: &str, pool: &Text, mut less: i64) {
        let anonymous = |note: &Note| note.gives_back && note.unit.is_empty();
        let notes: Vec<u64> = self.notes(host).filter(|(_, note)| anonymous(note)).map(|(at, _)| at).collect();
        for at in notes {
            let mut promise = self.notes[&at].promise.clone();
            for (_, amount) in promise.amounts.iter_mut().filter(|(name, _)| name == pool) {
                let part = less.min(-*amount).max(0);
                *amount += part;
                less -= part;
            }
            self.change_note(at, promise);
        }
    }

    fn appeared(&mut self, container: &Container) {
        let uuid = container.uuid();
        let Some(account) = self.inventory.account(uuid).cloned() else { return };
        let stands = account.stands();
        for at in self.waiting.get(uuid).cloned().unwrap_or_default() {
            let Some(note) = self.notes.get_mut(&at) else { continue };
            if note.gives_back {
                if !stands {
                    // What it no longer uses the inventory shows by itself.
                    self.remove_note(at);
                }
            } else if stands && !note.settled {
                note.waits_for.remove(uuid);
                if note.waits_for.is_empty() {
                    self.settle_note(at);
                }
            }
        }
        if !stands {
            return;
        }
        let label = container.labels().and_then(|labels| labels.text(PLACEMENT_LABEL));
        let by = |word: Option<&Text>| word.and_then(|word| self.names.get(&word.to_lowercase()).cloned());
        let on_host = |(id, at, _): &(Text, usize, usize)| {
            self.records.get(id).is_some_and(|record| Some(&record.replicas[*at].host) == container.host_uuid())
        };
        // An engine has each name once; another host may have a namesake.
        let place = by(label).or_else(|| by(Some(uuid))).or_else(|| by(container.name()).filter(on_host));
        let Some((id, at, member)) = place else { return };
        let Some(record) = self.records.get_mut(&id) else { return };
        let replica = &mut record.replicas[at];
        let held = &mut replica.members[member];
        if held.state != HeldState::Reserved {
            return;
        }
        held.promise.apply(&mut self.promised, &self.inventory, &replica.host, false);
        held.state = HeldState::Settled(uuid.clone());
        held.promise = held.promise.untold(&self.inventory, [uuid]);
        held.promise.apply(&mut self.promised, &self.inventory, &replica.host, true);
        self.settled(uuid, &id, at, member);
    }

    /// All containers of a note are there.
    fn settle_note(&mut self, at: u64) {
        let Some(note) = self.notes.get(&at) else { return };
        let rest = note.promise.untold(&self.inventory, &note.unit);
        if rest == Promise::default() {
            self.remove_note(at);
            return;
        }
        self.change_note(at, rest);
        if let Some(note) = self.notes.get_mut(&at) {
            note.settled = true;
            note.waits_for = note.unit.clone();
            self.lapses.remove(&(note.made.saturating_add(LAPSE), Lapse::Note(at)));
        }
    }

    /// Remembers under which uuid to look for the end of a settled container.
    fn settled(&mut self, uuid: &Text, id: &Text, at: usize, member: usize) {
        self.names.insert(uuid.to_lowercase(), (id.clone(), at, member));
    }

    fn disappeared(&mut self, uuid: &Text) {
        for at in self.waiting.get(uuid).cloned().unwrap_or_default() {
            let Some(note) = self.notes.get_mut(&at) else { continue };
            if note.gives_back || note.settled {
                note.waits_for.remove(uuid);
                if note.waits_for.is_empty() {
                    self.remove_note(at);
                }
            }
        }
        let Some((id, at, member)) = self.names.get(&uuid.to_lowercase()).cloned() else { return };
        let Some(record) = self.records.get_mut(&id) else { return };
        let replica = &mut record.replicas[at];
        let held = &mut replica.members[member];
        if held.state != HeldState::Settled(uuid.clone()) {
            return;
        }
        held.promise.apply(&mut self.promised, &self.inventory, &replica.host, false);
        held.promise = Promise::default();
        held.state = HeldState::Over;
        self.names.remove(&uuid.to_lowercase());
        self.end_if_over(&id);
    }

    fn end_if_over(&mut self, id: &Text) {
        let over = |record: &Record| {
            let working = |replica: &Replica| matches!(replica.stage, Stage::Begun | Stage::Undoing);
            record
                .replicas
                .iter()
                .all(|replica| !working(replica) && replica.members.iter().all(|held| held.state == HeldState::Over))
        };
        if self.records.get(id).is_some_and(over) && !self.is_foreign(id) {
            self.release(id);
        }
    }

    fn lapse(&mut self, now: Duration) {
        while let Some((due, lapse)) = self.lapses.first().cloned()
            && due <= now
        {
            self.lapses.pop_first();
            match lapse {
                Lapse::Note(at) => drop(self.remove_note(at)),
                Lapse::Record(id) => self.lapse_record(&id),
            }
        }
    }

    fn lapse_record(&mut self, id: &Text) {
        if self.is_foreign(id) {
            // Its own scheduler does that, or whoever takes it over.
            return;
        }
        let Some(record) = self.records.get_mut(id) else { return };
        for replica in record.replicas.iter_mut().filter(|replica| replica.stage == Stage::Reserved) {
            for held in replica.members.iter_mut().filter(|held| held.state == HeldState::Reserved) {
                held.promise.apply(&mut self.promised, &self.inventory, &replica.host, false);
                held.promise = Promise::default();
                held.state = HeldState::Over;
                self.names.remove(&held.name.to_lowercase());
            }
        }
        self.note_change(id);
        self.end_if_over(id);
    }
}
