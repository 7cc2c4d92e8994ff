//! Options of sockets, their errors, and the owner of one according to /proc.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use super::{Owner, RECEIVE_BUFFER_BYTES, Transport};
use crate::broker::{self, Request};

/// The same socket as a stream.
pub(super) fn stream_of(listener: TcpListener) -> TcpStream {
    OwnedFd::from(listener).into()
}

/// A connection, which does not block.
pub(super) fn accept(listener: &Socket) -> io::Result<(Socket, SockAddr)> {
    listener.accept4(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK)
}

pub(super) const OUT_OF_DESCRIPTORS: &[i32] = &[libc::EMFILE, libc::ENFILE];

/// What accept(2) lists as errors of the waiting connection rather than of the listener, and what recv(2) reports about
/// datagrams sent before.
pub(super) const TRANSIENT: &[i32] = &[
    libc::EHOSTDOWN,
    libc::EMSGSIZE,
    libc::ENOBUFS,
    libc::ENOMEM,
    libc::ENONET,
    libc::ENOPROTOOPT,
    libc::EOPNOTSUPP,
    libc::EPERM,
    libc::EPROTO,
];

pub(super) fn claim(socket: &Socket, transport: Transport) -> io::Result<()> {
    match transport {
        Transport::Tcp => socket.set_reuse_address(true),
        // For UDP the option would let two services have the same address.
        Transport::Udp => Ok(()),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with windows.rs")]
pub(super) fn ignore_unreachable(_: &Socket) -> io::Result<()> {
    Ok(())
}

/// Several sockets may have one address, and the kernel spreads what arrives among them.
pub(super) const CAN_SHARE: bool = true;

/// Seconds after which a connection is handed out although nothing was said on it.
///
/// The kernel counts in repetitions of its own answer; less than a second is not to be had.
const DEFER_SECONDS: libc::c_int = 1;

pub(super) fn share(socket: &Socket) -> io::Result<()> {
    socket.set_reuse_port(true)
}

/// The kernel waits for more until the end comes; no signal is raised when the client is gone.
pub(super) const SEND_LAST: libc::c_int = libc::MSG_MORE | libc::MSG_NOSIGNAL;

pub(super) fn defer_accept(listener: &Socket) -> io::Result<()> {
    // Connections have it from their listener.
    listener.set_tcp_nodelay(true)?;
    set_option(listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, DEFER_SECONDS)
}

/// A socket that does not block and whose connection sends the end of its handshake with the first data: the kernel takes one whose
/// acknowledgements are not urgent for one that sends something soon.
pub(super) fn probing_socket(domain: Domain) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_tcp_quickack(false)?;
    Ok(socket)
}

/// Whether a connection is on its way, as one that is not waited for mostly is.
pub(super) fn is_connecting(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINPROGRESS)
}

/// The kernel knows no other end of a connection that is on its way or was refused.
pub(super) fn is_connected(probe: &TcpStream) -> bool {
    probe.peer_addr().is_ok()
}

/// Lets receives return the address that a datagram was sent to.
pub(super) fn report_local_address(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    let (level, option) = match address {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    };
    set_option(socket, level, option, 1)
}

/// Lets datagrams arrive whole or not at all, regardless of messages about the path to a peer: with forged fragments or
/// forged messages about them answers can be changed. The kernel saves itself the number that fragments are joined by.
pub(super) fn forbid_fragments(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    let (level, option, value) = match address {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE),
    };
    set_option(socket, level, option, value)
}

/// Sets the buffer beyond the system's limit, which needs `NET_ADMIN`.
pub(super) fn extend_receive_buffer(socket: &Socket) -> io::Result<()> {
    match broker::answered(&Request::ReceiveBuffer, Some(socket.as_fd())) {
        Some(answer) => answer.map(drop),
        None => extend_receive_buffer_here(socket),
    }
}

/// [`extend_receive_buffer`] by this very process.
pub(crate) fn extend_receive_buffer_here(socket: &Socket) -> io::Result<()> {
    let bytes = libc::c_int::try_from(RECEIVE_BUFFER_BYTES).map_err(io::Error::other)?;
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
}

