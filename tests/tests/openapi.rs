//! The description of the metadata API, `/v1/openapi.json`: it is well-formed, and what it says is what the service does.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;

use serde_json::{Map, Value};
use tests::cluster::{CLIENT, ClusterFolder, shop_text, stamped};
use tests::wait::seconds;
use tests::{Follower, Launch, Service, http, repository};

/// The methods that a path may have operations for (`OpenAPI` 3.1, 4.8.9).
const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

/// The types of JSON Schema.
const TYPES: [&str; 7] = ["null", "boolean", "object", "array", "number", "string", "integer"];

/// What stands for the parameters of paths.
const PARAMETERS: [(&str, &str); 2] = [("{version}", "latest"), ("{path}", "self/container/name")];

/// Requests beside the plain one of each operation: path of the description, target, status.
const REQUESTS: [(&str, &str, u16); 13] = [
    ("/", "/", 200),
    ("/{version}", "/2015-07-25", 200),
    ("/{version}", "/latest?wait=true&value=x", 200),
    ("/{version}", "/2031-01-01", 404),
    ("/{version}/{path}", "/latest/services/web/name", 200),
    ("/{version}/{path}", "/latest/services/0/containers/1/labels", 200),
    ("/{version}/{path}", "/latest/version?wait=true&value=other&maxWait=1", 200),
    ("/{version}/{path}", "/latest/version?wait=true&maxWait=0", 200),
    ("/{version}/{path}", "/latest/services/nowhere", 404),
    ("/{version}/{path}", "/latest/a%zz", 400),
    ("/v1/changes", "/v1/changes", 200),
    ("/v1/changes", "/v1/changes?after=unknown", 200),
    ("/v1/openapi.json", "/v1/openapi.json", 200),
];

fn file() -> Value {
    serde_json::from_slice(&std::fs::read(repository().join("metadata/openapi.json")).unwrap()).unwrap()
}

fn map(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap_or_else(|| panic!("no map: {value}"))
}

/// What a value is, where it may be a reference.
fn resolved<'v>(root: &'v Value, value: &'v Value) -> &'v Value {
    let Some(reference) = value.get("$ref").and_then(Value::as_str) else { return value };
    let pointer = reference.strip_prefix('#').unwrap_or_else(|| panic!("{reference} leads elsewhere"));
    let found = root.pointer(pointer).unwrap_or_else(|| panic!("{reference} leads nowhere"));
    resolved(root, found)
}

/// All values in a value.
fn all(value: &Value) -> Vec<&Value> {
    let below: Vec<&Value> = match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(map) => map.values().collect(),
        _ => Vec::new(),
    };
    std::iter::once(value).chain(below.into_iter().flat_map(all)).collect()
}

/// The operations: path, method, operation.
fn operations(root: &Value) -> Vec<(&str, &str, &Value)> {
    let paths = map(&root["paths"]).iter();
    let operations = paths.flat_map(|(path, item)| {
        let methods = map(item).iter().filter(|(key, _)| METHODS.contains(&key.as_str()));
        methods.map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
    });
    operations.collect()
}

fn start(file: &std::path::Path) -> (Service, SocketAddr) {
    let mut service = Launch::metadata(file).start();
    service.ready();
    let address = service.address();
    (service, address)
}

/// Status and media type of an answer, of which only the head is read: some answers have no end.
fn head(method: &str, target: &str, to: SocketAddr) -> (u16, String) {
    let source = Some(CLIENT.parse().unwrap());
    let mut stream = http::connect(source, to, seconds(10)).unwrap();
    let request = format!("{} {target} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n", method.to_uppercase());
    stream.write_all(request.as_bytes()).unwrap();
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap_or_else(|error| panic!("{method} {target}: {error}"));
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let kind = head.lines().find_map(|line| Some(line.to_ascii_lowercase().strip_prefix("content-type:")?.to_owned()));
    let kind = kind.unwrap_or_default();
    (status, kind.split(';').next().unwrap_or_default().trim().to_owned())
}

/// The answer to a request is one that the description has for the operation.
fn check(root: &Value, (path, method): (&str, &str), target: &str, to: SocketAddr) -> u16 {
    let (status, kind) = head(method, target, to);
    let operation = &root["paths"][path][method];
    let response = operation["responses"].get(status.to_string());
    let response = response.unwrap_or_else(|| panic!("{method} {target}: {status} is not described for {path}"));
    let content = resolved(root, response).get("content").map(map);
    let kinds: Vec<&String> = content.into_iter().flat_map(Map::keys).collect();
    if kinds.is_empty() {
        assert_eq!(kind, "", "{method} {target} has content that is not described");
    } else {
        assert!(kinds.contains(&&kind), "{method} {target}: {kind} is none of {kinds:?}");
    }
    status
}

