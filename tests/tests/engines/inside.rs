//! What people do inside containers is for those whose containers they are: by stack, also one that only a label names, and by id.

use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};
use tests::eventually;
use tests::http::{self, Response};
use tests::wait::seconds;

use super::LIMIT;
use super::hosts::{Engines, IMAGE};

/// Most requests of one subject that read logs or run commands at once.
const PLACES: usize = 16;

/// The tokens of operators and of a tenant, who has what is of no stack and of stack a.
const OPERATOR: &str = "oooooooooooooooooooooooooooooooooooooooo";
const TENANT: &str = "tttttttttttttttttttttttttttttttttttttttt";

fn ask(server: SocketAddr, token: &str, path: &str, body: &Value) -> Response {
    let request = http::post(path, body.to_string()).header("Authorization", &format!("Bearer {token}"));
    request.within(seconds(30)).ask(server)
}

/// A request of whose answer no more than the beginning is read.
fn hold(server: SocketAddr, token: &str, path: &str, body: &Value) -> TcpStream {
    let body = body.to_string();
    let mut stream = http::connect(None, server, seconds(10)).unwrap();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: {server}\r\nAuthorization: Bearer {token}\r\nAccept: application/x-ndjson\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200", "{path} {body}");
    stream
}

/// The end of the log of what failed is part of the reason.
fn logs_are_for_who_may_read_them(engines: &Engines, server: SocketAddr) {
    let fails = json!({ "service": "w", "image": IMAGE, "command": ["/bin/sh", "-c", "echo LOG-OF-B; exit 3"] });
    let stack = json!({ "services": [fails] }).to_string();
    let put = http::Request::new("PUT", "/v1/stacks/b").content(stack);
    let put = put.header("Authorization", &format!("Bearer {OPERATOR}")).within(seconds(30)).ask(server);
    assert_eq!(put.status, 200, "{}", put.text());
    let show = |token: &str| {
        let all = ["/v1/stacks", "/v1/stacks/b", "/v1/stacks/b/history"]
            .map(|path| http::get(path).header("Authorization", &format!("Bearer {token}")).ask(server).text());
        all.concat()
    };
    eventually("it has failed", LIMIT, || show(OPERATOR).contains("LOG-OF-B").then_some(()));
    // It is started once more before it has failed for good, and then the reason is not shown for a moment.
    eventually("it is said who may read the log", LIMIT, || {
        let shown = show(TENANT);
        assert!(!shown.contains("LOG-OF-B"), "{shown}");
        shown.contains("who may read it").then_some(())
    });
    let differs = ask(server, TENANT, "/v1/stacks/b/history", &json!({ "from": 1, "to": 1 }));
    assert_eq!(differs.status, 403, "{}", differs.text());
    let audit = std::fs::read_to_string(engines.files.path("state").join("audit.ndjson")).unwrap();
    assert!(!audit.contains("LOG-OF-B") && audit.contains("who may read it"), "{audit}");
}

