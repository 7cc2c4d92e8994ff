//! What one host says within its own keys changes nothing that is another's.
//!
//! Random worlds of hosts and documents; then one host more says what it likes. What follows for everybody else is what
//! it was without that host, on every follower.

use std::sync::{Arc, LazyLock};

use model::{Value, document};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value as Json, json};

use super::*;

/// The hosts that are honest, and the one that is not: its name sorts first or last.
const HONEST: [&str; 3] = ["b", "m", "x"];
const EVIL: [&str; 2] = ["a", "z"];

/// Services by stack and name, and uuids, of which everybody says some.
const SERVICES: [(&str, &str); 4] = [("shop", "web"), ("shop", "cache"), ("data", "db"), ("Data", "DB")];
const UUIDS: [&str; 9] = ["u1", "u2", "u3", "hb", "hm", "u1@b", "u2@m", "hb@m", "u1@a"];

/// The revisions of etcd from which on honest hosts say anything, and since which the evil one does: most often later.
const SINCE_HONEST: std::ops::Range<i64> = 100..500;
const SINCE_EVIL: [i64; 2] = [1000, 1];

/// The uuids that follow from names: of the environment, and of the honest hosts and the services.
static DERIVED: LazyLock<(String, Vec<String>)> = LazyLock::new(|| {
    let hosts: Vec<_> = HONEST.iter().map(|name| json!({"name": name})).collect();
    let services: Vec<_> = SERVICES.iter().map(|(stack, name)| json!({"stack": stack, "name": name})).collect();
    let document = map(&json!({"hosts": hosts, "services": services}));
    let (snapshot, _) = document::resolve_value(&Value::Map(document)).unwrap();
    let environment = snapshot.environment.unwrap().text("uuid").unwrap().to_string();
    let services = snapshot.services.values().map(|service| service.uuid().to_string());
    let stacks = snapshot.stacks.keys().map(ToString::to_string);
    (environment, snapshot.hosts.keys().map(ToString::to_string).chain(services).chain(stacks).collect())
});

fn map(json: &Json) -> Map {
    serde_json::from_value(json.clone()).unwrap()
}

/// One of the services with what only its owner may say.
fn documented() -> impl Strategy<Value = Json> {
    let service = |((stack, name), uuid, secret): ((&str, &str), Option<&str>, &str)| {
        json!({
            "name": name, "stack": stack, "uuid": uuid, "vip": "10.1.1.1", "token": secret, "kind": "loadBalancerService",
            "links": {"data/db": "db"}, "external_ips": ["10.1.1.2"], "metadata": {"k": secret}, "hostname": "h.example.org",
            "labels": {"of": "document"}, "ports": ["1:1/tcp"],
        })
    };
    let list = prop::collection::vec(
        (select(&SERVICES[..]), prop::option::of(select(&["s1", "s2"][..])), select(&["k", "l"][..])).prop_map(service),
        0..3,
    );
    let stacks = select(vec![json!([]), json!([{"name": "shop", "system": true}, {"name": "data", "uuid": "t1"}])]);
    (list, stacks)
        .prop_map(|(services, stacks)| json!({"berth": 1, "services": services, "stacks": stacks, "empty": true}))
}

/// What an honest agent says: its containers have uuids of their own, but for copies of machines.
fn honest(name: &'static str) -> impl Strategy<Value = Json> {
    let container = (select(&["one", "two", "three"][..]), select(&SERVICES[..3]), select(&UUIDS[..4]), any::<bool>());
    let containers = prop::collection::vec((container, any::<bool>()), 0..4);
    let uuid = prop::option::of(select(&["hb", "hm", "hx"][..]));
    (containers, uuid, select(&["db", "base"][..]), SINCE_HONEST).prop_map(move |(list, uuid, alias, since)| {
        let mut services: BTreeMap<(&str, &str), Json> = BTreeMap::new();
        let mut containers = Vec::new();
        for ((called, (stack, service), uuid, copied), linked) in list {
            let links = if linked { json!({"data/db": alias}) } else { json!({}) };
            let kind = if service == "cache" { "dnsService" } else { "service" };
            services.insert((stack, service), json!({
                "name": service, "stack": stack, "links": links, "kind": kind, "create_index": 50, "ports": [format!("{since}:80/tcp")],
                "labels": {"of": name},
            }));
            let uuid = if copied { uuid.to_owned() } else { format!("{name}-{called}") };
            containers.push(json!({
                "name": format!("{name}-{called}"), "uuid": uuid, "host": name, "service": format!("{stack}/{service}"),
                "primary_ip": "172.17.0.2", "links": {"peer": format!("{name}-one")}, "network_from": format!("{name}-two"),
            }));
        }
        let dated = |count: usize| (since..).take(count).collect::<Vec<_>>();
        let since = json!({"hosts": [since], "containers": dated(containers.len()), "services": dated(services.len())});
        json!({
            "berth": 1, "host": name, "hosts": [{"name": name, "uuid": uuid, "agent_ip": "192.0.2.1", "labels": {"l": name}}],
            "services": services.into_values().collect::<Vec<_>>(), "containers": containers, "since": since,
        })
    })
}

