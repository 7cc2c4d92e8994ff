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
use super::members::{is_alias, is_local, own_addresses, runs, service_path};
use super::{Settings, Zone};
use crate::name::Folded;

/// Name of the metadata service.
pub(crate) const METADATA: &str = "rancher-metadata";

/// The zone of a snapshot; `serial` is that of the SOA record and grows with every zone.
pub fn build(snapshot: &Snapshot, settings: &Settings, serial: u32) -> Zone {
    let mut zone = Zone { serial, search: vec![settings.domain.clone()], ..Zone::empty(settings) };
    zone.add_apex(settings.domain.clone());
    let mut building = Building::new(snapshot, settings, zone);
    let services: Vec<_> =
        snapshot.services.values().filter(|service| is_local(snapshot, service.environment_uuid())).collect();
    for service in &services {
        building.learn_service(service);
    }
    for service in services.iter().filter(|service| is_alias(service)) {
        for target in building.linked_services(service) {
            add(&mut building.zone.index.aliases, target.id().clone(), service.id());
        }
    }
    building.metadata();
    for service in &services {
        building.place_service(service);
        building.place_links(service);
    }
    let mut dirty = Dirty::default();
    for container in snapshot.containers.values() {
        building.learn_container(container, &mut dirty);
    }
    building.place(&dirty, snapshot.containers.keys());
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
            add(&mut building.zone.index.member_of, uuid.clone(), after.id());
        }
    }
    for uuid in &containers {
        services.extend(ids(&building.zone.index.member_of, uuid).iter().cloned());
        if let Some(container) = new.containers.get(uuid) {
            building.learn_container(container, &mut dirty);
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
    building.place(&dirty, containers.iter());
    Some(building.zone)
}

/// Names and addresses to be looked at again.
#[derive(Default)]
struct Dirty {
    names: HashSet<Folded, foldhash::fast::RandomState>,
    addresses: HashSet<IpAddr, foldhash::fast::RandomState>,
}

impl Building<'_> {
    fn learn_service(&mut self, service: &Service) {
        let index = &mut self.zone.index;
        if let (Some(stack), Some(name)) = (service.stack_name(), service.name()) {
            let path = service_path(stack, name);
            let known = index.paths.get(&path).and_then(|id| self.snapshot.services.get(id));
            // A sidekick is found by its name too, unless a service has it.
            if known.is_none_or(|known| known.is_sidekick() && !service.is_sidekick()) {
                index.paths.insert(path, service.id().clone());
            }
        }
        for uuid in service.members().iter() {
            add(&mut index.member_of, uuid.clone(), service.id());
        }
    }

    fn learn_container(&mut self, container: &Container, dirty: &mut Dirty) {
        if !self.is_local(container) {
            return;
        }
        if let Some(Ok(name)) = self.container_name(container).filter(|_| runs(container)) {
            add(&mut self.zone.index.named, name.clone(), container.uuid());
            dirty.names.insert(name);
        }
        for address in own_addresses(container) {
            let address = address.to_canonical();
            add(&mut self.zone.index.addressed, address, container.uuid());
            dirty.addresses.insert(address);
        }
        if let Some(shared) = container.network_from() {
            add(&mut self.zone.index.sharers, shared.clone(), container.uuid());
        }
    }

    /// The opposite of [`Self::learn_container`], with the snapshot that it was learned from.
    fn forget_container(&mut self, container: &Container, dirty: &mut Dirty) {
        if let Some(Ok(name)) = self.container_name(container) {
            take(&mut self.zone.index.named, &name, container.uuid());
            dirty.names.insert(name);
        }
        for address in own_addresses(container) {
            let address = address.to_canonical();
            take(&mut self.zone.index.addressed, &address, container.uuid());
            dirty.addresses.insert(address);
        }
        if let Some(shared) = container.network_from() {
            take(&mut self.zone.index.sharers, shared, container.uuid());
        }
    }

    fn place<'t>(&mut self, dirty: &Dirty, containers: impl Iterator<Item = &'t Text>) {
        for name in &dirty.names {
            self.place_name(name);
        }
        for uuid in containers {
            self.place_container(uuid);
        }
        for address in &dirty.addresses {
            self.place_address(*address);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::config::WhenNoneHealthy;

    fn settings() -> Settings {
        Settings {
            domain: Folded::parse("rancher.internal").unwrap(),
            ttl: 1,
            negative_ttl: 1,
            ndots: 0,
            when_none_healthy: WhenNoneHealthy::Last,
            rancher_metadata: vec!["169.254.169.250".parse().unwrap()],
            never_recurse_to: Vec::new(),
        }
    }

    /// One container of a small cluster in which names, addresses and services collide.
    #[derive(Clone, Debug)]
    struct Member {
        name: u8,
        address: Option<u8>,
        state: bool,
        health: u8,
        shares: Option<u8>,
        service: u8,
        age: u8,
        links: Option<u8>,
    }

    fn member() -> impl Strategy<Value = Option<Member>> {
        let parts = (
            0..6u8,
            prop::option::weighted(0.8, 0..8u8),
            prop::bool::weighted(0.8),
            0..3u8,
            prop::option::weighted(0.2, 0..8u8),
            0..6u8,
            0..4u8,
            prop::option::weighted(0.3, 0..8u8),
        );
        let member = parts.prop_map(|(name, address, state, health, shares, service, age, links)| Member {
            name,
            address,
            state,
            health,
            shares,
            service,
            age,
            links,
        });
        prop::option::weighted(0.9, member)
    }

    /// Services 0 and 1 have health checks and ports, 2 is a sidekick of 0, 3 is an alias of 0, 1 and 4, which is an
    /// alias of 3 and 2, 5 is Kubernetes'.
    fn snapshot(members: &[Option<Member>]) -> Snapshot {
        let kinds = ["service", "service", "service", "dnsService", "dnsService", "kubernetesService"];
        let mut objects = Vec::new();
        for (id, kind) in kinds.iter().enumerate() {
            let (uuid, primary) = if id == 2 { (0, 0) } else { (id, id) };
            let port = usize::from(id < 2) * 80;
            objects.push(format!(
                r#"{{"metadata_kind":"service","uuid":"s{uuid}","name":"svc{id}","primary_service_name":"svc{primary}",
                    "stack_name":"Shop","kind":"{kind}","health_check":{{"port":{port}}},"expose":["80/tcp"]}}"#
            ));
        }
        for (service, targets) in [(3, [0, 1, 4]), (4, [3, 2, 9]), (0, [3, 1, 9])] {
            for target in targets {
                objects.push(format!(
                    r#"{{"metadata_kind":"serviceLink","service_uuid":"s{service}","key":"shop/svc{target}","value":"l{target}"}}"#
                ));
            }
        }
        for (id, member) in members.iter().enumerate() {
            let Some(member) = member else { continue };
            let address = member.address.map_or_else(|| "null".to_owned(), |last| format!("\"10.0.0.{last}\""));
            let state = if member.state { "running" } else { "stopped" };
            let health = ["null", "\"healthy\"", "\"unhealthy\""][usize::from(member.health)];
            let shares = member.shares.map_or_else(|| "null".to_owned(), |other| format!("\"c{other}\""));
            objects.push(format!(
                r#"{{"metadata_kind":"container","uuid":"c{id}","name":"n{}","primary_ip":{address},"state":"{state}",
                    "health_state":{health},"network_from_container_uuid":{shares},"create_index":{}}}"#,
                member.name, member.age
            ));
            if !matches!(member.service, 3 | 4) {
                let uuid = if member.service == 2 { 0 } else { member.service };
                objects.push(format!(
                    r#"{{"metadata_kind":"serviceContainerLink","service_uuid":"s{uuid}","service_name":"svc{}","container_uuid":"c{id}"}}"#,
                    member.service
                ));
            }
            if let Some(other) = member.links {
                objects.push(format!(
                    r#"{{"metadata_kind":"containerLink","container_uuid":"c{id}","key":"peer","value":"c{other}"}}"#
                ));
            }
        }
        let objects: Vec<model::Map> = objects.iter().map(|object| serde_json::from_str(object).unwrap()).collect();
        model::objects::read(objects).0
    }

    /// The keys whose values differ.
    fn differing<K: Ord + Clone, V: PartialEq + Clone>(
        one: impl IntoIterator<Item = (K, V)>,
        other: impl IntoIterator<Item = (K, V)>,
    ) -> Vec<K> {
        let (one, other): (BTreeMap<K, V>, BTreeMap<K, V>) = (one.into_iter().collect(), other.into_iter().collect());
        let keys: BTreeSet<&K> = one.keys().chain(other.keys()).collect();
        keys.into_iter().filter(|key| one.get(key) != other.get(key)).cloned().collect()
    }

    fn assert_same(zone: &Zone, anew: &Zone) {
        assert_eq!(differing(zone.names.iter(), anew.names.iter()), Vec::<&Folded>::new());
        assert_eq!(differing(zone.below.iter(), anew.below.iter()), Vec::<&Folded>::new());
        assert_eq!(differing(zone.containers.iter(), anew.containers.iter()), Vec::<&Text>::new());
        assert_eq!(differing(zone.scopes.iter(), anew.scopes.iter()), Vec::<&IpAddr>::new());
        assert_eq!(zone.defects(), anew.defects());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Going on from the zone before gives what building anew gives, whatever changed.
        #[test]
        fn advancing_is_building_anew(steps in prop::collection::vec(prop::collection::vec(member(), 8), 2..6)) {
            let mut old = snapshot(&steps[0]);
            let mut zone = build(&old, &settings(), 1);
            for (step, members) in steps.iter().enumerate().skip(1) {
                let new = snapshot(members).succeeding(&old);
                zone = advance(&zone, &old, &new, &settings()).expect("only containers change");
                assert_same(&zone, &build(&new, &settings(), 1));
                prop_assert_eq!(usize::try_from(zone.serial).unwrap(), step + 1);
                old = new;
            }
        }
    }

    #[test]
    fn what_changes_more_than_containers_is_built_anew() {
        let old = snapshot(&[]);
        let zone = build(&old, &settings(), 1);
        assert!(advance(&zone, &old, &old.clone(), &settings()).is_some());
        let object = |json: &str| serde_json::from_str::<model::Map>(json).unwrap();
        for json in [
            r#"{"metadata_kind":"service","uuid":"s9","name":"more","stack_name":"shop"}"#,
            r#"{"metadata_kind":"service","uuid":"s1","name":"svc1","stack_name":"shop","vip":"10.43.0.1"}"#,
            r#"{"metadata_kind":"host","uuid":"h1","name":"h"}"#,
            r#"{"metadata_kind":"environment","uuid":"e1","name":"e"}"#,
            r#"{"metadata_kind":"defaultData","self":{"host":{"uuid":"h1"}}}"#,
        ] {
            let (new, ..) = model::objects::read(old.objects().chain([object(json)]));
            assert!(advance(&zone, &old, &new, &settings()).is_none(), "{json}");
        }
    }
}
