//! Reading the fields of a body one by one, with errors that name the field and what it expected.

use model::{Map, Text, Value};

use crate::place::invalid::Invalid;
use crate::place::request::limits::{AMOUNT_MAX, ID_MAX, LIST_MAX, TEXT_MAX};

/// A map being read, and the way to it.
#[derive(Clone)]
pub(crate) struct Fields<'a> {
    pub(crate) path: String,
    pub(crate) map: &'a Map,
}

impl<'a> Fields<'a> {
    /// The fields of a whole body.
    pub(crate) fn of(value: &'a Value) -> Result<Self, Invalid> {
        let map = value.as_map().ok_or_else(|| Invalid::new("", format!("found {}", value.kind()), "a map"))?;
        Ok(Self { path: String::new(), map })
    }

    pub(crate) fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    pub(crate) fn wrong<T>(&self, key: &str, value: &Value, expected: impl Into<String>) -> Result<T, Invalid> {
        Err(Invalid::new(self.at(key), format!("found {}", shown(value)), expected))
    }

    pub(crate) fn only(&self, known: &[&[&str]]) -> Result<(), Invalid> {
        match self.map.iter().find(|(key, _)| !known.iter().any(|known| known.contains(&&**key))) {
            None => Ok(()),
            Some((key, _)) => {
                let key: String = key.chars().take(64).collect();
                let mut names: Vec<_> = known.iter().flat_map(|known| known.iter().copied()).collect();
                names.sort_unstable();
                Err(Invalid::new(self.at(&key), "unknown field", format!("one of {}", names.join(", "))))
            }
        }
    }

    /// The value of a key; `null` is a value too, and what the description does not allow.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key)
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<Text>, Invalid> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) if !text.is_empty() && text.len() <= TEXT_MAX => Ok(Some(text.clone())),
            Some(other) => self.wrong(key, other, format!("text of 1 to {TEXT_MAX} bytes")),
        }
    }

    /// Text that may stand in a URL and name a container.
    pub(crate) fn id(&self, key: &str) -> Result<Option<Text>, Invalid> {
        let fine = |text: &str| {
            (1..=ID_MAX).contains(&text.len())
                && text.starts_with(|first: char| first.is_ascii_alphanumeric())
                && text.chars().all(|char| char.is_ascii_alphanumeric() || "_.-".contains(char))
        };
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) if fine(text) => Ok(Some(text.clone())),
            Some(other) => {
                let expected = format!("1 to {ID_MAX} letters, digits, '_', '.' and '-', a letter or digit first");
                self.wrong(key, other, expected)
            }
        }
    }

    pub(crate) fn truth(&self, key: &str) -> Result<bool, Invalid> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Bool(bool)) => Ok(*bool),
            Some(other) => self.wrong(key, other, "true or false"),
        }
    }

    pub(crate) fn int(&self, key: &str, least: i64, most: i64) -> Result<Option<i64>, Invalid> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match value.as_int().filter(|int| (least..=most).contains(int)) {
                Some(int) => Ok(Some(int)),
                None => self.wrong(key, value, format!("a whole number from {least} to {most}")),
            },
        }
    }

    pub(crate) fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<Option<T>, Invalid> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let known = |text: &&str| words.iter().find(|(word, _)| word == text).map(|(_, meaning)| *meaning);
        if let Some(meaning) = value.as_str().as_ref().and_then(known) {
            return Ok(Some(meaning));
        }
        let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        self.wrong(key, value, words.join(" or "))
    }

    pub(crate) fn list(&self, key: &str, most: usize) -> Result<&'a [Value], Invalid> {
        match self.get(key) {
            None => Ok(&[]),
            Some(Value::List(items)) if items.len() <= most => Ok(items),
            Some(other) => self.wrong(key, other, format!("a list of at most {most} entries")),
        }
    }

    /// A text, or a list of them.
    pub(crate) fn texts(&self, key: &str) -> Result<Vec<Text>, Invalid> {
        if let Some(Value::Text(_)) = self.get(key) {
            return Ok(self.text(key)?.into_iter().collect());
        }
        self.text_list(key)
    }

    pub(crate) fn text_list(&self, key: &str) -> Result<Vec<Text>, Invalid> {
        let fine = |(at, item): (usize, &Value)| match item {
            Value::Text(text) if !text.is_empty() && text.len() <= TEXT_MAX => Ok(text.clone()),
            other => self.wrong(&format!("{key}[{at}]"), other, format!("text of 1 to {TEXT_MAX} bytes")),
        };
        self.list(key, LIST_MAX)?.iter().enumerate().map(fine).collect()
    }

    pub(crate) fn entry(&self, key: &str, at: usize, value: &'a Value) -> Result<Self, Invalid> {
        let path = self.at(&format!("{key}[{at}]"));
        match value {
            Value::Map(map) => Ok(Fields { path, map }),
            other => Err(Invalid::new(path, format!("found {}", shown(other)), "a map")),
        }
    }

    /// An amount of something.
    pub(crate) fn amount(&self, key: &str) -> Result<Option<i64>, Invalid> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match amount(value).filter(|amount| (0..=AMOUNT_MAX).contains(amount)) {
            Some(amount) => Ok(Some(amount)),
            None => self.wrong(key, value, format!("a whole number from 0 to {AMOUNT_MAX}, or bytes such as 512MiB")),
        }
    }
}

/// An amount: a whole number, or text with a binary unit.
pub(crate) fn amount(value: &Value) -> Option<i64> {
    let Value::Text(text) = value else { return value.as_int() };
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "ki" | "kib" | "kb" => 10,
        "m" | "mi" | "mib" | "mb" => 20,
        "g" | "gi" | "gib" | "gb" => 30,
        "t" | "ti" | "tib" | "tb" => 40,
        _ => return None,
    };
    digits.trim().parse::<i64>().ok()?.checked_mul(1 << shift)
}

/// A value as it is shown in a message: always short.
fn shown(value: &Value) -> String {
    match value {
        Value::Text(text) if text.chars().count() <= 64 => format!("{text:?}"),
        Value::Int(int) => int.to_string(),
        Value::Bool(bool) => bool.to_string(),
        Value::List(items) => format!("a list of {} entries", items.len()),
        Value::Map(map) => format!("a map of {} entries", map.len()),
        Value::Text(text) => format!("text of {} bytes", text.len()),
        other => other.kind().to_owned(),
    }
}
