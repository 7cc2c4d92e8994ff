use std::net::IpAddr;

use model::{Map, Value};
use proptest::prelude::*;

use super::*;
use crate::negotiate::Format;
use crate::parts::Part;
use crate::path::Method;
use crate::query::Wait;
use crate::respond::{Answer, Outcome, Question, Wanted};

/// Two services, one with a sidekick on its network, on two hosts; a container alone, and one on the host's network.
const SHOP: &str = r#"[
    {"metadata_kind":"host","uuid":"h1","name":"Host1","hostId":7,"agent_ip":"10.0.0.1","labels":{}},
    {"metadata_kind":"host","uuid":"h2","name":"alpha","agent_ip":"10.0.0.2"},
    {"metadata_kind":"stack","uuid":"st1","name":"Shop","environment_name":"Prod"},
    {"metadata_kind":"service","uuid":"s1","name":"Web","stack_name":"Shop","stack_uuid":"st1","primary_service_name":"Web",
     "sidekicks":["Log"],"create_index":2,"token":"tok-web"},
    {"metadata_kind":"service","uuid":"s1","name":"Log","stack_name":"Shop","stack_uuid":"st1","primary_service_name":"Web",
     "sidekicks":["Log"],"create_index":2,"token":"tok-web"},
    {"metadata_kind":"service","uuid":"s2","name":"empty","stack_name":"Shop","stack_uuid":"st1","primary_service_name":"empty",
     "sidekicks":[],"create_index":1,"token":"tok-empty"},
    {"metadata_kind":"container","uuid":"c1","name":"Web-1","primary_ip":"10.42.0.1","host_uuid":"h1","host_ip":"10.0.0.1",
     "state":"running","create_index":3,"service_name":null,"stack_name":null,
     "ports":["80:80/tcp","0.0.0.0:81:81/tcp","127.0.0.1:82:82/tcp","[::1]:83:83"]},
    {"metadata_kind":"container","uuid":"c2","name":"web-2","primary_ip":"fd00::2","host_uuid":"h2","state":"running",
     "create_index":2,"ports":[]},
    {"metadata_kind":"container","uuid":"c3","name":"Web-Log-1","primary_ip":null,"host_uuid":"h1","create_index":3,
     "network_from_container_uuid":"c1"},
    {"metadata_kind":"container","uuid":"c4","name":"Alone","primary_ip":"10.42.0.9","host_uuid":null,"service_name":null},
    {"metadata_kind":"container","uuid":"5","name":null,"primary_ip":"10.0.0.2","host_uuid":"h2","state":"running"},
    {"metadata_kind":"serviceContainerLink","service_uuid":"s1","service_name":"Web","container_uuid":"c2"},
    {"metadata_kind":"serviceContainerLink","service_uuid":"s1","service_name":"Web","container_uuid":"c1"},
    {"metadata_kind":"serviceContainerLink","service_uuid":"s1","service_name":"Web","container_uuid":"gone"},
    {"metadata_kind":"serviceContainerLink","service_uuid":"s1","service_name":"Log","container_uuid":"c3"},
    {"metadata_kind":"serviceLink","service_uuid":"s1","key":"Data/DB","value":"DB"},
    {"metadata_kind":"containerLink","container_uuid":"c4","key":"Peer","value":"c1"},
    {"metadata_kind":"network","uuid":"n2","name":"zeta"},
    {"metadata_kind":"network","uuid":"n1","name":"beta","metadata":{"mtu":1500}},
    {"metadata_kind":"environment","name":"prod","uuid":"e1","region_name":null},
    {"metadata_kind":"defaultData","version":"7-x","self":{"host":{"uuid":"h1","name":"Host1","hostId":7}}},
    {"metadata_kind":"external","objects":[
        {"metadata_kind":"environment","name":"qa","uuid":"e2","region_name":"eu"},
        {"metadata_kind":"container","uuid":"x1","name":"QA-1","primary_ip":"10.43.0.1"},
        {"metadata_kind":"defaultData","version":"9-y"}]}
]"#;

fn objects(json: &str) -> Vec<Map> {
    let value: Value = serde_json::from_str(json).unwrap();
    value.as_list().unwrap().iter().map(|object| object.as_map().unwrap().clone()).collect()
}

