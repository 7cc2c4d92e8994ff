//! Variables in a compose file.

use model::{Map, Value};

use crate::cli::compose::Compose;
use crate::place::invalid::Invalid;

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

    fn interpolate(&self, path: &str, text: &str) -> Result<String, Invalid> {
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
            let wrong = |problem: String| Invalid::new(path, problem, "$NAME, ${NAME}, ${NAME:-DEFAULT} or $$");
            let (name, default, after) = if let Some(inner) = rest.strip_prefix('{') {
                let (inner, after) = inner.split_once('}').ok_or_else(|| wrong("a brace stays open".into()))?;
                let end = inner.find(|char: char| !char.is_ascii_alphanumeric() && char != '_').unwrap_or(inner.len());
                let default = match (&inner[end..], inner[end..].strip_prefix(":-")) {
                    ("", _) => None,
                    (_, Some(default)) => Some((default, true)),
                    (other, None) => {
                        let default = other.strip_prefix('-').ok_or_else(|| wrong(format!("found ${{{inner}}}")))?;
                        Some((default, false))
                    }
                };
                (&inner[..end], default, after)
            } else {
                let end = rest.find(|char: char| !char.is_ascii_alphanumeric() && char != '_').unwrap_or(rest.len());
                (&rest[..end], None, &rest[end..])
            };
            if name.is_empty() {
                return Err(wrong("a $ without a name".into()));
            }
            let value = (self.variable)(name);
            match (value, default) {
                // The predecessor's own words, which the scheduler puts in.
                (None, None) if matches!(name, "service_name" | "stack_name" | "project_name") => {
                    out.extend(["${", name, "}"]);
                }
                (Some(value), Some((default, true))) if value.is_empty() => out.push_str(default),
                (Some(value), _) => out.push_str(&value),
                (None, Some((default, _))) => out.push_str(default),
                (None, None) => return Err(wrong(format!("variable {name} is not set"))),
            }
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }
}
