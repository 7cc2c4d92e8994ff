//! The journal: the ledger on disk, so that a crash loses no promise and forgets nothing that was begun.
//!
//! One line for each change of a record, whole, so that the last line for an id is all there is to know of it. A thread
//! writes, many lines for one flush; who must not speak before it is on disk waits with [`Journal::settled`]. What
//! containers use and what time has passed is not written: snapshots and the clock tell it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use model::Text;
use serde::Deserialize;
use tokio::sync::oneshot;
use tracing::{error, warn};

use crate::kept::Kept;
use crate::ledger::record::Record;

/// Lines after which the file is written anew, when most of them are old: some megabytes, read in less than 0.1 s.
const LINES_MAX: usize = 10_000;

/// Longest line that is read: a request of the largest body and what was promised for it.
const LINE_MAX: usize = 16 << 20;

/// The ledger's file could not be written, so nothing more is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ledger cannot be written to disk, so nothing is promised")]
pub struct Broken;

/// Why there is no journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file cannot be read or written.
    #[error("cannot keep the ledger in {path}: {error}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Another scheduler has it.
    #[error("the ledger {0} is in use by another scheduler")]
    InUse(PathBuf),
}

/// Writes changes of the ledger down.
#[derive(Debug)]
pub struct Journal {
    lines: mpsc::Sender<Line>,
}

/// What the writer is told.
#[derive(Debug)]
enum Line {
    Change(Text, Option<Vec<u8>>),
    Settle(oneshot::Sender<Result<(), Broken>>),
}

impl Journal {
    /// The journal in this file, and what it held.
    ///
    /// # Errors
    ///
    /// When the file cannot be used, or another process uses it.
    pub fn open(path: &Path, now: Duration) -> Result<(Self, Vec<(Text, Record)>), JournalError> {
        let unusable = |error| JournalError::Unusable { path: path.to_owned(), error };
        let lock = path.with_extension("lock");
        let lock = OpenOptions::new().create(true).append(true).open(lock).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(JournalError::InUse(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
        }
        let live = read(path).map_err(unusable)?;
        let records = live.iter().filter_map(|(id, line)| {
            let kept: Result<Kept, _> = serde_json::from_slice(line);
            let record = kept.map_err(|error| error.to_string()).and_then(|kept| kept.record(now));
            // One that cannot be read is lost, but not the others with it.
            let record = record.map_err(|error| error!(%id, %error, "a promise in the ledger cannot be read"));
            Some((id.clone(), record.ok()?))
        });
        let records: Vec<_> = records.collect();
        let mut writer = Writer { path: path.to_owned(), file: None, lines: 0, live, broken: false, _lock: lock };
        writer.rewrite().map_err(unusable)?;
        let (lines, told) = mpsc::channel();
        std::thread::Builder::new().name("ledger".into()).spawn(move || writer.run(&told)).map_err(unusable)?;
        Ok((Self { lines }, records))
    }

    /// Writes a record down, in place of what was known of this id.
    pub fn keep(&self, id: &Text, record: &Record) {
        match serde_json::to_vec(&Kept::of(id, record)) {
            // The writer ends with this journal; if it panicked, nobody is told that anything is settled.
            Ok(line) => drop(self.lines.send(Line::Change(id.clone(), Some(line)))),
            Err(error) => error!(%id, %error, "a promise cannot be written"),
        }
    }

    /// Writes down that there is nothing of this id any more.
    pub fn forget(&self, id: &Text) {
        drop(self.lines.send(Line::Change(id.clone(), None)));
    }

    /// Waits until everything so far is on disk.
    ///
    /// # Errors
    ///
    /// When the disk refuses.
    pub async fn settled(&self) -> Result<(), Broken> {
        let (told, settled) = oneshot::channel();
        self.lines.send(Line::Settle(told)).map_err(|_| Broken)?;
        settled.await.unwrap_or(Err(Broken))
    }
}

/// The last line of each id in the file.
fn read(path: &Path) -> io::Result<BTreeMap<Text, Vec<u8>>> {
    #[derive(Deserialize)]
    struct Head {
        id: Text,
        #[serde(default)]
        over: bool,
    }
    let mut live = BTreeMap::new();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(live),
        Err(error) => return Err(error),
    };
    for line in BufReader::new(file).split(b'\n') {
        let text = line?;
        match serde_json::from_slice::<Head>(&text) {
            _ if text.len() > LINE_MAX => warn!("a line of the ledger is too long"),
            Ok(Head { id, over: true }) => drop(live.remove(&id)),
            Ok(Head { id, over: false }) => drop(live.insert(id, text)),
            // A crash while it was written: nobody was told of it.
            Err(error) => warn!(%error, "a line of the ledger is incomplete"),
        }
    }
    Ok(live)
}

/// The thread's own.
struct Writer {
    path: PathBuf,
    file: Option<File>,
    lines: usize,
    live: BTreeMap<Text, Vec<u8>>,
    broken: bool,
    _lock: File,
}

impl Writer {
    fn run(mut self, told: &mpsc::Receiver<Line>) {
        while let Ok(first) = told.recv() {
            let mut waiting = Vec::new();
            let mut octets = Vec::new();
            for line in std::iter::once(first).chain(told.try_iter()) {
                match line {
                    Line::Settle(waiter) => waiting.push(waiter),
                    Line::Change(id, Some(line)) => {
                        octets.extend_from_slice(&line);
                        octets.push(b'\n');
                        self.lines += 1;
                        self.live.insert(id, line);
                    }
                    Line::Change(id, None) => {
                        let line = serde_json::json!({ "id": id, "over": true }).to_string();
                        octets.extend_from_slice(line.as_bytes());
                        octets.push(b'\n');
                        self.lines += 1;
                        self.live.remove(&id);
                    }
                }
            }
            let written = self.write(&octets);
            if let Err(error) = &written
                && !self.broken
            {
                error!(%error, path = %self.path.display(), "the ledger cannot be written");
            }
            self.broken = written.is_err();
            for waiter in waiting {
                // Who went away does not need to know.
                let _ = waiter.send(if self.broken { Err(Broken) } else { Ok(()) });
            }
        }
    }

    fn write(&mut self, octets: &[u8]) -> io::Result<()> {
        // After a failure the file may end within a line, so it is written anew.
        if self.broken || self.lines > LINES_MAX.max(4 * self.live.len()) {
            return self.rewrite();
        }
        if octets.is_empty() {
            return Ok(());
        }
        let file = self.file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        file.write_all(octets)?;
        file.sync_data()
    }

    fn rewrite(&mut self) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let mut file = File::create(&new)?;
        let octets: Vec<u8> = self.live.values().flat_map(|line| line.iter().copied().chain([b'\n'])).collect();
        file.write_all(&octets)?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        self.lines = self.live.len();
        self.file = Some(file);
        Ok(())
    }
}
