//! Health checks in `agent up`, and `agent health`, which prints what they found.

mod layer;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use health::check::Checker;
use health::metrics::Metrics;
use health::run::{Exchange, Health as Checking};
use health::verdict::Quorum;
use health::verdicts::Verdicts;
use health::{Outputs, Scope};
use live::etcd::Voting;
use live::{DocumentLayer, Origin};
use model::printable::printable_json;
use model::votes::{Cast, Heard};
use model::{Map, Snapshot, Value};
use process::command::get_admin;
use process::table::table;
use process::{Failure, Launch, StateOptions};
use serde_json::Value as Json;
use source::{StateDir, Store};

use crate::enroll;

/// The file with the verdicts inside the state directory.
const FILE: &str = "health.json";

/// Longest wait for the page.
const PAGE_WITHIN: Duration = Duration::from_secs(5);

/// Longest cell of the table before the last one.
const CELL_MAX: usize = 48;

/// Which containers are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Checked {
    /// Those of this host by several others, and this host those of others, by their labels
    Cluster,
    /// Those of this host, by their labels
    Own,
    /// All in the cluster file, from here: for a first look, at most 1,000
    All,
    /// None: what the cluster file or the engine says of their health stays
    Off,
}

/// How many checkers make a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HealthQuorum {
    /// More than half of those that are sure
    Majority,
    /// All of them for unhealthy, one for healthy, as in Rancher
    All,
}

/// How containers are checked.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct HealthOptions {
    /// Which containers are checked, as their `health_check` or their labels `io.berth.health.…` say [default: cluster with etcd
    /// and an engine, own with an engine alone, otherwise off]
    #[arg(id = "health", long = "health", value_name = "WHICH", env = "BERTH_HEALTH")]
    which: Option<Checked>,

    /// How many of a container's checkers have to say so: more than half, or all for unhealthy and one for healthy
    #[arg(
        id = "health_quorum",
        long = "health-quorum",
        value_name = "WHICH",
        env = "BERTH_HEALTH_QUORUM",
        default_value = "majority"
    )]
    quorum: HealthQuorum,

    /// Certificates of the authorities that are believed where a check wants its server's verified (PEM)
    #[arg(id = "health_ca", long = "health-ca", value_name = "FILE", env = "BERTH_HEALTH_CA")]
    authorities: Option<PathBuf>,
}

/// Checks that are about to begin.
#[derive(Debug)]
pub(crate) struct Checks {
    scope: Scope,
    checker: Checker,
    state: Option<StateDir>,
    verdicts: Arc<Store<Verdicts>>,
    /// What is exchanged with other hosts, where these check each other's containers.
    voting: Option<Voting>,
    quorum: Quorum,
    outputs: Arc<Store<Outputs>>,
}

impl Checks {
    /// The checks that the options want, with the verdicts that are stored; `None` if they want none.
    ///
    /// # Errors
    ///
    /// Fails if the options do not go with the source, or the state directory cannot be used.
    pub(crate) fn prepare(
        options: &HealthOptions,
        has_engine: bool,
        origin: &Origin,
        state: &StateOptions,
    ) -> Result<Option<Self>, Failure> {
        let is_etcd = matches!(origin, Origin::Etcd(_));
        let scope = match (options.which, has_engine) {
            (Some(Checked::Off), _) | (None, false) => return Ok(None),
            (Some(Checked::Cluster) | None, true) if is_etcd => Scope::Cluster,
            (Some(Checked::Own) | None, true) => Scope::Own,
            (Some(Checked::All), _) if matches!(origin, Origin::Source(_)) => Scope::All,
            (Some(Checked::Cluster), _) => {
                return Err("--health cluster is for hosts with an engine that share an etcd: give --source etcd:URL and --docker, or --health own".into());
            }
            (Some(Checked::Own), false) => {
                return Err("--health own checks the containers of this host's engine: give --docker, or --health all with a cluster file".into());
            }
            (Some(Checked::All), _) => {
                return Err(
                    "--health all is for a cluster file; with an engine, --health own checks what runs here".into()
                );
            }
        };
        let checker = match &options.authorities {
            Some(file) => Checker::new(tls::client_without_certificate(file)?.into()),
            None => Checker::default(),
        };
        let state = state.open()?;
        let stored = state.as_ref().and_then(|state| serde_json::from_slice::<Map>(&state.load_contents(FILE)?).ok());
        let verdicts = Arc::new(Store::new(stored.as_ref().map(Verdicts::of_map).unwrap_or_default()));
        let voting = (scope == Scope::Cluster).then(|| Voting {
            cast: Arc::new(Store::new(Cast::default())),
            checkers: Arc::new(Store::new(BTreeSet::new())),
            heard: Arc::new(Store::new(Heard::default())),
        });
        let quorum = match options.quorum {
            HealthQuorum::Majority => Quorum::Majority,
            HealthQuorum::All => Quorum::All,
        };
        let outputs = Arc::new(Store::new(Outputs::default()));
        Ok(Some(Self { scope, checker, state, verdicts, voting, quorum, outputs }))
    }

