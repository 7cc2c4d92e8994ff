//! Stacks on two hosts, each with a Docker Engine and an agent, and two schedulers that share a ledger in etcd: what is wanted
//! runs, is updated, goes back, moves when its host dies, and is gone at the end, while schedulers are killed.
//!
//! Linux, as root, with Debian's docker.io, etcd-server and busybox-static.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::battery::is_long;
use tests::docker_hosts::DockerHosts;
use tests::etcd::base64;
use tests::namespace::command;
use tests::service::Ended;
use tests::{Executable, Launch, Service, eventually, tell};

const LIMIT: Duration = Duration::from_mins(1);

/// Addresses of the agents on their hosts.
const DNS: &str = "127.0.0.1:5353";
const METADATA: &str = "127.0.0.1:8250";

/// How often a scheduler is killed in the middle of an update, in the long test and otherwise.
const KILLS: [usize; 2] = [12, 2];

/// Everything there is. Fields are dropped in this order.
struct World {
    schedulers: [Option<Service>; 2],
    agents: Vec<Option<Service>>,
    launches: [Launch; 2],
    hosts: DockerHosts,
}

impl World {
    fn new() -> Option<Self> {
        let hosts = DockerHosts::start(2)?;
        let launches = [0, 1].map(|number| hosts.scheduler(number, METADATA));
        let mut world = Self { schedulers: [None, None], agents: vec![None, None], launches, hosts };
        for number in [0, 1] {
            world.start_agent(number);
            world.run(number);
        }
        Some(world)
    }

    fn start_agent(&mut self, host: usize) {
        let agent = self.hosts.agent(host).with("--dns", DNS).with("--metadata", METADATA);
        self.agents[host] = Some(agent.start());
    }

    fn run(&mut self, number: usize) {
        self.schedulers[number] = Some(self.launches[number].start());
    }

    fn kill(&mut self, number: usize) {
        self.schedulers[number].take().unwrap().kill();
    }

    fn address(&mut self, number: usize) -> String {
        self.schedulers[number].as_mut().unwrap().address().to_string()
    }

    fn ask(&mut self, number: usize, words: &[&str]) -> Ended {
        let address = self.address(number);
        self.hosts.ask_scheduler(number, &address, words)
    }

    /// What a subcommand prints that has to end well.
    fn told(&mut self, number: usize, words: &[&str]) -> String {
        let ended = self.ask(number, words);
        assert_eq!(ended.code, Some(0), "{words:?}: {}{}", ended.output, ended.errors);
        ended.output
    }

    fn json(&mut self, number: usize, words: &[&str]) -> Value {
        let words = [words, &["--json"]].concat();
        let ended = self.ask(number, &words);
        serde_json::from_str(&ended.output).unwrap_or_else(|error| panic!("{error}: {}{}", ended.output, ended.errors))
    }

    /// Waits until these schedulers know both hosts, which they say that they do not before they have read anything.
    fn know_both_hosts(&mut self, schedulers: &[usize]) {
        for number in schedulers {
            eventually("the scheduler knows both hosts", LIMIT, || {
                let shown: Value = serde_json::from_str(&self.ask(*number, &["hosts", "--json"]).output).ok()?;
                (shown["hosts"].as_array()?.len() == 2).then_some(())
            });
        }
    }

