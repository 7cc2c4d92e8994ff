//! Several schedulers with one ledger in a real etcd: room and ports that are scarce, schedulers that are killed, an
//! etcd that goes, hangs and comes back empty.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::cable::Cable;
use tests::cluster::ClusterFolder;
use tests::etcd::{Etcd, base64, text};
use tests::shared::Exclusive;
use tests::wait::seconds;
use tests::{Launch, Service, eventually, http, scaled};

/// What each host has of memory, in octets.
const MEMORY: i64 = 24;
/// Longest wait for a scheduler to take over what another one left: its lease, and some more.
const TAKEOVER: Duration = Duration::from_secs(20);
/// Longest wait for what takes milliseconds.
const SOON: Duration = Duration::from_secs(10);

/// Some schedulers over one cluster file and one etcd.
struct World {
    files: ClusterFolder,
    etcd: Etcd,
    schedulers: Vec<Service>,
    addresses: Vec<SocketAddr>,
}

impl World {
    /// `None` where there is no etcd.
    fn new(hosts: usize, schedulers: usize) -> Option<Self> {
        Some(Self::over(Etcd::start(1)?, hosts, schedulers))
    }

    fn over(etcd: Etcd, hosts: usize, schedulers: usize) -> Self {
        let host = |at| json!({ "name": format!("h{at}"), "uuid": format!("u/{at}"), "memory": MEMORY });
        let hosts: Vec<_> = (0..hosts).map(host).collect();
        let files = ClusterFolder::new(json!({ "berth": 1, "hosts": hosts }).to_string());
        let mut world = Self { files, etcd, schedulers: Vec::new(), addresses: Vec::new() };
        for _ in 0..schedulers {
            let mut scheduler = world.launch().start();
            world.addresses.push(scheduler.address());
            world.schedulers.push(scheduler);
        }
        world.ready();
        world
    }

    fn launch(&self) -> Launch {
        let launch = Launch::scheduler()
            .with("--source", format!("file:{}", self.files.file().display()))
            .with("--ledger-etcd", self.etcd.urls());
        let Some(folder) = self.etcd.certificates() else { return launch };
        launch
            .with("--etcd-ca", folder.join("ca.pem"))
            .with("--etcd-cert", folder.join("cert.pem"))
            .with("--etcd-key", folder.join("key.pem"))
    }

    fn ready(&mut self) {
        self.schedulers.iter_mut().for_each(Service::ready);
    }

    /// Kills one and starts it again where it was.
    fn restart(&mut self, at: usize) {
        self.schedulers[at].kill();
        self.schedulers[at] = self.launch().with("--listen", self.addresses[at].to_string()).start();
    }

    /// The placements in etcd by id.
    fn kept(&self) -> BTreeMap<String, Value> {
        let prefix = "/berth/v1/ledger/placements/";
        let pairs = self.list(prefix);
        pairs.into_iter().map(|(_, value)| (value["id"].as_str().unwrap().to_owned(), value)).collect()
    }

    fn list(&self, prefix: &str) -> Vec<(String, Value)> {
        let end = format!("{}0", prefix.trim_end_matches('/'));
        let answer = self.etcd.ask("kv/range", &json!({ "key": base64(prefix), "range_end": base64(&end) }));
        let pairs = answer["kvs"].as_array().cloned().unwrap_or_default();
        pairs.iter().map(|pair| (text(&pair["key"]), serde_json::from_str(&text(&pair["value"])).unwrap())).collect()
    }

    /// The placements that a scheduler tells, by id, with the hosts of their units.
    fn told(&self, at: usize) -> BTreeMap<String, Vec<String>> {
        let answer = http::get("/v1/placements").ask(self.addresses[at]).value();
        let placements = answer["placements"].as_array().unwrap_or_else(|| panic!("{answer}")).clone();
        placements.iter().map(|one| (one["id"].as_str().unwrap().to_owned(), hosts_of(one))).collect()
    }

