//! Who keeps the ledger.

use std::sync::Arc;

use crate::ledger::draft::CommitError;
use crate::ledger::etcd::EtcdStore;
use crate::ledger::journal::{Journal, WriteFailed};

/// Who keeps the ledger.
#[derive(Debug, Default)]
pub(crate) enum LedgerStore {
    /// Nobody: after a crash it is empty.
    #[default]
    Memory,
    /// A file on disk.
    Disk(Journal),
    /// etcd, for any number of schedulers.
    Etcd(Arc<EtcdStore>),
}

/// Why something is not kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PersistError {
    /// The disk refuses.
    Disk(WriteFailed),
    /// Etcd does not have it.
    Etcd(CommitError),
}

impl LedgerStore {
    /// Waits until what happened so far to the placement is kept; on disk, with all others.
    ///
    /// # Errors
    ///
    /// Why it is not.
    pub(crate) async fn settled(&self, id: &str) -> Result<(), PersistError> {
        match self {
            Self::Memory => Ok(()),
            Self::Disk(journal) => journal.settled().await.map_err(PersistError::Disk),
            Self::Etcd(shared) => shared.settled(id, None).await.map_err(PersistError::Etcd),
        }
    }

    /// How etcd is spoken with, when it is.
    pub(crate) fn shared(&self) -> Option<&Arc<EtcdStore>> {
        match self {
            Self::Etcd(shared) => Some(shared),
            Self::Memory | Self::Disk(_) => None,
        }
    }
}
