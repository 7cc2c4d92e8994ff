//! Makes the checks of one process, and the verdicts that follow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use model::checkers::Hosts;
use model::health::{BadCheck, REQUEST_LABEL};
use model::panic::Share;
use model::votes::{Cast, Heard};
use model::{Change, Container, Entity as _, Snapshot, Text, changes};
use source::backoff::jittered;
use source::{ETCD, Readiness, Reasons, Store, Watcher};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use crate::assigned::{Assigned, Roster, Scope, assigned};
use crate::check::Checker;
use crate::metrics::Metrics;
use crate::opinion::{Outcome, Sample};
use crate::reckoning::{Standing, cast, poll, published};
use crate::suspicion::{Seen, Unreached, suspicion};
use crate::verdict::{HealthState, Quorum};
use crate::verdicts::{Verdict, Verdicts};
use crate::wheel::{Job, Wheel};

/// Most checks at a time, each of which has a socket. More would wait for the same processor.
const RUNNING_MAX: usize = 1024;

/// Most containers of a whole cluster that one process checks, which is for trying it out.
const TARGETS_OF_ALL_MAX: usize = 1000;

/// Time between two publications, so that many containers that fail together are news once. In a cluster each is a transaction.
const PUBLICATION_GAP: Duration = Duration::from_millis(10);
const PUBLICATION_GAP_CLUSTER: Duration = Duration::from_millis(50);

/// How long the hosts that check have to stay the same before containers move between them.
const HOSTS_SETTLE: Duration = Duration::from_secs(1);

/// Most containers of one other host that this one checks: some times what a host runs, so that no host takes all the time of its
/// checkers.
const TARGETS_OF_HOST_MAX: usize = 1000;

/// The part of the readiness that this speaks for.
const PART: &str = "health";

/// What is known of all checks, for those who ask.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) wheel: Wheel,
    /// All containers that are checked here or decided about, by uuid.
    pub(crate) assigned: BTreeMap<Text, Assigned>,
    /// Containers whose check is wrong, by uuid.
    pub(crate) wrong: BTreeMap<Text, BadCheck>,
    /// How many are not checked since they are too many.
    beyond: usize,
    pub(crate) roster: Roster,
    /// What speaks against this host's own results, if it doubts them.
    pub(crate) suspicion: Option<Unreached>,
}

/// What is exchanged with other hosts about the health of containers.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// What this host says of containers of others.
    pub cast: Arc<Store<Cast>>,
    /// The hosts whose votes about this host's containers count.
    pub checkers: Arc<Store<BTreeSet<Text>>>,
    /// Their votes.
    pub heard: Arc<Store<Heard>>,
    /// How many of them have to agree.
    pub quorum: Quorum,
}

/// The checks of one process.
#[derive(Clone, Debug)]
pub struct Health {
    scope: Scope,
    checker: Checker,
    /// What is checked.
    snapshots: Arc<Store<Snapshot>>,
    /// What follows.
    verdicts: Arc<Store<Verdicts>>,
    /// How others learn of it, and this host of others; only where they check each other's containers.
    pub(crate) exchange: Option<Exchange>,
    /// Says whether etcd is there, and learns when health is not to be trusted.
    readiness: Arc<Readiness>,
    known: Arc<Mutex<Known>>,
    /// The moment from which the wheel counts.
    start: Instant,
    metrics: Metrics,
}

/// Since when a container has not been well.
struct Unwell {
    /// In which of its starts.
    start_count: i64,
    /// By the wheel's clock.
    since: Duration,
    /// The last thing that was said against it.
    reason: Option<Text>,
}

/// What the loop alone knows.
struct Turn {
    before: Arc<Snapshot>,
    verdicts: Verdicts,
    /// Since when this host's containers have not been well in their present start, by uuid.
    unwell: BTreeMap<Text, Unwell>,
    standing: Standing,
    /// Whether something is to be reckoned.
    has_news: bool,
    reckoned: Instant,
    /// When it is to be reckoned although nothing has changed.
    due: Option<Duration>,
    /// When other hosts begin to check than before.
    hosts_due: Option<Instant>,
}

