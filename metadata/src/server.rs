//! The service on its sockets: connections, requests, and requests that wait.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use model::Snapshot;
use platform::socket::{is_out_of_descriptors, is_transient};
use prometheus_client::registry::Registry;
use source::{Derivation, Store, derive};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, warn};

use crate::access::{Access, Admission, Denial, Session, Visit};
use crate::body::Content;
use crate::change_log::ChangeLog;
use crate::changes;
use crate::config::{Cors, Limits, Options, ServiceTokens, WhenEmpty};
use crate::head;
use crate::limits::{Clients, Place, Share};
use crate::metrics::{Counted, Metrics, Status};
use crate::negotiate;
use crate::path::Method;
use crate::query::Wait;
use crate::respond::{Answer, Outcome, Question, SIZED_MAX, Wanted};
use crate::session::KEY_OCTETS;
use crate::tree::{Client, Tree};
use crate::wire::Wire;

/// Most connections that are refused but not closed yet, so that their clients learn why.
const REFUSED_MAX: usize = 64;

/// How long such a connection may take.
const REFUSED_TIME_MAX: Duration = Duration::from_secs(1);

/// How much of its request is read: closing with octets unread would take the answer away from the client.
const REFUSED_OCTETS_MAX: usize = 16 << 10;

/// hyper's buffer of a connection, in octets; heads are read before it, so that its least is enough.
const BUFFER_OCTETS: usize = 8 << 10;

/// How long to wait for descriptors or handles to become free before accepting again.
const OUT_OF_DESCRIPTORS_PAUSE: Duration = Duration::from_millis(50);

/// How long an error that comes again and again is not logged again.
const WARNING_PAUSE: Duration = Duration::from_mins(1);

/// What a connection too many is told.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 1\r\nContent-Length: 21\r\nConnection: close\r\n\r\nToo many connections\n";

/// What a client with as many connections as it may have is told about one more.
const TOO_MANY_OF_CLIENT: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 1\r\nContent-Length: 35\r\nConnection: close\r\n\r\nToo many connections of one client\n";

/// The metadata service.
#[derive(Debug)]
pub struct Server {
    /// The view and the log, kept up to date.
    derived: [Derivation; 2],
    shared: Arc<Shared>,
}

/// Why there is no service.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system gives no random octets, of which the key of the session tokens is made.
    #[error("no random key for session tokens: {0}")]
    Key(getrandom::Error),
}

/// What all connections share.
#[derive(Debug)]
struct Shared {
    views: Arc<Store<Tree>>,
    logs: Arc<Store<ChangeLog>>,
    xff: bool,
    when_empty: WhenEmpty,
    tokens: ServiceTokens,
    cors: Cors,
    access: Access,
    limits: Limits,
    clients: Arc<Clients>,
    /// Whether the client at this end of a connection is not limited.
    exempt: fn(Ends) -> bool,
    refusing: Arc<Semaphore>,
    /// When the key of the session tokens was made.
    started: Instant,
    unavailable: Arc<AtomicBool>,
    metrics: Metrics,
    stop: CancellationToken,
}

impl Server {
    /// A service that shows the snapshots of this store.
    pub fn new(
        options: &Options,
        snapshots: Arc<Store<Snapshot>>,
        registry: &mut Registry,
    ) -> Result<Self, StartError> {
        let mut key = [0; KEY_OCTETS];
        getrandom::fill(&mut key).map_err(StartError::Key)?;
        let shared = Shared {
            views: Arc::new(Store::new(Tree::empty())),
            logs: Arc::new(Store::new(ChangeLog::empty())),
            xff: options.xff,
            when_empty: options.when_empty,
            tokens: options.service_tokens,
            cors: options.cors,
            access: Access::new(options, key),
            limits: options.limits,
            clients: Arc::new(Clients::new(options.limits)),
            exempt: is_host,
            refusing: Arc::new(Semaphore::new(REFUSED_MAX)),
            started: Instant::now(),
            unavailable: Arc::default(),
            metrics: Metrics::new(registry),
            stop: CancellationToken::new(),
        };
        let derived = [
            derive(snapshots.clone(), shared.views.clone(), |new, _, view: &Arc<Tree>| view.next(new)),
            derive(snapshots, shared.logs.clone(), |new, _, log: &Arc<ChangeLog>| log.next(new)),
        ];
        Ok(Self { derived, shared: Arc::new(shared) })
    }

    /// Whether there ought to be data but are none (a source is there and cannot be used): while this is set and
    /// nothing was ever published, everything is answered with 503, whatever the options say.
    pub fn unavailable(&self) -> Arc<AtomicBool> {
        self.shared.unavailable.clone()
    }

