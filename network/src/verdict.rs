//! What becomes of the route to each host: the judgement of one peer, which never depends on another peer's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use model::Text;
use platform::route::{METRIC, Route, RouteTable};

use crate::claim::{Peer, Via};
use crate::config::{Config, overlap};

/// What becomes of the route to a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is wanted.
    Ok,
    /// It is wanted, and without effect while another program's route to the same subnet has a lower metric.
    Shadowed {
        /// That metric.
        metric: u32,
    },
    /// No network of this host has the peer's address in it, or its interface is down.
    OffLink {
        /// The next hop of another program's route to its subnet, or to more than that but not to everything.
        router: Option<Ipv4Addr>,
    },
    /// The peer has not said by which address it is reached.
    NoVia,
    /// What the peer's keys say cannot be.
    Invalid(String),
    /// The subnet overlaps something on this host.
    Local(String),
    /// Another program has a route to the same subnet with our metric.
    Taken,
    /// The last good route stays, for this reason.
    Held(String),
}

impl Verdict {
    /// Whether packets to the host's containers go by a route that is meant: ours, or a routing daemon's.
    pub fn is_reached(&self) -> bool {
        matches!(self, Self::Ok | Self::OffLink { router: Some(_) })
    }

    /// Whether a route is wanted.
    pub fn is_routed(&self) -> bool {
        matches!(self, Self::Ok | Self::Shadowed { .. })
    }

    /// The word of it, for programs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Shadowed { .. } => "shadowed",
            Self::OffLink { .. } => "off-link",
            Self::NoVia => "no-via",
            Self::Invalid(_) => "invalid",
            Self::Local(_) => "local",
            Self::Taken => "taken",
            Self::Held(_) => "held",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => f.write_str("ok"),
            Self::Shadowed { metric } => write!(
                f,
                "shadowed: another program's route to the same subnet has the metric {metric}, which is lower than {METRIC}; \
                 remove that route if this one is meant"
            ),
            Self::OffLink { router: Some(router) } => {
                write!(f, "off-link: its address is in no network of this host; another program routes its subnet through {router}")
            }
            Self::OffLink { router: None } => f.write_str(
                "off-link: its address is in no network of this host whose interface is up, so there is no way to it without a router; \
                 connect both to one network, or give the routers these routes: agent network export",
            ),
            Self::NoVia => f.write_str("no-via: it has not said by which address it is reached; is its agent running with --network?"),
            Self::Invalid(why) => write!(f, "invalid: {why}"),
            Self::Local(what) => write!(f, "local: its subnet overlaps {what}"),
            Self::Taken => write!(
                f,
                "taken: another program has a route to the same subnet with the metric {METRIC}; remove that route, or give \
                 it another metric"
            ),
            Self::Held(why) => write!(f, "held: {why}; the last good route stays"),
        }
    }
}

/// A peer and what becomes of the route to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The host.
    pub host: Text,
    /// Its subnet.
    pub subnet: Ipv4Net,
    /// The address through which it is reached, if that is known.
    pub via: Option<Ipv4Addr>,
    /// The interface towards that address.
    pub link: Option<u32>,
    /// What becomes of the route.
    pub verdict: Verdict,
}

/// This host, as far as routes to others depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Here<'h> {
    /// Its name.
    pub host: &'h str,
    /// The network of its containers, by its interface, which overlaps only its own subnet.
    pub containers: Option<&'h str>,
    /// Interfaces and routes.
    pub table: &'h RouteTable,
}

/// Judges all peers of this host.
pub fn judge(config: &Config, peers: impl Iterator<Item = Peer>, here: Here<'_>) -> Vec<Judged> {
    let index = Index::new(here);
    let others = peers.filter(|peer| *peer.host != *here.host);
    others.map(|peer| judge_one(config, peer, &index)).collect()
}

/// What is looked up for each peer.
struct Index<'h> {
    table: &'h RouteTable,
    /// Networks of interfaces, the longest prefix first.
    connected: Vec<(Ipv4Net, u32, &'h str)>,
    /// The own addresses.
    addresses: BTreeSet<Ipv4Addr>,
    foreign: BTreeMap<Ipv4Net, Vec<&'h Route>>,
    containers: Option<&'h str>,
}

