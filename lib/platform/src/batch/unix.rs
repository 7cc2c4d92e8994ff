//! recvmmsg(2) and sendmmsg(2).
//!
//! Addresses and control messages are kept as the bytes that the kernel reads and writes, and taken apart by hand: their
//! layout is part of the system's interface, and so nothing but the calls themselves is unsafe.

use std::array;
use std::io::{self, IoSlice, PipeReader, PipeWriter};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr;

pub(super) use super::groups::Grouping;
use super::groups::Groups;
use super::{Buffers, DATAGRAMS, Ends, Leaving, RECEIVE_WAIT, Received, Sent};

pub(super) fn make_blocking(socket: &UdpSocket) -> io::Result<()> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(RECEIVE_WAIT))
}

/// Sleeps until its pipe has no writer any more.
#[derive(Debug)]
pub(super) struct Sleep(PipeReader);

/// The only writer.
pub(super) type Alarm = PipeWriter;

pub(super) fn sleep() -> io::Result<(Sleep, Alarm)> {
    let (reader, writer) = io::pipe()?;
    Ok((Sleep(reader), writer))
}

impl Sleep {
    pub(super) fn wait(&self, socket: &UdpSocket) {
        let wanted = |fd, events| libc::pollfd { fd, events, revents: 0 };
        // The end of the last writer is reported without being asked for.
        let mut wanted = [wanted(socket.as_raw_fd(), libc::POLLIN), wanted(self.0.as_raw_fd(), 0)];
        let count = libc::nfds_t::try_from(wanted.len()).unwrap_or_default();
        // SAFETY: both descriptors are open because they are borrowed; the pointer is to as many structures as the count says,
        // which live until the call returns and are not shared.
        #[expect(unsafe_code, reason = "std cannot wait for two descriptors")]
        // Every reason to return is one to look at the socket again, a signal too.
        let _ = unsafe { libc::poll(wanted.as_mut_ptr(), count, FOREVER) };
    }
}

/// No time limit for poll(2).
const FOREVER: libc::c_int = -1;

/// How many datagrams are asked for while fewer come: to make ready for all takes longer than to answer one.
const FEW: usize = 8;

/// What the kernel reports about each datagram; reused so that it need not be cleared each time.
#[derive(Debug)]
pub(super) struct Scratch {
    names: Box<[Name; DATAGRAMS]>,
    controls: Box<[Control; DATAGRAMS]>,
    /// Whether the last receive took [`FEW`] or more.
    many: bool,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { names: Box::new([Name::EMPTY; DATAGRAMS]), controls: Box::new([Control::EMPTY; DATAGRAMS]), many: false }
    }
}

pub(super) fn receive(
    socket: &UdpSocket,
    buffers: &mut Buffers,
    received: &mut Vec<Received>,
    scratch: &mut Scratch,
    wait: bool,
) -> io::Result<()> {
    let flags = if wait { libc::MSG_WAITFORONE } else { libc::MSG_DONTWAIT };
    let count = if scratch.many {
        receive_at_most::<DATAGRAMS>(socket, buffers, received, scratch, flags)
    } else {
        receive_at_most::<FEW>(socket, buffers, received, scratch, flags)
    }?;
    scratch.many = count >= FEW;
    Ok(())
}

