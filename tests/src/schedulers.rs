//! Several schedulers with one ledger in a real etcd, clients that ask them all at once, and the judge of what became of it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::ClusterFolder;
use crate::etcd::{Etcd, base64, text};
use crate::wait::seconds;
use crate::{Launch, Service, eventually, http, scaled};

/// What each host has of memory, in bytes.
pub const MEMORY: i64 = 24;
/// Longest wait for a scheduler to take over what another one left: its lease, and some more.
pub const TAKEOVER: Duration = Duration::from_secs(20);
/// Longest wait for what takes milliseconds.
pub const SOON: Duration = Duration::from_secs(10);

/// Some schedulers over one cluster file and one etcd.
#[derive(Debug)]
pub struct Schedulers {
    /// The cluster file.
    pub files: ClusterFolder,
    /// What keeps the ledger.
    pub etcd: Etcd,
    /// The schedulers.
    pub schedulers: Vec<Service>,
    /// Where each of them is asked.
    pub addresses: Vec<SocketAddr>,
}

impl Schedulers {
    /// Starts them over one etcd; `None` where there is none.
    pub fn new(hosts: usize, schedulers: usize) -> Option<Self> {
        Some(Self::over(Etcd::start(1)?, hosts, schedulers))
    }

    /// Starts them over this etcd.
    pub fn over(etcd: Etcd, hosts: usize, schedulers: usize) -> Self {
        let host = |at| json!({ "name": format!("h{at}"), "uuid": format!("u/{at}"), "memory": MEMORY });
        let hosts: Vec<_> = (0..hosts).map(host).collect();
        let files = ClusterFolder::new(json!({ "berth": 1, "hosts": hosts }).to_string());
        let mut world = Self { files, etcd, schedulers: Vec::new(), addresses: Vec::new() };
        for _ in 0..schedulers {
            let mut scheduler = world.launch().start();
            world.addresses.push(scheduler.address());
            world.schedulers.push(scheduler);
        }
        world.ready();
        world
    }

    /// One more of them.
    pub fn launch(&self) -> Launch {
        let launch = Launch::scheduler()
            .with("--source", format!("file:{}", self.files.file().display()))
            .with("--ledger-etcd", self.etcd.urls())
            .with("--ledger-key", self.key_file());
        let Some(folder) = self.etcd.certificates() else { return launch };
        launch
            .with("--etcd-ca", folder.join("ca.pem"))
            .with("--etcd-cert", folder.join("cert.pem"))
            .with("--etcd-key", folder.join("key.pem"))
    }

    /// The key that they all have.
    pub fn key_file(&self) -> PathBuf {
        self.etcd.folder().join("ledger.key")
    }

    /// Waits until all are ready.
    pub fn ready(&mut self) {
        self.schedulers.iter_mut().for_each(Service::ready);
    }

    /// Kills one and starts it again where it was.
    pub fn restart(&mut self, at: usize) {
        self.schedulers[at].kill();
        self.schedulers[at] = self.launch().with("--listen", self.addresses[at].to_string()).start();
    }

    /// The placements in etcd by id.
    pub fn kept(&self) -> BTreeMap<String, Value> {
        let prefix = "/berth/v1/ledger/placements/";
        let pairs = self.list(prefix);
        pairs.into_iter().map(|(_, value)| (value["id"].as_str().unwrap().to_owned(), value)).collect()
    }

    /// The keys in etcd with this prefix, and their values.
    pub fn list(&self, prefix: &str) -> Vec<(String, Value)> {
        let end = format!("{}0", prefix.trim_end_matches('/'));
        let answer = self.etcd.ask("kv/range", &json!({ "key": base64(prefix), "range_end": base64(&end) }));
        let pairs = answer["kvs"].as_array().cloned().unwrap_or_default();
        pairs.iter().map(|pair| (text(&pair["key"]), serde_json::from_str(&text(&pair["value"])).unwrap())).collect()
    }

    /// The placements that a scheduler tells, by id, with the hosts of their units.
    fn told(&self, at: usize) -> BTreeMap<String, Vec<String>> {
        let answer = http::get("/v1/placements").ask(self.addresses[at]).value();
        let placements = answer["placements"].as_array().unwrap_or_else(|| panic!("{answer}")).clone();
        placements.iter().map(|one| (one["id"].as_str().unwrap().to_owned(), hosts_of(one))).collect()
    }

    /// No host has promised more than it has, no port or name is promised twice, and all say the same.
    pub fn judge(&self) -> BTreeMap<String, Value> {
        let kept = self.kept();
        let mut memory: BTreeMap<&str, i64> = BTreeMap::new();
        let (mut ports, mut names) = (BTreeSet::new(), BTreeSet::new());
        for (id, record) in &kept {
            assert_eq!(record["berth"], 1);
            assert!(record.get("growing").is_none(), "{record}");
            for unit in record["units"].as_array().unwrap() {
                let host = unit["host"].as_str().unwrap();
                let asked = record["asked"]["resources"]["memory"].as_i64().unwrap_or(0);
                *memory.entry(host).or_default() += asked;
                for container in unit["containers"].as_array().unwrap() {
                    assert!(names.insert(container["name"].as_str().unwrap()), "{id}: a name is promised twice");
                    for port in container["ports"].as_array().into_iter().flatten() {
                        let port = (host, port["public"].as_u64(), port["protocol"].as_str());
                        assert!(ports.insert(port), "{id}: {port:?} is promised twice");
                    }
                }
            }
        }
        assert!(memory.values().all(|memory| *memory <= MEMORY), "{memory:?}: {kept:#?}");
        for at in 0..self.addresses.len() {
            let expected: BTreeMap<_, _> = kept
                .iter()
                .map(|(id, record)| {
                    let host = |unit: &Value| unit["host"].as_str().unwrap().to_owned();
                    (id.clone(), record["units"].as_array().unwrap().iter().map(host).collect::<Vec<_>>())
                })
                .collect();
            eventually(&format!("scheduler {at} tells what etcd has"), SOON, || {
                (self.told(at) == expected).then_some(())
            });
        }
        let claims = self.list("/berth/v1/ledger/ports/");
        let known = |(_, claim): &(String, Value)| kept.contains_key(claim["placement"].as_str().unwrap());
        assert!(claims.iter().all(known), "ports of nobody: {claims:?}");
        assert_eq!(claims.len(), ports.len(), "a key for each port");
        assert_eq!(self.list("/berth/v1/ledger/names/").len(), names.len(), "a key for each name");
        kept
    }
}

