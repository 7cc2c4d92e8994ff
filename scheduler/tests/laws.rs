//! Laws of placement, tried on random clusters and random histories.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::Text;
use proptest::prelude::*;
use scheduler::{Inventory, LAPSE, Need, Order, Placer, Promised, Request, Room};
use serde_json::{Value, json};
use source::Store;

fn value(json: &Value) -> model::Value {
    serde_json::from_value(json.clone()).unwrap()
}

fn inventory(objects: &[Value], before: &Inventory) -> Inventory {
    let objects: Vec<model::Map> = serde_json::from_value(objects.to_vec().into()).unwrap();
    before.succeeding(&model::objects::read(objects).0)
}

fn any_host() -> impl Strategy<Value = Value> {
    let zone = prop::sample::select(vec!["a", "b", ""]);
    let ips = prop::sample::select(vec!["", "192.0.2.1", "192.0.2.1,192.0.2.2"]);
    let demand = prop::sample::select(vec!["", "", "", "app=web"]);
    let taints = prop::sample::select(vec!["", "", "gpu=yes", "old:PreferNoSchedule"]);
    let build = prop::sample::select(vec!["", "", "17763", "20348", "26100"]);
    let state = prop::sample::select(vec!["active", "active", "active", "inactive"]);
    (zone, ips, demand, taints, build, state, prop::option::weighted(0.9, 0..12i64), any::<bool>()).prop_map(
        |(zone, ips, demand, taints, build, state, memory, hyperv)| {
            let labels = [
                ("zone", zone),
                ("io.rancher.scheduler.ips", ips),
                ("io.rancher.scheduler.require_any", demand),
                ("io.berth.taints", taints),
                ("io.rancher.host.windows_build", build),
                ("io.rancher.host.hyperv", if hyperv { "true" } else { "" }),
            ];
            let labels: BTreeMap<_, _> = labels.into_iter().filter(|(_, value)| !value.is_empty()).collect();
            json!({"metadata_kind": "host", "state": state, "memory": memory, "agent_ip": "198.51.100.1", "labels": labels})
        },
    )
}

fn any_container() -> impl Strategy<Value = Value> {
    let state = prop::sample::select(vec!["running", "running", "stopped", "removed"]);
    let address = prop::sample::select(vec!["", "192.0.2.1:", "0.0.0.0:"]);
    let app = prop::sample::select(vec!["web", "db", "WEB"]);
    (0..4u8, state, 0..4i64, address, 80..83u16, app).prop_map(|(host, state, memory, address, port, app)| {
        json!({"metadata_kind": "container", "host_uuid": format!("h{host}"), "state": state, "memory_reservation": memory,
               "ports": [format!("{address}{port}:80/tcp")],
               "labels": {"app": app, "io.rancher.stack_service.name": format!("s/{app}"), "io.rancher.container.ip": app}})
    })
}

fn any_cluster() -> impl Strategy<Value = Vec<Value>> {
    (prop::collection::vec(any_host(), 0..5), prop::collection::vec(any_container(), 0..6)).prop_map(
        |(hosts, containers)| {
            let named = |letter: char, list: Vec<Value>| {
                list.into_iter().enumerate().map(move |(at, mut object)| {
                    object["uuid"] = format!("{letter}{at}").into();
                    object["name"] = format!("{letter}{at}").into();
                    object
                })
            };
            named('h', hosts).chain(named('c', containers)).collect()
        },
    )
}

