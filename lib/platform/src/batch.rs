//! Datagrams by the batch: many received and many sent by one call, where the system has such calls.
//!
//! Asking the kernel costs more than answering a DNS query, so a busy service asks once for many datagrams. On Linux
//! these are recvmmsg(2) and sendmmsg(2); on Windows several receives are in flight on a completion port, and replies
//! leave one after the other, behind the same functions. Made for threads of their own, one per socket, not for a
//! runtime:
//!
//! ```no_run
//! # use platform::batch::{Incoming, Outgoing, make_blocking};
//! # fn answer(query: &[u8], room: &mut [u8]) -> Option<usize> { None }
//! # fn serve(socket: &std::net::UdpSocket, stopped: impl Fn() -> bool) -> std::io::Result<()> {
//! make_blocking(socket)?;
//! let (mut queries, mut replies) = (Incoming::new(4096), Outgoing::new(4096));
//! while !stopped() {
//!     queries.receive(socket)?;
//!     for query in queries.iter() {
//!         let Some(slot) = replies.slot() else { break };
//!         if let Some(length) = answer(query.bytes, slot.room) {
//!             slot.fill(length, Some(query.ends));
//!         }
//!     }
//!     replies.send(socket);
//! }
//! # Ok(())
//! # }
//! ```

#[cfg(unix)]
mod groups;
#[cfg(windows)]
mod port;
#[cfg(any(windows, test))]
mod single;
#[cfg_attr(unix, path = "batch/unix.rs")]
#[cfg_attr(windows, path = "batch/windows.rs")]
mod system;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

/// How many datagrams one call may receive or send.
///
/// With 64 the call itself is a hundredth of their cost; more gain nothing and make the first of them wait for longer.
pub const DATAGRAMS: usize = 64;

/// How long a receive waits for a first datagram.
///
/// That is how a busy thread learns that it is to stop: it looks ten times a second. One that has nothing to do sleeps
/// ([`Sleep`]). A datagram to ourselves would wake it too, but any process could send it, and it is lost when the socket's
/// buffer is full.
pub(crate) const RECEIVE_WAIT: Duration = Duration::from_millis(100);

/// What one step of the memory between two buffers is a multiple of: what a processor fetches at once.
const CACHE_LINE: usize = 64;

/// Makes a socket ready for [`Incoming::receive`]; without it that may return at once with nothing.
pub fn make_blocking(socket: &UdpSocket) -> io::Result<()> {
    system::make_blocking(socket)
}

/// The sleep of a thread that receives and has nothing to do.
///
/// It costs one more call per datagram, so it is for after a receive that found nothing in its time. On Windows nobody
/// sleeps: there the receives of [`RECEIVE_WAIT`] go on.
#[derive(Debug)]
pub struct Sleep(system::Sleep);

/// Ends a [`Sleep`], and each later one at once, when it is dropped.
#[derive(Debug)]
pub struct Alarm {
    _until_dropped: system::Alarm,
}

impl Sleep {
    /// A sleep, and what ends it.
    ///
    /// # Errors
    ///
    /// Fails if the system has no room for another pipe.
    pub fn new() -> io::Result<(Self, Alarm)> {
        let (sleep, alarm) = system::sleep()?;
        Ok((Self(sleep), Alarm { _until_dropped: alarm }))
    }

    /// Waits until a datagram has arrived or the alarm was dropped. It may return earlier.
    pub fn wait(&self, socket: &UdpSocket) {
        self.0.wait(socket);
    }
}

/// Both ends of a datagram that arrived, as a reply to it needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The sender.
    pub peer: SocketAddr,
    /// The address it was sent to, from which a reply has to leave.
    ///
    /// Known on Linux when the socket listens on all addresses and is one of [`crate::socket::udp_sockets`]. On Windows
    /// it is unknown: listen on the exact address there.
    pub local: Option<IpAddr>,
}

/// A datagram that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// What it says.
    pub bytes: &'a [u8],
    /// Where it came from.
    pub ends: Ends,
}

/// Room for the datagrams that arrive together.
#[derive(Debug)]
pub struct Incoming {
    buffers: Buffers,
    received: Vec<Received>,
    scratch: system::Scratch,
}

