//! Which hosts check which container: three of the cluster's, by rendezvous hashing.
//!
//! Every host computes the same from the names of the hosts and the container's uuid, so nothing has to be agreed upon, and a
//! host that comes or goes moves only its own share. The container's own host is left out while three others are there. Where
//! hosts are in zones, each next checker is of another zone than those before, if there is one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::entity::{Entity as _, Host, MARK};
use crate::name_hash;
use crate::table::Table;

/// Field of a host whose agent checks containers of other hosts: [`CHECKS`] or [`SUSPECT`]. The predecessor had no such field, so
/// that it is not shown on the wire.
pub const CHECKER: &str = "health_checks";

/// A host that checks.
pub const CHECKS: &str = "made";

/// A host that checks and doubts its own results: what it thinks does not count.
pub const SUSPECT: &str = "suspect";

/// Field of a host that wants all checkers of a container to agree, [`ALL`]; otherwise most of them do. Not shown on the wire.
pub const QUORUM: &str = "health_quorum";

/// All have to agree.
pub const ALL: &str = "all";

/// Field of a host, where stacks have owners: the tenant that it belongs to, if there is one. Not shown on the wire.
pub const TENANT: &str = "tenant_of_host";

/// What a container is called by its own host, whatever other hosts call it: those who check it and its host mean it by that.
pub fn uuid_of_host(uuid: &str) -> &str {
    uuid.split(MARK).next().unwrap_or(uuid)
}

/// Label of a host: its zone.
pub const ZONE_LABEL: &str = "zone";

/// Label of a host that is not to check others' containers, as the predecessor called it, and its value.
const SKIP_LABEL: (&str, &str) = ("io.rancher.host.healthcheck.deploy_strategy", "skip");

/// Checkers of a container: the fewest of which a majority survives the loss of one.
pub const CHECKERS: usize = 3;

/// So many hosts of a zone are ranked for a container, on average. That fewer than three of them are, with `e^-30` times a few
/// hundred, happens once for 10^10 containers, which then have fewer checkers.
const RANKED: u64 = 30;

/// A host that may check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its name in the key of etcd, never what it says of itself.
    pub name: String,
    /// Its zone, if it is in one.
    pub zone: Option<String>,
    /// The tenant that it belongs to, where there are some: hosts of others do not check its containers.
    pub tenant: Option<String>,
    /// Whether it doubts its own results.
    pub is_suspect: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Ranked {
    candidate: Candidate,
    hash: u64,
    /// The number of its tenant, and that of its zone among those of all tenants.
    tenant: usize,
    zone: usize,
}

/// All hosts that may check, as they were at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    ranked: Vec<Ranked>,
    /// Of each zone of a tenant, the weight from which on a host of it is ranked.
    lines: Vec<u64>,
    /// How many hosts each tenant has, and the number of those that have none.
    tenants: Vec<usize>,
    free: Option<usize>,
}

impl Hosts {
    /// These hosts, in any order.
    pub fn new(candidates: impl IntoIterator<Item = Candidate>) -> Self {
        let candidates: BTreeMap<_, _> = candidates.into_iter().map(|one| (one.name.clone(), one)).collect();
        let mut zones = BTreeMap::new();
        for candidate in candidates.values() {
            *zones.entry((candidate.tenant.clone(), candidate.zone.clone())).or_insert(0_u64) += 1;
        }
        let lines = zones.values().map(|size| {
            let below = size.saturating_sub(RANKED);
            // The share of the range of weights that is below the line; nothing is below where all are ranked.
            u64::MAX / size * below
        });
        let lines = lines.collect();
        let numbers: BTreeSet<_> = zones.keys().map(|(tenant, _)| tenant.clone()).collect();
        let numbers: BTreeMap<_, _> = numbers.into_iter().zip(0..).collect();
        let mut tenants = vec![0; numbers.len()];
        let zones: BTreeMap<_, _> = zones.into_keys().zip(0..).collect();
        let hosts = candidates.into_values().map(|candidate| {
            let tenant = numbers[&candidate.tenant];
            tenants[tenant] += 1;
            let zone = zones[&(candidate.tenant.clone(), candidate.zone.clone())];
            Ranked { hash: hash(&candidate.name), tenant, zone, candidate }
        });
        Self { ranked: hosts.collect(), lines, tenants, free: numbers.get(&None).copied() }
    }

