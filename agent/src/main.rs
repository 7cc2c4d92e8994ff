//! The `agent` executable: all three services in one process, over one snapshot.

mod broker;
mod companion;
mod doctor;
mod emptying;
mod engine_proxy;
mod enroll;
mod greeting;
mod health_checks;
mod lb;
mod leave;
mod network;
mod page;
mod prune;
mod separate;
mod service;
mod upgrade;

use std::ffi::OsString;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgGroup, CommandFactory, FromArgMatches, Parser, Subcommand};
use live::Origin;
use platform::ingress::IngressFilter;
use process::command::{Check, Completions, Healthcheck, Version, check_cluster};
use process::help::{Everyday, with_short_help};
use process::{ClientOptions, Clients, Failure, Launch, ProcessOptions, StateOptions, launch, listen_address};
use tracing::info;

use crate::greeting::Serving;

/// Metadata, DNS and scheduler for one host, in one process.
#[derive(Parser)]
#[command(name = "agent", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve metadata, DNS and scheduler from a cluster file, a Docker Engine or etcd until asked to stop
    #[command(alias = "serve")]
    Up(Box<Up>),
    /// Run the agent as a service of Windows: install, start, stop, remove
    Service(service::Service),
    /// Look at this machine and say why containers get no answers, and what to type
    Doctor(doctor::Doctor),
    Join(enroll::Join),
    Leave(leave::Leave),
    Upgrade(upgrade::Upgrade),
    EngineProxy(engine_proxy::EngineProxy),
    #[command(hide = true)]
    Broker(broker::Broker),
    Cluster(enroll::Cluster),
    Invite(enroll::Invite),
    Invites(enroll::Invites),
    Hosts(enroll::Hosts),
    Label(enroll::Label),
    Cordon(enroll::Cordon),
    Uncordon(enroll::Uncordon),
    Drain(enroll::Drain),
    Evacuate(scheduler::Evacuate),
    Rotate(enroll::Rotate),
    Remove(enroll::Remove),
    Prune(prune::Prune),
    Health(health_checks::Health),
    Lb(Box<lb::Lb>),
    /// Read a cluster file and list all its defects
    Check(Check),
    /// Ask the admin pages of a running agent whether it is well; exit code 1 when not
    Healthcheck(Healthcheck),
    /// Give each host a subnet for its containers, and route to those of all others
    Network(Box<network::Network>),
    Ui(page::Ui),
    /// Print the version
    Version(Version),
    /// Print the completions for a shell
    Completions(Completions),
}

#[derive(clap::Args)]
#[command(group(ArgGroup::new("cluster").args(["file", "source", "docker"]).required(true).multiple(true)))]
struct Up {
    /// The cluster file
    #[arg(value_name = "FILE", conflicts_with_all = ["source", "docker"])]
    file: Option<PathBuf>,

    /// Address for metadata [default: 127.0.0.1:8250, with --serve-containers 169.254.169.250:80]
    #[arg(long, value_name = "ADDRESS", env = "BERTH_METADATA_LISTEN", value_parser = listen_address)]
    metadata: Option<SocketAddr>,

    /// Address for DNS, UDP and TCP [default: 127.0.0.1:8253, with --serve-containers 169.254.169.251:53]
    #[arg(long, value_name = "ADDRESS", env = "BERTH_DNS_LISTEN", value_parser = listen_address)]
    dns: Option<SocketAddr>,

    /// Address for the scheduler
    #[arg(long, value_name = "ADDRESS", env = "BERTH_SCHEDULER_LISTEN", default_value = "127.0.0.1:8254", value_parser = listen_address)]
    scheduler: SocketAddr,

    /// Loopback addresses of the admin pages, all the same [default: 127.0.0.1:8112, 127.0.0.1:8113, 127.0.0.1:8114]
    #[arg(long, value_name = "ADDRESS", env = "BERTH_ADMIN", value_delimiter = ',', value_parser = listen_address)]
    admin: Vec<SocketAddr>,

    #[command(flatten, next_help_heading = "Page")]
    ui: ui::UiOptions,

    #[command(flatten, next_help_heading = "Source")]
    live: live::Options,

    #[command(flatten, next_help_heading = "Metadata")]
    metadata_options: metadata::Options,

    #[command(flatten, next_help_heading = "DNS")]
    dns_options: dns::Options,

    #[command(flatten, next_help_heading = "Clients")]
    clients: ClientOptions,

    #[command(flatten, next_help_heading = "Scheduler")]
    scheduler_options: scheduler::Options,

