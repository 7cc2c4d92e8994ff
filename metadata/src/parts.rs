//! Heavy bodies in parts: what looks the same for all clients is one piece, to be written once and sent to many.
//!
//! A whole tree as JSON differs between clients by its `self` only. The lists beside it are the same pieces as the
//! answers to requests for these lists.

use model::{Text, Value};

use crate::entities;
use crate::negotiate::Format;
use crate::node::{Branch, Node, Series};
use crate::render;
use crate::tree::Scope;
use crate::version::Version;
use crate::weight::is_light;

/// A part of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Written already.
    Written(String),
    /// To be written: what the place holds under this key, or the place itself.
    Own(Option<String>),
    /// The same, but the piece is that of all clients.
    Shared(Piece, Option<String>),
}

/// What stands for a piece that all clients share, as long as the view is the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Piece {
    what: What,
    format: Format,
    /// The service whose containers see more of it than others do.
    insider: Option<Text>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum What {
    Containers(Version),
    Services(Version),
    Stacks(Version),
    Hosts(Version),
    Networks,
    Environments,
    /// A list of the snapshot, by where it lies in memory: it stays there as long as the view is there.
    Plain(usize),
}

/// The parts of the body that shows a place.
pub(crate) fn parts(node: &Node<'_>, format: Format) -> Vec<Part> {
    let is_root = matches!(node, Node::Map(Branch::Root(_) | Branch::Answers { .. }));
    match node.entries() {
        Some(entries) if is_root && format == Format::Json => {
            let mut parts = Vec::new();
            let mut written = String::new();
            for (index, (key, value)) in entries.iter().enumerate() {
                written.push(if index == 0 { '{' } else { ',' });
                render::json_text(&mut written, key);
                written.push(':');
                let part = match Piece::of(value, format) {
                    Some(piece) => Part::Shared(piece, Some(key.to_string())),
                    None if is_light(value, format) => {
                        written.push_str(&render::json(value));
                        continue;
                    }
                    None => Part::Own(Some(key.to_string())),
                };
                parts.push(Part::Written(std::mem::take(&mut written)));
                parts.push(part);
            }
            written.push_str(if entries.is_empty() { "{}" } else { "}" });
            parts.push(Part::Written(written));
            parts
        }
        _ => vec![Piece::of(node, format).map_or(Part::Own(None), |piece| Part::Shared(piece, None))],
    }
}

impl Piece {
    /// The piece that a place is; `None` when it is light, or not the same for all.
    fn of(node: &Node<'_>, format: Format) -> Option<Self> {
        let (what, insider) = match *node {
            _ if is_light(node, format) => return None,
            Node::List(Series::Plain(items)) => (What::Plain(address(items)), None),
            Node::List(ref series) => {
                let (what, scope, has_tokens): (fn(Version) -> What, Scope<'_>, bool) = match *series {
                    Series::Containers(scope) => (What::Containers, scope, false),
                    Series::Services(scope) => (What::Services, scope, true),
                    Series::Stacks(scope) => (What::Stacks, scope, true),
                    Series::Hosts(scope) => (What::Hosts, scope, false),
                    Series::Networks(scope) => (|_| What::Networks, scope, false),
                    Series::Environments(scope) => (|_| What::Environments, scope, false),
                    _ => return None,
                };
                if scope.external {
                    return None;
                }
                let insider = if has_tokens { entities::insider(scope) } else { None };
                (what(scope.version), insider)
            }
            _ => return None,
        };
        Some(Self { what, format, insider })
    }
}

fn address(items: &[Value]) -> usize {
    items.as_ptr().addr()
}
