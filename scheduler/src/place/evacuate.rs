//! Evacuating a host that is gone for good, and draining one that is there: which units of it get a place elsewhere, and which stay
//! and why.
//!
//! The plan is made by what also places, in a copy of the book in which the units before have moved. Nothing is moved here.

use std::time::Duration;

use model::{Map, Text, Value};
use serde::Serialize;
use stacks::Stage as ServiceStage;

use crate::ledger::book::Book;
use crate::ledger::record::{Record, Replica, Stage};
use crate::ledger::stack::StackUnit;
use crate::place::Placer;
use crate::place::answer::{HostName, failure};
use crate::place::filter::check::Check;
use crate::place::refusal::Refusal;
use crate::place::request::Request;
use crate::place::request::volume::named_volume;
use crate::stack::world::is_gone;
use crate::start::credentials::RequestCredentials;

/// Most units of one evacuation: each costs a pass over the hosts.
const UNITS_MAX: usize = 20_000;

/// A unit that is to take another's place, and has failed so often, is not waited for.
const FAILURES_MAX: u32 = 2;

/// Reasons for which units stay on a host, whether it is gone or drained.
const KEPT: &str = "it is stopped, and kept where it is";
const NAMED_VOLUME: &str = "it has a volume with a name, whose contents are on the host";

/// What an evacuation does.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Evacuation {
    /// The host.
    pub(crate) host: HostName,
    /// Units that get another place.
    pub(crate) moved: Vec<LeavingUnit>,
    /// Units that stay, and why.
    pub(crate) stays: Vec<StayingUnit>,
    /// Whether it was begun, or only planned.
    pub(crate) begun: bool,
}

/// A unit that gets another place.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LeavingUnit {
    /// The id of the placement.
    pub(crate) id: Text,
    /// Which of its units it is.
    pub(crate) unit: usize,
    /// The names of its containers.
    pub(crate) containers: Vec<Text>,
    /// The host on which it would be now.
    pub(crate) to: HostName,
}

/// A unit that stays.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StayingUnit {
    /// The id of the placement.
    pub(crate) id: Text,
    /// Which of its units it is.
    pub(crate) unit: usize,
    /// The names of its containers.
    pub(crate) containers: Vec<Text>,
    /// Why.
    pub(crate) why: String,
    /// Whether it ends by itself, so that its end can be waited for.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) ends: bool,
}

/// Why a unit stays.
struct Stay {
    why: String,
    ends: bool,
}

impl From<String> for Stay {
    fn from(why: String) -> Self {
        Self { why, ends: false }
    }
}

impl Stay {
    /// One that ends by itself, for this reason.
    fn until_its_end(why: &str) -> Self {
        Self { why: format!("it ends: {why}"), ends: true }
    }
}

impl Placer {
    /// Plans the evacuation of a host, by its name or uuid, that is gone.
    ///
    /// # Errors
    ///
    /// Fails if the host is there, if nothing is known of it, or if what is known may be old.
    pub(crate) fn plan_evacuation(&self, word: &str, now: Duration) -> Result<Evacuation, Refusal> {
        if let Some(why) = self.outdated() {
            return Err(Refusal::Away(why.into()));
        }
        // The ledger is free again before the long work begins.
        let mut book = self.with(now, |book| Ok(book.scratch()))?;
        let inventory = book.inventory().clone();
        let is_named = |replica: &Replica| *replica.host_name == *word || *replica.host == *word;
        let (mut units, mut host, mut is_there) = (Vec::new(), None, inventory.hosts().find(word).is_some());
        for (id, record) in book.records() {
            for (at, replica) in record.replicas.iter().enumerate().filter(|(_, replica)| is_named(replica)) {
                if !replica.stands() {
                    continue;
                }
                if !is_gone(&inventory, &replica.host) {
                    is_there = true;
                    continue;
                }
                host.get_or_insert_with(|| HostName { uuid: replica.host.clone(), name: replica.host_name.clone() });
                units.push((id.clone(), at, why_stays(record, replica).map(Stay::from)));
            }
        }
        if is_there && units.is_empty() {
            return Err(Refusal::Taken(format!(
                "host {word} is there: only a host that is gone for good is evacuated like this (`agent drain` empties one that is \
                 there)"
            )));
        }
        if units.len() > UNITS_MAX {
            return Err(Refusal::DoesNotFit(format!("more than {UNITS_MAX} units are on {word}")));
        }
        let host = host.unwrap_or_else(|| HostName { uuid: Text::default(), name: word.into() });
        Ok(self.plan_units(&mut book, host, units, None, now))
    }

