//! Building a zone: the records of services, containers and clients, each of them on its own.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt as _};
use hickory_proto::rr::rdata::{CNAME, PTR, SRV, TXT};
use hickory_proto::rr::{Name, RData, RecordType};
use model::entity::texts;
use model::{Container, Defect, Entity, Service, Snapshot, Text};

use super::index::{Subject, ids};
use super::members::{
    Port, addresses, is_alias, is_checked, is_external, is_healthy, is_kubernetes, path, ports_of, rank, runs,
    service_path,
};
use super::snapshot::METADATA;
use super::{Links, Node, Scope, Settings, Target, Zone, address_data, reverse_name};
use crate::config::WhenNoneHealthy;
use crate::name::{BadName, Folded};

/// Domain of the services that Kubernetes gave addresses to.
const KUBERNETES_DOMAIN: &str = "svc.cluster.local";

/// Port of DNS (RFC 1035 section 4.2).
const PORT: u16 = 53;

/// A zone in the making.
pub(super) struct Building<'s> {
    pub(super) snapshot: &'s Snapshot,
    pub(super) settings: &'s Settings,
    pub(super) zone: Zone,
    kubernetes: Folded,
    /// The uuid of the snapshot's own environment.
    environment: Option<&'s Text>,
    /// The containers by uuid with their names, and the services by id, when all of them are looked at: searching the
    /// snapshot's tables takes several times as long. What is not here is there.
    containers: HashMap<&'s Text, (&'s Arc<Container>, ContainerName)>,
    services: HashMap<&'s Text, &'s Arc<Service>>,
    /// What is wrong with what is being looked at.
    defects: Vec<Defect>,
}

/// The name of a container; `None` when it has none, an error when it can be none.
type ContainerName = Option<Result<Folded, BadName>>;

impl<'s> Building<'s> {
    /// Goes on from `zone`.
    pub(super) fn new(snapshot: &'s Snapshot, settings: &'s Settings, zone: Zone) -> Self {
        let kubernetes = Folded::parse(KUBERNETES_DOMAIN).expect("a fixed valid name");
        let (containers, services) = (HashMap::new(), HashMap::new());
        let environment = snapshot.environment_uuid();
        Self { snapshot, settings, zone, kubernetes, environment, containers, services, defects: Vec::new() }
    }

    /// Gets ready for all of the snapshot, of whose services so many are of this environment.
    pub(super) fn make_room(&mut self, services: usize) {
        let containers = self.snapshot.containers.len();
        // Names of services, and of a port of each; names and addresses of containers.
        self.zone.names.reserve(2 * services + 2 * containers);
        self.zone.below.reserve(2 * services);
        self.zone.containers.reserve(containers);
        let index = &mut self.zone.index;
        index.owners.reserve(2 * services);
        index.member_of.reserve(containers);
        index.named.reserve(containers);
        index.addressed.reserve(containers);
    }

    /// Finds out the names of all containers; their services have to be known.
    pub(super) fn name_containers(&mut self) {
        self.services = self.snapshot.services.iter().collect();
        let containers = self.snapshot.containers.iter();
        let named = containers.map(|(uuid, container)| (uuid, (container, self.container_name(container))));
        self.containers = named.collect();
    }

