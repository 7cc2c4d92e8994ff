//! A file of requests, as `place` and `explain` read it.

use std::io::{self, Read};
use std::path::PathBuf;

use serde_json::Value;

use crate::cli::Failure;
use crate::cli::compose;
use crate::place::invalid::Invalid;

/// Largest file of requests.
const FILE_MAX: u64 = 64 << 20;

/// The requests of a file, and whether each may need those before it: of a compose file they come in the order of
/// `depends_on`.
pub(super) fn read(file: &PathBuf, stack: Option<&String>) -> Result<(Vec<Value>, bool), Failure> {
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
    let texts = if text.trim_start().starts_with(['{', '[']) { vec![text.as_str()] } else { compose::divide(&text) };
    let mut documents = Vec::new();
    for text in texts {
        let parsed = source::format::parse(text).map_err(|error| wrong(&error))?;
        documents.push(parsed.value(model::scalar::core));
    }
    if documents.is_empty() {
        return Err(wrong(&"no request in it"));
    }
    let folder = file.canonicalize().ok().and_then(|path| Some(path.parent()?.file_name()?.to_str()?.to_lowercase()));
    let stack = stack.cloned().or(folder).unwrap_or_else(|| "default".to_owned());
    let plain = |char: char| if char.is_ascii_alphanumeric() || "_-".contains(char) { char } else { '-' };
    let stack: String = stack.chars().map(plain).collect();
    let variable = |name: &str| std::env::var(name).ok();
    let requests = compose::requests(&documents, stack.trim_start_matches(['-', '_']), &variable);
    let requests = requests.map_err(|error: Invalid| wrong(&error))?;
    let json = |request: &model::Value| serde_json::to_value(request).map_err(|error| wrong(&error));
    let is_compose = documents.iter().any(compose::is_compose);
    Ok((requests.iter().map(json).collect::<Result<_, _>>()?, is_compose))
}
