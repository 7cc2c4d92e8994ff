//! Starting again in place (SIGUSR2): a successor takes the sockets over, and no client notices.
//!
//! Much of it is about time, so that nothing else should run beside. `BERTH_LONG=1` has 20 restarts under the full load.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::battery::is_long;
use tests::cluster::{ClusterFolder, shop_text};
use tests::docker_hosts::DockerHosts;
use tests::etcd::base64;
use tests::shared::Exclusive;
use tests::wait::{millis, seconds};
use tests::{Launch, Question, Service, binaries, eventually, http, tell};

/// Longest wait for a restart.
const LIMIT: Duration = Duration::from_secs(40);

/// A name of the cluster file, and its answer.
const NAME: &str = "db.data";
const ADDRESS: &str = "NOERROR 127.42.2.21";

/// How much is asked.
#[derive(Clone, Copy, Debug)]
struct Load {
    restarts: usize,
    /// Questions, connections and requests a second.
    udp: u32,
    tcp: u32,
    http: u32,
    /// Requests that wait for a change.
    waiting: usize,
}

const LONG: Load = Load { restarts: 20, udp: 5_000, tcp: 500, http: 1_000, waiting: 1_000 };
const SHORT: Load = Load { restarts: 3, udp: 500, tcp: 50, http: 100, waiting: 50 };

/// An agent and the process that serves in its place at present, which ends with this.
struct Agent {
    started: Service,
    pid: PathBuf,
}

impl Agent {
    fn start(launch: &Launch, folder: &Path) -> Self {
        let pid = folder.join("pid");
        let mut started = launch.clone().with("--pid-file", &pid).start();
        started.ready();
        let agent = Self { started, pid };
        eventually("a process id", LIMIT, || agent.process());
        agent
    }

    /// The number of the process that serves.
    fn process(&self) -> Option<u32> {
        std::fs::read_to_string(&self.pid).ok()?.parse().ok()
    }

    fn signal(&self, signal: &str) {
        let process = self.process().unwrap();
        assert!(Command::new("kill").args([format!("-{signal}"), process.to_string()]).status().unwrap().success());
    }

    /// Starts it again in place; gives how long it took until the process before was gone.
    fn restart(&mut self) -> Duration {
        let (before, begun) = (self.process().unwrap(), Instant::now());
        self.signal("USR2");
        let what = format!("another process than {before}");
        eventually(&what, LIMIT, || self.process().filter(|process| *process != before));
        eventually("the one before is gone", LIMIT, || (!self.is_there(before)).then_some(()));
        begun.elapsed()
    }

    /// Whether a process has not ended.
    fn is_there(&mut self, process: u32) -> bool {
        // Its parent is to see its end.
        let _ = self.started.is_running();
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        !matches!(stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()), None | Some("Z"))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(process) = self.process().filter(|process| *process != self.started.pid()) {
            let _ = Command::new("kill").args(["-KILL", &process.to_string()]).status();
        }
    }
}

/// What became of what was asked.
#[derive(Debug, Default)]
struct Counts {
    answered: usize,
    lost: Vec<String>,
    refused: usize,
    /// Requests on a connection that had ended before one byte of the response, which clients repeat (RFC 9110 section 9.2.2).
    repeated: usize,
    longest: Duration,
}

impl Counts {
    fn count(&mut self, begun: Instant, outcome: io::Result<()>) {
        match outcome {
            Ok(()) => {
                self.answered += 1;
                self.longest = self.longest.max(begun.elapsed());
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => self.refused += 1,
            Err(error) => self.lost.push(format!("after {:?}: {error}", begun.elapsed())),
        }
    }

    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.lost.extend(other.lost);
        self.refused += other.refused;
        self.repeated += other.repeated;
        self.longest = self.longest.max(other.longest);
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answered, lost, refused, repeated, longest } = self;
        let (lost, longest) = (lost.len(), longest.as_secs_f64() * 1e3);
        write!(f, "{answered} answered, {lost} lost, {refused} refused, {repeated} repeated, longest {longest:.1} ms")
    }
}

/// Threads that ask until they are told to end.
struct Askers {
    end: Arc<AtomicBool>,
    threads: Vec<(&'static str, JoinHandle<Counts>)>,
}

impl Askers {
    fn new() -> Self {
        Self { end: Arc::default(), threads: Vec::new() }
    }

