//! Evacuating a host that is gone for good: its units are started elsewhere, and what is left of them there is removed should it
//! come back.
//!
//! The engine of the host is not asked. That a host is evacuated is in the ledger until all that can be moved has been begun, and
//! what was given up is there before another host is looked for: whichever scheduler has either goes on, and knows the containers
//! that are left behind. Nothing is done for a host that is back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::EngineError;
use model::Text;
use tracing::{info, warn};

use crate::audit::line::Action;
use crate::ledger::record::{Record, evacuation_id};
use crate::lock::lock;
use crate::place::evacuate::{Evacuation, LeavingUnit, StayingUnit};
use crate::place::refusal::Refusal;
use crate::start::Starter;
use crate::start::docker::DockerEngine;
use crate::start::job::{JobOptions, StartJob};
use crate::subject::Subject;

impl Starter {
    /// Gives up the places of units on a host that is gone for good, and begins to start them elsewhere. That this is wanted is in the
    /// ledger before.
    ///
    /// # Cancel safety
    ///
    /// What was begun goes on when this is dropped, also after a crash.
    ///
    /// # Errors
    ///
    /// As [`crate::place::Placer::plan_evacuation`], and if it cannot be stored.
    pub(crate) async fn evacuate(self: &Arc<Self>, host: &str, subject: &Subject) -> Result<Evacuation, Refusal> {
        let plan = self.placer.plan_evacuation(host, self.clock.now())?;
        if plan.moved.is_empty() {
            return Ok(Evacuation { begun: true, ..plan });
        }
        let job = self.claim_idle(&evacuation_id(host), &None).await?;
        self.store_evacuation(host, subject).await?;
        self.carry_out(&job, host).await
    }

    /// Plans what stacks move from a host that is to be drained. A unit stays for now if what was to take its place has failed.
    ///
    /// # Errors
    ///
    /// As [`crate::place::Placer::plan_drain`].
    pub(crate) fn plan_drain(&self, host: &str, now: Duration) -> Result<Evacuation, Refusal> {
        let mut plan = self.placer.plan_drain(host, now)?;
        let failed: BTreeMap<Text, String> = {
            let memory = lock(&self.stack_memory);
            let retries = memory.stacks.values().flat_map(|stack| stack.retries.values());
            retries.filter_map(|retry| Some((retry.instead_of.clone()?, retry.why.clone()))).collect()
        };
        for unit in plan.moved.extract_if(.., |unit| failed.contains_key(&unit.id)) {
            let why = format!("{}; it is tried again", failed[&unit.id]);
            plan.stays.push(StayingUnit {
                id: unit.id,
                unit: unit.unit,
                containers: unit.containers,
                why,
                ends: false,
            });
        }
        Ok(plan)
    }

    /// Goes on with evacuations that are stored and on which nothing works: this scheduler began them before it ended, or another
    /// one did that ended, or something did not answer.
    pub(crate) fn resume_evacuations(self: &Arc<Self>) {
        for (id, host, subject) in self.placer.with_any(self.clock.now(), |book| book.evacuations()) {
            let Ok(job) = self.claim(&id) else { continue };
            let starter = self.clone();
            self.spawn(async move {
                let is_wanted = if starter.placer.is_there(&host) {
                    Err(Refusal::Taken(format!("host {host} is back")))
                } else {
                    starter.placer.permit_everything(&subject)
                };
                let outcome = match is_wanted {
                    Ok(()) => starter.carry_out(&job, &host).await,
                    Err(refusal) => starter.end_evacuation(&id).await.and(Err(refusal)),
                };
                match outcome {
                    Ok(plan) => info!(%host, moved = plan.moved.len(), "went on with its evacuation"),
                    Err(why) => warn!(%host, %why, "its evacuation does not go on"),
                }
            });
        }
    }

    /// Stores that a host is to be evacuated.
    pub(super) async fn store_evacuation(&self, host: &str, subject: &Subject) -> Result<(), Refusal> {
        let (id, now) = (evacuation_id(host), self.clock.now());
        let is_new = self.placer.with_any(now, |book| {
            let is_new = book.record(&id).is_none();
            if is_new {
                book.enter(id.clone(), Record::of_evacuation(host.into(), subject.clone(), now));
            }
            is_new
        });
        let stored = self.placer.settled(&id).await;
        // Of what is unsettled it is not known whether it is stored: it stands.
        if is_new && !matches!(stored, Ok(()) | Err(Refusal::Unsettled(_))) {
            self.placer.with_any(now, |book| book.release(&id));
        }
        stored
    }

    /// Deletes an evacuation of which nothing is left to do.
    async fn end_evacuation(&self, id: &Text) -> Result<(), Refusal> {
        self.placer.with_any(self.clock.now(), |book| book.release(id));
        self.placer.settled(id).await
    }

