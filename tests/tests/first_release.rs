//! From the first release: what it left in etcd and on disk is gone on with, and an agent of it follows the same etcd beside this one.
//!
//! What it left is in `tests/fixtures/first_release`. Its executables are built from commit 873d749 with `--long`, or are in the folder that
//! `BERTH_FIRST_RELEASE` names; `UPDATE=1` then has them write the fixture again. Linux, as root, with Debian's docker.io, etcd-server and
//! busybox-static.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tests::battery::is_long;
use tests::docker_hosts::DockerHosts;
use tests::etcd::{base64, text};
use tests::{Launch, Service, binaries, eventually, fixture, repository, scaled, update};

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

/// The same where nothing keeps it alive.
const LONG_LEASE: u64 = 600;

/// All keys of the cluster in etcd, and where they end.
const KEYS: [&str; 2] = ["/berth/v1/", "/berth/v10"];

/// Keys that are there for as long as the agent of a host keeps their lease.
const OF_HOSTS: &str = "/berth/v1/hosts/";

/// The key of the first host: while it is there, the host is.
const OF_FIRST_HOST: &str = "/berth/v1/hosts/host-1/host";

/// The fixture: keys and values in etcd, what the first host said, the folders of state of its agent and of a scheduler with a file.
const FIXTURE: &str = "first_release";
const OF_ETCD: &str = "etcd.json";
const SAID: &str = "said.json";
const OF_AGENT: &str = "agent";
const OF_SCHEDULER: &str = "scheduler";

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
    if !source.join("Cargo.toml").exists() {
        // Of one that was given up half-way.
        let _ = std::fs::remove_dir_all(&source);
        std::fs::create_dir_all(&source).unwrap();
        let unpack = format!("git archive {COMMIT} | tar -x -C {}", source.display());
        run(Command::new("sh").args(["-ec", &unpack]), &repository());
    }
    // Beside the other ones, wherever these are built and for what.
    let mut cargo = binaries::cargo();
    cargo.env_remove("CARGO_TARGET_DIR").env_remove("CARGO_BUILD_TARGET");
    run(cargo.args(["build", "--locked", "-p", "agent", "-p", "scheduler"]), &source);
    Some(source.join("target/debug"))
}

fn run(command: &mut Command, folder: &Path) {
    assert!(command.current_dir(folder).status().unwrap().success(), "{command:?}");
}

/// What a host says, by what it is asked.
type Answers = BTreeMap<String, Value>;

struct World {
    /// The executables of the first release; none where only what it left is there.
    old: Option<PathBuf>,
    agents: Vec<Option<Service>>,
    hosts: DockerHosts,
}

impl World {
    fn start(old: Option<PathBuf>) -> Option<Self> {
        // Of the second host, what it left is in etcd.
        let hosts = DockerHosts::start(if old.is_some() { 2 } else { 1 })?;
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
        let agent = if is_old { agent.executable(&self.of_old("agent")) } else { agent };
        self.agents[host] = Some(agent.start());
    }

    /// An executable of the first release.
    fn of_old(&self, name: &str) -> PathBuf {
        self.old.as_ref().unwrap().join(name)
    }

    /// The folder of state of the agent of a host.
    fn state(&self, host: usize) -> PathBuf {
        self.hosts.folder().join(format!("state-{host}"))
    }

    /// The scheduler on the first host.
    fn scheduler(&self) -> Launch {
        self.hosts.scheduler(0, METADATA).with("--listen", SCHEDULER).with("--admin", SCHEDULER_ADMIN)
    }

    /// The same of the first release: its ledger has no key.
    fn old_scheduler(&self) -> Launch {
        self.scheduler().executable(&self.of_old("scheduler")).without("--ledger-key")
    }