impl<'h> Index<'h> {
    fn new(here: Here<'h>) -> Self {
        let mut connected = Vec::new();
        let mut addresses = BTreeSet::new();
        for link in &here.table.links {
            for address in &link.addresses {
                addresses.insert(address.addr());
                // A single address connects no other host.
                if address.prefix_len() < 32 {
                    connected.push((address.trunc(), link.index, &*link.name));
                }
            }
        }
        connected.sort_by_key(|(network, link, _)| (std::cmp::Reverse(network.prefix_len()), *link));
        let mut foreign: BTreeMap<Ipv4Net, Vec<&Route>> = BTreeMap::new();
        for route in here.table.routes.iter().filter(|route| !route.marked) {
            foreign.entry(route.prefix).or_default().push(route);
        }
        Self { table: here.table, connected, addresses, foreign, containers: here.containers }
    }

    fn is_up(&self, index: u32) -> bool {
        self.table.links.iter().any(|link| link.index == index && link.up)
    }

    /// The next hop by which another program routes a subnet. A default route says nothing of it.
    fn router(&self, subnet: Ipv4Net) -> Option<Ipv4Addr> {
        let around = (1..=subnet.prefix_len()).rev().filter_map(|length| Ipv4Net::new(subnet.network(), length).ok());
        let routes = around.filter_map(|network| self.foreign.get(&network.trunc()));
        routes.flatten().find_map(|route| route.via)
    }

    fn name(&self, index: u32) -> &'h str {
        self.table.links.iter().find(|link| link.index == index).map_or("?", |link| &link.name)
    }
}

fn judge_one(config: &Config, Peer { host, subnet, via }: Peer, index: &Index<'_>) -> Judged {
    let judged = |via, link, verdict| Judged { host: host.clone(), subnet, via, link, verdict };
    let without = |verdict| judged(None, None, verdict);
    if !config.fits(subnet) {
        return without(Verdict::Invalid(format!(
            "{subnet} is none of the subnets of /{} that {} is divided into",
            config.host_prefix, config.cidr
        )));
    }
    let via = match via {
        Via::Unknown => return without(Verdict::NoVia),
        Via::Disputed(why) => return without(Verdict::Held(why)),
        Via::Address(via) => via,
    };
    let with = |link, verdict| judged(Some(via), link, verdict);
    if via.is_unspecified() || via.is_loopback() || via.is_multicast() || via.is_broadcast() {
        return with(None, Verdict::Invalid(format!("{via} is no address of a host")));
    }
    if subnet.contains(&via) {
        return with(None, Verdict::Invalid(format!("its address {via} is in its own subnet {subnet}")));
    }
    let overlapping = index.connected.iter().find(|(network, ..)| overlap(*network, subnet));
    if let Some((network, _, name)) = overlapping {
        let what = if index.containers == Some(*name) { "the containers' network" } else { "the network" };
        return with(None, Verdict::Local(format!("{what} {network} on {name} of this host")));
    }
    let leads = |(network, ..): &&(Ipv4Net, u32, &str)| network.contains(&via);
    // An interface that is down takes no route.
    let found = index.connected.iter().filter(leads).find(|(_, link, _)| index.is_up(*link));
    let Some((network, link, _)) = found else {
        // The firewall is open towards it for the time when it is up again.
        let down = index.connected.iter().find(leads);
        return with(down.map(|(_, link, _)| *link), Verdict::OffLink { router: index.router(subnet) });
    };
    let (name, link) = (index.name(*link), Some(*link));
    if index.addresses.contains(&via) {
        return with(None, Verdict::Invalid(format!("{via} is an address of this host, on {name}")));
    }
    // A network of two addresses has neither of its own (RFC 3021).
    if network.prefix_len() < 31 && (via == network.network() || via == network.broadcast()) {
        return with(None, Verdict::Invalid(format!("{via} is no address of a host in {network}")));
    }
    let foreign = index.foreign.get(&subnet).map_or(&[][..], Vec::as_slice);
    if foreign.iter().any(|route| route.metric == METRIC) {
        return with(link, Verdict::Taken);
    }
    match foreign.iter().map(|route| route.metric).filter(|metric| *metric < METRIC).min() {
        Some(metric) => with(link, Verdict::Shadowed { metric }),
        None => with(link, Verdict::Ok),
    }
}

#[cfg(test)]
mod tests {
    use platform::route::Link;

    use super::*;
    use crate::config::Allocate;

