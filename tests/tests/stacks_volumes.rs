//! `scheduler down --volumes` on two real engines: what was made for the stack is removed, and nothing else.
//!
//! Linux, as root, with Debian's docker.io, etcd-server and busybox-static.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use tests::docker_hosts::DockerHosts;
use tests::stacked::Stacked;
use tests::{Launch, eventually};

const LIMIT: Duration = Duration::from_mins(1);

/// A stack with volumes of its own, with one for each unit, and with such as others have made.
const SHOP: &str = "name: shop
services:
  db:
    image: box
    command: [/bin/busybox, sh, -c, 'trap exit TERM; echo data > /data/file; sleep 1000 & wait']
    stop_grace_period: 2s
    volumes: ['data:/data', 'each:/each', 'theirs:/theirs', 'before:/before', '/without']
    deploy: {replicas: 2, update_config: {monitor: 1s}}
volumes: {data: {}, each: {per_container: true}, theirs: {external: true}, before: {}}
";

/// A stack whose unit adds a line to its volume whenever it begins.
const BASE: &str = "name: base
volumes: {base: {per_container: true}}
services:
  base:
    image: box
    command: [/bin/busybox, sh, -c, 'trap exit TERM; echo run >> /data/runs; sleep 1000 & wait']
    stop_grace_period: 2s
    volumes: ['base:/data']
    deploy: {update_config: {monitor: 1s}}
";

const POLICY: &str = "default:
  volumes: [data, 'shop-*', theirs, before]
  privileges: [volume_options=type=tmpfs, volume_options=device=tmpfs, volume_options=o]
";

/// A stack with a volume that has options, and a service that is started later.
const MEMORY: &str = "name: memory
services:
  db: &service
    image: box
    command: [/bin/busybox, sh, -c, 'trap exit TERM; sleep 1000 & wait']
    volumes: ['shop-memory:/memory']
    deploy: {update_config: {monitor: 1s}}
  later: {<<: *service, volumes: [], scale: 2, start_on_create: false}
volumes: {shop-memory: {driver_opts: {type: tmpfs, device: tmpfs, o: size=64k}}}
";

#[test]
fn a_stack_is_removed_with_the_volumes_that_were_made_for_it() {
    let Some(mut world) = Stacked::start(2) else { return };
    for engine in &world.hosts.engines {
        // Neither is the stack's: one is said to be external, the other one was there.
        engine.docker(&["volume", "create", "theirs"]);
        engine.docker(&["volume", "create", "before"]);
        engine.docker(&["volume", "create", "--label", "io.berth.stack=shop", "other"]);
    }
    let others: BTreeSet<_> =
        [0, 1].iter().flat_map(|host| ["theirs", "before", "other"].map(|name| (*host, name.to_owned()))).collect();
    let file = world.file("shop.yml", SHOP);
    world.ends(0, &["up", &file]);
    let all = world.volumes();
    let own: BTreeSet<_> = all.difference(&others).cloned().collect();
    let named = |name: &str| own.iter().filter(|(_, own)| own == name).count();
    assert_eq!((own.len(), named("shop-each-1"), named("shop-each-2")), (named("data") + 2, 1, 1), "{own:?}");

    // What would go is shown, and stays.
    let shown = world.json(&["down", "shop", "--volumes", "--dry-run"]);
    let listed: BTreeSet<_> = (shown["volumes"].as_array().unwrap().iter())
        .map(|volume| {
            assert_eq!(volume["removed"], true, "{shown:#}");
            let host = volume["host"].as_str().unwrap().strip_prefix("host-").unwrap();
            (host.parse::<usize>().unwrap() - 1, volume["name"].as_str().unwrap().to_owned())
        })
        .collect();
    assert_eq!((listed, shown["units"].as_array().unwrap().len()), (own.clone(), 2), "{shown:#}");
    let said = world.ends(0, &["down", "shop", "--dry-run"]);
    assert!(said.contains("stays: --volumes removes it"), "{said}");
    assert_eq!((world.running("shop"), world.volumes()), (2, all.clone()));

    // Without the switch all stay, and the next stack of this name has them again.
    world.ends(0, &["down", "shop"]);
    assert_eq!((world.running("shop"), world.volumes()), (0, all.clone()));
    world.ends(0, &["up", &file]);
    let (host, _) = own.iter().find(|(_, name)| name == "data").unwrap().clone();
    let user = ["--volume", "data:/data", "--label", "own=1"];
    world.hosts.engines[host].run_box("user", &user);

    // What somebody else uses is not torn away: that is said, and how to leave it.
    let said = world.ends(1, &["down", "shop", "--volumes"]);
    assert!(said.contains("volume data of") && said.contains("without --volumes"), "{said}");
    let left: BTreeSet<_> = world.volumes().difference(&others).cloned().collect();
    assert_eq!(left, [(host, "data".to_owned())].into());
    assert_eq!(world.running("shop"), 0);
    world.hosts.engines[host].docker(&["rm", "--force", "user"]);
    eventually("the last one is removed too", LIMIT, || (world.volumes() == others).then_some(()));
    eventually("the stack is gone", LIMIT, || (world.ask(&["stacks", "shop"]).code == Some(1)).then_some(()));
    what_another_placement_mounts_stays_for_good(&mut world, &file, &others);
    a_unit_is_where_its_volume_is(&mut world);
    a_unit_is_where_an_external_volume_is(&mut world);
    an_old_unit_ends_before_the_next_one_has_its_volume_and_port(&mut world);
}

