//! `hosts`: what there is and what is free.

use clap::Args;
use hyper::Method;
use process::table::table;

use crate::cli::amounts::{bytes, thousandths};
use crate::cli::client::Ask;
use crate::cli::placements::port_words;
use crate::cli::terminal::{print, print_json};
use crate::cli::{Failure, Outcome, client, fine, list, row, word};
use crate::place::request::limits::ID_MAX;

/// `hosts`.
#[derive(Args, Debug)]
pub struct Hosts {
    /// Show labels too
    #[arg(long)]
    labels: bool,
    #[command(flatten)]
    pub(super) ask: Ask,
}

impl Hosts {
    pub(super) async fn run(self) -> Outcome {
        let answer = client(&self.ask)?.ask(Method::GET, "/v1/hosts", None, |_| {}).await;
        let answer = fine(answer.map_err(Failure::NoAnswer)?)?;
        if self.ask.json {
            print_json(&answer);
            return Ok(true);
        }
        let mut rows = vec![row(["NAME", "STATE", "SYSTEM", "CONTAINERS", "CPU FREE", "MEMORY FREE", "PORTS"])];
        if self.labels {
            rows[0].push("LABELS".into());
        }
        for host in list(&answer["hosts"]) {
            let pool = |pool: &str, words: fn(i64) -> String| {
                let amount = |key: &str| host["pools"][pool][key].as_i64();
                match (amount("free"), amount("total")) {
                    (Some(free), Some(total)) => format!("{} of {}", words(free.max(0)), words(total)),
                    _ => "-".to_owned(),
                }
            };
            let build = host["build"].as_str().map(|build| format!(" {build}")).unwrap_or_default();
            let ports: Vec<_> = list(&host["ports"]).iter().map(|port| port_words(port, "")).collect();
            let refusal = host["refusal"].as_str();
            let mut cells = vec![
                word(&host["name"]),
                refusal.map_or_else(|| "active".to_owned(), ToOwned::to_owned),
                format!("{}{build}", word(&host["os"])),
                host["containers"].to_string(),
                pool("cpuReservation", thousandths),
                pool("memoryReservation", bytes),
                if ports.is_empty() { "-".to_owned() } else { ports.join(", ") },
            ];
            if self.labels {
                let labels = host["labels"].as_object().into_iter().flatten();
                cells.push(labels.map(|(key, value)| format!("{key}={}", word(value))).collect::<Vec<_>>().join(" "));
            }
            rows.push(cells);
        }
        print(&table(&rows, ID_MAX));
        Ok(true)
    }
}
