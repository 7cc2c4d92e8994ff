//! `intents/HOST`: what operators say of a host. One value for all that they say, changed by comparing and putting.

use etcd::{Compare, EtcdClient, EtcdError, Op, Txn};
use live::intents::{HostState, INTENTS, Intent};
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

    /// The state that operators gave the host.
    pub(crate) fn state(&self) -> Option<HostState> {
        HostState::parse(self.0.get("state")?.as_str()?)
    }

    /// The state with its author and reason.
    pub(crate) fn described(&self) -> Option<String> {
        let map: Map = serde_json::from_value(Value::Object(self.0.clone())).ok()?;
        Some(Intent::parse(&map).ok()?.described()?.to_string())
    }

    /// Why it was given the state, and since when it has it and by whom.
    pub(crate) fn of_state(&self) -> [&str; 3] {
        ["reason", "state_at", "state_by"].map(|field| self.0.get(field).and_then(Value::as_str).unwrap_or_default())
    }

    /// Why it was given the state, if that is said.
    pub(crate) fn reason(&self) -> Option<&str> {
        Some(self.of_state()[0]).filter(|reason| !reason.is_empty())
    }

    /// Gives the host a state. One that it has already keeps its time unless the reason is another.
    pub(crate) fn set_state(&mut self, state: HostState, reason: Option<&str>) {
        let reason = reason.map_or(Value::Null, Value::from);
        if self.state() == Some(state) && self.0.get("reason").unwrap_or(&Value::Null) == &reason {
            return;
        }
        self.clear_state();
        self.0.insert("state".into(), state.word().into());
        self.0.insert("state_by".into(), author().into());
        self.0.insert("state_at".into(), written(now()).into());
        if !reason.is_null() {
            self.0.insert("reason".into(), reason);
        }
    }

    /// Leaves the host its own state.
    pub(crate) fn clear_state(&mut self) {
        for field in ["state", "state_by", "state_at", "reason", "deadline"] {
            self.0.remove(field);
        }
    }

    /// Whether nothing is left but who wrote it and when.
    fn says_nothing(&self) -> bool {
        self.0.keys().all(|field| ["at", "by"].contains(&&**field))
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
        let is_over = now_said.says_nothing();
        if now_said == before && (pair.is_some() != is_over) {
            return Ok(before);
        }
        now_said.0.insert("by".into(), author().into());
        now_said.0.insert("at".into(), written(now()).into());
        let value = serde_json::to_vec(&now_said.0)?;
        let map: Map = serde_json::from_slice(&value)?;
        Intent::parse(&map)?;
        let compare = match &pair {
            Some(pair) => Compare::unchanged(key.clone(), pair.mod_revision),
            None => Compare::absent(key.clone()),
        };
        // A key that says nothing would have the host listed as expected for ever.
        let write = if is_over { Op::Delete(key.clone()) } else { Op::Put { key: key.clone(), value, lease: 0 } };
        let success = vec![write];
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
    fn a_state_is_given_and_taken_away_and_labels_stay() {
        let mut intent = IntentValue::default();
        intent.label(&[("a".into(), Some("1".into()))]);
        intent.set_state(HostState::Cordoned, Some("disk"));
        let given = intent.clone();
        assert_eq!((intent.state(), intent.of_state()[0]), (Some(HostState::Cordoned), "disk"));
        assert!(intent.described().unwrap().ends_with(": disk"));
        intent.set_state(HostState::Cordoned, Some("disk"));
        assert_eq!(intent, given);
        intent.set_state(HostState::Draining, None);
        assert_eq!((intent.state(), intent.of_state()[0]), (Some(HostState::Draining), ""));
        intent.clear_state();
        assert_eq!((intent.state(), intent.0.len(), intent.says_nothing()), (None, 1, false));
        intent.label(&[("a".into(), None)]);
        intent.0.insert("by".into(), "root".into());
        assert!(intent.says_nothing());
    }

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
