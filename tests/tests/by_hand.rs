//! What people do with containers on three hosts over one scheduler: logs are read, commands run, units started again; and how a
//! compose file has engines check health, wait for jobs and join networks.
//!
//! Linux, as root, with Debian's docker.io, etcd-server and busybox-static.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use tests::docker_hosts::DockerHosts;
use tests::service::Ended;
use tests::{Service, eventually};

const LIMIT: Duration = Duration::from_mins(1);

const METADATA: &str = "127.0.0.1:8250";

/// Everything there is. Fields are dropped in this order.
struct World {
    scheduler: Service,
    agents: Vec<Service>,
    hosts: DockerHosts,
}

impl World {
    fn new() -> Option<Self> {
        let hosts = DockerHosts::start(3)?;
        for engine in &hosts.engines {
            for network in ["front", "back"] {
                engine.docker(&["network", "create", network]);
            }
        }
        let launch = |host| hosts.agent(host).with("--dns", "127.0.0.1:5353").with("--metadata", METADATA);
        let agent = |host| launch(host).start();
        // The last host has no room on its disk.
        let full = full_disk(&root_of(&hosts));
        let full: Vec<&str> = full.iter().map(String::as_str).collect();
        let agents = vec![agent(0), agent(1), launch(2).through(&full).start()];
        let policy = hosts.folder().join("policy.yml");
        std::fs::write(&policy, "subjects: {token: {exec: [shop]}}\n").unwrap();
        let scheduler = hosts.scheduler(0, METADATA).with("--policy", &policy).start();
        Some(Self { scheduler, agents, hosts })
    }

    fn ask(&mut self, words: &[&str]) -> Ended {
        let address = self.scheduler.address().to_string();
        self.hosts.ask_scheduler(0, &address, words)
    }

    fn told(&mut self, words: &[&str]) -> String {
        let ended = self.ask(words);
        assert_eq!(ended.code, Some(0), "{words:?}: {}{}", ended.output, ended.errors);
        ended.output
    }

    fn up(&mut self, name: &str, text: &str) {
        let path = self.hosts.folder().join(name);
        std::fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        let ended = self.ask(&["up", &path, "--timeout", "60"]);
        assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
    }

    /// What the engine that has it says of a container: its host, and the description.
    fn inspected(&self, name: &str) -> (usize, Value) {
        let found = self.hosts.engines.iter().enumerate().find_map(|(host, engine)| {
            let text = engine.try_docker(&["inspect", name]).ok()?;
            Some((host, serde_json::from_str::<Value>(&text).unwrap()[0].clone()))
        });
        found.unwrap_or_else(|| panic!("no engine has {name}"))
    }

    /// The names of the containers of a service.
    fn names(&mut self, service: &str) -> Vec<String> {
        let mut names: Vec<String> = self
            .hosts
            .engines
            .iter()
            .flat_map(|engine| {
                let shown = ["ps", "--all", "--format", "{{.Names}}", "--filter"];
                let label = format!("label=io.berth.unit={service}");
                let with_label = [&shown[..], &[&label]].concat();
                engine.try_docker(&with_label).unwrap_or_default().lines().map(ToOwned::to_owned).collect::<Vec<_>>()
            })
            .collect();
        names.sort();
        names
    }
}

/// The folder of the last host's engine.
fn root_of(hosts: &DockerHosts) -> String {
    hosts.engines[2].docker(&["info", "--format", "{{.DockerRootDir}}"]).trim().to_owned()
}

/// What starts an agent for which the folder of its engine is on a disk without room. It sees another one than the engine does.
fn full_disk(root: &str) -> Vec<String> {
    const SCRIPT: &str = "mount -t tmpfs -o size=1m tmpfs \"$0\" && head -c 1m /dev/zero >\"$0/full\"; exec \"$@\"";
    ["unshare", "--mount", "sh", "-c", SCRIPT, root].map(ToOwned::to_owned).to_vec()
}

/// The line about the last host.
fn on_host_3(text: &str) -> String {
    text.lines().find(|line| line.starts_with("host-3")).unwrap_or_default().to_owned()
}

