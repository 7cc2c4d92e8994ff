//! What asks the servers.

pub(crate) mod dnsperf;
pub(crate) mod udp;
pub(crate) mod wrk;

use std::process::Command;

/// Whether a program is there.
pub(crate) fn has(program: &str) -> bool {
    Command::new("sh")
        .args(["-c", "command -v \"$1\"", "sh", program])
        .output()
        .is_ok_and(|found| found.status.success())
}