/// What the evil host says: anything that its role lets it write.
fn evil(name: &'static str, since: i64) -> impl Strategy<Value = Json> {
    let derived = || prop::option::of(select(&DERIVED.1[..]));
    let names = || select(&["b-one", "m-two", "x-three", "own"][..]);
    let container = (
        names(),
        prop::option::of(select(&UUIDS[..])),
        select(&["b", "m", "x", "a", "z"][..]),
        select(&SERVICES[..]),
        names(),
    );
    let containers = prop::collection::vec(container, 0..5);
    let kind = select(&["service", "externalService", "dnsService", "loadBalancerService"][..]);
    let service = (select(&SERVICES[..]), derived(), kind, any::<bool>());
    let services = prop::collection::vec(service, 0..5);
    let environment = select(vec![
        json!(null),
        json!({"name": "other"}),
        json!({"name": "default", "uuid": "e"}),
        json!({"name": "other", "uuid": DERIVED.0}),
    ]);
    (containers, services, derived(), derived(), environment).prop_map(
        move |(containers, services, uuid, stack, environment)| {
            let containers: Vec<_> = containers.into_iter().map(|(called, uuid, host, (stack, service), other)| json!({
                "name": called, "uuid": uuid, "host": host, "service": format!("{stack}/{service}"), "primary_ip": "172.17.0.2",
                "links": {"db": other}, "network_from": other, "state": "running",
            })).collect();
            let services: Vec<_> = services.into_iter().map(|((stack, name), uuid, kind, linked)| json!({
                "name": name, "stack": stack, "uuid": uuid, "kind": kind, "vip": "192.0.2.66", "token": "stolen", "hostname": "evil.example.org",
                "external_ips": ["192.0.2.66"], "metadata": {"k": "evil"}, "labels": {"of": "evil"}, "fqdn": "evil.example.org",
                "lb_config": {"evil": true}, "health_check": {"port": 1}, "state": "removed", "system": true, "create_index": 0,
                "links": if linked { json!({"data/db": "evil", "shop/evil": "db"}) } else { json!({}) }, "ports": ["7:7/udp"],
            })).collect();
            let dated = |count: usize| (since..).take(count).collect::<Vec<_>>();
            json!({
                "berth": 1, "host": "b", "environment": environment,
                "since": {"hosts": [since, since], "containers": dated(containers.len()), "services": dated(services.len())},
                "hosts": [{"name": name, "uuid": uuid, "agent_ip": "192.0.2.66"}, {"name": "b", "uuid": uuid, "agent_ip": "192.0.2.66"}],
                "stacks": [{"name": "shop", "uuid": stack, "system": true}, {"name": "DATA", "uuid": stack, "system": true}],
                "networks": [{"name": "bridge", "uuid": "n", "is_default": true}],
                "services": services, "containers": containers, "empty": true,
            })
        },
    )
}

/// The snapshot of these parts on a host, or on none of them.
fn snapshot(parts: &[(Text, Resolved)], owners: &Owners, local: Option<&str>) -> Snapshot {
    let mut cluster = Cluster::default();
    cluster.set_owners(owners.clone());
    if let Some(local) = local {
        cluster.set_local(&format!("hosts/{local}").into());
    }
    for (part, resolved) in parts {
        cluster.take_in(part, resolved.clone());
    }
    cluster.snapshot()
}

/// A field that is not the same; lists of ports may grow.
fn differing<'f>(before: &'f Map, after: &Map, shared: &[&str]) -> Option<&'f str> {
    let found = before.iter().find(|(key, value)| {
        let now = after.get(key);
        match &**key {
            "ports" | "expose" if !shared.is_empty() => {
                let now = now.and_then(Value::as_list).unwrap_or_default();
                !value.as_list().unwrap_or_default().iter().all(|port| now.contains(port))
            }
            key if shared.contains(&key) => false,
            _ => now != Some(value),
        }
    });
    found.map(|(key, _)| &**key)
}

