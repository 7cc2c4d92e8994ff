//! What health checks cost, beside those that the load balancer haproxy makes of the same containers.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use crate::machine::Machine;
use crate::paired::Spread;
use crate::report::{Goal, Row};
use crate::scenario::Scene;
use crate::server::{Executables, Server, free_address};
use crate::{Failure, exchange, load};

/// Containers that are checked: as many as `--health all` allows.
const TARGETS: u32 = 1000;

/// Time between two checks of each, so that there are 1,000 a second.
const INTERVAL_MS: u32 = 1000;

/// What of haproxy's processor time checks may cost.
const RATIO_MAX: f64 = 1.2;

/// KiB by which an agent with checks may be greater than one without: 6 MB, and 1 KB for each check.
const MEMORY_MAX: f64 = 7000.0;

/// How long it takes until all are checked evenly.
const SETTLE: Duration = Duration::from_secs(4);

pub(crate) fn run(scene: &mut Scene<'_>) -> Result<(), Failure> {
    let Scene { machine, executables, options, .. } = *scene;
    let targets = Targets::start()?;
    let window = if options.quick { Duration::from_secs(4) } else { Duration::from_secs(15) };
    for kind in [Kind::Tcp, Kind::Http] {
        let title = format!("{} checks of {TARGETS} containers, 1,000 a second", kind.word());
        if !options.wants(&title) {
            continue;
        }
        if !load::has("haproxy") {
            scene.tell("CPU µs per check", &title, "haproxy", vec![Row::missing("haproxy", "apt-get install haproxy")]);
            continue;
        }
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.rounds() {
            let peer = haproxy(machine, &targets, kind)?;
            let their = targets.cost(&peer, window, matches!(kind, Kind::Http))?;
            drop(peer);
            let agent = agent(machine, executables, &targets, kind, "all")?;
            let our = targets.cost(&agent, window, matches!(kind, Kind::Http))?;
            drop(agent);
            theirs.push(their);
            ours.push(our);
            ratios.push(our / their);
        }
        let [ours, theirs] = [ours, theirs].map(Spread::of);
        let range = |spread: &Spread| format!("{:.1}-{:.1}", spread.min, spread.max);
        let row = Row::figure("berth", ours.median).with_goal(Goal::AtMost(RATIO_MAX)).with_note(range(&ours));
        let rows = vec![
            Row::figure("haproxy", theirs.median).with_note(range(&theirs)),
            Row { ratio: Some(Spread::of(ratios)), ..row },
        ];
        scene.tell("CPU µs per check", &title, "haproxy", rows);
    }
    let title = format!("memory of {TARGETS} HTTP checks");
    if options.wants(&title) {
        let mut sizes = Vec::new();
        for which in ["off", "all"] {
            let agent = agent(machine, executables, &targets, Kind::Http, which)?;
            std::thread::sleep(window);
            sizes.push(f64::from(u32::try_from(agent.resident()? / 1024)?));
        }
        let rows = vec![
            Row::figure("berth without checks", sizes[0]),
            Row::figure("berth, more with checks", sizes[1] - sizes[0]).with_goal(Goal::AtMost(MEMORY_MAX)),
        ];
        scene.tell("KiB", &title, "", rows);
    }
    Ok(())
}

/// How containers are checked.
#[derive(Clone, Copy)]
enum Kind {
    Tcp,
    Http,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Http => "HTTP",
        }
    }
}

/// The containers: one listener for all addresses of loopback.
struct Targets {
    port: u16,
    /// Connections that were accepted. Both reset a TCP check before its handshake ends, so that those are not accepted.
    checks: Arc<AtomicU32>,
}

