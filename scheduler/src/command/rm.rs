//! `rm`: containers removed, and their room given back.

use clap::Args;
use hyper::Method;
use serde_json::Value;

use crate::client::Ask;
use crate::command::terminal::{print, print_json, warn};
use crate::command::{Failure, Outcome, client, fine};

/// `rm`.
#[derive(Args, Debug)]
pub struct Rm {
    /// Ids of placements
    #[arg(required = true)]
    id: Vec<String>,
    /// Forget them without asking their engines: for engines that will never answer again
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    ask: Ask,
}

impl Rm {
    pub(super) async fn run(self) -> Outcome {
        let client = client(&self.ask)?;
        let mut answers = Vec::new();
        let mut all = true;
        for id in &self.id {
            let plain = id.chars().all(|char| char.is_ascii_alphanumeric() || "_.-".contains(char));
            if !plain || id.is_empty() {
                return Err(Failure::Wrong(format!("{id:?} is no id of a placement")));
            }
            let query = if self.force { "?force=true" } else { "" };
            let answer = client.ask(Method::DELETE, &format!("/v1/placements/{id}{query}"), None, |_| {}).await;
            match answer.map_err(Failure::NoAnswer).and_then(fine) {
                Ok(answer) => {
                    if !self.ask.json {
                        print(&format!("{id}\n"));
                    }
                    answers.push(answer);
                }
                Err(Failure::NoAnswer(text) | Failure::Wrong(text)) => {
                    warn(&format!("error: {id}: {text}"));
                    all = false;
                }
            }
        }
        if self.ask.json {
            print_json(&Value::from(answers));
        }
        Ok(all)
    }
}
