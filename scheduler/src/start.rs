//! Starting: what was promised becomes containers, through the engine of the chosen host.
//!
//! The order is what makes it safe. The promise is on disk before the engine hears of it; the container has the name
//! it was promised under, so asking twice is noticed there; and what failed is removed, and seen to be gone, before
//! its room is given to anybody else. Nothing is placed a second time on suspicion: while nobody knows whether a
//! container is there, the promise stays, and whoever asks is told to ask again with the same id. After a crash what
//! was begun is finished, or undone when that fails.
//!
//! One flight at a time works on a placement; others who ask for it wait for its landing. The lock around the table
//! of flights, the one around the clients and the one around the questions about images are held for a look into a map,
//! never while another is taken.

mod attempt;
mod flight;
mod images;
pub mod progress;
mod unit;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use live::docker::{Certificates, Endpoint};
use model::Text;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use crate::answer::{Failure, Placement};
use crate::clock::Clock;
use crate::credentials::RequestCredentials;
use crate::docker::{DockerEngine, Trouble};
use crate::docker_config::DockerConfig;
use crate::engine::{Engine, Refusal};
use crate::ledger::draft::Take;
use crate::platforms::Question;
use crate::request::Request;
use crate::shared::Shared;
use crate::start::flight::{Flight, Pilot, landing};
use crate::start::progress::Teller;

/// Pause after the first failure; each next one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(40);

/// Longest pause while something is being undone.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// After how long whoever waits is told that an engine does not answer.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// How often engines are asked what is still there.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

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
        placing.await.map_err(broken)?
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
            pilot.brought = brought;
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
