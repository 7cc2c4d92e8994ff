//! What the fuzzers of the ledger's records and of files of stacks call (`fuzz/src/ledger.rs`, `fuzz/src/template.rs`); no part
//! of the service.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::{Map, Text, Value, objects};
use source::Store;

use crate::cli::compose::{self, Reading};
use crate::ledger::LAPSE;
use crate::ledger::etcd::keys::{Key, Keys};
use crate::ledger::etcd::seal::{LedgerKey, Put, Seal};
use crate::ledger::mirror::KeyChange;
use crate::place::Placer;
use crate::place::inventory::Inventory;
use crate::place::strategy::{Order, Strategy};

const NOW: Duration = Duration::from_secs(1000);

/// The hosts that records may name, and a container that shows up.
const CLUSTER: &str = r#"[{"metadata_kind": "host", "uuid": "h0", "name": "n0", "memory": 100},
    {"metadata_kind": "host", "uuid": "h1", "name": "n1", "memory": 100},
    {"metadata_kind": "container", "uuid": "c0", "name": "p", "host_uuid": "h0", "state": "running",
     "memory_reservation": 7, "labels": {"io.berth.placement": "p"}}]"#;

/// A placement of another scheduler, which has 7 bytes of memory of the first host.
const WEB: &str = r#"{"berth": 1, "owner": "s-other", "id": "web", "made": 999000, "unplaced": 0,
    "asked": {"image": "i", "resources": {"memory": 7}},
    "units": [{"host": "h0", "host_name": "n0", "stage": "reserved", "containers": [{"name": "web"}]}]}"#;

/// What a ledger says after it has learned a value.
#[derive(Debug)]
pub struct Learned {
    /// Its placements, with why they cannot be read.
    pub placements: Vec<(Text, Option<String>)>,
    /// The ids of those that are left when the value is deleted.
    pub left: Vec<Text>,
    /// What is promised of the first host's memory then.
    pub promised: i64,
}

/// Lets a ledger with the placement `web` learn this value of the placement `p` from etcd, which a scheduler has sealed or not,
/// lives with it, and deletes it.
pub fn learned(value: &[u8], is_sealed: bool) -> Learned {
    let store = Arc::new(Store::new(Inventory::default()));
    let placer = Placer::new(store.clone(), Order::Ratio, Strategy::Binpack);
    let seal = || LedgerKey::new([7; 32]).seal(&Keys::new(etcd::PREFIX));
    let applied = |id: &str, put: Put, value: &[u8]| Seal::applied(&seal(), id, put, value.to_vec());
    let change = |id: &str, revision: i64, value: Option<Vec<u8>>| {
        let put = Put { created: 1, version: revision };
        KeyChange { key: Key::Placement(id.into()), revision, put, value }
    };
    let put = |revision| Put { created: 1, version: revision };
    let other = Key::Scheduler("s-other".into());
    let alive = KeyChange { key: other, revision: 1, put: Put::FIRST, value: Some(Vec::new()) };
    let web = change("web", 2, Some(applied("web", put(2), WEB.as_bytes())));
    let p = change("p", 3, Some(if is_sealed { applied("p", put(3), value) } else { value.to_vec() }));
    placer.with_any(NOW, |book| {
        book.mirror_etcd("s-own".into());
        book.seal_with(seal());
        book.learn_all(vec![alive, web, p], 3, NOW);
    });
    let cluster: Vec<Map> = serde_json::from_str(CLUSTER).unwrap_or_default();
    store.publish(Arc::new(Inventory::default().succeeding(&objects::read(cluster).0)));
    let ids = |at| placer.placements(at).map_or_else(|_| Vec::new(), |all| all.into_iter().map(|one| one.id).collect());
    let all = placer.placements(NOW).unwrap_or_default();
    for at in [NOW, NOW + LAPSE, NOW + LAPSE * 3] {
        let ids: Vec<Text> = ids(at);
        placer.with_any(at, |book| book.draft(&ids, &BTreeMap::new(), 1));
    }
    placer.with_any(NOW, |book| book.learn(vec![change("p", 4, None)], NOW));
    let hosts = placer.hosts(NOW).unwrap_or_default();
    let promised = hosts.first().and_then(|host| host.pools.get("memoryReservation")).map_or(0, |pool| pool.promised);
    Learned { placements: all.into_iter().map(|one| (one.id, one.error)).collect(), left: ids(NOW), promised }
}

/// Reads a compose file and the file of the predecessor beside it, as `up` does: the services, or what is wrong.
///
/// # Errors
///
/// Fails as the command does.
pub fn stack_file(compose: &str, rancher: Option<&str>) -> Result<Vec<Value>, String> {
    let parsed = |text: &str| {
        let parsed = source::format::parse(text).map_err(|error| error.to_string())?;
        Ok::<_, String>(parsed.value(model::scalar::core))
    };
    let rancher = rancher.map(parsed).transpose()?;
    let documents = compose::divide(compose).into_iter().map(parsed).collect::<Result<Vec<_>, _>>()?;
    let variable = |name: &str| (!name.len().is_multiple_of(3)).then(|| name.to_lowercase());
    let reading = Reading {
        stack: "shop",
        variable: &variable,
        unset_is_empty: true,
        for_stack: true,
        rancher: rancher.as_ref(),
        file: &|name| Ok(format!("A={name}")),
        profiles: &[],
    };
    let mut warnings = Vec::new();
    let services = compose::requests(&documents, &reading, &mut warnings).map_err(|error| error.to_string())?;
    for text in [compose, compose.lines().next().unwrap_or_default()] {
        let Ok(source::format::Parsed::Yaml(node)) = source::format::parse(text) else { continue };
        for warning in &warnings {
            compose::place::line_of(text, &node, &warning.field);
        }
    }
    Ok(services)
}