fn any_request() -> impl Strategy<Value = Value> {
    let rules = prop::sample::select(vec![
        json!({}),
        json!({"io.rancher.scheduler.affinity:host_label": "zone=a"}),
        json!({"io.rancher.scheduler.affinity:host_label_soft": "zone=b"}),
        json!({"io.rancher.scheduler.affinity:container_label": "app=web"}),
        json!({"io.rancher.scheduler.affinity:container_label_ne": "app=web"}),
        json!({"io.rancher.scheduler.affinity:container_label": "io.rancher.container.ip=web"}),
        json!({"io.rancher.scheduler.affinity:container": "c0"}),
        json!({"io.rancher.scheduler.affinity:container_ne": "C1", "app": "web"}),
        json!({"io.rancher.scheduler.affinity:host_label": "zone"}),
        json!({"app": "Web"}),
        json!({"io.rancher.scheduler.global": "true"}),
    ]);
    let constraints = prop::sample::select(vec![
        json!([]),
        json!([]),
        json!([]),
        json!(["zone in (a, b)"]),
        json!(["!zone"]),
        json!(["zone != a", {"key": "zone", "operator": "exists", "weight": 10}]),
        json!(["node.hostname =~ ^h[01]$"]),
        json!(["node.platform.os = windows"]),
        json!(["io.rancher.host.windows_build >= 20000"]),
    ]);
    let ports = prop::sample::select(vec![
        json!([]),
        json!([]),
        json!([]),
        json!(["80:80"]),
        json!(["81:80", "82:81/udp"]),
        json!(["192.0.2.1:80:80"]),
        json!(["192.0.2.2:80:80", "81:81"]),
        json!(["0.0.0.0:80:80"]),
        json!(["198.51.100.1:80:80"]),
        json!(["0:80"]),
    ]);
    let side = prop::sample::select(vec![
        json!([]),
        json!([{"name": "side", "ports": ["83:80", "127.0.0.1:82:82"], "resources": {"memory": 2}}]),
    ]);
    let platforms = prop::sample::select(vec![
        json!([]),
        json!([]),
        json!([]),
        json!([{"os": "linux"}]),
        json!([{"os": "windows", "os_version": "10.0.20348.1"}, {"os": "windows", "os_version": "10.0.17763.1"}]),
    ]);
    let tolerations = prop::sample::select(vec![
        json!([]),
        json!(["gpu=yes"]),
        json!([{"operator": "Exists"}]),
        json!([{"operator": "Exists"}]),
    ]);
    let spread = prop::sample::select(vec![
        json!([]),
        json!([]),
        json!([]),
        json!(["zone"]),
        json!([{"label": "zone", "max_skew": 2}]),
    ]);
    let other = prop::sample::select(vec![
        json!({}),
        json!({"requested_host": "h1"}),
        json!({"volumes_from": "c0"}),
        json!({"strategy": "binpack"}),
        json!({"isolation": "hyperv"}),
    ]);
    ((rules, constraints, ports, side), (platforms, tolerations, spread, other), 0..6i64, 1..4u8).prop_map(
        |((labels, constraints, ports, sidekicks), (platforms, tolerations, spread, other), memory, count)| {
            let mut request = json!({
                "stack": "s", "service": "web", "labels": labels, "constraints": constraints, "ports": ports,
                "sidekicks": sidekicks, "image": {"name": "i", "platforms": platforms}, "tolerations": tolerations,
                "spread": spread, "resources": {"memory": memory}, "count": count,
            });
            for (key, value) in other.as_object().unwrap() {
                request[key] = value.clone();
            }
            request
        },
    )
}

fn any_order() -> impl Strategy<Value = Order> {
    prop::sample::select(vec![Order::Ratio, Order::Original])
}

