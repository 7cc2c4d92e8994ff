//! What fuzzers (`fuzz/src/message.rs`, `fuzz/src/upstream.rs`), `bench` and the test of noninterference
//! (`tests/tests/noninterference.rs`) call; no part of the service.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::rr::{Record, RecordType};

use crate::cache::{Cache, Key, Wanted};
use crate::cookie::Secret;
use crate::edns::UDP_ANSWER_MAX;
use crate::forward::{Heard, decode, is_reply, judge};
use crate::name::Folded;
use crate::query::{Query, Reading};
use crate::respond::Responder;
use crate::write::write_refusal;
use crate::zone::Zone;

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
pub fn read(bytes: &[u8]) -> Read {
    match Query::read(bytes) {
        Reading::Ignore => Read::Ignored,
        Reading::Refuse(refusal) => {
            let mut room = vec![0; usize::from(UDP_ANSWER_MAX)];
            let written = write_refusal(&refusal, &mut room).expect("a question and an OPT record are shorter");
            room.truncate(written.bytes);
            Read::Refused(room, written.code.into())
        }
        Reading::Query(query) => {
            let edns = query.wishes.edns.map(|_| (query.wishes.udp_answer_max(), query.wishes.dnssec_ok()));
            let id = u16::from_be_bytes([query.head[0], query.head[1]]);
            Read::Query { id, name: query.name.to_vec(), kind: query.kind.into(), edns }
        }
    }
}

/// A zone that answers without a socket; no upstream is ever asked.
#[derive(Debug)]
pub struct Answerer {
    zone: Zone,
    responder: Responder,
}

impl Answerer {
    /// One that answers from this zone.
    pub fn new(zone: Zone) -> Self {
        Self { zone, responder: Responder::new(Secret::new([7; 16]), None, || 0) }
    }

    /// What it answers from.
    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    /// Writes the answer to a client's message to `room`, which has 1232 bytes at least; returns how many bytes it has,
    /// or nothing when it is not in the zone.
    pub fn answer(&self, message: &[u8], client: IpAddr, connected: bool, room: &mut [u8]) -> Option<usize> {
        let Reading::Query(query) = Query::read(message) else { return None };
        let scope = self.zone.scope(client).map(|scope| &**scope);
        let extra = self.responder.extra(&query, client, connected);
        let (written, _) = self.responder.respond((&self.zone, scope), &query, extra, room);
        written.map(|written| written.bytes)
    }
}

/// What is made of an upstream's reply.
#[derive(Debug)]
pub struct Believed {
    /// For how many seconds.
    pub lifetime: u32,
    /// The records, those of the answer first.
    pub records: Vec<Record>,
    /// The reply to a client that asks for it a while later, from the cache.
    pub kept: Option<Vec<u8>>,
}

/// Judges bytes as the reply to a question for records of this type of `www.example.org`.
pub fn judged(bytes: &[u8], kind: u16, dnssec_ok: bool) -> Option<Believed> {
    let name = Folded::parse("www.example.org").expect("a fixed valid name");
    let upstreams: Arc<[SocketAddr]> = Arc::new([]);
    let key = Arc::new(Key { name, kind: RecordType::from(kind), upstreams, dnssec_ok, checking_disabled: false });
    // A forged response with a guessed id must be recognised without a panic.
    let _ = is_reply(bytes, 0x1234, &key);
    let (message, length) = decode(bytes).ok()?;
    let Heard::Good(answer) = judge(message, length, &key) else { return None };
    let lifetime = Duration::from_secs(answer.lifetime.into());
    let records = answer.reply.answers.iter().chain(&answer.reply.authority).cloned().collect();
    let mut cache = Cache::new(10);
    cache.insert(&key, Arc::new(answer.reply), lifetime, answer.bytes, Duration::ZERO);
    let mut room = vec![0xaa; 12 + key.name.wire().len() + 4 + usize::from(UDP_ANSWER_MAX)];
    let question = [b"\x12\x34\x81\x80\0\x01", &[0; 6][..], key.name.wire(), &kind.to_be_bytes(), b"\0\x01"].concat();
    room[..question.len()].copy_from_slice(&question);
    let wanted = Wanted { name: key.name.wire(), kind: key.kind, upstreams: &[], dnssec_ok, checking_disabled: false };
    let kept = cache.write(&wanted, lifetime / 2, &mut room[question.len()..]).map(|kept| {
        room[6..8].copy_from_slice(&kept.answers.to_be_bytes());
        room[8..10].copy_from_slice(&kept.authorities.to_be_bytes());
        room[..question.len() + kept.bytes].to_vec()
    });
    Some(Believed { lifetime: answer.lifetime, records, kept })
}
