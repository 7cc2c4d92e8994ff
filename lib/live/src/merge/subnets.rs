//! Which subnet each host has, as labels that others read, and the range of all of them, in the metadata of their network; what
//! the claims mean for routes is for the crate `network`.

use std::collections::{BTreeSet, HashMap};

use etcd::segment;
use model::network_key::{
    CLAIMED_SUBNETS, CLAIMING_HOSTS, CONTAINERS_NETWORK, NETWORK_CONFIG, ROUTER_LABEL, SUBNET_LABEL,
};
use model::{Map, Text, Value};

/// The claims of a cluster's network.
#[derive(Debug, Default)]
pub(super) struct Subnets {
    /// Whether the cluster has a network, so that only claims give the labels.
    configured: bool,
    /// The addresses of all containers.
    range: Option<Text>,
    /// Whose each subnet is, by its key.
    owners: HashMap<Text, Text>,
    hosts: HashMap<Text, Claimed>,
}

/// What is claimed for a host.
#[derive(Debug, Default, PartialEq)]
struct Claimed {
    subnets: BTreeSet<Text>,
    /// The subnet that it says it uses, and the address through which it is reached.
    said: Option<(Text, Option<Text>)>,
}

/// The hosts whose labels may be others than before.
pub(super) enum Touched {
    All,
    These(Vec<Text>),
}

impl Subnets {
    /// From now on a key of the network has this value, or none.
    pub(super) fn set(&mut self, key: &str, value: Option<&Map>) -> Touched {
        if key == NETWORK_CONFIG {
            (self.configured, self.range) = (value.is_some(), value.and_then(|value| value.text("cidr")).cloned());
            return Touched::All;
        }
        if let Some(subnet) = key.strip_prefix(CLAIMED_SUBNETS) {
            let subnet: Text = subnet.replace('-', "/").into();
            let is_freed = value.and_then(|value| value.get("freed")?.as_bool()) == Some(true);
            let owner = value.and_then(|value| value.text("host")).filter(|_| !is_freed).cloned();
            let before = match &owner {
                Some(owner) => self.owners.insert(subnet.clone(), owner.clone()),
                None => self.owners.remove(&subnet),
            };
            if let Some(host) = &before {
                self.change(host, |claimed| {
                    claimed.subnets.remove(&subnet);
                });
            }
            if let Some(owner) = &owner {
                self.change(owner, |claimed| {
                    claimed.subnets.insert(subnet);
                });
            }
            return Touched::These(before.into_iter().chain(owner).collect());
        }
        let host = key.strip_prefix(CLAIMING_HOSTS).and_then(|host| segment::unescape(host, segment::ESCAPED));
        let Some(host) = host else { return Touched::These(Vec::new()) };
        let host: Text = (&*host).into();
        let said = value.and_then(|value| Some((value.text("subnet")?.clone(), value.text("via").cloned())));
        self.change(&host, |claimed| claimed.said = said);
        Touched::These(vec![host])
    }

    /// Changes what is claimed for a host. One without claims is left out.
    fn change(&mut self, host: &Text, change: impl FnOnce(&mut Claimed)) {
        let claimed = self.hosts.entry(host.clone()).or_default();
        change(claimed);
        if *claimed == Claimed::default() {
            self.hosts.remove(host);
        }
    }

    /// The addresses of all containers, if this is the name of their network.
    pub(super) fn range(&self, network: Option<&Text>) -> Option<&Text> {
        self.range.as_ref().filter(|_| network.is_some_and(|name| **name == *CONTAINERS_NETWORK))
    }

    /// Whether only claims give this label, so that what a host itself says of it does not count.
    pub(super) fn reserves(&self, label: &str) -> bool {
        self.configured && (label == SUBNET_LABEL || label == ROUTER_LABEL)
    }

    /// The labels of a host that follow from claims. The key of the subnet decides: what a host says of another one is ignored.
    pub(super) fn labels(&self, host: Option<&Text>) -> Vec<(Text, Value)> {
        let Some(claimed) = host.filter(|_| self.configured).and_then(|host| self.hosts.get(host)) else {
            return Vec::new();
        };
        let said = claimed.said.as_ref().filter(|(subnet, _)| claimed.subnets.contains(subnet));
        let Some(subnet) = said.map(|(subnet, _)| subnet).or_else(|| claimed.subnets.first()) else {
            return Vec::new();
        };
        let via = said.and_then(|(_, via)| via.as_ref());
        let labels = [(SUBNET_LABEL, Some(subnet)), (ROUTER_LABEL, via)];
        labels.into_iter().filter_map(|(label, value)| Some((label.into(), Value::Text(value?.clone())))).collect()
    }
}
