//! The API over real sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod audit;
mod credentials;
mod service;

use std::sync::Arc;

use model::Snapshot;
use prometheus_client::registry::Registry;
use scheduler::{Options, Server};
use serde_json::json;
use source::Store;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::service::{Service, read};

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
        r#"berth_scheduler_stacks{state="done"} 0"#,
        r#"berth_scheduler_stacks{state="failed"} 0"#,
        "berth_scheduler_stack_units_wanted 0",
        "berth_scheduler_stack_units_healthy 0",
        "berth_scheduler_stack_units_evicted 0",
        "berth_scheduler_evictions_total 0",
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
    // Two hosts of 100 take 40 of 5, in any order.
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
    // The server has read the head once it has answered a later request.
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
