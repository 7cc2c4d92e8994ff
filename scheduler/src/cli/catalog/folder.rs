//! The folders of a catalog: `templates/NAME/{config.yml, 0/, 1/, …}`, and in a version's folder its two files.

use std::path::{Path, PathBuf};

use model::Text;
use source::format::Parsed;
use stacks::{CatalogTemplate, CatalogVersion, Template};

use crate::cli::Failure;
use crate::cli::catalog::given::as_written;
use crate::cli::compose::place::line_of;
use crate::cli::file::{Files, Input};
use crate::cli::terminal::warn;

/// Folders of templates in a catalog, as the predecessor has them.
const FOLDERS: [&str; 3] = ["templates", "infra-templates", "project-templates"];

/// What a version's compose file is called; the first one that is there counts.
const COMPOSE: [&str; 3] = ["docker-compose.yml.tpl", "docker-compose.yml", "compose.yml"];

/// The same of the file beside it.
const RANCHER: [&str; 2] = ["rancher-compose.yml.tpl", "rancher-compose.yml"];

/// Most templates of a catalog, and versions of a template.
const ENTRIES_MAX: usize = 10_000;

/// A template.
#[derive(Debug)]
pub(super) struct TemplateFolder {
    /// The name of its folder.
    pub(super) name: String,
    pub(super) about: CatalogTemplate,
    /// Its versions, by number.
    pub(super) versions: Vec<VersionFolder>,
}

/// A version of a template.
#[derive(Debug)]
pub(super) struct VersionFolder {
    path: PathBuf,
    /// The name of its folder, a number.
    pub(super) folder: String,
    pub(super) said: CatalogVersion,
}

/// The folders of templates below a folder, in the order of their names.
pub(super) fn templates(catalog: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    for folder in FOLDERS.map(|folder| catalog.join(folder)) {
        if folder.is_dir() {
            found.extend(folders(&folder)?);
        }
    }
    if found.is_empty() {
        found = folders(catalog)?;
    }
    found.retain(|path| !versions_of(path).unwrap_or_default().is_empty());
    if found.is_empty() {
        let expected = "a folder with templates/NAME/0/docker-compose.yml";
        return Err(wrong(catalog, &format!("no template in it, expected {expected}")));
    }
    Ok(found)
}

fn wrong(path: &Path, problem: &str) -> Failure {
    Failure::Wrong(format!("{}: {problem}", path.display()))
}

fn folders(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = std::fs::read_dir(path).map_err(|error| wrong(path, &error.to_string()))?;
    let mut found: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).take(ENTRIES_MAX + 1).collect();
    if found.len() > ENTRIES_MAX {
        return Err(wrong(path, &format!("more than {ENTRIES_MAX} folders in it")));
    }
    found.sort();
    Ok(found)
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// The folders of versions of a template, with their numbers.
fn versions_of(path: &Path) -> Result<Vec<(u64, PathBuf)>, Failure> {
    let numbered = |path: PathBuf| Some((name_of(&path).parse().ok()?, path));
    let mut found: Vec<(u64, PathBuf)> = folders(path)?.into_iter().filter_map(numbered).collect();
    found.retain(|(_, path)| first(path, &COMPOSE).is_some());
    found.sort();
    Ok(found)
}

/// The first of these files that is there.
fn first(folder: &Path, names: &[&str]) -> Option<PathBuf> {
    names.iter().map(|name| folder.join(name)).find(|path| path.is_file())
}