/// What of `before`, which has nothing of the host `evil`, is another thing in `after`; without `all` only what this host has
/// itself, and what documents say.
fn harm(
    before: &Snapshot,
    after: &Snapshot,
    evil: &str,
    local: Option<&str>,
    owners: &Owners,
    all: bool,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(&before.environment, &after.environment);
    prop_assert_eq!(before.local_host.as_ref(), after.local_host.as_ref());
    for (uuid, host) in &before.hosts {
        prop_assert_eq!(Some(host), after.hosts.get(uuid), "host {}", uuid);
    }
    let is_here = |container: &Container| local.is_some() && before.is_local(container);
    for (uuid, container) in before.containers.iter().filter(|(_, container)| all || is_here(container)) {
        prop_assert_eq!(Some(container), after.containers.get(uuid), "container {}", uuid);
    }
    for (uuid, stack) in before.stacks.iter().filter(|_| all) {
        prop_assert_eq!(Some(stack), after.stacks.get(uuid), "stack {}", uuid);
    }
    let evil_host: Vec<_> =
        after.hosts.values().filter(|host| host.name().is_some_and(|name| **name == *evil)).collect();
    prop_assert!(after.hosts.len() <= before.hosts.len() + 1);
    let is_evil = |uuid: &Text| {
        let host = after.containers.get(uuid).and_then(|container| container.host_uuid());
        host.is_some_and(|host| evil_host.iter().any(|evil| evil.uuid() == host))
    };
    for uuid in after.containers.keys().filter(|uuid| !before.containers.contains_key(&***uuid)) {
        prop_assert!(!all || is_evil(uuid), "{} is on another's host", uuid);
    }
    // No second service of a name, which could take the name.
    let paths_of = |snapshot: &Snapshot| {
        let path = |service: &Arc<Service>| {
            let names =
                [service.environment_uuid(), service.stack_name(), Some(service.primary_name()), service.name()];
            names.map(|name| name.unwrap().to_lowercase())
        };
        snapshot.services.values().map(path).collect::<Vec<_>>()
    };
    let mut sorted = paths_of(after);
    sorted.sort();
    prop_assert!(sorted.windows(2).all(|pair| pair[0] != pair[1]), "{:?}", sorted);
    for (id, service) in &before.services {
        let said = |key: &str| {
            service.fields().map("labels").and_then(|labels| labels.text("of")).is_some_and(|of| **of == *key)
        };
        let (documented, own) = (said("document"), local.is_some_and(said));
        if !all && !documented && !own {
            continue;
        }
        let Some(now) = after.services.get(id) else { return Err(TestCaseError::fail(format!("{id} is gone"))) };
        let shared: &[&str] =
            if documented { &["scale", "sidekicks"] } else { &["scale", "sidekicks", "create_index"] };
        prop_assert_eq!(differing(service.fields(), now.fields(), shared), None, "{}", id);
        if documented || own {
            prop_assert_eq!(service.links(), now.links(), "{}", id);
            prop_assert!(!documented || service.fields().list("ports") == now.fields().list("ports"));
        } else {
            prop_assert_eq!(differing(service.links(), now.links(), &[]), None, "{}", id);
        }
        let others = |service: &Service| {
            let is_meant = |uuid: &&Text| {
                if all { !is_evil(uuid) } else { before.containers.get(&***uuid).is_some_and(|one| is_here(one)) }
            };
            let mut members: Vec<_> = service.members().iter().filter(is_meant).cloned().collect();
            members.sort();
            members
        };
        prop_assert_eq!(others(service), others(now), "{}", id);
    }
    for service in after.services.values() {
        if owners.refuses(service.stack_name().unwrap(), evil).is_some() {
            prop_assert!(!service.members().iter().any(is_evil), "{} has members of another tenant", service.id());
        }
        // Nothing is told of it that is another's secret or address.
        let stolen = ["192.0.2.66", "stolen", "evil.example.org"];
        for key in ["vip", "token", "hostname", "fqdn"] {
            prop_assert!(
                !service.fields().text(key).is_some_and(|text| stolen.contains(&&**text)),
                "{} {}",
                service.id(),
                key
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Whatever one host says, all that is not its own stays as it was, on every host and where there is none.
    #[test]
    fn one_host_changes_nothing_of_another(
        documents in prop::collection::vec(documented(), 0..2),
        hosts in (honest(HONEST[0]), honest(HONEST[1]), honest(HONEST[2])),
        ((name, since), words) in (select(&EVIL[..]), select(&SINCE_EVIL[..])).prop_flat_map(|(name, since)| ((Just(name), Just(since)), evil(name, since))),
        owned in prop::option::of(select(&["b", "m"][..])),
        first in any::<bool>(),
    ) {
        let documents = documents.into_iter().map(|words| ("documents/d".to_owned(), words));
        let hosts = HONEST.iter().zip([hosts.0, hosts.1, hosts.2]).map(|(host, words)| (format!("hosts/{host}"), words));
        // One that says nothing at all is no part.
        let resolved = |(part, words): (String, Json)| Resolved::of(&part, &map(&words)).ok().map(|words| (part.into(), words));
        let parts: Vec<(Text, Resolved)> = documents.chain(hosts).filter_map(resolved).collect();
        let mut with = parts.clone();
        if let Some(evil) = resolved((format!("hosts/{name}"), words)) {
            with.insert(if first { 0 } else { with.len() }, evil);
        }
        let tenants = owned.map(|host| json!({"tenants": {"red": {"hosts": [host], "stacks": ["data"]}}}));
        let owners = tenants.map_or_else(Owners::default, |tenants| Owners::parse(&map(&tenants)).unwrap());
        for local in HONEST.into_iter().map(Some).chain([None]) {
            // Who was there before anybody else may have taken what nobody owns, but for what this host has itself.
            let all = since > SINCE_HONEST.start;
            harm(&snapshot(&parts, &owners, local), &snapshot(&with, &owners, local), name, local, &owners, all)?;
        }
    }
}
