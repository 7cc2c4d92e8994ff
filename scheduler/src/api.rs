//! The server: the engine over HTTP.
//!
//! Bodies are JSON both ways, and so are errors. Requests of web pages are refused: none has any business placing
//! containers, and a browser would let it reach loopback.

mod accept;
mod app;
mod body;
mod caller;
mod event;
mod inside;
mod metrics;
mod placing;
mod reply;
mod routes;
mod stacks;

use std::hash::RandomState;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use etcd::EtcdClient;
use model::Snapshot;
use process::{Acceptor, Failure};
use prometheus_client::registry::Registry;
use source::file::{Accepted, FollowedFile, Reader};
use source::{Derivation, Readiness, Revision, Store, derive};
use tls::Certificates;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::api::accept::accept;
use crate::api::app::App;
use crate::api::body::{BODIES_MAX, BODY_PIECE};
use crate::api::caller::Gate;
use crate::api::metrics::Metrics;
use crate::api::routes::{questions, router};
use crate::clock::Clock;
use crate::config::{Options, OptionsError, policy_in};
use crate::ledger::Ledger;
use crate::ledger::etcd::sync::EtcdSync;
use crate::ledger::journal::{Journal, WriteFailed};
use crate::ledger::store::LedgerStore;
use crate::place::Placer;
use crate::place::inventory::Inventory;
use crate::policy::Policy;
use crate::start::docker_config::DockerConfig;
use crate::start::{EngineAccess, Starter};
use crate::token::NamedToken;

/// Longest wait for starts and removals after the stop; less than the process itself waits on any system.
const LANDING_TIME: Duration = Duration::from_secs(2);

/// The scheduler's service.
#[derive(Debug)]
pub struct Server {
    /// Derives the inventory from snapshots.
    derived: Derivation,
    app: Arc<App>,
    /// Requires client certificates; `None` serves without TLS.
    tls: Option<Arc<rustls::ServerConfig>>,
    /// With the etcd that stores the ledger.
    sync: Option<EtcdSync>,
    /// The file of the policy, and where it is published.
    policy: Option<(PathBuf, Arc<Store<Policy>>)>,
    readiness: Option<Arc<Readiness>>,
    /// Whether what fails stays as it is.
    no_replace: bool,
}

impl Server {
    /// A server that places on the hosts of `snapshots`.
    ///
    /// # Errors
    ///
    /// When a file that the options name cannot be used.
    pub fn new(
        options: &Options,
        snapshots: Arc<Store<Snapshot>>,
        registry: &mut Registry,
    ) -> Result<Self, OptionsError> {
        let tokens = options.tokens()?;
        let tls = options.tls_certs.as_deref().map(Certificates::in_folder).transpose()?;
        let tls = tls.map(|certificates| certificates.server()).transpose()?.map(Arc::new);
        let gate = gate(options, tokens, tls.is_some());
        let inventories = Arc::new(Store::new(Inventory::default()));
        let clock = Clock::start();
        let secrets = options.secrets_key()?;
        let sync = match &options.ledger_etcd[..] {
            [] => None,
            members => {
                let client = EtcdClient::new(options.etcd.with_members(members.to_vec()))?;
                let fingerprint = secrets.as_ref().map(|key| key.fingerprint().clone());
                Some(EtcdSync::new(client, options.key_file()?, fingerprint))
            }
        };
        let ledger = match (&sync, &options.ledger) {
            (Some(sync), _) => Ledger::shared(sync.shared().clone()),
            (None, Some(path)) => {
                let (journal, records) = Journal::open(path, clock.now())?;
                Ledger::on_disk(journal, records)
            }
            (None, None) => Ledger::new(),
        };
        let certificates = options.engine_certificates()?;
        let registries = options.registry_config.clone().map(DockerConfig::new).map(Arc::new);
        if let Some(Err(error)) = registries.as_ref().map(|registries| registries.check()) {
            warn!(%error, "images of private registries cannot be pulled");
        }
        let resolver = options.container_dns.iter().map(|address| address.to_string().into()).collect();
        let endpoints = options.endpoints()?;
        let policy = Arc::new(Store::new(options.policy()?));
        let followed = options.policy.clone().map(|path| (path, policy.clone()));
        let placer = Placer::new(inventories.clone(), options.order, options.strategy)
            .with_ledger(ledger)
            .with_endpoints(endpoints.clone())
            .with_policy(policy.clone())
            .with_audit(options.audit()?);
        let placer = Arc::new(placer);
        let metrics = Metrics::register(registry, placer.clone(), clock);
        let sweep_after = options.sweep.map(|seconds| Duration::from_secs(seconds.into()));
        let last_logs = options.last_logs();
        let access = EngineAccess { certificates, resolver, registries, secrets, sweep_after, last_logs };
        let starter = Starter::new(placer.clone(), clock, access);
        Metrics::register_actions(registry, &starter);
        let (random, requests) = (RandomState::new(), AtomicU64::new(0));
        let bodies = Arc::new(Semaphore::new(BODIES_MAX / BODY_PIECE));
        let names = options.api_names.clone();
        let app = App { placer, starter, metrics, gate, names, clock, random, requests, bodies };
        let (views, own_host_only) = (inventories.clone(), options.own_host_only);
        let build = move |new: &Arc<Snapshot>, _: &Arc<Snapshot>, view: &Arc<Inventory>| {
            if views.revision() == Revision::NONE {
                let inventory = if own_host_only { Inventory::of_own_host(new) } else { Inventory::new(new) };
                let unknown = endpoints.unknown(inventory.hosts());
                if !unknown.is_empty() {
                    warn!(
                        hosts = unknown.join(", "),
                        "--docker-engines names hosts that the cluster does not have yet"
                    );
                }
                return Some(inventory);
            }
            (!view.is_of(new)).then(|| view.succeeding(new))
        };
        let derived = derive(snapshots, inventories, build);
        Ok(Self {
            derived,
            app: Arc::new(app),
            tls,
            sync,
            policy: followed,
            readiness: None,
            no_replace: options.no_replace,
        })
    }

