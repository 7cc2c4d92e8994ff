use bollard::models::SystemInfo;
use model::document::resolve;
use model::{Node, Snapshot};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;
use crate::docker::baked::Baked;
use crate::docker::facts;
use crate::host::HostOptions;

/// A container as a test says it: name, labels, then parts of its inspection.
fn container(name: &str, labels: &[&str], networks: Json, more: Json) -> Json {
    let labels: BTreeMap<&str, &str> = labels.iter().filter_map(|label| label.split_once('=')).collect();
    let id: Vec<String> = name.bytes().map(|byte| format!("{byte:x}")).collect();
    let mut response = json!({
        "Id": format!("{:0<64}", id.concat()),
        "Name": format!("/{name}"), "State": {"Status": "running"}, "Config": {"Labels": labels},
    });
    response["NetworkSettings"]["Networks"] = networks;
    if let Json::Object(more) = more {
        for (key, value) in more {
            response[key] = value;
        }
    }
    response
}

/// A container of compose: project, service and number, on the project's network with this address.
fn composed(project: &str, service: &str, number: u32, last: u8, more: Json) -> Json {
    let labels = [
        format!("com.docker.compose.project={project}"),
        format!("com.docker.compose.service={service}"),
        format!("com.docker.compose.container-number={number}"),
        "com.docker.compose.oneoff=False".to_owned(),
    ];
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    let aliases = json!([format!("{project}-{service}-{number}"), service]);
    let on = json!({"IPAddress": format!("172.20.0.{last}"), "Gateway": "172.20.0.1", "Aliases": aliases});
    container(&format!("{project}-{service}-{number}"), &labels, json!({format!("{project}_default"): on}), more)
}

fn made(containers: Vec<Json>) -> HostDocument {
    let read = |response| Facts::of("x", &serde_json::from_value(response).unwrap(), &Baked::nothing()).ok();
    made_of(&containers.into_iter().filter_map(read).collect::<Vec<_>>())
}

fn made_of(facts: &[Facts]) -> HostDocument {
    let info = SystemInfo { name: Some("box".into()), ncpu: Some(2), ..SystemInfo::default() };
    let host = Host::of(&info, &HostOptions::default(), Some("192.0.2.7".parse().unwrap()));
    document(&host, &networks(), facts, [])
}

fn networks() -> Vec<NetworkFacts> {
    let networks = json!([{"Name": "bridge", "Driver": "bridge", "IPAM": {"Config": [{"Gateway": "172.17.0.1"}]}},
                          {"Name": "shop_default", "Driver": "bridge"}, {"Name": "app", "Driver": "bridge"}, {"Name": "host", "Driver": "host"}, {"Name": ""},
                          {"Name": "lan", "Driver": "macvlan"}, {"Name": "ov", "Driver": "overlay"},
                          {"Name": "back", "Driver": "overlay", "Internal": true},
                          {"Name": "ingress", "Driver": "overlay", "Ingress": true},
                          {"Name": "docker_gwbridge", "Driver": "bridge"},
                          {"Name": "vpn", "Driver": "bridge", "Labels": {"io.berth.network.routed": "true"},
                           "IPAM": {"Config": [{"Gateway": "10.42.1.1"}]}}]);
    NetworkFacts::of(&serde_json::from_value::<Vec<Network>>(networks).unwrap())
}

#[test]
fn an_address_within_a_network_of_the_host_is_not_handed_out() {
    let info = SystemInfo { name: Some("box".into()), ..SystemInfo::default() };
    for (address, expected) in [("192.0.2.7", true), ("172.17.0.1", false), ("10.42.1.1", true)] {
        let host = Host::of(&info, &HostOptions::default(), Some(address.parse().unwrap()));
        let made = document(&host, &networks(), [], []);
        let host = made.document.list("hosts")[0].as_map().unwrap();
        assert_eq!(host.text("agent_ip").map(|text| &**text), expected.then_some(address));
        let said = defects_of(&made)
            .iter()
            .any(|defect| defect.contains("in its own network bridge") && defect.contains("--public-ip"));
        assert_eq!(said, !expected, "{address}: {:?}", defects_of(&made));
    }
}

