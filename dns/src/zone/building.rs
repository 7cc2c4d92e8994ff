//! Keeping a zone: who has which name and address, as services and containers come and go.

use std::collections::{HashMap, HashSet};
use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;

use model::{Container, Entity, METADATA_NAME, Service, Snapshot, Stack, Text};

use super::entry::{Entry, Linking, Member, Owner, Place};
use super::index::{add, take};
use super::members::{
    Claims, is_alias, is_kubernetes, is_local, own_addresses, service_path, stands_for_members, unreachable,
};
use super::persistent::Collected;
use super::records::{Making, Members, pointer};
use super::{Node, Zone, reverse_name};
use crate::name::{BadName, Folded, ancestors};

/// How many entities ahead memory is asked for: each takes about as long as its memory does.
const AHEAD: usize = 6;

/// Domain of the services that Kubernetes gave addresses to.
const KUBERNETES_DOMAIN: &str = "svc.cluster.local";

impl Zone {
    /// Adds the names that stand there already, and that of the metadata service.
    fn own_names(&self, names: &mut Names) {
        self.names.iter().for_each(|(name, entry)| names.push(name.clone(), entry.clone()));
        let addresses = &self.settings.rancher_metadata;
        let Ok(name) = self.settings.domain.under(METADATA_NAME) else { return };
        if !addresses.is_empty() {
            let own = |node| Entry::of_node(Owner::Zone, Arc::new(node));
            for address in addresses {
                names.push(reverse_name(*address), own(pointer(&name, self.ttl)));
            }
            names.push(name, own(Node::addresses(addresses.iter().copied(), self.ttl)));
        }
    }

    /// Fills an empty zone with all of its snapshot.
    pub(super) fn fill(&mut self) {
        let snapshot = self.snapshot.clone();
        let environment = snapshot.environment_uuid();
        let of_labels = snapshot.stacks.values().filter(|stack| stack.is_from_labels());
        let domain = |stack: &Arc<Stack>| self.settings.domain.under(stack.name()?).ok();
        let domains = of_labels.filter_map(|stack| Some((stack.uuid().clone(), Arc::new(domain(stack)?))));
        self.stacks_of_labels = Arc::new(domains.collect());
        // Much of the time goes to waiting for memory, so that each entity is looked at once.
        let mut names = Names::expecting(snapshot.services.len() + snapshot.containers.len());
        let mut members = Collected::expecting(snapshot.containers.len());
        self.own_names(&mut names);
        let others = self.fill_services(&snapshot, &mut names, &mut members);
        self.fill_containers(&snapshot, &mut names, members);
        if self.index.has_kubernetes {
            // What their names are depends on the services that they belong to, which are known only now.
            self.container_names(&snapshot, &mut names);
        }
        let Names { entries, mut below } = names;
        self.names = entries.into_map();
        below.settle();
        self.count_all_below(&below);
        if self.index.has_links {
            let local = |service: &&Arc<Service>| is_local(environment, service.environment_uuid());
            for service in snapshot.services.values().filter(local) {
                self.learn_path(service);
            }
            for service in snapshot.services.values().filter(local).filter(|service| is_alias(service)) {
                let targets = self.linked_services(service);
                let targets: Vec<Text> = targets.into_iter().map(|target| target.id().clone()).collect();
                for target in targets {
                    add(&mut self.index.aliases, &target, service.id());
                }
            }
        }
        for service in others {
            self.place_service(service);
        }
    }

