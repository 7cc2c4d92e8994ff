//! What one part says, resolved on its own; a host's without what is not the host's to say.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use model::document::{self, Refusal};
use model::entity::{LINK_HOSTS, MARK};
use model::{Container, Defect, Entity, Host, Map, Network, Service, Snapshot, Stack, Table, Text, Value};

/// Beginning of the names of parts that a person or a program wrote, not a host.
pub(super) const DOCUMENTS: &str = "documents/";

/// Beginning of the names of parts that hosts wrote.
const HOSTS: &str = "hosts/";

/// Key of a host's document: since which revision etcd has had what is in its lists, entry by entry. Put there by the
/// follower, never by a host.
pub(crate) const SINCE: &str = "since";

/// Kind of a service that is a name for others, to which its links lead.
pub(super) const ALIAS: &str = "dnsService";

/// The lists of a host's document.
const LISTS: [&str; 5] = ["hosts", "containers", "networks", "services", "stacks"];

/// A document of a part as it is alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    pub(super) part: Part,
    pub(super) defects: Vec<Defect>,
}

impl Resolved {
    /// A resolved document of a part; it needs nothing but the document, so it can be made ahead of time.
    ///
    /// # Errors
    ///
    /// Fails if it is no cluster at all.
    pub fn of(part: &str, document: &Map) -> Result<Self, Refusal> {
        let Some(host) = host_of(part) else {
            let (snapshot, defects) = document::resolve_value(&Value::Map(document.clone()))?;
            return Ok(Self { part: Part::of(snapshot, &Since::default()), defects });
        };
        let words = words_of_host(host, document);
        let (snapshot, mut defects) = document::resolve_value(&Value::Map(words))?;
        if document.list("hosts").iter().filter_map(Value::as_map).any(|host| host.get("uuid").is_some()) {
            let problem = "no host chooses its own: it follows from environment and name";
            defects.push(Defect::ignored(format!("hosts/{host}/uuid"), problem));
        }
        let services = own_aliases(&snapshot);
        Ok(Self { part: Part::of(Snapshot { services, ..snapshot }, &Since::of(document)), defects })
    }
}

/// The services of a host, where aliases lead only to its own containers: it speaks for these, so nothing else has the alias by its
/// word.
fn own_aliases(snapshot: &Snapshot) -> Table<Service> {
    let services = &snapshot.services;
    if !services.values().any(|service| service.kind() == ALIAS) {
        return services.clone();
    }
    let path = |service: &Service| Some(format!("{}/{}", service.stack_name()?, service.name()?).to_lowercase());
    let served: HashSet<String> =
        services.values().filter(|service| !service.members().is_empty()).filter_map(|service| path(service)).collect();
    let host = snapshot.containers.values().find_map(|container| container.host_uuid().cloned());
    let hosts = Value::list(host.map(Value::Text));
    let own = |service: &Arc<Service>| {
        if service.kind() != ALIAS {
            return service.clone();
        }
        let links = service.links().iter().filter(|link| served.contains(&link.0.to_lowercase()));
        let links: Map = links.cloned().collect();
        let of_hosts = links.iter().map(|(link, _)| (link.clone(), hosts.clone())).collect();
        let fields = service.fields().with([(LINK_HOSTS.into(), Value::Map(of_hosts))]);
        Service::new(fields, service.members().clone(), links).map_or_else(|| service.clone(), Arc::new)
    };
    services.values().map(own).collect()
}

/// The host that speaks in a part; `None` in a document.
pub(super) fn host_of(part: &str) -> Option<&str> {
    if part.starts_with(DOCUMENTS) { None } else { Some(part.strip_prefix(HOSTS).unwrap_or(part)) }
}

/// A host's document without what is not the host's to say: other hosts, containers elsewhere, and uuids of all but its
/// containers. These alone stand in the keys, so that etcd dates the claim to each.
fn words_of_host(host: &str, document: &Map) -> Map {
    let mut own = Vec::new();
    for list in LISTS {
        let Some(entries) = document.get(list).and_then(Value::as_list) else { continue };
        let is_own = |entry: &&Value| {
            let name = entry.as_map().and_then(|entry| entry.text("name"));
            list != "hosts" || name.is_some_and(|name| **name == *host)
        };
        let word = |entry: &Value| match entry {
            Value::Map(entry) => Value::Map(word_of_host(host, list, entry)),
            other => other.clone(),
        };
        own.push((list.into(), Value::list(entries.iter().filter(is_own).map(word))));
    }
    if let Some(environment) = document.map("environment") {
        own.push(("environment".into(), Value::Map(environment.without("uuid"))));
    }
    document.without(SINCE).with(own)
}

fn word_of_host(host: &str, list: &str, entry: &Map) -> Map {
    if list != "containers" {
        return entry.without("uuid");
    }
    let is_elsewhere = entry.text("host").is_none_or(|said| **said != *host);
    let here = || entry.with([("host".into(), Value::text(host))]);
    let entry = if is_elsewhere { here() } else { entry.clone() };
    if entry.text("uuid").is_some_and(|uuid| uuid.contains(MARK)) { entry.without("uuid") } else { entry }
}

