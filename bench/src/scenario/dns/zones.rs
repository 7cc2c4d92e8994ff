//! Zones: made from names, with sections of clients, and large ones.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use dns::fuzzing::Answerer;
use dns::zone::Settings;
use dns::zone::snapshot::build;

use super::against_first;
use crate::cluster::Cluster;
use crate::feed::Feed;
use crate::load::udp::{FROM, Load};
use crate::names::{self, Mix, NAMES, Question};
use crate::paired::{Spread, Subject, measure};
use crate::report::{Goal, Row};
use crate::scenario::Scene;
use crate::{Failure, exchange};

/// Clients with a section of their own.
const SECTIONS: usize = 2000;

/// Bytes of the longest answer over UDP.
const ROOM: usize = 1232;

/// How often all names are looked for in memory.
const FINDINGS: usize = 50;

/// Containers in the large zone, and in the small one it is compared with.
const LARGE: usize = 100_000;
const SMALL: usize = 1000;

impl Scene<'_> {
    /// Answers are found in memory, without a socket.
    pub(super) fn finding(&mut self) -> Result<(), Failure> {
        let title = format!("an answer is found in memory, {NAMES} names, 10 % misses");
        if !self.options.wants(&title) {
            return Ok(());
        }
        let snapshot = Cluster::of_names(NAMES).snapshot()?;
        let zone = build(&snapshot, &Settings::default(), 1);
        let questions = Mix::Both.questions();
        let bytes: Vec<&[u8]> = questions.iter().map(|question| &*question.bytes).collect();
        let answerer = Answerer::new(zone);
        let (client, mut room) = (IpAddr::V4(Ipv4Addr::LOCALHOST), [0; ROOM]);
        // The zone makes records when they are asked for first, which is part of no later question.
        let mut run = || -> Result<f64, Failure> {
            let start = Instant::now();
            for question in &bytes {
                answerer.answer(question, client, false, &mut room).ok_or("a question was not answered")?;
            }
            Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(u32::try_from(bytes.len())?))
        };
        run()?;
        let times = (0..FINDINGS).map(|_| run()).collect::<Result<Vec<_>, _>>()?;
        let times = Spread::of(times);
        let row = Row::figure("berth dns", times.median).with_goal(Goal::AtMost(60.0));
        let rows = vec![row.with_note(format!("{:.0}-{:.0}", times.min, times.max))];
        self.tell("ns, on the load's core", &title, "", rows);
        Ok(())
    }

    /// Names become a zone.
    pub(super) fn building(&mut self) -> Result<(), Failure> {
        let title = format!("{NAMES} names become a zone");
        if !self.options.wants(&title) {
            return Ok(());
        }
        let snapshot = Cluster::of_names(NAMES).snapshot()?;
        let settings = Settings::default();
        let mut times = Vec::new();
        for serial in 0..10 {
            let start = Instant::now();
            let zone = build(&snapshot, &settings, serial);
            times.push(start.elapsed().as_secs_f64() * 1e3);
            drop(zone);
        }
        let times = Spread::of(times);
        let row = Row::figure("berth dns", times.median).with_goal(Goal::AtMost(5.0));
        self.tell(
            "ms, on the load's core",
            &title,
            "",
            vec![row.with_note(format!("{:.1}-{:.1}", times.min, times.max))],
        );
        Ok(())
    }

    /// Clients with names of their own beside clients without.
    pub(super) fn sections(&mut self) -> Result<(), Failure> {
        let title = format!("{SECTIONS} clients with sections");
        if !self.options.wants(&title) {
            return Ok(());
        }
        let own = Cluster { containers: NAMES, links: true, address: client, ..Cluster::of_names(NAMES) };
        let sectioned = self.berth(&own)?;
        let plain = self.berth(&Cluster::of_names(NAMES))?;
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

    pub(super) fn large_zone(&mut self) -> Result<(), Failure> {
        let title = format!("a zone of {LARGE} containers");
        if self.options.quick || !self.options.wants(&title) {
            return Ok(());
        }
        // By a stream: a document of that size takes longer to write and to read than all of this.
        let fed = |containers| -> Result<_, Failure> {
            let cluster = Cluster::of_names(containers);
            let feed = Feed::start(&cluster, 0)?;
            let source = format!("metadata:{}", feed.address);
            let server = self.executables.start(self.machine, "dns", &["--source", &source])?;
            let question = Question::new(&names::name(containers - 1), true);
            exchange::until("the zone", Duration::from_millis(20), || {
                Ok(exchange::answers(server.address, &question))
            })?;
            Ok((server, feed))
        };
        let ((small, _feed), (large, _other_feed)) = (fed(SMALL)?, fed(LARGE)?);
        let of = |count: usize| -> Vec<Question> {
            let turns = (0..NAMES).map(move |turn| turn * (LARGE / NAMES + 1) * 7919 % count);
            turns.map(|number| Question::new(&names::name(number), true)).collect()
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
        return names::address(number);
    }
    let first = u32::from(Ipv4Addr::new(127, 50, 0, 1));
    Ipv4Addr::from(first + u32::try_from(number).unwrap_or_default())
}