    /// The view that is served, for those who want to know when it is there.
    pub fn views(&self) -> Arc<Store<Tree>> {
        self.shared.views.clone()
    }

    /// Serves on this socket until `stop`; then answers what is in flight, waiting requests with what they
    /// have, and returns.
    ///
    /// # Cancel safety
    ///
    /// When dropped, connections live on until their clients or their limits end them; better use `stop`.
    pub async fn run(self, listener: StdListener, stop: CancellationToken) {
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return error!(%error, "the socket cannot be used"),
        };
        let tasks = TaskTracker::new();
        let shared = self.shared;
        let mut following = JoinSet::new();
        for derivation in self.derived {
            following.spawn(shared.stop.clone().run_until_cancelled_owned(derivation));
        }
        tasks.spawn(accept(listener, shared.clone(), tasks.clone()));
        stop.cancelled().await;
        shared.stop.cancel();
        tasks.close();
        tasks.wait().await;
        while let Some(ended) = following.join_next().await {
            if ended.is_err() {
                error!("the task that keeps the view up to date failed");
            }
        }
    }
}

impl Shared {
    /// A client's share of the service, `None` when it is not limited; or what it is told instead.
    fn let_in(&self, ends: Ends) -> Result<(Counted, Option<Share>), &'static [u8]> {
        if self.metrics.connections.get() >= i64::from(self.limits.connections) {
            self.metrics.refused("connections");
            return Err(TOO_MANY);
        }
        let share = (!(self.exempt)(ends)).then(|| self.clients.connect(ends.peer, self.started.elapsed()));
        let share = share.transpose().map_err(|_| {
            self.metrics.refused("client_connections");
            TOO_MANY_OF_CLIENT
        })?;
        // Counted at once: more may be accepted before the task of this one runs.
        Ok((Counted::new(&self.metrics.connections), share))
    }
}

/// Accepts connections until the service stops; nothing that goes wrong with one ends it.
async fn accept(listener: TcpListener, shared: Arc<Shared>, tasks: TaskTracker) {
    // Where connections arrive; of a listener on all addresses, each connection knows.
    let bound = listener.local_addr().ok().filter(|address| !address.ip().is_unspecified());
    let mut warned: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shared.stop.cancelled() => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                // The connection is gone already when its own address is not known.
                let Some(local) = bound.or_else(|| stream.local_addr().ok()) else { continue };
                let ends = Ends { peer: peer.ip(), local };
                match shared.let_in(ends) {
                    Ok((counted, share)) => _ = tasks.spawn(connection(stream, ends, share, counted, shared.clone())),
                    Err(why) => refuse(stream, why, &shared, &tasks),
                }
            }
            Err(error) => {
                // A connection that was given up before it was accepted is nobody's fault.
                let mean = !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted);
                if mean && warned.is_none_or(|last| last.elapsed() >= WARNING_PAUSE) {
                    warn!(%error, "cannot accept connections; going on");
                    warned = Some(Instant::now());
                }
                if is_out_of_descriptors(&error) || !is_transient(&error) {
                    sleep(OUT_OF_DESCRIPTORS_PAUSE).await;
                }
            }
        }
    }
}

/// Tells a client why it gets no connection.
fn refuse(mut stream: TcpStream, why: &'static [u8], shared: &Shared, tasks: &TaskTracker) {
    // It always fits into a new connection's buffer; when not, the client is gone.
    let Ok(permit) = shared.refusing.clone().try_acquire_owned() else { return };
    tasks.spawn(async move {
        let _permit = permit;
        let tell = async {
            stream.write_all(why).await?;
            stream.shutdown().await?;
            let mut discarded = Vec::with_capacity(REFUSED_OCTETS_MAX);
            while discarded.len() < REFUSED_OCTETS_MAX && stream.read_buf(&mut discarded).await? > 0 {}
            io::Result::Ok(())
        };
        // Whatever happens, the connection ends.
        let _ = timeout(REFUSED_TIME_MAX, tell).await;
    });
}

/// Whether a client is on the service's own host, whose limits are the host's.
fn is_host(ends: Ends) -> bool {
    let peer = ends.peer.to_canonical();
    peer.is_loopback() || peer == ends.local.ip().to_canonical()
}

/// The two ends of a connection.
#[derive(Clone, Copy, Debug)]
struct Ends {
    peer: IpAddr,
    local: SocketAddr,
}