/// Whether one send can be many datagrams of the same length (udp(7), since Linux 4.18).
pub(crate) fn can_segment(socket: &UdpSocket) -> bool {
    // Not by default: only those sends that say so.
    set_option(&SockRef::from(socket), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

/// Sets an option whose value is a `c_int`.
pub(crate) fn set_option(
    socket: &Socket,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of_val(&value)).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open because `socket` is borrowed; the pointer is to a c_int that lives until the call
    // returns, and the length is its size, so the kernel reads nothing else for any option.
    #[expect(unsafe_code, reason = "socket2 does not offer these options")]
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(super) fn forbidden(address: SocketAddr, _: Transport) -> String {
    format!(
        "not permitted; port {} needs root or the capability NET_BIND_SERVICE (setcap cap_net_bind_service=+ep), or choose a port above 1023",
        address.port()
    )
}

/// Finds the owner of an address that is in use, as far as /proc lets us see.
pub(super) fn owner(address: SocketAddr, transport: Transport) -> Option<Owner> {
    let tables: &[&str] = match (transport, address) {
        (Transport::Tcp, SocketAddr::V4(_)) => &["tcp", "tcp6"],
        (Transport::Tcp, SocketAddr::V6(_)) => &["tcp6"],
        (Transport::Udp, SocketAddr::V4(_)) => &["udp", "udp6"],
        (Transport::Udp, SocketAddr::V6(_)) => &["udp6"],
    };
    let inode = tables.iter().find_map(|table| {
        let text = fs::read_to_string(Path::new("/proc/thread-self/net").join(table)).ok()?;
        inode_in(&text, address, transport)
    })?;
    let process = process_with(inode, |_| true)?;
    let pid = process.file_name()?.to_str()?.parse().ok()?;
    let name = fs::read_to_string(process.join("comm")).ok().map(|name| name.trim_end().to_owned());
    Some(Owner { pid, name })
}

pub(super) fn container_of(client: SocketAddr, service: SocketAddr) -> Option<String> {
    let inode = ["tcp", "tcp6"].iter().find_map(|table| {
        let text = fs::read_to_string(Path::new("/proc/thread-self/net").join(table)).ok()?;
        connection_in(&text, client, service)
    })?;
    // Of a process that is in no container the descriptors need not be looked at.
    let container = |process: &Path| engine_id(&fs::read_to_string(process.join("cgroup")).ok()?);
    container(&process_with(inode, |process| container(process).is_some())?)
}

/// The folder in /proc of a process that has a socket, among those that `may` have it.
fn process_with(inode: u64, may: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let wanted = format!("socket:[{inode}]");
    let has = |process: &Path| {
        let mut descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        descriptors.any(|descriptor| fs::read_link(descriptor.path()).is_ok_and(|target| target == Path::new(&wanted)))
    };
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let is_process = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes()[0].is_ascii_digit());
    processes.map(|process| process.path()).filter(is_process).find(|process| may(process) && has(process))
}

/// The id of a container in the names of a process's control groups: 64 hexadecimal digits, alone between other
/// characters (`/docker/ID`, `docker-ID.scope`).
fn engine_id(cgroups: &str) -> Option<String> {
    const DIGITS: usize = 64;
    let mut words = cgroups.split(|character: char| !character.is_ascii_hexdigit());
    words.find(|word| word.len() == DIGITS).map(str::to_owned)
}

/// Whether a socket of this network namespace listens on an address of which this is true.
pub(crate) fn has_listener(is: impl Fn(SocketAddr) -> bool) -> bool {
    ["tcp", "tcp6"].iter().any(|table| {
        let text = fs::read_to_string(Path::new("/proc/thread-self/net").join(table)).unwrap_or_default();
        text.lines().skip(1).any(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let local = fields.next().and_then(table_address);
            let listens = fields.nth(1) == Some(LISTENING);
            listens && local.is_some_and(|local| is(SocketAddr::new(local.ip().to_canonical(), local.port())))
        })
    })
}

