//! Routes to 5,000 hosts: what they cost beside BIRD, and how soon a claim, a link or a hand on the table is answered.
//!
//! Hosts are network namespaces on one switch, with real agents and one etcd; the other hosts only have claims. When a route is
//! there is taken from `ip monitor`, which prints what the kernel announces.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use etcd::{EtcdClient, EtcdOptions, Op, Txn};
use serde_json::json;
use tempfile::TempDir;
use tests::Process;
use tests::etcd::Etcd;
use tests::namespace::{self, Switch};
use tokio::sync::Semaphore;

use crate::machine::Machine;
use crate::paired::Spread;
use crate::report::{Goal, Row};
use crate::scenario::Scene;
use crate::scenario::files::quiet;
use crate::server::{Executables, Server};
use crate::{Failure, exchange, say};

/// Where etcd listens.
const ETCD: Ipv4Addr = Ipv4Addr::new(10, 44, 0, 254);

/// Between two looks at a table.
const LOOK: Duration = Duration::from_millis(5);

/// Longest wait for a route to be announced.
const LIMIT: Duration = Duration::from_secs(20);

/// Changes a second.
const PACE: u32 = 100;

/// Requests to etcd at the same time while claims are loaded.
const LOADING: usize = 32;

/// The prefix of all keys.
const PREFIX: &str = "/berth/v1/";

/// A table, measured.
type Part = fn(&Machine, &Executables, &Size) -> Result<Vec<Row>, Failure>;

/// How much is measured.
struct Size {
    claims: u32,
    hosts: u8,
    rounds: usize,
    /// Changes one by one.
    changes: u32,
    /// Under load, and at rest.
    length: Duration,
}

pub(crate) fn run(scene: &mut Scene<'_>) {
    let quick = scene.options.quick;
    let size = Size {
        claims: if quick { 1000 } else { 5000 },
        hosts: if quick { 5 } else { 50 },
        rounds: scene.options.rounds(),
        changes: if quick { 20 } else { 200 },
        length: Duration::from_secs(if quick { 6 } else { 60 }),
    };
    let parts: [(String, &str, Part); 3] = [
        (format!("network: the first {} routes", size.claims), "processor ms", first_routes),
        (format!("network: changes among {} claims", size.claims), "see row", changes),
        (format!("network: {} hosts with {} claims, one joins", size.hosts, size.claims), "see row", joins),
    ];
    for (title, unit, measure) in parts {
        if scene.options.wants(&title) {
            let rows = measure(scene.machine, scene.executables, &size);
            let rows = rows.unwrap_or_else(|failure| vec![Row::missing("berth", failure.to_string())]);
            scene.tell(unit, &title, "bird", rows);
        }
    }
}

/// Hosts, etcd and the claims of all other hosts.
struct World {
    // Fields are dropped in this order.
    put: ChildStdin,
    put_done: Receiver<(Instant, String)>,
    _putting: Process,
    etcd: Etcd,
    switch: Switch,
    state: TempDir,
    executable: PathBuf,
}

