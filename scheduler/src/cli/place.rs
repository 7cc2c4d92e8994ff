//! `place`: everything in a file, one request after another.

use std::path::PathBuf;

use clap::Args;
use hyper::Method;
use process::table::table;
use serde_json::Value;

use crate::cli::client::Ask;
use crate::cli::file::read;
use crate::cli::placements::{all_run, is_placed, placement_rows, tell_why};
use crate::cli::terminal::{Teller, print, print_json, warn};
use crate::cli::{Failure, Outcome, client, fine, word};
use crate::place::name::given_name;
use crate::place::request::limits::ID_MAX;

/// `place`.
#[derive(Args, Debug)]
#[command(
    after_help = "A document is a placement request as POST /v1/placements takes it, a list of them, or a compose file.
Of a compose file everything is honoured, or refused by the name of its key.

Examples:
  scheduler place -f shop.yml --start --dry-run
  scheduler place -f compose.yml --stack shop --start
  scheduler place -f - --json < requests.json"
)]
pub struct Place {
    /// The file; - is standard input
    #[arg(short = 'f', long, value_name = "FILE")]
    file: PathBuf,
    /// Name of the stack [default: that in the file, or the folder's name]
    #[arg(long, value_name = "NAME", value_parser = given_name)]
    stack: Option<String>,
    /// Create and start the containers too
    #[arg(long)]
    start: bool,
    /// Find the hosts, but reserve nothing and start nothing; with --start only hosts on which it could be started
    #[arg(long)]
    dry_run: bool,
    /// Say everything about every host
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    pub(super) ask: Ask,
}

impl Place {
    pub(super) async fn run(self) -> Outcome {
        let (requests, origins, in_order) = read(&self.file, self.stack.as_ref())?;
        let in_order = in_order && self.start && !self.dry_run;
        let client = client(&self.ask)?;
        let names: Vec<_> = requests.iter().map(|request| word(&request["name"])).collect();
        let mut answers = Vec::new();
        let mut failure = None;
        for (at, mut request) in requests.into_iter().enumerate() {
            for (key, set) in [("start", self.start), ("dry_run", self.dry_run), ("explain", self.explain)] {
                if set {
                    request[key] = true.into();
                }
            }
            let mut teller = Teller::new();
            let answer = client.ask(Method::POST, "/v1/placements", Some(&request), |line| teller.tell(line)).await;
            teller.end();
            match answer.map_err(Failure::NoAnswer).and_then(fine) {
                // What comes later may depend on it.
                Ok(answer) if in_order && !is_placed(&answer) => {
                    answers.push(answer);
                    break;
                }
                Ok(answer) => answers.push(answer),
                // Earlier placements are printed all the same.
                Err(stopped) => {
                    failure = Some(origins.placed(at, stopped));
                    break;
                }
            }
        }
        let placed = answers.iter().all(is_placed);
        let run = answers.iter().filter(|answer| !all_run(answer)).count() == 0;
        if self.ask.json {
            failure = failure.map(|failure| {
                answers.push(failure.json());
                Failure::Listed(Box::new(failure))
            });
            print_json(&Value::from(answers.as_slice()));
        } else {
            print(&table(&placement_rows(&answers), ID_MAX));
            answers.iter().for_each(tell_why);
        }
        if failure.is_none() && answers.len() < names.len() {
            let left = names[answers.len()..].join(", ");
            warn(&format!("not started, since they come after what failed in the file: {left}"));
        }
        failure.map_or(Ok(placed && run), Err)
    }
}