    /// A compose file of a service.
    fn file(&self, name: &str, text: &str) -> String {
        let path: PathBuf = self.hosts.folder().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// The containers of the stack on all engines, running or not: name and id, by host.
    fn containers(&self, all: bool) -> BTreeSet<(usize, String, String)> {
        let mut found = BTreeSet::new();
        for (host, engine) in self.hosts.engines.iter().enumerate() {
            let all = if all { &["--all"][..] } else { &[] };
            let shown = ["ps", "--no-trunc", "--filter", "label=io.berth.stack=shop", "--format", "{{.Names}} {{.ID}}"];
            let Ok(text) = engine.try_docker(&[&shown[..], all].concat()) else { continue };
            for line in text.lines() {
                let (name, id) = line.split_once(' ').unwrap();
                found.insert((host, name.to_owned(), id.to_owned()));
            }
        }
        found
    }

    /// How many containers of each unit run: by service and index, as its label says.
    fn running_units(&self) -> BTreeMap<String, usize> {
        self.running_units_since(0)
    }

    /// The same, where units move from this host to the other one: it is asked first, so that none is missed that moves in between.
    fn running_units_since(&self, host: usize) -> BTreeMap<String, usize> {
        let mut units = BTreeMap::new();
        for engine in [host, 1 - host].map(|host| &self.hosts.engines[host]) {
            let shown = ["ps", "--filter", "label=io.berth.stack=shop", "--format", "{{.Label \"io.berth.unit\"}}"];
            for unit in engine.try_docker(&shown).unwrap_or_default().lines() {
                *units.entry(unit.to_owned()).or_default() += 1;
            }
        }
        units
    }

    /// An operator's command.
    fn agent(&self, words: &[&str]) -> Launch {
        let launch = words.iter().fold(Launch::bare(Executable::Agent), Launch::word);
        launch.with("--etcd", self.hosts.etcd.urls()).in_namespace(&self.hosts.switch.hosts[0])
    }

    /// Drains a host of two: its units run on the other one before they are stopped here, and what no stack has stays. The scheduler
    /// that does it is killed in the middle, and the other one goes on.
    fn drain(&mut self, host: usize) {
        let name = format!("host-{}", host + 1);
        self.hosts.engines[host].run_box("own", &[]);
        let there = |world: &Self, host: usize| world.containers(false).iter().filter(|(own, ..)| *own == host).count();
        assert!(there(self, host) > 0);
        let asked = self.agent(&["drain", &name, "--dry-run"]).run();
        assert!(asked.code == Some(0) && asked.output.contains("stacks have on"), "{}", asked.errors);
        assert!(asked.output.contains("is not known: the scheduler at 127.0.0.1:8254 has"), "{}", asked.output);
        let address = self.address(0);
        let plan = eventually("the scheduler knows what no stack has", LIMIT, || {
            let asked = self.agent(&["drain", &name, "--dry-run", "--json", "--server", &address]).run();
            let plan: Value = serde_json::from_str(&asked.output).unwrap_or_else(|_| panic!("{asked:?}"));
            (plan["others"] == json!(["own"])).then_some(plan)
        });
        let moved = plan["moved"].as_array().unwrap_or_else(|| panic!("{plan}"));
        assert_eq!(moved.len(), there(self, host), "{plan}");
        assert!(moved.iter().all(|unit| unit["to"]["name"] == format!("host-{}", 2 - host)), "{plan}");
        // From here on the stack is this one's.
        self.told(0, &["resume", "shop"]);
        let mut owner = self.schedulers[0].take();
        let fewest = std::thread::scope(|scope| {
            let draining = self.agent(&["drain", &name, "--reason", "new disk", "--server", &address]);
            let draining = scope.spawn(move || draining.run());
            let mut fewest = usize::MAX;
            while !draining.is_finished() {
                let running = self.running_units_since(host);
                fewest = fewest.min(running.len());
                if running.values().sum::<usize>() > running.len()
                    && let Some(mut owner) = owner.take()
                {
                    owner.kill();
                }
            }
            let drained = draining.join().unwrap();
            assert_eq!(drained.code, Some(0), "{}", drained.errors);
            assert!(drained.output.contains("is drained by"), "{}", drained.output);
            assert!(drained.output.contains("what no stack has stays: own"), "{}", drained.output);
            assert!(drained.errors.contains("containers of stacks left"), "{}", drained.errors);
            assert!(drained.errors.contains("STAYS BECAUSE"), "{}", drained.errors);
            fewest
        });
        assert!(owner.is_none(), "it was killed");
        self.run(0);
        assert_eq!((there(self, host), there(self, 1 - host), fewest), (0, 4, 4));
        self.becomes(0, "done");
        assert_eq!(self.agent(&["uncordon", &name]).run().code, Some(0));
        self.hosts.engines[host].docker(&["rm", "--force", "own"]);
    }

    /// A host of two leaves: its units run on the other one before they are stopped here, and what no stack has is stopped if that is said.
    fn leave(&mut self, host: usize) {
        self.hosts.engines[host].run_box("own", &[]);
        let there = |world: &Self, host: usize| world.containers(false).iter().filter(|(own, ..)| *own == host).count();
        let before = there(self, host);
        assert!(before > 0);
        let socket = format!("unix://{}", self.hosts.engines[host].socket().display());
        let leave = |world: &Self, words: &[&str]| {
            let launch = Launch::bare(Executable::Agent).word("leave").env("DOCKER_HOST", &socket);
            words.iter().fold(launch, Launch::word).in_namespace(&world.hosts.switch.hosts[host])
        };
        let refused = eventually("its agent knows what runs there", LIMIT, || {
            Some(leave(self, &[]).run()).filter(|ended| ended.errors.contains("placed by no scheduler: own"))
        });
        assert!(refused.code == Some(1) && refused.errors.contains("--force-unmanaged"), "{}", refused.errors);
        assert!(
            refused.errors.contains("is not known: "),
            "no scheduler is at the default address: {}",
            refused.errors
        );
        let address = self.address(host);
        let other = format!("host-{}", 2 - host);
        let table = |said: &str| {
            assert!(said.contains("PLACEMENT") && said.contains("STAYS BECAUSE"), "{said}");
            let moved = said.lines().filter(|line| line.starts_with("shop-web-") && line.contains(&other));
            assert_eq!(moved.count(), before, "{said}");
        };
        let planned = leave(self, &["--force-unmanaged", "--dry-run", "--server", &address]);
        let planned = planned.run();
        assert_eq!(planned.code, Some(0), "{planned:?}");
        table(&planned.errors);
        assert_eq!(there(self, host), before);
        let fewest = std::thread::scope(|scope| {
            let leaving = leave(self, &["--force-unmanaged", "--server", &address]);
            let leaving = scope.spawn(move || leaving.run());
            let mut fewest = usize::MAX;
            while !leaving.is_finished() {
                fewest = fewest.min(self.running_units_since(host).len());
            }
            let left = leaving.join().unwrap();
            assert!(left.code == Some(0) && left.output.contains("has left the cluster"), "{left:?}");
            assert!(
                left.errors.contains("containers of stacks left") && left.errors.contains("stopping own"),
                "{left:?}"
            );
            table(&left.errors);
            fewest
        });
        assert_eq!((there(self, host), there(self, 1 - host), fewest), (0, 4, 4));
        let shown = self.hosts.engines[host].docker(&["ps", "--quiet"]);
        assert!(shown.trim().is_empty(), "own is stopped: {shown}");
        let mut agent = self.agents[host].take().unwrap();
        assert_eq!(agent.ended(LIMIT).code(), Some(0), "{}", agent.log());
    }

    /// A network of that name on each host, whose addresses all hosts reach.
    fn join(&self) {
        for (host, engine) in self.hosts.engines.iter().enumerate() {
            let range = format!("172.30.{}.0/24", host + 1);
            let routed = ["network", "create", "--label", "io.berth.network.routed=true"];
            engine.docker(&[&routed[..], &["--subnet", &range, "front"]].concat());
        }
    }

    /// The addresses of the containers on that network that run on a host.
    fn addresses(&self, host: usize) -> BTreeSet<String> {
        let engine = &self.hosts.engines[host];
        let running = engine.docker(&["ps", "--quiet", "--filter", "label=io.berth.stack=shop"]);
        let address = |id: &str| {
            let form = "{{.NetworkSettings.Networks.front.IPAddress}}";
            engine.docker(&["inspect", "--format", form, id]).trim().to_owned()
        };
        running.lines().map(address).collect()
    }

    /// What a host answers for the service: its addresses, and its members' names in metadata. Nothing while its agent is away.
    fn answers(&self, host: usize) -> (BTreeSet<String>, BTreeSet<String>) {
        let asked = |words: &[&str]| {
            let mut command = command(Some(&self.hosts.switch.hosts[host]), words[0]);
            let output = command.args(&words[1..]).stderr(Stdio::null()).output().unwrap();
            if output.status.success() { String::from_utf8_lossy(&output.stdout).into_owned() } else { String::new() }
        };
        let (at, port) = DNS.split_once(':').unwrap();
        let server = format!("@{at}");
        let dig = ["dig", "+short", "+time=1", "+tries=1", &server, "-p", port, "web.shop.rancher.internal"];
        let path = format!("http://{METADATA}/latest/stacks/shop/services/web/containers");
        let members = asked(&["curl", "-s", "-m", "2", "-H", "Accept: application/json", &path]);
        let members: Value = serde_json::from_str(&members).unwrap_or_default();
        let name = |member: &Value| member["name"].as_str().or(member.as_str()).map(str::to_owned);
        let members = members.as_array().into_iter().flatten().filter_map(name).collect();
        (asked(&dig).lines().filter(|line| !line.starts_with(';')).map(str::to_owned).collect(), members)
    }

    /// The keys of evictions, behind the prefix.
    fn evictions(&self) -> Vec<String> {
        let range = json!({"key": base64("/berth/v1/evicted/"), "range_end": base64("/berth/v1/evicted0")});
        let all = self.hosts.etcd.ask("kv/range", &range);
        let keys = all["kvs"].as_array().into_iter().flatten();
        keys.map(|pair| tests::etcd::text(&pair["key"]).replace("/berth/v1/", "")).collect()
    }

    fn becomes(&mut self, number: usize, state: &str) -> Value {
        let (mut last, address) = (Value::Null, self.address(number));
        let found = eventually(&format!("the stack is {state}"), LIMIT, || {
            let ended = self.hosts.ask_scheduler(number, &address, &["stacks", "shop", "--json"]);
            last = serde_json::from_str(&ended.output).unwrap_or_default();
            (last["state"] == state).then(|| last.clone())
        });
        assert_eq!(found["state"], state, "{last:#}");
        found
    }
}

/// A service of units that do this; each answers to a signal at once.
fn web(scale: usize, mark: &str, script: &str, rules: &str) -> String {
    format!(
        "name: shop\nservices:\n  web:\n    image: box\n    command: [/bin/busybox, sh, -c, 'trap exit TERM; {script}']\n\
         \x20   stop_grace_period: 2s\n    environment: {{MARK: '{mark}'}}\n    deploy:\n      replicas: {scale}\n      \
         update_config: {{parallelism: 2, monitor: 1s{rules}}}\n"
    )
}

const RUNS: &str = "while :; do sleep 0.1; done";

#[test]
fn a_stack_is_brought_up_updated_and_taken_down_while_schedulers_die() {
    let Some(mut world) = World::new() else { return };
    let first = world.file("first.yml", &web(4, "one", RUNS, ""));
    world.know_both_hosts(&[0, 1]);

    // A plan says where units would go, and does nothing.
    let planned = world.json(0, &["plan", &first]);
    let units = planned["services"][0]["units"].as_array().unwrap();
    let places: Vec<_> = units.iter().map(|unit| unit["to"].as_str().unwrap()).collect();
    assert_eq!((places.len(), planned["revision"].as_u64()), (4, Some(0)), "{planned:#}");
    assert_eq!(world.json(0, &["up", &first, "--dry-run"]), planned);
    assert!(world.containers(true).is_empty());
    let up = world.ask(0, &["up", &first, "--expect", "0"]);
    assert_eq!(up.code, Some(0), "{}{}", up.output, up.errors);
    assert!(up.errors.contains("shop is done, revision 1"), "{}", up.errors);
    let before = world.containers(true);
    assert_eq!(before.len(), 4, "{before:?}");
    assert_eq!(before.iter().map(|(host, ..)| *host).collect::<BTreeSet<_>>().len(), 2, "spread: {before:?}");
    let again = world.json(1, &["plan", &first]);
    assert_eq!((&again["is_empty"], &again["revision"]), (&true.into(), &1.into()), "{again:#}");
    // Who has seen something older changes nothing, whichever scheduler is asked.
    let late = world.ask(1, &["up", &first, "--expect", "0"]);
    assert!(late.code == Some(1) && late.errors.contains("at revision 1, not 0"), "{}", late.errors);
    let wrong = world.file("wrong.yml", "services: {web: {image: box, lb: 1}}\n");
    let wrong = world.ask(0, &["up", &wrong]);
    assert!(wrong.code == Some(2) && wrong.errors.contains("services.web.lb"), "{}", wrong.errors);

    // What ends at once is rolled back; the old containers are the same ones.
    let broken = world.file("broken.yml", &web(4, "broken", "echo no such file; exit 3", ""));
    let ended = world.ask(0, &["up", &broken]);
    assert_eq!(ended.code, Some(1), "{}{}", ended.output, ended.errors);
    assert!(ended.errors.contains("shop is rolled back"), "{}", ended.errors);
    assert_eq!(world.containers(true), before);
    let history = world.json(1, &["history", "shop"]);
    assert!(history["revisions"][0]["outcome"].as_str().unwrap().starts_with("rolled back: web: "), "{history:#}");

    // The scheduler that updates is killed in the middle, again and again; the other one goes on.
    let kills = if is_long() { KILLS[0] } else { KILLS[1] };
    for round in 0..kills {
        let file = world.file("next.yml", &web(4, &format!("round {round}"), RUNS, ""));
        let worker = round % 2;
        let begun = Instant::now();
        let asked = world.ask(worker, &["up", &file, "--detach"]);
        assert_eq!(asked.code, Some(0), "{}{}", asked.output, asked.errors);
        std::thread::sleep(Duration::from_millis(700 + 450 * u64::try_from(round).unwrap()));
        world.kill(worker);
        let mut most = 0;
        let other = 1 - worker;
        let address = world.address(other);
        eventually("the update is done by the other scheduler", LIMIT, || {
            let units = world.running_units();
            most = most.max(units.values().sum::<usize>());
            let shown = world.hosts.ask_scheduler(other, &address, &["stacks", "shop", "--json"]);
            let shown: Value = serde_json::from_str(&shown.output).ok()?;
            (shown["state"] == "done" && shown["revision"] == 3 + round).then_some(())
        });
        let units = world.running_units();
        assert!(units.len() == 4 && units.values().all(|count| *count == 1), "{units:?}");
        assert_eq!(world.containers(true).len(), 4, "nothing is left: {:?}", world.containers(true));
        // Two more for the batch, and no more.
        assert!(most <= 6, "{most} at once");
        tell(&format!("killed and updated by the other one after {:?}, {most} units at most", begun.elapsed()));
        world.run(worker);
        eventually("it is back", LIMIT, || (world.ask(worker, &["stacks"]).code == Some(0)).then_some(()));
    }

    // Another number, and back to an older revision.
    world.told(1, &["scale", "shop/web=2"]);
    assert_eq!(world.containers(false).len(), 2);
    // The long test has forgotten the first ones.
    let history = world.json(0, &["history", "shop"]);
    let oldest = history["revisions"].as_array().unwrap().last().unwrap()["revision"].to_string();
    world.told(0, &["rollback", "shop", "--to", &oldest]);
    let units = world.running_units();
    assert!(units.len() == 4 && units.values().all(|count| *count == 1), "{units:?}");
    let listed = world.told(0, &["stacks"]);
    assert!(listed.contains("shop") && listed.contains("4 of 4"), "{listed}");
    // A unit that a person removes is there again.
    let (host, name, _) = world.containers(false).pop_first().unwrap();
    world.hosts.engines[host].docker(&["rm", "--force", &name]);
    eventually("it is there again", LIMIT, || (world.running_units().len() == 4).then_some(()));
    world.becomes(0, "done");

    world.drain(1);
    world.leave(0);

    let down = world.ask(1, &["down", "shop"]);
    assert!(down.code == Some(0) && down.errors.contains("shop is removed"), "{}{}", down.output, down.errors);
    assert!(world.containers(true).is_empty(), "{:?}", world.containers(true));
    assert_eq!(world.ask(1, &["stacks", "shop"]).code, Some(1));
}

#[test]
fn units_of_a_dead_host_run_elsewhere_and_its_copies_end_when_it_is_back() {
    let Some(mut world) = World::new() else { return };
    world.know_both_hosts(&[0]);
    // Where a network is, hosts say; before it is there, nothing is created that would join it.
    let joining = ["run", "--dry-run", "--explain", "--network", "front", "box"];
    let asked = world.ask(0, &joining);
    let all = format!("{}{}", asked.output, asked.errors);
    assert_eq!((asked.code, all.matches("host has no network front").count()), (Some(1), 2), "{all}");
    world.join();
    eventually("schedulers know where the network is", LIMIT, || {
        let asked = world.ask(0, &joining);
        (asked.code == Some(0) && !asked.output.contains("host has no network")).then_some(())
    });
    let services = "[{service: web, stack: shop, image: box, count: 2, dead_after: 3, stop_timeout: 1, update: {monitor: 1}, \
                    network: front, command: [/bin/busybox, sleep, '3600']}]\n";
    let file = world.file("web.yml", services);
    let up = world.ask(0, &["up", &file, "--stack", "shop"]);
    assert_eq!(up.code, Some(0), "{}{}", up.output, up.errors);
    let before = world.containers(false);
    let on = |containers: &BTreeSet<(usize, String, String)>, host: usize| {
        containers.iter().filter(|(own, ..)| *own == host).count()
    };
    assert_eq!((on(&before, 0), on(&before, 1)), (1, 1), "{before:?}");
    let both: BTreeSet<String> = [0, 1].iter().flat_map(|host| world.addresses(*host)).collect();
    for host in [0, 1] {
        eventually("both units have the name and are members", LIMIT, || {
            let (addresses, members) = world.answers(host);
            (addresses == both && members.len() == 2).then_some(())
        });
    }
    assert_eq!(world.evictions(), Vec::<String>::new());
    let stays = world.addresses(0);
    let old = (world.addresses(1), before.iter().find(|(host, ..)| *host == 1).unwrap().1.clone());

    // The second host is cut off: its engine hangs, and its agent and scheduler are gone. Its container runs on.
    world.kill(1);
    world.agents[1].take().unwrap().kill();
    world.hosts.engines[1].hang();
    let begun = Instant::now();
    let address = world.address(0);
    eventually("its unit runs on the first host", LIMIT, || {
        let shown = world.hosts.ask_scheduler(0, &address, &["stacks", "shop", "--json"]);
        let shown: Value = serde_json::from_str(&shown.output).ok()?;
        let here = world.hosts.engines[0].docker(&["ps", "--quiet", "--filter", "label=io.berth.stack=shop"]);
        (here.lines().count() == 2 && shown["state"] == "done").then_some(())
    });
    tell(&format!("elsewhere {:?} after its host died", begun.elapsed()));
    std::thread::sleep(Duration::from_secs(3));
    let here = world.hosts.engines[0].docker(&["ps", "--quiet", "--filter", "label=io.berth.stack=shop"]);
    assert_eq!(here.lines().count(), 2, "once");

    // All hosts know that its copy has been replaced.
    let evictions = world.evictions();
    assert!(evictions.len() == 1 && evictions[0].starts_with("evicted/host-2/"), "{evictions:?}");
    let new = world.addresses(0);
    eventually("names lead to the new ones", LIMIT, || (world.answers(0).0 == new).then_some(()));

    // It comes back while no scheduler is there to remove its copy: that runs on, and nothing leads to it.
    world.kill(0);
    let kept = world.hosts.engines[0].docker(&["ps", "--quiet", "--no-trunc", "--filter", "label=io.berth.stack=shop"]);
    world.hosts.engines[1].go_on();
    world.start_agent(1);
    let (is_over, mut seen) = (AtomicBool::new(false), 0);
    let watched = &world;
    let seen = std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for host in [0, 1] {
                    let (addresses, members) = watched.answers(host);
                    // The host that comes back knows what was before its death until etcd has answered it. Metadata, which is asked
                    // before DNS, may still have been so when DNS was not any more.
                    let leads_to_old = !addresses.is_disjoint(&old.0);
                    let has_old = leads_to_old || members.contains(&old.1);
                    let has_new = addresses.difference(&stays).any(|address| new.contains(address));
                    let is_mixed = leads_to_old && has_new;
                    assert!(
                        !is_mixed && (!has_old || host == 1),
                        "host {host}: {addresses:?} {members:?}, {:?}",
                        old.0
                    );
                    assert!(addresses.len() <= 2 && members.len() <= 2, "host {host}: {addresses:?} {members:?}");
                    seen += usize::from(addresses.len() == 2);
                }
            }
            seen
        });
        eventually("the host that is back knows the others", LIMIT, || {
            (watched.answers(1).0 == new || looking.is_finished()).then_some(())
        });
        std::thread::sleep(Duration::from_secs(2));
        is_over.store(true, Ordering::Relaxed);
        looking.join().unwrap()
    });
    tell(&format!("{seen} answers, and none led to the old copy"));
    assert_eq!(world.addresses(1), old.0, "it runs");
    for host in [0, 1] {
        let (addresses, members) = world.answers(host);
        assert!(addresses == new && !members.contains(&old.1), "host {host}: {addresses:?} {members:?}");
    }
    world.run(0);
    eventually("its old copy is removed", LIMIT, || (on(&world.containers(true), 1) == 0).then_some(()));
    let now = world.hosts.engines[0].docker(&["ps", "--quiet", "--no-trunc", "--filter", "label=io.berth.stack=shop"]);
    assert_eq!(now, kept);
    let units = world.running_units();
    assert!(units.len() == 2 && units.values().all(|count| *count == 1), "{units:?}");
    eventually("its key is gone", LIMIT, || world.evictions().is_empty().then_some(()));
    for host in [0, 1] {
        assert_eq!(world.answers(host).0, new);
    }
    world.told(0, &["down", "shop"]);
}

