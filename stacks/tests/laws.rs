//! Laws of the plan, over a world in which units start, fail and become healthy at random.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use model::{Map, Text};
use proptest::prelude::*;
use stacks::{Order, Rollout, Service, Stack, Stage, State, Step, Turn, Unit, Update, World, plan};

const MONITOR: u64 = 10;

fn service(image: &str, scale: u32, batch: u32, order: Order) -> Service {
    let request: Map =
        serde_json::from_value(serde_json::json!({ "service": "web", "image": image, "count": scale })).unwrap();
    let update = Update { batch, order, monitor: MONITOR, ..Update::default() };
    Service { rollback: update.clone(), update, ..Service::parse(&request).unwrap() }
}

fn stack(wanted: Service) -> Stack {
    Stack { name: "shop".into(), services: vec![Rollout::new(wanted)], ..Stack::default() }
}

fn host(id: &str) -> Text {
    format!("h{}", id.len() % 3).into()
}

/// Does one step; units of images that are bad never become healthy.
fn act(world: &mut World, wanted: &Service, step: &Step) {
    match step {
        Step::Place { service, index, id } => {
            assert!(world.units.iter().all(|unit| unit.id != *id), "{id} is there already");
            world.units.push(Unit {
                id: id.clone(),
                service: service.clone(),
                index: index.clone(),
                digest: wanted.digest.clone(),
                host: host(id),
                made: world.now,
                placed: world.now,
                state: State::Starting,
            });
        }
        Step::StopKept { id } => set(world, id, State::Kept),
        Step::StartKept { id } => {
            set(world, id, State::Starting);
            let now = world.now;
            world.units.iter_mut().filter(|unit| unit.id == *id).for_each(|unit| unit.made = now);
        }
        Step::Remove { id } => world.units.retain(|unit| unit.id != *id),
        Step::Evict { id, .. } => set(world, id, State::Evicted),
    }
}

fn set(world: &mut World, id: &Text, state: State) {
    world.units.iter_mut().find(|unit| unit.id == *id).unwrap().state = state;
}

/// Time passes, and what starts becomes healthy unless its revision is bad.
fn pass(world: &mut World, bad: &[Text]) {
    world.now += Duration::from_secs(5);
    let now = world.now;
    for unit in &mut world.units {
        if unit.state == State::Starting && !bad.contains(&unit.digest) {
            unit.state = State::Healthy(now);
        }
    }
}

fn healthy(world: &World) -> usize {
    world.units.iter().filter(|unit| unit.is_live() && unit.is_healthy()).count()
}

/// Plans and acts until nothing is left to do; after each step `check` looks. Of each plan only the first `steps` are done, as
/// by an executor that dies there.
fn run(stack: &mut Stack, world: &mut World, bad: &[Text], steps: &[usize], mut check: impl FnMut(&World, &Stack)) {
    for round in 0..3000 {
        let planned = plan(stack, world);
        assert_eq!(planned, plan(stack, world), "equal input, equal plan");
        assert_eq!(planned.to_string(), plan(stack, world).to_string());
        if planned.is_empty()
            && matches!(
                stack.services[0].stage,
                Stage::Steady | Stage::Stuck(_) | Stage::RolledBack(_) | Stage::Unconfirmed
            )
        {
            return;
        }
        let most = if steps.is_empty() { usize::MAX } else { steps[round % steps.len()] };
        for step in planned.steps.iter().take(most) {
            let wanted = stack.services[0].wanted.clone();
            act(world, &wanted, step);
            check(world, stack);
        }
        if planned.steps.len() <= most {
            for (_, turn) in planned.turns {
                stack.services[0].turn(turn);
            }
        }
        pass(world, bad);
        check(world, stack);
    }
    panic!("it never ends: {}\n{world:?}", plan(stack, world));
}

