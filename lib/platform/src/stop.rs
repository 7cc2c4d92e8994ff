//! What asks a process to stop, to read its configuration again or to start again.

#[cfg_attr(unix, path = "stop/unix.rs")]
#[cfg_attr(windows, path = "stop/windows.rs")]
mod system;

#[cfg(windows)]
pub(crate) use system::SERVICE_STOP;

use std::io;
use std::time::Duration;

/// Longest time between being asked to stop and having stopped.
///
/// Linux: `docker stop` kills after 10 s, and what follows the drain takes time too. Windows: `docker stop` sends `CTRL_SHUTDOWN_EVENT`,
/// and the system ends the process about 5 s later in any case.
pub const DRAIN_LIMIT: Duration = system::DRAIN_LIMIT;

/// The requests to stop: SIGINT and SIGTERM; on Windows Ctrl-C, Ctrl-Break, closing the console, shutdown,
/// and of a service its stop.
#[derive(Debug)]
pub struct StopEvents(system::StopEvents);

impl StopEvents {
    /// Registers the handlers at once, so that a request during start-up is not lost.
    ///
    /// Needs a tokio runtime with its I/O driver.
    pub fn new() -> io::Result<Self> {
        system::StopEvents::new().map(Self)
    }

    /// Waits for a request and gives its name, for the log.
    ///
    /// On Windows the process must end by itself afterwards: closing and shutdown are answered only by the end of the
    /// process.
    ///
    /// # Cancel safety
    /// A request that arrives while no task waits is stored for the next call.
    pub async fn requested(&mut self) -> &'static str {
        self.0.requested().await
    }
}

/// The requests to read the configuration again: SIGHUP; Windows has none.
#[derive(Debug)]
pub struct ReloadEvents(system::Requests);

impl ReloadEvents {
    /// Registers the handler at once; without it SIGHUP ends the process.
    ///
    /// Needs a tokio runtime with its I/O driver.
    pub fn new() -> io::Result<Self> {
        system::Requests::reload().map(Self)
    }

    /// Waits for a request. Several that come close together may count as one.
    ///
    /// # Cancel safety
    /// A request that arrives while no task waits is stored for the next call.
    pub async fn requested(&mut self) {
        self.0.requested().await;
    }
}

/// The requests to start again in place: SIGUSR2; Windows has none.
#[derive(Debug)]
pub struct RestartEvents(system::Requests);

impl RestartEvents {
    /// Registers the handler at once; without it SIGUSR2 ends the process.
    ///
    /// Needs a tokio runtime with its I/O driver.
    pub fn new() -> io::Result<Self> {
        system::Requests::restart().map(Self)
    }

    /// Waits for a request. Several that come close together may count as one.
    ///
    /// # Cancel safety
    /// A request that arrives while no task waits is stored for the next call.
    pub async fn requested(&mut self) {
        self.0.requested().await;
    }
}
