//! Replies of upstreams, and questions for them: messages with records of any type, which hickory-proto reads and encodes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hickory_proto::ProtoError;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinEncodable, BinEncoder};

use crate::answer::{Answer, End};
use crate::edns::UDP_ANSWER_MAX;
use crate::name::Folded;
use crate::query::{HEADER_BYTES, POINTER_TO_QUESTION, QUESTION_FIXED_BYTES, Query, RECORD_FIXED_BYTES, name_end_of};
use crate::zone::RecordSet;

/// A question for upstreams; the class is the Internet's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// The name in the client's spelling.
    pub(crate) name: Name,
    /// The name as it is looked up.
    pub(crate) folded: Folded,
    /// The type of the records.
    pub(crate) kind: RecordType,
}

/// A question for upstreams, with what the zone adds to their answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Forward {
    /// What is to be asked.
    pub(crate) question: Question,
    /// The client's own upstreams; empty means the configured ones.
    pub(crate) upstreams: Arc<[SocketAddr]>,
    /// Aliases that led to the question; they stand before what the upstreams answer.
    pub(crate) aliases: Vec<Record>,
    /// What to answer when the upstreams do not know the end of the aliases.
    pub(crate) fallback: Option<Reply>,
}

impl Forward {
    /// What upstreams have to be asked for an answer; `None` when the zone has it. `turn` says which of several records of
    /// the zone stands first.
    pub(crate) fn of(query: &Query<'_>, answer: &Answer<'_>, turn: usize) -> Option<Self> {
        let End::Elsewhere { upstreams, stand_in } = answer.end else { return None };
        let mut owner = query.name;
        let mut aliases = Vec::new();
        let mut fallback = None;
        for (number, alias) in answer.aliases.iter().enumerate() {
            if let Some((_, set)) = stand_in.filter(|(count, _)| *count == number) {
                let mut own = records(owner, set);
                let first = turn % own.len().max(1);
                own.rotate_left(first);
                let answers = aliases.iter().cloned().chain(own).collect();
                fallback = Some(Reply { answers, authoritative: true, ..Reply::empty(ResponseCode::NoError) });
            }
            aliases.extend(records(owner, alias).into_iter().take(1));
            owner = alias.target();
        }
        let question = Question { name: Folded::verbatim(owner), folded: Folded::from_wire(owner), kind: query.kind };
        Some(Self { question, upstreams: upstreams.clone(), aliases, fallback })
    }
}

/// The records of a set with this owner.
fn records(owner: &[u8], set: &RecordSet) -> Vec<Record> {
    let record = |bytes: &[u8]| Record::from_bytes(&[owner, bytes].concat()).ok();
    set.records().filter_map(|encoded| record(encoded.behind_owner())).collect()
}

/// A reply, without the parts of a message that follow from the query.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reply {
    /// How it went.
    pub(crate) code: ResponseCode,
    /// Whether we have the last word on the name.
    pub(crate) authoritative: bool,
    /// Whether the upstream says that it proved the answer (RFC 4035 section 3.2.3).
    pub(crate) authentic: bool,
    /// Records that answer the question.
    pub(crate) answers: Vec<Record>,
    /// Records about who has the last word, with negative answers.
    pub(crate) authority: Vec<Record>,
    /// Why it went wrong (RFC 8914 section 4).
    pub(crate) extended_error: Option<u16>,
    /// The upstream that gave it, when it is not ours.
    pub(crate) upstream: Option<SocketAddr>,
    /// The address for which its records were dropped.
    pub(crate) dropped: Option<IpAddr>,
}

impl Reply {
    /// A reply without records.
    pub(crate) fn empty(code: ResponseCode) -> Self {
        Self {
            code,
            authoritative: false,
            authentic: false,
            answers: Vec::new(),
            authority: Vec::new(),
            extended_error: None,
            upstream: None,
            dropped: None,
        }
    }

    /// Gives the records of this name its spelling.
    pub(crate) fn spell(&mut self, name: &Name) {
        for record in self.answers.iter_mut().filter(|record| record.name == *name) {
            record.name.clone_from(name);
        }
    }

    /// The same reply with the reason for its code (RFC 8914 section 4).
    #[must_use]
    pub(crate) fn because(mut self, extended_error: u16) -> Self {
        self.extended_error = Some(extended_error);
        self
    }

