//! What etcd says of the network between hosts: its configuration, and which host has which subnet.
//!
//! A snapshot holds these values as they are; what they mean, and what is wrong with them, is for the crate `network`.

use crate::entity::Entity;
use crate::fingerprint::Fingerprint;
use crate::value::{Map, Text};

/// The key of the network's configuration, behind the prefix.
pub const NETWORK_CONFIG: &str = "config/network";

/// The key by which operators say that a loss of claims is meant, behind the prefix.
pub const NETWORK_ACCEPT: &str = "config/network.accept";

/// What the keys of claims begin with, behind the prefix.
pub const CLAIMS: &str = "claims/";

/// What the keys begin with that say whose a subnet is, such as `claims/subnet/10.42.7.0-24`.
pub const CLAIMED_SUBNETS: &str = "claims/subnet/";

/// What the keys begin with in which each host says through which address it is reached, such as `claims/host/win-1`.
pub const CLAIMING_HOSTS: &str = "claims/host/";

/// The name of the containers' network, with the engine, in responses and in a cluster file.
pub const CONTAINERS_NETWORK: &str = "berth";

/// The label of a host with the subnet of its containers, as the predecessor called it.
pub const SUBNET_LABEL: &str = "io.rancher.network.per_host_subnet.subnet";

/// The label of a host with the address through which its subnet is reached, as the predecessor called it.
pub const ROUTER_LABEL: &str = "io.rancher.network.per_host_subnet.router_ip";

/// A key of the network with its value.
#[derive(Clone, Debug)]
pub struct NetworkKey {
    key: Text,
    value: Map,
    fingerprint: Fingerprint,
}

impl NetworkKey {
    /// This key with this value.
    pub fn new(key: Text, value: Map) -> Self {
        let fingerprint = Fingerprint::of(&(Self::KIND, &key, &value));
        Self { key, value, fingerprint }
    }

    /// Whether a key, behind the prefix, is one of the network.
    pub fn is_key(key: &str) -> bool {
        key == NETWORK_CONFIG || key == NETWORK_ACCEPT || key.starts_with(CLAIMS)
    }
}

impl Entity for NetworkKey {
    const KIND: &'static str = "networkKey";

    fn id(&self) -> &Text {
        &self.key
    }

    fn fields(&self) -> &Map {
        &self.value
    }

    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    fn name(&self) -> Option<&Text> {
        None
    }
}

/// Equal content; compares fingerprints.
impl PartialEq for NetworkKey {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}
