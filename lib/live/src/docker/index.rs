//! The containers of an engine by their ids and names.

use std::collections::BTreeMap;

use model::Defect;

use super::facts::{Facts, NetworkMode, SHORT_ID};

/// The containers of an engine and how they refer to each other.
pub(super) struct ContainerIndex<'f> {
    /// In the order of their creation.
    pub(super) containers: Vec<&'f Facts>,
    by_id: BTreeMap<&'f str, &'f Facts>,
    by_name: BTreeMap<&'f str, &'f Facts>,
}

impl<'f> ContainerIndex<'f> {
    pub(super) fn new(containers: impl IntoIterator<Item = &'f Facts>, defects: &mut Vec<Defect>) -> Self {
        let mut containers: Vec<_> = containers.into_iter().collect();
        containers.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        containers.dedup_by(|a, b| a.id == b.id);
        let by_id = containers.iter().map(|facts| (&*facts.id, *facts)).collect();
        // Of two with one name, as there may be for the moment of a replacement, the newer one.
        let by_name = containers.iter().map(|facts| (&*facts.name, *facts)).collect();
        let containers_index = Self { containers, by_id, by_name };
        for facts in &containers_index.containers {
            defects.extend(facts.defects.iter().cloned());
            if let NetworkMode::From(other) = &facts.network
                && containers_index.find(other).is_none()
            {
                let problem = format!("it shares the network of {other:?}, which is not there");
                defects.push(Defect::ignored(format!("{}/network_from", facts.path()), problem));
            }
        }
        containers_index
    }

    /// The container of this id, name or beginning of an id.
    pub(super) fn find(&self, word: &str) -> Option<&'f Facts> {
        let start = || {
            let mut from = self.by_id.range(word..).map(|(_, facts)| *facts);
            from.next().filter(|facts| word.len() >= SHORT_ID && facts.id.starts_with(word))
        };
        self.by_id.get(word).or_else(|| self.by_name.get(word)).copied().or_else(start)
    }

    /// The container whose network this one uses: often itself.
    pub(super) fn network_of(&self, facts: &'f Facts) -> &'f Facts {
        let mut at = facts;
        // The engine allows no chains; a chain gives its end, and a ring nothing.
        for _ in 0..8 {
            match &at.network {
                NetworkMode::From(other) => match self.find(other) {
                    Some(next) => at = next,
                    None => return at,
                },
                NetworkMode::Own | NetworkMode::Host => return at,
            }
        }
        facts
    }
}
