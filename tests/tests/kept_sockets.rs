//! Sockets that the manager of services keeps: a process that is killed is followed by one that answers what was asked meanwhile.
//!
//! The manager is `tests/fixtures/service_manager.py` where much is measured, since systemd needs root for namespaces of its own, and systemd in
//! one test. `BERTH_LONG=1` has 20 kills under the full load.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use tests::battery::is_long;
use tests::cluster::{ClusterFolder, shop_text};
use tests::load::{
    ADDRESS, Askers, Counts, KeptConnection, NAME, again, ask_http, ask_tcp, ask_udp, at_rate, wait_or_again,
};
use tests::namespace::Pair;
use tests::shared::{Exclusive, python, there};
use tests::successors::Agent;
use tests::wait::{millis, seconds};
use tests::{Launch, Process, Question, binaries, eventually, fixture, http, ports, repository, skip, tell};

/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(40);

/// Datagrams that a thread of `dns` takes at once.
const BATCH: usize = 64;

/// Threads of each other kind of client.
const THREADS: usize = 4;

/// Kills, questions by datagram and by connection a second, of requests as many on new connections and on kept ones, and requests that
/// wait for a change.
const LONG: (usize, u32, u32, usize) = (20, 5_000, 500, 1_000);
const SHORT: (usize, u32, u32, usize) = (3, 1_000, 50, 50);

/// The launch below a manager that waits so long, as `RestartSec=` says, before it starts the program again.
fn managed(folder: &ClusterFolder, launch: &Launch, pause: &str) -> Option<Launch> {
    let python = python()?;
    let (manager, at) = (fixture("service_manager.py"), folder.path("."));
    let starter = [python.get_program(), manager.as_os_str(), at.as_os_str(), pause.as_ref()];
    let starter: Vec<_> = starter.iter().map(|word| word.to_str().unwrap()).collect();
    Some(launch.clone().through(&starter))
}

fn start(folder: &ClusterFolder, launch: &Launch, pause: &str) -> Option<Agent> {
    Some(Agent::start(&managed(folder, launch, pause)?, &folder.path(".")))
}

/// Kills the process, and waits for the next one.
fn kill(agent: &mut Agent) {
    let before = agent.process();
    agent.signal("KILL");
    eventually("another process", LIMIT, || agent.process().filter(|process| Some(*process) != before));
}

/// Questions of a client that asks a second time after a second, as those of systems do, and not a third time.
fn ask_twice(to: SocketAddr, end: &AtomicBool) -> Counts {
    let mut counts = Counts::default();
    let mut answer = [0; 1500];
    while !end.load(Ordering::Relaxed) {
        // A port of its own, as a resolver has.
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(seconds(1))).unwrap();
        let (begun, question) = (Instant::now(), Question::a(NAME).message());
        let outcome = again(&mut counts, || {
            socket.send(&question)?;
            socket.recv(&mut answer).map(drop)
        });
        counts.count(begun, outcome);
        sleep(millis(2));
    }
    counts
}

#[test]
fn a_process_that_is_killed_loses_no_more_than_it_had_in_hand() {
    let _processors = Exclusive::processors();
    let (kills, udp, tcp, waiting) = if is_long() { LONG } else { SHORT };
    let folder = ClusterFolder::new(shop_text());
    let launch = Launch::agent(&folder.file()).with("--state-dir", folder.path("state"));
    let Some(mut agent) = start(&folder, &launch, "100") else { return };
    let [metadata, dns] = ["metadata", "dns"].map(|service| agent.started.address_of(service));
    let admin = agent.started.admin();
    let mut askers = Askers::default();
    askers.add("UDP, asked once", move |end| ask_udp(dns, udp, end));
    // What was accepted ends with the process: its client asks again.
    let twice = move |ask: fn(SocketAddr) -> io::Result<()>, to: SocketAddr, end: &AtomicBool| {
        at_rate(tcp / 4, end, |counts| {
            let begun = Instant::now();
            let outcome = again(counts, || ask(to));
            counts.count(begun, outcome);
        })
    };
    for _ in 0..THREADS {
        askers.add("UDP, asked twice", move |end| ask_twice(dns, end));
        askers.add("TCP", move |end| twice(ask_tcp, dns, end));
        askers.add("HTTP, new connections", move |end| twice(ask_http, metadata, end));
        askers.add("HTTP, kept connections", move |end| {
            let mut connection = KeptConnection::default();
            at_rate(tcp / 4, end, |counts| connection.ask(metadata, counts))
        });
    }
    for _ in 0..waiting {
        askers.add("waiting requests", move |end| wait_or_again(metadata, end));
    }
    sleep(Duration::from_millis(500));
    for _ in 0..kills {
        kill(&mut agent);
        eventually("ready", LIMIT, || (http::get("/readyz").send(admin).ok()?.status == 200).then_some(()));
        sleep(Duration::from_millis(200));
    }
    let threads = thread::available_parallelism().unwrap().get();
    for (what, counts) in askers.end() {
        tell(&format!("{kills} kills, {what}: {counts}"));
        // One who asks again is answered, and has to do so once for each kill.
        let (in_hand, clients) = match what {
            "UDP, asked once" => (kills * threads * BATCH, 0),
            "waiting requests" => (0, waiting),
            _ => (0, THREADS),
        };
        assert!(counts.lost.len() <= in_hand, "{what}: {counts}: {:?}", counts.lost.first());
        assert!(counts.repeated <= kills * clients, "{what}: {counts}");
        assert!(counts.refused == 0 && counts.answered > 0, "{what}: {counts}");
    }
}

