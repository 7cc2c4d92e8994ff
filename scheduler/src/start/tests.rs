//! Starting and removing beside an engine that is played here: whose a container is, and that nothing is left begun.

mod evacuate;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use etcd::{EtcdClient, EtcdOptions};
use serde_json::{Value, json};
use source::Store;

use super::look::LOOK_INTERVAL;
use super::*;
use crate::audit::Audit;
use crate::ledger::Ledger;
use crate::ledger::etcd::seal::{Put, Seal};
use crate::ledger::etcd::sync::EtcdSync;
use crate::ledger::journal::Journal;
use crate::ledger::mirror::KeyChange;
use crate::ledger::record::{Replica, Stage};
use crate::place::inventory::{Inventory, PLACEMENT_LABEL};
use crate::place::strategy::{Order, Strategy};
use crate::policy::Policy;
use crate::start::credentials::RequestCredentials;
use crate::start::docker::{ATTEMPT_LABEL, REQUEST_LABEL};
use crate::start::endpoint::Endpoints;
use crate::start::played::{LIMIT, Played, inventory, starter, starter_over};
use crate::start::pull_ahead::{ImageOutcome, WantedImage};
use crate::subject::Subject;

fn request(id: &str) -> Request {
    several(id, 1)
}

fn several(id: &str, count: u32) -> Request {
    let request = json!({ "id": id, "image": "i", "start": true, "count": count });
    Request::parse(&serde_json::from_value(request).unwrap()).unwrap()
}

impl Starter {
    /// Promises it, as a scheduler that died then; returns its attempt.
    fn left_begun(&self, id: &str) -> Text {
        self.placer.place_request(&request(id), id, self.clock.now()).unwrap();
        self.only_unit(id).unwrap().attempt.unwrap()
    }

    fn only_unit(&self, id: &str) -> Option<Replica> {
        self.placer.unit(id, 0, &RequestCredentials::default(), self.clock.now()).map(|(_, replica)| replica)
    }

