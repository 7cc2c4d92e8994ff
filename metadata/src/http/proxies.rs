//! Who a client is: the one at the other end of the connection, or whom a trusted proxy names.
//!
//! A proxy appends the address of its own client to X-Forwarded-For, behind what that client has written there. So only the
//! last element of the last line is the proxy's, and only if the proxy is at the other end.

use std::net::IpAddr;

use crate::Networks;
use crate::config::Options;
use crate::tree::Client;

/// The proxies that are believed.
#[derive(Clone, Debug)]
pub(crate) enum Proxies {
    /// These.
    Trusted(Networks),
    /// All peers, each of which names its client with the first line as a whole, as the predecessor had it.
    Everybody,
}

impl Proxies {
    /// As the options have it.
    pub(crate) fn new(options: &Options) -> Self {
        if options.xff { Self::Everybody } else { Self::Trusted(options.trusted_proxies.iter().cloned().collect()) }
    }

    /// The client of a request with these lines of X-Forwarded-For.
    pub(crate) fn client<'r>(&self, peer: IpAddr, mut forwarded: impl Iterator<Item = &'r [u8]>) -> Client {
        let named = match self {
            Self::Everybody => forwarded.next(),
            Self::Trusted(proxies) if proxies.contains(peer) => {
                forwarded.last().and_then(|line| line.rsplit(|byte| *byte == b',').next()).map(<[u8]>::trim_ascii)
            }
            Self::Trusted(_) => return Client::at(peer),
        };
        let client = named
            .filter(|name| !name.is_empty())
            .map_or_else(|| Client::at(peer), |name| Client::named(&String::from_utf8_lossy(name)));
        Client { proxied: true, ..client }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(options: &Options, peer: &str, lines: &[&str], address: &str, proxied: bool) {
        let lines = lines.iter().map(|line| line.as_bytes());
        let client = Proxies::new(options).client(peer.parse().unwrap(), lines);
        assert_eq!((client.address, client.proxied), (address.parse().ok(), proxied), "{options:?} {peer}");
    }

    #[test]
    fn nobody_names_another_client_but_a_trusted_proxy() {
        let options = Options { trusted_proxies: vec!["10.0.0.1".parse().unwrap()], ..Options::default() };
        check(&options, "10.0.0.2", &["10.0.0.9"], "10.0.0.2", false);
        check(&Options::default(), "127.0.0.1", &["10.0.0.9"], "127.0.0.1", false);
        // What the proxy's client has written comes first.
        check(&options, "10.0.0.1", &["10.0.0.9"], "10.0.0.9", true);
        check(&options, "::ffff:10.0.0.1", &["10.0.0.9, 10.0.0.8"], "10.0.0.8", true);
        check(&options, "10.0.0.1", &["10.0.0.9", "10.0.0.8,10.0.0.7 "], "10.0.0.7", true);
        check(&options, "10.0.0.1", &["10.0.0.9", "unknown"], "", true);
        check(&options, "10.0.0.1", &[], "10.0.0.1", true);
        check(&options, "10.0.0.1", &["10.0.0.9,"], "10.0.0.1", true);
    }

    #[test]
    fn the_old_flag_believes_everybody() {
        let options = Options { xff: true, ..Options::default() };
        check(&options, "10.0.0.2", &["10.0.0.9", "10.0.0.8"], "10.0.0.9", true);
        check(&options, "10.0.0.2", &["10.0.0.9, 10.0.0.8"], "", true);
        check(&options, "10.0.0.2", &["", "10.0.0.8"], "10.0.0.2", true);
    }
}
