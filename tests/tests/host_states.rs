//! What operators make of hosts (`agent cordon`, `agent uncordon`): a real etcd, a metadata service and three schedulers.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::battery::is_long;
use tests::etcd::Etcd;
use tests::schedulers::place;
use tests::service::Ended;
use tests::wait::{Stop, seconds};
use tests::{Executable, Launch, Service, eventually, http, scaled, tell};

/// Longest time after `agent cordon` has ended in which a scheduler may still place something on the host.
const CORDONED: Duration = Duration::from_millis(100);

/// Least requests that are sent while the host is cordoned and uncordoned, with `BERTH_LONG=1` and without.
const REQUESTS: [usize; 2] = [10_000, 2_000];

struct World {
    etcd: Etcd,
    _metadata: Service,
    at: SocketAddr,
    _schedulers: Vec<Service>,
    schedulers: Vec<SocketAddr>,
}

impl World {
    fn start() -> Option<Self> {
        let etcd = Etcd::start(1)?;
        for host in ["a", "b"] {
            let value = json!({ "berth": 1, "name": host, "memory": 1_u64 << 40, "published": { "by": host } });
            etcd.put(&format!("/berth/v1/hosts/{host}/host"), &value.to_string());
        }
        let mut metadata =
            Launch::served(Executable::Metadata).with("--source", format!("etcd:{}", etcd.urls())).start();
        metadata.ready();
        let at = metadata.address();
        let mut schedulers: Vec<_> = (0..3).map(|_| Launch::scheduler().following(at).start()).collect();
        schedulers.iter_mut().for_each(Service::ready);
        let addresses = schedulers.iter_mut().map(Service::address).collect();
        Some(Self { etcd, _metadata: metadata, at, _schedulers: schedulers, schedulers: addresses })
    }

    /// An operator's command.
    fn agent(&self, words: &[&str]) -> Ended {
        let launch = words.iter().fold(Launch::bare(Executable::Agent), Launch::word);
        launch.with("--etcd", self.etcd.urls()).run()
    }

    fn told(&self, words: &[&str]) -> String {
        let ended = self.agent(words);
        assert_eq!(ended.code, Some(0), "{words:?}: {}", ended.errors);
        ended.output
    }

    fn state(&self, host: &str) -> Value {
        let hosts = http::get("/latest/hosts").json().ask(self.at).value();
        let found = hosts.as_array().and_then(|hosts| hosts.iter().find(|one| one["name"] == host).cloned());
        let found = found.unwrap_or_else(|| panic!("{host} in {hosts}"));
        assert!(found.get("intended_state").is_none(), "{found}");
        found["state"].clone()
    }
}

fn request(id: &str) -> Value {
    json!({ "id": id, "image": "i", "resources": { "memory": 1 } })
}

/// Which host a placement is on.
fn host_of(answer: &Value) -> Option<&str> {
    answer["placements"][0]["host"]["name"].as_str()
}

#[test]
fn a_cordoned_host_gets_nothing_new_and_says_why() {
    let Some(world) = World::start() else { return };
    let named = json!({ "id": "before", "image": "i", "requested_host": "a" });
    assert_eq!(place(world.schedulers[0], &named).unwrap().0, 201);

    let told = world.told(&["cordon", "a", "--reason", "new disk"]);
    assert!(told.starts_with("a is cordoned by ") && told.contains(": new disk; what runs there stays"), "{told}");
    eventually("metadata returns it", seconds(5), || (world.state("a") == "inactive").then_some(()));
    for scheduler in &world.schedulers {
        eventually("schedulers know it", seconds(5), || {
            let hosts = http::get("/v1/hosts").ask(*scheduler).text();
            hosts.contains("cordoned by").then_some(())
        });
        // A request that names the host is refused with the reason.
        let named = json!({ "id": "named", "image": "i", "requested_host": "a", "dry_run": true });
        let (status, answer) = place(*scheduler, &named).unwrap();
        let text = answer.to_string();
        assert!(status == 409 && text.contains("host is cordoned by") && text.contains("new disk"), "{status} {text}");
    }
    // Nothing that is there moved.
    let there = http::get("/v1/placements/before").ask(world.schedulers[0]).value();
    assert_eq!(host_of(&there), Some("a"), "{there}");

    let listed = world.told(&["hosts"]);
    let line = listed.lines().find(|line| line.starts_with("a ")).unwrap_or_default().to_owned();
    assert!(line.contains("cordoned") && line.contains("new disk"), "{listed}");
    let hosts: Value = serde_json::from_str(&world.told(&["hosts", "--json"])).unwrap();
    let host = &hosts["hosts"][0];
    assert_eq!((&host["state"], &host["reason"]), (&json!("cordoned"), &json!("new disk")), "{hosts}");
    assert!(!host["by"].as_str().unwrap_or_default().is_empty(), "{hosts}");

    // A label changes neither the state nor its author, and a host by this name is not invited as if it were not there.
    world.told(&["label", "a", "zone=x"]);
    assert_eq!(world.state("a"), "inactive");
    assert!(world.agent(&["invite", "a"]).errors.contains("active"), "a host that is there");

    assert!(world.told(&["uncordon", "a"]).starts_with("a is active again; it was cordoned by "));
    assert_eq!(world.told(&["uncordon", "a"]), "a was not cordoned\n");
    eventually("it may be used again", seconds(5), || {
        let (status, _) = place(world.schedulers[1], &json!({ "id": "after", "image": "i", "requested_host": "a" }))?;
        (status == 201).then_some(())
    });
    // A host that is expected, and a name that is none.
    assert!(world.told(&["cordon", "c"]).contains("no host c is there now"));
    assert_eq!(world.agent(&["cordon", "a/b"]).code, Some(2));
    assert_eq!(world.agent(&["cordon"]).code, Some(2));
}

