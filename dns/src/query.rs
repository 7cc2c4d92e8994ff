//! Queries: the header, the question and EDNS ([`crate::edns`]) are read by hand, and nothing else of a message.
//!
//! What is no query is refused as RFC 1035, RFC 6891, RFC 8906 and RFC 9619 say, in replies that are never larger
//! than what they refuse by more than an OPT record. Responses are never answered, so that no two servers talk to
//! each other for ever.

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{DNSClass, RecordType};

use crate::edns::{EDNS_VERSION, Edns, UDP_ANSWER_MAX};
use crate::name::{LABEL_BYTES_MAX, NAME_BYTES_MAX};

/// Length of a header (RFC 1035 section 4.1.1).
pub(crate) const HEADER_BYTES: usize = 12;

/// Bytes of a question behind its name (RFC 1035 section 4.1.2).
pub(crate) const QUESTION_FIXED_BYTES: usize = 4;

/// Bytes of a record between its owner and its data (RFC 1035 section 4.1.3).
pub(crate) const RECORD_FIXED_BYTES: usize = 10;

/// Longest answer over UDP when the client states no size (RFC 1035 section 4.2.1).
pub(crate) const PLAIN_ANSWER_MAX: u16 = 512;

/// A name that is that of the question, which stands behind the header (RFC 1035 section 4.1.4).
pub(crate) const POINTER_TO_QUESTION: u16 = 0xc00c;

const FLAG_RESPONSE: u16 = 0x8000;
pub(crate) const FLAG_AUTHORITATIVE: u16 = 0x0400;
pub(crate) const FLAG_TRUNCATED: u16 = 0x0200;
const FLAG_RECURSION_DESIRED: u16 = 0x0100;
const FLAG_RECURSION_AVAILABLE: u16 = 0x0080;
const FLAG_AUTHENTIC: u16 = 0x0020;
const FLAG_CHECKING_DISABLED: u16 = 0x0010;
const OPCODE_MASK: u16 = 0x7800;

/// What a message turned out to be.
#[derive(Debug)]
pub(crate) enum Reading<'m> {
    /// Nothing that gets an answer.
    Ignore,
    /// A query that is refused independently of the zone.
    Refuse(Refusal<'m>),
    /// A query.
    Query(Query<'m>),
}

/// A query, as it lies in its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query<'m> {
    /// The message up to the end of the question.
    pub(crate) head: &'m [u8],
    /// The name in the client's spelling, in wire format.
    pub(crate) name: &'m [u8],
    pub(crate) kind: RecordType,
    pub(crate) wishes: Wishes,
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

    /// The flags of a reply; `authentic` says that an upstream proved it (RFC 4035 section 3.2.3).
    pub(crate) fn reply_flags(self, code: ResponseCode, authentic: bool) -> u16 {
        let wanted = self.flags & FLAG_AUTHENTIC != 0 || self.dnssec_ok();
        FLAG_RESPONSE
            | self.flags & (FLAG_RECURSION_DESIRED | FLAG_CHECKING_DISABLED)
            | FLAG_RECURSION_AVAILABLE
            | if authentic && wanted { FLAG_AUTHENTIC } else { 0 }
            | u16::from(code.low())
    }
}

/// Whether a type stands for something about the message, or for a transfer, and not for records (RFC 6895 section 3.1).
fn is_meta(kind: u16) -> bool {
    matches!(kind, 0 | 41 | 249..=254)
}

impl<'m> Query<'m> {
    /// Reads a message.
    pub(crate) fn read(message: &'m [u8]) -> Reading<'m> {
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
        let (head, name) = (&message[..body.question_end], &message[HEADER_BYTES..body.name_end]);
        let refuse = |code| header.refuse(code, &head[HEADER_BYTES..], body.edns);
        if body.edns.is_some_and(|edns| edns.version != EDNS_VERSION) {
            return refuse(ResponseCode::BADVERS);
        }
        if body.class != u16::from(DNSClass::IN) {
            return refuse(ResponseCode::Refused);
        }
        match body.kind {
            // Transfers: there are no secondaries.
            251 | 252 => return refuse(ResponseCode::Refused),
            kind if is_meta(kind) => return refuse(ResponseCode::NotImp),
            _ => {}
        }
        let wishes = Wishes { flags: header.flags, edns: body.edns };
        Reading::Query(Self { head, name, kind: RecordType::from(body.kind), wishes })
    }
}

/// A message that is refused.
#[derive(Debug)]
pub(crate) struct Refusal<'m> {
    id: u16,
    flags: u16,
    question: &'m [u8],
    pub(crate) code: ResponseCode,
    pub(crate) edns: Option<Edns>,
}