#[test]
fn the_description_is_well_formed() {
    let root = file();
    assert!(root["openapi"].as_str().unwrap().starts_with("3.1."));
    assert!(root["info"]["title"].is_string() && root["info"]["version"].is_string());
    for value in all(&root) {
        resolved(&root, value);
        let types = value.get("type").into_iter().flat_map(all);
        for kind in types.filter_map(Value::as_str) {
            assert!(TYPES.contains(&kind), "{kind} is no type");
        }
    }
    let mut names = BTreeSet::new();
    for (path, method, operation) in operations(&root) {
        let told = format!("{method} {path}");
        assert!(path.starts_with('/'), "{told}");
        assert!(names.insert(operation["operationId"].as_str().unwrap()), "{told}: its operationId is another's too");
        let responses = map(&operation["responses"]);
        assert!(!responses.is_empty(), "{told}");
        for (status, response) in responses {
            assert!(status.parse().is_ok_and(|status: u16| (100..600).contains(&status)), "{told}: {status}");
            let response = resolved(&root, response);
            assert!(response["description"].is_string(), "{told}: {status}");
            for (kind, media) in response.get("content").into_iter().flat_map(map) {
                assert!(kind.contains('/') && media["schema"].is_object(), "{told}: {status} {kind}");
            }
        }
        let shared = root["paths"][path]["parameters"].as_array();
        let own = operation["parameters"].as_array();
        let parameters: Vec<_> = shared.into_iter().chain(own).flatten().map(|it| resolved(&root, it)).collect();
        for parameter in &parameters {
            let place = parameter["in"].as_str().unwrap();
            assert!(["path", "query", "header", "cookie"].contains(&place), "{told}: {place}");
            assert!(parameter["schema"].is_object(), "{told}: {parameter}");
        }
        let declared: BTreeSet<_> = parameters
            .iter()
            .filter(|parameter| parameter["in"] == "path" && parameter["required"] == true)
            .map(|parameter| parameter["name"].as_str().unwrap())
            .collect();
        let used = path.split('{').skip(1).map(|rest| rest.split('}').next().unwrap()).collect();
        assert_eq!(declared, used, "{told}");
    }
}

#[test]
fn the_service_shows_the_description_and_does_what_it_says() {
    let folder = ClusterFolder::new(stamped(1));
    let (_service, address) = start(&folder.file());
    let root = http::get("/v1/openapi.json").ask(address).value();
    assert_eq!(root, file());
    for (path, method, _) in operations(&root) {
        let target = PARAMETERS.iter().fold(path.to_owned(), |target, (name, value)| target.replace(name, value));
        assert!(!target.contains('{'), "{path} has a parameter that PARAMETERS does not know");
        check(&root, (path, method), &target, address);
    }
    for (path, target, status) in REQUESTS {
        assert_eq!(check(&root, (path, "get"), target, address), status, "{target}");
    }
    // Without data: the same, where the answer is another.
    let folder = ClusterFolder::empty();
    for (when_empty, path, status) in
        [("not-found", "/{version}", 404), ("not-found", "/v1/changes", 503), ("unavailable", "/{version}/{path}", 503)]
    {
        let mut service = Launch::metadata(&folder.file()).with("--when-empty", when_empty).start();
        let target = PARAMETERS.iter().fold(path.to_owned(), |target, (name, value)| target.replace(name, value));
        assert_eq!(check(&root, (path, "get"), &target, service.address()), status, "{target} {when_empty}");
    }
}

