//! Starting: what was promised becomes containers, through the engine of the chosen host.
//!
//! The order makes it safe. The promise is on disk before the engine is asked; the container has the name it was
//! promised under, so the engine refuses a second one; and what failed is removed, and seen to be gone, before its room
//! is given away. Nothing is placed a second time on suspicion: while it is unknown whether a container is there, the
//! promise stays, and clients have to ask again with the same id. After a crash what was begun is finished, or undone
//! when that fails.
//!
//! One job at a time works on a placement; other requests for it wait for its result. The locks around the table of
//! jobs, the clients, lives, waits, strangers and the questions about images are held for a look into a map, never while another
//! is taken.

mod attempt;
mod container_body;
pub(crate) mod credentials;
pub(crate) mod docker;
pub(crate) mod docker_config;
pub(crate) mod endpoint;
mod evacuate;
mod images;
pub(crate) mod inside;
mod job;
mod keep_unit;
mod late;
mod leased;
pub(crate) mod log_end;
pub(crate) mod logs;
mod look;
pub(crate) mod platforms;
#[cfg(test)]
pub(crate) mod played;
pub(crate) mod progress;
pub(crate) mod prune;
pub(crate) mod pull_ahead;
mod put_files;
pub(crate) mod registry;
pub(crate) mod replace_unit;
pub(crate) mod silent;
pub(crate) mod strangers;
#[cfg(test)]
mod tests;
mod unit;
pub(crate) mod volumes;

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use engine::{Certificates, Endpoint, EngineError};
use model::Text;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use crate::clock::Clock;
use crate::ledger::draft::TakeOver;
use crate::ledger::etcd::store::EtcdStore;
use crate::lock::lock;
use crate::place::Placer;
use crate::place::answer::{FailedStart, PlacedContainer, Placement, STOPPING};
use crate::place::life::EngineAnswer;
use crate::place::promise::{PATIENCE, undecided};
use crate::place::refusal::Refusal;
use crate::place::request::Request;
use crate::replace::last_log::LastLogs;
use crate::secret::SecretsKey;
use crate::stack::memory::Memory;
use crate::start::credentials::RequestCredentials;
use crate::start::docker::DockerEngine;
use crate::start::docker_config::DockerConfig;
use crate::start::job::{JobHandle, JobOptions, JobState, StartJob, StartResult, finished};
use crate::start::platforms::ImageQuestion;
use crate::start::progress::{Progress, ProgressSender, send_progress};
use crate::start::replace_unit::HealthActions;
use crate::start::strangers::Stranger;

/// Pause after the first failure; each next one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(40);

/// Longest pause while something is being undone.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// After how long a waiting client learns that an engine does not answer.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// How often a client gets a line that says what is waited for: more often than clients give up.
const WAITING_TOLD: Duration = Duration::from_secs(5);

/// Longest wait for containers to be killed when a placement is given up by force.
const FORCE_TIME: Duration = Duration::from_secs(5);

/// How engines are reached, and what containers get from the scheduler's options.
#[derive(Clone, Debug, Default)]
pub(crate) struct EngineAccess {
    /// For engines over the network.
    pub(crate) certificates: Option<Certificates>,
    /// Where containers ask for names.
    pub(crate) resolver: Vec<Text>,
    /// Where the scheduler's own credentials for registries are.
    pub(crate) registries: Option<Arc<DockerConfig>>,
    /// What opens the contents of files for containers.
    pub(crate) secrets: Option<SecretsKey>,
    /// How long the ledger does not know a container of its own before it is removed; `None` leaves it alone.
    pub(crate) sweep_after: Option<Duration>,
    /// Where the logs of containers that are replaced are stored.
    pub(crate) last_logs: Option<LastLogs>,
}