fn placer(cluster: &[Value], order: Order) -> Placer {
    let store = Arc::new(Store::new(Inventory::default()));
    store.publish(Arc::new(inventory(cluster, &Inventory::default())));
    Placer::new(store, order, scheduler::Strategy::Spread)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn placing_and_explaining_agree_about_every_host(cluster in any_cluster(), request in any_request()) {
        let inventory = inventory(&cluster, &Inventory::default());
        let promised = Promised::new(&inventory);
        let room = Room { inventory: &inventory, promised: &promised };
        let request = Request::parse(&value(&request)).unwrap();
        let owners: Vec<Text> = ["unit", "unit-side"].map(Text::from).into();
        let need = Need::new(&request, &inventory, &owners);
        let candidates = need.candidates(&room);
        for host in 0..u32::try_from(inventory.hosts().len()).unwrap() {
            let reasons = need.reasons(&room, host);
            prop_assert_eq!(candidates.contains(host), reasons.is_empty(), "host {}: {:?}", host, reasons);
        }
    }

    #[test]
    fn the_host_that_is_chosen_is_the_one_that_is_explained_as_best(
        cluster in any_cluster(), request in any_request(), order in any_order(),
    ) {
        let placer = placer(&cluster, order);
        let explanation = placer.explain(&value(&request), Duration::ZERO).unwrap();
        let placement = placer.place(&value(&request), "unit", Duration::ZERO).unwrap();
        let best = explanation.hosts.iter().find(|host| host.rank == Some(1)).map(|host| host.uuid.clone());
        prop_assert_eq!(placement.placements.first().map(|unit| unit.host.uuid.clone()), best);
        prop_assert_eq!(explanation.hosts.len(), cluster.iter().filter(|object| object["metadata_kind"] == "host").count());
        prop_assert_eq!(explanation.fits == 0 && !explanation.hosts.is_empty(), !explanation.changes.is_empty());
    }

    #[test]
    fn replicas_at_once_stand_where_one_after_another_they_would(
        cluster in any_cluster(), request in any_request(), count in 2..9u32,
    ) {
        let (at_once, in_turn) = (placer(&cluster, Order::Ratio), placer(&cluster, Order::Ratio));
        let mut many = request.clone();
        many["count"] = count.into();
        many["explain"] = false.into();
        let hosts = |answer: &scheduler::Placement| -> Vec<Text> {
            answer.placements.iter().map(|unit| unit.host.uuid.clone()).collect()
        };
        let answer = at_once.place(&value(&many), "unit", Duration::ZERO).unwrap();
        let mut one = request;
        one["count"] = 1.into();
        // A global service is one request, and on every host.
        prop_assume!(one["labels"].get("io.rancher.scheduler.global").is_none());
        let mut turns = Vec::new();
        for number in 1..=count {
            one["name"] = format!("unit-{number}").into();
            let placed = in_turn.place(&value(&one), &format!("id-{number}"), Duration::ZERO).unwrap();
            if placed.placements.is_empty() {
                break;
            }
            turns.extend(hosts(&placed));
        }
        prop_assert_eq!(hosts(&answer), turns);
    }

    #[test]
    fn equal_inputs_give_equal_outputs(
        cluster in any_cluster(), requests in prop::collection::vec(any_request(), 1..4), order in any_order(),
    ) {
        let run = |cluster: &[Value]| -> Vec<String> {
            let placer = placer(cluster, order);
            let mut answers = Vec::new();
            for (at, request) in requests.iter().enumerate() {
                let mut request = request.clone();
                request["id"] = format!("unit-{at}").into();
                let answer = placer.place(&value(&request), "", Duration::ZERO).unwrap();
                answers.push(serde_json::to_string(&answer).unwrap());
                let explanation = placer.explain(&value(&request), Duration::ZERO).unwrap();
                answers.push(serde_json::to_string(&explanation).unwrap());
            }
            answers.push(serde_json::to_string(&placer.hosts(Duration::ZERO).unwrap()).unwrap());
            answers
        };
        // Not even the order in which things are told matters.
        let reversed: Vec<_> = cluster.iter().rev().cloned().collect();
        prop_assert_eq!(run(&cluster), run(&reversed));
    }
}

/// Something that happens.
#[derive(Clone, Debug)]
enum Happening {
    /// Somebody asks for a unit.
    Reserve { memory: i64, port: u16, side: bool, count: u8, event: bool },
    /// A container that was promised is started.
    Start(usize),
    /// A container goes away.
    Remove(usize),
    /// A container is stopped.
    Stop(usize),
    /// A promise is given back.
    Release(usize),
    /// The scheduler sees how things are.
    Publish,
    /// Time passes; snapshots come oftener than promises lapse.
    Wait(u64),
    /// The scheduler dies and starts anew; what it had not started is not started any more.
    Crash,
    /// A host comes or goes.
    ToggleHost(u8),
}

fn any_happening() -> impl Strategy<Value = Happening> {
    let reserve = (0..5i64, 80..83u16, any::<bool>(), 1..3u8, any::<bool>())
        .prop_map(|(memory, port, side, count, event)| Happening::Reserve { memory, port, side, count, event });
    prop_oneof![
        6 => reserve,
        4 => (0..20usize).prop_map(Happening::Start),
        1 => (0..20usize).prop_map(Happening::Remove),
        1 => (0..20usize).prop_map(Happening::Stop),
        2 => (0..20usize).prop_map(Happening::Release),
        4 => Just(Happening::Publish),
        2 => (1..50u64).prop_map(Happening::Wait),
        1 => Just(Happening::Crash),
        1 => (0..3u8).prop_map(Happening::ToggleHost),
    ]
}

