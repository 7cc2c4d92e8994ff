//! What a placement costs, in this process: no sockets, the engine of the scheduler alone.
//!
//! Hosts have 20 containers each, and what is asked for has a rule about host labels, a port, memory, processor and a
//! service whose containers are kept apart. All hosts are scored. Processor time is the thread's own.

use std::sync::Arc;
use std::time::Duration;

use model::{Entity, Map, Snapshot, Text, Value};
use scheduler::{Inventory, Order, Placer, Request, Strategy};
use serde_json::json;
use source::Store;

use crate::Failure;
use crate::paired::Spread;
use crate::report::{Goal, Row};
use crate::scenario::Scene;

/// Containers on each host.
const CONTAINERS: usize = 20;

/// Numbers of hosts, and how many placements per second of one core there have to be.
const SIZES: [(usize, f64); 4] = [(3, 200_000.0), (100, 100_000.0), (1000, 30_000.0), (5000, 10_000.0)];

/// Replicas of one request.
const REPLICAS: usize = 1000;

/// Containers when one of them changes.
const CHANGING: usize = 100_000;

/// Changes between two looks at the clock, which takes longer than one of them.
const CHANGES: usize = 200;

/// Placements between two looks at the clock; as many are then given back, which is not counted.
const BATCH: usize = 200;

pub(crate) fn run(scene: &mut Scene<'_>) -> Result<(), Failure> {
    let options = scene.options;
    let rounds = if options.quick { 5 } else { 21 };
    let mut add = |title: &str, unit: &str, rows: Vec<Row>| scene.tell(unit, title, "", rows);
    if options.wants("placements") {
        let rows = SIZES.map(|(hosts, goal)| placements(hosts, goal, rounds));
        add("placements: labels, port, memory, processor, anti-affinity, all hosts scored", "per CPU s", rows.into());
    }
    let large = SIZES[SIZES.len() - 1].0;
    if options.wants("replicas") {
        let row = replicas(large, rounds);
        add(&format!("replicas: {REPLICAS} at once on {large} hosts"), "CPU ms", vec![row]);
    }
    if options.wants("explain") {
        add(&format!("explain: what fits on none of {large} hosts"), "CPU ms", vec![explanations(large, rounds)]);
    }
    if options.wants("change") {
        let title = format!("change: one of {CHANGING} containers on {large} hosts");
        add(&title, "CPU µs", vec![changes(large, rounds)?]);
    }
    Ok(())
}

/// Processor time of this process, which has one thread.
fn cpu() -> Duration {
    platform::usage::Usage::now().cpu.unwrap_or_default()
}

fn timed<T>(act: impl FnOnce() -> T) -> (Duration, T) {
    let before = cpu();
    let done = act();
    (cpu().saturating_sub(before), done)
}

fn object(value: serde_json::Value) -> Map {
    serde_json::from_value(value).unwrap_or_default()
}

/// Hosts with containers, the way a metadata service describes them.
fn snapshot(hosts: usize, containers: usize) -> Snapshot {
    let host = |at: usize| {
        object(json!({
            "metadata_kind": "host", "uuid": format!("host-{at:05}"), "name": format!("host-{at}"), "state": "active",
            "memory": 64_i64 << 30, "milli_cpu": 32_000, "local_storage_mb": 1_000_000,
            "labels": { "zone": format!("zone-{}", at % 3), "disk": if at.is_multiple_of(4) { "hdd" } else { "ssd" }, "rack": format!("r{}", at / 40) },
        }))
    };
    let container = |at: usize| {
        let (service, on) = (at % 400, at % hosts);
        object(json!({
            "metadata_kind": "container", "uuid": format!("container-{at:06}"), "name": format!("container-{at}"),
            "host_uuid": format!("host-{on:05}"), "state": "running", "primary_ip": format!("10.42.{}.{}", at / 250 % 250, at % 250 + 1),
            "memory_reservation": 256 << 20, "milli_cpu_reservation": 100, "ports": [format!("0.0.0.0:{}:80/tcp", 1000 + at / hosts)],
            "labels": { "io.rancher.stack_service.name": format!("stack/service-{service}"), "io.rancher.stack.name": "stack",
                        "app": format!("app-{service}"), "tier": "web", "io.rancher.container.ip": "10.42.0.1/16" },
        }))
    };
    model::objects::read((0..hosts).map(host).chain((0..containers).map(container))).0
}

fn placer(snapshot: &Snapshot) -> Placer {
    let store = Arc::new(Store::new(Inventory::default()));
    store.publish(Arc::new(Inventory::new(snapshot)));
    Placer::new(store, Order::Ratio, Strategy::Spread)
}

