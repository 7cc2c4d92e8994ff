//! Where a Docker Engine listens.
//!
//! Over the network an engine is only reached by mutual TLS, since access to it is access to the whole host.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

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

/// Why a text is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// It is written in another way.
    #[error("{0:?}, expected unix:///PATH, npipe:////./pipe/NAME or tcp://HOST:PORT")]
    Form(String),
    /// An address without a port.
    #[error("{0} has no port (engines have 2376 with TLS, 2375 without)")]
    NoPort(String),
    /// Unprotected over the network.
    #[error("{0} is not loopback: give tcp:// and --docker-certs")]
    Unprotected(String),
    /// Protected, without a client certificate.
    #[error("{0} needs certificates: give --docker-certs (a folder with ca.pem, cert.pem and key.pem)")]
    NoCertificates(String),
}

impl Endpoint {
    /// The endpoint in `unix:///path`, `npipe:////./pipe/name`, `tcp://host:port` or, on loopback, `http://host:port`.
    ///
    /// `certificates` says whether there are some: then `tcp://` means TLS on loopback too.
    ///
    /// # Errors
    ///
    /// Fails if it is not an endpoint; the error says what was expected.
    pub fn parse(text: &str, certificates: bool) -> Result<Self, EndpointError> {
        match Self::read(text)? {
            (Self::Tls(_), _) if !certificates => Err(EndpointError::NoCertificates(text.trim().to_owned())),
            (Self::Plain(address), "tcp") if certificates => Ok(Self::Tls(address)),
            (endpoint, _) => Ok(endpoint),
        }
    }

    /// The same when there are certificates: TLS is used wherever it can be.
    #[must_use]
    pub fn with_certificates(self) -> Self {
        match self {
            Self::Plain(address) => Self::Tls(address),
            other => other,
        }
    }

    /// Whether the engine is on this machine for certain.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Local(_) => true,
            Self::Plain(address) | Self::Tls(address) => {
                address.rsplit_once(':').is_some_and(|(host, _)| loopback(host))
            }
        }
    }

    /// The address of the engine's host, when it is spoken to over the network by its address.
    pub fn remote_address(&self) -> Option<IpAddr> {
        match self {
            Self::Tls(address) => ip(address.rsplit_once(':')?.0).filter(|ip| !ip.is_loopback()),
            Self::Local(_) | Self::Plain(_) => None,
        }
    }

    /// The endpoint, and the scheme it was written with.
    fn read(text: &str) -> Result<(Self, &str), EndpointError> {
        let text = text.trim();
        let wrong = || EndpointError::Form(text.to_owned());
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let endpoint = match scheme {
            "unix" | "npipe" if rest.starts_with('/') => Self::Local(rest.to_owned()),
            "tcp" | "http" | "https" => {
                let address = rest.trim_end_matches('/');
                let (host, port) = address.rsplit_once(':').ok_or_else(|| EndpointError::NoPort(text.to_owned()))?;
                if host.is_empty() || port.parse::<u16>().is_err() || address.contains('/') {
                    return Err(wrong());
                }
                match (scheme, loopback(host)) {
                    ("tcp" | "http", true) => Self::Plain(address.to_owned()),
                    ("http", false) => return Err(EndpointError::Unprotected(text.to_owned())),
                    _ => Self::Tls(address.to_owned()),
                }
            }
            _ => return Err(wrong()),
        };
        Ok((endpoint, scheme))
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    /// Parses an endpoint without knowing whether there are certificates: `tcp://` on loopback means without TLS.
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        Self::read(text).map(|(endpoint, _)| endpoint)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) if path.starts_with("//") => write!(f, "npipe://{path}"),
            Self::Local(path) => write!(f, "unix://{path}"),
            Self::Plain(address) => write!(f, "http://{address}"),
            Self::Tls(address) => write!(f, "https://{address}"),
        }
    }
}

fn ip(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

fn loopback(host: &str) -> bool {
    host == "localhost" || ip(host).is_some_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_over_the_network_need_certificates() {
        for (text, certificates, expected) in [
            ("unix:///var/run/docker.sock", false, "unix:///var/run/docker.sock"),
            ("npipe:////./pipe/docker_engine", false, "npipe:////./pipe/docker_engine"),
            ("tcp://192.0.2.10:2376", true, "https://192.0.2.10:2376"),
            ("tcp://host.example.org:2376", true, "https://host.example.org:2376"),
            ("tcp://127.0.0.1:2375", false, "http://127.0.0.1:2375"),
            ("tcp://127.0.0.1:2376", true, "https://127.0.0.1:2376"),
            ("http://[::1]:2375/", true, "http://[::1]:2375"),
        ] {
            let endpoint = Endpoint::parse(text, certificates).unwrap();
            assert_eq!(endpoint.to_string(), expected, "{text}");
            assert_eq!(expected.parse(), Ok(endpoint), "{text}");
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
            let error = Endpoint::parse(text, false).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_text_alone_says_what_it_can() {
        for (text, endpoint, local, remote) in [
            ("unix:///run/d.sock", Endpoint::Local("/run/d.sock".into()), true, None),
            ("tcp://localhost:2375", Endpoint::Plain("localhost:2375".into()), true, None),
            ("tcp://192.0.2.10:2376", Endpoint::Tls("192.0.2.10:2376".into()), false, Some("192.0.2.10")),
            ("tcp://[2001:db8::1]:2376", Endpoint::Tls("[2001:db8::1]:2376".into()), false, Some("2001:db8::1")),
            ("tcp://host.example.org:2376", Endpoint::Tls("host.example.org:2376".into()), false, None),
        ] {
            let parsed: Endpoint = text.parse().unwrap();
            assert_eq!((&parsed, parsed.is_local()), (&endpoint, local), "{text}");
            assert_eq!(parsed.remote_address(), remote.map(|text| text.parse().unwrap()), "{text}");
        }
        let plain: Endpoint = "tcp://127.0.0.1:2375".parse().unwrap();
        assert_eq!(plain.with_certificates(), Endpoint::Tls("127.0.0.1:2375".into()));
    }
}
