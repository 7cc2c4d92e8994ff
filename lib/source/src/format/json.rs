//! JSON into values.

use std::collections::HashSet;
use std::fmt;

use model::{Map, Pool, Value, ValueSeed};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{FormatError, position, twice};

/// Why a text is no JSON.
pub(super) struct JsonError {
    pub(super) error: FormatError,
    /// Whether it may be another language; otherwise it is JSON that was cut, or with a number that no one can hold.
    pub(super) may_be_yaml: bool,
}

/// The value of a JSON text. Nesting is bounded by the parser (128 levels).
pub(super) fn parse(text: &str) -> Result<Value, JsonError> {
    if let Some(value) = model::json::read(text) {
        return Ok(value);
    }
    // Not for the fast reader: either no JSON, which the complete one explains, or something that hardly ever occurs.
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = ValueSeed(&mut Pool::default()).deserialize(&mut deserializer);
    value.and_then(|value| deserializer.end().map(|()| value)).map_err(|found| {
        let error = error(&found);
        let may_be_yaml = !found.is_eof() && !error.problem.contains("number out of range");
        JsonError { error, may_be_yaml }
    })
}

/// Refuses a JSON text in which an object has a key twice.
pub(super) fn check_unique(text: &str) -> Result<(), FormatError> {
    let found = serde_json::Deserializer::from_str(text).deserialize_any(UniqueKeys);
    found.map_err(|found| FormatError {
        problem: found.to_string().split(" at line ").next().unwrap_or_default().to_owned(),
        at: Some(position(found.line(), found.column().max(1))),
    })
}

/// A value in which no object has a key twice.
struct UniqueKeys;

impl<'de> DeserializeSeed<'de> for UniqueKeys {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueKeys {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        while access.next_element_seed(Self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = access.next_key::<String>()? {
            if keys.contains(&key) {
                return Err(serde::de::Error::custom(twice(&key)));
            }
            keys.insert(key);
            access.next_value_seed(Self)?;
        }
        Ok(())
    }
}

/// The objects of concatenated JSON texts.
pub(super) fn objects(text: &[u8]) -> Result<Vec<Map>, FormatError> {
    let text = text.trim_ascii_end();
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let mut pool = Pool::default();
    let mut objects = Vec::new();
    loop {
        let mut begun = false;
        match (ObjectSeed { pool: &mut pool, begun: &mut begun }).deserialize(&mut deserializer) {
            Ok(object) => objects.push(object),
            Err(found) if !begun && is_at_end(text, &found) => return Ok(objects),
            Err(found) => return Err(error(&found)),
        }
    }
}

/// Whether an object was missing because there is no more text.
///
/// The parser can be asked for that, but then it counts all lines from the first one each time.
fn is_at_end(text: &[u8], error: &serde_json::Error) -> bool {
    let whole = text.last().is_none_or(|last| *last == b'}');
    whole && error.is_eof() && error.to_string().starts_with("EOF while parsing a value")
}

/// Reads an object, and notes that one began.
struct ObjectSeed<'p> {
    pool: &'p mut Pool,
    begun: &'p mut bool,
}

impl<'de> DeserializeSeed<'de> for ObjectSeed<'_> {
    type Value = Map;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Map, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ObjectSeed<'_> {
    type Value = Map;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Map, A::Error> {
        *self.begun = true;
        ValueSeed(self.pool).map(access)
    }
}

fn error(error: &serde_json::Error) -> FormatError {
    let text = error.to_string();
    let at = position(error.line(), error.column().max(1));
    // The parser's text ends in the place, which is stored apart here.
    let problem = text.split(" at line ").next().unwrap_or_default();
    FormatError { problem: format!("not JSON: {problem}"), at: Some(at) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_end_where_the_text_ends() {
        for (text, expected) in [
            ("", Ok(0)),
            (" \n", Ok(0)),
            ("{}", Ok(1)),
            ("{\"a\":1}\n {\"a\":{}}{} ", Ok(3)),
            ("{}{\"a\":{}", Err("EOF while parsing an object")),
            ("{}\"a}", Err("EOF while parsing a string")),
            ("{}nul", Err("EOF while parsing a value")),
            ("{}7", Err("expected objects")),
            ("{}[{}]", Err("expected objects")),
            ("{},{}", Err("expected value")),
        ] {
            match (objects(text.as_bytes()), expected) {
                (Ok(objects), Ok(count)) => assert_eq!(objects.len(), count, "{text}"),
                (Err(error), Err(problem)) => assert!(error.problem.contains(problem), "{text}: {error}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }
}
