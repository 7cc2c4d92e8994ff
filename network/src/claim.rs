//! Claims: which host has which subnet, as two keys in etcd without a lease.
//!
//! `claims/subnet/10.42.7.0-24` says whose it is and can exist once, so two hosts never hold one subnet.
//! `claims/host/HOST` is written by that host and says through which address it is reached. Where they disagree, the
//! subnet's key decides, and the host's key is ignored. Without etcd, a cluster file says the same in labels of its hosts.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use etcd::segment;
use foldhash::HashMap;
use ipnet::Ipv4Net;
use model::network_key::{
    CLAIMED_SUBNETS, CLAIMING_HOSTS, CONTAINERS_NETWORK, NETWORK_ACCEPT, NETWORK_CONFIG, ROUTER_LABEL, SUBNET_LABEL,
};
use model::{Change, Entity as _, Host, Map, NetworkKey, Snapshot, Table, Text, changes};

use crate::config::{Config, network};

/// Name of the containers' network, with the engine and in a cluster file.
pub const NETWORK: &str = CONTAINERS_NETWORK;

/// The label by which the predecessor's hosts on Linux replaced the address of the router.
const OVERRIDE_LABEL: &str = "io.rancher.network.per_host_subnet.override_agent_ip";

/// The key of a subnet, behind the prefix.
pub fn subnet_key(subnet: Ipv4Net) -> String {
    format!("{CLAIMED_SUBNETS}{}-{}", subnet.network(), subnet.prefix_len())
}

/// The key of a host, behind the prefix.
pub fn host_key(host: &str) -> String {
    let mut key = CLAIMING_HOSTS.to_owned();
    segment::escape(host, segment::ESCAPED, &mut key);
    key
}

/// The subnet that a key behind the prefix is about.
pub fn subnet_of(key: &str) -> Option<Ipv4Net> {
    let (address, length) = key.strip_prefix(CLAIMED_SUBNETS)?.rsplit_once('-')?;
    let subnet = network(&format!("{address}/{length}")).ok()?;
    // One form only, so that no two keys mean the same subnet.
    (subnet_key(subnet) == key).then_some(subnet)
}

/// Whose a subnet is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A host has it.
    Host(Text),
    /// It was given back, and is not given again until then, in seconds after the beginning of 1970.
    Freed {
        /// Whose it was.
        host: Text,
        /// When it may be given again.
        until: i64,
    },
}

impl Owner {
    /// The owner in `{"host": "win-1", ...}` or `{"freed": true, "host": "win-1", "until": 1764000000}`.
    ///
    /// # Errors
    ///
    /// Says what is wrong with it.
    pub fn parse(value: &Map) -> Result<Self, String> {
        let host =
            value.text("host").filter(|host| !host.is_empty()).ok_or("host: expected the name of a host")?.clone();
        match value.get("freed").map(model::Value::as_bool) {
            None | Some(Some(false)) => Ok(Self::Host(host)),
            Some(Some(true)) => {
                let until = value.int("until").ok_or("until: expected seconds after the beginning of 1970")?;
                Ok(Self::Freed { host, until })
            }
            Some(None) => Err("freed: expected true or false".to_owned()),
        }
    }
}

/// What a host says of its subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostClaim {
    /// The subnet that it uses.
    pub subnet: Ipv4Net,
    /// The address through which the others reach it.
    pub via: Option<Ipv4Addr>,
}

impl HostClaim {
    /// The claim in `{"subnet": "10.42.7.0/24", "via": "192.0.2.10", ...}`.
    ///
    /// # Errors
    ///
    /// Says what is wrong with it.
    pub fn parse(value: &Map) -> Result<Self, String> {
        let subnet = value.text("subnet").ok_or("subnet: expected a text such as 10.42.7.0/24")?;
        let subnet = network(subnet).map_err(|wrong| format!("subnet: {wrong}"))?;
        let via = value.text("via").map(|text| text.parse().map_err(|_| format!("via: {text:?} is no IPv4 address")));
        Ok(Self { subnet, via: via.transpose()? })
    }
}

