//! Services of Windows: installing, removing and asking one, and being one.
//!
//! Elsewhere installing and asking answers [`ServiceError::Unsupported`]: Linux has unit files for the same. What a running
//! service reports, systemd learns too.

#[cfg_attr(unix, path = "service/unix.rs")]
#[cfg_attr(windows, path = "service/windows.rs")]
mod system;

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use thiserror::Error;

/// What is installed.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The name by which it is started and stopped.
    pub name: String,
    /// The name that is shown to people.
    pub display_name: String,
    /// One sentence for people.
    pub description: String,
    /// Arguments of this executable, which the system starts with the machine.
    pub arguments: Vec<OsString>,
    /// Services that have to run before.
    pub dependencies: Vec<String>,
}

/// What a service does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing.
    Stopped,
    /// It was asked to run.
    Starting,
    /// It runs.
    Running,
    /// It was asked to stop.
    Stopping,
    /// It was asked to pause; Berth's never are.
    Paused,
}

/// Why something cannot be done to a service.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// The system has no such services.
    #[error("only Windows has such services; on Linux use a unit file (images/linux/berth.service)")]
    Unsupported,
    /// The caller may not do it.
    #[error("may not {verb} the service {name}: run this as administrator")]
    NotPermitted {
        /// What was tried.
        verb: &'static str,
        /// The service.
        name: String,
    },
    /// There is none.
    #[error("there is no service {name}: `agent service install` makes one")]
    Missing {
        /// The service.
        name: String,
    },
    /// There is one already.
    #[error("there is a service {name} already: remove it with `agent service uninstall`, or give --name another one")]
    Exists {
        /// The service.
        name: String,
    },
    /// It was removed, but a process still holds it.
    #[error(
        "the service {name} is still being removed: close what looks at it (services.msc, Task Manager), or restart the machine"
    )]
    Leaving {
        /// The service.
        name: String,
    },
    /// It was started, and has ended.
    #[error("the service {name} ended while it was starting")]
    Ended {
        /// The service.
        name: String,
    },
    /// [`run`] was not called by the system.
    #[error("only the system starts a service; from a console use `agent up`, or `agent service start`")]
    NotStartedBySystem,
    /// The system refused.
    #[error("cannot {verb} the service {name}: {error}")]
    Refused {
        /// What was tried.
        verb: &'static str,
        /// The service.
        name: String,
        /// What the system said.
        #[source]
        error: io::Error,
    },
}

/// Installs a service that starts with the machine, and again when it fails.
///
/// Gives what this system does not know, such as a restart after failures; the service is there without it.
pub fn install(definition: &Definition) -> Result<Vec<&'static str>, ServiceError> {
    system::install(definition)
}

/// Sets of a service that an installer made what only [`install`] can: a restart after failures, and its place in the log of
/// the system. Gives what this system does not know.
pub fn repair(name: &str) -> Result<Vec<&'static str>, ServiceError> {
    system::repair(name)
}

/// Stops a service and removes it.
pub fn uninstall(name: &str) -> Result<(), ServiceError> {
    system::uninstall(name)
}

/// Starts a service and waits until it runs, or until it has ended: that is an error.
pub fn start(name: &str) -> Result<(), ServiceError> {
    system::start(name)
}

/// Stops a service and waits until it has ended.
pub fn stop(name: &str) -> Result<(), ServiceError> {
    system::stop(name)
}

/// What a service does at the moment.
pub fn state(name: &str) -> Result<State, ServiceError> {
    system::state(name)
}

/// The arguments with which the system starts a service.
pub fn arguments(name: &str) -> Result<Vec<String>, ServiceError> {
    Ok(words(&system::command_line(name)?).into_iter().skip(1).collect())
}

/// Tells the system what this process does as a service: [`State::Running`] once everything is bound, and
/// [`State::Stopping`] while it ends. Does nothing for a process that is no service.
///
/// Until the first of these the service is starting.
pub fn report(state: State) {
    system::report(state);
}

/// Tells the log of the system why this process, as a service, ends with an error. Does nothing for a process that is no
/// service.
pub fn failed(reason: &str) {
    system::failed(reason);
}

/// Tells the system that another process goes on as this service. Does nothing for a process that is no service.
pub fn is_succeeded_by(process: u32) {
    system::is_succeeded_by(process);
}

/// The time after which the system ends this process as hung unless it calls [`alive`]; `None` where it does not watch.
pub fn watchdog() -> Option<Duration> {
    system::watchdog()
}

/// Tells the system that this process is not hung.
pub fn alive() {
    system::alive();
}

/// Runs `body` as the service that the system started this process for, and reports its end and exit code to the system.
///
/// A request of the system to stop reaches `body` as an event of [`crate::stop::StopEvents`].
pub fn run(name: &str, body: impl FnOnce() -> u8 + Send + 'static) -> Result<(), ServiceError> {
    system::run(name, Box::new(body))
}

/// The words of a command line of Windows: blanks part them, except between quotation marks, which a backslash before
/// them makes part of the word.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut backslashes) = (Vec::new(), None::<String>, false, 0);
    for letter in line.chars() {
        match letter {
            '\\' => {
                backslashes += 1;
                continue;
            }
            // Before a quotation mark two backslashes are one, and one that is left is for the mark.
            '"' => {
                let text = word.get_or_insert_default();
                text.extend(std::iter::repeat_n('\\', backslashes / 2));
                if backslashes % 2 == 1 {
                    text.push('"');
                } else {
                    quoted = !quoted;
                }
            }
            letter => {
                if backslashes > 0 {
                    word.get_or_insert_default().extend(std::iter::repeat_n('\\', backslashes));
                }
                if quoted || !matches!(letter, ' ' | '\t') {
                    word.get_or_insert_default().push(letter);
                } else {
                    words.extend(word.take());
                }
            }
        }
        backslashes = 0;
    }
    if backslashes > 0 {
        word.get_or_insert_default().extend(std::iter::repeat_n('\\', backslashes));
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn command_lines_are_taken_apart_as_windows_does() {
        for (line, expected) in [
            (r#""C:\Program Files\agent.exe" service run"#, &[r"C:\Program Files\agent.exe", "service", "run"][..]),
            (r"agent.exe --log C:\a\agent.log", &["agent.exe", "--log", r"C:\a\agent.log"]),
            (r#"a "C:\with blank\\" b"#, &["a", r"C:\with blank\", "b"]),
            (r#"a "say \"yes\"" """#, &["a", r#"say "yes""#, ""]),
            ("  a \t b  ", &["a", "b"]),
            (r"a C:\", &["a", r"C:\"]),
        ] {
            assert_eq!(words(line), expected, "{line}");
        }
    }
}
