//! Several receives in flight at once, on a completion port of their own.
//!
//! Windows has no call that takes many datagrams. But it fills buffers that wait for datagrams while no call is made,
//! and then reports many in one call. So a datagram that arrives while others are answered already lies in its buffer,
//! and a busy service asks as seldom as with recvmmsg(2).
//!
//! While a receive is in flight its memory is the system's: it is reached by raw pointers only and outlives the engine
//! until the system has given it back. What arrived is copied out, some hundred bytes, so that its receive is in flight
//! again before it is looked at.
//!
//! The system could be asked not to report receives that end at once (`FILE_SKIP_COMPLETION_PORT_ON_SUCCESS`). That is
//! known to go wrong with datagrams (libuv works around it by going below Winsock): some are reported all the same, when
//! their buffer is in flight again already.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::windows::io::{AsRawHandle, AsRawSocket, FromRawHandle, OwnedHandle, RawSocket};
use std::ptr;
use std::time::Duration;

use windows_sys::Win32::Foundation::{
    ERROR_OPERATION_ABORTED, FALSE, HANDLE, INVALID_HANDLE_VALUE, STATUS_PENDING, WAIT_TIMEOUT,
};
use windows_sys::Win32::Networking::WinSock::{
    AF_INET, AF_INET6, SOCKADDR_IN6, SOCKET, WSA_IO_PENDING, WSABUF, WSAGetOverlappedResult, WSARecvFrom,
};
use windows_sys::Win32::System::IO::{
    CancelIoEx, CreateIoCompletionPort, GetQueuedCompletionStatusEx, OVERLAPPED, OVERLAPPED_ENTRY,
};

use super::{Buffers, DATAGRAMS, Ends, Received};
use crate::socket::is_transient;

/// Receives in flight: as many as one call reports, so that a full batch can arrive while the one before is answered.
pub(super) const RECEIVES: usize = DATAGRAMS;

/// How long it is waited for the system to give memory back, in all; it does at once.
const CANCEL_WAIT: Duration = Duration::from_secs(5);

/// How long one call of these waits.
const CANCEL_STEP: Duration = Duration::from_millis(500);

/// Bytes of the longest address.
const NAME_BYTES: usize = size_of::<SOCKADDR_IN6>();

/// A receive, as the system knows it.
#[repr(C)]
struct Operation {
    /// Stands first: the system reports a receive by this address.
    overlapped: OVERLAPPED,
    name: Name,
    name_bytes: i32,
    flags: u32,
}

/// An address as the system writes it.
#[repr(C, align(8))]
struct Name([u8; NAME_BYTES]);

/// The receives of one socket.
#[derive(Debug)]
pub(super) struct Engine {
    /// Another handle of the socket, so that it stays open as long as receives are in flight.
    socket: UdpSocket,
    /// The handle that it was made from.
    of: RawSocket,
    port: OwnedHandle,
    /// [`RECEIVES`] of them, never moved and, while in flight, never borrowed.
    operations: *mut Operation,
    /// Their buffers, one behind the other.
    bytes: *mut u8,
    /// Bytes of one buffer.
    room: usize,
    /// Which of the receives are in flight.
    in_flight: [bool; RECEIVES],
}

// SAFETY: the pointers are to memory that only this value and the system know. The system does not care which thread
// asks: receives of a socket with a completion port belong to no thread.
#[expect(unsafe_code, reason = "raw pointers are not sent to other threads otherwise")]
unsafe impl Send for Engine {}

