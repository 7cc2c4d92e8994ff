//! Random histories of a cluster whose hosts check each other's containers: containers fail, links are cut, checks get lost, agents
//! and containers are started again, and hosts lose etcd, on a clock of their own.

use std::collections::VecDeque;

use model::checkers::{CHECKER, CHECKS, SUSPECT};
use model::{About, Container, Entity as _, Host, Map, Value};
use prometheus_client::registry::Registry;
use proptest::prelude::*;
use source::ETCD;

use super::*;
use crate::opinion::Opinion;
use crate::verdict::HealthState;
use crate::verdicts::Word;

const HOSTS: usize = 6;
const CONTAINERS_OF_HOST: usize = 2;

const TICK: Duration = Duration::from_millis(20);
const INTERVAL_MS: u64 = 500;

/// When a check gives up that gets no answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Longest time until what is written is in etcd, and the same until it is read.
const DELAY_MAX: Duration = Duration::from_millis(200);

/// After this time without its agent the keys of a host are gone.
const LEASE: Duration = Duration::from_secs(20);

/// Of so many checks one is lost.
const LOST_ONE_IN: u64 = 50;

/// What most of three checkers say is what others read after this time: a silent owner has 2 s.
const AGREED_WITHIN: Duration = Duration::from_secs(4);

/// What most of those say who are left is what others read after this time: those who are gone count until their leases end.
const DECIDED_WITHIN: Duration = Duration::from_secs(30);

/// How many histories are tried: `BERTH_LONG=1` has time for more.
fn cases() -> u32 {
    if std::env::var_os("BERTH_LONG").is_some_and(|value| value == "1") { 400 } else { 16 }
}

/// Something that happens.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A container answers well from now on, or badly.
    SetWell(usize, bool),
    /// It is started again.
    Restart(usize),
    /// One host does not reach the other, or reaches it again.
    Cut(usize, usize, bool),
    /// A host reaches no other one, or all of them.
    CutOff(usize, bool),
    /// A host loses etcd, or has it again.
    Connect(usize, bool),
    /// The agent of a host dies, or is started.
    Run(usize, bool),
}

/// What a host has in etcd.
#[derive(Clone, Default, PartialEq)]
struct Written {
    /// The fields of its containers, with its verdicts.
    containers: Vec<Map>,
    is_suspect: bool,
    cast: Cast,
}

struct Agent {
    health: Health,
    turn: Turn,
    /// Checks that are running, with when they end.
    running: VecDeque<(Duration, Job, Sample)>,
}

/// A host, whether its agent runs or not.
struct Member {
    agent: Option<Agent>,
    /// Its verdicts on its disk.
    stored: Map,
    is_connected: bool,
    /// Since when it has etcd. What it decided without, others read until their votes arrive.
    connected_since: Duration,
    lease_ends: Duration,
    write_at: Option<Duration>,
    read_at: Option<Duration>,
    /// What it wrote last: its verdicts, its votes, and how often containers were started.
    written: Option<(Arc<Verdicts>, Arc<Cast>, Vec<i64>)>,
    /// What it has read of each host.
    read: Vec<Option<Written>>,
}

struct Truth {
    is_well: bool,
    starts: i64,
}

/// Since when something has been true without a break.
#[derive(Clone, Copy, Default)]
struct Since(Option<Duration>);

impl Since {
    fn update(&mut self, is_true: bool, now: Duration) {
        self.0 = if is_true { self.0.or(Some(now)) } else { None };
    }

    fn is_for(self, time: Duration, now: Duration) -> bool {
        self.0.is_some_and(|since| now >= since + time)
    }
}

/// What the checkers of a container think, as one reader has to see it.
#[derive(Clone, Default)]
struct Agreement {
    /// Who they are; with others all of it starts again.
    checkers: Vec<usize>,
    /// Most of the three say so, and all of them can.
    most_up: Since,
    most_down: Since,
    /// Most of those who can, at least two.
    most_left_up: Since,
    /// All of those.
    all_left_down: Since,
}

struct World {
    members: Vec<Member>,
    containers: Vec<Truth>,
    cuts: BTreeSet<(usize, usize)>,
    etcd: Vec<Option<Written>>,
    /// By reader and container.
    agreements: Vec<Vec<Agreement>>,
    begun: Instant,
    random: u64,
}

