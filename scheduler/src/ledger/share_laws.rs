//! Laws of shared ledgers, tried on random histories of several schedulers and a model of etcd.
//!
//! The model executes transactions one after the other and reports them in order; responses are lost, transactions
//! arrive late, schedulers lag behind, die, and go on without knowing that their lease expired.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use etcd::{EtcdClient, EtcdOptions};
use model::Text;
use proptest::prelude::*;
use serde_json::json;
use source::Store;

use super::Ledger;
use super::draft::{CommitError, OPS_MAX, TakeOver, TxnDraft};
use super::mirror::{HOST_SPLIT, KeyChange};
use crate::ledger::etcd::keys::{EtcdRecord, Key};
use crate::ledger::etcd::seal::{Put, Seal};
use crate::ledger::etcd::sync::EtcdSync;
use crate::ledger::record::Stage;
use crate::place::Placer;
use crate::place::inventory::Inventory;
use crate::place::promise::Replanned;
use crate::place::request::Request;
use crate::place::score::Ties;
use crate::place::strategy::{Order, Strategy as Placing};

const NOW: Duration = Duration::from_secs(1000);
const MEMORY: i64 = 4;
const HOSTS: usize = 3;

/// Etcd, as far as it matters.
#[derive(Default)]
struct Model {
    revision: i64,
    keys: BTreeMap<Key, KeyChange>,
    log: Vec<KeyChange>,
}

impl Model {
    fn change(&mut self, key: Key, value: Option<Vec<u8>>) {
        let before = self.keys.remove(&key);
        let there = before.is_some();
        let first = Put { created: self.revision, version: 1 };
        let put = before.map_or(first, |before| before.put.next());
        let change = KeyChange { key, revision: self.revision, put, value };
        if change.value.is_some() {
            self.keys.insert(change.key.clone(), change.clone());
        }
        if there || change.value.is_some() {
            self.log.push(change);
        }
    }

    fn put(&mut self, key: Key) -> i64 {
        self.revision += 1;
        self.change(key, Some(Vec::new()));
        self.revision
    }

    fn delete(&mut self, key: Key) {
        self.revision += 1;
        self.change(key, None);
    }

    fn transact(&mut self, draft: &TxnDraft) -> bool {
        assert!(draft.expects.len() <= OPS_MAX && draft.puts.len() + draft.deletes.len() <= OPS_MAX);
        assert!(draft.deletes.iter().all(|key| !draft.puts.contains_key(key)));
        let is = |key: &Key| self.keys.get(key).map_or(0, |there| there.revision);
        if draft.expects.iter().any(|(key, revision)| is(key) != *revision) {
            return false;
        }
        self.revision += 1;
        for (key, value) in &draft.puts {
            self.change(key.clone(), Some(value.clone()));
        }
        for key in &draft.deletes {
            self.change(key.clone(), None);
        }
        true
    }

    fn records(&self) -> BTreeMap<Text, EtcdRecord> {
        let record = |there: &KeyChange| match (&there.key, &there.value) {
            (Key::Placement(id), Some(value)) => {
                Seal::of_tests().verified(id, there.put, value).unwrap();
                Some((id.clone(), EtcdRecord::read(id, value).unwrap()))
            }
            _ => None,
        };
        self.keys.values().filter_map(record).collect()
    }
}

/// One scheduler.
struct One {
    placer: Placer,
    me: Text,
    presence: i64,
    /// How much of the log it has read.
    heard: usize,
    /// What it is about to promise.
    promising: BTreeMap<Text, Request>,
    /// What of that was given back after it was written, and before it was reported.
    given_back: BTreeSet<Text>,
    /// Kept units whose room is to be theirs again.
    again: BTreeSet<(Text, usize)>,
    alive: bool,
}

