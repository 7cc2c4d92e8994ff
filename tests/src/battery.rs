//! The hostile batteries beside the repository: scripts that attack a running service and count what it did wrong.

use std::process::Command;
use std::time::Duration;

use crate::wait::scaled;
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

/// What the batteries allow for a canary: a question that is asked in between.
const CANARY_MAX: Duration = Duration::from_secs(1);

/// Runs a battery; it has to count no failure, but canaries may be as late as the scale allows.
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
    if last.contains(" passed, ") && failures.peek().is_some() && failures.all(is_only_late) {
        return Ok(format!("{name}: {last}, each only late"));
    }
    let failed: Vec<_> = printed.lines().filter(|line| !line.starts_with("ok")).take(SHOWN_MAX).collect();
    Err(format!("{name}\n{}", failed.join("\n")))
}

/// Whether nothing was wrong but the time: all canaries were answered, the last within the limit as this machine needs it.
fn is_only_late(failure: &str) -> bool {
    // The batteries fill up with spaces.
    let failure = failure.split_whitespace().collect::<Vec<_>>().join(" ");
    let longest = failure.rsplit_once(" max ").and_then(|(_, rest)| rest.trim_end_matches("ms").trim().parse().ok());
    failure.contains(": canaries 0 lost of ")
        && longest.is_some_and(|longest| Duration::from_millis(longest) <= scaled(CANARY_MAX))
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
    use crate::wait;

    #[test]
    fn a_battery_that_failed_or_never_ran_is_noticed() {
        let late = |longest: f64, lost: u32| {
            let canaries = format!("canaries    {lost} lost of 9, p50 1 p99 {longest:.0} max {longest:.0} ms");
            format!("echo 'FAIL  abuse: {canaries}'; echo 'http_abuse: 3 passed, 1 failed (1 s)'; exit 1")
        };
        for (script, good) in [
            ("echo 'lifecycle: 3 passed, 0 failed (1 s)'", true),
            ("echo 'lifecycle: 3 passed, 1 failed (1 s)'; exit 1", false),
            ("echo 'lifecycle: 0 passed, 0 failed (1 s)'", false),
            ("echo 'Traceback (most recent call last)' >&2; exit 1", false),
            ("true", false),
            (&late(900.0 * wait::scale(), 0), true),
            (&late(1100.0 * wait::scale(), 0), false),
            (&late(900.0 * wait::scale(), 1), false),
        ] {
            assert_eq!(count(Command::new("sh").args(["-c", script]), "trial").is_ok(), good, "{script}");
        }
    }
}
