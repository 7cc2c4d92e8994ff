//! Making records: those of services, containers and addresses, each of them from what the zone knows.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use model::entity::texts;
use model::{Container, Defect, Entity, METADATA_NAME, Reach, Service, Text, Value};

use super::links::Linked;
use super::members::{Claims, Port, addresses, is_alias, is_external, path, ports_of, rank};
use super::node::PortNode;
use super::{Data, Node, Searched, WhenNoneHealthy, Zone};
use crate::name::{BadName, Folded};

/// Longest character string (RFC 1035 section 3.3).
const STRING_BYTES_MAX: usize = 255;

/// Records in the making.
pub(super) struct Making<'z> {
    pub(super) zone: &'z Zone,
    /// What was found wrong meanwhile.
    pub(super) defects: Vec<Defect>,
}

/// Which services behind an alias are looked at.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Members {
    /// All of them: what the alias's own name gives.
    All,
    /// Those with containers: what a client that links to the alias gets, as recorded of the predecessor. Only an alias
    /// without containers leads clients out of the cluster.
    Containers,
}

impl<'z> Making<'z> {
    pub(super) fn new(zone: &'z Zone) -> Self {
        Self { zone, defects: Vec::new() }
    }

    /// The records of a name that containers have: those of the newest one.
    pub(super) fn container_node(&self, claims: &Claims) -> Node {
        let Some(newest) = claims.iter().max_by_key(|claim| rank(&self.zone.snapshot, claim)) else {
            return Node::default();
        };
        let mut node = self.members_node(&[newest]);
        node.add(&Data::Text(self.description(newest)), self.zone.ttl);
        if newest.name().is_some_and(|name| name.contains('.')) {
            // With a search list, a container called like a name of the Internet would stand in for it.
            node.searched = Searched::Nobody;
        }
        node
    }

    /// The name that an address leads back to: that of a container here before that of another host's.
    pub(super) fn pointer(&self, claims: &Claims) -> Option<Node> {
        let mut claims: Vec<_> = claims.iter().filter(|claim| claim.runs()).collect();
        claims.sort_by_key(|claim| std::cmp::Reverse(rank(&self.zone.snapshot, claim)));
        let name = claims.into_iter().find_map(|claim| self.zone.container_name(claim)?.ok())?;
        Some(pointer(&name, self.zone.ttl))
    }

    /// The records of a service; `None` when it has no name, since it has no containers.
    pub(super) fn service_node(&mut self, service: &Arc<Service>) -> Option<Node> {
        Some(Node { searched: self.searched(service), ..self.service_records(service)? })
    }

    /// Who finds the name of a service with a search list.
    fn searched(&self, service: &Service) -> Searched {
        let stack = service.stack_uuid().and_then(|stack| self.zone.stacks_of_labels.get(stack));
        let is_metadata = |name: &Text| name.eq_ignore_ascii_case(METADATA_NAME);
        match stack {
            // A stack that a document names may still be open to all hosts.
            _ if service.name().is_some_and(is_metadata) => Searched::Nobody,
            // By such a name a container would stand in for a name of the Internet or another stack's.
            _ if (stack.is_some() || service.is_from_labels())
                && service.name().is_some_and(|name| name.contains('.')) =>
            {
                Searched::Nobody
            }
            Some(stack) => Searched::Stack(stack.clone()),
            None => Searched::All,
        }
    }

    fn service_records(&mut self, service: &Arc<Service>) -> Option<Node> {
        if let Some(vip) = self.vip(service) {
            return Some(Node::addresses([vip], self.zone.ttl));
        }
        match service.kind() {
            _ if is_external(service) => Some(self.external_node(service)),
            _ if is_alias(service) => self.union_node(service, Members::All),
            _ if service.members().is_empty() => None,
            _ => {
                let members = self.members(service);
                Some(self.members_node(&members))
            }
        }
    }

