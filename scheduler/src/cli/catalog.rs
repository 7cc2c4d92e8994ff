//! `catalog`: stacks from the templates of a folder, laid out as the predecessor's catalogs are.

mod folder;
mod given;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use hyper::{Method, StatusCode};
use process::table::table;
use serde_json::{Value, json};
use stacks::Question;

use crate::cli::catalog::folder::{TemplateFolder, VersionFolder, templates};
use crate::cli::catalog::given::{answers_of_file, answers_of_words};
use crate::cli::client::Ask;
use crate::cli::file::refused::ReadStack;
use crate::cli::file::{Input, plain_name, read_stack};
use crate::cli::stack::up::{Manner, brought_up, planned};
use crate::cli::stack::{Waiting, path_of};
use crate::cli::terminal::{print, print_json, warn};
use crate::cli::{Failure, Outcome, client, fine, row, word};
use crate::place::name::given_name;

/// Longest cell of a table, in characters.
const CELL_MAX: usize = 80;

/// Answers that are stored with a stack, by the names of their questions.
type StoredAnswers = BTreeMap<String, String>;

/// `catalog`.
#[derive(Args, Debug)]
pub struct Catalog {
    #[command(subcommand)]
    act: Act,
}

#[derive(Subcommand, Debug)]
enum Act {
    /// List the templates of a folder
    List(List),
    /// Show a template: its versions, and what one of them asks
    Show(Show),
    /// Have what a template describes run, and stay so; another version of it is an update
    Up(Box<CatalogUp>),
}

/// `catalog list`.
#[derive(Args, Debug)]
struct List {
    /// The catalog: a folder with templates/, or one of templates
    dir: PathBuf,
    /// Print JSON instead of a table; a failure is an object with `error`
    #[arg(long)]
    json: bool,
}

/// `catalog show`.
#[derive(Args, Debug)]
struct Show {
    /// A template, or one of its versions, by its folder or by what it calls itself
    #[arg(value_name = "DIR/TEMPLATE[/VERSION]")]
    template: PathBuf,
    /// Print JSON instead of a table; a failure is an object with `error`
    #[arg(long)]
    json: bool,
}

/// `catalog up`.
#[derive(Args, Debug)]
#[command(
    after_help = "Answers are stored with the stack, so another version asks only what is new; passwords and secrets are not, and are
given each time.

Examples:
  scheduler catalog up catalog/windows-demo --set password=s3cret --dry-run
  scheduler catalog up catalog/windows-demo/1 --stack shop --answers shop.answers"
)]
struct CatalogUp {
    /// A template, or one of its versions, by its folder or by what it calls itself [default: the version of config.yml]
    #[arg(value_name = "DIR/TEMPLATE[/VERSION]")]
    template: PathBuf,
    /// Name of the stack [default: that of the template's folder]
    #[arg(long, value_name = "NAME", value_parser = given_name)]
    stack: Option<String>,
    /// An answer; it wins over the file's
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// File with answers: a map in YAML or JSON, or lines KEY=VALUE; - is standard input
    #[arg(long, value_name = "FILE")]
    answers: Option<PathBuf>,
    /// Say what would change, as `plan` does; changes nothing
    #[arg(long, conflicts_with_all = ["detach", "timeout", "expect"])]
    dry_run: bool,
    /// Only if the stack is at this revision, as `--dry-run` has shown it; 0 when there is none
    #[arg(long, value_name = "REVISION")]
    expect: Option<u64>,
    #[command(flatten)]
    manner: Manner,
    #[command(flatten)]
    waiting: Waiting,
    #[command(flatten)]
    ask: Ask,
}

impl Catalog {
    pub(super) fn json(&self) -> bool {
        match &self.act {
            Act::List(list) => list.json,
            Act::Show(show) => show.json,
            Act::Up(up) => up.ask.json,
        }
    }

    pub(super) async fn run(self) -> Outcome {
        match self.act {
            Act::List(list) => list.run(),
            Act::Show(show) => show.run(),
            Act::Up(up) => up.run().await,
        }
    }
}

