//! Responses as bytes: the one writer of all of them.
//!
//! The records of an answer are copied from the zone as they are stored there; names are compressed (RFC 1035 section
//! 4.1.4), what does not fit is cut, and the OPT record stands last.

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;

use crate::answer::{Answer, End};
use crate::edns::{Extra, Opt};
use crate::name::{Folded, NAME_BYTES_MAX, fold, is_label};
use crate::query::{
    FLAG_AUTHORITATIVE, FLAG_TRUNCATED, HEADER_BYTES, POINTER_TO_QUESTION, Query, RECORD_FIXED_BYTES, Refusal,
};
use crate::reply::{Encoded, Reply};
use crate::zone::{Apex, EncodedRecord, RecordSet, SOA_TIMES, Zone};

/// Longest message over TCP (RFC 1035 section 4.2.2).
pub(crate) const TCP_ANSWER_MAX: u16 = u16::MAX;

/// The two bits that make a pointer (RFC 1035 section 4.1.4).
const POINTER: u16 = 0xc000;

/// Farthest place that a pointer can lead to.
const POINTER_MAX: u16 = 0x3fff;

/// Most names that later ones are compressed by: the labels of the question and of some fifty containers. Further names are
/// written out.
const NAMES_MAX: usize = 64;

/// Bytes of the data of a service record before its target (RFC 2782).
const SERVICE_FIXED_BYTES: usize = 6;

/// The record for clients that ask for everything: one small set is enough for them (RFC 8482 section 4.2).
const ANY_DATA: &[u8] = b"\x07RFC8482\0";

/// What a response says in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// How many bytes it has.
    pub(crate) bytes: usize,
    pub(crate) code: ResponseCode,
    /// How many records answer the question.
    pub(crate) answers: u16,
}

/// Records that are in `room` behind the question already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body {
    pub(crate) bytes: usize,
    pub(crate) code: ResponseCode,
    pub(crate) authentic: bool,
    pub(crate) answers: u16,
    pub(crate) authorities: u16,
}

/// Writes the answer that the zone has; `turn` says which of several records stands first.
///
/// Nothing for an answer that is elsewhere; `room` has at least the bytes of the longest answer over UDP.
pub(crate) fn write(
    query: &Query<'_>,
    zone: &Zone,
    answer: &Answer<'_>,
    turn: impl FnOnce() -> usize,
    extra: Extra<'_>,
    room: &mut [u8],
) -> Option<Written> {
    let mut response = Response::begin(query, extra, room)?;
    let code = match answer.end {
        End::Nothing { code, .. } => code,
        End::Loop => ResponseCode::ServFail,
        End::Elsewhere { .. } => return None,
        _ => ResponseCode::NoError,
    };
    response.put_answer(query, zone, answer, turn);
    let flags = query.wishes.reply_flags(code, false) | FLAG_AUTHORITATIVE;
    response.finish(flags, code)
}

/// Writes a reply without records of ours.
pub(crate) fn write_reply(query: &Query<'_>, reply: &Reply, extra: Extra<'_>, room: &mut [u8]) -> Option<Written> {
    let extra = Extra { extended_error: reply.extended_error, ..extra };
    let mut response = Response::begin(query, extra, room)?;
    let (name, limit) = (Folded::verbatim(query.name), response.limit);
    let encoded = reply.encoded(&name, query.kind, limit).map(|encoded| (encoded, reply.code, reply.authentic));
    // A record that cannot be encoded: the rest is worth nothing without it.
    let (encoded, code, authentic) = encoded.unwrap_or_else(|| (Encoded::default(), ResponseCode::ServFail, false));
    response.put(&encoded.bytes)?;
    (response.counts, response.truncated) = (encoded.counts, encoded.truncated);
    let authoritative = if reply.authoritative { FLAG_AUTHORITATIVE } else { 0 };
    response.finish(query.wishes.reply_flags(code, authentic) | authoritative, code)
}

/// Writes a response without records that sends the client to TCP.
pub(crate) fn write_truncated(query: &Query<'_>, extra: Extra<'_>, room: &mut [u8]) -> Option<Written> {
    let mut response = Response::begin(query, extra, room)?;
    response.truncated = true;
    response.finish(query.wishes.reply_flags(ResponseCode::NoError, false), ResponseCode::NoError)
}

/// Writes a response whose records `body` puts behind the question, when it has any.
pub(crate) fn write_body(
    query: &Query<'_>,
    body: impl FnOnce(&mut [u8]) -> Option<Body>,
    extra: Extra<'_>,
    room: &mut [u8],
) -> Option<Written> {
    let mut response = Response::begin(query, extra, room)?;
    let (start, limit) = (response.end, response.limit);
    let body = body(response.room.get_mut(start..limit)?)?;
    response.end += body.bytes;
    response.counts = [body.answers, body.authorities, 0];
    response.finish(query.wishes.reply_flags(body.code, body.authentic), body.code)
}

