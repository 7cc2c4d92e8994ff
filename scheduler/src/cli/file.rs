//! Files of requests, as `place`, `explain`, `plan` and `up` read them.

pub(super) mod refused;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::Value;
use source::format::Parsed;
use stacks::Rendered;

use crate::cli::Failure;
use crate::cli::compose;
use crate::cli::compose::extends::{Extended, folder_of, path_below, services_of};
use crate::cli::compose::include::paths_of_value;
use crate::cli::compose::origins::Origins;
use crate::cli::compose::{Reading, Warning};
use crate::cli::file::refused::{Places, ReadStack};
use crate::cli::terminal::warn;
use crate::place::invalid::Invalid;
use crate::place::name::{self, EXPECTED_NAME};
use crate::secret::CONTENT_MAX;

/// Largest file of variables: an engine takes an environment of some hundred KiB.
pub(super) const VARIABLES_MAX: u64 = 1 << 20;

/// Largest file of requests.
const FILE_MAX: u64 = 64 << 20;

/// A text as it is read.
#[derive(Clone, Debug)]
pub(super) struct Input {
    /// The file as messages call it.
    pub(super) shown: String,
    pub(super) text: String,
    /// Of a template, what its lines come from.
    rendered: Option<Rendered>,
}

/// What is read together.
pub(super) struct Files<'a> {
    pub(super) compose: Input,
    /// Further compose files, of which later ones win.
    pub(super) more: Vec<Input>,
    /// `rancher-compose.yml`
    pub(super) rancher: Option<Input>,
    /// The stack, as the caller says.
    pub(super) stack: Option<&'a str>,
    /// The stack of files that name none.
    pub(super) folder: Option<String>,
    pub(super) variable: &'a dyn Fn(&str) -> Option<String>,
    /// The folder in which files are that a service names.
    pub(super) path: PathBuf,
    /// Whether they have to be there: who wrote a catalog does not choose files of the one who uses it.
    pub(super) is_confined: bool,
    /// Which services with profiles are read too.
    pub(super) profiles: &'a [String],
}

/// Most bytes that are read to find where in files requests come from, before it is known that anything is wrong with them.
const PLACED_BYTES_MAX: usize = 8 << 20;

/// The requests of a file, where they come from, and whether each may need those before it: of a compose file they come in the order
/// of `depends_on`.
pub(super) fn read(file: &Path, stack: Option<&String>) -> Result<(Vec<Value>, Places, bool), Failure> {
    let files = Files::of(file, None, stack)?;
    let documents = Documents::read(&files)?;
    let is_compose = documents.all.iter().any(compose::is_compose);
    let Described { requests, origins, warnings } = documents.requests(false, &files)?;
    show(warnings);
    Ok((requests, documents.places(origins, &files), is_compose))
}

/// The stack that files describe.
pub(super) fn read_stack(files: &Files<'_>) -> Result<ReadStack, Failure> {
    let (read, warnings) = stack(files)?;
    show(warnings);
    Ok(read)
}

/// The same, and what has no effect.
fn stack(files: &Files<'_>) -> Result<(ReadStack, Vec<String>), Failure> {
    let documents = Documents::read(files)?;
    let Described { requests: mut services, origins, warnings } = documents.requests(true, files)?;
    let mut name: Option<String> = files.stack.map(ToOwned::to_owned);
    for service in &mut services {
        let own = service["stack"].as_str().unwrap_or(&documents.stack).to_owned();
        if let Some(other) = name.replace(own.clone()).filter(|other| *other != own) {
            let problem = format!("it is of two stacks, {other} and {own}");
            return Err(documents.compose.wrong(&problem));
        }
        if let Some(map) = service.as_object_mut() {
            // What is asked for is a stack, and its units have ids of their own.
            map.remove("id");
        }
    }
    if services.is_empty() {
        return Err(documents.compose.wrong(&"no service in it"));
    }
    let name = name.unwrap_or_else(|| documents.stack.clone());
    if name::name(&name).is_none() {
        if files.folder.is_some() && files.stack.is_none() && name == documents.stack {
            let problem =
                format!("the stack is called as the folder is, {name:?}, and no stack can be: give --stack NAME");
            return Err(documents.compose.wrong(&format!("{problem}, expected {EXPECTED_NAME}")));
        }
        let place = documents.place("name", files);
        return Err(Failure::Wrong(format!("{place}: name: found {name:?}, expected {EXPECTED_NAME}")));
    }
    Ok((ReadStack { name, services, places: documents.places(origins, files) }, warnings))
}

/// What files describe.
struct Described {
    requests: Vec<Value>,
    /// Where each of them comes from.
    origins: Vec<Origins>,
    /// A line for each thing that has no effect.
    warnings: Vec<String>,
}

