//! What the book learns from the record of a placement in etcd, and from its end.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use foldhash::fast::FixedState;
use model::{Entity, Text};

use crate::ledger::LAPSE;
use crate::ledger::book::{Book, Lapse};
use crate::ledger::etcd::keys::EtcdRecord;
use crate::ledger::etcd::seal::Put;
use crate::ledger::mirror::{EtcdMirror, MirroredRecord, REPORTED_MAX, place_of};
use crate::ledger::record::PromiseState;
use crate::ledger::stored::PANICKED;
use crate::place::inventory::key::{Kind, key};

impl Book {
    /// Learns what etcd has of a placement since this revision and put. A bad value affects only this placement.
    pub(in crate::ledger) fn learn_record(&mut self, id: &Text, at: (i64, Put), value: &[u8], now: Duration) {
        self.unreadable.remove(id);
        let learning = AssertUnwindSafe(|| self.learn_value(id, at, value, now));
        let (why, halfway) = match catch_unwind(learning) {
            Ok(Ok(())) => return,
            Ok(Err(why)) => (why, false),
            Err(_) => (PANICKED.to_owned(), true),
        };
        let Some(mirror) = &mut self.mirror else { return };
        let (revision, put) = at;
        let content = FixedState::default().hash_one((id, value));
        if mirror.reported.len() >= REPORTED_MAX {
            mirror.reported.clear();
        }
        let is_new = mirror.reported.insert(content);
        let own = |stored: &&mut MirroredRecord| !halfway && stored.owner == mirror.me;
        if let Some(stored) = mirror.records.get_mut(id).filter(own).filter(|_| self.records.contains_key(id)) {
            // What it was this scheduler knows best.
            (stored.revision, stored.put, stored.hash) = (revision, put, 0);
            if is_new {
                let remark = format!("another client of etcd replaced its record, which is written again: {why}");
                mirror.remarks.add(id, remark);
            }
            self.note_change(id);
            return;
        }
        if is_new {
            let remarks = if self.records.contains_key(id) { &mut mirror.remarks } else { &mut mirror.junk };
            remarks.add(id, format!("what etcd has of it cannot be read, and is left alone: {why}"));
        }
        // Without an owner, so that it is neither changed nor taken over.
        let (owner, places, evictions) = (Text::default(), BTreeSet::new(), BTreeSet::new());
        let stored = MirroredRecord { revision, put, owner, growing: false, hash: 0, places, evictions };
        mirror.insert(id, stored);
        mirror.orphans.remove(id);
        if halfway {
            self.expel(id);
        } else {
            self.release_quietly(id);
        }
        self.set_aside(id.clone(), why);
    }

    fn learn_value(
        &mut self,
        id: &Text,
        (revision, put): (i64, Put),
        value: &[u8],
        now: Duration,
    ) -> Result<(), String> {
        let Some(mirror) = &self.mirror else { return Ok(()) };
        let seal = mirror.seal.as_ref().ok_or("the ledger's key is not known yet")?;
        let sealed = seal.verified(id, put, value).map_err(|error| error.to_string())?;
        let read = EtcdRecord::read(id, value)?;
        let (owner, growing) = (read.owner.clone(), read.growing);
        let record = read.stored.record(now)?;
        let Some(mirror) = &mut self.mirror else { return Ok(()) };
        let was_foreign = mirror.is_foreign(id);
        let ours = owner == mirror.me;
        let places = record.replicas.iter().filter(|replica| replica.has_room()).map(place_of).collect();
        if !ours {
            mirror.doubt_places(id, &places, revision);
        }
        if mirror.is_orphan(&owner) {
            mirror.orphans.insert(id.clone());
        } else {
            mirror.orphans.remove(id);
        }
        let hash = EtcdMirror::hash(sealed);
        let evictions = record.evictions();
        mirror.insert(id, MirroredRecord { revision, put, owner, growing, hash, places, evictions });
        if ours && !was_foreign {
            // The book is ahead of etcd; when it has no such record any more, etcd is to know that.
            if !self.records.contains_key(id) {
                self.note_change(id);
            }
            return Ok(());
        }
        if ours {
            self.adopt(id, growing, now);
            return Ok(());
        }
        if !was_foreign {
            self.remember_late(id);
        }
        self.release_quietly(id);
        record.replicas.iter().for_each(|replica| self.promise(replica));
        self.insert(id.clone(), record);
        self.meet(id);
        Ok(())
    }

