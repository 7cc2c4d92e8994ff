//! The keeper: looks at each stack of this scheduler when something of it changes, and begins the steps to what is wanted.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::{Change, Container, Text, changes};
use source::Readiness;
use stacks::{Plan, Stack, Stage, State, Step, Turn, Unit, World, plan};
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::ledger::draft::TakeOver;
use crate::ledger::stack::{StackRecord, stack_id};
use crate::lock::lock;
use crate::place::hosts::{Facts, HostTable};
use crate::place::inventory::Inventory;
use crate::place::refusal::Refusal;
use crate::stack::act::Placing;
use crate::stack::ahead::{Asking, HOPELESS_AFTER, add_suffixes, homes_of, place_of};
use crate::stack::counts::UnitCounts;
use crate::stack::memory::{Flight, Images, Memory, StackMemory, WELL};
use crate::stack::unit::{STACK_LABEL, any_unit};
use crate::stack::world::{Doubt, Look, is_gone};
use crate::start::Starter;
use crate::subject::Subject;

/// Pause before a stack is looked at, so that changes of one moment are looked at together.
const TOGETHER: Duration = Duration::from_millis(50);

/// Pause until the next look at a stack for which nothing can be done just now.
const HALTED: Duration = Duration::from_secs(1);

/// How often a scheduler asks itself whether it sees the cluster: stacks at rest are not looked at, and would not show it.
const SIGHT_PAUSE: Duration = Duration::from_secs(5);

/// How long a scheduler that does not see the cluster keeps its stacks, if there is another one: a restart or an upgrade of what
/// tells it takes less.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);

/// Pause until volumes are removed again that could not be: a container of somebody else has one, or an engine is away.
const VOLUMES_PAUSE: Duration = Duration::from_secs(10);

/// How old what a client is shown of room may be: to look at all hosts for each of its questions would be too much.
const ROOM_TIME: Duration = Duration::from_secs(2);

/// Most steps of one stack at once, and so the largest batch that is one: most of a step is a wait, for its engine, for clients to ask others
/// and for containers to end; engines have bounds of their own.
const STEPS_AT_ONCE: usize = 64;

/// A stack with what there is of it.
pub(super) struct Seen {
    pub(super) record: StackRecord,
    pub(super) world: World,
    pub(super) plan: Plan,
    doubts: Vec<Doubt>,
}

