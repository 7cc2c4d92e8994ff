//! What a client is told: a pure function of the zone, the client and the question.
//!
//! Names are tried as they are and with search lists appended, since a resolver on Windows takes a dotted name for a
//! complete one. Records are given under the name that was asked, in the client's own spelling.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{CNAME, HINFO, NS};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use crate::name::{Folded, NAME_OCTETS_MAX, dots, joined};
use crate::zone::{Apex, Node, Scope, Set, Zone};

/// Longest chain of aliases that is followed, like BIND's.
pub(crate) const CHAIN_MAX: usize = 16;

/// The root in wire format.
const ROOT: &[u8] = &[0];

/// What a client asks; the class is the Internet's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The name in the client's spelling.
    pub name: Name,
    /// The name as it is looked up.
    pub folded: Folded,
    /// The type of the records.
    pub kind: RecordType,
}

impl Question {
    /// A question about this name.
    pub fn new(name: Name, kind: RecordType) -> Self {
        Self { folded: Folded::of(&name), name, kind }
    }
}

/// What is to be done about a question.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Nothing; whoever asked gets no answer.
    Drop,
    /// Upstreams are to be asked.
    Forward(Forward),
    /// The answer is known.
    Reply(Reply),
}

/// A question for upstreams.
#[derive(Clone, Debug, PartialEq)]
pub struct Forward {
    /// What is to be asked.
    pub question: Question,
    /// The client's own upstreams; empty means the configured ones.
    pub upstreams: Arc<[SocketAddr]>,
    /// Aliases that led to the question; they stand before what the upstreams answer.
    pub aliases: Vec<Record>,
    /// What to answer when the upstreams do not know the end of the aliases.
    pub fallback: Option<Reply>,
}

/// An answer, without the parts of a message that follow from the query.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// How it went.
    pub code: ResponseCode,
    /// Whether we have the last word on the name.
    pub authoritative: bool,
    /// Whether the upstream says that it proved the answer (RFC 4035 section 3.2.3).
    pub authentic: bool,
    /// Records that answer the question.
    pub answers: Vec<Record>,
    /// Records about who has the last word, with negative answers.
    pub authority: Vec<Record>,
    /// Records that save the next question.
    pub additional: Vec<Record>,
    /// Why it went wrong (RFC 8914 section 4).
    pub extended_error: Option<u16>,
    /// Who gave it, when it is not ours.
    pub upstream: Option<SocketAddr>,
}

