//! What a client wants of a stack: the body of `PUT /v1/stacks/NAME`. ◇

use std::collections::BTreeMap;

use model::{Map, Text, Value};
use stacks::Service;

use crate::ledger::stack::{SERVICES_BYTES_MAX, StackRecord};
use crate::place::fields::Fields;
use crate::place::invalid::Invalid;
use crate::place::name::{self, EXPECTED_NAME};
use crate::place::request::limits::{ID_MAX, LIST_MAX};
use crate::stack::unit::{REVISION_LABEL, STACK_LABEL, UNIT_LABEL, any_unit, is_pinned};
use crate::subject::Subject;

/// Most services of a stack.
const SERVICES_MAX: usize = 256;

/// Most bytes of the answers that are stored with a stack: they are in each of its values, beside its services.
const ANSWERS_BYTES_MAX: usize = 32 << 10;

/// What is wanted.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) services: Vec<WantedService>,
    /// The revision that the client has seen; 0 when there was none.
    pub(crate) expect: Option<u64>,
    pub(crate) prune: bool,
    pub(crate) atomic: bool,
    /// Answers to the questions of a catalog's template; `None` leaves those that there are.
    pub(crate) answers: Option<BTreeMap<Text, Text>>,
}

/// One service.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WantedService {
    pub(crate) service: Service,
    /// Whether the client says how many; otherwise there stay as many as there are.
    pub(crate) has_scale: bool,
}

/// The name of a stack.
///
/// # Errors
///
/// Fails if it could not name containers.
pub(crate) fn stack_name(name: &str) -> Result<Text, Invalid> {
    name::name(name).ok_or_else(|| Invalid::new("name", format!("found {name:?}"), EXPECTED_NAME))
}

impl Wish {
    /// The services as they would be wanted of a stack: as many units as there are where the client does not say.
    pub(crate) fn services_for(&self, before: Option<&StackRecord>) -> Vec<Service> {
        let rollouts = before.map(|record| &record.stack.services);
        let scale = |name: &Text| {
            let known = rollouts.into_iter().flatten().find(|rollout| rollout.wanted.name == *name);
            known.map(|rollout| rollout.wanted.scale)
        };
        let service = |one: &WantedService| {
            let kept = if one.has_scale { None } else { scale(&one.service.name) };
            Service { scale: kept.unwrap_or(one.service.scale), ..one.service.clone() }
        };
        self.services.iter().map(service).collect()
    }

    /// The wish in a body.
    ///
    /// # Errors
    ///
    /// Fails with the field that is wrong.
    pub(crate) fn parse(stack: &str, value: &Value) -> Result<Self, Invalid> {
        let fields = Fields::of(value)?;
        fields.only(&[&["answers", "atomic", "expect", "prune", "services"]])?;
        let answers = answers(&fields)?;
        let mut services: Vec<WantedService> = Vec::new();
        for (at, entry) in fields.list("services", SERVICES_MAX)?.iter().enumerate() {
            let entry = fields.entry("services", at, entry)?;
            let wanted = wanted(stack, entry.map).map_err(|wrong| {
                let path = if wrong.field.is_empty() { entry.path.clone() } else { entry.at(&wrong.field) };
                Invalid { field: path, ..wrong }
            })?;
            if services.iter().any(|other| other.service.name == wanted.service.name) {
                let problem = format!("{} is there twice", wanted.service.name);
                return Err(Invalid::new(entry.at("service"), problem, "each service once"));
            }
            services.push(wanted);
        }
        if services.is_empty() {
            return Err(Invalid::new("services", "missing", "at least one service; DELETE removes a stack"));
        }
        for (at, one) in services.iter().enumerate() {
            let is_there = |name: &&Text| !services.iter().any(|other| other.service.name == **name);
            if let Some(name) = one.service.after.iter().find(is_there) {
                let field = format!("services[{at}].depends_on");
                return Err(Invalid::new(field, format!("no service {name}"), "services of this stack"));
            }
        }
        for (at, one) in services.iter().enumerate() {
            let never_ends =
                |name: &&Text| services.iter().any(|other| other.service.name == **name && !other.service.job);
            if let Some(name) = one.service.after_end.iter().find(never_ends) {
                let field = format!("services[{at}].depends_on");
                return Err(Invalid::new(field, format!("{name} is no job, so it never ends"), "jobs (restart: no)"));
            }
        }
        let bytes: usize =
            services.iter().map(|one| serde_json::to_vec(&one.service).map_or(0, |bytes| bytes.len())).sum();
        if bytes > SERVICES_BYTES_MAX {
            let expected = format!("services of at most {SERVICES_BYTES_MAX} bytes together");
            return Err(Invalid::new("services", format!("{bytes} bytes"), expected));
        }
        let expect = fields.int("expect", 0, i64::MAX)?.and_then(|expect| u64::try_from(expect).ok());
        Ok(Self { services, expect, prune: fields.truth("prune")?, atomic: fields.truth("atomic")?, answers })
    }
}

