//! The servers that others made, with the configuration files of `bench/peers`.
//!
//! In these files `@PORT@` is the port to listen on and `@DIR@` the folder that is theirs while they run.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::machine::Machine;
use crate::machine::repository;
use crate::names::{self, Question};
use crate::server::{Executables, Server, free_address};
use crate::{Failure, exchange, load};

/// Packages of Debian with everything that is measured beside us.
pub(crate) const INSTALL: &str =
    "apt-get install nginx-light wrk dnsperf knot nsd unbound dnsmasq pdns-server pdns-backend-bind";

/// A DNS server made elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DnsPeer {
    pub(crate) name: &'static str,
    program: &'static str,
    /// With `@DIR@`, as in the configuration.
    arguments: &'static [&'static str],
    configuration: &'static str,
}

pub(crate) const KNOT: DnsPeer =
    DnsPeer { name: "knot", program: "knotd", arguments: &["-c", "@DIR@/knot.conf"], configuration: "knot.conf" };
pub(crate) const NSD: DnsPeer =
    DnsPeer { name: "nsd", program: "nsd", arguments: &["-d", "-c", "@DIR@/nsd.conf"], configuration: "nsd.conf" };
pub(crate) const UNBOUND: DnsPeer = DnsPeer {
    name: "unbound",
    program: "unbound",
    arguments: &["-d", "-c", "@DIR@/unbound.conf"],
    configuration: "unbound.conf",
};
pub(crate) const UNBOUND_FORWARDING: DnsPeer = DnsPeer {
    name: "unbound",
    program: "unbound",
    arguments: &["-d", "-c", "@DIR@/unbound-forwarding.conf"],
    configuration: "unbound-forwarding.conf",
};
pub(crate) const DNSMASQ: DnsPeer = DnsPeer {
    name: "dnsmasq",
    program: "dnsmasq",
    arguments: &["-k", "-C", "@DIR@/dnsmasq.conf"],
    configuration: "dnsmasq.conf",
};
pub(crate) const PDNS: DnsPeer =
    DnsPeer { name: "pdns", program: "pdns_server", arguments: &["--config-dir=@DIR@"], configuration: "pdns.conf" };

impl DnsPeer {
    /// Starts it with the names of the DNS scenario; `upstream` is where it forwards to, if it does.
    pub(crate) fn start(&self, machine: &Machine, upstream: Option<SocketAddr>) -> Result<Server, Failure> {
        if !load::has(self.program) {
            return Err(format!("no {}; {INSTALL}", self.program).into());
        }
        let folder = TempDir::new()?;
        let address = free_address()?;
        let upstream = upstream.map_or_else(String::new, |upstream| upstream.port().to_string());
        let values = [
            ("@UPSTREAM@", upstream),
            ("@PORT@", address.port().to_string()),
            ("@DIR@", folder.path().display().to_string()),
        ];
        write_from(&folder, self.configuration, &values)?;
        write_names(folder.path())?;
        let mut command = Command::new(self.program);
        command.args(self.arguments.iter().map(|argument| argument.replace("@DIR@", &values[2].1)));
        let mut server = Server::start(machine, self.name, &command, folder)?;
        let question = Question::new(&names::name(0), true);
        server.wait(address, |address| exchange::answers(address, &question))?;
        Ok(server)
    }
}

/// The names in the forms in which the peers read them.
fn write_names(folder: &Path) -> Result<(), Failure> {
    fs::write(folder.join("zone"), names::zone_file())?;
    let (mut hosts, mut local_data) = (String::new(), String::new());
    for (name, address) in names::all() {
        let _ = writeln!(hosts, "{address} {name}");
        let _ = writeln!(local_data, "local-data: \"{name}. 1 IN A {address}\"");
    }
    fs::write(folder.join("hosts"), hosts)?;
    fs::write(folder.join("local-data"), local_data)?;
    fs::write(
        folder.join("named.conf"),
        format!("zone \"{}\" {{ type master; file \"{}/zone\"; }};\n", names::ZONE, folder.display()),
    )?;
    Ok(())
}

/// Puts a file of `bench/peers` into a folder, with its placeholders replaced.
fn write_from(folder: &TempDir, file: &str, values: &[(&str, String)]) -> Result<(), Failure> {
    let mut text = fs::read_to_string(repository().join("bench/peers").join(file))?;
    for (placeholder, value) in values {
        text = text.replace(placeholder, value);
    }
    fs::write(folder.path().join(file), text)?;
    Ok(())
}

/// Starts a peer of our own making: `echo` or `hickory`.
pub(crate) fn start_own(machine: &Machine, executables: &Executables, name: &str) -> Result<Server, Failure> {
    let address = free_address()?;
    let mut server = Server::start(machine, name, &executables.own(name, address), TempDir::new()?)?;
    let question = Question::new(&names::name(0), true);
    server.wait(address, |address| exchange::ask(address, &question).is_some())?;
    Ok(server)
}

/// Starts the original DNS service with the same names.
pub(crate) fn start_original(machine: &Machine, program: Option<&Path>) -> Result<Server, Failure> {
    let program = program.ok_or("give --original-dns")?;
    let folder = TempDir::new()?;
    let answers = folder.path().join("answers.json");
    fs::write(&answers, names::answers())?;
    let (address, reload) = (free_address()?, free_address()?);
    let mut command = Command::new(std::path::absolute(program)?);
    command.args(["-listen", &address.to_string(), "-listenReload", &reload.to_string(), "-answers"]).arg(&answers);
    let mut server = Server::start(machine, "original dns", &command, folder)?;
    let question = Question::new(&names::name(0), true);
    server.wait(address, |address| exchange::answers(address, &question))?;
    Ok(server)
}

/// nginx with two ports.
pub(crate) struct Nginx {
    pub(crate) server: Server,
    /// As it is by default.
    pub(crate) plain: u16,
    /// Accepts connections with their first bytes only.
    pub(crate) deferred: u16,
}

impl Nginx {
    /// Starts it with `value` as its constant and `tree` as its file.
    pub(crate) fn start(machine: &Machine, value: &str, tree: &[u8]) -> Result<Self, Failure> {
        if !load::has("nginx") {
            return Err(format!("no nginx; {INSTALL}").into());
        }
        let folder = TempDir::new()?;
        fs::write(folder.path().join("tree.json"), tree)?;
        let (plain, deferred) = (free_address()?, free_address()?);
        let values = [
            ("@PORT@", plain.port().to_string()),
            ("@DEFERRED@", deferred.port().to_string()),
            ("@DIR@", folder.path().display().to_string()),
            ("@VALUE@", value.to_owned()),
        ];
        write_from(&folder, "nginx.conf", &values)?;
        let mut command = Command::new("nginx");
        command.args(["-p", &values[2].1, "-c", &format!("{}/nginx.conf", values[2].1)]);
        let mut server = Server::start(machine, "nginx", &command, folder)?;
        server.wait(plain, |address| exchange::get(address, "/", "*/*").is_ok())?;
        Ok(Self { server, plain: plain.port(), deferred: deferred.port() })
    }
}
