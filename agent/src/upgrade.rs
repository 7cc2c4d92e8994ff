//! `agent upgrade`: another executable takes the place of the one that runs, which takes it back if that one does not serve.

mod file;
mod running;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use platform::executable;
use platform::stop::{ReloadEvents, StopEvents};
use process::Failure;

use self::file::{Digest, Place, Swapped};
use self::running::Running;
use crate::enroll::{finish, progress};

/// Longest wait for another process: a successor has 40 s to serve, then the one before serves for a second and has 10 s to end.
const HANDOVER_LIMIT: Duration = Duration::from_mins(1);

/// Longest wait until the new process is ready, and until one serves again after a failure.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// How long the new process has to go on being ready.
const STEADY: Duration = Duration::from_secs(2);

/// Pause between two looks at the process.
const INTERVAL: Duration = Duration::from_millis(100);

/// Have another version of the agent serve, without a lost answer (Linux)
///
/// Copies FILE beside the executable of the running agent, compares the SHA-256 of the copy, and runs it once to see which version it
/// is. Then it takes the executable's name, the one before is kept as NAME.old, and the agent starts again in place, as by SIGUSR2. If
/// the new one does not serve, ends, or is not ready within 30 s, the one before gets its name back and serves on; the exit code is 1.
/// If this command is killed before the new one serves, the next `agent upgrade` first undoes what it left.
/// Type this as root, on the machine whose agent it is.
#[derive(clap::Args)]
pub(crate) struct Upgrade {
    /// The new executable
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The SHA-256 that it must have: 64 hexadecimal digits, as `sha256sum` prints them
    #[arg(long, value_name = "H")]
    sha256: Digest,

    /// Check everything and change nothing
    #[arg(long)]
    dry_run: bool,

    /// The admin address of the agent
    #[arg(long, value_name = "ADDRESS", env = "BERTH_ADMIN")]
    admin: Option<SocketAddr>,
}

impl Upgrade {
    /// Upgrades the agent, and prints which one serves; `port` is the default admin port on loopback.
    pub(crate) fn run(&self, port: u16) -> ExitCode {
        finish(self.upgrade(self.admin.unwrap_or_else(|| (IpAddr::V4(Ipv4Addr::LOCALHOST), port).into())))
    }

    fn upgrade(&self, admin: SocketAddr) -> Result<String, Failure> {
        if let Some(obstacle) = executable::obstacle() {
            return Err(obstacle.into());
        }
        let before = Running::ask(admin)?;
        let place = Place::of(&before, self.dry_run)?;
        let new = place.copy(&self.file, &self.sha256)?;
        let version = new.version()?;
        let (path, name) = (place.path().display(), self.file.display());
        progress(&format!("{name} has this SHA-256 and is agent {version}; {path} is {}", before.version));
        if self.dry_run {
            return Ok(format!(
                "would put it in the place of {path}, and have process {} start again in place\n",
                before.process
            ));
        }
        let reasons = running::reasons(admin)?;
        // From here on a request to stop would leave the new executable there without a look at it.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ignored =
            runtime.block_on(async { StopEvents::new().and_then(|stops| Ok((stops, ReloadEvents::new()?))) })?;
        let swapped = new.swap()?;
        let kept = &swapped.kept;
        progress(&format!("{path} is the new one; if this is killed now, undo it by: mv {} {path}", kept.display()));
        let failure = match restarted(admin, &before) {
            Ok(after) => match well(admin, &after, &place, &reasons) {
                Ok(()) => {
                    return Ok(format!(
                        "agent {version} serves as process {}; the executable before is {}\n",
                        after.process,
                        kept.display()
                    ));
                }
                Err(failure) => failure,
            },
            Err(failure) => failure,
        };
        progress(&format!("agent {version} does not serve: {failure}"));
        place.swap_back(kept)?;
        let outcome = match serving_again(admin, &place, &swapped, READY_LIMIT) {
            Ok(process) => format!("{path} is agent {} again, which serves as process {process}", before.version),
            Err(why) => format!("{path} is agent {} again; {why}", before.version),
        };
        drop(ignored);
        Err(format!("not upgraded, agent {version} does not serve: {failure}; {outcome}").into())
    }
}

/// Has a process start again in place; gives the one that serves then.
fn restarted(admin: SocketAddr, before: &Running) -> Result<Running, String> {
    let process = before.process;
    executable::restart(process)
        .map_err(|error| format!("process {process} cannot be asked to start again: {error}"))?;
    let until = Instant::now() + HANDOVER_LIMIT;
    loop {
        match Running::ask(admin) {
            Ok(now) if now.process != before.process => return Ok(now),
            Ok(now) if now.failed > before.failed => {
                return Err(now.reason.unwrap_or_else(|| "it gave no reason".to_owned()));
            }
            Err(why) if Instant::now() >= until => return Err(why),
            Ok(_) if Instant::now() >= until => {
                return Err(format!("no other process within {} s", HANDOVER_LIMIT.as_secs()));
            }
            // While one process ends and the other begins, none may answer.
            _ => std::thread::sleep(INTERVAL),
        }
    }
}

