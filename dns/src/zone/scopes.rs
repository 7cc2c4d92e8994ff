//! What single clients see: the links of their services and their own, search lists and upstreams.

use std::net::SocketAddr;
use std::sync::Arc;

use model::entity::texts;
use model::{Container, Entity, Service};

use super::links::Linked;
use super::members::{is_alias, path};
use super::records::Making;
use super::{Links, Scope, Target};
use crate::name::Folded;
use crate::upstream::PORT;

impl Making<'_> {
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
            match self.zone.linked(key) {
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
