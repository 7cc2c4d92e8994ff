//! Many clients at once that want containers of engines which fail, and the judge of what became of it.
//!
//! Engines of `batteries/fake_docker.py` remember what really happened, clients remember what they were told, and
//! `sched_history_check.py` judges both. What clients want and which answers engines lose is drawn by a seed: another one
//! each time, which is told, unless `BERTH_STORM_SEED` names one.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::cluster::ClusterFolder;
use crate::process::Process;
use crate::shared::{folder, python};
use crate::wait::seconds;
use crate::{Launch, http, ports, tell};

/// What the smallest kind of container takes.
pub const MILLI: i64 = 10;

/// Stack of a client's thread: it does nothing but wait.
const STACK: usize = 128 << 10;

/// Between two tries of a client.
const PAUSE: Duration = Duration::from_millis(300);

/// Starts the engines with their faults, says so, and serves until its input ends.
const ENGINES_PY: &str = "
import sys
sys.path.insert(0, sys.argv[1])
import fake_docker
hosts, base, log = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
fake_docker.random.seed(int(sys.argv[5]))
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

/// The file that says where they listen.
const LIST: &str = "engines.json";

/// Engines that fail, on hosts of a cluster file. Dropping this ends them.
#[derive(Debug)]
pub struct Engines {
    /// The cluster file that has their hosts, and its folder.
    pub files: ClusterFolder,
    process: Process,
    /// By what everything is drawn.
    pub seed: u64,
    base: u16,
    said: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
    judge: PathBuf,
    /// What fits on each host.
    capacities: BTreeMap<String, Value>,
}

impl Engines {
    /// Starts so many, each with room for so many of the smallest containers.
    ///
    /// `None`, with a word about it, where that is not possible; with `CI=true` that is a failure.
    pub fn start(count: u16, containers: i64) -> Option<Self> {
        let (shared, mut python) = (folder()?, python()?);
        let batteries = shared.join("batteries");
        let base = ports::in_a_row(count);
        let host = |at: u16| json!({ "name": format!("h{at}"), "uuid": format!("uuid-{at}"), "milli_cpu": containers * MILLI, "memory": 1 << 30 });
        let hosts: Vec<_> = (0..count).map(host).collect();
        let files = ClusterFolder::new(json!({ "berth": 1, "hosts": hosts }).to_string());
        let endpoint = |at: u16| (format!("h{at}"), json!(format!("tcp://127.0.0.1:{}", base + at)));
        let list: serde_json::Map<_, _> = (0..count).map(endpoint).collect();
        std::fs::write(files.path(LIST), Value::Object(list).to_string()).expect("a folder of the test's own");
        let log = files.path("engine.jsonl");
        let seed = seed();
        tell(&format!("BERTH_STORM_SEED={seed}"));
        python.args(["-c", ENGINES_PY]).arg(&batteries).args([count.to_string(), base.to_string()]).arg(&log);
        python.arg(seed.to_string());
        // Connections of a killed scheduler break, which Python tells at length.
        python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Process::start(&mut python);
        let said = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let capacity = |at| (format!("h{at}"), json!({ "cpu": containers * MILLI }));
        let (judge, capacities) = (batteries.join("sched_history_check.py"), (0..count).map(capacity).collect());
        let mut engines = Self { files, process, seed, base, said, log, judge, capacities };
        engines.says("serving");
        Some(engines)
    }

    /// A scheduler that knows their hosts and where they listen.
    pub fn scheduler(&self) -> Launch {
        let source = format!("file:{}", self.files.file().display());
        Launch::scheduler().with("--source", source).with("--docker-engines", self.files.path(LIST))
    }

    /// From now on nothing fails any more.
    pub fn mend(&mut self) {
        let input = self.process.stdin.as_mut().expect("it is piped");
        input.write_all(b"mend\n").expect("the engines run");
        self.says("mended");
    }

    /// From now on an engine fails in this way, or no more.
    pub fn fault(&self, engine: u16, fault: Option<Value>) {
        let fault = fault.map(|fault| fault.to_string()).unwrap_or_default();
        let set = http::post("/_fault", fault).ask(SocketAddr::from(([127, 0, 0, 1], self.base + engine)));
        assert_eq!(set.status, 200);
    }

