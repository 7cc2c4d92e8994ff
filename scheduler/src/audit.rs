//! The audit log: who had what placed, started, taken over and removed, and what was refused; a JSON object a line.
//!
//! A thread writes, and no request waits for it: lines that do not fit into its queue are counted, and a line says how many
//! are missing as soon as there is room again.

pub(crate) mod line;
mod writer;

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::{oneshot, watch};

use crate::lock::lock;
use crate::subject::Subject;
use line::AuditLine;
use writer::{Message, Writer};

/// Name of the file in a state directory.
pub(crate) const FILE: &str = "audit.ndjson";

/// Size at which a file is put aside: some 50,000 lines, which an editor still opens.
const FILE_MAX: u64 = 16 << 20;

/// Most lines that wait for the disk: what 10,000 requests at once have to say.
const LINES_MAX: usize = 16_384;

/// Most bytes a minute for requests of one subject that change nothing, some 40 lines: in 24 hours less than one of the
/// five files, whatever it sends. Clients without a credential are one subject.
const REFUSALS_MAX: usize = 8 << 10;

/// The outcome of what goes on though its client was answered.
pub(crate) const UNSETTLED: &str = "unsettled";

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::line::{Action, NOTHING_CHANGED};
    use super::*;

    fn line(request: &str) -> AuditLine {
        AuditLine { request: request.into(), ..AuditLine::new(Action::Place, &Subject::of_token(None), "placed") }
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
}