    /// No host has promised more than it has, no port or name is promised twice, and all say the same.
    fn judge(&self) -> BTreeMap<String, Value> {
        let kept = self.kept();
        let mut memory: BTreeMap<&str, i64> = BTreeMap::new();
        let (mut ports, mut names) = (BTreeSet::new(), BTreeSet::new());
        for (id, record) in &kept {
            assert_eq!(record["berth"], 1);
            assert!(record.get("growing").is_none(), "{record}");
            for unit in record["units"].as_array().unwrap() {
                let host = unit["host"].as_str().unwrap();
                let asked = record["asked"]["resources"]["memory"].as_i64().unwrap_or(0);
                *memory.entry(host).or_default() += asked;
                for container in unit["containers"].as_array().unwrap() {
                    assert!(names.insert(container["name"].as_str().unwrap()), "{id}: a name is promised twice");
                    for port in container["ports"].as_array().into_iter().flatten() {
                        let port = (host, port["public"].as_u64(), port["protocol"].as_str());
                        assert!(ports.insert(port), "{id}: {port:?} is promised twice");
                    }
                }
            }
        }
        assert!(memory.values().all(|memory| *memory <= MEMORY), "{memory:?}");
        for at in 0..self.addresses.len() {
            let expected: BTreeMap<_, _> = kept
                .iter()
                .map(|(id, record)| {
                    let host = |unit: &Value| unit["host"].as_str().unwrap().to_owned();
                    (id.clone(), record["units"].as_array().unwrap().iter().map(host).collect::<Vec<_>>())
                })
                .collect();
            eventually(&format!("scheduler {at} tells what etcd has"), SOON, || {
                (self.told(at) == expected).then_some(())
            });
        }
        let claims = self.list("/berth/v1/ledger/ports/");
        let known = |(_, claim): &(String, Value)| kept.contains_key(claim["placement"].as_str().unwrap());
        assert!(claims.iter().all(known), "ports of nobody: {claims:?}");
        assert_eq!(claims.len(), ports.len(), "a key for each port");
        assert_eq!(self.list("/berth/v1/ledger/names/").len(), names.len(), "a key for each name");
        kept
    }
}

fn hosts_of(placement: &Value) -> Vec<String> {
    let units = placement["placements"].as_array().unwrap();
    units.iter().map(|unit| unit["host"]["uuid"].as_str().unwrap().to_owned()).collect()
}

fn place(address: SocketAddr, request: &Value) -> Option<(u16, Value)> {
    let answer = http::post("/v1/placements", request.to_string()).within(seconds(30)).send(address).ok()?;
    Some((answer.status, answer.value()))
}

/// Asks until the answer is definite, each time another scheduler.
fn insist(addresses: &[SocketAddr], first: usize, request: &Value, until: Instant) -> Option<(u16, Value)> {
    for address in addresses.iter().cycle().skip(first) {
        match place(*address, request) {
            Some((status, answer)) if !matches!(status, 503 | 504) => return Some((status, answer)),
            _ if Instant::now() > until => return None,
            _ => std::thread::sleep(Duration::from_millis(50)),
        }
    }
    None
}

/// Gives a placement back; that it is gone means that an earlier answer was lost.
fn take_back(addresses: &[SocketAddr], first: usize, id: &str, until: Instant) -> bool {
    for address in addresses.iter().cycle().skip(first + 1) {
        let asked = http::Request::new("DELETE", format!("/v1/placements/{id}")).within(seconds(30)).send(*address);
        match asked.map(|answer| answer.status) {
            Ok(200 | 404) => return true,
            Ok(503 | 504) | Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(50)),
            Ok(status) => panic!("{status} for giving {id} back"),
            Err(_) => return false,
        }
    }
    false
}

fn request(number: usize) -> Value {
    let mut request = json!({
        "id": format!("r-{number}"), "image": "i", "count": 1 + number % 3, "atomic": number.is_multiple_of(4),
        "resources": { "memory": 1 + number % 2 },
    });
    match number % 5 {
        // Each of these ports is there once on each host.
        0 => request["ports"] = json!([format!("{}:80", 8000 + number % 7)]),
        1 => request["ports"] = json!(["80", "53:53/udp"]),
        _ => {}
    }
    request
}

/// What clients were told, by id.
type Told = BTreeMap<String, Vec<(u16, Value)>>;

