//! One snapshot out of the documents of many hosts.
//!
//! Each part is resolved on its own, so a change costs what its host has; what several hosts report (a service with
//! containers on all of them, a network that each has) becomes one entity.
//!
//! A host speaks for itself: for its own entity, its containers, and what services these belong to. What several parts
//! claim is decided by one order: documents and this host's own part come first, then the claim that etcd has had for
//! longest. So no host takes anything from another by its name, or by claiming it later.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use model::document::{self, Refusal};
use model::{Container, Defect, Entity, Host, Map, Network, Service, Snapshot, Stack, Table, Text, Value};

use crate::host::PORTS_MAX;
use crate::owners::{OWNERS_PART, Owners};

/// Beginning of the names of parts that a person or a program wrote, not a host.
const DOCUMENTS: &str = "documents/";

/// Beginning of the names of parts that hosts wrote.
const HOSTS: &str = "hosts/";

/// Key of a host's document: since which revision etcd has had what is in its lists, entry by entry. Put there by the
/// follower, never by a host.
pub(crate) const SINCE: &str = "since";

/// Separates a uuid that is another's already from the host that says it. No uuid of a host's own has it.
const MARK: char = '@';

/// Most defects of one part about what is another's to say that are reported.
const DISPUTES_MAX: usize = 100;

/// A cluster that is assembled from parts.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    /// The part of the host that this process is on.
    local: Option<Text>,
    parts: BTreeMap<Text, Part>,
    owners: Owners,
    containers: Merged<Container>,
    services: Merged<Service>,
    stacks: Merged<Stack>,
    hosts: Merged<Host>,
    networks: Merged<Network>,
    /// The environment while no part is this host's, and whether it is known.
    environment: (Option<Map>, bool),
    /// Whether [`Cluster::disputes`] may be others than before.
    disputed: bool,
}

/// A document of a part as it is alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    part: Part,
    defects: Vec<Defect>,
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
        Ok(Self { part: Part::of(snapshot, &Since::of(document)), defects })
    }
}

/// The host that speaks in a part; `None` in a document.
fn host_of(part: &str) -> Option<&str> {
    if part.starts_with(DOCUMENTS) { None } else { Some(part.strip_prefix(HOSTS).unwrap_or(part)) }
}

