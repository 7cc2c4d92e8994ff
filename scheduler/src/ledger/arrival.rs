//! Arrivals: the book follows the inventory, where containers that were promised show up, and go.

use std::sync::Arc;

use model::{Change, Container, Entity, Text, changes};

use crate::inventory::{Inventory, PLACEMENT_LABEL};
use crate::ledger::book::Book;
use crate::ledger::record::{HeldState, Promise};

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
}
