//! The HAProxy of a balancer: checked, started, reloaded and ended.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use balancer::{Metrics, RuntimeSocket};
use model::printable::printable;
use platform::family::{self, Family};
use process::Failure;
use source::backoff::Backoff;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

/// Longest time for which HAProxy may check a configuration: one of 10,000 rules takes two seconds.
const CHECK_TIME: Duration = Duration::from_secs(30);

/// Longest wait for a worker to serve after a start or a reload.
const START_TIME: Duration = Duration::from_secs(15);

/// Time between two looks whether it does.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Longest wait at the end for requests to be finished; the rest of the process has to end too.
const FINISH_TIME: Duration = Duration::from_secs(5);

/// Starts that are made at once, and in which time: a crash is answered at once, a program that always crashes is not.
const STARTS_AT_ONCE: usize = 3;
const STARTS_TIME: Duration = Duration::from_secs(10);

/// Waits between starts beyond these.
const START_WAITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Most lines with errors of HAProxy that are remembered.
const ALERTS_MAX: usize = 8;

/// Longest line of HAProxy's log that is shown, in characters.
const LINE_MAX: usize = 300;

/// HAProxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    program: PathBuf,
    configuration: PathBuf,
    /// The socket of its worker.
    pub(crate) worker: RuntimeSocket,
    master: RuntimeSocket,
    run: bool,
    /// What was started here and was not waited for.
    child: Option<Child>,
    /// What runs, be it started by a process before.
    family: Option<Family>,
    /// When a master that was started by a process before was seen last.
    seen: Instant,
    starts: VecDeque<Instant>,
    waits: Backoff,
    next_start: Option<Instant>,
    alerts: Alerts,
    metrics: Metrics,
}

/// What HAProxy said last about errors.
#[derive(Clone, Debug, Default)]
struct Alerts(Arc<Mutex<VecDeque<String>>>);

impl Alerts {
    fn add(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == ALERTS_MAX {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }

    /// The first of them since they were taken last, which has the cause.
    fn take(&self) -> Option<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).pop_front()
    }
}

impl Proxy {
    pub(crate) fn new(program: PathBuf, folder: &Path, master: Option<PathBuf>, run: bool, metrics: Metrics) -> Self {
        Self {
            program,
            configuration: folder.join("haproxy.cfg"),
            worker: RuntimeSocket::at(&folder.join("haproxy.sock")),
            master: RuntimeSocket::at(&master.unwrap_or_else(|| folder.join("master.sock"))),
            run,
            child: None,
            family: None,
            seen: Instant::now(),
            starts: VecDeque::new(),
            waits: Backoff::new(START_WAITS.0, START_WAITS.1),
            next_start: None,
            alerts: Alerts::default(),
            metrics,
        }
    }

    /// Whether HAProxy takes a configuration.
    ///
    /// # Errors
    ///
    /// Says what HAProxy says against it, or that there is no HAProxy.
    pub(crate) async fn check(&self, configuration: &Path) -> Result<(), Failure> {
        let mut command = Command::new(&self.program);
        command.args(["-c", "-f"]).arg(configuration).stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(CHECK_TIME, command.output()).await;
        let output = output.map_err(|_| "HAProxy did not check the configuration in time")?;
        let output = output.map_err(|error| self.not_started(&error))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let alert = said.lines().find(|line| line.contains("[ALERT]")).unwrap_or(&said);
        let text = std::fs::read_to_string(configuration).unwrap_or_default();
        Err(refusal(alert, &text).into())
    }

    fn not_started(&self, error: &io::Error) -> String {
        let program = self.program.display();
        match error.kind() {
            io::ErrorKind::NotFound => {
                format!("{program} is not installed (Debian: apt-get install haproxy), or name it with --haproxy")
            }
            _ => format!("{program} cannot be started: {error}"),
        }
    }

    /// Whether it was started here and has not ended, or something else runs it.
    pub(crate) fn is_running(&self) -> bool {
        self.child.is_some() || !self.run
    }

