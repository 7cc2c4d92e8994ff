//! Files of requests: placement requests as the API takes them, or compose files, in JSON or YAML, several to a file.
//!
//! Every key of a compose file is either honoured or refused by its name: a limit that is silently ignored is worse
//! than none. Keys that begin with `x-` are for others. Files of version 1 have their services at the top.

mod depends_on;
pub(crate) mod deploy;
pub(crate) mod env_file;
pub(crate) mod extends;
mod files;
mod health_check;
pub(crate) mod include;
mod links;
mod merge;
mod networks;
pub(crate) mod origins;
mod outside;
pub(crate) mod place;
mod ports;
mod rancher;
mod refused;
mod section;
mod service;
mod settings;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;
mod unit;
mod variable;
mod volumes;

use std::cell::RefCell;
use std::collections::BTreeMap;

use model::{Map, Text, Value, scalar};

use crate::cli::compose::depends_on::Condition;
use crate::cli::compose::files::{FileOrigin, Files};
use crate::cli::compose::networks::NetworkNames;
use crate::cli::compose::origins::{Origins, joined};
use crate::cli::compose::section::Section;
use crate::cli::compose::service::texts;
use crate::cli::compose::volumes::Described;
use crate::place::invalid::Invalid;
use crate::place::name::{self, EXPECTED_NAME};
use crate::place::request::Request;

/// Most documents in one file.
const DOCUMENTS_MAX: usize = 10_000;

/// How documents are read.
pub(crate) struct Reading<'a> {
    /// The stack of a compose file that names none.
    pub(crate) stack: &'a str,
    /// Whether it is that of every compose file, also of one that names another.
    pub(crate) is_stack_given: bool,
    /// The value of a variable.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    /// Whether requests also say how their services are updated and what they depend on.
    pub(crate) for_stack: bool,
    /// What `rancher-compose.yml` says of the services of the compose file.
    pub(crate) rancher: Option<&'a Value>,
    /// The text of a file that a service names.
    pub(crate) file: &'a dyn Fn(&str) -> Result<String, String>,
    /// The contents of a file that is for containers.
    pub(crate) content: &'a dyn Fn(&str) -> Result<Vec<u8>, String>,
    /// Which services with profiles are read too.
    pub(crate) profiles: &'a [String],
}

#[cfg(test)]
impl Reading<'_> {
    /// For the stack `shop`; nothing sets a variable, so each is empty, and every file is empty.
    fn of_tests() -> Self {
        Self {
            stack: "shop",
            is_stack_given: false,
            variable: &|_| None,
            for_stack: true,
            rancher: None,
            file: &|_| Ok(String::new()),
            content: &|name| Ok(name.as_bytes().to_vec()),
            profiles: &[],
        }
    }
}

/// What is read and has no effect, with the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Warning {
    pub(crate) field: String,
    pub(crate) text: String,
}

