//! Usual answers, written straight from the zone or the cache into the reply: no message is built, and nothing allocated.
//!
//! What is not usual (other opcodes and classes, aliases of names elsewhere, names that have to be asked for, answers that
//! have to be cut) is left to [`crate::answer`] and [`crate::wire`]. Whatever is answered here is answered there with the
//! same octets, and a test holds both to that.

use std::cell::Cell;
use std::net::IpAddr;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RData, RecordType};

use crate::answer::{Found, find};
use crate::cache::{Kept, Wanted};
use crate::cookie::{CLIENT_OCTETS, Cookie};
use crate::edns::{Extra, Opt};
use crate::metrics::By;
use crate::name::NAME_OCTETS_MAX;
use crate::recent::{Recent, Spot};
use crate::wire::{self, HEADER_OCTETS, PlainQuery};
use crate::zone::{Apex, Node, SOA_TIMES, Scope, Set, Zone};

/// Most names that a reply written here may refer to: the labels of the question and of eight containers.
const SUFFIXES_MAX: usize = 32;

/// Most targets of service records that are written here.
const TARGETS_MAX: usize = 8;

/// Most aliases that are followed here.
const ALIASES_MAX: usize = 4;

/// What an answer depends on besides the zone and the question.
pub(crate) trait Surroundings {
    /// A number that says which of several records stands first.
    fn turn(&self) -> usize;

    /// The cookie for a client.
    fn cookie(&self, client_part: [u8; CLIENT_OCTETS], client: IpAddr) -> Cookie;

    /// The name of this server, for those who ask.
    fn server(&self) -> Option<&[u8]>;

    /// Writes what upstreams said before to `room`, behind the question; empty upstreams are the configured ones.
    fn kept(&self, wanted: &Wanted<'_>, room: &mut [u8]) -> Option<Kept>;
}

/// A reply that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// How many octets it has.
    pub(crate) octets: usize,
    /// What it says.
    pub(crate) code: ResponseCode,
    /// The number of the type that was asked for.
    pub(crate) kind: u16,
    /// Whether the name is one of the cluster's domain.
    pub(crate) own: bool,
    /// Whether the client wants records of DNSSEC.
    pub(crate) dnssec_ok: bool,
    /// Who knew.
    pub(crate) by: By,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker<'z> {
    pub(crate) address: IpAddr,
    /// What only he sees.
    pub(crate) scope: Option<&'z Scope>,
    /// Where his answer is, when everybody gets the same and somebody looked for it already.
    pub(crate) spot: Option<Spot>,
}

impl<'z> Asker<'z> {
    /// Whoever has this address, about whose question nothing is known.
    pub(crate) fn at(address: IpAddr, zone: &'z Zone) -> Self {
        Self { address, scope: zone.scope(address).map(|scope| &**scope), spot: None }
    }
}

/// How long a reply may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// As long as the client takes datagrams.
    Datagram,
    /// As long as the room for it.
    Room,
}

/// Writes what this client is told to `room`, when that is usual.
pub(crate) fn answer(
    zone: &Zone,
    client: Asker<'_>,
    message: &[u8],
    surroundings: &impl Surroundings,
    recent: Option<&mut Recent>,
    room: &mut [u8],
    limit: Limit,
) -> Option<Written> {
    let mut client = client;
    // What was said before needs no look into the message; of clients with names of their own it does.
    if let Some(recent) = recent.as_deref().filter(|_| client.scope.is_none()) {
        let spot = *client.spot.get_or_insert_with(|| recent.spot(message, 0));
        if let Some(written) = recent.write(spot, message, room) {
            return Some(written);
        }
    }
    answer_anew(zone, client, message, surroundings, recent, room, limit)
}

