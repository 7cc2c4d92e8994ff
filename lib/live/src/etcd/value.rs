//! The values of keys: an entity in readable JSON, as in a cluster document; and a host's document in such values.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::document::{self, FORMAT};
use model::{Defect, Effect, Map, Pool, Text, Value, ValueSeed};
use serde::de::DeserializeSeed;

use super::keys::{Key, Kind};
use crate::host::HostDocument;
use crate::intents::{Intent, Reserved};
use crate::moment;
use crate::owners::{OWNERS_PART, Owners};

/// Largest value of a host or of something that it has, in bytes: ten thousand labels.
pub(super) const ENTITY_MAX: usize = 1 << 20;

/// Largest document, in bytes: what etcd takes by default.
pub(super) const DOCUMENT_MAX: usize = 1_500 << 10;

/// Deepest nesting of a value.
const DEPTH_MAX: usize = 64;

/// What a host says about its keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Published {
    /// The machine that wrote them.
    pub(super) by: Text,
    /// The life of its agent: another one after each start.
    pub(super) life: Text,
    /// When, in seconds after the beginning of 1970.
    pub(super) at: Option<i64>,
    /// Its address.
    pub(super) address: Option<Text>,
    /// How long its keys stay without it, in seconds.
    pub(super) lease: i64,
    /// Not everything is there yet.
    pub(super) partial: bool,
    /// It leaves on purpose.
    pub(super) leaving: bool,
    /// The public key for its next password.
    pub(super) exchange: Option<Text>,
}

impl Published {
    /// The block of a host's value; without one all is empty.
    pub(super) fn read(host: &Map) -> Self {
        let Some(block) = host.map("published") else { return Self::default() };
        let text = |key| block.text(key).cloned();
        let truth = |key| block.get(key).and_then(Value::as_bool).unwrap_or_default();
        Self {
            by: text("by").unwrap_or_default(),
            life: text("life").unwrap_or_default(),
            at: text("at").and_then(|at| moment::read(&at)),
            address: text("address"),
            lease: block.int("lease").unwrap_or_default(),
            partial: truth("partial"),
            leaving: truth("leaving"),
            exchange: text("exchange"),
        }
    }

    fn write(&self) -> Map {
        let mut entries: Vec<(Text, Value)> = vec![
            ("by".into(), Value::Text(self.by.clone())),
            ("life".into(), Value::Text(self.life.clone())),
            ("lease".into(), Value::Int(self.lease)),
        ];
        entries.extend(self.at.and_then(moment::write).map(|at| ("at".into(), Value::text(at))));
        entries.extend(self.address.clone().map(|address| ("address".into(), Value::Text(address))));
        entries.extend(self.exchange.clone().map(|key| ("exchange".into(), Value::Text(key))));
        let flags = [("partial", self.partial), ("leaving", self.leaving)];
        entries.extend(flags.into_iter().filter(|(_, on)| *on).map(|(key, _)| (key.into(), Value::Bool(true))));
        Map::new(entries)
    }
}

/// A host's document as keys and values.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Values {
    /// The host's own value, without what is said about publishing.
    pub(super) host: Map,
    /// Everything else, by key.
    pub(super) entities: BTreeMap<Key, Vec<u8>>,
    /// What has no key: entities without a name, and too large ones.
    pub(super) defects: Vec<Defect>,
}

impl Values {
    /// The keys and values of a document.
    pub(super) fn of(own: &HostDocument) -> Self {
        let document = &own.document;
        let entities = |list: &str| document.list(list).iter().filter_map(Value::as_map).cloned().collect::<Vec<_>>();
        let mut hosts = entities("hosts").into_iter();
        let named = Map::new(vec![("name".into(), Value::Text(own.host.clone()))]);
        let host = hosts.find(|host| host.text("name") == Some(&own.host)).unwrap_or(named);
        let environment = document.get("environment").filter(|environment| !environment.is_null()).cloned();
        let environment = environment.map(|environment| ("environment".into(), environment));
        let mut values = Self {
            host: host.with([("berth".into(), Value::Int(FORMAT))].into_iter().chain(environment)),
            ..Self::default()
        };
        for kind in Kind::ALL {
            for (index, entity) in entities(kind.list()).into_iter().enumerate() {
                values.add(own, kind, index, &entity);
            }
        }
        values
    }