    /// What lays the verdicts over the document of this host.
    pub(crate) fn layer(&self) -> Option<Arc<dyn DocumentLayer>> {
        let own = || layer::Own {
            verdicts: self.verdicts.clone(),
            checks_others: (self.scope == Scope::Cluster).then_some(self.quorum),
            outputs: self.outputs.clone(),
        };
        (self.scope != Scope::All).then(|| Arc::new(own()) as _)
    }

    /// How this host votes, if it does.
    pub(crate) fn voting(&self) -> Option<Voting> {
        self.voting.clone()
    }

    /// Begins to check what is in `snapshots`; returns those with the verdicts in them.
    pub(crate) fn begin(self, snapshots: Arc<Store<Snapshot>>, launch: &mut Launch) -> Arc<Store<Snapshot>> {
        let Self { scope, checker, state, verdicts, voting, quorum, outputs } = self;
        let metrics = Metrics::register(&mut launch.registry);
        let readiness = launch.readiness.clone();
        let exchange = voting.map(|Voting { cast, checkers, heard }| Exchange { cast, checkers, heard, quorum });
        let checking = Checking::new(scope, checker, snapshots.clone(), verdicts.clone(), exchange, readiness, metrics);
        let stop = launch.stop.clone();
        if let Some(state) = state {
            let (stop, verdicts) = (stop.clone(), verdicts.clone());
            launch.spawn("storing verdicts", async move {
                let save = move |verdicts: &Verdicts| {
                    state.save_contents(FILE, &serde_json::to_vec(&Value::Map(verdicts.to_map()))?)
                };
                let storing = source::state::keep(verdicts.clone(), "the health of containers", save.clone());
                stop.run_until_cancelled(storing).await;
                // What was published while nothing was to be stored yet. A disk that refuses was logged before.
                let _ = save(&verdicts.load_full());
                Ok(())
            });
        }
        let shown = match scope {
            Scope::Own | Scope::Cluster => snapshots,
            Scope::All => {
                let (laid, stop) = (Arc::new(Store::new(Snapshot::default())), stop.clone());
                let laying = layer::lay_over_snapshots(snapshots, verdicts, laid.clone());
                launch.wait_for(laid.clone());
                launch.spawn("the health of containers", async move {
                    stop.run_until_cancelled(laying).await;
                    Ok(())
                });
                laid
            }
        };
        launch.add_pages(checking.pages(shown.clone(), outputs));
        let (saying, ended) = (checking.clone().say_when_ignored(shown.clone()), stop.clone());
        launch.spawn("saying when health is ignored", async move {
            ended.run_until_cancelled(saying).await;
            Ok(())
        });
        // What takes long elsewhere makes no check late.
        let checks = checking.run();
        launch.spawn_apart("health checks", || {}, async move {
            stop.run_until_cancelled(checks).await;
            Ok(())
        });
        shown
    }
}

/// Print the health of containers: what is asked where, by whom, and what came of it
#[derive(clap::Args)]
pub(crate) struct Health {
    /// A container, a service or stack/service [default: all that are checked]
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Write JSON instead of a table
    #[arg(long)]
    json: bool,

    /// The admin address of the agent
    #[arg(long, value_name = "ADDRESS", env = "BERTH_ADMIN")]
    admin: Option<SocketAddr>,
}

impl Health {
    /// Asks the agent and prints; the exit code is 1 if it does not answer, or nothing of that name is checked.
    pub(crate) fn run(&self, port: u16) -> ExitCode {
        enroll::finish(self.shown(port))
    }

    fn shown(&self, port: u16) -> Result<String, Failure> {
        let admin = self.admin.unwrap_or_else(|| ([127, 0, 0, 1], port).into());
        let query = self.name.as_ref().map(|name| {
            let encoded = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
            format!("?name={encoded}")
        });
        let (status, body) = get_admin(admin, &format!("{}{}", health::PATH, query.unwrap_or_default()), PAGE_WITHIN)?;
        if status.as_u16() == 404 {
            return Err(format!(
                "the agent at {admin} checks nothing: it was started with --health off, or without an engine"
            )
            .into());
        }
        let containers: Vec<Json> =
            serde_json::from_str(&body).map_err(|_| format!("{admin} answers {status}: {body}"))?;
        if let (Some(name), true) = (&self.name, containers.is_empty()) {
            let problem = format!(
                "{name} is not checked: no container or service of that name has a health check (`health_check` or a label io.berth.health.port)"
            );
            return Err(problem.into());
        }
        if self.json {
            return Ok(printable_json(&format!("{:#}\n", Json::from(containers))));
        }
        if containers.is_empty() {
            return Ok(
                "no container has a health check: none has `health_check` or a label io.berth.health.port\n".into()
            );
        }
        let mut text = table(&rows(&containers), CELL_MAX);
        if self.name.is_some() {
            text.push('\n');
            text += &table(&results(&containers), CELL_MAX);
        }
        Ok(text)
    }
}

