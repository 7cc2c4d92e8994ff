//! Reading values so that what occurs often in a document is there once in memory.
//!
//! Of a cluster's bytes most are keys, and values that other entities have too: states, hosts, search lists.
//! Sharing them takes less time than allocating them, and much less memory.

use std::collections::HashSet;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::value::{Map, Text, Value};

/// Most distinct keys that one reading shares: the wire's own are about 150, labels add some thousands.
const SHARED_KEYS_MAX: usize = 65_536;

/// Longest text that is looked for among those before: longer ones are hardly ever there twice.
const SHARED_TEXT_MAX: usize = 64;

/// Texts that are remembered, a power of two. Those that occur often are some hundreds: two for each service, one for
/// each host. More would not stay in the processor's cache, and then allocating would be faster.
const SHARED_TEXTS: usize = 4096;

/// Texts that are remembered at first.
const SHARED_TEXTS_FIRST: usize = 16;

/// How often other texts may want the place of one that was seen again and again before they get it.
const PATIENCE_MAX: u8 = 4;

/// What the values of one reading share.
#[derive(Debug, Default)]
pub struct Pool {
    keys: HashSet<Text, RandomState>,
    texts: Texts,
    /// The entries of maps, and the elements of lists, that are still being read; the innermost stand last.
    entries: Vec<(Text, Value)>,
    items: Vec<Value>,
}

impl Pool {
    /// The shared form of a key.
    pub fn key(&mut self, key: &str) -> Text {
        if let Some(known) = self.keys.get(key) {
            return known.clone();
        }
        let text = Text::from(key);
        // Past the bound keys are merely no longer shared, so a document of nothing but keys costs no more than its size.
        if self.keys.len() < SHARED_KEYS_MAX {
            self.keys.insert(text.clone());
        }
        text
    }

    /// The text; shared with an equal one when that occurred lately or often.
    pub fn text(&mut self, text: &str) -> Text {
        if text.len() > SHARED_TEXT_MAX { text.into() } else { self.texts.shared(text) }
    }
}

/// Texts that occurred lately or often, each in the one place that its hash gives it.
#[derive(Debug, Default)]
struct Texts {
    places: Vec<(Text, u8)>,
    hasher: RandomState,
    /// How many texts were none of those that were remembered.
    others: usize,
}

impl Texts {
    fn shared(&mut self, text: &str) -> Text {
        if self.others >= self.places.len() {
            self.grow();
        }
        let place = self.place(text);
        let (known, patience) = &mut self.places[place];
        if **known == *text {
            *patience = PATIENCE_MAX.min(*patience + 1);
            return known.clone();
        }
        self.others += 1;
        let text = Text::from(text);
        match patience.checked_sub(1) {
            Some(less) => *patience = less,
            None => *known = text.clone(),
        }
        text
    }

    /// Makes room for more texts, up to the bound: a single value needs little.
    fn grow(&mut self) {
        let places = (4 * self.places.len()).clamp(SHARED_TEXTS_FIRST, SHARED_TEXTS);
        if places > self.places.len() {
            let known = std::mem::replace(&mut self.places, vec![(Text::default(), 0); places]);
            for (text, patience) in known {
                let place = self.place(&text);
                self.places[place] = (text, patience);
            }
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "only some of the bits count")]
    fn place(&self, text: &str) -> usize {
        self.hasher.hash_one(text) as usize & (self.places.len() - 1)
    }
}

/// Reads a [`Value`] from any self-describing format.
#[derive(Debug)]
pub struct ValueSeed<'p>(pub &'p mut Pool);

impl ValueSeed<'_> {
    /// Reads a map that a visitor met.
    ///
    /// # Errors
    ///
    /// Those of the format.
    pub fn map<'de, A: MapAccess<'de>>(self, mut access: A) -> Result<Map, A::Error> {
        let start = self.0.entries.len();
        while let Some(key) = access.next_key_seed(KeySeed(self.0))? {
            let value = access.next_value_seed(ValueSeed(self.0))?;
            self.0.entries.push((key, value));
        }
        Ok(Map::of_last(&mut self.0.entries, start))
    }
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, bool: bool) -> Result<Value, E> {
        Ok(Value::Bool(bool))
    }

    fn visit_i64<E>(self, int: i64) -> Result<Value, E> {
        Ok(Value::Int(int))
    }

    fn visit_u64<E>(self, uint: u64) -> Result<Value, E> {
        Ok(Value::from(uint))
    }

    fn visit_f64<E: serde::de::Error>(self, float: f64) -> Result<Value, E> {
        if float.is_finite() { Ok(Value::Float(float)) } else { Err(E::custom("number out of range")) }
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(self.0.text(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let start = self.0.items.len();
        while let Some(item) = seq.next_element_seed(ValueSeed(self.0))? {
            self.0.items.push(item);
        }
        if self.0.items.len() == start {
            return Ok(Value::List(Arc::default()));
        }
        Ok(Value::List(self.0.items.drain(start..).collect()))
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Value, A::Error> {
        self.map(access).map(Value::Map)
    }
}

struct KeySeed<'p>(&'p mut Pool);

impl<'de> DeserializeSeed<'de> for KeySeed<'_> {
    type Value = Text;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Text, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeySeed<'_> {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Text, E> {
        Ok(self.0.key(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_occurs_again_and_again_is_shared() {
        let mut pool = Pool::default();
        let mut known = pool.text("running");
        let mut shared = 0;
        for number in 0..16 * SHARED_TEXTS {
            assert_eq!(*pool.text(&number.to_string()), *number.to_string());
            if number % 16 == 0 {
                let again = pool.text("running");
                assert_eq!(*again, *"running");
                shared += usize::from(Arc::ptr_eq(&known, &again));
                known = again;
            }
        }
        // Where texts stand is left to chance, so that no input can evict others on purpose.
        assert!(shared > SHARED_TEXTS / 2, "{shared}");
        assert!(pool.texts.places.len() == SHARED_TEXTS);
    }

    #[test]
    fn nothing_and_long_texts_are_texts() {
        let mut pool = Pool::default();
        assert_eq!(*pool.text(""), *"");
        let long = "x".repeat(SHARED_TEXT_MAX + 1);
        assert_eq!(*pool.text(&long), *long);
        assert!(!Arc::ptr_eq(&pool.text(&long), &pool.text(&long)));
    }

    #[test]
    fn a_broken_document_leaves_nothing_behind_in_the_next_one() {
        let mut pool = Pool::default();
        let mut read = |json: &str| ValueSeed(&mut pool).deserialize(&mut serde_json::Deserializer::from_str(json));
        assert!(read(r#"{"a":[1,{"b":"#).is_err());
        assert_eq!(serde_json::to_string(&read(r#"{"c":[2],"a":{}}"#).unwrap()).unwrap(), r#"{"a":{},"c":[2]}"#);
    }
}
