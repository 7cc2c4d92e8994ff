//! One snapshot out of the documents of many hosts.
//!
//! Each part is resolved on its own, so a change costs what its host has; what several hosts tell of (a service with
//! containers on all of them, a network that each has) becomes one entity.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use model::document::{self, Refusal};
use model::{
    Change, Container, Defect, Entity, Host, Map, Network, Node, Service, Snapshot, Stack, Table, Text, Value, changes,
};

/// A cluster that is told part by part.
#[derive(Debug, Default)]
pub struct Cluster {
    /// The part of the host that this process is on.
    local: Option<Text>,
    parts: BTreeMap<Text, Snapshot>,
    containers: Claims<Container>,
    services: Claims<Service>,
    stacks: Claims<Stack>,
    hosts: Claims<Host>,
    networks: Claims<Network>,
    whole: Snapshot,
}

/// Who tells of an entity, in the order of the parts' names: the first one's word counts.
type Claims<T> = HashMap<Text, Vec<(Text, Arc<T>)>>;

impl Cluster {
    /// From now on the containers of the part `local` are those of this host.
    pub fn set_local(&mut self, local: Text) {
        self.local = Some(local);
    }

    /// From now on the part says this.
    ///
    /// Returns what was wrong in it, including what other parts tell of too and must not.
    ///
    /// # Errors
    ///
    /// When it is no cluster at all; what it said before stays.
    pub fn tell(&mut self, part: &Text, document: &Map) -> Result<Vec<Defect>, Refusal> {
        let node = Node::from_value(&Value::Map(document.clone()));
        let (snapshot, mut defects) = document::resolve(&node)?;
        self.replace(part, snapshot, &mut defects);
        Ok(defects)
    }

    /// From now on the part says nothing.
    pub fn forget(&mut self, part: &Text) {
        self.replace(part, Snapshot::default(), &mut Vec::new());
        self.parts.remove(part);
    }

    /// The names of all parts.
    pub fn parts(&self) -> impl Iterator<Item = &Text> {
        self.parts.keys()
    }

    /// What all parts tell together.
    pub fn snapshot(&self) -> Snapshot {
        let local = self.local.as_ref().and_then(|local| self.parts.get(local));
        let mut snapshot = self.whole.clone();
        snapshot.environment = local.or_else(|| self.parts.values().next()).and_then(|part| part.environment.clone());
        snapshot.local_host = local.and_then(|part| part.local_host.clone());
        snapshot
    }

    fn replace(&mut self, part: &Text, snapshot: Snapshot, defects: &mut Vec<Defect>) {
        let before = self.parts.remove(part).unwrap_or_default();
        let whole = &mut self.whole;
        let first = |claims: &[(Text, Arc<Network>)]| claims[0].1.clone();
        only(part, "hosts", (&before.hosts, &snapshot.hosts), &mut self.hosts, &mut whole.hosts, defects);
        let containers = (&before.containers, &snapshot.containers);
        only(part, "containers", containers, &mut self.containers, &mut whole.containers, defects);
        claim(part, (&before.networks, &snapshot.networks), &mut self.networks, &mut whole.networks, first);
        let stacks = (&before.stacks, &snapshot.stacks);
        claim(part, stacks, &mut self.stacks, &mut whole.stacks, |claims| claims[0].1.clone());
        claim(part, (&before.services, &snapshot.services), &mut self.services, &mut whole.services, service_of_all);
        self.parts.insert(part.clone(), snapshot);
    }
}

/// Takes over what changed in a part; `merged` makes one entity of what all parts say of it.
///
/// Returns the ids that the part told of and others had told of already.
fn claim<T: Entity>(
    part: &Text,
    (before, after): (&Table<T>, &Table<T>),
    claims: &mut Claims<T>,
    whole: &mut Table<T>,
    merged: impl Fn(&[(Text, Arc<T>)]) -> Arc<T>,
) -> Vec<Text> {
    let mut shared = Vec::new();
    for change in changes(before, after) {
        let (id, told) = match change {
            Change::Added(entity) | Change::Changed { new: entity, .. } => (entity.id(), Some(entity.clone())),
            Change::Removed(entity) => (entity.id(), None),
        };
        let all = claims.entry(id.clone()).or_default();
        match (all.binary_search_by(|(other, _)| other.cmp(part)), told) {
            (Ok(at), Some(entity)) => all[at].1 = entity,
            (Ok(at), None) => drop(all.remove(at)),
            (Err(at), Some(entity)) => all.insert(at, (part.clone(), entity)),
            (Err(_), None) => {}
        }
        if all.len() > 1 {
            shared.push(id.clone());
        }
        if all.is_empty() {
            claims.remove(id);
            whole.remove(id);
        } else {
            whole.insert(merged(all));
        }
    }
    shared
}

/// [`claim`] for entities that only one part can have: who comes later is left out, and told.
fn only<T: Entity>(
    part: &Text,
    list: &str,
    tables: (&Table<T>, &Table<T>),
    claims: &mut Claims<T>,
    whole: &mut Table<T>,
    defects: &mut Vec<Defect>,
) {
    for id in claim(part, tables, claims, whole, |claims| claims[0].1.clone()) {
        let all = &claims[&id];
        let name = tables.1.get(&id).and_then(|entity| entity.name()).unwrap_or(&id);
        let others: Vec<_> = all.iter().map(|(other, _)| &**other).filter(|other| **other != **part).collect();
        let problem = format!("{} has the uuid {id} too; the one of {} counts", others.join(", "), all[0].0);
        defects.push(Defect::hidden(format!("{list}/{name}"), problem));
    }
}

