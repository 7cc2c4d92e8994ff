//! One snapshot out of the documents of many hosts.
//!
//! Each part is resolved on its own, so a change costs what its host has; what several hosts report (a service with
//! containers on all of them, a network that each has) becomes one entity.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use model::document::{self, Refusal};
use model::{Container, Defect, Entity, Host, Map, Network, Service, Snapshot, Stack, Table, Text, Value};

use crate::host::PORTS_MAX;

/// Beginning of the names of parts that a person or a program wrote, not a host.
const DOCUMENTS: &str = "documents/";

/// A cluster that is assembled from parts.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    /// The part of the host that this process is on.
    local: Option<Text>,
    parts: BTreeMap<Text, Part>,
    containers: Merged<Container>,
    services: Merged<Service>,
    stacks: Merged<Stack>,
    hosts: Merged<Host>,
    networks: Merged<Network>,
}

/// A document of a part as it is alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    part: Part,
    defects: Vec<Defect>,
}

impl Resolved {
    /// A resolved document; it needs nothing but the document, so it can be made ahead of time.
    ///
    /// # Errors
    ///
    /// Fails if it is no cluster at all.
    pub fn of(document: &Map) -> Result<Self, Refusal> {
        let (snapshot, defects) = document::resolve_value(&Value::Map(document.clone()))?;
        Ok(Self { part: Part::of(snapshot), defects })
    }
}

/// What a part reports: entities in the order of their ids.
#[derive(Clone, Debug, Default, PartialEq)]
struct Part {
    environment: Option<Map>,
    local_host: Option<Arc<Host>>,
    containers: Vec<Arc<Container>>,
    services: Vec<Arc<Service>>,
    stacks: Vec<Arc<Stack>>,
    hosts: Vec<Arc<Host>>,
    networks: Vec<Arc<Network>>,
}

impl Part {
    fn of(snapshot: Snapshot) -> Self {
        Self {
            environment: snapshot.environment,
            local_host: snapshot.local_host,
            containers: snapshot.containers.values().cloned().collect(),
            services: snapshot.services.values().cloned().collect(),
            stacks: snapshot.stacks.values().cloned().collect(),
            hosts: snapshot.hosts.values().cloned().collect(),
            networks: snapshot.networks.values().cloned().collect(),
        }
    }
}

impl Cluster {
    /// From now on the part `local` is that of this host, and counts before what others report of this host.
    pub(crate) fn set_local(&mut self, local: &Text) {
        if self.local.as_ref() == Some(local) {
            return;
        }
        let before = self.local.replace(local.clone());
        for part in before.iter().chain([local]).filter_map(|name| self.parts.get(name)) {
            self.containers.touch(&part.containers);
            self.services.touch(&part.services);
            self.stacks.touch(&part.stacks);
            self.hosts.touch(&part.hosts);
            self.networks.touch(&part.networks);
        }
    }

    /// From now on the part says this.
    ///
    /// Returns its defects, including entities that other parts report too and must not.
    ///
    /// # Errors
    ///
    /// Fails if it is no cluster at all; what it said before stays.
    pub(crate) fn update(&mut self, part: &Text, document: &Map) -> Result<Vec<Defect>, Refusal> {
        Ok(self.take_in(part, Resolved::of(document)?))
    }

    /// [`Cluster::update`] with a document that was resolved already.
    pub(crate) fn take_in(&mut self, part: &Text, Resolved { part: now, mut defects }: Resolved) -> Vec<Defect> {
        self.replace(part, now, &mut defects);
        defects
    }

    /// From now on the part says nothing.
    pub(crate) fn forget(&mut self, part: &Text) {
        self.replace(part, Part::default(), &mut Vec::new());
        self.parts.remove(part);
    }

