//! The service on its sockets: connections are accepted, served, refused when there are too many, and ended.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use model::Snapshot;
use platform::redirect::Place;
use platform::socket;
use process::{Acceptor, Failure, Parts};
use prometheus_client::registry::Registry;
use source::{Derivation, Store, derive};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::error;

use crate::access::Access;
use crate::asked::{Asked, Field};
use crate::body::Content;
use crate::config::{Cors, Options};
use crate::head;
use crate::lane;
use crate::limits::Clients;
use crate::metrics::{Counted, Metrics};
use crate::path::Method;
use crate::respond::{Answer, Header, Outcome, SIZED_MAX};
use crate::service::{Crowded, Ends, Reply, Service, Visitor, WRITING_MAX, is_host};
use crate::session::KEY_OCTETS;
use crate::view::View;
use crate::wire::{SEND_TIME_MAX, Sending, Wire};

/// Most connections that are refused but not closed yet, so that their clients learn why.
const REFUSED_MAX: usize = 64;

/// How long such a connection may take.
const REFUSED_TIME_MAX: Duration = Duration::from_secs(1);

/// How much of its request is read: closing with octets unread would take the answer away from the client.
const REFUSED_OCTETS_MAX: usize = 16 << 10;

/// hyper's buffer of a connection, in octets; heads are read before it, so that its least is enough.
const BUFFER_OCTETS: usize = 8 << 10;

/// What a connection too many is told.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 1\r\nContent-Length: 21\r\nConnection: close\r\n\r\nToo many connections\n";

/// What a client with as many connections as it may have is told about one more.
const TOO_MANY_OF_CLIENT: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 1\r\nContent-Length: 35\r\nConnection: close\r\n\r\nToo many connections of one client\n";

/// The metadata service.
#[derive(Debug)]
pub struct Server {
    /// The view, kept up to date.
    derived: Derivation,
    service: Arc<Service>,
    /// Whether usual requests are answered in the lane.
    has_lane: bool,
    /// Where clients reach the service, when that is not what its socket is bound to.
    redirected: Option<SocketAddr>,
}

/// Why there is no service.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system gives no random octets, of which the key of the session tokens is made.
    #[error("no random key for session tokens: {0}")]
    Key(getrandom::Error),
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
        let service = Service {
            views: Arc::new(Store::new(View::empty())),
            xff: options.xff,
            live: AtomicBool::new(false),
            when_empty: options.when_empty,
            tokens: options.service_tokens,
            cors: options.cors,
            access: Access::new(options, key),
            limits: options.limits,
            clients: Arc::new(Clients::new(options.limits)),
            exempt: is_host,
            refusing: Arc::new(Semaphore::new(REFUSED_MAX)),
            writing: Semaphore::new(WRITING_MAX),
            evictions: Arc::default(),
            started: Instant::now(),
            unavailable: Arc::default(),
            metrics: Metrics::new(registry),
            stop: CancellationToken::new(),
        };
        let derived = derive(snapshots, service.views.clone(), |new, _, view: &Arc<View>| view.next(new));
        // Where nothing is known of a connection before it is accepted, answering in place saves nothing.
        Ok(Self { derived, service: Arc::new(service), has_lane: socket::DEFERS, redirected: None })
    }

    /// Whether there ought to be data but are none (a source is there and cannot be used): while this is set and
    /// nothing was ever published, everything is answered with 503, whatever the options say.
    pub fn unavailable(&self) -> Arc<AtomicBool> {
        self.service.unavailable.clone()
    }

    /// A container that asks for itself before the source told of it waits for that, for a moment: the source is the
    /// engine that starts containers.
    #[must_use]
    pub fn with_live_clients(self) -> Self {
        self.service.live.store(true, Ordering::Relaxed);
        self
    }

    /// Connections arrive for the address that clients use, whatever the socket is bound to.
    #[must_use]
    pub fn reached_at(mut self, place: Place) -> Self {
        self.redirected = place.redirected();
        self
    }

    /// Serves on this socket until `stop`; then answers what is in flight, waiting requests with what they
    /// have, and returns.
    ///
    /// # Errors
    ///
    /// Fails if the socket cannot be used, or as soon as what accepts has ended before `stop`.
    ///
    /// # Cancel safety
    ///
    /// When dropped, connections live on until their clients or their limits end them; better use `stop`.
    pub async fn run(self, listener: StdListener, stop: CancellationToken) -> Result<(), Failure> {
        let tasks = TaskTracker::new();
        let mut parts = Parts::new(stop);
        let service = self.service;
        let _stopped = service.stop.clone().drop_guard();
        let following = tokio::spawn(service.stop.clone().run_until_cancelled_owned(self.derived));
        let bound = self.redirected.or_else(|| listener.local_addr().ok());
        // Of a listener on all addresses, each connection knows.
        let arrival = bound.filter(|address| !address.ip().is_unspecified());
        listen(listener, arrival, &service, self.has_lane, &tasks, &mut parts)?;
        parts.watch().await?;
        service.stop.cancel();
        parts.finish().await;
        tasks.close();
        tasks.wait().await;
        if following.await.is_err() {
            error!("the task that keeps the view up to date failed");
        }
        Ok(())
    }
}