/// Takes at most so many datagrams, of the [`DATAGRAMS`] there is room for; returns how many.
fn receive_at_most<const MOST: usize>(
    socket: &UdpSocket,
    buffers: &mut Buffers,
    received: &mut Vec<Received>,
    scratch: &mut Scratch,
    flags: libc::c_int,
) -> io::Result<usize> {
    let mut slots = buffers.iter_mut();
    let mut vectors: [libc::iovec; MOST] = array::from_fn(|_| vector(slots.next().unwrap_or_default()));
    drop(slots);
    let mut parts = vectors.iter_mut().zip(scratch.names.iter_mut()).zip(scratch.controls.iter_mut());
    let mut headers: [libc::mmsghdr; MOST] = array::from_fn(|_| {
        let mut header = empty_header();
        if let Some(((vector, name), control)) = parts.next() {
            (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (vector, 1);
            (header.msg_hdr.msg_name, header.msg_hdr.msg_namelen) = (name.0.as_mut_ptr().cast(), narrow(NAME_BYTES));
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
        }
        header
    });
    drop(parts);
    // SAFETY: the descriptor is open because `socket` is borrowed. Each of the headers, as many as is said, points to a
    // vector, a name and a control buffer of its own, with their true lengths, and each vector to a slot of its own; all of
    // them live until the call returns and no other thread touches them meanwhile. No time limit is given.
    #[expect(unsafe_code, reason = "no crate offers recvmmsg")]
    let count =
        unsafe { libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), narrow(MOST), flags as _, ptr::null_mut()) };
    // Negative means an error.
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    for (slot, header) in headers.iter().enumerate().take(count) {
        let whole = header.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
        let peer = scratch.names[slot].address(header.msg_hdr.msg_namelen);
        if let (true, Some(peer)) = (whole, peer) {
            let local = scratch.controls[slot].local(header.msg_hdr.msg_controllen as _);
            received.push(Received { slot, length: header.msg_len as usize, ends: Ends { peer, local } });
        }
    }
    Ok(count)
}

