//! The routes of a cluster for other programs.

use std::fmt::Write as _;

use clap::ValueEnum;
use model::printable::printable;
use network::claim::{Claims, Via};
use platform::route::{METRIC, PROTOCOL};

/// Longest name of a host in a remark, in characters: that of a DNS name (RFC 1035, section 2.3.4).
const NAME_MAX: usize = 255;

/// A program that routes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Format {
    /// Lines for a shell with `ip`
    Iproute2,
    /// A part of BIRD's configuration (2.0 or newer)
    Bird,
    /// A part of `FRRouting`'s configuration
    Frr,
    /// Lines for PowerShell on Windows
    Powershell,
}

/// The routes to the subnets of all hosts but `host`.
pub(super) fn text(claims: &Claims, host: Option<&str>, format: Format) -> String {
    let peers = claims.peers().filter(|peer| host != Some(&*peer.host));
    let routes = peers.filter_map(|peer| match peer.via {
        // A remark ends with its line.
        Via::Address(via) => Some((printable(&peer.host, NAME_MAX), peer.subnet, via)),
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
        Format::Frr => {
            for (host, subnet, via) in routes {
                let _ = writeln!(text, "! {host}\nip route {subnet} {via}");
            }
        }
        Format::Powershell => {
            for (host, subnet, via) in routes {
                let _ = writeln!(
                    text,
                    "New-NetRoute -DestinationPrefix {subnet} -NextHop {via} -RouteMetric {METRIC} -PolicyStore ActiveStore \
                     -InterfaceIndex (Find-NetRoute -RemoteIPAddress {via})[0].InterfaceIndex # {host}"
                );
            }
        }
    }
    text
}