    fn container(&self, uuid: &Text) -> Option<&'s Arc<Container>> {
        self.containers.get(uuid).map_or_else(|| self.snapshot.containers.get(uuid), |(container, _)| Some(container))
    }

    fn service(&self, id: &Text) -> Option<&'s Arc<Service>> {
        self.services.get(id).copied().or_else(|| self.snapshot.services.get(id))
    }

    /// Our own names.
    pub(super) fn metadata(&mut self) {
        let addresses = &self.settings.rancher_metadata;
        let Ok(name) = self.settings.domain.under(METADATA) else { return };
        if addresses.is_empty() {
            return;
        }
        for address in addresses {
            self.own(reverse_name(*address), pointer(&name), &Text::from(""));
        }
        let node = Arc::new(Node::addresses(addresses.iter().copied(), None));
        self.own(name, node, &Text::from(""));
    }

    /// Puts the records of a service where they belong, or takes them away.
    pub(super) fn place_service(&mut self, service: &Arc<Service>) {
        self.place_service_names(service);
        self.settle(Subject::Service(service.id().clone()));
    }

    fn place_service_names(&mut self, service: &Arc<Service>) {
        let Some(name) = self.checked_name(|| path(service), self.service_name(service)) else { return };
        if !self.claim(&name, service.id()) {
            self.hidden(&path(service), format!("{name} is the name of something else already"));
            return;
        }
        let (vip, ports) = (self.vip(service), ports_of(service));
        let is_plain = vip.is_none() && stands_for_members(service);
        let members = if is_plain || (vip.is_none() && !ports.is_empty()) { self.members(service) } else { Vec::new() };
        self.place_ports(service, &name, ports, vip, &members);
        let node = if is_plain { Some(self.members_node(&members)) } else { self.service_node(service) };
        let Some(node) = node else {
            self.zone.containers.remove(service.id());
            return self.zone.remove(&name);
        };
        if let Some(vip) = vip {
            self.own(reverse_name(vip), pointer(&name), service.id());
        }
        if is_alias(service) {
            let linked = self.union_node(service, Members::Containers).filter(|linked| !linked.sets.is_empty());
            let linked = linked.unwrap_or_else(|| node.clone());
            self.zone.containers.insert(service.id().clone(), Arc::new(linked));
        }
        self.zone.insert(name, Arc::new(node));
    }

    /// Service records (RFC 2782) of the ports that a service tells about.
    fn place_ports(
        &mut self,
        service: &Service,
        name: &Folded,
        ports: Vec<Port>,
        vip: Option<IpAddr>,
        members: &[&Arc<Container>],
    ) {
        if ports.is_empty() {
            return;
        }
        let targets: Vec<Name> = if vip.is_some() {
            vec![name.name()]
        } else {
            members.iter().filter_map(|container| Some(self.container_name(container)?.ok()?.name())).collect()
        };
        for port in ports {
            let Ok(name) = name.under(&port.labels) else { continue };
            let mut node = Node::default();
            for target in &targets {
                node.add(RData::SRV(SRV::new(0, 0, port.number, target.clone())), None);
            }
            // Of two services with such a name the later one has it.
            self.zone.index.owners.insert(name.clone(), service.id().clone());
            if targets.is_empty() {
                self.zone.remove(&name);
            } else {
                self.zone.insert(name, Arc::new(node));
            }
        }
    }

    /// Puts the records of a name of containers where they belong, or takes them away.
    pub(super) fn place_name(&mut self, name: &Folded) {
        if self.zone.index.owners.contains_key(name) {
            return;
        }
        let claims = ids(&self.zone.index.named, name).iter();
        let newest = claims.filter_map(|uuid| self.container(uuid)).max_by_key(|claim| rank(claim));
        let Some(container) = newest else { return self.zone.remove(name) };
        let mut node = self.members_node(&[container]);
        node.add(RData::TXT(TXT::new(self.description(container))), None);
        self.zone.insert(name.clone(), Arc::new(node));
    }

    /// Puts the records of a container where links find them, whatever its name, or takes them away.
    pub(super) fn place_container(&mut self, uuid: &Text, container: Option<&'s Arc<Container>>) {
        let container = container.filter(|container| self.is_local(container));
        if let Some(container) = container.filter(|container| runs(container)) {
            let node = self.members_node(&[container]);
            self.zone.containers.insert(uuid.clone(), Arc::new(node));
        } else {
            self.zone.containers.remove(uuid);
        }
        if let Some(container) = container {
            self.check_container(container);
        }
        self.settle(Subject::Container(uuid.clone()));
    }

    /// Puts the pointer and the client's view of an address where they belong, or takes them away.
    pub(super) fn place_address(&mut self, address: IpAddr) {
        let claims = ids(&self.zone.index.addressed, &address).iter();
        let mut claims: Vec<_> = claims.filter_map(|uuid| self.container(uuid)).collect();
        claims.sort_by_key(|claim| std::cmp::Reverse(rank(claim)));
        let reverse = reverse_name(address);
        if !self.zone.index.owners.contains_key(&reverse) {
            let mut named = claims.iter().filter(|claim| runs(claim));
            match named.find_map(|claim| self.container_name(claim)?.ok()) {
                Some(name) => self.zone.insert(reverse, pointer(&name)),
                None => self.zone.remove(&reverse),
            }
        }
        // When the snapshot was made for a host, only its containers ask here; without a host all of them may.
        let host = self.snapshot.local_host.as_ref().map(|host| host.uuid());
        let client = claims.into_iter().find(|claim| host.is_none_or(|host| claim.host_uuid() == Some(host)));
        match client {
            Some(container) => {
                let scope = self.scope(container);
                self.zone.scopes.insert(address, Arc::new(scope));
            }
            None => drop(self.zone.scopes.remove(&address)),
        }
        self.settle(Subject::Scope(address));
    }

    /// Keeps the links of a service for its containers.
    pub(super) fn place_links(&mut self, service: &Arc<Service>) {
        if !service.links().is_empty() {
            let links = Arc::new(self.service_links(service));
            self.zone.index.links.insert(service.id().clone(), links);
            self.settle(Subject::Links(service.id().clone()));
        }
    }

    /// The services that a link of this one leads to, of this environment.
    pub(super) fn linked_services(&self, service: &Service) -> Vec<&'s Arc<Service>> {
        let linked = |(key, _): &(Text, _)| match self.linked(key) {
            Linked::Service(target) => Some(target),
            Linked::Elsewhere(_) | Linked::Nothing(_) => None,
        };
        service.links().iter().filter_map(linked).collect()
    }

    /// Whether a container is of this environment.
    pub(super) fn is_local(&self, container: &Container) -> bool {
        super::members::is_local(self.environment, container.environment_uuid())
    }

    /// Puts records at a name that containers do not get.
    fn own(&mut self, name: Folded, node: Arc<Node>, owner: &Text) {
        self.zone.index.owners.insert(name.clone(), owner.clone());
        self.zone.insert(name, node);
    }

    /// Gives a name to a service; tells whether it is its, and not that of something else already.
    fn claim(&mut self, name: &Folded, owner: &Text) -> bool {
        if let Some(known) = self.zone.index.owners.get(name) {
            return known == owner;
        }
        self.zone.index.owners.insert(name.clone(), owner.clone());
        true
    }

    /// Files what was found wrong.
    fn settle(&mut self, subject: Subject) {
        if self.defects.is_empty() {
            self.zone.index.defects.remove(&subject);
        } else {
            self.defects.sort_by(|a, b| (&a.path, &a.problem).cmp(&(&b.path, &b.problem)));
            self.defects.dedup();
            self.zone.index.defects.insert(subject, std::mem::take(&mut self.defects).into());
        }
    }

    /// The records of a service; `None` when it has no name, since it has no containers.
    fn service_node(&mut self, service: &Arc<Service>) -> Option<Node> {
        if let Some(vip) = self.vip(service) {
            return Some(Node::addresses([vip], None));
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

    /// The addresses of containers.
    fn members_node(&self, members: &[&Arc<Container>]) -> Node {
        let mut node = Node::default();
        for container in members {
            for address in &addresses(self.snapshot, container) {
                node.add(address_data(*address), None);
            }
        }
        node
    }

    fn vip(&mut self, service: &Service) -> Option<IpAddr> {
        let text = service.fields().text("vip").filter(|text| !text.is_empty())?;
        self.address(text, || format!("{}/vip", path(service)))
    }

    fn external_node(&mut self, service: &Service) -> Node {
        let mut node = Node::default();
        for text in texts(service.fields(), "external_ips").filter(|text| !text.is_empty()) {
            if let Some(address) = self.address(text, || format!("{}/external_ips", path(service))) {
                node.add(address_data(address), None);
            }
        }
        if let Some(hostname) = service.fields().text("hostname").filter(|hostname| !hostname.is_empty()) {
            let name = Folded::parse(hostname);
            if let Some(name) = self.checked_name(|| format!("{}/hostname", path(service)), name) {
                node.add(RData::CNAME(CNAME(name.name())), None);
            }
        }
        node
    }

    /// The records of all services that an alias leads to, through other aliases too.
    fn union_node(&mut self, alias: &Arc<Service>, members: Members) -> Option<Node> {
        let mut union: Option<Node> = None;
        let mut seen = HashSet::from([alias.id().clone()]);
        let mut open = vec![alias.clone()];
        while let Some(service) = open.pop() {
            for (key, _) in service.links() {
                let node = match self.linked(key) {
                    Linked::Service(target) if target.id() == alias.id() => {
                        self.ignored(format!("{}/links/{key}", path(&service)), "an alias that leads back to itself");
                        None
                    }
                    Linked::Service(target) if !seen.insert(target.id().clone()) => None,
                    Linked::Service(target) if is_alias(target) => {
                        open.push(target.clone());
                        None
                    }
                    Linked::Service(target) if members == Members::Containers && is_external(target) => None,
                    Linked::Service(target) => {
                        let target = target.clone();
                        self.service_node(&target)
                    }
                    Linked::Elsewhere(node) => Some(node),
                    Linked::Nothing(problem) => {
                        self.ignored(format!("{}/links/{key}", path(&service)), problem);
                        None
                    }
                };
                for set in node.iter().flat_map(|node| &node.sets) {
                    let union = union.get_or_insert_default();
                    if set.kind == RecordType::CNAME {
                        // A name can be an alias of one other name only (RFC 1034 section 3.6.2); the last one wins.
                        union.sets.retain(|known| known.kind != set.kind);
                    }
                    for data in &set.data {
                        union.add(data.clone(), set.ttl);
                    }
                }
                if node.is_some() {
                    union.get_or_insert_default();
                }
            }
        }
        union
    }

    /// What a key of service links names: `stack/service`, `environment/stack/service` or
    /// `region/environment/stack/service`.
    fn linked(&self, key: &str) -> Linked<'s> {
        let parts: Vec<&str> = key.split('/').collect();
        let (region, environment, stack, service) = match parts[..] {
            [stack, service] => (None, None, stack, service),
            [environment, stack, service] => (None, Some(environment), stack, service),
            [region, environment, stack, service] => (Some(region), Some(environment), stack, service),
            _ => return Linked::Nothing("expected `stack/service`"),
        };
        let Some(environment) = environment else {
            let id = self.zone.index.paths.get(&service_path(stack, service));
            return match id.and_then(|id| self.snapshot.services.get(id)) {
                Some(service) => Linked::Service(service),
                None => Linked::Nothing("no such service"),
            };
        };
        let own_region = self.snapshot.environment.as_ref().and_then(|environment| environment.text("region_name"));
        let region = region.map(Text::from).or_else(|| own_region.cloned());
        let named = |snapshot: &&Snapshot| {
            let Some(fields) = &snapshot.environment else { return false };
            let same = |key, wanted: &str| fields.text(key).is_some_and(|text| text.eq_ignore_ascii_case(wanted));
            same("name", environment) && region.as_ref().is_none_or(|region| same("region_name", region))
        };
        let others = self.snapshot.externals.iter().map(|external| &**external);
        let Some(found) = std::iter::once(self.snapshot).chain(others).find(named) else {
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
        match elsewhere_node(found, target) {
            Some(node) => Linked::Elsewhere(node),
            None => Linked::Nothing("that service has no containers"),
        }
    }

    /// Containers of a service that may be asked.
    fn members(&mut self, service: &Service) -> Vec<&'s Arc<Container>> {
        let mut running = Vec::with_capacity(service.members().len());
        for uuid in service.members().iter() {
            match self.container(uuid) {
                Some(container) if runs(container) => running.push(container),
                Some(_) => {}
                None => self.ignored(format!("{}/containers/{uuid}", path(service)), "no such container"),
            }
        }
        let unchecked = |container: &&Arc<Container>| container.health_state().is_none();
        let checked = running.iter().any(unchecked) && is_checked(service.fields());
        let healthy: Vec<_> = running.iter().copied().filter(|container| is_healthy(container, checked)).collect();
        match (healthy.is_empty(), self.settings.when_none_healthy) {
            (false, _) => healthy,
            (true, WhenNoneHealthy::All) => running,
            (true, WhenNoneHealthy::None) => Vec::new(),
            (true, WhenNoneHealthy::Last) => {
                let has_address = |container: &&Arc<Container>| !addresses(self.snapshot, container).is_empty();
                running.into_iter().rev().find(has_address).into_iter().collect()
            }
        }
    }

    /// The services that a container belongs to.
    fn services_of(&self, container: &Container) -> Vec<&'s Arc<Service>> {
        let ids = ids(&self.zone.index.member_of, container.uuid()).iter();
        ids.filter_map(|id| self.service(id)).collect()
    }

    fn scope(&mut self, container: &Container) -> Scope {
        let mut search = Vec::new();
        for text in texts(container.fields(), "dns_search") {
            let at = || format!("containers/{}/dns_search", container.uuid());
            search.extend(self.checked_name(at, Folded::parse(text)));
        }
        let mut upstreams: Vec<SocketAddr> = Vec::new();
        for text in texts(container.fields(), "dns") {
            let Some(address) = self.address(text, || format!("containers/{}/dns", container.uuid())) else { continue };
            // A loopback address is the container's own, where this process cannot ask.
            if !address.is_loopback() && !self.settings.never_recurse_to.contains(&address) {
                upstreams.push(SocketAddr::new(address, PORT));
            }
        }
        let mut links = Vec::new();
        for id in ids(&self.zone.index.member_of, container.uuid()) {
            links.extend(self.zone.index.links.get(id).cloned());
        }
        if !container.links().is_empty() {
            links.push(Arc::new(self.container_links(container)));
        }
        Scope { search, upstreams: upstreams.into(), links }
    }

    fn service_links(&mut self, service: &Arc<Service>) -> Links {
        let mut links = Links::default();
        for (key, alias) in service.links() {
            let at = format!("{}/links/{key}", path(service));
            let written = alias.as_text().filter(|alias| !alias.is_empty());
            let last = key.rsplit('/').next().unwrap_or_default();
            let alias = written.map_or(last, |alias| alias);
            let domain = &self.settings.domain;
            match self.linked(key) {
                Linked::Service(target) => {
                    let Ok(to) = self.service_name(target) else { continue };
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
                    let node = Arc::new(node);
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

    fn container_links(&mut self, container: &Container) -> Links {
        let mut links = Links::default();
        for (alias, target) in container.links() {
            let at = format!("containers/{}/links/{alias}", container.uuid());
            // A container that is not there yet may come.
            let Some(uuid) = target.as_text() else {
                self.ignored(at, "no such container");
                continue;
            };
            if let Some(name) = self.checked_name(|| at, self.settings.domain.under(alias)) {
                links.insert(name, Target::Id(uuid.clone()));
            }
        }
        links
    }

    /// `service.stack.domain`, for a sidekick `sidekick.service.stack.domain`.
    pub(super) fn service_name(&self, service: &Service) -> Result<Folded, BadName> {
        let name = service.name().map_or("", |name| name);
        let stack = service.stack_name().map_or("", |stack| stack);
        let domain = if is_kubernetes(service) { &self.kubernetes } else { &self.settings.domain };
        if service.is_sidekick() {
            domain.under(&[name, service.primary_name(), stack].join("."))
        } else {
            domain.under(&[name, stack].join("."))
        }
    }

    /// `name.domain`; `None` when the container has no name.
    pub(super) fn container_name(&self, container: &Container) -> ContainerName {
        if let Some((_, known)) = self.containers.get(container.uuid()) {
            return known.clone();
        }
        let name = container.name().filter(|name| !name.is_empty())?;
        let services = if self.zone.index.has_kubernetes { self.services_of(container) } else { Vec::new() };
        let kubernetes = services.into_iter().find(|service| is_kubernetes(service));
        Some(match kubernetes {
            Some(service) => self.service_name(service).and_then(|service| service.under(name)),
            None => self.settings.domain.under(name),
        })
    }

    /// What is said about a container in its TXT record.
    fn description(&self, container: &Container) -> Vec<String> {
        let service = self.services_of(container).into_iter().next();
        let name = service.and_then(|service| service.name()).or_else(|| container.fields().text("service_name"));
        let stack = service.and_then(|service| service.stack_name()).or_else(|| container.fields().text("stack_name"));
        let host = container.host_uuid().and_then(|uuid| self.snapshot.hosts.get(uuid)).and_then(|host| host.name());
        let empty = Text::from("");
        [("stack", stack), ("service", name), ("host", host), ("state", container.fields().text("state"))]
            .into_iter()
            .map(|(key, value)| {
                let mut text = [key, "=", value.unwrap_or(&empty)].concat();
                // A character string has at most 255 octets (RFC 1035 section 3.3).
                while text.len() > 255 {
                    text.pop();
                }
                text
            })
            .collect()
    }

    /// Reports a name or a main address that is none; the container is then without.
    fn check_container(&mut self, container: &Container) {
        let missing = container.primary_ip().is_none();
        let written = missing.then(|| container.fields().text("primary_ip")).flatten();
        if let Some(text) = written.filter(|text| !text.is_empty()) {
            let name = container.name().unwrap_or_else(|| container.uuid());
            self.ignored(format!("containers/{name}/primary_ip"), format!("{text:?} is no address"));
        }
        let at = || format!("containers/{}", container.name().unwrap_or_else(|| container.uuid()));
        match self.container_name(container).filter(|_| runs(container)) {
            Some(Err(error)) => self.hidden(&at(), error.to_string()),
            Some(Ok(name)) if self.zone.index.owners.contains_key(&name) => {
                self.hidden(&at(), format!("{name} is the name of a service"));
            }
            Some(Ok(_)) | None => {}
        }
    }

    fn address(&mut self, text: &str, at: impl FnOnce() -> String) -> Option<IpAddr> {
        let address = text.trim().parse().ok();
        if address.is_none() {
            self.ignored(at(), format!("{text:?} is no address"));
        }
        address
    }

    fn checked_name(&mut self, at: impl FnOnce() -> String, name: Result<Folded, BadName>) -> Option<Folded> {
        name.map_err(|error| self.hidden(&at(), error.to_string())).ok()
    }

    fn hidden(&mut self, at: &str, problem: impl Into<String>) {
        self.defects.push(Defect::hidden(at, problem));
    }

    fn ignored(&mut self, at: impl Into<String>, problem: impl Into<String>) {
        self.defects.push(Defect::ignored(at, problem));
    }
}

/// Whether a service's records are the addresses of its containers, when it has no address of its own.
fn stands_for_members(service: &Service) -> bool {
    !is_external(service) && !is_alias(service) && !service.members().is_empty()
}

/// Which services behind an alias are looked at.
#[derive(Clone, Copy, PartialEq)]
enum Members {
    /// All of them: what the alias's own name gives.
    All,
    /// Those with containers: what a client that links to the alias gets, as recorded of the predecessor. Only an alias
    /// without containers leads clients out of the cluster.
    Containers,
}

/// What a service link names.
enum Linked<'s> {
    /// A service of this environment.
    Service(&'s Arc<Service>),
    /// A service of another environment, as its records.
    Elsewhere(Node),
    /// Nothing, and why.
    Nothing(&'static str),
}

/// The records of a service of another environment: its containers there are not judged by health, since the checks
/// of other environments are not seen here.
fn elsewhere_node(snapshot: &Snapshot, service: &Service) -> Option<Node> {
    let address = |text: &Text| text.trim().parse::<IpAddr>().ok();
    if let Some(vip) = service.fields().text("vip").and_then(address) {
        return Some(Node::addresses([vip], None));
    }
    if is_external(service) {
        let mut node = Node::addresses(texts(service.fields(), "external_ips").filter_map(address), None);
        let hostname = service.fields().text("hostname").filter(|hostname| !hostname.is_empty());
        if let Some(name) = hostname.and_then(|hostname| Folded::parse(hostname).ok()) {
            node.add(RData::CNAME(CNAME(name.name())), None);
        }
        return Some(node);
    }
    if service.members().is_empty() {
        return None;
    }
    let members = service.members().iter().filter_map(|uuid| snapshot.containers.get(uuid));
    let running = members.filter(|container| runs(container));
    let addresses = running.flat_map(|container| addresses(snapshot, container).to_vec());
    Some(Node::addresses(addresses, None))
}

/// A node that points to a name.
fn pointer(name: &Folded) -> Arc<Node> {
    let mut node = Node::default();
    node.add(RData::PTR(PTR(name.name())), None);
    Arc::new(node)
}
