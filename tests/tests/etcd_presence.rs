//! Hosts that publish in a real etcd and follow each other: they come, change and go, and nobody else says what is theirs.
//!
//! Debian's etcd-server, started and ended by the tests.

use std::time::{Duration, Instant};

use live::etcd::Identity;
use serde_json::json;
use source::StateDir;
use tests::cable::Cable;
use tests::etcd::{Etcd, base64};
use tests::publication::{Follower, GRACE, Host, LATE, LEASE, SOON, client, document, runtime, sleep};
use tests::{eventually, scaled};

#[test]
fn hosts_see_each_other_come_change_and_go() {
    let Some(etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let (one, two) =
        (Host::new(&runtime, &etcd.urls(), "one", &["a"]), Host::new(&runtime, &etcd.urls(), "two/2", &["b"]));
    let all = Follower::new(&runtime, &etcd.urls());
    let other = Follower::new(&runtime, &etcd.urls());
    all.sees("hosts/one:a hosts/two/2:b");
    other.sees("hosts/one:a hosts/two/2:b");
    eventually("ready", SOON, || all.is_ready());
    // What is followed is what was published.
    let told = all.told().parts["hosts/one"].clone();
    assert_eq!(told, document("one", &["a"]).document);
    one.says(document("one", &["a", "c"]));
    let took = all.sees("hosts/one:a,c hosts/two/2:b");
    assert!(took < scaled(Duration::from_millis(250)), "{took:?}");
    one.says(document("one", &["c"]));
    all.sees("hosts/one:c hosts/two/2:b");
    // Nothing new is not written again.
    let revision = |etcd: &Etcd| etcd.ask("kv/range", &json!({"key": base64("x")}))["header"]["revision"].clone();
    let before = revision(&etcd);
    one.says(document("one", &["c"]));
    sleep(LEASE);
    assert_eq!(revision(&etcd), before);
    // One leaves on purpose, the other one crashes.
    one.leave(&runtime);
    all.sees_within(Duration::from_secs(2), "hosts/two/2:b");
    // How much of its lease is left depends on when it was kept alive; etcd says that in whole seconds.
    let keys = json!({"key": base64("/berth/v1/hosts/two"), "range_end": base64("/berth/v1/hosts/twp")});
    let lease = etcd.ask("kv/range", &keys)["kvs"][0]["lease"].clone();
    let begun = Instant::now();
    drop(two);
    let left = etcd.ask("lease/timetolive", &json!({"ID": lease}))["TTL"].clone();
    let left: u64 = left.as_str().unwrap().parse().unwrap();
    let took = all.sees_within(LATE, "");
    let shortest = Duration::from_secs(GRACE + left);
    assert!(begun.elapsed() > shortest && took < scaled(Duration::from_secs(LEASE + GRACE + 3)), "{took:?}");
    other.sees("");
    assert_eq!(other.gone(), ["hosts/one", "hosts/two/2"]);
}

#[test]
fn a_host_with_many_containers_is_never_seen_in_part() {
    let Some(etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let many: Vec<String> = (0..450).map(|number| format!("c{number:03}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let follower = Follower::new(&runtime, &etcd.urls());
    let host = Host::new(&runtime, &etcd.urls(), "one", &many);
    follower.sees(&format!("hosts/one:{}", many.join(",")));
    assert_eq!(follower.told().shown.len(), 1);
    host.says(document("one", &many[..1]));
    follower.sees("hosts/one:c000");
}

#[test]
fn a_lease_that_ran_out_is_regained_within_the_grace() {
    let Some(etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let cable = Cable::to(etcd.address(0));
    let host = Host::new(&runtime, &cable.url(), "a", &["x", "y"]);
    let follower = Follower::new(&runtime, &etcd.urls());
    follower.sees("hosts/a:x,y");
    let key = json!({"key": base64("/berth/v1/hosts/a/host")});
    let there = |etcd: &Etcd| etcd.ask("kv/range", &key).get("kvs").map(|_| ());
    cable.pull();
    eventually("the lease runs out", LATE, || there(&etcd).is_none().then_some(()));
    cable.plug_in();
    eventually("it publishes again", LATE, || there(&etcd));
    sleep(GRACE + 1);
    assert_eq!(follower.parts(), "hosts/a:x,y");
    assert_eq!(follower.told().shown.len(), 1, "nothing was seen of it");
    // For longer than the grace: it goes, and comes back.
    cable.pull();
    follower.sees_within(LATE, "");
    cable.plug_in();
    follower.sees("hosts/a:x,y");
    eventually("published", SOON, || host.is_published());
}

#[test]
fn keys_of_a_host_that_somebody_deletes_are_back_at_once() {
    let Some(etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    // As in an agent, which publishes and follows with one client.
    let client = client(&etcd.urls());
    let host = Host::start(&runtime, client.clone(), Identity::open(None).unwrap(), document("a", &["x", "y"]));
    let follower = Follower::start(&runtime, client, None);
    follower.sees("hosts/a:x,y");
    let count = |prefix: &str, end: &str| {
        let found = etcd.ask("kv/range", &json!({"key": base64(prefix), "range_end": base64(end), "count_only": true}));
        found["count"].as_str().map_or(0, |count| count.parse().unwrap())
    };
    let keys = || count("/berth/v1/hosts/a/", "/berth/v1/hosts/a0");
    let all: u64 = keys();
    let back = |deleted: u64| {
        let begun = Instant::now();
        eventually("all keys are back", SOON, || (keys() == all).then_some(()));
        assert!(begun.elapsed() < scaled(Duration::from_secs(1)), "{:?}", begun.elapsed());
        eventually("it is told", SOON, || (host.metrics.deleted_keys() == deleted).then_some(()));
        eventually("published", SOON, || host.is_published());
    };
    etcd.delete("/berth/v1/hosts/a/containers/x");
    back(1);
    etcd.ask(
        "kv/deleterange",
        &json!({"key": base64("/berth/v1/hosts/a/"), "range_end": base64("/berth/v1/hosts/a0")}),
    );
    back(1 + all);
    // What the host itself deletes is nobody's attack.
    host.says(document("a", &["y"]));
    follower.sees("hosts/a:y");
    host.says(document("a", &["x", "y"]));
    follower.sees("hosts/a:x,y");
    sleep(1);
    assert_eq!((host.metrics.deleted_keys(), follower.gone()), (1 + all, Vec::new()));
}

#[test]
fn what_somebody_else_writes_to_the_keys_of_a_host_is_noticed_at_once() {
    let Some(etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let folder = tempfile::tempdir().unwrap();
    let state = StateDir::open(folder.path().to_owned()).unwrap();
    let identity = || Identity::open(Some(&state)).unwrap();
    let client = || client(&etcd.urls());
    let own = client();
    let host = Host::start(&runtime, own.clone(), identity(), document("a", &["x"]));
    let follower = Follower::start(&runtime, own, None);
    follower.sees("hosts/a:x");
    eventually("published", SOON, || host.is_published());
    let value = |key: &str| etcd.ask("kv/range", &json!({"key": base64(key)}))["kvs"][0]["value"].clone();
    for key in ["/berth/v1/hosts/a/containers/x", "/berth/v1/hosts/a/host"] {
        let (before, begun) = (value(key), Instant::now());
        etcd.put(key, "x");
        let is_back = || (value(key) != json!(base64("x"))).then_some(());
        eventually("the key is corrected", SOON, is_back);
        assert!(begun.elapsed() < scaled(Duration::from_secs(1)), "{key}: {:?}", begun.elapsed());
        assert!(key.ends_with("/host") || value(key) == before, "{key}");
        eventually("published", SOON, || host.is_published());
    }
    // A copy of the machine has the name from now on, although nothing changes on the first one.
    let begun = Instant::now();
    let copy = Host::start(&runtime, client(), identity(), document("a", &["x"]));
    let trouble = eventually("the first one says so", SOON, || host.trouble().filter(|why| why.contains("taken over")));
    assert!(begun.elapsed() < scaled(Duration::from_secs(2)), "{trouble}: {:?}", begun.elapsed());
    eventually("published", SOON, || copy.is_published());
    assert_eq!(host.metrics.deleted_keys(), 0);
}

#[test]
fn two_hosts_of_one_name_are_never_mixed() {
    let Some(etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let follower = Follower::new(&runtime, &etcd.urls());
    let one = Host::new(&runtime, &etcd.urls(), "a", &["x"]);
    follower.sees("hosts/a:x");
    let two = Host::new(&runtime, &etcd.urls(), "a", &["y"]);
    let trouble =
        eventually("the second one says so", SOON, || two.trouble().filter(|trouble| trouble.contains("published by")));
    assert!(trouble.contains("host a") && trouble.contains("192.0.2.1") && trouble.contains("since 20"), "{trouble}");
    two.says(document("a", &["z"]));
    one.says(document("a", &["x", "w"]));
    follower.sees("hosts/a:w,x");
    assert_eq!(one.trouble(), None);
    // The first one dies: the name is free after its lease.
    drop(one);
    follower.sees_within(LATE, "hosts/a:z");
    eventually("published", SOON, || two.is_published());
    let shown: Vec<_> = follower.told().shown.iter().map(|(_, names)| names.clone()).collect();
    assert_eq!(shown, ["x", "w,x", "z"]);
    assert_eq!(follower.gone(), [""; 0]);
}

#[test]
fn an_agent_that_was_killed_takes_its_keys_over_at_once() {
    let Some(etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let folder = tempfile::tempdir().unwrap();
    let state = StateDir::open(folder.path().to_owned()).unwrap();
    let start = |containers: &[&str]| {
        let identity = Identity::open(Some(&state)).unwrap();
        Host::start(&runtime, client(&etcd.urls()), identity, document("a", containers))
    };
    let follower = Follower::new(&runtime, &etcd.urls());
    let host = start(&["x"]);
    follower.sees("hosts/a:x");
    drop(host);
    let host = start(&["y"]);
    let took = follower.sees("hosts/a:y");
    assert!(took < scaled(Duration::from_secs(1)), "{took:?}");
    sleep(LEASE + 1);
    // A copy of the machine: the later one has the keys, the earlier one says so and leaves them alone.
    let copy = start(&["z"]);
    follower.sees("hosts/a:z");
    let created = || {
        let found = etcd.ask("kv/range", &json!({"key": base64("/berth/v1/hosts/a/host")}));
        found["kvs"][0]["create_revision"].clone()
    };
    let before = created();
    host.says(document("a", &["y", "w"]));
    let trouble = eventually("it says so", LATE, || host.trouble());
    assert!(trouble.contains("taken over"), "{trouble}");
    sleep(LEASE);
    assert_eq!(follower.parts(), "hosts/a:z");
    assert_eq!(copy.trouble(), None);
    assert_eq!(created(), before, "nobody took them from the copy");
    assert_eq!(follower.gone(), [""; 0]);
}
