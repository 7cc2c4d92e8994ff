//! Evacuating: what is moved, when, and that it goes on after a death.

use stacks::{Service, Stage, unit_id};

use super::*;
use crate::benching::{running_unit, steady_stack};
use crate::ledger::record::Record;
use crate::ledger::stack::stack_id;
use crate::stack::unit::UnitRequest;
use crate::start::played::starter_of;

/// The hosts `one`, if it is there, and `other`. The first one is the better one.
fn hosts(both: bool) -> Arc<Inventory> {
    let host = |name: &str, memory: u32| json!({ "name": name, "uuid": name, "memory": memory });
    let one = both.then(|| host("one", 80_000));
    let hosts: Vec<Value> = one.into_iter().chain([host("other", 4000)]).collect();
    let cluster = json!({ "berth": 1, "hosts": hosts });
    let (snapshot, _) = model::document::resolve_value(&serde_json::from_value(cluster).unwrap()).unwrap();
    Arc::new(Inventory::new(&Arc::new(snapshot)))
}

/// A scheduler with these engines of the two, of which both are there or one.
fn over(one: SocketAddr, other: SocketAddr, both: bool, ledger: Ledger) -> (Arc<Starter>, Arc<Store<Inventory>>) {
    let engines = json!({ "one": format!("tcp://{one}"), "other": format!("tcp://{other}") });
    let endpoints = Endpoints::new(&serde_json::from_value(engines).unwrap(), false).unwrap();
    let inventories = Arc::new(Store::new(Inventory::default()));
    drop(inventories.publish(hosts(both)));
    let placer = Placer::new(inventories.clone(), Order::default(), Strategy::default());
    (starter_of(placer.with_endpoints(endpoints).with_ledger(ledger)), inventories)
}

