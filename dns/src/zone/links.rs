//! What links name: services of this environment, and those of others as their records.

use std::net::IpAddr;
use std::sync::Arc;

use model::entity::texts;
use model::{Entity, Service, Snapshot, Text};

use super::members::{is_external, service_path};
use super::{Data, Node, Zone};
use crate::name::Folded;

/// What a service link names.
pub(super) enum Linked<'s> {
    /// A service of this environment.
    Service(&'s Arc<Service>),
    /// A service of another environment, as its records.
    Elsewhere(Arc<Node>),
    /// Nothing, and why.
    Nothing(&'static str),
}

impl Zone {
    /// The services that a link of this one leads to, of this environment.
    pub(super) fn linked_services(&self, service: &Service) -> Vec<&Arc<Service>> {
        let linked = |(key, _): &(Text, _)| match self.linked(key) {
            Linked::Service(target) => Some(target),
            Linked::Elsewhere(_) | Linked::Nothing(_) => None,
        };
        service.links().iter().filter_map(linked).collect()
    }

    /// What a key of service links names: `stack/service`, `environment/stack/service` or
    /// `region/environment/stack/service`.
    pub(super) fn linked(&self, key: &str) -> Linked<'_> {
        let snapshot = &self.snapshot;
        let parts: Vec<&str> = key.split('/').collect();
        let (region, environment, stack, service) = match parts[..] {
            [stack, service] => (None, None, stack, service),
            [environment, stack, service] => (None, Some(environment), stack, service),
            [region, environment, stack, service] => (Some(region), Some(environment), stack, service),
            _ => return Linked::Nothing("expected `stack/service`"),
        };
        let Some(environment) = environment else {
            let id = self.index.paths.get(&service_path(stack, service));
            return match id.and_then(|id| snapshot.services.get(id)) {
                Some(service) => Linked::Service(service),
                None => Linked::Nothing("no such service"),
            };
        };
        let own_region = snapshot.environment.as_ref().and_then(|environment| environment.text("region_name"));
        let region = region.map(Text::from).or_else(|| own_region.cloned());
        let named = |snapshot: &&Snapshot| {
            let Some(fields) = &snapshot.environment else { return false };
            let same = |key, wanted: &str| fields.text(key).is_some_and(|text| text.eq_ignore_ascii_case(wanted));
            same("name", environment) && region.as_ref().is_none_or(|region| same("region_name", region))
        };
        let others = snapshot.externals.iter().map(|external| &**external);
        let Some(found) = std::iter::once(snapshot).chain(others).find(named) else {
            return Linked::Nothing("no such environment");
        };
        let is_target = |candidate: &&Arc<Service>| {
            let same = |text: Option<&Text>, wanted: &str| {
                text.is_some_and(|text| text.to_lowercase() == wanted.to_lowercase())
            };
            same(candidate.stack_name(), stack) && same(candidate.name(), service)
        };
        let mut targets: Vec<_> = found.services.values().filter(is_target).collect();
        targets.sort_by_key(|target| target.is_sidekick());
        let Some(target) = targets.first() else { return Linked::Nothing("no such service in that environment") };
        match elsewhere_node(found, target, self.ttl) {
            Some(node) => Linked::Elsewhere(Arc::new(node)),
            None => Linked::Nothing("that service has no containers"),
        }
    }
}

/// The records of a service of another environment: its containers there are not judged by health, since the checks
/// of other environments are not seen here.
fn elsewhere_node(snapshot: &Snapshot, service: &Service, ttl: u32) -> Option<Node> {
    let address = |text: &Text| text.trim().parse::<IpAddr>().ok();
    if let Some(vip) = service.fields().text("vip").and_then(address) {
        return Some(Node::addresses([vip], ttl));
    }
    if is_external(service) {
        let mut node = Node::addresses(texts(service.fields(), "external_ips").filter_map(address), ttl);
        let hostname = service.fields().text("hostname").filter(|hostname| !hostname.is_empty());
        if let Some(name) = hostname.and_then(|hostname| Folded::parse(hostname).ok()) {
            node.add(&Data::Alias(name.wire().into()), ttl);
        }
        return Some(node);
    }
    if service.members().is_empty() {
        return None;
    }
    let members = service.members().iter().filter_map(|uuid| snapshot.containers.get(uuid));
    let running = members.filter(|container| container.runs());
    // Routes between environments are not known here.
    let addresses = running.flat_map(|container| snapshot.reachable_addresses(container, &|_| false));
    Some(Node::addresses(addresses, ttl))
}