impl TemplateFolder {
    /// The template in a folder.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let config = path.join("config.yml");
        let about = if config.is_file() {
            CatalogTemplate::read(&Input::open(&config)?.document()?.value(as_written))
        } else {
            CatalogTemplate::default()
        };
        let versions = versions_of(path)?.into_iter().map(|(_, path)| VersionFolder::open(path));
        let versions = versions.collect::<Result<Vec<_>, _>>()?;
        let real = path.canonicalize();
        let name = name_of(real.as_deref().unwrap_or(path)).to_owned();
        Ok(Self { name, about, versions })
    }

    /// The version that is meant when none is named.
    pub(super) fn meant(&self) -> Option<&VersionFolder> {
        self.versions.get(self.meant_at()?)
    }

    fn meant_at(&self) -> Option<usize> {
        let versions: Vec<Text> = self.versions.iter().map(|version| version.said.version.clone()).collect();
        self.about.default_version(&versions)
    }

    /// The template that a path names, and which of its versions.
    pub(super) fn of_path(path: &Path) -> Result<(Self, usize), Failure> {
        if versions_of(path).is_ok_and(|versions| !versions.is_empty()) {
            let template = Self::open(path)?;
            let at = template.meant_at().ok_or_else(|| wrong(path, "it has no version"))?;
            return Ok((template, at));
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.filter(|parent| versions_of(parent).is_ok_and(|versions| !versions.is_empty()));
        let Some(parent) = parent else {
            let expected =
                "DIR/TEMPLATE or DIR/TEMPLATE/VERSION: a folder with 0/docker-compose.yml or 0/docker-compose.yml.tpl";
            return Err(wrong(path, &format!("no template, expected {expected}")));
        };
        let template = Self::open(parent)?;
        let wanted = name_of(path);
        let is_it = |version: &VersionFolder| version.folder == wanted || *version.said.version == *wanted;
        let Some(at) = template.versions.iter().position(is_it) else {
            let known: Vec<&str> = template.versions.iter().map(|version| &*version.folder).collect();
            return Err(wrong(path, &format!("no such version, expected one of {}", known.join(", "))));
        };
        Ok((template, at))
    }
}

impl VersionFolder {
    fn open(path: PathBuf) -> Result<Self, Failure> {
        let mut version = Self { folder: name_of(&path).to_owned(), path, said: CatalogVersion::default() };
        // What it asks has to be known before there are answers.
        let Some(rancher) = version.input(&RANCHER, &|_| Some(String::new()), false)? else { return Ok(version) };
        let parsed = document(&rancher)?;
        version.said = CatalogVersion::read(&parsed.value(as_written)).map_err(|error| {
            let line = match &parsed {
                Parsed::Yaml(node) => line_of(&rancher.text, node, &error.field).0,
                Parsed::Json(_) => None,
            };
            let line = line.map_or_else(String::new, |line| format!(", line {}", rancher.line(line)));
            Failure::Wrong(format!("{}{line}: {error}", rancher.shown))
        })?;
        Ok(version)
    }

    /// What it calls itself, or its folder.
    pub(super) fn shown(&self) -> &str {
        if self.said.version.is_empty() { &self.folder } else { &self.said.version }
    }

    pub(super) fn shown_folder(&self) -> String {
        self.path.display().to_string()
    }

    pub(super) fn warn_of_ignored(&self) {
        for field in &self.said.ignored {
            warn(&format!("warning: {}: {field}: an unknown key, without effect", self.shown_folder()));
        }
    }

    /// One of its files, rendered if it is a template.
    fn input(
        &self,
        names: &[&str],
        answer: &dyn Fn(&str) -> Option<String>,
        warns: bool,
    ) -> Result<Option<Input>, Failure> {
        let Some(path) = first(&self.path, names) else { return Ok(None) };
        let input = Input::open(&path)?;
        if path.extension().is_none_or(|extension| extension != "tpl") {
            return Ok(Some(input));
        }
        let rendered = Template::parse(&input.text).and_then(|template| template.render(answer));
        let rendered = rendered.map_err(|error| Failure::Wrong(format!("{}, {error}", input.shown)))?;
        for (name, line) in rendered.unknown.iter().filter(|_| warns) {
            warn(&format!("warning: {}, line {line}: no question asks for {name}: it is empty", input.shown));
        }
        Ok(Some(input.of_template(rendered)))
    }

    /// What its files say for these answers, as `read` reads them. A variable that no question asks for is empty.
    pub(super) fn with_files<T>(
        &self,
        answer: &dyn Fn(&str) -> Option<String>,
        stack: Option<&str>,
        template: &str,
        read: impl FnOnce(&Files<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let compose = self.input(&COMPOSE, answer, true)?;
        let compose = compose.ok_or_else(|| wrong(&self.path, "no docker-compose.yml"))?;
        let rancher = self.input(&RANCHER, answer, false)?.filter(|input| !says_nothing(&input.text));
        let folder = Some(template.to_owned());
        read(&Files {
            compose,
            more: Vec::new(),
            rancher,
            stack,
            folder,
            variable: answer,
            path: self.path.clone(),
            is_confined: true,
            profiles: &[],
        })
    }
}

/// A file as one document; one that says nothing is null.
fn document(input: &Input) -> Result<Parsed, Failure> {
    if says_nothing(&input.text) { Ok(Parsed::Json(model::Value::Null)) } else { input.document() }
}

fn says_nothing(text: &str) -> bool {
    text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#') || line.trim_end() == "---")
}
