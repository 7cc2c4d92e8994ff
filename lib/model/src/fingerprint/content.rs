//! Fingerprints of values and of long contents: what goes through here are millions of bytes for each file.
//!
//! Sixteen bytes are taken in by two multiplications. Each text begins with its kind and length and each list and map
//! with its own, so that different values never feed the same words.

use super::{Fingerprint, LANE_KEYS, folded};
use crate::value::{Map, Value};

use foldhash::HashMap;

/// Bytes of long contents that are taken together; a caller that reads them piece by piece reads this many at a time.
pub const PIECE: usize = 256 << 10;

/// Kinds of values, as they are fed.
mod kind {
    pub(super) const NULL: u64 = 1;
    pub(super) const BOOL: u64 = 2;
    pub(super) const INT: u64 = 3;
    pub(super) const UINT: u64 = 4;
    pub(super) const FLOAT: u64 = 5;
    pub(super) const TEXT: u64 = 6;
    pub(super) const LIST: u64 = 7;
    pub(super) const MAP: u64 = 8;
    pub(super) const BYTES: u64 = 9;
}

/// Fingerprints of maps that were met, by where they lie: what is shared is looked at once.
///
/// Keeps the maps, so that no other one comes to lie there.
#[derive(Debug, Default)]
pub(crate) struct Met(HashMap<usize, (Map, Fingerprint)>);

/// Fewest entries of a map that is worth remembering.
const MET_MIN: usize = 16;

/// The fingerprint of a map and all that it holds.
pub(crate) fn of_map(map: &Map) -> Fingerprint {
    words(map, None).fingerprint()
}

/// [`of_map`] where many maps are shared.
pub(crate) fn of_shared_map(map: &Map, met: &mut Met) -> Fingerprint {
    if map.len() < MET_MIN {
        return words(map, Some(met)).fingerprint();
    }
    let place = map.place();
    if let Some((_, known)) = met.0.get(&place) {
        return *known;
    }
    let fingerprint = words(map, Some(met)).fingerprint();
    met.0.insert(place, (map.clone(), fingerprint));
    fingerprint
}

/// The fingerprint of bytes that come in pieces of [`PIECE`] bytes each, but for the last one.
#[derive(Debug, Default)]
pub struct Pieces(Words);

impl Pieces {
    /// Takes the next piece in.
    pub fn add(&mut self, piece: &[u8]) {
        self.0.bytes(kind::BYTES, piece);
    }

    /// The fingerprint of all pieces together.
    pub fn finish(self) -> Fingerprint {
        self.0.fingerprint()
    }
}

fn words(map: &Map, mut met: Option<&mut Met>) -> Words {
    let mut words = Words::default();
    words.step(kind::MAP, map.len() as u64);
    for (key, value) in map {
        words.bytes(kind::TEXT, key.as_bytes());
        words.value(value, met.as_deref_mut());
    }
    words
}

/// Two halves of a fingerprint in the making.
#[derive(Debug)]
struct Words([u64; 2]);

impl Default for Words {
    fn default() -> Self {
        Self(LANE_KEYS)
    }
}

impl Words {
    #[inline]
    fn step(&mut self, first: u64, second: u64) {
        let [high, low] = self.0;
        self.0 = [folded(first ^ LANE_KEYS[0], second ^ high), folded(first ^ low, second ^ LANE_KEYS[1])];
    }

    /// Once more, so that the last word takes part in all bits.
    fn fingerprint(&self) -> Fingerprint {
        let [high, low] = self.0;
        Fingerprint(u128::from(folded(high, LANE_KEYS[1])) << 64 | u128::from(folded(low, LANE_KEYS[0])))
    }

    fn value(&mut self, value: &Value, mut met: Option<&mut Met>) {
        match value {
            Value::Null => self.step(kind::NULL, 0),
            Value::Bool(bool) => self.step(kind::BOOL, u64::from(*bool)),
            Value::Int(int) => self.step(kind::INT, int.cast_unsigned()),
            Value::Uint(uint) => self.step(kind::UINT, *uint),
            Value::Float(float) => self.step(kind::FLOAT, float.to_bits()),
            Value::Text(text) => self.bytes(kind::TEXT, text.as_bytes()),
            Value::List(items) => {
                self.step(kind::LIST, items.len() as u64);
                for item in items.iter() {
                    self.value(item, met.as_deref_mut());
                }
            }
            Value::Map(map) => {
                let Fingerprint(bits) = match met {
                    Some(met) => of_shared_map(map, met),
                    None => of_map(map),
                };
                let [high, low] = halves(bits);
                self.step(kind::MAP ^ high, low);
            }
        }
    }

    /// Takes bytes in, their kind and number first.
    #[inline]
    fn bytes(&mut self, kind: u64, bytes: &[u8]) {
        let head = kind | (bytes.len() as u64) << 8;
        let Some((first, rest)) = bytes.split_first_chunk() else { return self.step(head, few(bytes)) };
        self.step(head, u64::from_le_bytes(*first));
        let (pairs, last) = rest.as_chunks::<16>();
        for pair in pairs {
            self.pair(pair);
        }
        // The last bytes once more, as many as fill the words: the total length says how to read them.
        if !last.is_empty() {
            match bytes.last_chunk() {
                Some(pair) => self.pair(pair),
                None => self.step(bytes.last_chunk().map_or(0, |word| u64::from_le_bytes(*word)), 0),
            }
        }
    }

