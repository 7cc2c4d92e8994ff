//! Several compose files as one, and services that extend others, by the rules of the Compose Specification. ◇
//!
//! Maps have the entries of both, lists those of one after those of the other, and what can stand there once is the later one's.

use model::{Map, Text, Value};

/// Keys of services whose lists are replaced: a command is one thing.
const REPLACED: [&str; 2] = ["command", "entrypoint"];

/// Keys of services that are maps, or lists of `KEY=VALUE`.
const PAIRS: [&str; 7] = ["annotations", "environment", "extra_hosts", "labels", "log_opt", "storage_opt", "sysctls"];

/// Keys of services that are maps, or lists of names.
const NAMED: [&str; 2] = ["depends_on", "networks"];

/// Keys of services whose entries appear somewhere in the container, each at a place of its own.
const PLACED: [&str; 4] = ["configs", "devices", "secrets", "volumes"];

/// A file with what another one says besides. Both are of one form: the version 1 form has no `services`.
pub(super) fn files(base: &Map, over: &Map) -> Map {
    let (versioned, other) = (base.get("services").is_some(), over.get("services").is_some());
    if !versioned && !other {
        return joined(base, over, &|_, base, over| service(base, over));
    }
    // What belongs to whole files cannot be told from a service there.
    let lift = |map: &Map, is_versioned: bool| {
        if is_versioned { map.clone() } else { Map::new(vec![("services".into(), map.clone().into())]) }
    };
    joined(&lift(base, versioned), &lift(over, other), &|key, base, over| match (base, over) {
        (Value::Map(base), Value::Map(over)) if key == "services" => {
            joined(base, over, &|_, base, over| service(base, over)).into()
        }
        (Value::Map(base), Value::Map(over)) => joined(base, over, &|_, base, over| deep(base, over)).into(),
        (Value::List(_), Value::List(_)) => appended(base, over, &|_| None),
        _ => over.clone(),
    })
}

/// A service with what another file, or the one that extends it, says besides.
pub(super) fn service(base: &Value, over: &Value) -> Value {
    let (Value::Map(base), Value::Map(over)) = (base, over) else {
        return if over.is_null() { base.clone() } else { over.clone() };
    };
    joined(base, over, &|key, base, over| {
        if REPLACED.contains(&key) {
            over.clone()
        } else if PAIRS.contains(&key) {
            let separators: &[char] = if key == "extra_hosts" { &['=', ':'] } else { &['='] };
            let (Some(base), Some(over)) = (pairs(base, separators), pairs(over, separators)) else {
                return over.clone();
            };
            joined(&base, &over, &|_, _, over| over.clone()).into()
        } else if NAMED.contains(&key) {
            let (Some(base), Some(over)) = (by_name(base), by_name(over)) else { return over.clone() };
            joined(&base, &over, &|_, base, over| deep(base, over)).into()
        } else if PLACED.contains(&key) {
            appended(base, over, &|item| place(key, item))
        } else if key == "ports" {
            appended(base, over, &|item| Some(port(item)))
        } else if key == "healthcheck" {
            // The command of a check is one thing too.
            match (base, over) {
                (Value::Map(base), Value::Map(over)) => joined(base, over, &|_, _, over| over.clone()).into(),
                _ => over.clone(),
            }
        } else if key == "logging" {
            logging(base, over)
        } else {
            deep(base, over)
        }
    })
    .into()
}

/// Options are those of one driver.
fn logging(base: &Value, over: &Value) -> Value {
    let driver = |value: &Value| value.as_map().and_then(|map| map.text("driver").cloned());
    let is_other = driver(base).zip(driver(over)).is_some_and(|(base, over)| base != over);
    if is_other { over.clone() } else { deep(base, over) }
}

fn joined(base: &Map, over: &Map, both: &dyn Fn(&str, &Value, &Value) -> Value) -> Map {
    let mut entries: Vec<(Text, Value)> = Vec::new();
    for (key, value) in base {
        let value = match over.get(key) {
            Some(Value::Null) | None => value.clone(),
            Some(_) if value.is_null() => over.get(key).cloned().unwrap_or(Value::Null),
            Some(over) => both(key, value, over),
        };
        entries.push((key.clone(), value));
    }
    entries.extend(over.iter().filter(|(key, _)| base.get(key).is_none()).cloned());
    Map::new(entries)
}