/// Each host has one, which takes longer to end than a scheduler looks for room in vain.
fn an_old_unit_ends_before_the_next_one_has_its_volume_and_port(world: &mut Stacked) {
    const SLOW: &str = "name: slow
volumes: {slow: {}}
services:
  slow:
    image: box
    command: [/bin/busybox, sh, -c, 'trap \"sleep 7; echo end $$N >> /data/log; exit\" TERM; echo start $$N >> /data/log; sleep 1000 & wait']
    stop_grace_period: 20s
    environment: {N: '1'}
    volumes: ['slow:/data']
    ports: ['8096:80']
    deploy: {replicas: 2, update_config: {monitor: 1s, parallelism: 2}}
";
    let file = world.file("slow.yml", SLOW);
    world.ends(0, &["up", &file]);
    let file = world.file("slow.yml", &SLOW.replace("N: '1'", "N: '2'"));
    world.ends(0, &["up", &file]);
    for engine in &world.hosts.engines {
        let id = engine.docker(&["ps", "--quiet", "--filter", "label=io.berth.stack=slow"]).trim().to_owned();
        let log = engine.docker(&["exec", &id, "/bin/busybox", "cat", "/data/log"]);
        assert_eq!(log, "start 1\nend 1\nstart 2");
    }
    world.ends(0, &["down", "slow", "--volumes"]);
}

/// Whatever speaks for another host; an engine would make an empty one there.
fn a_unit_is_where_an_external_volume_is(world: &mut Stacked) {
    world.hosts.engines[1].docker(&["volume", "create", "only-here"]);
    world.hosts.engines[1].run_box("busy", &["--label", "own=1"]);
    let text = BASE.replace("base:", "only:").replace("only:/data", "VOLUME:/data");
    let text = text.replace("volumes: {only: {per_container: true}}", "volumes: {VOLUME: {external: true}}");
    let named = |name: &str| text.replace("name: base", "name: external").replace("VOLUME", name);
    let lost = world.file("external.yml", &named("nowhere"));
    let said = world.ends(1, &["up", &lost]);
    assert!(said.contains("no volume nowhere there, and it is external"), "{said}");
    let file = world.file("external.yml", &named("only-here"));
    world.ends(0, &["up", &file]);
    let units =
        |host: usize| world.hosts.engines[host].docker(&["ps", "--quiet", "--filter", "label=io.berth.unit=only/1"]);
    assert_eq!([0, 1].map(|host| units(host).lines().count()), [0, 1]);
    let there: BTreeSet<_> = world.volumes().into_iter().filter(|(_, name)| name == "only-here").collect();
    assert_eq!(there, [(1, "only-here".to_owned())].into());
    world.ends(0, &["down", "external"]);
    world.hosts.engines[1].docker(&["rm", "--force", "busy"]);
    world.hosts.engines[1].docker(&["volume", "rm", "only-here"]);
}