impl Engine {
    /// Receives of datagrams of at most so many bytes; none is in flight yet.
    ///
    /// # Errors
    ///
    /// Fails if the socket has a completion port already: it can have one only, once and for all.
    pub(super) fn new(socket: &UdpSocket, room: usize) -> io::Result<Self> {
        let of = socket.as_raw_socket();
        let socket = socket.try_clone()?;
        let handle = HANDLE::from(ptr::with_exposed_provenance_mut(handle_number(&socket)?));
        // SAFETY: no file is meant and no port is there yet, as the two constants say: this makes a port.
        #[expect(unsafe_code, reason = "std has no completion ports")]
        let port = unsafe { CreateIoCompletionPort(INVALID_HANDLE_VALUE, ptr::null_mut(), 0, 1) };
        if port.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the handle was just made and is not shared.
        #[expect(unsafe_code, reason = "std has no completion ports")]
        let port = unsafe { OwnedHandle::from_raw_handle(port) };
        // SAFETY: both handles are open, since their owners live until the call returns.
        #[expect(unsafe_code, reason = "std has no completion ports")]
        let joined = unsafe { CreateIoCompletionPort(handle, port.as_raw_handle(), 0, 1) };
        if joined.is_null() {
            return Err(io::Error::last_os_error());
        }
        let operations: Box<[Operation; RECEIVES]> = Box::new(std::array::from_fn(|_| Operation::new()));
        let bytes: Box<[u8]> = vec![0; room * RECEIVES].into();
        Ok(Self {
            socket,
            of,
            port,
            operations: Box::into_raw(operations).cast(),
            bytes: Box::into_raw(bytes).cast(),
            room,
            in_flight: [false; RECEIVES],
        })
    }

    /// Whether it receives for this socket.
    pub(super) fn is_of(&self, socket: &UdpSocket) -> bool {
        self.of == socket.as_raw_socket()
    }

    /// Waits for a first datagram, and takes all that the system reports with it.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] when none came; others when not one receive can be in flight, or one ended badly
    /// and no other brought anything.
    pub(super) fn receive(
        &mut self,
        buffers: &mut Buffers,
        received: &mut Vec<Received>,
        wait: Duration,
    ) -> io::Result<()> {
        self.take(buffers, received, wait, Self::outcome)
    }

    /// The same, with the outcome of a receive as an argument.
    fn take(
        &mut self,
        buffers: &mut Buffers,
        received: &mut Vec<Received>,
        wait: Duration,
        mut outcome: impl FnMut(&Self, usize) -> io::Result<usize>,
    ) -> io::Result<()> {
        self.post_all()?;
        let mut ended = [EMPTY; DATAGRAMS];
        let count = self.wait(&mut ended, wait)?;
        let mut bad = None;
        for entry in &ended[..count] {
            let Some(operation) = self.number(entry) else { continue };
            self.in_flight[operation] = false;
            let slot = received.len();
            match outcome(self, operation) {
                Ok(length) => {
                    let length = length.min(self.room);
                    if let (Some(peer), Some(room)) = (self.peer(operation), buffers.slot_mut(slot).get_mut(..length)) {
                        room.copy_from_slice(self.bytes(operation, length));
                        received.push(Received { slot, length, ends: Ends { peer, local: None } });
                    }
                }
                // Too long for the room, about something sent earlier, or called off.
                Err(error) if is_transient(&error) || is_called_off(&error) => {}
                Err(error) => bad = Some(error),
            }
        }
        // So that datagrams find a buffer while these are answered; what fails is tried again by the next call.
        let posted = self.post_all();
        match (received.is_empty(), bad) {
            (false, _) => Ok(()),
            (true, Some(error)) => Err(error),
            (true, None) => posted.and_then(|()| Err(io::ErrorKind::WouldBlock.into())),
        }
    }

    /// Puts all receives in flight; fails when not one is.
    fn post_all(&mut self) -> io::Result<()> {
        let mut failed = None;
        // A datagram that is too long, or a message about a reply, ends a receive at once and is then gone.
        let mut tries = 2 * RECEIVES;
        for operation in 0..RECEIVES {
            while !self.in_flight[operation] && tries > 0 {
                tries -= 1;
                match self.post(operation) {
                    Ok(()) => self.in_flight[operation] = true,
                    Err(error) if is_transient(&error) => failed = Some(error),
                    Err(error) => {
                        // The next one would say the same.
                        tries = 0;
                        failed = Some(error);
                    }
                }
            }
        }
        match failed {
            Some(error) if !self.in_flight.contains(&true) => Err(error),
            _ => Ok(()),
        }
    }

