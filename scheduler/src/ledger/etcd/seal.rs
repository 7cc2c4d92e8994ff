//! The seal of a record in etcd: it shows that a scheduler with the ledger's key wrote this value, for this very put.
//!
//! A client that may write keys in etcd can put any value, copy one to another key, and put an old one again. So the
//! seal covers the whole key, every byte of the value, and which put of the key it is: how often etcd has put it
//! (`version`) and since which revision it is there (`create_revision`). No client can choose these, and a value that
//! is put again gets others.
//!
//! The first put alone does not know its revision in advance, so its value can be put again once the key is deleted.
//! What is being started therefore counts only from the second put on: no engine is asked before.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use model::{Text, hex, unhex};
use sha2::Sha256;

use crate::ledger::etcd::keys::{Key, Keys};
use crate::secret::{KEY_BYTES, key_in};

/// Bytes of a key's fingerprint: finding another key with the same 128 bits is infeasible.
const FINGERPRINT_BYTES: usize = 16;

/// What is sealed, so that the key serves no other purpose by chance.
const RECORD: &[u8] = b"berth ledger record 1";

/// The same for the fingerprint.
const FINGERPRINT: &[u8] = b"berth ledger key 1";

/// Between a record and its seal, which is its last field.
const BEFORE: &[u8] = br#","seal":""#;

/// Behind the seal.
const AFTER: &[u8] = br#""}"#;

/// Digits of a seal: all that SHA-256 gives, in hexadecimal.
const DIGITS: usize = 64;

/// The key with which the schedulers of one ledger seal its records.
#[derive(Clone)]
pub(crate) struct LedgerKey([u8; KEY_BYTES]);

/// Which put of a key in etcd it is. Etcd counts both numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Put {
    /// The revision in which the key was put for the first time since it was last deleted.
    pub(crate) created: i64,
    /// How often it was put since.
    pub(crate) version: i64,
}

/// Seals and verifies the records of one ledger.
#[derive(Clone)]
pub(crate) struct Seal {
    keyed: Hmac<Sha256>,
    keys: Keys,
}

impl LedgerKey {
    /// A key of random bytes.
    pub(crate) fn new(random: [u8; KEY_BYTES]) -> Self {
        Self(random)
    }

    /// Reads the text of a key file.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        key_in(text).map(Self)
    }

    /// The text of a key file.
    pub(crate) fn text(&self) -> String {
        hex(&self.0) + "\n"
    }

    /// Identifies the key and may be shown.
    pub(crate) fn fingerprint(&self) -> Text {
        let print = self.keyed().chain_update(FINGERPRINT).finalize().into_bytes();
        hex(&print[..FINGERPRINT_BYTES]).into()
    }

    /// The seal of a ledger with these keys.
    pub(crate) fn seal(&self, keys: &Keys) -> Seal {
        Seal { keyed: self.keyed(), keys: keys.clone() }
    }

    fn keyed(&self) -> Hmac<Sha256> {
        Hmac::new_from_slice(&self.0).expect("a key for HMAC may have any length")
    }
}

impl fmt::Debug for LedgerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LedgerKey({})", self.fingerprint())
    }
}

impl Put {
    /// The first put of a key that is not there.
    pub(crate) const FIRST: Self = Self { created: 0, version: 1 };

    /// The put after this one.
    pub(crate) fn next(self) -> Self {
        Self { version: self.version + 1, ..self }
    }

    /// Whether a client of etcd that saw the value could put it again once the key was deleted.
    pub(crate) fn is_first(self) -> bool {
        self.version <= 1
    }
}

/// Why a value does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SealError {
    /// As releases wrote that had no seals, and as anybody can write.
    #[error("it has no seal, so it is not by a scheduler of this ledger (`scheduler ledger seal` lists such records)")]
    Absent,
    /// Another key, another value, another place or another time.
    #[error(
        "its seal does not fit: it is not by a scheduler of this ledger, was changed, or is an old value put again"
    )]
    Wrong,
}

impl Seal {
    /// The JSON object `value` with its seal, for this put of the placement's key.
    pub(crate) fn applied(&self, id: &str, put: Put, mut value: Vec<u8>) -> Vec<u8> {
        // The object goes on after its last field.
        value.pop();
        let seal = hex(&self.over(id, put, &value).finalize().into_bytes());
        value.extend_from_slice(BEFORE);
        value.extend_from_slice(seal.as_bytes());
        value.extend_from_slice(AFTER);
        value
    }

