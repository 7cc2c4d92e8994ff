//! `rm`: containers stopped and removed, and their room given back.

use clap::Args;
use etcd::segment::{ESCAPED, escape};
use hyper::Method;
use serde_json::Value;

use crate::cli::client::Ask;
use crate::cli::terminal::{Teller, print, print_json, warn};
use crate::cli::{Failure, Outcome, client, fine};
use crate::start::docker::REQUEST_LABEL;

/// `rm`.
#[derive(Args, Debug)]
pub struct Rm {
    /// Ids of placements
    #[arg(required = true)]
    id: Vec<String>,
    /// Kill them at once, and forget them when their engines do not answer: for engines that will never answer again
    #[arg(long)]
    force: bool,
    /// Seconds that containers have to end before they are killed [default: as each was started; 10]
    #[arg(short = 't', long, value_name = "SECONDS", conflicts_with = "force")]
    time: Option<u32>,
    #[command(flatten)]
    pub(super) ask: Ask,
}

impl Rm {
    pub(super) async fn run(self) -> Outcome {
        let client = client(&self.ask)?;
        let mut answers = Vec::new();
        let mut all = true;
        for id in &self.id {
            if id.is_empty() {
                return Err(Failure::Wrong(format!("{id:?} is no id of a placement")));
            }
            let query = match self.time {
                _ if self.force => "?force=true".to_owned(),
                Some(seconds) => format!("?time={seconds}"),
                None => String::new(),
            };
            // Ids of requests are plain, but a person may have written others into etcd.
            let mut path = "/v1/placements/".to_owned();
            escape(id, ESCAPED, &mut path);
            path += &query;
            let mut teller = Teller::new();
            let answer = client.ask(Method::DELETE, &path, None, |line| teller.tell(line)).await;
            teller.end();
            match answer.map_err(Failure::NoAnswer).and_then(fine) {
                Ok(answer) => {
                    if let Some(unread) = answer["error"].as_str() {
                        warn(&format!(
                            "warning: {id}: {unread}: if containers of it are left on some host, they run on \
                             (`docker ps --all --filter label={REQUEST_LABEL}={id}`)"
                        ));
                    }
                    if !self.ask.json {
                        print(&format!("{id}\n"));
                    }
                    answers.push(answer);
                }
                Err(failure) => {
                    warn(&format!("error: {id}: {failure}"));
                    let mut answer = failure.json();
                    answer["id"] = id.as_str().into();
                    answers.push(answer);
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
