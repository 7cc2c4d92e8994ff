//! A zone from a snapshot: which names its entities have, and for whom.
//!
//! Names are those of the predecessor. On purpose different: stopped containers have no name, of containers with one
//! name the running, newest one has it, and what has no address is left out. Links of clients are kept as links to
//! names and resolved when they are asked for, so that a change of a service does not touch its clients.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use model::{Change, Container, Entity, Service, Snapshot, Text, changes};

use super::building::Building;
use super::index::{add, ids, take};
use super::members::{is_alias, is_kubernetes, is_local, own_addresses, runs, service_path};
use super::{Settings, Zone};
use crate::name::Folded;

/// Name of the metadata service.
pub(crate) const METADATA: &str = "rancher-metadata";

/// The zone of a snapshot; `serial` is that of the SOA record and grows with every zone.
pub fn build(snapshot: &Snapshot, settings: &Settings, serial: u32) -> Zone {
    let mut zone = Zone { serial, search: vec![settings.domain.clone()], ..Zone::empty(settings) };
    zone.add_apex(settings.domain.clone());
    let mut building = Building::new(snapshot, settings, zone);
    let environment = snapshot.environment_uuid();
    let services: Vec<_> =
        snapshot.services.values().filter(|service| is_local(environment, service.environment_uuid())).collect();
    building.make_room(services.len());
    building.zone.index.has_links = services.iter().any(|service| !service.links().is_empty());
    for service in &services {
        building.learn_service(service);
    }
    building.name_containers();
    for service in services.iter().filter(|service| is_alias(service)) {
        for target in building.linked_services(service) {
            add(&mut building.zone.index.aliases, target.id(), service.id());
        }
    }
    building.metadata();
    for service in &services {
        building.place_service(service);
        building.place_links(service);
    }
    for container in snapshot.containers.values() {
        building.learn_container(container, None);
    }
    let index = &building.zone.index;
    let names: Vec<_> = index.named.iter().map(|(name, _)| name.clone()).collect();
    let addresses: Vec<_> = index.addressed.iter().map(|(address, _)| *address).collect();
    building.place(
        names.iter(),
        snapshot.containers.iter().map(|(uuid, container)| (uuid, Some(container))),
        addresses,
    );
    building.zone
}

/// The zone of `new`, made from the zone of `old` at the cost of what changed; `None` when too much did, so that it
/// has to be built anew: services that came, went or are something else now, other hosts or environments.
pub fn advance(zone: &Zone, old: &Snapshot, new: &Snapshot, settings: &Settings) -> Option<Zone> {
    let host = |snapshot: &Snapshot| snapshot.local_host.as_ref().map(|host| host.uuid().clone());
    let same_externals = Arc::ptr_eq(&old.externals, &new.externals) || old.externals == new.externals;
    if host(old) != host(new)
        || old.environment_uuid() != new.environment_uuid()
        || old.environment != new.environment
        || !same_externals
    {
        return None;
    }
    let renamed = changes(&old.hosts, &new.hosts).any(|change| match change {
        Change::Changed { old, new } => old.name() != new.name(),
        Change::Added(_) | Change::Removed(_) => true,
    });
    if renamed {
        return None;
    }
    let mut services: BTreeSet<Text> = BTreeSet::new();
    let mut containers: BTreeSet<Text> = BTreeSet::new();
    let mut members = Vec::new();
    for change in changes(&old.services, &new.services) {
        let Change::Changed { old: before, new: after } = change else { return None };
        if before.fields() != after.fields() || before.links() != after.links() {
            return None;
        }
        services.insert(after.id().clone());
        members.push((before, after));
    }
    for change in changes(&old.containers, &new.containers) {
        let (Change::Added(container) | Change::Removed(container) | Change::Changed { new: container, .. }) = change;
        containers.insert(container.uuid().clone());
    }
    for (before, after) in &members {
        let (left, joined): (HashSet<_>, HashSet<_>) =
            (before.members().iter().collect(), after.members().iter().collect());
        containers.extend(left.symmetric_difference(&joined).map(|uuid| Text::clone(uuid)));
    }
    for uuid in containers.clone() {
        containers.extend(ids(&zone.index.sharers, &uuid).iter().cloned());
    }

    // What the containers had.
    let mut dirty = Dirty::default();
    let next = Zone { serial: zone.serial.wrapping_add(1), ..zone.clone() };
    let mut forgetting = Building::new(old, settings, next);
    for uuid in &containers {
        services.extend(ids(&forgetting.zone.index.member_of, uuid).iter().cloned());
        if let Some(container) = old.containers.get(uuid) {
            forgetting.forget_container(container, &mut dirty);
        }
    }
    for (before, _) in &members {
        for uuid in before.members().iter() {
            take(&mut forgetting.zone.index.member_of, uuid, before.id());
        }
    }

    // What they have.
    let mut building = Building::new(new, settings, forgetting.zone);
    for (_, after) in &members {
        for uuid in after.members().iter() {
            add(&mut building.zone.index.member_of, uuid, after.id());
        }
    }
    for uuid in &containers {
        services.extend(ids(&building.zone.index.member_of, uuid).iter().cloned());
        if let Some(container) = new.containers.get(uuid) {
            building.learn_container(container, Some(&mut dirty));
        }
    }
    let mut open: Vec<Text> = services.iter().cloned().collect();
    while let Some(id) = open.pop() {
        for alias in ids(&building.zone.index.aliases, &id) {
            if services.insert(alias.clone()) {
                open.push(alias.clone());
            }
        }
    }
    for service in services.iter().filter_map(|id| new.services.get(id)) {
        building.place_service(service);
    }
    let containers = containers.iter().map(|uuid| (uuid, new.containers.get(uuid)));
    building.place(dirty.names.iter(), containers, dirty.addresses.iter().copied());
    Some(building.zone)
}

