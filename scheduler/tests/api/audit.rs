//! What the audit log says of requests.

use std::time::Duration;

use scheduler::Options;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::service::Service;

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
async fn each_change_of_a_stack_leaves_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.ndjson");
    let service = Service::with_hosts(Options { audit_log: Some(path.clone()), ..Options::default() }).await;
    let stranger = "accept: application/json\r\n";
    let one = r#"{"services": [{"service": "web", "image": "web:1"}]}"#;
    let two = r#"{"services": [{"service": "web", "image": "web:2"}], "expect": 2}"#;
    let evil = r#"{"services": [{"service": "web", "image": "web:3", "volumes": ["/etc:/a"]}]}"#;
    for (method, at, body, headers) in [
        ("PUT", "/v1/stacks/shop", one, ""),
        ("POST", "/v1/stacks/shop/scale", r#"{"web": 2}"#, ""),
        ("PUT", "/v1/stacks/shop", two, ""),
        ("PUT", "/v1/stacks/shop", two, ""),
        ("PUT", "/v1/stacks/shop", evil, ""),
        ("PUT", "/v1/stacks/shop", one, stranger),
        ("PUT", "/v1/stacks/shop", "{", ""),
        ("POST", "/v1/stacks/shop/rollback", r#"{"to": 1}"#, ""),
        ("POST", "/v1/stacks/shop/rollback", r#"{"to": 9}"#, ""),
        ("POST", "/v1/stacks/shop/pause", "", ""),
        ("POST", "/v1/stacks/shop/resume", "", ""),
        ("POST", "/v1/stacks/shop/confirm", "", ""),
        // What changes nothing leaves none.
        ("POST", "/v1/stacks/shop/plan", one, ""),
        ("GET", "/v1/stacks/shop", "", stranger),
        ("GET", "/v1/stacks/shop/history", "", stranger),
        ("DELETE", "/v1/stacks/shop", "", stranger),
        ("DELETE", "/v1/stacks/shop", "", ""),
    ] {
        service.ask_with(method, at, body, headers).await;
    }
    service.end().await;
    let text = std::fs::read_to_string(&path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let lines: Vec<Value> = lines.filter(|line| line["action"] == "stack").collect();
    let short = |line: &Value| {
        let word = |key: &str| line[key].as_str().unwrap_or("-").to_owned();
        let reason = word("reason");
        let reason = if reason.starts_with("revision") { format!(" {reason}") } else { String::new() };
        ["subject", "request", "outcome"].map(word).join(" ") + &reason
    };
    assert_eq!(
        lines.iter().map(short).collect::<Vec<_>>(),
        [
            "token stacks/shop wanted revision 1",
            "token stacks/shop scaled revision 2",
            "token stacks/shop wanted revision 3",
            "token stacks/shop refused",
            "token stacks/shop refused",
            "anonymous stacks/shop refused",
            "token stacks/shop invalid",
            "token stacks/shop rolled back revision 4",
            "token stacks/shop refused",
            "token stacks/shop paused revision 4",
            "token stacks/shop resumed revision 4",
            "token stacks/shop confirmed revision 4",
            "anonymous stacks/shop refused",
            "token stacks/shop removing revision 4",
        ]
    );
    assert!(lines[3]["reason"].as_str().unwrap().contains("at revision 3, not 2"), "{}", lines[3]);
    assert!(lines[4]["reason"].as_str().unwrap().contains("bind_sources"), "{}", lines[4]);
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
