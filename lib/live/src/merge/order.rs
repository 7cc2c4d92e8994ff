//! Whose word counts where several parts speak of one entity.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use model::checkers::TENANT;
use model::entity::{LINK_HOSTS, MARK};
use model::lb::{HOSTS_OF, hosts_of_labels};
use model::{Container, Defect, Entity, Host, INTENDED, Map, Network, Service, Stack, Text, Value};

use super::merged::{Claims, Merged, Said};
use super::part::{ALIAS, Claim, host_of, stack_key};
use super::subnets::Subnets;
use crate::host::PORTS_MAX;
use crate::intents::{HostState, Intent, Reserved};
use crate::owners::Owners;

/// Whose word counts.
pub(super) struct Order<'c> {
    pub(super) local: Option<&'c Text>,
    pub(super) owners: &'c Owners,
    pub(super) intents: &'c HashMap<Text, Intent>,
    pub(super) reserved: &'c Reserved,
    pub(super) subnets: &'c Subnets,
    /// Containers, and the names of their hosts.
    pub(super) evicted: &'c HashMap<Text, BTreeSet<Text>>,
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
    fn speaker<'s, T: 's>(&self, claims: impl Iterator<Item = &'s Said<T>>) -> Option<&'s Said<T>> {
        first(claims, |said| self.shared_rank(&said.part))
    }

    fn shared_rank(&self, part: &Text) -> (bool, bool) {
        (host_of(part).is_some(), !self.is_own(part))
    }

    /// The tenant that a stack belongs to, if a part is of a host that is none of that tenant's.
    pub(super) fn refused(&self, part: &str, stack: Option<&Text>) -> Option<&'c Text> {
        self.owners.refuses(stack?, host_of(part)?)
    }

    /// The tenant that has hosts at balancers which labels of this service name, if a host says so and the stack is not that tenant's.
    pub(super) fn hostname_of_other(&self, part: &str, service: &Service) -> Option<&'c Text> {
        host_of(part)?;
        self.owners.hostname_of_other(&hosts_of_labels(service)?, service.stack_name())
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

    /// A network of engines or documents; that of the cluster's containers says which addresses these have.
    pub(super) fn network(&self, claims: &[Said<Network>]) -> Option<Arc<Network>> {
        let network = &self.speaker(claims.iter())?.claim.entity;
        let Some(range) = self.subnets.range(network.name()) else { return Some(network.clone()) };
        let metadata = network.fields().map("metadata").cloned().unwrap_or_default();
        let metadata = metadata.with([("cidr".into(), Value::Text(range.clone()))]);
        let fields = network.fields().with([("metadata".into(), Value::Map(metadata))]);
        Some(Network::new(fields, network.position()).map_or_else(|| network.clone(), Arc::new))
    }

    pub(super) fn hosts(&self, claims: &[Said<Host>]) -> Vec<Arc<Host>> {
        let holder = self.holder(claims);
        let mut hosts = vec![self.intended(&holder.part, &holder.claim.entity)];
        for said in claims.iter().filter(|said| said.claim.entity.name() != holder.claim.entity.name()) {
            let host = self.intended(&said.part, &said.claim.entity);
            let uuid = Value::Text(marked(host.uuid(), &said.part));
            hosts.extend(Host::new(host.fields().with([("uuid".into(), uuid)]), host.position()).map(Arc::new));
        }
        hosts
    }

    /// A host as operators want it: with the state that they gave it, and with the labels that count, its own without those that
    /// only operators give, the operators', and those that follow from claims.
    fn intended(&self, part: &Text, host: &Arc<Host>) -> Arc<Host> {
        let intent = host.name().and_then(|name| self.intents.get(name));
        let claimed = self.subnets.labels(host.name());
        let is_hosts = host_of(part).is_some();
        let is_refused = |label: &Text| is_hosts && (self.reserved.contains(label) || self.subnets.reserves(label));
        let own = || host.labels().into_iter().flatten();
        let tenant = host.name().and_then(|name| self.owners.tenant_of(name));
        if intent.is_none() && claimed.is_empty() && tenant.is_none() && !own().any(|(label, _)| is_refused(label)) {
            return host.clone();
        }
        let accepted: Map = own().filter(|(label, _)| !is_refused(label)).cloned().collect();
        let given = intent.into_iter().flat_map(|intent| &intent.labels);
        let given = given.map(|(key, value)| (key.clone(), Value::Text(value.clone())));
        let labels = accepted.with(given.chain(claimed));
        let tenant = tenant.map(|tenant| (TENANT.into(), Value::Text(tenant)));
        let state = intent.and_then(|intent| Some((intent.state?, intent.described()?)));
        // One that leaves by itself goes on with that: whatever else it is given, it gets nothing new.
        let leaves = host.state() == HostState::Draining.on_the_wire();
        let state = state.into_iter().flat_map(|(state, described)| {
            let state = if leaves { HostState::Draining } else { state };
            [("state".into(), Value::text(state.on_the_wire())), (INTENDED.into(), Value::Text(described))]
        });
        let labels = [("labels".into(), Value::Map(labels))];
        let fields = host.fields().with(labels.into_iter().chain(tenant).chain(state));
        Host::new(fields, host.position()).map_or_else(|| host.clone(), Arc::new)
    }

    /// Whether another container has the place of this one, which a part calls `uuid`.
    fn is_evicted(&self, part: &str, uuid: &Text) -> bool {
        self.evicted.get(uuid).is_some_and(|hosts| host_of(part).is_some_and(|host| hosts.contains(host)))
    }

    /// A container as its host says; one that is evicted is stopping, whatever that says.
    pub(super) fn container(
        &self,
        all: &Claims<Container>,
        hosts: &Claims<Host>,
        said: &Said<Container>,
    ) -> Arc<Container> {
        let container = self.named(all, hosts, said);
        if !self.is_evicted(&said.part, said.claim.entity.uuid()) {
            return container;
        }
        let mut changes = vec![("health_state".into(), Value::Null)];
        if container.runs() {
            changes.push(("state".into(), Value::text("stopping")));
        }
        let fields = container.fields().with(changes);
        Container::new(fields, container.links().clone()).map_or(container, Arc::new)
    }

    fn named(&self, all: &Claims<Container>, hosts: &Claims<Host>, said: &Said<Container>) -> Arc<Container> {
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
    pub(super) fn service(
        &self,
        claims: &[Said<Service>],
        containers: &Merged<Container>,
        stacks: &Merged<Stack>,
    ) -> Option<Arc<Service>> {
        let accepted = |said: &&Said<Service>| self.refused(&said.part, said.claim.entity.stack_name()).is_none();
        let claims: Vec<&Said<Service>> = claims.iter().filter(accepted).collect();
        let speaker = self.speaker(claims.iter().copied())?;
        let first_said = &speaker.claim.entity;
        let documented = host_of(&speaker.part).is_none();
        let spoken = if documented || self.is_own(&speaker.part) { first_said.clone() } else { modest(first_said) };
        // In a stack that a document names, such a name would stand in for one of another stack (dns).
        let is_dotted = first_said.name().is_some_and(|name| name.contains('.'));
        let spoken = if is_dotted && !documented { Arc::new(spoken.known_by_labels()) } else { spoken };
        let spoken = match self.hostname_of_other(&speaker.part, first_said) {
            Some(tenant) => with_fields(&spoken, [(HOSTS_OF.into(), Value::Text(tenant.clone()))]),
            None => spoken,
        };
        let stack = stacks.ids.get(&stack_key(first_said.environment_uuid(), first_said.stack_name()));
        let stack = stack.and_then(|ids| ids.first()).filter(|uuid| first_said.stack_uuid() != Some(*uuid));
        let loses =
            |said: &&Said<Service>| said.claim.entity.members().iter().any(|uuid| self.is_evicted(&said.part, uuid));
        let is_whole = self.evicted.is_empty() || !claims.iter().any(loses);
        if claims.len() == 1 && stack.is_none() && containers.contested.is_empty() && is_whole {
            return Some(spoken);
        }
        let members = claims.iter().flat_map(|said| {
            let members = said.claim.entity.members().iter();
            let members = members.filter(|uuid| is_whole || !self.is_evicted(&said.part, uuid));
            members.map(|uuid| self.uuid_here(&containers.claims, &said.part, uuid))
        });
        let members: Arc<[Text]> = members.collect();
        let mut fields: Vec<(Text, Value)> = Vec::new();
        fields.extend(stack.map(|uuid| ("stack_uuid".into(), Value::Text(uuid.clone()))));
        let scale = Value::Int(i64::try_from(members.len()).unwrap_or(i64::MAX));
        if claims.len() == 1 {
            fields.extend((!is_whole).then_some(("scale".into(), scale)));
            return Service::new(spoken.fields().with(fields), members, spoken.links().clone()).map(Arc::new);
        }
        // What a host says of links counts for its own containers, whose names are asked for here on that host alone.
        let mut linking: Vec<_> = claims.iter().copied().filter(|said| !said.claim.entity.links().is_empty()).collect();
        // Those of an alias are what it leads to, and no other service's are.
        if spoken.kind() == ALIAS {
            linking.retain(|said| said.claim.entity.kind() == ALIAS);
        }
        if self.shared_rank(&speaker.part) < (true, true) {
            linking.retain(|said| self.shared_rank(&said.part) < (true, true));
        }
        linking.sort_by_key(|said| (self.shared_rank(&said.part), said.claim.since));
        let links = linking.iter().rev().flat_map(|said| said.claim.entity.links().iter().cloned());
        let links = Map::default().with(links);
        if spoken.kind() == ALIAS {
            fields.push((LINK_HOSTS.into(), Value::Map(link_hosts(&links, &linking))));
        }
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
        fields.push(("scale".into(), scale));
        fields.push(("sidekicks".into(), Value::list(sidekicks.into_iter().map(Value::Text))));
        // All else is as the one says whose word counts.
        Some(Service::new(spoken.fields().with(fields), members, links).map_or(spoken, Arc::new))
    }

    /// A stack, which exists by labels of containers alone when only hosts report it.
    ///
    /// What hosts report comes from their engines; everyone who may start a container chooses the names in it.
    pub(super) fn stack(&self, claims: &[Said<Stack>]) -> Option<Arc<Stack>> {
        let accepted = claims.iter().filter(|said| self.refused(&said.part, said.claim.entity.name()).is_none());
        let said = self.speaker(accepted)?;
        let stack = &said.claim.entity;
        if host_of(&said.part).is_none() {
            return Some(stack.clone());
        }
        Some(Arc::new(stack.known_by_labels()))
    }

    /// What is wrong with entities that only one part can have: reported on all that have them.
    pub(super) fn disputes<T: Entity>(&self, all: &Merged<T>, list: &str, add: &mut impl FnMut(&Text, Defect)) {
        for key in &all.contested {
            let claims = &all.claims[key];
            let holder = self.holder(claims);
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
pub(super) fn marked(uuid: &str, part: &str) -> Text {
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
    if service.kind() != ALIAS {
        reset("kind", Value::text("service"));
    }
    if changes.is_empty() {
        return service.clone();
    }
    with_fields(service, changes)
}

/// A service with some other fields.
fn with_fields(service: &Arc<Service>, changes: impl IntoIterator<Item = (Text, Value)>) -> Arc<Service> {
    let other = Service::new(service.fields().with(changes), service.members().clone(), service.links().clone());
    other.map_or_else(|| service.clone(), Arc::new)
}

pub(super) fn texts(service: &Service, key: &str) -> Vec<Text> {
    service.fields().list(key).iter().filter_map(Value::as_text).cloned().collect()
}

/// The hosts to whose containers the links of an alias lead, for those that no document has.
fn link_hosts(links: &Map, linking: &[&Said<Service>]) -> Map {
    let of = |(link, _): &(Text, Value)| {
        let mut hosts = Vec::new();
        for service in linking.iter().map(|said| &said.claim.entity).filter(|one| one.links().get(link).is_some()) {
            hosts.extend(service.link_hosts(link)?);
        }
        let mut seen = HashSet::new();
        hosts.retain(|host| seen.insert(host.as_text()));
        Some((link.clone(), Value::list(hosts.into_iter().cloned())))
    };
    links.iter().filter_map(of).collect()
}

/// The labels of a host that only operators give.
pub(super) fn reserved_labels<'h>(reserved: &'h Reserved, host: &'h Host) -> impl Iterator<Item = &'h Text> {
    host.labels().into_iter().flatten().map(|(key, _)| key).filter(|key| reserved.contains(key))
}
