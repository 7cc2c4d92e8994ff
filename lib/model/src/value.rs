//! Values as they stand on the wire: JSON's six kinds, shared instead of copied.
//!
//! Integers stay exact up to `u64`, as the predecessor's JSON did. Maps are sorted by the
//! bytes of their keys, so that equal values are equal bytes wherever they are rendered.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, Error as _};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use crate::pool::{Pool, ValueSeed};

/// Text shared between snapshots and views.
pub type Text = Arc<str>;

/// One value of a tree.
///
/// Cloning is cheap: text, lists and maps are shared.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// JSON `null`.
    #[default]
    Null,
    /// A truth value.
    Bool(bool),
    /// An integer that fits `i64`.
    Int(i64),
    /// An integer above `i64::MAX`; smaller ones are always [`Value::Int`].
    Uint(u64),
    /// Any other number, always finite.
    Float(f64),
    /// Text.
    Text(Text),
    /// A list.
    List(Arc<[Self]>),
    /// A map with text keys.
    Map(Map),
}

impl Value {
    /// A text value.
    pub fn text(text: impl Into<Text>) -> Self {
        Self::Text(text.into())
    }

    /// A list value.
    pub fn list(items: impl IntoIterator<Item = Self>) -> Self {
        Self::List(items.into_iter().collect())
    }

