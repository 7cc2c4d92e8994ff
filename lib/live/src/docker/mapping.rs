//! From the facts of an engine to the document of its host (docs/docker.md).
//!
//! Equal facts give equal documents, in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use bollard::models::Network;
use model::entity::{ENGINE_NETWORKS, ROUTED_IPS};
use model::reach::{ROUTED_LABEL, is_routed};
use model::unwell::REASON;
use model::votes::STARTED;
use model::{Defect, METADATA_NAME, Map, Text, Value};

use super::client::GATEWAY_BRIDGE;
use super::facts::{Attachment, Facts, NetworkMode};
use super::host::Host;
use super::index::ContainerIndex;
use super::services::Services;
use crate::host::HostDocument;

/// Most defects that are reported; thousands of them say no more than the first ones and their number.
const DEFECTS_MAX: usize = 1000;

/// Most aliases of containers without a service on one network: each is a link of every container there.
const SHARED_ALIASES_MAX: usize = 64;

/// Most stacks besides its own that a container finds by short names.
const FOREIGN_STACKS_MAX: usize = 8;

/// The domain that search lists end in.
const DOMAIN: &str = "rancher.internal";

/// A network of the engine; its fields are those that are the same on all hosts that have it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NetworkFacts {
    name: Text,
    fields: Map,
    /// Whether other hosts reach the addresses on it.
    routed: bool,
    /// Whether nothing on it leaves the host.
    internal: bool,
    /// Whether it is the swarm's routing mesh, over which no container reaches another.
    ingress: bool,
    /// The addresses that its containers send everything else to.
    gateways: Vec<IpAddr>,
}

impl NetworkFacts {
    /// The networks of an engine, by name.
    pub(crate) fn of(response: &[Network]) -> Vec<Self> {
        let mut found: BTreeMap<&str, Self> = BTreeMap::new();
        for network in response {
            let Some(name) = network.name.as_deref().filter(|name| !name.is_empty()) else { continue };
            let text = |text: &Option<String>| Value::text(text.as_deref().unwrap_or_default());
            let metadata = Map::new(vec![
                ("driver".into(), text(&network.driver)),
                ("scope".into(), text(&network.scope)),
                ("internal".into(), Value::Bool(network.internal.unwrap_or_default())),
                ("ipv6".into(), Value::Bool(network.enable_ipv6.unwrap_or_default())),
            ]);
            let option = |key: &str| network.options.as_ref().and_then(|options| options.get(key));
            let is_default = option("com.docker.network.bridge.default_bridge").is_some_and(|word| word == "true");
            let driver = network.driver.as_deref().unwrap_or_default();
            let fields = Map::new(vec![
                ("name".into(), Value::text(name)),
                // Windows has one default network, of this name.
                ("is_default".into(), Value::Bool(is_default || name == "nat")),
                ("host_ports".into(), Value::Bool(matches!(driver, "bridge" | "nat" | "overlay"))),
                ("metadata".into(), metadata.into()),
            ]);
            let label = network.labels.as_ref().and_then(|labels| labels.get(ROUTED_LABEL));
            let ingress = network.ingress.unwrap_or_default();
            let routed = !ingress && is_routed(Some(driver), label.map(String::as_str));
            // Two may have one name; the engine itself refuses to take them apart by it.
            let internal = network.internal.unwrap_or_default();
            let subnets = network.ipam.as_ref().and_then(|ipam| ipam.config.as_deref()).unwrap_or_default();
            let gateways = subnets.iter().filter_map(|subnet| subnet.gateway.as_deref()?.parse().ok()).collect();
            found.entry(name).or_insert_with(|| Self {
                name: name.into(),
                fields,
                routed,
                internal,
                ingress,
                gateways,
            });
        }
        found.into_values().collect()
    }
}