    /// Gives up the places of units as an evacuation that is stored says, which ends if all that can be moved was begun.
    async fn carry_out(self: &Arc<Self>, job: &StartJob, host: &str) -> Result<Evacuation, Refusal> {
        let plan = match self.placer.plan_evacuation(host, self.clock.now()) {
            Ok(plan) => self.give_up_places(plan).await,
            Err(refusal) => Err(refusal),
        };
        let is_open = match &plan {
            Ok((_, is_open)) => *is_open,
            Err(refusal) => may_pass(refusal),
        };
        if !is_open && let Err(why) = self.end_evacuation(&job.id).await {
            warn!(%host, %why, "that its evacuation is done is not stored yet");
        }
        plan.map(|(plan, _)| plan)
    }

    /// Does what a plan says; also whether something of it may be possible later.
    async fn give_up_places(self: &Arc<Self>, mut plan: Evacuation) -> Result<(Evacuation, bool), Refusal> {
        let mut by_id: BTreeMap<Text, Vec<LeavingUnit>> = BTreeMap::new();
        for unit in std::mem::take(&mut plan.moved) {
            by_id.entry(unit.id.clone()).or_default().push(unit);
        }
        let why = format!("its host {} is gone for good", plan.host.name);
        let mut is_open = false;
        for (id, units) in by_id {
            match self.begin_evacuating(&id, &units, &why).await {
                Ok(()) => plan.moved.extend(units),
                Err(refusal) => {
                    is_open |= may_pass(&refusal);
                    plan.stays.extend(units.into_iter().map(|LeavingUnit { id, unit, containers, .. }| StayingUnit {
                        id,
                        unit,
                        containers,
                        why: refusal.to_string(),
                        ends: false,
                    }));
                }
            }
        }
        plan.begun = true;
        Ok((plan, is_open))
    }

    async fn begin_evacuating(self: &Arc<Self>, id: &Text, units: &[LeavingUnit], why: &str) -> Result<(), Refusal> {
        let job = self.claim_idle(id, &None).await?;
        let now = self.clock.now();
        let mut all = true;
        for unit in units {
            if self.placer.leave_behind(id, unit.unit, why, now) {
                info!(%id, unit = unit.unit, %why, "its unit is started elsewhere");
                self.placer.audit_failure((id, unit.unit), Action::Replace, why, now);
            } else {
                all = false;
            }
        }
        self.spawn(job.run(None, JobOptions::default()));
        // What is not certain yet is being written, and the job waits for it.
        match self.placer.settled(id).await {
            Ok(()) | Err(Refusal::Unsettled(_)) if all => Ok(()),
            Ok(()) | Err(Refusal::Unsettled(_)) => {
                Err(Refusal::Taken("its host is back, or something else is done with it".to_owned()))
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Removes what was left behind on a host that is back.
    pub(super) fn remove_left(self: &Arc<Self>, host: &Text, docker: &Arc<DockerEngine>) {
        let left = self.placer.with_any(self.clock.now(), |book| book.left_on(host));
        let mut by_id: BTreeMap<Text, Vec<(usize, Text)>> = BTreeMap::new();
        for (id, at, container) in left {
            by_id.entry(id).or_default().push((at, container));
        }
        for (id, containers) in by_id {
            // At the next look, if something else is done with it.
            let Ok(job) = self.claim(&id) else { continue };
            let (starter, host, docker) = (self.clone(), host.clone(), docker.clone());
            self.tasks.spawn(async move {
                for (at, container) in containers {
                    match starter.remove_one_left(&docker, &container).await {
                        Ok(()) => {
                            info!(%id, %host, %container, "removed: another one has taken its place, and its host is back");
                            let now = starter.clock.now();
                            starter.placer.with_any(now, |book| book.left_is_gone(&id, at, &host, &container));
                        }
                        Err(error) => warn!(%id, %host, %container, %error, "what was left behind is not removed yet"),
                    }
                }
                drop(job);
            });
        }
    }

    async fn remove_one_left(&self, docker: &DockerEngine, container: &Text) -> Result<(), EngineError> {
        let docker = match self.placer.ledger().store().shared().cloned() {
            Some(shared) => docker.guarded(move || shared.holds_lease()),
            None => docker.clone(),
        };
        match docker.find(container).await {
            Err(EngineError::Absent(_)) => Ok(()),
            Err(error) => Err(error),
            Ok(found) => {
                docker.stop(&found, None).await?;
                docker.remove(&found.id).await
            }
        }
    }
}

/// Whether the same may be possible later.
fn may_pass(refusal: &Refusal) -> bool {
    !matches!(refusal, Refusal::Taken(_) | Refusal::Unknown(_) | Refusal::DoesNotFit(_) | Refusal::Invalid(_))
}
