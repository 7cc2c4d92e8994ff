//! The journal: the ledger on disk, so that a crash loses no promise and nothing that was begun.
//!
//! Each change of a record is one line with the whole record, so the last line for an id is all there is to know of it.
//! A line is `CHECKSUM RECORD`: what the disk has damaged is reported and never begun. The first line has the ledger's name.
//! A thread writes, many lines for one flush; a caller that must not answer before it is on disk waits with
//! [`Journal::settled`]. What containers use and what time has passed is not written: snapshots and the clock show it.
//! Requests contain secrets, so only the file's owner may read it, and lines of ended placements are removed soon.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use model::{Text, hex};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::sync::{oneshot, watch};
use tracing::{error, info, warn};

use crate::ledger::record::Record;
use crate::ledger::stored::{StoredRecord, parse_problem};

/// Lines after which the file is rewritten, when most of them are old: some megabytes, read in less than 0.1 s.
const LINES_MAX: usize = 10_000;

/// How long the lines of ended placements stay in the file, with the secrets in them: then it is rewritten. Seldom
/// enough that a file of some megabytes costs nothing.
const OLD_LINES: Duration = Duration::from_secs(10);

/// How often a failed write is retried.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Longest wait for the process before this one, which ends after it has said that it serves no more: some ten milliseconds.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// Longest line that is read: a request of the largest body and what was promised for it.
const LINE_MAX: usize = 16 << 20;

/// Bytes of the checksum of a line, the first ones of SHA-256: damage is not found once in 2^64 times. Who can write the
/// file can write checksums, too.
const CHECKSUM_BYTES: usize = 8;

/// Bytes of the random name of a ledger: enough that no two are equal.
const NAME_BYTES: usize = 16;

/// The ledger's file could not be written, so nothing more is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ledger cannot be written to disk, so nothing is promised")]
pub struct WriteFailed;

/// Why there is no journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file cannot be read or written.
    #[error("cannot store the ledger in {path}: {error}")]
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

/// A placement in the file: its record, or why it cannot be read.
pub(crate) type Entry = (Text, Result<Record, String>);

/// Writes changes of the ledger to disk.
#[derive(Debug)]
pub(crate) struct Journal {
    name: Text,
    lines: mpsc::Sender<Line>,
    /// Whether the last write failed.
    broken: watch::Receiver<bool>,
}

/// A message to the writer.
#[derive(Debug)]
enum Line {
    Change(Text, Option<Vec<u8>>),
    Settle(oneshot::Sender<Result<(), WriteFailed>>),
}

impl Journal {
    /// The journal in this file, and what it held.
    ///
    /// # Errors
    ///
    /// When the file cannot be used, or another process uses it.
    pub(crate) fn open(path: &Path, now: Duration) -> Result<(Self, Vec<Entry>), JournalError> {
        let unusable = |error| JournalError::Unusable { path: path.to_owned(), error };
        let lock = Self::lock(path)?;
        let Contents { name, live } = read(path).map_err(unusable)?;
        let name = name.map_or_else(new_name, Ok).map_err(unusable)?;
        let entries = live.iter().map(|(id, line)| {
            let json = verified(line).ok_or_else(|| "it is damaged: its checksum is wrong".to_owned());
            let stored = json.and_then(|json| {
                serde_json::from_slice(json).map_err(|error| parse_problem(&error)).map(|stored: StoredRecord| stored)
            });
            let record = stored.and_then(|stored| stored.record(now));
            // Its line stays until it is deleted by its id, and affects no other.
            let record = record.inspect_err(|error| error!(%id, %error, "a placement in the ledger cannot be read"));
            (id.clone(), record)
        });
        let entries: Vec<_> = entries.collect();
        let path = path.to_owned();
        let (report, broken) = watch::channel(false);
        let mut writer = Writer {
            path,
            name: name.clone(),
            file: None,
            lines: 0,
            over_since: None,
            live,
            broken: report,
            _lock: lock,
        };
        writer.rewrite().map_err(unusable)?;
        let (lines, received) = mpsc::channel();
        std::thread::Builder::new().name("ledger".into()).spawn(move || writer.run(&received)).map_err(unusable)?;
        Ok((Self { name, lines, broken }, entries))
    }

