//! Requests over HTTP, and connections that take too long.

use std::time::Duration;

use clap::Parser as _;
use hickory_proto::op::{MessageType, OpCode, Query};
use hickory_proto::rr::rdata::{A, SOA};
use hickory_proto::rr::{Name, Record, RecordType};
use model::Snapshot;
use process::Clients;
use prometheus_client::registry::Registry;
use source::Store;
use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};

use super::*;
use crate::{Options, Server, testing};

/// The query for `a. A` of RFC 8484's examples.
const QUERY: &[u8] = b"\0\0\x01\0\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x01";

async fn read(method: &str, target: &str, kind: &str, body: Result<&'static [u8], StatusCode>) -> Result<Bytes, u16> {
    let request = Request::builder().method(method).uri(target).header(CONTENT_TYPE, kind).body(()).unwrap();
    let (head, ()) = request.into_parts();
    message(&head, async { body.map(Bytes::from_static) }).await.map_err(|status| status.as_u16())
}

#[tokio::test]
async fn requests_without_a_query_are_refused_with_the_status_that_says_why() {
    let encoded = URL_SAFE_NO_PAD.encode(QUERY);
    let with = |parameters: &str| format!("/dns-query?{parameters}");
    let long = with(&format!("dns={}", "A".repeat(6000)));
    for (method, target, kind, body, expected) in [
        ("GET", with(&format!("dns={encoded}")), "", Ok(QUERY), Ok(QUERY)),
        ("GET", with(&format!("ct&dns={encoded}&x=y")), "", Ok(QUERY), Ok(QUERY)),
        ("POST", with(""), "application/dns-message", Ok(QUERY), Ok(QUERY)),
        ("POST", with("x"), "Application/DNS-Message; x=y", Ok(QUERY), Ok(QUERY)),
        ("GET", with(""), "", Ok(QUERY), Err(400)),
        ("GET", with("dns=%"), "", Ok(QUERY), Err(400)),
        ("GET", with(&format!("dns={encoded}=")), "", Ok(QUERY), Err(400)),
        ("GET", long, "", Ok(QUERY), Err(414)),
        ("GET", "/".to_owned(), "", Ok(QUERY), Err(404)),
        ("POST", with(""), "", Ok(QUERY), Err(415)),
        ("POST", with(""), "application/dns-json", Ok(QUERY), Err(415)),
        ("POST", with(""), "application/dns-message", Err(StatusCode::PAYLOAD_TOO_LARGE), Err(413)),
        ("PUT", with(""), "application/dns-message", Ok(QUERY), Err(405)),
        ("HEAD", with(""), "", Ok(QUERY), Err(405)),
    ] {
        let read = read(method, &target, kind, body).await;
        assert_eq!(read.as_deref().map_err(|status| *status), expected, "{method} {target} {kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_ends_is_not_waited_for() {
    let request = Request::post(PATH).header(CONTENT_TYPE, DNS_MESSAGE).body(()).unwrap();
    let (head, ()) = request.into_parts();
    assert_eq!(message(&head, std::future::pending()).await.unwrap_err(), StatusCode::REQUEST_TIMEOUT);
}

#[test]
fn a_response_is_stored_no_longer_than_its_records() {
    let name = Name::from_ascii("a.").unwrap();
    let address = |ttl| Record::from_rdata(name.clone(), ttl, RData::A(A::new(192, 0, 2, 1)));
    let denial = |ttl, minimum| {
        let soa = SOA::new(name.clone(), name.clone(), 1, 1, 1, 1, minimum);
        Record::from_rdata(name.clone(), ttl, RData::SOA(soa))
    };
    for (answers, authorities, expected) in [
        (vec![address(7), address(5)], vec![], 5),
        (vec![], vec![denial(9, 3)], 3),
        (vec![], vec![denial(2, 3)], 2),
        (vec![address(7)], vec![denial(9, 1)], 1),
        (vec![], vec![], 0),
    ] {
        let mut message = Message::new(0, MessageType::Response, OpCode::Query);
        message.add_query(Query::query(name.clone(), RecordType::A));
        (message.answers, message.authorities) = (answers, authorities);
        assert_eq!(max_age(&message.to_vec().unwrap()), expected);
    }
    assert_eq!(max_age(b"no message"), 0);
}

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

/// A connection to a service without names, and the client's end of it.
fn connection() -> (Connection, DuplexStream, DuplexStream) {
    let address: SocketAddr = "127.0.0.1:443".parse().unwrap();
    let options = Line::parse_from(["dns", "--upstream", "127.0.0.1:1"]).options;
    let snapshots = Arc::new(Store::new(Snapshot::default()));
    let clients = Clients::new(&["private".parse().unwrap()]);
    let shared = Server::new(&options, clients, address, snapshots, &mut Registry::default()).unwrap().shared;
    let requests = watch::channel(0).0;
    let (served, client) = duplex(64 << 10);
    (Connection { client: address, shared, requests, ending: CancellationToken::new() }, served, client)
}

fn ends() -> Ends {
    Ends { stop: CancellationToken::new(), pressure: watch::channel(()).1 }
}

/// Within these seconds a connection ends that does nothing more: idle, then time for what is being written.
const LAST: Duration = Duration::from_secs(16);

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_holds_no_connection() {
    let begun = Instant::now();
    let (connection, served, client) = connection();
    let _ = connection.run(connection.serve_http_1(served), ends()).await;
    assert!(begun.elapsed() < LAST, "{:?}", begun.elapsed());
    drop(client);

    let begun = Instant::now();
    let (connection, served, client) = self::connection();
    let _ = connection.run(connection.serve_http_2(served), ends()).await;
    assert!(begun.elapsed() < LAST, "{:?}", begun.elapsed());
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_no_response_holds_no_connection() {
    let begun = Instant::now();
    let (connection, served, client) = connection();
    let client = async {
        let builder = h2::client::Builder::new().initial_window_size(0).handshake::<_, Bytes>(client).await;
        let (mut sender, driver) = builder.unwrap();
        let name = testing::message("web.rancher.internal.", RecordType::A);
        let target = format!("https://127.0.0.1{PATH}?dns={}", URL_SAFE_NO_PAD.encode(name));
        let (response, _) = sender.send_request(Request::get(target).body(()).unwrap(), true).unwrap();
        let (response, _) = tokio::join!(response, driver);
        response.map(|response| response.status())
    };
    let (served, status) = tokio::join!(connection.run(connection.serve_http_2(served), ends()), client);
    assert_eq!(status.unwrap(), StatusCode::OK);
    assert_eq!(served.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert!(begun.elapsed() < IDLE_MAX, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_is_no_http_ends_the_connection_and_nothing_else() {
    for is_http_2 in [false, true] {
        let (connection, served, mut client) = connection();
        let garbage = async {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut client, &[0xff; 4096]).await;
            let _ = client.read_to_end(&mut Vec::new()).await;
        };
        let begun = Instant::now();
        if is_http_2 {
            let _ = tokio::join!(connection.run(connection.serve_http_2(served), ends()), garbage);
        } else {
            let _ = tokio::join!(connection.run(connection.serve_http_1(served), ends()), garbage);
        }
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    }
}
