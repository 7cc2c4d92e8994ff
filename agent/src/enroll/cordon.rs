//! `agent cordon` and `agent uncordon`: whether schedulers may place something new on a host.

use std::fmt::Write as _;
use std::process::ExitCode;

use live::intents::HostState;

use super::folder::Rights;
use super::intent::{self, IntentValue};
use super::names::{host_key, host_name, reason};
use super::operator::Operator;

/// Have schedulers place nothing new on a host
///
/// What runs there stays, with its names and addresses. A request that names the host is refused too, with the reason that is given
/// here. Metadata then returns the state inactive for the host. Typed again, it replaces the reason.
#[derive(clap::Args)]
pub(crate) struct Cordon {
    /// The host
    #[arg(value_parser = host_name)]
    host: String,

    /// Why, for those who are refused the host
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: Option<String>,

    #[command(flatten)]
    operator: Operator,
}

impl Cordon {
    pub(crate) fn run(&self) -> ExitCode {
        self.operator.run(Rights::Operator, async |client| {
            let said = intent::change(&client, &self.host, |intent| {
                // One that is being emptied, or is empty, gets nothing new already.
                let state = intent.state().unwrap_or(HostState::Cordoned);
                let kept = intent.reason().filter(|_| state != HostState::Cordoned).map(str::to_owned);
                intent.set_state(state, self.reason.as_ref().or(kept.as_ref()).map(String::as_str));
            })
            .await?;
            let what = match said.state() {
                Some(HostState::Draining) => "units of stacks leave it (agent uncordon ends that)",
                Some(HostState::Drained) => "nothing of stacks is left there",
                Some(HostState::Cordoned) | None => "what runs there stays",
            };
            let mut text = format!("{} is {}; {what}\n", self.host, described(&said));
            if client.get(host_key(&client.options().prefix, &self.host, "host").as_bytes()).await?.0.is_none() {
                let _ = writeln!(text, "note: no host {} is there now; it is cordoned when it comes", self.host);
            }
            Ok(text)
        })
    }
}

/// Let schedulers place on a host again
///
/// This also ends that the host is emptied; what was moved to other hosts stays there.
#[derive(clap::Args)]
pub(crate) struct Uncordon {
    /// The host
    #[arg(value_parser = host_name)]
    host: String,

    #[command(flatten)]
    operator: Operator,
}

impl Uncordon {
    pub(crate) fn run(&self) -> ExitCode {
        self.operator.run(Rights::Operator, async |client| {
            let (pair, _) = client.get(intent::key(&client.options().prefix, &self.host).as_bytes()).await?;
            let before = pair.map(|pair| IntentValue::read(&pair.value)).unwrap_or_default();
            if before.state().is_none() {
                return Ok(format!("{} was not cordoned\n", self.host));
            }
            intent::change(&client, &self.host, IntentValue::clear_state).await?;
            Ok(format!("{} is active again; it was {}\n", self.host, described(&before)))
        })
    }
}

/// The state that operators gave a host, with the author and the reason.
fn described(said: &IntentValue) -> String {
    said.described().unwrap_or_default()
}
