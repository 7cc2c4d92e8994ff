//! Examples of a terminal in Markdown: run line by line, and what they print compared with what stands there.
//!
//! ```console
//! $ curl --interface 127.42.1.11 http://127.0.0.1:8250/latest/self/container/name
//! shop-web-1
//! ```
//!
//! `...` stands for any text in a line, and alone for any number of lines. A command that runs on after it
//! printed what it should is a server: it stays for the following examples of the file. Without expected
//! lines only the exit code counts. `cargo run -p NAME -- …` starts the executable that is tested.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::binaries;
use crate::process::Process;
use crate::service::{NO_NAME_SERVER, user_state};
use crate::wait::{eventually, millis, seconds};

/// Longest time for an example, in seconds.
const LIMIT: u64 = 30;

/// A command that runs this long after it printed what it should is a server, in milliseconds.
const SERVER_AFTER: u64 = 300;

/// Commands that cannot run inside the tests: fetching the repository, the tests themselves, and what installs.
const OUTSIDE: [&str; 5] = ["git clone ", "cd ", "./tests/run", "cargo install ", "docker "];

/// One command with what it should print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// The line of the file that it stands in.
    pub line: usize,
    /// The command.
    pub command: String,
    /// The lines it should print.
    pub expected: Vec<String>,
}

/// The examples in the `console` blocks of a Markdown text.
pub fn examples(markdown: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let (mut inside, mut continued) = (false, false);
    for (index, line) in markdown.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.starts_with("```") {
            inside = trimmed == "```console";
            continued = false;
        } else if inside {
            match (trimmed.strip_prefix("$ "), examples.last_mut()) {
                (_, Some(example)) if continued => example.command = format!("{}\n{trimmed}", example.command),
                (Some(command), _) => {
                    examples.push(Example { line: index + 1, command: command.to_owned(), expected: Vec::new() });
                }
                (None, Some(example)) => example.expected.push(line.trim_end().to_owned()),
                (None, None) => panic!("line {}: output before any command: {line}", index + 1),
            }
            continued = trimmed.ends_with('\\') && examples.last().is_some_and(|example| example.expected.is_empty());
        }
    }
    examples
}

/// Whether printed lines are what is expected.
pub fn fits(expected: &[String], printed: &[&str]) -> bool {
    match expected.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first.trim() == "..." => (0..=printed.len()).any(|skip| fits(rest, &printed[skip..])),
        Some((first, rest)) => {
            printed.split_first().is_some_and(|(line, more)| fits_line(first, line) && fits(rest, more))
        }
    }
}

