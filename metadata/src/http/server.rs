//! The service on its sockets: connections are accepted, let in or refused, and ended.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use model::Snapshot;
use platform::redirect::Place;
use platform::socket;
use process::{Accepting, Acceptor, Clients, Failure, Parts};
use prometheus_client::registry::Registry;
use source::{Derivation, Store, Watcher, derive};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, warn};

use crate::config::Options;
use crate::http::connection::Connection;
use crate::http::service::{Crowded, Ends, Service, Visitor};
use crate::http::session::KEY_BYTES;
use crate::view::View;

/// How long such a connection may take.
const REFUSED_TIME_MAX: Duration = Duration::from_secs(1);

/// How much of its request is read: closing with bytes unread would take the answer away from the client.
const REFUSED_BYTES_MAX: usize = 16 << 10;

/// How long the first connections wait for the first view: a file of 100,000 containers is read in less. Without a view,
/// everything would be answered with 404, as if it did not exist.
const FIRST_VIEW_MAX: Duration = Duration::from_secs(1);

/// The response to a connection beyond the limit for all clients.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 1\r\nContent-Length: 21\r\nConnection: close\r\n\r\nToo many connections\n";

/// The response to a connection beyond the limit for one client.
const TOO_MANY_OF_CLIENT: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 1\r\nContent-Length: 35\r\nConnection: close\r\n\r\nToo many connections of one client\n";

/// The response to a client outside the allowed networks.
const STRANGER: &[u8] = b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 39\r\nConnection: close\r\n\r\nClients of this network have no access\n";

/// The metadata service.
#[derive(Debug)]
pub struct Server {
    /// The view, kept up to date.
    derived: Derivation,
    service: Arc<Service>,
    /// Whether connections are accepted when their first bytes have arrived, where the system can do that.
    defers: bool,
    /// Where clients reach the service, when that is not what its socket is bound to.
    redirected: Option<SocketAddr>,
    accepting: Accepting,
}

/// Why there is no service.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system gives no random bytes, of which the key of the session tokens is made.
    #[error("no random key for session tokens: {0}")]
    Key(getrandom::Error),
}

