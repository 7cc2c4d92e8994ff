//! Bodies: a place in a tree as a listing, as JSON, as YAML, and as the text that waiting clients compare.

mod json;
mod listing;
mod plain;
mod yaml;

pub(crate) use json::{json, push_text as json_text};
pub(crate) use listing::listing;
pub(crate) use plain::plain;
pub(crate) use yaml::yaml;

use crate::negotiate::Format;
use crate::tree::node::Node;

/// The body that shows a place in this format.
pub(crate) fn body(node: &Node<'_>, format: Format) -> String {
    match format {
        Format::Text => listing(node),
        Format::Json => json(node),
        Format::Yaml => yaml(node),
    }
}
