//! Hosts that check each other's containers: four of them, each with a Docker Engine and an agent, on one switch with three members of
//! etcd. A container, a link, an agent, a host, one of these members and all of them fail in turn, and one host lies.
//!
//! Linux, as root, with Debian's docker.io, etcd-server and busybox-static.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "health_cluster/hostile.rs"]
mod hostile;
#[path = "health_cluster/replaced.rs"]
mod replaced;

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;
use tests::battery;
use tests::docker_hosts::DockerHosts;
use tests::wait::{scaled, timed};
use tests::{Executable, Launch, Service, eventually, tell};

const LIMIT: Duration = Duration::from_secs(40);

/// Hosts in all: the own one of a container and three that check it.
const HOSTS: usize = 4;

/// All of them.
const ALL: [usize; HOSTS] = [0, 1, 2, 3];

/// Time between two checks. Three bad ones in a row make a verdict.
const INTERVAL: Duration = Duration::from_millis(500);

/// How often each way to fail is measured in the long test.
const ROUNDS: usize = 20;

/// How long nothing may be written while nothing changes, in the long test.
const AT_REST: Duration = Duration::from_mins(10);

/// Addresses of the agents on their hosts.
const DNS: &str = "127.0.0.1:5353";
const METADATA: &str = "127.0.0.1:8250";

/// Everything there is. Fields are dropped in this order.
struct World {
    agents: Vec<Option<Service>>,
    hosts: DockerHosts,
}

impl World {
    /// `None`, with a word about it, where there can be none.
    fn new() -> Option<Self> {
        let hosts = DockerHosts::start_with(u8::try_from(HOSTS).unwrap(), None, 3)?;
        for (number, engine) in hosts.engines.iter().enumerate() {
            let subnet = format!("172.30.{}.0/24", number + 1);
            // The switch routes between them, which no engine can know.
            let routed = ["--label", "io.berth.network.routed=true"];
            engine.docker(&[&["network", "create"], &routed[..], &["--subnet", &subnet, "net"]].concat());
            hosts.switch.on(number, &["iptables", "--policy", "FORWARD", "ACCEPT"]);
            hosts.switch.on(number, &["iptables", "--insert", "DOCKER-USER", "--jump", "ACCEPT"]);
            for other in (1..=HOSTS).filter(|other| *other != number + 1) {
                let (subnet, through) = (format!("172.30.{other}.0/24"), format!("10.44.0.{other}"));
                hosts.switch.on(number, &["ip", "route", "add", &subnet, "via", &through]);
            }
        }
        let mut world = Self { agents: (0..HOSTS).map(|_| None).collect(), hosts };
        (0..HOSTS).for_each(|host| world.start_agent(host));
        Some(world)
    }

    fn start_agent(&mut self, host: usize) {
        let agent = self.hosts.agent(host).with("--dns", DNS).with("--metadata", METADATA);
        self.agents[host] = Some(agent.start());
    }

    /// Runs a member of `shop/web` that serves `/health`, with its last byte, and is checked so often.
    fn run(&self, host: usize, name: &str, last: u8, interval: Duration) -> String {
        let address = format!("172.30.{}.{last}", host + 1);
        let interval = interval.as_millis();
        let labels = [
            "com.docker.compose.project=shop".to_owned(),
            "com.docker.compose.service=web".to_owned(),
            "io.berth.health.port=80".to_owned(),
            "io.berth.health.request_line=GET /health HTTP/1.0".to_owned(),
            format!("io.berth.health.interval={interval}ms"),
            // A busy machine is no unhealthy container.
            "io.berth.health.response_timeout=2s".to_owned(),
        ];
        let labels = labels.map(|label| format!("--label={label}"));
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let script = "mkdir -p /www; echo ok > /www/health; exec busybox httpd -f -p 80 -h /www";
        let run = ["run", "--detach", "--name", name, "--network", "net", "--ip", &address];
        self.hosts.engines[host].docker(&[&run[..], &labels, &["box", "/bin/busybox", "sh", "-c", script]].concat());
        address
    }

