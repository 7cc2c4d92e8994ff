//! What is done about the network on one host.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use etcd::{EtcdArgs, EtcdClient};
use live::Origin;
use live::etcd::Identity;
use model::{Entity as _, Fingerprint, NetworkKey, Snapshot, Table};
use network::choice::candidates;
use network::claim::{Claims, HostClaim, Owner};
use network::config::Allocate;
use network::host::HostNetwork;
use network::plan::{self, Doubt, Facts};
use network::registry::{self, Claimant, Listed};
use network::step::Described;
use platform::route::RouteTable;
use process::table::table;
use process::{Failure, StateOptions};
use serde_json::json;
use source::Source;

use super::export::{self, Format};
use super::operators::CELL_MAX;
use crate::enroll::{finish, now, written};

/// The exit code of `plan --exit-code` when something would be changed.
const WOULD_CHANGE: u8 = 3;

/// Longest wait for the engine to say its name.
const ENGINE_TIME: Duration = Duration::from_secs(10);

/// This host, with the same options as `agent up`.
#[derive(clap::Args)]
pub(super) struct ThisHost {
    #[command(flatten, next_help_heading = "Source")]
    pub(super) live: live::Options,

    #[command(flatten)]
    pub(super) state: StateOptions,

    /// Folder with ca.pem, cert.pem and key.pem for an engine at tcp://HOST:PORT
    #[arg(long = "docker-certs", value_name = "DIR", env = "BERTH_DOCKER_CERTS")]
    pub(super) docker_certs: Option<PathBuf>,
}

/// What a command about this host works with.
pub(super) struct Context {
    pub(super) host: String,
    pub(super) claimed: Claimed,
    pub(super) network: HostNetwork,
    pub(super) state: source::StateDir,
    pub(super) public_ip: Option<IpAddr>,
}

/// Where it is written which host has which subnet.
pub(super) enum Claimed {
    /// In this etcd.
    Etcd(EtcdClient),
    /// In this cluster file.
    File(PathBuf),
}

/// The claims of the snapshots of a source, one after the other.
#[derive(Default)]
pub(super) struct Followed {
    pub(super) claims: Claims,
    /// The keys of etcd that they were made of.
    keys: Table<NetworkKey>,
}

impl Claimed {
    /// Where a source says it.
    pub(super) fn of(origin: Option<&Origin>, etcd: &EtcdArgs) -> Result<Self, Failure> {
        match origin {
            Some(Origin::Etcd(members)) => Ok(Self::Etcd(EtcdClient::new(etcd.with_members(members.clone()))?)),
            Some(Origin::Source(Source::File(path))) => Ok(Self::File(path.clone())),
            _ => Err(
                "the network between hosts needs etcd or a cluster file: give --source etcd:URL or --source file:PATH \
                      (with the settings of the agent: set -a; . /etc/berth/agent.env; set +a)"
                    .into(),
            ),
        }
    }

    /// What this host is called here, unless it was given a name.
    pub(super) async fn name_here(&self, engine: Option<&engine::Engine>) -> Result<String, Failure> {
        match (self, engine) {
            (Self::File(path), _) => {
                let snapshot = snapshot(path)?;
                let local = snapshot.local_host.as_ref().and_then(|host| host.name());
                let unknown =
                    "the cluster file does not say which host this is: add `host: NAME` to it, or give --host NAME";
                Ok(local.ok_or(unknown)?.to_string())
            }
            (Self::Etcd(_), Some(engine)) => {
                let info = engine.ask(ENGINE_TIME, |docker| async move { docker.info().await }).await?;
                Ok(info.name.ok_or("the engine says no name of this host: give --host NAME")?)
            }
            (Self::Etcd(_), None) => Err("name this host: --host NAME".into()),
        }
    }

    /// Takes in the claims of a snapshot from here.
    pub(super) fn follow(&self, followed: &mut Followed, snapshot: &Snapshot) {
        match self {
            Self::Etcd(_) => {
                followed.claims.follow(&followed.keys, &snapshot.network_keys);
                followed.keys = snapshot.network_keys.clone();
            }
            Self::File(_) => followed.claims = Claims::in_file(snapshot),
        }
    }

    /// Stands for all of a snapshot from here that its claims are made of.
    pub(super) fn fingerprint(&self, snapshot: &Snapshot) -> Fingerprint {
        match self {
            Self::Etcd(_) => snapshot.network_keys.fingerprint(),
            Self::File(_) => Fingerprint::of(&(snapshot.hosts.fingerprint(), snapshot.networks.fingerprint())),
        }
    }

