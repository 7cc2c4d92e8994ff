//! A zone from a snapshot: which names its entities have, and for whom.
//!
//! Names are those of the predecessor. On purpose different: stopped containers have no name, of containers with one
//! name the running, newest one has it, and what has no address is left out. Links of clients are kept as links to
//! names and resolved when they are asked for, so that a change of a service does not touch its clients.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hickory_proto::rr::RData;
use hickory_proto::rr::rdata::{CNAME, PTR, SRV, TXT};
use model::entity::texts;
use model::{Container, Defect, Entity, Map, Service, Snapshot, Text, Value};

use super::{Links, Node, Scope, Settings, Target, Zone, address_data, reverse_name};
use crate::config::WhenNoneHealthy;
use crate::name::Folded;

/// Domain of the services that Kubernetes gave addresses to.
const KUBERNETES_DOMAIN: &str = "svc.cluster.local";

/// Name of the metadata service.
pub(crate) const METADATA: &str = "rancher-metadata";

/// Label that names a port: `io.rancher.container.dns.port.http: 8080/tcp` gives `_http._tcp.service.stack`.
const PORT_LABEL: &str = "io.rancher.container.dns.port.";

/// Port of DNS (RFC 1035 section 4.2).
const PORT: u16 = 53;

/// The zone of a snapshot, and what is wrong in it; a defect hides only the name it belongs to.
///
/// `serial` is that of the SOA record; it grows with every zone.
pub fn build(snapshot: &Snapshot, settings: &Settings, serial: u32) -> (Zone, Vec<Defect>) {
    let mut zone = Zone { serial, search: vec![settings.domain.clone()], ..Zone::empty(settings) };
    zone.add_apex(settings.domain.clone());
    let mut building = Building::new(snapshot, settings);
    building.metadata(&mut zone);
    building.services(&mut zone);
    building.containers(&mut zone);
    building.scopes(&mut zone);
    let mut defects = building.defects;
    defects.sort_by(|a, b| (&a.path, &a.problem).cmp(&(&b.path, &b.problem)));
    defects.dedup();
    (zone, defects)
}

type FastMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

struct Building<'s> {
    snapshot: &'s Snapshot,
    settings: &'s Settings,
    kubernetes: Folded,
    /// Services by lower-case stack and name.
    services: FastMap<(String, String), &'s Arc<Service>>,
    /// Services by the uuid of their containers.
    member_of: FastMap<&'s Text, Vec<&'s Arc<Service>>>,
    defects: Vec<Defect>,
}

impl<'s> Building<'s> {
    fn new(snapshot: &'s Snapshot, settings: &'s Settings) -> Self {
        let kubernetes = Folded::parse(KUBERNETES_DOMAIN).expect("a fixed valid name");
        let mut services: FastMap<_, &Arc<Service>> = FastMap::default();
        let mut member_of: FastMap<_, Vec<_>> = FastMap::default();
        for service in snapshot.services.values().filter(|service| local(snapshot, service.environment_uuid())) {
            if let (Some(stack), Some(name)) = (service.stack_name(), service.name()) {
                let known = services.entry((stack.to_lowercase(), name.to_lowercase())).or_insert(service);
                if known.is_sidekick() && !service.is_sidekick() {
                    *known = service;
                }
            }
            for uuid in service.members().iter() {
                member_of.entry(uuid).or_default().push(service);
            }
        }
        Self { snapshot, settings, kubernetes, services, member_of, defects: Vec::new() }
    }

    fn metadata(&mut self, zone: &mut Zone) {
        if self.settings.rancher_metadata.is_empty() {
            return;
        }
        let node = Arc::new(Node::addresses(self.settings.rancher_metadata.iter().copied(), None));
        if let Ok(name) = self.settings.domain.under(METADATA) {
            for address in &self.settings.rancher_metadata {
                zone.insert(reverse_name(*address), pointer(&name));
            }
            zone.insert(name, node);
        }
    }

    fn services(&mut self, zone: &mut Zone) {
        for service in self.snapshot.services.values() {
            if !local(self.snapshot, service.environment_uuid()) {
                continue;
            }
            let Some(name) = self.checked_name(&path(service), self.service_name(service)) else { continue };
            let Some(node) = self.service_node(service, &mut HashSet::new()) else { continue };
            if zone.names.contains_key(&name) {
                self.defects
                    .push(Defect::hidden(path(service), format!("{name} is the name of something else already")));
                continue;
            }
            if let Some(vip) = self.vip(service) {
                zone.insert(reverse_name(vip), pointer(&name));
            }
            self.ports(service, &name, zone);
            zone.insert(name, Arc::new(node));
        }
    }