/// Who is at the other end of a connection.
#[derive(Debug)]
struct Visitor {
    ends: Ends,
    /// `None` when the client is not limited.
    share: Option<Share>,
}

/// Serves one connection to its end.
async fn connection(stream: TcpStream, ends: Ends, share: Option<Share>, counted: Counted, shared: Arc<Shared>) {
    let _counted = counted;
    let idle = Duration::from_secs(shared.limits.idle.into());
    // Fails only for a connection that is gone already.
    let _ = stream.set_nodelay(true);
    let stop = shared.stop.clone();
    let visitor = Arc::new(Visitor { ends, share });
    let service = service_fn(move |request| respond(shared.clone(), visitor.clone(), request));
    let connection = http1::Builder::new()
        .title_case_headers(true)
        .header_read_timeout(None)
        .max_buf_size(BUFFER_OCTETS)
        .serve_connection(Wire::new(stream, idle), service);
    let mut connection = std::pin::pin!(connection);
    // An error is the client's, or ends what the client ended.
    let _ = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
}

/// Answers one request.
///
/// # Cancel safety
///
/// Dropped when the client hangs up.
async fn respond(
    shared: Arc<Shared>,
    visitor: Arc<Visitor>,
    request: Request<Incoming>,
) -> Result<Response<Content>, Infallible> {
    let outcome = outcome(&shared, &visitor, &request);
    drop(request);
    let answer = match outcome {
        Outcome::Answer(answer) => answer,
        Outcome::Wait(question, wait) => wait_for(&shared, &visitor, &question, &wait).await,
        Outcome::Changes(known) => match changes(&shared, &visitor, known) {
            Ok(response) => return Ok(response),
            Err(answer) => answer,
        },
    };
    shared.metrics.requests.get_or_create(&Status { status: answer.status }).inc();
    Ok(response(answer, shared.cors))
}

/// What becomes of a request, from the view of this moment.
fn outcome(shared: &Shared, visitor: &Visitor, request: &Request<Incoming>) -> Outcome {
    let target = match head::target(request.uri().path()) {
        Ok(target) => target,
        Err(status) => return Outcome::Answer(Answer::refusal(status)),
    };
    if let Some(Err(exhausted)) = visitor.share.as_ref().map(|share| share.request(shared.started.elapsed())) {
        shared.metrics.refused("client_rate");
        return Outcome::Answer(Answer::exhausted("Too many requests of one client", exhausted));
    }
    match admit(shared, visitor.ends, &target, request) {
        Ok(Admission::Everything(_)) => {}
        Ok(Admission::Token(token, seconds)) => return Outcome::Answer(Answer::token(token, seconds)),
        Err(denial) => return Outcome::Answer(Answer::denied(denial)),
    }
    let tree = shared.views.load();
    if tree.is_empty() && (shared.when_empty == WhenEmpty::Unavailable || shared.unavailable.load(Ordering::Relaxed)) {
        return Outcome::Answer(Answer::unavailable());
    }
    let headers = request.headers();
    let forwarded = headers.get("x-forwarded-for").filter(|value| shared.xff && !value.is_empty());
    let mut client = forwarded.map_or_else(
        || Client::at(visitor.ends.peer),
        |value| Client::named(&String::from_utf8_lossy(value.as_bytes())),
    );
    client.proxied = shared.xff;
    client.tokens = shared.tokens;
    let accept = || headers.get_all(ACCEPT).iter().map(HeaderValue::as_bytes);
    let wanted = Wanted { format: negotiate::format(accept()), page: negotiate::prefers_page(accept()) };
    let method = match *request.method() {
        hyper::Method::GET | hyper::Method::HEAD => Method::Read,
        hyper::Method::OPTIONS => Method::Options,
        hyper::Method::PUT => Method::Put,
        _ => Method::Other,
    };
    guarded(shared, || Outcome::of(&tree, method, &target, client, wanted))
        .unwrap_or_else(|| Outcome::Answer(Answer::failure()))
}