/// The same for what was not said before; apart, since this needs much room for itself.
#[inline(never)]
fn answer_anew(
    zone: &Zone,
    client: Asker<'_>,
    message: &[u8],
    surroundings: &impl Surroundings,
    mut recent: Option<&mut Recent>,
    room: &mut [u8],
    limit: Limit,
) -> Option<Written> {
    let Asker { address, scope, spot: known } = client;
    let query = PlainQuery::read(message)?;
    let mut folded = [0; NAME_OCTETS_MAX];
    let folded = &mut folded[..query.name.len()];
    folded.copy_from_slice(query.name);
    folded.make_ascii_lowercase();
    let (folded, kind) = (&*folded, RecordType::from(query.kind));
    let apex = zone.apex_of(folded);
    if is_about_apex(apex, folded, kind) {
        return None;
    }
    let question = query.name.len() + 4;
    let (own, dnssec_ok) = (apex.is_some(), query.wishes.dnssec_ok());
    // Under an apex no search list matters, so that all clients are told the same about a name that is no link of theirs.
    let names = scope.filter(|scope| !own || scope.link(folded).is_some());
    // What the answer is found with is what it is kept under; only behind aliases there is more.
    let usual = recent.as_deref().filter(|_| !query.has_options(message));
    let spot = usual.map(|recent| match (names, known) {
        (None, Some(known)) => known,
        _ => recent.spot(message, names.map_or(0, |scope| std::ptr::from_ref(scope).addr())),
    });
    let again = spot.filter(|_| scope.is_some()).zip(usual);
    if let Some(written) = again.and_then(|(spot, recent)| recent.write(spot, message, room)) {
        return Some(written);
    }
    let found = find(zone, names, apex, folded, kind);
    let opt = query.wishes.edns.map(|edns| {
        let cookie = edns.client_cookie.map(|part| surroundings.cookie(part, address));
        let connected = limit == Limit::Room;
        let server = if edns.nsid { surroundings.server() } else { None };
        Opt::new(edns, ResponseCode::NoError, Extra { extended_error: None, cookie, connected, server })
    });
    let opt = opt.as_ref().map_or(&[][..], Opt::octets);
    let longest = match limit {
        Limit::Datagram => room.len().min(usize::from(query.wishes.udp_answer_max())),
        Limit::Room => room.len(),
    };
    let room_for_records = room.get_mut(..longest.checked_sub(opt.len())?)?;
    let mut reply = Reply { room: room_for_records, end: 0, question: query.name, names: None };
    reply.put(&message[..HEADER_OCTETS + question])?;
    let asked = Asked { zone, scope, kind, surroundings, limit, turned: Cell::new(false), followed: Cell::new(false) };
    let mut until = Duration::MAX;
    let (records, by) = match found {
        Found::Node(node) if kind != RecordType::CNAME && node.alias().is_some() => {
            (asked.follow(node, &mut reply)?, By::Zone)
        }
        Found::Node(node) => (asked.node(node, apex, folded, &mut reply)?, By::Zone),
        Found::Name => (asked.negative(ResponseCode::NoError, apex, folded, &mut reply)?, By::Zone),
        Found::Nothing if apex.is_some() => {
            (asked.negative(ResponseCode::NXDomain, apex, folded, &mut reply)?, By::Zone)
        }
        // What was kept is written as it is, so that the name has to be spelled as it was asked for.
        Found::Nothing if folded == query.name && query.wishes.recursion_desired() => {
            let own = names.map_or(&[][..], |scope| &scope.upstreams);
            let wanted = Wanted {
                name: folded,
                kind,
                upstreams: if own.is_empty() { &zone.upstreams } else { own },
                dnssec_ok: query.wishes.dnssec_ok(),
                checking_disabled: query.wishes.checking_disabled(),
            };
            let kept = surroundings.kept(&wanted, &mut reply.room[reply.end..])?;
            reply.end += kept.octets;
            let flags = query.forwarded_flags(kept.code, kept.authentic);
            let counts = [kept.answers, kept.authorities, 0];
            until = kept.until;
            (Records { code: kept.code, flags: Some(flags), counts }, By::Cache)
        }
        Found::Nothing => return None,
    };
    let (end, code) = (reply.end, records.code);
    let [answers, authorities, additionals] = records.counts;
    let flags = records.flags.unwrap_or_else(|| query.reply_flags(code));
    let additionals = additionals + u16::from(!opt.is_empty());
    for (place, word) in (2..).step_by(2).zip([flags, 1, answers, authorities, additionals]) {
        room[place..place + 2].copy_from_slice(&word.to_be_bytes());
    }
    room[end..end + opt.len()].copy_from_slice(opt);
    let octets = end + opt.len();
    let written = Written { octets, code, kind: query.kind, own, dnssec_ok, by };
    // Behind an alias each client's own names count again, which the spot of all clients says nothing about.
    let is_whole = !asked.turned.get() && (names.is_some() || !asked.followed.get());
    if let Some((recent, spot)) = recent.as_mut().zip(spot).filter(|_| is_whole) {
        recent.keep(spot, message, question, &room[..octets], (written, until));
    }
    Some(written)
}

/// Whether this asks for what only an apex has.
fn is_about_apex(apex: Option<&Apex>, folded: &[u8], kind: RecordType) -> bool {
    matches!(kind, RecordType::SOA | RecordType::NS) && apex.is_some_and(|apex| apex.folded.wire() == folded)
}