impl One {
    fn new(model: &mut Model, store: &Arc<Store<Inventory>>) -> Self {
        let client = EtcdClient::new(EtcdOptions::parse("http://192.0.2.1:2379").unwrap()).unwrap();
        let sync = EtcdSync::new(client, "ledger.key".into(), None);
        let me = sync.shared().me().clone();
        let ledger = Ledger::shared(sync.shared().clone());
        let placer = Placer::new(store.clone(), Order::Ratio, Placing::Binpack).with_ledger(ledger);
        placer.with_any(NOW, |book| book.seal_with(Seal::of_tests()));
        let mut one = Self {
            placer,
            me,
            presence: 0,
            heard: 0,
            promising: BTreeMap::new(),
            given_back: BTreeSet::new(),
            again: BTreeSet::new(),
            alive: true,
        };
        one.appear(model);
        one
    }

    fn key(&self) -> Key {
        Key::Scheduler(self.me.clone())
    }

    /// Puts its presence, and learns all up to there.
    fn appear(&mut self, model: &mut Model) {
        self.presence = model.put(self.key());
        self.list(model);
    }

    fn list(&mut self, model: &Model) {
        let changes = model.keys.values().cloned().collect();
        self.placer.with_any(NOW, |book| book.learn_all(changes, model.revision, NOW));
        self.heard = model.log.len();
    }

    /// Learns some whole revisions.
    fn learn(&mut self, model: &Model, count: usize) {
        let mut end = (self.heard + count).min(model.log.len());
        while end < model.log.len() && end > 0 && model.log[end].revision == model.log[end - 1].revision {
            end += 1;
        }
        let changes = model.log[self.heard..end].to_vec();
        self.heard = end;
        self.placer.with_any(NOW, |book| book.learn(changes, NOW));
    }

    fn place(&mut self, request: &Request) {
        let id = request.id.clone().unwrap();
        if self.placer.with_any(NOW, |book| book.is_ending(&id)) {
            return;
        }
        let answer = self.placer.place_request(request, &id, NOW);
        if answer.is_ok_and(|answer| answer.state != "unplaceable" && !answer.repeated) {
            self.given_back.remove(&id);
            self.promising.insert(id, request.clone());
        }
    }

    /// Stops the units of a placement and keeps them, or takes their room again.
    fn keep(&mut self, id: &Text, keeps: bool) {
        if self.placer.with_any(NOW, |book| book.is_foreign(id) || book.is_pending(id)) {
            return;
        }
        for (at, stage) in self.placer.stages(id, NOW).into_iter().enumerate() {
            if !keeps && self.placer.take_again(id, at, NOW).is_ok() {
                self.again.insert((id.clone(), at));
            } else if keeps && stage != Stage::Kept && !self.again.contains(&(id.clone(), at)) {
                self.placer.begin(id, &[at], (&[stage], Stage::Stopping), NOW);
                assert!(self.placer.keep(id, at, NOW));
            }
        }
    }

    /// One transaction; returns what was done since, and the draft when its response is lost.
    fn write(
        &mut self,
        model: &mut Model,
        fate: Fate,
        takes: &BTreeMap<Text, TakeOver>,
    ) -> (Vec<Text>, Option<TxnDraft>) {
        if self.alive && self.presence == 0 {
            // Before anything else is written; what happened since was decided without knowing what became of the last one.
            self.appear(model);
        }
        let mut ids: BTreeSet<Text> = self.placer.with_any(NOW, |book| {
            let mut ids = book.take_changed();
            ids.extend(book.orphans());
            ids
        });
        ids.extend(self.promising.keys().cloned());
        ids.extend(takes.keys().cloned());
        let list: Vec<Text> = ids.iter().cloned().collect();
        let drafted = self.placer.with_any(NOW, |book| book.draft(&list, takes, self.presence));
        let mut done = Vec::new();
        for id in drafted.done {
            ids.remove(&id);
            self.again.retain(|(of, _)| *of != id);
            if self.promising.remove(&id).is_some() {
                done.push(id);
            }
        }
        for (id, why) in drafted.refused {
            ids.remove(&id);
            if why == CommitError::Conflict {
                for (_, at) in self.again.iter().filter(|(of, _)| *of == id) {
                    self.placer.put_aside(&id, *at, NOW);
                    ids.insert(id.clone());
                }
            }
            self.again.retain(|(of, _)| *of != id);
            let Some(request) = self.promising.get(&id) else { continue };
            let decided = why == CommitError::Conflict
                && self
                    .placer
                    .with(NOW, |book| {
                        book.split_hosts(NOW);
                        self.placer.replan(book, request, &id)
                    })
                    .is_ok_and(|outcome| matches!(outcome, Replanned::Decided));
            if !decided {
                self.promising.remove(&id);
            }
        }
        self.placer.with_any(NOW, |book| book.change_again(ids));
        if drafted.draft.is_empty() {
            return (done, None);
        }
        match fate {
            Fate::Answered => {
                model.transact(&drafted.draft);
                if self.alive {
                    let all = model.log.len();
                    self.learn(model, all);
                }
                if self.alive && !model.keys.contains_key(&self.key()) {
                    self.appear(model);
                }
                (done, None)
            }
            Fate::Lost | Fate::Late => {
                if fate == Fate::Lost {
                    model.transact(&drafted.draft);
                }
                if self.alive {
                    self.presence = 0;
                }
                (done, Some(drafted.draft))
            }
        }
    }
}