/// Finds the socket of a connection from `local` to `remote` in a table of /proc/net.
fn connection_in(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u64> {
    let is = |text: &str, address: SocketAddr| {
        table_address(text).is_some_and(|own| (own.ip().to_canonical(), own.port()) == (address.ip(), address.port()))
    };
    let (local, remote) = [local, remote].map(|end| SocketAddr::new(end.ip().to_canonical(), end.port())).into();
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let ours = is(fields.nth(1)?, local);
        let theirs = is(fields.next()?, remote);
        let inode = fields.nth(6)?.parse().ok()?;
        // 0 when the process has closed it already.
        (ours && theirs && inode != 0).then_some(inode)
    })
}

/// The state of a listener in the tables of /proc/net.
const LISTENING: &str = "0A";

/// Finds the socket in a table of /proc/net that prevents `address` from being bound.
fn inode_in(table: &str, address: SocketAddr, transport: Transport) -> Option<u64> {
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let local = table_address(fields.nth(1)?)?;
        let state = fields.nth(1)?;
        let inode = fields.nth(5)?.parse().ok()?;
        let meets = local.port() == address.port()
            && (local.ip() == address.ip() || local.ip().is_unspecified() || address.ip().is_unspecified())
            && (transport == Transport::Udp || state == LISTENING);
        meets.then_some(inode)
    })
}