    fn set_well(&self, host: usize, name: &str, is_well: bool) {
        let act = if is_well { "touch" } else { "rm" };
        self.hosts.engines[host].docker(&["exec", name, "/bin/busybox", act, "/www/health"]);
    }

    /// The addresses that the agent of a host gives for `web.shop`, in order.
    fn ask(&self, host: usize) -> Vec<String> {
        let query = ["dig", "+short", "+time=2", "+tries=1", "@127.0.0.1", "-p", "5353", "web.shop.rancher.internal"];
        let mut lines: Vec<_> = self.hosts.switch.on(host, &query).lines().map(ToOwned::to_owned).collect();
        lines.sort();
        lines
    }

    /// Waits until the agents of these hosts give exactly these addresses.
    fn all_say(&self, hosts: &[usize], expected: &[&str]) -> bool {
        hosts.iter().all(|host| self.ask(*host) == expected)
    }

    /// The time until the agents of these hosts say so.
    fn say(&self, what: &str, hosts: &[usize], expected: &[&str]) -> Duration {
        let ((), took) = timed(what, LIMIT, || self.all_say(hosts, expected).then_some(()));
        tell(&format!("{what}: {took:?}"));
        took
    }

    /// That the agents of these hosts say so for this long.
    fn keep_saying(&self, what: &str, hosts: &[usize], expected: &[&str], time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {
            for host in hosts {
                assert_eq!(self.ask(*host), expected, "{what}: host {} after {:?}", host + 1, begun.elapsed());
            }
            sleep(Duration::from_millis(100));
        }
    }

    /// Measures how long all hosts take to name a container that was started, to leave it out when it fails, and to name it again,
    /// for each way to fail.
    fn measure(&mut self, well: &[&str]) {
        const SLOW: Duration = Duration::from_secs(2);
        for (way, interval) in [("answers badly", INTERVAL), ("answers badly", SLOW), ("answers nothing", SLOW)] {
            let mut times = [(); 3].map(|()| Vec::new());
            for round in 0..ROUNDS {
                let name = format!("late-{round}");
                let address = self.run(2, &name, 31, interval);
                let more = [well, &[&*address]].concat();
                times[0].push(self.say_all("one more is started", &more));
                let is_silent = way == "answers nothing";
                let set_well = |is_well: bool| {
                    if is_silent {
                        let act = if is_well { "--delete" } else { "--insert" };
                        let rule = ["iptables", act, "DOCKER-USER", "--destination", &address, "--jump", "DROP"];
                        self.hosts.switch.on(2, &rule);
                    } else {
                        self.set_well(2, &name, is_well);
                    }
                };
                // At any moment between two checks.
                sleep(interval * u32::try_from(round % 7).unwrap() / 7);
                set_well(false);
                times[1].push(self.say_all(way, well));
                set_well(true);
                times[2].push(self.say_all("it is well again", &more));
                self.hosts.engines[2].docker(&["rm", "--force", &name]);
                self.say_all("it is gone", well);
            }
            for (what, times) in ["named", "left out", "named again"].iter().zip(times) {
                report(&format!("{way}, checked every {interval:?}: {what}"), times);
            }
        }
        let (mut silent, rest) = (Vec::new(), [0, 1, 3]);
        for round in 0..ROUNDS {
            let name = format!("late-{round}");
            let address = self.run(2, &name, 31, SLOW);
            self.say_all("one more is started", &[well, &[&*address]].concat());
            sleep(SLOW * u32::try_from(round % 7).unwrap() / 7);
            self.agents[2].take().unwrap().kill();
            self.set_well(2, &name, false);
            silent.push(self.say("it dies with its agent", &rest, well));
            self.hosts.engines[2].docker(&["rm", "--force", &name]);
            self.start_agent(2);
            self.say_all("the agent is back", well);
        }
        report(&format!("dies with its agent, checked every {SLOW:?}: left out by the others"), silent);
    }

