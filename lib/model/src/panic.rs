//! Panic: when too little is healthy, health is more likely wrong than right, and is ignored.
//!
//! Containers that are initializing do not count, so that a rollout is none.

use crate::entity::{is_healthy_state, is_unhealthy_state};

/// Fewest containers with a verdict by which a cluster is judged.
const CLUSTER_MIN: usize = 20;

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
    pub(crate) fn minus(self, other: Self) -> Self {
        Self { healthy: self.healthy - other.healthy, unhealthy: self.unhealthy - other.unhealthy }
    }

    /// Whether so few of a service are healthy that all of its members are named; `threshold` is per cent, 0 is never.
    pub fn is_service_panic(self, threshold: u8) -> bool {
        self.healthy * 100 < usize::from(threshold) * (self.healthy + self.unhealthy)
    }

    /// Whether so few of the cluster are healthy that its verdicts are not believed.
    pub fn is_cluster_panic(self) -> bool {
        let total = self.healthy + self.unhealthy;
        total >= CLUSTER_MIN && self.healthy * 2 < total
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
        for (healthy, unhealthy, is_panic) in
            [(0, 19, false), (0, 20, true), (10, 10, false), (9, 11, true), (40, 60, true)]
        {
            assert_eq!(share(healthy, unhealthy).is_cluster_panic(), is_panic, "{healthy} {unhealthy}");
        }
    }

    #[test]
    fn a_rollout_is_no_panic() {
        let mut share = Share::default();
        for _ in 0..100 {
            share = share.plus(Share::of(Some("initializing"))).plus(Share::of(None));
        }
        share = share.plus(Share::of(Some("unhealthy")));
        assert_eq!(share, Share { healthy: 0, unhealthy: 1 });
        assert!(!share.is_cluster_panic());
    }
}
