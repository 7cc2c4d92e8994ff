//! Serving a well-known port without taking it from other programs of the host.
//!
//! A program that listens on all addresses of a host needs the port on each of them: `docker run -p 80:80` and a
//! listener on
//! 169.254.169.250:80 exclude each other, and Docker's rules lead what arrives for port 80 of any local address to the
//! container. On Linux a service therefore binds another port ([`behind`]) and redirects new connections and datagrams
//! there, in a table of nftables that belongs to a socket of this process. The kernel applies it before Docker's rules
//! and removes it with the socket, however the process ends; `nft flush ruleset` leaves it alone. It needs `NET_ADMIN`
//! and Linux 5.12. Windows gives a port to the socket with its exact address, and needs none of this.

#[cfg_attr(target_os = "linux", path = "redirect/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "redirect/other.rs")]
mod system;

use std::io;
use std::net::{IpAddr, SocketAddr};

#[cfg(target_os = "linux")]
use socket2::Socket;

use crate::handover::Handed;

/// How far the port that is bound is from the one that clients use.
///
/// Both are below 512: only the privileged bind there, and programs that take any privileged port begin at 512 (RPC,
/// NFS).
const DISTANCE: u16 = 256;

/// Where a service binds, and where its clients reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    bound: SocketAddr,
    reached: SocketAddr,
}

impl Place {
    /// The address for sockets.
    pub fn bound(self) -> SocketAddr {
        self.bound
    }

    /// The address for clients and messages; its port is 0 when the system is to choose one.
    pub fn reached(self) -> SocketAddr {
        self.reached
    }

    /// The address for clients when it is not the one that is bound.
    pub fn redirected(self) -> Option<SocketAddr> {
        (self.bound != self.reached).then_some(self.reached)
    }
}

impl From<SocketAddr> for Place {
    /// Clients reach what is bound.
    fn from(address: SocketAddr) -> Self {
        Self { bound: address, reached: address }
    }
}

/// What brings clients of an address to a [`Place`], for as long as this lives.
#[derive(Debug)]
pub struct Redirect {
    place: Place,
    rules: system::Rules,
}

impl Redirect {
    /// Redirects TCP and UDP for `address`; `None` where that is never needed or possible: on other systems, for IPv6,
    /// and for ports from 256 on.
    ///
    /// Bind the place soon: until then its clients are refused. The bound port also prevents two services on one
    /// address.
    ///
    /// # Errors
    ///
    /// Fails if the process lacks the right, the kernel is older than 5.12 or has no nftables, or if a program listens
    /// on exactly this address. The address itself can be tried then.
    pub fn install(address: SocketAddr) -> io::Result<Option<Self>> {
        let (Some(bound), IpAddr::V4(ip)) = (behind(address), address.ip()) else { return Ok(None) };
        if system::is_listened_on(address) {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "a program listens on exactly this address"));
        }
        let rules = system::Rules::install(ip, address.port(), bound.port())?;
        Ok(Some(Self { place: Place { bound, reached: address }, rules }))
    }

    /// Adds what the redirect lives by to what is handed on under this name: it stays for as long as any process, or the manager of
    /// services, has that.
    ///
    /// # Errors
    ///
    /// Fails if the system has no descriptor left.
    pub fn hand_on(&self, name: &str, handed: &mut Handed) -> io::Result<()> {
        self.rules.hand_on(name, handed)
    }

    /// Where to bind, and where clients ask.
    pub fn place(&self) -> Place {
        self.place
    }
}

/// The address that is bound behind a redirected one, on systems that redirect.
pub fn behind(address: SocketAddr) -> Option<SocketAddr> {
    let usual = address.is_ipv4() && (1..DISTANCE).contains(&address.port());
    (system::REDIRECTS && usual).then(|| SocketAddr::new(address.ip(), address.port() + DISTANCE))
}

/// Makes the rules of a redirect by this very process, from an address to the port of another one; gives the socket that they live by.
#[cfg(target_os = "linux")]
pub(crate) fn rules_here(address: SocketAddr, behind: SocketAddr) -> io::Result<Socket> {
    let IpAddr::V4(ip) = address.ip() else { return Err(io::ErrorKind::Unsupported.into()) };
    system::Rules::owner(ip, address.port(), behind.port())
}

/// Whether a program listens (TCP) behind a redirected address.
pub fn is_served_behind(address: SocketAddr) -> bool {
    behind(address).is_some_and(system::is_listened_on)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_privileged_ports_of_ipv4_are_redirected_and_to_privileged_ports() {
        for (address, port) in [
            ("169.254.169.250:80", Some(336)),
            ("169.254.169.251:53", Some(309)),
            ("192.0.2.1:255", Some(511)),
            ("192.0.2.1:0", None),
            ("192.0.2.1:256", None),
            ("127.0.0.1:8250", None),
            ("[fd00::1]:80", None),
        ] {
            let address = address.parse().unwrap();
            let port = port.filter(|_| system::REDIRECTS);
            assert_eq!(behind(address).map(|behind| behind.port()), port, "{address}");
        }
    }
}
