//! Requests to rtnetlink and their replies, over a socket of its own.
//!
//! The kernel works on a request while it is sent, so all replies are there afterwards, or some have found no room in
//! the receive buffer and are lost. A caller that stops in the middle leaves replies behind: they have older sequence numbers,
//! and the next request passes over them.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{AsyncSocket, SocketAddr, TokioSocket};

use super::message::{self, Message, encode, messages};

/// Room for one datagram, in bytes. The kernel makes none of more than 32 KiB.
pub(super) const DATAGRAM_BYTES: usize = 64 << 10;

/// Wanted room for replies that we have not read, in bytes: that for acknowledgements of several thousand changes.
///
/// Where it is refused, the usual size has room for those of one request.
const RECEIVE_BYTES: libc::c_int = 4 << 20;

/// Longest wait for a reply. There is none in practice; it ensures that a lost reply stops nothing for ever.
const REPLY_WITHIN: Duration = Duration::from_secs(10);

/// How often a list is asked for that changes while it is read.
const ATTEMPTS: u32 = 8;

/// Port of the kernel.
const KERNEL: u32 = 0;

/// A socket for requests.
pub(super) struct Conversation {
    socket: Arc<TokioSocket>,
    port: u32,
    /// The number of the latest request.
    sequence: u32,
    /// The datagram that was received last.
    datagram: Vec<u8>,
}

/// The port of a conversation, which no other socket gets as long as this lives.
pub(super) struct Port {
    pub(super) number: u32,
    _bound: Arc<TokioSocket>,
}

/// What became of one request.
#[derive(Debug)]
pub(super) enum Outcome {
    Done,
    /// The code of the system, and all that it said.
    Failed(i32, io::Error),
    /// Its acknowledgement is lost.
    Lost,
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conversation").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Conversation {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
        let port = socket.socket_mut().bind_auto()?.port_number();
        // The kernel then lists what was asked for only. One before Linux 4.20 lists everything, and takes longer.
        let _ = socket.socket_ref().set_netlink_get_strict_chk(true);
        // Errors come with a sentence, and without the request that they are about; since Linux 4.12.
        let _ = socket.socket_ref().set_cap_ack(true);
        let _ = socket.socket_ref().set_ext_ack(true);
        enlarge(&socket);
        Ok(Self { socket: Arc::new(socket), port, sequence: 0, datagram: Vec::with_capacity(DATAGRAM_BYTES) })
    }

    /// Our own port, which the kernel names in its reports of our changes.
    pub(super) fn port(&self) -> Port {
        Port { number: self.port, _bound: Arc::clone(&self.socket) }
    }

    /// Lists what `entry` makes of the messages that answer `request`; it gives `None` for what is not wanted.
    pub(super) async fn dump<T>(
        &mut self,
        request: RouteNetlinkMessage,
        entry: impl Fn(&[u8]) -> io::Result<Option<T>>,
    ) -> io::Result<Vec<T>> {
        for _ in 0..ATTEMPTS {
            self.sequence = self.sequence.wrapping_add(1);
            let mut bytes = Vec::new();
            encode(&mut bytes, NLM_F_REQUEST | NLM_F_DUMP, self.sequence, request.clone());
            self.send(&bytes).await?;
            match self.entries(&entry).await {
                // Another list was not read to its end, or replies to others have filled the buffer.
                Err(error) if is_overflow(&error) || error.raw_os_error() == Some(libc::EBUSY) => {
                    // The list that was begun ends with it.
                    drain(&self.socket, &mut self.datagram);
                }
                Ok(None) => {}
                Ok(Some(entries)) => return Ok(entries),
                Err(error) => return Err(error),
            }
            tokio::task::yield_now().await;
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "the routes change faster than they can be listed"))
    }

    /// The list that was just asked for; `None` when it changed meanwhile, so that something may be missing in it.
    async fn entries<T>(&mut self, entry: impl Fn(&[u8]) -> io::Result<Option<T>>) -> io::Result<Option<Vec<T>>> {
        let (mut entries, mut is_whole) = (Vec::new(), true);
        loop {
            self.receive().await?;
            for message in messages(&self.datagram)?.into_iter().filter(|message| message.sequence == self.sequence) {
                is_whole &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    // A list ends with its error, too.
                    NLMSG_DONE | NLMSG_ERROR => {
                        return match message::code(&message)? {
                            0 => Ok(is_whole.then_some(entries)),
                            code => Err(io::Error::from_raw_os_error(code)),
                        };
                    }
                    _ => entries.extend(entry(message.body)?),
                }
            }
        }
    }

    /// Sends requests as one datagram, and gives the outcome of each.
    pub(super) async fn request(&mut self, requests: impl Iterator<Item = (u16, RouteNetlinkMessage)>) -> Vec<Outcome> {
        let first = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        let mut outcomes = Vec::new();
        for (flags, request) in requests {
            self.sequence = self.sequence.wrapping_add(1);
            encode(&mut bytes, NLM_F_REQUEST | NLM_F_ACK | flags, self.sequence, request);
            outcomes.push(Outcome::Lost);
        }
        if outcomes.is_empty() {
            return outcomes;
        }
        if let Err(error) = self.send(&bytes).await {
            let failed = |_| Outcome::Failed(error.raw_os_error().unwrap_or_default(), copy(&error));
            return outcomes.into_iter().map(failed).collect();
        }
        let (mut missing, mut overflowed) = (outcomes.len(), false);
        while missing > 0 {
            // After an overflow, what has not come yet will not come.
            let received = if overflowed { self.try_receive() } else { self.receive().await };
            match received {
                Ok(()) => {}
                Err(error) if is_overflow(&error) => {
                    overflowed = true;
                    continue;
                }
                // Nothing is left, or comes in time.
                Err(_) => break,
            }
            let Ok(replies) = messages(&self.datagram) else { break };
            for reply in replies.iter().filter(|reply| reply.kind == NLMSG_ERROR) {
                let place = usize::try_from(reply.sequence.wrapping_sub(first)).ok();
                let Some(lost @ Outcome::Lost) = place.and_then(|place| outcomes.get_mut(place)) else { continue };
                if let Ok(outcome) = outcome(reply) {
                    *lost = outcome;
                    missing -= 1;
                }
            }
        }
        outcomes
    }

    async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let kernel = SocketAddr::new(KERNEL, 0);
        poll_fn(|context| self.socket.poll_send_to(context, bytes, &kernel)).await.map(drop)
    }

    /// Receives a datagram of the kernel.
    async fn receive(&mut self) -> io::Result<()> {
        let Self { socket, datagram, .. } = self;
        let receive = async {
            loop {
                datagram.clear();
                let sender = poll_fn(|context| socket.poll_recv_from(context, datagram)).await?;
                if sender.port_number() == KERNEL {
                    return Ok(());
                }
            }
        };
        let late = || Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel does not reply"));
        tokio::time::timeout(REPLY_WITHIN, receive).await.unwrap_or_else(|_| late())
    }

    /// Receives a datagram of the kernel that is there already.
    fn try_receive(&mut self) -> io::Result<()> {
        loop {
            self.datagram.clear();
            let (_, sender) = self.socket.socket_ref().recv_from(&mut self.datagram, 0)?;
            if sender.port_number() == KERNEL {
                return Ok(());
            }
        }
    }
}

