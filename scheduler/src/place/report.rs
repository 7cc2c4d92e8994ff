//! The report on a host: what it is, what it has, what is promised, what is free, and which images it runs.

use model::Text;
use serde::Serialize;

use crate::ledger::record::ImageEntry;
use crate::place::answer::{PlacedPort, placed_port};
use crate::place::filter::check::Check;
use crate::place::filter::choice::choose;
use crate::place::request::member::ImagePlatform;
use crate::place::room::Room;
use crate::place::windows::Isolation;

/// A host in a response.
#[derive(Clone, Debug, Serialize)]
pub struct HostReport {
    /// Its uuid.
    pub uuid: Text,
    /// Its name.
    pub name: Text,
    /// Its state as on the wire.
    pub state: Text,
    /// Whether it takes containers.
    pub eligible: bool,
    /// Why it takes no containers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// Operating system.
    pub os: Text,
    /// Windows build.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// Its labels.
    pub labels: std::collections::BTreeMap<Text, Text>,
    /// Containers on it, running or not.
    pub containers: u32,
    /// Room, by pool.
    pub pools: std::collections::BTreeMap<Text, PoolReport>,
    /// Where it publishes ports.
    pub addresses: Vec<std::net::IpAddr>,
    /// Ports taken or promised.
    pub ports: Vec<PortReport>,
}

/// A host in short, of which there may be thousands: whether it takes containers, and its room.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct HostSummary {
    /// Its uuid.
    pub uuid: Text,
    /// Why it takes no containers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// Windows build.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// Room, by pool.
    pub pools: std::collections::BTreeMap<Text, PoolReport>,
}

/// What takes long to say of a host, so that it is said of one at a time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HostDetails {
    /// Ports taken or promised.
    pub ports: Vec<PortReport>,
    /// The images that placements ask for, by name, and whether it runs them.
    pub images: Vec<ImageReport>,
}

/// A pool of a host in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PoolReport {
    /// All there is.
    pub total: i64,
    /// Used by containers.
    pub used: i64,
    /// Promised to containers that are not there yet; negative when more was given back.
    pub promised: i64,
    /// What is left.
    pub free: i64,
}

/// A taken port in a response.
#[derive(Clone, Debug, Serialize)]
pub struct PortReport {
    /// The port.
    #[serde(flatten)]
    pub port: PlacedPort,
    /// Its owner.
    pub owner: Text,
}

/// An image, and whether a host runs it. Of an image of which no system is known, neither is said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImageReport {
    /// Its name.
    pub image: Text,
    /// How its containers must be isolated, if a placement says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<&'static str>,
    /// What the host would run of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<ImageEntry>,
    /// Why the host runs nothing of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

impl HostReport {
    /// The same of a host that takes no containers for this reason.
    pub(crate) fn without(self, why: Option<String>) -> Self {
        match why {
            Some(why) if self.eligible => Self { eligible: false, refusal: Some(why), ..self },
            _ => self,
        }
    }
}

/// An image of a placement: its name, its entries if they are known, and how it must be isolated.
pub(crate) type PlacedImage = (Text, Vec<ImagePlatform>, Option<Isolation>);

/// Whether a host runs an image, by the rule and in the words of a placement.
pub(crate) fn image_report(room: &Room<'_>, host: u32, (image, platforms, isolation): PlacedImage) -> ImageReport {
    let facts = room.inventory.hosts().facts(host);
    let entry = choose(facts, &platforms, isolation).map(Into::into);
    let images = if platforms.is_empty() { Vec::new() } else { vec![(image.clone(), platforms)] };
    let refusal = Check::Systems { images, isolation }.refuse(room, host).map(|reason| reason.detail);
    ImageReport { image, isolation: isolation.map(Isolation::name), entry, refusal }
}

fn pools(room: &Room<'_>, host: u32) -> std::collections::BTreeMap<Text, PoolReport> {
    let hosts = room.inventory.hosts();
    let pools = hosts.pools.iter().enumerate().filter(|(pool, _)| room.has_pool(*pool, host)).map(|(pool, name)| {
        let total = hosts.totals[pool][host as usize];
        let used = room.inventory.used(pool)[host as usize];
        let promised = room.promised.amount(pool, host);
        (name.clone(), PoolReport { total, used, promised, free: room.free(pool, host) })
    });
    pools.collect()
}

/// The ports of a host that are taken or promised.
pub(crate) fn ports(room: &Room<'_>, host: u32) -> Vec<PortReport> {
    let mut ports: Vec<_> =
        room.bound(host).map(|bound| PortReport { port: placed_port(bound), owner: bound.owner.clone() }).collect();
    ports.sort_by(|a, b| (a.port.protocol, a.port.public, a.port.ip).cmp(&(b.port.protocol, b.port.public, b.port.ip)));
    ports
}

pub(crate) fn summary(room: &Room<'_>, host: u32) -> HostSummary {
    let facts = room.inventory.hosts().facts(host);
    HostSummary {
        uuid: facts.uuid.clone(),
        refusal: facts.refusal.clone(),
        build: facts.system.build.map(|build| build.to_string()),
        pools: pools(room, host),
    }
}

pub(crate) fn report(room: &Room<'_>, host: u32) -> HostReport {
    let facts = room.inventory.hosts().facts(host);
    HostReport {
        uuid: facts.uuid.clone(),
        name: facts.name.clone(),
        state: facts.state.clone(),
        eligible: facts.refusal.is_none(),
        refusal: facts.refusal.clone(),
        os: facts.system.os.clone(),
        build: facts.system.build.map(|build| build.to_string()),
        labels: facts.labels.iter().cloned().collect(),
        containers: room.inventory.present()[host as usize],
        pools: pools(room, host),
        addresses: facts.addresses.clone(),
        ports: ports(room, host),
    }
}