    /// Finds what is wrong with options without taking the ledger and the audit log, which another process may have: what it
    /// is to be told before that one ends.
    ///
    /// # Errors
    ///
    /// When a file that the options name cannot be used.
    pub fn rehearse(options: &Options, snapshots: Arc<Store<Snapshot>>) -> Result<(), OptionsError> {
        let options = Options { ledger: None, audit_log: None, ..options.clone() };
        Self::new(&options, snapshots, &mut Registry::default()).map(drop)
    }

    /// The same, telling there whether it is ready.
    #[must_use]
    pub fn with_readiness(self, readiness: Arc<Readiness>) -> Self {
        Self { readiness: Some(readiness), ..self }
    }

    /// What it answers without changing anything: `GET /v1/placements` and `/v1/hosts`, `POST /v1/explain`, `/v1/what-if` and
    /// `/v1/rebalance`. For other parts of this process: nothing here asks for a credential.
    pub fn questions(&self) -> axum::Router {
        questions(self.app.clone())
    }

    /// Serves until `stop`, then finishes the requests in flight.
    ///
    /// # Errors
    ///
    /// Fails if the listener cannot be used.
    pub async fn run(self, listener: std::net::TcpListener, stop: CancellationToken) -> Result<(), Failure> {
        let listener = Acceptor::new(listener)?;
        let following = tokio::spawn(self.derived);
        let readiness = self.readiness.clone().unwrap_or_default();
        let _policy = self.policy.map(|(path, policy)| follow_policy(path, policy, readiness)).transpose()?;
        let (starter, audit) = (self.app.starter.clone(), self.app.placer.audit().clone());
        let farewell = CancellationToken::new();
        let readiness = self.readiness.clone();
        let sync = self.sync.map(|sync| {
            tokio::spawn(starter.clone().resume_adopted(sync.shared().clone(), stop.clone()));
            let placer = self.app.placer.clone();
            tokio::spawn(sync.run(placer, self.app.clock, readiness, farewell.clone()))
        });
        starter.resume();
        let disk = match (self.app.placer.ledger().store(), &self.readiness) {
            (LedgerStore::Disk(journal), Some(readiness)) => {
                Some(tokio::spawn(tell_of_disk(journal.watch(), readiness.clone())))
            }
            _ => None,
        };
        let telling = audit.watch().zip(self.readiness.clone());
        let telling = telling.map(|(trouble, readiness)| tokio::spawn(tell_of_audit(trouble, readiness)));
        let looking = tokio::spawn(starter.clone().look(stop.clone()));
        let replacing = (!self.no_replace).then(|| {
            let readiness = self.readiness.clone().unwrap_or_default();
            tokio::spawn(starter.clone().replace_failed(readiness, stop.clone()))
        });
        let keeping =
            tokio::spawn(starter.clone().keep_stacks(self.readiness.clone().unwrap_or_default(), stop.clone()));
        accept(listener, self.tls.map(TlsAcceptor::from), router(self.app), stop).await;
        // What does not land in time is in the ledger, and goes on with the next start.
        if tokio::time::timeout(LANDING_TIME, starter.finish()).await.is_err() {
            warn!("some containers are still being started or removed");
        }
        let _ = tokio::time::timeout(LANDING_TIME, audit.flush()).await;
        farewell.cancel();
        if let Some(sync) = sync {
            let _ = sync.await;
        }
        let _ = looking.await;
        let _ = keeping.await;
        if let Some(replacing) = replacing {
            let _ = replacing.await;
        }
        following.abort();
        disk.iter().chain(&telling).for_each(tokio::task::JoinHandle::abort);
        // An error is the cancellation that was just asked for.
        let _ = following.await;
        Ok(())
    }
}