/// A host's document without what is not the host's to say: other hosts, containers elsewhere, and uuids of all but its
/// containers. These alone stand in the keys, so that etcd dates the claim to each.
fn words_of_host(host: &str, document: &Map) -> Map {
    let mut own = Vec::new();
    for list in ["hosts", "containers", "networks", "services", "stacks"] {
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
        for list in ["hosts", "containers", "networks", "services", "stacks"] {
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
struct Claim<T> {
    /// What it is claimed by: equal keys are the same.
    key: Text,
    /// The revision since which etcd has had it.
    since: i64,
    entity: Arc<T>,
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
struct Part {
    environment: Option<Map>,
    local_host: Option<Arc<Host>>,
    containers: Vec<Claim<Container>>,
    services: Vec<Claim<Service>>,
    stacks: Vec<Claim<Stack>>,
    hosts: Vec<Claim<Host>>,
    networks: Vec<Claim<Network>>,
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

fn stack_key(environment: Option<&Text>, name: Option<&Text>) -> Text {
    path(&[environment.map_or("", |uuid| uuid), name.map_or("", |name| name)])
}

impl Cluster {
    /// From now on the part `local` is that of this host, and counts before what others report of this host.
    pub(crate) fn set_local(&mut self, local: &Text) {
        if self.local.as_ref() != Some(local) {
            self.local = Some(local.clone());
            self.touch_all();
        }
    }

    /// From now on the part says this.
    ///
    /// Returns its defects, but for [`Self::disputes`].
    ///
    /// # Errors
    ///
    /// Fails if it is no cluster at all; what it said before stays.
    pub(crate) fn update(&mut self, part: &Text, document: &Map) -> Result<Vec<Defect>, Refusal> {
        if **part == *OWNERS_PART {
            let owners = Owners::parse(document).map_err(|problem| Refusal { problem, at: None })?;
            self.set_owners(owners);
            return Ok(Vec::new());
        }
        Ok(self.take_in(part, Resolved::of(part, document)?))
    }

    /// [`Cluster::update`] with a document that was resolved already.
    pub(crate) fn take_in(&mut self, part: &Text, Resolved { part: now, defects }: Resolved) -> Vec<Defect> {
        self.replace(part, now);
        defects
    }

    /// From now on the part says nothing.
    pub(crate) fn forget(&mut self, part: &Text) {
        if **part == *OWNERS_PART {
            return self.set_owners(Owners::default());
        }
        self.replace(part, Part::default());
        self.parts.remove(part);
        self.environment.1 = false;
    }

    /// All parts merged.
    pub(crate) fn snapshot(&mut self) -> Snapshot {
        if !self.environment.1 {
            self.environment = (self.elected_environment(), true);
        }
        let own = self.local.as_ref().and_then(|local| self.parts.get(local));
        let environment = match own {
            Some(part) => part.environment.clone(),
            None => self.environment.0.clone(),
        };
        let local_host = own.and_then(|part| part.local_host.clone());
        let Self { local, owners, containers, services, stacks, hosts, networks, .. } = self;
        let order = Order { local: local.as_ref(), owners };
        let whole_stacks = stacks.whole(|_, claims| order.stack(claims).into_iter().collect());
        if std::mem::take(&mut stacks.renamed) {
            services.touch_all();
        }
        let whole_hosts = hosts.whole(|_, claims| order.hosts(claims));
        let (stacks, hosts) = (&*stacks, &*hosts);
        let is_plain = hosts.contested.is_empty() && containers.contested.is_empty();
        let whole_containers = containers.whole(|all, claims| {
            let container = |said: &Said<Container>| {
                if is_plain { said.claim.entity.clone() } else { order.container(all, &hosts.claims, said) }
            };
            claims.iter().map(container).collect()
        });
        let containers = &*containers;
        Snapshot {
            environment,
            local_host,
            services: services.whole(|_, claims| order.service(claims, containers, stacks).into_iter().collect()),
            networks: networks.whole(|_, claims| vec![order.speaker(claims).claim.entity.clone()]),
            containers: whole_containers,
            stacks: whole_stacks,
            hosts: whole_hosts,
            ..Snapshot::default()
        }
    }

    /// What parts say that is another's to say, by part; `None` when that cannot have changed since.
    pub(crate) fn disputes(&mut self) -> Option<HashMap<Text, Vec<Defect>>> {
        if !std::mem::take(&mut self.disputed) {
            return None;
        }
        let order = Order { local: self.local.as_ref(), owners: &self.owners };
        let mut found: HashMap<Text, Vec<Defect>> = HashMap::new();
        let mut add = |part: &Text, defect: Defect| {
            let defects = found.entry(part.clone()).or_default();
            if defects.len() < DISPUTES_MAX {
                defects.push(defect);
            }
        };
        self.hosts.disputes(&order, "hosts", &mut add);
        self.containers.disputes(&order, "containers", &mut add);
        if !self.owners.is_empty() {
            for (name, part) in &self.parts {
                for claim in &part.services {
                    let (stack, service) = (claim.entity.stack_name(), claim.entity.name());
                    let (Some(stack), Some(service)) = (stack, service) else { continue };
                    if let Some(tenant) = order.refused(name, Some(stack)) {
                        let problem = format!(
                            "the stack belongs to {tenant}, and this host is none of theirs: its containers are no members"
                        );
                        add(name, Defect::ignored(format!("services/{stack}/{service}"), problem));
                    }
                }
            }
        }
        Some(found)
    }

    fn set_owners(&mut self, owners: Owners) {
        self.owners = owners;
        self.disputed = true;
        self.services.touch_all();
        self.stacks.touch_all();
    }

    fn touch_all(&mut self) {
        self.disputed = true;
        self.containers.touch_all();
        self.services.touch_all();
        self.stacks.touch_all();
        self.hosts.touch_all();
        self.networks.touch_all();
    }

    /// The environment where no part is this host's: that of the first document, else that of most hosts.
    fn elected_environment(&self) -> Option<Map> {
        let mut votes: BTreeMap<&Text, (usize, &Map)> = BTreeMap::new();
        for (name, part) in &self.parts {
            let Some(environment) = &part.environment else { continue };
            if host_of(name).is_none() {
                return Some(environment.clone());
            }
            if let Some(uuid) = environment.text("uuid") {
                votes.entry(uuid).or_insert((0, environment)).0 += 1;
            }
        }
        votes.into_values().max_by_key(|(votes, _)| *votes).map(|(_, environment)| environment.clone())
    }

    fn replace(&mut self, name: &Text, now: Part) {
        let part = self.parts.entry(name.clone()).or_default();
        self.environment.1 &= part.environment == now.environment;
        (part.environment, part.local_host) = (now.environment, now.local_host);
        let mut rivals = BTreeSet::new();
        self.hosts.update(name, &mut part.hosts, now.hosts, &mut rivals);
        self.containers.update(name, &mut part.containers, now.containers, &mut rivals);
        let services = part.services.len();
        self.networks.update(name, &mut part.networks, now.networks, &mut BTreeSet::new());
        self.stacks.update(name, &mut part.stacks, now.stacks, &mut BTreeSet::new());
        self.services.update(name, &mut part.services, now.services, &mut BTreeSet::new());
        self.disputed |= !rivals.is_empty() || (!self.owners.is_empty() && services + part.services.len() > 0);
        // Who has a uuid alone may be another one now, and what refers to it is called otherwise.
        for part in rivals.iter().filter_map(|rival| self.parts.get(rival)) {
            self.hosts.touch(&part.hosts);
            self.containers.touch(&part.containers);
            self.services.touch(&part.services);
        }
    }
}

/// A claim, and whose it is.
#[derive(Debug)]
struct Said<T> {
    part: Text,
    claim: Claim<T>,
}

/// The claims to the entities of one kind by key, those to one in the order of their parts' names.
type Claims<T> = HashMap<Text, Vec<Said<T>>>;

/// Whose word counts.
struct Order<'c> {
    local: Option<&'c Text>,
    owners: &'c Owners,
}

impl<'c> Order<'c> {
    fn is_own(&self, part: &Text) -> bool {
        self.local == Some(part)
    }

    /// Whose word counts for what one part alone has: this host's, else a document's, else the oldest claim's.
    fn holder<'s, T>(&self, claims: &'s [Said<T>]) -> &'s Said<T> {
        let rank = |said: &Said<T>| (!self.is_own(&said.part), host_of(&said.part).is_some());
        first(claims.iter(), rank).unwrap_or(&claims[0])
    }

    /// Whose word counts for what parts share: a document's, else this host's, else the oldest claim's.
    fn speaker<'s, T>(&self, claims: &'s [Said<T>]) -> &'s Said<T> {
        first(claims.iter(), |said| self.shared_rank(&said.part)).unwrap_or(&claims[0])
    }

    fn shared_rank(&self, part: &Text) -> (bool, bool) {
        (host_of(part).is_some(), !self.is_own(part))
    }

    /// The tenant that a stack belongs to, if a part is of a host that is none of that tenant's.
    fn refused(&self, part: &str, stack: Option<&Text>) -> Option<&'c Text> {
        self.owners.refuses(stack?, host_of(part)?)
    }

    /// What something is called that a part calls `uuid`.
    fn uuid_here<T>(&self, all: &Claims<T>, part: &Text, uuid: &Text) -> Text {
        match all.get(uuid) {
            Some(claims) if claims.len() > 1 && self.holder(claims).part != *part => marked(uuid, part),
            _ => uuid.clone(),
        }
    }

    /// What a host is called that a part calls `uuid`. A document that names a host that there is too means that one.
    fn host_here(&self, all: &Claims<Host>, part: &Text, uuid: &Text) -> Text {
        let Some(claims) = all.get(uuid).filter(|claims| claims.len() > 1) else { return uuid.clone() };
        let (holder, own) = (self.holder(claims), claims.iter().find(|said| said.part == *part));
        match own {
            Some(own) if holder.claim.entity.name() != own.claim.entity.name() => marked(uuid, part),
            _ => uuid.clone(),
        }
    }

    fn hosts(&self, claims: &[Said<Host>]) -> Vec<Arc<Host>> {
        let holder = self.holder(claims);
        let mut hosts = vec![holder.claim.entity.clone()];
        for said in claims.iter().filter(|said| said.claim.entity.name() != holder.claim.entity.name()) {
            let host = &said.claim.entity;
            let uuid = Value::Text(marked(host.uuid(), &said.part));
            hosts.extend(Host::new(host.fields().with([("uuid".into(), uuid)]), host.position()).map(Arc::new));
        }
        hosts
    }

    fn container(&self, all: &Claims<Container>, hosts: &Claims<Host>, said: &Said<Container>) -> Arc<Container> {
        let Said { part, claim: Claim { entity: container, .. } } = said;
        let uuid = self.uuid_here(all, part, container.uuid());
        let host = container.host_uuid().map(|uuid| self.host_here(hosts, part, uuid));
        let shared = container.network_from().map(|uuid| self.uuid_here(all, part, uuid));
        let link = |(name, meant): &(Text, Value)| {
            let meant = meant.as_text().map(|uuid| self.uuid_here(all, part, uuid));
            (name.clone(), meant.into())
        };
        let links: Map = container.links().iter().map(link).collect();
        let is_same = uuid == *container.uuid()
            && host.as_ref() == container.host_uuid()
            && shared.as_ref() == container.network_from()
            && links == *container.links();
        if is_same {
            return container.clone();
        }
        let mut fields = vec![("uuid".into(), Value::Text(uuid))];
        fields.extend(host.map(|host| ("host_uuid".into(), Value::Text(host))));
        fields.extend(shared.map(|shared| ("network_from_container_uuid".into(), Value::Text(shared))));
        Container::new(container.fields().with(fields), links).map_or_else(|| container.clone(), Arc::new)
    }

    /// A service whose containers are on several hosts; `None` when all that say so belong to other tenants.
    fn service(
        &self,
        claims: &[Said<Service>],
        containers: &Merged<Container>,
        stacks: &Merged<Stack>,
    ) -> Option<Arc<Service>> {
        let accepted = |said: &&Said<Service>| self.refused(&said.part, said.claim.entity.stack_name()).is_none();
        let claims: Vec<&Said<Service>> = claims.iter().filter(accepted).collect();
        let speaker = first(claims.iter().copied(), |said| self.shared_rank(&said.part))?;
        let first_said = &speaker.claim.entity;
        let documented = host_of(&speaker.part).is_none();
        let spoken = if documented || self.is_own(&speaker.part) { first_said.clone() } else { modest(first_said) };
        let stack = stacks.ids.get(&stack_key(first_said.environment_uuid(), first_said.stack_name()));
        let stack = stack.and_then(|ids| ids.first()).filter(|uuid| first_said.stack_uuid() != Some(*uuid));
        if claims.len() == 1 && stack.is_none() && containers.contested.is_empty() {
            return Some(spoken);
        }
        let members = claims.iter().flat_map(|said| {
            said.claim.entity.members().iter().map(|uuid| self.uuid_here(&containers.claims, &said.part, uuid))
        });
        let members: Arc<[Text]> = members.collect();
        let mut fields: Vec<(Text, Value)> = Vec::new();
        fields.extend(stack.map(|uuid| ("stack_uuid".into(), Value::Text(uuid.clone()))));
        if claims.len() == 1 {
            return Service::new(spoken.fields().with(fields), members, spoken.links().clone()).map(Arc::new);
        }
        // What a host says of links counts for its own containers, whose names are asked for here on that host alone.
        let mut linking: Vec<_> = claims.iter().copied().filter(|said| !said.claim.entity.links().is_empty()).collect();
        if self.shared_rank(&speaker.part) < (true, true) {
            linking.retain(|said| self.shared_rank(&said.part) < (true, true));
        }
        linking.sort_by_key(|said| (self.shared_rank(&said.part), said.claim.since));
        let links = linking.iter().rev().flat_map(|said| said.claim.entity.links().iter().cloned());
        let links = Map::default().with(links);
        let services = || claims.iter().map(|said| &said.claim.entity);
        let mut sidekicks: Vec<_> = services().flat_map(|service| texts(service, "sidekicks")).collect();
        sidekicks.sort_unstable();
        sidekicks.dedup();
        if !documented {
            let index = services().filter_map(|service| service.fields().int("create_index")).min();
            fields.push(("create_index".into(), index.map_or(Value::Null, Value::Int)));
            // What a document says of ports counts; among hosts each has ports that the others need not have.
            for key in ["ports", "expose"] {
                let mut all = texts(first_said, key);
                let mut seen: HashSet<Text> = all.iter().cloned().collect();
                let own = all.len();
                let of_each = services().flat_map(|service| texts(service, key).into_iter().take(PORTS_MAX));
                all.extend(of_each.filter(|port| seen.insert(port.clone())));
                if all.len() > own {
                    fields.push((key.into(), Value::list(all.into_iter().map(Value::Text))));
                }
            }
        }
        fields.push(("scale".into(), Value::Int(i64::try_from(members.len()).unwrap_or(i64::MAX))));
        fields.push(("sidekicks".into(), Value::list(sidekicks.into_iter().map(Value::Text))));
        // All else is as the one says whose word counts.
        Some(Service::new(spoken.fields().with(fields), members, links).map_or(spoken, Arc::new))
    }

    /// A stack, which exists by labels of containers alone when only hosts report it.
    ///
    /// What hosts report comes from their engines; everyone who may start a container chooses the names in it.
    fn stack(&self, claims: &[Said<Stack>]) -> Option<Arc<Stack>> {
        let accepted = claims.iter().filter(|said| self.refused(&said.part, said.claim.entity.name()).is_none());
        let said = first(accepted, |said| self.shared_rank(&said.part))?;
        let stack = &said.claim.entity;
        if host_of(&said.part).is_none() {
            return Some(stack.clone());
        }
        Some(Arc::new(stack.told_by_labels()))
    }
}