    /// Service records (RFC 2782) of the ports of a service.
    pub(super) fn ports(&mut self, service: &Service, name: &Folded) -> Vec<PortNode> {
        let ports = ports_of(service);
        if ports.is_empty() {
            return Vec::new();
        }
        let members = if self.vip(service).is_some() { None } else { Some(self.members(service)) };
        let node = |port: &Port| {
            let mut node = Node { searched: self.searched(service), ..Node::default() };
            let targets: Vec<(u16, Folded)> = match &members {
                None => vec![(port.number, name.clone())],
                Some(members) => members.iter().filter_map(|member| self.target(member, port)).collect(),
            };
            for (port, target) in targets {
                node.add(&Data::Service { port, target }, self.zone.ttl);
            }
            if node.is_empty() {
                return None;
            }
            let labels = Folded::parse(&port.labels).ok()?;
            let labels = labels.wire().split_last()?.1.into();
            Some(PortNode { labels, node: Arc::new(node) })
        };
        let mut nodes: Vec<PortNode> = Vec::new();
        for port in ports.iter().filter_map(node) {
            // Of two ports with such a name the later one has it.
            nodes.retain(|known| known.labels != port.labels);
            nodes.push(port);
        }
        nodes
    }

    /// Where clients of the local host reach a port of a container: at its own name, or at its host where it is published.
    fn target(&self, container: &Container, port: &Port) -> Option<(u16, Folded)> {
        let snapshot = &self.zone.snapshot;
        match snapshot.reach(container, &|address| self.zone.is_here(address)) {
            Reach::Own(_) => Some((port.number, self.zone.container_name(container)?.ok()?)),
            Reach::Host(_) | Reach::Nowhere(_) => {
                let public = snapshot.public_port(container, port.number, port.protocol)?;
                let host = snapshot.hosts.get(container.host_uuid()?).filter(|host| host.address().is_some())?;
                Some((public, self.zone.host_name(host)?))
            }
        }
    }

    /// The addresses of containers.
    pub(super) fn members_node(&self, members: &[&Arc<Container>]) -> Node {
        let mut node = Node::default();
        for container in members {
            for address in &addresses(self.zone, container) {
                node.add(&Data::Address(*address), self.zone.ttl);
            }
        }
        node
    }

    pub(super) fn vip(&mut self, service: &Service) -> Option<IpAddr> {
        let text = service.fields().text("vip").filter(|text| !text.is_empty())?;
        self.address(text, || format!("{}/vip", path(service)))
    }

    fn external_node(&mut self, service: &Service) -> Node {
        let mut node = Node::default();
        for text in texts(service.fields(), "external_ips").filter(|text| !text.is_empty()) {
            if let Some(address) = self.address(text, || format!("{}/external_ips", path(service))) {
                node.add(&Data::Address(address), self.zone.ttl);
            }
        }
        if let Some(hostname) = service.fields().text("hostname").filter(|hostname| !hostname.is_empty()) {
            let name = Folded::parse(hostname);
            if let Some(name) = self.checked_name(|| format!("{}/hostname", path(service)), name) {
                node.add(&Data::Alias(name.wire().into()), self.zone.ttl);
            }
        }
        node
    }

    /// The records of all services that an alias leads to, through other aliases too.
    pub(super) fn union_node(&mut self, alias: &Arc<Service>, members: Members) -> Option<Node> {
        let mut union: Option<Node> = None;
        let mut seen = HashSet::from([alias.id().clone()]);
        let mut open = vec![alias.clone()];
        while let Some(service) = open.pop() {
            for (key, _) in service.links() {
                let node = match (self.zone.linked(key), service.link_hosts(key)) {
                    (Linked::Service(target), Some(hosts)) => {
                        let target = target.clone();
                        self.node_of_hosts(&target, hosts)
                    }
                    (Linked::Service(target), None) if target.id() == alias.id() => {
                        self.ignored(format!("{}/links/{key}", path(&service)), "an alias that leads back to itself");
                        None
                    }
                    (Linked::Service(target), None) if !seen.insert(target.id().clone()) => None,
                    (Linked::Service(target), None) if is_alias(target) => {
                        open.push(target.clone());
                        None
                    }
                    (Linked::Service(target), None) if members == Members::Containers && is_external(target) => None,
                    (Linked::Service(target), None) => {
                        let target = target.clone();
                        self.service_node(&target)
                    }
                    (Linked::Elsewhere(node), None) => Some(Node::clone(&node)),
                    // A host speaks for its own containers alone.
                    (Linked::Elsewhere(_), Some(_)) => None,
                    (Linked::Nothing(problem), _) => {
                        self.ignored(format!("{}/links/{key}", path(&service)), problem);
                        None
                    }
                };
                if let Some(node) = node {
                    union.get_or_insert_default().add_all(&node);
                }
            }
        }
        union
    }

