use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;
use crate::objects;
use crate::value::Map;

/// A cluster of services `stack/name`, each with one container or with its `containers`, and with its `links`, beside the balancer
/// `edge/lb`.
pub(super) fn cluster(labels: &Json, rules: &Json, services: &[(&str, Json)]) -> Snapshot {
    let mut objects = vec![json!({
        "metadata_kind": "service", "uuid": "lb", "name": "lb", "stack_name": "edge", "kind": "loadBalancerService",
        "labels": labels, "lb_config": { "port_rules": rules },
    })];
    let with = |mut object: Json, more: &Json| {
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object
    };
    let mut address = 0;
    for (path, more) in services {
        let (stack, name) = path.split_once('/').unwrap();
        let uuid = path.replace('/', "-");
        let service = json!({
            "metadata_kind": "service", "uuid": uuid, "name": name, "stack_name": stack, "stack_uuid": stack, "kind": "service",
        });
        objects.push(with(service, more));
        let one = vec![json!({})];
        for (number, more) in (1..).zip(more["containers"].as_array().unwrap_or(&one)) {
            address += 1;
            let container_uuid = format!("{uuid}-{number}");
            let container = json!({
                "metadata_kind": "container", "uuid": container_uuid, "name": container_uuid, "service_uuid": uuid,
                "service_name": name, "stack_name": stack, "primary_ip": format!("192.0.2.{address}"), "state": "running",
                "create_index": address,
            });
            objects.push(with(container, more));
            objects.push(json!({
                "metadata_kind": "serviceContainerLink", "service_uuid": uuid, "service_name": name,
                "container_uuid": container_uuid,
            }));
        }
        for (link, alias) in more["links"].as_object().into_iter().flatten() {
            objects.push(json!({ "metadata_kind": "serviceLink", "service_uuid": uuid, "key": link, "value": alias }));
        }
    }
    objects::read(objects.into_iter().map(|object| serde_json::from_value::<Map>(object).unwrap())).0
}

fn plan(snapshot: &Snapshot) -> LbPlan {
    LbPlan::of(snapshot, find(snapshot, "edge/lb").unwrap(), &Viewpoint::default())
}

/// The members that a request to port 80 is led to.
fn led(plan: &LbPlan, host: &str, path: &str) -> String {
    let Some(route) = plan.route(80, host, path) else { return "none".into() };
    plan.backends[route.backend].members.iter().map(|member| &*member.name).collect::<Vec<_>>().join(" ")
}

#[test]
fn nothing_that_traefik_reads_is_empty() {
    fn check(value: &Json, at: &str) {
        match value {
            // TLS without choices is written so.
            Json::Object(fields) if fields.is_empty() => assert!(at.ends_with("/tls"), "{at}"),
            Json::Object(fields) => fields.iter().for_each(|(key, value)| check(value, &format!("{at}/{key}"))),
            Json::Array(items) => assert!(!items.is_empty(), "{at}"),
            _ => {}
        }
    }
    let rules: Vec<_> = (80..)
        .zip(["http", "https", "tcp", "tls", "sni"])
        .map(|(port, protocol)| json!({ "source_port": port, "protocol": protocol, "service": "s/web", "target_port": 8080 }))
        .collect();
    for (rules, containers) in [
        (json!([]), json!([{}])),
        (json!(rules), json!([])),
        (json!(rules), json!([{ "state": "stopped" }])),
        (json!(rules), json!([{}])),
    ] {
        let snapshot = cluster(&json!({}), &rules, &[("s/web", json!({ "containers": containers }))]);
        let document = crate::lb::traefik::document(&plan(&snapshot));
        assert!(document.as_object().is_some_and(|sections| !sections.is_empty()));
        check(&document, "");
    }
}

