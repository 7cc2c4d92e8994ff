//! Laws of the plan while operators drain, cordon and open hosts again, and units are killed, in any order and at any moment.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::{Map, Text};
use proptest::prelude::*;
use stacks::{Rollout, Service, Stack, Stage, State, Step, Turn, Unit, Update, World, plan};

const HOSTS: [&str; 4] = ["a", "b", "c", "d"];

/// Rounds within which all comes to rest once nothing happens any more.
const ROUNDS: usize = 3000;

/// After this many rounds without a change nothing changes any more: longer than any deadline.
const AT_REST: usize = 65;

/// Rounds for which a job runs.
const JOB_ROUNDS: u32 = 6;

#[derive(Clone, Debug)]
enum Event {
    Drain(usize),
    Cordon(usize),
    Open(usize),
    OpenAll,
    /// A unit, by its place among those that live, is removed by hand.
    Kill(usize),
    /// A unit stops being healthy, for good if nothing replaces it.
    Sicken(usize),
    Scale(u32),
    Update,
}

fn service(image: &str, scale: u32, batch: u32, job: bool) -> Service {
    let request: Map =
        serde_json::from_value(serde_json::json!({ "service": "web", "image": image, "count": scale })).unwrap();
    let update = Update { batch, monitor: 10, ..Update::default() };
    Service { rollback: update.clone(), update, job, ..Service::parse(&request).unwrap() }
}

/// A stack of one service and the hosts that it is on.
struct Cluster {
    stack: Stack,
    world: World,
    /// Whether one more unit fits beside those that run.
    has_room: bool,
    /// How many rounds a unit takes to start.
    slowness: u32,
    /// For how many rounds each unit has been running, or starting.
    ages: BTreeMap<Text, u32>,
    /// How often a job was begun, by index.
    begun: BTreeMap<Text, u32>,
    revision: u32,
    /// Whether no step may cost a good unit while one more fits.
    is_kept_good: bool,
}

impl Cluster {
    fn new(wanted: Service, has_room: bool, slowness: u32) -> Self {
        let stack = Stack { name: "shop".into(), services: vec![Rollout::new(wanted)], ..Stack::default() };
        let world = World { sees_most: true, now: Duration::from_secs(1000), ..World::default() };
        let (ages, begun) = (BTreeMap::new(), BTreeMap::new());
        Self { stack, world, has_room, slowness, ages, begun, revision: 0, is_kept_good: false }
    }

    fn wanted(&self) -> &Service {
        &self.stack.services[0].wanted
    }

    fn live(&self) -> impl Iterator<Item = &Unit> {
        self.world.units.iter().filter(|unit| unit.is_live())
    }

    fn is_open(&self, host: &Text) -> bool {
        !self.world.leaving.contains(host) && !self.world.cordoned.contains(host)
    }

    /// The indices of units that are healthy.
    fn healthy(&self) -> BTreeMap<Text, usize> {
        let mut healthy = BTreeMap::new();
        for unit in self.live().filter(|unit| unit.is_healthy()) {
            *healthy.entry(unit.index.clone()).or_default() += 1;
        }
        healthy
    }

    /// How many units have been healthy for as long as their service watches them, and how many indices have one.
    fn good(&self) -> [usize; 2] {
        let monitor = Duration::from_secs(self.wanted().update.monitor);
        let is_good = |unit: &&Unit| matches!(unit.state, State::Healthy(since) if self.world.now >= since + monitor);
        let good: Vec<&Text> = self.live().filter(is_good).map(|unit| &unit.index).collect();
        [good.len(), good.iter().collect::<BTreeSet<_>>().len()]
    }

