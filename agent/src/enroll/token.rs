//! An invitation as one word: `berth1.ID.SECRET.CHECK[.CA...]@MEMBER,MEMBER`.
//!
//! ID is hexadecimal, so that it can be typed; everything else is base64url. CHECK covers all other characters, so that a
//! changed one is noticed before anything is sent. CA are the certificates of the authority of etcd's members, so that a
//! joiner trusts no other one from its first connection on. A member without a scheme speaks TLS.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use etcd::{Endpoint, Secret};
use model::hex;
use pem::{EncodeConfig, LineEnding, Pem};
use ring::digest::{SHA256, digest};
use thiserror::Error;

/// First word of a token; the number changes when older programs could not use the rest.
const MAGIC: &str = "berth1";

/// Bytes of an invitation's name: enough that two are never the same.
const ID_BYTES: usize = 5;

/// Bytes of the secret.
pub(crate) const SECRET_BYTES: usize = 16;

/// Bytes of the check: a changed token passes once in 281 million million tries.
const CHECK_BYTES: usize = 6;

/// Most bytes of certificates in a token. A line of this length can still be pasted everywhere (Windows takes 8,191
/// characters).
pub(crate) const AUTHORITY_MAX: usize = 5 << 10;

/// How PEM is written, on all systems.
pub(crate) const PEM: EncodeConfig = EncodeConfig::new().set_line_ending(LineEnding::LF);

/// Longest token, in bytes.
const TOKEN_MAX: usize = 16 << 10;

/// What a text in UTF-8 may begin with and does not mean.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// An invitation for one host.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// Its name: what etcd's user and key are called by.
    pub(crate) id: String,
    /// What the password and the sealing key are derived from; etcd never sees it.
    pub(crate) secret: [u8; SECRET_BYTES],
    /// Certificates of the authority of etcd's members, DER; none where they do not speak TLS.
    pub(crate) authority: Vec<Vec<u8>>,
    /// etcd's members.
    pub(crate) endpoints: Vec<Endpoint>,
}

/// Why a text is no token. No variant repeats what was given: it may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("not a token of Berth: {0}")]
pub(crate) struct NoToken(String);

impl Token {
    /// A new one.
    pub(crate) fn new(authority: Vec<Vec<u8>>, endpoints: Vec<Endpoint>) -> Result<Self, super::seal::SealError> {
        Ok(Self { id: hex(&super::seal::random::<ID_BYTES>()?), secret: super::seal::random()?, authority, endpoints })
    }

    /// The token in the text of a file: its first line that is no remark.
    pub(crate) fn of_file(text: &str) -> Result<Self, NoToken> {
        // Editors of Windows write one.
        let text = text.trim_start_matches(BYTE_ORDER_MARK);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
        line.ok_or_else(|| NoToken("it is empty, or has only lines that begin with #".to_owned()))?.parse()
    }

    /// The certificates of the authority, as PEM.
    pub(crate) fn authority_pem(&self) -> Option<String> {
        let block = |der: &Vec<u8>| pem::encode_config(&Pem::new("CERTIFICATE", der.clone()), PEM);
        (!self.authority.is_empty()).then(|| self.authority.iter().map(block).collect())
    }

    fn head(&self) -> String {
        format!("{MAGIC}.{}.{}", self.id, URL_SAFE_NO_PAD.encode(self.secret))
    }

    fn tail(&self) -> String {
        let authority = self.authority.iter().map(|der| format!(".{}", URL_SAFE_NO_PAD.encode(der)));
        let authority = authority.collect::<Vec<_>>().concat();
        let member = |member: &Endpoint| member.to_string().trim_start_matches("https://").to_owned();
        let members: Vec<_> = self.endpoints.iter().map(member).collect();
        format!("{authority}@{}", members.join(","))
    }

