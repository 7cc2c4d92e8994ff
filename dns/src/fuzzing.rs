//! What the fuzzers of messages and of upstreams call (`fuzz/src/message.rs`, `fuzz/src/upstream.rs`); no part of the
//! service.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::rr::{Record, RecordType};
use model::Snapshot;

use crate::answer::{Outcome, answer};
use crate::cache::{Cache, Kept, Key, Wanted};
use crate::cookie::{CLIENT_OCTETS, Cookie, Secret};
use crate::direct::{self, Asker, Limit, Surroundings};
use crate::forward::{Heard, decode, is_reply, judge};
use crate::name::Folded;
use crate::recent::Recent;
use crate::wire::{Query, Reading, TCP_ANSWER_MAX, UDP_ANSWER_MAX};
use crate::zone::{Settings, Zone, snapshot};

/// What a message turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// Nothing that gets an answer.
    Ignored,
    /// Something that gets this answer, with this code.
    Refused(Vec<u8>, u16),
    /// A query.
    Query {
        /// Its id.
        id: u16,
        /// The name as it was spelled, in wire format.
        name: Vec<u8>,
        /// The type of the records.
        kind: u16,
        /// What the OPT record says: the size for datagrams and whether DNSSEC is wanted.
        edns: Option<(u16, bool)>,
    },
}

/// Reads a message by hand.
pub fn read(octets: &[u8]) -> Read {
    match Query::read(octets) {
        Reading::Ignore => Read::Ignored,
        Reading::Refuse(reply, code) => Read::Refused(reply, code.into()),
        Reading::Query(query) => {
            let end = 12 + query.question.folded.wire().len();
            let edns = query.wishes.edns.map(|_| (query.wishes.udp_answer_max(), query.wishes.dnssec_ok()));
            Read::Query { id: query.id, name: octets[12..end].to_vec(), kind: query.question.kind.into(), edns }
        }
    }
}

/// A zone that is asked in both ways.
#[derive(Debug)]
pub struct Asked {
    zone: Zone,
    recent: Recent,
    around: Around,
}

impl Asked {
    /// The zone of a snapshot.
    pub fn new(snapshot: &Snapshot) -> Self {
        let settings = Settings { listen: Some(IpAddr::from([169, 254, 169, 251])), ..Settings::default() };
        let mut recent = Recent::new(1000, |_| ());
        recent.serve(1, Duration::ZERO);
        Self { zone: snapshot::build(snapshot, &settings, 1), recent, around: Around::new() }
    }

    /// What the short way and the general one answer to a message; the short one may know nothing.
    pub fn both(&mut self, octets: &[u8], client: IpAddr, connected: bool) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let mut room = [0xaa; UDP_ANSWER_MAX as usize];
        let limit = if connected { Limit::Room } else { Limit::Datagram };
        let recent = Some(&mut self.recent);
        let asker = Asker::at(client, &self.zone);
        let direct = direct::answer(&self.zone, asker, octets, &self.around, recent, &mut room, limit)?;
        let general = match Query::read(octets) {
            Reading::Query(mut query) => {
                let client_part = query.wishes.edns.and_then(|edns| edns.client_cookie);
                query.cookie = client_part.map(|part| self.around.cookie(part, client));
                let longest = if connected { TCP_ANSWER_MAX } else { query.wishes.udp_answer_max() };
                match answer(&self.zone, client, &query.question, 0) {
                    Outcome::Reply(reply) => Some(query.write(&reply, longest)),
                    Outcome::Forward(_) | Outcome::Drop => None,
                }
            }
            Reading::Ignore | Reading::Refuse(..) => None,
        };
        Some((room[..direct.octets].to_vec(), general))
    }
}

/// Nothing was ever forwarded, and everybody's turn is the first.
#[derive(Debug)]
pub(crate) struct Around(Secret);

impl Around {
    pub(crate) fn new() -> Self {
        Self(Secret::new([7; 16]))
    }
}

impl Surroundings for Around {
    fn turn(&self) -> usize {
        0
    }

    fn cookie(&self, client_part: [u8; CLIENT_OCTETS], client: IpAddr) -> Cookie {
        self.0.cookie(client_part, client, 0)
    }

    fn server(&self) -> Option<&[u8]> {
        None
    }

    fn kept(&self, _: &Wanted<'_>, _: &mut [u8]) -> Option<Kept> {
        None
    }
}

/// What is made of an upstream's reply.
#[derive(Debug)]
pub struct Believed {
    /// For how many seconds.
    pub lifetime: u32,
    /// The records, those of the answer first.
    pub records: Vec<Record>,
    /// The reply to a client that asks for it a while later, from what was kept.
    pub kept: Option<Vec<u8>>,
}

/// Judges octets as the reply to a question for records of this type of `www.example.org`.
pub fn judged(octets: &[u8], kind: u16, dnssec_ok: bool) -> Option<Believed> {
    let name = Folded::parse("www.example.org").expect("a fixed valid name");
    let upstreams: Arc<[SocketAddr]> = Arc::new([]);
    let key = Arc::new(Key { name, kind: RecordType::from(kind), upstreams, dnssec_ok, checking_disabled: false });
    // Whoever guesses an id has to be told apart from an upstream without a panic.
    let _ = is_reply(octets, 0x1234, &key);
    let (message, length) = decode(octets).ok()?;
    let Heard::Good(answer) = judge(message, length, &key) else { return None };
    let lifetime = Duration::from_secs(answer.lifetime.into());
    let records = answer.reply.answers.iter().chain(&answer.reply.authority).cloned().collect();
    let mut cache = Cache::new(10);
    cache.insert(&key, Arc::new(answer.reply), lifetime, answer.octets, Duration::ZERO);
    let mut room = vec![0xaa; 12 + key.name.wire().len() + 4 + usize::from(UDP_ANSWER_MAX)];
    let question = [b"\x12\x34\x81\x80\0\x01", &[0; 6][..], key.name.wire(), &kind.to_be_bytes(), b"\0\x01"].concat();
    room[..question.len()].copy_from_slice(&question);
    let wanted = Wanted { name: key.name.wire(), kind: key.kind, upstreams: &[], dnssec_ok, checking_disabled: false };
    let kept = cache.write(&wanted, lifetime / 2, &mut room[question.len()..]).map(|kept| {
        room[6..8].copy_from_slice(&kept.answers.to_be_bytes());
        room[8..10].copy_from_slice(&kept.authorities.to_be_bytes());
        room[..question.len() + kept.octets].to_vec()
    });
    Some(Believed { lifetime: answer.lifetime, records, kept })
}
