//! What etcd has of a cluster, as it is put into a backup and taken out of it again.
//!
//! A backup has the keys that nobody writes again by itself: those without a lease, but for what hosts say of themselves. A
//! placement counts in etcd for one put only, so its seal is verified and left out when the backup is made, and it is sealed
//! again when it is restored.

use std::path::Path;

use etcd::{Compare, EtcdClient, OPS_MAX, Op, Pair, Txn};
use model::Text;

use crate::ledger::backup::{Backup, BackupError, Line};
use crate::ledger::etcd::key_file::{KeyError, agree};
use crate::ledger::etcd::keys::{EtcdRecord, Key, Keys};
use crate::ledger::etcd::seal::{LedgerKey, Put, Seal};

/// What hosts say of themselves: their agents write it again.
const HOSTS: &str = "hosts/";

/// What etcd has.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) lines: Vec<Line>,
    /// Keys that are left out, each with the reason.
    pub(crate) left_out: Vec<(String, String)>,
    pub(crate) revision: i64,
    /// The key of the ledger, if there is one.
    pub(crate) key: Option<LedgerKey>,
}

/// Why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    /// About the ledger's key, or etcd.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The file.
    #[error(transparent)]
    File(#[from] BackupError),
    /// A placement in it.
    #[error("the placement {0} in it cannot be read: {1}")]
    Record(Text, String),
}

impl From<etcd::EtcdError> for RestoreError {
    fn from(error: etcd::EtcdError) -> Self {
        Self::Key(error.into())
    }
}

/// What etcd has, as of one revision. `key_file` is read only if there is a ledger.
///
/// # Errors
///
/// Fails if etcd cannot be read, or the ledger has another key than the file.
pub(crate) async fn collect(client: &EtcdClient, key_file: &Path) -> Result<Collected, KeyError> {
    let prefix = client.options().prefix.clone();
    let keys = Keys::new(&prefix);
    let listing = client.list(prefix.as_bytes(), false).await?;
    let has_ledger = listing.pairs.iter().any(|pair| keys.parse(&pair.key) == Some(Key::Seal));
    let key = if has_ledger { Some(agree(client, &keys, key_file, false).await?) } else { None };
    let seal = key.as_ref().map(|key| key.seal(&keys));
    let (mut lines, mut left_out) = (Vec::new(), Vec::new());
    for pair in listing.pairs.into_iter().filter(|pair| is_kept(&prefix, pair)) {
        let name = String::from_utf8_lossy(&pair.key[prefix.len()..]).into_owned();
        match value_of(&keys, seal.as_ref(), pair) {
            Ok(value) => lines.push(Line { key: name, value }),
            Err(why) => left_out.push((name, why)),
        }
    }
    Ok(Collected { lines, left_out, revision: listing.at.revision, key })
}

/// Whether nobody writes a key again by itself.
fn is_kept(prefix: &str, pair: &Pair) -> bool {
    pair.lease == 0 && !pair.key[prefix.len()..].starts_with(HOSTS.as_bytes())
}

/// The value of a key as a backup has it.
fn value_of(keys: &Keys, seal: Option<&Seal>, pair: Pair) -> Result<String, String> {
    std::str::from_utf8(&pair.key).map_err(|_| "its key is no text".to_owned())?;
    let value = match keys.parse(&pair.key) {
        Some(Key::Placement(id)) => {
            let put = Put { created: pair.create_revision, version: pair.version };
            let seal = seal.ok_or("the ledger has no key")?;
            seal.verified(&id, put, &pair.value).map_err(|why| why.to_string())?;
            EtcdRecord::read(&id, &pair.value)?.written()
        }
        _ => pair.value,
    };
    String::from_utf8(value).map_err(|_| "its value is no text".to_owned())
}

/// What is in the way of restoring a backup.
#[derive(Debug, Default)]
pub(crate) struct Present {
    /// Schedulers that run.
    pub(crate) schedulers: Vec<Text>,
    /// Keys that a backup would have, behind the prefix.
    pub(crate) keys: Vec<String>,
}