/// The requests of a file: each document is a request, a list of them, or a compose file. What has no effect is added to
/// `warnings`.
///
/// # Errors
///
/// Fails with the field of the document that is wrong.
pub(crate) fn requests(
    documents: &[Value],
    reading: &Reading<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Value>, Invalid> {
    Ok(read(documents, reading, warnings)?.into_iter().map(|(request, _)| request).collect())
}

/// A request, and where its fields come from.
pub(crate) type ReadRequest = (Value, Origins);

/// The same, each with where its fields come from.
///
/// # Errors
///
/// As [`requests`].
pub(crate) fn read(
    documents: &[Value],
    reading: &Reading<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<ReadRequest>, Invalid> {
    let for_stack = reading.for_stack;
    let mut requests = Vec::new();
    if reading.rancher.is_some() && (documents.len() != 1 || !is_compose(&documents[0])) {
        return Err(Invalid::new("", "it is read with a rancher-compose file", "one compose file"));
    }
    for (at, document) in documents.iter().enumerate() {
        let within = |error: Invalid| if documents.len() == 1 { error } else { below(&format!("[{at}]"), error) };
        match document {
            Value::Map(map) if is_compose(document) => {
                let top = if is_whole(map) || is_bare(map) { "services." } else { "" };
                let map = &if top.is_empty() { without_version(map) } else { map.clone() };
                let compose = Compose {
                    stack: name(map, reading).map_err(within)?,
                    top,
                    variable: reading.variable,
                    for_stack,
                    rancher: reading.rancher,
                    file: reading.file,
                    content: reading.content,
                    profiles: reading.profiles,
                    networks: NetworkNames::default(),
                    files: Files::default(),
                    file_origins: RefCell::default(),
                    volumes: Described::default(),
                    outside: Vec::new(),
                    warnings: RefCell::default(),
                };
                let (found, warned) = compose.requests(map).map_err(within)?;
                let place = |field: &str| within(Invalid::new(field, "", "")).field;
                requests.extend(found.into_iter().map(|(request, origins)| (request, origins.within(place))));
                warnings.extend(warned.into_iter().map(|own| Warning { field: place(&own.field), ..own }));
            }
            Value::List(items) => {
                for (at, item) in items.iter().enumerate() {
                    checked(item, for_stack).map_err(|error| within(below(&format!("[{at}]"), error)))?;
                    let field = within(below(&format!("[{at}]"), Invalid::new("", "", ""))).field;
                    requests.push((item.clone(), Origins::itself(&field)));
                }
            }
            Value::Map(map) if map.get("berth").is_some() || map.get("hosts").is_some() => {
                let expected = "placement requests or a compose file";
                return Err(within(Invalid::new("", "it describes a cluster", expected)));
            }
            other => {
                checked(other, for_stack).map_err(within)?;
                requests.push((other.clone(), Origins::itself(&within(Invalid::new("", "", "")).field)));
            }
        }
        if requests.len() > DOCUMENTS_MAX {
            return Err(Invalid::new("", "too many requests", format!("at most {DOCUMENTS_MAX}")));
        }
    }
    Ok(requests)
}

/// Fields of a service of a stack that no request has; the scheduler checks them.
const OF_STACKS: [&str; 5] = ["dead_after", "depends_on", "job", "rollback", "update"];

/// Checks a request, or a service of a stack, of which there may be no unit.
fn checked(request: &Value, for_stack: bool) -> Result<(), Invalid> {
    let plain = request.as_map().filter(|_| for_stack).map(|map| {
        let is_of_stack =
            |key: &str, value: &Value| OF_STACKS.contains(&key) || key == "count" && value.as_int() == Some(0);
        let plain = map.iter().filter(|(key, value)| !is_of_stack(key, value)).cloned();
        Value::from(Map::new(plain.collect()))
    });
    Request::parse(plain.as_ref().unwrap_or(request)).map(drop)
}

/// Whether this document is a compose file: one with `services`, or of version 1, in which each entry is a service.
pub(crate) fn is_compose(document: &Value) -> bool {
    let is_service = |(_, value): &(Text, Value)| {
        value.as_map().is_some_and(|map| ["image", "build", "extends"].iter().any(|key| map.get(key).is_some()))
    };
    let is_alike = |(key, value): &(Text, Value)| {
        value.is_null() || value.as_map().is_some() || &**key == "version" || key.starts_with("x-")
    };
    let is_old = |map: &Map| map.iter().any(is_service) && map.iter().all(is_alike);
    document.as_map().is_some_and(|map| is_whole(map) || is_bare(map) || is_old(map))
}

/// Whether a document has what stands beside the services of a compose file, and no services.
fn is_bare(map: &Map) -> bool {
    let beside = [&OF_FILES[..], &OF_CATALOG].concat();
    let is_known = |(key, value): &(Text, Value)| match &**key {
        "catalog" => is_catalog(key, value),
        key => beside.contains(&key) || key.starts_with("x-"),
    };
    let is_of_compose = |(key, _): &(Text, Value)| OF_COMPOSE.contains(&&**key);
    map.iter().all(is_known) && map.iter().any(is_of_compose)
}

/// What stands at the top of a compose file, besides what a catalog reads.
const OF_FILES: [&str; 7] = ["configs", "name", "networks", "secrets", "services", "version", "volumes"];

/// What a catalog reads.
const OF_CATALOG: [&str; 2] = [".catalog", "catalog"];

/// Keys of these that no request has.
const OF_COMPOSE: [&str; 5] = [".catalog", "catalog", "configs", "secrets", "version"];

/// Whether an entry at the top of a file of version 1 is what a catalog reads: a service may be called `catalog`.
fn is_catalog(key: &str, value: &Value) -> bool {
    let is_service =
        || ["image", "build", "extends"].iter().any(|key| value.as_map().is_some_and(|map| map.get(key).is_some()));
    key == ".catalog" || key == "catalog" && !is_service()
}

/// Whether a compose file says more than services, so that these stand below a key of their own.
pub(crate) fn is_whole(map: &Map) -> bool {
    map.get("services").is_some() || map.get("include").is_some_and(|files| files.as_map().is_none())
}

/// Whether a document may be one of several files: those that only change services have no image of their own.
pub(crate) fn is_mergeable(document: &Value) -> bool {
    is_compose(document)
        || document.as_map().is_some_and(|map| {
            let known = ["configs", "name", "networks", "secrets", "version", "volumes"];
            map.iter().all(|(key, value)| value.as_map().is_some() || value.is_null() || known.contains(&&**key))
        })
}

/// Several compose files as one: what later ones say is added, or wins.
pub(crate) fn merged(documents: &[Value]) -> Option<Value> {
    let mut maps = documents.iter().map(Value::as_map);
    let first = maps.next()??.clone();
    let whole = maps.try_fold(first, |base, over| Some(merge::files(&base, over?)))?;
    Some(whole.into())
}

/// A file of version 1 without the number that some have: what else is there is a service.
fn without_version(map: &Map) -> Map {
    let is_number = map.get("version").is_some_and(|version| version.as_map().is_none());
    if !is_whole(map) && is_number { map.without("version") } else { map.clone() }
}

fn below(path: &str, error: Invalid) -> Invalid {
    let dot = if error.field.is_empty() || error.field.starts_with('[') { "" } else { "." };
    Invalid { field: format!("{path}{dot}{}", error.field), ..error }
}

/// The texts of the documents of a YAML text; a line that begins with `---` always divides.
pub(crate) fn divide(text: &str) -> Vec<&str> {
    let mut documents = Vec::new();
    let mut start = 0;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let marks = ["---", "..."].iter().any(|mark| {
            line.strip_prefix(mark).is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
        });
        if marks {
            documents.push(&text[start..at]);
            // What follows the mark on its line belongs to the next.
            start = at + if line.starts_with("...") { line.len() } else { 3 };
        }
        at += line.len();
    }
    documents.push(&text[start.min(text.len())..]);
    let says = |text: &&str| text.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
    documents.retain(says);
    documents
}

/// What a plain scalar of a compose file is: as in the core schema of YAML 1.2, but for digits behind a zero, which are text.
///
/// To YAML 1.1 they are octal, to YAML 1.2 they are not, and most of them are a password, a number of a telephone or a mode, of
/// which every digit counts.
pub(crate) fn plain_scalar(text: &str) -> Value {
    let is_long = text.len() > 1 && text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_long { Value::text(text) } else { scalar::core(text) }
}

fn name(map: &Map, reading: &Reading<'_>) -> Result<String, Invalid> {
    let own = map.text("name").filter(|_| !reading.is_stack_given);
    let Some(own) = own else { return Ok(reading.stack.to_owned()) };
    let wrong = || Invalid::new("name", format!("found {own:?}"), EXPECTED_NAME);
    name::name(own).map(|name| name.to_string()).ok_or_else(wrong)
}

struct Compose<'a> {
    stack: String,
    /// What stands before the name of a service in the way to it: `services.`, or nothing in a file of version 1.
    top: &'static str,
    variable: &'a dyn Fn(&str) -> Option<String>,
    for_stack: bool,
    rancher: Option<&'a Value>,
    file: &'a dyn Fn(&str) -> Result<String, String>,
    content: &'a dyn Fn(&str) -> Result<Vec<u8>, String>,
    profiles: &'a [String],
    /// What the engines call the networks of the file.
    networks: NetworkNames,
    /// Its configs and secrets.
    files: Files,
    /// By the name of a service, which of them its containers get, in that order.
    file_origins: RefCell<BTreeMap<String, Vec<FileOrigin>>>,
    /// The volumes that the file describes.
    volumes: Described,
    /// Services for which no container is started.
    outside: Vec<Text>,
    warnings: RefCell<Vec<Warning>>,
}