    /// A scalar as text, such as a label; `None` for null, lists and maps. A float is as short as it can be: 42, not 42.0.
    pub fn scalar_text(&self) -> Option<Text> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Bool(bool) => Some(bool.to_string().into()),
            Self::Int(int) => Some(int.to_string().into()),
            Self::Uint(uint) => Some(uint.to_string().into()),
            Self::Float(float) => Some(float.to_string().into()),
            Self::Null | Self::List(_) | Self::Map(_) => None,
        }
    }

    /// The text, when this is text.
    pub fn as_text(&self) -> Option<&Text> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The text as a plain `str`, when this is text.
    pub fn as_str(&self) -> Option<&str> {
        self.as_text().map(|text| &**text)
    }

    /// The integer, when this is an integer within `i64`, or a float without a fraction.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(int) => Some(*int),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the guard keeps the float inside the integers that f64 distinguishes"
            )]
            Self::Float(float) if float.fract() == 0.0 && float.abs() < 9e15 => Some(*float as i64),
            _ => None,
        }
    }

    /// The truth value, when this is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(bool) => Some(*bool),
            _ => None,
        }
    }

    /// The elements, when this is a list.
    pub fn as_list(&self) -> Option<&[Self]> {
        match self {
            Self::List(items) => Some(items),
            _ => None,
        }
    }

    /// The map, when this is a map.
    pub fn as_map(&self) -> Option<&Map> {
        match self {
            Self::Map(map) => Some(map),
            _ => None,
        }
    }

    /// Whether this is `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// What a person would call this kind of value, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a truth value",
            Self::Int(_) | Self::Uint(_) | Self::Float(_) => "a number",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        match self {
            Self::Null => {}
            Self::Bool(bool) => bool.hash(state),
            Self::Int(int) => int.hash(state),
            Self::Uint(uint) => uint.hash(state),
            Self::Float(float) => float.to_bits().hash(state),
            Self::Text(text) => text.hash(state),
            Self::List(items) => items.hash(state),
            Self::Map(map) => map.hash(state),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<Text> for Value {
    fn from(text: Text) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for Value {
    fn from(bool: bool) -> Self {
        Self::Bool(bool)
    }
}

impl From<i64> for Value {
    fn from(int: i64) -> Self {
        Self::Int(int)
    }
}

impl From<u64> for Value {
    fn from(uint: u64) -> Self {
        i64::try_from(uint).map_or(Self::Uint(uint), Self::Int)
    }
}

impl From<Map> for Value {
    fn from(map: Map) -> Self {
        Self::Map(map)
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// The first bytes of a text as a number that is ordered as texts are, but for those that begin alike.
///
/// For sorting: texts lie all over the memory, and most differ in their beginning.
pub fn beginning(text: &str) -> u128 {
    let bytes = text.as_bytes();
    let mut first = [0; 16];
    let length = bytes.len().min(first.len());
    first[..length].copy_from_slice(&bytes[..length]);
    u128::from_be_bytes(first)
}

/// A map from text to values, sorted by the bytes of its keys.
#[derive(Clone, Default, PartialEq, Hash)]
pub struct Map(Arc<[(Text, Value)]>);

impl Map {
    /// A map of these entries; of entries with equal keys the last one stays.
    pub fn new(mut entries: Vec<(Text, Value)>) -> Self {
        Self::of_last(&mut entries, 0)
    }

    /// A map of the entries from `start` on, which are taken off; of entries with equal keys the last one stays.
    pub(crate) fn of_last(entries: &mut Vec<(Text, Value)>, start: usize) -> Self {
        if entries.len() == start {
            return Self::default();
        }
        if !entries[start..].is_sorted_by(|a, b| a.0 < b.0) {
            // Of equal keys the last one has to come first, because it is the first one that stays.
            entries[start..].reverse();
            entries[start..].sort_by(|a, b| a.0.cmp(&b.0));
            let mut kept = start;
            for at in start + 1..entries.len() {
                if entries[at].0 != entries[kept].0 {
                    kept += 1;
                    entries.swap(kept, at);
                }
            }
            entries.truncate(kept + 1);
        }
        Self::of_sorted(entries, start)
    }

    /// A map of the entries from `start` on, which are taken off, and are in the order of their keys.
    pub(crate) fn of_sorted(entries: &mut Vec<(Text, Value)>, start: usize) -> Self {
        debug_assert!(entries[start..].is_sorted_by(|a, b| a.0 < b.0), "{:?}", &entries[start..]);
        Self(entries.drain(start..).collect())
    }

    /// A map of these keys, which are in order, and their values.
    pub(crate) fn of_ordered(keys: &[Text], values: Vec<Value>) -> Self {
        debug_assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
        Self(keys.iter().cloned().zip(values).collect())
    }

    /// The value of a key; `None` when the key is absent, `Some(Null)` when it is there and null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let at = self.0.binary_search_by(|entry| (*entry.0).cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    /// The values of several keys, which have to be in order: faster than asking for one after the other.
    pub fn pick<const N: usize>(&self, keys: [&str; N]) -> [Option<&Value>; N] {
        let mut rest = self.0.iter().peekable();
        keys.map(|key| {
            while let Some((own, value)) = rest.peek() {
                match (**own).cmp(key) {
                    Ordering::Less => drop(rest.next()),
                    Ordering::Equal => return Some(value),
                    Ordering::Greater => break,
                }
            }
            None
        })
    }

    /// The text of a key, when it is there and text.
    pub fn text(&self, key: &str) -> Option<&Text> {
        self.get(key)?.as_text()
    }

    /// The integer of a key, when it is there and an integer.
    pub fn int(&self, key: &str) -> Option<i64> {
        self.get(key)?.as_int()
    }

    /// The elements of a key's list; empty when it is absent or no list.
    pub fn list(&self, key: &str) -> &[Value] {
        self.get(key).and_then(Value::as_list).unwrap_or_default()
    }

    /// The map of a key, when it is there and a map.
    pub fn map(&self, key: &str) -> Option<&Self> {
        self.get(key)?.as_map()
    }

    /// The entries in key order.
    pub fn iter(&self) -> std::slice::Iter<'_, (Text, Value)> {
        self.0.iter()
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether both are the same allocation, hence equal without looking.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Where it lies, which is the same for all that share it.
    pub(crate) fn place(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// A copy in which these keys have these values.
    #[must_use]
    pub fn with(&self, changes: impl IntoIterator<Item = (Text, Value)>) -> Self {
        let changes = changes.into_iter();
        let mut entries = Vec::with_capacity(self.len() + changes.size_hint().1.unwrap_or_default());
        entries.extend_from_slice(&self.0);
        for (key, value) in changes {
            match entries.binary_search_by(|entry| (*entry.0).cmp(&*key)) {
                Ok(at) => entries[at].1 = value,
                Err(at) => entries.insert(at, (key, value)),
            }
        }
        Self(entries.into())
    }

    /// A copy without this key.
    #[must_use]
    pub fn without(&self, key: &str) -> Self {
        if self.get(key).is_none() {
            return self.clone();
        }
        Self(self.0.iter().filter(|entry| &*entry.0 != key).cloned().collect())
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(key, value)| (key, value))).finish()
    }
}

impl<'a> IntoIterator for &'a Map {
    type Item = &'a (Text, Value);
    type IntoIter = std::slice::Iter<'a, (Text, Value)>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<(Text, Value)> for Map {
    fn from_iter<I: IntoIterator<Item = (Text, Value)>>(entries: I) -> Self {
        Self::new(entries.into_iter().collect())
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(bool) => serializer.serialize_bool(*bool),
            Self::Int(int) => serializer.serialize_i64(*int),
            Self::Uint(uint) => serializer.serialize_u64(*uint),
            Self::Float(float) => serializer.serialize_f64(*float),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => {
                let mut seq = serializer.serialize_seq(Some(items.len()))?;
                for item in items.iter() {
                    seq.serialize_element(item)?;
                }
                seq.end()
            }
            Self::Map(map) => map.serialize(serializer),
        }
    }
}

impl Serialize for Map {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.len()))?;
        for (key, value) in self {
            map.serialize_entry(&**key, value)?;
        }
        map.end()
    }
}

