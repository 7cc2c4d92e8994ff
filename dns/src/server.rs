//! The service: the zone kept up to date, and both transports.
//!
//! The loops are our own, on hickory's messages: hickory-server's TCP loop has no deadline for a message that comes in
//! octet by octet, and spins when the process runs out of descriptors.

use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use arc_swap::Guard;
use axum::Router;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RecordType};
use model::{Defect, Snapshot};
use platform::memory::about_to_fill;
use process::{Acceptor, Failure, Parts};
use prometheus_client::registry::Registry;
use source::{Derivation, Store};
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answer::{Forward, Outcome, Reply, answer};
use crate::cache::{Kept, Wanted};
use crate::config::Options;
use crate::cookie::{CLIENT_OCTETS, Cookie, Secret};
use crate::direct::{Asker, Limit, Surroundings, Written};
use crate::forward::{Asking, Begun, Forwarder, Waiting};
use crate::metrics::{Answered, BY, By, Exposition, Metrics, Mine, TRANSPORTS, Transport, code_label};
use crate::name::{BadName, Folded};
use crate::recent::{Recent, Spot};
use crate::sockets::Sockets;
use crate::view::{Content, View, count};
use crate::wire::{HEADER_OCTETS, Query, Reading, TCP_ANSWER_MAX};
use crate::zone::answers::DnsAnswers;
use crate::zone::{Scope, Settings, Unreached, Zone};
use crate::{direct, pages, tcp, udp};

/// Stores of recent answers for connections: more that are served at the same time do without.
const CONNECTION_STORES: usize = 2;

/// Most defects that are logged for one view; the metric has their number.
const DEFECTS_LOGGED_MAX: usize = 20;

/// The reason of a service that has no data yet (RFC 8914 section 4.15).
const NOT_READY: u16 = 14;

/// The DNS service.
#[derive(Debug)]
pub struct Server {
    /// The zone, kept up to date.
    derived: Derivation,
    shared: Arc<Shared>,
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
    /// The system gives no random octets, without which nobody could trust our questions.
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
}

impl Server {
    /// A service of the names in snapshots, to be asked at `address`.
    ///
    /// # Errors
    ///
    /// When no name fits under the domain.
    pub fn new(
        options: &Options,
        address: SocketAddr,
        snapshots: Arc<Store<Snapshot>>,
        registry: &mut Registry,
    ) -> Result<Self, ServerError> {
        Self::with(options, address, Content::Snapshots(snapshots), registry)
    }

    /// A service of the names in a file of the predecessor's answers, to be asked at `address`.
    ///
    /// # Errors
    ///
    /// When no name fits under the domain.
    pub fn with_answers(
        options: &Options,
        address: SocketAddr,
        answers: Arc<Store<DnsAnswers>>,
        registry: &mut Registry,
    ) -> Result<Self, ServerError> {
        Self::with(options, address, Content::Answers(answers), registry)
    }

