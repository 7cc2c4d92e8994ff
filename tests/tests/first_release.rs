//! From the first release: what it left in etcd and on disk is gone on with, and an agent of it follows the same etcd beside this one.
//!
//! Its executables are built from commit 873d749 with `--long`, or are in the folder that `BERTH_FIRST_RELEASE` names. Linux, as root,
//! with Debian's docker.io, etcd-server and busybox-static.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::battery::is_long;
use tests::docker_hosts::DockerHosts;
use tests::{Launch, Service, binaries, eventually, repository, scaled};

/// The last commit of the first release.
const COMMIT: &str = "873d749";

const LIMIT: Duration = Duration::from_secs(40);

/// The lease of a host, in seconds: short, so that the test is.
const LEASE: &str = "5";

/// Addresses of the services on their hosts.
const DNS: &str = "127.0.0.1:5353";
const METADATA: &str = "127.0.0.1:8250";
const SCHEDULER: &str = "127.0.0.1:8134";
const SCHEDULER_ADMIN: &str = "127.0.0.1:8135";

/// What is asked of the dns services, below `rancher.internal`.
const NAMES: [&str; 3] = ["web.shop", "db.data", "web-1"];

/// The folder with the executables of the first release; `None` where they are not to be built.
fn executables() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("BERTH_FIRST_RELEASE") {
        return Some(folder.into());
    }
    if !is_long() {
        return None;
    }
    let source = repository().join("target/first-release");
    if !source.exists() {
        run(
            Command::new("git").args(["worktree", "add", "--force", "--detach"]).arg(&source).arg(COMMIT),
            &repository(),
        );
    }
    run(
        binaries::cargo().env_remove("CARGO_TARGET_DIR").args(["build", "--locked", "-p", "agent", "-p", "scheduler"]),
        &source,
    );
    Some(source.join("target/debug"))
}

fn run(command: &mut Command, folder: &Path) {
    assert!(command.current_dir(folder).status().unwrap().success(), "{command:?}");
}

struct World {
    old: PathBuf,
    agents: Vec<Option<Service>>,
    hosts: DockerHosts,
}

impl World {
    fn start(old: PathBuf) -> Option<Self> {
        let hosts = DockerHosts::start(2)?;
        for (number, engine) in hosts.engines.iter().enumerate() {
            let subnet = format!("172.30.{}.0/24", number + 1);
            let routed = ["--label", "io.berth.network.routed=true"];
            engine.docker(&[&["network", "create"], &routed[..], &["--subnet", &subnet, "net"]].concat());
        }
        Some(Self { old, agents: vec![None, None], hosts })
    }

    /// Starts the agent of a host in the place of the one that is there, of the first release or of this one.
    fn agent(&mut self, host: usize, is_old: bool) {
        self.agents[host] = None;
        let agent = self.hosts.agent(host).with("--etcd-lease", LEASE).with("--dns", DNS).with("--metadata", METADATA);
        let agent = if is_old { agent.executable(&self.old.join("agent")) } else { agent };
        self.agents[host] = Some(agent.start());
    }

    /// The scheduler on the first host.
    fn scheduler(&self) -> Launch {
        self.hosts.scheduler(0, METADATA).with("--listen", SCHEDULER).with("--admin", SCHEDULER_ADMIN)
    }

    /// The same of the first release: its ledger has no key.
    fn old_scheduler(&self) -> Launch {
        self.scheduler().executable(&self.old.join("scheduler")).without("--ledger-key")
    }

    fn run(&self, host: usize, name: &str, stack: &str, service: &str, last: u8) {
        let address = format!("172.30.{}.{last}", host + 1);
        let label = |key: &str, value: &str| format!("com.docker.compose.{key}={value}");
        let labels = ["--label", &label("project", stack), "--label", &label("service", service)];
        self.hosts.engines[host].run_box(name, &[&["--network", "net", "--ip", &address], &labels[..]].concat());
    }

    fn on(&self, host: usize, words: &[&str]) -> String {
        self.hosts.switch.on(host, words)
    }

    /// All that a host says: names, and the metadata of the whole cluster without what differs from host to host.
    fn answers(&self, host: usize) -> BTreeMap<String, Value> {
        let mut answers = BTreeMap::new();
        for name in NAMES {
            // A text of a container without a service says less than it did.
            for kind in ["A", "SRV"].into_iter().chain((name == "web.shop").then_some("TXT")) {
                let full = format!("{name}.rancher.internal");
                let short = ["dig", "+short", "+time=2", "+tries=1", "@127.0.0.1", "-p", "5353", &full, kind];
                let mut lines: Vec<_> = self.on(host, &short).lines().map(str::to_owned).collect();
                lines.sort();
                answers.insert(format!("{name} {kind}"), lines.into());
            }
        }
        for path in ["containers", "services", "stacks", "hosts", "networks"] {
            let url = format!("http://{METADATA}/2016-07-29/{path}");
            let json = self.on(host, &["curl", "--silent", "--header", "Accept: application/json", &url]);
            let mut value: Value =
                serde_json::from_str(&json).unwrap_or_else(|error| panic!("{path}: {error}: {json}"));
            if let Some(list) = value.as_array_mut() {
                list.sort_by_key(|one| one["uuid"].as_str().map(str::to_owned));
            }
            answers.insert(path.to_owned(), value);
        }
        answers
    }

