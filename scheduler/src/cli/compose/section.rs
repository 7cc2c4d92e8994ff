//! A section of a compose file: a map being read, and the way to it.

use model::{Map, Text, Value};

use crate::place::fields::amount;
use crate::place::invalid::Invalid;

/// A map being read, and the way to it.
pub(super) struct Section<'a> {
    pub(super) path: String,
    pub(super) map: &'a Map,
}

/// Fields of a request in the making.
pub(super) type Draft = Vec<(Text, Value)>;

impl<'a> Section<'a> {
    pub(super) fn new(path: String, value: &'a Value) -> Result<Self, Invalid> {
        match value {
            Value::Map(map) => Ok(Self { path, map }),
            other => Err(Invalid::new(path, format!("found {}", other.kind()), "a map")),
        }
    }

    pub(super) fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn below(&self, key: &str) -> Result<Option<Self>, Invalid> {
        self.get(key).map(|value| Section::new(self.at(key), value)).transpose()
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<Text>, Invalid> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::List(_) | Value::Map(_)) => Err(Invalid::new(self.at(key), "no text", "text")),
            Some(scalar) => Ok(crate::place::hosts::label(&(key.into(), scalar.clone())).map(|(_, text)| text)),
        }
    }

    /// Refuses keys that would not be honoured.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), Invalid> {
        let unknown =
            self.map.iter().find(|(key, value)| !known.contains(&&**key) && !key.starts_with("x-") && !value.is_null());
        match unknown {
            None => Ok(()),
            Some((key, _)) => Err(unsupported(self.at(key), known)),
        }
    }

    /// A map, or a list of `KEY=VALUE`; a key alone has the value null.
    pub(super) fn pairs(&self, key: &str) -> Result<Vec<(Text, Value)>, Invalid> {
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Map(map)) => Ok(map.iter().cloned().collect()),
            Some(Value::List(items)) => items
                .iter()
                .enumerate()
                .map(|(at, item)| match item.as_str().map(|text| (text, text.split_once('='))) {
                    Some((_, Some((key, value)))) => Ok((Text::from(key), Value::text(value))),
                    Some((key, None)) => Ok((Text::from(key), Value::Null)),
                    None => Err(Invalid::new(self.at(&format!("{key}[{at}]")), "no text", "KEY=VALUE")),
                })
                .collect(),
            Some(other) => Err(Invalid::new(self.at(key), format!("found {}", other.kind()), "a map or a list")),
        }
    }
}

/// What two keys say of one amount: they have to say the same.
pub(super) fn the_same(
    one: Option<Value>,
    (other, at): (Option<Value>, String),
    key: &str,
) -> Result<Option<Value>, Invalid> {
    match (one, other) {
        (Some(one), Some(other)) if one != other && amount(&one) != amount(&other) => {
            Err(Invalid::new(at, format!("given with {key}, which says another number"), "one of them"))
        }
        (one, other) => Ok(other.or(one)),
    }
}

pub(super) fn unsupported(field: String, known: &[&str]) -> Invalid {
    let expected = if known.is_empty() { "nothing there".to_owned() } else { format!("one of {}", known.join(", ")) };
    Invalid::new(field, "is not supported", expected)
}