    fn with(
        options: &Options,
        address: SocketAddr,
        content: Content,
        registry: &mut Registry,
    ) -> Result<Self, ServerError> {
        let domain = &options.domain;
        if let Err(error) = domain.under(model::METADATA_NAME) {
            return Err(ServerError::Domain { domain: domain.clone(), error });
        }
        let mut random = [0; 16];
        getrandom::fill(&mut random)?;
        let forwarder = Forwarder::new(options, configured_upstreams(options));
        let metrics = Arc::new(Metrics::new(address, domain));
        registry.register_collector(Box::new(Exposition { metrics: metrics.clone(), forwarder: forwarder.clone() }));
        let shared = Shared {
            views: Arc::new(Store::new(View::default())),
            forwarder,
            metrics,
            turn: AtomicUsize::new(0),
            cookies: Secret::new(random),
            name: options.nsid.as_ref().map(|name| name.as_bytes().into()),
            told: options.query_log,
            recent: Mutex::new((0..CONNECTION_STORES).map(|_| Recent::new(CONNECTION_STORES, about_to_fill)).collect()),
        };
        let shared = Arc::new(shared);
        let listen = Some(address.ip()).filter(|ip| !ip.is_unspecified());
        let settings = Settings { listen, ..Settings::from(options) };
        let derived = content.follow(settings, shared.views.clone(), shared.metrics.clone());
        Ok(Self { derived, shared })
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
        // Threads do not end because nobody waits for them any more; with this they do.
        let stop = stop.child_token();
        let _stopped = stop.clone().drop_guard();
        let mut parts = Parts::new(stop.clone());
        let listener = Acceptor::new(sockets.tcp)?;
        parts.spawn("accepting connections", tcp::serve(listener, self.shared.clone(), stop.clone(), tasks.clone()));
        let threads = sockets.udp.len();
        for socket in sockets.udp {
            udp::serve(socket, threads, self.shared.clone(), &stop, &tasks, &mut parts)?;
        }
        let follower = tokio::spawn(self.derived);
        let checker = tokio::spawn(check_views(self.shared.clone()));
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

/// What all transports use.
#[derive(Debug)]
pub(crate) struct Shared {
    views: Arc<Store<View>>,
    pub(crate) forwarder: Forwarder,
    pub(crate) metrics: Arc<Metrics>,
    turn: AtomicUsize,
    cookies: Secret,
    /// The name of this server, for those who ask.
    name: Option<Arc<[u8]>>,
    /// One of so many questions is told in the log.
    told: u32,
    /// Answers of connections, for who has one to serve right now; a lock that is held for a moment.
    recent: Mutex<Vec<Recent>>,
}

/// What is to be done about a message.
#[derive(Debug)]
pub(crate) enum Handled {
    /// Nothing.
    Ignore,
    /// To send this, which is about a name of the cluster's domain or not.
    Send(Vec<u8>, bool),
    /// To wait for upstreams.
    Wait(Box<Later>),
}

/// What a thread that answers has for itself.
pub(crate) struct Worker {
    pub(crate) tally: Mine,
    pub(crate) recent: Option<Recent>,
}

impl Worker {
    /// Serves this view from now on.
    pub(crate) fn serve(&mut self, view: &View, shared: &Shared) {
        if let Some(recent) = &mut self.recent {
            recent.serve(view.number, shared.forwarder.now());
        }
    }
}

/// Questions that are answered one after the other from the same view.
#[derive(Debug)]
pub(crate) struct Batch<'v> {
    zone: Option<&'v Zone>,
    /// Who asked last, and what only he sees: whoever asks for one name mostly asks for another kind of it next.
    last: Option<(IpAddr, Option<&'v Scope>)>,
}

impl<'v> Batch<'v> {
    /// Questions of anybody to this view.
    pub(crate) fn of(view: &'v View) -> Self {
        Self { zone: view.zone(), last: None }
    }

    /// The zone, once there is one, and what only a client with this address sees of it.
    fn seen_from(&mut self, client: IpAddr) -> Option<(&'v Zone, Option<&'v Scope>)> {
        let zone = self.zone?;
        let (_, scope) = match self.last {
            Some(last) if last.0 == client => last,
            _ => *self.last.insert((client, zone.scope(client).map(|scope| &**scope))),
        };
        Some((zone, scope))
    }
}

/// A reply that upstreams are needed for.
#[derive(Debug)]
pub(crate) struct Later {
    query: Query,
    forward: Forward,
    waiting: Waiting,
    came: Came,
    begun: Instant,
}

/// How a message came in.
#[derive(Clone, Copy, Debug)]
struct Came {
    client: SocketAddr,
    transport: Transport,
    octets: usize,
    /// Whether it is about a name of the cluster's domain.
    own: bool,
}

impl Later {
    /// The octets of the reply.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub(crate) async fn reply(self, shared: &Shared) -> Vec<u8> {
        let _counted = CountedPanic(&shared.metrics);
        let reply = self.waiting.reply(&self.forward).await;
        let octets = shared.write(&self.query, &reply, self.came, By::Forward);
        shared.metrics.tally().took(self.came.own, 1, self.begun.elapsed());
        octets
    }
}

/// Counts the panic of a task that ends in one.
struct CountedPanic<'m>(&'m Metrics);

impl Drop for CountedPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.panics.inc();
        }
    }
}

impl Shared {
    /// What is served at the moment; finish with it before waiting for anything.
    pub(crate) fn load(&self) -> Guard<Arc<View>> {
        self.views.load()
    }