    /// All parts merged.
    pub(crate) fn snapshot(&mut self) -> Snapshot {
        let name = self.local.as_ref();
        let local = name.and_then(|local| self.parts.get(local));
        Snapshot {
            environment: local.or_else(|| self.parts.values().next()).and_then(|part| part.environment.clone()),
            local_host: local.and_then(|part| part.local_host.clone()),
            containers: self.containers.whole(|claims| owner(claims, name).1.clone()),
            services: self.services.whole(|claims| service_of_all(claims, name)),
            stacks: self.stacks.whole(|claims| stack_of_all(claims, name)),
            hosts: self.hosts.whole(|claims| owner(claims, name).1.clone()),
            networks: self.networks.whole(|claims| speaker(claims, name).1.clone()),
            ..Snapshot::default()
        }
    }

    fn replace(&mut self, name: &Text, now: Part, defects: &mut Vec<Defect>) {
        let part = self.parts.entry(name.clone()).or_default();
        (part.environment, part.local_host) = (now.environment, now.local_host);
        let shared = self.hosts.update(name, &mut part.hosts, now.hosts);
        defects.extend(shared.iter().map(|id| self.hosts.defect(name, self.local.as_ref(), "hosts", id)));
        let shared = self.containers.update(name, &mut part.containers, now.containers);
        defects.extend(shared.iter().map(|id| self.containers.defect(name, self.local.as_ref(), "containers", id)));
        self.networks.update(name, &mut part.networks, now.networks);
        self.stacks.update(name, &mut part.stacks, now.stacks);
        self.services.update(name, &mut part.services, now.services);
    }
}

/// A part's version of an entity.
type Claim<T> = (Text, Arc<T>);

/// Which part counts for what only one part can have: this host's own, else that of the first one by name.
fn owner<'c, T>(claims: &'c [Claim<T>], local: Option<&Text>) -> &'c Claim<T> {
    claims.iter().find(|(part, _)| Some(part) == local).unwrap_or(&claims[0])
}

/// Which part counts for what several parts share: a document's, else this host's own, else that of the first one by
/// name.
fn speaker<'c, T>(claims: &'c [Claim<T>], local: Option<&Text>) -> &'c Claim<T> {
    // In the order of names documents come before hosts.
    if claims[0].0.starts_with(DOCUMENTS) { &claims[0] } else { owner(claims, local) }
}

/// What the parts say of the entities of one kind, together.
#[derive(Debug)]
struct Merged<T> {
    /// The parts that report an entity, in the order of their names.
    claims: HashMap<Text, Vec<Claim<T>>>,
    /// What follows from it, but for the entities below.
    whole: Table<T>,
    /// Entities that changed since. What many parts report at once is merged once.
    touched: Vec<Text>,
}

impl<T> Default for Merged<T> {
    fn default() -> Self {
        Self { claims: HashMap::new(), whole: Table::default(), touched: Vec::new() }
    }
}

impl<T: Entity + PartialEq> Merged<T> {
    /// Replaces a part's entities; `own` are those it had.
    ///
    /// Returns the ids of what is new or changed and is reported by others too.
    fn update(&mut self, part: &Text, own: &mut Vec<Arc<T>>, mut now: Vec<Arc<T>>) -> Vec<Text> {
        let mut shared = Vec::new();
        let mut before = std::mem::take(own).into_iter().peekable();
        for entity in &mut now {
            while let Some(gone) = before.next_if(|before| before.id() < entity.id()) {
                self.retract(part, gone.id());
            }
            match before.next_if(|before| before.id() == entity.id()) {
                // The equal one of before stays, so that it is there once.
                Some(same) if same == *entity => *entity = same,
                _ => {
                    if self.claim(part, entity) > 1 {
                        shared.push(entity.id().clone());
                    }
                }
            }
        }
        for gone in before {
            self.retract(part, gone.id());
        }
        *own = now;
        shared
    }

    /// Something is to be made of these entities again.
    fn touch(&mut self, entities: &[Arc<T>]) {
        self.touched.extend(entities.iter().map(|entity| entity.id().clone()));
    }

    /// Registers a part's claim to an entity; returns how many there are.
    fn claim(&mut self, part: &Text, entity: &Arc<T>) -> usize {
        // Most entities are reported by one part.
        let claims = self.claims.entry(entity.id().clone()).or_insert_with(|| Vec::with_capacity(1));
        match claims.binary_search_by(|(other, _)| other.cmp(part)) {
            Ok(at) => claims[at].1 = entity.clone(),
            Err(at) => claims.insert(at, (part.clone(), entity.clone())),
        }
        self.touched.push(entity.id().clone());
        claims.len()
    }