fn uuid(container: usize) -> Text {
    format!("c{container}").into()
}

fn host_name(host: usize) -> Text {
    format!("h{host}").into()
}

fn owner(container: usize) -> usize {
    container / CONTAINERS_OF_HOST
}

fn map(json: &str) -> Map {
    serde_json::from_str(json).unwrap()
}

impl World {
    fn new(seed: u64) -> Self {
        let member = |_| Member {
            agent: None,
            stored: Map::default(),
            is_connected: true,
            connected_since: Duration::ZERO,
            lease_ends: Duration::ZERO,
            write_at: None,
            read_at: None,
            written: None,
            read: vec![None; HOSTS],
        };
        let all = HOSTS * CONTAINERS_OF_HOST;
        let mut world = Self {
            members: (0..HOSTS).map(member).collect(),
            containers: (0..all).map(|_| Truth { is_well: true, starts: 1 }).collect(),
            cuts: BTreeSet::new(),
            etcd: vec![None; HOSTS],
            agreements: vec![vec![Agreement::default(); all]; HOSTS],
            begun: Instant::now(),
            random: seed,
        };
        (0..HOSTS).for_each(|host| world.start_agent(host));
        world
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// A number below `below`.
    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn delay(&mut self) -> Duration {
        Duration::from_millis(self.random(u64::try_from(DELAY_MAX.as_millis()).unwrap()))
    }

    fn start_agent(&mut self, host: usize) {
        let verdicts = Arc::new(Store::new(Verdicts::of_map(&self.members[host].stored)));
        let checker = Checker::default();
        let exchange = Exchange::empty();
        let health = Health::new(
            Scope::Cluster,
            checker,
            Arc::new(Store::new(Snapshot::default())),
            verdicts,
            Some(exchange),
            Arc::default(),
            Metrics::register(&mut Registry::default()),
        );
        let turn = health.first_turn();
        self.members[host].agent = Some(Agent { health, turn, running: VecDeque::new() });
        self.say_connected(host);
        // It reads all before it begins.
        self.members[host].read_at = Some(self.now());
        self.publish(host);
    }

    /// Lets the checks of a host know whether etcd is there.
    fn say_connected(&mut self, host: usize) {
        let member = &mut self.members[host];
        let Some(agent) = &mut member.agent else { return };
        if member.is_connected {
            agent.health.readiness.ready(ETCD);
        } else {
            agent.health.readiness.not_ready(ETCD, "away");
        }
        agent.health.take_in(&mut agent.turn, false);
    }

    fn act(&mut self, act: Act) {
        let now = self.now();
        match act {
            Act::SetWell(container, is_well) => self.containers[container].is_well = is_well,
            Act::Restart(container) => {
                self.containers[container].starts += 1;
                self.publish(owner(container));
            }
            Act::Cut(one, other, is_cut) if is_cut => drop(self.cuts.insert((one, other))),
            Act::Cut(one, other, _) => drop(self.cuts.remove(&(one, other))),
            Act::CutOff(host, is_cut) => {
                for other in (0..HOSTS).filter(|other| *other != host) {
                    self.act(Act::Cut(host, other, is_cut));
                    self.act(Act::Cut(other, host, is_cut));
                }
            }
            Act::Connect(host, is_connected) => {
                self.members[host].is_connected = is_connected;
                if is_connected {
                    (self.members[host].read_at, self.members[host].connected_since) = (Some(now), now);
                }
                self.say_connected(host);
            }
            Act::Run(host, true) if self.members[host].agent.is_none() => self.start_agent(host),
            Act::Run(_, true) => {}
            Act::Run(host, false) => {
                if let Some(agent) = self.members[host].agent.take() {
                    self.members[host].stored = agent.health.verdicts.load().to_map();
                }
            }
        }
    }

    /// The containers of a host, as its agent describes them.
    fn own(&self, host: usize, verdicts: &Verdicts) -> Vec<Map> {
        let own = (0..self.containers.len()).filter(|container| owner(*container) == host);
        let fields = own.map(|container| {
            let fields = map(&format!(
                r#"{{"uuid": "c{container}", "host_uuid": "u{host}", "primary_ip": "10.0.{host}.{container}", "state": "running",
                    "routed_ips": ["10.0.{host}.{container}"], "start_count": {},
                    "health_check": {{"port": 80, "interval": {INTERVAL_MS}, "response_timeout": {INTERVAL_MS}}}}}"#,
                self.containers[container].starts
            ));
            verdicts.over(&fields, Word::OfEngine).unwrap().unwrap()
        });
        fields.collect()
    }

    /// Gives the checks of a host what it knows now.
    fn publish(&mut self, host: usize) {
        let Some(agent) = &self.members[host].agent else { return };
        let verdicts = agent.health.verdicts.load_full();
        let cast = self.members[host].read[host].as_ref().map(|written| written.cast.clone()).unwrap_or_default();
        let own = Written { containers: self.own(host, &verdicts), is_suspect: verdicts.is_suspect, cast };
        let mut snapshot = Snapshot::default();
        let mut heard = Heard::default();
        let Member { agent: Some(agent), read, .. } = &mut self.members[host] else { return };
        let exchange = agent.health.exchange.as_ref().unwrap();
        let counted = exchange.checkers.load_full();
        let mut overriding: BTreeMap<&About, Vec<(usize, &Map)>> = BTreeMap::new();
        for (other, written) in read.iter().enumerate() {
            let Some(written) = (if other == host { Some(&own) } else { written.as_ref() }) else { continue };
            let word = if written.is_suspect { SUSPECT } else { CHECKS };
            let fields = format!(
                r#"{{"uuid": "u{other}", "name": "h{other}", "agent_ip": "192.0.2.{other}", "{CHECKER}": "{word}"}}"#
            );
            snapshot.hosts.insert(Arc::new(Host::new(map(&fields), 0).unwrap()));
            for container in &written.containers {
                snapshot.containers.insert(Container::new(container.clone(), Map::default()).unwrap().into());
            }
            for (about, vote) in &written.cast.votes {
                if about.owner == host_name(host) && counted.contains(&host_name(other)) {
                    heard.0.insert((host_name(other), about.container.clone()), vote.clone());
                }
            }
            for (about, said) in written.cast.overrides.iter().filter(|(about, _)| about.owner != host_name(host)) {
                overriding.entry(about).or_default().push((other, said));
            }
        }
        snapshot.local_host = snapshot.hosts.get(format!("u{host}").as_str()).cloned();
        let hosts = model::checkers::Hosts::of(&snapshot.hosts);
        for (about, said) in overriding {
            let Some(container) = snapshot.containers.get(&about.container).cloned() else { continue };
            let checkers = hosts.checkers(&about.container, Some(&about.owner));
            let checkers: Vec<&str> = checkers.into_iter().map(|checker| hosts.name(checker)).collect();
            let starts = container.fields().int("start_count");
            let agreeing = said.iter().filter(|(other, said)| {
                checkers.contains(&&*host_name(*other)) && said.int(model::votes::START) == starts
            });
            let agreeing = agreeing.count();
            if agreeing > checkers.len() / 2 && agreeing >= 2 {
                let of_host = container.fields().get("health_state").cloned().unwrap_or_default();
                let hidden = [
                    (Text::from("health_state"), Value::text("unhealthy")),
                    (Text::from(model::votes::SAID_BY_HOST), of_host),
                ];
                let fields = container.fields().with(hidden);
                snapshot.containers.insert(Container::new(fields, Map::default()).unwrap().into());
            }
        }
        if *exchange.heard.load_full() != heard {
            exchange.heard.publish(Arc::new(heard));
            agent.turn.has_news = true;
        }
        agent.health.snapshots.publish(Arc::new(snapshot));
        agent.health.take_in(&mut agent.turn, false);
    }

    /// What a check of a host finds, and how long it takes.
    fn outcome(&mut self, host: usize, container: usize) -> (Outcome, Duration) {
        let is_lost = self.random(LOST_ONE_IN) == 0 || self.cuts.contains(&(host, owner(container)));
        match (is_lost, self.containers[container].is_well) {
            (true, _) => (Outcome::Unreached("timed out".into()), RESPONSE_TIMEOUT),
            (false, true) => (Outcome::Pass, Duration::from_millis(5)),
            (false, false) => (Outcome::Fail("refused".into()), Duration::from_millis(5)),
        }
    }

    /// Makes the checks of a host that are due, and what follows.
    fn check(&mut self, host: usize) {
        let Some(mut agent) = self.members[host].agent.take() else { return };
        let now = agent.health.now();
        while let Some((_, job, sample)) = agent.running.pop_front_if(|(ends, ..)| *ends <= now) {
            agent.turn.has_news |= agent.health.finish(&job, sample);
        }
        while let Some(job) = agent.health.due_job() {
            let container = job.target.uuid[1..].parse().unwrap();
            let (outcome, took) = self.outcome(host, container);
            let outcome = job.judged(outcome, took, 1);
            agent.running.push_back((now + took, job, Sample { at: now, took, outcome }));
        }
        agent.running.make_contiguous().sort_by_key(|(ends, ..)| *ends);
        if agent.turn.hosts_due.is_some_and(|due| due <= Instant::now()) {
            agent.health.take_in(&mut agent.turn, true);
        }
        let turn = &mut agent.turn;
        let is_due = turn.has_news && turn.reckoned + PUBLICATION_GAP_CLUSTER <= Instant::now();
        let verdicts = agent.health.verdicts.load_full();
        let checkers = agent.health.exchange.as_ref().unwrap().checkers.load_full();
        if is_due || turn.due.is_some_and(|due| due <= now) {
            agent.health.reckon(turn);
        }
        let is_other = *verdicts != **agent.health.verdicts.load()
            || *checkers != **agent.health.exchange.as_ref().unwrap().checkers.load();
        self.members[host].agent = Some(agent);
        if is_other {
            self.publish(host);
        }
    }

    /// Exchanges what is due with etcd.
    fn exchange(&mut self, host: usize) {
        let (now, delay) = (self.now(), self.delay());
        let starts: Vec<i64> = self.containers.iter().map(|container| container.starts).collect();
        let member = &mut self.members[host];
        let is_there = member.is_connected && member.agent.is_some();
        if is_there {
            member.lease_ends = now + LEASE;
        }
        let mut changed = now >= member.lease_ends && self.etcd[host].take().is_some();
        if is_there {
            let agent = member.agent.as_ref().unwrap();
            let verdicts = agent.health.verdicts.load_full();
            let cast = agent.health.exchange.as_ref().unwrap().cast.load_full();
            let said = Some((verdicts.clone(), cast.clone(), starts));
            if member.written == said && self.etcd[host].is_some() {
                member.write_at = None;
            } else if *member.write_at.get_or_insert(now + delay) <= now {
                (member.write_at, member.written) = (None, said);
                let (is_suspect, cast) = (verdicts.is_suspect, Cast::clone(&cast));
                let written = Written { containers: self.own(host, &verdicts), is_suspect, cast };
                changed = self.etcd[host].as_ref() != Some(&written);
                self.etcd[host] = Some(written);
            }
        }
        if changed {
            for reader in 0..HOSTS {
                let delay = self.delay();
                self.members[reader].read_at.get_or_insert(now + delay);
            }
        }
        let member = &mut self.members[host];
        if is_there && member.read_at.is_some_and(|at| at <= now) {
            member.read_at = None;
            member.read.clone_from(&self.etcd);
            self.publish(host);
        }
    }

    /// Whether the agent of a host runs, has etcd, and believes itself.
    fn is_sound(&self, host: usize) -> bool {
        let member = &self.members[host];
        let doubts = |agent: &Agent| agent.health.known().suspicion.is_some();
        member.is_connected && member.agent.as_ref().is_some_and(|agent| !doubts(agent))
    }

    /// What a host thinks of a container from its own checks, in its present start.
    fn opinion(&self, host: usize, container: usize) -> Option<Opinion> {
        let agent = self.members[host].agent.as_ref()?;
        let known = agent.health.known();
        let check = known.wheel.get(&uuid(container))?;
        (check.target.start == self.containers[container].starts).then(|| check.results.opinion())
    }

    /// Compares what each host reads with what the checkers think.
    fn compare(&mut self) {
        let now = self.now();
        for reader in 0..HOSTS {
            let is_reading = self.members[reader].is_connected;
            let Some(snapshot) = self.members[reader].agent.as_ref().map(|agent| agent.health.snapshots.load_full())
            else {
                self.agreements[reader].fill(Agreement::default());
                continue;
            };
            let hosts = model::checkers::Hosts::of(&snapshot.hosts);
            for container in (0..self.containers.len()).filter(|container| owner(*container) != reader) {
                let (uuid, owner) = (uuid(container), owner(container));
                let checkers: Vec<usize> = hosts
                    .checkers(&uuid, Some(&host_name(owner)))
                    .into_iter()
                    .map(|checker| hosts.name(checker)[1..].parse().unwrap())
                    .collect();
                let sound: Vec<usize> = checkers.iter().copied().filter(|checker| self.is_sound(*checker)).collect();
                let opinions: Vec<_> = sound.iter().map(|checker| self.opinion(*checker, container)).collect();
                let count = |opinion| opinions.iter().filter(|one| **one == Some(opinion)).count();
                let (ups, downs) = (count(Opinion::Up), count(Opinion::Down));
                let is_whole =
                    is_reading && checkers.len() == model::checkers::CHECKERS && sound.len() == checkers.len();
                let is_owner_sound = is_reading && self.is_sound(owner);
                let agreement = &mut self.agreements[reader][container];
                if agreement.checkers != checkers {
                    *agreement = Agreement { checkers: checkers.clone(), ..Agreement::default() };
                }
                agreement.most_up.update(is_whole && is_owner_sound && ups * 2 > checkers.len(), now);
                agreement.most_down.update(is_whole && downs * 2 > checkers.len(), now);
                agreement.most_left_up.update(is_owner_sound && ups * 2 > sound.len() && ups >= 2, now);
                agreement.all_left_down.update(is_reading && downs == sound.len() && downs >= 2, now);
                let is_back = self.members[owner].connected_since + AGREED_WITHIN > now;
                let Agreement { most_up, most_down, most_left_up, all_left_down, .. } = *agreement;
                let Some(read) = snapshot.containers.get(&uuid) else { continue };
                let state = read.health_state().and_then(HealthState::of_word).unwrap();
                let wrong = match state {
                    HealthState::Unhealthy => {
                        (most_up.is_for(AGREED_WITHIN, now), most_left_up.is_for(DECIDED_WITHIN, now))
                    }
                    HealthState::Healthy => (
                        !is_back && most_down.is_for(AGREED_WITHIN, now),
                        !is_back && all_left_down.is_for(DECIDED_WITHIN, now),
                    ),
                    _ => (most_up.is_for(AGREED_WITHIN, now), false),
                };
                assert_eq!(
                    wrong,
                    (false, false),
                    "h{reader} reads {state:?} of {uuid} at {now:?}: {checkers:?} {opinions:?}"
                );
            }
        }
    }

    async fn pass(&mut self, time: Duration) {
        let until = self.now() + time;
        while self.now() < until {
            tokio::time::advance(TICK).await;
            for host in 0..HOSTS {
                self.check(host);
                self.exchange(host);
            }
            if self.now().as_millis().is_multiple_of(100) {
                self.compare();
            }
        }
    }
}

