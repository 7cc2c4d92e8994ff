//! Several schedulers that start containers with one ledger in a real etcd, while everything fails: engines, the
//! connections to them, and the schedulers themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::battery::is_long;
use tests::cable::Cable;
use tests::etcd::{Etcd, base64};
use tests::shared::Exclusive;
use tests::storm::{Engines, Storm, all_started, draw};
use tests::wait::{scaled, seconds};
use tests::{Executable, Launch, Service, eventually, http};

/// How many engines there are, and how many containers of the smallest kind fit on one.
const ENGINES: u16 = 6;
const CONTAINERS: i64 = 60;
/// How many schedulers there are.
const SCHEDULERS: usize = 3;
/// How many ask at once, and how many of them for the same as another.
const CLIENTS: usize = 600;
const DOUBLES: usize = 120;
/// How many ports they fight for.
const PORTS: usize = 10;
/// How long one of the schedulers lives before the next one is killed.
const LIFE: Duration = Duration::from_secs(2);
/// Longest time for all clients to be told something definite.
const LIMIT: Duration = Duration::from_mins(4);

/// Longest wait for a scheduler to take over what another one left, and to be done with it.
const TAKEOVER: Duration = Duration::from_secs(25);

/// How often a request is sent of which the other scheduler has to hear: an engine that fails it has ended it after a second.
const BEGINNINGS: usize = 10;

/// How many units a host has that is evacuated: more than are begun before a scheduler is killed.
const EVACUATED: usize = 40;

/// The audit logs of two schedulers.
const AUDIT_LOGS: [&str; 2] = ["audit-0.ndjson", "audit-1.ndjson"];

fn launch(engines: &Engines, etcd: &str) -> Launch {
    engines.scheduler().with("--ledger-etcd", etcd).with("--ledger-key", engines.files.path("ledger.key"))
}

/// One engine without faults, and two schedulers.
fn two_and_an_engine(etcd: &Etcd) -> Option<(Engines, [(Service, SocketAddr); 2])> {
    two_and_engines(etcd, 1)
}

/// So many engines without faults, and two schedulers.
fn two_and_engines(etcd: &Etcd, count: u16) -> Option<(Engines, [(Service, SocketAddr); 2])> {
    let mut engines = Engines::start(count, CONTAINERS)?;
    engines.mend();
    let both = [0, 1].map(|at| {
        let launch = launch(&engines, &etcd.urls()).with("--audit-log", engines.files.path(AUDIT_LOGS[at]));
        let mut scheduler = launch.start();
        scheduler.ready();
        let address = scheduler.address();
        (scheduler, address)
    });
    Some((engines, both))
}

/// Asks for a container, on a thread of its own; returns when the other scheduler has heard of it. What ended before that, on a busy
/// machine, is asked for again.
fn begin(one: SocketAddr, other: SocketAddr, id: &'static str) -> std::thread::JoinHandle<()> {
    let body = json!({ "id": id, "image": "any", "start": true, "resources": { "milli_cpu": 10 } }).to_string();
    for _ in 0..BEGINNINGS {
        let body = body.clone();
        // Nobody may be left to answer.
        let asked = std::thread::spawn(move || drop(http::post("/v1/placements", body).within(seconds(60)).send(one)));
        let known = || {
            let is_known = http::get(format!("/v1/placements/{id}")).ask(other).status == 200;
            (is_known || asked.is_finished()).then_some(is_known)
        };
        if eventually("it is begun", TAKEOVER, known) {
            return asked;
        }
    }
    panic!("{id} has ended {BEGINNINGS} times before the other scheduler heard of it");
}

