//! The snapshot: everything a source knows about the cluster at one moment.
//!
//! A published snapshot is never changed. Its tables are persistent maps: the next snapshot shares all
//! that stayed the same, so that making it, comparing it and freeing the old one cost what changed.

use std::sync::Arc;

use crate::answers::Answers;
use crate::entity::{Container, Entity as _, Host, Network, Service, Stack};
use crate::fingerprint::Fingerprint;
use crate::network_key::NetworkKey;
use crate::table::Table;
use crate::value::{Map, Text, Value};

/// What a source knows about the cluster at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The source's own word for its revision (`defaultData.version` of the predecessor); may be empty.
    pub source_version: Text,
    /// The environment's object (`name`, `uuid`, `region_name`), when the source names one.
    pub environment: Option<Map>,
    /// The host that this snapshot was made for; a client that is no container sees it as `self/host`.
    pub local_host: Option<Arc<Host>>,
    /// Containers by uuid.
    pub containers: Table<Container>,
    /// Services by [`Service::id_of`].
    pub services: Table<Service>,
    /// Stacks by uuid.
    pub stacks: Table<Stack>,
    /// Hosts by uuid.
    pub hosts: Table<Host>,
    /// Networks by uuid.
    pub networks: Table<Network>,
    /// What etcd says of the network between hosts, by key.
    pub network_keys: Table<NetworkKey>,
    /// Whether etcd has not answered yet: this is what a state directory had, and may lack what was changed last.
    pub restored: bool,
    /// Whether so few containers are well that the verdicts about them are more likely wrong than right, and are not to be believed.
    pub is_panic: bool,
    /// Other environments, in the order in which they are shown.
    pub externals: Arc<[Arc<Self>]>,
    /// The answers to give verbatim, when the source was a file of the predecessor's answers; the
    /// tables then hold the entities found in them.
    pub answers: Option<Arc<Answers>>,
}

impl Snapshot {
    /// Stands for all that clients may be shown: equal snapshots have equal fingerprints, also after a restart. The keys of the
    /// network are not part of it.
    ///
    /// Costs the same however many entities there are: tables hold the sum of theirs.
    pub fn fingerprint(&self) -> Fingerprint {
        let local_host = self.local_host.as_ref().map(|host| host.fingerprint());
        let externals: Vec<_> = self.externals.iter().map(|external| external.fingerprint()).collect();
        let answers = self.answers.as_ref().map(|answers| answers.fingerprint());
        Fingerprint::of(&(&self.source_version, &self.environment, local_host, externals, answers))
            .plus(self.containers.fingerprint())
            .plus(self.services.fingerprint())
            .plus(self.stacks.fingerprint())
            .plus(self.hosts.fingerprint())
            .plus(self.networks.fingerprint())
    }

    /// Whether there is not one entity and nothing to answer with.
    pub fn is_empty(&self) -> bool {
        self.containers.is_empty()
            && self.services.is_empty()
            && self.stacks.is_empty()
            && self.hosts.is_empty()
            && self.networks.is_empty()
            && self.answers.is_none()
    }

    /// The uuid of the environment that is this snapshot's own, when that is known.
    pub fn environment_uuid(&self) -> Option<&Text> {
        let local = self.local_host.as_ref().and_then(|host| host.environment_uuid());
        local.or_else(|| self.environment.as_ref()?.text("uuid"))
    }

    /// The same content, sharing with `previous` all that did not change.
    #[must_use]
    pub fn succeeding(self, previous: &Self) -> Self {
        Self {
            containers: self.containers.succeeding(&previous.containers),
            services: self.services.succeeding(&previous.services),
            stacks: self.stacks.succeeding(&previous.stacks),
            hosts: self.hosts.succeeding(&previous.hosts),
            networks: self.networks.succeeding(&previous.networks),
            network_keys: self.network_keys.succeeding(&previous.network_keys),
            ..self
        }
    }
}

/// Equal content; compares fingerprints.
impl PartialEq for Snapshot {
    fn eq(&self, other: &Self) -> bool {
        let network = self.network_keys.fingerprint() == other.network_keys.fingerprint();
        network
            && (self.restored, self.is_panic) == (other.restored, other.is_panic)
            && self.fingerprint() == other.fingerprint()
    }
}

/// An object of the wire with this kind and these fields.
pub(crate) fn object(kind: &str, fields: impl IntoIterator<Item = (&'static str, Value)>) -> Map {
    let kind = ("metadata_kind", Value::text(kind));
    fields.into_iter().chain([kind]).map(|(key, value)| (Text::from(key), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Change, changes};

    fn containers(specs: &[(&str, &str)]) -> Snapshot {
        let objects = specs
            .iter()
            .map(|(uuid, state)| object("container", [("uuid", Value::text(*uuid)), ("state", Value::text(*state))]));
        crate::objects::read(objects).0
    }

    #[test]
    fn order_of_reading_does_not_matter() {
        assert_eq!(
            containers(&[("a", "running"), ("b", "stopped")]).fingerprint(),
            containers(&[("b", "stopped"), ("a", "running")]).fingerprint()
        );
        assert_ne!(containers(&[("a", "running")]), containers(&[("a", "stopped")]));
    }

    #[test]
    fn a_key_of_the_network_is_news_but_nothing_that_clients_are_shown() {
        let (before, mut after) = (containers(&[("a", "running")]), containers(&[("a", "running")]));
        after.network_keys.insert(NetworkKey::new("claims/host/a".into(), Map::default()).into());
        assert_ne!(before, after);
        assert_eq!(before.fingerprint(), after.fingerprint());
    }

    #[test]
    fn a_successor_shares_what_stayed() {
        let old = containers(&[("a", "running"), ("b", "running")]);
        let new = containers(&[("a", "running"), ("b", "stopped"), ("c", "running")]).succeeding(&old);
        assert!(Arc::ptr_eq(&old.containers["a"], &new.containers["a"]));
        let seen: Vec<_> = changes(&old.containers, &new.containers)
            .map(|change| match change {
                Change::Added(entity) => format!("+{}", entity.uuid()),
                Change::Changed { new, .. } => format!("~{}", new.uuid()),
                Change::Removed(entity) => format!("-{}", entity.uuid()),
            })
            .collect();
        assert_eq!(seen, ["~b", "+c"]);
        let back = containers(&[("a", "running")]).succeeding(&new);
        assert_eq!(changes(&new.containers, &back.containers).count(), 2);
    }
}