    /// The records as they follow the question about this name in a message of at most `limit` bytes; `None` when one of
    /// them cannot be encoded.
    pub(crate) fn encoded(&self, name: &Name, kind: RecordType, limit: usize) -> Option<Encoded> {
        let mut bytes = Vec::new();
        let mut encoder = BinEncoder::new(&mut bytes);
        encoder.set_max_size(u16::try_from(limit).unwrap_or(u16::MAX));
        encoder.emit_vec(&[0; HEADER_BYTES]).ok()?;
        name.emit(&mut encoder).ok()?;
        encoder.emit_u16(kind.into()).ok()?;
        encoder.emit_u16(DNSClass::IN.into()).ok()?;
        let start = encoder.offset();
        let (mut counts, mut truncated) = ([0; 3], false);
        for (count, records) in counts.iter_mut().zip([&self.answers, &self.authority]) {
            for record in records {
                let before = encoder.offset();
                if truncated || emit(record, name, &mut encoder).is_err() {
                    encoder.set_offset(before);
                    truncated = true;
                    break;
                }
                *count += 1;
            }
        }
        encoder.trim();
        Some(Encoded { bytes: bytes.split_off(start), counts, truncated })
    }
}

/// Encodes one record; its owner, when it is the name of the question, as a pointer to that.
fn emit(record: &Record, question: &Name, encoder: &mut BinEncoder<'_>) -> Result<(), ProtoError> {
    if record.name.eq_case(question) && !record.name.is_root() {
        encoder.emit_u16(POINTER_TO_QUESTION)?;
    } else {
        record.name.emit(encoder)?;
    }
    encoder.emit_u16(record.record_type().into())?;
    encoder.emit_u16(record.dns_class.into())?;
    encoder.emit_u32(record.ttl)?;
    let place = encoder.place::<u16>()?;
    record.data.emit(encoder)?;
    // No data is longer than the message, whose length fits.
    let length = u16::try_from(encoder.len_since_place(&place)).unwrap_or(u16::MAX);
    place.replace(encoder, length)
}

/// Records as they follow a question.
#[derive(Debug, Default)]
pub(crate) struct Encoded {
    pub(crate) bytes: Vec<u8>,
    /// How many there are in each section.
    pub(crate) counts: [u16; 3],
    /// Whether some are missing.
    pub(crate) truncated: bool,
}

/// A reply to be written again and again, without its question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prepared {
    /// Everything behind the question.
    pub(crate) bytes: Box<[u8]>,
    /// The offsets of the TTLs in it.
    pub(crate) ttls: Box<[u16]>,
    pub(crate) answers: u16,
    pub(crate) authorities: u16,
}

impl Prepared {
    /// What follows the question about this name, when it is asked in small letters; `None` for what does not fit a
    /// datagram, or needs to say why.
    pub(crate) fn new(name: &Folded, kind: RecordType, reply: &Reply) -> Option<Self> {
        if reply.extended_error.is_some() {
            return None;
        }
        let question = name.name();
        let mut reply = reply.clone();
        reply.spell(&question);
        let Encoded { bytes, counts: [answers, authorities, _], truncated } =
            reply.encoded(&question, kind, usize::from(UDP_ANSWER_MAX))?;
        if truncated {
            return None;
        }
        // Names point to places in the whole message.
        let start = HEADER_BYTES + name.wire().len() + QUESTION_FIXED_BYTES;
        let whole = [&vec![0; start][..], &bytes].concat();
        let mut ttls = Vec::new();
        let mut at = start;
        for _ in 0..answers + authorities {
            at = name_end_of(&whole, at)?;
            ttls.push(u16::try_from(at + 4 - start).ok()?);
            at += RECORD_FIXED_BYTES + usize::from(u16::from_be_bytes([*whole.get(at + 8)?, *whole.get(at + 9)?]));
        }
        Some(Self { bytes: bytes.into(), ttls: ttls.into(), answers, authorities })
    }

    /// Writes it to `room`, with every TTL less the age; `None` when there is too little room.
    pub(crate) fn write(&self, age: u32, room: &mut [u8]) -> Option<usize> {
        let room = room.get_mut(..self.bytes.len())?;
        room.copy_from_slice(&self.bytes);
        for at in &self.ttls {
            let ttl = room.get_mut(usize::from(*at)..)?.first_chunk_mut::<4>()?;
            *ttl = u32::from_be_bytes(*ttl).saturating_sub(age).to_be_bytes();
        }
        Some(self.bytes.len())
    }
}