#[test]
fn a_scheduler_that_stood_still_asks_no_engine_for_what_another_one_ended() {
    let Some(etcd) = Etcd::start(1) else { return };
    // Whoever looks for free ports does it alone.
    let _processors = Exclusive::processors();
    let Some((engines, [(one, first), (_other, second)])) = two_and_an_engine(&etcd) else { return };
    let mut created = 0;
    for id in ["once", "twice", "thrice"] {
        // It is asked again and again, until the scheduler stands still.
        engines.fault(0, Some(json!({ "op": "create", "mode": "500", "p": 1, "n": 1 << 30 })));
        let asked = begin(first, second, id);
        one.signal("STOP");
        let over = || (http::get(format!("/v1/placements/{id}")).ask(second).status == 404).then_some(());
        eventually("the other one has tried and ended it", TAKEOVER, over);
        engines.fault(0, None);
        one.signal("CONT");
        asked.join().expect("it is answered");
        assert_eq!(engines.count("start"), 0);
        // Between its last look at the ledger and the question to the engine it seldom stands still, and then asks once.
        if engines.count("create") == created {
            return;
        }
        created = engines.count("create");
    }
    panic!("it asked each time");
}

#[test]
fn what_an_engine_creates_after_everybody_gave_up_is_removed() {
    let Some(etcd) = Etcd::start(1) else { return };
    let _processors = Exclusive::processors();
    let Some((engines, [(mut one, first), (_other, second)])) = two_and_an_engine(&etcd) else { return };
    engines.fault(0, Some(json!({ "op": "create", "mode": "slow", "s": 10, "p": 1, "n": 1 })));
    let asked = begin(first, second, "late");
    let shown = http::get("/v1/placements/late").ask(second).value();
    let detail = shown["placements"][0]["containers"][0]["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("scheduler s-"), "{shown}");
    // The engine has heard of it by then.
    std::thread::sleep(scaled(Duration::from_millis(300)));
    one.stop();
    drop(asked);
    let state =
        || http::get("/v1/placements/late").ask(second).value()["placements"][0]["containers"][0]["state"].clone();
    eventually("the other one starts it", TAKEOVER, || (state() == "started").then_some(()));
    let released = http::Request::new("DELETE", "/v1/placements/late").within(seconds(30)).ask(second);
    assert_eq!(released.status, 200, "{}", released.text());
    assert_eq!(engines.count("destroy"), 1);
    eventually("the engine does what the first one asked", TAKEOVER, || (engines.count("create") == 2).then_some(()));
    eventually("it is removed again", TAKEOVER, || (engines.count("destroy") == 2).then_some(()));
    assert_eq!(engines.count("start"), 1);
}

#[test]
fn what_ran_before_another_one_took_over_is_not_run_again_nor_taken_over_without_a_trace() {
    let Some(etcd) = Etcd::start(1) else { return };
    let _processors = Exclusive::processors();
    let Some((engines, [(mut one, first), (_other, second)])) = two_and_an_engine(&etcd) else { return };
    // So long is it looked at after its start.
    engines.fault(0, Some(json!({ "op": "inspect", "mode": "slow", "s": 30, "p": 1, "n": 1 })));
    let asked = begin(first, second, "job");
    eventually("it runs", TAKEOVER, || (engines.count("start") == 1).then_some(()));
    engines.end(0, "job");
    one.stop();
    drop(asked);
    let state =
        || http::get("/v1/placements/job").ask(second).value()["placements"][0]["containers"][0]["state"].clone();
    eventually("the other one knows that it has ended", TAKEOVER, || (state() == "exited").then_some(()));
    let audited = || {
        let text = std::fs::read_to_string(engines.files.path(AUDIT_LOGS[1])).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["action"] == "take_over").collect::<Vec<_>>()
    };
    let lines = eventually("it is in the audit log", TAKEOVER, || Some(audited()).filter(|lines| !lines.is_empty()));
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let told = ["request", "hosts", "subject"].map(|key| line[key].clone());
    assert_eq!(told, [json!("job"), json!(["h0"]), json!("token")], "{lines:?}");
    assert_eq!(line["outcome"], "adopted");
    assert_eq!((engines.count("create"), engines.count("start"), engines.count("destroy")), (1, 1, 0));
}

