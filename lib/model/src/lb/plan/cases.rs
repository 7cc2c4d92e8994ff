//! What the predecessor's balancer was tried with, and where this one differs on purpose, as data (`cases.json`).

use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use crate::lb::{LbPlan, Viewpoint, find};
use crate::objects;
use crate::value::Map;

/// The cluster of a case: its services with their containers, addressed in the order of their names, beside the balancer `edge/lb` on the host `here`.
fn cluster(case: &Json) -> crate::Snapshot {
    let mut objects = vec![json!({
        "metadata_kind": "service", "uuid": "lb", "name": "lb", "stack_name": "edge", "kind": "loadBalancerService",
        "labels": case["labels"], "lb_config": { "port_rules": case["rules"] },
    })];
    let mut address = 0;
    for (path, service) in case["services"].as_object().unwrap() {
        let (stack, name) = path.split_once('/').unwrap();
        let mut fields = json!({
            "metadata_kind": "service", "uuid": name, "name": name, "stack_name": stack, "stack_uuid": stack, "kind": "service",
        });
        for (key, value) in service.as_object().unwrap() {
            fields[key] = value.clone();
        }
        objects.push(fields);
        let one = vec![json!({})];
        for (number, container) in (1..).zip(service["containers"].as_array().unwrap_or(&one)) {
            address += 1;
            let uuid = format!("{name}-{number}");
            let mut fields = json!({
                "metadata_kind": "container", "uuid": uuid, "name": uuid, "service_uuid": name, "service_name": name,
                "stack_name": stack, "primary_ip": format!("192.0.2.{address}"), "state": "running", "create_index": address,
            });
            for (key, value) in container.as_object().unwrap() {
                fields[key] = value.clone();
            }
            objects.push(fields);
            objects.push(json!({
                "metadata_kind": "serviceContainerLink", "service_uuid": name, "service_name": name, "container_uuid": uuid,
            }));
        }
        for (link, alias) in service["links"].as_object().into_iter().flatten() {
            objects.push(json!({ "metadata_kind": "serviceLink", "service_uuid": name, "key": link, "value": alias }));
        }
    }
    objects::read(objects.into_iter().map(|object| serde_json::from_value::<Map>(object).unwrap())).0
}

/// Where a request, `PORT/PROTOCOL HOST/PATH`, is led; `None` where no rule is for it.
fn led(plan: &LbPlan, request: &str) -> Option<String> {
    let (port, rest) = request.split_once('/').unwrap();
    let (protocol, rest) = rest.split_once(' ').unwrap_or((rest, "/"));
    let (host, path) = rest.split_at(rest.find('/').unwrap());
    let port = port.parse().unwrap();
    let spoken = plan.ports.iter().find(|own| own.number == port).map(|own| own.protocol.name());
    assert!(spoken.is_none_or(|spoken| spoken == protocol), "{spoken:?}");
    let route = plan.route(port, host, path)?;
    let mut text = String::new();
    for member in &plan.backends[route.backend].members {
        let weight = if member.weight == 1 { String::new() } else { format!("*{}", member.weight) };
        write!(text, " {}={}{weight}", member.name, member.place).unwrap();
    }
    Some(text.trim_start().to_owned())
}

#[test]
fn balancers_lead_where_each_case_says() {
    let cases: Vec<Json> = serde_json::from_str(include_str!("cases.json")).unwrap();
    let view = Viewpoint { host: Some("here".into()), ..Viewpoint::default() };
    let mut wrong = Vec::new();
    for case in &cases {
        let snapshot = cluster(case);
        let plan = LbPlan::of(&snapshot, find(&snapshot, "edge/lb").unwrap(), &view);
        let defects = case["defects"].as_u64().unwrap_or_default();
        if plan.defects.len() as u64 != defects {
            wrong.push(format!("{}: {:?}", case["name"], plan.defects));
        }
        for (request, expected) in case["led"].as_object().unwrap() {
            let found = led(&plan, request);
            if found.as_deref() != expected.as_str() {
                wrong.push(format!("{}: {request} is led to {found:?}", case["name"]));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
    assert!(cases.len() >= 30);
}