impl Incoming {
    /// Room for [`DATAGRAMS`] of at most `bytes` each; longer ones are thrown away.
    pub fn new(bytes: usize) -> Self {
        Self {
            buffers: Buffers::new(bytes),
            received: Vec::with_capacity(DATAGRAMS),
            scratch: system::Scratch::default(),
        }
    }

    /// Waits at most [`RECEIVE_WAIT`] for a datagram and takes it and those that are there already.
    ///
    /// Returns how many; none when the time is over or a signal came. The former ones are gone, even when this fails. An
    /// error may say nothing about the socket: see [`crate::socket::is_transient`].
    pub fn receive(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        self.fill(socket, true)
    }

    /// Takes the datagrams that are there already; none at all is not an error.
    pub fn receive_now(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        self.fill(socket, false)
    }

    fn fill(&mut self, socket: &UdpSocket, wait: bool) -> io::Result<usize> {
        self.received.clear();
        match system::receive(socket, &mut self.buffers, &mut self.received, &mut self.scratch, wait) {
            Ok(()) => Ok(self.received.len()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// The datagrams of the last receive, in the order of their arrival.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Datagram<'_>> {
        self.received.iter().map(|received| Datagram {
            bytes: &self.buffers.slot(received.slot)[..received.length],
            ends: received.ends,
        })
    }
}

/// Room for the datagrams that leave together.
#[derive(Debug)]
pub struct Outgoing {
    buffers: Buffers,
    leaving: Vec<Leaving>,
    grouping: system::Grouping,
}

impl Outgoing {
    /// Room for [`DATAGRAMS`] of at most `bytes` each.
    pub fn new(bytes: usize) -> Self {
        Self { buffers: Buffers::new(bytes), leaving: Vec::with_capacity(DATAGRAMS), grouping: system::Grouping::off() }
    }

    /// The same for the replies of a service: those of one length that leave `socket` for one peer take the way there
    /// together, where the system can take them apart again. Their order may change.
    ///
    /// A resolver asks many questions from one port; a client that asks one thing at a time neither gains nor loses by
    /// it.
    pub fn grouping(socket: &UdpSocket, bytes: usize) -> Self {
        Self { grouping: system::Grouping::of(socket), ..Self::new(bytes) }
    }

    /// Room for one more; `None` when all is taken and it is time to [`send`](Self::send).
    ///
    /// One that is not filled is given out again.
    pub fn slot(&mut self) -> Option<Slot<'_>> {
        let next = self.leaving.len();
        (next < DATAGRAMS).then(|| Slot { room: self.buffers.slot_mut(next), leaving: &mut self.leaving })
    }

    /// How many wait to be sent.
    pub fn len(&self) -> usize {
        self.leaving.len()
    }

    /// Whether none waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.leaving.is_empty()
    }

    /// Sends all that were filled, and forgets them.
    ///
    /// What cannot be sent is lost, as datagrams may be, and does not stop the others from leaving.
    pub fn send(&mut self, socket: &UdpSocket) -> Sent {
        let sent = system::send(socket, &self.buffers, &self.leaving, &mut self.grouping);
        self.leaving.clear();
        sent
    }
}

/// Room for a datagram that leaves. Bytes of an earlier one may stand there.
#[derive(Debug)]
pub struct Slot<'a> {
    /// To be written from its start.
    pub room: &'a mut [u8],
    leaving: &'a mut Vec<Leaving>,
}

impl Slot<'_> {
    /// Lets the first `length` bytes leave with the others, as a reply to what came with `ends`.
    ///
    /// Without `ends` they go to where the socket is connected to. At most the whole room leaves.
    pub fn fill(self, length: usize, ends: Option<Ends>) {
        self.leaving.push(Leaving { length: length.min(self.room.len()), ends });
    }
}

/// The outcome of a send.
#[derive(Debug, Default)]
pub struct Sent {
    /// How many the system took.
    pub sent: usize,
    /// How many it refused.
    pub lost: usize,
    /// Why it refused the last of these.
    pub error: Option<io::Error>,
}

/// Sends one reply from the address that was asked; for replies that come later than the rest of their batch.
pub fn reply(socket: &UdpSocket, bytes: &[u8], ends: Ends) -> io::Result<()> {
    system::reply(socket, bytes, ends)
}

/// Where a datagram lies that arrived.
#[derive(Debug)]
struct Received {
    slot: usize,
    length: usize,
    ends: Ends,
}

