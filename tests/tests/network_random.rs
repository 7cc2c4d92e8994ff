//! Random sequences of what happens to a host: other programs change routes, links go down and up, claims come, move and go, and
//! the agent is killed. Its routes are then those that are claimed, and the routes of others are as these programs left them:
//! each of their changes is made in a second namespace too, where there is no agent.
//!
//! `BERTH_SEED=5` runs the sequences of one seed, `BERTH_LONG=1` ten thousand. Linux, as root, with Debian's etcd-server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;
use tests::etcd::Etcd;
use tests::namespace::{self, Switch};
use tests::random::Random;
use tests::{Executable, Launch, Service, battery, claims, eventually, tell};

/// Time after the last event until all routes have to be there.
const QUIET: Duration = Duration::from_secs(1);

/// Longest wait for an agent to read etcd.
const LIMIT: Duration = Duration::from_secs(20);

/// Time in which nothing may change any more.
const STABLE: Duration = Duration::from_millis(40);

/// Hosts of the cluster beside this one.
const PEERS: u8 = 12;

/// Claims that may disappear in one sequence: more at once are held.
const DELETED_MAX: usize = 3;

/// The links that go down and up, each with the network 10.45.N.0/24.
const LANS: [&str; 2] = ["lan1", "lan2"];

struct World {
    // Fields are dropped in this order.
    agent: Option<Service>,
    etcd: Etcd,
    switch: Switch,
    folder: TempDir,
    random: Random,
    /// By the peer, how it is reached; those that are not claimed are missing.
    claimed: BTreeMap<u8, Option<Ipv4Addr>>,
    /// Whether each link is up, and whether it has its address.
    links: [(bool, bool); 2],
    /// The routes of others in the places of ours, by the prefix, and whether each was put behind ours.
    in_place: BTreeMap<String, (String, bool)>,
    deleted: usize,
    /// Whose claims were deleted, until the agent has stored that.
    gone: BTreeSet<u8>,
    /// What has happened in this sequence.
    events: Vec<String>,
}

