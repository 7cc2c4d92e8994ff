//! Entities of one kind in the order in which clients see them, found by name without looking at all of them.
//!
//! The order is by `create_index`, then name, then uuid: it stays the same from snapshot to snapshot and
//! after a restart, so that paths by index keep their meaning. A change costs what changed.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::sync::Arc;

use imbl::Vector;
use model::{Change, Entity, Fingerprint, Table, Text, changes};

use crate::hits::{self, Index};
use crate::lower::lower;

/// Entities of one kind, in order and by name.
#[derive(Clone, Debug)]
pub(crate) struct Ordered<T> {
    list: Vector<Arc<T>>,
    /// By name in lower case.
    names: Index<Name, Arc<T>>,
    /// Of all of them.
    fingerprint: Fingerprint,
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
        Self { list: Vector::new(), names: Index::new(), fingerprint: Fingerprint::default() }
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

    /// Stands for the content of all of them.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
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
            if let Some(entity) = gone {
                self.fingerprint = self.fingerprint.minus(entity.fingerprint());
                if let Some(name) = name(&**entity) {
                    hits::remove(&mut self.names, &name, |other| other.id() == entity.id());
                }
            }
            if let Some(entity) = come {
                self.fingerprint = self.fingerprint.plus(entity.fingerprint());
                if let Some(name) = name(&**entity) {
                    hits::insert(&mut self.names, name, entity.clone(), |a, b| order(&**a, &**b));
                }
            }
        }
        // Many single insertions cost more than sorting once.
        if changes.len() > new.len() / REBUILD_PART {
            let mut list: Vec<_> = new.values().cloned().collect();
            list.sort_by(|a, b| order(&**a, &**b));
            self.list = list.into();
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
        self.list.binary_search_by(|other| order(&**other, entity))
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
///
/// Names count in lower case first, so that the order is alphabetical in every version.
pub(crate) fn order<T: Entity>(a: &T, b: &T) -> Ordering {
    let index = |entity: &T| entity.fields().int("create_index").unwrap_or_default();
    index(a)
        .cmp(&index(b))
        .then_with(|| match (a.name(), b.name()) {
            (Some(a), Some(b)) => lower(a).cmp(&lower(b)).then_with(|| a.cmp(b)),
            (a, b) => a.cmp(&b),
        })
        .then_with(|| a.id().cmp(b.id()))
}

fn name<T: Entity>(entity: &T) -> Option<Name> {
    let name = entity.name()?;
    Some(Name(match lower(name) {
        std::borrow::Cow::Borrowed(_) => name.clone(),
        std::borrow::Cow::Owned(lowered) => lowered.into(),
    }))
}
