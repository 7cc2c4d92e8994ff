//! An executable that starts again in place: the process that serves is another one each time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{Launch, Service, eventually};

/// Longest wait for a restart.
const LIMIT: Duration = Duration::from_secs(40);

/// An agent and the process that serves in its place at present, which ends with this.
#[derive(Debug)]
pub struct Agent {
    /// The first one.
    pub started: Service,
    /// The file with the number of the one that serves.
    pub pid: PathBuf,
}

impl Agent {
    /// Starts it, with a file for its number in the folder.
    pub fn start(launch: &Launch, folder: &Path) -> Self {
        let pid = folder.join("pid");
        let mut started = launch.clone().with("--pid-file", &pid).start();
        started.ready();
        let agent = Self { started, pid };
        eventually("a process id", LIMIT, || agent.process());
        agent
    }

    /// The number of the process that serves.
    pub fn process(&self) -> Option<u32> {
        std::fs::read_to_string(&self.pid).ok()?.parse().ok()
    }

    /// Sends a signal to the process that serves.
    pub fn signal(&self, signal: &str) {
        let process = self.process().expect("it serves");
        assert!(
            Command::new("kill")
                .args([format!("-{signal}"), process.to_string()])
                .status()
                .is_ok_and(|status| status.success())
        );
    }

    /// Starts it again in place; gives how long it took until the process before was gone.
    pub fn restart(&mut self) -> Duration {
        let (before, begun) = (self.process().expect("it serves"), Instant::now());
        self.signal("USR2");
        let what = format!("another process than {before}");
        eventually(&what, LIMIT, || self.process().filter(|process| *process != before));
        eventually("the one before is gone", LIMIT, || (!self.is_there(before)).then_some(()));
        begun.elapsed()
    }

    /// Whether a process has not ended.
    pub fn is_there(&mut self, process: u32) -> bool {
        // Its parent is to see its end.
        let _ = self.started.is_running();
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        !matches!(stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()), None | Some("Z"))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(process) = self.process().filter(|process| *process != self.started.pid()) {
            let _ = Command::new("kill").args(["-KILL", &process.to_string()]).status();
        }
    }
}
