//! Several schedulers with one ledger in a real etcd: room and ports that are scarce, schedulers that are killed or stand
//! still, containers that come and go.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::cluster::ClusterFolder;
use tests::schedulers::{Answers, MEMORY, SOON, Schedulers, TAKEOVER, compare, insist, is_promised, place, storm};
use tests::shared::Exclusive;
use tests::{Launch, eventually, http, scaled};

#[test]
fn room_and_ports_are_never_promised_twice() {
    let _processors = Exclusive::processors();
    let Some(world) = Schedulers::new(5, 3) else { return };
    let begun = Instant::now();
    let told = storm(&world.addresses, 0..240, 12);
    let kept = world.judge();
    compare(&told, &kept);
    assert!(begun.elapsed() < Duration::from_secs(55), "what is compared would have lapsed");
    let placed: usize = kept.values().map(|record| record["units"].as_array().unwrap().len()).sum();
    assert!(placed >= 30, "only {placed} units have a place");
    let refused = told.values().flatten().filter(|(status, _)| *status == 409).count();
    assert!(refused > 0, "room was not scarce");
    // Room that one gives back another promises.
    for (at, id) in kept.keys().enumerate() {
        let released = http::Request::new("DELETE", format!("/v1/placements/{id}")).ask(world.addresses[at % 3]);
        assert_eq!(released.status, 200, "{}", released.text());
    }
    let whole = json!({ "id": "whole", "image": "i", "resources": { "memory": MEMORY }, "count": 5, "atomic": true });
    let (status, answer) = insist(&world.addresses, 1, &whole, Instant::now() + scaled(SOON)).unwrap();
    assert!(is_promised(status), "{status} {answer}");
    // What one gives back the next one promises, and each tells at once of what the other one promised.
    for number in 0..60 {
        let [one, other] = [number % 3, (number + 1) % 3].map(|at| world.addresses[at]);
        let last = if number == 0 { "whole".to_owned() } else { format!("turn-{}", number - 1) };
        assert_eq!(http::get(format!("/v1/placements/{last}")).ask(one).status, 200);
        assert_eq!(http::Request::new("DELETE", format!("/v1/placements/{last}")).ask(one).status, 200);
        let turn = json!({ "id": format!("turn-{number}"), "image": "i", "resources": { "memory": MEMORY }, "count": 5, "atomic": true });
        let (status, answer) = place(other, &turn).unwrap();
        assert_eq!(status, 201, "{answer}");
    }
    assert_eq!(world.judge().len(), 1);
}

#[test]
fn schedulers_that_are_killed_lose_nothing_and_promise_nothing_twice() {
    let _processors = Exclusive::processors();
    let Some(mut world) = Schedulers::new(5, 3) else { return };
    let (mut told, mut deaths, mut numbers) = (Answers::new(), 0, 0..100);
    while deaths < 8 {
        let (addresses, these) = (world.addresses.clone(), numbers.clone());
        let storming = std::thread::spawn(move || storm(&addresses, these, 6));
        while !storming.is_finished() {
            std::thread::sleep(Duration::from_millis(250 + 70 * (deaths % 3)));
            world.restart(usize::try_from(deaths % 3).unwrap());
            deaths += 1;
        }
        told.extend(storming.join().unwrap());
        numbers = numbers.end..numbers.end + 100;
    }
    world.ready();
    // What was being written when a scheduler died is finished or taken back by another one.
    eventually("nothing is half written", TAKEOVER, || {
        world.kept().values().all(|record| record.get("growing").is_none()).then_some(())
    });
    let kept = world.judge();
    compare(&told, &kept);
    // All of them die: what they promised stays.
    for scheduler in &mut world.schedulers {
        scheduler.kill();
    }
    world.schedulers.clear();
    let mut one = world.launch().start();
    one.ready();
    world.addresses = vec![one.address()];
    world.schedulers.push(one);
    let after = world.judge();
    assert_eq!(after.keys().collect::<Vec<_>>(), kept.keys().collect::<Vec<_>>());
    compare(&told, &after);
    // It is theirs who live once the leases of the dead have run out, and nobody's for longer than promises last.
    eventually("all is taken over", TAKEOVER, || {
        let owners: BTreeSet<_> = world.kept().values().map(|record| record["owner"].to_string()).collect();
        let living = world.list("/berth/v1/ledger/schedulers/");
        (living.len() == 1
            && owners.len() <= 1
            && owners.iter().all(|owner| living[0].0.ends_with(owner.trim_matches('"'))))
        .then_some(())
    });
    eventually("promises lapse", Duration::from_secs(75), || world.kept().is_empty().then_some(()));
    assert!(world.judge().is_empty());
}