fn show(warnings: Vec<String>) {
    for line in warnings {
        warn(&format!("warning: {line}"));
    }
}

/// A variable of the environment.
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

impl<'a> Files<'a> {
    /// These files, with the environment's variables.
    pub(super) fn of(file: &Path, rancher: Option<&Path>, stack: Option<&'a String>) -> Result<Self, Failure> {
        let folder = file.canonicalize().ok().and_then(|path| Some(path.parent()?.file_name()?.to_str()?.to_owned()));
        Ok(Self {
            compose: Input::open(file)?,
            more: Vec::new(),
            rancher: rancher.map(Input::open).transpose()?,
            stack: stack.map(String::as_str),
            folder,
            variable: &environment,
            path: file.parent().unwrap_or_else(|| Path::new("")).to_owned(),
            is_confined: false,
            profiles: &[],
        })
    }
}

impl Files<'_> {
    /// A file that a service names.
    fn beside(&self, name: &str) -> Result<Input, String> {
        let (path, opened) = self.opened(name)?;
        Input::read(path.display().to_string(), opened, VARIABLES_MAX).map_err(|error| error.to_string())
    }

    /// The contents of one that is for containers.
    fn content(&self, name: &str) -> Result<Vec<u8>, String> {
        let mut content = Vec::new();
        // What is longer is refused where it is used.
        let read = self.opened(name)?.1.take(CONTENT_MAX as u64 + 1).read_to_end(&mut content);
        read.map_err(|error| error.to_string())?;
        Ok(content)
    }

    fn opened(&self, name: &str) -> Result<(PathBuf, std::fs::File), String> {
        let path = self.path.join(name);
        let real = path.canonicalize().ok().zip(self.path.canonicalize().ok());
        if self.is_confined && !real.is_some_and(|(path, folder)| path.starts_with(folder)) {
            return Err("it is not in the folder of the template".to_owned());
        }
        // A pipe that a file names would be waited for without an end.
        let opened = platform::file::open_regular(&path).map_err(|error| error.to_string())?;
        Ok((path, opened))
    }
}

/// Where a field stands that a file has from one that it includes: the file, and the line.
fn included_place(files: &Files<'_>, value: &model::Value, field: &str) -> Option<String> {
    let named = |value: &model::Value, folder: &str| -> Vec<String> {
        paths_of_value(value).iter().filter_map(|path| path_below(folder, path)).collect()
    };
    let mut paths = named(value, "");
    for at in 0..EXTENDED_MAX {
        let path = paths.get(at)?.clone();
        let Ok(input) = files.beside(&path) else { continue };
        let Ok(parsed) = input.document() else { continue };
        let parsed = parsed.value(compose::plain_scalar);
        paths.extend(named(&parsed, folder_of(&path)));
        let bare = field.strip_prefix("services.").unwrap_or(field);
        let is_whole = parsed.as_map().is_some_and(compose::is_whole);
        if let (Some(line), 0) = input.find(&(0..input.text.len()), if is_whole { field } else { bare }) {
            return Some(format!("{}, line {line}", input.shown));
        }
    }
    None
}

/// Most files and services that are looked at for the place of a field.
const EXTENDED_MAX: usize = 16;

/// Where a field of a service stands that it has from one that it extends: the file, and the line.
fn extended_place(files: &Files<'_>, value: &model::Value, field: &str) -> Option<String> {
    let services = services_of(value)?;
    let bare = field.strip_prefix("services.").unwrap_or(field);
    let is_named = |name: &str| bare.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    let named = services.iter().filter(|(name, _)| is_named(name)).max_by_key(|(name, _)| name.len());
    let (name, service) = named?;
    let rest = &bare[name.len()..];
    let (mut input, mut whole, mut folder): (Option<Input>, _, String) = (None, value.clone(), String::new());
    let mut service = service.clone();
    for _ in 0..EXTENDED_MAX {
        let Some(extended) = Extended::of_value(&service) else { break };
        if let Some(file) = &extended.file {
            let path = path_below(&folder, file)?;
            let opened = files.beside(&path).ok()?;
            whole = opened.document().ok()?.value(compose::plain_scalar);
            folder_of(&path).clone_into(&mut folder);
            input = Some(opened);
        }
        service = services_of(&whole)?.get(&extended.service)?.clone();
        let top = if whole.as_map()?.get("services").is_some() { "services." } else { "" };
        let there = input.as_ref().unwrap_or(&files.compose);
        let (line, missing) = there.find(&(0..there.text.len()), &format!("{top}{}{rest}", extended.service));
        if missing == 0 {
            return Some(match line {
                Some(line) => format!("{}, line {line}", there.shown),
                None => there.shown.clone(),
            });
        }
    }
    None
}

