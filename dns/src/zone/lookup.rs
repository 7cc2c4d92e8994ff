//! Looking names up: those that are in the zone, and those of ports and addresses, which are found by what they are
//! the names of.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use model::{Container, Entity, Host, Service};

use super::entry::{Entry, Owner, Place};
use super::members::is_local;
use super::node::PortNode;
use super::records::{Making, pointer};
use super::{HostNames, Node, Scope, Searched, Target, Vips, Zone};
use crate::name::{Folded, ancestors, is_within};

/// The domain of IPv4 addresses' names (RFC 1035 section 3.5).
const IPV4_DOMAIN: &[u8] = b"\x07in-addr\x04arpa\0";

/// The domain of IPv6 addresses' names (RFC 3596 section 2.5).
const IPV6_DOMAIN: &[u8] = b"\x03ip6\x04arpa\0";

/// What both end in.
const REVERSE_DOMAIN: &[u8] = b"\x04arpa\0";

/// The last labels before the name of a service (RFC 2782).
const PROTOCOLS: [&[u8; 5]; 2] = [b"\x04_tcp", b"\x04_udp"];

impl Zone {
    /// The records of a name that all clients see.
    pub(crate) fn node(&self, name: &[u8]) -> Option<&Arc<Node>> {
        if let Some(entry) = self.names.get(name) {
            return entry.node(self);
        }
        // No container or service is called like this.
        if self.hosts_domain().is_some_and(|hosts| name.len() > hosts.len() && is_within(name, hosts)) {
            return self.hosts().get(name);
        }
        if name.get(1) == Some(&b'_') {
            return self.port(name);
        }
        if name.ends_with(REVERSE_DOMAIN) {
            let address = address_of(name)?;
            return self.vips().get(&address).or_else(|| self.addresses.get(&address)?.pointer(self));
        }
        None
    }

    /// Whether names stand below this one.
    pub(crate) fn has_below(&self, name: &[u8]) -> bool {
        self.below.get(name).is_some_and(|below| *below > 0)
            || self.ports_of(name).is_some_and(|(front, ports)| {
                ports.iter().any(|port| *port.labels != *front && is_below(&port.labels, front))
            })
            || self.hosts_domain().is_some_and(|hosts| {
                // The domain, what stands above it, and what a host's name has dots before.
                let may_be = is_within(name, hosts) || is_within(hosts, name);
                may_be && self.hosts().keys().any(|host| host.with_ancestors().skip(1).any(|ancestor| ancestor == name))
            })
    }

    /// The domain of hosts' names; `None` when names are those of a file of answers.
    fn hosts_domain(&self) -> Option<&[u8]> {
        self.hosts_domain.as_ref().map(Folded::wire)
    }

    /// The name that service records have for a host.
    pub(super) fn host_name(&self, host: &Host) -> Option<Folded> {
        self.hosts_domain.as_ref()?.under(host.name()?).ok()
    }

    /// The addresses of hosts by these names.
    fn hosts(&self) -> &HostNames {
        self.hosts.get_or_init(|| {
            let hosts = self.snapshot.hosts.values();
            let named = |host: &Arc<Host>| {
                let node = Node { searched: Searched::Nobody, ..Node::addresses([host.address()?], self.ttl) };
                Some((self.host_name(host)?, Arc::new(node)))
            };
            hosts.filter_map(named).collect()
        })
    }

    /// How many names all clients see, besides those of ports and addresses.
    pub(crate) fn count(&self) -> usize {
        self.names.len()
    }

    /// What this client sees in addition to the others.
    pub(crate) fn scope(&self, client: IpAddr) -> Option<&Arc<Scope>> {
        let client = client.to_canonical();
        self.scopes.get(&client).or_else(|| self.addresses.get(&client)?.scope(self))
    }

    /// Whether this address is a container's, or has names of its own.
    pub(crate) fn knows(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        self.scopes.contains_key(&client)
            || self.addresses.get(&client).is_some_and(|place| place.client(self).is_some())
    }

