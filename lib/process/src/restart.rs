//! Starting again in place: a successor gets the sockets, loads what it serves, serves, and then this process ends.
//!
//! At every moment one of the two answers: both read the same sockets from when the successor says that it serves until this process
//! has stopped. A successor that fails costs nothing. What only one process may do (publish this host, store promises, serve the
//! admin pages) the successor begins when this one is gone; until then its sockets wait for it.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use platform::handover::{Handed, Successor, obstacle};
use platform::stop::RestartEvents;
use source::Readiness;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

/// Longest wait for a successor to serve; it gives up by itself before, see [`VIEW_LIMIT`].
const START_LIMIT: Duration = Duration::from_mins(1);

/// Longest wait of a successor for something to answer with: with a state directory it takes less than a second.
pub(crate) const VIEW_LIMIT: Duration = Duration::from_secs(30);

/// Longest wait of a successor for its sources. Its predecessor answers meanwhile; without one of them the last known state is served, as
/// at any start.
pub(crate) const FRESH_LIMIT: Duration = Duration::from_secs(5);

/// What only becomes ready when the predecessor is gone: the publishing of this host.
pub(crate) const AFTERWARDS: &[&str] = &["publish"];

/// How long a process that has a successor serves the connections that it has: a client that has just connected can ask, and one that
/// keeps its connection gets to know with its next response that it ends.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// The part of the readiness that warns of a successor that failed.
const PART: &str = "restart";

/// What starts successors of this process.
#[derive(Debug)]
pub(crate) struct Restart {
    events: RestartEvents,
    /// Where the executable is; of one that was replaced since the start that is the new one.
    program: io::Result<PathBuf>,
    /// Why this process has no successor.
    refused: Option<String>,
    successor: Option<(Successor, Instant)>,
}

impl Restart {
    /// Listens for requests. `program` is the executable as it was found at the start.
    pub(crate) fn new(program: io::Result<PathBuf>, refused: Option<String>) -> io::Result<Self> {
        let refused = refused.or_else(|| obstacle().map(str::to_owned));
        Ok(Self { events: RestartEvents::new()?, program, refused, successor: None })
    }

    /// Waits until a successor serves; `handed` and `addresses` are what it gets.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; a successor that was started goes on.
    pub(crate) async fn succeeded(
        &mut self,
        handed: &Handed,
        addresses: impl AsyncFn() -> Vec<IpAddr>,
        readiness: &Readiness,
    ) {
        loop {
            let failure = match &mut self.successor {
                None => {
                    self.events.requested().await;
                    match self.start(handed, &addresses().await) {
                        Ok(successor) => {
                            info!(process = successor.process(), "starting again in place");
                            self.successor = Some((successor, Instant::now() + START_LIMIT));
                            continue;
                        }
                        Err(failure) => failure,
                    }
                }
                Some((successor, until)) => tokio::select! {
                    served = successor.serving() => match served {
                        Ok(()) => {
                            info!(process = successor.process(), "another process serves now");
                            return;
                        }
                        Err(failure) => failure,
                    },
                    () = sleep_until(*until) => format!("it does not serve within {} s", START_LIMIT.as_secs()),
                },
            };
            // Ended, if it was started.
            self.successor = None;
            warn!(reason = failure, "not started again: this process serves on");
            readiness.warn(PART, Some(format!("not started again: {failure}")));
        }
    }

    fn start(&self, handed: &Handed, addresses: &[IpAddr]) -> Result<Successor, String> {
        if let Some(refused) = &self.refused {
            return Err(refused.clone());
        }
        let program = self.program.as_ref().map_err(|error| format!("its executable is not known: {error}"))?;
        Successor::start(program, handed, addresses).map_err(|error| format!("{}: {error}", program.display()))
    }

    /// The number of the process that was started.
    pub(crate) fn successor(&self) -> Option<u32> {
        self.successor.as_ref().map(|(successor, _)| successor.process())
    }
}
