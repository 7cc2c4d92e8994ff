//! What becomes of a request: who may ask, what is answered, what waits, and what all connections share for it.

use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use model::CLIENT_KNOWN_WITHIN;
use model::change_line::LINE_BYTES;
use process::Clients;
use process::quota::Places;
use prometheus_client::registry::Registry;
use source::Store;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::Receiver;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::body::parts::Part;
use crate::config::{Cors, Limits, Options, ServiceTokens, WhenEmpty};
use crate::http::access::{Access, Admission, Denial, Session, Visit};
use crate::http::asked::{Asked, Field};
use crate::http::changes::{self, Follower, Line};
use crate::http::limits::{Exhausted, Place, Share, TooMuch, Unread, Usage};
use crate::http::proxies::Proxies;
use crate::http::resting::Evictions;
use crate::http::session::KEY_BYTES;
use crate::metrics::{Counted, Metrics};
use crate::negotiate;
use crate::path::Method;
use crate::query::Wait;
use crate::respond::{Answer, Outcome, Question, SIZED_MAX, Wanted};
use crate::traefik::{Balancer, LastAnswer};
use crate::tree::Client;
use crate::view::View;

/// In which time waiting requests are answered when another process takes the place of this one: a little less than that leaves it.
const ENDING_SPREAD: Duration = Duration::from_millis(800);

/// Multiples of this, cut to 32 bits, are spread evenly, however many there are (2^32 divided by the golden ratio).
const SPREADING: u32 = 2_654_435_769;

/// Most connections that are refused but not closed yet, so that their clients learn why.
const REFUSED_MAX: usize = 64;

/// Most bodies that are being written at the same time, beside the light ones: they take whole processors.
const WRITING_MAX: usize = 2;

/// Longest time for which a client that has ended its side of the connection goes on waiting for a change.
///
/// It may only have said all that it has to say, and reads on; or it is gone, which looks the same until something is
/// sent. So it gets its answer, and one that is gone holds a place among those that wait no longer than this.
const ENDED_WAIT_MAX: Duration = Duration::from_secs(2);

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) views: Arc<Store<View>>,
    pub(crate) proxies: Proxies,
    /// Whether clients become known while they ask: the source is the engine that runs them.
    pub(crate) live: AtomicBool,
    pub(crate) when_empty: WhenEmpty,
    pub(crate) tokens: ServiceTokens,
    pub(crate) cors: Cors,
    pub(crate) access: Access,
    pub(crate) limits: Limits,
    pub(crate) usage: Arc<Usage>,
    /// Whose connections are served.
    pub(crate) clients: Clients,
    /// Whether the client at this end of a connection is not limited.
    pub(crate) exempt: fn(Ends) -> bool,
    pub(crate) refusing: Arc<Semaphore>,
    pub(crate) writing: Arc<Semaphore>,
    /// Whether bodies are written where they are asked for, which only a test does that has no other threads.
    pub(crate) in_place: bool,
    pub(crate) evictions: Arc<Evictions>,
    /// When the key of the session tokens was made.
    pub(crate) started: Instant,
    pub(crate) unavailable: Arc<AtomicBool>,
    pub(crate) metrics: Metrics,
    /// Cancelled when another process serves the connections that come from now on.
    pub(crate) ending: CancellationToken,
    /// How many waiting requests were answered for that.
    pub(crate) ended: AtomicU32,
    pub(crate) stop: CancellationToken,
}

/// The two ends of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) peer: IpAddr,
    /// The port of the peer.
    pub(crate) port: u16,
    pub(crate) local: SocketAddr,
}

/// Who is at the other end of a connection.
#[derive(Debug)]
pub(crate) struct Visitor {
    pub(crate) ends: Ends,
    /// `None` when the client is not limited.
    pub(crate) share: Option<Share>,
    /// Cancelled when the client has ended its side of the connection.
    pub(crate) ended: CancellationToken,
    /// What it was answered last of a balancer.
    balancer: LastAnswer,
}

impl Visitor {
    /// A client that has not ended its side of the connection.
    pub(crate) fn new(ends: Ends, share: Option<Share>) -> Self {
        Self { ends, share, ended: CancellationToken::new(), balancer: LastAnswer::default() }
    }
}