    /// Whether this address is a running container's alone: that of a host is what names of others may lead to.
    pub(crate) fn is_container(&self, address: IpAddr) -> bool {
        let runs = |place: &Place| place.claims.iter().any(|claim| claim.runs());
        let is_container = self.scopes.contains_key(&address) || self.addresses.get(&address).is_some_and(runs);
        is_container && !self.snapshot.hosts.values().any(|host| host.address() == Some(address))
    }

    /// Whether a running container of the local host has this address.
    pub(super) fn is_here(&self, address: IpAddr) -> bool {
        let here = |claim: &Arc<Container>| claim.runs() && self.snapshot.is_local(claim);
        self.addresses.get(&address.to_canonical()).is_some_and(|place| place.claims.iter().any(here))
    }

    /// The node that a link leads to.
    pub(crate) fn target<'z>(&'z self, target: &'z Target) -> Option<&'z Arc<Node>> {
        match target {
            Target::Name(name) => self.node(name.wire()),
            Target::Id(id) => match self.containers.get(id) {
                Some(member) => member.node(self),
                None => self.linked.get(id),
            },
            Target::Node(node) => Some(node),
        }
    }

    /// What the addresses of services lead back to.
    ///
    /// Whose services have none is only seen by looking at all of them, which no other question waits for.
    pub(super) fn vips(&self) -> &Vips {
        self.vips.get_or_init(|| {
            let mut making = Making::new(self);
            let environment = self.snapshot.environment_uuid();
            let services = self.snapshot.services.values();
            let services = services.filter(|service| is_local(environment, service.environment_uuid()));
            // Of services with the same address the last one has it.
            let vips = services.filter_map(|service| {
                let vip = making.vip(service)?.to_canonical();
                let name = self.service_name(service).ok().filter(|name| self.is_of(name, service))?;
                Some((vip, Arc::new(pointer(&name, self.ttl))))
            });
            vips.collect()
        })
    }

    /// Whether a name is this service's.
    pub(super) fn is_of(&self, name: &Folded, service: &Service) -> bool {
        self.names.get(name).and_then(Entry::service).is_some_and(|owner| owner.id() == service.id())
    }

    /// The service records of a port.
    fn port(&self, name: &[u8]) -> Option<&Arc<Node>> {
        let (front, ports) = self.ports_of(name)?;
        ports.iter().find(|port| *port.labels == *front).map(|port| &port.node)
    }

    /// The labels of a name before that of a service, and that service's ports.
    fn ports_of<'n>(&self, name: &'n [u8]) -> Option<(&'n [u8], &[PortNode])> {
        let at_protocol = |from: &&[u8]| from.first_chunk().is_some_and(|labels| PROTOCOLS.contains(&labels));
        for from in ancestors(name).filter(at_protocol) {
            let service = &from[PROTOCOLS[0].len()..];
            let front = &name[..name.len() - service.len()];
            let Some(entry) = self.names.get(service) else { continue };
            let (Owner::Service(owner), Some(node)) = (&entry.owner, entry.node(self)) else { continue };
            let ports = node.ports.get_or_init(|| Making::new(self).ports(owner, &Folded::from_wire(service)));
            return Some((front, ports));
        }
        None
    }
}

/// Whether labels end in these, or are these.
fn is_below(labels: &[u8], end: &[u8]) -> bool {
    let mut rest = labels;
    while rest.len() > end.len() {
        rest = rest.get(usize::from(rest[0]) + 1..).unwrap_or_default();
    }
    rest == end
}

/// Bytes of the reverse name of an IPv4 address, at most.
const REVERSE_BYTES_MAX: usize = 28;

