//! Docker engines: where the engine of each host listens.
//!
//! A host says so in a label, or a file says it for hosts by name: `linux-1: tcp://192.0.2.10:2376`, with `*` for all
//! others. Over the network an engine is only spoken to by mutual TLS, since who reaches it has the whole host.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use model::{Text, Value};

use crate::bits::Bits;
use crate::hosts::{Facts, Hosts};

/// Host label with the address of its Docker Engine.
pub const ENDPOINT_LABEL: &str = "io.berth.docker.endpoint";

/// Word in the file for hosts that have no line of their own.
const OTHERS: &str = "*";

/// Where an engine listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A socket of Unix or a named pipe of Windows, as its path.
    Local(String),
    /// Without TLS, on loopback: `127.0.0.1:2375`.
    Plain(String),
    /// With mutual TLS: `192.0.2.10:2376`.
    Tls(String),
}

impl Endpoint {
    /// The endpoint in `unix:///path`, `npipe:////./pipe/name`, `tcp://host:port` or, on loopback, `http://host:port`.
    ///
    /// # Errors
    ///
    /// What was expected.
    pub fn parse(text: &str, certificates: bool) -> Result<Self, String> {
        let expected = "unix:///PATH, npipe:////./pipe/NAME or tcp://HOST:PORT";
        let (scheme, rest) = text.trim().split_once("://").ok_or_else(|| format!("{text:?}, expected {expected}"))?;
        match scheme {
            "unix" | "npipe" if rest.starts_with('/') => Ok(Self::Local(rest.to_owned())),
            "tcp" | "http" | "https" => {
                let address = rest.trim_end_matches('/');
                let (host, port) = address.rsplit_once(':').ok_or_else(|| format!("{text} has no port"))?;
                if host.is_empty() || port.parse::<u16>().is_err() || address.contains('/') {
                    return Err(format!("{text:?}, expected {expected}"));
                }
                let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
                let loopback = host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback());
                match (scheme, certificates, loopback) {
                    ("tcp" | "https", true, _) => Ok(Self::Tls(address.to_owned())),
                    ("tcp" | "http", _, true) => Ok(Self::Plain(address.to_owned())),
                    ("http", _, false) => Err(format!("{text} is not loopback: give tcp:// and --docker-certs")),
                    _ => Err(format!("{text} needs certificates: give --docker-certs")),
                }
            }
            _ => Err(format!("{text:?}, expected {expected}")),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => f.write_str(path),
            Self::Plain(address) => write!(f, "http://{address}"),
            Self::Tls(address) => write!(f, "https://{address}"),
        }
    }
}

/// The engines of all hosts.
#[derive(Clone, Debug, Default)]
pub struct Endpoints {
    by_host: HashMap<String, Text>,
    others: Option<Text>,
    /// Whether there are certificates for mutual TLS.
    certificates: bool,
}

impl Endpoints {
    /// The engines that labels of hosts name, and no others.
    pub fn of_labels(certificates: bool) -> Self {
        Self { certificates, ..Self::default() }
    }

    /// The engines in a map from hosts to endpoints.
    ///
    /// # Errors
    ///
    /// Which entry is wrong.
    pub fn new(value: &Value, certificates: bool) -> Result<Self, String> {
        let map = value.as_map().ok_or_else(|| format!("found {}, expected a map from hosts", value.kind()))?;
        let mut endpoints = Self { certificates, ..Self::default() };
        for (host, endpoint) in map {
            let text = endpoint.as_text().ok_or_else(|| format!("{host}: found {}, expected text", endpoint.kind()))?;
            Endpoint::parse(text, certificates).map_err(|error| format!("{host}: {error}"))?;
            if &**host == OTHERS {
                endpoints.others = Some(text.clone());
            } else {
                endpoints.by_host.insert(host.to_lowercase(), text.clone());
            }
        }
        Ok(endpoints)
    }

    /// Where the engine of a host listens.
    ///
    /// # Errors
    ///
    /// That nobody says where, or what is wrong with what they say.
    pub fn of(&self, facts: &Facts) -> Result<Endpoint, String> {
        let own = [&facts.uuid, &facts.name].into_iter().find_map(|word| self.by_host.get(&word.to_lowercase()));
        let text = own.or_else(|| facts.label(ENDPOINT_LABEL)).or(self.others.as_ref());
        let text = text.ok_or_else(|| format!("host {} has no label {ENDPOINT_LABEL}", facts.name))?;
        Endpoint::parse(text, self.certificates).map_err(|error| format!("engine of host {}: {error}", facts.name))
    }

    /// The hosts of which somebody says where their engine listens.
    pub fn known(&self, hosts: &Hosts) -> Bits {
        if self.others.is_some() {
            return Bits::all(hosts.len());
        }
        let mut known = Bits::none(hosts.len());
        for (_, having) in hosts.values(ENDPOINT_LABEL) {
            known.unite(having);
        }
        for word in self.by_host.keys() {
            if let Some(host) = hosts.find(word) {
                known.insert(host);
            }
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_over_the_network_need_certificates() {
        for (text, certificates, expected) in [
            ("unix:///var/run/docker.sock", false, "/var/run/docker.sock"),
            ("npipe:////./pipe/docker_engine", false, "//./pipe/docker_engine"),
            ("tcp://192.0.2.10:2376", true, "https://192.0.2.10:2376"),
            ("tcp://host.example.org:2376", true, "https://host.example.org:2376"),
            ("tcp://127.0.0.1:2375", false, "http://127.0.0.1:2375"),
            ("tcp://127.0.0.1:2376", true, "https://127.0.0.1:2376"),
            ("http://[::1]:2375/", true, "http://[::1]:2375"),
        ] {
            assert_eq!(Endpoint::parse(text, certificates).unwrap().to_string(), expected, "{text}");
        }
        for (text, part) in [
            ("tcp://192.0.2.10:2376", "--docker-certs"),
            ("http://192.0.2.10:2375", "--docker-certs"),
            ("https://127.0.0.1:2376", "--docker-certs"),
            ("tcp://192.0.2.10", "no port"),
            ("tcp://:2376", "expected"),
            ("ssh://host:22", "expected"),
            ("unix:relative", "expected"),
            ("", "expected"),
        ] {
            let error = Endpoint::parse(text, false).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn files_name_hosts_and_all_others() {
        let endpoints = |json: &str| Endpoints::new(&serde_json::from_str(json).unwrap(), false);
        assert!(endpoints(r#"{"One": "unix:///a", "*": "unix:///b"}"#).is_ok());
        for (json, part) in [("[]", "a map"), (r#"{"one": 5}"#, "one: found"), (r#"{"one": "x"}"#, "one: \"x\"")] {
            let error = endpoints(json).unwrap_err();
            assert!(error.contains(part), "{json}: {error}");
        }
    }
}
