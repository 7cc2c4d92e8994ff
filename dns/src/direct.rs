//! Usual answers, written straight from the zone into the reply: no message is built, and nothing allocated.
//!
//! What is not usual (other opcodes and classes, options of EDNS, aliases, services, names that others know, answers that
//! have to be cut) is left to [`crate::answer`] and [`crate::wire`]. Whatever is answered here is answered there with the
//! same octets, and a test holds both to that.

use std::net::IpAddr;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RData, RecordType};

use crate::answer::{Found, find};
use crate::name::NAME_OCTETS_MAX;
use crate::wire::{self, HEADER_OCTETS, OPT_OCTETS, PlainQuery};
use crate::zone::{Apex, SOA_TIMES, Set, Zone};

/// Most names that a reply written here may refer to: the labels of the question and of a SOA record, and some to spare.
const SUFFIXES_MAX: usize = 24;

/// A reply that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// How many octets it has.
    pub(crate) octets: usize,
    /// What it says.
    pub(crate) code: ResponseCode,
}

/// How long a reply may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// As long as the client takes datagrams.
    Datagram,
    /// As long as the room for it.
    Room,
}

/// Writes what this client is told to `room`, when that is usual. `turn` is asked when one of several records has to
/// stand first.
pub(crate) fn answer(
    zone: &Zone,
    client: IpAddr,
    message: &[u8],
    turn: impl FnOnce() -> usize,
    room: &mut [u8],
    limit: Limit,
) -> Option<Written> {
    let query = PlainQuery::read(message)?;
    let mut folded = [0; NAME_OCTETS_MAX];
    let folded = &mut folded[..query.name.len()];
    folded.copy_from_slice(query.name);
    folded.make_ascii_lowercase();
    let (folded, kind) = (&*folded, RecordType::from(query.kind));
    let scope = zone.scope(client).map(|scope| &**scope);
    let apex = zone.apex_of(folded);
    if matches!(kind, RecordType::SOA | RecordType::NS) && apex.is_some_and(|apex| apex.folded.wire() == folded) {
        return None;
    }
    let found = find(zone, scope, apex, folded, kind);
    let opt = if query.edns.is_some() { OPT_OCTETS } else { 0 };
    let longest = match limit {
        Limit::Datagram => room.len().min(usize::from(query.udp_answer_max())),
        Limit::Room => room.len(),
    };
    let mut reply = Reply { room: room.get_mut(..longest.checked_sub(opt)?)?, end: 0 };
    reply.put(&message[..HEADER_OCTETS + query.name.len() + 4])?;
    let (code, answers, authorities) = match found {
        Found::Node(node) if kind == RecordType::CNAME || node.alias().is_none() => match node.set(kind) {
            Some(set) => (ResponseCode::NoError, reply.set(zone, set, &query, turn)?, 0),
            None => (ResponseCode::NoError, 0, reply.negative(zone, apex, folded, &query)?),
        },
        Found::Name => (ResponseCode::NoError, 0, reply.negative(zone, apex, folded, &query)?),
        Found::Nothing if apex.is_some() => (ResponseCode::NXDomain, 0, reply.negative(zone, apex, folded, &query)?),
        Found::Node(_) | Found::Nothing => return None,
    };
    let end = reply.end;
    let additionals = u16::from(query.edns.is_some());
    for (place, word) in (2..).step_by(2).zip([query.reply_flags(code), 1, answers, authorities, additionals]) {
        room[place..place + 2].copy_from_slice(&word.to_be_bytes());
    }
    if let Some(edns) = query.edns {
        room[end..end + opt].copy_from_slice(&wire::plain_opt(edns));
    }
    Some(Written { octets: end + opt, code })
}

/// The octets of a reply as far as they are written.
struct Reply<'r> {
    room: &'r mut [u8],
    end: usize,
}

