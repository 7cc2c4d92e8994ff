//! Receives in flight on a completion port ([`super::port`]); replies leave one after the other, which never waits.

use std::io;
use std::net::UdpSocket;
use std::os::windows::io::AsRawSocket;
use std::time::Duration;

use windows_sys::Win32::Networking::WinSock::{POLLRDNORM, SOCKET, SOCKET_ERROR, WSAPOLLFD, WSAPoll};

use super::port::Engine;
use super::{Buffers, Ends, Leaving, RECEIVE_WAIT, Received, Sent, single};

/// The socket stays as it is, never blocking: it is the port that waits.
pub(super) fn make_blocking(socket: &UdpSocket) -> io::Result<()> {
    socket.set_nonblocking(true)
}

/// Receives go on instead.
#[derive(Debug)]
pub(super) struct Sleep;

/// Nothing sleeps.
#[derive(Debug)]
pub(super) struct Alarm;

#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with unix.rs")]
pub(super) fn sleep() -> io::Result<(Sleep, Alarm)> {
    Ok((Sleep, Alarm))
}

impl Sleep {
    #[expect(clippy::unused_self, reason = "the signature is shared with unix.rs")]
    pub(super) fn wait(&self, _: &UdpSocket) {}
}

/// What receives for the socket of the last call.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    engine: Option<Engine>,
    /// A socket that has a completion port of another owner: its datagrams are taken one after the other.
    refused: Option<u64>,
}

pub(super) fn receive(
    socket: &UdpSocket,
    buffers: &mut Buffers,
    received: &mut Vec<Received>,
    scratch: &mut Scratch,
    wait: bool,
) -> io::Result<()> {
    match scratch.engine(socket, buffers.room) {
        Some(engine) => engine.receive(buffers, received, if wait { RECEIVE_WAIT } else { Duration::ZERO }),
        None => single::receive(socket, buffers, received, || if wait { wait_readable(socket) } else { Ok(()) }),
    }
}

impl Scratch {
    /// The engine for this socket, when it can have one.
    fn engine(&mut self, socket: &UdpSocket, room: usize) -> Option<&mut Engine> {
        if self.refused == Some(socket.as_raw_socket()) {
            return None;
        }
        if self.engine.as_ref().is_none_or(|engine| !engine.is_of(socket)) {
            self.engine = Engine::new(socket, room).ok();
            self.refused = self.engine.is_none().then(|| socket.as_raw_socket());
        }
        self.engine.as_mut()
    }
}

/// Replies leave one by one. Windows could send many as one (`UDP_SEND_MSG_SIZE`), but it was not measured yet whether
/// that is a gain there.
#[derive(Debug)]
pub(super) struct Grouping;

impl Grouping {
    pub(super) fn off() -> Self {
        Self
    }

    pub(super) fn of(_: &UdpSocket) -> Self {
        Self
    }
}

pub(super) fn send(socket: &UdpSocket, buffers: &Buffers, leaving: &[Leaving], _: &mut Grouping) -> Sent {
    single::send(socket, buffers, leaving)
}

pub(super) fn reply(socket: &UdpSocket, bytes: &[u8], ends: Ends) -> io::Result<()> {
    socket.send_to(bytes, ends.peer).map(drop)
}

fn wait_readable(socket: &UdpSocket) -> io::Result<()> {
    let milliseconds = i32::try_from(RECEIVE_WAIT.as_millis()).map_err(io::Error::other)?;
    let fd = SOCKET::try_from(socket.as_raw_socket()).map_err(io::Error::other)?;
    let mut wanted = WSAPOLLFD { fd, events: POLLRDNORM, revents: 0 };
    // SAFETY: the socket is open because it is borrowed; the pointer is to one structure, as the count says, which lives
    // until the call returns.
    #[expect(unsafe_code, reason = "std cannot wait for a socket")]
    let result = unsafe { WSAPoll(&raw mut wanted, 1, milliseconds) };
    if result == SOCKET_ERROR { Err(io::Error::last_os_error()) } else { Ok(()) }
}
