//! The subcommands that ask a running scheduler: `run`, `place`, `hosts`, `explain`, `ps`, `rm`, `logs`, `exec`, and those of stacks and catalogs; and
//! `ledger`, `backup` and `restore`, which work on the ledger itself.
//!
//! Tables go to standard output, progress and errors to standard error. The exit code is 0 when everything has its
//! place, 1 when something has none, could not be started or does not run, and 2 when the arguments or a file are wrong.
//!
//! With `--json` standard output is one JSON document, also on failure; the sentence for people stays on standard error.

mod amounts;
mod backup;
mod catalog;
pub(crate) mod client;
pub(crate) mod compose;
pub(crate) mod evacuate;
mod explain;
mod file;
mod hosts;
mod images;
mod inside;
mod ledger;
mod place;
mod placements;
mod ps;
mod rm;
mod run;
mod stack;
mod terminal;
mod variables;

use std::fmt;
use std::process::ExitCode;

use clap::Subcommand;
use hyper::Method;
use serde_json::{Value, json};

use crate::cli::backup::{MakeBackup, Restore};
use crate::cli::catalog::Catalog;
use crate::cli::client::{Answer, Ask, Client};
use crate::cli::explain::Explain;
use crate::cli::hosts::Hosts;
use crate::cli::images::Images;
use crate::cli::inside::{ByHand, Exec, Logs};
use crate::cli::ledger::Ledger;
use crate::cli::place::Place;
use crate::cli::ps::Ps;
use crate::cli::rm::Rm;
use crate::cli::run::Run;
use crate::cli::stack::change::{Down, OneStack, Pause, Rollback, Scale};
use crate::cli::stack::show::{Diff, History, Stacks};
use crate::cli::stack::up::{Plan, Up};
use crate::cli::terminal::{print_json, warn};

/// Exit code when something has no place.
const NO_PLACE: u8 = 1;

/// Exit code when what was given is wrong; clap's own.
const WRONG: u8 = 2;

/// What is asked of a running scheduler.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Find a host for a container, and start it there through the host's Docker Engine
    Run(Box<Run>),
    /// Find hosts for all requests in a file: a compose file, or requests in JSON or YAML
    Place(Place),
    /// Show hosts, what they have and what is free
    Hosts(Hosts),
    /// Say about every host whether a container fits, and why not
    Explain(Explain),
    /// Show what was promised and started, and how it is now
    Ps(Ps),
    /// Stop and remove containers that were started, and give their room back
    Rm(Rm),
    /// Show what containers of a service write, on whichever hosts they are
    Logs(Logs),
    /// Run a command in a container of a service, on whichever host it is
    Exec(Exec),
    /// Show what engines say of containers of a service, as JSON; variables have no values
    Inspect(ByHand),
    /// Stop containers of a service and start the same ones again
    Restart(ByHand),
    /// Stop containers and keep them, until `restart` or `rm`; a stack is scaled instead
    Stop(ByHand),
    /// Remove old images from hosts
    Images(Images),
    /// Say what would change if a file were brought up: units, hosts, order; changes nothing
    Plan(Plan),
    /// Have what a file describes run, and stay so
    Up(Up),
    /// Stacks from the templates of a catalog: list them, show what one asks, bring one up
    Catalog(Catalog),
    /// Stop and remove all of a stack
    #[command(after_help = "Volumes with names stay on their hosts without --volumes.

Examples:
  scheduler down shop --volumes --dry-run
  scheduler down shop --volumes")]
    Down(Down),
    /// Have another number of units of services run
    Scale(Scale),
    /// Go back to an older revision of a stack
    Rollback(Rollback),
    /// Leave a stack as it is until `resume`
    Pause(Pause),
    /// Go on with a stack
    Resume(OneStack),
    /// Remove what an update with `confirm` has left stopped
    Confirm(OneStack),
    /// Show stacks, or the units of one
    Stacks(Stacks),
    /// Show the revisions of a stack
    History(History),
    /// Show what differs between two revisions of a stack
    Diff(Diff),
    /// Work on a ledger in etcd, without a scheduler
    Ledger(Ledger),
    /// Write the ledger, and what operators have put into its etcd, to one file
    Backup(Box<MakeBackup>),
    /// Put back what `backup` has written, before schedulers are started
    Restore(Box<Restore>),
}