    /// The claims as they are now.
    pub(super) async fn read(&self) -> Result<Claims, Failure> {
        match self {
            Self::Etcd(client) => Ok(Listed::read(client).await?.claims),
            Self::File(path) => Ok(Claims::in_file(&snapshot(path)?)),
        }
    }
}

/// What a cluster file says.
fn snapshot(path: &Path) -> Result<Snapshot, Failure> {
    let named = |wrong: &dyn std::fmt::Display| format!("{}: {wrong}", path.display());
    let bytes = std::fs::read(path).map_err(|error| named(&error))?;
    Ok(source::cluster_file::read(path, bytes).map_err(|wrong| named(&wrong))?.0.snapshot)
}

impl ThisHost {
    fn run<F>(&self, work: impl FnOnce(Context) -> F) -> ExitCode
    where
        F: Future<Output = Result<String, Failure>>,
    {
        finish(self.done(work))
    }

    fn done<F, T>(&self, work: impl FnOnce(Context) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let origin = self.live.source.as_ref();
        runtime
            .block_on(async { work(context(&self.live, origin, &self.state, self.docker_certs.clone()).await?).await })
    }
}

/// Why there is no network without a state directory.
pub(crate) const NO_STATE: &str =
    "the network needs a state directory, in which its changes are noted: give --state-dir DIR";

/// What works with the network of this host needs, from the options of `agent up`.
pub(super) async fn context(
    live: &live::Options,
    origin: Option<&Origin>,
    state: &StateOptions,
    certificates: Option<PathBuf>,
) -> Result<Context, Failure> {
    let claimed = Claimed::of(origin, &live.etcd)?;
    let state = state.open()?.ok_or(NO_STATE)?;
    let engine = match &live.docker.engine {
        Some(engine) => {
            let (endpoint, certificates) = live::follow::reach(engine, certificates.as_deref())?;
            Some(engine::Engine::new(endpoint, certificates))
        }
        None => None,
    };
    let host = match &live.host_name {
        Some(name) => name.clone(),
        None => claimed.name_here(engine.as_ref()).await?,
    };
    let network = HostNetwork::open(host.clone(), engine, state.folder().to_owned())?;
    Ok(Context { host, claimed, network, state, public_ip: live.public_ip })
}

/// The address through which other hosts reach this one: the one that was given if an interface has it, else the first one of
/// the interface with the default route.
pub(super) fn own_address(table: &RouteTable, given: Option<IpAddr>) -> Option<Ipv4Addr> {
    let addresses = |link: u32| {
        let links = table.links.iter().filter(move |own| own.index == link);
        links.flat_map(|link| link.addresses.iter().map(ipnet::Ipv4Net::addr))
    };
    if let Some(IpAddr::V4(given)) = given
        && table.links.iter().any(|link| addresses(link.index).any(|address| address == given))
    {
        return Some(given);
    }
    let routes = table.routes.iter().filter(|route| route.prefix.prefix_len() == 0 && route.via.is_some());
    addresses(routes.min_by_key(|route| route.metric)?.link).next()
}

impl Context {
    /// Says in etcd through which address this host is reached, and takes a subnet where hosts do that themselves. A cluster
    /// file says that itself.
    pub(super) async fn announce(&self, via: Option<Ipv4Addr>, takeover: bool) -> Result<(), Failure> {
        let Claimed::Etcd(client) = &self.claimed else { return Ok(()) };
        let machine = Identity::open(Some(&self.state))?.machine;
        let last = self.network.ledger()?.subnet;
        let via = via.ok_or(
            "no interface has an address through which other hosts could reach this one: give --public-ip with an address of \
             this host",
        )?;
        let at = written(now());
        let claimant = Claimant { host: &self.host, via: Some(via), machine: &machine, last, at: &at, now: now() };
        registry::announce(client, claimant, takeover).await?;
        Ok(())
    }

