//! Questions and answers: a line each.

mod files;
mod hosts;
mod search;

use hickory_proto::rr::{Name, RData, Record};
use model::{Entity, Value};

use super::*;
use crate::testing::{self, message};
use crate::zone::answers::DnsAnswers;
use crate::zone::{Settings, WhenNoneHealthy, Zone, snapshot};

const SHOP: &str = r"
berth: 1
environment: {name: prod, region_name: eu}
hosts: [{name: h1}, {name: win1}]
services:
  - {name: Web, stack: Shop, links: {data/db: Database, data/gone: gone, shop/api: api, data/out: outside}, expose: [80/tcp],
     health_check: {port: 80}}
  - {name: log, stack: Shop, sidekick_of: Web}
  - {name: api, stack: Shop, health_check: {port: 9000}}
  - {name: sick, stack: Shop, health_check: {port: 1}}
  - {name: db, stack: data}
  - {name: pending, stack: data}
  - {name: empty, stack: data}
  - {name: v, stack: data, vip: 10.43.0.7}
  - {name: ext, stack: data, kind: externalService, external_ips: [198.51.100.7, '2001:db8::7']}
  - {name: out, stack: data, kind: externalService, hostname: www.example.com}
  - {name: both, stack: data, kind: externalService, hostname: www.example.com, external_ips: [198.51.100.9]}
  - {name: any, stack: data, kind: dnsService, links: {data/db: x, data/ext: y, data/nowhere: z}}
  - {name: a, stack: loop, kind: dnsService, links: {loop/b: b, data/v: v}}
  - {name: b, stack: loop, kind: dnsService, links: {loop/a: a}}
  - {name: heap, stack: kube, kind: kubernetesService}
containers:
  - {name: web-1, service: Shop/Web, host: h1, primary_ip: 10.42.0.1, ips: [10.42.0.1, 'fd00::1'], health_state: healthy}
  - {name: web-2, service: Shop/Web, host: win1, primary_ip: 10.42.0.2, health_state: healthy}
  - {name: web-3, service: Shop/Web, host: win1, primary_ip: 10.42.0.3, health_state: unhealthy}
  - {name: web-4, service: Shop/Web, host: win1, primary_ip: 10.42.0.4, health_state: healthy, state: stopped}
  - {name: log-1, service: Shop/Web/log, network_from: web-1}
  - {name: api-1, service: Shop/api, primary_ip: 10.42.1.1, health_state: updating-healthy, state: starting}
  - {name: api-2, service: Shop/api, primary_ip: 10.42.1.2}
  - {name: sick-1, service: Shop/sick, primary_ip: 10.42.2.1, health_state: unhealthy}
  - {name: sick-2, service: Shop/sick, primary_ip: 10.42.2.2, health_state: initializing}
  - {name: sick-3, service: Shop/sick, health_state: unhealthy}
  - {name: db-1, service: data/db, primary_ip: 10.42.3.1}
  - {name: db-2, service: data/db}
  - {name: pending-1, service: data/pending, state: starting}
  - {name: heap-1, service: kube/heap, primary_ip: 10.42.4.1}
  - {name: alone, primary_ip: 'fd00::5', dns: [192.0.2.53, 127.0.0.11], links: {peer: db-1}}
  - {name: old, primary_ip: 10.42.5.1, state: stopped, create_index: 2}
  - {name: twice, uuid: t1, primary_ip: 10.42.5.2, state: running, create_index: 1}
";

fn settings() -> Settings {
    Settings { listen: Some("169.254.169.251".parse().unwrap()), ..Settings::default() }
}

fn shop(settings: &Settings) -> Zone {
    let reading = source::format::read(SHOP).unwrap();
    assert_eq!(reading.defects, []);
    snapshot::build(&reading.snapshot, settings, 7)
}

/// The records as text, sorted: `A 10.42.0.1`.
fn show(records: &[Record]) -> String {
    let mut records: Vec<_> = records
        .iter()
        .map(|record| format!(" {} {}", record.record_type(), record.data).trim_end().to_owned())
        .collect();
    records.sort();
    records.concat()
}