#[test]
fn what_is_larger_than_a_transaction_is_promised_whole() {
    let Some(world) = Schedulers::new(130, 2) else { return };
    let wide = |id: &str| json!({ "id": id, "image": "i", "count": 130, "resources": { "memory": MEMORY / 2 }, "ports": ["80"] });
    let both: Vec<_> = (0..2)
        .map(|at| {
            let (addresses, request) = (world.addresses.clone(), wide(&format!("wide-{at}")));
            std::thread::spawn(move || insist(&addresses, at, &request, Instant::now() + scaled(SOON)).unwrap())
        })
        .collect();
    for answer in both {
        let (status, answer) = answer.join().unwrap();
        assert!(is_promised(status) && answer["state"] == "placed", "{status} {answer}");
    }
    assert_eq!(world.judge().values().map(|record| record["units"].as_array().unwrap().len()).sum::<usize>(), 260);
    let none = json!({ "id": "none", "image": "i", "resources": { "memory": 1 } });
    assert_eq!(place(world.addresses[0], &none).unwrap().0, 409);
    assert_eq!(http::Request::new("DELETE", "/v1/placements/wide-0").ask(world.addresses[1]).status, 200);
    assert_eq!(world.judge().len(), 1);
}

#[test]
fn a_scheduler_that_stood_still_writes_nothing_that_is_out_of_date() {
    let Some(world) = Schedulers::new(1, 2) else { return };
    let all = |id: &str| json!({ "id": id, "image": "i", "resources": { "memory": MEMORY }, "ports": ["80:80"] });
    assert_eq!(place(world.addresses[0], &all("first")).unwrap().0, 201);
    world.schedulers[0].signal("STOP");
    // What it is asked meanwhile waits in its sockets.
    let stopped = world.addresses[0];
    let asked = std::thread::spawn(move || place(stopped, &all("meanwhile")));
    let owner = world.kept()["first"]["owner"].clone();
    eventually("the other one takes over", TAKEOVER, || (world.kept()["first"]["owner"] != owner).then_some(()));
    assert_eq!(http::Request::new("DELETE", "/v1/placements/first").ask(world.addresses[1]).status, 200);
    assert_eq!(place(world.addresses[1], &all("second")).unwrap().0, 201);
    world.schedulers[0].signal("CONT");
    // A connection that it took just before it stood still may have ended by its time limit.
    let (mut status, mut answer) = asked.join().unwrap().unwrap_or((503, Value::Null));
    if matches!(status, 503 | 504) {
        // On a busy machine it wakes up too late to be sure within the request's time, and says so.
        (status, answer) = insist(&world.addresses, 0, &all("meanwhile"), Instant::now() + scaled(SOON)).unwrap();
    }
    assert_eq!(status, 409, "{answer}");
    let kept = world.judge();
    assert_eq!(kept.keys().collect::<Vec<_>>(), ["second"]);
    // It appears anew, and can promise again.
    assert_eq!(http::Request::new("DELETE", "/v1/placements/second").ask(world.addresses[0]).status, 200);
    let (status, answer) = insist(&world.addresses, 0, &all("third"), Instant::now() + scaled(SOON)).unwrap();
    assert!(is_promised(status), "{status} {answer}");
    world.judge();
}

