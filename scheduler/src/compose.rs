//! Files of requests: placement requests as the API takes them, or compose files, in JSON or YAML, several to a file.
//!
//! Of a compose file everything is either honoured or refused by the name of its key: a limit that is silently not kept
//! is worse than none. Keys that begin with `x-` are for others.

use model::{Map, Text, Value};

use crate::request::{Invalid, Request};

/// Most documents in one file.
const DOCUMENTS_MAX: usize = 10_000;

/// The requests of a file: each document is a request, a list of them, or a compose file for the stack `stack`.
///
/// `variable` gives the value of a variable of the environment.
///
/// # Errors
///
/// Which field of which document is wrong.
pub fn requests(
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

/// The texts of the documents of a YAML text; a line that begins with `---` always divides, whatever it stands in.
pub fn divide(text: &str) -> Vec<&str> {
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

/// A map being read, and the way to it.
struct Section<'a> {
    path: String,
    map: &'a Map,
}

/// Fields of a request in the making.
type Draft = Vec<(Text, Value)>;

impl<'a> Section<'a> {
    fn new(path: String, value: &'a Value) -> Result<Self, Invalid> {
        match value {
            Value::Map(map) => Ok(Self { path, map }),
            other => Err(Invalid::new(path, format!("found {}", other.kind()), "a map")),
        }
    }

    fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn below(&self, key: &str) -> Result<Option<Self>, Invalid> {
        self.get(key).map(|value| Section::new(self.at(key), value)).transpose()
    }

    fn text(&self, key: &str) -> Result<Option<Text>, Invalid> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::List(_) | Value::Map(_)) => Err(Invalid::new(self.at(key), "no text", "text")),
            Some(scalar) => Ok(crate::hosts::label(&(key.into(), scalar.clone())).map(|(_, text)| text)),
        }
    }

    /// Refuses what nobody would honour.
    fn only(&self, known: &[&str]) -> Result<(), Invalid> {
        let unknown =
            self.map.iter().find(|(key, value)| !known.contains(&&**key) && !key.starts_with("x-") && !value.is_null());
        match unknown {
            None => Ok(()),
            Some((key, _)) => Err(unhonoured(self.at(key), known)),
        }
    }

    /// A map, or a list of `KEY=VALUE`.
    fn pairs(&self, key: &str) -> Result<Vec<(Text, Value)>, Invalid> {
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Map(map)) => Ok(map.iter().cloned().collect()),
            Some(Value::List(items)) => items
                .iter()
                .enumerate()
                .map(|(at, item)| match item.as_str().map(|text| text.split_once('=').unwrap_or((text, ""))) {
                    Some((key, value)) => Ok((Text::from(key), Value::text(value))),
                    None => Err(Invalid::new(self.at(&format!("{key}[{at}]")), "no text", "KEY=VALUE")),
                })
                .collect(),
            Some(other) => Err(Invalid::new(self.at(key), format!("found {}", other.kind()), "a map or a list")),
        }
    }
}

fn unhonoured(field: String, known: &[&str]) -> Invalid {
    Invalid::new(field, "cannot be honoured", format!("nothing, or one of {}", known.join(", ")))
}

const SERVICE_KEYS: &[&str] = &[
    "command",
    "container_name",
    "cpus",
    "depends_on",
    "deploy",
    "dns",
    "dns_search",
    "entrypoint",
    "environment",
    "hostname",
    "image",
    "isolation",
    "labels",
    "mem_limit",
    "mem_reservation",
    "network_mode",
    "networks",
    "platform",
    "ports",
    "restart",
    "scale",
    "user",
    "volumes",
    "working_dir",
];

