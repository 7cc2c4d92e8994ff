//! DNS over TLS and HTTPS: the answers of TCP, asked by kdig, curl and raw connections.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hickory_proto::op::{Edns, Message, Query};
use hickory_proto::rr::{Name, RecordType};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use tests::certificates::Authority;
use tests::cluster::{ClusterFolder, replace, shop_text};
use tests::random::Random;
use tests::wait::seconds;
use tests::{Executable, Launch, Service, eventually, http};

const LIMIT: Duration = Duration::from_secs(10);

/// How often a query is repeated until the addresses of its answer have stood in every order, which is chosen at random.
const ORDERS: usize = 20;

/// Messages that are sent at random.
const RANDOM: usize = 10_000;

/// How many of them are sent together.
const BATCH: usize = 50;

/// The service, with the certificate of an authority.
struct Encrypted {
    service: Service,
    files: ClusterFolder,
    certs: PathBuf,
    tcp: SocketAddr,
    dot: SocketAddr,
    doh: SocketAddr,
}

impl Encrypted {
    fn start() -> Self {
        Self::start_with(|launch| launch)
    }

    fn start_with(more: impl FnOnce(Launch) -> Launch) -> Self {
        let files = ClusterFolder::new(shop_text());
        let certs = Authority::new("ours").folder(&files.path("certs"), "server");
        let launch = Launch::dns().with("--source", format!("file:{}", files.file().display()));
        let launch = launch.with("--dns-tls-certs", &certs).with("--dot", "127.0.0.1:0").with("--doh", "127.0.0.1:0");
        let mut service = more(launch).start();
        service.ready();
        let [tcp, dot, doh] = ["dns", "dot", "doh"].map(|name| service.address_of(name));
        Self { service, files, certs, tcp, dot, doh }
    }

    fn ca(&self) -> PathBuf {
        self.certs.join("ca.pem")
    }

    /// A connection over TLS from an address.
    fn tls(
        &self,
        source: &str,
        to: SocketAddr,
        protocol: &[u8],
    ) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        tls(&self.ca(), source, to, protocol)
    }

    fn over_tcp(&self, source: &str, message: &[u8]) -> Vec<u8> {
        exchange(&mut connect(source, self.tcp), message).unwrap()
    }

    fn over_dot(&self, source: &str, message: &[u8]) -> Vec<u8> {
        exchange(&mut self.tls(source, self.dot, b"dot").unwrap(), message).unwrap()
    }

    /// The head and the body of a response over HTTP/1.1.
    fn over_https(&self, source: &str, request: &[&[u8]]) -> (String, Vec<u8>) {
        let mut stream = self.tls(source, self.doh, b"http/1.1").unwrap();
        stream.write_all(&request.concat()).unwrap();
        let mut response = Vec::new();
        // Not all say that it ends.
        let _ = stream.read_to_end(&mut response);
        let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
        (String::from_utf8(response[..end].to_vec()).unwrap(), response[end..].to_vec())
    }

    fn get(&self, source: &str, message: &[u8]) -> (String, Vec<u8>) {
        let head = format!(
            "GET /dns-query?dns={} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            URL_SAFE_NO_PAD.encode(message)
        );
        self.over_https(source, &[head.as_bytes()])
    }

    fn post(&self, source: &str, message: &[u8]) -> (String, Vec<u8>) {
        let head = format!(
            "POST /dns-query HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/dns-message\r\nContent-Length: {}\r\n\r\n",
            message.len()
        );
        self.over_https(source, &[head.as_bytes(), message])
    }

    /// The sum of a metric whose labels contain all of these.
    fn count(&mut self, metric: &str, labels: &[&str]) -> u64 {
        let page = http::get("/metrics").ask(self.service.admin()).text();
        let fits = |line: &&str| line.starts_with(metric) && labels.iter().all(|label| line.contains(label));
        page.lines().filter(fits).map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }
}

fn tls(
    ca: &Path,
    source: &str,
    to: SocketAddr,
    protocol: &[u8],
) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let mut client = tls::client_without_certificate(ca).unwrap();
    client.alpn_protocols = vec![protocol.to_vec()];
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(client), name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, connect(source, to));
    stream.conn.complete_io(&mut stream.sock)?;
    assert_eq!(stream.conn.alpn_protocol(), Some(protocol));
    Ok(stream)
}

fn connect(source: &str, to: SocketAddr) -> TcpStream {
    http::connect(Some(source.parse::<IpAddr>().unwrap()), to, tests::scaled(LIMIT)).unwrap()
}