/// A stack with `scale` units of the old revision.
fn running(scale: u32, batch: u32, order: Order, fits: bool) -> (Stack, World) {
    let mut stack = stack(service("old", scale, batch, order));
    let mut world = World { sees_most: true, ..World::default() };
    if fits {
        world.fits_beside.insert("web".into());
    }
    run(&mut stack, &mut world, &[], &[], |_, _| ());
    assert_eq!(healthy(&world), scale as usize);
    (stack, world)
}

/// How many units of both revisions live.
fn counts(world: &World, new: &Text) -> (usize, usize) {
    let live = || world.units.iter().filter(|unit| unit.is_live());
    (live().filter(|unit| unit.digest != *new).count(), live().filter(|unit| unit.digest == *new).count())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn an_update_keeps_enough_units_healthy_and_ends_as_wanted(
        before in 1u32..7, after in 1u32..7, batch in 1u32..4, fits: bool, stop_first: bool, is_bad: bool,
        steps in prop::collection::vec(1usize..4, 0..5),
    ) {
        let order = if stop_first { Order::StopFirst } else { Order::Auto };
        let (mut stack, mut world) = running(before, batch, order, fits);
        let old: Vec<Text> = world.units.iter().map(|unit| unit.id.clone()).collect();
        let new = service("new", after, batch, order);
        let bad = if is_bad { vec![new.digest.clone()] } else { Vec::new() };
        let old_digest = stack.services[0].wanted.digest.clone();
        stack.services[0].change(new.clone());
        let floor = (before.min(after) as usize).saturating_sub(batch as usize);
        let most = before.max(after) as usize + batch as usize;
        run(&mut stack, &mut world, &bad, &steps, |world, _| {
            assert!(healthy(world) >= floor, "{} healthy, at least {floor}: {world:?}", healthy(world));
            let live = world.units.iter().filter(|unit| unit.is_live()).count();
            assert!(live <= most, "{live} units, at most {most}");
        });
        prop_assert!(plan(&stack, &world).is_empty(), "{}", plan(&stack, &world));
        prop_assert_eq!(healthy(&world), after as usize);
        prop_assert_eq!(world.units.len(), after as usize);
        let wanted = if is_bad { old_digest } else { new.digest };
        prop_assert!(world.units.iter().all(|unit| unit.digest == wanted));
        prop_assert_eq!(is_bad, matches!(stack.services[0].stage, Stage::RolledBack(_)));
        if is_bad && fits && !stop_first && before <= after {
            // The old units were never touched.
            prop_assert!(old.iter().all(|id| world.units.iter().any(|unit| unit.id == *id)));
        }
    }

    #[test]
    fn a_dead_host_is_left_once_and_its_copy_goes_when_it_returns(scale in 1u32..6, sees_most: bool, dead in 0usize..6) {
        let (mut stack, mut world) = running(scale, 1, Order::Auto, true);
        let at = dead % world.units.len();
        let (id, index) = (world.units[at].id.clone(), world.units[at].index.clone());
        world.units[at].state = State::Lost(world.now);
        let planned = plan(&stack, &world);
        prop_assert!(planned.is_empty() && planned.wake == Some(world.now + Duration::from_mins(5)), "too early: {}", planned);
        world.now += Duration::from_mins(5);
        world.sees_most = sees_most;
        if !sees_most {
            prop_assert!(plan(&stack, &world).is_empty());
            return Ok(());
        }
        run(&mut stack, &mut world, &[], &[1], |world, _| {
            let live = world.units.iter().filter(|unit| unit.is_live() && unit.index == index).count();
            assert!(live <= 1, "{world:?}");
        });
        prop_assert_eq!(healthy(&world), scale as usize);
        set(&mut world, &id, State::Returned);
        let back = plan(&stack, &world);
        prop_assert_eq!(back.steps, vec![Step::Remove { id }]);
    }

    #[test]
    fn units_leave_a_host_one_by_one_and_none_is_stopped_before_another_one_runs(
        scale in 1u32..7, batch in 1u32..4, fits: bool, steps in prop::collection::vec(1usize..4, 0..5),
    ) {
        let (mut stack, mut world) = running(scale, batch, Order::StopFirst, fits);
        let left = world.units[0].host.clone();
        world.leaving.insert(left.clone());
        let before = world.units.clone();
        if !fits {
            let planned = plan(&stack, &world);
            prop_assert!(planned.steps.is_empty() && planned.to_string().contains("stays where it is"), "{}", planned);
            return Ok(());
        }
        leave(&mut stack, &mut world, &left, &steps, scale as usize, batch as usize);
        prop_assert!(world.units.iter().all(|unit| unit.host != left));
        let stays = |unit: &&Unit| unit.host != left;
        prop_assert!(before.iter().filter(stays).all(|unit| world.units.iter().any(|own| own.id == unit.id)));
    }
}

