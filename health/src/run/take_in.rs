//! What is to be checked, as containers and hosts come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::checkers::Hosts;
use model::health::BadCheck;
use model::panic::Share;
use model::{Change, Container, Entity as _, Snapshot, Text, changes};
use source::ETCD;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{Health, Known, PART, Turn};
use crate::assigned::{Assigned, Roster, Scope, assigned};
use crate::reckoning::published;
use crate::verdict::HealthState;

/// Most containers of a whole cluster that one process checks, which is for trying it out.
const TARGETS_OF_ALL_MAX: usize = 1000;

/// How long the hosts that check have to stay the same before containers move between them.
const HOSTS_SETTLE: Duration = Duration::from_secs(1);

/// Most checks in 1,000 s that the containers of one other host cost this one, were they all initializing: 1,000 containers with an
/// interval of 500 ms or more, or 200 with the shortest one. It is some times what a host runs, and a fifth of a processor, so that no
/// host takes all the time of its checkers.
const CHECKS_OF_HOST_MAX: u64 = 2_000_000;

impl Health {
    /// Takes in what is to be checked now; `settled` says that the hosts that check have been the same for long enough.
    pub(super) fn take_in(&self, turn: &mut Turn, settled: bool) {
        let snapshot = self.snapshots.load_full();
        let old = std::mem::replace(&mut turn.before, snapshot.clone());
        let local = |snapshot: &Snapshot| snapshot.local_host.as_ref().map(|host| host.uuid().clone());
        let now = self.now();
        let mut known = self.known();
        let moves = self.roster_moves(&mut known, &snapshot, turn, settled);
        let is_all = moves || local(&old) != local(&snapshot);
        let mut concerned = BTreeSet::new();
        for change in changes(&old.containers, &snapshot.containers) {
            let (before, after) = match change {
                Change::Added(after) => (None, Some(after)),
                Change::Removed(before) => (Some(before), None),
                Change::Changed { old, new } => (Some(old), Some(new)),
            };
            concerned.extend(before.into_iter().chain(after).map(|container| container.uuid().clone()));
        }
        let mut found: BTreeMap<Text, Result<Assigned, BadCheck>> = BTreeMap::new();
        let mut look = |container: &Container, roster: &Roster| match assigned(self.scope, &snapshot, container, roster)
        {
            Ok(Some(one)) => drop(found.insert(container.uuid().clone(), Ok(one))),
            Ok(None) => {}
            Err(problem) => drop(found.insert(container.uuid().clone(), Err(problem))),
        };
        if is_all {
            concerned.extend(known.assigned.keys().chain(known.wrong.keys()).cloned());
            snapshot.containers.values().for_each(|container| look(container, &known.roster));
            concerned.extend(found.keys().cloned());
        } else {
            let there = concerned.iter().filter_map(|uuid| snapshot.containers.get(uuid));
            there.for_each(|container| look(container, &known.roster));
        }
        if concerned.is_empty() {
            return;
        }
        let wrong_before = known.wrong.clone();
        let mut load = Load::of(&known.assigned);
        let mut beyond = 0;
        for uuid in concerned {
            known.wrong.remove(&uuid);
            let before = known.assigned.remove(&uuid);
            if let Some(before) = &before {
                load.remove(before);
            }
            let one = match found.remove(&uuid) {
                Some(Ok(one)) if self.has_room(&load, &one) => Some(one),
                Some(Ok(_)) => {
                    beyond += 1;
                    None
                }
                Some(Err(problem)) => {
                    known.wrong.insert(uuid.clone(), problem);
                    None
                }
                None => None,
            };
            let Some(one) = one else {
                known.wheel.remove(&uuid);
                // What ended or is paused begins again when it runs, and what was said of another host's container is withdrawn.
                if let Some(before) = before {
                    if before.owner.is_none() {
                        turn.verdicts.restart(&uuid);
                    }
                    turn.has_news = true;
                }
                continue;
            };
            match one.rank {
                Some(rank) => {
                    let target = one.target.clone();
                    let said = target.known.filter(|_| self.scope == Scope::All);
                    let known_state = match (one.owner.is_none(), one.checkers.is_empty()) {
                        (true, true) => turn.verdicts.state(&uuid, target.start_count).or(said),
                        _ => snapshot.containers.get(&uuid).map(|container| published(container)),
                    };
                    let opinion = known_state.unwrap_or(HealthState::Initializing).opinion();
                    known.wheel.set(target, rank, opinion, now);
                }
                None => drop(known.wheel.remove(&uuid)),
            }
            load.add(&one);
            known.assigned.insert(uuid, one);
            turn.has_news = true;
        }
        if beyond > 0 && known.beyond == 0 {
            warn!(beyond, "not all containers are checked from here: they are too many, or checked too often");
        }
        known.beyond = beyond;
        self.report(&wrong_before, &known.wrong, &snapshot);
        // Nothing is known of no container: the engine has not answered yet.
        if known.assigned.values().any(|one| one.owner.is_none()) {
            let count = turn.verdicts.len();
            turn.verdicts.retain(|uuid| snapshot.containers.contains_key(uuid));
            turn.has_news |= turn.verdicts.len() < count;
        }
    }

    /// Reports that so few containers are well that their health is ignored, or that it is over.
    pub(super) fn say_panic(&self, snapshot: &Snapshot) {
        let Share { healthy, unhealthy } = snapshot.containers.shares().all();
        let warning = snapshot.is_panic.then(|| {
            let all = healthy + unhealthy;
            format!("{unhealthy} of {all} containers are unhealthy: health is ignored until half of them are well")
        });
        if let Some(warning) = &warning {
            warn!("{warning}");
        } else {
            info!("at least half of the containers are well: health counts again");
        }
        self.metrics.panic.set(snapshot.is_panic.into());
        self.readiness.warn(PART, warning);
    }

