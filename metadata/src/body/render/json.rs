//! JSON as the predecessor's library wrote it: compact, keys sorted, safe to put into HTML.

use std::fmt::Write as _;

use model::Value;

use crate::body::number;
use crate::tree::node::Node;

/// A place as JSON, without a line end.
pub(crate) fn json(node: &Node<'_>) -> String {
    let mut out = String::new();
    push(&mut out, node);
    out
}

fn push(out: &mut String, node: &Node<'_>) {
    if let Node::Value(value) = node {
        return push_value(out, value);
    }
    if let Some(entries) = node.entries() {
        out.push('{');
        for (index, (key, value)) in entries.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            push_text(out, key);
            out.push(':');
            push(out, value);
        }
        out.push('}');
    } else if let Some(elements) = node.elements() {
        out.push('[');
        for (index, element) in elements.enumerate() {
            if index > 0 {
                out.push(',');
            }
            push(out, &element);
        }
        out.push(']');
    } else if let Node::Derived(value) = node {
        push_value(out, value);
    } else {
        out.push_str("null");
    }
}

fn push_value(out: &mut String, value: &Value) {
    // Writing to a string cannot fail.
    let _ = match value {
        Value::Null | Value::List(_) | Value::Map(_) => out.write_str("null"),
        Value::Bool(bool) => write!(out, "{bool}"),
        Value::Int(int) => write!(out, "{int}"),
        Value::Uint(uint) => write!(out, "{uint}"),
        Value::Float(float) => out.write_str(&number::json(*float)),
        Value::Text(text) => {
            push_text(out, text);
            Ok(())
        }
    };
}

/// Appends a text in quotes.
pub(crate) fn push_text(out: &mut String, text: &str) {
    out.push('"');
    let mut plain = 0;
    for (at, char) in text.char_indices() {
        let escape = match char {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => "",
            _ => continue,
        };
        out.push_str(&text[plain..at]);
        if escape.is_empty() {
            let _ = write!(out, "\\u{:04x}", u32::from(char));
        } else {
            out.push_str(escape);
        }
        plain = at + char.len_utf8();
    }
    out.push_str(&text[plain..]);
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_compact_sorted_and_safe_in_html() {
        for (value, expected) in [
            (r#"{"b":[1,2.5,null,true],"a":{"":""}}"#, r#"{"a":{"":""},"b":[1,2.5,null,true]}"#),
            ("[[],{},42.0,1e30,1e-9]", "[[],{},42,1e+30,1e-9]"),
            ("18446744073709551615", "18446744073709551615"),
            (r#""<a>&\"\\/""#, r#""\u003ca\u003e\u0026\"\\/""#),
            (r#""\u0000\u0001\b\f\n\r\t\u001f""#, r#""\u0000\u0001\u0008\u000c\n\r\t\u001f""#),
            ("\"\u{7f}\\u2028\\u2029🚀ü\"", "\"\u{7f}\\u2028\\u2029🚀ü\""),
        ] {
            let value: Value = serde_json::from_str(value).unwrap();
            assert_eq!(json(&Node::of(&value)), expected);
            assert_eq!(json(&Node::Derived(value)), expected);
        }
        assert_eq!((json(&Node::NoList), json(&Node::NoMap)), ("null".to_owned(), "null".to_owned()));
    }
}