    fn happen(&mut self, event: &Event) {
        let host = |at: &usize| Text::from(HOSTS[at % HOSTS.len()]);
        match event {
            Event::Drain(at) => {
                self.world.cordoned.remove(&host(at));
                self.world.leaving.insert(host(at));
            }
            Event::Cordon(at) => {
                self.world.leaving.remove(&host(at));
                self.world.cordoned.insert(host(at));
            }
            Event::Open(at) => {
                self.world.leaving.remove(&host(at));
                self.world.cordoned.remove(&host(at));
            }
            Event::OpenAll => {
                self.world.leaving.clear();
                self.world.cordoned.clear();
            }
            Event::Kill(at) => self.set(*at, &State::Ended("its container is gone".into())),
            Event::Sicken(at) => self.set(*at, &State::Unhealthy),
            Event::Scale(scale) => {
                let wanted = Service { scale: *scale, ..self.wanted().clone() };
                self.stack.services[0].change(wanted);
            }
            Event::Update => {
                self.revision += 1;
                let (scale, batch, job) = (self.wanted().scale, self.wanted().update.batch, self.wanted().job);
                let wanted = service(&format!("image-{}", self.revision), scale, batch, job);
                self.stack.services[0].change(wanted);
            }
        }
    }

    fn set(&mut self, at: usize, state: &State) {
        let count = self.live().count();
        let live = self.world.units.iter_mut().filter(|unit| unit.is_live() && unit.is_healthy());
        if let Some(unit) = live.into_iter().nth(at % count.max(1)) {
            unit.state = state.clone();
        }
    }

    /// Does one step; one that finds no host is tried again later.
    fn act(&mut self, step: &Step) {
        let units = &mut self.world.units;
        match step {
            Step::Place { service, index, id } => {
                assert!(units.iter().all(|unit| unit.id != *id), "{id} is there already");
                let hosts = HOSTS.map(Text::from).into_iter().filter(|host| self.is_open(host));
                let Some(host) = hosts.min_by_key(|host| self.live().filter(|unit| unit.host == *host).count()) else {
                    return;
                };
                let (digest, now) = (self.wanted().digest.clone(), self.world.now);
                let (id, service, index) = (id.clone(), service.clone(), index.clone());
                *self.begun.entry(index.clone()).or_default() += 1;
                self.ages.insert(id.clone(), 0);
                let state = State::Starting;
                self.world.units.push(Unit { id, service, index, digest, host, made: now, placed: now, state });
            }
            Step::StopKept { id } => units.iter_mut().filter(|unit| unit.id == *id).for_each(|unit| {
                unit.state = State::Kept;
            }),
            Step::StartKept { id } => {
                self.ages.insert(id.clone(), 0);
                for unit in units.iter_mut().filter(|unit| unit.id == *id) {
                    (unit.state, unit.made) = (State::Starting, self.world.now);
                }
            }
            Step::Remove { id } => units.retain(|unit| unit.id != *id),
            Step::Evict { .. } => panic!("no host is gone"),
        }
    }

    /// One round: looks, does the first `most` steps, and lets time pass.
    fn round(&mut self, most: usize) {
        self.world.fits_beside.clear();
        if self.has_room && HOSTS.map(Text::from).iter().any(|host| self.is_open(host)) {
            self.world.fits_beside.insert("web".into());
        }
        let planned = plan(&self.stack, &self.world);
        assert_eq!(planned, plan(&self.stack, &self.world), "equal input, equal plan");
        if planned.turns.is_empty() {
            for step in planned.steps.iter().take(most) {
                let (before, good) = (self.healthy().len(), self.good());
                let is_moving = self.stack.services[0].stage.is_settled();
                self.act(step);
                // An update may stop a batch before the next one runs; moves and what is surplus may not.
                let least = before.min(self.wanted().scale as usize);
                assert!(!is_moving || self.healthy().len() >= least, "{step}\n{planned}\n{:#?}", self.world);
                let least = self.wanted().scale as usize;
                let is_fewer = self.good().iter().zip(good).all(|(after, before)| *after < before.min(least));
                let has_room = !self.world.fits_beside.is_empty();
                assert!(
                    !(self.is_kept_good && has_room && is_fewer),
                    "{step} costs a good unit\n{planned}\n{:#?}",
                    self.world
                );
                let running = |unit: &&Unit| matches!(unit.state, State::Starting | State::Healthy(_));
                let mut jobs: Vec<&Text> = self.live().filter(running).map(|unit| &unit.index).collect();
                jobs.sort();
                assert!(!self.wanted().job || jobs.windows(2).all(|two| two[0] != two[1]), "twice at once: {jobs:?}");
            }
        }
        for (_, turn) in planned.turns {
            self.stack.services[0].turn(turn);
        }
        self.world.now += Duration::from_secs(5);
        let (now, is_job) = (self.world.now, self.wanted().job);
        for unit in &mut self.world.units {
            let age = self.ages.entry(unit.id.clone()).or_default();
            *age += 1;
            match unit.state {
                State::Starting if *age >= self.slowness => unit.state = State::Healthy(now),
                State::Healthy(_) if is_job && *age >= self.slowness + JOB_ROUNDS => unit.state = State::Done,
                _ => {}
            }
        }
    }