/// Sends requests from many threads, every fourth to all schedulers at once, every third is taken back; gives what clients
/// were told of the others.
fn storm(addresses: &[SocketAddr], numbers: std::ops::Range<usize>, threads: usize) -> Told {
    let (next, told) = (Arc::new(AtomicUsize::new(numbers.start)), Arc::new(Mutex::new(BTreeMap::new())));
    let until = Instant::now() + scaled(Duration::from_secs(50));
    let asking: Vec<_> = (0..threads)
        .map(|_| {
            let (next, told, addresses) = (next.clone(), told.clone(), addresses.to_vec());
            std::thread::spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= numbers.end {
                        return;
                    }
                    let request = request(number);
                    let id = request["id"].as_str().unwrap().to_owned();
                    let twins = if number.is_multiple_of(4) { addresses.len() } else { 1 };
                    let asked: Vec<_> = (0..twins)
                        .map(|twin| {
                            let (addresses, request) = (addresses.clone(), request.clone());
                            std::thread::spawn(move || insist(&addresses, number + twin, &request, until))
                        })
                        .collect();
                    let answers: Vec<_> = asked
                        .into_iter()
                        .map(|asked| asked.join().unwrap().expect("a definite answer in time"))
                        .collect();
                    if number.is_multiple_of(3) && answers.iter().any(|(status, _)| *status != 409) {
                        assert!(take_back(&addresses, number, &id, until), "{id} was not taken back in time");
                        continue;
                    }
                    for (status, answer) in answers {
                        assert!(matches!(status, 200 | 201 | 409), "{status} {answer}");
                        told.lock().unwrap().entry(id.clone()).or_insert_with(Vec::new).push((status, answer));
                    }
                }
            })
        })
        .collect();
    for thread in asking {
        thread.join().unwrap();
    }
    Arc::try_unwrap(told).unwrap().into_inner().unwrap()
}

/// Whoever was told of a placement was told what is kept.
fn compare(told: &Told, kept: &BTreeMap<String, Value>) {
    for (id, answers) in told {
        for (status, answer) in answers {
            if *status == 409 {
                continue;
            }
            let record = kept.get(id).unwrap_or_else(|| panic!("{id} was told and is not kept: {answer}"));
            let hosts: Vec<_> = record["units"].as_array().unwrap().iter().map(|unit| unit["host"].clone()).collect();
            assert_eq!(json!(hosts_of(answer)), json!(hosts), "{answer}");
        }
    }
}

#[test]
fn room_and_ports_are_never_promised_twice() {
    let _processors = Exclusive::processors();
    let Some(world) = World::new(5, 3) else { return };
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
    let (status, answer) = insist(&world.addresses, 1, &whole, Instant::now() + SOON).unwrap();
    assert_eq!(status, 201, "{answer}");
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
    let Some(mut world) = World::new(5, 3) else { return };
    let (mut told, mut deaths, mut numbers) = (Told::new(), 0, 0..100);
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
fn while_etcd_is_away_nothing_is_promised_and_everything_is_told() {
    let Some(mut world) = World::new(3, 2) else { return };
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
    let (status, answer) = insist(&world.addresses, 0, &after, Instant::now() + SOON).unwrap();
    assert_eq!(status, 201, "{answer}");
    assert_eq!(world.judge().len(), 2);
}

#[test]
fn a_scheduler_whose_key_is_deleted_by_hand_writes_it_again() {
    let Some(world) = World::new(1, 1) else { return };
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
    assert_eq!(world.schedulers[0].lines_with("was deleted by somebody else").len(), 1);
    assert_eq!(world.judge().len(), 1);
}

#[test]
fn what_a_scheduler_cannot_know_just_now_it_does_not_call_absent() {
    let Some(mut world) = World::new(3, 1) else { return };
    let cable = Cable::to(world.etcd.address(0));
    let (first, source) = (world.addresses[0], format!("file:{}", world.files.file().display()));
    let mut other = Launch::scheduler().with("--source", source).with("--ledger-etcd", cable.url()).start();
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
    let Some(mut world) = World::new(2, 2) else { return };
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
    let reported = world.schedulers[0].lines_with("cannot be read").len();
    assert_eq!(reported, 4, "each is reported once");
    for (at, id) in ["empty", "fewer", "more", "unowned"].into_iter().enumerate() {
        let deleted = http::Request::new("DELETE", format!("/v1/placements/{id}?force=true")).ask(addresses[at % 2]);
        assert_eq!(deleted.status, 200, "{}", deleted.text());
    }
    assert_eq!(world.judge().keys().collect::<Vec<_>>(), ["fine-0", "fine-1"]);
}

#[test]
fn an_answer_that_is_lost_leaves_one_placement() {
    let Some(world) = World::new(3, 2) else { return };
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
        statuses.push(insist(&world.addresses, number, &request, Instant::now() + SOON).unwrap().0);
    }
    let refused = statuses.iter().filter(|status| **status == 409).count();
    assert_eq!(refused, 1, "{statuses:?}");
    assert_eq!(world.judge().len(), 3);
}

