//! The `metadata` executable.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use metadata::{Options, Server};
use process::command::{Check, Completions, Healthcheck, Version, check_cluster};
use process::{Failure, Launch, ProcessOptions, StateOptions, launch, listen_address};
use source::Source;
use tracing::{info, warn};

/// Tells containers over HTTP who they are and who the others are.
#[derive(Parser)]
#[command(name = "metadata", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    serve: Serve,
}

#[derive(Subcommand)]
enum Command {
    /// Serve until asked to stop (what happens without a subcommand)
    Serve(Box<Serve>),
    /// Read a cluster file and tell everything that is wrong with it
    Check(Check),
    /// Ask the admin pages of a running service whether it is well; exit code 1 when not
    Healthcheck(Healthcheck),
    /// Print the version
    Version(Version),
    /// Print the completions for a shell
    Completions(Completions),
}

#[derive(clap::Args)]
struct Serve {
    /// Address to answer containers on
    #[arg(long, value_name = "ADDRESS", env = "BERTH_METADATA_LISTEN", default_value = "169.254.169.250:80", value_parser = listen_address)]
    listen: SocketAddr,

    /// Loopback address of the admin pages [default: 127.0.0.1:8112]
    #[arg(long, alias = "listenReload", value_name = "ADDRESS", env = "BERTH_ADMIN", value_parser = listen_address)]
    admin: Option<SocketAddr>,

    /// Where the cluster is described: `file:PATH` or `metadata:HOST[:PORT]`
    #[arg(long, env = "BERTH_SOURCE", conflicts_with = "answers")]
    source: Option<Source>,

    /// The cluster file (short for `--source file:FILE`)
    #[arg(long, value_name = "FILE", env = "BERTH_ANSWERS", default_value = "./answers.json")]
    answers: PathBuf,

    /// Accepted for old templates: there is no server to subscribe to, the source is always followed
    #[arg(long)]
    subscribe: bool,

    /// Accepted for old templates: a change costs what changed, so changes need no limit
    #[arg(long, value_name = "MS")]
    reload_interval_limit: Option<i64>,

    #[command(flatten)]
    options: Options,

    #[command(flatten)]
    state: StateOptions,

    #[command(flatten)]
    process: ProcessOptions,
}

/// Port of the admin pages.
const ADMIN_PORT: u16 = 8112;

fn main() -> ExitCode {
    let switches = ["debug", "xff", "subscribe", "add-address"];
    let cli = Cli::parse_from(process::arguments::normalise(std::env::args_os(), &switches));
    let serve = match cli.command {
        None => cli.serve,
        Some(Command::Serve(serve)) => *serve,
        Some(Command::Check(check)) => return check.run(check_cluster),
        Some(Command::Healthcheck(healthcheck)) => return healthcheck.run(ADMIN_PORT),
        Some(Command::Version(version)) => return version.run("metadata"),
        Some(Command::Completions(completions)) => return completions.run(Cli::command()),
    };
    let process = serve.process.clone();
    launch(&process, |launch| run(launch, serve))
}

async fn run(mut launch: Launch, serve: Serve) -> Result<(), Failure> {
    if serve.subscribe {
        warn!("-subscribe does nothing: there is no server to subscribe to; the source is always followed");
    }
    if serve.reload_interval_limit.is_some() {
        warn!("-reload-interval-limit does nothing: changes are not limited");
    }
    launch.prepare_address(serve.listen.ip()).await?;
    let listener = platform::socket::tcp_listener(serve.listen)?;
    let source = serve.source.unwrap_or(Source::File(serve.answers));
    let (snapshots, reload) = launch.follow(source, &serve.state)?;
    let server = Server::new(&serve.options, snapshots, &mut launch.registry)?;
    let admin = serve.admin.unwrap_or_else(|| ([127, 0, 0, 1], ADMIN_PORT).into());
    launch.admin(&[admin], serve.admin.is_some(), Some(reload))?;
    info!(service = "metadata", address = %listener.local_addr()?, "serving");
    let stop = launch.stop.clone();
    launch.spawn(server.run(listener, stop));
    launch.run().await
}
