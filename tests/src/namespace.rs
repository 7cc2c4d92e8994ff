//! Network namespaces: a host and a container-like neighbour with an address of its own. Linux, as root.

use std::ffi::OsStr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of pairs made by this process, so that their names differ.
static MADE: AtomicU32 = AtomicU32::new(0);

/// A program in a namespace, or here.
pub fn command(namespace: Option<&str>, program: impl AsRef<OsStr>) -> Command {
    let Some(namespace) = namespace else { return Command::new(program) };
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(program);
    command
}

/// What was made; else a word about why there are no namespaces. With `CI=true` that is a failure.
fn or_skip<T>(made: Result<T, String>) -> Option<T> {
    made.inspect_err(|refused| crate::skip(&format!("no network namespaces without root: {refused}"))).ok()
}

/// Two namespaces joined by a cable. Dropping this removes both.
#[derive(Debug)]
pub struct Pair {
    /// The namespace of the host.
    pub host: String,
    /// The namespace of the container.
    pub container: String,
}

impl Pair {
    /// Makes them: the host has `10.42.0.1`, the container `address` (in `10.42.0.0/16`) and a way out through the host.
    ///
    /// # Errors
    ///
    /// What the system says when it refuses, as it does without the rights for it.
    pub fn new(address: &str) -> Result<Self, String> {
        let name = format!("berth-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let pair = Self { host: format!("{name}-h"), container: format!("{name}-c") };
        ip(&["netns", "add", &pair.host])?;
        ip(&["netns", "add", &pair.container])?;
        for namespace in [&pair.host, &pair.container] {
            ip(&["-n", namespace, "link", "set", "lo", "up"])?;
        }
        ip(&[
            "-n",
            &pair.host,
            "link",
            "add",
            "cable0",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            &pair.container,
        ])?;
        for (namespace, link, address) in [(&pair.host, "cable0", "10.42.0.1"), (&pair.container, "eth0", address)] {
            ip(&["-n", namespace, "address", "add", &format!("{address}/16"), "dev", link])?;
            ip(&["-n", namespace, "link", "set", link, "up"])?;
        }
        ip(&["-n", &pair.container, "route", "add", "default", "via", "10.42.0.1"])?;
        Ok(pair)
    }

    /// The same; `None`, with a word about it, where that is not possible. With `CI=true` that is a failure.
    pub fn try_new(address: &str) -> Option<Self> {
        or_skip(Self::new(address))
    }

    /// What a command prints that runs in the container.
    pub fn in_container(&self, command: &[&str]) -> String {
        Self::run(&self.container, command)
    }

    /// What a command prints that runs on the host.
    pub fn on_host(&self, command: &[&str]) -> String {
        Self::run(&self.host, command)
    }

    fn run(namespace: &str, command: &[&str]) -> String {
        let (program, arguments) = command.split_first().expect("a command has a program");
        let output = self::command(Some(namespace), program).args(arguments).output();
        let output = output.expect("ip was there a moment ago");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text + &String::from_utf8_lossy(&output.stderr)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for namespace in [&self.container, &self.host] {
            let _ = ip(&["netns", "delete", namespace]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

/// Some hosts on one switch, each in a namespace of its own. Dropping this removes all.
#[derive(Debug)]
pub struct Switch {
    /// The namespace of the switch, which has the address `10.44.0.254`.
    pub switch: String,
    /// The namespaces of the hosts, which have the addresses `10.44.0.1` and so on.
    pub hosts: Vec<String>,
}

impl Switch {
    /// Makes them.
    ///
    /// # Errors
    ///
    /// What the system says when it refuses, as it does without the rights for it.
    pub fn new(hosts: u8) -> Result<Self, String> {
        let name = format!("berth-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let switch = format!("{name}-s");
        let all = Self { hosts: (1..=hosts).map(|host| format!("{name}-{host}")).collect(), switch };
        ip(&["netns", "add", &all.switch])?;
        ip(&["-n", &all.switch, "link", "set", "lo", "up"])?;
        ip(&["-n", &all.switch, "link", "add", "ports", "type", "bridge"])?;
        ip(&["-n", &all.switch, "address", "add", "10.44.0.254/24", "dev", "ports"])?;
        ip(&["-n", &all.switch, "link", "set", "ports", "up"])?;
        for (number, host) in all.hosts.iter().enumerate() {
            all.connect(number, host)?;
        }
        Ok(all)
    }

    /// Makes the namespace of a host, with its cable to the switch.
    fn connect(&self, number: usize, host: &str) -> Result<(), String> {
        let port = Self::port(number);
        ip(&["netns", "add", host])?;
        ip(&["-n", host, "link", "set", "lo", "up"])?;
        ip(&["-n", &self.switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", host])?;
        ip(&["-n", host, "address", "add", &format!("10.44.0.{}/24", number + 1), "dev", "eth0"])?;
        ip(&["-n", host, "link", "set", "eth0", "up"])?;
        ip(&["-n", &self.switch, "link", "set", &port, "master", "ports", "up"])
    }

    /// Makes a host's namespace again, with nothing in it but its cable, as when a machine starts.
    pub fn renew(&self, host: usize) {
        let name = &self.hosts[host];
        let renewed = ip(&["-n", &self.switch, "link", "delete", &Self::port(host)])
            .and_then(|()| ip(&["netns", "delete", name]))
            .and_then(|()| self.connect(host, name));
        renewed.expect("what was made once can be made again");
    }

    /// The same; `None`, with a word about it, where that is not possible. With `CI=true` that is a failure.
    pub fn try_new(hosts: u8) -> Option<Self> {
        or_skip(Self::new(hosts))
    }

    /// Pulls the cable of a host, or plugs it in again.
    pub fn plug(&self, host: usize, up: bool) {
        let state = if up { "up" } else { "down" };
        ip(&["-n", &self.switch, "link", "set", &Self::port(host), state]).expect("the port is there");
    }

    fn port(host: usize) -> String {
        format!("port{}", host + 1)
    }

    /// What a command prints that runs on a host.
    pub fn on(&self, host: usize, command: &[&str]) -> String {
        Pair::run(&self.hosts[host], command)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        for namespace in self.hosts.iter().chain([&self.switch]) {
            let _ = ip(&["netns", "delete", namespace]);
        }
    }
}
