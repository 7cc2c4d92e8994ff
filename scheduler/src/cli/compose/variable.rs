//! Variables in a compose file.

use model::{Map, Text, Value};

use crate::cli::compose::Compose;
use crate::place::invalid::Invalid;

/// How deep defaults may stand in each other: no file needs more, and each level is a call.
const NESTING_MAX: usize = 16;

impl Compose<'_> {
    /// The value with variables in place, as compose has them.
    pub(super) fn interpolated(&self, path: &str, value: &Value) -> Result<Value, Invalid> {
        Ok(match value {
            Value::Text(text) => Value::Text(self.interpolate(path, text)?.into()),
            Value::List(items) => {
                let items: Result<Vec<_>, _> = items
                    .iter()
                    .enumerate()
                    .map(|(at, item)| self.interpolated(&format!("{path}[{at}]"), item))
                    .collect();
                Value::list(items?)
            }
            Value::Map(map) => {
                let entries: Result<Vec<_>, _> = map
                    .iter()
                    .map(|(key, value)| Ok((key.clone(), self.interpolated(&format!("{path}.{key}"), value)?)))
                    .collect();
                Map::new(entries?).into()
            }
            other => other.clone(),
        })
    }

    /// A map with variables in place in its keys, as in the names of volumes.
    pub(super) fn named(&self, value: &Value) -> Result<Value, Invalid> {
        let Value::Map(map) = value else { return Ok(value.clone()) };
        let entry = |(key, value): &(Text, Value)| {
            Ok((self.interpolate(&format!("volumes.{key}"), key)?.into(), value.clone()))
        };
        Ok(Map::new(map.iter().map(entry).collect::<Result<_, Invalid>>()?).into())
    }

    fn interpolate(&self, path: &str, text: &str) -> Result<String, Invalid> {
        self.nested(path, text, 0)
    }

    fn nested(&self, path: &str, text: &str, depth: usize) -> Result<String, Invalid> {
        let wrong = |problem: String| {
            Invalid::new(path, problem, "$NAME, ${NAME}, ${NAME:-DEFAULT}, ${NAME:+OTHER}, ${NAME:?MESSAGE} or $$")
        };
        if depth > NESTING_MAX {
            return Err(wrong(format!("defaults are nested more than {NESTING_MAX} deep")));
        }
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            out.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('$') {
                out.push('$');
                rest = after;
                continue;
            }
            let braced = rest.strip_prefix('{');
            let (inner, after) = match braced {
                Some(inner) => divided(inner).ok_or_else(|| wrong("a brace stays open".into()))?,
                None => rest.split_at(name_end(rest)),
            };
            let (name, operation) = inner.split_at(name_end(inner));
            if name.is_empty() {
                return Err(wrong("a $ without a name".into()));
            }
            // With a colon an empty value counts as none.
            let (counts_empty, operation) = operation.strip_prefix(':').map_or((true, operation), |rest| (false, rest));
            let value = (self.variable)(name).filter(|value| counts_empty || !value.is_empty());
            let operator = operation.chars().next();
            let word = operation.get(1..).unwrap_or_default();
            match (operator, value) {
                // The predecessor's own words, which the scheduler puts in.
                (None, None) if counts_empty && matches!(name, "service_name" | "stack_name" | "project_name") => {
                    out.extend(["${", name, "}"]);
                }
                (None, Some(value)) if counts_empty => out.push_str(&value),
                (None, None) if counts_empty => {
                    self.warn(path.to_owned(), &format!("nothing sets {name}: it is empty"));
                }
                (Some('-' | '?'), Some(value)) => out.push_str(&value),
                (Some('-'), None) | (Some('+'), Some(_)) => out.push_str(&self.nested(path, word, depth + 1)?),
                (Some('+'), None) => {}
                (Some('?'), None) => {
                    let message = self.nested(path, word, depth + 1)?;
                    let colon = if message.is_empty() { "" } else { ": " };
                    return Err(Invalid::new(
                        path,
                        format!("variable {name} is not set{colon}{message}"),
                        "a value for it",
                    ));
                }
                _ => return Err(wrong(format!("found ${{{inner}}}"))),
            }
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }
}

fn name_end(text: &str) -> usize {
    text.find(|char: char| !char.is_ascii_alphanumeric() && char != '_').unwrap_or(text.len())
}

/// What stands before the brace that closes, and what comes after it.
fn divided(text: &str) -> Option<(&str, &str)> {
    let mut open = 0_usize;
    let mut before = ' ';
    for (at, char) in text.char_indices() {
        match char {
            '{' if before == '$' => open += 1,
            '}' if open == 0 => return Some((&text[..at], &text[at + 1..])),
            '}' => open -= 1,
            _ => {}
        }
        before = char;
    }
    None
}