impl Compose<'_> {
    fn requests(&self, map: &Map) -> Result<Vec<Value>, Invalid> {
        let file = Section { path: String::new(), map };
        file.only(&["name", "services", "version", "volumes"])?;
        if let Some(volumes) = file.below("volumes")? {
            // The engine makes them by itself; anything more is for its driver.
            for (name, volume) in volumes.map {
                if !volume.is_null() && volume.as_map().is_none_or(|map| !map.is_empty()) {
                    return Err(unhonoured(volumes.at(name), &[]));
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

    fn service(&self, name: &str, service: &Section<'_>) -> Result<Value, Invalid> {
        service.only(SERVICE_KEYS)?;
        let mut draft: Draft = Vec::new();
        let mut put = |key: &str, value: Option<Value>| draft.extend(value.map(|value| (key.into(), value)));
        let full = format!("{}-{name}", self.stack);
        let container = service.text("container_name")?;
        put("id", Some(Value::text(full.as_str())));
        put("name", Some(container.map_or_else(|| Value::text(full.as_str()), Value::Text)));
        put("stack", Some(Value::text(self.stack.as_str())));
        put("service", Some(Value::text(name)));
        let Some(image) = service.text("image")? else {
            return Err(Invalid::new(service.at("image"), "missing", "an image; nothing is built here"));
        };
        put("image", Some(image_of(service, image)?));
        for key in ["command", "entrypoint", "dns", "dns_search"] {
            put(key, service.get(key).cloned());
        }
        for key in ["hostname", "isolation", "restart", "user", "working_dir"] {
            put(key, service.text(key)?.map(Value::Text));
        }
        let mut environment = Vec::new();
        for (key, value) in service.pairs("environment")? {
            // A variable without a value is taken from the environment.
            let value = match &value {
                Value::Null => (self.variable)(&key).map(Value::text),
                _ => Some(value),
            };
            environment.extend(value.map(|value| (key, value)));
        }
        put("environment", Some(Map::new(environment).into()));
        let mut labels = service.pairs("labels")?;
        put("ports", Some(ports(service)?));
        put("volumes", Some(volumes(service)?));
        put("network", network(service)?.map(Value::Text));
        let mut resources: Draft = Vec::new();
        let mut limits: Draft = Vec::new();
        let octets = |key: &str| -> Result<Option<Value>, Invalid> { Ok(service.get(key).cloned()) };
        resources.extend(octets("mem_reservation")?.map(|value| ("memory".into(), value)));
        limits.extend(octets("mem_limit")?.map(|value| ("memory".into(), value)));
        limits.extend(processors(service, "cpus")?.map(|value| ("milli_cpu".into(), value)));
        let mut count = service.get("scale").cloned();
        if let Some(deploy) = service.below("deploy")? {
            deploy.only(&["labels", "mode", "placement", "replicas", "resources", "restart_policy"])?;
            labels.extend(deploy.pairs("labels")?);
            count = deploy.get("replicas").cloned().or(count);
            match deploy.text("mode")?.as_deref() {
                None | Some("replicated") => {}
                Some("global") => put("global", Some(true.into())),
                Some(_) => return Err(Invalid::new(deploy.at("mode"), "unknown mode", "replicated or global")),
            }
            if let Some(placement) = deploy.below("placement")? {
                let (constraints, spread) = placement_of(&placement)?;
                put("constraints", Some(constraints));
                put("spread", Some(spread));
            }
            if let Some(section) = deploy.below("resources")? {
                section.only(&["limits", "reservations"])?;
                for (key, draft) in [("reservations", &mut resources), ("limits", &mut limits)] {
                    let Some(amounts) = section.below(key)? else { continue };
                    amounts.only(&["cpus", "memory"])?;
                    draft.extend(amounts.get("memory").map(|value| ("memory".into(), value.clone())));
                    draft.extend(processors(&amounts, "cpus")?.map(|value| ("milli_cpu".into(), value)));
                }
            }
            if let Some(policy) = deploy.below("restart_policy")? {
                put("restart", Some(restart(&policy)?));
            }
        }
        put("labels", Some(Map::new(labels).into()));
        put("resources", Some(Map::new(resources).into()));
        put("limits", Some(Map::new(limits).into()));
        match count {
            Some(Value::Int(0)) => {
                return Err(Invalid::new(service.at("deploy.replicas"), "found 0", "at least one, or no such service"));
            }
            count => put("count", count),
        }
        Ok(Map::new(draft).into())
    }

    /// The value with variables in place, as compose has them.
    fn interpolated(&self, path: &str, value: &Value) -> Result<Value, Invalid> {
        Ok(match value {
            Value::Text(text) => Value::Text(self.interpolate(path, text)?.into()),
            Value::List(items) => {
                let items: Result<Vec<_>, _> = items
                    .iter()
                    .enumerate()
                    .map(|(at, item)| self.interpolated(&format!("{path}[{at}]"), item))
                    .collect();
                Value::list(items?)
            }
            Value::Map(map) => {
                let entries: Result<Vec<_>, _> = map
                    .iter()
                    .map(|(key, value)| Ok((key.clone(), self.interpolated(&format!("{path}.{key}"), value)?)))
                    .collect();
                Map::new(entries?).into()
            }
            other => other.clone(),
        })
    }

    fn interpolate(&self, path: &str, text: &str) -> Result<String, Invalid> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            out.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('$') {
                out.push('$');
                rest = after;
                continue;
            }
            let wrong = |problem: String| Invalid::new(path, problem, "$NAME, ${NAME}, ${NAME:-DEFAULT} or $$");
            let (name, default, after) = if let Some(inner) = rest.strip_prefix('{') {
                let (inner, after) = inner.split_once('}').ok_or_else(|| wrong("a brace stays open".into()))?;
                let end = inner.find(|char: char| !char.is_ascii_alphanumeric() && char != '_').unwrap_or(inner.len());
                let default = match (&inner[end..], inner[end..].strip_prefix(":-")) {
                    ("", _) => None,
                    (_, Some(default)) => Some((default, true)),
                    (other, None) => {
                        let default = other.strip_prefix('-').ok_or_else(|| wrong(format!("found ${{{inner}}}")))?;
                        Some((default, false))
                    }
                };
                (&inner[..end], default, after)
            } else {
                let end = rest.find(|char: char| !char.is_ascii_alphanumeric() && char != '_').unwrap_or(rest.len());
                (&rest[..end], None, &rest[end..])
            };
            if name.is_empty() {
                return Err(wrong("a $ without a name".into()));
            }
            let value = (self.variable)(name);
            match (value, default) {
                // The predecessor's own words, which the scheduler puts in.
                (None, None) if matches!(name, "service_name" | "stack_name" | "project_name") => {
                    out.extend(["${", name, "}"]);
                }
                (Some(value), Some((default, true))) if value.is_empty() => out.push_str(default),
                (Some(value), _) => out.push_str(&value),
                (None, Some((default, _))) => out.push_str(default),
                (None, None) => return Err(wrong(format!("variable {name} is not set"))),
            }
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }
}

fn depends_on(service: &Section<'_>) -> Result<Vec<Text>, Invalid> {
    match service.get("depends_on") {
        None => Ok(Vec::new()),
        Some(Value::List(items)) => Ok(items.iter().filter_map(Value::as_text).cloned().collect()),
        Some(Value::Map(map)) => {
            for (name, how) in map {
                let condition = how.as_map().and_then(|how| how.text("condition"));
                if condition.is_some_and(|condition| &**condition != "service_started") {
                    return Err(unhonoured(service.at(&format!("depends_on.{name}.condition")), &["service_started"]));
                }
            }
            Ok(map.iter().map(|(name, _)| name.clone()).collect())
        }
        Some(other) => Err(Invalid::new(service.at("depends_on"), format!("found {}", other.kind()), "a list")),
    }
}

/// The image, with what it is built for where the file says so: `windows/amd64`, `linux/arm64/v8`.
fn image_of(service: &Section<'_>, image: Text) -> Result<Value, Invalid> {
    let Some(platform) = service.text("platform")? else { return Ok(Value::Text(image)) };
    let mut parts = platform.split('/');
    let os = parts.next().unwrap_or_default();
    if !matches!(os, "linux" | "windows") {
        return Err(Invalid::new(service.at("platform"), format!("found {platform:?}"), "linux/ARCH or windows/ARCH"));
    }
    let mut entry: Draft = vec![("os".into(), Value::text(os))];
    entry.extend(parts.next().map(|architecture| ("architecture".into(), Value::text(architecture))));
    Ok(Map::new(vec![("name".into(), Value::Text(image)), ("platforms".into(), Value::list([Map::new(entry).into()]))])
        .into())
}

fn ports(service: &Section<'_>) -> Result<Value, Invalid> {
    let items = match service.get("ports") {
        None => return Ok(Value::list([])),
        Some(Value::List(items)) => items,
        Some(other) => return Err(Invalid::new(service.at("ports"), format!("found {}", other.kind()), "a list")),
    };
    let mut ports = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let path = service.at(&format!("ports[{at}]"));
        match item {
            Value::Map(_) => {
                let port = Section::new(path, item)?;
                port.only(&["host_ip", "mode", "name", "protocol", "published", "target"])?;
                if port.text("mode")?.is_some_and(|mode| &*mode != "host") {
                    return Err(unhonoured(port.at("mode"), &["host"]));
                }
                let mut fields: Draft = Vec::new();
                for (key, field) in [("target", "private"), ("published", "public")] {
                    let number = port.text(key)?.map(|text| {
                        text.parse().map_err(|_| Invalid::new(port.at(key), format!("found {text:?}"), "a port"))
                    });
                    fields.extend(number.transpose()?.map(|number: i64| (field.into(), Value::Int(number))));
                }
                fields.extend(port.text("host_ip")?.map(|ip| ("ip".into(), Value::Text(ip))));
                fields.extend(port.text("protocol")?.map(|word| ("protocol".into(), Value::Text(word))));
                ports.push(Map::new(fields).into());
            }
            scalar => {
                let text = crate::hosts::label(&("".into(), scalar.clone())).map(|(_, text)| text);
                let text = text.ok_or_else(|| Invalid::new(&*path, "no port", "a port such as \"80:8080\""))?;
                ports.extend(range(&text).ok_or_else(|| {
                    Invalid::new(&*path, format!("found {text:?}"), "a port such as \"80:8080/tcp\"")
                })?);
            }
        }
    }
    Ok(Value::list(ports))
}

/// `8000-8002:80-82/tcp` as three ports; anything without a dash as it is.
fn range(text: &str) -> Option<Vec<Value>> {
    if !text.contains('-') {
        return Some(vec![Value::text(text)]);
    }
    let (rest, protocol) =
        text.split_once('/').map_or((text, String::new()), |(rest, word)| (rest, format!("/{word}")));
    let (before, inside) = rest.rsplit_once(':').map_or((None, rest), |(before, inside)| (Some(before), inside));
    let (address, outside) = match before.map(|before| before.rsplit_once(':').unwrap_or(("", before))) {
        None => ("", None),
        Some((address, outside)) => (address, Some(outside)),
    };
    let bounds = |text: &str| -> Option<(u16, u16)> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some((first.parse().ok()?, last.parse().ok()?)).filter(|(first, last)| first <= last)
    };
    let inside = bounds(inside)?;
    let outside = outside.map(bounds).map_or(Some(None), |bounds| bounds.map(Some))?;
    if outside.is_some_and(|outside| outside.1 - outside.0 != inside.1 - inside.0) {
        return None;
    }
    let separator = if address.is_empty() { "" } else { ":" };
    let port = |step: u16| {
        let private = inside.0 + step;
        Value::text(match outside {
            Some((first, _)) => format!("{address}{separator}{}:{private}{protocol}", first + step),
            None => format!("{private}{protocol}"),
        })
    };
    Some((0..=inside.1 - inside.0).map(port).collect())
}