/// The claim of the best rank, of these the oldest, of these the first by name.
fn first<'s, T: 's, R: Ord>(
    claims: impl Iterator<Item = &'s Said<T>>,
    rank: impl Fn(&Said<T>) -> R,
) -> Option<&'s Said<T>> {
    claims.min_by(|a, b| {
        rank(a).cmp(&rank(b)).then_with(|| a.claim.since.cmp(&b.claim.since)).then_with(|| a.part.cmp(&b.part))
    })
}

/// What a part's entity is called whose uuid another part has already: no other part and no uuid can lead to it.
fn marked(uuid: &str, part: &str) -> Text {
    let host = host_of(part).unwrap_or(part).replace('%', "%25").replace(MARK, "%40");
    format!("{uuid}{MARK}{host}").into()
}

/// A service as another host may describe it: what its containers need no address, name or secret of their own for.
fn modest(service: &Arc<Service>) -> Arc<Service> {
    let fields = service.fields();
    let mut changes: Vec<(Text, Value)> = Vec::new();
    let mut reset = |key: &str, plain: Value| {
        if fields.get(key).is_some_and(|said| *said != plain) {
            changes.push((key.into(), plain));
        }
    };
    for key in ["vip", "hostname", "token", "fqdn", "health_check", "lb_config"] {
        reset(key, Value::Null);
    }
    reset("external_ips", Value::List([].into()));
    reset("metadata", Map::default().into());
    reset("state", Value::text("active"));
    reset("system", Value::Bool(false));
    if service.kind() != "dnsService" {
        reset("kind", Value::text("service"));
    }
    if changes.is_empty() {
        return service.clone();
    }
    let plain = Service::new(fields.with(changes), service.members().clone(), service.links().clone());
    plain.map_or_else(|| service.clone(), Arc::new)
}

