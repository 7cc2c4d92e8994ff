//! Evacuating a host that is gone for good: which units of it get a place elsewhere, and which stay and why.
//!
//! The plan is made by what also places, in a copy of the book in which the units before have moved. Nothing is moved here.

use std::time::Duration;

use model::{Map, Text, Value};
use serde::Serialize;

use crate::clock::Clock;
use crate::ledger::record::{Record, Replica, Stage, evacuation_id};
use crate::place::Placer;
use crate::place::answer::{HostName, failure};
use crate::place::refusal::Refusal;
use crate::place::request::Request;
use crate::place::request::volume::named_volume;
use crate::stack::world::is_gone;
use crate::start::credentials::RequestCredentials;
use crate::subject::Subject;

/// Most units of one evacuation: each costs a pass over the hosts.
const UNITS_MAX: usize = 20_000;

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
                units.push((id.clone(), at, why_stays(record, replica)));
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
        let mut plan = Evacuation { host, moved: Vec::new(), stays: Vec::new(), begun: false };
        for (id, unit, stays) in units {
            let Some((request, replica)) = self.unit(&id, unit, &RequestCredentials::default(), now) else { continue };
            let containers: Vec<Text> = replica.members.iter().map(|held| held.name.clone()).collect();
            let found = if let Some(why) = stays.or_else(|| bound(&request, &host_of(&replica))) {
                Err(why)
            } else {
                book.vacate(&id, unit);
                let need = self.need(&request, &inventory, &containers, &[]);
                let found = self.find_again(&mut book, &request, &need, &replica.host, &containers);
                found.ok_or_else(|| failure(1, 0, Some(&self.why_not(&book, &request, &need))))
            };
            match found {
                Ok(next) => plan.moved.push(LeavingUnit { id, unit, containers, to: host_of(&next) }),
                Err(why) => plan.stays.push(StayingUnit { id, unit, containers, why }),
            }
        }
        Ok(plan)
    }

    /// Gives up the place of a unit on a host that is gone for good; `false` if it is not there, or at work, or the host is back.
    pub(crate) fn leave_behind(&self, id: &str, at: usize, why: &str, now: Duration) -> bool {
        self.with_any(now, |book| {
            let is_lost = book.replica(id, at).is_some_and(|replica| is_gone(book.inventory(), &replica.host));
            is_lost && book.leave_behind(id, at, why, now)
        })
    }

    /// Stores that a host is to be evacuated, so that this goes on whichever scheduler ends.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be stored.
    pub(crate) async fn store_evacuation(&self, host: &str, subject: &Subject, clock: Clock) -> Result<(), Refusal> {
        let id = evacuation_id(host);
        let is_new = self.with_any(clock.now(), |book| {
            let is_new = book.record(&id).is_none();
            if is_new {
                book.enter(id.clone(), Record::of_evacuation(host.into(), subject.clone(), clock.now()));
            }
            is_new
        });
        let stored = self.settled(&id).await;
        match &stored {
            // It may be stored yet, so it stands.
            Ok(()) | Err(Refusal::Unsettled(_)) => {}
            Err(_) if is_new => drop(self.with_any(clock.now(), |book| book.release(&id))),
            Err(_) => {}
        }
        stored
    }

    /// Deletes an evacuation of which nothing is left to do.
    ///
    /// # Errors
    ///
    /// Fails if that cannot be stored.
    pub(crate) async fn end_evacuation(&self, id: &Text, clock: Clock) -> Result<(), Refusal> {
        self.with_any(clock.now(), |book| book.release(id));
        self.settled(id).await
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
        Stage::Kept => return Some("it is stopped, and kept where it is".to_owned()),
    }
    has_named_volume(&record.asked).then(|| "it has a volume with a name, whose contents are on the host".to_owned())
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