    fn add(&mut self, own: &HostDocument, kind: Kind, index: usize, entity: &Map) {
        let path = || {
            let name = entity.text("name").filter(|name| !name.is_empty());
            format!("{}/{}", kind.list(), name.map_or_else(|| index.to_string(), ToString::to_string))
        };
        let Some(names) = names(kind, entity) else {
            return self.defects.push(Defect::hidden(path(), "without a name it cannot be published"));
        };
        let key = Key::Entity(own.host.clone(), kind, names);
        let bytes = match serde_json::to_vec(entity) {
            Ok(bytes) if bytes.len() <= ENTITY_MAX => bytes,
            _ => {
                let problem = format!("more than {ENTITY_MAX} bytes cannot be published");
                return self.defects.push(Defect::hidden(path(), problem));
            }
        };
        if self.entities.contains_key(&key) {
            let problem = format!("there already is one under the key {}", key.path());
            return self.defects.push(Defect::hidden(path(), problem));
        }
        self.entities.insert(key, bytes);
    }

    /// The bytes of the host's value.
    pub(super) fn host_value(&self, published: &Published) -> Vec<u8> {
        let host = self.host.with([("published".into(), Value::Map(published.write()))]);
        // Maps with text keys and finite numbers can always be written.
        serde_json::to_vec(&host).unwrap_or_default()
    }
}

/// The segments behind the kind in the key of an entity.
fn names(kind: Kind, entity: &Map) -> Option<Vec<Text>> {
    let text = |key| entity.text(key).filter(|text| !text.is_empty()).cloned();
    let name = text("name")?;
    Some(match kind {
        Kind::Containers => vec![text("uuid").unwrap_or(name)],
        Kind::Networks | Kind::Stacks => vec![name],
        Kind::Services => [text("stack")].into_iter().chain([text("sidekick_of")]).flatten().chain([name]).collect(),
    })
    .filter(|names: &Vec<Text>| kind != Kind::Services || entity.text("stack").is_some() && names.len() > 1)
}