/// What is there now.
///
/// # Errors
///
/// Fails if etcd cannot be read.
pub(crate) async fn present(client: &EtcdClient) -> Result<Present, KeyError> {
    let prefix = client.options().prefix.clone();
    let keys = Keys::new(&prefix);
    let mut present = Present::default();
    for pair in client.list(prefix.as_bytes(), true).await?.pairs {
        match keys.parse(&pair.key) {
            Some(Key::Scheduler(id)) => present.schedulers.push(id),
            _ if is_kept(&prefix, &pair) => {
                present.keys.push(String::from_utf8_lossy(&pair.key[prefix.len()..]).into_owned());
            }
            _ => {}
        }
    }
    Ok(present)
}

/// The key of the ledger in a backup, as the file has it, which has to have written this backup; `None` if it has no ledger.
///
/// # Errors
///
/// Fails if etcd's ledger or the backup has another key, or the backup was changed.
pub(crate) async fn key_of(
    client: &EtcdClient,
    key_file: &Path,
    backup: &Backup,
) -> Result<Option<LedgerKey>, RestoreError> {
    let Some(ledger) = &backup.head.ledger else { return Ok(None) };
    let key = crate::ledger::etcd::key_file::expected(key_file, ledger).await?;
    backup.verify(&key)?;
    // One that is there already has to be the same.
    let keys = Keys::new(&client.options().prefix);
    if client.get(keys.of(&Key::Seal).as_bytes()).await?.0.is_some() {
        agree(client, &keys, key_file, false).await?;
    }
    Ok(Some(key))
}

/// Puts what is not there; returns how many keys were put, and those that were there already.
///
/// # Errors
///
/// Fails if etcd cannot be reached: what was put until then stays, and the same command goes on.
pub(crate) async fn restore(
    client: &EtcdClient,
    key: Option<&LedgerKey>,
    backup: &Backup,
) -> Result<(usize, Vec<String>), RestoreError> {
    let prefix = client.options().prefix.clone();
    let keys = Keys::new(&prefix);
    let seal = key.map(|key| key.seal(&keys));
    let mut puts = Vec::with_capacity(backup.lines.len());
    for line in &backup.lines {
        let key = format!("{prefix}{}", line.key).into_bytes();
        let value = match (keys.parse(&key), &seal) {
            (Some(Key::Placement(id)), Some(seal)) => {
                let record = EtcdRecord::read(&id, line.value.as_bytes());
                let record = record.map_err(|why| RestoreError::Record(id.clone(), why))?;
                seal.applied(&id, Put::FIRST, record.written())
            }
            _ => line.value.clone().into_bytes(),
        };
        puts.push((&line.key, key, value));
    }
    // The names and ports of placements before these: nobody else may take them.
    puts.sort_by_key(|(_, key, _)| matches!(keys.parse(key), Some(Key::Placement(_))));
    let (mut count, mut there) = (0, Vec::new());
    for batch in puts.chunks(OPS_MAX) {
        if put_absent(client, batch.iter().map(|(_, key, value)| (key, value))).await? {
            count += batch.len();
            continue;
        }
        for (name, key, value) in batch {
            if put_absent(client, std::iter::once((key, value))).await? {
                count += 1;
            } else {
                there.push((*name).clone());
            }
        }
    }
    Ok((count, there))
}

/// Puts these keys if none of them is there.
async fn put_absent<'p>(
    client: &EtcdClient,
    pairs: impl Iterator<Item = (&'p Vec<u8>, &'p Vec<u8>)> + Clone,
) -> Result<bool, etcd::EtcdError> {
    let compare = pairs.clone().map(|(key, _)| Compare::absent(key.clone())).collect();
    let success = pairs.map(|(key, value)| Op::Put { key: key.clone(), value: value.clone(), lease: 0 }).collect();
    Ok(client.txn(Txn { compare, success, failure: Vec::new() }).await?.succeeded)
}
