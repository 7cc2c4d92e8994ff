//! What the fuzzer of etcd's keys calls (`fuzz/src/etcd.rs`); no part of the service.

use std::time::Duration;

use etcd::{LEASE, PREFIX, Pair};
use model::{Map, Snapshot, Text};

use super::mirror::KeyMirror;
use crate::merge::Cluster;

/// What a host sees that has this document of its own and follows an etcd where these paths get these values, one after the other.
pub fn followed<'b>(own: &Map, puts: impl IntoIterator<Item = (&'b [u8], &'b [u8])>) -> Snapshot {
    let own_part = Text::from("hosts/own");
    let (mut mirror, mut cluster) = (KeyMirror::new(PREFIX.into(), LEASE), Cluster::default());
    cluster.set_local(&own_part);
    let _ = cluster.update(&own_part, own);
    for (revision, (path, value)) in (1..).zip(puts) {
        let key = [PREFIX.as_bytes(), path].concat();
        let (create_revision, mod_revision) = (revision, revision);
        let pair = Pair { key, value: value.to_vec(), create_revision, mod_revision, version: 1, lease: 0 };
        mirror.put(&pair, Duration::ZERO, None);
        for change in mirror.take().into_iter().filter(|change| change.part != own_part) {
            match &change.document {
                Some(document) => drop(cluster.update(&change.part, document)),
                None => cluster.forget(&change.part),
            }
        }
    }
    cluster.snapshot()
}