    /// Keeps all others from this journal until it is dropped. A process that is ending gives it free within a moment.
    ///
    /// # Errors
    ///
    /// When another process uses it.
    pub(crate) fn lock(path: &Path) -> Result<File, JournalError> {
        let unusable = |error| JournalError::Unusable { path: path.to_owned(), error };
        let lock = platform::file::create_private(&path.with_extension("lock")).map_err(unusable)?;
        let begun = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(lock),
                Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_LIMIT => std::thread::sleep(LOCK_RETRY),
                Err(TryLockError::WouldBlock) => return Err(JournalError::InUse(path.to_owned())),
                Err(TryLockError::Error(error)) => return Err(unusable(error)),
            }
        }
    }

    /// The name that only this ledger has.
    pub(crate) fn name(&self) -> &Text {
        &self.name
    }

    /// Watches whether the disk refuses.
    pub(crate) fn watch(&self) -> watch::Receiver<bool> {
        self.broken.clone()
    }

    /// One whose disk refuses everything.
    #[cfg(test)]
    pub(crate) fn refusing() -> Self {
        Self { name: Text::default(), lines: mpsc::channel().0, broken: watch::channel(true).1 }
    }

    /// Writes a record down, in place of what was known of this id.
    pub(crate) fn put(&self, id: &Text, record: &Record) {
        match serde_json::to_vec(&StoredRecord::of(id, record)) {
            // The writer ends with this journal; if it panicked, `settled` fails.
            Ok(line) => drop(self.lines.send(Line::Change(id.clone(), Some(line)))),
            Err(error) => error!(%id, %error, "a promise cannot be written"),
        }
    }

    /// Writes down that there is nothing of this id any more.
    pub(crate) fn delete(&self, id: &Text) {
        drop(self.lines.send(Line::Change(id.clone(), None)));
    }

    /// Waits until everything so far is on disk.
    ///
    /// # Errors
    ///
    /// When the disk refuses.
    pub(crate) async fn settled(&self) -> Result<(), WriteFailed> {
        let (reply, settled) = oneshot::channel();
        self.lines.send(Line::Settle(reply)).map_err(|_| WriteFailed)?;
        settled.await.unwrap_or(Err(WriteFailed))
    }
}

/// The name of a ledger that has none yet.
fn new_name() -> io::Result<Text> {
    let mut random = [0; NAME_BYTES];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(hex(&random).into())
}

/// What a file has.
#[derive(Default)]
struct Contents {
    /// The ledger's name. A ledger that has lost a line has none: what belonged to that one is no stranger to be removed.
    name: Option<Text>,
    /// The last line of each id, with its checksum.
    live: BTreeMap<Text, Vec<u8>>,
}

/// The contents of the file.
fn read(path: &Path) -> io::Result<Contents> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Head {
        Placement {
            id: Text,
            #[serde(default)]
            over: bool,
        },
        Ledger {
            ledger: Text,
        },
    }
    let Contents { mut name, mut live } = Contents::default();
    let mut file = match File::open(path) {
        Ok(file) => BufReader::new(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contents::default()),
        Err(error) => return Err(error),
    };
    // The file is rewritten at each start, so that all of its lines have a checksum or none has.
    let has_checksums = !file.fill_buf()?.starts_with(b"{");
    if !has_checksums {
        info!(path = %path.display(), "the ledger was written by an older version; from now on its lines have checksums");
    }
    let mut lost = false;
    for number in 1_u64.. {
        let mut line = Vec::new();
        if file.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let is_whole = line.pop_if(|last| *last == b'\n').is_some();
        let line = if has_checksums { line } else { with_checksum(&line) };
        let json = verified(&line);
        // Of a damaged line, the id is mostly still readable: nothing that was known of it before counts then.
        match serde_json::from_slice::<Head>(line.get(2 * CHECKSUM_BYTES + 1..).unwrap_or_default()) {
            _ if line.len() > LINE_MAX => {
                lost = true;
                error!(number, "a line of the ledger is too long");
            }
            Ok(Head::Ledger { ledger }) if json.is_some() => name = Some(ledger),
            Ok(Head::Placement { id, over: true }) if json.is_some() => drop(live.remove(&id)),
            Ok(Head::Placement { id, .. }) => {
                if json.is_none() {
                    error!(number, %id, "a line of the ledger is damaged; its placement is not begun");
                }
                live.insert(id, line);
            }
            // The process crashed while it was written: no response named it.
            Err(_) if !is_whole => warn!(number, "the last line of the ledger is incomplete"),
            Ok(Head::Ledger { .. }) | Err(_) => {
                lost = true;
                error!(number, "a line of the ledger is damaged, and of which placement it was is not known");
            }
        }
    }
    if lost {
        name = None;
        // The rewritten file does not have it any more.
        let aside = path.with_extension("damaged");
        let copied = std::fs::copy(path, &aside).inspect(|_| platform::file::restrict(&aside)).is_ok();
        error!(aside = %aside.display(), copied, "a copy of the damaged ledger");
    }
    Ok(Contents { name, live })
}

