//! Hosts that publish in etcd and who follows them, in this process, as agents do.
//!
//! Leases are short here, so that they run out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use etcd::{EtcdClient, EtcdOptions};
use live::HostDocument;
use live::etcd::{Batch, Identity, Publishing, follow, publish};
use live::leave::Leave;
use live::metrics::Metrics;
use model::Map;
use serde_json::json;
use source::follow::Reload;
use source::{Readiness, StateDir, Store};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::wait::scaled;

/// The lease of the hosts, in seconds.
pub const LEASE: u64 = 4;

/// How long a host is shown after its key has gone, in seconds.
pub const GRACE: u64 = 5;

/// Longest wait for something that takes a moment.
pub const SOON: Duration = Duration::from_secs(5);

/// Longest wait for a host to go, or for etcd to be found again.
pub const LATE: Duration = Duration::from_secs(30);

/// How the hosts use etcd.
pub fn options(urls: &str) -> EtcdOptions {
    EtcdOptions { lease: Duration::from_secs(LEASE), ..EtcdOptions::parse(urls).expect("what etcd says of itself") }
}

/// A client of these members.
pub fn client(urls: &str) -> EtcdClient {
    EtcdClient::new(options(urls)).expect("options that work")
}

/// A host's document with these containers.
pub fn document(host: &str, containers: &[&str]) -> HostDocument {
    let containers: Vec<_> =
        containers.iter().map(|name| json!({"name": name, "host": host, "primary_ip": "10.42.0.7"})).collect();
    let document = json!({
        "berth": 1, "host": host, "environment": {"name": "test"},
        "hosts": [{"name": host, "agent_ip": "192.0.2.1"}], "containers": containers,
        "services": [{"name": "web", "stack": "shop"}], "networks": [{"name": "nat"}],
    });
    let document: Map = serde_json::from_value(document).expect("a document is a map");
    HostDocument { host: host.into(), document, ..HostDocument::default() }
}

/// A host that publishes. Dropping it is a crash.
#[derive(Debug)]
pub struct Host {
    documents: Arc<Store<HostDocument>>,
    readiness: Arc<Readiness>,
    leave: Leave,
    /// What it counts.
    pub metrics: Metrics,
    task: JoinHandle<()>,
}

impl Host {
    /// One that publishes this document by a client and as somebody.
    pub fn start(runtime: &Runtime, client: EtcdClient, identity: Identity, document: HostDocument) -> Self {
        let documents = Arc::new(Store::new(HostDocument::default()));
        documents.publish(Arc::new(document));
        let readiness = Arc::new(Readiness::default());
        let ((leave, leaving), metrics) = (Leave::channel(), Metrics::default());
        let publishing = Publishing { identity, leaving, metrics: metrics.clone(), exchange: None };
        let task = runtime.spawn(publish(client, documents.clone(), publishing, readiness.clone()));
        Self { documents, readiness, leave, metrics, task }
    }

    /// One with an identity of its own, which has these containers.
    pub fn new(runtime: &Runtime, urls: &str, name: &str, containers: &[&str]) -> Self {
        Self::start(
            runtime,
            client(urls),
            Identity::open(None).expect("one for this life only"),
            document(name, containers),
        )
    }

    /// Publishes another document from now on.
    pub fn says(&self, document: HostDocument) {
        self.documents.publish(Arc::new(document));
    }

    /// Why it is not published.
    pub fn trouble(&self) -> Option<String> {
        self.readiness.reasons().get("publish").cloned()
    }

    /// Whether it is published, for `eventually`.
    pub fn is_published(&self) -> Option<()> {
        self.trouble().is_none().then_some(())
    }

