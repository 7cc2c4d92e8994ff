//! The `scheduler` executable.

use std::net::SocketAddr;
use std::process::ExitCode;

use platform::ingress::IngressFilter;
use process::command::check_cluster;
use process::{Failure, Launch, ProcessOptions, Program, StateOptions, launch, listen_address};
use scheduler::{Command, Options, Server};
use source::{MetadataAddress, Source};
use tracing::info;

#[derive(clap::Args)]
struct Serve {
    /// Address to answer requests for placements on
    #[arg(long, value_name = "ADDRESS", env = "BERTH_SCHEDULER_LISTEN", default_value = "127.0.0.1:8254", value_parser = listen_address)]
    listen: SocketAddr,

    /// Loopback address of the admin pages [default: 127.0.0.1:8114]
    #[arg(long, alias = "listenReload", value_name = "ADDRESS", env = "BERTH_ADMIN", value_parser = listen_address)]
    admin: Option<SocketAddr>,

    /// The cluster: `metadata:HOST[:PORT]` or `file:PATH`
    #[arg(long, env = "BERTH_SOURCE", conflicts_with = "metadata_server")]
    source: Option<Source>,

    /// The metadata service to follow
    #[arg(
        long,
        alias = "metadata-address",
        value_name = "HOST[:PORT]",
        env = "METADATA_SERVER",
        default_value = "169.254.169.250"
    )]
    metadata_server: MetadataAddress,

    #[command(flatten, next_help_heading = "Placing and starting")]
    options: Options,

    #[command(flatten, next_help_heading = "etcd")]
    etcd: etcd::EtcdArgs,

    #[command(flatten)]
    state: StateOptions,

    #[command(flatten)]
    process: ProcessOptions,
}

/// Port of the admin pages.
const ADMIN_PORT: u16 = 8114;

/// The flags that `-h` shows beside the commands.
const EVERYDAY_BESIDE_COMMANDS: &[&str] = &["listen", "source"];

/// The same for `serve`.
const EVERYDAY: &[&str] = &["listen", "source", "metadata-server", "docker-engines", "state-dir", "add-address"];

/// The flags that `run -h` shows.
const EVERYDAY_OF_RUN: &[&str] = &[
    "name",
    "count",
    "stack",
    "service",
    "publish",
    "env",
    "memory",
    "cpus",
    "volume",
    "constraint",
    "dry-run",
    "explain",
    "server",
];

/// The executable.
const PROGRAM: Program = Program {
    name: "scheduler",
    about: "Places containers on specific hosts and says why",
    switches: &["debug", "add-address", "serve-containers", "keep-address"],
    everyday: &[("", EVERYDAY_BESIDE_COMMANDS), ("serve", EVERYDAY), ("run", EVERYDAY_OF_RUN)],
    admin_port: ADMIN_PORT,
    check: check_cluster,
};

fn main() -> ExitCode {
    let serve = |serve: Serve| {
        let process = serve.process.clone();
        launch(&process, |launch| run(launch, serve))
    };
    PROGRAM.start_with(std::env::args_os(), serve, Command::run)
}

async fn run(mut launch: Launch, serve: Serve) -> Result<(), Failure> {
    serve.options.check(serve.listen, serve.etcd.insecure)?;
    launch.prepare_address(serve.listen).await?;
    let listener = launch.listeners.tcp("scheduler", serve.listen.into())?;
    let mut filter = IngressFilter::default();
    filter.add(&listener)?;
    launch.keep_to_containers(filter).await?;
    let source = serve.source.unwrap_or(Source::Metadata(serve.metadata_server));
    let (snapshots, reload) = launch.follow(source, &serve.state)?;
    let mut options = serve.options.keeping_state_in(serve.state.state_dir.as_deref());
    options.etcd = serve.etcd;
    if launch.has_predecessor() {
        Server::rehearse(&options, snapshots.clone())?;
    }
    launch.take_over().await?;
    let server = Server::new(&options, snapshots, &mut launch.registry)?.with_readiness(launch.readiness.clone());
    let admin = serve.admin.unwrap_or_else(|| ([127, 0, 0, 1], ADMIN_PORT).into());
    launch.admin(&[admin], serve.admin.is_some(), Some(reload))?;
    info!(service = "scheduler", address = %listener.local_addr()?, "serving");
    let stop = launch.stop.clone();
    launch.spawn("scheduler", server.run(listener, stop));
    launch.run().await
}
