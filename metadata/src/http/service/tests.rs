//! How much of a running service its clients may hold, and who they are.

use model::{Map, Snapshot, Value};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::config::{Limits, Options};
use crate::http::server::tests::{PATIENCE, Service as Running};

#[tokio::test(start_paused = true)]
async fn a_client_with_too_much_is_refused() {
    let limits = Limits { client_connections: 3, client_waiters: 2, client_rate: 5, ..Limits::default() };
    let service = Running::start(&Options { limits, ..Options::default() });
    service.rename("prod").await;
    let waiting = "GET /latest/name?wait=true&value=prod HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = service.connect().await;
        stream.write_all(waiting.as_bytes()).await.unwrap();
        held.push(stream);
    }
    service.until_metric("metadata_waiters", "2").await;
    for target in ["/latest/name?wait=true&value=prod", "/v1/changes"] {
        let answer = service.get(target).await;
        assert!(answer.starts_with("HTTP/1.1 429 ") && answer.contains("\nRetry-After: 1\n"), "{answer}");
        assert!(answer.ends_with("Too many requests of one client wait\n"), "{answer}");
        service.until_metric("metadata_connections", "2").await;
    }
    held.push(service.connect().await);
    service.until_metric("metadata_connections", "3").await;
    let refused = service.get("/latest/name").await;
    let reason = "Too many connections of one client\n";
    assert!(refused.starts_with("HTTP/1.1 429 ") && refused.ends_with(reason), "{refused}");
    assert!(refused.contains(&format!("\nContent-Length: {}\n", reason.len())), "{refused}");
    drop(held);
    service.until_metric("metadata_connections", "0").await;
    let mut stream = service.connect().await;
    let last = "GET /latest/name HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let many = "GET /latest/name HTTP/1.1\r\nHost: x\r\n\r\n".repeat(20) + last;
    stream.write_all(many.as_bytes()).await.unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    assert!(answers.contains("HTTP/1.1 429 ") && answers.contains("\r\nRetry-After: 1\r\n"), "{answers}");
    tokio::time::advance(Duration::from_secs(3)).await;
    assert!(service.get("/latest/name").await.ends_with("\n\nprod"));
    for (reason, count) in [("client_waiters", "2"), ("client_connections", "1")] {
        assert_eq!(service.metric(&format!("metadata_refusals_total{{reason=\"{reason}\"}}")), count, "{reason}");
    }
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_service_closes_who_rests_or_says_so() {
    let limits = Limits { connections: 4, client_connections: 0, ..Limits::default() };
    let service = Running::start(&Options { limits, ..Options::default() });
    service.rename("prod").await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut stream = service.connect().await;
        stream.write_all(b"GET /latest/name?wait=true&value=prod HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        held.push(stream);
    }
    service.until_metric("metadata_waiters", "3").await;
    let answer = service.get("/latest/name?wait=true&value=prod").await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("\nRetry-After: 1\n"), "{answer}");
    service.until_metric("metadata_connections", "3").await;
    let mut resting = service.connect().await;
    resting.write_all(b"GET /latest/name HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut bytes = [0; 4096];
    assert!(resting.read(&mut bytes).await.unwrap() > 0);
    service.until_metric("metadata_connections", "4").await;
    assert!(service.get("/latest/name").await.ends_with("\n\nprod"), "who rests makes room");
    assert_eq!(timeout(PATIENCE, resting.read(&mut bytes)).await.unwrap().unwrap(), 0);
    assert_eq!(service.metric("metadata_evictions"), "1");
    service.until_metric("metadata_connections", "3").await;
    let mut busy = service.connect().await;
    busy.write_all(b"GET /latest/name HTTP/1.1\r\nHost:").await.unwrap();
    service.until_metric("metadata_connections", "4").await;
    let answer = service.get("/latest/name").await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("Too many connections\n"), "{answer}");
    busy.write_all(b" x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    busy.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("\r\n\r\nprod"), "{answer}");
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_rests_too_long_is_closed() {
    let limits = Limits { idle: 3, ..Limits::default() };
    let service = Running::start(&Options { limits, ..Options::default() });
    service.rename("prod").await;
    let mut stream = service.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let started = Instant::now();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let rested = started.elapsed();
    assert!(rested >= Duration::from_secs(3) && rested < Duration::from_secs(4), "{rested:?}");
    service.stop().await;
}

#[test]
fn the_host_itself_is_not_limited() {
    for (peer, local, exempt) in [
        ("127.0.0.1", "127.0.0.1:80", true),
        ("127.42.1.11", "127.0.0.1:80", true),
        ("::1", "[::1]:80", true),
        ("::ffff:127.0.0.1", "[::]:80", true),
        ("169.254.169.250", "169.254.169.250:80", true),
        ("10.42.0.7", "169.254.169.250:80", false),
        ("::ffff:10.42.0.7", "[::ffff:169.254.169.250]:80", false),
    ] {
        let ends = Ends { peer: peer.parse().unwrap(), port: 1, local: local.parse().unwrap() };
        assert_eq!(is_host(ends), exempt, "{peer} {local}");
    }
}

/// A service with a value of 30 MB in many parts.
async fn with_long_value() -> Running {
    let service = Running::start(&Options::default());
    let many = Value::list((0..1000).map(|_| Value::text("x".repeat(30_000))));
    let environment = [("name".into(), Value::text("prod")), ("many".into(), many)].into_iter().collect();
    service.snapshots.publish(Arc::new(Snapshot { environment: Some(environment), ..Snapshot::default() }));
    service.snapshots.settled().await;
    service
}

const LONG: &str = "GET /latest/many HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\nConnection: close\r\n\r\n";

#[tokio::test]
async fn a_client_cannot_hold_a_body_by_reading_a_little_of_it_now_and_then() {
    let service = with_long_value().await;
    // By the real clock: a paused one leaps over every limit while the system passes 30 MB on.
    let whole = service.talk(LONG).await;
    assert!(whole.starts_with("HTTP/1.1 200 OK\n") && whole.len() > 30_000_000);
    tokio::time::pause();
    let mut stream = service.connect().await;
    stream.write_all(LONG.as_bytes()).await.unwrap();
    let (begun, mut bytes) = (Instant::now(), vec![0; 1000]);
    // The connection is reset with bytes unsent, or ends.
    service.until_metric("metadata_connections", "1").await;
    while service.metric("metadata_connections") != "0" {
        assert!(begun.elapsed() < Duration::from_mins(2), "{:?}", begun.elapsed());
        let _ = timeout(PATIENCE, stream.read(&mut bytes)).await;
        sleep(Duration::from_secs(5)).await;
    }
    service.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_much_unread_gets_no_more_than_short_answers() {
    let service = with_long_value().await;
    let usage = &service.inner.usage;
    let connect = |address: [u8; 4]| usage.connect(address.into(), Duration::ZERO).unwrap();
    let fill = |share: &Share| {
        let mut unread = Unread::new(usage, Some(share));
        let pieces = std::iter::from_fn(|| unread.add(1 << 20).ok()).take(64).count();
        assert_eq!(pieces, 64);
        unread
    };
    let share = connect([127, 0, 0, 1]);
    let held = fill(&share);
    for request in [LONG, "GET /v1/changes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"] {
        let answer = service.talk(request).await;
        assert!(answer.starts_with("HTTP/1.1 429 ") && answer.contains("\nRetry-After: 1\n"), "{answer:.500}");
    }
    assert!(service.get("/latest/name").await.ends_with("\n\nprod"));
    drop(held);
    assert!(service.talk(LONG).await.starts_with("HTTP/1.1 200 "));

    let shares: Vec<_> = (1..=16).map(|number| connect([10, 0, 0, number])).collect();
    let held: Vec<_> = shares.iter().map(fill).collect();
    let answer = service.talk(LONG).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("\nRetry-After: 1\n"), "{answer:.500}");
    assert!(service.get("/latest/name").await.ends_with("\n\nprod"));
    drop(held);
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_cannot_follow_changes_many_times_over() {
    let service = Running::named("prod").await;
    let mut streams = Vec::new();
    for status in ["200", "200", "200", "200", "429"] {
        let mut stream = service.connect().await;
        stream.write_all(b"GET /v1/changes HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut bytes = [0; 12];
        stream.read_exact(&mut bytes).await.unwrap();
        assert_eq!(bytes, *format!("HTTP/1.1 {status}").as_bytes());
        streams.push(stream);
    }
    drop(streams);
    service.stop().await;
}

#[tokio::test]
async fn clients_of_foreign_networks_are_not_let_in_unless_they_are_containers() {
    let service = Running::named("prod").await;
    let local = "192.0.2.250:80".parse().unwrap();
    let let_in = |peer: &str| service.inner.let_in(Ends { peer: peer.parse().unwrap(), port: 1, local }).err();
    for (peer, refused) in [
        ("10.0.0.1", None),
        ("::ffff:10.0.0.1", None),
        ("192.0.2.1", Some(Crowded::Stranger)),
        ("2001:db8::1", Some(Crowded::Stranger)),
        // The host itself.
        ("192.0.2.250", None),
    ] {
        assert_eq!(let_in(peer), refused, "{peer}");
    }
    let container = r#"{"metadata_kind":"container","uuid":"c","name":"c","primary_ip":"192.0.2.1"}"#;
    let (snapshot, ..) = model::objects::read([serde_json::from_str::<Map>(container).unwrap()]);
    service.snapshots.publish(Arc::new(snapshot));
    service.snapshots.settled().await;
    assert_eq!((let_in("192.0.2.1"), let_in("192.0.2.2")), (None, Some(Crowded::Stranger)));
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_listens_to_changes_does_not_rest() {
    let limits = Limits { connections: 4, idle: 3, ..Limits::default() };
    let service = Running::start(&Options { limits, ..Options::default() });
    service.rename("prod").await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut stream = service.connect().await;
        stream.write_all(b"GET /v1/changes HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        streams.push(stream);
    }
    let mut bytes = [0; 4096];
    for stream in &mut streams {
        assert!(stream.read(&mut bytes).await.unwrap() > 0);
    }
    // Many times the time that a connection may rest, and others want the room.
    for name in 0..5 {
        let mut waits = service.connect().await;
        waits.write_all(b"GET /latest/name HTTP/1.1\r\nHost:").await.unwrap();
        sleep(Duration::from_secs(4)).await;
        assert!(service.get("/latest/name").await.starts_with("HTTP/1.1 503 "));
        service.rename(&format!("name-{name}")).await;
    }
    for mut stream in streams {
        let mut lines = String::new();
        while !lines.contains("name-4") {
            let read = timeout(PATIENCE, stream.read(&mut bytes)).await.unwrap().unwrap();
            assert!(read > 0, "{lines}");
            lines.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }
    service.stop().await;
}
