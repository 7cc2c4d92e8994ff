//! `images`: what hosts have stored.

use clap::{Args, Subcommand};
use hyper::Method;
use process::table::table;
use serde_json::{Value, json};

use crate::cli::amounts::bytes;
use crate::cli::client::Ask;
use crate::cli::terminal::{print, print_json};
use crate::cli::{Failure, Outcome, client, fine, list, row, word};

/// Longest cell of a table, in characters.
const CELL_MAX: usize = 100;

/// `images`.
#[derive(Args, Debug)]
pub struct Images {
    #[command(subcommand)]
    act: Act,
}

#[derive(Subcommand, Debug)]
enum Act {
    /// Remove old images from hosts
    Prune(Prune),
}

/// `images prune`.
#[derive(Args, Debug)]
#[command(
    after_help = "What a container has, running or not, and what placements and stacks ask for, now or before their last update, is
never removed; nor is an image that never had a name.

Examples:
  scheduler images prune --keep-last 2 --dry-run
  scheduler images prune --keep-last 2 --host win-1"
)]
struct Prune {
    /// How many images of each repository stay on each host, the newest ones
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1000))]
    keep_last: u16,
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Only on this host
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    #[command(flatten)]
    ask: Ask,
}

impl Images {
    pub(super) fn json(&self) -> bool {
        let Act::Prune(prune) = &self.act;
        prune.ask.json
    }

    pub(super) async fn run(self) -> Outcome {
        let Act::Prune(prune) = self.act;
        prune.run().await
    }
}

impl Prune {
    async fn run(self) -> Outcome {
        let mut body = json!({ "keep_last": self.keep_last, "dry_run": self.dry_run });
        if let Some(host) = &self.host {
            body["host"] = host.as_str().into();
        }
        let asked = client(&self.ask)?.ask(Method::POST, "/v1/images/prune", Some(&body), |_| {}).await;
        let answer = fine(asked.map_err(Failure::NoAnswer)?)?;
        let hosts = list(&answer["hosts"]);
        if self.ask.json {
            print_json(&answer);
        } else {
            print(&table(&self.rows(hosts), CELL_MAX));
        }
        let is_fine = |value: &Value| value["error"].is_null();
        Ok(hosts.iter().all(|host| is_fine(host) && list(&host["images"]).iter().all(is_fine)))
    }

    fn rows(&self, hosts: &[Value]) -> Vec<Vec<String>> {
        let done = if self.dry_run { "would be removed" } else { "removed" };
        let mut rows = vec![row(["HOST", "IMAGE", "SIZE", "RESULT"])];
        for host in hosts {
            let name = word(&host["host"]);
            if let Some(error) = host["error"].as_str() {
                rows.push(row([&name, "-", "-", error]));
            }
            for image in list(&host["images"]) {
                let size = bytes(image["bytes"].as_i64().unwrap_or_default());
                rows.push(row([&name, &word(&image["name"]), &size, image["error"].as_str().unwrap_or(done)]));
            }
        }
        rows
    }
}