fn act() -> impl Strategy<Value = Act> {
    let container = || 0..HOSTS * CONTAINERS_OF_HOST;
    prop_oneof![
        4 => (container(), any::<bool>()).prop_map(|(container, is_well)| Act::SetWell(container, is_well)),
        1 => container().prop_map(Act::Restart),
        4 => (0..HOSTS, 0..HOSTS, any::<bool>()).prop_map(|(one, other, is_cut)| Act::Cut(one, other, is_cut)),
        2 => (0..HOSTS, any::<bool>()).prop_map(|(host, is_cut)| Act::CutOff(host, is_cut)),
        2 => (0..HOSTS, any::<bool>()).prop_map(|(host, is_connected)| Act::Connect(host, is_connected)),
        2 => (0..HOSTS, any::<bool>()).prop_map(|(host, runs)| Act::Run(host, runs)),
    ]
}

/// Acts, with the time that passes after each.
fn history() -> impl Strategy<Value = Vec<(Act, Duration)>> {
    let pause = prop_oneof![
        3 => (0..500_u64).prop_map(Duration::from_millis),
        3 => (500..8_000_u64).prop_map(Duration::from_millis),
        1 => (20_000..45_000_u64).prop_map(Duration::from_millis),
    ];
    proptest::collection::vec((act(), pause), 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_history_makes_others_read_what_the_checkers_do_not_think(history in history(), seed: u64) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut world = World::new(seed);
            world.pass(Duration::from_secs(5)).await;
            for (act, pause) in history {
                world.act(act);
                world.pass(pause).await;
            }
            world.pass(DECIDED_WITHIN + Duration::from_secs(2)).await;
        });
    }
}
