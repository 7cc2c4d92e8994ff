//! Stacks kept beside an engine that is played.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use model::Text;
use serde_json::json;
use source::{Readiness, Store};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::ledger::Ledger;
use crate::ledger::journal::Journal;
use crate::place::Placer;
use crate::place::inventory::Inventory;
use crate::place::refusal::Refusal;
use crate::place::request::Request;
use crate::place::strategy::{Order, Strategy};
use crate::policy::Policy;
use crate::stack::store::Command;
use crate::stack::view::StackView;
use crate::stack::wish::Wish;
use crate::start::Starter;
use crate::start::credentials::RequestCredentials;
use crate::start::played::{LIMIT, Played, inventory, starter_of};
use crate::subject::Subject;

/// A scheduler that keeps stacks, with its ledger in this folder.
struct Kept {
    starter: Arc<Starter>,
    inventories: Arc<Store<Inventory>>,
    stop: CancellationToken,
    keeping: JoinHandle<()>,
}

impl Kept {
    async fn start(engine: SocketAddr, folder: &Path) -> Self {
        Self::with_policy(engine, folder, &json!({ "default": {} })).await
    }

    async fn with_policy(engine: SocketAddr, folder: &Path, policy: &serde_json::Value) -> Self {
        let now = crate::clock::Clock::start().now();
        let opened = async {
            loop {
                // The last process may hold it for a moment longer.
                match Journal::open(&folder.join("ledger"), now) {
                    Ok(opened) => return opened,
                    Err(_) => sleep(Duration::from_millis(10)).await,
                }
            }
        };
        let (journal, entries) = timeout(LIMIT, opened).await.unwrap();
        let inventories = Arc::new(Store::new(Inventory::default()));
        inventories.publish(inventory(engine, &json!([])));
        let policy = Policy::parse(&serde_json::from_value(policy.clone()).unwrap()).unwrap();
        let placer = Placer::new(inventories.clone(), Order::default(), Strategy::default())
            .with_ledger(Ledger::on_disk(journal, entries))
            .with_policy(Arc::new(Store::new(policy)));
        let starter = starter_of(placer);
        let stop = CancellationToken::new();
        starter.resume();
        let keeping = tokio::spawn(starter.clone().keep_stacks(Arc::new(Readiness::default()), stop.clone()));
        Self { starter, inventories, stop, keeping }
    }

    /// Ends it, so that another process can have its ledger.
    async fn end(self) {
        self.stop.cancel();
        self.keeping.await.unwrap();
        self.starter.finish().await;
    }

    async fn put(&self, services: serde_json::Value) -> Result<u64, Refusal> {
        let body = json!({ "services": services, "prune": true });
        let wish = Wish::parse("shop", &serde_json::from_value(body).unwrap()).unwrap();
        let starter = &self.starter;
        let revision = starter.placer().put_stack(&shop(), &wish, &Subject::own(), starter.clock()).await?;
        starter.ask_for_stack(&shop(), RequestCredentials::default());
        Ok(revision)
    }

    /// Removes the stack, and waits until it is gone.
    async fn remove(&self) {
        let (placer, clock, command) =
            (self.starter.placer(), self.starter.clock(), Command::Remove { volumes: false });
        placer.command_stack(&shop(), &command, &Subject::own(), clock).await.unwrap();
        self.starter.touch_stack(&shop());
        let gone = async {
            while self.starter.view_stack(&shop()).is_ok() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LIMIT, gone).await.unwrap();
    }

    async fn becomes(&self, state: &str) -> StackView {
        let mut last = None;
        let waited = timeout(LIMIT, async {
            loop {
                let view = self.starter.view_stack(&shop()).unwrap();
                if view.state == state {
                    return view;
                }
                last = Some(view);
                sleep(Duration::from_millis(10)).await;
            }
        });
        waited.await.unwrap_or_else(|_| panic!("not {state}: {last:#?}"))
    }
}

fn shop() -> Text {
    "shop".into()
}

fn web(image: &str, count: u32, update: &serde_json::Value) -> serde_json::Value {
    let mut rules = json!({ "monitor": 0, "deadline": 60 });
    for (key, value) in update.as_object().unwrap() {
        rules[key] = value.clone();
    }
    json!([{ "service": "web", "image": image, "count": count, "update": rules }])
}

fn hosts_of(view: &StackView) -> BTreeMap<String, &'static str> {
    view.services.iter().flat_map(|one| &one.units).map(|unit| (unit.id.to_string(), unit.state)).collect()
}