impl Reply {
    /// A reply without records.
    pub fn empty(code: ResponseCode) -> Self {
        Self {
            code,
            authoritative: false,
            authentic: false,
            answers: Vec::new(),
            authority: Vec::new(),
            additional: Vec::new(),
            extended_error: None,
            upstream: None,
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
    pub fn because(mut self, extended_error: u16) -> Self {
        self.extended_error = Some(extended_error);
        self
    }
}

/// What this client is told; `turn` decides which of several addresses stands first.
pub fn answer(zone: &Zone, client: IpAddr, question: &Question, turn: usize) -> Outcome {
    let asking = Asking { zone, scope: zone.scope(client).map(|scope| &**scope), question, turn };
    match asking.follow(&question.name, &question.folded, &mut Vec::new()) {
        End::Records(answers, additional) => {
            Outcome::Reply(Reply { answers, additional, authoritative: true, ..Reply::empty(ResponseCode::NoError) })
        }
        End::NoData(answers) => Outcome::Reply(asking.negative(ResponseCode::NoError, answers)),
        End::NoName(answers) => Outcome::Reply(asking.negative(ResponseCode::NXDomain, answers)),
        End::Loop => Outcome::Reply(Reply { authoritative: true, ..Reply::empty(ResponseCode::ServFail) }),
        End::Elsewhere { name, folded, aliases, fallback } => {
            let kind = question.kind;
            let upstreams = asking.scope.map_or_else(Arc::default, |scope| scope.upstreams.clone());
            let upstreams = if upstreams.is_empty() { zone.upstreams.clone() } else { upstreams };
            let fallback =
                fallback.map(|answers| Reply { answers, authoritative: true, ..Reply::empty(ResponseCode::NoError) });
            Outcome::Forward(Forward { question: Question { name, folded, kind }, upstreams, aliases, fallback })
        }
    }
}

/// Where following a name ended.
enum End {
    /// At records, and what may be added to them.
    Records(Vec<Record>, Vec<Record>),
    /// At a name without records of the type, behind these aliases.
    NoData(Vec<Record>),
    /// At a name that does not exist, behind these aliases.
    NoName(Vec<Record>),
    /// At an alias that leads back, or too far.
    Loop,
    /// At a name that others know.
    Elsewhere { name: Name, folded: Folded, aliases: Vec<Record>, fallback: Option<Vec<Record>> },
}

/// What is known about a name.
pub(crate) enum Found<'z> {
    /// Records of the type, or an alias.
    Node(&'z Arc<Node>),
    /// The name exists, without records of the type.
    Name,
    /// Nothing.
    Nothing,
}

struct Asking<'z> {
    zone: &'z Zone,
    scope: Option<&'z Scope>,
    question: &'z Question,
    turn: usize,
}

impl Asking<'_> {
    /// Follows a name to its records; `aliases` are those that led to it.
    fn follow(&self, name: &Name, folded: &Folded, aliases: &mut Vec<Record>) -> End {
        let kind = self.question.kind;
        let apex = self.zone.apex_of(folded.wire());
        if let Some(apex) = apex.filter(|apex| apex.folded == *folded) {
            let data = match kind {
                RecordType::SOA => Some((apex.soa(self.zone), self.zone.negative_ttl)),
                RecordType::NS => Some((RData::NS(NS(apex.server.name())), self.zone.ttl)),
                _ => None,
            };
            if let Some((data, ttl)) = data {
                aliases.push(Record::from_rdata(name.clone(), ttl, data));
                let server = if kind == RecordType::NS { self.addresses(&apex.server) } else { Vec::new() };
                return End::Records(std::mem::take(aliases), server);
            }
        }
        let node = match find(self.zone, self.scope, apex, folded.wire(), kind) {
            Found::Node(node) => node,
            Found::Name => return End::NoData(std::mem::take(aliases)),
            Found::Nothing if apex.is_some() => return End::NoName(std::mem::take(aliases)),
            Found::Nothing => {
                return End::Elsewhere {
                    name: name.clone(),
                    folded: folded.clone(),
                    aliases: std::mem::take(aliases),
                    fallback: None,
                };
            }
        };
        if kind == RecordType::ANY {
            // One small record set is enough for who asks for everything (RFC 8482 section 4.2).
            let any = RData::HINFO(HINFO::new("RFC8482".to_owned(), String::new()));
            aliases.push(Record::from_rdata(name.clone(), self.zone.ttl, any));
            return End::Records(std::mem::take(aliases), Vec::new());
        }
        if kind != RecordType::CNAME
            && let Some((target, ttl)) = node.alias()
        {
            return self.follow_alias(name, node, target, ttl, aliases);
        }
        match node.set(kind) {
            Some(set) => {
                let additional = self.push(name, set, aliases);
                End::Records(std::mem::take(aliases), additional)
            }
            None => End::NoData(std::mem::take(aliases)),
        }
    }

    /// Follows an alias; the name's own records stand in for a target that cannot be had.
    fn follow_alias(
        &self,
        name: &Name,
        node: &Node,
        target: &Name,
        ttl: Option<u32>,
        aliases: &mut Vec<Record>,
    ) -> End {
        let own = node.set(self.question.kind).map(|set| {
            let mut records = aliases.clone();
            self.push(name, set, &mut records);
            records
        });
        let data = RData::CNAME(CNAME(target.clone()));
        aliases.push(Record::from_rdata(name.clone(), ttl.unwrap_or(self.zone.ttl), data));
        let end =
            if aliases.len() >= CHAIN_MAX { End::Loop } else { self.follow(target, &Folded::of(target), aliases) };
        match (end, own) {
            (End::NoData(_) | End::NoName(_) | End::Loop, Some(records)) => End::Records(records, Vec::new()),
            (End::Elsewhere { name, folded, aliases, fallback: None }, own) => {
                End::Elsewhere { name, folded, aliases, fallback: own }
            }
            (end, _) => end,
        }
    }

    /// Appends a set of records under this name, rotated; returns what may be added to them.
    fn push(&self, name: &Name, set: &Set, records: &mut Vec<Record>) -> Vec<Record> {
        let ttl = set.ttl.unwrap_or(self.zone.ttl);
        let first = self.turn % set.data.len().max(1);
        let rotated = set.data[first..].iter().chain(&set.data[..first]);
        records.extend(rotated.map(|data| Record::from_rdata(name.clone(), ttl, data.clone())));
        let mut additional = Vec::new();
        for data in &set.data {
            let RData::SRV(service) = data else { continue };
            additional.extend(self.addresses(&Folded::of(&service.target)));
        }
        additional
    }