    #[inline]
    fn pair(&mut self, pair: &[u8; 16]) {
        let [first, second] = halves(u128::from_le_bytes(*pair));
        self.step(second, first);
    }
}

/// Fewer than eight bytes as a word; of one number of bytes, others are another word.
#[inline]
fn few(bytes: &[u8]) -> u64 {
    let word = |bytes: Option<&[u8; 4]>| bytes.map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)));
    match bytes {
        [] => 0,
        [first, .., last] if bytes.len() < 4 => {
            u64::from(*first) | u64::from(bytes[bytes.len() / 2]) << 8 | u64::from(*last) << 16
        }
        [only] => u64::from(*only),
        _ => word(bytes.first_chunk()) | word(bytes.last_chunk()) << 32,
    }
}

/// The upper and the lower half.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "both halves count")]
fn halves(bits: u128) -> [u64; 2] {
    [(bits >> 64) as u64, bits as u64]
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn of_bytes(bytes: &[u8]) -> Fingerprint {
        let mut pieces = Pieces::default();
        bytes.chunks(PIECE).for_each(|piece| pieces.add(piece));
        pieces.finish()
    }

    fn of(json: &str) -> Fingerprint {
        let value: Value = serde_json::from_str(json).unwrap();
        let map = Map::new(vec![("".into(), value)]);
        let fingerprint = of_map(&map);
        let mut met = Met::default();
        for _ in 0..2 {
            assert_eq!(of_shared_map(&map, &mut met), fingerprint, "{json}");
        }
        fingerprint
    }

    #[test]
    fn different_values_have_different_halves() {
        let long: Vec<_> = (0..70).map(|length| format!("\"{}\"", "x".repeat(length))).collect();
        let mut values = vec![
            "null",
            "true",
            "false",
            "0",
            "1",
            "1.0",
            "-1",
            "18446744073709551615",
            "[]",
            "[null]",
            "[null,null]",
            "[[null]]",
            "{}",
            r#"{"":null}"#,
            r#"{"a":null}"#,
            r#"{"a":""}"#,
            r#"["a"]"#,
            r#"["a",""]"#,
            r#"["","a"]"#,
            r#"{"a":"b"}"#,
            r#"{"b":"a"}"#,
            r#"{"a":{"b":1}}"#,
            r#"{"a":{},"b":1}"#,
            r#"{"a":1,"b":{}}"#,
            r#"["ab","c"]"#,
            r#"["a","bc"]"#,
            r#"["abcdefgh","i"]"#,
            r#"["abcdefg","hi"]"#,
            "\"\\u0000\"",
            "\"\\u0000\\u0000\"",
            "\"abcdefgh\\u0000\"",
            "\"abcdefgh\"",
        ];
        values.extend(long.iter().map(String::as_str));
        let mut seen = HashMap::new();
        for value in values {
            for half in halves(of(value).0) {
                assert_eq!(seen.insert(half, value), None, "{value}");
            }
        }
    }

    #[test]
    fn every_byte_counts() {
        let text = "0123456789abcdefghijklmnopqrstuvwxyz_ABCDEFG";
        let mut seen = HashMap::new();
        for length in 1..=text.len() {
            for changed in 0..=length {
                let mut bytes = text.as_bytes()[..length].to_vec();
                bytes.get_mut(changed).into_iter().for_each(|byte| *byte ^= 0x80);
                assert_eq!(seen.insert(of_bytes(&bytes), (length, changed)), None, "{length} {changed}");
            }
        }
    }

    #[test]
    fn how_a_map_is_shared_and_what_was_there_in_which_order_does_not_count() {
        let entries = |numbers: [usize; 20]| numbers.map(|number| format!("\"k{number:02}\":{number}")).join(",");
        let mut numbers = std::array::from_fn(|number| number);
        let text = entries(numbers);
        numbers.reverse();
        let turned = entries(numbers);
        assert_eq!(of(&format!("[{{{text}}},{{{turned}}}]")), of(&format!("[{{{text}}},{{{text}}}]")));
        let shared = Value::Map(Map::new((0..20).map(|key| (format!("{key}").into(), Value::Int(key))).collect()));
        let twice = Map::new(vec![("a".into(), Value::list([shared.clone(), shared]))]);
        assert_eq!(of_shared_map(&twice, &mut Met::default()), of_map(&twice));
    }

    #[test]
    fn pieces_make_a_whole() {
        let bytes: Vec<u8> = (0..=250).cycle().take(2 * PIECE + 5).collect();
        for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, bytes.len()] {
            let mut pieces = Pieces::default();
            bytes[..length].chunks(PIECE).for_each(|piece| pieces.add(piece));
            assert_eq!(pieces.finish(), of_bytes(&bytes[..length]), "{length}");
        }
        assert_ne!(of_bytes(&bytes), of_bytes(&bytes[1..]));
    }

    #[test]
    fn every_bit_turns_half_of_the_bits() {
        for bit in 0..128 {
            let turned: u32 = (0..100u128)
                .map(|number| {
                    let [a, b] = [number, number ^ 1 << bit].map(|number| of_bytes(&number.to_le_bytes()).0);
                    (a ^ b).count_ones()
                })
                .sum();
            assert!((60..68).contains(&(turned / 100)), "bit {bit}: {turned}");
        }
    }
}