/// How many units the host has that is evacuated: more than are begun before a scheduler is killed.
const EVACUATED: usize = 10;

/// Both schedulers are on the first host: the second one is off.
#[test]
fn what_was_placed_on_a_dead_host_runs_elsewhere_though_a_scheduler_dies_and_its_copies_end_when_it_is_back() {
    let Some(mut world) = World::new() else { return };
    world.kill(1);
    world.launches[1] = world.hosts.scheduler(1, METADATA).in_namespace(&world.hosts.switch.hosts[0]);
    world.run(1);
    let both = [0, 1].map(|number| world.address(number));
    let on_first = |words: &[&str]| world.hosts.switch.on(0, words);
    let hosts_of = |address: &str| {
        let hosts: Value =
            serde_json::from_str(&on_first(&["curl", "-s", &format!("http://{address}/v1/hosts")])).ok()?;
        Some(hosts["hosts"].as_array()?.iter().filter(|host| host["state"] == "active").count())
    };
    let know = |count: usize| {
        eventually(&format!("schedulers may use {count} hosts"), LIMIT, || {
            both.iter().all(|address| hosts_of(address) == Some(count)).then_some(())
        });
    };
    know(2);
    assert_eq!(world.agent(&["cordon", "host-1"]).run().code, Some(0));
    know(1);
    std::thread::scope(|scope| {
        for at in 0..EVACUATED {
            let (url, on_first) = (format!("http://{}/v1/placements", both[at % 2]), &on_first);
            let token = world.hosts.folder().join(format!("scheduler-{}/scheduler.token", at % 2));
            let token = format!("Authorization: Bearer {}", std::fs::read_to_string(token).unwrap().trim());
            scope.spawn(move || {
                let request = json!({
                    "id": format!("job-{at}"), "image": "box", "name": format!("job-{at}"), "start": true,
                    "command": ["/bin/busybox", "sh", "-c", format!("trap exit TERM; {RUNS}")],
                });
                let curl = ["curl", "-s", "-H", "Content-Type: application/json", "-H", &token];
                let placed = on_first(&[&curl[..], &["-d", &request.to_string(), &url]].concat());
                assert!(placed.contains("host-2"), "{placed}");
            });
        }
    });
    let names: BTreeSet<String> = (0..EVACUATED).map(|at| format!("job-{at}")).collect();
    assert_eq!(world.hosts.engines[1].names(), names);
    assert_eq!(world.agent(&["uncordon", "host-1"]).run().code, Some(0));

    // The second host is cut off while its containers run on, and its lease has run out.
    world.agents[1].take().unwrap().kill();
    world.hosts.engines[1].hang();
    let key = json!({ "key": base64("/berth/v1/hosts/host-2/host") });
    let lease = world.hosts.etcd.ask("kv/range", &key)["kvs"][0]["lease"].clone();
    world.hosts.etcd.ask("lease/revoke", &json!({ "ID": lease }));
    let mut first = world.schedulers[0].take().unwrap();
    let evacuate = |more: &[&str]| {
        let launch = Launch::bare(Executable::Agent).word("evacuate").word("host-2").flag("--dead");
        let launch = more.iter().fold(launch, Launch::word).in_namespace(&world.hosts.switch.hosts[0]);
        launch.with("--server", &both[0]).with("--or-server", &both[1]).run()
    };
    let planned = eventually("it is gone", LIMIT, || {
        Some(evacuate(&["--dry-run"])).filter(|ended| !ended.errors.contains("host host-2 is there"))
    });
    let moved = planned.output.lines().filter(|line| line.starts_with("job-") && line.contains("host-1")).count();
    assert_eq!((planned.code, moved), (Some(0), EVACUATED), "{planned:?}");
    // Nothing of it moves by itself.
    std::thread::sleep(Duration::from_secs(if is_long() { 600 } else { 1 }));
    assert!(world.hosts.engines[0].names().is_empty());

    // The scheduler that was asked is killed in the middle: what was begun is in the ledger, and the other one goes on.
    let ended = std::thread::scope(|scope| {
        let evacuating = scope.spawn(|| evacuate(&["--yes-it-is-off"]));
        eventually("it has begun", LIMIT, || {
            assert!(!evacuating.is_finished(), "{:?}", evacuate(&["--dry-run"]));
            (!world.hosts.engines[0].names().is_empty()).then_some(())
        });
        first.kill();
        tell(&format!("killed when {} of {EVACUATED} units were elsewhere", world.hosts.engines[0].names().len()));
        evacuating.join().unwrap()
    });
    assert!(ended.code == Some(0) && ended.errors.contains("which goes on"), "{ended:?}");
    let running = |host: usize| -> BTreeSet<String> {
        world.hosts.engines[host].docker(&["ps", "--format", "{{.Names}}"]).lines().map(str::to_owned).collect()
    };
    assert_eq!((running(0), world.hosts.engines[0].names()), (names.clone(), names.clone()), "each once");

    // The host is back: what is left there is no other one's, and is removed.
    world.hosts.engines[1].go_on();
    assert_eq!(running(1), names);
    world.start_agent(1);
    eventually("its copies are gone", LIMIT, || world.hosts.engines[1].names().is_empty().then_some(()));
    let running = world.hosts.engines[0].docker(&["ps", "--format", "{{.Names}}"]);
    assert_eq!(running.lines().count(), EVACUATED);
}