/// A service whose containers are on several hosts.
fn service_of_all(claims: &[(Text, Arc<Service>)]) -> Arc<Service> {
    let (_, first) = &claims[0];
    if claims.len() == 1 {
        return first.clone();
    }
    let members: Arc<[Text]> = claims.iter().flat_map(|(_, service)| service.members().iter().cloned()).collect();
    let links = Map::default().with(claims.iter().rev().flat_map(|(_, service)| service.links().iter().cloned()));
    let mut sidekicks: Vec<_> = claims.iter().flat_map(|(_, service)| texts(service, "sidekicks")).collect();
    sidekicks.sort_unstable();
    sidekicks.dedup();
    let index = claims.iter().filter_map(|(_, service)| service.fields().int("create_index")).min();
    let fields = first.fields().with([
        ("scale".into(), Value::Int(i64::try_from(members.len()).unwrap_or(i64::MAX))),
        ("sidekicks".into(), Value::list(sidekicks.into_iter().map(Value::Text))),
        ("create_index".into(), index.map_or(Value::Null, Value::Int)),
    ]);
    // It has the uuid and the name of the first one.
    Service::new(fields, members, links).map_or_else(|| first.clone(), Arc::new)
}

fn texts(service: &Service, key: &str) -> Vec<Text> {
    service.fields().list(key).iter().filter_map(Value::as_text).cloned().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn document(text: &str) -> Map {
        let value: Value = serde_json::from_str(text).unwrap();
        value.as_map().unwrap().clone()
    }

    /// A host with one container of `shop/web` for each of `containers`.
    fn host(name: &str, containers: &[u8]) -> Map {
        let list: Vec<_> = (containers.iter())
            .map(|n| {
                format!(
                    r#"{{"name": "web-{n}", "uuid": "{name}-{n}", "service": "shop/web", "host": "{name}", "primary_ip": "10.42.0.{n}"}}"#
                )
            })
            .collect();
        let services = if containers.is_empty() { "" } else { r#"{"name": "web", "stack": "shop"}"# };
        document(&format!(
            r#"{{"host": "{name}", "hosts": [{{"name": "{name}"}}], "services": [{services}], "containers": [{}]}}"#,
            list.join(", ")
        ))
    }

    fn members(cluster: &Cluster) -> Vec<String> {
        let snapshot = cluster.snapshot();
        snapshot.services.values().flat_map(|service| service.members().iter().map(ToString::to_string)).collect()
    }

    #[test]
    fn a_service_has_the_containers_of_all_hosts() {
        let mut cluster = Cluster::default();
        cluster.set_local("b".into());
        for (name, containers) in [("b", &[1, 2][..]), ("a", &[3]), ("c", &[])] {
            assert_eq!(cluster.tell(&name.into(), &host(name, containers)).unwrap(), []);
        }
        assert_eq!(members(&cluster), ["a-3", "b-1", "b-2"]);
        let snapshot = cluster.snapshot();
        assert_eq!(snapshot.services.len(), 1);
        assert_eq!(snapshot.services.values().next().unwrap().fields().int("scale"), Some(3));
        assert_eq!(snapshot.local_host.and_then(|host| host.name().cloned()).as_deref(), Some("b"));
        cluster.forget(&"b".into());
        assert_eq!(members(&cluster), ["a-3"]);
        assert_eq!(cluster.snapshot().local_host, None);
        cluster.forget(&"a".into());
        assert!(cluster.snapshot().services.is_empty() && cluster.snapshot().stacks.is_empty());
    }

    #[test]
    fn what_two_hosts_claim_is_told_and_belongs_to_the_first() {
        let mut cluster = Cluster::default();
        let twin = |name: &str| {
            document(&format!(
                r#"{{"hosts": [{{"name": "{name}"}}], "containers": [{{"name": "of-{name}", "uuid": "same"}}]}}"#
            ))
        };
        assert_eq!(cluster.tell(&"b".into(), &twin("b")).unwrap(), []);
        let defects = cluster.tell(&"a".into(), &twin("a")).unwrap();
        assert_eq!(defects.len(), 1, "{defects:?}");
        assert!(defects[0].to_string().contains("b has the uuid same too; the one of a counts"), "{}", defects[0]);
        assert_eq!(cluster.snapshot().containers["same"].name().unwrap().to_string(), "of-a");
        cluster.forget(&"a".into());
        assert_eq!(cluster.snapshot().containers["same"].name().unwrap().to_string(), "of-b");
    }

    #[test]
    fn a_part_that_is_no_cluster_changes_nothing() {
        let mut cluster = Cluster::default();
        cluster.tell(&"a".into(), &host("a", &[1])).unwrap();
        let refusal = cluster.tell(&"a".into(), &document(r#"{"hosts": 7}"#)).unwrap_err();
        assert!(refusal.to_string().contains("expected a list"), "{refusal}");
        assert_eq!(members(&cluster), ["a-1"]);
    }

    proptest! {
        /// However it came about, a cluster is what its parts say.
        #[test]
        fn the_way_does_not_matter(
            steps in prop::collection::vec((0_u8..4, prop::option::of(prop::collection::btree_set(1_u8..6, 0..4))), 1..20)
        ) {
            let mut cluster = Cluster::default();
            let mut last = BTreeMap::new();
            for (part, containers) in steps {
                let name = Text::from(format!("host-{part}"));
                if let Some(containers) = containers {
                    let containers: Vec<_> = containers.into_iter().collect();
                    cluster.tell(&name, &host(&name, &containers)).unwrap();
                    last.insert(name, containers);
                } else {
                    cluster.forget(&name);
                    last.remove(&name);
                }
            }
            let mut anew = Cluster::default();
            for (name, containers) in &last {
                anew.tell(name, &host(name, containers)).unwrap();
            }
            prop_assert_eq!(cluster.snapshot(), anew.snapshot());
            prop_assert!(cluster.parts().eq(last.keys()));
        }
    }
}