/// A line for this record, without its end.
fn with_checksum(json: &[u8]) -> Vec<u8> {
    [checksum(json).as_bytes(), b" ", json].concat()
}

/// The record in a line, if it is as it was written.
fn verified(line: &[u8]) -> Option<&[u8]> {
    let (expected, json) = line.split_at_checked(2 * CHECKSUM_BYTES)?;
    json.strip_prefix(b" ").filter(|json| checksum(json).as_bytes() == expected)
}

fn checksum(json: &[u8]) -> String {
    hex(&Sha256::digest(json)[..CHECKSUM_BYTES])
}

/// The thread's own.
struct Writer {
    path: PathBuf,
    name: Text,
    file: Option<File>,
    lines: usize,
    /// Since when the file has lines of what is over.
    over_since: Option<Instant>,
    live: BTreeMap<Text, Vec<u8>>,
    /// Whether the last writing failed.
    broken: watch::Sender<bool>,
    _lock: File,
}

impl Writer {
    fn run(mut self, lines: &mpsc::Receiver<Line>) {
        while let Ok(first) = self.next(lines) {
            let mut waiting = Vec::new();
            let mut bytes = Vec::new();
            for line in first.into_iter().chain(lines.try_iter()) {
                match line {
                    Line::Settle(waiter) => waiting.push(waiter),
                    Line::Change(id, Some(json)) => {
                        let line = with_checksum(&json);
                        bytes.extend_from_slice(&line);
                        bytes.push(b'\n');
                        self.lines += 1;
                        self.live.insert(id, line);
                    }
                    Line::Change(id, None) => {
                        let line = serde_json::json!({ "id": id, "over": true }).to_string();
                        bytes.extend_from_slice(&with_checksum(line.as_bytes()));
                        bytes.push(b'\n');
                        self.lines += 1;
                        self.live.remove(&id);
                        self.over_since.get_or_insert_with(Instant::now);
                    }
                }
            }
            let written = self.write(&bytes);
            if let Err(error) = &written
                && !self.is_broken()
            {
                error!(%error, path = %self.path.display(), "the ledger cannot be written");
            }
            let broken = written.is_err();
            if self.broken.send_if_modified(|known| std::mem::replace(known, broken) != broken) && !broken {
                info!(path = %self.path.display(), "the ledger can be written again");
            }
            for waiter in waiting {
                // The receiver may have gone away.
                let _ = waiter.send(if broken { Err(WriteFailed) } else { Ok(()) });
            }
        }
    }

    fn is_broken(&self) -> bool {
        *self.broken.borrow()
    }