fn snapshot(json: &str) -> Arc<Snapshot> {
    Arc::new(model::objects::read(objects(json)).0)
}

fn tree(json: &str) -> Tree {
    Tree::empty().next(&snapshot(json)).unwrap()
}

fn client(address: &str) -> Client {
    if address == "-" { Client::at(IpAddr::from([192, 0, 2, 1])) } else { Client::at(address.parse().unwrap()) }
}

fn ask(tree: &Tree, client: Client, target: &str, format: Format) -> Answer {
    match Outcome::of(tree, Method::Read, target.as_bytes(), client, Wanted { format, page: false }) {
        Outcome::Answer(answer) => answer,
        Outcome::Show(question) | Outcome::Wait(question, _) => shown(tree, &question),
        Outcome::Hold(_) | Outcome::Changes(_) => panic!("{target} is answered otherwise"),
    }
}

/// What is shown, all parts of it.
fn shown(tree: &Tree, question: &Question<'_>) -> Answer {
    let part = |part| match part {
        Part::Written(text) => text,
        Part::Own(keys) | Part::Shared(_, keys) => question.part(tree, &keys),
    };
    match question.clone().outcome(tree) {
        Outcome::Answer(answer) => answer,
        _ => Answer::found(question.parts(tree).into_iter().map(part).collect()),
    }
}

/// Asks for JSON, or for a listing when the expectation is one.
fn check(tree: &Tree, from: &str, target: &str, expected: &str) {
    let format = if expected.starts_with(['{', '[', '"']) || expected == "null" { Format::Json } else { Format::Text };
    let answer = ask(tree, client(from), target, format);
    let body = if answer.status == 200 { answer.body } else { format!("{} {}", answer.status, answer.body.trim_end()) };
    assert_eq!(body, expected, "{from} {target}");
}

