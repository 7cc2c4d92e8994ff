//! The page of an agent that knows 5,000 hosts with 100,000 containers: what it costs a browser, and what its viewers cost the agent.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tempfile::TempDir;

use crate::cluster::{Cluster, uuid};
use crate::feed::Feed;
use crate::load::udp::{FROM, Load};
use crate::machine::repository;
use crate::names::{self, Question};
use crate::paired::Spread;
use crate::report::{Goal, Row};
use crate::scenario::Scene;
use crate::scenario::files::quiet;
use crate::server::Server;
use crate::{Failure, exchange};

/// The container that changes.
const CHANGING: usize = 7;

/// Pages that are open while DNS is asked.
const VIEWERS: usize = 20;

/// Between two of a hundred changes a second.
const BETWEEN_CHANGES: Duration = Duration::from_millis(10);

/// Queries a second while pages are open, and for how long.
const PACE: u32 = 5000;
const PACED: Duration = Duration::from_secs(5);

/// Turns with pages, each between two without.
const TURNS: usize = 7;

/// The view of all hosts, and the page of the one whose container changes.
const HOSTS: &str = "/ui/hosts";

pub(crate) fn run(scene: &mut Scene<'_>) -> Result<(), Failure> {
    let mut agent = Agent::start(scene)?;
    let modules = repository().join("target/browser");
    if modules.join("node_modules/playwright-core").exists() && Path::new("/usr/bin/chromium").exists() {
        let mut browser = Browser::start(&modules)?;
        loading(scene, &agent, &mut browser)?;
        changes(scene, &mut agent, &mut browser)?;
    } else {
        let why = "apt-get install chromium; npm install --prefix target/browser playwright-core";
        scene.tell("see row", "the page in a browser", "", vec![Row::missing("berth", why)]);
    }
    viewers(scene, &mut agent)
}

/// An agent that follows a feed in which one container changes.
struct Agent {
    server: Server,
    feed: Feed,
    page: SocketAddr,
    dns: SocketAddr,
    turn: usize,
}

impl Agent {
    fn start(scene: &Scene<'_>) -> Result<Self, Failure> {
        let feed = Feed::start(&Cluster::of_hosts(), CHANGING)?;
        let mut command = Command::new(scene.executables.of("agent"));
        command.args(["up", "--log-format", "json", "--source", &format!("metadata:{}", feed.address)]);
        for part in ["--metadata", "--dns", "--ui", "--scheduler", "--admin"] {
            command.args([part, "127.0.0.1:0"]);
        }
        let server = Server::start(scene.machine, "berth", &command, TempDir::new()?)?;
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut agent = Self { server, feed, page: nowhere, dns: nowhere, turn: 0 };
        exchange::until("the agent", Duration::from_millis(20), || {
            if !agent.server.is_running() {
                return Err(format!("the agent does not run: {}", agent.server.log()).into());
            }
            let (Some(page), Some(dns)) = (agent.server.serving("ui"), agent.server.serving("dns")) else {
                return Ok(false);
            };
            (agent.page, agent.dns, agent.server.address) = (page, dns, dns);
            let (status, body) = exchange::get(page, HOSTS, "text/html")?;
            Ok(status == 200 && String::from_utf8_lossy(&body).contains("of 5000 hosts"))
        })?;
        quiet(&agent.server)?;
        Ok(agent)
    }

