//! JSON into values.

use model::value::{Keys, Map, Value, ValueSeed};
use serde::de::DeserializeSeed;

use super::{FormatError, position};

/// Why a text is no JSON.
pub(super) struct JsonError {
    pub(super) error: FormatError,
    /// Whether it may be another language; otherwise it is JSON that was cut, or with a number that no one can hold.
    pub(super) may_be_yaml: bool,
}

/// The value of a JSON text. Nesting is bounded by the parser (128 levels).
pub(super) fn parse(text: &str) -> Result<Value, JsonError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = ValueSeed(&mut Keys::default()).deserialize(&mut deserializer);
    value.and_then(|value| deserializer.end().map(|()| value)).map_err(|found| {
        let error = error(&found);
        let may_be_yaml = !found.is_eof() && !error.problem.contains("number out of range");
        JsonError { error, may_be_yaml }
    })
}

/// The objects of concatenated JSON texts.
pub(super) fn objects(text: &[u8]) -> Result<Vec<Map>, FormatError> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let mut keys = Keys::default();
    let mut objects = Vec::new();
    while deserializer.end().is_err() {
        match ValueSeed(&mut keys).deserialize(&mut deserializer).map_err(|found| error(&found))? {
            Value::Map(object) => objects.push(object),
            other => return Err(FormatError::new(format!("expected objects, found {}", other.kind()))),
        }
    }
    Ok(objects)
}

fn error(error: &serde_json::Error) -> FormatError {
    let text = error.to_string();
    let at = position(error.line(), error.column().max(1));
    // The parser's text ends in the place, which is kept apart here.
    let problem = text.split(" at line ").next().unwrap_or_default();
    FormatError { problem: format!("not JSON: {problem}"), at: Some(at) }
}
