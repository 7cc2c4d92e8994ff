//! Sockets with the options that a service must not forget, and which of their errors mean nothing.

#[cfg_attr(unix, path = "socket/unix.rs")]
#[cfg_attr(windows, path = "socket/windows.rs")]
mod system;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream as StdStream, UdpSocket};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
#[cfg(unix)]
pub(crate) use system::can_segment;
#[cfg(target_os = "linux")]
pub(crate) use system::extend_receive_buffer_here;
pub(crate) use system::has_listener;
#[cfg(all(unix, test))]
pub(crate) use system::set_option;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::redirect::Place;

/// How many connections may wait to be accepted.
///
/// As many as Linux grants by default since 5.4 (`net.core.somaxconn`); a larger number is cut to that without a word.
const BACKLOG: i32 = 4096;

/// Room for datagrams that arrive while the service is busy.
///
/// 4 MiB hold about 5,000 queries as the kernel counts them, 0.1 s of the highest rate we aim at.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// Listens on a TCP address, not blocking.
///
/// On Linux the address of a listener that has just ended can be had again at once. On Windows no other process can
/// take part of it, and it is free again when the connections of the former listener have ended. An IPv6 address never
/// stands for IPv4 ones too. An error carries a [`BindError`], whose text says what to do.
pub fn tcp_listener(address: SocketAddr) -> io::Result<TcpListener> {
    tcp_listener_at(address.into())
}

/// The same where clients may use another address than the one that is bound.
pub fn tcp_listener_at(place: Place) -> io::Result<TcpListener> {
    bind_tcp(place).map(TcpListener::from)
}

/// A listener of [`tcp_listener`] whose connections can be waited for.
///
/// tokio knows it as a stream: to wait for a socket it makes no difference what it is, and of tokio's types the stream
/// lets others make the call. tokio's own listener makes every connection known to the runtime, which costs one that is
/// answered at once two system calls. On Windows it also ends with a connection that was reset before it was accepted, and
/// panics when the system has no address for a client, as Wine has none for such a one. Here accepting fails with
/// "connection reset" or "connection aborted" on every system, and the next call goes on.
#[derive(Debug)]
pub struct Listener(TcpStream);

impl Listener {
    /// Takes a listener over, which must not block.
    ///
    /// Needs a tokio runtime with its I/O driver.
    pub fn from_std(listener: TcpListener) -> io::Result<Self> {
        TcpStream::from_std(system::stream_of(listener)).map(Self)
    }

    /// The address that is listened on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Waits for a connection; returns it, not blocking and not known to the runtime, and the address of its client.
    ///
    /// # Cancel safety
    ///
    /// A connection that arrives while no call waits is for the next one.
    pub async fn accept(&self) -> io::Result<(StdStream, SocketAddr)> {
        let (socket, peer) = self.0.async_io(Interest::READABLE, || system::accept(&SockRef::from(&self.0))).await?;
        let peer = peer.as_socket().ok_or(io::ErrorKind::ConnectionReset)?;
        Ok((socket.into(), peer))
    }
}

/// Lets a listener hand out connections only when their first bytes have arrived, on Linux; elsewhere does nothing.
///
/// A request can then be read right after it was accepted, without waiting for the socket to become readable. A client
/// that connects and says nothing is handed out after a second or more. The connections send what is written at once,
/// even if it is little and more is on its way (`TCP_NODELAY`).
pub fn defer_accept(listener: &TcpListener) -> io::Result<()> {
    system::defer_accept(&SockRef::from(listener))
}

/// Sends the last bytes of a connection that is closed at once when all of them were taken.
///
/// On Linux they go out together with the end of the connection, in one packet instead of two.
pub fn send_last<'s, S>(stream: &'s S, bytes: &[u8]) -> io::Result<usize>
where
    SockRef<'s>: From<&'s S>,
{
    SockRef::from(stream).send_with_flags(bytes, system::SEND_LAST)
}