/// Reads the policy again whenever its file changes; the last good one counts.
fn follow_policy(
    path: PathBuf,
    policy: Arc<Store<Policy>>,
    readiness: Arc<Readiness>,
) -> std::io::Result<FollowedFile> {
    let reader: Reader = Box::new(move |path, bytes| {
        let new = policy_in(path, bytes)?;
        let changed = **policy.load() != new;
        if changed {
            drop(policy.publish(Arc::new(new)));
        }
        Ok(Accepted { changed, ..Accepted::default() })
    });
    FollowedFile::start(path, "policy", readiness, reader, || {})
}

/// Which credentials count: those that were given, or else the scheduler's own token for what changes something.
fn gate(options: &Options, mut tokens: Vec<NamedToken>, certificates: bool) -> Gate {
    let always = certificates || !tokens.is_empty();
    if always {
        return Gate { tokens, always, certificates, own: Ok(None) };
    }
    let own = match options.own_token() {
        Ok((token, file)) => {
            info!(token = %file.display(), "what changes something needs the scheduler's token");
            tokens.push(token);
            Ok(Some(file))
        }
        Err(why) => {
            warn!(%why, "the scheduler has no token, so it changes nothing: give --state-dir or --token-file");
            Err(why)
        }
    };
    Gate { tokens, always, certificates, own }
}

/// Says that the process is not ready while the disk refuses the ledger; ends with the ledger.
async fn tell_of_disk(mut broken: watch::Receiver<bool>, readiness: Arc<Readiness>) {
    loop {
        if *broken.borrow_and_update() {
            readiness.not_ready("ledger", WriteFailed.to_string());
        } else {
            readiness.ready("ledger");
        }
        if broken.changed().await.is_err() {
            return;
        }
    }
}

