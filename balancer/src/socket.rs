//! HAProxy's sockets for operators: that of a running worker, and that of the master which starts workers.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

/// Longest wait for an answer: a worker answers in milliseconds unless it was stopped in its tracks.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// Longest answer, in bytes: a line of 150 bytes for each of 400,000 servers.
const ANSWER_MAX: u64 = 64 << 20;

/// Longest line of commands, in bytes: HAProxy reads one into a buffer of 16 KiB, and keeps a part of that free.
const LINE_MAX: usize = 8 << 10;

/// Beginnings of what HAProxy says of commands that worked.
const FINE: [&str; 3] = ["IP changed", "port changed", "no need to change"];

/// A socket for operators.
#[derive(Clone, Debug)]
pub struct RuntimeSocket(PathBuf);

impl RuntimeSocket {
    /// The socket at this path.
    pub fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Says a line and gives all that is answered.
    ///
    /// # Errors
    ///
    /// Fails if nothing listens there or the answer takes longer than 5 s.
    ///
    /// # Cancel safety
    ///
    /// What was said may be done although this was dropped.
    pub async fn ask(&self, line: &str) -> io::Result<String> {
        let asking = async {
            let path = self.0.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
            let mut stream = platform::engine::connect(path).await?;
            stream.write_all(line.as_bytes()).await?;
            stream.write_all(b"\n").await?;
            // The master answers line after line until it sees the end.
            stream.shutdown().await?;
            let mut answer = Vec::new();
            stream.take(ANSWER_MAX).read_to_end(&mut answer).await?;
            Ok(String::from_utf8_lossy(&answer).into_owned())
        };
        let answered = timeout(ANSWER_TIME, asking).await;
        answered.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "it did not answer within 5 s")))
    }

    /// Says these commands in turn, and gives what was said against any of them.
    ///
    /// # Errors
    ///
    /// As [`RuntimeSocket::ask`]; some of them may have been done then.
    ///
    /// # Cancel safety
    ///
    /// Some of them may have been done when this was dropped.
    pub async fn command(&self, commands: &[String]) -> io::Result<Vec<String>> {
        let mut wrong = Vec::new();
        for line in lines(commands) {
            let answer = self.ask(&line).await?;
            let said = answer.lines().map(str::trim).filter(|line| !line.is_empty());
            wrong.extend(said.filter(|line| !FINE.iter().any(|fine| line.starts_with(fine))).map(str::to_owned));
        }
        Ok(wrong)
    }
}

/// Commands, several in a line.
fn lines(commands: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for command in commands {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + command.len() <= LINE_MAX => {
                line.push(';');
                line.push_str(command);
            }
            _ => lines.push(command.clone()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_share_lines_that_fit_the_buffer() {
        let commands: Vec<_> = (0..1000).map(|number| format!("set server b1/s{number} state ready")).collect();
        let lines = lines(&commands);
        assert!(lines.len() > 1 && lines.iter().all(|line| line.len() <= LINE_MAX));
        assert_eq!(lines.iter().flat_map(|line| line.split(';')).collect::<Vec<_>>(), commands);
    }
}