/// Plans and acts until no unit is on a host that units leave.
fn leave(stack: &mut Stack, world: &mut World, left: &Text, steps: &[usize], scale: usize, batch: usize) {
    for round in 0..1000 {
        let planned = plan(stack, world);
        if planned.is_empty() && world.units.iter().all(|unit| unit.host != *left && unit.is_healthy()) {
            assert_eq!(world.units.len(), scale);
            return;
        }
        let most = if steps.is_empty() { usize::MAX } else { steps[round % steps.len()] };
        let wanted = stack.services[0].wanted.clone();
        for step in planned.steps.iter().take(most) {
            act(world, &wanted, step);
            if let Step::Place { id, .. } = step
                && let Some(unit) = world.units.iter_mut().find(|unit| unit.id == *id && unit.host == *left)
            {
                // Nothing is placed there.
                unit.host = "elsewhere".into();
            }
            assert!(healthy(world) >= scale, "{world:?}");
            assert!(world.units.iter().filter(|unit| unit.is_live()).count() <= scale + batch, "{world:?}");
        }
        if planned.steps.len() <= most {
            for (_, turn) in planned.turns {
                stack.services[0].turn(turn);
            }
        }
        pass(world, &[]);
    }
    panic!("it never ends: {}\n{world:?}", plan(stack, world));
}

#[test]
fn the_rolling_table_of_the_predecessor() {
    let (mut stack, mut world) = running(2, 2, Order::Auto, true);
    let new = service("new", 5, 2, Order::Auto);
    stack.services[0].change(new.clone());
    let mut seen = vec![counts(&world, &new.digest)];
    for _ in 0..200 {
        let planned = plan(&stack, &world);
        let steps = planned.steps.clone();
        for (_, turn) in planned.turns {
            stack.services[0].turn(turn);
        }
        for step in steps {
            act(&mut world, &new, &step);
        }
        let now = counts(&world, &new.digest);
        if seen.last() != Some(&now) {
            seen.push(now);
        }
        pass(&mut world, &[]);
    }
    assert_eq!(seen, [(2, 0), (2, 2), (2, 4), (1, 4), (1, 5), (0, 5)]);
}

#[test]
fn what_fits_nowhere_fails_before_anything_stops() {
    let (mut stack, mut world) = running(3, 1, Order::StopFirst, false);
    world.hopeless.insert("web".into(), "no host fits: label disk=ssd (3)".into());
    stack.services[0].change(service("new", 3, 1, Order::StopFirst));
    let planned = plan(&stack, &world);
    assert!(planned.steps.is_empty(), "{planned}");
    assert!(planned.to_string().contains("goes back to what it was: no host fits"), "{planned}");
}

#[test]
fn start_first_without_room_says_so_and_stops_nothing() {
    let (mut stack, world) = running(3, 1, Order::Auto, false);
    stack.services[0].change(service("new", 3, 1, Order::StartFirst));
    let planned = plan(&stack, &world);
    assert!(planned.steps.is_empty() && planned.to_string().contains("order is start-first"), "{planned}");
}

