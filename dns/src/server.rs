//! The service: the current zone, and all transports.
//!
//! The loops are our own: those of hickory-server, also for TLS and HTTPS, spin when the process runs out of descriptors,
//! and bound neither the connections nor a client that does not read.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use model::{Defect, Snapshot};
use process::{Accepting, Acceptor, Clients, Failure, Parts};
use prometheus_client::registry::Registry;
use source::{Derivation, Readiness, Store};
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Options;
use crate::connections::{Connections, Protocol};
use crate::cookie::Secret;
use crate::forward::Forwarder;
use crate::hold::Hold;
use crate::metrics::{Exposition, Metrics};
use crate::name::{BadName, Folded};
use crate::respond::Responder;
use crate::response_rate::ResponseRate;
use crate::shared::Shared;
use crate::sockets::Sockets;
use crate::view::{Content, View, count};
use crate::zone::answers::DnsAnswers;
use crate::zone::{Settings, Unreached, Zone};
use crate::{pages, udp};

/// Most defects that are logged for one view; the metric has their number.
const DEFECTS_LOGGED_MAX: usize = 20;

/// The DNS service.
#[derive(Debug)]
pub struct Server {
    /// The zone, kept up to date.
    derived: Derivation,
    pub(crate) shared: Arc<Shared>,
    /// Where warnings of what is left out of answers go.
    readiness: Option<Arc<Readiness>>,
    accepting: Accepting,
}

/// Why there is no service.
#[derive(Debug, Error)]
pub enum ServerError {
    /// No name fits under the domain.
    #[error("--domain {domain}: {error}")]
    Domain {
        /// The domain.
        domain: Folded,
        /// What is wrong with the names under it.
        #[source]
        error: BadName,
    },
    /// The system gives no random bytes, so that replies to our queries could be forged.
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
}

impl Server {
    /// A service of the names in snapshots, to be asked at `address` by these clients and by the containers in them.
    ///
    /// # Errors
    ///
    /// When no name fits under the domain.
    pub fn new(
        options: &Options,
        clients: Clients,
        address: SocketAddr,
        snapshots: Arc<Store<Snapshot>>,
        registry: &mut Registry,
    ) -> Result<Self, ServerError> {
        Self::with(options, clients, address, Content::Snapshots(snapshots), registry)
    }

    /// A service of the names in a file of the predecessor's answers, to be asked at `address` by these clients.
    ///
    /// # Errors
    ///
    /// When no name fits under the domain.
    pub fn with_answers(
        options: &Options,
        clients: Clients,
        address: SocketAddr,
        answers: Arc<Store<DnsAnswers>>,
        registry: &mut Registry,
    ) -> Result<Self, ServerError> {
        Self::with(options, clients, address, Content::Answers(answers), registry)
    }

    fn with(
        options: &Options,
        clients: Clients,
        address: SocketAddr,
        content: Content,
        registry: &mut Registry,
    ) -> Result<Self, ServerError> {
        let domain = &options.domain;
        if let Err(error) = domain.under(model::METADATA_NAME) {
            return Err(ServerError::Domain { domain: domain.clone(), error });
        }
        Clients::warn_if_unspecified("dns", address);
        let mut random = [0; 16];
        getrandom::fill(&mut random)?;
        let views = Arc::new(Store::new(View::default()));
        let forwarder = Forwarder::new(options, configured_upstreams(options), views.clone());
        let metrics = Arc::new(Metrics::new(address, domain));
        registry.register_collector(Box::new(Exposition { metrics: metrics.clone(), forwarder: forwarder.clone() }));
        let name = options.nsid.as_ref().map(|name| name.as_bytes().into());
        let followed = match &content {
            Content::Snapshots(snapshots) => Some(snapshots.clone()),
            Content::Answers(_) => None,
        };
        let shared = Shared {
            views,
            forwarder,
            metrics,
            responder: Responder::new(Secret::new(random), name, seconds_since_1970),
            hold: Hold::following(followed),
            clients,
            rate: ResponseRate::new(options.responses_per_second),
            own: address.ip(),
            started: Instant::now(),
            query_log_every: options.query_log,
        };
        let shared = Arc::new(shared);
        let listen = Some(address.ip()).filter(|ip| !ip.is_unspecified());
        let settings = Settings { listen, ..Settings::from(options) };
        let derived = content.follow(settings, shared.views.clone(), shared.metrics.clone());
        Ok(Self { derived, shared, readiness: None, accepting: Accepting::now() })
    }

    /// The same, with warnings there of what is left out of answers.
    #[must_use]
    pub fn with_readiness(self, readiness: Arc<Readiness>) -> Self {
        Self { readiness: Some(readiness), ..self }
    }

    /// The same, which takes questions for as long as this says.
    #[must_use]
    pub fn with_accepting(self, accepting: Accepting) -> Self {
        Self { accepting, ..self }
    }

    /// What is served, and its revisions: none until the first zone was built.
    pub fn views(&self) -> Arc<Store<View>> {
        self.shared.views.clone()
    }

    /// Pages for the admin listener: `GET /v1/upstreams` and `GET /v1/query`.
    pub fn pages(&self) -> Router {
        pages::router(self.shared.clone())
    }

