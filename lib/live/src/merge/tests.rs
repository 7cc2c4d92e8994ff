//! What follows from which parts.

use model::Value;
use model::lb::{LbPlan, Viewpoint, find};
use model::network_key::{ROUTER_LABEL, SUBNET_LABEL};
use proptest::prelude::*;

use super::order::texts;
use super::*;

fn document(text: &str) -> Map {
    let value: Value = serde_json::from_str(text).unwrap();
    value.as_map().unwrap().clone()
}

/// A part has this document from now on; with an empty text it is gone.
fn set(cluster: &mut Cluster, part: &str, text: &str) {
    match text {
        "" => cluster.forget(&part.into()),
        text => drop(cluster.update(&part.into(), &document(text)).unwrap()),
    }
}

/// A host with one container of `shop/web` for each of `containers`.
fn host(name: &str, containers: &[u8]) -> Map {
    let list: Vec<_> = (containers.iter())
        .map(|n| {
            format!(
                r#"{{"name": "web-{n}", "uuid": "{name}-{n}", "service": "shop/web", "host": "{name}", "primary_ip": "10.42.0.{n}"}}"#
            )
        })
        .collect();
    let services = if containers.is_empty() { "" } else { r#"{"name": "web", "stack": "shop"}"# };
    document(&format!(
        r#"{{"host": "{name}", "hosts": [{{"name": "{name}"}}], "services": [{services}], "containers": [{}]}}"#,
        list.join(", ")
    ))
}

fn members(cluster: &mut Cluster) -> Vec<String> {
    let snapshot = cluster.snapshot();
    snapshot.services.values().flat_map(|service| service.members().iter().map(ToString::to_string)).collect()
}

#[test]
fn a_service_has_the_containers_of_all_hosts() {
    let mut cluster = Cluster::default();
    cluster.set_local(&"b".into());
    for (name, containers) in [("b", &[1, 2][..]), ("a", &[3]), ("c", &[])] {
        assert_eq!(cluster.update(&name.into(), &host(name, containers)).unwrap(), []);
    }
    assert_eq!(members(&mut cluster), ["a-3", "b-1", "b-2"]);
    let snapshot = cluster.snapshot();
    assert_eq!(snapshot.services.len(), 1);
    assert_eq!(snapshot.services.values().next().unwrap().fields().int("scale"), Some(3));
    assert_eq!(snapshot.local_host.and_then(|host| host.name().cloned()).as_deref(), Some("b"));
    cluster.forget(&"b".into());
    assert_eq!(members(&mut cluster), ["a-3"]);
    assert_eq!(cluster.snapshot().local_host, None);
    cluster.forget(&"a".into());
    assert!(cluster.snapshot().services.is_empty() && cluster.snapshot().stacks.is_empty());
}

#[test]
fn an_evicted_container_is_stopping_and_a_member_of_nothing_whatever_its_host_says() {
    let shown = |cluster: &mut Cluster| -> Vec<String> {
        let containers = cluster.snapshot().containers;
        containers.values().map(|one| format!("{} {}", one.uuid(), one.state())).collect()
    };
    let mut cluster = Cluster::default();
    cluster.set_local(&"hosts/b".into());
    for (name, containers) in [("a", &[1, 2][..]), ("b", &[3]), ("c", &[4])] {
        cluster.update(&format!("hosts/{name}").into(), &host(name, containers)).unwrap();
    }
    let all = ["a-1", "a-2", "b-3", "c-4"];
    assert_eq!(members(&mut cluster), all);
    let evict = |cluster: &mut Cluster, key: &str| set(cluster, key, r#"{"berth": 1, "placement": "web-1"}"#);
    evict(&mut cluster, "evicted/a/a-1");
    assert_eq!(members(&mut cluster), ["a-2", "b-3", "c-4"]);
    assert_eq!(shown(&mut cluster), ["a-1 stopping", "a-2 running", "b-3 running", "c-4 running"]);
    let scale = |cluster: &mut Cluster| cluster.snapshot().services.values().next().unwrap().fields().int("scale");
    assert_eq!(scale(&mut cluster), Some(3));
    // Another host's of that name, and what is not there, are none of it.
    evict(&mut cluster, "evicted/a/c-4");
    evict(&mut cluster, "evicted/none/c-4");
    assert_eq!(members(&mut cluster), ["a-2", "b-3", "c-4"]);
    // Its host says it again, and is gone and back.
    cluster.update(&"hosts/a".into(), &host("a", &[1])).unwrap();
    assert_eq!(members(&mut cluster), ["b-3", "c-4"]);
    cluster.forget(&"hosts/a".into());
    assert_eq!(members(&mut cluster), ["b-3", "c-4"]);
    cluster.update(&"hosts/a".into(), &host("a", &[1, 2])).unwrap();
    assert_eq!(members(&mut cluster), ["a-2", "b-3", "c-4"]);
    // This host's own, too; and all of a host's.
    evict(&mut cluster, "evicted/b/b-3");
    evict(&mut cluster, "evicted/a/a-2");
    assert_eq!(members(&mut cluster), ["c-4"]);
    for key in ["evicted/a/a-1", "evicted/a/a-2", "evicted/b/b-3", "evicted/none/c-4", "evicted/a/c-4"] {
        set(&mut cluster, key, "");
    }
    assert_eq!(members(&mut cluster), all);
    assert_eq!(shown(&mut cluster), ["a-1 running", "a-2 running", "b-3 running", "c-4 running"]);
    // Of one host alone, whose service is then empty.
    for name in ["b", "c"] {
        cluster.forget(&format!("hosts/{name}").into());
    }
    evict(&mut cluster, "evicted/a/a-1");
    assert_eq!((members(&mut cluster), scale(&mut cluster)), (vec!["a-2".to_owned()], Some(1)));
    evict(&mut cluster, "evicted/a/a-2");
    assert_eq!((members(&mut cluster), scale(&mut cluster)), (vec![], Some(0)));
}

#[test]
fn a_host_gives_itself_no_reserved_label() {
    let mut cluster = Cluster::default();
    let own: Text = "hosts/a".into();
    cluster.set_local(&own);
    let labels = |cluster: &mut Cluster| {
        let snapshot = cluster.snapshot();
        let local = snapshot.local_host.unwrap();
        assert_eq!(Some(&local), snapshot.hosts.get(local.uuid()), "this host is as all see it");
        let labels = local.labels().unwrap().iter();
        labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap())).collect::<Vec<_>>()
    };
    let host = r#"{"hosts": [{"name": "a", "labels": {"io.berth.admin/x": "1", "team/x": "2", "zone": "own"}}]}"#;
    cluster.update(&own, &document(host)).unwrap();
    assert_eq!(labels(&mut cluster), ["team/x=2", "zone=own"]);
    cluster.update(&RESERVED_LABELS.into(), &document(r#"{"keys": ["team/*"]}"#)).unwrap();
    assert_eq!(labels(&mut cluster), ["zone=own"]);
    assert_eq!(cluster.disputes().unwrap()[&own].len(), 2, "it is told");
    let intent = document(r#"{"labels": {"io.berth.admin/x": "3", "zone": "operators"}, "state": "cordoned"}"#);
    cluster.update(&"intents/a".into(), &intent).unwrap();
    cluster.update(&"intents/b".into(), &intent).unwrap();
    assert_eq!(labels(&mut cluster), ["io.berth.admin/x=3", "zone=operators"]);
    assert!(cluster.update(&"intents/a".into(), &document(r#"{"labels": 1}"#)).is_err(), "what it said before stays");
    cluster.forget(&"intents/a".into());
    cluster.forget(&RESERVED_LABELS.into());
    assert_eq!(labels(&mut cluster), ["team/x=2", "zone=own"]);
}

#[test]
fn operators_give_a_host_its_state_and_it_gives_itself_no_word_of_theirs() {
    let mut cluster = Cluster::default();
    let state = |cluster: &mut Cluster| {
        let snapshot = cluster.snapshot();
        let host = snapshot.hosts.values().next().unwrap().clone();
        (host.state().to_owned(), host.intended().map(ToString::to_string))
    };
    let lie = document(r#"{"hosts": [{"name": "a", "state": "active", "intended_state": "cordoned by bob"}]}"#);
    cluster.update(&"hosts/a".into(), &lie).unwrap();
    assert_eq!(state(&mut cluster), ("active".to_owned(), None));
    for (word, on_the_wire) in [("cordoned", "inactive"), ("draining", "deactivating"), ("drained", "inactive")] {
        let intent = format!(r#"{{"state": "{word}", "by": "anna", "reason": "disk"}}"#);
        cluster.update(&"intents/a".into(), &document(&intent)).unwrap();
        assert_eq!(state(&mut cluster), (on_the_wire.to_owned(), Some(format!("{word} by anna: disk"))));
    }
    cluster.update(&"intents/a".into(), &document(r#"{"state": "of a later release"}"#)).unwrap();
    assert_eq!(state(&mut cluster), ("active".to_owned(), None));
    // One that leaves by itself goes on with that.
    cluster.update(&"hosts/a".into(), &document(r#"{"hosts": [{"name": "a", "state": "deactivating"}]}"#)).unwrap();
    cluster.update(&"intents/a".into(), &document(r#"{"state": "cordoned", "by": "anna"}"#)).unwrap();
    assert_eq!(state(&mut cluster), ("deactivating".to_owned(), Some("cordoned by anna".to_owned())));
}

#[test]
fn subnets_are_labels_of_hosts_as_claimed_and_not_as_hosts_say() {
    let mut cluster = Cluster::default();
    let labels = |cluster: &mut Cluster| {
        let snapshot = cluster.snapshot();
        let mut hosts: Vec<_> = snapshot.hosts.values().collect();
        hosts.sort_by_key(|host| host.name());
        let of = |host: &Host, label: &str| {
            host.labels().unwrap().text(label).map_or_else(|| "-".to_owned(), ToString::to_string)
        };
        let line = |host: &std::sync::Arc<Host>| format!("{} {}", of(host, SUBNET_LABEL), of(host, ROUTER_LABEL));
        hosts.into_iter().map(line).collect::<Vec<_>>()
    };
    let mut set = |key: &str, value: &str| {
        set(&mut cluster, key, value);
        labels(&mut cluster)
    };
    let lie = format!(r#"{{"hosts": [{{"name": "a", "labels": {{"{SUBNET_LABEL}": "10.42.66.0/24"}}}}]}}"#);
    set("hosts/a", &lie);
    // Without a network these are labels like others.
    assert_eq!(set("hosts/b", r#"{"hosts": [{"name": "b"}]}"#), ["10.42.66.0/24 -", "- -"]);
    assert_eq!(set("config/network", r#"{"cidr": "10.42.0.0/16"}"#), ["- -", "- -"]);
    set("claims/subnet/10.42.1.0-24", r#"{"host": "a"}"#);
    assert_eq!(set("claims/subnet/10.42.2.0-24", r#"{"host": "b"}"#), ["10.42.1.0/24 -", "10.42.2.0/24 -"]);
    let said = |subnet: &str| format!(r#"{{"subnet": "{subnet}", "via": "192.0.2.9"}}"#);
    assert_eq!(set("claims/host/a", &said("10.42.1.0/24"))[0], "10.42.1.0/24 192.0.2.9");
    // The subnet of another host is not its own.
    assert_eq!(set("claims/host/a", &said("10.42.2.0/24")), ["10.42.1.0/24 -", "10.42.2.0/24 -"]);
    let freed = r#"{"host": "a", "freed": true, "until": 9}"#;
    assert_eq!(set("claims/subnet/10.42.1.0-24", freed), ["- -", "10.42.2.0/24 -"]);
    assert_eq!(set("claims/subnet/10.42.2.0-24", r#"{"host": "a"}"#), ["10.42.2.0/24 192.0.2.9", "- -"]);
    assert_eq!(set("config/network", ""), ["10.42.66.0/24 -", "- -"]);
}

#[test]
fn the_network_of_containers_has_the_range_of_all_of_them() {
    let mut cluster = Cluster::default();
    let mut ranges = |key: &str, value: &str| {
        set(&mut cluster, key, value);
        let snapshot = cluster.snapshot();
        let of = |network: &Network| {
            let range = network.fields().map("metadata").and_then(|metadata| metadata.text("cidr"));
            format!("{}={}", network.name().unwrap(), range.map_or("-", |range| range))
        };
        let mut ranges: Vec<_> = snapshot.networks.values().map(|network| of(network)).collect();
        ranges.sort();
        ranges.join(" ")
    };
    assert_eq!(ranges("hosts/a", r#"{"networks": [{"name": "berth"}, {"name": "bridge"}]}"#), "berth=- bridge=-");
    assert_eq!(ranges("config/network", r#"{"cidr": "10.42.0.0/16"}"#), "berth=10.42.0.0/16 bridge=-");
    assert_eq!(ranges("config/network", r#"{"cidr": "10.40.0.0/14"}"#), "berth=10.40.0.0/14 bridge=-");
    assert_eq!(ranges("config/network", ""), "berth=- bridge=-");
}

#[test]
fn a_host_without_ports_takes_none_from_a_service_that_has_them_elsewhere() {
    let part = |host: &str, ports: &str| {
        document(&format!(
            r#"{{"hosts": [{{"name": "{host}"}}], "services": [{{"name": "web", "stack": "shop", "ports": [{ports}]}}]}}"#
        ))
    };
    let shown = |parts: &[(&str, &str)]| {
        let mut cluster = Cluster::default();
        cluster.set_local(&"hosts/a".into());
        for (name, ports) in parts {
            assert_eq!(cluster.update(&(*name).into(), &part(name, ports)).unwrap(), []);
        }
        let snapshot = cluster.snapshot();
        let service = snapshot.services.values().next().unwrap();
        texts(service, "ports").iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let (none, ports, more) =
        (("hosts/a", ""), ("hosts/b", r#""80:80/tcp""#), ("hosts/c", r#""80:80/tcp", "81:81/tcp""#));
    assert_eq!(shown(&[none, ports, more]), ["80:80/tcp", "81:81/tcp"]);
    assert_eq!(shown(&[none, ("hosts/b", "")]), [""; 0]);
    assert_eq!(shown(&[("documents/shop", ""), ports]), [""; 0], "a document's word counts");
}

/// What is reported of several parts, in the order of their names.
fn disputes(cluster: &mut Cluster) -> Vec<String> {
    let mut found: Vec<_> = cluster.disputes().unwrap_or_default().into_iter().collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found.iter().flat_map(|(part, defects)| defects.iter().map(move |defect| format!("{part}: {defect}"))).collect()
}

/// Containers by uuid, each with its name.
fn shown(cluster: &mut Cluster) -> Vec<String> {
    let snapshot = cluster.snapshot();
    snapshot.containers.iter().map(|(uuid, container)| format!("{uuid}={}", container.name().unwrap())).collect()
}

#[test]
fn an_equal_uuid_hides_no_container_and_is_told_of_both() {
    let twin = |name: &str, since: i64| {
        document(&format!(
            r#"{{"host": "{name}", "hosts": [{{"name": "{name}"}}], "since": {{"containers": [{since}]}},
                "services": [{{"name": "web", "stack": "shop"}}],
                "containers": [{{"name": "of-{name}", "uuid": "same", "service": "shop/web"}}]}}"#
        ))
    };
    // The later one is called otherwise, whatever its host's name and whichever came first here.
    for order in [["a", "b"], ["b", "a"]] {
        let mut cluster = Cluster::default();
        for name in order {
            let since = if name == "b" { 7 } else { 8 };
            assert_eq!(cluster.update(&format!("hosts/{name}").into(), &twin(name, since)).unwrap(), []);
        }
        assert_eq!(shown(&mut cluster), ["same=of-b", "same@a=of-a"], "{order:?}");
        let mut all = members(&mut cluster);
        all.sort();
        assert_eq!(all, ["same", "same@a"]);
        let told = disputes(&mut cluster);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("hosts/a: containers/of-a: hosts/b has the uuid same too"), "{told:?}");
        assert!(told[1].contains("hosts/b: containers/of-b: hosts/a has the uuid same too"), "{told:?}");
        assert!(cluster.disputes().is_none(), "told once");
        // On its own host each is called as its engine calls it.
        cluster.set_local(&"hosts/a".into());
        assert_eq!(shown(&mut cluster), ["same=of-a", "same@b=of-b"]);
        cluster.forget(&"hosts/b".into());
        assert_eq!((shown(&mut cluster), disputes(&mut cluster)), (vec!["same=of-a".to_owned()], Vec::new()));
        assert_eq!(members(&mut cluster), ["same"]);
    }
}

#[test]
fn a_host_with_the_uuid_of_another_harms_itself_alone() {
    let part = |name: &str, uuid: &str| {
        document(&format!(
            r#"{{"hosts": [{{"name": "{name}"{uuid}}}], "containers": [{{"name": "of-{name}", "network_from": "of-{name}"}}]}}"#
        ))
    };
    let mut cluster = Cluster::default();
    cluster.update(&"hosts/b".into(), &part("b", "")).unwrap();
    let honest = cluster.snapshot();
    let uuid = honest.hosts.keys().next().unwrap();
    // It may have been there before, under a uuid of its own.
    let defects = cluster.update(&"hosts/a".into(), &part("a", &format!(r#", "uuid": "{uuid}""#))).unwrap();
    assert!(defects.len() == 1 && defects[0].to_string().contains("hosts/a/uuid"), "{defects:?}");
    let snapshot = cluster.snapshot();
    assert_eq!((snapshot.hosts.len(), &snapshot.hosts[&**uuid]), (2, &honest.hosts[&**uuid]));
    for container in snapshot.containers.values() {
        let host = &snapshot.hosts[&**container.host_uuid().unwrap()];
        assert_eq!(format!("of-{}", host.name().unwrap()), container.name().unwrap().to_string());
    }
}

#[test]
fn a_host_describes_no_other_host() {
    let mut cluster = Cluster::default();
    set(&mut cluster, "hosts/a", r#"{"hosts": [{"name": "a"}, {"name": "b", "agent_ip": "192.0.2.66"}]}"#);
    let snapshot = cluster.snapshot();
    let names: Vec<_> = snapshot.hosts.values().filter_map(|host| host.name().map(ToString::to_string)).collect();
    assert_eq!(names, ["a"]);
}

#[test]
fn no_other_host_overrules_what_this_one_says_of_itself() {
    let part = |host: &str, address: &str, vip: &str| {
        document(&format!(
            r#"{{"hosts": [{{"name": "{host}", "agent_ip": "{address}"}}],
                "services": [{{"name": "db", "stack": "data", "vip": "{vip}"}}],
                "containers": [{{"name": "db-1", "uuid": "c", "service": "data/db", "primary_ip": "{address}"}}]}}"#
        ))
    };
    let (own, other) = (part("b", "10.42.0.1", "10.42.1.1"), part("a", "192.0.2.77", "192.0.2.66"));
    // In either order, and whether or not it is known by then which part is that of this host.
    for order in [["local", "hosts/a", "hosts/b"], ["hosts/a", "hosts/b", "local"], ["hosts/b", "local", "hosts/a"]] {
        let mut cluster = Cluster::default();
        for step in order {
            match step {
                "local" => cluster.set_local(&"hosts/b".into()),
                "hosts/a" => drop(cluster.update(&step.into(), &other).unwrap()),
                _ => drop(cluster.update(&step.into(), &own).unwrap()),
            }
            cluster.snapshot();
        }
        let snapshot = cluster.snapshot();
        let address = |fields: &Map, key: &str| fields.text(key).map(ToString::to_string);
        let service = snapshot.services.values().next().unwrap();
        let container = address(snapshot.containers["c"].fields(), "primary_ip");
        assert_eq!(container.as_deref(), Some("10.42.0.1"), "{order:?}");
        let own = snapshot.hosts.values().find(|host| host.name().is_some_and(|name| **name == *"b")).unwrap();
        assert_eq!(address(own.fields(), "agent_ip").as_deref(), Some("10.42.0.1"), "{order:?}");
        assert_eq!(address(service.fields(), "vip").as_deref(), Some("10.42.1.1"), "{order:?}");
        // What a document says of a service counts on every host, and with a uuid of its own too.
        let vip = r#"{"services": [{"name": "db", "stack": "data", "vip": "10.42.9.9", "uuid": "s", "scale": 1}]}"#;
        cluster.update(&"documents/d".into(), &document(vip)).unwrap();
        let snapshot = cluster.snapshot();
        assert_eq!(snapshot.services.keys().map(|id| &**id).collect::<Vec<_>>(), ["s_db"]);
        let service = snapshot.services.values().next().unwrap();
        assert_eq!(address(service.fields(), "vip").as_deref(), Some("10.42.9.9"), "{order:?}");
        assert_eq!(service.members().len(), 2);
        cluster.forget(&"documents/d".into());
        assert_eq!(
            address(cluster.snapshot().services.values().next().unwrap().fields(), "vip").as_deref(),
            Some("10.42.1.1")
        );
    }
    // A third host has nobody's word for an address that stands for all.
    let mut cluster = Cluster::default();
    cluster.update(&"hosts/a".into(), &other).unwrap();
    assert_eq!(cluster.snapshot().services.values().next().unwrap().fields().text("vip"), None);
}

#[test]
fn only_the_owners_hosts_have_members_of_an_owned_stack() {
    let mut cluster = Cluster::default();
    for name in ["a", "b"] {
        cluster.update(&format!("hosts/{name}").into(), &host(name, &[1])).unwrap();
    }
    assert_eq!(members(&mut cluster), ["a-1", "b-1"]);
    let owners =
        |hosts: &str| document(&format!(r#"{{"tenants": {{"red": {{"hosts": [{hosts}], "stacks": ["shop"]}}}}}}"#));
    let part = Text::from(OWNERS_PART);
    cluster.update(&part, &owners(r#""b""#)).unwrap();
    assert_eq!(members(&mut cluster), ["b-1"]);
    assert_eq!(cluster.snapshot().containers.len(), 2, "it is there, without its service");
    let told = disputes(&mut cluster);
    assert!(told.len() == 1 && told[0].contains("hosts/a: services/shop/web: the stack belongs to red"), "{told:?}");
    // What is no word about owners changes nothing of it.
    let refusal = cluster.update(&part, &document(r#"{"tenants": 5}"#)).unwrap_err();
    assert!(refusal.to_string().contains("expected tenants"), "{refusal}");
    assert_eq!(members(&mut cluster), ["b-1"]);
    cluster.update(&part, &owners("")).unwrap();
    assert!(cluster.snapshot().services.is_empty() && cluster.snapshot().stacks.is_empty());
    cluster.forget(&part);
    assert_eq!((members(&mut cluster).len(), disputes(&mut cluster)), (2, Vec::new()));
}

#[test]
fn labels_of_others_name_no_host_at_balancers_that_a_tenant_has() {
    let text = |host: &str, stack: &str, label: &str, age: u8| {
        format!(
            r#"{{"host": "{host}", "hosts": [{{"name": "{host}"}}],
                "services": [{{"name": "web", "stack": "{stack}", "labels": {{"io.berth.lb": "edge", "io.berth.lb.host": "{label}"}}}}],
                "containers": [{{"name": "web-{host}", "uuid": "{host}-1", "service": "{stack}/web", "host": "{host}",
                    "primary_ip": "10.42.0.{age}", "create_index": {age}}}]}}"#
        )
    };
    let balancer = r#"{"services": [{"name": "lb", "stack": "edge", "kind": "loadBalancerService",
        "lb_config": {"port_rules": [{"source_port": 80, "selector": "io.berth.lb=edge", "target_port": 80}]}}]}"#;
    let led = |cluster: &mut Cluster, host: &str| {
        let snapshot = cluster.snapshot();
        let plan = LbPlan::of(&snapshot, find(&snapshot, "edge/lb").unwrap(), &Viewpoint::default());
        let backend = plan.route(80, host, "/").map(|route| &plan.backends[route.backend]);
        let members = backend.into_iter().flat_map(|backend| &backend.members);
        members.map(|member| member.name.to_string()).collect::<Vec<_>>().join(" ")
    };
    let mut cluster = Cluster::default();
    set(&mut cluster, "documents/edge", balancer);
    set(&mut cluster, "hosts/a", &text("a", "shop", "shop.example", 9));
    // It is older, as its host says.
    for label in ["shop.example", "SHOP.example.", "*.example", "shop.*"] {
        set(&mut cluster, "hosts/b", &text("b", "other", label, 1));
        set(&mut cluster, OWNERS_PART, "");
        assert_eq!(led(&mut cluster, "shop.example"), "web-b", "{label}");
        let owners = r#"{"tenants": {"red": {"hosts": ["a"], "stacks": ["shop"], "hostnames": ["shop.example"]}}}"#;
        set(&mut cluster, OWNERS_PART, owners);
        assert_eq!(led(&mut cluster, "shop.example"), "web-a", "{label}");
        let defects = disputes(&mut cluster);
        assert!(defects.len() == 1 && defects[0].contains("hosts/b: services/other/web/labels: "), "{defects:?}");
    }
    // Its other hosts are its own.
    set(&mut cluster, "hosts/b", &text("b", "other", "www.example", 1));
    assert_eq!(led(&mut cluster, "www.example"), "web-b");
    assert_eq!(disputes(&mut cluster), Vec::<String>::new());
}

#[test]
fn an_alias_leads_only_to_containers_of_hosts_that_say_so() {
    let text = |host: &str, kind: &str, links: &str| {
        format!(
            r#"{{"host": "{host}", "hosts": [{{"name": "{host}"}}],
                "services": [{{"name": "web", "stack": "free"}}, {{"name": "cache", "stack": "free", "kind": "{kind}", "links": {links}}}],
                "containers": [{{"name": "web-{host}", "uuid": "{host}-1", "service": "free/web", "host": "{host}"}}]}}"#
        )
    };
    let links = |cluster: &mut Cluster| {
        let snapshot = cluster.snapshot();
        let alias = snapshot.services.values().find(|service| service.name().is_some_and(|name| **name == *"cache"));
        alias.unwrap().links().iter().map(|(target, _)| target.to_string()).collect::<Vec<_>>()
    };
    let mut cluster = Cluster::default();
    cluster.set_local(&"hosts/b".into());
    set(
        &mut cluster,
        "hosts/b",
        &text("b", "service", "{}")
            .replace(r#", {"name": "cache", "stack": "free", "kind": "service", "links": {}}"#, ""),
    );
    set(&mut cluster, "hosts/m", &text("m", "dnsService", r#"{"free/web": "web"}"#));
    assert_eq!(links(&mut cluster), ["free/web"]);
    for kind in ["dnsService", "loadBalancerService", "service"] {
        set(&mut cluster, "hosts/n", &text("n", kind, r#"{"shop/web": "web", "data/db": "db"}"#));
        assert_eq!(links(&mut cluster), ["free/web"], "{kind}");
    }
    // Of its own containers it may say so.
    set(&mut cluster, "hosts/n", &text("n", "dnsService", r#"{"Free/Web": "web", "data/db": "db"}"#));
    assert_eq!(links(&mut cluster), ["Free/Web", "free/web"]);
    let led_to = |cluster: &mut Cluster, link: &str| {
        let snapshot = cluster.snapshot();
        let alias = snapshot.services.values().find(|service| service.kind() == "dnsService").unwrap();
        let host = |uuid: &Value| snapshot.hosts.get(uuid.as_text().unwrap()).and_then(|host| host.name()).cloned();
        alias.link_hosts(link).map(|hosts| hosts.iter().filter_map(host).collect::<Vec<_>>().join(" "))
    };
    assert_eq!(
        [led_to(&mut cluster, "free/web"), led_to(&mut cluster, "Free/Web")],
        ["m", "n"].map(|it| Some(it.into()))
    );
    set(&mut cluster, "hosts/n", &text("n", "dnsService", r#"{"free/web": "web"}"#));
    assert_eq!(led_to(&mut cluster, "free/web").map(|hosts| hosts.split(' ').count()), Some(2));
    // What a document says leads to all.
    let documented =
        r#"{"services": [{"name": "cache", "stack": "free", "kind": "dnsService", "links": {"free/web": "web"}}]}"#;
    set(&mut cluster, "documents/free", documented);
    assert_eq!((links(&mut cluster), led_to(&mut cluster, "free/web")), (vec!["free/web".to_owned()], None));
}

#[test]
fn a_part_that_is_no_cluster_changes_nothing() {
    let mut cluster = Cluster::default();
    cluster.update(&"a".into(), &host("a", &[1])).unwrap();
    let refusal = cluster.update(&"a".into(), &document(r#"{"hosts": 7}"#)).unwrap_err();
    assert!(refusal.to_string().contains("expected a list"), "{refusal}");
    assert_eq!(members(&mut cluster), ["a-1"]);
}

#[test]
fn a_service_with_a_dot_that_only_hosts_name_is_marked_even_in_a_stack_of_a_document() {
    let mut cluster = Cluster::default();
    let of_labels = |cluster: &mut Cluster| {
        let snapshot = cluster.snapshot();
        let mut found: Vec<_> = snapshot
            .services
            .values()
            .map(|service| (service.name().unwrap().to_string(), service.is_from_labels()))
            .collect();
        found.sort();
        found.into_iter().map(|(name, is)| format!("{name} {is}")).collect::<Vec<_>>()
    };
    let open = document(r#"{"services": [{"name": "mail", "stack": "shop"}]}"#);
    cluster.update(&"documents/open".into(), &open).unwrap();
    let host = r#"{"hosts": [{"name": "a"}], "services": [{"name": "web", "stack": "shop"}, {"name": "web.data", "stack": "shop"}]}"#;
    cluster.update(&"hosts/a".into(), &document(host)).unwrap();
    assert_eq!(of_labels(&mut cluster), ["mail false", "web false", "web.data true"]);
    let named = document(r#"{"services": [{"name": "web.data", "stack": "shop"}]}"#);
    cluster.update(&"documents/named".into(), &named).unwrap();
    assert_eq!(of_labels(&mut cluster), ["mail false", "web false", "web.data false"]);
}

#[test]
fn a_stack_is_named_by_documents_and_not_by_labels_of_containers() {
    let mut cluster = Cluster::default();
    cluster.update(&"hosts/b".into(), &host("b", &[1])).unwrap();
    let of_labels = |cluster: &mut Cluster| {
        cluster.snapshot().stacks.values().map(|stack| stack.is_from_labels()).collect::<Vec<_>>()
    };
    assert_eq!(of_labels(&mut cluster), [true]);
    let outside = document(r#"{"services": [{"name": "mail", "stack": "shop"}]}"#);
    cluster.update(&"documents/outside".into(), &outside).unwrap();
    assert_eq!(of_labels(&mut cluster), [false]);
    cluster.forget(&"documents/outside".into());
    assert_eq!(of_labels(&mut cluster), [true]);
    // It survives what followers and files have of a snapshot.
    let (again, ..) = model::objects::read(cluster.snapshot().objects());
    assert_eq!(again.stacks.values().map(|stack| stack.is_from_labels()).collect::<Vec<_>>(), [true]);
}

proptest! {
    /// However it came about, a cluster is what its parts say.
    #[test]
    fn the_way_does_not_matter(
        steps in prop::collection::vec((0_u8..4, prop::option::of(prop::collection::btree_set(1_u8..6, 0..4))), 1..20)
    ) {
        // Uuids are of all hosts here.
        let host = |name: &str, containers: &[u8]| {
            let text = serde_json::to_string(&host(name, containers)).unwrap();
            document(&text.replace(&format!("\"{name}-"), "\"u-"))
        };
        let mut cluster = Cluster::default();
        let mut last = BTreeMap::new();
        for (part, containers) in steps {
            let name = Text::from(format!("host-{part}"));
            if let Some(containers) = containers {
                let containers: Vec<_> = containers.into_iter().collect();
                cluster.update(&name, &host(&name, &containers)).unwrap();
                last.insert(name, containers);
            } else {
                cluster.forget(&name);
                last.remove(&name);
            }
        }
        let mut anew = Cluster::default();
        for (name, containers) in &last {
            anew.update(name, &host(name, containers)).unwrap();
        }
        prop_assert_eq!(cluster.snapshot(), anew.snapshot());
        prop_assert!(cluster.parts.keys().eq(last.keys()));
    }
}