#[tokio::test]
async fn a_unit_that_is_being_started_says_what_it_waits_for() {
    let folder = tempfile::tempdir().unwrap();
    let (_engine, address) = Played::start().await;
    let kept = Kept::start(address, folder.path()).await;
    kept.put(web("slow", 1, &json!({}))).await.unwrap();
    let waits = async {
        loop {
            let view = kept.starter.view_stack(&shop()).unwrap();
            let mut units = view.services.into_iter().flat_map(|service| service.units);
            if units.any(|unit| unit.state == "starting" && unit.why.as_deref() == Some("pulling slow")) {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, waits).await.unwrap();
    kept.remove().await;
    kept.end().await;
}

#[tokio::test]
async fn what_is_wanted_runs_is_replaced_and_goes_back_to_the_same_containers() {
    let folder = tempfile::tempdir().unwrap();
    let (played, address) = Played::start().await;
    let kept = Kept::start(address, folder.path()).await;
    assert_eq!(kept.put(web("one", 2, &json!({}))).await.unwrap(), 1);
    let first = kept.becomes("done").await;
    let names = played.names();
    assert_eq!(names.len(), 2, "{first:?}");
    assert!(names[0].starts_with("shop-web-1-") && names[1].starts_with("shop-web-2-"), "{names:?}");
    assert_eq!(hosts_of(&first).keys().cloned().collect::<Vec<_>>(), names);
    // The same once more is the same revision, and nothing is done for it.
    assert_eq!(kept.put(web("one", 2, &json!({}))).await.unwrap(), 1);
    kept.becomes("done").await;
    assert_eq!((played.names(), played.created.load(Ordering::Relaxed)), (names.clone(), 2));
    // A broken image is found out before anything stops.
    assert_eq!(kept.put(web("broken", 2, &json!({}))).await.unwrap(), 2);
    let back = kept.becomes("rolled_back").await;
    assert!(back.detail.contains("image broken did not come to host one"), "{}", back.detail);
    assert_eq!((played.names(), played.created.load(Ordering::Relaxed)), (names.clone(), 2));
    // Replaced, and kept until that is confirmed.
    assert_eq!(kept.put(web("two", 2, &json!({ "confirm": true }))).await.unwrap(), 3);
    kept.becomes("unconfirmed").await;
    assert_eq!(played.names().len(), 4);
    assert!(names.iter().all(|name| played.state(name) == "exited"));
    let (placer, clock) = (kept.starter.placer(), kept.starter.clock());
    let back = placer.roll_back_stack(&shop(), Some(1), &Subject::own(), clock).await.unwrap();
    assert_eq!(back, 4);
    kept.starter.touch_stack(&shop());
    kept.becomes("done").await;
    assert_eq!(played.names(), names);
    assert!(names.iter().all(|name| played.state(name) == "running"));
    assert_eq!(played.created.load(Ordering::Relaxed), 4);
    // Fewer, and none.
    placer.scale_stack(&shop(), &[("web".into(), 1)], &Subject::own(), clock).await.unwrap();
    kept.starter.touch_stack(&shop());
    kept.becomes("done").await;
    assert_eq!(played.names().len(), 1);
    kept.remove().await;
    assert_eq!(played.names(), [""; 0]);
    kept.end().await;
}

#[tokio::test]
async fn registries_are_asked_about_an_image_before_anything_stops_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let (played, address) = Played::start().await;
    let kept = Kept::start(address, folder.path()).await;
    // A volume is where the old unit is, so that one stops first.
    let db = |image: &str| {
        let update = json!({ "monitor": 0, "deadline": 60 });
        json!([{ "service": "db", "image": image, "volumes": ["data:/data"], "update": update }])
    };
    kept.put(db("one")).await.unwrap();
    let first = hosts_of(&kept.becomes("done").await);
    let pulls = || played.most_pulls.load(Ordering::Relaxed);
    let (before, log) = (pulls(), || std::mem::take(&mut *crate::lock::lock(&played.log)));
    log();
    // The only host is one of Linux, and gets no image for Windows.
    kept.put(db("windows")).await.unwrap();
    let back = kept.becomes("rolled_back").await;
    assert!(back.detail.contains("windows"), "{}", back.detail);
    assert_eq!((hosts_of(&back), pulls(), log()), (first.clone(), before, vec!["ask about windows".to_owned()]));
    kept.put(db("two")).await.unwrap();
    kept.becomes("done").await;
    let old = first.into_keys().next().unwrap();
    assert_eq!(log(), ["ask about two".to_owned(), format!("stop {old}")]);
    kept.end().await;
}

#[tokio::test]
async fn a_stack_whose_host_is_gone_is_degraded_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (_played, address) = Played::start().await;
    let kept = Kept::start(address, folder.path()).await;
    kept.put(web("one", 1, &json!({}))).await.unwrap();
    let first = kept.becomes("done").await;
    let unit = hosts_of(&first).into_keys().next().unwrap();
    kept.inventories.publish(Arc::default());
    let degraded = kept.becomes("degraded").await;
    let expected = format!("{unit} is on a host that is gone, and runs elsewhere 300 s after that");
    assert_eq!((degraded.detail, degraded.is_over), (expected, true));
    kept.inventories.publish(inventory(address, &json!([])));
    kept.becomes("done").await;
    kept.end().await;
}