    /// Waits until both hosts lead `shop/web` to these addresses; what they say then, each as it sees the cluster.
    fn known(&self, web: &[&str]) -> [BTreeMap<String, Value>; 2] {
        let web: Value = web.iter().copied().collect();
        eventually("both hosts know all", LIMIT, || {
            let all = [0, 1].map(|host| self.answers(host));
            all.iter().all(|answers| answers["web.shop A"] == web).then_some(all)
        })
    }

    /// Waits until both hosts say this.
    fn say(&self, case: &str, expected: &[BTreeMap<String, Value>; 2]) {
        let begun = Instant::now();
        loop {
            let all = [0, 1].map(|host| self.answers(host));
            let differing = (0..2).find_map(|host| {
                let (key, expected) = expected[host].iter().find(|(key, value)| all[host][*key] != **value)?;
                Some(format!("{case}: host {} about {key}:\n  {expected}\n  {}", host + 1, all[host][key]))
            });
            let Some(differing) = differing else { return };
            assert!(begun.elapsed() < scaled(LIMIT), "{differing}");
            sleep(Duration::from_millis(200));
        }
    }

    /// Waits until the scheduler's readiness has this in it.
    fn readiness(&self, expected: &str) {
        let url = format!("http://{SCHEDULER_ADMIN}/readyz");
        let readiness = || self.on(0, &["sh", "-c", &format!("curl --silent {url} || true")]);
        eventually(&format!("the scheduler's readiness has {expected}"), LIMIT, || {
            readiness().contains(expected).then_some(())
        });
    }

    /// Has the scheduler place what a request asks for.
    fn place(&self, request: &str) {
        let url = format!("http://{SCHEDULER}/v1/placements");
        let header = "Content-Type: application/json";
        let response = self.on(0, &["curl", "--silent", "--header", header, "--data", request, &url]);
        assert!(response.contains("host-"), "{request}: {response}");
    }

    /// The placements that the scheduler has, with their hosts.
    fn placements(&self) -> Value {
        let url = format!("http://{SCHEDULER}/v1/placements");
        let json = self.on(0, &["curl", "--silent", &url]);
        let value: Value = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
        let shown = |one: &Value| {
            let units = one["placements"].as_array().into_iter().flatten();
            let hosts: Vec<_> = units.map(|unit| unit["host"]["name"].clone()).collect();
            serde_json::json!({ "id": one["id"], "state": one["state"], "hosts": hosts })
        };
        value["placements"].as_array().into_iter().flatten().map(shown).collect()
    }
}

#[test]
fn what_the_first_release_left_is_gone_on_with_and_both_say_the_same() {
    let Some(old) = executables() else { return };
    let Some(mut world) = World::start(old) else { return };
    world.agent(0, true);
    world.agent(1, true);
    world.run(0, "web-1", "shop", "web", 11);
    world.run(1, "web-2", "shop", "web", 12);
    world.run(1, "db-1", "data", "db", 21);
    let two = ["172.30.1.11", "172.30.2.12"];
    world.known(&two);
    // One placement with a container, and one that is a promise alone.
    let mut scheduler = world.old_scheduler().start();
    world.readiness("true");
    world.place(
        r#"{"id": "placed", "image": "box", "name": "placed-1", "start": true, "command": ["busybox", "sleep", "1000"]}"#,
    );
    world.place(r#"{"id": "promised", "image": "box", "name": "promised-1", "ports": ["8765:80/tcp"]}"#);
    let placed = world.placements();
    let container = |world: &World| {
        let names = [0, 1]
            .map(|host| world.hosts.engines[host].docker(&["ps", "-q", "--no-trunc", "--filter", "name=placed-1"]));
        names.concat()
    };
    let before_container = container(&world);
    assert!(!before_container.trim().is_empty());
    let before = world.known(&two);

    // One after the other is exchanged; in between, both releases follow one etcd.
    world.agent(0, false);
    world.say("an agent of each release", &before);
    world.run(0, "web-3", "shop", "web", 13);
    world.known(&["172.30.1.11", "172.30.1.13", "172.30.2.12"]);
    world.hosts.engines[0].docker(&["rm", "--force", "web-3"]);
    world.say("an agent of each release", &before);
    let log = world.agents[1].as_ref().unwrap().log();
    assert!(!log.contains("panicked") && !log.contains("\"ERROR\""), "{log}");
    world.agent(1, false);
    world.say("two agents of this release", &before);

    // The ledger of the first release has no seal: what it has is listed, and goes on when it was read.
    scheduler.stop();
    drop(scheduler);
    let _scheduler = world.scheduler().start();
    world.readiness("ledger seal");
    let seal = |world: &World, more: &[&str]| {
        let etcd = world.hosts.etcd.urls();
        let key = world.hosts.folder().join("ledger.key");
        let launch = Launch::bare(tests::Executable::Scheduler).word("ledger").word("seal");
        let launch = launch.with("--ledger-etcd", etcd).with("--ledger-key", key).flag("--json");
        let launch = more.iter().fold(launch, Launch::word);
        launch.in_namespace(&world.hosts.switch.hosts[0]).run()
    };
    let listed = seal(&world, &[]);
    let list: Value = serde_json::from_str(&listed.output).unwrap_or_else(|error| panic!("{error}: {listed:?}"));
    assert_eq!(list.as_array().map(Vec::len), Some(2), "{list}");
    let sealed = seal(&world, &["--yes", list[0]["listed"].as_str().unwrap()]);
    assert_eq!(sealed.code, Some(0), "{sealed:?}");
    world.readiness("true");
    assert_eq!(world.placements(), placed);
    assert_eq!(container(&world), before_container, "the container runs on");
    world.say("its placements too", &before);
}
