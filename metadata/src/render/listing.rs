//! Listings: what shell scripts read. A value is itself, a map its keys, a list its indexes with names.

use std::fmt::Write as _;

use model::Value;

use crate::escape;
use crate::node::Node;
use crate::number;

/// A place as text, without a line end of its own.
pub(crate) fn listing(node: &Node<'_>) -> String {
    match node.scalar() {
        Some(value) => scalar(value),
        None => keys(node).or_else(|| indexes(node)).unwrap_or_default(),
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::Text(text) => text.to_string(),
        Value::Bool(bool) => bool.to_string(),
        Value::Int(int) => int.to_string(),
        Value::Uint(uint) => uint.to_string(),
        Value::Float(float) => number::fixed(*float),
        Value::Null | Value::List(_) | Value::Map(_) => String::new(),
    }
}

/// One line per key, with `/` behind those that lead further; whole lines are sorted.
fn keys(node: &Node<'_>) -> Option<String> {
    let line = |(key, value): &(std::borrow::Cow<'_, str>, Node<'_>)| {
        let mut line = String::with_capacity(key.len() + 2);
        escape::push_query(&mut line, key);
        line.push_str(if value.is_container() { "/\n" } else { "\n" });
        line
    };
    let mut lines: Vec<_> = node.entries()?.iter().map(line).collect();
    lines.sort_unstable();
    Some(lines.concat())
}

/// One line per element: its index, and its name or uuid when it has one.
fn indexes(node: &Node<'_>) -> Option<String> {
    let mut out = String::new();
    for (index, element) in node.elements()?.enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(out, "{index}");
        // The predecessor gave no answer at all when a name was no text; then the uuid names the element.
        let named = ["name", "uuid"].into_iter().find_map(|key| element.get(key).filter(|name| name.text().is_some()));
        match named.as_ref().and_then(Node::text) {
            Some(name) => {
                out.push('=');
                escape::push_query(&mut out, name);
            }
            None if element.is_container() => out.push('/'),
            None => {}
        }
        out.push('\n');
    }
    Some(out)
}
