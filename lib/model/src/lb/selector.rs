//! Selectors of labels: `k=v`, `k!=v`, `k`, `k in (a, b)`, `k notin (a, b)`; commas are AND, case does not matter.

use crate::value::{Map, Value};

/// Longest selector, in bytes: far more than anybody writes, and little to parse for each service.
const BYTES_MAX: usize = 4096;

/// What the labels of a service have to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector(Vec<Condition>);

/// One condition; `!=` and `notin` want the key to be there, as the predecessor's documentation says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Condition {
    key: String,
    /// `None`: the key only has to be there.
    values: Option<(bool, Vec<String>)>,
}

impl Selector {
    /// Reads a selector.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > BYTES_MAX {
            return Err(format!("a selector has at most {BYTES_MAX} bytes"));
        }
        let text = text.to_lowercase();
        let mut conditions = Vec::new();
        for part in parts(&text)? {
            conditions.push(Condition::parse(part.trim())?);
        }
        Ok(Self(conditions))
    }

    /// Whether these labels are such.
    pub fn matches(&self, labels: Option<&Map>) -> bool {
        let Some(labels) = labels else { return false };
        self.0.iter().all(|condition| {
            let mut found = labels.iter().filter(|(key, _)| key.to_lowercase() == condition.key);
            found.any(|(_, value)| condition.holds(value))
        })
    }
}

impl Condition {
    fn parse(text: &str) -> Result<Self, String> {
        let one =
            |key: &str, is: bool, value: &str| Ok((key.trim().to_owned(), Some((is, vec![value.trim().to_owned()]))));
        let set = || {
            let (front, values) = text.strip_suffix(')')?.split_once('(')?;
            let (key, operator) = front.trim().rsplit_once(char::is_whitespace)?;
            let is = match operator {
                "in" => true,
                "notin" => false,
                _ => return None,
            };
            Some((key.trim().to_owned(), Some((is, values.split(',').map(|value| value.trim().to_owned()).collect()))))
        };
        let (key, values) = match (text.split_once("!="), text.split_once('=')) {
            _ if text.contains('(') => {
                set().ok_or_else(|| format!("{text:?}: expected `key in (a, b)` or `key notin (a, b)`"))
            }
            (Some((key, value)), _) => one(key, false, value),
            (None, Some((key, value))) => one(key, true, value.strip_prefix('=').unwrap_or(value)),
            (None, None) => Ok((text.to_owned(), None)),
        }?;
        if key.is_empty() || key.contains(|char: char| char.is_whitespace() || char == ')') {
            return Err(format!(
                "{text:?}: expected `key=value`, `key!=value`, `key`, `key in (a, b)` or `key notin (a, b)`"
            ));
        }
        Ok(Self { key, values })
    }

    fn holds(&self, value: &Value) -> bool {
        let Some((is, values)) = &self.values else { return true };
        let value = match value {
            Value::Text(text) => text.to_lowercase(),
            Value::Int(number) => number.to_string(),
            Value::Bool(bool) => bool.to_string(),
            _ => return false,
        };
        values.contains(&value) == *is
    }
}

/// The conditions, split at commas outside of brackets.
fn parts(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut from, mut depth) = (Vec::new(), 0, 0);
    for (at, char) in text.char_indices() {
        match char {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
        if !(0..=1).contains(&depth) {
            return Err(format!("{text:?}: its brackets do not match"));
        }
    }
    if depth != 0 {
        return Err(format!("{text:?}: its brackets do not match"));
    }
    parts.push(&text[from..]);
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_operators() {
        let labels: Map = serde_json::from_str(r#"{"Tier": "Web", "zone": "a", "empty": ""}"#).unwrap();
        for (selector, expected) in [
            ("tier=web", true),
            ("TIER = WEB", true),
            ("tier == web", true),
            ("tier=db", false),
            ("tier!=db", true),
            ("tier != web", false),
            ("other!=web", false),
            ("zone", true),
            ("other", false),
            ("zone in (a, b)", true),
            ("zone in (b,c)", false),
            ("zone notin (b, c)", true),
            ("zone notin (a)", false),
            ("other notin (a)", false),
            ("tier=web, zone in (a, b), empty", true),
            ("tier=web,zone=b", false),
            ("empty=", true),
        ] {
            assert_eq!(Selector::parse(selector).unwrap().matches(Some(&labels)), expected, "{selector}");
        }
    }

    #[test]
    fn what_is_no_selector_is_refused() {
        for text in ["", ",", "a,", "=b", "a in b)", "a in (b", "a within (b)", "a b", "a in ((b))", "in (a)"] {
            assert!(Selector::parse(text).is_err(), "{text}");
        }
    }
}
