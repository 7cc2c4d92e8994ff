//! From a tree that a metadata service serves (`GET /2016-07-29` as JSON, or the answers of a file) back to objects.
//!
//! The tree says many things twice; what it derives is taken out again: the containers inside services,
//! the services inside stacks, the resolved links.

use crate::defect::Defect;
use crate::objects::Reading;
use crate::snapshot::{Snapshot, object};
use crate::value::{Map, Text, Value};

/// The snapshot behind the default tree of a metadata service, version 2015-12-19 or newer.
pub fn read(tree: &Map) -> (Snapshot, Vec<Defect>) {
    let (mut defects, mut reading) = (Vec::new(), Reading::default());
    objects(tree, &mut defects, &mut |object| reading.object(object));
    let (snapshot, more, _) = reading.finish();
    defects.extend(more);
    (snapshot, defects)
}

/// Calls `found` with each object of a tree; what cannot be one becomes a defect.
pub(crate) fn objects(tree: &Map, defects: &mut Vec<Defect>, found: &mut dyn FnMut(Map)) {
    let mut each = |key: &str, of: &dyn Fn(&Map) -> Vec<Map>| {
        for (index, entity) in tree.list(key).iter().enumerate() {
            match entity {
                Value::Map(entity) => of(entity).into_iter().for_each(&mut *found),
                other => {
                    let problem = format!("expected an object, found {}", other.kind());
                    defects.push(Defect::hidden(format!("{key}/{index}"), problem));
                }
            }
        }
    };
    each("containers", &container);
    each("services", &service);
    each("stacks", &|stack| vec![of_kind("stack", &stack.without("services"))]);
    each("hosts", &|host| vec![of_kind("host", host)]);
    each("networks", &|network| vec![of_kind("network", network)]);
    each("environments", &|environment| {
        let mut inner = Vec::new();
        objects(environment, &mut Vec::new(), &mut |object| inner.push(Value::Map(object)));
        vec![object("external", [("objects", Value::list(inner))])]
    });
    if tree.get("name").is_some() || tree.get("uuid").is_some() {
        let keys = ["name", "uuid", "region_name"];
        found(object("environment", keys.map(|key| (key, tree.get(key).cloned().unwrap_or_default()))));
    }
    let version = tree.get("version").cloned().unwrap_or_default();
    let host = tree.map("self").and_then(|own| own.map("host"));
    let own = host.map(|host| Value::Map(Map::new(vec![("host".into(), Value::Map(of_kind("host", host)))])));
    found(object("defaultData", [("version", version), ("self", own.into())]));
}

/// The objects behind a container as it is served.
pub(crate) fn container(served: &Map) -> Vec<Map> {
    let mut found = vec![of_kind("container", &served.without("links"))];
    let uuid = served.get("uuid").cloned().unwrap_or_default();
    for (key, value) in served.map("links").into_iter().flatten() {
        found.push(link("containerLink", "container_uuid", &uuid, key, value));
    }
    found
}

fn service(served: &Map) -> Vec<Map> {
    let mut found = vec![of_kind("service", &served.without("links").without("containers"))];
    let [uuid, name] = ["uuid", "name"].map(|key| served.get(key).cloned().unwrap_or_default());
    for member in served.list("containers") {
        // Version 2015-07-25 has names here, which name no one container.
        if let Some(member) = member.as_map().and_then(|member| member.get("uuid")) {
            found.push(object(
                "serviceContainerLink",
                [("service_uuid", uuid.clone()), ("service_name", name.clone()), ("container_uuid", member.clone())],
            ));
        }
    }
    // Links belong to the uuid; sidekicks show them again.
    let primary = served.text("primary_service_name").filter(|primary| !primary.is_empty());
    if primary.is_none_or(|primary| Some(primary) == served.text("name")) {
        for (key, value) in served.map("links").into_iter().flatten() {
            found.push(link("serviceLink", "service_uuid", &uuid, key, value));
        }
    }
    found
}

fn link(kind: &str, owner: &'static str, uuid: &Value, key: &Text, value: &Value) -> Map {
    object(kind, [(owner, uuid.clone()), ("key", Value::Text(key.clone())), ("value", value.clone())])
}

/// The object with its kind said, which older trees leave out.
fn of_kind(kind: &str, fields: &Map) -> Map {
    if is_kind(fields, kind) { fields.clone() } else { fields.with([("metadata_kind".into(), Value::text(kind))]) }
}

/// Whether the object says that it is of this kind.
pub(crate) fn is_kind(object: &Map, kind: &str) -> bool {
    object.text("metadata_kind").is_some_and(|own| &**own == kind)
}
