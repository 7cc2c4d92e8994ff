//! Connections in real time, as they are accepted when their first bytes have arrived.

use model::{Snapshot, Value};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream as Stream;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::config::{Cors, Limits, Options, Tokens, WhenEmpty};
use crate::http::server::tests::{PATIENCE, Service as Running, without_date};
use crate::http::service::Ends;

/// A service that answers in place what comes with a connection.
async fn service_with(limits: Limits) -> Running {
    let service = Running::start_with(&Options { limits, ..Options::default() }, true);
    service.rename("prod").await;
    service
}

const ONE: &str = "GET /latest/name HTTP/1.1\r\nHost: x\r\n\r\n";
const LAST: &str = "GET /latest/name HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_answered_in_order_however_they_are_cut() {
    let service = service_with(Limits::default()).await;
    let waits = "GET /latest/name?wait=true&value=prod&maxWait=-1 HTTP/1.1\r\nHost: x\r\n\r\n";
    let long = "HEAD /latest/long HTTP/1.1\r\nHost: x\r\n\r\n";
    for (requests, answers) in [
        (format!("{}{LAST}", ONE.repeat(20)), 21),
        (format!("{ONE}{waits}{}{LAST}", ONE.repeat(3)), 6),
        (format!("{ONE}\r\n{LAST}"), 2),
        (format!("{LAST}{ONE}"), 1),
        (format!("{ONE}{long}{LAST}"), 2),
        (format!("{ONE}POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{ONE}"), 1),
        (ONE.repeat(2000) + LAST, 2001),
    ] {
        for size in [requests.len(), 100, 7, 1].into_iter().filter(|size| requests.len() / size < 1000) {
            let mut stream = service.connect().await;
            stream.set_nodelay(true).unwrap();
            let (mut reading, mut writing) = stream.split();
            let write = async {
                for part in requests.as_bytes().chunks(size) {
                    if writing.write_all(part).await.is_err() {
                        // What stands behind the last request is not read.
                        break;
                    }
                    if size < requests.len() {
                        sleep(Duration::from_micros(200)).await;
                    }
                }
            };
            let mut got = String::new();
            let ((), read) = tokio::join!(write, timeout(PATIENCE, reading.read_to_string(&mut got)));
            read.unwrap().unwrap();
            assert_eq!(got.matches("\r\n\r\nprod").count(), answers, "cut to {size}: {requests:.300}\n{got:.2000}");
        }
    }
    service.until_metric("metadata_connections", "0").await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_no_answers_keeps_nobody_waiting() {
    let service = service_with(Limits::default()).await;
    let mut greedy = service.connect().await;
    let all = ONE.repeat(40_000) + LAST;
    let (mut reading, mut writing) = greedy.split();
    let write = async { writing.write_all(all.as_bytes()).await.unwrap() };
    let read = async {
        sleep(Duration::from_millis(300)).await;
        assert!(service.get("/latest/name").await.ends_with("\n\nprod"));
        let mut got = String::new();
        reading.read_to_string(&mut got).await.unwrap();
        assert_eq!(got.matches("\r\n\r\nprod").count(), 40_001);
    };
    timeout(PATIENCE * 5, async { tokio::join!(write, read) }).await.unwrap();
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_have_their_limits() {
    let limits = Limits { connections: 4, client_connections: 0, idle: 2, ..Limits::default() };
    let service = service_with(limits).await;
    let mut bytes = [0; 4096];
    let started = Instant::now();
    let mut resting = Vec::new();
    for _ in 0..4 {
        let mut stream = service.connect().await;
        stream.write_all(ONE.as_bytes()).await.unwrap();
        assert!(stream.read(&mut bytes).await.unwrap() > 0);
        resting.push(stream);
    }
    // The oldest asks once more, so that it is not the oldest any longer.
    resting[0].write_all(ONE.as_bytes()).await.unwrap();
    assert!(resting[0].read(&mut bytes).await.unwrap() > 0);
    assert!(service.get("/latest/name").await.ends_with("\n\nprod"));
    assert_eq!(resting[1].read(&mut bytes).await.unwrap(), 0, "the one that rested longest makes room");
    assert_eq!(service.metric("metadata_evictions"), "1");
    for index in [0, 2, 3] {
        assert_eq!(resting[index].read(&mut bytes).await.unwrap(), 0);
    }
    let rested = started.elapsed();
    assert!(rested >= Duration::from_secs(2) && rested < Duration::from_secs(30), "{rested:?}");
    service.until_metric("metadata_connections", "0").await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_have_their_limits() {
    let limits = Limits { client_connections: 2, client_rate: 5, ..Limits::default() };
    let service = service_with(limits).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = service.connect().await;
        stream.write_all(ONE.as_bytes()).await.unwrap();
        held.push(stream);
    }
    service.until_metric("metadata_connections", "2").await;
    let refused = service.get("/latest/name").await;
    assert!(
        refused.starts_with("HTTP/1.1 429 ") && refused.ends_with("Too many connections of one client\n"),
        "{refused}"
    );
    let stream = &mut held[0];
    stream.write_all((ONE.repeat(20) + LAST).as_bytes()).await.unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    let exhausted = answers.matches("HTTP/1.1 429 ").count();
    assert!((10..=14).contains(&exhausted) && answers.contains("\r\nRetry-After: 1\r\n"), "{answers}");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_answers_who_waits_and_closes_who_rests() {
    let service = service_with(Limits::default()).await;
    let mut resting = service.connect().await;
    resting.write_all(ONE.as_bytes()).await.unwrap();
    let mut waiting = service.connect().await;
    waiting.write_all(b"GET /latest/name?wait=true&value=prod HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    service.until_metric("metadata_waiters", "1").await;
    let address = service.address;
    let started = Instant::now();
    service.stop().await;
    assert!(started.elapsed() < Duration::from_secs(1));
    for mut stream in [resting, waiting] {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("\r\n\r\nprod"), "{answer}");
    }
    assert!(Stream::connect(address).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_of_a_change_finds_it_made() {
    let service = service_with(Limits::default()).await;
    let named = |name: usize| {
        let environment = [("name".into(), Value::text(format!("name-{name}")))].into_iter().collect();
        Arc::new(Snapshot { environment: Some(environment), ..Snapshot::default() })
    };
    let coming: Vec<_> = (0..200).map(named).collect();
    let known: Vec<_> = coming.iter().map(|snapshot| snapshot.fingerprint().to_string()).collect();
    let last = &known[known.len() - 1];
    let mut stream = service.connect().await;
    stream.write_all(b"GET /v1/changes HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let publish = async {
        for snapshot in coming {
            service.snapshots.publish(snapshot);
            sleep(Duration::from_millis(3)).await;
        }
    };
    let follow = async {
        let (mut text, mut bytes, mut seen) = (String::new(), [0; 4096], 0);
        while !text.contains(last) {
            let read = timeout(PATIENCE, stream.read(&mut bytes)).await.unwrap().unwrap();
            text.push_str(&String::from_utf8_lossy(&bytes[..read]));
            // What the last line says is there.
            let Some(line) = known.iter().rposition(|known| text.contains(known.as_str())) else { continue };
            for field in ["", "Content-Length: 1\r\n"] {
                let answer = service
                    .talk(&format!("GET /latest/version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{field}\r\n"))
                    .await;
                let found = known.iter().position(|known| answer.ends_with(known.as_str()));
                assert!(found.is_some_and(|found| found >= line), "{line} {answer}");
                seen += 1;
            }
        }
        assert!(seen > 20, "{seen}");
    };
    tokio::join!(publish, follow);
    service.stop().await;
}

/// What is answered in place has the same bytes as what a task answers that got the request in two pieces.
#[tokio::test(start_paused = true)]
async fn both_ways_give_the_same_bytes() {
    let token = "X-aws-ec2-metadata-token: nonsense\r\n";
    let targets = [
        "/",
        "/latest",
        "/latest/",
        "/latest/name",
        "/latest/empty",
        "/latest/html",
        "/latest/sized",
        "/latest/long",
        "/LATEST/name",
        "/latest/NAME",
        "/latest/nope",
        "/latest/name/x",
        "/2015-07-25/name",
        "/2015-12-19",
        "/1999-01-01",
        "//latest",
        "/latest/../x?a=b",
        "/latest/%2e%2e",
        "/latest/%zz",
        "/latest/name%",
        "latest",
        "*",
        "/latest/%6Eame",
        "/favicon.ico",
        "/latest/name#x",
        "/latest/na me",
        "/latest/version?wait=true",
        "/latest/name?wait=false&value=x",
        "/v1/openapi.json",
        "http://example.org/latest/name",
        "/latest/name\u{e9}",
        "/?path=/latest",
    ];
    let headers = [
        "",
        "Accept: application/json\r\n",
        "accept: application/yaml\r\n",
        "Accept: text/html, */*\r\n",
        "Connection: close\r\n",
        "Connection: Keep-Alive\r\n",
        "Connection: close, keep-alive\r\nAccept: text/json\r\n",
        "X-Forwarded-For: 10.0.0.1\r\n",
        "X-Forwarded-For:\r\nForwarded: for=x\r\n",
        token,
        "Content-Length: 0\r\n",
        "Accept: */*\r\nAccept: application/json;q=1.5\r\n",
        "Upgrade: h2c\r\nConnection: upgrade\r\n",
        "X: y\r\n",
    ];
    let (mut both, mut turn) = ((0, 0), 0);
    for options in [
        Options::default(),
        Options { xff: true, cors: Cors::Off, ..Options::default() },
        Options { strict_host: true, reject_forwarded: true, tokens: Tokens::Optional, ..Options::default() },
        Options { when_empty: WhenEmpty::Unavailable, tokens: Tokens::Required, ..Options::default() },
    ] {
        let service = Running::start(&options);
        service.rename("prod").await;
        for (verb, version) in
            [("GET", "1.1"), ("GET", "1.0"), ("HEAD", "1.1"), ("HEAD", "1.0"), ("get", "1.1"), ("PUT", "1.1")]
        {
            for target in targets {
                for header in headers {
                    for host in ["Host: rancher-metadata\r\n", "Host: x\r\n", ""] {
                        // A third of all combinations, each with each.
                        turn += 7;
                        if turn % 3 > 0 {
                            continue;
                        }
                        let request = format!("{verb} {target} HTTP/{version}\r\n{host}{header}\r\n");
                        let direct = directly(&service.inner, request.as_bytes());
                        both.0 += 1;
                        let Some((direct, last)) = direct else { continue };
                        both.1 += 1;
                        // What follows on the same connection shows whether it is kept.
                        let after = "\r\nGET /end HTTP/1.0\r\nHost: rancher-metadata\r\n\r\n";
                        let mut general = in_two_pieces(&service, &format!("{request}{after}")).await;
                        if !last {
                            let (first, _) = general.rsplit_once("HTTP/1.0 ").expect("the connection was not kept");
                            general = first.to_owned();
                        }
                        assert_eq!(direct, general, "{request}");
                    }
                }
            }
        }
        service.stop().await;
    }
    assert!(both.1 * 5 > both.0, "{both:?}");
}

/// Everything that comes back on a connection of its own when a task has to wait for the second half.
async fn in_two_pieces(service: &Running, request: &str) -> String {
    let mut stream = service.connect().await;
    let (first, second) = request.split_at(request.len() / 4);
    stream.write_all(first.as_bytes()).await.unwrap();
    sleep(Duration::from_millis(1)).await;
    stream.write_all(second.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    without_date(&String::from_utf8(answer).unwrap())
}

/// What is answered in place to bytes that hold one request, and whether the connection ends with it; the same however often
/// a connection asks it.
fn directly(service: &Arc<Service>, bytes: &[u8]) -> Option<(String, bool)> {
    let ends = Ends { peer: [127, 0, 0, 1].into(), port: 1, local: ([127, 0, 0, 1], 80).into() };
    let counted = Counted::new(&service.metrics.connections);
    let mut connection = Connection::new(service.clone(), Visitor::new(ends, None), counted);
    let mut ask = || {
        connection.heads.buffer().extend_from_slice(bytes);
        let last = match connection.answer() {
            Next::Read => false,
            Next::End { .. } => true,
            Next::Answer | Next::Respond(..) => return None,
        };
        assert!(connection.heads.is_empty());
        Some((without_date(&String::from_utf8(std::mem::take(&mut connection.unsent)).unwrap()), last))
    };
    let first = ask()?;
    if !first.1 {
        assert!((0..2).all(|_| ask().as_ref() == Some(&first)));
    }
    Some(first)
}

#[tokio::test(start_paused = true)]
async fn who_asks_the_same_again_gets_what_is_true_now() {
    let service = Running::start(&Options::default());
    let mut stream = service.connect().await;
    let mut bytes = [0; 4096];
    for (name, requests) in [("a", 1), ("b", 3), ("c", 2), ("a", 1), ("b", 3)] {
        service.rename(name).await;
        for _ in 0..requests {
            stream.write_all(ONE.as_bytes()).await.unwrap();
            let read = stream.read(&mut bytes).await.unwrap();
            let answer = String::from_utf8_lossy(&bytes[..read]);
            assert!(answer.ends_with(&format!("\r\n\r\n{name}")) && answer.contains("\r\nDate: "), "{answer}");
        }
    }
    assert_eq!(service.metric("metadata_requests_total{status=\"200\"}"), "10");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_ends_its_side_after_the_request_is_answered() {
    let service = service_with(Limits::default()).await;
    let waits = "GET /latest/name?wait=true&value=prod&maxWait=1 HTTP/1.1\r\nHost: x\r\n\r\n";
    let long = "GET /latest/long HTTP/1.1\r\nHost: x\r\n\r\n";
    for (requests, answers) in
        [(ONE.to_owned(), 1), (waits.to_owned(), 1), (format!("{ONE}{waits}{ONE}"), 3), (long.repeat(20), 20)]
    {
        let mut stream = service.connect().await;
        stream.write_all(requests.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut got = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut got)).await.unwrap().unwrap();
        assert_eq!(got.matches(" 200 OK\r\n").count(), answers, "{requests:.200}\n{got:.500}");
    }
    service.until_metric("metadata_connections", "0").await;
    service.stop().await;
}
