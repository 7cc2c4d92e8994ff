//! One snapshot out of the documents of many hosts.
//!
//! Each part is resolved on its own, so a change costs what its host has; what several hosts report (a service with
//! containers on all of them, a network that each has) becomes one entity.
//!
//! A host speaks for itself: for its own entity, its containers, and what services these belong to. What several parts
//! claim is decided by one order: documents and this host's own part come first, then the claim that etcd has had for
//! longest. So no host takes anything from another by its name, or by claiming it later.

mod merged;
mod order;
mod overrides;
mod part;
mod subnets;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use model::document::Refusal;
use model::{
    About, Container, Defect, Entity as _, Host, Map, Network, NetworkKey, Service, Snapshot, Stack, Table, Text,
};

use crate::etcd::keys::PartId;
use crate::intents::{INTENTS, Intent, RESERVED_LABELS, Reserved};
use crate::merge::merged::{Merged, Said};
use crate::merge::order::{Order, reserved_labels};
use crate::merge::overrides::Overrides;
use crate::merge::part::{Claim, DOCUMENTS, Part, host_of};
pub(crate) use crate::merge::part::{Resolved, SINCE};
use crate::merge::subnets::{Subnets, Touched};
use crate::owners::{OWNERS_PART, Owners};

/// Most defects of one part about what is another's to say that are reported.
const DISPUTES_MAX: usize = 100;

