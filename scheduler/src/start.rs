//! Starting: what was promised becomes containers, through the engine of the chosen host.
//!
//! The order is what makes it safe. The promise is on disk before the engine hears of it; the container has the name
//! it was promised under, so asking twice is noticed there; and what failed is removed, and seen to be gone, before
//! its room is given to anybody else. Nothing is placed a second time on suspicion: while nobody knows whether a
//! container is there, the promise stays, and whoever asks is told to ask again with the same id. After a crash what
//! was begun is finished, or undone when that fails.
//!
//! One flight at a time works on a placement; others who ask for it wait for its landing. The lock around the table
//! of flights and the one around the clients are held for a look into a map, never while another is taken.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use live::docker::{Certificates, Endpoint};
use model::Text;
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::body::{body, order};
use crate::docker::{DockerEngine, Found, Trouble};
use crate::engine::{Engine, Failure, HostName, Placement, Refusal};
use crate::keeper::NotKept;
use crate::ledger::draft::{Take, Unkept};
use crate::ledger::{Replica, Stage};
use crate::request::Request;
use crate::server::Clock;
use crate::shared::Shared;

/// How often an engine is asked for the same before its host is given up; with the pauses between, under a second of
/// what an engine says at once.
const TRIES: u32 = 5;

/// How often a unit is given another new host because others promised room there at the same time.
const TRIES_ELSEWHERE: u32 = 32;

/// Pause after the first failure; each next one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(40);

/// Longest pause while something is being undone.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// After how long whoever waits is told that an engine does not answer.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// How long an engine that has not answered may still do what it was asked: its name is watched, and its room kept.
const QUARANTINE: Duration = Duration::from_mins(1);

/// Most units of one placement that are started at once.
const UNITS_AT_ONCE: usize = 16;

/// How many engines are asked about an image: the second for when the first one is just away.
const ASKED_FOR_IMAGES: usize = 2;

/// How often engines are asked what is still there.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Most lines of progress that wait for a slow reader; the rest is not told.
pub const PROGRESS_MAX: usize = 256;

/// How far something got.
#[derive(Clone, Debug, Serialize)]
pub struct Progress {
    /// The host.
    pub host: Text,
    /// The container.
    pub container: Text,
    /// What happens.
    pub status: String,
    /// The part of the image, when it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// Octets so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<i64>,
    /// Octets in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<i64>,
}

/// Where progress is told.
pub type Teller = Option<mpsc::Sender<Progress>>;

/// How engines are reached, and what containers are told.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// For engines over the network.
    pub certificates: Option<Certificates>,
    /// Where containers ask for names.
    pub resolver: Vec<Text>,
}

/// How a flight is.
#[derive(Clone, Debug)]
enum Flight {
    Flying,
    /// An engine does not answer.
    Stuck(String),
    Landed(Arc<Landing>),
}

/// What a flight left behind. Whoever waited for it learns this, and not what the next one begins.
#[derive(Debug, Default)]
struct Landing {
    failures: Vec<Failure>,
    /// The placement as it was then, unless there was none any more.
    placement: Option<Placement>,
    /// Whether something is still to be done, here or by another scheduler.
    unfinished: bool,
}