    /// Lets it come to rest, after which there is one unit of each index, and as many as are wanted.
    fn settle(&mut self) {
        let (mut rest, mut rounds) = (0, 0);
        while rest < AT_REST {
            let (units, stack) = (self.world.units.clone(), self.stack.clone());
            self.round(usize::MAX);
            rest = if units == self.world.units && stack == self.stack { rest + 1 } else { 0 };
            rounds += 1;
            assert!(rounds < ROUNDS, "it never ends: {}\n{:#?}", plan(&self.stack, &self.world), self.world);
        }
        let all = format!("{}\n{:#?}\n{:#?}", plan(&self.stack, &self.world), self.world, self.stack.services[0].stage);
        let mut indices: Vec<&Text> = self.live().map(|unit| &unit.index).collect();
        indices.sort();
        if matches!(self.stack.services[0].stage, Stage::Stuck(_)) {
            // One that was killed in an update of which it was a part, and a person has to decide; no revision of it is there twice.
            let mut all_of: Vec<_> = self.live().map(|unit| (&unit.index, &unit.digest, unit.host.clone())).collect();
            all_of.sort();
            let twice = |two: &[(&Text, &Text, Text)]| {
                two[0].0 == two[1].0 && two[0].1 == two[1].1 && self.is_open(&two[0].2) && self.is_open(&two[1].2)
            };
            assert!(!all_of.windows(2).any(twice), "{all}");
            return;
        }
        let is_open = HOSTS.map(Text::from).iter().any(|host| self.is_open(host));
        if !is_open && self.stack.services[0].stage.is_changing() {
            return;
        }
        assert!(indices.windows(2).all(|two| two[0] != two[1]), "an index is there twice: {all}");
        if !is_open {
            return;
        }
        let digest = &self.wanted().digest;
        assert!(self.live().all(|unit| unit.digest == *digest), "{all}");
        assert_eq!(indices.len(), self.wanted().scale as usize, "{all}");
        // What was killed where nothing may be started stays so while no other host has room.
        let is_down = |unit: &&Unit| matches!(unit.state, State::Ended(_) | State::Starting);
        let may_be_down = |unit: &&Unit| !self.has_room && self.world.leaving.contains(&unit.host);
        assert!(self.live().filter(is_down).all(|unit| may_be_down(&unit)), "{all}");
        let left = self.live().filter(|unit| self.world.leaving.contains(&unit.host) && unit.state != State::Done);
        assert!(!self.has_room || left.count() == 0, "{all}");
        assert!(self.stack.services[0].stage.is_settled(), "{all}");
    }
}

/// Events, with how many rounds follow each; in each round some of the steps are done.
type Events = Vec<(usize, Event)>;

impl Cluster {
    fn go_through(&mut self, events: Events, steps: &[usize]) {
        for (rounds, event) in events {
            self.happen(&event);
            for round in 0..rounds {
                self.round(steps[round % steps.len()]);
            }
        }
    }
}

