//! What an upstream's reply is worth: pure.
//!
//! Of its records only those are believed that the question is about, and no longer than they say.

use std::collections::HashMap;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use crate::cache::Key;
use crate::name::Folded;
use crate::reply::Reply;

/// Longest TTL that is believed (RFC 8767 section 4: about a week; a day is plenty).
pub(super) const TTL_MAX: u32 = 86_400;

/// Longest time for which a negative answer is cached (RFC 2308 section 5: one to three hours).
const NEGATIVE_TTL_MAX: u32 = 3_600;

/// Time for which a negative answer without SOA is cached.
pub(super) const NEGATIVE_TTL: u32 = 5;

/// Longest chain of aliases in an answer, like our own.
const CHAIN_MAX: usize = 16;

/// What an upstream said.
#[derive(Debug)]
pub(crate) enum Heard {
    /// An answer, positive or negative.
    Good(Box<Answer>),
    /// That it will not or cannot.
    Bad(ResponseCode),
}

impl Heard {
    /// How it answered.
    pub(super) fn code(&self) -> ResponseCode {
        match self {
            Self::Good(answer) => answer.reply.code,
            Self::Bad(code) => *code,
        }
    }
}

/// A good answer and for how many seconds it may be cached.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    pub(crate) lifetime: u32,
    pub(crate) bytes: usize,
}

/// What a reply is worth: of its records only those are believed that the question is about.
pub(crate) fn judge(message: Message, bytes: usize, key: &Key) -> Heard {
    let code = message.metadata.response_code;
    if !matches!(code, ResponseCode::NoError | ResponseCode::NXDomain) {
        return Heard::Bad(code);
    }
    let (answers, last) = chain(message.answers, key);
    let positive = answers.iter().any(|record| is_of(record.record_type(), key));
    let mut authority = Vec::new();
    if !positive {
        let proof = |record: &Record| {
            record.record_type() == RecordType::SOA
                || key.dnssec_ok
                    && matches!(record.record_type(), RecordType::NSEC | RecordType::NSEC3 | RecordType::RRSIG)
        };
        let within =
            |record: &Record| last.is_within(&Folded::of(&record.name)) || record.record_type() != RecordType::SOA;
        authority.extend(message.authorities.iter().filter(|record| proof(record) && within(record)).cloned());
        let referral = message.authorities.iter().any(|record| record.record_type() == RecordType::NS);
        if answers.is_empty() && authority.is_empty() && referral && !message.metadata.recursion_available {
            // A referral to other servers, which are not followed.
            return Heard::Bad(ResponseCode::Refused);
        }
    }
    let mut reply = Reply { answers, authority, authentic: message.metadata.authentic_data, ..Reply::empty(code) };
    for record in reply.answers.iter_mut().chain(&mut reply.authority) {
        // A TTL with the top bit set is none (RFC 2181 section 8).
        record.ttl = if record.ttl > i32::MAX.unsigned_abs() { 0 } else { record.ttl.min(TTL_MAX) };
    }
    let mut lifetime = reply.answers.iter().map(|record| record.ttl).min().unwrap_or(TTL_MAX);
    if !positive {
        let soa = reply.authority.iter_mut().find_map(|record| match &record.data {
            RData::SOA(soa) => {
                record.ttl = record.ttl.min(soa.minimum).min(NEGATIVE_TTL_MAX);
                Some(record.ttl)
            }
            _ => None,
        });
        lifetime = lifetime.min(soa.unwrap_or(NEGATIVE_TTL));
    }
    // What a decoded record takes in memory is a multiple of its bytes.
    let bytes = bytes + size_of::<Record>() * (reply.answers.len() + reply.authority.len());
    Heard::Good(Box::new(Answer { reply, lifetime, bytes }))
}

/// Whether records of a type are what is asked for; of ANY the upstream gives what it wants to (RFC 8482 section 4).
fn is_of(kind: RecordType, key: &Key) -> bool {
    kind == key.kind || key.kind == RecordType::ANY
}

/// The records that lead from the question to its answer, in order, and the name where they end.
fn chain(records: Vec<Record>, key: &Key) -> (Vec<Record>, Folded) {
    let mut name = key.name.clone();
    let mut seen = vec![name.clone()];
    let mut aliases: HashMap<Folded, Name> = HashMap::new();
    for record in &records {
        if let RData::CNAME(target) = &record.data {
            aliases.entry(Folded::of(&record.name)).or_insert_with(|| target.0.clone());
        }
    }
    if !is_of(RecordType::CNAME, key) {
        while let Some(target) = aliases.get(&name) {
            name = Folded::of(target);
            if seen.contains(&name) || seen.len() >= CHAIN_MAX {
                break;
            }
            seen.push(name.clone());
        }
    }
    let mut places: Vec<(usize, Record)> = Vec::with_capacity(records.len());
    for record in records {
        let folded = Folded::of(&record.name);
        let kind = record.record_type();
        let place = seen.iter().position(|name| *name == folded);
        let place = match (place, kind) {
            (Some(place), _) if is_of(kind, key) || kind == RecordType::CNAME => Some(place),
            (Some(place), RecordType::RRSIG) if key.dnssec_ok => Some(place),
            // An alias of a whole domain, from which aliases of names follow (RFC 6672).
            (None, RecordType::Unknown(39) | RecordType::RRSIG) => seen.iter().position(|name| name.is_within(&folded)),
            _ => None,
        };
        places.extend(place.map(|place| (place, record)));
    }
    places.sort_by_key(|(place, _)| *place);
    (places.into_iter().map(|(_, record)| record).collect(), name)
}