/// The outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Answered,
    /// Done, and the answer lost.
    Lost,
    /// On its way for long.
    Late,
}

#[derive(Clone, Debug)]
enum Act {
    Place {
        who: usize,
        id: u8,
        memory: i64,
        count: u32,
        port: Option<u16>,
        atomic: bool,
    },
    Write {
        who: usize,
        fate: Fate,
    },
    Take {
        who: usize,
        id: u8,
    },
    Learn {
        who: usize,
        count: usize,
    },
    List {
        who: usize,
    },
    Release {
        who: usize,
        id: u8,
    },
    /// Units are stopped and kept, or take their room again.
    Keep {
        who: usize,
        id: u8,
        keeps: bool,
    },
    /// Its lease runs out, and it knows nothing of that; another one starts.
    Die {
        who: usize,
    },
    /// A transaction arrives after all.
    Arrive,
}

fn any_act() -> impl Strategy<Value = Act> {
    let fate = prop::sample::select(vec![Fate::Answered, Fate::Answered, Fate::Lost, Fate::Late]);
    let port = prop::option::weighted(0.4, 80..82u16);
    let place = (0..3usize, 0..8u8, 1..3i64, 1..4u32, port, any::<bool>())
        .prop_map(|(who, id, memory, count, port, atomic)| Act::Place { who, id, memory, count, port, atomic });
    prop_oneof![
        6 => place,
        10 => (0..5usize, fate).prop_map(|(who, fate)| Act::Write { who, fate }),
        1 => (0..3usize, 0..8u8).prop_map(|(who, id)| Act::Take { who, id }),
        4 => (0..5usize, 1..6usize).prop_map(|(who, count)| Act::Learn { who, count }),
        1 => (0..3usize).prop_map(|who| Act::List { who }),
        3 => (0..3usize, 0..8u8).prop_map(|(who, id)| Act::Release { who, id }),
        5 => (0..3usize, 0..8u8, any::<bool>()).prop_map(|(who, id, keeps)| Act::Keep { who, id, keeps }),
        1 => (0..3usize).prop_map(|who| Act::Die { who }),
        1 => Just(Act::Arrive),
    ]
}

fn request(id: u8, memory: i64, count: u32, port: Option<u16>, atomic: bool) -> Request {
    let ports: Vec<String> = port.into_iter().map(|port| format!("{port}:80")).collect();
    let value = json!({ "id": format!("p-{id}"), "image": "i", "count": count, "atomic": atomic,
        "resources": { "memory": memory }, "ports": ports });
    Request::parse(&serde_json::from_value(value).unwrap()).unwrap()
}

fn inventory() -> Inventory {
    let hosts = (0..HOSTS).map(
        |at| json!({"metadata_kind": "host", "uuid": format!("h{at}"), "name": format!("n{at}"), "memory": MEMORY}),
    );
    let objects: Vec<model::Map> = serde_json::from_value(hosts.collect()).unwrap();
    Inventory::default().succeeding(&model::objects::read(objects).0)
}