#[test]
fn the_predecessors_classes_come_in_their_order() {
    let rule = |host: &str, path: &str, service: &str| json!({"source_port": 80, "hostname": host, "path": path, "service": service, "target_port": 8080});
    let rules = json!([
        rule("", "", "s/none"),
        rule("", "/a", "s/path"),
        rule("*.example.org", "", "s/wild"),
        rule("*.example.org", "/a", "s/wildpath"),
        rule("www.example.org", "", "s/exact"),
        rule("www.example.org", "/a", "s/exactpath"),
        rule("www.example.org", "/a/b", "s/deeper"),
        rule("example.*", "", "s/prefix"),
    ]);
    let names = ["none", "path", "wild", "wildpath", "exact", "exactpath", "deeper", "prefix"];
    let services: Vec<_> = names.iter().map(|name| (format!("s/{name}"), json!({}))).collect();
    let services: Vec<_> = services.iter().map(|(path, more)| (&**path, more.clone())).collect();
    let plan = plan(&cluster(&json!({}), &rules, &services));
    assert_eq!(plan.defects, []);
    for (host, path, expected) in [
        ("www.example.org", "/a/b/c", "s-deeper-1"),
        ("WWW.example.org:8080", "/A/x", "s-exactpath-1"),
        ("www.example.org", "/x", "s-exact-1"),
        ("deep.er.example.org", "/ab", "s-wildpath-1"),
        ("x.example.org", "/", "s-wild-1"),
        ("example.com", "/a", "s-prefix-1"),
        ("example.net.invalid", "/", "s-prefix-1"),
        ("other.invalid", "/a", "s-path-1"),
        ("other.invalid", "/", "s-none-1"),
    ] {
        assert_eq!(led(&plan, host, path), expected, "{host}{path}");
    }
}

#[test]
fn one_bad_rule_harms_itself_alone() {
    let rules = json!([
        {"source_port": 80, "service": "s/a", "target_port": 1, "hostname": "a.example.org"},
        {"source_port": 80, "service": "s/a", "target_port": 1, "hostname": "a b"},
        {"source_port": 80, "service": "s/a", "target_port": 1, "protocol": "tcp"},
        {"source_port": 80, "service": "s/gone", "target_port": 1, "hostname": "gone.example.org"},
        "nonsense",
    ]);
    let plan = plan(&cluster(&json!({}), &rules, &[("s/a", json!({}))]));
    assert_eq!(led(&plan, "a.example.org", "/"), "s-a-1");
    assert_eq!(led(&plan, "gone.example.org", "/"), "", "an empty backend");
    let named: Vec<_> = plan.defects.iter().map(|defect| defect.path.rsplit('/').next().unwrap()).collect();
    assert_eq!(named, ["2", "3", "4", "5"], "{:?}", plan.defects);
}

#[test]
fn labels_never_win_what_a_document_or_an_older_stack_has() {
    let rules = json!([
        {"source_port": 80, "selector": "io.berth.lb=edge", "target_port": 8080},
        {"source_port": 80, "service": "s/own", "target_port": 8080, "hostname": "*.example.org"},
        {"source_port": 80, "service": "s/rest", "target_port": 8080},
    ]);
    let labels = |host: &str, priority: &str| json!({"labels": {"io.berth.lb": "edge", "io.berth.lb.host": host, "io.berth.lb.priority": priority}});
    let none = || json!({});
    let plan = plan(&cluster(
        &json!({}),
        &rules,
        &[
            ("s/own", none()),
            ("s/rest", none()),
            ("old/a", labels("*.example.net", "9")),
            ("new/evil", labels("shop.example.org", "1")),
            ("new/evil2", labels("shop.example.net", "1")),
            ("new/good", labels("example.com", "1")),
            ("new/wall", labels("*", "1")),
        ],
    ));
    assert_eq!(led(&plan, "shop.example.org", "/"), "s-own-1");
    assert_eq!(led(&plan, "shop.example.net", "/"), "old-a-1");
    assert_eq!(led(&plan, "example.com", "/"), "new-good-1");
    assert_eq!(led(&plan, "other.invalid", "/"), "s-rest-1");
    assert!(plan.defects.iter().any(|defect| defect.path.contains("wall")), "{:?}", plan.defects);
}

