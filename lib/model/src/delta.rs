//! What changed between two snapshots, as it goes over the wire to followers.
//!
//! A delta holds whole entities, with their links folded in: applying it needs nothing but the snapshot it starts from,
//! and costs what changed.

use std::sync::Arc;

use crate::entity::{Container, Entity, Host, Network, Service, Stack};
use crate::objects;
use crate::snapshot::Snapshot;
use crate::table::{Change, Table, changes};
use crate::value::{Map, Text, Value};

/// The difference between two snapshots.
#[derive(Clone, Debug, Default)]
pub struct Delta {
    /// Entities that are new or different, as they are now; see [`Delta::entity_value`] for their form.
    pub put: Vec<Map>,
    /// Kind and id of the entities that are gone.
    pub removed: Vec<(Text, Text)>,
    /// What is no entity (environment, own host, other environments, answers), when any of it changed: objects of the wire.
    pub rest: Option<Vec<Map>>,
}

/// Why a delta does not apply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the change {path} is no {kind}")]
pub struct BadDelta {
    path: String,
    kind: &'static str,
}

impl Delta {
    /// What has to be done to `old` to make it `new`; costs what they do not share.
    pub fn between(old: &Snapshot, new: &Snapshot) -> Self {
        let mut delta = Self::default();
        delta.table(&old.containers, &new.containers);
        delta.table(&old.services, &new.services);
        delta.table(&old.stacks, &new.stacks);
        delta.table(&old.hosts, &new.hosts);
        delta.table(&old.networks, &new.networks);
        if without_entities(old) != without_entities(new) {
            delta.rest = Some(Self::rest_of(new));
        }
        delta
    }

    /// How many entities are different, without saying how.
    pub fn count(old: &Snapshot, new: &Snapshot) -> usize {
        changes(&old.containers, &new.containers).count()
            + changes(&old.services, &new.services).count()
            + changes(&old.stacks, &new.stacks).count()
            + changes(&old.hosts, &new.hosts).count()
            + changes(&old.networks, &new.networks).count()
    }

    /// Everything that is in `snapshot`, as the difference from an empty one.
    pub fn whole(snapshot: &Snapshot) -> Self {
        Self { rest: Some(Self::rest_of(snapshot)), ..Self::between(&Snapshot::default(), snapshot) }
    }

    /// What is no entity in a snapshot, as [`Delta::rest`] has it.
    pub fn rest_of(snapshot: &Snapshot) -> Vec<Map> {
        without_entities(snapshot).objects().collect()
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.put.is_empty() && self.removed.is_empty() && self.rest.is_none()
    }

    /// The snapshot that `old` becomes.
    ///
    /// # Errors
    ///
    /// Fails if the delta holds something that is no entity; `old` is untouched then, as it always is.
    pub fn apply(&self, old: &Snapshot) -> Result<Snapshot, BadDelta> {
        let mut new = old.clone();
        if let Some(rest) = &self.rest {
            let (rest, ..) = objects::read(rest.iter().cloned());
            new.source_version = rest.source_version;
            new.environment = rest.environment;
            new.local_host = rest.local_host;
            new.externals = rest.externals;
            new.answers = rest.answers;
        }
        for (index, entity) in self.put.iter().enumerate() {
            put(&mut new, entity).map_err(|kind| BadDelta { path: format!("put/{index}"), kind })?;
        }
        for (index, (kind, id)) in self.removed.iter().enumerate() {
            match &**kind {
                Container::KIND => new.containers.remove(id),
                Service::KIND => new.services.remove(id),
                Stack::KIND => new.stacks.remove(id),
                Host::KIND => new.hosts.remove(id),
                Network::KIND => new.networks.remove(id),
                _ => return Err(BadDelta { path: format!("removed/{index}"), kind: "kind of entity" }),
            }
        }
        Ok(new)
    }

    fn table<T: Folded>(&mut self, old: &Table<T>, new: &Table<T>) {
        for change in changes(old, new) {
            match change {
                Change::Added(entity) | Change::Changed { new: entity, .. } => self.put.push(entity.folded()),
                Change::Removed(entity) => self.removed.push((T::KIND.into(), entity.id().clone())),
            }
        }
    }
}

/// The snapshot without its entities.
fn without_entities(snapshot: &Snapshot) -> Snapshot {
    Snapshot {
        source_version: snapshot.source_version.clone(),
        environment: snapshot.environment.clone(),
        local_host: snapshot.local_host.clone(),
        externals: snapshot.externals.clone(),
        answers: snapshot.answers.clone(),
        ..Snapshot::default()
    }
}

