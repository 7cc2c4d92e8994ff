//! Clusters of etcd of the tests' own: Debian's etcd on loopback, with folders of their own; and cables that can be pulled.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::shared::has;
use crate::wait::{eventually, seconds};
use crate::{http, skip};

/// Longest wait for a member to answer; it takes a second.
const LIMIT: Duration = Duration::from_secs(30);

/// Members of one cluster of etcd. Dropping this ends them.
#[derive(Debug)]
pub struct Etcd {
    folder: TempDir,
    members: Vec<Member>,
    tls: bool,
}

#[derive(Debug)]
struct Member {
    client: u16,
    peer: u16,
    process: Option<Child>,
}

impl Etcd {
    /// Starts so many members, and waits until they answer.
    ///
    /// `None`, with a word about it, where that is not possible; with `CI=true` that is a failure.
    pub fn start(members: usize) -> Option<Self> {
        Self::launch(members, false)
    }

    /// Starts members that speak TLS and ask for certificates: `ca.pem`, `client.pem` and `client.key` in [`Etcd::folder`].
    ///
    /// `None`, with a word about it, where that is not possible; with `CI=true` that is a failure.
    pub fn start_with_tls(members: usize) -> Option<Self> {
        Self::launch(members, true)
    }

    fn launch(members: usize, tls: bool) -> Option<Self> {
        let mut programs = vec![("etcd", "--version", "etcd-server")];
        if tls {
            programs.extend([("openssl", "version", "openssl"), ("curl", "--version", "curl")]);
        }
        for (program, argument, package) in programs {
            if !has(program, argument) {
                skip(&format!("{program} is not installed (Debian: {package})"));
                return None;
            }
        }
        let folder = tempfile::Builder::new().prefix("berth-etcd-").tempdir().expect("a temporary folder can be made");
        if tls {
            certificates(folder.path());
        }
        // Held until all are drawn, so that no port is drawn twice.
        let held: Vec<_> = (0..2 * members).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
        let ports: Vec<_> = held.iter().map(|port| port.local_addr().expect("it is bound").port()).collect();
        drop(held);
        let members = ports.chunks(2).map(|ports| Member { client: ports[0], peer: ports[1], process: None }).collect();
        let mut etcd = Self { folder, members, tls };
        etcd.run_all();
        etcd.wait_until_it_answers();
        Some(etcd)
    }

