//! Queries of clients whose container is not known yet, held for a moment before a denial.
//!
//! An engine gives a container its address before it reports the start, and the first query of a fast program arrives in
//! between: a denial would be cached there.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hickory_proto::op::ResponseCode;
use model::{CLIENT_KNOWN_WITHIN, Snapshot};
use source::Store;
use tokio::time::timeout;

use crate::answer::{Answer, End, answer};
use crate::name::{NAME_BYTES_MAX, dots, fold};
use crate::query::{Query, Reading};
use crate::view::View;
use crate::zone::Zone;

/// Most queries that are held at the same time; beyond this they are answered at once, as those of strangers.
const HELD_MAX: usize = 1024;

/// Whether queries are held, and how many are.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    /// What is followed: it knows whether the engine of this host reports its containers as they start.
    snapshots: Option<Arc<Store<Snapshot>>>,
    held: AtomicUsize,
}

/// A place among the queries that are held, until it is dropped.
#[derive(Debug)]
struct Held<'h>(&'h Hold);

impl Hold {
    /// For the clients of these snapshots.
    pub(crate) fn following(snapshots: Option<Arc<Store<Snapshot>>>) -> Self {
        Self { snapshots, ..Self::default() }
    }

    /// Whether the answer may be another one as soon as it is known who asks.
    pub(crate) fn wants(&self, zone: &Zone, client: IpAddr, query: &Query<'_>, answer: &Answer<'_>) -> bool {
        let is_live = self.snapshots.as_ref().is_some_and(|snapshots| snapshots.has_live_clients());
        is_live && is_denied(query, answer) && !zone.knows(client)
    }

    /// Waits until it is known who the client is, the name that the message asks for is there, or the time is over.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub(crate) async fn wait(&self, views: &Store<View>, client: IpAddr, message: &[u8]) {
        let held = Held(self);
        if self.held.fetch_add(1, Ordering::Relaxed) < HELD_MAX {
            // First watch, then look: a publication in between is seen twice, never missed.
            let mut watcher = views.watch();
            let known = async {
                while !views.load().zone().is_some_and(|zone| zone.knows(client) || has(zone, message)) {
                    watcher.changed().await;
                }
            };
            let _ = timeout(CLIENT_KNOWN_WITHIN, known).await;
        }
        drop(held);
    }
}

/// Whether the answer says that there is no such name, or leaves a short one to upstreams.
fn is_denied(query: &Query<'_>, answer: &Answer<'_>) -> bool {
    match answer.end {
        End::Nothing { code, .. } => code == ResponseCode::NXDomain,
        // A short name is searched in the client's own stack.
        End::Elsewhere { .. } => dots(query.name) == 0,
        _ => false,
    }
}

/// Whether a client that is not known gets an answer to this message.
fn has(zone: &Zone, message: &[u8]) -> bool {
    let Reading::Query(query) = Query::read(message) else { return true };
    let mut folded = [0; NAME_BYTES_MAX];
    !is_denied(&query, &answer(zone, None, fold(query.name, &mut folded), query.kind, &mut ()))
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}
