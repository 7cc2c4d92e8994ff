//! Who has which name: what the next zone needs to know to be built at the cost of what changed.

use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use model::{Defect, Text};

use super::few::Few;
use super::{Links, Persistent};
use crate::name::Folded;

/// Ids in order, each once.
pub(super) type Ids = Few<Text>;

/// Who has which name.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    /// Whether any service is Kubernetes', whose containers have their names below it.
    pub(super) has_kubernetes: bool,
    /// Whether any service has links: otherwise nothing is found by [`Self::paths`].
    pub(super) has_links: bool,
    /// Ids of services by `stack/service` in lower case.
    pub(super) paths: Persistent<String, Text>,
    /// Ids of the services that a container belongs to, by its uuid.
    pub(super) member_of: Persistent<Text, Ids>,
    /// Uuids of the running containers of a name.
    pub(super) named: Persistent<Folded, Ids>,
    /// Uuids of the containers of an address.
    pub(super) addressed: Persistent<IpAddr, Ids>,
    /// Uuids of the containers that share the network of one, by its uuid.
    pub(super) sharers: Persistent<Text, Ids>,
    /// Ids of the services that are aliases of one, by its id.
    pub(super) aliases: Persistent<Text, Ids>,
    /// Ids of the services that names belong to; empty for our own names. No container gets them.
    pub(super) owners: Persistent<Folded, Text>,
    /// Links of services, by their id.
    pub(super) links: Persistent<Text, Arc<Links>>,
    /// What is wrong, by whom.
    pub(super) defects: Persistent<Subject, Arc<[Defect]>>,
}

/// Whose defects they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Subject {
    /// A service, by its id.
    Service(Text),
    /// The links of a service, by its id.
    Links(Text),
    /// A container, by its uuid.
    Container(Text),
    /// What a container sees, by its address.
    Scope(IpAddr),
}

/// The ids of a key.
pub(super) fn ids<'m, K: Hash + Eq + Clone>(map: &'m Persistent<K, Ids>, key: &K) -> &'m [Text] {
    map.get(key).map_or(&[], |ids| &**ids)
}

/// Adds an id to those of a key.
pub(super) fn add<K: Hash + Eq + Clone>(map: &mut Persistent<K, Ids>, key: &K, id: &Text) {
    let known = map.entry(key, || key.clone());
    if let Err(at) = known.binary_search(id) {
        known.insert(at, id.clone());
    }
}

/// Takes an id from those of a key.
pub(super) fn take<K: Hash + Eq + Clone>(map: &mut Persistent<K, Ids>, key: &K, id: &Text) {
    let known = ids(map, key);
    if let Ok(at) = known.binary_search(id) {
        if known.len() == 1 {
            map.remove(key);
        } else {
            let without = known[..at].iter().chain(&known[at + 1..]).cloned().collect();
            map.insert(key.clone(), without);
        }
    }
}
