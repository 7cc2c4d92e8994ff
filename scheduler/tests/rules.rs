//! Rules about hosts, each as a line: what is asked for, and which hosts fit or get it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use scheduler::{Inventory, Order, Placer, Strategy};
use serde_json::{Value, json};
use source::Store;

const NOW: Duration = Duration::from_secs(1000);

fn placer(objects: &Value) -> Placer {
    let objects: Vec<model::Map> = serde_json::from_value(objects.clone()).unwrap();
    let (snapshot, defects, _) = model::objects::read(objects);
    assert_eq!(defects, []);
    let store = Arc::new(Store::new(Inventory::default()));
    store.publish(Arc::new(Inventory::new(&snapshot)));
    Placer::new(store, Order::Ratio, Strategy::Spread)
}

fn host(name: &str, labels: &Value) -> Value {
    json!({"metadata_kind": "host", "uuid": name, "name": name, "memory": 1000, "labels": labels})
}

fn container(name: &str, host: &str, state: &str, labels: &Value) -> Value {
    json!({"metadata_kind": "container", "uuid": format!("uuid-{name}"), "name": name, "host_uuid": host, "state": state,
           "labels": labels})
}

fn value(json: &Value) -> model::Value {
    serde_json::from_value(json.clone()).unwrap()
}

fn words<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names.join(" ")
}

/// The hosts that fit, by name, as `explain` says; the best one has to be where it is placed.
fn fitting(placer: &Placer, request: &Value) -> String {
    let mut request = request.clone();
    let explanation = placer.explain(&value(&request), NOW).unwrap_or_else(|refusal| panic!("{request}: {refusal}"));
    request["dry_run"] = true.into();
    let answer = placer.place(&value(&request), "it", NOW).unwrap();
    let best = explanation.hosts.iter().find(|host| host.rank == Some(1)).map(|host| &*host.name);
    let on = answer.placements.first().map(|unit| &*unit.host.name);
    assert_eq!(on, best, "{request}");
    words(explanation.hosts.iter().filter(|host| host.fits).map(|host| &*host.name))
}

/// The hosts of all units, one word each.
fn placed(placer: &Placer, request: &Value) -> String {
    let mut request = request.clone();
    request["dry_run"] = true.into();
    let answer = placer.place(&value(&request), "it", NOW).unwrap_or_else(|refusal| panic!("{request}: {refusal}"));
    words(answer.placements.iter().map(|unit| &*unit.host.name))
}

fn refused(placer: &Placer, request: &Value, field: &str, expected: &str) {
    let refusal = placer.explain(&value(request), NOW).expect_err("a bad request").to_string();
    assert!(refusal.starts_with(field) && refusal.contains(expected), "{request}: {refusal}");
}