#[tokio::test]
async fn no_placement_of_somebody_else_keeps_a_unit_away_by_its_id_or_name() {
    let folder = tempfile::tempdir().unwrap();
    let (played, address) = Played::start().await;
    let kept = Kept::start(address, folder.path()).await;
    kept.put(web("one", 1, &json!({}))).await.unwrap();
    let first = hosts_of(&kept.becomes("done").await).into_keys().next().unwrap();
    let taken = |index: u32| first.replace("-1-", &format!("-{index}-"));
    for asked in
        [json!({ "id": taken(2), "name": "a", "image": "i" }), json!({ "id": "b", "name": taken(3), "image": "i" })]
    {
        let request = Request::parse(&serde_json::from_value(asked).unwrap()).unwrap();
        let id = request.id.clone().unwrap();
        kept.starter.place(&request, &id, RequestCredentials::default(), None).await.unwrap();
    }
    kept.put(web("one", 3, &json!({}))).await.unwrap();
    let units: Vec<String> = hosts_of(&kept.becomes("done").await).into_keys().collect();
    assert!(units.len() == 3 && units[0] == first, "{units:?}");
    assert!(
        units[1].starts_with(&format!("{}.", taken(2))) && units[2].starts_with(&format!("{}.", taken(3))),
        "{units:?}"
    );
    assert_eq!(played.names().iter().filter(|name| units.contains(name)).count(), 3);
    kept.end().await;
}

#[tokio::test]
async fn what_is_still_being_pulled_is_removed_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (played, address) = Played::start().await;
    let kept = Kept::start(address, folder.path()).await;
    kept.put(web("slow", 1, &json!({}))).await.unwrap();
    let begun = Instant::now();
    let is_pulling = async {
        while played.most_pulls.load(Ordering::Relaxed) == 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, is_pulling).await.unwrap();
    kept.remove().await;
    assert!(begun.elapsed() < LIMIT, "the pull takes longer");
    kept.end().await;
}

#[tokio::test]
async fn another_process_goes_on_where_the_last_one_was() {
    let folder = tempfile::tempdir().unwrap();
    let (played, address) = Played::start().await;
    let kept = Kept::start(address, folder.path()).await;
    kept.put(web("one", 3, &json!({}))).await.unwrap();
    kept.becomes("done").await;
    let names = played.names();
    kept.end().await;
    // It is as it should be: nothing is done.
    let kept = Kept::start(address, folder.path()).await;
    kept.becomes("done").await;
    assert_eq!((played.names(), played.created.load(Ordering::Relaxed)), (names, 3));
    // One that ended is replaced by another one.
    let ended = played.names().remove(0);
    played.put(&ended, &[], &json!({ "Status": "exited", "ExitCode": 3 }));
    kept.starter.refresh().await;
    let replaced = async {
        while played.created.load(Ordering::Relaxed) < 4 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, replaced).await.unwrap();
    kept.becomes("done").await;
    assert_eq!(played.names().len(), 3);
    kept.end().await;
}

#[tokio::test]
async fn who_has_seen_an_older_revision_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (_played, address) = Played::start().await;
    let kept = Kept::start(address, folder.path()).await;
    kept.put(web("one", 1, &json!({}))).await.unwrap();
    let expecting = |revision: u64| {
        let body = json!({ "services": web("two", 1, &json!({})), "expect": revision });
        Wish::parse("shop", &serde_json::from_value(body).unwrap()).unwrap()
    };
    let (placer, clock, subject) = (kept.starter.placer(), kept.starter.clock(), Subject::own());
    let refused = placer.put_stack(&shop(), &expecting(0), &subject, clock).await;
    assert!(matches!(&refused, Err(Refusal::Taken(why)) if why.contains("at revision 1, not 0")), "{refused:?}");
    assert_eq!(placer.put_stack(&shop(), &expecting(1), &subject, clock).await.unwrap(), 2);
    kept.end().await;
}