/// Names and addresses to be looked at again.
#[derive(Default)]
struct Dirty {
    names: HashSet<Folded, foldhash::fast::RandomState>,
    addresses: HashSet<IpAddr, foldhash::fast::RandomState>,
}

impl<'s> Building<'s> {
    fn learn_service(&mut self, service: &Service) {
        let index = &mut self.zone.index;
        index.has_kubernetes |= is_kubernetes(service);
        if let (true, Some(stack), Some(name)) = (index.has_links, service.stack_name(), service.name()) {
            let path = service_path(stack, name);
            let known = index.paths.get(&path).and_then(|id| self.snapshot.services.get(id));
            // A sidekick is found by its name too, unless a service has it.
            if known.is_none_or(|known| known.is_sidekick() && !service.is_sidekick()) {
                index.paths.insert(path, service.id().clone());
            }
        }
        for uuid in service.members().iter() {
            add(&mut index.member_of, uuid, service.id());
        }
    }

    fn learn_container(&mut self, container: &Container, mut dirty: Option<&mut Dirty>) {
        if !self.is_local(container) {
            return;
        }
        if let Some(Ok(name)) = self.container_name(container).filter(|_| runs(container)) {
            if let Some(dirty) = &mut dirty {
                dirty.names.insert(name.clone());
            }
            add(&mut self.zone.index.named, &name, container.uuid());
        }
        for address in &own_addresses(container) {
            let address = address.to_canonical();
            if let Some(dirty) = &mut dirty {
                dirty.addresses.insert(address);
            }
            add(&mut self.zone.index.addressed, &address, container.uuid());
        }
        if let Some(shared) = container.network_from() {
            add(&mut self.zone.index.sharers, shared, container.uuid());
        }
    }

    /// The opposite of [`Self::learn_container`], with the snapshot that it was learned from.
    fn forget_container(&mut self, container: &Container, dirty: &mut Dirty) {
        if let Some(Ok(name)) = self.container_name(container) {
            take(&mut self.zone.index.named, &name, container.uuid());
            dirty.names.insert(name);
        }
        for address in &own_addresses(container) {
            let address = address.to_canonical();
            take(&mut self.zone.index.addressed, &address, container.uuid());
            dirty.addresses.insert(address);
        }
        if let Some(shared) = container.network_from() {
            take(&mut self.zone.index.sharers, shared, container.uuid());
        }
    }

    fn place<'t>(
        &mut self,
        names: impl Iterator<Item = &'t Folded>,
        containers: impl Iterator<Item = (&'t Text, Option<&'s Arc<Container>>)>,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) {
        for name in names {
            self.place_name(name);
        }
        for (uuid, container) in containers {
            self.place_container(uuid, container);
        }
        for address in addresses {
            self.place_address(address);
        }
    }
}

#[cfg(test)]
mod tests;