    /// Changes the address of the container; returns it.
    fn change(&mut self) -> Result<String, Failure> {
        self.turn += 1;
        let address = format!("10.99.{}.{}", self.turn / 250, self.turn % 250 + 1);
        self.feed.change(&self.turn.to_string(), &address)?;
        Ok(address)
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.page)
    }

    /// Processor time of one answer, in ms.
    fn cost_of(&self, path: &str) -> Result<f64, Failure> {
        let before = self.server.cpu()?;
        let (status, _) = exchange::get(self.page, path, "text/html")?;
        if status != 200 {
            return Err(format!("{path}: {status}").into());
        }
        thread::sleep(Duration::from_millis(20));
        Ok(millis(self.server.cpu()?.saturating_sub(before)))
    }

    /// Changes it a hundred times a second while something else is done.
    fn while_changing<T>(&mut self, work: impl FnOnce(&Server) -> Result<T, Failure>) -> Result<T, Failure> {
        let stop = AtomicBool::new(false);
        let Self { server, feed, turn, .. } = self;
        thread::scope(|scope| {
            let changer = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    *turn += 1;
                    feed.change(&turn.to_string(), &format!("10.98.{}.{}", *turn / 250 % 250, *turn % 250 + 1))?;
                    thread::sleep(BETWEEN_CHANGES);
                }
                Ok::<_, Failure>(())
            });
            let outcome = work(server);
            stop.store(true, Ordering::Relaxed);
            changer.join().map_err(|_| "the changer panicked")??;
            outcome
        })
    }
}

/// Chromium with one page, and a script that reads commands, a line each.
struct Browser {
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    _profile: TempDir,
}

impl Browser {
    fn start(modules: &Path) -> Result<Self, Failure> {
        let profile = TempDir::new()?;
        let mut command = Command::new("node");
        command.arg(repository().join("bench/browser/measure.mjs")).arg(modules).arg(profile.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let commands = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Self { child, commands, answers, _profile: profile })
    }