impl Command {
    /// Asks, and prints what is answered.
    pub fn run(self) -> ExitCode {
        let json = self.json();
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return Failure::NoAnswer(error.to_string()).report(json),
        };
        let outcome = runtime.block_on(async {
            tokio::select! {
                outcome = self.ask() => outcome,
                // Nobody reads what else would come.
                () = terminal::closed() => Ok(true),
            }
        });
        if let Some(error) = terminal::failed() {
            return Failure::NoAnswer(format!("standard output: {error}")).report(false);
        }
        match outcome {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(NO_PLACE),
            Err(failure) => failure.report(json),
        }
    }

    async fn ask(self) -> Outcome {
        match self {
            Self::Run(run) => run.run().await,
            Self::Place(place) => place.run().await,
            Self::Hosts(hosts) => hosts.run().await,
            Self::Explain(explain) => explain.run().await,
            Self::Ps(ps) => ps.run().await,
            Self::Rm(rm) => rm.run().await,
            Self::Logs(logs) => logs.run().await,
            Self::Exec(exec) => exec.run().await,
            Self::Inspect(inspect) => inspect.inspect().await,
            Self::Restart(restart) => restart.run("/v1/restart").await,
            Self::Stop(stop) => stop.run("/v1/stop").await,
            Self::Images(images) => images.run().await,
            Self::Plan(plan) => plan.run().await,
            Self::Up(up) => up.run().await,
            Self::Catalog(catalog) => catalog.run().await,
            Self::Down(down) => down.run().await,
            Self::Scale(scale) => scale.run().await,
            Self::Rollback(rollback) => rollback.run().await,
            Self::Pause(pause) => pause.run().await,
            Self::Resume(resume) => resume.run(Method::POST, "/resume").await,
            Self::Confirm(confirm) => confirm.run(Method::POST, "/confirm").await,
            Self::Stacks(stacks) => stacks.run().await,
            Self::History(history) => history.run().await,
            Self::Diff(diff) => diff.run().await,
            Self::Ledger(ledger) => ledger.run().await,
            Self::Backup(backup) => backup.run().await,
            Self::Restore(restore) => restore.run().await,
        }
    }

    /// Whether standard output is JSON.
    fn json(&self) -> bool {
        match self {
            Self::Run(run) => run.ask.json,
            Self::Place(place) => place.ask.json,
            Self::Hosts(hosts) => hosts.ask.json,
            Self::Explain(explain) => explain.ask.json,
            Self::Ps(ps) => ps.ask.json,
            Self::Rm(rm) => rm.ask.json,
            Self::Logs(logs) => logs.ask.json,
            Self::Exec(exec) => exec.ask.json,
            Self::Inspect(by_hand) | Self::Restart(by_hand) | Self::Stop(by_hand) => by_hand.ask.json,
            Self::Images(images) => images.json(),
            Self::Plan(plan) => plan.ask.json,
            Self::Up(up) => up.ask.json,
            Self::Catalog(catalog) => catalog.json(),
            Self::Down(down) => down.ask.json,
            Self::Scale(scale) => scale.ask.json,
            Self::Rollback(rollback) => rollback.ask.json,
            Self::Pause(pause) => pause.ask.json,
            Self::Resume(resume) => resume.ask.json,
            Self::Confirm(confirm) => confirm.ask.json,
            Self::Stacks(stacks) => stacks.ask.json,
            Self::History(history) => history.ask.json,
            Self::Diff(diff) => diff.ask.json,
            Self::Ledger(ledger) => ledger.json(),
            Self::Backup(backup) => backup.json(),
            Self::Restore(restore) => restore.json(),
        }
    }
}

/// Why there is nothing to print.
#[derive(Debug)]
enum Failure {
    /// The arguments or a file are wrong.
    Wrong(String),
    /// The scheduler did not answer, or not what was asked.
    NoAnswer(String),
    /// The scheduler answered with an error.
    Refused {
        /// The HTTP status.
        status: u16,
        /// What the API answered: `error`, and mostly `field` and `expected`.
        body: Value,
    },
    /// One that standard output has already, in a list with the answers before it.
    Listed(Box<Self>),
}

