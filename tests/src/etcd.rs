//! Clusters of etcd of the tests' own: Debian's etcd on loopback or in a network namespace, with folders of their own.

use std::fs::File;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::certificates::Authority;
use crate::process::Process;
use crate::shared::there;
use crate::wait::{eventually, seconds};
use crate::{http, namespace, ports};

/// Longest wait for a member to answer; it takes a second.
const LIMIT: Duration = Duration::from_secs(30);

/// Folders of certificates.
const SERVER: &str = "server";
const CLIENT: &str = "client";

/// Where files are kept in memory, on Linux.
const IN_MEMORY: &str = "/dev/shm";

/// Bytes that must be free there and in memory: a member writes 128 MiB of log in advance, and tests beside it start others.
const ROOM: u64 = 4 << 30;

/// A folder for the data of etcd, in memory if there is room.
///
/// Etcd waits for the disk before it answers. While builds and engines write to the same disk, that can take longer than the 2 s after
/// which clients of etcd give up, and a test then fails with their error.
pub(crate) fn folder() -> TempDir {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("berth-etcd-");
    let in_memory = if has_room() { builder.tempdir_in(IN_MEMORY).ok() } else { None };
    in_memory.unwrap_or_else(|| builder.tempdir().expect("a temporary folder can be made"))
}

fn has_room() -> bool {
    let df = Command::new("df").args(["--output=avail", "--block-size=1", IN_MEMORY]).output();
    let free = df.ok().and_then(|df| String::from_utf8_lossy(&df.stdout).lines().nth(1)?.trim().parse::<u64>().ok());
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.strip_suffix("kB"));
    let available = available.and_then(|number| Some(number.trim().parse::<u64>().ok()? * 1024));
    free.min(available).is_some_and(|free| free >= ROOM)
}

/// Members of one cluster of etcd. Dropping this ends them.
#[derive(Debug)]
pub struct Etcd {
    folder: TempDir,
    members: Vec<Member>,
    place: Place,
    tls: bool,
}

/// Where members run.
#[derive(Debug)]
struct Place {
    namespace: Option<String>,
    address: Ipv4Addr,
}

impl Place {
    /// The namespace of the tests themselves.
    const HERE: Self = Self { namespace: None, address: Ipv4Addr::LOCALHOST };
}

#[derive(Debug)]
struct Member {
    client: u16,
    peer: u16,
    process: Option<Process>,
}

impl Etcd {
    /// Starts so many members, and waits until they answer.
    ///
    /// `None`, with a word about it, where that is not possible; with `CI=true` that is a failure.
    pub fn start(members: usize) -> Option<Self> {
        Self::launch(members, Place::HERE, false)
    }

    /// The same in a network namespace, which has this address.
    pub fn start_within(namespace: &str, address: Ipv4Addr, members: usize) -> Option<Self> {
        Self::launch(members, Place { namespace: Some(namespace.to_owned()), address }, false)
    }

    /// Starts members that speak TLS and ask for certificates, as those in [`Etcd::certificates`].
    ///
    /// `None`, with a word about it, where that is not possible; with `CI=true` that is a failure.
    pub fn start_with_tls(members: usize) -> Option<Self> {
        Self::launch(members, Place::HERE, true)
    }

    fn launch(members: usize, place: Place, tls: bool) -> Option<Self> {
        if !there(&[("etcd", "--version"), ("curl", "--version")], "etcd-server, curl") {
            return None;
        }
        let folder = folder();
        if tls {
            let authority = Authority::new("etcd");
            for name in [SERVER, CLIENT] {
                authority.folder(folder.path(), name);
            }
        }
        // Nobody else has ports in a namespace of a test's own.
        let ports = ports::some(2 * members);
        let members = ports.chunks(2).map(|ports| Member { client: ports[0], peer: ports[1], process: None }).collect();
        let mut etcd = Self { folder, members, place, tls };
        etcd.run_all();
        etcd.wait_until_it_answers();
        Some(etcd)
    }

