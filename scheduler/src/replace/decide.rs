//! Which of the units that failed are replaced now, and which have to wait for what.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use model::Text;
use model::health::{OnFailure, Strategy};

/// Of a service at most one in so many units is in replacement at once, but one always.
const ONE_IN: usize = 4;

/// A unit of which a container failed.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) id: Text,
    pub(crate) at: usize,
    /// Its service, or its placement.
    pub(crate) group: Text,
    pub(crate) on_failure: OnFailure,
    /// How often it was replaced or started again since it was last well for long.
    pub(crate) times: u32,
    /// Before when nothing is done.
    pub(crate) not_before: Duration,
    /// For how long it was well before.
    pub(crate) well: Duration,
    /// What failed.
    pub(crate) why: Text,
}

/// The units of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) units: usize,
    pub(super) healthy: usize,
    /// Those that are being replaced, or were and are not healthy yet.
    pub(super) in_replacement: usize,
}

/// What is done about a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Restart,
    Replace,
}

/// Why nothing is done about a unit yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// It was replaced too often for that.
    Until(Duration),
    /// Others of its service are being replaced.
    Others(usize),
    /// Too few of its service are healthy.
    Quorum { healthy: usize, quorum: u32 },
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Until(_) => f.write_str("it was replaced a short while ago"),
            Self::Others(count) => write!(f, "{count} of its service are being replaced"),
            Self::Quorum { healthy, quorum } => {
                write!(f, "{healthy} of its service are healthy, and its quorum is {quorum}")
            }
        }
    }
}

/// What is done about each unit, in the order of `failed`; `None` for those about which nothing is ever done.
pub(super) fn decide(
    failed: &[Failed],
    mut groups: BTreeMap<Text, Group>,
    now: Duration,
) -> Vec<Option<Result<Step, Wait>>> {
    let decided = failed.iter().map(|unit| {
        let group = groups.entry(unit.group.clone()).or_default();
        let quorum = match unit.on_failure.strategy {
            Strategy::None => return None,
            Strategy::RecreateOnQuorum(quorum) => quorum,
            Strategy::Restart | Strategy::Recreate => 0,
        };
        if unit.not_before > now {
            return Some(Err(Wait::Until(unit.not_before)));
        }
        if group.healthy < quorum as usize {
            return Some(Err(Wait::Quorum { healthy: group.healthy, quorum }));
        }
        if group.in_replacement >= (group.units / ONE_IN).max(1) {
            return Some(Err(Wait::Others(group.in_replacement)));
        }
        group.in_replacement += 1;
        let is_first = unit.on_failure.restart_first && unit.times == 0;
        let is_restart = is_first || unit.on_failure.strategy == Strategy::Restart;
        Some(Ok(if is_restart { Step::Restart } else { Step::Replace }))
    });
    decided.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(number: usize, strategy: Strategy) -> Failed {
        Failed {
            id: format!("web-{number}").into(),
            at: 0,
            group: "shop/web".into(),
            on_failure: OnFailure { strategy, restart_first: false },
            times: 0,
            not_before: Duration::ZERO,
            well: Duration::ZERO,
            why: "status 503".into(),
        }
    }

    fn decided(failed: &[Failed], group: Group) -> Vec<Option<Result<Step, Wait>>> {
        decide(failed, [("shop/web".into(), group)].into(), Duration::from_secs(100))
    }

    #[test]
    fn strategies_say_what_is_done() {
        let group = Group { units: 4, healthy: 1, in_replacement: 0 };
        let one = |strategy| decided(&[failed(1, strategy)], group).remove(0);
        assert_eq!(one(Strategy::None), None);
        assert_eq!(one(Strategy::Restart), Some(Ok(Step::Restart)));
        assert_eq!(one(Strategy::Recreate), Some(Ok(Step::Replace)));
        assert_eq!(one(Strategy::RecreateOnQuorum(1)), Some(Ok(Step::Replace)));
        assert_eq!(one(Strategy::RecreateOnQuorum(2)), Some(Err(Wait::Quorum { healthy: 1, quorum: 2 })));
        // Once it is started again, then replaced.
        let mut first = failed(1, Strategy::Recreate);
        first.on_failure.restart_first = true;
        assert_eq!(decided(&[first.clone()], group), [Some(Ok(Step::Restart))]);
        first.times = 1;
        assert_eq!(decided(&[first], group), [Some(Ok(Step::Replace))]);
    }

    #[test]
    fn what_was_replaced_a_short_while_ago_waits() {
        let mut unit = failed(1, Strategy::Recreate);
        unit.not_before = Duration::from_secs(101);
        let group = Group { units: 1, healthy: 0, in_replacement: 0 };
        assert_eq!(decided(&[unit.clone()], group), [Some(Err(Wait::Until(unit.not_before)))]);
        unit.not_before = Duration::from_secs(100);
        assert_eq!(decided(&[unit], group), [Some(Ok(Step::Replace))]);
    }

    #[test]
    fn a_quarter_of_a_service_is_replaced_at_once_and_one_always() {
        let all: Vec<_> = (0..9).map(|number| failed(number, Strategy::Recreate)).collect();
        for (units, in_replacement, expected) in [(9, 0, 2), (9, 1, 1), (9, 2, 0), (3, 0, 1), (1, 0, 1), (3, 1, 0)] {
            let found = decided(&all[..units], Group { units, healthy: 0, in_replacement });
            let begun = found.iter().filter(|one| matches!(one, Some(Ok(_)))).count();
            assert_eq!(begun, expected, "{units} {in_replacement}");
            assert!(found[expected..].iter().all(|one| matches!(one, Some(Err(Wait::Others(_))))), "{found:?}");
        }
    }
}