impl Input {
    /// A file, or standard input.
    pub(super) fn open(file: &Path) -> Result<Self, Failure> {
        Self::open_at_most(file, FILE_MAX)
    }

    /// The same, which is an error if it has more bytes than this.
    pub(super) fn open_at_most(file: &Path, most: u64) -> Result<Self, Failure> {
        if file.as_os_str() == "-" {
            return Self::read("standard input".to_owned(), io::stdin(), most);
        }
        let shown = file.display().to_string();
        match std::fs::File::open(file) {
            Ok(opened) => Self::read(shown, opened, most),
            Err(error) => Err(Failure::Wrong(format!("{shown}: {error}"))),
        }
    }

    fn read(shown: String, from: impl Read, most: u64) -> Result<Self, Failure> {
        let wrong = |text: &dyn std::fmt::Display| Failure::Wrong(format!("{shown}: {text}"));
        let mut contents = Vec::new();
        let read = from.take(most + 1).read_to_end(&mut contents);
        if read.map_err(|error| wrong(&error))? as u64 > most {
            return Err(wrong(&format!("longer than {most} bytes")));
        }
        let text = source::format::text(contents).map_err(|error| wrong(&error))?;
        Ok(Self { shown, text, rendered: None })
    }

    /// What a template has made of answers.
    pub(super) fn of_template(self, rendered: Rendered) -> Self {
        Self { text: rendered.text.clone(), rendered: Some(rendered), ..self }
    }

    fn wrong(&self, text: &dyn std::fmt::Display) -> Failure {
        Failure::Wrong(format!("{}: {text}", self.shown))
    }

    /// The line in the file of a line of the text.
    pub(super) fn line(&self, line: usize) -> usize {
        self.rendered.as_ref().map_or(line, |rendered| rendered.line_of(line))
    }

    /// A part of the text as a document; an error has its line in the file.
    pub(super) fn parse(&self, part: &Range<usize>) -> Result<Parsed, Failure> {
        source::format::parse_unique(&self.text[part.clone()]).map_err(|mut error| {
            if let Some(at) = &mut error.at {
                let line = usize::try_from(at.line).unwrap_or(usize::MAX);
                let line = self.line(line.saturating_add(lines_before(&self.text, part.start)));
                at.line = u32::try_from(line).unwrap_or(u32::MAX);
            }
            self.wrong(&error)
        })
    }

    /// The text as one document.
    pub(super) fn document(&self) -> Result<Parsed, Failure> {
        self.parse(&(0..self.text.len()))
    }

    /// The file and the line of a field, if all of the way to it is there.
    fn place_of(&self, field: &str) -> Option<String> {
        let (line, missing) = self.find(&(0..self.text.len()), field);
        line.filter(|_| missing == 0).map(|line| format!("{}, line {line}", self.shown))
    }

    /// The line of a field of a part, and how much of the way to it is not there.
    fn find(&self, part: &Range<usize>, field: &str) -> (Option<usize>, usize) {
        let text = &self.text[part.clone()];
        let Ok(Parsed::Yaml(document)) = source::format::parse(text) else { return (None, field.len()) };
        let (line, missing) = compose::place::line_of(text, &document, field);
        (line.map(|line| self.line(lines_before(&self.text, part.start) + line)), missing)
    }
}

/// Files as they were read.
struct Documents<'a> {
    compose: &'a Input,
    /// Where each document is in it.
    parts: Vec<Range<usize>>,
    all: Vec<model::Value>,
    /// Further files that are merged into the one document.
    more: &'a [Input],
    rancher: Option<(&'a Input, model::Value)>,
    /// The stack of documents that name none.
    stack: String,
}

impl<'a> Documents<'a> {
    fn read(files: &'a Files<'_>) -> Result<Self, Failure> {
        let compose = &files.compose;
        let text = compose.text.as_str();
        let texts = if text.trim_start().starts_with(['{', '[']) { vec![text] } else { compose::divide(text) };
        let mut all = Vec::new();
        let mut parts = Vec::new();
        for part in texts {
            let begins = part.as_ptr().addr() - text.as_ptr().addr();
            let part = begins..begins + part.len();
            all.push(compose.parse(&part)?.value(compose::plain_scalar));
            parts.push(part);
        }
        if all.is_empty() {
            return Err(compose.wrong(&"no request in it"));
        }
        if !files.more.is_empty() {
            for input in &files.more {
                all.push(input.document()?.value(compose::plain_scalar));
            }
            let is_wrong = parts.len() > 1 || !all.iter().all(compose::is_mergeable);
            let merged = Some(&all).filter(|_| !is_wrong).and_then(|all| compose::merged(all));
            let merged = merged.ok_or_else(|| {
                let names: Vec<&str> = files.more.iter().map(|input| &*input.shown).collect();
                compose.wrong(&format!("it is read with {}, and each has to be one compose file", names.join(", ")))
            })?;
            all = vec![merged];
        }
        let rancher = match &files.rancher {
            None => None,
            Some(input) => Some((input, input.document()?.value(compose::plain_scalar))),
        };
        let folder = || plain_name(&files.folder.as_deref().unwrap_or("default").to_lowercase());
        let more = &files.more;
        Ok(Self { compose, parts, all, more, rancher, stack: files.stack.map_or_else(folder, ToOwned::to_owned) })
    }

