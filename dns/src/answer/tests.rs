//! Questions and answers: a line each.

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
fn search_lists_are_tried_here() {
    check(
        &shop(&settings()),
        "
        web.shop. A -> NOERROR A 10.42.0.1 A 10.42.0.2
        web. A -> forward web.
        [10.42.0.1] web. A -> NOERROR A 10.42.0.1 A 10.42.0.2
        [10.42.0.1] LOG. A -> NOERROR A 10.42.0.1
        [10.42.0.1] log.web. A -> NOERROR A 10.42.0.1
        [10.42.0.1] web.rancher.internal. A -> NXDOMAIN
        [10.42.0.1] www.example.com. A -> forward www.example.com.
        ",
    );
    let zone = shop(&Settings { ndots: 1, ..settings() });
    check(&zone, "[10.42.0.1] web. A -> NOERROR A 10.42.0.1 A 10.42.0.2\nweb.shop. A -> forward web.shop.");
}

#[test]
fn links_are_for_their_own_clients() {
    check(
        &shop(&settings()),
        "
        [10.42.0.1] database. A -> NOERROR A 10.42.3.1
        [10.42.0.1] Database.data. A -> NOERROR A 10.42.3.1
        [10.42.0.1] database.rancher.internal. A -> NOERROR A 10.42.3.1
        [10.42.0.1] database. TXT -> NOERROR
        [10.42.0.1] outside. A -> forward www.example.com. CNAME www.example.com.
        [10.42.0.1] gone. A -> forward gone.
        [fd00::1] database. A -> NOERROR A 10.42.3.1
        [::ffff:10.42.0.1] database. A -> NOERROR A 10.42.3.1
        [10.42.3.1] database. A -> forward database.
        database.rancher.internal. A -> NXDOMAIN
        [fd00::5] peer. A -> NOERROR A 10.42.3.1
        [fd00::5] www.example.com. A -> forward www.example.com. at 192.0.2.53:53
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
fn other_environments_are_reached_through_links() {
    let snapshot = objects(
        r#"[
        {"metadata_kind":"environment","name":"prod","uuid":"e1","region_name":"eu"},
        {"metadata_kind":"container","uuid":"c1","name":"far-1","primary_ip":"10.0.0.1","environment_uuid":"e1","dns_search":["rancher.internal"]},
        {"metadata_kind":"container","uuid":"c2","name":"foreign-1","primary_ip":"10.0.0.2","environment_uuid":"e2"},
        {"metadata_kind":"service","uuid":"s1","name":"far","stack_name":"shop","environment_uuid":"e1"},
        {"metadata_kind":"service","uuid":"s2","name":"foreign","stack_name":"shop","environment_uuid":"e2"},
        {"metadata_kind":"serviceContainerLink","service_uuid":"s1","service_name":"far","container_uuid":"c1"},
        {"metadata_kind":"serviceContainerLink","service_uuid":"s2","service_name":"foreign","container_uuid":"c2"},
        {"metadata_kind":"serviceLink","service_uuid":"s1","key":"us/Staging/Shop/web","value":"StgWeb"},
        {"metadata_kind":"serviceLink","service_uuid":"s1","key":"qa/shop/web","value":"qa"},
        {"metadata_kind":"serviceLink","service_uuid":"s1","key":"us/staging/shop/none","value":"none"},
        {"metadata_kind":"external","objects":[
            {"metadata_kind":"environment","name":"staging","uuid":"e3","region_name":"us"},
            {"metadata_kind":"container","uuid":"x1","name":"web-1","primary_ip":"10.1.0.1","health_state":"unhealthy"},
            {"metadata_kind":"service","uuid":"x","name":"Web","stack_name":"Shop","health_check":{"port":80}},
            {"metadata_kind":"serviceContainerLink","service_uuid":"x","service_name":"Web","container_uuid":"x1"}]}
        ]"#,
    );
    let zone = snapshot::build(&snapshot, &settings(), 1);
    check(
        &zone,
        "
        [10.0.0.1] stgweb. A -> NOERROR A 10.1.0.1
        [10.0.0.1] STGWEB.rancher.internal. A -> NOERROR A 10.1.0.1
        [10.0.0.1] qa. A -> forward qa.
        stgweb. A -> forward stgweb.
        foreign.shop.rancher.internal. A -> NXDOMAIN
        foreign-1.rancher.internal. A -> NXDOMAIN
        ",
    );
    let defects = zone.defects();
    let paths: Vec<_> = defects.iter().map(|defect| defect.path.as_str()).collect();
    assert_eq!(paths, ["services/shop/far/links/qa/shop/web", "services/shop/far/links/us/staging/shop/none"]);
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

#[test]
fn a_file_of_answers_is_served_as_written() {
    let file = r#"{
        "default": {"search": ["rancher.internal"], "authoritative": ["rancher.internal"], "recurse": ["192.0.2.1", "[fd00::53]:54"],
            "a": {"app.": {"answer": ["10.1.2.3"], "ttl": 60}, "v6.": {"answer": ["fd00::1", "", "x"]},
                  "web.shop.rancher.internal.": {"answer": ["10.42.0.1"]}},
            "cname": {"things.": {"answer": "app."}, "one.": {"answer": "two."}, "two.": {"answer": "one."},
                      "out.rancher.internal.": {"answer": "www.Example.com"}, "lost.rancher.internal.": {"answer": "no.rancher.internal."}},
            "ptr": {"10.42.0.1": {"answer": "web."}, "fd00::1": {"answer": "v6."}, "2.0.42.10.in-addr.arpa.": {"answer": "x."}},
            "txt": {"note.": {"answer": ["a\\066c", "two"]}}},
        "10.42.0.7": {"search": ["shop.rancher.internal"], "recurse": ["192.0.2.9:53"], "a": {"app.": {"answer": ["10.9.9.9"]}}},
        "nonsense": {}
    }"#;
    let node = model::Node::from_value(&serde_json::from_str(file).unwrap());
    assert!(DnsAnswers::is_dns_answers(&node));
    let (answers, defects) = DnsAnswers::read(&node).unwrap();
    let paths: Vec<_> = defects.iter().map(|defect| defect.path.as_str()).collect();
    assert_eq!(paths, ["default/a/v6./answer", "default/a/v6./answer", "nonsense"]);
    check(
        &answers.zone(&settings(), 1),
        "
        app. A -> NOERROR A 10.1.2.3
        app. AAAA -> NOERROR
        app. MX -> forward app. at 192.0.2.1:53 at [fd00::53]:54
        v6. AAAA -> NOERROR AAAA fd00::1
        things. A -> NOERROR A 10.1.2.3 CNAME app.
        web.shop. A -> NOERROR A 10.42.0.1
        out. A -> forward www.example.com. at 192.0.2.1:53 at [fd00::53]:54 CNAME www.Example.com.
        lost.rancher.internal. A -> NXDOMAIN CNAME no.rancher.internal.
        one. A -> ServFail
        shop.rancher.internal. A -> NOERROR
        web.shop.rancher.internal. TXT -> NOERROR
        1.0.42.10.in-addr.arpa. PTR -> NOERROR PTR web.
        2.0.42.10.in-addr.arpa. PTR -> NOERROR PTR x.
        note. TXT -> NOERROR TXT aBc TXT two
        [10.42.0.7] app. A -> NOERROR A 10.9.9.9
        [10.42.0.7] things. A -> NOERROR A 10.9.9.9 CNAME app.
        [10.42.0.7] web. A -> NOERROR A 10.42.0.1
        [10.42.0.7] example.com. A -> forward example.com. at 192.0.2.9:53
        ",
    );
}

#[test]
fn what_is_no_file_of_answers_is_refused() {
    for json in ["{}", "null", "[]", "42", r#"{"latest":{"default":{"a":1}}}"#, r#"{"default":3}"#] {
        let value: Value = serde_json::from_str(json).unwrap();
        assert!(DnsAnswers::from_value(&value).is_err(), "{json}");
        assert!(!DnsAnswers::is_dns_answers(&model::Node::from_value(&value)), "{json}");
    }
}

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
    let reason = |name: &str| zone.left_out(None, Folded::parse(name).unwrap().wire())[0].reason;
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

/// Stacks of compose projects; who starts a container chooses their names.
fn projects() -> Zone {
    let text = r"
berth: 1
services:
  - {name: github, stack: com, expose: [443/tcp]}
  - {name: www, stack: com, sidekick_of: github}
  - {name: github.com, stack: com, kind: dnsService, links: {com/github: x}}
  - {name: web, stack: shop}
  - {name: db, stack: data}
containers:
  - {name: evil-1, service: com/github, primary_ip: 172.17.0.2}
  - {name: evil-2, service: com/github/www, primary_ip: 172.17.0.3}
  - {name: github.org, primary_ip: 172.17.0.4}
  - {name: b.shop, primary_ip: 172.17.0.5}
  - {name: plain, primary_ip: 172.17.0.6}
  - {name: web-1, service: shop/web, primary_ip: 172.17.0.7}
  - {name: beside, primary_ip: 172.17.0.8, dns_search: [com.rancher.internal, rancher.internal]}
  - {name: db-1, service: data/db, primary_ip: 172.17.0.9}
";
    let reading = source::format::read(text).unwrap();
    assert_eq!(reading.defects, []);
    let mut snapshot = reading.snapshot;
    for stack in snapshot.stacks.clone().values().filter(|stack| stack.name().is_some_and(|name| **name != *"data")) {
        snapshot.stacks.insert(Arc::new(stack.told_by_labels()));
    }
    snapshot::build(&snapshot, &settings(), 1)
}

#[test]
fn labels_and_names_of_containers_change_no_name_of_the_internet() {
    check(
        &projects(),
        "
        github.com. A -> forward github.com.
        www.github.com. A -> forward www.github.com.
        _443._tcp.github.com. SRV -> forward _443._tcp.github.com.
        github.com.com. A -> forward github.com.com.
        github.org. A -> forward github.org.
        [172.17.0.6] github.com. A -> forward github.com.
        [172.17.0.6] github.org. A -> forward github.org.
        [172.17.0.7] github.com. A -> forward github.com.
        [172.17.0.7] b. A -> forward b.
        [172.17.0.4] github.org. A -> forward github.org.
        github.com.rancher.internal. A -> NOERROR A 172.17.0.2
        github.org.rancher.internal. A -> NOERROR A 172.17.0.4
        b.shop.rancher.internal. A -> NOERROR A 172.17.0.5
        ",
    );
}

#[test]
fn short_names_of_a_project_are_for_itself_and_for_who_shares_its_network() {
    check(
        &projects(),
        "
        [172.17.0.2] github.com. A -> NOERROR A 172.17.0.2
        [172.17.0.2] www.github.com. A -> NOERROR A 172.17.0.3
        [172.17.0.2] github. A -> NOERROR A 172.17.0.2
        [172.17.0.2] _443._tcp.github.com. SRV -> NOERROR SRV 0 0 443 evil-1.rancher.internal.
        [172.17.0.8] github.com. A -> NOERROR A 172.17.0.2
        [172.17.0.7] web. A -> NOERROR A 172.17.0.7
        [172.17.0.7] web.shop. A -> NOERROR A 172.17.0.7
        [172.17.0.6] web.shop. A -> forward web.shop.
        [172.17.0.6] web.shop.rancher.internal. A -> NOERROR A 172.17.0.7
        [172.17.0.6] db.data. A -> NOERROR A 172.17.0.9
        [172.17.0.6] plain. A -> NOERROR A 172.17.0.6
        [172.17.0.7] plain. A -> NOERROR A 172.17.0.6
        ",
    );
}

#[test]
fn texts_of_a_container_without_a_service_do_not_name_one() {
    let reply = testing::ask(&projects(), "192.0.2.1", &message("plain.rancher.internal.", RecordType::TXT), 0);
    let reply = reply.unwrap();
    assert_eq!(show(&reply.answers), " TXT state=running");
}
