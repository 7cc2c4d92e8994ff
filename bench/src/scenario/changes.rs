//! What one change among many containers costs, and how soon those who wait know of it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::feed::Feed;
use crate::load::udp::{FROM, Load};
use crate::machine::Machine;
use crate::names::{self, Question};
use crate::paired::Spread;
use crate::report::{Goal, Row};
use crate::scenario::Scene;
use crate::scenario::files::quiet;
use crate::server::{Executables, Server};
use crate::waiters::{Follower, Waiters};
use crate::{Failure, exchange};

/// Clients that wait for the next version.
const WAITERS: usize = 5000;

/// Changes over which the cost of one is taken.
const CHANGES: usize = 20;

/// Queries a second while zones are swapped, for how long, and how often a change comes.
const PACE: u32 = 5000;
const PACED: Duration = Duration::from_secs(2);
const BETWEEN_CHANGES: Duration = Duration::from_millis(20);

/// Requests a second meanwhile, and on how many connections.
const REQUEST_PACE: u32 = 2000;
const PACED_CONNECTIONS: usize = 8;

/// An answer that takes longer was kept waiting.
const LATE: Duration = Duration::from_millis(5);

/// The container that changes: its service has no other.
const CHANGING: usize = 7;

pub(crate) fn run(scene: &mut Scene<'_>) -> Result<(), Failure> {
    let Scene { machine, executables, options, .. } = *scene;
    let sizes: &[usize] = if options.quick { &[1000, 10_000] } else { &[1000, 10_000, 100_000] };
    let mut metadata = Vec::new();
    let mut waiting = Vec::new();
    let mut memory: Vec<(usize, u64)> = Vec::new();
    let mut dns = Vec::new();
    for containers in sizes {
        let subject = format!("berth, {containers} containers");
        if options.wants("metadata") {
            let mut changing = Changing::start(machine, executables, "metadata", *containers)?;
            memory.push((*containers, changing.server.resident()?));
            let (cost, seen) = changing.cost()?;
            metadata.push(
                Row::figure(&subject, cost.median)
                    .with_goal(Goal::AtMost(5.0))
                    .with_note(format!("{:.2}-{:.2} ms; seen after {:.1} ms", cost.min, cost.max, seen.median)),
            );
            waiting.push(changing.wake()?);
        }
        if options.wants("dns") {
            let mut changing = Changing::start(machine, executables, "dns", *containers)?;
            let (cost, seen) = changing.cost()?;
            dns.push(
                Row::figure(&subject, seen.median)
                    .with_goal(Goal::AtMost(5.0))
                    .with_note(format!("{:.1}-{:.1} ms; {:.2} CPU ms each", seen.min, seen.max, cost.median)),
            );
        }
    }
    let containers = sizes[sizes.len() - 1];
    for (service, what) in [("dns", "queries"), ("metadata", "requests")] {
        let title = format!("{service}: {what} late or lost while {containers} containers are swapped");
        if options.wants("swaps") || options.wants(&title) {
            let changing = Changing::start(machine, executables, service, containers)?;
            let rows = if service == "dns" { dns_swaps(changing)? } else { metadata_swaps(changing)? };
            scene.tell("of 10000", &title, "", rows);
        }
    }
    if let [first, .., last] = &metadata[..] {
        let growth = last.figure.unwrap_or(f64::NAN) / first.figure.unwrap_or(f64::NAN);
        metadata
            .push(Row::figure("berth, largest by smallest", growth).with_goal(Goal::AtMost(3.0)).with_note("a ratio"));
    }
    let mut rows = Vec::new();
    if let [(few, least), .., (many, most)] = memory[..] {
        let each = to_f64(most.saturating_sub(least)) / to_f64((many - few) as u64) / 1024.0;
        rows.push(
            Row::figure("berth metadata, each container", each)
                .with_goal(Goal::AtMost(4.0))
                .with_note(format!("{} MB with {many} containers", most >> 20)),
        );
    }
    rows.extend(waiting.iter().map(|waiting| {
        Row::figure(format!("berth metadata, each waiter ({})", waiting.containers), waiting.kibibytes)
            .with_goal(Goal::AtMost(16.0))
    }));
    let woken = waiting.iter().map(|waiting| {
        Row::figure(format!("berth, {} containers", waiting.containers), waiting.last)
            .with_goal(Goal::AtMost(250.0))
            .with_note(waiting.note.clone())
    });
    for (title, unit, rows) in [
        ("metadata: one container changes", "CPU ms/change", metadata),
        ("metadata: until the last of 5000 waiters is answered", "ms", woken.collect()),
        ("metadata: memory at rest", "KiB", rows),
        ("dns: until a changed address is answered", "ms", dns),
    ] {
        if !rows.is_empty() {
            scene.tell(unit, title, "", rows);
        }
    }
    Ok(())
}