    /// Adds the names of services and notes at containers which services they belong to; returns the services whose records
    /// do not only follow from their containers.
    fn fill_services<'s>(
        &mut self,
        snapshot: &'s Snapshot,
        names: &mut Names,
        members: &mut Collected<Text, Member>,
    ) -> Vec<&'s Arc<Service>> {
        let environment = snapshot.environment_uuid();
        let (mut uuids, mut others) = (Vec::with_capacity(snapshot.containers.len()), Vec::new());
        for service in ahead(snapshot.services.values()) {
            if !is_local(environment, service.environment_uuid()) {
                continue;
            }
            self.index.has_kubernetes |= is_kubernetes(service);
            if !service.links().is_empty() {
                self.index.has_links = true;
                self.index.links.insert(service.id().clone(), Linking::of(service.clone()));
            }
            uuids.extend(service.members().iter().map(|uuid| (uuid, service.id())));
            let is_plain = stands_for_members(service);
            if let Ok(name) = self.service_name(service) {
                let owner = if is_plain { Owner::Service(service.clone()) } else { Owner::Reserved(service.clone()) };
                names.push(name, Entry::of(owner));
            }
            if !is_plain {
                others.push(service);
            }
        }
        for (at, (uuid, id)) in uuids.iter().enumerate() {
            if let Some((next, _)) = uuids.get(at + AHEAD) {
                black_box(first_byte(next));
            }
            members.entry(*uuid, || Text::clone(uuid)).services.add(id);
        }
        others
    }

    /// Fills in containers and their addresses, and adds their names, as long as no service is Kubernetes'.
    fn fill_containers(&mut self, snapshot: &Snapshot, names: &mut Names, mut members: Collected<Text, Member>) {
        let environment = snapshot.environment_uuid();
        let mut addresses = Collected::expecting(snapshot.containers.len());
        let mut routed = Vec::new();
        for container in ahead(snapshot.containers.values()) {
            let uuid = container.uuid();
            members.entry(uuid, || uuid.clone()).container = Some(container.clone());
            if !is_local(environment, container.environment_uuid()) {
                continue;
            }
            for address in &own_addresses(snapshot, container) {
                let place = Place::of(Claims::One(container.clone()));
                addresses.push(address.to_canonical(), place, |_, known, other| known.claims.extend(&other.claims));
            }
            if let Some(shared) = container.network_from() {
                add(&mut self.index.sharers, shared, uuid);
            }
            if container.routed_ips().is_some() {
                routed.push(container);
            }
            if !self.index.has_kubernetes
                && let Some((name, entry)) = self.container_entry(container)
            {
                names.push(name, entry);
            }
        }
        self.containers = members.into_map();
        self.addresses = addresses.into_map();
        // Whether an address leads elsewhere depends on who has it here.
        for container in routed {
            self.learn_reach(container);
        }
    }

    /// Remembers a container that has no address for clients here; after all containers have their addresses.
    pub(super) fn learn_reach(&mut self, container: &Container) {
        if is_local(self.snapshot.environment_uuid(), container.environment_uuid())
            && unreachable(self, container).is_some()
            && let Some(host) = container.host_uuid()
        {
            add(&mut self.unreachable, host, container.uuid());
        }
    }

    /// Adds the names of all containers.
    fn container_names(&self, snapshot: &Snapshot, names: &mut Names) {
        let environment = snapshot.environment_uuid();
        let containers = snapshot.containers.values();
        let local = containers.filter(|container| is_local(environment, container.environment_uuid()));
        for (name, entry) in local.filter_map(|container| self.container_entry(container)) {
            names.push(name, entry);
        }
    }

    /// The name of a container that runs.
    fn container_entry(&self, container: &Arc<Container>) -> Option<(Folded, Entry)> {
        let name = self.container_name(container).filter(|_| container.runs())?.ok()?;
        Some((name, Entry::of(Owner::Containers(Claims::One(container.clone())))))
    }

    /// Makes a sidekick or a service known by its path.
    fn learn_path(&mut self, service: &Service) {
        let (Some(stack), Some(name)) = (service.stack_name(), service.name()) else { return };
        let path = service_path(stack, name);
        let known = self.index.paths.get(&path).and_then(|id| self.snapshot.services.get(id));
        // A sidekick is found by its name too, unless a service has it.
        if known.is_none_or(|known| known.is_sidekick() && !service.is_sidekick()) {
            self.index.paths.insert(path, service.id().clone());
        }
    }

    /// Looks at a service again, when its name is its own.
    pub(super) fn place_service(&mut self, service: &Arc<Service>) {
        let Ok(name) = self.service_name(service) else { return };
        if !self.is_of(&name, service) {
            return;
        }
        let mut making = Making::new(self);
        let node = if stands_for_members(service) { None } else { making.service_node(service).map(Arc::new) };
        let linked = is_alias(service).then(|| {
            let linked = making.union_node(service, Members::Containers).filter(|linked| !linked.is_empty());
            linked.map(Arc::new).or_else(|| node.clone())
        });
        match linked {
            Some(Some(linked)) => self.linked.insert(service.id().clone(), linked),
            Some(None) => drop(self.linked.remove(service.id())),
            None => {}
        }
        let entry = match node {
            Some(node) => Entry::of_node(Owner::Service(service.clone()), node),
            None if stands_for_members(service) => Entry::of(Owner::Service(service.clone())),
            None => Entry::of(Owner::Reserved(service.clone())),
        };
        self.put(name, entry);
    }

    /// Gives a container its name and its addresses.
    pub(super) fn learn_container(&mut self, container: &Arc<Container>, dirty: &mut HashSet<IpAddr>) {
        let member = self.containers.entry(container.uuid(), || container.uuid().clone());
        *member = member.with(Some(container.clone()));
        if !is_local(self.snapshot.environment_uuid(), container.environment_uuid()) {
            return;
        }
        if let Some((name, entry)) = self.container_entry(container) {
            match self.names.get(&name).map(|entry| &entry.owner) {
                None => self.put(name, entry),
                Some(Owner::Containers(claims)) => {
                    let claims = claims.iter().chain([container]).cloned().collect();
                    self.put(name, Entry::of(Owner::Containers(claims)));
                }
                Some(Owner::Zone | Owner::Service(_) | Owner::Reserved(_)) => {}
            }
        }
        for address in &own_addresses(&self.snapshot, container) {
            let address = address.to_canonical();
            dirty.insert(address);
            let known = self.addresses.get(&address).map_or(&[][..], |place| &place.claims);
            let claims = known.iter().chain([container]).cloned().collect();
            self.addresses.insert(address, Place::of(claims));
        }
        if let Some(shared) = container.network_from() {
            add(&mut self.index.sharers, shared, container.uuid());
        }
    }

    /// The opposite of [`Self::learn_container`], with the snapshot that it was learned from.
    pub(super) fn forget_container(&mut self, container: &Arc<Container>, dirty: &mut HashSet<IpAddr>) {
        let others = |claims: &Claims| -> Claims {
            claims.iter().filter(|claim| claim.uuid() != container.uuid()).cloned().collect()
        };
        if let Some(Ok(name)) = self.container_name(container)
            && let Some(Owner::Containers(claims)) = self.names.get(&name).map(|entry| &entry.owner)
        {
            let others = others(claims);
            if others.is_empty() {
                self.remove(&name);
            } else {
                self.put(name, Entry::of(Owner::Containers(others)));
            }
        }
        if let Some(host) = container.host_uuid() {
            take(&mut self.unreachable, host, container.uuid());
        }
        for address in &own_addresses(&self.snapshot, container) {
            let address = address.to_canonical();
            dirty.insert(address);
            let Some(place) = self.addresses.get(&address) else { continue };
            let others = others(&place.claims);
            if others.is_empty() {
                self.addresses.remove(&address);
            } else {
                self.addresses.insert(address, Place::of(others));
            }
        }
        if let Some(shared) = container.network_from() {
            take(&mut self.index.sharers, shared, container.uuid());
        }
        let member = self.containers.entry(container.uuid(), || container.uuid().clone());
        *member = member.with(None);
        if member.services.is_empty() {
            self.containers.remove(container.uuid());
        }
    }

    /// Makes containers members of a service, or no longer.
    pub(super) fn change_members(&mut self, before: &Service, after: &Service) {
        let [left, joined] = [(before, after), (after, before)].map(|(one, other)| {
            let others: HashSet<&Text> = other.members().iter().collect();
            one.members().iter().filter(|uuid| !others.contains(uuid)).cloned().collect::<Vec<_>>()
        });
        for uuid in joined {
            self.containers.entry(&uuid, || uuid.clone()).services.add(after.id());
        }
        for uuid in left {
            let member = self.containers.entry(&uuid, || uuid.clone());
            member.services.take(before.id());
            if member.services.is_empty() && member.container.is_none() {
                self.containers.remove(&uuid);
            }
        }
    }

    /// Puts something at a name, in place of what may stand there.
    pub(super) fn put(&mut self, name: Folded, entry: Entry) {
        let existed = self.names.get(&name).is_some_and(Entry::exists);
        match (existed, entry.exists()) {
            (false, true) => self.count_below(&name, |below| below + 1),
            (true, false) => self.count_below(&name, |below| below - 1),
            _ => {}
        }
        self.names.insert(name, entry);
    }

    /// Takes a name away.
    fn remove(&mut self, name: &Folded) {
        if self.names.remove(name).is_some_and(|entry| entry.exists()) {
            self.count_below(name, |below| below - 1);
        }
    }

    /// Changes how many names stand below the ancestors of a name that are below its apex.
    fn count_below(&mut self, name: &Folded, change: impl Fn(usize) -> usize) {
        let Some(apex) = self.apex_of(name.wire()).map(|apex| apex.folded.wire().len()) else { return };
        for ancestor in name.with_ancestors().skip(1).take_while(|ancestor| ancestor.len() > apex) {
            let below = self.below.entry(ancestor, || Folded::from_wire(ancestor));
            *below = change(*below);
            if *below == 0 {
                self.below.remove(ancestor);
            }
        }
    }

    /// The same for all names at once, which stand below one apex.
    fn count_all_below(&mut self, below: &Below) {
        let mut counts: HashMap<&[u8], usize, foldhash::fast::RandomState> = HashMap::default();
        for (parent, count) in below.counts.iter().filter(|(_, count)| **count > 0) {
            let Some(apex) = self.apex_of(parent).map(|apex| apex.folded.wire().len()) else { continue };
            for ancestor in ancestors(parent).take_while(|ancestor| ancestor.len() > apex) {
                *counts.entry(ancestor).or_default() += count;
            }
        }
        let mut below = Collected::expecting(counts.len());
        for (name, count) in counts {
            below.push(Folded::from_wire(name), count, |_, _, _| {});
        }
        self.below = below.into_map();
    }

    /// The container with this uuid.
    pub(super) fn container(&self, uuid: &Text) -> Option<&Arc<Container>> {
        self.containers.get(uuid)?.container.as_ref()
    }

    /// Ids of the services that a container belongs to.
    pub(super) fn member_of(&self, uuid: &Text) -> &[Text] {
        self.containers.get(uuid).map_or(&[], |member| &*member.services)
    }

    /// The services that a container belongs to.
    pub(super) fn services_of(&self, container: &Container) -> impl Iterator<Item = &Arc<Service>> {
        self.member_of(container.uuid()).iter().filter_map(|id| self.snapshot.services.get(id))
    }

    /// `service.stack.domain`, for a sidekick `sidekick.service.stack.domain`.
    pub(super) fn service_name(&self, service: &Service) -> Result<Folded, BadName> {
        let name = service.name().map_or("", |name| name);
        let stack = service.stack_name().map_or("", |stack| stack);
        let domain = if is_kubernetes(service) { &self.kubernetes } else { &self.settings.domain };
        self.unreserved(if service.is_sidekick() {
            domain.under_all(&[name, service.primary_name(), stack])?
        } else {
            domain.under_all(&[name, stack])?
        })
    }

    /// `name.domain`; `None` when the container has no name, an error when it can have none.
    pub(super) fn container_name(&self, container: &Container) -> Option<Result<Folded, BadName>> {
        let name = container.name().filter(|name| !name.is_empty())?;
        let has_kubernetes = self.index.has_kubernetes;
        let kubernetes = has_kubernetes.then(|| self.services_of(container).find(|service| is_kubernetes(service)));
        let name = match kubernetes.flatten() {
            Some(service) => self.service_name(service).and_then(|service| service.under(name)),
            None => self.settings.domain.under(name),
        };
        Some(name.and_then(|name| self.unreserved(name)))
    }

    /// The name, unless it is that of the name server or of a host: no container or service gets these.
    fn unreserved(&self, name: Folded) -> Result<Folded, BadName> {
        let below = |hosts: &Folded| name.wire().len() > hosts.wire().len() && name.is_within(hosts);
        let taken = self.hosts_domain.as_ref().is_some_and(below) || self.apexes.iter().any(|apex| apex.server == name);
        if taken { Err(BadName::Reserved) } else { Ok(name) }
    }
}

