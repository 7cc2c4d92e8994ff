//! Several hosts: containers of others, ports that are published, and equal addresses.

use model::Service;
use model::entity::LINK_HOSTS;

use super::*;
use crate::zone::LeftOut;

/// Two hosts with the engine's own bridge each, and one compose project on both; this is `one`.
const TWO_HOSTS: &str = r"
berth: 1
host: one
hosts: [{name: one, agent_ip: 192.0.2.1}, {name: two, agent_ip: 192.0.2.2}, {name: far, agent_ip: 192.0.2.3}]
services:
  - {name: web, stack: shop, expose: [80/tcp]}
  - {name: api, stack: shop, expose: [80/tcp]}
  - {name: lan, stack: shop, expose: [80/tcp]}
  - {name: all, stack: shop, kind: dnsService, links: {shop/web: web, shop/api: api}}
containers:
  - {name: web-1, service: shop/web, host: one, primary_ip: 172.17.0.2, routed_ips: []}
  - {name: web-2, service: shop/web, host: two, primary_ip: 172.17.0.3, routed_ips: [], ports: ['80:80/tcp']}
  - {name: web-3, service: shop/web, host: far, primary_ip: 172.17.0.2, routed_ips: [], ports: ['8080:80/tcp']}
  - {name: web-4, service: shop/web, host: far, primary_ip: 172.17.0.4, routed_ips: []}
  - {name: api-1, service: shop/api, host: two, primary_ip: 172.17.0.2, routed_ips: [], links: {w: web-3}}
  - {name: lan-1, service: shop/lan, host: two, primary_ip: 172.17.0.5, ips: [172.17.0.5, 10.9.0.5], routed_ips: [10.9.0.5]}
  - {name: lan-2, service: shop/lan, host: far, primary_ip: 10.9.0.6}
  - {name: net, host: two, primary_ip: 192.0.2.2}
  - {name: side, host: far, network_from: web-3}
  - {name: far.hosts.dns, host: one, primary_ip: 172.17.0.66, routed_ips: []}
  - {name: asks, host: one, primary_ip: 172.17.0.9, routed_ips: [], links: {w: web-3, x: web-2}}
";

fn two_hosts() -> Zone {
    let reading = source::format::read(TWO_HOSTS).unwrap();
    assert_eq!(reading.defects, []);
    snapshot::build(&reading.snapshot, &settings(), 1)
}

#[test]
fn no_name_gives_an_address_that_is_another_container_here() {
    check(
        &two_hosts(),
        "
        web.shop.rancher.internal. A -> NOERROR A 172.17.0.2 A 192.0.2.2
        all.shop.rancher.internal. A -> NOERROR A 172.17.0.2 A 192.0.2.2
        web-1.rancher.internal. A -> NOERROR A 172.17.0.2
        web-2.rancher.internal. A -> NOERROR A 192.0.2.2
        web-3.rancher.internal. A -> NOERROR
        side.rancher.internal. A -> NOERROR
        api.shop.rancher.internal. A -> NOERROR
        lan.shop.rancher.internal. A -> NOERROR A 10.9.0.5 A 10.9.0.6
        net.rancher.internal. A -> NOERROR A 192.0.2.2
        [172.17.0.9] w. A -> NOERROR
        [172.17.0.9] x. A -> NOERROR A 192.0.2.2
        2.0.17.172.in-addr.arpa. PTR -> NOERROR PTR web-1.rancher.internal.
        3.0.17.172.in-addr.arpa. PTR -> forward 3.0.17.172.in-addr.arpa.
        5.0.9.10.in-addr.arpa. PTR -> NOERROR PTR lan-1.rancher.internal.
        ",
    );
}