    /// Those of a cluster whose agents check containers of other hosts.
    pub fn of(hosts: &Table<Host>) -> Self {
        Self::new(hosts.values().filter_map(|host| candidate(host)))
    }

    /// Whether these choose the same checkers: they are the same, in the same zones.
    pub fn are_same_hosts(&self, other: &Self) -> bool {
        let place = |host: &Ranked| (host.hash, host.tenant, host.zone);
        self.ranked.len() == other.ranked.len()
            && self
                .ranked
                .iter()
                .zip(&other.ranked)
                .all(|(a, b)| place(a) == place(b) && a.candidate.name == b.candidate.name)
    }

    /// Whether a host doubts its own results.
    pub fn is_suspect(&self, host: usize) -> bool {
        self.ranked[host].candidate.is_suspect
    }

    /// Whether no host checks.
    pub fn is_empty(&self) -> bool {
        self.ranked.is_empty()
    }

    /// The host of this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.ranked.binary_search_by(|host| host.candidate.name.as_str().cmp(name)).ok()
    }

    /// The name of a host.
    pub fn name(&self, host: usize) -> &str {
        &self.ranked[host].candidate.name
    }

    /// The checkers of a container, the first in rank first, at most [`CHECKERS`].
    pub fn checkers(&self, container: &str, owner: Option<&str>) -> Vec<usize> {
        self.in_order(hash(container), owner.and_then(|name| self.find(name)))
    }

    fn in_order(&self, container: u64, owner: Option<usize>) -> Vec<usize> {
        let Some(tenant) = owner.map(|owner| self.ranked[owner].tenant).or(self.free) else { return Vec::new() };
        let others = self.tenants[tenant] - usize::from(owner.is_some());
        let left_out = owner.filter(|_| others >= CHECKERS);
        let ranks = self.ranked.iter().enumerate();
        let ranks = ranks.filter(|(index, host)| host.tenant == tenant && Some(*index) != left_out);
        let ranks = ranks.map(|(index, host)| (mix(host.hash, container), index));
        let ranks = ranks.filter(|(weight, index)| *weight >= self.lines[self.ranked[*index].zone]);
        let mut ranks: Vec<_> = ranks.collect();
        // Where it fills up, the container's own host comes last.
        ranks.sort_unstable_by_key(|(weight, index)| (Some(*index) == owner, Reverse(*weight), *index));
        let mut chosen: Vec<usize> = Vec::with_capacity(CHECKERS);
        while chosen.len() < CHECKERS {
            let is_free = |index: &usize| !chosen.contains(index);
            let is_other_zone =
                |index: &usize| chosen.iter().all(|one| self.ranked[*one].zone != self.ranked[*index].zone);
            let mut left = ranks.iter().map(|(_, index)| *index).filter(is_free);
            let Some(next) = left.clone().find(is_other_zone).or_else(|| left.next()) else { break };
            chosen.push(next);
        }
        chosen
    }

    /// The rank of a host among the checkers of a container, if it is one.
    pub fn rank(&self, checker: &str, container: &str, owner: Option<&str>) -> Option<usize> {
        self.targets(checker, [(container, owner, ())]).first().map(|((), rank)| *rank)
    }

    /// Of `containers` (uuid and own host), those that a host checks, with its rank.
    ///
    /// One multiplication sorts out nearly all of them; only the others are ranked.
    pub fn targets<'c, T>(
        &self,
        checker: &str,
        containers: impl IntoIterator<Item = (&'c str, Option<&'c str>, T)>,
    ) -> Vec<(T, usize)> {
        let Some(checker) = self.find(checker) else { return Vec::new() };
        let own = &self.ranked[checker];
        let (line, own_hash) = (self.lines[own.zone], own.hash);
        let containers = containers.into_iter().filter_map(|(uuid, owner, target)| {
            let container = hash(uuid);
            if mix(own_hash, container) < line {
                return None;
            }
            let checkers = self.in_order(container, owner.and_then(|name| self.find(name)));
            checkers.iter().position(|one| *one == checker).map(|rank| (target, rank))
        });
        containers.collect()
    }
}