#[test]
fn a_priority_of_another_stacks_document_wins_nothing_of_others() {
    let rules = json!([
        {"source_port": 80, "selector": "tier=web", "target_port": 8080},
        {"source_port": 80, "service": "s/own", "target_port": 8080, "hostname": "own.example.org"},
    ]);
    let target = json!({"labels": {"tier": "web"}, "lb_config": {"port_rules": [{"priority": 1, "target_port": 9}]}});
    let plan = plan(&cluster(&json!({}), &rules, &[("s/own", json!({})), ("t/other", target)]));
    assert_eq!(led(&plan, "own.example.org", "/"), "s-own-1");
    assert_eq!(led(&plan, "x.example.org", "/"), "t-other-1");
}

fn any_rule() -> impl Strategy<Value = Json> {
    let host = prop::sample::select(vec!["", "a.example.org", "b.example.org", "*.example.org", "a.*", "example.org"]);
    let path = prop::sample::select(vec!["", "/a", "/a/b", "/A", "/b"]);
    (host, path, 0..4u32, 0..4usize).prop_map(|(host, path, priority, service)| {
        json!({"source_port": 80, "hostname": host, "path": path, "priority": priority, "service": format!("s/{service}"), "target_port": 80})
    })
}

proptest! {
    /// The winner has the least priority, or the best class, of these the longest path, and is the first of these: computed here
    /// from each rule's own words.
    #[test]
    fn the_winner_is_the_first_by_priority_class_path_and_place(
        rules in prop::collection::vec(any_rule(), 1..30),
        host in prop::sample::select(vec!["a.example.org", "b.example.org", "c.d.example.org", "a.invalid", "example.org"]),
        path in prop::sample::select(vec!["/", "/a", "/a/b", "/ab", "/b/a"]),
    ) {
        let services = ["s/0", "s/1", "s/2", "s/3"].map(|path| (path, json!({})));
        let plan = plan(&cluster(&json!({}), &Json::from(rules.clone()), &services));
        let rank = |(place, rule): (usize, &Json)| {
            let text = |key: &str| rule[key].as_str().unwrap().to_ascii_lowercase();
            let (pattern, prefix) = (text("hostname"), text("path"));
            let (fits, kind) = match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
                _ if pattern.is_empty() => (true, 4),
                (Some(end), _) => (host.ends_with(end), 2),
                (_, Some(begin)) => (host.starts_with(begin), 2),
                _ => (host == pattern, 0),
            };
            let priority = rule["priority"].as_u64().unwrap();
            let (priority, class, shorter) = match priority {
                0 => (u64::MAX, kind + usize::from(prefix.is_empty()), usize::MAX - prefix.len()),
                stated => (stated, 0, 0),
            };
            (fits && path.starts_with(&prefix)).then_some((priority, class, shorter, place))
        };
        let best = rules.iter().enumerate().filter_map(rank).min().map(|(.., place)| place + 1);
        let number = |at: &str| at.rsplit('/').next().unwrap().parse::<usize>().unwrap();
        prop_assert_eq!(plan.route(80, host, path).map(|route| number(&route.at)), best);
    }

    /// Whatever an `lb_config` says, there is a plan of it, and what is valid alone is in it.
    #[test]
    fn hostile_rules_harm_themselves_alone(texts in prop::collection::vec(".{0,20}", 0..12)) {
        let hostile = texts.chunks(2).map(|pair| {
            json!({"source_port": 80, "hostname": pair[0], "path": pair.last(), "backend_name": pair[0], "service": "s/0", "target_port": 1})
        });
        let good = json!({"source_port": 80, "hostname": "good.example.org", "path": "/deep/er", "priority": 1, "service": "s/1", "target_port": 1});
        let rules: Vec<_> = hostile.chain([good]).collect();
        let plan = plan(&cluster(&json!({}), &Json::from(rules), &[("s/0", json!({})), ("s/1", json!({}))]));
        prop_assert_eq!(led(&plan, "good.example.org", "/deep/er/"), "s-1-1");
    }
}
