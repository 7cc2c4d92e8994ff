//! The three services as three processes: dns and scheduler follow metadata over HTTP, whoever starts first.

use std::net::SocketAddr;
use std::time::Duration;

use tests::cluster::{ClusterFolder, revisions, stamped};
use tests::{Launch, Question, Service, eventually, http};

/// Longest wait for a service to follow: waits for a metadata service end at 8 s.
const LIMIT: Duration = Duration::from_secs(15);

fn metadata(folder: &ClusterFolder, address: SocketAddr) -> Service {
    Launch::metadata(&folder.file()).with("--listen", address.to_string()).start()
}

/// An address nobody listens on.
fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], tests::ports::free()))
}

fn names(dns: SocketAddr) -> String {
    Question::a("web.all.rancher.internal").ask(dns).line()
}

fn placement(scheduler: SocketAddr) -> String {
    let response = http::post("/v1/placements", r#"{"image": "web", "dry_run": true}"#).ask(scheduler);
    format!("{} {}", response.status, response.text())
}

fn follow(dns: SocketAddr, scheduler: SocketAddr, revision: u16) {
    let shows = |text: &str| revisions(text).into_iter().eq([revision]);
    eventually(&format!("dns shows revision {revision}"), LIMIT, || shows(&names(dns)).then_some(()));
    eventually(&format!("the scheduler shows revision {revision}"), LIMIT, || {
        shows(&placement(scheduler)).then_some(())
    });
}

#[test]
fn a_metadata_that_wants_session_tokens_does_not_lock_its_followers_out() {
    let (folder, address) = (ClusterFolder::new(stamped(1)), free_address());
    let launch = Launch::metadata(&folder.file()).with("--listen", address.to_string()).flag("--strict");
    let mut strict = launch.start();
    strict.ready();
    assert_eq!(http::get("/latest").ask(address).status, 401);
    let (mut dns, mut scheduler) =
        (Launch::dns().following(address).start(), Launch::scheduler().following(address).start());
    let (names_at, placements_at) = (dns.address(), scheduler.address());
    follow(names_at, placements_at, 1);
    // It knows no token that it gave before a restart.
    strict.kill();
    folder.replace(stamped(2));
    let _strict = launch.start();
    follow(names_at, placements_at, 2);
    dns.ready();
    scheduler.ready();
}

#[test]
fn dns_and_scheduler_follow_metadata_through_its_absence() {
    let address = free_address();
    let folder = ClusterFolder::new(stamped(1));
    // Before there is any metadata service: they listen, and say that they know nothing.
    let (mut dns, mut scheduler) =
        (Launch::dns().following(address).start(), Launch::scheduler().following(address).start());
    let (names_at, placements_at) = (dns.address(), scheduler.address());
    assert_eq!(names(names_at), "SERVFAIL");
    assert!(placement(placements_at).starts_with("503 "), "{}", placement(placements_at));
    assert!(dns.reasons().contains(&address.to_string()), "{}", dns.reasons());
    assert!(scheduler.reasons().contains(&address.to_string()), "{}", scheduler.reasons());
    for service in [&mut dns, &mut scheduler] {
        service.line("it has asked in vain", |line| line["message"] == "nothing to serve yet");
    }

    let mut service = metadata(&folder, address);
    follow(names_at, placements_at, 1);
    dns.ready();
    scheduler.ready();
    // A first start is no return, and there was nothing to keep.
    for service in [&dns, &scheduler] {
        for wrong in ["is back", "keeping the last good"] {
            assert_eq!(service.lines_with(wrong), [""; 0]);
        }
    }
    let seen = std::time::Instant::now();
    folder.replace(stamped(2));
    follow(names_at, placements_at, 2);
    println!("a change was visible behind metadata after {:?}", seen.elapsed());

    // Away: the last good view is served.
    service.kill();
    eventually("dns notices", LIMIT, || (!dns.reasons().is_empty()).then_some(()));
    eventually("the scheduler notices", LIMIT, || (!scheduler.reasons().is_empty()).then_some(()));
    follow(names_at, placements_at, 2);

    // Back with something else: followed again.
    folder.replace(stamped(3));
    let service = metadata(&folder, address);
    follow(names_at, placements_at, 3);
    dns.ready();
    scheduler.ready();
    drop(service);
    folder.replace(stamped(4));
    let _service = metadata(&folder, address);
    follow(names_at, placements_at, 4);
}

#[test]
fn a_restart_never_looks_like_no_change() {
    let address = free_address();
    let folder = ClusterFolder::new(stamped(1));
    let version = || http::get("/latest/version").ask(address).text();
    let mut service = metadata(&folder, address);
    service.ready();
    let first = version();
    service.stop();
    // The same contents have the same version: whoever waits on it has missed nothing.
    let mut service = metadata(&folder, address);
    service.ready();
    assert_eq!(version(), first);
    service.stop();
    // Other contents have another one, so a wait for a change ends at once.
    folder.replace(stamped(2));
    let mut service = metadata(&folder, address);
    service.ready();
    assert_ne!(version(), first);
    let target = format!("/latest/version?wait=true&value={first}&maxWait=30");
    let begun = std::time::Instant::now();
    assert_eq!(http::get(target).ask(address).text(), version());
    assert!(begun.elapsed() < tests::scaled(Duration::from_secs(5)), "{:?}", begun.elapsed());
}

#[test]
fn dns_and_scheduler_serve_what_they_kept_when_metadata_is_away_at_start() {
    let address = free_address();
    let folder = ClusterFolder::new(stamped(5));
    let launches = [
        Launch::dns().following(address).with("--state-dir", folder.path("dns")),
        Launch::scheduler().following(address).with("--state-dir", folder.path("scheduler")),
    ];
    let service = metadata(&folder, address);
    let mut running = launches.each_ref().map(Launch::start);
    for service in &mut running {
        service.ready();
    }
    for name in ["dns", "scheduler"] {
        eventually("it is kept", LIMIT, || folder.path(name).join("snapshot.ndjson").exists().then_some(()));
    }
    drop(service);
    for service in &mut running {
        service.kill();
    }
    let [mut dns, mut scheduler] = launches.each_ref().map(Launch::start);
    follow(dns.address(), scheduler.address(), 5);
}

#[test]
fn metadata_can_follow_metadata() {
    let folder = ClusterFolder::new(stamped(1));
    let mut first = Launch::metadata(&folder.file()).start();
    let source = format!("metadata:{}", first.address());
    let mut second = Launch::served(tests::Executable::Metadata).with("--source", source).start();
    second.ready();
    let read = |service: &mut Service, path: &str| http::get(path).json().ask(service.address()).value();
    for path in ["/2016-07-29/containers", "/2016-07-29/services", "/2016-07-29/hosts", "/2016-07-29/stacks"] {
        assert_eq!(read(&mut second, path), read(&mut first, path), "{path}");
    }
    let client = http::get("/latest/self").json().from(tests::cluster::CLIENT);
    assert_eq!(client.ask(second.address()).value(), client.ask(first.address()).value());
}
