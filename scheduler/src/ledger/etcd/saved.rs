//! The keys of an etcd in a backup, and back: what operators and schedulers have written, not what hosts publish.
//!
//! Records of placements are sealed for one put of their key, so each is verified as of the put that it was, and sealed
//! again for the put that restores it. One that was being started counts from its second put on; it gets two.

use etcd::{Compare, EtcdClient, EtcdError, LEDGER, Op, Pair, Txn};
use model::Text;

use crate::backup::{BackedUpKey, Backup, Kind};
use crate::ledger::etcd::keys::{Key, Keys};
use crate::ledger::etcd::seal::{LedgerKey, Put, Seal};

/// What is backed up, behind the prefix. Hosts publish `hosts/`, `votes/` and `health/` again by themselves, and fences
/// begin again where they are not there. Schedulers put `evicted/` again, as their records say.
const SAVED: [&str; 5] = ["claims/", "config/", "documents/", "intents/", LEDGER];

/// What of these is not: it means something only while the schedulers live that wrote it.
const PASSING: [&str; 3] = ["ledger/schedulers/", "ledger/hosts/", "ledger/freed"];

/// What became of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restored {
    /// The keys that were put, or would be.
    pub(crate) keys: usize,
    /// Placements whose seal does not fit: they are not restored.
    pub(crate) unsealed: Vec<Text>,
}

/// Why nothing more was restored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    #[error("cannot reach etcd ({0})")]
    Etcd(#[from] EtcdError),
    #[error("schedulers use this etcd ({0}): stop them first, since each of them would write what it knows over it")]
    InUse(String),
    #[error(
        "etcd is not empty: it has {0} keys below {1}; with --overwrite those that are in the backup get its values"
    )]
    NotEmpty(usize, String),
    #[error("the ledger in the backup is sealed with another key than the one in the file")]
    OtherKey,
    #[error("{0} changed while it was restored: nothing after it was")]
    Changed(String),
}

/// The backup of an etcd, all of it as of one revision for each part.
///
/// # Errors
///
/// Fails if etcd cannot be reached.
pub(crate) async fn save(client: &EtcdClient, made: u64) -> Result<Backup, EtcdError> {
    let prefix = client.options().prefix.to_string();
    let saved = saved(client).await?.into_iter();
    let keys = saved.map(|(path, pair)| BackedUpKey {
        path,
        value: pair.value,
        created: pair.create_revision,
        version: pair.version,
    });
    Ok(Backup { kind: Kind::Etcd, made, keys: keys.collect(), prefix })
}

/// Puts the keys of a backup; `dry_run` only says which. With `overwrite` also where there are keys already.
///
/// # Errors
///
/// Fails if etcd cannot be reached, is used by schedulers, is not empty, or if the backup is of another ledger. What
/// was put stays.
pub(crate) async fn restore(
    client: &EtcdClient,
    backup: &Backup,
    key: Option<&LedgerKey>,
    (dry_run, overwrite): (bool, bool),
) -> Result<Restored, RestoreError> {
    let prefix = client.options().prefix.to_string();
    let (old_keys, keys) = (Keys::new(&backup.prefix), Keys::new(&prefix));
    let is_of_key = |one: &BackedUpKey| {
        let stored = crate::ledger::etcd::keys::KeyFingerprint::read(&one.value);
        key.is_some_and(|key| key.fingerprint() == stored)
    };
    let seal_path = keys.of(&Key::Seal).split_off(prefix.len());
    if backup.keys.iter().any(|one| one.path == seal_path && !is_of_key(one)) {
        return Err(RestoreError::OtherKey);
    }
    let schedulers = client.list(format!("{prefix}ledger/schedulers/").as_bytes(), true).await?.pairs;
    if let Some(first) = schedulers.first() {
        return Err(RestoreError::InUse(String::from_utf8_lossy(&first.key).into_owned()));
    }
    let there = saved(client).await?;
    if !there.is_empty() && !overwrite {
        return Err(RestoreError::NotEmpty(there.len(), prefix));
    }
    let seals = key.map(|key| (key.seal(&old_keys), key.seal(&keys)));
    let mut restored = Restored::default();
    for one in &backup.keys {
        let known = there.iter().find(|(path, _)| *path == one.path).map(|(_, pair)| pair);
        let whole = format!("{prefix}{}", one.path);
        let Some(Key::Placement(id)) = keys.parse(whole.as_bytes()) else {
            if !dry_run {
                put(client, &whole, known, one.value.clone()).await?;
            }
            restored.keys += 1;
            continue;
        };
        let put_before = Put { created: one.created, version: one.version };
        let record = seals.as_ref().and_then(|(old, new)| {
            old.verified(&id, put_before, &one.value).ok().map(|record| ([record, b"}"].concat(), new))
        });
        match record {
            None => restored.unsealed.push(id),
            Some(_) if dry_run => restored.keys += 1,
            Some((record, seal)) => {
                restore_record(client, (&whole, &id), known, (record, seal)).await?;
                restored.keys += 1;
            }
        }
    }
    Ok(restored)
}

async fn restore_record(
    client: &EtcdClient,
    (whole, id): (&str, &Text),
    known: Option<&Pair>,
    (record, seal): (Vec<u8>, &Seal),
) -> Result<(), RestoreError> {
    let first = if let Some(pair) = known {
        pair.clone()
    } else {
        let revision = put(client, whole, None, seal.applied(id, Put::FIRST, record.clone())).await?;
        Pair { create_revision: revision, mod_revision: revision, version: 1, ..Pair::default() }
    };
    let second = Put { created: first.create_revision, version: first.version }.next();
    put(client, whole, Some(&first), seal.applied(id, second, record)).await?;
    Ok(())
}

/// Puts a key that is still as it was known; returns the revision.
async fn put(client: &EtcdClient, whole: &str, known: Option<&Pair>, value: Vec<u8>) -> Result<i64, RestoreError> {
    let key = whole.as_bytes().to_vec();
    let compare = match known {
        None => Compare::absent(key.clone()),
        Some(pair) => Compare::unchanged(key.clone(), pair.mod_revision),
    };
    let success = vec![Op::Put { key, value, lease: 0 }];
    let outcome = client.txn(Txn { compare: vec![compare], success, failure: Vec::new() }).await?;
    if !outcome.succeeded {
        return Err(RestoreError::Changed(whole.to_owned()));
    }
    Ok(outcome.revision)
}

/// The keys that a backup has, by the part behind the prefix.
async fn saved(client: &EtcdClient) -> Result<Vec<(String, Pair)>, EtcdError> {
    let prefix = client.options().prefix.to_string();
    let mut found = Vec::new();
    for part in SAVED {
        for pair in client.list(format!("{prefix}{part}").as_bytes(), false).await?.pairs {
            let Ok(whole) = std::str::from_utf8(&pair.key) else { continue };
            let Some(path) = whole.strip_prefix(&*prefix).map(str::to_owned) else { continue };
            if pair.lease == 0 && !PASSING.iter().any(|passing| path.starts_with(passing)) {
                found.push((path, pair));
            }
        }
    }
    Ok(found)
}
