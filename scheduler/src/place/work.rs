//! What the starter asks of the placer: which units are to be started or removed, where, and how far it got.

use std::collections::BTreeMap;
use std::time::Duration;

use model::Text;

use crate::ledger::record::{Replica, Stage};
use crate::place::answer::{FailedStart, HostName, Placement, answer_of};
use crate::place::hosts::Facts;
use crate::place::refusal::Refusal;
use crate::place::request::Request;
use crate::place::{Placer, begun, count};
use crate::start::credentials::RequestCredentials;

/// A unit that an engine runs.
pub(crate) struct StartedUnit {
    /// The id of the placement.
    pub(crate) id: Text,
    pub(crate) at: usize,
    /// The engine's ids of its containers.
    pub(crate) containers: Vec<Text>,
    /// Whether it is this scheduler's.
    pub(crate) ours: bool,
}

impl Placer {
    /// The units of a placement on which the scheduler still works.
    pub(crate) fn units_at_work(&self, id: &str, now: Duration) -> Vec<usize> {
        self.with_any(now, |book| {
            let own = book.record(id).filter(|_| !book.is_foreign(id) && !book.is_pending(id));
            let replicas = own.map_or(&[][..], |record| &record.replicas);
            replicas.iter().enumerate().filter(|(_, replica)| replica.is_at_work()).map(|(at, _)| at).collect()
        })
    }

    /// The placements on which the scheduler still works.
    pub(crate) fn at_work(&self, now: Duration) -> Vec<Text> {
        self.with_any(now, |book| {
            let own = |id: &Text| !book.is_foreign(id) && !book.is_pending(id);
            book.records().filter(|(id, record)| record.is_at_work() && own(id)).map(|(id, _)| id.clone()).collect()
        })
    }

    /// A unit of a placement, and the request it belongs to; `brought` are the credentials that came with it.
    pub(crate) fn unit(
        &self,
        id: &str,
        at: usize,
        brought: &RequestCredentials,
        now: Duration,
    ) -> Option<(Request, Replica)> {
        let (asked, subject, unit, replica) = self.with_any(now, |book| {
            let record = book.record(id)?;
            let unit = record.unit.clone();
            Some((record.asked.clone(), record.subject.clone(), unit, record.replicas.get(at)?.clone()))
        })?;
        // It was read before, by this very function.
        let mut request = Request::parse(&asked.into()).ok()?;
        (request.subject, request.unit) = (subject, unit);
        self.platforms.fill(&mut request, brought);
        Some((request, replica))
    }

    /// The units that engines run, by host: those of this scheduler, or of all.
    pub(crate) fn started(&self, all: bool, now: Duration) -> BTreeMap<Text, Vec<StartedUnit>> {
        self.with_any(now, |book| {
            let mut by_host: BTreeMap<Text, Vec<_>> = BTreeMap::new();
            for (id, record) in book.records().filter(|(_, record)| !record.is_done()) {
                let ours = !book.is_foreign(id);
                let started = record
                    .replicas
                    .iter()
                    .enumerate()
                    .filter(|(_, replica)| matches!(replica.stage, Stage::Started | Stage::Kept));
                for (at, replica) in started.filter(|_| ours || all) {
                    let containers = replica.members.iter().filter_map(|held| held.container.clone()).collect();
                    let unit = StartedUnit { id: id.clone(), at, containers, ours };
                    by_host.entry(replica.host.clone()).or_default().push(unit);
                }
            }
            by_host
        })
    }

    /// The containers that engines were asked to run for a placement, with their hosts.
    pub(crate) fn containers_of(&self, id: &str, now: Duration) -> Vec<(Text, Text)> {
        self.with_any(now, |book| {
            let replicas = book.record(id).into_iter().flat_map(|record| &record.replicas);
            let held = replicas.flat_map(|replica| replica.members.iter().map(move |held| (replica, held)));
            held.filter_map(|(replica, held)| Some((replica.host.clone(), held.container.clone()?))).collect()
        })
    }

