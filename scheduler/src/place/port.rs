//! Published ports: what is asked for, what is taken, and when two are in each other's way.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use model::Text;

/// All addresses of a host.
pub(crate) const WILDCARD: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// First port that is given where any will do; as the predecessor.
pub(crate) const RANDOM_FIRST: u16 = 32768;
/// Last port that is given where any will do; as the predecessor.
pub(crate) const RANDOM_LAST: u16 = 61000;

/// A transport; ports of one are not in the way of the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// The protocol of this name, in any case.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Tcp, Self::Udp, Self::Sctp].into_iter().find(|protocol| protocol.name().eq_ignore_ascii_case(text))
    }

    /// Its name on the wire.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// A port that a container wants published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Port {
    /// On this address; `None` means any address of the host that is free.
    pub(crate) address: Option<IpAddr>,
    /// The port outside; 0 means any.
    pub(crate) public: u16,
    pub(crate) private: u16,
    pub(crate) protocol: Protocol,
}

impl Port {
    /// The port in `[address:][public:]private[/protocol]`, `[v6]` in brackets.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (rest, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let protocol = Protocol::parse(protocol.trim())?;
        let (address, rest) = match rest.strip_prefix('[') {
            Some(bracketed) => {
                let (address, rest) = bracketed.split_once("]:")?;
                (Some(address), rest)
            }
            None => match rest.splitn(3, ':').collect::<Vec<_>>()[..] {
                [address, _, _] => (Some(address), &rest[address.len() + 1..]),
                _ => (None, rest),
            },
        };
        let address = address
            .filter(|address| !address.is_empty())
            .map(|ip| ip.parse().ok())
            .map_or(Some(None), |ip| ip.map(Some))?;
        let (public, private) = rest.split_once(':').map_or((None, rest), |(public, private)| (Some(public), private));
        let private = private.parse().ok().filter(|port| *port != 0)?;
        let public = public.filter(|port| !port.is_empty()).map_or(Some(0), |port| port.parse().ok())?;
        Some(Self { address, public, private, protocol })
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(IpAddr::V4(ip)) => write!(f, "{ip}:")?,
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:")?,
            None => {}
        }
        write!(f, "{}/{}", self.public, self.protocol.name())
    }
}

/// A port that is taken, or about to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// The address; the wildcard takes the port on all.
    pub(crate) address: IpAddr,
    pub(crate) public: u16,
    pub(crate) private: u16,
    pub(crate) protocol: Protocol,
    /// Its owner: the container's uuid, or the name it will have.
    pub(crate) owner: Text,
}

impl Bound {
    /// Whether this and a port on `address` are in each other's way.
    pub(crate) fn blocks(&self, protocol: Protocol, address: IpAddr, public: u16) -> bool {
        self.public == public
            && self.protocol == protocol
            && (self.address == address || self.address.is_unspecified() || address.is_unspecified())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let found = Port::parse(text).map(|port| format!("{port} -> {}", port.private));
        assert_eq!(found.as_deref().unwrap_or("none"), expected, "{text}");
    }

    #[test]
    fn ports_are_written_as_engines_write_them() {
        check("80:8080/tcp", "80/tcp -> 8080");
        check("80:8080", "80/tcp -> 8080");
        check("53:5353/UDP", "53/udp -> 5353");
        check("192.0.2.1:443:8443/tcp", "192.0.2.1:443/tcp -> 8443");
        check("[2001:db8::1]:443:8443", "[2001:db8::1]:443/tcp -> 8443");
        check("192.0.2.1::8443", "192.0.2.1:0/tcp -> 8443");
        check("0.0.0.0:80:80/tcp", "0.0.0.0:80/tcp -> 80");
        check("8080", "0/tcp -> 8080");
        for text in ["", "80:", "80:0", "x:80", "80:80/icmp", "65536:80", "host:80:80", "1:2:3:4", "[::1]80:80"] {
            check(text, "none");
        }
    }

    #[test]
    fn wildcard_and_address_are_in_each_others_way() {
        let bound = |address: &str| Bound {
            address: address.parse().unwrap(),
            public: 80,
            private: 80,
            protocol: Protocol::Tcp,
            owner: "c1".into(),
        };
        let [one, other]: [IpAddr; 2] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap());
        assert!(bound("0.0.0.0").blocks(Protocol::Tcp, one, 80));
        assert!(bound("192.0.2.1").blocks(Protocol::Tcp, WILDCARD, 80));
        assert!(!bound("192.0.2.1").blocks(Protocol::Tcp, other, 80));
        assert!(!bound("0.0.0.0").blocks(Protocol::Udp, one, 80));
        assert!(!bound("0.0.0.0").blocks(Protocol::Tcp, one, 81));
    }
}
