//! The audit log: who had what placed, started, taken over and removed, and what was refused; a JSON object a line.
//!
//! A thread writes. Nobody waits for it: what does not fit into its queue is counted, and a line says how much is missing
//! as soon as there is room again.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use model::Text;
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::{oneshot, watch};
use tracing::{error, info, warn};

use crate::lock::lock;
use crate::place::Refusal;
use crate::place::answer::Placement;
use crate::subject::Subject;

/// Name of the file in a state directory.
pub(crate) const FILE: &str = "audit.ndjson";

/// Size at which a file is put aside: some 50,000 lines, which an editor still opens.
const FILE_MAX: u64 = 16 << 20;

/// Files that were put aside and stay, `.1` being the youngest: with the current one 80 MiB.
const FILES_KEPT: u32 = 4;

/// Most lines that wait for the disk: what 10,000 requests at once have to say.
const LINES_MAX: usize = 16_384;

/// Longest line, in bytes: 32 images with their digests fit. What a request may hold must not push out what others did.
const LINE_MAX: usize = 8 << 10;

/// Most characters of an id; no request can have a longer one, but a path can.
const ID_MAX: usize = 128;

/// Most characters of the name or the digest of an image.
const NAME_MAX: usize = 256;

/// Most characters of a reason.
const REASON_MAX: usize = 1024;

/// Most bytes a minute for requests of one subject that change nothing, some 40 lines: in 24 hours less than one of the
/// five files, whatever it sends. Clients without a credential are one subject.
const REFUSALS_MAX: usize = 8 << 10;

/// Outcomes of requests that change nothing, so that a client can have as many of them as it likes.
const NOTHING_CHANGED: [&str; 4] = ["invalid", "refused", "repeated", "unplaceable"];

/// How often a line at most says how many are missing; they, too, must push out nothing.
const LOST_TOLD: Duration = Duration::from_mins(1);

/// The outcome of what goes on though its client was answered.
pub(crate) const UNSETTLED: &str = "unsettled";

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Action {
    /// A request for a placement.
    Place,
    /// A unit is started by its engine.
    Start,
    /// A placement is removed.
    Remove,
    /// This scheduler goes on with what another one, or itself before a restart, has begun.
    TakeOver,
    /// A container of this ledger is removed, of which the ledger knows nothing.
    Sweep,
    /// A request that only asks, of a client that may not even do that.
    Ask,
    /// The predecessor's events.
    Event,
    /// Lines that are missing.
    Lost,
}

/// One line.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AuditLine {
    /// RFC 3339.
    pub(crate) time: String,
    pub(crate) action: Action,
    pub(crate) subject: Subject,
    /// The id of the request; empty if it has none.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) request: Text,
    /// Names of hosts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) hosts: Vec<Text>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) images: Vec<AuditedImage>,
    /// How many hosts and images there was no room for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) omitted: Option<usize>,
    pub(crate) outcome: String,
    /// Why, if it was refused or failed; the name of an event.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
}

/// An image by its name, and by its digest as far as that is known.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AuditedImage {
    pub(crate) name: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) digest: Option<Text>,
}

impl AuditLine {
    pub(crate) fn new(action: Action, subject: &Subject, outcome: impl Into<String>) -> Self {
        Self {
            time: OffsetDateTime::from(SystemTime::now()).format(&Rfc3339).unwrap_or_default(),
            action,
            subject: subject.clone(),
            request: Text::default(),
            hosts: Vec::new(),
            images: Vec::new(),
            omitted: None,
            outcome: outcome.into(),
            reason: String::new(),
        }
    }

    /// Whether this is about a request that changed nothing.
    fn changed_nothing(&self) -> bool {
        let is_request = matches!(self.action, Action::Place | Action::Remove | Action::Ask | Action::Event);
        is_request && NOTHING_CHANGED.contains(&&*self.outcome)
    }

