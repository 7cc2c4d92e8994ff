//! What commands print, and the times and names in it.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use model::printable::printable_lines;
use process::Failure;
use process::launch::CANNOT_RUN;
use serde_json::Value;

/// Prints what a command gives, or its error.
pub(crate) fn finish(done: Result<String, Failure>) -> ExitCode {
    let written = match done {
        // Hosts write what other commands show of them.
        Ok(text) => io::stdout().write_all(printable_lines(&text).as_bytes()).map(|()| ExitCode::SUCCESS),
        Err(failure) => writeln!(io::stderr(), "error: {failure}").map(|()| ExitCode::from(CANNOT_RUN)),
    };
    // A closed stdout is not an error.
    written.unwrap_or(ExitCode::SUCCESS)
}

/// Says how far a command is that takes long.
pub(crate) fn progress(line: &str) {
    // A closed stderr is not an error.
    let _ = writeln!(io::stderr(), "{}", printable_lines(line));
}

/// An error with the file that it is about.
pub(crate) fn named(path: &Path) -> impl Fn(io::Error) -> Failure {
    move |error| format!("{}: {error}", path.display()).into()
}

/// The JSON of a value; null when it is none.
pub(crate) fn json(value: &[u8]) -> Value {
    serde_json::from_slice(value).unwrap_or_default()
}

/// Seconds since the beginning of 1970.
pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// A time as RFC 3339 writes it, in UTC.
pub(crate) fn written(seconds: i64) -> String {
    live::moment::write(seconds).unwrap_or_default()
}

/// The seconds of a length of time such as `90s`, `30m`, `1h` or `2d`; `None` if it is none.
pub(crate) fn seconds(text: &str) -> Option<u64> {
    let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    let (count, unit) = units.into_iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)))?;
    count.parse::<u32>().ok().map(|count| u64::from(count) * unit)
}

/// Who types this, as others will read it.
pub(crate) fn author() -> String {
    let variable =
        |names: &[&str]| names.iter().find_map(|name| std::env::var(name).ok().filter(|name| !name.is_empty()));
    let user = variable(&["SUDO_USER", "USER", "LOGNAME", "USERNAME"]).unwrap_or_else(|| "unknown".to_owned());
    let host = variable(&["HOSTNAME", "COMPUTERNAME"])
        .or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned()));
    match host {
        Some(host) => format!("{user}@{host}"),
        None => user,
    }
}
