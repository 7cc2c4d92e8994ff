//! The change stream, `GET /v1/changes`, of the real metadata service; and dns, which follows by it and without it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use model::{ChangeLine, Delta, Entity as _, Snapshot};
use tests::cluster::{CLIENT, ClusterFolder, revisions, stamped};
use tests::wait::seconds;
use tests::{Follower, Launch, Proxy, Question, Service, Told, eventually, http};

/// Longest wait for what takes milliseconds.
const LIMIT: Duration = Duration::from_secs(15);

/// Longest silence of the stream, with some room.
const SILENCE_MAX: Duration = Duration::from_secs(11);

/// Time in which a line would have come that must not come. Not scaled: what it was told by then is compared first.
const NOTHING_FOR: Duration = Duration::from_millis(300);

/// Followers at one time.
const FOLLOWERS: usize = 200;

const SECRET: &str = "token-of-the-shop";

/// A cluster of two services with these containers, given by name, address and state.
fn cluster(containers: &[(&str, &str, &str)]) -> String {
    let mut text = format!(
        "berth: 1\nhost: here\nenvironment: {{ name: example }}\n\
         hosts:\n- {{ name: here, agent_ip: 192.0.2.1, memory: 8GiB, milli_cpu: 4000 }}\n\
         services:\n- {{ name: web, stack: shop, token: {SECRET}, links: {{ data/db: db }} }}\n\
         - {{ name: db, stack: data }}\ncontainers:\n"
    );
    for (name, address, state) in containers {
        let service = if name.starts_with("web") { "shop/web" } else { "data/db" };
        let line = format!("name: {name}, service: {service}, host: here, primary_ip: {address}, state: {state}");
        text.extend(["- { ", &line, " }\n"]);
    }
    text + "...\n"
}

fn start(folder: &ClusterFolder) -> (Service, SocketAddr) {
    let mut service = Launch::metadata(&folder.file()).start();
    service.ready();
    let address = service.address();
    (service, address)
}

/// The same service, started again at the same address.
fn restart(folder: &ClusterFolder, address: SocketAddr) -> Service {
    let mut service = Launch::metadata(&folder.file()).with("--listen", address.to_string()).start();
    service.ready();
    service
}

/// What the service shows: the snapshot that its tree says.
fn shown(address: SocketAddr) -> Snapshot {
    let tree: model::Value = serde_json::from_slice(&http::get("/2016-07-29").json().ask(address).body).unwrap();
    model::tree::read(tree.as_map().unwrap()).0
}

/// What the tree derives from elsewhere or leaves out, so that it differs from what an entity says of itself.
const DERIVED: [&str; 8] =
    ["host_ip", "hostId", "ports", "service_name", "service_uuid", "sidekicks", "stack_name", "stack_uuid"];

/// What of a snapshot the tree shows, as text that can be compared: each entity with what it says of itself.
fn told(snapshot: &Snapshot) -> Vec<String> {
    fn lines<T: model::Entity>(table: &model::Table<T>) -> impl Iterator<Item = String> {
        table.values().map(|entity| {
            let fields = DERIVED.iter().fold(entity.fields().clone(), |fields, key| fields.without(key));
            format!("{} {}: {fields:?}", T::KIND, entity.id())
        })
    }
    let members = snapshot.services.values().map(|service| format!("{}: {:?}", service.id(), service.members()));
    lines(&snapshot.containers)
        .chain(lines(&snapshot.services))
        .chain(lines(&snapshot.stacks))
        .chain(lines(&snapshot.hosts))
        .chain(lines(&snapshot.networks))
        .chain(members)
        .collect()
}

/// Names of what a change puts, and the ids of what it removes, each with its kind.
fn named(change: &[ChangeLine]) -> (Vec<String>, Vec<String>) {
    let deltas: Vec<&Delta> = change
        .iter()
        .map(|line| match line {
            ChangeLine::Change { delta, .. } => delta,
            ChangeLine::Heartbeat { .. } => panic!("a heartbeat in a change"),
        })
        .collect();
    let puts = deltas.iter().flat_map(|delta| &delta.put);
    let mut put: Vec<_> = puts
        .map(|entity| {
            format!("{} {}", entity.text("kind").unwrap(), entity.map("object").unwrap().text("name").unwrap())
        })
        .collect();
    put.sort();
    let removed = deltas.iter().flat_map(|delta| &delta.removed);
    (put, removed.map(|(kind, id)| format!("{kind} {id}")).collect())
}

