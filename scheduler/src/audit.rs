//! The audit log: who had what placed, started, taken over and removed, and what was refused; a JSON object a line.
//!
//! A thread writes. Nobody waits for it: what does not fit into its queue is counted, and a line says how much is missing
//! as soon as there is room again.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::Text;
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::oneshot;
use tracing::{error, info};

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

/// Most refusals of clients without a credential in a second: who can connect must not push out what others did.
const STRANGERS_MAX: u64 = 20;

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
            outcome: outcome.into(),
            reason: String::new(),
        }
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
    /// The second of the last refusal of a stranger, and how many there were in it.
    strangers: AtomicU64,
    count: AtomicU64,
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
        let lost = writer.lost.clone();
        std::thread::Builder::new().name("audit".into()).spawn(move || writer.run(&received))?;
        Ok(Self(Some(Arc::new(Queue { lines, lost, strangers: AtomicU64::new(0), count: AtomicU64::new(0) }))))
    }

    /// Has a line written, soon.
    pub(crate) fn put(&self, line: &AuditLine) {
        let Some(queue) = &self.0 else { return };
        if line.subject.is_anonymous() && queue.is_flood() {
            queue.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut bytes = serde_json::to_vec(line).unwrap_or_default();
        bytes.push(b'\n');
        if queue.lines.try_send(Message::Line(bytes)).is_err() {
            queue.lost.fetch_add(1, Ordering::Relaxed);
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

    /// How many lines are missing.
    pub(crate) fn lost(&self) -> Option<u64> {
        self.0.as_ref().map(|queue| queue.lost.load(Ordering::Relaxed))
    }
}

impl Queue {
    /// Whether there are too many lines of strangers just now.
    fn is_flood(&self) -> bool {
        let second = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if self.strangers.swap(second, Ordering::Relaxed) != second {
            self.count.store(0, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed) >= STRANGERS_MAX
    }
}

/// The thread's own.
struct Writer {
    path: PathBuf,
    file: File,
    size: u64,
    size_max: u64,
    lost: Arc<AtomicU64>,
    /// How many of the lost lines a line tells of.
    told: u64,
    is_broken: bool,
}

/// Longest wait for a further line before what is lost is told.
const QUIET: Duration = Duration::from_secs(1);

impl Writer {
    fn open(path: PathBuf, size_max: u64) -> io::Result<Self> {
        let file = platform::file::append_private(&path)?;
        let size = file.metadata()?.len();
        Ok(Self { path, file, size, size_max, lost: Arc::default(), told: 0, is_broken: false })
    }

    fn run(mut self, messages: &Receiver<Message>) {
        loop {
            match messages.recv_timeout(QUIET) {
                Ok(Message::Line(line)) => self.put(&line),
                // The receiver may have gone away.
                Ok(Message::Flush(reply)) => drop(reply.send(())),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let lost = self.lost.load(Ordering::Relaxed);
            if lost > self.told && !self.is_broken {
                let line = AuditLine {
                    reason: format!("{} lines are missing here", lost - self.told),
                    ..AuditLine::new(Action::Lost, &Subject::own(), "lost")
                };
                self.told = lost;
                let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
                bytes.push(b'\n');
                self.put(&bytes);
            }
        }
    }

    fn put(&mut self, line: &[u8]) {
        let written = self.rotated().and_then(|()| self.file.write_all(line));
        match &written {
            Ok(()) => self.size += line.len() as u64,
            Err(error) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                if !self.is_broken {
                    error!(%error, path = %self.path.display(), "the audit log cannot be written");
                }
            }
        }
        if self.is_broken && written.is_ok() {
            info!(path = %self.path.display(), "the audit log can be written again");
        }
        self.is_broken = written.is_err();
    }

    /// Begins a new file when this one is full.
    fn rotated(&mut self) -> io::Result<()> {
        if self.size < self.size_max {
            return Ok(());
        }
        let aside = |number: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        };
        for number in (1..FILES_KEPT).rev() {
            // Those that are not there yet.
            let _ = platform::file::replace(&aside(number), &aside(number + 1));
        }
        platform::file::replace(&self.path, &aside(1))?;
        self.file = platform::file::append_private(&self.path)?;
        self.size = 0;
        Ok(())
    }
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
        let lost = writer.lost.clone();
        let queue = Queue { lines, lost, strangers: AtomicU64::new(0), count: AtomicU64::new(0) };
        let audit = Audit(Some(Arc::new(queue)));
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
        let audit = Audit::open(&folder.path().join(FILE)).unwrap();
        for _ in 0..10_000 {
            audit.put(&AuditLine::new(Action::Place, &Subject::default(), "refused"));
        }
        assert!(audit.lost() > Some(5000), "{:?}", audit.lost());
        let before = audit.lost();
        audit.put(&line("own"));
        assert_eq!(audit.lost(), before);
    }
}