    fn table() -> RouteTable {
        let link = |index, name: &str, addresses: &[&str]| Link {
            index,
            name: name.to_owned(),
            id: name.to_owned(),
            up: true,
            mtu: 1500,
            metric: 0,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        };
        let via = Ipv4Addr::new(192, 0, 2, 9);
        let route =
            |prefix: &str, metric, marked| Route { metric, marked, ..Route::marked(prefix.parse().unwrap(), via, 2) };
        RouteTable {
            links: vec![
                link(2, "eth0", &["192.0.2.1/24"]),
                link(3, "vpn0", &["10.42.200.5/24", "192.0.2.129/32"]),
                link(4, "berth0", &["10.42.1.1/24"]),
                link(5, "eth1", &["192.0.2.128/28"]),
                Link { up: false, ..link(6, "eth2", &["203.0.113.1/24", "192.0.2.144/28"]) },
            ],
            routes: vec![
                route("10.42.31.0/24", 0, false),
                route("10.42.32.0/24", METRIC, false),
                route("10.42.33.0/24", METRIC, true),
                route("10.42.34.0/24", 5000, false),
            ],
        }
    }

    fn check(subnet: &str, via: &str, expected: &str, link: Option<u32>) {
        let config = Config::new("10.42.0.0/16".parse().unwrap(), 24, Vec::new(), Allocate::Invited).unwrap();
        let peer = |host: &str, via| Peer { host: host.into(), subnet: subnet.parse().unwrap(), via };
        let via = if via.is_empty() { Via::Unknown } else { Via::Address(via.parse().unwrap()) };
        let table = table();
        let here = Here { host: "here", containers: Some("berth0"), table: &table };
        let peers = [peer("there", via), peer("here", Via::Unknown)];
        let judged = judge(&config, peers.into_iter(), here);
        assert_eq!(judged.len(), 1);
        assert_eq!(
            (judged[0].verdict.word(), judged[0].link),
            (expected, link),
            "{subnet} via {via:?}",
            via = judged[0].via
        );
    }

    #[test]
    fn a_routing_daemons_route_to_a_host_behind_a_router_is_noticed() {
        let index = |prefix: &str| {
            let prefix = prefix.parse().unwrap();
            let route = Route { marked: false, metric: 32, ..Route::marked(prefix, Ipv4Addr::new(192, 0, 2, 9), 2) };
            RouteTable { links: Vec::new(), routes: vec![route] }
        };
        for (prefix, expected) in
            [("10.42.7.0/24", true), ("10.42.0.0/16", true), ("0.0.0.0/0", false), ("10.42.8.0/24", false)]
        {
            let table = index(prefix);
            let index = Index::new(Here { host: "here", containers: None, table: &table });
            assert_eq!(index.router("10.42.7.0/24".parse().unwrap()).is_some(), expected, "{prefix}");
        }
    }

    #[test]
    fn each_peer_is_judged_by_itself() {
        check("10.42.7.0/24", "192.0.2.7", "ok", Some(2));
        // The longer prefix wins.
        check("10.42.7.0/24", "192.0.2.130", "ok", Some(5));
        check("10.42.7.0/24", "", "no-via", None);
        check("10.42.7.0/24", "198.51.100.7", "off-link", None);
        // Down, and another one leads there all the same.
        check("10.42.7.0/24", "203.0.113.7", "off-link", Some(6));
        check("10.42.7.0/24", "192.0.2.150", "ok", Some(2));
        check("10.42.7.0/24", "192.0.2.1", "invalid", None);
        check("10.42.7.0/24", "192.0.2.0", "invalid", None);
        check("10.42.7.0/24", "192.0.2.255", "invalid", None);
        check("10.42.7.0/24", "0.0.0.0", "invalid", None);
        check("10.42.7.0/24", "127.0.0.1", "invalid", None);
        check("10.42.7.0/24", "224.0.0.1", "invalid", None);
        check("10.42.7.0/24", "10.42.7.1", "invalid", None);
        check("10.43.7.0/24", "192.0.2.7", "invalid", None);
        check("10.42.6.0/23", "192.0.2.7", "invalid", None);
        check("10.42.200.0/24", "192.0.2.7", "local", None);
        check("10.42.1.0/24", "192.0.2.7", "local", None);
        check("10.42.31.0/24", "192.0.2.7", "shadowed", Some(2));
        check("10.42.32.0/24", "192.0.2.7", "taken", Some(2));
        check("10.42.33.0/24", "192.0.2.7", "ok", Some(2));
        check("10.42.34.0/24", "192.0.2.7", "ok", Some(2));
    }
}