impl Health {
    /// Checks the containers in `snapshots`; `verdicts` holds those to begin with. Hosts check each other's containers with an
    /// `exchange`, which [`Scope::Cluster`] needs.
    pub fn new(
        scope: Scope,
        checker: Checker,
        snapshots: Arc<Store<Snapshot>>,
        verdicts: Arc<Store<Verdicts>>,
        exchange: Option<Exchange>,
        readiness: Arc<Readiness>,
        metrics: Metrics,
    ) -> Self {
        let known = Arc::default();
        Self { scope, checker, snapshots, verdicts, exchange, readiness, known, start: Instant::now(), metrics }
    }

    /// Its page, for the admin pages; `shown` are the snapshots with the verdicts in them.
    pub fn pages(&self, shown: Arc<Store<Snapshot>>) -> axum::Router {
        crate::pages::router(self.clone(), shown)
    }

    /// Makes checks. Never ends; drop it to stop.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; connections are then reset.
    pub async fn run(self) {
        let mut running = FuturesUnordered::new();
        let mut watcher = self.snapshots.watch();
        let mut heard = self.exchange.as_ref().map(|exchange| exchange.heard.watch());
        let mut readiness = self.exchange.as_ref().map(|_| self.readiness.watch());
        let mut turn = self.first_turn();
        let gap = if self.exchange.is_some() { PUBLICATION_GAP_CLUSTER } else { PUBLICATION_GAP };
        self.take_in(&mut turn, false);
        loop {
            while running.len() < RUNNING_MAX
                && let Some(job) = self.next_job()
            {
                running.push(self.check(job));
            }
            self.metrics.running.set(running.len().try_into().unwrap_or(i64::MAX));
            let due = if running.len() < RUNNING_MAX { self.known().wheel.next_due() } else { None };
            let reckon_at =
                if turn.has_news { Some(turn.reckoned + gap) } else { turn.due.map(|due| self.start + due) };
            tokio::select! {
                () = watcher.changed() => self.take_in(&mut turn, false),
                Some((job, sample)) = running.next() => {
                    turn.has_news |= self.finish(&job, sample);
                    // Those that ended at the same time need no turn each.
                    while let Some(Some((job, sample))) = running.next().now_or_never() {
                        turn.has_news |= self.finish(&job, sample);
                    }
                }
                () = sleep_until(self.start + due.unwrap_or_default()), if due.is_some() => {}
                () = sleep_until(reckon_at.unwrap_or(self.start)), if reckon_at.is_some() => self.reckon(&mut turn),
                () = changed(&mut heard) => turn.has_news = true,
                () = reasons_changed(&mut readiness), if readiness.is_some() => self.take_in(&mut turn, false),
                () = sleep_until(turn.hosts_due.unwrap_or(self.start)), if turn.hosts_due.is_some() => {
                    self.take_in(&mut turn, true);
                }
            }
        }
    }

    fn first_turn(&self) -> Turn {
        Turn {
            before: Arc::default(),
            verdicts: Verdicts::clone(&self.verdicts.load()),
            unwell: BTreeMap::new(),
            standing: Standing::default(),
            has_news: false,
            reckoned: self.start,
            due: None,
            hosts_due: None,
        }
    }