/// What a host is as a checker, if it is one.
pub fn candidate(host: &Host) -> Option<Candidate> {
    let label = |name: &str| host.labels()?.text(name);
    let checks = host.fields().text(CHECKER)?;
    let (skip, skipped) = SKIP_LABEL;
    if label(skip).is_some_and(|value| **value == *skipped) {
        return None;
    }
    Some(Candidate {
        name: host.name()?.to_string(),
        zone: label(ZONE_LABEL).map(ToString::to_string),
        tenant: host.fields().text(TENANT).map(ToString::to_string),
        is_suspect: **checks == *SUSPECT,
    })
}

/// When in each interval a checker asks, intervals counted from 1970 (UTC): the checkers are a third apart, so that they do not ask
/// at the same moment, and one of them soon notices what happens.
pub fn phase(container: &str, rank: usize, interval: Duration) -> Duration {
    let (part, whole) = (u128::from(hash(container) >> 32), interval.as_nanos().max(1));
    let nanos = ((whole * part) >> 32) + whole * rank as u128 / CHECKERS as u128;
    Duration::from_nanos(u64::try_from(nanos % whole).unwrap_or_default())
}

/// The same on all machines, and mixed once more, so that the last bytes weigh as much as the others.
fn hash(name: &str) -> u64 {
    finish(name_hash(name))
}