fn volumes(service: &Section<'_>) -> Result<Value, Invalid> {
    match service.get("volumes") {
        None => Ok(Value::list([])),
        Some(Value::List(items)) => match items.iter().position(|item| item.as_str().is_none()) {
            Some(at) => Err(unhonoured(service.at(&format!("volumes[{at}]")), &["\"/host:/container:ro\""])),
            None => Ok(Value::list(items.iter().cloned())),
        },
        Some(other) => Err(Invalid::new(service.at("volumes"), format!("found {}", other.kind()), "a list")),
    }
}

fn network(service: &Section<'_>) -> Result<Option<Text>, Invalid> {
    if let Some(mode) = service.text("network_mode")? {
        return if mode.contains(':') {
            Err(Invalid::new(service.at("network_mode"), format!("{mode} cannot be honoured"), "a network by name"))
        } else {
            Ok(Some(mode))
        };
    }
    match service.get("networks") {
        None => Ok(None),
        Some(Value::List(items)) if items.len() == 1 && items[0].as_text().is_some() => Ok(items[0].as_text().cloned()),
        Some(_) => Err(unhonoured(service.at("networks"), &["a list with one network that the engines have"])),
    }
}

fn processors(section: &Section<'_>, key: &str) -> Result<Option<Value>, Invalid> {
    let Some(text) = section.text(key)? else { return Ok(None) };
    match thousandths(&text) {
        Some(milli) => Ok(Some(Value::Int(milli))),
        None => Err(Invalid::new(section.at(key), format!("found {text:?}"), "processors such as 0.5")),
    }
}

