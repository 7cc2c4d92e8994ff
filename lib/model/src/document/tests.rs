use super::*;
use crate::entity::Entity;
use crate::value::Value;

fn read(json: &str) -> Result<(Snapshot, Vec<String>), String> {
    let value: Value = serde_json::from_str(json).unwrap();
    let (snapshot, defects) = resolve(&Node::from_value(&value)).map_err(|refusal| refusal.to_string())?;
    Ok((snapshot, defects.iter().map(ToString::to_string).collect()))
}

const SHOP: &str = r#"{
    "berth": 1, "host": "win-1",
    "hosts": [{"name": "win-1", "agent_ip": "192.0.2.1", "memory": "16GiB"}],
    "services": [{"name": "web", "stack": "Shop", "ports": ["80:8080"], "links": {"data/db": "db"}},
                 {"name": "log", "stack": "Shop", "sidekick_of": "web"}],
    "containers": [{"name": "web-1", "service": "Shop/web", "host": "win-1", "primary_ip": "10.42.0.7", "labels": {"gpu": "yes"}},
                   {"name": "log-1", "service": "Shop/web/log", "network_from": "web-1"},
                   {"name": "alone", "links": {"w": "web-1"}}]
}"#;

#[test]
fn references_become_uuids_and_defaults_values() {
    let (snapshot, defects) = read(SHOP).unwrap();
    assert_eq!(defects, [""; 0]);
    let by_name = |name: &str| {
        snapshot.containers.values().find(|c| c.fields().text("name").is_some_and(|n| &**n == name)).unwrap()
    };
    let (web, log, alone) = (by_name("web-1"), by_name("log-1"), by_name("alone"));
    assert_eq!(web.host_uuid(), snapshot.hosts.keys().next());
    assert_eq!(web.fields().get("host_ip"), Some(&Value::text("192.0.2.1")));
    assert_eq!(web.fields().list("ports"), [Value::text("80:8080/tcp")]);
    assert_eq!(web.labels().unwrap().text("io.rancher.stack_service.name").unwrap().as_ref(), "Shop/web");
    assert_eq!(web.fields().list("dns_search")[0], Value::text("web.shop.rancher.internal"));
    assert_eq!(log.network_from(), Some(web.uuid()));
    assert_eq!(alone.links().get("w"), Some(&Value::Text(web.uuid().clone())));
    assert_eq!(alone.fields().list("dns_search"), [Value::text("rancher.internal")]);
    let [sidekick, primary] = snapshot.services.values().collect::<Vec<_>>()[..] else { panic!("two services") };
    assert_eq!((sidekick.uuid(), sidekick.is_sidekick()), (primary.uuid(), true));
    assert_eq!(primary.fields().list("sidekicks"), [Value::text("log")]);
    assert_eq!(primary.members()[..], [web.uuid().clone()]);
    assert_eq!(snapshot.stacks.len(), 1);
    assert_eq!(snapshot.hosts.values().next().unwrap().fields().int("memory"), Some(16 << 30));
}