/// A subnet and through whom it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The host whose subnet it is.
    pub host: Text,
    /// Its subnet.
    pub subnet: Ipv4Net,
    /// Through which address it is reached.
    pub via: Via,
}

/// Through which address a host is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// This one.
    Address(Ipv4Addr),
    /// The host has not said.
    Unknown,
    /// What the host says does not fit to the subnet's key, so it is ignored; with the reason.
    Disputed(String),
}

/// All claims of a cluster, as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// The configuration, or what is wrong with it.
    pub config: Option<Result<Config, String>>,
    /// Whose each subnet is.
    pub subnets: BTreeMap<Ipv4Net, Owner>,
    /// What each host says.
    pub hosts: HashMap<Text, Result<HostClaim, String>>,
    /// Subnets that several hosts have, which only a file can say.
    pub shared: BTreeMap<Ipv4Net, Vec<Text>>,
    /// Until when a loss of claims is meant, in seconds after the beginning of 1970.
    pub accepted_until: Option<i64>,
    /// Keys that are no claims, each with the reason.
    pub defects: BTreeMap<Text, String>,
}

impl Claims {
    /// The claims in keys behind the prefix; other keys are passed over.
    pub fn of<'k>(pairs: impl IntoIterator<Item = (&'k str, &'k Map)>) -> Self {
        let mut claims = Self::default();
        for (key, value) in pairs {
            claims.set(key, value);
        }
        claims
    }

    /// Takes in one key and its value. No two keys mean the same subnet or host, so each key stands for itself.
    fn set(&mut self, key: &str, value: &Map) {
        let mut defect = |problem: String| drop(self.defects.insert(key.into(), problem));
        if key == NETWORK_CONFIG {
            self.config = Some(Config::parse(value));
        } else if key == NETWORK_ACCEPT {
            self.accepted_until = value.int("until");
        } else if key.starts_with(CLAIMED_SUBNETS) {
            match (subnet_of(key), Owner::parse(value)) {
                (None, _) => defect("no subnet such as claims/subnet/10.42.7.0-24".to_owned()),
                (_, Err(wrong)) => defect(wrong),
                (Some(subnet), Ok(owner)) => drop(self.subnets.insert(subnet, owner)),
            }
        } else if let Some(host) = key.strip_prefix(CLAIMING_HOSTS) {
            match segment::unescape(host, segment::ESCAPED) {
                Some(host) => drop(self.hosts.insert((&*host).into(), HostClaim::parse(value))),
                None => defect("no name of a host".to_owned()),
            }
        }
    }

    /// Takes out what a key said.
    fn unset(&mut self, key: &str) {
        self.defects.remove(key);
        if key == NETWORK_CONFIG {
            self.config = None;
        } else if key == NETWORK_ACCEPT {
            self.accepted_until = None;
        } else if let Some(subnet) = subnet_of(key) {
            self.subnets.remove(&subnet);
        } else if let Some(host) = key.strip_prefix(CLAIMING_HOSTS)
            && let Some(host) = segment::unescape(host, segment::ESCAPED)
        {
            self.hosts.remove(&*host);
        }
    }

    /// Takes in what changed from some keys of etcd to others, as [`of`](Self::of) would read them. Costs what changed.
    pub fn follow(&mut self, before: &Table<NetworkKey>, after: &Table<NetworkKey>) {
        for change in changes(before, after) {
            if let Change::Removed(old) | Change::Changed { old, .. } = &change {
                self.unset(old.id());
            }
            if let Change::Added(new) | Change::Changed { new, .. } = &change {
                self.set(new.id(), new.fields());
            }
        }
    }

    /// The claims in a cluster file: labels of hosts, and the range in the metadata of the network [`NETWORK`].
    ///
    /// What a file leaves out is meant to be gone: one that is damaged or cut off is refused as a whole.
    pub fn in_file(snapshot: &Snapshot) -> Self {
        let mut claims = Self { accepted_until: Some(i64::MAX), ..Self::default() };
        let named = |network: &&std::sync::Arc<model::Network>| network.name().is_some_and(|name| **name == *NETWORK);
        let metadata = snapshot.networks.values().find(named).and_then(|network| network.fields().map("metadata"));
        claims.config = metadata.map(Config::of_metadata);
        let mut hosts: Vec<_> = snapshot.hosts.values().filter_map(|host| Some((host.name()?, host))).collect();
        hosts.sort_by_key(|(name, _)| *name);
        for (name, host) in hosts {
            let Some(labels) = host.labels() else { continue };
            if labels.text(SUBNET_LABEL).is_none_or(|subnet| subnet.is_empty()) {
                continue;
            }
            match of_labels(host, labels) {
                Err(wrong) => drop(claims.defects.insert(format!("hosts/{name}").into(), wrong)),
                Ok(claim) => {
                    if let Some(Owner::Host(first)) = claims.subnets.get(&claim.subnet) {
                        let hosts = claims.shared.entry(claim.subnet).or_insert_with(|| vec![first.clone()]);
                        hosts.push(name.clone());
                    } else {
                        claims.subnets.insert(claim.subnet, Owner::Host(name.clone()));
                    }
                    claims.hosts.insert(name.clone(), Ok(claim));
                }
            }
        }
        claims
    }

    /// The configuration.
    ///
    /// # Errors
    ///
    /// Says why there is none that can be used, and what to do about it.
    pub fn config(&self) -> Result<&Config, String> {
        match &self.config {
            Some(Ok(config)) => Ok(config),
            Some(Err(wrong)) => Err(format!("the key {NETWORK_CONFIG} cannot be used: {wrong}")),
            None => {
                Err("this cluster has no network yet. With etcd, an operator makes it: agent network init --cidr 10.42.0.0/16. \
                     A cluster file has it as one of its networks: { name: berth, metadata: { cidr: 10.42.0.0/16 } }"
                    .to_owned())
            }
        }
    }

    /// The subnet of a host, as the key of the subnet has it: that which the host says, or else the first.
    pub fn subnet_of_host(&self, host: &str) -> Option<Ipv4Net> {
        let said = self.hosts.get(host).and_then(|claim| Some(claim.as_ref().ok()?.subnet));
        let is_its = |subnet: &Ipv4Net| {
            let owner = self.subnets.get(subnet).filter(|_| !self.shared.contains_key(subnet));
            owner.is_some_and(|owner| matches!(owner, Owner::Host(name) if **name == *host))
        };
        said.filter(is_its).or_else(|| self.subnets.keys().copied().find(is_its))
    }

    /// All hosts with a subnet.
    pub fn peers(&self) -> impl Iterator<Item = Peer> {
        let sharing = self.shared.iter().flat_map(|(subnet, hosts)| {
            let via = Via::Disputed(format!("{} have the same subnet", hosts.join(" and ")));
            hosts.iter().map(move |host| Peer { host: host.clone(), subnet: *subnet, via: via.clone() })
        });
        let alone = self.subnets.iter().filter(|(subnet, _)| !self.shared.contains_key(subnet));
        let alone = alone.filter_map(|(subnet, owner)| {
            let Owner::Host(host) = owner else { return None };
            let via = match self.hosts.get(host) {
                Some(Err(wrong)) => Via::Disputed(wrong.clone()),
                Some(Ok(claim)) if claim.subnet != *subnet => {
                    Via::Disputed(format!("{host} says that its subnet is {}", claim.subnet))
                }
                None | Some(Ok(HostClaim { via: None, .. })) => Via::Unknown,
                Some(Ok(HostClaim { via: Some(via), .. })) => Via::Address(*via),
            };
            Some(Peer { host: host.clone(), subnet: *subnet, via })
        });
        alone.chain(sharing)
    }
}