    fn say_all(&self, what: &str, expected: &[&str]) -> Duration {
        self.say(what, &[0, 1, 2, 3], expected)
    }

    /// `agent health web-1 --json` on a host: the one container.
    fn health(&self, host: usize, name: &str) -> serde_json::Value {
        let asked = Launch::bare(Executable::Agent)
            .word("health")
            .word(name)
            .word("--json")
            .in_namespace(&self.hosts.switch.hosts[host])
            .run();
        serde_json::from_str::<serde_json::Value>(&asked.output).map_or_else(|_| json!({}), |list| list[0].clone())
    }

    /// Waits until `dns query` on a host, which says which members of `web.shop` are left out and why, has these parts. More votes may come
    /// after those that leave one out.
    fn says_why(&self, host: usize, parts: &[&str]) {
        let query = Launch::bare(Executable::Dns).word("query").word("web.shop.rancher.internal");
        let query = query.in_namespace(&self.hosts.switch.hosts[host]);
        eventually(&format!("host {} says {parts:?}", host + 1), LIMIT, || {
            let why = query.run().output;
            parts.iter().all(|part| why.contains(part)).then_some(())
        });
    }

    /// The names of the hosts that check a container of a host.
    fn checkers(&self, host: usize, name: &str) -> Vec<String> {
        let checkers = self.health(host, name)["checkers"].clone();
        let names = checkers.as_array().into_iter().flatten().filter_map(|one| one["host"].as_str());
        let mut names: Vec<_> = names.map(ToOwned::to_owned).collect();
        names.sort();
        names
    }

    /// How often etcd has been written to.
    fn revision(&self) -> u64 {
        let found = self.hosts.etcd.ask("kv/range", &json!({"key": tests::etcd::base64("/")}));
        found["header"]["revision"].as_str().unwrap().parse().unwrap()
    }

    /// What hosts have written about others: the keys of votes and overrides with their values.
    fn said(&self) -> Vec<String> {
        let below = |path: &str| {
            let from = tests::etcd::base64(&format!("/berth/v1/{path}/"));
            let end = tests::etcd::base64(&format!("/berth/v1/{path}0"));
            let found = self.hosts.etcd.ask("kv/range", &json!({"key": from, "range_end": end}));
            let pairs = found["kvs"].as_array().cloned().unwrap_or_default();
            pairs.into_iter().map(|pair| ["key", "value"].map(|part| tests::etcd::text(&pair[part])).join(" "))
        };
        below("votes").chain(below("health")).collect()
    }

    /// Waits until nobody has written anything about others.
    fn agrees(&self, what: &str) {
        let begun = Instant::now();
        loop {
            let said = self.said();
            if said.is_empty() {
                return;
            }
            assert!(begun.elapsed() < scaled(LIMIT), "{what}: {said:#?}");
            sleep(Duration::from_millis(20));
        }
    }
}

/// Prints what was measured.
fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    // Of so few the greatest is the 99th percentile.
    let p99 = times[(times.len() * 99 / 100).min(times.len() - 1)];
    tell(&format!("{what}: p50 {:?}, p99 {p99:?} of {}", times[times.len() / 2], times.len()));
}

/// Which start of a container votes have to be about, as its host says.
fn start(world: &World, owner: &str, uuid: &str) -> i64 {
    let key = tests::etcd::base64(&format!("/berth/v1/hosts/{owner}/containers/{uuid}"));
    let found = world.hosts.etcd.ask("kv/range", &json!({ "key": key }));
    let container: serde_json::Value = serde_json::from_str(&tests::etcd::text(&found["kvs"][0]["value"])).unwrap();
    container["started"].as_i64().unwrap()
}