    /// What is said of this host in etcd before anything is changed on it: the claims as they are then, and a line for each
    /// thing.
    fn announced(&self, mut claims: Claims, facts: &Facts) -> Result<(Claims, Vec<String>), Failure> {
        let mut lines = Vec::new();
        let (Claimed::Etcd(_), Ok(config)) = (&self.claimed, claims.config().cloned()) else {
            return Ok((claims, lines));
        };
        let known = claims.subnet_of_host(&self.host);
        let subnet = if known.is_none() && config.allocate == Allocate::Itself {
            let last = self.network.ledger()?.subnet;
            let free = candidates(&config, &claims.subnets, &self.host, last, now()).next();
            if let Some(subnet) = free {
                lines.push(format!("claim the subnet {subnet} in etcd"));
                claims.subnets.insert(subnet, Owner::Host(self.host.as_str().into()));
            }
            free
        } else {
            known
        };
        let (Some(subnet), Some(via)) = (subnet, own_address(&facts.table, self.public_ip)) else {
            return Ok((claims, lines));
        };
        let claim = HostClaim { subnet, via: Some(via) };
        if claims.hosts.get(&*self.host) != Some(&Ok(claim.clone())) {
            lines.push(format!("say in etcd that {} is reached through {via}", self.host));
            claims.hosts.insert(self.host.as_str().into(), Ok(claim));
        }
        Ok((claims, lines))
    }

    async fn look(&mut self) -> Result<(Claims, Facts, Doubt), Failure> {
        let claims = self.claimed.read().await?;
        let facts = self.network.facts().await?;
        let before = self.network.ledger()?.loss;
        // One command is one look: only the agent sees the same loss twice.
        Ok((claims, facts, Doubt { before, agreed: false, restored: false, now: now() }))
    }
}

/// Print what would be changed on this host
///
/// Nothing is changed, and no rights are needed but to look.
#[derive(clap::Args)]
pub(crate) struct Plan {
    /// Print JSON instead of lines
    #[arg(long)]
    json: bool,

    /// End with 3 if something would be changed
    #[arg(long)]
    exit_code: bool,

    /// Also replace an empty network of another subnet
    #[arg(long)]
    recreate: bool,

    #[command(flatten)]
    host: ThisHost,
}

impl Plan {
    pub(crate) fn run(&self) -> ExitCode {
        let planned = self.host.done(async |mut context: Context| {
            let (claims, facts, doubt) = context.look().await?;
            let (claims, said) = context.announced(claims, &facts)?;
            let plan = plan::plan(&claims, &facts, &doubt, self.recreate);
            Ok((described(&said, &plan, &facts, self.json), said.is_empty() && plan.steps.is_empty()))
        });
        let changes = matches!(planned, Ok((_, false)));
        let code = finish(planned.map(|(text, _)| text));
        if self.exit_code && changes && code == ExitCode::SUCCESS { ExitCode::from(WOULD_CHANGE) } else { code }
    }
}

/// What is said in etcd, and the steps and findings of a plan.
fn described(said: &[String], plan: &plan::Plan, facts: &Facts, json: bool) -> String {
    if json {
        let steps: Vec<_> = plan.steps.iter().map(|step| step.to_json(&facts.table)).collect();
        let subnet = plan.subnet.map(|subnet| subnet.to_string());
        let report = json!({ "subnet": subnet, "announces": said, "steps": steps, "findings": plan.findings });
        return format!("{report:#}\n");
    }
    let mut text = said.iter().flat_map(|line| [&**line, "\n"]).collect::<String>();
    for step in &plan.steps {
        let _ = writeln!(text, "{}", Described(step, &facts.table));
    }
    if text.is_empty() {
        text.push_str("nothing is to be changed\n");
    }
    for finding in &plan.findings {
        let _ = writeln!(text, "note: {finding}");
    }
    text
}

/// Change what has to be changed on this host, once
#[derive(clap::Args)]
pub(crate) struct Apply {
    /// Also replace an empty network of another subnet
    #[arg(long)]
    recreate: bool,

    /// Take the subnet of another machine that had the name of this host
    #[arg(long)]
    takeover: bool,

    #[command(flatten)]
    host: ThisHost,
}

impl Apply {
    pub(crate) fn run(&self) -> ExitCode {
        self.host.run(async |mut context: Context| {
            let (before, mut facts, doubt) = context.look().await?;
            context.announce(own_address(&facts.table, context.public_ip), self.takeover).await?;
            let (claims, said) = context.announced(before, &facts)?;
            // Another host may have been faster.
            let claims = if said.is_empty() { claims } else { context.claimed.read().await? };
            let mut plan = plan::plan(&claims, &facts, &doubt, self.recreate);
            let mut text = described(&said, &plan, &facts, false);
            let mut failed = context.network.apply(&plan).await?;
            if failed.is_empty() && plan.replaces_interface(&facts) {
                facts = context.network.facts().await?;
                plan = plan::plan(&claims, &facts, &doubt, false);
                text += &described(&[], &plan, &facts, false);
                failed = context.network.apply(&plan).await?;
            }
            if failed.is_empty() {
                return Ok(text);
            }
            let why: Vec<_> =
                failed.iter().map(|(step, error)| format!("{}: {error}", Described(step, &facts.table))).collect();
            Err(format!(
                "{} of {} steps failed, all others are done:\n{}",
                failed.len(),
                plan.steps.len(),
                why.join("\n")
            )
            .into())
        })
    }
}

