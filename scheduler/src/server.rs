//! The server: the engine over HTTP.
//!
//! Bodies are JSON both ways, and so are errors. Requests with an `Origin` are refused: no web page has any
//! business placing containers, and a browser would let it reach loopback.

use std::hash::{BuildHasher, RandomState};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use futures_util::FutureExt;
use http_body_util::{BodyExt, Limited};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use live::etcd::EtcdClient;
use live::tls::Certificates;
use model::{Snapshot, Text, Value};
use prometheus_client::registry::Registry;
use serde::Serialize;
use source::{Derivation, Readiness, Revision, Store, derive};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::config::{Options, OptionsError, TOKEN_MAX, TOKEN_MIN};
use crate::endpoint::Endpoints;
use crate::engine::{Engine, Placement, Refusal};
use crate::inventory::Inventory;
use crate::journal::Journal;
use crate::ledger::Ledger;
use crate::metrics::{Metrics, Outcome};
use crate::patient::Patient;
use crate::request::Request as PlacementRequest;
use crate::shared::Conversation;
use crate::start::{PROGRESS_MAX, Progress, Reach, Starter, read_certificates};

/// Largest body: 10,000 constraints written at length fit, and are then refused by their number.
const BODY_MAX: usize = 1 << 20;

/// Longest time for a body, from its first octet to its last.
const BODY_TIME: Duration = Duration::from_secs(5);

/// Longest time for a head, for agreeing on TLS, and longest idle time between requests.
const HEAD_TIME: Duration = Duration::from_secs(10);

/// Longest time in which a reader takes not one octet of its answer.
const WRITE_TIME: Duration = Duration::from_secs(10);

/// Longest wait for connections after the stop: answering takes milliseconds, only half-sent requests take longer.
const STOP_TIME: Duration = Duration::from_secs(1);

/// Longest wait for starts and removals after the stop; less than the process itself waits on any system.
const LANDING_TIME: Duration = Duration::from_secs(2);

/// Most connections at once; more wait in the kernel's queue. Starting takes long, so most of them only wait.
const CONNECTIONS_MAX: usize = 16_384;

/// Most octets of bodies at once, however many connections there are.
const BODIES_MAX: usize = 256 << 20;

/// What a body is counted in; small ones count as one.
const BODY_PIECE: usize = 4096;

/// Buffer per connection, so also the largest head.
const BUFFER_MAX: usize = 32 * 1024;

/// How long accepting rests when no descriptor is left.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// When to ask again while nothing is known yet, in seconds: sources need less than that.
const RETRY_COLD: &str = "1";

/// When to ask again when the ledger is full, in seconds: promises lapse within 60.
const RETRY_FULL: &str = "10";

/// The description of the API.
const OPENAPI: &str = include_str!("../openapi.json");

