//! `agent up --user`: what containers talk to runs as another user, and what has the engine's socket is a process of its own, as is
//! what may change addresses ([`broker`]).
//!
//! Everything happens before there are threads, sockets or a log. The process that was started goes on as the service,
//! with its number, its signals and its exit code; the engine proxy is its child, and ends when it does.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine::Endpoint;
use live::Origin;
use live::config::Engine;
use platform::privilege::{self, Capability, User};
use process::Failure;
use tokio_util::sync::CancellationToken;

use crate::{Up, broker};

/// Longest wait for the proxy to listen.
const START_LIMIT: Duration = Duration::from_secs(10);
const START_INTERVAL: Duration = Duration::from_millis(10);

/// How often it is looked whether the proxy still runs.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Longest wait at the end for the proxy, which has only its socket to remove.
const END_LIMIT: Duration = Duration::from_secs(2);

/// The engine proxy. It ends when this process does, which holds its standard input open.
pub(crate) struct Proxy(Arc<Mutex<Child>>);

impl Proxy {
    /// Watches it until `stop`.
    ///
    /// # Errors
    ///
    /// Fails when it ends before.
    pub(crate) fn watch(&self, stop: CancellationToken) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        let child = self.0.clone();
        async move {
            let mut turns = tokio::time::interval(LOOK_INTERVAL);
            while stop.run_until_cancelled(turns.tick()).await.is_some() {
                if let Some(status) = locked(&child).try_wait()? {
                    return Err(ended(status));
                }
            }
            Ok(())
        }
    }

    /// Ends it once the services have ended, and waits for that.
    pub(crate) fn finish(&self) {
        let mut child = locked(&self.0);
        drop(child.stdin.take());
        let begun = Instant::now();
        while matches!(child.try_wait(), Ok(None)) && begun.elapsed() < END_LIMIT {
            std::thread::sleep(START_INTERVAL);
        }
    }
}

/// A panic elsewhere leaves nothing half done here.
fn locked(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ended(status: ExitStatus) -> Failure {
    format!("the process with the engine's socket ended ({status})").into()
}

/// Becomes the user of the options, if they name one; before that, starts the proxy and leads the options to it, and the broker. The
/// broker alone, if this is another user's process that was given `NET_ADMIN`.
///
/// # Errors
///
/// Fails if there is no such user, this process is not root's, or the proxy does not start.
pub(crate) fn separate(up: &mut Up) -> Result<Option<Proxy>, Failure> {
    let services = up.service_addresses();
    let Some(name) = &up.run_as else {
        // As the unit of the packages starts it. Changing routes needs more than a broker does.
        if !up.network && privilege::has_network_alone()? {
            broker::start(&services, None)?;
            privilege::give_up_network()?;
        }
        return Ok(None);
    };
    let wrong = |error: std::io::Error| format!("--user {name}: {error}");
    let user = privilege::user(name).map_err(wrong)?;
    let origin = up.live.origin(up.file.clone())?;
    let certificates = up.scheduler_options.docker_certs.as_deref();
    let engine = up.live.engine(&origin).map(|engine| live::follow::reach(engine, certificates)).transpose()?;
    let proxy = match engine {
        Some((Endpoint::Local(socket), _)) => {
            let folder = format!("/run/berth-engine.{}", std::process::id());
            let proxy = start(&socket, &folder, user, up.scheduler_options.policy.as_deref());
            let proxy = proxy.map_err(|failure| format!("--user {name}: {failure}"))?;
            let behind = Engine::At(Endpoint::Local(listening(&folder)));
            up.live.docker.engine = Some(behind.clone());
            if matches!(origin, Origin::Docker(_)) {
                up.live.source = Some(Origin::Docker(behind));
            }
            Some(proxy)
        }
        // Not on this machine, so there is no socket to keep from anyone.
        _ => None,
    };
    if let Some(folder) = &up.state.state_dir {
        // One that is there may be that user's already.
        let made = if folder.is_dir() { Ok(()) } else { platform::file::create_private_folder(folder) };
        made.and_then(|()| privilege::hand_over(user, folder))
            .map_err(|error| format!("--user {name}: {}: {error}", folder.display()))?;
    }
    broker::start(&services, Some(user)).map_err(|failure| format!("--user {name}: {failure}"))?;
    privilege::become_user(user, Capability::Ports).map_err(wrong)?;
    Ok(proxy)
}

/// Where the proxy listens.
fn listening(folder: &str) -> String {
    format!("{folder}/engine.sock")
}

fn start(socket: &str, folder: &str, user: User, policy: Option<&Path>) -> Result<Proxy, Failure> {
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
    // What the service manager learns comes from this process.
    command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC").stdin(Stdio::piped()).stdout(Stdio::null());
    privilege::in_own_group(&mut command);
    let mut child = command.spawn()?;
    let begun = Instant::now();
    while !Path::new(&listening(folder)).exists() {
        if let Some(status) = child.try_wait()? {
            let _ = std::fs::remove_dir(folder);
            return Err(ended(status));
        }
        if begun.elapsed() > START_LIMIT {
            child.kill()?;
            return Err("the process with the engine's socket does not start".into());
        }
        std::thread::sleep(START_INTERVAL);
    }
    Ok(Proxy(Arc::new(Mutex::new(child))))
}