    /// The next line, or none when the file is to be rewritten; an error at the end.
    fn next(&self, lines: &mpsc::Receiver<Line>) -> Result<Option<Line>, RecvTimeoutError> {
        let old = self.over_since.map(|since| OLD_LINES.saturating_sub(since.elapsed()));
        // No further request may come that would notice that the disk works again.
        let again = self.is_broken().then_some(TRY_AGAIN);
        let Some(wait) = old.into_iter().chain(again).min() else {
            return lines.recv().map(Some).map_err(|_| RecvTimeoutError::Disconnected);
        };
        match lines.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => Ok(None),
            other => other.map(Some),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        // After a failure the file may end within a line, so it is rewritten.
        let old = self.over_since.is_some_and(|since| since.elapsed() >= OLD_LINES);
        if old {
            // If this fails, it is retried after the same time.
            self.over_since = Some(Instant::now());
        }
        if self.is_broken() || old || self.lines > LINES_MAX.max(4 * self.live.len()) {
            return self.rewrite();
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let file = self.file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let size = file.metadata()?.len();
        let written = file.write_all(bytes).and_then(|()| file.sync_data());
        if written.is_err() {
            // The callers learn that nothing is promised, so nothing of it may be found after a crash.
            let _ = file.set_len(size).and_then(|()| file.sync_data());
        }
        written
    }

    fn rewrite(&mut self) -> io::Result<()> {
        let name = with_checksum(serde_json::json!({ "ledger": self.name }).to_string().as_bytes());
        let lines = std::iter::once(&name).chain(self.live.values());
        let bytes: Vec<u8> = lines.flat_map(|line| line.iter().copied().chain([b'\n'])).collect();
        self.file = Some(platform::file::replace_private(&self.path, &bytes)?);
        self.lines = self.live.len();
        self.over_since = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    fn line(id: &str, secret: &str) -> String {
        format!(
            r#"{{"id":"{id}","made":1,"unplaced":0,"asked":{{"image":"i","environment":{{"SECRET":"{secret}"}}}},"units":[]}}"#
        )
    }

    #[test]
    fn secrets_of_what_is_over_leave_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.ndjson");
        std::fs::write(&path, line("old", "hunter2") + "\n").unwrap();
        let lock = File::create(folder.path().join("lock")).unwrap();
        let live = BTreeMap::from([("new".into(), line("new", "s3cret").into_bytes())]);
        let file = Some(OpenOptions::new().append(true).open(&path).unwrap());
        let over_since = Some(Instant::now());
        let broken = watch::Sender::new(false);
        let mut writer =
            Writer { path: path.clone(), name: Text::default(), file, lines: 1, over_since, live, broken, _lock: lock };
        writer.write(b"{}\n").unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("hunter2"), "not at once");
        writer.over_since = Some(Instant::now().checked_sub(OLD_LINES).unwrap());
        let (_lines, received) = mpsc::channel();
        assert!(matches!(writer.next(&received), Ok(None)), "nothing has to happen for it");
        writer.write(b"").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains("hunter2") && text.contains("s3cret") && writer.over_since.is_none(), "{text}");
    }

    #[test]
    fn a_disk_that_refused_is_tried_again_though_nobody_asks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.ndjson");
        let (journal, _) = Journal::open(&path, Duration::ZERO).unwrap();
        drop(journal);
        std::fs::write(&path, "").unwrap();
        // It can only be read.
        let file = Some(File::open(&path).unwrap());
        let (broken, known) = watch::channel(false);
        let lock = File::create(folder.path().join("lock")).unwrap();
        let live = BTreeMap::new();
        let writer =
            Writer { path, name: Text::default(), file, lines: 0, over_since: None, live, broken, _lock: lock };
        let (lines, received) = mpsc::channel();
        let (settle, settled) = oneshot::channel();
        lines.send(Line::Change("web".into(), Some(b"{}".to_vec()))).unwrap();
        lines.send(Line::Settle(settle)).unwrap();
        let running = std::thread::spawn(move || writer.run(&received));
        assert_eq!(settled.blocking_recv(), Ok(Err(WriteFailed)));
        let begun = Instant::now();
        while *known.borrow() {
            assert!(begun.elapsed() < 30 * TRY_AGAIN, "it is not tried again");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(lines);
        running.join().unwrap();
    }

    /// The ids in a file and whether they can be read.
    fn entries(path: &Path) -> Vec<(String, bool)> {
        let (journal, entries) = Journal::open(path, Duration::from_secs(9)).unwrap();
        // Its thread ends, and with it the lock.
        drop(journal);
        entries.iter().map(|(id, record)| (id.to_string(), record.is_ok())).collect()
    }

    #[test]
    fn no_damaged_line_is_begun_and_all_others_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let over = br#"{"id":"gone","over":true}"#;
        let ids = ["first", "gone", "last"].map(|id| with_checksum(line(id, "x").as_bytes()));
        let lines = [&ids[0][..], &ids[1], &with_checksum(over), &ids[2]];
        let whole = [lines.join(&b'\n'), vec![b'\n']].concat();
        let read = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let found = entries(&path);
            // What is damaged stays so.
            let again = (0..1500).find_map(|_| {
                std::thread::sleep(Duration::from_millis(20));
                Journal::open(&path, Duration::from_secs(9)).ok().map(|(_, entries)| entries.len())
            });
            assert_eq!(again, Some(found.len()), "{name}");
            (found, path.with_extension("damaged").exists())
        };
        let known = |ids: &[(&str, bool)]| ids.iter().map(|(id, fine)| ((*id).to_owned(), *fine)).collect::<Vec<_>>();
        assert_eq!(read("whole", &whole), (known(&[("first", true), ("last", true)]), false));
        // A line that was being written when the process crashed.
        assert_eq!(read("torn", &whole[..whole.len() - 40]), (known(&[("first", true)]), false));
        let flip = |at: usize| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes
        };
        // In the checksum, in the record, and in the line that ends another placement.
        let first = known(&[("first", false), ("last", true)]);
        assert_eq!(read("checksum", &flip(0)), (first.clone(), false));
        let secret = lines[0].windows(8).position(|window| window == br#"SECRET":"#).unwrap();
        assert_eq!(read("record", &flip(secret)), (first, false));
        let over = whole.windows(4).position(|window| window == b"over").unwrap();
        let expected = known(&[("first", true), ("gone", false), ("last", true)]);
        assert_eq!(read("over", &flip(over)), (expected, false));
        // What cannot even be assigned to a placement is kept for a person to look at.
        assert_eq!(read("lost", &flip(2 * CHECKSUM_BYTES + 1)), (known(&[("last", true)]), true));
    }

    #[test]
    fn no_promise_is_written_to_a_file_that_was_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.ndjson");
        let (journal, _) = Journal::open(&path, Duration::ZERO).unwrap();
        drop(journal);
        let lock = File::create(folder.path().join("lock")).unwrap();
        let (live, broken) = (BTreeMap::new(), watch::Sender::new(false));
        let mut writer = Writer {
            path: path.clone(),
            name: Text::default(),
            file: None,
            lines: 0,
            over_since: None,
            live,
            broken,
            _lock: lock,
        };
        for number in 0..3 {
            writer.rewrite().unwrap();
            writer.write(format!("{number}\n").as_bytes()).unwrap();
            // What stands under the name is what was written to, and nothing else is left in the folder.
            assert!(std::fs::read_to_string(&path).unwrap().ends_with(&format!("\n{number}\n")), "{number}");
            assert!(!path.with_extension("new").exists(), "{number}");
        }
    }

    #[test]
    fn a_journal_without_checksums_is_read_and_gets_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.ndjson");
        std::fs::write(&path, line("old", "x") + "\n").unwrap();
        assert_eq!(entries(&path), [("old".to_owned(), true)]);
        let text = std::fs::read(&path).unwrap();
        let lines: Vec<_> = text.split(|byte| *byte == b'\n').collect();
        assert_eq!(lines[1..], [&with_checksum(line("old", "x").as_bytes())[..], b""]);
    }

    #[test]
    fn a_ledger_has_one_name_until_it_lost_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.ndjson");
        let name = || {
            // The last journal's thread has to end first.
            let opened = (0..1500).find_map(|_| {
                std::thread::sleep(Duration::from_millis(20));
                Journal::open(&path, Duration::ZERO).ok()
            });
            opened.unwrap().0.name().clone()
        };
        let first = name();
        assert_eq!((first.len(), name() == first), (2 * NAME_BYTES, true));
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"lost\n").unwrap();
        assert_ne!(name(), first);
    }

    #[test]
    fn a_line_that_cannot_be_is_told_and_harms_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.ndjson");
        let bad = r#"{"id":"bad","made":1,"unplaced":0,"asked":{"image":"i"},"units":[{"host":"u","host_name":"h","stage":"begun","containers":[]}]}"#;
        std::fs::write(&path, format!("{bad}\n{}\n", line("good", "x"))).unwrap();
        let (_journal, entries) = Journal::open(&path, Duration::from_secs(9)).unwrap();
        let fine: Vec<_> = entries.iter().map(|(id, record)| (&**id, record.is_ok())).collect();
        assert_eq!(fine, [("bad", false), ("good", true)]);
    }
}