/// A line for each container.
fn rows(containers: &[Json]) -> Vec<Vec<String>> {
    let head = ["CONTAINER", "SERVICE", "STATE", "FOR", "CHECKED BY", "ASKED AT", "LAST RESULT"];
    let head = head.map(str::to_owned).to_vec();
    let rows = containers.iter().map(|container| {
        let text = |value: &Json| value.as_str().unwrap_or("-").to_owned();
        let check = &container["check"];
        let asked = check["address"].as_str().map(|address| format!("{} {address}", text(&check["type"])));
        let last = match (container["problem"].as_str(), &check["last"]) {
            (Some(problem), _) => format!("unchecked: {problem}"),
            (None, Json::Null) if check.is_null() => {
                container["reason"].as_str().map_or_else(|| "-".to_owned(), ToOwned::to_owned)
            }
            (None, Json::Null) => "not asked yet".to_owned(),
            (None, last) => result(last),
        };
        vec![
            text(&container["container"]),
            text(&container["service"]),
            text(&container["health_state"]),
            check["for_ms"].as_f64().map_or_else(|| "-".to_owned(), seconds),
            checkers(container),
            asked.unwrap_or_else(|| "-".to_owned()),
            last + if check["flapping"] == true { ", flapping" } else { "" }
                + if container["failed"].is_string() { ", given up" } else { "" },
        ]
    });
    std::iter::once(head).chain(rows).collect()
}

/// Who checks a container, those who do not agree with its state with what they think.
fn checkers(container: &Json) -> String {
    let checkers = container["checkers"].as_array().map_or(&[][..], Vec::as_slice);
    let one = |checker: &Json| {
        let text = |key: &str| checker[key].as_str().unwrap_or_default().to_owned();
        let since = checker["disagrees_for_ms"].as_f64().map_or_else(String::new, |ms| format!(" for {}", seconds(ms)));
        match (&*text("opinion"), text("reason")) {
            ("agrees", _) => text("host"),
            (opinion, reason) if reason.is_empty() => format!("{} {opinion}{since}", text("host")),
            (opinion, reason) => format!("{} {opinion}{since} ({reason})", text("host")),
        }
    };
    match (container["owner"].as_str(), checkers) {
        (Some(owner), _) => format!("this host, for {owner}"),
        // What its engine says is here alone.
        (None, []) if container["check"].is_null() && container["problem"].is_null() => "its HEALTHCHECK".to_owned(),
        (None, []) => "this host alone".to_owned(),
        (None, checkers) => checkers.iter().map(one).collect::<Vec<_>>().join(", "),
    }
}

/// A line for each of the last results, and for what a `HEALTHCHECK` that fails wrote.
fn results(containers: &[Json]) -> Vec<Vec<String>> {
    let head = ["CONTAINER", "AGO", "RESULT"].map(str::to_owned).to_vec();
    let rows = containers.iter().flat_map(|container| {
        let results = container["check"]["results"].as_array().into_iter().flatten();
        let name = container["container"].as_str().unwrap_or("-");
        let results = results.map(move |one| {
            let ago = one["ago_ms"].as_f64().map(seconds);
            vec![name.to_owned(), ago.unwrap_or_default(), result(one)]
        });
        let output = container["output"].as_str().into_iter().flat_map(str::lines);
        results.chain(output.map(move |line| vec![name.to_owned(), "-".to_owned(), format!("HEALTHCHECK: {line}")]))
    });
    std::iter::once(head).chain(rows).collect()
}

fn result(one: &Json) -> String {
    let outcome = one["outcome"].as_str().unwrap_or_default();
    let took = one["took_ms"].as_f64().unwrap_or_default();
    match one["reason"].as_str() {
        Some(reason) => format!("{outcome}: {reason}"),
        None => format!("{outcome} in {took:.1} ms"),
    }
}

/// A time for people.
fn seconds(ms: f64) -> String {
    match ms / 1e3 {
        short if short < 10.0 => format!("{short:.1}s"),
        short if short < 120.0 => format!("{short:.0}s"),
        long if long < 7200.0 => format!("{:.0}m", long / 60.0),
        long => format!("{:.0}h", long / 3600.0),
    }
}
