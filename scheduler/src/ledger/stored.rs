//! A record of the ledger as it is stored, on disk or in etcd.
//!
//! What containers use is not stored: snapshots show it, and the request, which is stored whole, says what was promised
//! for them. What is read may have been written by any program: an impossible value is refused here, and nothing behind
//! this checks again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use model::printable::printable;
use model::{Map, Text, Value};
use serde::{Deserialize, Serialize};

use crate::ledger::record::{ImageEntry, Promise, PromiseState, Record, Replica, Stage, Waiting, evacuation_id};
use crate::ledger::replacements::Replacements;
use crate::ledger::stack::{StackRecord, StackUnit, stack_of};
use crate::place::invalid::Invalid;
use crate::place::port::{Bound, Protocol};
use crate::place::replica::replica_of;
use crate::place::request::Request;
use crate::subject::Subject;

/// A record as it is written.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StoredRecord {
    pub(crate) id: Text,
    /// Milliseconds of the clock by which the promise lapses.
    made: u64,
    unplaced: u32,
    #[serde(default, skip_serializing_if = "Subject::is_anonymous")]
    subject: Subject,
    asked: Map,
    units: Vec<StoredUnit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unit: Option<StackUnit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stack: Option<Box<StackRecord>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    evacuates: Option<Text>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredUnit {
    host: Text,
    host_name: Text,
    stage: Stage,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempt: Option<Text>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waits: Option<Waiting>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replaced: Option<Replacements>,
    containers: Vec<StoredContainer>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredContainer {
    name: Text,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ports: Vec<StoredPort>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    container: Option<Text>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    system: Option<ImageEntry>,
    #[serde(default)]
    over: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredPort {
    ip: std::net::IpAddr,
    public: u16,
    private: u16,
    protocol: Text,
}

impl StoredRecord {
    pub(crate) fn of(id: &Text, record: &Record) -> Self {
        let port = |bound: &Bound| StoredPort {
            ip: bound.address,
            public: bound.public,
            private: bound.private,
            protocol: bound.protocol.name().into(),
        };
        let unit = |replica: &Replica| StoredUnit {
            host: replica.host.clone(),
            host_name: replica.host_name.clone(),
            stage: replica.stage,
            attempt: replica.attempt.clone(),
            waits: replica.waits.clone(),
            replaced: replica.replaced.clone(),
            containers: replica
                .members
                .iter()
                .map(|held| StoredContainer {
                    name: held.name.clone(),
                    ports: held.bound.iter().map(port).collect(),
                    container: held.container.clone(),
                    system: held.system.clone(),
                    over: held.state == PromiseState::Over,
                })
                .collect(),
        };
        Self {
            id: id.clone(),
            made: u64::try_from(record.made.as_millis()).unwrap_or(u64::MAX),
            unplaced: record.unplaced,
            subject: record.subject.clone(),
            asked: record.asked.clone(),
            units: record.replicas.iter().map(unit).collect(),
            unit: record.unit.clone(),
            stack: record.stack.clone(),
            evacuates: record.evacuates.clone(),
        }
    }

    /// Checks the record and returns it.
    ///
    /// # Errors
    ///
    /// Fails if there can be no such record.
    pub(crate) fn record(self, now: Duration) -> Result<Record, String> {
        guarded(|| self.checked(now))
    }

    fn checked(self, now: Duration) -> Result<Record, String> {
        if let Some(stack) = self.stack {
            let is_own = stack_of(&self.id).is_some_and(|name| *name == *stack.stack.name) && self.units.is_empty();
            if !is_own {
                return Err("it is a stack of another name, or has units".to_owned());
            }
            return Ok(Record::of_stack(*stack, Duration::from_millis(self.made).min(now)));
        }
        if let Some(host) = self.evacuates {
            if evacuation_id(&host) != self.id || !self.units.is_empty() {
                return Err("it is the evacuation of another host, or has units".to_owned());
            }
            return Ok(Record::of_evacuation(host, self.subject, Duration::from_millis(self.made).min(now)));
        }
        // Without what was found there, which may be a secret.
        let expected = |invalid: Invalid| format!("{}: expected {}", invalid.field, invalid.expected);
        let request = Request::parse(&without_nulls(&self.asked).into()).map_err(expected)?;
        let unit = |unit: StoredUnit| {
            let (containers, members) = (unit.containers.len(), request.members.len());
            if containers != members {
                let host = &unit.host_name;
                return Err(format!("a unit on host {host} has {containers} containers, and its request {members}"));
            }
            let names: Vec<Text> = unit.containers.iter().map(|container| container.name.clone()).collect();
            let mut bound = Vec::new();
            for container in &unit.containers {
                for port in &container.ports {
                    let unknown = || format!("a port of {} has the protocol {:?}", container.name, port.protocol);
                    let protocol = Protocol::parse(&port.protocol).ok_or_else(unknown)?;
                    let owner = container.name.clone();
                    bound.push(Bound { address: port.ip, public: port.public, private: port.private, protocol, owner });
                }
            }
            let mut replica = replica_of(&request, (unit.host, unit.host_name), &names, &bound);
            replica.stage = unit.stage;
            replica.attempt = unit.attempt;
            replica.waits = unit.waits;
            replica.replaced = unit.replaced;
            replica.inherited(now);
            for (held, stored) in replica.members.iter_mut().zip(unit.containers) {
                held.container = stored.container;
                held.system = stored.system;
                if stored.over {
                    held.state = PromiseState::Over;
                }
                if stored.over || unit.stage == Stage::Kept {
                    held.promise = Promise::default();
                }
            }
            Ok(replica)
        };
        Ok(Record {
            fingerprint: request.fingerprint,
            // A clock that was set back must not make a promise permanent.
            made: Duration::from_millis(self.made).min(now),
            replicas: self.units.into_iter().map(unit).collect::<Result<_, String>>()?,
            unplaced: self.unplaced,
            subject: self.subject,
            asked: self.asked,
            unit: self.unit,
            stack: None,
            evacuates: None,
        })
    }
}

/// Why a value cannot be read: without places in it, which mean nothing to a reader who did not write it, and without what
/// was found there, which may be a secret.
pub(crate) fn parse_problem(error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "it ends too early".to_owned();
    }
    if error.is_syntax() {
        return "it is not JSON".to_owned();
    }
    let text = error.to_string();
    let words = text.rsplit_once(" at line ").map_or(text.as_str(), |(words, _)| words);
    let expected = words.rsplit_once(", expected ").map(|(_, expected)| {
        // Rust's names of types say nothing to a reader.
        let expected = match expected.split(' ').next() {
            Some("struct" | "enum") => "an object",
            Some("u8" | "u16" | "u32" | "u64" | "usize" | "i64") => "a whole number",
            _ => expected,
        };
        format!("expected {expected}")
    });
    printable(expected.as_deref().unwrap_or(words), WHY_MAX)
}

/// What `read` returns; a panic becomes an error of this value alone, and names in an error are shortened and printable.
pub(crate) fn guarded<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let read = catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(PANICKED.to_owned()));
    read.map_err(|why| printable(&why, WHY_MAX))
}