/// The document of a host: `lost` are the containers that could not be inspected, with the reason.
pub(crate) fn document<'f>(
    host: &Host,
    networks: &[NetworkFacts],
    containers: impl IntoIterator<Item = &'f Facts>,
    lost: impl IntoIterator<Item = Defect>,
) -> HostDocument {
    let mut defects = host.defects.clone();
    defects.extend(lost);
    let within =
        |network: &&NetworkFacts| !network.routed && host.address.is_some_and(|own| network.gateways.contains(&own));
    let elsewhere = networks.iter().find(within).map(|network| host.without_address(&network.name, &mut defects));
    let host = elsewhere.as_ref().unwrap_or(host);
    let containers_index = ContainerIndex::new(containers, &mut defects);
    let services = Services::of(&containers_index, &mut defects);
    let shared = SharedAliases::of(&containers_index, &mut defects);
    let stacks = stacks_by_network(&containers_index, &services);
    report_duplicate_addresses(&containers_index, &mut defects);
    let known: BTreeMap<&str, &NetworkFacts> = networks.iter().map(|network| (&*network.name, network)).collect();
    let mapping = Mapping {
        host,
        containers_index: &containers_index,
        services: &services,
        shared: &shared,
        stacks: &stacks,
        known: &known,
    };
    let entries: Vec<Value> = containers_index.containers.iter().map(|facts| mapping.container(facts).into()).collect();
    let names =
        (!host.is_in_swarm).then(|| Value::list(networks.iter().map(|network| Value::Text(network.name.clone()))));
    let fields = names.map_or_else(|| host.fields.clone(), |names| host.fields.with([(ENGINE_NETWORKS.into(), names)]));
    let mut document = vec![
        ("host".into(), Value::Text(host.name.clone())),
        ("hosts".into(), Value::list([fields.into()])),
        ("networks".into(), Value::list(networks.iter().map(|network| network.fields.clone().into()))),
        ("services".into(), Value::list(services.entries().map(Value::Map))),
        ("containers".into(), Value::List(entries.into())),
    ];
    if let Some(environment) = &host.environment {
        let name = Map::new(vec![("name".into(), Value::Text(environment.clone()))]);
        document.push(("environment".into(), name.into()));
    }
    if defects.len() > DEFECTS_MAX {
        let problem = format!("{} further defects are not shown", defects.len() - DEFECTS_MAX);
        defects.truncate(DEFECTS_MAX);
        defects.push(Defect::ignored("containers", problem));
    }
    let failing = containers_index.containers.iter().filter_map(|facts| Some((facts, facts.failing.as_ref()?)));
    let outputs = failing.filter(|(_, failing)| !failing.output.is_empty());
    let outputs = outputs.map(|(facts, failing)| (facts.uuid.clone(), failing.output.clone())).collect();
    HostDocument { host: host.name.clone(), document: Map::new(document), defects, outputs }
}

/// Aliases of containers without a service: by network, alias and the container meant.
struct SharedAliases<'f>(BTreeMap<&'f str, BTreeMap<&'f str, &'f Facts>>);

impl<'f> SharedAliases<'f> {
    fn of(containers_index: &ContainerIndex<'f>, defects: &mut Vec<Defect>) -> Self {
        let mut shared: BTreeMap<&str, BTreeMap<&str, &Facts>> = BTreeMap::new();
        // From the oldest to the newest, so that the newest one that runs has the alias.
        for facts in
            containers_index.containers.iter().filter(|facts| facts.membership.service.is_none() && facts.runs())
        {
            for attachment in facts.attachments.iter().filter(|attachment| attachment.has_names()) {
                // An alias stands for a short name. One with a dot could take the full name of another.
                for alias in
                    attachment.aliases.iter().filter(|alias| !alias.contains('.') && ***alias != *METADATA_NAME)
                {
                    let known = shared.entry(&attachment.network).or_default();
                    if known.len() < SHARED_ALIASES_MAX || known.contains_key(&**alias) {
                        known.insert(alias, facts);
                    } else {
                        let path = format!("{}/networks/{}/aliases", facts.path(), attachment.network);
                        let problem = format!(
                            "{alias} is left out: a network has at most {SHARED_ALIASES_MAX} aliases of containers without a service"
                        );
                        defects.push(Defect::ignored(path, problem));
                    }
                }
            }
        }
        Self(shared)
    }
}

/// Stacks by the networks that their containers are on.
fn stacks_by_network<'f>(
    containers_index: &ContainerIndex<'f>,
    services: &Services<'f>,
) -> BTreeMap<&'f str, BTreeSet<&'f str>> {
    let mut stacks: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for facts in &containers_index.containers {
        let Some(service) = services.of_container(facts) else { continue };
        for attachment in facts.attachments.iter().filter(|attachment| attachment.has_names()) {
            stacks.entry(&attachment.network).or_default().insert(service.stack);
        }
    }
    stacks
}

