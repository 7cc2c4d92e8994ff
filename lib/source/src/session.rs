//! Following one metadata service: by its stream of changes where it has one, by its long poll where it has none.
//!
//! The stream costs what changes; the long poll reads everything again. After any failure the session starts again,
//! with the revision it has: the service then sends what is missing, or everything when it does not know that revision.

use std::sync::Arc;

use model::{ChangeLine, Snapshot, Text};
use tracing::{debug, warn};

use crate::cluster_file;
use crate::metadata::{ChangeStream, MetadataClient, MetadataError};
use crate::store::Store;

/// A conversation with a metadata service.
pub(crate) struct Session {
    client: MetadataClient,
    snapshots: Arc<Store<Snapshot>>,
    /// The last complete change of the stream: its revision, and the snapshot it led to.
    known: Option<(Text, Arc<Snapshot>)>,
    phase: Phase,
}

enum Phase {
    /// Nothing was asked yet.
    New,
    /// The service streams changes.
    Stream { stream: Box<ChangeStream>, building: Option<Box<Snapshot>> },
    /// The service has no such stream; the version read last.
    Poll { version: Option<String> },
}

impl Session {
    pub(crate) fn new(client: MetadataClient, snapshots: Arc<Store<Snapshot>>) -> Self {
        Self { client, snapshots, known: None, phase: Phase::New }
    }

    /// Reads everything again with the next call of [`Session::next`].
    pub(crate) fn restart(&mut self) {
        self.known = None;
        self.phase = Phase::New;
    }

    /// Waits for the service to send something and publishes it; `Ok` means that the current state is published.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time, since a change is published whole or not at all; [`Session::restart`] it then.
    pub(crate) async fn next(&mut self) -> Result<(), MetadataError> {
        let outcome = self.step().await;
        if outcome.is_err() {
            self.phase = Phase::New;
        }
        outcome
    }

    async fn step(&mut self) -> Result<(), MetadataError> {
        loop {
            match &mut self.phase {
                Phase::New => {
                    let known = self.known.as_ref().map(|(revision, _)| &**revision);
                    if let Some(stream) = self.client.changes(known).await? {
                        self.phase = Phase::Stream { stream: Box::new(stream), building: None };
                    } else {
                        debug!("no stream of changes; following the version");
                        self.known = None;
                        self.snapshots.set_live_clients(false);
                        self.phase = Phase::Poll { version: None };
                    }
                }
                Phase::Stream { stream, building } => match stream.next().await? {
                    ChangeLine::Heartbeat { revision, live_clients } => {
                        if self.known.as_ref().is_none_or(|(known, _)| *known != revision) {
                            return Err(stream.wrong("a heartbeat of a revision that was not sent".into()));
                        }
                        self.snapshots.set_live_clients(live_clients);
                        return Ok(());
                    }
                    ChangeLine::Change { revision, from, delta, more } => {
                        let base = match (building.take(), &from, &self.known) {
                            (Some(building), ..) => *building,
                            (None, None, _) => Snapshot::default(),
                            (None, Some(from), Some((known, snapshot))) if from == known => Snapshot::clone(snapshot),
                            (None, Some(_), _) => {
                                self.known = None;
                                return Err(stream.wrong("a change that starts from another revision".into()));
                            }
                        };
                        let next = delta.apply(&base).map_err(|error| stream.wrong(error.to_string()));
                        let next = next.inspect_err(|_| self.known = None)?;
                        if more {
                            *building = Some(Box::new(next));
                            continue;
                        }
                        let whole = from.is_none();
                        let next = publish(&self.snapshots, next, whole).await;
                        self.known = Some((revision, next));
                        return Ok(());
                    }
                },
                Phase::Poll { version } => {
                    if let Some(known) = version {
                        self.client.changed(known).await?;
                    }
                    let (snapshot, defects) = self.client.read().await?;
                    for defect in defects {
                        warn!("{defect}");
                    }
                    *version = Some(snapshot.source_version.to_string());
                    publish(&self.snapshots, snapshot, true).await;
                    return Ok(());
                }
            }
        }
    }
}

/// Publishes a snapshot; one that was read `whole` is compared with the current one and shares with it what stayed.
///
/// Returns the snapshot that is current then. Off this thread, since comparing and freeing a large snapshot takes
/// milliseconds that it may owe to others.
async fn publish(snapshots: &Arc<Store<Snapshot>>, snapshot: Snapshot, whole: bool) -> Arc<Snapshot> {
    let store = snapshots.clone();
    let publishing = move || {
        if whole {
            cluster_file::publish_read(&store, snapshot);
        } else {
            drop(store.publish(Arc::new(snapshot)));
        }
        store.load_full()
    };
    match tokio::task::spawn_blocking(publishing).await {
        Ok(current) => current,
        Err(_) => snapshots.load_full(),
    }
}
