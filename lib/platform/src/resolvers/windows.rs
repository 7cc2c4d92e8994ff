//! Name servers of the adapters.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::{PORT, push_new};
use crate::adapter::{Adapter, adapters};

pub(super) fn resolvers() -> io::Result<Vec<SocketAddr>> {
    adapters().map(preferred)
}

fn preferred(adapters: Vec<Adapter>) -> Vec<SocketAddr> {
    let mut ranked: Vec<(u32, SocketAddr)> = Vec::new();
    for adapter in adapters.into_iter().filter(|adapter| adapter.up) {
        for mut resolver in adapter.resolvers {
            resolver.set_port(PORT);
            let metric = if resolver.is_ipv4() { adapter.metric_v4 } else { adapter.metric_v6 };
            if !is_site_local(resolver.ip()) {
                ranked.push((metric, resolver));
            }
        }
    }
    ranked.sort_by_key(|&(metric, _)| metric);
    let mut resolvers = Vec::new();
    for (_, resolver) in ranked {
        push_new(&mut resolvers, resolver);
    }
    resolvers
}

/// Whether it is one of `fec0:0:0:ffff::1` to `::3`, which Windows names when it knows no server for IPv6 at all.
///
/// The whole prefix `fec0::/10` is out of use since RFC 3879.
fn is_site_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.segments()[0] & 0xffc0 == 0xfec0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An adapter as words: up or down, the metrics for IPv4 and IPv6, its servers.
    fn adapter(words: &str) -> Adapter {
        let mut words = words.split_whitespace();
        Adapter {
            index: 1,
            guid: String::new(),
            name: String::new(),
            loopback: false,
            up: words.next() == Some("up"),
            metric_v4: words.next().unwrap().parse().unwrap(),
            metric_v6: words.next().unwrap().parse().unwrap(),
            mtu: 1500,
            addresses: Vec::new(),
            prefix_lengths: Vec::new(),
            resolvers: words.map(|word| SocketAddr::new(word.parse().unwrap(), 0)).collect(),
        }
    }

    fn check(adapters: &[&str], expected: &[&str]) {
        let found = preferred(adapters.iter().copied().map(adapter).collect());
        let found: Vec<String> = found.iter().map(|resolver| resolver.ip().to_string()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn lowest_metric_comes_first() {
        check(&["up 25 25 192.0.2.1 192.0.2.2", "up 5 5 192.0.2.3"], &["192.0.2.3", "192.0.2.1", "192.0.2.2"]);
        check(&["up 5 50 192.0.2.1 2001:db8::1", "up 25 25 192.0.2.2"], &["192.0.2.1", "192.0.2.2", "2001:db8::1"]);
    }

    #[test]
    fn servers_are_named_once_and_only_those_in_use() {
        check(
            &["down 1 1 192.0.2.9", "up 5 5 192.0.2.1 fec0:0:0:ffff::1", "up 5 5 192.0.2.1 192.0.2.2"],
            &["192.0.2.1", "192.0.2.2"],
        );
        check(&[], &[]);
    }

    #[test]
    fn configuration_of_this_machine_is_read() {
        assert!(resolvers().unwrap().iter().all(|resolver| resolver.port() == PORT));
    }
}
