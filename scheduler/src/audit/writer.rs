//! The thread that writes the audit log into its file, and puts full files aside.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};
use tracing::{error, info, warn};

use super::line::{Action, AuditLine};
use crate::subject::Subject;

/// Files that were put aside and stay, `.1` being the youngest: with the current one 80 MiB.
const FILES_KEPT: u32 = 4;

/// Shortest time between two lines that say how many are missing; these must not push out others either.
const LOST_INTERVAL: Duration = Duration::from_mins(1);

/// Longest wait for a further line before lost ones are reported.
const QUIET: Duration = Duration::from_secs(1);

/// A message to the writer.
#[derive(Debug)]
pub(super) enum Message {
    Line(Vec<u8>),
    /// Answered when all lines before are written.
    Flush(oneshot::Sender<()>),
}

/// The state of the thread.
pub(super) struct Writer {
    path: PathBuf,
    file: File,
    size: u64,
    size_max: u64,
    /// At which size the file is put aside: `size_max`, or more after that has failed.
    full_at: u64,
    /// Whether the file may end within a line.
    is_torn: bool,
    pub(super) lost: Arc<AtomicU64>,
    /// How many lost lines were reported, and when.
    reported: u64,
    reported_at: Option<Instant>,
    /// Why the file cannot be written.
    broken: Option<String>,
    /// Why the file cannot be put aside.
    stuck: Option<String>,
    pub(super) trouble: watch::Sender<Option<String>>,
}

impl Writer {
    pub(super) fn open(path: PathBuf, size_max: u64) -> io::Result<Self> {
        let file = platform::file::append_private(&path)?;
        let size = file.metadata()?.len();
        Ok(Self {
            // If it cannot be read, an empty line is harmless.
            is_torn: size > 0 && !ends_with_line(&path).unwrap_or(false),
            path,
            file,
            size,
            size_max,
            full_at: size_max,
            lost: Arc::default(),
            reported: 0,
            reported_at: None,
            broken: None,
            stuck: None,
            trouble: watch::Sender::default(),
        })
    }

    pub(super) fn run(mut self, messages: &Receiver<Message>) {
        loop {
            match messages.recv_timeout(QUIET) {
                Ok(Message::Line(line)) => self.put(&line),
                Ok(Message::Flush(reply)) => {
                    self.report_lost();
                    // The receiver may have gone away.
                    let _ = reply.send(());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.report_lost(),
            }
            if self.reported_at.is_none_or(|at| at.elapsed() >= LOST_INTERVAL) {
                self.report_lost();
            }
        }
    }

    /// Writes how many lines are missing since the last such line.
    fn report_lost(&mut self) {
        let lost = self.lost.load(Ordering::Relaxed);
        if lost == self.reported || self.broken.is_some() {
            return;
        }
        let line = AuditLine {
            reason: format!("{} lines are missing here", lost - self.reported),
            ..AuditLine::new(Action::Lost, &Subject::own(), "lost")
        };
        (self.reported, self.reported_at) = (lost, Some(Instant::now()));
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
                    self.report_trouble();
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
                    self.report_trouble();
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
                    self.report_trouble();
                }
            }
            Err(error) => {
                self.full_at = self.size + self.size_max / 16;
                if self.stuck.is_none() {
                    warn!(%error, path = %self.path.display(), "the audit log is full and cannot be renamed, so it grows");
                    self.stuck = Some(error.to_string());
                    self.report_trouble();
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

    fn report_trouble(&self) {
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
    use crate::audit::{FILE, FILE_MAX};

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
