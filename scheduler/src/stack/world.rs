//! What there is of a stack, from the ledger, the cluster and what engines said last. ◇

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use model::{Container, Text};
use stacks::{Service, Stack, State, Unit, World};

use crate::ledger::book::Book;
use crate::ledger::record::{PromiseState, PromisedContainer, Record, Replica, Stage};
use crate::ledger::stack::StackUnit;
use crate::place::inventory::Inventory;
use crate::place::life::{EngineAnswer, Life};
use crate::stack::memory::{Flight, Memory, StackMemory};

/// What a unit is seen with.
pub(super) struct Look<'a> {
    pub(super) inventory: &'a Inventory,
    /// What its engine said of a container, by the engine's id.
    pub(super) answer: &'a dyn Fn(&Text) -> Option<EngineAnswer>,
    /// What has to be asked before the plan can count on it.
    pub(super) doubts: RefCell<Vec<Doubt>>,
    pub(super) now: Duration,
    /// Whether the scheduler sees its ledger and the cluster.
    pub(super) sees: bool,
}

/// A container that the cluster shows as ended, while its engine said that it runs: one of the two is older.
#[derive(Debug)]
pub(super) struct Doubt {
    pub(super) host: Text,
    /// The engine's id.
    pub(super) id: Text,
    pub(super) shown: Arc<Container>,
}

