//! The routes of a cluster for other programs.

use std::fmt::Write as _;

use clap::ValueEnum;
use network::claim::{Claims, Via};
use platform::route::{METRIC, PROTOCOL};

/// A program that routes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Format {
    /// Lines for a shell with `ip`
    Iproute2,
    /// A part of BIRD's configuration (2.0 or newer)
    Bird,
}

/// The routes to the subnets of all hosts but `host`.
pub(super) fn text(claims: &Claims, host: Option<&str>, format: Format) -> String {
    let peers = claims.peers().filter(|peer| host != Some(&*peer.host));
    let routes = peers.filter_map(|peer| match peer.via {
        Via::Address(via) => Some((peer.host, peer.subnet, via)),
        _ => None,
    });
    let mut text = String::new();
    match format {
        Format::Iproute2 => {
            for (host, subnet, via) in routes {
                let _ = writeln!(text, "ip route replace {subnet} via {via} proto {PROTOCOL} metric {METRIC} # {host}");
            }
        }
        Format::Bird => {
            text.push_str("protocol static berth {\n    ipv4;\n");
            for (host, subnet, via) in routes {
                let _ = writeln!(text, "    route {subnet} via {via}; # {host}");
            }
            text.push_str("}\n");
        }
    }
    text
}