/// What the client gets, in one line.
fn ask(zone: &Zone, client: &str, question: &str) -> String {
    let (text, kind) = question.split_once(' ').unwrap();
    let name = Name::from_ascii(text).unwrap();
    let reply = match testing::ask(zone, client, &message(text, kind.parse().unwrap()), 0) {
        Ok(reply) => reply,
        Err(forward) => {
            let aliases = show(&forward.aliases);
            let upstreams: Vec<_> = forward.upstreams.iter().map(|upstream| format!(" at {upstream}")).collect();
            let fallback = forward.fallback.map(|reply| format!(" or{}", show(&reply.answers))).unwrap_or_default();
            return format!("forward {}{}{aliases}{fallback}", forward.question.folded, upstreams.concat());
        }
    };
    assert!(reply.metadata.authoritative, "{question}");
    let code = reply.metadata.response_code;
    if let Some(first) = reply.answers.first() {
        assert!(first.name.eq_case(&name), "{question}: owner {}", first.name);
    } else if code != ResponseCode::ServFail {
        let soa = &reply.authorities[0];
        assert_eq!((soa.record_type(), soa.ttl), (RecordType::SOA, zone.negative_ttl), "{question}");
    }
    let code = match code {
        ResponseCode::NoError => "NOERROR".to_owned(),
        ResponseCode::NXDomain => "NXDOMAIN".to_owned(),
        code => format!("{code:?}"),
    };
    format!("{code}{}", show(&reply.answers))
}

/// Lines of `[client] NAME TYPE -> OUTCOME`.
fn check(zone: &Zone, lines: &str) {
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (question, expected) = line.split_once(" -> ").unwrap();
        let (client, question) = match question.strip_prefix('[') {
            Some(rest) => rest.split_once("] ").unwrap(),
            None => ("192.0.2.99", question),
        };
        assert_eq!(ask(zone, client, question), expected, "{line}");
    }
}

#[test]
fn names_of_services_and_containers() {
    check(
        &shop(&settings()),
        "
        web.shop.rancher.internal. A -> NOERROR A 10.42.0.1 A 10.42.0.2
        WEB.Shop.Rancher.Internal. A -> NOERROR A 10.42.0.1 A 10.42.0.2
        web.shop.rancher.internal. AAAA -> NOERROR AAAA fd00::1
        log.web.shop.rancher.internal. A -> NOERROR A 10.42.0.1
        web-2.rancher.internal. A -> NOERROR A 10.42.0.2
        log-1.rancher.internal. A -> NOERROR A 10.42.0.1
        web-3.rancher.internal. A -> NOERROR A 10.42.0.3
        web-4.rancher.internal. A -> NXDOMAIN
        old.rancher.internal. A -> NXDOMAIN
        alone.rancher.internal. AAAA -> NOERROR AAAA fd00::5
        alone.rancher.internal. A -> NOERROR
        v.data.rancher.internal. A -> NOERROR A 10.43.0.7
        heap.kube.svc.cluster.local. A -> NOERROR A 10.42.4.1
        heap-1.heap.kube.svc.cluster.local. A -> NOERROR A 10.42.4.1
        heap.kube.rancher.internal. A -> NXDOMAIN
        empty.data.rancher.internal. A -> NXDOMAIN
        pending.data.rancher.internal. A -> NOERROR
        rancher-metadata.rancher.internal. A -> NOERROR A 169.254.169.250
        ",
    );
}

#[test]
fn only_who_may_be_asked_is_named() {
    check(&shop(&settings()), "api.shop.rancher.internal. A -> NOERROR A 10.42.1.1");
    for (policy, expected) in [
        (WhenNoneHealthy::Last, "NOERROR A 10.42.2.2"),
        (WhenNoneHealthy::All, "NOERROR A 10.42.2.1 A 10.42.2.2"),
        (WhenNoneHealthy::None, "NOERROR"),
    ] {
        let zone = shop(&Settings { when_none_healthy: policy, ..settings() });
        check(&zone, &format!("sick.shop.rancher.internal. A -> {expected}"));
    }
}

