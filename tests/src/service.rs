//! A running executable: started on free ports, its addresses learned from its log, ended whatever happens.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::{self, Response};
use crate::process::Process;
use crate::wait::{LOOK_INTERVAL, eventually, scaled};
use crate::{binaries, companion, namespace};

/// Longest wait for an executable to serve, to end, or to write a line; all of it takes milliseconds.
const LIMIT: Duration = Duration::from_secs(15);

/// Longest wait for the end of a log whose process has ended.
const HELD_OPEN: Duration = Duration::from_secs(1);

/// Variables that would change what the executables do.
const VARIABLES: [&str; 6] =
    ["METADATA_SERVER", "NEVER_RECURSE_TO", "RANCHER_METADATA_ANSWER", "RUST_LOG", "RUST_BACKTRACE", "NO_COLOR"];

/// The upstream of every executable, unless a test gives another one: nothing listens there. Tests do not ask the name
/// servers of the machine.
pub const NO_NAME_SERVER: (&str, &str) = ("BERTH_DNS_UPSTREAM", "127.0.0.1:1");

/// What is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executable {
    /// All services in one process.
    Agent,
    /// The metadata service.
    Metadata,
    /// The DNS service.
    Dns,
    /// The scheduler.
    Scheduler,
}

impl Executable {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Agent, Self::Metadata, Self::Dns, Self::Scheduler];

    /// Its name, which is the name of the service too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Metadata => "metadata",
            Self::Dns => "dns",
            Self::Scheduler => "scheduler",
        }
    }
}

/// How an executable is started.
#[derive(Clone, Debug)]
pub struct Launch {
    executable: Executable,
    /// The subcommand and what stands alone.
    words: Vec<OsString>,
    flags: Vec<(OsString, Option<OsString>)>,
    environment: Vec<(OsString, OsString)>,
    folder: PathBuf,
    namespace: Option<String>,
    /// The program that starts it, with its arguments, unless it is started by itself.
    starter: Vec<OsString>,
    /// The file of the executable, when it is another one than that under test.
    path: Option<PathBuf>,
}

impl Launch {
    /// The executable with nothing but a log that can be read.
    pub fn bare(executable: Executable) -> Self {
        Self {
            executable,
            words: Vec::new(),
            flags: Vec::new(),
            environment: Vec::new(),
            folder: crate::repository(),
            namespace: None,
            starter: Vec::new(),
            path: None,
        }
    }

    /// All services from a cluster file, on free ports.
    pub fn agent(file: &Path) -> Self {
        let launch = Self::bare(Executable::Agent).word("up").word(file).logged();
        ["--metadata", "--dns", "--scheduler", "--admin", "--ui"]
            .iter()
            .fold(launch, |launch, flag| launch.free_port(flag))
    }

    /// The metadata service from a cluster file, on free ports.
    pub fn metadata(file: &Path) -> Self {
        Self::served(Executable::Metadata).with("--answers", file)
    }

    /// The DNS service, on free ports.
    pub fn dns() -> Self {
        Self::served(Executable::Dns)
    }

    /// The scheduler, on free ports.
    pub fn scheduler() -> Self {
        Self::served(Executable::Scheduler)
    }

    /// One service, on free ports.
    pub fn served(executable: Executable) -> Self {
        Self::bare(executable).logged().free_port("--listen").free_port("--admin")
    }

    /// Log lines as JSON.
    #[must_use]
    pub fn logged(self) -> Self {
        self.with("--log-format", "json")
    }

    /// The same with a word that is no flag.
    #[must_use]
    pub fn word(mut self, word: impl AsRef<OsStr>) -> Self {
        self.words.push(word.as_ref().to_owned());
        self
    }

