//! Laws of what is read from etcd: a value affects only its own placement, even one that a scheduler has sealed.

use std::sync::Arc;
use std::time::Duration;

use etcd::{EtcdClient, EtcdOptions};
use model::Text;
use proptest::prelude::*;
use serde_json::{Value, json};
use source::Store;

use super::mirror::KeyChange;
use super::{LAPSE, Ledger};
use crate::ledger::etcd::keys::Key;
use crate::ledger::etcd::seal::{Put, Seal};
use crate::ledger::etcd::sync::EtcdSync;
use crate::ledger::stored::PANICKED;
use crate::place::Placer;
use crate::place::inventory::Inventory;
use crate::place::strategy::{Order, Strategy as Placing};

const NOW: Duration = Duration::from_secs(1000);

/// Values as schedulers write them.
fn written(owner: &str) -> Vec<Value> {
    let record = |asked: Value, unplaced: u32, units: Value| json!({ "berth": 1, "owner": owner, "id": "p", "made": 999_000, "unplaced": unplaced, "asked": asked, "units": units });
    let unit = |host: &str, stage: &str, containers: Value| json!({ "host": host, "host_name": "n", "stage": stage, "containers": containers });
    let port = json!({ "ip": "0.0.0.0", "public": 80, "private": 8080, "protocol": "tcp" });
    let system = json!({ "os": "windows", "os_version": "10.0.17763", "isolation": "process" });
    let pod = json!({ "image": "i", "resources": { "memory": 1 }, "ports": ["80:8080"],
        "sidekicks": [{ "name": "side", "image": "j", "resources": { "milli_cpu": 5 } }] });
    vec![
        record(json!({ "image": "i" }), 0, json!([unit("h0", "begun", json!([{ "name": "p" }]))])),
        record(
            json!({ "image": "i", "count": 3, "resources": { "memory": 1, "storage_mb": 2 } }),
            1,
            json!([
                unit("h0", "started", json!([{ "name": "p-1", "container": "c0", "system": system }])),
                unit("h1", "undoing", json!([{ "name": "p-2", "over": true }])),
            ]),
        ),
        record(
            pod,
            0,
            json!([unit("h1", "reserved", json!([{ "name": "p", "ports": [port] }, { "name": "p-side" }]))]),
        ),
    ]
}

/// What a value is changed to somewhere.
fn any_piece() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        Value::Null,
        json!(true),
        json!(-1),
        json!(0),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(1e300),
        json!(""),
        json!("h1"),
        json!("web"),
        json!("c0"),
        json!("x".repeat(5000)),
        json!([]),
        json!({}),
        json!([{ "name": "web" }, { "name": "web" }]),
        json!({ "image": "i", "count": 9, "sidekicks": [{ "name": "a" }] }),
        json!({ "resources": { "memory": 1_i64 << 50 } }),
    ])
}

/// Changes what stands at the `at`-th place of a value: replaced, taken away, or there twice.
fn change(value: &mut Value, at: &mut usize, how: u8, piece: &Value) {
    if *at == 0 {
        *value = piece.clone();
        *at = usize::MAX;
        return;
    }
    *at = at.saturating_sub(1);
    match value {
        Value::Array(items) => {
            if *at < items.len() && how == 1 {
                items.remove(*at);
                *at = usize::MAX;
            } else if *at < items.len() && how == 2 {
                items.push(items[*at].clone());
                *at = usize::MAX;
            }
            for item in items {
                if *at != usize::MAX {
                    change(item, at, how, piece);
                }
            }
        }
        Value::Object(fields) => {
            if how == 1
                && let Some(name) = fields.keys().nth(*at).cloned()
            {
                fields.remove(&name);
                *at = usize::MAX;
            }
            for field in fields.values_mut() {
                if *at != usize::MAX {
                    change(field, at, how, piece);
                }
            }
        }
        _ => {}
    }
}

fn inventory(containers: &Value) -> Arc<Inventory> {
    let hosts = (0..2).map(
        |at| json!({ "metadata_kind": "host", "uuid": format!("h{at}"), "name": format!("n{at}"), "memory": 100, "local_storage_mb": 9 }),
    );
    let objects = hosts.chain(containers.as_array().into_iter().flatten().cloned()).collect();
    let objects: Vec<model::Map> = serde_json::from_value(objects).unwrap();
    Arc::new(Inventory::default().succeeding(&model::objects::read(objects).0))
}