    /// A store of recent answers, when one is not in use; to be given back.
    pub(crate) fn take_recent(&self) -> Option<Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Gives a store of recent answers back.
    pub(crate) fn give_recent(&self, recent: Option<Recent>) {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).extend(recent);
    }

    /// Writes the answer to a usual question to `room`; a panic is counted and leaves the question to [`Self::handle`].
    pub(crate) fn answer_directly(
        &self,
        batch: &mut Batch<'_>,
        message: &[u8],
        (client, spot): (SocketAddr, Option<Spot>),
        worker: &mut Worker,
        room: &mut [u8],
        limit: Limit,
    ) -> Option<Written> {
        let Worker { tally, recent } = worker;
        let answer = || {
            let (zone, scope) = batch.seen_from(client.ip())?;
            let asker = Asker { address: client.ip(), scope, spot };
            direct::answer(zone, asker, message, self, recent.as_mut(), room, limit)
        };
        let written = catch_unwind(AssertUnwindSafe(answer)).unwrap_or_else(|_| {
            self.metrics.panics.inc();
            None
        })?;
        let answered = Answered {
            transport: if limit == Limit::Datagram { Transport::Udp } else { Transport::Tcp },
            client,
            own: written.own,
            kind: written.kind,
            dnssec_ok: written.dnssec_ok,
            code: written.code,
            by: written.by,
            // The count of answers.
            empty: room[6..8] == [0, 0],
            request: message.len(),
            response: written.octets,
        };
        tally.count(&answered);
        if self.told > 0 && tally.is_told(self.told) {
            tell(&Folded::verbatim(message.get(HEADER_OCTETS..).unwrap_or_default()), &answered);
        }
        Some(written)
    }

    /// Handles one message; a panic is counted and costs this message only.
    pub(crate) fn handle(&self, message: &[u8], client: SocketAddr, transport: Transport) -> Handled {
        let handled = catch_unwind(AssertUnwindSafe(|| self.handle_unguarded(message, client, transport)));
        handled.unwrap_or_else(|_| {
            self.metrics.panics.inc();
            Handled::Ignore
        })
    }

    fn handle_unguarded(&self, message: &[u8], client: SocketAddr, transport: Transport) -> Handled {
        let mut came = Came { client, transport, octets: message.len(), own: false };
        let mut query = match Query::read(message) {
            Reading::Ignore => return Handled::Ignore,
            Reading::Refuse(reply, code) => {
                let response = reply.len();
                let answered = Answered { code, response, ..Answered::nothing(transport, client, message.len()) };
                self.count(&answered, &Name::root());
                return Handled::Send(reply, false);
            }
            Reading::Query(query) => query,
        };
        let client_part = query.wishes.edns.and_then(|edns| edns.client_cookie);
        query.cookie = client_part.map(|part| self.cookie(part, client.ip()));
        query.server.clone_from(&self.name);
        let outcome = match self.views.load().zone() {
            Some(zone) => {
                came.own = zone.apex_of(query.question.folded.wire()).is_some();
                answer(zone, client.ip(), &query.question, self.next_turn())
            }
            // Not even the existence of a name is known: saying no would be kept.
            None => Outcome::Reply(Reply::empty(ResponseCode::ServFail).because(NOT_READY)),
        };
        let forward = match outcome {
            Outcome::Drop => return Handled::Ignore,
            Outcome::Reply(reply) => {
                let by = if reply.authoritative { By::Zone } else { By::Nobody };
                return Handled::Send(self.write(&query, &reply, came, by), came.own);
            }
            Outcome::Forward(forward) => forward,
        };
        match self.forwarder.begin(&forward, Asking::of(&query), client.ip()) {
            Begun::Known(reply) => {
                let by = if reply.upstream.is_some() { By::Cache } else { By::Nobody };
                Handled::Send(self.write(&query, &reply, came, by), came.own)
            }
            Begun::Waiting(waiting) => {
                Handled::Wait(Box::new(Later { query: *query, forward, waiting, came, begun: Instant::now() }))
            }
        }
    }

    fn write(&self, query: &Query, reply: &Reply, came: Came, by: By) -> Vec<u8> {
        let limit = match came.transport {
            Transport::Udp => query.wishes.udp_answer_max(),
            Transport::Tcp => TCP_ANSWER_MAX,
        };
        let octets = query.write(reply, limit);
        let answered = Answered {
            own: came.own,
            kind: query.question.kind.into(),
            dnssec_ok: query.wishes.dnssec_ok(),
            code: reply.code,
            by,
            empty: reply.answers.is_empty(),
            response: octets.len(),
            ..Answered::nothing(came.transport, came.client, came.octets)
        };
        self.count(&answered, &query.question.name);
        octets
    }

    fn count(&self, answered: &Answered, name: &Name) {
        let tally = self.metrics.tally();
        tally.count(answered);
        if self.told > 0 && tally.is_told(self.told) {
            tell(name, answered);
        }
    }

    /// A number that says which of several addresses stands first.
    ///
    /// Mixed, since clients ask in patterns: whoever asks for A and AAAA in turns would always get the same A first.
    pub(crate) fn next_turn(&self) -> usize {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) as u64;
        let mixed = (turn ^ (turn >> 15)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        usize::try_from(mixed >> 40).unwrap_or_default()
    }
}

