//! The ledger: what was promised and has not shown up in a snapshot yet.
//!
//! A reservation takes the lock, *then* loads the inventory: a container that has just shown up is then either
//! in the inventory or still in the ledger, never in neither. Promises end in one of three ways: the container
//! shows up (settled), a client gives the room back (released), or nothing happens for [`LAPSE`]. What the scheduler
//! starts itself does not lapse: it stays promised until its engine reports that the container is gone.
//!
//! With a [`LedgerStore`] all of this is on disk or in etcd before a response names it, and survives a crash.

mod arrival;
pub(crate) mod book;
pub(crate) mod draft;
pub(crate) mod etcd;
pub(crate) mod journal;
pub(crate) mod late;
pub(crate) mod mirror;
pub(crate) mod note;
pub(crate) mod record;
pub(crate) mod remarks;
pub(crate) mod replacements;
#[cfg(test)]
mod share_laws;
pub(crate) mod stack;
pub(crate) mod store;
mod stored;
#[cfg(test)]
mod value_laws;
mod waiting;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::Text;

use crate::ledger::book::Book;
use crate::ledger::etcd::store::EtcdStore;
use crate::ledger::journal::{Entry, Journal};
use crate::ledger::store::LedgerStore;
use crate::place::inventory::Inventory;

/// How long room is reserved for a container that does not show up.
///
/// Long enough for an engine to pull a small image and for the snapshot to come round, short enough that a crash
/// between reserving and starting blocks no other request for long.
pub const LAPSE: Duration = Duration::from_mins(1);

/// The ledger.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    book: Mutex<Book>,
    store: LedgerStore,
}

impl Ledger {
    /// A ledger without promises, in memory only.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A ledger with what `journal` held, stored by it.
    pub(crate) fn on_disk(journal: Journal, entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut book = Book { persistent: true, ..Book::default() };
        for (id, record) in entries {
            match record {
                Ok(record) => book.enter(id, record),
                Err(why) => book.set_aside(id, why),
            }
        }
        Self { book: Mutex::new(book), store: LedgerStore::Disk(journal) }
    }

    /// A ledger shared with other schedulers, not read yet.
    pub(crate) fn shared(shared: Arc<EtcdStore>) -> Self {
        let mut book = Book::default();
        book.mirror_etcd(shared.me().clone());
        Self { book: Mutex::new(book), store: LedgerStore::Etcd(shared) }
    }

    /// The name that only this ledger has; `None` if it is in memory only, or not known yet.
    pub(crate) fn name(&self) -> Option<Text> {
        match &self.store {
            LedgerStore::Memory => None,
            LedgerStore::Disk(journal) => Some(journal.name().clone()),
            LedgerStore::Etcd(shared) => shared.ledger(),
        }
    }

    /// Where it is stored.
    pub(crate) fn store(&self) -> &LedgerStore {
        &self.store
    }

    /// Takes the lock, then loads the inventory, brings the book up to date with it and with `now`, and hands it to
    /// `act`.
    pub(crate) fn with<T>(
        &self,
        load: impl FnOnce() -> Arc<Inventory>,
        now: Duration,
        act: impl FnOnce(&mut Book) -> T,
    ) -> T {
        let mut poisoned = false;
        let mut book = self.book.lock().unwrap_or_else(|error| {
            poisoned = true;
            PoisonError::into_inner(error)
        });
        if poisoned {
            // Another thread panicked in between: the sums are computed again from the promises.
            self.book.clear_poison();
            book.recount();
        }
        book.follow(load());
        book.lapse(now);
        book.end_host_split(now);
        let done = act(&mut book);
        match &self.store {
            LedgerStore::Memory => {}
            LedgerStore::Disk(journal) => {
                // In the order in which things happened, which only the lock establishes.
                for id in std::mem::take(&mut book.changed) {
                    match book.records.get(&id) {
                        Some(record) => journal.put(&id, record),
                        None => journal.delete(&id),
                    }
                }
            }
            LedgerStore::Etcd(shared) => {
                if !book.changed.is_empty() {
                    shared.something_changed();
                }
            }
        }
        done
    }
}