#[test]
fn versions_show_the_same_containers_differently() {
    let tree = tree(SHOP);
    for (target, expected) in [
        ("/2015-12-19/containers", "0=5\n1=Alone\n2=web-2\n3=Web-1\n4=Web-Log-1\n"),
        ("/latest/containers", "0=5\n1=alone\n2=web-2\n3=web-1\n4=web-log-1\n"),
        ("/2015-07-25/containers/Web-1/service_name", "Web"),
        ("/2016-07-29/containers/web-1/service_name", "web"),
        ("/2016-07-29/containers/c1/stack_name", "shop"),
        ("/latest/containers/Web-1/service_uuid", "s1"),
        ("/latest/containers/c1/stack_uuid", "st1"),
        ("/latest/containers/alone/service_name", "null"),
        ("/latest/containers/alone/service_uuid", "404 Not found"),
        ("/2015-07-25/containers/Web-1/host_ip", "404 Not found"),
        (
            "/latest/containers/web-1/ports",
            r#"["0.0.0.0:80:80/tcp","0.0.0.0:81:81/tcp","127.0.0.1:82:82/tcp","[::1]:83:83"]"#,
        ),
        (
            "/2015-12-19/containers/Web-1/ports",
            r#"["10.0.0.1:80:80/tcp","10.0.0.1:81:81/tcp","127.0.0.1:82:82/tcp","[::1]:83:83"]"#,
        ),
        ("/latest/containers/web-2/ports", "null"),
        ("/2015-12-19/containers/web-2/ports", "[]"),
        ("/latest/containers/alone/links", r#"{"Peer":"c1"}"#),
        ("/latest/containers/web-1/links", "null"),
        ("/latest/containers/web-1/links/x", "404 Not found"),
        ("/latest/containers/WEB-1/name", "web-1"),
        ("/2015-12-19/containers/web-1/name", "404 Not found"),
    ] {
        check(&tree, "-", target, expected);
    }
    check(
        &tree,
        "-",
        "/latest/containers/web-2",
        "create_index\nhost_uuid\nlinks/\nmetadata_kind\nname\nports/\nprimary_ip\nservice_name\nservice_uuid\nstack_name\nstack_uuid\nstate\nuuid\n",
    );
}

#[test]
fn versions_show_the_same_services_and_stacks_differently() {
    let tree = tree(SHOP);
    for (target, expected) in [
        ("/2015-12-19/services", "0=empty\n1=Log\n2=Web\n"),
        ("/latest/services", "0=empty\n1=log\n2=web\n"),
        ("/2015-07-25/services/Web/containers", r#"["web-2","Web-1"]"#),
        ("/2015-12-19/services/Web/containers", "0=web-2\n1=Web-1\n"),
        ("/latest/services/web/containers/web-1/primary_ip", "10.42.0.1"),
        ("/2015-07-25/services/Web/containers/web-2", "404 Not found"),
        ("/2015-07-25/services/Web/containers/1", "Web-1"),
        ("/latest/services/empty/containers", "null"),
        ("/latest/services/web/sidekicks", r#"["log"]"#),
        ("/2015-12-19/services/Web/sidekicks", r#"["Log"]"#),
        ("/latest/services/empty/sidekicks", "null"),
        ("/2015-12-19/services/empty/sidekicks", "[]"),
        ("/latest/services/web/links", r#"{"data/db":"DB"}"#),
        ("/latest/services/log/links", r#"{"data/db":"DB"}"#),
        ("/2015-12-19/services/Web/links", r#"{"Data/DB":"DB"}"#),
        ("/latest/services/empty/links", "{}"),
        ("/2015-12-19/services/empty/links", "null"),
        ("/latest/services/s1/name", "log"),
        ("/latest/services/log/primary_service_name", "web"),
        ("/2015-07-25/stacks/Shop/services", r#"["empty","Log","Web"]"#),
        ("/latest/stacks/shop/services/web/stack_name", "shop"),
        ("/latest/stacks/0/environment_name", "Prod"),
        ("/2015-12-19/hosts/Host1/hostId", "7"),
        ("/latest/hosts/Host1/hostId", "404 Not found"),
        ("/latest/hosts/host1", "404 Not found"),
        ("/latest/hosts", "0=alpha\n1=Host1\n"),
        ("/latest/networks", "0=zeta\n1=beta\n"),
        ("/latest/networks/beta/metadata/mtu", "1500"),
        ("/latest/networks/n2/name", "zeta"),
    ] {
        check(&tree, "-", target, expected);
    }
}

#[test]
fn elements_are_found_by_index_or_by_name() {
    let tree = tree(SHOP);
    for (step, name) in [
        ("1", "alone"),
        ("03", "web-1"),
        ("+2", "web-2"),
        ("-1", "404 Not found"),
        ("5", "404 Not found"),
        ("99999999999999999999", "404 Not found"),
        ("c3", "web-log-1"),
    ] {
        check(&tree, "-", &format!("/latest/containers/{}/name", step.replace('+', "%2B")), name);
    }
    check(&tree, "-", "/latest/containers/0/name", "null");
    check(&tree, "-", "/latest/containers/0/name/x", "404 Not found");
}

#[test]
fn clients_are_known_by_their_address() {
    let tree = tree(SHOP);
    for (from, target, expected) in [
        ("-", "/latest/self", "host/\n"),
        ("-", "/2015-07-25/self/host", r#"{"name":"Host1","uuid":"h1"}"#),
        ("10.42.0.1", "/latest/self", "container/\nhost/\nservice/\nstack/\n"),
        ("::ffff:10.42.0.1", "/latest/self/container/name", "web-1"),
        ("10.42.0.1", "/2015-12-19/self/host/hostId", "7"),
        ("10.42.0.1", "/latest/self/host/hostId", "404 Not found"),
        ("10.42.0.1", "/latest/self/stack/name", "shop"),
        ("10.42.0.1", "/2015-07-25/self/service/containers", "0\n1\n"),
        ("fd00::2", "/latest/self/service/name", "web"),
        ("10.42.0.9", "/latest/self", "container/\n"),
        ("10.0.0.2", "/latest/self", "container/\nhost/\n"),
        ("10.42.0.1", "/latest/name", "prod"),
        ("10.43.0.1", "/latest/self/container/name", "404 Not found"),
    ] {
        check(&tree, from, target, expected);
    }
}

#[test]
fn clients_named_by_a_proxy_are_taken_at_its_word() {
    let tree = tree(SHOP);
    for (name, expected) in [("10.42.0.1", 200), ("default", 404), ("10.42.0.1, 10.0.0.1", 404), ("", 404)] {
        assert_eq!(ask(&tree, Client::named(name), "/latest/self/container", Format::Text).status, expected, "{name}");
    }
}

#[test]
fn other_environments_are_shown_in_the_newest_version() {
    let tree = tree(SHOP);
    for (target, expected) in [
        (
            "/latest",
            "containers/\nenvironments/\nhosts/\nname\nnetworks/\nregion_name\nself/\nservices/\nstacks/\nuuid\nversion\n",
        ),
        (
            "/2015-12-19",
            "containers/\nhosts/\nname\nnetworks/\nregion_name\nself/\nservices/\nstacks/\nuuid\nversion\n",
        ),
        ("/latest/environments", "0=qa\n"),
        (
            "/latest/environments/qa",
            "containers/\nhosts/\nname\nnetworks/\nregion_name\nservices/\nstacks/\nuuid\nversion\n",
        ),
        ("/latest/environments/e2/containers/qa-1/primary_ip", "10.43.0.1"),
        ("/latest/environments/0/version", "9-y"),
        ("/latest/environments/0/environments", "404 Not found"),
        ("/2015-12-19/environments", "404 Not found"),
    ] {
        check(&tree, "-", target, expected);
    }
    check(&self::tree("[]"), "-", "/latest/environments", "null");
    check(
        &self::tree("[]"),
        "-",
        "/latest",
        "containers/\nenvironments/\nhosts/\nnetworks/\nservices/\nstacks/\nversion\n",
    );
}

#[test]
fn tokens_are_for_the_containers_of_their_service() {
    let tree = tree(SHOP);
    for (from, target, recorded, own) in [
        ("10.42.0.1", "/latest/self/service/token", "tok-web", "tok-web"),
        ("fd00::2", "/latest/self/service/token", "tok-web", "tok-web"),
        ("10.42.0.1", "/latest/services/web/token", "", ""),
        ("10.42.0.1", "/latest/services/log/token", "tok-web", ""),
        ("10.42.0.9", "/latest/services/log/token", "", ""),
        ("-", "/2015-12-19/stacks/Shop/services/Log/token", "", ""),
        ("-", "/latest/services/empty/token", "tok-empty", ""),
    ] {
        for (tokens, expected) in [(ServiceTokens::Recorded, recorded), (ServiceTokens::Own, own)] {
            let answer = ask(&tree, Client { tokens, ..client(from) }, target, Format::Text);
            assert_eq!((answer.status, &*answer.body), (200, expected), "{from} {target} {tokens:?}");
        }
    }
}

/// Every engine's own bridge has the same addresses; the older container is on the other host.
#[test]
fn another_hosts_container_with_the_same_address_is_not_the_client() {
    let container = |uuid: &str, host: &str, address: &str, index: u8| {
        format!(
            r#"{{"metadata_kind":"container","uuid":"{uuid}","name":"{uuid}","primary_ip":"{address}","host_uuid":"{host}",
                "state":"running","create_index":{index},"routed_ips":[]}}"#
        )
    };
    let cluster = |local: &str| {
        format!(
            r#"[{{"metadata_kind":"host","uuid":"h1","name":"one"}},{{"metadata_kind":"host","uuid":"h2","name":"two"}},
                {{"metadata_kind":"service","uuid":"s","name":"s","token":"secret"}},
                {{"metadata_kind":"serviceContainerLink","service_uuid":"s","service_name":"s","container_uuid":"old"}},
                {},{},{},{{"metadata_kind":"defaultData","version":"1","self":{{"host":{{"uuid":"{local}"}}}}}}]"#,
            container("old", "h1", "172.17.0.2", 1),
            container("young", "h2", "172.17.0.2", 2),
            container("alone", "h1", "172.17.0.3", 3),
        )
    };
    let mut tree = Tree::empty();
    for (local, name, token, alone) in
        [("h1", "old", "secret", "alone"), ("h2", "young", "404 Not found", "404 Not found")]
    {
        // The one follows from the other, too: the host that a snapshot is made for may get another name.
        tree = tree.next(&snapshot(&cluster(local))).unwrap();
        check(&tree, "172.17.0.2", "/latest/self/container/name", name);
        check(&tree, "172.17.0.2", "/latest/self/service/token", token);
        check(&tree, "172.17.0.3", "/latest/self/container/name", alone);
        check(&tree, "-", "/latest/containers/old/routed_ips", "404 Not found");
    }
    assert!(!ask(&tree, client("-"), "/latest/containers", Format::Json).body.contains("routed_ips"));
}

#[test]
fn no_container_of_another_host_stands_in_for_one_of_this_host() {
    let container = |host: &str, index: u8| {
        format!(
            r#"{{"metadata_kind":"container","uuid":"{host}-db","name":"shop-db-1","host_uuid":"{host}","create_index":{index}}},
               {{"metadata_kind":"serviceContainerLink","service_uuid":"s","service_name":"db","container_uuid":"{host}-db"}}"#
        )
    };
    let cluster = |local: &str| {
        format!(
            r#"[{{"metadata_kind":"host","uuid":"h1","name":"one"}},{{"metadata_kind":"host","uuid":"h2","name":"two"}},
                {{"metadata_kind":"host","uuid":"h3","name":"three"}},
                {{"metadata_kind":"service","uuid":"s","name":"db","stack_name":"shop"}},
                {},{},{{"metadata_kind":"defaultData","version":"1","self":{{"host":{{"uuid":"{local}"}}}}}}]"#,
            container("h1", 1),
            container("h2", 2),
        )
    };
    // On a host that has none of this name it is the first one's, as with the predecessor.
    for (local, host) in [("h1", "h1"), ("h2", "h2"), ("h3", "h1")] {
        let tree = tree(&cluster(local));
        check(&tree, "-", "/latest/containers/shop-db-1/host_uuid", host);
        check(&tree, "-", "/latest/services/db/containers/shop-db-1/host_uuid", host);
    }
}

#[test]
fn what_only_berth_knows_of_a_stack_is_not_shown() {
    let tree = tree(r#"[{"metadata_kind":"stack","uuid":"st","name":"shop","from_labels":true}]"#);
    assert!(!ask(&tree, client("-"), "/latest/stacks", Format::Json).body.contains("from_labels"));
}

#[test]
fn the_best_claim_to_a_shared_address_wins() {
    let container = |uuid: &str, more: &str| {
        format!(r#"{{"metadata_kind":"container","uuid":"{uuid}","name":"{uuid}","primary_ip":"10.0.0.1"{more}}}"#)
    };
    let ranked = [
        container("e", r#","state":"running","create_index":9"#),
        container("a", r#","state":"running","create_index":1"#),
        container("b", r#","state":"running","create_index":2"#),
        container("c", r#","state":"running","system":true"#),
        container("d", r#","state":"running","network_from_container_uuid":"x""#),
        container("f", r#","state":"stopped""#),
    ];
    let service = r#"{"metadata_kind":"service","uuid":"s","name":"s"},
        {"metadata_kind":"serviceContainerLink","service_uuid":"s","service_name":"s","container_uuid":"e"}"#;
    for first in 0..ranked.len() {
        let mut containers = ranked[first..].to_vec();
        containers.reverse();
        let tree = tree(&format!("[{service},{}]", containers.join(",")));
        let expected = ["e", "a", "b", "c", "d", "f"][first];
        check(&tree, "10.0.0.1", "/latest/self/container/uuid", expected);
    }
    // Behind a proxy the container of no service wins.
    let tree = tree(&format!("[{service},{}]", ranked.join(",")));
    let proxied = Client { proxied: true, ..client("10.0.0.1") };
    assert_eq!(ask(&tree, proxied, "/latest/self/container/uuid", Format::Text).body, "a");
}

#[test]
fn answers_of_a_file_are_given_verbatim() {
    let tree = tree(
        r#"[{"metadata_kind":"answers","answers":{
            "2015-12-19":{"default":{"name":"old"}},
            "2016-07-29":{"default":{"version":"42-x","Name":"Up","list":[{"name":"a"}],"self":{"host":"h"}},
                          "10.0.0.1":{"self":{"container":{"name":"one"}},"own":1}},
            "2017-01-01":{"10.0.0.1":{"only":"mine"}}}}]"#,
    );
    for (from, target, expected) in [
        ("-", "/", "2015-12-19\n2016-07-29\n2017-01-01\nlatest\n"),
        ("-", "/2016-07-29", "Name\nlist/\nself/\nversion\n"),
        ("10.0.0.1", "/2016-07-29", "Name\nlist/\nown\nself/\nversion\n"),
        ("10.0.0.1", "/2016-07-29/self", r#"{"container":{"name":"one"}}"#),
        ("-", "/2016-07-29/version", "42-x"),
        ("-", "/2016-07-29/name", "404 Not found"),
        ("-", "/2016-07-29/LIST/A/name", "a"),
        ("-", "/2015-12-19/name", "old"),
        ("10.0.0.1", "/latest/only", "mine"),
        ("-", "/latest", "404 Not found"),
        ("-", "/2018-01-01", "404 Invalid version"),
    ] {
        check(&tree, from, target, expected);
    }
    let named = ask(&tree, Client::named("10.0.0.1"), "/2016-07-29/own", Format::Text);
    assert_eq!(named.body, "1");
}

#[test]
fn nothing_is_known_before_the_first_data() {
    let tree = Tree::empty();
    for (target, expected) in [
        ("/", "latest\n"),
        ("/latest", "404 Not found"),
        ("/latest/self/container", "404 Not found"),
        ("/2016-07-29", "404 Invalid version"),
        ("/favicon.ico", "404 404 page not found"),
    ] {
        check(&tree, "-", target, expected);
    }
    assert!(tree.is_empty() && tree.version().is_empty());
}

#[test]
fn equal_content_has_an_equal_version_and_is_no_news() {
    let tree = tree(SHOP);
    assert_eq!(tree.version(), snapshot(SHOP).fingerprint().to_string());
    check(&tree, "-", "/2015-07-25/version", tree.version());
    assert!(tree.next(&snapshot(SHOP)).is_none());
    let mut other = objects(SHOP);
    other.pop();
    let other = Arc::new(model::objects::read(other).0);
    assert_ne!(tree.next(&other).unwrap().version(), tree.version());
    // No data at all are data too.
    assert!(Tree::empty().next(&Arc::default()).is_some());
}

#[test]
fn waiting_compares_the_plain_value() {
    let tree = tree(SHOP);
    let ask = |target: &str, format| match Outcome::of(
        &tree,
        Method::Read,
        target.as_bytes(),
        client("-"),
        Wanted { format, page: false },
    ) {
        Outcome::Answer(answer) => answer.body,
        Outcome::Show(question) => shown(&tree, &question).body,
        Outcome::Wait(question, Wait { known, .. }) => {
            if question.differs(&tree, &known) {
                shown(&tree, &question).body
            } else {
                "waits".to_owned()
            }
        }
        Outcome::Hold(_) | Outcome::Changes(_) => panic!("{target} is answered otherwise"),
    };
    for (target, expected) in [
        ("/latest/name?wait=true&value=prod", "waits"),
        ("/latest/name?wait=true&value=other", "prod"),
        ("/latest/NAME/?wait=true&value=prod", "waits"),
        ("/latest/nokey?wait=true&value=x", "waits"),
        ("/latest/region_name?wait=true&value=%3Cnil%3E", "waits"),
        ("/latest/region_name?wait=true&value=", ""),
        ("/latest/services/empty/sidekicks?wait=true&value=%5B%5D", "waits"),
        ("/latest/services/web/sidekicks?wait=true&value=%5Blog%5D", "waits"),
        ("/latest/services/web/links?wait=true&value=map%5Bdata/db:DB%5D", "waits"),
        ("/2014-01-01/name?wait=true", "Invalid version\n"),
        ("/latest/name?wait=true&value=a%26b", "prod"),
    ] {
        assert_eq!(ask(target, Format::Text), expected, "{target}");
    }
    assert_eq!(ask("/latest/name?wait=true&value=%22prod%22", Format::Json), "\"prod\"");
    assert_eq!(ask("/latest/name?wait=true&value=prod", Format::Json), "waits");
}

/// A cluster of a few names, so that changes meet each other.
fn any_cluster() -> impl Strategy<Value = Vec<Map>> {
    let small = || 0..4u8;
    let container = (0..12u8, small(), small(), 0..3i64, any::<bool>()).prop_map(|(uuid, name, ip, index, runs)| {
        serde_json::json!({"metadata_kind":"container","uuid":format!("c{uuid}"),"name":format!("Name-{name}"),
            "primary_ip":format!("10.0.0.{ip}"),"create_index":index,"host_uuid":format!("h{}", uuid % 2),
            "state": if runs {"running"} else {"stopped"}, "ports":[]})
    });
    let service = (small(), small(), small()).prop_map(|(uuid, name, stack)| {
        serde_json::json!({"metadata_kind":"service","uuid":format!("s{uuid}"),"name":format!("Name-{name}"),
            "stack_uuid":format!("st{}", stack % 2),"token":format!("tok-{uuid}"),"sidekicks":["X"]})
    });
    let link = (small(), small(), 0..12u8).prop_map(|(uuid, name, container)| {
        serde_json::json!({"metadata_kind":"serviceContainerLink","service_uuid":format!("s{uuid}"),
            "service_name":format!("Name-{name}"),"container_uuid":format!("c{container}")})
    });
    let stack = (small(), small()).prop_map(|(uuid, name)| {
        serde_json::json!({"metadata_kind":"stack","uuid":format!("st{uuid}"),"name":format!("N{name}")})
    });
    let host = (small(), small()).prop_map(
        |(uuid, name)| serde_json::json!({"metadata_kind":"host","uuid":format!("h{uuid}"),"name":format!("N{name}")}),
    );
    let network = (small(), small()).prop_map(|(uuid, name)| {
        serde_json::json!({"metadata_kind":"network","uuid":format!("n{uuid}"),"name":format!("N{name}")})
    });
    let own =
        small().prop_map(|version| serde_json::json!({"metadata_kind":"defaultData","version":version.to_string()}));
    let object = prop_oneof![6 => container, 3 => service, 4 => link, 1 => stack, 1 => host, 1 => network, 1 => own];
    let map = |object: serde_json::Value| -> Map { serde_json::from_value(object).unwrap() };
    prop::collection::vec(object.prop_map(map), 0..40)
}

/// Everything that these clients can see.
fn all(tree: &Tree) -> Vec<String> {
    let mut seen = Vec::new();
    for from in ["-", "10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3"] {
        for version in ["2015-07-25", "latest"] {
            seen.push(ask(tree, client(from), &format!("/{version}"), Format::Json).body);
            for step in [
                "containers/name-1/uuid",
                "containers/c3/name",
                "services/Name-2/uuid",
                "services/s1/name",
                "stacks/n1/uuid",
                "hosts/N2/uuid",
            ] {
                seen.push(ask(tree, client(from), &format!("/{version}/{step}"), Format::Text).body);
            }
        }
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn following_changes_gives_what_building_anew_gives(
        clusters in prop::collection::vec(any_cluster(), 1..5),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any_cluster()), 0..6),
    ) {
        let mut tree = Tree::empty();
        let mut last = Arc::new(Snapshot::default());
        let mut objects = Vec::new();
        // Whole new clusters, then clusters in which a few things changed.
        let steps = clusters.into_iter().map(|cluster| (None, cluster)).chain(edits.into_iter().map(|(at, few)| (Some(at), few)));
        for (at, cluster) in steps {
            match at {
                None => objects = cluster,
                Some(at) => {
                    let start = at.index(objects.len() + 1);
                    objects.truncate(objects.len().max(start));
                    objects.splice(start..objects.len().min(start + 2), cluster.into_iter().take(3));
                }
            }
            let snapshot = Arc::new(model::objects::read(objects.clone()).0.succeeding(&last));
            if let Some(next) = tree.next(&snapshot) {
                tree = next;
            }
            last = snapshot.clone();
            let anew = Tree::empty().next(&snapshot).unwrap();
            prop_assert_eq!(tree.version(), anew.version());
            prop_assert_eq!(all(&tree), all(&anew));
        }
    }
}

/// Services of many containers, each with a token and a sidekick whose containers have no address of their own.
fn large() -> Tree {
    let mut objects = vec![
        r#"{"metadata_kind":"host","uuid":"h","name":"h","agent_ip":"10.0.0.1"}"#.to_owned(),
        r#"{"metadata_kind":"stack","uuid":"st","name":"Shop"}"#.to_owned(),
        r#"{"metadata_kind":"environment","name":"prod","uuid":"e"}"#.to_owned(),
    ];
    for service in 0..3 {
        for name in ["Web", "Log"] {
            objects.push(format!(
                r#"{{"metadata_kind":"service","uuid":"s{service}","name":"{name}{service}","stack_name":"Shop","stack_uuid":"st","token":"tok-{service}-{name}"}}"#
            ));
            for container in 0..12 {
                let address =
                    if name == "Web" { format!(r#""10.1.{service}.{container}""#) } else { "null".to_owned() };
                let uuid = format!("{name}-{service}-{container}");
                objects.push(format!(
                    r#"{{"metadata_kind":"container","uuid":"{uuid}","name":"{uuid}","primary_ip":{address},"host_uuid":"h","state":"running"}}"#
                ));
                // The last service has no container with an address.
                if service < 2 || name == "Log" {
                    objects.push(format!(
                        r#"{{"metadata_kind":"serviceContainerLink","service_uuid":"s{service}","service_name":"{name}{service}","container_uuid":"{uuid}"}}"#
                    ));
                }
            }
        }
    }
    tree(&format!("[{}]", objects.join(",")))
}

#[test]
fn pieces_that_clients_share_are_the_same_for_all_of_them() {
    let tree = large();
    let mut shared = std::collections::HashMap::new();
    let mut uses = 0;
    for tokens in [ServiceTokens::Recorded, ServiceTokens::Own] {
        shared.clear();
        for from in ["192.0.2.1", "10.1.0.0", "10.1.0.1", "10.1.1.7", "10.1.2.5"] {
            for format in [Format::Json, Format::Yaml, Format::Text] {
                for version in ["2015-07-25", "latest"] {
                    for path in [
                        "",
                        "/containers",
                        "/services",
                        "/stacks",
                        "/self",
                        "/self/stack",
                        "/self/service",
                        "/self/service/containers",
                        "/services/0",
                        "/stacks/0",
                        "/stacks/0/services",
                        "/hosts",
                        "/name",
                    ] {
                        let target = format!("/{version}{path}");
                        let client = Client { tokens, ..client(from) };
                        let wanted = Wanted { format, page: false };
                        let outcome = Outcome::of(&tree, Method::Read, target.as_bytes(), client, wanted);
                        let Outcome::Show(question) = outcome else { continue };
                        let parts = question.parts(&tree);
                        for part in &parts {
                            if let Part::Shared(piece, keys) = part {
                                uses += 1;
                                let text = question.part(&tree, keys);
                                let known = shared.entry(piece.clone()).or_insert_with(|| text.clone());
                                assert_eq!(*known, text, "{from} {target} {piece:?}");
                            }
                        }
                        assert_eq!(shown(&tree, &question).body, question.part(&tree, &[]), "{from} {target}");
                    }
                }
            }
        }
    }
    assert!(uses > 3 * shared.len(), "{uses} {}", shared.len());
}

#[test]
fn heavy_values_are_not_shown_at_once() {
    let tree = large();
    for (target, format, heavy) in [
        ("/latest", Format::Text, false),
        ("/latest", Format::Json, true),
        ("/latest/containers", Format::Text, false),
        ("/latest/containers", Format::Json, true),
        ("/latest/containers/0", Format::Json, false),
        ("/latest/stacks/0", Format::Text, false),
        ("/latest/stacks/0", Format::Yaml, true),
        ("/latest/services/0/containers", Format::Text, false),
        ("/latest/self", Format::Json, true),
        ("/latest/self/host", Format::Json, false),
        ("/latest/name", Format::Json, false),
    ] {
        let wanted = Wanted { format, page: false };
        let outcome = Outcome::of(&tree, Method::Read, target.as_bytes(), client("10.1.0.0"), wanted);
        assert_eq!(matches!(outcome, Outcome::Show(_)), heavy, "{target} {format:?}");
    }
}
