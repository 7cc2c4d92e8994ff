//! Berth's own document: the cluster as a person or a program writes it (docs/document.md).
//!
//! Entities have the fields of the wire ([`fields`]), without what follows from other fields: references
//! are names, uuids may be left out, what a container inherits from its service is not repeated.
//! One bad entity hides only itself; a document that is no cluster at all is refused as a whole.

pub mod fields;
mod form;
mod reader;
mod resolve;
mod written;

use thiserror::Error;

use crate::defect::{Defect, Position};
use crate::node::Node;
use crate::snapshot::Snapshot;
use crate::value::Value;

/// The version of the format that this code reads; the value of the document's key `berth`.
pub const FORMAT: i64 = 1;

/// Keys at the top of a document besides the lists of entities.
pub(crate) const HEAD: [&str; 5] = ["berth", "environment", "host", "version", "empty"];

/// Why a document is refused as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}{problem}", .at.map(|at| format!("{at}: ")).unwrap_or_default())]
pub struct Refusal {
    /// What is wrong, and what was expected.
    pub problem: String,
    /// Where in the file, when it has lines.
    pub at: Option<Position>,
}

impl Refusal {
    fn new(problem: impl Into<String>, at: Option<Position>) -> Self {
        Self { problem: problem.into(), at }
    }
}

/// Lists of which one makes a map a document.
const TELLING: [&str; 4] = ["hosts", "services", "containers", "stacks"];

/// Whether a node looks like a document of this format: a map with `berth`, or with a list of entities.
pub fn is_document(node: &Node) -> bool {
    node.get("berth").is_some() || TELLING.iter().any(|list| node.get(list).is_some_and(|node| node.items().is_some()))
}

/// [`is_document`] for a value, of which a large one is not turned into nodes for nothing.
pub fn is_document_value(value: &Value) -> bool {
    let is_list = |value: &Value| value.as_list().is_some();
    let Some(map) = value.as_map() else { return false };
    map.get("berth").is_some() || TELLING.iter().any(|list| map.get(list).is_some_and(is_list))
}

/// The snapshot that a document describes, and what was wrong in it.
///
/// # Errors
///
/// Fails if the document is no cluster: of another format, without a single good entity (unless it says
/// `empty: true`), or with something else where a list of entities belongs.
pub fn resolve(document: &Node) -> Result<(Snapshot, Vec<Defect>), Refusal> {
    resolve::resolve(document)
}

/// [`resolve`] for a value, which needs not be turned into nodes for that.
///
/// # Errors
///
/// As there.
pub fn resolve_value(document: &Value) -> Result<(Snapshot, Vec<Defect>), Refusal> {
    resolve::resolve(document)
}

#[cfg(test)]
mod tests;
