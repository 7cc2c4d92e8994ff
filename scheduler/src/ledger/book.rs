//! The book: all that is promised, by placement, and what is left of it as time passes.

pub(crate) mod failed;
mod gone;
mod kept;
mod late;
mod learn;
mod notes;
mod records;
pub(crate) mod stacks;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use model::Text;

use crate::ledger::LAPSE;
use crate::ledger::book::stacks::StackIndex;
use crate::ledger::late::LateContainers;
use crate::ledger::mirror::EtcdMirror;
use crate::ledger::note::Note;
use crate::ledger::record::{Promise, PromiseState, Record, Replica, Stage};
use crate::place::inventory::Inventory;
use crate::place::inventory::key::{Kind, key};
use crate::place::room::{Promised, Room};

/// Most replicas and event notes held at once: 64 times what 10,000 concurrent requests hold would be a mistake, and
/// each costs about 1 KiB.
const HELD_MAX: usize = 640_000;

/// What the ledger holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Book {
    pub(super) inventory: Arc<Inventory>,
    pub(super) promised: Promised,
    pub(super) records: HashMap<Text, Record, RandomState>,
    /// Where the promise for a container of this (folded) name stands.
    pub(super) names: HashMap<String, (Text, usize, usize), RandomState>,
    pub(super) notes: BTreeMap<u64, Note>,
    /// Notes by the uuids they wait for.
    pub(super) waiting: HashMap<Text, BTreeSet<u64>>,
    pub(super) last_note: u64,
    pub(super) lapses: BTreeSet<(Duration, Lapse)>,
    pub(super) held: usize,
    /// Whether changes are written to a store.
    pub(super) persistent: bool,
    /// Placements that no response may name yet, because they are not on disk.
    pub(super) unsaved: BTreeSet<Text>,
    /// Records that are to be written to the store.
    pub(super) changed: BTreeSet<Text>,
    /// Placements whose stored record cannot be read, and why: set aside until they are deleted by hand.
    pub(super) unreadable: BTreeMap<Text, String>,
    /// Containers that an engine may still create although no job waits for them any more.
    pub(super) late: LateContainers,
    /// Which records are stacks, and which are of which stack.
    pub(super) stacks: StackIndex,
    /// What etcd has, when the ledger is shared.
    pub(super) mirror: Option<Box<EtcdMirror>>,
}

/// Something that lapses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lapse {
    Record(Text),
    Note(u64),
}

/// The ledger holds as many promises as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ledger holds {HELD_MAX} promises")]
pub struct Full;

impl Book {
    /// The inventory that the book agrees with.
    pub(crate) fn inventory(&self) -> &Arc<Inventory> {
        &self.inventory
    }

    pub(crate) fn promised(&self) -> &Promised {
        &self.promised
    }

    /// Why a container cannot have this name. Two of one name could not be distinguished when they show up.
    pub(crate) fn name_taken(&self, name: &Text) -> Option<String> {
        if let Some(owner) = self.owner_of(name) {
            return Some(format!(
                "container name {name} is promised to placement {owner}: take another name, or first \
                             remove that (scheduler rm {owner})"
            ));
        }
        let (host, _) = *self.inventory.occurrences(&key(Kind::Name, &[name])).first()?;
        let host = &self.inventory.hosts().facts(host).name;
        Some(format!(
            "there is a container {name} on host {host} already: take another name, or first remove it (`docker rm \
                  --force {name}` there)"
        ))
    }

