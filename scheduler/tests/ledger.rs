//! How promises begin and end.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use scheduler::{Inventory, LAPSE, Order, Placement, Placer, Refusal, Strategy};
use serde_json::{Value, json};
use source::Store;

struct World {
    store: Arc<Store<Inventory>>,
    placer: Placer,
}

fn value(json: &Value) -> model::Value {
    serde_json::from_value(json.clone()).unwrap()
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl World {
    /// A world with one host, `h1`, and these containers on it.
    fn new(containers: &Value) -> Self {
        Self::with_labels(containers, &json!({}))
    }

    /// The same with labels of the host.
    fn with_labels(containers: &Value, labels: &Value) -> Self {
        let store = Arc::new(Store::new(Inventory::default()));
        let placer = Placer::new(store.clone(), Order::Ratio, Strategy::Spread);
        let world = Self { store, placer };
        world.publish_with(containers, labels);
        world
    }

    fn publish(&self, containers: &Value) {
        self.publish_with(containers, &json!({}));
    }

    fn publish_with(&self, containers: &Value, labels: &Value) {
        self.publish_on("h1", containers, labels);
    }

    fn publish_on(&self, host: &str, containers: &Value, labels: &Value) {
        let mut objects = vec![json!({"metadata_kind": "host", "uuid": host, "name": host, "memory": 100,
            "local_storage_mb": 100, "labels": labels})];
        for container in containers.as_array().unwrap() {
            let mut object = json!({"metadata_kind": "container", "host_uuid": host, "state": "running"});
            object.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
            objects.push(object);
        }
        let objects: Vec<model::Map> = serde_json::from_value(objects.into()).unwrap();
        let next = self.store.load_full().succeeding(&model::objects::read(objects).0);
        self.store.publish(Arc::new(next));
    }

    fn place(&self, request: &Value, now: u64) -> Result<Placement, Refusal> {
        self.placer.place(&value(request), "unit", at(now))
    }

    fn event(&self, name: &str, request: &Value, now: u64) -> Result<Value, String> {
        let event = json!({"data": {"schedulerRequest": request}});
        let reply = self.placer.event(&format!("scheduler.{name}"), &value(&event), at(now));
        reply.map(|reply| serde_json::to_value(reply.data).unwrap()).map_err(|refusal| refusal.to_string())
    }

    fn free(&self, pool: &str, now: u64) -> i64 {
        self.placer.hosts(at(now)).unwrap()[0].pools[pool].free
    }
}

const MEMORY: &str = "memoryReservation";
const STORAGE: &str = "storageSize";

#[test]
fn promises_lapse_after_a_minute() {
    assert_eq!(LAPSE.as_secs(), 60);
    let world = World::new(&json!([]));
    world.place(&json!({"id": "a", "resources": {"memory": 60}}), 100).unwrap();
    assert_eq!((world.free(MEMORY, 159), world.free(MEMORY, 160)), (40, 100));
    assert!(matches!(world.placer.placement("a", at(160)), Err(Refusal::Unknown(_))));
    // The id and the name are free again.
    assert!(!world.place(&json!({"id": "a", "resources": {"memory": 61}}), 161).unwrap().repeated);
}

/// A promise of 60 is settled by this container, or not.
fn check_settled(container: &Value, expected: bool) {
    let world = World::new(&json!([]));
    world.place(&json!({"id": "a", "resources": {"memory": 60}}), 0).unwrap();
    world.publish(&json!([container]));
    let free = world.free(MEMORY, 1);
    assert_eq!(free, if expected { 40 } else { -20 }, "{container}");
    // What was settled does not lapse, and everything else does.
    assert_eq!(world.free(MEMORY, 60), 40, "{container}");
    let kept = world.placer.placement("a", at(60)).is_ok();
    assert_eq!(kept, expected, "{container}");
    world.publish(&json!([]));
    assert_eq!(world.free(MEMORY, 61), 100);
    assert!(world.placer.placement("a", at(61)).is_err());
}

#[test]
fn promises_are_settled_by_their_container() {
    let container = |more: Value| {
        let mut container = json!({"uuid": "c1", "memory_reservation": 60});
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        container
    };
    check_settled(&container(json!({"name": "A"})), true);
    check_settled(&container(json!({"name": "b", "labels": {"io.berth.placement": "a"}})), true);
    check_settled(&container(json!({"name": "a", "state": "starting"})), true);
    check_settled(&container(json!({"name": "b"})), false);
    check_settled(&container(json!({"name": "a", "state": "stopped"})), false);
}

#[test]
fn a_namesake_elsewhere_settles_nothing() {
    let world = World::new(&json!([]));
    world.place(&json!({"id": "a", "resources": {"memory": 60}}), 0).unwrap();
    world.publish(&json!([{"uuid": "c1", "name": "a", "host_uuid": "h9"}]));
    assert_eq!(world.free(MEMORY, 1), 40);
}

#[test]
fn disk_stays_promised_as_long_as_the_container_is_there() {
    let world = World::new(&json!([]));
    world.place(&json!({"id": "a", "resources": {"memory": 60, "storage_mb": 30}}), 0).unwrap();
    world.publish(&json!([{"uuid": "c1", "name": "a", "memory_reservation": 60}]));
    assert_eq!((world.free(MEMORY, 500), world.free(STORAGE, 500)), (40, 70));
    world.publish(&json!([]));
    assert_eq!((world.free(MEMORY, 501), world.free(STORAGE, 501)), (100, 100));
}

#[test]
fn a_host_that_is_away_ends_no_placement_on_it() {
    let world = World::new(&json!([]));
    let request = json!({"id": "a", "resources": {"memory": 60}});
    world.place(&request, 0).unwrap();
    let there = json!([{"uuid": "c1", "name": "a", "memory_reservation": 60}]);
    let state = |now: u64| world.placer.placement("a", at(now)).unwrap().placements[0].containers[0].state;
    world.publish(&there);
    assert_eq!(state(100), "settled");
    // Another host may be there meanwhile; what ran on the one that is away is placed nowhere else.
    world.publish_on("h2", &json!([]), &json!({}));
    assert_eq!(state(101), "settled");
    assert!(world.place(&request, 101).unwrap().repeated);
    world.publish(&there);
    assert_eq!((state(102), world.free(MEMORY, 102)), ("settled", 40));
    // What was removed while it was away is known when it is back.
    world.publish_on("h2", &json!([]), &json!({}));
    world.publish(&json!([]));
    assert!(world.placer.placement("a", at(103)).is_err());
    assert_eq!(world.free(MEMORY, 103), 100);
}

#[test]
fn no_label_answers_a_request_or_stands_in_its_way() {
    let labels = json!({"io.berth.placement": "a", "io.berth.request": "a"});
    let world = World::new(&json!([{"uuid": "c1", "name": "impostor", "labels": labels}]));
    assert!(matches!(world.placer.placement("a", at(0)), Err(Refusal::Unknown(_))));
    let answer = world.place(&json!({"id": "a", "resources": {"memory": 60}}), 0).unwrap();
    assert_eq!(
        (answer.state, answer.repeated, answer.placements[0].containers[0].state),
        ("placed", false, "reserved")
    );
    // Its name is another matter: an engine has each once.
    let world = World::new(&json!([{"uuid": "c1", "name": "a", "labels": labels}]));
    assert!(matches!(world.place(&json!({"id": "a"}), 0), Err(Refusal::Taken(_))));
    assert!(matches!(world.placer.placement("a", at(0)), Err(Refusal::Unknown(_))));
}

#[test]
fn no_label_elsewhere_settles_or_frees_a_promise() {
    let world = World::new(&json!([]));
    world.place(&json!({"id": "a", "resources": {"memory": 60}}), 0).unwrap();
    let labels = json!({"io.berth.placement": "a"});
    world.publish(&json!([{"uuid": "c1", "name": "b", "host_uuid": "h9", "labels": labels}]));
    world.publish(&json!([]));
    assert_eq!(world.placer.placement("a", at(1)).unwrap().placements[0].containers[0].state, "reserved");
    assert_eq!(world.free(MEMORY, 1), 40);
}

#[test]
fn a_container_that_the_scheduler_starts_is_settled_by_no_name_and_no_label_that_anybody_can_give() {
    let state = |world: &World| world.placer.placement("a", at(1)).unwrap().placements[0].containers[0].state;
    let container = |name: &str, request: Option<&str>| {
        let mut labels = json!({"io.berth.placement": "a"});
        if let Some(request) = request {
            labels["io.berth.request"] = request.into();
        }
        json!([{"uuid": "c1", "name": name, "labels": labels}])
    };
    let hosts = json!({"io.berth.docker.endpoint": "tcp://h1:1"});
    for (shown, expected) in [
        (container("a", Some("a")), "starting"),
        (container("a", None), "starting"),
        (container("a", Some("other")), "starting"),
        (container("impostor", Some("a")), "starting"),
    ] {
        let world = World::with_labels(&json!([]), &hosts);
        world.place(&json!({"id": "a", "image": "i", "start": true}), 0).unwrap();
        world.publish_with(&shown, &hosts);
        assert_eq!(state(&world), expected, "{shown}");
    }
}

#[test]
fn all_or_nothing_keeps_nothing_when_one_does_not_fit() {
    let world = World::new(&json!([]));
    let request = json!({"id": "a", "count": 3, "resources": {"memory": 40}, "atomic": true});
    let answer = world.place(&request, 0).unwrap();
    assert_eq!((answer.state, answer.placements.len(), answer.unplaced), ("unplaceable", 0, 3));
    assert!(answer.error.unwrap().starts_with("only 2 of 3 fit: not enough memory"));
    assert_eq!(world.free(MEMORY, 0), 100);
    let some = world.place(&json!({"id": "b", "count": 3, "resources": {"memory": 40}}), 0).unwrap();
    assert_eq!((some.state, some.placements.len(), some.unplaced), ("partial", 2, 1));
    assert_eq!(some.explanation.unwrap().changes, ["20 bytes less memory on 1 host"]);
}

#[test]
fn the_unit_counts_as_a_whole() {
    let world = World::new(&json!([]));
    let unit = |memory: i64| json!({"dry_run": true, "resources": {"memory": 60}, "sidekicks": [{"name": "side", "resources": {"memory": memory}}]});
    assert_eq!(world.place(&unit(40), 0).unwrap().state, "placed");
    assert_eq!(world.place(&unit(41), 0).unwrap().state, "unplaceable");
    assert_eq!(world.free(MEMORY, 0), 100);
}

fn compute(amount: i64, uuid: Option<&str>) -> Value {
    let context: Value = uuid.iter().map(|uuid| json!({"uuid": uuid})).collect();
    json!({"phase": "instance.allocate", "hostID": "h1", "context": context,
           "resourceRequests": [{"type": "computePool", "resource": MEMORY, "amount": amount}]})
}

#[test]
fn events_told_twice_count_once() {
    let world = World::new(&json!([]));
    for _ in 0..2 {
        assert_eq!(world.event("reserve", &compute(30, Some("c1")), 0), Ok(json!({})));
        assert_eq!(world.free(MEMORY, 0), 70);
    }
    world.publish(&json!([{"uuid": "c1", "memory_reservation": 30}]));
    assert_eq!(world.free(MEMORY, 1), 70);
    for _ in 0..2 {
        assert_eq!(world.event("release", &compute(30, Some("c1")), 2), Ok(Value::Null));
        assert_eq!(world.free(MEMORY, 2), 100);
    }
    // The snapshot shows at last what was told before.
    world.publish(&json!([]));
    assert_eq!(world.free(MEMORY, 3), 100);
    // Out of order: nothing to release, then a reservation that lapses.
    world.event("release", &compute(30, Some("c2")), 4).unwrap();
    world.event("reserve", &compute(30, Some("c2")), 4).unwrap();
    assert_eq!((world.free(MEMORY, 5), world.free(MEMORY, 64)), (70, 100));
}

#[test]
fn what_is_given_back_by_nobody_in_particular_counts_once() {
    let world = World::new(&json!([{"uuid": "c1", "memory_reservation": 30}]));
    world.event("release", &compute(50, None), 0).unwrap();
    world.event("release", &compute(50, None), 0).unwrap();
    assert_eq!(world.free(MEMORY, 0), 100);
    // The container goes: what was given back early is no longer counted twice.
    world.publish(&json!([{"uuid": "c2", "memory_reservation": 20}]));
    assert_eq!(world.free(MEMORY, 1), 80);
    world.publish(&json!([]));
    assert_eq!(world.free(MEMORY, 2), 100);
    // A word that no snapshot confirms is forgotten.
    world.publish(&json!([{"uuid": "c3", "memory_reservation": 30}]));
    world.event("release", &compute(30, None), 3).unwrap();
    assert_eq!((world.free(MEMORY, 62), world.free(MEMORY, 63)), (100, 70));
}

fn port(owner: &str) -> Value {
    json!({"phase": "instance.start", "hostID": "h1", "resourceRequests": [
        {"type": "computePool", "resource": MEMORY, "amount": 1000},
        {"type": "portPool", "instanceId": "7", "resourceUuid": owner,
         "portRequests": [{"publicPort": 80, "privatePort": 8080, "protocol": "tcp"}]}]})
}

#[test]
fn ports_of_stopping_containers_are_free_at_once() {
    let world = World::new(&json!([{"uuid": "c1", "ports": ["80:8080/tcp"]}]));
    let taken = world.event("reserve", &port("c2"), 0).unwrap_err();
    assert!(taken.contains("Port 80/tcp is not free on host h1"), "{taken}");
    world.event("release", &port("c1"), 0).unwrap();
    let allocated = json!([{"allocatedIP": "0.0.0.0", "publicPort": 80, "privatePort": 8080, "protocol": "tcp"}]);
    let reply = json!({"portReservation": [{"instanceID": "7", "allocatedIPs": allocated}]});
    assert_eq!(world.event("reserve", &port("c2"), 0), Ok(reply));
    assert!(world.event("reserve", &port("c1"), 0).is_err());
    // Who does not have it cannot release it.
    world.event("release", &port("c3"), 0).unwrap();
    assert!(world.event("reserve", &port("c1"), 0).is_err());
}

#[test]
fn hosts_nobody_knows_are_no_error() {
    let world = World::new(&json!([]));
    let mut request = compute(1, None);
    request["hostID"] = "elsewhere".into();
    assert_eq!(world.event("reserve", &request, 0), Ok(Value::Null));
    assert_eq!(world.event("release", &request, 0), Ok(Value::Null));
    // Keys count whatever their case, as the predecessor's decoder read them.
    let folded = json!({"PHASE": "instance.allocate", "hostId": "h1",
                        "ResourceRequests": [{"TYPE": "computePool", "Resource": MEMORY, "amount": 101}]});
    let error = world.event("reserve", &folded, 0).unwrap_err();
    assert_eq!(error, "Not enough available resources on host h1 to reserve memoryReservation.");
}

#[test]
fn containers_that_reserve_nothing_are_spread_all_the_same() {
    let store = Arc::new(Store::new(Inventory::default()));
    let placer = Placer::new(store.clone(), Order::Ratio, Strategy::Spread);
    let mut objects: Vec<model::Map> = Vec::new();
    for uuid in ["h1", "h2"] {
        let host = json!({"metadata_kind": "host", "uuid": uuid, "memory": 100});
        objects.push(serde_json::from_value(host).unwrap());
    }
    store.publish(Arc::new(Inventory::new(&model::objects::read(objects).0)));
    let hosts: Vec<_> = (0..12)
        .map(|at| {
            let request = json!({"id": format!("c{at}"), "image": "web"});
            let answer = placer.place(&value(&request), "", Duration::ZERO).unwrap();
            answer.placements[0].host.uuid.to_string()
        })
        .collect();
    // The image is there already on the first, which counts, but not for everything.
    assert_eq!(hosts[..4], ["h1", "h1", "h1", "h1"]);
    let second = hosts.iter().filter(|host| *host == "h2").count();
    assert!((4..=8).contains(&second), "{hosts:?}");
}
