//! What one tenant does changes no answer that another one gets (DESIGN, invariant 13).
//!
//! Random worlds: engines of three hosts, an etcd, documents; then blue does what its rights allow, and red gets the
//! answers of dns, metadata and scheduler that it got before, but for what is blue's own. All of it runs in process,
//! from what an engine says of containers through keys and merging to the functions that sockets call.
//!
//! `BERTH_SEED=5` tries the world of one seed, `BERTH_WORLDS=20000` so many from `BERTH_FIRST_WORLD` (0) on, `BERTH_LONG=1` a
//! million: half an hour on two processors, at 3.9 ms of processor time for each (without other work; not optimised, so that overflows are found). A new fact that hosts report gets its
//! lie in `world.rs`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "noninterference/compare.rs"]
mod compare;
#[path = "noninterference/dice.rs"]
mod dice;
#[path = "noninterference/services.rs"]
mod services;
#[path = "noninterference/sockets.rs"]
mod sockets;
#[path = "noninterference/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use live::etcd::fuzzing::{Follower, written};
use model::Snapshot;
use model::lb::{LbPlan, Route, Viewpoint};
use serde_json::{Value, json};
use tests::Question;
use tests::battery::is_long;
use tokio::runtime::{Builder, Runtime};

use crate::compare::{Allowed, Rights, harm, is_same_answer};
use crate::services::{Answering, Services};
use crate::sockets::Sockets;
use crate::world::{Act, HOSTNAME, RED, World, host_document};

/// Worlds that are tried with each change, and before a release.
const WORLDS: u64 = 10_000;
const WORLDS_LONG: u64 = 1_000_000;

/// After so many worlds there is a line in the log, about once a minute and a half.
const PROGRESS: u64 = 50_000;

/// Worlds over sockets.
const WORLDS_OVER_SOCKETS: u64 = 200;

/// Questions of DNS in each world.
const QUESTIONS: usize = 12;

/// Names that are asked for, short and in full.
const ASKED: [&str; 34] = [
    "web.shop",
    "web.shop.rancher.internal",
    "WEB.Shop.rancher.internal",
    "db.data.rancher.internal",
    "db.data",
    "_80._tcp.web.shop.rancher.internal",
    "_80._tcp.db.data.rancher.internal",
    "_7._udp.web.shop.rancher.internal",
    "ext.shop.rancher.internal",
    "mail.outside.rancher.internal",
    // Asked for more often: these alone show that an address in use here leads to another host.
    "web.free.rancher.internal",
    "web.free.rancher.internal",
    "cache.free.rancher.internal",
    "cache.free.rancher.internal",
    "alias.free.rancher.internal",
    "alias.shop.rancher.internal",
    "lb.free.rancher.internal",
    "web-1",
    "web-1.rancher.internal",
    "db",
    "w",
    "alias",
    "cache.rancher.internal",
    "one.rancher.internal",
    "rancher-metadata",
    "rancher-metadata.rancher.internal",
    "github.com",
    "app.dev",
    "www.example.org",
    "b.hosts.dns.rancher.internal",
    "ns.dns.rancher.internal",
    "2.0.17.172.in-addr.arpa",
    // Not every host has a second container.
    "3.0.17.172.in-addr.arpa",
    "2.0.9.10.in-addr.arpa",
];

/// What is asked of metadata besides the whole tree.
const PATHS: [&str; 10] = [
    "/latest/self/container/name",
    "/latest/self/container/primary_ip",
    "/latest/self/host/name",
    "/latest/self/service/token",
    "/2015-12-19/self/stack/name",
    "/latest/hosts/b/agent_ip",
    "/latest/name",
    "/2016-07-29/self/container/uuid",
    "/latest/containers/web-1/primary_ip",
    "/latest/containers/cache/host_uuid",
];

/// Header lines by which a client may say that it is another one, whose address replaces `{}`.
const FORGED: [&[(&str, &str)]; 5] = [
    &[("X-Forwarded-For", "{}")],
    &[("Forwarded", "for={}")],
    &[("X-Forwarded-For", "{}, {}"), ("X-Forwarded-For", "{}")],
    &[("X-Real-IP", "{}"), ("True-Client-IP", "{}")],
    &[("Host", "{}"), ("X-Forwarded-Host", "{}")],
];

