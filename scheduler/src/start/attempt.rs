//! One attempt at an engine: the containers of a unit are created and started, or stopped, removed and seen to be gone.

use std::collections::BTreeSet;
use std::time::Duration;

use engine::EngineError;
use model::Text;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::ledger::record::{LATE, PromisedContainer, Replica};
use crate::place::answer::{FailedStart, STOPPING};
use crate::place::request::Request;
use crate::policy::Denial;
use crate::start::container_body::{body, order};
use crate::start::docker::{DockerEngine, InspectedContainer, OVERTAKEN};
use crate::start::job::{JobState, StartJob};
use crate::start::log_end::with_log;
use crate::start::progress::{Progress, ProgressSender, send_progress};
use crate::start::put_files;
use crate::start::{PAUSE_MAX, PAUSE_MIN, STUCK_AFTER, WAITING_TOLD};

/// How often an engine is asked for the same before its host is given up; with the pauses between, under a second of
/// what an engine says at once.
const TRIES: u32 = 5;

/// After which time a container that was just started is inspected. What cannot read its configuration or has no port
/// has mostly ended by then, and clients do not wait for longer; other containers are started meanwhile.
const LOOK_AFTER: Duration = Duration::from_millis(500);

/// For how long clients may go on asking a unit after its place in names is gone: the TTL of names, which is a second unless `dns --ttl`
/// says otherwise, and a second in which all hosts and balancers hear of it.
const ASKED_FOR: Duration = Duration::from_secs(2);

/// What was before a unit is undone.
#[derive(Default)]
pub(super) struct Before<'f> {
    /// Since when the engine has been silent about what it was asked.
    pub(super) silent_since: Option<Instant>,
    /// Why it could not be started.
    pub(super) failed: Option<&'f FailedStart>,
}

impl StartJob {
    /// Creates and starts the containers of a unit, and sees that they run; returns the engine's ids, and the digests of
    /// their images.
    pub(super) async fn start(
        &self,
        request: &Request,
        replica: &Replica,
        progress: &ProgressSender,
    ) -> Result<(Vec<Text>, Vec<Option<Text>>), StartFailure> {
        let mut ids: Vec<Text> = vec!["".into(); replica.members.len()];
        let mut effects = EngineEffects::default();
        let mut ran = BTreeSet::new();
        let failure = |at: usize, error: EngineError, effects| StartFailure {
            container: replica.members[at].name.clone(),
            error,
            effects,
        };
        let docker = self.docker(&replica.host, false);
        let (docker, windows) = docker.map_err(|error| failure(0, error, effects))?;
        // One that hangs is found out before it is asked for what it may do when it wakes up.
        docker.answers().await.map_err(|error| failure(0, error, effects))?;
        let (order, ledger) = (order(request), self.starter.placer.ledger().name());
        for at in order.iter().copied() {
            let held = &replica.members[at];
            let say = |status: &str| {
                self.starter.wait_for(replica, Some(status));
                send_progress(progress, Progress::new(replica, &held.name, status));
            };
            say("creating");
            let mut retries = Retries::new();
            while let Err(error) = self.make_volumes(&docker, request, at, ledger.as_deref()).await {
                retries.rest(error).await.map_err(|error| failure(at, error, effects))?;
            }
            let mut pulled = request.members[at].run.pulls_always;
            if pulled {
                let image = self.pull(&docker, request, (replica, at), progress);
                image.await.map_err(|error| failure(at, error, effects))?;
            }
            let mut retries = Retries::new();
            let (id, began) = loop {
                let resolver = &self.starter.access.resolver[..];
                let body = body(request, replica, at, &self.id, ledger.as_deref(), (resolver, windows));
                match self.create(&docker, (replica, held), body, &mut effects).await {
                    Ok(created) => break created,
                    Err(EngineError::Absent(message)) if !pulled && message.to_lowercase().contains("image") => {
                        pulled = true;
                        let image = self.pull(&docker, request, (replica, at), progress);
                        image.await.map_err(|error| failure(at, error, effects))?;
                    }
                    Err(error) => retries.rest(error).await.map_err(|error| failure(at, error, effects))?,
                }
            };
            // What ran before a crash of the scheduler is not run a second time.
            if began {
                ran.insert(at);
            } else {
                for network in &request.members[at].run.more_networks {
                    let mut retries = Retries::new();
                    while let Err(error) = docker.join(&id, network).await {
                        retries.rest(error).await.map_err(|error| failure(at, error, effects))?;
                    }
                }
                let files = put_files::archive(self.starter.secrets(), request, at);
                if let Some(archive) = files.map_err(|error| failure(at, error, effects))? {
                    let mut retries = Retries::new();
                    while let Err(error) = docker.put(&id, archive.clone()).await {
                        retries.rest(error).await.map_err(|error| failure(at, error, effects))?;
                    }
                }
                say("starting");
                let mut retries = Retries::new();
                while let Err(error) = docker.start(&id).await {
                    retries.rest(error).await.map_err(|error| failure(at, error, effects))?;
                }
            }
            ids[at] = id;
        }
        let mut digests = vec![None; ids.len()];
        sleep(LOOK_AFTER).await;
        for at in order {
            let found = self.look_at(&docker, &ids[at]).await.map_err(|error| failure(at, error, effects))?;
            // The state of one that ran before says nothing about its start.
            if let Some(how) = failed(&found).filter(|_| !ran.contains(&at)) {
                let words = docker.last_words(&found.id).await;
                let text = with_log(format!("it {how} soon after its start"), &words);
                return Err(failure(at, EngineError::Refused(text), effects));
            }
            send_progress(progress, Progress::new(replica, &replica.members[at].name, "started"));
            self.starter.learn(&ids[at], found.life);
            digests[at] = found.image;
        }
        Ok((ids, digests))
    }

