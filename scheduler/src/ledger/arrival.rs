//! Arrivals: the book follows the inventory, where containers that were promised show up, and go.
//!
//! Any client can put any label on a container, so more than a label identifies the promised one: its host and, when
//! the scheduler starts it itself, the engine's id for it or its name, which is unique on an engine.

use std::sync::Arc;

use model::{Change, Container, Entity, Text, changes};

use crate::ledger::book::Book;
use crate::ledger::record::{Promise, PromiseState, Stage};
use crate::place::inventory::{Inventory, PLACEMENT_LABEL};
use crate::start::docker::ATTEMPT_LABEL;

impl Book {
    pub(super) fn follow(&mut self, inventory: Arc<Inventory>) {
        if Arc::ptr_eq(&inventory, &self.inventory) {
            return;
        }
        let same = inventory.hosts().same_layout(self.inventory.hosts());
        let before = std::mem::replace(&mut self.inventory, inventory);
        if !same {
            self.recount();
        }
        let after = self.inventory.clone();
        if !same {
            self.find_gone();
        }
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

    pub(super) fn appeared(&mut self, container: &Container) {
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
        let label = container.labels().and_then(|labels| labels.text(PLACEMENT_LABEL));
        let words = [label, Some(uuid), container.name()].into_iter().flatten();
        let mut places = words.filter_map(|word| self.names.get(&word.to_lowercase()));
        let Some((id, at, member)) = places.find(|place| self.is_promised(container, place)).cloned() else { return };
        if !stands {
            return self.shown_stopped(container, &(id, at, member));
        }
        let Some(record) = self.records.get_mut(&id) else { return };
        let replica = &mut record.replicas[at];
        let held = &mut replica.members[member];
        if replica.stage == Stage::Kept {
            // A person started it: what snapshots count of it counts again.
            held.promise.apply(&mut self.promised, &self.inventory, &replica.host, false);
            held.promise = Promise::default();
        } else if held.state != PromiseState::Reserved {
            return;
        }
        held.promise.apply(&mut self.promised, &self.inventory, &replica.host, false);
        held.state = PromiseState::Settled(uuid.clone());
        held.promise = held.promise.not_in_snapshots(&self.inventory, [uuid]);
        held.promise.apply(&mut self.promised, &self.inventory, &replica.host, true);
        self.settled(uuid, &id, at, member);
    }

    /// Whether this container, which names the place in some way, is the one that was promised there.
    fn is_promised(&self, container: &Container, (id, at, member): &(Text, usize, usize)) -> bool {
        let Some(replica) = self.records.get(id).and_then(|record| record.replicas.get(*at)) else { return false };
        let Some(held) = replica.members.get(*member) else { return false };
        if container.host_uuid() != Some(&replica.host) {
            return false;
        }
        if let (Some(started), Some(found)) = (&held.container, container.fields().text("external_id")) {
            return started == found;
        }
        let named = || container.name().is_some_and(|name| name.eq_ignore_ascii_case(&held.name));
        let attempt = || container.labels().and_then(|labels| labels.text(ATTEMPT_LABEL));
        let of_attempt = || replica.attempt.is_some() && attempt() == replica.attempt.as_ref();
        match replica.stage {
            // The client that got the promise starts it in its own way.
            Stage::Reserved => true,
            Stage::Started | Stage::Stopping | Stage::Kept => named(),
            Stage::Begun | Stage::Undoing | Stage::Restarting | Stage::Replacing => named() && of_attempt(),
        }
    }

    /// Remembers under which uuid to look for the end of a settled container.
    pub(super) fn settled(&mut self, uuid: &Text, id: &Text, at: usize, member: usize) {
        self.names.insert(uuid.to_lowercase(), (id.clone(), at, member));
    }

    /// Ends what was removed on hosts while they were away.
    fn find_gone(&mut self) {
        let members = self.records.values().flat_map(|record| &record.replicas).flat_map(|replica| &replica.members);
        let gone: Vec<Text> = members
            .filter_map(|held| match &held.state {
                PromiseState::Settled(uuid) if self.inventory.account(uuid).is_none() => Some(uuid.clone()),
                _ => None,
            })
            .collect();
        for uuid in gone {
            self.disappeared(&uuid);
        }
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
        if held.state != PromiseState::Settled(uuid.clone()) {
            return;
        }
        // Silence is not absence: a host that is away may still run all that it had.
        if self.inventory.hosts().index(&replica.host).is_none() {
            return;
        }
        held.promise.apply(&mut self.promised, &self.inventory, &replica.host, false);
        held.promise = Promise::default();
        // Of what is stopped only the engine says that it is gone.
        let is_kept = matches!(replica.stage, Stage::Stopping | Stage::Kept);
        held.state = if is_kept { PromiseState::Reserved } else { PromiseState::Over };
        self.names.remove(&uuid.to_lowercase());
        self.end_if_over(&id);
    }
}
