//! The change stream (`GET /v1/changes`): to each follower what it lacks, then what changes as it changes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{Snapshot, Text};
use source::Store;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::change_log::{Lacking, heartbeat};
use crate::view::View;
use crate::whole::Whole;

/// Longest silence towards a follower; followers give up after 30 s.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Pieces on their way to a follower; a slow one holds this many, and the log waits for nobody.
const PIECES_MAX: usize = 4;

/// Starts sending to a follower that has the revision `known`; `None` when there are no data yet. `live_clients` says that
/// the source is the engine of this host.
///
/// Sending ends with the service, or when the receiver is dropped.
pub(crate) fn start(
    views: Arc<Store<View>>,
    known: Option<String>,
    live_clients: bool,
    counted: impl Send + 'static,
    stop: CancellationToken,
) -> Option<Receiver<Bytes>> {
    if matches!(views.load().log.lacking(None), Lacking::NoData) {
        return None;
    }
    let (pieces, receiver) = channel(PIECES_MAX);
    tokio::spawn(async move {
        let _counted = counted;
        stop.run_until_cancelled(send(&views, known, live_clients, &pieces)).await;
    });
    Some(receiver)
}

/// Sends everything; `None` when the follower is gone.
async fn send_whole(revision: Text, snapshot: Arc<Snapshot>, pieces: &Sender<Bytes>) -> Option<()> {
    let begin = move || Whole::new(revision, &snapshot);
    let mut whole = tokio::task::spawn_blocking(begin).await.ok()?;
    loop {
        // Writing 100,000 containers takes half a second, which this thread owes to others.
        let write = move || (whole.next(), whole);
        let (line, rest) = tokio::task::spawn_blocking(write).await.ok()?;
        let Some(line) = line else { return Some(()) };
        pieces.send(line.into()).await.ok()?;
        whole = rest;
    }
}

/// Sends until the follower is gone.
async fn send(views: &Store<View>, mut known: Option<String>, live_clients: bool, pieces: &Sender<Bytes>) {
    // First watch, then look: a publication in between is seen twice, never missed.
    let mut watcher = views.watch();
    // A follower has to know at once whether clients are live, not after the first silence.
    let mut announces = live_clients;
    loop {
        watcher.seen();
        let lacking = views.load().log.lacking(known.as_deref());
        let (revision, lines) = match lacking {
            // The log never loses its data again; nothing is better than something wrong.
            Lacking::NoData => return,
            Lacking::Nothing(revision) => {
                announces = false;
                let line = vec![heartbeat(&revision, live_clients).into()];
                (revision, line)
            }
            Lacking::Lines(revision, lines) => (revision, lines),
            Lacking::Everything(revision, snapshot) => {
                if send_whole(revision.clone(), snapshot, pieces).await.is_none() {
                    return;
                }
                (revision, Vec::new())
            }
        };
        for line in lines {
            if pieces.send(line).await.is_err() {
                return;
            }
        }
        known = Some(revision.to_string());
        if std::mem::take(&mut announces) && pieces.send(heartbeat(&revision, live_clients).into()).await.is_err() {
            return;
        }
        tokio::select! {
            // An error means that the time is over: a heartbeat is due.
            _ = timeout(HEARTBEAT_INTERVAL, watcher.changed()) => {}
            () = pieces.closed() => return,
        }
    }
}
