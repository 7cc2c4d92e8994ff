//! Containers that are there, as units that could be placed again: what a plan moves.
//!
//! A snapshot does not say with which request a container was placed; its labels, reservations and ports do, as they
//! did for the predecessor.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Container, Entity, Map, Text, Value};

use crate::place::hosts::{label, label_text};
use crate::place::inventory::{Inventory, SERVICE_LABEL, USE_LABEL_PREFIX};
use crate::place::port::Port;
use crate::place::request::limits::ID_MAX;
use crate::place::request::{GLOBAL_LABEL, REQUESTED_HOST_LABEL};

/// Label that containers of one unit share.
const UNIT_LABEL: &str = "io.rancher.service.deployment.unit";

/// Containers that stand together on one host.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    /// The containers, the one whose network the others use first.
    pub(crate) containers: Vec<Arc<Container>>,
    /// The host's index in the inventory it was found in.
    pub(crate) host: u32,
}

impl Unit {
    /// The units of running containers on these hosts, by host and name.
    pub(crate) fn on(inventory: &Inventory, wanted: impl Fn(u32) -> bool) -> Vec<Self> {
        let mut found: BTreeMap<(u32, Text), Vec<Arc<Container>>> = BTreeMap::new();
        for container in inventory.containers().values() {
            let account = inventory.account(container.uuid());
            let host = account.filter(|account| account.stands()).and_then(|account| account.host);
            let Some(host) = host.filter(|host| wanted(*host)) else { continue };
            let unit = label_text(container.labels(), UNIT_LABEL).or_else(|| container.network_from());
            let unit = unit.filter(|unit| !unit.is_empty()).unwrap_or_else(|| container.uuid());
            found.entry((host, unit.clone())).or_default().push(container.clone());
        }
        let mut units: Vec<Self> = found
            .into_iter()
            .map(|((host, _), mut containers)| {
                containers.sort_by(|a, b| (a.network_from(), a.name()).cmp(&(b.network_from(), b.name())));
                Self { containers, host }
            })
            .collect();
        units.sort_by(|a, b| (a.host, &a.names()).cmp(&(b.host, &b.names())));
        units
    }

    /// The containers' names.
    pub(crate) fn names(&self) -> Vec<Text> {
        self.containers.iter().map(|one| one.name().unwrap_or_else(|| one.uuid()).clone()).collect()
    }

    /// Whether it goes where its host goes, and nowhere else: one of a global service, or bound to its host by name.
    pub(crate) fn is_bound(&self) -> bool {
        let labels = || self.containers.iter().flat_map(|one| one.labels().into_iter().flatten().filter_map(label));
        labels().any(|(key, value)| {
            key.eq_ignore_ascii_case(REQUESTED_HOST_LABEL)
                || (key.eq_ignore_ascii_case(GLOBAL_LABEL) && value.eq_ignore_ascii_case("true"))
        })
    }

    /// The request by which it would be placed again.
    pub(crate) fn request(&self, inventory: &Inventory) -> Map {
        let addresses = &inventory.hosts().facts(self.host).addresses;
        let member = |container: &Container, at: usize| {
            let mut fields: Vec<(Text, Value)> = Vec::new();
            let name = container.name().filter(|name| is_id(name)).cloned();
            let name = name.or_else(|| (at > 0).then(|| format!("c{at}").into()));
            fields.extend(name.map(|name| ("name".into(), Value::Text(name))));
            let labels = container.labels().into_iter().flatten();
            let text = |entry: &(Text, Value)| label(entry).map(|(key, value)| (key, Value::Text(value)));
            let labels: Map = labels.filter_map(text).collect();
            let service = labels.get(SERVICE_LABEL).is_none().then(|| inventory.service_of(container.uuid())).flatten();
            let service = service.map(|path| (Text::from(SERVICE_LABEL), Value::Text(path)));
            fields.push(("labels".into(), labels.with(service).into()));
            let image = container.fields().text("image").or_else(|| container.fields().text("image_uuid"));
            fields.extend(image.filter(|image| !image.is_empty()).map(|image| ("image".into(), image.clone().into())));
            let mut amounts: Vec<(Text, Value)> = Vec::new();
            for (key, field) in [("milli_cpu", "milli_cpu_reservation"), ("memory", "memory_reservation")] {
                let amount = container.fields().int(field).filter(|amount| *amount > 0);
                amounts.extend(amount.map(|amount| (key.into(), Value::Int(amount))));
            }
            for (key, value) in container.labels().into_iter().flatten().filter_map(label) {
                let pool = key.strip_prefix(USE_LABEL_PREFIX).filter(|pool| !pool.is_empty());
                let amount = value.trim().parse().ok().filter(|amount: &i64| *amount > 0);
                amounts.extend(pool.zip(amount).map(|(pool, amount)| (pool.into(), Value::Int(amount))));
            }
            fields.push(("resources".into(), Map::new(amounts).into()));
            let ports = container.fields().list("ports").iter().filter_map(Value::as_str).filter_map(Port::parse);
            let port = |port: Port| {
                // What stands on an address of this host stands on one of the next host there.
                let own = |ip: &std::net::IpAddr| ip.is_unspecified() || addresses.contains(ip);
                let address = port.address.filter(|ip| !own(ip)).map(|ip| match ip {
                    std::net::IpAddr::V4(ip) => format!("{ip}:"),
                    std::net::IpAddr::V6(ip) => format!("[{ip}]:"),
                });
                let address = address.unwrap_or_default();
                Value::text(format!("{address}{}:{}/{}", port.public, port.private, port.protocol.name()))
            };
            fields.push(("ports".into(), Value::list(ports.filter(|port| port.public != 0).map(port))));
            fields
        };
        let mut fields = member(&self.containers[0], 0);
        let sidekicks = self.containers.iter().enumerate().skip(1);
        let sidekicks: Vec<Value> = sidekicks.map(|(at, one)| Map::new(member(one, at)).into()).collect();
        if !sidekicks.is_empty() {
            fields.push(("sidekicks".into(), Value::list(sidekicks)));
        }
        Map::new(fields)
    }
}

/// Whether a name can stand in a request.
fn is_id(name: &str) -> bool {
    (1..=ID_MAX).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.chars().all(|char| char.is_ascii_alphanumeric() || "_.-".contains(char))
}
