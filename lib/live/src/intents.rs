//! What operators say of hosts: `intents/HOST` and `config/labels.reserved`. No host writes these keys.

use std::collections::BTreeSet;

use model::printable::printable;
use model::{Map, Text, Value};

/// Beginning of the keys of intents, and of the names of their parts.
pub const INTENTS: &str = "intents/";

/// The key of the labels that only operators give, and the name of its part.
pub const RESERVED_LABELS: &str = "config/labels.reserved";

/// Prefix of labels that only operators give, even if [`RESERVED_LABELS`] does not list them.
pub const ADMIN_LABELS: &str = "io.berth.admin/";

/// Most labels that operators give one host.
pub const LABELS_MAX: usize = 1024;

/// Longest reason for a state and longest name of an operator that are passed on, in characters: a line of a terminal.
const WORDS_MAX: usize = 120;

/// What operators want of a host, as far as answers depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intent {
    /// They replace those that the host has itself.
    pub labels: Vec<(Text, Text)>,
    /// The state that it is given; `None` leaves it its own.
    pub state: Option<HostState>,
    /// Who gave it the state, and why, as it follows the word of the state: ` by anna: disk`.
    pub said: Text,
}

/// A state that operators give a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostState {
    /// It gets no new containers; what is there stays.
    Cordoned,
    /// What schedulers started there is moved to other hosts.
    Draining,
    /// Nothing of that is left.
    Drained,
}

impl HostState {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Cordoned, Self::Draining, Self::Drained];

    /// Its word in the intent.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cordoned => "cordoned",
            Self::Draining => "draining",
            Self::Drained => "drained",
        }
    }

    /// The predecessor's word for it, as metadata returns it.
    pub fn on_the_wire(self) -> &'static str {
        match self {
            Self::Cordoned | Self::Drained => "inactive",
            Self::Draining => "deactivating",
        }
    }

    /// The state of a word; `None` for any other, which a later release may have.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }
}

impl Intent {
    /// The intent in `{"labels": {"zone": "a"}, "state": "cordoned", "state_by": "anna", "reason": "disk", ...}`; what else is in
    /// it is for other commands.
    ///
    /// # Errors
    ///
    /// Says what is wrong with it.
    pub fn parse(value: &Map) -> Result<Self, String> {
        let state = value.text("state").and_then(|word| HostState::parse(word));
        let said = state.map(|_| said(value)).unwrap_or_default();
        let Some(labels) = value.get("labels") else { return Ok(Self { state, said, ..Self::default() }) };
        let labels = labels.as_map().ok_or("labels: expected a map of texts")?;
        if labels.len() > LABELS_MAX {
            return Err(format!("labels: at most {LABELS_MAX} of them"));
        }
        let label = |(key, value): &(Text, Value)| match value {
            Value::Text(value) if !key.is_empty() => Ok((key.clone(), value.clone())),
            _ => Err(format!("labels/{key}: expected a text")),
        };
        Ok(Self { labels: labels.iter().map(label).collect::<Result<_, _>>()?, state, said })
    }

    /// The state in words: `cordoned by anna: disk`.
    pub fn described(&self) -> Option<Text> {
        Some(format!("{}{}", self.state?.word(), self.said).into())
    }
}

/// Who gave the state, and why.
fn said(value: &Map) -> Text {
    let words = |key| value.text(key).map(|text| printable(text, WORDS_MAX)).filter(|text| !text.is_empty());
    let by = words("state_by").or_else(|| words("by")).map(|by| format!(" by {by}"));
    let reason = words("reason").map(|reason| format!(": {reason}"));
    by.into_iter().chain(reason).collect::<String>().into()
}

/// The labels that count only when an operator gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    keys: BTreeSet<Text>,
    /// Beginnings of keys.
    prefixes: Vec<Text>,
}

impl Reserved {
    /// Those in `{"keys": ["zone", "team/*"]}`, besides [`ADMIN_LABELS`].
    ///
    /// # Errors
    ///
    /// Says what is wrong with it.
    pub fn parse(value: &Map) -> Result<Self, String> {
        const EXPECTED: &str = "expected keys, a list of labels, each with * at its end for all that begin so";
        if let Some((key, _)) = value.iter().find(|(key, _)| !matches!(&**key, "berth" | "keys")) {
            return Err(format!("unknown key {key}, {EXPECTED}"));
        }
        let mut reserved = Self::default();
        for key in value.get("keys").and_then(Value::as_list).ok_or(EXPECTED)? {
            let key = key.as_text().filter(|key| !key.is_empty()).ok_or(EXPECTED)?;
            match key.strip_suffix('*') {
                Some(prefix) => reserved.prefixes.push(prefix.into()),
                None => drop(reserved.keys.insert(key.clone())),
            }
        }
        Ok(reserved)
    }

    /// Whether only operators give this label.
    pub fn contains(&self, key: &str) -> bool {
        key.starts_with(ADMIN_LABELS)
            || self.keys.contains(key)
            || self.prefixes.iter().any(|prefix| key.starts_with(&**prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(json: &str) -> Map {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn an_intent_has_labels_that_are_texts() {
        let labels = |json: &str| Intent::parse(&map(json)).map(|intent| intent.labels);
        assert_eq!(labels(r#"{"labels": {"a": "1,2\n3"}, "state": "x"}"#), Ok(vec![("a".into(), "1,2\n3".into())]));
        assert_eq!(labels("{}"), Ok(Vec::new()));
        for json in [r#"{"labels": []}"#, r#"{"labels": {"a": 1}}"#, r#"{"labels": {"": "x"}}"#] {
            assert!(labels(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_state_has_its_author_and_reason() {
        let described = |json: &str| Intent::parse(&map(json)).unwrap().described();
        for (json, expected) in [
            (r#"{"state": "cordoned"}"#, Some("cordoned")),
            (
                r#"{"state": "cordoned", "by": "anna@ops1", "reason": "disk\n\u001b[2J"}"#,
                Some("cordoned by anna@ops1: disk[2J"),
            ),
            (r#"{"state": "cordoned", "reason": "disk"}"#, Some("cordoned: disk")),
            (r#"{"state": "draining", "by": "bob", "state_by": "anna"}"#, Some("draining by anna")),
            (r#"{"state": "drained", "labels": {"a": "b"}}"#, Some("drained")),
            // A word of a later release.
            (r#"{"state": "resting", "by": "anna"}"#, None),
            (r#"{"by": "anna", "reason": "labels"}"#, None),
        ] {
            assert_eq!(described(json).as_deref(), expected, "{json}");
        }
    }

    #[test]
    fn reserved_labels_are_those_of_the_key_and_of_administrators() {
        let reserved = Reserved::parse(&map(r#"{"keys": ["zone", "team/*"]}"#)).unwrap();
        for (key, expected) in
            [("zone", true), ("zone2", false), ("team/a", true), ("team", false), ("io.berth.admin/x", true)]
        {
            assert_eq!(reserved.contains(key), expected, "{key}");
        }
        for json in ["{}", r#"{"keys": [""]}"#, r#"{"keys": "zone"}"#, r#"{"key": []}"#] {
            assert!(Reserved::parse(&map(json)).is_err(), "{json}");
        }
    }
}
