//! Why a client is told what it is told: every name that is tried, in order, and what stands there.
//!
//! Takes the same steps as [`crate::answer`], slower, and a test holds them to that.

use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::rr::RecordType;
use serde::Serialize;

use crate::answer::{CHAIN_MAX, Found, Question, find};
use crate::name::{Folded, NAME_OCTETS_MAX, dots, joined};
use crate::zone::{Node, Zone};

/// One name that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Step {
    /// The name.
    pub(crate) name: String,
    /// Where it was looked for.
    pub(crate) section: Section,
    /// The entry of the search list that was appended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) search: Option<String>,
    /// What stands there.
    pub(crate) found: What,
}

/// Where names are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Section {
    /// Among the names that only this client has.
    Client,
    /// Among those that all have.
    Default,
}

/// What stands at a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    /// Records of the type.
    Records,
    /// Another name that it is an alias of.
    Alias(String),
    /// Records of other types.
    OtherTypes,
    /// Something that this client finds by its full name only.
    FullNameOnly,
    /// Nothing.
    Nothing,
}

/// The names that are tried for a question, those behind aliases included.
pub(crate) fn steps(zone: &Zone, client: IpAddr, question: &Question) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut name = question.folded.clone();
    for _ in 0..CHAIN_MAX {
        let Some(node) = try_all(zone, client, &name, question.kind, &mut steps) else { break };
        match node.alias().filter(|_| question.kind != RecordType::CNAME) {
            Some((target, _)) => name = Folded::of(target),
            None => break,
        }
    }
    steps
}

/// Tries the name as it is and with the search lists appended; gives what was found.
fn try_all<'z>(
    zone: &'z Zone,
    client: IpAddr,
    name: &Folded,
    kind: RecordType,
    steps: &mut Vec<Step>,
) -> Option<&'z Arc<Node>> {
    let scope = zone.scope(client).map(|scope| &**scope);
    let apex = zone.apex_of(name.wire());
    let found = match find(zone, scope, apex, name.wire(), kind) {
        Found::Node(node) => Some(node),
        _ => None,
    };
    let searched = apex.is_none() && !name.is_root() && (zone.ndots == 0 || dots(name.wire()) < zone.ndots);
    let own = scope.map_or(&[][..], |scope| &scope.search);
    let mut suffixes: Vec<Option<&Folded>> = vec![None];
    if searched {
        suffixes.extend(own.iter().map(Some));
        suffixes.extend(zone.search.iter().filter(|suffix| !own.contains(suffix)).map(Some));
    }
    let has_links = scope.is_some_and(|scope| !scope.links.is_empty());
    let sections = [has_links.then_some(Section::Client), Some(Section::Default)];
    for section in sections.into_iter().flatten() {
        for suffix in &suffixes {
            let mut room = [0; NAME_OCTETS_MAX];
            let full = match suffix {
                Some(suffix) => joined(name.wire(), suffix, &mut room),
                None => Some(name.wire()),
            };
            let Some(full) = full else { continue };
            let node = match section {
                Section::Client => scope.and_then(|scope| scope.link(full)).and_then(|target| zone.target(target)),
                Section::Default => zone.node(full),
            };
            let hidden =
                section == Section::Default && suffix.is_some() && node.is_some_and(|node| !node.is_searched_by(scope));
            let is_it = node.is_some_and(|node| found.is_some_and(|found| Arc::ptr_eq(node, found)));
            let what = match node {
                None => What::Nothing,
                Some(_) if hidden => What::FullNameOnly,
                Some(node) if is_it => match node.alias().filter(|_| kind != RecordType::CNAME) {
                    Some((target, _)) => What::Alias(target.to_string()),
                    None if node.set(kind).is_some() => What::Records,
                    None => What::OtherTypes,
                },
                Some(_) => What::OtherTypes,
            };
            let search = suffix.map(ToString::to_string);
            steps.push(Step { name: Folded::from_wire(full).to_string(), section, search, found: what });
            if is_it && !hidden {
                return found;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;