    /// Where data and certificates are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where the clients of a member connect.
    pub fn address(&self, member: usize) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.members[member].client))
    }

    /// The members as a command line names them.
    pub fn urls(&self) -> String {
        let urls: Vec<_> = (0..self.members.len()).map(|member| self.url(member)).collect();
        urls.join(",")
    }

    fn url(&self, member: usize) -> String {
        format!("{}://{}", self.scheme(), self.address(member))
    }

    fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
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
        let peer = |number: usize| format!("http://127.0.0.1:{}", self.members[number].peer);
        let cluster: Vec<_> = (0..self.members.len()).map(|number| format!("m{number}={}", peer(number))).collect();
        let log = File::options().create(true).append(true).open(self.folder().join(format!("m{member}.log")));
        let log = log.expect("the folder is ours");
        let mut command = Command::new("etcd");
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
            let file = |name: &str| self.folder().join(name);
            command.arg("--cert-file").arg(file("server.pem")).arg("--key-file").arg(file("server.key"));
            command.arg("--trusted-ca-file").arg(file("ca.pem")).arg("--client-cert-auth");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.members[member].process = Some(command.spawn().expect("etcd was there a moment ago"));
    }

    /// Ends a member without a word, as a crash would.
    pub fn kill(&mut self, member: usize) {
        if let Some(mut process) = self.members[member].process.take() {
            // A member that hangs has to be woken for its end.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Ends all members.
    pub fn kill_all(&mut self) {
        (0..self.members.len()).for_each(|member| self.kill(member));
    }

    /// Stops a member in its tracks: connections stay and say nothing.
    pub fn hang(&self, member: usize) {
        self.signal(member, "-STOP");
    }

    /// Lets a member go on that hangs.
    pub fn go_on(&self, member: usize) {
        self.signal(member, "-CONT");
    }

    fn signal(&self, member: usize, signal: &str) {
        let process = self.members[member].process.as_ref().expect("the member runs");
        let sent = Command::new("kill").args([signal, &process.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill {signal} of a member");
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
        if self.tls {
            let file = |name: &str| self.folder().join(name);
            let mut curl = Command::new("curl");
            curl.args(["--silent", "--fail", "--max-time", "5", "--data", &body.to_string()]);
            curl.arg("--cacert").arg(file("ca.pem")).arg("--cert").arg(file("client.pem"));
            curl.arg("--key").arg(file("client.key")).arg(format!("{}/v3/{path}", self.url(member)));
            let output = curl.output().ok().filter(|output| output.status.success())?;
            return serde_json::from_slice(&output.stdout).ok();
        }
        let request = http::post(format!("/v3/{path}"), body.to_string()).within(seconds(5));
        let response = request.send(self.address(member)).ok().filter(|response| response.status == 200)?;
        serde_json::from_slice(&response.body).ok()
    }

    fn data(&self, member: usize) -> PathBuf {
        self.folder().join(format!("m{member}"))
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
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |octets: &[u8]| {
        let bits =
            octets.iter().fold(0_usize, |bits, octet| bits << 8 | usize::from(*octet)) << (8 * (3 - octets.len()));
        let digit = |place: usize| char::from(DIGITS[bits >> (18 - 6 * place) & 63]);
        (0..4).map(|place| if place <= octets.len() { digit(place) } else { '=' }).collect::<String>()
    };
    text.as_bytes().chunks(3).map(group).collect()
}

/// Makes an authority, a certificate for loopback and one for a client.
fn certificates(folder: &Path) {
    let openssl = |arguments: &str| {
        let output = Command::new("openssl").current_dir(folder).args(arguments.split(' ')).output();
        let output = output.expect("openssl was there a moment ago");
        assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {key} -days 2 -subj /CN=authority -keyout ca.key -out ca.pem"));
    for name in ["server", "client"] {
        let alternative = "subjectAltName=IP:127.0.0.1,DNS:localhost";
        openssl(&format!("req {key} -subj /O={name} -addext {alternative} -keyout {name}.key -out {name}.csr"));
        std::fs::write(folder.join("extensions"), alternative).expect("the folder is ours");
        openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile extensions -out {name}.pem"
        ));
    }
}

/// A cable to something that listens on TCP, which can be pulled and plugged in again.
#[derive(Clone, Debug)]
pub struct Cable {
    /// Where the near end is.
    pub address: SocketAddr,
    ends: Arc<Mutex<Ends>>,
    octets: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Ends {
    pulled: bool,
    streams: Vec<TcpStream>,
}

impl Cable {
    /// A cable to `server`.
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let cable = Self { address, ends: Arc::default(), octets: Arc::default() };
        let serving = cable.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // What cannot be connected is closed, as by a member that is not there.
                let _ = serving.connect(near, server);
            }
        });
        cable
    }

    /// The address as that of a member.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Breaks all connections, and lets no new ones through.
    pub fn pull(&self) {
        let mut ends = self.ends();
        ends.pulled = true;
        for stream in ends.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Lets connections through again.
    pub fn plug_in(&self) {
        self.ends().pulled = false;
    }

    /// How many octets came from the far end.
    pub fn octets(&self) -> u64 {
        self.octets.load(Ordering::Relaxed)
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self, near: TcpStream, server: SocketAddr) -> std::io::Result<()> {
        let mut ends = self.ends();
        if ends.pulled {
            return Ok(());
        }
        let far = TcpStream::connect(server)?;
        for stream in [&near, &far] {
            stream.set_nodelay(true)?;
            ends.streams.push(stream.try_clone()?);
        }
        copy(near.try_clone()?, far.try_clone()?, None);
        copy(far, near, Some(self.octets.clone()));
        Ok(())
    }
}

/// Copies until one end is closed, on a thread of its own, which ends with the connection.
fn copy(mut from: TcpStream, mut to: TcpStream, count: Option<Arc<AtomicU64>>) {
    std::thread::spawn(move || {
        let mut octets = [0; 16 << 10];
        while let Ok(length @ 1..) = from.read(&mut octets) {
            if let Some(count) = &count {
                count.fetch_add(length as u64, Ordering::Relaxed);
            }
            if to.write_all(&octets[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_is_that_of_the_gateway() {
        for (text, encoded) in [("", ""), ("x", "eA=="), ("ab", "YWI="), ("abc", "YWJj"), ("/berth/a", "L2JlcnRoL2E=")]
        {
            assert_eq!(base64(text), encoded);
        }
    }
}