#[test]
fn rules_in_labels_mean_what_they_meant() {
    let placer = placer(&json!([
        host("a", &json!({"Size": "Huge", "zone": "x"})),
        host("b", &json!({"size": "small", "zone": "x"})),
        host("c", &json!({})),
        container("DB", "a", "running", &json!({"app": "db", "io.rancher.stack_service.name": "shop/web"})),
        container("old", "b", "stopped", &json!({"app": "old"})),
        container("dead", "c", "removed", &json!({"app": "dead"})),
    ]));
    for (rule, value, expected) in [
        ("host_label", "size=huge", "a"),
        ("host_label", "SIZE=HUGE", "a"),
        ("host_label", "size=huge,zone=x", "a"),
        ("host_label", " size = huge , zone = x ", "a"),
        ("host_label", "size", ""),
        ("host_label", "size=huge=x", ""),
        ("host_label_ne", "size=huge", "b c"),
        ("host_label_ne", "size=huge,size=small", "c"),
        ("host_label_ne", "zone=y", "a b c"),
        // Nobody has to keep a wish, nor one that never holds.
        ("host_label_soft", "size=none", "a b c"),
        ("host_label_soft", "size", "a b c"),
        ("host_label_soft_ne", "zone=x", "a b c"),
        ("container_label", "app=db", "a"),
        ("container_label", "APP=DB", "a"),
        // One that is stopped is there, one that is removed is not.
        ("container_label", "app=old", "b"),
        ("container_label", "app=dead", ""),
        ("container_label", "app=db,app=old", ""),
        ("container_label_ne", "app=db", "b c"),
        ("container_label_ne", "app=db,app=old", "c"),
        ("container_label_soft", "app=none", "a b c"),
        ("container_label", "io.rancher.stack_service.name=${stack_name}/${service_name}", "a"),
        ("container_label_ne", "io.rancher.stack_service.name=$${stack_name}/$${service_name}", "b c"),
        ("container_label_ne", "io.rancher.stack_service.name=${project_name}/web", "b c"),
        ("container", "db", "a"),
        ("container", "uuid-old", "b"),
        ("container", "db,old", ""),
        ("container_ne", "db", "b c"),
        ("container_ne", "uuid-old,DB", "c"),
        ("container_soft", "nobody", "a b c"),
    ] {
        let label = format!("io.rancher.scheduler.affinity:{rule}");
        let request = json!({"image": "i", "stack": "shop", "service": "web", "labels": {label: value}});
        assert_eq!(fitting(&placer, &request), expected, "{rule}: {value}");
    }
    for (variable, expected) in [
        ("constraint:size==huge", "a"),
        ("constraint:size!=huge", "b c"),
        ("constraint:size==~none", "a b c"),
        ("affinity:container==DB", "a"),
        ("affinity:container!=old", "a c"),
        ("affinity:app==old", "b"),
        ("affinity:app!=~old", "a b c"),
    ] {
        assert_eq!(fitting(&placer, &json!({"image": "i", "environment": [variable]})), expected, "{variable}");
    }
}

#[test]
fn wishes_decide_among_hosts_that_fit() {
    let placer = placer(&json!([
        host("a", &json!({"zone": "x"})),
        host("b", &json!({"zone": "y"})),
        host("c", &json!({"zone": "z"})),
        container("db", "c", "running", &json!({"app": "db"})),
    ]));
    for (labels, expected) in [
        (json!({}), "a"),
        (json!({"host_label_soft": "zone=y"}), "b"),
        (json!({"host_label_soft_ne": "zone=x"}), "b"),
        (json!({"container_soft": "db"}), "c"),
        (json!({"container_label_soft_ne": "app=db"}), "a"),
        (json!({"host_label_soft": "zone=y", "host_label_ne": "zone=y"}), "a"),
    ] {
        let rules = labels.as_object().unwrap().iter();
        let labels: Value =
            rules.map(|(rule, value)| (format!("io.rancher.scheduler.affinity:{rule}"), value.clone())).collect();
        assert_eq!(placed(&placer, &json!({"image": "i", "labels": labels})), expected, "{labels}");
    }
    for (constraints, expected) in [
        (json!([{"key": "zone", "value": "x", "weight": 1}, {"key": "zone", "value": "y", "weight": 2}]), "b"),
        (json!([{"key": "zone", "operator": "in", "values": ["y", "z"], "soft": true}]), "b"),
        (json!(["zone = z", {"key": "zone", "value": "x", "weight": 100}]), "c"),
    ] {
        assert_eq!(placed(&placer, &json!({"image": "i", "constraints": constraints})), expected, "{constraints}");
    }
}

