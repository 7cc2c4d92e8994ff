//! `agent up --user`: what containers talk to runs as another user, and what has the engine's socket is a process of its own, as are
//! what may change addresses ([`broker`]) and, with `--network`, what keeps the network between hosts.
//!
//! Everything happens before there are threads, sockets or a log. The process that was started goes on as the service,
//! with its number, its signals and its exit code; the others are its children, and end when it does.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use engine::Endpoint;
use live::Origin;
use live::config::Engine;
use platform::privilege::{self, Capability, User};
use platform::stop::RestartEvents;
use process::{Failure, ProcessOptions, StateOptions, launch};

use crate::companion::{Companion, end_with_starter, say_state, this_program};
use crate::enroll::finish;
use crate::network::{Keep, NO_STATE};
use crate::{Up, broker};

/// Longest wait for the proxy to listen.
const START_LIMIT: Duration = Duration::from_secs(10);
const START_INTERVAL: Duration = Duration::from_millis(10);

/// Becomes the user of the options, if they name one; before that, starts the proxy and leads the options to it, the broker, and what
/// keeps the network. The broker alone, if this is another user's process that was given `NET_ADMIN`.
///
/// # Errors
///
/// Fails if there is no such user, this process is not root's, or one of the others does not start.
pub(crate) fn separate(up: &mut Up) -> Result<Vec<Companion>, Failure> {
    platform::handover::keep_to_itself();
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
    if std::mem::take(&mut up.network) {
        up.state
            .state_dir
            .as_deref()
            .ok_or(NO_STATE)
            .map_err(Failure::from)
            .and_then(|folder| beside(folder, user))
            .map_err(failed)?;
        companions.push(network().map_err(failed)?);
    }
    broker::start(&services, Some(user)).map_err(failed)?;
    privilege::become_user(user, Capability::Ports).map_err(wrong)?;
    Ok(companions)
}

/// What keeps the network: this command once more, as root.
fn network() -> Result<Companion, Failure> {
    let mut command = this_program()?;
    let mut words = std::env::args_os().skip(1);
    // Behind `up`, since the last word may be a file behind `--`.
    command.args(words.next()).arg("--only-network").args(words).stdout(Stdio::piped());
    Companion::start("the process that keeps the network", command)
}

/// Keeps the network of these options as long as the process that has started this one, and says on standard output how it is.
pub(crate) fn only_network(up: Up) -> ExitCode {
    let Up { file, mut live, state, run_as, scheduler_options, process, .. } = up;
    let prepared = live.origin(file).and_then(|origin| {
        let user = run_as
            .map_or_else(|| Err(Failure::from("--only-network is for --user")), |name| Ok(privilege::user(&name)?))?;
        Ok((origin, beside(&state.state_dir.ok_or(NO_STATE)?, user)?))
    });
    let (origin, folder) = match prepared {
        Ok(prepared) => prepared,
        Err(failure) => return finish(Err(failure)),
    };
    live.source = Some(origin);
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
    let state = StateOptions { state_dir: Some(folder) };
    let keep = Keep::of(live, state, scheduler_options.docker_certs, process);
    launch(&keep.process.clone(), |launch| {
        end_with_starter(launch.stop.clone());
        let (readiness, stop) = (launch.readiness.clone(), launch.stop.clone());
        async move {
            // A request to all processes of the agent to start again does not mean this one.
            let _ignored = RestartEvents::new()?;
            tokio::spawn(stop.run_until_cancelled_owned(say_state(readiness)));
            keep.serve(launch).await
        }
    })
}

/// The folder beside that of the agent's state. What root undoes is not for the user that containers talk to, so it is no folder of that
/// user's, nor in one.
fn beside(folder: &Path, user: User) -> Result<PathBuf, Failure> {
    let folder = std::path::absolute(folder)?;
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Err(
            format!("--state-dir {}: name a folder below the root, without `..` at its end", folder.display()).into()
        );
    };
    for above in parent.ancestors() {
        if privilege::owns(user, above)? {
            return Err(format!(
                "--state-dir {}: {} belongs to the user of --user, who could put something else in place of the state of the network",
                folder.display(),
                above.display()
            )
            .into());
        }
    }
    let mut name = name.to_owned();
    name.push("-network");
    Ok(parent.join(name))
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
    let mut command = this_program()?;
    command.args(["engine-proxy", "--attached", &format!("--docker=unix://{socket}")]);
    command.args(["--listen", &format!("unix://{}", listening(folder)), "--group", &user.group.to_string()]);
    if let Some(policy) = policy {
        command.arg("--policy").arg(policy);
    }
    command.stdout(Stdio::null());
    let proxy = Companion::start("the process with the engine's socket", command)?;
    let begun = Instant::now();
    while !Path::new(&listening(folder)).exists() {
        if let Err(ended) = proxy.look() {
            let _ = std::fs::remove_dir(folder);
            return Err(ended);
        }
        if begun.elapsed() > START_LIMIT {
            proxy.kill()?;
            return Err("the process with the engine's socket does not start".into());
        }
        std::thread::sleep(START_INTERVAL);
    }
    Ok(proxy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_the_network_is_beside_that_of_the_agent_however_it_is_written() {
        let user = User { id: 64_123, group: 64_123 };
        for written in ["/nowhere/berth", "/nowhere/berth/", "/nowhere/berth/.", "//nowhere/./berth//"] {
            assert_eq!(beside(Path::new(written), user).unwrap(), Path::new("/nowhere/berth-network"), "{written}");
        }
        for written in ["/", "/nowhere/.."] {
            assert!(beside(Path::new(written), user).is_err(), "{written}");
        }
    }
}