#[tokio::test]
async fn what_a_host_that_is_gone_for_good_had_runs_elsewhere_and_is_removed_when_it_is_back() {
    let [(one, first), (other, second)] = [Played::start().await, Played::start().await];
    let (starter, inventories) = over(first, second, true, Ledger::new());
    for (id, more) in [
        ("web", json!({})),
        ("named", json!({ "requested_host": "one" })),
        ("stored", json!({ "volumes": ["data:/data"] })),
        ("large", json!({ "resources": { "memory": 4500 } })),
    ] {
        let mut asked = json!({ "id": id, "image": "i", "start": true, "resources": { "memory": 1000 } });
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let asked = Request::parse(&serde_json::from_value(asked).unwrap()).unwrap();
        starter.place(&asked, &id.into(), RequestCredentials::default(), None).await.unwrap();
    }
    let all = ["large", "named", "stored", "web"];
    assert_eq!(one.names(), all);
    // While it is there nothing is evacuated.
    let refused = starter.evacuate("one", &Subject::own()).await.unwrap_err().to_string();
    assert!(refused.contains("host one is there"), "{refused}");
    drop(inventories.publish(hosts(false)));

    let plan = starter.placer.plan_evacuation("one", starter.clock.now()).unwrap();
    let moved: Vec<_> = plan.moved.iter().map(|unit| (&*unit.id, &*unit.to.name)).collect();
    assert_eq!((plan.begun, moved), (false, vec![("web", "other")]));
    let stays: Vec<_> = plan.stays.iter().map(|unit| (&*unit.id, &*unit.why)).collect();
    for ((id, why), (expected, part)) in
        stays.iter().zip([("large", "no host fits"), ("named", "names one"), ("stored", "volume with a name")])
    {
        assert!(*id == expected && why.contains(part), "{id}: {why}");
    }
    assert_eq!((stays.len(), other.names().len()), (3, 0));

    let done = starter.evacuate("one", &Subject::own()).await.unwrap();
    assert!(done.begun && done.moved.len() == 1, "{done:?}");
    starter.is_started("web").await;
    assert_eq!((other.names(), one.names()), (vec!["web".to_owned()], all.map(str::to_owned).to_vec()));
    assert!(
        starter.evacuate("one", &Subject::own()).await.unwrap().moved.is_empty(),
        "a second time there is nothing to do"
    );

    // It is back: what has another place is removed there, and nothing else.
    drop(inventories.publish(hosts(true)));
    let stop = CancellationToken::new();
    let looking = tokio::spawn(starter.clone().look(stop.clone()));
    let removed = async {
        while one.names().contains(&"web".to_owned()) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, removed).await.expect("it is removed");
    assert_eq!(
        (other.names(), one.names()),
        (vec!["web".to_owned()], ["large", "named", "stored"].map(str::to_owned).to_vec())
    );
    stop.cancel();
    looking.await.unwrap();
    starter.finish().await;
    let left = starter.placer.with_any(starter.clock.now(), |book| book.left_on("one"));
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn an_evacuation_goes_on_after_a_death_unless_the_host_is_back() {
    for is_back in [false, true] {
        let [(one, first), (other, second)] = [Played::start().await, Played::start().await];
        let folder = tempfile::tempdir().unwrap();
        let opened = async |both| loop {
            // Until the one before has let go of it.
            if let Ok((journal, records)) = Journal::open(&folder.path().join("ledger"), Clock::start().now()) {
                return over(first, second, both, Ledger::on_disk(journal, records)).0;
            }
            sleep(Duration::from_millis(10)).await;
        };
        let before = timeout(LIMIT, opened(true)).await.unwrap();
        let asked = json!({ "id": "web", "image": "i", "start": true, "resources": { "memory": 1000 } });
        before.placed(&Request::parse(&serde_json::from_value(asked).unwrap()).unwrap()).await;
        assert_eq!(one.names(), ["web"]);
        // As it is when the scheduler dies before it has begun the first unit.
        before.store_evacuation("one", &Subject::own()).await.unwrap();
        assert_eq!(before.placer.placements(before.clock.now()).unwrap().len(), 1, "it is no placement");
        before.finish().await;
        drop(before);

        let after = timeout(LIMIT, opened(is_back)).await.unwrap();
        let left = || after.placer.with_any(after.clock.now(), |book| book.evacuations().len());
        assert_eq!(left(), 1);
        after.resume_evacuations();
        after.resume_evacuations();
        let done = async {
            while left() > 0 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LIMIT, done).await.expect("it is done");
        after.is_started("web").await;
        let moved: &[&str] = if is_back { &[] } else { &["web"] };
        assert_eq!(
            (other.names(), &*after.only_unit("web").unwrap().host == "one"),
            (moved.iter().map(ToString::to_string).collect(), is_back)
        );
        after.finish().await;
    }
}

/// The same code says it before a drain as decides it when the host is gone.
#[tokio::test]
async fn a_drain_says_where_units_of_stacks_would_go_and_why_others_stay() {
    let nobody = SocketAddr::from(([127, 0, 0, 1], 9));
    let (starter, _) = over(nobody, nobody, true, Ledger::new());
    let services: Vec<Service> = [
        json!({ "service": "job", "image": "i", "job": true }),
        json!({ "service": "jobdone", "image": "i", "job": true }),
        json!({ "service": "large", "image": "i", "resources": { "memory": 4500 } }),
        json!({ "service": "log", "image": "i", "labels": { "io.rancher.scheduler.global": "true" } }),
        json!({ "service": "named", "image": "i", "requested_host": "one" }),
        json!({ "service": "stored", "image": "i", "volumes": ["data:/data"] }),
        json!({ "service": "stuck", "image": "i" }),
        json!({ "service": "web", "image": "i" }),
    ]
    .into_iter()
    .map(|service| {
        let service = Service::parse(&serde_json::from_value(service).unwrap()).unwrap();
        Service { global: &*service.name == "log", ..service }
    })
    .collect();
    let now = starter.clock.now();
    starter.placer.with_any(now, |book| {
        for stack in ["halted", "pruned", "shop"] {
            let of_stack = if stack == "pruned" { &services[..1] } else { &services[..] };
            let mut record = steady_stack(&stack.into(), of_stack, now);
            let stored = &mut record.stack.as_mut().unwrap().stack;
            stored.paused = stack == "halted";
            for rollout in stored.services.iter_mut().filter(|rollout| &*rollout.wanted.name == "stuck") {
                rollout.stage = Stage::Stuck("a person has to decide".into());
            }
            book.enter(stack_id(stack), record);
        }
        let in_stacks = services.iter().map(|service| ("shop", service));
        let web = services.iter().filter(|service| &*service.name == "web");
        let others = web.flat_map(|web| [("halted", web), ("pruned", web)]);
        for (stack, service) in in_stacks.chain(others) {
            let id = unit_id(stack, service, "1");
            let unit = UnitRequest { stack, service, index: "1", id: &id, host: None };
            let mut record = running_unit(&unit, ("one".into(), "one".into()), (&id, "0a1b"), now).unwrap();
            record.unit.as_mut().unwrap().done = &*service.name == "jobdone";
            let alone = Record { unit: None, ..record.clone() };
            if stack != "shop" {
                book.enter(id, record);
                continue;
            }
            book.enter(id, record);
            if &*service.name == "web" {
                book.enter("alone".into(), alone);
            }
        }
    });
    let plan = starter.placer.plan_drain("one", now).unwrap();
    let moved: Vec<_> = plan.moved.iter().map(|unit| (unit.containers[0].to_string(), &*unit.to.name)).collect();
    assert_eq!(moved, [(unit_id("shop", services.last().unwrap(), "1").to_string(), "other")], "{plan:?}");
    let why = |id: &str| plan.stays.iter().find(|unit| unit.id.contains(id)).map(|unit| unit.why.clone()).unwrap();
    for (id, part) in [
        ("alone", "no stack has it"),
        ("halted-web", "its stack is paused: `scheduler resume halted`"),
        ("pruned-web", "stack pruned does not have its service"),
        ("shop-job-", "it ends: it runs once"),
        ("large", "no host fits: host is to be drained (1), not enough memory (1)"),
        ("log", "it ends"),
        ("named", "names one"),
        ("stored", "volume with a name"),
        ("stuck", "its service is stuck: a person has to decide"),
    ] {
        assert!(why(id).contains(part), "{id}: {}", why(id));
    }
    let ends: Vec<_> = plan.stays.iter().filter(|unit| unit.ends).map(|unit| unit.why.split(": ").next()).collect();
    assert_eq!(ends, [Some("it ends"); 2]);
    assert_eq!((plan.stays.len(), plan.begun, &*plan.host.name), (9, false, "one"));
    assert!(starter.placer.plan_drain("nobody", now).unwrap().stays.is_empty());
}