    /// The same with a flag that has no value.
    #[must_use]
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push((flag.into(), None));
        self
    }

    /// The same with this value for a flag, whatever it was before.
    #[must_use]
    pub fn with(mut self, flag: &str, value: impl AsRef<OsStr>) -> Self {
        self.flags.retain(|(known, _)| known != flag);
        self.flags.push((flag.into(), Some(value.as_ref().to_owned())));
        self
    }

    /// The same without a flag.
    #[must_use]
    pub fn without(mut self, flag: &str) -> Self {
        self.flags.retain(|(known, _)| known != flag);
        self
    }

    /// The same, following the metadata service at this address.
    #[must_use]
    pub fn following(self, metadata: SocketAddr) -> Self {
        self.with("--metadata-server", metadata.to_string())
    }

    /// The same with a variable of the environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// The same in this folder.
    #[must_use]
    pub fn within(mut self, folder: &Path) -> Self {
        folder.clone_into(&mut self.folder);
        self
    }

    /// The same in a network namespace.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// The same, started by a program that becomes it: its name and its arguments before those of the executable.
    #[must_use]
    pub fn through(mut self, starter: &[&str]) -> Self {
        self.starter = starter.iter().map(OsString::from).collect();
        self
    }

    /// The same with another executable than that under test.
    #[must_use]
    pub fn executable(mut self, path: &Path) -> Self {
        self.path = Some(path.to_owned());
        self
    }

    fn free_port(self, flag: &str) -> Self {
        self.with(flag, "127.0.0.1:0")
    }

    /// The command that starts it.
    pub fn command(&self) -> Command {
        let executable = self.path.clone().unwrap_or_else(|| binaries::path(self.executable.name()));
        let line: Vec<_> = self.starter.iter().cloned().chain([executable.into_os_string()]).collect();
        let mut command = namespace::command(self.namespace.as_deref(), &line[0]);
        command.args(&line[1..]);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("BERTH_") || VARIABLES.contains(&&*text) {
                command.env_remove(&name);
            }
        }
        command.current_dir(&self.folder).args(&self.words);
        for (flag, value) in &self.flags {
            command.arg(flag).args(value);
        }
        command.env(NO_NAME_SERVER.0, NO_NAME_SERVER.1);
        // Without a state directory of its own, a scheduler stores its token in the user's.
        command.env("XDG_STATE_HOME", user_state()).env("LOCALAPPDATA", user_state());
        command.envs(self.environment.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        command
    }

    /// Starts it.
    pub fn start(&self) -> Service {
        let mut command = self.command();
        let mut child = Process::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let (log, printed) = (Log::default(), Arc::new(Mutex::new(String::new())));
        let errors = child.stderr.take().expect("it is piped");
        std::thread::spawn({
            let log = log.clone();
            move || log.fill(errors)
        });
        let output = child.stdout.take().expect("it is piped");
        std::thread::spawn({
            let printed = printed.clone();
            move || fill(output, &printed)
        });
        Service { name: self.executable.name(), child, log, printed, begun: Instant::now() }
    }

    /// Runs it to its end and gives its exit code, standard output and standard error.
    pub fn run(&self) -> Ended {
        let mut service = self.start();
        let code = service.ended(LIMIT).code();
        // The readers see the end of the pipes a little later than this thread sees the end of the process.
        eventually("both outputs were read to their end", LIMIT, || {
            (Arc::strong_count(&service.printed) == 1 && service.log.is_complete()).then_some(())
        });
        Ended { code, output: service.printed(), errors: service.log.text() }
    }
}

/// What an executable left behind.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub output: String,
    /// Standard error.
    pub errors: String,
}

/// The folder for the user's state, which is not that of the user who runs the tests.
pub fn user_state() -> PathBuf {
    crate::repository().join("target/state-of-tests")
}

/// A running executable. Dropping this ends it.
#[derive(Debug)]
pub struct Service {
    name: &'static str,
    child: Process,
    log: Log,
    printed: Arc<Mutex<String>>,
    begun: Instant,
}

impl Service {
    /// The address of a service, as soon as it is served.
    pub fn address_of(&mut self, service: &str) -> SocketAddr {
        let line = self
            .line(&format!("{service} is served"), |line| line["message"] == "serving" && line["service"] == service);
        line["address"].as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no address in {line}"))
    }

    /// The address of the only service.
    pub fn address(&mut self) -> SocketAddr {
        self.address_of(self.name)
    }

    /// The address of the admin pages.
    pub fn admin(&mut self) -> SocketAddr {
        let prefix = "admin pages on http://";
        let line = self.line("admin pages", |line| message(line).starts_with(prefix));
        let address = message(&line).trim_start_matches(prefix);
        address.parse().unwrap_or_else(|_| panic!("no address in {line}"))
    }