/// Begins to accept connections, which arrive at one address or each at its own.
fn listen(
    listener: StdListener,
    arrival: Option<SocketAddr>,
    service: &Arc<Service>,
    has_lane: bool,
    tasks: &TaskTracker,
    parts: &mut Parts,
) -> io::Result<()> {
    if has_lane {
        socket::defer_accept(&listener)?;
        return lane::serve(listener, arrival, service.clone(), tasks, parts);
    }
    parts.spawn("accepting connections", accept(Acceptor::new(listener)?, arrival, service.clone(), tasks.clone()));
    Ok(())
}

/// Accepts connections until the service stops; nothing that goes wrong with one ends it.
async fn accept(
    mut listener: Acceptor,
    arrival: Option<SocketAddr>,
    service: Arc<Service>,
    tasks: TaskTracker,
) -> Result<(), Failure> {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = service.stop.cancelled() => return Ok(()),
        };
        // Without room for the next one, that of somebody who makes no use of his.
        let Ok((stream, peer)) = accepted else {
            service.evictions.evict();
            continue;
        };
        // The connection is gone already when its own address is not known.
        let Some(local) = arrival.or_else(|| stream.local_addr().ok()) else { continue };
        let ends = Ends { peer: peer.ip(), port: peer.port(), local };
        match service.let_in(ends, || service.evictions.evict()) {
            Ok((counted, share)) => {
                let visitor = Visitor::new(ends, share);
                tasks.spawn(connection(stream, Vec::new(), visitor, counted, service.clone()));
            }
            Err(why) => tell(stream, why, &service, &tasks),
        }
    }
}

/// Tells a client why it gets no connection.
pub(crate) fn refuse(stream: StdStream, why: Crowded, service: &Arc<Service>, tasks: &TaskTracker) {
    // Fails only for a connection that is gone already.
    if let Ok(stream) = TcpStream::from_std(stream) {
        tell(stream, why, service, tasks);
    }
}

fn tell(mut stream: TcpStream, why: Crowded, service: &Arc<Service>, tasks: &TaskTracker) {
    let why = match why {
        Crowded::All => TOO_MANY,
        Crowded::Client => TOO_MANY_OF_CLIENT,
    };
    // It always fits into a new connection's buffer; when not, the client is gone.
    let Ok(permit) = service.refusing.clone().try_acquire_owned() else { return };
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

/// A connection that was accepted and let in.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) stream: StdStream,
    pub(crate) visitor: Visitor,
    pub(crate) counted: Counted,
}

/// What was begun with a connection.
#[derive(Debug)]
pub(crate) struct Leftover {
    /// Written, but not taken by the client yet.
    pub(crate) unsent: Vec<u8>,
    /// Read, but not answered yet.
    pub(crate) read: Vec<u8>,
    /// Whether the connection ends when everything is sent.
    pub(crate) last: bool,
}

