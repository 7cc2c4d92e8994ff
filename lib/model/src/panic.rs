//! Panic: when too little is healthy, health is more likely wrong than right, and is ignored.
//!
//! Containers that are initializing do not count, so that a rollout is none.

use imbl::OrdMap;

use crate::entity::{is_healthy_state, is_unhealthy_state};
use crate::value::Text;

/// Fewest containers with a verdict by which a cluster is judged.
const CLUSTER_MIN: usize = 20;

/// What all containers of one host weigh together, so that their shares can be added as whole numbers.
const WEIGHT: usize = 1_000_000;

/// How many containers are healthy, and how many are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Those that are.
    pub healthy: usize,
    /// Those that are not.
    pub unhealthy: usize,
}

impl Share {
    /// That of one container, by its `health_state`.
    pub fn of(health_state: Option<&str>) -> Self {
        let count = |is_so: fn(&str) -> bool| usize::from(health_state.is_some_and(is_so));
        Self { healthy: count(is_healthy_state), unhealthy: count(is_unhealthy_state) }
    }

    /// The share of a set that had `self` and gains these.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { healthy: self.healthy + other.healthy, unhealthy: self.unhealthy + other.unhealthy }
    }

    /// The share of a set that had `self` and loses these.
    fn minus(self, other: Self) -> Self {
        Self { healthy: self.healthy - other.healthy, unhealthy: self.unhealthy - other.unhealthy }
    }

    fn total(self) -> usize {
        self.healthy + self.unhealthy
    }

    /// What the unhealthy ones weigh, of [`WEIGHT`].
    fn weight(self) -> usize {
        self.unhealthy * WEIGHT / self.total().max(1)
    }

    /// Whether so few of a service are healthy that all of its members are named; `threshold` is per cent, 0 is never.
    pub fn is_service_panic(self, threshold: u8) -> bool {
        self.healthy * 100 < usize::from(threshold) * self.total()
    }
}

/// How many containers of a cluster are healthy, and how many are not, on each host. A copy shares everything.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    all: Share,
    /// The hosts of those that have a verdict; what names no host is on one without a name.
    hosts: OrdMap<Text, Share>,
    /// The sum of what the unhealthy ones of each host weigh.
    weight: usize,
}

impl Shares {
    /// All together.
    pub fn all(&self) -> Share {
        self.all
    }

    /// Whether so few of the cluster are healthy that its verdicts are not believed.
    ///
    /// Most are unhealthy, and most would be if each host weighed the same; and both hold whichever one host is left out, if there are
    /// others: otherwise a host that says it runs more containers than all others, and lets them fail, would switch off health for
    /// all, or would tip a cluster in which some others fail. Hosts are gone through only where most are unhealthy.
    pub fn is_cluster_panic(&self) -> bool {
        self.all.total() >= CLUSTER_MIN
            && self.is_mostly_unhealthy_without(None)
            && (self.hosts.len() == 1 || self.hosts.values().all(|host| self.is_mostly_unhealthy_without(Some(*host))))
    }

    fn is_mostly_unhealthy_without(&self, host: Option<Share>) -> bool {
        let left_out = host.unwrap_or_default();
        let rest = self.all.minus(left_out);
        let hosts = self.hosts.len() - usize::from(host.is_some());
        rest.healthy * 2 < rest.total() && (self.weight - left_out.weight()) * 2 > hosts * WEIGHT
    }

    /// Takes in the verdict about a container.
    pub(crate) fn add(&mut self, verdict: Option<(Option<&Text>, &str)>) {
        self.change(verdict, Share::plus);
    }

    /// Takes out the verdict about a container, which it had.
    pub(crate) fn lose(&mut self, verdict: Option<(Option<&Text>, &str)>) {
        self.change(verdict, Share::minus);
    }

