//! Room: what the inventory says, less what was promised since.
//!
//! All placement is a pure function of this pair.

use std::collections::HashMap;
use std::net::IpAddr;

use foldhash::fast::RandomState;
use model::{Fingerprint, Text};

use crate::place::bits::{Bits, WORD};
use crate::place::hosts::MISSING;
use crate::place::inventory::key::port_key;
use crate::place::inventory::{Inventory, count};
use crate::place::port::{Bound, Port, Protocol, RANDOM_FIRST, RANDOM_LAST, WILDCARD};

/// What was promised and is not in the inventory yet, by the inventory's indices.
#[derive(Clone, Debug, Default)]
pub struct Promised {
    amounts: Vec<Vec<i64>>,
    bound: HashMap<u32, Vec<Bound>, RandomState>,
    released: HashMap<u32, Vec<Bound>, RandomState>,
    occurrences: HashMap<Fingerprint, Vec<(u32, u32)>, RandomState>,
}

impl Promised {
    /// Nothing promised on the hosts of `inventory`.
    pub fn new(inventory: &Inventory) -> Self {
        let hosts = inventory.hosts();
        Self { amounts: vec![vec![0; hosts.len()]; hosts.pools.len()], ..Self::default() }
    }

    /// Promises `amount` of a pool, or gives it back when negative.
    pub(crate) fn add_amount(&mut self, pool: usize, host: u32, amount: i64) {
        if let Some(promised) = self.amounts.get_mut(pool).and_then(|hosts| hosts.get_mut(host as usize)) {
            *promised = promised.saturating_add(amount);
        }
    }

    /// What is promised of a pool.
    pub(crate) fn amount(&self, pool: usize, host: u32) -> i64 {
        self.amounts[pool][host as usize]
    }

    /// Promises a port.
    pub(crate) fn add_bound(&mut self, host: u32, bound: Bound) {
        self.bound.entry(host).or_default().push(bound);
    }

    /// Takes one promise of a port back.
    pub(crate) fn remove_bound(&mut self, host: u32, bound: &Bound) {
        remove_one(&mut self.bound, host, bound);
    }

    /// Passes over a port that the inventory says is taken: its owner let go of it.
    pub(crate) fn add_released(&mut self, host: u32, bound: Bound) {
        self.released.entry(host).or_default().push(bound);
    }

    /// Heeds such a port again.
    pub(crate) fn remove_released(&mut self, host: u32, bound: &Bound) {
        remove_one(&mut self.released, host, bound);
    }

    /// Something will be on `host` that is found by this key, or will not.
    pub(crate) fn count(&mut self, key: Fingerprint, host: u32, more: bool) {
        let hosts = self.occurrences.entry(key).or_default();
        count(hosts, host, more);
        if hosts.is_empty() {
            self.occurrences.remove(&key);
        }
    }
}

fn remove_one(lists: &mut HashMap<u32, Vec<Bound>, RandomState>, host: u32, bound: &Bound) {
    let Some(list) = lists.get_mut(&host) else { return };
    if let Some(at) = list.iter().position(|known| known == bound) {
        list.swap_remove(at);
    }
    if list.is_empty() {
        lists.remove(&host);
    }
}

/// The ports of one container, which stand on one address unless they name their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortGroup {
    /// Their future owner.
    pub(crate) owner: Text,
    /// What is asked for.
    pub(crate) ports: Vec<Port>,
}

/// Which addresses a port may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addresses {
    /// Only those that the host lists for publishing, as the predecessor when it looked for hosts.
    Listed,
    /// Those, its own one, the wildcard and loopback.
    Own,
    /// Any, as the predecessor when it reserved.
    Any,
}

/// A pool of all hosts, by host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool<'a> {
    total: &'a [i64],
    used: &'a [i64],
    promised: &'a [i64],
}

