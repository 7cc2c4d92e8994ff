//! What-if and rebalance: what they foresee happens, and nothing happens by asking.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use scheduler::{Inventory, Order, Placer, Strategy};
use serde_json::{Value, json};
use source::Store;

struct World {
    store: Arc<Store<Inventory>>,
    placer: Placer,
}

fn value(json: &Value) -> model::Value {
    serde_json::from_value(json.clone()).unwrap()
}

impl World {
    /// Hosts `h0`, `h1`, … of 100 memory each, in zones `a` and `b` by turns, with these containers.
    fn new(hosts: usize, containers: &Value) -> Self {
        let store = Arc::new(Store::new(Inventory::default()));
        let placer = Placer::new(store.clone(), Order::Ratio, Strategy::Spread);
        let mut objects: Vec<Value> = (0..hosts)
            .map(|at| {
                json!({"metadata_kind": "host", "uuid": format!("h{at}"), "name": format!("n{at}"), "memory": 100,
                       "labels": {"zone": zone(at)}})
            })
            .collect();
        for (at, container) in containers.as_array().unwrap().iter().enumerate() {
            let mut object = json!({"metadata_kind": "container", "uuid": format!("c{at}"), "name": format!("c{at}"), "state": "running"});
            object.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
            objects.push(object);
        }
        let world = Self { store, placer };
        world.publish(&objects);
        world
    }

    fn publish(&self, objects: &[Value]) {
        let objects: Vec<model::Map> = serde_json::from_value(objects.to_vec().into()).unwrap();
        let next = self.store.load_full().succeeding(&model::objects::read(objects).0);
        self.store.publish(Arc::new(next));
    }

    fn what_if(&self, question: &Value) -> Value {
        let hosts = || serde_json::to_value(self.placer.hosts(Duration::ZERO).unwrap()).unwrap();
        let before = hosts();
        let answer = self.placer.what_if(&value(question), Duration::ZERO).unwrap();
        assert_eq!(before, hosts(), "nothing happens by asking");
        serde_json::to_value(answer).unwrap()
    }

    fn rebalance(&self, moves: u32) -> Value {
        let question = value(&json!({"max_moves": moves}));
        serde_json::to_value(self.placer.rebalance(&question, Duration::ZERO).unwrap()).unwrap()
    }
}

fn zone(at: usize) -> &'static str {
    ["a", "b"][at % 2]
}

fn names(units: &Value) -> Vec<String> {
    let containers = units.as_array().unwrap().iter().flat_map(|unit| unit["containers"].as_array().unwrap());
    containers.map(|name| name.as_str().unwrap().to_owned()).collect()
}

#[test]
fn containers_of_a_lost_host_go_where_they_fit() {
    let world = World::new(
        3,
        &json!([
            {"host_uuid": "h0", "memory_reservation": 60, "ports": ["0.0.0.0:80:80/tcp"]},
            {"host_uuid": "h0", "memory_reservation": 60},
            {"host_uuid": "h0", "labels": {"io.rancher.scheduler.affinity:host_label": "zone=a"}},
            {"host_uuid": "h0", "labels": {"io.rancher.scheduler.global": "true"}},
            {"host_uuid": "h0", "state": "stopped", "memory_reservation": 90},
            {"host_uuid": "h1", "memory_reservation": 60, "ports": ["80:80/tcp"]},
        ]),
    );
    let answer = world.what_if(&json!({"lose": ["n0"]}));
    assert_eq!((&answer["fits"], &answer["hosts"]), (&json!(false), &json!(2)), "{answer}");
    // 60 fit on n2 alone, and port 80 is free only there.
    assert_eq!(names(&answer["moved"]), ["c0", "c2"], "{answer}");
    let to: Vec<_> = answer["moved"].as_array().unwrap().iter().map(|unit| &unit["to"]["name"]).collect();
    assert_eq!(to, ["n2", "n2"]);
    assert_eq!(names(&answer["stranded"]), ["c1"]);
    assert!(answer["stranded"][0]["error"].as_str().unwrap().contains("not enough memory (2)"), "{answer}");
    assert_eq!(answer["stranded"][0]["changes"], json!(["20 bytes less memory on 2 hosts"]));
    assert_eq!(names(&answer["ended"]), ["c3"]);

    let answer =
        world.what_if(&json!({"lose": ["h0"], "add": [{"like": "n0", "memory": 70, "labels": {"disk": "ssd"}}]}));
    assert_eq!((&answer["fits"], &answer["hosts"]), (&json!(true), &json!(3)), "{answer}");
    // A host that is lost is not there to be like one.
    assert_eq!(names(&answer["moved"]).len(), 3);
}

#[test]
fn units_move_as_a_whole() {
    let unit = |host: &str| json!({"host_uuid": host, "memory_reservation": 40, "labels": {"io.rancher.service.deployment.unit": "u"}});
    let world = World::new(3, &json!([unit("h0"), unit("h0"), {"host_uuid": "h1", "memory_reservation": 30}]));
    let answer = world.what_if(&json!({"lose": ["n0"]}));
    assert_eq!(names(&answer["moved"]), ["c0", "c1"]);
    assert_eq!(answer["moved"].as_array().unwrap().len(), 1);
    assert_eq!(answer["moved"][0]["to"]["name"], "n2");
    let answer = world.what_if(&json!({"lose": ["n0", "n2"]}));
    assert_eq!(names(&answer["stranded"]), ["c0", "c1"]);
}

