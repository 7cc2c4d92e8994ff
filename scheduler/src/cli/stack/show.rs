//! `stacks`, `history` and `diff`.

use std::time::Duration;

use clap::Args;
use hyper::Method;
use process::table::table;
use serde_json::{Value, json};

use crate::cli::client::Ask;
use crate::cli::stack::{path_of, shown};
use crate::cli::terminal::{print, print_json, warn};
use crate::cli::{Failure, Outcome, client, fine, list, row, word};
use crate::place::answer::rfc3339;
use crate::place::request::limits::ID_MAX;

/// `stacks`.
#[derive(Args, Debug)]
pub struct Stacks {
    /// Name of a stack, to see its units
    stack: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) ask: Ask,
}

/// `history`.
#[derive(Args, Debug)]
pub struct History {
    /// Name of the stack
    stack: String,
    #[command(flatten)]
    pub(in crate::cli) ask: Ask,
}

/// `diff`.
#[derive(Args, Debug)]
pub struct Diff {
    /// Name of the stack
    stack: String,
    /// The older revision
    from: u64,
    /// The newer one
    to: u64,
    #[command(flatten)]
    pub(in crate::cli) ask: Ask,
}

/// The units of a stack, a row each.
pub(super) fn unit_rows(stack: &Value) -> Vec<Vec<String>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut rows = vec![row(["SERVICE", "UNIT", "HOST", "STATE", "REVISION", "NOTE"])];
    for service in list(&stack["services"]) {
        let name = text(&service["name"]);
        let (why, waits) = (text(&service["why"]), text(&service["waits"]));
        let note = if why.is_empty() || waits.contains(&why) { waits } else { format!("{why} {waits}") };
        let mut note = note.trim().to_owned();
        for unit in list(&service["units"]) {
            // That of the service is beside the first unit that has none of its own.
            let note = unit["why"].as_str().map_or_else(|| std::mem::take(&mut note), str::to_owned);
            let host = unit["host"].as_str().unwrap_or("-");
            let revision = text(&unit["revision"]) + if unit["is_wanted"] == true { "" } else { " (old)" };
            rows.push(row([&name, &text(&unit["index"]), host, &text(&unit["state"]), &revision, &note]));
        }
        if list(&service["units"]).is_empty() {
            rows.push(row([&name, "-", "-", &text(&service["stage"]), "-", &note]));
        }
    }
    rows
}

impl Stacks {
    pub(in crate::cli) async fn run(self) -> Outcome {
        let client = client(&self.ask)?;
        if let Some(stack) = &self.stack {
            let answer = client.ask(Method::GET, &path_of(stack, ""), None, |_| {}).await;
            let answer = fine(answer.map_err(Failure::NoAnswer)?)?;
            shown(&answer, &self.ask);
            return Ok(true);
        }
        let answer = client.ask(Method::GET, "/v1/stacks", None, |_| {}).await;
        let answer = fine(answer.map_err(Failure::NoAnswer)?)?;
        if self.ask.json {
            print_json(&answer);
            return Ok(true);
        }
        if let Some(warning) = answer["warning"].as_str() {
            warn(warning);
        }
        let mut rows = vec![row(["STACK", "REVISION", "STATE", "SERVICES", "UNITS", "NOTE"])];
        for stack in list(&answer["stacks"]) {
            let sum = |key: &str| list(&stack["services"]).iter().filter_map(|one| one[key].as_u64()).sum::<u64>();
            let services = list(&stack["services"]).len().to_string();
            let units = format!("{} of {}", sum("good"), sum("wanted"));
            let detail = stack["detail"].as_str().unwrap_or_default();
            rows.push(row([
                &word(&stack["name"]),
                &word(&stack["revision"]),
                &word(&stack["state"]),
                &services,
                &units,
                detail,
            ]));
        }
        print(&table(&rows, ID_MAX));
        Ok(true)
    }
}

impl History {
    pub(in crate::cli) async fn run(self) -> Outcome {
        let client = client(&self.ask)?;
        let answer = client.ask(Method::GET, &path_of(&self.stack, "/history"), None, |_| {}).await;
        let answer = fine(answer.map_err(Failure::NoAnswer)?)?;
        if self.ask.json {
            print_json(&answer);
            return Ok(true);
        }
        let mut rows = vec![row(["REVISION", "MADE", "BY", "SERVICES", "OUTCOME"])];
        for revision in list(&answer["revisions"]) {
            let services: Vec<String> = list(&revision["services"])
                .iter()
                .map(|one| {
                    format!("{} {} x {}", word(&one["name"]), one["scale"], one["image"].as_str().unwrap_or("-"))
                })
                .collect();
            let outcome = revision["outcome"].as_str().filter(|text| !text.is_empty()).unwrap_or("under way");
            let made = rfc3339(Duration::from_millis(revision["made"].as_u64().unwrap_or_default()));
            rows.push(row([
                &word(&revision["revision"]),
                &made,
                &word(&revision["subject"]),
                &services.join(", "),
                outcome,
            ]));
        }
        print(&table(&rows, ID_MAX));
        Ok(true)
    }
}

impl Diff {
    pub(in crate::cli) async fn run(self) -> Outcome {
        let client = client(&self.ask)?;
        let body = json!({ "from": self.from, "to": self.to });
        let answer = client.ask(Method::POST, &path_of(&self.stack, "/history"), Some(&body), |_| {}).await;
        let answer = fine(answer.map_err(Failure::NoAnswer)?)?;
        if self.ask.json {
            print_json(&answer);
        } else {
            super::up::show_differences(&answer);
        }
        Ok(true)
    }
}