#[test]
fn what_is_larger_than_a_transaction_is_promised_whole() {
    let Some(world) = World::new(130, 2) else { return };
    let wide = |id: &str| json!({ "id": id, "image": "i", "count": 130, "resources": { "memory": MEMORY / 2 }, "ports": ["80"] });
    let both: Vec<_> = (0..2)
        .map(|at| {
            let (addresses, request) = (world.addresses.clone(), wide(&format!("wide-{at}")));
            std::thread::spawn(move || insist(&addresses, at, &request, Instant::now() + SOON).unwrap())
        })
        .collect();
    for answer in both {
        let (status, answer) = answer.join().unwrap();
        assert_eq!((status, &answer["state"]), (201, &json!("placed")), "{answer}");
    }
    assert_eq!(world.judge().values().map(|record| record["units"].as_array().unwrap().len()).sum::<usize>(), 260);
    let none = json!({ "id": "none", "image": "i", "resources": { "memory": 1 } });
    assert_eq!(place(world.addresses[0], &none).unwrap().0, 409);
    assert_eq!(http::Request::new("DELETE", "/v1/placements/wide-0").ask(world.addresses[1]).status, 200);
    assert_eq!(world.judge().len(), 1);
}

#[test]
fn an_etcd_that_comes_back_empty_is_told_everything_again() {
    let Some(mut world) = World::new(3, 2) else { return };
    for (at, id) in ["a", "b", "c"].into_iter().enumerate() {
        let request = json!({ "id": id, "image": "i", "resources": { "memory": MEMORY }, "ports": ["80:80"] });
        let (status, answer) = insist(&world.addresses, at, &request, Instant::now() + SOON).unwrap();
        assert_eq!(status, 201, "{answer}");
    }
    let before = world.judge();
    world.etcd.wipe();
    let full = json!({ "id": "d", "image": "i", "resources": { "memory": 1 } });
    let (status, answer) = insist(&world.addresses, 0, &full, Instant::now() + TAKEOVER).unwrap();
    assert_eq!(status, 409, "{answer}");
    let after = world.judge();
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
}

#[test]
fn foreign_keys_are_left_alone_and_events_are_refused() {
    let Some(world) = World::new(2, 1) else { return };
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
}

#[test]
fn members_that_die_one_after_the_other_cost_no_promise() {
    let _processors = Exclusive::processors();
    let Some(etcd) = Etcd::start(3) else { return };
    let mut world = World::over(etcd, 5, 2);
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
fn a_scheduler_that_stood_still_writes_nothing_that_is_out_of_date() {
    let Some(world) = World::new(1, 2) else { return };
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
    let (mut status, mut answer) = asked.join().unwrap().unwrap();
    if status == 504 {
        // On a busy machine it wakes up too late to be sure within the request's time, and says so.
        (status, answer) = insist(&world.addresses, 0, &all("meanwhile"), Instant::now() + SOON).unwrap();
    }
    assert_eq!(status, 409, "{answer}");
    let kept = world.judge();
    assert_eq!(kept.keys().collect::<Vec<_>>(), ["second"]);
    // It appears anew, and can promise again.
    assert_eq!(http::Request::new("DELETE", "/v1/placements/second").ask(world.addresses[0]).status, 200);
    let (status, answer) = insist(&world.addresses, 0, &all("third"), Instant::now() + SOON).unwrap();
    assert_eq!(status, 201, "{answer}");
    world.judge();
}

#[test]
fn what_shows_up_is_settled_for_all_and_what_goes_is_over_for_all() {
    let Some(world) = World::new(1, 2) else { return };
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
    assert!(world.judge().is_empty());
}

#[test]
fn etcd_is_spoken_with_by_certificates() {
    let Some(etcd) = Etcd::start_with_tls(1) else { return };
    let mut world = World::over(etcd, 2, 2);
    for (at, id) in ["a", "b", "c"].into_iter().enumerate() {
        let request = json!({ "id": id, "image": "i", "resources": { "memory": 16 } });
        let (status, _) = insist(&world.addresses, at, &request, Instant::now() + SOON).unwrap();
        assert_eq!(status, if at < 2 { 201 } else { 409 });
    }
    assert_eq!(world.judge().len(), 2);
    // One that is stopped leaves what it has to the other at once.
    world.schedulers[0].stop();
    let owners = || world.kept().values().map(|record| record["owner"].clone()).collect::<Vec<_>>();
    eventually("the other one has both", Duration::from_secs(3), || (owners()[0] == owners()[1]).then_some(()));
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
    let mut scheduler = launch.with("--ledger-etcd", "http://127.0.0.1:1").start();
    let address = scheduler.address();
    eventually("etcd is missed", SOON, || scheduler.reasons().contains("no member of etcd").then_some(()));
    eventually("it says so", SOON, || {
        let answer = http::get("/v1/placements").ask(address);
        assert_eq!(answer.status, 503);
        answer.text().contains("cannot reach etcd").then_some(())
    });
}