impl Reply<'_> {
    /// Appends octets, when there is room.
    fn put(&mut self, octets: &[u8]) -> Option<()> {
        let end = self.end + octets.len();
        self.room.get_mut(self.end..end)?.copy_from_slice(octets);
        self.end = end;
        Some(())
    }

    /// Appends the fixed part of a record: its type, its class, its TTL and the length of its data.
    fn put_fixed(&mut self, kind: RecordType, ttl: u32, length: u16) -> Option<()> {
        let mut fixed = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        fixed[..2].copy_from_slice(&u16::from(kind).to_be_bytes());
        fixed[4..8].copy_from_slice(&ttl.to_be_bytes());
        fixed[8..].copy_from_slice(&length.to_be_bytes());
        self.put(&fixed)
    }

    /// Appends the record set of the question; returns how many records it has.
    fn set(&mut self, zone: &Zone, set: &Set, query: &PlainQuery<'_>, turn: impl FnOnce() -> usize) -> Option<u16> {
        let ttl = set.ttl.unwrap_or(zone.ttl);
        let first = if set.data.len() > 1 { turn() % set.data.len() } else { 0 };
        for data in set.data[first..].iter().chain(&set.data[..first]) {
            self.put(&wire::POINTER_TO_QUESTION.to_be_bytes())?;
            match data {
                RData::A(address) => {
                    self.put_fixed(set.kind, ttl, 4)?;
                    self.put(&address.octets())?;
                }
                RData::AAAA(address) => {
                    self.put_fixed(set.kind, ttl, 16)?;
                    self.put(&address.octets())?;
                }
                RData::TXT(text) => {
                    let length = text.txt_data.iter().map(|string| string.len() + 1).sum::<usize>();
                    self.put_fixed(set.kind, ttl, u16::try_from(length).ok()?)?;
                    for string in &text.txt_data {
                        self.put(&[u8::try_from(string.len()).ok()?])?;
                        self.put(string)?;
                    }
                }
                RData::PTR(target) if set.data.len() == 1 => {
                    self.put_fixed(set.kind, ttl, 0)?;
                    let mut octets = [0; NAME_OCTETS_MAX];
                    let target = uncompressed(&target.0, &mut octets)?;
                    let start = self.end;
                    Suffixes::of_question(query.name)?.put(target, self)?;
                    self.put_length(start)?;
                }
                _ => return None,
            }
        }
        u16::try_from(set.data.len()).ok()
    }

    /// Appends the record that says for how long the answer is no; returns how many records that makes.
    fn negative(&mut self, zone: &Zone, apex: Option<&Apex>, folded: &[u8], query: &PlainQuery<'_>) -> Option<u16> {
        // A name outside that only a search list or a link brought here is its own apex, for this client.
        let (owner, apex) = match apex {
            Some(apex) => (apex.folded.wire(), apex),
            None => (folded, zone.apexes.first()?),
        };
        let mut suffixes = Suffixes::of_question(query.name)?;
        suffixes.put(owner, self)?;
        self.put_fixed(RecordType::SOA, zone.negative_ttl, 0)?;
        let start = self.end;
        suffixes.put(apex.server.wire(), self)?;
        suffixes.put(apex.mailbox.wire(), self)?;
        let (refresh, retry, expire) = SOA_TIMES;
        self.put(&zone.serial.to_be_bytes())?;
        for time in [refresh, retry, expire] {
            self.put(&time.to_be_bytes())?;
        }
        self.put(&zone.negative_ttl.to_be_bytes())?;
        self.put_length(start)?;
        Some(1)
    }

    /// Fills in the length of the data that began at `start`.
    fn put_length(&mut self, start: usize) -> Option<()> {
        let length = u16::try_from(self.end - start).ok()?;
        self.room[start - 2..start].copy_from_slice(&length.to_be_bytes());
        Some(())
    }
}

/// The names in a reply that later ones may end in (RFC 1035 section 4.1.4), in the order in which they stand there.
struct Suffixes<'n> {
    known: [(u16, &'n [u8]); SUFFIXES_MAX],
    count: usize,
}

impl<'n> Suffixes<'n> {
    /// Those of a question.
    fn of_question(name: &'n [u8]) -> Option<Self> {
        let mut suffixes = Self { known: [(0, &[]); SUFFIXES_MAX], count: 0 };
        let mut rest = name;
        while rest[0] != 0 {
            suffixes.learn(HEADER_OCTETS + name.len() - rest.len(), rest)?;
            rest = &rest[usize::from(rest[0]) + 1..];
        }
        Some(suffixes)
    }

    fn learn(&mut self, at: usize, suffix: &'n [u8]) -> Option<()> {
        *self.known.get_mut(self.count)? = (u16::try_from(at).ok()?, suffix);
        self.count += 1;
        Some(())
    }

    /// Appends a name to a reply, as far as it does not end like one before; octets are compared, so that everybody sees
    /// his own spelling.
    fn put(&mut self, name: &'n [u8], reply: &mut Reply<'_>) -> Option<()> {
        let start = reply.end;
        let mut rest = name;
        while rest[0] != 0 {
            let (own, shared) = (name.len() - rest.len(), rest);
            if let Some((at, _)) = self.known[..self.count].iter().find(|(_, known)| *known == shared) {
                reply.put(&name[..own])?;
                return reply.put(&(wire::POINTER | at).to_be_bytes());
            }
            self.learn(start + own, rest)?;
            rest = &rest[usize::from(rest[0]) + 1..];
        }
        reply.put(name)
    }
}

/// The octets of a name.
fn uncompressed<'r>(name: &Name, room: &'r mut [u8; NAME_OCTETS_MAX]) -> Option<&'r [u8]> {
    let mut end = 0;
    for label in name {
        *room.get_mut(end)? = u8::try_from(label.len()).ok()?;
        room.get_mut(end + 1..end + 1 + label.len())?.copy_from_slice(label);
        end += 1 + label.len();
    }
    *room.get_mut(end)? = 0;
    Some(&room[..=end])
}

#[cfg(test)]
mod tests;