/// The example of a catalog on real engines, with images that stand in for IIS and `MySQL`, which has the part of Windows played by a
/// host of Linux.
#[test]
fn a_template_of_the_catalog_is_brought_up_updated_and_rolled_back() {
    let Some(mut world) = World::new() else { return };
    world.know_both_hosts(&[0]);
    let template = |version: &str| {
        let folder = tests::repository().join("examples/catalog/templates/windows-demo").join(version);
        folder.display().to_string()
    };
    for engine in &world.hosts.engines {
        engine.stand_in("demo-web", 80);
        engine.stand_in("demo-db", 3306);
    }
    let answers = world.file(
        "demo.answers",
        "web_image=demo-web\ndb_image=demo-db\ndata_image=demo-db\nweb_host=io.rancher.host.os=linux\npublic_port=\nroot_password=s3cret-of-demo\n",
    );
    let (first, second) = (template("0"), template("1"));
    let demo = |version: &'static str, more: &[&'static str]| -> Vec<String> {
        let path = if version == "0" { &first } else { &second };
        let words = ["catalog", "up", path.as_str(), "--stack", "shop", "--answers", answers.as_str()];
        words.iter().chain(more).map(|word| (*word).to_owned()).collect()
    };
    let run = |world: &mut World, words: &[String]| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let ended = world.ask(0, &words);
        let told = format!("{}{}", ended.output, ended.errors);
        assert!(ended.code == Some(0) && !told.contains("s3cret-of-demo"), "{words:?}: {told}");
        ended.output
    };
    let done = |world: &mut World, revision: u64| {
        let address = world.address(0);
        let begun = Instant::now();
        eventually(&format!("revision {revision} is done"), LIMIT * 2, || {
            let shown = world.hosts.ask_scheduler(0, &address, &["stacks", "shop", "--json"]);
            let shown: Value = serde_json::from_str(&shown.output).ok()?;
            (shown["state"] == "done" && shown["revision"] == revision).then_some(())
        });
        tell(&format!("revision {revision} of the demo is done after {:?}", begun.elapsed()));
    };
    run(&mut world, &demo("0", &["--detach"]));
    done(&mut world, 1);
    // Two web servers; the database, whose data are of a sidekick.
    let parted = |containers: BTreeSet<(usize, String, String)>| -> (BTreeSet<_>, BTreeSet<_>) {
        containers.into_iter().partition(|(_, name, _)| name.starts_with("shop-web-"))
    };
    let before = parted(world.containers(true));
    assert_eq!((before.0.len(), before.1.is_empty()), (2, false), "{before:?}");

    // The same again changes nothing; the next version replaces the web servers alone.
    let again: Value = serde_json::from_str(&run(&mut world, &demo("0", &["--dry-run", "--json"]))).unwrap();
    assert_eq!(again["is_empty"], true, "{again:#}");
    let planned = run(&mut world, &demo("1", &["--dry-run"]));
    assert!(planned.contains("~ web") && !planned.contains("~ db"), "{planned}");
    run(&mut world, &demo("1", &["--detach"]));
    done(&mut world, 2);
    let after = parted(world.containers(true));
    assert_eq!((after.0.len(), after.0.intersection(&before.0).count()), (2, 0), "{before:?} {after:?}");
    assert_eq!(after.1, before.1);
    world.told(0, &["rollback", "shop", "--detach"]);
    done(&mut world, 3);
    assert_eq!(parted(world.containers(true)).1, before.1);
    world.told(0, &["down", "shop"]);
    assert!(world.containers(true).is_empty(), "{:?}", world.containers(true));
}
