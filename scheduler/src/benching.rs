//! What `bench stacks` calls: a scheduler that keeps many stacks on many hosts, in this process and without engines; no part of the
//! service.

use std::sync::Arc;
use std::time::Duration;

use model::{Entity, Map, Snapshot, Text, Value, objects};
use serde_json::json;
use source::{Readiness, Store};
use stacks::{Rollout, Service, Stack, Stage, unit_id};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::ledger::Ledger;
use crate::ledger::record::{Record, Replica, Stage as UnitStage};
use crate::ledger::stack::{StackRecord, stack_id};
use crate::place::Placer;
use crate::place::inventory::Inventory;
use crate::place::replica::replica_of;
use crate::place::strategy::{Order, Strategy};
use crate::stack::store::changed;
use crate::stack::unit::UnitRequest;
use crate::stack::wish::Wish;
use crate::start::{EngineAccess, Starter};
use crate::subject::Subject;

/// The image of all units.
const IMAGE: &str = "stack/web:1";

/// Services of each stack.
const SERVICES: usize = 4;

/// How many hosts there are, how many units on each, and in how many stacks these are.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Hosts.
    pub hosts: usize,
    /// Units on each.
    pub units: usize,
    /// Stacks.
    pub stacks: usize,
}

/// A scheduler whose stacks all are as they should be.
#[derive(Debug)]
pub struct Kept {
    starter: Arc<Starter>,
    inventories: Arc<Store<Inventory>>,
    snapshot: Snapshot,
    inventory: Arc<Inventory>,
    size: Size,
}

impl Kept {
    /// One of this size.
    pub fn of(size: Size) -> Self {
        let clock = Clock::start();
        let (ledger, snapshot) = filled(size, clock.now());
        let inventory = Arc::new(Inventory::new(&snapshot));
        let inventories = Arc::new(Store::new(Inventory::default()));
        inventories.publish(inventory.clone());
        let placer = Placer::new(inventories.clone(), Order::default(), Strategy::default()).with_ledger(ledger);
        let starter = Starter::new(Arc::new(placer), clock, EngineAccess::default());
        Self { starter, inventories, snapshot, inventory, size }
    }

    /// Plans a stack with this image in place of its own; returns how many units would get a place, and whether nothing
    /// would change.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be planned.
    pub fn plan(&self, stack: usize, image: &str) -> Result<(usize, bool), String> {
        let name = name_of(stack);
        let services: Vec<_> = (0..SERVICES).map(|at| self.size.service(stack, at, image)).collect();
        let body: Value = serde_json::from_value(json!({ "services": services })).map_err(|error| error.to_string())?;
        let wish = Wish::parse(&name, &body).map_err(|wrong| wrong.to_string())?;
        let preview = self.starter.preview_stack(&name, &wish, &Subject::own()).map_err(|why| why.to_string())?;
        let units = preview.services.iter().flat_map(|service| &service.units);
        Ok((units.filter(|unit| unit.to.is_some()).count(), preview.is_empty))
    }

    /// Looks at all stacks once, as the keeper does; returns how many steps there would be.
    pub fn look_at_all(&self) -> usize {
        let steps =
            |stack| self.starter.view_stack(&name_of(stack)).map_or(1, |view| usize::from(view.state != "done"));
        (0..self.size.stacks).map(steps).sum()
    }

    /// Keeps all stacks: has all of them looked at within `settle`, calls `begin`, and goes on for `time`, while the cluster shows
    /// another state of this many containers in each second, one after the other.
    pub async fn keep(&mut self, settle: Duration, begin: impl FnOnce(), (time, changes): (Duration, u32)) {
        let stop = CancellationToken::new();
        let keeping = tokio::spawn(self.starter.clone().keep_stacks(Arc::new(Readiness::default()), stop.clone()));
        tokio::time::sleep(settle).await;
        begin();
        let pause = Duration::from_secs(1).checked_div(changes).unwrap_or(time);
        let started = tokio::time::Instant::now();
        let mut at = 0;
        while started.elapsed() + pause <= time {
            tokio::time::sleep(pause).await;
            if changes > 0 {
                self.change(at);
                at += 1;
            }
        }
        tokio::time::sleep(time.saturating_sub(started.elapsed())).await;
        stop.cancel();
        let _ = keeping.await;
    }

    fn change(&mut self, at: usize) {
        let uuid = container_of(at * 7919 % (self.size.hosts * self.size.units));
        let Some(before) = self.snapshot.containers.get(&*uuid).cloned() else { return };
        let fields = before.fields().with([("turn".into(), Value::text(at.to_string()))]);
        if let Some(changed) = model::Container::new(fields, before.links().clone()) {
            self.snapshot.containers.insert(Arc::new(changed));
            self.inventory = Arc::new(self.inventory.succeeding(&self.snapshot));
            self.inventories.publish(self.inventory.clone());
        }
    }
}