    /// The token, which is a secret.
    pub(crate) fn text(&self) -> Secret {
        let (head, tail) = (self.head(), self.tail());
        Secret(format!("{head}.{}{tail}", check(&head, &tail)))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("id", &self.id).field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

impl FromStr for Token {
    type Err = NoToken;

    fn from_str(text: &str) -> Result<Self, NoToken> {
        let wrong = |problem: &str| NoToken(problem.to_owned());
        if !text.starts_with(&format!("{MAGIC}.")) {
            return Err(wrong("it has to begin with berth1. (a later version of Berth may have made it)"));
        }
        if text.len() > TOKEN_MAX {
            return Err(wrong("it is too long"));
        }
        let (words, members) =
            text.split_once('@').ok_or_else(|| wrong("its end is missing: @ and the members of etcd"))?;
        let mut words = words.split('.').skip(1);
        let mut word = |what: &str| words.next().ok_or_else(|| NoToken(format!("its {what} is missing")));
        let (id, secret, sum) = (word("name")?, word("secret")?, word("check")?);
        let authority: Vec<&str> = words.collect();
        // Before anything is judged by itself: whatever is wrong, a character was lost or changed.
        let head = format!("{MAGIC}.{id}.{secret}");
        let tail =
            format!("{}@{members}", authority.iter().map(|word| format!(".{word}")).collect::<Vec<_>>().concat());
        if check(&head, &tail) != sum {
            return Err(wrong("a character of it was changed or lost; copy it again, as a whole"));
        }
        let is_id = id.len() == 2 * ID_BYTES && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let id = Some(id.to_owned()).filter(|_| is_id).ok_or_else(|| wrong("its second word is no name"))?;
        let bytes = |word: &str| URL_SAFE_NO_PAD.decode(word).ok();
        let secret = bytes(secret).and_then(|secret| secret.try_into().ok());
        let secret = secret.ok_or_else(|| wrong("its third word is no secret"))?;
        let authority: Option<Vec<_>> = authority.into_iter().map(bytes).collect();
        let authority = authority.ok_or_else(|| wrong("its authority is not base64url"))?;
        let endpoint = |member: &str| {
            let url = if member.contains("://") { member.to_owned() } else { format!("https://{member}") };
            url.parse::<Endpoint>().map_err(|error| NoToken(format!("after @, {error}")))
        };
        let endpoints = members.split(',').map(endpoint).collect::<Result<Vec<_>, _>>()?;
        if authority.is_empty() && endpoints.iter().any(|endpoint| endpoint.tls) {
            return Err(wrong("it has members with TLS and no authority for them"));
        }
        Ok(Self { id, secret, authority, endpoints })
    }
}

/// The check of a token with this beginning and this end.
fn check(head: &str, tail: &str) -> String {
    let whole = digest(&SHA256, format!("{head}{tail}").as_bytes());
    URL_SAFE_NO_PAD.encode(&whole.as_ref()[..CHECK_BYTES])
}

/// The SHA-256 of a certificate as other programs write it, `AB:CD:...`: what two people compare.
pub(crate) fn fingerprint(der: &[u8]) -> String {
    let digits: Vec<_> = digest(&SHA256, der).as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    digits.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token {
            id: "00a1b2c3d4".into(),
            secret: *b"0123456789abcdef",
            authority: vec![b"a certificate".to_vec(), b"\xff\xfe".to_vec()],
            endpoints: ["https://etcd1.example.org:2379", "https://192.0.2.2:2379", "http://127.0.0.1:2379"]
                .map(|url| url.parse().unwrap())
                .into(),
        }
    }

    #[test]
    fn a_token_is_read_as_it_was_written() {
        let token = token();
        let Secret(text) = token.text();
        assert!(text.starts_with("berth1.00a1b2c3d4.MDEyMzQ1Njc4OWFiY2RlZg."), "{text}");
        assert!(text.ends_with("@etcd1.example.org:2379,192.0.2.2:2379,http://127.0.0.1:2379"), "{text}");
        assert!(text.parse::<Token>() == Ok(token.clone()));
        assert!(!format!("{token:?}").contains("0123"), "no secret is shown");
    }

    #[test]
    fn a_file_has_its_token_in_the_first_line_that_is_no_remark() {
        let Secret(text) = token().text();
        for file in [text.clone(), format!("# a\r\n\r\n {text}\r\n-----"), format!("{BYTE_ORDER_MARK}{text}")] {
            assert!(Token::of_file(&file) == Ok(token()), "{file:?}");
        }
        assert!(Token::of_file(&format!("{BYTE_ORDER_MARK}# a\n{text}\n")) == Ok(token()));
        for file in ["", "\n \n", "# a\n", "\u{feff}"] {
            let refused = Token::of_file(file).unwrap_err().to_string();
            assert!(refused.contains("it is empty"), "{file:?}: {refused}");
        }
    }

    #[test]
    fn no_changed_character_passes() {
        let Secret(text) = token().text();
        for at in 0..text.len() {
            for other in ["a", "A", "b", "0", ".", "@", "-", ""] {
                let changed = format!("{}{other}{}", &text[..at], &text[at + 1..]);
                if changed != text {
                    let refused = changed.parse::<Token>().unwrap_err().to_string();
                    assert!(refused.starts_with("not a token of Berth: "), "{changed}: {refused}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_token_says_which_word_is_wrong() {
        let sealed = |head: &str, tail: &str| format!("{head}.{}{tail}", check(head, tail));
        let secret = "MDEyMzQ1Njc4OWFiY2RlZg";
        let good = format!("berth1.00a1b2c3d4.{secret}");
        for (text, problem) in [
            (String::new(), "begin with berth1."),
            ("berth2.x".into(), "later version"),
            ("berth1.x".into(), "its end is missing"),
            ("berth1.x@a:1".into(), "its secret is missing"),
            ("berth1.x.y@a:1".into(), "its check is missing"),
            (sealed(&format!("berth1.x.{secret}"), "@http://a:1"), "second word"),
            (sealed("berth1.00a1b2c3d4.short", "@http://a:1"), "third word"),
            (sealed(&good, ".!@a:1"), "authority is not base64url"),
            (sealed(&good, "@a:1"), "no authority"),
            (sealed(&good, ".AAAA@a"), "after @"),
            (format!("berth1.{}", "a".repeat(TOKEN_MAX)), "too long"),
        ] {
            let refused = text.parse::<Token>().unwrap_err().to_string();
            assert!(refused.contains(problem), "{text}: {refused}");
            assert!(!refused.contains(secret), "{refused}");
        }
    }
}
