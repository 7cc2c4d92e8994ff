//! The change stream (`GET /v1/changes`): to each follower what it lacks, then what changes as it changes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use source::Store;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::change_log::{Lacking, everything, heartbeat};
use crate::view::View;

/// Longest silence towards a follower; followers give up after 30 s.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Pieces on their way to a follower; a slow one holds this many, and the log waits for nobody.
const PIECES_MAX: usize = 4;

/// Starts sending to a follower that has the revision `known`; `None` when there are no data yet.
///
/// Sending ends with the service, or when the receiver is dropped.
pub(crate) fn start(
    views: Arc<Store<View>>,
    known: Option<String>,
    counted: impl Send + 'static,
    stop: CancellationToken,
) -> Option<Receiver<Bytes>> {
    if matches!(views.load().log.lacking(None), Lacking::NoData) {
        return None;
    }
    let (pieces, receiver) = channel(PIECES_MAX);
    tokio::spawn(async move {
        let _counted = counted;
        stop.run_until_cancelled(send(&views, known, &pieces)).await;
    });
    Some(receiver)
}

/// Sends until the follower is gone.
async fn send(views: &Store<View>, mut known: Option<String>, pieces: &Sender<Bytes>) {
    // First watch, then look: a publication in between is seen twice, never missed.
    let mut watcher = views.watch();
    loop {
        watcher.seen();
        let lacking = views.load().log.lacking(known.as_deref());
        let (revision, lines) = match lacking {
            // The log never loses its data again; nothing is better than something wrong.
            Lacking::NoData => return,
            Lacking::Nothing(revision) => {
                let line = vec![heartbeat(&revision).into()];
                (revision, line)
            }
            Lacking::Lines(revision, lines) => (revision, lines),
            Lacking::Everything(revision, snapshot) => {
                let written = revision.clone();
                // Writing 100,000 containers takes a second, which this thread owes to others.
                let lines = tokio::task::spawn_blocking(move || everything(&written, &snapshot)).await;
                let Ok(lines) = lines else { return };
                (revision, lines.into_iter().map(Bytes::from).collect())
            }
        };
        for line in lines {
            if pieces.send(line).await.is_err() {
                return;
            }
        }
        known = Some(revision.to_string());
        tokio::select! {
            // An error means that the time is over: a heartbeat is due.
            _ = timeout(HEARTBEAT_INTERVAL, watcher.changed()) => {}
            () = pieces.closed() => return,
        }
    }
}
