//! A stack as clients see it.

use std::collections::BTreeMap;

use model::Text;
use serde::Serialize;
use stacks::{Phase, Rollout, Stack, Stage, State, Unit, World};

use crate::ledger::book::Book;
use crate::ledger::record::Record;
use crate::ledger::stack::StackRevision;
use crate::lock::lock;
use crate::place::answer::image_name;
use crate::place::refusal::Refusal;
use crate::stack::keeper::Seen;
use crate::stack::memory::{Images, StackMemory};
use crate::start::Starter;

/// A stack and its units.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StackView {
    pub(crate) name: Text,
    pub(crate) revision: u64,
    /// `updating`, `done`, `degraded`, `unconfirmed`, `rolled_back`, `stuck`, `paused`, `removing`, or `waiting` when nothing can be
    /// done.
    pub(crate) state: &'static str,
    /// Why it is in this state, or what it waits for, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) detail: String,
    /// Who asked for this revision, by token or certificate.
    pub(crate) subject: String,
    pub(crate) services: Vec<ServiceView>,
    /// Services that are not in the stack any more and have units.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) orphans: Vec<Text>,
    /// Why a revision is removed as a whole; empty if a person asked for that, or nothing is removed.
    #[serde(skip)]
    pub(crate) undone: Text,
    /// Whether nothing is to be waited for any more.
    #[serde(skip)]
    pub(crate) is_over: bool,
}

/// The states in which nothing is to be waited for.
const OVER: [&str; 6] = ["done", "degraded", "unconfirmed", "rolled_back", "stuck", "paused"];

/// A service and its units.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ServiceView {
    pub(crate) name: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<Text>,
    /// `updating`, `steady`, `unconfirmed`, `rolling_back`, `rolled_back` or `stuck`.
    pub(crate) stage: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<Text>,
    pub(crate) wanted: usize,
    /// How many units of the wanted revision are good.
    pub(crate) good: usize,
    /// What it waits for; empty when it is as it should be.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) waits: String,
    pub(crate) units: Vec<UnitView>,
}

/// A unit.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct UnitView {
    pub(crate) id: Text,
    pub(crate) index: Text,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) host: Text,
    /// `starting`, `healthy`, `unhealthy`, `failed`, `ended`, `done`, `kept`, `lost`, `evicted`, `returned` or `removing`.
    pub(crate) state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<Text>,
    /// The digest of its revision of the service.
    pub(crate) revision: Text,
    /// Whether that is the wanted one.
    pub(crate) is_wanted: bool,
}

/// A revision as it is listed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RevisionView {
    pub(crate) revision: u64,
    /// In ms since 1970.
    pub(crate) made: u64,
    pub(crate) subject: String,
    /// What has come of it; empty while that is open.
    pub(crate) outcome: Text,
    pub(crate) services: Vec<RevisionService>,
}

/// A service of a revision.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RevisionService {
    pub(crate) name: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<Text>,
    pub(crate) scale: u32,
    /// Its digest.
    pub(crate) revision: Text,
}

/// What a unit waits for that names do not lead to as long as etcd has a key of it.
const HIDDEN: &str =
    "waits until etcd's user of the scheduler may delete its key below evicted/: no name would lead to it";

/// What the ledger says of units, by their ids.
type Ledger = BTreeMap<Text, Entry>;

/// What the ledger says of a unit.
#[derive(Debug)]
struct Entry {
    /// The name of its host, also of one that the cluster does not list any more.
    host: Text,
    /// What its start or its end waits for.
    waits: Option<Text>,
}

impl Starter {
    /// A stack as clients see it.
    ///
    /// # Errors
    ///
    /// Fails if there is none of this name, and before the ledger and the cluster are known.
    pub(crate) fn view_stack(&self, name: &Text) -> Result<StackView, Refusal> {
        let seen = self.see_stack(name)?;
        let waits = lock(&self.waits).clone();
        let entry = |book: &Book, (id, record): (&Text, &Record)| {
            let replica = record.replicas.first()?;
            let own = replica.members.iter().find_map(|held| waits.get(&held.name));
            let waits = own.map(|what| Text::from(&**what));
            let waits = waits.or_else(|| replica.waits.as_ref().map(|waiting| waiting.what.clone()));
            let is_hidden = book.hidden().is_some_and(|hidden| hidden.contains(id));
            let waits = waits.or_else(|| is_hidden.then(|| HIDDEN.into()));
            Some((id.clone(), Entry { host: replica.host_name.clone(), waits }))
        };
        let ledger = self.placer().with_any(self.clock().now(), |book| {
            book.units_of_stack(name).filter_map(|unit| entry(book, unit)).collect()
        });
        Ok(self.with_stack(name, |memory| view(&seen, memory, &ledger)))
    }

