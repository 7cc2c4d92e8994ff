//! Units of a compose file: a service with its sidekicks, which the predecessor's label names.

use model::{Map, Text, Value};

use crate::cli::compose::Compose;
use crate::cli::compose::depends_on::{Condition, Dependency, depends_on};
use crate::cli::compose::links::links;
use crate::cli::compose::section::{Draft, Section};
use crate::place::invalid::Invalid;

/// Label of a service with the names of those that share its unit.
const SIDEKICKS_LABEL: &str = "io.rancher.sidekicks";

/// A service, and those that are placed with it.
pub(super) struct Unit {
    pub(super) primary: Text,
    pub(super) sidekicks: Vec<Text>,
    /// Primary services that are started before it.
    pub(super) waits: Vec<Text>,
    /// Those of them that have to be done before it, and the way to the condition.
    pub(super) ends: Vec<(Text, String)>,
    /// Those that are started before it unless they want the same: it only uses their names.
    pub(super) wishes: Vec<Text>,
    /// Services of the unit, and others of it that are started before each.
    pub(super) inside: Vec<(Text, Text)>,
}

impl Unit {
    /// What its request calls the container of a service, if it is one of the unit.
    fn container(&self, service: &str, primary: &Value) -> Option<Text> {
        if service == &*self.primary {
            return primary.as_text().cloned();
        }
        self.sidekicks.iter().find(|name| &***name == service).cloned()
    }
}