/// What red asks a scheduler for.
fn requests() -> [Value; 5] {
    let affinity = |kind: &str, value: &str| json!({format!("io.rancher.scheduler.affinity:{kind}"): value});
    let of_web = |more: Value| {
        let mut request =
            json!({"name": "new", "stack": "shop", "service": "web", "resources": {"memory": 1}, "ports": ["80:80"]});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    [
        of_web(json!({})),
        of_web(json!({"labels": affinity("container_label", "app=web")})),
        of_web(json!({"labels": affinity("container_label_ne", "io.rancher.stack_service.name=shop/web")})),
        of_web(json!({"labels": affinity("container_ne", "web-1")})),
        of_web(json!({"requested_host": "m"})),
    ]
}

/// What red asks.
struct Questions {
    client: (String, String),
    /// The names and the addresses of all containers of the host that is asked.
    local: Vec<(String, String)>,
    dns: Vec<(Question, &'static str, bool, Allowed)>,
    paths: Vec<(&'static str, Allowed)>,
    /// Whether the members of red's own services, behind a balancer, may be others than red's.
    balanced: [Allowed; 3],
    request: Value,
}

/// What red is told.
struct Answers {
    dns: Vec<Vec<String>>,
    paths: Vec<(u16, String)>,
    /// JSON.
    tree: String,
    scheduler: Value,
}

impl Questions {
    fn of(world: &World) -> Self {
        let mut dice = world.dice.clone();
        let on = |network| world.asked.map_or_else(Vec::new, |host| world.clients(host, network));
        let local = [on("bridge"), on("front"), on("lan")].concat();
        // Where no host is asked, all containers count as local.
        let clients = world.clients(world.asked.unwrap_or(RED[0]), "bridge");
        let at = dice.below(clients.len());
        let mut client = clients[at].clone();
        // It may ask by another of its networks, whose addresses blue can claim elsewhere.
        if let Some(other) = on("lan").into_iter().find(|other| other.0 == client.0).filter(|_| dice.in_percent(50)) {
            client = other;
        }
        let free = |container: &Value| {
            let labels = &container["Config"]["Labels"];
            let stack = labels["com.docker.compose.project"].as_str();
            let path = labels["io.rancher.stack_service.name"].as_str();
            stack.or_else(|| path?.split('/').next()).is_some_and(|stack| world.is_free(stack))
        };
        let containers = &world.red[world.asked.unwrap_or(RED[0])];
        let networks = &containers[at].0["NetworkSettings"]["Networks"];
        let on_front = !networks["front"].is_null() || !networks["lan"].is_null();
        let any_free = RED.iter().flat_map(|host| &world.red[host]).any(|(container, _)| free(container));
        // Without a host that is asked, containers of several hosts have the address of the client.
        let in_free = free(&containers[at].0) || (any_free && (on_front || world.asked.is_none()));
        let rights = Rights { world, in_free, local };
        let dns = (0..QUESTIONS).map(|_| {
            let name = ASKED[dice.below(ASKED.len())];
            let kind = if name.ends_with("in-addr.arpa") {
                "PTR"
            } else if name.starts_with('_') {
                "SRV"
            } else {
                dice.one(&["A", "A", "AAAA", "TXT", "ANY"])
            };
            // Which service a container is of stands in its text.
            let of_service = world.early && matches!(kind, "TXT" | "ANY");
            let allowed = if of_service { Allowed::Anything } else { rights.of_name(name) };
            (Question::new(name, kind), name, dice.in_percent(30), allowed)
        });
        let dns = dns.collect();
        let paths = (0..3).map(|_| PATHS[dice.below(PATHS.len())]).map(|path| (path, rights.of_path(path)));
        let paths = paths.collect();
        let [web, db] = ["web.shop.rancher.internal", "db.data.rancher.internal"].map(|name| rights.of_name(name));
        let balanced = [web, db, if world.owned { Allowed::Nothing } else { Allowed::Anything }];
        let local = rights.local;
        Self { client, local, dns, paths, balanced, request: requests()[dice.below(5)].clone() }
    }

    fn ask(&self, services: &dyn Answering) -> Answers {
        let client = &*self.client.1;
        Answers {
            dns: self.dns.iter().map(|(question, _, tcp, _)| services.dns(question, client, *tcp)).collect(),
            paths: self.paths.iter().filter_map(|(path, _)| services.http(path, client, &[])).collect(),
            tree: services.tree(client).unwrap_or_default(),
            scheduler: services.scheduler(&self.request, &RED).unwrap_or_default(),
        }
    }

    /// What differs that may not.
    fn compare(&self, before: &Answers, after: &Answers, world: &World) -> Result<(), String> {
        for ((before, after), (_, name, _, allowed)) in before.dns.iter().zip(&after.dns).zip(&self.dns) {
            if !is_same_answer(before, after, *allowed, &self.local, world) {
                return Err(format!("dns: {name} ({allowed:?})\n  before: {before:?}\n  after:  {after:?}"));
            }
        }
        for ((before, after), (path, allowed)) in before.paths.iter().zip(&after.paths).zip(&self.paths) {
            if before != after && *allowed == Allowed::Nothing {
                return Err(format!("metadata: {path}\n  before: {before:?}\n  after:  {after:?}"));
            }
        }
        // Reading it takes longer than all else that is compared.
        if before.tree != after.tree {
            let [before, after] =
                [&before.tree, &after.tree].map(|tree| serde_json::from_str(tree).unwrap_or_default());
            if let Some(harm) = harm(&before, &after, world) {
                return Err(format!("metadata: /latest\n  {harm}"));
            }
        }
        if before.scheduler != after.scheduler {
            let (before, after) = (&before.scheduler, &after.scheduler);
            return Err(format!("scheduler: {}\n  before: {before}\n  after:  {after}", self.request));
        }
        Ok(())
    }
}

/// Where a balancer leads requests for the host of red's service, for all hosts of nobody, and for the host that is red's: the members,
/// where nobody else may have any; of the first the rule too.
fn balanced(snapshot: &Snapshot, allowed: [Allowed; 3]) -> [Option<String>; 3] {
    let Some(balancer) = model::lb::find(snapshot, "edge/lb") else { return [None, None, None] };
    let plan = LbPlan::of(snapshot, balancer, &Viewpoint::default());
    let members = |route: &Route, allowed| match allowed {
        Allowed::Nothing => format!("{:?}", plan.backends[route.backend].members),
        Allowed::More | Allowed::Anything => String::new(),
    };
    [
        plan.route(80, "www.example.org", "/").map(|route| format!("{} {}", route.at, members(route, allowed[0]))),
        plan.route(80, "www.example.net", "/").map(|route| members(route, allowed[1])),
        plan.route(80, HOSTNAME, "/").map(|route| members(route, allowed[2])),
    ]
}

/// The keys of blue, and who follows them.
struct Etcd<'w> {
    world: &'w World,
    follower: Follower,
    blue: BTreeMap<String, Vec<u8>>,
}

impl<'w> Etcd<'w> {
    fn new(world: &'w World) -> Self {
        let own = world.asked.map(|host| &world.said[host].0);
        Self { world, follower: Follower::new(own), blue: BTreeMap::new() }
    }

    /// What operators, schedulers and red write.
    fn honest(&mut self) {
        for path in &self.world.evicted {
            self.follower.put(path.as_bytes(), br#"{"berth": 1, "placement": "p"}"#);
        }
        for (name, document) in &self.world.documents {
            self.follower.put(format!("documents/{name}").as_bytes(), document.to_string().as_bytes());
        }
        for host in RED {
            for (path, value) in &self.world.said[host].1 {
                self.follower.put(path.as_bytes(), value);
            }
        }
    }

    fn put(&mut self, path: &str, value: Vec<u8>) {
        self.follower.put(path.as_bytes(), &value);
        self.blue.insert(path.to_owned(), value);
    }

    /// Blue's agent has this to say.
    fn publish(&mut self, now: BTreeMap<String, Vec<u8>>) {
        let gone: Vec<_> = self.blue.keys().filter(|path| !now.contains_key(*path)).cloned().collect();
        for path in gone {
            self.blue.remove(&path);
            self.follower.delete(path.as_bytes());
        }
        for (path, value) in now {
            self.put(&path, value);
        }
    }

    fn act(&mut self, act: &Act) {
        let blue = self.world.blue;
        let host = format!("hosts/{blue}/host");
        match act {
            Act::Engine(containers) => self.publish(written(&host_document(blue, containers.clone()))),
            Act::Put(path, value) => {
                if !self.blue.contains_key(&host) {
                    self.publish(written(&host_document(blue, Vec::new())));
                }
                self.put(path, value.to_string().into_bytes());
            }
            Act::Delete(path) => {
                self.blue.remove(path);
                self.follower.delete(path.as_bytes());
            }
            Act::Lapse => {
                let keys = std::mem::take(&mut self.blue);
                self.publish_nothing(&keys);
                for (path, value) in keys {
                    self.put(&path, value);
                }
            }
            Act::Image(labels) => {
                let Some(asked) = self.world.asked else { return };
                let mut containers = self.world.red[asked].clone();
                let (container, image) = containers.last_mut().unwrap();
                let own = container["Config"]["Labels"].as_object_mut().unwrap();
                for (key, text) in labels {
                    // What was given at creation replaces what the image has.
                    own.entry(key.clone()).or_insert_with(|| text.clone().into());
                }
                let given = self.world.red[asked].last().unwrap().0["Config"]["Labels"].as_object().unwrap().clone();
                image.extend(
                    labels
                        .iter()
                        .filter(|(key, _)| !given.contains_key(*key))
                        .map(|(key, text)| (key.clone(), text.clone())),
                );
                self.follower.report(&host_document(asked, containers));
            }
            Act::Ask(_) => {}
        }
    }

    /// The lease of blue ends.
    fn publish_nothing(&mut self, keys: &BTreeMap<String, Vec<u8>>) {
        for path in keys.keys() {
            self.follower.delete(path.as_bytes());
        }
        self.follower.pass();
    }
}

/// What is wrong in the world of a seed where only these of the acts are done.
fn wrong(seed: u64, only: &dyn Fn(usize) -> bool, runtime: &Runtime) -> Result<(), String> {
    let world = World::new(seed, false);
    let questions = Questions::of(&world);
    let mut etcd = Etcd::new(&world);
    etcd.honest();
    let snapshot = Arc::new(etcd.follower.snapshot());
    let mut services = Services::new(&snapshot, &world, runtime);
    let before = questions.ask(&services);
    let led = balanced(&snapshot, questions.balanced);
    let is_led = |snapshot: &Snapshot| {
        let now = balanced(snapshot, questions.balanced);
        if now == led { Ok(()) } else { Err(format!("balancer:\n  before: {led:?}\n  after:  {now:?}")) }
    };
    if world.early {
        etcd = Etcd::new(&world);
        for (_, act) in world.acts.iter().enumerate().filter(|(at, _)| only(*at)) {
            etcd.act(act);
        }
        etcd.honest();
        let snapshot = Arc::new(etcd.follower.snapshot());
        is_led(&snapshot)?;
        services = Services::new(&snapshot, &world, runtime);
        return questions.compare(&before, &questions.ask(&services), &world);
    }
    for (at, act) in world.acts.iter().enumerate().filter(|(at, _)| only(*at)) {
        etcd.act(act);
        let snapshot = Arc::new(etcd.follower.snapshot());
        is_led(&snapshot).map_err(|wrong| format!("act {at}: {wrong}"))?;
        services.show(&snapshot);
        if let Act::Ask(number) = act {
            pretend(&services, &world, &questions, *number).map_err(|wrong| format!("act {at}: {wrong}"))?;
        }
        questions.compare(&before, &questions.ask(&services), &world).map_err(|wrong| format!("act {at}: {wrong}"))?;
    }
    Ok(())
}

/// A neighbour asks, and says that it is the client; it is told what it is told without that.
fn pretend(services: &dyn Answering, world: &World, questions: &Questions, number: usize) -> Result<(), String> {
    let neighbours = world.clients(world.asked.unwrap_or(RED[0]), "bridge");
    let (_, neighbour) = &neighbours[number % neighbours.len()];
    let forged =
        FORGED[number % FORGED.len()].iter().map(|(name, value)| (*name, value.replace("{}", &questions.client.1)));
    let forged: Vec<_> = forged.collect();
    for path in PATHS {
        let (plain, pretended) = (services.http(path, neighbour, &[]), services.http(path, neighbour, &forged));
        if plain != pretended {
            return Err(format!("metadata: {path} with {forged:?}\n  before: {plain:?}\n  after:  {pretended:?}"));
        }
    }
    let _ = services.tree(neighbour);
    for (question, ..) in &questions.dns {
        services.dns(question, neighbour, false);
    }
    Ok(())
}

/// The report on a seed that something is wrong with, with as few acts as show it.
fn report(seed: u64, wrong_before: String, runtime: &Runtime) -> String {
    let world = World::new(seed, false);
    let mut left: Vec<usize> = (0..world.acts.len()).collect();
    let mut found = wrong_before;
    for at in 0..world.acts.len() {
        let fewer: Vec<usize> = left.iter().copied().filter(|other| *other != at).collect();
        if let Err(wrong) = wrong(seed, &|at| fewer.contains(&at), runtime) {
            (left, found) = (fewer, wrong);
        }
    }
    let acts: Vec<_> = left.iter().map(|at| format!("  {at}: {:?}", world.acts[*at])).collect();
    let client = Questions::of(&world).client;
    format!(
        "seed {seed}: {found}\nclient {client:?} of host {:?}, early: {}, owned: {}, live: {}\nacts of {}:\n{}\ndocuments {:?}\nred {}\n\
         again: BERTH_SEED={seed} cargo test --workspace --test=noninterference",
        world.asked,
        world.early,
        world.owned,
        world.live,
        world.blue,
        acts.join("\n"),
        world.documents,
        json!(RED.map(|host| world.red[host].iter().map(|(container, _)| container).collect::<Vec<_>>())),
    )
}

/// A world that is tried. If the thread panics, its seed is logged and the other threads end.
struct Running<'f> {
    seed: u64,
    failed: &'f AtomicBool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.failed.store(true, Ordering::Relaxed);
            log(&format!("failed: seed {}", self.seed));
        }
    }
}