/// Reads an address of /proc/net: words of 32 bits in hexadecimal, as they lie in memory, then the port.
fn table_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |start: usize| Some(u32::from_str_radix(ip.get(start..start + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (index, chunk) in bytes.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(index * 8)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpStream, UdpSocket};
    use std::time::Duration;

    use super::super::{
        BindError, is_out_of_descriptors, is_transient, tcp_listener, udp_client_socket, udp_socket, udp_sockets,
    };
    use super::*;

    #[test]
    fn the_process_at_the_other_end_is_no_container_of_an_engine_or_the_one_that_it_is_in() {
        let listener = tcp_listener(([127, 0, 0, 1], 0).into()).unwrap();
        let service = listener.local_addr().unwrap();
        let stream = TcpStream::connect(service).unwrap();
        let client = stream.local_addr().unwrap();
        let own = engine_id(&fs::read_to_string("/proc/self/cgroup").unwrap());
        assert_eq!(container_of(client, service), own);
        let table = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
        let inode = connection_in(&table, client, service).unwrap();
        assert_eq!(
            fs::read_link(format!("/proc/self/fd/{}", stream.as_raw_fd())).unwrap(),
            Path::new(&format!("socket:[{inode}]"))
        );
        assert_eq!(connection_in(&table, client, ([127, 0, 0, 1], 1).into()), None);
    }

    #[test]
    fn ids_of_engines_are_found_in_the_names_of_control_groups() {
        let id = "0123456789abcdef".repeat(4);
        for text in [
            format!("12:memory:/docker/{id}\n0::/\n"),
            format!("0::/system.slice/docker-{id}.scope\n"),
            format!("0::/kubepods/burstable/pod1234/{id}\n"),
        ] {
            assert_eq!(engine_id(&text), Some(id.clone()), "{text}");
        }
        for text in ["0::/\n", "0::/user.slice/session-1.scope\n", &format!("0::/docker/{id}0\n"), ""] {
            assert_eq!(engine_id(text), None, "{text}");
        }
    }

    #[test]
    fn transient_errors_are_told_from_lasting_ones() {
        for code in [
            libc::EAGAIN,
            libc::ECONNABORTED,
            libc::ECONNREFUSED,
            libc::ECONNRESET,
            libc::EHOSTUNREACH,
            libc::EINTR,
            libc::EMFILE,
            libc::EMSGSIZE,
            libc::ENETDOWN,
            libc::ENFILE,
            libc::ENOBUFS,
            libc::ENOMEM,
            libc::EPERM,
            libc::EPROTO,
        ] {
            let error = io::Error::from_raw_os_error(code);
            assert!(is_transient(&error), "{error}");
            assert_eq!(is_out_of_descriptors(&error), matches!(code, libc::EMFILE | libc::ENFILE), "{error}");
        }
        for code in [libc::EBADF, libc::EFAULT, libc::EINVAL, libc::ENOTSOCK] {
            let error = io::Error::from_raw_os_error(code);
            assert!(!is_transient(&error), "{error}");
        }
    }

    #[test]
    fn connected_socket_learns_that_nobody_listens() {
        // A program that another test starts would hold the socket for a moment, and a port of 127.0.0.1 might be another
        // test's by now: then no answer would ever come.
        let _alone = crate::programs::none_starts();
        let gone = udp_socket(([127, 83, 1, 2], 0).into()).unwrap().local_addr().unwrap();
        let client = udp_client_socket(([127, 0, 0, 1], 0).into()).unwrap();
        client.set_nonblocking(false).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        client.connect(gone).unwrap();
        client.send(b"query").unwrap();
        let error = client.recv(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert!(is_transient(&error));
    }

    #[test]
    fn address_of_an_ended_listener_is_free_at_once() {
        let _alone = crate::programs::none_starts();
        let listener = tcp_listener(([127, 0, 0, 1], 0).into()).unwrap();
        listener.set_nonblocking(false).unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        // The side that closes first is the one whose address the kernel keeps for a minute.
        drop(listener.accept().unwrap());
        drop(listener);
        drop(client);
        tcp_listener(address).unwrap();
    }

    #[test]
    fn every_shared_socket_gets_its_part() {
        let sockets = udp_sockets(([127, 0, 0, 1], 0).into(), 2).unwrap();
        let address = sockets[0].local_addr().unwrap();
        // The kernel chooses by a hash of both addresses: 64 clients at one of two sockets would be a wonder.
        let clients: Vec<UdpSocket> = (0..64).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        for client in &clients {
            client.send_to(b"query", address).unwrap();
        }
        let counts = sockets
            .iter()
            .map(|socket| std::iter::from_fn(|| socket.recv_from(&mut [0; 8]).ok()).count())
            .collect::<Vec<_>>();
        assert_eq!(counts.iter().sum::<usize>(), clients.len());
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    }

    #[test]
    fn deferred_listener_does_not_hand_out_the_silent_at_once() {
        let listener = tcp_listener(([127, 0, 0, 1], 0).into()).unwrap();
        super::super::defer_accept(&listener).unwrap();
        let _silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn low_port_without_privilege_is_explained() {
        let error = io::Error::from_raw_os_error(libc::EACCES);
        let text = BindError::explain(SocketAddr::from(([127, 0, 0, 1], 53)).into(), Transport::Udp, error).to_string();
        assert!(text.starts_with("cannot listen on 127.0.0.1:53 (UDP): not permitted; port 53 needs root"), "{text}");
    }

    const TCP: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:0035 00000000:0000 01 00000000:00000000 00:00000000 00000000     0        0 1001 1 0000000000000000 100 0 0 10 0
   1: 0100007F:0035 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1002 1 0000000000000000 100 0 0 10 0
   2: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1003 1 0000000000000000 100 0 0 10 0
";
    const TCP6: &str = "\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: B80D0120000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2001 1 0000000000000000 100 0 0 10 0
   1: 00000000000000000000000000000000:0051 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2002 1 0000000000000000 100 0 0 10 0
   2: damaged
";

    #[test]
    #[cfg(target_endian = "little")]
    fn sockets_in_the_way_are_found() {
        for (table, address, inode) in [
            (TCP, "127.0.0.1:53", Some(1002)),
            (TCP, "0.0.0.0:53", Some(1002)),
            (TCP, "127.0.0.2:53", None),
            (TCP, "192.0.2.1:80", Some(1003)),
            (TCP, "127.0.0.1:81", None),
            (TCP6, "[2001:db8::1]:80", Some(2001)),
            (TCP6, "[2001:db8::2]:80", None),
            (TCP6, "192.0.2.1:81", Some(2002)),
            ("", "192.0.2.1:81", None),
        ] {
            assert_eq!(inode_in(table, address.parse().unwrap(), Transport::Tcp), inode, "{address}");
        }
    }

    #[test]
    fn datagram_sockets_are_in_the_way_in_any_state() {
        assert_eq!(inode_in(TCP, "0.0.0.0:53".parse().unwrap(), Transport::Udp), Some(1001));
    }
}
