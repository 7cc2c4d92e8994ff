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
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use model::Snapshot;
use platform::socket::{is_out_of_descriptors, is_transient};
use prometheus_client::registry::Registry;
use source::{Derivation, Store, derive};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, warn};

use crate::access::{Access, Admission, Denial, Session, Visit};
use crate::body::Content;
use crate::change_log::ChangeLog;
use crate::changes;
use crate::config::{Cors, Options, ServiceTokens, WhenEmpty};
use crate::head;
use crate::metrics::{Counted, Metrics, Status};
use crate::negotiate;
use crate::path::Method;
use crate::query::Wait;
use crate::respond::{Answer, Outcome, Question, SIZED_MAX};
use crate::session::KEY_OCTETS;
use crate::tree::{Client, Tree};
use crate::wire::Wire;

/// Most connections at once; one more is told so and closed.
///
/// Each costs up to 16 KiB, all together 256 MiB. A host runs some hundred containers.
const CONNECTIONS_MAX: i64 = 16_384;

/// Most requests that wait at once; they are connections too, and leave room for requests that do not wait.
const WAITERS_MAX: i64 = 12_288;

/// hyper's buffer of a connection, in octets; heads are read before it, so that its least is enough.
const BUFFER_OCTETS: usize = 8 << 10;

/// How long to wait for descriptors or handles to become free before accepting again.
const OUT_OF_DESCRIPTORS_PAUSE: Duration = Duration::from_millis(50);

/// How long an error that comes again and again is not logged again.
const WARNING_PAUSE: Duration = Duration::from_mins(1);

/// What a connection too many is told.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 1\r\nContent-Length: 21\r\nConnection: close\r\n\r\nToo many connections\n";

/// Headers that carry a session token; the first that is there counts.
const TOKEN_HEADERS: [&str; 2] = ["x-aws-ec2-metadata-token", "x-metadata-token"];

/// Headers that ask for the life of a new one; only one may be there.
const LIFETIME_HEADERS: [&str; 2] = ["x-aws-ec2-metadata-token-ttl-seconds", "x-metadata-token-ttl-seconds"];

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

/// Accepts connections until the service stops; nothing that goes wrong with one ends it.
async fn accept(listener: TcpListener, shared: Arc<Shared>, tasks: TaskTracker) {
    let mut warned: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shared.stop.cancelled() => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                if shared.metrics.connections.get() >= CONNECTIONS_MAX {
                    // Not worth waiting for: when the client does not take it at once, it learns nothing.
                    let _ = stream.try_write(TOO_MANY);
                    continue;
                }
                tasks.spawn(connection(stream, peer.ip(), shared.clone()));
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

/// The two ends of a connection.
#[derive(Clone, Copy, Debug)]
struct Ends {
    peer: IpAddr,
    local: SocketAddr,
}

/// Serves one connection to its end.
async fn connection(stream: TcpStream, peer: IpAddr, shared: Arc<Shared>) {
    let _counted = Counted::new(&shared.metrics.connections);
    // Fails only for a connection that is gone already.
    let _ = stream.set_nodelay(true);
    // The connection is gone already when its own address is not known.
    let Ok(local) = stream.local_addr() else { return };
    let stop = shared.stop.clone();
    let service = service_fn(move |request| respond(shared.clone(), Ends { peer, local }, request));
    let connection = http1::Builder::new()
        .title_case_headers(true)
        .header_read_timeout(None)
        .max_buf_size(BUFFER_OCTETS)
        .serve_connection(Wire::new(stream), service);
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
async fn respond(shared: Arc<Shared>, ends: Ends, request: Request<Incoming>) -> Result<Response<Content>, Infallible> {
    let outcome = outcome(&shared, ends, &request);
    drop(request);
    let answer = match outcome {
        Outcome::Answer(answer) => answer,
        Outcome::Wait(question, wait) => wait_for(&shared, &question, &wait).await,
        Outcome::Changes(known) => match changes(&shared, known) {
            Ok(response) => return Ok(response),
            Err(answer) => answer,
        },
    };
    shared.metrics.requests.get_or_create(&Status { status: answer.status }).inc();
    Ok(response(answer, shared.cors))
}

/// What becomes of a request, from the view of this moment.
fn outcome(shared: &Shared, ends: Ends, request: &Request<Incoming>) -> Outcome {
    let target = match head::target(request.uri().path()) {
        Ok(target) => target,
        Err(status) => return Outcome::Answer(Answer::refusal(status)),
    };
    match admit(shared, ends, &target, request) {
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
    let mut client = forwarded
        .map_or_else(|| Client::at(ends.peer), |value| Client::named(&String::from_utf8_lossy(value.as_bytes())));
    client.proxied = shared.xff;
    client.tokens = shared.tokens;
    let format = negotiate::format(headers.get_all(ACCEPT).iter().map(HeaderValue::as_bytes));
    let method = match *request.method() {
        hyper::Method::GET | hyper::Method::HEAD => Method::Read,
        hyper::Method::OPTIONS => Method::Options,
        hyper::Method::PUT => Method::Put,
        _ => Method::Other,
    };
    guarded(shared, || Outcome::of(&tree, method, &target, client, format))
        .unwrap_or_else(|| Outcome::Answer(Answer::failure()))
}

/// Whether the request is let in, and for what; counts what becomes of it.
fn admit(shared: &Shared, ends: Ends, target: &[u8], request: &Request<Incoming>) -> Result<Admission, Denial> {
    let headers = request.headers();
    let first = |names: &[&str]| names.iter().find_map(|name| headers.get(*name)).map(HeaderValue::as_bytes);
    let forwarded = headers.contains_key("x-forwarded-for") || headers.contains_key("forwarded");
    if forwarded {
        shared.metrics.forwarded.inc();
    }
    let admitted = shared.access.admit(&Visit {
        peer: ends.peer,
        local: ends.local,
        now: shared.started.elapsed(),
        put: request.method() == hyper::Method::PUT,
        target,
        host: headers.get(HOST).map(HeaderValue::as_bytes),
        forwarded,
        token: first(&TOKEN_HEADERS),
        lifetime: only(headers, &LIFETIME_HEADERS),
    });
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

/// The value of the only line among those with these names.
fn only<'h>(headers: &'h HeaderMap, names: &[&str]) -> Option<&'h [u8]> {
    let mut values = names.iter().flat_map(|name| headers.get_all(*name));
    values.next().filter(|_| values.next().is_none()).map(HeaderValue::as_bytes)
}

/// Waits until the value is another one than the client knows, the time is over, or the service stops.
///
/// # Cancel safety
///
/// May be dropped at any time.
async fn wait_for(shared: &Shared, question: &Question, wait: &Wait) -> Answer {
    if shared.metrics.waiters.get() >= WAITERS_MAX {
        return Answer::too_many_wait();
    }
    let _counted = Counted::new(&shared.metrics.waiters);
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

/// The stream of changes, or why there is none.
fn changes(shared: &Shared, known: Option<String>) -> Result<Response<Content>, Answer> {
    if shared.metrics.waiters.get() >= WAITERS_MAX {
        return Err(Answer::too_many_wait());
    }
    let counted = Counted::new(&shared.metrics.waiters);
    let pieces = changes::start(shared.logs.clone(), known, counted, shared.stop.clone());
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
