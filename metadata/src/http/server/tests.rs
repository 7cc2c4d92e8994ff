//! The service over real sockets, in a time that stands still: framing, waiting, limits, stopping.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use model::{Map, Value};
use platform::stop::DRAIN_LIMIT;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::config::{Cors, Tokens, WhenEmpty};
use crate::http::connection::STOPPING_HEAD_TIME_MAX;

use super::*;

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// A running service.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    pub(crate) inner: Arc<crate::http::service::Service>,
    pub(crate) snapshots: Arc<Store<Snapshot>>,
    unavailable: Arc<AtomicBool>,
    registry: Registry,
    stop: CancellationToken,
    task: JoinHandle<Result<(), Failure>>,
}

impl Service {
    /// A service for time that stands still: connections are accepted before their first bytes have arrived.
    pub(crate) fn start(options: &Options) -> Self {
        Self::start_with(options, false)
    }

    pub(crate) fn start_with(options: &Options, defers: bool) -> Self {
        let snapshots = Arc::new(Store::new(Snapshot::default()));
        let mut registry = Registry::default();
        let mut server = Server::new(options, Clients::default(), snapshots.clone(), &mut registry).unwrap();
        // What limits clients is to be seen from this host.
        Arc::get_mut(&mut server.service).unwrap().exempt = |_| false;
        server.defers = defers;
        let (unavailable, inner) = (server.unavailable(), server.service.clone());
        let listener = socket::tcp_listener(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(server.run(listener, stop.clone()));
        Self { address, inner, snapshots, unavailable, registry, stop, task }
    }

    /// A service with an environment of this name.
    pub(crate) async fn named(name: &str) -> Self {
        let service = Self::start(&Options::default());
        tokio::task::yield_now().await;
        service.rename(name).await;
        service
    }

    pub(crate) async fn rename(&self, name: &str) {
        let value = |text: &str| Value::text(text);
        let environment: Map = [
            ("name".into(), value(name)),
            ("empty".into(), value("")),
            ("long".into(), value(&"x".repeat(2049))),
            ("sized".into(), value(&"x".repeat(2048))),
            ("html".into(), value("<a >")),
        ]
        .into_iter()
        .collect();
        let snapshot = Snapshot { environment: Some(environment), ..Snapshot::default() };
        self.snapshots.publish(Arc::new(snapshot));
        self.snapshots.settled().await;
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Everything that comes back on a connection of its own.
    pub(crate) async fn talk(&self, request: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        without_date(&String::from_utf8(answer).unwrap())
    }

    pub(crate) async fn get(&self, target: &str) -> String {
        self.talk(&format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await
    }

    pub(crate) fn metric(&self, name: &str) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{name} ")) || line.starts_with(&format!("{name}_total ")));
        line.and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned()
    }

    pub(crate) async fn until_metric(&self, name: &str, value: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.metric(name) != value {
            assert!(Instant::now() < deadline, "{name} is {} and not {value}", self.metric(name));
            sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        timeout(PATIENCE, self.task).await.unwrap().unwrap().unwrap();
    }
}

pub(crate) fn without_date(answer: &str) -> String {
    let lines = answer.split("\r\n").filter(|line| !line.starts_with("Date: "));
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_listener_that_ends_by_itself_ends_the_service() {
    let service = Service::start(&Options::default());
    // Its own tasks end, though nobody asked the service to stop.
    service.inner.stop.cancel();
    let failure = timeout(PATIENCE, service.task).await.unwrap().unwrap().unwrap_err();
    assert_eq!(failure.to_string(), "accepting connections ended by itself");
}

#[tokio::test(start_paused = true)]
async fn answers_are_framed_as_recorded() {
    let service = Service::named("prod").await;
    let long = "x".repeat(2049);
    let sized = "x".repeat(2048);
    for (request, expected) in [
        (
            "GET /latest/name HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\nAccess-Control-Allow-Origin: *\nContent-Type: text/plain; charset=utf-8\nX-Content-Type-Options: nosniff\nContent-Security-Policy: default-src 'none'; sandbox\nConnection: close\nContent-Length: 4\n\nprod".to_owned(),
        ),
        (
            "HEAD /latest/name HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\nAccess-Control-Allow-Origin: *\nContent-Type: text/plain; charset=utf-8\nX-Content-Type-Options: nosniff\nContent-Security-Policy: default-src 'none'; sandbox\nConnection: close\nContent-Length: 4\n\n".to_owned(),
        ),
        (
            "GET /latest/name HTTP/1.0\r\n\r\n",
            "HTTP/1.0 200 OK\nAccess-Control-Allow-Origin: *\nContent-Type: text/plain; charset=utf-8\nX-Content-Type-Options: nosniff\nContent-Security-Policy: default-src 'none'; sandbox\nContent-Length: 4\n\nprod".to_owned(),
        ),
        (
            "GET /latest/empty HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\nAccess-Control-Allow-Origin: *\nX-Content-Type-Options: nosniff\nContent-Security-Policy: default-src 'none'; sandbox\nConnection: close\nContent-Length: 0\n\n".to_owned(),
        ),
        (
            "GET /latest/html HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\nAccess-Control-Allow-Origin: *\nContent-Type: text/html; charset=utf-8\nX-Content-Type-Options: nosniff\nContent-Security-Policy: default-src 'none'; sandbox\nConnection: close\nContent-Length: 4\n\n<a >".to_owned(),
        ),
        (
            "GET /latest/sized HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            format!("HTTP/1.1 200 OK\nAccess-Control-Allow-Origin: *\nContent-Type: text/plain; charset=utf-8\nX-Content-Type-Options: nosniff\nContent-Security-Policy: default-src 'none'; sandbox\nConnection: close\nContent-Length: 2048\n\n{sized}"),
        ),
        (
            "GET /latest/long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            format!("HTTP/1.1 200 OK\nAccess-Control-Allow-Origin: *\nContent-Type: text/plain; charset=utf-8\nX-Content-Type-Options: nosniff\nContent-Security-Policy: default-src 'none'; sandbox\nConnection: close\nTransfer-Encoding: chunked\n\n801\n{long}\n0\n\n"),
        ),
        (
            "GET /latest/long HTTP/1.0\r\n\r\n",
            format!("HTTP/1.0 200 OK\nAccess-Control-Allow-Origin: *\nContent-Type: text/plain; charset=utf-8\nX-Content-Type-Options: nosniff\nContent-Security-Policy: default-src 'none'; sandbox\n\n{long}"),
        ),
        (
            "GET /latest/nope HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 404 Not Found\nAccess-Control-Allow-Origin: *\nContent-Type: text/plain; charset=utf-8\nX-Content-Type-Options: nosniff\nConnection: close\nContent-Length: 50\n\n{\"code\":404,\"message\":\"Not found\",\"type\":\"error\"}\n".to_owned(),
        ),
        (
            "POST /latest/name HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 404 Not Found\nContent-Type: text/plain; charset=utf-8\nX-Content-Type-Options: nosniff\nConnection: close\nContent-Length: 19\n\n404 page not found\n".to_owned(),
        ),
        (
            "GET //latest HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 301 Moved Permanently\nLocation: /latest\nConnection: close\nContent-Length: 0\n\n".to_owned(),
        ),
        (
            "GET latest HTTP/1.1\r\nHost: x\r\n\r\n",
            "HTTP/1.1 400 Bad Request\nContent-Type: text/plain; charset=utf-8\nConnection: close\nContent-Length: 15\n\n400 Bad Request".to_owned(),
        ),
        (
            "GET latest HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            "HTTP/1.0 400 Bad Request\nContent-Type: text/plain; charset=utf-8\nConnection: close\nContent-Length: 15\n\n400 Bad Request".to_owned(),
        ),
        (
            "GET /latest/long HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            format!("HTTP/1.0 200 OK\nAccess-Control-Allow-Origin: *\nContent-Type: text/plain; charset=utf-8\nX-Content-Type-Options: nosniff\nContent-Security-Policy: default-src 'none'; sandbox\nConnection: keep-alive\n\n{long}"),
        ),
        (
            "HEAD /latest/long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\nAccess-Control-Allow-Origin: *\nContent-Type: text/plain; charset=utf-8\nX-Content-Type-Options: nosniff\nContent-Security-Policy: default-src 'none'; sandbox\nConnection: close\n\n".to_owned(),
        ),
        (
            "OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\nConnection: close\nContent-Length: 0\n\n".to_owned(),
        ),
    ] {
        assert_eq!(service.talk(request).await, expected, "{request}");
    }
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_asks_before_its_source_told_of_it_gets_no_404() {
    let service = Service::named("prod").await;
    let asks = async |target: &str| {
        let (asked, answer) = (Instant::now(), service.get(target).await);
        (answer, asked.elapsed())
    };
    let (answer, took) = asks("/latest/self/container/name").await;
    assert!(answer.contains(" 404 ") && took.is_zero(), "a file knows all containers: {took:?} {answer}");

    service.inner.live.store(true, Ordering::Relaxed);
    let (answer, took) = asks("/latest/self/container/name").await;
    assert!(answer.contains(" 404 ") && took == Duration::from_millis(250), "{took:?} {answer}");
    for target in ["/latest/self/host/name", "/latest/containers/0", "/latest/name"] {
        assert!(asks(target).await.1.is_zero(), "{target} is the same for all clients");
    }
    let start = async {
        sleep(Duration::from_millis(100)).await;
        let container = r#"{"metadata_kind":"container","uuid":"c1","name":"web","primary_ip":"127.0.0.1"}"#;
        let object: Value = serde_json::from_str(container).unwrap();
        let snapshot = model::objects::read(vec![object.as_map().unwrap().clone()]).0;
        service.snapshots.publish(Arc::new(snapshot));
    };
    let (held, ()) = tokio::join!(asks("/latest/self/container/name"), start);
    assert!(held.0.ends_with("\n\nweb") && held.1 < Duration::from_millis(250), "{held:?}");
    assert_eq!(service.metric("metadata_waiters"), "0");
    service.stop().await;
}

/// Another host's container of the same address is `self` for clients that come from elsewhere, as recorded. A client that
/// connects to a host whose engine is the source is a container of that host, which the engine may not have reported yet.
#[tokio::test(start_paused = true)]
async fn no_container_of_another_host_is_self_where_an_engine_is_the_source() {
    let service = Service::named("prod").await;
    let objects = [
        r#"{"metadata_kind":"host","uuid":"h1","name":"here"}"#,
        r#"{"metadata_kind":"host","uuid":"h2","name":"there"}"#,
        r#"{"metadata_kind":"container","uuid":"c2","name":"other","primary_ip":"127.0.0.1","host_uuid":"h2"}"#,
    ];
    let objects = objects.map(|object| serde_json::from_str::<Value>(object).unwrap().as_map().unwrap().clone());
    let mut snapshot = model::objects::read(objects.to_vec()).0;
    snapshot.local_host = Some(snapshot.hosts["h1"].clone());
    service.snapshots.publish(Arc::new(snapshot));
    service.snapshots.settled().await;
    for (live, expected) in [(false, "\n\nother"), (true, " 404 ")] {
        service.inner.live.store(live, Ordering::Relaxed);
        let answer = service.get("/latest/self/container/name").await;
        assert!(answer.contains(expected), "{live}: {answer}");
    }
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_connection_carries_many_requests_however_they_are_cut() {
    let service = Service::named("prod").await;
    let one = "GET /latest/name HTTP/1.1\r\nHost: x\r\n\r\n";
    let last = "GET /latest/long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let all = format!("{}{last}", one.repeat(20));
    for size in [all.len(), 1000, 100, 7] {
        let mut stream = service.connect().await;
        stream.set_nodelay(true).unwrap();
        let (mut reading, mut writing) = stream.split();
        let write = async {
            for part in all.as_bytes().chunks(size) {
                writing.write_all(part).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let mut answers = String::new();
        let ((), read) = tokio::join!(write, timeout(PATIENCE, reading.read_to_string(&mut answers)));
        read.unwrap().unwrap();
        assert_eq!(answers.matches("\r\n\r\nprod").count(), 20, "cut to {size}");
        assert!(answers.ends_with("x\r\n0\r\n\r\n"));
    }
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_stands_behind_a_body_is_no_request() {
    let service = Service::named("prod").await;
    for framing in ["Content-Length: 40\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"] {
        let inner = "GET /latest/name HTTP/1.1\r\nHost: x\r\n\r\n";
        let answer = service.talk(&format!("GET /latest/name HTTP/1.1\r\nHost: x\r\n{framing}{inner}{inner}")).await;
        assert_eq!(answer.matches("prod").count(), 1, "{answer}");
    }
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_with_a_change() {
    let service = Service::named("prod").await;
    let changed = async {
        service.until_metric("metadata_waiters", "2").await;
        service.rename("other").await;
    };
    let target = "/latest/name?wait=true&value=prod&maxWait=100";
    let missing = "/latest/stacks/0/name?wait=true&maxWait=2";
    let started = Instant::now();
    let (answer, missing, ()) = tokio::join!(service.get(target), service.get(missing), changed);
    assert!(answer.ends_with("\n\nother"), "{answer}");
    assert!(missing.starts_with("HTTP/1.1 404") && started.elapsed() >= Duration::from_secs(2), "{missing}");
    service.until_metric("metadata_waiters", "0").await;
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_when_its_time_is_over_and_not_before() {
    let service = Service::named("prod").await;
    let started = Instant::now();
    let answer = service.get("/latest/name?wait=true&value=prod&maxWait=1").await;
    let waited = started.elapsed();
    assert!(answer.ends_with("\n\nprod"), "{answer}");
    assert!(waited >= Duration::from_secs(1) && waited < Duration::from_secs(2), "{waited:?}");
    assert!(service.get("/latest/name?wait=true&value=prod&maxWait=-1").await.ends_with("\n\nprod"));
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_hangs_up_waits_no_more() {
    let service = Service::named("prod").await;
    let mut stream = service.connect().await;
    stream.write_all(b"GET /latest/name?wait=true&value=prod HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    service.until_metric("metadata_waiters", "1").await;
    drop(stream);
    service.until_metric("metadata_waiters", "0").await;
    service.until_metric("metadata_connections", "0").await;

    // Also who announced that this is the last request; and nobody is thought to be gone before.
    let mut stream = service.connect().await;
    stream.write_all(b"GET /latest/name?wait=true&value=prod HTTP/1.0\r\n\r\n").await.unwrap();
    service.until_metric("metadata_waiters", "1").await;
    let started = Instant::now();
    sleep(Duration::from_secs(10)).await;
    service.until_metric("metadata_waiters", "1").await;
    drop(stream);
    service.until_metric("metadata_waiters", "0").await;
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_ends_its_side_after_the_request_is_answered() {
    let service = Service::named("prod").await;
    let waits = "GET /latest/name?wait=true&value=prod HTTP/1.1\r\nHost: x\r\n\r\n";
    let plain = "GET /latest/name HTTP/1.1\r\nHost: x\r\n\r\n";
    let large = "GET /latest/long HTTP/1.1\r\nHost: x\r\n\r\n";
    let last = "GET /latest/name?wait=true&value=prod HTTP/1.0\r\n\r\n";
    for (requests, answers) in [
        (waits.to_owned(), 1),
        (format!("{waits}{plain}{large}"), 3),
        (large.repeat(50), 50),
        (format!("{plain}{last}"), 2),
        (format!("{plain}GET /latest"), 1),
    ] {
        let mut stream = service.connect().await;
        let started = Instant::now();
        stream.write_all(requests.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut got = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut got)).await.unwrap().unwrap();
        assert_eq!(got.matches(" 200 OK\r\n").count(), answers, "{requests:.200}\n{got:.500}");
        assert!(got.ends_with("prod") || got.ends_with("xx") || got.ends_with("0\r\n\r\n"), "{got:.500}");
        // One that waits is not held for as long as it may wait.
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    }
    service.until_metric("metadata_connections", "0").await;
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn half_a_head_holds_up_no_stop() {
    let service = Service::named("prod").await;
    let mut stream = service.connect().await;
    stream.write_all(b"GET /lat").await.unwrap();
    service.until_metric("metadata_connections", "1").await;
    sleep(Duration::from_millis(100)).await;
    let started = Instant::now();
    service.stop().await;
    assert!(started.elapsed() <= STOPPING_HEAD_TIME_MAX * 2, "{:?}", started.elapsed());
    assert_eq!(stream.read(&mut [0; 16]).await.unwrap_or_default(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_not_left_waiting_by_a_stop() {
    let service = Service::named("prod").await;
    let mut stream = service.connect().await;
    let requests = "GET /latest/name HTTP/1.1\r\nHost: x\r\n\r\n".repeat(10_000);
    while timeout(Duration::from_secs(1), stream.write_all(requests.as_bytes())).await.is_ok_and(|sent| sent.is_ok()) {}
    let started = Instant::now();
    service.stop().await;
    assert!(started.elapsed() < DRAIN_LIMIT, "{:?}", started.elapsed());
    let error = stream.read_to_end(&mut Vec::new()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test(start_paused = true)]
async fn stopping_answers_who_waits_and_closes_who_rests() {
    let service = Service::named("prod").await;
    let mut resting = service.connect().await;
    resting.write_all(b"GET /latest/name HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut waiting = service.connect().await;
    waiting.write_all(b"GET /latest/name?wait=true&value=prod HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut silent = service.connect().await;
    service.until_metric("metadata_waiters", "1").await;
    service.until_metric("metadata_connections", "3").await;
    let started = Instant::now();
    service.stop().await;
    assert!(started.elapsed() < Duration::from_secs(1));
    for (stream, is_last) in [(&mut resting, false), (&mut waiting, true)] {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("\r\n\r\nprod"), "{answer}");
        assert_eq!(answer.contains("\r\nConnection: close\r\n"), is_last, "{answer}");
    }
    assert_eq!(silent.read_to_end(&mut Vec::new()).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_strict_service_answers_to_its_names_only() {
    let service = Service::start(&Options { strict_host: true, cors: Cors::Off, ..Options::default() });
    service.rename("prod").await;
    let own = service.address.to_string();
    for (host, status) in [
        (&*own, 200),
        ("127.0.0.1", 200),
        ("rancher-metadata", 200),
        ("", 403),
        ("localhost", 403),
        ("example.org", 403),
    ] {
        let answer =
            service.talk(&format!("GET /latest/name HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {answer}");
        assert!(!answer.contains("Access-Control"), "{answer}");
    }
    assert!(service.talk("GET /latest/name HTTP/1.0\r\n\r\n").await.ends_with("\n\nprod"));
    assert!(service.get("http://example.org/latest/name").await.starts_with("HTTP/1.1 403 "));
    assert_eq!(service.metric("metadata_refusals_total{reason=\"host\"}"), "4");
    service.stop().await;
}

/// The lines of an answer's head and its body.
fn split(answer: &str) -> (&str, &str) {
    answer.split_once("\n\n").unwrap()
}

#[tokio::test(start_paused = true)]
async fn session_tokens_are_given_and_asked_for() {
    for (tokens, missing) in [(Tokens::Optional, 200), (Tokens::Required, 401)] {
        let service = Service::start(&Options { tokens, ..Options::default() });
        let put = |headers: &str| {
            format!(
                "PUT /latest/api/token HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n{headers}\r\n"
            )
        };
        let get = |target: &str, headers: &str| {
            format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n")
        };
        let answer = service.talk(&put("X-aws-ec2-metadata-token-ttl-seconds: 60\r\n")).await;
        let (head, token) = split(&answer);
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("-Ttl-Seconds: 60"), "{answer}");
        let other = service.talk(&put("x-metadata-token-ttl-seconds: 21600\r\n")).await;
        service.rename("prod").await;
        let good = format!("X-aws-ec2-metadata-token: {token}\r\n");
        let other = format!("x-metadata-token: {}\r\n", split(&other).1);
        for (request, status) in [
            (get("/latest/name", &good), 200),
            (get("/latest/name", &other), 200),
            (get("/latest/name", ""), missing),
            (get("/", ""), missing),
            (get("/v1/openapi.json", ""), missing),
            (get("/latest/name", &good.replace(": ", ": x")), 401),
            (get("/v1/changes", "X-Metadata-Token: x\r\n"), 401),
            (put(""), 400),
            (put("X-Metadata-Token-TTL-Seconds: 0\r\n"), 400),
            (put("X-Metadata-Token-TTL-Seconds: 1\r\nX-Metadata-Token-TTL-Seconds: 2\r\n"), 400),
            (put("X-Metadata-Token-TTL-Seconds: 1\r\nX-Forwarded-For: 192.0.2.1\r\n"), 400),
            (put("X-Metadata-Token-TTL-Seconds: 1\r\nForwarded: for=192.0.2.1\r\n"), 400),
        ] {
            let answer = service.talk(&request).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}{answer}");
            assert!(split(&answer).1.len() > 3, "{answer}");
        }
        for (token, count) in [("issued", "2"), ("valid", "2"), ("missing", "3"), ("invalid", "2")] {
            assert_eq!(service.metric(&format!("metadata_tokens_total{{token=\"{token}\"}}")), count, "{token}");
        }
        assert_eq!(service.metric("metadata_forwarded"), "2");
        tokio::time::advance(Duration::from_secs(61)).await;
        assert!(service.talk(&get("/latest/name", &good)).await.starts_with("HTTP/1.1 401 "));
        assert!(service.talk(&get("/latest/name", &other)).await.ends_with("\n\nprod"));
        service.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn people_get_a_page_and_nobody_else() {
    let service = Service::named("prod").await;
    let get = |target: &str, accept: &str| {
        format!("GET {target} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n")
    };
    let browser = "text/html,application/xhtml+xml,*/*;q=0.8";
    for (target, status, shown) in [
        ("/", 200, "<a href=\"/?path=%2Flatest\">latest</a>"),
        ("/?path=", 200, "<a href=\"/?path=%2Flatest\">latest</a>"),
        ("/?path=/latest", 200, "<a href=\"/?path=%2Flatest%2Fname\">name</a></td><td>prod</td>"),
        ("/?path=%2Flatest%2Fhtml", 200, "<pre>&lt;a &gt;</pre>"),
        ("/?path=/latest/%253Cscript%253E", 404, "&lt;script&gt;</a></h1>\n<p>Not found.</p>"),
        ("/?path=/nope", 404, "<p>Not found.</p>"),
        ("/?path=nope", 404, "<p>Not found.</p>"),
        ("/?path=//latest", 404, "<p>Not found.</p>"),
        ("/?path=/%25", 404, "<p>Not found.</p>"),
        ("/?path=/v1/changes", 404, "<p>Not found.</p>"),
    ] {
        let answer = service.talk(&get(target, browser)).await;
        let (head, body) = split(&answer);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")) && body.contains(shown), "{target}: {answer}");
        for header in [
            "Content-Type: text/html; charset=utf-8",
            "X-Content-Type-Options: nosniff",
            "Content-Security-Policy: default-src 'none'; ",
        ] {
            assert!(head.contains(header), "{head}");
        }
        assert!(!head.contains("Access-Control") && !body.contains("<script"), "{answer}");
    }
    for accept in ["*/*", "text/plain, text/html", "application/json"] {
        let answer = service.talk(&get("/?path=/latest", accept)).await;
        assert!(answer.contains("Access-Control") && !answer.contains("<a"), "{answer}");
    }
    assert!(service.talk(&get("/latest/name", browser)).await.ends_with("\n\nprod"));
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_tokens_a_request_for_one_finds_no_page() {
    let service = Service::named("prod").await;
    let request =
        "PUT /latest/api/token HTTP/1.1\r\nHost: x\r\nX-Metadata-Token-TTL-Seconds: 60\r\nConnection: close\r\n\r\n";
    assert!(service.talk(request).await.starts_with("HTTP/1.1 404 "));
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn before_there_are_data_the_options_decide() {
    let service = Service::start(&Options::default());
    assert!(service.get("/latest/name").await.ends_with("\n\nNot found\n"));
    service.unavailable.store(true, Ordering::Relaxed);
    let answer = service.get("/latest/name").await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("\nRetry-After: 1\n"), "{answer}");
    service.rename("prod").await;
    assert!(service.get("/latest/name").await.ends_with("\n\nprod"));
    service.stop().await;

    let service = Service::start(&Options { when_empty: WhenEmpty::Unavailable, ..Options::default() });
    assert!(service.get("/").await.starts_with("HTTP/1.1 503 "));
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn no_client_of_the_first_moment_is_answered_without_data() {
    let service = Service::start(&Options::default());
    let (answer, ()) = tokio::join!(service.get("/latest/name"), async {
        sleep(FIRST_VIEW_MAX / 2).await;
        service.rename("prod").await;
    });
    assert!(answer.ends_with("\n\nprod"), "{answer}");
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_head_that_never_ends_is_cut_off_alone() {
    let service = Service::named("prod").await;
    let mut slow = service.connect().await;
    slow.write_all(b"GET /latest/name HTTP/1.1\r\nHost: x\r\nA: ").await.unwrap();
    assert!(service.get("/latest/name").await.ends_with("\n\nprod"));
    let answer = service.talk(&format!("GET / HTTP/1.1\r\nHost: x\r\nA: {}\r\n\r\n", "b".repeat(1 << 16))).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let mut answer = String::new();
    timeout(PATIENCE * 2, slow.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_are_answered_one_after_the_other_when_another_process_serves() {
    let service = Service::named("prod").await;
    let begun = Instant::now();
    let asked = async || {
        let answer = service.get("/latest/name?wait=true&value=prod&maxWait=60").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("\n\nprod"), "{answer}");
        begun.elapsed()
    };
    let ending = async {
        service.until_metric("metadata_waiters", "4").await;
        let before = begun.elapsed();
        service.inner.ending.cancel();
        before
    };
    let (first, second, third, fourth, before) = tokio::join!(asked(), asked(), asked(), asked(), ending);
    let mut took = [first, second, third, fourth].map(|took| took.saturating_sub(before));
    took.sort();
    assert!(took[3] < Duration::from_secs(1), "within the time that the process has: {took:?}");
    let apart = took.windows(2).all(|pair| pair[1].saturating_sub(pair[0]) > Duration::from_millis(50));
    assert!(apart, "not at once: {took:?}");
    service.stop().await;
}