/// One container, promised or there, as somebody sees it who keeps his own accounts.
#[derive(Clone, Debug)]
struct Taken {
    placement: String,
    name: String,
    host: String,
    memory: i64,
    ports: BTreeSet<(String, u64)>,
    stopped: bool,
    made: Duration,
}

/// The world beside the scheduler.
struct World {
    store: Arc<Store<Inventory>>,
    placer: Placer,
    hosts: BTreeMap<String, &'static str>,
    promised: Vec<Taken>,
    there: Vec<Taken>,
    now: Duration,
    requests: usize,
}

const MEMORY: i64 = 10;
const HOSTS: [(&str, &str); 3] = [("h0", ""), ("h1", "192.0.2.1,192.0.2.2"), ("h2", "")];

impl World {
    fn new() -> Self {
        let store = Arc::new(Store::new(Inventory::default()));
        let placer = Placer::new(store.clone(), Order::Ratio, scheduler::Strategy::Spread);
        let hosts = HOSTS.iter().map(|(uuid, ips)| ((*uuid).to_owned(), *ips)).collect();
        let mut world =
            Self { store, placer, hosts, promised: Vec::new(), there: Vec::new(), now: Duration::ZERO, requests: 0 };
        world.publish();
        world
    }

    fn publish(&mut self) {
        let hosts = self.hosts.iter().map(|(uuid, ips)| {
            json!({"metadata_kind": "host", "uuid": uuid, "memory": MEMORY, "labels": {"io.rancher.scheduler.ips": ips}})
        });
        let containers = self.there.iter().map(|taken| {
            let ports: Vec<_> = taken.ports.iter().map(|(ip, port)| format!("{ip}:{port}:80/tcp")).collect();
            let state = if taken.stopped { "stopped" } else { "running" };
            json!({"metadata_kind": "container", "uuid": format!("uuid-{}", taken.name), "name": taken.name, "state": state,
                   "host_uuid": taken.host, "memory_reservation": taken.memory, "ports": ports})
        });
        let objects: Vec<_> = hosts.chain(containers).collect();
        let next = inventory(&objects, &self.store.load_full());
        self.store.publish(Arc::new(next));
    }

    fn happen(&mut self, happening: &Happening) {
        let pick = |list: &[Taken], at: usize| (!list.is_empty()).then(|| at % list.len());
        match happening {
            Happening::Reserve { event: true, memory, port, .. } => self.reserve_by_event(*memory, *port),
            Happening::Reserve { memory, port, side, count, .. } => self.reserve(*memory, *port, *side, *count),
            Happening::Start(at) => {
                if let Some(at) = pick(&self.promised, *at) {
                    let taken = self.promised.remove(at);
                    if self.hosts.contains_key(&taken.host) {
                        self.there.push(taken);
                    }
                }
            }
            Happening::Remove(at) => {
                if let Some(at) = pick(&self.there, *at) {
                    self.there.remove(at);
                }
            }
            Happening::Stop(at) => {
                if let Some(at) = pick(&self.there, *at) {
                    self.there[at].stopped = true;
                }
            }
            Happening::Release(at) => {
                if let Some(at) = pick(&self.promised, *at) {
                    let placement = self.promised[at].placement.clone();
                    // Only what was not begun is given back.
                    if !self.there.iter().any(|taken| taken.placement == placement)
                        && self.placer.release_placement(&placement, self.now).is_ok()
                    {
                        self.promised.retain(|taken| taken.placement != placement);
                    }
                }
            }
            Happening::Publish => self.publish(),
            Happening::Wait(seconds) => {
                self.publish();
                // Seen by the scheduler before it is too late.
                let _ = self.placer.sizes(self.now);
                self.now += Duration::from_secs(*seconds);
                self.promised.retain(|taken| taken.made + LAPSE > self.now);
            }
            Happening::Crash => {
                self.promised.clear();
                // It comes back with what it finds.
                self.publish();
                self.placer = Placer::new(self.store.clone(), Order::Ratio, scheduler::Strategy::Spread);
            }
            Happening::ToggleHost(at) => {
                let (uuid, ips) = HOSTS[usize::from(*at)];
                if self.hosts.remove(uuid).is_none() {
                    self.hosts.insert(uuid.to_owned(), ips);
                } else {
                    self.there.retain(|taken| taken.host != uuid);
                }
                self.publish();
            }
        }
    }

