//! Three hosts, each with a Docker Engine and an agent, on one switch with one etcd: containers come and go, cables are
//! pulled and everything is killed in turn, under constant questions.
//!
//! Linux, as root, with Debian's docker.io, etcd-server and busybox-static.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tests::docker_hosts::DockerHosts;
use tests::namespace;
use tests::{Executable, Launch, Process, Service, eventually};

const LIMIT: Duration = Duration::from_secs(40);

/// The lease of a host, in seconds: short, so that the test is.
const LEASE: &str = "5";

/// Longer than the lease of a host.
const OUTAGE: Duration = Duration::from_secs(9);

/// Addresses of the agents on their hosts.
const DNS: &str = "127.0.0.1:5353";
const METADATA: &str = "127.0.0.1:8250";

/// Asks a DNS server for names again and again, until its input ends; tells how often, and each wrong answer.
/// Arguments: port, then `NAME=ADDRESS,ADDRESS...`: at least one of them, and nothing else.
const ASKER: &str = r#"
import random, select, socket, struct, sys, time
port, rules = int(sys.argv[1]), dict((n, set(a.split(","))) for n, a in (r.split("=") for r in sys.argv[2:]))
asked = wrong = 0
while not select.select([sys.stdin], [], [], 0.03)[0]:
    for name, allowed in rules.items():
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); number = random.randrange(65536)
        labels = b"".join(bytes([len(l)]) + l.encode() for l in name.split("."))
        s.sendto(struct.pack(">HHHHHH", number, 256, 1, 0, 0, 0) + labels + b"\0\0\1\0\1", ("127.0.0.1", port)); asked += 1
        try: reply = s.recv(4096)
        except OSError as error: reply = b""
        s.close()
        count = struct.unpack(">H", reply[6:8])[0] if len(reply) > 12 else 0
        at, got = 12 + len(labels) + 5, set()
        for _ in range(count): got.add(socket.inet_ntoa(reply[at + 12:at + 16])); at += 16
        if not got or not got <= allowed or reply[3] & 15: wrong += 1; print("wrong", round(time.time(), 1), name, got, reply[:12].hex())
print("asked", asked, "wrong", wrong)
"#;

/// A process that asks all the time.
struct Asker(Process, PathBuf);

impl Asker {
    fn start(namespace: &str, folder: &Path, name: &str, rules: &[&str]) -> Self {
        let path = folder.join(name);
        let mut command = namespace::command(Some(namespace), "python3");
        command.args(["-uc", ASKER, "5353"]).args(rules);
        Self(Process::start(command.stdin(Stdio::piped()).stdout(File::create(&path).unwrap())), path)
    }

    /// Ends it; not one answer may have been wrong.
    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.ended_within(LIMIT).is_some_and(|status| status.success()));
        let said = std::fs::read_to_string(&self.1).unwrap();
        let last = said.lines().last().unwrap_or_default();
        assert!(last.starts_with("asked ") && last.ends_with("wrong 0"), "{}:\n{said}", self.1.display());
        let asked: u32 = last.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(asked > 500, "{last}");
        tests::tell(&format!("{}: {last}", self.1.file_name().unwrap().display()));
    }
}

/// Everything there is. Fields are dropped in this order.
struct World {
    agents: Vec<Option<Service>>,
    hosts: DockerHosts,
}

impl World {
    /// `None`, with a word about it, where there can be none.
    fn new() -> Option<Self> {
        let hosts = DockerHosts::start(3)?;
        for (number, engine) in hosts.engines.iter().enumerate() {
            let subnet = format!("172.30.{}.0/24", number + 1);
            // The switch routes between them, which no engine can know.
            let routed = ["--label", "io.berth.network.routed=true"];
            engine.docker(&[&["network", "create"], &routed[..], &["--subnet", &subnet, "net"]].concat());
        }
        let mut world = Self { agents: vec![None, None, None], hosts };
        (0..3).for_each(|host| world.start_agent(host));
        Some(world)
    }

    fn start_agent(&mut self, host: usize) {
        let agent = self.hosts.agent(host).with("--etcd-lease", LEASE).with("--dns", DNS).with("--metadata", METADATA);
        self.agents[host] = Some(agent.start());
    }

