//! How containers of other hosts are reached: at their own address where their network is routed, otherwise at their host's
//! address where their ports are published.

use std::net::IpAddr;

use crate::client::of_each_family;
use crate::entity::{Container, Entity as _, texts};
use crate::snapshot::Snapshot;

/// Label of a network whose addresses other hosts reach although its driver does not say so.
pub const ROUTED_LABEL: &str = "io.berth.network.routed";

/// Drivers of the networks whose addresses other hosts reach: they put containers on a network that the hosts share.
const ROUTED_DRIVERS: [&str; 6] = ["transparent", "l2bridge", "macvlan", "ipvlan", "overlay", "host"];

/// Whether other hosts reach the addresses of a network with this driver and this value of [`ROUTED_LABEL`].
///
/// Where no driver is stated (cluster files) they do.
pub fn is_routed(driver: Option<&str>, label: Option<&str>) -> bool {
    let is_marked = label.is_some_and(|label| label.eq_ignore_ascii_case("true"));
    is_marked || driver.is_none_or(|driver| ROUTED_DRIVERS.contains(&driver))
}

/// At which address clients of the local host reach a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach<'s> {
    /// At the addresses of this container: it runs here, or its network is routed.
    ///
    /// It is the container meant, or the one whose network that one shares.
    Own(&'s Container),
    /// At its host's address: it publishes every port under its own number.
    Host(IpAddr),
    /// At no address that would go with any of its ports.
    Nowhere(Unreachable),
}

/// Why there is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// Its network is of its host alone, and it publishes no port.
    Unpublished,
    /// It publishes a port under another number: only its service records (SRV) can name host and port.
    Renumbered,
    /// It publishes ports, but its host does not say at which address.
    NoHostAddress,
}

impl Unreachable {
    /// What is wrong, and the way out.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Unpublished => {
                "its network is not routed between hosts and it publishes no port: publish its ports, or use a routed network"
            }
            Self::Renumbered => {
                "its network is not routed between hosts and it publishes a port under another number: only SRV names its host and port; publish each port under its own number for A, or use a routed network"
            }
            Self::NoHostAddress => {
                "its network is not routed between hosts and its host states no address: start its agent with --public-ip, or use a routed network"
            }
        }
    }
}

/// A published port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published<'t> {
    /// The address of the host that it is bound to; `None` stands for all.
    pub address: Option<IpAddr>,
    /// The port outside.
    pub public: u16,
    /// The port inside.
    pub private: u16,
    /// `tcp` or `udp`.
    pub protocol: &'t str,
}

impl<'t> Published<'t> {
    /// The port in `[address:]public:private[/protocol]`.
    pub fn parse(text: &'t str) -> Option<Self> {
        let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let (front, private) = ports.rsplit_once(':')?;
        let (address, public) =
            front.rsplit_once(':').map_or((None, front), |(address, public)| (Some(address), public));
        let address = address.map(|address| address.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>());
        let address = address.transpose().ok()?.filter(|address| !address.is_unspecified());
        Some(Self { address, public: public.parse().ok()?, private: private.parse().ok()?, protocol })
    }
}

impl Container {
    /// Its addresses that other hosts reach: all of [`Self::addresses`], unless its host says otherwise.
    pub(crate) fn routed_addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        match self.routed_ips() {
            None => of_each_family(self.primary_ip(), self.other_ips()),
            Some(routed) => of_each_family(routed.first().copied(), routed),
        }
    }
}

impl Snapshot {
    /// At which address clients of the local host reach a container.
    pub fn reach<'s>(&'s self, container: &'s Container) -> Reach<'s> {
        let holder = self.network_holder(container);
        if self.is_local(holder) || holder.routed_ips().is_none() || holder.routed_addresses().next().is_some() {
            return Reach::Own(holder);
        }
        let address = self.host_address(holder);
        let mut ports = published(holder, address).peekable();
        if ports.peek().is_none() {
            return Reach::Nowhere(Unreachable::Unpublished);
        }
        match address {
            _ if ports.any(|port| port.public != port.private) => Reach::Nowhere(Unreachable::Renumbered),
            Some(address) => Reach::Host(address),
            None => Reach::Nowhere(Unreachable::NoHostAddress),
        }
    }

    /// The addresses at which clients of the local host reach a container.
    pub fn reachable_addresses(&self, container: &Container) -> impl Iterator<Item = IpAddr> + use<> {
        let (own, routed, host) = match self.reach(container) {
            Reach::Own(holder) if self.is_local(holder) => (Some(holder.addresses()), None, None),
            Reach::Own(holder) => (None, Some(holder.routed_addresses()), None),
            Reach::Host(address) => (None, None, Some(address)),
            Reach::Nowhere(_) => (None, None, None),
        };
        own.into_iter().flatten().chain(routed.into_iter().flatten()).chain(host)
    }

    /// The port of its host under which clients of the local host reach a port of a container that they do not reach
    /// at its own address.
    pub fn public_port(&self, container: &Container, private: u16, protocol: &str) -> Option<u16> {
        let holder = self.network_holder(container);
        let found = published(holder, self.host_address(holder))
            .find(|port| port.private == private && port.protocol.eq_ignore_ascii_case(protocol));
        found.map(|port| port.public)
    }

