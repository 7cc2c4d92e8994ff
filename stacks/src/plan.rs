//! The plan: from what is wanted and what is there to the steps between.
//!
//! A plan has only steps that may be done now; what has to wait for their outcome is in the next one. So at every moment at
//! most one batch of a service is on its way, and an executor that dies goes on by planning again.

use std::collections::BTreeMap;
use std::time::Duration;

use model::Text;
use serde::Serialize;

use crate::planner::Planner;
use crate::service::{Rollout, Stack, Stage};
use crate::unit::{State, World};

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "step")]
pub enum Step {
    /// A unit is placed and started.
    Place {
        /// Its service.
        service: Text,
        /// Its number, or the host's name of a global service.
        index: Text,
        /// The id of its placement.
        id: Text,
    },
    /// A unit is stopped and kept.
    StopKept {
        /// Its id.
        id: Text,
    },
    /// A unit that was kept runs again.
    StartKept {
        /// Its id.
        id: Text,
    },
    /// A unit is removed.
    Remove {
        /// Its id.
        id: Text,
    },
    /// A unit of a dead host counts no more, also when the host returns.
    Evict {
        /// Its id.
        id: Text,
        /// Its host, by uuid.
        host: Text,
    },
}

/// What becomes of a service, to be stored before the next plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Turn {
    /// It is as it should be.
    Finished,
    /// It is as it should be, and a person confirms it or not.
    Unconfirmed,
    /// It goes back to what it was.
    RollBack(Text),
    /// A person has to decide.
    Stuck(Text),
}

/// How far a service is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Phase {
    /// The service.
    pub service: Text,
    /// How many units are wanted.
    pub wanted: usize,
    /// How many of the wanted revision are good.
    pub good: usize,
    /// How many of the wanted revision are there.
    pub new: usize,
    /// How many of others are there and not stopped.
    pub old: usize,
    /// What it waits for; empty when it is as it should be.
    pub waits: String,
}

/// The plan of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// What to do now.
    pub steps: Vec<Step>,
    /// What becomes of services.
    pub turns: Vec<(Text, Turn)>,
    /// How far the services are.
    pub phases: Vec<Phase>,
    /// Services that are not in the stack and have units, which only `prune` removes.
    pub orphans: Vec<Text>,
    /// Units that are removed since they did not become healthy where they were to take the place of others, by id, and why.
    pub late: BTreeMap<Text, String>,
    /// When to plan again although nothing changes.
    pub wake: Option<Duration>,
}

impl Plan {
    /// Whether everything is as it should be.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.turns.is_empty()
    }
}

/// The steps from what is there to what is wanted.
pub fn plan(stack: &Stack, world: &World) -> Plan {
    let mut plan = Plan::default();
    // What is all or nothing may have to go back to what is pruned.
    let may_prune = !stack.atomic || stack.services.iter().all(|rollout| !rollout.stage.is_changing());
    for unit in &world.units {
        // A copy that was replaced never serves beside the new one.
        if unit.state == State::Returned {
            plan.steps.push(Step::Remove { id: unit.id.clone() });
        }
        if stack.services.iter().all(|rollout| rollout.wanted.name != unit.service) {
            if !plan.orphans.contains(&unit.service) {
                plan.orphans.push(unit.service.clone());
            }
            if (stack.prune && may_prune || stack.removing) && !matches!(unit.state, State::Removing | State::Returned)
            {
                plan.steps.push(Step::Remove { id: unit.id.clone() });
            }
        }
    }
    for rollout in &stack.services {
        let mut planner = Planner::new(stack, rollout, world, &mut plan);
        if stack.removing {
            planner.remove_all();
        } else if !stack.paused {
            planner.service();
        }
        let phase = planner.phase();
        plan.phases.push(phase);
    }
    if stack.atomic && !stack.removing {
        all_or_none(stack, &mut plan);
    }
    plan
}

/// When one service goes back, all others that have changed do.
fn all_or_none(stack: &Stack, plan: &mut Plan) {
    let failed = |turn: &(Text, Turn)| matches!(turn.1, Turn::RollBack(_));
    let from_turn = plan.turns.iter().find(|turn| failed(turn)).map(|(name, _)| name.clone());
    let failing = stack.services.iter().find(|rollout| matches!(rollout.stage, Stage::RollingBack(_)));
    let Some(first) = from_turn.or_else(|| failing.map(|rollout| rollout.wanted.name.clone())) else { return };
    for rollout in &stack.services {
        let name = &rollout.wanted.name;
        let is_changed = rollout.previous.is_some() && matches!(rollout.stage, Stage::Updating | Stage::Steady);
        if *name == first || !is_changed {
            continue;
        }
        plan.turns.retain(|(own, _)| own != name);
        plan.turns.push((name.clone(), Turn::RollBack(format!("{first} failed").into())));
    }
}

impl Rollout {
    /// Takes a turn.
    pub fn turn(&mut self, turn: Turn) {
        let stage = match turn {
            Turn::Finished => match std::mem::take(&mut self.stage) {
                Stage::RollingBack(why) => Stage::RolledBack(why),
                _ => Stage::Steady,
            },
            Turn::Unconfirmed => Stage::Unconfirmed,
            Turn::Stuck(why) => Stage::Stuck(why),
            Turn::RollBack(why) => {
                if self.roll_back(why.clone()) {
                    return;
                }
                Stage::Stuck(why)
            }
        };
        self.stage = stage;
    }
}
