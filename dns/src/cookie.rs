//! Server cookies (RFC 7873, RFC 9018): a client that returns one has received our responses, so its address is not forged.
//!
//! Pure: the time and the secret are arguments. Cookies are demanded only of clients that use much without proof of their
//! address.

use std::net::IpAddr;

/// Length of a client's part.
pub(crate) const CLIENT_BYTES: usize = 8;

/// Length of our part (RFC 9018 section 4).
const SERVER_BYTES: usize = 16;

/// For how many seconds a cookie is good, and how far ahead of our clock it may be (RFC 9018 section 4.3).
const AGE_MAX: u32 = 3600;
const AHEAD_MAX: u32 = 300;

/// Lengths of a cookie that a client may send: its part alone, or with some server's (RFC 7873 section 5.2.2).
pub(crate) fn is_legal_length(bytes: usize) -> bool {
    bytes == CLIENT_BYTES || (16..=40).contains(&bytes)
}

/// Both parts of a cookie, as they are in the option.
pub(crate) type Cookie = [u8; COOKIE_BYTES];

/// Length of both parts.
pub(crate) const COOKIE_BYTES: usize = CLIENT_BYTES + SERVER_BYTES;

/// What cookies are made with, of this process alone.
#[derive(Clone)]
pub(crate) struct Secret([u8; 16]);

impl Secret {
    /// A secret of these random bytes.
    pub(crate) fn new(random: [u8; 16]) -> Self {
        Self(random)
    }

    /// Whether this is a cookie that this client was given, not long before this time, in seconds since 1970.
    pub(crate) fn is_own(&self, cookie: &Cookie, client: IpAddr, now: u32) -> bool {
        let (client_part, server_part) = cookie.split_at(CLIENT_BYTES);
        let (Some(client_part), Some(time)) = (client_part.first_chunk(), server_part[4..].first_chunk()) else {
            return false;
        };
        let time = u32::from_be_bytes(*time);
        let is_recent = now.wrapping_sub(time) <= AGE_MAX || time.wrapping_sub(now) <= AHEAD_MAX;
        // All bytes are compared, so that the time taken does not depend on which of them differ.
        let own = self.cookie(*client_part, client, time);
        is_recent && own.iter().zip(cookie).fold(0, |different, (own, other)| different | (own ^ other)) == 0
    }

    /// The cookie for a client at this time, in seconds since 1970.
    pub(crate) fn cookie(&self, client_part: [u8; CLIENT_BYTES], client: IpAddr, now: u32) -> Cookie {
        let mut cookie = [0; CLIENT_BYTES + SERVER_BYTES];
        cookie[..8].copy_from_slice(&client_part);
        // Version 1 and three reserved bytes.
        cookie[8] = 1;
        cookie[12..16].copy_from_slice(&now.to_be_bytes());
        let mut hashed = [0; 32];
        hashed[..16].copy_from_slice(&cookie[..16]);
        let end = match client.to_canonical() {
            IpAddr::V4(client) => {
                hashed[16..20].copy_from_slice(&client.octets());
                20
            }
            IpAddr::V6(client) => {
                hashed[16..].copy_from_slice(&client.octets());
                32
            }
        };
        cookie[16..].copy_from_slice(&siphash(self.0, &hashed[..end]).to_le_bytes());
        cookie
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// SipHash-2-4 (RFC 9018 section 4.4), which the standard library offers only with other rounds.
fn siphash(key: [u8; 16], bytes: &[u8]) -> u64 {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let (low, high) = (word(&key[..8]), word(&key[8..]));
    let mut state = [
        low ^ 0x736f_6d65_7073_6575,
        high ^ 0x646f_7261_6e64_6f6d,
        low ^ 0x6c79_6765_6e65_7261,
        high ^ 0x7465_6462_7974_6573,
    ];
    let absorb = |state: &mut [u64; 4], word: u64| {
        state[3] ^= word;
        round(state);
        round(state);
        state[0] ^= word;
    };
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        absorb(&mut state, word(chunk));
    }
    // The last word ends in the length, of which eight bits count.
    let length = (bytes.len() as u64) << 56;
    absorb(&mut state, word(chunks.remainder()) | length);
    state[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut state);
    }
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

fn round([a, b, c, d]: &mut [u64; 4]) {
    *a = a.wrapping_add(*b);
    *b = b.rotate_left(13) ^ *a;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*d);
    *d = d.rotate_left(16) ^ *c;
    *a = a.wrapping_add(*d);
    *d = d.rotate_left(21) ^ *a;
    *c = c.wrapping_add(*b);
    *b = b.rotate_left(17) ^ *c;
    *c = c.rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9018, appendix A.1.
    #[test]
    fn cookies_are_those_of_the_standard() {
        let secret = Secret::new(0xe5e9_73e5_a6b2_a43f_48e7_dc84_9e37_bfcf_u128.to_be_bytes());
        let client_part = 0x2464_c4ab_cf10_c957_u64.to_be_bytes();
        let cookie = secret.cookie(client_part, "198.51.100.100".parse().unwrap(), 1_559_731_985);
        let expected = [0x2464_c4ab_cf10_c957_u64, 0x0100_0000_5cf7_9f11, 0x1f81_30c3_eee2_9480];
        assert_eq!(cookie.to_vec(), expected.map(u64::to_be_bytes).concat());
    }

    #[test]
    fn a_cookie_of_another_client_or_hour_is_none_of_ours() {
        let (secret, client) = (Secret::new([7; 16]), "192.0.2.1".parse().unwrap());
        let now = 1_600_000_000;
        let cookie = secret.cookie([1; 8], client, now);
        for (later, own) in [(0, true), (3600, true), (3601, false), (u32::MAX - 299, true), (u32::MAX - 300, false)] {
            assert_eq!(secret.is_own(&cookie, client, now.wrapping_add(later)), own, "{later}");
        }
        assert!(!secret.is_own(&cookie, "192.0.2.2".parse().unwrap(), now));
        assert!(!Secret::new([8; 16]).is_own(&cookie, client, now));
        for at in 0..COOKIE_BYTES {
            let mut forged = cookie;
            forged[at] ^= 1;
            assert!(!secret.is_own(&forged, client, now), "{at}");
        }
    }

    #[test]
    fn lengths_are_checked() {
        let legal: Vec<usize> = (0..50).filter(|length| is_legal_length(*length)).collect();
        assert_eq!(legal, [8].into_iter().chain(16..=40).collect::<Vec<_>>());
    }
}