/// Whether the request is let in, and for what; counts what becomes of it.
fn admit(shared: &Shared, ends: Ends, target: &[u8], request: &Request<Incoming>) -> Result<Admission, Denial> {
    let mut visit = Visit {
        peer: ends.peer,
        local: ends.local,
        now: shared.started.elapsed(),
        put: request.method() == hyper::Method::PUT,
        target,
        host: None,
        forwarded: false,
        token: None,
        lifetime: None,
    };
    let mut lifetimes = 0;
    for (name, value) in request.headers() {
        match name.as_str() {
            "host" => visit.host = Some(value.as_bytes()),
            "x-forwarded-for" | "forwarded" => visit.forwarded = true,
            "x-aws-ec2-metadata-token" | "x-metadata-token" => visit.token = visit.token.or(Some(value.as_bytes())),
            "x-aws-ec2-metadata-token-ttl-seconds" | "x-metadata-token-ttl-seconds" => {
                lifetimes += 1;
                visit.lifetime = Some(value.as_bytes()).filter(|_| lifetimes == 1);
            }
            _ => {}
        }
    }
    if visit.forwarded {
        shared.metrics.forwarded.inc();
    }
    let admitted = shared.access.admit(&visit);
    match &admitted {
        Ok(Admission::Everything(Session::Ignored)) => {}
        Ok(Admission::Everything(Session::Valid)) => shared.metrics.token("valid"),
        Ok(Admission::Everything(Session::Missing)) => shared.metrics.token("missing"),
        Ok(Admission::Token(..)) => shared.metrics.token("issued"),
        Err(denial) => {
            match denial {
                Denial::TokenMissing => shared.metrics.token("missing"),
                Denial::TokenInvalid => shared.metrics.token("invalid"),
                _ => {}
            }
            shared.metrics.refused(denial.label());
        }
    }
    admitted
}

/// Waits until the value is another one than the client knows, the time is over, or the service stops.
///
/// # Cancel safety
///
/// May be dropped at any time.
async fn wait_for(shared: &Shared, visitor: &Visitor, question: &Question, wait: &Wait) -> Answer {
    let _place = match place(shared, visitor) {
        Ok(place) => place,
        Err(answer) => return answer,
    };
    let deadline = Instant::now() + wait.longest;
    // First watch, then look: a publication in between is seen twice, never missed.
    let mut watcher = shared.views.watch();
    loop {
        let look = || question.answer_unless(&shared.views.load(), &wait.known);
        match guarded(shared, look) {
            Some(None) => {}
            Some(Some(answer)) => return answer,
            None => return Answer::failure(),
        }
        let over = tokio::select! {
            changed = timeout_at(deadline, watcher.changed()) => changed.is_err(),
            () = shared.stop.cancelled() => true,
        };
        if over {
            let look = || question.answer(&shared.views.load());
            return guarded(shared, look).unwrap_or_else(Answer::failure);
        }
    }
}

/// A place among the requests that wait, or why there is none.
fn place(shared: &Shared, visitor: &Visitor) -> Result<(Counted, Option<Place>), Answer> {
    // Those that wait are connections too, and leave room for requests that do not wait.
    if shared.metrics.waiters.get() >= i64::from(shared.limits.connections / 4 * 3) {
        shared.metrics.refused("waiters");
        return Err(Answer::too_many_wait());
    }
    let place = visitor.share.as_ref().map(Share::wait).transpose().map_err(|exhausted| {
        shared.metrics.refused("client_waiters");
        Answer::exhausted("Too many requests of one client wait", exhausted)
    })?;
    Ok((Counted::new(&shared.metrics.waiters), place))
}

/// The stream of changes, or why there is none.
fn changes(shared: &Shared, visitor: &Visitor, known: Option<String>) -> Result<Response<Content>, Answer> {
    let place = place(shared, visitor)?;
    let pieces = changes::start(shared.logs.clone(), known, place, shared.stop.clone());
    let pieces = pieces.ok_or_else(Answer::unavailable)?;
    shared.metrics.requests.get_or_create(&Status { status: 200 }).inc();
    let mut response = Response::new(Content::Stream(pieces));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
}

/// What `work` gives; `None` when it panics, which is counted and harms nobody else.
fn guarded<T>(shared: &Shared, work: impl FnOnce() -> T) -> Option<T> {
    // A view is never changed, so that work which was cut short leaves nothing half done.
    catch_unwind(AssertUnwindSafe(work)).inspect_err(|_| _ = shared.metrics.panics.inc()).ok()
}

/// The response that carries an answer.
fn response(answer: Answer, cors: Cors) -> Response<Content> {
    let headers = answer.headers(cors).into_iter().filter_map(|(name, value)| {
        // All that goes into a header was checked or escaped before.
        Some((HeaderName::from_static(name), HeaderValue::from_str(&value).ok()?))
    });
    let headers = headers.collect();
    let sized = answer.body.len() <= SIZED_MAX;
    let mut response = Response::new(Content::Whole { octets: Bytes::from(answer.body), sized });
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.headers_mut() = headers;
    response
}

#[cfg(test)]
mod tests;
