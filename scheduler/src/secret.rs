//! Contents of files that a stack brings: sealed with the schedulers' own key wherever they are stored or shown. ◇
//!
//! Equal contents of a stack are sealed as equal texts, so that a revision differs only when contents do. What is sealed for one stack
//! opens for no other one.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use model::{Map, Text, Value, hex, unhex};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use sha2::Sha256;

use crate::place::invalid::Invalid;

/// Bytes of a key in a file: as many as AES-256 takes, and HMAC-SHA-256 makes use of.
pub(crate) const KEY_BYTES: usize = 32;

/// Largest contents of one file, in bytes: sealed, they are in each revision of a stack and in the record of each unit.
pub(crate) const CONTENT_MAX: usize = 64 << 10;

/// What each derived key is for, so that none serves two purposes.
const ENCRYPTION: &[u8] = b"berth contents of files 1";
const NONCES: &[u8] = b"berth nonces of contents 1";
const FINGERPRINT: &[u8] = b"berth fingerprint of a key of contents 1";

/// Bytes of a key's fingerprint: finding another key with the same 128 bits is infeasible.
const FINGERPRINT_BYTES: usize = 16;

/// What a file may be given as.
const PLAIN: &str = "content";
const ENCODED: &str = "content_base64";

/// The key with which the schedulers of a ledger seal contents.
#[derive(Clone)]
pub(crate) struct SecretsKey {
    encryption: LessSafeKey,
    nonces: Hmac<Sha256>,
    fingerprint: Text,
}

/// The bytes of a key in the text of its file: 64 hexadecimal digits, blanks around them.
pub(crate) fn key_in(text: &[u8]) -> Option<[u8; KEY_BYTES]> {
    unhex(&text.trim_ascii().to_ascii_lowercase())?.try_into().ok()
}

impl fmt::Debug for SecretsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretsKey")
    }
}

impl SecretsKey {
    /// The key in the text of a file.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        Self::new(key_in(text)?)
    }

    fn new(key: [u8; KEY_BYTES]) -> Option<Self> {
        let derived =
            |purpose| Some(Hmac::<Sha256>::new_from_slice(&key).ok()?.chain_update(purpose).finalize().into_bytes());
        let encryption = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &derived(ENCRYPTION)?).ok()?);
        let fingerprint = hex(&derived(FINGERPRINT)?[..FINGERPRINT_BYTES]).into();
        Some(Self { encryption, nonces: Hmac::new_from_slice(&derived(NONCES)?).ok()?, fingerprint })
    }

    /// Identifies the key and may be shown.
    pub(crate) fn fingerprint(&self) -> &Text {
        &self.fingerprint
    }

    /// Contents of a file of this stack, sealed.
    fn seal(&self, stack: &str, content: &[u8]) -> Option<String> {
        // A nonce of what is sealed: no other contents have it, and equal ones are equal texts.
        let of_all = self.nonces.clone().chain_update(stack).chain_update([0]).chain_update(content);
        let nonce: [u8; NONCE_LEN] = of_all.finalize().into_bytes()[..NONCE_LEN].try_into().ok()?;
        let mut sealed = content.to_vec();
        self.encryption
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(stack.as_bytes()), &mut sealed)
            .ok()?;
        Some(URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat()))
    }

    /// The contents in such a text; `None` if it was sealed with another key or for another stack.
    pub(crate) fn open(&self, stack: &str, sealed: &str) -> Option<Vec<u8>> {
        let mut bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, content) = bytes.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        Some(self.encryption.open_in_place(nonce, Aad::from(stack.as_bytes()), content).ok()?.to_vec())
    }
}

/// The body of a stack with the contents of its files sealed: in it and in all that is made of it there are none in plain text.
///
/// # Errors
///
/// Fails with the field if there is no key, or what is given is no contents.
pub(crate) fn with_sealed_files(key: Option<&SecretsKey>, stack: &str, body: Value) -> Result<Value, Invalid> {
    let Value::Map(map) = &body else { return Ok(body) };
    let sealed = mapped(map, "services", "", &|service, path| {
        let service = mapped(service, "files", path, &|file, path| sealed_file(key, stack, file, path))?;
        mapped(&service, "sidekicks", path, &|sidekick, path| {
            mapped(sidekick, "files", path, &|file, path| sealed_file(key, stack, file, path))
        })
    });
    Ok(sealed?.into())
}

/// A map whose list of maps at a key is changed; anything else there is left to who reads it.
fn mapped(
    map: &Map,
    key: &str,
    path: &str,
    change: &dyn Fn(&Map, &str) -> Result<Map, Invalid>,
) -> Result<Map, Invalid> {
    let items = map.list(key);
    if items.is_empty() {
        return Ok(map.clone());
    }
    let dot = if path.is_empty() { "" } else { "." };
    let changed = items.iter().enumerate().map(|(at, item)| match item {
        Value::Map(item) => change(item, &format!("{path}{dot}{key}[{at}]")).map(Value::from),
        other => Ok(other.clone()),
    });
    let changed: Vec<Value> = changed.collect::<Result<_, Invalid>>()?;
    Ok(map.with([(key.into(), Value::list(changed))]))
}