    /// Keep the routes to the subnets of all other hosts, and a network for containers of this one (as root; with etcd or
    /// a cluster file, and --state-dir): see `agent network`
    #[arg(long, env = "BERTH_NETWORK")]
    network: bool,

    #[command(flatten, next_help_heading = "Health")]
    health: health_checks::HealthOptions,

    /// Once started as root, go on as this user, who may bind ports and nothing else; the engine's socket and the right to add
    /// addresses stay with other processes, which each know a closed list of requests (Linux)
    #[arg(long = "user", value_name = "USER", env = "BERTH_USER")]
    run_as: Option<String>,

    /// Only keep the network, until standard input ends: how --user starts what does so as root
    #[arg(long, hide = true)]
    only_network: bool,

    #[command(flatten)]
    state: StateOptions,

    #[command(flatten)]
    process: ProcessOptions,
}

impl Up {
    /// Where metadata and names are to be served.
    fn service_addresses(&self) -> [SocketAddr; 2] {
        let [metadata, dns] = if self.process.serve_containers { FOR_CONTAINERS } else { FOR_A_LOOK };
        [self.metadata.unwrap_or(metadata), self.dns.unwrap_or(dns)]
    }
}

/// Ports of the admin pages: what watches one of the services finds them where it expects them.
const ADMIN_PORTS: [u16; 3] = [8112, 8113, 8114];

/// Flags that are there or not, see [`process::arguments::normalise`].
const SWITCHES: [&str; 6] = ["debug", "xff", "add-address", "serve-containers", "keep-address", "network"];

/// Where containers ask for metadata and names.
const FOR_CONTAINERS: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(169, 254, 169, 250)), 80),
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(169, 254, 169, 251)), 53),
];

/// Where metadata and names are served without privileges, for a first look.
const FOR_A_LOOK: [SocketAddr; 2] =
    [SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8250), SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8253)];

/// The flags that `-h` shows of commands with many.
const EVERYDAY: &[Everyday] = &[
    ("up", &["metadata", "dns", "ui", "source", "docker", "public-ip", "upstream", "state-dir", "serve-containers"]),
    ("invite", &["file", "ttl", "role", "label", "out", "script", "package", "from", "revoke", "cluster"]),
    ("network plan", &["json", "exit-code", "recreate", "source", "docker", "host", "public-ip", "state-dir"]),
    ("network apply", &["recreate", "takeover", "source", "docker", "host", "public-ip", "state-dir"]),
    ("network keep", &["source", "docker", "host", "public-ip", "state-dir"]),
    ("network remove", &["source", "docker", "host", "state-dir"]),
    ("network explain", &["json", "source", "docker", "host", "public-ip", "state-dir"]),
    ("network export", &["format", "all", "source", "host", "state-dir"]),
];

/// Longest wait for the source before the greeting says that nothing was read yet: a file of 10,000 containers takes
/// 50 ms, an engine on a busy machine more than a second.
const GREETING_WAIT: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let cli = parse(std::env::args_os()).unwrap_or_else(|wrong| wrong.exit());
    let up = match cli.command {
        Command::Up(up) => *up,
        Command::Service(service) => {
            return service.run(
                |arguments| up_arguments(arguments.to_vec()).map(|up| up.file),
                |arguments| match up_arguments(arguments) {
                    Ok(up) => serve(up),
                    // Those of a service that an installer made were not checked before.
                    Err(wrong) => {
                        platform::service::failed(&wrong.to_string());
                        wrong.exit()
                    }
                },
            );
        }
        Command::Doctor(doctor) => return doctor.run(),
        Command::Prune(prune) => return prune.run(),
        Command::Health(health) => return health.run(ADMIN_PORTS[0]),
        Command::Leave(leave) => return leave.run(ADMIN_PORTS[0]),
        Command::Upgrade(upgrade) => return upgrade.run(ADMIN_PORTS[0]),
        Command::EngineProxy(proxy) => return launch(&proxy.process.clone(), |launch| proxy.serve(launch)),
        Command::Broker(broker) => return broker.run(),
        Command::Join(join) => return join.run(),
        Command::Cluster(cluster) => return cluster.run(),
        Command::Invite(invite) => return invite.run(),
        Command::Invites(invites) => return invites.run(),
        Command::Hosts(hosts) => return hosts.run(),
        Command::Label(label) => return label.run(),
        Command::Cordon(cordon) => return cordon.run(),
        Command::Uncordon(uncordon) => return uncordon.run(),
        Command::Drain(drain) => return drain.run(),
        Command::Evacuate(evacuate) => return evacuate.run(),
        Command::Rotate(rotate) => return rotate.run(),
        Command::Remove(remove) => return remove.run(),
        Command::Network(network) => return network.run(),
        Command::Lb(lb) => return lb.run(),
        Command::Check(check) => return check.run(check_cluster),
        Command::Healthcheck(healthcheck) => return healthcheck.run(ADMIN_PORTS[0]),
        Command::Ui(ui) => return ui.run(),
        Command::Version(version) => return version.run("agent"),
        Command::Completions(completions) => return completions.run(Cli::command()),
    };
    serve(up)
}

