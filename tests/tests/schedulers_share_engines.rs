//! Several schedulers that start containers with one ledger in a real etcd, while everything fails: engines, the
//! connections to them, and the schedulers themselves.
//!
//! Engines of `batteries/fake_docker.py` remember what really happened, clients remember what they were told, and
//! `sched_history_check.py` judges both.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tests::cluster::ClusterFolder;
use tests::etcd::Etcd;
use tests::shared::{Exclusive, folder, python};
use tests::wait::{scaled, seconds};
use tests::{Launch, http};

/// How many engines there are.
const ENGINES: usize = 6;
/// How many containers of the smallest kind fit on one.
const CONTAINERS: i64 = 60;
/// What the smallest kind takes.
const MILLI: i64 = 10;
/// How many schedulers there are.
const SCHEDULERS: usize = 3;
/// How many ask at once.
const CLIENTS: usize = 600;
/// How long one of the schedulers lives before the next one is killed.
const LIFE: Duration = Duration::from_secs(2);
/// Longest time for all clients to be told something definite.
const LIMIT: Duration = Duration::from_mins(4);
/// Stack of a client's thread: it does nothing but wait.
const STACK: usize = 128 << 10;

/// Starts the engines with their faults, says so, and serves until its input ends.
const ENGINES_PY: &str = "
import sys
sys.path.insert(0, sys.argv[1])
import fake_docker
hosts, base, log = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
served, put = fake_docker.serve(hosts, base, log, .0005)
for one in served:
    one.engine.faults = [{'op': '*', 'mode': 'drop-after', 'p': .25, 'n': 1 << 40}, {'op': '*', 'mode': '500', 'p': .3, 'n': 1 << 40}]
print('serving', flush=True)
sys.stdin.readline()
for one in served:
    one.engine.faults = []
print('mended', flush=True)
sys.stdin.read()
";

/// What happened, for the judge.
#[derive(Clone, Default)]
struct History(Arc<Mutex<Vec<Value>>>);

impl History {
    fn put(&self, event: &str, operation: &str, request: &str, more: &Value) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let mut line = json!({ "t": now, "ev": event, "op": operation, "req": request });
        line.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        self.0.lock().unwrap().push(line);
    }
}

/// The engines, ended with the test.
struct Engines(Child);

impl Drop for Engines {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The first of as many ports in a row that nobody uses.
fn free_ports(count: usize) -> u16 {
    for first in (21_000_u16..24_000).step_by(count) {
        let ports = (0..u16::try_from(count).unwrap()).map(|at| TcpListener::bind(("127.0.0.1", first + at)));
        if ports.collect::<Result<Vec<_>, _>>().is_ok() {
            return first;
        }
    }
    panic!("no {count} free ports in a row");
}

/// What one client wants: a container, and perhaps to be rid of it again. It asks each time another scheduler.
struct Client {
    number: usize,
    request: String,
    milli: i64,
    port: Option<usize>,
    releases: bool,
}

impl Client {
    fn new(number: usize) -> Self {
        // Every second of the first ones wants the same as the one before.
        let double = number < CLIENTS / 5;
        Self {
            number,
            request: if double { format!("double-{}", number / 2) } else { format!("r-{number}") },
            milli: if double { MILLI } else { MILLI * [1, 1, 1, 5][number % 4] },
            port: (!double && number % 10 >= 8).then(|| 8000 + number / 2 % 10),
            releases: !double && number.is_multiple_of(2),
        }
    }

    fn body(&self) -> String {
        let ports: Vec<_> = self.port.into_iter().collect();
        let body = json!({
            "id": self.request, "image": "any", "start": true,
            "resources": { "milli_cpu": self.milli },
            "ports": ports.iter().map(|port| format!("{port}:80")).collect::<Vec<_>>(),
            "labels": { "req": self.request, "cpu": self.milli.to_string(), "mem": "0", "ports": json!(ports).to_string() },
        });
        body.to_string()
    }

