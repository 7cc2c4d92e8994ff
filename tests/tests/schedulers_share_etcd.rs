//! Several schedulers with one ledger, and what becomes of it when its etcd goes, hangs, comes back empty, or has what others
//! wrote.

use std::time::{Duration, Instant};

use serde_json::json;
use tests::cable::Cable;
use tests::etcd::Etcd;
use tests::schedulers::{MEMORY, SOON, Schedulers, TAKEOVER, compare, insist, is_promised, place, storm};
use tests::shared::Exclusive;
use tests::wait::seconds;
use tests::{Launch, eventually, http, scaled};

#[test]
fn while_etcd_is_away_nothing_is_promised_and_everything_is_told() {
    let Some(mut world) = Schedulers::new(3, 2) else { return };
    let before = json!({ "id": "before", "image": "i", "resources": { "memory": 4 } });
    assert_eq!(place(world.addresses[0], &before).unwrap().0, 201);
    world.judge();
    world.etcd.kill_all();
    for scheduler in &mut world.schedulers {
        scheduler.line("etcd is away", |line| line["message"].as_str().unwrap().starts_with("etcd cannot be reached"));
    }
    for scheduler in &mut world.schedulers {
        eventually("it is not ready", SOON, || scheduler.reasons().contains("cannot reach etcd").then_some(()));
    }
    for address in &world.addresses {
        let after = json!({ "id": "after", "image": "i", "resources": { "memory": 4 } });
        let (status, answer) = place(*address, &after).unwrap();
        assert_eq!(status, 503, "{answer}");
        let error = answer["error"].as_str().unwrap();
        assert!(error.starts_with("cannot reach etcd") && error.ends_with("nothing is promised"), "{error}");
        // Whoever asks again what he was promised is told so.
        assert_eq!(place(*address, &before).unwrap().0, 200);
        assert_eq!(http::get("/v1/placements/before").ask(*address).status, 200);
        let unknown = http::get("/v1/placements/after").ask(*address);
        assert_eq!((unknown.status, unknown.header("retry-after")), (503, Some("1")), "{}", unknown.text());
        assert_eq!(http::post("/v1/explain", after.to_string()).ask(*address).status, 200);
        let released = http::Request::new("DELETE", "/v1/placements/before").ask(*address);
        assert_eq!(released.status, 503, "{}", released.text());
        assert_eq!(
            http::get("/v1/hosts").ask(*address).value()["hosts"][0]["pools"]["memoryReservation"]["total"],
            MEMORY
        );
    }
    world.etcd.run_all();
    world.etcd.wait_until_it_answers();
    world.ready();
    let after = json!({ "id": "after", "image": "i", "resources": { "memory": 4 } });
    let (status, answer) = insist(&world.addresses, 0, &after, Instant::now() + scaled(SOON)).unwrap();
    assert!(is_promised(status), "{status} {answer}");
    assert_eq!(world.judge().len(), 2);
}

