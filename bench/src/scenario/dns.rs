//! Questions to the DNS service, beside the servers in wide use.

use std::io::Write;
use std::net::Ipv4Addr;
use std::time::Duration;

use tempfile::NamedTempFile;

use crate::cluster::Cluster;
use crate::load;
use crate::load::dnsperf::{self, Questions};
use crate::load::udp::{FROM, Load};
use crate::machine::Machine;
use crate::names::{Mix, NAMES, Question};
use crate::paired::{Measured, Spread, Subject, measure};
use crate::peer::{DNSMASQ, DnsPeer, INSTALL, KNOT, NSD, PDNS, UNBOUND, UNBOUND_FORWARDING, start_own};
use crate::report::{Goal, Report, Row, Section};
use crate::server::{Executables, Server};
use crate::{Failure, Options, exchange};

/// Clients with a section of their own.
const SECTIONS: usize = 2000;

/// Containers in the large zone, and in the small one it is compared with.
const LARGE: usize = 100_000;
const SMALL: usize = 1000;

/// Queries a second that leave every server time enough.
const PACE: u32 = 20_000;

/// A peer, and the least that its cost has to be of ours.
type Peer<'a> = (&'a str, &'a Result<Server, Failure>, Option<Goal>);

/// What the parts of this scenario share.
struct Scene<'a, S> {
    machine: &'a Machine,
    executables: &'a Executables,
    options: &'a Options,
    report: &'a mut Report,
    show: S,
}

pub(crate) fn run(
    machine: &Machine,
    executables: &Executables,
    options: &Options,
    report: &mut Report,
    show: impl Fn(&Section),
) -> Result<(), Failure> {
    let mut scene = Scene { machine, executables, options, report, show };
    let berth = scene.berth(&Cluster::of_names(NAMES), &[])?;
    let start = |peer: DnsPeer| peer.start(machine, None);
    let echo = start_own(machine, executables, "echo");
    let hickory = start_own(machine, executables, "hickory");
    let (knot, nsd, unbound, dnsmasq, pdns) = (start(KNOT), start(NSD), start(UNBOUND), start(DNSMASQ), start(PDNS));
    let at_least = |least| Some(Goal::AtLeast(least));
    let all: [Peer<'_>; 7] = [
        ("echo", &echo, at_least(0.93)),
        ("knot", &knot, at_least(1.22)),
        ("nsd", &nsd, at_least(1.27)),
        ("unbound", &unbound, at_least(1.5)),
        ("dnsmasq", &dnsmasq, at_least(1.7)),
        ("pdns", &pdns, None),
        ("hickory", &hickory, at_least(1.75)),
    ];
    scene.saturated("datagrams, own generator, 10 % misses", Mix::Both, &berth, &all)?;
    let some: Vec<Peer<'_>> = all[..3].iter().map(|(name, server, _)| (*name, *server, None)).collect();
    scene.saturated("datagrams, hits only", Mix::Hits, &berth, &some)?;
    scene.saturated("datagrams, misses only", Mix::Misses, &berth, &some)?;
    scene.misses(&berth)?;
    let dnsperf = all.map(|(name, server, _)| (name, server, if name == "knot" { at_least(1.1) } else { None }));
    scene.dnsperf("datagrams, dnsperf, 10 % misses", "udp", &berth, &dnsperf)?;
    scene.paced(&berth, &all[1..])?;
    let tcp: Vec<Peer<'_>> = all[1..]
        .iter()
        .map(|(name, server, _)| {
            (
                *name,
                *server,
                [("knot", 3.2), ("pdns", 1.9)].iter().find(|goal| goal.0 == *name).and_then(|goal| at_least(goal.1)),
            )
        })
        .collect();
    scene.dnsperf("connections, dnsperf, pipelined", "tcp", &berth, &tcp)?;
    scene.forwarded(&knot)?;
    drop((berth, echo, hickory, knot, nsd, unbound, dnsmasq, pdns));
    scene.sections()?;
    scene.large_zone()
}

