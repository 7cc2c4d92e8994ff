//! The three services over one snapshot, asked through the functions that their sockets call.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use dns::zone::{Settings, snapshot};
use model::Snapshot;
use scheduler::fuzzing::KeptStack;
use scheduler::{Inventory, Order, Placer, Strategy};
use serde_json::{Value, json};
use source::Store;
use tests::question::{Answer, Question};
use tokio::runtime::Runtime;

use crate::world::{RED, World};

/// Room for an answer over TCP.
const ANSWER_MAX: usize = 1 << 16;

/// The placement that red has.
const UNIT: &str = "unit-1";

/// What answers questions.
pub(crate) trait Answering {
    /// The code and the records of the answer, in order; `ELSEWHERE` where an upstream would be asked.
    fn dns(&self, question: &Question, client: &str, tcp: bool) -> Vec<String>;

    /// The status and the body of the response to a request with these header lines.
    fn http(&self, path: &str, client: &str, headers: &[(&str, String)]) -> Option<(u16, String)>;

    /// What the scheduler says of these hosts, of the placement and the stack that red has, and of where a request fits.
    fn scheduler(&self, request: &Value, hosts: &[&str]) -> Option<Value>;

    /// All that a client sees of the cluster, as JSON.
    fn tree(&self, client: &str) -> Option<String>;
}

/// [`Answering::tree`], as it is over HTTP.
pub(crate) fn tree(asked: &dyn Answering, client: &str) -> Option<String> {
    Some(asked.http("/latest", client, &[("Accept", "application/json".to_owned())])?.1)
}

/// The three services.
pub(crate) struct Services<'r> {
    runtime: &'r Runtime,
    dns: dns::fuzzing::Answerer,
    /// Each world asks only one of these two besides, so that there is time for many worlds.
    metadata: Option<metadata::fuzzing::Answerer>,
    scheduler: Option<(Arc<Store<Inventory>>, Placer)>,
    /// The stack of red that a scheduler has.
    stack: Option<KeptStack>,
    /// Where answers of `dns` are written.
    room: RefCell<Vec<u8>>,
}

impl<'r> Services<'r> {
    pub(crate) fn new(snapshot: &Arc<Snapshot>, world: &World, runtime: &'r Runtime) -> Self {
        let options = metadata::Options::default();
        let metadata = || metadata::fuzzing::Answerer::new(&options, world.live, snapshot);
        Self {
            runtime,
            dns: dns::fuzzing::Answerer::new(snapshot::build(snapshot, &Settings::default(), 1)),
            metadata: (!world.places).then(metadata),
            scheduler: world.places.then(|| scheduler(snapshot)),
            stack: world.places.then(|| KeptStack::new(snapshot, &world.units(), &RED)),
            room: RefCell::new(vec![0; ANSWER_MAX]),
        }
    }

    /// Shows another snapshot from now on.
    pub(crate) fn show(&mut self, snapshot: &Arc<Snapshot>) {
        let next = snapshot::advance(self.dns.zone(), snapshot);
        self.dns =
            dns::fuzzing::Answerer::new(next.unwrap_or_else(|| snapshot::build(snapshot, &Settings::default(), 2)));
        if let Some(metadata) = &self.metadata {
            metadata.show(snapshot);
        }
        if let Some((inventories, _)) = &self.scheduler {
            let next = inventories.load_full().succeeding(snapshot);
            inventories.publish(Arc::new(next));
        }
        if let Some(stack) = &self.stack {
            stack.show(snapshot);
        }
    }
}

impl Answering for Services<'_> {
    fn dns(&self, question: &Question, client: &str, tcp: bool) -> Vec<String> {
        let mut room = self.room.borrow_mut();
        let bytes = self.dns.answer(&question.message(), address(client), tcp, &mut room);
        match bytes {
            None => vec!["ELSEWHERE".to_owned()],
            Some(bytes) => {
                let answer = Answer::read(&room[..bytes]).unwrap();
                [answer.rcode()].into_iter().chain(answer.records()).collect()
            }
        }
    }

    fn http(&self, path: &str, client: &str, headers: &[(&str, String)]) -> Option<(u16, String)> {
        let metadata = self.metadata.as_ref()?;
        let host = if headers.iter().any(|(name, _)| *name == "Host") { "" } else { "Host: rancher-metadata\r\n" };
        let lines: Vec<_> = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("GET {path} HTTP/1.1\r\n{host}{}\r\n", lines.concat());
        Some(self.runtime.block_on(metadata.answer(address(client), head.as_bytes())).unwrap())
    }

    fn tree(&self, client: &str) -> Option<String> {
        tree(self, client)
    }

    fn scheduler(&self, request: &Value, hosts: &[&str]) -> Option<Value> {
        let (_, placer) = self.scheduler.as_ref()?;
        let of = |list: &Value| {
            let is_of = |host: &&Value| hosts.contains(&host["name"].as_str().unwrap());
            let mut of: Vec<_> = list.as_array().into_iter().flatten().filter(is_of).cloned().collect();
            // In which order they come depends on all hosts.
            for host in &mut of {
                host["rank"] = Value::Null;
            }
            of.sort_by_key(|host| host["name"].to_string());
            of
        };
        let reports = placer.hosts(Duration::ZERO).map(|reports| of(&json!(reports)));
        let verdicts = placer.explain(&value(request), Duration::ZERO).map(|explanation| of(&json!(explanation.hosts)));
        let unit = placer.placement(UNIT, Duration::ZERO).map(|placement| json!(placement));
        Some(json!([
            reports.map_err(|refusal| refusal.to_string()),
            verdicts.map_err(|refusal| refusal.to_string()),
            unit.map_err(|refusal| refusal.to_string()),
            self.stack.as_ref().map(KeptStack::seen),
        ]))
    }
}

/// A scheduler that has placed something for red.
fn scheduler(snapshot: &Snapshot) -> (Arc<Store<Inventory>>, Placer) {
    let inventories = Arc::new(Store::new(Inventory::default()));
    inventories.publish(Arc::new(Inventory::new(snapshot)));
    let placer = Placer::new(inventories.clone(), Order::Ratio, Strategy::Spread);
    let request =
        json!({"id": UNIT, "name": UNIT, "requested_host": "b", "resources": {"memory": 5}, "ports": ["81:81"]});
    let _ = placer.place(&value(&request), UNIT, Duration::ZERO);
    (inventories, placer)
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn value(json: &Value) -> model::Value {
    serde_json::from_value(json.clone()).unwrap()
}
