//! The sockets of the service: UDP and TCP on one address and one port.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};

use platform::socket::{tcp_listener, udp_socket};

/// How often another free port is tried when the one the system chose for TCP is taken for UDP.
const FREE_PORT_TRIES: usize = 16;

/// Sockets that listen.
#[derive(Debug)]
pub struct Sockets {
    /// For queries by datagram.
    pub udp: Vec<UdpSocket>,
    /// For queries by connection.
    pub tcp: TcpListener,
}

impl Sockets {
    /// Listens on `address`; port 0 becomes a port that is free for both.
    ///
    /// # Errors
    ///
    /// When the address cannot be used; the text says what to do.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let mut tries = if address.port() == 0 { FREE_PORT_TRIES } else { 1 };
        loop {
            tries -= 1;
            let tcp = tcp_listener(address)?;
            match udp_socket(tcp.local_addr()?) {
                Ok(udp) => return Ok(Self { udp: vec![udp], tcp }),
                Err(error) if tries > 0 && error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The address they listen on.
    ///
    /// # Errors
    ///
    /// When the system does not tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_is_the_same_for_both() {
        let sockets = Sockets::bind(([127, 0, 0, 1], 0).into()).unwrap();
        assert_eq!(sockets.udp[0].local_addr().unwrap(), sockets.address().unwrap());
        let taken = Sockets::bind(sockets.address().unwrap()).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }
}
