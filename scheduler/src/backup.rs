//! What a backup of a ledger is: lines of JSON with a checksum at the end.
//!
//! The first line says what it is, each next one is a key of etcd with its value and which put of the key that was, and
//! the last one is the SHA-256 of all before it: what a disk or a copy has damaged is not restored. A backup contains
//! requests, and so secrets; who can write it can have anything started that the policy allows, as the file of the
//! ledger on disk, but records of placements count only with a seal of the ledger's key.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The version that is written, and the latest that is read.
const VERSION: u32 = 1;

/// Largest backup that is read, in bytes: etcd's default quota is 2 GiB, most of which are old revisions.
pub(crate) const BACKUP_MAX: u64 = 4 << 30;

/// What the line with the checksum begins with.
const CHECKSUM: &str = "sha256 ";

/// What was backed up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// The keys of an etcd without a lease.
    Etcd,
    /// The file of a ledger on disk.
    File,
}

/// A backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Backup {
    pub(crate) kind: Kind,
    /// When it was made, in ms since 1970.
    pub(crate) made: u64,
    /// The prefix of the keys in the etcd that it is of.
    pub(crate) prefix: String,
    pub(crate) keys: Vec<BackedUpKey>,
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackedUpKey {
    /// The part behind the prefix.
    pub(crate) path: String,
    pub(crate) value: Vec<u8>,
    /// The revision since which it is there, and how often it was put since.
    pub(crate) created: i64,
    pub(crate) version: i64,
}

/// Why a file is no backup that can be restored.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum BackupError {
    #[error("it is not a backup of `scheduler backup`")]
    Foreign,
    #[error("it is of version {0}, and this release reads versions up to {VERSION}: restore it with a newer release")]
    Newer(u32),
    #[error("it is damaged or was cut off: its checksum is wrong")]
    Damaged,
}

#[derive(Serialize, Deserialize)]
struct Head {
    berth_backup: u32,
    of: Kind,
    made: u64,
    prefix: String,
}

#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    value: String,
    created: i64,
    version: i64,
}

impl Backup {
    /// The backup as it is stored.
    pub(crate) fn written(&self) -> Vec<u8> {
        let head = Head { berth_backup: VERSION, of: self.kind.clone(), made: self.made, prefix: self.prefix.clone() };
        let mut text = serde_json::to_string(&head).unwrap_or_default() + "\n";
        for key in &self.keys {
            let (created, version) = (key.created, key.version);
            let line = Line { key: key.path.clone(), value: STANDARD.encode(&key.value), created, version };
            text += &serde_json::to_string(&line).unwrap_or_default();
            text.push('\n');
        }
        let checksum = hex(&Sha256::digest(&text));
        text.extend([CHECKSUM, &checksum, "\n"]);
        text.into_bytes()
    }

    /// Reads what [`Backup::written`] wrote.
    ///
    /// # Errors
    ///
    /// Fails if it is none, or not whole.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, BackupError> {
        let text = std::str::from_utf8(bytes).map_err(|_| BackupError::Foreign)?;
        let first = text.lines().next().unwrap_or_default();
        let head: Head = serde_json::from_str(first).map_err(|_| BackupError::Foreign)?;
        if head.berth_backup > VERSION {
            return Err(BackupError::Newer(head.berth_backup));
        }
        let body = text.strip_suffix('\n').ok_or(BackupError::Damaged)?;
        let end = body.rfind('\n').map(|at| at + 1).ok_or(BackupError::Damaged)?;
        let checksum = body[end..].strip_prefix(CHECKSUM).ok_or(BackupError::Damaged)?;
        if hex(&Sha256::digest(&text[..end])) != checksum {
            return Err(BackupError::Damaged);
        }
        let read = |line: &str| {
            let Line { key, value, created, version } = serde_json::from_str(line).ok()?;
            Some(BackedUpKey { path: key, value: STANDARD.decode(value).ok()?, created, version })
        };
        let keys = text[..end].lines().skip(1).map(read).collect::<Option<_>>().ok_or(BackupError::Damaged)?;
        Ok(Self { kind: head.of, made: head.made, prefix: head.prefix, keys })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup() -> Backup {
        let key =
            |path: &str, value: &[u8]| BackedUpKey { path: path.into(), value: value.into(), created: 7, version: 2 };
        Backup {
            kind: Kind::Etcd,
            made: 1,
            prefix: "/berth/v1/".into(),
            keys: vec![key("ledger/key", b"{}"), key("documents/a\n", &[0, 255])],
        }
    }

    #[test]
    fn a_backup_is_read_as_it_was_written() {
        assert_eq!(Backup::read(&backup().written()), Ok(backup()));
        let empty = Backup { keys: Vec::new(), kind: Kind::File, ..backup() };
        assert_eq!(Backup::read(&empty.written()), Ok(empty));
    }

    #[test]
    fn no_part_of_a_backup_and_no_changed_one_is_read() {
        let whole = backup().written();
        for length in 0..whole.len() {
            assert!(Backup::read(&whole[..length]).is_err(), "{length}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert!(Backup::read(&changed).is_err(), "{at}");
        }
        let newer = String::from_utf8(whole).unwrap().replace(r#""berth_backup":1"#, r#""berth_backup":9"#);
        assert_eq!(Backup::read(newer.as_bytes()), Err(BackupError::Newer(9)));
        assert_eq!(Backup::read(b"version: '2'\n"), Err(BackupError::Foreign));
    }
}
