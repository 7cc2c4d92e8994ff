//! Jobs: one at a time works on a placement, and other requests for it wait for its result.

use std::sync::Arc;
use std::time::Duration;

use model::Text;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::lock::lock;
use crate::place::answer::{FailedStart, Placement};
use crate::place::refusal::Refusal;
use crate::start::Starter;
use crate::start::credentials::RequestCredentials;
use crate::start::progress::ProgressSender;

/// Most units of one placement that are started at once.
const UNITS_AT_ONCE: usize = 16;

/// What a job needs besides the ledger.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct JobOptions {
    /// Whether nothing is to be left when a unit could not be started.
    pub(super) atomic: bool,
    /// Whether its units were promised just now, so that no engine can have heard of them.
    pub(super) fresh: bool,
    /// How long containers have to end; `None` as each says itself.
    pub(super) grace: Option<Duration>,
}

/// The state of a job.
#[derive(Clone, Debug)]
pub(super) enum JobState {
    Running,
    /// An engine, or etcd, does not answer.
    Stalled(String),
    Finished(Arc<StartResult>),
}

/// The result of a job. Requests that waited for it get this, and not what the next job begins.
#[derive(Debug, Default)]
pub(super) struct StartResult {
    pub(super) failures: Vec<FailedStart>,
    /// The placement as it was then, unless there was none any more.
    pub(super) placement: Option<Placement>,
    /// Whether something is still to be done, here or by another scheduler.
    pub(super) unfinished: bool,
}

/// A job as others see it.
#[derive(Clone, Debug)]
pub(super) struct JobHandle {
    pub(super) state: watch::Receiver<JobState>,
    pub(super) give_up: CancellationToken,
    pub(super) grace: watch::Sender<Option<Duration>>,
}

/// The exclusive job for a placement, until it is dropped.
pub(super) struct StartJob {
    pub(super) starter: Arc<Starter>,
    pub(super) id: Text,
    pub(super) state: watch::Sender<JobState>,
    /// Cancelled when the placement is to be removed: the job then does not wait for an image.
    pub(super) give_up: CancellationToken,
    /// How long containers that are being stopped have to end, when that was said since.
    pub(super) grace: watch::Sender<Option<Duration>>,
    /// Credentials that came with the request, for as long as this lasts.
    pub(super) brought: RequestCredentials,
}

impl Drop for StartJob {
    fn drop(&mut self) {
        self.unclaim();
    }
}

impl StartJob {
    /// Works on each unit, and publishes the result.
    pub(super) async fn run(self, progress: ProgressSender, options: JobOptions) {
        let job = Arc::new(self);
        let (mut failures, all) = job.work(&progress, options).await;
        if options.atomic && !all {
            let _ = job.starter.placer.begin_release(&job.id, job.starter.clock.now());
            failures.extend(job.work(&progress, options).await.0);
        }
        let (placer, now) = (&job.starter.placer, job.starter.clock.now());
        let result = StartResult {
            failures,
            placement: placer.recorded(&job.id, now),
            unfinished: !placer.units_at_work(&job.id, now).is_empty() || placer.works_elsewhere(&job.id, now),
        };
        // A request that learns of the result can claim the placement.
        job.unclaim();
        job.state.send_replace(JobState::Finished(Arc::new(result)));
    }

    /// Starts what etcd takes long to promise: no client waits for it any more, and no other job would start it.
    pub(super) async fn run_when_promised(
        self,
        promising: impl Future<Output = Result<Placement, Refusal>> + Send,
        atomic: bool,
    ) {
        let (stop, placer) = (self.starter.stop.clone(), self.starter.placer.clone());
        let Some(Ok(answer)) = stop.run_until_cancelled(promising).await else { return };
        if !placer.units_at_work(&self.id, self.starter.clock.now()).is_empty() {
            self.state.send_replace(JobState::Running);
            self.run(None, JobOptions { atomic, fresh: !answer.repeated, grace: None }).await;
        }
    }

    /// Lets another job claim the placement.
    fn unclaim(&self) {
        let own = self.state.subscribe();
        let mut jobs = lock(&self.starter.jobs);
        if jobs.get(&self.id).is_some_and(|other| other.state.same_channel(&own)) {
            jobs.remove(&self.id);
        }
    }

    /// Works on each unit; returns what failed on the way, and whether each unit is as it should be.
    async fn work(self: &Arc<Self>, progress: &ProgressSender, options: JobOptions) -> (Vec<FailedStart>, bool) {
        let mut waiting = self.starter.placer.units_at_work(&self.id, self.starter.clock.now()).into_iter();
        let mut working = JoinSet::new();
        let (mut failures, mut all) = (Vec::new(), true);
        loop {
            while working.len() < UNITS_AT_ONCE
                && let Some(at) = waiting.next()
            {
                let (job, progress) = (self.clone(), progress.clone());
                working.spawn(async move { job.process_unit(at, &progress, options).await });
            }
            match working.join_next().await {
                None => return (failures, all),
                Some(ended) => {
                    let (tried, done) = ended.unwrap_or_default();
                    failures.extend(tried);
                    all &= done;
                }
            }
        }
    }
}

/// Waits for the result of a job.
pub(super) async fn finished(watching: &mut watch::Receiver<JobState>) -> Result<Arc<StartResult>, Refusal> {
    loop {
        match &*watching.borrow_and_update() {
            JobState::Running => {}
            JobState::Stalled(message) => return Err(Refusal::Unsettled(message.clone())),
            JobState::Finished(result) => return Ok(result.clone()),
        }
        if watching.changed().await.is_err() {
            // The job was dropped without a result: the caller looks for itself.
            return match &*watching.borrow() {
                JobState::Finished(result) => Ok(result.clone()),
                _ => Ok(Arc::default()),
            };
        }
    }
}
