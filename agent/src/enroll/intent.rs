//! `intents/HOST`: what operators say of a host. One value for all that they say, changed by comparing and putting.

use etcd::{Compare, EtcdClient, EtcdError, Op, Txn};
use live::intents::INTENTS;
use model::Map;
use process::Failure;
use serde_json::{Map as Json, Value, json};

use super::outcome::{author, json, now, written};

/// How often a change is tried again that another operator's came before.
const TRIES_MAX: usize = 20;

/// What operators say of a host.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct IntentValue(pub(crate) Json<String, Value>);

impl IntentValue {
    pub(crate) fn read(value: &[u8]) -> Self {
        match json(value) {
            Value::Object(fields) => Self(fields),
            _ => Self::default(),
        }
    }

    /// A field of the invitation that was made last.
    pub(crate) fn invited(&self, field: &str) -> Option<&str> {
        self.0.get("invited")?[field].as_str()
    }

    /// When it was given another password since; empty when it was not.
    pub(crate) fn rotated(&self) -> Option<&str> {
        self.0.get("rotated")?.as_str()
    }

    /// The labels.
    pub(crate) fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        let labels = self.0.get("labels").and_then(Value::as_object).into_iter().flatten();
        labels.filter_map(|(key, value)| Some((&**key, value.as_str()?)))
    }

    /// Sets labels, and removes those without a value.
    pub(crate) fn label(&mut self, changes: &[(String, Option<String>)]) {
        let entry = self.0.entry("labels").or_insert_with(|| json!({}));
        if !entry.is_object() {
            *entry = json!({});
        }
        let Some(labels) = entry.as_object_mut() else { return };
        for (key, value) in changes {
            match value {
                Some(value) => drop(labels.insert(key.clone(), value.clone().into())),
                None => drop(labels.remove(key)),
            }
        }
        if labels.is_empty() {
            self.0.remove("labels");
        }
    }
}

/// The key of the intent of a host.
pub(crate) fn key(prefix: &str, host: &str) -> String {
    format!("{prefix}{INTENTS}{host}")
}

/// What operators say of all hosts, by name.
pub(crate) async fn all(client: &EtcdClient) -> Result<Vec<(String, IntentValue)>, EtcdError> {
    let prefix = format!("{}{INTENTS}", client.options().prefix);
    let pairs = client.list(prefix.as_bytes(), false).await?.pairs;
    let name = |key: &[u8]| String::from_utf8_lossy(&key[prefix.len().min(key.len())..]).into_owned();
    Ok(pairs.iter().map(|pair| (name(&pair.key), IntentValue::read(&pair.value))).collect())
}

/// Changes what operators say of a host, whatever others change meanwhile; gives what is said now.
///
/// # Errors
///
/// Fails if followers could not read the result.
pub(crate) async fn change(
    client: &EtcdClient,
    host: &str,
    change: impl Fn(&mut IntentValue),
) -> Result<IntentValue, Failure> {
    let key = key(&client.options().prefix, host).into_bytes();
    for _ in 0..TRIES_MAX {
        let (pair, _) = client.get(&key).await?;
        let before = pair.as_ref().map(|pair| IntentValue::read(&pair.value)).unwrap_or_default();
        let mut now_said = before.clone();
        change(&mut now_said);
        if pair.is_some() && now_said == before {
            return Ok(before);
        }
        now_said.0.insert("by".into(), author().into());
        now_said.0.insert("at".into(), written(now()).into());
        let value = serde_json::to_vec(&now_said.0)?;
        let map: Map = serde_json::from_slice(&value)?;
        live::intents::Intent::parse(&map)?;
        let compare = match &pair {
            Some(pair) => Compare::unchanged(key.clone(), pair.mod_revision),
            None => Compare::absent(key.clone()),
        };
        let success = vec![Op::Put { key: key.clone(), value, lease: 0 }];
        if client.txn(Txn { compare: vec![compare], success, failure: Vec::new() }).await?.succeeded {
            return Ok(now_said);
        }
    }
    Err(format!("{} is changed by others all the time; try again", String::from_utf8_lossy(&key)).into())
}

/// A change of a label on a command line.
pub(crate) fn change_of_label(text: &str) -> Result<(String, Option<String>), String> {
    let change = match text.split_once('=') {
        Some((key, value)) => Some((key, Some(value.to_owned()))),
        None => text.strip_suffix('-').map(|key| (key, None)),
    };
    let change = change.filter(|(key, _)| !key.is_empty()).map(|(key, value)| (key.to_owned(), value));
    change.ok_or_else(|| format!("{text:?} is no label; expected KEY=VALUE, or KEY- to take one away"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_given_and_taken_away() {
        assert_eq!(change_of_label("zone=a=b,c"), Ok(("zone".into(), Some("a=b,c".into()))));
        assert_eq!(change_of_label("zone="), Ok(("zone".into(), Some(String::new()))));
        assert_eq!(change_of_label("zone-"), Ok(("zone".into(), None)));
        assert!(change_of_label("zone").is_err() && change_of_label("=a").is_err() && change_of_label("-").is_err());
        let mut intent = IntentValue::default();
        intent.label(&[("a".into(), Some("1".into())), ("b".into(), None)]);
        assert_eq!(intent.labels().collect::<Vec<_>>(), [("a", "1")]);
        intent.label(&[("a".into(), None)]);
        assert!(intent.0.is_empty());
    }
}
