//! Who keeps the ledger.

use std::sync::Arc;

use crate::journal::{Broken, Journal};
use crate::ledger::draft::Unkept;
use crate::shared::Shared;

/// Who keeps the ledger.
#[derive(Debug, Default)]
pub(crate) enum Keeper {
    /// Nobody: after a crash it is empty.
    #[default]
    Memory,
    /// A file on disk.
    Disk(Journal),
    /// etcd, for any number of schedulers.
    Etcd(Arc<Shared>),
}

/// Why something is not kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotKept {
    /// The disk refuses.
    Broken(Broken),
    /// Etcd does not have it.
    Shared(Unkept),
}

impl Keeper {
    /// Waits until what happened so far to the placement is kept; on disk, with all others.
    ///
    /// # Errors
    ///
    /// Why it is not.
    pub(crate) async fn settled(&self, id: &str) -> Result<(), NotKept> {
        match self {
            Self::Memory => Ok(()),
            Self::Disk(journal) => journal.settled().await.map_err(NotKept::Broken),
            Self::Etcd(shared) => shared.settled(id, None).await.map_err(NotKept::Shared),
        }
    }

    /// How etcd is spoken with, when it is.
    pub(crate) fn shared(&self) -> Option<&Arc<Shared>> {
        match self {
            Self::Etcd(shared) => Some(shared),
            Self::Memory | Self::Disk(_) => None,
        }
    }
}