fn request(more: serde_json::Value) -> Request {
    let mut fields = json!({
        "image": "stack/web:1", "stack": "shop", "service": "web", "resources": { "memory": "64MiB", "milli_cpu": 10 },
        "labels": { "app": "shop", "io.rancher.scheduler.affinity:host_label": "disk=ssd",
                    "io.rancher.scheduler.affinity:container_label_soft_ne": "app=shop" },
    });
    if let (Some(fields), serde_json::Value::Object(more)) = (fields.as_object_mut(), more) {
        fields.extend(more);
    }
    let value: Value = serde_json::from_value(fields).unwrap_or(Value::Null);
    // The fields above are fine; others come from here too.
    Request::parse(&value).unwrap_or_else(|error| panic!("{error}"))
}

fn placements(hosts: usize, goal: f64, rounds: usize) -> Row {
    let placer = placer(&snapshot(hosts, hosts * CONTAINERS));
    let request = request(json!({ "ports": ["80"] }));
    let batch = BATCH.min(hosts * 20);
    let mut rates = Vec::new();
    for round in 0..=rounds {
        let ids: Vec<Text> = (0..batch).map(|at| format!("web-{round}-{at}").into()).collect();
        let place = || {
            ids.iter().filter(|id| {
                placer.place_request(&request, id, Duration::ZERO).is_ok_and(|answer| answer.unplaced == 0)
            })
        };
        let (spent, count) = timed(|| place().count());
        for id in &ids {
            let _ = placer.release_placement(id, Duration::ZERO);
        }
        // The first round warms up.
        if round > 0 {
            rates.push(to_f64(count) / spent.as_secs_f64());
        }
    }
    let rates = Spread::of(rates);
    Row::figure(format!("berth, {hosts} hosts, {} containers", hosts * CONTAINERS), rates.median)
        .with_goal(Goal::AtLeast(goal))
        .with_note(format!("{:.0}-{:.0}", rates.min, rates.max))
}

fn replicas(hosts: usize, rounds: usize) -> Row {
    let placer = placer(&snapshot(hosts, hosts * CONTAINERS));
    let request = request(json!({ "ports": ["80"], "count": REPLICAS }));
    let mut times = Vec::new();
    let mut missing = 0;
    for round in 0..=rounds {
        let id: Text = format!("web-{round}").into();
        let (spent, answer) = timed(|| placer.place_request(&request, &id, Duration::ZERO));
        missing += answer.map_or(1, |answer| answer.unplaced);
        let _ = placer.release_placement(&id, Duration::ZERO);
        if round > 0 {
            times.push(spent.as_secs_f64() * 1e3);
        }
    }
    row(&format!("berth, {REPLICAS} replicas"), times, 50.0, missing)
}

fn explanations(hosts: usize, rounds: usize) -> Row {
    let placer = placer(&snapshot(hosts, hosts * CONTAINERS));
    let value = json!({
        "image": "web", "resources": { "memory": "128GiB", "milli_cpu": 100_000 }, "ports": ["1000:80"],
        "constraints": ["gpu = yes", "zone in (zone-1, zone-2)"],
    });
    let value: Value = serde_json::from_value(value).unwrap_or(Value::Null);
    let mut times = Vec::new();
    let mut fitting = 0;
    for round in 0..=rounds {
        let (spent, answer) = timed(|| placer.explain(&value, Duration::ZERO));
        fitting += answer.map_or(1, |answer| u32::from(answer.fits > 0));
        if round > 0 {
            times.push(spent.as_secs_f64() * 1e3);
        }
    }
    row("berth, a request with 5 reasons against it", times, 20.0, fitting)
}

fn changes(hosts: usize, rounds: usize) -> Result<Row, Failure> {
    let mut snapshot = snapshot(hosts, CHANGING);
    let mut inventory = Arc::new(Inventory::new(&snapshot));
    let mut times = Vec::new();
    for round in 0..=rounds {
        let mut later = Vec::new();
        for step in 0..CHANGES {
            let uuid = format!("container-{:06}", (round * CHANGES + step) * 7919 % CHANGING);
            let before = snapshot.containers.get(&*uuid).ok_or("a container")?.clone();
            let state = if round % 2 == 0 { "stopped" } else { "starting" };
            let fields = before.fields().with([("state".into(), state.into())]);
            let changed = model::Container::new(fields, before.links().clone()).ok_or("a container")?;
            snapshot.containers.insert(Arc::new(changed));
            later.push(snapshot.clone());
        }
        // What is freed of the one before belongs to it.
        let (spent, ()) = timed(|| later.iter().for_each(|next| inventory = Arc::new(inventory.succeeding(next))));
        if round > 0 {
            times.push(spent.as_secs_f64() * 1e6 / to_f64(CHANGES));
        }
    }
    Ok(row("berth, one container's state", times, 20.0, 0))
}

fn row(subject: &str, times: Vec<f64>, most: f64, wrong: u32) -> Row {
    let times = Spread::of(times);
    let mut note = format!("{:.1}-{:.1}", times.min, times.max);
    if wrong > 0 {
        note = format!("{wrong} answers were wrong; {note}");
    }
    Row::figure(subject, times.median).with_goal(Goal::AtMost(most)).with_note(note)
}

fn to_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
