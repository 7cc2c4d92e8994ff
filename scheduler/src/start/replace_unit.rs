//! What a job does about a unit that failed: its containers are started again, or removed and created again.

use std::sync::Arc;
use std::time::Duration;

use engine::EngineError;
use model::Text;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::audit::line::Action;
use crate::clock::Clock;
use crate::ledger::record::{Replica, Stage};
use crate::place::Placer;
use crate::place::request::Request;
use crate::replace::last_log::LOG_MAX;
use crate::replace::{Failed, Step};
use crate::start::attempt::Before;
use crate::start::container_body::order;
use crate::start::job::{JobOptions, StartJob};
use crate::start::progress::ProgressSender;
use crate::start::{PAUSE_MAX, PAUSE_MIN, STUCK_AFTER, Starter};

/// What was done about containers that failed, counted by action and outcome.
pub(crate) type HealthActions = Family<HealthAction, Counter>;

/// Something that was done about a container that failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct HealthAction {
    /// `restart` or `replace`.
    action: &'static str,
    /// `begun`; then `done`, or `failed` for each time that an engine refused or there was no room. What failed is tried again.
    outcome: &'static str,
}

impl Starter {
    /// The counters of what was done about containers that failed.
    pub(crate) fn actions(&self) -> &HealthActions {
        &self.actions
    }

    fn count_action(&self, action: &'static str, outcome: &'static str) {
        self.actions.get_or_create(&HealthAction { action, outcome }).inc();
    }

    /// Begins to start units of a placement again, or to replace them; `false` while something else is done with it.
    pub(crate) fn begin_replacing(self: &Arc<Self>, id: &Text, units: &[(&Failed, Step)], now: Duration) -> bool {
        let Ok(job) = self.claim(id) else { return false };
        let stages = self.placer.stages(id, now);
        // What changed meanwhile is looked at again.
        let same = units.iter().filter(|(unit, _)| stages.get(unit.at) == Some(&Stage::Started));
        for (unit, step) in same {
            let (stage, action, word) = match step {
                Step::Restart => (Stage::Restarting, Action::Restart, "started again"),
                Step::Replace => (Stage::Replacing, Action::Replace, "replaced"),
            };
            let times = unit.times + 1;
            info!(%id, unit = unit.at, why = %unit.why, times, "a container failed: its unit is {word}");
            self.count_action(if *step == Step::Restart { "restart" } else { "replace" }, "begun");
            self.placer.note_failure((id, unit.at), stage, &unit.why, unit.well, now);
            self.placer.audit_failure((id, unit.at), action, &unit.why, now);
        }
        self.spawn(job.run(None, JobOptions::default()));
        true
    }

    /// What promises for this.
    pub(crate) fn placer(&self) -> &Placer {
        &self.placer
    }

    /// The clock of promises.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }
}

impl StartJob {
    /// Stops the containers of a unit and starts them again; whether that was done. What fails is tried again at a later look.
    pub(super) async fn restart(
        &self,
        (request, replica): (&Request, &Replica),
        at: usize,
        progress: &ProgressSender,
    ) -> bool {
        if !self.persist_and_own().await {
            return false;
        }
        let restarted = self.restart_containers(request, replica, progress).await;
        self.starter.wait_for(replica, None);
        match restarted {
            // Gone meanwhile: the next look finds that out.
            Ok(()) | Err(EngineError::Absent(_)) => {
                self.starter.count_action("restart", "done");
                self.starter.placer.reached(&self.id, at, Stage::Started, &[], self.starter.clock.now());
                self.persist_and_own().await
            }
            Err(error) => {
                self.starter.count_action("restart", "failed");
                warn!(id = %self.id, host = %replica.host_name, %error, "not started again yet");
                self.starter.wait_for_engine(replica, &error);
                false
            }
        }
    }

    async fn restart_containers(
        &self,
        request: &Request,
        replica: &Replica,
        progress: &ProgressSender,
    ) -> Result<(), EngineError> {
        self.stop_containers(replica, None, progress).await?;
        let (docker, _) = self.docker(&replica.host, false)?;
        for at in order(request) {
            if let Some(container) = &replica.members[at].container {
                docker.start(container).await?;
                // What was learned before says that it is stopped.
                self.starter.learn(container, docker.find(container).await?.life);
            }
        }
        Ok(())
    }

    /// Removes the containers of a unit and finds it a new place; `false` if there is none yet.
    pub(super) async fn replace(&self, at: usize, replica: &Replica, progress: &ProgressSender) -> bool {
        if !self.persist_and_own().await {
            return false;
        }
        let (placer, clock) = (&self.starter.placer, self.starter.clock);
        if replica.stands() {
            self.store_logs(replica).await;
            if !self.undo(replica, Before::default(), None, progress).await {
                return false;
            }
            placer.vacate(&self.id, at, clock.now());
            if !self.persist_and_own().await {
                return false;
            }
            self.until_gone(replica).await;
        } else if replica.replaced.as_ref().is_some_and(|replaced| clock.now() < replaced.not_before()) {
            return false;
        }
        if self.give_up.is_cancelled() {
            return false;
        }
        let found = self.moved(at, || placer.settle_failed(&self.id, at, &self.brought, clock.now())).await;
        self.starter.count_action("replace", if found { "done" } else { "failed" });
        if !found {
            self.starter.wait_for(replica, Some("waits for a host with room"));
        }
        found
    }

    /// Waits until the cluster does not show the containers of a unit any more, but not for ever.
    async fn until_gone(&self, replica: &Replica) {
        let begun = Instant::now();
        let mut pause = PAUSE_MIN;
        let is_shown = || {
            let inventory = self.starter.placer.inventory();
            replica.members.iter().any(|held| !inventory.placed(&held.name).is_empty())
        };
        while is_shown() && begun.elapsed() < STUCK_AFTER {
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Stores the ends of the logs of a unit's containers, as far as they can be had.
    async fn store_logs(&self, replica: &Replica) {
        let Some(logs) = &self.starter.access.last_logs else { return };
        let Ok((docker, _)) = self.docker(&replica.host, false) else { return };
        for held in &replica.members {
            let Some(container) = &held.container else { continue };
            let why = replica.replaced.as_ref().map(|replaced| replaced.why.clone()).unwrap_or_default();
            let mut log = format!("# {} on {}, replaced: {why}\n", held.name, replica.host_name).into_bytes();
            log.extend(docker.log(container, LOG_MAX).await);
            match logs.store(&held.name, &log) {
                Ok(path) => info!(container = %held.name, log = %path.display(), "the end of its log is stored"),
                Err(error) => warn!(container = %held.name, %error, "its log could not be stored"),
            }
        }
    }

    /// Gives up the place of a unit that could not be started there: one that is being replaced waits for another one.
    pub(super) fn lose_place(&self, at: usize) {
        let (placer, now) = (&self.starter.placer, self.starter.clock.now());
        placer.wait_for_place(&self.id, at, now);
        placer.abandon(&self.id, at, now);
    }
}
