//! The firewall of the containers' network, as one table of nftables (nft(8)).
//!
//! The engine opens the network to every machine that has a route to it. This table closes it again to all that are not of the
//! cluster, and translates the addresses of containers towards the rest of the world only: inside the cluster metadata knows
//! containers by their addresses.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use model::Fingerprint;

/// Name of the table. It is ours alone, and is deleted as a whole.
pub const TABLE: &str = "berth";

/// What the table depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firewall {
    /// The addresses of all containers of the cluster.
    pub cidr: Ipv4Net,
    /// The addresses of this host's containers.
    pub subnet: Ipv4Net,
    /// The interface of their network.
    pub bridge: String,
    /// The interfaces towards other hosts.
    pub links: BTreeSet<String>,
    /// The addresses of all hosts.
    pub hosts: BTreeSet<Ipv4Addr>,
}

impl Firewall {
    /// Stands for everything that it depends on, and is a remark in the table, so that the table shows whether it is up to date.
    pub fn digest(&self) -> String {
        format!("Berth {}", Fingerprint::of(&self.rules()).text())
    }

    /// The table in the language of `nft -f`, which replaces the one that is there at once.
    pub fn text(&self) -> String {
        // Created first, so that deleting it does not fail where there is none.
        format!(
            "add table ip {TABLE}\ndelete table ip {TABLE}\ntable ip {TABLE} {{\n\tcomment \"{}\"\n{}",
            self.digest(),
            self.rules()
        )
    }

    /// Sets and chains of the table, and its end.
    fn rules(&self) -> String {
        let Self { cidr, subnet, bridge, links, hosts } = self;
        let links = links.iter().map(|link| format!("\"{link}\"")).collect::<Vec<_>>().join(", ");
        let hosts = hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let mut text = String::new();
        text += "\tset hosts {\n\t\ttype ipv4_addr\n";
        if !hosts.is_empty() {
            let _ = writeln!(text, "\t\telements = {{ {hosts} }}");
        }
        text += "\t}\n\
                 \tchain forward {\n\
                 \t\ttype filter hook forward priority filter - 5; policy accept;\n";
        let _ = writeln!(
            text,
            "\t\tip daddr {subnet} iifname != \"{bridge}\" ct state new ct status & dnat == 0 jump unpublished"
        );
        text += "\t}\n\tchain unpublished {\n";
        if !links.is_empty() {
            let _ = writeln!(text, "\t\tiifname {{ {links} }} ip saddr {cidr} accept");
            let _ = writeln!(text, "\t\tiifname {{ {links} }} ip saddr @hosts accept");
        }
        text += "\t\tcounter drop\n\
                 \t}\n\
                 \tchain postrouting {\n\
                 \t\ttype nat hook postrouting priority srcnat; policy accept;\n";
        let _ = write!(
            text,
            "\t\tip saddr {subnet} ip daddr {cidr} accept\n\
             \t\tip saddr {subnet} ip daddr @hosts accept\n\
             \t\tip saddr {subnet} oifname != \"{bridge}\" counter masquerade fully-random\n\
             \t}}\n\
             }}\n"
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_facts_are_the_same_text() {
        let firewall = Firewall {
            cidr: "10.42.0.0/16".parse().unwrap(),
            subnet: "10.42.7.0/24".parse().unwrap(),
            bridge: "berth0".to_owned(),
            links: ["eth0".to_owned()].into(),
            hosts: ["192.0.2.2", "192.0.2.1"].map(|address| address.parse().unwrap()).into(),
        };
        let text = firewall.text();
        assert!(text.contains("elements = { 192.0.2.1, 192.0.2.2 }"), "{text}");
        assert_eq!(text, firewall.clone().text());
        // nft takes no empty set of elements.
        let alone = Firewall { links: BTreeSet::new(), hosts: BTreeSet::new(), ..firewall };
        assert!(!alone.text().contains("elements") && !alone.text().contains("iifname {"), "{}", alone.text());
    }
}