#[test]
fn global_services_are_once_on_every_host_that_may_have_them() {
    let placer = placer(&json!([
        host("a", &json!({"zone": "x"})),
        host("b", &json!({"zone": "x", "io.rancher.scheduler.require_any": "infra=true, gpu"})),
        host("c", &json!({"zone": "y"})),
        host("d", &json!({"io.berth.taints": "own:NoSchedule"})),
        json!({"metadata_kind": "host", "uuid": "e", "name": "e", "state": "inactive"}),
        container("db", "c", "running", &json!({"app": "db"})),
    ]));
    for (request, expected) in [
        (json!({}), "a c"),
        // Also when it belongs to no service, and whatever count is given.
        (json!({"count": 5}), "a c"),
        (json!({"stack": "s", "service": "w"}), "a c"),
        (json!({"labels": {"infra": "true"}}), "a b c"),
        (json!({"labels": {"GPU": "any"}}), "a b c"),
        (json!({"labels": {"infra": "false"}}), "a c"),
        (json!({"tolerations": ["own"]}), "a c d"),
        (json!({"labels": {"io.rancher.scheduler.affinity:host_label": "zone=x"}}), "a"),
        (json!({"labels": {"io.rancher.scheduler.affinity:host_label_ne": "zone=x"}}), "c"),
        // Other rules are not for global services.
        (json!({"labels": {"io.rancher.scheduler.affinity:host_label_soft": "zone=x"}}), "a c"),
        (json!({"labels": {"io.rancher.scheduler.affinity:container": "db"}}), "a c"),
        (json!({"labels": {"io.rancher.scheduler.affinity:container_label_ne": "app=db"}}), "a c"),
    ] {
        let mut request = request;
        request["image"] = "i".into();
        request["labels"]["io.rancher.scheduler.global"] = "true".into();
        assert_eq!(placed(&placer, &request), expected, "{request}");
    }
}

#[test]
fn taints_keep_away_by_key_value_and_effect() {
    let placer = placer(&json!([
        host("a", &json!({"io.berth.taints": "gpu=yes:NoSchedule"})),
        host("b", &json!({"io.berth.taints": "gpu=yes:NoExecute, old"})),
        host("c", &json!({"io.berth.taints": "old:PreferNoSchedule"})),
    ]));
    let gpu = |effect: Value| json!({"key": "gpu", "operator": "Exists", "effect": effect});
    for (tolerations, expected) in [
        (json!([]), "c"),
        (json!(["gpu"]), "a c"),
        (json!(["gpu=yes"]), "a c"),
        (json!(["gpu=no"]), "c"),
        (json!(["gpu:NoSchedule"]), "a c"),
        (json!(["gpu=yes:NoExecute", "old"]), "b c"),
        (json!([{"operator": "Exists"}]), "a b c"),
        (json!([{"operator": "Exists", "effect": "NoSchedule"}]), "a c"),
        (json!([gpu(json!("PreferNoSchedule"))]), "c"),
        (json!([gpu(json!("NoSchedule"))]), "a c"),
        (json!([{"key": "gpu", "operator": "Exists"}, {"key": "old", "value": ""}]), "a b c"),
    ] {
        assert_eq!(fitting(&placer, &json!({"image": "i", "tolerations": tolerations})), expected, "{tolerations}");
    }
    refused(&placer, &json!({"tolerations": ["gpu:Never"]}), "tolerations[0]", "NoExecute");
    refused(
        &placer,
        &json!({"tolerations": [{"key": "gpu", "effect": "Never"}]}),
        "tolerations[0].effect",
        "NoExecute",
    );
    // The predecessor's events tolerate nothing.
    let event = json!({"data": {"schedulerRequest": {"phase": "instance.allocate", "resourceRequests": []}}});
    let reply = placer.event("scheduler.prioritize", &value(&event), NOW).unwrap();
    assert_eq!(serde_json::to_value(reply).unwrap()["data"]["prioritizedCandidates"], json!(["c"]));
}

#[test]
fn replicas_are_spread_over_domains_and_apart() {
    let placer = placer(&json!([
        host("a1", &json!({"zone": "a"})),
        host("a2", &json!({"zone": "a"})),
        host("b1", &json!({"zone": "b"})),
        host("n1", &json!({})),
        host("t1", &json!({"zone": "t", "io.berth.taints": "own"})),
        container("w", "b1", "running", &json!({"io.rancher.stack_service.name": "s/w"})),
    ]));
    for (request, expected) in [
        // What has no label is in no domain, and one without a host that may be had does not count.
        (json!({"count": 4, "spread": ["zone"]}), "a1 a2 b1 b1"),
        (
            json!({"count": 4, "spread": [{"label": "ZONE", "max_skew": 1}], "stack": "s", "service": "other"}),
            "a1 a2 b1 b1",
        ),
        // One is there already.
        (json!({"count": 3, "spread": ["zone"], "stack": "s", "service": "w"}), "a1 a2 b1"),
        (json!({"count": 2, "spread": ["zone"], "constraints": ["zone = a"]}), "a1 a2"),
        (json!({"count": 2, "spread": ["rack"]}), ""),
        (json!({"count": 4}), "a1 a2 b1 n1"),
        (json!({"count": 3, "strategy": "binpack", "resources": {"memory": 300}}), "b1 b1 b1"),
    ] {
        let mut request = request;
        request["image"] = "i".into();
        assert_eq!(placed(&placer, &request), expected, "{request}");
    }
}

