//! Fingerprints: equal content gives equal fingerprints, in every process and after every restart.
//!
//! They tell revisions apart and name what a document left unnamed; they do not protect against
//! somebody who builds collisions on purpose.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// 128 bits that stand for some content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(u128);

impl Fingerprint {
    /// The fingerprint of one thing.
    pub fn of(content: &(impl Hash + ?Sized)) -> Self {
        // `DefaultHasher::new` has fixed keys. Two passes with different prefixes give 128 bits.
        let half = |prefix: u8| {
            let mut hasher = DefaultHasher::new();
            prefix.hash(&mut hasher);
            content.hash(&mut hasher);
            hasher.finish()
        };
        Self(u128::from(half(1)) << 64 | u128::from(half(2)))
    }

    /// The fingerprint of a set that had `self` and gains `member`.
    #[must_use]
    pub fn plus(self, member: Self) -> Self {
        Self(self.0.wrapping_add(member.0))
    }

    /// The fingerprint of a set that had `self` and loses `member`.
    #[must_use]
    pub fn minus(self, member: Self) -> Self {
        Self(self.0.wrapping_sub(member.0))
    }
}

/// As a UUID of version 8 (RFC 9562, section 5.8: vendor-specific bits).
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0 & !(0xf << 76) & !(0x3 << 62) | 0x8 << 76 | 0x2 << 62;
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            bits >> 96,
            bits >> 80 & 0xffff,
            bits >> 64 & 0xffff,
            bits >> 48 & 0xffff,
            bits & 0xffff_ffff_ffff
        )
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
    }

    #[test]
    fn a_set_does_not_depend_on_the_order_of_its_changes() {
        let (a, b) = (Fingerprint::of("a"), Fingerprint::of("b"));
        let empty = Fingerprint::default();
        assert_eq!(empty.plus(a).plus(b).minus(a), empty.plus(b));
        assert_ne!(a, b);
    }
}
