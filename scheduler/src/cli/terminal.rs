//! What is printed: answers to standard output, progress and errors to standard error.

use std::io::{self, IsTerminal, Write};

use serde_json::Value;

use crate::cli::table::octets;

/// Prints to standard output; a closed one is not an error.
pub(super) fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

pub(super) fn print_json(value: &Value) {
    print(&format!("{value:#}\n"));
}

pub(super) fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
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
        let line = format!("{} on {}: {}", text("container"), text("host"), text("status"));
        let layer = progress["layer"].as_str();
        if !self.terminal {
            // Every byte of every layer is too much for a log.
            if layer.is_none() {
                warn(&line);
            }
            return;
        }
        let part = progress["current"].as_i64().map(|current| match progress["total"].as_i64() {
            Some(total) => format!(" {} of {}", octets(current), octets(total)),
            None => format!(" {}", octets(current)),
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