/// What the parts say of the entities of one kind, together.
#[derive(Debug)]
struct Merged<T> {
    claims: Claims<T>,
    /// What follows from it, but for the entities below.
    whole: Table<T>,
    /// The ids in it by key, where they are not the key alone.
    ids: HashMap<Text, Vec<Text>>,
    /// Entities that changed since. What many parts report at once is merged once.
    touched: Vec<Text>,
    /// Keys that several parts claim.
    contested: BTreeSet<Text>,
    /// Whether a key has come to have another id.
    renamed: bool,
}

impl<T> Default for Merged<T> {
    fn default() -> Self {
        Self {
            claims: HashMap::new(),
            whole: Table::default(),
            ids: HashMap::new(),
            touched: Vec::new(),
            contested: BTreeSet::new(),
            renamed: false,
        }
    }
}

impl<T: Entity + PartialEq> Merged<T> {
    /// Replaces a part's entities; `own` are those it had. Adds the parts that claim what is new, changed or gone too.
    fn update(&mut self, part: &Text, own: &mut Vec<Claim<T>>, mut now: Vec<Claim<T>>, rivals: &mut BTreeSet<Text>) {
        let mut before = std::mem::take(own).into_iter().peekable();
        for claim in &mut now {
            while let Some(gone) = before.next_if(|before| before.key < claim.key) {
                self.retract(part, &gone.key, rivals);
            }
            match before.next_if(|before| before.key == claim.key) {
                // The equal one of before stays, so that it is there once.
                Some(same) if same == *claim => *claim = same,
                _ => self.claim(part, claim, rivals),
            }
        }
        for gone in before {
            self.retract(part, &gone.key, rivals);
        }
        *own = now;
    }