#[test]
fn only_a_host_that_is_gone_is_evacuated_and_what_stays_is_said_before() {
    let Some(world) = World::start() else { return };
    let reserved = json!({ "id": "before", "image": "i", "requested_host": "a" });
    assert_eq!(place(world.schedulers[0], &reserved).unwrap().0, 201);
    let evacuate = |words: &[&str]| {
        let launch = Launch::bare(Executable::Agent).word("evacuate").word("a");
        let launch = words.iter().fold(launch, |launch, word| launch.flag(word));
        launch.with("--server", world.schedulers[0].to_string()).run()
    };
    let there = evacuate(&["--dead", "--dry-run"]);
    assert!(there.code == Some(1) && there.errors.contains("host a is there"), "{there:?}");
    // A person has to say both.
    for words in [&["--dead"][..], &["--dry-run"], &["--dead", "--dry-run", "--yes-it-is-off"]] {
        assert_eq!(evacuate(words).code, Some(2), "{words:?}");
    }
    world.etcd.delete("/berth/v1/hosts/a/host");
    let planned = eventually("it is gone", seconds(60), || {
        Some(evacuate(&["--dead", "--dry-run"])).filter(|ended| !ended.errors.contains("host a is there"))
    });
    // Nothing of it is a scheduler's to start.
    assert_eq!(planned.code, Some(1), "{planned:?}");
    assert!(planned.output.contains("before") && planned.output.contains("its client has started it"), "{planned:?}");
    assert_eq!(evacuate(&["--dead", "--yes-it-is-off"]).code, Some(1));
    // Where one does not answer, the next one is asked.
    let nobody = format!("127.0.0.1:{}", tests::ports::free());
    let launch = Launch::bare(Executable::Agent).word("evacuate").word("a").flag("--dead").flag("--dry-run");
    let launch = launch.with("--server", &nobody);
    let ended = launch.run();
    assert!(ended.code == Some(1) && ended.errors.contains("is it running?"), "{ended:?}");
    let other = launch.with("--or-server", format!("{nobody},{}", world.schedulers[0])).run();
    assert_eq!(other.output, planned.output, "{}", other.errors);
    let kept = http::get("/v1/placements/before").ask(world.schedulers[0]).value();
    assert_eq!(host_of(&kept), Some("a"), "{kept}");
}

#[test]
fn no_scheduler_places_on_a_host_that_was_just_cordoned() {
    let Some(world) = World::start() else { return };
    let requests = if is_long() { REQUESTS[0] } else { REQUESTS[1] };
    let (next, over, placed) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(Vec::new()));
    // From when on nothing may be placed on it any more, and until when.
    let mut closed: Vec<(Instant, Instant)> = Vec::new();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (world, next, over, placed) = (&world, &next, &over, &placed);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let begun = Instant::now();
                    let answer = place(world.schedulers[thread], &request(&format!("r-{number}")));
                    let (status, answer) = answer.expect("it answers");
                    assert_eq!(status, 201, "{answer}");
                    if host_of(&answer) == Some("a") {
                        placed.lock().unwrap().push(begun);
                    }
                }
            });
        }
        let _stop = Stop(&over);
        // Schedulers on a busy machine may learn late that it is open, so each closing begins when it is used.
        while next.load(Ordering::Relaxed) < requests || closed.len() < 2 {
            let before = placed.lock().unwrap().len();
            eventually("it is used", Duration::from_secs(30), || (placed.lock().unwrap().len() > before).then_some(()));
            world.told(&["cordon", "a"]);
            let begun = Instant::now() + scaled(CORDONED);
            std::thread::sleep(scaled(CORDONED) + Duration::from_millis(500));
            closed.push((begun, Instant::now()));
            world.told(&["uncordon", "a"]);
        }
    });
    let placed = placed.into_inner().unwrap();
    tell(&format!(
        "cordoned {} times under {} requests, {} of them placed on it between",
        closed.len(),
        next.load(Ordering::Relaxed),
        placed.len()
    ));
    let late = placed.iter().filter(|at| closed.iter().any(|(from, until)| *from <= **at && **at < *until)).count();
    assert_eq!(late, 0, "placed on a cordoned host");
}