    /// The scheduler on the first host with a ledger of its own, in a file in this folder.
    fn scheduler_of_file(&self) -> Launch {
        let launch = self.scheduler().without("--ledger-etcd").without("--ledger-key");
        launch.with("--state-dir", self.hosts.folder().join(OF_SCHEDULER))
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
    fn answers(&self, host: usize) -> Answers {
        let mut answers = Answers::new();
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

    /// Waits until both hosts lead `shop/web` to these addresses and know a container; what they say then, each as it sees the cluster.
    fn known(&self, web: &[&str], container: &str) -> [Answers; 2] {
        let (web, container) = (web.iter().copied().collect::<Value>(), format!("\"{container}\""));
        let knows =
            |answers: &Answers| answers["web.shop A"] == web && answers["containers"].to_string().contains(&container);
        eventually("both hosts know all", LIMIT, || {
            let all = [0, 1].map(|host| self.answers(host));
            all.iter().all(knows).then_some(all)
        })
    }

    /// Waits until both hosts say this.
    fn say(&self, case: &str, expected: &[Answers; 2]) {
        for (host, expected) in expected.iter().enumerate() {
            says(&format!("{case}: host {}", host + 1), expected, || self.answers(host));
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

    /// Has the scheduler place one container that it starts, and one that is a promise alone; what it has then.
    fn place_two(&self, id: &str) -> Value {
        self.readiness("true");
        let started = json!({
            "id": id, "image": "box", "name": format!("{id}-1"), "requested_host": "host-2", "start": true,
            "command": ["busybox", "sleep", "1000"],
        });
        let promised = json!({
            "id": format!("{id}-promised"), "image": "box", "name": format!("{id}-2"), "requested_host": "host-2", "ports": ["8765:80/tcp"],
        });
        for request in [started, promised] {
            let url = format!("http://{SCHEDULER}/v1/placements");
            let (header, body) = ("Content-Type: application/json", request.to_string());
            let response = self.on(0, &["curl", "--silent", "--header", header, "--data", &body, &url]);
            assert!(response.contains("host-"), "{request}: {response}");
        }
        self.placements()
    }

    /// Has the ledger in etcd sealed, in which so many placements have no seal.
    fn seal(&self, placements: usize) {
        let seal = |more: &[&str]| {
            let launch = Launch::bare(tests::Executable::Scheduler).word("ledger").word("seal").flag("--json");
            let launch = launch.with("--ledger-etcd", self.hosts.etcd.urls());
            let launch = launch.with("--ledger-key", self.hosts.folder().join("ledger.key"));
            more.iter().fold(launch, Launch::word).in_namespace(&self.hosts.switch.hosts[0]).run()
        };
        let listed = seal(&[]);
        let list: Value = serde_json::from_str(&listed.output).unwrap_or_else(|error| panic!("{error}: {listed:?}"));
        assert_eq!(list.as_array().map(Vec::len), Some(placements), "{list}");
        let sealed = seal(&["--yes", list[0]["listed"].as_str().unwrap()]);
        assert_eq!(sealed.code, Some(0), "{sealed:?}");
    }

    /// The placements that the scheduler has, with their hosts.
    fn placements(&self) -> Value {
        let url = format!("http://{SCHEDULER}/v1/placements");
        let json = self.on(0, &["curl", "--silent", &url]);
        let value: Value = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
        let shown = |one: &Value| {
            let units = one["placements"].as_array().into_iter().flatten();
            let hosts: Vec<_> = units.map(|unit| unit["host"]["name"].clone()).collect();
            json!({ "id": one["id"], "state": one["state"], "hosts": hosts })
        };
        value["placements"].as_array().into_iter().flatten().map(shown).collect()
    }

    /// What etcd has under a key, or under all keys from it to another one.
    fn pairs(&self, from: &str, to: &str) -> Vec<Value> {
        let range = self.hosts.etcd.ask("kv/range", &json!({ "key": base64(from), "range_end": base64(to) }));
        range["kvs"].as_array().cloned().unwrap_or_default()
    }

    /// Stores what the first release leaves when it ends, and what it said until then.
    fn record(&mut self, of_etcd: &Value) {
        let folder = fixture(FIXTURE);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut scheduler = self.scheduler_of_file().executable(&self.of_old("scheduler")).start();
        let of_file = self.place_two("file");
        let [said, _] = self.known(&["172.30.1.11", "172.30.2.12"], "file-1");
        scheduler.stop();
        let write = |name: &str, value: &Value| std::fs::write(folder.join(name), format!("{value:#}\n")).unwrap();
        write(SAID, &json!({ "host": said, "etcd": of_etcd, "file": of_file }));
        // A scheduler's own key goes when its lease has run out.
        let lasts = |pair: &&Value| pair["lease"].is_null() || text(&pair["key"]).starts_with(OF_HOSTS);
        let pairs = self.pairs(KEYS[0], KEYS[1]);
        let keys = pairs.iter().filter(lasts).map(|pair| (text(&pair["key"]), text(&pair["value"])));
        let keys: BTreeMap<_, _> = keys.collect();
        write(OF_ETCD, &json!(keys));
        // Its folder of state follows within moments.
        let state = self.state(0);
        let stored = || std::fs::read_to_string(state.join("etcd.ndjson")).is_ok_and(|text| text.contains("file-1"));
        eventually("all is stored", LIMIT, || stored().then_some(()));
        self.agents[0].as_mut().unwrap().stop();
        copy(&state, &folder.join(OF_AGENT));
        copy(&self.hosts.folder().join(OF_SCHEDULER), &folder.join(OF_SCHEDULER));
        std::fs::remove_file(folder.join(OF_SCHEDULER).join("ledger.lock")).unwrap();
    }

    /// Lays what the first release left where it was, as if its agents and schedulers had ended a moment ago; what they said.
    fn lay(&self) -> Value {
        let read = |path: &str| std::fs::read_to_string(fixture(FIXTURE).join(path)).unwrap();
        let parsed = |path: &str| serde_json::from_str::<Value>(&read(path)).unwrap();
        let leases: BTreeMap<_, _> = ["host-1", "host-2"]
            .map(|host| {
                let granted = self.hosts.etcd.ask("lease/grant", &json!({ "TTL": LONG_LEASE }));
                (format!("{OF_HOSTS}{host}/"), granted["ID"].clone())
            })
            .into();
        for (key, value) in parsed(OF_ETCD).as_object().unwrap() {
            let value = promised_now(value.as_str().unwrap());
            let mut put = json!({ "key": base64(key), "value": base64(&value) });
            if let Some((_, lease)) = leases.iter().find(|(prefix, _)| key.starts_with(*prefix)) {
                put["lease"] = lease.clone();
            }
            self.hosts.etcd.ask("kv/put", &put);
        }
        copy(&fixture(FIXTURE).join(OF_AGENT), &self.state(0));
        let scheduler = self.hosts.folder().join(OF_SCHEDULER);
        copy(&fixture(FIXTURE).join(OF_SCHEDULER), &scheduler);
        let ledger = scheduler.join("ledger.ndjson");
        let lines = std::fs::read_to_string(&ledger).unwrap();
        let lines: String = lines.lines().map(|line| promised_now(line) + "\n").collect();
        std::fs::write(&ledger, lines).unwrap();
        parsed(SAID)
    }
}

/// Waits until this is said.
fn says(case: &str, expected: &Answers, answers: impl Fn() -> Answers) {
    let begun = Instant::now();
    loop {
        let said = answers();
        let differing = expected.iter().find(|(key, value)| said[*key] != **value);
        let Some((key, value)) = differing else { return };
        assert!(begun.elapsed() < scaled(LIMIT), "{case} about {key}:\n  {value}\n  {}", said[key]);
        sleep(Duration::from_millis(200));
    }
}

/// Copies a folder.
fn copy(from: &Path, to: &Path) {
    run(Command::new("cp").arg("-r").arg(from).arg(to), Path::new("/"));
}

/// A record of a ledger as if it had been made just now: what is promised lapses a minute later.
fn promised_now(record: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(record) else { return record.to_owned() };
    if value["made"].is_u64() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        value["made"] = json!(u64::try_from(now.as_millis()).unwrap());
        return value.to_string();
    }
    record.to_owned()
}

/// The same with names in the place of ids, and without the facts of a machine: both are other ones on another engine.
fn by_name(answers: &Value) -> Answers {
    let all = || answers.as_object().into_iter().flatten();
    let mut names = BTreeMap::new();
    for one in all().flat_map(|(_, list)| list.as_array().into_iter().flatten()) {
        let (Some(name), uuid, id) = (one["name"].as_str(), one["uuid"].as_str(), one["external_id"].as_str()) else {
            continue;
        };
        // A container without a hostname of its own has the beginning of its id.
        for id in [uuid, id, id.and_then(|id| id.get(..12))].into_iter().flatten() {
            names.insert(id.to_owned(), name.to_owned());
        }
    }
    all()
        .map(|(asked, answer)| {
            let mut answer = renamed(answer, &names);
            if let Some(list) = answer.as_array_mut() {
                for one in list.iter_mut().filter(|one| asked == "hosts" && one["name"] == "host-1") {
                    *one = json!({ "name": one["name"], "agent_ip": one["agent_ip"], "state": one["state"] });
                }
                list.sort_by_key(|one| one["name"].as_str().map(str::to_owned));
            }
            (asked.clone(), answer)
        })
        .collect()
}

fn renamed(value: &Value, names: &BTreeMap<String, String>) -> Value {
    match value {
        Value::String(text) => names.get(text).unwrap_or(text).clone().into(),
        Value::Array(list) => list.iter().map(|one| renamed(one, names)).collect(),
        // When a container was created is another moment.
        Value::Object(map) => {
            let stays = map.iter().filter(|(key, _)| *key != "create_index");
            stays.map(|(key, value)| (key.clone(), renamed(value, names))).collect()
        }
        other => other.clone(),
    }
}

#[test]
fn what_the_first_release_left_is_there_for_this_one() {
    let Some(mut world) = World::start(None) else { return };
    let said = world.lay();
    let expected = by_name(&said["host"]);
    world.run(0, "web-1", "shop", "web", 11);
    let says = |world: &World, case: &str| says(case, &expected, || by_name(&json!(world.answers(0))));
    // From its folder alone.
    let before = world.pairs(OF_FIRST_HOST, "");
    world.hosts.etcd.kill_all();
    world.agent(0, false);
    says(&world, "without etcd");
    world.hosts.etcd.run_all();
    says(&world, "with etcd");
    // No host has missed it: its folder says that it is the machine whose keys these are.
    let of = |pairs: &[Value], field: &str| {
        let value: Value = serde_json::from_str(&text(&pairs[0]["value"])).unwrap();
        value["published"][field].clone()
    };
    let after = eventually("its host is published", LIMIT, || {
        Some(world.pairs(OF_FIRST_HOST, "")).filter(|after| of(after, "life") != of(&before, "life"))
    });
    assert_eq!(of(&before, "by"), of(&after, "by"));
    assert_eq!(before[0]["create_revision"], after[0]["create_revision"]);

    let mut scheduler = world.scheduler().start();
    world.readiness("ledger seal");
    assert_eq!(world.placements(), json!([]), "nothing is taken from a ledger without a seal");
    world.seal(2);
    world.readiness("true");
    assert_eq!(world.placements(), said["etcd"]);
    scheduler.stop();
    let _scheduler = world.scheduler_of_file().start();
    world.readiness("true");
    assert_eq!(world.placements(), said["file"]);
}

#[test]
fn what_the_first_release_left_is_gone_on_with_and_both_say_the_same() {
    let Some(old) = executables() else { return };
    let Some(mut world) = World::start(Some(old)) else { return };
    world.agent(0, true);
    world.agent(1, true);
    world.run(0, "web-1", "shop", "web", 11);
    world.run(1, "web-2", "shop", "web", 12);
    world.run(1, "db-1", "data", "db", 21);
    let two = ["172.30.1.11", "172.30.2.12"];
    world.known(&two, "db-1");
    let mut scheduler = world.old_scheduler().start();
    let placed = world.place_two("etcd");
    if update() {
        scheduler.stop();
        return world.record(&placed);
    }
    let container = |world: &World| {
        let names =
            [0, 1].map(|host| world.hosts.engines[host].docker(&["ps", "-q", "--no-trunc", "--filter", "name=etcd-1"]));
        names.concat()
    };
    let before_container = container(&world);
    assert!(!before_container.trim().is_empty());
    let before = world.known(&two, "etcd-1");

    // One after the other is exchanged; in between, both releases follow one etcd.
    world.agent(0, false);
    world.say("an agent of each release", &before);
    world.run(0, "web-3", "shop", "web", 13);
    world.known(&["172.30.1.11", "172.30.1.13", "172.30.2.12"], "web-3");
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
    world.seal(2);
    world.readiness("true");
    assert_eq!(world.placements(), placed);
    assert_eq!(container(&world), before_container, "the container runs on");
    world.say("its placements too", &before);
}
