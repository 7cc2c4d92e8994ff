//! The answer to a question: a value that borrows from the zone, and the only place that decides what a client gets.
//!
//! Names are tried as they are and with search lists appended, since a resolver on Windows takes a dotted name for a
//! complete one. What depends on the client is in its [`Scope`]; nothing else of the client is looked at.

use std::net::SocketAddr;
use std::sync::Arc;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;

use crate::name::{Folded, NAME_BYTES_MAX, dots, fold, joined};
use crate::zone::{Apex, Few, Node, RecordSet, Scope, Zone};

/// Longest chain of aliases that is followed, like BIND's.
pub(crate) const CHAIN_MAX: usize = 16;

/// The root in wire format.
const ROOT: &[u8] = &[0];

/// The answer to a question.
#[derive(Clone, Debug)]
pub(crate) struct Answer<'z> {
    /// The apex that the name of the question belongs to.
    pub(crate) apex: Option<&'z Apex>,
    /// The aliases that lead from the name of the question to the end, each the alias of the one before.
    pub(crate) aliases: Few<&'z RecordSet>,
    /// The node at the end of the aliases.
    pub(crate) end: End<'z>,
}

/// What stands at the end of the aliases.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End<'z> {
    /// Records of the type.
    Records(&'z RecordSet),
    /// The start of authority of this apex (RFC 1035 section 3.3.13).
    Authority(&'z Apex),
    /// The name server of this apex.
    NameServer(&'z Apex),
    /// A name with records, all of which are asked for.
    Any,
    /// No records of the type; the code says whether the name exists. The apex is the first one for names outside of all:
    /// such a name is an apex of its own, for this client.
    Nothing { code: ResponseCode, apex: Option<&'z Apex>, within: bool },
    /// An alias that leads back, or too far.
    Loop,
    /// A name that upstreams have to be asked about.
    Elsewhere {
        /// The client's own upstreams, or those of the zone; empty means the configured ones.
        upstreams: &'z Arc<[SocketAddr]>,
        /// The answer when the upstreams do not know the name: so many of the aliases, and these records.
        stand_in: Option<(usize, &'z RecordSet)>,
    },
}

/// Records which names were tried, and what stands there.
pub(crate) trait Recorder {
    /// A name was tried.
    fn tried(&mut self, tried: Tried<'_>);
}

/// Records nothing.
impl Recorder for () {
    fn tried(&mut self, _: Tried<'_>) {}
}

/// A name that was tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tried<'a> {
    /// The name in wire format.
    pub(crate) name: &'a [u8],
    /// Whether it was looked for among the client's own names.
    pub(crate) own: bool,
    /// The entry of the search list that was appended.
    pub(crate) search: Option<&'a Folded>,
    /// What stands there.
    pub(crate) found: Standing<'a>,
}

/// The node at a name that was tried.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Standing<'a> {
    /// Records of the type.
    Records,
    /// An alias of another name.
    Alias(&'a RecordSet),
    /// Records of other types.
    OtherTypes,
    /// Records that this client finds by the full name only.
    FullNameOnly,
    /// Nothing.
    Nothing,
}

/// The answer to a question about a folded name, for a client that sees this scope in addition to what all see.
pub(crate) fn answer<'z>(
    zone: &'z Zone,
    scope: Option<&'z Scope>,
    name: &[u8],
    kind: RecordType,
    recorder: &mut impl Recorder,
) -> Answer<'z> {
    let mut asking = Asking { zone, scope, kind, recorder };
    let apex = zone.apex_of(name);
    match asking.step(apex, name) {
        Step::End(end) => Answer { apex, aliases: Few::default(), end },
        Step::Alias(node, alias) => {
            let (aliases, end) = asking.follow(node, alias);
            Answer { apex, aliases, end }
        }
    }
}

/// Where one name of a chain leads.
enum Step<'z> {
    End(End<'z>),
    Alias(&'z Node, &'z RecordSet),
}

/// What is known about a name.
enum Found<'z> {
    /// A name that the question is about, and its alias or else its records of the type.
    Node(&'z Node, Option<&'z RecordSet>),
    /// The name exists, without records of the type.
    Name,
    /// Nothing.
    Nothing,
}

struct Asking<'z, 'r, R> {
    zone: &'z Zone,
    scope: Option<&'z Scope>,
    kind: RecordType,
    recorder: &'r mut R,
}

impl<'z, R: Recorder> Asking<'z, '_, R> {
    /// Looks one name up.
    fn step(&mut self, apex: Option<&'z Apex>, name: &[u8]) -> Step<'z> {
        let Self { zone, scope, kind, .. } = *self;
        if matches!(kind, RecordType::SOA | RecordType::NS)
            && let Some(apex) = apex.filter(|apex| apex.folded.wire() == name)
        {
            self.recorder.tried(Tried { name, own: false, search: None, found: Standing::Records });
            return Step::End(if kind == RecordType::SOA { End::Authority(apex) } else { End::NameServer(apex) });
        }
        let nothing = |code| {
            let within = apex.is_some();
            Step::End(End::Nothing { code, apex: apex.or_else(|| zone.apexes.first()), within })
        };
        let (node, set) = match self.find(apex, name) {
            Found::Node(node, set) => (node, set),
            Found::Name => return nothing(ResponseCode::NoError),
            Found::Nothing if apex.is_some() => return nothing(ResponseCode::NXDomain),
            Found::Nothing => {
                let own = scope.map(|scope| &scope.upstreams).filter(|upstreams| !upstreams.is_empty());
                return Step::End(End::Elsewhere { upstreams: own.unwrap_or(&zone.upstreams), stand_in: None });
            }
        };
        match set {
            _ if kind == RecordType::ANY => Step::End(End::Any),
            Some(set) if set.kind() == kind => Step::End(End::Records(set)),
            Some(alias) => Step::Alias(node, alias),
            None => nothing(ResponseCode::NoError),
        }
    }

    /// Follows aliases to their end; the records that stand beside the last of them stand in for an end that cannot be had.
    #[inline(never)]
    fn follow(&mut self, node: &'z Node, alias: &'z RecordSet) -> (Few<&'z RecordSet>, End<'z>) {
        let mut aliases = Few::default();
        let (mut node, mut alias, mut beside) = (node, alias, None);
        let end = loop {
            beside = node.set(self.kind).map(|set| (aliases.len(), set)).or(beside);
            aliases.push(alias);
            if aliases.len() == CHAIN_MAX {
                break End::Loop;
            }
            let mut room = [0; NAME_BYTES_MAX];
            let target = fold(alias.target(), &mut room);
            match self.step(self.zone.apex_of(target), target) {
                Step::Alias(next, target) => (node, alias) = (next, target),
                Step::End(end) => break end,
            }
        };
        match (end, beside) {
            (End::Nothing { .. } | End::Loop, Some((count, set))) => {
                (aliases.iter().take(count).copied().collect(), End::Records(set))
            }
            (End::Loop, None) => (Few::default(), End::Loop),
            (End::Elsewhere { upstreams, .. }, stand_in) => (aliases, End::Elsewhere { upstreams, stand_in }),
            (end, _) => (aliases, end),
        }
    }

    /// What is known about a name: first what only this client sees, then what all see; each as it is and then with the
    /// search lists. `apex` is that of the name.
    fn find(&mut self, apex: Option<&Apex>, name: &[u8]) -> Found<'z> {
        let Self { zone, scope, kind, .. } = *self;
        let mut exists = false;
        let empty = [].as_slice();
        let searched = apex.is_none() && name != ROOT && (zone.ndots == 0 || dots(name) < zone.ndots);
        let own_search = scope.map_or(empty, |scope| &scope.search);
        let (own_search, default_search) = if searched { (own_search, &*zone.search) } else { (empty, empty) };
        let suffixes = own_search.iter().chain(default_search.iter().filter(|suffix| !own_search.contains(suffix)));
        if let Some(scope) = scope.filter(|scope| !scope.links.is_empty()) {
            for search in std::iter::once(None).chain(suffixes.clone().map(Some)) {
                let mut room = [0; NAME_BYTES_MAX];
                let Some(name) = complete(name, search, &mut room) else { continue };
                let node = scope.link(name).and_then(|target| zone.target(target));
                if let Some((node, set)) = self.judge(name, true, search, node, &mut exists) {
                    return Found::Node(node, set);
                }
            }
        }
        if let Some((node, set)) = self.judge(name, false, None, zone.node(name), &mut exists) {
            return Found::Node(node, set);
        }
        for suffix in suffixes {
            let mut room = [0; NAME_BYTES_MAX];
            let Some(name) = joined(name, suffix, &mut room) else { continue };
            if let Some((node, set)) = self.judge(name, false, Some(suffix), zone.node(name), &mut exists) {
                return Found::Node(node, set);
            }
        }
        let is_apex = apex.is_some_and(|apex| apex.folded.wire() == name);
        let nonterminal = || apex.is_some() && zone.has_below(name);
        let hidden = exists && (!zone.overlay || apex.is_some() || is_address(kind));
        if hidden || is_apex || nonterminal() { Found::Name } else { Found::Nothing }
    }

    /// What stands at a name that was tried, and its alias or else its records of the type, when it is what the question is
    /// about; notes whether the name exists for this client.
    #[inline]
    fn judge(
        &mut self,
        name: &[u8],
        own: bool,
        search: Option<&Folded>,
        node: Option<&'z Arc<Node>>,
        exists: &mut bool,
    ) -> Option<(&'z Node, Option<&'z RecordSet>)> {
        let node = node.map(|node| &**node);
        let visible = node.filter(|node| own || search.is_none() || node.is_searched_by(self.scope));
        *exists |= visible.is_some();
        let set = visible.and_then(|node| node.set_or_alias(self.kind));
        let fitting = visible.filter(|node| set.is_some() || fits(node, self.kind));
        let found = match (node, visible, set) {
            (None, ..) => Standing::Nothing,
            (_, None, _) => Standing::FullNameOnly,
            (.., None) => Standing::OtherTypes,
            (.., Some(set)) if set.kind() == self.kind => Standing::Records,
            (.., Some(alias)) => Standing::Alias(alias),
        };
        self.recorder.tried(Tried { name, own, search, found });
        Some((fitting?, set))
    }
}

/// A name with an entry of a search list appended; `None` when that would be too long for a name.
fn complete<'r>(name: &'r [u8], search: Option<&Folded>, room: &'r mut [u8; NAME_BYTES_MAX]) -> Option<&'r [u8]> {
    search.map_or(Some(name), |suffix| joined(name, suffix, room))
}

/// Whether a node without records of this type is what a question is about.
///
/// A name that has addresses of one family is not looked for elsewhere when the other family is asked.
fn fits(node: &Node, kind: RecordType) -> bool {
    kind == RecordType::ANY || (is_address(kind) && node.address_sets().next().is_some())
}

fn is_address(kind: RecordType) -> bool {
    matches!(kind, RecordType::A | RecordType::AAAA)
}

#[cfg(test)]
mod tests;
