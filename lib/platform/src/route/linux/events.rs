//! Changes as rtnetlink reports them.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::time::Duration;

use rtnetlink::MulticastGroup;
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{AsyncSocket, SocketAddr, TokioSocket};

use super::conversation::{DATAGRAM_BYTES, Port, drain, is_overflow};
use super::message::messages;

/// Pause after a change, so that the several reports of one change are one hint.
const SETTLE: Duration = Duration::from_millis(10);

/// Pause after the socket failed, so that what lasts costs little.
const PAUSE: Duration = Duration::from_secs(1);

/// What is reported. Routes alone are not enough: those that go with their link are not reported.
const GROUPS: [MulticastGroup; 3] = [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv4Route];

/// A socket that the kernel sends its reports to.
///
/// It is read by nothing but [`changed`](Self::changed): should it overflow in between, that is a change too.
pub(in super::super) struct Events {
    socket: TokioSocket,
    /// The port of the requests whose effects are not reported.
    own: Port,
    /// Whether something has changed that was not returned yet.
    pending: bool,
    datagram: Vec<u8>,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("own", &self.own.number).field("pending", &self.pending).finish_non_exhaustive()
    }
}

impl Events {
    pub(super) fn open(own: Port) -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
        let groups = GROUPS.iter().fold(0, |groups, group| groups | 1 << (*group as u32 - 1));
        socket.socket_mut().bind(&SocketAddr::new(0, groups))?;
        Ok(Self { socket, own, pending: false, datagram: Vec::with_capacity(DATAGRAM_BYTES) })
    }

    pub(in super::super) async fn changed(&mut self) {
        while !self.pending {
            let Self { socket, datagram, .. } = self;
            datagram.clear();
            let received = poll_fn(|context| socket.poll_recv_from(context, datagram)).await;
            // An overflow is all the same a change.
            let failed = received.as_ref().is_err_and(|error| !is_overflow(error));
            self.pending = received.is_err() || self.is_foreign();
            if failed {
                tokio::time::sleep(PAUSE).await;
            }
        }
        tokio::time::sleep(SETTLE).await;
        drain(&self.socket, &mut self.datagram);
        self.pending = false;
    }

    #[expect(clippy::unused_async, reason = "the signature is shared with windows.rs")]
    pub(in super::super) async fn has_changed(&mut self) -> bool {
        loop {
            self.datagram.clear();
            match self.socket.socket_ref().recv_from(&mut self.datagram, 0) {
                Ok(_) => self.pending |= self.is_foreign(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.pending = true;
                    if !is_overflow(&error) {
                        break;
                    }
                }
            }
        }
        mem::take(&mut self.pending)
    }

    /// Whether the datagram reports anything but an effect of our own requests.
    fn is_foreign(&self) -> bool {
        // What cannot be read may be anything.
        messages(&self.datagram).is_ok_and(|messages| messages.iter().any(|message| message.port != self.own.number))
    }
}
