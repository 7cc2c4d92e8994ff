//! The forms in which a cluster is written: told by the content under any name, feeding all three services.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::time::Duration;

use tests::cluster::{ClusterFolder, shop_text};
use tests::service::Executable;
use tests::{Launch, Question, Service, eventually, fixture, http};

const LIMIT: Duration = Duration::from_secs(5);

/// The example as JSON, written by hand from the YAML's own meaning: a document with the same entities.
const DOCUMENT_JSON: &str = r#"{"berth": 1, "host": "win-1",
 "hosts": [{"name": "win-1", "agent_ip": "192.0.2.1", "memory": "16GiB", "milli_cpu": 4000}],
 "services": [{"name": "web", "stack": "shop"}],
 "containers": [{"name": "web-1", "service": "shop/web", "host": "win-1", "primary_ip": "127.42.7.1"}]}"#;

/// Answers as v0.7 had them.
const ANSWERS: &str = r"
latest: &tree
  default: &default
    version: '1'
    hosts:
    - { uuid: h1, name: win-1, agent_ip: 192.0.2.1, memory: 17179869184, milli_cpu: 4000, labels: {}, environment_uuid: e1, metadata_kind: host }
    services:
    - { uuid: s1, name: web, stack_name: shop, stack_uuid: k1, kind: service, environment_uuid: e1, metadata_kind: service, containers: [ &web { uuid: c1, name: web-1, primary_ip: 127.42.7.1, host_uuid: h1, service_name: web, service_uuid: s1, stack_name: shop, stack_uuid: k1, state: running, environment_uuid: e1, metadata_kind: container } ] }
    stacks:
    - { uuid: k1, name: shop, environment_uuid: e1, metadata_kind: stack }
    containers: [ *web ]
    self: { host: { uuid: h1, name: win-1, environment_uuid: e1 } }
    anything: { the: operator, likes: yes }
  127.42.7.1:
    self: { container: *web }
2016-07-29: *tree
...
";

struct Case {
    name: &'static str,
    contents: Vec<u8>,
    form: &'static str,
    client: &'static str,
    container: &'static str,
    question: &'static str,
    answer: &'static str,
    host: &'static str,
}

fn cases() -> Vec<Case> {
    let envelope = std::fs::read(fixture("metadata/answers.delta.json")).unwrap();
    let small = |name, contents: &str, form| Case {
        name,
        contents: contents.as_bytes().to_vec(),
        form,
        client: "127.42.7.1",
        container: "web-1",
        question: "web.shop.rancher.internal",
        answer: "NOERROR 127.42.7.1",
        host: "win-1",
    };
    vec![
        small("a.json", DOCUMENT_JSON, "Berth document"),
        Case {
            name: "b",
            contents: shop_text().into_bytes(),
            form: "Berth document",
            client: "127.42.1.11",
            container: "shop-web-1",
            question: "web.shop",
            answer: "NOERROR 127.42.1.11 127.42.2.11",
            host: "win-",
        },
        small("c.yml", DOCUMENT_JSON, "Berth document"),
        Case {
            name: "d.yaml",
            contents: envelope,
            form: "saved answers of rancher-metadata v0.8 or later",
            client: "127.42.1.11",
            container: "",
            question: "",
            answer: "",
            host: "host",
        },
        small("e.json", ANSWERS, "answers file of rancher-metadata v0.7 or earlier"),
    ]
}

fn start(folder: &ClusterFolder, case: &Case) -> (PathBuf, Service) {
    let path = folder.path(case.name);
    std::fs::write(&path, &case.contents).unwrap();
    for account in ["QAKEY", "STGKEY"] {
        let beside = format!("metadata/answers.delta.json_{account}");
        std::fs::copy(fixture(&beside), folder.path(&format!("{}_{account}", case.name))).unwrap();
    }
    let mut agent = Launch::agent(&path).start();
    agent.ready();
    (path, agent)
}

#[test]
fn every_form_feeds_all_three_services() {
    for case in cases() {
        let folder = ClusterFolder::empty();
        let (path, mut agent) = start(&folder, &case);
        let checked = Launch::bare(Executable::Agent).word("check").word(&path).run();
        assert!(checked.output.contains(case.form), "{}: {}", case.name, checked.output);
        let own = http::get("/latest/self/container/name").from(case.client).ask(agent.address_of("metadata"));
        assert_eq!(own.status, 200, "{}", case.name);
        if !case.container.is_empty() {
            assert_eq!(own.text(), case.container, "{}", case.name);
        }
        let dns = agent.address_of("dns");
        if case.question.is_empty() {
            // Whoever metadata says there is has a name.
            let name = format!("{}.rancher.internal", own.text());
            let answer = Question::a(&name).from(case.client).ask(dns);
            assert_eq!(answer.line(), format!("NOERROR {}", case.client), "{}: {name}", case.name);
        } else {
            let answer = Question::a(case.question).from(case.client).ask(dns);
            assert_eq!(answer.line(), case.answer, "{}", case.name);
        }
        let hosts = http::get("/v1/hosts").ask(agent.address_of("scheduler"));
        assert_eq!(hosts.status, 200, "{}", case.name);
        assert!(hosts.text().to_lowercase().contains(case.host), "{}: {}", case.name, hosts.text());
    }
}

#[test]
fn answers_of_v0_7_are_served_as_they_are() {
    let folder = ClusterFolder::new(ANSWERS);
    let mut agent = Launch::agent(&folder.file()).start();
    agent.ready();
    let metadata = agent.address_of("metadata");
    for (path, expected) in [
        ("/latest/anything/the", "operator"),
        ("/latest/anything/likes", "true"),
        ("/latest/version", "1"),
        ("/", "2016-07-29\nlatest\n"),
        ("/latest/self/host/name", "win-1"),
    ] {
        assert_eq!(http::get(path).ask(metadata).text(), expected, "{path}");
    }
}

#[test]
fn a_file_may_change_its_form() {
    let folder = ClusterFolder::new(DOCUMENT_JSON);
    let mut agent = Launch::agent(&folder.file()).start();
    agent.ready();
    let (metadata, dns) = (agent.address_of("metadata"), agent.address_of("dns"));
    for contents in [ANSWERS, DOCUMENT_JSON, ANSWERS] {
        folder.replace(contents);
        let answers = contents == ANSWERS;
        eventually("the other form is served", LIMIT, || {
            let status = http::get("/latest/anything").ask(metadata).status;
            (status == if answers { 200 } else { 404 }).then_some(())
        });
        assert_eq!(Question::a("web.shop.rancher.internal").ask(dns).line(), "NOERROR 127.42.7.1");
    }
}
