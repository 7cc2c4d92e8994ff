//! Makes snapshots of the documents of this host and of the other hosts, as they arrive.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use model::{Defect, Map, Snapshot, Text};
use source::{Follower, Revision, Store, Watcher};
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info, warn};

use crate::etcd::{Batch, PartChange};
use crate::host::HostDocument;
use crate::merge::{Cluster, Resolved};
use crate::metrics::Metrics;

/// Most defects of one part that are logged one by one.
const LOGGED_DEFECTS_MAX: usize = 20;

/// The document of this host.
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

/// The sources of the cluster, and where the snapshots go.
#[derive(Debug)]
pub(crate) struct Assembly {
    /// This host's own document replaces what others publish of it: a change here is visible here even without
    /// a connection to the others.
    pub(crate) local: Option<Local>,
    /// The documents of the others.
    pub(crate) batches: Option<mpsc::Receiver<Batch>>,
    /// What they lead to.
    pub(crate) snapshots: Arc<Store<Snapshot>>,
    /// Where defects are counted.
    pub(crate) metrics: Metrics,
}

impl Assembly {
    /// Publishes a snapshot after each change. Never ends; drop it to stop.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time: a snapshot is published whole or not at all.
    pub(crate) async fn run(mut self) {
        let mut state = ClusterState { restored: self.batches.is_some(), ..ClusterState::default() };
        loop {
            let (changes, answer) = tokio::select! {
                batch = next(&mut self.batches) => {
                    state.restored = batch.restored;
                    (state.of_others(batch.changes), Answer::Batch(batch.done))
                }
                (revision, document) = changed(&mut self.local) => {
                    (vec![state.of_this_host(&document)], Answer::Local(revision))
                }
            };
            // Off this thread: after a lost connection everything may come at once.
            let (snapshots, metrics) = (self.snapshots.clone(), self.metrics.clone());
            let applied = tokio::task::spawn_blocking(move || {
                for change in changes {
                    state.apply(change);
                }
                state.report_disputes();
                metrics.defects.set(state.defects());
                source::publish(&snapshots, state.snapshot());
                state
            });
            state = match applied.await {
                Ok(state) => state,
                // Only publishing can have failed. The snapshot before stays, which beats a cluster with holes.
                Err(failure) => {
                    error!(%failure, "the cluster cannot be put together any more");
                    return std::future::pending().await;
                }
            };
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
}

/// Whom to notify once a change is visible.
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
        // There is no source of others, or not any more.
        None => std::future::pending().await,
    }
}

async fn changed(local: &mut Option<Local>) -> (Revision, Arc<HostDocument>) {
    let Some(local) = local else { return std::future::pending().await };
    local.watcher.changed().await;
    (local.watcher.seen(), local.documents.load_full())
}

/// All reports merged so far.
#[derive(Debug, Default)]
pub(crate) struct ClusterState {
    cluster: Cluster,
    /// The part of this host, once it is known.
    own: Option<Text>,
    /// Whether etcd has not answered yet.
    restored: bool,
    /// What was reported of each part, which is not reported again.
    reported: HashMap<Text, Vec<Defect>>,
    /// The same of what several parts say.
    disputes: HashMap<Text, Vec<Defect>>,
}

impl ClusterState {
    /// The document of this host as a change; from now on no other report of this host counts.
    pub(crate) fn of_this_host(&mut self, document: &HostDocument) -> PartChange {
        let part = Text::from(format!("hosts/{}", document.host));
        if self.own.as_ref() != Some(&part) {
            if let Some(before) = self.own.replace(part.clone()) {
                info!(%before, now = %part, "this host has another name");
                self.cluster.forget(&before);
            }
            self.cluster.set_local(&part);
        }
        let (document, defects) = (Some(document.document.clone()), document.defects.clone());
        PartChange { part, document, defects, resolved: None }
    }

    /// The changes of others, without those about this host.
    pub(crate) fn of_others(&self, changes: Vec<PartChange>) -> Vec<PartChange> {
        changes.into_iter().filter(|change| self.own.as_ref() != Some(&change.part)).collect()
    }

    pub(crate) fn apply(&mut self, PartChange { part, document, mut defects, resolved }: PartChange) {
        match document {
            Some(document) => defects.extend(self.merge(&part, &document, resolved)),
            None => self.cluster.forget(&part),
        }
        report(&mut self.reported, part, defects);
    }

    /// All of it merged.
    pub(crate) fn snapshot(&mut self) -> Snapshot {
        Snapshot { restored: self.restored, ..self.cluster.snapshot() }
    }

