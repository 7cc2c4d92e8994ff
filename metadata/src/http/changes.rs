//! The change stream (`GET /v1/changes`): to each follower what it lacks, then what changes as it changes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use model::change_line::LINE_BYTES;
use model::{Snapshot, Text};
use source::Store;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::body::whole::whole;
use crate::change_log::{Lacking, heartbeat};
use crate::http::limits::Unread;
use crate::view::View;

/// Longest silence towards a follower; followers give up after 30 s.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Lines on their way to a follower, besides the one that is sent and the one that waits; the log waits for no follower.
const LINES_MAX: usize = 1;

/// How often a follower's next line asks for room, when all followers together have left too much unread.
const ROOM_INTERVAL: Duration = Duration::from_millis(50);

/// What sends to one follower.
#[derive(Debug)]
pub(crate) struct Follower {
    pub(crate) views: Arc<Store<View>>,
    /// Whether the source is the engine of this host.
    pub(crate) live_clients: bool,
    /// Those who write what takes time.
    pub(crate) writing: Arc<Semaphore>,
    pub(crate) unread: Arc<Mutex<Unread>>,
}

/// A line on its way to a follower.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) bytes: Bytes,
    /// Whether the follower had everything before.
    pub(crate) begins: bool,
    unread: Arc<Mutex<Unread>>,
}

/// Starts sending to a follower that has the revision `known`; `None` when there are no data yet.
///
/// Sending ends with the service, or when the receiver is dropped.
pub(crate) fn start(
    follower: Follower,
    known: Option<String>,
    counted: impl Send + 'static,
    stop: CancellationToken,
) -> Option<Receiver<Line>> {
    if matches!(follower.views.load().log.lacking(None), Lacking::NoData) {
        return None;
    }
    let (lines, receiver) = channel(LINES_MAX);
    tokio::spawn(async move {
        let _counted = counted;
        let sending = async {
            tokio::select! {
                _ = follower.send(known, &lines) => {}
                () = lines.closed() => {}
            }
        };
        stop.run_until_cancelled(sending).await;
    });
    Some(receiver)
}

impl Follower {
    /// Sends until the follower is gone.
    async fn send(&self, mut known: Option<String>, lines: &Sender<Line>) -> Option<()> {
        // First watch, then look: a publication in between is seen twice, never missed.
        let mut watcher = self.views.watch();
        // A follower has to know at once whether clients are live, not after the first silence.
        let mut announces = self.live_clients;
        loop {
            watcher.seen();
            let lacking = self.views.load().log.lacking(known.as_deref());
            let heartbeat = |revision: &Text| heartbeat(revision, self.live_clients).into();
            let (revision, rest) = match lacking {
                // The log never loses its data again; nothing is better than something wrong.
                Lacking::NoData => return None,
                Lacking::Nothing(revision) => {
                    announces = false;
                    let line = vec![heartbeat(&revision)];
                    (revision, line)
                }
                Lacking::Lines(revision, lines) => (revision, lines),
                Lacking::Everything(revision, snapshot) => {
                    self.send_whole(revision.clone(), snapshot, lines).await?;
                    (revision, Vec::new())
                }
            };
            let mut begins = true;
            for line in rest {
                self.send_line(line, std::mem::take(&mut begins), lines).await?;
            }
            if std::mem::take(&mut announces) {
                self.send_line(heartbeat(&revision), false, lines).await?;
            }
            known = Some(revision.to_string());
            // An error means that the time is over: a heartbeat is due.
            let _ = timeout(HEARTBEAT_INTERVAL, watcher.changed()).await;
        }
    }

    /// Sends everything; `None` when the follower is gone.
    async fn send_whole(&self, revision: Text, snapshot: Arc<Snapshot>, lines: &Sender<Line>) -> Option<()> {
        let mut whole = self.work(move || whole(revision, &snapshot)).await?;
        let mut begins = true;
        loop {
            // Room first: so many followers must not have a line written each that waits for it.
            self.take_room(LINE_BYTES).await;
            // Writing 100,000 containers takes half a second, which this thread owes to others.
            let (line, rest) = self.work(move || (whole.next(), whole)).await?;
            let length = line.as_ref().map_or(0, Vec::len);
            self.take_room(length.saturating_sub(LINE_BYTES)).await;
            lock(&self.unread).subtract(LINE_BYTES.saturating_sub(length));
            let Some(line) = line else {
                if rest.left_out() > 0 {
                    warn!(
                        entities = rest.left_out(),
                        "entities are too large for the stream of changes; followers lack them"
                    );
                }
                return Some(());
            };
            self.push(line.into(), std::mem::take(&mut begins), lines).await?;
            whole = rest;
        }
    }

    /// Sends a line when there is room for it.
    async fn send_line(&self, bytes: Bytes, begins: bool, lines: &Sender<Line>) -> Option<()> {
        self.take_room(bytes.len()).await;
        self.push(bytes, begins, lines).await
    }

    /// Sends a line that has its room.
    async fn push(&self, bytes: Bytes, begins: bool, lines: &Sender<Line>) -> Option<()> {
        lines.send(Line { bytes, begins, unread: self.unread.clone() }).await.ok()
    }

    /// Waits until so many bytes more may be unread, and counts them.
    async fn take_room(&self, bytes: usize) {
        loop {
            let added = lock(&self.unread).add(bytes);
            if added.is_ok() {
                return;
            }
            sleep(ROOM_INTERVAL).await;
        }
    }

    /// What `work` gives that takes time.
    async fn work<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let _permit = self.writing.acquire().await.ok()?;
        spawn_blocking(work).await.ok()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        lock(&self.unread).subtract(self.bytes.len());
    }
}

fn lock(unread: &Mutex<Unread>) -> MutexGuard<'_, Unread> {
    // Nothing in it panics while it is held.
    unread.lock().unwrap_or_else(PoisonError::into_inner)
}