/// Whatever else speaks for another host. Each run adds a line to the volume.
fn a_unit_is_where_its_volume_is(world: &mut Stacked) {
    let file = world.file("base.yml", BASE);
    world.ends(0, &["up", &file]);
    let (host, _) = world.volumes().into_iter().find(|(_, name)| name == "base-base-1").expect("a host has it");
    let runs = |world: &Stacked| {
        let engine = &world.hosts.engines[host];
        let id = engine.docker(&["ps", "--quiet", "--filter", "label=io.berth.unit=base/1"]).trim().to_owned();
        let lines = engine.try_docker(&["exec", &id, "/bin/busybox", "wc", "-l", "/data/runs"]).unwrap_or_default();
        (id, lines.split(' ').next().and_then(|count| count.parse::<u32>().ok()))
    };
    eventually("it runs", LIMIT, || (runs(world).1 == Some(1)).then_some(()));
    for name in ["busy-1", "busy-2", "busy-3"] {
        world.hosts.engines[host].run_box(name, &["--label", "own=1"]);
    }
    let (id, _) = runs(world);
    world.hosts.engines[host].docker(&["kill", &id]);
    eventually("another one has its data", LIMIT, || (runs(world).1 == Some(2)).then_some(()));
    let (id, _) = runs(world);
    world.hosts.engines[host].docker(&["rm", "--force", &id]);
    eventually("what comes after one that a person has removed, too", LIMIT, || {
        (runs(world).1 == Some(3)).then_some(())
    });
    world.ends(0, &["scale", "base/base=0"]);
    eventually("it is removed", LIMIT, || (world.running("base") == 0).then_some(()));
    world.restart_scheduler();
    eventually("the scheduler has read its ledger", LIMIT, || {
        (world.ask(&["scale", "base/base=1"]).code == Some(0)).then_some(())
    });
    eventually("the next one has its data", LIMIT, || (runs(world).1 == Some(4)).then_some(()));

    // Where its volume is it finds no room for what it becomes: nothing stops for that.
    let host_name = format!("host-{}", host + 1);
    let words = ["run", "--name", "has-port", "--host", &host_name, "--publish", "8099:80"];
    world.ends(0, &[&words[..], &["box", "/bin/busybox", "sleep", "1000"]].concat());
    let before = runs(world);
    let other = world.file("base.yml", &format!("{BASE}    ports: ['8099:8099']\n"));
    let said = world.ends(1, &["up", &other]);
    assert!(said.contains("8099"), "{said}");
    assert_eq!(runs(world), before);
    world.ends(0, &["rm", "--time", "0", "has-port"]);
    world.ends(0, &["up", &other]);
    eventually("it is replaced where its data are", LIMIT, || (runs(world).1 == Some(5)).then_some(()));
    // Without the volume it may be anywhere; with it, it is there again.
    let without = BASE.replace("    volumes: ['base:/data']\n", "").replace("echo run >> /data/runs; ", "");
    let without = world.file("base.yml", &without);
    world.ends(0, &["up", &without]);
    world.ends(0, &["rollback", "base"]);
    eventually("it is back where its data are", LIMIT, || (runs(world).1 == Some(6)).then_some(()));
    assert_eq!(world.volumes().iter().filter(|(_, name)| name.starts_with("base-")).count(), 1);
    world.ends(0, &["down", "base", "--volumes"]);
    for name in ["busy-1", "busy-2", "busy-3"] {
        world.hosts.engines[host].docker(&["rm", "--force", name]);
    }
}

/// What it wrote there is not the stack's.
fn what_another_placement_mounts_stays_for_good(world: &mut Stacked, file: &str, others: &BTreeSet<(usize, String)>) {
    world.ends(0, &["up", file]);
    let (host, _) = world.volumes().into_iter().find(|(_, name)| name == "data").expect("a host has it");
    let host_name = format!("host-{}", host + 1);
    let mount = ["--host", &host_name, "--volume", "data:/data"];
    let words = [&["run", "--name", "keeper"], &mount[..], &["box", "/bin/busybox", "sleep", "1000"]].concat();
    world.ends(0, &words);
    let shown = world.json(&["down", "shop", "--volumes", "--dry-run"]);
    let stays = shown["volumes"].as_array().expect("a list").iter().filter(|volume| volume["removed"] == false);
    let stays: Vec<_> = stays.map(|volume| (&volume["host"], &volume["name"])).collect();
    assert_eq!(stays, [(&host_name.clone().into(), &"data".into())], "{shown:#}");
    world.ends(0, &["down", "shop", "--volumes"]);
    world.ends(0, &["rm", "--time", "0", "keeper"]);
    assert_eq!(world.ask(&["stacks", "shop"]).code, Some(1), "it is gone, so nothing is tried again");
    let left: BTreeSet<_> = world.volumes().difference(others).cloned().collect();
    assert_eq!(left, [(host, "data".to_owned())].into());
}

