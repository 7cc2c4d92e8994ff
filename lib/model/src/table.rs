//! Entities of one kind by id, in a persistent map: a copy shares everything, and a change costs what changed.

use std::ops::{Deref, Index};
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;

use crate::entity::Entity;
use crate::fingerprint::Fingerprint;
use crate::panic::Shares;
use crate::value::{Text, beginning};

/// Entities of one kind by id.
///
/// Reads like the map that it holds.
#[derive(Debug)]
pub struct Table<T> {
    map: OrdMap<Text, Arc<T>>,
    fingerprint: Fingerprint,
    shares: Shares,
}

impl<T: Entity> Table<T> {
    /// Puts an entity in, in place of one with the same id.
    pub fn insert(&mut self, entity: Arc<T>) {
        self.fingerprint = self.fingerprint.plus(entity.fingerprint());
        self.shares.add(entity.verdict());
        if let Some(old) = self.map.insert(entity.id().clone(), entity) {
            self.lose(&old);
        }
    }

    /// Takes the entity with this id out.
    pub fn remove(&mut self, id: &str) {
        if let Some(old) = self.map.remove(id) {
            self.lose(&old);
        }
    }

    fn lose(&mut self, old: &T) {
        self.fingerprint = self.fingerprint.minus(old.fingerprint());
        self.shares.lose(old.verdict());
    }

    /// How many of them are well, and how many are not.
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Stands for all entities together.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The same entities, sharing with `previous` all that did not change.
    #[must_use]
    pub(crate) fn succeeding(self, previous: &Self) -> Self {
        let changes: Vec<_> = changes(previous, &self).collect();
        // With more changes than there was before, what could be shared is not worth the work.
        if changes.len() > previous.len() {
            drop(changes);
            return self;
        }
        let mut shared = previous.clone();
        for change in changes {
            match change {
                Change::Added(entity) | Change::Changed { new: entity, .. } => shared.insert(entity.clone()),
                Change::Removed(entity) => shared.remove(entity.id()),
            }
        }
        shared
    }
}

impl<T> Clone for Table<T> {
    fn clone(&self) -> Self {
        Self { map: self.map.clone(), fingerprint: self.fingerprint, shares: self.shares.clone() }
    }
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { map: OrdMap::new(), fingerprint: Fingerprint::default(), shares: Shares::default() }
    }
}

impl<T> Deref for Table<T> {
    type Target = OrdMap<Text, Arc<T>>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl<T> Index<&str> for Table<T> {
    type Output = Arc<T>;

    fn index(&self, id: &str) -> &Arc<T> {
        &self.map[id]
    }
}

impl<'a, T> IntoIterator for &'a Table<T> {
    type Item = <&'a OrdMap<Text, Arc<T>> as IntoIterator>::Item;
    type IntoIter = <&'a OrdMap<Text, Arc<T>> as IntoIterator>::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        self.map.iter()
    }
}

/// Of entities with one id the last one stays.
impl<T: Entity> FromIterator<Arc<T>> for Table<T> {
    fn from_iter<I: IntoIterator<Item = Arc<T>>>(entities: I) -> Self {
        let mut entities: Vec<_> = entities.into_iter().map(|entity| (beginning(entity.id()), entity)).collect();
        // In order each insertion finds its place where the one before was, which the processor has at hand.
        entities.sort_by(|(a_begins, a), (b_begins, b)| a_begins.cmp(b_begins).then_with(|| a.id().cmp(b.id())));
        let map: OrdMap<Text, Arc<T>> = entities.into_iter().map(|(_, entity)| (entity.id().clone(), entity)).collect();
        let fingerprint = map.values().fold(Fingerprint::default(), |sum, entity| sum.plus(entity.fingerprint()));
        let mut shares = Shares::default();
        map.values().for_each(|entity| shares.add(entity.verdict()));
        Self { map, fingerprint, shares }
    }
}

/// One difference between two tables.
#[derive(Debug)]
pub enum Change<'a, T> {
    /// Only the newer table has it.
    Added(&'a Arc<T>),
    /// Both have it, with different content.
    Changed {
        /// As it was.
        old: &'a Arc<T>,
        /// As it is.
        new: &'a Arc<T>,
    },
    /// Only the older table has it.
    Removed(&'a Arc<T>),
}

impl<'a, T> Change<'a, T> {
    /// The entity before and after it.
    pub fn sides(&self) -> (Option<&'a Arc<T>>, Option<&'a Arc<T>>) {
        match self {
            Self::Added(new) => (None, Some(new)),
            Self::Changed { old, new } => (Some(old), Some(new)),
            Self::Removed(old) => (Some(old), None),
        }
    }
}

/// The differences between two tables, by id; costs what is not shared between them.
pub fn changes<'a, T: Entity>(old: &'a Table<T>, new: &'a Table<T>) -> impl Iterator<Item = Change<'a, T>> {
    old.map.diff(&new.map).map(|item| match item {
        DiffItem::Add(_, entity) => Change::Added(entity),
        DiffItem::Update { old: (_, old), new: (_, new) } => Change::Changed { old, new },
        DiffItem::Remove(_, entity) => Change::Removed(entity),
    })
}
