//! The subcommands of stacks.

pub(super) mod change;
pub(super) mod show;
pub(super) mod up;

use std::time::Duration;

use etcd::segment::{ESCAPED, escape};
use hyper::Method;
use serde_json::Value;

use crate::cli::client::{Ask, Client};
use crate::cli::stack::show::unit_rows;
use crate::cli::terminal::{Teller, print, print_json, warn};
use crate::cli::{Failure, Outcome, fine};
use crate::place::request::limits::ID_MAX;

/// How long to wait.
#[derive(clap::Args, Debug)]
pub(in crate::cli) struct Waiting {
    /// Return at once, and let the scheduler go on
    #[arg(short = 'd', long)]
    detach: bool,
    /// Seconds to wait until it is as it should be; the scheduler goes on after that [default: without end]
    #[arg(long, value_name = "SECONDS", conflicts_with = "detach")]
    timeout: Option<u64>,
}

/// The path of a stack.
pub(super) fn path_of(stack: &str, rest: &str) -> String {
    let mut path = String::from("/v1/stacks/");
    escape(stack, ESCAPED, &mut path);
    path + rest
}

/// Asks for something of a stack, and reports how far it is; the outcome says whether it is as it was asked for.
async fn follow(
    client: &Client,
    (method, path): (Method, String),
    body: Option<&Value>,
    ask: &Ask,
    waiting: &Waiting,
) -> Outcome {
    let mut teller = Teller::new();
    let path = if waiting.detach { path + "?detach=true" } else { path };
    let asking = client.ask(method, &path, body, |line| teller.tell(line));
    let answer = match waiting.timeout {
        None => Some(asking.await),
        Some(seconds) => tokio::time::timeout(Duration::from_secs(seconds), asking).await.ok(),
    };
    teller.end();
    let Some(answer) = answer else {
        let seconds = waiting.timeout.unwrap_or_default();
        return Err(Failure::NoAnswer(format!("it is not as it should be after {seconds} s; the scheduler goes on")));
    };
    let answer = fine(answer.map_err(Failure::NoAnswer)?)?;
    shown(&answer, ask);
    let state = answer["state"].as_str().unwrap_or_default();
    let is_undone = state == "removed" && !answer["detail"].as_str().unwrap_or_default().is_empty();
    Ok(waiting.detach || !is_undone && matches!(state, "done" | "unconfirmed" | "paused" | "removed" | "removing"))
}

/// Prints a stack.
fn shown(answer: &Value, ask: &Ask) {
    if ask.json {
        print_json(answer);
        return;
    }
    let text = |key: &str| answer[key].as_str().unwrap_or_default();
    print(&process::table::table(&unit_rows(answer), ID_MAX));
    let revision = answer["revision"].as_u64().map(|revision| format!(", revision {revision}")).unwrap_or_default();
    let detail = if text("detail").is_empty() { String::new() } else { format!(": {}", text("detail")) };
    warn(&format!("{} is {}{revision}{detail}", text("name"), text("state").replace('_', " ")));
}