    /// Brings up to date who checks; returns whether containers may move between hosts for it.
    fn roster_moves(&self, known: &mut Known, snapshot: &Snapshot, turn: &mut Turn, settled: bool) -> bool {
        if self.exchange.is_none() {
            return false;
        }
        let is_alone = self.readiness.reasons().contains_key(ETCD);
        let own = snapshot.local_host.as_ref().and_then(|host| host.name()).cloned();
        let mut moves = (known.roster.is_alone, &known.roster.own) != (is_alone, &own);
        (known.roster.is_alone, known.roster.own) = (is_alone, own);
        let there = Hosts::of(&snapshot.hosts);
        if there == known.roster.hosts {
            turn.hosts_due = None;
            return moves;
        }
        // Who doubts itself counts no longer at once; who has come or gone moves containers, and others may follow.
        if settled || known.roster.hosts.is_empty() || there.are_same_hosts(&known.roster.hosts) {
            moves |= !there.are_same_hosts(&known.roster.hosts);
            (known.roster.hosts, turn.hosts_due) = (there, None);
            turn.has_news = true;
        } else {
            turn.hosts_due.get_or_insert_with(|| Instant::now() + HOSTS_SETTLE);
        }
        moves
    }

    /// Whether one more container may be checked.
    fn has_room(&self, load: &Load, one: &Assigned) -> bool {
        match (self.scope, &one.owner) {
            (Scope::All, _) => load.targets < TARGETS_OF_ALL_MAX,
            (_, None) => true,
            (_, Some(owner)) => {
                load.of_hosts.get(owner).copied().unwrap_or_default() + Load::cost(one) <= CHECKS_OF_HOST_MAX
            }
        }
    }

    /// Logs checks that are wrong, once each. Those of this host's containers are defects of its document as well.
    fn report(&self, before: &BTreeMap<Text, BadCheck>, now: &BTreeMap<Text, BadCheck>, snapshot: &Snapshot) {
        if self.scope != Scope::All {
            return;
        }
        for (uuid, problem) in now.iter().filter(|(uuid, problem)| before.get(*uuid) != Some(problem)) {
            let container = name(snapshot, uuid);
            warn!(%container, %problem, "its health check is wrong, so it is not checked");
        }
    }
}

/// What containers cost that are checked.
#[derive(Debug, Default)]
struct Load {
    targets: usize,
    /// Checks in 1,000 s of the containers of other hosts, by host.
    of_hosts: BTreeMap<Text, u64>,
}

impl Load {
    fn of(assigned: &BTreeMap<Text, Assigned>) -> Self {
        let mut load = Self::default();
        for one in assigned.values() {
            load.add(one);
        }
        load
    }

    fn add(&mut self, one: &Assigned) {
        self.targets += 1;
        if let Some(owner) = &one.owner {
            *self.of_hosts.entry(owner.clone()).or_default() += Self::cost(one);
        }
    }

    fn remove(&mut self, one: &Assigned) {
        self.targets -= 1;
        if let Some(of_host) = one.owner.as_ref().and_then(|owner| self.of_hosts.get_mut(owner)) {
            *of_host -= Self::cost(one);
        }
    }

    /// Most checks of a container in 1,000 s.
    fn cost(one: &Assigned) -> u64 {
        let millis = one.target.spec.shortest_period().as_millis().max(1);
        u64::try_from(1_000_000 / millis).unwrap_or(u64::MAX)
    }
}

/// The name of a container, for people.
fn name(snapshot: &Snapshot, uuid: &Text) -> Text {
    snapshot.containers.get(uuid).and_then(|container| container.name()).unwrap_or(uuid).clone()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::target::Target;

    fn one(owner: &str, uuid: &str, check: &str) -> Assigned {
        let fields =
            serde_json::from_str(&format!(r#"{{"uuid": "{uuid}", "health_check": {{"port": 80{check}}}}}"#)).unwrap();
        let container = Container::new(fields, model::Map::default()).unwrap();
        let spec = crate::target::check_of(container.fields()).unwrap().unwrap();
        let target = Target::new(&container, spec, ([192, 0, 2, 1], 80).into());
        Assigned { target, owner: Some(owner.into()), checkers: Vec::new(), rank: Some(0) }
    }

    #[test]
    fn containers_of_one_host_cost_a_bounded_number_of_checks() {
        for (check, expected) in [("", 1000), (r#", "interval": 100"#, 200), (r#", "interval": 3600000"#, 1000)] {
            let checker = crate::check::Checker::default();
            let metrics = crate::metrics::Metrics::register(&mut prometheus_client::registry::Registry::default());
            let snapshots = Arc::new(source::Store::new(Snapshot::default()));
            let verdicts = Arc::new(source::Store::new(crate::verdicts::Verdicts::default()));
            let health = Health::new(Scope::Cluster, checker, snapshots, verdicts, None, Arc::default(), metrics);
            let mut load = Load::default();
            let taken = (0..3000).filter(|number| {
                let one = one("liar", &format!("c{number}"), check);
                let has_room = health.has_room(&load, &one);
                if has_room {
                    load.add(&one);
                }
                has_room
            });
            assert_eq!(taken.count(), expected, "{check}");
            // Another host has room of its own, and one that goes makes room.
            assert!(health.has_room(&load, &one("honest", "c", check)));
            load.remove(&one("liar", "c0", check));
            assert!(health.has_room(&load, &one("liar", "c0", check)));
        }
    }
}