impl Failure {
    /// Prints the failure, and gives the exit code.
    fn report(&self, json: bool) -> ExitCode {
        warn(&format!("error: {self}"));
        if json && !matches!(self, Self::Listed(_)) {
            print_json(&self.json());
        }
        ExitCode::from(self.code())
    }

    fn code(&self) -> u8 {
        match self {
            Self::Wrong(_) | Self::Refused { status: 400 | 413, .. } => WRONG,
            Self::NoAnswer(_) | Self::Refused { .. } => NO_PLACE,
            Self::Listed(failure) => failure.code(),
        }
    }

    /// The failure without these texts.
    fn without(self, secrets: &[String]) -> Self {
        let hidden = |text: String| {
            let filled = secrets.iter().filter(|secret| !secret.is_empty());
            // What has a quotation mark is quoted with signs before it.
            let forms = filled.flat_map(|secret| [secret.clone(), secret.escape_debug().to_string()]);
            forms.fold(text, |text, form| text.replace(&form, "***"))
        };
        match self {
            Self::Wrong(text) => Self::Wrong(hidden(text)),
            Self::NoAnswer(text) => Self::NoAnswer(hidden(text)),
            Self::Listed(failure) => Self::Listed(Box::new(failure.without(secrets))),
            Self::Refused { status, mut body } => {
                for value in body.as_object_mut().into_iter().flat_map(|object| object.values_mut()) {
                    if let Value::String(text) = value {
                        *text = hidden(std::mem::take(text));
                    }
                }
                Self::Refused { status, body }
            }
        }
    }

    /// The failure for programs: an object with `error`; of an error of the API all that it has, and its `status`.
    fn json(&self) -> Value {
        match self {
            Self::Wrong(text) | Self::NoAnswer(text) => json!({ "error": text }),
            Self::Refused { status, body } => {
                let mut object = body.as_object().cloned().unwrap_or_default();
                object.entry("error").or_insert_with(|| self.to_string().into());
                object.insert("status".into(), (*status).into());
                object.into()
            }
            Self::Listed(failure) => failure.json(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong(text) | Self::NoAnswer(text) => f.write_str(text),
            Self::Refused { status, body } => {
                let text = |key: &str| body[key].as_str().unwrap_or_default();
                match status {
                    400 => write!(f, "{}, expected {}", text("error"), text("expected")),
                    401 | 403 | 413 => write!(f, "{} ({status}), expected {}", text("error"), text("expected")),
                    _ => write!(f, "{} ({status})", text("error")),
                }
            }
            Self::Listed(failure) => failure.fmt(f),
        }
    }
}

type Outcome = Result<bool, Failure>;

fn client(ask: &Ask) -> Result<Client, Failure> {
    Client::new(ask).map_err(Failure::Wrong)
}

/// The body of the answer, or the error in it.
fn fine(answer: Answer) -> Result<Value, Failure> {
    match answer.status.as_u16() {
        200 | 201 => Ok(answer.body),
        // No place, or not started: these have a placement as their answer.
        409 | 502 if answer.body["state"].is_string() => Ok(answer.body),
        status => Err(Failure::Refused { status, body: answer.body }),
    }
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(ToOwned::to_owned).to_vec()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_failure_shows_what_is_secret() {
        let secrets = ["s3cret".to_owned(), String::new(), "a\"b\\".to_owned()];
        let quoted = Failure::Wrong(format!("found {:?}", "a\"b\\")).without(&secrets);
        assert_eq!(quoted.to_string(), "found \"***\"");
        let body = json!({ "error": "found \"s3cret\"", "field": "a.s3cret", "status": 400 });
        for (failure, shown) in [
            (Failure::Wrong("a: s3cret".into()), "a: ***"),
            (Failure::NoAnswer("a s3cret".into()), "a ***"),
            (Failure::Refused { status: 409, body: body.clone() }, "found \"***\" (409)"),
            (Failure::Listed(Box::new(Failure::Refused { status: 409, body })), "found \"***\" (409)"),
        ] {
            let failure = failure.without(&secrets);
            assert_eq!(failure.to_string(), shown);
            assert!(!failure.json().to_string().contains("s3cret"), "{}", failure.json());
        }
    }
}