#[test]
fn ports_stand_on_addresses_that_hosts_have() {
    let placer = placer(&json!([
        host("a", &json!({"io.rancher.scheduler.ips": "192.0.2.1, 192.0.2.2"})),
        host("b", &json!({})),
        {"metadata_kind": "container", "uuid": "c", "name": "c", "host_uuid": "a", "state": "running",
         "ports": ["192.0.2.1:80:80/tcp"]},
        {"metadata_kind": "container", "uuid": "d", "name": "d", "host_uuid": "b", "state": "running",
         "ports": ["0.0.0.0:81:81/udp"]},
        {"metadata_kind": "container", "uuid": "e", "name": "e", "host_uuid": "b", "state": "stopped",
         "ports": ["0.0.0.0:82:82/tcp"]},
    ]));
    for (ports, expected) in [
        (json!(["80:80"]), "a b"),
        (json!(["192.0.2.1:80:80"]), ""),
        (json!(["192.0.2.2:80:80"]), "a"),
        (json!(["0.0.0.0:80:80"]), "b"),
        (json!(["81:81"]), "a b"),
        (json!(["81:81/udp"]), "a"),
        (json!(["82:82"]), "a b"),
        (json!(["192.0.2.1::80", "192.0.2.2::80"]), "a"),
        (json!(["192.0.2.1::80", "90:90"]), "a"),
        // One address has to have both; only the second one does.
        (json!(["80:80", "81:81"]), "a b"),
        (json!(["198.51.100.1:80:80"]), ""),
        (json!([{"private": 80, "ip": "192.0.2.2"}]), "a"),
        (json!(["80"]), "a b"),
    ] {
        assert_eq!(fitting(&placer, &json!({"image": "i", "ports": ports})), expected, "{ports}");
    }
    let random = json!({"image": "i", "ports": ["192.0.2.1::80", "192.0.2.1::81/udp"], "dry_run": true});
    let answer = placer.place(&value(&random), "it", NOW).unwrap();
    for port in &answer.placements[0].containers[0].ports {
        assert_eq!(port.ip.to_string(), "192.0.2.1");
        assert!((32768..=61000).contains(&port.public), "{port:?}");
    }
    // Who names a host gets its ports whoever has them, and random ones that nobody has.
    let forced = json!({"image": "i", "ports": ["81:81/udp", "90"], "requested_host": "b", "dry_run": true});
    let answer = placer.place(&value(&forced), "it", NOW).unwrap();
    let ports = &answer.placements[0].containers[0].ports;
    assert_eq!((ports.len(), ports[0].public), (2, 81));
    assert!((32768..=61000).contains(&ports[1].public), "{ports:?}");
    assert!(answer.placements[0].overridden[0].contains("81/udp"));
}

