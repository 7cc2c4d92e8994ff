//! Services that extend others, of the same file or of one in its folder or below. ◇

use std::borrow::Cow;

use model::{Map, Text, Value};

use crate::cli::compose::section::Section;
use crate::cli::compose::{Compose, merge, plain_scalar};
use crate::place::invalid::Invalid;

/// Most services that extend each other: what is longer is a circle.
pub(super) const CHAIN_MAX: usize = 16;

/// Where a service that is extended is: the file, which may be the same one, and its name.
pub(crate) struct Extended {
    pub(crate) file: Option<Text>,
    pub(crate) service: Text,
}

impl Extended {
    /// What a service extends; `None` if it extends nothing.
    ///
    /// # Errors
    ///
    /// Fails if that names no service.
    fn of(service: &Section<'_>) -> Result<Option<Self>, Invalid> {
        let extended = match service.get("extends") {
            None => return Ok(None),
            Some(Value::Map(map)) => Section { path: service.at("extends"), map },
            // The name alone.
            Some(_) => return Ok(service.text("extends")?.map(|name| Self { file: None, service: name })),
        };
        extended.only(&["file", "service"])?;
        let name = extended.text("service")?;
        let name = name.ok_or_else(|| Invalid::new(extended.at("service"), "missing", "the name of a service"))?;
        Ok(Some(Self { file: extended.text("file")?, service: name }))
    }

    /// The same of a service that need not be right.
    pub(crate) fn of_value(service: &Value) -> Option<Self> {
        let map = service.as_map()?;
        Self::of(&Section { path: String::new(), map }).ok().flatten()
    }
}

/// The path of a file that one in this folder names; `None` if it leads out of the folder of the first one.
pub(crate) fn path_below(folder: &str, file: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    if file.starts_with(['/', '\\']) || file.contains(':') {
        return None;
    }
    for part in file.split(['/', '\\']) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The folder of a path.
pub(crate) fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// The services of a file, whatever its version.
pub(crate) fn services_of(file: &Value) -> Option<&Map> {
    let map = file.as_map()?;
    if map.get("services").is_some() { map.map("services") } else { Some(map) }
}

impl Compose<'_> {
    /// The services, each with what it extends.
    pub(super) fn extended(&self, services: &Map) -> Result<Map, Invalid> {
        let whole = |(name, value): &(Text, Value)| {
            let path = format!("{}{name}", self.top);
            Ok((name.clone(), self.with_extended(&path, value, services, "", CHAIN_MAX)?.into_owned()))
        };
        Ok(Map::new(services.iter().map(whole).collect::<Result<_, Invalid>>()?))
    }

    /// A service with what it extends; errors are about `path`, which is in the first file.
    pub(super) fn with_extended<'v>(
        &self,
        path: &str,
        value: &'v Value,
        services: &Map,
        folder: &str,
        left: usize,
    ) -> Result<Cow<'v, Value>, Invalid> {
        let Value::Map(map) = value else { return Ok(Cow::Borrowed(value)) };
        let Some(extends) = map.get("extends") else { return Ok(Cow::Borrowed(value)) };
        let section = Section { path: path.to_owned(), map };
        let at = section.at("extends");
        let named = Map::new(vec![("extends".into(), self.interpolated(&at, extends)?)]);
        let Some(extended) = Extended::of(&Section { path: path.to_owned(), map: &named })? else {
            return Ok(Cow::Borrowed(value));
        };
        if left == 0 {
            let problem = format!("more than {CHAIN_MAX} services extend each other");
            return Err(Invalid::new(at, problem, "no circle"));
        }
        let missing = |place: &str| {
            Invalid::new(&*at, format!("no service {} in {place}", extended.service), "a service that is there")
        };
        let own = map.without("extends");
        let base = match &extended.file {
            None => {
                let base = services.get(&extended.service).ok_or_else(|| missing("the same file"))?;
                self.with_extended(path, base, services, folder, left - 1)?.into_owned()
            }
            Some(file) => {
                let inside = path_below(folder, file).ok_or_else(|| {
                    let expected = "a path to a file in the folder of the compose file, or below";
                    Invalid::new(format!("{at}.file"), format!("found {file:?}"), expected)
                })?;
                let unread = |why: String| Invalid::new(format!("{at}.file"), why, "a compose file");
                let text = (self.file)(&inside).map_err(unread)?;
                let parsed =
                    source::format::parse_unique(&text).map_err(|error| unread(format!("{inside}: {error}")))?;
                let other = parsed.value(plain_scalar);
                let there = services_of(&other).ok_or_else(|| missing(&inside))?;
                let base = there.get(&extended.service).ok_or_else(|| missing(&inside))?;
                let below = folder_of(&inside);
                moved(self.with_extended(path, base, there, below, left - 1)?.into_owned(), folder, below)
            }
        };
        Ok(Cow::Owned(merge::service(&base, &own.into())))
    }
}

/// A config or a secret of a file in another folder, whose contents are named from this one.
pub(super) fn moved_file(one: &Value, from: &str, folder: &str) -> Value {
    let Value::Map(map) = one else { return one.clone() };
    match map.text("file").filter(|file| from != folder && !file.starts_with('/')) {
        Some(file) => map.with([("file".into(), Value::text(format!("{}/{file}", inner(from, folder))))]).into(),
        None => one.clone(),
    }
}

/// A folder as the one in which it is names it.
fn inner<'a>(from: &str, folder: &'a str) -> &'a str {
    folder.strip_prefix(from).unwrap_or(folder).trim_start_matches('/')
}

/// A service of a file in another folder, whose files are named from this one.
pub(super) fn moved(service: Value, from: &str, folder: &str) -> Value {
    if from == folder {
        return service;
    }
    let Value::Map(map) = &service else { return service };
    let inner = inner(from, folder);
    let path = |value: &Value| match value {
        Value::Text(file) if !file.starts_with('/') => Value::text(format!("{inner}/{file}")),
        Value::Map(map) => match map.text("path").filter(|file| !file.starts_with('/')) {
            Some(file) => map.with([("path".into(), Value::text(format!("{inner}/{file}")))]).into(),
            None => value.clone(),
        },
        other => other.clone(),
    };
    let named = ["env_file", "label_file"].into_iter().filter_map(|key| {
        let files = match map.get(key)? {
            Value::List(items) => Value::list(items.iter().map(path)),
            one => path(one),
        };
        Some((key.into(), files))
    });
    map.with(named).into()
}
