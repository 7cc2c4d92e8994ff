//! Hosts that publish in a real etcd and follow each other, while members of it hang, die, forget and lie.
//!
//! Debian's etcd-server, started and ended by the tests. Leases are short here, so that they run out.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use live::HostDocument;
use live::etcd::{
    self, Batch, Compare, EtcdClient, EtcdError, EtcdOptions, FOREIGN, Identity, Op, OpResult, Order, Pair, Publishing,
    Txn, With,
};
use model::Map;
use serde_json::{Value, json};
use source::follow::Reload;
use source::{Readiness, StateDir, Store};
use tests::etcd::{Cable, Etcd, base64};
use tests::wait::{eventually, scaled};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// The lease of the hosts, in seconds.
const LEASE: u64 = 4;

/// How long a host is shown after its key has gone, in seconds.
const GRACE: u64 = 5;

/// Longest wait for something that takes a moment.
const SOON: Duration = Duration::from_secs(5);

/// Longest wait for a host to go, or for etcd to be found again.
const LATE: Duration = Duration::from_secs(30);

fn options(urls: &str) -> EtcdOptions {
    EtcdOptions { lease: Duration::from_secs(LEASE), ..EtcdOptions::parse(urls).unwrap() }
}

fn client(urls: &str) -> EtcdClient {
    EtcdClient::new(options(urls)).unwrap()
}

/// A host's document with these containers.
fn document(host: &str, containers: &[&str]) -> HostDocument {
    let containers: Vec<_> =
        containers.iter().map(|name| json!({"name": name, "host": host, "primary_ip": "10.42.0.7"})).collect();
    let document = json!({
        "berth": 1, "host": host, "environment": {"name": "test"},
        "hosts": [{"name": host, "agent_ip": "192.0.2.1"}], "containers": containers,
        "services": [{"name": "web", "stack": "shop"}], "networks": [{"name": "nat"}],
    });
    let document: Map = serde_json::from_value(document).unwrap();
    HostDocument { host: host.into(), document, defects: Vec::new() }
}

