//! The names by which clients may call the service, when the operator is strict about them.
//!
//! A web page whose own name suddenly points to the service's address (DNS rebinding) makes a browser ask for it
//! what it was never meant to see; the name in `Host` gives it away.

use std::net::{IpAddr, SocketAddr};

use model::METADATA_NAME;

/// Domain of the predecessor's own names.
const DOMAIN: &str = "rancher.internal";

/// The names by which clients may call the service, besides its address.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    /// In lower case, without a dot at the end.
    names: Vec<String>,
}

impl Hosts {
    /// These names, or the usual ones when there are none.
    pub(crate) fn new(names: &[String]) -> Self {
        if names.is_empty() {
            return Self { names: vec![METADATA_NAME.to_owned(), format!("{METADATA_NAME}.{DOMAIN}")] };
        }
        Self { names: names.iter().map(|name| name.strip_suffix('.').unwrap_or(name).to_lowercase()).collect() }
    }

    /// Whether a client that reached the service at `local` may call it this.
    ///
    /// A port has to be the one that was reached.
    pub(crate) fn knows(&self, called: &[u8], local: SocketAddr) -> bool {
        let Some((host, port)) = std::str::from_utf8(called).ok().and_then(parts) else { return false };
        if !port.is_empty() && port.parse() != Ok(local.port()) {
            return false;
        }
        let is_local = host.parse().is_ok_and(|address: IpAddr| address.to_canonical() == local.ip().to_canonical());
        let name = host.strip_suffix('.').unwrap_or(host);
        is_local || self.names.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// Host and port; the brackets of an IPv6 address belong to neither.
fn parts(called: &str) -> Option<(&str, &str)> {
    let (host, rest) = match called.strip_prefix('[') {
        Some(behind) => behind.split_once(']')?,
        None => called.split_at(called.find(':').unwrap_or(called.len())),
    };
    let port = if rest.is_empty() { rest } else { rest.strip_prefix(':')? };
    port.bytes().all(|byte| byte.is_ascii_digit()).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str], local: &str, known: &[&str], unknown: &[&str]) {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let hosts = Hosts::new(&names);
        let local = local.parse().unwrap();
        for called in known {
            assert!(hosts.knows(called.as_bytes(), local), "{called} at {local}");
        }
        for called in unknown {
            assert!(!hosts.knows(called.as_bytes(), local), "{called} at {local}");
        }
    }

    #[test]
    fn the_address_and_the_names_are_known() {
        check(
            &[],
            "169.254.169.250:80",
            &[
                "169.254.169.250",
                "169.254.169.250:80",
                "169.254.169.250:",
                "rancher-metadata",
                "Rancher-Metadata:80",
                "rancher-metadata.rancher.internal",
                "rancher-metadata.rancher.internal.",
            ],
            &[
                "",
                ":",
                ":80",
                "169.254.169.250:81",
                "169.254.169.250:080x",
                "169.254.169.250:+80",
                "169.254.169.250:65616",
                "169.254.169.254",
                "169.254.169.250.example.org",
                "169.254.169.250.",
                "169.254.169.250@example.org",
                "localhost",
                "[::1]",
                "[169.254.169.250",
                "[]",
                "rancher-metadata.example.org",
                "example.org",
                ".",
                "xrancher-metadata",
            ],
        );
    }

    #[test]
    fn names_of_the_operator_replace_the_usual_ones() {
        check(
            &["Meta.example.org.", "192.0.2.1"],
            "[::ffff:127.0.0.1]:8250",
            &["meta.example.org", "META.example.org:8250", "192.0.2.1", "127.0.0.1:8250", "[::ffff:127.0.0.1]:8250"],
            &["rancher-metadata", "example.org", "192.0.2.1:80", "::ffff:127.0.0.1"],
        );
        check(&["x"], "[2001:db8::1]:80", &["[2001:db8::1]", "[2001:DB8:0::1]:80"], &["[2001:db8::2]", "2001:db8::1"]);
    }
}
