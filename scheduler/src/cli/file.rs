//! A file of requests, as `place` and `explain` read it.

use std::io::{self, Read};
use std::ops::Range;
use std::path::PathBuf;

use serde_json::Value;

use crate::cli::Failure;
use crate::cli::compose;
use crate::cli::variables::Variables;
use crate::place::invalid::Invalid;

/// Largest file of requests.
const FILE_MAX: u64 = 64 << 20;

/// A file as it was read.
struct Documents {
    /// The file as messages call it.
    shown: String,
    /// The text, and where each document is in it.
    text: String,
    parts: Vec<Range<usize>>,
    all: Vec<model::Value>,
    /// The stack of documents that name none.
    stack: String,
}

/// The requests of a file, and whether each may need those before it: of a compose file they come in the order of
/// `depends_on`.
pub(super) fn read(file: &PathBuf, stack: Option<&String>) -> Result<(Vec<Value>, bool), Failure> {
    let documents = Documents::read(file, stack)?;
    let is_compose = documents.all.iter().any(compose::is_compose);
    Ok((documents.requests(false, &Variables::default())?, is_compose))
}

/// The stack that a file describes, with these variables: its name and its services.
pub(super) fn read_stack(
    file: &PathBuf,
    stack: Option<&String>,
    variables: &Variables,
) -> Result<(String, Vec<Value>), Failure> {
    let documents = Documents::read(file, stack)?;
    let mut services = documents.requests(true, variables)?;
    let mut name: Option<String> = stack.cloned();
    for service in &mut services {
        let own = service["stack"].as_str().unwrap_or(&documents.stack).to_owned();
        if let Some(other) = name.replace(own.clone()).filter(|other| *other != own) {
            let problem = format!("it is of two stacks, {other} and {own}");
            return Err(documents.wrong(&problem));
        }
        if let Some(map) = service.as_object_mut() {
            // What is asked for is a stack, and its units have ids of their own.
            map.remove("id");
        }
    }
    Ok((name.unwrap_or(documents.stack), services))
}

impl Documents {
    fn read(file: &PathBuf, stack: Option<&String>) -> Result<Self, Failure> {
        let shown = if file.as_os_str() == "-" { "standard input".to_owned() } else { file.display().to_string() };
        let wrong = |text: &dyn std::fmt::Display| Failure::Wrong(format!("{shown}: {text}"));
        let mut contents = Vec::new();
        let read = if file.as_os_str() == "-" {
            io::stdin().take(FILE_MAX + 1).read_to_end(&mut contents)
        } else {
            std::fs::File::open(file).and_then(|opened| opened.take(FILE_MAX + 1).read_to_end(&mut contents))
        };
        if read.map_err(|error| wrong(&error))? as u64 > FILE_MAX {
            return Err(wrong(&format!("longer than {FILE_MAX} bytes")));
        }
        let text = source::format::text(contents).map_err(|error| wrong(&error))?;
        let texts =
            if text.trim_start().starts_with(['{', '[']) { vec![text.as_str()] } else { compose::divide(&text) };
        let mut all = Vec::new();
        let mut parts = Vec::new();
        for part in texts {
            let begins = part.as_ptr().addr() - text.as_ptr().addr();
            let parsed = source::format::parse(part).map_err(|mut error| {
                if let Some(at) = &mut error.at {
                    let before = u32::try_from(lines_before(&text, begins)).unwrap_or(u32::MAX);
                    at.line = at.line.saturating_add(before);
                }
                wrong(&error)
            })?;
            all.push(parsed.value(model::scalar::core));
            parts.push(begins..begins + part.len());
        }
        if all.is_empty() {
            return Err(wrong(&"no request in it"));
        }
        let folder =
            file.canonicalize().ok().and_then(|path| Some(path.parent()?.file_name()?.to_str()?.to_lowercase()));
        let stack = stack.cloned().or(folder).unwrap_or_else(|| "default".to_owned());
        let plain = |char: char| if char.is_ascii_alphanumeric() || "_-".contains(char) { char } else { '-' };
        let stack: String = stack.chars().map(plain).collect();
        let stack = stack.trim_start_matches(['-', '_']).to_owned();
        Ok(Self { shown, text, parts, all, stack })
    }

    fn wrong(&self, text: &dyn std::fmt::Display) -> Failure {
        Failure::Wrong(format!("{}: {text}", self.shown))
    }

    /// The line of a field that is wrong.
    fn line_of(&self, field: &str) -> Option<usize> {
        // Of several documents, the first part says which one it is.
        let (at, field) = match field.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((number, rest)) if self.parts.len() > 1 => (number.parse().ok()?, rest),
            _ => (0, field),
        };
        let part = self.parts.get(at)?.clone();
        let (before, text) = (lines_before(&self.text, part.start), &self.text[part]);
        let source::format::Parsed::Yaml(document) = source::format::parse(text).ok()? else { return None };
        Some(before + compose::place::line_of(text, &document, field)?)
    }

    fn requests(&self, for_stack: bool, variables: &Variables) -> Result<Vec<Value>, Failure> {
        let variable = |name: &str| variables.get(name);
        let requests = compose::requests(&self.all, &self.stack, &variable, for_stack);
        let requests = requests.map_err(|error: Invalid| match self.line_of(&error.field) {
            Some(line) => Failure::Wrong(format!("{}, line {line}: {error}", self.shown)),
            None => self.wrong(&error),
        })?;
        requests.iter().map(|request| serde_json::to_value(request).map_err(|error| self.wrong(&error))).collect()
    }
}

/// How many lines of a text end before this byte.
fn lines_before(text: &str, byte: usize) -> usize {
    text[..byte].matches('\n').count()
}