    fn add(&mut self, what: &'static str, ask: impl FnOnce(&AtomicBool) -> Counts + Send + 'static) {
        let end = self.end.clone();
        let thread = thread::Builder::new().stack_size(256 << 10).spawn(move || ask(&end)).unwrap();
        self.threads.push((what, thread));
    }

    /// Ends them; gives what each kind counted.
    fn end(self) -> Vec<(&'static str, Counts)> {
        self.end.store(true, Ordering::Relaxed);
        let mut all: Vec<(&str, Counts)> = Vec::new();
        for (what, thread) in self.threads {
            let counts = thread.join().unwrap();
            match all.iter_mut().find(|(known, _)| *known == what) {
                Some((_, sum)) => sum.add(counts),
                None => all.push((what, counts)),
            }
        }
        all
    }
}

/// Does something at a rate, until the end.
fn at_rate(rate: u32, end: &AtomicBool, mut ask: impl FnMut(&mut Counts)) -> Counts {
    let (begun, mut done, mut counts) = (Instant::now(), 0_u32, Counts::default());
    while !end.load(Ordering::Relaxed) {
        let due = begun + Duration::from_secs(1) * done / rate;
        sleep(due.saturating_duration_since(Instant::now()));
        ask(&mut counts);
        done += 1;
    }
    counts
}

/// Questions by datagram, whether those before were answered or not.
fn ask_udp(to: SocketAddr, rate: u32, end: &AtomicBool) -> Counts {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(to).unwrap();
    let question = Question::a(NAME).message();
    let sent: Arc<Mutex<Vec<Option<Instant>>>> = Arc::new(Mutex::new(vec![None; 1 << 16]));
    let answers = thread::spawn({
        let (socket, sent) = (socket.try_clone().unwrap(), sent.clone());
        // The last question may take this long.
        socket.set_read_timeout(Some(seconds(3))).unwrap();
        move || {
            let (mut counts, mut answer) = (Counts::default(), [0; 1500]);
            while let Ok(length) = socket.recv(&mut answer) {
                let id = usize::from(u16::from_be_bytes([answer[0], answer[1]]));
                let begun = sent.lock().unwrap_or_else(PoisonError::into_inner)[id].take();
                // An answer with records, and no second one.
                let is_good = length > question_length() && answer[3] % 16 == 0 && answer[7] > 0;
                if let (Some(begun), true) = (begun, is_good) {
                    counts.count(begun, Ok(()));
                }
            }
            counts
        }
    });
    let mut id = 0_u16;
    let mut counts = at_rate(rate, end, |counts| {
        id = id.wrapping_add(1);
        let mut question = question.clone();
        question[..2].copy_from_slice(&id.to_be_bytes());
        // Of a question that long ago there is no answer any more.
        let before = sent.lock().unwrap_or_else(PoisonError::into_inner)[usize::from(id)].replace(Instant::now());
        if let Some(before) = before {
            counts.count(before, Err(io::ErrorKind::TimedOut.into()));
        }
        // An error is that of an answer which says that nobody listens.
        if let Err(error) = socket.send(&question) {
            counts.count(Instant::now(), Err(error));
        }
    });
    counts.add(answers.join().unwrap());
    for unanswered in sent.lock().unwrap_or_else(PoisonError::into_inner).iter().flatten() {
        counts.count(*unanswered, Err(io::ErrorKind::TimedOut.into()));
    }
    counts
}

fn question_length() -> usize {
    Question::a(NAME).message().len()
}

fn ask_tcp(to: SocketAddr) -> io::Result<()> {
    let line = Question::a(NAME).tcp().within(seconds(10)).send(to)?.line();
    if line == ADDRESS { Ok(()) } else { Err(io::Error::other(line)) }
}

fn ask_http(to: SocketAddr) -> io::Result<()> {
    let response = http::get("/latest/containers/data-db-1/name").within(seconds(10)).send(to)?;
    let is_good = response.status == 200 && response.text() == "data-db-1";
    if is_good { Ok(()) } else { Err(io::Error::other(format!("{} {}", response.status, response.text()))) }
}

/// A connection that is used again and again, as clients of HTTP do.
#[derive(Default)]
struct KeptConnection(Option<BufReader<TcpStream>>);

impl KeptConnection {
    fn ask(&mut self, to: SocketAddr, counts: &mut Counts) {
        let begun = Instant::now();
        if let Some(mut kept) = self.0.take() {
            match request(&mut kept) {
                Ok(Some(is_kept)) => {
                    self.0 = is_kept.then_some(kept);
                    return counts.count(begun, Ok(()));
                }
                Ok(None) => counts.repeated += 1,
                Err(error) => return counts.count(begun, Err(error)),
            }
        }
        let outcome = http::connect(None, to, seconds(10)).and_then(|stream| {
            let mut stream = BufReader::new(stream);
            let is_kept = request(&mut stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
            self.0 = is_kept.then_some(stream);
            Ok(())
        });
        counts.count(begun, outcome);
    }
}

/// Sends a request; whether the connection can be used again, or `None` if it had ended before the response began.
fn request(stream: &mut BufReader<TcpStream>) -> io::Result<Option<bool>> {
    let sent = stream.get_mut().write_all(b"GET /latest/containers/data-db-1/name HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut line = String::new();
    if sent.is_err() || !matches!(stream.read_line(&mut line), Ok(1..)) {
        return Ok(None);
    }
    let (mut length, mut is_kept) = (0, true);
    if !line.starts_with("HTTP/1.1 200 ") {
        return Err(io::Error::other(line));
    }
    loop {
        let mut header = String::new();
        stream.read_line(&mut header)?;
        let header = header.trim_end().to_ascii_lowercase();
        match header.split_once(": ") {
            Some(("content-length", text)) => length = text.parse().map_err(io::Error::other)?,
            Some(("connection", "close")) => is_kept = false,
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    if body == b"data-db-1" { Ok(Some(is_kept)) } else { Err(io::Error::other("another body")) }
}

/// Waits for a change that does not come, again and again: each wait has to be answered, though it is by a stop.
fn wait(to: SocketAddr, end: &AtomicBool) -> Counts {
    let mut counts = Counts::default();
    while !end.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let target = "/latest/containers/data-db-1/name?wait=true&value=data-db-1&maxWait=5";
        let outcome = http::get(target).within(seconds(20)).send(to).and_then(|response| match response.status {
            200 | 503 => Ok(()),
            status => Err(io::Error::other(status.to_string())),
        });
        // How long it took is no matter of the service.
        counts.count(begun, outcome);
        counts.longest = Duration::ZERO;
    }
    counts
}

#[test]
fn nothing_is_lost_or_refused_while_an_agent_starts_again() {
    let _processors = Exclusive::processors();
    let load = if is_long() { LONG } else { SHORT };
    let folder = ClusterFolder::new(shop_text());
    let launch = Launch::agent(&folder.file()).with("--state-dir", folder.path("state"));
    let mut agent = Agent::start(&launch, &folder.path("."));
    let [metadata, dns] = ["metadata", "dns"].map(|service| agent.started.address_of(service));
    let admin = agent.started.admin();
    let mut askers = Askers::new();
    // More threads than that only disturb each other.
    for _ in 0..2 {
        askers.add("UDP", move |end| ask_udp(dns, load.udp / 2, end));
    }
    for _ in 0..4 {
        askers.add("TCP", move |end| at_rate(load.tcp / 4, end, |counts| counts.count(Instant::now(), ask_tcp(dns))));
        askers.add("HTTP, new connections", move |end| {
            at_rate(load.http / 8, end, |counts| counts.count(Instant::now(), ask_http(metadata)))
        });
        askers.add("HTTP, kept connections", move |end| {
            let mut connection = KeptConnection::default();
            at_rate(load.http / 8, end, |counts| connection.ask(metadata, counts))
        });
    }
    for _ in 0..load.waiting {
        askers.add("waiting requests", move |end| wait(metadata, end));
    }
    sleep(millis(500));
    let mut took = Vec::new();
    for _ in 0..load.restarts {
        took.push(agent.restart());
        eventually("ready", LIMIT, || (http::get("/readyz").send(admin).ok()?.status == 200).then_some(()));
        sleep(millis(100));
    }
    for (what, counts) in askers.end() {
        tell(&format!("{} restarts, {what}: {counts}", load.restarts));
        assert!(counts.lost.is_empty() && counts.refused == 0, "{what}: {counts}: {:?}", counts.lost.first());
        assert!(counts.answered > 0, "{what}");
    }
    tell(&format!("longest restart {:?}", took.iter().max().unwrap()));
    // The last one stops as any other does.
    let last = agent.process().unwrap();
    agent.signal("TERM");
    eventually("it stops", LIMIT, || (!agent.is_there(last)).then_some(()));
    assert!(agent.process().is_none(), "its file is gone");
}

#[test]
fn the_services_of_their_own_and_the_scheduler_of_a_file_start_again_with_what_they_had() {
    let folder = ClusterFolder::new(shop_text());
    let launch = Launch::scheduler().with("--source", format!("file:{}", folder.file().display()));
    let launch = launch.with("--state-dir", folder.path("state"));
    let pid = tempfile::tempdir().unwrap();
    let mut scheduler = Agent::start(&launch, pid.path());
    let address = scheduler.started.address();
    let request = json!({ "id": "kept", "image": "i", "dry_run": false }).to_string();
    eventually("it is promised", LIMIT, || {
        (http::post("/v1/placements", request.clone()).ask(address).status == 201).then_some(())
    });
    scheduler.restart();
    // It has to read the cluster first, and says so until then.
    eventually("it knows what it promised", LIMIT, || {
        (http::get("/v1/placements/kept").within(seconds(20)).ask(address).status == 200).then_some(())
    });

    for (launch, ask) in [
        (Launch::metadata(&folder.file()), ask_http as fn(SocketAddr) -> io::Result<()>),
        (Launch::dns().with("--source", format!("file:{}", folder.file().display())), ask_tcp),
    ] {
        let pid = tempfile::tempdir().unwrap();
        let mut service = Agent::start(&launch, pid.path());
        let address = service.started.address();
        for _ in 0..2 {
            ask(address).unwrap();
            service.restart();
        }
        ask(address).unwrap();
    }
}

#[test]
fn a_successor_that_fails_costs_nothing_and_says_why() {
    let folder = ClusterFolder::new(shop_text());
    let policy = folder.path("policy.yml");
    std::fs::write(&policy, "allow: {}\n").unwrap();
    let executable = folder.path("agent");
    let good = binaries::native("agent");
    // By another process: a program that another test starts meanwhile would hold the file open for writing.
    assert!(Command::new("cp").arg(&good).arg(&executable).status().unwrap().success());
    let launch = Launch::agent(&folder.file()).executable(&executable).with("--state-dir", folder.path("state"));
    let mut agent = Agent::start(&launch, &folder.path("."));
    let (dns, admin) = (agent.started.address_of("dns"), agent.started.admin());
    let process = agent.process();
    let replace = |contents: &[u8]| {
        let aside = folder.path("agent.new");
        std::fs::write(&aside, contents).unwrap();
        assert!(Command::new("chmod").arg("755").arg(&aside).status().unwrap().success());
        std::fs::rename(&aside, &executable).unwrap();
    };
    let mut failures = 0;
    let mut fails = |agent: &Agent, expected: &str| {
        agent.signal("USR2");
        failures += 1;
        let line = eventually("it says why", LIMIT, || {
            agent.started.lines_with("not started again").get(failures - 1).cloned()
        });
        assert!(line.contains(expected), "{line}");
        assert_eq!(agent.process(), process);
        let warnings = http::get("/readyz").ask(admin).value();
        assert!(warnings["ready"] == true && warnings["warnings"]["restart"].is_string(), "{warnings}");
        ask_tcp(dns).unwrap();
        assert_eq!(Question::a(NAME).ask(dns).line(), ADDRESS);
    };
    replace(b"no program");
    // What is no program is read as a script, as shells do.
    fails(&agent, "exit status: 127");
    replace(b"#!/bin/sh\nexit 3\n");
    fails(&agent, "exit status: 3");
    std::fs::remove_file(&executable).unwrap();
    fails(&agent, "No such file");
    replace(&std::fs::read(&good).unwrap());
    agent.restart();
    assert_ne!(agent.process(), process);
    ask_tcp(dns).unwrap();
    let readyz = http::get("/readyz").within(seconds(20)).ask(admin).value();
    assert!(readyz["warnings"]["restart"].is_null(), "{readyz}");
}

#[test]
fn a_file_that_cannot_be_used_is_found_before_anything_ends() {
    let folder = ClusterFolder::new(shop_text());
    let tokens = folder.path("token");
    std::fs::write(&tokens, "0123456789abcdef0123456789abcdef\n").unwrap();
    assert!(Command::new("chmod").arg("600").arg(&tokens).status().unwrap().success());
    let launch = Launch::agent(&folder.file()).with("--token-file", &tokens);
    let mut agent = Agent::start(&launch, &folder.path("."));
    let dns = agent.started.address_of("dns");
    let process = agent.process();
    std::fs::remove_file(&tokens).unwrap();
    agent.signal("USR2");
    let line = eventually("it says why", LIMIT, || agent.started.lines_with("not started again").first().cloned());
    assert!(line.contains("token"), "{line}");
    assert_eq!(agent.process(), process);
    ask_tcp(dns).unwrap();
}

#[test]
fn the_manager_of_services_learns_which_process_serves() {
    let folder = ClusterFolder::new(shop_text());
    let path = folder.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(seconds(20))).unwrap();
    let launch = Launch::agent(&folder.file()).env("NOTIFY_SOCKET", path.display().to_string());
    let mut agent = Agent::start(&launch, &folder.path("."));
    let before = agent.process();
    agent.restart();
    let next = || {
        let mut text = [0; 4096];
        let length = manager.recv(&mut text).unwrap();
        String::from_utf8(text[..length].to_vec()).unwrap()
    };
    assert_eq!(next(), "READY=1");
    assert_eq!(next(), format!("MAINPID={}", agent.process().unwrap()));
    assert_eq!(next(), "READY=1");
    assert_ne!(agent.process(), before);
}

#[test]
fn etcd_and_the_other_hosts_see_no_gap() {
    let Some(hosts) = DockerHosts::start(2) else { return };
    for (number, engine) in hosts.engines.iter().enumerate() {
        let subnet = format!("172.30.{}.0/24", number + 1);
        engine.docker(&["network", "create", "--label", "io.berth.network.routed=true", "--subnet", &subnet, "net"]);
    }
    let label = |key: &str, value: &str| format!("com.docker.compose.{key}={value}");
    let labels = ["--label", &label("project", "shop"), "--label", &label("service", "web")];
    hosts.engines[0].run_box("web-1", &[&["--network", "net", "--ip", "172.30.1.11"], &labels[..]].concat());
    let agent = |host: usize| {
        let agent = hosts.agent(host).with("--dns", "127.0.0.1:5353").with("--metadata", "127.0.0.1:8250");
        agent.with("--etcd-lease", "5").without("--admin")
    };
    let _second = agent(1).start();
    let pid = hosts.folder().join("pid");
    let mut first = Agent { started: agent(0).with("--pid-file", &pid).start(), pid };
    let ask = || {
        let name = "web.shop.rancher.internal";
        hosts
            .switch
            .on(1, &["dig", "+short", "+time=2", "+tries=1", "@127.0.0.1", "-p", "5353", name])
            .trim()
            .to_owned()
    };
    eventually("the second host knows the container", LIMIT, || (ask() == "172.30.1.11").then_some(()));
    let history = || -> Vec<(Value, Value)> {
        let range = json!({ "key": base64("/berth/v1/hosts/host-1/"), "range_end": base64("/berth/v1/hosts/host-10") });
        let found = hosts.etcd.ask("kv/range", &range);
        let keys = found["kvs"].as_array().cloned().unwrap_or_default();
        keys.iter().map(|key| (key["key"].clone(), key["create_revision"].clone())).collect()
    };
    let before = history();
    assert!(before.len() > 1, "{before:?}");
    for turn in 0..3 {
        first.restart();
        // Longer than its lease.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(7) {
            assert_eq!(ask(), "172.30.1.11", "in turn {turn}");
            sleep(Duration::from_millis(50));
        }
        // A key that was gone has another revision of its creation.
        assert_eq!(history(), before, "in turn {turn}");
        let ready = hosts.switch.on(0, &["curl", "--silent", "http://127.0.0.1:8112/readyz"]);
        assert!(ready.contains("\"ready\":true"), "{ready}");
    }
}