#[test]
fn units_stand_beside_what_they_use() {
    let placer = placer(&json!([
        host("a", &json!({})),
        host("b", &json!({})),
        container("data", "b", "stopped", &json!({})),
        container("net", "a", "running", &json!({})),
    ]));
    let side = |fields: Value| {
        let mut fields = fields;
        fields["name"] = "side".into();
        json!([fields])
    };
    for (request, expected) in [
        (json!({"volumes_from": "data"}), "b"),
        (json!({"volumes_from": ["data:ro"]}), "b"),
        (json!({"volumes_from": ["data"], "network_from": "net"}), ""),
        (json!({"network_from": "uuid-net"}), "a"),
        (json!({"name": "main", "sidekicks": side(json!({"volumes_from": "data"}))}), "b"),
        (json!({"name": "main", "volumes_from": "side:rw", "sidekicks": side(json!({}))}), "a b"),
        (json!({"name": "main", "sidekicks": side(json!({"network_from": "main", "volumes_from": "main"}))}), "a b"),
        (
            json!({"name": "main", "resources": {"memory": 600}, "sidekicks": side(json!({"resources": {"memory": 500}}))}),
            "",
        ),
        (
            json!({"name": "main", "resources": {"memory": 500}, "sidekicks": side(json!({"resources": {"memory": 500}}))}),
            "a b",
        ),
    ] {
        let mut request = request;
        request["image"] = "i".into();
        assert_eq!(fitting(&placer, &request), expected, "{request}");
    }
    let both = json!({"image": "i", "network": "n", "network_from": "net"});
    refused(&placer, &both, "network: given with network_from", "one network");
}

#[test]
fn networks_are_there_before_a_container_joins_them() {
    let with = |name: &str, networks: &[&str]| {
        let mut host = host(name, &json!({}));
        host["networks"] = networks.into();
        host
    };
    // Of c it is not known which it has.
    let placer =
        placer(&json!([with("a", &["bridge", "front"]), with("b", &["back", "front"]), host("c", &json!({}))]));
    for (request, expected) in [
        (json!({"network": "front"}), "a b c"),
        (json!({"networks": ["front", {"name": "back", "aliases": ["db"]}]}), "b c"),
        (
            json!({"network": "front", "name": "m", "sidekicks": [{"name": "s", "image": "i", "network": "back"}]}),
            "b c",
        ),
        (json!({"network": "other"}), "c"),
        (json!({"network": "host"}), "a b c"),
        (json!({"network": "container:x"}), "a b c"),
        (json!({"network": "back", "requested_host": "a"}), ""),
    ] {
        let mut request = request;
        request["image"] = "i".into();
        assert_eq!(fitting(&placer, &request), expected, "{request}");
    }
    let wanted = value(&json!({"image": "i", "networks": ["front", "other", "third"]}));
    let explanation = placer.explain(&wanted, NOW).unwrap();
    let why = explanation.hosts.iter().find(|host| &*host.name == "a").unwrap();
    assert_eq!(why.reasons, ["host has no network other, third"]);
}

#[test]
fn systems_and_isolation_choose_hosts() {
    let windows = |name: &str, build: &str, more: &Value| {
        let mut labels = more.clone();
        labels["io.rancher.host.os"] = "windows".into();
        labels["io.rancher.host.windows_build"] = build.into();
        host(name, &labels)
    };
    let placer = placer(&json!([
        host("lin", &json!({})),
        windows("w19", "17763", &json!({"io.rancher.host.hyperv": "true"})),
        windows("w22", "20348", &json!({})),
        windows("w25", "26100", &json!({"io.rancher.host.hyperv": "true"})),
    ]));
    let entry = |version: &str| json!({"os": "windows", "os_version": version});
    for (platforms, isolation, expected) in [
        (json!([]), "default", "lin w19 w22 w25"),
        // Only Windows isolates so, and only some of it with Hyper-V.
        (json!([]), "process", "w19 w22 w25"),
        (json!([]), "hyperv", "w19 w25"),
        (json!([{"os": "linux"}]), "default", "lin"),
        (json!([entry("10.0.17763.1")]), "default", "w19 w25"),
        (json!([entry("10.0.17763.1")]), "process", "w19"),
        (json!([entry("10.0.20348.1")]), "default", "w22 w25"),
        (json!([entry("10.0.20348.1")]), "hyperv", "w25"),
        (json!([entry("10.0.26100.1")]), "default", "w25"),
        (json!([entry("10.0.17763.1"), entry("10.0.20348.1"), {"os": "linux"}]), "default", "lin w19 w22 w25"),
        (json!([{"os": "windows"}]), "default", "w19 w22 w25"),
    ] {
        let request = json!({"image": {"name": "i", "platforms": platforms}, "isolation": isolation});
        assert_eq!(fitting(&placer, &request), expected, "{request}");
    }
}