#[tokio::test]
async fn questions_about_stacks_that_are_not_there_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (_played, address) = Played::start().await;
    let kept = Kept::start(address, folder.path()).await;
    let body = json!({ "services": web("one", 1, &json!({})) });
    for number in 0..50 {
        let name: Text = format!("guess-{number}").into();
        let wish = Wish::parse(&name, &serde_json::from_value(body.clone()).unwrap()).unwrap();
        let preview = kept.starter.preview_stack(&name, &wish, &Subject::default()).unwrap();
        assert_eq!((preview.revision, preview.services[0].units.len()), (0, 1));
        assert!(kept.starter.view_stack(&name).is_err());
    }
    assert_eq!(crate::lock::lock(&kept.starter.stack_memory).stacks.len(), 0);
    kept.end().await;
}

#[tokio::test]
async fn what_a_request_has_is_not_told_to_who_asks_with_its_id_for_another_stack() {
    let folder = tempfile::tempdir().unwrap();
    let (_played, address) = Played::start().await;
    let rules = json!({ "default": {}, "subjects": { "token:bob": { "stacks": ["b"] } } });
    let kept = Kept::with_policy(address, folder.path(), &rules).await;
    let placed = |name: Option<&str>, pin: &str| {
        let asked = json!({ "id": "a", "image": "i", "stack": "a", "environment": { "PIN": pin } });
        let request = Request::parse(&serde_json::from_value(asked).unwrap()).unwrap();
        let request = Request { subject: Subject::of_token(name), ..request };
        let starter = kept.starter.clone();
        async move { starter.place(&request, &"a".into(), RequestCredentials::default(), None).await }
    };
    placed(None, "1").await.unwrap();
    let own = placed(None, "2").await.unwrap_err().to_string();
    assert!(own.contains("environment.PIN"), "{own}");
    let other = placed(Some("bob"), "2").await.unwrap_err().to_string();
    assert_eq!(other, "id a belongs to a request that you may not see: take another id");
    kept.end().await;
}

#[tokio::test]
async fn what_cannot_be_read_is_removed_by_who_may_touch_every_stack() {
    let folder = tempfile::tempdir().unwrap();
    let (_played, address) = Played::start().await;
    let rules = json!({ "default": { "stacks": [""] }, "subjects": { "token:all": { "stacks": "*", "hosts": "*" } } });
    let kept = Kept::with_policy(address, folder.path(), &rules).await;
    let (placer, clock) = (kept.starter.placer(), kept.starter.clock());
    placer.with_any(clock.now(), |book| book.set_aside("web".into(), "damaged".into()));
    let may = |name: Option<&'static str>| async move {
        placer.permit_removal(&Subject::of_token(name), "web", clock).await.is_ok()
    };
    assert!(!may(None).await, "it may be of any stack");
    assert!(may(Some("all")).await);
    kept.end().await;
}

#[tokio::test]
async fn what_the_policy_forbids_is_neither_stored_nor_begun_by_the_next_scheduler() {
    let folder = tempfile::tempdir().unwrap();
    let (played, address) = Played::start().await;
    let allowed = |image: &str| json!({ "default": { "images": [image] } });
    let kept = Kept::with_policy(address, folder.path(), &allowed("one")).await;
    let refused = kept.put(web("two", 1, &json!({}))).await;
    assert!(matches!(&refused, Err(Refusal::Forbidden(_))), "{refused:?}");
    assert!(kept.starter.view_stack(&shop()).is_err(), "nothing of it is stored");
    kept.put(web("one", 2, &json!({}))).await.unwrap();
    kept.becomes("done").await;
    let names = played.names();
    kept.end().await;

    // The policy of the scheduler that takes it over forbids the image: what runs goes on, and nothing is begun.
    let kept = Kept::with_policy(address, folder.path(), &allowed("two")).await;
    kept.becomes("done").await;
    let ended = names[0].clone();
    played.put(&ended, &[], &json!({ "Status": "exited", "ExitCode": 3 }));
    kept.starter.refresh().await;
    let told = async {
        loop {
            let view = kept.starter.view_stack(&shop()).unwrap();
            let waits = view.services[0].waits.clone();
            if waits.contains("images") {
                return waits;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    let waits = timeout(LIMIT, told).await.expect("it says why");
    assert!(waits.contains("is tried again"), "{waits}");
    assert_eq!((played.names(), played.created.load(Ordering::Relaxed)), (vec![names[1].clone()], 2));
    // Nor is more of it wanted by anybody.
    let (placer, clock) = (kept.starter.placer(), kept.starter.clock());
    let scaled = placer.scale_stack(&shop(), &[("web".into(), 3)], &Subject::own(), clock).await;
    assert!(matches!(&scaled, Err(Refusal::Forbidden(_))), "{scaled:?}");
    kept.end().await;
}
