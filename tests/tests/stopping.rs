//! Stopping: what was asked is answered, exit code 0, within the limit, and nothing is left behind.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use tests::cluster::{ClusterFolder, shop_text};
use tests::wait::seconds;
use tests::{Launch, Question, Service, eventually, http};

/// Limit for a stop that has nothing to wait for.
const SOON: Duration = Duration::from_secs(3);

fn start(folder: &ClusterFolder) -> Service {
    let mut agent = Launch::agent(&folder.file()).with("--pid-file", folder.path("pid")).start();
    agent.ready();
    agent
}

#[test]
fn a_long_poll_in_flight_is_answered() {
    for signal in ["TERM", "INT"] {
        let folder = ClusterFolder::new(shop_text());
        let mut agent = start(&folder);
        let metadata = agent.address_of("metadata");
        let version = http::get("/latest/version").ask(metadata).text();
        let waiting: Vec<_> = (0..20)
            .map(|_| {
                let target = format!("/latest/version?wait=true&value={version}&maxWait=60");
                std::thread::spawn(move || http::get(target).within(seconds(30)).send(metadata))
            })
            .collect();
        // They are under way when all of them are connected.
        std::thread::sleep(Duration::from_millis(300));
        let begun = Instant::now();
        agent.signal(signal);
        let status = agent.ended(SOON);
        assert_eq!(status.code(), Some(0), "{signal}: {}", agent.log());
        println!("{signal}: stopped after {:?} with 20 waiting", begun.elapsed());
        for waiter in waiting {
            let response = waiter.join().unwrap().unwrap_or_else(|error| panic!("{signal}: {error}"));
            assert!(matches!(response.status, 200 | 503), "{signal}: {}", response.status);
            assert!(response.status == 503 || response.text() == version);
        }
        agent.line("why it stopped", |line| line["message"] == "stopping");
    }
}

#[test]
fn the_pid_file_is_there_while_it_runs() {
    let folder = ClusterFolder::new(shop_text());
    let mut agent = start(&folder);
    let pid = folder.path("pid");
    eventually("the pid file", SOON, || (std::fs::read_to_string(&pid).ok()? == agent.pid().to_string()).then_some(()));
    agent.stop();
    assert!(!pid.exists());
}

#[test]
fn idle_and_half_sent_connections_do_not_hold_it_up() {
    let folder = ClusterFolder::new(shop_text());
    let mut agent = start(&folder);
    let (metadata, dns, scheduler) =
        (agent.address_of("metadata"), agent.address_of("dns"), agent.address_of("scheduler"));
    let connect = |to| http::connect(None, to, seconds(10)).unwrap();
    let mut held = Vec::new();
    for to in [metadata, scheduler, agent.admin()] {
        // One that says nothing, one that begins, one that was answered and stays.
        held.push(connect(to));
        let mut half = connect(to);
        half.write_all(b"GET /lat").unwrap();
        held.push(half);
        let mut kept = connect(to);
        kept.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut octets = [0; 4096];
        assert!(kept.read(&mut octets).unwrap() > 0);
        held.push(kept);
    }
    let mut half = connect(dns);
    half.write_all(&[0]).unwrap();
    held.push(half);
    held.push(connect(dns));
    let took = agent.stop();
    println!("stopped after {took:?} with {} connections open", held.len());
    // A request that was begun has until the drain limit; on Linux that is 10 s.
    assert!(took < seconds(11), "{took:?}");
}

#[test]
fn nothing_in_flight_means_an_end_at_once() {
    let folder = ClusterFolder::new(shop_text());
    let mut agent = start(&folder);
    let dns = agent.address_of("dns");
    assert_eq!(Question::a("db.data").ask(dns).line(), "NOERROR 127.42.2.21");
    let took = agent.stop();
    assert!(took < tests::scaled(Duration::from_secs(1)), "{took:?}");
}

#[test]
fn the_addresses_are_free_again_at_once() {
    let folder = ClusterFolder::new(shop_text());
    let mut agent = start(&folder);
    let [metadata, dns, scheduler] = ["metadata", "dns", "scheduler"].map(|service| agent.address_of(service));
    // A connection that the service closes first leaves its address in TIME-WAIT.
    assert_eq!(http::get("/latest").ask(metadata).status, 200);
    assert_eq!(Question::a("db.data").tcp().ask(dns).rcode(), "NOERROR");
    agent.stop();
    let again = Launch::agent(&folder.file())
        .with("--metadata", metadata.to_string())
        .with("--dns", dns.to_string())
        .with("--scheduler", scheduler.to_string());
    let mut agent = again.start();
    assert_eq!(agent.address_of("metadata"), metadata);
    agent.ready();
}

#[test]
fn a_second_signal_changes_nothing() {
    let folder = ClusterFolder::new(shop_text());
    let mut agent = start(&folder);
    agent.signal("TERM");
    agent.signal("TERM");
    agent.signal("INT");
    assert_eq!(agent.ended(SOON).code(), Some(0));
}
