//! Reads a cluster from a file of any form: the form is recognised by the content, never by the name.

mod envelope;
mod json;
mod yaml;

use model::{Defect, Node, Position, Snapshot, Value, answers_file, document, objects::Credential, scalar};
use thiserror::Error;

/// Largest text that is read as YAML, in bytes.
///
/// YAML costs about forty times what JSON costs; this much takes a few seconds.
const YAML_MAX: usize = 64 << 20;

/// Largest text that begins like JSON, is none, and is tried as YAML all the same (a trailing comma, a comment).
const FLOW_YAML_MAX: usize = 4 << 20;

/// The forms in which a cluster is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Berth's own document (docs/document.md).
    Document,
    /// The predecessor's `{"Version", "Data"}`, v0.8 and later.
    Envelope,
    /// The predecessor's answers by version and client, up to v0.7.
    Answers,
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Document => "Berth document",
            Self::Envelope => "saved answers of rancher-metadata v0.8 or later",
            Self::Answers => "answers file of rancher-metadata v0.7 or earlier",
        })
    }
}

/// What a text said.
#[derive(Debug)]
pub struct Reading {
    /// The form it had.
    pub form: Form,
    /// The cluster.
    pub snapshot: Snapshot,
    /// What was wrong with parts of it.
    pub defects: Vec<Defect>,
    /// Accounts of other environments, whose objects stand in files of their own.
    pub credentials: Vec<Credential>,
    /// How sure it is that nothing is missing at the end.
    pub ending: Ending,
}

/// How the end of a text looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A part of it would not be well-formed (JSON).
    Closed,
    /// It says that it ends (YAML's `...`).
    Marked,
    /// The last line is complete, but a text cut after any line would look the same.
    Line,
    /// The last line has no end: it may have been cut.
    Open,
}

/// Why a text is refused as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}{problem}", .at.map(|at| format!("{at}: ")).unwrap_or_default())]
pub struct FormatError {
    /// What is wrong.
    pub problem: String,
    /// Where.
    pub at: Option<Position>,
}

impl FormatError {
    /// A refusal without a place.
    pub fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), at: None }
    }
}

impl From<document::Refusal> for FormatError {
    fn from(refusal: document::Refusal) -> Self {
        Self { problem: refusal.problem, at: refusal.at }
    }
}

/// A text that is well-formed, not yet interpreted.
#[derive(Debug)]
pub enum Parsed {
    /// It was JSON.
    Json(Value),
    /// It was YAML.
    Yaml(Node),
}

impl Parsed {
    /// The value when plain scalars of YAML mean what `scalar` says.
    pub fn value(&self, scalar: fn(&str) -> Value) -> Value {
        match self {
            Self::Json(value) => value.clone(),
            Self::Yaml(node) => node.to_value(scalar),
        }
    }
}

/// The text of a file: UTF-8, or UTF-16 with its mark, as Windows' own tools write it.
///
/// # Errors
///
/// Fails if it is neither.
pub fn text(bytes: Vec<u8>) -> Result<String, FormatError> {
    let utf16 = |unit: fn([u8; 2]) -> u16| {
        let units = bytes[2..].chunks_exact(2).map(|pair| unit([pair[0], pair[1]]));
        let text: Result<String, _> = char::decode_utf16(units).collect();
        text.map_err(|_| FormatError::new("neither UTF-8 nor UTF-16"))
    };
    match bytes.as_slice() {
        [0xff, 0xfe, ..] => return utf16(u16::from_le_bytes),
        [0xfe, 0xff, ..] => return utf16(u16::from_be_bytes),
        _ => {}
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let before = &error.as_bytes()[..good];
        let line = before.split(|byte| *byte == b'\n').count();
        let column =
            before.rsplit(|byte| *byte == b'\n').next().map_or(0, |line| String::from_utf8_lossy(line).chars().count());
        FormatError { problem: "not UTF-8".into(), at: Some(position(line, column + 1)) }
    })?;
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(text)
}

/// Parses a text as JSON or YAML.
///
/// # Errors
///
/// Fails if it is neither, or past a bound.
pub fn parse(text: &str) -> Result<Parsed, FormatError> {
    let begins_like_json = text.trim_start().starts_with(['{', '[']);
    if !begins_like_json {
        if text.trim().is_empty() {
            return Err(FormatError::new("the file is empty"));
        }
        if text.len() > YAML_MAX {
            return Err(FormatError::new(format!("{} bytes are too many for YAML; write JSON", text.len())));
        }
        return Ok(Parsed::Yaml(yaml::parse(text)?));
    }
    let json::JsonError { error, may_be_yaml } = match json::parse(text) {
        Ok(value) => return Ok(Parsed::Json(value)),
        Err(error) => error,
    };
    if !may_be_yaml || text.len() > FLOW_YAML_MAX {
        return Err(error);
    }
    yaml::parse(text).map(Parsed::Yaml).map_err(|_| error)
}