    /// Serves until `stop`, then finishes the questions in flight.
    ///
    /// Replies leave from the address that was asked, since every socket is bound to one address.
    ///
    /// # Errors
    ///
    /// Fails if the sockets cannot be used, or as soon as what accepts or receives has ended before `stop`.
    pub async fn run(self, sockets: Sockets, stop: CancellationToken) -> Result<(), Failure> {
        let mut own: Vec<SocketAddr> = sockets.udp.iter().filter_map(|socket| socket.local_addr().ok()).collect();
        own.extend(sockets.address().ok());
        self.shared.forwarder.listens_on(own);
        let tasks = TaskTracker::new();
        // Threads do not end when their handles are dropped; this token ends them.
        let stop = stop.child_token();
        let _stopped = stop.clone().drop_guard();
        let mut parts = Parts::new(stop.clone());
        let follower = tokio::spawn(self.derived);
        stop.run_until_cancelled(self.accepting.begin.cancelled()).await;
        let end = self.accepting.end;
        let connections = Arc::new(Connections::new(self.shared.clone(), stop.clone(), end, tasks.clone()));
        for (listener, protocol) in std::iter::once((sockets.tcp, Protocol::Tcp)).chain(sockets.encrypted) {
            parts.spawn("accepting connections", connections.clone().accept(Acceptor::new(listener)?, protocol));
        }
        for socket in sockets.udp {
            udp::serve(socket, self.shared.clone(), &stop, &tasks, &mut parts)?;
        }
        let checker = tokio::spawn(check_views(self.shared.clone(), self.readiness));
        let watched = parts.watch().await;
        if watched.is_ok() {
            parts.finish().await;
            tasks.close();
            tasks.wait().await;
            self.shared.forwarder.finish().await;
        }
        follower.abort();
        checker.abort();
        // Aborted on purpose; a view that was being built is dropped.
        let _ = follower.await;
        let _ = checker.await;
        watched
    }
}

/// The time as cookies have it; wraps in 2106, as they may (RFC 9018 section 4.3).
#[expect(clippy::cast_possible_truncation, reason = "the time of a cookie is counted modulo 2^32")]
fn seconds_since_1970() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as u32)
}

/// Looks through each view after it was published: no client waits for that. Never ends.
async fn check_views(shared: Arc<Shared>, readiness: Option<Arc<Readiness>>) {
    let mut watcher = shared.views.watch();
    let mut wrong = Arc::new(Wrong::default());
    loop {
        let (view, shared, before) = (shared.views.load_full(), shared.clone(), wrong.clone());
        // A panic in it costs the warnings of this view only.
        if let Ok(found) = tokio::task::spawn_blocking(move || check(&shared, &view, &before)).await {
            if let Some(readiness) = &readiness {
                readiness.warn("names across hosts", found.unreached.warning());
            }
            wrong = Arc::new(found);
        }
        watcher.changed().await;
    }
}

/// Most hosts with such containers that are remembered, of all that there ever were: far more than a cluster has.
const HOSTS_REMEMBERED_MAX: usize = 20_000;

/// What is wrong in a view.
#[derive(Debug, Default)]
struct Wrong {
    defects: Vec<Defect>,
    unreached: Unreached,
}

/// What helps where no address of a container is reached.
const WAY_ACROSS_HOSTS: &str = "use a routed network, or publish each port under its own number (docs/etcd.md, \"Names across \
                                hosts\"); `dns query NAME` says why for each name";

impl Unreached {
    /// What is left out, in words; `None` if nothing is.
    fn warning(&self) -> Option<String> {
        let (example, reason) = (self.example.as_deref().unwrap_or_default(), self.reason.unwrap_or_default());
        (self.containers > 0).then(|| {
            format!(
                "containers of other hosts that are left out of answers: {}, such as {example} ({reason}); {WAY_ACROSS_HOSTS}",
                self.containers
            )
        })
    }
}

/// Logs once what is newly wrong in a view; returns all that is wrong in it.
fn check(shared: &Shared, view: &View, before: &Wrong) -> Wrong {
    let defects = view.defects();
    for defect in defects.iter().filter(|defect| !before.defects.contains(defect)).take(DEFECTS_LOGGED_MAX) {
        tracing::warn!(path = %defect.path, problem = %defect.problem, "a name is left out or incomplete");
    }
    shared.metrics.defects.set(count(defects.len()));
    let mut unreached = view.zone().map(Zone::unreachable).unwrap_or_default();
    // Once for each host that such containers are on: containers come and go too often for that.
    if !unreached.hosts.is_subset(&before.unreached.hosts) {
        tracing::warn!(
            containers = unreached.containers,
            hosts = unreached.hosts.len(),
            example = unreached.example.as_deref().unwrap_or_default(),
            reason = unreached.reason.unwrap_or_default(),
            "containers of other hosts are left out of answers, since no address of theirs is reached from here: \
             {WAY_ACROSS_HOSTS}"
        );
    }
    shared.metrics.unreachable.set(count(unreached.containers));
    // Those of containers that have ended since count as logged.
    if before.unreached.hosts.len() < HOSTS_REMEMBERED_MAX {
        unreached.hosts.extend(before.unreached.hosts.iter().cloned());
    }
    Wrong { defects, unreached }
}

/// The upstreams that were configured, otherwise the operating system's.
fn configured_upstreams(options: &Options) -> Vec<SocketAddr> {
    if !options.upstreams.is_empty() {
        return options.upstreams.iter().map(|upstream| upstream.0).collect();
    }
    platform::resolvers::system().unwrap_or_else(|error| {
        tracing::warn!(%error, "the system names no upstreams; only names of the cluster are known");
        Vec::new()
    })
}

#[cfg(test)]
mod tests;
