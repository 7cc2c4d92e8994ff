//! Flights: one at a time works on a placement, and others who ask for it wait for its landing.

use std::sync::Arc;
use std::time::Duration;

use model::Text;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::answer::{Failure, Placement};
use crate::credentials::RequestCredentials;
use crate::engine::Refusal;
use crate::lock::lock;
use crate::start::Starter;
use crate::start::progress::Teller;

/// Most units of one placement that are started at once.
const UNITS_AT_ONCE: usize = 16;

/// What a flight is told besides the ledger.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Orders {
    /// Whether nothing is to be left when a unit could not be started.
    pub(super) atomic: bool,
    /// Whether its units were promised just now, so that no engine can have heard of them.
    pub(super) fresh: bool,
    /// How long containers have to end; `None` as each says itself.
    pub(super) grace: Option<Duration>,
}

/// How a flight is.
#[derive(Clone, Debug)]
pub(super) enum Flight {
    Flying,
    /// An engine does not answer.
    Stuck(String),
    Landed(Arc<Landing>),
}

/// What a flight left behind. Whoever waited for it learns this, and not what the next one begins.
#[derive(Debug, Default)]
pub(super) struct Landing {
    pub(super) failures: Vec<Failure>,
    /// The placement as it was then, unless there was none any more.
    pub(super) placement: Option<Placement>,
    /// Whether something is still to be done, here or by another scheduler.
    pub(super) unfinished: bool,
}

/// A flight as others see it.
#[derive(Clone, Debug)]
pub(super) struct Other {
    pub(super) told: watch::Receiver<Flight>,
    pub(super) give_up: CancellationToken,
    pub(super) grace: watch::Sender<Option<Duration>>,
}

/// The right to work on a placement, until it is dropped.
pub(super) struct Pilot {
    pub(super) starter: Arc<Starter>,
    pub(super) id: Text,
    pub(super) told: watch::Sender<Flight>,
    /// That nobody wants what is being started any more: it does not wait for an image then.
    pub(super) give_up: CancellationToken,
    /// How long containers that are being stopped have to end, when that was said since.
    pub(super) grace: watch::Sender<Option<Duration>>,
    /// Credentials that came with the request, for as long as this lasts.
    pub(super) brought: RequestCredentials,
}

impl Drop for Pilot {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Pilot {
    /// Does what is to be done for each unit, and lands.
    pub(super) async fn fly(self, tell: Teller, orders: Orders) {
        let pilot = Arc::new(self);
        let (mut failures, all) = pilot.work(&tell, orders).await;
        if orders.atomic && !all {
            let _ = pilot.starter.engine.begin_release(&pilot.id, pilot.starter.clock.now());
            failures.extend(pilot.work(&tell, orders).await.0);
        }
        let (engine, now) = (&pilot.starter.engine, pilot.starter.clock.now());
        let landing = Landing {
            failures,
            placement: engine.recorded(&pilot.id, now),
            unfinished: !engine.units_at_work(&pilot.id, now).is_empty() || engine.works_elsewhere(&pilot.id, now),
        };
        // Whoever hears of the landing can take off.
        pilot.leave();
        pilot.told.send_replace(Flight::Landed(Arc::new(landing)));
    }

    /// Starts what etcd takes long to promise: nobody waits for it any more, and nobody else would start it.
    pub(super) async fn fly_when_promised(
        self,
        promising: impl Future<Output = Result<Placement, Refusal>> + Send,
        atomic: bool,
    ) {
        let (stop, engine) = (self.starter.stop.clone(), self.starter.engine.clone());
        let Some(Ok(answer)) = stop.run_until_cancelled(promising).await else { return };
        if !engine.units_at_work(&self.id, self.starter.clock.now()).is_empty() {
            self.told.send_replace(Flight::Flying);
            self.fly(None, Orders { atomic, fresh: !answer.repeated, grace: None }).await;
        }
    }

    /// Lets somebody else take off.
    fn leave(&self) {
        let own = self.told.subscribe();
        let mut flights = lock(&self.starter.flights);
        if flights.get(&self.id).is_some_and(|other| other.told.same_channel(&own)) {
            flights.remove(&self.id);
        }
    }

    /// Does what is to be done for each unit; gives what failed on the way, and whether each unit is as it should be.
    async fn work(self: &Arc<Self>, tell: &Teller, orders: Orders) -> (Vec<Failure>, bool) {
        let mut waiting = self.starter.engine.units_at_work(&self.id, self.starter.clock.now()).into_iter();
        let mut working = JoinSet::new();
        let (mut failures, mut all) = (Vec::new(), true);
        loop {
            while working.len() < UNITS_AT_ONCE
                && let Some(at) = waiting.next()
            {
                let (pilot, tell) = (self.clone(), tell.clone());
                working.spawn(async move { pilot.drive(at, &tell, orders).await });
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

/// What a flight left behind, once it has landed.
pub(super) async fn landing(watching: &mut watch::Receiver<Flight>) -> Result<Arc<Landing>, Refusal> {
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
