//! `agent leave`: takes this host out of the cluster for good, once what runs on it runs elsewhere.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bollard::query_parameters::{InspectContainerOptions, StopContainerOptionsBuilder};
use engine::{ASK_TIME, Engine};
use hyper::{Method, StatusCode};
use process::Failure;
use process::command::ask_page;
use scheduler::DrainQuestion;
use serde_json::Value;

use crate::emptying::{Emptying, Look, listed, names, waited};
use crate::enroll::{finish, progress};

/// Longest wait for an answer: the agent finishes what it is just writing to etcd first, and each of its members may take
/// some seconds not to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Pause between two looks at what is left. The agent has units leave for 30 s after each.
const LOOK: Duration = Duration::from_secs(1);

/// How long a container has to end by itself: Docker's own default.
const GRACE: Duration = Duration::from_secs(10);

/// Take this host out of the cluster, once its units of stacks run elsewhere
///
/// What runs here is listed before anything starts, with the hosts to which schedulers would move it, and why the rest stays. Units of
/// stacks are started on other hosts by the schedulers, each before the old one is stopped; then the other hosts drop this one, and its
/// agent stops. If this command is ended meanwhile, the host stays, and its units that have moved, too. What no stack has is in the way:
/// remove what schedulers have placed (`scheduler rm`), and stop the others, by yourself or with --force-unmanaged. With --now the host
/// leaves at once, whatever runs here, and nothing is touched. The agent wants its token for this, which stands in its state directory and
/// which this command reads by itself, as root or the user that the agent runs as. What starts the agent again brings the host back: let
/// its unit restart it after failures only (Restart=on-failure), and disable the unit (systemctl disable berth).
#[derive(clap::Args)]
pub(crate) struct Leave {
    /// Leave at once although containers run here
    #[arg(long, conflicts_with_all = ["dry_run", "force_unmanaged", "timeout"])]
    now: bool,

    /// Say what would be moved and what is in the way, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Stop what no scheduler has placed (Docker Engine of this machine, `DOCKER_HOST`), but for containers of etcd and of Berth
    #[arg(long)]
    force_unmanaged: bool,

    /// Seconds to wait for units of stacks to run elsewhere; after that the host stays [default: without end]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,

    /// The admin address of the agent
    #[arg(long, value_name = "ADDRESS", env = "BERTH_ADMIN")]
    admin: Option<SocketAddr>,

    #[command(flatten)]
    question: DrainQuestion,
}

/// What runs on this host, by names of containers.
#[derive(Debug, Default, PartialEq, Eq)]
struct Left {
    host: String,
    /// Units of stacks.
    units: Vec<String>,
    /// Placed by schedulers without a stack.
    placed: Vec<String>,
    /// Placed by none.
    others: Vec<String>,
}

impl Leave {
    /// Asks, and prints what came of it; `port` is the default admin port on loopback. The exit code is 1 when the host stays.
    pub(crate) fn run(&self, port: u16) -> ExitCode {
        let admin = self.admin.unwrap_or_else(|| (IpAddr::V4(Ipv4Addr::LOCALHOST), port).into());
        finish(self.leave(admin))
    }

