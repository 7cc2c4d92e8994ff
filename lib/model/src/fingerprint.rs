//! Fingerprints: equal content gives equal fingerprints, in every process and after every restart.
//!
//! They distinguish revisions and name what a document left unnamed; they do not protect against
//! collisions that are built on purpose.

pub mod content;

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::value::Text;

/// 128 bits that stand for some content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(u128);

impl Fingerprint {
    /// The fingerprint of one thing.
    pub fn of(content: &(impl Hash + ?Sized)) -> Self {
        let mut lanes = Lanes::default();
        content.hash(&mut lanes);
        lanes.fingerprint()
    }

    /// It as it is displayed, for the entities of a document that say no uuid of their own.
    pub fn text(self) -> Text {
        std::str::from_utf8(&self.digits()).unwrap_or_default().into()
    }

    /// As a UUID of version 8 (RFC 9562, section 5.8: vendor-specific bits).
    fn digits(self) -> [u8; 36] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        /// Where the groups of 8, 4, 4, 4 and 12 digits begin, two digits at a time.
        const PAIRS: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];
        let bits = self.0 & !(0xf << 76) & !(0x3 << 62) | 0x8 << 76 | 0x2 << 62;
        let mut text = [b'-'; 36];
        for (place, byte) in PAIRS.into_iter().zip(bits.to_be_bytes()) {
            text[place] = DIGITS[usize::from(byte >> 4)];
            text[place + 1] = DIGITS[usize::from(byte & 0xf)];
        }
        text
    }

    /// The fingerprint of a set that had `self` and gains `member`.
    #[must_use]
    pub fn plus(self, member: Self) -> Self {
        Self(self.0.wrapping_add(member.0))
    }

    /// The fingerprint of a set that had `self` and loses `member`.
    #[must_use]
    pub(crate) fn minus(self, member: Self) -> Self {
        Self(self.0.wrapping_sub(member.0))
    }
}

/// Two halves of a fingerprint in the making, independent of each other since they have different keys.
///
/// Each takes in eight bytes by a multiplication of 64 by 64 bits whose halves are folded together (as in wyhash).
/// Unlike the hashers of the standard library and of most crates it gives the same on every machine and in every
/// version.
struct Lanes([u64; 2]);

/// Odd numbers with as many ones as zeros, without a pattern: the binary digits of π and of e.
const LANE_KEYS: [u64; 2] = [0x243f_6a88_85a3_08d3, 0xb7e1_5162_8aed_2a6b];

impl Default for Lanes {
    fn default() -> Self {
        Self(LANE_KEYS)
    }
}

impl Lanes {
    #[inline]
    fn take(&mut self, word: u64) {
        for (lane, key) in self.0.iter_mut().zip(LANE_KEYS) {
            *lane = folded(*lane ^ word, key);
        }
    }

    /// Once more, so that the last word takes part in all bits.
    fn fingerprint(&self) -> Fingerprint {
        let [high, low] = self.0;
        Fingerprint(u128::from(folded(high, LANE_KEYS[1])) << 64 | u128::from(folded(low, LANE_KEYS[0])))
    }
}

/// The product's halves, one upon the other.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "both halves of the product count")]
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl Hasher for Lanes {
    fn finish(&self) -> u64 {
        self.0[0]
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        // The length distinguishes what only the zeros behind the last bytes would make equal.
        let length = bytes.len() as u64;
        self.0 = self.0.map(|lane| lane.wrapping_add(length.wrapping_mul(LANE_KEYS[1])));
        for word in words {
            self.take(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.take(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn write_u8(&mut self, byte: u8) {
        self.take(byte.into());
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.take(word);
    }

    // Lengths and discriminants, which have as many bytes as the machine's addresses.
    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.take(word as u64);
    }

    #[inline]
    fn write_isize(&mut self, word: isize) {
        self.take(word.cast_unsigned() as u64);
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(std::str::from_utf8(&self.digits()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_like_a_uuid_of_version_8() {
        let text = Fingerprint::of("shop").to_string();
        assert_eq!(text.len(), 36);
        assert_eq!(&text[14..15], "8");
        assert!(matches!(&text[19..20], "8" | "9" | "a" | "b"));
        assert_eq!(*Fingerprint::of("shop").text(), *text);
    }

    #[test]
    fn different_content_gives_different_halves() {
        let mut halves = std::collections::HashSet::new();
        let texts = ["", "\0", "\0\0", "a", "b", "a\0", "abcdefg", "abcdefg\x07", "abcdefgh", "abcdefgh\0"];
        let pairs = texts.iter().flat_map(|a| texts.map(|b| (*a, b)));
        let numbers = (0..100_000u64).map(|number| (number, -1i64));
        let of_pairs = pairs.map(|pair| Fingerprint::of(&pair));
        let found: Vec<_> = of_pairs.chain(numbers.map(|pair| Fingerprint::of(&pair))).collect();
        for Fingerprint(bits) in &found {
            assert!(halves.insert(bits >> 64) && halves.insert(bits & u128::from(u64::MAX)), "{bits:x}");
        }
        assert_eq!(halves.len(), 2 * (texts.len() * texts.len() + 100_000));
    }

    #[test]
    fn every_bit_of_a_word_turns_half_of_the_bits() {
        let of = |word: u64| Fingerprint::of(&word).0;
        for bit in 0..64 {
            let turned: u32 = (0..100).map(|word| (of(word) ^ of(word ^ 1 << bit)).count_ones()).sum();
            assert!((60..68).contains(&(turned / 100)), "bit {bit}: {turned}");
        }
    }

    #[test]
    fn stays_the_same_in_all_versions() {
        assert_eq!(Fingerprint::of("shop").to_string(), "25f364ee-b30b-855b-a485-9d275d622818");
    }

    #[test]
    fn a_set_does_not_depend_on_the_order_of_its_changes() {
        let (a, b) = (Fingerprint::of("a"), Fingerprint::of("b"));
        let empty = Fingerprint::default();
        assert_eq!(empty.plus(a).plus(b).minus(a), empty.plus(b));
        assert_ne!(a, b);
    }
}
