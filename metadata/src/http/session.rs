//! Session tokens, in the manner of EC2's instance metadata: asked for with `PUT`, carried by every request after.
//!
//! A page or a program that can be made to fetch an address, but not to send headers of its own, gets nowhere.
//! No state is stored for a token: it contains its own expiry, sealed together with the client's address under a key that
//! lives as long as the process.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Longest life of a token, in seconds: six hours, as on EC2.
const LIFETIME_MAX: u32 = 21_600;

/// Longest token that is looked at, in bytes; ours have 54.
const TOKEN_MAX: usize = 70;

/// Bytes of the time in a token.
const TIME_BYTES: usize = 8;

/// Bytes of the seal in a token: all that SHA-256 gives.
const SEAL_BYTES: usize = 32;

/// Bytes of a key: what HMAC-SHA-256 takes without hashing it first.
pub(crate) const KEY_BYTES: usize = 64;

/// What gives tokens out and knows them again.
#[derive(Clone)]
pub(crate) struct Sessions {
    seal: Hmac<Sha256>,
}

impl Sessions {
    /// Tokens under this secret key.
    pub(crate) fn new(key: [u8; KEY_BYTES]) -> Self {
        Self { seal: Hmac::new(&key.into()) }
    }

    /// A token for the client at this address; `now` is the time since the key was made.
    pub(crate) fn token(&self, client: IpAddr, now: Duration, seconds: u32) -> String {
        let until = now.saturating_add(Duration::from_secs(seconds.into()));
        let until = u64::try_from(until.as_millis()).unwrap_or(u64::MAX).to_be_bytes();
        let seal = self.sealed(until, client).finalize().into_bytes();
        URL_SAFE_NO_PAD.encode([until.as_slice(), &seal].concat())
    }

    /// Whether this is a token that the client at this address was given and that is still good.
    pub(crate) fn knows(&self, token: &[u8], client: IpAddr, now: Duration) -> bool {
        if token.len() > TOKEN_MAX {
            return false;
        }
        // Of a token a little longer than ours more bytes come out than of ours.
        let mut bytes = [0; TOKEN_MAX];
        let Ok(length) = URL_SAFE_NO_PAD.decode_slice(token, &mut bytes) else { return false };
        if length != TIME_BYTES + SEAL_BYTES {
            return false;
        }
        let Some((until, seal)) = bytes[..length].split_first_chunk::<TIME_BYTES>() else { return false };
        // Compares in a time that does not depend on where the first difference is.
        self.sealed(*until, client).verify_slice(seal).is_ok() && now.as_millis() < u64::from_be_bytes(*until).into()
    }

    fn sealed(&self, until: [u8; TIME_BYTES], client: IpAddr) -> Hmac<Sha256> {
        // The address as IPv6, so that one client is one client on either kind of socket.
        let address = match client {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        self.seal.clone().chain_update(until).chain_update(address.octets())
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sessions")
    }
}

/// The life that a client asks for, in seconds, when it is one that tokens can have.
pub(crate) fn lifetime(asked: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(asked).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok().filter(|seconds| (1..=LIFETIME_MAX).contains(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_token_is_good_for_its_client_until_its_end() {
        let sessions = Sessions::new([7; KEY_BYTES]);
        let client = address("192.0.2.1");
        let token = sessions.token(client, NOW, 5);
        assert!(token.len() <= TOKEN_MAX && token.bytes().all(|byte| byte.is_ascii_graphic()), "{token}");
        let end = NOW + Duration::from_secs(5);
        for (client, now, good) in [
            ("192.0.2.1", NOW, true),
            ("::ffff:192.0.2.1", NOW, true),
            ("192.0.2.1", NOW + Duration::from_millis(4999), true),
            ("192.0.2.1", end, false),
            ("192.0.2.2", NOW, false),
            ("::c000:201", NOW, false),
        ] {
            assert_eq!(sessions.knows(token.as_bytes(), address(client), now), good, "{client} {now:?}");
        }
        assert!(!Sessions::new([8; KEY_BYTES]).knows(token.as_bytes(), client, NOW), "the key of another process");
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let sessions = Sessions::new([7; KEY_BYTES]);
        let client = address("192.0.2.1");
        let token = sessions.token(client, NOW, 5);
        let refused = |token: &[u8]| !sessions.knows(token, client, NOW);
        for at in 0..token.len() {
            let mut other = token.clone().into_bytes();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            assert!(refused(&other), "changed at {at}");
            assert!(refused(&token.as_bytes()[..at]), "cut at {at}");
        }
        for other in [
            format!("{token}A"),
            format!("{token}AAAA"),
            format!("{token}=="),
            format!(" {token}"),
            format!("{token}{}", "A".repeat(16)),
            format!("{token}{}", "A".repeat(17)),
            "A".repeat(54),
            "A".repeat(70),
            "A".repeat(10_000),
            "é".to_owned(),
        ] {
            assert!(refused(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn lives_are_whole_seconds_up_to_six_hours() {
        for (asked, expected) in [
            ("1", Some(1)),
            ("21600", Some(21_600)),
            ("0060", Some(60)),
            ("0", None),
            ("21601", None),
            ("-1", None),
            ("+1", None),
            ("1.5", None),
            ("1e3", None),
            ("", None),
            (" 1", None),
            ("60s", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(lifetime(asked.as_bytes()), expected, "{asked:?}");
        }
        assert_eq!(lifetime(b"\xff"), None);
    }
}