impl World {
    fn new(seed: u64) -> Option<Self> {
        let switch = Switch::try_new(2)?;
        let etcd = Etcd::start_within(&switch.switch, Ipv4Addr::new(10, 44, 0, 254), 1)?;
        etcd.put("/berth/v1/config/network", r#"{"berth":1,"cidr":"10.42.0.0/16"}"#);
        let world = Self {
            agent: None,
            etcd,
            switch,
            folder: tempfile::tempdir().unwrap(),
            random: Random(seed),
            claimed: BTreeMap::new(),
            links: [(true, true); 2],
            in_place: BTreeMap::new(),
            deleted: 0,
            gone: BTreeSet::new(),
            events: Vec::new(),
        };
        claims::claim(&world.etcd, "here", "10.42.1.0", Some("10.44.0.1"));
        for (number, lan) in LANS.iter().enumerate() {
            world.ip(&format!("link add {lan} type veth peer name {lan}x\nlink set {lan}x up\nlink set {lan} up"));
            world.ip(&address("add", number));
        }
        Some(world)
    }

    fn start(&mut self) {
        let agent = Launch::bare(Executable::Agent).word("up").logged().in_namespace(&self.switch.hosts[0]);
        let agent = agent.with("--source", format!("etcd:{}", self.etcd.urls())).with("--host", "here");
        let agent = agent.with("--public-ip", "10.44.0.1").with("--state-dir", self.folder.path().join("state"));
        self.agent = Some(agent.flag("--network").start());
    }

    /// Commands of ip, one a line, on the host and on its twin.
    fn ip(&self, lines: &str) {
        for host in &self.switch.hosts {
            let mut command = namespace::command(Some(host), "ip");
            command.args(["-force", "-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::null()).stdout(Stdio::null());
            let mut child = command.spawn().unwrap();
            child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
            // Some are refused, on both alike.
            child.wait().unwrap();
        }
    }

    fn happen(&mut self, event: String, lines: &str) {
        self.events.push(event);
        self.ip(lines);
    }

    fn event(&mut self) {
        let peer = 1 + u8::try_from(self.random.below(PEERS.into())).unwrap();
        let lan = self.random.below(LANS.len());
        match self.random.below(12) {
            0..=2 => self.foreign(),
            3 => self.foreign_in_place(peer),
            4 => {
                self.links[lan].0 ^= true;
                let state = if self.links[lan].0 { "up" } else { "down" };
                let line = format!("link set {} {state}", LANS[lan]);
                self.happen(line.clone(), &line);
            }
            5 => {
                self.links[lan].1 ^= true;
                let line = address(if self.links[lan].1 { "add" } else { "delete" }, lan);
                self.happen(line.clone(), &line);
            }
            6 => {
                // A hand deletes a route of ours; on the twin there is none.
                let line = format!("route delete 10.42.{}.0/24 proto 98", 100 + peer);
                self.happen(line.clone(), &line);
            }
            7 => {
                self.wait_until_stored();
                self.events.push("kill".to_owned());
                self.agent = None;
            }
            8 if self.claimed.contains_key(&peer) => {
                self.events.push(format!("release {peer}"));
                self.claimed.remove(&peer);
                claims::release(&self.etcd, &name(peer), subnet(peer));
            }
            // What an agent misses when it starts stays for a while.
            9 if self.deleted < DELETED_MAX && self.agent.is_some() && self.claimed.remove(&peer).is_some() => {
                self.events.push(format!("delete {peer}"));
                self.deleted += 1;
                self.gone.insert(peer);
                claims::delete(&self.etcd, &name(peer), subnet(peer));
            }
            _ => {
                let vias = [
                    Some(Ipv4Addr::new(10, 44, 0, 90 + peer)),
                    Some(Ipv4Addr::new(10, 45, 1, 90 + peer)),
                    Some(Ipv4Addr::new(10, 45, 2, 90 + peer)),
                    Some(Ipv4Addr::new(10, 45, 2, 91 + peer)),
                    // An own one, that of a network, and one that is far away.
                    Some(Ipv4Addr::new(10, 45, 1, 1)),
                    Some(Ipv4Addr::new(10, 45, 1, 0)),
                    Some(Ipv4Addr::new(192, 0, 2, 9)),
                    None,
                ];
                let via = self.random.of(&vias);
                self.events.push(format!("claim {peer} via {via:?}"));
                claims::claim(&self.etcd, &name(peer), subnet(peer), via);
                self.claimed.insert(peer, via);
            }
        }
    }

    /// What an agent had stored before it was killed, and misses when it starts, stays for a while.
    fn wait_until_stored(&mut self) {
        let file = self.folder.path().join("state/etcd.ndjson");
        let (gone, claimed) = (std::mem::take(&mut self.gone), &self.claimed);
        let keys: Vec<_> = gone
            .into_iter()
            .filter(|peer| self.agent.is_some() && !claimed.contains_key(peer))
            .map(|peer| format!("claims/host/{}\"", name(peer)))
            .collect();
        if !keys.is_empty() {
            eventually("the agent has stored what is gone", LIMIT, || {
                let stored = std::fs::read_to_string(&file).unwrap_or_default();
                (!keys.iter().any(|key| stored.contains(key))).then_some(())
            });
        }
    }

    /// Another program changes a route that does not have the place of one of ours.
    fn foreign(&mut self) {
        let third = 100 + self.random.below(usize::from(PEERS) + 4);
        let prefix = format!("10.{}.{third}.0/24", self.random.of(&[42, 42, 77]));
        let (verb, metric) = (self.random.of(&["add", "replace", "append", "delete"]), self.random.of(&[0, 100, 9000]));
        let hops = [
            "via 10.44.0.200",
            "via 10.45.1.200",
            "via 10.45.2.200",
            "dev lan2 scope link",
            "nexthop via 10.44.0.7 nexthop via 10.44.0.8",
        ];
        // What is deleted without a protocol may be ours.
        let (hops, protocol) = (self.random.of(&hops), self.random.of(&["boot", "static", "bird", "99"]));
        let line = format!("route {verb} {prefix} {hops} proto {protocol} metric {metric}");
        self.happen(line.clone(), &line);
    }

    /// Another program puts a route to the place of one of ours, or takes it away.
    fn foreign_in_place(&mut self, peer: u8) {
        let prefix = format!("{}/24", subnet(peer));
        let line = match self.in_place.remove(&prefix) {
            Some((route, is_second)) if is_second || self.random.below(2) == 0 => format!("route delete {route}"),
            before => {
                let next = self.random.of(&["via 10.44.0.200", "via 10.45.1.200", "dev lan2 scope link"]);
                let route = format!("{prefix} {next} proto static metric 4242");
                // While two routes are in one place, it depends on the agent which one the next would replace.
                let is_second = before.is_none() && self.random.below(3) == 0;
                self.in_place.insert(prefix, (route.clone(), is_second));
                format!("route {} {route}", if is_second { "append" } else { "replace" })
            }
        };
        self.happen(line.clone(), &line);
    }

    /// The routes of a namespace, those of ours apart.
    fn routes(&self, host: usize) -> (BTreeSet<String>, Vec<String>) {
        let (mut own, mut foreign) = (BTreeSet::new(), Vec::new());
        let listed = self.switch.on(host, &["ip", "-o", "-4", "route", "show", "table", "all"]);
        for line in listed.lines().map(|line| line.trim().replace(" linkdown", "")) {
            if line.contains(" proto 98 ") {
                own.insert(line.replace(" proto 98", ""));
            } else if !line.contains(" proto kernel ") {
                foreign.push(line);
            }
        }
        (own, foreign)
    }

    /// The routes that the claims ask for, beside these of others.
    fn wanted(&self, foreign: &[String]) -> BTreeSet<String> {
        let is_taken = |subnet: Ipv4Addr| {
            foreign.iter().any(|line| line.contains(&format!("{subnet}/24 ")) && line.contains(" metric 4242"))
        };
        let peers = self.claimed.iter().filter_map(|(peer, via)| Some((subnet(*peer), (*via)?)));
        peers
            .filter_map(|(subnet, via)| {
                let link = match via.octets() {
                    [10, 44, 0, _] => "eth0",
                    [10, 45, _, 0..=1] => return None,
                    [10, 45, lan @ 1..=2, _] => {
                        let number = usize::from(lan) - 1;
                        (self.links[number] == (true, true)).then_some(LANS[number])?
                    }
                    _ => return None,
                };
                (!is_taken(subnet)).then(|| format!("{subnet}/24 via {via} dev {link} metric 4242"))
            })
            .collect()
    }

    /// What is wrong now.
    fn wrong(&self) -> Option<String> {
        let ((own, foreign), (_, expected)) = (self.routes(0), self.routes(1));
        if foreign != expected {
            return Some(format!("routes of others are {foreign:#?}, expected {expected:#?}"));
        }
        let wanted = self.wanted(&expected);
        (own != wanted).then(|| {
            let missing: Vec<_> = wanted.difference(&own).collect();
            format!("missing {missing:#?}, needless {:#?}", own.difference(&wanted).collect::<Vec<_>>())
        })
    }
}

fn name(peer: u8) -> String {
    format!("peer-{peer}")
}

fn subnet(peer: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 42, 100 + peer, 0)
}

fn address(verb: &str, lan: usize) -> String {
    format!("address {verb} 10.45.{}.1/24 dev {}", lan + 1, LANS[lan])
}

#[test]
fn own_routes_are_those_claimed_and_foreign_ones_as_others_left_them_after_any_sequence() {
    let given = std::env::var("BERTH_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()).max(1);
    tell(&format!("BERTH_SEED={seed}"));
    let sequences = if battery::is_long() { 10_000 } else { 60 };
    let Some(mut world) = World::new(seed) else { return };
    let (mut longest, mut happened) = (Duration::ZERO, 0);
    for sequence in 0..sequences {
        (world.deleted, world.events) = (0, Vec::new());
        if world.agent.is_none() {
            world.start();
        }
        for _ in 0..=world.random.below(8) {
            world.event();
            if world.random.below(3) == 0 {
                std::thread::sleep(Duration::from_millis(world.random.below(40).try_into().unwrap()));
            }
        }
        happened += world.events.len();
        if world.agent.is_none() {
            world.start();
            // Until etcd has answered it has only what it stored.
            eventually("the agent is ready", LIMIT, || {
                let page = ["curl", "--silent", "--fail", "http://127.0.0.1:8112/readyz"];
                world.switch.on(0, &page).contains("true").then_some(())
            });
        }
        let quiet = Instant::now();
        let within = tests::scaled(QUIET);
        while let Some(wrong) = world.wrong() {
            let events = world.events.join("\n");
            assert!(quiet.elapsed() < within, "sequence {sequence} of seed {seed}:\n{events}\n{wrong}");
        }
        longest = longest.max(quiet.elapsed());
        std::thread::sleep(STABLE);
        let wrong = world.wrong();
        assert_eq!(wrong, None, "then: sequence {sequence} of seed {seed}:\n{}", world.events.join("\n"));
    }
    tell(&format!("{sequences} sequences of {happened} events; all routes there after {longest:?} at the latest"));
    // With the mark, all of ours can be found and removed.
    world.agent = None;
    let remove = Launch::bare(Executable::Agent).word("network").word("remove").in_namespace(&world.switch.hosts[0]);
    let remove = remove.with("--source", format!("etcd:{}", world.etcd.urls())).with("--host", "here");
    let removed = remove.with("--state-dir", world.folder.path().join("state")).run();
    assert_eq!(removed.code, Some(0), "{}", removed.errors);
    eventually("no route of ours", QUIET, || world.routes(0).0.is_empty().then_some(()));
    assert_eq!(world.routes(0).1, world.routes(1).1);
}