    /// The revisions of a stack, the newest first.
    ///
    /// # Errors
    ///
    /// As [`Starter::view_stack`].
    pub(crate) fn history_of_stack(&self, name: &Text) -> Result<Vec<RevisionView>, Refusal> {
        let (record, _) = self.placer().stack(name, self.clock().now())?;
        Ok(record.history.iter().rev().map(revision_view).collect())
    }
}

fn revision_view(revision: &StackRevision) -> RevisionView {
    let service = |service: &stacks::Service| RevisionService {
        name: service.name.clone(),
        image: image_name(&service.request),
        scale: service.scale,
        revision: service.digest.clone(),
    };
    RevisionView {
        revision: revision.revision,
        made: revision.made,
        subject: revision.subject.to_string(),
        outcome: revision.outcome.clone(),
        services: revision.services.iter().map(service).collect(),
    }
}

fn view(seen: &Seen, memory: &StackMemory, ledger: &Ledger) -> StackView {
    let Seen { record, world, plan, .. } = seen;
    let stack = &record.stack;
    let services: Vec<ServiceView> = stack
        .services
        .iter()
        .zip(&plan.phases)
        .map(|(rollout, phase)| service_view(rollout, phase, world, memory, ledger))
        .collect();
    let (state, detail) = state_of(seen, memory, &services);
    let is_away = stack.removing && are_away(&world.units);
    StackView {
        name: stack.name.clone(),
        revision: stack.revision,
        state,
        detail,
        subject: record.subject().to_string(),
        services,
        orphans: plan.orphans.clone(),
        undone: record.undone().cloned().unwrap_or_default(),
        is_over: is_away || OVER.contains(&state),
    }
}

/// Whether there are units, and all of them are on hosts that are away.
fn are_away(units: &[Unit]) -> bool {
    !units.is_empty() && units.iter().all(|unit| unit.state == State::Evicted)
}

fn state_of(seen: &Seen, memory: &StackMemory, services: &[ServiceView]) -> (&'static str, String) {
    let stack = &seen.record.stack;
    let outcome = seen.record.history.last().map(|revision| revision.outcome.to_string()).unwrap_or_default();
    if stack.removing {
        let left = &seen.world.units;
        if stack.volumes && left.is_empty() && !memory.volumes_left.is_empty() {
            let why = memory.volumes_left.join("; ");
            return ("stuck", format!("{why}; `scheduler down {}` without --volumes leaves what is left", stack.name));
        }
        let detail = if are_away(left) {
            let ids: Vec<&str> = left.iter().take(3).map(|unit| &*unit.id).collect();
            let ids = ids.join(", ");
            format!("{ids} on hosts that are away: removed when those are back, or given up by `scheduler rm --force`")
        } else {
            format!("{} units left", left.len())
        };
        return ("removing", seen.record.undone().map_or_else(|| detail.clone(), |why| format!("{why}; {detail}")));
    }
    if let Some(why) = &memory.halted {
        return ("waiting", why.clone());
    }
    if stack.paused {
        return ("paused", "`scheduler resume` goes on".to_owned());
    }
    let stages = || stack.services.iter().map(|rollout| &rollout.stage);
    let is_at_work = !memory.in_flight.is_empty() || !seen.plan.is_empty();
    if stages().any(Stage::is_changing) {
        return ("updating", String::new());
    }
    if stages().any(|stage| matches!(stage, Stage::Stuck(_))) {
        return ("stuck", outcome);
    }
    let missing = services.iter().any(|service| service.good < service.wanted && !service.waits.is_empty());
    if is_at_work || missing {
        return ("updating", String::new());
    }
    if stages().any(|stage| matches!(stage, Stage::RolledBack(_))) {
        return ("rolled_back", outcome);
    }
    if stages().any(|stage| *stage == Stage::Unconfirmed) {
        return (
            "unconfirmed",
            "`scheduler confirm` removes the old units, `scheduler rollback` goes back to them".to_owned(),
        );
    }
    let down: Vec<String> = seen.world.units.iter().filter_map(|unit| why_down(unit, stack)).collect();
    if down.is_empty() { ("done", String::new()) } else { ("degraded", down.join("; ")) }
}