/// What is sent back.
#[derive(Debug)]
pub(crate) enum Reply {
    Answer(Answer),
    /// A value, in pieces, which count as unread meanwhile.
    Pieces(Vec<Bytes>, Unread),
    /// Changes as they come.
    Changes(Receiver<Line>),
}

/// Why a connection is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowded {
    /// There are too many in all.
    All,
    /// The client has too many.
    Client,
    /// The client may have none.
    Stranger,
}

/// Whether a client is on the service's own host, whose limits are the host's.
pub(crate) fn is_host(ends: Ends) -> bool {
    let peer = ends.peer.to_canonical();
    peer.is_loopback() || peer == ends.local.ip().to_canonical()
}

/// Limits with no more connections than fit into the descriptors of the process, of which `None` are not limited.
fn within(limits: Limits, descriptors: Option<u64>) -> Limits {
    let number = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    let wanted = Places { per_client: number(limits.client_connections), in_all: number(limits.connections) };
    let fitting = wanted.within(descriptors);
    let (connections, of_client) = (u32::try_from(fitting.in_all), u32::try_from(fitting.per_client));
    Limits {
        connections: connections.unwrap_or(limits.connections),
        // 0 is no limit, which then stays the operator's wish.
        client_connections: of_client.unwrap_or(limits.client_connections).min(limits.client_connections),
        ..limits
    }
}

impl Service {
    /// One that shows nothing yet; `key` is that of the session tokens.
    pub(crate) fn new(options: &Options, clients: Clients, key: [u8; KEY_BYTES], registry: &mut Registry) -> Self {
        let limits = within(options.limits, platform::limits::descriptors());
        Self {
            views: Arc::new(Store::new(View::empty())),
            proxies: Proxies::new(options),
            live: AtomicBool::new(false),
            when_empty: options.when_empty,
            tokens: options.service_tokens,
            cors: options.cors,
            access: Access::new(options, key),
            limits,
            usage: Arc::new(Usage::new(limits)),
            clients,
            exempt: is_host,
            refusing: Arc::new(Semaphore::new(REFUSED_MAX)),
            writing: Arc::new(Semaphore::new(WRITING_MAX)),
            in_place: false,
            evictions: Arc::default(),
            started: Instant::now(),
            unavailable: Arc::default(),
            metrics: Metrics::new(registry),
            ending: CancellationToken::new(),
            ended: AtomicU32::new(0),
            stop: CancellationToken::new(),
        }
    }

