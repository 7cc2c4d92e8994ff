//! What is derived from secrets, and what is sealed with it.
//!
//! A token's secret has two outputs of HKDF-SHA-256 (RFC 5869): the password of the user that may read the invitation,
//! and the key that opens it. So etcd, which learns the password, cannot open what it stores. A new password of a host
//! is sealed by a key that an X25519 exchange gives (RFC 7748), so that reading etcd does not reveal it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, PublicKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::error::Unspecified;
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};

use thiserror::Error;

use super::token::Token;

/// Bytes of a key, and of a password before it is written as text.
const KEY_BYTES: usize = 32;

/// Something was not sealed so, or the system gives no random numbers. The error says no more, so that it reveals nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("cannot seal or open: another key, or no random numbers")]
pub(crate) struct SealError;

impl From<Unspecified> for SealError {
    fn from(Unspecified: Unspecified) -> Self {
        Self
    }
}

/// Random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], SealError> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes)?;
    Ok(bytes)
}

/// A new password: 32 random bytes.
pub(crate) fn password() -> Result<String, SealError> {
    Ok(URL_SAFE_NO_PAD.encode(random::<KEY_BYTES>()?))
}

/// A key that seals.
pub(crate) struct SealingKey(LessSafeKey);

impl SealingKey {
    fn new(bytes: &[u8; KEY_BYTES]) -> Result<Self, SealError> {
        Ok(Self(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, bytes)?)))
    }

    /// Seals `plain` for the place `name`, where alone it can be opened.
    pub(crate) fn seal(&self, name: &str, plain: &[u8]) -> Result<Vec<u8>, SealError> {
        let nonce = random::<NONCE_LEN>()?;
        let mut sealed = plain.to_vec();
        self.0.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(name.as_bytes()),
            &mut sealed,
        )?;
        Ok([&nonce[..], &sealed].concat())
    }

    /// Opens what was sealed for the place `name`.
    pub(crate) fn open(&self, name: &str, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let (nonce, sealed) = sealed.split_first_chunk().ok_or(SealError)?;
        let mut plain = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = self.0.open_in_place(nonce, Aad::from(name.as_bytes()), &mut plain)?.len();
        plain.truncate(length);
        Ok(plain)
    }
}

/// What a token's secret gives.
pub(crate) struct Derived {
    /// The password of the user that may read the invitation.
    pub(crate) password: String,
    /// The key that opens it.
    pub(crate) key: SealingKey,
}

impl Token {
    /// What its secret gives.
    pub(crate) fn derived(&self) -> Result<Derived, SealError> {
        let output = |of: &[u8]| derive(self.id.as_bytes(), &self.secret, of);
        Ok(Derived {
            password: URL_SAFE_NO_PAD.encode(output(b"berth join password 1")?),
            key: SealingKey::new(&output(b"berth join seal 1")?)?,
        })
    }
}

fn derive(salt: &[u8], secret: &[u8], of: &[u8]) -> Result<[u8; KEY_BYTES], SealError> {
    let mut output = [0; KEY_BYTES];
    Salt::new(HKDF_SHA256, salt).extract(secret).expand(&[of], HKDF_SHA256)?.fill(&mut output)?;
    Ok(output)
}

/// One side of an exchange of a key, good for one.
pub(crate) struct Exchange {
    private: EphemeralPrivateKey,
    public: PublicKey,
}

impl Exchange {
    pub(crate) fn new() -> Result<Self, SealError> {
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new())?;
        let public = private.compute_public_key()?;
        Ok(Self { private, public })
    }

    /// What the other side needs.
    pub(crate) fn public(&self) -> &[u8] {
        self.public.as_ref()
    }

    /// The key that both sides have; `host` is the public key of the host, `operator` that of the operator.
    fn agree(self, theirs: &[u8], host: &[u8], operator: &[u8]) -> Result<SealingKey, SealError> {
        let theirs = UnparsedPublicKey::new(&X25519, theirs);
        let salt = [host, operator].concat();
        let key = agree_ephemeral(self.private, &theirs, |shared| derive(&salt, shared, b"berth rotate seal 1"))??;
        SealingKey::new(&key)
    }

    /// The key with a host, for an operator.
    pub(crate) fn with_host(self, host: &[u8]) -> Result<SealingKey, SealError> {
        let own = self.public().to_vec();
        self.agree(host, host, &own)
    }

    /// The key with an operator, for a host.
    pub(crate) fn with_operator(self, operator: &[u8]) -> Result<SealingKey, SealError> {
        let own = self.public().to_vec();
        self.agree(operator, &own, operator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_is_opened_in_its_place_by_its_key_alone() {
        let token = Token::new(Vec::new(), Vec::new()).unwrap();
        let (key, again) = (token.derived().unwrap(), token.derived().unwrap());
        assert_eq!(key.password, again.password);
        let sealed = key.key.seal("/a", b"secret").unwrap();
        assert_eq!(again.key.open("/a", &sealed).unwrap(), b"secret");
        assert!(again.key.open("/b", &sealed).is_err(), "it is bound to its place");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(key.key.open("/a", &changed).is_err(), "{at}");
        }
        assert!(key.key.open("/a", b"short").is_err());
        let other = Token { id: "0000000000".into(), ..token };
        assert!(other.derived().unwrap().key.open("/a", &sealed).is_err(), "the same secret in another invitation");
    }

    #[test]
    fn both_sides_of_an_exchange_have_one_key_and_a_third_one_has_not() {
        let (host, operator, third) = (Exchange::new().unwrap(), Exchange::new().unwrap(), Exchange::new().unwrap());
        let (host_public, operator_public) = (host.public().to_vec(), operator.public().to_vec());
        let sealed = operator.with_host(&host_public).unwrap().seal("/a", b"secret").unwrap();
        assert!(third.with_operator(&operator_public).unwrap().open("/a", &sealed).is_err());
        assert_eq!(host.with_operator(&operator_public).unwrap().open("/a", &sealed).unwrap(), b"secret");
    }
}