pub(super) fn send(socket: &UdpSocket, buffers: &Buffers, leaving: &[Leaving], grouping: &mut Grouping) -> Sent {
    // A single query waits for this: the call for many takes longer for one.
    if let [one] = leaving
        && one.ends.is_none_or(|ends| ends.local.is_none())
    {
        return send_one(socket, &buffers.slot(0)[..one.length], one.ends);
    }
    if grouping.is_due() {
        return send_groups(socket, buffers, leaving, grouping);
    }
    let mut slots = buffers.iter().zip(leaving).map(|(slot, leaving)| &slot[..leaving.length]);
    let pieces: [IoSlice<'_>; DATAGRAMS] = array::from_fn(|_| IoSlice::new(slots.next().unwrap_or_default()));
    send_each(socket, &pieces[..leaving.len()], leaving)
}

/// What the kernel says when the way to a peer cannot have segments at all: no checksums of the card, an odd device.
const NO_SEGMENTS: [libc::c_int; 3] = [libc::EIO, libc::EINVAL, libc::EOPNOTSUPP];

/// Sends datagrams to the same peer as one; when the kernel does not want that, one by one.
fn send_groups(socket: &UdpSocket, buffers: &Buffers, leaving: &[Leaving], grouping: &mut Grouping) -> Sent {
    let bytes = |index: usize| &buffers.slot(index)[..leaving[index].length];
    let groups = Groups::of(leaving);
    grouping.learn(leaving.len(), groups.iter().len());
    let mut members = groups.iter().flatten();
    let pieces: [IoSlice<'_>; DATAGRAMS] =
        array::from_fn(|_| IoSlice::new(members.next().map(bytes).unwrap_or_default()));
    let mut names = [Name::EMPTY; DATAGRAMS];
    let mut controls = [Control::EMPTY; DATAGRAMS];
    let mut rest = &pieces[..];
    let mut parts = groups.iter().zip(names.iter_mut()).zip(controls.iter_mut());
    let mut messages: [Message<'_>; DATAGRAMS] = array::from_fn(|_| {
        let Some(((mut members, name), control)) = parts.next() else { return Message::EMPTY };
        let (these, others) = rest.split_at(members.len());
        rest = others;
        let segment = (these.len() > 1).then(|| u16::try_from(these[0].len()).unwrap_or(u16::MAX));
        let ends = members.next().and_then(|first| leaving[first].ends);
        Message::new(these, ends, segment, name, control)
    });
    let mut outcome = Sent { sent: leaving.len(), ..Sent::default() };
    transmit(socket, &mut messages[..groups.iter().len()], |refused, error| {
        let Some(members) = groups.iter().nth(refused) else { return };
        let together = members.len();
        let lost = outcome.lost;
        for member in members {
            let alone = send_each(socket, &[IoSlice::new(bytes(member))], &leaving[member..=member]);
            outcome.sent -= alone.lost;
            outcome.lost += alone.lost;
            if alone.error.is_some() {
                outcome.error = alone.error;
            }
        }
        // What leaves only alone says something of the way; what does not leave at all only of its peer.
        if outcome.lost == lost
            && together > 1
            && error.raw_os_error().is_some_and(|error| NO_SEGMENTS.contains(&error))
        {
            grouping.end();
        }
    });
    outcome
}

fn send_one(socket: &UdpSocket, bytes: &[u8], ends: Option<Ends>) -> Sent {
    loop {
        let sent = match ends {
            Some(ends) => socket.send_to(bytes, ends.peer),
            None => socket.send(bytes),
        };
        return match sent {
            Ok(_) => Sent { sent: 1, lost: 0, error: None },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Sent { sent: 0, lost: 1, error: Some(error) },
        };
    }
}

pub(super) fn reply(socket: &UdpSocket, bytes: &[u8], ends: Ends) -> io::Result<()> {
    if ends.local.is_none() {
        return socket.send_to(bytes, ends.peer).map(drop);
    }
    let leaving = Leaving { length: bytes.len(), ends: Some(ends) };
    send_each(socket, &[IoSlice::new(bytes)], &[leaving]).error.map_or(Ok(()), Err)
}

/// Sends each piece as a datagram of its own, at most [`DATAGRAMS`] of them.
fn send_each(socket: &UdpSocket, pieces: &[IoSlice<'_>], leaving: &[Leaving]) -> Sent {
    let mut names = [Name::EMPTY; DATAGRAMS];
    let mut controls = [Control::EMPTY; DATAGRAMS];
    let mut parts = pieces.chunks(1).zip(leaving).zip(names.iter_mut()).zip(controls.iter_mut());
    let mut messages: [Message<'_>; DATAGRAMS] = array::from_fn(|_| {
        let Some((((piece, leaving), name), control)) = parts.next() else { return Message::EMPTY };
        Message::new(piece, leaving.ends, None, name, control)
    });
    let mut outcome = Sent { sent: leaving.len(), ..Sent::default() };
    transmit(socket, &mut messages[..leaving.len()], |_, error| {
        outcome.sent -= 1;
        outcome.lost += 1;
        outcome.error = Some(error);
    });
    outcome
}

/// Sends all messages, and returns the place of each that the kernel refuses.
fn transmit(socket: &UdpSocket, messages: &mut [Message<'_>], mut refused: impl FnMut(usize, io::Error)) {
    let mut done = 0;
    while let Some(rest) = messages.get_mut(done..).filter(|rest| !rest.is_empty()) {
        // SAFETY: the descriptor is open because `socket` is borrowed. A message is laid out as the kernel's header, and
        // there are as many of them as their number says. Each refers to bytes, a name and a control message, with their
        // true lengths, that are borrowed for as long as it lives; the kernel only reads these.
        #[expect(unsafe_code, reason = "no crate offers sendmmsg")]
        let count = unsafe { libc::sendmmsg(socket.as_raw_fd(), rest.as_mut_ptr().cast(), narrow(rest.len()), 0) };
        if let Ok(count) = usize::try_from(count) {
            done += count;
            continue;
        }
        // The error is that of the first; the others may have better luck.
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            refused(done, error);
            done += 1;
        }
    }
}

/// A message to be sent.
#[repr(transparent)]
struct Message<'a> {
    header: libc::mmsghdr,
    parts: PhantomData<&'a [u8]>,
}

impl<'a> Message<'a> {
    const EMPTY: Self = Self { header: empty_header(), parts: PhantomData };

    /// Of these pieces, each a datagram of `segment` bytes when there is such a length.
    fn new(
        pieces: &'a [IoSlice<'a>],
        ends: Option<Ends>,
        segment: Option<u16>,
        name: &'a mut Name,
        control: &'a mut Control,
    ) -> Self {
        let mut message = Self::EMPTY;
        let header = &mut message.header.msg_hdr;
        // A piece is laid out as the kernel's vector, and the kernel only reads what is sent.
        header.msg_iov = pieces.as_ptr().cast_mut().cast();
        header.msg_iovlen = pieces.len() as _;
        let Some(ends) = ends else { return message };
        header.msg_namelen = narrow(name.set(ends.peer));
        header.msg_name = name.0.as_mut_ptr().cast();
        let bytes = control.set(ends.local, segment);
        if bytes > 0 {
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = bytes as _;
        }
        message
    }
}

