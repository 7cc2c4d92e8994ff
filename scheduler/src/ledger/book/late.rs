//! What the book remembers of containers that may still come.

use std::time::Duration;

use model::Text;

use crate::ledger::book::Book;
use crate::ledger::late::{LATE_MAX, LateContainers, coming};
use crate::ledger::record::Replica;

impl Book {
    /// Remembers what may still come of a placement that ends here.
    pub(in crate::ledger) fn remember_late(&mut self, id: &str) {
        let Some(record) = self.records.get(id) else { return };
        let id = Text::from(id);
        let late: Vec<_> = record.replicas.iter().flat_map(|replica| coming(&id, replica)).collect();
        self.late.extend(late);
        self.bound_late();
    }

    /// The same for one unit.
    pub(in crate::ledger) fn remember_late_unit(&mut self, id: &str, replica: &Replica) {
        self.late.extend(coming(&id.into(), replica));
        self.bound_late();
    }

    fn bound_late(&mut self) {
        while self.late.len() > LATE_MAX {
            let first = self.late.iter().min_by_key(|(_, coming)| coming.until).map(|(place, _)| place.clone());
            first.map(|place| self.late.remove(&place));
        }
    }

    /// What may still come.
    pub(crate) fn late(&self) -> &LateContainers {
        &self.late
    }

    /// Whether the ledger has something of this placement, or had until just now; one that was not read yet may have
    /// everything.
    pub(crate) fn may_know(&self, id: &str) -> bool {
        let in_etcd = self.mirror.as_ref().is_some_and(|mirror| mirror.records.contains_key(id));
        self.is_unread()
            || in_etcd
            || self.records.contains_key(id)
            || self.unreadable.contains_key(id)
            || self.late.values().any(|late| *late.id == *id)
    }

    /// Takes note of a look for a container at its engine, which has `answered` or not.
    pub(crate) fn looked_for(&mut self, host: &Text, name: &Text, answered: bool, now: Duration) {
        let place = (host.clone(), name.clone());
        if self.late.get_mut(&place).is_some_and(|coming| coming.is_over(answered, now)) {
            self.late.remove(&place);
        }
    }

    /// Whether the placement has a container of this name on the host by this attempt, or is to have it.
    pub(crate) fn expects(&self, id: &str, attempt: Option<&Text>, host: &str, name: &str) -> bool {
        let units = self.record(id).into_iter().flat_map(|record| &record.replicas);
        units
            .filter(|unit| *unit.host == *host && unit.attempt.as_ref() == attempt)
            .flat_map(|unit| &unit.members)
            .any(|held| *held.name == *name)
    }
}
