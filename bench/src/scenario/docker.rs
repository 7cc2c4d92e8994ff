//! A real Docker Engine with many containers: how soon a started one is known, from the engine's own event on.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tests::engine::Engine;
use tests::namespace::Pair;

use crate::machine::Machine;
use crate::names::{self, Question};
use crate::report::{Goal, Row};
use crate::scenario::Scene;
use crate::scenario::files::quiet;
use crate::server::Executables;
use crate::{Failure, exchange};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(1);

/// Longest wait for an event of the engine.
const EVENT_LIMIT: Duration = Duration::from_secs(20);

pub(crate) fn run(scene: &mut Scene<'_>) {
    let Scene { machine, executables, options, .. } = *scene;
    let (containers, starts) = if options.quick { (100, 20) } else { (1000, 100) };
    let title = format!("a started container among {containers} of an engine");
    if !options.wants(&title) {
        return;
    }
    let rows = measure(machine, executables, containers, starts);
    let rows = rows.unwrap_or_else(|failure| vec![Row::missing("berth", failure.to_string())]);
    scene.tell("ms", &title, "", rows);
}

fn measure(
    machine: &Machine,
    executables: &Executables,
    containers: usize,
    starts: usize,
) -> Result<Vec<Row>, Failure> {
    let pair = Pair::new("10.42.0.7")?;
    let engine = Engine::start(&pair.host).ok_or("no engine (Debian's docker.io, as root)")?;
    engine.import("box", &[Path::new("/bin/busybox")], &[("sh", "busybox")]);
    engine.docker(&["network", "create", "--subnet", "172.30.0.0/16", "net"]);
    for number in 0..containers {
        let (name, address) = (name(number), address(number));
        let flags = ["create", "--name", &name, "--network", "net", "--ip", &address, "--stop-signal", "KILL"];
        engine.docker(&[&flags[..], &["box", "/bin/busybox", "sleep", "3600"]].concat());
    }
    let source = format!("docker:unix://{}", engine.socket().display());
    let metadata = executables.start(machine, "metadata", &["--source", &source, "--xff"])?;
    let dns = executables.start(machine, "dns", &["--metadata-server", &metadata.address.to_string()])?;
    let last = format!("/latest/containers/{}/name", name(containers - 1));
    exchange::until("all containers", LOOK, || Ok(exchange::text(metadata.address, &last)?.is_some()))?;
    quiet(&metadata)?;
    let events = Events::follow(&engine)?;
    let before = (metadata.cpu()?, dns.cpu()?);
    let mut delays = Vec::new();
    for start in 0..starts {
        let number = start * 7919 % containers;
        let (server, resolver) = (metadata.address, dns.address);
        let looking = thread::spawn(move || known(server, resolver, number).map_err(|failure| failure.to_string()));
        engine.docker(&["start", &name(number)]);
        let event = events.of(&name(number))?;
        let known = looking.join().map_err(|_| "looking failed")??;
        delays.push(known.saturating_sub(event).as_secs_f64() * 1e3);
        engine.docker(&["stop", "--time", "0", &name(number)]);
    }
    let each = |now: Duration, before: Duration| {
        now.saturating_sub(before).as_secs_f64() * 1e3 / f64::from(u32::try_from(starts).unwrap_or(1))
    };
    let (own, follower) = (each(metadata.cpu()?, before.0), each(dns.cpu()?, before.1));
    delays.sort_by(f64::total_cmp);
    let at = |percent: usize| delays[(delays.len() - 1) * percent / 100];
    Ok(vec![
        Row::figure("self and names, p50", at(50)).with_note(format!("{starts} starts")),
        Row::figure("self and names, p99", at(99))
            .with_goal(Goal::AtMost(100.0))
            .with_note(format!("greatest {:.0} ms", at(100))),
        Row::figure("metadata, CPU per start and stop", own),
        Row::figure("dns, CPU per start and stop", follower),
    ])
}

fn name(number: usize) -> String {
    format!("c{number:04}")
}

fn address(number: usize) -> String {
    format!("172.30.{}.{}", 1 + number / 200, 10 + number % 200)
}

/// When a container is known by its address and by its name, since 1970.
fn known(metadata: SocketAddr, dns: SocketAddr, number: usize) -> Result<Duration, Failure> {
    let question = Question::new(&format!("{}.{}", name(number), names::ZONE), true);
    exchange::until("its name", LOOK, || Ok(exchange::answers(dns, &question)))?;
    exchange::until("its self", LOOK, || Ok(own_name(metadata, &address(number))? == name(number)))?;
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?)
}

/// What a container at this address is told of its name.
fn own_name(metadata: SocketAddr, from: &str) -> Result<String, Failure> {
    let mut stream = TcpStream::connect(metadata)?;
    let path = "/latest/self/container/name";
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\nX-Forwarded-For: {from}\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response.split_once("\r\n\r\n").map_or_else(String::new, |(_, body)| body.to_owned()))
}

/// The engine's events of started containers.
struct Events {
    child: std::process::Child,
    lines: Receiver<String>,
}

impl Events {
    fn follow(engine: &Engine) -> Result<Self, Failure> {
        let format = "{{.TimeNano}} {{.Actor.Attributes.name}}";
        let mut command = engine.command(&["events", "--filter", "event=start", "--format", format]);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("it is piped")?;
        let (telling, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if telling.send(line).is_err() {
                    break;
                }
            }
        });
        // The client tells of what happens from now on as soon as it is connected.
        thread::sleep(Duration::from_secs(1));
        Ok(Self { child, lines })
    }

    /// When a container was started, since 1970.
    fn of(&self, name: &str) -> Result<Duration, Failure> {
        loop {
            let line = self.lines.recv_timeout(EVENT_LIMIT)?;
            let (time, of) = line.split_once(' ').ok_or("an event without a name")?;
            if of == name {
                return Ok(Duration::from_nanos(time.parse()?));
            }
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