/// A host that lies, in its own keys: it is one of three. What it says in the name of no checker counts nothing.
fn a_host_lies(world: &World, both: &[&str]) {
    let uuid = world.health(0, "web-1")["uuid"].as_str().unwrap().to_owned();
    let start = start(world, "host-1", &uuid);
    let lies = ["votes/host-2", "health/host-2", "health/host-1", "health/stranger", "health/other"];
    let value = json!({"berth": 1, "opinion": "down", "health_state": "unhealthy", "start": start}).to_string();
    let key = |lie: &str| format!("/berth/v1/{lie}/host-1/{uuid}");
    for lie in lies {
        world.hosts.etcd.put(&key(lie), &value);
    }
    world.keep_saying("a host lies", &ALL, both, Duration::from_secs(4));
    for lie in lies {
        world.hosts.etcd.delete(&key(lie));
    }
}

/// A checker stands still, and goes on: it was late itself, and its votes change nothing.
fn a_checker_stands_still(world: &World, both: &[&str]) {
    let checker = world.agents[3].as_ref().unwrap();
    checker.signal("STOP");
    let time = if battery::is_long() { Duration::from_secs(30) } else { Duration::from_secs(3) };
    world.keep_saying("a checker stands still", &[0, 1, 2], both, time);
    checker.signal("CONT");
    world.keep_saying("it goes on", &[0, 1, 2], both, Duration::from_secs(2));
    world.say("it answers again", &ALL, both);
}

/// A member of etcd dies, then all of them, and then it takes no writes.
fn etcd_fails(world: &mut World, both: &[&str]) {
    let second = [both[1]];
    // The leader of etcd's members dies: the others go on, and a container that fails meanwhile is left out.
    let leader = world.hosts.etcd.leader();
    world.hosts.etcd.kill(leader);
    world.keep_saying("a member of etcd dies", &ALL, both, Duration::from_secs(3));
    world.set_well(0, "web-1", false);
    let took = world.say("then a container answers badly: left out by all hosts", &ALL, &second);
    assert!(took < scaled(Duration::from_secs(2)), "{took:?}");
    world.hosts.etcd.run(leader);
    world.set_well(0, "web-1", true);
    world.say("it is well again, and the member is back", &ALL, both);

    // etcd is away: what is known of others stays, and each sees its own.
    world.hosts.etcd.kill_all();
    world.set_well(0, "web-1", false);
    world.say("etcd is away: its own host leaves it out", &[0], &second);
    world.keep_saying("etcd is away: the others", &ALL[1..], both, Duration::from_secs(3));
    world.hosts.etcd.run_all();
    world.say("etcd is back: all leave it out", &ALL, &second);
    world.set_well(0, "web-1", true);
    world.say("all is well", &ALL, both);

    // etcd answers and takes no writes, as when its database is full: no host can vote.
    let alarm = |action: &str| {
        world.hosts.etcd.ask("maintenance/alarm", &json!({"action": action, "alarm": "NOSPACE"}));
    };
    alarm("ACTIVATE");
    world.set_well(0, "web-1", false);
    world.say("etcd takes no writes: its own host leaves it out", &[0], &second);
    alarm("DEACTIVATE");
    world.say("etcd takes writes: all leave it out", &ALL, &second);
    world.set_well(0, "web-1", true);
    world.say("all is well again", &ALL, both);
}