#[test]
fn other_types_and_empty_names_are_no_data() {
    check(
        &shop(&settings()),
        "
        web.shop.rancher.internal. MX -> NOERROR
        web.shop.rancher.internal. CNAME -> NOERROR
        db.data.rancher.internal. AAAA -> NOERROR
        shop.rancher.internal. A -> NOERROR
        _tcp.web.shop.rancher.internal. A -> NOERROR
        x.shop.rancher.internal. A -> NXDOMAIN
        rancher.internal. A -> NOERROR
        heap.kube.svc.cluster.local. MX -> NOERROR
        1.0.42.10.in-addr.arpa. A -> NOERROR
        web.shop MX -> NOERROR
        ",
    );
}

#[test]
fn the_apex_tells_about_the_zone() {
    check(
        &shop(&settings()),
        "
        rancher.internal. SOA -> NOERROR SOA ns.dns.rancher.internal. hostmaster.rancher.internal. 7 3600 600 86400 1
        rancher.internal. NS -> NOERROR NS ns.dns.rancher.internal.
        ns.dns.rancher.internal. A -> NOERROR A 169.254.169.251
        ns.dns.rancher.internal. AAAA -> NOERROR
        ",
    );
}

#[test]
fn external_services_and_aliases() {
    check(
        &shop(&settings()),
        "
        ext.data.rancher.internal. A -> NOERROR A 198.51.100.7
        ext.data.rancher.internal. AAAA -> NOERROR AAAA 2001:db8::7
        out.data.rancher.internal. A -> forward www.example.com. CNAME www.example.com.
        out.data.rancher.internal. CNAME -> NOERROR CNAME www.example.com.
        both.data A -> forward www.example.com. CNAME www.example.com. or A 198.51.100.9
        any.data.rancher.internal. A -> NOERROR A 10.42.3.1 A 198.51.100.7
        any.data.rancher.internal. AAAA -> NOERROR AAAA 2001:db8::7
        a.loop.rancher.internal. A -> NOERROR A 10.43.0.7
        b.loop.rancher.internal. A -> NOERROR A 10.43.0.7
        ",
    );
}

#[test]
fn pointers_descriptions_and_services() {
    check(
        &shop(&settings()),
        "
        1.0.42.10.in-addr.arpa. PTR -> NOERROR PTR web-1.rancher.internal.
        5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa. PTR -> NOERROR PTR alone.rancher.internal.
        7.0.43.10.in-addr.arpa. PTR -> NOERROR PTR v.data.rancher.internal.
        4.0.42.10.in-addr.arpa. PTR -> forward 4.0.42.10.in-addr.arpa.
        _80._tcp.web.shop.rancher.internal. SRV -> NOERROR SRV 0 0 80 web-1.rancher.internal. SRV 0 0 80 web-2.rancher.internal.
        _81._tcp.web.shop.rancher.internal. SRV -> NXDOMAIN
        web.shop.rancher.internal. ANY -> NOERROR HINFO RFC8482
        www.example.com. ANY -> forward www.example.com.
        _tcp.web.shop.rancher.internal. A -> NOERROR
        _udp.web.shop.rancher.internal. A -> NXDOMAIN
        _80._tcp.web.shop.rancher.internal. A -> NOERROR
        ",
    );
    let zone = shop(&settings());
    let reply = |name, kind| testing::ask(&zone, "192.0.2.1", &message(name, kind), 0).unwrap();
    let service = reply("_80._tcp.web.shop.rancher.internal.", RecordType::SRV);
    assert_eq!(show(&service.additionals), " A 10.42.0.1 A 10.42.0.2 AAAA fd00::1");
    let text = reply("web-1.rancher.internal.", RecordType::TXT);
    let RData::TXT(text) = &text.answers[0].data else { panic!() };
    let strings: Vec<_> = text.txt_data.iter().map(|string| str::from_utf8(string).unwrap()).collect();
    assert_eq!(strings, ["stack=Shop", "service=Web", "host=h1", "state=running"]);
}

