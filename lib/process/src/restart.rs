//! Starting again in place: a successor gets the sockets, loads what it serves, serves, and then this process ends.
//!
//! At every moment one of the two answers: both read the same sockets from when the successor says that it serves until this process
//! has stopped. A successor that fails costs nothing. What only one process may do (publish this host, store promises, serve the
//! admin pages) the successor begins when this one is gone; until then its sockets wait for it.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use platform::handover::{Handed, Successor, obstacle};
use platform::stop::{RestartEvents, StopEvents};
use source::Readiness;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

/// Longest wait for a successor to serve; it gives up by itself before, see [`VIEW_LIMIT`].
const START_LIMIT: Duration = Duration::from_secs(40);

/// Longest wait of a successor for something to answer with: with a state directory it takes less than a second.
pub(crate) const VIEW_LIMIT: Duration = Duration::from_secs(30);

/// Longest wait of a successor for its sources. Its predecessor answers meanwhile; without one of them the last known state is served, as
/// at any start.
pub(crate) const FRESH_LIMIT: Duration = Duration::from_secs(5);

/// Longest wait for something to answer with where clients wait at sockets that were kept: the buffer of one holds the questions of two
/// seconds at 5,000 a second.
pub(crate) const KEPT_LIMIT: Duration = Duration::from_secs(2);

/// What only becomes ready when the predecessor is gone: the publishing of this host.
pub(crate) const AFTERWARDS: &[&str] = &["publish"];

/// How long a process that has a successor serves the connections that it has: a client that has just connected can ask, and one that
/// keeps its connection gets to know with its next response that it ends. On a machine without time to spare, clients wait for a second
/// between the two.
pub(crate) const LINGER: Duration = Duration::from_secs(3);

/// The part of the readiness that warns of a successor that failed.
const PART: &str = "restart";

/// What became of the successors of this process so far, for those who ask its admin pages. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attempts(Arc<Mutex<Made>>);

/// The attempts of a process to start again in place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Made {
    /// How many failed.
    pub(crate) failed: u64,
    /// Why the last one did.
    pub(crate) reason: Option<String>,
    /// Whether one is being made: another one would be taken for it.
    pub(crate) under_way: bool,
}

impl Attempts {
    /// Those so far.
    pub(crate) fn made(&self) -> Made {
        self.lock().clone()
    }

    fn begin(&self) {
        self.lock().under_way = true;
    }

    fn note(&self, reason: &str) {
        let mut made = self.lock();
        *made = Made { failed: made.failed + 1, reason: Some(reason.to_owned()), under_way: false };
    }

    fn lock(&self) -> MutexGuard<'_, Made> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name by which this process was started, if it leads to its executable: a link to one of several versions may lead to another one
/// by the time of a restart. Otherwise the executable itself.
pub(crate) fn name_of(executable: PathBuf) -> PathBuf {
    let word = std::env::args_os().next().unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::var_os("PATH").iter().flat_map(std::env::split_paths).collect();
    named(Path::new(&word), &folders, &executable).unwrap_or(executable)
}

/// The way to an executable that `word` names, as a shell looks it up.
fn named(word: &Path, folders: &[PathBuf], executable: &Path) -> Option<PathBuf> {
    let is_alone = word.parent().is_some_and(|parent| parent.as_os_str().is_empty());
    let ways = if is_alone { folders.iter().map(|folder| folder.join(word)).collect() } else { vec![word.to_owned()] };
    let leads_there = |way: &PathBuf| way.canonicalize().is_ok_and(|found| found == *executable);
    std::path::absolute(ways.into_iter().find(leads_there)?).ok()
}

/// Why this process has no successor, whatever becomes of the attempt.
pub(crate) fn refused(reason: Option<String>) -> Option<String> {
    reason.or_else(|| obstacle().map(str::to_owned))
}

/// What starts successors of this process.
#[derive(Debug)]
pub(crate) struct Restart {
    events: RestartEvents,
    /// The name of the executable; of one that was replaced since the start that is the new one.
    program: io::Result<PathBuf>,
    /// Why this process has no successor.
    refused: Option<String>,
    attempts: Attempts,
    successor: Option<(Successor, Instant)>,
}

impl Restart {
    /// Listens for requests. `program` is the [name](name_of) of the executable at the start.
    pub(crate) fn new(program: io::Result<PathBuf>, reason: Option<String>, attempts: Attempts) -> io::Result<Self> {
        Ok(Self { events: RestartEvents::new()?, program, refused: refused(reason), attempts, successor: None })
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
                            self.attempts.begin();
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
            self.attempts.note(&failure);
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

    /// Has the successor stop too whenever that is asked of this process, which others may still take for the service. Never ends.
    pub(crate) async fn pass_stops_on(&self, events: &mut StopEvents) {
        loop {
            let event = events.requested().await;
            info!(event, "the process that serves now is asked to stop");
            if let Some((successor, _)) = &self.successor
                && let Err(error) = successor.stop()
            {
                warn!(%error, "it cannot be asked to stop");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executable_is_found_by_the_name_it_was_started_by() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let [own, other] = ["own", "other"].map(|name| folder.join(name));
        std::fs::write(&own, "").unwrap();
        std::fs::write(&other, "").unwrap();
        let folders = [folder.join("none"), folder.clone()];
        for (word, expected) in [
            (Path::new("own"), Some(&own)),
            (&own, Some(&own)),
            // Another program of that name, or none, is not started in its place.
            (Path::new("other"), None),
            (&other, None),
            (Path::new("lost"), None),
            (Path::new(""), None),
        ] {
            assert_eq!(named(word, &folders, &own).as_ref(), expected, "{word:?}");
        }
    }
}
