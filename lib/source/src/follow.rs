//! Follows a source; on failure the last good snapshot stays published.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use model::Snapshot;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::backoff::{Backoff, jittered};
use crate::cluster_file::{self, ClusterFile};
use crate::file::{FollowedFile, Reader, Reply};
use crate::metadata::{MetadataAddress, MetadataClient, MetadataError};
use crate::session::Session;
use crate::state::{self, StateDir};
use crate::status::Readiness;
use crate::store::{Revision, Store};

/// Waits between tries to reach a metadata service: it is near, so the first tries cost little, and its
/// restart should not be noticed.
const METADATA_BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(8));

/// Wait for a metadata service that lives but has no data yet: it reads a large cluster, which takes seconds, and
/// longer and longer waits would double them.
const NO_DATA_WAIT: Duration = Duration::from_millis(200);

/// How long a source over the network may take to answer at start before the stored snapshot is served.
const GRACE: Duration = Duration::from_millis(100);

/// Most reloads that may be waiting at a time; they are served together.
const RELOADS_MAX: usize = 16;

/// The part of the readiness that a source speaks for.
const PART: &str = "source";

/// Where snapshots come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A cluster file.
    File(PathBuf),
    /// A metadata service.
    Metadata(MetadataAddress),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Metadata(address) => write!(f, "metadata service {address}"),
        }
    }
}

impl FromStr for Source {
    type Err = String;

    /// Parses `file:PATH` or `metadata:HOST[:PORT]`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            Some(("metadata", address)) => Ok(Self::Metadata(address.parse()?)),
            _ => Err(format!("{text:?} is no source; expected file:PATH or metadata:HOST[:PORT]")),
        }
    }
}

/// A source that is being followed. Dropping this stops following; what was published stays.
#[derive(Debug)]
pub struct Following {
    /// What the source said last.
    pub snapshots: Arc<Store<Snapshot>>,
    reload: Reload,
    tasks: JoinSet<()>,
}

/// Starts following `source`.
///
/// Returns at once; a source that is away is tried again and again, and `readiness` has the reason.
///
/// # Errors
///
/// Fails if the system refuses a thread.
pub fn follow(source: Source, state: Option<StateDir>, readiness: Arc<Readiness>) -> std::io::Result<Following> {
    let snapshots = Arc::new(Store::new(Snapshot::default()));
    let (reload, requests) = Reload::channel();
    let mut tasks = JoinSet::new();
    if let Some(state) = &state {
        tasks.spawn(state::keep_snapshots(state.clone(), snapshots.clone()));
    }
    let kept = StoredSnapshot { state, snapshots: snapshots.clone() };
    match source {
        Source::File(path) => {
            let mut cluster = ClusterFile::new(snapshots.clone());
            let reader: Reader = Box::new(move |path, bytes| cluster.accept(path, bytes));
            let file = FollowedFile::start(path, PART, readiness, reader, move || kept.publish())?;
            tasks.spawn(relay(file, requests, snapshots.clone()));
        }
        Source::Metadata(server) => {
            readiness.not_ready(PART, format!("{server} was not read yet"));
            tasks.spawn(follow_metadata(server, kept, readiness, requests));
        }
    }
    Ok(Following::new(snapshots, reload, tasks))
}

impl Following {
    /// A source that `tasks` follow, publishing into `snapshots` and answering the requests of `reload`.
    pub fn new(snapshots: Arc<Store<Snapshot>>, reload: Reload, tasks: JoinSet<()>) -> Self {
        Self { snapshots, reload, tasks }
    }

    /// A handle to ask for reloads.
    pub fn reload(&self) -> Reload {
        self.reload.clone()
    }

    /// Stops following and waits until nothing runs any more.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Asks a source to be read again.
#[derive(Clone, Debug)]
pub struct Reload(mpsc::Sender<Reply>);

/// Where the requests of a [`Reload`] arrive.
pub type ReloadRequests = mpsc::Receiver<Reply>;

impl Reload {
    /// A handle, and where its requests arrive.
    pub fn channel() -> (Self, ReloadRequests) {
        let (requests, arriving) = mpsc::channel(RELOADS_MAX);
        (Self(requests), arriving)
    }