impl Targets {
    fn start() -> Result<Self, Failure> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let (port, checks) = (listener.local_addr()?.port(), Arc::new(AtomicU32::new(0)));
        let counted = checks.clone();
        // Ends with this process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::Relaxed);
                // One that closed at once was checked for its connection alone.
                let _ = answer(stream);
            }
        });
        Ok(Self { port, checks })
    }

    fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        (0..TARGETS).map(|number| {
            let [_, _, high, low] = number.to_be_bytes();
            (Ipv4Addr::new(127, 60, high, low), self.port).into()
        })
    }

    /// Processor time of a checker for each check, in µs; `is_accepted` says that its checks are accepted, otherwise the kernel's
    /// count of connections that were asked for is taken.
    fn cost(&self, checker: &Server, window: Duration, is_accepted: bool) -> Result<f64, Failure> {
        std::thread::sleep(SETTLE);
        let count = || if is_accepted { Ok(self.checks.load(Ordering::Relaxed)) } else { opened() };
        let (before, counted) = (checker.cpu()?, count()?);
        std::thread::sleep(window);
        let spent = checker.cpu()?.saturating_sub(before);
        let checks = f64::from(count()?.wrapping_sub(counted));
        let expected = window.as_secs_f64() * f64::from(TARGETS);
        if checks < 0.8 * expected || checks > 1.2 * expected {
            return Err(format!("{}: {checks} checks and not {expected}: {}", checker.name, checker.log()).into());
        }
        Ok(spent.as_secs_f64() * 1e6 / checks)
    }
}

/// How many connections this machine has asked for, as its kernel counts them (RFC 4022, `tcpActiveOpens`).
fn opened() -> Result<u32, Failure> {
    let text = fs::read_to_string("/proc/net/snmp")?;
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:")).map(str::split_whitespace);
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return Err("no counts of TCP".into()) };
    let found =
        names.zip(values).find(|(name, _)| *name == "ActiveOpens").and_then(|(_, value)| value.parse::<u64>().ok());
    // Only differences are looked at, which fit.
    Ok(u32::try_from(found.ok_or("no count of opened connections")? & u64::from(u32::MAX))?)
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    if stream.read(&mut [0; 512])? > 0 {
        stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
    }
    Ok(())
}

/// The peer with one thread, which is its way to spend least on checks.
fn haproxy(machine: &Machine, targets: &Targets, kind: Kind) -> Result<Server, Failure> {
    let folder = TempDir::new()?;
    let check = match kind {
        Kind::Tcp => "",
        Kind::Http => " option httpchk GET /health HTTP/1.0\n",
    };
    let mut text = format!(
        "global\n nbthread 1\n maxconn 4096\ndefaults\n timeout connect 1s\n timeout client 5s\n timeout server 5s\n timeout check 2s\nfrontend unused\n mode http\n bind {}\n default_backend checked\nbackend checked\n mode http\n{check}",
        free_address()?
    );
    for (number, address) in targets.addresses().enumerate() {
        let _ = writeln!(text, " server s{number} {address} check inter {INTERVAL_MS} fall 3 rise 2");
    }
    let file = folder.path().join("haproxy.cfg");
    fs::write(&file, text)?;
    let mut command = Command::new("haproxy");
    command.args(["-db", "-f"]).arg(&file);
    Server::start(machine, "haproxy", &command, folder)
}

fn agent(
    machine: &Machine,
    executables: &Executables,
    targets: &Targets,
    kind: Kind,
    which: &str,
) -> Result<Server, Failure> {
    let folder = TempDir::new()?;
    let line = match kind {
        Kind::Tcp => "",
        Kind::Http => ", request_line: GET /health HTTP/1.0",
    };
    let mut text = format!(
        "berth: 1\nhosts:\n- {{ name: h, agent_ip: 192.0.2.1 }}\nservices:\n- {{ name: web, stack: shop, health_check: {{ port: {}, interval: {INTERVAL_MS}{line} }} }}\ncontainers:\n",
        targets.port
    );
    for (number, address) in targets.addresses().enumerate() {
        let _ = writeln!(text, "- {{ name: web-{number}, service: shop/web, host: h, primary_ip: {} }}", address.ip());
    }
    text.push_str("...\n");
    let file = folder.path().join("cluster.yml");
    fs::write(&file, text)?;
    let mut command = Command::new(executables.of("agent"));
    command.arg("up").arg(&file).args(["--health", which, "--log-format", "json", "--state-dir"]);
    command.arg(folder.path().join("state"));
    for flag in ["--metadata", "--dns", "--scheduler", "--admin"] {
        command.args([flag, "127.0.0.1:0"]);
    }
    let mut server = Server::start(machine, "berth", &command, folder)?;
    exchange::until("the agent", Duration::from_millis(20), || {
        if !server.is_running() {
            return Err(format!("the agent does not run: {}", server.log()).into());
        }
        Ok(server.log().contains("\"read\""))
    })?;
    Ok(server)
}