    fn change(&mut self, verdict: Option<(Option<&Text>, &str)>, change: fn(Share, Share) -> Share) {
        let Some((host, state)) = verdict else { return };
        let share = Share::of(Some(state));
        if share == Share::default() {
            return;
        }
        self.all = change(self.all, share);
        let host = host.cloned().unwrap_or_default();
        let before = self.hosts.get(&host).copied().unwrap_or_default();
        let after = change(before, share);
        self.weight = self.weight - before.weight() + after.weight();
        if after == Share::default() {
            self.hosts.remove(&host);
        } else {
            self.hosts.insert(host, after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_below_the_threshold_are_panic() {
        let share = |healthy, unhealthy| Share { healthy, unhealthy };
        for (threshold, healthy, unhealthy, is_panic) in [
            (0, 0, 9, false),
            (50, 5, 5, false),
            (50, 4, 5, true),
            (50, 0, 0, false),
            (100, 9, 1, true),
            (100, 10, 0, false),
        ] {
            assert_eq!(
                share(healthy, unhealthy).is_service_panic(threshold),
                is_panic,
                "{threshold} {healthy} {unhealthy}"
            );
        }
    }

    /// The shares of hosts with so many healthy and unhealthy containers.
    fn shares(hosts: &[(usize, usize)]) -> Shares {
        let mut shares = Shares::default();
        for (number, (healthy, unhealthy)) in hosts.iter().enumerate() {
            let host = Text::from(number.to_string());
            (0..*healthy).for_each(|_| shares.add(Some((Some(&host), "healthy"))));
            (0..*unhealthy).for_each(|_| shares.add(Some((Some(&host), "unhealthy"))));
        }
        shares
    }

    #[test]
    fn a_cluster_most_of_which_is_unhealthy_is_panic() {
        for (hosts, is_panic) in [
            (&[(0, 19)][..], false),
            (&[(0, 20)], true),
            (&[(10, 10)], false),
            (&[(9, 11)], true),
            (&[(40, 60)], true),
            (&[(0, 10), (0, 10)], true),
            (&[(0, 50), (40, 10)], false),
            (&[(9, 11), (9, 11), (9, 11)], true),
            (&[(0, 20), (0, 20), (0, 20), (20, 0)], true),
            (&[(0, 20), (0, 20), (0, 20), (20, 0), (20, 0)], false),
            (&[(20, 0), (20, 0), (0, 20), (0, 20)], false),
        ] {
            assert_eq!(shares(hosts).is_cluster_panic(), is_panic, "{hosts:?}");
        }
    }

    #[test]
    fn one_host_whose_containers_fail_is_no_panic_however_many_they_are() {
        assert!(!shares(&[(0, 10_000), (5, 0), (5, 0)]).is_cluster_panic());
        assert!(!shares(&[(0, 10_000), (9, 1), (8, 2), (9, 1)]).is_cluster_panic());
        assert!(!shares(&[(0, 10_000), (10, 5), (10, 5)]).is_cluster_panic());
    }

    proptest::proptest! {
        /// No host brings panic to others most of whose containers are healthy.
        #[test]
        fn no_host_brings_panic_to_others(
            others in proptest::collection::vec((0_usize..30, 0_usize..30), 1..8),
            healthy in 0_usize..100,
            unhealthy in 0_usize..2_000,
        ) {
            let healthy_of_all: usize = others.iter().map(|(healthy, _)| healthy).sum();
            let unhealthy_of_all: usize = others.iter().map(|(_, unhealthy)| unhealthy).sum();
            let mut all = others;
            all.push((healthy, unhealthy));
            proptest::prop_assert!(healthy_of_all < unhealthy_of_all || healthy_of_all == 0 || !shares(&all).is_cluster_panic());
        }

        /// Whatever comes and goes, the shares are those of what is there.
        #[test]
        fn shares_are_those_of_what_is_there(steps in proptest::collection::vec((0_usize..3, 0_usize..3), 0..60)) {
            const STATES: [&str; 3] = ["healthy", "unhealthy", "initializing"];
            let hosts = [Some(Text::from("a")), Some(Text::from("b")), None];
            let (mut shares, mut there) = (Shares::default(), Vec::new());
            for (host, state) in steps {
                if let Some(place) = there.iter().position(|one| *one == (host, state)) {
                    there.swap_remove(place);
                    shares.lose(Some((hosts[host].as_ref(), STATES[state])));
                } else {
                    there.push((host, state));
                    shares.add(Some((hosts[host].as_ref(), STATES[state])));
                }
            }
            let mut expected = Shares::default();
            for (host, state) in there {
                expected.add(Some((hosts[host].as_ref(), STATES[state])));
            }
            proptest::prop_assert_eq!((shares.all, &shares.hosts, shares.weight), (expected.all, &expected.hosts, expected.weight));
        }
    }

    #[test]
    fn a_rollout_is_no_panic() {
        let mut shares = Shares::default();
        for _ in 0..100 {
            shares.add(Some((None, "initializing")));
            shares.add(None);
        }
        shares.add(Some((None, "unhealthy")));
        assert_eq!(shares.all(), Share { healthy: 0, unhealthy: 1 });
        assert!(!shares.is_cluster_panic());
    }
}
