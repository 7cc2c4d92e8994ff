//! The sockets of a process: handed over by the one before it or bound, and handed on to the one after it.

use std::io;
use std::net::{TcpListener, UdpSocket};

use platform::handover::{Handed, Inherited};
use platform::redirect::{Place, Redirect};
use platform::socket::{tcp_listener_at, udp_sockets_at};
use tracing::warn;

/// The name of what redirects live by. What another process has left of it is needed until this one has its own.
const REDIRECT: &str = "redirect";

/// Sockets by the names under which they are handed on.
#[derive(Debug, Default)]
pub struct Listeners {
    inherited: Inherited,
    handed: Handed,
}

impl Listeners {
    /// Those of a process that has inherited these.
    pub(crate) fn new(inherited: Inherited) -> Self {
        Self { inherited, handed: Handed::default() }
    }

    /// A listener in a place, see [`tcp_listener_at`].
    ///
    /// # Errors
    ///
    /// Fails if none was handed over and the place cannot be bound; the text says what to do.
    pub fn tcp(&mut self, name: &str, place: Place) -> io::Result<TcpListener> {
        let inherited = self.inherited.listener(name, place.bound());
        let listener = inherited.map_or_else(|| tcp_listener_at(place), Ok)?;
        self.handed.add(name, &listener)?;
        Ok(listener)
    }

    /// Sockets for datagrams in a place: as many as were handed over, otherwise this number, see [`udp_sockets_at`].
    ///
    /// # Errors
    ///
    /// Fails if none was handed over and the place cannot be bound; the text says what to do.
    pub fn udp(&mut self, name: &str, place: Place, count: usize) -> io::Result<Vec<UdpSocket>> {
        let inherited = self.inherited.datagram_sockets(name, place.bound());
        let sockets = if inherited.is_empty() { udp_sockets_at(place, count)? } else { inherited };
        sockets.iter().try_for_each(|socket| self.handed.add(name, socket))?;
        Ok(sockets)
    }

    /// Has a redirect outlive this process, if its sockets do.
    ///
    /// # Errors
    ///
    /// Fails if the system has no descriptor left.
    pub(crate) fn add_redirect(&mut self, redirect: &Redirect) -> io::Result<()> {
        redirect.hand_on(REDIRECT, &mut self.handed)
    }

    /// Forgets what is handed on under a name, since it was not good for anything.
    pub fn forget(&mut self, name: &str) {
        self.handed.remove(name);
    }

    /// Closes what was handed over and is served nowhere by the options of today, and has the manager of services keep the others for the
    /// process after this one, however this one ends.
    pub(crate) fn settle(&mut self) {
        let mut closed = Vec::new();
        for (name, address) in self.inherited.close() {
            if name != REDIRECT {
                let address = address.map(|address| address.to_string());
                warn!(name, address, "closed: it was handed over, and nothing is configured to be served there");
            }
            closed.push(name);
        }
        self.handed.keep(&closed);
    }

    /// What is handed on.
    pub(crate) fn handed(&self) -> &Handed {
        &self.handed
    }

    /// Closes what would be handed on: a client is refused as soon as what serves has closed its own.
    pub(crate) fn close(&mut self) {
        self.handed.clear();
    }
}
