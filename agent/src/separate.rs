//! `agent up --user`: what containers talk to runs as another user, and what has the engine's socket is a process of its own, as are
//! what may change addresses ([`broker`]) and, with `--network`, what keeps the network between hosts.
//!
//! Everything happens before there are threads, sockets or a log. The process that was started goes on as the service,
//! with its number, its signals and its exit code; the others are its children, and end when it does.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine::Endpoint;
use live::Origin;
use live::config::Engine;
use platform::privilege::{self, Capability, User};
use process::{Failure, ProcessOptions, StateOptions, launch};
use tokio_util::sync::CancellationToken;

use crate::enroll::finish;
use crate::network::Keep;
use crate::{Up, broker};

/// Longest wait for the proxy to listen.
const START_LIMIT: Duration = Duration::from_secs(10);
const START_INTERVAL: Duration = Duration::from_millis(10);

/// How often it is looked whether the proxy still runs.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Longest wait at the end for the proxy, which has only its socket to remove.
const END_LIMIT: Duration = Duration::from_secs(2);

/// A process beside this one. It ends when this process does, which holds its standard input open.
pub(crate) struct Companion {
    /// What it is, at the beginning of a sentence.
    what: &'static str,
    child: Arc<Mutex<Child>>,
}

impl Companion {
    fn start(what: &'static str, mut command: Command) -> Result<Self, Failure> {
        // What the service manager learns comes from this process.
        command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC").stdin(Stdio::piped()).stdout(Stdio::null());
        privilege::in_own_group(&mut command);
        Ok(Self { what, child: Arc::new(Mutex::new(command.spawn()?)) })
    }

    /// Fails if it has ended.
    fn look(&self) -> Result<(), Failure> {
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
        async move {
            let mut turns = tokio::time::interval(LOOK_INTERVAL);
            while stop.run_until_cancelled(turns.tick()).await.is_some() {
                watched.look()?;
            }
            Ok(())
        }
    }

    /// Ends it once the services have ended, and waits for that.
    pub(crate) fn finish(&self) {
        let mut child = locked(&self.child);
        drop(child.stdin.take());
        let begun = Instant::now();
        while matches!(child.try_wait(), Ok(None)) && begun.elapsed() < END_LIMIT {
            std::thread::sleep(START_INTERVAL);
        }
    }
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

/// Becomes the user of the options, if they name one; before that, starts the proxy and leads the options to it, the broker, and what
/// keeps the network. The broker alone, if this is another user's process that was given `NET_ADMIN`.
///
/// # Errors
///
/// Fails if there is no such user, this process is not root's, or one of the others does not start.
pub(crate) fn separate(up: &mut Up) -> Result<Vec<Companion>, Failure> {
    let services = up.service_addresses();
    let Some(name) = up.run_as.clone() else {
        // As the unit of the packages starts it. Changing routes needs more than a broker does.
        if !up.network && privilege::passes_network_on()? {
            broker::start(&services, None)?;
            // That unit forbids the system call that changes what a process may do itself.
            privilege::pass_network_on_no_more()?;
            return Err(platform::broker::run_again().into());
        }
        return Ok(Vec::new());
    };
    let wrong = |error: io::Error| format!("--user {name}: {error}");
    let user = privilege::user(&name).map_err(wrong)?;
    let failed = |failure: Failure| format!("--user {name}: {failure}");
    let origin = up.live.origin(up.file.clone())?;
    let certificates = up.scheduler_options.docker_certs.as_deref();
    let engine = up.live.engine(&origin).map(|engine| live::follow::reach(engine, certificates)).transpose()?;
    let mut companions = Vec::new();
    if std::mem::take(&mut up.network) {
        companions.push(network().map_err(failed)?);
    }
    // One that is not on this machine has no socket to keep from anyone.
    if let Some((Endpoint::Local(socket), _)) = engine {
        let folder = format!("/run/berth-engine.{}", std::process::id());
        companions.push(proxy(&socket, &folder, user, up.scheduler_options.policy.as_deref()).map_err(failed)?);
        let behind = Engine::At(Endpoint::Local(listening(&folder)));
        up.live.docker.engine = Some(behind.clone());
        if matches!(origin, Origin::Docker(_)) {
            up.live.source = Some(Origin::Docker(behind));
        }
    }
    if let Some(folder) = &up.state.state_dir {
        // One that is there may be that user's already.
        let made = if folder.is_dir() { Ok(()) } else { platform::file::create_private_folder(folder) };
        made.and_then(|()| privilege::hand_over(user, folder))
            .map_err(|error| format!("--user {name}: {}: {error}", folder.display()))?;
    }
    broker::start(&services, Some(user)).map_err(failed)?;
    privilege::become_user(user, Capability::Ports).map_err(wrong)?;
    Ok(companions)
}

/// What keeps the network: this command once more, as root.
fn network() -> Result<Companion, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).arg("--only-network");
    Companion::start("the process that keeps the network", command)
}

/// Keeps the network of these options as long as the process that has started this one.
pub(crate) fn only_network(up: Up) -> ExitCode {
    let Up { file, mut live, state, scheduler_options, process, .. } = up;
    live.source = match live.origin(file) {
        Ok(origin) => Some(origin),
        Err(failure) => return finish(Err(failure)),
    };
    // What it undoes as root is not for the user that containers talk to.
    let state = StateOptions { state_dir: state.state_dir.map(|folder| beside(&folder)) };
    // The other process has the log and the addresses.
    let process = ProcessOptions {
        log: None,
        log_days: None,
        pid_file: None,
        add_address: false,
        serve_containers: false,
        keep_address: false,
        ..process
    };
    let keep = Keep::of(live, state, scheduler_options.docker_certs, process);
    launch(&keep.process.clone(), |launch| {
        end_with_starter(launch.stop.clone());
        keep.serve(launch)
    })
}

/// The folder beside another one for what keeps the network.
fn beside(folder: &Path) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push("-network");
    name.into()
}

/// Where the proxy listens.
fn listening(folder: &str) -> String {
    format!("{folder}/engine.sock")
}

fn proxy(socket: &str, folder: &str, user: User, policy: Option<&Path>) -> Result<Companion, Failure> {
    // Left by a process of this number that was killed.
    let _ = std::fs::remove_file(listening(folder));
    let _ = std::fs::remove_dir(folder);
    privilege::create_folder_for(user, Path::new(folder)).map_err(|error| format!("{folder}: {error}"))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["engine-proxy", "--attached", &format!("--docker=unix://{socket}")]);
    command.args(["--listen", &format!("unix://{}", listening(folder)), "--group", &user.group.to_string()]);
    if let Some(policy) = policy {
        command.arg("--policy").arg(policy);
    }
    let proxy = Companion::start("the process with the engine's socket", command)?;
    let begun = Instant::now();
    while !Path::new(&listening(folder)).exists() {
        if let Err(ended) = proxy.look() {
            let _ = std::fs::remove_dir(folder);
            return Err(ended);
        }
        if begun.elapsed() > START_LIMIT {
            locked(&proxy.child).kill()?;
            return Err("the process with the engine's socket does not start".into());
        }
        std::thread::sleep(START_INTERVAL);
    }
    Ok(proxy)
}
