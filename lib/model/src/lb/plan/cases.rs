//! What the predecessor's balancer was tried with, and where this one differs on purpose, as data (`cases.json`).

use std::fmt::Write as _;

use serde_json::Value as Json;

use super::tests::cluster;
use crate::lb::{LbPlan, Viewpoint, find};

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
        let services = case["services"].as_object().unwrap().iter();
        let services: Vec<_> = services.map(|(path, service)| (&**path, service.clone())).collect();
        let snapshot = cluster(&case["labels"], &case["rules"], &services);
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