#[test]
fn hosts_agree_on_who_is_well() {
    let Some(mut world) = World::new() else { return };
    let web = [world.run(0, "web-1", 11, INTERVAL), world.run(1, "web-2", 12, INTERVAL)];
    let both = [&*web[0], &*web[1]];
    let second = [both[1]];
    let all = ALL;
    world.say("both are well for all hosts", &all, &both);
    for (host, name, others) in
        [(0, "web-1", ["host-2", "host-3", "host-4"]), (1, "web-2", ["host-1", "host-3", "host-4"])]
    {
        eventually("three others check it", LIMIT, || (world.checkers(host, name) == others).then_some(()));
    }
    world.agrees("no vote is left");

    // Nothing is written while nothing changes.
    let before = world.revision();
    sleep(if battery::is_long() { AT_REST } else { Duration::from_secs(3) });
    assert_eq!(world.revision(), before);

    // A container fails, and is well again.
    world.set_well(0, "web-1", false);
    let took = world.say("a container answers badly: left out by all hosts", &all, &second);
    assert!(took < scaled(Duration::from_secs(2)), "{took:?}");
    // All hosts can say why.
    for host in &all {
        world.says_why(
            *host,
            &["left out   web-1 on host-1: it is unhealthy: ", " of 3 hosts: ", "status 404 (host-", " (for "],
        );
    }
    world.agrees("what is agreed needs no vote");
    // Three votes, the container, and three votes withdrawn.
    assert!(world.revision() <= before + 7, "{} writes", world.revision() - before);
    world.set_well(0, "web-1", true);
    world.say("it is well again: named by all hosts", &all, &both);

    if battery::is_long() {
        world.measure(&both);
    }

    // One host does not reach it: the others do.
    let block = |act: &str| {
        world.hosts.switch.on(1, &["iptables", act, "OUTPUT", "--destination", both[0], "--jump", "DROP"]);
    };
    block("--insert");
    eventually("one of three says that it is down", LIMIT, || {
        let checkers = world.health(0, "web-1")["checkers"].clone();
        let of = |host: &str| {
            checkers.as_array()?.iter().find(|one| one["host"] == host)?["opinion"].as_str().map(str::to_owned)
        };
        (of("host-2")? == "down" && of("host-3")? == "agrees").then_some(())
    });
    world.keep_saying("one link fails", &all, &both, Duration::from_secs(4));
    block("--delete");
    world.agrees("the vote is withdrawn");

    a_host_lies(&world, &both);
    hostile::a_host_attacks(&world, &both);
    a_checker_stands_still(&world, &both);

    // Its agent dies, and the container is well: nothing happens before the lease of the host ends.
    world.agents[0].take().unwrap().kill();
    world.keep_saying("an agent dies", &all[1..], &both, Duration::from_secs(6));
    world.start_agent(0);
    world.say("it is back", &all, &both);

    // Its agent dies, and the container with it: the others see it long before the lease of 15 s and its grace of 5 s.
    world.agents[0].take().unwrap().kill();
    world.set_well(0, "web-1", false);
    let took = world.say("agent and container die: left out by the other hosts", &all[1..], &second);
    assert!(took < scaled(Duration::from_secs(9)), "{took:?}");
    world.says_why(2, &["status 404 (host-", "; its own host does not answer"]);
    world.set_well(0, "web-1", true);
    world.say("the container is well again: named by the other hosts", &all[1..], &both);
    world.start_agent(0);
    world.say("the agent is back", &all, &both);

    // A host is cut off.
    world.hosts.switch.plug(0, false);
    let took = world.say("a host is cut off: left out by the other hosts", &all[1..], &second);
    assert!(took < scaled(Duration::from_secs(9)), "{took:?}");
    // It sees its own container by its own checks, and the others as it knew them.
    world.keep_saying("the host that is cut off", &[0], &both, Duration::from_secs(2));
    world.set_well(0, "web-1", false);
    world.say("alone, it sees its own container fail", &[0], &second);
    world.set_well(0, "web-1", true);
    world.say("and come back", &[0], &both);
    world.hosts.switch.plug(0, true);
    // While they stand, these votes count for the host too, which has not seen them before.
    world.agrees("the others withdraw what they said while it was away");
    world.say("the host is back", &all, &both);

    etcd_fails(&mut world, &both);

    // An engine dies, and its containers live on: they are asked as before. Then one of them dies, which no engine says.
    let process = world.hosts.engines[0].docker(&["inspect", "--format", "{{.State.Pid}}", "web-1"]);
    world.hosts.engines[0].kill();
    world.keep_saying("an engine dies", &all, &both, Duration::from_secs(3));
    world.hosts.switch.on(0, &["kill", "-KILL", process.trim()]);
    world.say("then its container: left out by all hosts", &all, &second);
    world.hosts.engines[0].restart();
    world.hosts.engines[0].docker(&["start", "web-1"]);
    world.say("both are back", &all, &both);
}