/// Where `value` is not what a schema says, as a path with a reason.
fn unfit(root: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let schema = resolved(root, schema);
    let is = |kind: &str| match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64(),
        "number" => value.is_number(),
        other => panic!("{other} is no type"),
    };
    let types = match &schema["type"] {
        Value::String(kind) => vec![kind.as_str()],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let mut found = Vec::new();
    if !types.is_empty() && !types.iter().any(|kind| is(kind)) {
        found.push(format!("{at}: {value} is none of {types:?}"));
    }
    found.extend(outside(schema, value, at));
    let fits = |schema: &&Value| unfit(root, schema, value, at).is_empty();
    for (key, fine) in [("oneOf", |count| count == 1), ("anyOf", |count| count > 0)] as [(&str, fn(usize) -> bool); 2] {
        let choices = schema[key].as_array();
        if choices.is_some_and(|choices| !fine(choices.iter().filter(fits).count())) {
            found.push(format!("{at}: {value} is not {key} what it may be"));
        }
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        found.extend(unfit(root, part, value, at));
    }
    if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
        found.push(format!("{at}: {value} is none of {}", schema["enum"]));
    }
    if let Some(object) = value.as_object() {
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        found.extend(required.filter(|key| !object.contains_key(*key)).map(|key| format!("{at}: no {key}")));
        if let Some(properties) = schema["properties"].as_object() {
            for (key, value) in object {
                match properties.get(key) {
                    Some(schema) => found.extend(unfit(root, schema, value, &format!("{at}/{key}"))),
                    None if schema["additionalProperties"].is_object() => {
                        found.extend(unfit(root, &schema["additionalProperties"], value, &format!("{at}/{key}")));
                    }
                    // A part of a description need not tell of everything.
                    None if schema["type"] == "object" => found.push(format!("{at}: {key} is not described")),
                    None => {}
                }
            }
        }
    }
    if let Some(items) = value.as_array() {
        let bound = |key: &str| schema[key].as_u64().and_then(|bound| usize::try_from(bound).ok());
        if bound("minItems").is_some_and(|min| items.len() < min)
            || bound("maxItems").is_some_and(|max| items.len() > max)
        {
            found.push(format!("{at}: {} items", items.len()));
        }
        if let Some(schema) = schema.get("items") {
            let below = items.iter().enumerate();
            found.extend(below.flat_map(|(index, item)| unfit(root, schema, item, &format!("{at}/{index}"))));
        }
    }
    found
}

/// Where a text or a number is outside of its bounds.
fn outside(schema: &Value, value: &Value, at: &str) -> Option<String> {
    let bound = |key: &str| schema[key].as_i64();
    let length = value.as_str().and_then(|text| i64::try_from(text.chars().count()).ok());
    let low = |value: Option<i64>, key: &str| value.zip(bound(key)).is_some_and(|(value, least)| value < least);
    let high = |value: Option<i64>, key: &str| value.zip(bound(key)).is_some_and(|(value, most)| value > most);
    let number = value.as_i64();
    let wrong =
        low(length, "minLength") || high(length, "maxLength") || low(number, "minimum") || high(number, "maximum");
    wrong.then(|| format!("{at}: {value} is outside of its bounds"))
}