impl World {
    fn new(executables: &Executables, hosts: u8, claims: u32) -> Result<Self, Failure> {
        let switch = Switch::new(hosts)?;
        let etcd = Etcd::start_within(&switch.switch, ETCD, 1).ok_or("no etcd (Debian's etcd-server and curl)")?;
        etcd.put(&format!("{PREFIX}config/network"), r#"{"berth":1,"cidr":"10.64.0.0/10"}"#);
        let peer = executables.own("claims", etcd.address(0));
        let mut command = namespace::command(Some(&switch.switch), peer.get_program());
        command.args(peer.get_args()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut putting = Process::start(&mut command);
        let put = putting.stdin.take().ok_or("no input")?;
        let put_done = lines(&mut putting)?;
        let mut world = Self {
            put,
            put_done,
            _putting: putting,
            etcd,
            switch,
            state: TempDir::new()?,
            executable: executables.of("agent"),
        };
        for host in 0..hosts {
            // Room for as many next hops.
            world.on(host, &["ip", "address", "add", &format!("10.46.255.{}/16", host + 1), "dev", "eth0"])?;
            let subnet = subnet(10_000 + u32::from(host));
            world.claim(&format!("bench-{host}"), subnet, Ipv4Addr::new(10, 46, 255, host + 1))?;
        }
        for number in 0..claims {
            writeln!(world.put, "{} {} {}", name(number), subnet(number), via(number, 0))?;
        }
        for _ in 0..claims {
            world.put_done.recv_timeout(LIMIT)?;
        }
        Ok(world)
    }

    /// Puts a claim, and returns when etcd has it.
    fn claim(&mut self, host: &str, subnet: Ipv4Addr, via: Ipv4Addr) -> Result<(), Failure> {
        writeln!(self.put, "{host} {subnet} {via}")?;
        self.put_done.recv_timeout(LIMIT)?;
        Ok(())
    }

    fn on(&self, host: u8, command: &[&str]) -> Result<String, Failure> {
        let output =
            namespace::command(Some(&self.switch.hosts[usize::from(host)]), command[0]).args(&command[1..]).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// How many routes of a protocol a host has.
    fn count(&self, host: u8, protocol: &str) -> Result<usize, Failure> {
        Ok(self.on(host, &["ip", "route", "show", "proto", protocol])?.lines().count())
    }

    fn agent(&self, host: u8, words: &[&str]) -> Command {
        let mut command = namespace::command(Some(&self.switch.hosts[usize::from(host)]), &self.executable);
        command.args(words).args([
            "--source",
            &format!("etcd:{}", self.etcd.urls()),
            "--host",
            &format!("bench-{host}"),
        ]);
        command.arg("--state-dir").arg(self.state.path().join(format!("{host}")));
        command.args(["--public-ip", &format!("10.46.255.{}", host + 1)]);
        command
    }

    /// Starts an agent, and returns when it has all routes.
    fn up(&self, machine: &Machine, host: u8, routes: usize) -> Result<Server, Failure> {
        let server = Server::start(machine, "agent", &self.agent(host, &["up", "--network"]), TempDir::new()?)?;
        let all = exchange::until("all routes", LOOK, || Ok(self.count(host, "98")? == routes));
        all.map_err(|failure| format!("{failure}: {}", server.log()))?;
        Ok(server)
    }

    /// What is announced of a host's routes from now on.
    fn monitor(&self, host: u8) -> Result<Monitor, Failure> {
        let mut command = namespace::command(Some(&self.switch.hosts[usize::from(host)]), "ip");
        let mut process = Process::start(command.args(["-4", "monitor", "route"]).stdout(Stdio::piped()));
        let announced = lines(&mut process)?;
        // Until it listens.
        thread::sleep(Duration::from_millis(200));
        Ok(Monitor { announced, _process: process })
    }
}

/// What the kernel announces of the routes of a host.
struct Monitor {
    announced: Receiver<(Instant, String)>,
    _process: Process,
}

impl Monitor {
    /// When a route was announced whose line has these parts.
    fn wait(&self, parts: &[&str]) -> Result<Instant, Failure> {
        loop {
            let (at, line) = self.announced.recv_timeout(LIMIT).map_err(|_| format!("no route {}", parts.join(" ")))?;
            if !line.starts_with("Deleted") && parts.iter().all(|part| line.contains(part)) {
                return Ok(at);
            }
        }
    }

    /// All that was announced, and was not asked for yet.
    fn rest(&self) -> Vec<(Instant, String)> {
        self.announced.try_iter().collect()
    }
}

/// The lines that a process prints, with the time of each.
fn lines(process: &mut Process) -> Result<Receiver<(Instant, String)>, Failure> {
    let output = process.stdout.take().ok_or("no output")?;
    let (sending, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sending.send((Instant::now(), line)).is_err() {
                return;
            }
        }
    });
    Ok(lines)
}

/// The peer `claims`: puts the claim of each line `HOST SUBNET VIA`, several at a time, and prints one for each.
pub(crate) fn put_claims(address: SocketAddr) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let _guard = runtime.enter();
    let client = EtcdClient::new(EtcdOptions::parse(&format!("http://{address}"))?)?;
    let places = Arc::new(Semaphore::new(LOADING));
    for line in std::io::stdin().lines() {
        let (line, client) = (line?, client.clone());
        let place = runtime.block_on(places.clone().acquire_owned())?;
        runtime.spawn(async move {
            let mut words = line.split(' ');
            let mut word = || words.next().unwrap_or_default();
            let (host, subnet, via) = (word(), word(), word());
            let put = |path: String, value: serde_json::Value| Op::Put {
                key: format!("{PREFIX}claims/{path}").into_bytes(),
                value: value.to_string().into_bytes(),
                lease: 0,
            };
            let success = vec![
                put(format!("subnet/{subnet}-24"), json!({ "host": host })),
                put(format!("host/{host}"), json!({ "subnet": format!("{subnet}/24"), "via": via })),
            ];
            let done = client.txn(Txn { success, ..Txn::default() }).await;
            say(&done.map_or_else(|error| error.to_string(), |_| "put".to_owned()));
            drop(place);
        });
    }
    Ok(())
}

