//! What is stopped takes its time to end, and what has its place next waits for that.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::time::Duration;

use model::{Map, Text};
use proptest::prelude::*;
use stacks::{Order, Rollout, Service, Stack, Stage, State, Step, Turn, Unit, Update, World, plan};

/// Rounds that a unit takes to end.
const SLOW: u32 = 4;

fn service(image: &str, scale: u32, batch: u32, order: Order) -> Service {
    let request: Map =
        serde_json::from_value(serde_json::json!({ "service": "web", "image": image, "count": scale })).unwrap();
    let update = Update { batch, order, monitor: 10, ..Update::default() };
    Service { rollback: update.clone(), update, ..Service::parse(&request).unwrap() }
}

/// A stack of one service, and a world in which units end slowly.
struct Slow {
    stack: Stack,
    world: World,
    /// How many rounds more, and whether they are kept then.
    ending: BTreeMap<Text, (u32, bool)>,
}

impl Slow {
    fn new(wanted: Service, fits: bool) -> Self {
        let stack = Stack { name: "shop".into(), services: vec![Rollout::new(wanted)], ..Stack::default() };
        let mut world = World { sees_most: true, ..World::default() };
        if fits {
            world.fits_beside.insert("web".into());
        }
        Self { stack, world, ending: BTreeMap::new() }
    }

    fn unit(&mut self, id: &Text) -> &mut Unit {
        self.world.units.iter_mut().find(|unit| unit.id == *id).unwrap()
    }

    /// Begins a unit of an index, of which no other one may run or end.
    fn begin(&mut self, index: &Text) {
        let others = self.world.units.iter().filter(|unit| unit.index == *index && unit.state != State::Kept);
        let others: Vec<_> = others.collect();
        assert!(others.is_empty(), "{index} begins beside {others:?}");
    }

    /// Plans and acts once; returns whether nothing is left to do. Units of images that are bad never become healthy.
    fn turn(&mut self, bad: Option<&Text>) -> bool {
        let planned = plan(&self.stack, &self.world);
        let is_over = planned.is_empty() && !self.stack.services[0].stage.is_changing() && self.ending.is_empty();
        let now = self.world.now;
        for step in planned.steps {
            match step {
                Step::Place { service, index, id } => {
                    self.begin(&index);
                    let digest = self.stack.services[0].wanted.digest.clone();
                    let (host, state) = ("h".into(), State::Starting);
                    self.world.units.push(Unit { id, service, index, digest, host, made: now, placed: now, state });
                }
                Step::StartKept { id } => {
                    let index = self.unit(&id).index.clone();
                    self.begin(&index);
                    let unit = self.unit(&id);
                    (unit.state, unit.made) = (State::Starting, now);
                }
                Step::StopKept { id } | Step::Remove { id } if self.ending.contains_key(&id) => {}
                Step::StopKept { id } => {
                    self.unit(&id).state = State::Removing;
                    self.ending.insert(id, (SLOW, true));
                }
                Step::Remove { id } => {
                    self.unit(&id).state = State::Removing;
                    self.ending.insert(id, (SLOW, false));
                }
                Step::Evict { .. } => panic!("no host is gone"),
            }
        }
        for (_, turn) in planned.turns {
            assert!(turn != Turn::Finished || self.ending.is_empty(), "an update is done and {:?} runs", self.ending);
            self.stack.services[0].turn(turn);
        }
        self.pass(bad);
        is_over
    }

    fn pass(&mut self, bad: Option<&Text>) {
        self.world.now += Duration::from_secs(5);
        let now = self.world.now;
        for unit in &mut self.world.units {
            if unit.state == State::Starting && Some(&unit.digest) != bad {
                unit.state = State::Healthy(now);
            }
        }
        for (left, _) in self.ending.values_mut() {
            *left -= 1;
        }
        for (id, (_, is_kept)) in self.ending.extract_if(.., |_, (left, _)| *left == 0) {
            if is_kept {
                self.world.units.iter_mut().filter(|unit| unit.id == id).for_each(|unit| unit.state = State::Kept);
            } else {
                self.world.units.retain(|unit| unit.id != id);
            }
        }
    }

    fn run(&mut self, bad: Option<&Text>) {
        for _ in 0..3000 {
            if self.turn(bad) {
                return;
            }
        }
        panic!("it never ends: {}\n{:?}", plan(&self.stack, &self.world), self.world);
    }

    /// Units that are healthy, of this revision.
    fn healthy(&self, digest: &Text) -> usize {
        self.world.units.iter().filter(|unit| unit.is_live() && unit.is_healthy() && unit.digest == *digest).count()
    }
}

proptest! {
    #[test]
    fn where_old_units_stop_first_none_begins_before_the_one_before_has_ended(
        scale in 1u32..5, batch in 1u32..4, fits: bool, is_bad: bool, pause in 0usize..6,
    ) {
        // What fits beside has to be told to stop first; what does not fit does so by itself.
        let order = if fits { Order::StopFirst } else { Order::Auto };
        let old = service("old", scale, batch, order);
        let mut slow = Slow::new(old.clone(), fits);
        slow.run(None);
        prop_assert_eq!(slow.healthy(&old.digest), scale as usize);

        let new = service("new", scale, batch, order);
        slow.stack.services[0].change(new.clone());
        slow.run(is_bad.then_some(&new.digest));
        let left = if is_bad { &old } else { &new };
        prop_assert_eq!(slow.healthy(&left.digest), scale as usize);
        let is_back = matches!(slow.stack.services[0].stage, Stage::RolledBack(_));
        prop_assert_eq!(is_back, is_bad);

        // To none and back, before the last ones have ended or after.
        let left = left.clone();
        slow.stack.services[0].change(Service { scale: 0, ..left.clone() });
        for _ in 0..pause {
            slow.turn(None);
        }
        slow.stack.services[0].change(left.clone());
        slow.run(None);
        prop_assert_eq!(slow.healthy(&left.digest), scale as usize);
    }
}

#[test]
fn nothing_waits_for_what_is_on_a_host_that_is_gone() {
    let wanted = service("a", 1, 1, Order::StopFirst);
    let mut slow = Slow::new(wanted.clone(), false);
    slow.run(None);
    slow.stack.services[0].change(Service { scale: 0, ..wanted.clone() });
    slow.turn(None);
    slow.stack.services[0].change(wanted);
    assert_eq!(plan(&slow.stack, &slow.world).phases[0].waits, "waits until old units have ended");
    slow.world.gone.insert("h".into());
    let planned = plan(&slow.stack, &slow.world);
    assert!(matches!(planned.steps[..], [Step::Place { .. }]), "{planned}");
}
