//! The `dns` executable.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use dns::answers_file::{self, FollowedAnswers};
use dns::command::Command;
use dns::{Options, Server, Sockets};
use platform::ingress::IngressFilter;
use process::command::{Findings, check_cluster};
use process::{ClientOptions, Clients, Failure, Launch, ProcessOptions, Program, StateOptions, launch, listen_address};
use source::{MetadataAddress, Reload, Source};
use tracing::{info, warn};

#[derive(clap::Args)]
struct Serve {
    /// Address to answer queries on, UDP and TCP
    #[arg(long, value_name = "ADDRESS", env = "BERTH_DNS_LISTEN", default_value = "169.254.169.251:53", value_parser = listen_address)]
    listen: SocketAddr,

    /// Loopback address of the admin pages [default: 127.0.0.1:8113]
    #[arg(long, alias = "listenReload", value_name = "ADDRESS", env = "BERTH_ADMIN", value_parser = listen_address)]
    admin: Option<SocketAddr>,

    /// Where the cluster is described: `metadata:HOST[:PORT]` or `file:PATH`
    #[arg(long, env = "BERTH_SOURCE", conflicts_with_all = ["metadata_server", "answers"])]
    source: Option<Source>,

    /// The metadata service to follow [default, without --answers: 169.254.169.250]
    #[arg(long, value_name = "HOST[:PORT]", env = "METADATA_SERVER")]
    metadata_server: Option<MetadataAddress>,

    /// Serve the names in this file: rancher-dns' answers, or a cluster file
    ///
    /// Beside a metadata server the predecessor stored its last names in it; now --state-dir does that.
    #[arg(long, value_name = "FILE", env = "BERTH_ANSWERS")]
    answers: Option<PathBuf>,

    #[command(flatten, next_help_heading = "Names and forwarding")]
    options: Options,

    #[command(flatten, next_help_heading = "Clients")]
    clients: ClientOptions,

    #[command(flatten)]
    state: StateOptions,

    #[command(flatten)]
    process: ProcessOptions,
}

/// Port of the admin pages.
const ADMIN_PORT: u16 = 8113;

/// Where the metadata service is unless the command line says otherwise.
const METADATA_SERVER: &str = "169.254.169.250";

/// The flags that `-h` shows.
const EVERYDAY: &[&str] =
    &["listen", "admin", "metadata-server", "answers", "ttl", "upstream", "state-dir", "add-address", "debug"];

/// The executable.
const PROGRAM: Program = Program {
    name: "dns",
    about: "Answers the names of the cluster for each client, and forwards everything else",
    switches: &["debug", "add-address", "serve-containers", "keep-address"],
    everyday: &[("", EVERYDAY), ("serve", EVERYDAY)],
    admin_port: ADMIN_PORT,
    check,
};

fn main() -> ExitCode {
    let serve = |serve: Serve| {
        let process = serve.process.clone();
        launch(&process, |launch| run(launch, serve))
    };
    PROGRAM.start_with(std::env::args_os(), serve, |Command::Query(query)| query.run(ADMIN_PORT))
}

async fn run(mut launch: Launch, serve: Serve) -> Result<(), Failure> {
    let place = launch.prepare_address(serve.listen).await?;
    let sockets = Sockets::bind(place, &mut launch.listeners)?;
    let sockets = sockets.with_encryption(&serve.options, launch.readiness.clone(), &mut launch.listeners)?;
    let address = sockets.address()?;
    let mut filter = IngressFilter::default();
    sockets.add_to(&mut filter)?;
    launch.keep_to_containers(filter).await?;
    let (server, reload) = match (serve.source.clone(), serve.metadata_server.clone(), serve.answers.clone()) {
        (None, None, Some(file)) if !answers_file::is_cluster(&file) => {
            let state = serve.state.open()?;
            let answers = FollowedAnswers::start(file, state, launch.readiness.clone())?;
            let clients = Clients::new(&serve.clients.clients);
            let server =
                Server::with_answers(&serve.options, clients, address, answers.published(), &mut launch.registry)?;
            let reload = answers.reload();
            launch.wait_for(answers.published());
            launch.hold(answers);
            (server, reload)
        }
        (None, None, Some(file)) => follow(&mut launch, Source::File(file), address, &serve)?,
        (source, metadata, answers) => {
            if answers.is_some() {
                warn!("-answers does nothing beside a metadata server; --state-dir stores the last good names");
            }
            let metadata = metadata.map_or_else(|| METADATA_SERVER.parse(), Ok)?;
            let source = source.unwrap_or(Source::Metadata(metadata));
            follow(&mut launch, source, address, &serve)?
        }
    };
    let admin = serve.admin.unwrap_or_else(|| ([127, 0, 0, 1], ADMIN_PORT).into());
    launch.add_pages(server.pages());
    let stop = launch.stop.clone();
    let server = server.with_readiness(launch.readiness.clone()).with_accepting(launch.accepting.clone());
    launch.spawn("dns", server.run(sockets, stop));
    launch.take_over().await?;
    launch.admin(&[admin], serve.admin.is_some(), Some(reload))?;
    info!(service = "dns", %address, "serving");
    launch.run().await
}

/// A service of the names in the snapshots of `source`.
fn follow(
    launch: &mut Launch,
    source: Source,
    address: SocketAddr,
    serve: &Serve,
) -> Result<(Server, Reload), Failure> {
    let (snapshots, reload) = launch.follow(source, &serve.state)?;
    let clients = Clients::new(&serve.clients.clients);
    Ok((Server::new(&serve.options, clients, address, snapshots, &mut launch.registry)?, reload))
}

/// What is wrong with a cluster file or an answers file.
fn check(path: &Path, bytes: Vec<u8>) -> Result<Findings, String> {
    answers_file::check(&bytes).unwrap_or_else(|| check_cluster(path, bytes))
}
