//! `agent drain`: what stacks have on a host is moved to others.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use etcd::{EtcdClient, EtcdError};
use live::intents::HostState;
use process::Failure;
use scheduler::DrainQuestion;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::folder::Rights;
use super::intent::{self, IntentValue};
use super::names::{host_key, host_name, reason};
use super::operator::Operator;
use super::outcome::{json as parsed, progress};
use crate::emptying::{Emptying, Look, listed, names, waited};

/// Pause between two looks at what is left.
const LOOK: Duration = Duration::from_millis(500);

/// The label by which schedulers mark containers of stacks. It is for this report alone: what is moved they know themselves.
const STACK_LABEL: &str = "io.berth.stack";

/// Move what stacks have on a host to other hosts, and wait until it is there
///
/// Each unit runs elsewhere before the old one is stopped. What fits on no other host stays. What no stack has stays too. A scheduler is
/// asked first what would go where, and why the rest stays, which is listed. If only such is left for a minute, it is listed again, and
/// the exit code is 1. Nothing new is placed on the host, as after `agent cordon`; `agent uncordon` ends it.
#[derive(clap::Args)]
pub(crate) struct Drain {
    /// The host
    #[arg(value_parser = host_name)]
    host: String,

    /// Why, for those who are refused the host
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: Option<String>,

    /// Return at once, and let the schedulers go on
    #[arg(short = 'd', long)]
    detach: bool,

    /// Seconds to wait; the schedulers go on after that [default: without end]
    #[arg(long, value_name = "SECONDS", conflicts_with = "detach")]
    timeout: Option<u64>,

    /// Say what would be moved and what would stay, and change nothing
    #[arg(long, conflicts_with_all = ["detach", "timeout"])]
    dry_run: bool,

    /// With --dry-run, print JSON
    #[arg(long, requires = "dry_run")]
    json: bool,

    #[command(flatten)]
    question: DrainQuestion,

    #[command(flatten)]
    operator: Operator,
}

/// How long a host is missed until it counts as gone: after an outage of etcd it needs a moment to publish itself again.
const GONE: Duration = Duration::from_secs(10);

/// What a host has.
#[derive(Debug, Default, PartialEq, Eq)]
struct Left {
    /// Units of stacks.
    units: BTreeSet<String>,
    /// What no stack has.
    others: BTreeSet<String>,
}

impl Drain {
    pub(crate) fn run(&self) -> ExitCode {
        self.operator.run(Rights::Operator, async |client| {
            let host = &self.host;
            if client.get(host_key(&client.options().prefix, host, "host").as_bytes()).await?.0.is_none() {
                return Err(format!("no host {host} is there: `agent hosts` lists those that are").into());
            }
            let before = Left::on(&client, host).await?;
            let plan = self.question.plan(host, !before.units.is_empty()).await;
            if self.json {
                return Ok(format!("{}\n", before.json(host, &plan)));
            }
            let described = DrainQuestion::described(&plan);
            if self.dry_run {
                let units = names(before.units.iter());
                return Ok(format!("stacks have on {host}: {units}\n{}{described}", before.stays()));
            }
            progress(described.trim_end());
            let said = intent::change(&client, host, |intent| {
                intent.set_state(HostState::Draining, self.reason.as_deref());
            })
            .await?;
            let described = said.described().unwrap_or_default();
            if self.detach {
                return Ok(format!("{host} is {described}\n{}", before.stays()));
            }
            let left = self.wait(&client, before).await?;
            let said = intent::change(&client, host, |intent| {
                // A state that another operator has set meanwhile stays.
                if intent.state() == Some(HostState::Draining) {
                    let reason = intent.reason().map(str::to_owned);
                    intent.set_state(HostState::Drained, reason.as_deref());
                }
            })
            .await?;
            if said.state() != Some(HostState::Drained) {
                return Err(self.is_ended(&said));
            }
            Ok(format!("{host} is {}\n{}", said.described().unwrap_or_default(), left.stays()))
        })
    }

