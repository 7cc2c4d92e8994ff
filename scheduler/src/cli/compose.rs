//! Files of requests: placement requests as the API takes them, or compose files, in JSON or YAML, several to a file.
//!
//! Every key of a compose file is either honoured or refused by its name: a limit that is silently ignored is worse
//! than none. Keys that begin with `x-` are for others.

pub(crate) mod deploy;
mod ports;
mod section;
mod service;
mod variable;

use model::{Map, Text, Value};

use crate::cli::compose::section::{Section, unsupported};
use crate::cli::compose::service::depends_on;
use crate::place::invalid::Invalid;
use crate::place::request::Request;

/// Most documents in one file.
const DOCUMENTS_MAX: usize = 10_000;

/// The requests of a file: each document is a request, a list of them, or a compose file for the stack `stack`.
///
/// `variable` returns the value of a variable of the environment.
///
/// # Errors
///
/// Fails with the field of the document that is wrong.
pub(crate) fn requests(
    documents: &[Value],
    stack: &str,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<Value>, Invalid> {
    let mut requests = Vec::new();
    for (at, document) in documents.iter().enumerate() {
        let within = |error: Invalid| if documents.len() == 1 { error } else { below(&format!("[{at}]"), error) };
        match document {
            Value::Map(map) if map.get("services").is_some() => {
                let compose = Compose { stack: name(map, stack), variable };
                requests.extend(compose.requests(map).map_err(within)?);
            }
            Value::List(items) => {
                for (at, item) in items.iter().enumerate() {
                    Request::parse(item).map_err(|error| within(below(&format!("[{at}]"), error)))?;
                    requests.push(item.clone());
                }
            }
            Value::Map(map) if map.get("berth").is_some() || map.get("hosts").is_some() => {
                let expected = "placement requests or a compose file";
                return Err(within(Invalid::new("", "it describes a cluster", expected)));
            }
            other => {
                Request::parse(other).map_err(within)?;
                requests.push(other.clone());
            }
        }
        if requests.len() > DOCUMENTS_MAX {
            return Err(Invalid::new("", "too many requests", format!("at most {DOCUMENTS_MAX}")));
        }
    }
    Ok(requests)
}

fn below(path: &str, error: Invalid) -> Invalid {
    let dot = if error.field.is_empty() || error.field.starts_with('[') { "" } else { "." };
    Invalid { field: format!("{path}{dot}{}", error.field), ..error }
}

/// The texts of the documents of a YAML text; a line that begins with `---` always divides.
pub(crate) fn divide(text: &str) -> Vec<&str> {
    let mut documents = Vec::new();
    let mut start = 0;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let marks = ["---", "..."].iter().any(|mark| {
            line.strip_prefix(mark).is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
        });
        if marks {
            documents.push(&text[start..at]);
            // What follows the mark on its line belongs to the next.
            start = at + if line.starts_with("...") { line.len() } else { 3 };
        }
        at += line.len();
    }
    documents.push(&text[start.min(text.len())..]);
    let says = |text: &&str| text.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
    documents.retain(says);
    documents
}

fn name(map: &Map, stack: &str) -> String {
    map.text("name").map_or_else(|| stack.to_owned(), ToString::to_string)
}

