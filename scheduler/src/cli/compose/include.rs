//! Other compose files, in the folder of the first one or below, of which a file has all. ◇

use std::cell::Cell;

use model::{Map, Text, Value};

use crate::cli::compose::extends::{CHAIN_MAX, folder_of, moved, moved_file, path_below};
use crate::cli::compose::section::Section;
use crate::cli::compose::service::texts;
use crate::cli::compose::{Compose, is_whole, merge, plain_scalar, without_version};
use crate::place::invalid::Invalid;

/// Most files that a file includes, with those that they include: what is more is a circle.
const FILES_MAX: usize = 100;

/// What a file has of another one.
const PARTS: [&str; 5] = ["configs", "networks", "secrets", "services", "volumes"];

/// The paths that an entry of `include` names, of which later files win.
///
/// # Errors
///
/// Fails if it names none.
fn paths(field: &str, entry: &Value) -> Result<Vec<Text>, Invalid> {
    let wrong = |found: &str| Invalid::new(field, format!("found {found}"), "a file, or `path` and one");
    match entry {
        Value::Text(path) => Ok(vec![path.clone()]),
        Value::Map(map) => {
            let entry = Section { path: field.to_owned(), map };
            entry.only(&["path"])?;
            let paths = match entry.get("path") {
                Some(Value::List(_)) => texts(&entry, "path")?,
                _ => entry.text("path")?.into_iter().collect(),
            };
            if paths.is_empty() { Err(wrong("no path")) } else { Ok(paths) }
        }
        other => Err(wrong(other.kind())),
    }
}

/// The same of a file that need not be right.
pub(crate) fn paths_of_value(file: &Value) -> Vec<Text> {
    let entries = file.as_map().map_or(&[][..], |map| map.list("include"));
    entries.iter().filter_map(|entry| paths("", entry).ok()).flatten().collect()
}

