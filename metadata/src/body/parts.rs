//! Heavy bodies in parts: what looks the same for all clients is one piece, to be written once and sent to many.
//!
//! A whole tree as JSON differs between clients by its `self` only. The lists beside it are the same pieces as the
//! answers to requests for these lists.

use model::{Entity as _, Text, Value};

use crate::body::render;
use crate::body::weight::is_light;
use crate::negotiate::Format;
use crate::tree::Scope;
use crate::tree::entities;
use crate::tree::node::{Branch, Node, Series, Sight};
use crate::tree::version::Version;

/// A part of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Written already.
    Written(String),
    /// To be written: what is found from the place by these keys.
    Own(Vec<String>),
    /// The same, but the piece is that of all clients.
    Shared(Piece, Vec<String>),
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
    /// A service by its id, as its own containers or as others see it.
    Service(Version, Text, Sight),
    /// The containers of a service by its id.
    Members(Version, Text),
    /// A stack by its uuid.
    Stack(Version, Text),
    /// The services of a stack by its uuid.
    Stacked(Version, Text),
    /// A list of the snapshot, by where it lies in memory: it stays there as long as the view is there.
    Plain(usize),
}

/// The parts of the body that shows a place.
pub(crate) fn parts(node: &Node<'_>, format: Format) -> Vec<Part> {
    let mut body = Body { format, parts: Vec::new(), written: String::new() };
    body.push(node, &mut Vec::new());
    if !body.written.is_empty() {
        body.parts.push(Part::Written(body.written));
    }
    body.parts
}

struct Body {
    format: Format,
    parts: Vec<Part>,
    /// What will be the next part.
    written: String,
}

impl Body {
    /// Appends a place that is found by these keys.
    fn push(&mut self, node: &Node<'_>, keys: &mut Vec<String>) {
        if is_light(node, self.format) {
            return self.written.push_str(&render::body(node, self.format));
        }
        if let Some(piece) = Piece::of(node, self.format) {
            return self.cut(Part::Shared(piece, keys.clone()));
        }
        // What holds things of one client and of all.
        let is_mixed = matches!(node, Node::Map(Branch::Root(_) | Branch::Answers { .. } | Branch::Own(_)));
        match node.entries() {
            Some(entries) if is_mixed && self.format == Format::Json && !entries.is_empty() => {
                for (index, (key, value)) in entries.iter().enumerate() {
                    self.written.push(if index == 0 { '{' } else { ',' });
                    render::json_text(&mut self.written, key);
                    self.written.push(':');
                    keys.push(key.to_string());
                    self.push(value, keys);
                    keys.pop();
                }
                self.written.push('}');
            }
            _ => self.cut(Part::Own(keys.clone())),
        }
    }

    fn cut(&mut self, part: Part) {
        if !self.written.is_empty() {
            self.parts.push(Part::Written(std::mem::take(&mut self.written)));
        }
        self.parts.push(part);
    }
}

impl Piece {
    /// The piece that a heavy place is; `None` when it is not the same for all.
    fn of(node: &Node<'_>, format: Format) -> Option<Self> {
        if let Node::List(Series::Plain(items)) = node {
            return Some(Self { what: What::Plain(address(items)), format, insider: None });
        }
        let (scope, what, has_tokens): (Scope<'_>, fn(Version) -> What, bool) = match *node {
            Node::List(Series::Containers(scope)) => (scope, What::Containers, false),
            Node::List(Series::Services(scope)) => (scope, What::Services, true),
            Node::List(Series::Stacks(scope)) => (scope, What::Stacks, true),
            Node::List(Series::Hosts(scope)) => (scope, What::Hosts, false),
            Node::List(Series::Networks(scope)) => (scope, |_| What::Networks, false),
            Node::List(Series::Environments(scope)) => (scope, |_| What::Environments, false),
            _ => return Self::of_entity(node, format),
        };
        Self::seen(scope, what(scope.version), format, has_tokens)
    }

    /// The piece that a place within a service or a stack is.
    fn of_entity(node: &Node<'_>, format: Format) -> Option<Self> {
        let (scope, what, has_tokens) = match *node {
            Node::Map(Branch::Service(scope, service, sight)) => {
                (scope, What::Service(scope.version, service.id().clone(), sight), true)
            }
            Node::List(Series::Members(scope, service)) => {
                (scope, What::Members(scope.version, service.id().clone()), false)
            }
            Node::Map(Branch::Stack(scope, stack)) => (scope, What::Stack(scope.version, stack.uuid().clone()), true),
            Node::List(Series::Stacked(scope, stack)) => {
                (scope, What::Stacked(scope.version, stack.uuid().clone()), true)
            }
            _ => return None,
        };
        Self::seen(scope, what, format, has_tokens)
    }

    fn seen(scope: Scope<'_>, what: What, format: Format, has_tokens: bool) -> Option<Self> {
        // Other environments may have entities of the same names.
        (!scope.external).then(|| {
            let insider = if has_tokens { entities::insider(scope) } else { None };
            Self { what, format, insider }
        })
    }
}

fn address(items: &[Value]) -> usize {
    items.as_ptr().addr()
}