/// A value that a scheduler of the ledger has put, however it came to write that.
fn key_change(id: &str, revision: i64, value: Option<Vec<u8>>) -> KeyChange {
    let put = Put { created: 1, version: revision };
    let value = value.map(|value| Seal::of_tests().applied(id, put, value));
    KeyChange { key: Key::Placement(id.into()), revision, put, value }
}

/// Learns a value, lives with it, and deletes it; what others have stays as it is.
fn check(value: &Value, mine: bool) -> Result<(), TestCaseError> {
    let store = Arc::new(Store::new(Inventory::default()));
    let client = EtcdClient::new(EtcdOptions::parse("http://192.0.2.1:2379").unwrap()).unwrap();
    let sync = EtcdSync::new(client, "ledger.key".into(), None);
    let me = sync.shared().me().clone();
    let placer =
        Placer::new(store.clone(), Order::Ratio, Placing::Binpack).with_ledger(Ledger::shared(sync.shared().clone()));
    placer.with_any(NOW, |book| book.seal_with(Seal::of_tests()));
    store.publish(inventory(&json!([])));
    let web = json!({ "berth": 1, "owner": "s-other", "id": "web", "made": 999_000, "unplaced": 0,
        "asked": { "image": "i", "resources": { "memory": 7 } },
        "units": [{ "host": "h0", "host_name": "n0", "stage": "reserved", "containers": [{ "name": "web" }] }] });
    let alive =
        KeyChange { key: Key::Scheduler("s-other".into()), revision: 1, put: Put::FIRST, value: Some(Vec::new()) };
    let bytes = |value: &Value| Some(value.to_string().into_bytes());
    let all = vec![alive, key_change("web", 2, bytes(&web)), key_change("p", 3, bytes(value))];
    placer.with_any(NOW, |book| book.learn_all(all, 3, NOW));
    if mine {
        // It is taken over from a scheduler that died.
        let mut own = value.clone();
        if let Some(owner) = own.get_mut("owner") {
            *owner = (*me).into();
        }
        placer.with_any(NOW, |book| book.learn(vec![key_change("p", 4, bytes(&own))], NOW));
    }
    let container = |uuid: &str, name: &str| {
        json!({ "metadata_kind": "container", "uuid": uuid, "name": name, "host_uuid": "h0", "state": "running",
            "memory_reservation": 7, "labels": { "io.berth.placement": name } })
    };
    store.publish(inventory(&json!([container("c0", "p"), container("c1", "p-1"), container("h1", "other")])));
    for at in [NOW, NOW + LAPSE, NOW + LAPSE * 3] {
        let placements = placer.placements(at).unwrap();
        for one in &placements {
            prop_assert!(!one.error.as_deref().unwrap_or_default().contains(PANICKED), "{} {:?}", value, one.error);
        }
        prop_assert!(placements.iter().any(|one| *one.id == *"web" && one.placements.len() == 1), "{}", value);
        placer.hosts(at).unwrap();
        let ids: Vec<Text> = placements.iter().map(|one| one.id.clone()).collect();
        placer.with_any(at, |book| book.draft(&ids, &std::collections::BTreeMap::new(), 1));
    }
    store.publish(inventory(&json!([])));
    placer.with_any(NOW, |book| book.learn(vec![key_change("p", 5, None)], NOW));
    let left: Vec<_> = placer.placements(NOW).unwrap().into_iter().map(|one| one.id.to_string()).collect();
    prop_assert_eq!(left, ["web"]);
    let promised = placer.hosts(NOW).unwrap()[0].pools["memoryReservation"].promised;
    prop_assert_eq!(promised, 7, "{}", value);
    Ok(())
}

#[test]
fn what_schedulers_write_is_read() {
    for value in written("s-dead") {
        for mine in [false, true] {
            check(&value, mine).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_value_in_etcd_harms_another_placement(
        base in 0..3usize,
        changes in prop::collection::vec((1..60usize, 0..3u8, any_piece()), 1..4),
        alive in any::<bool>(),
        mine in any::<bool>(),
    ) {
        let mut value = written(if alive { "s-other" } else { "s-dead" }).swap_remove(base);
        for (at, how, piece) in &changes {
            let mut at = *at;
            change(&mut value, &mut at, *how, piece);
        }
        check(&value, mine)?;
    }
}