/// A datagram that leaves; its place is that of its bytes.
#[derive(Debug)]
struct Leaving {
    length: usize,
    ends: Option<Ends>,
}

/// The bytes of [`DATAGRAMS`] datagrams.
#[derive(Debug)]
struct Buffers {
    bytes: Box<[u8]>,
    room: usize,
    step: usize,
}

impl Buffers {
    fn new(room: usize) -> Self {
        // An odd number of cache lines: in steps of a power of two all of them would fight for the same few places of
        // the processor's first cache.
        let step = (room.div_ceil(CACHE_LINE) | 1) * CACHE_LINE;
        Self { bytes: vec![0; step * DATAGRAMS].into(), room, step }
    }

    fn slot(&self, index: usize) -> &[u8] {
        &self.bytes[index * self.step..][..self.room]
    }

    fn slot_mut(&mut self, index: usize) -> &mut [u8] {
        &mut self.bytes[index * self.step..][..self.room]
    }

    /// All of them, in order.
    #[cfg(unix)]
    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact(self.step).map(|slot| &slot[..self.room])
    }

    /// The same, to be written to.
    #[cfg(unix)]
    fn iter_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let room = self.room;
        self.bytes.chunks_exact_mut(self.step).map(move |slot| &mut slot[..room])
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;
    use crate::socket::{udp_client_socket, udp_sockets};

    fn service(address: &str) -> UdpSocket {
        let socket = udp_sockets(address.parse().unwrap(), 1).unwrap().remove(0);
        make_blocking(&socket).unwrap();
        socket
    }

    fn client(service: &UdpSocket) -> UdpSocket {
        client_at(service.local_addr().unwrap())
    }

    fn client_at(service: SocketAddr) -> UdpSocket {
        let client = udp_client_socket(SocketAddr::new(service.ip(), 0)).unwrap();
        client.set_nonblocking(false).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        client.connect(service).unwrap();
        client
    }

    #[cfg(unix)]
    #[test]
    fn a_datagram_and_the_alarm_end_a_sleep_and_nothing_else_does() {
        let socket = service("127.0.0.1:0");
        let client = client(&socket);
        let (sleep, alarm) = Sleep::new().unwrap();
        let slept = |what: &str| {
            let begun = Instant::now();
            let waker = what.to_owned();
            thread::scope(|scope| {
                let sleeper = scope.spawn(|| sleep.wait(&socket));
                thread::sleep(RECEIVE_WAIT * 2);
                assert!(!sleeper.is_finished(), "{waker}");
                client.send(waker.as_bytes()).unwrap();
            });
            begun.elapsed()
        };
        assert!(slept("a datagram") >= RECEIVE_WAIT * 2);
        let mut queries = Incoming::new(512);
        assert_eq!(queries.receive(&socket).unwrap(), 1);
        let alarm = thread::spawn(move || {
            thread::sleep(RECEIVE_WAIT * 2);
            drop(alarm);
        });
        sleep.wait(&socket);
        // Had it returned before, the alarm would still be there.
        assert_eq!(queries.receive_now(&socket).unwrap(), 0);
        alarm.join().unwrap();
        // What would sleep later wakes at once.
        sleep.wait(&socket);
    }

    /// Answers every datagram with its bytes turned round, until `count` came.
    fn serve(socket: &UdpSocket, count: usize) -> usize {
        let (mut queries, mut replies) = (Incoming::new(512), Outgoing::new(512));
        let (mut seen, mut calls) = (0, 0);
        while seen < count {
            calls += usize::from(queries.receive(socket).unwrap() > 0);
            for query in queries.iter() {
                let slot = replies.slot().unwrap();
                for (to, from) in slot.room.iter_mut().zip(query.bytes.iter().rev()) {
                    *to = *from;
                }
                slot.fill(query.bytes.len(), Some(query.ends));
            }
            seen += queries.iter().len();
            let filled = replies.len();
            let sent = replies.send(socket);
            assert_eq!((sent.sent, sent.lost, replies.is_empty()), (filled, 0, true), "{sent:?}");
        }
        calls
    }

    #[test]
    fn every_datagram_is_answered_to_its_sender() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let service = service(address);
            let clients: Vec<UdpSocket> = (0..3).map(|_| client(&service)).collect();
            // More than one batch holds, of many lengths, the longest as long as the room.
            for number in 0..100_usize {
                for client in &clients {
                    let mut bytes = vec![0x55; 512 * number / 99];
                    bytes.extend(number.to_be_bytes());
                    bytes.truncate(512);
                    client.send(&bytes).unwrap();
                }
            }
            let calls = serve(&service, 300);
            assert!(cfg!(windows) || calls < 100, "{calls} calls for 300 datagrams");
            for client in &clients {
                for number in 0..100_usize {
                    let mut buffer = [0; 1024];
                    let length = client.recv(&mut buffer).unwrap();
                    let expected = (512 * number / 99 + 8).min(512);
                    assert_eq!(length, expected, "{address} {number}");
                    if expected < 512 {
                        assert_eq!(buffer[..8], number.to_le_bytes(), "{address} {number}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_longer_than_the_room_is_left_out() {
        let service = service("127.0.0.1:0");
        let client = client(&service);
        for bytes in [&[1; 9][..], &[2; 8], &[], &[3; 1000], &[4; 1]] {
            client.send(bytes).unwrap();
        }
        let mut incoming = Incoming::new(8);
        let mut seen = Vec::new();
        while seen.len() < 3 {
            incoming.receive(&service).unwrap();
            seen.extend(incoming.iter().map(|datagram| datagram.bytes.to_vec()));
        }
        assert_eq!(seen, [vec![2; 8], vec![], vec![4; 1]]);
        assert_eq!(incoming.iter().last().unwrap().ends.peer, client.local_addr().unwrap());
    }

    #[test]
    fn waiting_ends_by_itself_and_forgets_the_former() {
        let service = service("127.0.0.1:0");
        client(&service).send(b"query").unwrap();
        let mut incoming = Incoming::new(64);
        assert_eq!(incoming.receive(&service).unwrap(), 1);
        assert_eq!(incoming.receive_now(&service).unwrap(), 0);
        let start = Instant::now();
        assert_eq!(incoming.receive(&service).unwrap(), 0);
        // A timer of the system may be a little early or, on a busy machine, late.
        assert!(start.elapsed() > RECEIVE_WAIT / 2, "{:?}", start.elapsed());
        assert_eq!(incoming.iter().len(), 0);
    }

    #[test]
    fn waiting_ends_when_a_datagram_comes() {
        let service = service("127.0.0.1:0");
        let client = client(&service);
        let served = thread::spawn(move || serve(&service, 1));
        client.send(b"abc").unwrap();
        let mut buffer = [0; 8];
        assert_eq!(client.recv(&mut buffer).unwrap(), 3);
        assert_eq!(&buffer[..3], b"cba");
        served.join().unwrap();
    }

    #[test]
    fn replies_leave_from_the_address_that_was_asked() {
        if cfg!(windows) {
            return;
        }
        for (all, ip) in [("0.0.0.0:0", [127, 0, 0, 7].into()), ("[::]:0", IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]))] {
            let service = service(all);
            let asked = SocketAddr::new(ip, service.local_addr().unwrap().port());
            let client = client_at(asked);
            client.send(b"query").unwrap();
            let mut incoming = Incoming::new(64);
            assert_eq!(incoming.receive(&service).unwrap(), 1);
            let ends = incoming.iter().next().unwrap().ends;
            assert_eq!(ends, Ends { peer: client.local_addr().unwrap(), local: Some(ip) });
            let mut outgoing = Outgoing::new(64);
            let slot = outgoing.slot().unwrap();
            slot.room[..2].copy_from_slice(b"at");
            slot.fill(2, Some(ends));
            assert_eq!(outgoing.send(&service).sent, 1);
            reply(&service, b"later", ends).unwrap();
            for expected in [&b"at"[..], b"later"] {
                let mut buffer = [0; 16];
                let (length, from) = client.recv_from(&mut buffer).unwrap();
                assert_eq!((&buffer[..length], from), (expected, asked));
            }
        }
    }

    #[test]
    fn late_reply_reaches_its_client() {
        let service = service("127.0.0.1:0");
        let client = client(&service);
        reply(&service, b"later", Ends { peer: client.local_addr().unwrap(), local: None }).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(client.recv(&mut buffer).unwrap(), 5);
    }

    #[test]
    fn datagram_that_cannot_leave_stops_no_other() {
        let service = service("127.0.0.1:0");
        let client = client(&service);
        let here = Some(Ends { peer: client.local_addr().unwrap(), local: None });
        // Another family than the socket's.
        let nowhere = Some(Ends { peer: "[2001:db8::1]:53".parse().unwrap(), local: None });
        let mut outgoing = Outgoing::new(8);
        for ends in [nowhere, here, nowhere, here, here, nowhere] {
            outgoing.slot().unwrap().fill(4, ends);
        }
        let sent = outgoing.send(&service);
        assert_eq!((sent.sent, sent.lost), (3, 3), "{sent:?}");
        assert!(sent.error.is_some());
        for _ in 0..3 {
            assert_eq!(client.recv(&mut [0; 8]).unwrap(), 4);
        }
    }

    #[test]
    fn replies_to_one_peer_arrive_as_they_would_alone() {
        let all = ("0.0.0.0:0", Some(IpAddr::from([127, 0, 0, 1])));
        for (address, local) in [("127.0.0.1:0", None), ("[::1]:0", None), all] {
            // There the address that was asked is unknown.
            if cfg!(windows) && local.is_some() {
                continue;
            }
            let service = service(address);
            let own = service.local_addr().unwrap();
            let asked = SocketAddr::new(local.unwrap_or_else(|| own.ip()), own.port());
            let clients: Vec<UdpSocket> = (0..3).map(|_| client_at(asked)).collect();
            let mut outgoing = Outgoing::grouping(&service, 1232);
            // Every client gets some of each length.
            let length = |number: usize| if number.is_multiple_of(5) { 1232 } else { 30 + number % 7 };
            for number in 0..DATAGRAMS {
                let peer = clients[number % 3].local_addr().unwrap();
                let slot = outgoing.slot().unwrap();
                slot.room.fill(u8::try_from(number).unwrap());
                slot.fill(length(number), Some(Ends { peer, local }));
            }
            let sent = outgoing.send(&service);
            assert_eq!((sent.sent, sent.lost), (DATAGRAMS, 0), "{sent:?}");
            for (place, client) in clients.iter().enumerate() {
                let mut seen = Vec::new();
                while seen.len() < (DATAGRAMS - place).div_ceil(3) {
                    let mut buffer = [0; 1500];
                    let bytes = client.recv(&mut buffer).unwrap();
                    let number = usize::from(buffer[0]);
                    assert!(buffer[..bytes].iter().all(|byte| *byte == buffer[0]), "{address} {number}");
                    assert_eq!(bytes, length(number), "{address} {number}");
                    seen.push(number);
                }
                seen.sort_unstable();
                assert!(seen.into_iter().eq((place..DATAGRAMS).step_by(3)), "{address}");
            }
        }
    }

    #[test]
    fn what_is_refused_together_leaves_alone() {
        let service = service("127.0.0.1:0");
        let client = client(&service);
        let here = Some(Ends { peer: client.local_addr().unwrap(), local: None });
        let nowhere = Some(Ends { peer: "[2001:db8::1]:53".parse().unwrap(), local: None });
        let mut outgoing = Outgoing::grouping(&service, 8);
        for (length, ends) in [(4, nowhere), (4, here), (4, nowhere), (4, here), (3, nowhere)] {
            outgoing.slot().unwrap().fill(length, ends);
        }
        let sent = outgoing.send(&service);
        assert_eq!((sent.sent, sent.lost), (2, 3), "{sent:?}");
        assert!(sent.error.is_some());
        for _ in 0..2 {
            assert_eq!(client.recv(&mut [0; 8]).unwrap(), 4);
        }
    }

    #[test]
    fn connected_socket_needs_no_addresses() {
        let service = service("127.0.0.1:0");
        let client = client(&service);
        let mut outgoing = Outgoing::new(8);
        for _ in 0..DATAGRAMS {
            // No caller may claim to have written more than there was room for.
            outgoing.slot().unwrap().fill(9, None);
        }
        assert!(outgoing.slot().is_none());
        assert_eq!(outgoing.send(&client).sent, DATAGRAMS);
        assert_eq!(outgoing.send(&client).sent, 0);
        let mut incoming = Incoming::new(16);
        let mut seen = 0;
        while seen < DATAGRAMS {
            seen += incoming.receive(&service).unwrap();
            assert!(incoming.iter().all(|datagram| datagram.bytes.len() == 8));
        }
    }
}
