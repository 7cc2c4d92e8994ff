//! One unit on its way: started where it is promised, on another host when that fails, or removed.

use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::answer::{Failure, HostName};
use crate::docker::Trouble;
use crate::keeper::NotKept;
use crate::ledger::draft::Unkept;
use crate::ledger::record::Stage;
use crate::start::attempt::Before;
use crate::start::flight::{Flight, Orders, Pilot};
use crate::start::progress::Teller;
use crate::start::{PAUSE_MAX, PAUSE_MIN, STUCK_AFTER};

/// How often a unit is given another new host because others promised room there at the same time.
const TRIES_ELSEWHERE: u32 = 32;

impl Pilot {
    /// Starts one unit, on another host when that fails, or removes it; gives what failed on the way, and whether the
    /// unit is as it should be.
    pub(super) async fn drive(&self, at: usize, tell: &Teller, orders: Orders) -> (Vec<Failure>, bool) {
        let (engine, clock) = (&self.starter.engine, self.starter.clock);
        let mut tried: Vec<Failure> = Vec::new();
        // On a host that was found just now no engine has heard of the unit.
        let mut fresh = orders.fresh;
        loop {
            let Some((request, replica)) = engine.unit(&self.id, at, &self.brought, clock.now()) else {
                return (tried, false);
            };
            if replica.stage == Stage::Undoing {
                if !self.undo(&replica, Before::default(), orders.grace, tell).await {
                    return (tried, false);
                }
                engine.abandon(&self.id, at, clock.now());
                self.is_kept().await;
                return (tried, true);
            }
            let started = self.start(&request, &replica, tell).await;
            self.starter.wait_for(&replica, None);
            let stopped = match started {
                Ok(containers) => {
                    let reached = engine.reached(&self.id, at, Stage::Started, &containers, clock.now());
                    if reached
                        && (!self.is_kept().await || engine.unit(&self.id, at, &self.brought, clock.now()).is_some())
                    {
                        return (tried, true);
                    }
                    // Its promise was given up meanwhile, by force.
                    self.undo(&replica, Before::default(), orders.grace, tell).await;
                    return (tried, false);
                }
                Err(stopped) if stopped.trouble == Trouble::Overtaken => {
                    if self.may_go_on(false).await {
                        fresh &= !stopped.touched.maybe;
                        continue;
                    }
                    // Whoever has it now goes on with it; what nobody has any more must not stay.
                    if engine.unit(&self.id, at, &self.brought, clock.now()).is_none() {
                        let before = Before { silent_since: stopped.touched.silent_since, failed: None };
                        self.undo(&replica, before, orders.grace, tell).await;
                    }
                    return (tried, false);
                }
                Err(stopped) => stopped,
            };
            warn!(id = %self.id, host = %replica.host_name, container = %stopped.container, error = %stopped.trouble, "not started");
            self.starter.note(&replica.host, &stopped.trouble);
            let host = HostName { uuid: replica.host.clone(), name: replica.host_name.clone() };
            tried.push(Failure { host, container: stopped.container.clone(), error: stopped.trouble.to_string() });
            if !fresh || stopped.touched.maybe {
                engine.reached(&self.id, at, Stage::Undoing, &[], clock.now());
                if !self.is_kept().await {
                    return (tried, false);
                }
                let before = Before { silent_since: stopped.touched.silent_since, failed: tried.last() };
                if !self.undo(&replica, before, orders.grace, tell).await {
                    return (tried, false);
                }
            }
            let again = !self.give_up.is_cancelled()
                && tried.len() < request.attempts as usize
                && request.requested_host.is_none()
                // Each of these units belongs to its host.
                && !request.global;
            if again && self.moved(at, &tried).await {
                fresh = true;
                continue;
            }
            if !again {
                engine.abandon(&self.id, at, clock.now());
            }
            self.is_kept().await;
            return (tried, false);
        }
    }

    /// Puts a unit on another host; `false` when there is none.
    async fn moved(&self, at: usize, tried: &[Failure]) -> bool {
        let (engine, clock) = (&self.starter.engine, self.starter.clock);
        for _ in 0..TRIES_ELSEWHERE {
            if !engine.elsewhere(&self.id, at, tried, &self.brought, clock.now()) {
                return false;
            }
            match self.kept().await {
                Ok(()) => return true,
                // Somebody else promised room there in between.
                Err(NotKept::Shared(Unkept::Conflict)) => {
                    engine.with_any(clock.now(), |book| book.collided(clock.now()));
                }
                // A new promise that is not on disk is none.
                Err(NotKept::Broken(_) | NotKept::Shared(Unkept::Blocked { .. })) => break,
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

    /// That a disk refuses is told by its own log. While etcd is away only it knows whose the placement is, so that is
    /// waited for.
    pub(super) async fn kept(&self) -> Result<(), NotKept> {
        let begun = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            match self.starter.engine.ledger().keeper().settled(&self.id).await {
                Err(NotKept::Shared(Unkept::Away(why))) if !self.starter.stop.is_cancelled() => {
                    if begun.elapsed() >= STUCK_AFTER {
                        self.told.send_replace(Flight::Stuck(why));
                    }
                }
                other => {
                    self.told.send_replace(Flight::Flying);
                    return other;
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
