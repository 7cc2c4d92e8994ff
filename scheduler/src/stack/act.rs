//! The steps of a plan, done by the machinery that places, starts and removes.

use std::sync::Arc;
use std::time::Duration;

use model::Text;
use stacks::{Service, Step};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::audit::line::{Action, AuditLine};
use crate::lock::lock;
use crate::place::refusal::Refusal;
use crate::stack::ahead::HOPELESS_AFTER;
use crate::stack::memory::{FailedUnit, Flight, StackMemory};
use crate::stack::unit::UnitRequest;
use crate::start::Starter;
use crate::start::credentials::RequestCredentials;
use crate::subject::Subject;

/// Pause before a place is looked for again that the cluster may not show yet.
const PAUSE: Duration = Duration::from_millis(500);

/// One unit to be placed.
#[derive(Clone, Debug)]
pub(super) struct Placing {
    pub(super) stack: Text,
    pub(super) service: Service,
    pub(super) index: Text,
    pub(super) id: Text,
    /// The host, by uuid, where it has to be.
    pub(super) host: Option<Text>,
    pub(super) subject: Subject,
    pub(super) brought: RequestCredentials,
    /// The unit, by id, that is to leave its host once this one is good.
    pub(super) instead_of: Option<Text>,
    /// Whether its service is as it should be: what fails then is tried again.
    pub(super) settled: bool,
}

impl Starter {
    /// Begins to place a unit.
    pub(super) fn begin_placing(self: &Arc<Self>, placing: Placing) {
        let flight = Flight::Placing {
            service: placing.service.name.clone(),
            index: placing.index.clone(),
            digest: placing.service.digest.clone(),
        };
        self.take_off(&placing.stack, &placing.id, flight);
        let starter = self.clone();
        self.spawn(async move {
            let done = starter.place_unit(&placing).await;
            let now = starter.clock().now();
            starter.with_stack(&placing.stack, |memory| {
                // It may be on its way out since.
                let is_placing = matches!(memory.in_flight.get(&placing.id), Some(Flight::Placing { .. }));
                if !is_placing {
                    return;
                }
                memory.in_flight.remove(&placing.id);
                if let Err(why) = done {
                    warn!(stack = %placing.stack, unit = %placing.id, %why, "not placed");
                    let (service, index) = (placing.service.name.clone(), placing.index.clone());
                    if placing.settled {
                        memory.fail_later((service, index), why, placing.instead_of, now);
                    } else {
                        let (digest, why) = (placing.service.digest.clone(), why.into());
                        memory.failed.insert(placing.id.clone(), FailedUnit { service, index, digest, why });
                    }
                }
            });
            starter.touch_stack(&placing.stack);
        });
    }

    /// Places and starts a unit; the error says why it is not there.
    async fn place_unit(self: &Arc<Self>, placing: &Placing) -> Result<(), String> {
        let Placing { stack, service, index, id, host, subject, brought, .. } = placing;
        let unit = UnitRequest { stack, service, index, id, host: host.as_deref() };
        let mut request = unit.request(subject).map_err(|wrong| wrong.to_string())?;
        self.placer().permit(&request).map_err(|refusal| refusal.to_string())?;
        if placing.settled || !self.placer().platforms().has_asked(&request, brought) {
            self.complete(&mut request, brought).await;
        } else {
            // What it replaces may have stopped for it: a registry that does not answer would have it wait.
            self.placer().platforms().fill(&mut request, brought);
        }
        let begun = Instant::now();
        loop {
            let answer = self.place(&request, id, brought.clone(), None).await;
            let is_over = match &answer {
                Ok(answer) if answer.state == "unplaceable" => begun.elapsed() >= HOPELESS_AFTER,
                // What was freed a moment ago may still be on its way here.
                Err(Refusal::Contended | Refusal::Taken(_)) => begun.elapsed() >= HOPELESS_AFTER,
                Err(Refusal::Away(_) | Refusal::Uncertain(_) | Refusal::NoData | Refusal::Unread(_)) => return Ok(()),
                // Of what is not settled, what was begun goes on, and the ledger shows it.
                Ok(_) | Err(_) => true,
            };
            if !is_over {
                sleep(PAUSE).await;
                continue;
            }
            let outcome = match &answer {
                Ok(answer) => answer.state,
                Err(Refusal::Unsettled(_)) => crate::audit::UNSETTLED,
                Err(_) => "refused",
            };
            let line = AuditLine::new(Action::Place, subject, outcome).about(id, &answer);
            self.placer().audit().put(&line);
            return match answer {
                Ok(answer) if answer.state == "placed" => Ok(()),
                Ok(answer) => Err(answer.error.unwrap_or_else(|| answer.state.to_owned())),
                Err(Refusal::Unsettled(_)) => Ok(()),
                Err(refusal) => Err(refusal.to_string()),
            };
        }
    }

