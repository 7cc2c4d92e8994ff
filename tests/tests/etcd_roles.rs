//! Who may write which key in etcd, and who believes it: every cell of the table in docs/security.md, with etcd's own
//! users and roles.
//!
//! Debian's etcd-server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::net::SocketAddr;

use etcd::{EtcdClient, EtcdError, EtcdOptions};
use model::network_key::SUBNET_LABEL;
use serde_json::{Value, json};
use tests::etcd::{Etcd, base64};
use tests::publication::{SOON, options, runtime};
use tests::{Executable, Launch, eventually, http};

/// The users, with what each may write below the prefix besides reading all of it.
const USERS: [(&str, &[&str]); 5] = [
    ("operator", &["documents/", "empty", "intents/", "config/", "claims/"]),
    ("host-a", &["hosts/a/", "votes/a/", "health/a/", "claims/host/a"]),
    ("host-b", &["hosts/b/", "votes/b/", "health/b/", "claims/host/b"]),
    ("scheduler", &["ledger/"]),
    ("reader", &[]),
];

/// A key of each row of the table, with a harmless value.
const ROWS: [(&str, &str); 25] = [
    ("documents/d", r#"{"services": [{"name": "db", "stack": "data", "vip": "10.1.1.1", "token": "of-document"}]}"#),
    ("documents/owners", r#"{"tenants": {"red": {"hosts": ["b"], "stacks": ["red"]}}}"#),
    ("empty", ""),
    ("hosts/a/host", r#"{"name": "a"}"#),
    ("hosts/a/containers/a-one", r#"{"name": "a-one"}"#),
    ("hosts/b/host", r#"{"name": "b", "agent_ip": "192.0.2.2"}"#),
    ("hosts/b/containers/u1", r#"{"name": "b-one", "uuid": "u1", "service": "data/db", "primary_ip": "10.42.0.2"}"#),
    ("ledger/placements/p", "{}"),
    ("ledger/key", "{}"),
    ("ledger/hosts/b", "{}"),
    ("ledger/ports/b/80", "{}"),
    ("ledger/names/b/web", "{}"),
    ("ledger/freed", "{}"),
    ("ledger/schedulers/s", "{}"),
    ("another/key", "{}"),
    ("claims/host/a", r#"{"subnet": "10.42.7.0/24"}"#),
    ("claims/subnet/10.42.7.0-24", r#"{"host": "b"}"#),
    ("config/network", r#"{"cidr": "10.42.0.0/16"}"#),
    ("config/network.accept", r#"{"until": 1}"#),
    ("hosts/a/password", "{}"),
    ("intents/a", r#"{"labels": {"zone": "operators"}}"#),
    ("intents/b", r#"{"labels": {"io.berth.admin/vip": "yes"}}"#),
    ("config/labels.reserved", r#"{"keys": ["team/*"]}"#),
    ("votes/a/b/u1", "{}"),
    ("health/a/b/u1", "{}"),
];

/// Keys that belong to one that comes before them in [`ROWS`], so that its containers have their service.
const SERVICES: [(&str, &str); 2] = [
    ("hosts/b/services/data/db", r#"{"name": "db", "stack": "data"}"#),
    ("hosts/b/services/red/web", r#"{"name": "web", "stack": "red", "links": {"data/db": "db"}}"#),
];

/// What is reported of the lies.
const REPORTED: [&str; 5] = [
    "hosts/a/uuid: no host chooses its own",
    "hosts/b has the uuid u1 too",
    "hosts/a has the uuid u1 too",
    "the stack belongs to red",
    "hosts/a/labels/team/x: only operators give this label",
];

#[test]
fn a_role_writes_its_own_keys_and_nobody_believes_it_about_others() {
    let Some(etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let folder = tempfile::tempdir().unwrap();
    let password_file = folder.path().join("password");
    fs::write(&password_file, "s3cret\n").unwrap();
    enable_users(&etcd);
    let client = |user: &str| {
        let password_file = Some(password_file.clone());
        EtcdClient::new(EtcdOptions { user: Some(user.into()), password_file, ..options(&etcd.urls()) }).unwrap()
    };
    let put = |client: &EtcdClient, path: &str, value: &str| match runtime.block_on(client.put(
        key(path).as_bytes(),
        value.as_bytes(),
        0,
    )) {
        Ok(_) => true,
        Err(EtcdError::Refused(_)) => false,
        Err(other) => panic!("{path}: {other}"),
    };

    // Every cell: who may write what. Whoever may, writes the value of the row.
    for (user, paths) in USERS {
        let client = client(user);
        assert!(runtime.block_on(client.get(key("documents/d").as_bytes())).is_ok(), "{user} reads");
        for (path, value) in ROWS {
            let allowed = paths.iter().any(|own| if own.ends_with('/') { path.starts_with(own) } else { path == *own });
            assert_eq!(put(&client, path, value), allowed, "{user} writes {path}");
        }
    }
    let (host_a, host_b, scheduler) = (client("host-a"), client("host-b"), client("scheduler"));
    for (path, value) in SERVICES {
        assert!(put(&host_b, path, value));
    }
    let red = r#"{"name": "b-red", "uuid": "u2", "service": "red/web", "primary_ip": "10.42.0.3"}"#;
    assert!(put(&host_b, "hosts/b/containers/u2", red));

    let mut metadata = Launch::served(Executable::Metadata)
        .with("--source", format!("etcd:{}", etcd.urls()))
        .with("--etcd-user", "reader")
        .with("--etcd-password-file", &password_file)
        .logged()
        .start();
    metadata.ready();
    let address = metadata.address();
    let told = || shown(address);
    let before = eventually("all of it is told", SOON, || {
        let told = told();
        let known = told[1][0][0] == "u1" && told[1][0][2] == told[0][0][0];
        (known && told[6] == json!(["b-red"])).then_some(told)
    });
    assert_eq!(before[0][0][1], "192.0.2.2");
    assert_eq!(before[3][0][0], "10.1.1.1");

    // Within its own keys host a says what it likes; nobody believes what it says of others.
    let evil = json!({
        "vip": "192.0.2.66", "token": "stolen", "kind": "externalService", "hostname": "evil.example.org",
        "external_ips": ["192.0.2.66"], "metadata": {"x": "evil"}, "uuid": "0", "create_index": 0,
    });
    let service = |name: &str, stack: &str| {
        let mut service = evil.clone();
        service["name"] = name.into();
        service["stack"] = stack.into();
        service["links"] = json!({"evil/x": "db"});
        service.to_string()
    };
    let container = |name: &str, uuid: &str, service: &str| {
        json!({"name": name, "uuid": uuid, "service": service, "host": "b", "primary_ip": "192.0.2.77"}).to_string()
    };
    for (path, value) in [
        (
            "hosts/a/host",
            json!({
                "name": "a", "uuid": before[0][0][0], "agent_ip": "192.0.2.66",
                "labels": {"io.berth.admin/vip": "evil", "team/x": "evil", "zone": "own", "plain": "own"},
            })
            .to_string(),
        ),
        ("hosts/a/services/data/db", service("db", "data")),
        ("hosts/a/services/red/web", service("web", "red")),
        ("hosts/a/services/RED/WEB", service("WEB", "RED")),
        ("hosts/a/containers/u1", container("stolen", "u1", "data/db")),
        ("hosts/a/containers/u2", container("a-red", "u2", "red/web")),
        ("hosts/a/stacks/red", json!({"name": "red", "uuid": "t", "system": true}).to_string()),
    ] {
        assert!(put(&host_a, path, &value), "{path}");
    }
    assert!(put(&scheduler, "ledger/hosts/b", r#"{"name": "b", "agent_ip": "192.0.2.66"}"#));
    let names = || {
        let told = http::get("/latest/containers").json().ask(address).value();
        let list = told.as_array().cloned().unwrap_or_default();
        list.iter().map(|one| one["name"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    eventually("its containers are there too", SOON, || {
        let names = names();
        (names.iter().any(|name| name == "a-red") && names.iter().any(|name| name == "stolen")).then_some(())
    });
    assert_eq!(told(), before);
    assert_eq!(labels(address, "a"), json!({"zone": "operators", "plain": "own"}));
    // An operator's key says that this subnet is its own; through which address it is reached only it could say.
    let claimed = json!({"io.berth.admin/vip": "yes", SUBNET_LABEL: "10.42.7.0/24"});
    assert_eq!(labels(address, "b"), claimed);
    let members = http::get("/latest/stacks/red/services/web/containers").ask(address).text();
    assert!(!members.contains("a-red"), "{members}");
    // It is reported, of both hosts where both have a uuid.
    for part in REPORTED {
        eventually(part, SOON, || metadata.log().contains(part).then_some(()));
    }
}

fn key(path: &str) -> String {
    format!("/berth/v1/{path}")
}

/// Creates the users, each with its role, and has etcd ask for passwords from now on.
fn enable_users(etcd: &Etcd) {
    let add = |path: &str, body: Value| etcd.ask(&format!("auth/{path}"), &body);
    add("user/add", json!({"name": "root", "password": "r"}));
    add("user/grant", json!({"user": "root", "role": "root"}));
    for (user, paths) in USERS {
        add("role/add", json!({"name": user}));
        let of_prefix = |kind: &str, prefix: &str| {
            let (mut end, from) = (prefix.as_bytes().to_vec(), base64(prefix));
            *end.last_mut().unwrap() += 1;
            let end = base64(std::str::from_utf8(&end).unwrap());
            json!({"name": user, "perm": {"permType": kind, "key": from, "range_end": end}})
        };
        add("role/grant", of_prefix("READ", &key("")));
        for path in paths {
            let grant = if path.ends_with('/') {
                of_prefix("READWRITE", &key(path))
            } else {
                json!({"name": user, "perm": {"permType": "READWRITE", "key": base64(&key(path))}})
            };
            add("role/grant", grant);
        }
        add("user/add", json!({"name": user, "password": "s3cret"}));
        add("user/grant", json!({"user": user, "role": user}));
    }
    add("enable", json!({}));
}

/// The labels of a host as a follower answers them.
fn labels(address: SocketAddr, host: &str) -> Value {
    let hosts = http::get("/latest/hosts").json().ask(address).value();
    hosts.as_array().unwrap().iter().find(|one| one["name"] == host).unwrap()["labels"].clone()
}

/// What a follower answers of host b, and of what documents say.
fn shown(address: SocketAddr) -> Value {
    let whole = http::get("/latest").json().ask(address).value();
    let named = |list: &str, name: &str| {
        let all = whole[list].as_array().cloned().unwrap_or_default();
        all.into_iter().filter(|one| one["name"] == name).collect::<Vec<_>>()
    };
    let own = |entities: Vec<Value>, keys: &[&str]| {
        entities.iter().map(|one| keys.iter().map(|key| one[key].clone()).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let members = |service: &str| {
        let services = named("services", service);
        let list = services.first().and_then(|one| one["containers"].as_array().cloned()).unwrap_or_default();
        let all = list.iter().map(|one| one["name"].as_str().or(one.as_str()).unwrap_or_default().to_owned());
        all.filter(|container| container.starts_with("b-")).collect::<Vec<_>>()
    };
    json!([
        own(named("hosts", "b"), &["uuid", "agent_ip"]),
        own(named("containers", "b-one"), &["uuid", "primary_ip", "host_uuid"]),
        own(named("containers", "b-red"), &["uuid", "primary_ip", "host_uuid"]),
        own(named("services", "db"), &["vip", "kind", "hostname", "metadata", "links"]),
        own(named("services", "web"), &["vip", "kind", "hostname", "metadata", "links"]),
        members("db"),
        members("web"),
    ])
}
