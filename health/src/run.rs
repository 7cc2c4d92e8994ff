//! Makes the checks of one process, and the verdicts that follow.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use model::{Change, Container, Entity as _, Snapshot, Text, changes};
use source::Store;
use source::backoff::jittered;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use crate::check::Checker;
use crate::metrics::Metrics;
use crate::opinion::{Opinion, Outcome, Sample};
use crate::spec::BadCheck;
use crate::target::Target;
use crate::verdict::{HealthState, Poll, Quorum};
use crate::verdicts::{Verdict, Verdicts};
use crate::wheel::{Job, Wheel};

/// Most checks at a time, each of which has a socket. More would wait for the same processor.
const RUNNING_MAX: usize = 1024;

/// Most containers of a whole cluster that one process checks, which is for trying it out.
const TARGETS_OF_ALL_MAX: usize = 1000;

/// Time between two publications, so that many containers that fail together are news once.
const PUBLICATION_GAP: Duration = Duration::from_millis(10);

/// Which containers are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of this host.
    Own,
    /// All of the cluster.
    All,
}

/// What is known of all checks, for those who ask.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) wheel: Wheel,
    /// Containers whose check is wrong, by uuid.
    pub(crate) wrong: BTreeMap<Text, BadCheck>,
    /// How many are not checked since they are too many.
    beyond: usize,
}

/// The checks of one process.
#[derive(Clone, Debug)]
pub struct Health {
    scope: Scope,
    checker: Checker,
    /// What is checked.
    snapshots: Arc<Store<Snapshot>>,
    /// What follows.
    verdicts: Arc<Store<Verdicts>>,
    known: Arc<Mutex<Known>>,
    /// The moment from which the wheel counts.
    start: Instant,
    metrics: Metrics,
}

impl Health {
    /// Checks the containers in `snapshots`; `verdicts` holds those to begin with.
    pub fn new(
        scope: Scope,
        checker: Checker,
        snapshots: Arc<Store<Snapshot>>,
        verdicts: Arc<Store<Verdicts>>,
        metrics: Metrics,
    ) -> Self {
        let known = Known { wheel: Wheel::default(), wrong: BTreeMap::new(), beyond: 0 };
        let known = Arc::new(Mutex::new(known));
        Self { scope, checker, snapshots, verdicts, known, start: Instant::now(), metrics }
    }

    /// Its page, for the admin pages; `shown` are the snapshots with the verdicts in them.
    pub fn pages(&self, shown: Arc<Store<Snapshot>>) -> axum::Router {
        crate::pages::router(self.clone(), shown)
    }

    /// Makes checks. Never ends; drop it to stop.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; connections are then reset.
    pub async fn run(self) {
        let mut running = FuturesUnordered::new();
        let mut watcher = self.snapshots.watch();
        let mut before = Arc::default();
        let mut verdicts = Verdicts::clone(&self.verdicts.load());
        let (mut news, mut published) = (false, self.start);
        self.take_in(&mut before, &mut verdicts);
        loop {
            while running.len() < RUNNING_MAX
                && let Some(job) = self.next_job()
            {
                running.push(self.check(job));
            }
            self.metrics.running.set(running.len().try_into().unwrap_or(i64::MAX));
            let due = if running.len() < RUNNING_MAX { self.known().wheel.next_due() } else { None };
            tokio::select! {
                () = watcher.changed() => news |= self.take_in(&mut before, &mut verdicts),
                Some((job, sample)) = running.next() => news |= self.finish(&job, sample, &mut verdicts),
                () = sleep_until(self.start + due.unwrap_or_default()), if due.is_some() => {}
                () = sleep_until(published + PUBLICATION_GAP), if news => {
                    self.verdicts.publish(Arc::new(verdicts.clone()));
                    (news, published) = (false, Instant::now());
                }
            }
        }
    }

