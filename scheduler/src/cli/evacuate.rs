//! `agent evacuate`: what schedulers have started on a host that is gone for good runs elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use etcd::segment::{ESCAPED, escape};
use hyper::Method;
use process::table::table;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::cli::client::{Ask, Client, server_address};
use crate::cli::terminal::{print, print_json, warn};
use crate::cli::{Failure, NO_PLACE, Outcome, client, fine, list, row, word};

/// Pause between two looks at what is on its way.
const LOOK: Duration = Duration::from_millis(500);

/// Pause before another scheduler is asked, or the same one again: one that starts again takes about as long.
const AGAIN: Duration = Duration::from_secs(1);

/// Longest cell of the table.
const CELL_MAX: usize = 60;

/// Start what schedulers have started on a host that is gone for good on other hosts
///
/// What is wanted is in the schedulers' ledger before anything begins: if the scheduler ends, another one of that ledger goes on, or the
/// same one once it is back, also without this command, which meanwhile asks the next one (--or-server).
/// Nothing begins this by itself: a scheduler cannot know whether a machine that is silent is off. Units of stacks follow their own
/// `dead_after`. What stays is listed with its reason before anything begins. The host's engine is not asked; if the machine comes
/// back, what is left of the moved units there is stopped and removed. The exit code is 1 if something stays or has no place.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  agent evacuate win-5 --dead --dry-run
  agent evacuate win-5 --dead --yes-it-is-off")]
pub struct Evacuate {
    /// The host, by its name or uuid
    host: String,

    /// It is gone for good (`agent drain` empties one that is there)
    #[arg(long, required = true)]
    dead: bool,

    /// Say what would be moved and what stays, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// The machine is switched off: nothing of what is moved runs there
    #[arg(long, required_unless_present = "dry_run", conflicts_with = "dry_run")]
    yes_it_is_off: bool,

    /// Seconds to wait until all of it runs; the schedulers go on after that
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,

    #[command(flatten)]
    ask: Ask,

    /// Schedulers that are asked, one after the other, if that one does not answer or ends meanwhile
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', value_parser = server_address)]
    or_server: Vec<SocketAddr>,
}

