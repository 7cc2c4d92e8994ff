//! The API over real sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use model::Snapshot;
use prometheus_client::registry::Registry;
use scheduler::{Options, Server};
use serde_json::{Value, json};
use source::Store;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A scheduler that serves.
struct Service {
    address: SocketAddr,
    snapshots: Arc<Store<Snapshot>>,
    registry: Registry,
    stop: CancellationToken,
    running: JoinHandle<Result<(), process::Failure>>,
    /// Where its token is, unless the options have another place.
    state: TempDir,
}

/// An answer.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: Value,
}

impl Service {
    async fn start(mut options: Options) -> Self {
        let state = tempfile::tempdir().unwrap();
        options.state.get_or_insert_with(|| state.path().into());
        let snapshots = Arc::new(Store::new(Snapshot::default()));
        let mut registry = Registry::default();
        let mut server = Server::new(&options, snapshots.clone(), &mut registry);
        // The last task of a server that has just ended in this process lets go of its ledger a moment later.
        for _ in 0..500 {
            if !server.as_ref().is_err_and(|error| error.to_string().contains("in use by another scheduler")) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            registry = Registry::default();
            server = Server::new(&options, snapshots.clone(), &mut registry);
        }
        let server = server.unwrap();
        let listener = platform::socket::tcp_listener(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn(server.run(listener, stop.clone()));
        // The view is built by a follower that has to be there before anybody can wait for it.
        let service = Self { address, snapshots, registry, stop, running, state };
        service.ask("GET", "/v1/openapi.json", "").await;
        service
    }

    async fn with_hosts(options: Options) -> Self {
        let service = Self::start(options).await;
        service.publish(&json!([])).await;
        service
    }

    async fn publish(&self, containers: &Value) {
        let mut objects = vec![
            json!({"metadata_kind": "host", "uuid": "h1", "name": "one", "memory": 100, "labels": {"zone": "a"}}),
            json!({"metadata_kind": "host", "uuid": "h2", "name": "two", "memory": 100, "labels": {"zone": "b"}}),
        ];
        objects.extend(containers.as_array().unwrap().iter().cloned());
        let objects: Vec<model::Map> = serde_json::from_value(objects.into()).unwrap();
        self.snapshots.publish(Arc::new(model::objects::read(objects).0));
        self.snapshots.settled().await;
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        self.ask_with(method, path, body, "").await
    }

    /// The header with its own token.
    fn token(&self) -> String {
        let token = std::fs::read_to_string(self.state.path().join("scheduler.token")).unwrap_or_default();
        format!("authorization: Bearer {}\r\n", token.trim())
    }

    /// Asks with its own token, unless there are other headers.
    async fn ask_with(&self, method: &str, path: &str, body: &str, headers: &str) -> Answer {
        let headers = if headers.is_empty() { &self.token() } else { headers };
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
            body.len()
        );
        // A server that refuses a large body need not read it.
        let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        read(&mut stream).await
    }

    async fn place(&self, request: &Value) -> Answer {
        self.ask("POST", "/v1/placements", &request.to_string()).await
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }

    async fn end(self) {
        self.stop.cancel();
        tokio::time::timeout(Duration::from_secs(5), self.running).await.unwrap().unwrap().unwrap();
        assert!(TcpStream::connect(self.address).await.is_err());
    }
}

async fn read(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_lowercase(), body: serde_json::from_str(body).unwrap_or_default() }
}