    /// Pulls the image of the container at `at`.
    async fn pull(
        &self,
        docker: &DockerEngine,
        request: &Request,
        (replica, at): (&Replica, usize),
        progress: &ProgressSender,
    ) -> Result<(), EngineError> {
        let image = request.members[at].image.as_deref().unwrap_or_default();
        let name = &replica.members[at].name;
        let what = format!("pulling {image}");
        self.starter.wait_for(replica, Some(&what));
        send_progress(progress, Progress::new(replica, name, &what));
        let on_pull = |info| send_progress(progress, Progress::of_pull(replica, name, info));
        let pull = self.starter.pull(docker, image, &self.brought, on_pull);
        let pulled = self.give_up.run_until_cancelled(self.shared_when_long(replica, &what, pull)).await;
        pulled.unwrap_or_else(|| Err(EngineError::Refused(format!("{what} is given up: it is to be removed"))))
    }

    /// The output of `work`; when that takes long, other schedulers can read it.
    async fn shared_when_long<T>(&self, replica: &Replica, what: &str, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        tokio::select! {
            done = &mut work => return done,
            () = sleep(SHARED_AFTER) => self.share_wait(replica, what),
        }
        work.await
    }

    fn share_wait(&self, replica: &Replica, what: &str) {
        self.starter.placer.waits(&self.id, replica, what, self.starter.clock.now());
    }

    async fn look_at(&self, docker: &DockerEngine, id: &Text) -> Result<InspectedContainer, EngineError> {
        let mut retries = Retries::new();
        loop {
            match docker.find(id).await {
                Ok(found) => return Ok(found),
                Err(error) => retries.rest(error).await?,
            }
        }
    }

    /// Creates a container, or finds that this very attempt created it before, by whichever scheduler; returns whether
    /// it was started then.
    async fn create(
        &self,
        docker: &DockerEngine,
        (replica, held): (&Replica, &PromisedContainer),
        body: bollard::models::ContainerCreateBody,
        effects: &mut EngineEffects,
    ) -> Result<(Text, bool), EngineError> {
        // The client's futures are larger than all of ours together.
        let created = Box::pin(docker.create(&held.name, body)).await;
        effects.note(&created);
        match created {
            Err(EngineError::Conflict(message)) => match docker.find(&held.name).await {
                Ok(found) if self.is_ours(&found, replica, held) => {
                    effects.maybe = true;
                    let began = &*found.life.state != "created";
                    Ok((found.id, began))
                }
                // A container of an earlier attempt may appear at any time, even after that attempt was forgotten.
                Ok(found) if self.starter.remove_unexpected(docker, &replica.host, &found).await? => {
                    Err(EngineError::Failed(message))
                }
                Ok(found) => Err(EngineError::Conflict(self.in_the_way(&found, replica, held))),
                // Gone since: it may be created now.
                Err(EngineError::Absent(_)) => Err(EngineError::Failed(message)),
                Err(error) => {
                    effects.maybe = true;
                    Err(error)
                }
            },
            other => Ok((other?, false)),
        }
    }

    /// Whether a container is the one that was started for this unit. The engine's id proves it, once it is known, and
    /// until then the label of the attempt; any client can set the other labels.
    fn is_ours(&self, found: &InspectedContainer, replica: &Replica, held: &PromisedContainer) -> bool {
        if held.container.as_ref() == Some(&found.id) {
            return true;
        }
        // A release without such a label has left neither the one nor the other.
        let attempt = found.attempt == replica.attempt && (found.attempt.is_some() || held.container.is_none());
        attempt && found.placement.as_ref() == Some(&held.name) && found.request.as_ref() == Some(&self.id)
    }

