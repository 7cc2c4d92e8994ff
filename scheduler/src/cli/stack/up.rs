//! `plan` and `up`: what a file describes, and what would change.

use std::path::PathBuf;

use clap::Args;
use hyper::Method;
use process::table::table;
use serde_json::{Value, json};

use crate::cli::client::Ask;
use crate::cli::file::refused::ReadStack;
use crate::cli::file::{Files, Input, read_stack};
use crate::cli::stack::{Waiting, follow, path_of};
use crate::cli::terminal::{print, print_json, warn};
use crate::cli::variables::VariableArgs;
use crate::cli::{Failure, Outcome, client, fine, list, row};
use crate::place::name::given_name;
use crate::place::request::limits::ID_MAX;

/// What is wanted.
#[derive(Args, Debug)]
struct Wanted {
    /// A compose file, or services as requests in JSON or YAML; - is standard input. Of several compose files, later ones add to
    /// what is said before, and win
    #[arg(value_name = "FILE", required = true)]
    file: Vec<PathBuf>,
    /// A rancher-compose.yml with more of the same services
    #[arg(long, value_name = "FILE")]
    rancher_compose: Option<PathBuf>,
    /// Also services with this profile
    #[arg(long, value_name = "NAME")]
    profile: Vec<String>,
    /// Name of the stack [default: that in the file, or the folder's name]
    #[arg(long, value_name = "NAME", value_parser = given_name)]
    stack: Option<String>,
    #[command(flatten)]
    variables: VariableArgs,
    #[command(flatten)]
    manner: Manner,
}

/// How what is wanted is brought about.
#[derive(Args, Debug)]
pub(in crate::cli) struct Manner {
    /// Remove services that the file does not have
    #[arg(long)]
    prune: bool,
    /// When one service fails, all go back to what they were
    #[arg(long)]
    atomic: bool,
}

/// `plan`.
#[derive(Args, Debug)]
pub struct Plan {
    #[command(flatten)]
    wanted: Wanted,
    #[command(flatten)]
    pub(in crate::cli) ask: Ask,
}

/// `up`.
#[derive(Args, Debug)]
#[command(after_help = "Waits until everything is as it should be. The exit code is 0 then, 1 when it is not or was
rolled back, and 2 when the file is wrong.

Examples:
  scheduler up shop/compose.yml shop/compose.production.yml
  scheduler up shop/compose.yml --env-file shop/production.env --set TAG=1.2
  scheduler up - --stack shop --prune --atomic < compose.yml")]
pub struct Up {
    #[command(flatten)]
    wanted: Wanted,
    /// Say what would change, as `plan` does; changes nothing
    #[arg(long, conflicts_with_all = ["detach", "timeout", "expect"])]
    dry_run: bool,
    /// Only if the stack is at this revision, as `plan` says (0: none)
    #[arg(long, value_name = "REVISION")]
    expect: Option<u64>,
    #[command(flatten)]
    waiting: Waiting,
    #[command(flatten)]
    pub(in crate::cli) ask: Ask,
}

impl Wanted {
    fn read(&self) -> Result<ReadStack, Failure> {
        // There is a first one, as the option says.
        let (first, more) = self.file.split_first().ok_or_else(|| Failure::Wrong("no file".to_owned()))?;
        let files = Files::of(first, self.rancher_compose.as_deref(), self.stack.as_ref())?;
        let more = more.iter().map(|file| Input::open(file)).collect::<Result<_, _>>()?;
        let variables = self.variables.read()?;
        let variable = |name: &str| variables.get(name);
        let files = Files { more, variable: &variable, profiles: &self.profile, ..files };
        read_stack(&files)
    }
}

impl Manner {
    pub(in crate::cli) fn body(&self, services: &[Value]) -> Value {
        json!({ "services": services, "prune": self.prune, "atomic": self.atomic })
    }
}

impl Plan {
    pub(in crate::cli) async fn run(self) -> Outcome {
        let read = self.wanted.read()?;
        let body = self.wanted.manner.body(&read.services);
        let way = "`scheduler up --expect REVISION` with the same files does this";
        planned(&read.name, &body, way, &self.ask).await.map_err(|failure| read.placed(failure))
    }
}