impl Surroundings for Shared {
    fn turn(&self) -> usize {
        self.next_turn()
    }

    fn cookie(&self, client_part: [u8; CLIENT_OCTETS], client: IpAddr) -> Cookie {
        self.cookies.cookie(client_part, client, seconds_since_1970())
    }

    fn server(&self) -> Option<&[u8]> {
        self.name.as_deref()
    }

    fn kept(&self, wanted: &Wanted<'_>, room: &mut [u8]) -> Option<Kept> {
        self.forwarder.write_kept(wanted, room)
    }
}

/// Tells about a question in the log.
fn tell(name: &Name, answered: &Answered) {
    tracing::info!(
        target: "dns::queries",
        client = %answered.client.ip(),
        transport = TRANSPORTS[answered.transport as usize],
        %name,
        kind = %RecordType::from(answered.kind),
        code = code_label(answered.code),
        by = BY[answered.by as usize],
        "question"
    );
}

/// The time as cookies have it; wraps in 2106, as they may (RFC 9018 section 4.3).
#[expect(clippy::cast_possible_truncation, reason = "the time of a cookie is counted modulo 2^32")]
fn seconds_since_1970() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as u32)
}

/// Looks through each view after it was published: no client waits for that. Never ends.
async fn check_views(shared: Arc<Shared>) {
    let mut watcher = shared.views.watch();
    let mut wrong = Arc::new(Wrong::default());
    loop {
        let (view, shared, before) = (shared.views.load_full(), shared.clone(), wrong.clone());
        // A panic in it costs the warnings of this view only.
        if let Ok(found) = tokio::task::spawn_blocking(move || shared.check(&view, &before)).await {
            wrong = Arc::new(found);
        }
        watcher.changed().await;
    }
}

/// What is wrong in a view.
#[derive(Debug, Default)]
struct Wrong {
    defects: Vec<Defect>,
    unreached: Unreached,
}

impl Shared {
    /// Says once what is newly wrong in a view; returns all that is wrong in it.
    fn check(&self, view: &View, before: &Wrong) -> Wrong {
        let defects = view.defects();
        for defect in defects.iter().filter(|defect| !before.defects.contains(defect)).take(DEFECTS_LOGGED_MAX) {
            tracing::warn!(path = %defect.path, problem = %defect.problem, "a name is left out or incomplete");
        }
        self.metrics.defects.set(count(defects.len()));
        let unreached = view.zone().map(Zone::unreachable).unwrap_or_default();
        // Once for each host that such containers are on: containers come and go too often for that.
        if !unreached.hosts.is_subset(&before.unreached.hosts) {
            tracing::warn!(
                containers = unreached.containers,
                hosts = unreached.hosts.len(),
                example = unreached.example.as_deref().unwrap_or_default(),
                "containers of other hosts are left out of answers, since no address of theirs is reached from here: use a \
                 routed network, or publish each port under its own number (docs/etcd.md, \"Names across hosts\"); \
                 `dns query NAME` says why for each name"
            );
        }
        self.metrics.unreachable.set(count(unreached.containers));
        Wrong { defects, unreached }
    }
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
