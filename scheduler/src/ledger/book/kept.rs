//! Units that are stopped and kept: they give back their room and host ports, and take them again before they are
//! started.
//!
//! Snapshots count memory and processors of stopped containers, as the predecessor did. Those of a kept unit are given
//! back all the same, so that another unit can stand in its place: its promise is negative by what they show.

use model::{Container, Text};

use crate::ledger::book::Book;
use crate::ledger::record::{Promise, PromiseState, Replica, Stage};

impl Book {
    /// Notes that the containers of a unit are stopped, and gives back its room and host ports; `false` when it was not
    /// being stopped.
    pub(crate) fn keep(&mut self, id: &str, at: usize) -> bool {
        if self.replica(id, at).is_none_or(|replica| replica.stage != Stage::Stopping) {
            return false;
        }
        self.put_aside(id, at);
        true
    }

    /// Promises a kept unit its room again, exactly what it had; its containers are about to be started.
    pub(crate) fn take_again(&mut self, id: &str, at: usize, full: &Replica) {
        self.change_kept(id, at, Stage::Restarting, |member| {
            full.members.get(member).map(|held| held.promise.clone()).unwrap_or_default()
        });
        if let Some(replica) = self.replica(id, at).cloned() {
            self.note_fence(&id.into(), &replica);
        }
    }

    /// Undoes [`Book::take_again`], which was not committed.
    pub(crate) fn put_aside(&mut self, id: &str, at: usize) {
        if let Some(replica) = self.replica(id, at).cloned() {
            self.drop_fence(id, &replica);
        }
        self.change_kept(id, at, Stage::Kept, |_| Promise::default());
        let inventory = self.inventory.clone();
        let names = self.replica(id, at).into_iter().flat_map(|replica| &replica.members);
        let names: Vec<Text> = names.map(|held| held.name.clone()).collect();
        for name in names {
            for container in inventory.placed(&name).iter().filter_map(|uuid| inventory.containers().get(uuid)) {
                self.appeared(container);
            }
        }
    }

    fn change_kept(&mut self, id: &str, at: usize, stage: Stage, promise: impl Fn(usize) -> Promise) {
        if self.is_foreign(id) {
            return;
        }
        let Some(replica) = self.records.get_mut(id).and_then(|record| record.replicas.get_mut(at)) else { return };
        replica.stage = stage;
        replica.waits = None;
        for (member, held) in
            replica.members.iter_mut().enumerate().filter(|(_, held)| held.state != PromiseState::Over)
        {
            held.promise.apply(&mut self.promised, &self.inventory, &replica.host, false);
            if let PromiseState::Settled(uuid) = &held.state {
                self.names.remove(&uuid.to_lowercase());
            }
            held.state = PromiseState::Reserved;
            held.promise = promise(member);
            held.promise.apply(&mut self.promised, &self.inventory, &replica.host, true);
        }
        self.note_change(id);
    }

    /// A container that does not run is shown: when it is one of a kept unit, what snapshots count of it is given back.
    pub(in crate::ledger) fn shown_stopped(&mut self, container: &Container, place: &(Text, usize, usize)) {
        let uuid = container.uuid();
        let Some(account) = self.inventory.account(uuid).cloned() else { return };
        let (id, at, member) = place;
        let Some(replica) = self.records.get_mut(id).and_then(|record| record.replicas.get_mut(*at)) else { return };
        let Some(held) = replica.members.get_mut(*member).filter(|_| replica.stage == Stage::Kept) else { return };
        if held.state == PromiseState::Over {
            return;
        }
        let pools = &self.inventory.hosts().pools;
        let less = account.amounts.iter().filter_map(|(pool, amount)| Some((pools.get(*pool)?.clone(), -amount)));
        held.promise.apply(&mut self.promised, &self.inventory, &replica.host, false);
        held.promise = Promise { amounts: less.collect(), ..Promise::default() };
        held.promise.apply(&mut self.promised, &self.inventory, &replica.host, true);
        held.state = PromiseState::Settled(uuid.clone());
        self.settled(uuid, id, *at, *member);
    }
}
