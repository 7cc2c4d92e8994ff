//! The notes of the book.

use model::Text;

use crate::ledger::LAPSE;
use crate::ledger::book::{Book, Lapse};
use crate::ledger::note::Note;
use crate::ledger::record::Promise;
use crate::place::inventory::Inventory;

impl Book {
    /// The notes of a host.
    pub(crate) fn notes(&self, host: &str) -> impl Iterator<Item = (u64, &Note)> {
        self.notes.iter().filter(move |(_, note)| &*note.host == host).map(|(at, note)| (*at, note))
    }

    pub(crate) fn add_note(&mut self, note: Note) {
        self.last_note += 1;
        let at = self.last_note;
        note.promise.apply(&mut self.promised, &self.inventory, &note.host, true);
        for uuid in &note.unit {
            self.waiting.entry(uuid.clone()).or_default().insert(at);
        }
        self.lapses.insert((note.made.saturating_add(LAPSE), Lapse::Note(at)));
        self.notes.insert(at, note);
    }

    pub(crate) fn remove_note(&mut self, at: u64) -> Option<Note> {
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
    pub(crate) fn change_note(&mut self, at: u64, promise: Promise) {
        if let Some(note) = self.notes.get_mut(&at) {
            note.promise.apply(&mut self.promised, &self.inventory, &note.host, false);
            note.promise = promise;
            note.promise.apply(&mut self.promised, &self.inventory, &note.host, true);
        }
    }

    /// All containers of a note are there.
    pub(in crate::ledger) fn settle_note(&mut self, at: u64) {
        let Some(note) = self.notes.get(&at) else { return };
        let rest = note.promise.not_in_snapshots(&self.inventory, &note.unit);
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

    /// What was given back without saying by whom ends as far as containers are seen to use less.
    pub(in crate::ledger) fn used_less(&mut self, before: &Inventory, uuid: &str) {
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
}
