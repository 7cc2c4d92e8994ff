//! Looking: what engines still have and how it is, which of them do not answer, and what is waited for.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::EngineError;
use model::{Container, Text, engine_uuid};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::ledger::record::Replica;
use crate::lock::lock;
use crate::place::answer::Placement;
use crate::place::life::{EngineAnswer, Life};
use crate::place::work::StartedUnit;
use crate::start::Starter;

/// How often engines are asked what is still there, and how it is.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Longest wait for engines when a client asks for the current state of containers; what has not answered by then is
/// reported as it was known.
const REFRESH_TIME: Duration = Duration::from_secs(2);

/// Most engines that are only asked whether they are there, at one look: each of many schedulers asks as many, so an
/// engine of as many hosts as there are schedulers hears three of these questions in a second.
const PINGS_MAX: usize = 32;

/// Pauses between two questions to an engine whether it answers again: the first one, and the longest.
const PROBE_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

impl Starter {
    /// Asks engines what is still there and how it is, until `stop`; what is gone is given back.
    pub(crate) async fn look(self: Arc<Self>, stop: CancellationToken) {
        loop {
            // In no case does a start stay unfinished for ever.
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

    /// Asks engines how the containers of one placement are, as far as they answer in time.
    pub(super) async fn look_at_placement(self: &Arc<Self>, id: &Text) {
        // The others stay as they were known.
        let _ = timeout(REFRESH_TIME, self.look_at_containers(id)).await;
    }

    async fn look_at_containers(self: &Arc<Self>, id: &Text) {
        let mut looking = JoinSet::new();
        for (host, container) in self.placer.containers_of(id, self.clock.now()) {
            let starter = self.clone();
            looking.spawn(async move {
                let inventory = starter.placer.inventory();
                starter
                    .look_at_container(&host, &container, inventory.containers().get(&engine_uuid(&container)))
                    .await;
            });
        }
        while looking.join_next().await.is_some() {}
    }

    /// Asks the engine of a host how a container is that the cluster shows like this.
    pub(crate) async fn look_at_container(&self, host: &Text, container: &Text, shown: Option<&Arc<Container>>) {
        let Ok((docker, _)) = self.docker(host) else { return };
        let life = match docker.find(container).await {
            Ok(found) => found.life,
            Err(EngineError::Absent(_)) => Life::gone(),
            Err(_) => return,
        };
        self.note_answer(container, EngineAnswer::now(life, shown));
    }

    async fn look_around(self: &Arc<Self>, all: bool) {
        let mut looking = JoinSet::new();
        // What is being started is known here before it is in the ledger.
        let calm = lock(&self.jobs).is_empty();
        let by_host = self.placer.started(all, self.clock.now());
        if calm && !all {
            let known: HashSet<_> =
                by_host.values().flatten().flat_map(|unit| unit.containers.iter().cloned()).collect();
            lock(&self.lives).retain(|container, _| known.contains(container));
        }
        let idle = if all { Vec::new() } else { self.next_to_ping(|host| by_host.contains_key(host)) };
        for (host, units) in by_host {
            let starter = self.clone();
            looking.spawn(async move { starter.look_at(&host, units, all).await });
        }
        if !all {
            let starter = self.clone();
            looking.spawn(async move { starter.sweep().await });
            if let Some(logs) = &self.access.last_logs {
                logs.clean();
            }
            for host in idle {
                let starter = self.clone();
                looking.spawn(async move { starter.ping(&host).await });
            }
        }
        while looking.join_next().await.is_some() {}
    }

    /// Hosts of whose engines nothing else is asked at this look: others each time, until all had their turn.
    fn next_to_ping(&self, is_asked: impl Fn(&Text) -> bool) -> Vec<Text> {
        let mut hosts = self.placer.with_engines(usize::MAX);
        hosts.retain(|host| !is_asked(host));
        let first = self.pinged.fetch_add(PINGS_MAX, Ordering::Relaxed);
        if !hosts.is_empty() {
            let len = hosts.len();
            hosts.rotate_left(first % len);
        }
        hosts.truncate(PINGS_MAX);
        hosts
    }

    /// Finds out whether an engine is there that runs nothing of ours: it would be the first one to be chosen.
    async fn ping(self: &Arc<Self>, host: &Text) {
        let Ok((docker, _)) = self.docker(host) else { return };
        let listed = match docker.answers().await {
            Ok(()) => docker.list().await,
            Err(error) => return self.note(host, &error),
        };
        if let Ok(found) = listed {
            self.meet(host, &docker, &found);
        }
    }

    async fn look_at(self: &Arc<Self>, host: &Text, units: Vec<StartedUnit>, all: bool) {
        // What is on an engine that does not answer stays as it is.
        let Ok((docker, _)) = self.docker(host) else { return };
        let found = match docker.list().await {
            Ok(found) => found,
            Err(error) => return self.note(host, &error),
        };
        if !all {
            self.meet(host, &docker, &found);
        }
        // Whether one is healthy that the cluster does not show, only its engine says, and its list does not.
        let inventory = self.placer.inventory();
        let is_shown = |id: &Text| inventory.containers().get(&engine_uuid(id)).is_some();
        for StartedUnit { id, at, containers, ours } in units {
            let there = |container: &Text| found.iter().find(|one| one.id == *container);
            if ours && !containers.is_empty() && !containers.iter().any(|container| there(container).is_some()) {
                info!(%id, %host, "the container is gone, and its room given back");
                self.placer.gone(&id, at, &containers, self.clock.now());
                continue;
            }
            // The scheduler that has the placement gives its room back.
            for gone in containers.iter().filter(|container| all && there(container).is_none()) {
                self.learn(gone, Life::gone());
            }
            for one in containers.iter().filter_map(there) {
                let known = lock(&self.lives).get(&one.id).is_some_and(|known| {
                    known.life.state == one.state && (known.life.health.is_none() || is_shown(&one.id))
                });
                if (all || !known)
                    && let Ok(found) = docker.find(&one.id).await
                {
                    self.learn(&one.id, found.life);
                }
            }
        }
    }

    /// Says of placements how their containers are, and what those wait for that are being started or removed.
    pub(crate) fn describe(&self, placements: &mut [Placement]) {
        let inventory = self.placer.inventory();
        let units = placements.iter_mut().flat_map(|placement| {
            let id = &placement.id;
            placement.placements.iter_mut().map(move |unit| (id, unit))
        });
        for (id, unit) in units {
            let elsewhere = |name: &Text| self.placer.work_elsewhere(id, Some(name), self.clock.now());
            let lost = || match inventory.hosts().index(&unit.host.uuid).map(|host| inventory.hosts().facts(host)) {
                None => Some("its host is lost: the source of the cluster does not list it any more".to_owned()),
                Some(facts) => facts.refusal.clone().filter(|_| &*facts.state == "disconnected"),
            };
            let away = self.placer.silent_engines().why(&unit.host.uuid).or_else(lost);
            for one in &mut unit.containers {
                let known_life = one.container.as_ref().and_then(|container| Some(self.answer(container)?.life));
                let shown = || Some(Life::of_snapshot(inventory.containers().get(one.uuid.as_ref()?)?));
                let life = known_life.or_else(shown);
                let own = lock(&self.waits).get(&one.name).cloned();
                let waits = own.or_else(|| elsewhere(&one.name)).filter(|_| one.is_at_work());
                let shown = one.uuid.as_ref().and_then(|uuid| inventory.containers().get(uuid));
                one.describe(life, waits, away.as_ref(), shown.map(|container| &**container));
            }
        }
    }

    /// Remembers how a container is.
    pub(super) fn learn(&self, container: &Text, life: Life) {
        let inventory = self.placer.inventory();
        self.note_answer(container, EngineAnswer::now(life, inventory.containers().get(&engine_uuid(container))));
    }

    fn note_answer(&self, container: &Text, answer: EngineAnswer) {
        let mut lives = lock(&self.lives);
        let is_news = lives.get(container).is_none_or(|known| known.is_outdone_by(&answer));
        lives.insert(container.clone(), answer);
        drop(lives);
        if is_news {
            lock(&self.stack_memory).touched_all = true;
            self.stacks_changed.notify_one();
        }
    }

    /// What the engine of a container said last.
    pub(crate) fn answer(&self, container: &Text) -> Option<EngineAnswer> {
        lock(&self.lives).get(container).cloned()
    }

    /// Remembers what the containers of a unit wait for, or that they wait for nothing any more.
    pub(super) fn wait_for(&self, replica: &Replica, what: Option<&str>) {
        let mut waits = lock(&self.waits);
        for held in &replica.members {
            match what {
                Some(what) => drop(waits.insert(held.name.clone(), what.to_owned())),
                None => drop(waits.remove(&held.name)),
            }
        }
    }

    /// The unit is tried again at a later look, since its engine said this.
    pub(super) fn wait_for_engine(self: &Arc<Self>, replica: &Replica, error: &EngineError) {
        self.wait_for(replica, Some(&format!("waits for the Docker Engine of {}: {error}", replica.host_name)));
        self.note(&replica.host, error);
    }

    /// Takes note of an engine that does not answer: nothing is placed on its host until it does again.
    pub(super) fn note(self: &Arc<Self>, host: &Text, error: &EngineError) {
        if !error.is_away() || !self.placer.silent_engines().insert(host, error.to_string()) {
            return;
        }
        warn!(%host, error = %error, "nothing is placed on this host until its engine answers");
        let (starter, host) = (self.clone(), host.clone());
        self.tasks.spawn(async move {
            let [mut pause, longest] = PROBE_PAUSES;
            while starter.stop.run_until_cancelled(sleep(pause)).await.is_some() {
                // A host that is gone needs no engine.
                let Ok((docker, _)) = starter.docker(&host) else { break };
                match starter.stop.run_until_cancelled(docker.ping()).await {
                    Some(Err(error)) if error.is_away() => {
                        starter.placer.silent_engines().insert(&host, error.to_string());
                    }
                    Some(_) => {
                        info!(%host, "its engine answers again");
                        break;
                    }
                    None => break,
                }
                pause = (pause * 2).min(longest);
            }
            starter.placer.silent_engines().remove(&host);
        });
    }
}
