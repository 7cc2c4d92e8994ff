//! The predecessor's objects: one map per entity, distinguished by `metadata_kind`, plus helper objects
//! that tie entities together.
//!
//! This is the common form of all sources: documents are turned into it, snapshots are stored on disk in it.

use std::collections::HashMap;
use std::sync::Arc;

use crate::answers::Answers;
use crate::defect::Defect;
use crate::entity::{Container, Entity, Host, Network, Service, Stack};
use crate::fingerprint::Fingerprint;
use crate::fingerprint::content::{Met, of_map, of_shared_map};
use crate::json;
use crate::snapshot::{Snapshot, object};
use crate::table::Table;
use crate::value::{Map, Text, Value};

/// An account of another environment, whose objects stand in a file of their own.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// Where that environment's server was.
    pub url: Option<Text>,
    /// The account's name; the file of that environment ends in it.
    pub public_value: Text,
}

/// Shows no secret: there is none in it, and none is to be added.
impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential").field("public_value", &self.public_value).finish_non_exhaustive()
    }
}

/// A snapshot of these objects, what was wrong with some of them, and the accounts they name.
///
/// Objects of unknown kinds are passed over, as the predecessor did. Of two entities with one id the
/// later one stays.
pub fn read(objects: impl IntoIterator<Item = Map>) -> (Snapshot, Vec<Defect>, Vec<Credential>) {
    let mut reading = Reading::default();
    for object in objects {
        reading.object(object);
    }
    reading.finish()
}

/// [`read`] for the objects of concatenated JSON texts; `None` when [`json`] leaves the text to a complete parser.
pub fn read_text(text: &str) -> Option<(Snapshot, Vec<Defect>, Vec<Credential>)> {
    let mut reading = Reading::default();
    json::each_object(text, |object| reading.object(object))?;
    Some(reading.finish())
}

impl Snapshot {
    /// The snapshot as objects of the predecessor's wire, helpers included; [`read`] gives an equal snapshot.
    pub fn objects(&self) -> impl Iterator<Item = Map> + '_ {
        write(self)
    }
}

fn write(snapshot: &Snapshot) -> impl Iterator<Item = Map> + '_ {
    let links = move |kind: &'static str, owner: &'static str, uuid: Value, links: &Map| -> Vec<Map> {
        let link = |(key, value): &(Text, Value)| {
            object(kind, [(owner, uuid.clone()), ("key", Value::Text(key.clone())), ("value", value.clone())])
        };
        links.iter().map(link).collect()
    };
    let containers = snapshot.containers.values().flat_map(move |container| {
        let mut objects =
            links("containerLink", "container_uuid", Value::Text(container.uuid().clone()), container.links());
        objects.insert(0, container.fields().clone());
        objects
    });
    // Links belong to the uuid, which launch configurations share and by which the table is ordered.
    let mut linked: Option<&Text> = None;
    let services = snapshot.services.values().flat_map(move |service| {
        let mut objects = vec![service.fields().clone()];
        for member in service.members().iter() {
            objects.push(object(
                "serviceContainerLink",
                [
                    ("service_uuid", Value::Text(service.uuid().clone())),
                    ("service_name", service.name().cloned().into()),
                    ("container_uuid", Value::Text(member.clone())),
                ],
            ));
        }
        if linked.replace(service.uuid()) != Some(service.uuid()) {
            objects.extend(links("serviceLink", "service_uuid", Value::Text(service.uuid().clone()), service.links()));
        }
        objects
    });
    let mut networks: Vec<_> = snapshot.networks.values().collect();
    networks.sort_by_key(|network| network.position());
    let mut default_data = vec![("version", Value::Text(snapshot.source_version.clone()))];
    if let Some(host) = &snapshot.local_host {
        let host = Map::new(vec![("host".into(), Value::Map(host.fields().clone()))]);
        default_data.push(("self", Value::Map(host)));
    }
    let externals = snapshot.externals.iter().map(|external| {
        let objects = write_boxed(external).map(Value::Map);
        object("external", [("objects", Value::list(objects))])
    });
    let answers = snapshot.answers.iter().map(|answers| object("answers", [("answers", answers.value())]));
    let environment =
        snapshot.environment.iter().map(|fields| fields.with([("metadata_kind".into(), Value::text("environment"))]));
    containers
        .chain(services)
        .chain(snapshot.stacks.values().map(|stack| stack.fields().clone()))
        .chain(snapshot.hosts.values().map(|host| host.fields().clone()))
        .chain(networks.into_iter().map(|network| network.fields().clone()))
        .chain(environment)
        .chain(externals)
        .chain(answers)
        .chain([object("defaultData", default_data)])
}

/// [`write`] for a snapshot inside a snapshot: an opaque type cannot contain itself.
fn write_boxed(snapshot: &Snapshot) -> Box<dyn Iterator<Item = Map> + '_> {
    Box::new(write(snapshot))
}

