//! What runs between containers of two hosts loses no packet while agents are killed, claims of others change, and etcd is away,
//! emptied and restored.
//!
//! Linux, as root, with Debian's etcd-server and Python.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Read as _;
use std::net::Ipv4Addr;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tests::etcd::Etcd;
use tests::namespace::{self, Switch};
use tests::{Executable, Launch, Process, Service, battery, claims, eventually, shared, tell};

const LIMIT: Duration = Duration::from_secs(20);

/// Sends numbered packets in turn to the ports of all flows, at a steady pace until its input ends, then says how many of each.
const SENDER: &str = "
import select, socket, struct, sys, time
flows, pace = int(sys.argv[3]), float(sys.argv[4])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], 0))
begun, number = time.monotonic(), 0
while not select.select([sys.stdin], [], [], max(0, begun + number / pace - time.monotonic()))[0]:
    for flow in range(flows):
        s.sendto(struct.pack('!I', number), (sys.argv[2], 7000 + flow))
    number += 1
print(number)
";

/// Takes packets until none comes any more, then says how many there were, how many of them were late, and which are missing.
const RECEIVER: &str = "
import select, socket, struct, sys
flows = []
for flow in range(int(sys.argv[2])):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)
    s.bind((sys.argv[1], 7000 + flow))
    flows.append(s)
print('ready', flush=True)
late, begun, seen, last = 0, False, {s: set() for s in flows}, {s: -1 for s in flows}
while ready := select.select(flows, [], [], 5 if begun else None)[0]:
    begun = True
    for s in ready:
        number, = struct.unpack('!I', s.recv(64))
        late += number < last[s]
        last[s] = max(last[s], number)
        seen[s].add(number)
missing = [number for s in flows for number in set(range(last[s] + 1)) - seen[s]]
print(sum(map(len, seen.values())), late, *sorted(missing)[:5])
";

/// Flows between the containers of two hosts, and packets a second of each.
const FLOWS: (u32, u32) = (2, 100);

/// The same where there is time for everything.
const FLOWS_LONG: (u32, u32) = (20, 500);

/// Hosts that only have claims: enough that a loss of them is held.
const CLAIMED: u8 = 40;

struct World {
    // Fields are dropped in this order.
    agents: Vec<Service>,
    etcd: Etcd,
    switch: Switch,
    folder: TempDir,
}

impl World {
    fn new() -> Option<Self> {
        if !shared::there(&[("python3", "--version")], "python3") {
            return None;
        }
        let switch = Switch::try_new(3)?;
        let etcd = Etcd::start_within(&switch.switch, Ipv4Addr::new(10, 44, 0, 254), 1)?;
        etcd.put("/berth/v1/config/network", r#"{"berth":1,"cidr":"10.42.0.0/16"}"#);
        let mut world = Self { agents: Vec::new(), etcd, switch, folder: tempfile::tempdir().unwrap() };
        for host in 1..=3_u8 {
            claims::claim(&world.etcd, &name(host), subnet(host), Some(format!("10.44.0.{host}")));
            // A container's.
            let address = format!("{}/32", container(host));
            world.switch.on(usize::from(host) - 1, &["ip", "address", "add", &address, "dev", "lo"]);
        }
        for host in 4..=CLAIMED {
            claims::claim(&world.etcd, &name(host), subnet(host), Some(format!("10.44.0.{host}")));
        }
        // Another address through which it is reached.
        world.switch.on(2, &["ip", "address", "add", "10.44.0.203/24", "dev", "eth0"]);
        world.agents = (0..3).map(|host| world.start(host)).collect();
        for host in 0..3 {
            let count = || world.switch.on(host, &["ip", "route", "show", "proto", "98"]).lines().count();
            eventually("all routes", LIMIT, || (count() == usize::from(CLAIMED) - 1).then_some(()));
        }
        Some(world)
    }

    fn start(&self, host: usize) -> Service {
        let agent = Launch::bare(Executable::Agent).word("up").logged().in_namespace(&self.switch.hosts[host]);
        let agent = agent.with("--source", format!("etcd:{}", self.etcd.urls()));
        let agent = agent.with("--host", format!("host-{}", host + 1));
        let agent = agent.with("--public-ip", format!("10.44.0.{}", host + 1));
        let state = self.folder.path().join(format!("state-{host}"));
        agent.with("--state-dir", state).flag("--network").start()
    }

    fn restart(&mut self, host: usize) {
        self.agents[host].kill();
        self.agents[host] = self.start(host);
        self.agents[host].address_of("metadata");
    }

    /// A program that runs on a host.
    fn run(&self, host: usize, program: &str, arguments: &[&str]) -> Process {
        let mut command = namespace::command(Some(&self.switch.hosts[host]), program);
        Process::start(command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()))
    }

