//! Removing what dead hosts left.
//!
//! What a host publishes goes with its lease. What stays all the same has no lease, or one that is not the living
//! host's: keys that were written by hand or restored from a backup, and those of hosts whose own key is gone.

use std::collections::{BTreeMap, BTreeSet};

use etcd::{Compare, EtcdClient, EtcdError, Op, Pair, Txn};
use model::Text;

use super::keys::{Key, PartId};

/// What was removed, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// The keys, and why, in order.
    pub keys: Vec<PrunedKey>,
    /// Hosts that are there.
    pub hosts: usize,
    /// Keys that changed while this was done; they are left alone.
    pub changed: usize,
}

/// A key without an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrunedKey {
    /// The whole key.
    pub key: String,
    /// Why it has no owner.
    pub reason: &'static str,
}

/// Removes all keys under `hosts/` that belong to no living host; with `dry_run` it only returns which.
///
/// A key is removed only while it is as it was read, so a host that publishes meanwhile loses nothing.
///
/// # Errors
///
/// Fails if etcd cannot be reached; some keys may have been removed.
pub async fn prune(client: &EtcdClient, dry_run: bool) -> Result<Pruned, EtcdError> {
    let prefix = client.options().prefix.clone();
    let listing = client.list(format!("{prefix}hosts/").as_bytes(), true).await?;
    let (dead, hosts) = dead(&prefix, &listing.pairs);
    let mut pruned = Pruned { hosts, ..Pruned::default() };
    for (pair, reason) in dead {
        let key = PrunedKey { key: String::from_utf8_lossy(&pair.key).into_owned(), reason };
        if !dry_run {
            // One by one: a key that changed is no reason to leave the others.
            let compare = vec![Compare::unchanged(pair.key.clone(), pair.mod_revision)];
            let success = vec![Op::Delete(pair.key.clone())];
            if !client.txn(Txn { compare, success, failure: Vec::new() }).await?.succeeded {
                pruned.changed += 1;
                continue;
            }
        }
        pruned.keys.push(key);
    }
    Ok(pruned)
}

/// The hosts that have a key of their own, with a lease or without.
///
/// # Errors
///
/// Fails if etcd cannot be reached.
pub async fn hosts_there(client: &EtcdClient) -> Result<BTreeSet<Text>, EtcdError> {
    let prefix = client.options().prefix.clone();
    let listing = client.list(format!("{prefix}hosts/").as_bytes(), true).await?;
    let host = |pair: &Pair| match key_of(&prefix, pair) {
        Some(Key::Host(host)) => Some(host),
        _ => None,
    };
    Ok(listing.pairs.iter().filter_map(host).collect())
}

/// The keys without an owner, each with the reason, and how many hosts there are.
///
/// A key that has a lease stays: etcd removes it with its lease. Whether that still exists is not checked: right after
/// an election a member may not know of leases that it is about to learn of.
fn dead<'p>(prefix: &str, pairs: &'p [Pair]) -> (Vec<(&'p Pair, &'static str)>, usize) {
    let key = |pair: &Pair| key_of(prefix, pair);
    let alive = |pair: &&Pair| pair.lease != 0;
    let hosts: BTreeMap<PartId, i64> = pairs
        .iter()
        .filter(alive)
        .filter_map(|pair| match key(pair)? {
            Key::Host(host) => Some((PartId::Host(host), pair.lease)),
            _ => None,
        })
        .collect();
    let reason = |pair: &Pair| match key(pair).map(|key| key.part()) {
        None => Some("no key of ours"),
        // It goes with its lease of a minute.
        Some(None) if pair.lease != 0 => None,
        Some(id) => match id.and_then(|id| hosts.get(&id)) {
            None if pair.lease == 0 => Some("without a lease, and its host is not there"),
            None => Some("its host is not there"),
            Some(lease) if *lease != pair.lease => Some("not written by its host"),
            Some(_) => None,
        },
    };
    (pairs.iter().filter_map(|pair| Some((pair, reason(pair)?))).collect(), hosts.len())
}

/// The key of ours that a pair has.
fn key_of(prefix: &str, pair: &Pair) -> Option<Key> {
    Key::parse(pair.key.strip_prefix(prefix.as_bytes())?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_no_living_host_keeps_is_dead() {
        let pairs: Vec<_> = [
            ("hosts/a/host", 1),
            ("hosts/a/containers/x", 1),
            ("hosts/a/containers/hand", 0),
            ("hosts/a/containers/old", 2),
            ("hosts/b/containers/y", 2),
            ("hosts/c/host", 0),
            ("hosts/c/containers/z", 0),
            ("hosts/a/junk", 1),
        ]
        .map(|(key, lease)| Pair { key: format!("/p/{key}").into_bytes(), lease, ..Pair::default() })
        .into();
        let (dead, hosts) = dead("/p/", &pairs);
        let dead: Vec<_> =
            dead.iter().map(|(pair, why)| (String::from_utf8_lossy(&pair.key).into_owned(), *why)).collect();
        let gone = "its host is not there";
        let by_hand = "without a lease, and its host is not there";
        let expected = [
            ("hosts/a/containers/hand", "not written by its host"),
            ("hosts/a/containers/old", "not written by its host"),
            ("hosts/b/containers/y", gone),
            ("hosts/c/host", by_hand),
            ("hosts/c/containers/z", by_hand),
            ("hosts/a/junk", "no key of ours"),
        ];
        assert_eq!(dead, expected.map(|(key, why)| (format!("/p/{key}"), why)));
        assert_eq!(hosts, 1);
    }
}