impl Compose<'_> {
    /// A file with what it includes.
    pub(super) fn included(&self, file: &Map) -> Result<Map, Invalid> {
        self.with_included(None, file, "", &Cell::new(FILES_MAX))
    }

    /// The same of a file in this folder; errors are about `path`, which is in the first file.
    fn with_included(&self, path: Option<&str>, file: &Map, folder: &str, left: &Cell<usize>) -> Result<Map, Invalid> {
        let entries = match file.get("include") {
            None | Some(Value::Null) => return Ok(file.clone()),
            Some(Value::List(entries)) => entries,
            Some(other) => {
                return Err(Invalid::new(
                    path.unwrap_or("include"),
                    format!("found {}", other.kind()),
                    "a list of files",
                ));
            }
        };
        let mut whole = file.without("include");
        for (at, entry) in entries.iter().enumerate() {
            let own = format!("include[{at}]");
            let path = path.unwrap_or(&own);
            let mut merged: Option<Map> = None;
            for file in paths(path, &self.interpolated(path, entry)?)? {
                let other = self.other_file(path, &file, folder, left)?;
                merged = Some(merged.map_or_else(|| other.clone(), |base| merge::files(&base, &other)));
            }
            for part in PARTS {
                let Some(more) = merged.as_ref().and_then(|map| map.map(part)) else { continue };
                let known = whole.map(part).cloned().unwrap_or_default();
                let is_other = |(name, value): &&(Text, Value)| known.get(name).is_some_and(|known| known != value);
                if let Some((name, _)) = more.iter().find(is_other) {
                    let problem = format!("{part}.{name} is in another file too");
                    return Err(Invalid::new(path, problem, "each name in one file, or the same said of it"));
                }
                whole = whole.with([(part.into(), known.with(more.iter().cloned()).into())]);
            }
        }
        Ok(whole)
    }

    /// A file that one in this folder includes, as if it stood there.
    fn other_file(&self, path: &str, file: &str, folder: &str, left: &Cell<usize>) -> Result<Map, Invalid> {
        let still = left.get().checked_sub(1);
        let many = || Invalid::new(path, format!("more than {FILES_MAX} files are included"), "fewer, and no circle");
        left.set(still.ok_or_else(many)?);
        let inside = path_below(folder, file).ok_or_else(|| {
            let expected = "a path to a file in the folder of the compose file, or below";
            Invalid::new(path, format!("found {file:?}"), expected)
        })?;
        let unread = |why: String| Invalid::new(path, why, "a compose file");
        let text = (self.file)(&inside).map_err(unread)?;
        let parsed = source::format::parse_unique(&text).map_err(|error| unread(format!("{inside}: {error}")))?;
        let parsed = parsed.value(plain_scalar);
        let other = parsed.as_map().ok_or_else(|| unread(format!("{inside}: no map")))?;
        let known = [&PARTS[..], &["name", "version"]].concat();
        // One may also have nothing but volumes.
        let is_whole = is_whole(other) || other.iter().all(|(key, _)| known.contains(&&**key));
        let other =
            if is_whole { other.clone() } else { Map::new(vec![("services".into(), without_version(other).into())]) };
        let below = folder_of(&inside);
        let other = self.with_included(Some(path), &other, below, left)?;
        let top = Section { path: String::new(), map: &other };
        top.only(&known).map_err(|error| Invalid::new(path, format!("{inside}: {}", error.field), error.expected))?;
        let services = other.map("services").cloned().unwrap_or_default();
        let whole = |(name, value): &(Text, Value)| {
            let field = format!("services.{name}");
            let service = self.with_extended(&field, value, &services, below, CHAIN_MAX)?;
            Ok((name.clone(), moved(service.into_owned(), folder, below)))
        };
        let services = services.iter().map(whole).collect::<Result<_, Invalid>>()?;
        let files = ["configs", "secrets"].into_iter().filter_map(|kind| {
            let moved = |(name, one): &(Text, Value)| (name.clone(), moved_file(one, folder, below));
            Some((kind.into(), Map::new(other.map(kind)?.iter().map(moved).collect()).into()))
        });
        Ok(other.with(files.chain([("services".into(), Map::new(services).into())])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::compose::{Reading, Warning, requests};

    fn read(text: &str) -> Result<Vec<serde_json::Value>, Invalid> {
        let file = |name: &str| match name {
            "db.yml" => Ok("name: other\nservices: {db: {image: db, volumes: ['data:/data']}}\n\
                            volumes: {data: {driver: nfs}}\nx-note: 1\n"
                .to_owned()),
            "more.yml" => Ok("services: {db: {tty: true}}\n".to_owned()),
            "old.yml" => Ok("cache: {image: cache}\n".to_owned()),
            "below/all.yml" => Ok("include: [deep/one.yml]\n\
                                   services: {a: {image: a, env_file: own.env, depends_on: [one]}}\n"
                .to_owned()),
            "below/deep/one.yml" => Ok("services: {one: {image: one, env_file: own.env}}\n".to_owned()),
            "below/own.env" => Ok("WHERE=below\n".to_owned()),
            "below/deep/own.env" => Ok("WHERE=deep\n".to_owned()),
            "circle.yml" => Ok("include: [circle.yml, circle.yml]\n".to_owned()),
            "volumes.yml" => Ok("volumes: {data: {}}\n".to_owned()),
            "odd.yml" => Ok("services: {}\nmodels: {a: b}\n".to_owned()),
            other => Err(format!("{other}: not found")),
        };
        let variable = |name: &str| (name == "KIND").then(|| "db".to_owned());
        let reading = Reading { variable: &variable, file: &file, ..Reading::of_tests() };
        let document = source::format::parse(text).unwrap().value(model::scalar::core);
        let mut warnings: Vec<Warning> = Vec::new();
        let found = requests(&[document], &reading, &mut warnings)?;
        assert!(warnings.is_empty(), "{warnings:?}");
        Ok(found.iter().map(|one| serde_json::to_value(one).unwrap()).collect())
    }

    #[test]
    fn files_have_all_of_those_that_they_include() {
        for (text, services) in [
            ("include: ['${KIND}.yml']\nservices: {web: {image: a, depends_on: [db]}}\n", &["db", "web"][..]),
            ("include: [{path: db.yml}, old.yml]\n", &["cache", "db"]),
            ("include: [db.yml, db.yml]\nservices: {db: {image: db, volumes: ['data:/data']}}\n", &["db"]),
            ("include: [below/all.yml]\nservices: {}\n", &["one", "a"]),
            ("include: []\nservices: {web: {image: a}}\n", &["web"]),
            ("include: [volumes.yml]\nservices: {web: {image: a, volumes: ['data:/data']}}\n", &["web"]),
        ] {
            let found = read(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            let names: Vec<_> = found.iter().map(|one| one["service"].as_str().unwrap()).collect();
            assert_eq!(names, services, "{text}");
            assert!(found.iter().all(|one| one["stack"] == "shop"), "{found:?}");
        }
        let found = read("include: [{path: [db.yml, more.yml]}]\nservices: {}\n").unwrap();
        assert_eq!((&found[0]["tty"], &found[0]["engine"]["volume_driver"]), (&true.into(), &"nfs".into()));
        let found = read("include: [below/all.yml]\nservices: {}\n").unwrap();
        let variables: Vec<_> = found.iter().map(|one| one["environment"]["WHERE"].as_str().unwrap()).collect();
        assert_eq!(variables, ["deep", "below"]);
    }

    #[test]
    fn what_cannot_be_included_is_named() {
        for (text, field, part) in [
            ("include: db.yml\nservices: {}\n", "include", "a list of files"),
            ("include: [5]\nservices: {}\n", "include[0]", "a file, or `path`"),
            ("include: [{env_file: a}]\nservices: {}\n", "include[0].env_file", "not supported"),
            ("include: [{path: }]\nservices: {}\n", "include[0]", "no path"),
            ("include: [old.yml, lost.yml]\nservices: {}\n", "include[1]", "lost.yml: not found"),
            ("include: [../x.yml]\nservices: {}\n", "include[0]", "in the folder"),
            ("include: [circle.yml]\nservices: {}\n", "include[0]", "no circle"),
            ("include: [odd.yml]\nservices: {}\n", "include[0]", "odd.yml: models"),
            ("include: [db.yml]\nservices: {db: {image: mine}}\n", "include[0]", "services.db is in another file too"),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error.field, field, "{text}: {error}");
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
    }
}
