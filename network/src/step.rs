//! The steps by which this host is changed, in words and for programs.

use std::fmt;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use platform::route::{Link, RouteChange, RouteTable};
use serde_json::{Value, json};

use crate::claim::NETWORK;
use crate::firewall::Firewall;
use crate::ledger::Changed;

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Sets a setting of the kernel.
    Sysctl {
        /// Its name.
        name: String,
        /// What it is.
        before: String,
        /// What it is to be.
        after: String,
    },
    /// Has an interface pass on what arrives on it.
    Forwarding(Link),
    /// Puts the gateway of the containers on an interface.
    Address {
        /// The interface.
        link: Link,
        /// The address with its network.
        address: Ipv4Net,
    },
    /// Makes the containers' network.
    Network(NetworkSpec),
    /// Inserts a rule into a chain of the engine's firewall.
    Rule {
        /// Chain and rule, as they follow `iptables -I`.
        words: Vec<String>,
    },
    /// Takes a rule of ours out of that chain.
    Unrule {
        /// Chain and rule.
        words: Vec<String>,
    },
    /// Replaces the table of the firewall.
    Firewall(Firewall),
    /// Changes a route.
    Route(RouteChange),
}

/// The containers' network that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkSpec {
    /// The engine's driver.
    pub driver: &'static str,
    /// The addresses of its containers.
    pub subnet: Ipv4Net,
    /// The host's own address in it.
    pub gateway: Ipv4Addr,
    /// Options of the engine's driver.
    pub options: Vec<(String, String)>,
    /// An empty network of another subnet that goes before.
    pub instead_of: Option<String>,
}

impl Step {
    /// What it changes of this host.
    pub fn changed(&self) -> Changed {
        match self {
            Self::Sysctl { name, before, after } => {
                Changed::Sysctl { name: name.clone(), before: before.clone(), after: after.clone() }
            }
            Self::Forwarding(link) => Changed::Forwarding { id: link.id.clone(), before: false },
            Self::Address { link, address } => Changed::Address { id: link.id.clone(), address: *address },
            Self::Network(_) => Changed::Network { name: NETWORK.to_owned(), id: None },
            Self::Rule { words } | Self::Unrule { words } => Changed::Rule { words: words.clone() },
            Self::Firewall(_) => Changed::Table { name: crate::firewall::TABLE.to_owned() },
            Self::Route(_) => Changed::Routes,
        }
    }

    /// Whether it takes back what was changed before.
    pub fn undoes(&self) -> bool {
        matches!(self, Self::Unrule { .. })
    }

    /// The step for programs.
    pub fn to_json(&self, table: &RouteTable) -> Value {
        match self {
            Self::Sysctl { name, before, after } => {
                json!({ "step": "sysctl", "name": name, "before": before, "after": after })
            }
            Self::Forwarding(link) => json!({ "step": "forwarding", "dev": link.name }),
            Self::Address { link, address } => {
                json!({ "step": "address", "address": address.to_string(), "dev": link.name })
            }
            Self::Network(spec) => json!({
                "step": "network", "name": NETWORK, "driver": spec.driver, "subnet": spec.subnet.to_string(), "gateway": spec.gateway.to_string(),
                "options": spec.options.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
            }),
            Self::Rule { words } => json!({ "step": "rule", "words": words }),
            Self::Unrule { words } => json!({ "step": "remove-rule", "words": words }),
            Self::Firewall(firewall) => json!({ "step": "firewall", "table": firewall.text() }),
            Self::Route(change) => {
                let (word, via, link) = match change {
                    RouteChange::Add(route) => ("add-route", route.via, route.link),
                    RouteChange::Replace { via, link, .. } => ("replace-route", Some(*via), *link),
                    RouteChange::Remove(route) => ("remove-route", route.via, route.link),
                };
                let prefix = change.route().prefix.to_string();
                json!({ "step": word, "prefix": prefix, "via": via, "dev": name_of(table, link) })
            }
        }
    }
}

/// A step with the names of interfaces.
#[derive(Clone, Copy, Debug)]
pub struct Described<'p>(pub &'p Step, pub &'p RouteTable);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(step, table) = self;
        match step {
            Step::Sysctl { name, before, after } => write!(f, "set {name} from {before} to {after}"),
            Step::Forwarding(link) => write!(f, "have {} pass packets on", link.name),
            Step::Address { link, address } => write!(f, "put the gateway {address} on {}", link.name),
            Step::Network(spec) => {
                if let Some(id) = &spec.instead_of {
                    write!(f, "remove the empty network {NETWORK} ({id:.12}) and ")?;
                }
                write!(f, "create the network {NETWORK} with {}", spec.subnet)
            }
            Step::Rule { words } => write!(f, "insert the rule {}", words.join(" ")),
            Step::Unrule { words } => write!(f, "take out the rule {}", words.join(" ")),
            Step::Firewall(firewall) => {
                write!(f, "write the firewall's table {} for {}", crate::firewall::TABLE, firewall.subnet)
            }
            Step::Route(change) => {
                let name = |link| name_of(table, link);
                let via = |via: Option<Ipv4Addr>| via.map_or_else(String::new, |via| format!(" via {via}"));
                match change {
                    RouteChange::Add(route) => {
                        write!(f, "add the route {}{} dev {}", route.prefix, via(route.via), name(route.link))
                    }
                    RouteChange::Replace { route, via: next, link } => write!(
                        f,
                        "move the route {} from{} dev {} to{} dev {}",
                        route.prefix,
                        via(route.via),
                        name(route.link),
                        via(Some(*next)),
                        name(*link)
                    ),
                    RouteChange::Remove(route) => {
                        write!(f, "remove the route {}{} dev {}", route.prefix, via(route.via), name(route.link))
                    }
                }
            }
        }
    }
}

fn name_of(table: &RouteTable, index: u32) -> &str {
    table.links.iter().find(|link| link.index == index).map_or("?", |link| &link.name)
}
