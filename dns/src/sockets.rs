//! The sockets of the service: UDP and TCP on one address and one port, and those for encrypted queries.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::thread::available_parallelism;

use platform::ingress::IngressFilter;
use platform::redirect::Place;
use process::{Clients, Failure, Listeners};
use source::Readiness;

use crate::certificate::Certificate;
use crate::config::Options;
use crate::connections::Protocol;

/// Most sockets for datagrams, each with a thread: sixteen answer some five million queries a second, more than a host's
/// containers ask, and an idle thread wakes up ten times a second.
const UDP_MAX: usize = 16;

/// How often another free port is tried when the one the system chose for TCP is taken for UDP.
const FREE_PORT_TRIES: usize = 16;

/// Under which names they are handed on.
const TCP: &str = "dns-tcp";
const UDP: &str = "dns-udp";

/// Sockets that listen.
#[derive(Debug)]
pub struct Sockets {
    /// For queries by datagram: where the system shares an address among sockets, one for each processor.
    pub udp: Vec<UdpSocket>,
    /// For queries by connection.
    pub tcp: TcpListener,
    /// For encrypted queries by connection.
    pub(crate) encrypted: Vec<(TcpListener, Protocol)>,
    /// Where clients reach them, when that is not what they are bound to.
    redirected: Option<SocketAddr>,
}

impl Sockets {
    /// Listens in a place, also with what was handed over; port 0 becomes a port that is free for both.
    ///
    /// # Errors
    ///
    /// When the address cannot be used; the text says what to do.
    pub fn bind(place: Place, listeners: &mut Listeners) -> io::Result<Self> {
        let processors = available_parallelism().map_or(1, usize::from).min(UDP_MAX);
        let mut tries = if place.bound().port() == 0 { FREE_PORT_TRIES } else { 1 };
        loop {
            tries -= 1;
            let tcp = listeners.tcp(TCP, place)?;
            let redirected = place.redirected();
            let place = if redirected.is_some() { place } else { tcp.local_addr()?.into() };
            match listeners.udp(UDP, place, processors) {
                Ok(udp) => return Ok(Self { udp, tcp, encrypted: Vec::new(), redirected }),
                Err(error) if tries > 0 && error.kind() == io::ErrorKind::AddrInUse => listeners.forget(TCP),
                Err(error) => return Err(error),
            }
        }
    }

    /// Listens for encrypted queries too, where the options say so.
    ///
    /// # Errors
    ///
    /// Fails if the certificate or an address cannot be used; the text names it.
    pub fn with_encryption(
        mut self,
        options: &Options,
        readiness: Arc<Readiness>,
        listeners: &mut Listeners,
    ) -> Result<Self, Failure> {
        let Some(folder) = &options.dns_tls_certs else { return Ok(self) };
        if options.dot.or(options.doh).is_none() {
            return Ok(self);
        }
        let certificate = Arc::new(Certificate::follow(folder, readiness)?);
        let protocols = [
            ("dot", options.dot, Protocol::Dot(certificate.clone())),
            ("doh", options.doh, Protocol::Doh(certificate)),
        ];
        for (name, address, protocol) in protocols {
            let Some(address) = address else { continue };
            Clients::warn_if_unspecified(name, address);
            let listener =
                listeners.tcp(name, address.into()).map_err(|error| format!("--{name} {address}: {error}"))?;
            tracing::info!(service = name, address = %listener.local_addr()?, "serving");
            self.encrypted.push((listener, protocol));
        }
        Ok(self)
    }

    /// Adds all of them to a filter.
    ///
    /// # Errors
    ///
    /// When the system refuses another handle of a socket.
    pub fn add_to(&self, filter: &mut IngressFilter) -> io::Result<()> {
        filter.add(&self.tcp)?;
        self.encrypted.iter().try_for_each(|(listener, _)| filter.add(listener))?;
        self.udp.iter().try_for_each(|socket| filter.add(socket))
    }

    /// The address that clients reach them at.
    ///
    /// # Errors
    ///
    /// Fails if the system does not know the address of a socket.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.redirected.map_or_else(|| self.tcp.local_addr(), Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_is_the_same_for_both() {
        let sockets = Sockets::bind(SocketAddr::from(([127, 0, 0, 1], 0)).into(), &mut Listeners::default()).unwrap();
        for udp in &sockets.udp {
            assert_eq!(udp.local_addr().unwrap(), sockets.address().unwrap());
        }
        let taken = Sockets::bind(sockets.address().unwrap().into(), &mut Listeners::default()).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }
}