/// Thousandths in a decimal number such as `0.5`.
pub fn thousandths(text: &str) -> Option<i64> {
    let (whole, part) = text.trim().split_once('.').unwrap_or_else(|| (text.trim(), "0"));
    let digits = |text: &str| text.bytes().all(|octet| octet.is_ascii_digit());
    if !digits(whole) || !digits(part) || !text.contains(|char: char| char.is_ascii_digit()) {
        return None;
    }
    let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let part: i64 = format!("{part:0<3}")[..3].parse().ok()?;
    whole.checked_mul(1000)?.checked_add(part)
}

fn placement_of(placement: &Section<'_>) -> Result<(Value, Value), Invalid> {
    placement.only(&["constraints", "preferences"])?;
    let list = |key: &str| match placement.get(key) {
        None => Ok(&[][..]),
        Some(Value::List(items)) => Ok(&**items),
        Some(other) => Err(Invalid::new(placement.at(key), format!("found {}", other.kind()), "a list")),
    };
    for (at, item) in list("constraints")?.iter().enumerate() {
        let key = item.as_str().unwrap_or_default().trim();
        let known = ["node.id", "node.hostname", "node.labels.", "node.platform.os", "node.platform.arch"];
        let theirs = key.starts_with("node.") || key.starts_with("engine.");
        if theirs && !known.iter().any(|known| key.starts_with(known)) {
            return Err(unhonoured(placement.at(&format!("constraints[{at}]: {key}")), &known));
        }
    }
    let mut spread = Vec::new();
    for (at, item) in list("preferences")?.iter().enumerate() {
        let preference = Section::new(placement.at(&format!("preferences[{at}]")), item)?;
        preference.only(&["spread"])?;
        let label = preference.text("spread")?;
        let label = label.ok_or_else(|| Invalid::new(preference.at("spread"), "missing", "node.labels.NAME"))?;
        spread.push(Value::text(label.strip_prefix("node.labels.").unwrap_or(&label)));
    }
    Ok((Value::list(list("constraints")?.iter().cloned()), Value::list(spread)))
}