/// An entity with what the wire has in helpers: `{kind, object, links, members, position}`.
trait Folded: Entity {
    /// What is said beside the object.
    fn beside(&self) -> Vec<(&'static str, Value)>;

    fn folded(&self) -> Map {
        let own = [("kind", Value::text(Self::KIND)), ("object", Value::Map(self.fields().clone()))];
        own.into_iter().chain(self.beside()).map(|(key, value)| (key.into(), value)).collect()
    }
}

impl Folded for Container {
    fn beside(&self) -> Vec<(&'static str, Value)> {
        vec![("links", self.links().clone().into())]
    }
}

impl Folded for Service {
    fn beside(&self) -> Vec<(&'static str, Value)> {
        let members = self.members().iter().map(|member| Value::Text(member.clone()));
        vec![("links", self.links().clone().into()), ("members", Value::list(members))]
    }
}

impl Folded for Stack {
    fn beside(&self) -> Vec<(&'static str, Value)> {
        Vec::new()
    }
}

impl Folded for Host {
    fn beside(&self) -> Vec<(&'static str, Value)> {
        Vec::new()
    }
}

impl Folded for Network {
    fn beside(&self) -> Vec<(&'static str, Value)> {
        vec![("position", Value::Int(self.position().into()))]
    }
}

/// Puts an entity into its table; the error is what was expected.
fn put(snapshot: &mut Snapshot, folded: &Map) -> Result<(), &'static str> {
    fn insert<T: Entity>(table: &mut Table<T>, entity: Option<T>) -> Result<(), &'static str> {
        let entity = entity.ok_or(T::KIND)?;
        table.insert(Arc::new(entity));
        Ok(())
    }
    let object = folded.map("object").cloned().ok_or("object")?;
    let links = || folded.map("links").cloned().unwrap_or_default();
    match folded.text("kind").map(|kind| &**kind) {
        Some(Container::KIND) => insert(&mut snapshot.containers, Container::new(object, links())),
        Some(Service::KIND) => {
            let members = crate::entity::texts(folded, "members").cloned().collect();
            insert(&mut snapshot.services, Service::new(object, members, links()))
        }
        Some(Stack::KIND) => insert(&mut snapshot.stacks, Stack::new(object, 0)),
        Some(Host::KIND) => insert(&mut snapshot.hosts, Host::new(object, 0)),
        Some(Network::KIND) => {
            let position = folded.int("position").and_then(|position| position.try_into().ok()).unwrap_or_default();
            insert(&mut snapshot.networks, Network::new(object, position))
        }
        _ => Err("kind of entity"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::object;
    use proptest::prelude::*;

    fn any_snapshot() -> impl Strategy<Value = Snapshot> {
        let entity = (0..5usize, 0..6u8, 0..3i64);
        (prop::collection::vec(entity, 0..20), 0..3u8).prop_map(|(entities, version)| {
            let kinds = ["container", "service", "stack", "host", "network"];
            let mut found: Vec<Map> = Vec::new();
            for (kind, id, detail) in entities {
                let id = Value::text(format!("id{id}"));
                found
                    .push(object(kinds[kind], [("uuid", id.clone()), ("name", id.clone()), ("detail", detail.into())]));
                let link = [("service_uuid", id.clone()), ("key", "a/b".into()), ("value", detail.into())];
                found.push(object("serviceLink", link));
                let member = [("service_uuid", id.clone()), ("service_name", id.clone()), ("container_uuid", id)];
                found.push(object("serviceContainerLink", member));
            }
            found.push(object("defaultData", [("version", Value::text(version.to_string()))]));
            objects::read(found).0
        })
    }

    proptest! {
        #[test]
        fn a_delta_makes_the_old_snapshot_the_new_one(old in any_snapshot(), new in any_snapshot()) {
            let new = new.succeeding(&old);
            let delta = Delta::between(&old, &new);
            prop_assert_eq!(delta.is_empty(), old == new);
            prop_assert_eq!(delta.put.len() + delta.removed.len(), Delta::count(&old, &new));
            prop_assert_eq!(delta.apply(&old).unwrap(), new.clone());
            prop_assert_eq!(Delta::whole(&new).apply(&Snapshot::default()).unwrap(), new);
        }
    }

    #[test]
    fn what_is_no_entity_is_refused() {
        let bad = Delta { put: vec![Map::default()], ..Delta::default() };
        assert_eq!(bad.apply(&Snapshot::default()).unwrap_err().to_string(), "the change put/0 is no object");
        let gone = Delta { removed: vec![("planet".into(), "x".into())], ..Delta::default() };
        assert_eq!(
            gone.apply(&Snapshot::default()).unwrap_err().to_string(),
            "the change removed/0 is no kind of entity"
        );
    }
}