/// Why a unit that is wanted does not serve although nothing is to be done for it just now.
fn why_down(unit: &Unit, stack: &Stack) -> Option<String> {
    let rollout = stack.services.iter().find(|rollout| rollout.wanted.name == unit.service)?;
    let why = match unit.state {
        State::Unhealthy => "is not healthy".to_owned(),
        State::Failed(ref why) => format!("failed: {why}"),
        State::Lost(_) => match rollout.wanted.dead_after {
            _ if rollout.wanted.global => "is on a host that is gone".to_owned(),
            Some(seconds) => format!("is on a host that is gone, and runs elsewhere {seconds} s after that"),
            None => "is on a host that is gone, and waits for it".to_owned(),
        },
        _ => return None,
    };
    Some(format!("{} {why}", unit.id))
}

fn service_view(rollout: &Rollout, phase: &Phase, world: &World, memory: &StackMemory, ledger: &Ledger) -> ServiceView {
    let service = &rollout.wanted;
    let (stage, why) = match &rollout.stage {
        Stage::Updating => ("updating", None),
        Stage::Steady => ("steady", None),
        Stage::Unconfirmed => ("unconfirmed", None),
        Stage::RollingBack(why) => ("rolling_back", Some(why)),
        Stage::RolledBack(why) => ("rolled_back", Some(why)),
        Stage::Stuck(why) => ("stuck", Some(why)),
    };
    let mut waits = phase.waits.clone();
    let is_coming = memory.images.get(&(service.name.clone(), service.digest.clone())) == Some(&Images::Coming);
    if is_coming && stage == "updating" {
        waits = String::from("its images are being pulled");
    }
    let retry = memory.retries.iter().find(|((own, _), retry)| *own == service.name && retry.not_before > world.now);
    if let Some(((_, index), retry)) = retry {
        let seconds = retry.not_before.saturating_sub(world.now).as_secs();
        waits = format!("unit {index} is tried again in {seconds} s: {}", retry.why);
    }
    let own = world.units.iter().filter(|unit| unit.service == service.name);
    let mut units: Vec<UnitView> = own.map(|unit| unit_view(unit, service, ledger.get(&unit.id))).collect();
    units.sort_by_key(|unit| (unit.index.parse::<u32>().unwrap_or(u32::MAX), unit.index.clone(), unit.id.clone()));
    ServiceView {
        name: service.name.clone(),
        image: image_name(&service.request),
        stage,
        why: why.cloned(),
        wanted: phase.wanted,
        good: phase.good,
        waits,
        units,
    }
}

fn unit_view(unit: &Unit, service: &stacks::Service, entry: Option<&Entry>) -> UnitView {
    let waits = entry.and_then(|entry| entry.waits.as_ref());
    let (state, why) = match &unit.state {
        State::Starting => ("starting", waits),
        State::Healthy(_) => ("healthy", None),
        State::Unhealthy => ("unhealthy", None),
        State::Failed(why) => ("failed", Some(why)),
        State::Ended(why) => ("ended", Some(why)),
        State::Done => ("done", None),
        State::Kept => ("kept", None),
        State::Lost(_) => ("lost", None),
        State::Evicted => ("evicted", None),
        State::Returned => ("returned", None),
        State::Removing => ("removing", waits),
    };
    UnitView {
        id: unit.id.clone(),
        index: unit.index.clone(),
        host: entry.map(|entry| entry.host.clone()).unwrap_or_default(),
        state,
        why: why.cloned(),
        revision: unit.digest.clone(),
        is_wanted: unit.digest == service.digest,
    }
}