    fn ask(&mut self, command: &str) -> Result<Value, Failure> {
        let commands = self.commands.as_mut().ok_or("no input")?;
        writeln!(commands, "{command}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        serde_json::from_str(&line).map_err(|error| format!("{command}: {error}: {line}").into())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The end of its input is the end of the browser, too.
        self.commands = None;
        let _ = self.child.wait();
    }
}

fn figure(answer: &Value, key: &str) -> f64 {
    answer[key].as_f64().unwrap_or(f64::NAN)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// What a person waits for who types the address.
fn loading(scene: &mut Scene<'_>, agent: &Agent, browser: &mut Browser) -> Result<(), Failure> {
    if !scene.options.wants("loading") {
        return Ok(());
    }
    let rounds = if scene.options.quick { 3 } else { 11 };
    let mut views = Vec::new();
    for path in ["/ui/", HOSTS] {
        // The first load starts parts of the browser.
        let url = agent.url(path);
        browser.ask(&format!("load {url}"))?;
        let loads = (0..rounds).map(|_| browser.ask(&format!("load {url}"))).collect::<Result<Vec<_>, _>>()?;
        views.push(move |key: &str| Spread::of(loads.iter().map(|load| figure(load, key)).collect::<Vec<_>>()));
    }
    let row = |subject: &str, spread: Spread, scale: f64, most: f64| {
        Row::figure(subject, spread.median * scale).with_goal(Goal::AtMost(most)).with_note(format!(
            "{:.0}-{:.0}",
            spread.min * scale,
            spread.max * scale
        ))
    };
    let [overview, hosts] = &views[..] else { return Err("two views".into()) };
    let rows = vec![
        row("overview: first contentful paint, ms", overview("painted"), 1.0, 300.0),
        row("overview: longest task, ms (0: none over 50)", overview("longest"), 1.0, 100.0),
        row("hosts: first contentful paint, ms", hosts("painted"), 1.0, 300.0),
        row("hosts: complete and live, ms", hosts("live"), 1.0, 1000.0),
        row("hosts: longest task, ms (0: none over 50)", hosts("longest"), 1.0, 100.0),
        row("hosts: document, script and style, kB", hosts("raw"), 1e-3, 150.0),
        row("hosts: the same as it is sent, kB", hosts("sent"), 1e-3, 45.0),
        row("hosts: requests, with the stream", hosts("requests"), 1.0, 5.0),
        row("overview: as it is sent, kB", overview("sent"), 1e-3, 45.0),
    ];
    scene.tell("see row", "loading the page of 5,000 hosts and 100,000 containers", "", rows);
    Ok(())
}

/// What a change costs an open page, one by one and a hundred a second.
fn changes(scene: &mut Scene<'_>, agent: &mut Agent, browser: &mut Browser) -> Result<(), Failure> {
    if !scene.options.wants("changes") {
        return Ok(());
    }
    let rounds = if scene.options.quick { 5 } else { 21 };
    let host = format!("{HOSTS}/{}", uuid(2, CHANGING));
    let mut rows = Vec::new();
    for (what, path, is_visible, most) in [("visible", &*host, true, 2.0), ("not visible", "/ui/services", false, 0.2)]
    {
        browser.ask(&format!("load {}", agent.url(path)))?;
        let (mut scripts, mut seen) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            thread::sleep(Duration::from_millis(400));
            let before = browser.ask("figures")?;
            let begun = SystemTime::now().duration_since(UNIX_EPOCH)?;
            let address = agent.change()?;
            if is_visible {
                let at = figure(&browser.ask(&format!("text {address}"))?, "seen");
                seen.push(at - millis(begun));
            }
            thread::sleep(Duration::from_millis(600));
            scripts.push(figure(&browser.ask("figures")?, "taking") - figure(&before, "taking"));
        }
        let scripts = Spread::of(scripts);
        let note = format!("{:.2}-{:.2}; a browser's clock has steps of 0.1 ms", scripts.min, scripts.max);
        let row = Row::figure(format!("a change that is {what}: script, ms"), scripts.median);
        rows.push(row.with_goal(Goal::AtMost(most)).with_note(note));
        if is_visible {
            let seen = Spread::of(seen);
            let row = Row::figure("a change that is visible: seen after, ms", seen.median);
            rows.push(row.with_goal(Goal::AtMost(300.0)).with_note(format!("{:.0}-{:.0}", seen.min, seen.max)));
        }
    }
    let time = Duration::from_secs(if scene.options.quick { 10 } else { 120 });
    browser.ask(&format!("load {}", agent.url(&host)))?;
    let (before, after) = agent.while_changing(|_| {
        // The first seconds fill what later ones use again.
        thread::sleep(time / 4);
        let before = browser.ask("figures")?;
        thread::sleep(time);
        Ok((before, browser.ask("figures")?))
    })?;
    let grown = |key: &str| figure(&after, key) - figure(&before, key);
    let seconds = time.as_secs_f64();
    rows.extend([
        Row::figure("100 changes a second: % of a core in the page", grown("task") / seconds * 100.0)
            .with_goal(Goal::AtMost(15.0))
            .with_note(format!("for {seconds:.0} s; script {:.1}", grown("script") / seconds * 100.0)),
        Row::figure("100 changes a second: longest task, ms (0: none over 50)", figure(&after, "longest"))
            .with_goal(Goal::AtMost(50.0)),
        Row::figure("100 changes a second: growth of the heap, MB", grown("heap") / 1e6)
            .with_goal(Goal::AtMost(1.0))
            .with_note(format!("nodes {:+.0}", grown("nodes"))),
    ]);
    scene.tell("see row", "changes on an open page", "", rows);
    Ok(())
}

/// What viewers cost the agent.
fn viewers(scene: &mut Scene<'_>, agent: &mut Agent) -> Result<(), Failure> {
    if !scene.options.wants("viewers") {
        return Ok(());
    }
    let rounds = if scene.options.quick { 3 } else { 11 };
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        // What was made of the snapshot before does not help.
        agent.change()?;
        thread::sleep(Duration::from_millis(300));
        cold.push(agent.cost_of(HOSTS)?);
        warm.push(agent.cost_of(HOSTS)?);
    }
    let (cold, warm) = (Spread::of(cold), Spread::of(warm));
    let spread = |spread: Spread| format!("{:.1}-{:.1}", spread.min, spread.max);
    let mut rows = vec![
        Row::figure("hosts, the first after a change, CPU ms", cold.median)
            .with_goal(Goal::AtMost(30.0))
            .with_note(spread(cold)),
        Row::figure("hosts, again, CPU ms", warm.median).with_goal(Goal::AtMost(1.0)).with_note(spread(warm)),
    ];
    let time = Duration::from_secs(if scene.options.quick { 3 } else { 20 });
    let spent = |server: &Server| {
        let before = server.cpu()?;
        thread::sleep(time);
        Ok(server.cpu()?.saturating_sub(before).as_secs_f64() / time.as_secs_f64() * 100.0)
    };
    let questions: Vec<_> = (100..1000).map(|number| Question::new(&names::name(number), true)).collect();
    let load = Load { questions: &questions, from: &FROM, check: false };
    let late = |server: &Server| load.pace(server, PACE, PACED).map(|(_, mut tally)| tally.permille(990) / 1e3);
    let alone = agent.while_changing(spent)?;
    let memory = agent.server.resident()?;
    let open = |page| {
        let streams = (0..VIEWERS).map(|_| Viewer::open(page)).collect::<Result<Vec<_>, _>>();
        thread::sleep(Duration::from_secs(1));
        streams
    };
    let close = |streams: Vec<Viewer>| streams.into_iter().map(Viewer::close).min().unwrap_or_default();
    let streams = open(agent.page)?;
    let watched = agent.while_changing(spent)?;
    let each = f64::from(u32::try_from(agent.server.resident()?.saturating_sub(memory) >> 10).unwrap_or(u32::MAX));
    let least = close(streams);
    let (mut calm, mut busy) = (vec![agent.while_changing(late)?], Vec::new());
    for _ in 0..if scene.options.quick { 2 } else { TURNS } {
        let streams = open(agent.page)?;
        busy.push(agent.while_changing(late)?);
        close(streams);
        calm.push(agent.while_changing(late)?);
    }
    let ratios = busy.iter().zip(calm.windows(2)).map(|(busy, calm)| busy / f64::midpoint(calm[0], calm[1]));
    let (ratio, calm, busy) = (Spread::of(ratios), Spread::of(calm), Spread::of(busy));
    let fine = |spread: Spread| format!("{:.2}-{:.2}", spread.min, spread.max);
    let viewers = f64::from(u32::try_from(VIEWERS).unwrap_or(u32::MAX));
    rows.extend([
        Row::figure("each viewer at 100 changes a second, % of a core", (watched - alone) / viewers)
            .with_goal(Goal::AtMost(0.5))
            .with_note(format!(
                "{alone:.1} without, {watched:.1} with {VIEWERS} viewers of all hosts, each sent {least} bytes or more"
            )),
        Row::figure("each viewer, KiB", each / viewers).with_goal(Goal::AtMost(200.0)),
        Row::figure("DNS, 99 of 100 within, ms, no viewer", calm.median).with_note(fine(calm)),
        Row::figure(format!("DNS, 99 of 100 within, ms, {VIEWERS} viewers"), busy.median).with_note(fine(busy)),
        Row::figure("DNS, the second beside the first, by turns", ratio.median)
            .with_goal(Goal::AtMost(1.2))
            .with_note(fine(ratio)),
    ]);
    scene.tell("see row", "what viewers cost the agent", "", rows);
    Ok(())
}

/// An open page of all hosts, as far as the agent knows.
struct Viewer {
    stream: TcpStream,
    reader: thread::JoinHandle<usize>,
}

impl Viewer {
    fn open(page: SocketAddr) -> Result<Self, Failure> {
        let mut stream = TcpStream::connect(page)?;
        write!(
            stream,
            "GET /ui/v1/stream?at=%2Fui%2Fhosts HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\n\r\n"
        )?;
        let mut reading = stream.try_clone()?;
        let reader = thread::spawn(move || {
            let (mut bytes, mut all) = ([0; 16 << 10], 0);
            while let Ok(length @ 1..) = reading.read(&mut bytes) {
                all += length;
            }
            all
        });
        Ok(Self { stream, reader })
    }

    /// How much it was sent.
    fn close(self) -> usize {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        self.reader.join().unwrap_or_default()
    }
}