/// The records that were written, of each section but the first.
struct Records {
    code: ResponseCode,
    /// The flags, where they are not those of our own names.
    flags: Option<u16>,
    counts: [u16; 3],
}

impl Records {
    fn of_ours(code: ResponseCode, counts: [u16; 3]) -> Self {
        Self { code, flags: None, counts }
    }
}

/// What was asked, and by whom.
struct Asked<'z, S> {
    zone: &'z Zone,
    scope: Option<&'z Scope>,
    kind: RecordType,
    surroundings: &'z S,
    limit: Limit,
    /// Whether records took turns.
    turned: Cell<bool>,
    /// Whether aliases were followed, to names that the client may have of its own.
    followed: Cell<bool>,
}

impl<S: Surroundings> Asked<'_, S> {
    /// Writes what a node has of the type.
    fn node<'n>(
        &self,
        node: &Node,
        apex: Option<&'n Apex>,
        folded: &'n [u8],
        reply: &mut Reply<'_, 'n>,
    ) -> Option<Records>
    where
        Self: 'n,
    {
        match node.set(self.kind) {
            Some(set) if self.kind == RecordType::SRV => self.services(set, reply),
            Some(set) => Some(Records::of_ours(ResponseCode::NoError, [self.set(set, None, reply)?, 0, 0])),
            None => self.negative(ResponseCode::NoError, apex, folded, reply),
        }
    }

    /// Writes a record set of this owner, by default of the question's name; returns how many records it has.
    fn set<'n>(&self, set: &Set, owner: Option<&'n [u8]>, reply: &mut Reply<'_, 'n>) -> Option<u16> {
        let ttl = set.ttl.unwrap_or(self.zone.ttl);
        let first = self.first(set);
        for data in set.data[first..].iter().chain(&set.data[..first]) {
            reply.put_owner(owner)?;
            match data {
                RData::A(_) | RData::AAAA(_) => reply.put_address(set.kind, ttl, data)?,
                RData::TXT(text) => {
                    let length = text.txt_data.iter().map(|string| string.len() + 1).sum::<usize>();
                    reply.put_fixed(set.kind, ttl, u16::try_from(length).ok()?)?;
                    for string in &text.txt_data {
                        reply.put(&[u8::try_from(string.len()).ok()?])?;
                        reply.put(string)?;
                    }
                }
                RData::CNAME(target) if set.data.len() == 1 && owner.is_none() => {
                    reply.put_target(set.kind, ttl, &target.0)?;
                }
                RData::PTR(target) if set.data.len() == 1 && owner.is_none() => {
                    reply.put_target(set.kind, ttl, &target.0)?;
                }
                _ => return None,
            }
        }
        u16::try_from(set.data.len()).ok()
    }

    /// Writes service records, and the addresses of their targets when there is room for all of them.
    fn services(&self, set: &Set, reply: &mut Reply<'_, '_>) -> Option<Records> {
        let mut buffers = [[0; NAME_OCTETS_MAX]; TARGETS_MAX];
        let mut targets: [&[u8]; TARGETS_MAX] = [&[]; TARGETS_MAX];
        let targets = targets.get_mut(..set.data.len())?;
        for ((target, buffer), data) in targets.iter_mut().zip(&mut buffers).zip(&set.data) {
            let RData::SRV(service) = data else { return None };
            *target = folded_only(uncompressed(&service.target, buffer)?)?;
        }
        // Names may be shortened by the targets, which live here only.
        let mut whole = reply.again();
        let ttl = set.ttl.unwrap_or(self.zone.ttl);
        let first = self.first(set);
        for index in (first..targets.len()).chain(0..first) {
            let RData::SRV(service) = &set.data[index] else { return None };
            whole.put_owner(None)?;
            whole.put_fixed(set.kind, ttl, u16::try_from(6 + targets[index].len()).ok()?)?;
            for word in [service.priority, service.weight, service.port] {
                whole.put(&word.to_be_bytes())?;
            }
            whole.put_whole_name(targets[index])?;
        }
        let end = whole.end;
        let additionals = match self.addresses(targets, &mut whole) {
            Some(additionals) => additionals,
            // All of them or none.
            None if self.limit == Limit::Datagram => {
                whole.end = end;
                0
            }
            None => return None,
        };
        reply.end = whole.end;
        let answers = u16::try_from(set.data.len()).ok()?;
        Some(Records::of_ours(ResponseCode::NoError, [answers, 0, additionals]))
    }

    /// Writes the addresses of names; `None` when there is no room for all of them.
    fn addresses<'n>(&self, names: &[&'n [u8]], reply: &mut Reply<'_, 'n>) -> Option<u16> {
        let mut count = 0;
        for name in names {
            let sets = self.zone.node(name).into_iter().flat_map(|node| &node.sets);
            for set in sets.filter(|set| matches!(set.kind, RecordType::A | RecordType::AAAA)) {
                let ttl = set.ttl.unwrap_or(self.zone.ttl);
                for data in &set.data {
                    reply.put_owner(Some(name))?;
                    reply.put_address(set.kind, ttl, data)?;
                    count += 1;
                }
            }
        }
        Some(count)
    }

    /// Writes aliases and what they lead to, as long as that is ours.
    fn follow(&self, node: &Node, reply: &mut Reply<'_, '_>) -> Option<Records> {
        self.followed.set(true);
        let mut buffers = [[0; NAME_OCTETS_MAX]; ALIASES_MAX];
        let (mut node, mut owner, mut aliases) = (node, None, 0);
        let mut whole = reply.again();
        for buffer in &mut buffers {
            let (target, ttl) = node.alias()?;
            if node.set(self.kind).is_some() {
                // Its own records stand in when the target has none.
                return None;
            }
            let target = folded_only(uncompressed(target, buffer)?)?;
            whole.put_owner(owner)?;
            whole.put_fixed(RecordType::CNAME, ttl.unwrap_or(self.zone.ttl), 0)?;
            let start = whole.end;
            whole.put_name(target)?;
            whole.put_length(start)?;
            aliases += 1;
            let apex = self.zone.apex_of(target);
            if is_about_apex(apex, target, self.kind) {
                return None;
            }
            let mut records = match find(self.zone, self.scope, apex, target, self.kind) {
                Found::Node(next) if next.alias().is_some() => {
                    (node, owner) = (next, Some(target));
                    continue;
                }
                Found::Node(next) => match next.set(self.kind) {
                    Some(set) => {
                        let count = self.set(set, Some(target), &mut whole)?;
                        Records::of_ours(ResponseCode::NoError, [count, 0, 0])
                    }
                    None => self.negative(ResponseCode::NoError, apex, target, &mut whole)?,
                },
                Found::Name => self.negative(ResponseCode::NoError, apex, target, &mut whole)?,
                Found::Nothing if apex.is_some() => self.negative(ResponseCode::NXDomain, apex, target, &mut whole)?,
                Found::Nothing => return None,
            };
            records.counts[0] += aliases;
            reply.end = whole.end;
            return Some(records);
        }
        None
    }

    /// Writes the record that says for how long the answer is no.
    fn negative<'n>(
        &self,
        code: ResponseCode,
        apex: Option<&'n Apex>,
        folded: &'n [u8],
        reply: &mut Reply<'_, 'n>,
    ) -> Option<Records>
    where
        Self: 'n,
    {
        // A name outside that only a search list or a link brought here is its own apex, for this client.
        let (owner, apex) = match apex {
            Some(apex) => (apex.folded.wire(), apex),
            None => (folded, self.zone.apexes.first()?),
        };
        reply.put_name(owner)?;
        reply.put_fixed(RecordType::SOA, self.zone.negative_ttl, 0)?;
        let start = reply.end;
        reply.put_name(apex.server.wire())?;
        reply.put_name(apex.mailbox.wire())?;
        let (refresh, retry, expire) = SOA_TIMES;
        reply.put(&self.zone.serial.to_be_bytes())?;
        for time in [refresh, retry, expire] {
            reply.put(&time.to_be_bytes())?;
        }
        reply.put(&self.zone.negative_ttl.to_be_bytes())?;
        reply.put_length(start)?;
        Some(Records::of_ours(code, [0, 1, 0]))
    }

    /// Which record of a set stands first.
    fn first(&self, set: &Set) -> usize {
        if set.data.len() < 2 {
            return 0;
        }
        self.turned.set(true);
        self.surroundings.turn() % set.data.len()
    }
}