#[test]
fn what_is_not_served_any_more_is_given_up_and_what_is_stays() {
    let folder = ClusterFolder::new(shop_text());
    // The options of the next process are in the environment of the manager's program: here, a file.
    let arguments = folder.path("arguments");
    let script = folder.path("agent");
    let text = "#!/bin/sh\nexec \"$REAL\" \"$@\" $(cat \"$ARGUMENTS\")\n";
    std::fs::write(&script, text).unwrap();
    assert!(Command::new("chmod").arg("755").arg(&script).status().unwrap().success());
    std::fs::write(&arguments, "--metadata 127.0.0.1:0").unwrap();
    let launch = Launch::agent(&folder.file()).without("--metadata").executable(&script);
    let launch = launch.env("REAL", binaries::native("agent")).env("ARGUMENTS", &arguments);
    let Some(mut agent) = start(&folder, &launch, "100") else { return };
    let [metadata, dns] = ["metadata", "dns"].map(|service| agent.started.address_of(service));
    ask_http(metadata).unwrap();
    // With another address.
    std::fs::write(&arguments, "--metadata 127.0.0.2:0").unwrap();
    kill(&mut agent);
    eventually("it answers on the sockets from before", LIMIT, || {
        (Question::a(NAME).within(seconds(2)).ask(dns).line() == ADDRESS).then_some(())
    });
    eventually("nothing listens where nothing is served", LIMIT, || {
        let refused = ask_http(metadata).unwrap_err().kind() == io::ErrorKind::ConnectionRefused;
        refused.then_some(())
    });
    // The manager writes down what it has read.
    eventually("the manager knows", LIMIT, || {
        let told = std::fs::read_to_string(folder.path("told")).unwrap();
        let parts = ["FDSTOREREMOVE=1 FDNAME=metadata", "FDSTORE=1 FDNAME=dns-udp FDPOLL=0"];
        parts.iter().all(|part| told.contains(part)).then_some(())
    });
    eventually("it says so once", LIMIT, || {
        (agent.started.lines_with("closed: it was handed over").len() == 1).then_some(())
    });
    assert!(Path::new(&folder.path("pid")).exists());
}

