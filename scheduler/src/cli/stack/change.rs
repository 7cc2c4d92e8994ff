//! `down`, `scale`, `rollback`, `pause`, `resume` and `confirm`.

use clap::Args;
use hyper::Method;
use process::table::table;
use serde_json::{Map, Value, json};

use crate::cli::client::Ask;
use crate::cli::stack::{Waiting, follow, path_of};
use crate::cli::terminal::{print, print_json};
use crate::cli::{Failure, Outcome, client, fine, list, row, word};
use crate::place::request::limits::ID_MAX;

/// `down`.
#[derive(Args, Debug)]
pub struct Down {
    /// Name of the stack
    stack: String,
    /// Also remove the volumes that were made for it; those that are external or somebody else's stay
    #[arg(long)]
    volumes: bool,
    /// Show what would be removed, and remove nothing
    #[arg(long, conflicts_with_all = ["detach", "timeout"])]
    dry_run: bool,
    #[command(flatten)]
    waiting: Waiting,
    #[command(flatten)]
    pub(in crate::cli) ask: Ask,
}

/// The arguments of `resume` and `confirm`.
#[derive(Args, Debug)]
pub struct OneStack {
    /// Name of the stack
    stack: String,
    #[command(flatten)]
    waiting: Waiting,
    #[command(flatten)]
    pub(in crate::cli) ask: Ask,
}

/// `scale`.
#[derive(Args, Debug)]
pub struct Scale {
    /// How many units of which services, all of one stack: shop/web=3
    #[arg(required = true, value_name = "STACK/SERVICE=NUMBER")]
    services: Vec<String>,
    #[command(flatten)]
    waiting: Waiting,
    #[command(flatten)]
    pub(in crate::cli) ask: Ask,
}

/// `rollback`.
#[derive(Args, Debug)]
pub struct Rollback {
    /// Name of the stack
    stack: String,
    /// The revision to go back to [default: the one before]
    #[arg(long, value_name = "REVISION")]
    to: Option<u64>,
    #[command(flatten)]
    waiting: Waiting,
    #[command(flatten)]
    pub(in crate::cli) ask: Ask,
}

/// `pause`.
#[derive(Args, Debug)]
pub struct Pause {
    /// Name of the stack
    stack: String,
    #[command(flatten)]
    pub(in crate::cli) ask: Ask,
}

impl Down {
    pub(in crate::cli) async fn run(self) -> Outcome {
        let client = client(&self.ask)?;
        let volumes = format!("?volumes={}", self.volumes);
        if !self.dry_run {
            let path = path_of(&self.stack, if self.volumes { &volumes } else { "" });
            return follow(&client, (Method::DELETE, path), None, &self.ask, &self.waiting).await;
        }
        let answer =
            client.ask(Method::DELETE, &path_of(&self.stack, &(volumes + "&dry_run=true")), None, |_| {}).await;
        let answer = fine(answer.map_err(Failure::NoAnswer)?)?;
        if self.ask.json {
            print_json(&answer);
            return Ok(true);
        }
        let mut rows = vec![row(["KIND", "NAME", "HOST", "WHAT"])];
        for unit in list(&answer["units"]) {
            rows.push(row(["unit", &word(&unit["id"]), unit["host"].as_str().unwrap_or("-"), "removed"]));
        }
        for volume in list(&answer["volumes"]) {
            let what = if volume["removed"] == true { "removed" } else { "stays: --volumes removes it" };
            rows.push(row(["volume", &word(&volume["name"]), &word(&volume["host"]), what]));
        }
        for host in list(&answer["unknown"]) {
            let what = format!("not known: {}", host["error"].as_str().unwrap_or_default());
            rows.push(row(["volume", "-", &word(&host["host"]), &what]));
        }
        print(&table(&rows, ID_MAX));
        Ok(true)
    }
}

impl OneStack {
    pub(in crate::cli) async fn run(self, method: Method, rest: &str) -> Outcome {
        let client = client(&self.ask)?;
        follow(&client, (method, path_of(&self.stack, rest)), None, &self.ask, &self.waiting).await
    }
}

impl Scale {
    pub(in crate::cli) async fn run(self) -> Outcome {
        let mut stack: Option<&str> = None;
        let mut scales = Map::new();
        for text in &self.services {
            let parts = text.split_once('=').and_then(|(name, number)| Some((name.split_once('/')?, number)));
            let wrong = || Failure::Wrong(format!("{text:?} is not STACK/SERVICE=NUMBER, such as shop/web=3"));
            let ((own, service), number) = parts.ok_or_else(wrong)?;
            let number: u32 = number.parse().map_err(|_| wrong())?;
            if let Some(other) = stack.replace(own).filter(|other| *other != own) {
                return Err(Failure::Wrong(format!("{other} and {own} are two stacks: scale one after the other")));
            }
            scales.insert(service.to_owned(), number.into());
        }
        let client = client(&self.ask)?;
        let path = path_of(stack.unwrap_or_default(), "/scale");
        follow(&client, (Method::POST, path), Some(&Value::Object(scales)), &self.ask, &self.waiting).await
    }
}

impl Rollback {
    pub(in crate::cli) async fn run(self) -> Outcome {
        let client = client(&self.ask)?;
        let body = self.to.map_or_else(|| json!({}), |to| json!({ "to": to }));
        follow(&client, (Method::POST, path_of(&self.stack, "/rollback")), Some(&body), &self.ask, &self.waiting).await
    }
}

impl Pause {
    pub(in crate::cli) async fn run(self) -> Outcome {
        let client = client(&self.ask)?;
        let waiting = Waiting { detach: false, timeout: None };
        follow(&client, (Method::POST, path_of(&self.stack, "/pause")), None, &self.ask, &waiting).await
    }
}