/// The operator's command is gone too: what is wanted is in the ledger alone.
#[test]
fn an_evacuation_goes_on_without_the_scheduler_and_the_command_that_began_it() {
    let Some(etcd) = Etcd::start(1) else { return };
    let _processors = Exclusive::processors();
    let Some((engines, [(mut one, first), (other, second)])) = two_and_engines(&etcd, 3) else { return };
    let cluster: Value = serde_json::from_slice(&std::fs::read(engines.files.file()).unwrap()).unwrap();
    let only_host = |at: usize, schedulers: &[SocketAddr]| {
        engines.files.replace(json!({ "berth": 1, "hosts": [cluster["hosts"][at]] }).to_string());
        for address in schedulers {
            eventually("it knows the host alone", TAKEOVER, || {
                let known = http::get("/v1/hosts").ask(*address).text();
                (0..3).all(|one| known.contains(&format!("uuid-{one}")) == (one == at)).then_some(())
            });
        }
    };
    only_host(0, &[first, second]);
    let ids: Vec<String> = (0..EVACUATED).map(|at| format!("unit-{at}")).collect();
    for id in &ids {
        let body = json!({ "id": id, "image": "any", "start": true, "resources": { "milli_cpu": 10 } }).to_string();
        assert_eq!(http::post("/v1/placements", body).within(seconds(60)).ask(first).status, 201);
    }
    only_host(1, &[first, second]);
    // It counts once it was put twice, as all that a scheduler begins.
    let wish = || {
        let key = base64("/berth/v1/ledger/placements/evacuations%2Fh0");
        let version = etcd.ask("kv/range", &json!({ "key": key }))["kvs"][0]["version"].clone();
        version.is_string() && version != "1"
    };
    let evacuating = std::thread::spawn(move || {
        let body = json!({ "host": "h0" }).to_string();
        http::post("/v1/evacuate", body).within(seconds(60)).send(first).map(|answer| answer.text())
    });
    while !wish() {
        assert!(!evacuating.is_finished(), "{:?}", evacuating.join());
    }
    one.kill();
    assert!(evacuating.join().unwrap().is_err() && wish(), "it was killed in the middle");
    let on = |host: &str| {
        let all = http::get("/v1/placements").ask(second).value();
        let there = all["placements"].as_array().unwrap().iter();
        there.filter(|placed| placed["placements"][0]["host"]["name"] == host).count()
    };
    tests::tell(&format!("{} of {EVACUATED} units were still there when it was killed", on("h0")));
    eventually("the other one goes on", TAKEOVER, || (on("h1") == EVACUATED && !wish()).then_some(()));
    eventually("all run", TAKEOVER, || {
        all_started(&http::get("/v1/placements").ask(second).value()["placements"]).then_some(())
    });
    assert_eq!(engines.count("create"), 2 * EVACUATED, "each once more");

    // The command waits until all run on another host.
    only_host(2, &[second]);
    let command = Launch::bare(Executable::Agent).word("evacuate").word("h1").flag("--dead").flag("--yes-it-is-off");
    let ended = command.flag("--json").with("--server", second.to_string()).run();
    let told: Value = serde_json::from_str(&ended.output).unwrap_or_else(|_| panic!("{ended:?}"));
    assert_eq!((ended.code, told["moved"].as_array().map(Vec::len)), (Some(0), Some(EVACUATED)), "{}", ended.errors);
    assert_eq!((on("h2"), engines.count("create")), (EVACUATED, 3 * EVACUATED));
    eventually("nothing more is wanted", TAKEOVER, || (!wish()).then_some(()));
    drop(other);
}

/// How many units the host has that is drained, with `BERTH_LONG=1` and without, and how long a scheduler lives meanwhile.
const DRAINED: [(usize, Duration); 2] = [(50, Duration::from_secs(5)), (8, Duration::from_secs(4))];

