//! What followers of etcd receive: which hosts and documents changed.

use model::{Defect, Map, Text};
use tokio::sync::oneshot;

use crate::merge::Resolved;

/// Some parts that changed at the same time.
#[derive(Debug, Default)]
pub struct Batch {
    /// The parts, each at most once. Empty when etcd was read and says nothing else than before.
    pub changes: Vec<PartChange>,
    /// Whether this is what was stored on disk, before etcd has answered.
    pub restored: bool,
    /// Notified once everything that follows from this batch is visible.
    pub done: Option<oneshot::Sender<()>>,
}

/// What a part says now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartChange {
    /// `hosts/NAME` or `documents/NAME`; [`FOREIGN`] for keys that have no owner.
    pub part: Text,
    /// A cluster document; `None`: there is none (any more), what it said is gone.
    pub document: Option<Map>,
    /// Everything that is wrong with it at the moment.
    pub defects: Vec<Defect>,
    /// The document resolved, if there was time for it.
    pub resolved: Option<Resolved>,
}

/// The part under which keys are reported that belong to no host and are no document. It never has a document.
pub const FOREIGN: &str = "foreign";