    /// Removes a part's claim to an entity.
    fn retract(&mut self, part: &Text, id: &Text) {
        let Some(claims) = self.claims.get_mut(id) else { return };
        claims.retain(|(other, _)| other != part);
        if claims.is_empty() {
            self.claims.remove(id);
        }
        self.touched.push(id.clone());
    }

    /// All entities; `merged` makes one of what the parts say of it.
    fn whole(&mut self, merged: impl Fn(&[Claim<T>]) -> Arc<T>) -> Table<T> {
        let mut touched = std::mem::take(&mut self.touched);
        if touched.len() > self.whole.len() {
            self.whole = self.claims.values().map(|claims| merged(claims)).collect();
        } else {
            touched.sort_unstable();
            touched.dedup();
            for id in touched {
                match self.claims.get(&id) {
                    Some(claims) => self.whole.insert(merged(claims)),
                    None => self.whole.remove(&id),
                }
            }
        }
        self.whole.clone()
    }

    /// What is wrong with an entity that only one part can have: all but one are left out, which is reported.
    fn defect(&self, part: &Text, local: Option<&Text>, list: &str, id: &Text) -> Defect {
        let claims = &self.claims[id];
        let own = claims.iter().find(|(other, _)| other == part);
        let name = own.and_then(|(_, entity)| entity.name()).unwrap_or(id);
        let others: Vec<_> = claims.iter().map(|(other, _)| &**other).filter(|other| **other != **part).collect();
        let problem =
            format!("{} has the uuid {id} too; the one of {} counts", others.join(", "), owner(claims, local).0);
        Defect::hidden(format!("{list}/{name}"), problem)
    }
}

/// A service whose containers are on several hosts.
fn service_of_all(claims: &[Claim<Service>], local: Option<&Text>) -> Arc<Service> {
    let (_, first) = speaker(claims, local);
    if claims.len() == 1 {
        return first.clone();
    }
    let members: Arc<[Text]> = claims.iter().flat_map(|(_, service)| service.members().iter().cloned()).collect();
    let links = Map::default().with(claims.iter().rev().flat_map(|(_, service)| service.links().iter().cloned()));
    let mut sidekicks: Vec<_> = claims.iter().flat_map(|(_, service)| texts(service, "sidekicks")).collect();
    sidekicks.sort_unstable();
    sidekicks.dedup();
    let index = claims.iter().filter_map(|(_, service)| service.fields().int("create_index")).min();
    // What a document says of ports counts; among hosts each has ports that the others need not have.
    let documented = claims[0].0.starts_with(DOCUMENTS);
    let ports = ["ports", "expose"].into_iter().filter(|_| !documented).filter_map(|key| {
        let mut all = texts(first, key);
        let mut seen: HashSet<Text> = all.iter().cloned().collect();
        let own = all.len();
        all.extend(claims.iter().flat_map(|(_, service)| texts(service, key)).filter(|port| seen.insert(port.clone())));
        all.truncate(PORTS_MAX.max(own));
        (all.len() > own).then(|| (Text::from(key), Value::list(all.into_iter().map(Value::Text))))
    });
    let fields = first.fields().with(ports).with([
        ("scale".into(), Value::Int(i64::try_from(members.len()).unwrap_or(i64::MAX))),
        ("sidekicks".into(), Value::list(sidekicks.into_iter().map(Value::Text))),
        ("create_index".into(), index.map_or(Value::Null, Value::Int)),
    ]);
    // All else is as the one says whose word counts.
    Service::new(fields, members, links).map_or_else(|| first.clone(), Arc::new)
}