impl<S: Fn(&Section)> Scene<'_, S> {
    /// Our server with a cluster, on which nothing is counted yet.
    fn berth(&self, cluster: &Cluster, arguments: &[&str]) -> Result<Server, Failure> {
        let mut file = NamedTempFile::new()?;
        file.write_all(cluster.document().as_bytes())?;
        let path = file.path().display().to_string();
        let server = self.executables.start(self.machine, "dns", &[&["--answers", &path], arguments].concat())?;
        let question = Question::new(&crate::names::name(cluster.containers - 1), true);
        exchange::until("the zone", Duration::from_millis(20), || Ok(exchange::answers(server.address, &question)))?;
        Ok(server)
    }

    fn add(&mut self, title: &str, ratio_of: &str, rows: Vec<Row>) {
        let section =
            Section { title: title.to_owned(), unit: "CPU µs/query".to_owned(), ratio_of: ratio_of.to_owned(), rows };
        (self.show)(&section);
        self.report.add(section);
    }

    /// Measures ours beside each peer that is there; a peer's ratio is its cost divided by ours.
    fn compare<'a>(
        &mut self,
        title: &str,
        berth: &'a Server,
        peers: &[Peer<'a>],
        run: impl Fn(&'a Server, &'a str) -> Result<crate::paired::Sample, Failure> + Copy + 'a,
    ) -> Result<(), Failure> {
        if !self.options.wants(title) {
            return Ok(());
        }
        let others = peers.iter().filter_map(|(name, server, _)| {
            let server = server.as_ref().ok()?;
            Some(Subject::new(*name, move || run(server, name)))
        });
        let ours = Subject::new("berth dns", move || run(berth, "berth"));
        let measured = measure(ours, others.collect(), self.options.rounds())?;
        let mut rows = vec![Row::measured(&measured[0], None)];
        for (name, server, goal) in peers {
            let mut row = match (server, measured.iter().find(|measured| measured.name == *name)) {
                (Ok(_), Some(measured)) => Row::measured(measured, Some(measured.ratio)),
                (Err(failure), _) => Row::missing(*name, failure.to_string()),
                (Ok(_), None) => Row::missing(*name, "not measured"),
            };
            row.goal = *goal;
            rows.push(row);
        }
        self.add(title, "peer / berth", rows);
        Ok(())
    }

    fn saturated(&mut self, title: &str, mix: Mix, berth: &Server, peers: &[Peer<'_>]) -> Result<(), Failure> {
        let (questions, duration) = (mix.questions(), self.options.run());
        self.compare(title, berth, peers, |server, name| {
            Load { questions: &questions, from: &FROM, check: name != "echo" }.saturate(server, duration)
        })
    }

    /// A name that does not exist beside one that does.
    fn misses(&mut self, berth: &Server) -> Result<(), Failure> {
        let title = "a miss beside a hit";
        if !self.options.wants(title) {
            return Ok(());
        }
        let (hits, misses, duration) = (Mix::Hits.questions(), Mix::Misses.questions(), self.options.run());
        let of = |questions| Load { questions, from: &FROM, check: true };
        let hit = Subject::new("berth dns, hit", || of(&hits).saturate(berth, duration));
        let miss = Subject::new("berth dns, miss", || of(&misses).saturate(berth, duration));
        let measured = measure(hit, vec![miss], self.options.rounds())?;
        self.add(title, "miss / hit", against_first(&measured, Goal::AtMost(1.1)));
        Ok(())
    }

    fn dnsperf(&mut self, title: &str, transport: &str, berth: &Server, peers: &[Peer<'_>]) -> Result<(), Failure> {
        if !load::has("dnsperf") {
            self.add(title, "", vec![Row::missing("dnsperf", INSTALL)]);
            return Ok(());
        }
        let questions = Questions::new(Mix::Both)?;
        let duration = self.options.run();
        self.compare(title, berth, peers, |server, _| dnsperf::run(server, &questions, transport, duration))
    }

    /// How long an answer takes when there is time.
    fn paced(&mut self, berth: &Server, peers: &[Peer<'_>]) -> Result<(), Failure> {
        let title = format!("datagrams, {PACE} a second");
        if !self.options.wants(&title) {
            return Ok(());
        }
        let (questions, duration) = (Mix::Both.questions(), self.options.run());
        let load = Load { questions: &questions, from: &FROM, check: true };
        let run = |server: &Server| load.pace(server, PACE, duration).map(|(sample, _)| sample);
        let there = peers.iter().filter_map(|(name, server, _)| Some((*name, server.as_ref().ok()?)));
        let others = there.map(|(name, server)| Subject::new(name, move || run(server))).collect();
        let measured = measure(Subject::new("berth dns", || run(berth)), others, self.options.rounds())?;
        let mut rows = Vec::new();
        for (index, measured) in measured.iter().enumerate() {
            let mut row = Row::measured(measured, (index > 0).then_some(measured.ratio));
            if let Some((middle, late)) = measured.latency_ratio {
                // Of the median time, which the goal is about; the cost is what the figure says.
                row.ratio = Some(middle);
                row.goal = Some(Goal::AtLeast(1.0));
                row.note = format!("p99 {:.2} {}", late.median, row.note);
            }
            rows.push(row);
        }
        self.add(&title, "p50 peer / berth", rows);
        Ok(())
    }

    /// Names of elsewhere that are kept.
    fn forwarded(&mut self, upstream: &Result<Server, Failure>) -> Result<(), Failure> {
        let title = "forwarded names, all kept";
        if !self.options.wants(title) {
            return Ok(());
        }
        let Ok(upstream) = upstream else {
            self.add(title, "", vec![Row::missing("knot as upstream", INSTALL)]);
            return Ok(());
        };
        let address = upstream.address.to_string();
        // Under another domain, so that none of the names is ours.
        let elsewhere = ["--domain", "berth.example", "--cache-capacity", "40000", "--upstream", &address];
        let berth = self.berth_forwarding(&elsewhere)?;
        let unbound = UNBOUND_FORWARDING.start(self.machine, Some(upstream.address));
        let questions = Mix::Both.questions();
        let load = Load { questions: &questions, from: &FROM, check: true };
        for server in [Some(&berth), unbound.as_ref().ok()].into_iter().flatten() {
            // Slowly, since nothing is kept yet.
            load.pace(server, PACE / 4, Duration::from_millis(2100))?;
        }
        let duration = self.options.run();
        let peers: [Peer<'_>; 1] = [("unbound", &unbound, Some(Goal::AtLeast(1.4)))];
        self.compare(title, &berth, &peers, |server, _| load.saturate(server, duration))
    }

    fn berth_forwarding(&self, arguments: &[&str]) -> Result<Server, Failure> {
        let mut file = NamedTempFile::new()?;
        file.write_all(Cluster::of_names(1).document().as_bytes())?;
        let path = file.path().display().to_string();
        let server = self.executables.start(self.machine, "dns", &[&["--answers", &path], arguments].concat())?;
        let question = Question::new(&crate::names::name(1), true);
        exchange::until("the upstream", Duration::from_millis(20), || {
            Ok(exchange::answers(server.address, &question))
        })?;
        Ok(server)
    }

    /// Clients with names of their own beside clients without.
    fn sections(&mut self) -> Result<(), Failure> {
        let title = format!("{SECTIONS} clients with sections");
        if !self.options.wants(&title) {
            return Ok(());
        }
        let own = Cluster { containers: NAMES, links: true, address: client, ..Cluster::of_names(NAMES) };
        let sectioned = self.berth(&own, &[])?;
        let plain = self.berth(&Cluster::of_names(NAMES), &[])?;
        let questions = Mix::Both.questions();
        let from = [11, 503, 1204, 1999].map(client);
        let load = Load { questions: &questions, from: &from, check: true };
        let duration = self.options.run();
        let without = Subject::new("berth dns, no sections", || load.saturate(&plain, duration));
        let with = Subject::new(format!("berth dns, {SECTIONS} sections"), || load.saturate(&sectioned, duration));
        let measured = measure(without, vec![with], self.options.rounds())?;
        self.add(&title, "with / without", against_first(&measured, Goal::AtMost(1.1)));
        Ok(())
    }

    fn large_zone(&mut self) -> Result<(), Failure> {
        let title = format!("a zone of {LARGE} containers");
        if self.options.quick || !self.options.wants(&title) {
            return Ok(());
        }
        let (small, large) = (self.berth(&Cluster::of_names(SMALL), &[])?, self.berth(&Cluster::of_names(LARGE), &[])?);
        let of = |count: usize| -> Vec<Question> {
            let turns = (0..NAMES).map(move |turn| turn * (LARGE / NAMES + 1) * 7919 % count);
            turns.map(|number| Question::new(&crate::names::name(number), true)).collect()
        };
        let (few, many) = (of(SMALL), of(LARGE));
        let duration = self.options.run();
        let load = |questions| Load { questions, from: &FROM, check: true };
        let reference = Subject::new(format!("berth dns, {SMALL}"), || load(&few).saturate(&small, duration));
        let other = Subject::new(format!("berth dns, {LARGE}"), || load(&many).saturate(&large, duration));
        let measured = measure(reference, vec![other], self.options.rounds())?;
        self.add(&title, "large / small", against_first(&measured, Goal::AtMost(1.3)));
        Ok(())
    }
}

/// The address of a container that asks itself: the first have one on loopback.
fn client(number: usize) -> Ipv4Addr {
    if number >= SECTIONS {
        return crate::names::address(number);
    }
    let first = u32::from(Ipv4Addr::new(127, 50, 0, 1));
    Ipv4Addr::from(first + u32::try_from(number).unwrap_or_default())
}

/// The first, and the others by it.
fn against_first(measured: &[Measured], goal: Goal) -> Vec<Row> {
    let row = |(index, measured): (usize, &Measured)| {
        let ratio: Option<Spread> = (index > 0).then_some(measured.ratio);
        let row = Row::measured(measured, ratio);
        if index > 0 { row.with_goal(goal) } else { row }
    };
    measured.iter().enumerate().map(row).collect()
}
