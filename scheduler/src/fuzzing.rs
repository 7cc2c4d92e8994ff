//! What the fuzzers of the ledger's records and of files of stacks call (`fuzz/src/ledger.rs`, `fuzz/src/template.rs`), and the test
//! of noninterference; no part of the service.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::{Map, Snapshot, Text, Value, objects};
use source::Store;
use stacks::{Service, unit_id};

use crate::benching::{running_unit, steady_stack};
use crate::cli::compose::{self, Reading};
use crate::clock::Clock;
use crate::ledger::etcd::keys::{Key, Keys};
use crate::ledger::etcd::seal::{LedgerKey, Put, Seal};
use crate::ledger::mirror::KeyChange;
use crate::ledger::stack::stack_id;
use crate::ledger::{LAPSE, Ledger};
use crate::place::Placer;
use crate::place::inventory::Inventory;
use crate::place::strategy::{Order, Strategy};
use crate::stack::unit::UnitRequest;
use crate::stack::wish::Wish;
use crate::start::endpoint::Endpoints;
use crate::start::{EngineAccess, Starter};
use crate::subject::Subject;

/// Where the engine of a host would be asked.
const ENGINE: &str = "tcp://127.0.0.1:1";

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

/// A container that is a unit of the stack that is tried.
#[derive(Clone, Debug)]
pub struct KeptUnit {
    /// Its host, by name.
    pub host: String,
    /// Its name, and its id in the engine.
    pub container: (String, String),
}

/// A scheduler that has one stack, and asks no engine.
#[derive(Debug)]
pub struct KeptStack {
    starter: Arc<Starter>,
    inventories: Arc<Store<Inventory>>,
    body: Value,
}

impl KeptStack {
    /// One whose units run, and that may have units on these hosts alone.
    pub fn new(snapshot: &Snapshot, units: &[KeptUnit], hosts: &[&str]) -> Self {
        let inventory = Arc::new(Inventory::new(snapshot));
        let service = |count: usize| {
            serde_json::json!({ "service": "web", "image": "i", "count": count, "update": { "monitor": 0 },
                "constraints": [format!("node.hostname =~ ^({})$", hosts.join("|"))] })
        };
        let name = Text::from("kept");
        let services = serde_json::from_value(service(units.len())).ok().and_then(|map| Service::parse(&map).ok());
        let services: Vec<Service> = services.into_iter().collect();
        let mut records = vec![(stack_id(&name), steady_stack(&name, &services, NOW))];
        for (at, unit) in units.iter().enumerate() {
            let Some(host) = inventory.hosts().find(&unit.host) else { continue };
            let facts = inventory.hosts().facts(host);
            let index = (at + 1).to_string();
            for service in &services {
                let id: Text = unit_id(&name, service, &index);
                let asked = UnitRequest { stack: &name, service, index: &index, id: &id, host: None };
                let place = (facts.uuid.clone(), facts.name.clone());
                let (container, engine) = (unit.container.0.as_str().into(), &unit.container.1);
                let Some(record) = running_unit(&asked, place, (&container, engine), NOW) else { continue };
                records.push((id, record));
            }
        }
        let ledger = Ledger::new();
        ledger.with(Arc::default, NOW, |book| records.into_iter().for_each(|(id, record)| book.enter(id, record)));
        let inventories = Arc::new(Store::new(Inventory::default()));
        inventories.publish(inventory);
        let mut placer = Placer::new(inventories.clone(), Order::Ratio, Strategy::Spread).with_ledger(ledger);
        // None of them is asked.
        let engines: Vec<(Text, Value)> = hosts.iter().map(|host| ((*host).into(), Value::text(ENGINE))).collect();
        if let Ok(endpoints) = Endpoints::new(&Map::new(engines).into(), false) {
            placer = placer.with_endpoints(endpoints);
        }
        let starter = Starter::new(Arc::new(placer), Clock::start(), EngineAccess::default());
        let body = serde_json::json!({ "services": [service(units.len() + 1)] });
        Self { starter, inventories, body: serde_json::from_value(body).unwrap_or_default() }
    }

    /// Shows another snapshot from now on.
    pub fn show(&self, snapshot: &Snapshot) {
        let next = self.inventories.load_full().succeeding(snapshot);
        self.inventories.publish(Arc::new(next));
    }

    /// How it is, and where one more unit would go, as JSON.
    pub fn seen(&self) -> String {
        let name = Text::from("kept");
        let view = self.starter.view_stack(&name).map_err(|refusal| refusal.to_string());
        let wish = Wish::parse(&name, &self.body).map_err(|wrong| wrong.to_string());
        let preview = wish.and_then(|wish| {
            let preview = self.starter.preview_stack(&name, &wish, &Subject::own());
            let preview = preview.map_err(|refusal| refusal.to_string())?;
            // Why there is no place counts all hosts.
            let units = preview.services.iter().flat_map(|service| &service.units);
            Ok((preview.text, units.map(|unit| (unit.index.clone(), unit.to.clone())).collect::<Vec<_>>()))
        });
        serde_json::json!([view, preview]).to_string()
    }
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
        is_stack_given: false,
        variable: &variable,
        for_stack: true,
        rancher: rancher.as_ref(),
        file: &|name| Ok(format!("A={name}")),
        content: &|name| Ok(name.as_bytes().to_vec()),
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
