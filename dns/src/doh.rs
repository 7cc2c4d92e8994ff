//! DNS over HTTPS (RFC 8484), by HTTP/2 and HTTP/1.1.
//!
//! Deadlines and limits are those of connections over TCP.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use hickory_proto::op::Message;
use hickory_proto::rr::RData;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::certificate::HTTP_2;
use crate::connection_end::{self, Ends, IDLE_MAX, MESSAGE_BYTES_MAX, MESSAGE_MAX, SHED_AFTER, WRITE_MAX, pressed};
use crate::metrics::Transport;
use crate::shared::Shared;

/// Where queries are sent, as with most servers.
const PATH: &str = "/dns-query";

/// The type of queries and responses (RFC 8484 section 6).
const DNS_MESSAGE: &str = "application/dns-message";

/// Largest head of a request: a query in its target takes 5,500 bytes at most.
const HEAD_BYTES_MAX: u16 = 16 << 10;

/// Most requests at once on one connection: the least that RFC 9113 section 6.5.2 recommends.
const REQUESTS_MAX: u32 = 100;

/// How much of the body of a request is read that was answered before, and for how long: as much as a client may send unasked.
const DISCARD_BYTES_MAX: usize = 64 << 10;
const DISCARD_TIME_MAX: Duration = Duration::from_secs(1);

/// Most bytes of responses that a client has not read yet, on one connection: 16 of the longest.
const UNREAD_MAX: usize = 1 << 20;

/// Serves a connection until the client has had enough, or took too long.
pub(crate) async fn serve(
    stream: TlsStream<impl Stream>,
    client: SocketAddr,
    shared: Arc<Shared>,
    ends: Ends,
) -> io::Result<()> {
    let connection = Connection { client, shared, requests: watch::channel(0).0, ending: CancellationToken::new() };
    if stream.get_ref().1.alpn_protocol() == Some(HTTP_2) {
        connection.run(connection.serve_http_2(stream), ends).await
    } else {
        connection.run(connection.serve_http_1(stream), ends).await
    }
}

/// What carries the bytes of a connection.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// One connection.
struct Connection {
    client: SocketAddr,
    shared: Arc<Shared>,
    /// How many requests are being answered.
    requests: watch::Sender<usize>,
    /// No further requests are to be taken.
    ending: CancellationToken,
}