/// The scheduler's service.
#[derive(Debug)]
pub struct Server {
    /// The inventory, kept up to date.
    derived: Derivation,
    app: Arc<App>,
    /// Speaks TLS with those who have a certificate; without it everybody is spoken with as they are.
    tls: Option<Arc<rustls::ServerConfig>>,
    /// With the etcd that keeps the ledger.
    conversation: Option<Conversation>,
    readiness: Option<Arc<Readiness>>,
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
        let token = options.token_file.as_ref().map(read_token).transpose()?;
        let tls = options.tls_certs.as_deref().map(Certificates::in_folder).transpose()?;
        let tls = tls.map(|certificates| certificates.server()).transpose()?.map(Arc::new);
        let inventories = Arc::new(Store::new(Inventory::default()));
        let clock = Clock::start();
        let conversation = match &options.ledger_etcd[..] {
            [] => None,
            members => Some(Conversation::new(EtcdClient::new(options.etcd.with_members(members.to_vec()))?)),
        };
        let ledger = match (&conversation, &options.ledger) {
            (Some(conversation), _) => Ledger::shared(conversation.shared().clone()),
            (None, Some(path)) => {
                let (journal, records) = Journal::open(path, clock.now())?;
                Ledger::kept(journal, records)
            }
            (None, None) => Ledger::new(),
        };
        let certificates = read_certificates(options.docker_certs.as_ref()).map_err(OptionsError::Certificates)?;
        let resolver = options.container_dns.iter().map(|address| address.to_string().into()).collect();
        let engine = Engine::new(inventories.clone(), options.order, options.strategy)
            .with_ledger(ledger)
            .with_endpoints(read_endpoints(options)?);
        let engine = Arc::new(engine);
        let metrics = Metrics::register(registry, engine.clone(), clock);
        let starter = Starter::new(engine.clone(), clock, Reach { certificates, resolver });
        let (random, requests) = (RandomState::new(), AtomicU64::new(0));
        let bodies = Arc::new(Semaphore::new(BODIES_MAX / BODY_PIECE));
        let app = App { engine, starter, metrics, token, clock, random, requests, bodies };
        let views = inventories.clone();
        let build = move |new: &Arc<Snapshot>, _: &Arc<Snapshot>, view: &Arc<Inventory>| {
            if views.revision() == Revision::NONE {
                return Some(Inventory::new(new));
            }
            (!view.is_of(new)).then(|| view.succeeding(new))
        };
        let derived = derive(snapshots, inventories, build);
        Ok(Self { derived, app: Arc::new(app), tls, conversation, readiness: None })
    }

    /// The same, telling there whether it is ready.
    #[must_use]
    pub fn with_readiness(self, readiness: Arc<Readiness>) -> Self {
        Self { readiness: Some(readiness), ..self }
    }

    /// Serves until `stop`, then finishes the requests in flight.
    pub async fn run(self, listener: std::net::TcpListener, stop: CancellationToken) {
        let following = tokio::spawn(self.derived);
        let starter = self.app.starter.clone();
        let farewell = CancellationToken::new();
        let conversation = self.conversation.map(|conversation| {
            tokio::spawn(starter.clone().resume_adopted(conversation.shared().clone(), stop.clone()));
            let engine = self.app.engine.clone();
            tokio::spawn(conversation.run(engine, self.app.clock, self.readiness, farewell.clone()))
        });
        starter.resume();
        let looking = tokio::spawn(starter.clone().look(stop.clone()));
        match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => accept(listener, self.tls.map(TlsAcceptor::from), router(self.app), stop).await,
            Err(error) => error!(%error, "cannot serve on this listener"),
        }
        // What does not land in time is in the ledger, and goes on with the next start.
        if tokio::time::timeout(LANDING_TIME, starter.finish()).await.is_err() {
            warn!("some containers are still being started or removed");
        }
        farewell.cancel();
        if let Some(conversation) = conversation {
            let _ = conversation.await;
        }
        let _ = looking.await;
        following.abort();
        // An error is the cancellation that was just asked for.
        let _ = following.await;
    }
}

async fn accept(listener: tokio::net::TcpListener, tls: Option<TlsAcceptor>, router: Router, stop: CancellationToken) {
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(BUFFER_MAX);
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = async {
                let slot = slots.clone().acquire_owned().await;
                (slot, listener.accept().await)
            } => accepted,
        };
        match accepted {
            (slot, Ok((stream, _))) => {
                let service = TowerToHyperService::new(router.clone());
                let (builder, watcher, tls) = (builder.clone(), graceful.watcher(), tls.clone());
                let stream = Patient::new(stream, WRITE_TIME);
                connections.spawn(async move {
                    // A client that went away, has no certificate or spoke no HTTP is its own affair.
                    let _ = match tls {
                        None => watcher.watch(builder.serve_connection(TokioIo::new(stream), service)).await,
                        Some(tls) => match tokio::time::timeout(HEAD_TIME, tls.accept(stream)).await {
                            Ok(Ok(stream)) => {
                                watcher.watch(builder.serve_connection(TokioIo::new(stream), service)).await
                            }
                            Ok(Err(error)) => {
                                debug!(%error, "no TLS");
                                Ok(())
                            }
                            Err(_) => Ok(()),
                        },
                    };
                    drop(slot);
                });
            }
            (_, Err(error)) => {
                if platform::socket::is_out_of_descriptors(&error) {
                    warn!(%error, "no connection accepted");
                    tokio::time::sleep(ACCEPT_REST).await;
                } else if !platform::socket::is_transient(&error) {
                    error!(%error, "no connection accepted");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            }
        }
    }
    drop(listener);
    let finish = async {
        graceful.shutdown().await;
        while connections.join_next().await.is_some() {}
    };
    if tokio::time::timeout(STOP_TIME, finish).await.is_err() {
        connections.shutdown().await;
    }
}