    /// Makes what is stored of a placement and cannot be read ours, so that it can be deleted.
    pub(in crate::ledger) fn own_unreadable(&mut self, id: &str) {
        if let Some(mirror) = &mut self.mirror
            && let Some(stored) = mirror.records.get_mut(id)
        {
            stored.owner = mirror.me.clone();
        }
    }

    /// Removes a placement that was learned in part, and computes all sums again.
    fn expel(&mut self, id: &Text) {
        if let Some(record) = self.records.remove(id) {
            self.stacks.leave(id, &record);
        }
        self.changed.remove(id);
        self.drop_fences(id);
        self.names.retain(|_, (of, ..)| of != id);
        self.lapses.retain(|(_, lapse)| !matches!(lapse, Lapse::Record(of) if of == id));
        self.held = self.records.values().map(|record| record.replicas.len()).sum();
        self.recount();
    }

    /// A placement of a scheduler that is gone is ours from now on.
    fn adopt(&mut self, id: &Text, growing: bool, now: Duration) {
        if growing {
            // No response named it.
            self.release(id);
            return;
        }
        let Some(record) = self.records.get_mut(id) else { return self.note_change(id) };
        record.replicas.iter_mut().for_each(|replica| replica.inherited(now));
        if record.is_placement() {
            self.lapses.insert((record.made.saturating_add(LAPSE), Lapse::Record(id.clone())));
        }
        self.stacks.touch(record);
        if let Some(mirror) = &mut self.mirror {
            mirror.adopted.push(id.clone());
        }
        self.end_if_over(id);
    }

    pub(in crate::ledger) fn learn_end(&mut self, id: &Text) {
        self.unreadable.remove(id);
        let Some(mirror) = &mut self.mirror else { return };
        let stored = mirror.records.remove(id);
        mirror.evicting.remove(id);
        mirror.orphans.remove(id);
        let promised_anew = mirror.seen.contains_key(id);
        if promised_anew || !self.records.contains_key(id) {
            return;
        }
        if stored.is_some_and(|stored| stored.owner == mirror.me) {
            mirror.remarks.add(id, "another client of etcd deleted it, so its room is free");
        }
        self.release_quietly(id);
    }

    /// [`Book::release`] of what etcd knows already.
    pub(in crate::ledger) fn release_quietly(&mut self, id: &str) {
        let persistent = std::mem::replace(&mut self.persistent, false);
        self.release(id);
        self.changed.remove(id);
        self.persistent = persistent;
    }

    /// Settles what is there already of a record.
    pub(in crate::ledger) fn meet(&mut self, id: &str) {
        let inventory = self.inventory.clone();
        for name in self.awaited(id) {
            for container in inventory.placed(&name).iter().filter_map(|uuid| inventory.containers().get(uuid)) {
                self.appeared(container);
            }
        }
        let there = |name: &Text| !inventory.occurrences(&key(Kind::Name, &[name])).is_empty();
        let by_name: BTreeSet<String> =
            self.awaited(id).iter().filter(|name| there(name)).map(|name| name.to_lowercase()).collect();
        if by_name.is_empty() {
            return;
        }
        for container in inventory.containers().values() {
            if container.name().is_some_and(|name| by_name.contains(&name.to_lowercase())) {
                self.appeared(container);
            }
        }
    }

    /// The names of containers of a record that have not shown up.
    fn awaited(&self, id: &str) -> Vec<Text> {
        let held =
            self.records.get(id).into_iter().flat_map(|record| &record.replicas).flat_map(|replica| &replica.members);
        held.filter(|held| held.state == PromiseState::Reserved).map(|held| held.name.clone()).collect()
    }
}