/// Writes the reply to what is refused.
pub(crate) fn write_refusal(refusal: &Refusal<'_>, room: &mut [u8]) -> Option<Written> {
    let opt = refusal.edns.map(|edns| Opt::new(edns, refusal.code, Extra::default()));
    let opt = opt.as_ref().map_or(&[][..], Opt::bytes);
    let all = refusal.head(u16::from(!opt.is_empty())).chain(opt.iter().copied());
    let mut bytes = 0;
    for byte in all {
        *room.get_mut(bytes)? = byte;
        bytes += 1;
    }
    Some(Written { bytes, code: refusal.code, answers: 0 })
}

/// A response in the making.
struct Response<'r> {
    room: &'r mut [u8],
    /// How many bytes may stand before the OPT record.
    limit: usize,
    /// How many bytes the name of the question has.
    name: usize,
    end: usize,
    /// The records of each section but the first.
    counts: [u16; 3],
    truncated: bool,
    opt: Option<Opt>,
    /// Names that later ones are compressed by, once there is one.
    names: Option<Names>,
}

impl<'r> Response<'r> {
    /// A response with its question; nothing when there is no room for that.
    fn begin(query: &Query<'_>, extra: Extra<'_>, room: &'r mut [u8]) -> Option<Self> {
        let opt = query.wishes.edns.map(|edns| Opt::new(edns, ResponseCode::NoError, extra));
        let longest = if extra.connected { TCP_ANSWER_MAX } else { query.wishes.udp_answer_max() };
        let limit = room.len().min(usize::from(longest));
        let limit = limit.checked_sub(opt.as_ref().map_or(0, |opt| opt.bytes().len()))?;
        room.get_mut(..limit)?.get_mut(..query.head.len())?.copy_from_slice(query.head);
        let (name, end) = (query.name.len(), query.head.len());
        Some(Self { room, limit, name, end, counts: [0; 3], truncated: false, opt, names: None })
    }

    /// Writes the header and the OPT record.
    fn finish(&mut self, flags: u16, code: ResponseCode) -> Option<Written> {
        let [answers, authorities, additionals] = self.counts;
        let mut bytes = self.end;
        if let Some(opt) = &mut self.opt {
            opt.set_code(code);
            bytes += opt.bytes().len();
            self.room.get_mut(self.end..bytes)?.copy_from_slice(opt.bytes());
        }
        let flags = flags | if self.truncated { FLAG_TRUNCATED } else { 0 };
        let words = [flags, 1, answers, authorities, additionals + u16::from(self.opt.is_some())];
        self.room.get_mut(2..HEADER_BYTES)?.copy_from_slice(words.map(u16::to_be_bytes).as_flattened());
        Some(Written { bytes, code, answers })
    }

    /// Writes the records of an answer.
    fn put_answer(&mut self, query: &Query<'_>, zone: &Zone, answer: &Answer<'_>, turn: impl FnOnce() -> usize) {
        let mut owner = None;
        for alias in &answer.aliases {
            if !self.put_first(owner, alias) {
                return;
            }
            owner = Some(alias.target());
        }
        match answer.end {
            End::Records(set) => {
                let first = if set.count() > 1 { turn() % usize::from(set.count()) } else { 0 };
                self.counts[0] += self.put_set(owner, set, first);
                if set.kind() == RecordType::SRV {
                    let targets = set.records().map(|record| &record.data()[SERVICE_FIXED_BYTES..]);
                    self.put_addresses(zone, targets);
                }
            }
            End::Authority(apex) => {
                let put = self.put_record(|response| response.put_authority(owner, apex, zone));
                self.counts[0] += u16::from(put);
            }
            End::NameServer(apex) => {
                let put = self.put_record(|response| {
                    response.put_owner(owner)?;
                    response.put_fixed(RecordType::NS, zone.ttl)?;
                    response.put_data(|response| response.put_name(apex.server.wire()))
                });
                self.counts[0] += u16::from(put);
                self.put_addresses(zone, [apex.server.wire()]);
            }
            End::Any => {
                let put = self.put_record(|response| {
                    response.put_owner(owner)?;
                    response.put_fixed(RecordType::HINFO, zone.ttl)?;
                    response.put_data(|response| response.put(ANY_DATA))
                });
                self.counts[0] += u16::from(put);
            }
            End::Nothing { apex: Some(apex), within, .. } => {
                let mut room = [0; NAME_BYTES_MAX];
                // The name of the question is the apex, as it is looked up.
                let name = if within { apex.folded.wire() } else { fold(owner.unwrap_or(query.name), &mut room) };
                let put = self.put_record(|response| response.put_authority(Some(name), apex, zone));
                self.counts[1] += u16::from(put);
            }
            End::Nothing { apex: None, .. } | End::Loop | End::Elsewhere { .. } => {}
        }
    }