/// Sends a message and receives the next one (RFC 1035 section 4.2.2).
fn exchange(stream: &mut (impl Read + Write), message: &[u8]) -> io::Result<Vec<u8>> {
    let length = u16::try_from(message.len()).unwrap().to_be_bytes();
    stream.write_all(&[&length[..], message].concat())?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

/// Sends messages together; returns the answers up to the end of the connection.
fn exchange_all(stream: &mut (impl Read + Write), messages: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let framed = |message: &Vec<u8>| [&u16::try_from(message.len()).unwrap().to_be_bytes()[..], message].concat();
    stream.write_all(&messages.iter().flat_map(framed).collect::<Vec<u8>>()).unwrap();
    let mut receive = || {
        let mut length = [0; 2];
        stream.read_exact(&mut length).ok()?;
        let mut answer = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut answer).ok()?;
        Some(answer)
    };
    messages.iter().map_while(|_| receive()).collect()
}

/// Whether the server ends a connection, before the client gives up.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.read(&mut [0]).map_or_else(|error| error.kind() == io::ErrorKind::ConnectionReset, |bytes| bytes == 0)
}

fn query(name: &str, kind: RecordType, edns: bool) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.id = 7;
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    if edns {
        let mut edns = Edns::new();
        edns.set_max_payload(1232).set_dnssec_ok(true);
        message.set_edns(edns);
    }
    message.to_vec().unwrap()
}

#[test]
fn encrypted_answers_are_those_of_tcp_for_each_client() {
    let mut encrypted = Encrypted::start();
    let names = [
        "db.",
        "db.data.rancher.internal.",
        "web.shop.rancher.internal.",
        "toolbox.rancher.internal.",
        "x.rancher.internal.",
    ];
    for source in ["127.0.0.1", "127.42.1.11", "127.42.1.51"] {
        let mut tcp = connect(source, encrypted.tcp);
        let mut dot = encrypted.tls(source, encrypted.dot, b"dot").unwrap();
        // Only a container of the shop has the first name; others would ask an upstream, which takes its time to fail.
        for name in &names[usize::from(source != "127.42.1.11")..] {
            let orders = if name.starts_with("web.") { ORDERS } else { 1 };
            for kind in [RecordType::A, RecordType::AAAA, RecordType::TXT] {
                for edns in [false, true] {
                    let message = query(name, kind, edns);
                    let expected: BTreeSet<_> = (0..orders).map(|_| exchange(&mut tcp, &message).unwrap()).collect();
                    let answer = exchange(&mut dot, &message).unwrap();
                    assert!(expected.contains(&answer), "{source} {name} {kind}: {answer:?}, not {expected:?}");
                }
            }
            let message = query(name, RecordType::A, true);
            let expected: BTreeSet<_> = (0..orders).map(|_| exchange(&mut tcp, &message).unwrap()).collect();
            for (head, body) in [encrypted.get(source, &message), encrypted.post(source, &message)] {
                assert!(head.starts_with("HTTP/1.1 200") && expected.contains(&body), "{source} {name}: {head}");
                assert!(head.contains("\r\ncontent-type: application/dns-message\r\n"), "{head}");
                let stored = "\r\ncache-control: private, max-age=1\r\n";
                assert!(head.contains(stored), "{source} {name}: {head}");
            }
        }
    }
    let message = query("db.", RecordType::A, true);
    let (head, failed) = encrypted.get("127.0.0.1", &message);
    assert!(head.contains("\r\ncache-control: private, max-age=0\r\n") && failed[3] & 15 == 2, "{head} {failed:?}");
    assert_eq!(encrypted.over_dot("127.0.0.1", &message)[3] & 15, 2);
    for (proto, least) in [("dot", 79), ("doh", 27)] {
        assert_eq!(encrypted.count("coredns_dns_requests_total", &[&format!("proto=\"{proto}\"")]), least);
    }
    encrypted.service.stop();
}

#[test]
fn a_client_that_is_not_served_is_refused_over_tls_too() {
    let encrypted = Encrypted::start_with(|launch| launch.with("--clients", "192.0.2.0/24"));
    let message = query("db.data.rancher.internal.", RecordType::A, true);
    let refused = encrypted.over_tcp("127.0.0.1", &message);
    assert_eq!(refused[3] & 15, 5);
    assert_eq!(encrypted.over_dot("127.0.0.1", &message), refused);
    assert_eq!(encrypted.get("127.0.0.1", &message).1, refused);
    // A container of the cluster is served.
    assert_eq!(encrypted.over_dot("127.42.1.11", &message), encrypted.over_tcp("127.42.1.11", &message));
    assert_eq!(encrypted.over_dot("127.42.1.11", &message)[3] & 15, 0);
}

