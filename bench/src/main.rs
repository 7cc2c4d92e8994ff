//! The `bench` executable: runs one scenario, prints its table, draws its plot and keeps its figures.

mod cluster;
mod echo;
mod exchange;
mod feed;
mod hickory;
mod load;
mod machine;
mod names;
mod paired;
mod peer;
mod plot;
mod report;
mod results;
mod scenario;
mod server;
mod waiters;

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};

use crate::machine::Machine;
use crate::results::Report;
use crate::scenario::Scene;

/// Whatever keeps a measurement from being made.
type Failure = Box<dyn Error + Send + Sync>;

/// Measures the services beside their peers, on loopback: the server on one core, the load on another.
#[derive(Parser)]
#[command(name = "bench", version)]
struct Cli {
    #[command(subcommand)]
    scenario: Scenario,

    #[command(flatten)]
    options: Options,
}

#[derive(Clone, Copy, Subcommand)]
enum Scenario {
    /// Metadata: kept connections, one request per connection, the whole tree
    Http,
    /// DNS: datagrams from two generators, connections, sections, large zones, forwarded names
    Dns,
    /// What one change among many containers costs, and how soon all who wait know of it
    Changes,
    /// What it costs until a file of many containers is visible
    Files,
    /// A real Docker Engine: how soon a started container is known
    Docker,
    /// Many hosts over etcd: how soon the others know of a change, and what following costs
    Etcd,
    /// Checks of 1,000 containers beside those of haproxy: processor time and memory
    Health,
    /// Proxies follow members that change: a thousand at once, and how soon the first and last request of one is sent
    Lb,
    /// Routes to the subnets of 5,000 hosts: what they cost beside BIRD, and how soon changes are answered
    Network,
    /// What a placement costs: labels, ports, memory and anti-affinity, all hosts scored
    Placements,
    /// 500 stacks on 5,000 hosts: what a plan costs, and what keeping them costs while nothing happens
    Stacks,
    /// The page of 5,000 hosts: what it costs a browser, and what its viewers cost the agent
    Ui,
    /// Whether memory of DNS grows over ten million queries of many kinds
    Soak,
    /// A peer of our own making, started by the others
    #[command(subcommand, hide = true)]
    Peer(Peer),
}

#[derive(Clone, Copy, Subcommand)]
enum Peer {
    /// Sends every datagram back: what the kernel allows
    Echo { listen: SocketAddr },
    /// A plain hickory-server with the names of the DNS scenario in a hash map
    Hickory { listen: SocketAddr },
    /// Puts claims of subnets into etcd, as its input says
    Claims { etcd: SocketAddr },
}

/// How to measure.
#[derive(clap::Args, Clone, Debug)]
struct Options {
    /// Fewer and shorter runs: for a first look, not for figures to rely on
    #[arg(long, global = true)]
    quick: bool,

    /// Only print the table; leave RESULTS.md and the plots as they are
    #[arg(long, global = true)]
    dry: bool,

    /// Take the executables as they are instead of building them first
    #[arg(long, global = true)]
    no_build: bool,

    /// Only the parts of the scenario whose title contains this
    #[arg(long, global = true, value_name = "TEXT")]
    only: Option<String>,

    /// Executable of the original metadata service (v0.7: it reads the answers of 2016)
    #[arg(long, global = true, value_name = "PATH")]
    original_metadata: Option<PathBuf>,

    /// Executable of the original DNS service
    #[arg(long, global = true, value_name = "PATH")]
    original_dns: Option<PathBuf>,
}

impl Options {
    /// How often dnsperf asks each of the 10,000 names in one run.
    fn repeats(&self) -> usize {
        if self.quick { 3 } else { 10 }
    }

    /// How long one run takes.
    fn run(&self) -> Duration {
        if self.quick { Duration::from_millis(250) } else { Duration::from_millis(700) }
    }

    /// How often each subject is measured.
    fn rounds(&self) -> usize {
        if self.quick { 2 } else { 4 }
    }

    fn wants(&self, title: &str) -> bool {
        self.only.as_ref().is_none_or(|part| title.contains(part.as_str()))
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(&format!("bench: {failure}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<(), Failure> {
    let name = match cli.scenario {
        Scenario::Peer(Peer::Echo { listen }) => return echo::serve(listen),
        Scenario::Peer(Peer::Hickory { listen }) => return hickory::serve(listen),
        Scenario::Peer(Peer::Claims { etcd }) => return scenario::network::put_claims(etcd),
        Scenario::Http => "http",
        Scenario::Dns => "dns",
        Scenario::Changes => "changes",
        Scenario::Files => "files",
        Scenario::Docker => "docker",
        Scenario::Etcd => "etcd",
        Scenario::Health => "health",
        Scenario::Lb => "lb",
        Scenario::Network => "network",
        Scenario::Placements => "placements",
        Scenario::Stacks => "stacks",
        Scenario::Ui => "ui",
        Scenario::Soak => "soak",
    };
    let options = &cli.options;
    // Placements and stacks are measured in this process.
    let needed = !matches!(cli.scenario, Scenario::Placements | Scenario::Stacks);
    let executables = server::Executables::find(options.no_build || !needed)?;
    let machine = Machine::prepare()?;
    let started = Instant::now();
    let report = Report::new(name, &machine, options);
    let mut scene = Scene { machine: &machine, executables: &executables, options, report };
    match cli.scenario {
        Scenario::Http => scenario::http::run(&mut scene)?,
        Scenario::Dns => scenario::dns::run(&mut scene)?,
        Scenario::Changes => scenario::changes::run(&mut scene)?,
        Scenario::Files => scenario::files::run(&mut scene)?,
        Scenario::Docker => scenario::docker::run(&mut scene),
        Scenario::Etcd => scenario::etcd::run(&mut scene),
        Scenario::Health => scenario::health::run(&mut scene)?,
        Scenario::Lb => scenario::balancer::run(&mut scene)?,
        Scenario::Network => scenario::network::run(&mut scene),
        Scenario::Placements => scenario::placements::run(&mut scene)?,
        Scenario::Stacks => scenario::stacks::run(&mut scene)?,
        Scenario::Ui => scenario::ui::run(&mut scene)?,
        Scenario::Soak => scenario::soak::run(&mut scene)?,
        Scenario::Peer(_) => {}
    }
    say(&format!("{} s; {}", started.elapsed().as_secs(), scene.report.facts()));
    if !options.dry {
        scene.report.store()?;
    }
    Ok(())
}

/// Prints a line of the table, or why there is none.
#[expect(clippy::print_stdout, reason = "the table is what this executable is for")]
fn say(text: &str) {
    println!("{text}");
}
