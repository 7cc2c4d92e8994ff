//! The plan of one service: its batches, what has failed, and what is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::Text;

use crate::plan::{Phase, Plan, Step, Turn};
use crate::service::{Rollout, Service, Stack, Stage};
use crate::unit::{State, Unit, World};
use crate::update::{OnFailure, Order, Update};

/// Most characters of an index in an id: with two names of 40, a digest and a suffix it stays one that a request may have.
const INDEX_MAX: usize = 23;

/// What a service waits for whose next unit needs the place of the one before.
const ENDING: &str = "waits until old units have ended";

/// The id of a unit, unless another unit has it; `index` is its number, or the host's name of a global service.
pub fn unit_id(stack: &str, service: &Service, index: &str) -> Text {
    // Names of hosts may be what no container can be called.
    let plain = |char: char| if char.is_ascii_alphanumeric() || "_.-".contains(char) { char } else { '-' };
    let index: String = index.chars().take(INDEX_MAX).map(plain).collect();
    format!("{stack}-{}-{index}-{}", service.name, service.digest).into()
}

/// Plans one service.
pub(crate) struct Planner<'a> {
    stack: &'a Stack,
    rollout: &'a Rollout,
    world: &'a World,
    /// Units of the wanted revision that serve or will.
    new: Vec<&'a Unit>,
    /// Units of other revisions that serve.
    old: Vec<&'a Unit>,
    /// Units of the wanted revision that are to run on another host.
    leaving: Vec<&'a Unit>,
    /// Those of them that no other host has room for.
    stays: Vec<&'a Unit>,
    kept: Vec<&'a Unit>,
    /// How many units of the stack each host has.
    load: BTreeMap<&'a Text, usize>,
    wanted: Vec<Text>,
    waits: String,
    plan: &'a mut Plan,
}

impl<'a> Planner<'a> {
    pub(crate) fn new(stack: &'a Stack, rollout: &'a Rollout, world: &'a World, plan: &'a mut Plan) -> Self {
        let own = world.units.iter().filter(|unit| unit.service == rollout.wanted.name);
        let is_held = |unit: &&Unit| !stack.removing && world.keeps_as_it_is(unit, &rollout.wanted);
        let own: Vec<&Unit> = own.filter(|unit| !is_held(unit)).collect();
        let mut load: BTreeMap<&Text, usize> = BTreeMap::new();
        for unit in world.units.iter().filter(|unit| unit.is_live()) {
            *load.entry(&unit.host).or_default() += 1;
        }
        let live = own.iter().copied().filter(|unit| unit.is_live());
        let (right, old): (Vec<_>, Vec<_>) = live.partition(|unit| unit.digest == rollout.wanted.digest);
        let (leaving, new) = right.into_iter().partition(|unit| world.has_to_leave(unit, &rollout.wanted));
        let kept = own.into_iter().filter(|unit| unit.state == State::Kept).collect();
        let (stays, wanted, waits) = (Vec::new(), Vec::new(), String::new());
        let mut planner = Self { stack, rollout, world, new, old, leaving, stays, kept, load, wanted, waits, plan };
        planner.wanted = planner.wanted_indices();
        planner
    }

