//! Queries and replies as octets: the header, the question and EDNS ([`crate::edns`]) are read by hand, and nothing else of
//! a query.
//!
//! What is no query is refused as RFC 1035, RFC 6891, RFC 8906 and RFC 9619 say, in replies that are never larger
//! than what they refuse by more than an OPT record. Responses are never answered, so that no two servers talk to
//! each other for ever.

use std::sync::Arc;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{DNSClass, Record, RecordType};
use hickory_proto::serialize::binary::{BinEncodable, BinEncoder};

use crate::answer::{Question, Reply};
use crate::cookie::Cookie;
use crate::edns::{EDNS_VERSION, Edns, Extra, OPT_OCTETS, Opt};
use crate::name::{Folded, LABEL_OCTETS_MAX, NAME_OCTETS_MAX};

/// Length of a header (RFC 1035 section 4.1.1).
pub(crate) const HEADER_OCTETS: usize = 12;

/// Longest answer over UDP, whatever the client can take.
///
/// 1232 octets fit an IPv6 packet of minimum MTU with room for headers, so it is never fragmented.
pub(crate) const UDP_ANSWER_MAX: u16 = 1232;

/// Longest answer over UDP when the client states no size (RFC 1035 section 4.2.1).
const PLAIN_ANSWER_MAX: u16 = 512;

/// Longest message over TCP (RFC 1035 section 4.2.2).
pub(crate) const TCP_ANSWER_MAX: u16 = u16::MAX;

/// A name that is that of the question, which stands behind the header (RFC 1035 section 4.1.4).
pub(crate) const POINTER_TO_QUESTION: u16 = 0xc00c;

/// The two bits that make a pointer (RFC 1035 section 4.1.4).
pub(crate) const POINTER: u16 = 0xc000;

const FLAG_RESPONSE: u16 = 0x8000;
const FLAG_AUTHORITATIVE: u16 = 0x0400;
const FLAG_TRUNCATED: u16 = 0x0200;
const FLAG_RECURSION_DESIRED: u16 = 0x0100;
const FLAG_RECURSION_AVAILABLE: u16 = 0x0080;
const FLAG_AUTHENTIC: u16 = 0x0020;
const FLAG_CHECKING_DISABLED: u16 = 0x0010;
const OPCODE_MASK: u16 = 0x7800;

/// What a message turned out to be.
#[derive(Debug)]
pub(crate) enum Reading {
    /// Nothing that gets an answer.
    Ignore,
    /// Something that gets this answer, whatever the zone.
    Refuse(Vec<u8>, ResponseCode),
    /// A query.
    Query(Box<Query>),
}

/// A query.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Query {
    pub(crate) id: u16,
    pub(crate) wishes: Wishes,
    pub(crate) question: Question,
    /// The cookie to send.
    pub(crate) cookie: Option<Cookie>,
    /// The name of this server, for who asked for it.
    pub(crate) server: Option<Arc<[u8]>>,
}

/// What a query wants besides the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wishes {
    flags: u16,
    pub(crate) edns: Option<Edns>,
}

impl Wishes {
    /// Whether the client wants upstreams to be asked.
    pub(crate) fn recursion_desired(self) -> bool {
        self.flags & FLAG_RECURSION_DESIRED != 0
    }

    /// Whether the client checks signatures itself.
    pub(crate) fn checking_disabled(self) -> bool {
        self.flags & FLAG_CHECKING_DISABLED != 0
    }

    /// Whether the client wants records of DNSSEC.
    pub(crate) fn dnssec_ok(self) -> bool {
        self.edns.is_some_and(|edns| edns.dnssec_ok)
    }

    /// Longest answer over UDP that this client takes.
    pub(crate) fn udp_answer_max(self) -> u16 {
        self.edns.map_or(PLAIN_ANSWER_MAX, |edns| edns.size.clamp(PLAIN_ANSWER_MAX, UDP_ANSWER_MAX))
    }

    /// The flags of a reply; `authentic` says that somebody proved it.
    fn reply_flags(self, code: ResponseCode, authentic: bool) -> u16 {
        let told = self.flags & FLAG_AUTHENTIC != 0 || self.dnssec_ok();
        FLAG_RESPONSE
            | self.flags & (FLAG_RECURSION_DESIRED | FLAG_CHECKING_DISABLED)
            | FLAG_RECURSION_AVAILABLE
            | if authentic && told { FLAG_AUTHENTIC } else { 0 }
            | u16::from(code.low())
    }
}

/// A query without anything unusual in it, as it lies in its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainQuery<'m> {
    pub(crate) wishes: Wishes,
    /// The name in the client's spelling, in wire format.
    pub(crate) name: &'m [u8],
    pub(crate) kind: u16,
}