fn name(number: u32) -> String {
    format!("host-{number}")
}

fn subnet(number: u32) -> Ipv4Addr {
    // The first one is not given.
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 64, 1, 0)) + (number << 8))
}

/// Through which address a host is reached after it has moved so often.
fn via(number: u32, turn: u32) -> Ipv4Addr {
    // Neither the first nor the last address of the network, nor those of the hosts that are there.
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 46, 0, 1)) + (number + turn * 8000) % 64_000)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Those at half and at 99 percent, and the longest, in milliseconds.
fn spread(mut delays: Vec<Duration>) -> [f64; 3] {
    delays.sort_unstable();
    let last = delays.len().saturating_sub(1);
    [last / 2, last * 99 / 100, last].map(|place| delays.get(place).copied().map_or(f64::NAN, milliseconds))
}

/// The same table of routes, written by BIRD and by the agent in turn.
fn first_routes(machine: &Machine, executables: &Executables, size: &Size) -> Result<Vec<Row>, Failure> {
    let world = World::new(executables, 1, size.claims)?;
    let routes = usize::try_from(size.claims)?;
    let host = world.switch.hosts[0].clone();
    let exported = world.agent(0, &["network", "export", "--format", "bird"]).output()?;
    let configuration = String::from_utf8_lossy(&exported.stdout).into_owned()
        + "router id 10.44.0.1;\nprotocol device {}\nprotocol kernel { ipv4 { import none; export all; }; }\n";
    let mut taken: [Vec<f64>; 2] = Default::default();
    let (mut walls, mut plans, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut bird_memory = 0;
    for _ in 0..size.rounds {
        let folder = TempDir::new()?;
        std::fs::write(folder.path().join("bird.conf"), &configuration)?;
        let mut command = namespace::command(Some(&host), "bird");
        command.args(["-f", "-c", "bird.conf", "-s", "bird.ctl", "-P", "bird.pid"]);
        let bird = Server::start(machine, "bird", &command, folder)?;
        let written = exchange::until("BIRD's routes", LOOK, || Ok(world.count(0, "bird")? == routes));
        written.map_err(|failure| format!("{failure}: {}", bird.log()))?;
        quiet(&bird)?;
        let of_bird = milliseconds(bird.cpu()?);
        bird_memory = bird.resident()?;
        drop(bird);
        world.on(0, &["ip", "route", "flush", "proto", "bird"])?;

        let (applied, wall) = once(machine, &world, &["network", "apply"])?;
        if world.count(0, "98")? != routes {
            return Err("apply has not written all routes".into());
        }
        let (planned, _) = once(machine, &world, &["network", "plan"])?;
        world.on(0, &["ip", "route", "flush", "proto", "98"])?;
        taken[0].push(of_bird);
        taken[1].push(applied);
        walls.push(wall);
        plans.push(planned);
        ratios.push(applied / of_bird);
    }
    let [of_bird, applied] = taken.map(|times| Spread::of(times).median);
    let planned = Spread::of(plans).median;
    let wall = Spread::of(walls).median;
    Ok(vec![
        Row::figure("bird, from its start until it is at rest", of_bird)
            .with_note(format!("{} MiB", bird_memory >> 20)),
        Row { ratio: Some(Spread::of(ratios)), ..Row::figure("berth: agent network apply, claims in etcd", applied) }
            .with_goal(Goal::AtMost(1.3)),
        Row::figure("berth: the same without a change: agent network plan", planned).with_goal(Goal::AtMost(25.0)),
        Row::figure("berth: the routes alone, the difference of both", applied - planned)
            .with_note("with what announces this host in etcd"),
        Row::figure("berth: agent network apply, wall ms", wall).with_goal(Goal::AtMost(1000.0)),
    ])
}

/// Processor and wall time of a command in milliseconds.
fn once(machine: &Machine, world: &World, words: &[&str]) -> Result<(f64, f64), Failure> {
    let begun = Instant::now();
    let mut command = Server::start(machine, "agent", &world.agent(0, words), TempDir::new()?)?;
    exchange::until("the command", Duration::from_millis(1), || Ok(!command.is_running()))?;
    let wall = milliseconds(begun.elapsed());
    Ok((milliseconds(command.cpu()?), wall))
}

fn changes(machine: &Machine, executables: &Executables, size: &Size) -> Result<Vec<Row>, Failure> {
    let mut world = World::new(executables, 1, size.claims)?;
    let routes = usize::try_from(size.claims)?;
    let mut rows = Vec::new();

    // The same agent without routes, for its memory.
    let plain = Server::start(machine, "agent", &world.agent(0, &["up"]), TempDir::new()?)?;
    thread::sleep(Duration::from_secs(3));
    quiet(&plain)?;
    let without = plain.resident()?;
    drop(plain);
    let agent = world.up(machine, 0, routes)?;
    quiet(&agent)?;
    let resident = agent.resident()?;
    let mebibytes = |bytes: u64| f64::from(u32::try_from(bytes >> 10).unwrap_or(u32::MAX)) / 1024.0;
    rows.push(
        Row::figure("memory beside the same agent without --network, MiB", mebibytes(resident) - mebibytes(without))
            .with_goal(Goal::AtMost(4.0))
            .with_note(format!("{:.1} MiB in all", mebibytes(resident))),
    );

    let begun = (agent.cpu()?, Instant::now());
    thread::sleep(size.length);
    let share = |begun: (Duration, Instant)| -> Result<f64, Failure> {
        let (before, since) = begun;
        Ok(100.0 * agent.cpu()?.saturating_sub(before).as_secs_f64() / since.elapsed().as_secs_f64())
    };
    let note = format!("{} s, with a look at everything each minute", size.length.as_secs());
    rows.push(Row::figure("at rest, % of a core", share(begun)?).with_goal(Goal::AtMost(0.1)).with_note(note));

    let monitor = world.monitor(0)?;
    let (mut delays, before) = (Vec::new(), agent.cpu()?);
    let mut announced = 0;
    for turn in 0..size.changes {
        let number = turn * 7 % size.claims;
        let next = via(number, 1);
        let begun = Instant::now();
        writeln!(world.put, "{} {} {next}", name(number), subnet(number))?;
        let at = monitor.wait(&[&subnet(number).to_string(), &next.to_string()])?;
        delays.push(at.saturating_duration_since(begun));
        world.put_done.recv_timeout(LIMIT)?;
        announced += 1;
        thread::sleep(Duration::from_millis(100));
        announced += monitor.rest().len();
    }
    let each = milliseconds(agent.cpu()?.saturating_sub(before)) / f64::from(size.changes);
    let [half, late, longest] = spread(delays);
    rows.push(Row::figure("a moved host, from the put to the route, p50 ms", half));
    let longest = format!("{longest:.0} ms at most; with the put itself");
    rows.push(
        Row::figure("a moved host, from the put to the route, p99 ms", late)
            .with_goal(Goal::AtMost(50.0))
            .with_note(longest),
    );
    let per_change = f64::from(u32::try_from(announced)?) / f64::from(size.changes);
    rows.push(
        Row::figure("changes of the table that the kernel announces for each", per_change).with_goal(Goal::AtMost(1.0)),
    );
    rows.push(Row::figure("processor ms for each", each));

    let (begun, mut count) = ((agent.cpu()?, Instant::now()), 0);
    while begun.1.elapsed() < size.length {
        let number = count * 13 % size.claims;
        let next = via(number, 2 + count / size.claims % 4);
        writeln!(world.put, "{} {} {next}", name(number), subnet(number))?;
        count += 1;
        thread::sleep((Duration::from_secs(1) * count / PACE).saturating_sub(begun.1.elapsed()));
    }
    let busy = share(begun)?;
    for _ in 0..count {
        world.put_done.recv_timeout(LIMIT)?;
    }
    rows.push(
        Row::figure(format!("{PACE} moved hosts a second, % of a core"), busy)
            .with_goal(Goal::AtMost(5.0))
            .with_note(format!("{count} in {} s", size.length.as_secs())),
    );
    thread::sleep(Duration::from_secs(1));

    rows.extend(interference(&world, &monitor, size)?);
    Ok(rows)
}

/// Routes go by a hand, or with their link.
fn interference(world: &World, monitor: &Monitor, size: &Size) -> Result<Vec<Row>, Failure> {
    let routes = usize::try_from(size.claims)?;
    let mut rows = Vec::new();
    let mut delays = Vec::new();
    for turn in 0..20 {
        let deleted = subnet(turn * 11 % size.claims);
        monitor.rest();
        world.on(0, &["ip", "route", "delete", &format!("{deleted}/24"), "proto", "98"])?;
        let gone = Instant::now();
        delays.push(monitor.wait(&[&deleted.to_string()])?.saturating_duration_since(gone));
        thread::sleep(Duration::from_millis(200));
    }
    let [half, _, longest] = spread(delays);
    let note = format!("p50 {half:.0} ms");
    rows.push(
        Row::figure("deleted by hand, until it is back, at most ms", longest)
            .with_goal(Goal::AtMost(100.0))
            .with_note(note),
    );

    let (mut first, mut last) = (Vec::new(), Vec::new());
    for _ in 0..size.rounds {
        world.on(0, &["ip", "link", "set", "eth0", "down"])?;
        thread::sleep(Duration::from_millis(500));
        // The next hops are in this one's network.
        monitor.rest();
        world.on(0, &["ip", "link", "set", "eth0", "up"])?;
        let up = Instant::now();
        exchange::until("all routes", LOOK, || Ok(world.count(0, "98")? == routes))?;
        thread::sleep(Duration::from_millis(500));
        let back: Vec<_> = monitor
            .rest()
            .into_iter()
            .filter(|(_, line)| line.contains("proto 98") && !line.starts_with("Deleted"))
            .collect();
        first.extend(back.first().map(|(at, _)| at.saturating_duration_since(up)));
        last.extend(back.last().map(|(at, _)| at.saturating_duration_since(up)));
        // With its link down, etcd was away too.
        thread::sleep(Duration::from_secs(3));
    }
    rows.push(
        Row::figure("link up, until the first route is back, ms", spread(first)[0]).with_goal(Goal::AtMost(50.0)),
    );
    rows.push(Row::figure("link up, until the last route is back, ms", spread(last)[0]).with_goal(Goal::AtMost(500.0)));
    Ok(rows)
}

/// A host claims a subnet, and all others route to it.
fn joins(machine: &Machine, executables: &Executables, size: &Size) -> Result<Vec<Row>, Failure> {
    let mut world = World::new(executables, size.hosts, size.claims)?;
    let routes = usize::try_from(size.claims)? + usize::from(size.hosts) - 1;
    let mut agents = Vec::new();
    for host in 0..size.hosts {
        agents.push(world.up(machine, host, routes)?);
    }
    let monitors = (0..size.hosts).map(|host| world.monitor(host)).collect::<Result<Vec<_>, _>>()?;
    let mut delays = Vec::new();
    for turn in 0..size.changes.min(50) {
        let (number, begun) = (size.claims + turn, Instant::now());
        world.claim(&name(number), subnet(number), via(number, 0))?;
        for monitor in &monitors {
            delays.push(monitor.wait(&[&subnet(number).to_string()])?.saturating_duration_since(begun));
        }
        thread::sleep(Duration::from_millis(300));
    }
    let count = delays.len();
    let [half, late, longest] = spread(delays);
    Ok(vec![
        Row::figure("from the claim to the route on a host, p50 ms", half).with_note(format!("{count} routes")),
        Row::figure("from the claim to the route on a host, p99 ms", late)
            .with_goal(Goal::AtMost(500.0))
            .with_note(format!("{longest:.0} ms at most")),
    ])
}