/// Entities and helpers met so far.
#[derive(Default)]
pub(crate) struct Reading<'m> {
    /// How many objects there were.
    count: usize,
    /// Without their links, which may come later; with the fingerprints of their objects. Made of an object at once, as
    /// long as the processor has it at hand.
    containers: Vec<(Arc<Container>, Fingerprint)>,
    /// Those that are no containers for want of a uuid.
    bad_containers: Vec<(usize, Map)>,
    services: Vec<(usize, Map)>,
    stacks: Vec<(usize, Map)>,
    hosts: Vec<(usize, Map)>,
    networks: Vec<(usize, Map)>,
    /// Uuids of containers by [`Service::id_of`], in link order.
    members: HashMap<Text, Vec<Text>, foldhash::fast::RandomState>,
    /// Links by the uuid of the service.
    service_links: HashMap<Text, Vec<(Text, Value)>, foldhash::fast::RandomState>,
    /// Links by the uuid of the container.
    container_links: HashMap<Text, Vec<(Text, Value)>, foldhash::fast::RandomState>,
    credentials: Vec<Credential>,
    snapshot: Snapshot,
    defects: Vec<Defect>,
    /// Fingerprints of objects that were met before, or will be met again.
    met: Option<&'m mut Met>,
}

impl<'m> Reading<'m> {
    /// Begins to read objects that are shared with others.
    pub(crate) fn met(met: &'m mut Met) -> Self {
        Self { met: Some(met), ..Self::default() }
    }

    /// Reads one object more.
    pub(crate) fn object(&mut self, object: Map) {
        let index = self.count;
        self.count += 1;
        let Some(kind) = object.text("metadata_kind").cloned() else {
            return self.defects.push(Defect::ignored(format!("objects/{index}"), "no metadata_kind"));
        };
        match &*kind {
            "container" => {
                let fingerprint = match &mut self.met {
                    Some(met) => of_shared_map(&object, met),
                    None => of_map(&object),
                };
                match Container::alone(object.clone(), fingerprint) {
                    Some(container) => self.containers.push((Arc::new(container), fingerprint)),
                    None => self.bad_containers.push((index, object)),
                }
            }
            "service" => self.services.push((index, object)),
            "stack" => self.stacks.push((index, object)),
            "host" => self.hosts.push((index, object)),
            "network" => self.networks.push((index, object)),
            "environment" => self.snapshot.environment = Some(object.without("metadata_kind")),
            "defaultData" => self.default_data(&object),
            "serviceContainerLink" => {
                let parts = (object.text("service_uuid"), object.text("service_name"), object.text("container_uuid"));
                if let (Some(service), Some(name), Some(container)) = parts {
                    self.members.entry(Service::id_of(service, name)).or_default().push(container.clone());
                } else {
                    let path = format!("objects/{index}");
                    self.defects.push(Defect::ignored(path, "a serviceContainerLink lacks one of its three names"));
                }
            }
            "serviceLink" | "containerLink" => {
                let (owner, links) = match &*kind {
                    "serviceLink" => ("service_uuid", &mut self.service_links),
                    _ => ("container_uuid", &mut self.container_links),
                };
                if let (Some(owner), Some(key)) = (object.text(owner), object.text("key")) {
                    let value = object.get("value").cloned().unwrap_or_default();
                    links.entry(owner.clone()).or_default().push((key.clone(), value));
                } else {
                    let path = format!("objects/{index}");
                    self.defects.push(Defect::ignored(path, format!("a {kind} lacks {owner} or key")));
                }
            }
            "credential" => {
                if let Some(public_value) = object.text("public_value") {
                    let credential =
                        Credential { url: object.text("url").cloned(), public_value: public_value.clone() };
                    self.credentials.push(credential);
                }
            }
            "external" => {
                let objects = object.list("objects").iter().filter_map(Value::as_map).cloned();
                let (external, defects, _) = read(objects);
                self.defects.extend(defects);
                self.snapshot.externals = self.snapshot.externals.iter().cloned().chain([Arc::new(external)]).collect();
            }
            "answers" => {
                if let Some(answers) = object.get("answers").and_then(|value| Answers::new(value).ok()) {
                    self.snapshot.answers = Some(Arc::new(answers.0));
                }
            }
            _ => {}
        }
    }

    fn default_data(&mut self, object: &Map) {
        if let Some(version) = object.text("version") {
            self.snapshot.source_version = version.clone();
        }
        if let Some(host) = object.map("self").and_then(|own| own.map("host")) {
            self.snapshot.local_host = Host::new(host.clone(), 0).map(Arc::new);
        }
    }

