//! Making snapshots of what this host's engine and the other hosts tell, as it comes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use model::{Defect, Snapshot, Text};
use source::{Follower, Revision, Store, Watcher};
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info, warn};

use crate::host::HostDocument;
use crate::merge::Cluster;
use crate::part::{Batch, PartChange, Parts};

/// Most defects of one part that are logged one by one.
const LOGGED_DEFECTS_MAX: usize = 20;

/// What this host's engine tells.
#[derive(Debug)]
pub(crate) struct Local {
    documents: Arc<Store<HostDocument>>,
    watcher: Watcher,
    follower: Follower,
}

impl Local {
    pub(crate) fn new(documents: Arc<Store<HostDocument>>) -> Self {
        Self { watcher: documents.watch(), follower: documents.follower(), documents }
    }
}

/// What is known of the cluster at start, who tells of it, and where it goes.
#[derive(Debug)]
pub(crate) struct Assembly {
    /// Kept from an earlier run.
    pub(crate) kept: Parts,
    /// What this host tells replaces what the others were told of it: a change here is visible here whatever becomes of
    /// the way to the others.
    pub(crate) local: Option<Local>,
    /// What the others tell.
    pub(crate) batches: Option<mpsc::Receiver<Batch>>,
    /// Documents of all parts, for the next start.
    pub(crate) parts: Arc<Store<Parts>>,
    /// What they lead to.
    pub(crate) snapshots: Arc<Store<Snapshot>>,
}

impl Assembly {
    /// Publishes a snapshot after each change. Never ends; drop it to stop.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time: a snapshot is published whole or not at all.
    pub(crate) async fn run(mut self) {
        let mut told = Told::default();
        if !self.kept.is_empty() {
            info!(parts = self.kept.len(), "beginning with what was kept on disk");
            told.parts = std::mem::take(&mut self.kept);
            told = self.apply(told, Vec::new(), false).await;
        }
        loop {
            let (changes, whole, answer) = tokio::select! {
                batch = next(&mut self.batches) => {
                    let others = batch.changes.into_iter().filter(|change| told.own.as_ref() != Some(&change.part));
                    (others.collect(), batch.whole, Answer::Batch(batch.done))
                }
                (revision, document) = changed(&mut self.local) => {
                    (vec![told.local(&document)], false, Answer::Local(revision))
                }
            };
            told = self.apply(told, changes, whole).await;
            match answer {
                Answer::Batch(None) => {}
                Answer::Batch(Some(done)) => {
                    self.snapshots.settled().await;
                    let _ = done.send(());
                }
                Answer::Local(revision) => {
                    if let Some(local) = &self.local {
                        self.snapshots.settled().await;
                        local.follower.reached(revision);
                    }
                }
            }
        }
    }

    /// Takes changes over and publishes what they lead to, off this thread: after a lost connection everything may come
    /// at once.
    async fn apply(&self, mut told: Told, changes: Vec<PartChange>, whole: bool) -> Told {
        let (parts, own) = (told.parts.clone(), told.own.clone());
        let (snapshots, store) = (self.snapshots.clone(), self.parts.clone());
        let applied = tokio::task::spawn_blocking(move || {
            told.apply(changes, whole);
            source::publish(&snapshots, told.cluster.snapshot());
            drop(store.publish(Arc::new(told.parts.clone())));
            told
        });
        applied.await.unwrap_or_else(|_| {
            error!("putting the cluster together failed; what it was before stays until the next change");
            Told { parts, own, ..Told::default() }
        })
    }
}

/// Whom to tell that a change is visible.
enum Answer {
    Batch(Option<oneshot::Sender<()>>),
    Local(Revision),
}

async fn next(batches: &mut Option<mpsc::Receiver<Batch>>) -> Batch {
    let batch = match batches {
        Some(batches) => batches.recv().await,
        None => None,
    };
    match batch {
        Some(batch) => batch,
        // Nobody tells of others, or not any more.
        None => std::future::pending().await,
    }
}

async fn changed(local: &mut Option<Local>) -> (Revision, Arc<HostDocument>) {
    let Some(local) = local else { return std::future::pending().await };
    local.watcher.changed().await;
    (local.watcher.seen(), local.documents.load_full())
}

/// What was told so far.
#[derive(Debug, Default)]
struct Told {
    cluster: Cluster,
    /// The documents of which the cluster is made, or is to be made when it has none yet.
    parts: Parts,
    /// The name of this host, once it is known.
    own: Option<Text>,
    /// What was reported of each part, which is not reported again.
    reported: HashMap<Text, Vec<Defect>>,
}

impl Told {
    /// What the engine of this host tells, as a change; from now on nobody else speaks for this host.
    fn local(&mut self, document: &HostDocument) -> PartChange {
        if self.own.as_ref() != Some(&document.host) {
            if let Some(before) = self.own.replace(document.host.clone()) {
                info!(%before, now = %document.host, "this host has another name");
                self.cluster.forget(&before);
                self.parts.remove(&before);
            }
            self.cluster.set_local(document.host.clone());
        }
        PartChange {
            part: document.host.clone(),
            document: Some(document.document.clone()),
            defects: document.defects.clone(),
        }
    }

    fn apply(&mut self, mut changes: Vec<PartChange>, whole: bool) {
        let is_own = |part: &Text, own: &Option<Text>| own.as_ref() == Some(part);
        if whole {
            let there: HashSet<_> = changes.iter().map(|change| change.part.clone()).collect();
            let gone = self.parts.keys().filter(|part| !there.contains(*part) && !is_own(part, &self.own));
            let gone = gone.map(|part| PartChange { part: part.clone(), document: None, defects: Vec::new() });
            changes.extend(gone.collect::<Vec<_>>());
        }
        // At start, and after a failure, the cluster is made of all parts that are known.
        if self.cluster.parts().next().is_none() {
            let known = self.parts.iter().map(|(part, document)| (part.clone(), document.clone()));
            let known =
                known.map(|(part, document)| PartChange { part, document: Some(document), defects: Vec::new() });
            changes.splice(0..0, known.collect::<Vec<_>>());
        }
        for change in changes {
            self.tell(change);
        }
    }

    fn tell(&mut self, PartChange { part, document, mut defects }: PartChange) {
        match document {
            Some(document) => match self.cluster.tell(&part, &document) {
                Ok(more) => {
                    defects.extend(more);
                    self.parts.insert(part.clone(), document);
                }
                Err(refusal) => defects.push(Defect::ignored("", format!("{refusal}; what it said before stays"))),
            },
            None => {
                self.cluster.forget(&part);
                self.parts.remove(&part);
            }
        }
        self.report(part, defects);
    }

    fn report(&mut self, part: Text, defects: Vec<Defect>) {
        let known = self.reported.get(&part).map_or(&[][..], |known| known);
        let fresh = defects.iter().filter(|defect| !known.contains(defect));
        for defect in fresh.clone().take(LOGGED_DEFECTS_MAX) {
            warn!(%part, "{defect}");
        }
        let more = fresh.count().saturating_sub(LOGGED_DEFECTS_MAX);
        if more > 0 {
            warn!(%part, more, "further defects");
        }
        if defects.is_empty() {
            self.reported.remove(&part);
        } else {
            self.reported.insert(part, defects);
        }
    }
}
