//! The book as if some units were gone, for rehearsals.

use std::sync::Arc;

use model::Text;

use crate::ledger::book::Book;
use crate::ledger::record::PromiseState;

impl Book {
    /// A copy in which anything may be tried: nothing of it is written, and all in it is this scheduler's.
    #[must_use]
    pub(crate) fn scratch(&self) -> Self {
        Self { persistent: false, mirror: None, ..self.clone() }
    }

    /// The same with no other records than those of these placements: copying all of a large cluster takes longer than placing.
    #[must_use]
    pub(crate) fn scratch_with<'i>(&self, ids: impl Iterator<Item = &'i Text>) -> Self {
        let mut scratch = Self {
            inventory: self.inventory.clone(),
            promised: self.promised.clone(),
            notes: self.notes.clone(),
            waiting: self.waiting.clone(),
            held: self.held,
            ..Self::default()
        };
        for id in ids {
            let Some(record) = self.records.get(id) else { continue };
            for held in record.replicas.iter().flat_map(|replica| &replica.members) {
                let shown = match &held.state {
                    PromiseState::Settled(uuid) => Some(uuid),
                    PromiseState::Reserved | PromiseState::Over => None,
                };
                for word in std::iter::once(&held.name).chain(shown) {
                    let word = word.to_lowercase();
                    if let Some(place) = self.names.get(&word) {
                        scratch.names.insert(word, place.clone());
                    }
                }
            }
            scratch.records.insert(id.clone(), record.clone());
        }
        scratch
    }

    /// Takes these units away: their room, their ports and their containers. Only for a [`Book::scratch`].
    pub(crate) fn take_away(&mut self, units: &[(Text, usize)]) {
        if units.is_empty() {
            return;
        }
        let mut snapshot = self.inventory.snapshot();
        for (id, at) in units {
            let members = self.replica(id, *at).into_iter().flat_map(|replica| &replica.members);
            let shown: Vec<Text> = members
                .filter_map(|held| match &held.state {
                    PromiseState::Settled(uuid) => Some(uuid.clone()),
                    PromiseState::Reserved | PromiseState::Over => None,
                })
                .collect();
            for uuid in &shown {
                snapshot.containers.remove(uuid);
            }
            self.vacate(id, *at);
        }
        self.follow(Arc::new(self.inventory.succeeding(&snapshot)));
    }
}
