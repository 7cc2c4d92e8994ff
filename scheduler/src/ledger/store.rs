//! Where the ledger is stored.

use std::sync::Arc;

use crate::ledger::draft::CommitError;
use crate::ledger::etcd::store::EtcdStore;
use crate::ledger::journal::{Journal, WriteFailed};

/// Where the ledger is stored.
#[derive(Debug, Default)]
pub(crate) enum LedgerStore {
    /// In memory: after a crash it is empty.
    #[default]
    Memory,
    /// In a file on disk.
    Disk(Journal),
    /// In etcd, for any number of schedulers.
    Etcd(Arc<EtcdStore>),
}

/// Why something is not persistent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PersistError {
    /// It cannot be written to disk.
    Disk(WriteFailed),
    /// It is not committed to etcd.
    Etcd(CommitError),
}

impl LedgerStore {
    /// Waits until all changes of the placement so far are persistent; on disk, those of all others too.
    ///
    /// # Errors
    ///
    /// Fails if they cannot be written, or conflict with another scheduler's.
    pub(crate) async fn settled(&self, id: &str) -> Result<(), PersistError> {
        match self {
            Self::Memory => Ok(()),
            Self::Disk(journal) => journal.settled().await.map_err(PersistError::Disk),
            Self::Etcd(shared) => shared.settled(id, None).await.map_err(PersistError::Etcd),
        }
    }

    /// The store in etcd, if that is where the ledger is.
    pub(crate) fn shared(&self) -> Option<&Arc<EtcdStore>> {
        match self {
            Self::Etcd(shared) => Some(shared),
            Self::Memory | Self::Disk(_) => None,
        }
    }
}
