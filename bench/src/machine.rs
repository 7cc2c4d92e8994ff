//! The machine as it is measured on: which core does what, and how processor time is counted.
//!
//! The server has one core, the load another. Where the cgroup of processors is writable (version 1 of its interface)
//! both are put into a group with a large share, so that what else runs on the machine hardly disturbs, and the server's
//! time is read from a group of its own: to the nanosecond, with all its threads and processes, ended ones too.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Failure;

/// The core of the server that is measured.
pub(crate) const SERVER_CORE: &str = "0";

/// The core of everything that asks it.
const LOAD_CORE: &str = "1";

/// A hundred times what everybody else has.
const SHARES: &str = "100000";

const CPU: &str = "/sys/fs/cgroup/cpu";
const CPU_ACCOUNT: &str = "/sys/fs/cgroup/cpuacct";

/// The machine, prepared for measuring until this is dropped.
#[derive(Debug)]
pub(crate) struct Machine {
    shares: Option<PathBuf>,
    can_account: bool,
    groups: AtomicUsize,
}

impl Machine {
    pub(crate) fn prepare() -> Result<Self, Failure> {
        let cores = std::thread::available_parallelism()?.get();
        if cores < 2 || !Path::new("/proc/self/schedstat").exists() {
            return Err(format!("needs Linux with two cores, found {cores}").into());
        }
        let own = std::process::id().to_string();
        let pinned = Command::new("taskset").args(["-acp", LOAD_CORE, &own]).output()?;
        if !pinned.status.success() {
            return Err(format!("taskset: {}", String::from_utf8_lossy(&pinned.stderr)).into());
        }
        // The waiters need thousands of connections.
        platform::limits::raise_descriptor_limit();
        let shares = make_group(CPU, "load").ok();
        if let Some(group) = &shares {
            fs::write(group.join("cpu.shares"), SHARES)?;
            fs::write(group.join("cgroup.procs"), &own)?;
        }
        let probe = make_group(CPU_ACCOUNT, "probe");
        let can_account = probe.is_ok();
        if let Ok(probe) = probe {
            fs::remove_dir(probe)?;
        }
        Ok(Self { shares, can_account, groups: AtomicUsize::new(0) })
    }

    /// A new group that counts the processor time of what is put into it.
    pub(crate) fn account(&self) -> Option<PathBuf> {
        let number = self.groups.fetch_add(1, Ordering::Relaxed);
        self.can_account.then(|| make_group(CPU_ACCOUNT, &number.to_string()).ok())?
    }

    /// The group with the large share.
    pub(crate) fn shares(&self) -> Option<&Path> {
        self.shares.as_deref()
    }

    /// How good the figures can be, in words.
    pub(crate) fn method(&self) -> String {
        let shares = if self.shares.is_some() {
            "cgroup with large shares"
        } else {
            "NO cgroup with large shares: whatever else ran disturbed"
        };
        let account = if self.can_account { "cpuacct" } else { "schedstat: time of ended threads is missing" };
        format!("server on core {SERVER_CORE}, load on core {LOAD_CORE}, {shares}, time by {account}")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let Some(group) = self.shares.take() else { return };
        // A group that somebody is in cannot be removed; so leave it first.
        let procs = fs::OpenOptions::new().write(true).open(Path::new(CPU).join("cgroup.procs"));
        if let Ok(mut procs) = procs {
            let _ = procs.write_all(std::process::id().to_string().as_bytes());
        }
        let _ = fs::remove_dir(group);
    }
}

fn make_group(controller: &str, name: &str) -> Result<PathBuf, Failure> {
    let group = Path::new(controller).join(format!("berth-bench-{}-{name}", std::process::id()));
    // Without the files of version 1 it would be a directory like any other.
    if !Path::new(controller).join("cgroup.procs").exists() {
        return Err("no cgroup".into());
    }
    fs::create_dir(&group)?;
    Ok(group)
}

/// Model of the processor, kernel, commit and date, for who reads the figures later.
pub(crate) fn facts() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown processor");
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!(
        "{} · {cores} × {} · Linux {} · load {} · commit {}",
        said(Command::new("date").args(["-u", "+%F %H:%M UTC"])),
        model.trim_start_matches(['\t', ' ', ':']),
        kernel.trim(),
        load.split(' ').next().unwrap_or_default(),
        said(Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(repository())),
    )
}

fn said(command: &mut Command) -> String {
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}

/// The folder of the workspace.
pub(crate) fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