    /// The placement with this id as it is recorded; only the record shows what the scheduler started.
    pub(crate) fn recorded(&self, id: &str, now: Duration) -> Option<Placement> {
        self.with_any(now, |book| book.record(id).map(|record| answer_of(id.into(), record, true)))
    }

    /// Notes what the scheduler waits for with a unit, for the others.
    pub(crate) fn waits(&self, id: &str, replica: &Replica, what: &str, now: Duration) {
        self.with_any(now, |book| book.waits(id, replica, what, now));
    }

    /// Which other scheduler works on a placement, and what it waits for with the unit that has this container, or with
    /// any; `None` when no other one does.
    pub(crate) fn work_elsewhere(&self, id: &str, container: Option<&str>, now: Duration) -> Option<String> {
        self.with_any(now, |book| book.work_elsewhere(id, container, now))
    }

    /// Notes how far the scheduler got with a unit.
    pub(crate) fn reached(&self, id: &str, at: usize, stage: Stage, containers: &[Text], now: Duration) -> bool {
        self.with_any(now, |book| book.reached(id, at, stage, containers))
    }

    /// Puts a unit on another host than those where starting it failed; `false` when there is none.
    pub(crate) fn elsewhere(
        &self,
        id: &str,
        at: usize,
        tried: &[FailedStart],
        brought: &RequestCredentials,
        now: Duration,
    ) -> bool {
        self.unit(id, at, brought, now).is_some_and(|unit| self.settle_again(id, at, &unit, &[tried], now))
    }

    /// Puts a unit that failed on a host where it has not failed often, else on any; `false` when there is none.
    pub(crate) fn settle_failed(&self, id: &str, at: usize, brought: &RequestCredentials, now: Duration) -> bool {
        let Some(unit) = self.unit(id, at, brought, now) else { return false };
        let failed = unit.1.replaced.as_ref().map(|replaced| replaced.avoided(now)).unwrap_or_default();
        let failed: Vec<FailedStart> = failed
            .into_iter()
            .map(|uuid| FailedStart {
                host: HostName { name: uuid.clone(), uuid },
                container: Text::default(),
                error: "it failed there twice a short while ago".to_owned(),
            })
            .collect();
        self.settle_again(id, at, &unit, &[&failed, &[]], now)
    }

    /// Gives a unit a new place that is on none of the hosts of a choice, the first choice that there is one for.
    fn settle_again(
        &self,
        id: &str,
        at: usize,
        (request, replica): &(Request, Replica),
        choices: &[&[FailedStart]],
        now: Duration,
    ) -> bool {
        if !self.has_data() {
            return false;
        }
        let names: Vec<Text> = replica.members.iter().map(|held| held.name.clone()).collect();
        let found = self.with(now, |book| {
            book.vacate(id, at);
            let inventory = book.inventory().clone();
            let is_taken = names.iter().any(|name| book.owner_of(name).is_some());
            let next = choices.iter().filter(|_| !is_taken).find_map(|tried| {
                let need = self.need(request, &inventory, &names, tried);
                self.find_again(book, request, &need, &replica.host, &names)
            });
            if let Some(next) = &next {
                book.forget(next);
            }
            let found = next.is_some();
            book.settle_in(id, at, next.map(|next| begun(request, next)));
            Ok(found)
        });
        // There are hosts, or nothing could have been tried on one.
        found.unwrap_or(false)
    }

    /// Gives back the place of a unit whose containers are gone, and that is to have another one.
    pub(crate) fn vacate(&self, id: &str, at: usize, now: Duration) {
        self.with_any(now, |book| book.vacate(id, at));
    }

    /// Notes that a unit that was to be replaced has no place yet.
    pub(crate) fn wait_for_place(&self, id: &str, at: usize, now: Duration) {
        self.with_any(now, |book| {
            if book.replica(id, at).is_some_and(|replica| replica.replaced.is_some()) {
                book.reached(id, at, Stage::Replacing, &[]);
            }
        });
    }