fn happening(with_updates: bool, with_deaths: bool) -> impl Strategy<Value = (usize, Event)> {
    let event = prop_oneof![
        4 => (0usize..4).prop_map(Event::Drain),
        2 => (0usize..4).prop_map(Event::Cordon),
        3 => (0usize..4).prop_map(Event::Open),
        1 => Just(Event::OpenAll),
        if with_deaths { 3 } else { 0 } => (0usize..8).prop_map(Event::Kill),
        u32::from(with_deaths) => (0usize..8).prop_map(Event::Sicken),
        if with_deaths { 2 } else { 0 } => (1u32..8).prop_map(Event::Scale),
        u32::from(with_updates) => Just(Event::Update),
    ];
    (0usize..9, event)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn whatever_happens_to_hosts_and_units_each_index_is_there_once_in_the_end(
        scale in 1u32..8, batch in 1u32..4, has_room: bool, slowness in 1u32..5,
        events in prop::collection::vec(happening(false, true), 0..12),
        steps in prop::collection::vec(1usize..4, 1..5),
    ) {
        let mut cluster = Cluster::new(service("image", scale, batch, false), has_room, slowness);
        cluster.settle();
        cluster.go_through(events, &steps);
        cluster.settle();
    }

    #[test]
    fn an_update_in_the_middle_of_drains_ends_too(
        scale in 1u32..8, batch in 1u32..4, has_room: bool, slowness in 1u32..5,
        events in prop::collection::vec(happening(true, true), 0..12),
        steps in prop::collection::vec(1usize..4, 1..5),
    ) {
        let mut cluster = Cluster::new(service("image", scale, batch, false), has_room, slowness);
        cluster.settle();
        cluster.go_through(events, &steps);
        cluster.settle();
    }

    #[test]
    fn an_update_in_the_middle_of_drains_costs_no_good_unit_where_one_more_fits(
        scale in 1u32..8, batch in 1u32..4, slowness in 1u32..5,
        events in prop::collection::vec(happening(true, false), 0..12),
        steps in prop::collection::vec(1usize..4, 1..5),
    ) {
        let mut cluster = Cluster::new(service("image", scale, batch, false), true, slowness);
        cluster.settle();
        cluster.is_kept_good = true;
        cluster.go_through(events, &steps);
        cluster.settle();
    }

    #[test]
    fn a_job_runs_once_wherever_its_host_goes(
        scale in 1u32..5, slowness in 1u32..5,
        events in prop::collection::vec(happening(false, false), 0..12),
        steps in prop::collection::vec(1usize..4, 1..5),
    ) {
        let mut cluster = Cluster::new(service("job", scale, 1, true), true, slowness);
        for (rounds, event) in events {
            for round in 0..rounds {
                cluster.round(steps[round % steps.len()]);
            }
            cluster.happen(&event);
        }
        cluster.happen(&Event::OpenAll);
        cluster.settle();
        prop_assert_eq!(cluster.begun.len(), scale as usize);
        prop_assert!(cluster.begun.values().all(|begun| *begun == 1), "{:?}", cluster.begun);
        prop_assert!(cluster.live().all(|unit| unit.state == State::Done));
    }
}

/// Two units on a host that is being left, and room elsewhere, where the first one's successor is.
fn leaving() -> Cluster {
    let mut cluster = Cluster::new(service("image", 2, 1, false), true, 1);
    cluster.settle();
    for unit in &mut cluster.world.units {
        unit.host = "a".into();
    }
    cluster.happen(&Event::Drain(0));
    cluster.slowness = u32::MAX;
    cluster.round(1);
    assert_eq!(cluster.world.units.len(), 3, "{:#?}", cluster.world);
    cluster
}