    /// Writes the first record of a set, of this owner or by default of the question's; returns whether there was room.
    fn put_first(&mut self, owner: Option<&[u8]>, set: &RecordSet) -> bool {
        let put = set
            .records()
            .next()
            .is_some_and(|record| self.put_record(|response| response.put_encoded(owner, set.kind(), record)));
        self.counts[0] += u16::from(put);
        put
    }

    /// Writes the records of a set, from this one on; returns how many there was room for.
    fn put_set(&mut self, owner: Option<&[u8]>, set: &RecordSet, first: usize) -> u16 {
        let has_names = matches!(set.kind(), RecordType::CNAME | RecordType::PTR | RecordType::SRV);
        if owner.is_none() && !has_names && !self.is_about_root() && self.put_bytes(set, first).is_some() {
            return set.count();
        }
        let mut count = 0;
        for record in set.records().skip(first).chain(set.records().take(first)) {
            if !self.put_record(|response| response.put_encoded(owner, set.kind(), record)) {
                break;
            }
            count += 1;
        }
        count
    }

    /// Copies a whole set behind the question.
    fn put_bytes(&mut self, set: &RecordSet, first: usize) -> Option<()> {
        let bytes = set.bytes();
        let end = self.end + bytes.len();
        let place = self.room.get_mut(self.end..end).filter(|_| end <= self.limit)?;
        if first == 0 {
            place.copy_from_slice(bytes);
        } else {
            let (front, back) = bytes.split_at_checked(set.start_of(first))?;
            place[..back.len()].copy_from_slice(back);
            place[back.len()..].copy_from_slice(front);
        }
        self.end = end;
        Some(())
    }

    /// Writes the addresses of names of ours as additional records, all of them or none: a courtesy, without which the
    /// response is whole (RFC 2181 section 9).
    fn put_addresses<'n>(&mut self, zone: &Zone, names: impl IntoIterator<Item = &'n [u8]>) {
        if self.truncated {
            return;
        }
        let (start, mut count) = (self.end, 0);
        for name in names {
            let sets = zone.node(name).into_iter().flat_map(|node| node.address_sets());
            for set in sets {
                count += self.put_set(Some(name), set, 0);
            }
            if self.truncated {
                break;
            }
        }
        if self.truncated {
            (self.end, self.truncated, count) = (start, false, 0);
        }
        self.counts[2] = count;
    }

    /// Writes a whole record or nothing; then the response is cut here.
    fn put_record(&mut self, put: impl FnOnce(&mut Self) -> Option<()>) -> bool {
        let start = self.end;
        let fits = !self.truncated && put(self).is_some();
        if !fits {
            (self.end, self.truncated) = (start, true);
        }
        fits
    }

    /// Writes a record of a set.
    fn put_encoded(&mut self, owner: Option<&[u8]>, kind: RecordType, record: EncodedRecord<'_>) -> Option<()> {
        self.put_owner(owner)?;
        let (fixed, data) = record.behind_owner().split_at(RECORD_FIXED_BYTES);
        self.put(fixed)?;
        match kind {
            RecordType::CNAME | RecordType::PTR => self.put_data(|response| response.put_name(data)),
            RecordType::SRV => {
                let (fixed, target) = data.split_at_checked(SERVICE_FIXED_BYTES)?;
                self.put(fixed)?;
                self.put_whole_name(target)
            }
            _ => self.put(data),
        }
    }

    /// Writes the start of authority, which says how long a negative answer holds (RFC 2308 section 3).
    fn put_authority(&mut self, owner: Option<&[u8]>, apex: &Apex, zone: &Zone) -> Option<()> {
        self.put_owner(owner)?;
        self.put_fixed(RecordType::SOA, zone.negative_ttl)?;
        self.put_data(|response| {
            response.put_name(apex.server.wire())?;
            response.put_name(apex.mailbox.wire())?;
            let (refresh, retry, expire) = SOA_TIMES;
            let words = [zone.serial, refresh, retry, expire, zone.negative_ttl];
            response.put(words.map(u32::to_be_bytes).as_flattened())
        })
    }

    /// Appends bytes, when there is room.
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.end + bytes.len();
        self.room.get_mut(self.end..end).filter(|_| end <= self.limit)?.copy_from_slice(bytes);
        self.end = end;
        Some(())
    }

    /// Appends the owner of a record, by default the name of the question.
    fn put_owner(&mut self, owner: Option<&[u8]>) -> Option<()> {
        match owner {
            Some(name) => self.put_name(name),
            None if self.is_about_root() => self.put(&[0]),
            None => self.put(&POINTER_TO_QUESTION.to_be_bytes()),
        }
    }

    fn is_about_root(&self) -> bool {
        self.name == 1
    }

    /// Appends the type, the class and the TTL of a record, and room for the length of its data.
    fn put_fixed(&mut self, kind: RecordType, ttl: u32) -> Option<()> {
        let mut fixed = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        fixed[..2].copy_from_slice(&u16::from(kind).to_be_bytes());
        fixed[4..8].copy_from_slice(&ttl.to_be_bytes());
        self.put(&fixed)
    }

    /// Appends the data of a record and fills in its length, which stands right before it.
    fn put_data(&mut self, put: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        let start = self.end;
        put(self)?;
        let length = u16::try_from(self.end - start).ok()?;
        self.room[start - 2..start].copy_from_slice(&length.to_be_bytes());
        Some(())
    }

    /// Appends a name, as far as it does not end like one before (RFC 1035 section 4.1.4); bytes are compared, so that each
    /// client sees its own spelling.
    fn put_name(&mut self, name: &[u8]) -> Option<()> {
        let (own, known) = self.known(name);
        let start = self.end;
        self.put(&name[..own])?;
        if let Some(at) = known {
            self.put(&(POINTER | at).to_be_bytes())?;
        }
        self.learn(start, name, own);
        Some(())
    }

    /// Appends a name that is not to be shortened (RFC 2782), though later ones may be by it.
    fn put_whole_name(&mut self, name: &[u8]) -> Option<()> {
        let (own, _) = self.known(name);
        let start = self.end;
        self.put(name)?;
        self.learn(start, name, own);
        Some(())
    }

    /// How many bytes of a name stand before what is known of it, and where that stands.
    fn known(&mut self, name: &[u8]) -> (usize, Option<u16>) {
        let question = &self.room[HEADER_BYTES..HEADER_BYTES + self.name];
        let names = self.names.get_or_insert_with(|| Names::of(question));
        names.find(&self.room[..self.end], name)
    }

    /// Notes the labels of a name that stands at `start`: those that begin in its first bytes.
    fn learn(&mut self, start: usize, name: &[u8], own: usize) {
        if let Some(names) = &mut self.names {
            names.learn(start, name, own);
        }
    }
}

