//! Sockets that take packets from containers of this machine and from the machine itself, and from no other sender.
//!
//! Linux answers for an address of one interface on all of them (the weak host model), so that a neighbour on the local
//! network which sends packets for 169.254.169.250 to this machine would be served like a container. A filter on the
//! sockets drops what arrives on other interfaces than those of containers; nothing of the machine's own settings
//! changes, and the filter ends with the sockets. The machine still answers ARP for the address
//! on all interfaces. Windows takes packets for an address on its own interface only, and needs no filter.

#[cfg_attr(target_os = "linux", path = "ingress/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "ingress/other.rs")]
mod system;

use std::io;

use socket2::{SockRef, Socket};
#[cfg(target_os = "linux")]
pub(crate) use system::take_from_here;

/// Sockets with the filter.
#[derive(Debug, Default)]
pub struct IngressFilter {
    sockets: Vec<Socket>,
    interface: Option<String>,
}

impl IngressFilter {
    /// Adds a socket. Connections that a listener accepts have its filter.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses another handle of the socket.
    pub fn add<'s, S>(&mut self, socket: &'s S) -> io::Result<()>
    where
        SockRef<'s>: From<&'s S>,
    {
        self.sockets.push(SockRef::from(socket).try_clone()?);
        Ok(())
    }

    /// Takes packets from the interface with this name, too.
    pub fn take_from(&mut self, interface: &str) {
        self.interface = Some(interface.to_owned());
    }

    /// Sets the filters, and returns a future that updates them as interfaces come and go. That future never ends.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses a filter or does not list its interfaces.
    pub async fn install(self) -> io::Result<impl Future<Output = ()> + Send + 'static> {
        system::install(self.sockets, self.interface).await
    }
}