/// Prints what would change, and the way to do it, with the revision in its place; whether all of it has a place.
pub(in crate::cli) async fn planned(name: &str, body: &Value, way: &str, ask: &Ask) -> Outcome {
    let client = client(ask)?;
    let answer = client.ask(Method::POST, &path_of(name, "/plan"), Some(body), |_| {}).await;
    let answer = fine(answer.map_err(Failure::NoAnswer)?)?;
    let errors = list(&answer["services"]).iter().flat_map(|service| list(&service["units"]));
    let fits = errors.filter(|unit| unit["error"].is_string()).count() == 0;
    if ask.json {
        print_json(&answer);
    } else {
        show(&answer);
        warn(&way.replace("REVISION", &answer["revision"].to_string()));
    }
    Ok(fits)
}

/// Has a stack run as it is wanted, and reports how far it is.
pub(in crate::cli) async fn brought_up(
    name: &str,
    mut body: Value,
    expect: Option<u64>,
    waiting: &Waiting,
    ask: &Ask,
) -> Outcome {
    if let Some(expect) = expect {
        body["expect"] = expect.into();
    }
    let client = client(ask)?;
    follow(&client, (Method::PUT, path_of(name, "")), Some(&body), ask, waiting).await
}

/// Prints what differs, field by field.
pub(super) fn show_differences(answer: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for difference in list(&answer["differences"]) {
        let service = text(&difference["service"]);
        match &difference["change"] {
            Value::String(word) if word == "added" => print(&format!("+ {service}\n")),
            Value::String(_) => print(&format!("- {service}\n")),
            changed => {
                print(&format!("~ {service}\n"));
                for field in list(&changed["changed"]) {
                    print(&format!("    {}: {} -> {}\n", text(&field[0]), text(&field[1]), text(&field[2])));
                }
            }
        }
    }
}

fn show(answer: &Value) {
    show_differences(answer);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut rows = vec![row(["SERVICE", "UNIT", "FROM", "TO", "ORDER"])];
    for service in list(&answer["services"]) {
        let name = text(&service["name"]);
        for unit in list(&service["units"]) {
            let or = |value: &Value| value.as_str().unwrap_or("-").to_owned();
            let to = unit["error"].as_str().map_or_else(|| or(&unit["to"]), |why| format!("nowhere: {why}"));
            rows.push(row([&name, &text(&unit["index"]), &or(&unit["from"]), &to, &text(&service["order"])]));
        }
    }
    if rows.len() > 1 {
        print(&table(&rows, ID_MAX));
    }
    for service in list(&answer["services"]) {
        let (name, order, why) = (text(&service["name"]), text(&service["order"]), text(&service["why"]));
        print(&format!("{name}: {order}, {} at once: {why}; at least {} s\n", service["batch"], service["at_least"]));
    }
    for orphan in list(&answer["orphans"]) {
        print(&format!("{} is not in the file and stays: --prune removes it\n", text(orphan)));
    }
    if answer["is_empty"] == true {
        print("nothing changes\n");
    }
    let units = || list(&answer["services"]).iter().flat_map(|service| list(&service["units"]));
    let placed = units().filter(|unit| unit["error"].is_null()).count();
    let (all, replaced) = (units().count(), units().filter(|unit| unit["from"].is_string()).count());
    if all > 0 {
        let nowhere = if placed < all { format!(", {} have no place", all - placed) } else { String::new() };
        print(&format!("{all} units to start, {replaced} of them in the place of others{nowhere}\n"));
    }
}

impl Up {
    pub(in crate::cli) async fn run(self) -> Outcome {
        if self.dry_run {
            return Plan { wanted: self.wanted, ask: self.ask }.run().await;
        }
        let read = self.wanted.read()?;
        let body = self.wanted.manner.body(&read.services);
        let done = brought_up(&read.name, body, self.expect, &self.waiting, &self.ask).await;
        done.map_err(|failure| read.placed(failure))
    }
}