    /// What they were.
    pub(crate) fn finish(mut self) -> (Snapshot, Vec<Defect>, Vec<Credential>) {
        let defects = &mut self.defects;
        let mut snapshot = self.snapshot;
        for (index, fields) in self.bad_containers {
            defects.push(bad_entity::<Container>(index, &fields));
        }
        let linked = self.containers.into_iter().map(|(mut container, of_fields)| {
            if !self.container_links.is_empty()
                && let Some(links) = self.container_links.remove(container.uuid())
                && let Some(container) = Arc::get_mut(&mut container)
            {
                container.link(Map::new(links), of_fields);
            }
            container
        });
        snapshot.containers = linked.collect();
        snapshot.services = table(self.services, defects, |_, fields| {
            let uuid = fields.text("uuid")?.clone();
            let id = Service::id_of(&uuid, fields.text("name")?);
            let members = self.members.remove(&id).unwrap_or_default();
            let links = self.service_links.get(&uuid).cloned().unwrap_or_default();
            Service::new(fields, members.into(), Map::new(links))
        });
        snapshot.stacks = table(self.stacks, defects, |_, fields| Stack::new(fields, 0));
        snapshot.hosts = table(self.hosts, defects, |_, fields| Host::new(fields, 0));
        snapshot.networks = table(self.networks, defects, |position, fields| Network::new(fields, position));
        (snapshot, self.defects, self.credentials)
    }
}

/// The table of these objects; what is no entity becomes a defect.
fn table<T: Entity>(
    objects: Vec<(usize, Map)>,
    defects: &mut Vec<Defect>,
    mut entity: impl FnMut(u32, Map) -> Option<T>,
) -> Table<T> {
    let mut entities: Vec<Arc<T>> = Vec::with_capacity(objects.len());
    for (position, (index, fields)) in objects.into_iter().enumerate() {
        if let Some(entity) = entity(u32::try_from(position).unwrap_or(u32::MAX), fields.clone()) {
            entities.push(Arc::new(entity));
        } else {
            defects.push(bad_entity::<T>(index, &fields));
        }
    }
    entities.into_iter().collect()
}

/// An object that is no entity.
fn bad_entity<T: Entity>(index: usize, fields: &Map) -> Defect {
    let name = fields.text("name").map_or_else(|| index.to_string(), ToString::to_string);
    Defect::hidden(format!("{}s/{name}", T::KIND), "no uuid or no name that is text")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(json: &str) -> Vec<Map> {
        serde_json::from_str::<Value>(json)
            .unwrap()
            .as_list()
            .unwrap()
            .iter()
            .map(|v| v.as_map().unwrap().clone())
            .collect()
    }

    const SHOP: &str = r#"[
        {"metadata_kind":"container","uuid":"c1","name":"shop-web-1","primary_ip":"10.42.0.7","create_index":3},
        {"metadata_kind":"service","uuid":"s1","name":"Web","stack_name":"shop"},
        {"metadata_kind":"service","uuid":"s1","name":"log","primary_service_name":"Web","stack_name":"shop"},
        {"metadata_kind":"serviceContainerLink","service_uuid":"s1","service_name":"web","container_uuid":"c1"},
        {"metadata_kind":"serviceLink","service_uuid":"s1","key":"data/db","value":"db"},
        {"metadata_kind":"containerLink","container_uuid":"c1","key":"peer","value":null},
        {"metadata_kind":"environment","name":"prod","uuid":"e1","region_name":null},
        {"metadata_kind":"network","uuid":"n2","name":"b"},
        {"metadata_kind":"network","uuid":"n1","name":"a"},
        {"metadata_kind":"credential","url":"http://example.org","public_value":"QA","secret_value":"hidden"},
        {"metadata_kind":"defaultData","version":"7-x","self":{"host":{"uuid":"h1","environment_uuid":"e1"}}}
    ]"#;

    #[test]
    fn helpers_become_part_of_their_entities() {
        let (snapshot, defects, credentials) = read(objects(SHOP));
        assert_eq!(defects, []);
        assert_eq!(snapshot.services["s1_web"].members()[..], ["c1".into()]);
        assert!(snapshot.services["s1_log"].members().is_empty());
        assert_eq!(snapshot.services["s1_log"].links().get("data/db"), Some(&Value::text("db")));
        assert_eq!(snapshot.containers["c1"].links().get("peer"), Some(&Value::Null));
        assert_eq!(snapshot.environment_uuid().map(|uuid| &**uuid), Some("e1"));
        assert!(!format!("{credentials:?}").contains("hidden"));
    }

    #[test]
    fn writing_and_reading_gives_an_equal_snapshot() {
        let (snapshot, ..) = read(objects(SHOP));
        let (again, defects, _) = read(snapshot.objects());
        assert_eq!(defects, []);
        assert_eq!(snapshot, again);
    }

    #[test]
    fn a_bad_entity_hides_only_itself() {
        let (snapshot, defects, _) = read(objects(
            r#"[{"metadata_kind":"container","name":"no-uuid"},{"metadata_kind":"container","uuid":"c2"},
                {"metadata_kind":"service","uuid":"s1","name":null},{"metadata_kind":"surprise"},{"name":"kindless"}]"#,
        ));
        assert_eq!(snapshot.containers.len(), 1);
        let paths: Vec<_> = defects.iter().map(|defect| defect.path.as_str()).collect();
        assert_eq!(paths, ["objects/4", "containers/no-uuid", "services/2"]);
    }
}