/// A host without room on its disk gets nothing; then it has some again.
fn a_disk_without_room_keeps_containers_away(world: &mut World) {
    eventually("the disk is seen", LIMIT, || {
        on_host_3(&world.ask(&["hosts"]).output).contains("low on disk").then_some(())
    });
    let path = world.hosts.folder().join("one.json");
    std::fs::write(&path, r#"{"image": "box"}"#).unwrap();
    let path = path.display().to_string();
    let root = root_of(&world.hosts);
    let said = on_host_3(&world.told(&["explain", "-f", &path]));
    assert!(said.contains(&format!("host is low on disk: {root} has to have 0.1 MiB free")), "{said}");
    let full = format!("/proc/{}/root{root}/full", world.agents[2].pid());
    std::fs::remove_file(&full).unwrap_or_else(|error| panic!("{full}: {error}"));
}

const SHOP: &str = r#"
name: shop
services:
  job:
    image: box
    restart: "no"
    command: [/bin/busybox, sh, -c, "sleep 2; echo job is done"]
    deploy: {update_config: {monitor: 1s}}
  web:
    image: box
    depends_on: {job: {condition: service_completed_successfully}}
    command: [/bin/busybox, sh, -c, "trap exit TERM; echo hello from $$(/bin/busybox hostname); echo oops >&2; while :; do sleep 0.1; done"]
    healthcheck: {test: [CMD, /bin/busybox, "true"], interval: 500ms}
    networks: {front: {aliases: [www]}, back: {aliases: [inner]}}
    deploy: {replicas: 3, update_config: {monitor: 1s}}
  pair:
    image: box
    command: [/bin/busybox, sh, -c, "trap exit TERM; echo from the first; while :; do sleep 0.1; done"]
    labels: {io.rancher.sidekicks: log}
    deploy: {update_config: {monitor: 1s}}
  log:
    image: box
    command: [/bin/busybox, sh, -c, "trap exit TERM; while :; do echo from the sidekick; sleep 0.2; done"]
"#;

/// A sidekick has an address of its own, and a client ends when nobody reads what it writes.
fn a_sidekick_is_reached_by_its_name(world: &mut World) {
    let name = format!("{}-log", world.names("pair/1")[0]);
    let logs = world.told(&["logs", "shop/pair/log", "--tail", "3"]);
    let is_its = |line: &str| line.starts_with(&name) && line.ends_with("| from the sidekick");
    assert!(logs.lines().count() == 3 && logs.lines().all(is_its), "{logs}");
    let all = world.told(&["logs", "shop/pair", "--tail", "3"]);
    assert!(all.contains("| from the first") && all.contains("| from the sidekick"), "{all}");
    let hostname = world.inspected(&name).1["Config"]["Hostname"].as_str().unwrap().to_owned();
    for of in ["shop/pair/log", "shop/pair/1/log", &name] {
        assert_eq!(world.told(&["exec", of, "--", "/bin/busybox", "hostname"]).trim(), hostname, "{of}");
    }
    for of in ["shop/pair/2/log", "shop/pair/lo", "shop/pair/1/pair"] {
        assert_eq!(world.ask(&["logs", of]).code, Some(1), "{of}");
    }

    let bytes = world.ask(&["exec", "shop/pair/log", "--", "/bin/busybox", "printf", "a\\tb\\r\\n"]);
    assert_eq!((bytes.code, &*bytes.output), (Some(0), "a\tb\r\n"), "{}", bytes.errors);
    let loud = "for n in $(seq 200); do echo x; printf 'y\\tz\\n' >&2; sleep 0.1; done";
    let exec = ["exec", "shop/pair/log", "--", "/bin/busybox", "sh", "-c", loud];
    for words in [&["logs", "shop/pair/log", "--follow"][..], &exec] {
        let address = world.scheduler.address().to_string();
        let client = world.hosts.client_of_scheduler(0, &address, words);
        let full = client.clone().through(&["sh", "-c", "exec \"$@\" >/dev/full", "sh"]).run();
        assert!(full.code == Some(1) && full.errors.contains("error: standard output: "), "{words:?}: {}", full.errors);
        let closed = client.through(&["sh", "-c", "\"$@\" | head -n 1", "sh"]).run();
        assert_eq!((closed.code, closed.output.lines().count()), (Some(0), 1), "{words:?}: {}", closed.errors);
        assert!(!closed.errors.contains("error"), "{words:?}: {}", closed.errors);
        if words[0] == "exec" {
            assert!(closed.errors.contains("y\tz\n"), "{:?}", closed.errors);
        }
    }
}

/// A log that is followed goes on when a container is started again, and with one that is new.
fn logs_go_on_after_a_restart(world: &mut World) {
    let address = world.scheduler.address().to_string();
    let following = world.hosts.client_of_scheduler(0, &address, &["logs", "shop/web", "--follow"]).start();
    let hellos = |name: &str| {
        let printed = following.printed();
        printed.lines().filter(|line| line.starts_with(name) && line.contains("| hello from")).count()
    };
    let restarted = world.names("web/1").remove(0);
    let before = eventually("what was written before", LIMIT, || Some(hellos(&restarted)).filter(|count| *count > 0));
    world.told(&["restart", "shop/web/1"]);
    eventually("its next start", LIMIT, || (hellos(&restarted) > before).then_some(()));
    world.told(&["scale", "shop/web=4"]);
    let new = world.names("web/4").remove(0);
    eventually("one more unit", LIMIT, || (hellos(&new) == 1).then_some(()));
}

/// Old images go, those that a container has do not.
fn images_are_pruned(world: &mut World) {
    for engine in &world.hosts.engines[..2] {
        for image in ["old:1", "old:2", "old:3"] {
            engine.import(image, &[], &[]);
            std::thread::sleep(Duration::from_millis(1100));
        }
        engine.docker(&["create", "--name", "holds", "old:1", "none"]);
    }
    world.hosts.engines[1].docker(&["rm", "holds"]);
    let planned = world.told(&["images", "prune", "--keep-last", "1", "--dry-run"]);
    let about = |text: &str, host: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with(host)).map(|line| line.split_whitespace().nth(1));
        lines.map(|name| name.unwrap().to_owned()).collect()
    };
    assert_eq!(about(&planned, "host-1"), ["old:2"], "{planned}");
    assert_eq!(about(&planned, "host-2"), ["old:2", "old:1"], "{planned}");
    world.told(&["images", "prune", "--keep-last", "1", "--host", "host-2"]);
    let left = |host: usize| {
        let images = world.hosts.engines[host].docker(&["images", "--format", "{{.Repository}}:{{.Tag}}", "old"]);
        images.lines().count()
    };
    assert_eq!((left(0), left(1)), (3, 1));
}