    /// What is known; short, since checks wait for it.
    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time by the wheel's clock.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn next_job(&self) -> Option<Job> {
        let now = self.now();
        self.known().wheel.take_due(now)
    }

    /// Makes a check.
    async fn check(&self, job: Job) -> (Job, Sample) {
        let at = self.now();
        self.metrics.late.observe(job.waited(at).as_secs_f64());
        let target = &job.target;
        let outcome = if job.is_stale(at) {
            Outcome::Unsure("this host was too busy to ask in time".into())
        } else if target.is_elsewhere {
            self.checker.check_elsewhere(target.address, &target.spec).await
        } else {
            self.checker.check(target.address, &target.spec).await
        };
        let took = self.now().saturating_sub(at);
        let outcome = job.judged(outcome, took);
        self.metrics.count(&job.target.spec, &outcome, took);
        (job, Sample { at, took, outcome })
    }

    /// Takes in what came of a check; returns whether something may follow from it.
    fn finish(&self, job: &Job, sample: Sample) -> bool {
        let now = self.now();
        let is_good = matches!(sample.outcome, Outcome::Pass);
        let mut known = self.known();
        let Known { wheel, assigned, suspicion, .. } = &mut *known;
        let is_others = assigned.get(&job.target.uuid).is_some_and(|one| one.owner.is_some());
        // One more bad result may make this host doubt itself, and a good one believe itself again.
        let may_doubt = is_others && is_good == suspicion.is_some();
        wheel.finish(job, sample, now, jittered).is_some() || may_doubt
    }

    /// Makes verdicts and votes of all that is known, and publishes what is new.
    fn reckon(&self, turn: &mut Turn) {
        let now = self.now();
        (turn.has_news, turn.reckoned, turn.due) = (false, Instant::now(), None);
        let mut known = self.known();
        self.doubt(&mut known, now);
        let heard = self.exchange.as_ref().map(|exchange| exchange.heard.load_full()).unwrap_or_default();
        let quorum = self.exchange.as_ref().map(|exchange| exchange.quorum).unwrap_or_default();
        let is_suspect = known.suspicion.is_some();
        let of_host =
            |uuid: &Text| turn.before.containers.get(uuid).map_or(HealthState::Initializing, |it| published(it));
        turn.verdicts.is_suspect = is_suspect;
        let (mut unwell, mut failed, mut timeout) = (BTreeMap::new(), BTreeMap::new(), None);
        for (uuid, one) in known.assigned.iter().filter(|(_, one)| one.owner.is_none()) {
            let check = known.wheel.get(uuid);
            let start_count = one.target.start_count;
            let before = turn.verdicts.state(uuid, start_count);
            // Votes differ from what all read; what this host alone thinks does not depend on that.
            let said = one.target.known.filter(|_| self.scope == Scope::All);
            let base = if one.checkers.is_empty() {
                before.or(said).unwrap_or(HealthState::Initializing)
            } else {
                of_host(uuid)
            };
            let opinion = check.map(|check| check.results.opinion());
            let poll = poll(one, opinion, &heard, &known.roster, is_suspect);
            let state = poll.verdict(base, quorum);
            // Nothing is decided until there is something to decide by.
            let is_decided = before.is_some() || state != base || !one.checkers.is_empty();
            let mut votes = one.checkers.iter().filter_map(|checker| heard.0.get(&(checker.clone(), uuid.clone())));
            let of_vote = || votes.find_map(|vote| vote.text("reason")).map(|reason| &**reason);
            let reason = check.and_then(|check| check.results.reason()).or_else(of_vote);
            if before != Some(state) && is_decided {
                info!(container = %one.target.name, state = state.word(), reason, "health");
                self.metrics.count_verdict(state);
                turn.verdicts.insert(uuid.clone(), Verdict { state, start_count });
            }
            // Of others it would be one more write without a reader.
            if state == HealthState::Healthy || !is_placed(&turn.before, uuid) {
                continue;
            }
            let known_unwell = turn.unwell.remove(uuid).filter(|unwell| unwell.start_count == start_count);
            let mut so_far = known_unwell.unwrap_or(Unwell { start_count, since: now, reason: None });
            so_far.reason = reason.map(Text::from).or(so_far.reason);
            let (since, reason) = (so_far.since, so_far.reason.clone());
            unwell.insert(uuid.clone(), so_far);
            if state == HealthState::Unhealthy && turn.verdicts.is_of_start(uuid, start_count) {
                if poll.is_down_for_all(state) {
                    failed
                        .insert(uuid.clone(), reason.unwrap_or_else(|| "its checkers say that it is unhealthy".into()));
                }
                continue;
            }
            // It has not been well since it was started.
            let spec = &one.target.spec;
            let limit = match state {
                HealthState::Initializing => spec.initializing_timeout,
                _ => spec.reinitializing_timeout,
            };
            if now >= since + limit {
                failed.insert(uuid.clone(), format!("not well within {} s of its start", limit.as_secs_f64()).into());
            } else {
                timeout = Some(timeout.map_or(since + limit, |due: Duration| due.min(since + limit)));
            }
        }
        turn.unwell = unwell;
        turn.verdicts.give_up(failed);
        let voted = known.assigned.iter().filter_map(|(uuid, one)| Some((one, known.wheel.get(uuid)?, of_host(uuid))));
        let before = self.exchange.as_ref().map(|exchange| exchange.cast.load_full()).unwrap_or_default();
        let (said, due) = cast(voted, &before, &mut turn.standing, is_suspect, now);
        let checkers = known.assigned.values().flat_map(|one| &one.checkers);
        let checkers: BTreeSet<Text> =
            checkers.filter(|name| known.roster.own.as_ref() != Some(name)).cloned().collect();
        drop(known);
        turn.due = due.into_iter().chain(timeout).min();
        if **self.verdicts.load() != turn.verdicts {
            self.verdicts.publish(Arc::new(turn.verdicts.clone()));
        }
        let Some(exchange) = &self.exchange else { return };
        if *before != said {
            self.metrics.votes.set(said.votes.len().try_into().unwrap_or(i64::MAX));
            self.metrics.overrides.set(said.overrides.len().try_into().unwrap_or(i64::MAX));
            exchange.cast.publish(Arc::new(said));
        }
        if **exchange.checkers.load() != checkers {
            exchange.checkers.publish(Arc::new(checkers));
        }
    }

    /// Looks whether this host is to doubt its own results.
    fn doubt(&self, known: &mut Known, now: Duration) {
        if self.exchange.is_none() {
            return;
        }
        let seen = known.assigned.iter().filter_map(|(uuid, one)| {
            let results = &known.wheel.get(uuid)?.results;
            let (failing_since, interval) = (results.failing_since(), one.target.spec.interval);
            Some(Seen { owner: one.owner.as_ref()?, failing_since, interval })
        });
        let found = suspicion(seen, known.suspicion.is_some(), now);
        match (&known.suspicion, &found) {
            (None, Some(Unreached { failing, targets, hosts })) => {
                let reason =
                    format!("cannot reach {failing} of {targets} containers on {hosts} hosts: this host's network?");
                warn!(%reason, "this host says nothing of the health of other hosts' containers");
                self.readiness.not_ready(PART, reason);
            }
            (Some(_), None) => {
                info!("this host reaches containers of other hosts again");
                self.readiness.ready(PART);
            }
            _ => {}
        }
        self.metrics.suspect.set(found.is_some().into());
        known.suspicion = found;
    }

    /// Takes in what is to be checked now; `settled` says that the hosts that check have been the same for long enough.
    fn take_in(&self, turn: &mut Turn, settled: bool) {
        let snapshot = self.snapshots.load_full();
        let old = std::mem::replace(&mut turn.before, snapshot.clone());
        if old.is_panic != snapshot.is_panic {
            self.say_panic(&snapshot);
        }
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
        let mut beyond = 0;
        for uuid in concerned {
            known.wrong.remove(&uuid);
            let before = known.assigned.remove(&uuid);
            let one = match found.remove(&uuid) {
                Some(Ok(one)) if self.has_room(&known.assigned, &one) => Some(one),
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
                // What ended or is paused begins again when it runs.
                if before.is_some_and(|before| before.owner.is_none()) {
                    turn.verdicts.restart(&uuid);
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
            known.assigned.insert(uuid, one);
            turn.has_news = true;
        }
        if beyond > 0 && known.beyond == 0 {
            let most = if self.scope == Scope::All { TARGETS_OF_ALL_MAX } else { TARGETS_OF_HOST_MAX };
            warn!(beyond, most, "not all containers are checked from here: they are too many");
        }
        known.beyond = beyond;
        self.report(&wrong_before, &known.wrong, &snapshot);
        self.metrics.targets.set(known.wheel.checks().count().try_into().unwrap_or(i64::MAX));
        // Nothing is known of no container: the engine has not answered yet.
        if known.assigned.values().any(|one| one.owner.is_none()) {
            let count = turn.verdicts.len();
            turn.verdicts.retain(|uuid| snapshot.containers.contains_key(uuid));
            turn.has_news |= turn.verdicts.len() < count;
        }
    }

    /// Reports that so few containers are well that their health is ignored, or that it is over.
    fn say_panic(&self, snapshot: &Snapshot) {
        let Share { healthy, unhealthy } = snapshot.containers.share();
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
    fn has_room(&self, assigned: &BTreeMap<Text, Assigned>, one: &Assigned) -> bool {
        match (self.scope, &one.owner) {
            (Scope::All, _) => assigned.len() < TARGETS_OF_ALL_MAX,
            (_, None) => true,
            (_, owner) => {
                // Nearly all hosts have fewer than one look is worth.
                assigned.len() < TARGETS_OF_HOST_MAX
                    || assigned.values().filter(|other| other.owner == *owner).count() < TARGETS_OF_HOST_MAX
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

/// Whether a scheduler started a container.
fn is_placed(snapshot: &Snapshot, uuid: &str) -> bool {
    let labels = snapshot.containers.get(uuid).and_then(|container| container.labels());
    labels.is_some_and(|labels| labels.get(REQUEST_LABEL).is_some())
}

async fn changed(watcher: &mut Option<Watcher>) {
    match watcher {
        Some(watcher) => watcher.changed().await,
        None => std::future::pending().await,
    }
}

/// Waits until the reasons against the readiness may be others.
async fn reasons_changed(reasons: &mut Option<tokio::sync::watch::Receiver<Reasons>>) {
    let Some(reasons) = reasons else { return std::future::pending().await };
    // The sender is in the exchange, which lives as long.
    if reasons.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The name of a container, for people.
fn name(snapshot: &Snapshot, uuid: &Text) -> Text {
    snapshot.containers.get(uuid).and_then(|container| container.name()).unwrap_or(uuid).clone()
}

#[cfg(test)]
mod tests {
    use model::{Host, Map};
    use prometheus_client::registry::Registry;

    use super::*;

    fn map(json: &str) -> Map {
        serde_json::from_str(json).unwrap()
    }

    /// This host and its containers, by name with their states.
    fn snapshot(containers: &[(&str, &str)]) -> Arc<Snapshot> {
        let host = Arc::new(Host::new(map(r#"{"uuid": "h", "name": "h"}"#), 0).unwrap());
        let mut snapshot = Snapshot { local_host: Some(host), ..Snapshot::default() };
        for (name, state) in containers {
            let fields = format!(
                r#"{{"uuid": "{name}", "host_uuid": "h", "state": "{state}", "primary_ip": "192.0.2.9",
                    "labels": {{"io.berth.health.port": "80", "io.berth.request": "{name}"}}}}"#
            );
            snapshot.containers.insert(Container::new(map(&fields), Map::default()).unwrap().into());
        }
        Arc::new(snapshot)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_well_in_time_after_its_start_is_given_up() {
        let snapshots = Arc::new(Store::new(Snapshot::default()));
        let verdicts = Arc::new(Store::new(Verdicts::default()));
        let checker = Checker::new(Arc::new(tls::client_of_nobody().unwrap())).unwrap();
        let metrics = Metrics::register(&mut Registry::default());
        let health =
            Health::new(Scope::Own, checker, snapshots.clone(), verdicts.clone(), None, Arc::default(), metrics);
        let mut turn = health.first_turn();
        snapshots.publish(snapshot(&[("a", "running")]));
        health.take_in(&mut turn, false);
        health.reckon(&mut turn);
        // The default, and exact.
        assert_eq!(turn.due, Some(Duration::from_mins(1)));
        tokio::time::advance(Duration::from_millis(59_999)).await;
        health.reckon(&mut turn);
        assert_eq!(verdicts.load().failed("a"), None);
        tokio::time::advance(Duration::from_millis(1)).await;
        health.reckon(&mut turn);
        assert_eq!(verdicts.load().failed("a").map(|why| &**why), Some("not well within 60 s of its start"));
        assert_eq!(turn.due, None);
    }

    #[tokio::test]
    async fn what_follows_from_the_end_of_containers_is_published_too() {
        let snapshots = Arc::new(Store::new(Snapshot::default()));
        let healthy = Verdict { state: HealthState::Healthy, start_count: 0 };
        let mut stored = Verdicts::default();
        for name in ["a", "b", "c"] {
            stored.insert(name.into(), healthy);
        }
        let verdicts = Arc::new(Store::new(stored));
        let checker = Checker::new(Arc::new(tls::client_of_nobody().unwrap())).unwrap();
        let metrics = Metrics::register(&mut Registry::default());
        let health =
            Health::new(Scope::Own, checker, snapshots.clone(), verdicts.clone(), None, Arc::default(), metrics);
        let mut turn = health.first_turn();
        let mut published = |containers: &[(&str, &str)]| {
            snapshots.publish(snapshot(containers));
            health.take_in(&mut turn, false);
            health.reckon(&mut turn);
            ["a", "b", "c"].map(|name| verdicts.load().state(name, 0))
        };
        let (well, again) = (Some(HealthState::Healthy), Some(HealthState::Reinitializing));
        assert_eq!(published(&[("a", "running"), ("b", "running"), ("c", "running")]), [well; 3]);
        // One is paused, and one is gone.
        assert_eq!(published(&[("a", "running"), ("b", "paused")]), [well, again, None]);
        // It goes on under the same start, and was not asked since.
        assert_eq!(published(&[("a", "running"), ("b", "running")]), [well, again, None]);
    }
}