/// What a command prints.
fn output(command: &str, arguments: &[&str]) -> String {
    let output = Command::new(command).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command} {arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn kdig_and_curl_are_answered() {
    if Command::new("kdig").arg("--version").output().is_err() {
        tests::skip("kdig is not installed");
        return;
    }
    let encrypted = Encrypted::start();
    let ca = encrypted.ca().display().to_string();
    let (tls_ca, doh) = (format!("+tls-ca={ca}"), encrypted.doh.port().to_string());
    let https = |method: &'static str| vec!["+https=localhost/dns-query", method, "-p", &doh];
    let dot = encrypted.dot.port().to_string();
    for how in [vec!["+tls", "-p", &dot], https("+https-get"), https("+nohttps-get")] {
        let common = ["@127.0.0.1", &tls_ca, "+tls-hostname=localhost", "+time=10", "+retry=0", "+short"];
        let arguments = [&how[..], &common, &["db.data.rancher.internal"]].concat();
        assert_eq!(output("kdig", &arguments), "127.42.2.21\n", "{arguments:?}");
    }

    // A web server behind a name that only this service knows.
    let web = TcpListener::bind("127.42.2.21:0").unwrap();
    let url = format!("http://db.data.rancher.internal:{}/", web.local_addr().unwrap().port());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = web.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello").unwrap();
    });
    let resolver = format!("https://localhost:{doh}/dns-query");
    let limit = tests::scaled(LIMIT).as_secs().to_string();
    let common = ["-sS", "--cacert", &ca, "--max-time", &limit];
    assert_eq!(output("curl", &[&common[..], &["--doh-url", &resolver, &url]].concat()), "hello");
    server.join().unwrap();

    let status = |more: &[&str]| {
        let arguments = [&common[..], &["-o", "/dev/null", "-w", "%{http_code} %{http_version}"], more, &[&resolver]];
        output("curl", &arguments.concat())
    };
    for version in ["--http1.1", "--http2"] {
        let number = if version == "--http2" { "2" } else { "1.1" };
        for (more, expected) in [
            (&["-H", "Content-Type: application/dns-message", "--data-binary", "short"][..], 400),
            (&["-H", "Content-Type: application/dns-message", "--data-binary", &"x".repeat(5000)], 413),
            (&["--data-binary", "short"], 415),
            (&["-X", "DELETE"], 405),
            (&[], 400),
        ] {
            assert_eq!(status(&[&[version], more].concat()), format!("{expected} {number}"), "{version} {more:?}");
        }
    }
}

#[test]
fn a_new_certificate_is_shown_without_a_restart_and_a_broken_one_is_not() {
    let mut encrypted = Encrypted::start();
    let (old, message) = (encrypted.ca(), query("db.data.rancher.internal.", RecordType::A, false));
    let theirs = Authority::new("theirs").folder(&encrypted.files.path("certs"), "next");
    let mut held = encrypted.tls("127.0.0.1", encrypted.dot, b"dot").unwrap();
    let works = |ca: &Path| {
        let [dot, doh] = [(encrypted.dot, &b"dot"[..]), (encrypted.doh, b"h2")]
            .map(|(to, protocol)| tls(ca, "127.0.0.1", to, protocol).is_ok());
        dot && doh
    };
    assert!(works(&old));
    for file in ["key.pem", "cert.pem"] {
        replace(&encrypted.certs.join(file), std::fs::read(theirs.join(file)).unwrap());
    }
    let new = theirs.join("ca.pem");
    eventually("the new certificate", LIMIT, || works(&new).then_some(()));
    assert!(!works(&old));
    // Who is connected stays so.
    assert_eq!(exchange(&mut held, &message).unwrap(), encrypted.over_tcp("127.0.0.1", &message));
    eventually("ready", LIMIT, || encrypted.service.reasons().is_empty().then_some(()));

    replace(&encrypted.certs.join("key.pem"), "no key");
    let reason =
        eventually("not ready", LIMIT, || Some(encrypted.service.reasons()).filter(|reason| !reason.is_empty()));
    assert!(reason.contains("certificate") && reason.contains("key.pem"), "{reason}");
    assert!(tls(&new, "127.0.0.1", encrypted.dot, b"dot").is_ok());
    let stays = |line: &serde_json::Value| line.to_string().contains("its last good contents stay in use");
    encrypted.service.line("what stays in use", stays);
    replace(&encrypted.certs.join("key.pem"), std::fs::read(theirs.join("key.pem")).unwrap());
    eventually("ready again", LIMIT, || encrypted.service.reasons().is_empty().then_some(()));
}

