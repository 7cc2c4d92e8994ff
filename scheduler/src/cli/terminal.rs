//! What is printed: answers to standard output, progress and errors to standard error.
//!
//! Answers have words of anybody who may write into the ledger's etcd, so nothing of them may steer the terminal.

use std::io::{self, IsTerminal, Write};

use model::printable::{printable, printable_json, printable_lines};
use serde_json::Value;

use crate::cli::amounts::bytes;

/// Prints to standard output; a closed one is not an error.
pub(super) fn print(text: &str) {
    let _ = io::stdout().write_all(printable_lines(text).as_bytes());
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
