//! Units that are stopped and kept, started again, or removed: what an update, a rollback and an evacuation are made of.
//!
//! The order makes it safe, as for a start: what is to be done is in the ledger before an engine is asked, and whichever
//! scheduler has the placement after a crash goes on with it. A unit that is being stopped has its room until its
//! containers have ended; a kept one has none, and takes it again before its containers are started.

use std::sync::Arc;
use std::time::Duration;

use engine::EngineError;
use model::Text;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::ledger::draft::{CommitError, TakeOver};
use crate::ledger::record::{Replica, Stage};
use crate::ledger::store::PersistError;
use crate::place::refusal::Refusal;
use crate::start::job::{JobOptions, StartJob, finished};
use crate::start::progress::ProgressSender;
use crate::start::{PAUSE_MAX, PAUSE_MIN, STUCK_AFTER, Starter};

/// How often room is taken again because other schedulers promised some on the same host at the same time: as for a new
/// promise.
const TRIES: u32 = 32;

impl Starter {
    /// Stops units of a placement and keeps their containers, so that [`Starter::start_kept`] can start the same ones
    /// again. They have `grace` to end, or their own when it is `None`. Units that are kept already stay so.
    ///
    /// # Cancel safety
    ///
    /// What was begun goes on when this is dropped, also after a crash.
    ///
    /// # Errors
    ///
    /// [`Refusal::Unknown`] if there is no such unit that is started, [`Refusal::Unsettled`] while an engine does not
    /// answer, and if the ledger cannot be written.
    pub(crate) async fn stop_units(
        self: &Arc<Self>,
        id: &Text,
        units: &[usize],
        grace: Option<Duration>,
        progress: ProgressSender,
    ) -> Result<(), Refusal> {
        self.take_through((id, units), (Stage::Stopping, Stage::Kept), grace, progress).await
    }

    /// Starts the containers of kept units again: the same ones, on the same hosts.
    ///
    /// # Cancel safety
    ///
    /// As [`Starter::stop_units`].
    ///
    /// # Errors
    ///
    /// [`Refusal::DoesNotFit`] with what has the room or the ports of one now: none of them is started then. Otherwise
    /// as [`Starter::stop_units`].
    pub(crate) async fn start_kept(
        self: &Arc<Self>,
        id: &Text,
        units: &[usize],
        progress: ProgressSender,
    ) -> Result<(), Refusal> {
        let job = self.claim_idle(id, &progress).await?;
        self.all_are(id, units, &[Stage::Started, Stage::Restarting, Stage::Kept])?;
        let stages = self.placer.stages(id, self.clock.now());
        let kept: Vec<usize> = units.iter().copied().filter(|at| stages.get(*at) == Some(&Stage::Kept)).collect();
        self.take_room_again(id, &kept).await?;
        self.run_job(job, None, progress).await?;
        self.all_are(id, units, &[Stage::Started])
    }

    /// Stops the containers of units and starts the same ones again, where they are.
    ///
    /// # Cancel safety
    ///
    /// As [`Starter::stop_units`].
    ///
    /// # Errors
    ///
    /// As [`Starter::stop_units`].
    pub(crate) async fn restart_units(
        self: &Arc<Self>,
        id: &Text,
        units: &[usize],
        progress: ProgressSender,
    ) -> Result<(), Refusal> {
        self.take_through((id, units), (Stage::Restarting, Stage::Started), None, progress).await
    }

    /// Takes units that are started through one stage to another; those that are in either already go on from there.
    async fn take_through(
        self: &Arc<Self>,
        (id, units): (&Text, &[usize]),
        (through, to): (Stage, Stage),
        grace: Option<Duration>,
        progress: ProgressSender,
    ) -> Result<(), Refusal> {
        let job = self.claim_idle(id, &progress).await?;
        self.all_are(id, units, &[Stage::Started, through, to])?;
        let begun = self.placer.begin(id, units, (&[Stage::Started], through), self.clock.now());
        self.commit_begun(id, &begun).await?;
        self.run_job(job, grace, progress).await?;
        self.all_are(id, units, &[to])
    }

    /// The exclusive job for a placement of this scheduler, after those that are running.
    pub(super) async fn claim_idle(
        self: &Arc<Self>,
        id: &Text,
        progress: &ProgressSender,
    ) -> Result<StartJob, Refusal> {
        self.placer.own(id, TakeOver::Idle, self.clock).await?;
        loop {
            match self.claim(id) {
                Ok(job) => return Ok(job),
                Err(other) => drop(self.wait_for_job(id, other, progress).await?),
            }
        }
    }