impl List {
    fn run(&self) -> Outcome {
        let mut rows = vec![row(["TEMPLATE", "VERSION", "VERSIONS", "CATEGORY", "DESCRIPTION"])];
        let mut all = Vec::new();
        for path in templates(&self.dir)? {
            let template = match TemplateFolder::open(&path) {
                Ok(template) => template,
                Err(error) => {
                    // One bad template does not hide the others.
                    warn(&format!("warning: {error}"));
                    continue;
                }
            };
            let about = &template.about;
            let versions: Vec<&str> = template.versions.iter().map(|version| &*version.folder).collect();
            let meant = template.meant().map_or("-", VersionFolder::shown);
            rows.push(row([&template.name, meant, &versions.join(" "), &about.category, &about.description]));
            all.push(json!({
                "template": template.name, "name": about.name, "description": about.description, "category": about.category,
                "version": meant, "versions": versions,
            }));
        }
        if self.json {
            print_json(&all.into());
        } else {
            print(&table(&rows, CELL_MAX));
        }
        Ok(true)
    }
}

impl Show {
    fn run(&self) -> Outcome {
        let (template, at) = TemplateFolder::of_path(&self.template)?;
        let version = &template.versions[at];
        let (about, said) = (&template.about, &version.said);
        if self.json {
            let versions =
                template.versions.iter().map(|one| json!({ "folder": one.folder, "version": one.said.version }));
            print_json(&json!({
                "template": template.name, "name": about.name, "description": about.description, "category": about.category,
                "versions": versions.collect::<Value>(), "folder": version.folder, "version": said.version,
                "upgrade_from": said.upgrade_from, "questions": said.questions.iter().map(question).collect::<Value>(),
            }));
            return Ok(true);
        }
        version.warn_of_ignored();
        let name = if about.name.is_empty() { &template.name } else { &*about.name };
        print(&format!(
            "{name}: {}\n",
            if said.description.is_empty() { &about.description } else { &said.description }
        ));
        let mut rows = vec![row(["FOLDER", "VERSION", ""])];
        for one in &template.versions {
            let mark = if one.folder == version.folder { "this one" } else { "" };
            rows.push(row([&one.folder, &one.said.version, mark]));
        }
        print(&format!("\n{}", table(&rows, CELL_MAX)));
        let mut rows = vec![row(["ANSWER", "TYPE", "DEFAULT", "EXPECTED"])];
        for question in &said.questions {
            let default = match &question.default {
                Some(_) if question.kind.is_secret() => "(not shown)".to_owned(),
                Some(default) => default.replace('\n', " "),
                None if question.required => "(required)".to_owned(),
                None => String::new(),
            };
            rows.push(row([&question.variable, question.kind.word(), &default, &question.expected()]));
        }
        if rows.len() > 1 {
            print(&format!("\n{}", table(&rows, CELL_MAX)));
        }
        Ok(true)
    }
}

/// A question for programs; the default of a password is not shown.
fn question(question: &Question) -> Value {
    let default = if question.kind.is_secret() { &None } else { &question.default };
    json!({
        "variable": question.variable, "label": question.label, "description": question.description,
        "type": question.kind.word(), "required": question.required, "default": default, "options": question.options,
    })
}

/// The first field that shows one of these texts: not in the environment nor in contents of files, which nothing shows.
fn field_with(value: &Value, secrets: &[String]) -> Option<String> {
    let has_one = |text: &str| secrets.iter().any(|secret| !secret.is_empty() && text.contains(&**secret));
    let below = |key: String, value: &Value| match field_with(value, secrets)? {
        rest if rest.is_empty() => Some(key),
        rest => Some(format!("{key}.{rest}")),
    };
    match value {
        Value::String(text) => has_one(text).then(String::new),
        Value::Array(items) => items.iter().enumerate().find_map(|(at, item)| below(at.to_string(), item)),
        Value::Object(map) => map
            .iter()
            .filter(|(key, _)| !matches!(&***key, "environment" | "files"))
            .find_map(|(key, value)| if has_one(key) { Some(String::new()) } else { below(key.clone(), value) }),
        _ => None,
    }
}

impl CatalogUp {
    async fn run(self) -> Outcome {
        let mut secrets = Vec::new();
        self.bring_up(&mut secrets).await.map_err(|failure| failure.without(&secrets))
    }

    /// The same; `secrets` are the answers that no message shows.
    async fn bring_up(&self, secrets: &mut Vec<String>) -> Outcome {
        let (template, at) = TemplateFolder::of_path(&self.template)?;
        let version = &template.versions[at];
        let stored = self.stored(&template.name).await?;
        let (read, answers) = self.services(&template.name, version, stored, secrets)?;
        let mut body = self.manner.body(&read.services);
        body["answers"] = json!(answers);
        let done = if self.dry_run {
            let way = "the same with --expect REVISION in the place of --dry-run does this";
            planned(&read.name, &body, way, &self.ask).await
        } else {
            brought_up(&read.name, body, self.expect, &self.waiting, &self.ask).await
        };
        done.map_err(|failure| read.placed(failure))
    }

