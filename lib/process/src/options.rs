//! Options that all executables share.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use clap::{Arg, Args, ValueEnum};
use source::StateDir;

use crate::Failure;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line of text for a person.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The options of the process itself.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Process")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct ProcessOptions {
    /// How log lines look, on standard error
    #[arg(long, value_enum, default_value_t, env = "BERTH_LOG_FORMAT")]
    pub log_format: LogFormat,

    /// Log to the end of this file instead of standard error
    #[arg(long, value_name = "FILE", env = "BERTH_LOG")]
    pub log: Option<PathBuf>,

    /// Begin a new log file each day, with the day in its name, and keep this many
    #[arg(long, value_name = "N", env = "BERTH_LOG_DAYS", requires = "log", value_parser = clap::value_parser!(u16).range(1..))]
    pub log_days: Option<u16>,

    /// Log every request and decision
    #[arg(long, env = "BERTH_DEBUG")]
    pub debug: bool,

    /// Write the process id to this file
    #[arg(long, value_name = "FILE", env = "BERTH_PID_FILE")]
    pub pid_file: Option<PathBuf>,

    /// Put the listen address on an interface first, and take it away at the end (needs administrator rights)
    #[arg(long, env = "BERTH_ADD_ADDRESS")]
    pub add_address: bool,

    /// Serve the containers of this machine's engine, and no other client: puts the listen address on the engine's
    /// network (Linux: docker0, Windows: "vEthernet (nat)") like --add-address, and takes packets from bridges of
    /// containers and from this machine only
    #[arg(long, env = "BERTH_SERVE_CONTAINERS")]
    pub serve_containers: bool,

    /// Leave the address there at the end, for the next start, so that it is never missing in between; `agent service release`
    /// takes it away. A service of Windows does this by itself
    #[arg(long, env = "BERTH_KEEP_ADDRESS")]
    pub keep_address: bool,

    /// The interface for the address [default: the first one that is up and not loopback, with --serve-containers the
    /// engine's]
    #[arg(long, value_name = "NAME", env = "BERTH_INTERFACE")]
    pub interface: Option<String>,
}

/// Hides an option that means nothing to a program that adds no address, for `mut_args` of its command.
pub fn hide_address_options(argument: Arg) -> Arg {
    let is_one = ["add_address", "serve_containers", "keep_address", "interface"].contains(&argument.get_id().as_str());
    if is_one { argument.hide(true) } else { argument }
}

/// Where the last good snapshot is stored.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Process")]
pub struct StateOptions {
    /// Keep the last good snapshot in this directory, for a start without the source
    #[arg(long, value_name = "DIR", env = "BERTH_STATE_DIR")]
    pub state_dir: Option<PathBuf>,
}

impl StateOptions {
    /// The state directory, when one is given.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be made or written; the text names it.
    pub fn open(&self) -> Result<Option<StateDir>, Failure> {
        let Some(path) = &self.state_dir else { return Ok(None) };
        let opened = source::state::probe(path).and_then(|()| StateDir::open(path.clone()));
        match opened {
            Ok(state) => Ok(Some(state)),
            Err(failure) => Err(format!("cannot store state in {}: {failure}", path.display()).into()),
        }
    }
}

/// An address to listen on, from `IP:PORT`, `:PORT` (all addresses) or `NAME:PORT`.
///
/// # Errors
///
/// Fails if it is none of these, or the name is unknown.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse::<u16>().ok()) {
        return Ok((IpAddr::from([0, 0, 0, 0]), port).into());
    }
    let named = text.to_socket_addrs().ok().and_then(|mut found| found.next());
    named.ok_or_else(|| format!("{text:?} is no address to listen on; expected IP:PORT or :PORT"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_are_read_as_the_predecessors_did() {
        for (text, expected) in [
            ("169.254.169.250:80", Some("169.254.169.250:80")),
            (":53", Some("0.0.0.0:53")),
            ("[::1]:80", Some("[::1]:80")),
            ("127.0.0.1", None),
            ("127.0.0.1:99999", None),
            ("", None),
        ] {
            assert_eq!(listen_address(text).ok().map(|address| address.to_string()).as_deref(), expected, "{text}");
        }
    }
}