fn restart(policy: &Section<'_>) -> Result<Value, Invalid> {
    policy.only(&["condition", "max_attempts"])?;
    let times = policy.text("max_attempts")?;
    Ok(match policy.text("condition")?.as_deref() {
        Some("none") => "no".into(),
        Some("on-failure") => match times {
            Some(times) => Value::text(format!("on-failure:{times}")),
            None => "on-failure".into(),
        },
        None | Some("any") if times.is_none() => "always".into(),
        _ => return Err(unhonoured(policy.at("condition"), &["none", "on-failure", "any"])),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_cannot_be_honoured_is_named() {
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
            check_wrong(&service(line), field, "honour");
        }
        check_wrong(&service("deploy: {replicas: 0}"), "services.web.deploy.replicas", "at least one");
        check_wrong(&service("deploy: {replicas: x}"), "services.web.count", "whole number");
        check_wrong(&service("depends_on: [db]"), "services.web.depends_on", "no service db");
        check_wrong(&service("depends_on: [web]"), "services.web.depends_on", "wait for each other");
        check_wrong(&service("ports: ['1-2:1-3']"), "services.web.ports[0]", "a port");
        check_wrong(&service("cpus: many"), "services.web.cpus", "0.5");
        check_wrong(&service("user: $WHO"), "services.web.user", "WHO is not set");
        check_wrong("services:\n  web: {}\n", "services.web.image", "nothing is built");
        check_wrong("networks: {a: {}}\nservices: {}\n", "networks", "honour");
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