fn start_of(change: &[ChangeLine]) -> Option<String> {
    match &change[0] {
        ChangeLine::Change { from, .. } => from.as_ref().map(ToString::to_string),
        ChangeLine::Heartbeat { .. } => panic!("a heartbeat in a change"),
    }
}

/// The follower has what the service shows, and nothing else is said while nothing changes.
fn check_equal(follower: &mut Follower, address: SocketAddr) {
    // Stream and tree are views of their own: one may be a moment ahead of the other.
    let has = told(&follower.snapshot);
    eventually(&format!("the service shows what it told: {has:#?}"), seconds(2), || {
        (told(&shown(address)) == has).then_some(())
    });
    match follower.told_for(NOTHING_FOR) {
        Ok(told) => assert!(matches!(told, Told::Heartbeat(_)), "{told:?}"),
        Err(silence) => {
            assert!(
                matches!(silence.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
                "{silence}"
            );
        }
    }
}

const WEB: (&str, &str, &str) = ("web-1", "10.42.0.7", "running");
const DB: (&str, &str, &str) = ("db-1", "10.42.0.9", "running");

#[test]
fn a_follower_is_told_everything_once_and_then_each_change_by_name() {
    let folder = ClusterFolder::new(cluster(&[WEB, DB]));
    let mut service = Launch::metadata(&folder.file()).flag("--xff").start();
    service.ready();
    let address = service.address();
    let mut follower = Follower::new(address);
    let first = follower.change();
    assert_eq!(start_of(&first), None);
    assert_eq!(named(&first).0.iter().filter(|name| name.starts_with("container ")).count(), 2);
    check_equal(&mut follower, address);

    // New ones at the end: an entity's place in the document is its create_index.
    let (second, stopped) = (("web-2", "10.42.0.8", "running"), ("web-2", "10.42.0.8", "stopped"));
    for (containers, put, removed) in [
        // Added: its service has one member more.
        (&[WEB, DB, second][..], &["container web-2", "service web"][..], None),
        (&[WEB, DB, stopped], &["container web-2"], None),
        (&[WEB, DB], &["service web"], Some("web-2")),
        (
            &[WEB, ("db-1", "10.42.0.10", "running"), second],
            &["container db-1", "container web-2", "service web"],
            None,
        ),
    ] {
        let mut known = follower.snapshot.containers.values();
        let removed = removed.map(|name| {
            let container = known.find(|container| container.name().is_some_and(|it| **it == *name)).unwrap();
            format!("container {}", container.uuid())
        });
        let before = follower.revision.clone();
        folder.replace(cluster(containers));
        let lines = follower.change();
        assert_eq!(start_of(&lines), before);
        assert_ne!(follower.revision, before);
        assert_eq!(named(&lines), (put.iter().map(ToString::to_string).collect(), removed.into_iter().collect()));
        check_equal(&mut follower, address);
    }
    // The same content written again is no change.
    folder.replace("# the same\n".to_owned() + &cluster(&[WEB, ("db-1", "10.42.0.10", "running"), second]));
    check_equal(&mut follower, address);
    assert!(!follower.received.contains(SECRET), "{}", follower.received);
    let token = http::get("/latest/self/service/token").header("X-Forwarded-For", WEB.1);
    assert_eq!(token.ask(address).text(), SECRET, "there is one, for those it belongs to");
}

#[test]
fn an_unknown_revision_gets_everything() {
    let folder = ClusterFolder::new(cluster(&[WEB, DB]));
    let (_service, address) = start(&folder);
    for known in [None, Some(""), Some("never"), Some("%00"), Some("0")] {
        // What it had is not what the revision says: everything starts from nothing.
        let mut follower = Follower::resume(address, known, Snapshot::default());
        assert_eq!(start_of(&follower.change()), None, "{known:?}");
        check_equal(&mut follower, address);
    }
    for method in ["POST", "PUT", "DELETE"] {
        assert_eq!(http::Request::new(method, "/v1/changes").ask(address).status, 404, "{method}");
    }
}

#[test]
fn a_follower_that_was_away_gets_only_what_it_missed() {
    let folder = ClusterFolder::new(stamped(1));
    let (_service, address) = start(&folder);
    let mut watching = Follower::new(address);
    watching.told();
    let mut away = watching.again(address);
    assert!(matches!(away.told(), Told::Heartbeat(_)), "it has everything");
    for revision in 2..6 {
        folder.replace(stamped(revision));
        watching.change();
    }
    let mut back = away.again(address);
    for _ in 2..6 {
        let before = back.revision.clone();
        assert_eq!(start_of(&back.change()), before);
    }
    assert_eq!(back.revision, watching.revision);
    assert_eq!(back.snapshot.fingerprint(), watching.snapshot.fingerprint());
    check_equal(&mut back, address);
}

#[test]
fn a_restart_leaves_no_silent_gap() {
    let folder = ClusterFolder::new(stamped(1));
    let (mut service, address) = start(&folder);
    let mut follower = Follower::new(address);
    follower.told();
    // The same content afterwards: there is nothing to send.
    service.stop();
    assert!(follower.told_within(LIMIT).is_err(), "the stream ends with the service");
    let mut service = restart(&folder, address);
    let mut follower = follower.again(address);
    assert!(matches!(follower.told(), Told::Heartbeat(_)));
    check_equal(&mut follower, address);
    for (revision, how) in [(2, "TERM"), (3, "KILL")] {
        service.signal(how);
        service.ended(LIMIT);
        folder.replace(stamped(revision));
        service = restart(&folder, address);
        follower = follower.again(address);
        follower.until(|snapshot| revisions(&format!("{snapshot:?}")).into_iter().eq([revision]));
        check_equal(&mut follower, address);
        // And goes on from there.
        let before = follower.revision.clone();
        folder.replace(stamped(revision + 100));
        assert_eq!(start_of(&follower.change()), before);
        check_equal(&mut follower, address);
        folder.replace(stamped(revision));
        follower.change();
    }
}

#[test]
fn without_data_a_follower_is_told_to_come_later() {
    let folder = ClusterFolder::empty();
    let mut service = Launch::metadata(&folder.file()).start();
    let address = service.address();
    let answer = http::get("/v1/changes").ask(address);
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(answer.header("retry-after").is_some(), "{:?}", answer.headers);
    folder.replace(stamped(1));
    eventually("it is served", LIMIT, || (http::get("/latest/version").ask(address).status == 200).then_some(()));
    let mut follower = Follower::new(address);
    assert_eq!(start_of(&follower.change()), None);
    check_equal(&mut follower, address);
    // Data that are lost again are the last good data.
    folder.remove();
    let mut late = Follower::new(address);
    late.told();
    assert_eq!(late.revision, follower.revision);
}

#[test]
fn a_silent_stream_has_a_heartbeat() {
    let folder = ClusterFolder::new(stamped(1));
    let (_service, address) = start(&folder);
    let mut follower = Follower::new(address);
    follower.told();
    let begun = Instant::now();
    assert!(matches!(follower.told_within(SILENCE_MAX).unwrap(), Told::Heartbeat(_)));
    println!("the heartbeat came after {:?}", begun.elapsed());
    assert!(begun.elapsed() > Duration::from_secs(5), "not so often: {:?}", begun.elapsed());
}

#[test]
fn every_one_of_many_followers_gets_every_change() {
    const LAST: u16 = 6;
    let folder = ClusterFolder::new(stamped(1));
    let (_service, address) = start(&folder);
    let begun = Instant::now();
    let changes: Vec<_> = std::thread::scope(|scope| {
        let followers: Vec<_> = (0..FOLLOWERS)
            .map(|_| {
                let mut follower = Follower::new(address);
                follower.told();
                scope.spawn(move || {
                    let mut seen = vec![follower.revision.clone()];
                    while !revisions(&format!("{:?}", follower.snapshot.environment)).contains(&LAST) {
                        follower.change();
                        seen.push(follower.revision.clone());
                    }
                    seen
                })
            })
            .collect();
        let mut witness = Follower::new(address);
        witness.told();
        for revision in 2..=LAST {
            folder.replace(stamped(revision));
            witness.change();
        }
        followers.into_iter().map(|follower| follower.join().unwrap()).collect()
    });
    println!("{FOLLOWERS} followers and {} changes took {:?}", LAST - 1, begun.elapsed());
    assert_eq!(changes[0].len(), usize::from(LAST));
    assert!(changes.iter().all(|seen| *seen == changes[0]), "all in the same order");
    // Who hangs up is no longer counted, and the service serves on.
    check_equal(
        &mut {
            let mut last = Follower::new(address);
            last.told();
            last
        },
        address,
    );
}

#[test]
fn a_large_cluster_comes_in_several_lines_and_a_small_change_in_one() {
    let containers = |count: usize| -> Vec<(String, String)> {
        (0..count).map(|id| (format!("web-{id}"), format!("10.43.{}.{}", id / 250, id % 250 + 1))).collect()
    };
    let text = |count: usize| {
        let containers = containers(count);
        let borrowed: Vec<_> = containers.iter().map(|(name, address)| (&**name, &**address, "running")).collect();
        cluster(&borrowed)
    };
    let folder = ClusterFolder::new(text(6000));
    let (_service, address) = start(&folder);
    let mut follower = Follower::new(address);
    assert!(follower.change().len() > 1);
    folder.replace(text(6001));
    let lines = follower.change();
    assert_eq!((lines.len(), named(&lines).0), (1, vec!["container web-6000".to_owned(), "service web".to_owned()]));
    check_equal(&mut follower, address);
}

/// Answers of dns, which follows through a proxy, over edits and over an absence of the metadata service.
fn follow(proxy: impl Fn(SocketAddr) -> Proxy) -> Proxy {
    let folder = ClusterFolder::new(stamped(1));
    let (mut service, address) = start(&folder);
    let proxy = proxy(address);
    let mut dns = Launch::dns().following(proxy.address).start();
    let at = dns.address();
    let shows = |revision: u16| {
        let line = Question::a("web.all.rancher.internal").from(CLIENT).ask(at).line();
        revisions(&line).into_iter().eq([revision])
    };
    eventually("the first revision", LIMIT, || shows(1).then_some(()));
    for revision in 2..8 {
        folder.replace(stamped(revision));
        eventually(&format!("revision {revision}"), seconds(2), || shows(revision).then_some(()));
    }
    let asked = proxy.targets().len();
    std::thread::sleep(NOTHING_FOR);
    assert!(proxy.targets().len() <= asked + 1, "asks without end: {:?}", proxy.targets());
    // Restarted with other content: followed again, and nothing wrong in between.
    service.stop();
    assert!(shows(7));
    folder.replace(stamped(8));
    let _service = restart(&folder, address);
    eventually("the revision after the restart", LIMIT, || shows(8).then_some(()));
    folder.replace(stamped(9));
    eventually("the last revision", seconds(2), || shows(9).then_some(()));
    proxy
}

#[test]
fn dns_follows_by_the_stream_and_never_reads_the_tree() {
    let proxy = follow(Proxy::before);
    let targets = proxy.targets();
    assert_eq!(targets[0], "/v1/changes?after=");
    assert!(targets.iter().all(|target| target.starts_with("/v1/changes?after=")), "{targets:?}");
    // After the restart it says what it has.
    assert!(targets.last().unwrap().len() > "/v1/changes?after=".len(), "{targets:?}");
}

#[test]
fn dns_follows_a_service_without_the_stream_by_its_long_poll() {
    let proxy = follow(|server| Proxy::hiding("/v1/", server));
    let targets = proxy.targets();
    assert_eq!(targets[0], "/v1/changes?after=");
    assert_eq!(targets[1], "/2016-07-29");
    let waits = proxy.count(|target| target.starts_with("/2016-07-29/version?wait=true&value="));
    let reads = proxy.count(|target| target == "/2016-07-29");
    // Each of the nine revisions, and little more: a wait may end between two edits.
    assert!((9..=14).contains(&reads) && waits >= 7, "{reads} {waits} {targets:?}");
    assert!(proxy.count(|target| target.starts_with("/v1/")) < 60, "{targets:?}");
}