    /// Waits until no unit of a stack is left, and says what is.
    async fn wait(&self, client: &EtcdClient, mut left: Left) -> Result<Left, Failure> {
        let (host, begun) = (&self.host, Instant::now());
        let (mut emptying, mut waits, mut is_silent) = (Emptying::default(), None, false);
        let mut gone_since = None;
        loop {
            let now = begun.elapsed();
            match self.look(client).await {
                Ok(found) => {
                    is_silent = false;
                    match found? {
                        Some(found) => (left, gone_since) = (found, None),
                        None => gone_since = gone_since.or(Some(now)),
                    }
                }
                Err(error @ EtcdError::Refused(_)) => return Err(error.into()),
                Err(error) => {
                    if !std::mem::replace(&mut is_silent, true) {
                        progress(&format!("{error}; the schedulers go on, and this command, once etcd answers"));
                    }
                }
            }
            if gone_since.is_some_and(|since| now >= since + GONE) {
                return Err(format!(
                    "{host} is gone, and what it had may run on: it stays draining, and is emptied once it is back. \
                     If the machine is off for good: agent evacuate {host} --dead"
                )
                .into());
            }
            if !is_silent && gone_since.is_none() {
                let answer = if emptying.asks(&left.units, now) { self.question.left(host).await } else { None };
                match emptying.look(&left.units, answer.as_ref(), now) {
                    Look::Empty => {
                        left.others.append(&mut left.units);
                        return Ok(left);
                    }
                    Look::Stays(stays) => {
                        return Err(format!(
                            "{host} is not empty, and stays draining: the schedulers go on when that changes{}",
                            listed(&stays)
                        )
                        .into());
                    }
                    Look::Waits(units) => {
                        if !units.is_empty() && waits.as_ref() != Some(&units) {
                            progress(&format!("{host}: {} containers of stacks left: {}", units.len(), waited(&units)));
                        }
                        waits = Some(units);
                    }
                }
            }
            if self.timeout.is_some_and(|seconds| begun.elapsed() >= Duration::from_secs(seconds)) {
                let seconds = begun.elapsed().as_secs();
                let units = waits.as_ref().map_or_else(|| names(left.units.iter()), waited);
                return Err(format!(
                    "after {seconds} s {host} is not empty, and stays draining: the schedulers go on, `scheduler stacks` says what each unit \
                     waits for, and `agent uncordon {host}` ends it. Left are {units}"
                )
                .into());
            }
            sleep(LOOK).await;
        }
    }

    /// What the host has now, `None` if it is gone; fails with the reason if it is not drained any more.
    async fn look(&self, client: &EtcdClient) -> Result<Result<Option<Left>, Failure>, EtcdError> {
        let (host, prefix) = (&self.host, &client.options().prefix);
        let (said, _) = client.get(intent::key(prefix, host).as_bytes()).await?;
        let said = said.map(|pair| IntentValue::read(&pair.value)).unwrap_or_default();
        if said.state() != Some(HostState::Draining) {
            return Ok(Err(self.is_ended(&said)));
        }
        let left = Left::on(client, host).await?;
        if client.get(host_key(prefix, host, "host").as_bytes()).await?.0.is_none() {
            return Ok(Ok(None));
        }
        Ok(Ok(Some(left)))
    }

    /// Another operator has changed the state of the host meanwhile.
    fn is_ended(&self, said: &IntentValue) -> Failure {
        let described = said.described().unwrap_or_else(|| "active again".to_owned());
        format!("{} is not drained any more: it is {described}; what has moved stays where it is", self.host).into()
    }
}

impl Left {
    async fn on(client: &EtcdClient, host: &str) -> Result<Self, EtcdError> {
        let prefix = host_key(&client.options().prefix, host, "containers/");
        let mut left = Self::default();
        for pair in client.list(prefix.as_bytes(), false).await?.pairs {
            left.count(&parsed(&pair.value));
        }
        Ok(left)
    }

    fn count(&mut self, container: &Value) {
        if runs(container) {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            if is_unit(container) { &mut self.units } else { &mut self.others }.insert(name);
        }
    }

    /// All of it, with what schedulers would do.
    fn json(&self, host: &str, plan: &Result<Value, String>) -> Value {
        let mut all = plan.clone().unwrap_or_else(|why| json!({ "host": { "name": host }, "error": why }));
        (all["units"], all["others"]) = (json!(self.units), json!(self.others));
        all
    }

    /// What no stack has, in words.
    fn stays(&self) -> String {
        if self.others.is_empty() {
            return String::new();
        }
        format!("what no stack has stays: {}\n", names(self.others.iter()))
    }
}

/// Whether a container has processes: one that was told to stop has, until it has ended.
fn runs(container: &Value) -> bool {
    matches!(container["state"].as_str(), Some("running" | "restarting" | "stopping"))
}

/// Whether a container that a host shows is a unit of a stack, and there.
pub(super) fn is_unit(container: &Value) -> bool {
    runs(container) && container["labels"][STACK_LABEL].is_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_to_stop_is_there_until_it_has_ended() {
        let mut left = Left::default();
        for (name, state) in
            [("a", "running"), ("b", "stopping"), ("c", "restarting"), ("d", "stopped"), ("e", "creating")]
        {
            left.count(&json!({"name": name, "state": state, "labels": {STACK_LABEL: "shop"}}));
            left.count(&json!({"name": format!("own-{name}"), "state": state, "labels": {}}));
        }
        let shown = (names(left.units.iter()), names(left.others.iter()));
        assert_eq!(shown, ("a, b, c".to_owned(), "own-a, own-b, own-c".to_owned()));
    }
}