    /// Something is to be made of these entities again.
    fn touch(&mut self, claims: &[Claim<T>]) {
        self.touched.extend(claims.iter().map(|claim| claim.key.clone()));
    }

    fn touch_all(&mut self) {
        self.touched.extend(self.claims.keys().cloned());
    }

    /// Registers a part's claim to an entity.
    fn claim(&mut self, part: &Text, claim: &Claim<T>, rivals: &mut BTreeSet<Text>) {
        // Most entities are reported by one part.
        let claims = self.claims.entry(claim.key.clone()).or_insert_with(|| Vec::with_capacity(1));
        match claims.binary_search_by(|said| said.part.cmp(part)) {
            Ok(at) => claims[at].claim = claim.clone(),
            Err(at) => claims.insert(at, Said { part: part.clone(), claim: claim.clone() }),
        }
        if claims.len() > 1 {
            rivals.extend(claims.iter().map(|said| said.part.clone()));
            self.contested.insert(claim.key.clone());
        }
        self.touched.push(claim.key.clone());
    }

    /// Removes a part's claim to an entity.
    fn retract(&mut self, part: &Text, key: &Text, rivals: &mut BTreeSet<Text>) {
        let Some(claims) = self.claims.get_mut(key) else { return };
        if claims.len() > 1 {
            rivals.extend(claims.iter().map(|said| said.part.clone()));
        }
        claims.retain(|said| said.part != *part);
        if claims.len() < 2 {
            self.contested.remove(key);
        }
        if claims.is_empty() {
            self.claims.remove(key);
        }
        self.touched.push(key.clone());
    }

