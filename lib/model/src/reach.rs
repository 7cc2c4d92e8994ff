//! How containers of other hosts are reached: at their own address where their network is routed, otherwise at their host's
//! address where their ports are published.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

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

/// Whether an address may stand for one host among several: localhost, unspecified, link-local and multicast ones do not.
/// Other loopback addresses (127.42.1.1) stand for the hosts of a cluster that is tried on one machine.
pub fn is_host_address(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let nowhere = address.is_unspecified() || address == Ipv4Addr::LOCALHOST || address.is_link_local();
            !nowhere && !address.is_multicast() && !address.is_broadcast()
        }
        IpAddr::V6(address) => {
            let nowhere = address.is_unspecified() || address.is_loopback() || address.is_unicast_link_local();
            !nowhere && !address.is_multicast()
        }
    }
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
    /// Its host has the address of the local host.
    SameHostAddress,
    /// The address of its host is unspecified, loopback, link-local or multicast.
    UnusableHostAddress,
    /// A container of the local host has its address.
    SameAddress,
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
            Self::SameHostAddress => {
                "its host has the same agent_ip as this host, so that its address leads here: start the agent of each host with an address of its own, --public-ip ADDRESS"
            }
            Self::UnusableHostAddress => {
                "the agent_ip of its host is unspecified, loopback, link-local or multicast and leads to no other host: start its agent with an address that other hosts reach, --public-ip ADDRESS"
            }
            Self::SameAddress => {
                "its address is also that of a container of this host: give the network of each host a subnet of its own, docker network create --subnet SUBNET"
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
    /// At which address clients of the local host reach a container; `is_here` says whether a running container of the
    /// local host has an address.
    pub fn reach<'s>(&'s self, container: &'s Container, is_here: &dyn Fn(IpAddr) -> bool) -> Reach<'s> {
        let holder = self.network_holder(container);
        if self.is_local(holder) || holder.routed_ips().is_none() {
            return Reach::Own(holder);
        }
        let mut wrong = None;
        for address in holder.routed_ips().into_iter().flatten() {
            match self.unreachable_at(*address, is_here) {
                None => return Reach::Own(holder),
                Some(why) => wrong = wrong.or(Some(why)),
            }
        }
        let address = self.host_address(holder);
        let mut ports = published(holder, address).peekable();
        if ports.peek().is_none() {
            return Reach::Nowhere(wrong.unwrap_or(Unreachable::Unpublished));
        }
        let renumbered = ports.any(|port| port.public != port.private);
        match address.map(|address| (address, self.unreachable_at(address, &|_| false))) {
            Some((_, Some(why))) => Reach::Nowhere(why),
            _ if renumbered => Reach::Nowhere(wrong.unwrap_or(Unreachable::Renumbered)),
            Some((address, None)) => Reach::Host(address),
            None => Reach::Nowhere(wrong.unwrap_or(Unreachable::NoHostAddress)),
        }
    }

    /// Why an address of another host, or of a container there, leads nowhere or to something on the local host.
    fn unreachable_at(&self, address: IpAddr, is_here: &dyn Fn(IpAddr) -> bool) -> Option<Unreachable> {
        if !is_host_address(address) {
            return Some(Unreachable::UnusableHostAddress);
        }
        let own = self.local_host.as_ref().and_then(|host| host.address());
        if own.is_some_and(|own| own.to_canonical() == address.to_canonical()) {
            return Some(Unreachable::SameHostAddress);
        }
        is_here(address).then_some(Unreachable::SameAddress)
    }

    /// The addresses at which clients of the local host reach a container; `is_here` as for [`Self::reach`].
    pub fn reachable_addresses(
        &self,
        container: &Container,
        is_here: &dyn Fn(IpAddr) -> bool,
    ) -> impl Iterator<Item = IpAddr> + use<> {
        let (own, others) = match self.reach(container, is_here) {
            Reach::Own(holder) if self.is_local(holder) || holder.routed_ips().is_none() => {
                (Some(holder.addresses()), [None, None])
            }
            Reach::Own(holder) => (None, self.routed_elsewhere(holder, is_here)),
            Reach::Host(address) => (None, [Some(address), None]),
            Reach::Nowhere(_) => (None, [None, None]),
        };
        own.into_iter().flatten().chain(others.into_iter().flatten())
    }

    /// The first routed address of a container that leads to it from here, and the first one of the other family.
    fn routed_elsewhere(&self, holder: &Container, is_here: &dyn Fn(IpAddr) -> bool) -> [Option<IpAddr>; 2] {
        let routed = holder.routed_ips().unwrap_or_default().iter().copied();
        let mut routed = routed.filter(|address| self.unreachable_at(*address, is_here).is_none());
        let first = routed.next();
        let other = first.and_then(|first| routed.find(|address| address.is_ipv4() != first.is_ipv4()));
        [first, other]
    }

    /// The port of its host under which clients of the local host reach a port of a container that they do not reach
    /// at its own address; none where the address of its host leads to no other host.
    pub fn public_port(&self, container: &Container, private: u16, protocol: &str) -> Option<u16> {
        let holder = self.network_holder(container);
        let address = self.host_address(holder);
        if address.is_some_and(|address| self.unreachable_at(address, &|_| false).is_some()) {
            return None;
        }
        published_as(holder, address, private, protocol)
    }

    /// Where clients of the local host reach a TCP port of a container; `is_here` as for [`Self::reach`].
    ///
    /// # Errors
    ///
    /// Why there is no such place; `None` if the container has no address.
    pub fn port_from_here(
        &self,
        container: &Container,
        private: u16,
        is_here: &dyn Fn(IpAddr) -> bool,
    ) -> Result<SocketAddr, Option<Unreachable>> {
        let why = match self.reach(container, is_here) {
            Reach::Own(_) => {
                let address = self.reachable_addresses(container, is_here).next();
                return address.map(|address| (address, private).into()).ok_or(None);
            }
            Reach::Host(_) => Unreachable::Unpublished,
            Reach::Nowhere(why) => why,
        };
        let public = self.public_port(container, private, "tcp");
        let address = self.host_address(self.network_holder(container));
        address.zip(public).map(SocketAddr::from).ok_or(Some(why))
    }

    /// Where any host of the cluster reaches a TCP port of a container, the same seen from each of them: at its own address where
    /// that is routed, otherwise where its host publishes the port; `None` if only its own host reaches it.
    pub fn port_from_elsewhere(&self, container: &Container, private: u16) -> Option<SocketAddr> {
        let holder = self.network_holder(container);
        let leads_somewhere = |address: &IpAddr| is_host_address(*address);
        let routed = match holder.routed_ips() {
            None => holder.primary_ip().filter(leads_somewhere),
            Some(routed) => routed.iter().copied().find(leads_somewhere),
        };
        if let Some(address) = routed {
            return Some((address, private).into());
        }
        let address = self.host_address(holder).filter(leads_somewhere)?;
        published_as(holder, Some(address), private, "tcp").map(|public| (address, public).into())
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

/// The port under which a container's host publishes a port of it.
fn published_as(container: &Container, host: Option<IpAddr>, private: u16, protocol: &str) -> Option<u16> {
    let is_it = |port: &Published<'_>| port.private == private && port.protocol.eq_ignore_ascii_case(protocol);
    published(container, host).find(is_it).map(|port| port.public)
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

    /// A cluster of host `h1`, which is this one and has 192.0.2.1, and host `h2` with a container `c` that has these addresses that
    /// are routed (`None`: not stated) and these ports.
    fn two_hosts(routed: Option<&[&str]>, ports: &[&str], agent_ip: &str) -> Snapshot {
        let texts = |texts: &[&str]| Value::list(texts.iter().map(|text| Value::text(*text)));
        let host = |uuid: &str, agent_ip: &str| {
            object("host", [("uuid", Value::text(uuid)), ("agent_ip", Value::text(agent_ip))])
        };
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
        let mut snapshot = objects::read([host("h1", "192.0.2.1"), host("h2", agent_ip), container]).0;
        snapshot.local_host = snapshot.hosts.get("h1").cloned();
        snapshot
    }

    /// How this host, a container of which has 172.40.0.2, reaches the container of [`two_hosts`].
    fn reach(routed: Option<&[&str]>, ports: &[&str], agent_ip: &str) -> String {
        let snapshot = two_hosts(routed, ports, agent_ip);
        let container = &snapshot.containers["c"];
        let is_here = &|address: IpAddr| address.to_string() == "172.40.0.2";
        let reach = match snapshot.reach(container, is_here) {
            Reach::Own(_) => "own".to_owned(),
            Reach::Host(address) => format!("host {address}"),
            Reach::Nowhere(why) => format!("{why:?}"),
        };
        let addresses = snapshot.reachable_addresses(container, is_here).map(|address| address.to_string());
        let addresses: Vec<_> = addresses.collect();
        format!("{reach}: {}", addresses.join(" "))
    }

    const ROUTED: &str = crate::entity::ROUTED_IPS;

    #[test]
    fn a_port_is_at_the_same_place_for_all_hosts() {
        for (routed, ports, agent_ip, expected) in [
            (None, &[][..], "192.0.2.2", Some("172.17.0.2:80")),
            (Some(&["10.9.0.2"][..]), &["8080:80/tcp"], "192.0.2.2", Some("10.9.0.2:80")),
            (Some(&[]), &["8080:80/tcp"], "192.0.2.2", Some("192.0.2.2:8080")),
            (Some(&["127.0.0.1"]), &["8080:80/tcp"], "192.0.2.2", Some("192.0.2.2:8080")),
            (Some(&[]), &["8080:80/udp", "81:81/tcp"], "192.0.2.2", None),
            (Some(&[]), &["127.0.0.1:8080:80/tcp"], "192.0.2.2", None),
            (Some(&[]), &["8080:80/tcp"], "127.0.0.1", None),
            (Some(&[]), &["8080:80/tcp"], "", None),
        ] {
            let snapshot = two_hosts(routed, ports, agent_ip);
            let found = snapshot.port_from_elsewhere(&snapshot.containers["c"], 80).map(|at| at.to_string());
            assert_eq!(found.as_deref(), expected, "{routed:?} {ports:?} {agent_ip}");
        }
    }

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
            // The address of its host is this host's, or leads nowhere.
            (Some(&[]), &["80:80/tcp"], "192.0.2.1", "SameHostAddress: "),
            (Some(&[]), &["8080:80/tcp"], "192.0.2.1", "SameHostAddress: "),
            (Some(&[]), &["80:80/tcp"], "::ffff:192.0.2.1", "SameHostAddress: "),
            (Some(&["192.0.2.1"]), &[], "192.0.2.1", "SameHostAddress: "),
            (Some(&[]), &["80:80/tcp"], "127.0.0.1", "UnusableHostAddress: "),
            (Some(&[]), &["80:80/tcp"], "0.0.0.0", "UnusableHostAddress: "),
            (Some(&[]), &["80:80/tcp"], "169.254.169.250", "UnusableHostAddress: "),
            (Some(&[]), &["80:80/tcp"], "fe80::1", "UnusableHostAddress: "),
            (Some(&["127.0.0.1"]), &[], "127.0.0.1", "UnusableHostAddress: "),
            (Some(&["10.9.0.2"]), &["80:80/tcp"], "192.0.2.1", "own: 10.9.0.2"),
            (Some(&[]), &["80:80/tcp"], "127.42.2.1", "host 127.42.2.1: 127.42.2.1"),
            (Some(&["127.42.2.1"]), &[], "127.42.2.1", "own: 127.42.2.1"),
            // A container here has its address.
            (Some(&["172.40.0.2"]), &[], host, "SameAddress: "),
            (Some(&["172.40.0.2"]), &["8080:80/tcp"], host, "SameAddress: "),
            (Some(&["172.40.0.2"]), &["80:80/tcp"], host, "host 192.0.2.2: 192.0.2.2"),
            (Some(&["172.40.0.2", "10.9.0.2", "fd00::2"]), &[], host, "own: 10.9.0.2 fd00::2"),
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