    /// The line as it is written, in at most [`LINE_MAX`] bytes.
    fn written(&self) -> Vec<u8> {
        let mut line = self.clone();
        line.request = shortened(&line.request, ID_MAX);
        line.reason = shortened(&line.reason, REASON_MAX).to_string();
        for image in &mut line.images {
            image.name = shortened(&image.name, NAME_MAX);
            image.digest = image.digest.as_ref().map(|digest| shortened(digest, NAME_MAX));
        }
        loop {
            let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
            bytes.push(b'\n');
            let (hosts, images) = (line.hosts.len(), line.images.len());
            if bytes.len() <= LINE_MAX || hosts + images == 0 {
                return bytes;
            }
            line.hosts.truncate(hosts * 3 / 4);
            line.images.truncate(images * 3 / 4);
            let fewer = hosts + images - line.hosts.len() - line.images.len();
            line.omitted = Some(line.omitted.unwrap_or_default() + fewer);
        }
    }
}

/// The first `most` characters.
fn shortened(text: &str, most: usize) -> Text {
    match text.char_indices().nth(most) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]).into(),
    }
}

/// A message to the writer.
#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    /// Answered when all lines before are written.
    Flush(oneshot::Sender<()>),
}

impl AuditLine {
    /// The same about a placement: where it is, or why not.
    pub(crate) fn about(mut self, id: &Text, answer: &Result<Placement, Refusal>) -> Self {
        self.request = id.clone();
        match answer {
            Ok(answer) => {
                self.hosts = answer.placements.iter().map(|unit| unit.host.name.clone()).collect();
                self.reason = answer.error.clone().unwrap_or_default();
            }
            Err(refusal) => self.reason = refusal.to_string(),
        }
        self
    }
}

/// The digest in the name of an image.
pub(crate) fn digest_in(image: &str) -> Option<Text> {
    image.split_once('@').map(|(_, digest)| digest.into())
}

/// Where lines go; without a file, nowhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Audit(Option<Arc<Queue>>);

#[derive(Debug)]
struct Queue {
    lines: SyncSender<Message>,
    lost: Arc<AtomicU64>,
    /// The last minute in which a request changed nothing, and how many bytes each subject's lines about such had in it.
    refusals: Mutex<(u64, HashMap<Subject, usize>)>,
    trouble: watch::Receiver<Option<String>>,
}

impl Audit {
    /// A log in this file, behind what it has.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let writer = Writer::open(path.to_owned(), FILE_MAX)?;
        let (lines, received) = sync_channel(LINES_MAX);
        let queue = Queue::before(&writer, lines);
        std::thread::Builder::new().name("audit".into()).spawn(move || writer.run(&received))?;
        Ok(Self(Some(Arc::new(queue))))
    }

    /// Has a line written, soon; not one about a request that changed nothing if its subject had too many just now.
    pub(crate) fn put(&self, line: &AuditLine) {
        let Some(queue) = &self.0 else { return };
        let bytes = line.written();
        if line.changed_nothing() && queue.is_flood(&line.subject, bytes.len()) {
            queue.lost.fetch_add(1, Ordering::Relaxed);
        } else {
            queue.put(bytes);
        }
    }

    /// Waits until everything so far is written, when there is room to ask for that.
    pub(crate) async fn flush(&self) {
        let Some(queue) = &self.0 else { return };
        let (reply, written) = oneshot::channel();
        if queue.lines.try_send(Message::Flush(reply)).is_ok() {
            // Without a writer there is nothing to wait for.
            let _ = written.await;
        }
    }

    /// Follows what is wrong with the file.
    pub(crate) fn watch(&self) -> Option<watch::Receiver<Option<String>>> {
        self.0.as_ref().map(|queue| queue.trouble.clone())
    }

    /// How many lines are missing.
    pub(crate) fn lost(&self) -> Option<u64> {
        self.0.as_ref().map(|queue| queue.lost.load(Ordering::Relaxed))
    }
}

impl Queue {
    fn before(writer: &Writer, lines: SyncSender<Message>) -> Self {
        let (lost, trouble) = (writer.lost.clone(), writer.trouble.subscribe());
        Self { lines, lost, refusals: Mutex::default(), trouble }
    }