#[test]
fn a_service_waits_for_those_that_it_depends_on() {
    let request = |json: serde_json::Value| Service::parse(&serde_json::from_value(json).unwrap()).unwrap();
    let db = request(serde_json::json!({ "service": "db", "image": "db" }));
    let web = request(serde_json::json!({ "service": "web", "image": "web", "depends_on": ["db"] }));
    let stack =
        Stack { name: "shop".into(), services: vec![Rollout::new(db.clone()), Rollout::new(web)], ..Stack::default() };
    let mut world = World::default();
    let planned = plan(&stack, &world);
    assert_eq!(planned.steps.len(), 1, "{planned}");
    assert!(planned.to_string().contains("waits for db"), "{planned}");
    act(&mut world, &db, &planned.steps[0]);
    pass(&mut world, &[]);
    assert!(plan(&stack, &world).to_string().contains("shop-web-1"));
}

#[test]
fn a_service_waits_for_the_end_of_a_job() {
    let request = |json: serde_json::Value| Service::parse(&serde_json::from_value(json).unwrap()).unwrap();
    let job = request(serde_json::json!({ "service": "job", "image": "job", "job": true }));
    let ended = serde_json::json!({ "service": "job", "condition": "service_completed_successfully" });
    let web = request(serde_json::json!({ "service": "web", "image": "web", "depends_on": [ended] }));
    let stack =
        Stack { name: "shop".into(), services: vec![Rollout::new(job.clone()), Rollout::new(web)], ..Stack::default() };
    let mut world = World::default();
    let planned = plan(&stack, &world);
    act(&mut world, &job, &planned.steps[0]);
    pass(&mut world, &[]);
    let planned = plan(&stack, &world);
    assert!(planned.to_string().contains("waits for job to be done"), "{planned}");
    world.units[0].state = State::Done;
    assert!(plan(&stack, &world).to_string().contains("shop-web-1"));
}

#[test]
fn what_runs_is_replaced_only_once_the_job_of_its_revision_is_done() {
    let request = |json: serde_json::Value| Service::parse(&serde_json::from_value(json).unwrap()).unwrap();
    let ended = serde_json::json!({ "service": "job", "condition": "service_completed_successfully" });
    let job = |image: &str| request(serde_json::json!({ "service": "job", "image": image, "job": true }));
    let web =
        |image: &str| request(serde_json::json!({ "service": "web", "image": image, "depends_on": [ended.clone()] }));
    let services = vec![Rollout::new(job("one")), Rollout::new(web("one"))];
    let mut stack = Stack { name: "shop".into(), services, ..Stack::default() };
    let mut world = World { sees_most: true, now: Duration::from_secs(1000), ..World::default() };
    for (service, state) in [(job("one"), State::Done), (web("one"), State::Healthy(Duration::ZERO))] {
        let (id, index) = (format!("shop-{}-1-{}", service.name, service.digest).into(), "1".into());
        let (made, placed) = (world.now, world.now);
        let (service, digest) = (service.name, service.digest);
        world.units.push(Unit { id, service, index, digest, host: "a".into(), made, placed, state });
    }
    for rollout in &mut stack.services {
        rollout.stage = Stage::Steady;
    }
    assert!(plan(&stack, &world).is_empty());
    for (rollout, wanted) in stack.services.iter_mut().zip([job("two"), web("two")]) {
        rollout.change(wanted);
    }
    let waits = |stack: &Stack, world: &World| plan(stack, world).phases[1].waits.clone();
    assert_eq!(waits(&stack, &world), "waits for job to be done");
    // The old one ends, the new one is done.
    let mut done = world.clone();
    done.units[0].digest = job("two").digest;
    assert_ne!(waits(&stack, &done), "waits for job to be done");
    // The new one fails, so what runs stays.
    stack.services[0].turn(Turn::RollBack("code 1".into()));
    let turn = Turn::RollBack("waits for job to be done, which was rolled back".into());
    assert!(plan(&stack, &world).turns.contains(&("web".into(), turn)));
}