/// All names, while they come together.
struct Names {
    entries: Collected<Folded, Entry>,
    below: Below,
}

impl Names {
    /// Room for about so many.
    fn expecting(names: usize) -> Self {
        Self { entries: Collected::expecting(names), below: Below::default() }
    }

    /// Adds a name; those that are there already are not for containers.
    fn push(&mut self, name: Folded, entry: Entry) {
        let Self { entries, below } = self;
        if entry.exists() {
            below.add(&name);
        }
        entries.push(name, entry, |name, known, other| {
            // It was counted with the other one.
            if other.exists() {
                below.take(name);
            }
            if let (Owner::Containers(known), Owner::Containers(other)) = (&mut known.owner, &other.owner) {
                known.extend(other);
            }
        });
    }
}

/// How many names stand right below each name.
#[derive(Default)]
struct Below {
    counts: HashMap<Box<[u8]>, usize, foldhash::fast::RandomState>,
    /// The parent of the last names, and how many there were: neighbours mostly have the same one.
    last: (Box<[u8]>, usize),
}

impl Below {
    /// Counts a name.
    fn add(&mut self, name: &Folded) {
        let Some(parent) = ancestors(name.wire()).nth(1) else { return };
        if *self.last.0 != *parent {
            self.settle();
            self.last.0 = parent.into();
        }
        self.last.1 += 1;
    }