#[test]
fn logs_and_commands_are_of_containers_on_all_hosts() {
    let Some(mut world) = World::new() else { return };
    eventually("all hosts are there", LIMIT, || {
        let ended = world.ask(&["hosts"]);
        ["host-1", "host-2", "host-3"].iter().all(|host| ended.output.contains(host)).then_some(())
    });
    a_disk_without_room_keeps_containers_away(&mut world);

    // A log that is followed ends with its container.
    let talk = "name: other\nservices:\n  talk:\n    image: box\n    restart: 'no'\n\
                \x20   command: [/bin/busybox, sh, -c, 'for n in 1 2 3 4 5 6; do echo line $$n; sleep 1; done']\n";
    let path = world.hosts.folder().join("other.yml");
    std::fs::write(&path, talk).unwrap();
    world.told(&["up", &path.display().to_string(), "--detach"]);
    // Refusals have a share of the audit log alone, so nothing is asked for in vain.
    eventually("the container is there", LIMIT, || (!world.names("talk/1").is_empty()).then_some(()));
    let followed = eventually("the log is followed to its end", LIMIT, || {
        let ended = world.ask(&["logs", "other/talk", "--follow"]);
        (ended.code == Some(0)).then_some(ended.output)
    });
    assert!(followed.contains("line 1") && followed.contains("line 6"), "{followed}");
    eventually("the disk has room", LIMIT, || {
        on_host_3(&world.ask(&["hosts"]).output).contains("active").then_some(())
    });

    world.up("shop.yml", SHOP);
    let units = ["web/1", "web/2", "web/3"];
    let names = units.map(|unit| world.names(unit)).concat();
    assert_eq!(names.len(), 3, "{names:?}");
    let hosts: BTreeSet<usize> = names.iter().map(|name| world.inspected(name).0).collect();
    assert_eq!(hosts, BTreeSet::from([0, 1, 2]), "one on each host");

    // The job was over before the others began; engines check health and know both networks.
    let job = world.names("job/1");
    let (_, ended) = world.inspected(&job[0]);
    let (_, web) = world.inspected(&names[0]);
    let at = |value: &Value| value.as_str().unwrap().to_owned();
    assert!(at(&ended["State"]["FinishedAt"]) < at(&web["State"]["StartedAt"]), "{ended} {web}");
    assert_eq!(web["State"]["Health"]["Status"], "healthy", "{}", web["State"]);
    let networks = &web["NetworkSettings"]["Networks"];
    for (network, alias) in [("front", "www"), ("back", "inner")] {
        assert!(networks[network]["Aliases"].as_array().unwrap().contains(&alias.into()), "{networks}");
    }

    // Logs of all, whatever host they are on.
    let logs = world.told(&["logs", "shop/web", "--tail", "10"]);
    for name in &names {
        assert!(logs.lines().any(|line| line.starts_with(name.as_str()) && line.contains("hello from")), "{logs}");
        assert!(logs.lines().any(|line| line.starts_with(name.as_str()) && line.ends_with("| oops")), "{logs}");
    }
    let one = world.told(&["logs", "shop/web/2", "--tail", "1"]);
    assert_eq!(one.lines().count(), 1, "{one}");
    assert_eq!(world.ask(&["logs", "shop/nobody"]).code, Some(1));

    let described = world.told(&["inspect", "shop/web/1"]);
    let described: Value = serde_json::from_str(&described).unwrap();
    assert_eq!(described[0]["engine"]["State"]["Health"]["Status"], "healthy", "{described}");

    // Commands, where the policy allows them.
    for (unit, name) in units.iter().zip(&names) {
        let (_, found) = world.inspected(name);
        let ran = world.told(&["exec", &format!("shop/{unit}"), "--", "/bin/busybox", "hostname"]);
        assert_eq!(ran.trim(), found["Config"]["Hostname"].as_str().unwrap());
    }
    let failed = world.ask(&["exec", "shop/web", "--", "/bin/busybox", "sh", "-c", "echo secret-word >&2; exit 3"]);
    assert_eq!(failed.code, Some(1));
    assert!(failed.errors.contains("secret-word") && failed.errors.contains("ended with code 3"), "{}", failed.errors);
    let denied = world.ask(&["exec", "other/talk", "--", "/bin/busybox", "true"]);
    assert_eq!(denied.code, Some(1));
    assert!(denied.errors.contains("exec") && denied.errors.contains("(403)"), "{}", denied.errors);

    // The same containers run again, and nothing takes their place.
    let (_, before) = world.inspected(&names[0]);
    world.told(&["restart", "shop/web/1"]);
    let (_, after) = world.inspected(&names[0]);
    assert_eq!(before["Id"], after["Id"]);
    assert!(at(&before["State"]["StartedAt"]) < at(&after["State"]["StartedAt"]), "{before} {after}");
    assert_eq!(units.map(|unit| world.names(unit)).concat(), names);
    let refused = world.ask(&["stop", "shop/web/1"]);
    assert!(refused.code == Some(1) && refused.errors.contains("scheduler scale"), "{}", refused.errors);
    world.told(&["run", "--name", "alone", "--stop-timeout", "1", "box", "/bin/busybox", "sleep", "3600"]);
    world.told(&["stop", "alone"]);
    assert_eq!(world.inspected("alone").1["State"]["Running"], false);
    world.told(&["restart", "alone"]);
    assert_eq!(world.inspected("alone").1["State"]["Running"], true);

    a_sidekick_is_reached_by_its_name(&mut world);
    logs_go_on_after_a_restart(&mut world);
    images_are_pruned(&mut world);

    // Who did what is on record, without the arguments of commands.
    let audit = || std::fs::read_to_string(world.hosts.folder().join("scheduler-0/audit.ndjson")).unwrap();
    // Lines are written by a thread of their own: the last one may not be whole yet.
    let noted = |action: &str, outcome: &str, of: &str| {
        let audit = audit();
        let mut lines = audit.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.any(|line| line["action"] == action && line["outcome"] == outcome && line["request"] == of)
    };
    for (action, outcome, of) in [
        ("logs", "read", "shop/web"),
        ("exec", "begun", "shop/web"),
        ("exec", "ended", "shop/web"),
        ("exec", "refused", "other/talk"),
        ("restart", "restarted", "shop/web/1"),
        ("stop", "failed", "shop/web/1"),
        ("stop", "stopped", "alone"),
        ("prune", "pruned", "host-2"),
    ] {
        eventually(&format!("{action} {outcome} {of} is on record"), LIMIT, || {
            noted(action, outcome, of).then_some(())
        });
    }
    assert!(!audit().contains("secret-word"), "{}", audit());
}
