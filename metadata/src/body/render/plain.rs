//! The text that a waiting client compares with what it knows: the predecessor's way to print any value.

use std::fmt::Write as _;

use model::Value;

use crate::body::number;
use crate::tree::node::Node;

/// A place as the text that stands for its value.
pub(crate) fn plain(node: &Node<'_>) -> String {
    let mut out = String::new();
    push(&mut out, node);
    out
}

fn push(out: &mut String, node: &Node<'_>) {
    if let Some(value) = node.scalar() {
        // Writing to a string cannot fail.
        let _ = match value {
            Value::Null | Value::List(_) | Value::Map(_) => out.write_str("<nil>"),
            Value::Bool(bool) => write!(out, "{bool}"),
            Value::Int(int) => write!(out, "{int}"),
            Value::Uint(uint) => write!(out, "{uint}"),
            Value::Float(float) => out.write_str(&number::plain(*float)),
            Value::Text(text) => out.write_str(text),
        };
    } else if let Some(entries) = node.entries() {
        out.push_str("map[");
        for (index, (key, value)) in entries.iter().enumerate() {
            if index > 0 {
                out.push(' ');
            }
            out.push_str(key);
            out.push(':');
            push(out, value);
        }
        out.push(']');
    } else if matches!(node, Node::NoMap) {
        out.push_str("map[]");
    } else {
        out.push('[');
        for (index, element) in node.elements().into_iter().flatten().enumerate() {
            if index > 0 {
                out.push(' ');
            }
            push(out, &element);
        }
        out.push(']');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_compared_as_recorded() {
        for (json, expected) in [
            ("null", "<nil>"),
            ("\"\"", ""),
            ("\"a b\"", "a b"),
            ("true", "true"),
            ("42.0", "42"),
            ("1000000.5", "1.0000005e+06"),
            ("9007199254740993", "9007199254740993"),
            (r#"["a","b",null,[]]"#, "[a b <nil> []]"),
            (r#"{"b":{"k":"v w"},"a":1}"#, "map[a:1 b:map[k:v w]]"),
            ("{}", "map[]"),
        ] {
            let value: Value = serde_json::from_str(json).unwrap();
            assert_eq!(plain(&Node::of(&value)), expected, "{json}");
        }
        assert_eq!((plain(&Node::NoList), plain(&Node::NoMap)), ("[]".to_owned(), "map[]".to_owned()));
    }
}
