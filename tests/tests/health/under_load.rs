//! Checks on a machine that has no time: none of them says that something failed that did not.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use tests::cluster::ClusterFolder;
use tests::shared::there;
use tests::wait::scaled;
use tests::{Companion, Launch, Process, battery, eventually, http, tell};

/// Containers that are checked: as many as `--health all` allows, each twice a second.
const TARGETS: u32 = 1000;
const INTERVAL_MS: u32 = 500;

/// Threads that use all the time they get, on the two processors of the machine.
const BUSY: usize = 4;

/// Threads that answer, and connections that wait for them: containers that do not answer would be no false alarm.
const SERVING: usize = 8;
const BACKLOG: i32 = 4096;

/// How long nothing may be said to fail.
const LONG: Duration = Duration::from_mins(10);
const SHORT: Duration = Duration::from_secs(5);

/// The address of a container.
fn address(number: u32) -> Ipv4Addr {
    let [_, _, high, low] = number.to_be_bytes();
    Ipv4Addr::new(127, 61, high, low)
}

/// Answers all checks well, at all addresses of loopback. Ends with the test's process.
fn serve(listener: &TcpListener) {
    for mut stream in listener.incoming().flatten() {
        let answer = |stream: &mut TcpStream| {
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
            if stream.read(&mut [0; 512])? > 0 {
                stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
            }
            Ok::<_, std::io::Error>(())
        };
        let _ = answer(&mut stream);
    }
}

/// The peer with the same targets. It ends when this is dropped.
struct Haproxy {
    process: Process,
    socket: std::path::PathBuf,
}

impl Haproxy {
    fn start(folder: &Path, port: u16) -> Option<Self> {
        if !there(&[("haproxy", "-v")], "haproxy") {
            return None;
        }
        let socket = folder.join("haproxy.sock");
        let mut text = format!(
            "global\n nbthread 1\n maxconn 4096\n stats socket {}\ndefaults\n mode http\n timeout connect 1s\n timeout client 5s\n timeout server 5s\n timeout check 2s\nbackend checked\n option httpchk GET /health HTTP/1.0\n",
            socket.display()
        );
        for number in 0..TARGETS {
            let address = address(number);
            let _ = writeln!(text, " server s{number} {address}:{port} check inter {INTERVAL_MS} fall 3 rise 2");
        }
        let file = folder.join("haproxy.cfg");
        std::fs::write(&file, text).unwrap();
        let process = Process::start(Command::new("haproxy").args(["-db", "-f"]).arg(&file));
        Some(Self { process, socket })
    }

    /// How often it took a server for down, and how many checks failed, since its start.
    fn failures(&mut self) -> Option<[u64; 2]> {
        assert!(self.process.is_running(), "haproxy has ended");
        let mut stream = UnixStream::connect(&self.socket).ok()?;
        stream.write_all(b"show stat\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let mut lines = text.lines();
        let names: Vec<&str> = lines.next()?.trim_start_matches("# ").split(',').collect();
        let at = |wanted: &str| names.iter().position(|name| *name == wanted);
        let (down, failed) = (at("chkdown")?, at("chkfail")?);
        let (mut downs, mut fails) = (0, 0);
        for line in lines {
            let fields: Vec<&str> = line.split(',').collect();
            let is_server = fields.get(1).is_some_and(|name| name.starts_with('s'));
            let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or_default();
            if is_server {
                (downs, fails) = (downs + number(down), fails + number(failed));
            }
        }
        Some([downs, fails])
    }
}

/// The sum of a metric over its labels, of those lines that have `part`.
fn sum(text: &str, name: &str, part: &str) -> u64 {
    let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(part));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[test]
fn nothing_is_said_to_fail_on_a_busy_machine() {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into()).unwrap();
    socket.listen(BACKLOG).unwrap();
    let listener = TcpListener::from(socket);
    let port = listener.local_addr().unwrap().port();
    let serving = (0..SERVING).map(|_| {
        let listener = listener.try_clone().unwrap();
        Companion::start(move || serve(&listener))
    });
    let _serving: Vec<_> = serving.collect();
    let mut file = format!(
        "berth: 1\nhosts:\n- {{ name: h, agent_ip: 192.0.2.1 }}\nservices:\n- {{ name: web, stack: shop, health_check: {{ port: {port}, request_line: GET /health HTTP/1.0, interval: {INTERVAL_MS}, response_timeout: 2000 }} }}\ncontainers:\n"
    );
    for number in 0..TARGETS {
        let address = address(number);
        let _ = writeln!(file, "- {{ name: web-{number}, service: shop/web, host: h, primary_ip: {address} }}");
    }
    let folder = ClusterFolder::new(file + "...\n");
    let mut agent = Launch::agent(&folder.file()).with("--health", "all").start();
    agent.ready();
    let admin = agent.admin();
    let metrics = || http::get("/metrics").ask(admin).text();
    eventually("all are well", Duration::from_secs(30), || {
        (sum(&metrics(), "health_opinions", "\"up\"") == u64::from(TARGETS)).then_some(())
    });
    let is_over = Arc::new(AtomicBool::new(false));
    let busy = (0..BUSY).map(|_| {
        let is_over = is_over.clone();
        Companion::start(move || while !is_over.load(Ordering::Relaxed) {})
    });
    let busy: Vec<_> = busy.collect();
    let mut haproxy = Haproxy::start(&folder.path("."), port);
    let (begun, before) = (Instant::now(), sum(&metrics(), "health_checks_total", ""));
    let time = if battery::is_long() { LONG } else { SHORT };
    std::thread::sleep(time);
    let counted = eventually("its metrics", scaled(Duration::from_secs(10)), || Some(metrics()));
    let took = begun.elapsed();
    let theirs =
        haproxy.as_mut().map(|haproxy| eventually("its counts", Duration::from_secs(10), || haproxy.failures()));
    is_over.store(true, Ordering::Relaxed);
    for one in busy {
        one.join();
    }
    let checks = sum(&counted, "health_checks_total", "") - before;
    let [failed, unsure] = ["fail", "unsure"].map(|word| sum(&counted, "health_checks_total", &format!("\"{word}\"")));
    tell(&format!(
        "{checks} checks in {took:?}, of them {failed} failed and {unsure} unsure; haproxy beside it: {theirs:?} down and failed"
    ));
    assert_eq!(sum(&counted, "health_verdicts_total", "unhealthy"), 0, "{counted}");
    assert_eq!(sum(&counted, "health_opinions", "\"up\""), u64::from(TARGETS), "{counted}");
    assert!(checks > 0, "{counted}");
}
