//! What single clients see: the links of their services and their own, search lists and upstreams.

use std::net::SocketAddr;
use std::sync::Arc;

use model::entity::texts;
use model::{Container, Entity, Service, Snapshot, Text};

use super::members::{is_alias, path, service_path};
use super::records::{Making, elsewhere_node};
use super::{Links, Node, Scope, Target};
use crate::name::Folded;
use crate::upstream::PORT;

/// What a service link names.
pub(super) enum Linked<'s> {
    /// A service of this environment.
    Service(&'s Arc<Service>),
    /// A service of another environment, as its records.
    Elsewhere(Arc<Node>),
    /// Nothing, and why.
    Nothing(&'static str),
}

impl<'z> Making<'z> {
    /// The services that a link of this one leads to, of this environment.
    pub(super) fn linked_services(&self, service: &Service) -> Vec<&'z Arc<Service>> {
        let linked = |(key, _): &(Text, _)| match self.linked(key) {
            Linked::Service(target) => Some(target),
            Linked::Elsewhere(_) | Linked::Nothing(_) => None,
        };
        service.links().iter().filter_map(linked).collect()
    }

    /// What a key of service links names: `stack/service`, `environment/stack/service` or
    /// `region/environment/stack/service`.
    pub(super) fn linked(&self, key: &str) -> Linked<'z> {
        let snapshot = &self.zone.snapshot;
        let parts: Vec<&str> = key.split('/').collect();
        let (region, environment, stack, service) = match parts[..] {
            [stack, service] => (None, None, stack, service),
            [environment, stack, service] => (None, Some(environment), stack, service),
            [region, environment, stack, service] => (Some(region), Some(environment), stack, service),
            _ => return Linked::Nothing("expected `stack/service`"),
        };
        let Some(environment) = environment else {
            let id = self.zone.index.paths.get(&service_path(stack, service));
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
        match elsewhere_node(found, target, self.zone.ttl) {
            Some(node) => Linked::Elsewhere(Arc::new(node)),
            None => Linked::Nothing("that service has no containers"),
        }
    }

    /// What a container sees.
    pub(super) fn scope(&mut self, container: &Container) -> Scope {
        let mut search = Vec::new();
        for text in texts(container.fields(), "dns_search") {
            let at = || format!("containers/{}/dns_search", container.uuid());
            search.extend(self.checked_name(at, Folded::parse(text)));
        }
        let mut upstreams: Vec<SocketAddr> = Vec::new();
        for text in texts(container.fields(), "dns") {
            let Some(address) = self.address(text, || format!("containers/{}/dns", container.uuid())) else { continue };
            // A loopback address is the container's own, where this process cannot ask.
            if !address.is_loopback() && !self.zone.settings.never_recurse_to.contains(&address) {
                upstreams.push(SocketAddr::new(address, PORT));
            }
        }
        let (mut links, mut stacks) = (Vec::new(), Vec::new());
        let zone = self.zone;
        for id in zone.member_of(container.uuid()) {
            let stack = zone.snapshot.services.get(id).and_then(|service| service.stack_name());
            stacks.extend(stack.and_then(|stack| zone.settings.domain.under(stack).ok()));
            links.extend(zone.index.links.get(id).map(|linking| linking.links(zone).clone()));
        }
        if !container.links().is_empty() {
            links.push(Arc::new(self.container_links(container)));
        }
        Scope { search, upstreams: upstreams.into(), links, stacks }
    }

    /// The names that links of a service give to its containers.
    pub(super) fn service_links(&mut self, service: &Arc<Service>) -> Links {
        let mut links = Links::default();
        for (key, alias) in service.links() {
            let at = format!("{}/links/{key}", path(service));
            let written = alias.as_text().filter(|alias| !alias.is_empty());
            let last = key.rsplit('/').next().unwrap_or_default();
            let alias = written.map_or(last, |alias| alias);
            let domain = &self.zone.settings.domain;
            match self.linked(key) {
                Linked::Service(target) => {
                    let Ok(to) = self.zone.service_name(target) else { continue };
                    let stack = target.stack_name().map_or("", |stack| stack);
                    let short = domain.under(alias);
                    let long = domain.under(&format!("{alias}.{stack}"));
                    let to = if is_alias(target) { Target::Id(target.id().clone()) } else { Target::Name(to) };
                    for name in [short, long] {
                        if let Some(name) = self.checked_name(|| at.clone(), name) {
                            links.insert(name, to.clone());
                        }
                    }
                }
                Linked::Elsewhere(node) => {
                    for name in [Folded::parse(alias), domain.under(alias)] {
                        if let Some(name) = self.checked_name(|| at.clone(), name) {
                            links.insert(name, Target::Node(node.clone()));
                        }
                    }
                }
                Linked::Nothing(problem) => self.ignored(at, problem),
            }
        }
        links
    }

    /// The names that links of a container give to it.
    fn container_links(&mut self, container: &Container) -> Links {
        let mut links = Links::default();
        for (alias, target) in container.links() {
            let at = format!("containers/{}/links/{alias}", container.uuid());
            // A container that is not there yet may come.
            let Some(uuid) = target.as_text() else {
                self.ignored(at, "no such container");
                continue;
            };
            if let Some(name) = self.checked_name(|| at, self.zone.settings.domain.under(alias)) {
                links.insert(name, Target::Id(uuid.clone()));
            }
        }
        links
    }
}