#[test]
fn a_scheduler_whose_key_is_deleted_by_hand_writes_it_again() {
    let Some(world) = Schedulers::new(1, 1) else { return };
    let one = json!({ "id": "one", "image": "i", "resources": { "memory": 1 } });
    assert_eq!(place(world.addresses[0], &one).unwrap().0, 201);
    let keys = || {
        let all = world.list("/berth/v1/ledger/schedulers/");
        all.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    let own = keys();
    assert_eq!(own.len(), 1);
    world.etcd.delete(&own[0]);
    eventually("it is there again", SOON, || (keys() == own).then_some(()));
    // Lines are written by a thread of their own, so the key may be there first.
    let said = || world.schedulers[0].lines_with("was deleted by another client").len();
    eventually("it is logged", SOON, || (said() > 0).then_some(()));
    assert_eq!(said(), 1);
    assert_eq!(world.judge().len(), 1);
}

#[test]
fn a_large_placement_does_not_hold_up_the_others() {
    let Some(world) = Schedulers::new(3, 1) else { return };
    let server = world.addresses[0];
    let large = json!({ "id": "large", "image": "i", "count": 600 });
    let asked = std::thread::spawn(move || place(server, &large));
    let is_growing = || world.kept().get("large").is_some_and(|record| record["growing"] == true);
    eventually("it is being written", SOON, || is_growing().then_some(()));
    // Before it and behind it by name.
    for id in ["before", "later"] {
        let small = json!({ "id": id, "image": "i", "resources": { "memory": 1 } });
        assert_eq!(place(server, &small).unwrap().0, 201);
        let released = http::Request::new("DELETE", format!("/v1/placements/{id}")).within(seconds(30)).ask(server);
        assert_eq!(released.status, 200, "{}", released.text());
    }
    assert!(is_growing(), "it was written before the others were answered");
    let (status, answer) = asked.join().unwrap().unwrap();
    let error = answer["error"].as_str().unwrap_or_default();
    assert!(
        status == 201 || status == 504 && error.starts_with("it is still being written to etcd"),
        "{status} {answer}"
    );
    eventually("it is written", TAKEOVER, || (!is_growing()).then_some(()));
    assert_eq!(world.judge()["large"]["units"].as_array().map(Vec::len), Some(600));
}

#[test]
fn what_a_scheduler_cannot_know_just_now_it_does_not_call_absent() {
    let Some(mut world) = Schedulers::new(3, 1) else { return };
    let cable = Cable::to(world.etcd.address(0));
    let (first, source) = (world.addresses[0], format!("file:{}", world.files.file().display()));
    let other = Launch::scheduler().with("--source", source).with("--ledger-etcd", cable.url());
    let mut other = other.with("--ledger-key", world.key_file()).start();
    let lagging = other.address();
    other.ready();
    cable.hang(true);
    let one = json!({ "id": "one", "image": "i", "resources": { "memory": MEMORY } });
    assert_eq!(place(first, &one).unwrap().0, 201);
    let ask = |method, address| http::Request::new(method, "/v1/placements/one").within(seconds(30)).ask(address);
    for method in ["GET", "DELETE", "GET", "DELETE"] {
        let answer = ask(method, lagging);
        let known = matches!(answer.status, 503 | 504) && answer.header("retry-after").is_some();
        assert!(known, "{method}: {} {}", answer.status, answer.text());
    }
    assert_eq!(ask("GET", first).status, 200);
    cable.hang(false);
    eventually("it is found", SOON, || (ask("GET", lagging).status == 200).then_some(()));
    world.addresses.push(lagging);
    world.schedulers.push(other);
    let gone = eventually("it is given back", SOON, || {
        let answer = ask("DELETE", lagging);
        (!matches!(answer.status, 503 | 504)).then_some(answer)
    });
    assert_eq!(gone.status, 200, "{}", gone.text());
    for address in [first, lagging] {
        assert_eq!(ask("GET", address).status, 404);
    }
    assert!(world.judge().is_empty());
}

#[test]
fn one_bad_value_in_etcd_ends_no_scheduler_and_is_deleted_by_its_name() {
    let Some(mut world) = Schedulers::new(2, 2) else { return };
    let unit =
        |containers: &str| format!(r#"{{"host":"u/0","host_name":"h0","stage":"begun","containers":{containers}}}"#);
    let bad = |id: &str, asked: &str, containers: &str| {
        let (unit, owner) = (unit(containers), if id == "unowned" { "" } else { "s-dead" });
        let value = format!(
            r#"{{"berth":1,"owner":"{owner}","id":"{id}","made":1,"unplaced":0,"asked":{asked},"units":[{unit}]}}"#
        );
        world.etcd.put(&format!("/berth/v1/ledger/placements/{id}"), &value);
    };
    bad("empty", r#"{"image":"i","start":true}"#, "[]");
    bad("fewer", r#"{"image":"i","start":true,"sidekicks":[{"name":"s","image":"i"}]}"#, r#"[{"name":"fewer"}]"#);
    bad("more", r#"{"image":"i","start":true}"#, r#"[{"name":"more"},{"name":"more-2"}]"#);
    bad("unowned", r#"{"image":"i","start":true}"#, r#"[{"name":"unowned"}]"#);
    let addresses = world.addresses.clone();
    for (at, address) in addresses.iter().enumerate() {
        let listed = || {
            let all = http::get("/v1/placements").ask(*address).value();
            let all = all["placements"].as_array().unwrap_or_else(|| panic!("{all}")).clone();
            all.iter().filter(|one| one["state"] == "unreadable").map(|one| one["id"].clone()).collect::<Vec<_>>()
        };
        eventually("all are listed", SOON, || (listed() == ["empty", "fewer", "more", "unowned"]).then_some(()));
        let fine = json!({ "id": format!("fine-{at}"), "image": "i", "resources": { "memory": 1 } });
        let (status, answer) = place(*address, &fine).unwrap();
        assert_eq!(status, 201, "{answer}");
        assert_eq!(place(*address, &json!({ "id": "empty", "image": "i" })).unwrap().0, 409);
        assert_eq!(http::Request::new("DELETE", "/v1/placements/more").ask(*address).status, 409);
    }
    // One that starts reads the others too, and is ready.
    world.restart(0);
    world.ready();
    assert_eq!(world.schedulers[0].reasons(), "");
    let reported = || world.schedulers[0].lines_with("cannot be read").len();
    eventually("each is reported", SOON, || (reported() >= 4).then_some(()));
    assert_eq!(reported(), 4, "each is reported once");
    for (at, id) in ["empty", "fewer", "more", "unowned"].into_iter().enumerate() {
        let deleted = http::Request::new("DELETE", format!("/v1/placements/{id}?force=true")).ask(addresses[at % 2]);
        assert_eq!(deleted.status, 200, "{}", deleted.text());
    }
    assert_eq!(world.judge().keys().collect::<Vec<_>>(), ["fine-0", "fine-1"]);
}

#[test]
fn an_answer_that_is_lost_leaves_one_placement() {
    let Some(world) = Schedulers::new(3, 2) else { return };
    world.etcd.hang(0);
    let asked: Vec<_> = (0..4)
        .map(|number| {
            let address = world.addresses[number % 2];
            let request = json!({ "id": format!("lost-{number}"), "image": "i", "resources": { "memory": MEMORY } });
            std::thread::spawn(move || place(address, &request).unwrap())
        })
        .collect();
    for answer in asked {
        let (status, answer) = answer.join().unwrap();
        assert!(matches!(status, 503 | 504), "{status} {answer}");
    }
    world.etcd.go_on(0);
    // Three of the four fit, and those that were promised while nobody listened count.
    let mut statuses = Vec::new();
    for number in 0..4 {
        let request = json!({ "id": format!("lost-{number}"), "image": "i", "resources": { "memory": MEMORY } });
        statuses.push(insist(&world.addresses, number, &request, Instant::now() + scaled(SOON)).unwrap().0);
    }
    let refused = statuses.iter().filter(|status| **status == 409).count();
    assert_eq!(refused, 1, "{statuses:?}");
    assert_eq!(world.judge().len(), 3);
}

#[test]
fn an_etcd_that_comes_back_empty_is_told_everything_again() {
    let Some(mut world) = Schedulers::new(3, 2) else { return };
    for (at, id) in ["a", "b", "c"].into_iter().enumerate() {
        let request = json!({ "id": id, "image": "i", "resources": { "memory": MEMORY }, "ports": ["80:80"] });
        let (status, answer) = insist(&world.addresses, at, &request, Instant::now() + scaled(SOON)).unwrap();
        assert!(is_promised(status), "{status} {answer}");
    }
    let before = world.judge();
    world.etcd.wipe();
    let full = json!({ "id": "d", "image": "i", "resources": { "memory": 1 } });
    let (status, answer) = insist(&world.addresses, 0, &full, Instant::now() + scaled(TAKEOVER)).unwrap();
    assert_eq!(status, 409, "{answer}");
    let after = world.judge();
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
}

#[test]
fn foreign_keys_are_left_alone_and_events_are_refused() {
    let Some(world) = Schedulers::new(2, 1) else { return };
    let root = "/berth/v1/ledger/";
    for (key, value) in
        [("placements/garbage", "{"), ("placements/later", r#"{"berth":2}"#), ("nonsense", "x"), ("hosts/%", "")]
    {
        world.etcd.put(&format!("{root}{key}"), value);
    }
    let address = world.addresses[0];
    let (status, answer) =
        place(address, &json!({ "id": "fine", "image": "i", "ports": ["80:80"], "requested_host": "h0" })).unwrap();
    assert_eq!(status, 201, "{answer}");
    let (status, answer) = place(address, &json!({ "id": "garbage", "image": "i" })).unwrap();
    assert_eq!(status, 409, "{answer}");
    eventually("garbage is reported", SOON, || {
        (world.schedulers[0].lines_with("cannot be read").len() == 2).then_some(())
    });
    let reserve = http::post("/v1/events/scheduler.reserve", json!({ "data": { "schedulerRequest": {} } }).to_string());
    assert_eq!(reserve.ask(address).status, 501);
    // Somebody who deletes a placement by hand has given its room back.
    world.etcd.delete(&format!("{root}placements/fine"));
    eventually("it is gone", SOON, || (http::get("/v1/placements/fine").ask(address).status == 404).then_some(()));
    // And so has he its name and its port.
    let again = json!({ "id": "again", "name": "fine", "image": "i", "ports": ["80:80"], "requested_host": "h0" });
    let (status, answer) = place(address, &again).unwrap();
    assert_eq!(status, 201, "{answer}");
    let logged = |part: &str| {
        eventually(part, SOON, || (world.schedulers[0].lines_with(part).len() == 1).then_some(()));
    };
    logged("left 2 keys");
    // What nobody can read is named, and what to type.
    world.etcd.put(&format!("{root}names/had"), "77");
    let blocked = json!({ "id": "had", "image": "i" });
    let refused = eventually("it is known", SOON, || {
        let (status, answer) = place(address, &blocked).unwrap();
        http::Request::new("DELETE", "/v1/placements/had").ask(address);
        (status == 409).then_some(answer)
    });
    assert!(refused.to_string().contains(&format!("`etcdctl del {root}names/had`")), "{refused}");
    logged("does not say which placement has it");
    // Nor does a name block others for as long as a key gives it to a placement that has another one.
    world.etcd.put(&format!("{root}names/mine"), r#"{"berth":1,"placement":"again"}"#);
    let (status, answer) = place(address, &json!({ "id": "mine", "image": "i" })).unwrap();
    assert_eq!(status, 409, "{answer}");
    let error = answer["error"].as_str().unwrap_or_default();
    assert!(error.contains("placement again") && error.contains(&format!("`etcdctl del {root}names/mine`")), "{error}");
}

#[test]
fn members_that_die_one_after_the_other_cost_no_promise() {
    let _processors = Exclusive::processors();
    let Some(etcd) = Etcd::start(3) else { return };
    let mut world = Schedulers::over(etcd, 5, 2);
    let addresses = world.addresses.clone();
    let storming = std::thread::spawn(move || storm(&addresses, 0..300, 6));
    let mut deaths = 0;
    while !storming.is_finished() {
        let member = if deaths % 2 == 0 { world.etcd.leader() } else { deaths % 3 };
        world.etcd.kill(member);
        std::thread::sleep(Duration::from_millis(500));
        world.etcd.run(member);
        world.etcd.wait_until_it_answers();
        deaths += 1;
    }
    let told = storming.join().unwrap();
    let kept = world.judge();
    compare(&told, &kept);
    assert!(deaths > 1, "no member was killed");
}

#[test]
fn etcd_is_spoken_with_by_certificates() {
    let Some(etcd) = Etcd::start_with_tls(1) else { return };
    let mut world = Schedulers::over(etcd, 2, 2);
    for (at, id) in ["a", "b", "c"].into_iter().enumerate() {
        let request = json!({ "id": id, "image": "i", "resources": { "memory": 16 } });
        let (status, _) = insist(&world.addresses, at, &request, Instant::now() + scaled(SOON)).unwrap();
        assert!(if at < 2 { is_promised(status) } else { status == 409 }, "{id}: {status}");
    }
    assert_eq!(world.judge().len(), 2);
    // One that is stopped leaves what it has to the other at once.
    world.schedulers[0].stop();
    let owners = || world.kept().values().map(|record| record["owner"].clone()).collect::<Vec<_>>();
    eventually("the other one has both", Duration::from_secs(3), || (owners()[0] == owners()[1]).then_some(()));
}