/// What of a stack runs by the log of its engines: the number of each unit with its host, once for each container.
fn running(events: &[Value]) -> Vec<(String, String)> {
    let mut containers = BTreeMap::new();
    for event in events {
        let id = event["container"].as_str().unwrap_or_default();
        match event["op"].as_str() {
            Some("start") => drop(containers.insert(id, event)),
            Some("die" | "destroy") => drop(containers.remove(id)),
            _ => {}
        }
    }
    let text = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
    let unit = |event: &Value| text(event, "name").split('-').nth(2).unwrap_or_default().to_owned();
    containers.values().map(|event| (unit(event), text(event, "host"))).collect()
}

#[test]
fn a_host_is_drained_though_replies_are_lost_and_schedulers_die() {
    let Some(etcd) = Etcd::start(1) else { return };
    let _processors = Exclusive::processors();
    let (units, life) = DRAINED[usize::from(!is_long())];
    let Some(mut engines) = Engines::start(4, CONTAINERS) else { return };
    engines.mend();
    let launches: Vec<_> = (0..SCHEDULERS).map(|_| launch(&engines, &etcd.urls())).collect();
    let mut schedulers: Vec<_> = launches.iter().map(Launch::start).collect();
    schedulers.iter_mut().for_each(Service::ready);
    let addresses: Vec<_> = schedulers.iter_mut().map(Service::address).collect();
    let cluster: Value = serde_json::from_slice(&std::fs::read(engines.files.file()).unwrap()).unwrap();
    let all = cluster["hosts"].as_array().unwrap();
    // What agents would show: the hosts, and what their engines have.
    let shown = |hosts: &[Value]| {
        let containers: Vec<_> = (0..4).flat_map(|engine| engines.shown(engine)).collect();
        engines.files.replace(json!({ "berth": 1, "hosts": hosts, "containers": containers }).to_string());
    };
    shown(&all[..1]);
    for address in &addresses {
        eventually("it knows one host alone", TAKEOVER, || {
            (!http::get("/v1/hosts").ask(*address).text().contains("uuid-1")).then_some(())
        });
    }
    let stack = engines.files.path("web.yml");
    let text = format!(
        "[{{service: web, stack: shop, image: any, count: {units}, stop_timeout: 1, update: {{batch: 5, monitor: 1}}}}]\n"
    );
    std::fs::write(&stack, text).unwrap();
    let ask = |at: usize, words: &[&str]| {
        let launch = words.iter().fold(Launch::bare(Executable::Scheduler), Launch::word);
        launch.with("--server", addresses[at].to_string()).run()
    };
    let up = ask(0, &["up", stack.to_str().unwrap(), "--stack", "shop"]);
    assert_eq!(up.code, Some(0), "{up:?}");
    let before = engines.events();
    assert_eq!(running(&before).len(), units);

    for engine in 0..4 {
        let fault = json!({ "op": "*", "mode": "drop-after", "p": 0.25, "n": 1_u64 << 40 });
        engines.fault(engine, Some(fault));
    }
    let mut draining = all.clone();
    draining[0]["state"] = json!("deactivating");
    shown(&draining);
    let (begun, mut deaths) = (Instant::now(), 0);
    let there = || running(&engines.events()).iter().filter(|(_, host)| host == "h0").count();
    while there() > 0 {
        assert!(begun.elapsed() < scaled(LIMIT), "{} units are still there", there());
        let next = Instant::now() + life;
        while there() > 0 && Instant::now() < next {
            shown(&draining);
            std::thread::sleep(Duration::from_millis(200));
        }
        let at = deaths % SCHEDULERS;
        schedulers[at].kill();
        schedulers[at] = launches[at].clone().with("--listen", addresses[at].to_string()).start();
        deaths += 1;
    }
    let took = begun.elapsed();
    for engine in 0..4 {
        engines.fault(engine, None);
    }
    schedulers.iter_mut().for_each(Service::ready);
    eventually("the stack is done", Duration::from_mins(1), || {
        shown(&draining);
        let shown: Value = serde_json::from_str(&ask(0, &["stacks", "shop", "--json"]).output).ok()?;
        (shown["state"] == "done").then_some(())
    });

    // Each unit ran at every moment, and each runs once.
    let events = engines.events();
    let mut most = 0;
    for at in before.len()..=events.len() {
        let now = running(&events[..at]);
        let alive: BTreeSet<_> = now.iter().map(|(unit, _)| unit).collect();
        assert_eq!(alive.len(), units, "{:?}", &events[at - 1]);
        most = most.max(now.len());
    }
    let last = running(&events);
    assert!(last.len() == units && last.iter().all(|(_, host)| host != "h0"), "{last:?}");
    eventually("nothing else is left", Duration::from_mins(1), || {
        (engines.count("create") - engines.count("destroy") == units).then_some(())
    });
    tests::tell(&format!(
        "{units} units were moved in {took:.0?} while {deaths} schedulers died, {most} at once at most"
    ));
}

