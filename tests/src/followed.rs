//! An engine followed in this process, as the agent of its host does.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine::{Certificates, Endpoint};
use live::{HostDocument, HostOptions};
use model::Snapshot;
use serde_json::Value;
use source::{Readiness, Reload, Store};
use tokio::runtime::Runtime;

use crate::engine::Engine;
use crate::eventually;

/// Longest wait for what an engine does in a moment.
const LIMIT: Duration = Duration::from_secs(30);

/// An engine being followed.
#[derive(Debug)]
pub struct Followed {
    /// What it was told.
    pub told: Arc<Store<HostDocument>>,
    readiness: Arc<Readiness>,
    reload: Reload,
    runtime: Runtime,
}

impl Followed {
    /// Begins to follow an engine.
    pub fn new(engine: &Engine) -> Self {
        Self::at_socket(&engine.socket())
    }

    /// Begins to follow what listens on a socket.
    pub fn at_socket(socket: &Path) -> Self {
        Self::at(format!("unix://{}", socket.display()).parse().expect("a path makes an endpoint"), None)
    }

    /// Begins to follow what is at an endpoint.
    pub fn at(endpoint: Endpoint, certificates: Option<Certificates>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("threads can be started");
        let (told, readiness) = (Arc::new(Store::new(HostDocument::default())), Arc::new(Readiness::default()));
        let (reload, requests) = Reload::channel();
        let options = HostOptions {
            name: Some("here".into()),
            label_files: None,
            labels: vec![("zone".into(), "a".into())],
            public_ip: Some("192.0.2.10".parse().expect("an address")),
            environment: Some("prod".into()),
        };
        runtime.spawn(live::docker::follow(
            endpoint,
            certificates,
            options,
            told.clone(),
            None,
            readiness.clone(),
            requests,
        ));
        Self { told, readiness, reload, runtime }
    }

    /// The document of its host.
    pub fn document(&self) -> Value {
        serde_json::to_value(&self.told.load_full().document).expect("a document is JSON")
    }

    /// What the document says of a container.
    pub fn container(&self, name: &str) -> Option<Value> {
        let document = self.document();
        let all = document["containers"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|container| container["name"] == name)
    }

    /// The names of the containers in it, in order.
    pub fn names(&self) -> Vec<String> {
        let document = self.document();
        let all = document["containers"].as_array().cloned().unwrap_or_default();
        let mut names: Vec<_> =
            all.iter().map(|one| one["name"].as_str().expect("a container has a name").to_owned()).collect();
        names.sort();
        names
    }

    /// Waits until a field of a container has this value; gives the container.
    pub fn until(&self, name: &str, field: &str, expected: &Value) -> Value {
        let what = format!("{name} has {field} {expected}");
        eventually(&what, LIMIT, || self.container(name).filter(|container| container[field] == *expected))
    }

    /// The snapshot that the document resolves to, which has no defect.
    pub fn snapshot(&self) -> Snapshot {
        let told = self.told.load_full();
        let document = model::Value::Map(told.document.clone());
        let (snapshot, defects) = model::document::resolve_value(&document).expect("what we made is a document");
        assert_eq!((&defects[..], &told.defects[..]), (&[][..], &[][..]));
        snapshot
    }

    /// Why it is not ready; empty when it is.
    pub fn reason(&self) -> String {
        self.readiness.reasons().get("engine").cloned().unwrap_or_default()
    }

    /// Waits until the engine was read.
    pub fn ready(&self) {
        eventually("the engine was read", LIMIT, || self.reason().is_empty().then_some(()));
    }
    /// Reads everything again.
    ///
    /// # Errors
    ///
    /// Why that was not possible.
    pub fn reload(&self) -> Result<(), String> {
        self.runtime.block_on(self.reload.request())
    }
}