/// Starts and removes what was promised.
#[derive(Debug)]
pub(crate) struct Starter {
    placer: Arc<Placer>,
    clock: Clock,
    access: EngineAccess,
    engines: Mutex<HashMap<Endpoint, Arc<DockerEngine>>>,
    jobs: Mutex<HashMap<Text, JobHandle>>,
    /// How containers are, by the engines' ids, as of the last look.
    lives: Mutex<HashMap<Text, EngineAnswer>>,
    /// What containers that are being started or removed wait for, by name.
    pub(crate) waits: Mutex<HashMap<Text, String>>,
    /// One asks about an image, and the others find what was learnt.
    asking: Mutex<HashMap<ImageQuestion, Weak<tokio::sync::Mutex<()>>>>,
    /// Containers of no placement that the ledger knows, by host.
    strangers: Mutex<HashMap<Text, HashMap<Text, Stranger>>>,
    /// What is remembered of stacks beside the ledger.
    pub(crate) stack_memory: Mutex<Memory>,
    /// Says that a stack is to be looked at.
    pub(crate) stacks_changed: Notify,
    /// How many units were evicted from hosts that were gone.
    pub(crate) evictions: Counter,
    /// How many engines were asked whether they are there.
    pinged: AtomicUsize,
    /// What was done about containers that failed.
    actions: HealthActions,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Starter {
    /// A starter of what `engine` promises.
    pub(crate) fn new(placer: Arc<Placer>, clock: Clock, access: EngineAccess) -> Arc<Self> {
        Arc::new(Self {
            placer,
            clock,
            access,
            engines: Mutex::default(),
            jobs: Mutex::default(),
            lives: Mutex::default(),
            waits: Mutex::default(),
            asking: Mutex::default(),
            strangers: Mutex::default(),
            stack_memory: Mutex::default(),
            stacks_changed: Notify::new(),
            evictions: Counter::default(),
            pinged: AtomicUsize::new(0),
            actions: HealthActions::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    /// The key with which contents of files are sealed.
    pub(crate) fn secrets(&self) -> Option<&SecretsKey> {
        self.access.secrets.as_ref()
    }

    /// Why contents of files of a request cannot be opened here; `None` if they can.
    pub(crate) fn unopened(&self, request: &Request) -> Option<String> {
        put_files::unopened(self.secrets(), request)
    }

    /// Places a request and starts its containers; `brought` are credentials that came with it.
    ///
    /// # Cancel safety
    ///
    /// What was begun goes on when this is dropped.
    ///
    /// # Errors
    ///
    /// As [`Placer::place`]; [`Refusal::Unsettled`] while it is unknown what an engine did.
    pub(crate) async fn place(
        self: &Arc<Self>,
        request: &Request,
        id: &Text,
        brought: RequestCredentials,
        progress: ProgressSender,
    ) -> Result<Placement, Refusal> {
        let (starter, request, id) = (self.clone(), request.clone(), id.clone());
        let placing = self.tasks.spawn(async move { starter.place_now(&request, &id, brought, progress).await });
        let broken = |_| Refusal::Unsettled("starting failed, which is a bug: ask again".into());
        let mut answer = placing.await.map_err(broken)??;
        if answer.repeated {
            // What was started before may not run any more.
            self.look_at_placement(&answer.id).await;
            self.is_there_still(&answer)?;
        }
        self.describe(std::slice::from_mut(&mut answer));
        Ok(answer)
    }

    /// Refuses an answer that was given before when an engine has a container of it no more: another scheduler removed it,
    /// or a person, and the ledger as it is known here does not say so yet.
    fn is_there_still(&self, answer: &Placement) -> Result<(), Refusal> {
        let lives = lock(&self.lives);
        let mut containers = answer.placements.iter().flat_map(|unit| &unit.containers);
        let is_gone = |one: &&PlacedContainer| {
            one.container
                .as_ref()
                .is_some_and(|container| lives.get(container).is_some_and(|known| known.life.is_gone()))
        };
        let Some(one) = containers.find(is_gone) else { return Ok(()) };
        let (id, name) = (&answer.id, &one.name);
        Err(Refusal::Uncertain(format!("the engine of {name} has no such container any more: ask again about {id}")))
    }

    async fn place_now(
        self: &Arc<Self>,
        request: &Request,
        id: &Text,
        brought: RequestCredentials,
        progress: ProgressSender,
    ) -> Result<Placement, Refusal> {
        loop {
            let mut job = match self.claim(id) {
                Ok(job) => job,
                Err(other) => {
                    self.wait_for_job(id, other, &progress).await?;
                    continue;
                }
            };
            let (placer, clock, asked, own) = (self.placer.clone(), self.clock, request.clone(), id.clone());
            let mut promising = Box::pin(async move { placer.promise(&asked, &own, clock).await });
            let Ok(answer) = timeout(PATIENCE, &mut promising).await else {
                let refusal = undecided();
                job.state.send_replace(JobState::Stalled(refusal.to_string()));
                job.brought = brought;
                self.tasks.spawn(job.run_when_promised(promising, request.atomic));
                return Err(refusal);
            };
            let answer = answer?;
            if request.dry_run || answer.state == "unplaceable" {
                return Ok(answer);
            }
            if self.placer.units_at_work(id, self.clock.now()).is_empty() {
                drop(job);
                if self.placer.works_elsewhere(id, self.clock.now()) {
                    self.placer.finished_elsewhere(id, self.clock).await?;
                } else if answer.placements.iter().flat_map(|unit| &unit.containers).any(PlacedContainer::is_at_work) {
                    // Another scheduler has ended since, or what it worked on was taken over: how it is now is asked again.
                    sleep(PAUSE_MIN).await;
                } else {
                    return Ok(answer);
                }
                continue;
            }
            let mut watching = job.state.subscribe();
            job.brought = brought;
            let options = JobOptions { atomic: request.atomic, fresh: !answer.repeated, grace: None };
            self.tasks.spawn(job.run(progress, options));
            let result = finished(&mut watching).await?;
            if result.unfinished {
                return Err(Refusal::Unsettled(format!("{id} is not settled yet: ask again with the same id")));
            }
            return Ok(match &result.placement {
                Some(placement) if !placement.placements.is_empty() => Placement {
                    repeated: answer.repeated,
                    failures: result.failures.clone(),
                    explanation: answer.explanation,
                    ..placement.clone()
                },
                _ => failed(answer, &result.failures),
            });
        }
    }

    /// Stops and removes the containers of a placement, then frees its room. They have `grace` to end, or their own
    /// when it is `None`. A caller with progress waits until they have ended; one without gets [`Refusal::Unsettled`]
    /// after a while. `noted` is called with each answer: with that one, and with the last one when it is known, though
    /// no client waits for it any more.
    ///
    /// # Cancel safety
    ///
    /// What was begun goes on when this is dropped.
    ///
    /// # Errors
    ///
    /// [`Refusal::Unknown`] when there is no such placement, [`Refusal::Unsettled`] while an engine does not answer.
    pub(crate) async fn release(
        self: &Arc<Self>,
        id: &Text,
        grace: Option<Duration>,
        progress: ProgressSender,
        noted: impl Fn(&Result<Placement, Refusal>) + Clone + Send + 'static,
    ) -> Result<Placement, Refusal> {
        let patient = progress.is_some();
        let (starter, own, noted_at_end) = (self.clone(), id.clone(), noted.clone());
        let releasing = self.tasks.spawn(async move {
            let answer = starter.release_now(&own, grace, progress).await;
            noted_at_end(&answer);
            answer
        });
        let broken = |_| Refusal::Unsettled("removing failed, which is a bug: ask again".into());
        if patient {
            return releasing.await.map_err(broken)?;
        }
        let late = || {
            let waits = self.waits_of(id).unwrap_or_else(|| "waits for another start or removal of it".to_owned());
            let hint = if waits.starts_with(STOPPING) {
                format!("; `scheduler rm --time 0 {id}` kills it at once")
            } else {
                String::new()
            };
            Refusal::Unsettled(format!("{id} is not removed yet: {waits}; ask again, until it is gone{hint}"))
        };
        if let Ok(answer) = timeout(STUCK_AFTER, releasing).await {
            return answer.map_err(broken)?;
        }
        let answer = Err(late());
        noted(&answer);
        answer
    }

    /// Waits for another job, and reports what that one waits for.
    async fn wait_for_job(
        &self,
        id: &Text,
        mut other: JobHandle,
        progress: &ProgressSender,
    ) -> Result<Arc<StartResult>, Refusal> {
        loop {
            if let Some(placement) = self.placer.recorded(id, self.clock.now()).filter(|_| progress.is_some()) {
                for unit in &placement.placements {
                    for container in &unit.containers {
                        if let Some(status) = lock(&self.waits).get(&container.name).cloned() {
                            send_progress(progress, Progress::of_other(&unit.host.name, &container.name, status));
                        }
                    }
                }
            }
            if let Ok(result) = timeout(WAITING_TOLD, finished(&mut other.state)).await {
                return result;
            }
        }
    }

    /// What the containers of a placement wait for that are being removed.
    fn waits_of(&self, id: &Text) -> Option<String> {
        let placement = self.placer.recorded(id, self.clock.now())?;
        let waits = lock(&self.waits);
        let mut containers = placement.placements.iter().flat_map(|unit| &unit.containers);
        containers.find_map(|container| waits.get(&container.name).cloned())
    }

    async fn release_now(
        self: &Arc<Self>,
        id: &Text,
        grace: Option<Duration>,
        progress: ProgressSender,
    ) -> Result<Placement, Refusal> {
        self.placer.own(id, TakeOver::Idle, self.clock).await?;
        let mut given_up = None;
        loop {
            let job = match self.claim(id) {
                Ok(job) => job,
                Err(other) => {
                    given_up = given_up.or_else(|| self.placer.recorded(id, self.clock.now()));
                    other.give_up.cancel();
                    if grace.is_some() {
                        other.grace.send_replace(grace);
                    }
                    self.wait_for_job(id, other, &progress).await?;
                    continue;
                }
            };
            let before = self.placer.stages(id, self.clock.now());
            let answer = match (self.placer.begin_release(id, self.clock.now()), given_up) {
                // There was nothing to be removed but the start itself.
                (Err(Refusal::Unknown(_)), Some(known)) => {
                    return Ok(Placement { state: "released", repeated: false, ..known });
                }
                (answer, _) => answer?,
            };
            let written = match self.is_gone(id).await {
                Ok(()) => Ok(()),
                // It may be written yet, so it is also done.
                Err(refusal @ Refusal::Unsettled(_)) => Err(refusal),
                Err(refusal) => {
                    self.placer.take_back_release(id, &before, self.clock.now());
                    return Err(refusal);
                }
            };
            if !self.placer.units_at_work(id, self.clock.now()).is_empty() {
                let mut watching = job.state.subscribe();
                self.tasks.spawn(job.run(progress, JobOptions { grace, ..JobOptions::default() }));
                if written.is_ok() {
                    finished(&mut watching).await?;
                }
            }
            return written.map(|()| answer);
        }
    }

    /// Waits until the end of a placement is persistent. A failing disk does not block it: what is gone is found out
    /// after a restart, too.
    async fn is_gone(&self, id: &Text) -> Result<(), Refusal> {
        match self.placer.settled(id).await {
            Err(Refusal::WriteFailed(_)) => Ok(()),
            other => other,
        }
    }

    /// Kills the containers of a placement as far as their engines answer, and forgets it even if they do not: for
    /// engines that will never answer again.
    ///
    /// # Errors
    ///
    /// When there is no such placement.
    pub(crate) async fn forget(self: &Arc<Self>, id: &Text) -> Result<Placement, Refusal> {
        self.placer.own(id, TakeOver::Forced, self.clock).await?;
        if let Some(other) = lock(&self.jobs).get(id) {
            other.give_up.cancel();
        }
        let started = self.placer.containers_of(id, self.clock.now());
        let answer = self.placer.release_placement(id, self.clock.now())?;
        // Forgotten it is in any case, so nothing of it is left running.
        let written = self.is_gone(id).await;
        let mut killing = JoinSet::new();
        for (host, container) in started {
            let Ok((docker, _)) = self.docker(&host) else { continue };
            killing.spawn(async move { docker.remove(&container).await });
        }
        // What goes on after that ends by itself, or with its engine.
        let _ = timeout(FORCE_TIME, async { while killing.join_next().await.is_some() {} }).await;
        killing.detach_all();
        written.map(|()| answer)
    }

    /// Continues all that was begun and has no job, as after a crash; no other job can begin the same from here on.
    pub(crate) fn resume(self: &Arc<Self>) {
        self.go_on(|id| self.placer.audit_take_over(id, "resumed", self.clock.now()));
    }

    /// Continues all that was begun and has no job; `noted` is called with the id of each placement.
    fn go_on(self: &Arc<Self>, noted: impl Fn(&Text)) {
        for id in self.placer.at_work(self.clock.now()) {
            if let Ok(job) = self.claim(&id) {
                info!(%id, "going on with what was begun");
                noted(&id);
                self.tasks.spawn(async move {
                    let starter = job.starter.clone();
                    // Where engines are is only known with the hosts.
                    while !starter.placer.has_data() && !starter.stop.is_cancelled() {
                        sleep(PAUSE_MIN).await;
                    }
                    job.run(None, JobOptions::default()).await;
                });
            }
        }
    }

    /// Continues what other schedulers had begun, whenever it becomes ours, until `stop`. That it became ours is noted
    /// already.
    pub(crate) async fn resume_adopted(self: Arc<Self>, shared: Arc<EtcdStore>, stop: CancellationToken) {
        while stop.run_until_cancelled(shared.adopted()).await.is_some() {
            self.go_on(|_| ());
        }
    }

    /// Does what must not end with the client that asked for it, and is waited for at the end of the process.
    pub(crate) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.tasks.spawn(work)
    }

    /// Waits until all jobs have finished; the ledger has what did not finish when the caller gives up.
    pub(crate) async fn finish(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// The exclusive job for a placement, or a handle of the one that is running.
    fn claim(self: &Arc<Self>, id: &Text) -> Result<StartJob, JobHandle> {
        let mut jobs = lock(&self.jobs);
        if let Some(other) = jobs.get(id) {
            return Err(other.clone());
        }
        let (state, watching) = watch::channel(JobState::Running);
        let give_up = CancellationToken::new();
        let grace = watch::Sender::new(None);
        jobs.insert(id.clone(), JobHandle { state: watching, give_up: give_up.clone(), grace: grace.clone() });
        let (starter, id) = (self.clone(), id.clone());
        Ok(StartJob { starter, id, state, give_up, grace, brought: RequestCredentials::default() })
    }

    /// The engine of a host, and whether that is Windows.
    pub(crate) fn docker(&self, host: &str) -> Result<(Arc<DockerEngine>, bool), EngineError> {
        let (endpoint, windows) = self.placer.endpoint(host).map_err(EngineError::Refused)?;
        let new = || Arc::new(DockerEngine::new(endpoint.clone(), self.access.certificates.clone()));
        let docker = lock(&self.engines).entry(endpoint.clone()).or_insert_with(new).clone();
        Ok((docker, windows))
    }
}

/// The answer when nothing could be started.
fn failed(answer: Placement, failures: &[FailedStart]) -> Placement {
    let mut words: Vec<String> = Vec::new();
    for failure in failures {
        words.push(format!("{} on {}: {}", failure.container, failure.host.name, failure.error));
    }
    if words.is_empty() {
        words.push("it was released at the same time".into());
    }
    Placement {
        state: "failed",
        unplaced: answer.unplaced + u32::try_from(answer.placements.len()).unwrap_or(u32::MAX),
        placements: Vec::new(),
        error: Some(format!("could not be started: {}", words.join("; "))),
        failures: failures.to_vec(),
        ..answer
    }
}
