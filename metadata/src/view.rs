//! What is published: the tree and the log of changes that belong together, so that who reads of a change finds it made.

use std::sync::Arc;

use model::Snapshot;

use crate::body::renderings::Renderings;
use crate::change_log::ChangeLog;
use crate::tree::Tree;

/// What clients are answered from, as of one snapshot.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) tree: Tree,
    pub(crate) log: ChangeLog,
    /// What was written of the tree for more than one client.
    pub(crate) renderings: Renderings,
}

impl View {
    /// The view before there are data.
    pub(crate) fn empty() -> Self {
        Self { tree: Tree::empty(), log: ChangeLog::empty(), renderings: Renderings::default() }
    }

    /// The view of this snapshot, sharing with `self` what did not change; `None` when nothing did.
    pub(crate) fn next(&self, snapshot: &Arc<Snapshot>) -> Option<Self> {
        let tree = self.tree.next(snapshot)?;
        let log = self.log.next(snapshot).unwrap_or_else(|| self.log.clone());
        Some(Self { tree, log, renderings: Renderings::default() })
    }
}