    /// Plans what stacks move from a host, by its name or uuid, that is to be drained; empty if it is not there.
    ///
    /// # Errors
    ///
    /// Fails if nothing is known of any host yet, or what is known may be old.
    pub(crate) fn plan_drain(&self, word: &str, now: Duration) -> Result<Evacuation, Refusal> {
        if let Some(why) = self.outdated() {
            return Err(Refusal::Away(why.into()));
        }
        let mut book = self.with(now, |book| Ok(book.scratch()))?;
        let inventory = book.inventory().clone();
        let drained = inventory.hosts().find(word);
        let host = drained.map(|found| inventory.hosts().facts(found)).map_or_else(
            || HostName { uuid: Text::default(), name: word.into() },
            |facts| HostName { uuid: facts.uuid.clone(), name: facts.name.clone() },
        );
        let mut units = Vec::new();
        for (id, record) in book.records() {
            // Of a job that is done nothing runs, here or elsewhere.
            let is_done = record.unit.as_ref().is_some_and(|unit| unit.done);
            let there = |replica: &&Replica| replica.host == host.uuid && replica.stands() && !is_done;
            let there = record.replicas.iter().enumerate().filter(|(_, replica)| there(replica));
            units.extend(there.map(|(at, replica)| (id.clone(), at, why_not_drained(&book, record, replica))));
        }
        if units.len() > UNITS_MAX {
            return Err(Refusal::DoesNotFit(format!("more than {UNITS_MAX} units are on {word}")));
        }
        Ok(self.plan_units(&mut book, host, units, drained, now))
    }

    /// Finds units of a host other places, one after the other, but for those that stay for a reason of their own; none on a host that
    /// is to be drained.
    fn plan_units(
        &self,
        book: &mut Book,
        host: HostName,
        units: Vec<(Text, usize, Option<Stay>)>,
        drained: Option<u32>,
        now: Duration,
    ) -> Evacuation {
        let inventory = book.inventory().clone();
        let mut plan = Evacuation { host, moved: Vec::new(), stays: Vec::new(), begun: false };
        for (id, unit, stays) in units {
            let Some((request, replica)) = self.unit(&id, unit, &RequestCredentials::default(), now) else { continue };
            let containers: Vec<Text> = replica.members.iter().map(|held| held.name.clone()).collect();
            let found = if let Some(why) = stays.or_else(|| Some(bound(&request, &host_of(&replica))?.into())) {
                Err(why)
            } else {
                book.vacate(&id, unit);
                let mut need = self.need(&request, &inventory, &containers, &[]);
                need.checks.extend(drained.map(Check::Undrained));
                let found = self.find_again(book, &request, &need, &replica.host, &containers);
                found.ok_or_else(|| Stay::from(failure(1, 0, Some(&self.why_not(book, &request, &need)))))
            };
            match found {
                Ok(next) => plan.moved.push(LeavingUnit { id, unit, containers, to: host_of(&next) }),
                Err(Stay { why, ends }) => plan.stays.push(StayingUnit { id, unit, containers, why, ends }),
            }
        }
        plan
    }

    /// Gives up the place of a unit on a host that is gone for good; `false` if it is not there, or at work, or the host is back.
    pub(crate) fn leave_behind(&self, id: &str, at: usize, why: &str, now: Duration) -> bool {
        self.with_any(now, |book| {
            let is_lost = book.replica(id, at).is_some_and(|replica| is_gone(book.inventory(), &replica.host));
            is_lost && book.leave_behind(id, at, why, now)
        })
    }

    /// Whether a host by this name or uuid is there.
    pub(crate) fn is_there(&self, host: &str) -> bool {
        let inventory = self.inventory();
        let found = inventory.hosts().find(host);
        found.is_some_and(|found| !is_gone(&inventory, &inventory.hosts().facts(found).uuid))
    }
}