/// Goes on with a connection to its end.
pub(crate) async fn continue_with(accepted: Accepted, leftover: Leftover, service: Arc<Service>) {
    let Accepted { stream, visitor, counted } = accepted;
    // Fails only for a connection that is gone already.
    let Ok(mut stream) = TcpStream::from_std(stream) else { return };
    let sent = timeout(SEND_TIME_MAX, stream.write_all(&leftover.unsent)).await;
    if matches!(sent, Ok(Ok(()))) && !leftover.last {
        // Of its own size: what is behind would be kept as long as the connection otherwise.
        Box::pin(connection(stream, leftover.read, visitor, counted, service)).await;
    }
}

/// Serves one connection to its end, beginning with what was read of it already.
async fn connection(stream: TcpStream, read: Vec<u8>, visitor: Visitor, counted: Counted, service: Arc<Service>) {
    let _counted = counted;
    // Fails only for a connection that is gone already.
    let _ = stream.set_nodelay(true);
    let stop = service.stop.clone();
    let wire = Wire::new(stream, read, visitor.ended.clone(), &service);
    let sending = wire.sending();
    let visitor = Arc::new(visitor);
    let respond = service_fn(move |request| respond(service.clone(), visitor.clone(), sending.clone(), request));
    let mut connection = Box::pin(
        http1::Builder::new()
            .title_case_headers(true)
            .header_read_timeout(None)
            .max_buf_size(BUFFER_OCTETS)
            .serve_connection(wire, respond),
    );
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
    service: Arc<Service>,
    visitor: Arc<Visitor>,
    sending: Arc<AtomicUsize>,
    request: Request<Incoming>,
) -> Result<Response<Content>, Infallible> {
    let outcome = match head::target(request.uri().path()) {
        Ok(target) => {
            let headers = request.headers().iter();
            let fields =
                headers.filter_map(|(name, value)| Some((Field::named(name.as_str().as_bytes())?, value.as_bytes())));
            let method = match *request.method() {
                hyper::Method::GET | hyper::Method::HEAD => Method::Read,
                hyper::Method::OPTIONS => Method::Options,
                hyper::Method::PUT => Method::Put,
                _ => Method::Other,
            };
            service.outcome(&visitor, &Asked { method, target: &target, fields: fields.collect() })
        }
        Err(status) => Some(Outcome::Answer(Answer::refusal(status))),
    };
    // It holds hyper's buffer, which who waits for minutes does not need.
    drop(request);
    let reply = service.reply(&visitor, outcome).await;
    Ok(response(reply, service.cors, Sending::new(&sending)))
}

/// The response that carries a reply.
fn response(reply: Reply, cors: Cors, sending: Sending) -> Response<Content> {
    let mut headers = HeaderMap::new();
    let mut add = |header: Header, value: &str| {
        // All that goes into a header was checked or escaped before.
        if let (Ok(name), Ok(value)) = (header.name().parse::<HeaderName>(), HeaderValue::from_str(value)) {
            headers.append(name, value);
        }
    };
    let (status, content) = match reply {
        Reply::Answer(answer) => {
            answer.each_header(cors, add);
            let sized = answer.body.len() <= SIZED_MAX;
            (answer.status, Content::Whole { octets: Bytes::from(answer.body), sized })
        }
        Reply::Pieces(pieces) => {
            let beginning = pieces.first().map_or(&b""[..], |piece| &piece[..piece.len().min(SIZED_MAX)]);
            Answer::each_header_of_value(beginning, cors, add);
            (200, Content::Pieces { pieces: pieces.into_iter(), _sending: sending })
        }
        Reply::Changes(pieces) => {
            add(Header::ContentType, "application/x-ndjson");
            (200, Content::Stream { pieces, _sending: sending })
        }
    };
    let mut response = Response::new(content);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.headers_mut() = headers;
    response
}

#[cfg(test)]
pub(crate) mod tests;
