//! When a connection ends, over TCP, TLS and HTTPS: after a time, when descriptors are short, or with the service.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long a connection may stay idle (RFC 7766 section 6.2.3: a few seconds).
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(10);

/// How long a message may take from its first byte to its last.
pub(crate) const MESSAGE_MAX: Duration = Duration::from_secs(5);

/// Longest message that is read: a query is far shorter, and who announces more has none.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4096;

/// How long writing may be stuck, since the client does not read.
pub(crate) const WRITE_MAX: Duration = Duration::from_secs(5);

/// How long a connection was idle that is closed when others need its descriptor.
pub(crate) const SHED_AFTER: Duration = Duration::from_millis(200);

/// Why a connection has to end.
#[derive(Debug)]
pub(crate) struct Ends {
    /// The service stops.
    pub(crate) stop: CancellationToken,
    /// Changes when descriptors are short.
    pub(crate) pressure: watch::Receiver<()>,
}

/// Waits until descriptors are short.
pub(crate) async fn pressed(mut pressure: watch::Receiver<()>) -> watch::Receiver<()> {
    if pressure.changed().await.is_err() {
        // Nothing accepts any more.
        std::future::pending::<()>().await;
    }
    pressure
}