/// A global service with a unit on each of these hosts, whose uuids are as their names.
fn global(hosts: &[&str]) -> (Stack, World) {
    let mut wanted = service("old", 1, 1, Order::Auto);
    wanted.global = true;
    let mut world = World { sees_most: true, now: Duration::from_secs(1000), ..World::default() };
    world.hosts.insert("web".into(), hosts.iter().copied().map(Text::from).collect());
    for name in hosts {
        let (id, index) = (format!("web-{name}").into(), Text::from(*name));
        let (service, digest, made) = ("web".into(), wanted.digest.clone(), world.now);
        world.units.push(Unit {
            id,
            service,
            host: index.clone(),
            index,
            digest,
            made,
            placed: made,
            state: State::Healthy(Duration::ZERO),
        });
    }
    let mut stack = stack(wanted);
    stack.services[0].stage = Stage::Steady;
    (stack, world)
}

#[test]
fn the_unit_of_a_dead_host_of_a_global_service_is_placed_nowhere_else() {
    let (stack, mut world) = global(&["a", "b"]);
    world.units[1].state = State::Lost(Duration::ZERO);
    assert_eq!(plan(&stack, &world).steps, [Step::Evict { id: "web-b".into(), host: "b".into() }]);
    world.units[1].state = State::Evicted;
    world.hosts.insert("web".into(), ["a".into()].into());
    assert!(plan(&stack, &world).is_empty());
}

#[test]
fn the_unit_of_a_cordoned_host_of_a_global_service_stays_as_it_is() {
    let (mut stack, mut world) = global(&["a", "b"]);
    let wanted = Service { global: true, ..service("new", 1, 1, Order::Auto) };
    stack.services[0].change(wanted.clone());
    world.cordoned.insert("b".into());
    assert!(world.keeps_as_it_is(&world.units[1], &wanted) && !world.keeps_as_it_is(&world.units[0], &wanted));
    world.hosts.insert("web".into(), ["a".into()].into());
    run(&mut stack, &mut world, &[], &[], |world, _| {
        assert!(world.units.iter().any(|unit| *unit.id == *"web-b" && unit.is_healthy()));
    });
    assert_eq!(stack.services[0].stage, Stage::Steady);
    // It follows when its host takes units again, and goes with the stack.
    let removing = Stack { removing: true, ..stack.clone() };
    assert!(plan(&removing, &world).steps.contains(&Step::Remove { id: "web-b".into() }));
    world.cordoned.clear();
    world.hosts.insert("web".into(), ["a".into(), "b".into()].into());
    run(&mut stack, &mut world, &[], &[], |_, _| {});
    assert!(world.units.iter().filter(|unit| unit.is_live()).all(|unit| unit.digest == wanted.digest));
}

#[test]
fn what_is_pruned_stays_until_all_or_nothing_is_decided() {
    let (mut stack, mut world) = running(1, 1, Order::Auto, true);
    let other = Unit { id: "c-1".into(), service: "c".into(), ..world.units[0].clone() };
    world.units.push(other);
    stack.services[0].change(service("new", 1, 1, Order::Auto));
    let removes = |stack: &Stack, world: &World| plan(stack, world).steps.contains(&Step::Remove { id: "c-1".into() });
    (stack.prune, stack.atomic) = (true, false);
    assert!(removes(&stack, &world));
    stack.atomic = true;
    assert!(!removes(&stack, &world));
    stack.services[0].stage = Stage::Steady;
    assert!(removes(&stack, &world));
}

#[test]
fn a_job_is_done_when_it_has_ended_and_fails_whenever_it_fails() {
    let job = Service { job: true, ..service("job", 1, 1, Order::Auto) };
    let mut stack = stack(job);
    let mut world = World { sees_most: true, ..World::default() };
    let step = plan(&stack, &world).steps.remove(0);
    act(&mut world, &stack.services[0].wanted.clone(), &step);
    world.units[0].state = State::Healthy(Duration::ZERO);
    // Longer than `monitor` and the deadline.
    world.now = Duration::from_secs(4000);
    let planned = plan(&stack, &world);
    assert!(planned.is_empty() && planned.phases[0].good == 0, "{planned}");
    assert_eq!(planned.phases[0].waits, "waits until 1 of 1 have ended without an error");
    world.units[0].state = State::Done;
    assert_eq!(plan(&stack, &world).turns, [("web".into(), Turn::Finished)]);
    // Of a job that was well once, too.
    stack.services[0].stage = Stage::Steady;
    assert!(plan(&stack, &world).is_empty());
    world.units[0].state = State::Failed("it ended with code 1".into());
    let why = format!("{}: it ended with code 1", world.units[0].id);
    assert_eq!(plan(&stack, &world).turns, [("web".into(), Turn::Stuck(why.into()))]);
}