/// Bodies for the scheduler, and whether they are as described.
const BODIES: [(&str, &str, bool); 41] = [
    ("/v1/rebalance", r#"{"max_moves": 1}"#, true),
    ("/v1/rebalance", r#"{"max_moves": null}"#, false),
    ("/v1/rebalance", r#"{"max_moves": 101}"#, false),
    ("/v1/evacuate", r#"{"host": ""}"#, false),
    ("/v1/evacuate", r#"{"host": "nobody", "dry_run": 1}"#, false),
    ("/v1/evacuate", r#"{"host": "nobody", "dry_run": true}"#, true),
    ("/v1/evacuate", r#"{"host": "nobody", "dry_run": true, "drain": true}"#, true),
    ("/v1/logs", r#"{"of": ""}"#, false),
    ("/v1/logs", r#"{"of": "nobody", "tail": -1}"#, false),
    ("/v1/exec", r#"{"of": "nobody", "command": []}"#, false),
    ("/v1/restart", r#"{"of": "nobody", "tail": 1}"#, false),
    ("/v1/stop", "{}", false),
    ("/v1/images/prune", r#"{"dry_run": true}"#, false),
    ("/v1/images/prune", r#"{"keep_last": 1, "dry_run": true}"#, true),
    (
        "/v1/explain",
        r#"{"healthcheck": {"test": "true", "interval": 1000}, "networks": ["a", {"name": "b", "aliases": ["c"]}]}"#,
        true,
    ),
    ("/v1/explain", r#"{"healthcheck": {"interval": 0}}"#, false),
    ("/v1/explain", r#"{"count": null}"#, false),
    ("/v1/explain", r#"{"requested_host": ""}"#, false),
    ("/v1/explain", r#"{"requested_host": "win-2022"}"#, true),
    ("/v1/explain", r#"{"image": {"name": "a", "platforms": [{"os": "linux", "os_features": ["a"]}]}}"#, true),
    ("/v1/explain", r#"{"image": {"name": "a", "platforms": [{"os": "linux", "os_features": [true, 1]}]}}"#, false),
    ("/v1/explain", r#"{"image": {"name": "a", "platforms": [{"os": "linux", "variant": 8}]}}"#, false),
    ("/v1/explain", r#"{"labels": {"a": null}, "command": "", "environment": {"A": null}}"#, true),
    ("/v1/explain", r#"{"tolerations": [{"key": "gpu", "value": null}]}"#, false),
    ("/v1/explain", r#"{"tolerations": [{}]}"#, false),
    ("/v1/explain", r#"{"tolerations": [{"operator": "Exists"}]}"#, true),
    ("/v1/explain", r#"{"limits": {"memory": "512MiB", "milli_cpu": 500}}"#, true),
    ("/v1/explain", r#"{"limits": {"memory": -1}}"#, false),
    ("/v1/what-if", "{}", false),
    ("/v1/what-if", r#"{"lose": []}"#, false),
    ("/v1/what-if", r#"{"lose": "win-2022"}"#, true),
    ("/v1/what-if", r#"{"lose": [], "add": [{"count": 2}]}"#, true),
    ("/v1/what-if", r#"{"add": [{"labels": 5}]}"#, false),
    ("/v1/events/scheduler.prioritize", r#"{"data": {"schedulerRequest": {}}}"#, true),
    ("/v1/events/scheduler.prioritize", r#"{"name": null, "data": {"schedulerRequest": {"force": null}}}"#, true),
    ("/v1/events/scheduler.prioritize", r#"{"name": 5, "data": {"schedulerRequest": {}}}"#, false),
    ("/v1/events/scheduler.prioritize", r#"{"data": {"schedulerRequest": {"force": {}}}}"#, false),
    ("/v1/events/scheduler.reserve", r#"{"data": {"schedulerRequest": {}}}"#, false),
    ("/v1/events/scheduler.reserve", r#"{"data": {"schedulerRequest": {"hostID": null}}}"#, false),
    ("/v1/events/scheduler.reserve", r#"{"data": {"schedulerRequest": {"hostID": "nobody"}}}"#, true),
    ("/v1/events/scheduler.release", r#"{"data": {"schedulerRequest": {}}}"#, true),
];

#[test]
fn the_scheduler_refuses_what_its_description_does_not_allow_and_nothing_else() {
    let files = ClusterFolder::new(shop_text());
    let mut scheduler = Launch::scheduler().with("--source", format!("file:{}", files.file().display())).start();
    scheduler.ready();
    let server = scheduler.address();
    let root = http::get("/v1/openapi.json").ask(server).value();
    for (path, body, fine) in BODIES {
        let schema = &root["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        let found = unfit(&root, schema, &serde_json::from_str(body).unwrap(), "");
        assert_eq!(found.is_empty(), fine, "{path} {body}: {found:?}");
        let answer = http::post(path, body).ask(server);
        assert_eq!(answer.status, if fine { 200 } else { 400 }, "{path} {body}: {}", answer.text());
    }
}

#[test]
fn lines_of_changes_are_as_described() {
    let root = file();
    let schema = serde_json::json!({"$ref": "#/components/schemas/ChangeLine"});
    let folder = ClusterFolder::new(stamped(1));
    let (_service, address) = start(&folder.file());
    let mut follower = Follower::new(address);
    follower.told();
    folder.replace(stamped(2));
    follower.told();
    let mut again = follower.again(address);
    again.told();
    let received = follower.received + &again.received;
    assert!(received.contains("\"removed\":[[") && received.contains("\"heartbeat\":true"), "{received}");
    for line in received.lines() {
        let found = unfit(&root, &schema, &serde_json::from_str(line).unwrap(), "");
        assert!(found.is_empty(), "{found:#?}");
    }
    for (wrong, expected) in [
        (r#"{"heartbeat": true}"#, ": no revision"),
        (r#"{"revision": 1}"#, r#"/revision: 1 is none of ["string"]"#),
        (r#"{"revision": "1", "color": 1}"#, ": color is not described"),
        (r#"{"revision": "1", "removed": [["a"]]}"#, "/removed/0: 1 items"),
        (r#"{"revision": "1", "put": [{"kind": "cat", "object": {}}]}"#, "/put/0/kind: \"cat\" is none of "),
    ] {
        let found = unfit(&root, &schema, &serde_json::from_str(wrong).unwrap(), "");
        assert!(found.len() == 1 && found[0].starts_with(expected), "{wrong}: {found:?}");
    }
}