    fn leave(&self, admin: SocketAddr) -> Result<String, Failure> {
        if self.now {
            return leave(admin, true);
        }
        let left = Left::on(admin, false)?;
        progress(left.described(self.force_unmanaged).trim_end());
        if !left.units.is_empty() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let plan = runtime.block_on(self.question.plan(&left.host, true));
            progress(DrainQuestion::described(&plan).trim_end());
        }
        left.may_leave(self.force_unmanaged)?;
        if self.dry_run {
            return Ok(String::new());
        }
        if !left.others.is_empty() {
            // Before anything moves.
            reach_engine()?;
        }
        let mut left = self.wait(admin, left)?;
        left.may_leave(self.force_unmanaged)?;
        let mut stays = false;
        if !left.others.is_empty() {
            stays = stop(admin, &left.others)?;
            left = self.wait(admin, left)?;
            left.may_leave(true)?;
        }
        // What was started meanwhile is in the way again, if nothing was meant to stay.
        leave(admin, stays)
    }

    /// Has units of stacks run elsewhere, and waits until none is left. From then on schedulers place nothing here, for some time.
    fn wait(&self, admin: SocketAddr, mut left: Left) -> Result<Left, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (begun, mut emptying, mut said) = (Instant::now(), Emptying::default(), None);
        loop {
            let before = begun.elapsed();
            left = Left { host: left.host, ..Left::on(admin, true)? };
            let units: BTreeSet<String> = left.units.iter().cloned().collect();
            let answer =
                if emptying.asks(&units, before) { runtime.block_on(self.question.left(&left.host)) } else { None };
            let waits = match emptying.look(&units, answer.as_ref(), before) {
                Look::Empty => {
                    // It only says that it is one of a stack.
                    left.others.append(&mut left.units);
                    return Ok(left);
                }
                Look::Stays(stays) => {
                    return Err(format!("{} stays, since it is not empty{}", left.host, listed(&stays)).into());
                }
                Look::Waits(units) => units,
            };
            let units = waited(&waits);
            if !waits.is_empty() && said.as_ref() != Some(&units) {
                progress(&format!("{}: {} containers of stacks left: {units}", left.host, waits.len()));
                said = Some(units.clone());
            }
            if self.timeout.is_some_and(|seconds| begun.elapsed() >= Duration::from_secs(seconds)) {
                let seconds = begun.elapsed().as_secs();
                let problem = format!("after {seconds} s {} is not empty, and stays", left.host);
                return Err(
                    format!("{problem}; `scheduler stacks` says what each unit waits for. Left are {units}").into()
                );
            }
            sleep(LOOK);
        }
    }
}

impl Left {
    /// What runs now; `begin` has units of stacks run elsewhere, for 30 s.
    fn on(admin: SocketAddr, begin: bool) -> Result<Self, Failure> {
        let (status, body) = ask(admin, &format!("{}?begin={begin}", live::leave::DRAIN_PATH))?;
        match status {
            StatusCode::OK => Ok(Self::read(&serde_json::from_str(&body).unwrap_or_default())),
            StatusCode::NOT_FOUND => Err(
                "the agent cannot have units run elsewhere: it is of an earlier version; drain the host, or give --now"
                    .into(),
            ),
            _ => Err(refusal(&body)),
        }
    }

    fn read(answer: &Value) -> Self {
        let names = |key: &str| {
            let names = answer[key].as_array().map_or(&[][..], |names| names);
            names.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let host = answer["host"].as_str().unwrap_or_default().to_owned();
        Self { host, units: names("units"), placed: names("placed"), others: names("others") }
    }

    fn described(&self, force: bool) -> String {
        let mut text = format!("{} leaves the cluster\n", self.host);
        let unmanaged =
            if force { "stopped, but for those of etcd and Berth" } else { "in the way, placed by no scheduler" };
        for (what, all) in [
            ("run elsewhere first, units of stacks", &self.units),
            ("in the way, placed without a stack", &self.placed),
            (unmanaged, &self.others),
        ] {
            if !all.is_empty() {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{what}: {}", names(all.iter()));
            }
        }
        text
    }

    /// Fails with what is in the way.
    fn may_leave(&self, force: bool) -> Result<(), Failure> {
        if !self.placed.is_empty() {
            let all = names(self.placed.iter());
            return Err(format!(
                "{all} would be lost to the others: `scheduler rm`, or leave all the same: agent leave --now"
            )
            .into());
        }
        if !self.others.is_empty() && !force {
            let all = names(self.others.iter());
            let way = "stop them, or give --force-unmanaged, or leave all the same: agent leave --now";
            return Err(format!(
                "{} containers run here that no scheduler has placed ({all}): {way}",
                self.others.len()
            )
            .into());
        }
        Ok(())
    }
}

/// Has the agent leave and stop.
fn leave(admin: SocketAddr, now: bool) -> Result<String, Failure> {
    match ask(admin, &format!("{}?now={now}", live::leave::PATH))? {
        (StatusCode::OK, text) => Ok(text),
        (_, text) => Err(refusal(&text)),
    }
}

/// What the agent said, as the text of an error.
fn refusal(text: &str) -> Failure {
    text.trim_end().trim_start_matches("error: ").to_owned().into()
}

/// Asks with the agent's token, if it wants it.
fn ask(admin: SocketAddr, path: &str) -> Result<(StatusCode, String), Failure> {
    let ask = |token: Option<&str>| ask_page(Method::POST, admin, path, token, ANSWER_LIMIT);
    let answer = match ask(None) {
        // It has done nothing yet, and names the file with the token.
        Ok((StatusCode::UNAUTHORIZED, body)) => {
            let token = token(&body).map_err(|why| format!("the agent at {admin} wants its token: {why}"))?;
            ask(Some(&token))
        }
        answer => answer,
    };
    answer.map_err(|problem| {
        format!("no agent answers at {admin}: {problem}. Does it run? Its admin address is given with --admin").into()
    })
}

/// The token in the file that an agent names.
fn token(body: &str) -> Result<String, String> {
    let body: Value = serde_json::from_str(body).map_err(|_| "it names no file".to_owned())?;
    let file = body["token_file"].as_str().ok_or("it names no file")?;
    process::token::offered(Path::new(file), live::leave::TOKEN_FILE).map_err(|why| {
        format!("{file} cannot be used: {why}; type this as root or an administrator, in its container if it has one")
    })
}

/// The engine of this machine.
fn engine() -> Result<Engine, Failure> {
    let (endpoint, certificates) = live::follow::reach(&live::config::Engine::Local, None)?;
    Ok(Engine::new(endpoint, certificates))
}

/// Fails if the engine does not answer that is to stop what no scheduler has placed.
fn reach_engine() -> Result<(), Failure> {
    let (runtime, engine) = (tokio::runtime::Builder::new_current_thread().enable_all().build()?, engine()?);
    let answered = runtime.block_on(engine.ask(ASK_TIME, |docker| async move { docker.ping().await }));
    answered.map(drop).map_err(|error| {
        format!(
            "--force-unmanaged: the engine of this machine (DOCKER_HOST) does not answer: {error}; nothing was changed"
        )
        .into()
    })
}

/// Stops containers, but for those of etcd and of Berth; whether there are such.
fn stop(admin: SocketAddr, all: &[String]) -> Result<bool, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let engine = engine()?;
    let mut stays = false;
    for name in all {
        // Each may take a while, and nothing is to be placed here meanwhile.
        Left::on(admin, true)?;
        stays |= !runtime.block_on(stop_one(&engine, name))?;
    }
    Ok(stays)
}