fn sealed_file(key: Option<&SecretsKey>, stack: &str, file: &Map, path: &str) -> Result<Map, Invalid> {
    let at = |field: &str| format!("{path}.{field}");
    if file.get("sealed").is_some() {
        return Err(Invalid::new(at("sealed"), "given", "content or content_base64: the scheduler seals it"));
    }
    // Nothing of what is given is shown.
    let text = |field: &str| match file.get(field) {
        None => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text)),
        Some(other) => Err(Invalid::new(at(field), format!("found {}", other.kind()), "text")),
    };
    let content = match (text(PLAIN)?, text(ENCODED)?) {
        (Some(text), None) => text.as_bytes().to_vec(),
        (None, Some(text)) => STANDARD
            .decode(text.as_bytes())
            .map_err(|_| Invalid::new(at(ENCODED), "it is no base64", "base64 with padding"))?,
        (None, None) => return Err(Invalid::new(at(PLAIN), "missing", "the contents, or content_base64")),
        (Some(_), Some(_)) => return Err(Invalid::new(at(ENCODED), "given with content", "one of them")),
    };
    if content.len() > CONTENT_MAX {
        let expected = format!("at most {CONTENT_MAX}; what is larger belongs into an image or a volume");
        return Err(Invalid::new(at(PLAIN), format!("{} bytes", content.len()), expected));
    }
    let no_key = || {
        let expected = "a scheduler with --secrets-key FILE, or the absolute path of a file that is on the hosts";
        Invalid::new(at(PLAIN), "this scheduler stores no contents of files", expected)
    };
    let sealed = key.and_then(|key| key.seal(stack, &content)).ok_or_else(no_key)?;
    Ok(file.without(PLAIN).without(ENCODED).with([(Text::from("sealed"), Value::text(sealed))]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> SecretsKey {
        SecretsKey::new([byte; KEY_BYTES]).unwrap()
    }

    #[test]
    fn what_is_sealed_opens_with_its_key_for_its_stack_alone() {
        let sealed = key(1).seal("shop", b"pass").unwrap();
        assert_eq!(key(1).open("shop", &sealed).as_deref(), Some(&b"pass"[..]));
        assert_eq!(key(1).seal("shop", b"pass").unwrap(), sealed, "a revision differs only when contents do");
        assert_ne!(key(1).seal("other", b"pass").unwrap(), sealed);
        assert_eq!(key(1).open("other", &sealed), None);
        assert_eq!(key(2).open("shop", &sealed), None);
        let cut = [&sealed[..sealed.len() - 1], "", "x", "-_", "\u{e9}"];
        assert!(cut.iter().all(|cut| key(1).open("shop", cut).is_none()));
        assert_eq!(key(1).open("shop", &key(1).seal("shop", b"").unwrap()).as_deref(), Some(&b""[..]));
    }

    fn sealed(key: Option<&SecretsKey>, service: &serde_json::Value) -> Result<serde_json::Value, Invalid> {
        let body = serde_json::from_value(serde_json::json!({ "services": [{ "service": "a" }, service] })).unwrap();
        with_sealed_files(key, "shop", body).map(|body| serde_json::to_value(body).unwrap()["services"][1].clone())
    }

    #[test]
    fn contents_of_services_and_sidekicks_are_sealed_and_nothing_else_changes() {
        let service = serde_json::json!({ "service": "b", "files": [
            { "target": "/a", "content": "one", "mode": "0400" }, { "target": "/b", "content_base64": "AP8=" }],
            "sidekicks": [{ "name": "s", "files": [{ "target": "/c", "content": "two" }] }] });
        let sealed = sealed(Some(&key(1)), &service).unwrap();
        let opened = |file: &serde_json::Value| key(1).open("shop", file["sealed"].as_str().unwrap()).unwrap();
        assert_eq!(opened(&sealed["files"][0]), b"one");
        assert_eq!(opened(&sealed["files"][1]), [0, 255]);
        assert_eq!(opened(&sealed["sidekicks"][0]["files"][0]), b"two");
        assert_eq!(sealed["files"][0]["mode"], "0400");
        let text = sealed.to_string();
        assert!(!text.contains("content") && !text.contains("one") && !text.contains("two"), "{text}");
    }

    #[test]
    fn what_is_no_contents_is_named_and_not_shown() {
        let of = |file: serde_json::Value| serde_json::json!({ "service": "b", "files": [file] });
        for (file, field) in [
            (serde_json::json!({ "target": "/a" }), "content"),
            (serde_json::json!({ "content": 5 }), "content"),
            (serde_json::json!({ "content_base64": "s3cret" }), "content_base64"),
            (serde_json::json!({ "content": "s3cret", "content_base64": "AP8=" }), "content_base64"),
            (serde_json::json!({ "content": "s3cret".repeat(CONTENT_MAX) }), "content"),
            (serde_json::json!({ "sealed": "s3cret" }), "sealed"),
        ] {
            let wrong = sealed(Some(&key(1)), &of(file)).unwrap_err();
            assert_eq!(wrong.field, format!("services[1].files[0].{field}"));
            assert!(!wrong.to_string().contains("s3cret"), "{wrong}");
        }
        let wrong = sealed(None, &of(serde_json::json!({ "content": "s3cret" }))).unwrap_err();
        assert!(wrong.to_string().contains("--secrets-key") && !wrong.to_string().contains("s3cret"), "{wrong}");
        assert!(sealed(None, &serde_json::json!({ "service": "b" })).is_ok(), "no key is needed for none");
    }

    #[test]
    fn a_key_is_64_digits() {
        let text = format!(" {}\n", "0A".repeat(32));
        let sealed = SecretsKey::parse(text.as_bytes()).unwrap().seal("shop", b"x").unwrap();
        assert_eq!(key(10).open("shop", &sealed).as_deref(), Some(&b"x"[..]));
        let fingerprint = key(10).fingerprint().clone();
        assert_eq!(SecretsKey::parse(text.as_bytes()).unwrap().fingerprint(), &fingerprint);
        assert!(fingerprint != *key(11).fingerprint() && fingerprint.len() == 32 && !fingerprint.contains("0a0a"));
        assert!(
            ["", "password", &"0a".repeat(33), &"0g".repeat(32)]
                .iter()
                .all(|text| SecretsKey::parse(text.as_bytes()).is_none())
        );
    }
}
