//! What requests are answered, a line each.

mod changes;
mod clients;
mod pieces;

use std::net::IpAddr;

use model::{Map, Value};

use super::*;
use crate::body::parts::Part;
use crate::negotiate::Format;
use crate::path::Method;
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
        Outcome::Hold(_) | Outcome::Changes(_) | Outcome::Balancer(_) => panic!("{target} is answered otherwise"),
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
fn what_only_berth_knows_of_a_stack_is_not_shown() {
    let tree = tree(r#"[{"metadata_kind":"stack","uuid":"st","name":"shop","from_labels":true}]"#);
    assert!(!ask(&tree, client("-"), "/latest/stacks", Format::Json).body.contains("from_labels"));
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
