//! Records of a ledger in etcd without a seal that fits: what a release without seals wrote, and what an operator
//! vouches for.

use std::path::Path;
use std::time::Duration;

use etcd::{Compare, EtcdClient, Op, Txn};
use model::Text;

use crate::ledger::etcd::key_file::{KeyError, agree};
use crate::ledger::etcd::keys::{EtcdRecord, Key, Keys};
use crate::ledger::etcd::seal::{Put, Seal, SealError};
use crate::ledger::record::Record;

/// A record that no scheduler believes.
#[derive(Debug)]
pub(crate) struct UnsealedRecord {
    pub(crate) id: Text,
    /// Why it is not believed.
    pub(crate) why: SealError,
    /// What it says; an error when it cannot be read at all.
    pub(crate) record: Result<(Text, Record), String>,
    put: Put,
    pub(crate) revision: i64,
    value: Vec<u8>,
}

/// The records of the ledger whose seals do not fit, of these ids or, if there are none, those without any seal.
///
/// # Errors
///
/// Fails if etcd cannot be reached, or the ledger has another key than the file.
pub(crate) async fn unsealed(
    client: &EtcdClient,
    key_file: &Path,
    ids: &[Text],
) -> Result<Vec<UnsealedRecord>, KeyError> {
    let keys = Keys::new(&client.options().prefix);
    let seal = match client.get(keys.of(&Key::Seal).as_bytes()).await?.0 {
        Some(_) => Some(agree(client, &keys, key_file, true).await?.seal(&keys)),
        // Nothing can be sealed yet.
        None => None,
    };
    let listing = client.list(keys.placements().as_bytes(), false).await?;
    let found = listing.pairs.into_iter().filter_map(|pair| {
        let Some(Key::Placement(id)) = keys.parse(&pair.key) else { return None };
        let put = Put { created: pair.create_revision, version: pair.version };
        let why = match &seal {
            Some(seal) => seal.verified(&id, put, &pair.value).err()?,
            None => SealError::Absent,
        };
        let is_meant = if ids.is_empty() { why == SealError::Absent } else { ids.contains(&id) };
        let read = EtcdRecord::read(&id, &pair.value);
        let record = read.and_then(|read| Ok((read.owner, read.stored.record(Duration::MAX)?)));
        is_meant.then_some(UnsealedRecord { id, why, record, put, revision: pair.mod_revision, value: pair.value })
    });
    Ok(found.collect())
}

/// Seals a record; returns whether it was still as it was listed.
///
/// # Errors
///
/// Fails if etcd cannot be reached.
pub(crate) async fn adopt(client: &EtcdClient, seal: &Seal, record: &UnsealedRecord) -> Result<bool, KeyError> {
    let key = Keys::new(&client.options().prefix).of(&Key::Placement(record.id.clone())).into_bytes();
    let Ok(read) = EtcdRecord::read(&record.id, &record.value) else { return Ok(false) };
    let value = seal.applied(&record.id, record.put.next(), read.written());
    let compare = vec![Compare::unchanged(key.clone(), record.revision)];
    let success = vec![Op::Put { key, value, lease: 0 }];
    Ok(client.txn(Txn { compare, success, failure: Vec::new() }).await?.succeeded)
}

/// The seal of the ledger, whose key is made if it has none.
///
/// # Errors
///
/// Fails if the ledger has another key than the file.
pub(crate) async fn seal_of(client: &EtcdClient, key_file: &Path) -> Result<Seal, KeyError> {
    let keys = Keys::new(&client.options().prefix);
    Ok(agree(client, &keys, key_file, true).await?.seal(&keys))
}
