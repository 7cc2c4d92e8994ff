//! Sockets that a process hands to the one that takes its place, so that none of its clients notices.
//!
//! The successor is a child that gets its sockets as systemd hands them over: the variables `LISTEN_FDS` and
//! `LISTEN_FDNAMES`, and descriptors from 3 on. Beside them there is a link: the successor says on it that it serves, or why
//! it does not, and learns by its end that the predecessor is gone. Sockets of systemd itself are taken in the same way, then
//! there is no predecessor: those of its socket units, and those that a process of the service before has had it
//! [keep](Handed::keep). Linux only: elsewhere nothing is ever handed over.

#[cfg_attr(target_os = "linux", path = "handover/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "handover/other.rs")]
mod system;

#[cfg(target_os = "linux")]
mod store;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;

use socket2::{SockRef, Socket, Type};
#[cfg(target_os = "linux")]
pub(crate) use system::run_again;

/// Most sockets that are handed over: 16 for datagrams and about ten listeners.
const SOCKETS_MAX: usize = 64;

/// First byte of a message to the predecessor.
const SERVING: u8 = b'R';
const FAILED: u8 = b'E';

/// What was handed to this process.
#[derive(Debug, Default)]
pub struct Inherited {
    sockets: Vec<(String, Socket)>,
    predecessor: Option<Predecessor>,
}

impl Inherited {
    /// Takes over what was handed to this process; nothing, if nothing was, and the second time.
    ///
    /// To be called at the start, before this process opens files or starts programs: these would have the sockets too.
    pub fn take() -> Self {
        system::take().unwrap_or_default()
    }

    /// Whether nothing was handed over.
    pub fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    /// The process that serves on the same sockets, if it is one that this process is to take the place of.
    pub fn predecessor(&self) -> Option<Predecessor> {
        self.predecessor.clone()
    }

    /// A listener of this name on this address, of which port 0 means any.
    pub fn listener(&mut self, name: &str, address: SocketAddr) -> Option<TcpListener> {
        let at = self.position(name, address, Type::STREAM)?;
        Some(self.sockets.remove(at).1.into())
    }

    /// All sockets for datagrams of this name on this address.
    pub fn datagram_sockets(&mut self, name: &str, address: SocketAddr) -> Vec<UdpSocket> {
        let mut sockets = Vec::new();
        while let Some(at) = self.position(name, address, Type::DGRAM) {
            sockets.push(self.sockets.remove(at).1.into());
        }
        sockets
    }

    /// Closes what was not taken, since nothing is configured to be served there; gives the names and addresses.
    pub fn close(&mut self) -> Vec<(String, Option<SocketAddr>)> {
        let address = |socket: &Socket| socket.local_addr().ok().and_then(|address| address.as_socket());
        self.sockets.drain(..).map(|(name, socket)| (name, address(&socket))).collect()
    }

    fn position(&self, name: &str, address: SocketAddr, kind: Type) -> Option<usize> {
        self.sockets.iter().position(|(known, socket)| {
            let is_there = |bound: SocketAddr| {
                bound.ip() == address.ip() && (address.port() == 0 || bound.port() == address.port())
            };
            known == name
                && socket.r#type().is_ok_and(|known| known == kind)
                && socket.local_addr().is_ok_and(|bound| bound.as_socket().is_some_and(is_there))
        })
    }
}

/// The process that serves until its successor, this one, does.
#[derive(Clone, Debug)]
pub struct Predecessor {
    link: system::Link,
    process: u32,
    addresses: Vec<IpAddr>,
}

impl Predecessor {
    /// Its number.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// The addresses that it has put on interfaces, which are to be taken away by this process now.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Reports that this process serves, so that the predecessor ends.
    ///
    /// # Errors
    ///
    /// Fails if it is gone.
    pub fn report_serving(&self) -> io::Result<()> {
        self.link.send(&[SERVING])
    }

    /// Reports why this process does not serve. A predecessor that is gone is not an error.
    pub fn report_failure(&self, reason: &str) {
        let _ = self.link.send(&[&[FAILED], reason.as_bytes()].concat());
    }

    /// Waits until it is gone.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn gone(&self) {
        self.link.ended().await;
    }
}

