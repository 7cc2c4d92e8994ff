//! The page that people look at: serving it, and the command that opens it.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use clap::Args;
use model::Snapshot;
use platform::{console, schedule};
use process::{Failure, Launch, Listeners};
use source::Store;
use tracing::{debug, info, warn};
use ui::{Listen, Sources, Tls, UiOptions};

/// Where the page is to be served.
pub(crate) struct Bound {
    listener: TcpListener,
    tls: Option<Tls>,
}

impl Bound {
    /// What a person types to open it.
    pub(crate) fn url(&self) -> Result<String, Failure> {
        Ok(ui::url(self.listener.local_addr()?, self.tls.is_some()))
    }
}

/// Binds the address of the page.
///
/// The default address may be taken by a neighbour; the services are worth more than the page.
///
/// # Errors
///
/// Fails if an address that was given cannot be used, or a certificate.
pub(crate) fn bind(options: &UiOptions, listeners: &mut Listeners) -> Result<Option<Bound>, Failure> {
    let Listen::At(address) = options.listen() else { return Ok(None) };
    let tls = options.tls()?;
    match listeners.tcp("ui", address.into()) {
        Ok(listener) => Ok(Some(Bound { listener, tls })),
        Err(error) if options.ui.is_none() => {
            warn!("no page to look at: {error} (--ui ADDRESS:PORT, or --ui none)");
            Ok(None)
        }
        Err(error) => Err(format!("--ui {address}: {error}").into()),
    }
}

/// Serves the page over the other parts of the process.
///
/// # Errors
///
/// Fails if the token cannot be read.
pub(crate) fn serve(
    launch: &mut Launch,
    options: &UiOptions,
    Bound { listener, tls }: Bound,
    snapshots: Arc<Store<Snapshot>>,
    scheduler: Router,
) -> Result<(), Failure> {
    let address = listener.local_addr()?;
    let (readiness, pages) = (launch.readiness.clone(), launch.pages());
    let server = ui::Server::new(options, address.port(), Sources { snapshots, readiness, pages, scheduler })?;
    info!(service = "ui", %address, "serving");
    // No answer to a container waits for it.
    let begin = || {
        if let Err(error) = schedule::give_way() {
            debug!(%error, "the page does not give way to what serves containers");
        }
    };
    launch.spawn_apart("the page", begin, server.run(listener, tls, launch.stop.clone()));
    Ok(())
}

/// Open the page of the agent on this host in a browser, or print its address
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  agent ui
  agent ui --print --token-file /etc/berth/ui.token")]
pub(crate) struct Ui {
    /// Address of the page
    #[arg(long = "ui", value_name = "ADDRESS", env = "BERTH_UI", default_value_t = ui::DEFAULT)]
    address: SocketAddr,
    /// The file that the agent has as --ui-token-file: the address then works once, within two minutes
    #[arg(long, value_name = "FILE", env = "BERTH_UI_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// The folder that the agent has as --ui-tls-certs: the address is then one of HTTPS
    #[arg(long = "ui-tls-certs", value_name = "DIR", env = "BERTH_UI_TLS_CERTS")]
    tls_certs: Option<PathBuf>,
    /// Only print the address
    #[arg(long)]
    print: bool,
}

impl Ui {
    pub(crate) fn run(self) -> ExitCode {
        crate::enroll::finish(self.open())
    }

    fn open(&self) -> Result<String, Failure> {
        let page = ui::url(self.address, self.tls_certs.is_some());
        let mut address = page.clone();
        if let Some(path) = &self.token_file {
            let token = process::token::read(path)?;
            let mut random = [0; ui::ticket::RANDOM];
            getrandom::fill(&mut random)?;
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
            address = format!("{address}?t={}", ui::ticket::ticket(&token, i64::try_from(now)?, &random));
        }
        if !self.print {
            let answers = std::net::TcpStream::connect_timeout(&self.address, ANSWER_TIME);
            answers.map_err(|error| {
                format!("no page at {page}: {error}; start one with `agent up`, or name its address with --ui")
            })?;
            let (program, arguments) = BROWSER;
            let mut browser = Command::new(if console::OF_WINDOWS { "explorer.exe" } else { program });
            let opened = browser.args(arguments).arg(&address);
            let opened = opened.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            if opened.is_ok() {
                return Ok(format!("Opening {address}\n"));
            }
        }
        Ok(format!("{address}\n"))
    }
}

/// Longest wait for a connection to the page, which is on this machine.
const ANSWER_TIME: std::time::Duration = std::time::Duration::from_secs(2);

/// What opens an address in the browser that a person has chosen, where there is one.
const BROWSER: (&str, [&str; 0]) = ("xdg-open", []);
