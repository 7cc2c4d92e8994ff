//! Entities of one kind in the order in which clients see them, found by name without looking at all of them.
//!
//! The order is by `create_index`, then name, then uuid: it stays the same from snapshot to snapshot and
//! after a restart, so that paths by index keep their meaning. A change costs what changed.

use std::borrow::{Borrow, Cow};
use std::cmp::Ordering;
use std::sync::Arc;

use imbl::Vector;
use model::value::beginning;
use model::{Change, Entity, Table, Text, changes};

use crate::tree::hits::{self, Index};
use crate::tree::lower::lower;

/// Entities of one kind, in order and by name.
#[derive(Clone, Debug)]
pub(crate) struct Ordered<T> {
    list: Vector<Seat<T>>,
    /// By name in lower case.
    names: Index<Name, Arc<T>>,
}

/// An entity in the list, with the beginning of its place: a search compares without looking into the entities, which lie
/// all over the memory.
#[derive(Debug)]
struct Seat<T> {
    create_index: i64,
    lowered: Option<Text>,
    entity: Arc<T>,
}

impl<T> Clone for Seat<T> {
    fn clone(&self) -> Self {
        Self { create_index: self.create_index, lowered: self.lowered.clone(), entity: self.entity.clone() }
    }
}

/// A name in lower case; shares the entity's own text when that is in lower case already.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name(Text);

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl hits::Key for Name {
    fn beginning(&self) -> u128 {
        beginning(&self.0)
    }
}

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Self { list: Vector::new(), names: Index::new() }
    }
}

impl<T: Entity> Ordered<T> {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.list.iter().map(|seat| &seat.entity)
    }

    /// The one at this place.
    pub(crate) fn get(&self, index: usize) -> Option<&Arc<T>> {
        self.list.get(index).map(|seat| &seat.entity)
    }

    /// Those whose name is this but for upper and lower case, in order.
    pub(crate) fn named(&self, name: &str) -> &[Arc<T>] {
        self.names.get(&*lower(name)).map_or(&[], hits::Hits::as_slice)
    }

    /// All entities of a table.
    fn of(table: &Table<T>) -> Self {
        let mut seats: Vec<_> = table.values().map(Seat::of).collect();
        seats.sort_unstable_by(Seat::cmp);
        let names = seats.iter().filter_map(|seat| Some((Name(seat.lowered.clone()?), seat.entity.clone())));
        let names = hits::index(names, |_, _| Ordering::Equal);
        Self { list: seats.into_iter().collect(), names }
    }

    /// Follows a table from `old` to `new`, calling `each` with every change.
    ///
    /// Returns true without calling `each` if so much changed that all entities were sorted again: the caller then rebuilds
    /// what it derives.
    pub(crate) fn follow<'a>(
        &mut self,
        old: &'a Table<T>,
        new: &'a Table<T>,
        each: impl FnMut(&Change<'a, T>),
    ) -> bool {
        let changes: Vec<_> = changes(old, new).collect();
        if changes.len() > new.len() / REBUILD_PART {
            *self = Self::of(new);
            return true;
        }
        changes.iter().for_each(each);
        for change in &changes {
            let (gone, come) = change.sides();
            if let Some((entity, name)) = gone.and_then(|entity| Some((entity, name(&**entity)?))) {
                hits::remove(&mut self.names, &name, |other| other.id() == entity.id());
            }
            if let Some((entity, name)) = come.and_then(|entity| Some((entity, name(&**entity)?))) {
                hits::insert(&mut self.names, name, entity.clone(), |a, b| order(&**a, &**b));
            }
        }
        for change in changes {
            match change {
                Change::Added(entity) => self.insert(entity),
                Change::Removed(entity) => self.remove(entity),
                Change::Changed { old, new } if order(&**old, &**new) == Ordering::Equal => {
                    if let Ok(at) = self.position(old) {
                        self.list.set(at, Seat::of(new));
                    }
                }
                Change::Changed { old, new } => {
                    self.remove(old);
                    self.insert(new);
                }
            }
        }
        false
    }

    /// Where the entity is, or would be.
    fn position(&self, entity: &Arc<T>) -> Result<usize, usize> {
        let seat = Seat::of(entity);
        self.list.binary_search_by(|other| other.cmp(&seat))
    }

    fn insert(&mut self, entity: &Arc<T>) {
        if let Err(at) = self.position(entity) {
            self.list.insert(at, Seat::of(entity));
        }
    }

    fn remove(&mut self, entity: &Arc<T>) {
        if let Ok(at) = self.position(entity) {
            self.list.remove(at);
        }
    }
}

impl<T: Entity> Seat<T> {
    fn of(entity: &Arc<T>) -> Self {
        let lowered = name(&**entity).map(|Name(lowered)| lowered);
        Self { create_index: create_index(&**entity), lowered, entity: entity.clone() }
    }

    /// Compares places.
    fn cmp(&self, other: &Self) -> Ordering {
        (self.create_index.cmp(&other.create_index))
            .then_with(|| self.lowered.cmp(&other.lowered))
            .then_with(|| self.entity.name().cmp(&other.entity.name()))
            .then_with(|| self.entity.id().cmp(other.entity.id()))
    }
}

/// Everything is sorted again when more than one in this many entities changed: many single insertions cost more.
const REBUILD_PART: usize = 8;

/// The order in which clients see entities of one kind: by `create_index`, then name, then id.
///
/// Names count in lower case first, so that the order is alphabetical in every version.
pub(crate) fn order<T: Entity>(a: &T, b: &T) -> Ordering {
    let lowered = |entity| Entity::name(entity).map(|name| lower(name));
    (create_index(a).cmp(&create_index(b)))
        .then_with(|| lowered(a).cmp(&lowered(b)))
        .then_with(|| a.name().cmp(&b.name()))
        .then_with(|| a.id().cmp(b.id()))
}

fn create_index<T: Entity>(entity: &T) -> i64 {
    entity.fields().int("create_index").unwrap_or_default()
}

fn name<T: Entity>(entity: &T) -> Option<Name> {
    let name = entity.name()?;
    Some(Name(match lower(name) {
        Cow::Borrowed(_) => name.clone(),
        Cow::Owned(lowered) => lowered.into(),
    }))
}