/// What tests do to it.
#[cfg(test)]
impl Conversation {
    /// Leaves room for few replies.
    pub(super) fn shrink(&self, bytes: libc::c_int) {
        self.socket.socket_ref().set_rx_buf_sz(bytes).unwrap();
    }

    /// Asks for a list, and reads nothing of it.
    pub(super) async fn begin(&mut self, request: RouteNetlinkMessage) -> io::Result<()> {
        self.abandon((NLM_F_DUMP, request)).await
    }

    /// Sends a request, and reads no reply.
    pub(super) async fn abandon(&mut self, (flags, request): (u16, RouteNetlinkMessage)) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        encode(&mut bytes, NLM_F_REQUEST | flags, self.sequence, request);
        self.send(&bytes).await
    }
}

/// Throws away what a socket has received and nothing has read.
pub(super) fn drain(socket: &TokioSocket, datagram: &mut Vec<u8>) {
    loop {
        datagram.clear();
        match socket.socket_ref().recv_from(datagram, 0) {
            Ok(_) => {}
            Err(error) if is_overflow(&error) => {}
            Err(_) => return,
        }
    }
}

/// Whether a datagram found no room.
pub(super) fn is_overflow(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOBUFS)
}

/// What an acknowledgement says.
fn outcome(reply: &Message<'_>) -> io::Result<Outcome> {
    let code = message::code(reply)?;
    if code == 0 {
        return Ok(Outcome::Done);
    }
    let error = io::Error::from_raw_os_error(code);
    Ok(Outcome::Failed(
        code,
        match message::sentence(reply) {
            Some(sentence) => io::Error::new(error.kind(), format!("{sentence} (os error {code})")),
            None => error,
        },
    ))
}

fn copy(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::new(error.kind(), error.to_string()), io::Error::from_raw_os_error)
}

/// Makes more room for replies where that is allowed.
fn enlarge(socket: &TokioSocket) {
    let bytes = RECEIVE_BYTES;
    let length = libc::socklen_t::try_from(size_of_val(&bytes)).unwrap_or_default();
    // SAFETY: the descriptor is open because `socket` is borrowed; the option takes an integer, which lives until the call
    // returns and has the length that is named.
    #[expect(unsafe_code, reason = "the crates offer the option only within the usual limit")]
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, (&raw const bytes).cast(), length)
    };
    if result != 0 {
        // As much as everybody may have; the usual size would do.
        let _ = socket.socket_ref().set_rx_buf_sz(bytes);
    }
}