/// What is promised fits, and every claim is that of the placement that has it.
fn check(model: &Model) -> Result<(), TestCaseError> {
    let mut memory: BTreeMap<Text, i64> = BTreeMap::new();
    let mut ports = BTreeSet::new();
    for (id, shared) in model.records() {
        let record = shared.stored.record(NOW).unwrap();
        for replica in &record.replicas {
            for held in &replica.members {
                let amounts = held
                    .promise
                    .amounts
                    .iter()
                    .filter(|(pool, _)| &**pool == "memoryReservation" || pool.contains("emory"));
                *memory.entry(replica.host.clone()).or_default() += amounts.map(|(_, amount)| amount).sum::<i64>();
                for bound in &held.promise.bound {
                    prop_assert!(ports.insert((replica.host.clone(), bound.public)), "{} of {}", bound.public, id);
                    let claim = Key::Claim(crate::ledger::etcd::keys::port_claim(&replica.host, bound));
                    prop_assert!(model.keys.contains_key(&claim), "{:?} of {}", claim, id);
                }
            }
        }
    }
    prop_assert!(memory.values().all(|memory| *memory <= MEMORY), "{:?}", memory);
    let claims = model.keys.keys().filter(|key| matches!(key, Key::Claim(claim) if claim.starts_with("ports/")));
    prop_assert_eq!(claims.count(), ports.len());
    Ok(())
}

#[test]
fn who_collides_takes_hosts_of_its_own_and_then_the_first_again() {
    let (mut model, store) = (Model::default(), Arc::new(Store::new(Inventory::default())));
    store.publish(Arc::new(inventory()));
    let mut all: Vec<One> = (0..HOSTS).map(|_| One::new(&mut model, &store)).collect();
    for one in &mut all {
        one.list(&model);
    }
    let chosen = |now| -> BTreeSet<Text> {
        let ask = request(0, 1, 1, None, false);
        let request = Request { dry_run: true, ..ask };
        let placed = |one: &One| one.placer.place_request(&request, "r", now).unwrap().placements[0].host.uuid.clone();
        all.iter().map(placed).collect()
    };
    assert_eq!(chosen(NOW).len(), 1);
    for one in &all {
        one.placer.with_any(NOW, |book| book.split_hosts(NOW));
    }
    assert_eq!(chosen(NOW).len(), HOSTS, "each has one of its own");
    assert_eq!(chosen(NOW + HOST_SPLIT).len(), 1);
    // A scheduler that does not know of the others has none to share with.
    let alone = One::new(&mut Model::default(), &store);
    alone.placer.with_any(NOW, |book| book.split_hosts(NOW));
    assert_eq!(alone.placer.with_any(NOW, |book| book.ties()), Ties::Own { at: 0, of: 1 });
}

/// Whether some unit of `p-1` is being worked on, or is to be, as a scheduler knows it.
fn works(one: &One) -> bool {
    !one.placer.units_at_work("p-1", NOW).is_empty()
}

/// A value by which a scheduler that died had begun `p-1`, sealed for this put.
fn begun(put: Put) -> Vec<u8> {
    let unit =
        json!({ "host": "h0", "host_name": "n0", "stage": "begun", "attempt": "a", "containers": [{ "name": "p-1" }] });
    let value = json!({ "berth": 1, "owner": "s-dead", "id": "p-1", "made": 999_000, "unplaced": 0,
        "asked": { "image": "i", "start": true, "volumes": ["/:/h"] }, "units": [unit] });
    Seal::of_tests().applied("p-1", put, value.to_string().into_bytes())
}