/// The octets of a reply as far as they are written.
struct Reply<'r, 'n> {
    room: &'r mut [u8],
    end: usize,
    /// The name in the question.
    question: &'n [u8],
    /// The names in it, once they matter.
    names: Option<Suffixes<'n>>,
}

impl<'n> Reply<'_, 'n> {
    /// The same reply, for names that live shorter.
    fn again<'s>(&mut self) -> Reply<'_, 's>
    where
        'n: 's,
    {
        Reply { room: &mut *self.room, end: self.end, question: self.question, names: None }
    }

    /// Appends octets, when there is room.
    fn put(&mut self, octets: &[u8]) -> Option<()> {
        let end = self.end + octets.len();
        self.room.get_mut(self.end..end)?.copy_from_slice(octets);
        self.end = end;
        Some(())
    }

    /// Appends the owner of a record, by default the name of the question.
    fn put_owner(&mut self, owner: Option<&'n [u8]>) -> Option<()> {
        match owner {
            Some(name) => self.put_name(name),
            None => self.put(&wire::POINTER_TO_QUESTION.to_be_bytes()),
        }
    }

    /// Appends the fixed part of a record: its type, its class, its TTL and the length of its data.
    fn put_fixed(&mut self, kind: RecordType, ttl: u32, length: u16) -> Option<()> {
        let mut fixed = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        fixed[..2].copy_from_slice(&u16::from(kind).to_be_bytes());
        fixed[4..8].copy_from_slice(&ttl.to_be_bytes());
        fixed[8..].copy_from_slice(&length.to_be_bytes());
        self.put(&fixed)
    }

    /// Appends the rest of a record that is an address; nothing for other records.
    fn put_address(&mut self, kind: RecordType, ttl: u32, data: &RData) -> Option<()> {
        match data {
            RData::A(address) => {
                self.put_fixed(kind, ttl, 4)?;
                self.put(&address.octets())
            }
            RData::AAAA(address) => {
                self.put_fixed(kind, ttl, 16)?;
                self.put(&address.octets())
            }
            _ => None,
        }
    }

    /// Appends the rest of a record that is but a name, behind which nothing is shortened.
    fn put_target(&mut self, kind: RecordType, ttl: u32, target: &Name) -> Option<()> {
        let mut octets = [0; NAME_OCTETS_MAX];
        let target = uncompressed(target, &mut octets)?;
        self.put_fixed(kind, ttl, 0)?;
        let mut whole = self.again();
        let start = whole.end;
        whole.put_name(target)?;
        whole.put_length(start)?;
        self.end = whole.end;
        Some(())
    }

    /// Fills in the length of the data that began at `start`.
    fn put_length(&mut self, start: usize) -> Option<()> {
        let length = u16::try_from(self.end - start).ok()?;
        self.room[start - 2..start].copy_from_slice(&length.to_be_bytes());
        Some(())
    }

    /// Appends a name, as far as it does not end like one before (RFC 1035 section 4.1.4); octets are compared, so that
    /// everybody sees his own spelling.
    fn put_name(&mut self, name: &'n [u8]) -> Option<()> {
        let (start, mut rest) = (self.end, name);
        while rest[0] != 0 {
            let own = name.len() - rest.len();
            let names = self.names()?;
            if let Some(at) = names.find(rest) {
                self.put(&name[..own])?;
                return self.put(&(wire::POINTER | at).to_be_bytes());
            }
            names.learn(start + own, rest)?;
            rest = &rest[usize::from(rest[0]) + 1..];
        }
        self.put(name)
    }

    /// Appends a name that is not to be shortened (RFC 2782), though later ones may be by it.
    fn put_whole_name(&mut self, name: &'n [u8]) -> Option<()> {
        let start = self.end;
        self.names()?.learn_all(start, name)?;
        self.put(name)
    }

    fn names(&mut self) -> Option<&mut Suffixes<'n>> {
        if self.names.is_none() {
            let mut names = Suffixes { known: [(0, &[]); SUFFIXES_MAX], count: 0 };
            names.learn_all(HEADER_OCTETS, self.question)?;
            self.names = Some(names);
        }
        self.names.as_mut()
    }
}

/// The names in a reply that later ones may end in, in the order in which they stand there.
struct Suffixes<'n> {
    known: [(u16, &'n [u8]); SUFFIXES_MAX],
    count: usize,
}

impl<'n> Suffixes<'n> {
    fn find(&self, suffix: &[u8]) -> Option<u16> {
        self.known[..self.count].iter().find(|(_, known)| *known == suffix).map(|(at, _)| *at)
    }

    fn learn(&mut self, at: usize, suffix: &'n [u8]) -> Option<()> {
        *self.known.get_mut(self.count)? = (u16::try_from(at).ok()?, suffix);
        self.count += 1;
        Some(())
    }

    /// A name that stands at `at`, and its ancestors.
    fn learn_all(&mut self, at: usize, name: &'n [u8]) -> Option<()> {
        let mut rest = name;
        while rest[0] != 0 {
            self.learn(at + name.len() - rest.len(), rest)?;
            rest = &rest[usize::from(rest[0]) + 1..];
        }
        Some(())
    }
}

/// A name in wire format that has no capital letters.
fn folded_only(wire: &[u8]) -> Option<&[u8]> {
    (!wire.iter().any(u8::is_ascii_uppercase)).then_some(wire)
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
