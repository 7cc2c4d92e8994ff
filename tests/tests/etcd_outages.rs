//! A real etcd whose members hang, die, forget and lose: nobody goes who is there, and what was missed is made up for.
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
fn members_die_and_hang_and_nobody_goes() {
    let Some(mut etcd) = Etcd::start(3) else { return };
    let runtime = runtime();
    let hosts: Vec<_> = ["a", "b", "c"].map(|name| Host::new(&runtime, &etcd.urls(), name, &["v0"])).into();
    let followers: Vec<_> = (0..2).map(|_| Follower::new(&runtime, &etcd.urls())).collect();
    let mut version = 0;
    // Something new has to reach everybody.
    let mut goes_on = |what: &str| {
        version += 1;
        let name = format!("v{version}");
        let begun = Instant::now();
        hosts.iter().zip(["a", "b", "c"]).for_each(|(host, of)| host.says(document(of, &[&name])));
        for follower in &followers {
            follower.sees_within(LATE, &format!("hosts/a:{name} hosts/b:{name} hosts/c:{name}"));
        }
        tests::tell(&format!("after {what}: {:.1} s", begun.elapsed().as_secs_f32()));
    };
    goes_on("the start");
    for (what, leads) in [("the leader", true), ("another member", false)] {
        let leader = etcd.leader();
        let member = if leads { leader } else { (leader + 1) % 3 };
        etcd.kill(member);
        goes_on(&format!("kill -9 of {what}"));
        etcd.run(member);
        etcd.wait_until_it_answers();
        let leader = etcd.leader();
        let member = if leads { leader } else { (leader + 1) % 3 };
        etcd.hang(member);
        goes_on(&format!("a hang of {what}"));
        etcd.go_on(member);
        etcd.wait_until_it_answers();
    }
    // One alone cannot tell whether what it knows is true.
    etcd.kill(0);
    etcd.kill(1);
    for follower in &followers {
        eventually("one of three is not enough", LATE, || follower.trouble());
    }
    sleep(LEASE + GRACE);
    etcd.run_all();
    etcd.wait_until_it_answers();
    goes_on("two of three were killed");
    // All of them, for longer than any lease and grace.
    etcd.kill_all();
    sleep(LEASE + GRACE + 3);
    assert!(followers.iter().all(|follower| follower.trouble().is_some()), "readiness is red");
    assert!(hosts.iter().all(|host| host.trouble().is_some()), "readiness is red");
    etcd.run_all();
    etcd.wait_until_it_answers();
    goes_on("all were killed");
    (0..3).for_each(|member| etcd.hang(member));
    sleep(LEASE + GRACE + 3);
    (0..3).for_each(|member| etcd.go_on(member));
    goes_on("all hung");
    for follower in &followers {
        assert_eq!(follower.gone(), [""; 0]);
        eventually("ready again", SOON, || follower.is_ready());
    }
    for host in &hosts {
        eventually("published again", SOON, || host.is_published());
    }
    // And who really is gone goes.
    drop(hosts);
    followers[0].sees_within(LATE, "");
}