#[test]
fn what_a_dead_scheduler_began_is_gone_on_with_and_an_old_value_of_it_put_again_is_not() {
    let key = || Key::Placement("p-1".into());
    let store = Arc::new(Store::new(Inventory::default()));
    store.publish(Arc::new(inventory()));
    // What is put one after the other, whether it is believed at all, and whether somebody goes on with it.
    let later = |created: i64, version: i64| Put { created, version };
    for (puts, believed, goes_on) in [
        // The second put says that it was begun.
        (vec![Put::FIRST, later(2, 2)], true, true),
        // The first one can be an old one: no engine had been asked by then.
        (vec![Put::FIRST], true, false),
        // One of an earlier life of the key.
        (vec![later(2, 2)], false, false),
        (vec![Put::FIRST, later(1, 2)], false, false),
        // An older one over a newer one.
        (vec![Put::FIRST, later(2, 2), Put::FIRST], false, false),
        (vec![Put::FIRST, later(2, 2), later(2, 3), later(2, 2)], false, false),
    ] {
        let mut model = Model::default();
        let mut one = One::new(&mut model, &store);
        for put in &puts {
            model.revision += 1;
            model.change(key(), Some(begun(*put)));
        }
        one.list(&model);
        assert_eq!(one.placer.placement("p-1", NOW).unwrap().state == "unreadable", !believed, "{puts:?}");
        let mut worked = false;
        for _ in 0..5 {
            one.write(&mut model, Fate::Answered, &BTreeMap::new());
            worked |= works(&one) && !one.placer.works_elsewhere("p-1", NOW);
        }
        assert_eq!(worked, goes_on, "{puts:?}");
        // What is not believed stays for a person to look at.
        assert_eq!(model.keys.contains_key(&key()), goes_on || !believed, "{puts:?}");
    }
}

#[test]
fn what_was_written_unnoticed_and_taken_over_takes_its_room() {
    let store = Arc::new(Store::new(Inventory::default()));
    store.publish(Arc::new(inventory()));
    let mut model = Model::default();
    let (mut one, mut other) = (One::new(&mut model, &store), One::new(&mut model, &store));
    one.list(&model);
    let id = Text::from("p-1");
    one.place(&request(1, MEMORY, 1, None, false));
    one.write(&mut model, Fate::Lost, &BTreeMap::new());
    // It did not hear of its own write, and gave up what it wanted.
    one.promising.clear();
    one.placer.with_any(NOW, |book| book.release(&id));
    other.list(&model);
    other.write(&mut model, Fate::Answered, &BTreeMap::from([(id.clone(), TakeOver::Idle)]));
    one.place(&request(2, MEMORY, 1, None, false));
    for _ in 0..3 {
        one.write(&mut model, Fate::Answered, &BTreeMap::new());
        check(&model).unwrap();
    }
    assert_eq!(model.records().len(), 2, "on two hosts");
}

