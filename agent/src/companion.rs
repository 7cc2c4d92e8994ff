//! Processes beside this one: started by it, watched, and ended with it.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use platform::privilege;
use process::Failure;
use source::{Readiness, Reasons};
use tokio_util::sync::CancellationToken;

use crate::network::PART as NETWORK;

/// How often it is looked whether the others still run.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Longest wait at the end for one of them, which has hardly more than a socket to remove.
const END_LIMIT: Duration = Duration::from_secs(2);
const END_INTERVAL: Duration = Duration::from_millis(10);

/// A process beside this one. It ends when this process does, which holds its standard input open.
pub(crate) struct Companion {
    /// What it is, at the beginning of a sentence.
    what: &'static str,
    child: Arc<Mutex<Child>>,
}

impl Companion {
    /// Starts it; `what` it is stands at the beginning of a sentence.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be started.
    pub(crate) fn start(what: &'static str, mut command: Command) -> Result<Self, Failure> {
        command.stdin(Stdio::piped());
        Ok(Self { what, child: Arc::new(Mutex::new(command.spawn()?)) })
    }

    /// Has `readiness` say what the process says of itself, if it does.
    pub(crate) fn report_to(&self, readiness: Arc<Readiness>) {
        let Some(output) = locked(&self.child).stdout.take() else { return };
        // Blocks as long as the other process runs, so it is no task.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let Ok([reasons, warnings]) = serde_json::from_str::<State>(&line) else { continue };
                match &reasons[..] {
                    [] => readiness.ready(NETWORK),
                    _ => readiness.not_ready(NETWORK, reasons.join("; ")),
                }
                readiness.warn(NETWORK, warnings.into_iter().next());
            }
        });
    }

    /// Fails if it has ended.
    pub(crate) fn look(&self) -> Result<(), Failure> {
        match locked(&self.child).try_wait()? {
            None => Ok(()),
            Some(status) => Err(format!("{} ended ({status})", self.what).into()),
        }
    }

    /// Watches it until `stop`.
    ///
    /// # Errors
    ///
    /// Fails when it ends before.
    pub(crate) fn watch(&self, stop: CancellationToken) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        let watched = Self { what: self.what, child: self.child.clone() };
        look_until(stop, move || watched.look())
    }

    /// Ends it at once.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub(crate) fn kill(&self) -> Result<(), Failure> {
        Ok(locked(&self.child).kill()?)
    }

    /// Ends it once the services have ended, and waits for that.
    pub(crate) fn finish(&self) {
        let mut child = locked(&self.child);
        drop(child.stdin.take());
        let begun = Instant::now();
        while matches!(child.try_wait(), Ok(None)) && begun.elapsed() < END_LIMIT {
            std::thread::sleep(END_INTERVAL);
        }
    }
}

/// Looks again and again until `stop`.
///
/// # Errors
///
/// What `look` says, as soon as it does.
pub(crate) async fn look_until(stop: CancellationToken, look: impl Fn() -> Result<(), Failure>) -> Result<(), Failure> {
    let mut turns = tokio::time::interval(LOOK_INTERVAL);
    while stop.run_until_cancelled(turns.tick()).await.is_some() {
        look()?;
    }
    Ok(())
}

/// This program as a process beside this one, without arguments and standard streams of its own yet.
pub(crate) fn this_program() -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    // What the service manager learns comes from this process.
    command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC");
    privilege::in_own_group(&mut command);
    Ok(command)
}

/// Cancels `stop` when the process that has started this one ends.
pub(crate) fn end_with_starter(stop: CancellationToken) {
    // Blocks as long as the other process runs, so it is no task.
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        stop.cancel();
    });
}

/// A panic elsewhere leaves nothing half done here.
fn locked(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a process says of itself, a line for each change: why it is not ready, and its warnings.
type State = [Vec<String>; 2];

/// Says on standard output why this process is not ready, and its warnings, whenever that changes: for [`Companion::report_to`].
pub(crate) async fn say_state(readiness: Arc<Readiness>) {
    let (mut reasons, mut warnings) = (readiness.watch(), readiness.watch_warnings());
    loop {
        let texts = |of: &Reasons| of.values().cloned().collect();
        let state: State = [texts(&reasons.borrow_and_update()), texts(&warnings.borrow_and_update())];
        if let Ok(line) = serde_json::to_string(&state) {
            // Without a reader this process is about to end.
            let _ = writeln!(io::stdout(), "{line}");
        }
        let changed = tokio::select! {
            changed = reasons.changed() => changed,
            changed = warnings.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}