/// What the handlers share.
#[derive(Debug)]
struct App {
    engine: Arc<Engine>,
    starter: Arc<Starter>,
    metrics: Metrics,
    token: Option<Vec<u8>>,
    clock: Clock,
    random: RandomState,
    requests: AtomicU64,
    /// Pieces of [`BODY_PIECE`] that bodies may still take.
    bodies: Arc<Semaphore>,
}

impl App {
    /// An id for a request without one, that nobody else has.
    fn new_id(&self) -> String {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        format!("p-{:016x}", self.random.hash_one(number))
    }
}

/// Time since 1970 that never goes back while the process runs, so that it means about the same to the next one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    before: Duration,
}

impl Clock {
    fn start() -> Self {
        let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), before }
    }

    pub(crate) fn now(self) -> Duration {
        self.before + self.start.elapsed()
    }
}

type Routes = [(&'static str, fn() -> MethodRouter<Arc<App>>, &'static [&'static str]); 8];

/// Paths, what answers there, and to which methods.
const ROUTES: Routes = [
    ("/v1/placements", || get(list).post(place), &["get", "post"]),
    ("/v1/placements/{id}", || get(show).delete(release), &["get", "delete"]),
    ("/v1/hosts", || get(hosts), &["get"]),
    ("/v1/explain", || post(explain), &["post"]),
    ("/v1/what-if", || post(what_if), &["post"]),
    ("/v1/rebalance", || post(rebalance), &["post"]),
    ("/v1/events/{name}", || post(event), &["post"]),
    ("/v1/openapi.json", || get(openapi), &["get"]),
];

fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for (path, methods, _) in ROUTES {
        router = router.route(path, methods());
    }
    router
        .fallback(async || Reply::error(StatusCode::NOT_FOUND, "no such page", "", "a path of /v1/openapi.json"))
        .method_not_allowed_fallback(async || {
            Reply::error(StatusCode::METHOD_NOT_ALLOWED, "method not allowed here", "", "a method of /v1/openapi.json")
        })
        .layer(middleware::from_fn_with_state(app.clone(), admit))
        .with_state(app)
}

/// Refuses who may not ask.
async fn admit(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if request.headers().contains_key(header::ORIGIN) {
        return Reply::error(StatusCode::FORBIDDEN, "requests of web pages are refused", "Origin", "no such header")
            .into_response();
    }
    if let Some(token) = &app.token
        && !bears(request.headers(), token)
    {
        let mut response =
            Reply::error(StatusCode::UNAUTHORIZED, "not authorized", "Authorization", "Bearer and the token")
                .into_response();
        response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        return response;
    }
    next.run(request).await
}

/// Whether the request carries the token; takes the same time wherever the first difference is.
fn bears(headers: &HeaderMap, token: &[u8]) -> bool {
    let given = headers.get(header::AUTHORIZATION).map_or(&[][..], |value| value.as_bytes());
    let Some((scheme, given)) = given.split_at_checked(7) else { return false };
    let differing = given.iter().zip(token).fold(0, |sum, (a, b)| sum | (a ^ b));
    scheme.eq_ignore_ascii_case(b"bearer ") && given.len() == token.len() && differing == 0
}

async fn place(State(app): State<Arc<App>>, request: Request) -> Response {
    let streaming = request.headers().get(header::ACCEPT).is_some_and(|accept| accept == PROGRESS_TYPE);
    let value = match json(&app, request).await {
        Ok(value) => value,
        Err(reply) => {
            app.metrics.count(Outcome::Invalid);
            return reply.into_response();
        }
    };
    let mut request = match PlacementRequest::parse(&value) {
        Ok(request) => request,
        Err(invalid) => {
            app.metrics.count(Outcome::Invalid);
            return Reply::from(Refusal::from(invalid)).into_response();
        }
    };
    let id: Text = request.id.clone().unwrap_or_else(|| app.new_id().into());
    if !request.start {
        let promising = AssertUnwindSafe(app.engine.promise(&request, &id, app.clock));
        let Ok(answer) = promising.catch_unwind().await else { return panicked(&app).into_response() };
        return told(&app, answer).into_response();
    }
    app.starter.complete(&mut request).await;
    if !streaming {
        let answer = app.starter.place(&request, &id, None).await;
        return told(&app, answer).into_response();
    }
    let (teller, told_so_far) = mpsc::channel(PROGRESS_MAX);
    let (ended, end) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let answer = app.starter.place(&request, &id, Some(teller)).await;
        let reply = told(&app, answer);
        // Who went away asks again with the same id.
        let _ = ended.send(reply);
    });
    progress(told_so_far, end)
}

