//! Who a client is: the one rule by which an address stands for a container.

use std::cmp::Ordering;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::entity::{Container, Entity as _};
use crate::snapshot::Snapshot;
use crate::value::Value;

/// Longest time for which a request that depends on the client is held until the client's container is known.
///
/// An engine reports a container when its process has begun, some 15 ms after that (60 at most, with 300 containers). A
/// process that asks in its first line would otherwise be denied.
pub const CLIENT_KNOWN_WITHIN: Duration = Duration::from_millis(250);

/// What the rule needs to know besides the containers themselves.
#[derive(Clone, Copy, Debug)]
pub struct ClientRule<F> {
    /// Whether a container belongs to a service.
    pub in_service: F,
    /// Whether the client's address was named by a trusted proxy.
    pub proxied: bool,
    /// Whether a container of another host counts when no local one has the address. As recorded, metadata knew such
    /// clients and DNS did not. Never where an engine reports the local containers.
    pub guests: bool,
}

impl Snapshot {
    /// Whether a container runs on the host that this snapshot was made for.
    ///
    /// Without such a host every container counts as local. A container that names no host is local when there is
    /// only one host it could be on.
    pub fn is_local(&self, container: &Container) -> bool {
        let Some(local) = &self.local_host else { return true };
        match container.host_uuid() {
            Some(host) => Arc::ptr_eq(host, local.uuid()) || host == local.uuid(),
            None => self.hosts.len() <= 1,
        }
    }

    /// The container that a request comes from, of those that have its source address.
    ///
    /// A client is a local container: the same address may exist on every host. What [`Self::standing_addresses`] leaves out
    /// is no candidate. Containers on the host's network share its address. Of several, these win, in this order: a running one; one with a network of its own; one that is
    /// no part of the system; one that belongs to a service (behind a proxy: one that belongs to none, since a container
    /// of a service comes through the proxy, which names it); then the lowest `create_index`, name and uuid.
    pub fn client<'c>(
        &self,
        candidates: impl IntoIterator<Item = &'c Arc<Container>>,
        rule: &ClientRule<impl Fn(&Container) -> bool>,
    ) -> Option<&'c Arc<Container>> {
        let candidates = candidates.into_iter().map(|container| (!self.is_local(container), container));
        let candidates = candidates.filter(|(guest, _)| rule.guests || !guest);
        let standing = |container: &Container| {
            let system = container.fields().get("system").and_then(Value::as_bool).unwrap_or_default();
            let preferred = (rule.in_service)(container) != rule.proxied;
            (container.state() != "running", container.network_from().is_some(), system, !preferred)
        };
        let best = candidates.min_by(|(guest, a), (other_guest, b)| {
            (guest.cmp(other_guest)).then_with(|| standing(a).cmp(&standing(b))).then_with(|| order(a, b))
        });
        best.map(|(_, container)| container)
    }

    /// The addresses that stand for a container here: from which it asks, and which lead back to its name.
    ///
    /// Of a local container all: which of its networks has the default route is known to the engine alone. An address of
    /// another host's own network may be that of another container here, so that it stands for none.
    pub fn standing_addresses(&self, container: &Container) -> impl Iterator<Item = IpAddr> + use<> {
        let (own, routed) = if self.is_local(container) {
            (Some(container.all_addresses()), None)
        } else {
            (None, Some(container.routed_addresses()))
        };
        own.into_iter().flatten().chain(routed.into_iter().flatten())
    }
}

/// The order in which clients see containers: by `create_index`, then name (in lower case first), then uuid.
fn order(a: &Container, b: &Container) -> Ordering {
    let lowered = |container: &Container| container.name().map(|name| name.to_lowercase());
    (a.create_index().cmp(&b.create_index()))
        .then_with(|| lowered(a).cmp(&lowered(b)))
        .then_with(|| a.name().cmp(&b.name()))
        .then_with(|| a.uuid().cmp(b.uuid()))
}

impl Container {
    /// The addresses it may ask from: the main one, and the first usable one of the other family.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        of_each_family(self.primary_ip(), self.other_ips())
    }

    /// The main address and all others that are usable; none without a main one.
    fn all_addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let main = self.primary_ip().filter(is_usable);
        let others = if main.is_some() { self.other_ips() } else { &[] };
        let others: Vec<_> = others.iter().copied().filter(|other| is_usable(other) && Some(*other) != main).collect();
        main.into_iter().chain(others)
    }
}

fn is_usable(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_unspecified(),
        IpAddr::V6(address) => !address.is_unspecified() && !address.is_unicast_link_local(),
    }
}

/// The main address, when it is usable, and the first usable one of the other family.
pub(crate) fn of_each_family(main: Option<IpAddr>, others: &[IpAddr]) -> impl Iterator<Item = IpAddr> + use<> {
    let main = main.filter(is_usable);
    let is_other =
        |main: IpAddr| others.iter().copied().find(|other| is_usable(other) && other.is_ipv4() != main.is_ipv4());
    main.into_iter().chain(main.and_then(is_other))
}

