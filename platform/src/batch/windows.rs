//! One datagram after the other; `WSAPoll` waits for the first.

use std::io;
use std::net::UdpSocket;
use std::os::windows::io::AsRawSocket;

use windows_sys::Win32::Networking::WinSock::{POLLRDNORM, SOCKET, SOCKET_ERROR, WSAPOLLFD, WSAPoll};

use super::{Buffers, Ends, Leaving, RECEIVE_WAIT, Received, Sent, single};

/// The socket stays as it is, never blocking: it is `WSAPoll` that waits.
pub(super) fn make_blocking(socket: &UdpSocket) -> io::Result<()> {
    socket.set_nonblocking(true)
}

#[derive(Debug, Default)]
pub(super) struct Scratch(());

pub(super) fn receive(
    socket: &UdpSocket,
    buffers: &mut Buffers,
    received: &mut Vec<Received>,
    _: &mut Scratch,
    wait: bool,
) -> io::Result<()> {
    single::receive(socket, buffers, received, || if wait { wait_readable(socket) } else { Ok(()) })
}

pub(super) fn send(socket: &UdpSocket, buffers: &mut Buffers, leaving: &[Leaving]) -> Sent {
    single::send(socket, buffers, leaving)
}

pub(super) fn reply(socket: &UdpSocket, octets: &[u8], ends: Ends) -> io::Result<()> {
    socket.send_to(octets, ends.peer).map(drop)
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