#[test]
fn settings_that_windows_lacks_lead_to_other_hosts() {
    let windows = json!({"io.rancher.host.os": "windows", "io.rancher.host.windows_build": "20348"});
    let placer = placer(&json!([host("lin", &json!({})), host("win", &windows)]));
    for (settings, expected) in [
        (json!({}), "lin win"),
        (json!({"privileged": true}), "lin"),
        (json!({"privileged": false, "init": false, "cap_add": [], "ipc": "private", "pids_limit": -1}), "lin win"),
        (json!({"cap_add": ["NET_ADMIN"], "sysctls": {"net.core.somaxconn": "9"}}), "lin"),
        (json!({"extra_hosts": ["a:192.0.2.1"], "cpu_count": 2, "logging": {"driver": "json-file"}}), "lin win"),
        (json!({"ulimits": {"nofile": 9}}), "lin"),
    ] {
        assert_eq!(fitting(&placer, &json!({"image": "i", "engine": settings})), expected, "{settings}");
    }
    let request = json!({"image": "i", "requested_host": "win", "engine": {"privileged": true, "pid": "host"}});
    let explanation = placer.explain(&value(&request), NOW).unwrap();
    let reasons: Vec<_> = explanation.hosts.iter().flat_map(|host| &host.reasons).map(ToString::to_string).collect();
    let expected = "host is windows 20348, whose containers have no pid, privileged";
    assert!(reasons.iter().any(|reason| reason == expected), "{reasons:?}");
}

#[test]
fn what_would_help_is_the_smallest_change() {
    let placer = placer(&json!([
        host("a", &json!({"gpu": "no"})),
        host("b", &json!({"gpu": "no", "io.berth.taints": "own"})),
        host("c", &json!({})),
        container("big", "c", "running", &json!({})),
    ]));
    for (request, expected) in [
        (json!({"constraints": ["gpu = yes"]}), "label gpu = yes on 2 hosts"),
        (json!({"resources": {"memory": 1100}}), "100 bytes less memory on 2 hosts"),
        (
            json!({"constraints": ["gpu = yes"], "resources": {"memory": 1100}}),
            "label gpu = yes and 100 bytes less memory on 2 hosts",
        ),
        (json!({"constraints": ["gpu = no", "node.hostname = b"]}), "toleration of own on 1 host"),
        (json!({"resources": {"tapes": 1}}), "hosts with tapes on 2 hosts"),
    ] {
        let mut request = request;
        request["image"] = "i".into();
        let explanation = placer.explain(&value(&request), NOW).unwrap();
        let found = explanation.changes.iter().any(|change| change == expected);
        assert!(found, "{request}: {expected} not in {:?}", explanation.changes);
    }
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let placer = placer(&json!([host("a", &json!({}))]));
    for (request, field, expected) in [
        (json!({"constraints": ["zone in ()"]}), "constraints[0]", "no empty value"),
        (json!({"constraints": ["cores >= many"]}), "constraints[0]", "a number or a version"),
        (json!({"constraints": [{"key": "a", "operator": "in", "values": []}]}), "constraints[0]", "a value"),
        (json!({"spread": [""]}), "spread[0]", "a map"),
        (json!({"ports": ["80:80/icmp"]}), "ports[0]", "a port"),
        (json!({"ports": ["192.0.2.1:80"]}), "ports[0]", "a port"),
        (json!({"labels": {"io.rancher.scheduler.affinity:hosts": "a=b"}}), "labels.", "host_label"),
        (json!({"resources": {"memory": "1.5g"}}), "resources.memory", "512MiB"),
        (json!({"count": 1.5}), "count", "whole number"),
        (json!({"global": "yes"}), "global", "true or false"),
    ] {
        let mut request = request;
        request["image"] = "i".into();
        refused(&placer, &request, field, expected);
    }
}
