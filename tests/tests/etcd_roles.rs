//! Who may write which key in etcd, and who believes it: every cell of the table in docs/security.md, with etcd's own
//! users and roles.
//!
//! Debian's etcd-server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "etcd_roles/users.rs"]
mod users;

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;

use etcd::{Access, PREFIX, Span};
use model::network_key::SUBNET_LABEL;
use network::registry::{self, Claimant};
use serde_json::{Value, json};
use tests::etcd_with_users::{EtcdWithUsers, OPERATOR, ROOT};
use tests::publication::SOON;
use tests::{Executable, Launch, eventually, http, repository};

use crate::users::{A, B, HOLDER, READER, SCHEDULER, Users, user_of};

/// A row of the table of docs/security.md, a key of it with a harmless value, and all that may write it.
type Row = (&'static str, &'static str, &'static str, &'static [&'static str]);

const ROWS: [Row; 33] = [
    (
        "`documents/NAME`",
        "documents/d",
        r#"{"services": [{"name": "db", "stack": "data", "vip": "10.1.1.1", "token": "of-document"}]}"#,
        &[OPERATOR],
    ),
    (
        "`documents/owners`",
        "documents/owners",
        r#"{"tenants": {"red": {"hosts": ["b"], "stacks": ["red"]}}}"#,
        &[OPERATOR],
    ),
    ("`empty`", "empty", "", &[OPERATOR]),
    ("`hosts/HOST/…`", "hosts/a/host", r#"{"name": "a"}"#, &[A]),
    ("`hosts/HOST/…`", "hosts/a/containers/a-one", r#"{"name": "a-one"}"#, &[A]),
    ("`hosts/HOST/…`", "hosts/b/host", r#"{"name": "b", "agent_ip": "192.0.2.2"}"#, &[B]),
    (
        "`hosts/HOST/…`",
        "hosts/b/containers/u1",
        r#"{"name": "b-one", "uuid": "u1", "service": "data/db", "primary_ip": "10.42.0.2"}"#,
        &[B],
    ),
    ("`hosts/HOST/password`", "hosts/a/password", "{}", &[ROOT, A]),
    ("`hosts/HOST/password`", "hosts/b/password", "{}", &[ROOT, B]),
    ("`intents/HOST`", "intents/a", r#"{"labels": {"zone": "operators"}}"#, &[OPERATOR]),
    ("`intents/HOST`", "intents/b", r#"{"labels": {"io.berth.admin/vip": "yes"}}"#, &[OPERATOR]),
    ("`config/labels.reserved`", "config/labels.reserved", r#"{"keys": ["team/*"]}"#, &[OPERATOR]),
    (NETWORK, "config/network", r#"{"cidr": "10.42.0.0/16"}"#, &[OPERATOR]),
    (NETWORK, "config/network.accept", r#"{"until": 1}"#, &[OPERATOR]),
    ("`claims/subnet/SUBNET`", "claims/subnet/10.42.7.0-24", r#"{"host": "b"}"#, &[OPERATOR]),
    ("`claims/host/HOST`", "claims/host/a", r#"{"subnet": "10.42.7.0/24"}"#, &[OPERATOR, A]),
    (VOTES, "votes/a/b/u1", "{}", &[A]),
    (VOTES, "health/a/b/u1", "{}", &[A]),
    (VOTES, "votes/b/a/u2", "{}", &[B]),
    (VOTES, "health/b/a/u2", "{}", &[B]),
    ("`evicted/HOST/ID`", "evicted/b/gone", r#"{"berth": 1, "placement": "p"}"#, &[SCHEDULER]),
    (INVITATION, "/berth/join/v1/ID", "{}", &[ROOT, HOLDER]),
    (INVITATION, "/berth/join/v1/another", "{}", &[ROOT]),
    ("`ledger/placements/ID`", "ledger/placements/p", "{}", &[SCHEDULER]),
    ("`ledger/key`", "ledger/key", "{}", &[SCHEDULER]),
    (LEDGER, "ledger/hosts/b", "{}", &[SCHEDULER]),
    (LEDGER, "ledger/ports/b/80", "{}", &[SCHEDULER]),
    (LEDGER, "ledger/names/b/web", "{}", &[SCHEDULER]),
    (LEDGER, "ledger/freed", "{}", &[SCHEDULER]),
    (LEDGER, "ledger/schedulers/s", "{}", &[SCHEDULER]),
    ("any other key", "another/key", "{}", &[]),
    ("any other key", "hosts/c/host", "{}", &[]),
    ("any other key", "/berth/v2/documents/d", "{}", &[]),
];

/// Rows with more than one key.
const NETWORK: &str = "`config/network`, `config/network.accept`";
const VOTES: &str = "`votes/HOST/…`, `health/HOST/…`";
const INVITATION: &str = "`/berth/join/v1/ID` (no prefix before it)";
const LEDGER: &str = "`ledger/hosts/…`, `ledger/ports/…`, `ledger/names/…`, `ledger/freed`, `ledger/schedulers/…`";

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
    let Some(etcd) = EtcdWithUsers::start() else { return };
    let users = Users::invited(&etcd);
    let put = |user: &str, path: &str, value: &str| users.put(user, path, value);

    // Every cell: who may write what. Whoever may, writes the value of the row.
    for user in [OPERATOR, A, B, SCHEDULER, HOLDER, READER] {
        let reads = users.runtime.block_on(users.client(user).get(users.key("documents/d").as_bytes()));
        assert_eq!(reads.is_ok(), user != HOLDER, "{user} reads");
        // What was asked of schedulers has the environments of containers.
        let ledger = users.runtime.block_on(users.client(user).get(users.key("ledger/placements/p").as_bytes()));
        assert_eq!(ledger.is_ok(), [OPERATOR, SCHEDULER].contains(&user), "{user} reads the ledger");
        for (row, path, value, writers) in ROWS {
            assert_eq!(put(user, path, value), writers.contains(&user), "{user} writes {path}, {row}");
        }
    }
    for (_, path, value, _) in ROWS.iter().filter(|row| row.3.contains(&ROOT)) {
        assert!(put(ROOT, path, value), "{path}");
    }
    assert_eq!(
        ROWS.iter().map(|row| row.0).collect::<BTreeSet<_>>(),
        rows_of_the_page().iter().map(|row| &**row).collect()
    );
    for (path, value) in SERVICES {
        assert!(put(B, path, value));
    }
    let red = r#"{"name": "b-red", "uuid": "u2", "service": "red/web", "primary_ip": "10.42.0.3"}"#;
    assert!(put(B, "hosts/b/containers/u2", red));

    let mut metadata = Launch::served(Executable::Metadata)
        .with("--source", format!("etcd:https://{}", etcd.address()))
        .with("--etcd-ca", etcd.file("ca.pem"))
        .with("--etcd-cert", etcd.file("operator/cert.pem"))
        .with("--etcd-key", etcd.file("operator/key.pem"))
        .with("--etcd-user", READER)
        .with("--etcd-password-file", &users.password_file)
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
        assert!(put(A, path, &value), "{path}");
    }
    assert!(put(SCHEDULER, "ledger/hosts/b", r#"{"name": "b", "agent_ip": "192.0.2.66"}"#));
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

/// What no role of an invited host permits, and what an operator adds by hand for it, as the pages say.
#[test]
fn what_no_role_has_is_granted_by_hand() {
    let Some(etcd) = EtcdWithUsers::start() else { return };
    let users = Users::invited(&etcd);
    let given = etcd.command(&["network", "init", "--cidr", "10.42.0.0/16", "--allocate", "self"]);
    assert_eq!(given.code, Some(0), "{}", given.errors);
    let claim = || {
        let claimant = Claimant { host: "a", via: None, machine: "m", last: None, at: "2026-01-01T00:00:00Z", now: 1 };
        users.runtime.block_on(registry::announce(&users.client(A), claimant, false))
    };
    let refused = claim().unwrap_err().to_string();
    assert!(refused.contains("permission denied"), "{refused}");
    users.grant("berth-claims", &user_of("a"), &[(Access::ReadWrite, "claims/subnet/")]);
    let subnet = claim().unwrap();
    let invited = etcd.command(&["invite", "a", "--again"]);
    assert_eq!(invited.code, Some(0), "{}", invited.errors);
    users.set_password(&user_of("a"));
    let path = format!("claims/subnet/{}", subnet.to_string().replace('/', "-"));
    assert!(users.put(A, &path, r#"{"host": "a"}"#), "it has the role also after it was invited again");

    // What is left of a host is removed with root's rights, or with a role of its own, which does nothing about users.
    users.set_password("pruner");
    users.grant("pruner", "pruner", &[(Access::Read, ""), (Access::ReadWrite, "hosts/")]);
    let operator = etcd.file("operator.password");
    let operator = operator.to_str().unwrap();
    let pruner = users.password_file.to_str().unwrap();
    for (user, file, outcome) in [
        (OPERATOR, operator, Err("permission denied")),
        ("pruner", pruner, Ok("hosts/b/containers/x  (")),
        (ROOT, "", Ok("hosts/b/containers/x  (")),
    ] {
        assert!(users.put(B, "hosts/b/containers/x", r#"{"name": "x"}"#));
        let of_user = ["prune", "--etcd-user", user, "--etcd-password-file", file];
        let words = if user == ROOT { &of_user[..1] } else { &of_user[..] };
        let ended = etcd.command(words);
        match outcome {
            Ok(part) => assert!(ended.code == Some(0) && ended.output.contains(part), "{user}: {}", ended.errors),
            Err(part) => assert!(ended.code == Some(1) && ended.errors.contains(part), "{user}: {}", ended.errors),
        }
    }
}

/// A scheduler whose role is of an earlier release says what it lacks and how it gets that, and works meanwhile.
#[test]
fn a_scheduler_without_the_right_to_evict_says_how_to_get_it() {
    let Some(etcd) = EtcdWithUsers::start() else { return };
    let users = Users::invited(&etcd);
    let evictions = Span::of_prefix(format!("{PREFIX}evicted/").as_bytes());
    users.runtime.block_on(users.client(ROOT).forbid(&user_of("s"), &evictions)).unwrap();
    let cluster = etcd.folder().join("cluster.json");
    fs::write(&cluster, r#"{"hosts": [{"name": "a"}]}"#).unwrap();
    let warned = |expected: bool| {
        let mut scheduler = Launch::scheduler()
            .with("--source", format!("file:{}", cluster.display()))
            .with("--state-dir", etcd.folder().join("scheduler"))
            .with("--ledger-etcd", format!("https://{}", etcd.address()))
            .with("--etcd-ca", etcd.file("ca.pem"))
            .with("--etcd-cert", etcd.file("operator/cert.pem"))
            .with("--etcd-key", etcd.file("operator/key.pem"))
            .with("--etcd-user", user_of("s"))
            .with("--etcd-password-file", &users.password_file)
            .start();
        scheduler.ready();
        let admin = scheduler.admin();
        if !expected {
            // By then it has asked for its rights.
            std::thread::sleep(std::time::Duration::from_secs(5));
        }
        let warning = eventually("it knows its rights", SOON, || {
            let told = http::get("/readyz").ask(admin).value();
            assert_eq!(told["ready"], true, "{told}");
            let warning = told["warnings"]["evictions"].as_str().unwrap_or_default().to_owned();
            (warning.is_empty() != expected).then_some(warning)
        });
        assert!(!expected || warning.contains("agent invite HOST --again --role host,scheduler"), "{warning}");
        scheduler.stop();
    };
    warned(true);
    let again = etcd.command(&["invite", "s", "--again", "--role", "host,scheduler"]);
    assert_eq!(again.code, Some(0), "{}", again.errors);
    users.set_password(&user_of("s"));
    warned(false);
}

/// The first cells of the table of who may write what.
fn rows_of_the_page() -> BTreeSet<String> {
    let page = fs::read_to_string(repository().join("docs/security.md")).unwrap();
    let (_, rest) = page.split_once("| Key | Who may write it |").unwrap();
    let lines = rest.lines().skip(2).take_while(|line| line.starts_with("| "));
    lines.map(|line| line.split(" | ").next().unwrap().trim_start_matches("| ").to_owned()).collect()
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
