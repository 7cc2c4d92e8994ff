//! Options of sockets, their errors, and the owner of one according to IP Helper.

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::windows::ffi::OsStringExt;
use std::os::windows::io::{AsRawHandle, AsRawSocket, FromRawHandle, OwnedHandle, OwnedSocket};
use std::path::PathBuf;
use std::ptr;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use windows_sys::Win32::Foundation::{
    ERROR_INSUFFICIENT_BUFFER, ERROR_MORE_DATA, ERROR_NETNAME_DELETED, ERROR_NO_SYSTEM_RESOURCES,
    ERROR_NOT_ENOUGH_MEMORY, ERROR_PORT_UNREACHABLE, ERROR_TOO_MANY_OPEN_FILES, NO_ERROR, WIN32_ERROR,
};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    GetExtendedTcpTable, GetExtendedUdpTable, TCP_TABLE_OWNER_PID_LISTENER, UDP_TABLE_OWNER_PID,
};
use windows_sys::Win32::Networking::WinSock::{
    ADDRESS_FAMILY, AF_INET, AF_INET6, SIO_UDP_CONNRESET, SIO_UDP_NETRESET, SO_EXCLUSIVEADDRUSE, SOCKET, SOL_SOCKET,
    WSAECONNABORTED, WSAECONNREFUSED, WSAECONNRESET, WSAEHOSTUNREACH, WSAEINTR, WSAEMFILE, WSAEMSGSIZE, WSAENETDOWN,
    WSAENETRESET, WSAENETUNREACH, WSAENOBUFS, WSAETIMEDOUT, WSAEWOULDBLOCK, WSAIoctl, setsockopt,
};
use windows_sys::Win32::System::Threading::{
    OpenProcess, PROCESS_NAME_WIN32, PROCESS_QUERY_LIMITED_INFORMATION, QueryFullProcessImageNameW,
};
use windows_sys::core::BOOL;

use super::{Owner, RECEIVE_BUFFER_BYTES, Transport};

pub(super) const OUT_OF_DESCRIPTORS: &[i32] = &[WSAEMFILE, ERROR_TOO_MANY_OPEN_FILES.cast_signed()];

/// Errors of the waiting connection rather than of the listener, and what receiving says about datagrams sent before.
pub(super) const TRANSIENT: &[i32] = &[
    WSAECONNABORTED,
    WSAECONNREFUSED,
    WSAECONNRESET,
    WSAEHOSTUNREACH,
    WSAEINTR,
    WSAEMSGSIZE,
    WSAENETDOWN,
    WSAENETRESET,
    WSAENETUNREACH,
    WSAENOBUFS,
    WSAETIMEDOUT,
    WSAEWOULDBLOCK,
    // The same as overlapped calls say it.
    ERROR_MORE_DATA.cast_signed(),
    ERROR_NETNAME_DELETED.cast_signed(),
    ERROR_NO_SYSTEM_RESOURCES.cast_signed(),
    ERROR_NOT_ENOUGH_MEMORY.cast_signed(),
    ERROR_PORT_UNREACHABLE.cast_signed(),
];

/// Longest name of a program that is asked for, in UTF-16 units.
const NAME_MAX: u32 = 1024;

/// How often the room for a table is made larger because sockets came in the meantime.
const ATTEMPTS: u32 = 5;

/// The same socket as a stream.
pub(super) fn stream_of(listener: TcpListener) -> TcpStream {
    OwnedSocket::from(listener).into()
}

/// A connection, which does not block, as its listener does not.
pub(super) fn accept(listener: &Socket) -> io::Result<(Socket, SockAddr)> {
    listener.accept()
}