    /// The records of a service; `None` when it has no name, since it has no containers.
    fn service_node(&mut self, service: &Arc<Service>, visited: &mut HashSet<Text>) -> Option<Node> {
        if let Some(vip) = self.vip(service) {
            return Some(Node::addresses([vip], None));
        }
        match service.kind() {
            "externalService" => Some(self.external_node(service)),
            "dnsService" => self.union_node(service, visited),
            _ if service.members().is_empty() => None,
            _ => Some(Node::addresses(self.member_addresses(service), None)),
        }
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
            if let Some(name) = self.checked_name(&format!("{}/hostname", path(service)), name) {
                node.add(RData::CNAME(CNAME(name.name())), None);
            }
        }
        node
    }

    /// The records of all services that an alias names; a loop ends where it would begin again.
    fn union_node(&mut self, service: &Arc<Service>, visited: &mut HashSet<Text>) -> Option<Node> {
        if !visited.insert(service.id().clone()) {
            self.defects.push(Defect::ignored(path(service), "an alias that leads back to itself"));
            return None;
        }
        let mut union: Option<Node> = None;
        for (key, _) in service.links() {
            let Some(node) = self.linked_node(service, key, visited) else { continue };
            let union = union.get_or_insert_default();
            for set in &node.sets {
                if set.kind == hickory_proto::rr::RecordType::CNAME {
                    // A name can be an alias of one other name only (RFC 1034 section 3.6.2); the last one wins.
                    union.sets.retain(|known| known.kind != set.kind);
                }
                for data in &set.data {
                    union.add(data.clone(), set.ttl);
                }
            }
        }
        visited.remove(service.id());
        union
    }

    fn linked_node(&mut self, service: &Arc<Service>, key: &Text, visited: &mut HashSet<Text>) -> Option<Node> {
        let at = || format!("{}/links/{key}", path(service));
        match self.linked(key) {
            Linked::Service(target) => {
                let target = target.clone();
                if target.kind() == "dnsService" && visited.contains(target.id()) {
                    self.defects.push(Defect::ignored(at(), "an alias that leads back to itself"));
                    return None;
                }
                self.service_node(&target, visited)
            }
            Linked::Elsewhere(node) => Some(node),
            Linked::Nothing(problem) => {
                self.defects.push(Defect::ignored(at(), problem));
                None
            }
        }
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
            return match self.services.get(&(stack.to_lowercase(), service.to_lowercase())) {
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

    /// Addresses of the containers of a service that may be asked.
    fn member_addresses(&mut self, service: &Service) -> Vec<IpAddr> {
        let (running, healthy) = self.members(service);
        let chosen = match (healthy.is_empty(), self.settings.when_none_healthy) {
            (false, _) => healthy,
            (true, WhenNoneHealthy::All) => running,
            (true, WhenNoneHealthy::None) => Vec::new(),
            // The last one that has an address.
            (true, WhenNoneHealthy::Last) => {
                let has_address = |container: &&Arc<Container>| !addresses(self.snapshot, container).is_empty();
                running.into_iter().rev().find(has_address).into_iter().collect()
            }
        };
        chosen.into_iter().flat_map(|container| addresses(self.snapshot, container)).collect()
    }

    /// Containers of a service that run, and those of them that are healthy.
    fn members(&mut self, service: &Service) -> (Vec<&'s Arc<Container>>, Vec<&'s Arc<Container>>) {
        let checked = is_checked(service.fields());
        let mut running = Vec::with_capacity(service.members().len());
        for uuid in service.members().iter() {
            let Some(container) = self.snapshot.containers.get(uuid) else {
                self.defects.push(Defect::ignored(format!("{}/containers/{uuid}", path(service)), "no such container"));
                continue;
            };
            if runs(container) {
                running.push(container);
            }
        }
        let healthy = running.iter().copied().filter(|container| is_healthy(container, checked)).collect();
        (running, healthy)
    }

    /// Service records (RFC 2782) of the ports that a service tells about.
    fn ports(&mut self, service: &Arc<Service>, name: &Folded, zone: &mut Zone) {
        let ports = ports_of(service);
        if ports.is_empty() {
            return;
        }
        let targets: Vec<Folded> = if self.vip(service).is_some() {
            vec![name.clone()]
        } else {
            let (running, healthy) = self.members(service);
            let last = running.last().copied().into_iter().collect();
            let chosen = match (healthy.is_empty(), self.settings.when_none_healthy) {
                (false, _) => healthy,
                (true, WhenNoneHealthy::All) => running,
                (true, WhenNoneHealthy::Last) => last,
                (true, WhenNoneHealthy::None) => Vec::new(),
            };
            chosen.into_iter().filter_map(|container| self.container_name(container)?.ok()).collect()
        };
        if targets.is_empty() {
            return;
        }
        for (label, protocol, port) in ports {
            let mut node = Node::default();
            for target in &targets {
                node.add(RData::SRV(SRV::new(0, 0, port, target.name())), None);
            }
            if let Ok(name) = name.under(&format!("_{label}._{protocol}")) {
                zone.insert(name, Arc::new(node));
            }
        }
    }

    fn containers(&mut self, zone: &mut Zone) {
        // Of containers with one name or one address the running, newest one counts.
        let mut named: FastMap<Folded, &Arc<Container>> = FastMap::default();
        let mut addressed: FastMap<IpAddr, &Arc<Container>> = FastMap::default();
        for container in self.snapshot.containers.values() {
            if !local(self.snapshot, container.environment_uuid()) {
                continue;
            }
            self.check_address(container);
            if !runs(container) {
                continue;
            }
            let at = || format!("containers/{}", container.name().unwrap_or_else(|| container.uuid()));
            let Some(name) = self.container_name(container).and_then(|name| self.checked_name(&at(), name)) else {
                continue;
            };
            for address in own_addresses(container) {
                let known = addressed.entry(address.to_canonical()).or_insert(container);
                if rank(container) > rank(known) {
                    *known = container;
                }
            }
            let known = named.entry(name).or_insert(container);
            if rank(container) > rank(known) {
                *known = container;
            }
        }
        for (name, container) in named {
            let mut node = Node::addresses(addresses(self.snapshot, container), None);
            node.add(RData::TXT(TXT::new(self.description(container))), None);
            let node = Arc::new(node);
            zone.containers.insert(container.uuid().clone(), node.clone());
            if zone.names.contains_key(&name) {
                let problem = format!("{name} is the name of a service");
                self.defects.push(Defect::hidden(format!("containers/{}", container.uuid()), problem));
            } else {
                zone.insert(name, node);
            }
        }
        // Containers whose name belongs to a newer one are still found through links.
        for container in self.snapshot.containers.values().filter(|container| runs(container)) {
            if !zone.containers.contains_key(container.uuid()) {
                let node = Node::addresses(addresses(self.snapshot, container), None);
                zone.containers.insert(container.uuid().clone(), Arc::new(node));
            }
        }
        for (address, container) in addressed {
            let name = reverse_name(address);
            if let Some(Ok(target)) = self.container_name(container)
                && !zone.names.contains_key(&name)
            {
                zone.insert(name, pointer(&target));
            }
        }
    }

    /// What clients see in addition to all names, by their address.
    ///
    /// When the snapshot was made for a host, only its containers ask this service; without a host all of them may.
    fn scopes(&mut self, zone: &mut Zone) {
        let host = self.snapshot.local_host.as_ref().map(|host| host.uuid());
        let mut clients: FastMap<IpAddr, &Arc<Container>> = FastMap::default();
        for container in self.snapshot.containers.values() {
            if !local(self.snapshot, container.environment_uuid())
                || host.is_some_and(|host| container.host_uuid() != Some(host))
            {
                continue;
            }
            for address in own_addresses(container) {
                let known = clients.entry(address.to_canonical()).or_insert(container);
                if rank(container) > rank(known) {
                    *known = container;
                }
            }
        }
        let mut links_by_service = FastMap::default();
        for (address, container) in clients {
            zone.scopes.insert(address, Arc::new(self.scope(container, &mut links_by_service)));
        }
    }

    fn scope(&mut self, container: &Container, known: &mut FastMap<Text, Arc<Links>>) -> Scope {
        let mut search = Vec::new();
        for text in texts(container.fields(), "dns_search") {
            let at = format!("containers/{}/dns_search", container.uuid());
            search.extend(self.checked_name(&at, Folded::parse(text)));
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
        for service in self.member_of.get(container.uuid()).cloned().unwrap_or_default() {
            if !service.links().is_empty() {
                let shared = match known.get(service.id()) {
                    Some(shared) => shared.clone(),
                    None => Arc::new(self.service_links(service)),
                };
                known.insert(service.id().clone(), shared.clone());
                links.push(shared);
            }
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
                    for name in [short, long] {
                        if let Some(name) = self.checked_name(&at, name) {
                            links.insert(name, Target::Name(to.clone()));
                        }
                    }
                }
                Linked::Elsewhere(node) => {
                    let node = Arc::new(node);
                    for name in [Folded::parse(alias), domain.under(alias)] {
                        if let Some(name) = self.checked_name(&at, name) {
                            links.insert(name, Target::Node(node.clone()));
                        }
                    }
                }
                Linked::Nothing(problem) => self.defects.push(Defect::ignored(at, problem)),
            }
        }
        links
    }

    fn container_links(&mut self, container: &Container) -> Links {
        let mut links = Links::default();
        for (alias, target) in container.links() {
            let at = format!("containers/{}/links/{alias}", container.uuid());
            let Some(uuid) = target.as_text().filter(|uuid| self.snapshot.containers.contains_key(*uuid)) else {
                self.defects.push(Defect::ignored(at, "no such container"));
                continue;
            };
            if let Some(name) = self.checked_name(&at, self.settings.domain.under(alias)) {
                links.insert(name, Target::Container(uuid.clone()));
            }
        }
        links
    }

    /// `service.stack.domain`, for a sidekick `sidekick.service.stack.domain`.
    fn service_name(&self, service: &Service) -> Result<Folded, crate::name::BadName> {
        let name = service.name().map_or("", |name| name);
        let stack = service.stack_name().map_or("", |stack| stack);
        let domain = if service.kind() == "kubernetesService" { &self.kubernetes } else { &self.settings.domain };
        match service.primary_name().filter(|_| service.is_sidekick()) {
            Some(primary) => domain.under(&format!("{name}.{primary}.{stack}")),
            None => domain.under(&format!("{name}.{stack}")),
        }
    }

    /// `name.domain`; `None` when the container has no name.
    fn container_name(&self, container: &Container) -> Option<Result<Folded, crate::name::BadName>> {
        let name = container.name().filter(|name| !name.is_empty())?;
        let services = self.member_of.get(container.uuid()).map_or(&[][..], Vec::as_slice);
        let kubernetes = services.iter().find(|service| service.kind() == "kubernetesService");
        Some(match kubernetes {
            Some(service) => self.service_name(service).and_then(|service| service.under(name)),
            None => self.settings.domain.under(name),
        })
    }

    /// What is said about a container in its TXT record.
    fn description(&self, container: &Container) -> Vec<String> {
        let service = self.member_of.get(container.uuid()).and_then(|services| services.first());
        let name = service.and_then(|service| service.name()).or_else(|| container.fields().text("service_name"));
        let stack = service.and_then(|service| service.stack_name()).or_else(|| container.fields().text("stack_name"));
        let host = container.host_uuid().and_then(|uuid| self.snapshot.hosts.get(uuid)).and_then(|host| host.name());
        let empty = Text::from("");
        [("stack", stack), ("service", name), ("host", host), ("state", container.fields().text("state"))]
            .into_iter()
            .map(|(key, value)| {
                let mut text = format!("{key}={}", value.unwrap_or(&empty));
                // A character string has at most 255 octets (RFC 1035 section 3.3).
                while text.len() > 255 {
                    text.pop();
                }
                text
            })
            .collect()
    }

    /// Reports a main address that is none; the container then has no address.
    fn check_address(&mut self, container: &Container) {
        let written = container.fields().text("primary_ip").filter(|text| !text.is_empty());
        if let Some(text) = written.filter(|_| container.primary_ip().is_none()) {
            let name = container.name().unwrap_or_else(|| container.uuid());
            self.defects
                .push(Defect::ignored(format!("containers/{name}/primary_ip"), format!("{text:?} is no address")));
        }
    }

    fn address(&mut self, text: &str, at: impl FnOnce() -> String) -> Option<IpAddr> {
        let address = text.trim().parse().ok();
        if address.is_none() {
            self.defects.push(Defect::ignored(at(), format!("{text:?} is no address")));
        }
        address
    }

    fn checked_name(&mut self, at: &str, name: Result<Folded, crate::name::BadName>) -> Option<Folded> {
        name.map_err(|error| self.defects.push(Defect::hidden(at, error.to_string()))).ok()
    }
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
    if service.kind() == "externalService" {
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
    Some(Node::addresses(running.flat_map(|container| addresses(snapshot, container)), None))
}

/// Ports of a service as `(label, protocol, port)`, each once.
fn ports_of(service: &Service) -> Vec<(String, String, u16)> {
    let mut ports = Vec::new();
    let mut add = |label: Option<&str>, port: &str| {
        let (port, protocol) = port.split_once('/').unwrap_or((port, "tcp"));
        let private = port.rsplit(':').next().unwrap_or_default();
        let protocol = protocol.to_lowercase();
        if let Ok(number) = private.trim().parse::<u16>()
            && matches!(&*protocol, "tcp" | "udp")
        {
            let port = (label.map_or_else(|| number.to_string(), str::to_lowercase), protocol, number);
            if !ports.contains(&port) {
                ports.push(port);
            }
        }
    };
    for text in texts(service.fields(), "ports").chain(texts(service.fields(), "expose")) {
        add(None, text);
    }
    for (key, value) in service.labels().into_iter().flatten() {
        if let Some(name) = key.strip_prefix(PORT_LABEL)
            && let Some(port) =
                value.as_str().map(str::to_owned).or_else(|| value.as_int().map(|port| port.to_string()))
        {
            add(Some(name), &port);
        }
    }
    ports
}

/// Where an entity of this environment belongs to; unknown ones belong to it.
fn local(snapshot: &Snapshot, environment: Option<&Text>) -> bool {
    match (snapshot.environment_uuid(), environment) {
        (Some(own), Some(environment)) => own == environment,
        _ => true,
    }
}

/// Whether a container runs or is about to; a source that tells no states has only running ones.
fn runs(container: &Container) -> bool {
    matches!(container.state(), "" | "running" | "starting" | "updating-running")
}

/// Whether a container may be asked; `checked` says that its service has a health check.
fn is_healthy(container: &Container, checked: bool) -> bool {
    match container.health_state() {
        None => !checked,
        Some(state) => matches!(state, "healthy" | "updating-healthy"),
    }
}

/// Whether the fields of a service ask for health checks.
fn is_checked(fields: &Map) -> bool {
    fields.map("health_check").and_then(|check| check.get("port")).and_then(Value::as_int).is_some_and(|port| port != 0)
}

/// The running, newest one of two containers has the greater rank.
fn rank(container: &Container) -> (bool, i64, &Text) {
    (runs(container), container.create_index(), container.uuid())
}

/// A container's addresses, of each family the first one; those of the container whose network it shares when it has
/// none.
fn addresses(snapshot: &Snapshot, container: &Container) -> Vec<IpAddr> {
    let own = own_addresses(container);
    if !own.is_empty() {
        return own;
    }
    let shared = container.network_from().and_then(|uuid| snapshot.containers.get(uuid));
    shared.map(|shared| own_addresses(shared)).unwrap_or_default()
}

/// A container's own addresses: the main one, and the first usable one of the other family.
fn own_addresses(container: &Container) -> Vec<IpAddr> {
    let usable = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_unspecified(),
        IpAddr::V6(address) => !address.is_unspecified() && !address.is_unicast_link_local(),
    };
    let mut addresses: Vec<IpAddr> = container.primary_ip().filter(usable).into_iter().collect();
    if let Some(main) = addresses.first().copied() {
        let others = texts(container.fields(), "ips").filter_map(|text| text.parse::<IpAddr>().ok());
        addresses.extend(others.filter(usable).find(|other| other.is_ipv4() != main.is_ipv4()));
    }
    addresses
}

/// A node that points to a name.
fn pointer(name: &Folded) -> Arc<Node> {
    let mut node = Node::default();
    node.add(RData::PTR(PTR(name.name())), None);
    Arc::new(node)
}

/// Where a service stands in messages.
fn path(service: &Service) -> String {
    let stack = service.stack_name().map_or("", |stack| stack);
    format!("services/{stack}/{}", service.name().map_or("", |name| name))
}