/// The document, and the snapshot that it resolves to without a word.
fn mapped(containers: Vec<Json>) -> (HostDocument, Snapshot) {
    let made = made(containers);
    let node = Node::from_value(&Value::Map(made.document.clone()));
    let (snapshot, defects) = resolve(&node).unwrap();
    assert_eq!(defects, []);
    (made, snapshot)
}

/// The entry of a container in the document.
fn entry<'d>(made: &'d HostDocument, name: &str) -> &'d Map {
    let mut all = made.document.list("containers").iter().filter_map(Value::as_map);
    all.find(|entry| entry.text("name").is_some_and(|own| &**own == name)).unwrap_or_else(|| panic!("no {name}"))
}

fn service<'d>(made: &'d HostDocument, path: &str) -> Option<&'d Map> {
    let (stack, name) = path.split_once('/').unwrap();
    let same = |entry: &Map, key: &str, wanted: &str| entry.text(key).is_some_and(|text| &**text == wanted);
    let mut all = made.document.list("services").iter().filter_map(Value::as_map);
    all.find(|entry| same(entry, "stack", stack) && same(entry, "name", name))
}

fn json_of(value: Option<&Value>) -> Json {
    value.map_or(Json::Null, |value| serde_json::to_value(value).unwrap())
}

fn defects_of(made: &HostDocument) -> Vec<String> {
    made.defects.iter().map(ToString::to_string).collect()
}

#[test]
fn a_compose_project_becomes_a_stack() {
    let (made, snapshot) = mapped(vec![
        composed("shop", "web", 1, 2, json!({})),
        composed("shop", "web", 2, 3, json!({"State": {"Status": "running", "Health": {"Status": "starting"}}})),
        composed("shop", "db", 1, 4, json!({"State": {"Status": "exited"}})),
    ]);
    assert_eq!(defects_of(&made), [""; 0]);
    assert_eq!((&*made.host, snapshot.hosts.len(), snapshot.stacks.len(), snapshot.services.len()), ("box", 1, 1, 2));
    let web = entry(&made, "shop-web-2");
    for (key, expected) in [
        ("service", json!("shop/web")),
        ("service_index", json!("2")),
        ("primary_ip", json!("172.20.0.3")),
        ("network", json!("shop_default")),
        ("health_state", json!("initializing")),
        ("host", json!("box")),
        ("dns_search", Json::Null),
        ("links", Json::Null),
    ] {
        assert_eq!(json_of(web.get(key)), expected, "{key}");
    }
    assert_eq!(json_of(entry(&made, "shop-db-1").get("state")), json!("stopped"));
    let members: Vec<_> = snapshot.services.values().map(|service| service.members().len()).collect();
    assert_eq!(members.iter().sum::<usize>(), 3);
}

#[test]
fn a_newer_container_without_ports_takes_none_from_its_service() {
    let ports = |created: u32, status: &str, expose: &[&str]| {
        let exposed: Json =
            expose.iter().map(|port| ((*port).to_owned(), json!({}))).collect::<serde_json::Map<_, _>>().into();
        let labels = json!({"com.docker.compose.project": "shop", "com.docker.compose.service": "web"});
        json!({
            "Created": format!("2026-01-01T00:00:0{created}Z"), "State": {"Status": status},
            "Config": {"Labels": labels, "ExposedPorts": exposed},
        })
    };
    for (containers, expected) in [
        (vec![ports(1, "running", &["80/tcp"]), ports(2, "running", &[])], json!(["80/tcp"])),
        (
            vec![ports(1, "running", &["80/tcp"]), ports(2, "running", &["81/tcp", "80/tcp"])],
            json!(["80/tcp", "81/tcp"]),
        ),
        // What has ended has no ports beside what runs.
        (vec![ports(1, "exited", &["80/tcp"]), ports(2, "running", &["81/tcp"])], json!(["81/tcp"])),
        (vec![ports(1, "exited", &["80/tcp"]), ports(2, "exited", &["81/tcp"])], json!(["81/tcp"])),
    ] {
        let composed = containers.into_iter().zip(1..).map(|(more, number)| composed("shop", "web", number, 1, more));
        let made = made(composed.collect());
        assert_eq!(json_of(service(&made, "shop/web").unwrap().get("expose")), expected);
    }
}