/// Starts and removes what was promised.
#[derive(Debug)]
pub struct Starter {
    engine: Arc<Engine>,
    clock: Clock,
    reach: Reach,
    engines: Mutex<HashMap<Endpoint, Arc<DockerEngine>>>,
    flights: Mutex<HashMap<Text, watch::Receiver<Flight>>>,
    /// One asks about images, and the others find what was learnt.
    asking: tokio::sync::Mutex<()>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The right to work on a placement, until it is dropped.
struct Pilot {
    starter: Arc<Starter>,
    id: Text,
    told: watch::Sender<Flight>,
}

impl Pilot {
    /// Lets somebody else take off.
    fn leave(&self) {
        let own = self.told.subscribe();
        let mut flights = lock(&self.starter.flights);
        if flights.get(&self.id).is_some_and(|other| other.same_channel(&own)) {
            flights.remove(&self.id);
        }
    }
}

impl Drop for Pilot {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Starter {
    /// A starter of what `engine` promises.
    pub(crate) fn new(engine: Arc<Engine>, clock: Clock, reach: Reach) -> Arc<Self> {
        Arc::new(Self {
            engine,
            clock,
            reach,
            engines: Mutex::default(),
            flights: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    /// Places a request and starts its containers.
    ///
    /// # Cancel safety
    ///
    /// What was begun goes on when this is dropped.
    ///
    /// # Errors
    ///
    /// As [`Engine::place`]; [`Refusal::Unsettled`] when nobody knows yet what an engine did.
    pub async fn place(self: &Arc<Self>, request: &Request, id: &Text, tell: Teller) -> Result<Placement, Refusal> {
        let (starter, request, id) = (self.clone(), request.clone(), id.clone());
        let placing = self.tasks.spawn(async move { starter.place_now(&request, &id, tell).await });
        let broken = |_| Refusal::Unsettled("starting failed, which is a bug: ask again".into());
        placing.await.map_err(broken)?
    }

    async fn place_now(self: &Arc<Self>, request: &Request, id: &Text, tell: Teller) -> Result<Placement, Refusal> {
        loop {
            let pilot = match self.take_off(id) {
                Ok(pilot) => pilot,
                Err(mut other) => {
                    landing(&mut other).await?;
                    continue;
                }
            };
            let answer = self.engine.promise(request, id, self.clock).await?;
            if request.dry_run || answer.state == "unplaceable" {
                return Ok(answer);
            }
            if self.engine.units_at_work(id, self.clock.now()).is_empty() {
                if !self.engine.works_elsewhere(id, self.clock.now()) {
                    return Ok(answer);
                }
                drop(pilot);
                self.engine.landed_elsewhere(id, self.clock).await?;
                continue;
            }
            let mut watching = pilot.told.subscribe();
            let atomic = request.atomic;
            self.tasks.spawn(pilot.fly(tell, atomic));
            let landing = landing(&mut watching).await?;
            if landing.unfinished {
                return Err(Refusal::Unsettled(format!("{id} is not settled yet: ask again with the same id")));
            }
            return Ok(match &landing.placement {
                Some(placement) if !placement.placements.is_empty() => Placement {
                    repeated: answer.repeated,
                    failures: landing.failures.clone(),
                    explanation: answer.explanation,
                    ..placement.clone()
                },
                _ => failed(answer, &landing.failures),
            });
        }
    }

    /// Removes the containers of a placement, then gives its room back.
    ///
    /// # Cancel safety
    ///
    /// What was begun goes on when this is dropped.
    ///
    /// # Errors
    ///
    /// [`Refusal::Unknown`] when there is no such placement, [`Refusal::Unsettled`] while an engine does not answer.
    pub async fn release(self: &Arc<Self>, id: &Text) -> Result<Placement, Refusal> {
        self.engine.own(id, Take::Idle, self.clock).await?;
        loop {
            let pilot = match self.take_off(id) {
                Ok(pilot) => pilot,
                Err(mut other) => {
                    landing(&mut other).await?;
                    continue;
                }
            };
            let answer = self.engine.begin_release(id, self.clock.now())?;
            self.engine.settled(id).await?;
            if !self.engine.units_at_work(id, self.clock.now()).is_empty() {
                let mut watching = pilot.told.subscribe();
                self.tasks.spawn(pilot.fly(None, false));
                landing(&mut watching).await?;
            }
            return Ok(answer);
        }
    }

    /// Forgets a placement whatever its engine says: for engines that will never answer again.
    ///
    /// # Errors
    ///
    /// When there is no such placement.
    pub async fn forget(self: &Arc<Self>, id: &Text) -> Result<Placement, Refusal> {
        self.engine.own(id, Take::Forced, self.clock).await?;
        let answer = self.engine.release_placement(id, self.clock.now())?;
        self.engine.settled(id).await?;
        Ok(answer)
    }

    /// Goes on with what was begun before a crash; nobody else can begin the same from here on.
    pub fn resume(self: &Arc<Self>) {
        for id in self.engine.at_work(self.clock.now()) {
            if let Ok(pilot) = self.take_off(&id) {
                info!(%id, "going on with what was begun");
                self.tasks.spawn(async move {
                    let starter = pilot.starter.clone();
                    // Where engines are is only known with the hosts.
                    while !starter.engine.has_data() && !starter.stop.is_cancelled() {
                        sleep(PAUSE_MIN).await;
                    }
                    pilot.fly(None, false).await;
                });
            }
        }
    }

    /// Goes on with what others had begun, whenever it becomes ours, until `stop`.
    pub(crate) async fn resume_adopted(self: Arc<Self>, shared: Arc<Shared>, stop: CancellationToken) {
        while stop.run_until_cancelled(shared.adopted()).await.is_some() {
            self.resume();
        }
    }

    /// Asks engines what is still there, until `stop`; what is gone is given back.
    pub async fn look(self: Arc<Self>, stop: CancellationToken) {
        while stop.run_until_cancelled(sleep(LOOK_INTERVAL)).await.is_some() {
            let mut looking = JoinSet::new();
            for (host, units) in self.engine.started(self.clock.now()) {
                let starter = self.clone();
                looking.spawn(async move { starter.look_at(&host, units).await });
            }
            let all = async { while looking.join_next().await.is_some() {} };
            if stop.run_until_cancelled(all).await.is_none() {
                return;
            }
        }
    }

    async fn look_at(&self, host: &Text, units: Vec<(Text, usize, Vec<Text>)>) {
        // An engine that does not answer keeps what it has.
        let Ok((engine, _)) = self.docker(host) else { return };
        let Ok(found) = engine.list().await else { return };
        for (id, at, containers) in units {
            let there = |container: &Text| found.iter().any(|one| one.id == *container);
            if !containers.is_empty() && !containers.iter().any(there) {
                info!(%id, %host, "the container is gone, and its room given back");
                self.engine.gone(&id, at, &containers, self.clock.now());
            }
        }
    }

    /// Says in a request for which systems its images are there, where it does not and their registry does.
    ///
    /// Engines ask the registry, since they know how to. When none can, any host will do, as far as anybody knows.
    pub async fn complete(&self, request: &mut Request) {
        let asking = self.asking.lock().await;
        for image in self.engine.platforms().unknown(request, self.clock.now()) {
            let mut found = Vec::new();
            for host in self.engine.with_engines(ASKED_FOR_IMAGES) {
                let Ok((docker, _)) = self.docker(&host) else { continue };
                match docker.platforms(&image).await {
                    Ok(platforms) => {
                        found = platforms;
                        break;
                    }
                    Err(error) => debug!(%image, %host, %error, "its registry does not say for which systems it is"),
                }
            }
            self.engine.platforms().learn(image, found, self.clock.now());
        }
        drop(asking);
        self.engine.platforms().fill(request);
    }

    /// Lets flights land, for as long as whoever calls this waits; the ledger knows what did not.
    pub async fn finish(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// The right to work on a placement, or what whoever has it tells.
    fn take_off(self: &Arc<Self>, id: &Text) -> Result<Pilot, watch::Receiver<Flight>> {
        let mut flights = lock(&self.flights);
        if let Some(other) = flights.get(id) {
            return Err(other.clone());
        }
        let (told, watching) = watch::channel(Flight::Flying);
        flights.insert(id.clone(), watching);
        Ok(Pilot { starter: self.clone(), id: id.clone(), told })
    }

    fn docker(&self, host: &str) -> Result<(Arc<DockerEngine>, bool), Trouble> {
        let (endpoint, windows) = self.engine.endpoint(host).map_err(Trouble::Refused)?;
        let new = || Arc::new(DockerEngine::new(endpoint.clone(), self.reach.certificates.clone()));
        let engine = lock(&self.engines).entry(endpoint.clone()).or_insert_with(new).clone();
        Ok((engine, windows))
    }
}

/// What a flight left behind, once it has landed.
async fn landing(watching: &mut watch::Receiver<Flight>) -> Result<Arc<Landing>, Refusal> {
    loop {
        match &*watching.borrow_and_update() {
            Flight::Flying => {}
            Flight::Stuck(message) => return Err(Refusal::Unsettled(message.clone())),
            Flight::Landed(landing) => return Ok(landing.clone()),
        }
        if watching.changed().await.is_err() {
            // Its pilot only looked, or ended without a word: whoever waits looks for himself.
            return match &*watching.borrow() {
                Flight::Landed(landing) => Ok(landing.clone()),
                _ => Ok(Arc::default()),
            };
        }
    }
}

/// The answer when nothing could be started.
fn failed(answer: Placement, failures: &[Failure]) -> Placement {
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

impl Pilot {
    /// Does what is to be done for each unit, and lands.
    async fn fly(self, tell: Teller, atomic: bool) {
        let pilot = Arc::new(self);
        let mut failures = pilot.work(&tell).await;
        if atomic && !failures.is_empty() {
            let _ = pilot.starter.engine.begin_release(&pilot.id, pilot.starter.clock.now());
            failures.extend(pilot.work(&tell).await);
        }
        let (engine, now) = (&pilot.starter.engine, pilot.starter.clock.now());
        let landing = Landing {
            failures,
            placement: engine.placement(&pilot.id, now).ok(),
            unfinished: !engine.units_at_work(&pilot.id, now).is_empty() || engine.works_elsewhere(&pilot.id, now),
        };
        // Whoever hears of the landing can take off.
        pilot.leave();
        pilot.told.send_replace(Flight::Landed(Arc::new(landing)));
    }

    async fn work(self: &Arc<Self>, tell: &Teller) -> Vec<Failure> {
        let mut waiting = self.starter.engine.units_at_work(&self.id, self.starter.clock.now()).into_iter();
        let mut working = JoinSet::new();
        let mut failures = Vec::new();
        loop {
            while working.len() < UNITS_AT_ONCE
                && let Some(at) = waiting.next()
            {
                let (pilot, tell) = (self.clone(), tell.clone());
                working.spawn(async move { pilot.drive(at, &tell).await });
            }
            match working.join_next().await {
                None => return failures,
                Some(ended) => failures.extend(ended.unwrap_or_default()),
            }
        }
    }

    /// Starts one unit, on another host when that fails, or removes it.
    async fn drive(&self, at: usize, tell: &Teller) -> Vec<Failure> {
        let (engine, clock) = (&self.starter.engine, self.starter.clock);
        let mut tried: Vec<Failure> = Vec::new();
        loop {
            let Some((request, replica)) = engine.unit(&self.id, at, clock.now()) else { return tried };
            if replica.stage == Stage::Undoing {
                self.undo(&replica, None).await;
                engine.abandon(&self.id, at, clock.now());
                self.is_kept().await;
                return tried;
            }
            let stopped = match self.start(&request, &replica, tell).await {
                Ok(containers) => {
                    if engine.reached(&self.id, at, Stage::Started, &containers, clock.now()) {
                        self.is_kept().await;
                        return Vec::new();
                    }
                    // Its promise was given up meanwhile, by force.
                    self.undo(&replica, None).await;
                    return tried;
                }
                Err(stopped) => stopped,
            };
            warn!(id = %self.id, host = %replica.host_name, container = %stopped.container, error = %stopped.trouble, "not started");
            let host = HostName { uuid: replica.host.clone(), name: replica.host_name.clone() };
            tried.push(Failure { host, container: stopped.container.clone(), error: stopped.trouble.to_string() });
            engine.reached(&self.id, at, Stage::Undoing, &[], clock.now());
            if !self.is_kept().await {
                return tried;
            }
            self.undo(&replica, stopped.silent_since).await;
            let again = tried.len() < request.attempts as usize && request.requested_host.is_none();
            if again && self.moved(at, &tried).await {
                continue;
            }
            if !again {
                engine.abandon(&self.id, at, clock.now());
            }
            self.is_kept().await;
            return tried;
        }
    }

    /// Puts a unit on another host; `false` when there is none.
    async fn moved(&self, at: usize, tried: &[Failure]) -> bool {
        let (engine, clock) = (&self.starter.engine, self.starter.clock);
        for _ in 0..TRIES_ELSEWHERE {
            if !engine.elsewhere(&self.id, at, tried, clock.now()) {
                return false;
            }
            match self.kept().await {
                Ok(()) => return true,
                // Somebody else promised room there in between.
                Err(NotKept::Shared(Unkept::Conflict)) => {}
                Err(_) => return false,
            }
        }
        engine.abandon(&self.id, at, clock.now());
        false
    }

    /// Waits until what was done is kept, so that it may be built upon; `false` when the placement is ours no more.
    async fn is_kept(&self) -> bool {
        !matches!(self.kept().await, Err(NotKept::Shared(Unkept::Foreign)))
    }

    /// That a disk refuses is told by its own log, and what was begun goes on. While etcd is away only it knows whose
    /// the placement is, so that is waited for.
    async fn kept(&self) -> Result<(), NotKept> {
        let begun = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            match self.starter.engine.ledger().keeper().settled(&self.id).await {
                Err(NotKept::Shared(Unkept::Away(why))) if !self.starter.stop.is_cancelled() => {
                    if begun.elapsed() >= STUCK_AFTER {
                        self.told.send_replace(Flight::Stuck(why));
                    }
                }
                Err(NotKept::Broken(_)) => return Ok(()),
                other => {
                    self.told.send_replace(Flight::Flying);
                    return other;
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Creates and starts the containers of a unit; gives the engine's ids.
    async fn start(&self, request: &Request, replica: &Replica, tell: &Teller) -> Result<Vec<Text>, Stopped> {
        let mut ids: Vec<Text> = vec!["".into(); replica.members.len()];
        let stopped = |at: usize, trouble: Trouble, silent_since| Stopped {
            container: replica.members[at].name.clone(),
            trouble,
            silent_since,
        };
        let (docker, windows) = self.starter.docker(&replica.host).map_err(|trouble| stopped(0, trouble, None))?;
        for at in order(request) {
            let held = &replica.members[at];
            let say = |status: &str| tell_of(tell, Progress::new(replica, &held.name, status));
            say("creating");
            let mut silent_since = None;
            let mut pulled = false;
            let mut tries = Tries::new();
            let id = loop {
                let body = body(request, replica, at, &self.id, &self.starter.reach.resolver, windows);
                match self.create(&docker, &held.name, body, &mut silent_since).await {
                    Ok(id) => break id,
                    Err(Trouble::Absent(message)) if !pulled && message.to_lowercase().contains("image") => {
                        pulled = true;
                        let image = request.members[at].image.as_deref().unwrap_or_default();
                        say(&format!("pulling {image}"));
                        let pull =
                            docker.pull(image, |info| tell_of(tell, Progress::of_pull(replica, &held.name, info)));
                        pull.await.map_err(|trouble| stopped(at, trouble, silent_since))?;
                    }
                    Err(trouble) => tries.rest(trouble).await.map_err(|trouble| stopped(at, trouble, silent_since))?,
                }
            };
            say("starting");
            let mut tries = Tries::new();
            while let Err(trouble) = docker.start(&id).await {
                tries.rest(trouble).await.map_err(|trouble| stopped(at, trouble, silent_since))?;
            }
            say("started");
            ids[at] = id;
        }
        Ok(ids)
    }

    /// Creates a container, or finds that it was created before, by us.
    async fn create(
        &self,
        docker: &DockerEngine,
        name: &Text,
        body: bollard::models::ContainerCreateBody,
        silent_since: &mut Option<Instant>,
    ) -> Result<Text, Trouble> {
        match docker.create(name, body).await {
            Err(Trouble::Conflict(message)) => match docker.find(name).await {
                Ok(found) if self.is_ours(&found, name) => Ok(found.id),
                Ok(_) => Err(Trouble::Conflict(message)),
                // Gone since: it may be created now.
                Err(Trouble::Absent(_)) => Err(Trouble::Failed(message)),
                Err(trouble) => Err(trouble),
            },
            Err(Trouble::Silent(limit)) => {
                *silent_since = Some(Instant::now());
                Err(Trouble::Silent(limit))
            }
            other => other,
        }
    }

    fn is_ours(&self, found: &Found, name: &Text) -> bool {
        found.placement.as_ref() == Some(name) && found.request.as_ref() == Some(&self.id)
    }

    /// Removes the containers of a unit, and returns when they are seen to be gone.
    async fn undo(&self, replica: &Replica, silent_since: Option<Instant>) {
        let begun = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            let trouble = match self.starter.docker(&replica.host) {
                Ok((docker, _)) => self.remove(&docker, replica).await,
                Err(trouble) => Err(trouble),
            };
            let quiet = silent_since.is_none_or(|since| since.elapsed() >= QUARANTINE);
            let message = match trouble {
                Ok(()) if quiet => {
                    self.told.send_replace(Flight::Flying);
                    return;
                }
                Ok(()) => "it may yet do what it was asked".to_owned(),
                Err(trouble) => trouble.to_string(),
            };
            if begun.elapsed() >= STUCK_AFTER {
                let host = &replica.host_name;
                let text = format!("the engine of {host} has to tell what became of {}: {message}", self.id);
                if !matches!(&*self.told.borrow(), Flight::Stuck(_)) {
                    warn!(id = %self.id, %host, error = %message, "not undone yet, and its room is kept");
                }
                self.told.send_replace(Flight::Stuck(text));
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn remove(&self, docker: &DockerEngine, replica: &Replica) -> Result<(), Trouble> {
        // Those first that use what others have.
        for held in replica.members.iter().rev() {
            match docker.find(&held.name).await {
                Ok(found) if self.is_ours(&found, &held.name) => docker.remove(&found.id).await?,
                // Somebody else's, or none.
                Ok(_) | Err(Trouble::Absent(_)) => {}
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(())
    }
}

/// Why a unit was not started.
struct Stopped {
    container: Text,
    trouble: Trouble,
    /// When an engine was last asked to create something and did not answer.
    silent_since: Option<Instant>,
}

/// How often something was asked already.
struct Tries {
    left: u32,
    pause: Duration,
}

impl Tries {
    fn new() -> Self {
        Self { left: TRIES - 1, pause: PAUSE_MIN }
    }

    /// Waits before the next try; gives the trouble back when another would not help.
    async fn rest(&mut self, trouble: Trouble) -> Result<(), Trouble> {
        if self.left == 0 || !trouble.may_pass() {
            return Err(trouble);
        }
        self.left -= 1;
        sleep(self.pause).await;
        self.pause *= 2;
        Ok(())
    }
}

fn tell_of(tell: &Teller, progress: Progress) {
    if let Some(tell) = tell {
        // Who reads too slowly misses some.
        let _ = tell.try_send(progress);
    }
}

impl Progress {
    fn new(replica: &Replica, container: &Text, status: &str) -> Self {
        let (host, container) = (replica.host_name.clone(), container.clone());
        Self { host, container, status: status.to_owned(), layer: None, current: None, total: None }
    }

    fn of_pull(replica: &Replica, container: &Text, info: bollard::models::CreateImageInfo) -> Self {
        let detail = info.progress_detail.unwrap_or_default();
        let status = info.status.unwrap_or_default();
        Self { layer: info.id, current: detail.current, total: detail.total, ..Self::new(replica, container, &status) }
    }
}

/// A thread that panicked while it held the lock left a whole map all the same.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads certificates from a folder, where one is given.
///
/// # Errors
///
/// Which file is wrong.
pub fn read_certificates(folder: Option<&PathBuf>) -> Result<Option<Certificates>, String> {
    folder.map(|folder| Certificates::read(folder).map_err(|error| error.to_string())).transpose()
}
