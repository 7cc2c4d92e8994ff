//! Replacing: a unit of which a container failed is started again, or another one takes its place.
//!
//! That a container failed is the word of its host (`model::health::failed`), and what is done about it is in the labels of the
//! request. Nothing is done while little is known: without the source of the cluster, without etcd, and while so many containers
//! are unhealthy that the checks are more likely to be wrong.

pub(crate) mod decide;
pub(crate) mod last_log;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::health::{OnFailure, failed};
use model::{Change, Container, Map, Table, Text, changes};
use source::Readiness;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::ledger::book::Book;
use crate::ledger::record::{PromiseState, Record, Replica, Stage};
use crate::place::inventory::Inventory;
use crate::place::request::Request;
pub(crate) use crate::replace::decide::{Failed, Step};
use crate::replace::decide::{Group, Wait, decide};
use crate::start::Starter;

/// Pause before failures are looked at, so that those of one moment are decided together.
const TOGETHER: Duration = Duration::from_millis(100);

/// Pause between two looks at what has to wait for something else than time.
const LOOK: Duration = Duration::from_secs(1);

/// The same for containers that failed and are another scheduler's, or belong to no scheduler.
const LOOK_FOR_OTHERS: Duration = Duration::from_secs(10);

/// After this time a unit that was replaced and is not healthy does not hold up others of its service.
const SETTLING_MAX: Duration = Duration::from_mins(5);

/// What is known of failures.
#[derive(Default)]
struct Watched {
    before: Table<Container>,
    /// Containers that failed, by uuid.
    failed: BTreeMap<Text, Text>,
    /// Containers of units that were replaced before: since when and until when they were last healthy.
    health: BTreeMap<Text, (Duration, Option<Duration>)>,
    /// What waits was logged for, by uuid.
    noted: BTreeMap<Text, Wait>,
    /// Whether it was logged that nothing is done.
    is_halted: bool,
    /// The time of the last look.
    now: Duration,
}

impl Starter {
    /// Does what requests want when containers fail, until `stop`.
    pub(crate) async fn replace_failed(self: Arc<Self>, readiness: Arc<Readiness>, stop: CancellationToken) {
        let mut watched = Watched::default();
        let mut inventories = self.placer().watch_inventories();
        let mut due = self.take_in(&mut watched);
        loop {
            let at = due.unwrap_or_else(Instant::now);
            tokio::select! {
                () = stop.cancelled() => return,
                () = inventories.changed() => due = self.take_in(&mut watched).into_iter().chain(due).min(),
                () = sleep_until(at), if due.is_some() => due = self.act(&mut watched, &readiness),
            }
        }
    }

    /// Takes in what changed in the cluster; returns when to look at failures, if there are any.
    fn take_in(&self, watched: &mut Watched) -> Option<Instant> {
        let now = self.clock().now();
        let inventory = self.placer().inventory();
        let before = std::mem::replace(&mut watched.before, inventory.containers().clone());
        for change in changes(&before, inventory.containers()) {
            let (uuid, new) = match change {
                Change::Added(new) | Change::Changed { new, .. } => (new.uuid(), Some(new)),
                Change::Removed(old) => (old.uuid(), None),
            };
            if let Some(why) = new.and_then(|new| failed(new)) {
                watched.failed.insert(uuid.clone(), why);
            } else {
                watched.failed.remove(uuid);
                watched.noted.remove(uuid);
            }
            let Some(new) = new else {
                watched.health.remove(uuid);
                continue;
            };
            match watched.health.get_mut(uuid) {
                Some((_, until)) if !is_healthy(new) => drop(until.get_or_insert(now)),
                Some((since, until)) if until.is_some() => (*since, *until) = (now, None),
                None if is_healthy(new) && self.was_replaced(new) => {
                    watched.health.insert(uuid.clone(), (now, None));
                }
                Some(_) | None => {}
            }
        }
        (!watched.failed.is_empty()).then(|| Instant::now() + TOGETHER)
    }

    fn was_replaced(&self, container: &Container) -> bool {
        self.placer().with_any(self.clock().now(), |book| book.was_replaced(container))
    }

    /// Does what can be done about failures now; returns when to look again, if not at the next change.
    fn act(self: &Arc<Self>, watched: &mut Watched, readiness: &Readiness) -> Option<Instant> {
        let now = self.clock().now();
        watched.now = now;
        let inventory = self.placer().inventory();
        let (failed, groups) = self.placer().with_any(now, |book| look(book, &inventory, watched));
        if failed.is_empty() {
            // Placements of schedulers that are gone may become ours.
            return (!watched.failed.is_empty()).then(|| Instant::now() + LOOK_FOR_OTHERS);
        }
        let later = Some(Instant::now() + LOOK);
        if let Some(why) = self.halt(&inventory, readiness) {
            if !std::mem::replace(&mut watched.is_halted, true) {
                warn!(failed = failed.len(), %why, "nothing is replaced");
            }
            return later;
        }
        watched.is_halted = false;
        let units: Vec<Failed> = failed.iter().map(|(_, unit)| unit.clone()).collect();
        let mut begun: BTreeMap<Text, Vec<(&Failed, Step)>> = BTreeMap::new();
        let mut next = None;
        for ((uuid, unit), decided) in failed.iter().zip(decide(&units, groups, now)) {
            match decided {
                None => {}
                Some(Ok(step)) => begun.entry(unit.id.clone()).or_default().push((unit, step)),
                Some(Err(wait)) => {
                    let pause = if let Wait::Until(until) = wait { until.saturating_sub(now) } else { LOOK };
                    let at = Instant::now() + pause;
                    next = Some(next.map_or(at, |next: Instant| next.min(at)));
                    if watched.noted.insert(uuid.clone(), wait) != Some(wait) {
                        info!(id = %unit.id, failed = %unit.why, why = %wait, "not replaced yet");
                    }
                }
            }
        }
        for (id, units) in begun {
            if !self.begin_replacing(&id, &units, now) {
                next = next.into_iter().chain(later).min();
            }
        }
        next
    }