    /// Stops as it should, with a word to the others.
    pub fn leave(mut self, runtime: &Runtime) {
        runtime.block_on(self.leave.request()).expect("etcd is told");
        runtime.block_on(&mut self.task).expect("it ends well");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a follower was told.
#[derive(Debug, Default)]
pub struct Told {
    /// The parts that there are.
    pub parts: BTreeMap<String, Map>,
    defects: BTreeMap<String, Vec<String>>,
    /// Parts that went, in order.
    pub gone: Vec<String>,
    /// Every set of containers of a part that was ever shown.
    pub shown: Vec<(String, String)>,
}

/// Somebody who follows what hosts publish. Dropping it ends that.
#[derive(Debug)]
pub struct Follower {
    told: Arc<Mutex<Told>>,
    readiness: Arc<Readiness>,
    /// Asks for reading everything again.
    pub reload: Reload,
    task: JoinHandle<()>,
}

impl Follower {
    /// One who may keep what it knows.
    pub fn start(runtime: &Runtime, client: EtcdClient, state: Option<StateDir>) -> Self {
        let (sender, mut receiver) = mpsc::channel::<Batch>(4);
        let (reload, requests) = Reload::channel();
        let readiness = Arc::new(Readiness::default());
        let told = Arc::new(Mutex::new(Told::default()));
        runtime.spawn({
            let told = told.clone();
            async move {
                while let Some(batch) = receiver.recv().await {
                    lock(&told).hear(batch);
                }
            }
        });
        let task = runtime.spawn(follow(client, state, sender, readiness.clone(), requests));
        Self { told, readiness, reload, task }
    }

    /// One who follows everything.
    pub fn new(runtime: &Runtime, urls: &str) -> Self {
        Self::start(runtime, client(urls), None)
    }

    /// The parts, each with its containers: `hosts/a:x,y`.
    pub fn parts(&self) -> String {
        let told = self.told();
        told.parts.iter().map(|(part, document)| format!("{part}:{}", names(document))).collect::<Vec<_>>().join(" ")
    }

    /// Waits until the parts are these. Gives the time that it took.
    pub fn sees(&self, expected: &str) -> Duration {
        self.sees_within(SOON, expected)
    }

    /// The same with a limit, which is scaled.
    pub fn sees_within(&self, limit: Duration, expected: &str) -> Duration {
        let begun = Instant::now();
        while self.parts() != expected {
            let there = || format!("expected {expected}, but there is {} ({:?})", self.parts(), self.trouble());
            assert!(begun.elapsed() < scaled(limit), "{}", there());
            std::thread::sleep(Duration::from_millis(1));
        }
        begun.elapsed()
    }

    /// Why it is not ready.
    pub fn trouble(&self) -> Option<String> {
        self.readiness.reasons().get("etcd").cloned()
    }

    /// Whether it is ready, for `eventually`.
    pub fn is_ready(&self) -> Option<()> {
        self.trouble().is_none().then_some(())
    }

    /// What it was told up to now.
    pub fn told(&self) -> MutexGuard<'_, Told> {
        lock(&self.told)
    }

    /// The parts that went, in order.
    pub fn gone(&self) -> Vec<String> {
        self.told().gone.clone()
    }

    /// What is wrong with a part.
    pub fn defects(&self, part: &str) -> Vec<String> {
        self.told().defects.get(part).cloned().unwrap_or_default()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Told {
    fn hear(&mut self, batch: Batch) {
        for change in batch.changes {
            let part = change.part.to_string();
            let defects = change.defects.iter().map(ToString::to_string).collect();
            self.defects.insert(part.clone(), defects);
            match change.document {
                Some(document) => {
                    // How old its keys are is the follower's to say, and changes with each lease.
                    let document = document.without("since");
                    if self.parts.get(&part) == Some(&document) {
                        continue;
                    }
                    self.shown.push((part.clone(), names(&document)));
                    self.parts.insert(part, document);
                }
                None => {
                    if self.parts.remove(&part).is_some() {
                        self.gone.push(part);
                    }
                }
            }
        }
        if let Some(done) = batch.done {
            let _ = done.send(());
        }
    }
}

fn names(document: &Map) -> String {
    let names = document.list("containers").iter().filter_map(|value| value.as_map()?.text("name"));
    names.map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// What hosts and followers run on.
pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads can be started")
}

/// Outages are as long as leases and graces make them: a slow machine needs no longer ones.
pub fn sleep(seconds: u64) {
    std::thread::sleep(Duration::from_secs(seconds));
}

/// A follower that panicked while it held the lock was told whole batches all the same.
fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}