fn deep(base: &Value, over: &Value) -> Value {
    match (base, over) {
        (Value::Map(base), Value::Map(over)) => joined(base, over, &|_, base, over| deep(base, over)).into(),
        (Value::List(_), _) | (_, Value::List(_)) => appended(base, over, &|_| None),
        _ => over.clone(),
    }
}

/// The entries of both, of which each has a place that only one can have; without a place, what is equal is there once.
fn appended(base: &Value, over: &Value, place: &dyn Fn(&Value) -> Option<String>) -> Value {
    let items = |value: &Value| match value {
        Value::List(items) => items.to_vec(),
        other => vec![other.clone()],
    };
    let mut all = items(base);
    for item in items(over) {
        let taken = place(&item);
        let same = |other: &Value| *other == item || taken.is_some() && place(other) == taken;
        match all.iter().position(same) {
            Some(at) => all[at] = item,
            None => all.push(item),
        }
    }
    Value::list(all)
}

/// A map of what may be a list of `KEY=VALUE`.
fn pairs(value: &Value, separators: &[char]) -> Option<Map> {
    let entry = |item: &Value| {
        let text = item.as_str()?;
        Some(match text.split_once(separators) {
            Some((key, value)) => (Text::from(key), Value::text(value)),
            None => (Text::from(text), Value::Null),
        })
    };
    match value {
        Value::Map(map) => Some(map.clone()),
        Value::List(items) => {
            let mut entries: Vec<(Text, Value)> = Vec::new();
            for (key, value) in items.iter().map(entry).collect::<Option<Vec<_>>>()? {
                entries.retain(|(own, _)| *own != key);
                entries.push((key, value));
            }
            Some(Map::new(entries))
        }
        _ => None,
    }
}

/// A map of what may be a list of names.
fn by_name(value: &Value) -> Option<Map> {
    match value {
        Value::Map(map) => Some(map.clone()),
        Value::List(items) => {
            let names = items.iter().map(|item| Some((item.as_text()?.clone(), Value::Null)));
            Some(Map::new(names.collect::<Option<_>>()?))
        }
        _ => None,
    }
}

/// Where something appears in the container.
fn place(key: &str, item: &Value) -> Option<String> {
    if let Value::Map(map) = item {
        let place = map.text("target").or_else(|| map.text("source"));
        return place.map(ToString::to_string);
    }
    let text = item.as_str()?;
    if matches!(key, "configs" | "secrets") {
        return Some(text.to_owned());
    }
    // `C:\data` has a colon of its own.
    let is_drive = |at: usize| at == 1 && text.as_bytes()[0].is_ascii_alphabetic() && text[2..].starts_with('\\');
    let first = text.match_indices(':').map(|(at, _)| at).find(|at| !is_drive(*at));
    let rest = first.map_or(text, |at| &text[at + 1..]);
    let skip = if rest.len() > 2 && rest.as_bytes()[1] == b':' && rest[2..].starts_with(['\\', '/']) { 2 } else { 0 };
    let end = rest[skip..].find(':').map_or(rest.len(), |at| at + skip);
    Some(rest[..end].to_owned())
}

