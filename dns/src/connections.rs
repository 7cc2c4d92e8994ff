//! Accepting connections, over TCP, TLS and HTTPS: all of them have the same limits and the same end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use process::quota::{Places, Quota};
use process::{Acceptor, Failure};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::certificate::Certificate;
use crate::connection_end::Ends;
use crate::doh;
use crate::metrics::Transport;
use crate::shared::Shared;
use crate::tcp::Connection;

/// Most connections at once: at some 10 KiB each they cost 100 MiB at worst, and three times that if all use TLS. For one
/// client as many as for metadata: one that opens all it can leaves the others theirs.
const PLACES: Places = Places { per_client: 256, in_all: 10_000 };

/// What clients speak on the connections of a listener.
#[derive(Clone, Debug)]
pub(crate) enum Protocol {
    Tcp,
    Dot(Arc<Certificate>),
    Doh(Arc<Certificate>),
}

/// The connections of all listeners.
#[derive(Debug)]
pub(crate) struct Connections {
    shared: Arc<Shared>,
    quota: Quota,
    /// Bumped when descriptors are short: idle connections then end.
    pressure: watch::Sender<()>,
    stop: CancellationToken,
    /// Cancelled when no connection is accepted any more, before the stop.
    end: CancellationToken,
    tasks: TaskTracker,
}

impl Connections {
    /// No connections yet. None is accepted after `end`; each will be a task of `tasks`, and ends after `stop`.
    pub(crate) fn new(
        shared: Arc<Shared>,
        stop: CancellationToken,
        end: CancellationToken,
        tasks: TaskTracker,
    ) -> Self {
        let quota = Quota::new(PLACES.within(platform::limits::descriptors()));
        Self { shared, quota, pressure: watch::channel(()).0, stop, end, tasks }
    }

    /// Accepts connections until the service stops.
    pub(crate) async fn accept(self: Arc<Self>, mut listener: Acceptor, protocol: Protocol) -> Result<(), Failure> {
        loop {
            let accepted = tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                () = self.end.cancelled() => {
                    drop(listener);
                    self.stop.cancelled().await;
                    return Ok(());
                }
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, client)) = accepted else {
                self.shared.metrics.receive_errors.inc();
                self.pressure.send_replace(());
                continue;
            };
            let (shared, ends) =
                (self.shared.clone(), Ends { stop: self.stop.clone(), pressure: self.pressure.subscribe() });
            // A task for each protocol: a connection over TCP does not pay for the room that TLS and HTTP need.
            match protocol.clone() {
                Protocol::Tcp => self.spawn(client, async move {
                    stream.set_nodelay(true)?;
                    Connection::new(stream, (client, Transport::Tcp), shared).serve(ends).await
                }),
                Protocol::Dot(certificate) => self.spawn(client, async move {
                    stream.set_nodelay(true)?;
                    let stream = certificate.prove(stream, Transport::Dot, &ends.stop).await?;
                    Connection::new(stream, (client, Transport::Dot), shared).serve(ends).await
                }),
                Protocol::Doh(certificate) => self.spawn(client, async move {
                    stream.set_nodelay(true)?;
                    let stream = certificate.prove(stream, Transport::Doh, &ends.stop).await?;
                    doh::serve(stream, client, shared, ends).await
                }),
            }
        }
    }

    /// Serves a connection if its client may have another one, otherwise closes it.
    fn spawn(&self, client: SocketAddr, served: impl Future<Output = io::Result<()>> + Send + 'static) {
        let Some(place) = self.quota.take(client.ip()) else {
            if self.quota.is_full() {
                self.pressure.send_replace(());
            }
            return;
        };
        self.tasks.spawn(async move {
            let _place = place;
            if let Err(error) = served.await {
                tracing::debug!(%error, %client, "a connection ended");
            }
        });
    }
}
