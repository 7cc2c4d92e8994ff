//! A backup of what etcd has of a cluster: one file of lines, with a hash and the seal of the ledger's schedulers over all of it.
//!
//! The first line describes the others, each of which is a key behind the prefix and its value. Placements are in it without
//! their seals, which hold for one put in one etcd only; the seal of the file takes their place.

use model::{Text, hex};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::ledger::etcd::seal::LedgerKey;

/// The version of the format that is written, and the only one that is read.
const VERSION: u32 = 1;

/// A key behind the prefix, and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line {
    pub(crate) key: String,
    pub(crate) value: String,
}

/// What is known of a backup besides its lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Head {
    berth_backup: u32,
    /// When it was made (RFC 3339).
    pub(crate) made: String,
    /// The prefix of the keys.
    pub(crate) prefix: String,
    /// The revision of etcd that it shows.
    pub(crate) revision: i64,
    keys: usize,
    sha256: String,
    /// The fingerprint of the ledger's key, if there is a ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ledger: Option<Text>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seal: Option<String>,
}

/// A backup that was read.
#[derive(Debug)]
pub(crate) struct Backup {
    pub(crate) head: Head,
    /// In the order of keys.
    pub(crate) lines: Vec<Line>,
}

/// Why a file is no backup that can be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BackupError {
    /// Something else.
    #[error("it is no backup of `scheduler backup`: {0}")]
    Foreign(String),
    /// Another version of the format.
    #[error("it was written by a release with another format ({0}; this one reads {VERSION})")]
    Version(u32),
    /// Not all of what was written.
    #[error("it is damaged or cut off: its contents do not have the hash that its first line names")]
    Damaged,
    /// Not what a scheduler of the ledger wrote.
    #[error("it was changed since it was written, or by a scheduler with another key: its seal does not fit")]
    Seal,
    /// A key of which it is unclear what it had.
    #[error("the key {0:?} is there twice")]
    Twice(String),
}

/// The text of a backup.
pub(crate) fn written(
    made: String,
    prefix: &str,
    revision: i64,
    lines: &[Line],
    key: Option<&LedgerKey>,
) -> serde_json::Result<Vec<u8>> {
    let mut body = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut body, line)?;
        body.push(b'\n');
    }
    let mut head = Head {
        berth_backup: VERSION,
        made,
        prefix: prefix.to_owned(),
        revision,
        keys: lines.len(),
        sha256: hex(&Sha256::digest(&body)),
        ledger: key.map(LedgerKey::fingerprint),
        seal: None,
    };
    head.seal = key.map(|key| Ok::<_, serde_json::Error>(key.of_backup(&head.sealed()?))).transpose()?;
    let mut text = serde_json::to_vec(&head)?;
    text.push(b'\n');
    text.extend(body);
    Ok(text)
}

impl Head {
    /// What is sealed: all of the line but the seal. The hash in it stands for the other lines.
    fn sealed(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&Self { seal: None, ..self.clone() })
    }
}

impl Backup {
    /// Reads a backup whose contents have the hash that it names.
    ///
    /// # Errors
    ///
    /// Says what is wrong with it.
    pub(crate) fn read(text: &[u8]) -> Result<Self, BackupError> {
        let foreign = |error: serde_json::Error| BackupError::Foreign(error.to_string());
        let end = text.iter().position(|byte| *byte == b'\n');
        let (first, body) = end.map_or((text, &[][..]), |end| (&text[..end], &text[end + 1..]));
        let version: serde_json::Value = serde_json::from_slice(first).map_err(foreign)?;
        match version["berth_backup"].as_u64() {
            Some(version) if version != u64::from(VERSION) => {
                return Err(BackupError::Version(u32::try_from(version).unwrap_or(u32::MAX)));
            }
            _ => {}
        }
        let head: Head = serde_json::from_slice(first).map_err(foreign)?;
        if hex(&Sha256::digest(body)) != head.sha256 {
            return Err(BackupError::Damaged);
        }
        let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let mut lines: Vec<Line> = lines.map(serde_json::from_slice).collect::<Result<_, _>>().map_err(foreign)?;
        if lines.len() != head.keys {
            return Err(BackupError::Damaged);
        }
        lines.sort_by(|one, other| one.key.cmp(&other.key));
        if let Some(twice) = lines.windows(2).find(|pair| pair[0].key == pair[1].key) {
            return Err(BackupError::Twice(twice[0].key.clone()));
        }
        Ok(Self { head, lines })
    }

    /// Whether a scheduler with this key wrote it as it is.
    ///
    /// # Errors
    ///
    /// Fails if it was another one, or the text was changed.
    pub(crate) fn verify(&self, key: &LedgerKey) -> Result<(), BackupError> {
        let sealed = self.head.sealed().map_err(|error| BackupError::Foreign(error.to_string()))?;
        let seal = self.head.seal.as_deref().unwrap_or_default();
        if key.is_of_backup(&sealed, seal) { Ok(()) } else { Err(BackupError::Seal) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Vec<Line> {
        let line = |key: &str, value: &str| Line { key: key.to_owned(), value: value.to_owned() };
        vec![line("documents/a", "{\n}"), line("ledger/placements/web", r#"{"berth":1}"#)]
    }

    fn key(byte: u8) -> LedgerKey {
        LedgerKey::new([byte; 32])
    }

    #[test]
    fn what_was_written_is_read_and_belongs_to_its_key() {
        let text = written("now".into(), "/berth/v1/", 7, &lines(), Some(&key(1))).unwrap();
        let backup = Backup::read(&text).unwrap();
        assert_eq!((&backup.lines, backup.head.revision, backup.head.prefix.as_str()), (&lines(), 7, "/berth/v1/"));
        assert_eq!(backup.verify(&key(1)), Ok(()));
        assert_eq!(backup.verify(&key(2)), Err(BackupError::Seal));
        let without = Backup::read(&written("now".into(), "/berth/v1/", 7, &lines(), None).unwrap()).unwrap();
        assert_eq!(without.head.ledger, None);
        assert_eq!(without.verify(&key(1)), Err(BackupError::Seal));
    }

    #[test]
    fn no_change_of_a_byte_passes() {
        let text = written("now".into(), "/berth/v1/", 7, &lines(), Some(&key(1))).unwrap();
        for place in 0..text.len() {
            let mut changed = text.clone();
            changed[place] ^= 1;
            let passes = Backup::read(&changed).is_ok_and(|backup| backup.verify(&key(1)).is_ok());
            assert!(!passes, "byte {place} of {}", String::from_utf8_lossy(&text));
        }
        for length in 0..text.len() {
            assert!(Backup::read(&text[..length]).is_err_and(|_| true), "{length} bytes of {}", text.len());
        }
    }

    #[test]
    fn other_files_are_named_as_such() {
        for (text, expected) in [
            ("", "no backup"),
            ("{}", "no backup"),
            (r#"{"berth_backup": 2}"#, "another format (2;"),
            ("ledger", "no backup"),
        ] {
            let error = Backup::read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}