struct Compose<'a> {
    stack: String,
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl Compose<'_> {
    fn requests(&self, map: &Map) -> Result<Vec<Value>, Invalid> {
        let file = Section { path: String::new(), map };
        file.only(&["name", "services", "version", "volumes"])?;
        if let Some(volumes) = file.below("volumes")? {
            // The engine makes them by itself; anything more is for its driver.
            for (name, volume) in volumes.map {
                if !volume.is_null() && volume.as_map().is_none_or(|map| !map.is_empty()) {
                    return Err(unsupported(volumes.at(name), &[]));
                }
            }
        }
        let services = file.below("services")?.map_or_else(Map::default, |section| section.map.clone());
        let mut left: Vec<(Text, Value)> = services.iter().cloned().collect();
        let mut done: Vec<Text> = Vec::new();
        let mut requests = Vec::new();
        // In the order in which they depend on each other.
        while !left.is_empty() {
            let mut ready = None;
            for (at, (name, value)) in left.iter().enumerate() {
                let service = Section::new(format!("services.{name}"), value)?;
                let waits = depends_on(&service)?;
                if let Some(unknown) = waits.iter().find(|other| services.get(other).is_none()) {
                    let problem = format!("no service {unknown}");
                    return Err(Invalid::new(service.at("depends_on"), problem, "services of this file"));
                }
                if waits.iter().all(|other| done.contains(other)) {
                    ready = Some(at);
                    break;
                }
            }
            let Some(at) = ready else {
                let field = format!("services.{}.depends_on", left[0].0);
                return Err(Invalid::new(field, "services wait for each other", "no circle"));
            };
            let (name, value) = left.remove(at);
            let path = format!("services.{name}");
            let value = self.interpolated(&path, &value)?;
            let request = self.service(&name, &Section::new(path.clone(), &value)?)?;
            Request::parse(&request).map_err(|error| below(&path, error))?;
            requests.push(request);
            done.push(name);
        }
        Ok(requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::compose::deploy::thousandths;

    fn read(yaml: &str) -> Result<Vec<Value>, Invalid> {
        let parsed = |text: &&str| source::format::parse(text).unwrap().value(model::scalar::core);
        let documents: Vec<_> = divide(yaml).iter().map(parsed).collect();
        let variable = |name: &str| (name == "TAG").then(|| "7".to_owned());
        requests(&documents, "shop", &variable)
    }

    fn check_wrong(yaml: &str, field: &str, part: &str) {
        let error = read(yaml).unwrap_err();
        assert_eq!(error.field, field, "{yaml}: {error}");
        assert!(error.to_string().contains(part), "{yaml}: {error}");
    }

    #[test]
    fn compose_files_become_requests() {
        let found = read(
            "version: '3.8'\nx-mine: {a: 1}\nvolumes: {data: }\nservices:\n  web:\n    image: web:${TAG}-${OTHER:-x}\n    depends_on: [db]\n\
             \x20   command: serve --all\n    environment:\n    - A=1\n    ports: ['80:8080', '9000-9001:90-91/udp', {target: 443, published: '8443', host_ip: 192.0.2.1}]\n\
             \x20   labels: {a: b, 'io.rancher.scheduler.affinity:container_label_ne': 'io.rancher.stack_service.name=$${stack_name}/$${service_name}'}\n\
             \x20   deploy:\n      replicas: 3\n      placement: {constraints: ['node.labels.zone == a'], preferences: [{spread: node.labels.rack}]}\n\
             \x20     resources: {reservations: {cpus: '0.25', memory: 64M}, limits: {memory: 128M}}\n      restart_policy: {condition: on-failure, max_attempts: 2}\n\
             \x20 db:\n    image: db\n    platform: windows/amd64\n    deploy: {mode: global}\n",
        )
        .unwrap();
        let json: Vec<serde_json::Value> = found.iter().map(|one| serde_json::to_value(one).unwrap()).collect();
        assert_eq!((&json[0]["id"], &json[0]["global"]), (&"shop-db".into(), &true.into()));
        let web = &json[1];
        assert_eq!((&web["image"], &web["count"], &web["stack"]), (&"web:7-x".into(), &3.into(), &"shop".into()));
        assert_eq!(web["ports"].as_array().unwrap().len(), 4);
        assert_eq!(web["resources"], serde_json::json!({"memory": "64M", "milli_cpu": 250}));
        assert_eq!((&web["restart"], &web["spread"]), (&"on-failure:2".into(), &serde_json::json!(["rack"])));
        let request = Request::parse(&found[1]).unwrap();
        assert_eq!(request.members[0].run.memory_limit, Some(128 << 20));
        let rules: Vec<_> = request.constraints.iter().map(|rule| rule.subject.to_string()).collect();
        assert!(rules.iter().any(|rule| rule.contains("io.rancher.stack_service.name=shop/web")), "{rules:?}");
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let service = |line: &str| format!("services:\n  web:\n    image: a\n    {line}\n");
        for (line, field) in [
            ("healthcheck: {test: x}", "services.web.healthcheck"),
            ("build: .", "services.web.build"),
            ("deploy: {update_config: {parallelism: 1}}", "services.web.deploy.update_config"),
            ("deploy: {placement: {max_replicas_per_node: 1}}", "services.web.deploy.placement.max_replicas_per_node"),
            (
                "deploy: {placement: {constraints: ['node.role == manager']}}",
                "services.web.deploy.placement.constraints[0]: node.role == manager",
            ),
            ("deploy: {resources: {limits: {pids: 5}}}", "services.web.deploy.resources.limits.pids"),
            ("network_mode: 'service:db'", "services.web.network_mode"),
            ("volumes: [{type: tmpfs, target: /a}]", "services.web.volumes[0]"),
            ("depends_on: {web: {condition: service_healthy}}", "services.web.depends_on.web.condition"),
            ("ports: [{target: 80, mode: ingress}]", "services.web.ports[0].mode"),
        ] {
            check_wrong(&service(line), field, "not supported");
        }
        check_wrong(&service("deploy: {replicas: 0}"), "services.web.deploy.replicas", "at least one");
        check_wrong(&service("deploy: {replicas: x}"), "services.web.count", "whole number");
        check_wrong(&service("depends_on: [db]"), "services.web.depends_on", "no service db");
        check_wrong(&service("depends_on: [web]"), "services.web.depends_on", "wait for each other");
        check_wrong(&service("ports: ['1-2:1-3']"), "services.web.ports[0]", "a port");
        check_wrong(&service("stop_grace_period: soon"), "services.web.stop_grace_period", "1m30s");
        check_wrong(&service("stop_grace_period: 2h"), "services.web.stop_grace_period", "at most 3600s");
        check_wrong(&service("cpus: many"), "services.web.cpus", "0.5");
        check_wrong(&service("user: $WHO"), "services.web.user", "WHO is not set");
        check_wrong("services:\n  web: {}\n", "services.web.image", "nothing is built");
        check_wrong("networks: {a: {}}\nservices: {}\n", "networks", "not supported");
    }

    #[test]
    fn files_hold_several_documents() {
        let found = read("---\nid: a\n---\n- id: b\n- {id: c}\n...\n--- {id: d}\n").unwrap();
        let ids: Vec<_> = found.iter().map(|one| one.as_map().unwrap().text("id").unwrap().to_string()).collect();
        assert_eq!(ids, ["a", "b", "c", "d"]);
        check_wrong("id: a\n---\n- id: b\n- {idd: c}\n", "[1][1].idd", "unknown field");
        assert_eq!(thousandths("1.25"), Some(1250));
        assert_eq!(thousandths(".5"), Some(500));
        for text in ["", "x", "-1", "1e3", "."] {
            assert_eq!(thousandths(text), None, "{text}");
        }
    }
}