/// Warns while something is wrong with the audit log; ends with it.
async fn tell_of_audit(mut trouble: watch::Receiver<Option<String>>, readiness: Arc<Readiness>) {
    loop {
        let warning = trouble.borrow_and_update().clone();
        readiness.warn("audit log", warning);
        if trouble.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use crate::audit::Audit;
    use crate::cli::client::{Ask, Client};

    use super::*;

    /// A scheduler that serves on loopback, with its state, its audit log and a policy in this folder.
    fn serving(folder: &std::path::Path) -> (SocketAddr, Audit) {
        let policy = folder.join("policy.json");
        let rules = json!({ "default": { "images": [] }, "subjects": { "token": { "images": ["web"] } } });
        platform::file::replace_private(&policy, rules.to_string().as_bytes()).unwrap();
        let options = Options {
            state: Some(folder.join("state")),
            audit_log: Some(folder.join("audit.ndjson")),
            policy: Some(policy),
            ..Options::default()
        };
        let snapshots = Arc::new(Store::new(Snapshot::default()));
        let server = Server::new(&options, snapshots.clone(), &mut Registry::default()).unwrap();
        snapshots.publish(Arc::default());
        let audit = server.app.placer.audit().clone();
        let listener = platform::socket::tcp_listener(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(server.run(listener, CancellationToken::new()));
        (address, audit)
    }

    /// The status of the answer to a request with this line in its head.
    async fn status(address: SocketAddr, request: &str, line: &str, body: &Value) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let body = body.to_string();
        let host = if line.starts_with("Host") { String::new() } else { format!("Host: {address}\r\n") };
        let length = body.len();
        let head = format!("{request} HTTP/1.1\r\n{host}{line}Connection: close\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn no_dry_run_of_a_command_is_judged_as_anonymous() {
        let folder = tempfile::tempdir().unwrap();
        let (server, _) = serving(folder.path());
        let request = json!({ "image": "web", "dry_run": true });
        for path in ["/v1/placements", "/v1/explain"] {
            // A client without a credential may ask, and the policy allows it nothing.
            assert_eq!(status(server, &format!("POST {path}"), "", &request).await, "403", "{path}");
            // A command of the scheduler's user has the token, of which the policy says more.
            let ask = Ask { server, token_file: None, tls_certs: None, insecure: false, json: false };
            let client = Client::new(&ask).unwrap();
            let answer = client.ask(hyper::Method::POST, path, Some(&request), |_| ()).await.unwrap();
            assert_ne!(answer.status, hyper::StatusCode::FORBIDDEN, "{path}: {}", answer.body);
            let other = json!({ "image": "other", "dry_run": true });
            let answer = client.ask(hyper::Method::POST, path, Some(&other), |_| ()).await.unwrap();
            assert_eq!(answer.status, hyper::StatusCode::FORBIDDEN, "{path}: {}", answer.body);
            assert!(answer.body.to_string().contains("token"), "{}", answer.body);
        }
    }

    #[tokio::test]
    async fn no_web_page_tries_to_change_something_without_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let (server, audit) = serving(folder.path());
        let body = json!({ "image": "web" });
        for (request, line) in [
            ("POST /v1/placements", "Origin: http://example.org\r\n"),
            ("DELETE /v1/placements/web", "Sec-Fetch-Site: cross-site\r\n"),
            ("POST /v1/events/scheduler.reserve", "Host: example.org\r\n"),
            // These only ask.
            ("GET /v1/placements", "Origin: http://example.org\r\n"),
            ("POST /v1/explain", "Origin: http://example.org\r\n"),
        ] {
            assert_eq!(status(server, request, line, &body).await, "403", "{request}");
        }
        audit.flush().await;
        let text = std::fs::read_to_string(folder.path().join("audit.ndjson")).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let told: Vec<_> = lines
            .iter()
            .map(|line| {
                assert_eq!((&line["subject"], &line["outcome"]), (&json!("anonymous"), &json!("refused")), "{line}");
                let field = line["reason"].as_str().unwrap().split(':').next().unwrap();
                (line["action"].as_str().unwrap(), field)
            })
            .collect();
        assert_eq!(told, [("place", "Origin"), ("remove", "Sec-Fetch-Site"), ("event", "Host")]);
    }

    #[tokio::test]
    async fn what_a_stack_has_is_not_shown_by_a_plan_to_who_has_no_credential() {
        let folder = tempfile::tempdir().unwrap();
        let (server, _) = serving(folder.path());
        let ask = Ask { server, token_file: None, tls_certs: None, insecure: false, json: false };
        let client = Client::new(&ask).unwrap();
        let body = json!({ "services": [{ "service": "web", "image": "web" }] });
        let put = async |name: &str| {
            let path = format!("/v1/stacks/{name}?detach=true");
            client.ask(hyper::Method::PUT, &path, Some(&body), |_| ()).await.unwrap().status
        };
        // The cluster is known a moment later.
        while put("shop").await == hyper::StatusCode::SERVICE_UNAVAILABLE {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(put("shop").await, hyper::StatusCode::OK);
        for (path, body, expected) in [
            ("/v1/stacks/shop/plan", &body, "401"),
            ("/v1/stacks/shop/history", &json!({ "from": 1, "to": 1 }), "401"),
            // Nothing is there that could be shown; the policy allows no image.
            ("/v1/stacks/new/plan", &body, "403"),
        ] {
            assert_eq!(status(server, &format!("POST {path}"), "", body).await, expected, "{path}");
        }
        let planned = client.ask(hyper::Method::POST, "/v1/stacks/shop/plan", Some(&body), |_| ()).await.unwrap();
        assert_eq!(planned.status, hyper::StatusCode::OK, "{}", planned.body);
    }

    #[tokio::test]
    async fn while_the_disk_refuses_the_ledger_the_process_is_not_ready() {
        let (report, broken) = watch::channel(true);
        let readiness = Arc::new(Readiness::default());
        let telling = tokio::spawn(tell_of_disk(broken, readiness.clone()));
        let reasons = || format!("{:?}", readiness.reasons());
        while !reasons().contains("cannot be written to disk") {
            tokio::task::yield_now().await;
        }
        report.send_replace(false);
        drop(report);
        telling.await.unwrap();
        assert!(!reasons().contains("disk"), "{}", reasons());
    }
}