/// Begins a connection that only shows whether a server answers at `address`; it is reset when it is closed.
///
/// Does not wait. Where the server answers at once, as most of this machine do, it [`is_connected`] already. Otherwise it is once it
/// can be written to, or it has an error then.
///
/// On Linux the packet that ends the handshake waits for the first data. So it is not sent at all if there are none, and the
/// application does not see the connection.
pub fn probe(address: SocketAddr) -> io::Result<StdStream> {
    let socket = system::probing_socket(Domain::for_address(address))?;
    // Without TIME_WAIT, which would hold a port of this host for minutes after each connection.
    socket.set_linger(Some(Duration::ZERO))?;
    match socket.connect(&address.into()) {
        Err(error) if !system::is_connecting(&error) => Err(error),
        _ => Ok(socket.into()),
    }
}

/// Whether a [`probe`] is known to be connected although nothing was waited for; never on Windows.
pub fn is_connected(probe: &StdStream) -> bool {
    system::is_connected(probe)
}

/// The id that an engine has given to the container whose process has the other end of a connection within this machine;
/// `None` when that is no container's process, or cannot be seen: by others than root, and on other systems than Linux.
///
/// Looks through all processes, which takes some milliseconds.
pub fn container_of(client: SocketAddr, service: SocketAddr) -> Option<String> {
    system::container_of(client, service)
}

/// A UDP socket for a service, not blocking, with a large receive buffer.
///
/// On Windows answers that no client took any more do not make later receives fail. An error carries a [`BindError`],
/// whose text says what to do.
pub fn udp_socket(address: SocketAddr) -> io::Result<UdpSocket> {
    bind_udp(address.into(), Sharing::Alone).map(UdpSocket::from)
}

/// As many UDP sockets for one address as there are to be threads that receive, each like [`udp_socket`]; at least one.
///
/// On Linux the kernel spreads the clients among them; elsewhere it is one socket for any `count`. No other process can
/// take part: its socket is refused as it is for [`udp_socket`], except that of a program of the same user that asks
/// for a share itself. When `address` stands for all addresses of the machine, the [`batch`](crate::batch) of a
/// datagram knows which one it was sent to. What leaves is not cut into fragments on its way (RFC 9715 section 3.1),
/// and so must fit into the packets of the network.
pub fn udp_sockets(address: SocketAddr, count: usize) -> io::Result<Vec<UdpSocket>> {
    udp_sockets_at(address.into(), count)
}

/// The same where clients may use another address than the one that is bound.
pub fn udp_sockets_at(place: Place, count: usize) -> io::Result<Vec<UdpSocket>> {
    let bind = |place: Place, sharing| -> io::Result<UdpSocket> {
        let (socket, address) = (bind_udp(place, sharing)?, place.bound());
        // Where that is not to be had, datagrams leave as others do.
        let _ = system::forbid_fragments(&socket, address);
        if address.ip().is_unspecified() {
            system::report_local_address(&socket, address)?;
        }
        Ok(socket.into())
    };
    let count = if system::CAN_SHARE { count } else { 1 };
    let first = bind(place, if count > 1 { Sharing::First } else { Sharing::Alone })?;
    // A port that the system chose for the first is that of all.
    let place = if place.bound().port() == 0 { first.local_addr()?.into() } else { place };
    let mut sockets = vec![first];
    for _ in 1..count {
        sockets.push(bind(place, Sharing::Next)?);
    }
    Ok(sockets)
}

fn bind_tcp(place: Place) -> io::Result<Socket> {
    let address = place.bound();
    (|| {
        let socket = open(address, Transport::Tcp)?;
        system::claim(&socket, Transport::Tcp)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket)
    })()
    .map_err(|error| BindError::explain(place, Transport::Tcp, error))
}