/// Parses a text as JSON or YAML, in which no map may have a key twice: of two equal keys it is unknown which one is meant.
///
/// # Errors
///
/// Fails if it is neither, past a bound, or has a key twice.
pub fn parse_unique(text: &str) -> Result<Parsed, FormatError> {
    let parsed = parse(text)?;
    match &parsed {
        Parsed::Json(_) => json::check_unique(text)?,
        Parsed::Yaml(node) => yaml::check_unique(node)?,
    }
    Ok(parsed)
}

/// Reads a cluster from a text.
///
/// # Errors
///
/// Fails if it is not well-formed, has none of the forms, or holds no cluster at all.
pub fn read(text: &str) -> Result<Reading, FormatError> {
    let parsed = parse(text)?;
    let ending = match &parsed {
        Parsed::Json(_) => Ending::Closed,
        Parsed::Yaml(_) if text.trim_start().starts_with(['{', '[']) => Ending::Closed,
        Parsed::Yaml(_) => ending(text),
    };
    let (form, (snapshot, mut defects), credentials) = match &parsed {
        Parsed::Json(value) => {
            if let Some(envelope) = envelope::recognise(value) {
                let (snapshot, defects, credentials) = envelope::read(&envelope)?;
                (Form::Envelope, (snapshot, defects), credentials)
            } else if document::is_document_value(value) {
                (Form::Document, document::resolve_value(value)?, Vec::new())
            } else {
                (Form::Answers, answers(value)?, Vec::new())
            }
        }
        Parsed::Yaml(node) if document::is_document(node) => (Form::Document, document::resolve(node)?, Vec::new()),
        Parsed::Yaml(node) => (Form::Answers, answers(&node.to_value(scalar::yaml11))?, Vec::new()),
    };
    if form != Form::Envelope {
        locate(text, &parsed, &mut defects);
    }
    Ok(Reading { form, snapshot, defects, credentials, ending })
}

/// The snapshot of the predecessor's answers.
fn answers(value: &Value) -> Result<(Snapshot, Vec<Defect>), FormatError> {
    answers_file::read(value).map_err(|_| {
        let problem = match value {
            Value::Map(map) if map.is_empty() => "an empty map",
            Value::Map(_) => "a map without any answers",
            other => other.kind(),
        };
        FormatError::new(format!(
            "expected a Berth document, saved answers {{\"Version\", \"Data\"}}, or answers by version and client; found {problem}"
        ))
    })
}

/// How the end of a YAML text looks.
fn ending(text: &str) -> Ending {
    let marked = text.trim_end().rsplit('\n').next().is_some_and(|line| line.trim_end() == "...");
    if marked {
        Ending::Marked
    } else if text.ends_with('\n') {
        Ending::Line
    } else {
        Ending::Open
    }
}

/// Gives defects their place in the text, as far as it can be found.
fn locate(text: &str, parsed: &Parsed, defects: &mut [Defect]) {
    if defects.iter().all(|defect| defect.at.is_some()) {
        return;
    }
    // JSON is nearly always YAML too, and the YAML parser knows places.
    let reparsed = match parsed {
        Parsed::Json(_) if text.len() <= YAML_MAX => yaml::parse(text).ok(),
        Parsed::Json(_) | Parsed::Yaml(_) => None,
    };
    let node = match (&reparsed, parsed) {
        (Some(node), _) | (None, Parsed::Yaml(node)) => node,
        (None, Parsed::Json(_)) => return,
    };
    for defect in defects.iter_mut().filter(|defect| defect.at.is_none()) {
        defect.at = place(node, &defect.path);
    }
}

/// The place of a path below a node, or of what contains it.
///
/// A segment is a key, an index, or the name of an element.
fn place(node: &Node, path: &str) -> Option<Position> {
    let mut node = node;
    for segment in path.split('/') {
        let named = |item: &&Node| item.get("name").and_then(Node::scalar).is_some_and(|name| &**name == segment);
        let below = node.get(segment).or_else(|| {
            let items = node.items()?;
            segment.parse().ok().and_then(|index: usize| items.get(index)).or_else(|| items.iter().find(named))
        });
        match below {
            Some(below) => node = below,
            None => break,
        }
    }
    node.at
}

fn twice(key: &str) -> String {
    format!("the key {key:?} is there twice")
}

fn position(line: usize, column: usize) -> Position {
    let bounded = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Position { line: bounded(line), column: bounded(column) }
}

#[cfg(test)]
mod tests;