#[test]
fn service_records_name_the_host_where_a_port_is_published() {
    check(
        &two_hosts(),
        "
        _80._tcp.web.shop.rancher.internal. SRV -> NOERROR SRV 0 0 80 two.hosts.dns.rancher.internal. SRV 0 0 80 web-1.rancher.internal. SRV 0 0 8080 far.hosts.dns.rancher.internal.
        _80._tcp.lan.shop.rancher.internal. SRV -> NOERROR SRV 0 0 80 lan-1.rancher.internal. SRV 0 0 80 lan-2.rancher.internal.
        _80._tcp.api.shop.rancher.internal. SRV -> NXDOMAIN
        far.hosts.dns.rancher.internal. A -> NOERROR A 192.0.2.3
        hosts.dns.rancher.internal. A -> NOERROR
        dns.rancher.internal. A -> NOERROR
        none.hosts.dns.rancher.internal. A -> NXDOMAIN
        far.hosts.dns. A -> forward far.hosts.dns.
        ",
    );
}

#[test]
fn what_is_left_out_is_told_with_its_reason() {
    let zone = two_hosts();
    let name = Folded::parse("web.shop.rancher.internal").unwrap();
    let left_out = zone.left_out(None, name.wire());
    let told: Vec<_> = left_out.iter().map(|one| (&*one.container, one.host.as_deref().unwrap())).collect();
    assert_eq!(told, [("web-3", "far"), ("web-4", "far")]);
    assert!(left_out[0].reason.contains("under another number") && left_out[1].reason.contains("publishes no port"));
    let unreached = zone.unreachable();
    assert_eq!((unreached.containers, unreached.hosts.len()), (3, 2));
    assert!(unreached.example.is_some());
    // Without a host of its own, a zone leaves nobody out.
    let everywhere = source::format::read(&TWO_HOSTS.replace("host: one\n", "")).unwrap();
    let everywhere = snapshot::build(&everywhere.snapshot, &settings(), 1);
    assert_eq!(everywhere.unreachable(), crate::zone::Unreached::default());
    check(&everywhere, "web-3.rancher.internal. A -> NOERROR A 172.17.0.2");
}

/// Where more is known than this host was told.
const HINT: &str = ": `agent health` on its host, or the health check of its engine, has the reason";

#[test]
fn members_that_are_not_well_are_left_out_with_their_reason() {
    const WEB: &str = r"
berth: 1
hosts: [{name: one, agent_ip: 192.0.2.1}]
services: [{name: web, stack: shop, health_check: {port: 80}}]
containers:
  - {name: well, service: shop/web, host: one, primary_ip: 10.0.0.1, health_state: healthy}
  - {name: ill, service: shop/web, host: one, primary_ip: 10.0.0.2, health_state: unhealthy}
  - {name: young, service: shop/web, host: one, primary_ip: 10.0.0.3, health_state: initializing}
  - {name: unasked, service: shop/web, host: one, primary_ip: 10.0.0.4}
  - {name: ending, service: shop/web, host: one, primary_ip: 10.0.0.5, state: stopping, health_state: healthy}
  - {name: ended, service: shop/web, host: one, primary_ip: 10.0.0.6, state: stopped}
  - {name: judged, service: shop/web, host: one, primary_ip: 10.0.0.7, health_state: unhealthy, health_reason: '2 of 3 hosts: refused (a, b); c: well', health_since: 1000}
";
    let zone = snapshot::build(&source::format::read(WEB).unwrap().snapshot, &settings(), 1);
    check(&zone, "web.shop.rancher.internal. A -> NOERROR A 10.0.0.1");
    let left_out = zone.left_out(None, Folded::parse("web.shop.rancher.internal").unwrap().wire());
    let reason = |one: &LeftOut| one.reason.strip_suffix(HINT).unwrap_or(&one.reason).to_owned();
    let mut named: Vec<_> = left_out.iter().map(|one| (&*one.container, reason(one))).collect();
    named.sort_unstable();
    let unknown = "nothing is known of its health, and its service has a health check";
    let expected = [
        ("ending", "it is stopping"),
        ("ill", "it is unhealthy"),
        ("judged", "it is unhealthy: 2 of 3 hosts: refused (a, b); c: well"),
        ("unasked", unknown),
        ("young", "it has not been well since it was started"),
    ];
    assert_eq!(named, expected.map(|(name, reason)| (name, reason.to_owned())));
    assert_eq!(left_out.iter().find_map(|one| one.since), Some(1000));
}