/// A host that publishes. Dropping it is a crash.
struct Host {
    documents: Arc<Store<HostDocument>>,
    readiness: Arc<Readiness>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Host {
    fn start(runtime: &Runtime, client: EtcdClient, identity: Identity, document: HostDocument) -> Self {
        let documents = Arc::new(Store::new(HostDocument::default()));
        documents.publish(Arc::new(document));
        let readiness = Arc::new(Readiness::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let publishing = Publishing { identity, leave: true };
        let stopping = async move { drop(stopped.await) };
        let task = runtime.spawn(etcd::publish(client, documents.clone(), publishing, readiness.clone(), stopping));
        Self { documents, readiness, stop: Some(stop), task }
    }

    /// One with an identity of its own.
    fn new(runtime: &Runtime, urls: &str, name: &str, containers: &[&str]) -> Self {
        Self::start(runtime, client(urls), Identity::open(None).unwrap(), document(name, containers))
    }

    fn says(&self, document: HostDocument) {
        self.documents.publish(Arc::new(document));
    }

    fn trouble(&self) -> Option<String> {
        self.readiness.reasons().get("publish").cloned()
    }

    fn is_published(&self) -> Option<()> {
        self.trouble().is_none().then_some(())
    }

    fn leave(mut self, runtime: &Runtime) {
        self.stop.take().unwrap().send(()).unwrap();
        runtime.block_on(&mut self.task).unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a follower was told.
#[derive(Default)]
struct Told {
    parts: BTreeMap<String, Map>,
    defects: BTreeMap<String, Vec<String>>,
    /// Parts that went, in order.
    gone: Vec<String>,
    /// Every set of containers of a part that was ever shown.
    shown: Vec<(String, String)>,
    batches: usize,
}

struct Follower {
    told: Arc<Mutex<Told>>,
    readiness: Arc<Readiness>,
    reload: Reload,
    task: JoinHandle<()>,
}

impl Follower {
    fn start(runtime: &Runtime, client: EtcdClient, state: Option<StateDir>) -> Self {
        let (sender, mut receiver) = mpsc::channel::<Batch>(4);
        let (reload, requests) = Reload::channel();
        let readiness = Arc::new(Readiness::default());
        let told = Arc::new(Mutex::new(Told::default()));
        runtime.spawn({
            let told = told.clone();
            async move {
                while let Some(batch) = receiver.recv().await {
                    told.lock().unwrap().hear(batch);
                }
            }
        });
        let task = runtime.spawn(etcd::follow(client, state, sender, readiness.clone(), requests));
        Self { told, readiness, reload, task }
    }

    fn new(runtime: &Runtime, urls: &str) -> Self {
        Self::start(runtime, client(urls), None)
    }

    /// The parts, each with its containers: `hosts/a:x,y`.
    fn parts(&self) -> String {
        let told = self.told.lock().unwrap();
        told.parts.iter().map(|(part, document)| format!("{part}:{}", names(document))).collect::<Vec<_>>().join(" ")
    }

    fn sees(&self, expected: &str) -> Duration {
        self.sees_within(SOON, expected)
    }

    fn sees_within(&self, limit: Duration, expected: &str) -> Duration {
        let begun = Instant::now();
        while self.parts() != expected {
            assert!(
                begun.elapsed() < scaled(limit),
                "expected {expected}, but there is {} ({:?})",
                self.parts(),
                self.trouble()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        begun.elapsed()
    }

    fn trouble(&self) -> Option<String> {
        self.readiness.reasons().get("etcd").cloned()
    }

    fn is_ready(&self) -> Option<()> {
        self.trouble().is_none().then_some(())
    }

    fn gone(&self) -> Vec<String> {
        self.told.lock().unwrap().gone.clone()
    }

    fn defects(&self, part: &str) -> Vec<String> {
        self.told.lock().unwrap().defects.get(part).cloned().unwrap_or_default()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Told {
    fn hear(&mut self, batch: Batch) {
        self.batches += 1;
        for change in batch.changes {
            let part = change.part.to_string();
            let defects = change.defects.iter().map(ToString::to_string).collect();
            self.defects.insert(part.clone(), defects);
            match change.document {
                Some(document) => {
                    self.shown.push((part.clone(), names(&document)));
                    self.parts.insert(part, document);
                }
                None => {
                    if self.parts.remove(&part).is_some() {
                        self.gone.push(part);
                    }
                }
            }
        }
        if let Some(done) = batch.done {
            let _ = done.send(());
        }
    }
}

fn names(document: &Map) -> String {
    let names = document.list("containers").iter().filter_map(|value| value.as_map()?.text("name"));
    names.map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Outages are as long as leases and graces make them: a slow machine needs no longer ones.
fn sleep(seconds: u64) {
    std::thread::sleep(Duration::from_secs(seconds));
}

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
    let told = all.told.lock().unwrap().parts["hosts/one"].clone();
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
    drop(two);
    let took = all.sees_within(LATE, "");
    // It was kept alive at some time within the last third of its lease.
    let least = Duration::from_millis(GRACE * 1000 + LEASE * 600);
    assert!(took > least && took < scaled(Duration::from_secs(LEASE + GRACE + 3)), "{took:?}");
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
    assert_eq!(follower.told.lock().unwrap().shown.len(), 1);
    host.says(document("one", &many[..1]));
    follower.sees("hosts/one:c000");
}

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
    assert_eq!(follower.told.lock().unwrap().shown.len(), 1, "nothing was seen of it");
    // For longer than the grace: it goes, and comes back.
    cable.pull();
    follower.sees_within(LATE, "");
    cable.plug_in();
    follower.sees("hosts/a:x,y");
    eventually("published", SOON, || host.is_published());
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
    let shown: Vec<_> = follower.told.lock().unwrap().shown.iter().map(|(_, names)| names.clone()).collect();
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

#[test]
fn garbage_harms_only_itself() {
    let Some(etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let _host = Host::new(&runtime, &etcd.urls(), "a", &["x", "y"]);
    let follower = Follower::new(&runtime, &etcd.urls());
    follower.sees("hosts/a:x,y");
    for (key, value) in [
        ("hosts/a/containers/x", "{broken"),
        ("hosts/a/containers/bad", r#"{"name":"other"}"#),
        ("hosts/a/pods/p", "{}"),
        ("hosts/%zz/host", "{}"),
        ("hosts/b/host", r#"{"name":"b","berth":7}"#),
        ("hosts/c/containers/orphan", r#"{"name":"orphan"}"#),
        ("documents/d", r#"{"containers":[{"name":"e"},{"nam":"f"}]}"#),
        ("documents/bad", "- yaml"),
        ("nobody", "\u{0}\u{1}"),
    ] {
        etcd.put(&format!("/berth/v1/{key}"), value);
    }
    etcd.put("/berth/v2/hosts/z/host", r#"{"name":"z"}"#);
    follower.sees("documents/d:e hosts/a:x,y");
    let told = eventually("all of it is reported", SOON, || {
        let told = ["hosts/a", "hosts/b", "documents/bad", FOREIGN].map(|part| follower.defects(part).join("\n"));
        (!told[3].is_empty() && told[3].contains("nobody")).then_some(told)
    });
    for (part, expected) in [
        (0, "hosts/a/containers/x: no JSON"),
        (0, "the last good value stays"),
        (0, "hosts/a/containers/bad: its name is another one than the key says"),
        (1, "hosts/b/host: of format 7"),
        (2, "documents/bad: no JSON"),
        (3, "/berth/v1/hosts/a/pods/p: no key of ours"),
        (3, "/berth/v1/hosts/%zz/host: no key of ours"),
    ] {
        assert!(told[part].contains(expected), "{expected} in {}", told[part]);
    }
    etcd.put("/berth/v1/hosts/a/containers/x", r#"{"name":"x","state":"stopped"}"#);
    eventually("healed", SOON, || (!follower.defects("hosts/a").join("").contains("containers/x")).then_some(()));
    etcd.put("/berth/v1/documents/d", "{broken");
    sleep(1);
    assert_eq!(follower.parts(), "documents/d:e hosts/a:x,y");
    etcd.delete("/berth/v1/documents/d");
    follower.sees("hosts/a:x,y");
    // A clock an hour ahead.
    let put = json!({"name": "h", "published": {"by": "m", "at": "2099-01-01T00:00:00Z"}});
    etcd.put("/berth/v1/hosts/h/host", &put.to_string());
    let told = eventually("the clock is reported", SOON, || follower.defects("hosts/h").first().cloned());
    assert!(told.contains("its clock is") && told.contains("ahead of ours"), "{told}");
    assert_eq!(follower.gone(), ["documents/d"]);
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

#[test]
fn a_change_costs_less_than_a_kibibyte() {
    let Some(etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let document = |version: usize| {
        let mut own = document("win-1.example.org", &[]);
        let containers = (0..20).map(|number| {
            json!({
                "name": format!("shop-web-{number}"), "uuid": format!("{number:064x}"), "host": "win-1.example.org",
                "primary_ip": "10.42.0.7", "service": "shop/web", "service_index": "1", "network": "nat", "create_index": 1_795_199_999,
                "state": "running", "health_state": if number == version % 20 { "unhealthy" } else { "healthy" },
                "labels": {"com.docker.compose.project": "shop", "com.docker.compose.service": "web"},
            })
        });
        let containers = serde_json::from_value(Value::Array(containers.collect())).unwrap();
        own.document = own.document.with([("containers".into(), containers)]);
        own
    };
    let cable = Cable::to(etcd.address(0));
    let host = Host::start(&runtime, client(&etcd.urls()), Identity::open(None).unwrap(), document(0));
    let follower = Follower::new(&runtime, &cable.url());
    let shown = || follower.told.lock().unwrap().shown.len();
    eventually("it is there", SOON, || (shown() == 1).then_some(()));
    sleep(1);
    let before = cable.octets();
    for version in 1..=20 {
        host.says(document(version));
        eventually("it is there", SOON, || (shown() == version + 1).then_some(()));
    }
    // Each time two containers change: one gets well, another one falls ill.
    let each = (cable.octets() - before) / 40;
    tests::tell(&format!("{each} octets for a change"));
    assert!(each < 1024, "{each}");
}

#[test]
fn a_reload_answers_when_everything_is_told() {
    let Some(mut etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let follower = Follower::new(&runtime, &etcd.urls());
    etcd.put("/berth/v1/documents/d", r#"{"containers":[{"name":"e"}]}"#);
    for name in ["f", "g"] {
        etcd.put("/berth/v1/documents/d", &json!({"containers": [{"name": name}]}).to_string());
        assert_eq!(runtime.block_on(follower.reload.request()), Ok(()));
        assert_eq!(follower.parts(), format!("documents/d:{name}"));
    }
    etcd.kill_all();
    let refused = runtime.block_on(follower.reload.request()).unwrap_err();
    assert!(refused.contains("no member of etcd answers") || refused.contains("lost"), "{refused}");
}

#[test]
fn certificates_and_users_are_asked_for() {
    let Some(mut etcd) = Etcd::start_with_tls(1) else { return };
    let runtime = runtime();
    let file = |name: &str| Some(etcd.folder().join(name));
    let known =
        EtcdOptions { ca: file("ca.pem"), cert: file("client.pem"), key: file("client.key"), ..options(&etcd.urls()) };
    let strange = EtcdClient::new(EtcdOptions { cert: None, key: None, ..known.clone() }).unwrap();
    assert!(matches!(runtime.block_on(strange.get(b"x")), Err(EtcdError::Unavailable(_))));
    let plain = EtcdClient::new(known.clone()).unwrap();
    assert_eq!(runtime.block_on(plain.get(b"x")).unwrap().0, None);
    // Users: one with the rights that the documentation names for a host, one who may only read.
    let add = |path: &str, body: Value| etcd.ask(&format!("auth/{path}"), &body);
    add("user/add", json!({"name": "root", "password": "r"}));
    add("user/grant", json!({"user": "root", "role": "root"}));
    for (user, permissions) in [
        (
            "host",
            &[("READ", "/berth/v1/", "/berth/v10"), ("READWRITE", "/berth/v1/hosts/a/", "/berth/v1/hosts/a0")][..],
        ),
        ("reader", &[("READ", "/berth/v1/", "/berth/v10")]),
    ] {
        add("role/add", json!({"name": user}));
        for (kind, from, to) in permissions {
            let permission = json!({"permType": kind, "key": base64(from), "range_end": base64(to)});
            add("role/grant", json!({"name": user, "perm": permission}));
        }
        add("user/add", json!({"name": user, "password": "s3cret"}));
        add("user/grant", json!({"user": user, "role": user}));
    }
    add("enable", json!({}));
    let password_file = file("password");
    let signed_in = |user: &str, password: &str| {
        std::fs::write(password_file.as_ref().unwrap(), format!("{password}\n")).unwrap();
        let password_file = password_file.clone();
        EtcdClient::new(EtcdOptions { user: Some(user.into()), password_file, ..known.clone() }).unwrap()
    };
    assert!(matches!(runtime.block_on(plain.get(b"/berth/v1/x")), Err(EtcdError::Refused(_))));
    let wrong = runtime.block_on(signed_in("host", "wrong").get(b"/berth/v1/x")).unwrap_err().to_string();
    assert!(wrong.contains("cannot sign in as host"), "{wrong}");
    let reader = signed_in("reader", "s3cret");
    assert!(matches!(runtime.block_on(reader.put(b"/berth/v1/x", b"", 0)), Err(EtcdError::Refused(_))));
    let host = signed_in("host", "s3cret");
    assert!(matches!(runtime.block_on(host.get(b"/other")), Err(EtcdError::Refused(_))));
    assert!(matches!(runtime.block_on(host.put(b"/berth/v1/hosts/b/host", b"", 0)), Err(EtcdError::Refused(_))));
    let host = Host::start(&runtime, host, Identity::open(None).unwrap(), document("a", &["x"]));
    let follower = Follower::start(&runtime, reader, None);
    follower.sees("hosts/a:x");
    // A member that was restarted knows no tokens any more.
    etcd.kill_all();
    eventually("the loss is noticed", LATE, || follower.trouble());
    etcd.run_all();
    eventually("ready again", LATE, || follower.is_ready());
    host.says(document("a", &["y"]));
    follower.sees_within(LATE, "hosts/a:y");
    assert_eq!(follower.gone(), [""; 0]);
}

#[test]
fn dead_keys_are_pruned_and_members_describe_themselves() {
    let Some(mut etcd) = Etcd::start(3) else { return };
    let runtime = runtime();
    let host = Host::new(&runtime, &etcd.urls(), "a", &["x"]);
    eventually("published", LATE, || host.is_published());
    let client = client(&etcd.urls());
    for key in [
        "hosts/dead/host",
        "hosts/dead/containers/y",
        "hosts/a/containers/hand",
        "hosts/a/junk",
        "documents/d",
        "nobody",
    ] {
        etcd.put(&format!("/berth/v1/{key}"), "{}");
    }
    let keys = |dry_run| {
        let pruned = runtime.block_on(etcd::prune(&client, dry_run)).unwrap();
        assert_eq!((pruned.hosts, pruned.changed), (1, 0));
        let names = pruned.keys.iter().map(|key| key.key.strip_prefix("/berth/v1/hosts/").unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    let dead = ["a/containers/hand", "a/junk", "dead/containers/y", "dead/host"];
    assert_eq!(keys(true), dead);
    assert_eq!(keys(false), dead);
    assert_eq!(keys(false), [""; 0]);
    let left = runtime.block_on(client.list(b"/berth/v1/", true)).unwrap();
    // The host, its container, service and network; the document, and what is not under hosts/.
    assert_eq!(left.pairs.len(), 6);
    let down = (etcd.leader() + 1) % 3;
    etcd.kill(down);
    let members = runtime.block_on(etcd::members(&client));
    assert_eq!(members.len(), 3);
    for (number, member) in members.iter().enumerate() {
        assert_eq!(member.status.is_ok(), number != down, "{member:?}");
        let Ok(status) = &member.status else { continue };
        assert!(status.knows_leader && status.reads.is_ok() && status.members.len() == 3, "{status:?}");
        assert!(status.clock_ahead.is_some_and(|ahead| ahead.abs() <= 2), "{status:?}");
    }
    assert_eq!(members.iter().filter(|member| member.status.as_ref().is_ok_and(|status| status.leads)).count(), 1);
}

#[test]
fn transactions_hold_or_do_not() {
    let Some(etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let client = client(&etcd.urls());
    let txn = |compare, success| {
        let failure = vec![Op::Get(b"k".to_vec())];
        runtime.block_on(client.txn(Txn { compare, success, failure })).unwrap()
    };
    let put = |value: &str, lease| Op::Put { key: b"k".to_vec(), value: value.into(), lease };
    let first = txn(vec![Compare::absent("k")], vec![put("1", 0), Op::Get(b"k".to_vec())]);
    assert!(first.succeeded);
    let OpResult::Pairs(pairs) = &first.results[1] else { panic!("{first:?}") };
    let expected = Pair {
        key: b"k".to_vec(),
        value: b"1".to_vec(),
        create_revision: first.revision,
        mod_revision: first.revision,
        version: 1,
        lease: 0,
    };
    assert_eq!(pairs[0], expected);
    // The same again does not hold, and tells what is there.
    let second = txn(vec![Compare::absent("k")], vec![put("2", 0)]);
    assert_eq!((second.succeeded, &second.results[..]), (false, &[OpResult::Pairs(vec![expected])][..]));
    let lease = runtime.block_on(client.grant(Duration::from_mins(1))).unwrap();
    for (order, with, holds) in [
        (Order::Equal, With::ModRevision(first.revision), true),
        (Order::Greater, With::ModRevision(first.revision), false),
        (Order::Equal, With::Value(b"1".to_vec()), true),
        (Order::NotEqual, With::Value(b"1".to_vec()), false),
        (Order::Less, With::Version(2), true),
        (Order::Equal, With::CreateRevision(first.revision), true),
        (Order::Equal, With::Lease(0), true),
        (Order::Equal, With::Lease(lease), false),
    ] {
        let outcome = txn(vec![Compare::new("k", order, with.clone())], Vec::new());
        assert_eq!(outcome.succeeded, holds, "{order:?} {with:?}");
    }
    assert!(txn(Vec::new(), vec![put("3", lease)]).succeeded);
    assert!(txn(vec![Compare::new("k", Order::Equal, With::Lease(lease))], Vec::new()).succeeded);
    assert!(runtime.block_on(client.time_to_live(lease)).unwrap() > 50);
    runtime.block_on(client.revoke(lease)).unwrap();
    assert_eq!(runtime.block_on(client.get(b"k")).unwrap().0, None);
    assert_eq!(runtime.block_on(client.keep_alive(lease)), Err(EtcdError::LeaseGone));
    assert_eq!(runtime.block_on(client.put(b"k", b"", lease)), Err(EtcdError::LeaseGone));
    let many = (0..60_u8).map(|number| Op::Put { key: vec![b'p', number], value: vec![0; 1000], lease: 0 }).collect();
    assert!(txn(Vec::new(), many).succeeded);
    assert_eq!(runtime.block_on(client.count(b"p")).unwrap(), 60);
    assert_eq!(runtime.block_on(client.list(b"p", false)).unwrap().pairs.len(), 60);
    let deleted = txn(Vec::new(), vec![Op::DeletePrefix(b"p".to_vec()), Op::GetPrefix(b"p".to_vec())]);
    assert_eq!(deleted.results, [OpResult::Deleted(60), OpResult::Pairs(Vec::new())]);
}