    /// Runs a container of a service with its last byte.
    fn run(&self, host: usize, name: &str, stack: &str, service: &str, last: u8) -> String {
        let address = format!("172.30.{}.{last}", host + 1);
        let label = |key: &str, value: &str| format!("com.docker.compose.{key}={value}");
        let (project, service) = (label("project", stack), label("service", service));
        let labels = ["--label", &project, "--label", &service];
        self.hosts.engines[host].run_box(name, &[&["--network", "net", "--ip", &address], &labels[..]].concat());
        address
    }

    /// The addresses that the agent of a host gives for a name, in order.
    fn ask(&self, host: usize, name: &str) -> Vec<String> {
        let query = format!("{name}.rancher.internal");
        let text =
            self.hosts.switch.on(host, &["dig", "+short", "+time=2", "+tries=1", "@127.0.0.1", "-p", "5353", &query]);
        let mut lines: Vec<_> = text.lines().map(ToOwned::to_owned).collect();
        lines.sort();
        lines
    }

    fn eventually_says(&self, hosts: &[usize], name: &str, expected: &[&str]) {
        for host in hosts {
            eventually(&format!("host {} says {expected:?} for {name}", host + 1), LIMIT, || {
                (self.ask(*host, name) == expected).then_some(())
            });
        }
    }

    fn ready(&self, host: usize) -> String {
        self.hosts.switch.on(host, &["curl", "--silent", "http://127.0.0.1:8112/readyz"])
    }
}

