//! What operators say of hosts: `intents/HOST` and `config/labels.reserved`. No host writes these keys.

use std::collections::BTreeSet;

use model::{Map, Text, Value};

/// Beginning of the keys of intents, and of the names of their parts.
pub const INTENTS: &str = "intents/";

/// The key of the labels that only operators give, and the name of its part.
pub const RESERVED_LABELS: &str = "config/labels.reserved";

/// Prefix of labels that only operators give, even if [`RESERVED_LABELS`] does not list them.
pub const ADMIN_LABELS: &str = "io.berth.admin/";

/// Most labels that operators give one host.
pub const LABELS_MAX: usize = 1024;

/// What operators want of a host, as far as answers depend on it: its labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intent {
    /// They replace those that the host has itself.
    pub labels: Vec<(Text, Text)>,
}

impl Intent {
    /// The intent in `{"labels": {"zone": "a"}, ...}`; what else is in it is for other commands.
    ///
    /// # Errors
    ///
    /// Says what is wrong with it.
    pub fn parse(value: &Map) -> Result<Self, String> {
        let Some(labels) = value.get("labels") else { return Ok(Self::default()) };
        let labels = labels.as_map().ok_or("labels: expected a map of texts")?;
        if labels.len() > LABELS_MAX {
            return Err(format!("labels: at most {LABELS_MAX} of them"));
        }
        let label = |(key, value): &(Text, Value)| match value {
            Value::Text(value) if !key.is_empty() => Ok((key.clone(), value.clone())),
            _ => Err(format!("labels/{key}: expected a text")),
        };
        Ok(Self { labels: labels.iter().map(label).collect::<Result<_, _>>()? })
    }
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