    /// Reports what several parts say and one alone can have, which may follow from a change of any part.
    fn report_disputes(&mut self) {
        let Some(mut found) = self.cluster.disputes() else { return };
        let over: Vec<_> = self.disputes.keys().filter(|part| !found.contains_key(*part)).cloned().collect();
        found.extend(over.into_iter().map(|part| (part, Vec::new())));
        for (part, defects) in found {
            report(&mut self.disputes, part, defects);
        }
    }

    /// How much is left out or ignored now.
    fn defects(&self) -> i64 {
        let all = self.reported.values().chain(self.disputes.values());
        i64::try_from(all.map(Vec::len).sum::<usize>()).unwrap_or(i64::MAX)
    }

    /// A document that cannot be resolved, or panics, harms only its own part.
    fn merge(&mut self, part: &Text, document: &Map, resolved: Option<Resolved>) -> Vec<Defect> {
        let merge = || match resolved {
            Some(resolved) => Ok(self.cluster.take_in(part, resolved)),
            None => self.cluster.update(part, document),
        };
        match catch_unwind(AssertUnwindSafe(merge)) {
            Ok(Ok(defects)) => defects,
            Ok(Err(refusal)) => {
                vec![Defect::ignored(part.to_string(), format!("{refusal}; what it said before stays"))]
            }
            Err(_) => vec![Defect::ignored(part.to_string(), "reading it panicked; what it said before stays")],
        }
    }
}

/// Logs what is new of a part's defects; `reported` are those of before.
fn report(reported: &mut HashMap<Text, Vec<Defect>>, part: Text, defects: Vec<Defect>) {
    let known = reported.get(&part).map_or(&[][..], |known| known);
    let fresh = defects.iter().filter(|defect| !known.contains(defect));
    for defect in fresh.clone().take(LOGGED_DEFECTS_MAX) {
        warn!(%part, "{defect}");
    }
    let more = fresh.count().saturating_sub(LOGGED_DEFECTS_MAX);
    if more > 0 {
        warn!(%part, more, "further defects");
    }
    if defects.is_empty() {
        reported.remove(&part);
    } else {
        reported.insert(part, defects);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::{Entity as _, Value};

    use super::*;

    fn document(host: &str, container: &str) -> Map {
        let text = format!(
            r#"{{"hosts": [{{"name": "{host}"}}], "containers": [{{"name": "{container}", "host": "{host}"}}]}}"#
        );
        serde_json::from_str::<Value>(&text).unwrap().as_map().unwrap().clone()
    }

    fn names(snapshots: &Store<Snapshot>) -> Vec<String> {
        let mut names: Vec<_> =
            snapshots.load_full().containers.values().map(|container| container.name().unwrap().to_string()).collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn this_host_speaks_for_itself_and_others_for_themselves() {
        let documents = Arc::new(Store::new(HostDocument::default()));
        let snapshots = Arc::new(Store::new(Snapshot::default()));
        let (batches, arriving) = mpsc::channel(1);
        let local = Some(Local::new(documents.clone()));
        let metrics = Metrics::default();
        let (batches_of_others, state) = (Some(arriving), snapshots.clone());
        let assembly = Assembly { local, batches: batches_of_others, snapshots: state, metrics: metrics.clone() };
        let running = tokio::spawn(assembly.run());
        let merge = |changes: Vec<(&str, Option<Map>)>| {
            let change = |(part, document): (&str, Option<Map>)| PartChange {
                part: part.into(),
                document,
                ..PartChange::default()
            };
            let (done, state) = oneshot::channel();
            let batch = Batch { changes: changes.into_iter().map(change).collect(), restored: false, done: Some(done) };
            let batches = batches.clone();
            async move {
                batches.send(batch).await.unwrap();
                tokio::time::timeout(Duration::from_secs(10), state).await.unwrap().unwrap();
            }
        };
        merge(vec![("hosts/a", Some(document("a", "stale"))), ("hosts/b", Some(document("b", "web")))]).await;
        assert_eq!(names(&snapshots), ["stale", "web"]);
        let own = HostDocument { host: "a".into(), document: document("a", "fresh"), ..HostDocument::default() };
        documents.publish(Arc::new(own));
        documents.settled().await;
        assert_eq!(names(&snapshots), ["fresh", "web"]);
        merge(vec![("hosts/a", None), ("hosts/b", Some(Map::default())), ("hosts/c", Some(document("c", "db")))]).await;
        // What is no cluster changes nothing of its part.
        assert_eq!(names(&snapshots), ["db", "fresh", "web"]);
        assert_eq!(metrics.defects.get(), 1);
        merge(vec![("hosts/b", None)]).await;
        assert_eq!(metrics.defects.get(), 0);
        assert_eq!(names(&snapshots), ["db", "fresh"]);
        running.abort();
    }
}