#[test]
fn hosts_find_each_other_whatever_becomes_of_the_rest() {
    let Some(mut world) = World::new() else { return };
    let web = [world.run(0, "web-1", "shop", "web", 11), world.run(1, "web-2", "shop", "web", 12)];
    let web = [&*web[0], &*web[1]];
    let database = world.run(0, "db-1", "data", "db", 21);
    let cache = world.run(2, "cache-1", "shop", "cache", 31);
    let all = [0, 1, 2];
    world.eventually_says(&all, "web.shop", &web);
    world.eventually_says(&all, "db.data", &[&database]);
    world.eventually_says(&all, "cache.shop", &[&cache]);
    // A container is known by its address wherever it asks, and knows its service.
    let own = "http://127.0.0.1:8250/latest/services/web/containers/";
    let has = |name: &str| world.hosts.switch.on(2, &["curl", "--silent", own]).contains(name);
    eventually("metadata says so too", LIMIT, || (has("web-1") && has("web-2")).then_some(()));

    let both = format!("web.shop.rancher.internal={},{}", web[0], web[1]);
    let one = format!("db.data.rancher.internal={database}");
    let kept = format!("cache.shop.rancher.internal={cache}");
    let asker = |host: usize, name: &str, rules: &[&str]| {
        Asker::start(&world.hosts.switch.hosts[host], world.hosts.folder(), name, rules)
    };
    let askers = [asker(0, "asked of host 1", &[&both, &one]), asker(2, "asked of host 3", &[&both, &one, &kept])];

    // A host that is cut off leaves the answers of the others after its lease, not before, and keeps its own view.
    let cut = Instant::now();
    world.hosts.switch.plug(2, false);
    while cut.elapsed() < Duration::from_secs(3) {
        assert_eq!(world.ask(0, "cache.shop"), [&*cache], "{:?} after the cable was pulled", cut.elapsed());
        sleep(Duration::from_millis(200));
    }
    world.eventually_says(&[0, 1], "cache.shop", &[]);
    let late = world.run(2, "late-1", "shop", "late", 32);
    world.eventually_says(&[2], "late.shop", &[&late]);
    assert_eq!(world.ask(0, "late.shop"), [""; 0]);
    world.hosts.switch.plug(2, true);
    world.eventually_says(&[0, 1], "cache.shop", &[&cache]);
    world.eventually_says(&[0, 1], "late.shop", &[&late]);

    // An agent that is killed: its host stays for the lease, and who comes back in time was never away.
    let mut agent = world.agents[1].take().unwrap();
    agent.kill();
    world.start_agent(1);
    let back = Instant::now();
    while back.elapsed() < OUTAGE {
        assert_eq!(world.ask(0, "web.shop"), web, "{:?} after the agent came back", back.elapsed());
        sleep(Duration::from_millis(200));
    }
    let mut agent = world.agents[1].take().unwrap();
    agent.kill();
    world.eventually_says(&[0, 2], "web.shop", &web[..1]);
    world.start_agent(1);
    world.eventually_says(&all, "web.shop", &web);

    // An engine that is killed: its agent says so, and goes on telling what it knew.
    world.hosts.engines[1].kill();
    eventually("the agent misses its engine", LIMIT, || world.ready(1).contains("engine").then_some(()));
    assert_eq!(world.ask(0, "web.shop"), web);
    world.hosts.engines[1].restart();
    eventually("the agent has its engine back", LIMIT, || world.ready(1).contains("\"ready\":true").then_some(()));
    world.hosts.engines[1].docker(&["start", "web-2"]);
    world.eventually_says(&all, "web.shop", &web);

    // etcd away for longer than any lease: nobody goes, and what happens on a host is known there at once.
    world.hosts.etcd.kill_all();
    let alone = world.run(0, "alone-1", "shop", "alone", 13);
    world.eventually_says(&[0], "alone.shop", &[&alone]);
    sleep(OUTAGE);
    for host in all {
        assert_eq!(world.ask(host, "web.shop"), web, "host {}", host + 1);
    }
    assert_eq!(world.ask(2, "alone.shop"), [""; 0]);
    world.hosts.etcd.run_all();
    world.eventually_says(&all, "alone.shop", &[&alone]);
    world.eventually_says(&all, "web.shop", &web);
    // What went meanwhile goes now.
    world.hosts.engines[0].docker(&["rm", "--force", "alone-1"]);
    world.eventually_says(&all, "alone.shop", &[]);

    for asker in askers {
        asker.end();
    }

    // A host that leaves for good goes at once, long before its lease; while containers run there it has to be meant.
    let leave = |words: &[&str]| {
        let leave = Launch::bare(Executable::Agent).word("leave").in_namespace(&world.hosts.switch.hosts[2]);
        words.iter().fold(leave, Launch::word).run()
    };
    // Who cannot read the token of the agent, such as a process of another user or one in a container on this host's network,
    // takes no host out of the cluster.
    let stranger = |words: &[&str]| {
        let as_other = ["--reuid=12345", "--regid=12345", "--clear-groups", "curl", "-sS", "-w", "%{http_code}"];
        let mut curl = namespace::command(Some(&world.hosts.switch.hosts[2]), "setpriv");
        let output = curl.args(as_other).args(words).arg("http://127.0.0.1:8112/v1/leave?now=true").output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for words in [&["-XPOST"][..], &["-XPOST", "-HAuthorization: Bearer 0123456789abcdef0123456789abcdef"]] {
        let refused = stranger(words);
        assert!(refused.contains("leave.token") && refused.ends_with("401"), "{refused}");
    }
    let file = world.hosts.folder().join("state-2/leave.token");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    assert_eq!(world.ask(0, "cache.shop"), [&*cache]);

    let refused = leave(&[]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.errors.contains("cache-1") && refused.errors.contains("agent leave --now"), "{}", refused.errors);
    assert_eq!(world.ask(0, "cache.shop"), [&*cache]);
    let planned = leave(&["--dry-run", "--force-unmanaged"]);
    assert!(planned.code == Some(0) && planned.errors.contains("etcd and Berth: cache-1"), "{planned:?}");
    assert_eq!(world.ask(0, "cache.shop"), [&*cache]);
    let left = leave(&["--now"]);
    let begun = Instant::now();
    assert!(left.code == Some(0) && left.output.contains("host-3 has left the cluster"), "{left:?}");
    world.eventually_says(&[0, 1], "cache.shop", &[]);
    assert!(begun.elapsed() < tests::scaled(Duration::from_secs(2)), "{:?}", begun.elapsed());
    let mut agent = world.agents[2].take().unwrap();
    assert_eq!(agent.ended(LIMIT).code(), Some(0), "{}", agent.log());
}