/// Two hosts, both with a network of this subnet that is declared routed; one of them has this host's address. This is `one`.
const SAME_ADDRESSES: &str = r"
berth: 1
host: one
hosts: [{name: one, agent_ip: 192.0.2.1}, {name: two, agent_ip: 192.0.2.2}, {name: copy, agent_ip: 192.0.2.1}]
services: [{name: web, stack: shop, expose: [80/tcp]}]
containers:
  - {name: rt1, host: one, primary_ip: 172.40.0.2, routed_ips: [172.40.0.2]}
  - {name: rt2, host: two, primary_ip: 172.40.0.2, routed_ips: [172.40.0.2]}
  - {name: rt3, host: two, primary_ip: 172.40.0.3, routed_ips: [172.40.0.3]}
  - {name: pn, service: shop/web, host: copy, primary_ip: 172.17.0.2, routed_ips: [], ports: ['80:80/tcp']}
  - {name: pm, service: shop/web, host: copy, primary_ip: 172.17.0.3, routed_ips: [], ports: ['8080:80/tcp']}
";

#[test]
fn no_name_leads_to_what_has_the_same_address_here() {
    let snapshot = source::format::read(SAME_ADDRESSES).unwrap().snapshot;
    let zone = snapshot::build(&snapshot, &settings(), 1);
    check(
        &zone,
        "
        rt1.rancher.internal. A -> NOERROR A 172.40.0.2
        rt2.rancher.internal. A -> NOERROR
        rt3.rancher.internal. A -> NOERROR A 172.40.0.3
        2.0.40.172.in-addr.arpa. PTR -> NOERROR PTR rt1.rancher.internal.
        pn.rancher.internal. A -> NOERROR
        web.shop.rancher.internal. A -> NOERROR
        _80._tcp.web.shop.rancher.internal. SRV -> NXDOMAIN
        ",
    );
    let reason = |name: &str| zone.left_out(None, Folded::parse(name).unwrap().wire())[0].reason.clone();
    assert!(reason("rt2.rancher.internal").contains("a subnet of its own"));
    assert!(reason("pn.rancher.internal").contains("--public-ip"));
    assert_eq!(zone.unreachable().containers, 3);
    // As soon as nothing here has its address any more, the other one is reached.
    let mut without = snapshot.clone();
    let gone = without.containers.values().find(|container| container.name().is_some_and(|name| **name == *"rt1"));
    let uuid = gone.unwrap().uuid().clone();
    without.containers.remove(&uuid);
    let next = snapshot::advance(&zone, &without).unwrap();
    check(&next, "rt2.rancher.internal. A -> NOERROR A 172.40.0.2");
    assert_eq!(next.unreachable().containers, 2);
    check(&snapshot::advance(&next, &snapshot).unwrap(), "rt2.rancher.internal. A -> NOERROR");
}

#[test]
fn an_alias_by_the_word_of_hosts_leads_to_their_containers_alone() {
    let reading = source::format::read(TWO_HOSTS).unwrap();
    let mut snapshot = reading.snapshot;
    let host = |name: &str| {
        let host = snapshot.hosts.values().find(|host| host.name().is_some_and(|own| **own == *name));
        Value::Text(host.unwrap().uuid().clone())
    };
    let hosts =
        [("shop/web", ["two"]), ("shop/api", ["far"])].map(|(link, names)| (link.into(), Value::list(names.map(host))));
    let all = snapshot.services.values().find(|service| service.name().is_some_and(|name| **name == *"all")).unwrap();
    let fields = all.fields().with([(LINK_HOSTS.into(), Value::Map(hosts.into_iter().collect()))]);
    let all = Service::new(fields, all.members().clone(), all.links().clone()).unwrap();
    snapshot.services.insert(all.into());
    check(
        &snapshot::build(&snapshot, &settings(), 1),
        "
        web.shop.rancher.internal. A -> NOERROR A 172.17.0.2 A 192.0.2.2
        all.shop.rancher.internal. A -> NOERROR A 192.0.2.2
        ",
    );
}
