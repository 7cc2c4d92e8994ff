//! The tasks that follow and write the ledger in etcd, and that renew its lease.

use std::path::PathBuf;
use std::sync::Arc;

use etcd::{EtcdClient, EtcdError};
use model::Text;
use source::Readiness;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::clock::Clock;
use crate::ledger::etcd::context::{FAREWELL, SyncContext};
use crate::ledger::etcd::evictions::Evictions;
use crate::ledger::etcd::follow::Follower;
use crate::ledger::etcd::keys::Keys;
use crate::ledger::etcd::store::{CommitRequest, EtcdStore, Outage};
use crate::ledger::etcd::write::Writer;
use crate::place::Placer;

/// The synchronisation with etcd, before it has begun.
#[derive(Debug)]
pub(crate) struct EtcdSync {
    shared: Arc<EtcdStore>,
    client: EtcdClient,
    keys: Keys,
    requests: mpsc::Receiver<CommitRequest>,
}

impl EtcdSync {
    /// A synchronisation that is not running yet.
    pub(crate) fn new(client: EtcdClient, key_file: PathBuf, secrets: Option<Text>) -> Self {
        let (shared, requests) = EtcdStore::new(client.clone(), key_file, secrets);
        let keys = shared.keys.clone();
        Self { shared: Arc::new(shared), client, keys, requests }
    }

    /// The handle for other tasks.
    pub(crate) fn shared(&self) -> &Arc<EtcdStore> {
        &self.shared
    }

    /// Follows and writes the ledger until `stop`.
    pub(crate) async fn run(
        self,
        placer: Arc<Placer>,
        clock: Clock,
        readiness: Option<Arc<Readiness>>,
        stop: CancellationToken,
    ) {
        let Self { shared, client, keys, requests } = self;
        info!(scheduler = %shared.me, etcd = %client, "the ledger is shared");
        let context = SyncContext { shared: shared.clone(), client, keys, placer, clock };
        let following = tokio::spawn(Follower::new(context.clone()).run());
        let renewing = tokio::spawn(context.clone().renew());
        let evicting = tokio::spawn(Evictions::new(context.clone(), readiness.clone()).run());
        let reporting = readiness.map(|readiness| tokio::spawn(report(shared.away.subscribe(), readiness)));
        Writer::new(context, requests).run(stop).await;
        following.abort();
        renewing.abort();
        evicting.abort();
        if let Some(reporting) = reporting {
            reporting.abort();
        }
        // An error is the cancellation that was just asked for.
        let _ = tokio::join!(following, renewing, evicting);
        // What is ours can be taken over at once; otherwise when the lease has run out.
        let _ = timeout(FAREWELL, shared.lease.revoke()).await;
    }
}

/// The part of the process that is not ready while nothing can be promised.
const PART: &str = "ledger";

/// The process is ready while promises are made.
async fn report(mut away: watch::Receiver<Option<Outage>>, readiness: Arc<Readiness>) {
    loop {
        match &*away.borrow_and_update() {
            Some(away) => readiness.not_ready(PART, &*away.reason),
            None => readiness.ready(PART),
        }
        if away.changed().await.is_err() {
            return;
        }
    }
}

impl SyncContext {
    async fn renew(self) {
        let lease = &self.shared.lease;
        loop {
            sleep(lease.interval()).await;
            let Some(id) = lease.id() else { continue };
            match lease.renew(id).await {
                Ok(_) => {
                    self.shared.held.renewed(lease.asked());
                    // A watch that hung without breaking does not report that etcd is back.
                    self.shared.is_back_after_write();
                }
                Err(EtcdError::LeaseGone) => {
                    self.shared.held.ended();
                    self.shared.something_changed();
                }
                Err(error) => self.shared.is_away(&error),
            }
        }
    }
}

#[cfg(test)]
impl EtcdSync {
    /// Answers the next commit request with success.
    pub(crate) async fn settle_one(&mut self) {
        if let Some(request) = self.requests.recv().await {
            let _ = request.reply.send(Ok(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use etcd::EtcdOptions;

    use super::*;

    /// After etcd was reset all schedulers need time to write what they promised.
    #[tokio::test]
    async fn no_transaction_ends_the_time_in_which_nothing_is_promised() {
        let client = EtcdClient::new(EtcdOptions::parse("http://192.0.2.1:2379").unwrap()).unwrap();
        let shared = EtcdSync::new(client, PathBuf::new(), None).shared;
        shared.answers();
        shared.is_away(&EtcdError::LeaseGone);
        assert!(shared.reachable().is_err());
        shared.is_back_after_write();
        assert!(shared.reachable().is_ok());
        shared.is_away_until_read("etcd was reset");
        shared.is_away(&EtcdError::LeaseGone);
        shared.is_back_after_write();
        assert!(shared.reachable().is_err());
        shared.is_back();
        assert!(shared.reachable().is_ok());
    }
}