/// Opens a socket as systemd does for a unit of sockets, and becomes the program after it.
const BLOCKING: &str = "
import os, socket, sys
open_socket = socket.create_server(('127.0.0.1', int(sys.argv[1])))
os.dup2(open_socket.fileno(), 3, inheritable=True)
os.environ.update(LISTEN_FDS='1', LISTEN_FDNAMES='metadata', LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
";

#[test]
fn a_socket_that_blocks_is_served_as_any_other() {
    let Some(python) = python() else { return };
    let folder = ClusterFolder::new(shop_text());
    let port = ports::free();
    let launch = Launch::agent(&folder.file()).without("--metadata").with("--metadata", format!("127.0.0.1:{port}"));
    let words = [python.get_program().to_str().unwrap(), "-c", BLOCKING, &port.to_string()].map(str::to_owned);
    let mut agent = launch.through(&words.each_ref().map(String::as_str)).start();
    // Another one cannot listen there.
    assert_eq!(agent.address_of("metadata").port(), port);
    ask_http(([127, 0, 0, 1], port).into()).unwrap();
}

#[test]
fn what_leads_to_the_port_behind_a_well_known_one_outlives_the_process_too() {
    if !there(&[("nft", "--version"), ("dig", "-v")], "nftables bind9-dnsutils") {
        return;
    }
    let Some(pair) = Pair::try_new("10.42.0.7") else { return };
    let folder = ClusterFolder::new(shop_text());
    let launch = Launch::agent(&folder.file()).with("--metadata", "169.254.169.250:80").with("--ui", "none");
    let launch = launch.with("--dns", "169.254.169.251:53").flag("--add-address").with("--interface", "cable0");
    let launch = launch.with("--state-dir", folder.path("state")).in_namespace(&pair.host);
    // Long enough to be asked meanwhile.
    let pid = folder.path("pid");
    let Some(launch) = managed(&folder, &launch.with("--pid-file", &pid), "500") else { return };
    let mut agent = Agent { started: launch.start(), pid };
    agent.started.address_of("scheduler");
    let tables = || pair.on_host(&["nft", "list", "tables"]);
    let ask = || {
        let dig = ["dig", "+short", "+tries=1", "+time=9", "@169.254.169.251", "db.data.rancher.internal"];
        pair.in_container(&dig).trim().to_owned()
    };
    // It listens before it has read its file.
    eventually("it answers", LIMIT, || (ask() == "127.42.2.21").then_some(()));
    eventually("each table is there", LIMIT, || (tables().lines().count() == 2).then_some(()));
    for turn in 0..3 {
        agent.signal("KILL");
        assert_eq!(ask(), "127.42.2.21", "in turn {turn}");
        eventually("each table is there once", LIMIT, || (tables().lines().count() == 2).then_some(()));
    }
}

/// What of the packages' unit is about the process's life, and not about what it may do.
const OF_THE_UNIT: [&str; 6] =
    ["Type=", "NotifyAccess=", "Restart=", "RestartSec=", "FileDescriptorStoreMax=", "WatchdogSec="];

#[test]
fn systemd_itself_keeps_the_sockets_by_the_unit_of_the_packages() {
    const SYSTEMD: &str = "/usr/lib/systemd/systemd";
    const NAMESPACES: [&str; 8] =
        ["--fork", "--kill-child", "--pid", "--mount", "--mount-proc", "--uts", "--ipc", "--cgroup"];
    let may = Command::new("unshare").args(NAMESPACES).arg("true").output().is_ok_and(|ended| ended.status.success());
    if !may || !Path::new(SYSTEMD).exists() {
        return skip("namespaces (root), unshare and systemd are needed (Debian: util-linux systemd)");
    }
    let folder = ClusterFolder::new(shop_text());
    let ports = ports::some(4);
    let [metadata, dns, scheduler, admin] = [0, 1, 2, 3].map(|at: usize| SocketAddr::from(([127, 0, 0, 1], ports[at])));
    let state = folder.path("state").display().to_string();
    let line = format!(
        "{} up {} --metadata {metadata} --dns {dns} --scheduler {scheduler} --admin {admin} --ui none --state-dir {state}",
        binaries::native("agent").display(),
        folder.file().display()
    );
    let unit = std::fs::read_to_string(repository().join("images/linux/berth.service")).unwrap();
    let ours = unit.lines().filter(|line| OF_THE_UNIT.iter().any(|key| line.starts_with(key))).collect::<Vec<_>>();
    assert_eq!(ours.len(), OF_THE_UNIT.len(), "{ours:?}");
    let units = folder.path("units");
    std::fs::create_dir(&units).unwrap();
    for target in ["shutdown", "exit", "poweroff", "reboot", "halt"] {
        std::fs::write(units.join(format!("{target}.target")), "[Unit]\nDefaultDependencies=no\n").unwrap();
    }
    std::fs::write(units.join("test.target"), "[Unit]\nDefaultDependencies=no\nWants=berth.service\n").unwrap();
    let log = folder.path("log");
    let service = format!(
        "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart={line}\n{}\nStandardOutput=null\nStandardError=file:{}\n",
        ours.join("\n"),
        log.display()
    );
    std::fs::write(units.join("berth.service"), service).unwrap();
    let script = format!(
        "mount -t tmpfs tmpfs /run && container=test SYSTEMD_UNIT_PATH={} exec {SYSTEMD} --system --unit=test.target",
        units.display()
    );
    let mut command = Command::new("unshare");
    command.args(NAMESPACES).args(["sh", "-c", &script]).stdout(Stdio::null()).stderr(Stdio::null());
    let _systemd = Process::start(&mut command);
    // Its number out here.
    let process = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        numbers.find(|number| {
            let line = std::fs::read_to_string(format!("/proc/{number}/cmdline")).unwrap_or_default();
            line.contains(&format!("\0--state-dir\0{state}\0"))
        })
    };
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let ready = || http::get("/readyz").send(admin).is_ok_and(|response| response.status == 200);
    eventually("systemd has started it", LIMIT, || ready().then_some(()));
    let mut longest = Duration::ZERO;
    for turn in 0..3 {
        let before = process().unwrap();
        assert!(Command::new("kill").args(["-KILL", &before.to_string()]).status().unwrap().success());
        // With all its threads: while one is on its way out, it may still take a question with it.
        eventually("it is gone", LIMIT, || (!Path::new(&format!("/proc/{before}")).exists()).then_some(()));
        // Nothing asks a second time.
        let begun = Instant::now();
        assert_eq!(Question::a(NAME).within(seconds(10)).ask(dns).line(), ADDRESS, "turn {turn}: {}", said());
        longest = longest.max(begun.elapsed());
        ask_tcp(dns).unwrap();
        ask_http(metadata).unwrap();
        eventually("ready again", LIMIT, || ready().then_some(()));
        assert_ne!(process(), Some(before));
    }
    tell(&format!("3 kills under systemd: longest answer {longest:?}"));
    assert!(said().contains("the sockets that the manager of services has kept"), "{}", said());
}
