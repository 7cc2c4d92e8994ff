//! Follows a file; on failure its last good contents stay.
//!
//! A thread of its own looks at the file: when the system reports an event in its folder, on request, and now and then all
//! the same: rarely where each change is reported ([`platform::file::reported`]), else ten times a second, since bind mounts
//! on Windows and network file systems lose events. A look compares stamps, then contents; events are hints only.

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use model::fingerprint::content::{PIECE, Pieces};
use model::{Defect, Fingerprint};
use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use platform::file::{OpenError, Reported, Stamp, open_regular, reported};
use tokio::sync::oneshot;
use tracing::{debug, info, warn};

use crate::format::FormatError;
use crate::status::Readiness;

/// Time between looks where events may be lost: with it an edit is visible well within 250 ms all the same.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Time between looks where each change is reported. What changes without an event there, as by a mapping into memory, is
/// found by them, and from then on the file is looked at as where events are lost.
const REPORTED_INTERVAL: Duration = Duration::from_secs(2);

/// How long after a change that a look has found its event may still come.
const EVENT_LATE: Duration = Duration::from_secs(1);

/// Shortest pause before contents are compared again.
const RECHECK_PAUSE_MIN: Duration = Duration::from_millis(10);

/// How long a change must be followed by no other one before it counts: an editor that writes in place is faster.
const SETTLE: Duration = Duration::from_millis(20);

/// Longest wait for a file that keeps changing; then what is there counts if it is good.
const SETTLE_MAX: Duration = Duration::from_millis(120);

/// Contents are compared again after these times since a change, because two writes within the grain of
/// the file's time (2 s on FAT) look like one.
const RECHECKS: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(700),
    Duration::from_millis(1500),
    Duration::from_millis(2500),
];

/// Time between further looks at a file that cannot be read: a process that holds it alone (an editor, a scanner, a
/// backup) lets go of it without changing its stamp.
const UNREADABLE_RECHECK: Duration = Duration::from_secs(1);

/// Largest file that is read, in bytes: 100,000 containers as the predecessor wrote them are 190 million.
const FILE_MAX: u64 = 512 << 20;

/// Most defects that are logged one by one after a reading.
const LOGGED_DEFECTS_MAX: usize = 20;

/// What a reader made of a file's contents.
#[derive(Debug, Default)]
pub struct Accepted {
    /// Parts that were left out.
    pub defects: Vec<Defect>,
    /// Further files that were read, or would be if they were there; they are followed too.
    pub beside: Vec<PathBuf>,
    /// Whether anything visible changed.
    pub changed: bool,
}

/// Reads and publishes the contents of a file, or refuses them.
pub type Reader = Box<dyn FnMut(&Path, Vec<u8>) -> Result<Accepted, FormatError> + Send>;

/// Asks for a look; answered when everything that follows from it is published.
pub type Reply = oneshot::Sender<Result<(), String>>;

enum Ask {
    Look,
    Reload(Reply),
    Stop,
}