/// A cluster that is assembled from parts.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    /// The part of the host that this process is on.
    local: Option<Text>,
    parts: BTreeMap<Text, Part>,
    owners: Owners,
    /// The labels that operators give hosts, by the hosts' names, and those that only they give.
    intents: HashMap<Text, Intent>,
    reserved: Reserved,
    containers: Merged<Container>,
    services: Merged<Service>,
    stacks: Merged<Stack>,
    hosts: Merged<Host>,
    networks: Merged<Network>,
    network_keys: Table<NetworkKey>,
    subnets: Subnets,
    overrides: Overrides,
    /// Containers whose place another one has, as schedulers say, with their hosts' names: they are members of nothing.
    evicted: HashMap<Text, BTreeSet<Text>>,
    /// The environment while no part is this host's, and whether it is known.
    environment: (Option<Map>, bool),
    /// Whether [`Cluster::disputes`] may be others than before.
    disputed: bool,
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
        let refused = |problem| Refusal { problem, at: None };
        if **part == *RESERVED_LABELS {
            self.set_reserved(Reserved::parse(document).map_err(refused)?);
            return Ok(Vec::new());
        }
        if let Some(host) = part.strip_prefix(INTENTS) {
            self.set_intent(host.into(), Intent::parse(document).map_err(refused)?);
            return Ok(Vec::new());
        }
        if NetworkKey::is_key(part) {
            self.network_keys.insert(NetworkKey::new(part.clone(), document.clone()).into());
            self.set_subnet(part, Some(document));
            return Ok(Vec::new());
        }
        if let Some((checker, about)) = overridden(part) {
            self.overrides.set(&checker, &about, Some(document));
            return Ok(Vec::new());
        }
        if let Some(about) = evicted(part) {
            self.set_evicted(about, true);
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
        if **part == *RESERVED_LABELS {
            return self.set_reserved(Reserved::default());
        }
        if let Some(host) = part.strip_prefix(INTENTS) {
            return self.set_intent(host.into(), Intent::default());
        }
        if NetworkKey::is_key(part) {
            self.network_keys.remove(part);
            return self.set_subnet(part, None);
        }
        if let Some((checker, about)) = overridden(part) {
            return self.overrides.set(&checker, &about, None);
        }
        if let Some(about) = evicted(part) {
            return self.set_evicted(about, false);
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
        let Self {
            local,
            owners,
            intents,
            reserved,
            subnets,
            overrides,
            evicted,
            containers,
            services,
            stacks,
            hosts,
            networks,
            ..
        } = self;
        let order = Order { local: local.as_ref(), owners, intents, reserved, subnets, evicted };
        let whole_stacks = stacks.whole(|_, claims| order.stack(claims).into_iter().collect());
        if std::mem::take(&mut stacks.renamed) {
            services.touch_all();
        }
        let whole_hosts = hosts.whole(|_, claims| order.hosts(claims));
        // With the labels that count, as in the list of all.
        let local_host = local_host.map(|own| {
            let same = whole_hosts.get(own.uuid()).filter(|host| host.name() == own.name());
            same.cloned().unwrap_or(own)
        });
        let (stacks, hosts) = (&*stacks, &*hosts);
        let is_plain = hosts.contested.is_empty() && containers.contested.is_empty() && evicted.is_empty();
        let whole_containers = containers.whole(|all, claims| {
            let container = |said: &Said<Container>| {
                if is_plain { said.claim.entity.clone() } else { order.container(all, &hosts.claims, said) }
            };
            claims.iter().map(container).collect()
        });
        let containers = &*containers;
        let whole_containers = overrides.over(whole_containers, &whole_hosts, local.as_ref());
        Snapshot {
            environment,
            local_host,
            // Among tenants, what one lets fail must not change what another one sees.
            is_panic: owners.is_empty() && whole_containers.shares().is_cluster_panic(),
            services: services.whole(|_, claims| order.service(claims, containers, stacks).into_iter().collect()),
            networks: networks.whole(|_, claims| order.network(claims).into_iter().collect()),
            containers: whole_containers,
            stacks: whole_stacks,
            hosts: whole_hosts,
            network_keys: self.network_keys.clone(),
            ..Snapshot::default()
        }
    }

    /// What parts say that is another's to say, by part; `None` when that cannot have changed since.
    pub(crate) fn disputes(&mut self) -> Option<HashMap<Text, Vec<Defect>>> {
        if !std::mem::take(&mut self.disputed) {
            return None;
        }
        let Self { local, owners, intents, reserved, subnets, evicted, .. } = &*self;
        let order = Order { local: local.as_ref(), owners, intents, reserved, subnets, evicted };
        let mut found: HashMap<Text, Vec<Defect>> = HashMap::new();
        let mut add = |part: &Text, defect: Defect| {
            let defects = found.entry(part.clone()).or_default();
            if defects.len() < DISPUTES_MAX {
                defects.push(defect);
            }
        };
        order.disputes(&self.hosts, "hosts", &mut add);
        order.disputes(&self.containers, "containers", &mut add);
        for (name, part) in self.parts.iter().filter(|(name, _)| host_of(name).is_some()) {
            for host in &part.hosts {
                for label in reserved_labels(&self.reserved, &host.entity) {
                    let path = format!("{name}/labels/{label}");
                    add(name, Defect::ignored(path, "only operators give this label: agent label HOST KEY=VALUE"));
                }
            }
        }
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
                    } else if let Some(tenant) = order.hostname_of_other(name, &claim.entity) {
                        let problem = format!(
                            "its labels name a host at balancers that belongs to {tenant}, and this stack does not"
                        );
                        add(name, Defect::ignored(format!("services/{stack}/{service}/labels"), problem));
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
        self.hosts.touch_all();
    }

    fn set_reserved(&mut self, reserved: Reserved) {
        if self.reserved != reserved {
            (self.reserved, self.disputed) = (reserved, true);
            self.hosts.touch_all();
        }
    }

    fn set_intent(&mut self, host: Text, intent: Intent) {
        self.touch_host(&host);
        if intent == Intent::default() {
            self.intents.remove(&host);
        } else {
            self.intents.insert(host, intent);
        }
    }

    /// What its host says of the container, and of the services that have it there, is to be merged again.
    fn set_evicted(&mut self, about: About, is_evicted: bool) {
        let Self { local, parts, containers, services, .. } = self;
        let own = local.as_ref().filter(|local| host_of(local) == Some(&*about.owner));
        let part = own.cloned().unwrap_or_else(|| format!("hosts/{}", about.owner).into());
        if let Some(part) = parts.get(&part) {
            let of_container = part.containers.iter().filter(|claim| *claim.entity.uuid() == about.container);
            containers.touch(of_container);
            let has = |claim: &&Claim<Service>| claim.entity.members().contains(&about.container);
            services.touch(part.services.iter().filter(has));
        }
        let hosts = self.evicted.entry(about.container.clone()).or_default();
        if is_evicted {
            hosts.insert(about.owner);
        } else {
            hosts.remove(&about.owner);
        }
        if hosts.is_empty() {
            self.evicted.remove(&about.container);
        }
    }

    fn set_subnet(&mut self, key: &str, value: Option<&Map>) {
        match self.subnets.set(key, value) {
            Touched::All => {
                self.hosts.touch_all();
                self.networks.touch_all();
            }
            Touched::These(hosts) => hosts.iter().for_each(|host| self.touch_host(host)),
        }
    }

    /// What is known of a host by its name is to be merged again.
    fn touch_host(&mut self, host: &str) {
        let own: Text = format!("hosts/{host}").into();
        let documents: Text = DOCUMENTS.into();
        // Documents may describe it as well.
        let documents = self.parts.range(documents..).take_while(|(name, _)| host_of(name).is_none());
        for part in self.parts.get(&own).into_iter().chain(documents.map(|(_, part)| part)) {
            self.hosts.touch(&part.hosts);
        }
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
        let reserved = |claims: &[Claim<Host>]| {
            claims.iter().any(|claim| reserved_labels(&self.reserved, &claim.entity).next().is_some())
        };
        self.disputed |= reserved(&part.hosts) || reserved(&now.hosts);
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

/// The checker and the container of a part that is what a checker says of a container whose host is silent.
fn overridden(part: &Text) -> Option<(Text, About)> {
    match PartId::parse(part)? {
        PartId::Override(checker, about) => Some((checker, about)),
        _ => None,
    }
}

/// The container of a part that says that it is evicted.
fn evicted(part: &Text) -> Option<About> {
    match PartId::parse(part)? {
        PartId::Evicted(about) => Some(about),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