    /// Refuses unless each of the units has one of these stages.
    fn all_are(&self, id: &Text, units: &[usize], stages: &[Stage]) -> Result<(), Refusal> {
        let found = self.placer.stages(id, self.clock.now());
        for at in units {
            match found.get(*at) {
                Some(stage) if stages.contains(stage) => {}
                Some(Stage::Stopping | Stage::Restarting) => {
                    let waits = self.waits_of(id).map(|waits| format!(": {waits}")).unwrap_or_default();
                    return Err(Refusal::Unsettled(format!("unit {at} of {id} is not settled yet{waits}; ask again")));
                }
                _ => return Err(Refusal::Unknown(format!("{id} with such a unit {at}").into())),
            }
        }
        Ok(())
    }

    /// Waits until what was begun is in the ledger; takes it back if it certainly is not.
    async fn commit_begun(&self, id: &Text, begun: &[(usize, Stage)]) -> Result<(), Refusal> {
        let written = self.placer.settled(id).await;
        match &written {
            // It may be written yet, so it is also done.
            Ok(()) | Err(Refusal::Unsettled(_)) => {}
            Err(_) => {
                for (at, stage) in begun {
                    self.placer.reached(id, *at, *stage, &[], self.clock.now());
                }
            }
        }
        written
    }

    async fn take_room_again(&self, id: &Text, kept: &[usize]) -> Result<(), Refusal> {
        let put_aside = |units: &[usize]| {
            for at in units {
                self.placer.put_aside(id, *at, self.clock.now());
            }
        };
        for _ in 0..TRIES {
            for (count, at) in kept.iter().enumerate() {
                if let Err(refusal) = self.placer.take_again(id, *at, self.clock.now()) {
                    put_aside(&kept[..count]);
                    return Err(refusal);
                }
            }
            match self.placer.ledger().store().settled(id).await {
                Ok(()) => return Ok(()),
                // Another scheduler promised room there in between: whether there is enough is decided again.
                Err(PersistError::Etcd(CommitError::Conflict)) => put_aside(kept),
                Err(why) => {
                    put_aside(kept);
                    return Err(why.into());
                }
            }
        }
        Err(Refusal::Contended)
    }

    async fn run_job(&self, job: StartJob, grace: Option<Duration>, progress: ProgressSender) -> Result<(), Refusal> {
        let mut watching = job.state.subscribe();
        self.spawn(job.run(progress, JobOptions { grace, ..JobOptions::default() }));
        finished(&mut watching).await.map(drop)
    }
}

impl StartJob {
    /// Stops the containers of a unit and keeps them; whether that was done. What fails is tried again at a later look.
    pub(super) async fn stop_and_keep(
        &self,
        at: usize,
        replica: &Replica,
        grace: Option<Duration>,
        progress: &ProgressSender,
    ) -> bool {
        if !self.persist_and_own().await {
            return false;
        }
        let (placer, clock) = (&self.starter.placer, self.starter.clock);
        self.until_unasked(replica, grace, progress).await;
        let stopped = self.stop_containers(replica, grace, progress).await;
        self.starter.wait_for(replica, None);
        match stopped {
            // Gone meanwhile: the next look finds that out.
            Ok(()) | Err(EngineError::Absent(_)) => {
                info!(id = %self.id, unit = at, host = %replica.host_name, "its containers are stopped and kept");
                let kept = placer.keep(&self.id, at, clock.now());
                let owned = self.persist_and_own().await;
                self.until_shown_stopped(replica).await;
                kept && owned
            }
            Err(error) => {
                warn!(id = %self.id, host = %replica.host_name, %error, "not stopped yet");
                self.starter.wait_for_engine(replica, &error);
                false
            }
        }
    }

    /// Stops the containers of a unit, those first that use what others have.
    pub(super) async fn stop_containers(
        &self,
        replica: &Replica,
        grace: Option<Duration>,
        progress: &ProgressSender,
    ) -> Result<(), EngineError> {
        let (docker, _) = self.docker(&replica.host, false)?;
        for held in replica.members.iter().rev() {
            let Some(container) = &held.container else { continue };
            let found = docker.find(container).await?;
            if found.life.is_alive() {
                self.stop(&docker, &found, (replica, &held.name), grace, progress).await?;
            }
            self.starter.learn(container, docker.find(container).await?.life);
        }
        Ok(())
    }

    /// Waits until the cluster shows that the containers of a unit do not run, but not for ever: what it shows has room.
    async fn until_shown_stopped(&self, replica: &Replica) {
        let begun = Instant::now();
        let mut pause = PAUSE_MIN;
        while self.starter.placer.is_shown_running(replica) && begun.elapsed() < STUCK_AFTER {
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