impl Evacuate {
    /// Asks, waits, and prints what was done.
    pub fn run(self) -> ExitCode {
        let json = self.ask.json;
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return Failure::NoAnswer(error.to_string()).report(json),
        };
        match runtime.block_on(self.evacuate()) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(NO_PLACE),
            Err(failure) => failure.report(json),
        }
    }

    async fn evacuate(self) -> Outcome {
        // The command line demands both.
        if !self.dead || !(self.dry_run || self.yes_it_is_off) {
            return Err(Failure::Wrong("only a host that is off, and stays so, is evacuated".to_owned()));
        }
        let servers = std::iter::once(&self.ask.server).chain(&self.or_server);
        let clients = servers.map(|server| client(&Ask { server: *server, ..self.ask.clone() }));
        let clients = clients.collect::<Result<Vec<_>, _>>()?;
        let mut plan = Err(Failure::NoAnswer("no scheduler is asked".to_owned()));
        let mut at = 0;
        for (number, client) in clients.iter().enumerate() {
            (plan, at) = (self.asked(client, true).await, number);
            if !plan.as_ref().is_err_and(may_pass) {
                break;
            }
        }
        let plan = plan?;
        let stays = !list(&plan["stays"]).is_empty();
        if !self.ask.json {
            print(&described(&plan));
        }
        if self.dry_run {
            if self.ask.json {
                print_json(&plan);
            }
            return Ok(!stays);
        }
        let until = Instant::now() + Duration::from_secs(self.timeout);
        // Those that a scheduler begins for one that ended meanwhile too.
        let mut moved = list(&plan["moved"]).to_vec();
        loop {
            let failure = match self.carry_out(&clients[at], (&mut moved, &plan["stays"]), until).await {
                Ok(is_there) => return Ok(is_there),
                Err(failure) if may_pass(&failure) && Instant::now() < until => failure,
                Err(failure) => return Err(failure),
            };
            at = (at + 1) % clients.len();
            warn(&format!("{failure}; asking {}, which goes on", clients[at].server()));
            sleep(AGAIN).await;
        }
    }

    /// Has a scheduler move what is on the host now, and waits until that and what was to be moved before runs.
    async fn carry_out(&self, client: &Client, (moved, said): (&mut Vec<Value>, &Value), until: Instant) -> Outcome {
        let mut begun = self.asked(client, false).await?;
        if !self.ask.json && begun["stays"] != *said {
            // Such as one that was being started just then.
            print(&described(&begun));
        }
        let same = |one: &Value, other: &Value| one["id"] == other["id"] && one["unit"] == other["unit"];
        moved.retain(|known| !list(&begun["stays"]).iter().any(|stays| same(known, stays)));
        let new = list(&begun["moved"]).iter().filter(|new| !moved.iter().any(|known| same(known, new)));
        moved.extend(new.cloned().collect::<Vec<_>>());
        begun["moved"] = Value::Array(moved.clone());
        let is_there = self.wait(client, (&begun["host"]["uuid"], moved), until).await?;
        if self.ask.json {
            print_json(&begun);
        }
        Ok(is_there && list(&begun["stays"]).is_empty())
    }

    async fn asked(&self, client: &Client, dry_run: bool) -> Result<Value, Failure> {
        let body = json!({ "host": self.host, "dry_run": dry_run });
        fine(client.ask(Method::POST, "/v1/evacuate", Some(&body), |_| {}).await.map_err(Failure::NoAnswer)?)
    }

    /// Waits until these units run; `false` if some do not within the time.
    async fn wait(&self, client: &Client, (host, units): (&Value, &[Value]), until: Instant) -> Result<bool, Failure> {
        let mut left: Vec<&Value> = units.iter().collect();
        // Where there is nothing to wait for, nothing is said.
        let mut said = if left.is_empty() { 0 } else { usize::MAX };
        loop {
            let mut still = Vec::new();
            for unit in left {
                if !runs(client, unit, host).await? {
                    still.push(unit);
                }
            }
            left = still;
            if left.len() != said {
                said = left.len();
                warn(&format!("{}: {} of {} units do not run yet", self.host, left.len(), units.len()));
            }
            if left.is_empty() {
                return Ok(true);
            }
            if Instant::now() >= until {
                warn("the schedulers go on; `scheduler ps` says what each waits for");
                return Ok(false);
            }
            sleep(LOOK).await;
        }
    }
}

/// Whom to ask where units would go that leave a host.
#[derive(Args, Clone, Debug)]
pub struct DrainQuestion {
    /// The scheduler that says where units would go, and why others stay; without one their names are listed alone
    #[arg(long, value_name = "ADDRESS", env = "BERTH_SCHEDULER", default_value = "127.0.0.1:8254", value_parser = server_address)]
    server: SocketAddr,

    /// File with the bearer token that the scheduler wants [default: its own token, if this user may read that]
    #[arg(long, value_name = "FILE", env = "BERTH_SCHEDULER_TOKEN_FILE")]
    token_file: Option<PathBuf>,

    /// Folder with ca.pem, cert.pem and key.pem, for a scheduler that answers only over TLS
    #[arg(long, value_name = "DIR", env = "BERTH_SCHEDULER_TLS_CERTS")]
    tls_certs: Option<PathBuf>,
}