    /// Begins another step.
    pub(super) fn begin_step(self: &Arc<Self>, stack: &Text, step: Step) {
        let (id, flight) = match &step {
            Step::Place { .. } => return,
            Step::StartKept { id } => (id.clone(), Flight::Starting),
            Step::StopKept { id } | Step::Remove { id } | Step::Evict { id, .. } => (id.clone(), Flight::Ending),
        };
        self.take_off(stack, &id, flight);
        let (starter, stack) = (self.clone(), stack.clone());
        self.spawn(async move {
            let done = match &step {
                Step::StartKept { .. } => starter.start_kept(&id, &[0], None).await,
                Step::StopKept { .. } => starter.stop_units(&id, &[0], None, None).await,
                Step::Evict { .. } => starter.evict(&id).await,
                Step::Place { .. } | Step::Remove { .. } => starter.remove_unit(&id).await,
            };
            let now = starter.clock().now();
            match &done {
                Ok(()) => info!(%stack, %step, "done"),
                Err(Refusal::Unsettled(why)) => info!(%stack, %step, %why, "goes on"),
                Err(why) => {
                    warn!(%stack, %step, %why, "not done");
                    starter.with_stack(&stack, |memory| {
                        // The same step would follow at once.
                        let key = Text::from(step.to_string());
                        memory.fail_later((key, id.clone()), why.to_string(), None, now);
                    });
                }
            }
            starter.land(&stack, &id);
        });
    }

    /// Removes a unit, or evicts it when its host is away: that one cannot be asked.
    async fn remove_unit(self: &Arc<Self>, id: &Text) -> Result<(), Refusal> {
        let now = self.clock().now();
        let host = self.placer().with_any(now, |book| Some(book.record(id)?.replicas.first()?.host.clone()));
        let inventory = self.placer().inventory();
        if let Some(host) = host.filter(|host| inventory.hosts().index(host).is_none()) {
            info!(%id, %host, "its host is away: it is removed when that is back");
            return self.evict(id).await;
        }
        match self.release(id, None, None, |_| ()).await {
            Ok(_) | Err(Refusal::Unknown(_)) => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// Evicts a unit whose host is away.
    async fn evict(&self, id: &Text) -> Result<(), Refusal> {
        self.placer().evict(id, self.clock()).await?;
        self.evictions.inc();
        Ok(())
    }

    fn take_off(&self, stack: &Text, id: &Text, flight: Flight) {
        let now = self.clock().now();
        self.with_stack(stack, |memory| {
            memory.begun.insert(id.clone(), now);
            memory.in_flight.insert(id.clone(), flight);
        });
    }

    fn land(&self, stack: &Text, id: &Text) {
        self.with_stack(stack, |memory| drop(memory.in_flight.remove(id)));
        self.touch_stack(stack);
    }

    /// Hands what is remembered of a stack to `act`.
    pub(super) fn with_stack<T>(&self, stack: &Text, act: impl FnOnce(&mut StackMemory) -> T) -> T {
        act(lock(&self.stack_memory).stacks.entry(stack.clone()).or_default())
    }

    /// Has a stack begun afresh that somebody asked for: what failed is tried again.
    pub(crate) fn ask_for_stack(&self, stack: &Text, brought: RequestCredentials) {
        self.with_stack(stack, |memory| {
            memory.forget_failures();
            memory.brought = brought;
        });
        self.touch_stack(stack);
    }

    /// Has a stack looked at.
    pub(crate) fn touch_stack(&self, stack: &Text) {
        lock(&self.stack_memory).touched.insert(stack.clone());
        self.stacks_changed.notify_one();
    }
}
