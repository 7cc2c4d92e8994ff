//! The `metadata` executable.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use metadata::{Options, Server};
use platform::ingress::IngressFilter;
use process::command::check_cluster;
use process::{ClientOptions, Clients, Failure, Launch, ProcessOptions, Program, StateOptions, launch, listen_address};
use tracing::{info, warn};

#[derive(clap::Args)]
struct Serve {
    /// Address to answer containers on
    #[arg(long, value_name = "ADDRESS", env = "BERTH_METADATA_LISTEN", default_value = "169.254.169.250:80", value_parser = listen_address)]
    listen: SocketAddr,

    /// Loopback address of the admin pages [default: 127.0.0.1:8112]
    #[arg(long, alias = "listenReload", value_name = "ADDRESS", env = "BERTH_ADMIN", value_parser = listen_address)]
    admin: Option<SocketAddr>,

    /// The cluster file (short for `--source file:FILE`)
    #[arg(long, value_name = "FILE", env = "BERTH_ANSWERS", default_value = "./answers.json", conflicts_with_all = ["source", "docker"])]
    answers: PathBuf,

    /// Accepted for old templates: there is no server to subscribe to, the source is always followed
    #[arg(long, help_heading = "Old templates")]
    subscribe: bool,

    /// Accepted for old templates: a change costs what changed, so changes need no limit
    #[arg(long, value_name = "MS", help_heading = "Old templates")]
    reload_interval_limit: Option<i64>,

    #[command(flatten, next_help_heading = "Source")]
    live: live::Options,

    /// Folder with ca.pem, cert.pem and key.pem for an engine at tcp://HOST:PORT
    #[arg(long, value_name = "DIR", env = "BERTH_DOCKER_CERTS", help_heading = "Source")]
    docker_certs: Option<PathBuf>,

    #[command(flatten, next_help_heading = "Answers and limits")]
    options: Options,

    #[command(flatten, next_help_heading = "Clients")]
    clients: ClientOptions,

    #[command(flatten)]
    state: StateOptions,

    #[command(flatten)]
    process: ProcessOptions,
}

/// Port of the admin pages.
const ADMIN_PORT: u16 = 8112;

/// The flags that `-h` shows.
const EVERYDAY: &[&str] =
    &["listen", "admin", "answers", "source", "docker", "public-ip", "state-dir", "add-address", "debug"];

/// The executable.
const PROGRAM: Program = Program {
    name: "metadata",
    about: "Answers over HTTP which container asks, and which others there are",
    switches: &["debug", "xff", "subscribe", "add-address", "serve-containers", "keep-address"],
    everyday: &[("", EVERYDAY), ("serve", EVERYDAY)],
    admin_port: ADMIN_PORT,
    check: check_cluster,
};

fn main() -> ExitCode {
    PROGRAM.start(std::env::args_os(), |serve: Serve| {
        let process = serve.process.clone();
        launch(&process, |launch| run(launch, serve))
    })
}

async fn run(mut launch: Launch, serve: Serve) -> Result<(), Failure> {
    if serve.subscribe {
        warn!("-subscribe does nothing: there is no server to subscribe to; the source is always followed");
    }
    if serve.reload_interval_limit.is_some() {
        warn!("-reload-interval-limit does nothing: changes are not limited");
    }
    let place = launch.prepare_address(serve.listen).await?;
    let listener = launch.listeners.tcp("metadata", place)?;
    let mut filter = IngressFilter::default();
    filter.add(&listener)?;
    launch.keep_to_containers(filter).await?;
    let origin = serve.live.origin(Some(serve.answers))?;
    let live = serve.live.engine(&origin).is_some();
    let (snapshots, reload) = serve.live.follow(origin, &mut launch, serve.docker_certs.as_deref(), &serve.state)?;
    let clients = Clients::new(&serve.clients.clients);
    let server = Server::new(&serve.options, clients, snapshots, &mut launch.registry)?;
    let server = if live { server.with_live_clients() } else { server };
    let server = server.reached_at(place).with_accepting(launch.accepting.clone());
    let address = place.redirected().map_or_else(|| listener.local_addr(), Ok)?;
    let stop = launch.stop.clone();
    launch.spawn("metadata", server.run(listener, stop));
    launch.take_over().await?;
    let admin = serve.admin.unwrap_or_else(|| ([127, 0, 0, 1], ADMIN_PORT).into());
    launch.admin(&[admin], serve.admin.is_some(), Some(reload))?;
    info!(service = "metadata", %address, "serving");
    launch.run().await
}
