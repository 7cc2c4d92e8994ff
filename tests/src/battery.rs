//! The hostile batteries beside the repository: scripts that attack a running service and count what it did wrong.

use std::process::Command;

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
    let failed: Vec<_> = printed.lines().filter(|line| !line.starts_with("ok")).take(SHOWN_MAX).collect();
    Err(format!("{name}\n{}", failed.join("\n")))
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