fn serve(mut up: Up) -> ExitCode {
    if up.only_network {
        return separate::only_network(up);
    }
    // While there is one thread: the others are to be the same user's.
    let companions = match separate::separate(&mut up) {
        Ok(companions) => companions,
        Err(failure) => return enroll::finish(Err(failure)),
    };
    let process = up.process.clone();
    let code = launch(&process, |mut launch| {
        for companion in &companions {
            companion.report_to(launch.readiness.clone());
            launch.spawn("a process beside this one", companion.watch(launch.stop.clone()));
        }
        if platform::broker::is_used() {
            launch.spawn("the broker", broker::watch(launch.stop.clone()));
        }
        run(launch, up)
    });
    companions.iter().for_each(companion::Companion::finish);
    code
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = with_short_help(Cli::command(), EVERYDAY);
    let arguments = process::arguments::normalise(arguments, &SWITCHES);
    let matches = command.try_get_matches_from_mut(&arguments);
    let mut matches = matches.map_err(|wrong| process::arguments::explained(wrong, &command, &arguments))?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|wrong| wrong.format(&mut command))
}

/// The arguments of `agent up`, written behind another command.
fn up_arguments(arguments: Vec<OsString>) -> Result<Up, clap::Error> {
    let line = ["agent".into(), "up".into()].into_iter().chain(arguments);
    match parse(line)?.command {
        Command::Up(up) => Ok(*up),
        _ => unreachable!("the line says `up`"),
    }
}