#[test]
fn a_watch_behind_a_compaction_reads_everything_again() {
    let Some(etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let cable = Cable::to(etcd.address(0));
    let hosts = ["a", "b"].map(|name| Host::new(&runtime, &etcd.urls(), name, &["x"]));
    let follower = Follower::new(&runtime, &cable.url());
    follower.sees("hosts/a:x hosts/b:x");
    cable.pull();
    eventually("the loss is noticed", LATE, || follower.trouble());
    for version in 0..20 {
        hosts[0].says(document("a", &[&format!("v{version}")]));
        std::thread::sleep(Duration::from_millis(20));
    }
    etcd.put("/berth/v1/documents/d", r#"{"containers":[{"name":"e"}]}"#);
    sleep(1);
    etcd.compact();
    cable.plug_in();
    follower.sees("documents/d:e hosts/a:v19 hosts/b:x");
    assert_eq!(follower.gone(), [""; 0]);
}

#[test]
fn a_wiped_etcd_is_not_believed_and_filled_again() {
    let Some(mut etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let follower = Follower::new(&runtime, &etcd.urls());
    // Nobody is there who would write again.
    etcd.put("/berth/v1/documents/d", r#"{"containers":[{"name":"v0"}]}"#);
    etcd.put("/berth/v1/documents/e", r#"{"containers":[{"name":"e"}]}"#);
    (0..10).for_each(|_| etcd.put("/other", "x"));
    follower.sees("documents/d:v0 documents/e:e");
    etcd.wipe();
    let reason =
        eventually("suspicious", LATE, || follower.trouble().filter(|trouble| trouble.contains("nothing under")));
    assert!(reason.contains("/berth/v1/empty"), "{reason}");
    sleep(LEASE + GRACE + 1);
    assert_eq!(follower.parts(), "documents/d:v0 documents/e:e");
    etcd.put("/berth/v1/documents/d", r#"{"containers":[{"name":"v1"}]}"#);
    follower.sees("documents/d:v1 documents/e:e");
    eventually("ready again", SOON, || follower.is_ready());
    follower.sees_within(Duration::from_secs(LEASE + GRACE + 3), "documents/d:v1");
    // With a host that publishes, and so many changes that revisions have gone past those of before.
    let host = Host::new(&runtime, &etcd.urls(), "a", &["x"]);
    follower.sees("documents/d:v1 hosts/a:x");
    etcd.kill_all();
    eventually("the loss is noticed", LATE, || follower.trouble());
    etcd.wipe();
    follower.sees("documents/d:v1 hosts/a:x");
    eventually("published again", LATE, || host.is_published());
    host.says(document("a", &["y"]));
    follower.sees("documents/d:v1 hosts/a:y");
    follower.sees_within(LATE, "hosts/a:y");
    // Emptied, and said to be empty.
    drop(host);
    etcd.wipe();
    eventually("suspicious", LATE, || follower.trouble().filter(|trouble| trouble.contains("nothing under")));
    etcd.put("/berth/v1/empty", "");
    follower.sees("");
    eventually("ready again", SOON, || follower.is_ready());
}

#[test]
fn an_etcd_that_goes_back_to_a_backup_is_set_right() {
    let Some(mut etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let folder = tempfile::tempdir().unwrap();
    let state = StateDir::open(folder.path().to_owned()).unwrap();
    // As in an agent, one client publishes and follows.
    let start = |etcd: &Etcd, containers: &[&str]| {
        let client = client(&etcd.urls());
        let identity = Identity::open(Some(&state)).unwrap();
        let follower = Follower::start(&runtime, client.clone(), None);
        (Host::start(&runtime, client, identity, document("a", containers)), follower)
    };
    let all = Follower::new(&runtime, &etcd.urls());
    let before = start(&etcd, &["old"]);
    etcd.put("/berth/v1/documents/d", r#"{"containers":[{"name":"old"}]}"#);
    all.sees("documents/d:old hosts/a:old");
    etcd.back_up();
    drop(before);
    let (host, own) = start(&etcd, &["x", "y"]);
    etcd.put("/berth/v1/documents/d", r#"{"containers":[{"name":"new"}]}"#);
    all.sees_within(LATE, "documents/d:new hosts/a:x,y");
    own.sees("documents/d:new hosts/a:x,y");
    (0..10).for_each(|_| etcd.put("/other", "x"));
    etcd.restore();
    // What only stood in etcd is what the backup says; what a host knows of itself is written again at once.
    let took = all.sees_within(LATE, "documents/d:old hosts/a:x,y");
    tests::tell(&format!("right again after {:.1} s", took.as_secs_f32()));
    assert!(took < scaled(Duration::from_secs(3)), "{took:?}");
    eventually("published", SOON, || host.is_published());
    assert_eq!(all.gone(), [""; 0]);
}

#[test]
fn what_was_known_survives_a_start_without_etcd() {
    let Some(mut etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let folder = tempfile::tempdir().unwrap();
    let state = StateDir::open(folder.path().to_owned()).unwrap();
    let start = || Follower::start(&runtime, client(&etcd.urls()), Some(state.clone()));
    let host = Host::new(&runtime, &etcd.urls(), "a", &["x"]);
    let follower = start();
    follower.sees("hosts/a:x");
    host.says(document("a", &["y"]));
    follower.sees("hosts/a:y");
    drop(follower);
    sleep(1);
    etcd.kill_all();
    let follower = Follower::start(&runtime, client(&etcd.urls()), Some(state.clone()));
    follower.sees_within(Duration::from_secs(1), "hosts/a:y");
    assert!(follower.trouble().is_some());
    // It comes back with nothing, and the host a while later.
    drop(host);
    etcd.wipe();
    sleep(LEASE + GRACE + 2);
    assert_eq!(follower.parts(), "hosts/a:y");
    let _host = Host::new(&runtime, &etcd.urls(), "a", &["z"]);
    follower.sees_within(LATE, "hosts/a:z");
    assert_eq!(follower.gone(), [""; 0]);
}

#[test]
fn changes_that_a_watch_lost_are_found() {
    let Some(etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let cable = Cable::to(etcd.address(0));
    let follower = Follower::new(&runtime, &cable.url());
    let key = |name: &str| format!("/berth/v1/documents/{name}");
    let put = |name: &str, container: &str| {
        etcd.put(&key(name), &json!({"containers": [{"name": container}]}).to_string());
    };
    for name in ["d", "e", "f"] {
        put(name, &format!("{name}0"));
    }
    follower.sees("documents/d:d0 documents/e:e0 documents/f:f0");
    cable.lose(&["d", "e", "f", "g"].map(|name| base64(&key(name))));
    for name in ["d", "e", "g"] {
        put(name, &format!("{name}1"));
    }
    etcd.delete(&key("f"));
    sleep(1);
    assert_eq!(follower.parts(), "documents/d:d0 documents/e:e0 documents/f:f0", "they were lost");
    cable.lose(&[]);
    put("d", "d2");
    follower.sees("documents/d:d2 documents/e:e1 documents/g:g1");
}