fn bind_udp(place: Place, sharing: Sharing) -> io::Result<Socket> {
    let address = place.bound();
    (|| {
        let socket = open(address, Transport::Udp)?;
        system::claim(&socket, Transport::Udp)?;
        system::ignore_unreachable(&socket)?;
        if system::extend_receive_buffer(&socket).is_err() {
            // Without the privilege the kernel gives what its limit allows; a small buffer works, only less well.
            let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES);
        }
        sharing.bind(&socket, address)?;
        Ok(socket)
    })()
    .map_err(|error| BindError::explain(place, Transport::Udp, error))
}

/// Whether a socket has its address alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    Alone,
    /// Shares with those that come later. It binds before it says so, because one that says so first would join a
    /// foreign group instead of being refused.
    First,
    Next,
}

impl Sharing {
    fn bind(self, socket: &Socket, address: SocketAddr) -> io::Result<()> {
        if self == Self::Next {
            system::share(socket)?;
        }
        socket.bind(&address.into())?;
        if self == Self::First {
            system::share(socket)?;
        }
        Ok(())
    }
}

/// A UDP socket for asking others, not blocking; `local` is usually the unspecified address with port 0.
///
/// Once connected it fails with "connection refused" or "reset" when no socket listens at the other end, on Windows too:
/// that shows at once that an upstream is gone.
pub fn udp_client_socket(local: SocketAddr) -> io::Result<UdpSocket> {
    (|| {
        let socket = open(local, Transport::Udp)?;
        system::claim(&socket, Transport::Udp)?;
        socket.bind(&local.into())?;
        Ok(socket.into())
    })()
    .map_err(|error| BindError::explain(local.into(), Transport::Udp, error))
}

/// Whether an error of accept or receive says nothing about the socket itself, so that the service goes on.
///
/// Some last for a while, so a loop that meets one error after the other pauses. The rest (a closed or foreign
/// descriptor, an invalid argument) would come again at once, for ever.
pub fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable, Interrupted, NetworkDown,
        NetworkUnreachable, OutOfMemory, TimedOut, WouldBlock,
    };
    is_out_of_descriptors(error)
        || error.raw_os_error().is_some_and(|code| system::TRANSIENT.contains(&code))
        || matches!(
            error.kind(),
            ConnectionAborted
                | ConnectionRefused
                | ConnectionReset
                | HostUnreachable
                | Interrupted
                | NetworkDown
                | NetworkUnreachable
                | OutOfMemory
                | TimedOut
                | WouldBlock
        )
}

/// Whether the process or the system has no descriptor or handle left: wait a moment and close what is idle.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| system::OUT_OF_DESCRIPTORS.contains(&code))
}

/// Why a socket does not listen, with what a person can do about it.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {} ({transport}{}): {advice}", .place.reached(), through(*.place))]
pub struct BindError {
    place: Place,
    transport: Transport,
    advice: String,
    #[source]
    error: io::Error,
}

impl BindError {
    fn explain(place: Place, transport: Transport, error: io::Error) -> io::Error {
        let (kind, address) = (error.kind(), place.bound());
        let advice = match kind {
            io::ErrorKind::AddrInUse => {
                let owner = system::owner(address, transport)
                    .map_or_else(|| "another program".to_owned(), |owner| owner.to_string());
                // Docker publishes on all addresses by default, those of Berth too.
                let published = if owner.starts_with("docker-proxy") {
                    let port = address.port();
                    format!(
                        "a container publishes it on all addresses: publish it on the host's, `-p ADDRESS:{port}:{port}`; or "
                    )
                } else {
                    String::new()
                };
                format!("{owner} uses it; {published}stop that or choose another address or port")
            }
            io::ErrorKind::AddrNotAvailable => format!(
                "{} is not an address of this machine; let the service add it with --add-address, or choose another one",
                address.ip()
            ),
            io::ErrorKind::PermissionDenied => system::forbidden(address, transport),
            _ => error.to_string(),
        };
        io::Error::new(kind, Self { place, transport, advice, error })
    }
}

/// Which port is bound, for a text that names another one.
fn through(place: Place) -> String {
    place.redirected().map_or_else(String::new, |_| format!(", bound as port {}", place.bound().port()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Tcp,
    Udp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

/// The process that has a socket.
#[derive(Debug, PartialEq, Eq)]
struct Owner {
    pid: u32,
    name: Option<String>,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} (process {})", self.pid),
            None => write!(f, "process {}", self.pid),
        }
    }
}