#[test]
fn volumes_stay_that_the_policy_does_not_give_and_those_of_a_host_that_is_away() {
    let policy = |scheduler: Launch, hosts: &DockerHosts| {
        let path = hosts.folder().join("policy.yml");
        std::fs::write(&path, POLICY).unwrap();
        scheduler.with("--policy", path)
    };
    let Some(mut world) = Stacked::start_with(2, policy) else { return };
    for engine in &world.hosts.engines {
        engine.docker(&["volume", "create", "theirs"]);
    }
    let file = world.file("shop.yml", SHOP);
    world.ends(0, &["up", &file]);
    // A volume with the labels of the stack that nobody may have: by its name a person would not know.
    let inspect = ["volume", "inspect", "--format", "{{json .Labels}}", "shop-each-1"];
    let shown = world.hosts.engines.iter().find_map(|engine| engine.try_docker(&inspect).ok()).unwrap();
    let own: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((own.as_object().unwrap().len(), &own["io.berth.stack"]), (2, &"shop".into()), "{own}");
    let labels = ["io.berth.stack", "io.berth.ledger"].map(|key| format!("{key}={}", own[key].as_str().unwrap()));
    let forged = ["volume", "create", "--label", &labels[0], "--label", &labels[1], "bank"];
    world.hosts.engines[0].docker(&forged);
    let before = world.volumes();
    let said = world.ends(1, &["down", "shop", "--volumes"]);
    assert!(said.contains("volumes") && said.contains("bank"), "{said}");
    assert_eq!((world.volumes(), world.running("shop")), (before, 2), "nothing was begun");
    world.hosts.engines[0].docker(&["volume", "rm", "bank"]);

    // An engine that says nothing: the client is not told that all is well.
    world.hosts.engines[1].hang();
    let said = world.ends(1, &["down", "shop", "--volumes", "--timeout", "15"]);
    world.hosts.engines[1].go_on();
    assert!(!said.contains("is removed"), "{said}");
    eventually("all is removed once it is back", LIMIT * 2, || {
        (world.running("shop") == 0 && world.volumes().iter().all(|(_, name)| name == "theirs")).then_some(())
    });
    eventually("the stack is gone", LIMIT, || (world.ask(&["stacks", "shop"]).code == Some(1)).then_some(()));
    volumes_have_the_options_of_the_file_and_services_wait_for_their_start(&mut world);
}

fn volumes_have_the_options_of_the_file_and_services_wait_for_their_start(world: &mut Stacked) {
    let folder = world.file("memory.yml", &MEMORY.replace("device: tmpfs", "device: /etc"));
    let denied = world.ends(1, &["up", &folder]);
    assert!(denied.contains("volume_options.shop-memory") && denied.contains("privileges"), "{denied}");
    let file = world.file("memory.yml", MEMORY);
    let said = world.ends(0, &["up", &file]);
    assert!(said.contains("`scheduler scale memory/later=2` does"), "{said}");
    assert_eq!(world.running("memory"), 1);
    let (host, _) = world.volumes().into_iter().find(|(_, name)| name == "shop-memory").expect("a host has it");
    let engine = &world.hosts.engines[host];
    let name = engine.docker(&["ps", "--quiet", "--filter", "label=io.berth.unit=db/1"]);
    let room = engine.docker(&["exec", name.trim(), "/bin/busybox", "df", "-k", "/memory"]);
    assert!(room.lines().any(|line| line.starts_with("tmpfs") && line.contains(" 64 ")), "{room}");
    world.ends(0, &["scale", "memory/later=1"]);
    world.ends(0, &["up", &file]);
    assert_eq!(world.running("memory"), 2, "what was started stays so");

    // What is there has its options for good, and nothing is written beside it.
    let other = world.file("memory.yml", &MEMORY.replace("64k", "128k"));
    let said = world.ends(1, &["up", &other]);
    assert!(said.contains("other options than driver_opts"), "{said}");
    world.ends(0, &["down", "memory", "--volumes"]);
}
