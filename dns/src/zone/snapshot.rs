//! A zone from a snapshot: which names its entities have, and for whom.
//!
//! Names are those of the predecessor. On purpose different: stopped containers have no name, of containers with one
//! name the running, newest one has it, and what has no address is left out. Links of clients are stored as links to
//! names and resolved when they are asked for, so that a change of a service does not touch its clients.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, OnceLock};

use model::{Change, Entity, Snapshot, Text, changes};

use super::checks::Subject;
use super::index::ids;
use super::members::own_addresses;
use super::{HOSTS, Settings, Zone};

/// The zone of a snapshot; `serial` is that of the SOA record and grows with every zone.
pub fn build(snapshot: &Snapshot, settings: &Settings, serial: u32) -> Zone {
    let mut zone = Zone { serial, search: vec![settings.domain.clone()], ..Zone::empty(settings) };
    zone.add_apex(settings.domain.clone());
    zone.snapshot = snapshot.clone();
    zone.hosts_domain = settings.domain.under(HOSTS).ok();
    zone.fill();
    zone
}

/// The zone of `new`, made from the one before at the cost of what changed; `None` when too much did, so that it
/// has to be built again: services that came, went or are something else now, other hosts or environments.
pub fn advance(zone: &Zone, new: &Snapshot) -> Option<Zone> {
    let old = &zone.snapshot;
    let host = |snapshot: &Snapshot| snapshot.local_host.as_ref().map(|host| host.uuid().clone());
    let same_externals = Arc::ptr_eq(&old.externals, &new.externals) || old.externals == new.externals;
    if host(old) != host(new)
        || old.is_panic != new.is_panic
        || old.environment_uuid() != new.environment_uuid()
        || old.environment != new.environment
        || !same_externals
    {
        return None;
    }
    let moved = changes(&old.hosts, &new.hosts).any(|change| match change {
        Change::Changed { old, new } => old.name() != new.name() || old.address() != new.address(),
        Change::Added(_) | Change::Removed(_) => true,
    });
    let named = changes(&old.stacks, &new.stacks).any(|change| match change {
        Change::Changed { old, new } => old.name() != new.name() || old.is_from_labels() != new.is_from_labels(),
        Change::Added(stack) | Change::Removed(stack) => stack.is_from_labels(),
    });
    if moved || named {
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
    if old.local_host.is_some() {
        // An address that a container here takes leads to that of another host no more, and again when it is given back.
        for uuid in containers.clone() {
            let versions = [(old, old.containers.get(&uuid)), (new, new.containers.get(&uuid))];
            let here = versions.into_iter().filter_map(|(snapshot, container)| Some((snapshot, container?)));
            for (snapshot, container) in here.filter(|(snapshot, container)| snapshot.is_local(container)) {
                let addresses = own_addresses(snapshot, container);
                let places = addresses.iter().filter_map(|address| zone.addresses.get(&address.to_canonical()));
                let claims = places.flat_map(|place| place.claims.iter());
                containers.extend(claims.filter(|claim| !old.is_local(claim)).map(|claim| claim.uuid().clone()));
            }
        }
    }
    for uuid in containers.clone() {
        containers.extend(ids(&zone.index.sharers, &uuid).iter().cloned());
    }

    let mut next = Zone { serial: zone.serial.wrapping_add(1), findings: OnceLock::new(), ..zone.clone() };
    let mut addresses = HashSet::new();
    for uuid in &containers {
        services.extend(next.member_of(uuid).iter().cloned());
        if let Some(container) = old.containers.get(uuid) {
            next.forget_container(container, &mut addresses);
        }
    }
    next.snapshot = new.clone();
    for (before, after) in &members {
        next.change_members(before, after);
    }
    for uuid in &containers {
        services.extend(next.member_of(uuid).iter().cloned());
        if let Some(container) = new.containers.get(uuid) {
            next.learn_container(container, &mut addresses);
        }
    }
    for container in containers.iter().filter_map(|uuid| new.containers.get(uuid)) {
        next.learn_reach(container);
    }
    let mut open: Vec<Text> = services.iter().cloned().collect();
    while let Some(id) = open.pop() {
        for alias in ids(&next.index.aliases, &id) {
            if services.insert(alias.clone()) {
                open.push(alias.clone());
            }
        }
    }
    for service in services.iter().filter_map(|id| new.services.get(id)) {
        next.place_service(service);
    }
    if let Some(findings) = zone.findings.get() {
        let mut findings = findings.clone();
        let subjects = services.into_iter().map(Subject::Service);
        let subjects = subjects.chain(containers.into_iter().map(Subject::Container));
        for subject in subjects.chain(addresses.into_iter().map(Subject::Scope)) {
            next.check(subject, &mut findings);
        }
        next.findings = findings.into();
    }
    Some(next)
}

#[cfg(test)]
mod tests;
