//! The difference between two revisions of a stack, field by field.

use model::{Map, Text, Value};
use serde::Serialize;

use crate::service::Service;

/// What becomes of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It is new.
    Added,
    /// It is there no more.
    Removed,
    /// These fields change: the field, what it was and what it becomes.
    Changed(Vec<(String, String, String)>),
}

/// One service that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The service.
    pub service: Text,
    /// What becomes of it.
    pub change: Change,
}

/// What differs, by name; nothing for equal revisions.
pub fn differences(old: &[Service], new: &[Service]) -> Vec<Difference> {
    let find = |services: &[Service], name: &Text| services.iter().position(|one| one.name == *name);
    let mut all = Vec::new();
    for service in new {
        let change = match find(old, &service.name).map(|at| &old[at]) {
            None => Change::Added,
            Some(before) => {
                let mut fields = Vec::new();
                for (name, was, is) in [
                    ("scale", before.scale.to_string(), service.scale.to_string()),
                    ("global", before.global.to_string(), service.global.to_string()),
                    ("job", before.job.to_string(), service.job.to_string()),
                    ("dead_after", seconds(before.dead_after), seconds(service.dead_after)),
                    ("update", json(&before.update), json(&service.update)),
                    ("rollback", json(&before.rollback), json(&service.rollback)),
                ] {
                    if was != is {
                        fields.push((name.to_owned(), was, is));
                    }
                }
                maps("", &before.request, &service.request, &mut fields);
                if fields.is_empty() {
                    continue;
                }
                Change::Changed(fields)
            }
        };
        all.push(Difference { service: service.name.clone(), change });
    }
    for service in old.iter().filter(|service| find(new, &service.name).is_none()) {
        all.push(Difference { service: service.name.clone(), change: Change::Removed });
    }
    all.sort_by(|a, b| a.service.cmp(&b.service));
    all
}

fn seconds(seconds: Option<u64>) -> String {
    seconds.map_or_else(|| "never".to_owned(), |seconds| format!("{seconds} s"))
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Fields that hold passwords: that they change is said, not what they are.
const HIDDEN: [&str; 3] = ["environment", "files", "volume_options"];

/// The same with dots for what such fields hold.
fn without_hidden(value: &Value) -> Value {
    match value {
        Value::List(items) => Value::list(items.iter().map(without_hidden)),
        Value::Map(map) => {
            let shown = |(key, value): &(Text, Value)| {
                let value = if HIDDEN.contains(&&**key) { Value::text("***") } else { without_hidden(value) };
                (key.clone(), value)
            };
            Map::new(map.iter().map(shown).collect()).into()
        }
        other => other.clone(),
    }
}

fn maps(path: &str, old: &Map, new: &Map, fields: &mut Vec<(String, String, String)>) {
    let mut keys: Vec<&Text> = old.iter().chain(new).map(|(key, _)| key).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let field = if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
        match (old.get(key), new.get(key)) {
            (was, is) if was == is => {}
            (Some(Value::Map(was)), Some(Value::Map(is))) => maps(&field, was, is, fields),
            (was, is) => {
                let is_hidden = field.split('.').any(|part| HIDDEN.contains(&part));
                let shown = |value: Option<&Value>| match value {
                    None => "-".to_owned(),
                    Some(_) if is_hidden => "***".to_owned(),
                    Some(value) => value.as_str().map_or_else(|| json(&without_hidden(value)), ToOwned::to_owned),
                };
                fields.push((field.clone(), shown(was), shown(is)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_in_a_difference() {
        let service = |json: serde_json::Value| Service::parse(&serde_json::from_value(json).unwrap()).unwrap();
        let with = |secret: &str| {
            service(serde_json::json!({
                "service": "a", "environment": { "P": secret }, "files": [{ "target": "/a", "sealed": secret }],
                "volume_options": { "data": { "o": secret } },
                "sidekicks": [{ "name": "s", "image": secret.len(), "environment": [secret],
                                "files": [{ "sealed": secret }] }],
            }))
        };
        let found = json(&differences(&[with("geheim")], &[with("verborgen")]));
        assert!(
            ["environment.P", "files", "sidekicks", "volume_options.data.o"].iter().all(|field| found.contains(field)),
            "{found}"
        );
        assert!(!found.contains("geheim") && !found.contains("verborgen"), "{found}");
    }
}