/// Undo all that was changed on this host
///
/// The host's subnet stays its own; `agent network release HOST` gives it back.
#[derive(clap::Args)]
pub(crate) struct Remove {
    #[command(flatten)]
    host: ThisHost,
}

impl Remove {
    pub(crate) fn run(&self) -> ExitCode {
        self.host.run(async |mut context: Context| {
            let (undone, left) = context.network.remove().await?;
            let mut text = undone.iter().flat_map(|line| [&**line, "\n"]).collect::<String>();
            if !left.is_empty() {
                let done = if text.is_empty() { String::new() } else { format!("\ndone:\n{text}") };
                return Err(format!("this is left:\n{}{done}", left.join("\n")).into());
            }
            if text.is_empty() {
                text.push_str("nothing was changed here\n");
            }
            Ok(text)
        })
    }
}

/// Print for each host whether there is a route to it, and if not, why
#[derive(clap::Args)]
pub(crate) struct Explain {
    /// This host only
    #[arg(value_name = "HOST")]
    only: Option<String>,

    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    host: ThisHost,
}

impl Explain {
    pub(crate) fn run(&self) -> ExitCode {
        self.host.run(async |mut context: Context| {
            let (claims, facts, doubt) = context.look().await?;
            let plan = plan::plan(&claims, &facts, &doubt, false);
            let peers: Vec<_> =
                plan.judged.iter().filter(|peer| self.only.as_deref().is_none_or(|only| *peer.host == *only)).collect();
            if let (Some(only), true) = (&self.only, peers.is_empty()) {
                return Err(format!("there is no other host {only} with a subnet: agent network claims").into());
            }
            let installed = |peer: &network::verdict::Judged| {
                let mut own = facts.table.routes.iter().filter(|route| route.marked && route.prefix == peer.subnet);
                own.any(|route| peer.via.is_none() || route.via == peer.via)
            };
            if self.json {
                let peers: Vec<_> = peers
                    .iter()
                    .map(|peer| {
                        json!({
                            "host": &*peer.host, "subnet": peer.subnet.to_string(), "via": peer.via,
                            "verdict": peer.verdict.word(), "installed": installed(peer), "why": peer.verdict.to_string(),
                        })
                    })
                    .collect();
                let subnet = plan.subnet.map(|subnet| subnet.to_string());
                return Ok(format!("{:#}\n", json!({ "subnet": subnet, "peers": peers, "findings": plan.findings })));
            }
            let mut text = match plan.subnet {
                Some(subnet) => format!("{} has {subnet}\n\n", context.host),
                None => format!("{} has no subnet\n\n", context.host),
            };
            let mut rows = vec![["HOST", "SUBNET", "VIA", "ROUTE", "VERDICT"].map(str::to_owned)];
            rows.extend(peers.iter().map(|peer| {
                let via = peer.via.map_or_else(|| "-".to_owned(), |via| via.to_string());
                let route = if installed(peer) { "yes" } else { "no" };
                [peer.host.to_string(), peer.subnet.to_string(), via, route.to_owned(), peer.verdict.to_string()]
            }));
            text += &table(&rows, CELL_MAX);
            for finding in &plan.findings {
                let _ = writeln!(text, "\nnote: {finding}");
            }
            Ok(text)
        })
    }
}

/// Print the routes for another program
#[derive(clap::Args)]
pub(crate) struct ExportRoutes {
    /// Which one
    #[arg(long, value_enum)]
    format: Format,

    /// Print the routes to all hosts, for a router that is none of them
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    host: ThisHost,
}

impl ExportRoutes {
    pub(crate) fn run(&self) -> ExitCode {
        self.host.run(async |context: Context| {
            let claims = context.claimed.read().await?;
            let host = (!self.all).then_some(&*context.host);
            Ok(export::text(&claims, host, self.format))
        })
    }
}
