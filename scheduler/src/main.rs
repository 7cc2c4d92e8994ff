//! The `scheduler` executable.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use process::command::{Check, Completions, Healthcheck, Version, check_cluster};
use process::{Failure, Launch, ProcessOptions, StateOptions, launch, listen_address};
use scheduler::{Options, Server};
use source::{MetadataAddress, Source};
use tracing::info;

/// Places containers on specific hosts and says why.
#[derive(Parser)]
#[command(name = "scheduler", version, args_conflicts_with_subcommands = true)]
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
    /// Address to answer requests for placements on
    #[arg(long, value_name = "ADDRESS", env = "BERTH_SCHEDULER_LISTEN", default_value = "127.0.0.1:8254", value_parser = listen_address)]
    listen: SocketAddr,

    /// Loopback address of the admin pages [default: 127.0.0.1:8114]
    #[arg(long, alias = "listenReload", value_name = "ADDRESS", env = "BERTH_ADMIN", value_parser = listen_address)]
    admin: Option<SocketAddr>,

    /// Where the cluster is described: `metadata:HOST[:PORT]` or `file:PATH`
    #[arg(long, env = "BERTH_SOURCE", conflicts_with = "metadata_server")]
    source: Option<Source>,

    /// The metadata service to follow (short for `--source metadata:HOST[:PORT]`)
    #[arg(
        long,
        alias = "metadata-address",
        value_name = "HOST[:PORT]",
        env = "METADATA_SERVER",
        default_value = "169.254.169.250"
    )]
    metadata_server: MetadataAddress,

    #[command(flatten)]
    options: Options,

    #[command(flatten)]
    state: StateOptions,

    #[command(flatten)]
    process: ProcessOptions,
}

/// Port of the admin pages.
const ADMIN_PORT: u16 = 8114;

fn main() -> ExitCode {
    let switches = ["debug", "add-address"];
    let cli = Cli::parse_from(process::arguments::normalise(std::env::args_os(), &switches));
    let serve = match cli.command {
        None => cli.serve,
        Some(Command::Serve(serve)) => *serve,
        Some(Command::Check(check)) => return check.run(check_cluster),
        Some(Command::Healthcheck(healthcheck)) => return healthcheck.run(ADMIN_PORT),
        Some(Command::Version(version)) => return version.run("scheduler"),
        Some(Command::Completions(completions)) => return completions.run(Cli::command()),
    };
    let process = serve.process.clone();
    launch(&process, |launch| run(launch, serve))
}

async fn run(mut launch: Launch, serve: Serve) -> Result<(), Failure> {
    serve.options.check(serve.listen)?;
    launch.prepare_address(serve.listen.ip()).await?;
    let listener = platform::socket::tcp_listener(serve.listen)?;
    let source = serve.source.unwrap_or(Source::Metadata(serve.metadata_server));
    let (snapshots, reload) = launch.follow(source, &serve.state)?;
    let server = Server::new(&serve.options, snapshots, &mut launch.registry)?;
    let admin = serve.admin.unwrap_or_else(|| ([127, 0, 0, 1], ADMIN_PORT).into());
    launch.admin(&[admin], serve.admin.is_some(), Some(reload))?;
    info!(service = "scheduler", address = %listener.local_addr()?, "serving");
    let stop = launch.stop.clone();
    launch.spawn(server.run(listener, stop));
    launch.run().await
}