    /// Why nothing is to be replaced just now.
    fn halt(&self, inventory: &Inventory, readiness: &Readiness) -> Option<String> {
        if inventory.is_panic() {
            return Some("too many containers of the cluster are unhealthy".to_owned());
        }
        let missing = readiness.reasons().iter().next().map(|(part, reason)| format!("{part}: {reason}"));
        missing.or_else(|| self.placer().outdated())
    }
}

/// The units of this scheduler that failed, with the uuids of their containers, and the services that they belong to.
fn look(book: &Book, inventory: &Inventory, watched: &Watched) -> (Vec<(Text, Failed)>, BTreeMap<Text, Group>) {
    let mut failed: Vec<(Text, Failed)> = Vec::new();
    let mut seen = BTreeSet::new();
    for (uuid, why) in &watched.failed {
        let container = inventory.containers().get(uuid);
        let Some(unit) = container.and_then(|container| book.unit_of(container)) else { continue };
        let Some(record) = book.record(&unit.id) else { continue };
        let Some(replica) = record.replicas.get(unit.at) else { continue };
        // Its containers are one: the first that failed speaks for all.
        if !seen.insert((unit.id.clone(), unit.at)) {
            continue;
        }
        let Some(on_failure) = on_failure(record, unit.member) else { continue };
        let before = replica.replaced.clone().unwrap_or_default();
        let well = match watched.health.get(uuid) {
            Some((since, until)) => until.unwrap_or(watched.now).saturating_sub(*since),
            // What failed all the time would have been replaced since.
            None => watched.now.saturating_sub(before.begun()).saturating_sub(SETTLING_MAX),
        };
        let before = before.after_health(well);
        let unit = Failed {
            group: group_of(&unit.id, &record.asked),
            id: unit.id,
            at: unit.at,
            on_failure,
            times: before.times,
            not_before: before.not_before(),
            well,
            why: why.clone(),
        };
        failed.push((uuid.clone(), unit));
    }
    let wanted: BTreeSet<&Text> = failed.iter().map(|(_, unit)| &unit.group).collect();
    let mut groups: BTreeMap<Text, Group> = BTreeMap::new();
    if wanted.is_empty() {
        return (failed, groups);
    }
    for (id, record) in book.records() {
        let name = group_of(id, &record.asked);
        if !wanted.contains(&name) {
            continue;
        }
        let group = groups.entry(name).or_default();
        for replica in record.replicas.iter().filter(|replica| !replica.is_given_up() && !is_stopped(replica)) {
            let is_well = is_well(replica, inventory);
            group.units += 1;
            group.healthy += usize::from(is_well);
            group.in_replacement += usize::from(!is_well && is_in_replacement(replica, watched));
        }
    }
    (failed, groups)
}

/// What the request wants when this member of a unit fails.
fn on_failure(record: &Record, member: usize) -> Option<OnFailure> {
    let request = Request::parse(&record.asked.clone().into()).ok()?;
    // What is wrong in it was written by an older release.
    request.members.get(member)?.on_failure().ok()?
}

/// The service of a placement, or the placement itself.
fn group_of(id: &Text, asked: &Map) -> Text {
    match asked.text("service") {
        Some(service) => format!("{}/{service}", asked.text("stack").map_or("", |stack| stack)).into(),
        None => id.clone(),
    }
}

fn is_healthy(container: &Container) -> bool {
    container.runs() && container.health_state().is_none_or(|state| matches!(state, "healthy" | "updating-healthy"))
}

/// Whether a unit is stopped because that was asked for.
fn is_stopped(replica: &Replica) -> bool {
    matches!(replica.stage, Stage::Stopping | Stage::Kept)
}

/// Whether all containers of a unit are there and well.
fn is_well(replica: &Replica, inventory: &Inventory) -> bool {
    replica.members.iter().all(|held| match &held.state {
        PromiseState::Settled(uuid) => inventory.containers().get(uuid).is_some_and(|container| is_healthy(container)),
        PromiseState::Reserved | PromiseState::Over => false,
    })
}

/// Whether a unit that is not well is being replaced, or was and is not settled yet.
fn is_in_replacement(replica: &Replica, watched: &Watched) -> bool {
    let Some(replaced) = &replica.replaced else { return false };
    let has_failed = |uuid: &Text| watched.failed.contains_key(uuid);
    match replica.stage {
        Stage::Restarting | Stage::Replacing | Stage::Begun => true,
        Stage::Reserved | Stage::Undoing | Stage::Stopping | Stage::Kept => false,
        Stage::Started => {
            watched.now < replaced.begun().saturating_add(SETTLING_MAX)
                && !replica
                    .members
                    .iter()
                    .any(|held| matches!(&held.state, PromiseState::Settled(uuid) if has_failed(uuid)))
        }
    }
}