/// The hosts of a placement, unit by unit.
fn hosts_of(placement: &Value) -> Vec<String> {
    let units = placement["placements"].as_array().unwrap();
    units.iter().map(|unit| unit["host"]["uuid"].as_str().unwrap().to_owned()).collect()
}

/// Asks a scheduler for a placement; `None` when it does not answer.
pub fn place(address: SocketAddr, request: &Value) -> Option<(u16, Value)> {
    let answer = http::post("/v1/placements", request.to_string()).within(seconds(30)).send(address).ok()?;
    Some((answer.status, answer.value()))
}

/// Asks until the answer is definite, each time another scheduler.
pub fn insist(addresses: &[SocketAddr], first: usize, request: &Value, until: Instant) -> Option<(u16, Value)> {
    for address in addresses.iter().cycle().skip(first) {
        match place(*address, request) {
            Some((status, answer)) if !matches!(status, 503 | 504) => return Some((status, answer)),
            _ if Instant::now() > until => return None,
            _ => std::thread::sleep(Duration::from_millis(50)),
        }
    }
    None
}

/// Whether a request that was insisted on has its promise: it may have had that before, where the first answer was none or came too late.
pub fn is_promised(status: u16) -> bool {
    matches!(status, 200 | 201)
}

/// Gives a placement back; that it is gone means that an earlier answer was lost.
fn take_back(addresses: &[SocketAddr], first: usize, id: &str, until: Instant) -> bool {
    for address in addresses.iter().cycle().skip(first + 1) {
        let asked = http::Request::new("DELETE", format!("/v1/placements/{id}")).within(seconds(30)).send(*address);
        match asked.map(|answer| answer.status) {
            Ok(200 | 404) => return true,
            Ok(503 | 504) | Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(50)),
            Ok(status) => panic!("{status} for giving {id} back"),
            Err(_) => return false,
        }
    }
    false
}

/// A small request, one of a few kinds.
fn request(number: usize) -> Value {
    let mut request = json!({
        "id": format!("r-{number}"), "image": "i", "count": 1 + number % 3, "atomic": number.is_multiple_of(4),
        "resources": { "memory": 1 + number % 2 },
    });
    match number % 5 {
        // Each of these ports is there once on each host.
        0 => request["ports"] = json!([format!("{}:80", 8000 + number % 7)]),
        1 => request["ports"] = json!(["80", "53:53/udp"]),
        _ => {}
    }
    request
}

/// What clients were told, by id.
pub type Answers = BTreeMap<String, Vec<(u16, Value)>>;

/// Sends requests from many threads, every fourth to all schedulers at once, every third is taken back; gives what clients
/// were told of the others.
pub fn storm(addresses: &[SocketAddr], numbers: std::ops::Range<usize>, threads: usize) -> Answers {
    let (next, told) = (Arc::new(AtomicUsize::new(numbers.start)), Arc::new(Mutex::new(BTreeMap::new())));
    let until = Instant::now() + scaled(Duration::from_secs(50));
    let asking: Vec<_> = (0..threads)
        .map(|_| {
            let (next, told, addresses) = (next.clone(), told.clone(), addresses.to_vec());
            std::thread::spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= numbers.end {
                        return;
                    }
                    let request = request(number);
                    let id = request["id"].as_str().unwrap().to_owned();
                    let twins = if number.is_multiple_of(4) { addresses.len() } else { 1 };
                    let asked: Vec<_> = (0..twins)
                        .map(|twin| {
                            let (addresses, request) = (addresses.clone(), request.clone());
                            std::thread::spawn(move || insist(&addresses, number + twin, &request, until))
                        })
                        .collect();
                    let answers: Vec<_> = asked
                        .into_iter()
                        .map(|asked| asked.join().unwrap().expect("a definite answer in time"))
                        .collect();
                    if number.is_multiple_of(3) && answers.iter().any(|(status, _)| *status != 409) {
                        assert!(take_back(&addresses, number, &id, until), "{id} was not taken back in time");
                        continue;
                    }
                    for (status, answer) in answers {
                        assert!(matches!(status, 200 | 201 | 409), "{status} {answer}");
                        told.lock().unwrap().entry(id.clone()).or_insert_with(Vec::new).push((status, answer));
                    }
                }
            })
        })
        .collect();
    for thread in asking {
        thread.join().unwrap();
    }
    Arc::try_unwrap(told).unwrap().into_inner().unwrap()
}

/// Whoever was told of a placement was told what is kept.
pub fn compare(told: &Answers, kept: &BTreeMap<String, Value>) {
    for (id, answers) in told {
        for (status, answer) in answers {
            if *status == 409 {
                continue;
            }
            let record = kept.get(id).unwrap_or_else(|| panic!("{id} was told and is not kept: {answer}"));
            let hosts: Vec<_> = record["units"].as_array().unwrap().iter().map(|unit| unit["host"].clone()).collect();
            assert_eq!(json!(hosts_of(answer)), json!(hosts), "{answer}");
        }
    }
}