    /// Starts HAProxy where it is to be run and does not.
    ///
    /// # Errors
    ///
    /// Fails if it does not serve, or was started too often to be started now.
    pub(crate) async fn keep_running(&mut self) -> Result<(), Failure> {
        if !self.run || self.child.is_some() || !self.configuration.exists() {
            return Ok(());
        }
        if self.adopt().await {
            return Ok(());
        }
        let now = Instant::now();
        if let Some(next) = self.next_start.filter(|next| *next > now) {
            return Err(format!("HAProxy is started again in {:.0} s", (next - now).as_secs_f64()).into());
        }
        self.starts.retain(|start| now.duration_since(*start) < STARTS_TIME);
        if self.starts.len() >= STARTS_AT_ONCE {
            self.next_start = Some(now + self.waits.wait());
        } else {
            self.next_start = None;
            if self.starts.is_empty() {
                self.waits.reset();
            }
        }
        self.starts.push_back(now);
        self.start().await
    }

    /// Whether there is a HAProxy that a process left that was killed.
    ///
    /// A master does not answer while it restarts: a second one beside it would have the same ports and no one to end it.
    async fn adopt(&mut self) -> bool {
        if let Some(pid) = self.pid_of_master().await {
            if let Some(family) = self.family.take() {
                family.leave();
            }
            self.family = Family::of(pid).ok();
            self.seen = Instant::now();
            return true;
        }
        let is_there = self.family.as_ref().is_some_and(Family::is_there) || self.pid().await.is_some();
        if is_there && self.seen.elapsed() < START_TIME {
            return true;
        }
        // It is gone, or does not answer any more: ended before there is another.
        self.family = None;
        false
    }

    async fn pid_of_master(&self) -> Option<u32> {
        let answer = self.master.ask("show proc").await.ok()?;
        answer.lines().find(|line| !line.starts_with('#'))?.split_ascii_whitespace().next()?.parse().ok()
    }

    async fn start(&mut self) -> Result<(), Failure> {
        let mut command = Command::new(&self.program);
        let master = format!("{},mode,600", self.master.path().display());
        command.args(["-W", "-S", &master, "-f"]).arg(&self.configuration);
        // What the service manager learns comes from this process.
        command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        family::prepare(command.as_std_mut());
        self.alerts.take();
        let mut child = command.spawn().map_err(|error| self.not_started(&error))?;
        self.family = child.id().and_then(|id| Family::of(id).ok());
        if let Some(errors) = child.stderr.take() {
            tokio::spawn(log(errors, self.alerts.clone()));
        }
        self.metrics.starts.inc();
        self.child = Some(child);
        self.until_served(None).await?;
        info!(configuration = %self.configuration.display(), "HAProxy was started");
        Ok(())
    }

