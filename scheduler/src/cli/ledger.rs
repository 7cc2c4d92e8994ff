//! `ledger seal`: an operator vouches for records in etcd that no scheduler of the ledger has sealed.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use etcd::{Endpoint, EtcdClient};
use live::config::Etcd;
use model::Text;
use serde_json::{Value, json};

use crate::cli::table::table;
use crate::cli::terminal::{print, print_json};
use crate::cli::{Failure, Outcome, row};
use crate::config::KEY_FILE;
use crate::ledger::etcd::key_file::KeyError;
use crate::ledger::etcd::unsealed::{UnsealedRecord, adopt, seal_of, unsealed};
use crate::printable::printable;

/// Longest word in a table, in characters.
const CELL_MAX: usize = 100;

/// `ledger`.
#[derive(Args, Debug)]
pub struct Ledger {
    #[command(subcommand)]
    act: Act,
}

#[derive(Subcommand, Debug)]
enum Act {
    /// List placements in etcd that are not sealed, as a release without seals wrote them; with --yes, seal them
    Seal(Seal),
}

/// `ledger seal`.
#[derive(Args, Debug)]
struct Seal {
    /// Only these placements, and also those whose seal does not fit: whatever they say will be believed
    id: Vec<Text>,

    /// Members of the etcd with the ledger
    #[arg(long, value_name = "URL", env = "BERTH_SCHEDULER_LEDGER_ETCD", value_delimiter = ',', required = true)]
    ledger_etcd: Vec<Endpoint>,

    /// File with the ledger's key; it is made if the ledger has none yet [default: ledger.key in the state directory]
    #[arg(long, value_name = "FILE", env = "BERTH_SCHEDULER_LEDGER_KEY")]
    ledger_key: Option<PathBuf>,

    /// The state directory of a scheduler
    #[arg(long, value_name = "DIR", env = "BERTH_STATE_DIR", required_unless_present = "ledger_key")]
    state_dir: Option<PathBuf>,

    #[command(flatten)]
    etcd: Etcd,

    /// Seal what is listed
    #[arg(long)]
    yes: bool,

    /// Print JSON instead of a table; a failure is an object with `error`
    #[arg(long)]
    json: bool,
}

impl Ledger {
    pub(super) fn json(&self) -> bool {
        let Act::Seal(seal) = &self.act;
        seal.json
    }

    pub(super) async fn run(self) -> Outcome {
        let Act::Seal(seal) = self.act;
        seal.run().await
    }
}

impl Seal {
    async fn run(self) -> Outcome {
        let failed = |error: KeyError| Failure::NoAnswer(error.to_string());
        let key_file = self.ledger_key.or_else(|| Some(self.state_dir?.join(KEY_FILE)));
        let key_file = key_file.ok_or_else(|| Failure::Wrong("give --ledger-key or --state-dir".into()))?;
        let client = EtcdClient::new(self.etcd.with_members(self.ledger_etcd));
        let client = client.map_err(|error| Failure::Wrong(error.to_string()))?;
        let found = unsealed(&client, &key_file, &self.id).await.map_err(failed)?;
        let seal = if self.yes { Some(seal_of(&client, &key_file).await.map_err(failed)?) } else { None };
        let mut outcomes = Vec::new();
        for record in &found {
            outcomes.push(match (&seal, &record.record) {
                (_, Err(_)) => "unreadable",
                (None, Ok(_)) => "unsealed",
                (Some(seal), Ok(_)) if adopt(&client, seal, record).await.map_err(failed)? => "sealed",
                (Some(_), Ok(_)) => "changed meanwhile",
            });
        }
        let all = !outcomes.iter().any(|outcome| matches!(*outcome, "unreadable" | "changed meanwhile"));
        let records = found.iter().zip(&outcomes).map(|(record, outcome)| shown(record, outcome));
        if self.json {
            print_json(&records.collect::<Value>());
            return Ok(all);
        }
        let mut rows = vec![row(["ID", "STATE", "OWNER", "HOSTS", "STAGE", "REQUEST"])];
        rows.extend(records.map(|record| cells(&record)));
        print(&table(&rows));
        if !self.yes && !found.is_empty() {
            print("Nothing was sealed. Schedulers start what sealed records say; --yes seals those that are listed.\n");
        }
        Ok(all)
    }
}

fn shown(record: &UnsealedRecord, outcome: &str) -> Value {
    let mut shown = json!({ "id": record.id, "state": outcome, "why": record.why.to_string() });
    match &record.record {
        Ok((owner, stored)) => {
            let units = stored.replicas.iter().map(|unit| json!({ "host": unit.host_name, "stage": unit.stage }));
            shown["owner"] = json!(owner);
            shown["units"] = units.collect();
            shown["asked"] = without_secrets(json!(stored.asked));
        }
        Err(error) => shown["error"] = json!(error),
    }
    shown
}

/// A request without the environments of its containers.
fn without_secrets(mut asked: Value) -> Value {
    if let Some(fields) = asked.as_object_mut() {
        fields.remove("environment");
    }
    for sidekick in asked.get_mut("sidekicks").and_then(Value::as_array_mut).into_iter().flatten() {
        *sidekick = without_secrets(sidekick.take());
    }
    asked
}

fn cells(shown: &Value) -> Vec<String> {
    // Any client of etcd may have written it.
    let text = |value: &Value| printable(value.as_str().unwrap_or("-"), CELL_MAX);
    let of_units = |key: &str| {
        let units = shown["units"].as_array().into_iter().flatten();
        let mut words: Vec<_> = units.map(|unit| text(&unit[key])).collect();
        words.dedup();
        words.join(",")
    };
    let asked = match &shown["error"] {
        Value::String(error) => error.clone(),
        _ => shown["asked"].to_string(),
    };
    vec![text(&shown["id"]), text(&shown["state"]), text(&shown["owner"]), of_units("host"), of_units("stage"), asked]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_listed_without_its_environment() {
        let asked = json!({ "image": "i", "environment": ["A=secret"], "volumes": ["/:/h"],
            "sidekicks": [{ "name": "s", "environment": { "B": "secret" }, "user": "0" }] });
        let expected = json!({ "image": "i", "volumes": ["/:/h"], "sidekicks": [{ "name": "s", "user": "0" }] });
        assert_eq!(without_secrets(asked), expected);
        let unit = |host: &str| json!({ "host": host, "stage": "begun" });
        let shown = json!({ "id": "a\u{1b}[2J", "state": "unsealed", "owner": "s-1", "asked": { "image": "i" },
            "units": [unit("h1"), unit("h2")] });
        assert_eq!(cells(&shown), ["a[2J", "unsealed", "s-1", "h1,h2", "begun", r#"{"image":"i"}"#]);
    }
}