#[test]
fn what_failed_is_tried_once_more_when_a_person_asks_once_more() {
    let job = Service { job: true, ..service("job", 1, 1, Order::Auto) };
    let mut stack = stack(job);
    let mut world = World { sees_most: true, now: Duration::from_secs(50), ..World::default() };
    let step = plan(&stack, &world).steps.remove(0);
    act(&mut world, &stack.services[0].wanted.clone(), &step);
    world.units[0].state = State::Failed("it ended with code 1".into());
    assert!(matches!(&plan(&stack, &world).turns[..], [(_, Turn::Stuck(_))]));
    stack.services[0].asked = Duration::from_mins(1);
    let planned = plan(&stack, &world);
    assert_eq!((planned.turns.len(), &planned.steps[0]), (0, &Step::Remove { id: world.units[0].id.clone() }));
    // What fails after that fails.
    world.units[0].placed = Duration::from_secs(61);
    assert!(matches!(&plan(&stack, &world).turns[..], [(_, Turn::Stuck(_))]));
}

#[test]
fn a_service_waits_for_all_hosts_of_a_global_one() {
    let (mut stack, mut world) = global(&["a", "b"]);
    let request = serde_json::json!({ "service": "after", "image": "after", "depends_on": ["web"] });
    let after = Service::parse(&serde_json::from_value(request).unwrap()).unwrap();
    stack.services.push(Rollout::new(after));
    let waits = |stack: &Stack, world: &World| plan(stack, world).phases[1].waits.clone();
    world.units[1].state = State::Starting;
    assert_eq!(waits(&stack, &world), "waits for web");
    world.units[1].state = State::Healthy(Duration::ZERO);
    assert_ne!(waits(&stack, &world), "waits for web");
}

#[test]
fn who_waits_for_what_is_stuck_is_stuck() {
    let request = |json: serde_json::Value| Service::parse(&serde_json::from_value(json).unwrap()).unwrap();
    let job = request(serde_json::json!({ "service": "job", "image": "job", "job": true }));
    let ended = serde_json::json!({ "service": "job", "condition": "service_completed_successfully" });
    let web = request(serde_json::json!({ "service": "web", "image": "web", "depends_on": [ended] }));
    let services = vec![Rollout { stage: Stage::Stuck("code 1".into()), ..Rollout::new(job) }, Rollout::new(web)];
    let stack = Stack { name: "shop".into(), services, ..Stack::default() };
    let turn = Turn::Stuck("waits for job to be done, which is stuck".into());
    assert_eq!(plan(&stack, &World::default()).turns, [("web".into(), turn)]);
}

#[test]
fn a_job_leaves_no_host_so_that_it_runs_once() {
    let mut stack = stack(Service { job: true, ..service("job", 1, 1, Order::Auto) });
    let mut world = World { sees_most: true, ..World::default() };
    let step = plan(&stack, &world).steps.remove(0);
    act(&mut world, &stack.services[0].wanted.clone(), &step);
    stack.services[0].stage = Stage::Steady;
    world.leaving.insert(world.units[0].host.clone());
    world.fits_beside.insert("web".into());
    for state in [State::Starting, State::Healthy(Duration::ZERO), State::Unhealthy, State::Done] {
        world.units[0].state = state;
        assert!(plan(&stack, &world).is_empty(), "{:?}", world.units[0].state);
    }
}