    /// Notes that a unit is about to be started again or replaced, or that it could not be where it was tried.
    pub(crate) fn note_failure(&self, unit: (&str, usize), stage: Stage, why: &str, well: Duration, now: Duration) {
        self.with_any(now, |book| book.note_failure(unit, stage, why, well, now));
    }

    /// Gives up a unit: its containers are gone, and so is its promise.
    pub(crate) fn abandon(&self, id: &str, at: usize, now: Duration) {
        self.with_any(now, |book| {
            book.vacate(id, at);
            book.settle_in(id, at, None);
        });
    }

    /// Ends a unit whose containers its engine no longer has, unless it changed since.
    pub(crate) fn gone(&self, id: &str, at: usize, containers: &[Text], now: Duration) {
        self.with_any(now, |book| {
            let record = book.record(id).filter(|record| !record.is_done());
            let same = record.and_then(|record| record.replicas.get(at)).is_some_and(|replica| {
                let own = replica.members.iter().filter_map(|held| held.container.as_ref());
                matches!(replica.stage, Stage::Started | Stage::Kept) && own.eq(containers)
            });
            if same {
                book.vacate(id, at);
                book.settle_in(id, at, None);
            }
        });
    }

    /// Marks all that the scheduler started of a placement for removal; gives back at once what it did not.
    pub(crate) fn begin_release(&self, id: &str, now: Duration) -> Result<Placement, Refusal> {
        self.with(now, |book| {
            book.forget_done(id);
            let Some(record) = book.record(id) else { return Err(Refusal::Unknown(id.into())) };
            let ours = |replica: &Replica| replica.stage != Stage::Reserved;
            let at: Vec<usize> =
                record.replicas.iter().enumerate().filter(|(_, replica)| ours(replica)).map(|(at, _)| at).collect();
            let answer = Placement { state: "released", ..answer_of(id.into(), record, false) };
            if at.is_empty() {
                book.release(id);
            }
            for at in at {
                book.reached(id, at, Stage::Undoing, &[]);
            }
            Ok(answer)
        })
    }

    /// How far the scheduler got with each unit of a placement.
    pub(crate) fn stages(&self, id: &str, now: Duration) -> Vec<Stage> {
        self.with_any(now, |book| {
            let replicas = book.record(id).into_iter().flat_map(|record| &record.replicas);
            replicas.map(|replica| replica.stage).collect()
        })
    }

    /// Undoes [`Placer::begin_release`], which no response named: the units are as they were `before`.
    pub(crate) fn take_back_release(&self, id: &str, before: &[Stage], now: Duration) {
        self.with_any(now, |book| {
            for (at, stage) in before.iter().enumerate().filter(|(_, stage)| **stage != Stage::Reserved) {
                book.reached(id, at, *stage, &[]);
            }
        });
    }

    /// Where the engine of a host listens.
    pub(crate) fn endpoint(&self, host: &str) -> Result<(engine::Endpoint, bool), String> {
        let inventory = self.inventories.load_full();
        let host = inventory.hosts().index(host).ok_or("the cluster no longer has this host")?;
        let facts = inventory.hosts().facts(host);
        Ok((self.endpoints.of(facts)?, &*facts.system.os == "windows"))
    }

    /// Hosts whose engines can be asked and answer, at most `most`.
    pub(crate) fn with_engines(&self, most: usize) -> Vec<Text> {
        let inventory = self.inventories.load_full();
        let hosts = inventory.hosts();
        let facts = (0..count(hosts.len())).map(|host| hosts.facts(host));
        let answers = |facts: &&Facts| facts.refusal.is_none() && self.silent_engines.why(&facts.uuid).is_none();
        let reached = facts.filter(answers).filter(|facts| self.endpoints.of(facts).is_ok());
        reached.map(|facts| facts.uuid.clone()).take(most).collect()
    }
}