/// A stack, which exists by labels of containers alone when only hosts report it.
///
/// What hosts report comes from their engines; everyone who may start a container chooses the names in it.
fn stack_of_all(claims: &[Claim<Stack>], local: Option<&Text>) -> Arc<Stack> {
    let (part, stack) = speaker(claims, local);
    if part.starts_with(DOCUMENTS) { stack.clone() } else { Arc::new(stack.told_by_labels()) }
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

    fn members(cluster: &mut Cluster) -> Vec<String> {
        let snapshot = cluster.snapshot();
        snapshot.services.values().flat_map(|service| service.members().iter().map(ToString::to_string)).collect()
    }

    #[test]
    fn a_service_has_the_containers_of_all_hosts() {
        let mut cluster = Cluster::default();
        cluster.set_local(&"b".into());
        for (name, containers) in [("b", &[1, 2][..]), ("a", &[3]), ("c", &[])] {
            assert_eq!(cluster.update(&name.into(), &host(name, containers)).unwrap(), []);
        }
        assert_eq!(members(&mut cluster), ["a-3", "b-1", "b-2"]);
        let snapshot = cluster.snapshot();
        assert_eq!(snapshot.services.len(), 1);
        assert_eq!(snapshot.services.values().next().unwrap().fields().int("scale"), Some(3));
        assert_eq!(snapshot.local_host.and_then(|host| host.name().cloned()).as_deref(), Some("b"));
        cluster.forget(&"b".into());
        assert_eq!(members(&mut cluster), ["a-3"]);
        assert_eq!(cluster.snapshot().local_host, None);
        cluster.forget(&"a".into());
        assert!(cluster.snapshot().services.is_empty() && cluster.snapshot().stacks.is_empty());
    }

    #[test]
    fn a_host_without_ports_takes_none_from_a_service_that_has_them_elsewhere() {
        let part = |host: &str, ports: &str| {
            document(&format!(
                r#"{{"hosts": [{{"name": "{host}", "uuid": "{host}"}}], "services": [{{"name": "web", "stack": "shop", "ports": [{ports}]}}]}}"#
            ))
        };
        let shown = |parts: &[(&str, &str)]| {
            let mut cluster = Cluster::default();
            cluster.set_local(&"hosts/a".into());
            for (name, ports) in parts {
                assert_eq!(cluster.update(&(*name).into(), &part(name, ports)).unwrap(), []);
            }
            let snapshot = cluster.snapshot();
            let service = snapshot.services.values().next().unwrap();
            texts(service, "ports").iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let (none, ports, more) =
            (("hosts/a", ""), ("hosts/b", r#""80:80/tcp""#), ("hosts/c", r#""80:80/tcp", "81:81/tcp""#));
        assert_eq!(shown(&[none, ports, more]), ["80:80/tcp", "81:81/tcp"]);
        assert_eq!(shown(&[none, ("hosts/b", "")]), [""; 0]);
        assert_eq!(shown(&[("documents/shop", ""), ports]), [""; 0], "a document's word counts");
    }

    #[test]
    fn what_two_hosts_claim_is_told_and_belongs_to_the_first() {
        let mut cluster = Cluster::default();
        let twin = |name: &str| {
            document(&format!(
                r#"{{"hosts": [{{"name": "{name}"}}], "containers": [{{"name": "of-{name}", "uuid": "same"}}]}}"#
            ))
        };
        assert_eq!(cluster.update(&"b".into(), &twin("b")).unwrap(), []);
        let defects = cluster.update(&"a".into(), &twin("a")).unwrap();
        assert_eq!(defects.len(), 1, "{defects:?}");
        assert!(defects[0].to_string().contains("b has the uuid same too; the one of a counts"), "{}", defects[0]);
        assert_eq!(cluster.snapshot().containers["same"].name().unwrap().to_string(), "of-a");
        cluster.forget(&"a".into());
        assert_eq!(cluster.snapshot().containers["same"].name().unwrap().to_string(), "of-b");
    }

    #[test]
    fn no_other_host_overrules_what_this_one_says_of_itself() {
        let part = |address: &str, vip: &str| {
            document(&format!(
                r#"{{"hosts": [{{"name": "b", "uuid": "h", "agent_ip": "{address}"}}],
                    "services": [{{"name": "db", "stack": "data", "vip": "{vip}"}}],
                    "containers": [{{"name": "db-1", "uuid": "c", "service": "data/db", "primary_ip": "{address}"}}]}}"#
            ))
        };
        let (own, other) = (part("10.42.0.1", "10.42.1.1"), part("192.0.2.77", "192.0.2.66"));
        // In either order, and whether or not it is known by then which part is that of this host.
        for order in [["local", "hosts/a", "hosts/b"], ["hosts/a", "hosts/b", "local"], ["hosts/b", "local", "hosts/a"]]
        {
            let mut cluster = Cluster::default();
            for step in order {
                match step {
                    "local" => cluster.set_local(&"hosts/b".into()),
                    "hosts/a" => drop(cluster.update(&step.into(), &other).unwrap()),
                    _ => drop(cluster.update(&step.into(), &own).unwrap()),
                }
                cluster.snapshot();
            }
            let snapshot = cluster.snapshot();
            let address = |fields: &Map, key: &str| fields.text(key).map(ToString::to_string);
            let service = snapshot.services.values().next().unwrap();
            assert_eq!(
                address(snapshot.containers["c"].fields(), "primary_ip").as_deref(),
                Some("10.42.0.1"),
                "{order:?}"
            );
            assert_eq!(address(snapshot.hosts["h"].fields(), "agent_ip").as_deref(), Some("10.42.0.1"), "{order:?}");
            assert_eq!(address(service.fields(), "vip").as_deref(), Some("10.42.1.1"), "{order:?}");
            let defects = cluster.update(&"hosts/a".into(), &part("192.0.2.78", "192.0.2.66")).unwrap();
            assert!(
                defects.iter().all(|defect| defect.to_string().contains("the one of hosts/b counts")),
                "{defects:?}"
            );
            // What a document says of a service counts on every host.
            let vip = r#"{"services": [{"name": "db", "stack": "data", "vip": "10.42.9.9"}]}"#;
            cluster.update(&"documents/d".into(), &document(vip)).unwrap();
            let snapshot = cluster.snapshot();
            let service = snapshot.services.values().next().unwrap();
            assert_eq!(address(service.fields(), "vip").as_deref(), Some("10.42.9.9"), "{order:?}");
            assert_eq!(address(snapshot.containers["c"].fields(), "primary_ip").as_deref(), Some("10.42.0.1"));
        }
    }

    #[test]
    fn a_part_that_is_no_cluster_changes_nothing() {
        let mut cluster = Cluster::default();
        cluster.update(&"a".into(), &host("a", &[1])).unwrap();
        let refusal = cluster.update(&"a".into(), &document(r#"{"hosts": 7}"#)).unwrap_err();
        assert!(refusal.to_string().contains("expected a list"), "{refusal}");
        assert_eq!(members(&mut cluster), ["a-1"]);
    }

    #[test]
    fn a_stack_is_named_by_documents_and_not_by_labels_of_containers() {
        let mut cluster = Cluster::default();
        cluster.update(&"hosts/b".into(), &host("b", &[1])).unwrap();
        let of_labels = |cluster: &mut Cluster| {
            cluster.snapshot().stacks.values().map(|stack| stack.is_from_labels()).collect::<Vec<_>>()
        };
        assert_eq!(of_labels(&mut cluster), [true]);
        let outside = document(r#"{"services": [{"name": "mail", "stack": "shop"}]}"#);
        cluster.update(&"documents/outside".into(), &outside).unwrap();
        assert_eq!(of_labels(&mut cluster), [false]);
        cluster.forget(&"documents/outside".into());
        assert_eq!(of_labels(&mut cluster), [true]);
        // It survives what followers and files have of a snapshot.
        let (again, ..) = model::objects::read(cluster.snapshot().objects());
        assert_eq!(again.stacks.values().map(|stack| stack.is_from_labels()).collect::<Vec<_>>(), [true]);
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
                    cluster.update(&name, &host(&name, &containers)).unwrap();
                    last.insert(name, containers);
                } else {
                    cluster.forget(&name);
                    last.remove(&name);
                }
            }
            let mut anew = Cluster::default();
            for (name, containers) in &last {
                anew.update(name, &host(name, containers)).unwrap();
            }
            prop_assert_eq!(cluster.snapshot(), anew.snapshot());
            prop_assert!(cluster.parts.keys().eq(last.keys()));
        }
    }
}
