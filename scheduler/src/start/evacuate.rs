//! Evacuating a host that is gone for good: its units are started elsewhere, and what is left of them there is removed should it
//! come back.
//!
//! The engine of the host is not asked. What was given up is in the ledger before another host is looked for, so that whichever
//! scheduler has the placement goes on, and knows the containers that are left behind.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::EngineError;
use model::Text;
use tracing::{info, warn};

use crate::audit::line::Action;
use crate::place::evacuate::{Evacuation, LeavingUnit, StayingUnit};
use crate::place::refusal::Refusal;
use crate::start::Starter;
use crate::start::docker::DockerEngine;
use crate::start::job::JobOptions;

impl Starter {
    /// Gives up the places of units on a host that is gone, and begins to start them elsewhere.
    ///
    /// # Cancel safety
    ///
    /// What was begun goes on when this is dropped, also after a crash.
    ///
    /// # Errors
    ///
    /// As [`crate::place::Placer::plan_evacuation`].
    pub(crate) async fn evacuate(self: &Arc<Self>, host: &str) -> Result<Evacuation, Refusal> {
        let mut plan = self.placer.plan_evacuation(host, self.clock.now())?;
        let mut by_id: BTreeMap<Text, Vec<LeavingUnit>> = BTreeMap::new();
        for unit in std::mem::take(&mut plan.moved) {
            by_id.entry(unit.id.clone()).or_default().push(unit);
        }
        let why = format!("its host {} is gone for good", plan.host.name);
        for (id, units) in by_id {
            match self.begin_evacuating(&id, &units, &why).await {
                Ok(()) => plan.moved.extend(units),
                Err(refusal) => {
                    plan.stays.extend(units.into_iter().map(|LeavingUnit { id, unit, containers, .. }| StayingUnit {
                        id,
                        unit,
                        containers,
                        why: refusal.to_string(),
                    }));
                }
            }
        }
        plan.begun = true;
        Ok(plan)
    }

    async fn begin_evacuating(self: &Arc<Self>, id: &Text, units: &[LeavingUnit], why: &str) -> Result<(), Refusal> {
        let job = self.claim_idle(id, &None).await?;
        let now = self.clock.now();
        for unit in units {
            if self.placer.leave_behind(id, unit.unit, why, now) {
                info!(%id, unit = unit.unit, %why, "its unit is started elsewhere");
                self.placer.audit_failure((id, unit.unit), Action::Replace, why, now);
            }
        }
        self.spawn(job.run(None, JobOptions::default()));
        // What is not certain yet is being written, and the job waits for it.
        match self.placer.settled(id).await {
            Ok(()) | Err(Refusal::Unsettled(_)) => Ok(()),
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
