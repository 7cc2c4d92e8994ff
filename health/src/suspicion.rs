//! Whether a checker doubts itself: what fails everywhere at once is more likely the checker's own network.

use std::collections::BTreeSet;
use std::time::Duration;

use model::Text;

/// Fewest targets that have to fail.
const TARGETS_MIN: usize = 6;

/// Fewest hosts on which they are.
const HOSTS_MIN: usize = 3;

/// So many intervals back a failure is sudden.
const SUDDEN_INTERVALS: u32 = 2;

/// A target of other hosts, as a checker sees it.
#[derive(Clone, Debug)]
pub(crate) struct Seen<'t> {
    /// The host that it is on.
    pub(crate) owner: &'t Text,
    /// Since when all its results are bad; `None` if the last one was not.
    pub(crate) failing_since: Option<Duration>,
    /// Time between two of them.
    pub(crate) interval: Duration,
}

/// What a checker cannot reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unreached {
    pub(crate) failing: usize,
    pub(crate) targets: usize,
    pub(crate) hosts: usize,
}

/// What speaks against the checker at `now`, if it is the suspect; `before` says whether it was.
///
/// It becomes one when more than half of its targets have begun to fail within two intervals, and is one until half are good again.
pub(crate) fn suspicion<'t>(targets: impl Iterator<Item = Seen<'t>>, before: bool, now: Duration) -> Option<Unreached> {
    let (mut unreached, mut sudden, mut hosts) = (Unreached::default(), 0, BTreeSet::new());
    for Seen { owner, failing_since, interval } in targets {
        unreached.targets += 1;
        let Some(since) = failing_since else { continue };
        unreached.failing += 1;
        hosts.insert(owner);
        sudden += usize::from(now.saturating_sub(since) <= interval * SUDDEN_INTERVALS);
    }
    unreached.hosts = hosts.len();
    let is_most = |count: usize| count * 2 > unreached.targets;
    let is_suspect = if before {
        is_most(unreached.failing)
    } else {
        is_most(sudden) && sudden >= TARGETS_MIN && unreached.hosts >= HOSTS_MIN
    };
    is_suspect.then_some(unreached)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a checker is the suspect whose targets, spread over so many hosts, fail since these seconds.
    fn is_suspect(failing: &[u64], good: usize, hosts: usize, before: bool) -> bool {
        let names: Vec<Text> = (0..hosts).map(|number| format!("h{number}").into()).collect();
        let since = failing.iter().map(|since| Some(Duration::from_secs(*since))).chain(vec![None; good]);
        let targets = since.enumerate().map(|(number, failing_since)| Seen {
            owner: &names[number % hosts],
            failing_since,
            interval: Duration::from_secs(2),
        });
        suspicion(targets, before, Duration::from_secs(100)).is_some()
    }

    #[test]
    fn what_fails_everywhere_at_once_is_the_checker() {
        for (failing, good, hosts, before, expected) in [
            (&[97; 6][..], 0, 3, false, true),
            (&[97; 6], 5, 3, false, true),
            (&[97; 6], 6, 3, false, false),
            // Too few of them, on too few hosts, or not at once.
            (&[97; 5], 0, 3, false, false),
            (&[97; 8], 0, 2, false, false),
            (&[50; 8], 0, 4, false, false),
            // Until half are good again.
            (&[50; 8], 7, 4, true, true),
            (&[50; 8], 8, 4, true, false),
        ] {
            assert_eq!(is_suspect(failing, good, hosts, before), expected, "{failing:?} {good} {hosts} {before}");
        }
    }
}