impl Server {
    /// A service that shows the snapshots of this store to these clients.
    pub fn new(
        options: &Options,
        clients: Clients,
        snapshots: Arc<Store<Snapshot>>,
        registry: &mut Registry,
    ) -> Result<Self, StartError> {
        if options.xff {
            warn!(
                "--xff lets any client say that it is another one (X-Forwarded-For); believe the proxy only: \
                 --trusted-proxy ADDRESS instead of --xff"
            );
        }
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key).map_err(StartError::Key)?;
        let service = Service::new(options, clients, key, registry);
        let derived = derive(snapshots, service.views.clone(), |new, _, view: &Arc<View>| view.next(new));
        let accepting = Accepting::now();
        Ok(Self { derived, service: Arc::new(service), defers: true, redirected: None, accepting })
    }

    /// Whether there ought to be data but are none (a source is there and cannot be used): while this is set and
    /// nothing was ever published, every request is answered with 503, even if the options say 404.
    pub fn unavailable(&self) -> Arc<AtomicBool> {
        self.service.unavailable.clone()
    }

    /// A container that asks for itself before the source has reported it waits a moment for that: the source is the engine
    /// that starts containers.
    #[must_use]
    pub fn with_live_clients(self) -> Self {
        self.service.live.store(true, Ordering::Relaxed);
        self
    }

    /// Connections are addressed to `place`, which can differ from the address that the socket is bound to.
    #[must_use]
    pub fn reached_at(mut self, place: Place) -> Self {
        self.redirected = place.redirected();
        self
    }

    /// Connections are accepted for as long as this says.
    #[must_use]
    pub fn with_accepting(self, accepting: Accepting) -> Self {
        Self { accepting, ..self }
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
        let first_view = service.views.watch();
        let following = tokio::spawn(service.stop.clone().run_until_cancelled_owned(self.derived));
        let bound = self.redirected.or_else(|| listener.local_addr().ok());
        if let Some(address) = bound {
            Clients::warn_if_unspecified("metadata", address);
        }
        // Of a listener on all addresses, each connection knows.
        let arrival = bound.filter(|address| !address.ip().is_unspecified());
        if self.defers {
            socket::defer_accept(&listener)?;
        }
        let listener = Acceptor::new(listener)?;
        let accepting = accept(listener, self.accepting, first_view, arrival, service.clone(), tasks.clone());
        parts.spawn("accepting connections", accepting);
        tasks.spawn(service.stop.clone().run_until_cancelled_owned(end_idle(service.clone())));
        parts.watch().await?;
        // First, so that those that are answered because of the stop end with their answers.
        service.evictions.close();
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

/// Accepts connections until the service stops; nothing that goes wrong with one ends it.
///
/// All arrive at one address, or each knows its own. When no connection is accepted any more, those that are there end with their next
/// response.
async fn accept(
    mut listener: Acceptor,
    accepting: Accepting,
    mut first_view: Watcher,
    arrival: Option<SocketAddr>,
    service: Arc<Service>,
    tasks: TaskTracker,
) -> Result<(), Failure> {
    let accepted = async {
        // Connections stay in the system's queue meanwhile.
        accepting.begin.cancelled().await;
        let _ = timeout(FIRST_VIEW_MAX, first_view.changed()).await;
        loop {
            match listener.accept_std().await {
                Ok((stream, peer)) => _ = service.guarded(|| begin(stream, peer, arrival, &service, &tasks)),
                // Without room for the next one, a connection that rests has to go.
                Err(_) => _ = service.evictions.evict(),
            }
        }
    };
    let until_end = async {
        accepting.end.run_until_cancelled(accepted).await;
        service.ending.cancel();
        std::future::pending::<()>().await;
    };
    service.stop.run_until_cancelled(until_end).await;
    Ok(())
}

/// Serves a new connection, or says why not.
fn begin(
    stream: StdStream,
    peer: SocketAddr,
    arrival: Option<SocketAddr>,
    service: &Arc<Service>,
    tasks: &TaskTracker,
) {
    // The connection is gone already when its own address is not known.
    let Some(local) = arrival.or_else(|| stream.local_addr().ok()) else { return };
    let ends = Ends { peer: peer.ip(), port: peer.port(), local };
    match service.let_in(ends) {
        Ok((counted, share)) => {
            Connection::new(service.clone(), Visitor::new(ends, share), counted).begin(stream, tasks);
        }
        Err(why) => refuse(stream, why, service, tasks),
    }
}

/// Ends connections that rest too long.
async fn end_idle(service: Arc<Service>) {
    let idle = Duration::from_secs(service.limits.idle.into());
    loop {
        let now = service.started.elapsed();
        let evicted = now.checked_sub(idle).is_some_and(|since| service.evictions.evict_since(since));
        if !evicted {
            // One that comes to rest in the meantime may do so for longer.
            let oldest = service.evictions.oldest().unwrap_or(now);
            sleep((oldest + idle).saturating_sub(now)).await;
        }
    }
}

/// Sends the reason to a client that gets no connection.
fn refuse(stream: StdStream, why: Crowded, service: &Arc<Service>, tasks: &TaskTracker) {
    let why = match why {
        Crowded::All => TOO_MANY,
        Crowded::Client => TOO_MANY_OF_CLIENT,
        Crowded::Stranger => STRANGER,
    };
    // Fails only for a connection that is gone already.
    let Ok(mut stream) = TcpStream::from_std(stream) else { return };
    // It always fits into a new connection's buffer; when not, the client is gone.
    let Ok(permit) = service.refusing.clone().try_acquire_owned() else { return };
    tasks.spawn(async move {
        let _permit = permit;
        let send = async {
            stream.write_all(why).await?;
            stream.shutdown().await?;
            let mut discarded = Vec::with_capacity(REFUSED_BYTES_MAX);
            while discarded.len() < REFUSED_BYTES_MAX && stream.read_buf(&mut discarded).await? > 0 {}
            io::Result::Ok(())
        };
        // The connection ends in any case.
        let _ = timeout(REFUSED_TIME_MAX, send).await;
    });
}

#[cfg(test)]
pub(crate) mod tests;