/// A thread that follows a file. Dropping this ends it.
#[derive(Debug)]
pub struct FollowedFile {
    asks: Sender<Ask>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl FollowedFile {
    /// Starts following `path`.
    ///
    /// `first_failed` is called once when the first look finds nothing good: the moment for what was stored.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses another thread.
    pub fn start(
        path: PathBuf,
        part: &'static str,
        readiness: Arc<Readiness>,
        reader: Reader,
        first_failed: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<Self> {
        let (asks, asked) = channel();
        let wakeups = asks.clone();
        let mut looker = Looker::new(path, part, readiness, reader);
        let thread = std::thread::Builder::new().name("file".into()).spawn(move || {
            // What the watcher watches is what is there before it begins.
            let reported = looker.reported();
            let watching = watch(&looker.path, wakeups);
            if looker.look(true).is_err() {
                first_failed();
            }
            follow(&mut looker, &asked, reported.filter(|_| watching.is_some()));
            drop(watching);
        })?;
        Ok(Self { asks, thread: Some(thread) })
    }

    /// Asks for a look now.
    pub fn reload(&self, reply: Reply) {
        // Without the thread the reply is dropped, which the asker sees.
        let _ = self.asks.send(Ask::Reload(reply));
    }
}

impl Drop for FollowedFile {
    fn drop(&mut self) {
        let _ = self.asks.send(Ask::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!("the thread that followed the file had panicked");
        }
    }
}

fn follow(looker: &mut Looker, asked: &Receiver<Ask>, mut watched: Option<Reported>) {
    // When a look found a change of which no event has come yet.
    let mut unannounced: Option<Instant> = None;
    loop {
        if watched.is_some() && watched != looker.reported() {
            debug!(path = %looker.path.display(), "it is elsewhere now; looking ten times a second");
            watched = None;
        }
        let pause = if watched.is_some() { looker.pause() } else { POLL_INTERVAL };
        let first = asked.recv_timeout(pause);
        if matches!(first, Err(RecvTimeoutError::Disconnected)) {
            return;
        }
        // One look serves all requests that have arrived.
        let (mut replies, mut is_announced) = (Vec::new(), false);
        for ask in first.into_iter().chain(asked.try_iter()) {
            match ask {
                Ask::Look => is_announced = true,
                Ask::Reload(reply) => replies.push(reply),
                Ask::Stop => return,
            }
        }
        let changed_before = looker.changed_at;
        let outcome = catch_unwind(AssertUnwindSafe(|| looker.look(!replies.is_empty())));
        let outcome = outcome.unwrap_or_else(|_| Err("reading the file panicked".into()));
        for reply in replies {
            let _ = reply.send(outcome.clone());
        }
        if is_announced {
            unannounced = None;
        } else if looker.changed_at != changed_before {
            unannounced.get_or_insert_with(Instant::now);
        }
        if watched.is_some() && unannounced.is_some_and(|since| since.elapsed() >= EVENT_LATE) {
            info!(path = %looker.path.display(), "it changed without an event; looking ten times a second");
            watched = None;
        }
    }
}

/// Wakes the looker when something happens in the file's folder; without it looks alone must do.
fn watch(path: &Path, asks: Sender<Ask>) -> Option<RecommendedWatcher> {
    let wake = move |event: notify::Result<Event>| {
        // Reading changes nothing.
        if event.is_ok_and(|event| is_reading(event.kind)) {
            return;
        }
        let _ = asks.send(Ask::Look);
    };
    let folder = folder_of(path);
    let watching = notify::recommended_watcher(wake).and_then(|mut watcher| {
        // The folder, not the file: a file that is replaced is another file.
        watcher.watch(folder, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    match watching {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            info!(%error, folder = %folder.display(), "no events of this folder; looking ten times a second");
            None
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

fn is_reading(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

/// What stands between looks.
struct Looker {
    path: PathBuf,
    part: &'static str,
    readiness: Arc<Readiness>,
    reader: Reader,
    beside: Vec<PathBuf>,
    stamps: Vec<Option<Stamp>>,
    /// Of the contents seen last, or of the reason why there were none.
    seen: Option<Fingerprint>,
    outcome: Result<(), String>,
    changed_at: Instant,
    rechecks: usize,
    rechecked_at: Instant,
    /// Whether the system refused to give the contents when they were read last.
    unreadable: bool,
    ever_good: bool,
}

impl Looker {
    fn new(path: PathBuf, part: &'static str, readiness: Arc<Readiness>, reader: Reader) -> Self {
        readiness.not_ready(part, format!("{} was not read yet", path.display()));
        Self {
            path,
            part,
            readiness,
            reader,
            beside: Vec::new(),
            stamps: Vec::new(),
            seen: None,
            outcome: Ok(()),
            changed_at: Instant::now(),
            rechecks: 0,
            rechecked_at: Instant::now(),
            unreadable: false,
            ever_good: false,
        }
    }

    /// Reads the file if it changed, or in any case when `forced`.
    ///
    /// Fails if the present content of the file is not what is served.
    fn look(&mut self, forced: bool) -> Result<(), String> {
        let mut forced = forced;
        let begun = Instant::now();
        loop {
            let stamps = self.stamp_all();
            if stamps != self.stamps {
                self.changed_at = Instant::now();
                self.rechecks = 0;
                // The contents of the files beside are the reader's business: any change of them counts.
                forced |= stamps.get(1..) != self.stamps.get(1..);
            } else if forced || self.recheck_due() {
                // Same stamp, maybe other contents.
            } else {
                return self.outcome.clone();
            }
            // If the stamp did not change, the contents stay out of memory until they turn out to be others.
            if !forced && stamps == self.stamps && Some(self.seen_now()) == self.seen {
                return self.outcome.clone();
            }
            let (contents, seen) = self.contents();
            let unreadable = contents.is_err();
            if Some(seen) == self.seen && !forced {
                self.stamps = stamps;
                return self.outcome.clone();
            }
            std::thread::sleep(SETTLE);
            let settled = self.stamp_all() == stamps;
            if !settled && begun.elapsed() < SETTLE_MAX {
                forced = true;
                continue;
            }
            let known = Some(seen) == self.seen;
            let outcome =
                contents.and_then(|bytes| (self.reader)(&self.path, bytes).map_err(|error| error.to_string()));
            if outcome.is_err() && !settled {
                // A process is still writing: the next event or poll looks again, nothing is reported yet.
                return self.outcome.clone();
            }
            self.stamps = stamps;
            self.seen = Some(seen);
            self.unreadable = unreadable;
            if !known {
                // A large file took its time: what is written within the grain of its time comes from now on.
                self.changed_at = Instant::now();
            }
            self.settle(outcome, known);
            return self.outcome.clone();
        }
    }

    /// Records and reports the outcome of a reading; `known` contents are not reported again.
    fn settle(&mut self, outcome: Result<Accepted, String>, known: bool) {
        let path = self.path.display();
        match outcome {
            Ok(accepted) => {
                if accepted.changed || !self.ever_good {
                    info!(%path, defects = accepted.defects.len(), "read");
                }
                if !known {
                    for defect in accepted.defects.iter().take(LOGGED_DEFECTS_MAX) {
                        warn!(%path, "{defect}");
                    }
                    let more = accepted.defects.len().saturating_sub(LOGGED_DEFECTS_MAX);
                    if more > 0 {
                        warn!(%path, more, "further defects; `check` lists them all");
                    }
                }
                self.ever_good = true;
                self.readiness.ready(self.part);
                if self.beside != accepted.beside {
                    self.beside = accepted.beside;
                    self.stamps = self.stamp_all();
                }
                self.outcome = Ok(());
            }
            Err(error) => {
                // The reason may name the file already.
                let reason = if error.contains(&*path.to_string()) { error } else { format!("{path}: {error}") };
                // Known contents can be wrong for another reason: a file beside them changed.
                if known && self.outcome.as_ref().is_err_and(|before| *before == reason) {
                    debug!("still {reason}");
                } else {
                    let effect = if self.ever_good { "; its last good contents stay in use" } else { "" };
                    warn!("{reason}{effect}");
                }
                self.readiness.not_ready(self.part, reason.clone());
                self.outcome = Err(reason);
            }
        }
    }

    /// Where the file is, if each change of it and of those beside is reported.
    fn reported(&self) -> Option<Reported> {
        let is_one_folder = self.beside.iter().all(|beside| folder_of(beside) == folder_of(&self.path));
        if is_one_folder { reported(&self.path) } else { None }
    }

    /// Time until the next look if nothing happens, where each change is reported.
    fn pause(&self) -> Duration {
        let pause = match RECHECKS.get(self.rechecks) {
            Some(after) => after.saturating_sub(self.changed_at.elapsed()),
            None if self.unreadable => UNREADABLE_RECHECK.saturating_sub(self.rechecked_at.elapsed()),
            None => REPORTED_INTERVAL,
        };
        pause.clamp(RECHECK_PAUSE_MIN, REPORTED_INTERVAL)
    }

    fn recheck_due(&mut self) -> bool {
        let due = match RECHECKS.get(self.rechecks) {
            Some(after) => self.changed_at.elapsed() >= *after,
            None => self.unreadable && self.rechecked_at.elapsed() >= UNREADABLE_RECHECK,
        };
        if due {
            self.rechecks += 1;
            self.rechecked_at = Instant::now();
        }
        due
    }

    fn stamp_all(&self) -> Vec<Option<Stamp>> {
        let stamp = |path: &PathBuf| std::fs::metadata(path).ok().map(|metadata| Stamp::from(&metadata));
        std::iter::once(&self.path).chain(&self.beside).map(stamp).collect()
    }

    /// The contents, or why there are none, and what stands for either.
    fn contents(&self) -> (Result<Vec<u8>, String>, Fingerprint) {
        let mut bytes = Vec::new();
        let read = pieces(&self.path, &mut bytes, Contents::All).map_err(|error| error.to_string());
        let seen = fingerprint_of(&read);
        (read.map(|_| bytes), seen)
    }

    /// What stands for the contents as they are now.
    fn seen_now(&self) -> Fingerprint {
        fingerprint_of(&pieces(&self.path, &mut Vec::new(), Contents::Nothing).map_err(|error| error.to_string()))
    }
}

/// The contents of a regular file within the bound.
///
/// # Errors
///
/// Fails if there is no such file, it is no regular file, cannot be read, or is too large.
pub fn read(path: &Path) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::new();
    pieces(path, &mut bytes, Contents::All)?;
    Ok(bytes)
}

/// What stays in memory of the contents that were read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Contents {
    All,
    Nothing,
}

/// Reads a regular file within the bound into `bytes`, piece by piece, and returns the fingerprint of its contents.
///
/// A fingerprint takes a tenth of the time of SHA-256, which counts since contents are compared several times after
/// each change; an attacker that could write a file with the fingerprint of the one before could as well leave the file
/// alone.
fn pieces(path: &Path, bytes: &mut Vec<u8>, keep: Contents) -> Result<Fingerprint, ReadError> {
    let file = open_regular(path)?;
    let unreadable = |error| ReadError::Unreadable { path: path.to_owned(), error };
    let size = file.metadata().map_err(unreadable)?.len();
    bytes.reserve_exact(match keep {
        Contents::All => usize::try_from(size.min(FILE_MAX)).unwrap_or_default(),
        Contents::Nothing => PIECE,
    });
    platform::memory::advise_huge_pages(bytes);
    let mut file = file.take(FILE_MAX + 1);
    let mut fingerprint = Pieces::default();
    loop {
        let start = bytes.len();
        let got = file.by_ref().take(PIECE as u64).read_to_end(bytes).map_err(unreadable)?;
        fingerprint.add(&bytes[start..]);
        if file.limit() == 0 {
            return Err(ReadError::TooLarge { path: path.to_owned() });
        }
        if got < PIECE {
            return Ok(fingerprint.finish());
        }
        if keep == Contents::Nothing {
            bytes.clear();
        }
    }
}

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It is larger than any cluster.
    #[error("{} is larger than {FILE_MAX} bytes", .path.display())]
    TooLarge {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// Reading failed.
    #[error("cannot read {}: {error}", .path.display())]
    Unreadable {
        /// The path that was asked for.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: std::io::Error,
    },
}

/// What stands for contents, or for the reason why there are none.
fn fingerprint_of(read: &Result<Fingerprint, String>) -> Fingerprint {
    match read {
        Ok(fingerprint) => *fingerprint,
        Err(reason) => Fingerprint::of(reason),
    }
}

#[cfg(test)]
mod tests;