impl Refusal<'_> {
    /// The reply but for its OPT record, which `additionals` counts.
    pub(crate) fn head(&self, additionals: u16) -> impl Iterator<Item = u8> {
        let counts = [u16::from(!self.question.is_empty()), 0, 0, additionals];
        let words = [self.id, self.flags].into_iter().chain(counts);
        words.flat_map(u16::to_be_bytes).chain(self.question.iter().copied())
    }
}

/// The fixed part of a message.
struct Header {
    id: u16,
    flags: u16,
    counts: [u16; 4],
}

impl Header {
    fn read(message: &[u8]) -> Option<Self> {
        let header = message.first_chunk::<HEADER_BYTES>()?;
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        Some(Self { id: word(0), flags: word(2), counts: [word(4), word(6), word(8), word(10)] })
    }

    /// A reply without records.
    fn refuse<'m>(&self, code: ResponseCode, question: &'m [u8], edns: Option<Edns>) -> Reading<'m> {
        let copied = OPCODE_MASK | FLAG_RECURSION_DESIRED | FLAG_CHECKING_DISABLED;
        // A refusal too says that upstreams are asked here, as every other reply does.
        let recursion = if self.flags & OPCODE_MASK == 0 { FLAG_RECURSION_AVAILABLE } else { 0 };
        let flags = FLAG_RESPONSE | recursion | self.flags & copied | u16::from(code.low());
        Reading::Refuse(Refusal { id: self.id, flags, question, code, edns })
    }
}

/// What follows the header.
struct Body {
    name_end: usize,
    question_end: usize,
    kind: u16,
    class: u16,
    edns: Option<Edns>,
}

impl Body {
    /// `None` when it is not well formed, or has not exactly one question (RFC 9619).
    fn read(message: &[u8], header: &Header) -> Option<Self> {
        let [questions, answers, authorities, additionals] = header.counts;
        if questions != 1 {
            return None;
        }
        let name_end = plain_name_end(message, HEADER_BYTES)?;
        let question_end = name_end + QUESTION_FIXED_BYTES;
        let fixed = message.get(name_end..question_end)?;
        let [kind, class] = [[fixed[0], fixed[1]], [fixed[2], fixed[3]]].map(u16::from_be_bytes);
        let mut at = question_end;
        let mut edns = None;
        let before = u32::from(answers) + u32::from(authorities);
        for index in 0..before + u32::from(additionals) {
            let owner = at;
            at = name_end_of(message, at)?;
            let fixed = message.get(at..at + RECORD_FIXED_BYTES)?;
            let kind = u16::from_be_bytes([fixed[0], fixed[1]]);
            let length = usize::from(u16::from_be_bytes([fixed[8], fixed[9]]));
            let data = message.get(at + RECORD_FIXED_BYTES..at + RECORD_FIXED_BYTES + length)?;
            at += RECORD_FIXED_BYTES + length;
            if kind == u16::from(RecordType::OPT) {
                // Only one, only there, and only for the root (RFC 6891 section 6.1.1).
                if index < before || edns.is_some() || message[owner] != 0 {
                    return None;
                }
                edns = Some(Edns::read(fixed, data)?);
            }
        }
        Some(Self { name_end, question_end, kind, class, edns })
    }
}

/// Where an uncompressed name ends: nothing stands before the question that it could point to.
fn plain_name_end(message: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1 + length;
        if length == 0 {
            return (at - start <= NAME_BYTES_MAX).then_some(at);
        }
        if length > LABEL_BYTES_MAX {
            return None;
        }
    }
}

/// Where a name ends that may end in a pointer; what it points to is not read, since nothing here uses it.
pub(crate) fn name_end_of(message: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        let length = usize::from(*message.get(at)?);
        if length & 0xc0 == 0xc0 {
            let target = usize::from(u16::from_be_bytes([message[at], *message.get(at + 1)?]) & 0x3fff);
            // A pointer goes back to a name, never into the header (RFC 1035 section 4.1.4).
            return (HEADER_BYTES..start).contains(&target).then_some(at + 2);
        }
        at += 1 + length;
        if length > LABEL_BYTES_MAX || at - start > NAME_BYTES_MAX {
            return None;
        }
        if length == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests;
