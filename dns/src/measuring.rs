//! What `bench` measures by itself: how long an answer takes to be found and written in memory, as the threads do it that
//! serve datagrams; no part of the service.

use std::net::IpAddr;
use std::time::Duration;

use platform::batch::fetch;
use platform::memory::about_to_fill;

use crate::direct::{self, Asker, Limit};
use crate::fuzzing::Around;
use crate::recent::Recent;
use crate::wire::UDP_ANSWER_MAX;
use crate::zone::Zone;

/// Who answers from memory.
#[derive(Debug)]
pub struct Answerer {
    zone: Zone,
    recent: Option<Recent>,
    around: Around,
    room: Box<[u8]>,
}

impl Answerer {
    /// One that answers from this zone, and remembers what it said or does not.
    pub fn new(zone: Zone, remembers: bool) -> Self {
        let recent = remembers.then(|| {
            let mut recent = Recent::new(1, about_to_fill);
            recent.serve(1, Duration::ZERO);
            recent
        });
        Self { zone, recent, around: Around::new(), room: vec![0; usize::from(UDP_ANSWER_MAX)].into() }
    }

    /// Answers the questions of a batch, which one client asked; returns how many octets the answers have, or nothing when
    /// there was one that is not answered at once.
    pub fn answer(&mut self, questions: &[&[u8]], client: IpAddr) -> Option<usize> {
        let Self { zone, recent, around, room } = self;
        let whole = Asker::at(client, zone);
        let look = |question: &&[u8]| recent.as_ref().map(|recent| recent.prepare(question, fetch));
        let spots: Vec<_> = questions.iter().map(look).collect();
        let mut octets = 0;
        for (question, spot) in questions.iter().zip(spots) {
            let asker = Asker { spot, ..whole };
            octets += direct::answer(zone, asker, question, around, recent.as_mut(), room, Limit::Datagram)?.octets;
        }
        Some(octets)
    }
}
