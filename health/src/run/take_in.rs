//! What is to be checked, as containers and hosts come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::checkers::Hosts;
use model::health::BadCheck;
use model::panic::Share;
use model::{Container, Entity as _, Snapshot, Text, changes};
use source::{ETCD, ETCD_WRITES, PUBLISHED};
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

impl Health {
    /// Takes in what is to be checked now; `settled` says that the hosts that check have been the same for long enough.
    pub(super) fn take_in(&self, turn: &mut Turn, settled: bool) {
        let snapshot = self.snapshots.load_full();
        let old = std::mem::replace(&mut turn.before, snapshot.clone());
        let local = |snapshot: &Snapshot| snapshot.local_host.as_ref().map(|host| host.uuid().clone());
        let now = self.now();
        let mut known = self.known();
        let moves = self.roster_moves(&mut known, &snapshot, turn, settled);
        // Others ask a container whose ports are published at its host's address.
        let has_moved = changes(&old.hosts, &snapshot.hosts).any(|change| match change.sides() {
            (Some(before), Some(after)) => before.address() != after.address(),
            _ => false,
        });
        let is_all = moves || has_moved || local(&old) != local(&snapshot);
        let mut concerned = match self.scope {
            Scope::Cluster => turn.budget.take_in(&old.containers, &snapshot.containers),
            Scope::Own | Scope::All => BTreeSet::new(),
        };
        for change in changes(&old.containers, &snapshot.containers) {
            let (before, after) = change.sides();
            concerned.extend(before.into_iter().chain(after).map(|container| container.uuid().clone()));
            turn.sharers.change(before, after);
        }
        // A container without an address of its own is asked at that of the one whose network it shares.
        let sharers: Vec<Text> = concerned.iter().flat_map(|uuid| turn.sharers.of(uuid)).cloned().collect();
        concerned.extend(sharers);
        let mut found: BTreeMap<Text, Result<Assigned, BadCheck>> = BTreeMap::new();
        let mut look = |container: &Container, roster: &Roster| match assigned(
            self.scope,
            &snapshot,
            container,
            roster,
            &turn.budget,
        ) {
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
        let mut beyond = 0;
        for uuid in concerned {
            known.wrong.remove(&uuid);
            let before = known.assigned.remove(&uuid);
            let has_room = self.scope != Scope::All || known.assigned.len() < TARGETS_OF_ALL_MAX;
            let one = match found.remove(&uuid) {
                Some(Ok(one)) if has_room => Some(one),
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
                        (true, true) => turn.verdicts.state(&uuid, target.start).or(said),
                        _ => snapshot.containers.get(&uuid).map(|container| published(container)),
                    };
                    let opinion = known_state.unwrap_or(HealthState::Initializing).opinion();
                    known.wheel.set(target, rank, opinion, now);
                }
                None => drop(known.wheel.remove(&uuid)),
            }
            known.assigned.insert(uuid, one);
            turn.has_news = true;
        }
        self.say_beyond(turn, beyond, &snapshot);
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
        let reasons = self.readiness.reasons();
        let is_alone = [ETCD, ETCD_WRITES, PUBLISHED].iter().any(|part| reasons.contains_key(part));
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

    /// Logs how many containers are not checked, or by this host alone, since they are too many.
    fn say_beyond(&self, turn: &mut Turn, of_all: usize, snapshot: &Snapshot) {
        let local = snapshot.local_host.as_ref().filter(|_| self.scope == Scope::Cluster);
        let beyond = of_all + local.map_or(0, |local| turn.budget.beyond(local.uuid()));
        let before = std::mem::replace(&mut turn.beyond, beyond);
        if beyond == 0 || before > 0 {
            return;
        }
        if self.scope == Scope::All {
            warn!(beyond, "not all containers are checked: they are more than {TARGETS_OF_ALL_MAX}");
        } else {
            warn!(
                beyond,
                "this host alone checks some of its containers: together they would be asked too often by others"
            );
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

/// Which containers share the network of each other one.
#[derive(Debug, Default)]
pub(super) struct Sharers(BTreeMap<Text, BTreeSet<Text>>);

impl Sharers {
    /// Takes in that a container has changed, come or gone.
    fn change(&mut self, before: Option<&Arc<Container>>, after: Option<&Arc<Container>>) {
        if let Some((container, from)) = before.and_then(|container| Some((container, container.network_from()?)))
            && let Some(sharers) = self.0.get_mut(from)
        {
            sharers.remove(container.uuid());
            if sharers.is_empty() {
                self.0.remove(from);
            }
        }
        if let Some((container, from)) = after.and_then(|container| Some((container, container.network_from()?))) {
            self.0.entry(from.clone()).or_default().insert(container.uuid().clone());
        }
    }

    /// Those that share the network of this one.
    fn of(&self, uuid: &Text) -> impl Iterator<Item = &Text> {
        self.0.get(uuid).into_iter().flatten()
    }
}

/// The name of a container, for people.
fn name(snapshot: &Snapshot, uuid: &Text) -> Text {
    snapshot.containers.get(uuid).and_then(|container| container.name()).unwrap_or(uuid).clone()
}
