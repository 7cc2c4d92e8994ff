//! Listings: what shell scripts read. A value is itself, a map its keys, a list its indexes with names.

use std::fmt::Write as _;

use model::Value;

use crate::body::number;
use crate::escape;
use crate::tree::node::Node;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_are_lines_to_split() {
        for (json, expected) in [
            ("null", ""),
            ("[]", ""),
            ("{}", ""),
            ("\"\"", ""),
            ("\"a\\nb\"", "a\nb"),
            ("true", "true"),
            ("-5", "-5"),
            ("18446744073709551615", "18446744073709551615"),
            ("3.14159265", "3.141593"),
            (r#"{"b":1,"a":{},"c":[],"d":null,"":0}"#, "\na/\nb\nc/\nd\n"),
            // Whole lines are sorted, so that what follows a name counts: `-` is before `/`.
            (r#"{"a":{},"a-b":1,"a b":1}"#, "a+b\na-b\na/\n"),
            (r#"[1,"x",null,[],{},{"v":1}]"#, "0\n1\n2\n3/\n4/\n5/\n"),
            (r#"[{"name":"a b","uuid":"u"},{"uuid":"u-2"},{"name":""}]"#, "0=a+b\n1=u-2\n2=\n"),
            (r#"[{"name":null,"uuid":"u"},{"name":5}]"#, "0=u\n1/\n"),
        ] {
            let value: Value = serde_json::from_str(json).unwrap();
            assert_eq!(listing(&Node::of(&value)), expected, "{json}");
        }
        assert_eq!((listing(&Node::NoList), listing(&Node::NoMap)), (String::new(), String::new()));
    }
}