#[test]
fn containers_that_name_no_network_are_on_the_default_one() {
    let (snapshot, defects) = read(
        r#"{"networks": [{"name": "other"}, {"name": "first", "uuid": "1", "is_default": true}, {"name": "second", "is_default": true}],
            "containers": [{"name": "silent"}, {"name": "named", "network": "other"}, {"name": "none", "network": null},
                           {"name": "guest", "network_from": "named"}, {"name": "lost", "network": "nowhere"}]}"#,
    )
    .unwrap();
    assert_eq!(defects, [r#"containers/lost/network: the document has no "nowhere" to refer to (ignored)"#]);
    let other =
        snapshot.networks.values().find(|network| network.name().is_some_and(|name| &**name == "other")).unwrap();
    for (name, expected) in
        [("silent", Some("1")), ("named", Some(&**other.uuid())), ("none", None), ("guest", None), ("lost", None)]
    {
        let container =
            snapshot.containers.values().find(|container| container.name().is_some_and(|own| &**own == name)).unwrap();
        assert_eq!(container.fields().text("network_uuid").map(|uuid| &**uuid), expected, "{name}");
    }
    let (snapshot, _) = read(r#"{"networks": [{"name": "n"}], "containers": [{"name": "c"}]}"#).unwrap();
    assert_eq!(snapshot.containers.values().next().unwrap().fields().text("network_uuid"), None);
}

#[test]
fn derived_uuids_do_not_depend_on_the_order_of_entities() {
    let one = read(r#"{"containers":[{"name":"a","create_index":1},{"name":"b","create_index":2}]}"#).unwrap().0;
    let two = read(r#"{"containers":[{"name":"b","create_index":2},{"name":"a","create_index":1}]}"#).unwrap().0;
    assert_eq!(one, two);
}

/// Documents of the container `good`, something bad, and nothing else; the defect expected of it.
#[test]
fn one_bad_entity_hides_only_itself() {
    for (bad, defect) in [
        (r#"{"primary_ip":"10.0.0.1"}"#, "containers/1: the field name is missing (left out)"),
        (
            r#"{"name":"b","primary_ip":"10.0.0.256"}"#,
            r#"containers/b/primary_ip: "10.0.0.256" is no IP address (left out)"#,
        ),
        (r#"{"name":"b","labels":["x"]}"#, "containers/b/labels: expected a map, found a list (left out)"),
        (r#"{"name":"good"}"#, "containers/good: there already is a container good with this name or uuid (left out)"),
        (r#""b""#, "containers/1: expected a map of fields, found text (left out)"),
        (
            r#"{"name":"b","primary_pi":"10.0.0.1"}"#,
            "containers/b/primary_pi: unknown field, did you mean primary_ip? (ignored)",
        ),
        (
            r#"{"name":"b","host":"nowhere"}"#,
            r#"containers/b/host: the document has no "nowhere" to refer to (ignored)"#,
        ),
        (
            r#"{"name":"b","service":"x/y"}"#,
            "containers/b/service: there is no service x/y (written as stack/service) (ignored)",
        ),
        (r#"{"name":"b","ips":["10.0.0.1","x"]}"#, r#"containers/b/ips: "x" is no IP address (ignored)"#),
        (r#"{"name":"b","ips":"x"}"#, "containers/b/ips: expected a list of addresses, found text (left out)"),
        (
            r#"{"name":"b","memory_reservation":"5 GB"}"#,
            r#"containers/b/memory_reservation: expected bytes, such as 1073741824, 512MiB or 16GiB, found "5 GB" (left out)"#,
        ),
        (
            r#"{"name":"b","ports":["80"]}"#,
            r#"containers/b/ports: expected [address:]public:private/protocol, such as 80:8080/tcp, found "80" (left out)"#,
        ),
    ] {
        let (snapshot, defects) = read(&format!(r#"{{"containers":[{{"name":"good"}},{bad}]}}"#)).unwrap();
        assert_eq!(defects, [defect]);
        let left = if defect.ends_with("(left out)") { 1 } else { 2 };
        assert_eq!(snapshot.containers.len(), left, "{bad}");
    }
}

#[test]
fn what_is_no_cluster_is_refused() {
    for (document, problem) in [
        ("[]", "expected a map with hosts, services and containers, found a list"),
        ("{}", "not one entity; write `empty: true` if the cluster is really empty"),
        (r#"{"berth":2,"containers":[]}"#, "berth: this program reads documents of format 1"),
        (r#"{"containers":{"a":1}}"#, "containers: expected a list, found a map"),
        (
            r#"{"containers":[{"nam":"a"}]}"#,
            "not one good entity; the first defect is: containers/0/nam: unknown field, did you mean name? (ignored)",
        ),
    ] {
        assert_eq!(read(document).err().as_deref(), Some(problem), "{document}");
    }
    assert!(read(r#"{"berth":1,"empty":true}"#).unwrap().0.is_empty());
}