#[test]
fn one_off_containers_are_of_no_service() {
    let labels =
        ["com.docker.compose.project=shop", "com.docker.compose.service=web", "com.docker.compose.oneoff=True"];
    let (made, snapshot) = mapped(vec![container("run1", &labels, json!({}), json!({}))]);
    assert_eq!((entry(&made, "run1").get("service"), snapshot.services.len()), (None, 0));
    assert_eq!(json_of(entry(&made, "run1").get("dns_search")), json!(["shop.rancher.internal", "rancher.internal"]));
}

#[test]
fn rancher_labels_name_services_and_sidekicks() {
    let (made, snapshot) = mapped(vec![
        container("a", &["io.rancher.stack_service.name=Shop/Web"], json!({}), json!({})),
        container("b", &["io.rancher.stack_service.name=Shop/Web/log"], json!({}), json!({})),
        container("c", &["io.rancher.stack_service.name=Data/db/backup"], json!({}), json!({})),
        container("d", &[], json!({}), json!({})),
    ]);
    assert_eq!(defects_of(&made), [""; 0]);
    for (name, path) in
        [("a", json!("Shop/Web")), ("b", json!("Shop/Web/log")), ("c", json!("Data/db/backup")), ("d", Json::Null)]
    {
        assert_eq!(json_of(entry(&made, name).get("service")), path, "{name}");
    }
    // The primary of the backup has no container here, and is a service all the same.
    assert_eq!(snapshot.services.values().filter(|service| service.members().is_empty()).count(), 1);
}

#[test]
fn what_a_balancer_does_for_a_service_is_a_label_of_the_service() {
    let labels = ["io.rancher.stack_service.name=shop/web", "io.berth.lb.host=shop.example", "io.berth.lb=edge"];
    let labels = [&labels[..], &["io.berth.placement=one", "tier=front"]].concat();
    let (made, _) = mapped(vec![container("web1", &labels, json!({}), json!({}))]);
    let found = json_of(service(&made, "shop/web").unwrap().get("labels"));
    assert_eq!(found["io.berth.lb.host"], "shop.example", "{found}");
    assert_eq!((&found["io.berth.lb"], &found["tier"]), (&json!("edge"), &json!("front")), "{found}");
    assert!(found.get("io.berth.placement").is_none(), "{found}");
}