    /// Reads the source again; returns when everything that follows from it is visible.
    ///
    /// # Errors
    ///
    /// Fails if the source could not be read; the last good snapshot stays.
    pub async fn request(&self) -> Result<(), String> {
        let (reply, answer) = oneshot::channel();
        self.0.send(reply).await.map_err(|_| "stopping".to_owned())?;
        answer.await.unwrap_or_else(|_| Err("stopping".into()))
    }
}

/// Passes requests on to the thread of a file, and answers when all views have caught up.
pub async fn relay<T>(file: FollowedFile, mut requests: ReloadRequests, published: Arc<Store<T>>) {
    while let Some(request) = requests.recv().await {
        let (reply, answer) = oneshot::channel();
        file.reload(reply);
        let outcome = answer.await.unwrap_or_else(|_| Err("the file is not followed any more".into()));
        if outcome.is_ok() {
            published.settled().await;
        }
        let _ = request.send(outcome);
    }
    // Stopped from outside: follow the file until then.
    std::future::pending::<()>().await;
}

/// The snapshot that was stored on disk.
#[derive(Debug)]
pub struct StoredSnapshot {
    /// Where it is stored, if anywhere.
    pub state: Option<StateDir>,
    /// Where it is published.
    pub snapshots: Arc<Store<Snapshot>>,
}

impl StoredSnapshot {
    /// Publishes it after a short grace, in which the source may answer: clients that wait at start get something soon.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn publish_after_grace(self) {
        tokio::time::sleep(GRACE).await;
        let _ = tokio::task::spawn_blocking(move || self.publish()).await;
    }

    /// Publishes it, when there is one and nothing better. Blocks.
    fn publish(&self) {
        if self.snapshots.revision() > Revision::NONE {
            return;
        }
        if let Some(snapshot) = self.state.as_ref().and_then(StateDir::load) {
            info!(containers = snapshot.containers.len(), "serving the snapshot stored on disk");
            cluster_file::publish_read(&self.snapshots, snapshot);
        }
    }
}

async fn follow_metadata(
    server: MetadataAddress,
    kept: StoredSnapshot,
    readiness: Arc<Readiness>,
    mut requests: ReloadRequests,
) {
    let snapshots = kept.snapshots.clone();
    let mut session = Session::new(MetadataClient::new(server), snapshots.clone());
    let mut backoff = Backoff::new(METADATA_BACKOFF.0, METADATA_BACKOFF.1);
    let (mut failing, mut ever_good) = (None, false);
    let mut replies: Vec<Reply> = Vec::new();
    // Clients that wait at start get the stored snapshot after a short grace, and the current one as soon as there is
    // one.
    let grace = tokio::spawn(kept.publish_after_grace());
    let _grace = AbortOnDrop(grace);
    loop {
        let mut starting = false;
        let result = tokio::select! {
            outcome = session.next() => outcome.map_err(|error| {
                starting = matches!(error, MetadataError::NoData { .. });
                error.to_string()
            }),
            request = requests.recv() => {
                let Some(request) = request else { return };
                replies.push(request);
                session.restart();
                continue;
            }
        };
        match &result {
            Ok(()) => {
                if failing.take().is_some() {
                    let back = if ever_good { "is back" } else { "answers" };
                    info!("the metadata service {back}");
                }
                ever_good = true;
                backoff.reset();
                readiness.ready(PART);
                if !replies.is_empty() {
                    snapshots.settled().await;
                }
            }
            Err(error) => {
                if failing.as_ref() != Some(error) {
                    let nothing = snapshots.revision() == Revision::NONE;
                    warn!(%error, "{}", if nothing { "nothing to serve yet" } else { "keeping the last good snapshot" });
                }
                readiness.not_ready(PART, error.clone());
                failing = Some(error.clone());
            }
        }
        for reply in replies.drain(..) {
            let _ = reply.send(result.clone());
        }
        if result.is_err() {
            tokio::select! {
                () = tokio::time::sleep(if starting { jittered(NO_DATA_WAIT) } else { backoff.wait() }) => {}
                request = requests.recv() => {
                    let Some(request) = request else { return };
                    replies.push(request);
                    session.restart();
                }
            }
        }
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
