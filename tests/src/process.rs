//! Programs that run beside a test, ended whatever becomes of it.

use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::wait::{LOOK_INTERVAL, scaled};

/// A running program. Dropping this ends it, also while a test panics.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts it.
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Whether it has not ended by itself.
    pub fn is_running(&mut self) -> bool {
        self.0.try_wait().expect("a child can be asked").is_none()
    }

    /// Sends it a signal (`TERM`, `STOP`, …).
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").arg(format!("-{signal}")).arg(self.0.id().to_string()).status();
        assert!(sent.is_ok_and(|status| status.success()), "no {signal} to process {}", self.0.id());
    }

    /// How it ended; `None` when it runs on after the limit, which is scaled.
    pub fn ended_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let (begun, limit) = (Instant::now(), scaled(limit));
        loop {
            let ended = self.0.try_wait().expect("a child can be asked");
            if ended.is_some() || begun.elapsed() > limit {
                return ended;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Ends it without a word, also one that was stopped in its tracks.
    pub fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_ends_with_the_test_that_panics() {
        let pid = std::thread::spawn(|| {
            let sleeper = Process::start(Command::new("sleep").arg("600"));
            sleeper.signal("STOP");
            std::panic::resume_unwind(Box::new(sleeper.id()));
        });
        let pid = *pid.join().expect_err("it panics").downcast::<u32>().expect("it says which");
        let there = Command::new("kill").args(["-0", &pid.to_string()]).stderr(std::process::Stdio::null()).status();
        assert!(there.is_ok_and(|status| !status.success()), "{pid} runs on");
    }

    #[test]
    fn the_end_is_waited_for_no_longer_than_the_limit() {
        let mut sleeper = Process::start(Command::new("sleep").arg("600"));
        assert_eq!(sleeper.ended_within(Duration::from_millis(10)), None);
        assert!(sleeper.is_running());
        let ended = Process::start(&mut Command::new("true")).ended_within(Duration::from_secs(10));
        assert!(ended.is_some_and(|status| status.success()));
    }
}