/// Keeps others from taking a part of the address: `SO_REUSEADDR` would invite them here.
pub(super) fn claim(socket: &Socket, _: Transport) -> io::Result<()> {
    let yes: BOOL = 1;
    let length = i32::try_from(size_of_val(&yes)).map_err(io::Error::other)?;
    // SAFETY: the socket is open because it is borrowed; the option takes a BOOL, the pointer is to one that lives until
    // the call returns, and the length is its size.
    #[expect(unsafe_code, reason = "socket2 does not know this option")]
    let result = unsafe { setsockopt(raw(socket), SOL_SOCKET, SO_EXCLUSIVEADDRUSE, (&raw const yes).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Keeps ICMP messages about earlier answers from failing a later receive.
pub(super) fn ignore_unreachable(socket: &Socket) -> io::Result<()> {
    switch_off(socket, SIO_UDP_CONNRESET)?;
    // Older systems and Wine do not know this one, and it is rare: it says that a TTL ran out.
    let _ = switch_off(socket, SIO_UDP_NETRESET);
    Ok(())
}

fn switch_off(socket: &Socket, behaviour: u32) -> io::Result<()> {
    let no: BOOL = 0;
    let length = u32::try_from(size_of_val(&no)).map_err(io::Error::other)?;
    let mut written = 0;
    // SAFETY: the socket is open because it is borrowed; the input is a BOOL as these codes want it, with its size; there
    // is no output; `written` lives until the call returns, which is not overlapped and calls nothing back.
    #[expect(unsafe_code, reason = "socket2 does not know these codes")]
    let result = unsafe {
        WSAIoctl(
            raw(socket),
            behaviour,
            (&raw const no).cast(),
            length,
            ptr::null_mut(),
            0,
            &raw mut written,
            ptr::null_mut(),
            None,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `SO_REUSEADDR` lets several sockets have one address, but gives all datagrams to one of them.
pub(super) const CAN_SHARE: bool = false;

#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with unix.rs")]
pub(super) fn share(_: &Socket) -> io::Result<()> {
    Ok(())
}

/// There is no way to see which container a process belongs to.
pub(super) fn container_of(_: SocketAddr, _: SocketAddr) -> Option<String> {
    None
}

/// Nothing to be said.
pub(super) const SEND_LAST: i32 = 0;

#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with unix.rs")]
pub(super) fn defer_accept(_: &Socket) -> io::Result<()> {
    Ok(())
}

/// A socket that does not block.
pub(super) fn probing_socket(domain: Domain) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Whether a connection is on its way, as one that is not waited for is.
pub(super) fn is_connecting(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// A connection takes longer than a call there. Under Wine one that was refused has another end too, so that is no sign.
pub(super) fn is_connected(_: &TcpStream) -> bool {
    false
}

/// Only `WSARecvMsg` would return it.
#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with unix.rs")]
pub(super) fn report_local_address(_: &Socket, _: SocketAddr) -> io::Result<()> {
    Ok(())
}

/// Windows has an option for that, but its effect on datagrams in the network of containers was not tried yet.
#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with unix.rs")]
pub(super) fn forbid_fragments(_: &Socket, _: SocketAddr) -> io::Result<()> {
    Ok(())
}

/// Windows knows no limit beyond which a buffer would need privileges.
pub(super) fn extend_receive_buffer(socket: &Socket) -> io::Result<()> {
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)
}

pub(super) fn forbidden(address: SocketAddr, transport: Transport) -> String {
    let port = address.port();
    match owner(address, transport) {
        Some(owner) => format!("{owner} has port {port} for itself; stop that or choose another port"),
        None => format!(
            "Windows reserves port {port} (netsh interface ipv4 show excludedportrange), or a program has it for itself; \
             choose another port"
        ),
    }
}

/// Finds the owner of an address that is in use.
pub(super) fn owner(address: SocketAddr, transport: Transport) -> Option<Owner> {
    let (_, pid) = sockets(transport).find(|(local, _)| prevents(*local, address))?;
    Some(Owner { pid, name: process_name(pid) })
}

/// Whether a socket at `local` prevents `address` from being bound.
fn prevents(local: SocketAddr, address: SocketAddr) -> bool {
    local.port() == address.port()
        && local.is_ipv4() == address.is_ipv4()
        && (local.ip() == address.ip() || local.ip().is_unspecified() || address.ip().is_unspecified())
}

/// Whether a socket of this machine listens on an address of which this is true.
pub(crate) fn has_listener(is: impl Fn(SocketAddr) -> bool) -> bool {
    sockets(Transport::Tcp).any(|(local, _)| is(SocketAddr::new(local.ip().to_canonical(), local.port())))
}

/// The addresses of the sockets that take connections or datagrams, with their processes.
fn sockets(transport: Transport) -> impl Iterator<Item = (SocketAddr, u32)> {
    [AF_INET, AF_INET6].into_iter().flat_map(move |family| {
        let table = table(transport, family).unwrap_or_default();
        rows(&table, &layout(transport, family))
    })
}

/// Where a row of a table has what; in words of 32 bits, of which all tables consist.
struct Layout {
    words: usize,
    address: usize,
    address_words: usize,
    port: usize,
    pid: usize,
}

fn layout(transport: Transport, family: ADDRESS_FAMILY) -> Layout {
    let (words, address, address_words, port, pid) = match (transport, family) {
        (Transport::Tcp, AF_INET) => (6, 1, 1, 2, 5),
        (Transport::Tcp, _) => (14, 0, 4, 5, 13),
        (Transport::Udp, AF_INET) => (3, 0, 1, 1, 2),
        (Transport::Udp, _) => (7, 0, 4, 5, 6),
    };
    Layout { words, address, address_words, port, pid }
}

/// The local addresses in a table, with the processes of their sockets.
fn rows(table: &[u32], layout: &Layout) -> Vec<(SocketAddr, u32)> {
    let Some((&count, rows)) = table.split_first() else { return Vec::new() };
    let row = |row: &[u32]| {
        // The port is in network order in the lower half; the upper half may be anything.
        let [high, low, ..] = row[layout.port].to_le_bytes();
        let mut bytes = [0; 16];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(&row[layout.address..][..layout.address_words]) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        let local = match (layout.address_words, bytes) {
            (1, [a, b, c, d, ..]) => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
            _ => IpAddr::V6(Ipv6Addr::from(bytes)),
        };
        (SocketAddr::new(local, u16::from_be_bytes([high, low])), row[layout.pid])
    };
    rows.chunks_exact(layout.words).take(count as usize).map(row).collect()
}

fn table(transport: Transport, family: ADDRESS_FAMILY) -> Option<Vec<u32>> {
    let mut table: Vec<u32> = Vec::new();
    let mut bytes = 0;
    for _ in 0..ATTEMPTS {
        match fill(&mut table, &mut bytes, transport, family) {
            NO_ERROR => return Some(table),
            ERROR_INSUFFICIENT_BUFFER => table.resize((bytes as usize).div_ceil(size_of::<u32>()), 0),
            _ => return None,
        }
    }
    None
}

fn fill(table: &mut [u32], bytes: &mut u32, transport: Transport, family: ADDRESS_FAMILY) -> WIN32_ERROR {
    let Ok(room) = u32::try_from(size_of_val(table)) else { return ERROR_NOT_ENOUGH_MEMORY };
    *bytes = room;
    let family = family.into();
    let table = table.as_mut_ptr().cast();
    match transport {
        // SAFETY: `table` has `bytes` bytes, is aligned for the rows, which are words of 32 bits, and is ours alone, as
        // `bytes` is.
        #[expect(unsafe_code, reason = "std does not know the owner of a socket")]
        Transport::Tcp => unsafe { GetExtendedTcpTable(table, bytes, 0, family, TCP_TABLE_OWNER_PID_LISTENER, 0) },
        // SAFETY: as above.
        #[expect(unsafe_code, reason = "std does not know the owner of a socket")]
        Transport::Udp => unsafe { GetExtendedUdpTable(table, bytes, 0, family, UDP_TABLE_OWNER_PID, 0) },
    }
}

fn process_name(pid: u32) -> Option<String> {
    // SAFETY: takes no pointers.
    #[expect(unsafe_code, reason = "std does not know other processes")]
    let process = unsafe { OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION, 0, pid) };
    if process.is_null() {
        return None;
    }
    // SAFETY: the handle was just opened, is to be closed with CloseHandle, and is not shared.
    #[expect(unsafe_code, reason = "the handle is ours from here on")]
    let process = unsafe { OwnedHandle::from_raw_handle(process) };
    let mut name = vec![0_u16; NAME_MAX as usize];
    let mut length = NAME_MAX;
    // SAFETY: the handle is open; the pointer is to `length` characters; both live until the call returns.
    #[expect(unsafe_code, reason = "std does not know other processes")]
    let known = unsafe {
        QueryFullProcessImageNameW(process.as_raw_handle(), PROCESS_NAME_WIN32, name.as_mut_ptr(), &raw mut length)
    } != 0;
    let path = PathBuf::from(OsString::from_wide(name.get(..length as usize).filter(|_| known)?));
    Some(path.file_name()?.to_string_lossy().into_owned())
}

fn raw(socket: &Socket) -> SOCKET {
    SOCKET::try_from(socket.as_raw_socket()).expect("std and windows-sys both mean a word of the machine")
}

#[cfg(test)]
mod tests {
    use super::super::{is_out_of_descriptors, is_transient};
    use super::*;

    #[test]
    fn transient_errors_are_told_from_lasting_ones() {
        // WSAECONNRESET, WSAENETRESET, WSAEMSGSIZE, WSAEMFILE, WSAENOBUFS, WSAEINTR, WSAECONNABORTED, WSAEWOULDBLOCK
        for code in [10054, 10052, 10040, 10024, 10055, 10004, 10053, 10035, 64, 234, 1234, 1450] {
            let error = io::Error::from_raw_os_error(code);
            assert!(is_transient(&error), "{error}");
            assert_eq!(is_out_of_descriptors(&error), code == 10024, "{error}");
        }
        // WSAEBADF, WSAEFAULT, WSAEINVAL, WSAENOTSOCK, WSAESHUTDOWN, ERROR_INVALID_HANDLE
        for code in [10009, 10014, 10022, 10038, 10058, 6] {
            let error = io::Error::from_raw_os_error(code);
            assert!(!is_transient(&error), "{error}");
        }
    }

    #[test]
    fn sockets_in_the_way_are_found() {
        let port = u32::from(53_u16.to_be());
        let local = u32::from_ne_bytes([127, 0, 0, 1]);
        let udp = [2, 0, port, 41, local, port | 0xabcd_0000, 42, 0, port, 43];
        let tcp = [1, 2, local, port, 0, 0, 44];
        for (table, transport, address, pid) in [
            (&udp[..], Transport::Udp, "127.0.0.1:53", Some(41)),
            (&[&[1], &udp[4..]].concat(), Transport::Udp, "127.0.0.1:53", Some(42)),
            (&[&[1], &udp[4..]].concat(), Transport::Udp, "127.0.0.2:53", None),
            (&[&[1], &udp[4..]].concat(), Transport::Udp, "0.0.0.0:53", Some(42)),
            (&tcp, Transport::Tcp, "127.0.0.1:53", Some(44)),
            (&tcp, Transport::Tcp, "127.0.0.1:54", None),
            (&tcp, Transport::Tcp, "[::1]:53", None),
            (&[], Transport::Tcp, "127.0.0.1:53", None),
        ] {
            let address = address.parse().unwrap();
            let mut found = rows(table, &layout(transport, AF_INET)).into_iter();
            let found = found.find(|(local, _)| prevents(*local, address)).map(|(_, pid)| pid);
            assert_eq!(found, pid, "{address} {table:?}");
        }
    }

    #[test]
    fn our_own_program_has_a_name() {
        assert!(process_name(std::process::id()).unwrap().starts_with("platform"));
        assert_eq!(process_name(u32::MAX), None);
    }
}