    /// Puts a receive in flight that is not.
    fn post(&mut self, operation: usize) -> io::Result<()> {
        let buffer = WSABUF {
            len: u32::try_from(self.room).map_err(io::Error::other)?,
            buf: self.bytes.wrapping_add(operation * self.room),
        };
        let (socket, name_bytes) = (raw(&self.socket)?, i32::try_from(NAME_BYTES).map_err(io::Error::other)?);
        let it = self.operations.wrapping_add(operation);
        // SAFETY: the socket is open, since it is ours. The receive is not in flight, so its memory and its buffer are
        // ours, as large as stated, and from now on the system's: both stay where they are until it reported the end of
        // the receive (`drop` waits for that), and no thread touches them before. The list of buffers is read before
        // the call returns. No function is to be called.
        #[expect(unsafe_code, reason = "std has no overlapped receives")]
        let result = unsafe {
            (*it).overlapped = OVERLAPPED::default();
            (*it).name_bytes = name_bytes;
            (*it).flags = 0;
            WSARecvFrom(
                socket,
                &raw const buffer,
                1,
                ptr::null_mut(),
                &raw mut (*it).flags,
                (&raw mut (*it).name).cast(),
                &raw mut (*it).name_bytes,
                &raw mut (*it).overlapped,
                None,
            )
        };
        if result == 0 {
            // Told of by the port like all others.
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(WSA_IO_PENDING) { Ok(()) } else { Err(error) }
    }

    /// Waits for receives to end.
    fn wait(&self, ended: &mut [OVERLAPPED_ENTRY], wait: Duration) -> io::Result<usize> {
        let room = u32::try_from(ended.len()).map_err(io::Error::other)?;
        let milliseconds = u32::try_from(wait.as_millis()).map_err(io::Error::other)?;
        let mut count = 0;
        // SAFETY: the port is open, since it is ours; the pointers are to as many entries as stated and to a number,
        // which live until the call returns.
        #[expect(unsafe_code, reason = "std has no completion ports")]
        let result = unsafe {
            GetQueuedCompletionStatusEx(
                self.port.as_raw_handle(),
                ended.as_mut_ptr(),
                room,
                &raw mut count,
                milliseconds,
                FALSE,
            )
        };
        if result != FALSE {
            return Ok(usize::try_from(count).unwrap_or_default().min(ended.len()));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(WAIT_TIMEOUT.cast_signed()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Err(error)
    }

    /// Which receive ended, when it is one that was in flight and is no longer.
    ///
    /// A receive that failed at once may be reported all the same, when it is in flight again: Winsock's errors are not
    /// always errors to the system below it.
    fn number(&self, entry: &OVERLAPPED_ENTRY) -> Option<usize> {
        let offset = entry.lpOverlapped.addr().checked_sub(self.operations.addr())?;
        let number = offset / size_of::<Operation>();
        if !self.in_flight.get(number).copied()? {
            return None;
        }
        let it = self.operations.wrapping_add(number);
        // SAFETY: the place is one of ours and initialised. The system writes it, as a whole, when the receive ends:
        // hence it is read as what may change at any time.
        #[expect(unsafe_code, reason = "memory that is the system's at times has no owner that could lend it")]
        let status = unsafe { ptr::read_volatile(&raw const (*it).overlapped.Internal) };
        (status != STATUS_PENDING.cast_unsigned() as usize).then_some(number)
    }

    /// The outcome of a receive that ended: how many bytes it brought.
    fn outcome(&self, operation: usize) -> io::Result<usize> {
        let (mut bytes, mut flags) = (0, 0);
        let it = self.operations.wrapping_add(operation);
        // SAFETY: the socket is open, since it is ours; the receive has ended, so that its memory is only read and no
        // thread writes it; the numbers live until the call returns, which does not wait.
        #[expect(unsafe_code, reason = "std has no overlapped receives")]
        let result = unsafe {
            WSAGetOverlappedResult(
                raw(&self.socket)?,
                &raw const (*it).overlapped,
                &raw mut bytes,
                FALSE,
                &raw mut flags,
            )
        };
        if result == FALSE { Err(io::Error::last_os_error()) } else { usize::try_from(bytes).map_err(io::Error::other) }
    }

    /// The sender of what a receive brought.
    fn peer(&self, operation: usize) -> Option<SocketAddr> {
        let it = self.operations.wrapping_add(operation);
        // SAFETY: the receive has ended, so that its memory is ours and no thread writes it; it was initialised when it
        // was made.
        #[expect(unsafe_code, reason = "memory that is the system's at times has no owner that could lend it")]
        let (name, length) = unsafe { (&(*it).name.0, (*it).name_bytes) };
        address(name.get(..usize::try_from(length).ok()?)?)
    }

    /// The first bytes that a receive brought.
    fn bytes(&self, operation: usize, length: usize) -> &[u8] {
        let start = self.bytes.wrapping_add(operation * self.room);
        // SAFETY: the receive has ended, so that its buffer is ours, and it is not put in flight while this is borrowed,
        // for which the engine would have to be borrowed mutably. The length is at most that of the buffer, which was
        // initialised when it was made.
        #[expect(unsafe_code, reason = "memory that is the system's at times has no owner that could lend it")]
        unsafe {
            std::slice::from_raw_parts(start, length.min(self.room))
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Ok(number) = handle_number(&self.socket) {
            // SAFETY: the socket is open, since it is ours; all receives of it are meant.
            #[expect(unsafe_code, reason = "std has no overlapped receives")]
            unsafe {
                CancelIoEx(HANDLE::from(ptr::with_exposed_provenance_mut(number)), ptr::null());
            }
        }
        let mut ended = [EMPTY; DATAGRAMS];
        let mut waits = CANCEL_WAIT.as_millis() / CANCEL_STEP.as_millis();
        while self.in_flight.contains(&true) && waits > 0 {
            match self.wait(&mut ended, CANCEL_STEP) {
                Ok(count) => {
                    for entry in &ended[..count] {
                        if let Some(operation) = self.number(entry) {
                            self.in_flight[operation] = false;
                        }
                    }
                }
                Err(_) => waits -= 1,
            }
        }
        if self.in_flight.contains(&true) {
            // The system may still write to it: better leaked than reused.
            return;
        }
        // SAFETY: both were made of boxes of these sizes and are given back once; no receive is in flight, so that only
        // this value knows them.
        #[expect(unsafe_code, reason = "memory that is the system's at times has no owner")]
        unsafe {
            drop(Box::from_raw(self.operations.cast::<[Operation; RECEIVES]>()));
            drop(Box::from_raw(ptr::slice_from_raw_parts_mut(self.bytes, self.room * RECEIVES)));
        }
    }
}

impl Operation {
    fn new() -> Self {
        Self { overlapped: OVERLAPPED::default(), name: Name([0; NAME_BYTES]), name_bytes: 0, flags: 0 }
    }
}

const EMPTY: OVERLAPPED_ENTRY =
    OVERLAPPED_ENTRY { lpCompletionKey: 0, lpOverlapped: ptr::null_mut(), Internal: 0, dwNumberOfBytesTransferred: 0 };

/// Whether a receive ended because it was called off, as that of a thread that ended may be.
fn is_called_off(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ERROR_OPERATION_ABORTED.cast_signed())
}

fn raw(socket: &UdpSocket) -> io::Result<SOCKET> {
    SOCKET::try_from(socket.as_raw_socket()).map_err(io::Error::other)
}

fn handle_number(socket: &UdpSocket) -> io::Result<usize> {
    usize::try_from(socket.as_raw_socket()).map_err(io::Error::other)
}

/// An address: the family in our order of bytes, then the port and the address in the network's.
fn address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(*bytes.first_chunk()?);
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    if family == AF_INET {
        return Some((*bytes.get(4..)?.first_chunk::<4>()?, port).into());
    }
    if family == AF_INET6 {
        let ip = Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?);
        let flow = u32::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
        let scope = u32::from_ne_bytes(*bytes.get(24..)?.first_chunk()?);
        return Some(SocketAddrV6::new(ip, port, flow, scope).into());
    }
    None
}

#[cfg(test)]
mod tests;
