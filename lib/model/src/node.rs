//! The nodes of a text document before they are interpreted, each with its place in the file.

use std::collections::HashMap;
use std::sync::Arc;

use crate::defect::Position;
use crate::value::{Map, Text, Value};

/// One node; cloning shares everything below it.
#[derive(Clone, Debug)]
pub struct Node {
    /// Where it begins, when the document has lines.
    pub at: Option<Position>,
    /// What it is.
    pub kind: NodeKind,
}

/// The kinds of nodes.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// A scalar as it was written.
    Scalar {
        /// Its text.
        text: Text,
        /// Whether it stood without quotes, so that it may mean a number, a truth value or null.
        plain: bool,
    },
    /// A sequence.
    List(Arc<[Node]>),
    /// A mapping, in the order of the file; keys are scalars, each with its place.
    Map(Arc<[(Text, Node)]>),
}

impl Node {
    /// The node that says the same as this value, without places.
    pub fn from_value(value: &Value) -> Self {
        let scalar = |text: String, plain| NodeKind::Scalar { text: text.into(), plain };
        let kind = match value {
            Value::Null => scalar("null".into(), true),
            Value::Bool(bool) => scalar(bool.to_string(), true),
            Value::Int(int) => scalar(int.to_string(), true),
            Value::Uint(uint) => scalar(uint.to_string(), true),
            // Debug keeps the point of `42.0`, so that it stays a float.
            Value::Float(float) => scalar(format!("{float:?}"), true),
            Value::Text(text) => NodeKind::Scalar { text: text.clone(), plain: false },
            Value::List(items) => NodeKind::List(items.iter().map(Self::from_value).collect()),
            Value::Map(map) => {
                NodeKind::Map(map.iter().map(|(key, value)| (key.clone(), Self::from_value(value))).collect())
            }
        };
        Self { at: None, kind }
    }

    /// The value of the node when plain scalars mean what `scalar` says ([`crate::scalar`]).
    ///
    /// What the document shares by an alias, the value shares.
    pub fn to_value(&self, scalar: fn(&str) -> Value) -> Value {
        let mut shared = HashMap::new();
        self.value(scalar, &mut shared)
    }

    fn value(&self, scalar: fn(&str) -> Value, shared: &mut HashMap<usize, Value>) -> Value {
        let key = match &self.kind {
            NodeKind::Scalar { text, plain: true } => return scalar(text),
            NodeKind::Scalar { text, plain: false } => return Value::Text(text.clone()),
            NodeKind::List(items) if items.is_empty() => return Value::List(Arc::new([])),
            NodeKind::Map(entries) if entries.is_empty() => return Value::Map(Map::default()),
            // The address names the allocation, which lives as long as `self`.
            NodeKind::List(items) => items.as_ptr() as usize,
            NodeKind::Map(entries) => entries.as_ptr() as usize,
        };
        if let Some(value) = shared.get(&key) {
            return value.clone();
        }
        let value = match &self.kind {
            NodeKind::List(items) => Value::list(items.iter().map(|item| item.value(scalar, shared))),
            NodeKind::Map(entries) => {
                let entry = |(key, node): &(Text, Self)| (key.clone(), node.value(scalar, shared));
                Value::Map(entries.iter().map(entry).collect())
            }
            NodeKind::Scalar { .. } => unreachable!("scalars returned above"),
        };
        shared.insert(key, value.clone());
        value
    }

    /// The entries, when this is a map.
    pub fn entries(&self) -> Option<&[(Text, Self)]> {
        match &self.kind {
            NodeKind::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// The elements, when this is a list.
    pub fn items(&self) -> Option<&[Self]> {
        match &self.kind {
            NodeKind::List(items) => Some(items),
            _ => None,
        }
    }

    /// The node of a key, when this is a map that has it; of equal keys the last one.
    pub fn get(&self, key: &str) -> Option<&Self> {
        Some(&self.entries()?.iter().rev().find(|(own, _)| &**own == key)?.1)
    }

    /// The text of the scalar; `None` for null, lists and maps.
    pub fn scalar(&self) -> Option<&Text> {
        match &self.kind {
            NodeKind::Scalar { text, plain } if !(*plain && crate::scalar::core(text).is_null()) => Some(text),
            _ => None,
        }
    }

    /// Whether this is a plain null.
    pub fn is_null(&self) -> bool {
        matches!(&self.kind, NodeKind::Scalar { text, plain: true } if crate::scalar::core(text).is_null())
    }

    /// What a person would call this kind of node, for messages.
    pub(crate) fn kind_name(&self) -> &'static str {
        match &self.kind {
            NodeKind::Scalar { text, plain: true } => crate::scalar::core(text).kind(),
            NodeKind::Scalar { plain: false, .. } => "text",
            NodeKind::List(_) => "a list",
            NodeKind::Map(_) => "a map",
        }
    }
}
