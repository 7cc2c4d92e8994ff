//! Programs that are ended with all that they have started.

#[cfg_attr(unix, path = "family/unix.rs")]
#[cfg_attr(windows, path = "family/windows.rs")]
mod system;

use std::io;
use std::process::Command;

/// Has a program start so that [`Family::of`] can end it with all that it starts.
///
/// On Unix it leads a process group of its own, which the keys of a terminal do not reach. On Windows nothing has to be
/// prepared.
pub fn prepare(command: &mut Command) {
    system::prepare(command);
}

/// A program and what it has started, which end when this is dropped; see [`Family::leave`].
#[derive(Debug)]
pub struct Family(Option<system::Family>);

impl Family {
    /// The family of a program that was started after [`prepare`] and was not waited for yet, or by a process before;
    /// `id` is its process's.
    ///
    /// On Windows what it has started before this call is none of its family.
    ///
    /// # Errors
    ///
    /// Fails if the system does not allow it; on Unix it always does.
    pub fn of(id: u32) -> io::Result<Self> {
        system::Family::of(id).map(Some).map(Self)
    }

    /// Asks the program to finish what it has begun and to end then (SIGUSR1, as HAProxy reads it).
    ///
    /// To be called before the program was waited for.
    ///
    /// # Errors
    ///
    /// Fails if the system does not allow it; on Windows it always does.
    pub fn ask_to_finish(&self) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), system::Family::ask_to_finish)
    }

    /// Whether any of them is left, including one that has ended and was not waited for.
    pub fn is_there(&self) -> bool {
        self.0.as_ref().is_some_and(system::Family::is_there)
    }

    /// Ends nothing: what the program has left behind is meant to stay.
    ///
    /// To be called once the program was waited for: from then on its id may be another one's.
    pub fn leave(mut self) {
        if let Some(family) = self.0.take() {
            family.leave();
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        if let Some(family) = self.0.take() {
            family.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    use super::*;

    /// A shell that waits for a line, then starts something that says so and lasts for a minute.
    fn shell() -> Command {
        let (shell, words) = if cfg!(windows) {
            ("cmd", ["/c", "set /p x=& ping -n 60 127.0.0.1"])
        } else {
            ("sh", ["-c", "read x; (echo started; sleep 60) & wait"])
        };
        let mut command = Command::new(shell);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    fn started() -> (std::process::Child, Family) {
        let mut command = shell();
        prepare(&mut command);
        let starting = crate::programs::starting();
        let child = command.spawn().unwrap();
        drop(starting);
        let family = Family::of(child.id()).unwrap();
        (child, family)
    }

    #[test]
    fn what_a_program_has_started_does_not_outlive_it() {
        let (mut child, family) = started();
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.next().is_some(), "it has started something");
        assert!(family.is_there());
        let begun = Instant::now();
        drop(family);
        // Their output ends with the last one that has it.
        assert!(lines.count() < 10);
        child.wait().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(30), "they were waited for");
    }

    #[test]
    fn none_is_there_once_all_have_ended() {
        let (mut child, family) = started();
        assert!(family.is_there());
        child.kill().unwrap();
        child.wait().unwrap();
        let begun = Instant::now();
        while family.is_there() {
            assert!(begun.elapsed() < Duration::from_secs(30), "it was killed");
            std::thread::sleep(Duration::from_millis(1));
        }
        family.leave();
    }
}