fn open(address: SocketAddr, transport: Transport) -> io::Result<Socket> {
    let (kind, protocol) = match transport {
        Transport::Tcp => (Type::STREAM, Protocol::TCP),
        Transport::Udp => (Type::DGRAM, Protocol::UDP),
    };
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        // Linux and Windows differ in the default.
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::thread;
    use std::time::Instant;

    use super::*;

    fn loopback() -> SocketAddr {
        ([127, 0, 0, 1], 0).into()
    }

    #[test]
    fn sockets_do_not_block() {
        let listener = tcp_listener(loopback()).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        for socket in [udp_socket(loopback()).unwrap(), udp_client_socket(loopback()).unwrap()] {
            assert_eq!(socket.recv_from(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
    }

    #[tokio::test]
    async fn reset_connections_end_no_listener() {
        let listener = tcp_listener(loopback()).unwrap();
        let address = listener.local_addr().unwrap();
        let listener = Listener::from_std(listener).unwrap();
        for _ in 0..20 {
            let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            client.connect(&address.into()).unwrap();
            // Closing sends a reset then.
            client.set_linger(Some(Duration::ZERO)).unwrap();
        }
        let last = std::net::TcpStream::connect(address).unwrap();
        let last = last.local_addr().unwrap();
        loop {
            match listener.accept().await {
                Ok((_, peer)) if peer == last => break,
                // Linux hands out what was reset as if it were not.
                Ok(_) => {}
                Err(error) => assert!(is_transient(&error) && !is_out_of_descriptors(&error), "{error}"),
            }
        }
    }

    #[test]
    fn second_socket_for_an_address_is_refused_and_the_owner_named() {
        let tcp = tcp_listener(loopback()).unwrap();
        check_in_use(|| tcp_listener(tcp.local_addr().unwrap()).unwrap_err());
        let udp = udp_socket(loopback()).unwrap();
        check_in_use(|| udp_socket(udp.local_addr().unwrap()).unwrap_err());
        check_in_use(|| udp_client_socket(udp.local_addr().unwrap()).unwrap_err());
    }

    fn check_in_use(refused: impl Fn() -> io::Error) {
        let owner = format!("process {}", std::process::id());
        let mut error = refused();
        // A process that another test starts has all sockets of this one for a moment.
        for _ in 0..100 {
            if error.to_string().contains(&owner) {
                break;
            }
            thread::sleep(Duration::from_millis(20));
            error = refused();
        }
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        let text = error.to_string();
        assert!(text.contains(&owner) && text.contains("choose another address or port"), "{text}");
        assert!(error.into_inner().unwrap().is::<BindError>());
    }

    #[test]
    fn address_of_another_machine_is_explained() {
        let address = ([203, 0, 113, 77], 5353).into();
        for (error, transport) in
            [(tcp_listener(address).unwrap_err(), "TCP"), (udp_socket(address).unwrap_err(), "UDP")]
        {
            assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
            assert_eq!(
                error.to_string(),
                format!(
                    "cannot listen on 203.0.113.77:5353 ({transport}): 203.0.113.77 is not an address of this machine; \
                     let the service add it with --add-address, or choose another one"
                )
            );
        }
    }

    #[test]
    fn both_address_families_may_have_the_same_port() {
        let v4 = udp_socket(([0, 0, 0, 0], 0).into()).unwrap();
        let port = v4.local_addr().unwrap().port();
        match udp_socket((std::net::Ipv6Addr::UNSPECIFIED, port).into()) {
            Ok(_) => {}
            // A machine without IPv6.
            Err(error) => assert_ne!(error.kind(), ErrorKind::AddrInUse, "{error}"),
        }
    }

    #[test]
    fn shared_addresses_are_shared_with_nobody_else() {
        let count = if system::CAN_SHARE { 3 } else { 1 };
        let udp = udp_sockets(loopback(), 3).unwrap();
        assert_eq!(udp.len(), count);
        let udp_address = udp[0].local_addr().unwrap();
        assert!(udp.iter().all(|socket| socket.local_addr().unwrap() == udp_address));
        check_in_use(|| udp_socket(udp_address).unwrap_err());
        check_in_use(|| udp_sockets(udp_address, 3).unwrap_err());
        // Nor is an address taken from a socket that has it alone.
        let alone = udp_sockets(loopback(), 1).unwrap();
        check_in_use(|| udp_sockets(alone[0].local_addr().unwrap(), 3).unwrap_err());
        assert_eq!(udp_sockets(loopback(), 0).unwrap().len(), 1);
    }

    /// A connection that was begun, once it is made.
    fn connected(address: SocketAddr) -> io::Result<StdStream> {
        let stream = probe(address)?;
        let begun = Instant::now();
        while stream.peer_addr().is_err() {
            if let Some(error) = stream.take_error()? {
                return Err(error);
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "neither connected nor refused");
            thread::sleep(Duration::from_millis(1));
        }
        Ok(stream)
    }

    #[test]
    fn probe_connects_and_is_reset_before_it_is_seen() {
        use std::io::{Read, Write};
        let listener = tcp_listener(loopback()).unwrap();
        let address = listener.local_addr().unwrap();
        drop(connected(address).unwrap());
        if cfg!(target_os = "linux") {
            assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        }
        // What sends something is seen as any other.
        let mut stream = connected(address).unwrap();
        assert_eq!(stream.write(b"GET").unwrap(), 3);
        let (mut accepted, _) = listener.accept().unwrap();
        drop(stream);
        accepted.set_nonblocking(false).unwrap();
        let error = accepted.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        drop(listener);
        assert_eq!(connected(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn deferred_listener_accepts_who_speaks() {
        use std::io::{Read, Write};
        let listener = tcp_listener(loopback()).unwrap();
        listener.set_nonblocking(false).unwrap();
        defer_accept(&listener).unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(b"GET").unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        let mut bytes = [0; 3];
        accepted.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"GET");
    }

    #[test]
    fn last_bytes_arrive_with_the_end() {
        use std::io::Read;
        let listener = tcp_listener(loopback()).unwrap();
        listener.set_nonblocking(false).unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(send_last(&accepted, b"answer").unwrap(), 6);
        drop(accepted);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer");
    }

    #[test]
    fn unread_answers_do_not_disturb_a_service() {
        let service = udp_socket(loopback()).unwrap();
        let gone = udp_socket(loopback()).unwrap().local_addr().unwrap();
        service.send_to(b"answer", gone).unwrap();
        let client = udp_client_socket(loopback()).unwrap();
        client.send_to(b"query", service.local_addr().unwrap()).unwrap();
        service.set_nonblocking(false).unwrap();
        let mut buffer = [0; 8];
        let (length, from) = service.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from), (&b"query"[..], client.local_addr().unwrap()));
    }

    #[test]
    fn large_receive_buffer_is_granted_to_the_privileged() {
        let socket = Socket::from(udp_socket(loopback()).unwrap());
        let granted = socket.recv_buffer_size().unwrap();
        if system::extend_receive_buffer(&socket).is_ok() {
            assert!(granted >= RECEIVE_BUFFER_BYTES, "{granted}");
        } else {
            println!("without NET_ADMIN the system granted {granted} bytes");
            assert!(granted > 0);
        }
    }

    #[test]
    fn errors_without_code_are_judged_by_kind() {
        for kind in [ErrorKind::Interrupted, ErrorKind::ConnectionReset, ErrorKind::ConnectionAborted] {
            assert!(is_transient(&kind.into()), "{kind}");
        }
        for kind in [ErrorKind::InvalidInput, ErrorKind::Other, ErrorKind::NotConnected] {
            assert!(!is_transient(&kind.into()), "{kind}");
        }
    }
}