fn vector(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

const fn empty_header() -> libc::mmsghdr {
    // SAFETY: numbers and pointers, for which all zeros are valid: null pointers and lengths of 0.
    #[expect(unsafe_code, reason = "some C libraries have fields here that cannot be named")]
    unsafe {
        MaybeUninit::zeroed().assume_init()
    }
}

/// Bytes of the longest address, `sockaddr_in6`.
const NAME_BYTES: usize = size_of::<libc::sockaddr_in6>();

/// An address as the kernel writes it: the family in our order of bytes, then the port and the address in the network's.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
struct Name([u8; NAME_BYTES]);

impl Name {
    const EMPTY: Self = Self([0; NAME_BYTES]);

    fn set(&mut self, address: SocketAddr) -> usize {
        self.0[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(address) => {
                self.0[..2].copy_from_slice(&family(libc::AF_INET).to_ne_bytes());
                self.0[4..8].copy_from_slice(&address.ip().octets());
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(address) => {
                self.0[..2].copy_from_slice(&family(libc::AF_INET6).to_ne_bytes());
                self.0[4..8].copy_from_slice(&address.flowinfo().to_ne_bytes());
                self.0[8..24].copy_from_slice(&address.ip().octets());
                self.0[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
                size_of::<libc::sockaddr_in6>()
            }
        }
    }

    fn address(&self, length: libc::socklen_t) -> Option<SocketAddr> {
        let bytes = self.0.get(..length as usize)?;
        let kind = u16::from_ne_bytes(array_at(bytes, 0)?);
        let port = u16::from_be_bytes(array_at(bytes, 2)?);
        if kind == family(libc::AF_INET) {
            Some((array_at::<4>(bytes, 4)?, port).into())
        } else if kind == family(libc::AF_INET6) {
            let ip = Ipv6Addr::from(array_at::<16>(bytes, 8)?);
            let flow = u32::from_ne_bytes(array_at(bytes, 4)?);
            let scope = u32::from_ne_bytes(array_at(bytes, 24)?);
            Some(SocketAddrV6::new(ip, port, flow, scope).into())
        } else {
            None
        }
    }
}

/// What the kernel pads control messages to, and the size of their length.
const WORD: usize = size_of::<usize>();

/// Bytes before the content of a control message: its length, a level and a type.
const CONTROL_HEADER_BYTES: usize = WORD + 2 * size_of::<libc::c_int>();

/// Bytes of a control message with the longest local address, `in6_pktinfo`.
const LOCAL_BYTES: usize = (CONTROL_HEADER_BYTES + 20).next_multiple_of(WORD);

/// Bytes of a control message with the length of a segment.
const SEGMENT_BYTES: usize = (CONTROL_HEADER_BYTES + size_of::<u16>()).next_multiple_of(WORD);

/// Room for both of them; only the former is ever received.
const CONTROL_BYTES: usize = LOCAL_BYTES + SEGMENT_BYTES;

/// Control messages: each has its length, level and type, and then its content.
///
/// The local address is an `in_pktinfo` (interface, local address, address in the packet) or an `in6_pktinfo` (address,
/// interface).
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

impl Control {
    const EMPTY: Self = Self([0; CONTROL_BYTES]);

    /// Says from where to send, and in datagrams of which length; returns how many bytes that takes.
    fn set(&mut self, local: Option<IpAddr>, segment: Option<u16>) -> usize {
        let mut end = 0;
        if let Some(segment) = segment {
            end += self.put(end, (libc::SOL_UDP, libc::UDP_SEGMENT), &segment.to_ne_bytes());
        }
        // No interface is named: the routes decide, as they do for everything else.
        match local {
            None => {}
            Some(IpAddr::V4(local)) => {
                let mut content = [0; size_of::<libc::in_pktinfo>()];
                content[4..8].copy_from_slice(&local.octets());
                end += self.put(end, (libc::IPPROTO_IP, libc::IP_PKTINFO), &content);
            }
            Some(IpAddr::V6(local)) => {
                let mut content = [0; size_of::<libc::in6_pktinfo>()];
                content[..16].copy_from_slice(&local.octets());
                end += self.put(end, (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO), &content);
            }
        }
        end
    }

    /// Writes one message at `start`; returns how many bytes it takes.
    fn put(&mut self, start: usize, (level, kind): (libc::c_int, libc::c_int), content: &[u8]) -> usize {
        let message = &mut self.0[start..];
        let length = CONTROL_HEADER_BYTES + content.len();
        message[..WORD].copy_from_slice(&length.to_ne_bytes());
        message[WORD..][..4].copy_from_slice(&level.to_ne_bytes());
        message[WORD + 4..][..4].copy_from_slice(&kind.to_ne_bytes());
        message[CONTROL_HEADER_BYTES..length].copy_from_slice(content);
        length.next_multiple_of(WORD)
    }

    fn local(&self, length: usize) -> Option<IpAddr> {
        let bytes = self.0.get(..length)?;
        let level = libc::c_int::from_ne_bytes(array_at(bytes, WORD)?);
        let kind = libc::c_int::from_ne_bytes(array_at(bytes, WORD + 4)?);
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                Some(Ipv4Addr::from(array_at::<4>(bytes, CONTROL_HEADER_BYTES + 4)?).into())
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                Some(Ipv6Addr::from(array_at::<16>(bytes, CONTROL_HEADER_BYTES)?).into())
            }
            _ => None,
        }
    }
}

/// Lengths and counts here are all below 2^16.
fn narrow(length: usize) -> u32 {
    u32::try_from(length).unwrap_or_default()
}

fn family(family: libc::c_int) -> u16 {
    u16::try_from(family).unwrap_or_default()
}

fn array_at<const BYTES: usize>(bytes: &[u8], start: usize) -> Option<[u8; BYTES]> {
    bytes.get(start..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use socket2::SockRef;

    use super::*;
    use crate::socket::set_option;

    #[test]
    fn addresses_keep_all_their_parts() {
        let link_local = SocketAddrV6::new("fe80::1".parse().unwrap(), 5353, 0x0102_0304, 7);
        for address in ["192.0.2.1:53".parse().unwrap(), "[2001:db8::1]:65535".parse().unwrap(), link_local.into()] {
            let mut name = Name::EMPTY;
            let length = name.set(address);
            assert_eq!(name.address(length.try_into().unwrap()), Some(address));
            assert_eq!(name.address(3), None);
            // What the C library's own reading of the same bytes is.
            let raw = socket2::SockAddr::from(address);
            assert_eq!(usize::try_from(raw.len()).unwrap(), length);
        }
        assert_eq!(Name::EMPTY.address(16), None);
        assert_eq!(Name::EMPTY.address(128), None);
    }

    #[test]
    fn local_addresses_are_read_as_they_are_written() {
        for local in ["192.0.2.1", "2001:db8::1"] {
            let local: IpAddr = local.parse().unwrap();
            let mut control = Control::EMPTY;
            let length = control.set(Some(local), None);
            assert_eq!(control.local(length), Some(local));
            for short in [0, 4, 16, 20] {
                assert_eq!(control.local(short), None, "{short}");
            }
        }
    }

    #[test]
    fn receiving_without_waiting_does_not_wait() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (mut buffers, mut received, mut scratch) = (Buffers::new(8), Vec::new(), Scratch::default());
        // The socket itself would wait for ever.
        let error = receive(&socket, &mut buffers, &mut received, &mut scratch, false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(received.is_empty());
    }

    #[test]
    fn what_cannot_be_taken_apart_leaves_alone() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // Without checksums the kernel refuses segments.
        set_option(&SockRef::from(&socket), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let ends = Some(Ends { peer: client.local_addr().unwrap(), local: None });
        let mut buffers = Buffers::new(8);
        buffers.slot_mut(1).fill(1);
        buffers.slot_mut(2).fill(2);
        let mut grouping = Grouping::of(&socket);
        assert!(grouping.is_due());
        let sent = send(&socket, &buffers, &[8, 8, 5].map(|length| Leaving { length, ends }), &mut grouping);
        assert_eq!((sent.sent, sent.lost, sent.error.is_some()), (3, 0, false));
        assert!((0..100).all(|_| !grouping.is_due()));
        for expected in [&[0; 8][..], &[1; 8], &[2; 5]] {
            let mut buffer = [0; 16];
            let length = client.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], expected);
        }
    }
}
