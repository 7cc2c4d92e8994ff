//! Who belongs to whom: what the next zone needs to know to be built at the cost of what changed.

use std::hash::Hash;

use model::Text;

use super::Persistent;
use super::entry::Linking;
use super::members::Ids;

/// Who belongs to whom.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    /// Whether any service is Kubernetes', whose containers have their names below it.
    pub(super) has_kubernetes: bool,
    /// Whether any service has links: otherwise nothing is found by [`Self::paths`].
    pub(super) has_links: bool,
    /// Ids of services by `stack/service` in lower case.
    pub(super) paths: Persistent<String, Text>,
    /// Uuids of the containers that share the network of one, by its uuid.
    pub(super) sharers: Persistent<Text, Ids>,
    /// Ids of the services that are aliases of one, by its id.
    pub(super) aliases: Persistent<Text, Ids>,
    /// Services with links, by their id.
    pub(super) links: Persistent<Text, Linking>,
}

/// The ids of a key.
pub(super) fn ids<'m, K: Hash + Eq + Clone>(map: &'m Persistent<K, Ids>, key: &K) -> &'m [Text] {
    map.get(key).map_or(&[], |ids| &**ids)
}

/// Adds an id to those of a key.
pub(super) fn add<K: Hash + Eq + Clone>(map: &mut Persistent<K, Ids>, key: &K, id: &Text) {
    map.entry(key, || key.clone()).add(id);
}

/// Takes an id from those of a key.
pub(super) fn take<K: Hash + Eq + Clone>(map: &mut Persistent<K, Ids>, key: &K, id: &Text) {
    if map.contains_key(key) {
        let known = map.entry(key, || key.clone());
        known.take(id);
        if known.is_empty() {
            map.remove(key);
        }
    }
}