    /// Waits for a worker to answer that is not this one.
    async fn until_served(&mut self, before: Option<u32>) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let pid = self.pid().await;
            if pid.is_some() && pid != before {
                return Ok(());
            }
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait()?
            {
                // Its last lines.
                sleep(LOOK_INTERVAL).await;
                self.forget();
                let why = self.alerts.take().unwrap_or_else(|| status.to_string());
                return Err(format!("HAProxy does not start: {why}").into());
            }
            let failed = before.is_some() && begun.elapsed() > LOOK_INTERVAL * 10 && self.has_failed().await;
            if failed || begun.elapsed() > START_TIME {
                let why = self.alerts.take().unwrap_or_else(|| "it serves with the configuration before".into());
                return Err(format!("HAProxy does not load the configuration: {why}").into());
            }
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// Whether there is one that serves, even if it does not answer.
    ///
    /// # Errors
    ///
    /// Fails if it does not answer.
    pub(crate) async fn serves(&self) -> Result<bool, Failure> {
        let silent = |why: &str| format!("HAProxy does not answer at {}: {why}", self.worker.path().display());
        match self.worker.ask("show info").await {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                let is_there = self.child.is_some() || self.family.as_ref().is_some_and(Family::is_there);
                if is_there { Err(silent("it has no worker yet").into()) } else { Ok(false) }
            }
            Err(error) => Err(silent(&error.to_string()).into()),
        }
    }

    /// The number of the worker that answers.
    pub(crate) async fn pid(&self) -> Option<u32> {
        let answer = self.worker.ask("show info").await.ok()?;
        answer.lines().find_map(|line| line.strip_prefix("Pid: ")?.trim().parse().ok())
    }

    /// Whether the master's last reload failed: the worker before then goes on.
    async fn has_failed(&self) -> bool {
        let Ok(answer) = self.master.ask("show proc").await else { return false };
        let mut rows = answer.lines().filter(|line| !line.starts_with('#'));
        rows.next().is_some_and(|master| master.contains("[failed: ") && !master.contains("[failed: 0]"))
    }

    /// Has the master start a worker with the configuration as it is now; the one before hands its listeners over.
    ///
    /// # Errors
    ///
    /// Fails if there is no master or the new worker does not serve; the one before then goes on.
    pub(crate) async fn reload(&mut self) -> Result<(), Failure> {
        let before = self.pid().await;
        self.alerts.take();
        match self.master.ask("reload").await {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                let path = self.master.path().display();
                return Err(format!(
                    "HAProxy's master does not answer at {path}: {error} (haproxy -W -S {path},mode,600 …, or --master)"
                )
                .into());
            }
            // It restarts itself, and may end the connection in any way.
            Ok(_) | Err(_) => {}
        }
        self.until_served(before).await
    }

    /// Waits until the HAProxy that was started here ends; without one for ever.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub(crate) async fn ended(&mut self) {
        match &mut self.child {
            Some(child) => {
                let status = child.wait().await;
                self.forget();
                let why = self.alerts.take().unwrap_or_default();
                warn!(
                    status = status.map(|status| status.to_string()).unwrap_or_default(),
                    why, "HAProxy ended by itself"
                );
            }
            None => std::future::pending().await,
        }
    }

    /// It has ended, and the child was waited for.
    fn forget(&mut self) {
        self.child = None;
        if let Some(family) = self.family.take() {
            family.leave();
        }
    }

    /// Whether HAProxy is run, but was started by a process before this one.
    pub(crate) fn is_adopted(&self) -> bool {
        self.run && self.child.is_none()
    }

    /// Ends HAProxy, if it is run, once its requests are finished, 5 s at most.
    pub(crate) async fn finish(&mut self) {
        // Just begun, this process may find it amid a restart.
        let found = async {
            while self.is_adopted() && self.family.is_none() && self.adopt().await {
                sleep(LOOK_INTERVAL).await;
            }
        };
        let _ = timeout(FINISH_TIME, found).await;
        let Some(family) = &self.family else { return };
        let asked = family.ask_to_finish();
        if asked.is_ok() && timeout(FINISH_TIME, has_ended(&mut self.child, family)).await.is_ok() {
            return self.forget();
        }
        warn!(limit = ?FINISH_TIME, "some requests were not finished in time: HAProxy is killed");
        self.family = None;
        if let Some(mut child) = self.child.take() {
            let _ = child.wait().await;
        }
    }
}

/// Waits for the end of a program: the system reports that of a child, any other is polled for.
async fn has_ended(child: &mut Option<Child>, family: &Family) {
    if let Some(child) = child {
        let _ = child.wait().await;
        return;
    }
    while family.is_there() {
        sleep(LOOK_INTERVAL).await;
    }
}

/// Passes on what HAProxy says.
async fn log(errors: impl AsyncRead + Unpin, alerts: Alerts) {
    let mut lines = BufReader::new(errors).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let line = printable(&line, LINE_MAX);
        if line.contains("[ALERT]") {
            warn!("HAProxy: {line}");
            alerts.add(&line);
        } else {
            debug!("HAProxy: {line}");
        }
    }
}

/// What HAProxy says against a configuration, with the line itself.
fn refusal(alert: &str, configuration: &str) -> String {
    let place = alert.split_once("parsing [").and_then(|(_, rest)| rest.split_once(']'));
    let found = place.and_then(|(place, problem)| {
        let number: usize = place.rsplit_once(':')?.1.parse().ok()?;
        let line = configuration.lines().nth(number.checked_sub(1)?)?;
        Some(format!("line {number}, `{}`{}", printable(line.trim(), 120), printable(problem, LINE_MAX)))
    });
    found.unwrap_or_else(|| printable(alert, LINE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_shows_the_line() {
        let alert = "[ALERT]    (31060) : config : parsing [/x/haproxy.cfg:2] : unknown keyword 'nonsense' in 'backend' section";
        let expected = "line 2, `nonsense` : unknown keyword 'nonsense' in 'backend' section";
        assert_eq!(refusal(alert, "backend b\n  nonsense\n"), expected);
        assert_eq!(refusal("[ALERT] x", ""), "[ALERT] x");
    }
}
