//! The name servers that the operating system is configured to ask.

#[cfg_attr(unix, path = "resolvers/unix.rs")]
#[cfg_attr(windows, path = "resolvers/windows.rs")]
mod system;

use std::io;
use std::net::SocketAddr;

/// Port of DNS (RFC 1035 section 4.2).
const PORT: u16 = 53;

/// The system's name servers in the order of preference, each once.
///
/// Linux: /etc/resolv.conf. Windows: those of the adapters which are up, lowest interface metric first. Our own addresses
/// are not left out; the caller knows them.
pub fn system() -> io::Result<Vec<SocketAddr>> {
    system::resolvers()
}

fn push_new(resolvers: &mut Vec<SocketAddr>, resolver: SocketAddr) {
    if !resolvers.contains(&resolver) {
        resolvers.push(resolver);
    }
}