impl DrainQuestion {
    /// What would be moved from a host where, and what stays and why; `has_units` if units of stacks run there.
    ///
    /// # Errors
    ///
    /// Fails if no scheduler says that, or one does that has none of them, since its ledger is another one.
    pub async fn plan(&self, host: &str, has_units: bool) -> Result<Value, String> {
        let Self { server, token_file, tls_certs } = self.clone();
        let client = Client::new(&Ask { server, token_file, tls_certs, insecure: false, json: false })?;
        let body = json!({ "host": host, "dry_run": true, "drain": true });
        let answer = client.ask(Method::POST, "/v1/evacuate", Some(&body), |_| {}).await?;
        let plan = fine(answer).map_err(|failure| failure.to_string())?;
        if has_units && list(&plan["moved"]).is_empty() && list(&plan["stays"]).is_empty() {
            return Err(format!(
                "the scheduler at {server} has started nothing there (--server says which one keeps the stacks)"
            ));
        }
        Ok(plan)
    }

    /// What a host still has by the ledger of the scheduler, also what is only being started; `None` if none answers.
    pub async fn left(&self, host: &str) -> Option<DrainLeft> {
        let plan = self.plan(host, false).await.ok()?;
        let names = |unit: &Value| list(&unit["containers"]).iter().map(word).collect::<Vec<_>>();
        let mut left =
            DrainLeft { moves: list(&plan["moved"]).iter().flat_map(names).collect(), ..DrainLeft::default() };
        for unit in list(&plan["stays"]) {
            if unit["ends"] == true {
                left.moves.extend(names(unit));
            } else {
                left.stays.extend(names(unit).into_iter().map(|name| (name, word(&unit["why"]))));
            }
        }
        Some(left)
    }

    /// A plan, or why there is none, for people.
    pub fn described(plan: &Result<Value, String>) -> String {
        match plan {
            Ok(plan) => described(plan),
            Err(why) => format!("where to, and what stays and why, is not known: {why}\n"),
        }
    }
}

/// What a host that is drained still has, by names of containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainLeft {
    /// What is moved to other hosts, or ends by itself.
    pub moves: BTreeSet<String>,
    /// What is not, and why.
    pub stays: BTreeMap<String, String>,
}

/// Whether another scheduler, or the same one later, may answer.
fn may_pass(failure: &Failure) -> bool {
    matches!(failure, Failure::NoAnswer(_) | Failure::Refused { status: 503, .. })
}

/// Whether all containers of a unit are started, and not on this host.
async fn runs(client: &Client, unit: &Value, host: &Value) -> Result<bool, Failure> {
    let mut path = "/v1/placements/".to_owned();
    escape(&word(&unit["id"]), ESCAPED, &mut path);
    let answer = fine(client.ask(Method::GET, &path, None, |_| {}).await.map_err(Failure::NoAnswer)?)?;
    let names = list(&unit["containers"]);
    let elsewhere = list(&answer["placements"]).iter().filter(|placed| placed["host"]["uuid"] != *host);
    let containers = elsewhere.flat_map(|placed| list(&placed["containers"]));
    // Once the cluster shows a container, it is settled, also one that was created alone.
    let is_running = |one: &&Value| match one["state"].as_str() {
        Some("started") => one["life"].is_null() || one["life"]["state"] == "running",
        Some("settled") => one["life"]["state"] == "running",
        _ => false,
    };
    let running = containers.filter(|one| names.contains(&one["name"])).filter(is_running);
    Ok(running.count() == names.len())
}

/// The plan for people.
fn described(plan: &Value) -> String {
    let names = |unit: &Value| list(&unit["containers"]).iter().map(word).collect::<Vec<_>>().join(", ");
    let mut rows = vec![row(["PLACEMENT", "CONTAINERS", "TO", "STAYS BECAUSE"])];
    for unit in list(&plan["moved"]) {
        rows.push(vec![word(&unit["id"]), names(unit), word(&unit["to"]["name"]), "-".to_owned()]);
    }
    for unit in list(&plan["stays"]) {
        rows.push(vec![word(&unit["id"]), names(unit), "-".to_owned(), word(&unit["why"])]);
    }
    if rows.len() == 1 {
        let host = word(&plan["host"]["name"]);
        return format!("no scheduler has started anything on {host}; `agent hosts` lists the names of hosts\n");
    }
    table(&rows, CELL_MAX)
}