impl Connection {
    /// Serves until the connection was idle for too long, or has to end.
    async fn run(&self, served: impl Future<Output = io::Result<()>>, ends: Ends) -> io::Result<()> {
        let mut requests = self.requests.subscribe();
        let mut served = pin!(served);
        let mut stopped = pin!(ends.stop.cancelled());
        let mut pressed = pin!(pressed(ends.pressure));
        let mut since = Instant::now();
        let mut alarm = pin!(sleep_until(since + IDLE_MAX));
        loop {
            let idle = *requests.borrow_and_update() == 0;
            tokio::select! {
                ended = served.as_mut() => return ended,
                // Its sender is `self`.
                _ = requests.changed() => {
                    since = Instant::now();
                    alarm.as_mut().reset(since + IDLE_MAX);
                }
                () = alarm.as_mut(), if idle => break,
                () = stopped.as_mut() => break,
                receiver = pressed.as_mut(), if idle => {
                    if since.elapsed() >= SHED_AFTER {
                        break;
                    }
                    pressed.set(connection_end::pressed(receiver));
                }
            }
        }
        self.ending.cancel();
        let last = async {
            // It cannot fail: the sender is `self`.
            let _ = requests.wait_for(|requests| *requests == 0).await;
            sleep(WRITE_MAX).await;
        };
        tokio::select! {
            ended = served => ended,
            () = last => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    async fn serve_http_1(&self, stream: impl Stream) -> io::Result<()> {
        let service = service_fn(async |request: Request<Incoming>| {
            let _counted = Counted::new(&self.requests);
            let (head, body) = request.into_parts();
            let response = respond(&self.shared, self.client, &head, whole_http_1(body)).await;
            Ok::<_, Infallible>(response.map(Full::new))
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(IDLE_MAX).max_buf_size(HEAD_BYTES_MAX.into());
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            served = connection.as_mut() => return served.map_err(io::Error::other),
            () = self.ending.cancelled() => {}
        }
        connection.as_mut().graceful_shutdown();
        connection.await.map_err(io::Error::other)
    }

    async fn serve_http_2(&self, stream: impl Stream) -> io::Result<()> {
        let mut builder = h2::server::Builder::new();
        builder.max_concurrent_streams(REQUESTS_MAX).max_header_list_size(HEAD_BYTES_MAX.into());
        let mut connection = builder.handshake(stream).await.map_err(io::Error::other)?;
        let mut responses = JoinSet::new();
        let unread = Arc::new(Semaphore::new(UNREAD_MAX));
        let mut ending = false;
        loop {
            tokio::select! {
                accepted = connection.accept() => {
                    let Some(accepted) = accepted else { return Ok(()) };
                    let (request, sender) = accepted.map_err(io::Error::other)?;
                    let (shared, client, unread) = (self.shared.clone(), self.client, unread.clone());
                    let counted = Counted::new(&self.requests);
                    responses.spawn(async move {
                        let _counted = counted;
                        let (head, mut body) = request.into_parts();
                        let response = respond(&shared, client, &head, whole_http_2(&mut body)).await;
                        send_http_2(response, sender, &unread).await?;
                        // A client whose request is cut off may throw its response away.
                        let _ = timeout(DISCARD_TIME_MAX, discard(&mut body)).await;
                        io::Result::Ok(())
                    });
                }
                Some(sent) = responses.join_next() => match sent {
                    // A client that does not read one response reads none.
                    Ok(Err(error)) if error.kind() == io::ErrorKind::TimedOut => return Err(error),
                    // The stream alone ended, or its task panicked, which was counted.
                    _ => {}
                },
                () = self.ending.cancelled(), if !ending => {
                    ending = true;
                    connection.graceful_shutdown();
                }
            }
        }
    }
}

/// A request that is being answered.
struct Counted(watch::Sender<usize>);

impl Counted {
    fn new(requests: &watch::Sender<usize>) -> Self {
        requests.send_modify(|requests| *requests += 1);
        Self(requests.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|requests| *requests -= 1);
    }
}

/// Sends a response as far as the client reads; it is refused if it has not read too many others.
async fn send_http_2(response: Response<Bytes>, mut sender: SendResponse<Bytes>, unread: &Semaphore) -> io::Result<()> {
    let (head, mut body) = response.into_parts();
    let Ok(_room) = unread.try_acquire_many(u32::try_from(body.len()).unwrap_or(u32::MAX)) else {
        sender.send_reset(Reason::ENHANCE_YOUR_CALM);
        return Ok(());
    };
    let sent = async {
        let mut stream = sender.send_response(Response::from_parts(head, ()), body.is_empty())?;
        while !body.is_empty() {
            stream.reserve_capacity(body.len());
            // Without one the client has closed the stream.
            let Some(capacity) = poll_fn(|context| stream.poll_capacity(context)).await else { break };
            let piece = body.split_to(capacity?.min(body.len()));
            stream.send_data(piece, body.is_empty())?;
        }
        Ok::<_, h2::Error>(())
    };
    timeout(WRITE_MAX, sent).await?.map_err(io::Error::other)
}

/// The body of a request.
async fn whole_http_1(body: Incoming) -> Result<Bytes, StatusCode> {
    match Limited::new(body, MESSAGE_BYTES_MAX).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(StatusCode::PAYLOAD_TOO_LARGE),
        Err(_) => Err(StatusCode::BAD_REQUEST),
    }
}

/// The body of a request.
async fn whole_http_2(body: &mut RecvStream) -> Result<Bytes, StatusCode> {
    let mut whole = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece.map_err(|_| StatusCode::BAD_REQUEST)?;
        if whole.len() + piece.len() > MESSAGE_BYTES_MAX {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        whole.extend_from_slice(&piece);
        body.flow_control().release_capacity(piece.len()).map_err(|_| StatusCode::BAD_REQUEST)?;
    }
    Ok(whole.into())
}

/// Reads what is left of the body of a request that has been answered.
async fn discard(body: &mut RecvStream) {
    let mut left = DISCARD_BYTES_MAX;
    while let Some(Ok(piece)) = body.data().await {
        left = left.saturating_sub(piece.len());
        if left == 0 || body.flow_control().release_capacity(piece.len()).is_err() {
            return;
        }
    }
}

/// The response to a request.
async fn respond(
    shared: &Shared,
    client: SocketAddr,
    head: &Parts,
    body: impl Future<Output = Result<Bytes, StatusCode>>,
) -> Response<Bytes> {
    let answered = async {
        let message = message(head, body).await?;
        let answered = shared.answer(&message, (client, Transport::Doh)).await;
        answered.ok_or(StatusCode::BAD_REQUEST)
    };
    match answered.await {
        Ok(bytes) => {
            // The names of a client are its own, so no cache may give them to another one.
            let stored = HeaderValue::try_from(format!("private, max-age={}", max_age(&bytes)));
            let headers = [(CONTENT_TYPE, Ok(HeaderValue::from_static(DNS_MESSAGE))), (CACHE_CONTROL, stored)];
            let mut response = Response::new(Bytes::from(bytes));
            let headers = headers.into_iter().filter_map(|(name, value)| Some((name, value.ok()?)));
            response.headers_mut().extend(headers);
            response
        }
        Err(status) => {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = status;
            if status == StatusCode::METHOD_NOT_ALLOWED {
                response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, POST"));
            }
            response
        }
    }
}

/// The query in a request (RFC 8484 section 4.1), or the status that says why there is none.
async fn message(head: &Parts, body: impl Future<Output = Result<Bytes, StatusCode>>) -> Result<Bytes, StatusCode> {
    if head.uri.path() != PATH {
        return Err(StatusCode::NOT_FOUND);
    }
    match head.method {
        Method::GET => {
            let parameters = head.uri.query().unwrap_or_default().split('&');
            let encoded = parameters.into_iter().find_map(|parameter| parameter.strip_prefix("dns="));
            let message = encoded.and_then(|encoded| URL_SAFE_NO_PAD.decode(encoded).ok());
            match message {
                Some(message) if message.len() > MESSAGE_BYTES_MAX => Err(StatusCode::URI_TOO_LONG),
                message => message.map(Bytes::from).ok_or(StatusCode::BAD_REQUEST),
            }
        }
        Method::POST => {
            let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
            if !kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(DNS_MESSAGE)) {
                return Err(StatusCode::UNSUPPORTED_MEDIA_TYPE);
            }
            timeout(MESSAGE_MAX, body).await.unwrap_or(Err(StatusCode::REQUEST_TIMEOUT))
        }
        _ => Err(StatusCode::METHOD_NOT_ALLOWED),
    }
}

/// Seconds for which a response may be stored: as long as each of its records, and a denial as its SOA says (section 5.1).
fn max_age(response: &[u8]) -> u32 {
    let Ok(message) = Message::from_vec(response) else { return 0 };
    let answers = message.answers.iter().map(|record| record.ttl);
    let denials = message.authorities.iter().filter_map(|record| match &record.data {
        RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
        _ => None,
    });
    answers.chain(denials).min().unwrap_or_default()
}

#[cfg(test)]
mod tests;