#[test]
fn clients_that_do_not_finish_their_handshake_take_no_place_from_others() {
    let encrypted = Encrypted::start();
    let message = query("db.data.rancher.internal.", RecordType::A, false);
    // All places of one client: half of them say nothing, half begin a record and do not end it.
    let mut slow: Vec<_> = (0..256).map(|_| connect("127.0.0.2", encrypted.dot)).collect();
    for stream in slow.iter_mut().step_by(2) {
        stream.write_all(&[22, 3, 1, 1, 0, 1]).unwrap();
    }
    assert_eq!(encrypted.over_dot("127.0.0.1", &message), encrypted.over_tcp("127.0.0.1", &message));
    // The client itself has no place left, neither here nor there.
    for to in [encrypted.dot, encrypted.doh, encrypted.tcp] {
        let mut stream = connect("127.0.0.2", to);
        assert!(is_closed(&mut stream));
    }
    let begun = std::time::Instant::now();
    for stream in &mut slow {
        assert!(is_closed(stream));
    }
    assert!(begun.elapsed() < seconds(6), "{:?}", begun.elapsed());
    eventually("a place", LIMIT, || encrypted.tls("127.0.0.2", encrypted.dot, b"dot").ok());
}

/// A query of which some bytes are others, or are missing. Its name stays one of the cluster: upstreams take their time.
fn random_message(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut message = seeds[random.below(seeds.len())].clone();
    let name_end = 13 + message[12..].iter().position(|byte| *byte == 0).unwrap();
    for _ in 0..random.below(4) {
        let at = random.below(message.len());
        if (12..name_end).contains(&at) {
            continue;
        }
        message[at] = u8::try_from(random.below(256)).unwrap();
    }
    if random.below(4) == 0 {
        // Without a whole header it is no message, which ends the connection.
        let least = if random.below(20) == 0 { 1 } else { 12 };
        message.truncate(least + random.below(message.len() - least));
    }
    if random.below(20) > 0 && message.len() > 2 {
        // Responses are not answered, which ends the connection.
        message[2] &= 0x7f;
    }
    message
}

#[test]
fn no_message_over_tls_panics_or_is_answered_otherwise_than_over_tcp() {
    let mut encrypted = Encrypted::start();
    let seeds: Vec<_> =
        [("db.data.rancher.internal.", true), ("x.rancher.internal.", false), ("toolbox.rancher.internal.", true)]
            .into_iter()
            .flat_map(|(name, edns)| [RecordType::A, RecordType::TXT].map(|kind| query(name, kind, edns)))
            .collect();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let messages: Vec<_> = (0..RANDOM).map(|_| random_message(&mut random, &seeds)).collect();
    let (mut at, mut answered) = (0, 0);
    let (mut tcp, mut dot) = (None, None);
    while at < messages.len() {
        let batch = &messages[at..messages.len().min(at + BATCH)];
        let over_tcp = exchange_all(tcp.get_or_insert_with(|| connect("127.0.0.1", encrypted.tcp)), batch);
        let connect = || encrypted.tls("127.0.0.1", encrypted.dot, b"dot").unwrap();
        let over_dot = exchange_all(dot.get_or_insert_with(connect), batch);
        assert_eq!(over_dot, over_tcp, "{batch:?}");
        answered += over_dot.len();
        at += over_dot.len();
        if over_dot.len() < batch.len() {
            // What is no query ended the connection.
            at += 1;
            (tcp, dot) = (None, None);
        }
    }
    assert!(answered > messages.len() / 2, "{answered}");
    for _ in 0..20 {
        let mut stream = connect("127.0.0.1", encrypted.dot);
        let garbage: Vec<u8> = (0..1000).map(|_| u8::try_from(random.below(256)).unwrap()).collect();
        let _ = stream.write_all(&garbage);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(encrypted.count("coredns_panics", &[]), 0);
    encrypted.service.stop();
}

#[test]
fn a_certificate_or_an_address_that_cannot_be_used_is_named_at_the_start() {
    let files = ClusterFolder::new(shop_text());
    let certs = Authority::new("ours").folder(&files.path("certs"), "server");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let nowhere = files.path("nowhere");
    for (executable, certs, dot, expected) in [
        (Executable::Dns, &nowhere, "127.0.0.1:0", ["cannot answer over TLS", "cert.pem"]),
        (Executable::Dns, &certs, &*taken, ["--dot", &*taken]),
        (Executable::Agent, &nowhere, "127.0.0.1:0", ["cannot answer over TLS", "cert.pem"]),
    ] {
        let launch = match executable {
            Executable::Agent => Launch::agent(&files.file()),
            _ => Launch::dns().with("--source", format!("file:{}", files.file().display())),
        };
        let ended = launch.with("--dns-tls-certs", certs).with("--dot", dot).run();
        assert_eq!(ended.code, Some(1), "{}", ended.errors);
        assert!(expected.iter().all(|text| ended.errors.contains(text)), "{}", ended.errors);
    }
}