/// As which address a client counts. A machine of the Internet has the whole /64 of its IPv6 address (RFC 6177, section 2);
/// containers of one host share a /64 of private addresses, so each of these counts alone.
pub fn counted_as(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address)
            if !address.is_unique_local() && !address.is_unicast_link_local() && !address.is_loopback() =>
        {
            IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into())
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::objects;
    use crate::snapshot::object;

    /// Containers on hosts 0 to 2 (3: no host stated), all with one address.
    fn snapshot(containers: &[(u8, bool, bool, i64)], local: Option<u8>, hosts: u8) -> Snapshot {
        let host = |number: u8| object("host", [("uuid", Value::text(format!("h{number}")))]);
        let container = |(id, (host, running, system, index)): (usize, &(u8, bool, bool, i64))| {
            let host_uuid = if *host < 3 { Value::text(format!("h{host}")) } else { Value::Null };
            object(
                "container",
                [
                    ("uuid", Value::text(format!("c{id}"))),
                    ("primary_ip", Value::text("172.17.0.2")),
                    ("host_uuid", host_uuid),
                    ("state", Value::text(if *running { "running" } else { "stopped" })),
                    ("system", Value::Bool(*system)),
                    ("create_index", Value::Int(*index)),
                ],
            )
        };
        let objects = (0..hosts).map(host).chain(containers.iter().enumerate().map(container));
        let mut snapshot = objects::read(objects).0;
        snapshot.local_host = local.and_then(|local| snapshot.hosts.get(&*format!("h{local}")).cloned());
        snapshot
    }

    #[test]
    fn a_machine_with_many_addresses_is_one_client() {
        for (one, other, same) in [
            ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", true),
            ("2001:db8:0:1::1", "2001:db8:0:2::1", false),
            ("fd00::1", "fd00::2", false),
            ("fe80::1", "fe80::2", false),
            ("::ffff:192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
        ] {
            let [one, other] = [one, other].map(|text| counted_as(text.parse().unwrap()));
            assert_eq!(one == other, same, "{one} {other}");
        }
    }

    proptest! {
        /// With equal addresses on several hosts, a client is a container of the host that is asked.
        #[test]
        fn a_client_is_a_container_of_the_local_host(
            containers in prop::collection::vec((0..4u8, any::<bool>(), any::<bool>(), 0..3i64), 0..8),
            local in prop::option::of(0..3u8),
            in_service in any::<u8>(),
            proxied in any::<bool>(),
        ) {
            let snapshot = snapshot(&containers, local, 3);
            let in_service = |container: &Container| {
                let id: usize = container.uuid()[1..].parse().unwrap();
                in_service >> id & 1 == 1
            };
            let rule = ClientRule { in_service, proxied, guests: false };
            let client = snapshot.client(snapshot.containers.values(), &rule).map(|client| client.uuid().clone());
            let here = |container: &&Arc<Container>| {
                local.is_none_or(|local| container.host_uuid().is_some_and(|host| **host == *format!("h{local}")))
            };
            let here: Vec<_> = snapshot.containers.values().filter(here).collect();
            prop_assert_eq!(client.is_some(), !here.is_empty());
            // What is elsewhere changes nothing.
            prop_assert_eq!(client.as_ref(), snapshot.client(here.iter().rev().copied(), &rule).map(|client| client.uuid()));
            // Another host's container is a client of metadata only where no local one has the address.
            let guest = snapshot.client(snapshot.containers.values(), &ClientRule { guests: true, ..rule });
            prop_assert_eq!(guest.is_some(), !containers.is_empty());
            prop_assert!(client.is_none() || client.as_ref() == guest.map(|guest| guest.uuid()));
            if let Some(client) = client {
                let client = &snapshot.containers[&client];
                prop_assert!(here.iter().any(|container| container.uuid() == client.uuid()));
                prop_assert!(client.state() == "running" || here.iter().all(|container| container.state() != "running"));
            }
        }
    }

    /// By which network a container asks, its engine decides.
    #[test]
    fn each_address_of_a_local_container_stands_for_it_and_none_of_another_host() {
        for (host, expected) in [("h0", &["172.20.0.2", "172.21.0.2", "2001:db8::2"][..]), ("h1", &[])] {
            let ips = ["172.20.0.2", "fe80::2", "172.21.0.2", "2001:db8::2"];
            let container = object(
                "container",
                [
                    ("uuid", Value::text("c")),
                    ("primary_ip", Value::text(ips[0])),
                    ("ips", Value::list(ips.map(Value::text))),
                    ("routed_ips", Value::list([])),
                    ("host_uuid", Value::text(host)),
                ],
            );
            let hosts = ["h0", "h1"].map(|uuid| object("host", [("uuid", Value::text(uuid))]));
            let mut snapshot = objects::read(hosts.into_iter().chain([container])).0;
            snapshot.local_host = snapshot.hosts.get("h0").cloned();
            let found = snapshot.standing_addresses(&snapshot.containers["c"]).map(|address| address.to_string());
            assert_eq!(found.collect::<Vec<_>>(), expected, "{host}");
        }
    }

    #[test]
    fn a_container_that_names_no_host_is_on_the_only_one() {
        for (hosts, expected) in [(1, true), (2, false)] {
            let snapshot = snapshot(&[(3, true, false, 1)], Some(0), hosts);
            assert_eq!(snapshot.is_local(&snapshot.containers["c0"]), expected);
        }
    }
}
