//! Makes the checks of one process, and the verdicts that follow.

#[cfg(test)]
mod histories;
mod places;
mod reckon;
mod take_in;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::future::{AbortHandle, AbortRegistration, Abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use model::health::BadCheck;
use model::votes::{Cast, Heard};
use model::{Snapshot, Text};
use source::backoff::jittered;
use source::{Readiness, Reasons, Store, Watcher};
use tokio::time::{Instant, sleep_until};

use crate::assigned::{Assigned, Roster, Scope};
use crate::budget::Budget;
use crate::check::Checker;
use crate::giving_up::GivingUp;
use crate::metrics::Metrics;
use crate::opinion::{Outcome, Sample};
use crate::pages::Outputs;
use crate::patience::Patience;
use crate::reckoning::Standing;
use crate::suspicion::Unreached;
use crate::verdict::Quorum;
use crate::verdicts::Verdicts;
use crate::wheel::{Job, Wheel};
use places::{Place, Places};
use take_in::Sharers;

/// Time between two publications, so that many containers that fail together are news once. In a cluster each is a transaction.
const PUBLICATION_GAP: Duration = Duration::from_millis(10);
const PUBLICATION_GAP_CLUSTER: Duration = Duration::from_millis(50);

/// Checks that are due so soon after each other begin together: to wake for each one alone costs a good part of what it costs itself.
const TOGETHER: Duration = Duration::from_millis(5);

/// When a check that finds no place is tried again.
const PUT_OFF: Duration = Duration::from_millis(50);

/// The part of the readiness that this speaks for.
const PART: &str = "health";

/// What is known of all checks, for those who ask.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) wheel: Wheel,
    /// How long this host waits for answers.
    pub(crate) patience: Patience,
    /// All containers that are checked here or decided about, by uuid.
    pub(crate) assigned: BTreeMap<Text, Assigned>,
    /// Containers whose check is wrong, by uuid.
    pub(crate) wrong: BTreeMap<Text, BadCheck>,
    pub(crate) roster: Roster,
    /// Containers of this host and checkers of them that say another thing than the verdict, with since when they do.
    pub(crate) disagreeing: BTreeMap<(Text, Text), Duration>,
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

#[cfg(test)]
impl Exchange {
    /// One in which no host has said anything yet.
    fn empty() -> Self {
        Self {
            cast: Arc::new(Store::new(Cast::default())),
            checkers: Arc::new(Store::new(BTreeSet::new())),
            heard: Arc::new(Store::new(Heard::default())),
            quorum: Quorum::Majority,
        }
    }
}

/// The checks of one process.
#[derive(Clone, Debug)]
pub struct Health {
    pub(crate) scope: Scope,
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

/// What the loop alone knows.
struct Turn {
    before: Arc<Snapshot>,
    verdicts: Verdicts,
    /// Which containers others check, and how many are not checked, or by this host alone, since they are too many.
    budget: Budget,
    beyond: usize,
    /// Whose address they are asked at, where that is another one's.
    sharers: Sharers,
    /// Which of this host's containers are given up if they stay as they are.
    giving_up: GivingUp,
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
        let origin = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let known = Arc::new(Mutex::new(Known { wheel: Wheel::starting_at(origin), ..Known::default() }));
        Self { scope, checker, snapshots, verdicts, exchange, readiness, known, start: Instant::now(), metrics }
    }

    /// Its page, for the admin pages; `shown` are the snapshots with the verdicts in them.
    pub fn pages(&self, shown: Arc<Store<Snapshot>>, outputs: Arc<Store<Outputs>>) -> axum::Router {
        crate::pages::router(self.clone(), shown, outputs)
    }