    /// Whether connections end with their next response.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.is_cancelled() || self.evictions.are_closed()
    }

    /// A place for one connection more and its client's share of the service; or why there is none.
    ///
    /// When all places are taken, a connection that rests has to go.
    pub(crate) fn let_in(&self, ends: Ends) -> Result<(Counted, Option<Share>), Crowded> {
        if !self.clients.contains(ends.peer) && !self.is_of_cluster(ends) {
            self.clients.log_refusal("metadata", ends.peer);
            self.metrics.refused("clients");
            return Err(Crowded::Stranger);
        }
        let share = (!(self.exempt)(ends)).then(|| self.usage.connect(ends.peer, self.started.elapsed()));
        let share = share.transpose().map_err(|_| {
            self.metrics.refused("client_connections");
            Crowded::Client
        })?;
        if self.metrics.connections.get() >= i64::from(self.limits.connections) {
            if !self.evictions.evict() {
                self.metrics.refused("connections");
                return Err(Crowded::All);
            }
            self.metrics.evicted.inc();
        }
        // Counted at once: more may be accepted before the task of this one runs.
        Ok((Counted::new(&self.metrics.connections), share))
    }

    /// Whether a client is this host or a container, in whichever network it is.
    fn is_of_cluster(&self, ends: Ends) -> bool {
        is_host(ends) || self.guarded(|| self.views.load().tree.knows(&Client::at(ends.peer))).unwrap_or(false)
    }

    /// Whether a response depends on nothing but the view, the client and the request.
    pub(crate) fn is_open(&self) -> bool {
        self.access.is_open() && self.limits.client_rate == 0
    }

    /// What becomes of a request, as of this moment.
    pub(crate) fn outcome(&self, visitor: &Visitor, asked: &Asked<'_>) -> Outcome<'static> {
        match self.admit(visitor, asked) {
            Ok(None) => {
                let view = self.views.load();
                if self.is_unavailable(&view) {
                    return Outcome::Answer(Answer::unavailable());
                }
                let outcome = self.guarded(|| self.route(&view, visitor, asked).kept());
                outcome.unwrap_or_else(|| Outcome::Answer(Answer::failure()))
            }
            Ok(Some(answer)) | Err(answer) => Outcome::Answer(answer),
        }
    }

    /// The reply that a request comes to.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time, which is what happens when the client hangs up.
    pub(crate) async fn reply(&self, visitor: &Visitor, outcome: Outcome<'static>) -> Reply {
        let outcome = match outcome {
            Outcome::Wait(question, wait) => self.wait_for(visitor, question, &wait).await,
            Outcome::Hold(question) => Box::pin(self.hold(visitor, question)).await,
            outcome => Some(outcome),
        };
        match outcome {
            Some(Outcome::Answer(answer)) => Reply::Answer(answer),
            Some(Outcome::Show(question)) => {
                Box::pin(self.show(visitor, question)).await.unwrap_or_else(|| Reply::Answer(Answer::failure()))
            }
            Some(Outcome::Balancer(balancer)) => Reply::Answer(Box::pin(self.balancer(visitor, balancer)).await),
            Some(Outcome::Changes(known)) => self.changes(visitor, known).map_or_else(Reply::Answer, Reply::Changes),
            Some(Outcome::Wait(..) | Outcome::Hold(_)) | None => Reply::Answer(Answer::failure()),
        }
    }

    /// Whether there are no data where there ought to be.
    fn is_unavailable(&self, view: &View) -> bool {
        let unavailable = self.when_empty == WhenEmpty::Unavailable || self.unavailable.load(Ordering::Relaxed);
        unavailable && view.tree.is_empty()
    }

    /// What becomes of a request that is let in.
    fn route<'r>(&self, view: &View, visitor: &Visitor, asked: &Asked<'r>) -> Outcome<'r> {
        let mut client = self.proxies.client(visitor.ends.peer, asked.all(Field::ForwardedFor));
        client.tokens = self.tokens;
        client.awaited = self.live.load(Ordering::Relaxed) && client.name.is_none();
        let wanted = Wanted {
            format: negotiate::format(asked.all(Field::Accept)),
            page: negotiate::prefers_page(asked.all(Field::Accept)),
        };
        Outcome::of(&view.tree, asked.method, asked.target, client, wanted)
    }

    /// Whether a request is let in; what is answered instead, because it is not or because it asks for a token.
    /// Counts what becomes of it.
    fn admit(&self, visitor: &Visitor, asked: &Asked<'_>) -> Result<Option<Answer>, Answer> {
        if let Some(Err(exhausted)) = visitor.share.as_ref().map(|share| share.request(|| self.started.elapsed())) {
            self.metrics.refused("client_rate");
            return Err(Answer::exhausted("Too many requests of one client", exhausted));
        }
        let forwarded = asked.is_forwarded();
        if forwarded {
            self.metrics.forwarded.inc();
        }
        if self.access.is_open() {
            return Ok(None);
        }
        let admitted = self.access.admit(&Visit {
            peer: visitor.ends.peer,
            local: visitor.ends.local,
            now: self.started.elapsed(),
            put: asked.method == Method::Put,
            target: asked.target,
            host: asked.first(Field::Host),
            forwarded,
            token: asked.first(Field::Token),
            lifetime: asked.only(Field::Lifetime),
        });
        match admitted {
            Ok(Admission::Everything(session)) => {
                match session {
                    Session::Ignored => {}
                    Session::Valid => self.metrics.token("valid"),
                    Session::Missing => self.metrics.token("missing"),
                }
                Ok(None)
            }
            Ok(Admission::Token(token, seconds)) => {
                self.metrics.token("issued");
                Ok(Some(Answer::token(token, seconds)))
            }
            Err(denial) => {
                match denial {
                    Denial::TokenMissing => self.metrics.token("missing"),
                    Denial::TokenInvalid => self.metrics.token("invalid"),
                    _ => {}
                }
                self.metrics.refused(denial.label());
                Err(Answer::denied(denial))
            }
        }
    }

    /// Waits until the value is another one than the client knows, the time is over, or the service stops; `None` when
    /// the service failed.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    async fn wait_for(
        &self,
        visitor: &Visitor,
        mut question: Question<'static>,
        wait: &Wait,
    ) -> Option<Outcome<'static>> {
        let _place = match self.place(visitor, false) {
            Ok(place) => place,
            Err(answer) => return Some(Outcome::Answer(answer)),
        };
        let deadline = Instant::now() + wait.longest;
        self.identify(visitor, &mut question).await?;
        let ended = async {
            visitor.ended.cancelled().await;
            sleep(ENDED_WAIT_MAX).await;
        };
        let mut ended = pin!(ended);
        // First watch, then look: a publication in between is seen twice, never missed.
        let mut watcher = self.views.watch();
        loop {
            let look = || {
                let view = self.views.load();
                (!question.is_heavy(&view.tree)).then(|| question.differs(&view.tree, &wait.known))
            };
            let differs = if let Some(differs) = self.guarded(look)? {
                differs
            } else {
                let (view, question, known) = (self.views.load_full(), question.clone(), wait.known.clone());
                self.work(move || question.differs(&view.tree, &known)).await?
            };
            let over = differs
                || tokio::select! {
                    changed = timeout_at(deadline, watcher.changed()) => changed.is_err(),
                    () = self.no_longer_waits() => true,
                    () = &mut ended => true,
                };
            if over {
                return self.guarded(|| question.outcome(&self.views.load().tree));
            }
        }
    }

    /// Completes when a request that waits is to be answered though nothing has changed: when the service stops, and before that, one
    /// after the other, if another process serves new connections. All of them at once would come to that one at once, and others of
    /// its clients would have to wait behind them.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    async fn no_longer_waits(&self) {
        let ending = async {
            self.ending.cancelled().await;
            let turn = self.ended.fetch_add(1, Ordering::Relaxed);
            sleep(ENDING_SPREAD * (turn.wrapping_mul(SPREADING) >> 16) / (1 << 16)).await;
        };
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = ending => {}
        }
    }

    /// The plan of a balancer, as soon as it is another one than was sent over this connection, or when the time is over.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    async fn balancer(&self, visitor: &Visitor, balancer: Balancer) -> Answer {
        let _place = match self.place(visitor, false) {
            Ok(place) => place,
            Err(answer) => return answer,
        };
        let deadline = Instant::now() + balancer.held;
        // First watch, then look: a publication in between is seen twice, never missed.
        let mut watcher = self.views.watch();
        loop {
            let (view, asked) = (self.views.load_full(), balancer.clone());
            let Some(body) = self.work(move || asked.body(&view.tree)).await else { return Answer::failure() };
            let Some(body) = body else { return Answer::no_balancer() };
            let over = visitor.balancer.differs(&body)
                || tokio::select! {
                    changed = timeout_at(deadline, watcher.changed()) => changed.is_err(),
                    () = self.no_longer_waits() => true,
                    () = visitor.ended.cancelled() => true,
                };
            if over {
                visitor.balancer.set(&body);
                return Answer::found(body);
            }
        }
    }

    /// Waits until it is known who the client is, the time is over, or the service stops; then what becomes of the
    /// question, or `None` when the service failed.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    async fn hold(&self, visitor: &Visitor, mut question: Question<'static>) -> Option<Outcome<'static>> {
        let deadline = Instant::now() + CLIENT_KNOWN_WITHIN;
        // First watch, then look: a publication in between is seen twice, never missed.
        let mut watcher = self.views.watch();
        if let Ok(_place) = self.place(visitor, false) {
            if !self.identify(visitor, &mut question).await? {
                return self.guarded(|| question.outcome(&self.views.load().tree));
            }
            while self.guarded(|| question.awaits_client(&self.views.load().tree))? {
                let over = tokio::select! {
                    changed = timeout_at(deadline, watcher.changed()) => changed.is_err(),
                    () = self.stop.cancelled() => true,
                };
                if over {
                    break;
                }
            }
        }
        self.guarded(|| question.outcome(&self.views.load().tree))
    }

    /// Finds the container that asks if its address does not identify it; returns whether the request may be answered. `None`
    /// if the service failed.
    async fn identify(&self, visitor: &Visitor, question: &mut Question<'static>) -> Option<bool> {
        if !(self.exempt)(visitor.ends) || !self.guarded(|| question.awaits_client(&self.views.load().tree))? {
            return Some(true);
        }
        // Containers on the host's network share its address; only their sockets identify them.
        let Ends { peer, port, local } = visitor.ends;
        let client = SocketAddr::new(peer, port);
        let id = self.work(move || platform::socket::container_of(client, local)).await?;
        Some(id.map(|id| question.asked_by(id.into())).is_some())
    }

    /// A place among the requests that wait, also among the followers if it `follows`; or why there is none.
    fn place(&self, visitor: &Visitor, follows: bool) -> Result<(Counted, Option<Place>), Answer> {
        // Those that wait are connections too, and leave room for requests that do not wait.
        if self.metrics.waiters.get() >= i64::from(self.limits.connections / 4 * 3) {
            self.metrics.refused("waiters");
            return Err(Answer::too_many_wait());
        }
        let place = visitor.share.as_ref().map(|share| share.wait(follows)).transpose().map_err(|exhausted| {
            self.metrics.refused("client_waiters");
            Answer::exhausted("Too many requests of one client wait", exhausted)
        })?;
        Ok((Counted::new(&self.metrics.waiters), place))
    }

    /// The stream of changes, or why there is none.
    fn changes(&self, visitor: &Visitor, known: Option<String>) -> Result<Receiver<Line>, Answer> {
        let place = self.place(visitor, true)?;
        let unread = || Unread::new(&self.usage, visitor.share.as_ref());
        unread().add(LINE_BYTES).map_err(|too_much| self.too_much(too_much))?;
        let follower = Follower {
            views: self.views.clone(),
            live_clients: self.live.load(Ordering::Relaxed),
            writing: self.writing.clone(),
            // Of all lines together, so that they are one response.
            unread: Arc::new(Mutex::new(unread())),
        };
        changes::start(follower, known, place, self.stop.clone()).ok_or_else(Answer::unavailable)
    }

    /// What is answered instead when too many bytes are unread.
    fn too_much(&self, too_much: TooMuch) -> Answer {
        match too_much {
            TooMuch::Client => {
                self.metrics.refused("client_bytes");
                Answer::exhausted("Too many bytes of one client are unread", Exhausted { retry: 1 })
            }
            TooMuch::All => {
                self.metrics.refused("bytes");
                Answer::too_much_unread()
            }
        }
    }

    /// The body that shows a value which takes time; `None` when the service failed.
    async fn show(&self, visitor: &Visitor, question: Question<'static>) -> Option<Reply> {
        let mut unread = Unread::new(&self.usage, visitor.share.as_ref());
        // Of a client that has too much nothing more is written.
        if let Err(too_much) = unread.add(0) {
            return Some(Reply::Answer(self.too_much(too_much)));
        }
        let view = self.views.load_full();
        let mut pieces = Vec::new();
        for part in self.guarded(|| question.parts(&view.tree))? {
            let write = async |keys: Vec<String>| {
                let (view, question) = (view.clone(), question.clone());
                let written = self.work(move || question.part(&view.tree, &keys)).await;
                written.map(Bytes::from).ok_or(())
            };
            let piece = match part {
                Part::Written(text) => text.into(),
                Part::Own(keys) => write(keys).await.ok()?,
                Part::Shared(piece, keys) => view.renderings.get(&piece, async || write(keys).await).await.ok()?,
            };
            if let Err(too_much) = unread.add(piece.len()) {
                return Some(Reply::Answer(self.too_much(too_much)));
            }
            pieces.push(piece);
        }
        // A body that is no longer than the answers of one piece looks like them.
        if pieces.iter().map(Bytes::len).sum::<usize>() <= SIZED_MAX {
            return Some(Reply::Answer(Answer::found(String::from_utf8(pieces.concat()).ok()?)));
        }
        Some(Reply::Pieces(pieces, unread))
    }

    /// The result of work that takes time, done on a thread that serves no connections; `None` if it panics.
    async fn work<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let _permit = self.writing.acquire().await.ok()?;
        if self.in_place {
            return self.guarded(work);
        }
        let done = spawn_blocking(work).await;
        done.inspect_err(|_| _ = self.metrics.panics.inc()).ok()
    }

    /// The result of `work`; `None` if it panics, which is counted and affects no other request.
    pub(crate) fn guarded<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        // A view is never changed, so that work which was cut short leaves nothing half done.
        catch_unwind(AssertUnwindSafe(work)).inspect_err(|_| _ = self.metrics.panics.inc()).ok()
    }
}

#[cfg(test)]
mod tests;
