//! `explain`: where a container fits, and why not elsewhere.

use std::path::PathBuf;

use clap::Args;
use hyper::Method;
use process::table::table;
use serde_json::Value;

use crate::cli::client::Ask;
use crate::cli::file::read;
use crate::cli::terminal::{print, print_json};
use crate::cli::{Failure, Outcome, client, fine, list, row, word};
use crate::place::name::given_name;
use crate::place::request::limits::ID_MAX;

/// `explain`.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  scheduler explain -f web.yml")]
pub struct Explain {
    /// The file, as `place` takes it; - is standard input
    #[arg(short = 'f', long, value_name = "FILE")]
    file: PathBuf,
    /// Name of the stack [default: that in the file, or the folder's name]
    #[arg(long, value_name = "NAME", value_parser = given_name)]
    stack: Option<String>,
    #[command(flatten)]
    pub(super) ask: Ask,
}

impl Explain {
    pub(super) async fn run(self) -> Outcome {
        let (requests, origins, _) = read(&self.file, self.stack.as_ref())?;
        let client = client(&self.ask)?;
        let mut answers = Vec::new();
        for (at, request) in requests.iter().enumerate() {
            let answer = client.ask(Method::POST, "/v1/explain", Some(request), |_| {}).await;
            let answer = fine(answer.map_err(Failure::NoAnswer)?);
            answers.push(answer.map_err(|failure| origins.placed(at, failure))?);
        }
        let fits = answers.iter().all(|answer| answer["fits"].as_u64() > Some(0));
        if self.ask.json {
            print_json(&if answers.len() == 1 { answers.remove(0) } else { answers.into() });
            return Ok(fits);
        }
        for (at, (answer, request)) in answers.iter().zip(&requests).enumerate() {
            if at > 0 {
                print("\n");
            }
            if requests.len() > 1 {
                let name = request["id"].as_str().map_or_else(|| format!("request {}", at + 1), ToOwned::to_owned);
                print(&format!("{name}:\n"));
            }
            print(&explanation(answer));
        }
        Ok(fits)
    }
}

pub(super) fn explanation(explanation: &Value) -> String {
    let mut rows = vec![row(["HOST", "FITS", "WHY NOT"])];
    for host in list(&explanation["hosts"]) {
        let fits = if host["fits"] == true { format!("yes, {}.", host["rank"]) } else { "no".to_owned() };
        let reasons: Vec<_> = list(&host["reasons"]).iter().map(word).collect();
        let mut reasons = reasons.into_iter();
        rows.push(vec![word(&host["name"]), fits, reasons.next().unwrap_or_default()]);
        rows.extend(reasons.map(|reason| vec![String::new(), String::new(), reason]));
    }
    let mut text = table(&rows, ID_MAX);
    let changes: Vec<_> = list(&explanation["changes"]).iter().map(word).collect();
    if !changes.is_empty() {
        text.push_str("\nIt would fit with\n");
        text.extend(changes.iter().map(|change| format!("  {change}\n")));
    }
    text
}