    /// The container whose addresses a container has: its own, or those of the container whose network it shares.
    fn network_holder<'s>(&'s self, container: &'s Container) -> &'s Container {
        if container.addresses().next().is_some() {
            return container;
        }
        let shared = container.network_from().and_then(|uuid| self.containers.get(uuid));
        shared.map_or(container, |shared| shared)
    }

    /// The address of a container's host.
    fn host_address(&self, container: &Container) -> Option<IpAddr> {
        self.hosts.get(container.host_uuid()?)?.address()
    }
}

/// Ports of a container that are published at its host's address: one bound to another address, such as loopback, is not.
fn published(container: &Container, host: Option<IpAddr>) -> impl Iterator<Item = Published<'_>> {
    let ports = texts(container.fields(), "ports").filter_map(|text| Published::parse(text));
    ports.filter(move |port| port.address.is_none_or(|address| Some(address) == host))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects;
    use crate::snapshot::object;
    use crate::value::Value;

    #[test]
    fn networks_that_hosts_share_are_routed() {
        for (driver, label, expected) in [
            (None, None, true),
            (Some("overlay"), None, true),
            (Some("transparent"), None, true),
            (Some("l2bridge"), None, true),
            (Some("macvlan"), None, true),
            (Some("ipvlan"), None, true),
            (Some("host"), None, true),
            (Some("bridge"), None, false),
            (Some("nat"), None, false),
            (Some("weave"), None, false),
            (Some(""), None, false),
            (Some("bridge"), Some("true"), true),
            (Some("nat"), Some("True"), true),
            (Some("bridge"), Some("no"), false),
        ] {
            assert_eq!(is_routed(driver, label), expected, "{driver:?} {label:?}");
        }
    }

    /// The reach of a container of host `h2` with these addresses that are routed (`None`: not stated) and these ports.
    fn reach(routed: Option<&[&str]>, ports: &[&str], agent_ip: &str) -> String {
        let texts = |texts: &[&str]| Value::list(texts.iter().map(|text| Value::text(*text)));
        let host = |uuid: &str| object("host", [("uuid", Value::text(uuid)), ("agent_ip", Value::text(agent_ip))]);
        let container = object(
            "container",
            [
                ("uuid", Value::text("c")),
                ("primary_ip", Value::text("172.17.0.2")),
                ("host_uuid", Value::text("h2")),
                ("ports", texts(ports)),
                (ROUTED, routed.map(texts).unwrap_or_default()),
            ],
        );
        let mut snapshot = objects::read([host("h1"), host("h2"), container]).0;
        snapshot.local_host = snapshot.hosts.get("h1").cloned();
        let container = &snapshot.containers["c"];
        let reach = match snapshot.reach(container) {
            Reach::Own(_) => "own".to_owned(),
            Reach::Host(address) => format!("host {address}"),
            Reach::Nowhere(why) => format!("{why:?}"),
        };
        let addresses: Vec<_> = snapshot.reachable_addresses(container).map(|address| address.to_string()).collect();
        format!("{reach}: {}", addresses.join(" "))
    }

    const ROUTED: &str = crate::entity::ROUTED_IPS;

    #[test]
    fn containers_of_other_hosts_are_reached_where_their_ports_are() {
        let host = "192.0.2.2";
        for (routed, ports, agent_ip, expected) in [
            (None, &[][..], host, "own: 172.17.0.2"),
            (Some(&["10.9.0.2"][..]), &["80:80/tcp"], host, "own: 10.9.0.2"),
            (Some(&[]), &[], host, "Unpublished: "),
            (Some(&[]), &["80:80/tcp", "53:53/udp"], host, "host 192.0.2.2: 192.0.2.2"),
            (Some(&[]), &["80:80/tcp", "8080:81/tcp"], host, "Renumbered: "),
            (Some(&[]), &["127.0.0.1:80:80/tcp"], host, "Unpublished: "),
            (Some(&[]), &["192.0.2.2:80:80/tcp", "127.0.0.1:9000:9001/tcp"], host, "host 192.0.2.2: 192.0.2.2"),
            (Some(&[]), &["80:80/tcp"], "", "NoHostAddress: "),
            (Some(&[]), &["nonsense"], host, "Unpublished: "),
        ] {
            assert_eq!(reach(routed, ports, agent_ip), expected, "{routed:?} {ports:?}");
        }
    }

    #[test]
    fn published_ports_are_read_as_engines_write_them() {
        for (text, expected) in [
            ("80:8080/tcp", Some((None, 80, 8080, "tcp"))),
            ("0.0.0.0:80:8080/udp", Some((None, 80, 8080, "udp"))),
            ("[::1]:80:8080/tcp", Some(("::1".parse().ok(), 80, 8080, "tcp"))),
            ("80:8080", Some((None, 80, 8080, "tcp"))),
            ("8080", None),
            ("x:80:8080", None),
            ("80:99999", None),
        ] {
            let port = Published::parse(text).map(|port| (port.address, port.public, port.private, port.protocol));
            assert_eq!(port, expected, "{text}");
        }
    }
}
