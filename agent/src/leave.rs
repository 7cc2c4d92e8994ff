//! `agent leave`: takes this host out of the cluster for good.

use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use hyper::{Method, StatusCode};
use process::command::ask_page;
use process::launch::CANNOT_RUN;
use serde_json::Value;

/// Longest wait for an answer: the agent finishes what it is just writing to etcd first, and each of its members may take
/// some seconds not to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Take this host out of the cluster: announce to the other hosts that it leaves, and stop its agent
///
/// The other hosts drop it and its containers at once. (After a mere stop they keep them until the lease has run out, so
/// that a restart is not noticed.) If containers still run here, this names them and does nothing without --now; the
/// containers themselves are not touched. The agent wants its token for this, which stands in its state directory and which
/// this command reads by itself, as root or the user that the agent runs as. What starts the agent again brings the host
/// back: let its unit restart it after failures only (Restart=on-failure), and disable the unit (systemctl disable berth).
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
        let ask = |token: Option<&str>| ask_page(Method::POST, admin, &path, token, ANSWER_LIMIT);
        let answer = match ask(None) {
            // It has done nothing yet, and names the file with the token.
            Ok((StatusCode::UNAUTHORIZED, body)) => match token(&body) {
                Ok(token) => ask(Some(&token)),
                Err(why) => {
                    Ok((StatusCode::UNAUTHORIZED, format!("error: the agent at {admin} wants its token: {why}\n")))
                }
            },
            answer => answer,
        };
        let written = match answer {
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

/// The token in the file that an agent names.
fn token(body: &str) -> Result<String, String> {
    let body: Value = serde_json::from_str(body).map_err(|_| "it names no file".to_owned())?;
    let file = body["token_file"].as_str().ok_or("it names no file")?;
    process::token::offered(Path::new(file), live::leave::TOKEN_FILE).map_err(|why| {
        format!("{file} cannot be used: {why}; type this as root or an administrator, in its container if it has one")
    })
}