    /// All entities; `merged` makes what there is of what the parts say of one.
    fn whole(&mut self, merged: impl Fn(&Claims<T>, &[Said<T>]) -> Vec<Arc<T>>) -> Table<T> {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        // Added last: what one key no longer has may be another's now.
        let mut added = Vec::with_capacity(touched.len());
        for key in touched {
            let before = self.ids.remove(&key);
            let entities = self.claims.get(&key).map_or_else(Vec::new, |claims| merged(&self.claims, claims));
            let is_plain = match &entities[..] {
                [] => true,
                [only] => *only.id() == key,
                _ => false,
            };
            if !is_plain {
                let ids: Vec<Text> = entities.iter().map(|entity| entity.id().clone()).collect();
                self.renamed |= before.as_ref().is_some_and(|before| *before != ids);
                self.ids.insert(key.clone(), ids);
            }
            match before {
                Some(before) => before.iter().for_each(|id| self.whole.remove(id)),
                None if entities.is_empty() || !is_plain => self.whole.remove(&key),
                None => {}
            }
            added.extend(entities);
        }
        if self.whole.is_empty() {
            self.whole = added.into_iter().collect();
        } else {
            for entity in added {
                self.whole.insert(entity);
            }
        }
        self.whole.clone()
    }

    /// What is wrong with entities that only one part can have: reported on all that have them.
    fn disputes(&self, order: &Order<'_>, list: &str, add: &mut impl FnMut(&Text, Defect)) {
        for key in &self.contested {
            let claims = &self.claims[key];
            let holder = order.holder(claims);
            for said in claims {
                let name = said.claim.entity.name().unwrap_or(key);
                let others = claims.iter().map(|said| &*said.part).filter(|other| **other != *said.part);
                let others = others.collect::<Vec<_>>().join(", ");
                let problem = format!("{others} has the uuid {key} too; only that of {} is called so", holder.part);
                add(&said.part, Defect::ignored(format!("{list}/{name}"), problem));
            }
        }
    }
}

fn texts(service: &Service, key: &str) -> Vec<Text> {
    service.fields().list(key).iter().filter_map(Value::as_text).cloned().collect()
}

#[cfg(test)]
mod noninterference;
#[cfg(test)]
mod tests;
