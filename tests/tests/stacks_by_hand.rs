//! What a person does with a stack on real engines: looks at plans, confirms, pauses, goes back; and etcd is away meanwhile.
//!
//! Linux, as root, with Debian's docker.io, etcd-server and busybox-static.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tests::namespace::command;
use tests::stacked::Stacked;
use tests::{eventually, tell};

const LIMIT: Duration = Duration::from_mins(1);

/// For how long etcd is away: longer than a scheduler holds its lease.
const AWAY: Duration = Duration::from_secs(15);

/// A request of a service with these fields.
fn services(fields: &str) -> String {
    let script = "trap exit TERM; sleep 1000 & wait";
    format!("[{{service: web, image: box, command: [/bin/busybox, sh, -c, '{script}'], stop_timeout: 2, {fields}}}]\n")
}

/// The containers of the stack: whether it runs, by name.
fn containers(world: &Stacked) -> BTreeMap<String, bool> {
    let mut found = BTreeMap::new();
    for engine in &world.hosts.engines {
        let words = ["ps", "--all", "--filter", "label=io.berth.stack=shop", "--format", "{{.Names}} {{.State}}"];
        for line in engine.docker(&words).lines() {
            let (name, state) = line.split_once(' ').unwrap();
            found.insert(name.to_owned(), state == "running");
        }
    }
    found
}

/// Asks for the name of the service, uses the first address for as long as names may be cached, a second, and begins again, until a file is
/// there; prints a line for each request.
const CLIENT: &str = "while [ ! -e \"$0\" ]; do
    address=$(dig +short +time=1 +tries=1 @127.0.0.1 -p 5353 web.shop.rancher.internal | head -1)
    end=$(($(date +%s%N) + 1000000000))
    while [ $(date +%s%N) -lt $end ]; do
        if curl -sf -m 2 -o /dev/null \"http://$address/\"; then echo ok; else echo \"failed at $address\"; fi
        sleep 0.05
    done
done";

/// Clients at once: each may have cached another unit.
const CLIENTS: usize = 4;

#[test]
fn clients_that_ask_by_name_notice_no_update() {
    let Some(mut world) = Stacked::start(1) else { return };
    // It takes no connections from its signal on.
    world.hosts.engines[0].stand_in("web", 80);
    let file = |world: &Stacked, mark: u32| {
        let service = "{service: web, image: web, count: 2, stop_timeout: 2, update: {monitor: 1}";
        world.file("shop.yml", &format!("[{service}, environment: {{MARK: '{mark}'}}}}]\n"))
    };
    let up = |world: &mut Stacked, mark: u32| {
        let file = file(world, mark);
        world.ends(0, &["up", &file, "--stack", "shop"])
    };
    up(&mut world, 1);
    let old = containers(&world);
    let over = world.hosts.folder().join("over");
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut client = command(Some(&world.hosts.switch.hosts[0]), "sh");
            client.args(["-c", CLIENT]).arg(&over).stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    up(&mut world, 2);
    let new = containers(&world);
    assert!(new.len() == 2 && old.keys().all(|name| !new.contains_key(name)), "{old:?} {new:?}");
    std::fs::write(&over, "").unwrap();
    let said = clients.into_iter().map(|client| String::from_utf8(client.wait_with_output().unwrap().stdout).unwrap());
    let said: Vec<String> = said.collect();
    tell(&format!("{} requests by name while all units were replaced", said.concat().lines().count()));
    for said in said {
        // How many more there are depends on how fast the machine is.
        assert!(said.lines().count() > 10 && said.lines().all(|line| line == "ok"), "{said}");
    }
    world.ends(0, &["down", "shop"]);
}