    /// What there is room for.
    pub(crate) fn room(&self) -> Room<'_> {
        Room { inventory: &self.inventory, promised: &self.promised }
    }

    /// How many units and notes are held.
    pub(crate) fn held(&self) -> usize {
        self.held + self.notes.len()
    }

    /// The placement with this id.
    pub(crate) fn record(&self, id: &str) -> Option<&Record> {
        self.records.get(id)
    }

    /// The placement that has promised a container of this name.
    pub(crate) fn owner_of(&self, name: &str) -> Option<&Text> {
        self.names.get(&name.to_lowercase()).map(|(id, ..)| id)
    }

    /// Fails if the ledger would hold more than [`HELD_MAX`].
    pub(crate) fn admit(&self, more: usize) -> Result<(), Full> {
        if self.held() + more > HELD_MAX { Err(Full) } else { Ok(()) }
    }

    /// Promises a unit before it is recorded, so that the next one sees it.
    pub(crate) fn promise(&mut self, replica: &Replica) {
        for held in &replica.members {
            held.promise.apply(&mut self.promised, &self.inventory, &replica.host, true);
        }
    }

    /// Takes a promise back that was not recorded.
    pub(crate) fn forget(&mut self, replica: &Replica) {
        for held in &replica.members {
            held.promise.apply(&mut self.promised, &self.inventory, &replica.host, false);
        }
    }

    /// Records promises that were made with [`Book::promise`].
    pub(crate) fn enter(&mut self, id: Text, record: Record) {
        for replica in &record.replicas {
            self.note_fence(&id, replica);
        }
        self.note_change(&id);
        self.insert(id, record);
    }

    pub(super) fn insert(&mut self, id: Text, record: Record) {
        self.held += record.replicas.len();
        for (at, replica) in record.replicas.iter().enumerate() {
            for (member, held) in replica.members.iter().enumerate() {
                self.names.insert(held.name.to_lowercase(), (id.clone(), at, member));
            }
        }
        if record.is_placement() {
            self.lapses.insert((record.made.saturating_add(LAPSE), Lapse::Record(id.clone())));
        }
        self.stacks.enter(&id, &record);
        self.records.insert(id, record);
    }

    /// From now on no response may name a placement, until [`Book::mark_saved`].
    pub(crate) fn mark_unsaved(&mut self, id: &Text) {
        self.unsaved.insert(id.clone());
    }

    /// The placement is on disk; without a record there it was removed.
    pub(crate) fn mark_saved(&mut self, id: &str, saved: bool) {
        if self.unsaved.remove(id) && !saved {
            self.release(id);
        }
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = (&Text, &Record)> {
        let mut records: Vec<_> = self.records.iter().collect();
        records.sort_unstable_by_key(|(id, _)| *id);
        records.into_iter()
    }

    /// Sets a placement aside whose stored record cannot be read.
    pub(crate) fn set_aside(&mut self, id: Text, why: String) {
        self.unreadable.insert(id, why);
    }

    /// Why the stored record of a placement cannot be read.
    pub(crate) fn unreadable(&self, id: &str) -> Option<&str> {
        self.unreadable.get(id).map(String::as_str)
    }

    /// The placements whose stored records cannot be read, and why, by id.
    pub(crate) fn all_unreadable(&self) -> impl Iterator<Item = (&Text, &String)> {
        self.unreadable.iter()
    }

    /// Deletes the unreadable record of a placement; returns why it could not be read.
    pub(crate) fn delete_unreadable(&mut self, id: &str) -> Option<String> {
        let why = self.unreadable.remove(id)?;
        self.own_unreadable(id);
        self.note_change(id);
        Some(why)
    }

    /// Notes how far the scheduler got with a unit, and under which ids its engine has its containers.
    ///
    /// Returns whether there is such a unit.
    pub(crate) fn reached(&mut self, id: &str, at: usize, stage: Stage, containers: &[Text]) -> bool {
        if self.is_foreign(id) {
            // Its owner records how far it is.
            return self.record(id).is_some_and(|record| record.replicas.len() > at);
        }
        let covered = matches!(stage, Stage::Undoing | Stage::Stopping).then(|| self.has_others(id));
        let Some(record) = self.records.get_mut(id) else { return false };
        let Some(replica) = record.replicas.get_mut(at) else { return false };
        if let (Some(unit), Some(covered)) = (&mut record.unit, covered) {
            unit.covered = covered;
        }
        replica.stage = stage;
        replica.waits = None;
        for (held, container) in replica.members.iter_mut().zip(containers) {
            held.container = Some(container.clone());
        }
        self.note_change(id);
        if stage == Stage::Started {
            // A snapshot may have shown it before its engine's id was known.
            self.meet(id);
        }
        true
    }

    /// Ends the promise for a unit where it is; its record waits for [`Book::settle_in`].
    pub(crate) fn vacate(&mut self, id: &str, at: usize) {
        if self.is_foreign(id) {
            return;
        }
        let Some(mut record) = self.records.remove(id) else { return };
        if let Some(replica) = record.replicas.get_mut(at) {
            self.remember_late_unit(id, replica);
            self.drop_fence(id, replica);
            self.forget(replica);
            for held in &mut replica.members {
                let own = |place: &(Text, usize, usize)| *place.0 == *id && place.1 == at;
                let settled = if let PromiseState::Settled(uuid) = &held.state { Some(uuid) } else { None };
                for name in [Some(&held.name), settled].into_iter().flatten().map(|name| name.to_lowercase()) {
                    if self.names.get(&name).is_some_and(own) {
                        self.names.remove(&name);
                    }
                }
                held.promise = Promise::default();
                held.state = PromiseState::Over;
                held.container = None;
            }
        }
        self.records.insert(id.into(), record);
        self.note_change(id);
    }

    /// Promises a vacated unit its new place, or gives it up; one that is being replaced waits for a place.
    pub(crate) fn settle_in(&mut self, id: &str, at: usize, to: Option<Replica>) {
        if self.is_foreign(id) {
            return;
        }
        let Some(mut record) = self.records.remove(id) else { return };
        if let Some(replica) = record.replicas.get_mut(at) {
            if let Some(to) = to {
                let to = Replica { replaced: to.replaced.or_else(|| replica.replaced.take()), ..to };
                self.promise(&to);
                self.note_fence(&id.into(), &to);
                for (member, held) in to.members.iter().enumerate() {
                    self.names.insert(held.name.to_lowercase(), (id.into(), at, member));
                }
                *replica = to;
            } else if replica.stage != Stage::Replacing {
                replica.stage = Stage::Reserved;
                record.unplaced = record.unplaced.saturating_add(1);
            }
        }
        let id = Text::from(id);
        self.note_change(&id);
        self.records.insert(id.clone(), record);
        self.end_if_over(&id);
    }

    /// The same promises over another inventory, and those units whose hosts it does not have.
    #[must_use]
    pub(crate) fn moved(&self, inventory: Arc<Inventory>) -> (Self, Vec<(Text, usize)>) {
        let mut book = Self { persistent: false, ..self.clone() };
        book.inventory = inventory;
        book.recount();
        let lost = |replica: &Replica| book.inventory.hosts().index(&replica.host).is_none();
        let waiting = |replica: &Replica| {
            replica.has_room() && replica.members.iter().any(|held| held.state == PromiseState::Reserved)
        };
        let mut without = Vec::new();
        for (id, record) in self.records() {
            let units = record.replicas.iter().enumerate().filter(|(_, replica)| lost(replica) && waiting(replica));
            without.extend(units.map(|(at, _)| (id.clone(), at)));
        }
        (book, without)
    }

    pub(super) fn note_change(&mut self, id: &str) {
        // What another scheduler has is written by that one.
        if self.persistent && !self.changed.contains(id) && !self.is_foreign(id) {
            self.changed.insert(id.into());
        }
    }

    /// Frees the room of a placement and removes its record.
    pub(crate) fn release(&mut self, id: &str) -> Option<Record> {
        if self.persistent && !self.is_foreign(id) {
            self.remember_late(id);
        }
        let record = self.records.remove(id)?;
        self.unsaved.remove(id);
        self.stacks.leave(id, &record);
        self.note_change(id);
        self.drop_fences(id);
        self.lapses.remove(&(record.made.saturating_add(LAPSE), Lapse::Record(id.into())));
        self.held -= record.replicas.len();
        for replica in &record.replicas {
            self.forget(replica);
            for held in &replica.members {
                self.names.remove(&held.name.to_lowercase());
                if let PromiseState::Settled(uuid) = &held.state {
                    self.names.remove(&uuid.to_lowercase());
                }
            }
        }
        Some(record)
    }

    pub(super) fn recount(&mut self) {
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

    pub(super) fn end_if_over(&mut self, id: &Text) {
        if self.records.get(id).is_some_and(Record::is_over) && !self.is_foreign(id) {
            self.release(id);
        }
    }

    pub(super) fn lapse(&mut self, now: Duration) {
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
            // Its owner does that, or the scheduler that takes it over.
            return;
        }
        let Some(record) = self.records.get_mut(id) else { return };
        for replica in record.replicas.iter_mut().filter(|replica| replica.stage == Stage::Reserved) {
            for held in replica.members.iter_mut().filter(|held| held.state == PromiseState::Reserved) {
                held.promise.apply(&mut self.promised, &self.inventory, &replica.host, false);
                held.promise = Promise::default();
                held.state = PromiseState::Over;
                self.names.remove(&held.name.to_lowercase());
            }
        }
        self.note_change(id);
        self.end_if_over(id);
    }
}