/// Waits until a process is ready, but for what was amiss before, and stays so.
fn well(admin: SocketAddr, process: &Running, place: &Place, before: &[String]) -> Result<(), String> {
    let until = Instant::now() + READY_LIMIT;
    let mut since = None;
    loop {
        if !place.is_run_by(process.process) {
            return Err(format!("process {} has ended", process.process));
        }
        let amiss: Result<Vec<_>, _> =
            running::reasons(admin).map(|now| now.into_iter().filter(|reason| !is_known(before, reason)).collect());
        let problem = match amiss {
            Ok(amiss) if amiss.is_empty() => None,
            Ok(amiss) => Some(amiss.join("; ")),
            Err(why) => Some(why),
        };
        match problem {
            None if since.get_or_insert_with(Instant::now).elapsed() >= STEADY => return Ok(()),
            Some(problem) if Instant::now() >= until => {
                return Err(format!("not ready within {} s: {problem}", READY_LIMIT.as_secs()));
            }
            None => {}
            Some(_) => since = None,
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Whether the same part was amiss before: its words may be others.
fn is_known(before: &[String], reason: &str) -> bool {
    let part = |reason: &str| reason.split(':').next().unwrap_or_default().to_owned();
    before.iter().any(|known| part(known) == part(reason))
}

/// Waits for the process that serves from the executable before; starts the one that runs the new one again in place. No other process gets
/// a signal, whatever answers at the address.
fn serving_again(admin: SocketAddr, place: &Place, swapped: &Swapped, limit: Duration) -> Result<u32, String> {
    let until = Instant::now() + limit;
    let mut signalled = None;
    loop {
        match Running::ask(admin) {
            Ok(now) if place.is_run_by(now.process) => return Ok(now.process),
            Ok(now) if signalled != Some(now.process) && swapped.is_run_by(now.process) => {
                executable::restart(now.process)
                    .map_err(|error| format!("process {} serves on and cannot start again: {error}", now.process))?;
                signalled = Some(now.process);
            }
            Err(why) if Instant::now() >= until => {
                return Err(format!("{why}. Start it again (systemctl restart berth)"));
            }
            Ok(now) if Instant::now() >= until => {
                return Err(format!("process {} does not start again in place. Start the service again", now.process));
            }
            _ => {}
        }
        std::thread::sleep(INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::process::{Command, Stdio};

    use super::*;

    /// What answers at the admin address may be anybody's.
    #[test]
    fn no_process_but_the_agents_own_is_signalled() {
        if executable::obstacle().is_some() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let [path, new] = ["agent", "agent.new"].map(|name| folder.path().join(name));
        fs::copy("/bin/sleep", &path).unwrap();
        fs::copy("/bin/sleep", &new).unwrap();
        let sleeping =
            |program: &std::path::Path| Command::new(program).arg("60").stdout(Stdio::null()).spawn().unwrap();
        let mut running = [sleeping("/bin/sleep".as_ref()), sleeping(&path), sleeping(&new)];
        let place = Place::at(path.clone());
        let swapped = Swapped { kept: folder.path().join("agent.old"), new: fs::File::open(&new).unwrap() };
        // As after swapping back: the new one has no name any more.
        fs::remove_file(&new).unwrap();
        let processes = running.each_ref().map(std::process::Child::id);
        assert_eq!(processes.map(|process| swapped.is_run_by(process)), [false, false, true]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (admin, victim) = (listener.local_addr().unwrap(), processes[0]);
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let _ = connection.read(&mut [0; 4096]);
                let answer =
                    format!(r#"{{"process":{victim},"version":"1","executable":null,"restart":{{"failed":0}}}}"#);
                let length = answer.len();
                let _ = write!(
                    connection,
                    "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{answer}"
                );
            }
        });
        let failure = serving_again(admin, &place, &swapped, Duration::from_secs(1)).unwrap_err();
        assert!(failure.contains("does not start again in place"), "{failure}");
        assert!(running[0].try_wait().unwrap().is_none(), "it runs on");
        for child in &mut running {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn what_was_amiss_before_does_not_count() {
        let before = ["etcd: no member answers (1)".to_owned()];
        assert!(is_known(&before, "etcd: no member answers (2)"));
        assert!(!is_known(&before, "source: not read yet"));
        assert!(!is_known(&[], "etcd: no member answers"));
    }
}