/// Prints a line at once; what the macros print in a test appears only after a failure.
fn log(line: &str) {
    let _ = writeln!(std::io::stderr(), "noninterference: {line}");
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn no_act_of_one_tenant_changes_an_answer_to_another() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    if let Some(seed) = number("BERTH_SEED") {
        let runtime = runtime();
        if let Err(wrong) = wrong(seed, &|_| true, &runtime) {
            panic!("{}", report(seed, wrong, &runtime));
        }
        return;
    }
    let worlds = number("BERTH_WORLDS").unwrap_or_else(|| if is_long() { WORLDS_LONG } else { WORLDS });
    let first = number("BERTH_FIRST_WORLD").unwrap_or(0);
    let (next, failed, start) = (AtomicU64::new(first), AtomicBool::new(false), Instant::now());
    let work = || {
        let runtime = runtime();
        while !failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + worlds {
                return;
            }
            if seed % PROGRESS == 0 && seed > 0 {
                log(&format!(
                    "world {seed} of those from {first} to {} after {} s",
                    first + worlds,
                    start.elapsed().as_secs()
                ));
            }
            let running = Running { seed, failed: &failed };
            if let Err(wrong) = wrong(seed, &|_| true, &runtime) {
                panic!("{}", report(seed, wrong, &runtime));
            }
            drop(running);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
}

/// The same over UDP, TCP and HTTP, with the executables and a real etcd.
#[test]
fn no_act_of_one_tenant_changes_an_answer_to_another_over_sockets() {
    let Some(mut sockets) = Sockets::start() else { return };
    let mut left: Vec<String> = Vec::new();
    for seed in 0..WORLDS_OVER_SOCKETS {
        let world = World::new(seed, true);
        let questions = Questions::of(&world);
        let documents = world.documents.iter().map(|(name, value)| (format!("documents/{name}"), value.to_string()));
        let documents: BTreeMap<_, _> = documents.map(|(path, value)| (path, value.into_bytes())).collect();
        let keys: BTreeMap<_, _> = RED.iter().flat_map(|host| world.said[host].1.clone()).chain(documents).collect();
        let gone = left.iter().filter(|path| !keys.contains_key(*path)).map(|path| (&**path, None));
        sockets.write(gone.chain(keys.iter().map(|(path, value)| (&**path, Some(&**value)))));
        let before = questions.ask(&sockets);
        let mut blue: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for (at, act) in world.acts.iter().enumerate() {
            let mut now = blue.clone();
            match act {
                Act::Engine(containers) => now = written(&host_document(world.blue, containers.clone())),
                Act::Put(path, value) => {
                    if now.is_empty() {
                        now = written(&host_document(world.blue, Vec::new()));
                    }
                    now.insert(path.clone(), value.to_string().into_bytes());
                }
                Act::Delete(path) => drop(now.remove(path)),
                Act::Lapse | Act::Image(_) => {}
                Act::Ask(number) => pretend(&sockets, &world, &questions, *number).unwrap(),
            }
            let gone = blue.keys().filter(|path| !now.contains_key(*path)).map(|path| (&**path, None));
            sockets.write(gone.chain(now.iter().map(|(path, value)| (&**path, Some(&**value)))));
            if let Err(wrong) = questions.compare(&before, &questions.ask(&sockets), &world) {
                panic!("seed {seed}, act {at}: {wrong}\nclient {:?}\nacts {:?}", questions.client, world.acts);
            }
            blue = now;
        }
        // It leaves for good, so that the next world does not have to wait for its lease.
        let host = format!("hosts/{}/host", world.blue);
        let leaving = json!({"name": world.blue, "published": {"leaving": true}}).to_string();
        sockets.write([(&*host, Some(leaving.as_bytes()))]);
        left = keys.into_keys().chain(blue.into_keys()).chain([host]).collect();
        left.sort();
        left.dedup();
    }
}