impl<'m> PlainQuery<'m> {
    /// Reads a message; `None` when there is something unusual in it, or wrong.
    pub(crate) fn read(message: &'m [u8]) -> Option<Self> {
        let header = message.first_chunk::<HEADER_OCTETS>()?;
        let flags = u16::from_be_bytes([header[2], header[3]]);
        let [0, 1, 0, 0, 0, 0, 0, additionals @ (0 | 1)] = header[4..] else { return None };
        if flags & (FLAG_RESPONSE | OPCODE_MASK) != 0 {
            return None;
        }
        let name_end = plain_name_end(message, HEADER_OCTETS)?;
        let (name, rest) = (&message[HEADER_OCTETS..name_end], &message[name_end..]);
        let ([kind_high, kind_low, 0, 1], rest) = rest.split_first_chunk::<4>()? else { return None };
        let kind = u16::from_be_bytes([*kind_high, *kind_low]);
        if name.len() == 1 || is_meta(kind) || kind == u16::from(RecordType::ANY) {
            return None;
        }
        let edns = match (additionals, rest) {
            (0, []) => None,
            (1, [0, 0, 41, ..]) => {
                let fixed = rest.get(1..OPT_OCTETS)?;
                let options = &rest[OPT_OCTETS..];
                if fixed[5] != EDNS_VERSION || fixed[8..] != u16::try_from(options.len()).ok()?.to_be_bytes() {
                    return None;
                }
                Some(Edns::read(fixed, options)?)
            }
            _ => return None,
        };
        Some(Self { wishes: Wishes { flags, edns }, name, kind })
    }

    /// Whether there are options in the OPT record of this query's message.
    pub(crate) fn has_options(&self, message: &[u8]) -> bool {
        message.len() > HEADER_OCTETS + self.name.len() + 4 + OPT_OCTETS
    }

    /// The flags of a reply about our own names.
    pub(crate) fn reply_flags(&self, code: ResponseCode) -> u16 {
        self.wishes.reply_flags(code, false) | FLAG_AUTHORITATIVE
    }

    /// The flags of a reply about other names, which somebody may have proved.
    pub(crate) fn forwarded_flags(&self, code: ResponseCode, authentic: bool) -> u16 {
        self.wishes.reply_flags(code, authentic)
    }
}

/// Whether a type stands for something about the message, or for a transfer, and not for records (RFC 6895 section 3.1).
fn is_meta(kind: u16) -> bool {
    matches!(kind, 0 | 41 | 249..=254)
}

impl Query {
    /// Reads a message.
    pub(crate) fn read(message: &[u8]) -> Reading {
        let Some(header) = Header::read(message) else { return Reading::Ignore };
        if header.flags & FLAG_RESPONSE != 0 {
            return Reading::Ignore;
        }
        if header.flags & OPCODE_MASK != 0 {
            return header.refuse(ResponseCode::NotImp, &[], None);
        }
        let Some(body) = Body::read(message, &header) else {
            return header.refuse(ResponseCode::FormErr, &[], None);
        };
        let question = &message[HEADER_OCTETS..body.question_end];
        let refuse = |code| header.refuse(code, question, body.edns);
        if body.edns.is_some_and(|edns| edns.version != EDNS_VERSION) {
            return refuse(ResponseCode::BADVERS);
        }
        if body.class != DNSClass::IN {
            return refuse(ResponseCode::Refused);
        }
        match body.kind {
            // Transfers: there are no secondaries.
            251 | 252 => return refuse(ResponseCode::Refused),
            kind if is_meta(kind) => return refuse(ResponseCode::NotImp),
            _ => {}
        }
        let folded = Folded::from_wire(&question[..question.len() - 4]);
        let name = Folded::verbatim(&question[..question.len() - 4]);
        let question = Question { name, folded, kind: RecordType::from(body.kind) };
        let wishes = Wishes { flags: header.flags, edns: body.edns };
        Reading::Query(Box::new(Self { id: header.id, wishes, question, cookie: None, server: None }))
    }

    /// The reply as octets, of at most `limit` of them; what does not fit is cut and the client told so.
    pub(crate) fn write(&self, reply: &Reply, limit: u16) -> Vec<u8> {
        self.try_write(reply, limit).unwrap_or_else(|| {
            // A record that cannot be encoded: the rest is worth nothing without it.
            self.try_write(&Reply::empty(ResponseCode::ServFail), limit).unwrap_or_default()
        })
    }

