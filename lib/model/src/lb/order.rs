//! Which rule comes before which.
//!
//! The predecessor's classes: exact host and path, exact host, wildcard and path, wildcard, path, neither. Before them all those
//! with a priority. Within a class the longer path first, then the document's order.

use std::cmp::Reverse;

use super::rule::{HostPattern, PortRule};

/// Whose word a rule is; the first wins. What labels say never wins what an operator's rule or an earlier stack's matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tier {
    /// What documents say.
    Document,
    /// What labels of containers say, of the stack of this rank.
    Labels(usize),
    /// The document's rule for all that nobody else has: neither host nor path nor priority.
    Rest,
}

/// What a rule is ordered by; the least is tried first.
pub(super) type Key = (Tier, u32, u8, Reverse<usize>, u32, usize);

/// The key of a rule that is `position`th in its document.
///
/// `foreign` says that the rule is of another stack than the balancer, so that its priority counts only among equals. `original`
/// asks for the predecessor's order of nested paths.
pub(super) fn key(rule: &PortRule, tier: Tier, foreign: bool, original: bool, position: usize) -> Key {
    let priority = rule.priority.unwrap_or(u32::MAX);
    let (first, among_equals) = if foreign { (u32::MAX, priority) } else { (priority, u32::MAX) };
    let class = class(rule);
    let is_rest = rule.protocol.has_hosts() && class == NEITHER && first == u32::MAX;
    let tier = if tier == Tier::Document && is_rest { Tier::Rest } else { tier };
    if first < u32::MAX {
        // Equal priorities: as in the document.
        return (tier, first, 0, Reverse(0), among_equals, position);
    }
    let is_reversed = original && matches!(class, 0 | 4);
    let (longer, position) =
        if is_reversed { (Reverse(0), usize::MAX - position) } else { (Reverse(rule.path.len()), position) };
    (tier, first, class, longer, among_equals, position)
}

/// The class of a rule for any host and path.
const NEITHER: u8 = 5;

fn class(rule: &PortRule) -> u8 {
    match (&rule.host, rule.path.is_empty()) {
        (HostPattern::Exact(_), false) => 0,
        (HostPattern::Exact(_), true) => 1,
        (HostPattern::Suffix(_) | HostPattern::Prefix(_), false) => 2,
        (HostPattern::Suffix(_) | HostPattern::Prefix(_), true) => 3,
        (HostPattern::Any, false) => 4,
        (HostPattern::Any, true) => NEITHER,
    }
}