#[test]
fn who_shares_the_network_of_another_service_is_its_sidekick() {
    let shares = |target: &str| json!({"HostConfig": {"NetworkMode": format!("container:{target}")}});
    let web = composed("shop", "web", 1, 2, json!({}));
    let id = web["Id"].as_str().unwrap().to_owned();
    let (made, snapshot) = mapped(vec![
        web,
        composed("shop", "log", 1, 0, shares(&id)),
        container("alone", &[], json!({}), shares(&id[..20])),
        container("ring", &[], json!({}), shares("ring")),
    ]);
    let log = entry(&made, "shop-log-1");
    assert_eq!(json_of(log.get("service")), json!("shop/web/log"));
    assert_eq!((json_of(log.get("network_from")), log.get("primary_ip")), (json!("shop-web-1"), None));
    assert_eq!(json_of(entry(&made, "alone").get("network_from")), json!("shop-web-1"));
    assert_eq!(entry(&made, "ring").get("network_from"), None);
    assert!(snapshot.services.values().any(|service| service.is_sidekick()));
    let made = self::made(vec![container("lost", &[], json!({}), shares("nobody"))]);
    assert_eq!(
        defects_of(&made),
        [r#"containers/lost/network_from: it shares the network of "nobody", which is not there (ignored)"#]
    );
    // It is on none, not on the default one.
    assert_eq!(entry(&made, "lost").get("network"), Some(&Value::Null));
}

#[test]
fn the_hosts_network_means_the_hosts_address() {
    let (made, _) = mapped(vec![container("a", &[], json!({}), json!({"HostConfig": {"NetworkMode": "host"}}))]);
    assert_eq!(json_of(entry(&made, "a").get("primary_ip")), json!("192.0.2.7"));
    assert_eq!(json_of(entry(&made, "a").get("network")), json!("host"));
}

/// No container reaches another over the network by which a swarm's published ports arrive.
#[test]
fn the_routing_mesh_of_a_swarm_comes_last() {
    let (ingress, ov, back) = (("ingress", "10.0.0.5"), ("ov", "10.0.1.7"), ("back", "10.0.2.9"));
    for (networks, on_gateway_bridge, network, ips, routed) in [
        (&[ingress, ov][..], None, "ov", json!(["10.0.1.7", "10.0.0.5"]), json!(["10.0.1.7"])),
        (
            &[ingress, back],
            Some("172.20.0.4"),
            "back",
            json!(["10.0.2.9", "172.20.0.4", "10.0.0.5"]),
            json!(["10.0.2.9"]),
        ),
        (&[ingress], Some("172.20.0.4"), "docker_gwbridge", json!(["172.20.0.4", "10.0.0.5"]), json!([])),
        (&[ingress], None, "ingress", json!(["10.0.0.5"]), json!([])),
        (&[ov], Some("172.20.0.4"), "ov", json!(["10.0.1.7", "172.20.0.4"]), json!(["10.0.1.7"])),
    ] {
        let on = |(name, ip): &(&str, &str)| ((*name).to_owned(), json!({"IPAddress": ip, "MacAddress": ip}));
        let on: serde_json::Map<String, Json> = networks.iter().map(on).collect();
        let response = container("svc.1.x", &[], on.into(), json!({}));
        let mut facts = Facts::of("x", &serde_json::from_value(response).unwrap(), &Baked::nothing()).unwrap();
        facts.on_gateway_bridge = on_gateway_bridge.map(|address| address.parse().unwrap());
        let made = made_of(&[facts]);
        let entry = entry(&made, "svc.1.x");
        let shown = ["network", "primary_ip", "ips", "routed_ips"].map(|key| json_of(entry.get(key)));
        assert_eq!(shown, [json!(network), ips[0].clone(), ips, routed], "{networks:?}");
        // The main network's, or none of the gateway bridge, whose address the engine does not show.
        let mac = networks.iter().find(|(name, _)| *name == network).map(|(_, ip)| *ip);
        assert_eq!(json_of(entry.get("primary_mac_address")), json!(mac), "{networks:?}");
    }
}

#[test]
fn a_container_that_has_ended_is_shown_without_addresses() {
    let ended = |more: Json| {
        let mut all = json!({"State": {"Status": "exited"}});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let on = json!({"bridge": {"IPAddress": "172.17.0.3", "Gateway": "172.17.0.1"}});
    let (made, _) = mapped(vec![
        container("bridged", &[], on, ended(json!({}))),
        container("beside", &[], json!({}), ended(json!({"HostConfig": {"NetworkMode": "host"}}))),
    ]);
    for (name, network) in [("bridged", "bridge"), ("beside", "host")] {
        let entry = entry(&made, name);
        let shown = ["primary_ip", "ips", "network"].map(|key| json_of(entry.get(key)));
        assert_eq!(shown, [Json::Null, json!([]), json!(network)], "{name}");
    }
}

#[test]
fn dependencies_and_links_become_links_of_services() {
    let depends = "db:service_started:true,cache:service_healthy:false";
    let mut web = composed("shop", "web", 1, 2, json!({}));
    web["Config"]["Labels"]["com.docker.compose.depends_on"] = json!(depends);
    web["NetworkSettings"]["Networks"]["shop_default"]["Links"] =
        json!(["shop-db-1:database", "shop-db-1:db", "shop-db-1:shop-db-1", "other:peer"]);
    let (made, _) = mapped(vec![
        web,
        composed("shop", "db", 1, 3, json!({})),
        container("other", &[], json!({}), json!({"HostConfig": {"Links": ["/shop-db-1:/other/store"]}})),
    ]);
    let links = json_of(service(&made, "shop/web").unwrap().get("links"));
    assert_eq!(links, json!({"shop/db": "database", "shop/cache": "cache"}));
    assert_eq!(json_of(entry(&made, "shop-web-1").get("links")), json!({"peer": "other"}));
    assert_eq!(json_of(entry(&made, "other").get("links")), json!({"store": "shop-db-1"}));
}

#[test]
fn aliases_of_services_are_further_names_in_their_stack() {
    let called = |service: &str, number, last, aliases: Json| {
        let mut response = composed("shop", service, number, last, json!({}));
        response["NetworkSettings"]["Networks"]["shop_default"]["Aliases"] = aliases;
        response
    };
    let short = "0123456789ab";
    let mut web = called("web", 1, 2, json!(["web", "shop-web-1", "www", "store.example.org", "db", short]));
    web["Id"] = json!(format!("{short:0<64}"));
    let (made, _) =
        mapped(vec![web, called("web", 2, 3, json!(["web", "www"])), called("db", 1, 4, json!(["db", "www"]))]);
    let links = |name: &str| json_of(service(&made, &format!("shop/{name}")).and_then(|service| service.get("links")));
    assert_eq!(links("www"), json!({"shop/web": "www", "shop/db": "www"}));
    assert_eq!(links("store.example.org"), json!({"shop/web": "store.example.org"}));
    assert_eq!(made.document.list("services").len(), 4);
    assert_eq!(
        defects_of(&made),
        ["containers/shop-web-1/networks/aliases: db is the name of another service of the stack shop (ignored)"]
    );
}

#[test]
fn aliases_of_other_containers_are_links_of_those_beside_them() {
    let on = |network: &str, aliases: Json| json!({network: {"Aliases": aliases}});
    let (made, _) = mapped(vec![
        container(
            "store",
            &[],
            on("app", json!(["db", "rancher-metadata", "web.shop"])),
            json!({"Created": "2026-01-01T00:00:00Z"}),
        ),
        container("newer", &[], on("app", json!(["db"])), json!({"Created": "2026-01-02T00:00:00Z"})),
        container(
            "ended",
            &[],
            on("app", json!(["db"])),
            json!({"Created": "2026-01-03T00:00:00Z", "State": {"Status": "exited"}}),
        ),
        container("client", &[], on("app", json!([])), json!({})),
        container("elsewhere", &[], on("bridge", json!(["x"])), json!({})),
    ]);
    assert_eq!(json_of(entry(&made, "client").get("links")), json!({"db": "newer"}));
    assert_eq!(entry(&made, "elsewhere").get("links"), None);
}

#[test]
fn stacks_on_a_common_network_are_found_by_short_names() {
    let mut web = composed("shop", "web", 1, 2, json!({}));
    web["NetworkSettings"]["Networks"]["app"] = json!({"IPAddress": "172.21.0.2"});
    let guest = |more| container("guest", &[], json!({"app": {"IPAddress": "172.21.0.3"}}), more);
    let search = |made: &HostDocument, name: &str| json_of(entry(made, name).get("dns_search"));
    let mut blog = composed("Blog", "web", 1, 5, json!({}));
    blog["NetworkSettings"]["Networks"]["app"] = json!({"IPAddress": "172.21.0.4"});
    let (made, _) = mapped(vec![web.clone(), blog, guest(json!({}))]);
    assert_eq!(search(&made, "guest"), json!(["blog.rancher.internal", "shop.rancher.internal", "rancher.internal"]));
    assert_eq!(
        search(&made, "shop-web-1"),
        json!(["web.shop.rancher.internal", "shop.rancher.internal", "blog.rancher.internal", "rancher.internal"])
    );
    let configured = guest(json!({"HostConfig": {"DnsSearch": ["example.org", "Shop.rancher.internal"]}}));
    let (made, _) = mapped(vec![web.clone(), configured]);
    assert_eq!(search(&made, "guest"), json!(["example.org", "Shop.rancher.internal", "rancher.internal"]));
    let (made, _) = mapped(vec![web, guest(json!({"HostConfig": {"DnsSearch": ["."]}}))]);
    assert_eq!(search(&made, "guest"), json!([]));
}

#[test]
fn odd_names_get_a_form_and_reasons() {
    let (made, snapshot) =
        mapped(vec![composed("My Shop", "a/b", 1, 2, json!({})), composed(&"x".repeat(80), "web", 1, 3, json!({}))]);
    assert_eq!(json_of(entry(&made, "My Shop-a/b-1").get("service")), json!("Myx--20Shop/ax--2fb"));
    assert_eq!(snapshot.services.len(), 1);
    let defects = defects_of(&made);
    assert!(
        defects.len() == 1 && defects[0].contains("com.docker.compose.project") && defects[0].contains("does not fit"),
        "{defects:?}"
    );
}

#[test]
fn one_address_of_two_containers_is_reported() {
    let on = json!({"app": {"IPAddress": "172.20.0.9"}});
    let created = |day: u8| json!({"Created": format!("2026-01-0{day}T00:00:00Z")});
    let (made, _) = mapped(vec![container("b", &[], on.clone(), created(2)), container("a", &[], on, created(1))]);
    assert_eq!(
        defects_of(&made),
        ["containers/a/primary_ip: 172.20.0.9 is also that of b, the newer container (ignored)"]
    );
}

#[test]
fn the_order_of_an_engine_does_not_matter() {
    let all = || {
        vec![
            composed("shop", "web", 1, 2, json!({})),
            composed("shop", "db", 1, 3, json!({})),
            container("x", &[], json!({}), json!({})),
        ]
    };
    let mut turned = all();
    turned.reverse();
    assert_eq!(made(all()), made(turned));
}

#[test]
fn networks_are_shown_by_name_without_what_is_of_one_host() {
    let response = json!([
        {"Name": "bridge", "Id": "1", "Driver": "bridge", "Scope": "local", "Options": {"com.docker.network.bridge.default_bridge": "true"}},
        {"Name": "nat", "Driver": "nat"}, {"Name": "lan", "Driver": "macvlan", "Internal": true}, {"Name": "lan", "Driver": "bridge"},
    ]);
    let found = NetworkFacts::of(&serde_json::from_value::<Vec<Network>>(response).unwrap());
    let shown: Vec<_> = found
        .iter()
        .map(|network| {
            let truth = |key: &str| network.fields.get(key).and_then(Value::as_bool).unwrap();
            (&*network.name, truth("is_default"), truth("host_ports"))
        })
        .collect();
    assert_eq!(shown, [("bridge", true, true), ("lan", false, false), ("nat", true, true)]);
}

#[test]
fn a_host_says_which_networks_it_has_unless_a_swarm_gives_it_more() {
    for (state, expected) in [("active", 0), ("inactive", networks().len()), ("pending", networks().len())] {
        let info = json!({"Name": "box", "Swarm": {"LocalNodeState": state}});
        let host = Host::of(&serde_json::from_value(info).unwrap(), &HostOptions::default(), None);
        let made = document(&host, &networks(), [], []);
        let host = made.document.list("hosts")[0].as_map().unwrap();
        assert_eq!(host.list("networks").len(), expected, "{state}");
        assert_eq!(host.get("networks").is_some(), expected > 0, "{state}");
    }
}

#[test]
fn addresses_that_other_hosts_reach_are_stated() {
    let on = |ip: &str| json!({"IPAddress": ip, "Gateway": "172.20.0.1"});
    let network = |container: &str, networks: Json, more: Json| {
        let (_, snapshot) = mapped(vec![self::container(container, &[], networks, more)]);
        let container = snapshot.containers.values().next().unwrap().clone();
        container.routed_ips().map(<[_]>::to_vec)
    };
    let routed = |text: &str| Some(vec![text.parse::<IpAddr>().unwrap()]);
    assert_eq!(network("a", json!({"bridge": on("172.17.0.2")}), json!({})), Some(vec![]));
    assert_eq!(network("b", json!({"lan": on("10.9.0.2")}), json!({})), routed("10.9.0.2"));
    assert_eq!(network("c", json!({"bridge": on("172.17.0.2"), "lan": on("10.9.0.2")}), json!({})), routed("10.9.0.2"));
    assert_eq!(network("d", json!({"vpn": on("10.8.0.2")}), json!({})), routed("10.8.0.2"));
    assert_eq!(network("e", json!({"new": on("10.7.0.2")}), json!({})), Some(vec![]));
    assert_eq!(network("f", json!({}), json!({"HostConfig": {"NetworkMode": "host"}})), None);
}

proptest! {
    /// For any response of an engine its host's document has no defect of its own: nothing hides an entity.
    #[test]
    fn every_document_is_a_good_one(responses in prop::collection::vec(facts::tests::inspection(), 0..6)) {
        let made = made(responses);
        let node = Node::from_value(&Value::Map(made.document.clone()));
        let (snapshot, defects) = resolve(&node).unwrap();
        let hidden: Vec<_> = defects.iter().filter(|defect| !defect.problem.contains("there already is a container")).collect();
        prop_assert!(hidden.is_empty(), "{:?}", hidden);
        prop_assert!(snapshot.containers.len() <= made.document.list("containers").len());
    }
}