/// What a port is: where it is outside, and inside.
fn port(item: &Value) -> String {
    let Value::Map(map) = item else {
        return crate::place::hosts::label(&("".into(), item.clone()))
            .map_or_else(String::new, |(_, text)| text.strip_suffix("/tcp").unwrap_or(&text).to_owned());
    };
    let part = |key: &str| {
        let value = map.get(key).cloned().unwrap_or(Value::Null);
        crate::place::hosts::label(&("".into(), value)).map_or_else(String::new, |(_, text)| text.to_string())
    };
    let colon = |text: String| if text.is_empty() { text } else { format!("{text}:") };
    let protocol = part("protocol");
    let protocol = if matches!(&*protocol, "" | "tcp") { String::new() } else { format!("/{protocol}") };
    format!("{}{}{}{protocol}", colon(part("host_ip")), colon(part("published")), part("target"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(base: &str, over: &str) -> serde_json::Value {
        let value = |text: &str| source::format::parse(text).unwrap().value(model::scalar::core);
        let (base, over) = (value(base), value(over));
        serde_json::to_value(Value::from(files(base.as_map().unwrap(), over.as_map().unwrap()))).unwrap()
    }

    #[test]
    fn later_files_add_to_services_and_win() {
        let one = |base: &str, over: &str| {
            let file = |line: &str| format!("services: {{a: {{{line}}}}}\n");
            merged(&file(base), &file(over))["services"]["a"].clone()
        };
        for (base, over, expected) in [
            ("image: a", "image: b", serde_json::json!({"image": "b"})),
            ("image: a", "tty: true", serde_json::json!({"image": "a", "tty": true})),
            ("image: a", "image: ", serde_json::json!({"image": "a"})),
            ("command: [a, b]", "command: c", serde_json::json!({"command": "c"})),
            ("environment: [A=1, B=2]", "environment: {B: 3}", serde_json::json!({"environment": {"A": "1", "B": 3}})),
            ("extra_hosts: ['a:1']", "extra_hosts: {a: 2}", serde_json::json!({"extra_hosts": {"a": 2}})),
            ("dns: a", "dns: [a, b]", serde_json::json!({"dns": ["a", "b"]})),
            ("expose: [80]", "expose: [81]", serde_json::json!({"expose": [80, 81]})),
            (
                "volumes: ['a:/a', '/b']",
                "volumes: ['c:/a:ro', {type: bind, source: /x, target: /b}]",
                serde_json::json!({"volumes": ["c:/a:ro", {"type": "bind", "source": "/x", "target": "/b"}]}),
            ),
            ("volumes: ['C:\\a:C:\\b']", "volumes: ['d:C:\\b']", serde_json::json!({"volumes": ["d:C:\\b"]})),
            (
                "ports: ['80:80', '81:81']",
                "ports: ['80:80/tcp', {target: 81, published: 81}, '53:53/udp']",
                serde_json::json!({"ports": ["80:80/tcp", {"target": 81, "published": 81}, "53:53/udp"]}),
            ),
            (
                "depends_on: [a]",
                "depends_on: {b: {condition: service_healthy}}",
                serde_json::json!({"depends_on": {"a": null, "b": {"condition": "service_healthy"}}}),
            ),
            (
                "healthcheck: {test: [CMD, a], retries: 1}",
                "healthcheck: {test: [CMD, b]}",
                serde_json::json!({"healthcheck": {"test": ["CMD", "b"], "retries": 1}}),
            ),
            (
                "logging: {driver: a, options: {x: 1}}",
                "logging: {driver: b}",
                serde_json::json!({"logging": {"driver": "b"}}),
            ),
            (
                "logging: {options: {x: 1}}",
                "logging: {options: {y: 2}}",
                serde_json::json!({"logging": {"options": {"x": 1, "y": 2}}}),
            ),
            (
                "deploy: {replicas: 2, labels: {a: 1}}",
                "deploy: {replicas: 3}",
                serde_json::json!({"deploy": {"replicas": 3, "labels": {"a": 1}}}),
            ),
            (
                "ulimits: {nofile: 1}",
                "ulimits: {nofile: 2, nproc: 3}",
                serde_json::json!({"ulimits": {"nofile": 2, "nproc": 3}}),
            ),
        ] {
            assert_eq!(one(base, over), expected, "{base} and {over}");
        }
        let whole = merged(
            "version: '3'\nname: a\nvolumes: {x: {driver: y}}\nservices: {a: {image: a}}\n",
            "name: b\nvolumes: {x: , z: }\nservices: {b: {image: b}}\n",
        );
        assert_eq!(whole["name"], "b");
        assert_eq!(whole["volumes"], serde_json::json!({"x": {"driver": "y"}, "z": null}));
        assert_eq!(whole["services"].as_object().unwrap().len(), 2);
        assert_eq!(
            merged("include: [a]\nservices: {}\n", "include: [b]\nservices: {}\n")["include"],
            serde_json::json!(["a", "b"])
        );
        assert_eq!(merged("a: {image: a}\n", "a: {image: b}\n"), serde_json::json!({"a": {"image": "b"}}));
        assert_eq!(
            merged("a: {image: a}\n", "services: {a: {tty: true}}\n"),
            serde_json::json!({"services": {"a": {"image": "a", "tty": true}}})
        );
    }
}