/// Stops a container, unless it is one of etcd or of Berth.
async fn stop_one(engine: &Engine, name: &str) -> Result<bool, Failure> {
    let none = None::<InspectContainerOptions>;
    let found = engine.ask(ASK_TIME, |docker| async move { docker.inspect_container(name, none).await }).await?;
    let image = found.config.and_then(|config| config.image).unwrap_or_default();
    if is_own(&image) {
        progress(&format!("{name} stays, since it is one of {image}"));
        return Ok(false);
    }
    progress(&format!("stopping {name}"));
    let seconds = i32::try_from(GRACE.as_secs()).unwrap_or(i32::MAX);
    let options = StopContainerOptionsBuilder::default().t(seconds).build();
    engine.ask(GRACE + ASK_TIME, |docker| async move { docker.stop_container(name, Some(options)).await }).await?;
    Ok(true)
}

/// Whether an image is etcd's or Berth's: without them nothing could leave.
fn is_own(image: &str) -> bool {
    let path = image.split('@').next().unwrap_or_default();
    let mut words = path.rsplit('/');
    let last = words.next().unwrap_or_default().split(':').next().unwrap_or_default();
    last == "etcd" || last == "berth" || words.any(|word| word == "berth")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_no_stack_has_is_in_the_way_unless_it_may_be_stopped() {
        let left = |units: &[&str], placed: &[&str], others: &[&str]| {
            Left::read(&json!({ "host": "a", "units": units, "placed": placed, "others": others }))
        };
        assert!(left(&["web-1"], &[], &[]).may_leave(false).is_ok());
        assert!(left(&[], &["job"], &[]).may_leave(true).is_err());
        let mine = left(&["web-1"], &[], &["mine"]);
        assert!(mine.may_leave(false).unwrap_err().to_string().contains("--force-unmanaged"));
        assert!(mine.may_leave(true).is_ok());
        let text = mine.described(true);
        assert_eq!(
            text,
            "a leaves the cluster\nrun elsewhere first, units of stacks: web-1\nstopped, but for those of etcd and Berth: mine\n"
        );
    }

    #[test]
    fn etcd_and_berth_are_not_stopped() {
        for (image, own) in [
            ("quay.io/coreos/etcd:v3.5.16", true),
            ("etcd", true),
            ("berth/agent:0.1.0", true),
            ("registry:5000/berth/dns@sha256:00", true),
            ("nginx", false),
            ("example.org/etcd/web", false),
        ] {
            assert_eq!(is_own(image), own, "{image}");
        }
    }
}