impl Pool<'_> {
    /// What is used or promised, as [`Room::taken`].
    pub(crate) fn taken(&self, host: usize) -> i64 {
        (self.used[host] + self.promised[host]).max(0)
    }

    /// Which of the hosts from `first` on, as many as a word of [`Bits`] holds, have at least `amount` left.
    pub(crate) fn enough(&self, first: usize, amount: i64) -> u64 {
        let last = (first + WORD).min(self.total.len());
        let (total, used, promised) = (&self.total[first..last], &self.used[first..last], &self.promised[first..last]);
        let mut word = 0;
        for (bit, ((total, used), promised)) in total.iter().zip(used).zip(promised).enumerate() {
            word |= u64::from(total - (used + promised).max(0) >= amount) << bit;
        }
        word
    }
}

/// What the inventory says, less what was promised.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    /// What the snapshot says.
    pub inventory: &'a Inventory,
    /// What was promised since.
    pub promised: &'a Promised,
}

impl<'a> Room<'a> {
    /// What is left of a pool; negative when there is less than nothing, or no such pool.
    pub(crate) fn free(&self, pool: usize, host: u32) -> i64 {
        self.inventory.hosts().totals[pool][host as usize] - self.taken(pool, host)
    }

    /// What is used or promised of a pool.
    pub(crate) fn taken(&self, pool: usize, host: u32) -> i64 {
        (self.inventory.used(pool)[host as usize] + self.promised.amounts[pool][host as usize]).max(0)
    }