/// Since when etcd has had the entries of a host's document, by list and what names them.
#[derive(Default)]
struct Since(HashMap<(&'static str, Text), i64>);

impl Since {
    fn of(document: &Map) -> Self {
        let Some(since) = document.map(SINCE) else { return Self::default() };
        let mut found = HashMap::new();
        for list in LISTS {
            for (entry, revision) in document.list(list).iter().zip(since.list(list)) {
                let (Some(entry), Some(revision)) = (entry.as_map(), revision.as_int()) else { continue };
                let name = entry.text("name").cloned();
                let name = match list {
                    "containers" => entry.text("uuid").cloned().or(name),
                    "services" => name
                        .zip(entry.text("stack"))
                        .map(|(name, stack)| path(&[stack, entry.text("sidekick_of").unwrap_or(&name), &name])),
                    _ => name,
                };
                // What etcd does not date is the youngest.
                found.extend(name.filter(|_| revision > 0).map(|name| ((list, name), revision)));
            }
        }
        Self(found)
    }

    fn get(&self, list: &'static str, name: Option<&Text>) -> Option<i64> {
        if self.0.is_empty() { None } else { self.0.get(&(list, name?.clone())).copied() }
    }
}

/// Names, joined and in lower case: DNS does not distinguish cases, so what differs in case alone is the same.
fn path(names: &[&str]) -> Text {
    names.join("\0").to_lowercase().into()
}

/// What a part says of an entity.
#[derive(Debug)]
pub(super) struct Claim<T> {
    /// What it is claimed by: equal keys are the same.
    pub(super) key: Text,
    /// The revision since which etcd has had it.
    pub(super) since: i64,
    pub(super) entity: Arc<T>,
}

impl<T> Clone for Claim<T> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), since: self.since, entity: self.entity.clone() }
    }
}

impl<T: PartialEq> PartialEq for Claim<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.since == other.since && self.entity == other.entity
    }
}

/// What a part reports: entities in the order of their keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Part {
    pub(super) environment: Option<Map>,
    pub(super) local_host: Option<Arc<Host>>,
    pub(super) containers: Vec<Claim<Container>>,
    pub(super) services: Vec<Claim<Service>>,
    pub(super) stacks: Vec<Claim<Stack>>,
    pub(super) hosts: Vec<Claim<Host>>,
    pub(super) networks: Vec<Claim<Network>>,
}

impl Part {
    fn of(snapshot: Snapshot, since: &Since) -> Self {
        let by_uuid = |list, uuid: &Text, name: Option<&Text>| {
            let since = since.get(list, Some(uuid)).or_else(|| since.get(list, name));
            (uuid.clone(), since)
        };
        let service = |service: &Service| {
            let (name, primary) = (service.name().map_or("", |name| name), service.primary_name());
            let stack = service.stack_name().map_or("", |stack| stack);
            (service_key(service), since.get("services", Some(&path(&[stack, primary, name]))))
        };
        let services = claims(&snapshot.services, service);
        // Most stacks have no key of their own: they are as old as the oldest of their services.
        let mut oldest: HashMap<Text, i64> = HashMap::new();
        for claim in &services {
            let key = stack_key(claim.entity.environment_uuid(), claim.entity.stack_name());
            let since = oldest.entry(key).or_insert(i64::MAX);
            *since = claim.since.min(*since);
        }
        let stack = |stack: &Stack| {
            let key = stack_key(stack.environment_uuid(), stack.name());
            let since = since.get("stacks", stack.name()).into_iter().chain(oldest.get(&key).copied()).min();
            (key, since)
        };
        Self {
            environment: snapshot.environment,
            local_host: snapshot.local_host,
            containers: claims(&snapshot.containers, |one| by_uuid("containers", one.uuid(), one.name())),
            services,
            stacks: claims(&snapshot.stacks, stack),
            hosts: claims(&snapshot.hosts, |one| by_uuid("hosts", one.uuid(), one.name())),
            networks: claims(&snapshot.networks, |one| by_uuid("networks", one.uuid(), one.name())),
        }
    }
}

/// The entities of a table as claims, in the order of their keys and each key once.
fn claims<T: Entity>(table: &Table<T>, claimed: impl Fn(&T) -> (Text, Option<i64>)) -> Vec<Claim<T>> {
    let claim = |entity: &Arc<T>| {
        let (key, since) = claimed(entity);
        Claim { key, since: since.unwrap_or(i64::MAX), entity: entity.clone() }
    };
    let mut claims: Vec<_> = table.values().map(claim).collect();
    claims.sort_by(|a, b| a.key.cmp(&b.key));
    claims.dedup_by(|a, b| a.key == b.key);
    claims
}

/// Services are the same by their names: a host does not choose their uuids, and documents need not.
fn service_key(service: &Service) -> Text {
    let text = |text: Option<&Text>| text.cloned().unwrap_or_default();
    let (environment, stack) = (text(service.environment_uuid()), text(service.stack_name()));
    path(&[&environment, &stack, service.primary_name(), &text(service.name())])
}

pub(super) fn stack_key(environment: Option<&Text>, name: Option<&Text>) -> Text {
    path(&[environment.map_or("", |uuid| uuid), name.map_or("", |name| name)])
}