/// The answers that are stored with a stack.
fn answers(fields: &Fields<'_>) -> Result<Option<BTreeMap<Text, Text>>, Invalid> {
    let map = match fields.get("answers") {
        None => return Ok(None),
        Some(Value::Map(map)) if map.len() <= LIST_MAX => map,
        Some(other) => return fields.wrong("answers", other, format!("a map of at most {LIST_MAX} texts")),
    };
    let below = Fields { path: "answers".into(), map };
    let mut answers = BTreeMap::new();
    let mut bytes = 0;
    for (key, value) in map {
        let Some(text) = value.as_text() else { return below.wrong(key, value, "text") };
        bytes += key.len() + text.len();
        answers.insert(key.clone(), text.clone());
    }
    if bytes > ANSWERS_BYTES_MAX {
        let expected = format!("answers of at most {ANSWERS_BYTES_MAX} bytes together");
        return Err(Invalid::new("answers", format!("{bytes} bytes"), expected));
    }
    Ok(Some(answers))
}

fn wanted(stack: &str, map: &Map) -> Result<WantedService, Invalid> {
    if let Some(other) = map.text("stack").filter(|other| ***other != *stack) {
        return Err(Invalid::new("stack", format!("found {other:?}"), format!("{stack}, or nothing")));
    }
    for label in map.map("labels").into_iter().flatten().map(|(key, _)| key) {
        if [STACK_LABEL, UNIT_LABEL, REVISION_LABEL].iter().any(|own| label.eq_ignore_ascii_case(own)) {
            return Err(Invalid::new(format!("labels.{label}"), "given", "none: the scheduler sets it"));
        }
    }
    for key in ["atomic", "dry_run", "explain"] {
        if map.get(key).is_some() {
            return Err(Invalid::new(key, "given for a service", "none: it is about a whole request"));
        }
    }
    let parsed = Service::parse(map);
    let mut service = parsed.map_err(|wrong| Invalid::new(wrong.field, wrong.problem, wrong.expected))?;
    service.name = name::name(&service.name)
        .ok_or_else(|| Invalid::new("service", format!("found {:?}", service.name), EXPECTED_NAME))?;
    let request = any_unit(stack, &service, &Subject::default())?;
    let globals = crate::place::request::Request::parse(&service.request.clone().into())?;
    service.global |= globals.global;
    service.job |= request.members[0].run.restart.as_deref() == Some("no");
    if map.get("dead_after").is_none() && is_pinned(&service) {
        service.dead_after = None;
    }
    if service.request.text("name").is_some_and(|name| name.len() > ID_MAX) {
        return Err(Invalid::new("name", "too long", format!("at most {ID_MAX} bytes")));
    }
    let has_scale = map.get("count").is_some();
    if map.get("start").and_then(Value::as_bool) == Some(false) {
        if has_scale || service.global {
            let problem = format!("false is given with {}", if has_scale { "count" } else { "global" });
            return Err(Invalid::new("start", problem, "one of them: no unit is started while the service is new"));
        }
        service.scale = 0;
    }
    Ok(WantedService { service, has_scale })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: serde_json::Value) -> Result<Wish, Invalid> {
        Wish::parse("shop", &serde_json::from_value(json).unwrap())
    }

    #[test]
    fn a_stack_is_services_with_rules() {
        let wish = parse(serde_json::json!({ "expect": 3, "answers": { "port": "80" }, "services": [
            { "service": "db", "image": "db", "volumes": ["data:/data"] },
            { "service": "web", "image": "web", "count": 2, "depends_on": ["db"], "update": { "batch": 2 } },
            { "service": "once", "image": "job", "restart": "no" },
            { "service": "log", "image": "log", "labels": { "io.rancher.scheduler.global": "true" } },
            { "service": "later", "image": "later", "start": false },
        ] }))
        .unwrap();
        let facts: Vec<_> = wish
            .services
            .iter()
            .map(|one| (one.service.scale, one.has_scale, one.service.global, one.service.job, one.service.dead_after))
            .collect();
        let lasts = Some(300);
        assert_eq!(
            facts,
            [
                (1, false, false, false, None),
                (2, true, false, false, lasts),
                (1, false, false, true, lasts),
                (1, false, true, false, lasts),
                (0, false, false, false, lasts),
            ]
        );
        assert_eq!(wish.answers, Some(BTreeMap::from([("port".into(), "80".into())])));
        assert_eq!((wish.expect, wish.services[1].service.update.batch), (Some(3), 2));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let one = |service: serde_json::Value| serde_json::json!({ "services": [service] });
        for (json, field) in [
            (serde_json::json!({}), "services"),
            (serde_json::json!({ "service": [] }), "service"),
            (serde_json::json!({ "answers": [] }), "answers"),
            (serde_json::json!({ "answers": { "a": 5 } }), "answers.a"),
            (serde_json::json!({ "answers": { "a": "x".repeat(40_000) } }), "answers"),
            (one(serde_json::json!({ "image": "i" })), "services[0].service"),
            (one(serde_json::json!({ "service": "a/b", "image": "i" })), "services[0].service"),
            (one(serde_json::json!({ "service": "a" })), "services[0].image"),
            (one(serde_json::json!({ "service": "a", "image": "i", "cpus": 1 })), "services[0].cpus"),
            (one(serde_json::json!({ "service": "a", "image": "i", "stack": "other" })), "services[0].stack"),
            (
                one(serde_json::json!({ "service": "a", "image": "i", "update": { "batch": 0 } })),
                "services[0].update.batch",
            ),
            (one(serde_json::json!({ "service": "a", "image": "i", "depends_on": ["b"] })), "services[0].depends_on"),
            (one(serde_json::json!({ "service": "a", "image": "i", "depends_on": [5] })), "services[0].depends_on[0]"),
            (
                one(
                    serde_json::json!({ "service": "a", "image": "i", "depends_on": [{ "service": "a", "condition": "x" }] }),
                ),
                "services[0].depends_on[0].condition",
            ),
            (
                serde_json::json!({ "services": [
                    { "service": "a", "image": "i", "depends_on": [
                        { "service": "b", "condition": "service_completed_successfully" }] },
                    { "service": "b", "image": "i" },
                ] }),
                "services[0].depends_on",
            ),
            (
                one(serde_json::json!({ "service": "a", "image": "i", "labels": { "io.berth.unit": "a/1" } })),
                "services[0].labels.io.berth.unit",
            ),
            (one(serde_json::json!({ "service": "a", "image": "i", "dry_run": true })), "services[0].dry_run"),
            (one(serde_json::json!({ "service": "a", "image": "i", "dead_after": "soon" })), "services[0].dead_after"),
            (one(serde_json::json!({ "service": "a", "image": "i", "start": false, "count": 2 })), "services[0].start"),
            (
                one(serde_json::json!({ "service": "a", "image": "i", "start": false, "global": true })),
                "services[0].start",
            ),
            (
                one(
                    serde_json::json!({ "service": "a", "image": "x".repeat(4096), "environment": { "A": "x".repeat(300_000) } }),
                ),
                "services",
            ),
        ] {
            let wrong = parse(json.clone()).unwrap_err();
            assert_eq!(wrong.field, field, "{json}: {wrong}");
        }
    }
}