/// Reads the value of a key.
///
/// # Errors
///
/// Fails with a defect of the key.
pub(super) fn read(key: &Key, bytes: &[u8], pool: &mut Pool) -> Result<Map, Defect> {
    let wrong = |problem: String| Err(Defect::hidden(key.path(), problem));
    let most = if matches!(key, Key::Document(_)) { DOCUMENT_MAX } else { ENTITY_MAX };
    if bytes.len() > most {
        return wrong(format!("{} bytes; a value has at most {most}", bytes.len()));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = ValueSeed(pool).deserialize(&mut deserializer).and_then(|value| deserializer.end().map(|()| value));
    let map = match value {
        Ok(Value::Map(map)) => map,
        Ok(other) => return wrong(format!("expected a map of fields, found {}", other.kind())),
        Err(error) if error.is_eof() => return wrong("no JSON: it ends too early".to_owned()),
        Err(error) => return wrong(format!("no JSON from line {}, column {} on", error.line(), error.column())),
    };
    if is_deeper(&Value::Map(map.clone()), DEPTH_MAX) {
        return wrong(format!("nested more than {DEPTH_MAX} deep"));
    }
    match map.get("berth") {
        None => {}
        Some(version) if version.as_int() == Some(FORMAT) => {}
        Some(Value::Int(version)) if *version > FORMAT => {
            return wrong(format!("of format {version}, this program reads format {FORMAT}; update it"));
        }
        Some(_) => return wrong(format!("berth: this program reads format {FORMAT}")),
    }
    match key {
        Key::Host(host) if map.text("name") != Some(host) => {
            wrong(format!("its name is not {host:?}, as the key says"))
        }
        Key::Entity(_, kind, own) if names(*kind, &map).is_none_or(|names| names != *own) => {
            wrong("its name is another one than the key says".to_owned())
        }
        Key::Intent(_) => Intent::parse(&map).map_or_else(wrong, |_| Ok(map)),
        Key::ReservedLabels => Reserved::parse(&map).map_or_else(wrong, |_| Ok(map)),
        key if is_owners(key) => Owners::parse(&map).map_or_else(wrong, |_| Ok(map)),
        _ => Ok(map),
    }
}

/// What is wrong with the fields of a value, if it cannot be used for that.
///
/// Checking takes longer than reading, and is done only where a good value could stay in its place.
pub(super) fn flaw(key: &Key, value: &Map) -> Option<String> {
    let document = match key {
        // What is wrong with it was found on reading.
        key if is_owners(key) => return None,
        Key::Document(_) => value.clone(),
        // What is wrong with these was found on reading, too.
        Key::Intent(_)
        | Key::ReservedLabels
        | Key::Network(_)
        | Key::Override(..)
        | Key::Evicted(_)
        | Key::Password(_)
        | Key::Empty => return None,
        Key::Host(_) => one("hosts", &entity_of_host(value)),
        // Its stack may be another host's to describe, and what it refers to is not here.
        Key::Entity(_, kind, _) => one(kind.list(), &value.without("berth")),
    };
    match document::resolve_value(&Value::Map(document)) {
        Err(refusal) if matches!(key, Key::Document(_)) => Some(refusal.to_string()),
        Err(refusal) => {
            let problem = refusal.problem.strip_prefix("not one good entity; the first defect is: ");
            // Networks and stacks alone are no cluster, which is no fault of theirs.
            problem.filter(|problem| problem.ends_with("(left out)")).map(str::to_owned)
        }
        Ok((_, defects)) if !matches!(key, Key::Document(_)) => {
            defects.iter().find(|defect| defect.effect == Effect::Hidden).map(ToString::to_string)
        }
        Ok(_) => None,
    }
}

/// Whether a key is that of the document that says which stacks are whose.
fn is_owners(key: &Key) -> bool {
    key.part().is_some_and(|part| *part.text() == *OWNERS_PART)
}

/// The fields of a host in its value, which has more.
pub(super) fn entity_of_host(value: &Map) -> Map {
    value.iter().filter(|(key, _)| !matches!(&**key, "berth" | "published" | "environment")).cloned().collect()
}

/// A host's document out of its value and those of what it has.
pub(super) fn assemble(host: &Text, value: &Map, lists: BTreeMap<Kind, Vec<Value>>) -> Map {
    let mut entries: Vec<(Text, Value)> = vec![
        ("berth".into(), Value::Int(FORMAT)),
        ("host".into(), Value::Text(host.clone())),
        ("hosts".into(), Value::list([Value::Map(entity_of_host(value))])),
    ];
    entries.extend(value.get("environment").map(|environment| ("environment".into(), environment.clone())));
    entries.extend(lists.into_iter().map(|(kind, list)| (kind.list().into(), Value::List(list.into()))));
    Map::new(entries)
}

fn one(list: &str, entity: &Map) -> Map {
    Map::new(vec![(list.into(), Value::List(Arc::new([Value::Map(entity.clone())])))])
}

fn is_deeper(value: &Value, depth: usize) -> bool {
    match value {
        Value::List(items) => depth == 0 || items.iter().any(|item| is_deeper(item, depth - 1)),
        Value::Map(map) => depth == 0 || map.iter().any(|(_, value)| is_deeper(value, depth - 1)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(json: &str) -> Map {
        serde_json::from_str(json).unwrap()
    }

    fn own(json: &str) -> HostDocument {
        HostDocument { host: "win-1".into(), document: map(json), ..HostDocument::default() }
    }

    #[test]
    fn a_document_is_one_value_for_each_entity() {
        let values = Values::of(&own(
            r#"{"environment":{"name":"test"},"host":"win-1","hosts":[{"name":"win-1","agent_ip":"192.0.2.1"}],
            "services":[{"name":"web","stack":"shop"},{"name":"log","stack":"shop","sidekick_of":"web"},{"name":"lost"}],
            "containers":[{"name":"web-1","uuid":"0a"},{"name":"b"},{"name":"b"},{"state":"running"}]}"#,
        ));
        let keys: Vec<_> =
            values.entities.iter().map(|(key, value)| (key.path(), String::from_utf8_lossy(value))).collect();
        let written = [
            ("hosts/win-1/containers/0a", r#"{"name":"web-1","uuid":"0a"}"#),
            ("hosts/win-1/containers/b", r#"{"name":"b"}"#),
            ("hosts/win-1/services/shop/web", r#"{"name":"web","stack":"shop"}"#),
            ("hosts/win-1/services/shop/web/log", r#"{"name":"log","sidekick_of":"web","stack":"shop"}"#),
        ];
        assert_eq!(keys, written.map(|(key, value)| (key.to_owned(), value.into())));
        let published = Published { by: "m".into(), life: "l".into(), lease: 15, at: Some(0), ..Published::default() };
        let host = values.host_value(&published);
        let text = r#"{"agent_ip":"192.0.2.1","berth":1,"environment":{"name":"test"},"name":"win-1","published":{"at":"1970-01-01T00:00:00Z","by":"m","lease":15,"life":"l"}}"#;
        assert_eq!(String::from_utf8_lossy(&host), text);
        assert_eq!(Published::read(&map(text)), published);
        let defects: Vec<_> = values.defects.iter().map(|defect| defect.path.as_str()).collect();
        assert_eq!(defects, ["services/lost", "containers/b", "containers/3"]);
    }

    /// Values of a key, and what is wrong with them: on reading, or with their fields.
    #[test]
    fn what_is_no_value_says_why() {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(70), "}".repeat(70));
        for (path, value, problem) in [
            ("hosts/a/host", r#"{"name":"a","berth":1,"published":{"by":"x"}}"#, ""),
            ("hosts/a/host", r#"{"name":"b"}"#, "its name is not \"a\", as the key says"),
            ("hosts/a/host", r#"{"name":"a","berth":2}"#, "of format 2, this program reads format 1; update it"),
            ("hosts/a/host", r#"{"name":"a","berth":"one"}"#, "this program reads format 1"),
            ("hosts/a/host", r#"{"name":"a","memory":"much"}"#, "expected bytes"),
            ("hosts/a/containers/c", r#"{"name":"c","service":"x/y","host":"a","network":"z"}"#, ""),
            ("hosts/a/containers/c", "{broken", "no JSON"),
            ("hosts/a/containers/c", "", "no JSON"),
            ("hosts/a/containers/c", "{} {}", "no JSON"),
            ("hosts/a/containers/c", "[]", "expected a map of fields, found a list"),
            ("hosts/a/containers/c", &deep, "nested more than 64 deep"),
            ("hosts/a/containers/c", r#"{"name":"d"}"#, "another one than the key says"),
            ("hosts/a/containers/c", r#"{"name":"c","primary_ip":"10.0.0.256"}"#, "is no IP address"),
            ("hosts/a/networks/n", r#"{"name":"n"}"#, ""),
            ("hosts/a/networks/n", r#"{"name":"n","is_default":"perhaps"}"#, "expected true or false"),
            ("hosts/a/stacks/s", r#"{"name":"s"}"#, ""),
            ("hosts/a/services/s/w", r#"{"name":"w","stack":"s","links":{"q/r":"t"}}"#, ""),
            ("hosts/a/services/s/w", r#"{"name":"w","stack":"s","kind":"new"}"#, "is none of"),
            ("documents/d", r#"{"services":[{"name":"w","stack":"s"}]}"#, ""),
            ("documents/d", r#"{"services":[{"name":"w"}]}"#, "not one good entity"),
            ("documents/d", r#"{"services":{}}"#, "expected a list"),
            ("documents/owners", r#"{"berth":1,"tenants":{"red":{"hosts":["a"],"stacks":["s"]}}}"#, ""),
            ("documents/owners", r#"{"services":[{"name":"w","stack":"s"}]}"#, "expected tenants"),
        ] {
            let key = Key::parse(path.as_bytes()).unwrap();
            let read = read(&key, value.as_bytes(), &mut Pool::default());
            let found = match read {
                Ok(map) => flaw(&key, &map).unwrap_or_default(),
                Err(defect) => defect.problem,
            };
            assert!(found.contains(problem) && found.is_empty() == problem.is_empty(), "{path} {value}: {found:?}");
        }
    }

    #[test]
    fn a_document_comes_back_out_of_its_values() {
        let document = r#"{"berth":1,"containers":[{"name":"b"}],"environment":{"name":"test"},"host":"win-1","hosts":[{"memory":5,"name":"win-1"}]}"#;
        let values = Values::of(&own(document));
        let host = map(&String::from_utf8(values.host_value(&Published::default())).unwrap());
        let list = values.entities.values().map(|value| Value::Map(map(std::str::from_utf8(value).unwrap())));
        let lists = BTreeMap::from([(Kind::Containers, list.collect())]);
        assert_eq!(assemble(&"win-1".into(), &host, lists), map(document));
    }
}
