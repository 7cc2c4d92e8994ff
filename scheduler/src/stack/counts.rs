//! How many stacks and units this scheduler keeps, for its metrics.

use stacks::{Stack, Stage};

use crate::ledger::stack::stack_id;
use crate::lock::lock;
use crate::start::Starter;

/// The states that are counted.
const STATES: [&str; 6] = ["done", "updating", "unconfirmed", "paused", "failed", "removing"];

/// Stacks of this scheduler and their units: those of others count themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StackCounts {
    /// By [`STATES`].
    stacks: [usize; STATES.len()],
    pub(crate) units: UnitCounts,
}

/// Units, as of the last look at their stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnitCounts {
    pub(crate) wanted: usize,
    pub(crate) healthy: usize,
    /// Those that wait to be removed until their host is back.
    pub(crate) evicted: usize,
}

impl StackCounts {
    /// How many stacks are in each state.
    pub(crate) fn stacks(&self) -> impl Iterator<Item = (&'static str, usize)> {
        STATES.into_iter().zip(self.stacks)
    }
}

impl Starter {
    /// What this scheduler keeps.
    pub(crate) fn stack_counts(&self) -> StackCounts {
        let mut counts = StackCounts::default();
        self.placer().with_any(self.clock().now(), |book| {
            let memory = lock(&self.stack_memory);
            for name in book.stack_names().filter(|name| !book.is_foreign(&stack_id(name))) {
                let Some(record) = book.stack(name) else { continue };
                let state = state_of(&record.stack);
                for (count, own) in counts.stacks.iter_mut().zip(STATES) {
                    *count += usize::from(own == state);
                }
                let own = memory.stacks.get(name).map(|memory| memory.counts).unwrap_or_default();
                counts.units.wanted += own.wanted;
                counts.units.healthy += own.healthy;
                counts.units.evicted += own.evicted;
            }
        });
        counts
    }
}

/// How a stack is, as far as its record says.
fn state_of(stack: &Stack) -> &'static str {
    let any = |is: fn(&Stage) -> bool| stack.services.iter().any(|rollout| is(&rollout.stage));
    if stack.removing {
        "removing"
    } else if stack.paused {
        "paused"
    } else if any(Stage::is_changing) {
        "updating"
    } else if any(|stage| matches!(stage, Stage::Stuck(_) | Stage::RolledBack(_))) {
        "failed"
    } else if any(|stage| *stage == Stage::Unconfirmed) {
        "unconfirmed"
    } else {
        "done"
    }
}

#[cfg(test)]
mod tests {
    use stacks::{Rollout, Service};

    use super::*;

    #[test]
    fn a_stack_is_in_one_state() {
        let service: Service =
            Service::parse(&serde_json::from_value(serde_json::json!({ "service": "web", "image": "i" })).unwrap())
                .unwrap();
        let state = |stages: &[Stage], paused: bool, removing: bool| {
            let rollout = |stage: &Stage| Rollout { stage: stage.clone(), ..Rollout::new(service.clone()) };
            let services = stages.iter().map(rollout).collect();
            state_of(&Stack { name: "shop".into(), services, paused, removing, ..Stack::default() })
        };
        let stuck = Stage::Stuck("no room".into());
        for (stages, expected) in [
            (vec![], "done"),
            (vec![Stage::Steady, Stage::Steady], "done"),
            (vec![Stage::Steady, Stage::Unconfirmed], "unconfirmed"),
            (vec![stuck.clone(), Stage::Unconfirmed], "failed"),
            (vec![Stage::RolledBack("sick".into())], "failed"),
            (vec![stuck, Stage::Updating], "updating"),
            (vec![Stage::RollingBack("sick".into())], "updating"),
        ] {
            assert_eq!(state(&stages, false, false), expected);
            assert_eq!((state(&stages, true, false), state(&stages, true, true)), ("paused", "removing"));
        }
    }
}