/// Refuses one address for two services: binding the second one would blame this very process.
fn distinct(addresses: impl Iterator<Item = (&'static str, SocketAddr)>) -> Result<(), Failure> {
    let mut known: Vec<(&str, SocketAddr)> = Vec::new();
    // Port 0 is another one each time.
    for (flag, address) in addresses.filter(|(_, address)| address.port() != 0) {
        if let Some((other, _)) = known.iter().find(|(_, other)| *other == address) {
            return Err(format!("{other} and {flag} are both {address}: give each an address of its own").into());
        }
        known.push((flag, address));
    }
    Ok(())
}

async fn run(mut launch: Launch, mut up: Up) -> Result<(), Failure> {
    up.live.exchange = enroll::HostExchange::of(&up.live.etcd).map(|exchange| Arc::new(exchange) as _);
    up.scheduler_options.check(up.scheduler, up.live.etcd.insecure)?;
    let [metadata, dns] = up.service_addresses();
    let asked = !up.admin.is_empty();
    let admin = if asked { up.admin } else { ADMIN_PORTS.map(|port| ([127, 0, 0, 1], port).into()).to_vec() };
    let services = [("--metadata", metadata), ("--dns", dns), ("--scheduler", up.scheduler)];
    let page = match up.ui.listen() {
        ui::Listen::At(address) => Some(address),
        ui::Listen::Nowhere => None,
    };
    let pages = admin.iter().map(|address| ("--admin", *address)).chain(page.map(|address| ("--ui", address)));
    distinct(services.into_iter().chain(pages))?;
    let metadata_place = launch.prepare_address(metadata).await?;
    let dns_place = launch.prepare_address(dns).await?;
    let listeners = &mut launch.listeners;
    let metadata_listener = listeners.tcp("metadata", metadata_place)?;
    let dns_sockets = dns::Sockets::bind(dns_place, listeners)?;
    let dns_sockets = dns_sockets.with_encryption(&up.dns_options, launch.readiness.clone(), listeners)?;
    let mut filter = IngressFilter::default();
    filter.add(&metadata_listener)?;
    dns_sockets.add_to(&mut filter)?;
    launch.keep_to_containers(filter).await?;
    let scheduler_listener = launch.listeners.tcp("scheduler", up.scheduler.into())?;
    let page = page::bind(&up.ui, &mut launch.listeners)?;
    let serving = Serving {
        page: page.as_ref().map(page::Bound::url).transpose()?,
        metadata: metadata_place.redirected().map_or_else(|| metadata_listener.local_addr(), Ok)?,
        dns: dns_sockets.address()?,
        scheduler: scheduler_listener.local_addr()?,
        for_containers: up.process.serve_containers,
    };

    let origin = up.live.origin(up.file)?;
    let certificates = up.scheduler_options.docker_certs.as_deref();
    let engine = up.live.engine(&origin).map(|engine| live::follow::reach(engine, certificates)).transpose()?;
    let checks = health_checks::Checks::prepare(&up.health, engine.is_some(), &origin, &up.state)?;
    up.live.layer = checks.as_ref().and_then(health_checks::Checks::layer);
    up.live.voting = checks.as_ref().and_then(health_checks::Checks::voting);
    let (snapshots, reload) = up.live.follow(origin.clone(), &mut launch, certificates, &up.state)?;
    let snapshots = match checks {
        Some(checks) => checks.begin(snapshots, &mut launch),
        None => snapshots,
    };
    let registry = &mut launch.registry;
    let clients = Clients::new(&up.clients.clients);
    let metadata = metadata::Server::new(&up.metadata_options, clients, snapshots.clone(), registry)?;
    let metadata = if engine.is_some() { metadata.with_live_clients() } else { metadata };
    let metadata = metadata.reached_at(metadata_place).with_accepting(launch.accepting.clone());
    let clients = Clients::new(&up.clients.clients);
    let dns = dns::Server::new(&up.dns_options, clients, serving.dns, snapshots.clone(), registry)?;
    let mut scheduler_options = match &origin {
        Origin::Etcd(_) => up.scheduler_options.of_one_among_hosts(),
        _ => up.scheduler_options,
    };
    let live = up.live.clone();
    scheduler_options.etcd = up.live.etcd;
    scheduler_options.own_engine = engine.map(|(endpoint, _)| endpoint);
    let scheduler_options = scheduler_options.keeping_state_in(up.state.state_dir.as_deref());
    launch.add_pages(dns.pages());
    let stop = launch.stop.clone();
    launch.spawn("metadata", metadata.run(metadata_listener, stop.clone()));
    let dns = dns.with_readiness(launch.readiness.clone()).with_accepting(launch.accepting.clone());
    launch.spawn("dns", dns.run(dns_sockets, stop.clone()));

    let is_first = !launch.has_predecessor();
    if !is_first {
        scheduler::Server::rehearse(&scheduler_options, snapshots.clone())?;
    }
    if up.run_as.is_some() {
        launch.refuse_restart("with --user this process may start no program; stop it and start it again");
    }
    launch.take_over().await?;
    if up.network {
        let certificates = scheduler_options.docker_certs.clone();
        let (readiness, stop) = (launch.readiness.clone(), stop.clone());
        let keeping = network::keep(live, origin.clone(), up.state, certificates, snapshots.clone(), readiness, stop);
        launch.spawn("the network", keeping);
    }
    let scheduler = scheduler::Server::new(&scheduler_options, snapshots.clone(), &mut launch.registry)?;
    let scheduler = scheduler.with_readiness(launch.readiness.clone());
    if let Some(page) = page {
        page::serve(&mut launch, &up.ui, page, snapshots.clone(), scheduler.questions())?;
    }
    launch.add_pages(ui::prometheus::router(snapshots));
    launch.admin(&admin, asked, Some(reload))?;

    info!(service = "metadata", address = %serving.metadata, "serving");
    info!(service = "dns", address = %serving.dns, "serving");
    info!(service = "scheduler", address = %serving.scheduler, "serving");
    let readiness = launch.readiness.clone();
    if is_first {
        tokio::spawn(async move {
            let ready = tokio::time::timeout(GREETING_WAIT, readiness.wait_until_ready()).await.is_ok();
            let reasons = if ready { Arc::default() } else { readiness.reasons() };
            // A closed stdout is not an error.
            let _ = std::io::stdout().write_all(serving.greeting(&origin, &reasons).as_bytes());
        });
    }
    launch.spawn("scheduler", scheduler.run(scheduler_listener, stop));
    launch.run().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_for_two_services_is_refused_before_it_is_bound() {
        let check = |addresses: [&str; 3]| {
            let flags = ["--metadata", "--dns", "--admin"];
            let addresses = addresses.map(|address| address.parse::<SocketAddr>().unwrap());
            distinct(flags.into_iter().zip(addresses)).map_err(|wrong| wrong.to_string())
        };
        let wrong = check(["127.0.0.1:8250", "127.0.0.1:8250", "127.0.0.1:8112"]).unwrap_err();
        assert_eq!(wrong, "--metadata and --dns are both 127.0.0.1:8250: give each an address of its own");
        assert!(check(["127.0.0.1:8250", "127.0.0.2:8250", "127.0.0.1:8250"]).is_err());
        assert!(check(["127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:8112"]).is_ok());
    }
}