    /// Where data are, and room for a test's own files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder with `ca.pem`, `cert.pem` and `key.pem` for a client, where members ask for certificates.
    pub fn certificates(&self) -> Option<PathBuf> {
        self.tls.then(|| self.folder().join(CLIENT))
    }

    /// Where the clients of a member connect.
    pub fn address(&self, member: usize) -> SocketAddr {
        SocketAddr::from((self.place.address, self.members[member].client))
    }

    /// The members as a command line names them.
    pub fn urls(&self) -> String {
        let urls: Vec<_> = (0..self.members.len()).map(|member| self.url(member)).collect();
        urls.join(",")
    }

    fn url(&self, member: usize) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.address(member))
    }

    /// Starts all members that do not run.
    pub fn run_all(&mut self) {
        (0..self.members.len()).for_each(|member| self.run(member));
    }

    /// Starts a member again, with the data that it has.
    pub fn run(&mut self, member: usize) {
        if self.members[member].process.is_some() {
            return;
        }
        let peer = |number: usize| format!("http://{}:{}", self.place.address, self.members[number].peer);
        let cluster: Vec<_> = (0..self.members.len()).map(|number| format!("m{number}={}", peer(number))).collect();
        let log = File::options().create(true).append(true).open(self.folder().join(format!("m{member}.log")));
        let log = log.expect("the folder is ours");
        let mut command = self.command("etcd");
        command.args(["--name", &format!("m{member}"), "--log-level", "warn", "--logger", "zap"]);
        command.arg("--data-dir").arg(self.data(member));
        for (flag, value) in [
            ("--listen-client-urls", self.url(member)),
            ("--advertise-client-urls", self.url(member)),
            ("--listen-peer-urls", peer(member)),
            ("--initial-advertise-peer-urls", peer(member)),
            ("--initial-cluster", cluster.join(",")),
        ] {
            command.args([flag, &value]);
        }
        if self.tls {
            let file = |name: &str| self.folder().join(SERVER).join(name);
            command.arg("--cert-file").arg(file("cert.pem")).arg("--key-file").arg(file("key.pem"));
            command.arg("--trusted-ca-file").arg(file("ca.pem")).arg("--client-cert-auth");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.members[member].process = Some(Process::start(&mut command));
    }

    /// A program where the members run.
    fn command(&self, program: &str) -> Command {
        namespace::command(self.place.namespace.as_deref(), program)
    }

    /// Ends a member without a word, as a crash would.
    pub fn kill(&mut self, member: usize) {
        self.members[member].process = None;
    }

    /// Ends all members.
    pub fn kill_all(&mut self) {
        (0..self.members.len()).for_each(|member| self.kill(member));
    }

    /// Stops a member in its tracks: connections stay and say nothing.
    pub fn hang(&self, member: usize) {
        self.signal(member, "STOP");
    }

    /// Lets a member go on that hangs.
    pub fn go_on(&self, member: usize) {
        self.signal(member, "CONT");
    }

    fn signal(&self, member: usize, signal: &str) {
        self.members[member].process.as_ref().expect("the member runs").signal(signal);
    }

    /// Ends all members and starts them with nothing.
    pub fn wipe(&mut self) {
        self.kill_all();
        for member in 0..self.members.len() {
            let _ = std::fs::remove_dir_all(self.data(member));
        }
        self.run_all();
        self.wait_until_it_answers();
    }

    /// Takes a copy of all data, as a backup does. Members are started anew for it.
    pub fn back_up(&mut self) {
        self.exchange(Self::data, Self::backup);
    }

    /// Goes back to the copy that was taken last.
    pub fn restore(&mut self) {
        self.exchange(Self::backup, Self::data);
    }

    fn exchange(&mut self, from: fn(&Self, usize) -> PathBuf, to: fn(&Self, usize) -> PathBuf) {
        self.kill_all();
        for member in 0..self.members.len() {
            let _ = std::fs::remove_dir_all(to(self, member));
            let copied = Command::new("cp").arg("-r").args([from(self, member), to(self, member)]).status();
            assert!(copied.is_ok_and(|status| status.success()), "a copy of the data");
        }
        self.run_all();
        self.wait_until_it_answers();
    }

    /// The number of the member that leads.
    pub fn leader(&self) -> usize {
        eventually("a leader", LIMIT, || {
            (0..self.members.len()).find(|member| {
                self.try_ask(*member, "maintenance/status", &json!({})).is_some_and(|status| {
                    status["leader"].is_string() && status["leader"] == status["header"]["member_id"]
                })
            })
        })
    }

    /// Waits until every member that runs answers what needs a leader.
    pub fn wait_until_it_answers(&self) {
        for member in 0..self.members.len() {
            if self.members[member].process.is_some() {
                eventually("etcd answers", LIMIT, || self.try_ask(member, "kv/range", &json!({"key": base64("x")})));
            }
        }
    }

    /// What any member answers to a request; it has to succeed.
    pub fn ask(&self, path: &str, body: &Value) -> Value {
        let ask = || (0..self.members.len()).find_map(|member| self.try_ask(member, path, body));
        eventually(&format!("an answer to {path} {body}"), LIMIT, ask)
    }

    /// Puts a key without a lease.
    pub fn put(&self, key: &str, value: &str) {
        self.ask("kv/put", &json!({"key": base64(key), "value": base64(value)}));
    }

    /// Deletes a key.
    pub fn delete(&self, key: &str) {
        self.ask("kv/deleterange", &json!({"key": base64(key)}));
    }

    /// Forgets all revisions but the present one.
    pub fn compact(&self) {
        let range = self.ask("kv/range", &json!({"key": base64("x")}));
        self.ask("kv/compaction", &json!({"revision": range["header"]["revision"], "physical": true}));
    }

    fn try_ask(&self, member: usize, path: &str, body: &Value) -> Option<Value> {
        self.members[member].process.as_ref()?;
        if self.tls || self.place.namespace.is_some() {
            let mut curl = self.command("curl");
            curl.args(["--silent", "--fail", "--max-time", "5", "--data", &body.to_string()]);
            if let Some(folder) = self.certificates() {
                curl.arg("--cacert").arg(folder.join("ca.pem")).arg("--cert").arg(folder.join("cert.pem"));
                curl.arg("--key").arg(folder.join("key.pem"));
            }
            let output = curl.arg(format!("{}/v3/{path}", self.url(member))).output().ok()?;
            return output.status.success().then(|| serde_json::from_slice(&output.stdout).ok())?;
        }
        let request = http::post(format!("/v3/{path}"), body.to_string()).within(seconds(5));
        let response = request.send(self.address(member)).ok().filter(|response| response.status == 200)?;
        serde_json::from_slice(&response.body).ok()
    }

    fn data(&self, member: usize) -> PathBuf {
        self.folder().join(format!("m{member}"))
    }

    fn backup(&self, member: usize) -> PathBuf {
        self.folder().join(format!("m{member}.backup"))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill_all();
        if std::thread::panicking() {
            for member in 0..self.members.len() {
                let log = std::fs::read_to_string(self.folder().join(format!("m{member}.log"))).unwrap_or_default();
                let lines: Vec<_> = log.lines().rev().take(5).collect();
                let _ = writeln!(std::io::stderr(), "--- last lines of etcd m{member}\n{}\n---", lines.join("\n"));
            }
        }
    }
}

/// Text in base64, as etcd's gateway has keys and values.
pub fn base64(text: &str) -> String {
    STANDARD.encode(text)
}

/// The text of a key or value of etcd's gateway.
pub fn text(base64: &Value) -> String {
    let bytes = STANDARD.decode(base64.as_str().unwrap_or_default()).expect("etcd's gateway speaks base64");
    String::from_utf8(bytes).expect("what is ours is text")
}
