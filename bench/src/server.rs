//! A server that is measured: started on its core, asked for its processor time, stopped at the end.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::Failure;
use crate::machine::{Machine, SERVER_CORE, repository};

/// How long a server may take until it listens: the slowest reads 100,000 containers first.
const START_LIMIT: Duration = Duration::from_secs(20);

/// How long one may take to stop before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(3);

/// Puts itself into the groups named first, then becomes the program on its core.
const LAUNCH: &str = r#"for group in $BENCH_GROUPS; do echo $$ > "$group/cgroup.procs"; done
exec taskset -c "$BENCH_CORE" "$@""#;

/// Where our executables are.
#[derive(Debug)]
pub(crate) struct Executables {
    folder: PathBuf,
}

impl Executables {
    /// Builds them unless told not to. They stand where this executable stands.
    pub(crate) fn find(no_build: bool) -> Result<Self, Failure> {
        let own = std::env::current_exe()?;
        let folder = own.parent().ok_or("this executable stands nowhere")?.to_owned();
        if !no_build {
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let mut build = Command::new(cargo);
            build
                .args(["build", "--profile", "measured", "-p", "metadata", "-p", "dns", "-p", "agent"])
                .current_dir(repository());
            if !build.status()?.success() {
                return Err("the services do not build".into());
            }
        }
        Ok(Self { folder })
    }

    /// Starts `dns` or `metadata` with a cluster document; see [`Self::start`].
    pub(crate) fn start_with(
        &self,
        machine: &Machine,
        service: &str,
        document: &str,
        arguments: &[&str],
    ) -> Result<Server, Failure> {
        let folder = TempDir::new()?;
        fs::write(folder.path().join("cluster.json"), document)?;
        self.start_in(folder, machine, service, &[&["--answers", "cluster.json"], arguments].concat())
    }

    /// Starts `dns` or `metadata` on a free port, and returns when it serves; it may still be reading.
    pub(crate) fn start(&self, machine: &Machine, service: &str, arguments: &[&str]) -> Result<Server, Failure> {
        self.start_in(TempDir::new()?, machine, service, arguments)
    }

    fn start_in(
        &self,
        folder: TempDir,
        machine: &Machine,
        service: &str,
        arguments: &[&str],
    ) -> Result<Server, Failure> {
        let mut command = Command::new(self.folder.join(service));
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json"]).args(arguments);
        let mut server = Server::start(machine, service, &command, folder)?;
        let end = Instant::now() + START_LIMIT;
        loop {
            if let Some(address) = server.serving(service) {
                server.address = address;
                return Ok(server);
            }
            if Instant::now() > end || !server.is_running() {
                return Err(format!("{service} does not serve: {}", server.log()).into());
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// The file of one of our executables.
    pub(crate) fn of(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// This executable, as one of its own peers.
    pub(crate) fn own(&self, peer: &str, listen: SocketAddr) -> Command {
        let mut command = Command::new(self.folder.join("bench"));
        command.args(["peer", peer, &listen.to_string()]);
        command
    }
}

/// A process that serves until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: String,
    /// Where it serves.
    pub(crate) address: SocketAddr,
    child: Child,
    account: Option<PathBuf>,
    folder: TempDir,
}

impl Server {
    /// Starts `command` on the server's core; what it says goes to a file in `folder`, which lives as long as it does.
    pub(crate) fn start(machine: &Machine, name: &str, command: &Command, folder: TempDir) -> Result<Self, Failure> {
        let account = machine.account();
        let groups: Vec<_> = account.iter().map(PathBuf::as_path).chain(machine.shares()).collect();
        let groups: Vec<_> = groups.iter().map(|group| group.display().to_string()).collect();
        let log = fs::File::create(folder.path().join("log"))?;
        let child = Command::new("sh")
            .args(["-c", LAUNCH, "sh"])
            .arg(command.get_program())
            .args(command.get_args())
            .env("BENCH_GROUPS", groups.join(" "))
            .env("BENCH_CORE", SERVER_CORE)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(Self { name: name.to_owned(), address: ([127, 0, 0, 1], 0).into(), child, account, folder })
    }

    /// Waits until `serves` says so.
    pub(crate) fn wait(&mut self, address: SocketAddr, serves: impl Fn(SocketAddr) -> bool) -> Result<(), Failure> {
        self.address = address;
        let end = Instant::now() + START_LIMIT;
        while !serves(address) {
            if Instant::now() > end || !self.is_running() {
                return Err(format!("{} does not serve: {}", self.name, self.log()).into());
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Processor time spent so far, by all threads and processes of it.
    pub(crate) fn cpu(&self) -> Result<Duration, Failure> {
        if let Some(account) = &self.account {
            let usage = fs::read_to_string(account.join("cpuacct.usage"))?;
            return Ok(Duration::from_nanos(usage.trim().parse()?));
        }
        let mut nanoseconds = 0;
        for process in self.processes() {
            for task in fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
                // A thread may end in between.
                let line = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
                nanoseconds += line.split(' ').next().and_then(|first| first.parse::<u64>().ok()).unwrap_or_default();
            }
        }
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// Bytes of memory in RAM.
    pub(crate) fn resident(&self) -> Result<u64, Failure> {
        let mut kibibytes = 0;
        for process in self.processes() {
            let status = fs::read_to_string(format!("/proc/{process}/status"))?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
            kibibytes += line.trim().trim_end_matches(" kB").parse::<u64>()?;
        }
        Ok(kibibytes * 1024)
    }

    /// Where it serves this, according to its log in JSON.
    pub(crate) fn serving(&self, service: &str) -> Option<SocketAddr> {
        self.log().lines().find_map(|line| {
            let line: Value = serde_json::from_str(line).ok()?;
            let address = line.get("address").filter(|_| line["service"] == service)?;
            address.as_str()?.parse().ok()
        })
    }

    /// What it said so far.
    pub(crate) fn log(&self) -> String {
        let log = fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Whether it has not ended by itself.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// It and its descendants.
    fn processes(&self) -> Vec<u32> {
        let mut found = vec![self.child.id()];
        let mut next = 0;
        while let Some(process) = found.get(next).copied() {
            let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
            next += 1;
        }
        found
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Asked first, because some have processes that only they can end.
        let mut kill = Command::new("kill");
        let _ = kill.args(["-TERM", &self.child.id().to_string()]).stderr(Stdio::null()).status();
        let end = Instant::now() + STOP_LIMIT;
        while self.is_running() && Instant::now() < end {
            sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(account) = &self.account {
            let _ = fs::remove_dir(account);
        }
    }
}

/// An address on loopback whose port is free for TCP, and most likely for UDP.
pub(crate) fn free_address() -> Result<SocketAddr, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