    /// Makes checks. Never ends; drop it to stop.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; connections are then reset.
    pub async fn run(self) {
        let (mut running, mut places) = (FuturesUnordered::new(), Places::default());
        let mut watcher = self.snapshots.watch();
        let mut heard = self.exchange.as_ref().map(|exchange| exchange.heard.watch());
        let mut readiness = self.exchange.as_ref().map(|_| self.readiness.watch());
        let mut turn = self.first_turn();
        let gap = if self.exchange.is_some() { PUBLICATION_GAP_CLUSTER } else { PUBLICATION_GAP };
        self.take_in(&mut turn, false);
        loop {
            while let Some((job, place, end)) = self.next_job(&mut places) {
                running.push(async { (place, Abortable::new(self.check(job), end).await) });
            }
            self.metrics.running.set(places.taken().try_into().unwrap_or(i64::MAX));
            let due = self.known().wheel.next_due().map(together);
            let reckon_at =
                if turn.has_news { Some(turn.reckoned + gap) } else { turn.due.map(|due| self.start + due) };
            tokio::select! {
                () = watcher.changed() => self.take_in(&mut turn, false),
                Some(ended) = running.next() => {
                    let mut next = Some(ended);
                    // Those that ended at the same time need no turn each.
                    while let Some((place, checked)) = next {
                        places.leave(place);
                        if let Ok((job, sample)) = checked {
                            turn.has_news |= self.finish(&job, sample);
                        }
                        next = running.next().now_or_never().flatten();
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

    /// Says when health is ignored in `shown`, the snapshots with the verdicts in them, and when it counts again. Never ends; drop it
    /// to stop.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn say_when_ignored(self, shown: Arc<Store<Snapshot>>) {
        let (mut watcher, mut before) = (shown.watch(), false);
        loop {
            let snapshot = shown.load_full();
            if std::mem::replace(&mut before, snapshot.is_panic) != snapshot.is_panic {
                self.say_panic(&snapshot);
            }
            watcher.changed().await;
        }
    }

    fn first_turn(&self) -> Turn {
        Turn {
            before: Arc::default(),
            verdicts: Verdicts::clone(&self.verdicts.load()),
            budget: Budget::default(),
            beyond: 0,
            sharers: Sharers::default(),
            giving_up: GivingUp::default(),
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

    /// A check that is to be made now, with its place and what ends it.
    fn next_job(&self, places: &mut Places) -> Option<(Job, Place, AbortRegistration)> {
        let now = self.now();
        let mut known = self.known();
        let wheel = &mut known.wheel;
        loop {
            let job = wheel.take_due(now)?;
            // One that is not to be made any more, since it is too late, needs none.
            let Some(place) = places.take(&job.target.host).or_else(|| job.is_stale(now).then(Place::none)) else {
                wheel.put_off(&job, now + PUT_OFF);
                continue;
            };
            let (end, registration) = AbortHandle::new_pair();
            wheel.begun(&job, end);
            return Some((job, place, registration));
        }
    }

    /// The same, where nothing else is being made.
    #[cfg(test)]
    fn due_job(&self) -> Option<Job> {
        self.next_job(&mut Places::default()).map(|(job, ..)| job)
    }

    /// Makes a check.
    async fn check(&self, job: Job) -> (Job, Sample) {
        let at = self.now();
        self.metrics.late.observe(job.waited(at).as_secs_f64());
        let patience = self.known().patience.factor(at);
        let is_stale = job.is_stale(at);
        let outcome = if is_stale {
            let why = if job.is_put_off { "too many checks wait for answers" } else { "this host was too busy" };
            Outcome::Unsure(format!("not asked in time: {why}"))
        } else {
            self.ask(&job, patience).await
        };
        let took = self.now().saturating_sub(at);
        let has_failed = outcome.is_bad();
        let outcome = job.judged(outcome, took, patience);
        let is_late = is_stale || (has_failed && matches!(outcome, Outcome::Unsure(_)));
        // How many start or do not answer, others bring about: that says nothing of this host.
        if is_late && !job.is_initializing && !job.is_put_off {
            self.known().patience.add_late(at + took);
        }
        self.metrics.patience.set(patience.into());
        self.metrics.count(&job.target.spec, &outcome, took);
        (job, Sample { at, took, outcome })
    }

    /// Asks once, or twice where the first question may have been lost; the first good answer counts.
    async fn ask(&self, job: &Job, patience: u32) -> Outcome {
        let first = self.checker.check_target(&job.target, patience);
        let Some(pause) = job.second_attempt() else { return first.await };
        let second = async {
            tokio::time::sleep(pause).await;
            self.checker.check_target(&job.target, patience).await
        };
        tokio::select! {
            outcome = first => outcome,
            Outcome::Pass = second => Outcome::Pass,
        }
    }

    /// Takes in what came of a check; returns whether something may follow from it.
    fn finish(&self, job: &Job, sample: Sample) -> bool {
        let now = self.now();
        let is_reached = matches!(sample.outcome, Outcome::Pass | Outcome::Fail(_));
        let mut known = self.known();
        let Known { wheel, assigned, suspicion, .. } = &mut *known;
        let is_others = || assigned.get(&job.target.uuid).is_some_and(|one| one.owner.is_some());
        // One more that is not reached may make this host doubt itself, and an answer believe itself again.
        let may_doubt = is_reached == suspicion.is_some() && is_others();
        wheel.finish(job, sample, now, jittered).is_some() || may_doubt
    }
}

/// When what is due then begins.
fn together(due: Duration) -> Duration {
    let turn = TOGETHER.as_nanos();
    due + Duration::from_nanos(u64::try_from((turn - due.as_nanos() % turn) % turn).unwrap_or_default())
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

#[cfg(test)]
mod tests {
    use model::{Container, Host, Map};
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::opinion::Opinion;
    use crate::verdict::HealthState;
    use crate::verdicts::Verdict;

    fn map(json: &str) -> Map {
        serde_json::from_str(json).unwrap()
    }

    fn health(
        scope: Scope,
        snapshots: &Arc<Store<Snapshot>>,
        verdicts: &Arc<Store<Verdicts>>,
        exchange: Option<Exchange>,
    ) -> Health {
        let checker = Checker::default();
        let metrics = Metrics::register(&mut Registry::default());
        Health::new(scope, checker, snapshots.clone(), verdicts.clone(), exchange, Arc::default(), metrics)
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

    #[tokio::test]
    async fn a_container_that_starts_and_loses_a_question_is_asked_again_at_once() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (snapshots, verdicts) = (Store::new(Snapshot::default()), Store::new(Verdicts::default()));
        let health = health(Scope::Own, &Arc::new(snapshots), &Arc::new(verdicts), None);
        let mut wheel = Wheel::default();
        let fields =
            map(&format!(r#"{{"port": {port}, "request_line": "GET / HTTP/1.0", "response_timeout": 20000}}"#));
        let spec = crate::Spec::of_fields(&fields).unwrap().unwrap();
        let container = Container::new(map(r#"{"uuid": "a"}"#), Map::default()).unwrap();
        let target = crate::target::Target::new(&container, spec, ([127, 0, 0, 1], port).into());
        wheel.set(target, 0, Opinion::Initializing, Duration::ZERO);
        let job = wheel.take_due(Duration::from_secs(1)).unwrap();
        let serve = async {
            let (_lost, _) = listener.accept().await.unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 99]).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").await.unwrap();
            stream.shutdown().await.unwrap();
            std::future::pending::<()>().await;
        };
        let outcome = tokio::select! {
            outcome = health.ask(&job, 1) => outcome,
            () = serve => unreachable!(),
        };
        assert_eq!(outcome, Outcome::Pass);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_well_in_time_after_its_start_is_given_up() {
        let snapshots = Arc::new(Store::new(Snapshot::default()));
        let verdicts = Arc::new(Store::new(Verdicts::default()));
        let health = health(Scope::Own, &snapshots, &verdicts, None);
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

    /// This host and three others, of which `x` has a container or not.
    fn of_others(is_there: bool) -> Arc<Snapshot> {
        let mut snapshot = Snapshot::default();
        for (number, name) in ["h", "x", "y", "z"].into_iter().enumerate() {
            let fields = format!(
                r#"{{"uuid": "{name}", "name": "{name}", "agent_ip": "192.0.2.{number}", "health_checks": "made"}}"#
            );
            snapshot.hosts.insert(Host::new(map(&fields), 0).unwrap().into());
        }
        snapshot.local_host = snapshot.hosts.get("h").cloned();
        let fields = map(
            r#"{"uuid": "c", "host_uuid": "x", "state": "running", "health_state": "healthy", "primary_ip": "192.0.2.9",
            "routed_ips": ["192.0.2.9"], "labels": {"io.berth.health.port": "80"}}"#,
        );
        if is_there {
            snapshot.containers.insert(Container::new(fields, Map::default()).unwrap().into());
        }
        Arc::new(snapshot)
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_said_of_a_container_that_is_gone_is_withdrawn() {
        let snapshots = Arc::new(Store::new(Snapshot::default()));
        let exchange = Exchange::empty();
        let cast = exchange.cast.clone();
        let verdicts = Arc::new(Store::new(Verdicts::default()));
        let health = health(Scope::Cluster, &snapshots, &verdicts, Some(exchange));
        let mut turn = health.first_turn();
        snapshots.publish(of_others(true));
        health.take_in(&mut turn, false);
        for _ in 0..10 {
            tokio::time::advance(Duration::from_secs(2)).await;
            while let Some(job) = health.due_job() {
                let outcome = Outcome::Fail("refused".into());
                let sample = Sample { at: health.now(), took: Duration::ZERO, outcome };
                turn.has_news |= health.finish(&job, sample);
            }
            health.reckon(&mut turn);
        }
        assert_eq!((cast.load().votes.len(), cast.load().overrides.len()), (1, 1));
        snapshots.publish(of_others(false));
        health.take_in(&mut turn, false);
        assert!(turn.has_news, "nothing else would have it withdrawn");
        health.reckon(&mut turn);
        assert_eq!((cast.load().votes.len(), cast.load().overrides.len()), (0, 0));
    }

    #[tokio::test]
    async fn a_container_is_asked_where_the_one_whose_network_it_shares_and_its_host_are_now() {
        let snapshots = Arc::new(Store::new(Snapshot::default()));
        let verdicts = Arc::new(Store::new(Verdicts::default()));
        let health = health(Scope::Cluster, &snapshots, &verdicts, Some(Exchange::empty()));
        let mut turn = health.first_turn();
        let mut asked = |address: Option<&str>, host: &str, shares: &str| {
            let mut snapshot = Snapshot::clone(&of_others(false));
            let fields = format!(r#"{{"uuid": "x", "name": "x", "agent_ip": "{host}", "health_checks": "made"}}"#);
            snapshot.hosts.insert(Host::new(map(&fields), 0).unwrap().into());
            if let Some(address) = address {
                let fields = format!(
                    r#"{{"uuid": "net", "host_uuid": "x", "state": "running", "primary_ip": "10.0.0.1", {address}}}"#
                );
                snapshot.containers.insert(Container::new(map(&fields), Map::default()).unwrap().into());
            }
            let fields = format!(
                r#"{{"uuid": "c", "host_uuid": "x", "state": "running", "network_from_container_uuid": "{shares}",
                    "labels": {{"io.berth.health.port": "80"}}}}"#
            );
            snapshot.containers.insert(Container::new(map(&fields), Map::default()).unwrap().into());
            snapshots.publish(Arc::new(snapshot));
            health.take_in(&mut turn, false);
            health.known().assigned.get("c").map(|one| one.target.address.to_string())
        };
        let routed = |address: &str| format!(r#""routed_ips": ["{address}"]"#);
        let published = r#""routed_ips": [], "ports": ["8080:80/tcp"]"#;
        assert_eq!(asked(None, "192.0.2.1", "net"), None);
        assert_eq!(asked(Some(&routed("10.0.9.1")), "192.0.2.1", "net").as_deref(), Some("10.0.9.1:80"));
        assert_eq!(asked(Some(&routed("10.0.9.2")), "192.0.2.1", "net").as_deref(), Some("10.0.9.2:80"));
        assert_eq!(asked(Some(published), "192.0.2.1", "net").as_deref(), Some("192.0.2.1:8080"));
        assert_eq!(asked(Some(published), "192.0.2.99", "net").as_deref(), Some("192.0.2.99:8080"));
        assert_eq!(asked(Some(published), "192.0.2.99", "none"), None);
        assert_eq!(asked(None, "192.0.2.99", "net"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_other_containers_come_and_go_and_no_check_notices() {
        let snapshots = Arc::new(Store::new(Snapshot::default()));
        let health = health(Scope::Own, &snapshots, &Arc::new(Store::new(Verdicts::default())), None);
        let mut turn = health.first_turn();
        let mut shown = |containers: &[(&str, &str)]| {
            snapshots.publish(snapshot(containers));
            health.take_in(&mut turn, false);
        };
        shown(&[("a", "running")]);
        for _ in 0..2 {
            let due = health.known().wheel.next_due().unwrap();
            tokio::time::advance(due.saturating_sub(health.now())).await;
            let job = health.due_job().unwrap();
            let outcome = Outcome::Unreached("no answer".into());
            let sample = Sample { at: health.now(), took: Duration::ZERO, outcome };
            health.finish(&job, sample);
        }
        let known = || {
            let known = health.known();
            let check = known.wheel.get("a").unwrap();
            (check.results.samples().count(), check.results.unreached_since(), known.wheel.next_due())
        };
        let before = known();
        assert_eq!(before.0, 2);
        let names: Vec<String> = (0..1000).map(|number| format!("b{number}")).collect();
        let more: Vec<_> = names.iter().map(|name| (&**name, "running")).chain([("a", "running")]).collect();
        shown(&more);
        assert_eq!(health.known().wheel.len(), 1001);
        assert_eq!((known().0, known().1), (before.0, before.1));
        shown(&[("a", "running")]);
        assert_eq!(known(), before);
    }

    #[tokio::test]
    async fn what_follows_from_the_end_of_containers_is_published_too() {
        let snapshots = Arc::new(Store::new(Snapshot::default()));
        let healthy = Verdict { state: HealthState::Healthy, start: 0 };
        let mut stored = Verdicts::default();
        for name in ["a", "b", "c"] {
            stored.insert(name.into(), healthy);
        }
        let verdicts = Arc::new(Store::new(stored));
        let health = health(Scope::Own, &snapshots, &verdicts, None);
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