    /// Asks until it is told something definite; says whether it was.
    fn run(&self, schedulers: &[SocketAddr], history: &History, until: Instant) -> bool {
        history.put("invoke", "place", &self.request, &json!({ "cpu": self.milli, "mem": 0, "ports": self.port }));
        for scheduler in schedulers.iter().cycle().skip(self.number) {
            let asked = http::post("/v1/placements", self.body()).within(seconds(60)).send(*scheduler);
            let asked =
                asked.map(|answer| (answer.status, serde_json::from_slice(&answer.body).unwrap_or(Value::Null)));
            match asked {
                Ok((200 | 201, answer)) => {
                    let unit = &answer["placements"][0];
                    let container = unit["containers"][0]["container"].clone();
                    assert!(container.is_string(), "{answer}");
                    let what = json!({ "host": unit["host"]["name"], "container": container });
                    history.put("ok", "place", &self.request, &what);
                    return !self.releases || self.release(schedulers, history, until);
                }
                Ok((409 | 502, answer)) => {
                    assert!(answer["state"] == "unplaceable" || answer["state"] == "failed", "{answer}");
                    history.put("fail", "place", &self.request, &json!({}));
                    return true;
                }
                Ok((503 | 504, _)) | Err(_) => {}
                Ok((status, answer)) => panic!("{status} {answer}"),
            }
            history.put("info", "place", &self.request, &json!({}));
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        false
    }

    fn release(&self, schedulers: &[SocketAddr], history: &History, until: Instant) -> bool {
        history.put("invoke", "release", &self.request, &json!({}));
        for scheduler in schedulers.iter().cycle().skip(self.number + 1) {
            let asked = http::Request::new("DELETE", format!("/v1/placements/{}", self.request)).within(seconds(60));
            // That there is none means that an earlier answer was lost.
            if asked.send(*scheduler).is_ok_and(|answer| matches!(answer.status, 200 | 404)) {
                history.put("ok", "release", &self.request, &json!({}));
                return true;
            }
            history.put("info", "release", &self.request, &json!({}));
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        false
    }
}

#[test]
fn what_dying_schedulers_began_the_others_finish_and_nothing_is_started_twice() {
    let (Some(shared), Some(mut python)) = (folder(), python()) else { return };
    let Some(etcd) = Etcd::start(1) else { return };
    let _processors = Exclusive::processors();
    let batteries = shared.join("batteries");
    let base = free_ports(ENGINES);
    let host = |at| {
        json!({ "name": format!("h{at}"), "uuid": format!("uuid-{at}"), "milli_cpu": CONTAINERS * MILLI, "memory": 1 << 30,
                "labels": { "io.berth.docker.endpoint": format!("tcp://127.0.0.1:{}", usize::from(base) + at) } })
    };
    let hosts: Vec<_> = (0..ENGINES).map(host).collect();
    let files = ClusterFolder::new(json!({ "berth": 1, "hosts": hosts }).to_string());
    let engine_log = files.path("engine.jsonl");
    let mut engines = python
        .args(["-c", ENGINES_PY])
        .args([batteries.as_os_str(), ENGINES.to_string().as_ref(), base.to_string().as_ref(), engine_log.as_os_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // Connections of a killed scheduler break, which Python tells at length.
        .stderr(Stdio::null())
        .spawn()
        .map(Engines)
        .unwrap();
    let mut said = BufReader::new(engines.0.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "serving");

    let launch = Launch::scheduler()
        .with("--source", format!("file:{}", files.file().display()))
        .with("--ledger-etcd", etcd.urls());
    let mut schedulers: Vec<_> = (0..SCHEDULERS).map(|_| launch.start()).collect();
    schedulers.iter_mut().for_each(tests::Service::ready);
    let addresses: Vec<_> = schedulers.iter_mut().map(tests::Service::address).collect();

    let history = History::default();
    let caps: BTreeMap<_, _> =
        (0..ENGINES).map(|at| (format!("h{at}"), json!({ "cpu": CONTAINERS * MILLI }))).collect();
    history.put("hosts", "", "", &json!({ "t": 0, "hosts": caps }));
    let (begun, done, undecided) = (Instant::now(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let until = begun + scaled(LIMIT);
    for number in 0..CLIENTS {
        let (history, done, undecided, addresses) =
            (history.clone(), done.clone(), undecided.clone(), addresses.clone());
        let client = move || {
            if !Client::new(number).run(&addresses, &history, until) {
                undecided.fetch_add(1, Ordering::Relaxed);
            }
            done.fetch_add(1, Ordering::Relaxed);
        };
        std::thread::Builder::new().stack_size(STACK).spawn(client).unwrap();
    }
    let mut deaths = 0;
    while done.load(Ordering::Relaxed) < CLIENTS && begun.elapsed() < scaled(LIMIT) + LIFE {
        std::thread::sleep(LIFE);
        if done.load(Ordering::Relaxed) < CLIENTS {
            let at = deaths % SCHEDULERS;
            schedulers[at].kill();
            schedulers[at] = launch.clone().with("--listen", addresses[at].to_string()).start();
            deaths += 1;
        }
    }
    let took = begun.elapsed();
    assert_eq!(undecided.load(Ordering::Relaxed), 0, "clients without a definite answer after {took:?}");
    assert_eq!(done.load(Ordering::Relaxed), CLIENTS, "clients that panicked");
    assert!(deaths > 0, "no scheduler was ever killed");

    // Once nothing fails any more, everything settles.
    let calm = Instant::now();
    engines.0.stdin.as_mut().unwrap().write_all(b"mend\n").unwrap();
    assert_eq!(said.next().unwrap().unwrap(), "mended");
    let list = |address: SocketAddr| http::get("/v1/placements").ask(address).value()["placements"].clone();
    let settled = tests::eventually("everything is settled, for all alike", Duration::from_mins(2), || {
        let placements = list(addresses[0]);
        let states = placements.as_array()?.iter().map(|one| one["placements"][0]["containers"][0]["state"].clone());
        let started = states.into_iter().all(|state| state == "started");
        (started && addresses.iter().all(|address| list(*address) == placements)).then_some(placements)
    });
    let reservation =
        |one: &Value| (one["id"].as_str().unwrap().to_owned(), one["placements"][0]["host"]["name"].clone());
    let reservations: BTreeMap<_, _> = settled.as_array().unwrap().iter().map(reservation).collect();
    history.put("final", "", "", &json!({ "reservations": reservations }));
    let told = files.path("told.jsonl");
    let lines: Vec<String> = history.0.lock().unwrap().iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(&told, lines.concat()).unwrap();
    let mut judge = tests::shared::python().unwrap();
    let judged =
        judge.arg(batteries.join("sched_history_check.py")).args([&told, &engine_log]).arg("-v").output().unwrap();
    let text = String::from_utf8_lossy(&judged.stdout).into_owned() + &String::from_utf8_lossy(&judged.stderr);
    assert!(judged.status.success() && text.contains(" 0 failed"), "{text}");
    tests::tell(&format!(
        "{CLIENTS} requests of {SCHEDULERS} schedulers in {took:.0?}, settled {:.0?} later, {deaths} of them killed: {}",
        calm.elapsed(),
        text.lines().last().unwrap()
    ));
}