    /// The answers that are stored with the stack, if there is one.
    async fn stored(&self, template: &str) -> Result<Vec<(String, String)>, Failure> {
        let name = self.stack.clone().unwrap_or_else(|| plain_name(&template.to_lowercase()));
        let asked = client(&self.ask)?.ask(Method::GET, &path_of(&name, "/answers"), None, |_| {}).await;
        let answer = asked.map_err(Failure::NoAnswer)?;
        // There is no stack yet, or the template's name is none.
        if matches!(answer.status, StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST) {
            return Ok(Vec::new());
        }
        let answer = fine(answer)?;
        let stored = answer["answers"].as_object().into_iter().flatten();
        Ok(stored.map(|(key, value)| (key.clone(), word(value))).collect())
    }

    /// The stack and its services, for the answers that are given, and those of them that are stored with it.
    fn services(
        &self,
        template: &str,
        version: &VersionFolder,
        stored: Vec<(String, String)>,
        secrets: &mut Vec<String>,
    ) -> Result<(ReadStack, StoredAnswers), Failure> {
        version.warn_of_ignored();
        let kind = |name: &str| {
            let asked = version.said.questions.iter().find(|question| *question.variable == *name);
            asked.map(|question| question.kind)
        };
        // What an older version asked is of no use any more.
        let mut given: Vec<(String, String)> = stored.into_iter().filter(|(name, _)| kind(name).is_some()).collect();
        if !given.is_empty() {
            let names: Vec<&str> = given.iter().map(|(name, _)| &**name).collect();
            warn(&format!("as stored with the stack, unless given now: {}", names.join(", ")));
        }
        if let Some(file) = &self.answers {
            let input = Input::open(file)?;
            let answers = answers_of_file(&input.text);
            given.extend(answers.map_err(|error| Failure::Wrong(format!("{}: {error}", input.shown)))?);
        }
        given.extend(answers_of_words(&self.set).map_err(Failure::Wrong)?);
        let answers = version.said.answers(&given).map_err(|wrong| {
            let lines: Vec<String> = wrong.iter().map(ToString::to_string).collect();
            let more = "answers are given with --set KEY=VALUE or --answers FILE";
            Failure::Wrong(format!("{}: {}; {more}", version.shown_folder(), lines.join("; ")))
        })?;
        let is_secret = |name: &str| kind(name).is_some_and(stacks::QuestionKind::is_secret);
        secrets.extend(answers.iter().filter(|(name, _)| is_secret(name)).map(|(_, value)| value.to_string()));
        // A default may be another one in another version, and what is secret is stored nowhere.
        let stored: StoredAnswers =
            given.iter().filter(|(name, _)| kind(name).is_some_and(|kind| !kind.is_secret())).cloned().collect();
        let stack = self.stack.as_deref();
        let answer = |name: &str| {
            let known = answers.iter().find(|(own, _)| **own == *name);
            known.map(|(_, value)| value.to_string())
        };
        let read = version.with_files(&answer, stack, template, read_stack)?;
        for service in &read.services {
            if let Some(field) = field_with(service, secrets) {
                let name = word(&service["service"]);
                warn(&format!(
                    "warning: {name}.{field} has an answer that is a secret: it is stored and shown there as all of the stack is; \
                     environment and the content of secrets are not shown"
                ));
            }
        }
        Ok((read, stored))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_found_where_it_is_shown() {
        let secrets = ["s3cret".to_owned(), String::new()];
        let of = |json: Value| field_with(&json, &secrets);
        let hidden = json!({ "service": "a", "environment": { "P": "s3cret" }, "files": [{ "content": "s3cret" }] });
        assert_eq!(of(hidden), None);
        let check = json!({ "healthcheck": { "test": ["CMD", "ask -ps3cret"] } });
        assert_eq!(of(check).as_deref(), Some("healthcheck.test.1"));
        let sidekick = json!({ "sidekicks": [{ "name": "s", "labels": { "s3cret": "1" } }] });
        assert_eq!(of(sidekick).as_deref(), Some("sidekicks.0.labels"));
    }
}
