//! Containers that an engine may still create although nobody waits for them any more.
//!
//! A scheduler that dies while an engine is slow leaves a question that the engine may answer a minute later. Whoever
//! goes on with the placement creates and removes containers of the same name, and the old question is answered after
//! that: so it remembers the name, and looks for it until the engine can no longer be about to do anything.

use std::collections::BTreeMap;
use std::time::Duration;

use model::Text;

use super::book::Book;
use super::record::Replica;

/// Most names to look for at once; those over soonest are forgotten first. A scheduler works on far fewer units when it
/// dies, and looking for one costs an engine a millisecond.
const LATE_MAX: usize = 10_000;

/// What may still come: the host and the name, and of which placement and attempt, and until when.
pub(crate) type Late = BTreeMap<(Text, Text), (Text, Option<Text>, Duration)>;

impl Book {
    /// Remembers what may still come of a placement that ends here.
    pub(super) fn remember_late(&mut self, id: &str) {
        let Some(record) = self.records.get(id) else { return };
        let id = Text::from(id);
        let late: Vec<_> = record.replicas.iter().flat_map(|replica| coming(&id, replica)).collect();
        self.late.extend(late);
        self.bound_late();
    }

    /// The same for one unit.
    pub(super) fn remember_late_unit(&mut self, id: &str, replica: &Replica) {
        self.late.extend(coming(&id.into(), replica));
        self.bound_late();
    }

    fn bound_late(&mut self) {
        while self.late.len() > LATE_MAX {
            let first = self.late.iter().min_by_key(|(_, (.., until))| *until).map(|(place, _)| place.clone());
            first.map(|place| self.late.remove(&place));
        }
    }

    /// What may still come.
    pub(crate) fn late(&self) -> &Late {
        &self.late
    }

    /// Nothing can come there any more.
    pub(crate) fn not_late(&mut self, host: &Text, name: &Text) {
        self.late.remove(&(host.clone(), name.clone()));
    }

    /// Whether the placement has a container of this name on the host, or is to have it.
    pub(crate) fn expects(&self, id: &str, host: &str, name: &str) -> bool {
        let units = self.record(id).into_iter().flat_map(|record| &record.replicas);
        units.filter(|unit| *unit.host == *host).flat_map(|unit| &unit.members).any(|held| *held.name == *name)
    }
}

fn coming(id: &Text, replica: &Replica) -> impl Iterator<Item = ((Text, Text), (Text, Option<Text>, Duration))> {
    let names = replica.members.iter().map(|held| held.name.clone());
    let until = replica.unclear_until;
    names.filter_map(move |name| Some(((replica.host.clone(), name), (id.clone(), replica.attempt.clone(), until?))))
}
