//! The plan: from what is wanted and what is there to the steps between.
//!
//! A plan has only steps that may be done now; what has to wait for their outcome is in the next one. So at every moment at
//! most one batch of a service is on its way, and an executor that dies goes on by planning again.

use std::collections::BTreeMap;
use std::time::Duration;

use model::Text;
use serde::Serialize;

use crate::service::{Rollout, Stack, Stage};
use crate::unit::{State, Unit, World};
use crate::update::{OnFailure, Order, Update};

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
    for unit in &world.units {
        // A copy that was replaced never serves beside the new one.
        if unit.state == State::Returned {
            plan.steps.push(Step::Remove { id: unit.id.clone() });
        }
        if stack.services.iter().all(|rollout| rollout.wanted.name != unit.service) {
            if !plan.orphans.contains(&unit.service) {
                plan.orphans.push(unit.service.clone());
            }
            if (stack.prune || stack.removing) && !matches!(unit.state, State::Removing | State::Returned) {
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

struct Planner<'a> {
    stack: &'a Stack,
    rollout: &'a Rollout,
    world: &'a World,
    /// Units of the wanted revision that serve or will.
    new: Vec<&'a Unit>,
    /// Others that serve.
    old: Vec<&'a Unit>,
    kept: Vec<&'a Unit>,
    /// How many units of the stack each host has.
    load: BTreeMap<&'a Text, usize>,
    wanted: Vec<Text>,
    waits: String,
    plan: &'a mut Plan,
}

impl<'a> Planner<'a> {
    fn new(stack: &'a Stack, rollout: &'a Rollout, world: &'a World, plan: &'a mut Plan) -> Self {
        let own: Vec<&Unit> = world.units.iter().filter(|unit| unit.service == rollout.wanted.name).collect();
        let mut load: BTreeMap<&Text, usize> = BTreeMap::new();
        for unit in world.units.iter().filter(|unit| unit.is_live()) {
            *load.entry(&unit.host).or_default() += 1;
        }
        let live = own.iter().copied().filter(|unit| unit.is_live());
        let (new, old): (Vec<_>, Vec<_>) = live.partition(|unit| unit.digest == rollout.wanted.digest);
        let kept = own.into_iter().filter(|unit| unit.state == State::Kept).collect();
        let waits = String::new();
        let mut planner = Self { stack, rollout, world, new, old, kept, load, wanted: Vec::new(), waits, plan };
        planner.wanted = planner.wanted_indices();
        planner
    }

    fn rules(&self) -> &'a Update {
        let wanted = &self.rollout.wanted;
        if matches!(self.rollout.stage, Stage::RollingBack(_)) { &wanted.rollback } else { &wanted.update }
    }

    /// The indices that are to have a unit: those in use that are worth most, then the lowest free ones.
    fn wanted_indices(&self) -> Vec<Text> {
        let service = &self.rollout.wanted;
        if service.global {
            return self.world.hosts.get(&service.name).into_iter().flatten().cloned().collect();
        }
        let count = service.scale as usize;
        let mut used: Vec<(bool, bool, usize, usize, Text)> = Vec::new();
        for unit in self.new.iter().chain(&self.old) {
            // Unhealthy ones go first, then the wrong revision, then the fullest host, then the highest index.
            let is_wrong = unit.digest != service.digest;
            let load = self.load.get(&unit.host).copied().unwrap_or_default();
            used.push((!unit.is_healthy(), is_wrong, load, number(&unit.index), unit.index.clone()));
        }
        used.sort();
        let mut wanted: Vec<Text> = Vec::new();
        for (.., index) in used {
            if wanted.len() < count && !wanted.contains(&index) {
                wanted.push(index);
            }
        }
        let mut next = 1;
        while wanted.len() < count {
            let index: Text = next.to_string().into();
            if !wanted.contains(&index) {
                wanted.push(index);
            }
            next += 1;
        }
        wanted.sort_by_key(|index| (number(index), index.clone()));
        wanted
    }

    fn remove_all(&mut self) {
        let all: Vec<&Unit> = self.new.iter().chain(&self.old).chain(&self.kept).copied().collect();
        for unit in all {
            self.plan.steps.push(Step::Remove { id: unit.id.clone() });
        }
        self.wanted.clear();
    }

    fn service(&mut self) {
        self.bury();
        match &self.rollout.stage {
            Stage::Stuck(why) => {
                self.waits = format!("stuck: {why}");
                return;
            }
            Stage::Updating | Stage::RollingBack(_) => {
                if let Some(why) = self.failure() {
                    self.fail(why);
                    return;
                }
            }
            Stage::Steady | Stage::Unconfirmed | Stage::RolledBack(_) => {}
        }
        if let Some(waits) = self.dependency() {
            self.waits = waits;
            return;
        }
        if self.old.is_empty() {
            self.fill()
        } else {
            self.batch()
        }
        if self.waits.is_empty() {
            self.finish();
        }
    }

    /// Evicts the units of hosts that are dead; what is not dead for long enough still counts.
    fn bury(&mut self) {
        let Some(dead_after) = self.rollout.wanted.dead_after else { return };
        let (world, plan) = (self.world, &mut *self.plan);
        let mut is_dead = |unit: &&Unit| {
            let State::Lost(since) = unit.state else { return false };
            let due = since.saturating_add(Duration::from_secs(dead_after));
            if world.now < due {
                wake(&mut plan.wake, due);
                return false;
            }
            if !world.sees_most {
                return false;
            }
            plan.steps.push(Step::Evict { id: unit.id.clone(), host: unit.host.clone() });
            true
        };
        self.new.retain(|unit| !is_dead(unit));
        self.old.retain(|unit| !is_dead(unit));
    }

    /// Why the update has failed.
    fn failure(&mut self) -> Option<Text> {
        let rules = self.rules();
        let service = &self.rollout.wanted;
        let mut failed = Vec::new();
        for unit in &self.new {
            let due = unit.made.saturating_add(Duration::from_secs(rules.deadline));
            match &unit.state {
                State::Failed(why) => failed.push(format!("{}: {why}", unit.id)),
                State::Lost(_) => {}
                _ if unit.is_good(rules.monitor, self.world.now) => {}
                _ if self.world.now >= due => {
                    failed.push(format!("{} was not healthy within {} s", unit.id, rules.deadline));
                }
                _ => wake(&mut self.plan.wake, due),
            }
        }
        if failed.len() > rules.max_failures as usize {
            return failed.into_iter().next().map(Text::from);
        }
        // Known before anything stops.
        let is_first = self.new.is_empty() || !self.old.is_empty();
        self.world.hopeless.get(&service.name).filter(|_| is_first && self.new.len() < self.wanted.len()).cloned()
    }

    fn fail(&mut self, why: Text) {
        let service = self.rollout.wanted.name.clone();
        let may = self.rollout.previous.is_some() && self.rules().on_failure == OnFailure::Rollback;
        self.waits = format!("failed: {why}");
        let is_rollback = matches!(self.rollout.stage, Stage::RollingBack(_));
        let turn = match may && !is_rollback {
            true => Turn::RollBack(why),
            false => Turn::Stuck(why),
        };
        self.plan.turns.push((service, turn));
    }

    /// What other service this one waits for before it begins.
    fn dependency(&self) -> Option<String> {
        if !self.new.is_empty() || !self.old.is_empty() {
            return None;
        }
        let waits = |name: &&Text| {
            let Some(other) = self.stack.services.iter().find(|other| other.wanted.name == **name) else {
                return false;
            };
            let up = |unit: &&Unit| unit.service == **name && unit.is_healthy();
            !other.wanted.global && self.world.units.iter().filter(up).count() < other.wanted.scale as usize
        };
        self.rollout.wanted.after.iter().find(waits).map(|name| format!("waits for {name}"))
    }

    /// There is nothing to replace: what is missing is placed, what is too much goes.
    fn fill(&mut self) {
        let surplus: Vec<&Unit> = self.new.iter().copied().filter(|unit| !self.wanted.contains(&unit.index)).collect();
        for unit in surplus {
            self.plan.steps.push(Step::Remove { id: unit.id.clone() });
        }
        self.place(usize::MAX);
        self.wait_for_good();
    }

    /// Replaces one batch.
    fn batch(&mut self) {
        let rules = self.rules();
        let (batch, total) = (rules.batch as usize, self.new.len() + self.old.len());
        let wanted = self.wanted.len();
        if matches!(self.rollout.stage, Stage::RollingBack(_)) {
            // What failed serves nobody.
            let failed: Vec<&Unit> = self.old.iter().copied().filter(|unit| !unit.is_healthy()).collect();
            if !failed.is_empty() {
                self.waits = "removes what failed".to_owned();
                failed.iter().for_each(|unit| self.plan.steps.push(Step::Remove { id: unit.id.clone() }));
                return;
            }
        }
        self.wait_for_good();
        if !self.waits.is_empty() {
            return;
        }
        self.waits = format!("{} of {wanted} replaced", self.new.len().min(wanted));
        let fits = self.world.fits_beside.contains(&self.rollout.wanted.name) && !self.rollout.wanted.global;
        let start_first = match rules.order {
            Order::StopFirst => false,
            Order::Auto => fits,
            Order::StartFirst if !fits && self.new.len() < wanted && total <= wanted => {
                self.fail("no host has room for one more unit beside the old ones, and order is start-first".into());
                return;
            }
            Order::StartFirst => true,
        };
        if start_first && total <= wanted {
            self.place(batch);
        } else if !start_first && total < wanted {
            self.place(batch.min(wanted - total));
        } else {
            let most = if start_first || self.new.len() == wanted { total - wanted } else { batch };
            self.stop(most.min(batch));
        }
    }

    /// Stops old units, first those that are missed least.
    fn stop(&mut self, count: usize) {
        let replaced = |unit: &Unit| self.new.iter().any(|new| new.index == unit.index);
        let mut old = self.old.clone();
        old.sort_by_key(|unit| {
            let load = self.load.get(&unit.host).copied().unwrap_or_default();
            let surplus = !self.wanted.contains(&unit.index);
            (unit.is_healthy(), !surplus, !replaced(unit), usize::MAX - load, usize::MAX - number(&unit.index))
        });
        let is_rollback = matches!(self.rollout.stage, Stage::RollingBack(_));
        for unit in old.into_iter().take(count) {
            let id = unit.id.clone();
            // Only what the service was before is something to go back to.
            let was = self.rollout.previous.as_ref().is_some_and(|previous| previous.digest == unit.digest);
            let keep = was && !is_rollback && unit.is_healthy();
            self.plan.steps.push(if keep { Step::StopKept { id } } else { Step::Remove { id } });
        }
    }

    /// Places units where they are missing, those that were kept first.
    fn place(&mut self, most: usize) {
        let service = &self.rollout.wanted;
        let has = |units: &[&Unit], index: &Text| units.iter().any(|unit| unit.index == *index);
        let mut missing: Vec<Text> = self.wanted.iter().filter(|index| !has(&self.new, index)).cloned().collect();
        missing.sort_by_key(|index| has(&self.old, index));
        for index in missing.into_iter().take(most) {
            let kept = self.kept.iter().find(|unit| unit.index == index && unit.digest == service.digest);
            let step = match kept {
                Some(unit) => Step::StartKept { id: unit.id.clone() },
                None => {
                    let id = self.id(&index);
                    Step::Place { service: service.name.clone(), index, id }
                }
            };
            self.plan.steps.push(step);
            if self.waits.is_empty() {
                self.waits = format!("{} of {} there", self.new.len(), self.wanted.len());
            }
        }
    }

    /// An id that no unit has.
    fn id(&self, index: &str) -> Text {
        let service = &self.rollout.wanted;
        let base = format!("{}-{}-{index}-{}", self.stack.name, service.name, service.digest);
        let taken = |id: &str| self.world.units.iter().any(|unit| *unit.id == *id);
        let mut id = base.clone();
        let mut next = 2;
        while taken(&id) {
            id = format!("{base}.{next}");
            next += 1;
        }
        id.into()
    }

    /// Before the next batch everything of the last one is good.
    fn wait_for_good(&mut self) {
        let monitor = self.rules().monitor;
        let mut missing = 0;
        for unit in &self.new {
            if !unit.is_good(monitor, self.world.now) {
                missing += 1;
                if let State::Healthy(since) = unit.state {
                    wake(&mut self.plan.wake, since.saturating_add(Duration::from_secs(monitor)));
                }
            }
        }
        let is_settled = matches!(self.rollout.stage, Stage::Steady | Stage::Unconfirmed | Stage::RolledBack(_));
        if missing > 0 && self.waits.is_empty() && !(is_settled && self.old.is_empty()) {
            self.waits = format!("waits until {missing} of {} are healthy for {monitor} s", self.new.len());
        }
    }

    fn finish(&mut self) {
        let confirm = self.rules().confirm && !self.kept.is_empty();
        let name = self.rollout.wanted.name.clone();
        match &self.rollout.stage {
            Stage::Updating if confirm => self.plan.turns.push((name, Turn::Unconfirmed)),
            Stage::Updating | Stage::RollingBack(_) => self.plan.turns.push((name, Turn::Finished)),
            Stage::Unconfirmed => {}
            Stage::Steady | Stage::RolledBack(_) => {
                for unit in &self.kept {
                    self.plan.steps.push(Step::Remove { id: unit.id.clone() });
                }
            }
            Stage::Stuck(_) => {}
        }
    }

    fn phase(self) -> Phase {
        let monitor = self.rules().monitor;
        Phase {
            service: self.rollout.wanted.name.clone(),
            wanted: self.wanted.len(),
            good: self.new.iter().filter(|unit| unit.is_good(monitor, self.world.now)).count(),
            new: self.new.len(),
            old: self.old.len(),
            waits: if self.stack.paused { "paused".to_owned() } else { self.waits },
        }
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

fn wake(wake: &mut Option<Duration>, at: Duration) {
    *wake = Some(wake.map_or(at, |known| known.min(at)));
}

/// The number of an index; names of hosts have none.
fn number(index: &str) -> usize {
    index.parse().unwrap_or(usize::MAX)
}