impl Look<'_> {
    /// The world of a stack; takes note of since when things are so.
    pub(super) fn world(&self, book: &Book, stack: &Stack, memory: &mut Memory) -> World {
        let mut own = memory.stacks.remove(&stack.name).unwrap_or_default();
        let mut units: Vec<Unit> = Vec::new();
        for (id, record) in book.units_of_stack(&stack.name) {
            if let Some(unit) = &record.unit {
                units.push(self.unit((id, record, unit), stack, memory, &mut own));
            }
        }
        for (id, flight) in &own.in_flight {
            // Not in the ledger yet.
            if let Flight::Placing { service, index, digest } = flight
                && !units.iter().any(|unit| unit.id == *id)
            {
                units.push(coming(id, (service, index, digest), State::Starting, self.now));
            }
        }
        for (id, failed) in &own.failed {
            if !units.iter().any(|unit| unit.id == *id) {
                let names = (&failed.service, &failed.index, &failed.digest);
                units.push(coming(id, names, State::Failed(failed.why.clone()), self.now));
            }
        }
        let known: BTreeSet<&Text> = units.iter().map(|unit| &unit.id).collect();
        own.healthy.retain(|id, _| known.contains(id));
        own.begun.retain(|id, _| known.contains(id));
        memory.stacks.insert(stack.name.clone(), own);
        let sees_most = self.sees && self.sees_most(memory);
        let ending = units.iter().filter(|unit| unit.state == State::Removing).map(|unit| &unit.host);
        let gone = ending.filter(|host| is_gone(self.inventory, host)).cloned().collect();
        World { units, gone, sees_most, now: self.now, ..World::default() }
    }

    /// Whether at least half of all hosts that were seen are there.
    fn sees_most(&self, memory: &Memory) -> bool {
        let hosts = self.inventory.hosts();
        let count = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
        let there = (0..count).filter(|host| !is_lost(&hosts.facts(*host).state)).count();
        there > 0 && there >= memory.gone.len()
    }

    fn unit(
        &self,
        (id, record, unit): (&Text, &Record, &StackUnit),
        stack: &Stack,
        memory: &mut Memory,
        own: &mut StackMemory,
    ) -> Unit {
        let rollout = stack.services.iter().find(|rollout| rollout.wanted.name == unit.service);
        let service = rollout.map(|rollout| &rollout.wanted);
        let host = record.replicas.first().map(|replica| replica.host.clone()).unwrap_or_default();
        let mut state = match record.replicas.first() {
            None => State::Starting,
            Some(replica) => self.state((unit, replica), service, memory),
        };
        match own.in_flight.get(id) {
            Some(Flight::Ending) => state = State::Removing,
            Some(Flight::Starting) if state == State::Kept => state = State::Starting,
            Some(Flight::Placing { .. }) if matches!(state, State::Healthy(_)) => {}
            Some(_) | None => {}
        }
        if let State::Healthy(since) = &mut state {
            *since = *own.healthy.entry(id.clone()).or_insert(self.now);
        } else if own.healthy.remove(id).is_some() {
            // It has as long to become healthy again as it had at first.
            own.begun.insert(id.clone(), self.now);
        }
        let made = *own.begun.entry(id.clone()).or_insert(self.now);
        Unit {
            id: id.clone(),
            service: unit.service.clone(),
            index: unit.index.clone(),
            digest: unit.digest.clone(),
            host,
            made,
            placed: record.made,
            state,
        }
    }

    fn state(&self, (unit, replica): (&StackUnit, &Replica), service: Option<&Service>, memory: &mut Memory) -> State {
        let is_there = !is_gone(self.inventory, &replica.host);
        if unit.evicted {
            return if is_there { State::Returned } else { State::Evicted };
        }
        match replica.stage {
            Stage::Undoing | Stage::Stopping => return State::Removing,
            // To go back to a job that is done takes no other run of it.
            Stage::Kept if unit.done && service.is_some_and(|service| service.digest == unit.digest) => {
                return State::Done;
            }
            Stage::Kept => return State::Kept,
            _ => {}
        }
        if unit.done {
            return State::Done;
        }
        if !is_there {
            return State::Lost(*memory.gone.entry(replica.host.clone()).or_insert(self.now));
        }
        if replica.stage != Stage::Started {
            return State::Starting;
        }
        let is_job = service.is_some_and(|service| service.job);
        let members: Vec<State> = replica
            .members
            .iter()
            .enumerate()
            .map(|(at, held)| {
                let once = is_job || at > 0 && service.is_some_and(|service| is_once(service, at - 1));
                self.container(&replica.host, held, once)
            })
            .collect();
        let first = |is: fn(&State) -> bool| members.iter().find(|state| is(state)).cloned();
        first(|state| matches!(state, State::Failed(_)))
            .or_else(|| first(|state| matches!(state, State::Ended(_))))
            .or_else(|| first(|state| matches!(state, State::Unhealthy)))
            .or_else(|| first(|state| matches!(state, State::Starting)))
            .or_else(|| first(|state| matches!(state, State::Healthy(_))))
            .unwrap_or(State::Done)
    }

    /// How a container is; one that runs once may end.
    fn container(&self, host: &Text, held: &PromisedContainer, once: bool) -> State {
        let known = held.container.as_ref().and_then(|id| (self.answer)(id));
        let shown = match &held.state {
            PromiseState::Settled(uuid) => self.inventory.containers().get(uuid),
            PromiseState::Reserved => None,
            PromiseState::Over => return State::Ended("its container is gone".into()),
        };
        match shown {
            Some(container) => of_container(container, known, once).unwrap_or_else(|| {
                let id = held.container.clone().unwrap_or_default();
                self.doubts.borrow_mut().push(Doubt { host: host.clone(), id, shown: container.clone() });
                State::Starting
            }),
            // The cluster does not show containers that have ended, and may show none at all.
            None => known.map_or(State::Starting, |known| of_life(&known.life, once)),
        }
    }
}

/// How a container is that the cluster shows; `None` if only its engine can say which is older: that it has ended, or that it runs.
fn of_container(container: &Arc<Container>, known: Option<EngineAnswer>, once: bool) -> Option<State> {
    let shown = Life::of_snapshot(container);
    let life = match known {
        _ if shown.runs() => shown,
        // With which code it ended only its engine says.
        Some(known) if !known.life.runs() || known.is_after(container) => known.life,
        Some(_) => return None,
        None => shown,
    };
    Some(of_life(&life, once))
}

fn of_life(life: &Life, once: bool) -> State {
    if life.runs() {
        return match life.health.as_deref() {
            None | Some("healthy" | "updating-healthy") => State::Healthy(Duration::ZERO),
            Some("unhealthy" | "updating-unhealthy") => State::Unhealthy,
            Some(_) => State::Starting,
        };
    }
    match (&*life.state, life.exit_code) {
        ("created" | "starting", _) => State::Starting,
        ("restarting" | "paused", _) => State::Unhealthy,
        ("exited", Some(0)) if once => State::Done,
        ("exited", None) if once => State::Starting,
        ("exited", Some(code)) if once => State::Failed(format!("it ended with code {code}").into()),
        ("exited", Some(code)) => State::Ended(format!("it ended with code {code}").into()),
        (state, _) => State::Ended(format!("it is {state}").into()),
    }
}