    /// Takes a name back that was counted.
    fn take(&mut self, name: &Folded) {
        self.settle();
        if let Some(count) = ancestors(name.wire()).nth(1).and_then(|parent| self.counts.get_mut(parent)) {
            *count -= 1;
        }
    }

    /// Puts down what was counted last.
    fn settle(&mut self) {
        let (parent, count) = std::mem::take(&mut self.last);
        if count > 0 {
            *self.counts.entry(parent).or_default() += count;
        }
    }
}

/// Entities, while those a few steps ahead are on their way from memory.
///
/// A processor goes on while memory is slow, as long as nothing depends on what is read. To count one more user of
/// something depends on it.
fn ahead<'s, T: Entity + 's>(entities: impl Iterator<Item = &'s Arc<T>>) -> impl Iterator<Item = &'s Arc<T>> {
    let all: Vec<_> = entities.collect();
    (0..all.len()).map(move |at| {
        if let Some(next) = all.get(at + 2 * AHEAD) {
            black_box((Arc::strong_count(next), next.name().is_some()));
        }
        if let Some(next) = all.get(at + AHEAD) {
            black_box((first_byte(next.id()), next.name().map(first_byte)));
        }
        all[at]
    })
}

fn first_byte(text: &Text) -> Option<u8> {
    text.as_bytes().first().copied()
}

/// The domain of Kubernetes' services.
pub(super) fn kubernetes_domain() -> Folded {
    Folded::parse(KUBERNETES_DOMAIN).expect("a fixed valid name")
}