    /// The first log line that fits, as soon as it is there.
    pub fn line(&mut self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            // Lines of a process that has ended may not be read yet.
            let complete = self.log.is_complete();
            if let Some(line) = self.log.lines().iter().find(|line| fits(line)) {
                return line.clone();
            }
            let ended = self.child.try_wait().expect("a child can be asked");
            let late = begun.elapsed() > scaled(LIMIT);
            assert!(!complete && !late, "{}: no line: {what} (ended: {ended:?})\n{}", self.name, self.log.text());
            companion::check();
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// The log lines up to now that contain this text.
    pub fn lines_with(&self, text: &str) -> Vec<String> {
        let lines = self.log.lines();
        lines.iter().map(Value::to_string).filter(|line| line.contains(text)).collect()
    }

    /// The whole log up to now.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// What it printed up to now.
    pub fn printed(&self) -> String {
        lock(&self.printed).clone()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How long ago it was started.
    pub fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        self.child.is_running()
    }

    /// Waits until the admin pages call it ready.
    pub fn ready(&mut self) {
        let admin = self.admin();
        eventually("ready", LIMIT, || (http::get("/readyz").send(admin).ok()?.status == 200).then_some(()));
    }

    /// What the admin pages answer to a request for reloading.
    pub fn reload(&mut self) -> Response {
        http::post("/v1/reload", "").ask(self.admin())
    }

    /// Why the admin pages call it not ready; empty when it is.
    pub fn reasons(&mut self) -> String {
        let value = http::get("/readyz").ask(self.admin()).value();
        if value["ready"] == json!(true) { String::new() } else { value["reasons"].to_string() }
    }

    /// Sends it a signal (`TERM`, `INT`, `HUP`, …).
    pub fn signal(&self, signal: &str) {
        self.child.signal(signal);
    }

    /// Waits for its end, and until its log was read.
    pub fn ended(&mut self, limit: Duration) -> ExitStatus {
        let ended = self.child.ended_within(limit);
        let status =
            ended.unwrap_or_else(|| panic!("{} runs on after {:?}\n{}", self.name, scaled(limit), self.log.text()));
        self.read_out();
        status
    }

    /// Waits until the log was read to its end, a moment after that of the process. A child that it left may hold the log open.
    fn read_out(&self) {
        let begun = Instant::now();
        while !self.log.is_complete() && begun.elapsed() < scaled(HELD_OPEN) {
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Asks it to stop; it has to end well. Gives the time that it took.
    pub fn stop(&mut self) -> Duration {
        let begun = Instant::now();
        // Wine makes a Ctrl-C of SIGINT; SIGTERM has no equal on Windows.
        let signal = if binaries::are_for_windows() { "INT" } else { "TERM" };
        self.signal(signal);
        let ended = self.child.ended_within(LIMIT);
        let took = begun.elapsed();
        self.read_out();
        let code = ended.and_then(|status| status.code());
        assert_eq!(code, Some(0), "{} after SIG{signal}: {ended:?}\n{}", self.name, self.log.text());
        took
    }

    /// Ends it without a word.
    pub fn kill(&mut self) {
        self.child.end();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "--- log of {}\n{}---", self.name, self.log.text());
        }
    }
}

/// The lines of a log, while they come in.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Lines>>);

#[derive(Debug, Default)]
struct Lines {
    lines: Vec<Value>,
    complete: bool,
}

impl Log {
    fn fill(&self, from: impl Read) {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            let text = String::from_utf8_lossy(&line).into_owned();
            let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
            lock(&self.0).lines.push(value);
        }
        lock(&self.0).complete = true;
    }

    fn lines(&self) -> Vec<Value> {
        lock(&self.0).lines.clone()
    }

    fn is_complete(&self) -> bool {
        lock(&self.0).complete
    }

    fn text(&self) -> String {
        let lines = self.lines();
        let text = |line: &Value| line.as_str().map_or_else(|| line.to_string(), ToOwned::to_owned) + "\n";
        lines.iter().map(text).collect()
    }
}

fn message(line: &Value) -> &str {
    line["message"].as_str().unwrap_or_default()
}

fn fill(mut from: impl Read, to: &Mutex<String>) {
    let mut bytes = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        lock(to).push_str(&String::from_utf8_lossy(&bytes[..length]));
    }
}

/// A thread that panicked while it held the lock left whole lines all the same.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
