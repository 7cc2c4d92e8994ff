//! The address of a name server as people write it.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Port of DNS (RFC 1035 section 4.2).
pub(crate) const PORT: u16 = 53;

/// The address of a name server; the port may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upstream(pub SocketAddr);

impl FromStr for Upstream {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Ok(Self(SocketAddr::new(address, PORT)));
        }
        let address = text.parse().map_err(|_| format!("expected an address with or without port, found {text:?}"))?;
        Ok(Self(address))
    }
}