impl<'de> serde::Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ValueSeed(&mut Pool::default()).deserialize(deserializer)
    }
}

impl<'de> serde::Deserialize<'de> for Map {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Map(map) => Ok(map),
            other => Err(D::Error::custom(format_args!("expected a map, found {}", other.kind()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(json: &str) -> Value {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn keys_are_sorted_and_the_last_of_equals_stays() {
        assert_eq!(serde_json::to_string(&parse(r#"{"b":1,"a":2,"b":3}"#)).unwrap(), r#"{"a":2,"b":3}"#);
    }

    #[test]
    fn integers_stay_exact_up_to_u64() {
        assert_eq!(parse("18446744073709551615"), Value::Uint(u64::MAX));
        assert_eq!(parse("9007199254740993"), Value::Int(9_007_199_254_740_993));
        assert_eq!(parse("42.0"), Value::Float(42.0));
        assert_eq!(parse("42.0").as_int(), Some(42));
    }

    #[test]
    fn several_keys_are_picked_in_one_go() {
        let value = parse(r#"{"b":1,"d":2,"e":3}"#);
        let map = value.as_map().unwrap();
        let picked = map.pick(["a", "b", "c", "e", "f"]).map(|value| value.and_then(Value::as_int));
        assert_eq!(picked, [None, Some(1), None, Some(3), None]);
        assert_eq!(Map::default().pick(["a"]), [None]);
    }

    #[test]
    fn a_copy_has_other_values() {
        let value = parse(r#"{"b":1,"d":2}"#);
        let entry = |key: &str, value: i64| (Text::from(key), Value::Int(value));
        let with =
            value.as_map().unwrap().with([entry("d", 3), entry("a", 4), entry("e", 5), entry("c", 6), entry("a", 7)]);
        assert_eq!(Value::Map(with), parse(r#"{"a":7,"b":1,"c":6,"d":3,"e":5}"#));
    }

    #[test]
    fn beginnings_are_ordered_as_texts_are() {
        let texts = ["", "a", "a\0", "ab", "abcdefghijklmnop", "abcdefghijklmnopq", "abcdefghijklmnor", "b", "é"];
        for pair in texts.windows(2) {
            assert!(beginning(pair[0]) <= beginning(pair[1]), "{pair:?}");
        }
        assert!(beginning("abcdefghijklmnop") < beginning("abcdefghijklmnor"));
    }

    #[test]
    fn absent_and_null_are_told_apart() {
        let value = parse(r#"{"a":null}"#);
        let map = value.as_map().unwrap();
        assert_eq!((map.get("a"), map.get("b")), (Some(&Value::Null), None));
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::Int),
            any::<u64>().prop_map(Value::from),
            (-1e15..1e15f64).prop_map(Value::Float),
            ".*".prop_map(|text| Value::text(text.as_str())),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::list),
                prop::collection::vec((".{0,4}", inner), 0..4).prop_map(|entries| Value::Map(
                    entries.into_iter().map(|(key, value)| (Text::from(key), value)).collect()
                )),
            ]
        })
    }

    proptest! {
        #[test]
        fn json_gives_back_what_was_written(value in any_value()) {
            let json = serde_json::to_string(&value).unwrap();
            prop_assert_eq!(parse(&json), value);
        }
    }
}