/// Three units, of which the first one has to leave its host and the second one is about to take its place.
fn in_the_middle_of_a_drain() -> (Stack, World) {
    let (stack, mut world) = running(3, 2, Order::Auto, true);
    for (at, unit) in world.units.iter_mut().enumerate() {
        unit.host = format!("host-{at}").into();
    }
    world.now += Duration::from_secs(1);
    let new = Unit { id: "new".into(), host: "host-9".into(), placed: world.now, ..world.units[0].clone() };
    world.units.push(new);
    world.leaving.insert("host-0".into());
    (stack, world)
}

#[test]
fn of_two_units_of_one_index_that_stays_which_a_drain_goes_on_with() {
    let (stack, world) = in_the_middle_of_a_drain();
    let old = world.units[0].id.clone();
    let removed = |world: &World| match &plan(&stack, world).steps[..] {
        [] => None,
        [Step::Remove { id }] => Some(id.clone()),
        other => panic!("{other:?}"),
    };
    let (starting, healthy) = (State::Starting, State::Healthy(Duration::ZERO));
    for (case, leaving, cordoned, state, expected) in [
        ("the drain goes on", Some("host-0"), None, &starting, None),
        ("the new one is good", Some("host-0"), None, &healthy, Some(&old)),
        ("given up", None, None, &starting, Some(&"new".into())),
        ("given up when both are healthy", None, None, &healthy, Some(&"new".into())),
        ("a cordon instead", None, Some("host-0"), &healthy, Some(&old)),
        ("a cordon instead, too early", None, Some("host-0"), &starting, Some(&"new".into())),
        ("the other host is to be left", Some("host-9"), None, &healthy, Some(&"new".into())),
    ] {
        let mut world = world.clone();
        world.leaving = leaving.into_iter().map(Text::from).collect();
        world.cordoned = cordoned.into_iter().map(Text::from).collect();
        world.units[3].state = state.clone();
        assert_eq!(removed(&world).as_ref(), expected, "{case}");
    }
    // Of two that both start it is not known which one is good, for as long as a unit may take.
    let mut world = world;
    world.leaving.clear();
    for at in [0, 3] {
        (world.units[at].state, world.units[at].made) = (State::Starting, world.now);
    }
    assert_eq!((removed(&world), plan(&stack, &world).wake), (None, Some(world.now + Duration::from_mins(5))));
    // Meanwhile both may have to leave, and one unit takes their place.
    let both = World { leaving: ["host-0".into(), "host-9".into()].into(), ..world.clone() };
    let steps = plan(&stack, &both).steps;
    assert!(matches!(&steps[..], [Step::Place { index, .. }] if *index == both.units[0].index), "{steps:?}");
    world.now += Duration::from_mins(5);
    assert_eq!(removed(&world), Some("new".into()));
}

#[test]
fn what_is_missing_is_placed_while_a_unit_cannot_leave() {
    let (mut stack, mut world) = running(3, 1, Order::Auto, false);
    for (at, unit) in world.units.iter_mut().enumerate() {
        unit.host = format!("host-{at}").into();
    }
    world.leaving.insert("host-2".into());
    let (killed, index) = (world.units[0].id.clone(), world.units[0].index.clone());
    assert!(plan(&stack, &world).is_empty());
    world.units[0].state = State::Ended("its container is gone".into());
    let steps = plan(&stack, &world).steps;
    assert_eq!(steps, [Step::Remove { id: killed }]);
    act(&mut world, &stack.services[0].wanted.clone(), &steps[0]);
    let steps = plan(&stack, &world).steps;
    assert!(matches!(&steps[..], [Step::Place { index: at, .. }] if *at == index), "{steps:?}");
    act(&mut world, &stack.services[0].wanted.clone(), &steps[0]);
    // More of them are placed, too, and what is wanted is there in the end, though one unit stays.
    stack.services[0].change(service("old", 4, 1, Order::Auto));
    run(&mut stack, &mut world, &[], &[], |_, _| ());
    let planned = plan(&stack, &world);
    assert_eq!((planned.phases[0].good, planned.phases[0].old, healthy(&world)), (4, 1, 4), "{planned}");
    assert!(planned.phases[0].waits.contains("stays where it is"), "{planned}");
    // A rollback starts what was kept, too.
    world.units[0].state = State::Kept;
    stack.services[0].stage = Stage::RollingBack("it failed".into());
    let kept = world.units[0].id.clone();
    assert_eq!(plan(&stack, &world).steps, [Step::StartKept { id: kept }]);
}