    /// Where a field stands: the file, and the line where it is known.
    fn place(&self, field: &str, files: &Files<'_>) -> String {
        // Of several documents, the first part says which one it is.
        let (at, field) = match field.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((number, rest)) if self.parts.len() > 1 => (number.parse().unwrap_or(usize::MAX), rest),
            _ => (0, field),
        };
        let (line, mut missing) = self.parts.get(at).map_or((None, field.len()), |part| self.compose.find(part, field));
        let mut best = (self.compose, line);
        // Of several files, the last one that has it has said it.
        for input in self.more {
            let (line, missing_there) = input.find(&(0..input.text.len()), field);
            if line.is_some() && missing_there <= missing {
                best = (input, line);
                missing = missing_there;
            }
        }
        if let Some((input, value)) = &self.rancher {
            // The two may be of different versions.
            let bare = field.strip_prefix("services.").unwrap_or(field);
            let is_versioned = value.as_map().is_some_and(|map| map.get("services").is_some());
            let there = if is_versioned { format!("services.{bare}") } else { bare.to_owned() };
            let (line, missing_there) = input.find(&(0..input.text.len()), &there);
            // What both have, the second file has said.
            if missing_there < missing || missing_there == 0 && bare.contains('.') {
                best = (input, line);
                missing = missing_there;
            }
        }
        if missing > 0
            && let Some(value) = self.all.get(at)
            && let Some(place) = extended_place(files, value, field).or_else(|| included_place(files, value, field))
        {
            return place;
        }
        match best {
            (input, Some(line)) => format!("{}, line {line}", input.shown),
            (input, None) => input.shown.clone(),
        }
    }

    /// Where the fields stand from which requests come, as far as that is soon found.
    fn places(&self, origins: Vec<Origins>, files: &Files<'_>) -> Places {
        let shown = self.compose.shown.clone();
        let fields: BTreeSet<&str> = origins.iter().flat_map(Origins::all).collect();
        let bytes = |input: &Input| input.text.len();
        let length = bytes(self.compose) + self.more.iter().map(bytes).sum::<usize>();
        if length.saturating_mul(fields.len()) > PLACED_BYTES_MAX {
            return Places { shown, origins, lines: BTreeMap::new(), inputs: Vec::new() };
        }
        let lines = fields.into_iter().map(|field| (field.to_owned(), self.place(field, files))).collect();
        // Of several documents, each has its own lines.
        let is_one = self.parts.len() == 1;
        let inputs = std::iter::once(self.compose).chain(self.more).filter(|_| is_one).cloned().collect();
        Places { shown, origins, lines, inputs }
    }

    fn requests(&self, for_stack: bool, files: &Files<'_>) -> Result<Described, Failure> {
        let text_of = |name: &str| files.beside(name).map(|input| input.text);
        let reading = Reading {
            stack: &self.stack,
            is_stack_given: files.stack.is_some(),
            variable: files.variable,
            for_stack,
            rancher: self.rancher.as_ref().map(|(_, value)| value),
            file: &text_of,
            content: &|name| files.content(name),
            profiles: files.profiles,
        };
        let mut warnings = Vec::new();
        let read = compose::read(&self.all, &reading, &mut warnings);
        let (requests, origins): (Vec<_>, Vec<_>) = read
            .map_err(|error: Invalid| Failure::Wrong(format!("{}: {error}", self.place(&error.field, files))))?
            .into_iter()
            .unzip();
        let line = |Warning { field, text }| format!("{}: {field}: {text}", self.place(&field, files));
        let warnings = warnings.into_iter().map(line).collect();
        let json = |request| serde_json::to_value(request).map_err(|error| self.compose.wrong(&error));
        Ok(Described { requests: requests.iter().map(json).collect::<Result<_, _>>()?, origins, warnings })
    }
}

/// A name of a stack out of any text.
pub(super) fn plain_name(name: &str) -> String {
    let plain = |char: char| if char.is_ascii_alphanumeric() || "_-".contains(char) { char } else { '-' };
    let name: String = name.chars().map(plain).collect();
    name.trim_start_matches(['-', '_']).to_owned()
}

/// How many lines of a text end before this byte.
fn lines_before(text: &str, byte: usize) -> usize {
    text[..byte].matches('\n').count()
}