#[test]
fn what_dying_schedulers_began_the_others_finish_and_nothing_is_started_twice() {
    let Some(etcd) = Etcd::start(1) else { return };
    let _processors = Exclusive::processors();
    let Some(mut engines) = Engines::start(ENGINES, CONTAINERS) else { return };
    let cables: Vec<_> = (0..SCHEDULERS).map(|_| Cable::to(etcd.address(0))).collect();
    let launches: Vec<_> = cables.iter().map(|cable| launch(&engines, &cable.url())).collect();
    let mut schedulers: Vec<_> = launches.iter().map(Launch::start).collect();
    schedulers.iter_mut().for_each(Service::ready);
    let addresses: Vec<_> = schedulers.iter_mut().map(Service::address).collect();

    let begun = Instant::now();
    let storm = Storm::begin(&engines, &addresses, CLIENTS, (DOUBLES, PORTS), begun + scaled(LIMIT));
    let mut deaths = 0;
    while !storm.is_over() && begun.elapsed() < scaled(LIMIT) + LIFE {
        std::thread::sleep(LIFE);
        for cable in &cables {
            cable.hang(false);
        }
        if !storm.is_over() {
            let drawn = usize::try_from(draw(engines.seed, deaths, 5) % 6).unwrap_or_default();
            let at = drawn % SCHEDULERS;
            schedulers[at].kill();
            schedulers[at] = launches[at].clone().with("--listen", addresses[at].to_string()).start();
            // Another one hears nothing of etcd for as long, and says nothing.
            cables[(at + 1 + drawn / SCHEDULERS) % SCHEDULERS].hang(true);
            deaths += 1;
        }
    }
    for cable in &cables {
        cable.hang(false);
    }
    let took = begun.elapsed();
    storm.check();
    // The last one may have been killed a moment before the end of the storm.
    schedulers.iter_mut().for_each(Service::ready);
    assert!(deaths > 0, "no scheduler was ever killed");

    // Once nothing fails any more, everything settles.
    let calm = Instant::now();
    engines.mend();
    let list = |address: SocketAddr| {
        let mut placements = http::get("/v1/placements").ask(address).value()["placements"].clone();
        // How a container is, each scheduler has asked at another moment, or not yet.
        for placement in placements.as_array_mut().into_iter().flatten() {
            for unit in placement["placements"].as_array_mut().into_iter().flatten() {
                for container in unit["containers"].as_array_mut().into_iter().flatten() {
                    container.as_object_mut().map(|container| container.remove("life"));
                }
            }
        }
        placements
    };
    let settled = eventually("everything is settled, for all alike", Duration::from_mins(2), || {
        let placements = list(addresses[0]);
        let alike = all_started(&placements) && addresses.iter().all(|address| list(*address) == placements);
        alike.then_some(placements)
    });
    let judged = engines.judge(&storm, &settled);
    tests::tell(&format!(
        "{CLIENTS} requests to {SCHEDULERS} schedulers in {took:.0?}, settled {:.0?} later, {deaths} of them killed: {judged}",
        calm.elapsed()
    ));
}