impl Compose<'_> {
    /// The units of these services.
    pub(super) fn units(&self, services: &Map) -> Result<Vec<Unit>, Invalid> {
        let section = |name: &str, value| Section::new(format!("{}{name}", self.top), value);
        let field = |name: &str| format!("{}{name}.labels.{SIDEKICKS_LABEL}", self.top);
        let mut owners: Vec<(Text, Text)> = Vec::new();
        for (name, value) in services {
            for sidekick in sidekicks(&section(name, value)?)? {
                if services.get(&sidekick).is_none() {
                    return Err(Invalid::new(field(name), format!("no service {sidekick}"), "services of this file"));
                }
                if let Some((_, owner)) = owners.iter().find(|(known, _)| *known == sidekick) {
                    let problem = format!("{sidekick} is a sidekick of {owner} already");
                    return Err(Invalid::new(field(name), problem, "services of no other unit"));
                }
                owners.push((sidekick, name.clone()));
            }
        }
        if let Some((name, owner)) = owners.iter().find(|(name, _)| owners.iter().any(|(_, owner)| owner == name)) {
            let problem = format!("{name} is a sidekick of {owner} itself");
            return Err(Invalid::new(field(name), problem, "no sidekicks of a sidekick"));
        }
        let unit_of = |name: &Text| {
            owners.iter().find(|(side, _)| side == name).map_or_else(|| name.clone(), |(_, owner)| owner.clone())
        };
        let mut units: Vec<Unit> = Vec::new();
        for (name, _) in services.iter().filter(|(name, _)| unit_of(name) == *name) {
            let sidekicks = owners.iter().filter(|(_, owner)| owner == name).map(|(side, _)| side.clone());
            units.push(Unit {
                primary: name.clone(),
                sidekicks: sidekicks.collect(),
                waits: Vec::new(),
                ends: Vec::new(),
                wishes: Vec::new(),
                inside: Vec::new(),
            });
        }
        for (name, value) in services {
            let service = section(name, value)?;
            let mut used: Vec<(&str, Text, Condition)> = Vec::new();
            for Dependency { service: other, condition, is_required } in depends_on(&service, self.for_stack)? {
                if is_required || services.get(&other).is_some() {
                    used.push(("depends_on", other, condition));
                }
            }
            for link in links(&service)? {
                let is_there = services.get(&link.target).is_some() || self.outside.contains(&link.target);
                if link.key == "external_links" && !is_there {
                    let text = format!(
                        "no service {} in this file: its name has an address once the stack has one",
                        link.target
                    );
                    self.warn(service.at(link.key), &text);
                    continue;
                }
                used.push((link.key, link.target, Condition::Started));
            }
            used.retain(|(_, other, _)| !self.outside.contains(other));
            for (key, other, condition) in used {
                if services.get(&other).is_none() {
                    return Err(Invalid::new(service.at(key), format!("no service {other}"), "services of this file"));
                }
                let is_inside = unit_of(&other) == unit_of(name);
                if key == "depends_on" && is_inside && condition != Condition::Started {
                    let field = service.at(&format!("depends_on.{other}.condition"));
                    let expected = "service_started: within a unit nothing is waited for but the start";
                    return Err(Invalid::new(field, format!("{other} is in the same unit"), expected));
                }
                if let Some(unit) = units.iter_mut().find(|unit| unit.primary == unit_of(name)) {
                    match key {
                        "depends_on" if is_inside && other != *name => unit.inside.push((name.clone(), other.clone())),
                        "depends_on" => add(&mut unit.waits, unit_of(&other)),
                        _ if is_inside => {}
                        _ => add(&mut unit.wishes, unit_of(&other)),
                    }
                    if condition == Condition::Completed && !is_inside {
                        unit.ends.push((unit_of(&other), service.at(&format!("depends_on.{other}.condition"))));
                    }
                }
            }
        }
        Ok(units)
    }

    /// The request of a unit.
    pub(super) fn unit(&self, unit: &Unit, services: &Map) -> Result<Value, Invalid> {
        let mut fields = self.member(&unit.primary, services)?;
        let primary = fields.iter().find(|(key, _)| &**key == "name").map_or(Value::Null, |(_, name)| name.clone());
        self.connect(unit, &unit.primary, &primary, &mut fields)?;
        // The predecessor's files say one for each sidekick, or what the primary has.
        let count = fields.iter().find(|(key, _)| &**key == "count").map(|(_, value)| value.clone());
        if fields.iter().any(|(key, _)| &**key == "start") {
            // How many there are is said by who starts them.
            fields.retain(|(key, _)| &**key != "count");
            let number = count.as_ref().and_then(Value::as_int).unwrap_or(1).max(1);
            let scale = format!("`scheduler scale {}/{}={number}`", self.stack, unit.primary);
            let field = format!("{}{}.start_on_create", self.top, unit.primary);
            self.warn(field, &format!("nothing is started while it is new: {scale} does"));
        }
        let mut sidekicks = Vec::new();
        for name in &unit.sidekicks {
            let mut sidekick = self.member(name, services)?;
            sidekick.retain(|(key, value)| {
                &**key != "count" || !(Some(value) == count.as_ref() || *value == Value::Int(1))
            });
            if sidekick.iter().any(|(key, _)| &**key == "update") {
                let field = format!("{}{name}.upgrade_strategy", self.top);
                self.warn(field, &format!("without effect: {} says how the unit is updated", unit.primary));
            }
            for (key, words) in REQUEST_ONLY {
                let is_there = |(own, value): &(Text, Value)| {
                    &**own == *key && !value.is_null() && value.as_list().is_none_or(|list| !list.is_empty())
                };
                if sidekick.iter().any(is_there) {
                    let problem = format!("given for a sidekick of {}", unit.primary);
                    let expected = format!("{words} only in {}, for the unit as a whole", unit.primary);
                    return Err(Invalid::new(format!("{}{name}.{words}", self.top), problem, expected));
                }
            }
            let service = services.get(name).and_then(Value::as_map);
            if service.is_some_and(|map| map.get("container_name").is_some()) {
                let why = "without effect: the unit and the name of the service name its container";
                self.warn(format!("{}{name}.container_name", self.top), why);
            }
            if sidekick.iter().any(|(key, _)| &**key == "start") {
                let why = format!("without effect: {} says whether the unit is started", unit.primary);
                self.warn(format!("{}{name}.start_on_create", self.top), &why);
            }
            self.connect(unit, name, &primary, &mut sidekick)?;
            sidekick.retain(|(key, _)| !NOT_OF_MEMBERS.contains(&&**key));
            sidekick.push(("name".into(), Value::Text(name.clone())));
            sidekicks.push(Map::new(sidekick).into());
        }
        if !sidekicks.is_empty() {
            fields.push(("sidekicks".into(), Value::list(sidekicks)));
        }
        Ok(Map::new(fields).into())
    }

    fn member(&self, name: &str, services: &Map) -> Result<Draft, Invalid> {
        let none = Value::Null;
        let path = format!("{}{name}", self.top);
        self.service(name, &Section::new(path, services.get(name).unwrap_or(&none))?)
    }

    /// Gives what a container has of others the names that the request calls them.
    fn connect(&self, unit: &Unit, name: &str, primary: &Value, fields: &mut Draft) -> Result<(), Invalid> {
        let other = |key: &str, service: &str| {
            unit.container(service, primary).filter(|_| service != name).ok_or_else(|| {
                let problem = format!("{service} is not supported here: it is in no unit with {name}");
                let expected = format!("a sidekick (label {SIDEKICKS_LABEL}): only those share a host");
                Invalid::new(format!("{}{name}.{key}", self.top), problem, expected)
            })
        };
        let before = unit.inside.iter().filter(|(own, _)| **own == *name);
        let before: Vec<Value> =
            before.filter_map(|(_, other)| unit.container(other, primary)).map(Value::Text).collect();
        if !before.is_empty() {
            fields.push(("start_after".into(), Value::list(before)));
        }
        for (key, value) in fields {
            if &**key == "volumes_from" {
                let mut volumes = Vec::new();
                for (at, item) in value.as_list().unwrap_or_default().iter().enumerate() {
                    let text = item.as_str().unwrap_or_default();
                    let text = text.strip_prefix("container:").unwrap_or(text);
                    let (service, mode) = text.split_once(':').map_or((text, ""), |(name, mode)| (name, mode));
                    let container = other(&format!("volumes_from[{at}]"), service)?;
                    let colon = if mode.is_empty() { "" } else { ":" };
                    volumes.push(Value::text(format!("{container}{colon}{mode}")));
                }
                *value = Value::list(volumes);
            } else if let Some(from) = value.as_text().filter(|_| &**key == "network_from") {
                let key = if self.top.is_empty() { "net" } else { "network_mode" };
                *value = Value::Text(other(key, from)?);
            }
        }
        Ok(())
    }
}

fn add(names: &mut Vec<Text>, name: Text) {
    if !names.contains(&name) {
        names.push(name);
    }
}

/// Fields of whole requests, and the keys they come from.
const REQUEST_ONLY: &[(&str, &str)] = &[
    ("count", "scale"),
    ("global", "deploy.mode"),
    ("constraints", "deploy.placement.constraints"),
    ("spread", "deploy.placement.preferences"),
    ("isolation", "isolation"),
];

/// Fields that a sidekick has from its unit.
const NOT_OF_MEMBERS: &[&str] = &["constraints", "id", "name", "service", "spread", "stack", "start", "update"];

fn sidekicks(service: &Section<'_>) -> Result<Vec<Text>, Invalid> {
    let labels = service.pairs("labels")?;
    let label = labels.iter().find(|(key, _)| &**key == SIDEKICKS_LABEL).map(|(_, value)| value);
    match label {
        None => Ok(Vec::new()),
        Some(Value::Text(text)) => {
            Ok(text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(Text::from).collect())
        }
        Some(other) => {
            let field = service.at(&format!("labels.{SIDEKICKS_LABEL}"));
            Err(Invalid::new(field, format!("found {}", other.kind()), "services, with commas between them"))
        }
    }
}
