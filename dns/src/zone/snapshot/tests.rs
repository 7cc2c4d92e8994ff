//! Going on from one zone to the next.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::{Node, Scope, Searched, Target, reverse_name};
use super::*;
use crate::name::Folded;

/// One container of a small cluster in which names, addresses and services collide.
#[derive(Clone, Debug)]
struct Member {
    name: u8,
    address: Option<u8>,
    state: bool,
    health: u8,
    shares: Option<u8>,
    service: u8,
    age: u8,
    links: Option<u8>,
}

fn member() -> impl Strategy<Value = Option<Member>> {
    let parts = (
        0..6u8,
        prop::option::weighted(0.8, 0..8u8),
        prop::bool::weighted(0.8),
        0..3u8,
        prop::option::weighted(0.2, 0..8u8),
        0..6u8,
        0..4u8,
        prop::option::weighted(0.3, 0..8u8),
    );
    let member = parts.prop_map(|(name, address, state, health, shares, service, age, links)| Member {
        name,
        address,
        state,
        health,
        shares,
        service,
        age,
        links,
    });
    prop::option::weighted(0.9, member)
}

/// Services 0 and 1 have health checks and ports, 2 is a sidekick of 0, 3 is an alias of 0, 1 and 4, which is an
/// alias of 3 and 2, 5 is Kubernetes'.
fn snapshot(members: &[Option<Member>]) -> Snapshot {
    on_hosts(members, false)
}

