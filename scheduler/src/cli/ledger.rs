//! `ledger seal`: an operator vouches for records in etcd that no scheduler of the ledger has sealed.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use etcd::{Endpoint, EtcdArgs, EtcdClient};
use model::printable::printable;
use model::{Text, hex};
use process::table::table;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::cli::terminal::{print, print_json};
use crate::cli::{Failure, Outcome, row};
use crate::config::KEY_FILE;
use crate::ledger::etcd::key_file::KeyError;
use crate::ledger::etcd::unsealed::{UnsealedRecord, adopt, seal_of, unsealed};
use crate::place::request::limits::ID_MAX;

/// Bytes of a list's hash: finding another list with the same 128 bits is infeasible.
const HASH_BYTES: usize = 16;

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
    /// List placements in etcd that are not sealed, as a release without seals wrote them; with --yes HASH, seal them
    Seal(Seal),
}

/// `ledger seal`.
#[derive(Args, Debug)]
struct Seal {
    /// Only these placements, also those with an invalid seal: all that their records say will be trusted
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
    etcd: EtcdArgs,

    /// Seal what was listed with this hash, unless it has changed since; the ids are the same as for the list
    #[arg(long, value_name = "HASH")]
    yes: Option<String>,

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
        platform::file::must_be_secret(&key_file).map_err(|error| Failure::Wrong(error.to_string()))?;
        let client = EtcdClient::new(self.etcd.with_members(self.ledger_etcd));
        let client = client.map_err(|error| Failure::Wrong(error.to_string()))?;
        let found = unsealed(&client, &key_file, &self.id).await.map_err(failed)?;
        let listed = hash_of(&found);
        if self.yes.as_ref().is_some_and(|yes| *yes != listed) {
            let text = "--yes: this is not the hash of what is in etcd now, so nothing was sealed: list it again without \
                        --yes, with the same ids, read it, and give the hash of that list";
            return Err(Failure::Wrong(text.to_owned()));
        }
        let seal = if self.yes.is_some() { Some(seal_of(&client, &key_file).await.map_err(failed)?) } else { None };
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
        let records = found.iter().zip(&outcomes).map(|(record, outcome)| shown(record, outcome, &listed));
        if self.json {
            print_json(&records.collect::<Value>());
            return Ok(all);
        }
        let mut rows = vec![row(["ID", "STATE", "SUBJECT", "OWNER", "HOSTS", "STAGE", "REQUEST"])];
        rows.extend(records.map(|record| cells(&record)));
        print(&table(&rows, ID_MAX));
        if self.yes.is_none() && !found.is_empty() {
            print(&format!(
                "Nothing was sealed. Schedulers start what sealed records say, as far as the policy allows it to their \
                 subjects. To seal exactly what is listed, type the same with --yes {listed}\n"
            ));
        }
        Ok(all)
    }
}

/// A hash that only this list has: each write in etcd has a revision of its own.
fn hash_of(records: &[UnsealedRecord]) -> String {
    let hash = records.iter().fold(Sha256::new(), |hash, record| {
        hash.chain_update(record.revision.to_be_bytes())
            .chain_update(record.id.len().to_be_bytes())
            .chain_update(&*record.id)
    });
    hex(&hash.finalize()[..HASH_BYTES])
}

fn shown(record: &UnsealedRecord, outcome: &str, listed: &str) -> Value {
    let mut shown = json!({ "id": record.id, "state": outcome, "why": record.why.to_string(), "listed": listed });
    match &record.record {
        Ok((owner, stored)) => {
            let units = stored.replicas.iter().map(|unit| json!({ "host": unit.host_name, "stage": unit.stage }));
            // Decides what the policy allows.
            shown["subject"] = json!(stored.subject);
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
    let [id, state, subject, owner] = ["id", "state", "subject", "owner"].map(|key| text(&shown[key]));
    vec![id, state, subject, owner, of_units("host"), of_units("stage"), asked]
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
        let shown = json!({ "id": "a\u{1b}[2J", "state": "unsealed", "subject": "token:all", "owner": "s-1",
            "asked": { "image": "i" }, "units": [unit("h1"), unit("h2")] });
        assert_eq!(cells(&shown), ["a[2J", "unsealed", "token:all", "s-1", "h1,h2", "begun", r#"{"image":"i"}"#]);
    }
}
