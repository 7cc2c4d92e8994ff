//! What the tasks share that follow and write the ledger in etcd.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use etcd::EtcdClient;
use futures_util::FutureExt;
use tracing::warn;

use crate::clock::Clock;
use crate::ledger::book::Book;
use crate::ledger::etcd::keys::Keys;
use crate::ledger::etcd::store::EtcdStore;
use crate::place::Placer;

/// Pause after the first failure of etcd; each next one is twice as long.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(50);

/// Longest pause after a failure of etcd.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How long the last writes may take when this scheduler stops.
pub(super) const FAREWELL: Duration = Duration::from_millis(500);

/// The output of a future; `None` when it panicked, which must not end the synchronisation.
pub(super) async fn survived<T>(work: impl Future<Output = T>) -> Option<T> {
    AssertUnwindSafe(work).catch_unwind().await.ok()
}

/// What the tasks share.
#[derive(Clone, Debug)]
pub(super) struct SyncContext {
    pub(super) shared: Arc<EtcdStore>,
    pub(super) client: EtcdClient,
    pub(super) keys: Keys,
    pub(super) placer: Arc<Placer>,
    pub(super) clock: Clock,
}

impl SyncContext {
    pub(super) fn book<T>(&self, act: impl FnOnce(&mut Book) -> T) -> T {
        self.placer.with_any(self.clock.now(), act)
    }

    /// Lets the book learn something, and wakes the tasks that wait for it.
    pub(super) fn learn<T>(&self, act: impl FnOnce(&mut Book) -> T) -> T {
        let (done, revision, adopted, orphans, remarks) = self.book(|book| {
            let done = act(book);
            (
                done,
                book.revision(),
                book.take_adopted(),
                !book.orphans().is_empty(),
                book.take_remarks(self.clock.now()),
            )
        });
        for (id, remark) in remarks {
            warn!(%id, "in the ledger: {remark}");
        }
        self.shared.learned.send_replace(revision);
        for id in &adopted {
            self.placer.audit_take_over(id, "adopted", self.clock.now());
        }
        if !adopted.is_empty() {
            self.shared.adopted.notify_one();
        }
        if orphans {
            self.shared.something_changed();
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_ends_no_conversation() {
        assert_eq!(survived(async { 1 }).await, Some(1));
        assert_eq!(survived(async { Vec::<u8>::new()[0] }).await, None);
    }
}