    fn reserve(&mut self, memory: i64, port: u16, side: bool, count: u8) {
        self.requests += 1;
        let id = format!("unit-{}", self.requests);
        let sidekicks = if side {
            json!([{"name": "side", "resources": {"memory": 1}, "ports": [format!("{}:1", port + 1)]}])
        } else {
            json!([])
        };
        let request = json!({"id": id, "count": count, "resources": {"memory": memory}, "ports": [format!("{port}:80")], "sidekicks": sidekicks});
        let answer = self.placer.place(&value(&request), "", self.now).unwrap();
        let again = self.placer.place(&value(&request), "", self.now).unwrap();
        if answer.state != "unplaceable" {
            assert!(again.repeated, "{again:?}");
            assert_eq!(
                serde_json::to_value(&answer.placements).unwrap(),
                serde_json::to_value(&again.placements).unwrap()
            );
        }
        for unit in &answer.placements {
            for (at, container) in unit.containers.iter().enumerate() {
                self.promised.push(Taken {
                    placement: id.clone(),
                    name: container.name.to_string(),
                    host: unit.host.uuid.to_string(),
                    memory: if at == 0 { memory } else { 1 },
                    ports: container.ports.iter().map(|port| (port.ip.to_string(), port.public.into())).collect(),
                    stopped: false,
                    made: self.now,
                });
            }
        }
    }

    fn reserve_by_event(&mut self, memory: i64, port: u16) {
        self.requests += 1;
        let name = format!("event-{}", self.requests);
        let uuid = format!("uuid-{name}");
        let mut request = json!({
            "phase": "instance.allocate", "context": [{"uuid": uuid}],
            "resourceRequests": [
                {"type": "computePool", "resource": "memoryReservation", "amount": memory},
                {"type": "portPool", "resource": "portReservation", "instanceId": "1", "resourceUuid": uuid,
                 "portRequests": [{"publicPort": port, "privatePort": 80, "protocol": "tcp"}]},
            ],
        });
        let event = |request: &Value| json!({"data": {"schedulerRequest": request}});
        let found = self.placer.event("scheduler.prioritize", &value(&event(&request)), self.now).unwrap();
        let found = serde_json::to_value(&found.data).unwrap();
        let Some(host) = found["prioritizedCandidates"][0].as_str() else { return };
        request["hostID"] = host.into();
        // Told twice, kept once.
        self.placer.event("scheduler.reserve", &value(&event(&request)), self.now).unwrap();
        let reply = self.placer.event("scheduler.reserve", &value(&event(&request)), self.now).unwrap();
        let reply = serde_json::to_value(&reply.data).unwrap();
        let allocated = &reply["portReservation"][0]["allocatedIPs"][0];
        self.promised.push(Taken {
            placement: name.clone(),
            name,
            host: host.to_owned(),
            memory,
            ports: [(allocated["allocatedIP"].as_str().unwrap().to_owned(), allocated["publicPort"].as_u64().unwrap())]
                .into(),
            stopped: false,
            made: self.now,
        });
    }

    fn check(&self) {
        for host in self.hosts.keys() {
            let on = || self.there.iter().chain(&self.promised).filter(|taken| taken.host == *host);
            let memory: i64 = on().map(|taken| taken.memory).sum();
            assert!(memory <= MEMORY, "{memory} of memory on {host}: {:?}", on().collect::<Vec<_>>());
            let ports: Vec<_> = on().filter(|taken| !taken.stopped).flat_map(|taken| &taken.ports).collect();
            let set: BTreeSet<_> = ports.iter().collect();
            assert_eq!(ports.len(), set.len(), "ports on {host}: {:?}", on().collect::<Vec<_>>());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn room_is_never_promised_twice(history in prop::collection::vec(any_happening(), 1..60)) {
        let mut world = World::new();
        for happening in &history {
            world.happen(happening);
            world.check();
        }
        // And nothing is kept for ever: once all promises have lapsed only containers take room.
        world.publish();
        world.now += LAPSE;
        for host in world.placer.hosts(world.now).unwrap() {
            let used: i64 = world.there.iter().filter(|taken| *taken.host == *host.uuid).map(|taken| taken.memory).sum();
            let pool = host.pools["memoryReservation"];
            prop_assert_eq!((pool.used, pool.promised, pool.free), (used, 0, MEMORY - used));
        }
    }
}
