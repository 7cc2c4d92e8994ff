//! Units that failed: which they are, and how far their replacement is.

use std::time::Duration;

use model::printable::printable;
use model::{Container, Text};

use crate::ledger::book::Book;
use crate::ledger::record::{PromiseState, Replica, Stage};
use crate::ledger::stored::WHY_MAX;
use crate::subject::Subject;

/// A unit of a placement that has a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnitOf {
    /// The id of the placement.
    pub(crate) id: Text,
    pub(crate) at: usize,
    /// Which of the unit's containers it is.
    pub(crate) member: usize,
}

impl Book {
    /// The unit of a container that this scheduler started, and on which it does not work; `None` if it has none such.
    pub(crate) fn unit_of(&self, container: &Container) -> Option<UnitOf> {
        let uuid = container.uuid();
        let (id, at, member) = self.names.get(&uuid.to_lowercase())?;
        if self.is_foreign(id) || self.is_pending(id) {
            return None;
        }
        let replica = self.records.get(id)?.replicas.get(*at)?;
        let is_it = replica.stage == Stage::Started
            && container.host_uuid() == Some(&replica.host)
            && matches!(&replica.members.get(*member)?.state, PromiseState::Settled(own) if own == uuid);
        is_it.then(|| UnitOf { id: id.clone(), at: *at, member: *member })
    }

    /// Whether the unit that has a container was replaced before, or its containers started again.
    pub(crate) fn was_replaced(&self, container: &Container) -> bool {
        let place = self.names.get(&container.uuid().to_lowercase());
        place.and_then(|(id, at, _)| self.replica(id, *at)).is_some_and(|replica| replica.replaced.is_some())
    }

    /// A unit of a placement.
    pub(crate) fn replica(&self, id: &str, at: usize) -> Option<&Replica> {
        self.records.get(id)?.replicas.get(at)
    }

    /// Gives up the place of a unit whose host is gone for good, without asking that: its containers there are remembered, and it
    /// waits for another place. `false` if there is no such unit, or something else is done with it.
    pub(crate) fn leave_behind(&mut self, id: &str, at: usize, why: &str, now: Duration) -> bool {
        if self.is_foreign(id) {
            return false;
        }
        let replica = self.records.get_mut(id).and_then(|record| record.replicas.get_mut(at));
        let is_idle = |stage| matches!(stage, Stage::Started | Stage::Restarting | Stage::Replacing);
        let Some(replica) = replica.filter(|replica| replica.stands() && is_idle(replica.stage)) else { return false };
        let containers = replica.members.iter().filter_map(|held| held.container.clone()).collect();
        let before = replica.replaced.take().unwrap_or_default();
        replica.replaced = Some(before.and_left(&replica.host, containers, &printable(why, WHY_MAX), now));
        replica.stage = Stage::Replacing;
        replica.waits = None;
        self.vacate(id, at);
        true
    }

    /// The evacuations of this scheduler that are not done: the id, the host, and who asked for it.
    pub(crate) fn evacuations(&self) -> Vec<(Text, Text, Subject)> {
        let own = self.records.iter().filter(|(id, _)| !self.is_foreign(id) && !self.is_pending(id));
        own.filter_map(|(id, record)| Some((id.clone(), record.evacuates.clone()?, record.subject.clone()))).collect()
    }

    /// What was left on a host of units of this scheduler that are elsewhere: the unit, and the engine's id of a container.
    pub(crate) fn left_on(&self, host: &str) -> Vec<(Text, usize, Text)> {
        let mut left = Vec::new();
        for (id, record) in self.records.iter().filter(|(id, _)| !self.is_foreign(id) && !self.is_pending(id)) {
            for (at, replica) in record.replicas.iter().enumerate() {
                let containers = replica.replaced.iter().flat_map(|replaced| replaced.left_on(host));
                left.extend(containers.map(|container| (id.clone(), at, container.clone())));
            }
        }
        left
    }

    /// A container that was left on a host is gone.
    pub(crate) fn left_is_gone(&mut self, id: &str, at: usize, host: &str, container: &str) {
        if self.is_foreign(id) {
            return;
        }
        let replica = self.records.get_mut(id).and_then(|record| record.replicas.get_mut(at));
        if let Some(replaced) = replica.and_then(|replica| replica.replaced.as_mut()) {
            replaced.left_is_gone(host, container);
            self.note_change(id);
        }
    }

    /// Notes that a unit is about to be started again or replaced, or that it could not be where it was tried.
    ///
    /// `well` is for how long it was healthy before.
    pub(crate) fn note_failure(
        &mut self,
        (id, at): (&str, usize),
        stage: Stage,
        why: &str,
        well: Duration,
        now: Duration,
    ) {
        if self.is_foreign(id) {
            return;
        }
        let Some(replica) = self.records.get_mut(id).and_then(|record| record.replicas.get_mut(at)) else { return };
        replica.stage = stage;
        replica.waits = None;
        let before = replica.replaced.take().unwrap_or_default().after_health(well);
        replica.replaced = Some(before.and(&replica.host, &printable(why, WHY_MAX), now));
        self.note_change(id);
    }
}