fn host_of(replica: &Replica) -> HostName {
    HostName { uuid: replica.host.clone(), name: replica.host_name.clone() }
}

/// Why a unit is left where it is, whatever room there is.
fn why_stays(record: &Record, replica: &Replica) -> Option<String> {
    if let Some(unit) = &record.unit {
        return Some(format!("it is one of stack {}, which follows its own dead_after", unit.stack));
    }
    match replica.stage {
        Stage::Started | Stage::Restarting | Stage::Replacing => {}
        Stage::Reserved => return Some("its client has started it, and no scheduler".to_owned()),
        Stage::Begun | Stage::Undoing | Stage::Stopping => {
            return Some("it is being started or removed: `scheduler rm --force` gives it up".to_owned());
        }
        Stage::Kept => return Some(KEPT.to_owned()),
    }
    has_named_volume(&record.asked).then(|| NAMED_VOLUME.to_owned())
}

/// Why a unit is not moved from a host that is drained, whatever room there is.
fn why_not_drained(book: &Book, record: &Record, replica: &Replica) -> Option<Stay> {
    let Some(unit) = &record.unit else { return Some("no stack has it".to_owned().into()) };
    let Some(stack) = book.stack(&unit.stack).map(|record| &record.stack) else {
        return Some(format!("stack {} is not in the ledger any more", unit.stack).into());
    };
    if stack.removing {
        return Some(Stay::until_its_end(&format!("stack {} is being removed", stack.name)));
    }
    if unit.evicted {
        return Some(Stay::until_its_end("another one has taken its place"));
    }
    if replica.stage == Stage::Kept {
        return Some(KEPT.to_owned().into());
    }
    if stack.paused {
        return Some(format!("its stack is paused: `scheduler resume {}` goes on", stack.name).into());
    }
    let Some(rollout) = stack.services.iter().find(|rollout| rollout.wanted.name == unit.service) else {
        return Some(
            format!("stack {} does not have its service: `scheduler up --prune` removes it", stack.name).into(),
        );
    };
    if let ServiceStage::Stuck(why) = &rollout.stage {
        return Some(format!("its service is stuck: {why}").into());
    }
    if rollout.wanted.global {
        return Some(Stay::until_its_end("one is to run on each host, and this one is its host's"));
    }
    if rollout.wanted.job {
        return Some(Stay::until_its_end("it runs once, and that is waited for"));
    }
    has_named_volume(&record.asked)
        .then(|| NAMED_VOLUME.to_owned())
        .or_else(|| why_not_yet(book, unit, replica))
        .map(Stay::from)
}

/// Why no other unit has taken the place of this one yet.
fn why_not_yet(book: &Book, unit: &StackUnit, replica: &Replica) -> Option<String> {
    book.units_of_stack(&unit.stack).find_map(|(id, record)| {
        let (own, next) = (record.unit.as_ref()?, record.replicas.first()?);
        let is_next = (&own.service, &own.index, &own.digest) == (&unit.service, &unit.index, &unit.digest);
        let failed = next.replaced.as_ref().filter(|replaced| replaced.times >= FAILURES_MAX)?;
        (is_next && next.host != replica.host && next.stands()).then(|| {
            format!(
                "{id}, which is to take its place, has failed {} times: {}; it is tried again",
                failed.times, failed.why
            )
        })
    })
}

/// Why a request can be fulfilled on this host only.
fn bound(request: &Request, host: &HostName) -> Option<String> {
    if request.global {
        return Some("one is to run on each host".to_owned());
    }
    request.requested_host.as_ref().map(|_| format!("its request names {}", host.name))
}

/// Whether a request, or a sidekick of it, has a volume with a name.
fn has_named_volume(asked: &Map) -> bool {
    let sidekicks = asked.get("sidekicks").and_then(Value::as_list).into_iter().flatten().filter_map(Value::as_map);
    let volumes = std::iter::once(asked).chain(sidekicks);
    let mut volumes = volumes.filter_map(|map| map.get("volumes")?.as_list()).flatten().filter_map(Value::as_text);
    volumes.any(|volume| named_volume(volume).is_some())
}
