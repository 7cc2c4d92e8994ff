//! Whether a checker doubts itself: what it reaches nowhere from one moment to the next is more likely its own network.

use std::collections::BTreeMap;
use std::time::Duration;

use model::Text;

/// Fewest targets that are not reached.
const TARGETS_MIN: usize = 6;

/// Fewest hosts on which they are.
const HOSTS_MIN: usize = 3;

/// So many intervals back silence is sudden.
const SUDDEN_INTERVALS: u32 = 2;

/// What all targets of one host weigh together, so that their shares can be added as whole numbers.
const SHARE: usize = 1_000_000;

/// A target of other hosts, as a checker sees it.
#[derive(Clone, Debug)]
pub(crate) struct Seen<'t> {
    /// The host that it is on.
    pub(crate) owner: &'t Text,
    /// Since when nothing answers; `None` if the last check was answered, well or badly: then it is reached.
    pub(crate) unreached_since: Option<Duration>,
    /// Time between two of them.
    pub(crate) interval: Duration,
}

/// What a checker cannot reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unreached {
    pub(crate) silent: usize,
    pub(crate) targets: usize,
    pub(crate) hosts: usize,
}

/// What speaks against the checker at `now`, if it is the suspect; `before` says whether it was.
///
/// It becomes one when more than half of its targets have fallen silent within two intervals, and is one until half answer again.
/// Each host also weighs the same, whatever it says it runs: otherwise one that has more containers than all others, and lets them
/// be silent, would silence those who check the others' containers.
pub(crate) fn suspicion<'t>(targets: impl Iterator<Item = Seen<'t>>, before: bool, now: Duration) -> Option<Unreached> {
    let mut hosts: BTreeMap<&Text, OfHost> = BTreeMap::new();
    for Seen { owner, unreached_since, interval } in targets {
        let host = hosts.entry(owner).or_default();
        host.targets += 1;
        let Some(since) = unreached_since else { continue };
        host.silent += 1;
        host.sudden += usize::from(now.saturating_sub(since) <= interval * SUDDEN_INTERVALS);
    }
    let sum = |count: fn(&OfHost) -> usize| hosts.values().map(count).sum::<usize>();
    let unreached = Unreached {
        silent: sum(|host| host.silent),
        targets: sum(|host| host.targets),
        hosts: hosts.values().filter(|host| host.silent > 0).count(),
    };
    let is_most = |count: fn(&OfHost) -> usize| {
        let shares: usize = hosts.values().map(|host| count(host) * SHARE / host.targets).sum();
        sum(count) * 2 > unreached.targets && shares * 2 > hosts.len() * SHARE
    };
    let is_suspect = if before {
        is_most(|host| host.silent)
    } else {
        is_most(|host| host.sudden) && sum(|host| host.sudden) >= TARGETS_MIN && unreached.hosts >= HOSTS_MIN
    };
    is_suspect.then_some(unreached)
}

/// What a checker sees of the targets on one host.
#[derive(Clone, Copy, Debug, Default)]
struct OfHost {
    targets: usize,
    silent: usize,
    /// Those that fell silent lately.
    sudden: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a checker is the suspect whose targets, spread over so many hosts, fail since these seconds.
    fn is_suspect(failing: &[u64], good: usize, hosts: usize, before: bool) -> bool {
        let names: Vec<Text> = (0..hosts).map(|number| format!("h{number}").into()).collect();
        let since = failing.iter().map(|since| Some(Duration::from_secs(*since))).chain(vec![None; good]);
        let targets = since.enumerate().map(|(number, unreached_since)| Seen {
            owner: &names[number % hosts],
            unreached_since,
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

    #[test]
    fn one_host_with_more_containers_than_all_others_silences_no_checker() {
        let names: Vec<Text> = (0..10).map(|number| format!("h{number}").into()).collect();
        let seen = |host: usize, unreached_since| Seen {
            owner: &names[host],
            unreached_since,
            interval: Duration::from_secs(2),
        };
        let now = Duration::from_secs(100);
        // A thousand of the first one fail at once, and one each of two others as for long.
        let lies = (0..1000).map(|_| seen(0, Some(now))).chain([1, 2].map(|host| seen(host, Some(Duration::ZERO))));
        let others = || (1..10).map(|host| seen(host, None));
        for before in [false, true] {
            assert_eq!(suspicion(lies.clone().chain(others()), before, now), None, "{before}");
        }
        // The same when most hosts are not reached.
        let most = (3..9).map(|host| seen(host, Some(now)));
        assert!(suspicion(lies.chain(most), false, now).is_some());
    }
}