/// The media type in which progress is told: a JSON object a line, the answer last.
const PROGRESS_TYPE: &str = "application/x-ndjson";

/// Lines of progress, then one with the status and the answer.
fn progress(told: mpsc::Receiver<Progress>, end: tokio::sync::oneshot::Receiver<Reply>) -> Response {
    let lines = futures_util::stream::unfold(Some((told, end)), |state| async move {
        let (mut told, end) = state?;
        let (line, next) = if let Some(progress) = told.recv().await {
            (serde_json::json!({ "progress": progress }), Some((told, end)))
        } else {
            let reply = end.await.unwrap_or_else(|_| bug());
            let answer: serde_json::Value = serde_json::from_slice(&reply.body).unwrap_or_default();
            (serde_json::json!({ "status": reply.status.as_u16(), "answer": answer }), None)
        };
        Some((Ok::<_, std::convert::Infallible>(format!("{line}\n")), next))
    });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(PROGRESS_TYPE));
    response
}

/// Counts the answer to a placement request, and puts it into words.
fn told(app: &App, answer: Result<Placement, Refusal>) -> Reply {
    app.metrics.count(Outcome::of(&answer));
    match answer {
        Ok(answer) => {
            let status = match &answer {
                Placement { state: "failed", .. } => StatusCode::BAD_GATEWAY,
                Placement { state: "unplaceable", .. } => StatusCode::CONFLICT,
                Placement { dry_run: true, .. } | Placement { repeated: true, .. } => StatusCode::OK,
                _ => StatusCode::CREATED,
            };
            Reply::json(status, &answer)
        }
        Err(refusal) => refusal.into(),
    }
}

async fn list(State(app): State<Arc<App>>) -> Reply {
    guarded(&app, || app.engine.placements(app.clock.now()).map(|placements| Placements { placements }).into())
}

#[derive(Serialize)]
struct Placements {
    placements: Vec<Placement>,
}

async fn show(State(app): State<Arc<App>>, Path(id): Path<String>) -> Reply {
    app.engine.look_up(&id, app.clock).await;
    guarded(&app, || app.engine.placement(&id, app.clock.now()).into())
}

async fn release(State(app): State<Arc<App>>, Path(id): Path<String>, uri: Uri) -> Reply {
    let id = id.into();
    match uri.query() {
        None => app.starter.release(&id).await.into(),
        Some("force=true") => app.starter.forget(&id).await.into(),
        Some(other) => {
            let problem = format!("found {other:?}");
            Reply::error(StatusCode::BAD_REQUEST, &problem, "query", "nothing, or force=true")
        }
    }
}

async fn hosts(State(app): State<Arc<App>>) -> Reply {
    guarded(&app, || app.engine.hosts(app.clock.now()).map(|hosts| Hosts { hosts }).into())
}

#[derive(Serialize)]
struct Hosts {
    hosts: Vec<crate::engine::HostReport>,
}

async fn explain(State(app): State<Arc<App>>, request: Request) -> Reply {
    match json(&app, request).await {
        Ok(value) => guarded(&app, || app.engine.explain(&value, app.clock.now()).into()),
        Err(reply) => reply,
    }
}