impl Size {
    /// Units of each service.
    fn scale(self) -> usize {
        self.hosts * self.units / self.stacks / SERVICES
    }

    fn service(self, stack: usize, at: usize, image: &str) -> serde_json::Value {
        json!({
            "service": format!("service-{at}"), "stack": *name_of(stack), "image": image, "count": self.scale(),
            "resources": { "memory": "64MiB", "milli_cpu": 10 }, "environment": { "A": "1" },
            "labels": { "app": format!("app-{stack}"), "io.rancher.scheduler.affinity:host_label": "disk=ssd" },
        })
    }
}

fn name_of(stack: usize) -> Text {
    format!("stack-{stack:03}").into()
}

fn container_of(unit: usize) -> String {
    format!("container-{unit:06}")
}

fn object(value: serde_json::Value) -> Map {
    serde_json::from_value(value).unwrap_or_default()
}

/// The record of a stack that is as it is wanted.
pub(crate) fn steady_stack(name: &Text, services: &[Service], now: Duration) -> Record {
    let steady = |service: &Service| Rollout { stage: Stage::Steady, ..Rollout::new(service.clone()) };
    let record = changed(None, (name, services.to_vec()), (false, false), &Subject::own(), now);
    let stack = Stack { services: services.iter().map(steady).collect(), ..record.stack };
    Record::of_stack(StackRecord { stack, ..record }, now)
}

/// The record of a unit that runs on a host (uuid and name), in a container with this name and id of its engine.
pub(crate) fn running_unit(
    unit: &UnitRequest<'_>,
    host: (Text, Text),
    (name, engine): (&Text, &str),
    now: Duration,
) -> Option<Record> {
    let request = unit.request(&Subject::own()).ok()?;
    let replica = replica_of(&request, host, std::slice::from_ref(name), &[]);
    let mut replica = Replica { stage: UnitStage::Started, ..replica };
    replica.members[0].container = Some(engine.into());
    Some(Record {
        fingerprint: request.fingerprint,
        made: now,
        replicas: vec![replica],
        unplaced: 0,
        subject: Subject::own(),
        asked: request.asked,
        unit: request.unit,
        stack: None,
        evacuates: None,
    })
}

/// A ledger in which all units run, and the cluster that shows them.
fn filled(size: Size, now: Duration) -> (Ledger, Snapshot) {
    let host = |at: usize| {
        object(json!({
            "metadata_kind": "host", "uuid": format!("host-{at:05}"), "name": format!("host-{at}"), "state": "active",
            "memory": 64_i64 << 30, "milli_cpu": 32_000, "labels": { "disk": "ssd", "rack": format!("r{}", at / 40),
                "io.berth.docker.endpoint": format!("tcp://host-{at}:2376") },
        }))
    };
    let mut records = Vec::new();
    let mut containers = Vec::new();
    for stack in 0..size.stacks {
        let name = name_of(stack);
        let services: Vec<Service> =
            (0..SERVICES).filter_map(|at| Service::parse(&object(size.service(stack, at, IMAGE))).ok()).collect();
        records.push((stack_id(&name), steady_stack(&name, &services, now)));
        for service in &services {
            for index in 1..=size.scale() {
                let number = containers.len();
                let index: Text = index.to_string().into();
                let id = unit_id(&name, service, &index);
                let unit = UnitRequest { stack: &name, service, index: &index, id: &id, host: None };
                let at = number % size.hosts;
                let engine = format!("{number:064x}");
                let host = (format!("host-{at:05}").into(), format!("host-{at}").into());
                let Some(record) = running_unit(&unit, host, (&id, &engine), now) else { continue };
                containers.push(object(json!({
                    "metadata_kind": "container", "uuid": container_of(number), "name": *id, "external_id": engine,
                    "host_uuid": format!("host-{at:05}"), "state": "running", "memory_reservation": 64 << 20,
                    "milli_cpu_reservation": 10, "primary_ip": format!("10.42.{}.{}", number / 250 % 250, number % 250 + 1),
                    "labels": { "io.berth.placement": *id, "io.berth.stack": *name, "app": "app",
                                "io.rancher.stack.name": *name, "io.rancher.container.ip": "10.42.0.1/16" },
                })));
                records.push((id, record));
            }
        }
    }
    let ledger = Ledger::new();
    ledger.with(Arc::default, now, |book| records.into_iter().for_each(|(id, record)| book.enter(id, record)));
    (ledger, objects::read((0..size.hosts).map(host).chain(containers)).0)
}
