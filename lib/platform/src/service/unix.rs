//! No services of this kind; of systemd's, what a running one tells it (`sd_notify(3)`).

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use super::{Definition, ServiceError, State};

pub(super) fn install(_: &Definition) -> Result<Vec<&'static str>, ServiceError> {
    Err(ServiceError::Unsupported)
}

pub(super) fn repair(_: &str) -> Result<Vec<&'static str>, ServiceError> {
    Err(ServiceError::Unsupported)
}

pub(super) fn uninstall(_: &str) -> Result<(), ServiceError> {
    Err(ServiceError::Unsupported)
}

pub(super) fn start(_: &str) -> Result<(), ServiceError> {
    Err(ServiceError::Unsupported)
}

pub(super) fn stop(_: &str) -> Result<(), ServiceError> {
    Err(ServiceError::Unsupported)
}

pub(super) fn state(_: &str) -> Result<State, ServiceError> {
    Err(ServiceError::Unsupported)
}

pub(super) fn command_line(_: &str) -> Result<String, ServiceError> {
    Err(ServiceError::Unsupported)
}

pub(super) fn report(state: State) {
    match state {
        State::Running => notify("READY=1"),
        State::Stopping => notify("STOPPING=1"),
        // The manager knows these by itself.
        State::Starting | State::Stopped | State::Paused => {}
    }
}

pub(super) fn failed(reason: &str) {
    // One line is one assignment.
    notify(&format!("STATUS={}", reason.replace('\n', " ")));
}

pub(super) fn is_succeeded_by(process: u32) {
    notify(&format!("MAINPID={process}"));
}

pub(super) fn watchdog() -> Option<Duration> {
    let variable = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let limit = Duration::from_micros(variable("WATCHDOG_USEC")?);
    // Without the second variable it is for the process that has the first.
    let ours = variable("WATCHDOG_PID").is_none_or(|process| process == u64::from(std::process::id()));
    (ours && !limit.is_zero()).then_some(limit)
}

pub(super) fn alive() {
    notify("WATCHDOG=1");
}

/// Tells the manager of services something, where it wants to know. What it does not receive, it does not act on: there is
/// nothing to do about an error.
fn notify(text: &str) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET") {
        let _ = UnixDatagram::unbound().and_then(|from| from.send_to(text.as_bytes(), socket));
    }
}

pub(super) fn run(_: &str, _: Box<dyn FnOnce() -> u8 + Send>) -> Result<(), ServiceError> {
    Err(ServiceError::Unsupported)
}