#[test]
fn several_addresses_take_turns() {
    let zone = shop(&settings());
    let message = message("web.shop.rancher.internal.", RecordType::A);
    let first = |turn| testing::ask(&zone, "192.0.2.1", &message, turn).unwrap().answers[0].data.to_string();
    assert_eq!([first(0), first(1), first(2)], ["10.42.0.1", "10.42.0.2", "10.42.0.1"]);
}

/// A snapshot of these objects.
fn objects(json: &str) -> model::Snapshot {
    let value: Value = serde_json::from_str(json).unwrap();
    model::objects::read(value.as_list().unwrap().iter().map(|object| object.as_map().unwrap().clone())).0
}

#[test]
fn one_bad_entity_harms_only_its_own_name() {
    let long = "x".repeat(64);
    let snapshot = objects(&format!(
        r#"[
        {{"metadata_kind":"service","uuid":"s1","name":"{long}","stack_name":"shop","vip":"10.0.0.9"}},
        {{"metadata_kind":"service","uuid":"s2","name":"good","stack_name":"shop","vip":"10.0.0.8"}},
        {{"metadata_kind":"service","uuid":"s3","name":"badvip","stack_name":"shop","vip":"10.0.0.300"}},
        {{"metadata_kind":"service","uuid":"s4","name":"badext","stack_name":"shop","kind":"externalService","external_ips":["x","10.0.0.7"]}},
        {{"metadata_kind":"service","uuid":"s5","name":"self","stack_name":"shop","kind":"dnsService"}},
        {{"metadata_kind":"serviceLink","service_uuid":"s5","key":"shop/self","value":"s"}},
        {{"metadata_kind":"serviceLink","service_uuid":"s5","key":"noslash","value":"s"}},
        {{"metadata_kind":"serviceLink","service_uuid":"s5","key":"shop/good","value":"s"}},
        {{"metadata_kind":"serviceContainerLink","service_uuid":"s2","service_name":"good","container_uuid":"gone"}},
        {{"metadata_kind":"container","uuid":"c1","name":"a..b","primary_ip":"10.0.0.1"}},
        {{"metadata_kind":"container","uuid":"c2","name":"noip","primary_ip":"ten"}},
        {{"metadata_kind":"container","uuid":"c3","name":null,"primary_ip":"10.0.0.3"}},
        {{"metadata_kind":"container","uuid":"c4","name":"same","primary_ip":"10.0.0.4","create_index":1,"state":"running"}},
        {{"metadata_kind":"container","uuid":"c5","name":"same","primary_ip":"10.0.0.5","create_index":2,"state":"running"}},
        {{"metadata_kind":"container","uuid":"c6","name":"Same","primary_ip":"10.0.0.6","create_index":3,"state":"stopped"}}
        ]"#
    ));
    let zone = snapshot::build(&snapshot, &settings(), 1);
    check(
        &zone,
        "
        good.shop. A -> NOERROR A 10.0.0.8
        badext.shop. A -> NOERROR A 10.0.0.7
        self.shop. A -> NOERROR A 10.0.0.8
        badvip.shop. A -> forward badvip.shop.
        noip. A -> NOERROR
        same. A -> NOERROR A 10.0.0.5
        ",
    );
    let mut paths: Vec<_> = zone.defects().iter().map(|defect| defect.path.replace(&long, "LONG")).collect();
    paths.dedup();
    assert_eq!(
        paths,
        [
            "containers/a..b",
            "containers/noip/primary_ip",
            "services/shop/badext/external_ips",
            "services/shop/badvip/vip",
            "services/shop/self/links/noslash",
            "services/shop/self/links/shop/self",
            "services/shop/LONG",
        ]
    );
}
