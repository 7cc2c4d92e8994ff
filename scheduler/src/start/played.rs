//! A Docker Engine that is played here, for tests of what is beside it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request as Asked, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use source::Store;
use tokio::time::sleep;

use crate::clock::Clock;
use crate::ledger::Ledger;
use crate::lock::lock;
use crate::place::Placer;
use crate::place::inventory::Inventory;
use crate::place::strategy::{Order, Strategy};
use crate::start::{EngineAccess, Starter};

/// Longest wait for something to happen; a busy machine is slow.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

/// An engine with these containers, by name.
#[derive(Default)]
pub(crate) struct Played {
    pub(crate) containers: Mutex<BTreeMap<String, Value>>,
    pub(crate) created: AtomicUsize,
    /// How often it was asked about an image of a registry.
    pub(crate) asked: AtomicUsize,
    /// How many images it pulls just now, and the most it did at once.
    pulls: AtomicUsize,
    pub(crate) most_pulls: AtomicUsize,
    /// What it was asked about images of registries, and to stop, in its order.
    pub(crate) log: Mutex<Vec<String>>,
}

impl Played {
    pub(crate) async fn start() -> (Arc<Self>, SocketAddr) {
        let played = Arc::new(Self::default());
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(Self::answer).with_state(played.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (played, address)
    }

    pub(crate) fn put(&self, name: &str, labels: &[(&str, &str)], state: &Value) {
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        let container = json!({ "Id": format!("id-of-{name}"), "Config": { "Labels": labels }, "State": state });
        lock(&self.containers).insert(name.to_owned(), container);
    }

    pub(crate) fn state(&self, name: &str) -> String {
        lock(&self.containers)[name]["State"]["Status"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        lock(&self.containers).keys().cloned().collect()
    }

    async fn answer(State(played): State<Arc<Self>>, asked: Asked) -> Response {
        let (method, uri) = (asked.method().as_str().to_owned(), asked.uri().clone());
        let body = to_bytes(asked.into_body(), 1 << 20).await.unwrap();
        let path = uri.path().split('/').filter(|part| !part.is_empty() && !part.starts_with("v1."));
        let path: Vec<&str> = path.collect();
        match (method.as_str(), &path[..]) {
            ("GET", ["images", "present", "json"]) => return json!({ "Id": "sha256:00" }).to_string().into_response(),
            ("GET", ["images", ..]) => return StatusCode::NOT_FOUND.into_response(),
            ("POST", ["images", "create"]) => {
                let now = played.pulls.fetch_add(1, Ordering::Relaxed) + 1;
                played.most_pulls.fetch_max(now, Ordering::Relaxed);
                sleep(Duration::from_millis(200)).await;
                played.pulls.fetch_sub(1, Ordering::Relaxed);
                let query = uri.query().unwrap_or_default();
                if query.contains("slow") {
                    sleep(LIMIT).await;
                }
                if query.contains("broken") {
                    return json!({ "errorDetail": { "message": "no such manifest" } }).to_string().into_response();
                }
                let layer =
                    json!({ "status": "Downloading", "id": "ab", "progressDetail": { "current": 1, "total": 2 } });
                return layer.to_string().into_response();
            }
            _ => {}
        }
        let mut containers = lock(&played.containers);
        let called = |containers: &BTreeMap<String, Value>, what: &str| {
            containers.iter().find(|(name, one)| *name == what || one["Id"] == what).map(|(name, _)| name.clone())
        };
        let none = || (StatusCode::NOT_FOUND, json!({ "message": "no such container" }).to_string()).into_response();
        match (method.as_str(), &path[..]) {
            (_, ["version"]) => json!({ "ApiVersion": "1.43", "Version": "24.0" }).to_string().into_response(),
            ("GET", ["distribution", image, ..]) => {
                played.asked.fetch_add(1, Ordering::Relaxed);
                lock(&played.log).push(format!("ask about {image}"));
                let os = if *image == "windows" { "windows" } else { "linux" };
                json!({ "Descriptor": {}, "Platforms": [{ "os": os, "architecture": "amd64" }] })
                    .to_string()
                    .into_response()
            }
            (_, ["_ping"]) => "OK".into_response(),
            ("GET", ["containers", "json"]) => {
                let listed = containers.values().map(|one| {
                    json!({ "Id": one["Id"], "Labels": one["Config"]["Labels"], "State": one["State"]["Status"] })
                });
                Value::from(listed.collect::<Vec<_>>()).to_string().into_response()
            }
            ("POST", ["containers", "create"]) => {
                let name = uri.query().and_then(|query| query.split('&').find_map(|part| part.strip_prefix("name=")));
                let name = name.unwrap_or_default().to_owned();
                if containers.contains_key(&name) {
                    let text = json!({ "message": format!("Conflict. {name} is in use") }).to_string();
                    return (StatusCode::CONFLICT, text).into_response();
                }
                let body: Value = serde_json::from_slice(&body).unwrap();
                if body["Image"] == "slow" {
                    let text = json!({ "message": "No such image: slow" }).to_string();
                    return (StatusCode::NOT_FOUND, text).into_response();
                }
                let id = format!("id-of-{name}");
                let one = json!({ "Id": id, "Image": "sha256:00", "Config": { "Labels": body["Labels"] }, "State": { "Status": "created" } });
                containers.insert(name, one);
                played.created.fetch_add(1, Ordering::Relaxed);
                (StatusCode::CREATED, json!({ "Id": id, "Warnings": [] }).to_string()).into_response()
            }
            (method, ["containers", what, rest @ ..]) => {
                let Some(name) = called(&containers, what) else { return none() };
                match (method, rest) {
                    ("GET", ["json"]) => containers[&name].to_string().into_response(),
                    ("POST", ["start"]) => {
                        containers.get_mut(&name).unwrap()["State"] = json!({ "Status": "running" });
                        StatusCode::NO_CONTENT.into_response()
                    }
                    ("DELETE", []) => {
                        containers.remove(&name);
                        StatusCode::NO_CONTENT.into_response()
                    }
                    ("POST", ["stop"]) => {
                        lock(&played.log).push(format!("stop {name}"));
                        containers.get_mut(&name).unwrap()["State"] = json!({ "Status": "exited", "ExitCode": 143 });
                        StatusCode::NO_CONTENT.into_response()
                    }
                    _ => "".into_response(),
                }
            }
            _ => none(),
        }
    }
}

/// One host, whose engine is there, and what is shown on it.
pub(crate) fn inventory(engine: SocketAddr, containers: &Value) -> Arc<Inventory> {
    let labels = json!({ "io.berth.docker.endpoint": format!("tcp://{engine}") });
    let hosts = json!([{ "name": "one", "uuid": "u", "memory": 8, "labels": labels }]);
    let cluster = json!({ "berth": 1, "hosts": hosts, "containers": containers });
    let (snapshot, _) = model::document::resolve_value(&serde_json::from_value(cluster).unwrap()).unwrap();
    Arc::new(Inventory::new(&Arc::new(snapshot)))
}

pub(crate) fn starter(engine: SocketAddr, ledger: Ledger) -> Arc<Starter> {
    let inventories = Arc::new(Store::new(Inventory::default()));
    inventories.publish(inventory(engine, &json!([])));
    starter_over(inventories, ledger)
}

pub(crate) fn starter_over(inventories: Arc<Store<Inventory>>, ledger: Ledger) -> Arc<Starter> {
    starter_of(Placer::new(inventories, Order::default(), Strategy::default()).with_ledger(ledger))
}

pub(crate) fn starter_of(placer: Placer) -> Arc<Starter> {
    Starter::new(Arc::new(placer), Clock::start(), EngineAccess::default())
}