#[test]
fn what_shows_up_is_settled_for_all_and_what_goes_is_over_for_all() {
    let Some(world) = Schedulers::new(1, 2) else { return };
    let web = json!({ "id": "web", "image": "i", "resources": { "memory": 20 }, "ports": ["80:80"] });
    let (status, answer) = place(world.addresses[0], &web).unwrap();
    assert_eq!(status, 201, "{answer}");
    let text = std::fs::read_to_string(world.files.file()).unwrap();
    let before: Value = serde_json::from_str(&text).unwrap();
    let mut after = before.clone();
    after["containers"] = json!([{
        "name": "web", "host": answer["placements"][0]["host"]["name"], "memory_reservation": 20, "ports": ["80:80/tcp"],
        "labels": { "io.berth.placement": "web" },
    }]);
    world.files.replace(after.to_string());
    let state = |address| {
        let answer = http::get("/v1/placements/web").ask(address);
        (answer.status == 200).then(|| answer.value()["placements"][0]["containers"][0]["state"].clone())
    };
    for address in &world.addresses {
        eventually("it is settled", SOON, || (state(*address)? == "settled").then_some(()));
        // It counts once: there is as much room as is left beside it.
        let fits = |memory: i64| {
            let request = json!({ "image": "i", "resources": { "memory": memory }, "dry_run": true });
            place(*address, &request).unwrap().0 == 200
        };
        assert!(fits(MEMORY - 20) && !fits(MEMORY - 19));
    }
    assert_eq!(world.kept().len(), 1, "what is there is known by its record");
    world.files.replace(before.to_string());
    for address in &world.addresses {
        eventually("it is over", SOON, || state(*address).is_none().then_some(()));
    }
    eventually("its record is gone", SOON, || world.kept().is_empty().then_some(()));
    assert!(world.judge().is_empty());
}

#[test]
fn options_that_cannot_work_are_refused() {
    let files = ClusterFolder::new(json!({ "berth": 1, "hosts": [{ "name": "h" }] }).to_string());
    let launch = Launch::scheduler().with("--source", format!("file:{}", files.file().display()));
    for (flags, expected) in [
        (vec![("--ledger-etcd", "127.0.0.1:2379")], "--ledger-etcd"),
        (vec![("--ledger-etcd", "https://127.0.0.1:2379")], "https needs"),
        (vec![("--ledger-etcd", "http://127.0.0.1:2379"), ("--ledger", "ledger")], "cannot be used with"),
        (vec![("--ledger-etcd", "http://127.0.0.1:2379"), ("--etcd-prefix", "x")], "slash"),
        (vec![("--ledger-etcd", "http://127.0.0.1:2379"), ("--etcd-user", "berth")], "--etcd-password-file"),
    ] {
        let launch = flags.iter().fold(launch.clone(), |launch, (flag, value)| launch.with(flag, value));
        let ended = launch.run();
        assert!(ended.code != Some(0) && ended.errors.contains(expected), "{flags:?}: {}", ended.errors);
    }
    // Without an etcd that answers it is not ready, and says why.
    let launch = launch.with("--ledger-etcd", "http://127.0.0.1:1");
    let ended = launch.run();
    assert!(ended.code != Some(0) && ended.errors.contains("--state-dir, or --ledger-key"), "{}", ended.errors);
    let mut scheduler = launch.with("--state-dir", files.path("state")).start();
    let address = scheduler.address();
    eventually("etcd is missed", SOON, || scheduler.reasons().contains("no member of etcd").then_some(()));
    eventually("it says so", SOON, || {
        let answer = http::get("/v1/placements").ask(address);
        assert_eq!(answer.status, 503);
        answer.text().contains("cannot reach etcd").then_some(())
    });
}