    fn try_write(&self, reply: &Reply, limit: u16) -> Option<Vec<u8>> {
        let extra = Extra {
            extended_error: reply.extended_error,
            cookie: self.cookie,
            connected: limit == TCP_ANSWER_MAX,
            server: self.server.as_deref(),
        };
        let opt = self.wishes.edns.map(|edns| Opt::new(edns, reply.code, extra));
        let opt = opt.as_ref().map_or(&[][..], Opt::octets);
        let mut octets = Vec::with_capacity(usize::from(PLAIN_ANSWER_MAX));
        let mut encoder = BinEncoder::new(&mut octets);
        encoder.set_max_size(limit.checked_sub(u16::try_from(opt.len()).ok()?)?);
        encoder.emit_vec(&[0; HEADER_OCTETS]).ok()?;
        self.question.name.emit(&mut encoder).ok()?;
        encoder.emit_u16(self.question.kind.into()).ok()?;
        encoder.emit_u16(DNSClass::IN.into()).ok()?;
        let mut truncated = false;
        let mut counts = [1, 0, 0, 0];
        for (count, records) in counts[1..].iter_mut().zip([&reply.answers, &reply.authority]) {
            for record in records {
                let before = encoder.offset();
                if truncated || self.write_record(record, &mut encoder).is_err() {
                    encoder.set_offset(before);
                    truncated = true;
                    break;
                }
                *count += 1;
            }
        }
        if !truncated {
            // A courtesy: all of it or none, and the reply is whole without it (RFC 2181 section 9).
            let before = encoder.offset();
            if reply.additional.iter().all(|record| self.write_record(record, &mut encoder).is_ok()) {
                counts[3] = u16::try_from(reply.additional.len()).ok()?;
            } else {
                encoder.set_offset(before);
            }
        }
        encoder.trim();
        counts[3] += u16::from(!opt.is_empty());
        octets.extend_from_slice(opt);
        let words = [self.id, self.reply_flags(reply, truncated)].into_iter().chain(counts);
        for (word, place) in words.zip(octets.chunks_exact_mut(2)) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        Some(octets)
    }