    /// What of `value` is sealed: all of it but the seal.
    ///
    /// Nothing of the value is parsed before its seal is known to fit.
    ///
    /// # Errors
    ///
    /// Fails if the value has no seal, or one that is not for this value and this put of the placement's key.
    pub(crate) fn verified<'v>(&self, id: &str, put: Put, value: &'v [u8]) -> Result<&'v [u8], SealError> {
        let (sealed, digits) = split(value).ok_or(SealError::Absent)?;
        let seal = unhex(digits).ok_or(SealError::Wrong)?;
        // Compares in a time that does not depend on where the first difference is.
        self.over(id, put, sealed).verify_slice(&seal).map_err(|_| SealError::Wrong)?;
        Ok(sealed)
    }

    fn over(&self, id: &str, put: Put, value: &[u8]) -> Hmac<Sha256> {
        let key = self.keys.of(&Key::Placement(id.into()));
        let created = if put.is_first() { 0 } else { put.created };
        // With lengths, so that no end of one part can be the beginning of the next.
        let parts = [RECORD, key.as_bytes(), &created.to_be_bytes(), &put.version.to_be_bytes(), value];
        parts.into_iter().fold(self.keyed.clone(), |keyed, part| {
            let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
            keyed.chain_update(length.to_be_bytes()).chain_update(part)
        })
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

/// A value without its seal, and the digits of the seal.
fn split(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = value.strip_suffix(AFTER)?;
    let (rest, digits) = rest.split_at_checked(rest.len().checked_sub(DIGITS)?)?;
    Some((rest.strip_suffix(BEFORE)?, digits))
}

#[cfg(test)]
impl Seal {
    /// The seal of tests.
    pub(crate) fn of_tests() -> Self {
        LedgerKey::new([7; KEY_BYTES]).seal(&Keys::new("/berth/v1/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: &[u8] = br#"{"berth":1,"owner":"s-1","id":"web","stage":"begun"}"#;
    const PUT: Put = Put { created: 5, version: 3 };

    fn sealed() -> Vec<u8> {
        Seal::of_tests().applied("web", PUT, VALUE.to_vec())
    }

    #[test]
    fn a_sealed_record_is_json_and_is_accepted_for_its_own_put() {
        let value = sealed();
        let parsed: serde_json::Value = serde_json::from_slice(&value).unwrap();
        assert_eq!((parsed["owner"].as_str(), parsed["seal"].as_str().map(str::len)), (Some("s-1"), Some(DIGITS)));
        assert_eq!(Seal::of_tests().verified("web", PUT, &value), Ok(&VALUE[..VALUE.len() - 1]));
    }

    #[test]
    fn no_bit_of_a_sealed_record_can_be_changed() {
        let (seal, value) = (Seal::of_tests(), sealed());
        for bit in 0..8 * value.len() {
            let mut changed = value.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(seal.verified("web", PUT, &changed).is_err(), "bit {bit}");
        }
        for length in 0..value.len() {
            assert!(seal.verified("web", PUT, &value[..length]).is_err(), "{length} bytes of it");
        }
        let longer = [value.as_slice(), b" "].concat();
        assert_eq!(seal.verified("web", PUT, &longer), Err(SealError::Absent));
        assert_eq!(seal.verified("web", PUT, VALUE), Err(SealError::Absent));
    }

    #[test]
    fn a_sealed_record_counts_at_no_other_key_and_for_no_other_put() {
        let value = sealed();
        let wrong = |seal: Seal, id: &str, put: Put| {
            assert_eq!(seal.verified(id, put, &value), Err(SealError::Wrong), "{id} {put:?}");
        };
        wrong(Seal::of_tests(), "web-2", PUT);
        wrong(Seal::of_tests(), "", PUT);
        wrong(Seal::of_tests(), "web", PUT.next());
        wrong(Seal::of_tests(), "web", Put::FIRST);
        wrong(Seal::of_tests(), "web", Put { created: 6, ..PUT });
        wrong(LedgerKey::new([7; KEY_BYTES]).seal(&Keys::new("/other/")), "web", PUT);
        wrong(LedgerKey::new([8; KEY_BYTES]).seal(&Keys::new("/berth/v1/")), "web", PUT);
        // The revision in which a key will be created is not known in advance.
        let first = Seal::of_tests().applied("web", Put::FIRST, VALUE.to_vec());
        assert!(Seal::of_tests().verified("web", Put { created: 77, version: 1 }, &first).is_ok());
    }

    #[test]
    fn a_key_is_read_as_it_is_written_and_shows_nothing_of_itself() {
        let key = LedgerKey::new([0xa5; KEY_BYTES]);
        let read = LedgerKey::parse(key.text().as_bytes()).unwrap();
        assert_eq!((read.fingerprint(), read.0), (key.fingerprint(), key.0));
        assert_ne!(key.fingerprint(), LedgerKey::new([0xa6; KEY_BYTES]).fingerprint());
        assert!(!format!("{key:?}").contains("a5a5"), "{key:?}");
        for wrong in ["", "a5", &"a5".repeat(33), &"g5".repeat(32), &"a5".repeat(32)[1..]] {
            assert!(LedgerKey::parse(wrong.as_bytes()).is_none(), "{wrong}");
        }
    }
}