/// Longest reason why a value cannot be read, in characters: it appears in the log and in listings.
pub(crate) const WHY_MAX: usize = 200;

/// The error of a value that made its reader panic.
pub(crate) const PANICKED: &str = "reading it panicked, which is a bug";

/// A stored request without fields that are `null`.
///
/// The first release took `null` for a field that is absent, so its ledgers have such requests; new ones with it are
/// refused. In labels and variables it is a value.
fn without_nulls(map: &Map) -> Map {
    let stripped = |(key, value): &(Text, Value)| match value {
        Value::Null => None,
        Value::Map(map) if !matches!(&**key, "labels" | "environment") => {
            Some((key.clone(), without_nulls(map).into()))
        }
        Value::List(items) => {
            let items = items.iter().map(|item| match item {
                Value::Map(map) => without_nulls(map).into(),
                other => other.clone(),
            });
            Some((key.clone(), Value::list(items)))
        }
        other => Some((key.clone(), other.clone())),
    };
    Map::new(map.iter().filter_map(stripped).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_shows_no_value_of_the_record_and_stays_short() {
        let why = |changed: (&str, serde_json::Value)| {
            let mut value =
                serde_json::json!({ "id": "a", "made": 1, "unplaced": 0, "asked": { "image": "i" }, "units": [] });
            value[changed.0] = changed.1;
            let kept: Result<StoredRecord, _> = serde_json::from_value(value);
            kept.map_err(|error| parse_problem(&error)).and_then(|kept| kept.record(Duration::ZERO)).unwrap_err()
        };
        let long = "k\nFAKE".repeat(1000);
        for (changed, expected) in [
            (("asked", serde_json::json!({ "image": "i", "environment": "PW=secret" })), "environment: expected a map"),
            (("asked", serde_json::json!("secret")), "expected a map"),
            (("made", serde_json::json!("secret")), "expected a whole number"),
            (("asked", serde_json::json!({ "image": "i", &long: 1 })), "kFAKE"),
        ] {
            let why = why(changed);
            assert!(why.contains(expected) && !why.contains("secret"), "{why}");
            assert!(!why.contains('\n') && why.chars().count() <= WHY_MAX, "{why}");
        }
    }

    #[test]
    fn a_record_that_cannot_be_is_refused() {
        let unit =
            |containers: &str| format!(r#"{{"host":"u","host_name":"h","stage":"begun","containers":{containers}}}"#);
        let check = |asked: &str, containers: &str, expected: &str| {
            let text = format!(r#"{{"id":"x","made":1,"unplaced":0,"asked":{asked},"units":[{}]}}"#, unit(containers));
            let stored: StoredRecord = serde_json::from_str(&text).unwrap();
            let error = stored.record(Duration::ZERO).err().unwrap_or_default();
            assert!(error.contains(expected) && error.is_empty() == expected.is_empty(), "{containers}: {error}");
        };
        let (one, two) = (r#"{"image":"i"}"#, r#"{"image":"i","sidekicks":[{"name":"s"}]}"#);
        check(one, r#"[{"name":"x"}]"#, "");
        check(two, r#"[{"name":"x"},{"name":"x-s"}]"#, "");
        // As the first release wrote it.
        check(
            r#"{"image":"i","cpus":null,"sidekicks":[{"name":"s","image":null}]}"#,
            r#"[{"name":"x"},{"name":"x-s"}]"#,
            "",
        );
        check(one, "[]", "a unit on host h has 0 containers, and its request 1");
        check(one, r#"[{"name":"x"},{"name":"y"}]"#, "2 containers");
        check(two, r#"[{"name":"x"}]"#, "1 containers, and its request 2");
        check(
            one,
            r#"[{"name":"x","ports":[{"ip":"::","public":1,"private":1,"protocol":"ipx"}]}]"#,
            "protocol \"ipx\"",
        );
        check(r#"{"image":1}"#, r#"[{"name":"x"}]"#, "image");
        assert_eq!(guarded(|| if one.len() > 2 { panic!("it does") } else { Ok(()) }), Err(PANICKED.to_owned()));
    }
}