    async fn is_started(&self, id: &str) {
        let started = async {
            while self.only_unit(id).is_none_or(|unit| unit.stage != Stage::Started) {
                assert!(self.only_unit(id).is_some(), "it was given up");
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LIMIT, started).await.unwrap();
    }
}

#[tokio::test]
async fn no_label_makes_a_container_one_of_a_placement() {
    let (played, address) = Played::start().await;
    let starter = starter(address, Ledger::new());
    let labels = [(PLACEMENT_LABEL, "web"), (REQUEST_LABEL, "web"), (ATTEMPT_LABEL, "guessed")];
    let running = json!({ "Status": "running" });
    for known in [&labels[..2], &labels[..]] {
        played.put("web", known, &running);
        let answer = starter.place(&request("web"), &"web".into(), RequestCredentials::default(), None).await.unwrap();
        assert_eq!((answer.state, answer.failures.len()), ("failed", 1), "{answer:?}");
        let error = &answer.failures[0].error;
        let parts = ["a container web on one", "an earlier placement", "`docker rm --force web` there"];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        // Nor is it removed with a placement that a crash has left begun.
        starter.left_begun("web");
        starter.release(&"web".into(), None, None, |_| ()).await.unwrap();
        assert!(starter.only_unit("web").is_none());
        assert_eq!((played.names(), played.created.load(Ordering::Relaxed)), (vec!["web".to_owned()], 0));
    }
}

#[tokio::test]
async fn what_an_engine_created_for_nobody_any_more_is_not_in_the_way_of_the_next_run() {
    let (played, address) = Played::start().await;
    let starter = starter(address, Ledger::new());
    let other = starter.left_begun("other");
    let created = json!({ "Status": "created" });
    let (own, asked) = ((PLACEMENT_LABEL, "web"), (REQUEST_LABEL, "web"));
    for (labels, state, starts) in [
        (&[own, asked, (ATTEMPT_LABEL, "earlier")][..], &created, true),
        (&[own, (REQUEST_LABEL, "forgotten"), (ATTEMPT_LABEL, "earlier")], &created, true),
        (&[own, asked, (ATTEMPT_LABEL, "earlier")], &json!({ "Status": "exited", "ExitCode": 1 }), false),
        (&[own, asked], &created, false),
        (&[], &created, false),
        // Renamed by hand, and still to be started.
        (&[(PLACEMENT_LABEL, "other"), (REQUEST_LABEL, "other"), (ATTEMPT_LABEL, &*other)], &created, false),
    ] {
        played.put("web", labels, state);
        let answer = starter.place(&request("web"), &"web".into(), RequestCredentials::default(), None).await.unwrap();
        assert_eq!(answer.state, if starts { "placed" } else { "failed" }, "{labels:?} {state}: {answer:?}");
        if starts {
            starter.release(&"web".into(), None, None, |_| ()).await.unwrap();
        }
        assert_eq!(played.names().len(), usize::from(!starts), "{labels:?} {state}");
    }
}

#[tokio::test]
async fn a_unit_without_a_place_is_not_listed_as_one_and_counted_too() {
    let (played, address) = Played::start().await;
    let starter = starter(address, Ledger::new());
    // Another one's.
    played.put("web-1", &[], &json!({ "Status": "running" }));
    let (id, now) = (Text::from("web"), starter.clock.now());
    let answer = starter.place(&several("web", 4), &id, RequestCredentials::default(), None).await.unwrap();
    let check = |answer: &Placement, state: &str, units: &[(&str, &str)], unplaced: u32| {
        let listed = answer.placements.iter().map(|unit| (&*unit.containers[0].name, unit.containers[0].state));
        assert_eq!(listed.collect::<Vec<_>>(), units, "{answer:?}");
        assert_eq!((answer.state, answer.unplaced), (state, unplaced), "{answer:?}");
    };
    let known = || starter.placer.placement("web", now).unwrap();
    let all_started = |names: &[&'static str]| names.iter().map(|name| (*name, "started")).collect::<Vec<_>>();
    for answer in [answer, known()] {
        check(&answer, "partial", &all_started(&["web-2", "web-3", "web-4"]), 1);
    }
    // Removed by a person.
    starter.placer.gone("web", 1, &["id-of-web-2".into()], now);
    check(&known(), "partial", &all_started(&["web-3", "web-4"]), 2);
    // None is missing of what is being removed.
    starter.placer.begin_release("web", now).unwrap();
    starter.placer.abandon("web", 2, now);
    check(&known(), "placed", &[("web-4", "removing")], 0);
    starter.placer.abandon("web", 3, now);
    assert!(starter.placer.placement("web", now).is_err());
}

#[tokio::test]
async fn what_an_attempt_created_is_known_to_whoever_goes_on_with_it() {
    let (played, address) = Played::start().await;
    let starter = starter(address, Ledger::new());
    let attempt = starter.left_begun("web");
    let labels = [(PLACEMENT_LABEL, "web"), (REQUEST_LABEL, "web"), (ATTEMPT_LABEL, &*attempt)];
    played.put("web", &labels, &json!({ "Status": "created" }));
    starter.resume();
    starter.is_started("web").await;
    assert_eq!(played.created.load(Ordering::Relaxed), 0);
    starter.release(&"web".into(), None, None, |_| ()).await.unwrap();
    assert_eq!(played.names(), [""; 0]);
    // Each attempt has its own.
    assert_ne!(starter.left_begun("web"), attempt);
}

#[tokio::test]
async fn what_is_begun_is_settled_by_what_its_attempt_created() {
    let inventories = Arc::new(Store::new(Inventory::default()));
    let nowhere = ([127, 0, 0, 1], 1).into();
    inventories.publish(inventory(nowhere, &json!([])));
    let starter = starter_over(inventories.clone(), Ledger::new());
    let attempt = starter.left_begun("web");
    for (label, expected) in [("guessed", "starting"), (&*attempt, "settled")] {
        let labels = json!({ PLACEMENT_LABEL: "web", REQUEST_LABEL: "web", ATTEMPT_LABEL: label });
        let shown = json!([{ "name": "web", "uuid": "c", "host": "one", "state": "running", "labels": labels }]);
        inventories.publish(inventory(nowhere, &json!([])));
        starter.placer.with_any(starter.clock.now(), |_| {});
        inventories.publish(inventory(nowhere, &shown));
        let known = starter.placer.placement("web", starter.clock.now()).unwrap();
        assert_eq!(known.placements[0].containers[0].state, expected, "{label}");
    }
}

#[tokio::test]
async fn what_ran_before_a_crash_is_not_judged_as_just_started_and_run_again() {
    let (played, address) = Played::start().await;
    let starter = starter(address, Ledger::new());
    let attempt = starter.left_begun("job");
    let labels = [(PLACEMENT_LABEL, "job"), (REQUEST_LABEL, "job"), (ATTEMPT_LABEL, &*attempt)];
    played.put("job", &labels, &json!({ "Status": "exited", "ExitCode": 3 }));
    starter.resume();
    starter.is_started("job").await;
    assert_eq!((played.names(), played.created.load(Ordering::Relaxed)), (vec!["job".to_owned()], 0));
}

#[tokio::test]
async fn what_is_removed_while_the_disk_refuses_does_not_stay_removing() {
    let (played, address) = Played::start().await;
    let starter = starter(address, Ledger::on_disk(Journal::refusing(), []));
    let attempt = starter.left_begun("web");
    let labels = [(PLACEMENT_LABEL, "web"), (REQUEST_LABEL, "web"), (ATTEMPT_LABEL, &*attempt)];
    played.put("web", &labels, &json!({ "Status": "running" }));
    starter.release(&"web".into(), None, None, |_| ()).await.unwrap();
    assert!(starter.only_unit("web").is_none());
    assert_eq!(played.names(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn nothing_stays_begun_that_nobody_works_on() {
    // No engine listens there.
    let starter = starter(([127, 0, 0, 1], 1).into(), Ledger::new());
    let stop = CancellationToken::new();
    starter.left_begun("web");
    let looking = tokio::spawn(starter.clone().look(stop.clone()));
    let tried = async {
        while starter.only_unit("web").is_some_and(|unit| unit.stage == Stage::Begun) {
            sleep(LOOK_INTERVAL).await;
        }
    };
    timeout(10 * LOOK_INTERVAL, tried).await.expect("it was tried, and is undone");
    stop.cancel();
    looking.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_etcd_promises_after_its_client_was_told_to_ask_again_is_worked_on() {
    let client = EtcdClient::new(EtcdOptions::parse("http://192.0.2.1:2379").unwrap()).unwrap();
    let mut sync = EtcdSync::new(client, "ledger.key".into(), None);
    let starter = starter(([127, 0, 0, 1], 1).into(), Ledger::shared(sync.shared().clone()));
    let (id, now) = (Text::from("web"), starter.clock.now());
    starter.placer.with_any(now, |book| {
        book.seal_with(Seal::of_tests());
        book.learn_all(Vec::new(), 1, now)
    });
    sync.shared().answers();
    let asked = request("web");
    let ask = || starter.place(&asked, &id, RequestCredentials::default(), None);
    let refused = ask().await;
    assert!(matches!(&refused, Err(Refusal::Unsettled(why)) if why.contains("ask again")), "{refused:?}");
    assert!(matches!(ask().await, Err(Refusal::Unsettled(_))));
    assert!(matches!(starter.release(&id, None, None, |_| ()).await, Err(Refusal::Unsettled(_))));
    // Now it goes through.
    starter.placer.with_any(now, |book| {
        let drafted = book.draft(std::slice::from_ref(&id), &BTreeMap::new(), 1);
        let change = |(key, value)| KeyChange { key, revision: 2, put: Put::FIRST, value: Some(value) };
        book.learn(drafted.draft.puts.into_iter().map(change).collect(), now);
    });
    sync.settle_one().await;
    assert_eq!(starter.placer.units_at_work(&id, now), [0]);
    let works = async {
        loop {
            let running = lock(&starter.jobs).get(&id).map(|other| matches!(*other.state.borrow(), JobState::Running));
            match running {
                Some(true) => return,
                Some(false) => sleep(Duration::from_millis(10)).await,
                None => panic!("nobody works on it"),
            }
        }
    };
    timeout(LIMIT, works).await.unwrap();
}

#[tokio::test]
async fn a_container_that_no_ledger_knows_is_reported_once_and_left_alone() {
    let (played, address) = Played::start().await;
    let starter = starter(address, Ledger::new());
    let running = json!({ "Status": "running" });
    played.put("left", &[(PLACEMENT_LABEL, "left"), (REQUEST_LABEL, "gone"), (ATTEMPT_LABEL, "a")], &running);
    played.put("by-hand", &[(PLACEMENT_LABEL, "left")], &running);
    starter.place(&request("web"), &"web".into(), RequestCredentials::default(), None).await.unwrap();
    let host = starter.only_unit("web").unwrap().host;
    let (docker, _) = starter.docker(&host).unwrap();
    let found = docker.list().await.unwrap();
    assert_eq!(found.len(), 3);
    let look = || starter.report_strangers(&host, &found);
    // It may be on its way out.
    assert!(look().is_empty());
    assert_eq!(look(), ["id-of-left".into()]);
    assert!(look().is_empty());
    starter.report_strangers(&host, &[]);
    assert!(look().is_empty());
    assert_eq!(look().len(), 1, "it came again");
    assert_eq!(played.names().len(), 3);
}

#[tokio::test]
async fn no_engine_connects_to_a_registry_for_a_client_without_a_credential() {
    let (played, address) = Played::start().await;
    let starter = starter(address, Ledger::new());
    let none = RequestCredentials::default();
    let of = |subject: Subject| Request { subject, ..request("web") };
    let mut dry = of(Subject::default());
    starter.complete(&mut dry, &none).await;
    assert_eq!((played.asked.load(Ordering::Relaxed), dry.members[0].platforms.len()), (0, 0));
    starter.complete(&mut of(Subject::of_token(None)), &none).await;
    assert_eq!(played.asked.load(Ordering::Relaxed), 1);
    starter.complete(&mut dry, &none).await;
    assert_eq!((played.asked.load(Ordering::Relaxed), dry.members[0].platforms.len()), (1, 1), "it is known now");
}

#[tokio::test]
async fn what_the_policy_forbids_is_not_begun_by_whoever_adopts_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.ndjson");
    let record = |id: &str, subject: &str| {
        let containers = json!([{ "name": id }]);
        json!({ "id": id, "made": 1, "unplaced": 0, "subject": subject,
                "asked": { "image": "alpine", "volumes": ["/:/h"], "start": true, "command": ["chroot", "/h"] },
                "units": [{ "host": "u", "host_name": "one", "stage": "begun", "attempt": "a", "containers": containers }] })
    };
    // One that says nothing of its subject is of nobody in particular.
    let mut nameless = record("old", "");
    nameless.as_object_mut().unwrap().remove("subject");
    let records = [nameless, record("evil", "token:ci"), record("fine", "token:ops")];
    std::fs::write(&path, records.map(|record| format!("{record}\n")).concat()).unwrap();
    let (played, address) = Played::start().await;
    let inventories = Arc::new(Store::new(Inventory::default()));
    inventories.publish(inventory(address, &json!([])));
    let (journal, entries) = Journal::open(&path, Duration::from_secs(9)).unwrap();
    let policy = json!({ "subjects": { "token:ops": { "bind_sources": ["/", "/run/docker.sock"] } } });
    let policy = Policy::parse(&serde_json::from_value(policy).unwrap()).unwrap();
    let placer = Placer::new(inventories, Order::default(), Strategy::default())
        .with_ledger(Ledger::on_disk(journal, entries))
        .with_policy(Arc::new(Store::new(policy)))
        .with_audit(Audit::open(&folder.path().join("audit.ndjson")).unwrap());
    let starter = Starter::new(Arc::new(placer), Clock::start(), EngineAccess::default());
    starter.resume();
    starter.is_started("fine").await;
    let over = async {
        while ["old", "evil"].iter().any(|id| starter.only_unit(id).is_some_and(|unit| unit.is_at_work())) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, over).await.expect("they are given up");
    assert_eq!(played.names(), ["fine"]);
    assert_eq!(played.created.load(Ordering::Relaxed), 1);
    starter.placer.audit().flush().await;
    let text = std::fs::read_to_string(folder.path().join("audit.ndjson")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let line = |action: &str, id: &str| {
        let found: Vec<_> = lines.iter().filter(|line| line["action"] == action && line["request"] == id).collect();
        assert_eq!(found.len(), 1, "{action} {id} in {text}");
        (found[0]["subject"].clone(), found[0]["outcome"].clone(), found[0]["images"][0]["digest"].clone())
    };
    let subjects = [("old", "anonymous"), ("evil", "token:ci"), ("fine", "token:ops")];
    for (id, subject) in subjects {
        assert_eq!(line("take_over", id), (json!(subject), json!("resumed"), Value::Null));
    }
    assert_eq!(line("start", "evil"), (json!("token:ci"), json!("refused"), Value::Null));
    assert_eq!(line("start", "fine"), (json!("token:ops"), json!("started"), json!("sha256:00")));
}

#[tokio::test]
async fn what_was_being_replaced_when_the_scheduler_died_is_replaced_once() {
    let (played, address) = Played::start().await;
    let folder = tempfile::tempdir().unwrap();
    let opened = async || loop {
        // Until the one before has let go of it.
        if let Ok((journal, records)) = Journal::open(&folder.path().join("ledger"), Clock::start().now()) {
            return starter(address, Ledger::on_disk(journal, records));
        }
        sleep(Duration::from_millis(10)).await;
    };
    let id = Text::from("web");
    let first = timeout(LIMIT, opened()).await.unwrap();
    first.place(&request("web"), &id, RequestCredentials::default(), None).await.unwrap();
    let attempt = first.only_unit("web").unwrap().attempt;
    first.placer.note_failure((&id, 0), Stage::Replacing, "status 503", Duration::ZERO, first.clock.now());
    first.placer.settled(&id).await.unwrap();
    let listed = first.placer.placement("web", first.clock.now()).unwrap();
    assert_eq!(listed.placements[0].containers[0].state, "replacing");
    first.finish().await;
    drop(first);
    // The one after that finds nothing to do.
    for _ in 0..2 {
        let next = timeout(LIMIT, opened()).await.unwrap();
        next.resume();
        next.resume();
        next.is_started("web").await;
        let unit = next.only_unit("web").unwrap();
        let replaced = unit.replaced.clone().unwrap();
        assert_eq!((replaced.times, &*replaced.why), (1, "status 503"));
        assert_ne!(unit.attempt, attempt);
        assert_eq!((played.names(), played.created.load(Ordering::Relaxed)), (vec!["web".to_owned()], 2));
        next.finish().await;
    }
}

#[tokio::test]
async fn what_cannot_be_started_again_is_not_given_up_and_waits() {
    let (played, address) = Played::start().await;
    let starter = starter(address, Ledger::new());
    let id = Text::from("web");
    starter.place(&request("web"), &id, RequestCredentials::default(), None).await.unwrap();
    // It is gone, and another one has its name.
    let other = json!({ "Id": "other", "Config": { "Labels": {} }, "State": { "Status": "running" } });
    lock(&played.containers).insert("web".to_owned(), other);
    starter.placer.note_failure((&id, 0), Stage::Replacing, "status 503", Duration::ZERO, starter.clock.now());
    starter.resume();
    let times = || starter.only_unit("web").unwrap().replaced.unwrap().times;
    let tried = async {
        while times() < 2 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, tried).await.unwrap();
    starter.finish().await;
    let unit = starter.only_unit("web").unwrap();
    assert_eq!(unit.stage, Stage::Replacing);
    assert!(unit.replaced.unwrap().not_before() > starter.clock.now() + Duration::from_secs(10));
    assert_eq!(starter.placer.placement("web", starter.clock.now()).unwrap().unplaced, 0);
    assert_eq!(played.created.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_unit_that_failed_twice_on_a_host_is_started_on_another_one() {
    let [(one, first), (other, second)] = [Played::start().await, Played::start().await];
    let host = |name: &str, memory: u32| json!({ "name": name, "uuid": name, "memory": memory });
    // The first one is the better one.
    let cluster = json!({ "berth": 1, "hosts": [host("one", 8000), host("other", 4000)] });
    let engines = json!({ "one": format!("tcp://{first}"), "other": format!("tcp://{second}") });
    let endpoints = Endpoints::new(&serde_json::from_value(engines).unwrap(), false).unwrap();
    let (snapshot, _) = model::document::resolve_value(&serde_json::from_value(cluster).unwrap()).unwrap();
    let inventories = Arc::new(Store::new(Inventory::default()));
    inventories.publish(Arc::new(Inventory::new(&Arc::new(snapshot))));
    let placer = Placer::new(inventories, Order::default(), Strategy::default()).with_endpoints(endpoints);
    let starter = Starter::new(Arc::new(placer), Clock::start(), EngineAccess::default());
    let request = json!({ "id": "web", "image": "i", "start": true, "resources": { "memory": 1000 } });
    let request = Request::parse(&serde_json::from_value(request).unwrap()).unwrap();
    let id = Text::from("web");
    starter.place(&request, &id, RequestCredentials::default(), None).await.unwrap();
    for (times, hosts) in [(1, (1, 0)), (2, (0, 1)), (3, (0, 1))] {
        assert_eq!((one.names().len(), other.names().len()), if times == 3 { (0, 1) } else { (1, 0) }, "{times}");
        starter.placer.note_failure((&id, 0), Stage::Replacing, "status 503", Duration::ZERO, starter.clock.now());
        starter.resume();
        starter.is_started("web").await;
        assert_eq!((one.names().len(), other.names().len()), hosts, "{times}");
        assert_eq!(starter.only_unit("web").unwrap().replaced.unwrap().times, times);
    }
}

/// A ledger in a folder, opened again after each death.
async fn opened(folder: &std::path::Path, address: SocketAddr) -> Arc<Starter> {
    let opening = async {
        loop {
            // Until the one before has let go of it.
            if let Ok((journal, records)) = Journal::open(&folder.join("ledger"), Clock::start().now()) {
                return starter(address, Ledger::on_disk(journal, records));
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, opening).await.unwrap()
}

fn with_port(id: &str) -> Request {
    let request = json!({ "id": id, "image": "i", "start": true, "ports": ["80:80"], "resources": { "memory": 5 } });
    Request::parse(&serde_json::from_value(request).unwrap()).unwrap()
}

impl Starter {
    async fn placed(self: &Arc<Self>, request: &Request) -> Placement {
        let id = request.id.clone().unwrap();
        self.place(request, &id, RequestCredentials::default(), None).await.unwrap()
    }

    fn stage(&self, id: &str) -> Option<Stage> {
        self.only_unit(id).map(|unit| unit.stage)
    }
}

#[tokio::test]
async fn a_kept_unit_gives_its_room_to_another_one_and_is_started_again_as_it_was() {
    let (played, address) = Played::start().await;
    let starter = starter(address, Ledger::new());
    let (old, new) = (Text::from("old"), Text::from("new"));
    starter.placed(&with_port("old")).await;
    // There is room for one.
    assert_eq!(starter.placed(&with_port("new")).await.state, "unplaceable");
    for _ in 0..2 {
        // The second time there is nothing to do.
        starter.stop_units(&old, &[0], None, None).await.unwrap();
        assert_eq!(played.state("old"), "exited");
    }
    let listed = starter.placer.placement("old", starter.clock.now()).unwrap();
    assert_eq!(listed.placements[0].containers[0].state, "kept");
    assert_eq!(starter.placed(&with_port("new")).await.state, "placed");
    let refused = starter.start_kept(&old, &[0], None).await.unwrap_err().to_string();
    assert!(refused.starts_with("old cannot be started again on one: "), "{refused}");
    assert_eq!((starter.stage("old"), played.state("old")), (Some(Stage::Kept), "exited".to_owned()));
    starter.stop_units(&new, &[0], None, None).await.unwrap();
    for _ in 0..2 {
        starter.start_kept(&old, &[0], None).await.unwrap();
    }
    assert_eq!((played.state("old"), played.state("new")), ("running".to_owned(), "exited".to_owned()));
    assert_eq!(starter.only_unit("old").unwrap().members[0].container, Some("id-of-old".into()));
    assert_eq!(played.created.load(Ordering::Relaxed), 2, "the same containers");
    assert!(starter.start_kept(&new, &[0], None).await.is_err());
    starter.release(&new, None, None, |_| ()).await.unwrap();
    assert_eq!(played.names(), ["old"]);
    assert!(starter.only_unit("new").is_none());
    let unknown = starter.stop_units(&new, &[0], None, None).await;
    assert!(matches!(unknown, Err(Refusal::Unknown(_))), "{unknown:?}");
    starter.release(&old, None, None, |_| ()).await.unwrap();
    assert_eq!(played.names(), [""; 0]);
}

#[tokio::test]
async fn memory_that_snapshots_count_of_a_kept_unit_is_free_until_it_runs() {
    let (_played, address) = Played::start().await;
    let inventories = Arc::new(Store::new(Inventory::default()));
    inventories.publish(inventory(address, &json!([])));
    let starter = starter_over(inventories.clone(), Ledger::new());
    let old = Text::from("old");
    starter.placed(&with_port("old")).await;
    let show = |state: &str| {
        let attempt = starter.only_unit("old").unwrap().attempt.unwrap();
        let labels = json!({ PLACEMENT_LABEL: "old", REQUEST_LABEL: "old", ATTEMPT_LABEL: &*attempt });
        let shown = json!([{ "name": "old", "uuid": "c", "host": "one", "state": state, "labels": labels,
            "memory_reservation": 5, "ports": ["80:80"] }]);
        inventories.publish(inventory(address, &shown));
    };
    let fits = || {
        let request = Request { dry_run: true, ..with_port("new") };
        starter.placer.place_request(&request, "new", starter.clock.now()).unwrap().state == "placed"
    };
    show("running");
    assert!(!fits());
    starter.placer.begin(&old, &[0], (&[Stage::Started], Stage::Stopping), starter.clock.now());
    starter.placer.keep(&old, 0, starter.clock.now());
    assert!(!fits(), "it is still shown as running");
    show("stopped");
    assert!(fits());
    // By hand.
    show("running");
    assert!(!fits());
    show("stopped");
    starter.placer.take_again(&old, 0, starter.clock.now()).unwrap();
    assert!(!fits());
    show("running");
    assert!(!fits());
    starter.placer.put_aside(&old, 0, starter.clock.now());
    show("stopped");
    assert!(fits());
    // Hosts that stopped containers are not shown of do not lose them.
    inventories.publish(inventory(address, &json!([])));
    assert!(fits());
    assert_eq!(starter.stage("old"), Some(Stage::Kept));
}

#[tokio::test]
async fn what_was_being_stopped_or_started_again_when_the_scheduler_died_is_gone_on_with() {
    let (played, address) = Played::start().await;
    let folder = tempfile::tempdir().unwrap();
    let old = Text::from("old");
    let first = opened(folder.path(), address).await;
    first.placed(&with_port("old")).await;
    first.placer.begin(&old, &[0], (&[Stage::Started], Stage::Stopping), first.clock.now());
    first.placer.settled(&old).await.unwrap();
    first.finish().await;
    drop(first);
    let second = opened(folder.path(), address).await;
    assert_eq!(second.stage("old"), Some(Stage::Stopping));
    let dry = Request { dry_run: true, ..with_port("new") };
    let fits =
        |starter: &Starter| starter.placer.place_request(&dry, "new", starter.clock.now()).unwrap().unplaced == 0;
    assert!(!fits(&second), "its room is its own until it has ended");
    second.resume();
    let kept = async {
        while second.stage("old") != Some(Stage::Kept) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, kept).await.unwrap();
    second.finish().await;
    drop(second);
    let third = opened(folder.path(), address).await;
    third.resume();
    assert_eq!((third.stage("old"), played.state("old")), (Some(Stage::Kept), "exited".to_owned()));
    assert!(fits(&third));
    third.placer.take_again(&old, 0, third.clock.now()).unwrap();
    third.placer.settled(&old).await.unwrap();
    third.finish().await;
    drop(third);
    let fourth = opened(folder.path(), address).await;
    assert!(!fits(&fourth));
    fourth.resume();
    fourth.is_started("old").await;
    assert_eq!((played.state("old"), played.created.load(Ordering::Relaxed)), ("running".to_owned(), 1));
}

#[tokio::test]
async fn images_are_pulled_ahead_two_at_a_time_on_a_host_and_each_says_what_became_of_it() {
    let (played, address) = Played::start().await;
    let starter = starter(address, Ledger::new());
    let wanted = |image: &str, always| WantedImage { host: "u".into(), image: image.into(), always };
    let all = ["a", "b", "present", "broken", "c"].map(|image| wanted(image, false));
    let (sender, mut progress) = tokio::sync::mpsc::channel(100);
    let (none, stop) = (RequestCredentials::default(), CancellationToken::new());
    let outcomes = starter.pull_ahead(&all, &none, &Some(sender), &stop).await;
    let expected = |at: usize| match at {
        2 => ImageOutcome::Present,
        3 => ImageOutcome::Failed(EngineError::Failed("no such manifest".to_owned())),
        _ => ImageOutcome::Pulled,
    };
    assert_eq!(outcomes, (0..5).map(expected).collect::<Vec<_>>());
    assert_eq!(played.most_pulls.load(Ordering::Relaxed), 2);
    let mut said = Vec::new();
    while let Ok(one) = progress.try_recv() {
        said.push(serde_json::to_string(&one).unwrap());
    }
    let line = r#"{"host":"one","image":"a","status":"Downloading","layer":"ab","current":1,"total":2}"#;
    assert!(said.iter().any(|one| one == line), "{said:?}");
    let nowhere = WantedImage { host: "gone".into(), ..wanted("a", true) };
    let outcomes = starter.pull_ahead(&[wanted("present", true), nowhere], &none, &None, &stop).await;
    assert_eq!(outcomes[0], ImageOutcome::Pulled);
    assert!(matches!(&outcomes[1], ImageOutcome::Failed(EngineError::Refused(_))), "{outcomes:?}");
    // Given up while it lasts.
    let slow = [wanted("slow", false)];
    let pulling = starter.pull_ahead(&slow, &none, &None, &stop);
    let (outcomes, ()) = tokio::join!(pulling, async {
        sleep(Duration::from_millis(300)).await;
        stop.cancel();
    });
    assert!(matches!(&outcomes[0], ImageOutcome::Failed(error) if error.to_string().contains("given up")));
}

#[tokio::test]
async fn an_image_is_pulled_before_a_start_where_its_request_says_so() {
    let (played, address) = Played::start().await;
    let starter = starter(address, Ledger::new());
    let request = |id: &str, image: &str, policy: &str| {
        let request = json!({ "id": id, "image": image, "start": true, "pull_policy": policy });
        Request::parse(&serde_json::from_value(request).unwrap()).unwrap()
    };
    for (id, image, policy, state, pulls) in [
        ("a", "i", "missing", Some(Stage::Started), 0),
        ("b", "i", "always", Some(Stage::Started), 1),
        ("c", "broken", "always", None, 1),
    ] {
        let answer = starter.placed(&request(id, image, policy)).await;
        assert_eq!((starter.stage(id), played.most_pulls.load(Ordering::Relaxed)), (state, pulls), "{id}: {answer:?}");
        assert_eq!(answer.failures.iter().any(|why| why.error.contains("no such manifest")), id == "c", "{answer:?}");
    }
    assert_eq!(played.created.load(Ordering::Relaxed), 2);
}