#[tokio::test]
async fn before_the_first_snapshot_everybody_is_asked_to_come_again() {
    let service = Service::start(Options::default()).await;
    for (method, path, body) in [
        ("POST", "/v1/placements", "{}"),
        ("GET", "/v1/placements/a", ""),
        ("DELETE", "/v1/placements/a", ""),
        ("GET", "/v1/hosts", ""),
        ("POST", "/v1/explain", "{}"),
        ("GET", "/v1/placements", ""),
        ("POST", "/v1/what-if", r#"{"lose":["h1"]}"#),
        ("POST", "/v1/rebalance", "{}"),
        ("POST", "/v1/events/scheduler.prioritize", r#"{"data":{"schedulerRequest":{}}}"#),
    ] {
        let answer = service.ask(method, path, body).await;
        assert_eq!(answer.status, 503, "{method} {path}: {answer:?}");
        assert!(answer.head.contains("retry-after: 1"), "{answer:?}");
        assert!(answer.body["error"].as_str().unwrap().contains("no snapshot"), "{answer:?}");
    }
    assert_eq!(service.ask("GET", "/v1/openapi.json", "").await.body["openapi"], "3.1.0");
    service.publish(&json!([])).await;
    assert_eq!(service.ask("GET", "/v1/hosts", "").await.status, 200);
    service.end().await;
}

#[tokio::test]
async fn a_placement_lives_from_asking_to_giving_back() {
    let service = Service::with_hosts(Options::default()).await;
    let request =
        json!({"id": "web-1", "resources": {"memory": 60}, "ports": ["80:8080"], "constraints": ["zone = b"]});
    let first = service.place(&request).await;
    assert_eq!(first.status, 201, "{first:?}");
    assert_eq!(first.body["placements"][0]["host"], json!({"uuid": "h2", "name": "two"}));
    let container = &first.body["placements"][0]["containers"][0];
    assert_eq!(container["labels"], json!({"io.berth.placement": "web-1"}));
    assert_eq!(container["ports"], json!([{"ip": "0.0.0.0", "public": 80, "private": 8080, "protocol": "tcp"}]));

    let again = service.place(&request).await;
    assert_eq!((again.status, &again.body["placements"]), (200, &first.body["placements"]));
    let other = service.place(&json!({"id": "web-1"})).await;
    assert_eq!((other.status, &other.body["field"]), (409, &json!("id")));

    let full = service.place(&json!({"resources": {"memory": 60}, "constraints": ["zone = b"], "dry_run": true})).await;
    assert_eq!((full.status, &full.body["state"]), (409, &json!("unplaceable")));
    let reasons = full.body["explanation"]["hosts"].as_array().unwrap();
    assert_eq!(reasons.len(), 2);
    assert_eq!(
        full.body["explanation"]["changes"],
        json!(["label zone = b on 1 host", "20 bytes less memory on 1 host"])
    );

    service
        .publish(&json!([{"metadata_kind": "container", "uuid": "c1", "name": "web-1", "host_uuid": "h2",
                             "state": "running", "memory_reservation": 60, "ports": ["80:8080/tcp"]}]))
        .await;
    let shown = service.ask("GET", "/v1/placements/web-1", "").await;
    let container = &shown.body["placements"][0]["containers"][0];
    assert_eq!((&container["state"], &container["uuid"]), (&json!("settled"), &json!("c1")));
    let hosts = service.ask("GET", "/v1/hosts", "").await;
    let memory = json!({"total": 100, "used": 60, "promised": 0, "free": 40});
    assert_eq!(hosts.body["hosts"][1]["pools"]["memoryReservation"], memory);

    assert_eq!(service.ask("DELETE", "/v1/placements/web-1", "").await.body["state"], "released");
    assert_eq!(service.ask("DELETE", "/v1/placements/web-1", "").await.status, 404);
    assert_eq!(service.ask("GET", "/v1/placements/web-1", "").await.status, 404);
    let metrics = service.metrics();
    for line in [
        r#"berth_scheduler_placements_total{outcome="placed"} 1"#,
        r#"berth_scheduler_placements_total{outcome="repeated"} 1"#,
        r#"berth_scheduler_placements_total{outcome="unplaceable"} 1"#,
        "berth_scheduler_hosts 2",
        "berth_scheduler_reservations 0",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    service.end().await;
}

#[tokio::test]
async fn what_is_wrong_is_answered_in_json() {
    let service = Service::with_hosts(Options::default()).await;
    let large = "x".repeat(2 << 20);
    let deep = "[".repeat(100_000);
    for (method, path, body, headers, status, field) in [
        ("POST", "/v1/placements", "", "", 400, ""),
        ("POST", "/v1/placements", "[1", "", 400, ""),
        ("POST", "/v1/placements", deep.as_str(), "", 400, ""),
        ("POST", "/v1/placements", r#"{"ports":["x"]}"#, "", 400, "ports[0]"),
        ("POST", "/v1/explain", r#"{"cuont":1}"#, "", 400, "cuont"),
        ("POST", "/v1/placements", large.as_str(), "", 413, ""),
        (
            "POST",
            "/v1/events/scheduler.reserve",
            r#"{"data":{"schedulerRequest":{}}}"#,
            "",
            400,
            "data.schedulerRequest.hostID",
        ),
        ("POST", "/v1/what-if", "{}", "", 400, ""),
        ("POST", "/v1/what-if", r#"{"lose":["one","nine"]}"#, "", 400, "lose[1]"),
        ("POST", "/v1/what-if", r#"{"lose":["one"],"now":true}"#, "", 400, "now"),
        ("POST", "/v1/what-if", r#"{"add":[{"like":"nine"}]}"#, "", 400, "add[0].like"),
        ("POST", "/v1/what-if", r#"{"add":[{"memory":"much"}]}"#, "", 400, "add[0].memory"),
        ("POST", "/v1/what-if", r#"{"place":[{"ports":["x"]}]}"#, "", 400, "place[0].ports[0]"),
        ("POST", "/v1/what-if", r#"{"replicas":[{"service":"a/b"}]}"#, "", 400, "replicas[0].service"),
        ("POST", "/v1/what-if", r#"{"place":[{"count":10000},{"count":10000},{"count":1}]}"#, "", 400, "place"),
        ("POST", "/v1/rebalance", r#"{"max_moves":0}"#, "", 400, "max_moves"),
        ("POST", "/v1/rebalance", r#"{"most":1}"#, "", 400, "most"),
        ("POST", "/v1/placements", r#"{"start":true}"#, "", 400, "image"),
        ("POST", "/v1/placements", r#"{"restart":"often"}"#, "", 400, "restart"),
        ("POST", "/v1/placements", r#"{"dns":["here"]}"#, "", 400, "dns[0]"),
        ("POST", "/v1/placements", r#"{"command":"say 'this"}"#, "", 400, "command"),
        ("POST", "/v1/placements", r#"{"attempts":17}"#, "", 400, "attempts"),
        ("DELETE", "/v1/placements/a?force=yes", "", "", 400, "query"),
        ("POST", "/v1/events/scheduler.prioritize", "{}", "", 400, "data.schedulerRequest"),
        ("POST", "/v1/events/scheduler.guess", "{}", "", 400, "name"),
        ("PUT", "/v1/hosts", "", "", 405, ""),
        ("GET", "/v2/hosts", "", "", 404, ""),
        ("GET", "/v1/hosts", "", "origin: http://example.org\r\n", 403, "Origin"),
    ] {
        let answer = service.ask_with(method, path, body, headers).await;
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
        assert_eq!(answer.body["field"], field, "{method} {path}: {answer:?}");
        assert!(answer.body["error"].is_string() && answer.body["expected"].is_string(), "{answer:?}");
    }
    let hosts = service.ask("GET", "/v1/hosts", "").await;
    assert_eq!(hosts.body["hosts"][0]["pools"]["memoryReservation"]["free"], 100);
    service.end().await;
}

#[tokio::test]
async fn absurd_requests_are_refused_and_keep_nothing() {
    let service = Service::with_hosts(Options::default()).await;
    let many = |count: usize, item: &str| vec![item; count].join(",");
    let constraints = format!(r#"{{"constraints":[{}]}}"#, many(10_000, r#""zone = a""#));
    let environment = format!(r#"{{"environment":[{}]}}"#, many(300, r#""constraint:a==b""#));
    let nested = format!(r#"{{"labels":{}1{}}}"#, "[".repeat(90), "]".repeat(90));
    for (body, field) in [
        (constraints.as_str(), "constraints"),
        (environment.as_str(), "constraints"),
        (nested.as_str(), "labels"),
        (r#"{"resources":{"memory":9223372036854775807}}"#, "resources.memory"),
        (r#"{"resources":{"memory":1e30}}"#, "resources.memory"),
        (r#"{"resources":{"memory":"99999999999 TiB"}}"#, "resources.memory"),
        (r#"{"resources":{"milli_cpu":-1}}"#, "resources.milli_cpu"),
        (r#"{"count":18446744073709551615}"#, "count"),
        (
            r#"{"name":"a","network_from":"b","sidekicks":[{"name":"b","volumes_from":["c"]},{"name":"c","network_from":"a"}]}"#,
            "network_from",
        ),
        (r#"{"constraints":["zone =~ (a{500}){500}"]}"#, "constraints[0]"),
    ] {
        let answer = service.ask("POST", "/v1/placements", body).await;
        let shown: String = body.chars().take(80).collect();
        assert_eq!((answer.status, &answer.body["field"]), (400, &json!(field)), "{shown}: {answer:?}");
        assert!(!answer.body["expected"].as_str().unwrap().is_empty(), "{answer:?}");
    }
    // A hundred megabytes are not even read.
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    let head =
        "POST /v1/placements HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 104857600\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(read(&mut stream).await.status, 413);
    // Nor as many in pieces.
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    let head =
        "POST /v1/placements HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let piece = format!("100000\r\n{}\r\n", " ".repeat(1 << 20));
    for _ in 0..100 {
        if stream.write_all(piece.as_bytes()).await.is_err() {
            break;
        }
    }
    assert_eq!(read(&mut stream).await.status, 413);
    assert!(service.metrics().contains("berth_scheduler_reservations 0"));
    for host in service.ask("GET", "/v1/hosts", "").await.body["hosts"].as_array().unwrap() {
        assert_eq!(host["pools"]["memoryReservation"]["free"], 100);
    }
    service.end().await;
}

#[tokio::test]
async fn reasons_of_every_host_are_told_when_asked_for_and_when_something_has_no_place() {
    let service = Service::with_hosts(Options::default()).await;
    let request = json!({"resources": {"memory": 60}, "constraints": ["zone = b", "disk = ssd"], "explain": true, "dry_run": true});
    let full = service.place(&request).await;
    let hosts = full.body["explanation"]["hosts"].as_array().unwrap();
    let reasons: Vec<usize> = hosts.iter().map(|host| host["reasons"].as_array().unwrap().len()).collect();
    assert_eq!(reasons, [2, 1], "{full:?}");
    let fine = service.place(&json!({"explain": true, "dry_run": true})).await;
    assert_eq!((fine.status, fine.body["explanation"]["hosts"].as_array().unwrap().len()), (200, 2));
    let some = service.place(&json!({"id": "some", "count": 3, "resources": {"memory": 60}})).await;
    assert_eq!(
        (&some.body["state"], some.body["explanation"]["hosts"].as_array().unwrap().len()),
        (&json!("partial"), 2)
    );
    service.end().await;
}

#[tokio::test]
async fn promises_are_known_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { ledger: Some(folder.path().join("ledger.ndjson")), ..Options::default() };
    let request = json!({"id": "kept", "resources": {"memory": 60}, "ports": ["80:80"], "constraints": ["zone = a"]});
    let service = Service::with_hosts(options.clone()).await;
    let first = service.place(&request).await;
    assert_eq!(first.status, 201, "{first:?}");
    assert_eq!(service.place(&json!({"id": "gone", "resources": {"memory": 5}})).await.status, 201);
    assert_eq!(service.ask("DELETE", "/v1/placements/gone", "").await.status, 200);
    let elsewhere = Options { state: Some(folder.path().into()), ..options.clone() };
    let second = Server::new(&elsewhere, Arc::new(Store::new(Snapshot::default())), &mut Registry::default());
    assert!(second.unwrap_err().to_string().contains("in use by another scheduler"));
    service.end().await;

    let service = Service::with_hosts(options).await;
    let again = service.place(&request).await;
    assert_eq!((again.status, &again.body["placements"]), (200, &first.body["placements"]), "{again:?}");
    let hosts = service.ask("GET", "/v1/hosts", "").await;
    assert_eq!(hosts.body["hosts"][0]["pools"]["memoryReservation"]["promised"], 60, "{hosts:?}");
    assert_eq!(hosts.body["hosts"][0]["ports"][0]["public"], 80);
    assert_eq!(service.ask("GET", "/v1/placements/gone", "").await.status, 404);
    service.end().await;
}

#[tokio::test]
async fn what_cannot_be_read_is_listed_and_deleted_by_force() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.ndjson");
    let bad = r#"{"id":"bad","made":1,"unplaced":0,"asked":{"image":"i"},"units":[{"host":"u","host_name":"h","stage":"begun","containers":[]}]}"#;
    std::fs::write(&path, format!("{bad}\n")).unwrap();
    let service = Service::with_hosts(Options { ledger: Some(path.clone()), ..Options::default() }).await;
    assert_eq!(service.place(&json!({"id": "good"})).await.status, 201);
    let all = service.ask("GET", "/v1/placements", "").await.body;
    let states: Vec<_> = all["placements"].as_array().unwrap().iter().map(|one| (&one["id"], &one["state"])).collect();
    assert_eq!(states, [(&json!("bad"), &json!("unreadable")), (&json!("good"), &json!("placed"))]);
    for (method, path, body) in [("POST", "/v1/placements", r#"{"id": "bad"}"#), ("DELETE", "/v1/placements/bad", "")] {
        let answer = service.ask(method, path, body).await;
        assert!(
            answer.status == 409 && answer.body["error"].as_str().unwrap().contains("rm --force bad"),
            "{answer:?}"
        );
    }
    assert_eq!(service.ask("DELETE", "/v1/placements/bad?force=true", "").await.status, 200);
    assert_eq!(service.ask("GET", "/v1/placements/bad", "").await.status, 404);
    service.end().await;
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(r#"{"id":"bad","over":true}"#), "{text}");
}

#[tokio::test]
async fn nothing_is_changed_on_loopback_without_the_token() {
    let service = Service::with_hosts(Options::default()).await;
    assert_eq!(service.place(&json!({"id": "kept"})).await.status, 201);
    let reserve = json!({"data": {"schedulerRequest": {"hostID": "h1", "resourceRequests": [{"resource": "memoryReservation", "amount": 5}]}}});
    let (reserve, wrong) = (reserve.to_string(), format!("authorization: Bearer {}\r\n", "0".repeat(64)));
    let none = "accept: application/json\r\n";
    for headers in [none, "accept: application/x-ndjson\r\n", &wrong] {
        for (method, path, body) in [
            ("POST", "/v1/placements", r#"{"id": "new", "image": "web"}"#),
            ("POST", "/v1/placements", r#"{"id": "new", "image": "web", "start": true, "dry_run": false}"#),
            ("DELETE", "/v1/placements/kept", ""),
            ("DELETE", "/v1/placements/kept?force=true", ""),
            ("POST", "/v1/events/scheduler.reserve", &reserve),
            ("POST", "/v1/events/scheduler.release", &reserve),
        ] {
            let answer = service.ask_with(method, path, body, headers).await;
            assert_eq!(answer.status, 401, "{method} {path}: {answer:?}");
            let file = service.state.path().join("scheduler.token");
            assert_eq!(answer.body["token_file"], json!(file), "{answer:?}");
            assert!(answer.body["expected"].as_str().unwrap().contains("scheduler.token"), "{answer:?}");
        }
    }
    let all = service.ask_with("GET", "/v1/placements", "", none).await;
    let ids: Vec<_> = all.body["placements"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
    assert_eq!(ids, ["kept"]);
    assert!(service.metrics().contains("berth_scheduler_reservations 1"), "{}", service.metrics());
    // Whoever only asks needs none.
    for (method, path, body) in [
        ("POST", "/v1/placements", r#"{"image": "web", "dry_run": true}"#),
        ("POST", "/v1/explain", r#"{"image": "web"}"#),
        ("POST", "/v1/what-if", r#"{"lose": ["h1"]}"#),
        ("POST", "/v1/rebalance", "{}"),
        ("POST", "/v1/events/scheduler.prioritize", r#"{"data":{"schedulerRequest":{}}}"#),
        ("GET", "/v1/hosts", ""),
        ("GET", "/v1/placements/kept", ""),
    ] {
        assert_eq!(service.ask_with(method, path, body, none).await.status, 200, "{method} {path}");
    }
    service.end().await;
}

#[tokio::test]
async fn a_scheduler_without_a_place_for_its_token_changes_nothing_and_says_why() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let service = Service::with_hosts(Options { state: Some(file.path().into()), ..Options::default() }).await;
    let answer = service.place(&json!({"id": "new"})).await;
    assert_eq!((answer.status, &answer.body["token_file"]), (401, &Value::Null), "{answer:?}");
    let expected = answer.body["expected"].as_str().unwrap();
    assert!(expected.contains("--state-dir or --token-file") && expected.contains("cannot store"), "{expected}");
    assert_eq!(service.ask("GET", "/v1/hosts", "").await.status, 200);
    service.end().await;
}

#[tokio::test]
async fn whoever_bears_the_token_may_ask() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let token = "0123456789abcdef0123456789abcdef";
    std::fs::write(file.path(), format!("{token}\n")).unwrap();
    let service = Service::with_hosts(Options { token_file: Some(file.path().into()), ..Options::default() }).await;
    for (headers, status) in [
        (String::new(), 401),
        (format!("authorization: Bearer {token}\r\n"), 200),
        (format!("authorization: bearer {token}\r\n"), 200),
        (format!("authorization: Bearer {token}0\r\n"), 401),
        (format!("authorization: Basic {token}\r\n"), 401),
        ("authorization: Bearer \r\n".to_owned(), 401),
    ] {
        let answer = service.ask_with("GET", "/v1/hosts", "", &headers).await;
        assert_eq!(answer.status, status, "{headers:?}");
    }
    service.end().await;

    std::fs::write(file.path(), "short").unwrap();
    let options = Options { token_file: Some(file.path().into()), ..Options::default() };
    let error = Server::new(&options, Arc::new(Store::new(Snapshot::default())), &mut Registry::default()).unwrap_err();
    assert!(error.to_string().contains("expected 32 to 1024"), "{error}");
}

#[tokio::test]
async fn nobody_does_more_than_the_policy_says_of_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let [tokens, policy] = ["tokens", "policy.yml"].map(|name| folder.path().join(name));
    let [ci, ops] = ["c".repeat(32), "o".repeat(32)];
    platform::file::replace_private(&tokens, format!("ci {ci}\nops {ops}\n").as_bytes()).unwrap();
    std::fs::write(
        &policy,
        "subjects:\n  token:ci: {stacks: [test], hosts: [two]}\n  token:ops: {bind_sources: [/srv]}\n",
    )
    .unwrap();
    let options = Options { token_file: Some(tokens), policy: Some(policy.clone()), ..Options::default() };
    let service = Service::with_hosts(options).await;
    let headers = |token: &str| format!("authorization: Bearer {token}\r\n");
    let place = async |token: &str, path: &str, request: &Value| {
        service.ask_with("POST", path, &request.to_string(), &headers(token)).await
    };
    let volume = json!({"id": "a", "stack": "test", "volumes": ["/srv/a:/a"]});
    let dry = json!({"stack": "test", "volumes": ["/srv/a:/a"], "dry_run": true});
    for (path, request) in [("/v1/placements", &volume), ("/v1/placements", &dry), ("/v1/explain", &volume)] {
        let answer = place(&ci, path, request).await;
        assert_eq!((answer.status, &answer.body["field"]), (403, &json!("volumes[0]")), "{answer:?}");
        let error = answer.body["error"].as_str().unwrap();
        assert!(error.contains("bind_sources do not allow token:ci to use /srv/a"), "{error}");
        assert!(answer.body["expected"].as_str().unwrap().contains("--policy FILE"), "{answer:?}");
    }
    assert_eq!(place(&ci, "/v1/placements", &json!({"id": "b", "stack": "shop"})).await.status, 403);
    assert_eq!(
        place(&ci, "/v1/placements", &json!({"id": "b", "stack": "test", "requested_host": "one"})).await.status,
        403
    );
    let answer = place(&ci, "/v1/placements", &json!({"id": "b", "stack": "test", "explain": true})).await;
    assert_eq!(answer.body["placements"][0]["host"]["name"], "two", "{answer:?}");
    assert!(answer.body.to_string().contains("the policy's hosts do not allow token:ci"), "{answer:?}");
    assert_eq!(place(&ops, "/v1/placements", &volume).await.status, 201);
    assert_eq!(place(&ops, "/v1/placements", &json!({"id": "c", "stack": "shop"})).await.status, 201);
    // Nor does it remove what is not of its stacks.
    assert_eq!(service.ask_with("DELETE", "/v1/placements/c", "", &headers(&ci)).await.status, 403);
    let event = r#"{"data": {"schedulerRequest": {"hostID": "h1"}}}"#;
    for name in ["reserve", "release"] {
        let path = format!("/v1/events/scheduler.{name}");
        assert_eq!(service.ask_with("POST", &path, event, &headers(&ci)).await.status, 403);
    }
    assert_eq!(service.ask_with("DELETE", "/v1/placements/a", "", &headers(&ci)).await.status, 200);
    assert_eq!(service.ask_with("DELETE", "/v1/placements/c", "", &headers(&ops)).await.status, 200);
    // It is read again when it changes; what is wrong changes nothing.
    for (text, status) in [
        ("subjects: {token:ops: {bind_sources: []}}\n", 403),
        ("subjects: 5\n", 403),
        ("default: {bind_sources: [/srv]}\n", 201),
    ] {
        std::fs::write(&policy, text).unwrap();
        for tries in 0.. {
            let answer = place(&ops, "/v1/placements", &volume).await;
            let _ = service.ask_with("DELETE", "/v1/placements/a", "", &headers(&ops)).await;
            if answer.status == status {
                break;
            }
            assert!(tries < 3000, "{text}: {answer:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    service.end().await;
}

#[tokio::test]
async fn each_act_and_each_refusal_leaves_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.ndjson");
    let service = Service::with_hosts(Options { audit_log: Some(path.clone()), ..Options::default() }).await;
    let stranger = "accept: application/json\r\n";
    let event = r#"{"data": {"schedulerRequest": {"hostID": "h1"}}}"#;
    for (method, at, body, headers) in [
        ("POST", "/v1/placements", r#"{"id": "a", "image": "web@sha256:00", "constraints": ["zone = b"]}"#, ""),
        ("POST", "/v1/placements", r#"{"id": "a", "image": "web@sha256:00", "constraints": ["zone = b"]}"#, ""),
        ("POST", "/v1/placements", r#"{"id": "b", "resources": {"memory": 1000}}"#, ""),
        ("POST", "/v1/placements", r#"{"id": "c", "volumes": ["/etc:/a"]}"#, ""),
        ("POST", "/v1/placements", r#"{"id": "d"}"#, stranger),
        ("POST", "/v1/placements", r#"{"id": "f", "count": -1}"#, ""),
        ("POST", "/v1/placements", "{", ""),
        ("POST", "/v1/placements", "{", stranger),
        ("DELETE", "/v1/placements/a?time=x", "", ""),
        // What changes nothing leaves none.
        ("POST", "/v1/placements", r#"{"id": "f", "count": -1, "dry_run": true}"#, ""),
        ("GET", "/v1/token", "", stranger),
        ("POST", "/v1/placements", r#"{"id": "e", "volumes": ["/etc:/a"], "dry_run": true}"#, ""),
        ("GET", "/v1/placements", "", stranger),
        ("DELETE", "/v1/placements/a", "", stranger),
        ("DELETE", "/v1/placements/a", "", ""),
        ("DELETE", "/v1/placements/a", "", ""),
        ("POST", "/v1/events/scheduler.release", event, stranger),
        ("POST", "/v1/events/scheduler.release", event, ""),
    ] {
        service.ask_with(method, at, body, headers).await;
    }
    service.end().await;
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let short = |line: &Value| {
        let word = |key: &str| line[key].as_str().unwrap_or("-").to_owned();
        assert!(word("time").ends_with('Z') && word("time").contains('T'), "{line}");
        ["action", "subject", "request", "outcome"].map(word).join(" ")
    };
    let shorts: Vec<_> = lines.iter().map(short).collect();
    assert_eq!(
        shorts,
        [
            "place token a placed",
            "place token a repeated",
            "place token b unplaceable",
            "place token c refused",
            "place anonymous d refused",
            "place token f invalid",
            "place token - invalid",
            "place anonymous - invalid",
            "remove token a invalid",
            "remove anonymous a refused",
            "remove token a released",
            "remove token a refused",
            "event anonymous - refused",
            "event token - done",
        ]
    );
    assert_eq!(lines[0]["hosts"], json!(["two"]));
    assert_eq!(lines[0]["images"], json!([{"name": "web@sha256:00", "digest": "sha256:00"}]));
    assert!(lines[3]["reason"].as_str().unwrap().contains("bind_sources"), "{}", lines[3]);
}

#[tokio::test]
async fn a_client_that_goes_away_changes_nothing_without_a_line() {
    const CLIENTS: u64 = 20;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.ndjson");
    let ledger = Some(folder.path().join("ledger.ndjson"));
    let options = Options { audit_log: Some(path.clone()), ledger, ..Options::default() };
    let mut there = 0;
    for (method, outcome) in [("POST", "placed"), ("DELETE", "released")] {
        let service = Service::with_hosts(options.clone()).await;
        for number in 0..CLIENTS {
            let (body, id) = match method {
                "POST" => (json!({ "id": format!("p{number}") }).to_string(), String::new()),
                _ => (String::new(), format!("/p{number}")),
            };
            let mut stream = TcpStream::connect(service.address).await.unwrap();
            let (length, token) = (body.len(), service.token());
            let head = format!(
                "{method} /v1/placements{id} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n{token}\r\n"
            );
            stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            // Some go away before it is begun, some while it is written.
            tokio::time::sleep(Duration::from_micros(200 * number)).await;
        }
        service.end().await;
        let service = Service::with_hosts(options.clone()).await;
        let left = service.ask("GET", "/v1/placements", "").await.body["placements"].as_array().unwrap().len();
        service.end().await;
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().filter(|line| line.contains(&format!(r#""outcome":"{outcome}""#))).count();
        assert_eq!(lines, left.abs_diff(there), "{method}: {text}");
        there = left;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_may_ask_at_once() {
    let service = Arc::new(Service::with_hosts(Options::default()).await);
    let asking = (0..60).map(|number| {
        let service = service.clone();
        tokio::spawn(async move {
            let request = json!({"id": format!("c-{number}"), "resources": {"memory": 5}});
            service.place(&request).await.status
        })
    });
    let mut placed = 0;
    for answer in asking.collect::<Vec<_>>() {
        match answer.await.unwrap() {
            201 => placed += 1,
            409 => {}
            other => panic!("{other}"),
        }
    }
    // Two hosts of 100 take 40 of 5, whoever comes first.
    assert_eq!(placed, 40);
    Arc::into_inner(service).unwrap().end().await;
}

#[tokio::test]
async fn requests_in_flight_are_finished_at_the_end() {
    let service = Service::with_hosts(Options::default()).await;
    let mut idle = TcpStream::connect(service.address).await.unwrap();
    let mut asking = TcpStream::connect(service.address).await.unwrap();
    let head = "POST /v1/placements HTTP/1.1\r\nhost: localhost\r\ncontent-length: 11\r\n\r\n{\"id\"";
    asking.write_all(head.as_bytes()).await.unwrap();
    // The server has read the head once it has answered somebody who came later.
    service.ask("GET", "/v1/hosts", "").await;
    service.stop.cancel();
    asking.write_all(b":\"late\"}").await.unwrap();
    // Eleven bytes make no JSON object here, so the answer is an error; it is an answer all the same.
    assert_eq!(read(&mut asking).await.status, 400);
    assert_eq!(idle.read(&mut [0]).await.unwrap_or(0), 0);
    service.end().await;
}

#[tokio::test]
async fn the_description_and_the_routes_agree() {
    let service = Service::with_hosts(Options::default()).await;
    let openapi = service.ask("GET", "/v1/openapi.json", "").await.body;
    for (path, methods) in openapi["paths"].as_object().unwrap() {
        let at = path.replace("{id}", "nobody").replace("{name}", "scheduler.prioritize");
        for method in ["get", "post", "put", "delete", "patch"] {
            let described = &methods[method];
            let answer = service.ask(&method.to_uppercase(), &at, "{}").await;
            if described.is_null() {
                assert_eq!(answer.status, 405, "{method} {path}");
            } else {
                assert_ne!(answer.status, 405, "{method} {path}");
                let status = answer.status.to_string();
                assert!(!described["responses"][&status].is_null(), "{method} {path} does not tell of {status}");
            }
        }
    }
    // The examples are fine requests.
    for path in ["/v1/placements", "/v1/explain", "/v1/what-if", "/v1/rebalance"] {
        let example = &openapi["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"];
        let answer = service.ask("POST", path, &example.to_string()).await;
        assert!(answer.status == 200 || answer.status == 409, "{path}: {answer:?}");
        assert!(answer.body["field"].is_null(), "{path}: {answer:?}");
    }
    service.end().await;
}