    fn rules(&self) -> &'a Update {
        let wanted = &self.rollout.wanted;
        if self.is_rolling_back() { &wanted.rollback } else { &wanted.update }
    }

    /// The indices that are to have a unit: those in use that are worth most, then the lowest free ones.
    fn wanted_indices(&self) -> Vec<Text> {
        let service = &self.rollout.wanted;
        if service.global {
            return self.world.hosts.get(&service.name).into_iter().flatten().cloned().collect();
        }
        let count = service.scale as usize;
        let mut used: Vec<(bool, bool, usize, usize, Text)> = Vec::new();
        for unit in self.new.iter().chain(&self.old).chain(&self.leaving) {
            // Unhealthy ones go first, then the wrong revision, then the fullest host, then the highest index.
            let is_wrong = unit.digest != service.digest || self.world.has_to_leave(unit, service);
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

    pub(crate) fn remove_all(&mut self) {
        let live = self.new.iter().chain(&self.old).chain(&self.leaving);
        let all: Vec<&Unit> = live.chain(&self.kept).copied().collect();
        for unit in all {
            self.plan.steps.push(Step::Remove { id: unit.id.clone() });
        }
        self.wanted.clear();
    }

    pub(crate) fn service(&mut self) {
        self.bury();
        self.remove_doubled();
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
            Stage::Steady | Stage::Unconfirmed | Stage::RolledBack(_) => {
                if let Some(why) = self.failed_job() {
                    self.fail(why);
                    return;
                }
            }
        }
        if let Some((waits, hopeless)) = self.dependency() {
            match hopeless.filter(|_| self.rollout.stage.is_changing()) {
                Some(why) => self.fail(format!("{waits}, which {why}").into()),
                None => self.waits = waits,
            }
            return;
        }
        self.remove_surplus();
        if self.old.is_empty() {
            self.fill();
        } else {
            self.batch();
        }
        if self.waits.is_empty() {
            self.finish();
        }
        if self.waits.is_empty() && !self.stays.is_empty() {
            let units = self.stays.iter().map(|unit| &*unit.id).collect::<Vec<_>>().join(", ");
            self.waits = format!(
                "no other host has room for one more unit, or its volume or its request keeps it here, so {units} stays where it is"
            );
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
        let is_global = self.rollout.wanted.global;
        for units in [&mut self.new, &mut self.old, &mut self.leaving] {
            for unit in units.extract_if(.., |unit| is_dead(unit)) {
                // A unit of a global service is on its own host or nowhere.
                self.wanted.retain(|index| !is_global || *index != unit.index);
            }
        }
    }

    /// Why the update has failed.
    fn failure(&mut self) -> Option<Text> {
        let rules = self.rules();
        let service = &self.rollout.wanted;
        let mut failed = Vec::new();
        let (asked, plan) = (self.rollout.asked, &mut *self.plan);
        for unit in self.new.extract_if(.., |unit| matches!(unit.state, State::Failed(_)) && unit.placed < asked) {
            // What a person asks for once more is tried once more.
            plan.steps.push(Step::Remove { id: unit.id.clone() });
        }
        for unit in self.of_update() {
            let due = unit.made.saturating_add(Duration::from_secs(rules.deadline));
            match &unit.state {
                State::Failed(why) | State::Ended(why) => failed.push(format!("{}: {why}", unit.id)),
                State::Lost(_) => {}
                _ if unit.is_good(rules.monitor, self.world.now) => {}
                _ if self.world.now >= due => failed.push(late(unit, rules)),
                _ => wake(&mut self.plan.wake, due),
            }
        }
        if failed.len() > rules.max_failures as usize {
            return failed.into_iter().next().map(Text::from);
        }
        if let Some(why) = self.world.missing_images.get(&service.name).filter(|_| !self.is_rolling_back()) {
            return Some(why.clone());
        }
        // Known before anything stops.
        let right = self.new.len() + self.leaving.len();
        let is_first = right == 0 || !self.old.is_empty();
        self.world.hopeless.get(&service.name).filter(|_| is_first && right < self.wanted.len()).cloned()
    }

    /// Whether a unit takes the place of a good one that leaves its host. An update has nothing to do with that.
    fn is_moving(&self, unit: &Unit) -> bool {
        let is_its = |leaving: &&Unit| leaving.index == unit.index && self.is_good(leaving, self.rules().monitor);
        self.old.is_empty() && self.leaving.iter().any(is_its)
    }

    /// The units of the wanted revision that an update has to do with; those that leave their hosts only while others are replaced.
    fn of_update(&self) -> Vec<&'a Unit> {
        let leaving: &[&Unit] = if self.old.is_empty() { &[] } else { &self.leaving };
        self.new.iter().filter(|unit| !self.is_moving(unit)).chain(leaving).copied().collect()
    }

    /// A unit of a job that ended with an error after all of them had been well, which is started again only on request.
    fn failed_job(&self) -> Option<Text> {
        let unit = self.new.iter().find(|unit| self.rollout.wanted.job && matches!(unit.state, State::Failed(_)))?;
        let State::Failed(why) = &unit.state else { return None };
        Some(format!("{}: {why}", unit.id).into())
    }

    fn fail(&mut self, why: Text) {
        let service = self.rollout.wanted.name.clone();
        let may = self.rollout.stage.is_changing()
            && self.rollout.previous.is_some()
            && self.rules().on_failure == OnFailure::Rollback;
        self.waits = format!("failed: {why}");
        let turn = if may && !self.is_rolling_back() { Turn::RollBack(why) } else { Turn::Stuck(why) };
        self.plan.turns.push((service, turn));
    }

    /// What this service waits for before it begins, and why that does not come.
    fn dependency(&self) -> Option<(String, Option<&'static str>)> {
        let service = &self.rollout.wanted;
        let is_first = self.new.is_empty() && self.old.is_empty() && self.leaving.is_empty();
        // What runs is replaced once the jobs of its revision are done.
        let is_replaced =
            self.rollout.stage == Stage::Updating && self.old.iter().any(|unit| unit.digest != service.digest);
        let before = if is_first { &service.after } else { &service.after_end };
        before.iter().filter(|_| is_first || is_replaced).find_map(|name| {
            let other = self.stack.services.iter().find(|other| other.wanted.name == *name)?;
            let has_to_end = service.after_end.contains(name);
            let up = |unit: &&Unit| {
                let is_new = is_first || unit.digest == other.wanted.digest;
                let is_up = if has_to_end { is_new && unit.state == State::Done } else { unit.is_healthy() };
                unit.service == *name && is_up
            };
            let wanted = if other.wanted.global {
                self.world.hosts.get(name).map_or(0, BTreeSet::len)
            } else {
                other.wanted.scale as usize
            };
            let until = if has_to_end { " to be done" } else { "" };
            let hopeless = match &other.stage {
                Stage::Stuck(_) => Some("is stuck"),
                Stage::RollingBack(_) | Stage::RolledBack(_) if is_replaced => Some("was rolled back"),
                _ => None,
            };
            let is_rolled_back = is_replaced && hopeless.is_some();
            let waits = is_rolled_back || self.world.units.iter().filter(up).count() < wanted;
            waits.then(|| (format!("waits for {name}{until}"), hopeless))
        })
    }

    /// Removes all but one of units with the same index and revision. A drain that ends in the middle leaves such: the unit that was
    /// to leave, and the one that was to take its place. As long as the drain goes on, the two are no such units, also if another
    /// revision is wanted meanwhile.
    fn remove_doubled(&mut self) {
        let (world, service) = (self.world, &self.rollout.wanted);
        let (monitor, deadline) = (self.rules().monitor, Duration::from_secs(self.rules().deadline));
        for units in [&mut self.new, &mut self.old, &mut self.leaving] {
            let mut by_index: BTreeMap<(&Text, &Text, bool), Vec<&Unit>> = BTreeMap::new();
            for unit in units.iter() {
                let key = (&unit.index, &unit.digest, world.has_to_leave(unit, service));
                by_index.entry(key).or_default().push(unit);
            }
            let mut surplus = BTreeSet::new();
            for mut same in by_index.into_values().filter(|same| same.len() > 1) {
                let starting = same.iter().filter(|unit| unit.state == State::Starting);
                let due = starting.map(|unit| unit.made.saturating_add(deadline)).max();
                if let Some(due) = due.filter(|due| self.world.now < *due && !same.iter().any(|unit| unit.is_healthy()))
                {
                    // Which one is good is not known yet.
                    wake(&mut self.plan.wake, due);
                    continue;
                }
                let closed =
                    |unit: &Unit| self.world.leaving.contains(&unit.host) || self.world.cordoned.contains(&unit.host);
                // What is not good goes first, so that no unit is missing meanwhile; then what is on a host that is to be left, then
                // the younger one.
                let is_good = |unit: &Unit| unit.is_good(monitor, world.now);
                same.sort_by_key(|unit| {
                    (!is_good(unit), worth(&unit.state), closed(unit), unit.placed, unit.made, &unit.id)
                });
                surplus.extend(same[1..].iter().map(|unit| unit.id.clone()));
            }
            units.retain(|unit| !surplus.contains(&unit.id));
            self.plan.steps.extend(surplus.into_iter().map(|id| Step::Remove { id }));
        }
    }

    /// Removes units of hosts that are to be left whose place nothing takes: there are fewer now, or each host has its own.
    fn remove_surplus(&mut self) {
        let (wanted, plan) = (&self.wanted, &mut *self.plan);
        for unit in self.leaving.extract_if(.., |unit| !wanted.contains(&unit.index)) {
            plan.steps.push(Step::Remove { id: unit.id.clone() });
        }
    }

    /// All units are of the wanted revision: what is missing is placed, what is too much goes, and what is to leave its host moves.
    fn fill(&mut self) {
        let surplus: Vec<&Unit> = self.new.iter().copied().filter(|unit| !self.wanted.contains(&unit.index)).collect();
        for unit in surplus {
            self.plan.steps.push(Step::Remove { id: unit.id.clone() });
        }
        if self.rollout.stage.is_settled() {
            // Another unit takes the place of one that has ended.
            let ended = |unit: &&Unit| matches!(unit.state, State::Ended(_)) && self.wanted.contains(&unit.index);
            let ended: Vec<Text> = self.new.iter().copied().filter(ended).map(|unit| unit.id.clone()).collect();
            self.plan.steps.extend(ended.into_iter().map(|id| Step::Remove { id }));
        }
        self.place(usize::MAX);
        let moving = self.leave();
        self.wait_for_good(moving == 0);
        if moving > 0 && self.waits.is_empty() {
            let wanted = self.wanted.len();
            self.waits = format!("{} of {wanted} replaced", wanted.saturating_sub(self.leaving.len()));
        }
    }

    /// Moves units from hosts that are to be left, a batch at a time: each runs elsewhere, and is good, before the old one ends. Nothing is
    /// wrong with what runs, so where there is no room it stays. While an update goes on, what is good does not begin to move, and
    /// is not waited for. Returns how many are on their way.
    fn leave(&mut self) -> usize {
        let rules = self.rules();
        let (mut ended, mut waiting, mut in_hand, mut moving) = (Vec::new(), Vec::new(), 0, 0);
        for unit in self.leaving.iter().copied() {
            let is_later = self.rollout.stage.is_changing() && self.is_good(unit, rules.monitor);
            let successor = self.new.iter().find(|new| new.index == unit.index);
            moving += usize::from(successor.is_some() && !is_later);
            match successor {
                Some(new) if self.is_good(new, rules.monitor) => ended.push(unit.id.clone()),
                Some(new) => {
                    in_hand += 1;
                    if let State::Healthy(since) = new.state {
                        wake(&mut self.plan.wake, since.saturating_add(Duration::from_secs(rules.monitor)));
                    }
                    let due = new.made.saturating_add(Duration::from_secs(rules.deadline));
                    let is_bad = matches!(new.state, State::Starting | State::Unhealthy);
                    if is_bad && (is_later || self.rollout.stage.is_settled()) {
                        if self.world.now >= due {
                            // Undone, and tried again.
                            self.plan.late.insert(new.id.clone(), late(new, rules));
                            ended.push(new.id.clone());
                        } else {
                            wake(&mut self.plan.wake, due);
                        }
                    }
                }
                None if is_later => {}
                None => waiting.push(unit),
            }
        }
        self.plan.steps.extend(ended.into_iter().map(|id| Step::Remove { id }));
        if !self.fits_beside() {
            self.stays = waiting;
            return moving;
        }
        let all = moving + waiting.len();
        // Meanwhile the next ones move.
        waiting.retain(|unit| match self.rests(unit) {
            Some(until) => {
                wake(&mut self.plan.wake, until);
                false
            }
            None => true,
        });
        let healthy: BTreeSet<&Text> =
            waiting.iter().filter(|unit| unit.is_healthy()).map(|unit| &unit.index).collect();
        waiting.sort_by_key(|unit| (healthy.contains(&unit.index), number(&unit.index), unit.index.clone()));
        // Of two of one index it may not be known yet which one stays.
        waiting.dedup_by_key(|unit| unit.index.clone());
        for unit in waiting.into_iter().take((rules.batch as usize).saturating_sub(in_hand)) {
            self.place_one(&unit.index);
        }
        all
    }

    /// Until when a unit that is to leave its host stays, although there is room: the last try has failed, or what was to take its place is
    /// still being stopped. An engine that does not stop it does not hold up the others for longer than a unit may take to start.
    fn rests(&self, unit: &Unit) -> Option<Duration> {
        let deadline = Duration::from_secs(self.rules().deadline);
        let retry = self.world.not_before.get(&(unit.service.clone(), unit.index.clone())).copied();
        let ending = self.ending().filter(|other| other.index == unit.index);
        let ends = ending.map(|other| other.made.saturating_add(deadline));
        ends.chain(retry).max().filter(|until| *until > self.world.now)
    }

    /// Whether one more unit fits beside those that run.
    fn fits_beside(&self) -> bool {
        let wanted = &self.rollout.wanted;
        self.world.fits_beside.contains(&wanted.name) && !wanted.global
    }

    /// Replaces one batch.
    fn batch(&mut self) {
        let rules = self.rules();
        // What is to leave its host does so when the update is over.
        let new = self.new.len() + self.leaving.len();
        let (batch, total) = (rules.batch as usize, new + self.old.len());
        let wanted = self.wanted.len();
        if self.is_rolling_back() {
            // What failed serves nobody.
            let failed: Vec<&Unit> = self.old.iter().copied().filter(|unit| !unit.is_healthy()).collect();
            if !failed.is_empty() {
                self.waits = "removes what failed".into();
                for unit in failed {
                    self.plan.steps.push(Step::Remove { id: unit.id.clone() });
                }
                return;
            }
        }
        self.wait_for_good(false);
        if !self.waits.is_empty() {
            return;
        }
        self.waits = format!("{} of {wanted} replaced", new.min(wanted));
        let fits = self.fits_beside();
        let start_first = match rules.order {
            Order::StopFirst => false,
            Order::Auto => fits,
            Order::StartFirst if !fits && new < wanted && total <= wanted => {
                self.fail("no host has room for one more unit beside the old ones, and order is start-first".into());
                return;
            }
            Order::StartFirst => true,
        };
        // What has not ended yet still has its room, its volume and its port; the next batch begins when all of the last one is over. What
        // goes back is missed, and does so at once where it can.
        let is_urgent = start_first && self.is_rolling_back();
        if !is_urgent && self.ending().next().is_some() {
            self.waits = ENDING.into();
            return;
        }
        if start_first && total <= wanted {
            self.place(batch);
        } else if !start_first && total < wanted {
            self.place(batch.min(wanted - total));
        } else {
            let most = if start_first || new == wanted { total - wanted } else { batch };
            self.stop(most);
        }
    }

    /// Stops old units, first those that are missed least.
    fn stop(&mut self, count: usize) {
        let replaced = |unit: &Unit| self.new.iter().chain(&self.leaving).any(|new| new.index == unit.index);
        // It was on its way to another host, where it runs already.
        let moved = |unit: &Unit| {
            let is_other = |other: &&Unit| other.index == unit.index && other.id != unit.id;
            self.world.has_to_leave(unit, &self.rollout.wanted) && self.old.iter().any(is_other)
        };
        let mut old = self.old.clone();
        let monitor = self.rules().monitor;
        old.sort_by_key(|unit| {
            let load = self.load.get(&unit.host).copied().unwrap_or_default();
            let surplus = !self.wanted.contains(&unit.index) || moved(unit);
            let health = (unit.is_healthy(), self.is_good(unit, monitor));
            (health, !surplus, !replaced(unit), usize::MAX - load, usize::MAX - number(&unit.index))
        });
        for unit in old.into_iter().take(count) {
            let id = unit.id.clone();
            // Only what the service was before is something to go back to.
            let was = self.rollout.previous.as_ref().is_some_and(|previous| previous.digest == unit.digest);
            let keep = was && !self.is_rolling_back() && unit.is_healthy();
            self.plan.steps.push(if keep { Step::StopKept { id } } else { Step::Remove { id } });
        }
    }

    /// Places units where they are missing, those first that have no unit at all.
    fn place(&mut self, most: usize) {
        let service = &self.rollout.wanted;
        let has = |units: &[&Unit], index: &Text| units.iter().any(|unit| unit.index == *index);
        let is_missing = |index: &&Text| !has(&self.new, index) && !has(&self.leaving, index);
        let mut missing: Vec<Text> = self.wanted.iter().filter(is_missing).cloned().collect();
        // On the host of a global service the old one goes first; what has a volume or a port alone waits for the end of the one before.
        let waits =
            |index: &Text| (service.global && has(&self.old, index)) || (self.has_to_end() && self.is_ending(index));
        missing.retain(|index| !waits(index));
        missing.sort_by_key(|index| has(&self.old, index));
        for index in missing.into_iter().take(most) {
            self.place_one(&index);
        }
    }

    /// Places a unit, or starts one that was kept.
    fn place_one(&mut self, index: &Text) {
        let service = &self.rollout.wanted;
        let kept = self.kept.iter().find(|unit| {
            // One on a host that is to be left is better than none.
            let may_start = !self.world.has_to_leave(unit, service) || !self.fits_beside();
            unit.index == *index && unit.digest == service.digest && may_start
        });
        let step = if let Some(unit) = kept {
            Step::StartKept { id: unit.id.clone() }
        } else {
            let id = self.id(index);
            Step::Place { service: service.name.clone(), index: index.clone(), id }
        };
        self.plan.steps.push(step);
        if self.waits.is_empty() {
            self.waits = format!("{} of {} there", self.new.len() + self.leaving.len(), self.wanted.len());
        }
    }

    /// Whether a unit that is being stopped has to end before the next one of its index begins. Of a service that is settled, only what has
    /// failed is removed, and what takes its place does not wait for an engine that may not answer.
    fn has_to_end(&self) -> bool {
        let is_stopped = self.rollout.wanted.global || self.rollout.stage.is_changing();
        is_stopped && (!self.fits_beside() || self.rules().order == Order::StopFirst)
    }

    /// The units of the service that have not ended yet, but for those on a host that is gone: nothing can wait for these.
    fn ending(&self) -> impl Iterator<Item = &'a Unit> {
        let (world, name) = (self.world, &self.rollout.wanted.name);
        let is_so = move |unit: &&Unit| {
            unit.service == *name && unit.state == State::Removing && !world.gone.contains(&unit.host)
        };
        world.units.iter().filter(is_so)
    }

    /// Whether the plan ends units of the service.
    fn ends_some(&self) -> bool {
        let ended = self.plan.steps.iter().filter_map(|step| match step {
            Step::StopKept { id } | Step::Remove { id } => Some(id),
            Step::Place { .. } | Step::StartKept { .. } | Step::Evict { .. } => None,
        });
        let ended: BTreeSet<&Text> = ended.collect();
        let name = &self.rollout.wanted.name;
        !ended.is_empty() && self.world.units.iter().any(|unit| unit.service == *name && ended.contains(&unit.id))
    }

    fn is_ending(&self, index: &Text) -> bool {
        self.ending().any(|unit| unit.index == *index)
    }

    /// An id that no unit has.
    fn id(&self, index: &str) -> Text {
        let mut base = unit_id(&self.stack.name, &self.rollout.wanted, index);
        if let Some(suffix) = self.world.suffixes.get(&base) {
            base = format!("{base}.{suffix}").into();
        }
        let taken = |id: &str| self.world.units.iter().any(|unit| *unit.id == *id);
        let mut id = base.to_string();
        let mut next = 2;
        while taken(&id) {
            id = format!("{base}.{next}");
            next += 1;
        }
        id.into()
    }

    /// Before the next batch everything of the last one is good. `is_last` if none follows.
    fn wait_for_good(&mut self, is_last: bool) {
        let monitor = self.rules().monitor;
        let mut missing = 0;
        let is_job = self.rollout.wanted.job;
        // Nothing follows from it then.
        let is_over = self.rollout.stage.is_settled() && is_last;
        let part = self.of_update();
        for unit in &part {
            if !self.is_good(unit, monitor) {
                missing += 1;
                if let State::Healthy(since) = unit.state
                    && !is_over
                {
                    wake(&mut self.plan.wake, since.saturating_add(Duration::from_secs(monitor)));
                }
            }
        }
        if missing > 0 && self.waits.is_empty() && !is_over {
            let all = part.len();
            self.waits = if is_job {
                format!("waits until {missing} of {all} have ended without an error")
            } else {
                format!("waits until {missing} of {all} are healthy for {monitor} s")
            };
        }
    }

    fn is_rolling_back(&self) -> bool {
        matches!(self.rollout.stage, Stage::RollingBack(_))
    }

    fn finish(&mut self) {
        // An update that is done has left nothing of what was before.
        let is_over = !self.rollout.stage.is_changing() || !self.ends_some() && self.ending().next().is_none();
        let is_replaced = |unit: &Unit| self.rollout.wanted.global && self.wanted.contains(&unit.index);
        if !is_over || self.ending().any(is_replaced) {
            self.waits = ENDING.into();
            return;
        }
        let confirm = self.rules().confirm && !self.kept.is_empty();
        let name = self.rollout.wanted.name.clone();
        match &self.rollout.stage {
            Stage::Updating if confirm => self.plan.turns.push((name, Turn::Unconfirmed)),
            Stage::Updating | Stage::RollingBack(_) => self.plan.turns.push((name, Turn::Finished)),
            Stage::Unconfirmed | Stage::Stuck(_) => {}
            Stage::Steady | Stage::RolledBack(_) => {
                for unit in &self.kept {
                    self.plan.steps.push(Step::Remove { id: unit.id.clone() });
                }
            }
        }
    }

    /// Whether a unit is as it should be in the end: one of a job is once it is done.
    fn is_good(&self, unit: &Unit, monitor: u64) -> bool {
        if self.rollout.wanted.job { unit.state == State::Done } else { unit.is_good(monitor, self.world.now) }
    }

    pub(crate) fn phase(self) -> Phase {
        let monitor = self.rules().monitor;
        Phase {
            service: self.rollout.wanted.name.clone(),
            wanted: self.wanted.len(),
            // Nothing more can be done for those that stay.
            good: self.new.iter().chain(&self.stays).filter(|unit| self.is_good(unit, monitor)).count(),
            new: self.new.len(),
            old: self.old.len() + self.leaving.len(),
            waits: if self.stack.paused { "paused".to_owned() } else { self.waits },
        }
    }
}

/// Why a unit has failed that is not good in time.
fn late(unit: &Unit, rules: &Update) -> String {
    format!("{} was not healthy within {} s", unit.id, rules.deadline)
}

fn wake(wake: &mut Option<Duration>, at: Duration) {
    *wake = Some(wake.map_or(at, |known| known.min(at)));
}

/// What a unit in this state is worth beside another one of the same index; the least is worth most.
fn worth(state: &State) -> u8 {
    match state {
        State::Done => 0,
        State::Healthy(_) => 1,
        State::Starting => 2,
        State::Unhealthy => 3,
        State::Lost(_) => 4,
        _ => 5,
    }
}

/// The number of an index; names of hosts have none.
fn number(index: &str) -> usize {
    index.parse().unwrap_or(usize::MAX)
}
