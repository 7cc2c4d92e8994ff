//! Starting: what was promised becomes containers, through the engine of the chosen host.
//!
//! The order is what makes it safe. The promise is on disk before the engine hears of it; the container has the name
//! it was promised under, so asking twice is noticed there; and what failed is removed, and seen to be gone, before
//! its room is given to anybody else. Nothing is placed a second time on suspicion: while nobody knows whether a
//! container is there, the promise stays, and whoever asks is told to ask again with the same id. After a crash what
//! was begun is finished, or undone when that fails.
//!
//! One flight at a time works on a placement; others who ask for it wait for its landing. The locks around the table
//! of flights, the clients, lives, waits and the questions about images are held for a look into a map, never while
//! another is taken.

mod attempt;
mod flight;
mod images;
mod late;
mod leased;
pub mod progress;
#[cfg(test)]
mod tests;
mod unit;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use live::docker::{Certificates, Endpoint};
use model::Text;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::answer::{Failure, Placement};
use crate::clock::Clock;
use crate::credentials::RequestCredentials;
use crate::docker::{DockerEngine, Trouble};
use crate::docker_config::DockerConfig;
use crate::engine::work::StartedUnit;
use crate::engine::{Engine, Refusal};
use crate::ledger::draft::Take;
use crate::ledger::record::Replica;
use crate::life::Life;
use crate::platforms::Question;
use crate::promise::{PATIENCE, undecided};
use crate::request::Request;
use crate::shared::Shared;
use crate::start::flight::{Flight, Orders, Pilot, landing};
use crate::start::progress::Teller;

/// Pause after the first failure; each next one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(40);

/// Longest pause while something is being undone.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// After how long whoever waits is told that an engine does not answer.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// How often engines are asked what is still there, and how it is.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Longest wait for engines by whoever wants to know how containers are just now; what has not answered by then is told
/// as it was known.
const REFRESH_TIME: Duration = Duration::from_secs(2);

/// Pauses between two questions to an engine whether it answers again: the first one, and the longest.
const PROBE_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// Longest wait for containers to be killed by whoever gives a placement up.
const FORCE_TIME: Duration = Duration::from_secs(5);

/// How engines are reached, and what containers are told.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// For engines over the network.
    pub certificates: Option<Certificates>,
    /// Where containers ask for names.
    pub resolver: Vec<Text>,
    /// Where the scheduler's own credentials for registries are.
    pub registries: Option<Arc<DockerConfig>>,
}

/// Starts and removes what was promised.
#[derive(Debug)]
pub struct Starter {
    engine: Arc<Engine>,
    clock: Clock,
    reach: Reach,
    engines: Mutex<HashMap<Endpoint, Arc<DockerEngine>>>,
    flights: Mutex<HashMap<Text, watch::Receiver<Flight>>>,
    /// How containers are, by the engines' ids, as of the last look.
    lives: Mutex<HashMap<Text, Life>>,
    /// What containers that are being removed wait for, by name.
    waits: Mutex<HashMap<Text, String>>,
    /// One asks about an image, and the others find what was learnt.
    asking: Mutex<HashMap<Question, Weak<tokio::sync::Mutex<()>>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
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
            lives: Mutex::default(),
            waits: Mutex::default(),
            asking: Mutex::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    /// Places a request and starts its containers; `brought` are credentials that came with it.
    ///
    /// # Cancel safety
    ///
    /// What was begun goes on when this is dropped.
    ///
    /// # Errors
    ///
    /// As [`Engine::place`]; [`Refusal::Unsettled`] when nobody knows yet what an engine did.
    pub async fn place(
        self: &Arc<Self>,
        request: &Request,
        id: &Text,
        brought: RequestCredentials,
        tell: Teller,
    ) -> Result<Placement, Refusal> {
        let (starter, request, id) = (self.clone(), request.clone(), id.clone());
        let placing = self.tasks.spawn(async move { starter.place_now(&request, &id, brought, tell).await });
        let broken = |_| Refusal::Unsettled("starting failed, which is a bug: ask again".into());
        let mut answer = placing.await.map_err(broken)??;
        self.describe(std::slice::from_mut(&mut answer));
        Ok(answer)
    }