    /// The addresses of a name of ours.
    fn addresses(&self, name: &Folded) -> Vec<Record> {
        let sets = self.zone.node(name.wire()).into_iter().flat_map(|node| &node.sets);
        let addresses = sets.filter(|set| is_address(set.kind));
        let records = addresses.flat_map(|set| {
            let ttl = set.ttl.unwrap_or(self.zone.ttl);
            set.data.iter().map(move |data| Record::from_rdata(name.name(), ttl, data.clone()))
        });
        records.collect()
    }

    /// A reply that says no, with the record that says for how long (RFC 2308 section 3).
    fn negative(&self, code: ResponseCode, answers: Vec<Record>) -> Reply {
        let zone = self.zone;
        let last = answers.iter().rev().find_map(|record| match &record.data {
            RData::CNAME(target) => Some(Folded::of(&target.0)),
            _ => None,
        });
        let name = last.as_ref().unwrap_or(&self.question.folded);
        let authority = match (zone.apex_of(name.wire()), zone.apexes.first()) {
            (Some(apex), _) => vec![Record::from_rdata(apex.name.clone(), zone.negative_ttl, apex.soa(zone))],
            // A name outside that only a search list or a link brought here: its own apex, for this client.
            (None, Some(apex)) => vec![Record::from_rdata(name.name(), zone.negative_ttl, apex.soa(zone))],
            (None, None) => Vec::new(),
        };
        Reply { answers, authority, authoritative: true, ..Reply::empty(code) }
    }
}

/// What is known about a name: first what only this client sees, then what all see; each as it is and then with the
/// search lists. `apex` is that of the name.
pub(crate) fn find<'z>(
    zone: &'z Zone,
    scope: Option<&'z Scope>,
    apex: Option<&Apex>,
    name: &[u8],
    kind: RecordType,
) -> Found<'z> {
    let mut exists = false;
    let mut judge = |node: &'z Arc<Node>| {
        exists = true;
        fits(node, kind).then_some(node)
    };
    let empty = [].as_slice();
    let searched = apex.is_none() && name != ROOT && (zone.ndots == 0 || dots(name) < zone.ndots);
    let own_search = scope.map_or(empty, |scope| &scope.search);
    let (own_search, default_search) = if searched { (own_search, &*zone.search) } else { (empty, empty) };
    let suffixes = own_search.iter().chain(default_search.iter().filter(|suffix| !own_search.contains(suffix)));
    if let Some(scope) = scope.filter(|scope| !scope.links.is_empty()) {
        let link = |name: &[u8]| scope.link(name).and_then(|target| zone.target(target));
        if let Some(node) = link(name).and_then(&mut judge) {
            return Found::Node(node);
        }
        for suffix in suffixes.clone() {
            let node = joined(name, suffix, &mut [0; NAME_OCTETS_MAX]).and_then(link);
            if let Some(node) = node.and_then(&mut judge) {
                return Found::Node(node);
            }
        }
    }
    if let Some(node) = zone.node(name).and_then(&mut judge) {
        return Found::Node(node);
    }
    for suffix in suffixes {
        let node = joined(name, suffix, &mut [0; NAME_OCTETS_MAX]).and_then(|name| zone.node(name));
        let node = node.filter(|node| node.is_searched_by(scope));
        if let Some(node) = node.and_then(&mut judge) {
            return Found::Node(node);
        }
    }
    let is_apex = apex.is_some_and(|apex| apex.folded.wire() == name);
    let nonterminal = || apex.is_some() && zone.has_below(name);
    let hidden = exists && (!zone.overlay || apex.is_some() || is_address(kind));
    if hidden || is_apex || nonterminal() { Found::Name } else { Found::Nothing }
}

/// Whether a node is what a question of this type is about.
///
/// A name that has addresses of one family is not looked for elsewhere when the other family is asked.
fn fits(node: &Node, kind: RecordType) -> bool {
    if kind == RecordType::ANY {
        return true;
    }
    if is_address(kind) {
        return node.leads_to_addresses();
    }
    node.set(kind).is_some() || (kind != RecordType::CNAME && node.alias().is_some())
}

fn is_address(kind: RecordType) -> bool {
    matches!(kind, RecordType::A | RecordType::AAAA)
}

#[cfg(test)]
mod tests;