async fn what_if(State(app): State<Arc<App>>, request: Request) -> Reply {
    planned(app, request, |app, value| app.engine.what_if(value, app.clock.now()).into()).await
}

async fn rebalance(State(app): State<Arc<App>>, request: Request) -> Reply {
    planned(app, request, |app, value| app.engine.rebalance(value, app.clock.now()).into()).await
}

/// Answers what may take seconds, one at a time and beside everything else.
async fn planned(app: Arc<App>, request: Request, answer: fn(&App, &Value) -> Reply) -> Reply {
    static PLANNING: Semaphore = Semaphore::const_new(1);
    let value = match json(&app, request).await {
        Ok(value) => value,
        Err(reply) => return reply,
    };
    let Ok(_turn) = PLANNING.acquire().await else { return bug() };
    let planning = tokio::task::spawn_blocking(move || guarded(&app, || answer(&app, &value)));
    planning.await.unwrap_or_else(|_| bug())
}

async fn event(State(app): State<Arc<App>>, Path(name): Path<String>, request: Request) -> Reply {
    match json(&app, request).await {
        Ok(value) => guarded(&app, || app.engine.event(&name, &value, app.clock.now()).into()),
        Err(reply) => reply,
    }
}

async fn openapi() -> Reply {
    Reply { status: StatusCode::OK, retry: None, body: Bytes::from_static(OPENAPI.as_bytes()) }
}

/// Answers, also when answering panics.
fn guarded(app: &App, answer: impl FnOnce() -> Reply) -> Reply {
    std::panic::catch_unwind(AssertUnwindSafe(answer)).unwrap_or_else(|_| panicked(app))
}

fn panicked(app: &App) -> Reply {
    app.metrics.panicked();
    error!("answering a request panicked");
    bug()
}

fn bug() -> Reply {
    Reply::error(StatusCode::INTERNAL_SERVER_ERROR, "answering failed, which is a bug", "", "an answer")
}

/// The value in the body.
async fn json(app: &App, request: Request) -> Result<Value, Reply> {
    let too_large = || {
        let expected = format!("at most {BODY_MAX} octets");
        Reply::error(StatusCode::PAYLOAD_TOO_LARGE, "body too large", "", &expected)
    };
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let length: usize = length.unwrap_or(BODY_MAX);
    if length > BODY_MAX {
        return Err(too_large());
    }
    let read = async {
        let pieces = u32::try_from(length.div_ceil(BODY_PIECE)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let room = app.bodies.acquire_many(pieces).await;
        let body = Limited::new(request.into_body(), BODY_MAX).collect().await;
        drop(room);
        body
    };
    let body = match tokio::time::timeout(BODY_TIME, read).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => return Err(too_large()),
        Ok(Err(error)) => {
            return Err(Reply::error(
                StatusCode::BAD_REQUEST,
                &format!("body broken off: {error}"),
                "",
                "a whole body",
            ));
        }
        Err(_) => {
            let expected = format!("a body within {} s", BODY_TIME.as_secs());
            return Err(Reply::error(StatusCode::REQUEST_TIMEOUT, "body too slow", "", &expected));
        }
    };
    serde_json::from_slice(&body)
        .map_err(|error| Reply::error(StatusCode::BAD_REQUEST, &format!("not JSON: {error}"), "", "a JSON object"))
}

/// What is answered.
struct Reply {
    status: StatusCode,
    retry: Option<&'static str>,
    body: Bytes,
}

impl Reply {
    fn json(status: StatusCode, body: &impl Serialize) -> Self {
        match serde_json::to_vec(body) {
            Ok(body) => Self { status, retry: None, body: body.into() },
            Err(error) => {
                error!(%error, "an answer could not be written");
                Self { status: StatusCode::INTERNAL_SERVER_ERROR, retry: None, body: Bytes::from_static(b"{}") }
            }
        }
    }