    /// Claims of others come, move and go, ten a second.
    fn change(&self, turn: u8) {
        for step in 0..10 {
            let host = 100 + (turn * 3 + step) % 30;
            if step % 3 == 2 {
                claims::release(&self.etcd, &name(host), subnet(host));
            } else {
                claims::claim(
                    &self.etcd,
                    &name(host),
                    subnet(host),
                    Some(format!("10.44.0.{}", 60 + turn * 10 + step)),
                );
            }
            pause(60);
        }
    }
}

fn name(host: u8) -> String {
    format!("host-{host}")
}

fn subnet(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 42, host, 0)
}

fn container(host: u8) -> String {
    Ipv4Addr::new(10, 42, host, 7).to_string()
}

fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// What a program prints until it ends, after its input has ended.
fn rest(mut process: Process) -> String {
    drop(process.stdin.take());
    let mut text = String::new();
    process.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

#[test]
fn no_packet_is_lost_and_no_route_removed_whatever_becomes_of_agents_and_etcd() {
    let Some(mut world) = World::new() else { return };
    let monitors: Vec<_> = (0..3).map(|host| world.run(host, "ip", &["-4", "monitor", "route"])).collect();
    let (flows, pace) = if battery::is_long() { FLOWS_LONG } else { FLOWS };
    let (count, pace) = (flows.to_string(), pace.to_string());
    let mut receiver = world.run(2, "python3", &["-c", RECEIVER, &container(3), &count]);
    // What comes before it listens is lost.
    let mut ready = [0; 6];
    receiver.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    assert_eq!(&ready, b"ready\n");
    let sender = world.run(1, "python3", &["-c", SENDER, &container(2), &container(3), &count, &pace]);
    pause(500);
    let rounds = if battery::is_long() { 10 } else { 1 };
    for round in 0..rounds {
        world.change(round);
        // The receiving host comes to be reached through another address, and back.
        for via in ["10.44.0.203", "10.44.0.3"] {
            claims::claim(&world.etcd, &name(3), subnet(3), Some(via));
            let route = || world.switch.on(1, &["ip", "route", "show", &format!("{}/24", subnet(3))]);
            eventually("the other address", LIMIT, || route().contains(&format!(" via {via} ")).then_some(()));
            pause(100);
        }
        for host in 0..3 {
            world.restart(host);
        }
        // Away, with an agent that starts meanwhile.
        world.etcd.kill_all();
        world.restart(1);
        pause(1500);
        world.etcd.run_all();
        world.etcd.wait_until_it_answers();
        world.etcd.back_up();
        // What is claimed after the backup is lost by going back to it.
        for host in 150..170 {
            claims::claim(&world.etcd, &name(host), subnet(host), Some(format!("10.44.0.{host}")));
        }
        for host in 0..3 {
            let has = |last: &str| world.switch.on(host, &["ip", "route", "show", last]).contains("proto 98");
            eventually("the last claim", LIMIT, || has("10.42.169.0/24").then_some(()));
        }
        // Few that are lost are taken for given up; an agent that starts has to know of all of them.
        for host in 0..3 {
            let state = world.folder.path().join(format!("state-{host}/etcd.ndjson"));
            let stored = || {
                (150..170).all(|host| {
                    let stored = std::fs::read_to_string(&state).unwrap_or_default();
                    stored.contains(&format!("claims/host/{}\"", name(host)))
                })
            };
            eventually("all claims are stored", LIMIT, || stored().then_some(()));
        }
        world.etcd.restore();
        pause(1500);
        world.restart(2);
        world.etcd.wipe();
        pause(1500);
        world.restart(0);
        pause(500);
        world.etcd.restore();
        pause(1000);
        for host in 150..170 {
            claims::claim(&world.etcd, &name(host), subnet(host), Some(format!("10.44.0.{host}")));
        }
    }
    let sent = rest(sender).trim().parse::<u32>().unwrap() * flows;
    let arrived = rest(receiver);
    let removed: Vec<String> = monitors
        .into_iter()
        .flat_map(|monitor| {
            monitor.signal("TERM");
            let printed = rest(monitor);
            let removed = printed.lines().filter(|line| line.starts_with("Deleted"));
            // Those of hosts 100 to 129 were given back.
            let meant = |line: &str| (100..130).any(|host| line.contains(&format!(" {}/24 ", subnet(host))));
            removed.filter(|line| !meant(line)).map(ToOwned::to_owned).collect::<Vec<_>>()
        })
        .collect();
    tell(&format!("{sent} packets sent, {} arrived, {} routes removed", arrived.replace('\n', " "), removed.len()));
    assert_eq!(removed, [""; 0]);
    assert_eq!(arrived, format!("{sent} 0\n"), "sent, late, and the first ones that are missing");
    assert!(sent > 1000, "{sent}");
}
