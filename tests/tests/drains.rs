//! Drains that do not come to their end: what is to take the place of a unit does not become healthy, or the operator wants it and does
//! not want it in turn.
//!
//! Linux, as root, with Debian's docker.io, etcd-server and busybox-static.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tests::service::Ended;
use tests::stacked::Stacked;
use tests::{Executable, Launch, eventually, tell};

const LIMIT: Duration = Duration::from_mins(1);

/// Healthy only where a person puts a file; it takes its time to stop.
const SERVICES: &str = "[{service: web, stack: shop, image: box, count: 2, stop_timeout: 3,
  update: {monitor: 1, deadline: 4}, healthcheck: {test: [CMD, /bin/busybox, test, -e, /well], interval: 300, retries: 1},
  command: [/bin/busybox, sh, -c, 'trap \"\" TERM; while :; do sleep 1; done']}]
";

fn agent(world: &Stacked, words: &[&str]) -> Ended {
    let launch = words.iter().fold(Launch::bare(Executable::Agent), Launch::word);
    launch.with("--etcd", world.hosts.etcd.urls()).in_namespace(&world.hosts.switch.hosts[0]).run()
}

/// The names of the containers of the stack that run on a host.
fn running(world: &Stacked, host: usize) -> Vec<String> {
    let shown = ["ps", "--filter", "label=io.berth.stack=shop", "--format", "{{.Names}}"];
    world.hosts.engines[host].docker(&shown).lines().map(str::to_owned).collect()
}

/// How many containers of each unit run, by its index.
fn of_each(world: &Stacked) -> BTreeMap<String, usize> {
    let mut units = BTreeMap::new();
    for engine in &world.hosts.engines {
        let shown = ["ps", "--filter", "label=io.berth.stack=shop", "--format", "{{.Label \"io.berth.unit\"}}"];
        for unit in engine.docker(&shown).lines() {
            *units.entry(unit.to_owned()).or_default() += 1;
        }
    }
    units
}

#[test]
fn a_drain_in_vain_says_why_and_one_that_is_wanted_again_and_again_starts_little() {
    let Some(mut world) = Stacked::start(2) else { return };
    let file = world.file("web.yml", SERVICES);
    // Both are on the host that is drained.
    assert_eq!(agent(&world, &["cordon", "host-2"]).code, Some(0));
    world.ends(0, &["up", &file, "--stack", "shop", "--detach"]);
    eventually("both run", LIMIT, || {
        let names = running(&world, 0);
        for name in &names {
            let _ = world.hosts.engines[0].try_docker(&["exec", name, "/bin/busybox", "touch", "/well"]);
        }
        (names.len() == 2 && world.json(&["stacks", "shop"])["state"] == "done").then_some(())
    });
    let before = running(&world, 0);
    assert_eq!(agent(&world, &["uncordon", "host-2"]).code, Some(0));

    let address = world.address();
    assert_eq!(agent(&world, &["drain", "host-1", "--detach", "--server", &address]).code, Some(0));
    let begun = Instant::now();
    let reasons = |said: &str| said.matches("was not healthy within 4 s; it is tried again").count();
    eventually("both were tried", LIMIT * 2, || {
        let asked = agent(&world, &["drain", "host-1", "--dry-run", "--json", "--server", &address]);
        (reasons(&asked.output) == 2).then_some(())
    });
    tell(&format!("both have failed {:?} after the drain began", begun.elapsed()));
    let drained = agent(&world, &["drain", "host-1", "--server", &address, "--timeout", "2"]);
    assert!(drained.code == Some(1) && reasons(&drained.errors) >= 4, "before and at the end: {drained:?}");
    let shown = world.ends(0, &["stacks", "shop"]);
    assert!(shown.contains("was not healthy within 4 s"), "{shown}");
    assert_eq!(running(&world, 0), before, "nothing stopped here");

    // Wanted and not wanted, faster than what was begun for it can stop.
    let mut most = 0;
    for _ in 0..5 {
        assert_eq!(agent(&world, &["uncordon", "host-1"]).code, Some(0));
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(agent(&world, &["drain", "host-1", "--detach", "--server", &address]).code, Some(0));
        std::thread::sleep(Duration::from_secs(1));
        most = most.max(of_each(&world).into_values().max().unwrap());
    }
    assert!(most <= 2, "of one unit {most} run");
    assert_eq!(running(&world, 0), before);

    // Fewer are wanted in the middle of that.
    world.ends(0, &["scale", "shop/web=1", "--detach"]);
    eventually("that is done", LIMIT, || {
        let stage = world.json(&["stacks", "shop"])["services"][0]["stage"].clone();
        assert_ne!(stage, "stuck");
        (stage == "steady" && running(&world, 0).len() == 1).then_some(())
    });

    // What is well elsewhere takes its place at last.
    eventually("it moves", LIMIT * 3, || {
        for name in running(&world, 1) {
            let _ = world.hosts.engines[1].try_docker(&["exec", &name, "/bin/busybox", "touch", "/well"]);
        }
        (running(&world, 0).is_empty() && running(&world, 1).len() == 1).then_some(())
    });
    world.ends(0, &["down", "shop"]);
}
