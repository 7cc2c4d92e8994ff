//! Stopping: what was asked is answered, exit code 0, within the limit, and nothing is left behind.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use tests::cluster::{ClusterFolder, shop_text};
use tests::wait::seconds;
use tests::{Companion, Launch, Question, Service, eventually, http};

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
                Companion::start(move || http::get(target).within(seconds(30)).send(metadata))
            })
            .collect();
        let admin = agent.admin();
        eventually("all of them wait", SOON, || {
            http::get("/metrics").ask(admin).text().contains("metadata_waiters 20\n").then_some(())
        });
        let begun = Instant::now();
        agent.signal(signal);
        let status = agent.ended(SOON);
        assert_eq!(status.code(), Some(0), "{signal}: {}", agent.log());
        println!("{signal}: stopped after {:?} with 20 waiting", begun.elapsed());
        for waiter in waiting {
            let response = waiter.join().unwrap_or_else(|error| panic!("{signal}: {error}"));
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
fn no_connection_holds_it_up() {
    const HALF_A_BODY: &[u8] = b"POST /v1/placements HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{";
    let folder = ClusterFolder::new(shop_text());
    for (service, sent) in [
        ("metadata", &b""[..]),
        ("metadata", b"GET /lat"),
        ("metadata", HALF_A_BODY),
        ("scheduler", b""),
        ("scheduler", b"GET /v1"),
        ("scheduler", HALF_A_BODY),
        ("admin", b""),
        ("admin", b"GET /rea"),
        ("admin", HALF_A_BODY),
        ("dns", b""),
        ("dns", b"\0"),
        ("dns", b"\0\x20\x01\x02"),
    ] {
        let mut agent = start(&folder);
        let to = if service == "admin" { agent.admin() } else { agent.address_of(service) };
        let mut held = http::connect(None, to, seconds(10)).unwrap();
        held.write_all(sent).unwrap();
        // And one that was answered and stays open.
        let mut kept = http::connect(None, to, seconds(10)).unwrap();
        if service != "dns" {
            kept.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            assert!(kept.read(&mut [0; 4096]).unwrap() > 0);
        }
        let took = agent.stop();
        let sent = String::from_utf8_lossy(sent);
        println!("{service} with {sent:?} half sent stopped after {took:?}");
        assert!(took < tests::scaled(SOON), "{service} with {sent:?} half sent: {took:?}");
    }
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