fn report_duplicate_addresses(containers_index: &ContainerIndex<'_>, defects: &mut Vec<Defect>) {
    let mut holders: BTreeMap<IpAddr, &Facts> = BTreeMap::new();
    for facts in containers_index.containers.iter().filter(|facts| facts.runs()) {
        for address in facts.attachments.iter().flat_map(|attachment| &attachment.addresses) {
            if let Some(older) = holders.insert(*address, facts).filter(|older| older.id != facts.id) {
                let problem = format!("{address} is also that of {}, the newer container", facts.name);
                defects.push(Defect::ignored(format!("{}/primary_ip", older.path()), problem));
            }
        }
    }
}

/// What the entry of a container is made with.
struct Mapping<'m, 'f> {
    host: &'m Host,
    containers_index: &'m ContainerIndex<'f>,
    services: &'m Services<'f>,
    shared: &'m SharedAliases<'f>,
    stacks: &'m BTreeMap<&'f str, BTreeSet<&'f str>>,
    /// The engine's networks by name.
    known: &'m BTreeMap<&'m str, &'m NetworkFacts>,
}

impl<'f> Mapping<'_, 'f> {
    fn container(&self, facts: &'f Facts) -> Map {
        let text = |text: &Text| Value::Text(text.clone());
        let texts = |texts: &[Text]| Value::list(texts.iter().cloned().map(Value::Text));
        let is = |on: &Attachment, property: fn(&NetworkFacts) -> bool| {
            self.known.get(&*on.network).is_some_and(|network| property(network))
        };
        // Over the routing mesh requests arrive from outside, but no container reaches another: it comes last of all.
        let (mesh, mut attachments): (Vec<_>, Vec<_>) =
            facts.attachments.iter().partition(|on| is(on, |network| network.ingress));
        // By an internal network the engine sets no default route, though it names a gateway.
        attachments.sort_by_key(|on| is(on, |network| network.internal));
        let on_gateway_bridge = facts.on_gateway_bridge.filter(|_| !facts.has_ended());
        let on_host = self.host.address.filter(|_| facts.network == NetworkMode::Host && !facts.has_ended());
        let addresses_of = |on: &&'f Attachment| on.addresses.iter().copied();
        let addresses: Vec<IpAddr> = (attachments.iter().flat_map(addresses_of))
            .chain(on_gateway_bridge)
            .chain(on_host)
            .chain(mesh.iter().flat_map(addresses_of))
            .collect();
        let main = attachments.first().or_else(|| mesh.first().filter(|_| on_gateway_bridge.is_none()));
        let written = |address: &IpAddr| Value::text(address.to_string());
        let service = self.services.of_container(facts);
        let network_from = match &facts.network {
            NetworkMode::From(other) => self.containers_index.find(other).filter(|other| other.id != facts.id),
            NetworkMode::Own | NetworkMode::Host => None,
        };
        let network = match facts.network {
            NetworkMode::Host => Some(Value::text("host")),
            NetworkMode::Own | NetworkMode::From(_) => {
                main.map(|main| text(&main.network)).or_else(|| on_gateway_bridge.map(|_| Value::text(GATEWAY_BRIDGE)))
            }
        };
        let network = network.filter(|name| name.as_str().is_some_and(|name| self.known.contains_key(name)));
        // Said even where there is none to name: a container that does not state it is on the default network.
        let network = network.or_else(|| network_from.is_none().then_some(Value::Null));
        let links = self.links(facts);
        let fields = [
            ("name", Some(text(&facts.name))),
            ("uuid", Some(text(&facts.uuid))),
            ("external_id", Some(text(&facts.id))),
            ("host", Some(text(&self.host.name))),
            ("state", Some(Value::text(facts.state))),
            ("health_state", facts.health.map(Value::text)),
            (REASON, facts.failing.as_ref().map(|failing| Value::text(failing.reason()))),
            ("service", service.map(|service| Value::Text(service.path.clone()))),
            ("service_index", facts.membership.index.as_ref().filter(|_| service.is_some()).map(text)),
            ("primary_ip", addresses.first().map(written)),
            ("ips", Some(Value::list(addresses.iter().map(written)))),
            (ROUTED_IPS, self.routed_ips(facts).map(|routed| Value::list(routed.iter().map(written)))),
            ("primary_mac_address", main.and_then(|main| main.mac.as_ref()).map(text)),
            ("network", network),
            ("network_from", network_from.map(|other| text(&other.name))),
            ("ports", Some(texts(&facts.ports))),
            ("labels", Some(facts.labels.clone().into())),
            ("links", (!links.is_empty()).then(|| links.into())),
            ("hostname", facts.hostname.as_ref().map(text)),
            ("dns", (!facts.dns.is_empty()).then(|| texts(&facts.dns))),
            ("dns_search", self.search(facts)),
            ("memory_reservation", facts.memory.map(Value::Int)),
            ("milli_cpu_reservation", facts.milli_cpu.map(Value::Int)),
            ("create_index", Some(Value::Int(facts.created))),
            ("start_count", Some(Value::Int(facts.start_count))),
            (STARTED, facts.started.map(|moment| Value::Int(moment.micros()))),
        ];
        fields.into_iter().filter_map(|(key, value)| Some((key.into(), value?))).collect()
    }

    /// Its addresses that other hosts reach; `None` for a container that has the addresses of its host.
    ///
    /// Stated also where these are all: only then a follower looks whether they lead to something of its own host.
    fn routed_ips(&self, facts: &Facts) -> Option<Vec<IpAddr>> {
        // A network that the engine does not list yet is not known to be routed.
        let routed = |on: &&Attachment| self.known.get(&*on.network).is_some_and(|network| network.routed);
        if facts.on_gateway_bridge.is_none() && facts.attachments.is_empty() {
            return None;
        }
        Some(facts.attachments.iter().filter(routed).flat_map(|on| on.addresses.iter().copied()).collect())
    }

    /// Its links, and the aliases of containers without a service on its networks.
    fn links(&self, facts: &'f Facts) -> Map {
        let mut links: BTreeMap<Text, Value> = BTreeMap::new();
        let own = self.services.of_container(facts).map(|service| service.stack);
        for attachment in &self.containers_index.network_of(facts).attachments {
            for (alias, target) in self.shared.0.get(&*attachment.network).into_iter().flatten() {
                // What its own stack calls so is nearer.
                if own.is_some_and(|stack| self.services.has(stack, alias)) {
                    continue;
                }
                links.entry((*alias).into()).or_insert_with(|| Value::Text(target.name.clone()));
            }
        }
        // What it asked for itself comes before what others are called.
        for (alias, target) in self.services.container_links(self.containers_index, facts) {
            links.insert(alias.clone(), Value::Text(target.name.clone()));
        }
        links.into_iter().collect()
    }

    /// The search list, where it is another one than follows from the service.
    fn search(&self, facts: &'f Facts) -> Option<Value> {
        if facts.dns_search.as_ref().is_some_and(Vec::is_empty) {
            return Some(Value::List([].into()));
        }
        let service = self.services.of_container(facts);
        let own = service.map(|service| service.stack).or(facts.membership.stack.as_deref());
        let attachments = &self.containers_index.network_of(facts).attachments;
        let foreign = attachments.iter().filter_map(|attachment| self.stacks.get(&*attachment.network)).flatten();
        let foreign: BTreeSet<&str> = foreign.copied().filter(|stack| Some(*stack) != own).collect();
        if facts.dns_search.is_none() && foreign.is_empty() && (service.is_some() || own.is_none()) {
            return None;
        }
        let below = |name: &str| Text::from(format!("{}.{DOMAIN}", name.to_lowercase()));
        let mut search: Vec<Text> = facts.dns_search.clone().unwrap_or_default();
        search.extend(service.map(|service| below(&format!("{}.{}", service.primary, service.stack))));
        search.extend(own.map(below));
        search.extend(foreign.into_iter().take(FOREIGN_STACKS_MAX).map(below));
        search.push(DOMAIN.into());
        let mut seen = BTreeSet::new();
        search.retain(|suffix| seen.insert(suffix.to_lowercase()));
        Some(Value::list(search.into_iter().map(Value::Text)))
    }
}

#[cfg(test)]
mod tests;
