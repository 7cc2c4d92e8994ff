//! Who may do what: tokens and the policy.

use std::sync::Arc;
use std::time::Duration;

use model::Snapshot;
use prometheus_client::registry::Registry;
use scheduler::{Options, Server};
use serde_json::{Value, json};
use source::Store;

use crate::service::Service;

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
    // A request that changes nothing needs none.
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
        "subjects:\n  token:ci: {stacks: [test], hosts: [two]}\n  token:ops: {bind_sources: [/srv/a]}\n",
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
    let services = json!({"services": [{"service": "web", "image": "web"}]});
    for (stack, status) in [("shop", 403), ("test", 200)] {
        let plan = place(&ci, &format!("/v1/stacks/{stack}/plan"), &services).await;
        assert_eq!(plan.status, status, "{plan:?}");
    }
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
        ("default: {bind_sources: [/srv/a]}\n", 201),
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