/// Queries at a pace, without changes and with one every 20 ms.
fn dns_swaps(changing: Changing) -> Result<Vec<Row>, Failure> {
    let questions: Vec<_> = (100..1000).map(|number| Question::new(&names::name(number), true)).collect();
    let load = Load { questions: &questions, from: &FROM, check: true };
    swaps("berth dns", changing, |server| {
        let (sample, tally) = load.pace(server, PACE, PACED)?;
        let late = tally.later_than(LATE) as u64;
        let share = to_f64((late + tally.lost + tally.wrong) * 10_000) / to_f64(tally.answered + tally.lost);
        let greatest = tally.latencies.iter().max().copied().unwrap_or_default();
        let note = format!(
            "lost {}, wrong {}, later than {} ms {late}, greatest {:.1} ms; {:.1} CPU µs each",
            tally.lost,
            tally.wrong,
            LATE.as_millis(),
            f64::from(greatest) / 1e6,
            sample.cost
        );
        Ok((share, note))
    })
}

/// The same with requests, on kept connections in turn; one that fails ends the whole.
fn metadata_swaps(changing: Changing) -> Result<Vec<Row>, Failure> {
    let name = changing.cluster.container(0);
    swaps("berth metadata", changing, |server| {
        let mut connections = (0..PACED_CONNECTIONS)
            .map(|_| {
                let stream = TcpStream::connect(server.address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PACED)).map(|()| stream)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let before = server.cpu()?;
        let start = Instant::now();
        let (mut asked, mut late, mut greatest) = (0, 0, Duration::ZERO);
        while start.elapsed() < PACED {
            // What a request before was kept waiting counts for this one too.
            let due = start + Duration::from_secs(1) * asked / REQUEST_PACE;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let number = asked as usize % connections.len();
            let stream = &mut connections[number];
            stream.write_all(b"GET /latest/self/container/name HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
            let mut answer = [0; 1024];
            let length = stream.read(&mut answer)?;
            if !answer[..length].ends_with(name.as_bytes()) {
                return Err(format!("a wrong answer: {}", answer[..length].escape_ascii()).into());
            }
            let took = due.elapsed();
            asked += 1;
            late += u32::from(took > LATE);
            greatest = greatest.max(took);
        }
        let cpu = server.cpu()?.saturating_sub(before).as_secs_f64() * 1e6 / f64::from(asked);
        let note = format!(
            "lost 0, later than {} ms {late}, greatest {:.1} ms; {cpu:.1} CPU µs each",
            LATE.as_millis(),
            greatest.as_secs_f64() * 1e3
        );
        Ok((f64::from(late) * 1e4 / f64::from(asked), note))
    })
}

/// What `run` finds without changes, and with one every 20 ms.
fn swaps(
    name: &str,
    changing: Changing,
    run: impl Fn(&Server) -> Result<(f64, String), Failure>,
) -> Result<Vec<Row>, Failure> {
    let Changing { server, mut feed, .. } = changing;
    let (calm, calm_note) = run(&server)?;
    let stop = AtomicBool::new(false);
    let (busy, busy_note) = thread::scope(|scope| {
        let changer = scope.spawn(|| {
            let mut turn = 0;
            while !stop.load(Ordering::Relaxed) {
                turn += 1;
                feed.change(&format!("swap {turn}"), &format!("10.98.{}.{}", turn / 250, turn % 250 + 1)).map(drop)?;
                thread::sleep(BETWEEN_CHANGES);
            }
            Ok::<_, Failure>(turn)
        });
        let outcome = run(&server);
        stop.store(true, Ordering::Relaxed);
        let turns = changer.join().map_err(|_| "the changer panicked")??;
        outcome.map(|(share, note)| (share, format!("{turns} changes; {note}")))
    })?;
    Ok(vec![
        Row::figure(format!("{name}, calm"), calm).with_note(calm_note),
        Row::figure(format!("{name}, changing"), busy).with_goal(Goal::AtMost(calm)).with_note(busy_note),
    ])
}

fn to_f64(value: u64) -> f64 {
    f64::from(u32::try_from(value >> 10).unwrap_or(u32::MAX)) * 1024.0
        + f64::from(u32::try_from(value & 1023).unwrap_or(0))
}

/// A service that follows a feed in which one container changes.
struct Changing {
    cluster: Cluster,
    server: Server,
    feed: Feed,
    turn: usize,
    /// Whether it is DNS: then what changes is looked for in the answer, otherwise in the tree.
    dns: bool,
}

/// How those who waited fared.
struct Woken {
    containers: usize,
    /// Until the last was answered, in ms.
    last: f64,
    /// Memory of one that waits.
    kibibytes: f64,
    note: String,
}

impl Changing {
    fn start(machine: &Machine, executables: &Executables, service: &str, containers: usize) -> Result<Self, Failure> {
        let dns = service == "dns";
        let cluster = if dns { Cluster::of_names(containers) } else { Cluster::of_services(containers) };
        let feed = Feed::start(&cluster, CHANGING)?;
        let server = executables.start(machine, service, &["--source", &format!("metadata:{}", feed.address)])?;
        let mut changing = Self { cluster, server, feed, turn: 0, dns };
        // The first change makes sure that all is there.
        changing.change_and_look()?;
        quiet(&changing.server)?;
        Ok(changing)
    }

    /// Changes the container once; returns how long it took until that was visible.
    fn change_and_look(&mut self) -> Result<Duration, Failure> {
        let (was, before) = (self.turn.to_string(), self.address());
        self.turn += 1;
        let (turn, address) = (self.turn.to_string(), self.address());
        let label = format!("/latest/containers/{}/labels/turn", self.cluster.container(CHANGING));
        let poll = format!("{label}?wait=true&value={was}&maxWait=30");
        let question = Question::new(&names::name(CHANGING), true);
        let left = self.feed.change(&turn, &address)?;
        let (server, dns) = (&self.server, self.dns);
        exchange::until(&format!("change of {before} to {address}"), Duration::ZERO, || {
            if dns {
                let reply = exchange::ask(server.address, &question);
                let wanted: std::net::Ipv4Addr = address.parse()?;
                return Ok(reply.is_some_and(|(reply, _)| reply.windows(4).any(|bytes| bytes == wanted.octets())));
            }
            Ok(exchange::text(server.address, &poll)?.as_deref() == Some(&*turn))
        })?;
        Ok(left.elapsed())
    }

    fn address(&self) -> String {
        format!("10.99.{}.{}", self.turn / 250, self.turn % 250 + 1)
    }

    /// Processor time of one change, and the time until it is seen, in ms.
    fn cost(&mut self) -> Result<(Spread, Spread), Failure> {
        let (mut costs, mut times) = (Vec::new(), Vec::new());
        for _ in 0..CHANGES {
            let before = self.server.cpu()?;
            let took = self.change_and_look()?;
            // What is freed afterwards belongs to it.
            thread::sleep(Duration::from_millis(20));
            costs.push(self.server.cpu()?.saturating_sub(before).as_secs_f64() * 1e3);
            times.push(took.as_secs_f64() * 1e3);
        }
        Ok((Spread::of(costs), Spread::of(times)))
    }

    /// Lets many wait for the next version, and changes it.
    fn wake(&mut self) -> Result<Woken, Failure> {
        let version = exchange::text(self.server.address, "/latest/version")?.ok_or("no version")?;
        let path = format!("/latest/version?wait=true&value={version}&maxWait=60");
        let rest = self.server.resident()?;
        let waiters = Waiters::start(self.server.address, &path, WAITERS)?;
        quiet(&self.server)?;
        let waiting = self.server.resident()?;
        // Only now, because it is sent everything first, which takes memory of its own.
        let follower = Follower::start(self.server.address);
        quiet(&self.server)?;
        let before = self.server.cpu()?;
        self.turn += 1;
        let left = self.feed.change(&self.turn.to_string(), &self.address())?;
        let answered = waiters.answered()?;
        let cpu = self.server.cpu()?.saturating_sub(before);
        let line = follower.line()?;
        let after = |moment: Instant| moment.saturating_duration_since(left).as_secs_f64() * 1e3;
        let times = Spread::of(answered.iter().map(|moment| after(*moment)));
        let line =
            line.map_or_else(|| "no stream of changes".to_owned(), |line| format!("change line {:.1} ms", after(line)));
        Ok(Woken {
            containers: self.cluster.containers,
            last: times.max,
            kibibytes: to_f64(waiting.saturating_sub(rest)) / to_f64(WAITERS as u64) / 1024.0,
            note: format!(
                "first {:.1}, median {:.1} ms; {:.1} CPU µs each; {line}",
                times.min,
                times.median,
                cpu.as_secs_f64() * 1e6 / to_f64(WAITERS as u64)
            ),
        })
    }
}