/// The weight of a host for a container.
fn mix(host: u64, container: u64) -> u64 {
    finish(host ^ container.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The finalizer of `SplitMix64`: each bit of the argument changes half of the result's.
fn finish(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hosts(count: usize, zones: usize) -> Hosts {
        Hosts::new((0..count).map(|number| Candidate {
            name: format!("host-{number}"),
            zone: (zones > 0).then(|| format!("zone-{}", number % zones)),
            tenant: None,
            is_suspect: false,
        }))
    }

    fn names<'h>(hosts: &'h Hosts, container: &str, owner: Option<&str>) -> Vec<&'h str> {
        hosts.checkers(container, owner).into_iter().map(|host| hosts.name(host)).collect()
    }

    #[test]
    fn the_same_hosts_are_chosen_on_every_machine() {
        let hosts = hosts(10, 0);
        let chosen: Vec<_> =
            ["a", "b", "5f1d0f5e-0001"].iter().map(|uuid| names(&hosts, uuid, None).join(" ")).collect();
        assert_eq!(chosen, GOLDEN);
        let phases = [0, 1, 2].map(|rank| phase("a", rank, Duration::from_secs(1)).as_millis());
        assert_eq!(phases, GOLDEN_PHASES);
    }

    const GOLDEN: [&str; 3] = ["host-1 host-5 host-9", "host-7 host-1 host-6", "host-1 host-5 host-2"];
    const GOLDEN_PHASES: [u128; 3] = [10, 344, 677];

    #[test]
    fn hosts_whose_agents_check_are_candidates() {
        let hosts = [
            (
                r#"{"uuid": "1", "name": "a", "health_checks": "made", "labels": {"zone": "z"}}"#,
                Some(("a", Some("z"), false)),
            ),
            (r#"{"uuid": "2", "name": "b", "health_checks": "suspect"}"#, Some(("b", None, true))),
            (r#"{"uuid": "3", "name": "c"}"#, None),
            (
                r#"{"uuid": "4", "name": "d", "health_checks": "made",
                    "labels": {"io.rancher.host.healthcheck.deploy_strategy": "skip"}}"#,
                None,
            ),
        ];
        for (fields, expected) in hosts {
            let found = candidate(&Host::new(serde_json::from_str(fields).unwrap(), 0).unwrap());
            let found = found.as_ref().map(|found| (&*found.name, found.zone.as_deref(), found.is_suspect));
            assert_eq!(found, expected, "{fields}");
        }
    }

    #[test]
    fn own_host_fills_up_where_fewer_than_three_others_are_there() {
        for (count, expected) in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3)] {
            let hosts = hosts(count, 0);
            for number in 0..100 {
                let chosen = names(&hosts, &format!("c{number}"), Some("host-0"));
                assert_eq!(chosen.len(), expected);
                let own = chosen.iter().position(|name| *name == "host-0");
                assert_eq!(own, (1..=3).contains(&count).then(|| count - 1), "{count}: {chosen:?}");
            }
        }
    }

    #[test]
    fn checkers_are_of_different_zones_where_there_are_some() {
        for (zones, expected) in [(2, 2), (3, 3), (5, 3)] {
            let hosts = hosts(300, zones);
            for number in 0..200 {
                let chosen = hosts.checkers(&format!("c{number}"), Some("host-1"));
                let mut of: Vec<_> = chosen.iter().map(|one| hosts.ranked[*one].zone).collect();
                of.sort_unstable();
                of.dedup();
                assert_eq!((chosen.len(), of.len()), (3, expected));
            }
        }
    }

    #[test]
    fn hosts_of_other_tenants_check_nothing() {
        let tenants = [Some("red"), Some("red"), Some("blue"), Some("blue"), Some("blue"), Some("blue"), None, None];
        let hosts = Hosts::new(tenants.iter().enumerate().map(|(number, tenant)| Candidate {
            name: format!("host-{number}"),
            zone: None,
            tenant: tenant.map(str::to_owned),
            is_suspect: false,
        }));
        for number in 0..50 {
            let container = format!("c{number}");
            for (owner, expected) in [(0, 0..2), (2, 3..6), (6, 6..8)] {
                let owner = format!("host-{owner}");
                let mut chosen = hosts.checkers(&container, Some(&owner));
                chosen.sort_unstable();
                assert_eq!(chosen, expected.collect::<Vec<_>>(), "{owner}");
            }
            // One whose host does not check is left to those of no tenant.
            let mut chosen = hosts.checkers(&container, Some("stranger"));
            chosen.sort_unstable();
            assert_eq!(chosen, [6, 7]);
        }
    }

    #[test]
    fn a_host_that_goes_moves_only_its_own_share() {
        let (all, fewer) = (hosts(40, 0), hosts(39, 0));
        let containers: Vec<_> = (0..2000).map(|number| format!("container-{number}")).collect();
        let mut moved = 0;
        for container in &containers {
            let (before, after) = (names(&all, container, None), names(&fewer, container, None));
            let rest: Vec<_> = before.iter().filter(|name| **name != "host-39").collect();
            assert!(rest.iter().all(|name| after.contains(name)), "{before:?} {after:?}");
            moved += usize::from(rest.len() < before.len());
        }
        // 3 of 40, and 5 % more.
        assert!(moved * 1000 <= containers.len() * (75 + 50), "{moved}");
    }

    #[test]
    fn load_is_even_and_computed_fast_enough_to_be_exact() {
        let hosts = hosts(500, 0);
        let containers: Vec<_> =
            (0..10_000).map(|number| (format!("c{number}"), format!("host-{}", number % 500))).collect();
        let mut loads = vec![0_usize; 500];
        for (container, owner) in &containers {
            let chosen = hosts.checkers(container, Some(owner));
            assert_eq!(chosen.len(), CHECKERS);
            assert!(!chosen.iter().any(|one| hosts.name(*one) == owner));
            for one in chosen {
                loads[one] += 1;
            }
        }
        // 60 on average, 7.7 is one standard deviation.
        assert!(loads.iter().all(|load| (24..=96).contains(load)), "{loads:?}");
        let targets =
            hosts.targets("host-7", containers.iter().map(|(uuid, owner)| (uuid.as_str(), Some(owner.as_str()), ())));
        assert_eq!(targets.len(), loads[hosts.find("host-7").unwrap()]);
    }

    proptest! {
        #[test]
        fn targets_are_those_of_the_full_ranking(count in 0usize..120, zones in 0usize..4, seed in 0u32..1000) {
            let hosts = hosts(count, zones);
            let containers: Vec<_> = (0..50).map(|number| (format!("{seed}-{number}"), format!("host-{}", number % 7))).collect();
            // All hosts, with no line.
            let full = Hosts { lines: vec![0; hosts.lines.len()], ..hosts.clone() };
            for checker in 0..count.min(10) {
                let name = format!("host-{checker}");
                let all = containers.iter().map(|(uuid, owner)| (uuid.as_str(), Some(owner.as_str()), uuid.as_str()));
                let targets = hosts.targets(&name, all);
                let expected: Vec<_> = containers.iter().filter_map(|(uuid, owner)| {
                    let checkers = full.checkers(uuid, Some(owner));
                    let rank = checkers.iter().position(|one| full.name(*one) == name)?;
                    Some((uuid.as_str(), rank))
                }).collect();
                prop_assert_eq!(targets, expected);
            }
        }
    }
}
