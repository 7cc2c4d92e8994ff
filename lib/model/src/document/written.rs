//! What a document is written in: nodes with their places in a file, or plain values.

use crate::defect::Position;
use crate::node::Node;
use crate::scalar;
use crate::value::{Text, Value};

/// A part of a document; cloning shares everything below it.
///
/// A value says the same as the node that [`Node::from_value`] makes of it, which takes longer.
pub(super) trait Written: Clone {
    /// Where it begins, when the document has lines.
    fn at(&self) -> Option<Position>;

    /// The entries, when this is a map.
    fn entries(&self) -> Option<&[(Text, Self)]>;

    /// The elements, when this is a list.
    fn items(&self) -> Option<&[Self]>;

    /// The value of a key, if this is a map that has it.
    fn get(&self, key: &str) -> Option<&Self>;

    /// The text of a scalar, numbers as they are written; `None` for null, lists and maps.
    fn scalar(&self) -> Option<Text>;

    /// Whether this is null.
    fn is_null(&self) -> bool;

    /// What a person would call this, for messages.
    fn kind_name(&self) -> &'static str;

    /// The value.
    fn value(&self) -> Value;
}

impl Written for Node {
    fn at(&self) -> Option<Position> {
        self.at
    }

    fn entries(&self) -> Option<&[(Text, Self)]> {
        self.entries()
    }

    fn items(&self) -> Option<&[Self]> {
        self.items()
    }

    fn get(&self, key: &str) -> Option<&Self> {
        self.get(key)
    }

    fn scalar(&self) -> Option<Text> {
        self.scalar().cloned()
    }

    fn is_null(&self) -> bool {
        self.is_null()
    }

    fn kind_name(&self) -> &'static str {
        self.kind_name()
    }

    fn value(&self) -> Value {
        self.to_value(scalar::core)
    }
}

impl Written for Value {
    fn at(&self) -> Option<Position> {
        None
    }

    fn entries(&self) -> Option<&[(Text, Self)]> {
        self.as_map().map(|map| map.iter().as_slice())
    }

    fn items(&self) -> Option<&[Self]> {
        self.as_list()
    }

    fn get(&self, key: &str) -> Option<&Self> {
        self.as_map()?.get(key)
    }

    fn scalar(&self) -> Option<Text> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Bool(bool) => Some(bool.to_string().into()),
            Self::Int(int) => Some(int.to_string().into()),
            Self::Uint(uint) => Some(uint.to_string().into()),
            // Debug keeps the point of `42.0`, so that it stays a float.
            Self::Float(float) => Some(format!("{float:?}").into()),
            Self::Null | Self::List(_) | Self::Map(_) => None,
        }
    }

    fn is_null(&self) -> bool {
        self.is_null()
    }

    fn kind_name(&self) -> &'static str {
        self.kind()
    }

    fn value(&self) -> Value {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that is said of a part.
    fn said(written: &impl Written) -> String {
        let keys: Option<Vec<_>> =
            written.entries().map(|entries| entries.iter().map(|(key, _)| key.clone()).collect());
        let items: Option<Vec<_>> = written.items().map(|items| items.iter().map(Written::value).collect());
        let (scalar, is_null, kind) = (written.scalar(), written.is_null(), written.kind_name());
        let below = written.get("a").map(Written::value);
        format!("{keys:?} {items:?} {scalar:?} {is_null} {kind} {below:?} {:?}", written.value())
    }

    #[test]
    fn a_value_says_what_its_node_says() {
        for json in [
            "null",
            "true",
            "false",
            "0",
            "-7",
            "18446744073709551615",
            "42.0",
            "1e300",
            "-1.5e-7",
            "1e16",
            "\"\"",
            "\"null\"",
            "\"5\"",
            "\"text\"",
            "[]",
            "[1,\"a\"]",
            "{}",
            r#"{"a":1,"b":{"c":null}}"#,
        ] {
            let value: Value = serde_json::from_str(json).unwrap();
            let node = Node::from_value(&value);
            assert_eq!(said(&value), said(&node), "{json}");
        }
    }
}