/// The name under which an address is looked up (RFC 1035 section 3.5, RFC 3596 section 2.5).
pub(crate) fn reverse_name(address: IpAddr) -> Folded {
    let text = match address.to_canonical() {
        IpAddr::V4(address) => {
            let mut text = String::with_capacity(REVERSE_BYTES_MAX);
            for byte in address.octets().iter().rev() {
                // Digits by hand: there is one such name for each container.
                for (least, power) in [(100, 100), (10, 10), (0, 1)] {
                    if *byte >= least {
                        text.push(char::from(b'0' + byte / power % 10));
                    }
                }
                text.push('.');
            }
            text + "in-addr.arpa"
        }
        IpAddr::V6(address) => {
            let nibbles = address.octets().into_iter().rev().flat_map(|byte| [byte & 15, byte >> 4]);
            let labels = nibbles.map(|nibble| format!("{nibble:x}."));
            labels.chain(["ip6.arpa".to_owned()]).collect()
        }
    };
    Folded::parse(&text).expect("digits and fixed labels make a valid name")
}

/// The address that is looked up under a folded name: the opposite of [`reverse_name`].
fn address_of(name: &[u8]) -> Option<IpAddr> {
    if let Some(labels) = name.strip_suffix(IPV4_DOMAIN) {
        let mut bytes = [0; 4];
        let count = for_each_label(labels, |at, label| {
            let digits = str::from_utf8(label).ok()?;
            // Only the usual form, so that an address has one name.
            let is_plain =
                digits.bytes().all(|digit| digit.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
            *bytes.get_mut(3_usize.checked_sub(at)?)? = digits.parse().ok().filter(|_| is_plain)?;
            Some(())
        })?;
        return (count == 4).then_some(Ipv4Addr::from(bytes).into());
    }
    let labels = name.strip_suffix(IPV6_DOMAIN)?;
    let mut bytes = [0; 16];
    let count = for_each_label(labels, |at, label| {
        let nibble = match label {
            [digit @ b'0'..=b'9'] => digit - b'0',
            [letter @ b'a'..=b'f'] => letter - b'a' + 10,
            _ => return None,
        };
        *bytes.get_mut(15_usize.checked_sub(at / 2)?)? |= nibble << (at % 2 * 4);
        Some(())
    })?;
    let address = IpAddr::from(Ipv6Addr::from(bytes));
    // An IPv4 address in disguise has another name.
    (count == 32 && address.to_canonical() == address).then_some(address)
}

/// Visits labels in wire format with their numbers, as long as they please; returns how many there were.
fn for_each_label(labels: &[u8], mut visit: impl FnMut(usize, &[u8]) -> Option<()>) -> Option<usize> {
    let (mut rest, mut count) = (labels, 0);
    while let Some((&length, tail)) = rest.split_first() {
        let (label, tail) = tail.split_at_checked(usize::from(length))?;
        visit(count, label)?;
        (rest, count) = (tail, count + 1);
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_looked_up_from_behind() {
        for (address, name) in [
            ("10.42.0.7", "7.0.42.10.in-addr.arpa."),
            ("255.100.99.9", "9.99.100.255.in-addr.arpa."),
            ("::ffff:192.0.2.1", "1.2.0.192.in-addr.arpa."),
            ("2001:db8::1", "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa."),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(reverse_name(address).to_string(), name);
            assert_eq!(address_of(reverse_name(address).wire()), Some(address.to_canonical()));
        }
    }

    #[test]
    fn an_address_has_one_name() {
        for name in [
            "07.0.42.10.in-addr.arpa",
            "256.0.42.10.in-addr.arpa",
            "+7.0.42.10.in-addr.arpa",
            "0.42.10.in-addr.arpa",
            "1.7.0.42.10.in-addr.arpa",
            "in-addr.arpa",
            "1.0.0.2.ip6.arpa",
            "1.2.3.4.arpa",
            // ::ffff:192.0.2.1
            "1.0.2.0.0.0.0.c.f.f.f.f.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.ip6.arpa",
        ] {
            assert_eq!(address_of(Folded::parse(name).unwrap().wire()), None, "{name}");
        }
    }
}