    async fn place_now(
        self: &Arc<Self>,
        request: &Request,
        id: &Text,
        brought: RequestCredentials,
        tell: Teller,
    ) -> Result<Placement, Refusal> {
        loop {
            let mut pilot = match self.take_off(id) {
                Ok(pilot) => pilot,
                Err(mut other) => {
                    landing(&mut other).await?;
                    continue;
                }
            };
            let (engine, clock, asked, own) = (self.engine.clone(), self.clock, request.clone(), id.clone());
            let mut promising = Box::pin(async move { engine.promise(&asked, &own, clock).await });
            let Ok(answer) = timeout(PATIENCE, &mut promising).await else {
                let refusal = undecided();
                pilot.told.send_replace(Flight::Stuck(refusal.to_string()));
                pilot.brought = brought;
                self.tasks.spawn(pilot.fly_when_promised(promising, request.atomic));
                return Err(refusal);
            };
            let answer = answer?;
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
            pilot.brought = brought;
            let orders = Orders { atomic: request.atomic, fresh: !answer.repeated, grace: None };
            self.tasks.spawn(pilot.fly(tell, orders));
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

    /// Stops and removes the containers of a placement, then gives its room back. They have `grace` to end, or what each
    /// says itself. Who is told of progress waits until they have ended; who is not is told after a while to ask again.
    ///
    /// # Cancel safety
    ///
    /// What was begun goes on when this is dropped.
    ///
    /// # Errors
    ///
    /// [`Refusal::Unknown`] when there is no such placement, [`Refusal::Unsettled`] while an engine does not answer.
    pub async fn release(
        self: &Arc<Self>,
        id: &Text,
        grace: Option<Duration>,
        tell: Teller,
    ) -> Result<Placement, Refusal> {
        let patient = tell.is_some();
        let (starter, own) = (self.clone(), id.clone());
        let releasing = self.tasks.spawn(async move { starter.release_now(&own, grace, tell).await });
        let broken = |_| Refusal::Unsettled("removing failed, which is a bug: ask again".into());
        if patient {
            return releasing.await.map_err(broken)?;
        }
        let late = |_| {
            let waits = self.waits_of(id).unwrap_or_else(|| "waits for another start or removal of it".to_owned());
            Refusal::Unsettled(format!("{id} is not removed yet: {waits}; ask again, until it is gone"))
        };
        timeout(STUCK_AFTER, releasing).await.map_err(late)?.map_err(broken)?
    }

    /// What the containers of a placement wait for that are being removed.
    fn waits_of(&self, id: &Text) -> Option<String> {
        let placement = self.engine.recorded(id, self.clock.now())?;
        let waits = lock(&self.waits);
        let mut containers = placement.placements.iter().flat_map(|unit| &unit.containers);
        containers.find_map(|container| waits.get(&container.name).cloned())
    }

    async fn release_now(
        self: &Arc<Self>,
        id: &Text,
        grace: Option<Duration>,
        tell: Teller,
    ) -> Result<Placement, Refusal> {
        self.engine.own(id, Take::Idle, self.clock).await?;
        loop {
            let pilot = match self.take_off(id) {
                Ok(pilot) => pilot,
                Err(mut other) => {
                    landing(&mut other).await?;
                    continue;
                }
            };
            let before = self.engine.stages(id, self.clock.now());
            let answer = self.engine.begin_release(id, self.clock.now())?;
            let written = match self.engine.settled(id).await {
                // What is gone is found out after a restart, too.
                Ok(()) | Err(Refusal::Broken(_)) => Ok(()),
                // It may be written yet, so it is also done.
                Err(refusal @ Refusal::Unsettled(_)) => Err(refusal),
                Err(refusal) => {
                    self.engine.take_back_release(id, &before, self.clock.now());
                    return Err(refusal);
                }
            };
            if !self.engine.units_at_work(id, self.clock.now()).is_empty() {
                let mut watching = pilot.told.subscribe();
                self.tasks.spawn(pilot.fly(tell, Orders { grace, ..Orders::default() }));
                if written.is_ok() {
                    landing(&mut watching).await?;
                }
            }
            return written.map(|()| answer);
        }
    }

    /// Kills the containers of a placement as far as their engines answer, and forgets it whatever they say: for engines
    /// that will never answer again.
    ///
    /// # Errors
    ///
    /// When there is no such placement.
    pub async fn forget(self: &Arc<Self>, id: &Text) -> Result<Placement, Refusal> {
        self.engine.own(id, Take::Forced, self.clock).await?;
        let started = self.engine.containers_of(id, self.clock.now());
        let answer = self.engine.release_placement(id, self.clock.now())?;
        // Forgotten it is in any case, so nothing of it is left running.
        let written = self.engine.settled(id).await;
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

    /// Goes on with all that was begun and that nobody works on, as after a crash; nobody else can begin the same from
    /// here on.
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
                    pilot.fly(None, Orders::default()).await;
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

    /// Asks engines what is still there and how it is, until `stop`; what is gone is given back.
    pub async fn look(self: Arc<Self>, stop: CancellationToken) {
        loop {
            // However it came about: nothing is begun for ever.
            self.resume();
            if stop.run_until_cancelled(self.look_around(false)).await.is_none()
                || stop.run_until_cancelled(sleep(LOOK_INTERVAL)).await.is_none()
            {
                return;
            }
        }
    }

    /// Asks engines how all containers are just now, those of other schedulers too, as far as they answer in time.
    pub(crate) async fn refresh(self: &Arc<Self>) {
        let _ = timeout(REFRESH_TIME, self.look_around(true)).await;
    }

    async fn look_around(self: &Arc<Self>, all: bool) {
        let mut looking = JoinSet::new();
        // What is being started is known here before it is in the ledger.
        let calm = lock(&self.flights).is_empty();
        let by_host = self.engine.started(all, self.clock.now());
        if calm && !all {
            let known: HashSet<_> =
                by_host.values().flatten().flat_map(|unit| unit.containers.iter().cloned()).collect();
            lock(&self.lives).retain(|container, _| known.contains(container));
        }
        for (host, units) in by_host {
            let starter = self.clone();
            looking.spawn(async move { starter.look_at(&host, units, all).await });
        }
        if !all {
            let starter = self.clone();
            looking.spawn(async move { starter.sweep().await });
        }
        while looking.join_next().await.is_some() {}
    }

    async fn look_at(self: &Arc<Self>, host: &Text, units: Vec<StartedUnit>, all: bool) {
        // An engine that does not answer keeps what it has.
        let Ok((engine, _)) = self.docker(host) else { return };
        let found = match engine.list().await {
            Ok(found) => found,
            Err(trouble) => return self.note(host, &trouble),
        };
        for StartedUnit { id, at, containers, ours } in units {
            let there = |container: &Text| found.iter().find(|one| one.id == *container);
            if ours && !containers.is_empty() && !containers.iter().any(|container| there(container).is_some()) {
                info!(%id, %host, "the container is gone, and its room given back");
                self.engine.gone(&id, at, &containers, self.clock.now());
                continue;
            }
            for one in containers.iter().filter_map(there) {
                let known = lock(&self.lives).get(&one.id).is_some_and(|life| life.state == one.state);
                if (all || !known)
                    && let Ok(found) = engine.find(&one.id).await
                {
                    self.learn(&one.id, found.life);
                }
            }
        }
    }

    /// Says of placements how their containers are, and what those that are being removed wait for.
    pub(crate) fn describe(&self, placements: &mut [Placement]) {
        let inventory = self.engine.inventory();
        for unit in placements.iter_mut().flat_map(|placement| &mut placement.placements) {
            let lost = || match inventory.hosts().index(&unit.host.uuid).map(|host| inventory.hosts().facts(host)) {
                None => Some("its host is lost: the source of the cluster does not tell of it any more".to_owned()),
                Some(facts) => facts.refusal.clone().filter(|_| &*facts.state == "disconnected"),
            };
            let away = self.engine.away().why(&unit.host.uuid).or_else(lost);
            for one in &mut unit.containers {
                let told = one.container.as_ref().and_then(|container| lock(&self.lives).get(container).cloned());
                let shown = || Some(Life::of_snapshot(inventory.containers().get(one.uuid.as_ref()?)?));
                let life = told.or_else(shown);
                let waits = lock(&self.waits).get(&one.name).cloned();
                one.describe(life, waits, away.as_ref());
            }
        }
    }

    /// Remembers how a container is.
    fn learn(&self, container: &Text, life: Life) {
        lock(&self.lives).insert(container.clone(), life);
    }

    /// Remembers what the containers of a unit wait for, or that they wait for nothing any more.
    fn wait_for(&self, replica: &Replica, what: Option<&str>) {
        let mut waits = lock(&self.waits);
        for held in &replica.members {
            match what {
                Some(what) => drop(waits.insert(held.name.clone(), what.to_owned())),
                None => drop(waits.remove(&held.name)),
            }
        }
    }

    /// Takes note of an engine that does not answer: nothing is placed on its host until it does again.
    fn note(self: &Arc<Self>, host: &Text, trouble: &Trouble) {
        if !trouble.is_away() || !self.engine.away().insert(host, trouble.to_string()) {
            return;
        }
        warn!(%host, error = %trouble, "nothing is placed on this host until its engine answers");
        let (starter, host) = (self.clone(), host.clone());
        self.tasks.spawn(async move {
            let [mut pause, longest] = PROBE_PAUSES;
            while starter.stop.run_until_cancelled(sleep(pause)).await.is_some() {
                // A host that is gone needs no engine.
                let Ok((docker, _)) = starter.docker(&host) else { break };
                match starter.stop.run_until_cancelled(docker.ping()).await {
                    Some(Err(trouble)) if trouble.is_away() => {
                        starter.engine.away().insert(&host, trouble.to_string());
                    }
                    _ => break,
                }
                pause = (pause * 2).min(longest);
            }
            starter.engine.away().remove(&host);
            info!(%host, "its engine answers again");
        });
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
        Ok(Pilot { starter: self.clone(), id: id.clone(), told, brought: RequestCredentials::default() })
    }

    fn docker(&self, host: &str) -> Result<(Arc<DockerEngine>, bool), Trouble> {
        let (endpoint, windows) = self.engine.endpoint(host).map_err(Trouble::Refused)?;
        let new = || Arc::new(DockerEngine::new(endpoint.clone(), self.reach.certificates.clone()));
        let engine = lock(&self.engines).entry(endpoint.clone()).or_insert_with(new).clone();
        Ok((engine, windows))
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

/// A thread that panicked while it held the lock left a whole map all the same.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
