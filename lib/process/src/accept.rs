//! Accepting connections, for all services alike: what goes wrong with one connection costs nothing but that one.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream as StdStream};
use std::time::Duration;

use platform::socket::{Listener, is_out_of_descriptors, is_transient};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

/// Pause after an error that would come again at once, in which connections end and give descriptors back.
pub const PAUSE: Duration = Duration::from_millis(50);

/// How long an error that comes again and again is not logged again.
const WARNING_PAUSE: Duration = Duration::from_mins(1);

/// A listener that a service accepts from for as long as it runs.
#[derive(Debug)]
pub struct Acceptor {
    listener: Listener,
    failures: Failures,
    /// Set after an error that would come again at once.
    rests_until: Option<Instant>,
}

impl Acceptor {
    /// Takes a listener over, which must not block.
    ///
    /// # Errors
    ///
    /// Fails if the runtime cannot wait for the socket.
    pub fn new(listener: TcpListener) -> io::Result<Self> {
        let listener = Listener::from_std(listener)?;
        Ok(Self { listener, failures: Failures::of("accepting connections"), rests_until: None })
    }

    /// The address that is listened on.
    ///
    /// # Errors
    ///
    /// Fails if the system does not know it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits for the next connection, which the runtime then knows; returns it and the address of its client.
    ///
    /// # Errors
    ///
    /// An error means that the system is short of something, mostly of descriptors: it was logged, and the next call
    /// begins with a pause. The caller can close what is idle. Errors of a single connection are not returned.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; no connection is lost.
    pub async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            let (stream, peer) = self.accept_std().await?;
            match TcpStream::from_std(stream) {
                Ok(stream) => return Ok((stream, peer)),
                Err(error) => self.failed(error)?,
            }
        }
    }

    /// The same, but the runtime does not know the connection yet, which saves two system calls when it is over at once.
    /// It does not block.
    ///
    /// # Errors
    ///
    /// As [`Self::accept`].
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; no connection is lost.
    pub async fn accept_std(&mut self) -> io::Result<(StdStream, SocketAddr)> {
        if let Some(time) = self.rests_until {
            sleep_until(time).await;
            self.rests_until = None;
        }
        loop {
            match self.listener.accept().await {
                Ok(accepted) => return Ok(accepted),
                Err(error) => self.failed(error)?,
            }
        }
    }

    /// Returns an error that would come again at once.
    fn failed(&mut self, error: io::Error) -> io::Result<()> {
        if !self.failures.note(&error) {
            return Ok(());
        }
        self.rests_until = Some(Instant::now() + PAUSE);
        Err(error)
    }
}

impl axum::serve::Listener for Acceptor {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            if let Ok(accepted) = Self::accept(self).await {
                return accepted;
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}

/// Failures of accepting or receiving, of which one a minute is logged.
#[derive(Debug)]
pub struct Failures {
    /// What fails, such as "accepting connections".
    what: &'static str,
    last: Option<Instant>,
}

impl Failures {
    /// None so far of what is named so.
    pub fn of(what: &'static str) -> Self {
        Self { what, last: None }
    }

    /// Logs a failure unless one was logged just before; returns whether the caller has to pause for [`PAUSE`], since the
    /// next call would fail in the same way.
    ///
    /// What only says that one client is gone is neither logged nor worth a pause.
    pub fn note(&mut self, error: &io::Error) -> bool {
        let lasts = is_out_of_descriptors(error) || error.kind() == ErrorKind::OutOfMemory || !is_transient(error);
        if lasts && self.last.is_none_or(|last| last.elapsed() >= WARNING_PAUSE) {
            warn!(%error, "{} fails; going on", self.what);
            self.last = Some(Instant::now());
        }
        lasts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_is_gone_costs_no_pause_and_no_line() {
        let mut failures = Failures::of("accepting");
        for kind in [ErrorKind::ConnectionAborted, ErrorKind::ConnectionReset, ErrorKind::Interrupted] {
            assert!(!failures.note(&kind.into()), "{kind}");
        }
        assert!(failures.last.is_none());
        assert!(failures.note(&ErrorKind::InvalidInput.into()));
        assert!(failures.last.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn one_failure_a_minute_is_logged() {
        let mut failures = Failures::of("accepting");
        let mut logged = 0;
        for _ in 0..100 {
            let before = failures.last;
            failures.note(&ErrorKind::InvalidInput.into());
            logged += usize::from(failures.last != before);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(logged, 2);
    }
}