/// Where names stand in a response that later ones may end in, in the order in which they stand there.
struct Names {
    /// Each with how long it is when it is written out.
    at: [(u16, u16); NAMES_MAX],
    count: usize,
}

impl Names {
    /// That of the question, which is uncompressed.
    fn of(question: &[u8]) -> Self {
        let mut names = Self { at: [(0, 0); NAMES_MAX], count: 0 };
        names.learn(HEADER_BYTES, question, question.len());
        names
    }

    /// Notes the labels of a name.
    fn learn(&mut self, start: usize, name: &[u8], own: usize) {
        let mut label = 0;
        while label < own && name[label] > 0 {
            let (at, length) = (u16::try_from(start + label), u16::try_from(name.len() - label));
            let (Ok(at @ ..=POINTER_MAX), Ok(length), Some(place)) = (at, length, self.at.get_mut(self.count)) else {
                return;
            };
            *place = (at, length);
            self.count += 1;
            label += usize::from(name[label]) + 1;
        }
    }

    /// How many bytes of a name stand before the longest end of it that is known, and where that stands first.
    fn find(&self, message: &[u8], name: &[u8]) -> (usize, Option<u16>) {
        let mut found = (name.len(), None);
        for (at, length) in &self.at[..self.count] {
            if let Some(own) = name.len().checked_sub(usize::from(*length))
                && own < found.0
                && is_label(name, own)
                && stands_at(message, usize::from(*at), &name[own..])
            {
                found = (own, Some(*at));
            }
        }
        found
    }
}

/// Whether this name stands there.
fn stands_at(message: &[u8], at: usize, name: &[u8]) -> bool {
    let Some(mut there) = message.get(at..) else { return false };
    let mut rest = name;
    // Written out, it is found by one look.
    while !there.starts_with(rest) {
        let label = usize::from(rest[0]) + 1;
        match there.first_chunk().copied().map(u16::from_be_bytes) {
            // Leads back, as all pointers of ours do.
            Some(pointer @ POINTER..) => there = &message[usize::from(pointer & !POINTER)..],
            Some(_) if there.starts_with(&rest[..label]) => (there, rest) = (&there[label..], &rest[label..]),
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests;