impl Starter {
    /// Keeps all stacks of this scheduler as they are wanted, until `stop`.
    pub(crate) async fn keep_stacks(self: Arc<Self>, readiness: Arc<Readiness>, stop: CancellationToken) {
        let mut inventories = self.placer().watch_inventories();
        let mut learned = self.placer().ledger().store().shared().map(|shared| shared.watch());
        let mut before = Arc::new(Inventory::default());
        let mut due: BTreeMap<Text, Instant> = BTreeMap::new();
        let mut turns: JoinSet<Option<Duration>> = JoinSet::new();
        let mut at_work: BTreeMap<Text, Id> = BTreeMap::new();
        let mut sight = tokio::time::interval(SIGHT_PAUSE);
        sight.set_missed_tick_behavior(MissedTickBehavior::Delay);
        lock(&self.stack_memory).touched_all = true;
        // Also when nothing else happens from now on.
        self.stacks_changed.notify_one();
        loop {
            let next = due.iter().filter(|(name, _)| !at_work.contains_key(*name)).map(|(_, at)| *at).min();
            let at = next.unwrap_or_else(Instant::now);
            let etcd = async {
                match &mut learned {
                    Some(learned) => drop(learned.changed().await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                _ = sight.tick() => {
                    let is_halted = self.why_halted(&readiness).is_some();
                    if !is_halted {
                        self.resume_evacuations();
                    }
                    let mut memory = lock(&self.stack_memory);
                    memory.touched_all |= is_halted && memory.halted_since.is_none();
                }
                () = inventories.changed() => self.note_changes(&mut before),
                () = etcd => {}
                () = self.stacks_changed.notified() => {}
                Some(ended) = turns.join_next_with_id(), if !turns.is_empty() => {
                    // One that panicked is begun once more.
                    let (task, pause) = ended.unwrap_or_else(|error| (error.id(), Some(HALTED)));
                    let name = at_work.iter().find(|(_, own)| **own == task).map(|(name, _)| name.clone());
                    if let Some(name) = name {
                        at_work.remove(&name);
                        if let Some(pause) = pause {
                            soonest(&mut due, name, Instant::now() + pause);
                        }
                    }
                }
                () = sleep_until(at), if next.is_some() => {
                    let now = Instant::now();
                    let ready: Vec<Text> = due
                        .iter()
                        .filter(|(name, at)| **at <= now && !at_work.contains_key(*name))
                        .map(|(name, _)| name.clone())
                        .collect();
                    for name in ready {
                        due.remove(&name);
                        let (starter, readiness) = (self.clone(), readiness.clone());
                        let (stop, own) = (stop.clone(), name.clone());
                        let task = turns.spawn(async move { starter.look_at_stack(&own, &readiness, &stop).await });
                        at_work.insert(name, task.id());
                    }
                    continue;
                }
            }
            for name in self.touched(&readiness) {
                soonest(&mut due, name, Instant::now() + TOGETHER);
            }
        }
    }

    /// Takes note of which stacks a changed cluster concerns. That a label names one only has it looked at.
    fn note_changes(&self, before: &mut Arc<Inventory>) {
        let after = self.placer().inventory();
        let mut names = BTreeSet::new();
        let stack = |container: &Container| container.labels()?.text(STACK_LABEL).cloned();
        for change in changes(before.containers(), after.containers()) {
            match change {
                Change::Added(new) => names.extend(stack(new)),
                Change::Changed { old, new } => names.extend([stack(old), stack(new)].into_iter().flatten()),
                Change::Removed(old) => names.extend(stack(old)),
            }
        }
        let same = Arc::ptr_eq(after.hosts(), before.hosts())
            || after.hosts().same_layout(before.hosts()) && same_states(after.hosts(), before.hosts());
        *before = after;
        let mut memory = lock(&self.stack_memory);
        memory.gone.retain(|host, _| is_gone(before, host));
        memory.touched.extend(names);
        memory.touched_all |= !same;
    }

    /// The stacks of this scheduler that are to be looked at.
    fn touched(&self, readiness: &Readiness) -> BTreeSet<Text> {
        let sees = self.why_halted(readiness).is_none();
        let (mut touched, all) = {
            let mut memory = lock(&self.stack_memory);
            (std::mem::take(&mut memory.touched), std::mem::take(&mut memory.touched_all))
        };
        self.placer().with_any(self.clock().now(), |book| {
            if sees {
                book.give_up_no_more();
            }
            touched.extend(book.take_touched_stacks());
            let is_own = |name: &&Text| !book.is_foreign(&stack_id(name));
            let is_used = |name: &Text, own: &StackMemory| book.stack(name).is_some() || !own.in_flight.is_empty();
            lock(&self.stack_memory).stacks.retain(|name, own| is_used(name, own));
            if all {
                return book.stack_names().filter(is_own).cloned().collect();
            }
            touched.iter().filter(|name| book.stack(name).is_some()).filter(is_own).cloned().collect()
        })
    }

    /// Looks at a stack once, and begins what follows; returns when to look again although nothing changes.
    async fn look_at_stack(
        self: &Arc<Self>,
        name: &Text,
        readiness: &Readiness,
        stop: &CancellationToken,
    ) -> Option<Duration> {
        let halted = self.why_halted(readiness);
        let was_halted = self.with_stack(name, |memory| std::mem::replace(&mut memory.halted, halted.clone()));
        if let Some(why) = halted {
            if was_halted.is_none() {
                warn!(stack = %name, %why, "nothing is done for this stack");
            }
            self.give_up_late(name);
            return Some(HALTED);
        }
        lock(&self.stack_memory).halted_since = None;
        let (record, is_foreign) = self.placer().stack(name, self.clock().now()).ok()?;
        if is_foreign {
            // Another scheduler was asked about it, and keeps it since.
            self.with_stack(name, StackMemory::forget_failures);
            return None;
        }
        for id in self.placer().with_any(self.clock().now(), |book| book.foreign_jobs(&record.stack)) {
            if let Err(why) = self.placer().own(&id, TakeOver::Idle, self.clock()).await {
                warn!(stack = %name, unit = %id, %why, "another scheduler keeps this job");
            }
        }
        self.with_stack(name, |memory| memory.missing_images(&record.stack));
        let mut memory = self.memory_of(name);
        let Seen { record, world, plan, doubts } = self.see(record, &mut memory, Duration::ZERO);
        self.remember(name, memory);
        self.resolve(name, doubts);
        if let Err(why) = self.placer().note_done(&record.stack, &world, self.clock()).await {
            warn!(stack = %name, %why, "that jobs are done is not stored");
            return Some(HALTED);
        }
        if !plan.turns.is_empty() {
            for (service, turn) in &plan.turns {
                info!(stack = %name, %service, turn = %turn_words(turn), "a service is further");
            }
            if let Err(why) = self.placer().turn_stack(&record.stack, &plan.turns, self.clock()).await {
                warn!(stack = %name, %why, "what was decided is not stored");
                return Some(HALTED);
            }
            self.with_stack(name, |memory| {
                for (service, turn) in &plan.turns {
                    // Its next plan begins without what failed in this one.
                    match turn {
                        Turn::RollBack(_) => memory.forgive(service),
                        Turn::Stuck(_) => memory.forget_images(service),
                        Turn::Finished | Turn::Unconfirmed => {}
                    }
                }
            });
            self.touch_stack(name);
            return None;
        }
        let stack = &record.stack;
        let left = world.units.iter().filter(|unit| unit.state != State::Evicted).count();
        if stack.removing && left == 0 {
            if self.with_stack(name, |memory| !memory.in_flight.is_empty()) {
                // What lands has it looked at again.
                return None;
            }
            let away = world.units.len();
            if away == 0 {
                if stack.volumes && !self.remove_volumes(name).await {
                    return Some(VOLUMES_PAUSE);
                }
                if let Err(why) = self.placer().end_stack(name, self.clock()).await {
                    warn!(stack = %name, %why, "its end is not stored");
                    return Some(HALTED);
                }
                lock(&self.stack_memory).stacks.remove(name);
                info!(stack = %name, "removed");
            }
            return None;
        }
        let homes = homes_of(stack, &world);
        if let Err(why) = self.placer().note_homes(name, homes, self.clock()).await {
            warn!(stack = %name, %why, "where volumes are is not stored");
            return Some(HALTED);
        }
        let subject = record.subject();
        let wake = self.begin_steps(stack, &world, (plan.steps, &plan.late), &subject, stop);
        plan.wake.into_iter().chain(wake).min().map(|at| at.saturating_sub(world.now).max(TOGETHER))
    }

    /// Gives a stack for which nothing can be done for long to another scheduler, if there is one.
    fn give_up_late(&self, name: &Text) {
        let now = self.clock().now();
        let since = *lock(&self.stack_memory).halted_since.get_or_insert(now);
        let is_late = now.saturating_sub(since) >= GIVE_UP_AFTER;
        // What cannot be written cannot be given.
        if is_late && self.placer().outdated().is_none() && self.placer().with_any(now, |book| book.give_up_stack(name))
        {
            warn!(stack = %name, "another scheduler may take it over");
        }
    }

    /// Why nothing is to be done for any stack just now.
    fn why_halted(&self, readiness: &Readiness) -> Option<String> {
        if !self.placer().has_data() {
            return Some("nothing is known of any host yet".to_owned());
        }
        let missing = readiness.reasons().iter().next().map(|(part, reason)| format!("{part}: {reason}"));
        missing.or_else(|| self.placer().outdated())
    }

    /// A stack, what there is of it, and the plan.
    pub(super) fn see_stack(&self, name: &Text) -> Result<Seen, Refusal> {
        let (record, _) = self.placer().stack(name, self.clock().now())?;
        let mut memory = self.memory_of(name);
        let seen = self.see(record, &mut memory, ROOM_TIME);
        self.remember(name, memory);
        Ok(seen)
    }

    /// What is remembered of a stack, and of hosts.
    pub(super) fn memory_of(&self, name: &Text) -> Memory {
        let memory = lock(&self.stack_memory);
        let own = memory.stacks.get(name).cloned().unwrap_or_default();
        Memory { stacks: [(name.clone(), own)].into(), gone: memory.gone.clone(), ..Memory::default() }
    }

    /// Takes over what was seen of a stack. What has begun or ended meanwhile stays as it is.
    fn remember(&self, name: &Text, mut seen: Memory) {
        let mut memory = lock(&self.stack_memory);
        for (host, since) in seen.gone {
            memory.gone.entry(host).or_insert(since);
        }
        let Some(seen) = seen.stacks.remove(name) else { return };
        let own = memory.stacks.entry(name.clone()).or_default();
        own.healthy = seen.healthy;
        own.hopeless = seen.hopeless;
        own.room = seen.room;
        own.counts = seen.counts;
        own.suffixes = seen.suffixes;
        let now = self.clock().now();
        own.retries.retain(|_, retry| retry.not_before.saturating_add(WELL) > now);
        own.begun.retain(|id, _| seen.begun.contains_key(id) || own.in_flight.contains_key(id));
        for (id, since) in seen.begun {
            let known = own.begun.entry(id).or_insert(since);
            *known = since.max(*known);
        }
    }

    /// The same for a stack that need not be stored; what is known of room may be so old.
    pub(super) fn see(&self, record: StackRecord, memory: &mut Memory, room_time: Duration) -> Seen {
        let stack = &record.stack;
        let now = self.clock().now();
        let inventory = self.placer().inventory();
        let sees = self.placer().outdated().is_none();
        let doubts = RefCell::default();
        let look = Look { inventory: &inventory, answer: &|id| self.answer(id), doubts, now, sees };
        let mut world = self.placer().with_any(now, |book| look.world(book, stack, memory));
        let doubts = look.doubts.into_inner();
        world.leaving = in_state(&inventory, "deactivating");
        world.cordoned = in_state(&inventory, "inactive");
        let subject = record.subject();
        let own = memory.stacks.entry(stack.name.clone()).or_default();
        world.missing_images = own.missing_images(stack);
        let known = own.room.take().filter(|(at, _)| now.saturating_sub(*at) < room_time);
        let asking = Asking { subject: &subject, brought: &own.brought };
        let (at, room) = known.unwrap_or_else(|| (now, self.look_for_room(stack, asking, &world, &mut own.hopeless)));
        world.hosts.clone_from(&room.hosts);
        world.fits_beside.clone_from(&room.fits_beside);
        world.hopeless.clone_from(&room.hopeless);
        own.room = Some((at, room));
        self.placer().with_any(now, |book| add_suffixes(book, stack, &world, &mut own.suffixes));
        world.suffixes.clone_from(&own.suffixes);
        own.forget_moves(&world);
        world.not_before = own.retries.iter().map(|(unit, retry)| (unit.clone(), retry.not_before)).collect();
        let plan = plan(stack, &world);
        own.counts = UnitCounts {
            wanted: plan.phases.iter().map(|phase| phase.wanted).sum(),
            healthy: world.units.iter().filter(|unit| unit.is_live() && unit.is_healthy()).count(),
            evicted: world.units.iter().filter(|unit| unit.state == State::Evicted).count(),
        };
        Seen { record, world, plan, doubts }
    }

    /// Asks engines about what the cluster shows as ended; what they say has the stack looked at again.
    fn resolve(self: &Arc<Self>, stack: &Text, doubts: Vec<Doubt>) {
        for Doubt { host, id, shown } in doubts {
            if !self.with_stack(stack, |memory| memory.asked.insert(id.clone())) {
                continue;
            }
            let (starter, stack) = (self.clone(), stack.clone());
            self.spawn(async move {
                starter.look_at_container(&host, &id, Some(&shown)).await;
                starter.with_stack(&stack, |memory| memory.asked.remove(&id));
            });
        }
    }

    /// Begins those steps that are not begun; returns when to look again for those that have to wait.
    fn begin_steps(
        self: &Arc<Self>,
        stack: &Stack,
        world: &World,
        (steps, late): (Vec<Step>, &BTreeMap<Text, String>),
        subject: &Subject,
        stop: &CancellationToken,
    ) -> Option<Duration> {
        let mut wake: Option<Duration> = None;
        let inventory = self.placer().inventory();
        self.with_stack(&stack.name, |memory| memory.forget_moves(world));
        for step in steps {
            let id = id_of(&step);
            let unit = world.units.iter().find(|unit| unit.id == *id);
            let service = match &step {
                Step::Place { service, .. } => Some(service),
                _ => unit.map(|unit| &unit.service),
            };
            let rollout = service.and_then(|name| stack.services.iter().find(|rollout| rollout.wanted.name == *name));
            let is_settled = rollout.is_none_or(|rollout| !rollout.stage.is_changing());
            let (is_busy, not_before, brought, doubted) = self.with_stack(&stack.name, |memory| {
                let is_busy = match (memory.in_flight.get(id), &step) {
                    // What is still being pulled or started is not waited for; before it is in the ledger there is nothing to remove.
                    (Some(Flight::Placing { .. }), Step::Remove { .. }) => unit.is_none_or(|unit| unit.host.is_empty()),
                    (flight, _) => flight.is_some() || memory.in_flight.len() >= STEPS_AT_ONCE,
                };
                let key = match &step {
                    Step::Place { service, index, .. } => (service.clone(), index.clone()),
                    other => (Text::from(other.to_string()), id.clone()),
                };
                let retry = memory.retries.get(&key).map(|retry| retry.not_before);
                let doubted = rollout.and_then(|rollout| memory.hopeless.get(&rollout.wanted.name).copied());
                (is_busy, retry.filter(|at| *at > world.now), memory.brought.clone(), doubted)
            });
            if let Some(at) = not_before {
                wake = wake.into_iter().chain([at]).min();
                continue;
            }
            if is_busy || rollout.is_some_and(|rollout| !self.has_images(stack, rollout, world, subject, stop)) {
                continue;
            }
            let serves = unit.is_some_and(|unit| unit.is_live() && unit.is_healthy());
            let decided = doubted.map(|since| since.saturating_add(HOPELESS_AFTER)).filter(|at| *at > world.now);
            if serves && let Some(at) = decided {
                // Nothing stops for what may find no host.
                wake = wake.into_iter().chain([at]).min();
                continue;
            }
            match (step, rollout) {
                (Step::Place { service: _, index, id }, Some(rollout)) => {
                    let host = place_of(stack, &rollout.wanted, &index, world, &inventory);
                    if rollout.wanted.global && host.is_none() {
                        // It is on its own host or nowhere.
                        continue;
                    }
                    let (stack, service, subject) = (stack.name.clone(), rollout.wanted.clone(), subject.clone());
                    let (settled, instead_of) = (is_settled, leaving(world, (&service.name, &index, &id)));
                    let placing = Placing { stack, service, index, id, host, subject, brought, instead_of, settled };
                    self.begin_placing(placing);
                }
                (Step::Remove { id }, _) if unit.is_none_or(|unit| matches!(unit.state, State::Failed(_))) => {
                    // Nothing of it is in the ledger.
                    self.with_stack(&stack.name, |memory| drop(memory.failed.remove(&id)));
                    self.touch_stack(&stack.name);
                    if unit.is_some_and(|unit| !unit.host.is_empty()) {
                        self.begin_step(&stack.name, Step::Remove { id });
                    }
                }
                (other, _) => {
                    let why = unit.and_then(|unit| match &unit.state {
                        State::Ended(why) => Some(why.to_string()),
                        _ => late.get(&unit.id).cloned(),
                    });
                    if let (Step::Remove { .. }, Some(unit), Some(why), true) = (&other, unit, why, is_settled) {
                        // What ends, or is late, again and again is started again less and less often.
                        let (key, instead_of) = (
                            (unit.service.clone(), unit.index.clone()),
                            leaving(world, (&unit.service, &unit.index, &unit.id)),
                        );
                        self.with_stack(&stack.name, |memory| memory.fail_later(key, why, instead_of, world.now));
                    }
                    self.begin_step(&stack.name, other);
                }
            }
        }
        for unit in &world.units {
            // Of one that is to leave its host, the next one is what is tried.
            if let State::Healthy(since) = unit.state
                && !world.leaving.contains(&unit.host)
                && world.now.saturating_sub(since) >= WELL
            {
                let key = (unit.service.clone(), unit.index.clone());
                self.with_stack(&stack.name, |memory| drop(memory.retries.remove(&key)));
            }
        }
        wake
    }

    /// Whether the images of a service are on their hosts, as far as something else has to stop for it; has them pulled.
    fn has_images(
        self: &Arc<Self>,
        stack: &Stack,
        rollout: &stacks::Rollout,
        world: &World,
        subject: &Subject,
        stop: &CancellationToken,
    ) -> bool {
        let service = &rollout.wanted;
        let old = world.units.iter().any(|unit| {
            unit.service == service.name && unit.is_live() && unit.digest != service.digest && !unit.host.is_empty()
        });
        if rollout.stage != Stage::Updating || stack.removing || !old {
            return true;
        }
        let key = (service.name.clone(), service.digest.clone());
        let (known, brought) =
            self.with_stack(&stack.name, |memory| (memory.images.get(&key).cloned(), memory.brought.clone()));
        let is_asked = match known {
            Some(Images::There) => return true,
            Some(Images::Coming | Images::Missing(_)) => return false,
            Some(Images::Asked) => true,
            None => false,
        };
        self.with_stack(&stack.name, |memory| memory.images.insert(key.clone(), Images::Coming));
        let (starter, name, stop) = (self.clone(), stack.name.clone(), stop.clone());
        if !is_asked {
            let request = any_unit(&name, service, subject);
            self.spawn(async move {
                // Which hosts fit depends on it, and a registry may take its time.
                if let Ok(mut request) = request {
                    starter.complete(&mut request, &brought).await;
                }
                starter.note_images(&name, key, Images::Asked);
            });
            return false;
        }
        let beside = world.fits_beside.contains(&service.name);
        let asking = Asking { subject, brought: &brought };
        let rehearsal = self.rehearse_service(stack, service, asking, (world, beside));
        self.spawn(async move {
            let images = match starter.bring_images(&rehearsal, &brought, &stop).await {
                Ok(()) => Images::There,
                // The next process has them pulled.
                Err(_) if stop.is_cancelled() => return,
                Err(why) => {
                    warn!(stack = %name, service = %key.0, %why, "its images are not there");
                    Images::Missing(why.into())
                }
            };
            starter.note_images(&name, key, images);
        });
        false
    }

    /// Notes how it is with the images of a service, by its name and digest. Something else may be wanted by then: what follows is the
    /// next plan's to say.
    fn note_images(&self, stack: &Text, service: (Text, Text), images: Images) {
        self.with_stack(stack, |memory| {
            memory.images.insert(service, images);
            memory.room = None;
        });
        self.touch_stack(stack);
    }
}

/// The unit, by id, that is to leave its host once another one, by its service, index and id, has taken its place.
fn leaving(world: &World, (service, index, id): (&Text, &Text, &Text)) -> Option<Text> {
    let is_it = |unit: &&Unit| unit.service == *service && unit.index == *index && unit.id != *id && unit.is_live();
    world.units.iter().filter(is_it).find(|unit| world.leaving.contains(&unit.host)).map(|unit| unit.id.clone())
}

/// The hosts, by uuid, in a state, in the predecessor's word: those that are drained are `deactivating`, those that are cordoned
/// `inactive`. One that says so of itself has its own units leave.
fn in_state(inventory: &Inventory, state: &str) -> BTreeSet<Text> {
    let hosts = inventory.hosts();
    let count = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
    let is_so = |facts: &&Facts| &*facts.state == state;
    (0..count).map(|host| hosts.facts(host)).filter(is_so).map(|facts| facts.uuid.clone()).collect()
}

/// Whether hosts of the same layout are in the same states: units leave one that is drained, and count as lost on one that is silent.
fn same_states(one: &HostTable, other: &HostTable) -> bool {
    let count = u32::try_from(one.len()).unwrap_or(u32::MAX);
    (0..count).all(|host| one.facts(host).state == other.facts(host).state)
}

fn soonest(due: &mut BTreeMap<Text, Instant>, name: Text, at: Instant) {
    let known = due.entry(name).or_insert(at);
    *known = at.min(*known);
}

fn id_of(step: &Step) -> &Text {
    match step {
        Step::Place { id, .. }
        | Step::StopKept { id }
        | Step::StartKept { id }
        | Step::Remove { id }
        | Step::Evict { id, .. } => id,
    }
}

fn turn_words(turn: &Turn) -> String {
    match turn {
        Turn::Finished => "done".to_owned(),
        Turn::Unconfirmed => "waits for confirm or rollback".to_owned(),
        Turn::RollBack(why) => format!("rolled back: {why}"),
        Turn::Stuck(why) => format!("stuck: {why}"),
    }
}