#[test]
fn more_replicas_are_counted_until_they_no_longer_fit() {
    let web =
        json!({"host_uuid": "h0", "memory_reservation": 40, "labels": {"io.rancher.stack_service.name": "shop/web"}});
    let world = World::new(2, &json!([web]));
    let answer = world.what_if(&json!({"replicas": [{"service": "shop/web", "count": 5}]}));
    assert_eq!(answer["placed"].as_array().unwrap().len(), 3, "{answer}");
    assert_eq!((&answer["unplaced"][0]["count"], &answer["fits"]), (&json!(2), &json!(false)));
    let answer = world.what_if(&json!({"place": [{"resources": {"memory": 60}, "count": 3}], "add": [{"like": "n1"}]}));
    assert_eq!((answer["placed"].as_array().unwrap().len(), &answer["fits"]), (3, &json!(true)), "{answer}");
}

#[test]
fn a_service_that_only_the_ledger_knows_is_not_called_absent() {
    let world = World::new(2, &json!([]));
    let more = json!({"replicas": [{"service": "shop/web", "count": 5}]});
    let request =
        json!({"id": "web", "name": "web", "stack": "shop", "service": "web", "resources": {"memory": 40}, "count": 2});
    world.placer.place(&value(&request), "", Duration::ZERO).unwrap();
    let answer = world.what_if(&more);
    assert_eq!(
        (answer["placed"].as_array().unwrap().len(), &answer["unplaced"][0]["count"]),
        (2, &json!(3)),
        "{answer}"
    );
    world.placer.release_placement("web", Duration::ZERO).unwrap();
    let error = world.placer.what_if(&value(&more), Duration::ZERO).unwrap_err().to_string();
    assert!(error.contains("no container of shop/web runs or is promised"), "{error}");
}

#[test]
fn what_was_promised_on_a_lost_host_counts() {
    let world = World::new(2, &json!([]));
    let request = json!({"id": "a", "resources": {"memory": 80}, "constraints": ["node.hostname = n0"]});
    world.placer.place(&value(&request), "", Duration::ZERO).unwrap();
    let request = json!({"id": "b", "resources": {"memory": 80}});
    world.placer.place(&value(&request), "", Duration::ZERO).unwrap();
    let answer = world.what_if(&json!({"lose": ["n0"]}));
    assert_eq!(names(&answer["stranded"]), ["a"]);
    let answer = world.what_if(&json!({"lose": ["n1"]}));
    assert_eq!((names(&answer["stranded"]), answer["moved"].as_array().unwrap().len()), (vec!["b".to_owned()], 0));
}

#[test]
fn a_plan_evens_out_what_is_in_use() {
    let on = |host: &str, memory: i64| json!({"host_uuid": host, "memory_reservation": memory});
    let world = World::new(3, &json!([on("h0", 30), on("h0", 30), on("h0", 30), on("h1", 30)]));
    let plan = world.rebalance(10);
    let moves = plan["moves"].as_array().unwrap();
    assert_eq!(moves.len(), 1, "{plan}");
    assert_eq!((&moves[0]["from"]["name"], &moves[0]["to"]["name"]), (&json!("n0"), &json!("n2")));
    let (before, after) = (plan["imbalance"]["before"].as_f64().unwrap(), plan["imbalance"]["after"].as_f64().unwrap());
    assert!(after < before && (plan["gain"].as_f64().unwrap() - (before - after)).abs() < 1e-12, "{plan}");
    assert_eq!(world.placer.hosts(Duration::ZERO).unwrap()[0].containers, 3, "nothing is executed");
    // What is even stays as it is.
    let world = World::new(2, &json!([on("h0", 30), on("h1", 30)]));
    assert_eq!(world.rebalance(10)["moves"], json!([]));
    assert_eq!(World::new(0, &json!([])).rebalance(10)["moves"], json!([]));
}

#[test]
fn plans_keep_to_rules_and_to_their_limit() {
    let bound = json!({"host_uuid": "h0", "memory_reservation": 10, "labels": {"io.rancher.scheduler.affinity:host_label": "zone=a"}});
    let world = World::new(2, &json!([bound, bound, bound, bound]));
    assert_eq!(world.rebalance(10)["moves"], json!([]), "zone a has one host");
    let free = json!({"host_uuid": "h0", "memory_reservation": 5});
    let world = World::new(4, &Value::from(vec![free; 16]));
    let plan = world.rebalance(5);
    assert_eq!(plan["moves"].as_array().unwrap().len(), 5);
    let plan = world.rebalance(100);
    assert_eq!(plan["moves"].as_array().unwrap().len(), 12, "{plan}");
    assert!(plan["imbalance"]["after"].as_f64().unwrap() < 1e-9, "{plan}");
}
