//! A scheduler that serves on a socket of this machine, and a client of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use model::Snapshot;
use prometheus_client::registry::Registry;
use scheduler::{Options, Server};
use serde_json::{Value, json};
use source::Store;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A scheduler that serves.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    pub(crate) snapshots: Arc<Store<Snapshot>>,
    registry: Registry,
    pub(crate) stop: CancellationToken,
    running: JoinHandle<Result<(), process::Failure>>,
    /// Where its token is, unless the options have another place.
    pub(crate) state: TempDir,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Value,
}

impl Service {
    pub(crate) async fn start(mut options: Options) -> Self {
        let state = tempfile::tempdir().unwrap();
        options.state.get_or_insert_with(|| state.path().into());
        let snapshots = Arc::new(Store::new(Snapshot::default()));
        let mut registry = Registry::default();
        let mut server = Server::new(&options, snapshots.clone(), &mut registry);
        // The last task of a server that has just ended in this process lets go of its ledger a moment later.
        for _ in 0..500 {
            if !server.as_ref().is_err_and(|error| error.to_string().contains("in use by another scheduler")) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            registry = Registry::default();
            server = Server::new(&options, snapshots.clone(), &mut registry);
        }
        let server = server.unwrap();
        let listener = platform::socket::tcp_listener(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn(server.run(listener, stop.clone()));
        // The view is built by a follower that has to be there before anybody can wait for it.
        let service = Self { address, snapshots, registry, stop, running, state };
        service.ask("GET", "/v1/openapi.json", "").await;
        service
    }

    pub(crate) async fn with_hosts(options: Options) -> Self {
        let service = Self::start(options).await;
        service.publish(&json!([])).await;
        service
    }

    pub(crate) async fn publish(&self, containers: &Value) {
        let mut objects = vec![
            json!({"metadata_kind": "host", "uuid": "h1", "name": "one", "memory": 100, "labels": {"zone": "a"}}),
            json!({"metadata_kind": "host", "uuid": "h2", "name": "two", "memory": 100, "labels": {"zone": "b"}}),
        ];
        objects.extend(containers.as_array().unwrap().iter().cloned());
        let objects: Vec<model::Map> = serde_json::from_value(objects.into()).unwrap();
        self.snapshots.publish(Arc::new(model::objects::read(objects).0));
        self.snapshots.settled().await;
    }

    pub(crate) async fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        self.ask_with(method, path, body, "").await
    }

    /// The header with its own token.
    pub(crate) fn token(&self) -> String {
        let token = std::fs::read_to_string(self.state.path().join("scheduler.token")).unwrap_or_default();
        format!("authorization: Bearer {}\r\n", token.trim())
    }

    /// Asks with its own token, unless there are other headers.
    pub(crate) async fn ask_with(&self, method: &str, path: &str, body: &str, headers: &str) -> Answer {
        let headers = if headers.is_empty() { &self.token() } else { headers };
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
            body.len()
        );
        // A server that refuses a large body need not read it.
        let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        read(&mut stream).await
    }

    pub(crate) async fn place(&self, request: &Value) -> Answer {
        self.ask("POST", "/v1/placements", &request.to_string()).await
    }

    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }

    pub(crate) async fn end(self) {
        self.stop.cancel();
        tokio::time::timeout(Duration::from_secs(5), self.running).await.unwrap().unwrap().unwrap();
        assert!(TcpStream::connect(self.address).await.is_err());
    }
}

/// Reads an answer, after which the connection ends.
pub(crate) async fn read(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_lowercase(), body: serde_json::from_str(body).unwrap_or_default() }
}