/// The same; with `hosts` every other container is on another host, some of them on networks that are routed.
fn on_hosts(members: &[Option<Member>], hosts: bool) -> Snapshot {
    let kinds = ["service", "service", "service", "dnsService", "dnsService", "kubernetesService"];
    let mut objects = Vec::new();
    for (id, kind) in kinds.iter().enumerate() {
        let (uuid, primary) = if id == 2 { (0, 0) } else { (id, id) };
        let port = usize::from(id < 2) * 80;
        objects.push(format!(
            r#"{{"metadata_kind":"service","uuid":"s{uuid}","name":"svc{id}","primary_service_name":"svc{primary}",
                "stack_name":"Shop","kind":"{kind}","health_check":{{"port":{port}}},"expose":["80/tcp"]}}"#
        ));
    }
    for (service, targets) in [(3, [0, 1, 4]), (4, [3, 2, 9]), (0, [3, 1, 9])] {
        for target in targets {
            objects.push(format!(
                r#"{{"metadata_kind":"serviceLink","service_uuid":"s{service}","key":"shop/svc{target}","value":"l{target}"}}"#
            ));
        }
    }
    if hosts {
        objects.extend((0..2).map(|host| format!(r#"{{"metadata_kind":"host","uuid":"h{host}","name":"h{host}"}}"#)));
        objects.push(r#"{"metadata_kind":"defaultData","self":{"host":{"uuid":"h0"}}}"#.to_owned());
    }
    for (id, member) in members.iter().enumerate() {
        let Some(member) = member else { continue };
        let address = member.address.map_or_else(|| "null".to_owned(), |last| format!("\"10.0.0.{last}\""));
        let state = if member.state { "running" } else { "stopped" };
        let health = ["null", "\"healthy\"", "\"unhealthy\""][usize::from(member.health)];
        let shares = member.shares.map_or_else(|| "null".to_owned(), |other| format!("\"c{other}\""));
        let routed = if id % 3 == 0 || member.address.is_none() { "" } else { &*address };
        let host = format!(r#""host_uuid":"h{}","routed_ips":[{routed}],"#, id % 2);
        let host = if hosts { host } else { String::new() };
        objects.push(format!(
            r#"{{"metadata_kind":"container","uuid":"c{id}",{host}"name":"n{}","primary_ip":{address},"state":"{state}",
                "health_state":{health},"network_from_container_uuid":{shares},"create_index":{}}}"#,
            member.name, member.age
        ));
        if !matches!(member.service, 3 | 4) {
            let uuid = if member.service == 2 { 0 } else { member.service };
            objects.push(format!(
                r#"{{"metadata_kind":"serviceContainerLink","service_uuid":"s{uuid}","service_name":"svc{}","container_uuid":"c{id}"}}"#,
                member.service
            ));
        }
        if let Some(other) = member.links {
            objects.push(format!(
                r#"{{"metadata_kind":"containerLink","container_uuid":"c{id}","key":"peer","value":"c{other}"}}"#
            ));
        }
    }
    let objects: Vec<model::Map> = objects.iter().map(|object| serde_json::from_str(object).unwrap()).collect();
    model::objects::read(objects).0
}

/// The keys whose values differ.
fn differing<K: Ord + Clone, V: PartialEq + Clone>(
    one: impl IntoIterator<Item = (K, V)>,
    other: impl IntoIterator<Item = (K, V)>,
) -> Vec<K> {
    let (one, other): (BTreeMap<K, V>, BTreeMap<K, V>) = (one.into_iter().collect(), other.into_iter().collect());
    let keys: BTreeSet<&K> = one.keys().chain(other.keys()).collect();
    keys.into_iter().filter(|key| one.get(key) != other.get(key)).cloned().collect()
}

/// Every name that may have something to it, and what that is.
fn names(zone: &Zone) -> BTreeMap<Folded, (Option<Node>, bool)> {
    let services: Vec<Folded> = zone.names.iter().map(|(name, _)| name.clone()).collect();
    let ports =
        services.clone().into_iter().flat_map(|name| ["_80._tcp", "_81._tcp"].map(|port| name.under(port).unwrap()));
    let addresses = (0..9).map(|last| reverse_name(([10, 0, 0, last]).into()));
    let all = services.into_iter().chain(ports).chain(addresses);
    let all = all.flat_map(|name| name.with_ancestors().map(Folded::from_wire).collect::<Vec<_>>());
    let records = |name: &Folded| {
        // Of a service's ports it does not matter whether somebody asked for them yet.
        let node = zone.node(name.wire()).map(|node| Node { ports: OnceLock::new(), ..(**node).clone() });
        (node.clone(), zone.has_below(name.wire()))
    };
    all.map(|name| (name.clone(), records(&name))).filter(|(_, records)| *records != (None, false)).collect()
}

fn links(zone: &Zone) -> BTreeMap<Text, Option<Node>> {
    let uuids = (0..8).map(|id| Text::from(format!("c{id}")));
    let aliases = zone.linked.iter().map(|(id, _)| id.clone());
    let node = |id: &Text| zone.target(&Target::Id(id.clone())).map(|node| (**node).clone());
    uuids.chain(aliases).map(|id| (id.clone(), node(&id))).collect()
}

fn scopes(zone: &Zone) -> Vec<(u8, Option<Arc<Scope>>)> {
    (0..9).map(|last| (last, zone.scope([10, 0, 0, last].into()).cloned())).collect()
}

fn assert_same(zone: &Zone, rebuilt: &Zone) {
    assert_eq!(differing(names(zone), names(rebuilt)), Vec::<Folded>::new());
    assert_eq!(differing(zone.below.iter(), rebuilt.below.iter()), Vec::<&Folded>::new());
    assert_eq!(differing(links(zone), links(rebuilt)), Vec::<Text>::new());
    assert_eq!(differing(scopes(zone), scopes(rebuilt)), Vec::<u8>::new());
    assert_eq!(zone.defects(), rebuilt.defects());
    assert_eq!(zone.unreachable(), rebuilt.unreachable());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Going on from the zone before gives what building anew gives, whatever changed.
    #[test]
    fn advancing_is_building_anew(steps in prop::collection::vec(prop::collection::vec(member(), 8), 2..6), hosts: bool) {
        let mut old = on_hosts(&steps[0], hosts);
        let mut zone = build(&old, &Settings::default(), 1);
        for (step, members) in steps.iter().enumerate().skip(1) {
            let new = on_hosts(members, hosts).succeeding(&old);
            zone = advance(&zone, &new).expect("only containers change");
            assert_same(&zone, &build(&new, &Settings::default(), 1));
            prop_assert_eq!(usize::try_from(zone.serial).unwrap(), step + 1);
            old = new;
        }
    }
}

#[test]
fn no_container_or_service_takes_the_name_of_the_name_server_or_of_a_host() {
    let text = "
hosts: [{name: one, agent_ip: 192.0.2.1}]
services:
  - {name: ns, stack: dns}
  - {name: one.hosts, stack: dns}
  - {name: two, stack: hosts.dns}
  - {name: web, stack: shop}
  - {name: NS, stack: dns, kind: dnsService, links: {shop/web: web}}
containers:
  - {name: ns.dns, primary_ip: 10.0.0.1}
  - {name: One.Hosts.dns, primary_ip: 10.0.0.2}
  - {name: a, service: dns/ns, primary_ip: 10.0.0.3}
  - {name: b, service: dns/one.hosts, primary_ip: 10.0.0.4}
  - {name: c, service: hosts.dns/two, primary_ip: 10.0.0.5}
  - {name: d, service: shop/web, primary_ip: 10.0.0.6}
";
    let snapshot = source::format::read(text).unwrap().snapshot;
    // Where it listens on all addresses, the name server's name has no record.
    for listen in [None, Some([192, 0, 2, 9].into())] {
        let zone = build(&snapshot, &Settings { listen, ..Settings::default() }, 1);
        let zone = advance(&zone, &snapshot).unwrap();
        for (name, expected) in
            [("ns.dns", listen), ("one.hosts.dns", Some([192, 0, 2, 1].into())), ("two.hosts.dns", None)]
        {
            let name = Folded::parse(&format!("{name}.rancher.internal")).unwrap();
            let expected = expected.map(|address| Node::addresses([address], 1).sets);
            assert_eq!(zone.node(name.wire()).map(|node| node.sets.clone()), expected, "{name} {listen:?}");
        }
        for name in ["d.rancher.internal", "web.shop.rancher.internal", "a.rancher.internal"] {
            assert!(zone.node(Folded::parse(name).unwrap().wire()).is_some(), "{name}");
        }
        assert!(zone.node(Folded::parse("rancher.internal").unwrap().wire()).is_none());
    }
}

#[test]
fn no_container_of_kubernetes_takes_the_name_of_a_host() {
    let text = "
hosts: [{name: one, agent_ip: 192.0.2.1}]
services: [{name: hosts, stack: dns, kind: kubernetesService}]
containers:
  - {name: one, service: dns/hosts, primary_ip: 10.0.0.1}
  - {name: two, service: dns/hosts, primary_ip: 10.0.0.2}
";
    let snapshot = source::format::read(text).unwrap().snapshot;
    let settings = Settings { domain: Folded::parse("svc.cluster.local").unwrap(), ..Settings::default() };
    let zone = build(&snapshot, &settings, 1);
    for (name, expected) in [("one.hosts.dns", Some([192, 0, 2, 1].into())), ("two.hosts.dns", None)] {
        let name = Folded::parse(&format!("{name}.svc.cluster.local")).unwrap();
        let expected = expected.map(|address| Node::addresses([address], 1).sets);
        assert_eq!(zone.node(name.wire()).map(|node| node.sets.clone()), expected, "{name}");
    }
}

#[test]
fn no_service_stands_in_for_the_metadata_service_nor_by_labels_for_a_name_with_a_dot() {
    let text = "
services:
  - {name: web, stack: shop}
  - {name: github.com, stack: shop, kind: dnsService, links: {shop/web: web}}
  - {name: Rancher-Metadata, stack: shop}
containers:
  - {name: a, service: shop/web, primary_ip: 10.0.0.1}
  - {name: b, service: shop/Rancher-Metadata, primary_ip: 10.0.0.2}
";
    let mut snapshot = source::format::read(text).unwrap().snapshot;
    let searched = |snapshot: &Snapshot| {
        let zone = build(snapshot, &Settings::default(), 1);
        let names = ["web", "github.com", "rancher-metadata"].map(|name| format!("{name}.shop.rancher.internal"));
        names.map(|name| zone.node(Folded::parse(&name).unwrap().wire()).unwrap().searched.clone())
    };
    assert_eq!(searched(&snapshot), [Searched::All, Searched::All, Searched::Nobody]);
    let mut of_a_host = snapshot.clone();
    let dotted =
        snapshot.services.values().find(|service| service.name().is_some_and(|name| name.contains('.'))).unwrap();
    of_a_host.services.insert(Arc::new(dotted.known_by_labels()));
    assert_eq!(searched(&of_a_host), [Searched::All, Searched::Nobody, Searched::Nobody]);
    let stack = snapshot.stacks.values().next().unwrap().known_by_labels();
    snapshot.stacks.insert(Arc::new(stack));
    let own = Searched::Stack(Arc::new(Folded::parse("shop.rancher.internal").unwrap()));
    assert_eq!(searched(&snapshot), [own, Searched::Nobody, Searched::Nobody]);
}

#[test]
fn what_changes_more_than_containers_is_built_anew() {
    let old = snapshot(&[]);
    let zone = build(&old, &Settings::default(), 1);
    assert!(advance(&zone, &old).is_some());
    let object = |json: &str| serde_json::from_str::<model::Map>(json).unwrap();
    for json in [
        r#"{"metadata_kind":"service","uuid":"s9","name":"more","stack_name":"shop"}"#,
        r#"{"metadata_kind":"service","uuid":"s1","name":"svc1","stack_name":"shop","vip":"10.43.0.1"}"#,
        r#"{"metadata_kind":"host","uuid":"h1","name":"h"}"#,
        r#"{"metadata_kind":"environment","uuid":"e1","name":"e"}"#,
        r#"{"metadata_kind":"defaultData","self":{"host":{"uuid":"h1"}}}"#,
    ] {
        let (new, ..) = model::objects::read(old.objects().chain([object(json)]));
        assert!(advance(&zone, &new).is_none(), "{json}");
    }
}
