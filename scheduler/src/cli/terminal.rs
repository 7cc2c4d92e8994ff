//! What is printed: answers to standard output, progress and errors to standard error.
//!
//! Answers have words of anybody who may write into the ledger's etcd, so nothing of them may steer the terminal.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use model::printable::{printable, printable_json, printable_lines};
use serde_json::Value;
use tokio::sync::Notify;

use crate::cli::amounts::bytes;

/// Why nothing more can be written to standard output.
static FAILED: OnceLock<io::Error> = OnceLock::new();

/// Wakes who waits for that.
static HAS_FAILED: Notify = Notify::const_new();

/// Prints to standard output; what fails is in [`failed`].
pub(super) fn print(text: &str) {
    write(printable_lines(text).as_bytes());
}

/// Writes what a container wrote to standard output, as [`passed_on`].
pub(super) fn pass_on(bytes: &[u8]) {
    write(&passed_on(bytes, io::stdout().is_terminal()));
}

/// The same to standard error.
pub(super) fn pass_on_error(bytes: &[u8]) {
    let mut output = io::stderr();
    let _ = output.write_all(&passed_on(bytes, output.is_terminal())).and_then(|()| output.flush());
}

/// What a container wrote: unchanged, but on a terminal, which it must not steer; there tabs are spaces.
fn passed_on(bytes: &[u8], is_terminal: bool) -> Cow<'_, [u8]> {
    if !is_terminal {
        return Cow::Borrowed(bytes);
    }
    printable_lines(&String::from_utf8_lossy(bytes).replace('\t', "    ")).into_bytes().into()
}

fn write(bytes: &[u8]) {
    let mut output = io::stdout();
    if let Err(error) = output.write_all(bytes).and_then(|()| output.flush()) {
        FAILED.get_or_init(|| error);
        HAS_FAILED.notify_one();
    }
}

/// Why not all could be written to standard output; `None` also if its reader had enough.
pub(super) fn failed() -> Option<&'static io::Error> {
    FAILED.get().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
}

/// Waits until nothing more can be written to standard output.
pub(super) async fn closed() {
    HAS_FAILED.notified().await;
}

pub(super) fn print_json(value: &Value) {
    print(&printable_json(&format!("{value:#}\n")));
}

pub(super) fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "{}", printable_lines(text));
}

/// Prints progress: on a terminal in one line that changes, otherwise a line for each step.
pub(super) struct Teller {
    terminal: bool,
    shown: bool,
}

impl Teller {
    pub(super) fn new() -> Self {
        Self { terminal: io::stderr().is_terminal(), shown: false }
    }

    pub(super) fn tell(&mut self, progress: &Value) {
        let text = |key: &str| progress[key].as_str().unwrap_or_default();
        let on = if text("host").is_empty() { "" } else { " on " };
        let line = format!("{}{on}{}: {}", text("container"), text("host"), text("status"));
        let line = printable(&line, usize::MAX);
        let layer = progress["layer"].as_str().map(|layer| printable(layer, usize::MAX));
        if !self.terminal {
            // Every byte of every layer is too much for a log.
            if layer.is_none() {
                warn(&line);
            }
            return;
        }
        let part = progress["current"].as_i64().map(|current| match progress["total"].as_i64() {
            Some(total) => format!(" {} of {}", bytes(current), bytes(total)),
            None => format!(" {}", bytes(current)),
        });
        let layer = layer.map(|layer| format!(" {layer}")).unwrap_or_default();
        let _ = write!(io::stderr(), "\r\x1b[K{line}{layer}{}", part.unwrap_or_default());
        let _ = io::stderr().flush();
        self.shown = true;
    }

    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_container_wrote_is_changed_on_a_terminal_alone() {
        let bytes = b"a\tb\x1b[2J\xff\r\n";
        assert_eq!(&*passed_on(bytes, false), bytes);
        assert_eq!(&*passed_on(bytes, true), "a    b[2J\u{fffd}\n".as_bytes());
    }
}
