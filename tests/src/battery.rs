//! The hostile batteries beside the repository: scripts that attack a running service and count what it did wrong.

use std::process::Command;

use crate::{Service, binaries};

/// Whether batteries are to be short: against Windows executables, since Wine takes twenty times as long for each packet,
/// unless `BERTH_LONG=1` (`tests/run --long`).
pub fn is_short() -> bool {
    binaries::are_for_windows() && !is_long()
}

/// Whether there is time for everything: `BERTH_LONG=1` (`tests/run --long`).
pub fn is_long() -> bool {
    std::env::var_os("BERTH_LONG").is_some_and(|value| value == "1")
}

/// Lets a battery look at the memory and the descriptors of a service, which of one under Wine would be those of Wine.
pub fn watch(command: &mut Command, service: &Service) {
    if !binaries::are_for_windows() {
        command.args(["--pid", &service.pid().to_string()]);
    }
}

/// Most lines of a battery that are shown when it failed.
const SHOWN_MAX: usize = 80;

/// Runs a battery; it has to count no failure.
///
/// # Errors
///
/// What it found wrong, or printed when it never came to an end.
pub fn count(command: &mut Command, name: &str) -> Result<String, String> {
    let output = command.arg("--verbose").output().expect("a battery can be started");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let last = printed.lines().last().unwrap_or_default();
    if output.status.success() && last.contains(", 0 failed") && !last.contains(": 0 passed") {
        return Ok(format!("{name}: {last}"));
    }
    let mut failures = printed.lines().filter(|line| line.starts_with("FAIL")).peekable();
    if last.contains(" passed, ") && failures.peek().is_some() && failures.all(is_of_wine) {
        return Ok(format!("{name}: {last}, each only late"));
    }
    let failed: Vec<_> = printed.lines().filter(|line| !line.starts_with("ok")).take(SHOWN_MAX).collect();
    Err(format!("{name}\n{}", failed.join("\n")))
}

/// Whether a failure says nothing of a service under Wine: its answers to those who watch came late, but all of them did.
///
/// Wine does what all connections ask for in one thread of another process; the limits are those of a service of Linux.
fn is_of_wine(failure: &str) -> bool {
    binaries::are_for_windows() && failure.contains(": canaries") && failure.contains(" 0 lost of ")
}

/// Runs a battery and tells what it counted.
pub fn pass(command: &mut Command, name: &str) {
    match count(command, name) {
        Ok(counted) => crate::tell(&counted),
        Err(failed) => panic!("{failed}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_battery_that_failed_or_never_ran_is_noticed() {
        for (script, good) in [
            ("echo 'lifecycle: 3 passed, 0 failed (1 s)'", true),
            ("echo 'lifecycle: 3 passed, 1 failed (1 s)'; exit 1", false),
            ("echo 'lifecycle: 0 passed, 0 failed (1 s)'", false),
            ("echo 'Traceback (most recent call last)' >&2; exit 1", false),
            ("true", false),
        ] {
            assert_eq!(count(Command::new("sh").args(["-c", script]), "trial").is_ok(), good, "{script}");
        }
    }
}
