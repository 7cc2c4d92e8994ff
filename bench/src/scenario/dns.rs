//! Questions to the DNS service, beside the servers in wide use.

mod forwarding;
mod zones;

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::load;
use crate::load::dnsperf::{self, Questions};
use crate::load::udp::{FROM, FROM_EACH, Load};
use crate::names::{Mix, NAMES, Question};
use crate::paired::{Measured, Sample, Spread, Subject, measure};
use crate::peer::{DNSMASQ, DnsPeer, INSTALL, KNOT, NSD, PDNS, UNBOUND, start_original, start_own};
use crate::report::{Goal, Row};
use crate::scenario::Scene;
use crate::server::Server;
use crate::{Failure, exchange};

/// Queries a second that leave every server time enough.
const PACE: u32 = 20_000;

/// A peer, and the least that its cost has to be of ours.
type Peer<'a> = (&'a str, &'a Result<Server, Failure>, Option<Goal>);

pub(crate) fn run(scene: &mut Scene<'_>) -> Result<(), Failure> {
    let Scene { machine, executables, options, .. } = *scene;
    let berth = scene.berth(&Cluster::of_names(NAMES))?;
    let start = |peer: DnsPeer| peer.start(machine, None);
    let echo = start_own(machine, executables, "echo");
    let hickory = start_own(machine, executables, "hickory");
    let (knot, nsd, unbound, dnsmasq, pdns) = (start(KNOT), start(NSD), start(UNBOUND), start(DNSMASQ), start(PDNS));
    let original = start_original(machine, options.original_dns.as_deref());
    let at_least = |least| Some(Goal::AtLeast(least));
    let all: [Peer<'_>; 8] = [
        ("echo", &echo, at_least(0.93)),
        ("knot", &knot, at_least(1.22)),
        ("nsd", &nsd, at_least(1.27)),
        ("unbound", &unbound, at_least(1.5)),
        ("dnsmasq", &dnsmasq, at_least(1.7)),
        ("pdns", &pdns, None),
        ("hickory", &hickory, at_least(1.75)),
        ("original dns", &original, at_least(5.5)),
    ];
    scene.saturated("datagrams, own generator, 10 % misses", Mix::Both, &FROM, &berth, &all)?;
    let some: Vec<Peer<'_>> = all[..3].iter().map(|(name, server, _)| (*name, *server, None)).collect();
    // Whoever loses some of 256 that come at once keeps them all waiting.
    let patient = [&all[0], &all[2]].map(|(name, server, _)| (*name, *server, None));
    scene.saturated("datagrams, a port for each that waits", Mix::Both, &FROM_EACH, &berth, &patient)?;
    if !options.quick {
        scene.saturated("datagrams, hits only", Mix::Hits, &FROM, &berth, &some)?;
        scene.saturated("datagrams, misses only", Mix::Misses, &FROM, &berth, &some)?;
    }
    scene.misses(&berth)?;
    let dnsperf = all.map(|(name, server, _)| (name, server, if name == "knot" { at_least(1.1) } else { None }));
    scene.dnsperf("datagrams, dnsperf, 10 % misses", "udp", &berth, &dnsperf)?;
    scene.timed("datagrams, dnsperf, time until the answer", None, &berth, &all[1..])?;
    scene.timed(&format!("datagrams, dnsperf -Q {PACE}"), Some(PACE), &berth, &all[1..])?;
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
    scene.forwarded()?;
    scene.dead_upstream(&knot)?;
    drop((berth, echo, hickory, knot, nsd, unbound, dnsmasq, pdns, original));
    scene.finding()?;
    scene.building()?;
    scene.sections()?;
    scene.large_zone()
}

impl Scene<'_> {
    /// Our server with a cluster, on which nothing is counted yet.
    fn berth(&self, cluster: &Cluster) -> Result<Server, Failure> {
        let server = self.executables.start_with(self.machine, "dns", &cluster.document(), &[])?;
        let question = Question::new(&crate::names::name(cluster.containers - 1), true);
        exchange::until("the zone", Duration::from_millis(20), || Ok(exchange::answers(server.address, &question)))?;
        Ok(server)
    }

    fn add(&mut self, title: &str, ratio_of: &str, rows: Vec<Row>) {
        self.tell("CPU µs/query", title, ratio_of, rows);
    }

    /// Measures ours beside each peer that is there; a peer's ratio is its cost divided by ours.
    fn compare<'a>(
        &mut self,
        title: &str,
        berth: &'a Server,
        peers: &[Peer<'a>],
        run: impl Fn(&'a Server, &'a str) -> Result<Sample, Failure> + Copy + 'a,
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

    fn saturated(
        &mut self,
        title: &str,
        mix: Mix,
        from: &[Ipv4Addr],
        berth: &Server,
        peers: &[Peer<'_>],
    ) -> Result<(), Failure> {
        let (questions, duration) = (mix.questions(), self.options.run());
        self.compare(title, berth, peers, |server, name| {
            Load { questions: &questions, from, check: name != "echo" }.saturate(server, duration)
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
        let repeats = self.options.repeats();
        self.compare(title, berth, peers, |server, _| dnsperf::run(server, &questions, transport, repeats))
    }

    /// How long an answer takes, by dnsperf.
    fn timed(&mut self, title: &str, pace: Option<u32>, berth: &Server, peers: &[Peer<'_>]) -> Result<(), Failure> {
        if !load::has("dnsperf") {
            self.add(title, "", vec![Row::missing("dnsperf", INSTALL)]);
            return Ok(());
        }
        let questions = Questions::new(Mix::Both)?;
        self.compare_times(title, berth, peers, |server| dnsperf::time(server, &questions, pace))
    }

    /// How long an answer takes when there is time.
    fn paced(&mut self, berth: &Server, peers: &[Peer<'_>]) -> Result<(), Failure> {
        let (questions, duration) = (Mix::Both.questions(), self.options.run());
        let load = Load { questions: &questions, from: &FROM, check: true };
        let run = |server: &Server| load.pace(server, PACE, duration).map(|(sample, _)| sample);
        self.compare_times(&format!("datagrams, {PACE} a second"), berth, peers, run)
    }

    /// Measures the times of ours beside those of each peer that is there; a ratio is a peer's median by ours.
    fn compare_times<'a>(
        &mut self,
        title: &str,
        berth: &'a Server,
        peers: &[Peer<'a>],
        run: impl Fn(&'a Server) -> Result<Sample, Failure> + Copy + 'a,
    ) -> Result<(), Failure> {
        if !self.options.wants(title) {
            return Ok(());
        }
        let there = peers.iter().filter_map(|(name, server, _)| Some((*name, server.as_ref().ok()?)));
        let others = there.map(|(name, server)| Subject::new(name, move || run(server))).collect();
        let measured = measure(Subject::new("berth dns", move || run(berth)), others, self.options.rounds())?;
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
        self.add(title, "p50 peer / berth", rows);
        Ok(())
    }
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