    fn put(&self, bytes: Vec<u8>) {
        if self.lines.try_send(Message::Line(bytes)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether there is no room just now for another line about a request of this subject that changed nothing.
    fn is_flood(&self, subject: &Subject, length: usize) -> bool {
        let minute = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60;
        let mut refusals = lock(&self.refusals);
        if refusals.0 != minute {
            *refusals = (minute, HashMap::new());
        }
        let bytes = refusals.1.entry(subject.clone()).or_default();
        *bytes = bytes.saturating_add(length);
        *bytes > REFUSALS_MAX
    }
}

/// The thread's own.
struct Writer {
    path: PathBuf,
    file: File,
    size: u64,
    size_max: u64,
    /// At which size the file is put aside: `size_max`, or more after that has failed.
    full_at: u64,
    /// Whether the file may end within a line.
    is_torn: bool,
    lost: Arc<AtomicU64>,
    /// How many of the lost lines a line tells of, and since when.
    told: u64,
    told_at: Option<Instant>,
    /// Why the file cannot be written.
    broken: Option<String>,
    /// Why the file cannot be put aside.
    stuck: Option<String>,
    trouble: watch::Sender<Option<String>>,
}

/// Longest wait for a further line before what is lost is told.
const QUIET: Duration = Duration::from_secs(1);

impl Writer {
    fn open(path: PathBuf, size_max: u64) -> io::Result<Self> {
        let file = platform::file::append_private(&path)?;
        let size = file.metadata()?.len();
        Ok(Self {
            // What cannot be read is begun with a line feed, which is no harm.
            is_torn: size > 0 && !ends_with_line(&path).unwrap_or(false),
            path,
            file,
            size,
            size_max,
            full_at: size_max,
            lost: Arc::default(),
            told: 0,
            told_at: None,
            broken: None,
            stuck: None,
            trouble: watch::Sender::default(),
        })
    }

    fn run(mut self, messages: &Receiver<Message>) {
        loop {
            match messages.recv_timeout(QUIET) {
                Ok(Message::Line(line)) => self.put(&line),
                Ok(Message::Flush(reply)) => {
                    self.tell_lost();
                    // The receiver may have gone away.
                    let _ = reply.send(());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.tell_lost(),
            }
            if self.told_at.is_none_or(|told| told.elapsed() >= LOST_TOLD) {
                self.tell_lost();
            }
        }
    }

    /// Writes how many lines are missing, if any are of which no line tells.
    fn tell_lost(&mut self) {
        let lost = self.lost.load(Ordering::Relaxed);
        if lost == self.told || self.broken.is_some() {
            return;
        }
        let line = AuditLine {
            reason: format!("{} lines are missing here", lost - self.told),
            ..AuditLine::new(Action::Lost, &Subject::own(), "lost")
        };
        (self.told, self.told_at) = (lost, Some(Instant::now()));
        self.put(&line.written());
    }

    fn put(&mut self, line: &[u8]) {
        self.rotate();
        let written = if self.is_torn {
            // The next line must not continue what a full disk took of this one.
            self.file.write_all(&[b"\n", line].concat())
        } else {
            self.file.write_all(line)
        };
        match written {
            Ok(()) => {
                self.size += line.len() as u64 + u64::from(self.is_torn);
                self.is_torn = false;
                if self.broken.take().is_some() {
                    info!(path = %self.path.display(), "the audit log can be written again");
                    self.tell_trouble();
                }
            }
            Err(error) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                let size = self.file.metadata().map_or(self.size, |file| file.len());
                self.is_torn |= size != self.size;
                self.size = size;
                if self.broken.is_none() {
                    error!(%error, path = %self.path.display(), "the audit log cannot be written");
                    self.broken = Some(error.to_string());
                    self.tell_trouble();
                }
            }
        }
    }

    /// Begins a new file when this one is full. One that cannot be renamed, like a mount, grows: its lines must not be lost.
    fn rotate(&mut self) {
        if self.size < self.full_at {
            return;
        }
        match self.put_aside() {
            Ok(()) => {
                self.full_at = self.size_max;
                if self.stuck.take().is_some() {
                    self.tell_trouble();
                }
            }
            Err(error) => {
                self.full_at = self.size + self.size_max / 16;
                if self.stuck.is_none() {
                    warn!(%error, path = %self.path.display(), "the audit log is full and cannot be renamed, so it grows");
                    self.stuck = Some(error.to_string());
                    self.tell_trouble();
                }
            }
        }
    }

    fn put_aside(&mut self) -> io::Result<()> {
        let aside = |number: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        };
        let shift = || {
            for number in (0..FILES_KEPT).rev() {
                // Those that are not there yet.
                let _ = platform::file::replace(&aside(number), &aside(number + 1));
            }
        };
        // The others only move when this one does. A crash in between leaves `.0`.
        if aside(0).exists() {
            shift();
        }
        match platform::file::replace(&self.path, &aside(0)) {
            Ok(()) => shift(),
            // It was put aside, and the new one could not be created.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        self.file = platform::file::append_private(&self.path)?;
        (self.size, self.is_torn) = (0, false);
        Ok(())
    }

    fn tell_trouble(&self) {
        let path = self.path.display();
        let broken = self.broken.as_ref().map(|why| format!("{path} cannot be written ({why}): lines are missing"));
        let stuck = self.stuck.as_ref().map(|why| format!("{path} is full and cannot be renamed ({why}): it grows"));
        self.trouble.send_replace(broken.or(stuck));
    }
}

/// Whether a file ends with a whole line.
fn ends_with_line(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(request: &str) -> AuditLine {
        AuditLine { request: request.into(), ..AuditLine::new(Action::Place, &Subject::of_token(None), "placed") }
    }

    #[test]
    fn a_full_file_is_put_aside_and_the_oldest_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let mut writer = Writer::open(path.clone(), 10).unwrap();
        for number in 0..8 {
            writer.put(format!("line number {number}\n").as_bytes());
        }
        let read = |ending: &str| std::fs::read_to_string(folder.path().join(format!("{FILE}{ending}"))).unwrap();
        assert_eq!(["", ".1", ".4"].map(read), ["line number 7\n", "line number 6\n", "line number 3\n"]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 5);
        // What is there stays.
        drop(writer);
        Writer::open(path, 1000).unwrap().put(b"more\n");
        assert_eq!(read(""), "line number 7\nmore\n");
    }

    #[test]
    fn nobody_waits_for_the_disk_and_what_is_lost_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let writer = Writer::open(path.clone(), FILE_MAX).unwrap();
        let (lines, received) = sync_channel(2);
        let audit = Audit(Some(Arc::new(Queue::before(&writer, lines))));
        // Nothing writes yet.
        for number in 0..5 {
            audit.put(&line(&format!("r-{number}")));
        }
        assert_eq!(audit.lost(), Some(3));
        let writing = std::thread::spawn(move || writer.run(&received));
        let told = |text: &str| text.contains("3 lines are missing here");
        for _ in 0..1000 {
            if told(&std::fs::read_to_string(&path).unwrap()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        audit.put(&line("after"));
        drop(audit);
        writing.join().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("r-1") && !text.contains("r-2") && told(&text) && text.contains("after"), "{text}");
    }

    #[test]
    fn strangers_do_not_push_out_what_others_did() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let audit = Audit::open(&path).unwrap();
        let long = AuditLine {
            request: "\u{1}".repeat(4900).into(),
            ..AuditLine::new(Action::Remove, &Subject::default(), "refused")
        };
        for _ in 0..1000 {
            audit.put(&long);
        }
        let before = audit.lost();
        assert!(before > Some(900), "{before:?}");
        audit.put(&line("own"));
        assert_eq!(audit.lost(), before);
        drop(audit);
        for _ in 0..1000 {
            if std::fs::read_to_string(&path).unwrap().contains("own") {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // A minute may have ended in between.
        let size = std::fs::metadata(&path).unwrap().len();
        assert!(size <= 2 * REFUSALS_MAX as u64 + 1000, "{size}");
        let of_a_day = REFUSALS_MAX as u64 * 24 * 60;
        assert!(of_a_day < FILE_MAX, "{of_a_day}");
    }

    #[test]
    fn a_client_with_a_token_does_not_push_out_what_others_did_with_requests_that_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(&folder.path().join(FILE)).unwrap();
        let of = |name, outcome| AuditLine::new(Action::Place, &Subject::of_token(Some(name)), outcome);
        for outcome in NOTHING_CHANGED.into_iter().cycle().take(1000) {
            audit.put(&of("ci", outcome));
        }
        let before = audit.lost();
        assert!(before > Some(800), "{before:?}");
        // What it does has its line, and so has what is refused to others.
        audit.put(&of("ci", "placed"));
        audit.put(&of("ops", "refused"));
        assert_eq!(audit.lost(), before);
    }

    #[test]
    fn no_request_makes_a_line_longer_than_the_bound() {
        let name = Text::from("\u{1}".repeat(4096));
        let image = AuditedImage { name: name.clone(), digest: Some(name.clone()) };
        let long = AuditLine {
            request: name.clone(),
            reason: name.to_string(),
            images: vec![image; 32],
            hosts: vec!["host".into(); 10_000],
            ..line("")
        };
        let bytes = long.written();
        assert!(bytes.len() <= LINE_MAX && bytes.ends_with(b"\n"), "{}", bytes.len());
        let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let counted = |key: &str| value[key].as_array().map_or(0, Vec::len);
        assert_eq!(value["omitted"], 10_032 - counted("hosts") - counted("images"));
        // A usual one is whole.
        let image = AuditedImage {
            name: "registry.example.org/shop/web:1.2.3".into(),
            digest: Some(format!("sha256:{:064}", 0).into()),
        };
        let bytes = AuditLine { images: vec![image; 32], ..line("web") }.written();
        assert!(!String::from_utf8(bytes).unwrap().contains("omitted"));
    }

    #[test]
    fn half_a_line_does_not_spoil_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        std::fs::write(&path, "one\nhal").unwrap();
        let mut writer = Writer::open(path.clone(), FILE_MAX).unwrap();
        writer.put(b"two\n");
        let read = || std::fs::read_to_string(&path).unwrap();
        assert_eq!(read(), "one\nhal\ntwo\n");
        // The disk takes a part of a line, then nothing, then everything.
        let fine = std::mem::replace(&mut writer.file, File::open(&path).unwrap());
        let watched = writer.trouble.subscribe();
        std::fs::write(&path, "one\nhal\ntwo\nth").unwrap();
        writer.put(b"three\n");
        assert!(watched.borrow().as_ref().is_some_and(|why| why.contains("cannot be written")));
        writer.put(b"three\n");
        writer.file = fine;
        writer.put(b"four\n");
        assert_eq!((read(), watched.borrow().clone()), ("one\nhal\ntwo\nth\nfour\n".into(), None));
        assert_eq!(writer.size, read().len() as u64);
    }

    #[test]
    fn a_full_file_that_cannot_be_renamed_loses_no_line_and_no_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join(FILE), folder.path().join("..1"));
        let mut writer = Writer::open(path.clone(), 32).unwrap();
        let watched = writer.trouble.subscribe();
        // As little as a mount can `FOLDER/.` be renamed.
        writer.path = folder.path().join(".");
        std::fs::write(&old, "old").unwrap();
        for number in 0..20 {
            writer.put(format!("line number {number:02}\n").as_bytes());
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!((text.lines().count(), std::fs::read_to_string(old).unwrap()), (20, "old".to_owned()));
        assert!(watched.borrow().as_ref().is_some_and(|why| why.contains("cannot be renamed")));
    }
}
