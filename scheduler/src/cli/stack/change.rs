//! `down`, `scale`, `rollback`, `pause`, `resume` and `confirm`.

use clap::Args;
use hyper::Method;
use serde_json::{Map, Value, json};

use crate::cli::client::Ask;
use crate::cli::stack::{Waiting, follow, path_of};
use crate::cli::{Failure, Outcome, client};

/// The arguments of `down`, `resume` and `confirm`.
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