    /// Writes one record; its owner, when it is the name of the question, as a pointer to that.
    fn write_record(&self, record: &Record, encoder: &mut BinEncoder<'_>) -> ProtoResult {
        if record.name.eq_case(&self.question.name) && !record.name.is_root() {
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

    fn reply_flags(&self, reply: &Reply, truncated: bool) -> u16 {
        self.wishes.reply_flags(reply.code, reply.authentic)
            | if reply.authoritative { FLAG_AUTHORITATIVE } else { 0 }
            | if truncated { FLAG_TRUNCATED } else { 0 }
    }
}

type ProtoResult = Result<(), hickory_proto::ProtoError>;

/// The fixed part of a message.
struct Header {
    id: u16,
    flags: u16,
    counts: [u16; 4],
}

impl Header {
    fn read(message: &[u8]) -> Option<Self> {
        let header = message.first_chunk::<HEADER_OCTETS>()?;
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        Some(Self { id: word(0), flags: word(2), counts: [word(4), word(6), word(8), word(10)] })
    }

    /// A reply without records.
    fn refuse(&self, code: ResponseCode, question: &[u8], edns: Option<Edns>) -> Reading {
        let copied = OPCODE_MASK | FLAG_RECURSION_DESIRED | FLAG_CHECKING_DISABLED;
        // Whoever gets no records is still told that upstreams are asked here, as in every other reply.
        let recursion = if self.flags & OPCODE_MASK == 0 { FLAG_RECURSION_AVAILABLE } else { 0 };
        let flags = FLAG_RESPONSE | recursion | self.flags & copied | u16::from(code.low());
        let opt = edns.map(|edns| Opt::new(edns, code, Extra::default()));
        let opt = opt.as_ref().map_or(&[][..], Opt::octets);
        let mut octets = Vec::with_capacity(HEADER_OCTETS + question.len() + opt.len());
        let counts = [u16::from(!question.is_empty()), 0, 0, u16::from(!opt.is_empty())];
        for word in [self.id, flags].into_iter().chain(counts) {
            octets.extend_from_slice(&word.to_be_bytes());
        }
        octets.extend_from_slice(question);
        octets.extend_from_slice(opt);
        Reading::Refuse(octets, code)
    }
}

/// What follows the header.
struct Body {
    question_end: usize,
    kind: u16,
    class: DNSClass,
    edns: Option<Edns>,
}

impl Body {
    /// `None` when it is not well formed, or has not exactly one question (RFC 9619).
    fn read(message: &[u8], header: &Header) -> Option<Self> {
        let [questions, answers, authorities, additionals] = header.counts;
        if questions != 1 {
            return None;
        }
        let name_end = plain_name_end(message, HEADER_OCTETS)?;
        let fixed = message.get(name_end..name_end + 4)?;
        let kind = u16::from_be_bytes([fixed[0], fixed[1]]);
        let class = DNSClass::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        let mut at = name_end + 4;
        let mut edns = None;
        let before = u32::from(answers) + u32::from(authorities);
        for index in 0..before + u32::from(additionals) {
            let owner = at;
            at = name_end_of(message, at)?;
            let fixed = message.get(at..at + 10)?;
            let kind = u16::from_be_bytes([fixed[0], fixed[1]]);
            let length = usize::from(u16::from_be_bytes([fixed[8], fixed[9]]));
            let data = message.get(at + 10..at + 10 + length)?;
            at += 10 + length;
            if RecordType::from(kind) == RecordType::OPT {
                // Only one, only there, and only for the root (RFC 6891 section 6.1.1).
                if index < before || edns.is_some() || message[owner] != 0 {
                    return None;
                }
                edns = Some(Edns::read(fixed, data)?);
            }
        }
        Some(Self { question_end: name_end + 4, kind, class, edns })
    }
}

/// A reply to be written again and again, without its question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prepared {
    /// Everything behind the question.
    pub(crate) octets: Box<[u8]>,
    /// Where the TTLs stand in it.
    pub(crate) ttls: Box<[u16]>,
    pub(crate) answers: u16,
    pub(crate) authorities: u16,
}

impl Prepared {
    /// What follows the question about this name, when it is asked in small letters; `None` for what does not fit a
    /// datagram, or needs to say why.
    pub(crate) fn new(name: &Folded, kind: RecordType, reply: &Reply) -> Option<Self> {
        if reply.extended_error.is_some() || !reply.additional.is_empty() {
            return None;
        }
        let question = Question { name: name.name(), folded: name.clone(), kind };
        let mut reply = reply.clone();
        reply.spell(&question.name);
        let wishes = Wishes { flags: 0, edns: None };
        let query = Query { id: 0, wishes, question, cookie: None, server: None };
        let whole = query.try_write(&reply, UDP_ANSWER_MAX)?;
        if u16::from_be_bytes([whole[2], whole[3]]) & FLAG_TRUNCATED != 0 {
            return None;
        }
        let start = HEADER_OCTETS + name.wire().len() + 4;
        let (answers, authorities) = (reply.answers.len(), reply.authority.len());
        let mut ttls = Vec::with_capacity(answers + authorities);
        let mut at = start;
        for _ in 0..answers + authorities {
            at = name_end_of(&whole, at)?;
            ttls.push(u16::try_from(at + 4 - start).ok()?);
            at += 10 + usize::from(u16::from_be_bytes([*whole.get(at + 8)?, *whole.get(at + 9)?]));
        }
        Some(Self {
            octets: whole[start..].into(),
            ttls: ttls.into(),
            answers: u16::try_from(answers).ok()?,
            authorities: u16::try_from(authorities).ok()?,
        })
    }

    /// Writes it to `room`, with every TTL less the age; `None` when there is too little room.
    pub(crate) fn write(&self, age: u32, room: &mut [u8]) -> Option<usize> {
        let room = room.get_mut(..self.octets.len())?;
        room.copy_from_slice(&self.octets);
        for at in &self.ttls {
            let ttl = room.get_mut(usize::from(*at)..)?.first_chunk_mut::<4>()?;
            *ttl = u32::from_be_bytes(*ttl).saturating_sub(age).to_be_bytes();
        }
        Some(self.octets.len())
    }
}

/// Where an uncompressed name ends: nothing stands before the question that it could point to.
fn plain_name_end(message: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1 + length;
        if length > LABEL_OCTETS_MAX || at - start > NAME_OCTETS_MAX {
            return None;
        }
        if length == 0 {
            return Some(at);
        }
    }
}

/// Where a name ends that may end in a pointer; what it points to is not read, since nothing here uses it.
fn name_end_of(message: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        let length = usize::from(*message.get(at)?);
        if length & 0xc0 == 0xc0 {
            let target = usize::from(u16::from_be_bytes([message[at], *message.get(at + 1)?]) & 0x3fff);
            // A pointer goes back to a name, never into the header (RFC 1035 section 4.1.4).
            return (HEADER_OCTETS..start).contains(&target).then_some(at + 2);
        }
        at += 1 + length;
        if length > LABEL_OCTETS_MAX || at - start > NAME_OCTETS_MAX {
            return None;
        }
        if length == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests;