/// What the labels of a host in a cluster file say; without an address of a router it is the host's own.
fn of_labels(host: &Host, labels: &Map) -> Result<HostClaim, String> {
    let subnet = labels.text(SUBNET_LABEL).map_or("", |subnet| subnet);
    let subnet = network(subnet).map_err(|wrong| format!("{SUBNET_LABEL}: {wrong}"))?;
    let router = labels.text(OVERRIDE_LABEL).or_else(|| labels.text(ROUTER_LABEL)).filter(|text| !text.is_empty());
    let via = match router {
        Some(text) => Some(text.parse().map_err(|_| format!("{ROUTER_LABEL}: {text:?} is no IPv4 address"))?),
        None => match host.address() {
            Some(std::net::IpAddr::V4(address)) => Some(address),
            _ => None,
        },
    };
    Ok(HostClaim { subnet, via })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(json: &str) -> Map {
        serde_json::from_str(json).unwrap()
    }

    fn claims(keys: &[(&str, &str)]) -> Claims {
        let maps: Vec<(&str, Map)> = keys.iter().map(|(key, json)| (*key, map(json))).collect();
        Claims::of(maps.iter().map(|(key, map)| (*key, map)))
    }

    #[test]
    fn a_subnet_has_one_key() {
        let subnet: Ipv4Net = "10.42.7.0/24".parse().unwrap();
        assert_eq!(subnet_key(subnet), "claims/subnet/10.42.7.0-24");
        for (key, is_one) in [
            ("claims/subnet/10.42.7.0-24", true),
            ("claims/subnet/10.42.7.1-24", false),
            ("claims/subnet/10.42.7.0-024", false),
            ("claims/subnet/10.42.7.0/24", false),
            ("claims/subnet/", false),
        ] {
            assert_eq!(subnet_of(key) == Some(subnet), is_one, "{key}");
        }
        assert_eq!(host_key("a b"), "claims/host/a%20b");
    }

    #[test]
    fn the_key_of_a_subnet_decides_whose_it_is() {
        let claims = claims(&[
            ("claims/subnet/10.42.1.0-24", r#"{"host": "a"}"#),
            ("claims/subnet/10.42.2.0-24", r#"{"host": "b"}"#),
            ("claims/subnet/10.42.3.0-24", r#"{"host": "c"}"#),
            ("claims/subnet/10.42.4.0-24", r#"{"freed": true, "host": "d", "until": 9}"#),
            ("claims/subnet/10.42.5.0-24", r#"{"host": "e"}"#),
            ("claims/host/a", r#"{"subnet": "10.42.1.0/24", "via": "192.0.2.1"}"#),
            // It takes the subnet of another host.
            ("claims/host/b", r#"{"subnet": "10.42.1.0/24", "via": "192.0.2.66"}"#),
            ("claims/host/d", r#"{"subnet": "10.42.4.0/24", "via": "192.0.2.4"}"#),
            ("claims/host/e", r#"{"subnet": "10.42.5.0/24", "via": "x"}"#),
        ]);
        let peers: Vec<_> = claims.peers().map(|peer| (peer.host.to_string(), peer.via)).collect();
        assert_eq!(peers[0], ("a".into(), Via::Address("192.0.2.1".parse().unwrap())));
        assert!(matches!(&peers[1], (host, Via::Disputed(_)) if host == "b"));
        assert_eq!(peers[2], ("c".into(), Via::Unknown));
        assert!(matches!(&peers[3], (host, Via::Disputed(_)) if host == "e"));
        assert_eq!(peers.len(), 4);
        for (host, subnet) in [("a", Some("10.42.1.0/24")), ("b", Some("10.42.2.0/24")), ("d", None)] {
            assert_eq!(claims.subnet_of_host(host).map(|subnet| subnet.to_string()).as_deref(), subnet, "{host}");
        }
    }

    proptest::proptest! {
        /// Whatever one host writes into the only key that it may write, the others' subnets and addresses stay.
        #[test]
        fn a_host_changes_nothing_of_the_others(subnet in 0_u8..9, via in 0_u8..9, junk in proptest::prelude::any::<bool>()) {
            let keys = |lie: String| {
                let mut keys: Vec<(String, String)> = Vec::new();
                for host in 1..=6 {
                    keys.push((format!("claims/subnet/10.42.{host}.0-24"), format!(r#"{{"host": "h{host}"}}"#)));
                    keys.push((host_key(&format!("h{host}")), format!(r#"{{"subnet": "10.42.{host}.0/24", "via": "192.0.2.{host}"}}"#)));
                }
                keys.push((host_key("blue"), lie));
                let keys: Vec<(&str, &str)> = keys.iter().map(|(key, value)| (&**key, &**value)).collect();
                claims(&keys)
            };
            let lie = if junk { "{}".to_owned() } else { format!(r#"{{"subnet": "10.42.{subnet}.0/24", "via": "192.0.2.{via}"}}"#) };
            let others = |claims: &Claims| claims.peers().filter(|peer| &*peer.host != "blue").collect::<Vec<_>>();
            let honest = keys(r#"{"subnet": "10.42.99.0/24"}"#.to_owned());
            proptest::prop_assert_eq!(others(&keys(lie)), others(&honest));
            proptest::prop_assert_eq!(others(&honest).len(), 6);
        }
    }

    proptest::proptest! {
        /// Claims that follow etcd key by key are those that a reading of all keys gives.
        #[test]
        fn following_is_as_good_as_reading(states in proptest::collection::vec(proptest::collection::btree_map(0_usize..12, 0_usize..5, 0..12), 1..6)) {
            const KEYS: [&str; 12] = [
                NETWORK_CONFIG, NETWORK_ACCEPT, "claims/subnet/10.42.1.0-24", "claims/subnet/10.42.2.0-24",
                "claims/subnet/10.42.3.0-24", "claims/subnet/10.42.1.9-24", "claims/host/a", "claims/host/b", "claims/host/c%20d",
                "claims/host/%", "claims/other", "hosts/a/host",
            ];
            const VALUES: [&str; 5] = [
                r#"{"host": "a", "subnet": "10.42.1.0/24", "via": "192.0.2.1", "cidr": "10.42.0.0/16"}"#,
                r#"{"host": "b", "subnet": "10.42.2.0/24", "until": 7}"#,
                r#"{"host": "b", "freed": true, "until": 9, "subnet": "10.42.3.0/24"}"#,
                r#"{"host": "", "subnet": 5}"#,
                "{}",
            ];
            let (mut before, mut followed) = (Table::default(), Claims::default());
            for state in states {
                let mut after: Table<NetworkKey> = Table::default();
                for (key, value) in &state {
                    after.insert(NetworkKey::new(KEYS[*key].into(), map(VALUES[*value])).into());
                }
                followed.follow(&before, &after);
                let read = Claims::of(after.values().map(|key| (&**key.id(), key.fields())));
                proptest::prop_assert_eq!(&followed, &read);
                before = after;
            }
        }
    }

    #[test]
    fn what_is_no_claim_is_reported_and_harms_no_other() {
        let claims = claims(&[
            ("claims/subnet/10.42.1.9-24", r#"{"host": "a"}"#),
            ("claims/subnet/10.42.2.0-24", r#"{"host": ""}"#),
            ("claims/subnet/10.42.3.0-24", r#"{"host": "c", "freed": true}"#),
            ("claims/subnet/10.42.4.0-24", r#"{"host": "d"}"#),
            ("claims/host/%", "{}"),
            ("config/network", r#"{"cidr": 5}"#),
            ("hosts/a/host", "{}"),
        ]);
        assert_eq!((claims.defects.len(), claims.peers().count()), (4, 1));
        assert!(claims.config.unwrap().is_err());
    }
}