#[test]
fn while_one_does_not_become_healthy_elsewhere_the_next_one_moves() {
    let mut cluster = leaving();
    let (old, new) = (cluster.world.units[0].clone(), cluster.world.units[2].clone());
    assert_eq!(old.index, new.index);
    assert!(plan(&cluster.stack, &cluster.world).is_empty());
    cluster.world.now = new.made + Duration::from_mins(5);
    let late = plan(&cluster.stack, &cluster.world);
    assert_eq!(late.steps, [Step::Remove { id: new.id.clone() }]);
    assert_eq!(late.late, [(new.id.clone(), format!("{} was not healthy within 300 s", new.id))].into());

    let healthy = State::Healthy(cluster.world.now);
    cluster.world.units[2].state = healthy;
    let monitored = cluster.world.now + Duration::from_secs(10);
    assert_eq!(plan(&cluster.stack, &cluster.world).wake, Some(monitored), "it is looked at again then");

    cluster.world.units.pop();
    let until = cluster.world.now + Duration::from_secs(10);
    cluster.world.not_before.insert(("web".into(), old.index.clone()), until);
    let next = plan(&cluster.stack, &cluster.world);
    let placed = |steps: &[Step]| match steps {
        [Step::Place { index, .. }] => Some(index.clone()),
        _ => None,
    };
    assert_eq!((placed(&next.steps), next.wake), (Some(cluster.world.units[1].index.clone()), Some(until)));
    cluster.world.now = until;
    assert_eq!(placed(&plan(&cluster.stack, &cluster.world).steps), Some(old.index));
}

#[test]
fn a_move_in_vain_fails_no_update_and_none_waits_for_it() {
    let mut cluster = leaving();
    cluster.world.now += Duration::from_secs(20);
    let new = cluster.world.units[2].clone();
    for unit in &mut cluster.world.units[..2] {
        unit.state = State::Healthy(unit.made);
    }
    cluster.happen(&Event::Scale(1));
    assert_eq!(cluster.stack.services[0].stage, Stage::Updating);
    // Whether the surplus is the unit whose successor it is or the other one.
    cluster.world.now = new.made + Duration::from_mins(5);
    let late = plan(&cluster.stack, &cluster.world);
    assert!(late.steps.contains(&Step::Remove { id: new.id }), "{late}");
    assert!(late.turns.is_empty() || late.turns[0].1 == Turn::Finished, "{late}");
    for step in &late.steps {
        cluster.act(step);
    }
    let over = plan(&cluster.stack, &cluster.world);
    let turns: Vec<_> = late.turns.into_iter().chain(over.turns).map(|(_, turn)| turn).collect();
    assert_eq!(turns, [Turn::Finished]);
    assert_eq!(cluster.live().filter(|unit| unit.is_healthy()).count(), 1);
}

#[test]
fn a_drain_that_is_wanted_again_waits_for_the_end_of_what_the_last_one_began() {
    let mut cluster = leaving();
    cluster.happen(&Event::OpenAll);
    let new = cluster.world.units[2].id.clone();
    assert_eq!(plan(&cluster.stack, &cluster.world).steps, [Step::Remove { id: new }]);
    let begun = cluster.world.now;
    (cluster.world.units[2].state, cluster.world.units[2].made) = (State::Removing, begun);
    cluster.happen(&Event::Drain(0));
    let of_first = |steps: &[Step], cluster: &Cluster| {
        let index = &cluster.world.units[0].index;
        steps.iter().any(|step| matches!(step, Step::Place { index: placed, .. } if placed == index))
    };
    let again = plan(&cluster.stack, &cluster.world);
    assert!(!of_first(&again.steps, &cluster), "{again}");
    assert!(again.wake.is_some_and(|at| at <= begun + Duration::from_mins(5)), "{again}");
    // An engine that does not stop it may be silent for long.
    cluster.world.now = begun + Duration::from_mins(5);
    let at_last = plan(&cluster.stack, &cluster.world);
    assert!(of_first(&at_last.steps, &cluster), "{at_last}");
}