#[test]
fn nobody_looks_into_containers_of_a_stack_that_a_label_or_a_name_hides_or_takes_all_places() {
    let Some(engines) = Engines::start() else { return };
    let (tokens, policy) = (engines.files.path("tokens"), engines.files.path("tenants.json"));
    std::fs::write(&tokens, format!("ops {OPERATOR}\nt {TENANT}\n")).unwrap();
    std::fs::set_permissions(&tokens, Permissions::from_mode(0o600)).unwrap();
    let rules = json!({ "subjects": {
        "token:ops": { "exec": "*" }, "token:t": { "stacks": ["", "a"], "exec": ["", "a"] },
    } });
    std::fs::write(&policy, rules.to_string()).unwrap();
    let mut scheduler =
        engines.launch().without("--policy").with("--policy", &policy).with("--token-file", &tokens).start();
    scheduler.ready();
    let server = scheduler.address();
    let place = |token: &str, mut request: Value| {
        for (key, value) in [("start", json!(true)), ("image", json!(IMAGE)), ("command", json!(["/bin/sleep", "600"]))]
        {
            request[key] = value;
        }
        request["requested_host"] = "one".into();
        let placed = ask(server, token, "/v1/placements", &request);
        assert_eq!(placed.status, 201, "{}", placed.text());
    };
    place(OPERATOR, json!({ "id": "bank", "name": "bank", "labels": { "com.docker.compose.project": "b" } }));
    place(OPERATOR, json!({ "id": "plain", "name": "other", "stack": "b" }));
    place(TENANT, json!({ "id": "mine", "name": "plain", "stack": "a" }));

    // A label makes a container one of a stack as a field does.
    let one = &engines.both[0].engine;
    let begun = one.docker(&["inspect", "--format", "{{.State.StartedAt}}", "bank"]);
    for (path, body) in [
        ("/v1/logs", json!({ "of": "bank" })),
        ("/v1/exec", json!({ "of": "bank", "command": ["/bin/sh", "-c", ":"] })),
        ("/v1/inspect", json!({ "of": "bank" })),
        ("/v1/restart", json!({ "of": "bank" })),
        ("/v1/stop", json!({ "of": "bank" })),
    ] {
        let refused = ask(server, TENANT, path, &body);
        assert_eq!(refused.status, 403, "{path}: {}", refused.text());
        assert!(refused.text().contains("labels.com.docker.compose.project"), "{path}: {}", refused.text());
    }
    assert_eq!(one.docker(&["inspect", "--format", "{{.State.StartedAt}}", "bank"]), begun);
    assert_eq!(ask(server, OPERATOR, "/v1/inspect", &json!({ "of": "bank" })).status, 200);

    // Whose container has the name of another one's placement is not in its place.
    let inside = ask(server, OPERATOR, "/v1/inspect", &json!({ "of": "plain" })).value();
    let found: Vec<_> = inside["containers"].as_array().unwrap().iter().map(|one| one["container"].clone()).collect();
    assert_eq!(found, ["other"], "{inside}");
    assert_eq!(ask(server, TENANT, "/v1/logs", &json!({ "of": "plain" })).status, 403);
    assert_eq!(ask(server, TENANT, "/v1/logs", &json!({ "of": "mine" })).status, 200);

    logs_are_for_who_may_read_them(&engines, server);

    // A second restart is refused while the first one is running.
    let restart = json!({ "of": "mine" });
    // Its program ignores the signal, so it takes its whole grace.
    let first = hold(server, TENANT, "/v1/restart", &restart);
    let second = ask(server, TENANT, "/v1/restart", &restart);
    assert!(second.status == 409 && second.text().contains("another request"), "{}", second.text());
    drop(first);
    eventually("the first one is over", LIMIT, || {
        (ask(server, TENANT, "/v1/restart", &restart).status == 200).then_some(())
    });

    // One subject takes no place of another one, and gives its own back when its client leaves, though the command goes on.
    let logs = json!({ "of": "mine", "follow": true });
    let sleeps = json!({ "of": "mine", "command": ["/bin/sleep", "600"] });
    for (path, body) in [("/v1/logs", &logs), ("/v1/exec", &sleeps)] {
        let held: Vec<TcpStream> = (0..PLACES).map(|_| hold(server, TENANT, path, body)).collect();
        let tenant = || ask(server, TENANT, "/v1/logs", &json!({ "of": "mine" }));
        let refused =
            eventually("its places are taken", LIMIT, || Some(tenant()).filter(|answer| answer.status != 200));
        assert!(refused.status == 503 && refused.text().contains("at most 16"), "{path}: {}", refused.text());
        assert_eq!(ask(server, OPERATOR, "/v1/logs", &json!({ "of": "bank" })).status, 200, "{path}");
        drop(held);
        eventually("its places are free", LIMIT, || (tenant().status == 200).then_some(()));
    }
}