#[test]
fn a_person_confirms_pauses_and_goes_back() {
    let Some(mut world) = Stacked::start(1) else { return };
    let file = |world: &Stacked, fields: &str| world.file("shop.yml", &services(fields));
    let rules = "update: {monitor: 1, confirm: true}";
    let first = file(&world, &format!("ports: ['18080:80'], environment: {{A: secret-1}}, {rules}"));
    let up = |world: &mut Stacked, file: &str, more: &[&str]| {
        world.ask(&[&["up", file, "--stack", "shop"][..], more].concat())
    };
    let done = up(&mut world, &first, &["--expect", "0"]);
    assert_eq!(done.code, Some(0), "{}{}", done.output, done.errors);
    let old = containers(&world);
    assert_eq!(old.values().collect::<Vec<_>>(), [&true]);

    // Its port is taken by the old one: what comes first is said before, and no value of a variable is shown.
    let second = file(&world, &format!("ports: ['18080:80'], environment: {{A: secret-2}}, {rules}"));
    let planned = world.ends(0, &["plan", &second, "--stack", "shop"]);
    assert!(planned.contains("stop-first") && planned.contains("--expect 1"), "{planned}");
    assert!(planned.contains("environment.A") && !planned.contains("secret-"), "{planned}");
    let strict = "ports: ['18080:80'], environment: {A: secret-2}, update: {monitor: 1, order: start-first}";
    let strict = file(&world, strict);
    let planned = world.ends(1, &["plan", &strict, "--stack", "shop"]);
    assert!(planned.contains("nowhere"), "{planned}");
    let failed = up(&mut world, &strict, &[]);
    assert_eq!(failed.code, Some(1), "{}{}", failed.output, failed.errors);
    assert_eq!(containers(&world), old, "nothing was stopped for it");

    // The old one is kept until the new one is confirmed.
    let second = file(&world, &format!("ports: ['18080:80'], environment: {{A: secret-2}}, {rules}"));
    let done = up(&mut world, &second, &[]);
    let said = done.output + &done.errors;
    assert!(done.code == Some(0) && said.contains("unconfirmed"), "{said}");
    let both = containers(&world);
    assert_eq!((both.len(), both.values().filter(|runs| **runs).count()), (2, 1), "{both:?}");
    let back = world.ends(0, &["rollback", "shop"]);
    assert!(back.contains("shop is"), "{back}");
    eventually("the same container runs again", LIMIT, || {
        let now = containers(&world);
        old.keys().all(|name| now.get(name) == Some(&true)).then_some(())
    });
    let done = up(&mut world, &second, &[]);
    assert_eq!(done.code, Some(0), "{}{}", done.output, done.errors);
    world.ends(0, &["confirm", "shop"]);
    eventually("the old one is removed", LIMIT, || (containers(&world).len() == 1).then_some(()));

    // What is paused stays as it is.
    world.ends(0, &["pause", "shop"]);
    let name = containers(&world).into_keys().next().unwrap();
    world.hosts.engines[0].docker(&["rm", "--force", &name]);
    std::thread::sleep(Duration::from_secs(15));
    assert!(containers(&world).is_empty(), "{:?}", containers(&world));
    assert_eq!(world.json(&["stacks", "shop"])["state"], "paused");
    world.ends(0, &["resume", "shop"]);
    eventually("it runs again", LIMIT, || (world.running("shop") == 1).then_some(()));

    // Who did what, and what differs.
    let history = world.json(&["history", "shop"]);
    let revisions = history["revisions"].as_array().unwrap();
    let numbers: Vec<u64> = revisions.iter().map(|one| one["revision"].as_u64().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] == pair[1] + 1) && numbers.last() == Some(&1), "{numbers:?}");
    assert!(revisions.iter().all(|one| one["subject"] == "token"), "{history:#}");
    let newest = numbers[0].to_string();
    let differs = world.ends(0, &["diff", "shop", "1", &newest]);
    assert!(differs.contains("environment.A: *** -> ***") && !differs.contains("secret-"), "{differs}");
    for (words, code) in [
        (["diff", "shop", "1", "99"], 1),
        (["rollback", "shop", "--to", "99"], 1),
        (["scale", "shop/none=2", "--timeout", "5"], 1),
        (["scale", "shop=2", "--timeout", "5"], 2),
    ] {
        world.ends(code, &words);
    }
    world.ends(0, &["down", "shop"]);
    assert!(containers(&world).is_empty(), "{:?}", containers(&world));
    world.ends(1, &["down", "shop"]);
    world.ends(1, &["pause", "shop"]);
}

#[test]
fn an_update_goes_on_when_etcd_is_back_and_starts_nothing_twice() {
    let Some(mut world) = Stacked::start(2) else { return };
    let of = |world: &Stacked, mark: &str| {
        world.file("shop.yml", &services(&format!("count: 4, environment: {{A: '{mark}'}}, update: {{monitor: 1}}")))
    };
    let file = of(&world, "one");
    world.ends(0, &["up", &file, "--stack", "shop"]);
    let file = of(&world, "two");
    world.ends(0, &["up", &file, "--stack", "shop", "--detach"]);
    std::thread::sleep(Duration::from_millis(2500));
    world.hosts.etcd.hang(0);
    let begun = std::time::Instant::now();
    let (mut most, mut least) = (0, usize::MAX);
    while begun.elapsed() < AWAY {
        let running = world.running("shop");
        (most, least) = (most.max(running), least.min(running));
    }
    world.hosts.etcd.go_on(0);
    eventually("the update is done", LIMIT * 2, || {
        let running = world.running("shop");
        (most, least) = (most.max(running), least.min(running));
        let shown = world.ask(&["stacks", "shop", "--json"]);
        let shown: Value = serde_json::from_str(&shown.output).ok()?;
        (shown["state"] == "done" && shown["revision"] == 2).then_some(())
    });
    tell(&format!("{least} to {most} of 4 units ran while etcd was away and after"));
    assert!(least >= 3 && most <= 5, "{least} to {most}");
    assert_eq!((containers(&world).len(), world.running("shop")), (4, 4), "{:?}", containers(&world));
    world.ends(0, &["down", "shop"]);
}