fn fits_line(expected: &str, line: &str) -> bool {
    let line = line.trim_end();
    let mut parts = expected.split("...");
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else { return false };
    let mut open = false;
    for part in parts {
        open = true;
        match rest.find(part) {
            // The last part has to stand at the end.
            _ if part.is_empty() => {}
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.is_empty()
        || (open && expected.ends_with("..."))
        || expected.rsplit("...").next().is_some_and(|last| open && !last.is_empty() && line.ends_with(last))
}

/// A terminal in which examples run, with the servers that they started.
#[derive(Debug)]
pub struct Terminal {
    folder: PathBuf,
    tools: tempfile::TempDir,
    servers: Vec<Running>,
}

impl Terminal {
    /// A terminal in this folder.
    pub fn new(folder: &Path) -> Self {
        let tools = tempfile::tempdir().expect("there is room for a folder");
        let cargo = tools.path().join("cargo");
        let script = format!(
            "#!/bin/sh\n\
             # Stands in for `cargo run [--release] -p NAME -- ARGUMENTS`.\n\
             while [ $# -gt 0 ]; do\n\
             \x20 case \"$1\" in\n\
             \x20   -p|--package) name=$2; shift ;;\n\
             \x20   --) shift; exec \"{}/$name\" \"$@\" ;;\n\
             \x20 esac\n\
             \x20 shift\n\
             done\n\
             exec \"{}/$name\"\n",
            binaries::folder().display(),
            binaries::folder().display()
        );
        std::fs::write(&cargo, script).expect("a folder of a test can be written");
        let made = Command::new("chmod").arg("+x").arg(&cargo).status();
        assert!(made.is_ok_and(|status| status.success()), "chmod");
        Self { folder: folder.to_owned(), tools, servers: Vec::new() }
    }

    /// Runs one example.
    ///
    /// # Errors
    ///
    /// What it printed instead, or how it ended.
    pub fn run(&mut self, example: &Example) -> Result<(), String> {
        if let Some(outside) = OUTSIDE.iter().find(|outside| example.command.starts_with(**outside)) {
            let file = self.folder.join(outside.trim_start_matches("./"));
            return if !outside.starts_with("./") || file.is_file() { Ok(()) } else { Err("no such file".to_owned()) };
        }
        let mut running = self.spawn(&example.command);
        let begun = Instant::now();
        let mut fitted_at = None;
        loop {
            let ended = running.child.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() {
                eventually("the output was read to its end", Duration::from_secs(5), || {
                    (Arc::strong_count(&running.printed) == 1).then_some(())
                });
            }
            let printed = running.printed();
            let lines: Vec<&str> = printed.lines().collect();
            let fitting = fits(&example.expected, &lines) || (example.expected.is_empty() && ended.is_some());
            let told = || format!("line {}: $ {}\n{printed}", example.line, example.command);
            match ended {
                Some(status) if !status.success() => return Err(format!("{} ({status})", told())),
                Some(_) if fitting => return Ok(()),
                Some(_) => return Err(format!("{}instead of\n{}", told(), example.expected.join("\n"))),
                None if fitting => {
                    let since = fitted_at.get_or_insert_with(Instant::now);
                    if since.elapsed() > millis(SERVER_AFTER) {
                        self.servers.push(running);
                        return Ok(());
                    }
                }
                None => fitted_at = None,
            }
            if begun.elapsed() > seconds(LIMIT) {
                return Err(format!("{}still, instead of\n{}", told(), example.expected.join("\n")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn spawn(&self, command: &str) -> Running {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders =
            [self.tools.path().to_owned(), binaries::folder()].into_iter().chain(std::env::split_paths(&path));
        let path = std::env::join_paths(folders).expect("folders of a search path");
        // `exec` for a single command, so that ending the shell ends it too.
        let single = !command.contains([';', '|', '&', '\n', '(', '=']);
        let script = format!("exec 2>&1\n{}{command}", if single { "exec " } else { "" });
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).current_dir(&self.folder).env("PATH", path);
        shell.env(NO_NAME_SERVER.0, NO_NAME_SERVER.1).env("XDG_STATE_HOME", user_state());
        let mut child = Process::start(shell.stdin(Stdio::null()).stdout(Stdio::piped()));
        let printed = Arc::new(Mutex::new(String::new()));
        let mut output = child.stdout.take().expect("it is piped");
        std::thread::spawn({
            let printed = printed.clone();
            move || {
                let mut bytes = [0; 4096];
                while let Ok(length @ 1..) = output.read(&mut bytes) {
                    let text = String::from_utf8_lossy(&bytes[..length]);
                    printed.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
                }
            }
        });
        Running { child, printed }
    }
}

/// A command that runs. Dropping this ends it.
#[derive(Debug)]
struct Running {
    child: Process,
    printed: Arc<Mutex<String>>,
}

impl Running {
    fn printed(&self) -> String {
        self.printed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn three_dots_stand_for_anything() {
        for (expected, printed, fitting) in [
            ("a", "a", true),
            ("a", "a\nb", false),
            ("a\n...", "a\nb\nc", true),
            ("...\nc", "a\nb\nc", true),
            ("...\nb", "a\nb\nc", false),
            ("a ... c", "a b c", true),
            ("a ... c", "a b d", false),
            ("a ...", "a b", true),
            ("a ...", "b", false),
            ("... c", "a c", true),
            ("... c", "a c d", false),
            ("\"host\": \"...\",", "\"host\": \"x\",", true),
            ("", "", true),
        ] {
            assert_eq!(
                fits(&lines(expected), &printed.lines().collect::<Vec<_>>()),
                fitting,
                "{expected:?} {printed:?}"
            );
        }
    }

    #[test]
    fn examples_are_commands_with_their_output() {
        let text = "```console\n$ echo a \\\n  b\na b\n$ true\n```\n```sh\n$ false\n```\n";
        let found = examples(text);
        let example = |line, command: &str, expected: &[&str]| Example {
            line,
            command: command.into(),
            expected: expected.iter().map(|line| (*line).into()).collect(),
        };
        assert_eq!(found, [example(2, "echo a \\\nb", &["a b"]), example(5, "true", &[])]);
    }
}
