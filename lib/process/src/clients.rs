//! Whose requests a service answers: those of clients in its networks.
//!
//! An answer about a cluster is for its hosts and containers. Addresses that are routed in the Internet are none of them
//! unless the operator says so.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use clap::Args;
use ipnet::IpNet;
use tracing::warn;

/// The word for [`PRIVATE`] in options.
const PRIVATE_WORD: &str = "private";

/// Networks that are not routed in the Internet: private ones (RFC 1918, RFC 4193), those of carriers (RFC 6598), where
/// containers of some clusters are, link-local ones and loopback.
const PRIVATE: [&str; 9] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "169.254.0.0/16",
    "127.0.0.0/8",
    "fc00::/7",
    "fe80::/10",
    "::1/128",
];

/// Most refused addresses that are logged by name; sender addresses of datagrams can be forged, 17 bytes each.
const LOGGED_MAX: usize = 1024;

/// The option that says whose requests are answered.
#[derive(Args, Clone, Debug)]
pub struct ClientOptions {
    /// Answer clients of this network only; may be given several times. `private` stands for private, carrier-grade NAT,
    /// link-local and loopback addresses
    #[arg(long, value_name = "CIDR", env = "BERTH_CLIENTS", value_delimiter = ',', default_value = PRIVATE_WORD)]
    pub clients: Vec<Networks>,
}

/// Some networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<IpNet>);

/// The clients that a service answers.
#[derive(Debug)]
pub struct Clients {
    networks: Networks,
    /// Refused addresses that were logged.
    logged: Mutex<HashSet<IpAddr>>,
}

impl Networks {
    /// Networks that are not routed in the Internet.
    pub fn private() -> Self {
        Self(PRIVATE.iter().filter_map(|network| network.parse().ok()).collect())
    }

    /// Whether an address belongs to one of them; an IPv4 address may be written as IPv6 (RFC 4291, section 2.5.5.2).
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }
}

impl FromStr for Networks {
    type Err = String;

    /// One network, as a CIDR, as a single address or as the word for all private ones.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == PRIVATE_WORD {
            return Ok(Self::private());
        }
        let network = text.parse().or_else(|_| text.parse().map(|address: IpAddr| IpNet::from(address.to_canonical())));
        let network =
            network.map_err(|_| format!("{text:?} is no network; expected ADDRESS/LENGTH, ADDRESS or private"));
        Ok(Self(vec![network?]))
    }
}

impl FromIterator<Self> for Networks {
    fn from_iter<T: IntoIterator<Item = Self>>(parts: T) -> Self {
        Self(parts.into_iter().flat_map(|part| part.0).collect())
    }
}

impl Clients {
    /// The clients in these networks.
    pub fn new(networks: &[Networks]) -> Self {
        Self { networks: networks.iter().cloned().collect(), logged: Mutex::default() }
    }

    /// Whether requests from an address are answered.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.networks.contains(address)
    }

    /// Logs that a client was refused, once for each address, with the option that would let it in.
    pub fn log_refusal(&self, service: &'static str, address: IpAddr) {
        let address = address.to_canonical();
        if self.is_first(address) {
            let clients = IpNet::from(address);
            warn!(
                service,
                client = %address,
                "refused a client of a network that is not served; to serve it, too: --clients {PRIVATE_WORD},{clients}"
            );
        }
    }

    /// Whether an address was not logged yet, and is now.
    fn is_first(&self, address: IpAddr) -> bool {
        // The only lock that is held.
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.len() < LOGGED_MAX && logged.insert(address)
    }

    /// Logs a warning if a service listens on all addresses of the machine.
    pub fn warn_if_unspecified(service: &'static str, address: SocketAddr) {
        if address.ip().is_unspecified() {
            warn!(
                service,
                %address,
                "listens on all addresses of this machine, also on those that other machines reach; give one address to \
                 listen on, or narrow --clients"
            );
        }
    }
}

impl Default for Clients {
    fn default() -> Self {
        Self::new(&[Networks::private()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(networks: &[&str]) -> Clients {
        Clients::new(&networks.iter().map(|network| network.parse().unwrap()).collect::<Vec<_>>())
    }

    #[test]
    fn addresses_of_the_internet_are_not_served_by_default() {
        let clients = Clients::default();
        for (address, is_served) in [
            ("127.0.0.1", true),
            ("10.42.0.7", true),
            ("172.17.0.2", true),
            ("172.32.0.1", false),
            ("192.168.255.255", true),
            ("100.64.0.1", true),
            ("100.128.0.1", false),
            ("169.254.169.250", true),
            ("192.0.2.1", false),
            ("8.8.8.8", false),
            ("::1", true),
            ("fd00::1", true),
            ("fe80::1", true),
            ("2001:db8::1", false),
            ("::ffff:10.0.0.1", true),
            ("::ffff:192.0.2.1", false),
        ] {
            assert_eq!(clients.contains(address.parse().unwrap()), is_served, "{address}");
        }
    }

    #[test]
    fn networks_that_are_given_replace_the_default() {
        let (outside, private) = ("192.0.2.7".parse().unwrap(), "10.0.0.1".parse().unwrap());
        for (networks, expected) in [
            (&["192.0.2.0/24"][..], (true, false)),
            (&["192.0.2.7"], (true, false)),
            (&["::ffff:192.0.2.7"], (true, false)),
            (&["private", "192.0.2.8"], (false, true)),
            (&["private", "192.0.2.0/29"], (true, true)),
            (&["0.0.0.0/0"], (true, true)),
            (&[], (false, false)),
        ] {
            let clients = clients(networks);
            assert_eq!((clients.contains(outside), clients.contains(private)), expected, "{networks:?}");
        }
        for text in ["", "all", "10.0.0.0/33", "10.0.0.0/", "example.org", "10.0.0.0/8,192.0.2.0/24"] {
            assert!(text.parse::<Networks>().unwrap_err().contains("expected"), "{text}");
        }
    }

    #[test]
    fn a_refused_address_does_not_fill_the_log() {
        let clients = Clients::default();
        let address = |number: u32| IpAddr::V4(std::net::Ipv4Addr::from_bits(0xc000_0200 + number));
        assert!(clients.is_first(address(0)));
        assert!(!clients.is_first(address(0)));
        assert_eq!((1..5000).filter(|number| clients.is_first(address(*number))).count(), LOGGED_MAX - 1);
    }
}