impl Compose<'_> {
    /// Something is read and has no effect.
    fn warn(&self, field: String, text: &str) {
        let warning = Warning { field, text: text.to_owned() };
        let mut warnings = self.warnings.borrow_mut();
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }

    /// The services without those whose profiles are not wanted.
    fn of_profiles(&self, services: &Map) -> Result<Map, Invalid> {
        let mut wanted = Vec::new();
        for (name, value) in services {
            let profiles = match value {
                Value::Map(map) => texts(&Section { path: format!("{}{name}", self.top), map }, "profiles")?,
                _ => Vec::new(),
            };
            if profiles.is_empty()
                || profiles.iter().any(|own| self.profiles.iter().any(|other| **own == *other.as_str()))
            {
                wanted.push((name.clone(), value.clone()));
            }
        }
        Ok(Map::new(wanted))
    }

    /// Where the fields of the request of a unit come from.
    fn origins(&self, unit: &unit::Unit, services: &Map) -> Origins {
        let mut origins = Origins::default();
        let files = self.file_origins.borrow();
        let sidekicks = unit.sidekicks.iter().enumerate().map(|(at, name)| (format!("sidekicks[{at}]"), name));
        for (field, name) in std::iter::once((String::new(), &unit.primary)).chain(sidekicks) {
            let path = format!("{}{name}", self.top);
            for (at, file) in files.get(&path).into_iter().flatten().enumerate() {
                let field = joined(&field, &format!("files[{at}]"));
                for content in ["content", "content_base64"] {
                    origins.put(format!("{field}.{content}"), &*file.source);
                }
                origins.put(field, &*file.used);
            }
            if let Some(service) = services.get(name).and_then(Value::as_map) {
                origins.put_renamed(&field, &Section { path: path.clone(), map: service });
            }
            if let Some((list, _)) = files.get(&path).and_then(|files| files.first()?.used.rsplit_once('[')) {
                origins.put(joined(&field, "files"), list);
            }
            origins.put(field, path);
        }
        origins
    }

    fn requests(mut self, map: &Map) -> Result<(Vec<ReadRequest>, Vec<Warning>), Invalid> {
        let map = if self.top.is_empty() { map } else { &self.included(map)? };
        let file = Section { path: String::new(), map };
        let is_old = self.top.is_empty();
        let of_catalog = |key: &&&str| file.get(key).is_some_and(|value| !is_old || is_catalog(key, value));
        for key in OF_CATALOG.iter().filter(of_catalog) {
            self.warn((*key).to_owned(), "no effect here: a catalog is read by `scheduler catalog`");
        }
        let services = if is_old {
            let is_service = |(key, value): &&(Text, Value)| !key.starts_with("x-") && !is_catalog(key, value);
            Map::new(map.iter().filter(is_service).cloned().collect())
        } else {
            refused::of_file(&file, &[&OF_CATALOG[..], &OF_FILES, &["include"]].concat())?;
            let of_engines = ["configs", "networks", "secrets"]
                .iter()
                .filter_map(|key| Some(self.interpolated(key, file.get(key)?).map(|value| (Text::from(*key), value))));
            let of_engines = Map::new(of_engines.collect::<Result<_, Invalid>>()?);
            let of_engines = Section { path: String::new(), map: &of_engines };
            self.networks = networks::described(&of_engines, &|field, text| self.warn(field, text))?;
            self.files = Files::described(&self, &of_engines)?;
            if let Some(described) = file.get("volumes") {
                let described = self.named(&self.interpolated("volumes", described)?)?;
                let described = Section::new("volumes".into(), &described)?;
                self.volumes = volumes::described(&described, self.for_stack, &|field, text| self.warn(field, text))?;
            }
            file.below("services")?.map_or_else(Map::default, |section| section.map.clone())
        };
        let all = self.with_rancher(&self.extended(&services)?)?;
        let services = self.of_profiles(&all)?;
        if services.is_empty() {
            let profiles = all.iter().filter_map(|(_, value)| value.as_map()).flat_map(|map| map.list("profiles"));
            let mut profiles: Vec<&str> = profiles.filter_map(Value::as_str).collect();
            profiles.sort_unstable();
            profiles.dedup();
            let expected = match &profiles[..] {
                [] => "at least one service, with an image".to_owned(),
                names => format!("--profile with one of {}: no service is without", names.join(", ")),
            };
            return Err(Invalid::new("services", "there is nothing to start", expected));
        }
        let top = self.top;
        let path = |name: &str| format!("{top}{name}");
        let interpolated = |(name, value): &(Text, Value)| Ok((name.clone(), self.interpolated(&path(name), value)?));
        let services: Map = Map::new(services.iter().map(interpolated).collect::<Result<_, Invalid>>()?);
        let services = self.started(&services)?;
        let mut left = self.units(&services)?;
        let mut done: Vec<Text> = Vec::new();
        let mut requests = Vec::new();
        // In the order in which they depend on each other.
        while !left.is_empty() {
            let are_done = |names: &[Text]| names.iter().all(|other| done.contains(other));
            let best = left.iter().position(|unit| are_done(&unit.waits) && are_done(&unit.wishes));
            let Some(at) = best.or_else(|| left.iter().position(|unit| are_done(&unit.waits))) else {
                let field = format!("{}.depends_on", path(&left[0].primary));
                return Err(Invalid::new(field, "services wait for each other", "no circle"));
            };
            let unit = left.remove(at);
            if self.for_stack && name::name(&unit.primary).is_none() {
                let problem = format!("found {:?}", unit.primary);
                return Err(Invalid::new(
                    path(&unit.primary),
                    problem,
                    format!("the name of a service: {EXPECTED_NAME}"),
                ));
            }
            let request = self.unit(&unit, &services)?;
            let origins = self.origins(&unit, &services);
            checked(&request, self.for_stack).map_err(|error| match origins.of(&error.field) {
                Some((origin, rest)) => Invalid { field: joined(origin, &rest), ..error },
                None => error,
            })?;
            check_ends(&unit, &requests)?;
            let whole = request.as_map().cloned().unwrap_or_default();
            let wishes = unit.wishes.iter().filter(|other| done.contains(other) && !unit.waits.contains(other));
            let has_to_end = |name: &Text| unit.ends.iter().any(|(other, _)| other == name);
            let condition = |name| if has_to_end(name) { Condition::Completed } else { Condition::Started };
            let waits = Value::list(unit.waits.iter().chain(wishes).map(|name| condition(name).written(name)));
            let depends = self.for_stack.then(|| ("depends_on".into(), waits));
            requests.push((whole.with(depends).into(), origins));
            done.push(unit.primary);
        }
        Ok((requests, self.warnings.into_inner()))
    }
}

/// Whether what a unit waits for the end of ever ends; what it waits for is among `requests`.
fn check_ends(unit: &unit::Unit, requests: &[ReadRequest]) -> Result<(), Invalid> {
    for (name, field) in &unit.ends {
        let is_it = |map: &&Map| map.text("service") == Some(name);
        let request = requests.iter().filter_map(|(request, _)| request.as_map()).find(is_it);
        if request.and_then(|map| map.text("restart")).is_none_or(|word| &**word != "no") {
            let expected = format!("restart: \"no\" in {name}, which makes it a job, or another condition");
            return Err(Invalid::new(&**field, format!("{name} never ends: it is started again"), expected));
        }
    }
    Ok(())
}
