//! Accepting: connections, TLS where it is asked for, and their end.

use std::time::Duration;

use axum::{Extension, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use process::Acceptor;
use process::quota::{Places, Quota};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::api::caller::PeerName;
use crate::api::write_timeout::WriteTimeout;

/// Longest time for a head, for agreeing on TLS, and longest idle time between requests.
const HEAD_TIME: Duration = Duration::from_secs(10);

/// Longest time in which a reader takes not one byte of its response.
const WRITE_TIME: Duration = Duration::from_secs(10);

/// Longest wait for connections after the stop: answering takes milliseconds, only half-sent requests take longer.
const STOP_TIME: Duration = Duration::from_secs(1);

/// Most connections at once. Starting takes long, so most of them only wait. One client may have a quarter of them, which is
/// enough for a pipeline that starts some thousand containers, each over a connection of its own.
const PLACES: Places = Places { per_client: 4096, in_all: 16_384 };

/// Buffer per connection, so also the largest head.
const BUFFER_MAX: usize = 32 * 1024;

pub(super) async fn accept(mut listener: Acceptor, tls: Option<TlsAcceptor>, router: Router, stop: CancellationToken) {
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let quota = Quota::new(PLACES.within(platform::limits::descriptors()));
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(BUFFER_MAX);
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
        let router = router.clone();
        let (builder, watcher, tls) = (builder.clone(), graceful.watcher(), tls.clone());
        let stream = WriteTimeout::new(stream, WRITE_TIME);
        connections.spawn(async move {
            // A client that went away, has no certificate or spoke no HTTP is its own affair.
            let _ = match tls {
                None => {
                    let service = TowerToHyperService::new(router);
                    watcher.watch(builder.serve_connection(TokioIo::new(stream), service)).await
                }
                Some(tls) => match tokio::time::timeout(HEAD_TIME, tls.accept(stream)).await {
                    Ok(Ok(stream)) => {
                        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                        let peer = PeerName(certificate.and_then(tls::name_of));
                        let service = TowerToHyperService::new(router.layer(Extension(peer)));
                        watcher.watch(builder.serve_connection(TokioIo::new(stream), service)).await
                    }
                    Ok(Err(error)) => {
                        debug!(%error, "no TLS");
                        Ok(())
                    }
                    Err(_) => Ok(()),
                },
            };
            drop(place);
        });
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
