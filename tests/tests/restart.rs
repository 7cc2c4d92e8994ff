//! Starting again in place (SIGUSR2): a successor takes the sockets over, and no client notices.
//!
//! Much of it is about time, so that nothing else should run beside. `BERTH_LONG=1` has 20 restarts under the full load.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::battery::is_long;
use tests::cluster::{ClusterFolder, shop_text};
use tests::docker_hosts::DockerHosts;
use tests::etcd::base64;
use tests::load::{ADDRESS, Askers, KeptConnection, NAME, ask_http, ask_tcp, ask_udp, at_rate, wait};
use tests::shared::Exclusive;
use tests::successors::Agent;
use tests::wait::seconds;
use tests::{Launch, Question, binaries, eventually, http, scaled, tell};

/// Longest wait for a restart.
const LIMIT: Duration = Duration::from_secs(40);

/// Longest time until an answer.
const LONGEST_ANSWER: Duration = Duration::from_millis(150);

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

#[test]
fn nothing_is_lost_or_refused_while_an_agent_starts_again() {
    let _processors = Exclusive::processors();
    let load = if is_long() { LONG } else { SHORT };
    let folder = ClusterFolder::new(shop_text());
    let launch = Launch::agent(&folder.file()).with("--state-dir", folder.path("state"));
    let mut agent = Agent::start(&launch, &folder.path("."));
    let [metadata, dns] = ["metadata", "dns"].map(|service| agent.started.address_of(service));
    let admin = agent.started.admin();
    let mut askers = Askers::default();
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
    sleep(Duration::from_millis(500));
    let mut took = Vec::new();
    for _ in 0..load.restarts {
        took.push(agent.restart());
        eventually("ready", LIMIT, || (http::get("/readyz").send(admin).ok()?.status == 200).then_some(()));
        sleep(Duration::from_millis(100));
    }
    for (what, counts) in askers.end() {
        tell(&format!("{} restarts, {what}: {counts}", load.restarts));
        assert!(counts.lost.is_empty() && counts.refused == 0, "{what}: {counts}: {:?}", counts.lost.first());
        assert!(counts.answered > 0, "{what}");
        assert!(counts.longest <= scaled(LONGEST_ANSWER), "{what}: {counts}");
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
    // A link, which leads to other versions later.
    let [executable, first] = ["agent", "agent-1"].map(|name| folder.path(name));
    std::os::unix::fs::symlink(&first, &executable).unwrap();
    let good = binaries::native("agent");
    // By another process: a program that another test starts meanwhile would hold the file open for writing.
    assert!(Command::new("cp").arg(&good).arg(&first).status().unwrap().success());
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
        // The first time, the warning comes after the line.
        eventually("it warns", LIMIT, || {
            let warnings = http::get("/readyz").ask(admin).value();
            (warnings["ready"] == true && warnings["warnings"]["restart"].is_string()).then_some(())
        });
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
fn a_stop_that_reaches_the_process_before_stops_the_service() {
    let folder = ClusterFolder::new(shop_text());
    let mut agent = Agent::start(&Launch::agent(&folder.file()), &folder.path("."));
    let before = agent.process().unwrap();
    agent.signal("USR2");
    let line = eventually("another process serves", LIMIT, || {
        agent.started.lines_with("another process serves now").first().cloned()
    });
    let line: Value = serde_json::from_str(&line).unwrap();
    let successor = u32::try_from(line["process"].as_u64().unwrap()).unwrap();
    // Who stops the service by its file of the process id asks the one before, for as long as that is there.
    assert_eq!(agent.process(), Some(before));
    agent.signal("TERM");
    eventually("both have ended", LIMIT, || (!agent.is_there(before) && !agent.is_there(successor)).then_some(()));
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
    let next = || loop {
        let mut text = [0; 4096];
        let length = manager.recv(&mut text).unwrap();
        let text = String::from_utf8(text[..length].to_vec()).unwrap();
        // tests/kept_sockets.rs is about these.
        if !text.starts_with("FDSTORE=1\n") {
            return text;
        }
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