    /// A pool of all hosts, for passes over them.
    pub(crate) fn pool(&self, pool: usize) -> Pool<'a> {
        let inventory = self.inventory;
        // Before there are hosts there are no pools either.
        Pool {
            total: inventory.hosts().totals.get(pool).map_or(&[], Vec::as_slice),
            used: inventory.used(pool),
            promised: self.promised.amounts.get(pool).map_or(&[], Vec::as_slice),
        }
    }

    /// Whether the host has the pool at all.
    pub(crate) fn has_pool(&self, pool: usize, host: u32) -> bool {
        self.inventory.hosts().totals[pool][host as usize] != MISSING
    }

    /// How often something occurs on a host.
    pub(crate) fn count(&self, key: &Fingerprint, host: u32) -> u32 {
        let of = |list: &[(u32, u32)]| list.binary_search_by_key(&host, |(host, _)| *host).map_or(0, |at| list[at].1);
        of(self.inventory.occurrences(key)) + self.promised.occurrences.get(key).map_or(0, |list| of(list))
    }

    /// Where something occurs and how often; a host may come twice.
    pub(crate) fn occurrences(&self, key: &Fingerprint) -> impl Iterator<Item = (u32, u32)> + 'a {
        let promised = self.promised.occurrences.get(key).map_or(&[][..], Vec::as_slice);
        self.inventory.occurrences(key).iter().chain(promised).copied()
    }

    /// The hosts on which something occurs.
    pub(crate) fn hosts_with(&self, key: &Fingerprint) -> Bits {
        let mut bits = Bits::none(self.inventory.hosts().len());
        self.occurrences(key).for_each(|(host, _)| bits.insert(host));
        bits
    }

    /// The ports taken on a host.
    pub(crate) fn bound(&self, host: u32) -> impl Iterator<Item = &'a Bound> + 'a {
        let released = self.promised.released.get(&host);
        let stands = move |bound: &&Bound| released.is_none_or(|released| !released.contains(bound));
        let promised = self.promised.bound.get(&host).map_or(&[][..], Vec::as_slice);
        self.inventory.bound(host).iter().filter(stands).chain(promised)
    }

    /// The port that is in the way of this one and is not `owner`'s.
    pub(crate) fn blocker(
        &self,
        host: u32,
        protocol: Protocol,
        address: IpAddr,
        public: u16,
        owner: &str,
    ) -> Option<&'a Bound> {
        self.bound(host).find(|bound| &*bound.owner != owner && bound.blocks(protocol, address, public))
    }

    /// Finds a place for all ports on the host; `None` when there is none.
    pub(crate) fn assign(&self, host: u32, groups: &[PortGroup], addresses: Addresses) -> Option<Vec<Bound>> {
        self.assign_beside(host, groups, addresses, &[])
    }

    /// [`Room::assign`] beside ports that were assigned just now.
    pub(crate) fn assign_beside(
        &self,
        host: u32,
        groups: &[PortGroup],
        addresses: Addresses,
        others: &[Bound],
    ) -> Option<Vec<Bound>> {
        let mut steps = ASSIGN_STEPS_MAX;
        let mut bound = others.to_vec();
        let assigned = self.assign_rest(host, groups, addresses, &mut bound, &mut steps);
        assigned.then(|| bound.split_off(others.len()))
    }

    fn assign_rest(
        &self,
        host: u32,
        groups: &[PortGroup],
        addresses: Addresses,
        bound: &mut Vec<Bound>,
        steps: &mut u32,
    ) -> bool {
        let Some((group, rest)) = groups.split_first() else { return true };
        let before = bound.len();
        for address in self.group_addresses(host, group) {
            if *steps == 0 {
                return false;
            }
            *steps -= 1;
            let placed =
                group.ports.iter().all(|port| match self.place_port(host, group, port, address, addresses, bound) {
                    Some(place) => {
                        bound.push(place);
                        true
                    }
                    None => false,
                });
            if placed && self.assign_rest(host, rest, addresses, bound, steps) {
                return true;
            }
            bound.truncate(before);
        }
        false
    }

    /// The addresses on which those ports of the group may stand that name none: one that the others name, or any.
    fn group_addresses(&self, host: u32, group: &PortGroup) -> Vec<IpAddr> {
        let listed = &self.inventory.hosts().facts(host).addresses;
        let mut named: Vec<IpAddr> = group.ports.iter().filter_map(|port| port.address).collect();
        named.retain(|address| listed.contains(address));
        named.dedup();
        let free = group.ports.iter().any(|port| port.address.is_none());
        if !free {
            // Nothing to choose.
            vec![WILDCARD]
        } else if named.is_empty() {
            listed.clone()
        } else {
            named
        }
    }

    fn place_port(
        &self,
        host: u32,
        group: &PortGroup,
        port: &Port,
        address: IpAddr,
        addresses: Addresses,
        unit: &[Bound],
    ) -> Option<Bound> {
        let address = match port.address {
            Some(named) => Some(named).filter(|named| self.may_name(host, *named, addresses))?,
            None => address,
        };
        let free = |public: u16| {
            let in_unit = unit.iter().any(|bound| bound.blocks(port.protocol, address, public));
            !in_unit && self.blocker(host, port.protocol, address, public, &group.owner).is_none()
        };
        let public = match port.public {
            0 => {
                let count = u32::from(RANDOM_LAST - RANDOM_FIRST) + 1;
                // Where to start follows from the owner, so that equal requests get equal answers.
                let start = Fingerprint::of(&(&group.owner, port))
                    .to_string()
                    .bytes()
                    .fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
                let candidate = |step| u16::try_from(u32::from(RANDOM_FIRST) + (start % count + step) % count).ok();
                (0..count).filter_map(candidate).find(|public| free(*public))?
            }
            public => Some(public).filter(|public| free(*public))?,
        };
        Some(Bound { address, public, private: port.private, protocol: port.protocol, owner: group.owner.clone() })
    }

    /// Whether a port on this host may name this address.
    pub(crate) fn may_name(&self, host: u32, address: IpAddr, addresses: Addresses) -> bool {
        let facts = self.inventory.hosts().facts(host);
        let own = || address.is_unspecified() || address.is_loopback() || facts.agent_ip == Some(address);
        addresses == Addresses::Any || facts.addresses.contains(&address) || (addresses == Addresses::Own && own())
    }

    /// The hosts on which some port is taken that could be in the way of these.
    pub(crate) fn hosts_with_ports(&self, groups: &[PortGroup], into: &mut Bits) {
        for port in groups.iter().flat_map(|group| &group.ports).filter(|port| port.public != 0) {
            self.occurrences(&port_key(port.protocol, port.public)).for_each(|(host, _)| into.insert(host));
        }
    }
}

/// Most ways that are tried to put a unit's ports on a host's addresses: enough for 16 containers on 16 addresses
/// unless they were chosen to be hard.
const ASSIGN_STEPS_MAX: u32 = 10_000;

/// The keys under which promised ports are found.
pub(crate) fn bound_keys(bound: &[Bound]) -> impl Iterator<Item = Fingerprint> + '_ {
    bound.iter().map(|bound| port_key(bound.protocol, bound.public))
}
