//! What has to be right on this machine before an invitation is used up.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use process::Failure;
use process::command::get_admin;
use source::StateDir;

use super::super::outcome::named;
use super::{Join, STATE, on_windows};
use crate::{ADMIN_PORTS, FOR_CONTAINERS, service};

/// How long an agent that runs already may take to answer.
const RUNNING_LIMIT: Duration = Duration::from_millis(250);

impl Join {
    /// The state directory, absolute: the agent runs in another folder than this command.
    pub(super) fn state(&self) -> PathBuf {
        let usual =
            || if on_windows() { service::data_folder(service::DEFAULT_NAME).join("state") } else { STATE.into() };
        absolute(&self.state_dir.clone().unwrap_or_else(usual))
    }

    /// The file of settings, absolute.
    pub(super) fn settings_file(&self) -> PathBuf {
        absolute(&self.env_file)
    }

    /// What is in the file of settings now; empty if it is not there.
    pub(super) fn lines_of_settings(&self) -> Result<String, Failure> {
        let path = self.settings_file();
        match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            read => read.map_err(named(&path)),
        }
    }

    /// Makes the folder of the file of settings.
    pub(super) fn make_folder_of_settings(&self) -> Result<(), Failure> {
        let path = self.settings_file();
        let Some(folder) = path.parent().filter(|_| !on_windows()) else { return Ok(()) };
        std::fs::create_dir_all(folder).map_err(named(folder))
    }

    /// The files and folders that cannot be written, each with the reason; nothing is written.
    pub(super) fn unwritable(&self) -> Vec<String> {
        let state = self.state();
        let opened = platform::file::must_take_files(&state)
            .and_then(|()| if state.is_dir() { StateDir::open(state.clone()).map(drop) } else { Ok(()) });
        let mut found = vec![opened.map_err(named(&state)).err()];
        if !on_windows() {
            let path = self.settings_file();
            let folder = path.parent().unwrap_or(&path);
            let writable = platform::file::must_take_files(folder).map_err(named(folder));
            found.push(writable.and_then(|()| self.lines_of_settings().map(drop)).err());
        }
        found.into_iter().flatten().map(|failure| failure.to_string()).collect()
    }
}

/// A path as it is from every folder.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The addresses for containers that another program has.
pub(super) fn taken_addresses() -> Vec<String> {
    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN_PORTS[0]));
    // An agent that runs already has them, and is restarted.
    if get_admin(admin, "/healthz", RUNNING_LIMIT).is_ok() {
        return Vec::new();
    }
    let taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    let [metadata, dns] = FOR_CONTAINERS;
    let bound = [
        (metadata, std::net::TcpListener::bind(metadata).err()),
        (dns, std::net::TcpListener::bind(dns).err()),
        (dns, std::net::UdpSocket::bind(dns).err()),
    ];
    let taken = bound.into_iter().filter(|(_, error)| error.as_ref().is_some_and(taken));
    taken.map(|(address, _)| format!("{address} is taken by another program: `agent doctor` says more")).collect()
}