/// Whether a host is gone, as far as the cluster says.
pub(crate) fn is_gone(inventory: &Inventory, host: &str) -> bool {
    let hosts = inventory.hosts();
    hosts.index(host).is_none_or(|host| is_lost(&hosts.facts(host).state))
}

/// Whether a host in this state may be alive, and is not seen.
fn is_lost(state: &str) -> bool {
    state == "disconnected"
}

/// Whether a sidekick is said to run once.
fn is_once(service: &Service, sidekick: usize) -> bool {
    let sidekick = service.request.list("sidekicks").get(sidekick).and_then(model::Value::as_map);
    sidekick.is_some_and(|map| map.text("restart").is_some_and(|word| &**word == "no"))
}

fn coming(id: &Text, (service, index, digest): (&Text, &Text, &Text), state: State, now: Duration) -> Unit {
    Unit {
        id: id.clone(),
        service: service.clone(),
        index: index.clone(),
        digest: digest.clone(),
        host: Text::default(),
        made: now,
        placed: now,
        state,
    }
}

#[cfg(test)]
mod tests {
    use model::{Map, Value};

    use super::*;

    fn life(state: &str, health: Option<&str>, exit_code: Option<i64>) -> Life {
        Life { state: state.into(), health: health.map(Text::from), exit_code, since: None }
    }

    #[test]
    fn what_runs_is_healthy_unless_its_checks_say_otherwise() {
        let healthy = State::Healthy(Duration::ZERO);
        for (health, expected) in [
            (None, healthy.clone()),
            (Some("healthy"), healthy),
            (Some("unhealthy"), State::Unhealthy),
            (Some("initializing"), State::Starting),
            (Some("starting"), State::Starting),
        ] {
            assert_eq!(of_life(&life("running", health, None), false), expected, "{health:?}");
        }
    }

    #[test]
    fn an_engine_that_said_otherwise_is_asked_before_what_is_shown_stopped_counts_as_ended() {
        let shown = |state: &str| {
            let fields =
                [("state", state), ("uuid", "web")].map(|(key, value)| (key.into(), Value::Text(value.into())));
            Arc::new(Container::new(fields.into_iter().collect(), Map::default()).unwrap())
        };
        let (running, stopped) = (shown("running"), shown("stopped"));
        let said = |state, code, before| Some(EngineAnswer::now(life(state, None, code), before));
        let healthy = State::Healthy(Duration::ZERO);
        for (case, container, known, expected) in [
            ("nothing is known", &stopped, None, Some(State::Ended("it is exited".into()))),
            ("it ran before", &stopped, said("running", None, Some(&running)), None),
            ("it ran before it was shown", &stopped, said("running", None, None), None),
            ("it was started again since", &stopped, said("running", None, Some(&stopped)), Some(healthy.clone())),
            (
                "it ended since",
                &stopped,
                said("exited", Some(3), Some(&running)),
                Some(State::Ended("it ended with code 3".into())),
            ),
            ("it runs again", &running, said("exited", Some(3), Some(&stopped)), Some(healthy)),
        ] {
            assert_eq!(of_container(container, known, false), expected, "{case}");
        }
    }

    #[test]
    fn only_what_runs_once_may_end() {
        let ended = |code, once| of_life(&life("exited", None, code), once);
        assert_eq!(ended(Some(0), true), State::Done);
        assert_eq!(ended(Some(3), true), State::Failed("it ended with code 3".into()));
        assert_eq!(ended(None, true), State::Starting, "its engine will say how it ended");
        assert_eq!(ended(Some(0), false), State::Ended("it ended with code 0".into()));
        assert_eq!(ended(None, false), State::Ended("it is exited".into()));
        assert_eq!(of_life(&life("restarting", None, Some(1)), false), State::Unhealthy);
        assert_eq!(of_life(&life("created", None, None), false), State::Starting);
    }
}