    /// The addresses of those containers of a service that are on these hosts; `None` if it has none there.
    fn node_of_hosts(&mut self, service: &Service, hosts: &[Value]) -> Option<Node> {
        let running = self.running(service);
        let is_there = |container: &&Arc<Container>| {
            container.host_uuid().is_some_and(|uuid| hosts.iter().any(|host| host.as_text() == Some(uuid)))
        };
        let there: Vec<_> = running.into_iter().filter(is_there).collect();
        (!there.is_empty()).then(|| self.members_node(&self.may_be_asked(service, there)))
    }

    /// Containers of a service that may be asked.
    pub(super) fn members(&mut self, service: &Service) -> Vec<&'z Arc<Container>> {
        let running = self.running(service);
        self.may_be_asked(service, running)
    }

    /// Containers of a service that run.
    fn running(&mut self, service: &Service) -> Vec<&'z Arc<Container>> {
        let mut running = Vec::with_capacity(service.members().len());
        for uuid in service.members().iter() {
            match self.zone.container(uuid) {
                Some(container) if container.runs() => running.push(container),
                Some(_) => {}
                None => self.ignored(format!("{}/containers/{uuid}", path(service)), "no such container"),
            }
        }
        running
    }

    /// Those of a service's running containers that are well, or stand in for them.
    fn may_be_asked(&self, service: &Service, mut running: Vec<&'z Arc<Container>>) -> Vec<&'z Arc<Container>> {
        let zone = self.zone;
        let is_well = zone.snapshot.is_well(service, &running, zone.settings.panic_threshold);
        if running.iter().any(|container| is_well(container)) {
            running.retain(|container| is_well(container));
            return running;
        }
        match zone.settings.when_none_healthy {
            WhenNoneHealthy::All => running,
            WhenNoneHealthy::None => Vec::new(),
            WhenNoneHealthy::Last => {
                let has_address = |container: &&Arc<Container>| !addresses(zone, container).is_empty();
                running.into_iter().rev().find(has_address).into_iter().collect()
            }
        }
    }

    /// What is said about a container in its TXT record.
    fn description(&self, container: &Container) -> Vec<Box<[u8]>> {
        let snapshot = &self.zone.snapshot;
        let service = self.zone.services_of(container).next();
        let name = service.and_then(|service| service.name()).or_else(|| container.fields().text("service_name"));
        let stack = service.and_then(|service| service.stack_name()).or_else(|| container.fields().text("stack_name"));
        let host = container.host_uuid().and_then(|uuid| snapshot.hosts.get(uuid)).and_then(|host| host.name());
        [("stack", stack), ("service", name), ("host", host), ("state", container.fields().text("state"))]
            .into_iter()
            .filter_map(|(key, value)| Some((key, value.filter(|value| !value.is_empty())?)))
            .map(|(key, value)| {
                let mut text = [key, "=", value].concat();
                while text.len() > STRING_BYTES_MAX {
                    text.pop();
                }
                text.into_bytes().into()
            })
            .collect()
    }

    pub(super) fn address(&mut self, text: &str, at: impl FnOnce() -> String) -> Option<IpAddr> {
        let address = text.trim().parse().ok();
        if address.is_none() {
            self.ignored(at(), format!("{text:?} is no address"));
        }
        address
    }

    pub(super) fn checked_name(
        &mut self,
        at: impl FnOnce() -> String,
        name: Result<Folded, BadName>,
    ) -> Option<Folded> {
        name.map_err(|error| self.hidden(&at(), error.to_string())).ok()
    }

    pub(super) fn hidden(&mut self, at: &str, problem: impl Into<String>) {
        self.defects.push(Defect::hidden(at, problem));
    }

    pub(super) fn ignored(&mut self, at: impl Into<String>, problem: impl Into<String>) {
        self.defects.push(Defect::ignored(at, problem));
    }
}

/// A node that points to a name.
pub(super) fn pointer(name: &Folded, ttl: u32) -> Node {
    let mut node = Node::default();
    node.add(&Data::Pointer(name.wire().into()), ttl);
    node
}