    /// What is known; short, since checks wait for it.
    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time by the wheel's clock.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn next_job(&self) -> Option<Job> {
        let now = self.now();
        self.known().wheel.take_due(now)
    }

    /// Makes a check.
    async fn check(&self, job: Job) -> (Job, Sample) {
        let at = self.now();
        self.metrics.late.observe(job.waited(at).as_secs_f64());
        let outcome = if job.is_stale(at) {
            Outcome::Unsure("this host was too busy to ask in time".into())
        } else {
            self.checker.check(job.target.address, &job.target.spec).await
        };
        let took = self.now().saturating_sub(at);
        let outcome = job.judged(outcome, took);
        self.metrics.count(&job.target.spec, &outcome, took);
        (job, Sample { at, took, outcome })
    }

    /// Takes in what came of a check; returns whether a verdict is another one now.
    fn finish(&self, job: &Job, sample: Sample, verdicts: &mut Verdicts) -> bool {
        let now = self.now();
        let outcome = sample.outcome.clone();
        let Some(opinion) = self.known().wheel.finish(job, sample, now, jittered) else { return false };
        let Target { uuid, name, start_count, .. } = &job.target;
        let published = verdicts.state(uuid, *start_count).unwrap_or(HealthState::Initializing);
        // One voice, which is enough.
        let is = |wanted| usize::from(opinion == wanted);
        let poll = Poll { sure: 1, possible: 1, up: is(Opinion::Up), down: is(Opinion::Down) };
        let state = poll.verdict(published, Quorum::Majority);
        let (outcome, reason) = outcome.words();
        info!(container = %name, state = state.word(), outcome, reason, "health");
        self.metrics.count_verdict(state);
        verdicts.insert(uuid.clone(), Verdict { state, start_count: *start_count });
        true
    }

    /// Takes in what is to be checked now; returns whether there are verdicts less.
    fn take_in(&self, before: &mut Arc<Snapshot>, verdicts: &mut Verdicts) -> bool {
        let snapshot = self.snapshots.load_full();
        let old = std::mem::replace(before, snapshot.clone());
        let is_concerned = |snapshot: &Snapshot, container: &Container| match self.scope {
            Scope::All => true,
            Scope::Own => snapshot.local_host.as_ref().is_some_and(|host| container.host_uuid() == Some(host.uuid())),
        };
        let local = |snapshot: &Snapshot| snapshot.local_host.as_ref().map(|host| host.uuid().clone());
        let is_news = local(&old) != local(&snapshot)
            || changes(&old.containers, &snapshot.containers).any(|change| match change {
                Change::Added(container) => is_concerned(&snapshot, container),
                Change::Removed(container) => is_concerned(&old, container),
                Change::Changed { old: before, new } => is_concerned(&old, before) || is_concerned(&snapshot, new),
            });
        if !is_news {
            return false;
        }
        let containers = || snapshot.containers.values().filter(|container| is_concerned(&snapshot, container));
        let (mut targets, mut wrong, mut beyond) = (BTreeMap::new(), BTreeMap::new(), 0);
        for container in containers() {
            match Target::of(&snapshot, container) {
                Ok(Some(target)) if targets.len() < self.targets_max() => {
                    targets.insert(target.uuid.clone(), target);
                }
                Ok(Some(_)) => beyond += 1,
                Ok(None) => {}
                Err(problem) => {
                    wrong.insert(container.uuid().clone(), problem);
                }
            }
        }
        let now = self.now();
        let mut known = self.known();
        self.report(&known.wrong, &wrong, &snapshot);
        if beyond > 0 && known.beyond == 0 {
            let most = TARGETS_OF_ALL_MAX;
            warn!(beyond, "--health all checks {most} containers; the others are shown as the file says");
        }
        known.beyond = beyond;
        known.wrong = wrong;
        // What ended or is paused begins again when it runs.
        let ended =
            known.wheel.checks().map(|check| check.target.uuid.clone()).filter(|uuid| !targets.contains_key(uuid));
        for uuid in ended {
            verdicts.restart(&uuid);
        }
        known.wheel.retain(|uuid| targets.contains_key(uuid));
        self.metrics.targets.set(targets.len().try_into().unwrap_or(i64::MAX));
        for target in targets.into_values() {
            let said = target.known.filter(|_| self.scope == Scope::All);
            let state = verdicts.state(&target.uuid, target.start_count).or(said).unwrap_or(HealthState::Initializing);
            known.wheel.set(target, 0, state.opinion(), now);
        }
        // Nothing is known of no container: the engine has not answered yet.
        if containers().next().is_none() {
            return false;
        }
        let count = verdicts.len();
        verdicts.retain(|uuid| snapshot.containers.contains_key(uuid));
        verdicts.len() < count
    }

    fn targets_max(&self) -> usize {
        match self.scope {
            Scope::Own => usize::MAX,
            Scope::All => TARGETS_OF_ALL_MAX,
        }
    }

    /// Logs checks that are wrong, once each. Those of this host's containers are defects of its document as well.
    fn report(&self, before: &BTreeMap<Text, BadCheck>, now: &BTreeMap<Text, BadCheck>, snapshot: &Snapshot) {
        if self.scope == Scope::Own {
            return;
        }
        for (uuid, problem) in now.iter().filter(|(uuid, problem)| before.get(*uuid) != Some(problem)) {
            let container = name(snapshot, uuid);
            warn!(%container, %problem, "its health check is wrong, so it is not checked");
        }
    }
}

/// The name of a container, for people.
fn name(snapshot: &Snapshot, uuid: &Text) -> Text {
    snapshot.containers.get(uuid).and_then(|container| container.name()).unwrap_or(uuid).clone()
}