/// Sockets that a successor is to have.
#[derive(Debug, Default)]
pub struct Handed {
    sockets: Vec<(String, Socket)>,
}

impl Handed {
    /// Adds another handle of a socket; a name may have several.
    ///
    /// # Errors
    ///
    /// Fails if the system has no descriptor left.
    pub fn add<'s, S>(&mut self, name: &str, socket: &'s S) -> io::Result<()>
    where
        SockRef<'s>: From<&'s S>,
    {
        self.sockets.push((name.to_owned(), SockRef::from(socket).try_clone()?));
        Ok(())
    }

    /// Closes the handles of this name.
    pub fn remove(&mut self, name: &str) {
        self.sockets.retain(|(known, _)| known != name);
    }

    /// Has the manager of services keep these, so that they outlive this process however it ends, and hand them to the next one of the
    /// service; what it has kept under the names of `forgotten` it closes before. Does nothing without such a manager.
    pub fn keep(&self, forgotten: &[String]) {
        system::keep(&self.sockets, forgotten);
    }

    /// Closes all handles.
    pub fn clear(&mut self) {
        self.sockets.clear();
    }
}

/// A process that was started to take the place of this one. Dropping this ends it, unless it [serves](Self::serving).
#[derive(Debug)]
pub struct Successor(system::Successor);

impl Successor {
    /// Starts `program` with the arguments of this process and these sockets; `addresses` are those that it has to take away
    /// at its end.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be started, or the system hands nothing over.
    pub fn start(program: &Path, handed: &Handed, addresses: &[IpAddr]) -> io::Result<Self> {
        if handed.sockets.len() > SOCKETS_MAX {
            return Err(io::Error::other(format!("more than {SOCKETS_MAX} sockets are not handed over")));
        }
        system::Successor::start(program, &handed.sockets, addresses).map(Self)
    }

    /// Its number.
    pub fn process(&self) -> u32 {
        self.0.process()
    }

    /// Asks it to stop, as this process was.
    ///
    /// # Errors
    ///
    /// Fails if the system does not pass that on.
    pub fn stop(&self) -> io::Result<()> {
        self.0.stop()
    }

    /// Waits until it serves.
    ///
    /// # Errors
    ///
    /// Fails with the reason if it ended before.
    ///
    /// # Cancel safety
    ///
    /// May be dropped before it completes.
    pub async fn serving(&mut self) -> Result<(), String> {
        self.0.serving().await
    }
}

/// Has programs that this process starts from now on not get what was handed to it, and is not [taken](Inherited::take) yet.
pub fn keep_to_itself() {
    system::keep_to_itself();
}

/// Why the successor of this process would not do, on this system; `None` if it would.
pub fn obstacle() -> Option<&'static str> {
    system::obstacle()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inherited(name: &str) -> (Inherited, SocketAddr) {
        let listener = crate::socket::tcp_listener(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        (Inherited { sockets: vec![(name.to_owned(), listener.into())], predecessor: None }, address)
    }

    #[test]
    fn only_a_socket_of_the_right_name_kind_and_address_is_taken_and_others_are_closed() {
        let (mut sockets, address) = inherited("dns-tcp");
        assert!(sockets.listener("metadata", address).is_none());
        assert!(sockets.datagram_sockets("dns-tcp", address).is_empty());
        assert!(sockets.listener("dns-tcp", ([127, 0, 0, 2], address.port()).into()).is_none());
        assert!(sockets.listener("dns-tcp", ([127, 0, 0, 1], 1).into()).is_none());
        assert_eq!(sockets.close(), [("dns-tcp".to_owned(), Some(address))]);
        // It is free again.
        let _alone = crate::programs::none_starts();
        crate::socket::tcp_listener(address).unwrap();
    }

    #[test]
    fn port_0_means_the_one_that_the_system_has_chosen() {
        let (mut sockets, address) = inherited("metadata");
        let taken = sockets.listener("metadata", ([127, 0, 0, 1], 0).into()).unwrap();
        assert_eq!(taken.local_addr().unwrap(), address);
        assert!(sockets.close().is_empty());
    }
}