    fn error(status: StatusCode, error: &str, field: &str, expected: &str) -> Self {
        #[derive(Serialize)]
        struct Body<'a> {
            error: &'a str,
            field: &'a str,
            expected: &'a str,
        }
        Self::json(status, &Body { error, field, expected })
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Self {
        let text = refusal.to_string();
        match refusal {
            Refusal::Invalid(invalid) => {
                let error = if invalid.field.is_empty() {
                    invalid.problem.clone()
                } else {
                    format!("{}: {}", invalid.field, invalid.problem)
                };
                Self::error(StatusCode::BAD_REQUEST, &error, &invalid.field, &invalid.expected)
            }
            Refusal::NoData => Self {
                retry: Some(RETRY_COLD),
                ..Self::error(StatusCode::SERVICE_UNAVAILABLE, &text, "", "a snapshot of the cluster")
            },
            Refusal::Full(_) => Self {
                retry: Some(RETRY_FULL),
                ..Self::error(StatusCode::SERVICE_UNAVAILABLE, &text, "", "fewer promises at once")
            },
            Refusal::Taken(_) => Self::error(StatusCode::CONFLICT, &text, "id", "an id and names of its own"),
            Refusal::Unknown(_) => Self::error(StatusCode::NOT_FOUND, &text, "id", "the id of a placement"),
            Refusal::Broken(_) => Self {
                retry: Some(RETRY_FULL),
                ..Self::error(StatusCode::SERVICE_UNAVAILABLE, &text, "", "a disk that can be written")
            },
            Refusal::Unread(_) | Refusal::Away(_) => Self {
                retry: Some(RETRY_COLD),
                ..Self::error(StatusCode::SERVICE_UNAVAILABLE, &text, "", "an etcd that answers")
            },
            Refusal::Contended => Self {
                retry: Some(RETRY_COLD),
                ..Self::error(StatusCode::SERVICE_UNAVAILABLE, &text, "", "fewer promises at once")
            },
            Refusal::Unshared(_) => Self::error(StatusCode::NOT_IMPLEMENTED, &text, "name", "scheduler.prioritize"),
            Refusal::Unsettled(_) => Self {
                retry: Some(RETRY_COLD),
                ..Self::error(StatusCode::GATEWAY_TIMEOUT, &text, "", "the same request again")
            },
            Refusal::DoesNotFit(_) => Self::error(StatusCode::CONFLICT, &text, "", "what there is room for"),
        }
    }
}

impl<T: Serialize> From<Result<T, Refusal>> for Reply {
    fn from(answer: Result<T, Refusal>) -> Self {
        match answer {
            Ok(answer) => Self::json(StatusCode::OK, &answer),
            Err(refusal) => refusal.into(),
        }
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        if let Some(retry) = self.retry {
            headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static(retry));
        }
        response
    }
}

/// What is said of engines besides the labels of hosts.
fn read_endpoints(options: &Options) -> Result<Endpoints, OptionsError> {
    let certificates = options.docker_certs.is_some();
    let Some(path) = &options.docker_engines else { return Ok(Endpoints::of_labels(certificates)) };
    let wrong = |error: String| OptionsError::Engines { path: path.clone(), error };
    let octets = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let text = source::format::text(octets).map_err(|error| wrong(error.to_string()))?;
    let parsed = source::format::parse(&text).map_err(|error| wrong(error.to_string()))?;
    Endpoints::new(&parsed.value(model::scalar::core), certificates).map_err(wrong)
}

fn read_token(path: &PathBuf) -> Result<Vec<u8>, OptionsError> {
    let text = std::fs::read_to_string(path).map_err(|error| OptionsError::Unreadable { path: path.clone(), error })?;
    let token = text.trim();
    let fine = (TOKEN_MIN..=TOKEN_MAX).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic());
    if fine {
        Ok(token.as_bytes().to_vec())
    } else {
        Err(OptionsError::BadToken { path: path.clone(), length: token.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_described() {
        let openapi: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
        let paths = openapi["paths"].as_object().unwrap();
        assert_eq!(paths.len(), ROUTES.len());
        for (path, _, methods) in ROUTES {
            let described = paths[path].as_object().unwrap().keys().filter(|key| *key != "parameters");
            let mut described: Vec<_> = described.cloned().collect();
            described.sort();
            let mut methods = methods.to_vec();
            methods.sort_unstable();
            assert_eq!(described, methods, "{path}");
        }
    }
}
