//! The HTTP connections of a listener, within bounds: what no client ends by itself ends by a time limit, and what one client, or all
//! together, have open beyond their places is closed at once.

use std::future::Future;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::accept::Acceptor;
use crate::quota::{Places, Quota};
use crate::write_timeout::WriteTimeout;

/// Longest time for a head, for agreeing on TLS, and longest idle time between requests.
const HEAD_TIME: Duration = Duration::from_secs(10);

/// Longest time in which a reader takes not one byte of its response.
const WRITE_TIME: Duration = Duration::from_secs(10);

/// Longest wait for connections after the stop: answering takes milliseconds, only half-sent requests take longer.
const STOP_TIME: Duration = Duration::from_secs(1);

/// Buffer per connection, so also the largest head.
const BUFFER_MAX: usize = 32 * 1024;

/// Serves what `open` makes of each connection, until `stop`; requests in flight then have a second.
///
/// There are as many `places` as fit into the descriptors of the process. `open` gives `None` for a client that it does not serve.
pub async fn serve_connections<S, Opening>(
    listener: Acceptor,
    places: Places,
    open: impl Fn(WriteTimeout<TcpStream>) -> Opening,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    Opening: Future<Output = Option<(S, Router)>> + Send + 'static,
{
    let quota = Quota::new(places.within(platform::limits::descriptors()));
    serve_within(listener, quota, HEAD_TIME, open, stop).await;
}

async fn serve_within<S, Opening>(
    mut listener: Acceptor,
    quota: Quota,
    head_time: Duration,
    open: impl Fn(WriteTimeout<TcpStream>) -> Opening,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    Opening: Future<Output = Option<(S, Router)>> + Send + 'static,
{
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let mut builder = Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head_time).max_buf_size(BUFFER_MAX);
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = listener.accept() => accepted,
        };
        // An error was logged, and pauses by itself.
        let Ok((stream, client)) = accepted else { continue };
        let Some(place) = quota.take(client.ip()) else {
            debug!(%client, "closed: too many connections of one client or of all");
            continue;
        };
        let opening = open(WriteTimeout::new(stream, WRITE_TIME));
        let (builder, watcher) = (builder.clone(), graceful.watcher());
        connections.spawn(async move {
            // A client that went away, has no certificate or spoke no HTTP is its own affair.
            if let Ok(Some((stream, router))) = timeout(head_time, opening).await {
                let service = TowerToHyperService::new(router);
                let _ = watcher.watch(builder.serve_connection(TokioIo::new(stream), service)).await;
            }
            drop(place);
        });
    }
    drop(listener);
    let finish = async {
        graceful.shutdown().await;
        while connections.join_next().await.is_some() {}
    };
    if timeout(STOP_TIME, finish).await.is_err() {
        connections.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn half_requests_take_no_more_than_their_places_and_end() {
        let listener = platform::socket::tcp_listener(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, quota) = (CancellationToken::new(), Quota::new(Places { per_client: 2, in_all: 8 }));
        let router = Router::new().route("/", get(async || "well"));
        let open = move |stream| ready(Some((stream, router.clone())));
        let acceptor = Acceptor::new(listener).unwrap();
        let serving = serve_within(acceptor, quota.clone(), Duration::from_secs(1), open, stop.clone());
        let serving = tokio::spawn(serving);
        let half = async || {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nX").await.unwrap();
            stream
        };
        let mut held = [half().await, half().await];
        // Closed, by a reset if bytes of it were not read.
        let refused = half().await.read_to_end(&mut Vec::new()).await;
        assert!(refused.is_err() || refused.is_ok_and(|bytes| bytes == 0), "a third one is not held");
        assert_eq!(quota.total(), 2);
        for one in &mut held {
            let _ = one.read_to_end(&mut Vec::new()).await;
        }
        // Their places are given back once their tasks have ended.
        while quota.total() > 0 {
            tokio::task::yield_now().await;
        }
        let mut whole = TcpStream::connect(address).await.unwrap();
        whole.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        whole.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("well"), "{answer}");
        stop.cancel();
        serving.await.unwrap();
    }
}