#[test]
fn what_another_client_writes_over_a_placement_is_replaced_by_its_scheduler() {
    let store = Arc::new(Store::new(Inventory::default()));
    store.publish(Arc::new(inventory()));
    let mut model = Model::default();
    let (mut one, mut other) = (One::new(&mut model, &store), One::new(&mut model, &store));
    one.list(&model);
    one.place(&request(1, 1, 1, None, false));
    let write = |one: &mut One, model: &mut Model| {
        for _ in 0..3 {
            one.write(model, Fate::Answered, &BTreeMap::new());
        }
    };
    write(&mut one, &mut model);
    let before = model.keys[&Key::Placement("p-1".into())].clone();
    for value in [b"{}".to_vec(), before.value.clone().unwrap(), begun(Put::FIRST), begun(before.put)] {
        model.revision += 1;
        model.change(before.key.clone(), Some(value));
        other.list(&model);
        assert_eq!(other.placer.placement("p-1", NOW).unwrap().state, "unreadable");
        one.list(&model);
        assert_eq!(one.placer.placement("p-1", NOW).unwrap().state, "placed");
        write(&mut one, &mut model);
        other.list(&model);
        assert_eq!(other.placer.placement("p-1", NOW).unwrap().state, "placed");
        assert_eq!(model.records().len(), 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn several_schedulers_promise_nothing_twice_and_lose_nothing(acts in prop::collection::vec(any_act(), 1..120)) {
        let store = Arc::new(Store::new(Inventory::default()));
        store.publish(Arc::new(inventory()));
        let mut model = Model::default();
        // The first three live; the others are dead and do not know it.
        let mut all: Vec<One> = (0..3).map(|_| One::new(&mut model, &store)).collect();
        let mut late: Vec<TxnDraft> = Vec::new();
        // Where each placement is that a response named.
        let mut named: BTreeMap<Text, Vec<Text>> = BTreeMap::new();
        let hosts = |shared: EtcdRecord| -> Vec<Text> {
            shared.stored.record(NOW).unwrap().replicas.iter().map(|replica| replica.host.clone()).collect()
        };
        // Another may have promised it first, and given it back: no response names it then.
        let name = |named: &mut BTreeMap<Text, Vec<Text>>, one: &One, id: Text| {
            if let Ok(known) = one.placer.placement(&id, NOW)
                && !one.given_back.contains(&id)
            {
                named.insert(id, known.placements.iter().map(|unit| unit.host.uuid.clone()).collect());
            }
        };
        for act in acts {
            let takes = match &act {
                Act::Take { id, .. } => BTreeMap::from([(Text::from(format!("p-{id}")), TakeOver::Idle)]),
                _ => BTreeMap::new(),
            };
            match act {
                Act::Place { who, id, memory, count, port, atomic } => all[who].place(&request(id, memory, count, port, atomic)),
                Act::Write { who, fate } => {
                    let at = who % all.len();
                    let (done, lost) = all[at].write(&mut model, fate, &takes);
                    late.extend(lost);
                    // What is in etcd at that moment is in the response.
                    for id in done.into_iter().filter(|_| all[at].alive) {
                        name(&mut named, &all[at], id);
                    }
                }
                Act::Take { who, .. } => drop(all[who].write(&mut model, Fate::Answered, &takes)),
                Act::Learn { who, count } => {
                    let at = who % all.len();
                    all[at].learn(&model, count);
                }
                Act::List { who } => all[who].list(&model),
                Act::Release { who, id } => {
                    let id = Text::from(format!("p-{id}"));
                    let own = all[who].placer.with_any(NOW, |book| !book.is_foreign(&id) && !book.is_pending(&id));
                    if own && all[who].placer.release_placement(&id, NOW).is_ok() {
                        named.remove(&id);
                        all[who].promising.remove(&id);
                        for other in all.iter_mut().filter(|other| other.promising.contains_key(&id)) {
                            other.given_back.insert(id.clone());
                        }
                    }
                }
                Act::Keep { who, id, keeps } => all[who].keep(&format!("p-{id}").into(), keeps),
                Act::Die { who } => {
                    model.delete(all[who].key());
                    let new = One::new(&mut model, &store);
                    let mut dead = std::mem::replace(&mut all[who], new);
                    dead.alive = false;
                    all.push(dead);
                }
                Act::Arrive => if let Some(draft) = late.pop() {
                    let is = |key: &Key| model.keys.get(key).map_or(0, |there| there.revision);
                    let appeared =
                        draft.expects.iter().any(|(key, then)| matches!(key, Key::Scheduler(_)) && is(key) != *then);
                    let done = model.transact(&draft);
                    prop_assert!(!(done && appeared), "a lost transaction was done after its scheduler had appeared again");
                },
            }
            check(&model)?;
        }
        // All schedulers finish what they were doing.
        for _ in 0..30 {
            for one in all.iter_mut().take(3) {
                let (done, _) = one.write(&mut model, Fate::Answered, &BTreeMap::new());
                for id in done {
                    name(&mut named, one, id);
                }
                one.list(&model);
            }
            check(&model)?;
        }
        let mut records = model.records();
        for (id, known) in named {
            let record = records.remove(&id);
            prop_assert_eq!(record.map(hosts), Some(known), "{}", id);
        }
        for one in &all[..3] {
            prop_assert!(one.promising.is_empty(), "{:?}", one.promising.keys());
            let placements = one.placer.placements(NOW).unwrap();
            prop_assert_eq!(placements.len(), model.records().len());
        }
        prop_assert!(model.records().values().all(|record| !record.growing));
    }
}
