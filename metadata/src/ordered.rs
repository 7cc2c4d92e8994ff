//! Entities of one kind in the order in which clients see them, found by name without looking at all of them.
//!
//! The order is by `create_index`, then name, then uuid: it stays the same from snapshot to snapshot and
//! after a restart, so that paths by index keep their meaning. A change costs what changed.

use std::borrow::{Borrow, Cow};
use std::cmp::Ordering;
use std::sync::Arc;

use imbl::Vector;
use model::{Change, Entity, Table, Text, changes};

use crate::hits::{self, Index};
use crate::lower::lower;

/// Entities of one kind, in order and by name.
#[derive(Clone, Debug)]
pub(crate) struct Ordered<T> {
    list: Vector<Arc<T>>,
    /// By name in lower case.
    names: Index<Name, Arc<T>>,
}

/// A name in lower case; shares the entity's own text when that is in lower case already.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name(Text);

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Self { list: Vector::new(), names: Index::new() }
    }
}

impl<T: Entity> Ordered<T> {
    /// All of them.
    pub(crate) fn list(&self) -> &Vector<Arc<T>> {
        &self.list
    }

    /// Those whose name is this but for upper and lower case, in order.
    pub(crate) fn named(&self, name: &str) -> &[Arc<T>] {
        self.names.get(&*lower(name)).map_or(&[], hits::Hits::as_slice)
    }

    /// Follows a table from `old` to `new`, telling `each` of every change.
    pub(crate) fn follow<'a>(&mut self, old: &'a Table<T>, new: &'a Table<T>, mut each: impl FnMut(&Change<'a, T>)) {
        let changes: Vec<_> = changes(old, new).inspect(&mut each).collect();
        for change in &changes {
            let (gone, come) = match change {
                Change::Added(entity) => (None, Some(*entity)),
                Change::Changed { old, new } => (Some(*old), Some(*new)),
                Change::Removed(entity) => (Some(*entity), None),
            };
            if let Some((entity, name)) = gone.and_then(|entity| Some((entity, name(&**entity)?))) {
                hits::remove(&mut self.names, &name, |other| other.id() == entity.id());
            }
            if let Some((entity, name)) = come.and_then(|entity| Some((entity, name(&**entity)?))) {
                hits::insert(&mut self.names, name, entity.clone(), |a, b| order(&**a, &**b));
            }
        }
        // Many single insertions cost more than sorting once.
        if changes.len() > new.len() / REBUILD_PART {
            let mut list: Vec<_> = new.values().map(|entity| (Place::of(&**entity), entity)).collect();
            list.sort_unstable_by(|a, b| a.0.cmp(&b.0));
            self.list = list.into_iter().map(|(_, entity)| entity.clone()).collect();
        } else {
            for change in changes {
                match change {
                    Change::Added(entity) => self.insert(entity),
                    Change::Removed(entity) => self.remove(entity),
                    Change::Changed { old, new } if order(&**old, &**new) == Ordering::Equal => {
                        if let Ok(at) = self.position(old) {
                            self.list.set(at, new.clone());
                        }
                    }
                    Change::Changed { old, new } => {
                        self.remove(old);
                        self.insert(new);
                    }
                }
            }
        }
    }

    fn position(&self, entity: &T) -> Result<usize, usize> {
        let place = Place::of(entity);
        self.list.binary_search_by(|other| Place::of(&**other).cmp(&place))
    }

    fn insert(&mut self, entity: &Arc<T>) {
        if let Err(at) = self.position(entity) {
            self.list.insert(at, entity.clone());
        }
    }

    fn remove(&mut self, entity: &T) {
        if let Ok(at) = self.position(entity) {
            self.list.remove(at);
        }
    }
}

/// The list is sorted anew when more than one in so many entities changed.
const REBUILD_PART: usize = 8;

/// The order in which clients see entities of one kind.
pub(crate) fn order<T: Entity>(a: &T, b: &T) -> Ordering {
    Place::of(a).cmp(&Place::of(b))
}

/// An entity's place in the order. Fields count from the first to the last.
///
/// Names count in lower case first, so that the order is alphabetical in every version.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place<'e> {
    create_index: i64,
    lowered: Option<Cow<'e, str>>,
    name: Option<&'e Text>,
    id: &'e Text,
}

impl<'e> Place<'e> {
    fn of<T: Entity>(entity: &'e T) -> Self {
        let name = entity.name();
        Self {
            create_index: entity.fields().int("create_index").unwrap_or_default(),
            lowered: name.map(|name| lower(name)),
            name,
            id: entity.id(),
        }
    }
}

fn name<T: Entity>(entity: &T) -> Option<Name> {
    let name = entity.name()?;
    Some(Name(match lower(name) {
        Cow::Borrowed(_) => name.clone(),
        Cow::Owned(lowered) => lowered.into(),
    }))
}
