//! Comparing all keys of etcd with those that are known: etcd has had errors by which a watch missed changes.

use std::collections::HashSet;
use std::time::Duration;

use etcd::Listing;
use source::backoff::jittered;
use tokio::time::Instant;

use super::mirror::KeyMirror;

/// How often all keys are compared with what the watch sent, give or take a tenth.
const COMPARE_INTERVAL: Duration = Duration::from_mins(1);

/// Up to so many keys, some hundred hosts, that is how often. Of more keys there are more followers too, so the interval
/// grows with the square, and etcd has the same work; then gaps in the versions of keys show that something was missed.
const COMPARED_KEYS: f64 = 10_000.0;

/// Longest time between two comparisons.
const COMPARE_INTERVAL_MAX: Duration = Duration::from_hours(2);

/// How long a difference has to last: the watch may be about to send it.
const DIFFERENCE_LASTS: Duration = Duration::from_secs(1);

/// The time from one comparison of so many keys to the next.
pub(super) fn interval(keys: usize) -> Duration {
    // More keys than fit are not read at all.
    let keys = f64::from(u32::try_from(keys).unwrap_or(u32::MAX));
    let longer = (keys / COMPARED_KEYS).max(1.0).powi(2);
    jittered(COMPARE_INTERVAL.mul_f64(longer).min(COMPARE_INTERVAL_MAX))
}

/// Keys that differ from those that are known, unless the watch is about to send them.
pub(super) struct Differing {
    listing: Listing,
    keys: HashSet<Vec<u8>>,
    /// When the watch should have sent them.
    pub(super) settled: Instant,
}

impl Differing {
    /// What differs between a mirror and a listing.
    pub(super) fn of(mirror: &KeyMirror, listing: Listing) -> Option<Self> {
        let keys = mirror.differing(&listing.pairs, listing.at.revision);
        (!keys.is_empty()).then(|| Self { listing, keys, settled: Instant::now() + DIFFERENCE_LASTS })
    }

    /// The keys that still differ.
    pub(super) fn lasting(mut self, mirror: &KeyMirror) -> HashSet<Vec<u8>> {
        let still = mirror.differing(&self.listing.pairs, self.listing.at.revision);
        self.keys.retain(|key| still.contains(key));
        self.keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_comparing_stays_the_same_however_many_follow() {
        for (keys, seconds) in [(0, 60), (10_000, 60), (20_000, 240), (110_000, 7200), (usize::MAX, 7200)] {
            let interval = interval(keys).as_secs();
            assert!((seconds * 9 / 10..=seconds * 11 / 10).contains(&interval), "{keys}: {interval}");
        }
    }
}