    /// What an engine has, as an agent shows it; asks until that is answered.
    pub fn shown(&self, engine: u16) -> Vec<Value> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.base + engine));
        let listed = std::iter::repeat_with(|| http::get("/containers/json?all=1").send(address)).flatten();
        let mut good = listed.filter(|response| response.status == 200);
        let list = good.next().map(|response| response.value()).unwrap_or_default();
        let shown = |one: &Value| {
            let name = one["Names"][0].as_str().unwrap_or_default().trim_start_matches('/');
            json!({
                "name": name, "uuid": one["Id"], "external_id": one["Id"], "host": format!("h{engine}"), "labels": one["Labels"],
                "state": if one["State"] == "running" { "running" } else { "stopped" },
            })
        };
        list.as_array().into_iter().flatten().map(shown).collect()
    }

    /// Ends a container on an engine, as if by itself.
    pub fn end(&self, engine: u16, container: &str) {
        let stop = http::post(format!("/containers/{container}/stop"), "");
        assert_eq!(stop.ask(SocketAddr::from(([127, 0, 0, 1], self.base + engine))).status, 204);
    }

    /// How often engines did something: `create`, `start`, `die` or `destroy`.
    pub fn count(&self, what: &str) -> usize {
        self.events().iter().filter(|line| line["op"] == what).count()
    }

    /// All that engines did, in order.
    pub fn events(&self) -> Vec<Value> {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn says(&mut self, word: &str) {
        let line = self.said.next().and_then(Result::ok);
        assert_eq!(line.as_deref(), Some(word));
    }

    /// What the judge says of a storm after which these placements are held; he has to find nothing.
    pub fn judge(&self, storm: &Storm, placements: &Value) -> String {
        let held = |one: &Value| Some((one["id"].as_str()?.to_owned(), one["placements"][0]["host"]["name"].clone()));
        let held: BTreeMap<_, _> = placements.as_array().into_iter().flatten().filter_map(held).collect();
        storm.history.put("final", "", "", &json!({ "reservations": held }));
        let told = self.files.path("told.jsonl");
        storm.history.write(&told);
        let mut judge = python().expect("python was there a moment ago");
        let judged = judge.arg(&self.judge).args([&told, &self.log]).arg("-v").output().expect("it can be started");
        let text = String::from_utf8_lossy(&judged.stdout).into_owned() + &String::from_utf8_lossy(&judged.stderr);
        assert!(judged.status.success() && text.contains(": 11 passed, 0 failed"), "{text}");
        text.lines().last().unwrap_or_default().to_owned()
    }
}

/// The seed that was asked for, or the time.
fn seed() -> u64 {
    let given = std::env::var("BERTH_STORM_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    given.unwrap_or_else(|| now().into())
}

/// A number that stands for these three: `SplitMix64`.
pub fn draw(seed: u64, number: u64, what: u64) -> u64 {
    let mut mixed = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ what.wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Whether every placement in an answer to `GET /v1/placements` has its container.
pub fn all_started(placements: &Value) -> bool {
    let started = |one: &Value| one["placements"][0]["containers"][0]["state"] == "started";
    placements.as_array().is_some_and(|placements| placements.iter().all(started))
}

/// Clients that ask at the same time.
#[derive(Debug)]
pub struct Storm {
    /// How many there are.
    pub clients: usize,
    history: History,
    done: Arc<AtomicUsize>,
    undecided: Arc<AtomicUsize>,
    panicked: Arc<AtomicUsize>,
}

impl Storm {
    /// Sends `clients` to the schedulers, who have until `until`; of the first `doubles` every two want the same, of the
    /// others some want one of `ports` ports.
    pub fn begin(
        engines: &Engines,
        schedulers: &[SocketAddr],
        clients: usize,
        (doubles, ports): (usize, usize),
        until: Instant,
    ) -> Self {
        let (history, done, undecided, panicked) = Default::default();
        let storm = Self { clients, history, done, undecided, panicked };
        storm.history.put("hosts", "", "", &json!({ "t": 0, "hosts": engines.capacities }));
        for number in 0..clients {
            let (history, done) = (storm.history.clone(), storm.done.clone());
            let (undecided, panicked) = (storm.undecided.clone(), storm.panicked.clone());
            let (client, schedulers) = (Client::new(number, engines.seed, doubles, ports), schedulers.to_vec());
            let client = move || {
                // One that panics must not keep everybody waiting until the time is over.
                let run = || client.run(&schedulers, &history, until);
                match std::panic::catch_unwind(AssertUnwindSafe(run)) {
                    Ok(true) => {}
                    Ok(false) => drop(undecided.fetch_add(1, Ordering::Relaxed)),
                    Err(_) => drop(panicked.fetch_add(1, Ordering::Relaxed)),
                }
                done.fetch_add(1, Ordering::Relaxed);
            };
            std::thread::Builder::new().stack_size(STACK).spawn(client).expect("a thread can be started");
        }
        storm
    }

    /// Whether every client has ended.
    pub fn is_over(&self) -> bool {
        self.done.load(Ordering::Relaxed) == self.clients
    }

    /// Every client has to have been told something definite.
    pub fn check(&self) {
        assert_eq!(self.undecided.load(Ordering::Relaxed), 0, "clients without a definite answer");
        assert_eq!(self.panicked.load(Ordering::Relaxed), 0, "clients that panicked");
    }
}

/// What happened, for the judge.
#[derive(Clone, Debug, Default)]
struct History(Arc<Mutex<Vec<Value>>>);

impl History {
    fn put(&self, event: &str, operation: &str, request: &str, more: &Value) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let mut line = json!({ "t": now, "ev": event, "op": operation, "req": request });
        if let (Some(line), Some(more)) = (line.as_object_mut(), more.as_object()) {
            line.extend(more.clone());
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn write(&self, path: &Path) {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<String> = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(path, lines.concat()).expect("the folder is ours");
    }
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
    fn new(number: usize, seed: u64, doubles: usize, ports: usize) -> Self {
        let double = number < doubles;
        let drawn = |what: u64, of: u64| usize::try_from(draw(seed, number as u64, what) % of).unwrap_or_default();
        Self {
            number: number + drawn(0, 1 << 16),
            request: if double { format!("double-{}", number / 2) } else { format!("r-{number}") },
            milli: if double { MILLI } else { MILLI * [1, 1, 1, 5][drawn(1, 4)] },
            port: (!double && drawn(2, 10) >= 8).then(|| 8000 + drawn(3, ports as u64)),
            releases: !double && drawn(4, 2) == 0,
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
            std::thread::sleep(PAUSE);
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
            std::thread::sleep(PAUSE);
        }
        false
    }
}
