//! `agent leave`: takes this host out of the cluster for good.

use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use hyper::{Method, StatusCode};
use process::command::ask_page;
use process::launch::CANNOT_RUN;

/// Longest wait for an answer: the agent finishes what it is just writing to etcd first, and each of its members may take
/// some seconds not to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Take this host out of the cluster: announce to the other hosts that it leaves, and stop its agent
///
/// The other hosts drop it and its containers at once. (After a mere stop they keep them until the lease has run out, so
/// that a restart is not noticed.) If containers still run here, this names them and does nothing without --now; the
/// containers themselves are not touched. What starts the agent again brings the host back: let its unit restart it after
/// failures only (Restart=on-failure), and disable the unit (systemctl disable berth).
#[derive(clap::Args)]
pub(crate) struct Leave {
    /// Leave although containers run here
    #[arg(long)]
    now: bool,

    /// The admin address of the agent
    #[arg(long, value_name = "ADDRESS", env = "BERTH_ADMIN")]
    admin: Option<SocketAddr>,
}

impl Leave {
    /// Asks, and prints the answer; `port` is the default admin port on loopback. The exit code is 1 when the host stays.
    pub(crate) fn run(&self, port: u16) -> ExitCode {
        let admin = self.admin.unwrap_or_else(|| (IpAddr::V4(Ipv4Addr::LOCALHOST), port).into());
        let path = format!("{}?now={}", live::leave::PATH, self.now);
        let written = match ask_page(Method::POST, admin, &path, ANSWER_LIMIT) {
            Ok((StatusCode::OK, text)) => io::stdout().write_all(text.as_bytes()).map(|()| ExitCode::SUCCESS),
            Ok((_, text)) => io::stderr().write_all(text.as_bytes()).map(|()| ExitCode::from(CANNOT_RUN)),
            Err(problem) => writeln!(
                io::stderr(),
                "error: no agent answers at {admin}: {problem}. Does it run? Its admin address is given with --admin"
            )
            .map(|()| ExitCode::from(CANNOT_RUN)),
        };
        // A closed stdout is not an error.
        written.unwrap_or(ExitCode::SUCCESS)
    }
}