    /// Why a container cannot be created whose name another one has, and what a person can do.
    fn in_the_way(&self, found: &InspectedContainer, replica: &Replica, held: &PromisedContainer) -> String {
        let (name, host, state) = (&held.name, &replica.host_name, &found.life.state);
        let whose = match &found.request {
            Some(request) if *request == self.id => "of an earlier placement of this id, as its labels say",
            _ => "which this placement has not created",
        };
        format!(
            "there is a container {name} on {host} already ({state}), {whose}: `docker rm --force {name}` there, if it \
             is not needed"
        )
    }

    /// Stops and removes the containers of a unit, and returns when they are seen to be gone; `false` when the
    /// placement became another scheduler's.
    pub(super) async fn undo(
        &self,
        replica: &Replica,
        Before { mut silent_since, failed }: Before<'_>,
        grace: Option<Duration>,
        progress: &ProgressSender,
    ) -> bool {
        self.until_unasked(replica, grace, progress).await;
        let begun = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            let removed = match self.docker(&replica.host, true) {
                Ok((docker, _)) => self.remove(&docker, replica, grace, progress).await,
                Err(error) => Err(error),
            };
            let quiet = silent_since.is_none_or(|since| since.elapsed() >= LATE);
            let message = match removed {
                Ok(()) if quiet => {
                    self.starter.wait_for(replica, None);
                    self.state.send_replace(JobState::Running);
                    return true;
                }
                Err(OVERTAKEN) => {
                    if self.may_go_on(true).await {
                        continue;
                    }
                    return false;
                }
                Ok(()) => "it did not answer, and may yet do what it was asked".to_owned(),
                Err(error) => {
                    // An engine that hangs goes on with what it was asked when it wakes up.
                    silent_since = silent_since.map(|_| Instant::now());
                    self.starter.note(&replica.host, &error);
                    let recorded = || self.starter.placer.recorded(&self.id, self.starter.clock.now());
                    let hopeless = error.is_away() || matches!(error, EngineError::Refused(_));
                    if hopeless && recorded().is_none() {
                        // It was given up by force.
                        self.starter.wait_for(replica, None);
                        return true;
                    }
                    error.to_string()
                }
            };
            let (host, id) = (&replica.host_name, &self.id);
            let waits = format!("waits for the Docker Engine of {host}");
            let why = format!("{message}; `scheduler rm --force {id}` gives up");
            let text = format!("{waits} for {} s: {why}", begun.elapsed().as_secs());
            self.starter.wait_for(replica, Some(&text));
            if begun.elapsed() >= SHARED_AFTER {
                self.share_wait(replica, &format!("{waits}: {why}"));
            }
            if begun.elapsed() >= STUCK_AFTER {
                if !matches!(&*self.state.borrow(), JobState::Stalled(_)) {
                    warn!(%id, %host, error = %message, "not removed yet: its room stays reserved");
                }
                let start = failed.map(|failed| format!("{id} was not started: {}; ", failed.error));
                let start = start.unwrap_or_default();
                self.state.send_replace(JobState::Stalled(format!("{start}{id} is not removed yet: {text}")));
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn remove(
        &self,
        docker: &DockerEngine,
        replica: &Replica,
        grace: Option<Duration>,
        progress: &ProgressSender,
    ) -> Result<(), EngineError> {
        // Those first that use what others have.
        for held in replica.members.iter().rev() {
            // Names can be changed, and any client can set labels; the engine's id is neither.
            let key = held.container.as_ref().unwrap_or(&held.name);
            self.remove_one(docker, key, (replica, held), grace, progress).await?;
        }
        // The id of what was created before a crash is unknown.
        let unknown = || replica.members.iter().rev().filter(|held| held.container.is_none());
        if unknown().next().is_none() {
            return Ok(());
        }
        let listed = docker.list_of(&self.id).await?;
        for held in unknown() {
            for one in listed.iter().filter(|one| one.placement.as_ref() == Some(&held.name)) {
                self.remove_one(docker, &one.id, (replica, held), grace, progress).await?;
            }
        }
        Ok(())
    }

    /// Stops and removes the container of this name or id, when it is the one that was started for this unit.
    async fn remove_one(
        &self,
        docker: &DockerEngine,
        key: &str,
        (replica, held): (&Replica, &PromisedContainer),
        grace: Option<Duration>,
        progress: &ProgressSender,
    ) -> Result<(), EngineError> {
        let found = match docker.find(key).await {
            Ok(found) if self.is_ours(&found, replica, held) => found,
            // Another one's, or none.
            Ok(_) | Err(EngineError::Absent(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        if found.life.is_alive() {
            self.stop(docker, &found, (replica, &held.name), grace, progress).await?;
        }
        send_progress(progress, Progress::new(replica, &held.name, "removing"));
        docker.remove(&found.id).await
    }

    /// Waits until clients ask others instead of a unit that is about to be stopped, unless that is to happen at once.
    pub(super) async fn until_unasked(&self, replica: &Replica, grace: Option<Duration>, progress: &ProgressSender) {
        const WAITS: &str = "waits until no client asks it any more";
        let is_known = self.starter.placer.is_known_to_leave(&self.id, replica, self.starter.clock.now());
        if !is_known || grace == Some(Duration::ZERO) {
            return;
        }
        for held in &replica.members {
            send_progress(progress, Progress::new(replica, &held.name, WAITS));
        }
        self.starter.wait_for(replica, Some(WAITS));
        sleep(ASKED_FOR).await;
    }

    /// Lets a container end by itself, for as long as its grace.
    pub(super) async fn stop(
        &self,
        docker: &DockerEngine,
        found: &InspectedContainer,
        (replica, name): (&Replica, &Text),
        grace: Option<Duration>,
        progress: &ProgressSender,
    ) -> Result<(), EngineError> {
        let begun = Instant::now();
        let mut later = self.grace.subscribe();
        let grace = later.borrow_and_update().or(grace);
        let mut limit = grace.unwrap_or(found.grace).as_secs();
        let mut stopping = Box::pin(docker.stop(found, grace));
        loop {
            let text = format!("{STOPPING}, for {} s of at most {limit} s", begun.elapsed().as_secs());
            send_progress(progress, Progress::new(replica, name, &text));
            self.starter.wait_for(replica, Some(&text));
            if begun.elapsed() >= SHARED_AFTER {
                self.share_wait(replica, &format!("{STOPPING}, for at most {limit} s"));
            }
            tokio::select! {
                stopped = &mut stopping => return match stopped {
                    // Gone meanwhile.
                    Err(EngineError::Absent(_)) => Ok(()),
                    other => other,
                },
                () = sleep(WAITING_TOLD) => {}
                // The sender is the job's own.
                _ = later.changed() => {
                    // Engines end it as soon as the first of two times is over.
                    let grace = *later.borrow_and_update();
                    limit = grace.unwrap_or(found.grace).as_secs();
                    stopping = Box::pin(docker.stop(found, grace));
                }
            }
        }
    }
}

/// After how long what is waited for is written for other schedulers: what is shorter is not worth a transaction.
const SHARED_AFTER: Duration = Duration::from_secs(2);

/// How a container has failed that was just started; `None` when it runs or has done what it had to.
fn failed(found: &InspectedContainer) -> Option<String> {
    let life = &found.life;
    let code = life.exit_code.map(|code| format!(" with exit code {code}")).unwrap_or_default();
    match &*life.state {
        // Engines start again what ended at once, and will do so without end.
        _ if found.restarts > 0 => {
            let times = if found.restarts == 1 { "once".to_owned() } else { format!("{} times", found.restarts) };
            Some(format!("ended{code} and was started again {times}"))
        }
        "restarting" => Some(format!("ended{code}, and is being started again")),
        "exited" if !life.is_done() => Some(format!("ended{code}")),
        "created" | "dead" | "removing" => Some(format!("is {}, and does not run", life.state)),
        _ => None,
    }
}

/// Why a unit was not started.
pub(super) struct StartFailure {
    pub(super) container: Text,
    pub(super) error: EngineError,
    pub(super) effects: EngineEffects,
}

impl StartFailure {
    /// The policy does not allow it, so its engine was not asked.
    pub(super) fn denied(replica: &Replica, denial: &Denial) -> Self {
        let container = replica.members.first().map(|held| held.name.clone()).unwrap_or_default();
        Self { container, error: EngineError::Refused(denial.to_string()), effects: EngineEffects::default() }
    }
}

/// What an engine may have of a unit.
#[derive(Clone, Copy, Default)]
pub(super) struct EngineEffects {
    /// Whether it may have one of its containers.
    pub(super) maybe: bool,
    /// When it was last asked to create something and did not answer.
    pub(super) silent_since: Option<Instant>,
}

impl EngineEffects {
    fn note<T>(&mut self, created: &Result<T, EngineError>) {
        match created {
            Err(error) if error.is_undone() => {}
            Err(EngineError::Silent(_)) => *self = Self { maybe: true, silent_since: Some(Instant::now()) },
            _ => self.maybe = true,
        }
    }
}

/// How often something was asked already.
struct Retries {
    left: u32,
    pause: Duration,
}

impl Retries {
    fn new() -> Self {
        Self { left: TRIES - 1, pause: PAUSE_MIN }
    }

    /// Waits before the next try; returns the error when another try would not help.
    async fn rest(&mut self, error: EngineError) -> Result<(), EngineError> {
        if self.left == 0 || !error.may_pass() {
            return Err(error);
        }
        self.left -= 1;
        sleep(self.pause).await;
        self.pause *= 2;
        Ok(())
    }
}