#[test]
fn units_of_a_global_service_are_replaced_one_after_the_other_on_their_hosts() {
    let (mut stack, mut world) = global(&["a", "b"]);
    let wanted = Service { global: true, ..service("new", 1, 1, Order::Auto) };
    stack.services[0].change(wanted.clone());
    let planned = plan(&stack, &world);
    let [Step::StopKept { id }] = &planned.steps[..] else { panic!("{planned}") };
    // The host has no room for the next one before this one has ended.
    set(&mut world, id, State::Removing);
    let planned = plan(&stack, &world);
    assert!(planned.is_empty() && !planned.phases[0].waits.is_empty(), "{planned}");
    let index = world.units.iter().find(|unit| unit.id == *id).unwrap().index.clone();
    set(&mut world, id, State::Kept);
    let planned = plan(&stack, &world);
    let placed = matches!(&planned.steps[..], [Step::Place { index: at, .. }] if *at == index);
    assert!(placed, "{planned}");
    // When its host no longer fits, nothing is said to be done before it has ended.
    for unit in &mut world.units {
        unit.state = State::Removing;
    }
    assert!(plan(&stack, &world).is_empty());
}

#[test]
fn images_that_do_not_come_end_an_update_and_no_other_one() {
    let (mut stack, mut world) = running(2, 1, Order::Auto, true);
    stack.services[0].change(service("new", 2, 1, Order::Auto));
    world.missing_images.insert("web".into(), "it did not come".into());
    let planned = plan(&stack, &world);
    assert_eq!(planned.turns, [("web".into(), Turn::RollBack("it did not come".into()))]);
    assert!(planned.steps.is_empty());
    stack.services[0].turn(planned.turns[0].1.clone());
    assert!(plan(&stack, &world).turns.iter().all(|(_, turn)| *turn == Turn::Finished));
}

#[test]
fn a_wrong_rule_is_named() {
    for (json, field) in [
        (serde_json::json!({ "service": "web", "update": { "batch": 0 } }), "update.batch"),
        (serde_json::json!({ "service": "web", "update": { "order": "both" } }), "update.order"),
        (serde_json::json!({ "service": "web", "update": { "speed": 1 } }), "update.speed"),
        (serde_json::json!({ "service": "web", "update": { "monitor": 300 } }), "update.monitor"),
        (serde_json::json!({ "service": "web", "rollback": 1 }), "rollback"),
        (serde_json::json!({ "service": "web", "count": -1 }), "count"),
        (serde_json::json!({ "service": "web", "dead_after": "soon" }), "dead_after"),
        (serde_json::json!({ "image": "web" }), "service"),
    ] {
        let error = Service::parse(&serde_json::from_value(json).unwrap()).unwrap_err();
        assert_eq!(error.field, field, "{error}");
    }
}

#[test]
fn differences_mask_variables() {
    let of = |json: serde_json::Value| Service::parse(&serde_json::from_value(json).unwrap()).unwrap();
    let old = of(serde_json::json!({ "service": "web", "image": "a", "environment": { "PASSWORD": "one" } }));
    let new =
        of(serde_json::json!({ "service": "web", "image": "b", "count": 2, "environment": { "PASSWORD": "two" } }));
    assert_ne!(old.digest, new.digest);
    assert!(stacks::differences(std::slice::from_ref(&old), std::slice::from_ref(&old)).is_empty());
    let text = serde_json::to_string(&stacks::differences(&[old], &[new])).unwrap();
    assert!(text.contains(r#"["scale","1","2"]"#) && text.contains(r#"["image","a","b"]"#), "{text}");
    assert!(text.contains(r#"["environment.PASSWORD","***","***"]"#) && !text.contains("two"), "{text}");
}
