//! recvmmsg(2) and sendmmsg(2).
//!
//! Addresses and control messages are kept as the octets that the kernel reads and writes, and taken apart by hand: their
//! layout is part of the system's interface, and so nothing but the calls themselves is unsafe.

use std::array;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr;

use super::{Buffers, DATAGRAMS, Ends, Leaving, RECEIVE_WAIT, Received, Sent};

pub(super) fn make_blocking(socket: &UdpSocket) -> io::Result<()> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(RECEIVE_WAIT))
}

/// What the kernel tells about each datagram; kept so that it need not be cleared each time.
#[derive(Debug)]
pub(super) struct Scratch {
    names: Box<[Name; DATAGRAMS]>,
    controls: Box<[Control; DATAGRAMS]>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { names: Box::new([Name::EMPTY; DATAGRAMS]), controls: Box::new([Control::EMPTY; DATAGRAMS]) }
    }
}

pub(super) fn receive(
    socket: &UdpSocket,
    buffers: &mut Buffers,
    received: &mut Vec<Received>,
    scratch: &mut Scratch,
    wait: bool,
) -> io::Result<()> {
    let mut slots = buffers.iter_mut();
    let mut vectors: [libc::iovec; DATAGRAMS] = array::from_fn(|_| vector(slots.next().unwrap_or_default()));
    drop(slots);
    let mut parts = vectors.iter_mut().zip(scratch.names.iter_mut()).zip(scratch.controls.iter_mut());
    let mut headers: [libc::mmsghdr; DATAGRAMS] = array::from_fn(|_| {
        parts.next().map_or_else(empty_header, |((vector, name), control)| {
            header(vector, Some((name, NAME_OCTETS)), Some((control, CONTROL_OCTETS)))
        })
    });
    drop(parts);
    let flags = if wait { libc::MSG_WAITFORONE } else { libc::MSG_DONTWAIT };
    // SAFETY: the descriptor is open because `socket` is borrowed. Each of the DATAGRAMS headers points to a vector, a name
    // and a control buffer of its own, with their true lengths, and each vector to a slot of its own; all of them live
    // until the call returns and nobody else touches them meanwhile. No time limit is given.
    #[expect(unsafe_code, reason = "no crate offers recvmmsg")]
    let count = unsafe {
        libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), narrow(DATAGRAMS), flags as _, ptr::null_mut())
    };
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
    Ok(())
}

pub(super) fn send(socket: &UdpSocket, buffers: &mut Buffers, leaving: &[Leaving]) -> Sent {
    // Who asks alone waits for this: the call for many takes longer for one.
    if let [one] = leaving
        && one.ends.is_none_or(|ends| ends.local.is_none())
    {
        return send_one(socket, &buffers.slot(0)[..one.length], one.ends);
    }
    let mut slots = buffers.iter_mut().zip(leaving).map(|(slot, leaving)| &mut slot[..leaving.length]);
    let mut vectors: [libc::iovec; DATAGRAMS] = array::from_fn(|_| vector(slots.next().unwrap_or_default()));
    drop(slots);
    transmit(socket, &mut vectors[..leaving.len()], leaving)
}

fn send_one(socket: &UdpSocket, octets: &[u8], ends: Option<Ends>) -> Sent {
    loop {
        let sent = match ends {
            Some(ends) => socket.send_to(octets, ends.peer),
            None => socket.send(octets),
        };
        return match sent {
            Ok(_) => Sent { sent: 1, lost: 0, error: None },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Sent { sent: 0, lost: 1, error: Some(error) },
        };
    }
}

pub(super) fn reply(socket: &UdpSocket, octets: &[u8], ends: Ends) -> io::Result<()> {
    if ends.local.is_none() {
        return socket.send_to(octets, ends.peer).map(drop);
    }
    let mut octets = octets.to_vec();
    let leaving = Leaving { length: octets.len(), ends: Some(ends) };
    transmit(socket, &mut [vector(&mut octets)], &[leaving]).error.map_or(Ok(()), Err)
}

/// Sends what the vectors point to, at most [`DATAGRAMS`] of them.
fn transmit(socket: &UdpSocket, vectors: &mut [libc::iovec], leaving: &[Leaving]) -> Sent {
    let mut names = [Name::EMPTY; DATAGRAMS];
    let mut controls = [Control::EMPTY; DATAGRAMS];
    let mut parts = vectors.iter_mut().zip(leaving).zip(names.iter_mut()).zip(controls.iter_mut());
    let mut headers: [libc::mmsghdr; DATAGRAMS] = array::from_fn(|_| {
        let Some((((vector, leaving), name), control)) = parts.next() else { return empty_header() };
        let Some(ends) = leaving.ends else { return header(vector, None, None) };
        let name_length = name.set(ends.peer);
        let control_length = ends.local.map(|local| control.set_local(local));
        header(vector, Some((name, name_length)), control_length.map(|length| (control, length)))
    });
    drop(parts);
    let mut outcome = Sent::default();
    let mut rest = &mut headers[..leaving.len()];
    while !rest.is_empty() {
        // SAFETY: the descriptor is open because `socket` is borrowed. `rest` holds as many headers as its length says, of
        // which each points to a vector, and maybe to a name and a control message, of its own with their true lengths,
        // and each vector to octets that were written; all of them live until the call returns.
        #[expect(unsafe_code, reason = "no crate offers sendmmsg")]
        let count = unsafe { libc::sendmmsg(socket.as_raw_fd(), rest.as_mut_ptr(), narrow(rest.len()), 0) };
        let done = if let Ok(count) = usize::try_from(count) {
            outcome.sent += count;
            count
        } else {
            // The error is that of the first; the others may have better luck.
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            outcome.error = Some(error);
            outcome.lost += 1;
            1
        };
        rest = rest.get_mut(done..).unwrap_or_default();
    }
    outcome
}

fn vector(octets: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: octets.as_mut_ptr().cast(), iov_len: octets.len() }
}

fn header(
    vector: &mut libc::iovec,
    name: Option<(&mut Name, usize)>,
    control: Option<(&mut Control, usize)>,
) -> libc::mmsghdr {
    let mut header = empty_header();
    header.msg_hdr.msg_iov = vector;
    header.msg_hdr.msg_iovlen = 1;
    if let Some((name, length)) = name {
        header.msg_hdr.msg_name = name.0.as_mut_ptr().cast();
        header.msg_hdr.msg_namelen = narrow(length);
    }
    if let Some((control, length)) = control {
        header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
        header.msg_hdr.msg_controllen = length as _;
    }
    header
}

fn empty_header() -> libc::mmsghdr {
    // SAFETY: numbers and pointers, for which all zeros are valid: null pointers and lengths of 0.
    #[expect(unsafe_code, reason = "some C libraries have fields here that cannot be named")]
    unsafe {
        MaybeUninit::zeroed().assume_init()
    }
}

/// Octets of the longest address, `sockaddr_in6`.
const NAME_OCTETS: usize = size_of::<libc::sockaddr_in6>();

/// An address as the kernel writes it: the family in our order of octets, then the port and the address in the network's.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
struct Name([u8; NAME_OCTETS]);

impl Name {
    const EMPTY: Self = Self([0; NAME_OCTETS]);

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
        let octets = self.0.get(..length as usize)?;
        let kind = u16::from_ne_bytes(array_at(octets, 0)?);
        let port = u16::from_be_bytes(array_at(octets, 2)?);
        if kind == family(libc::AF_INET) {
            Some((array_at::<4>(octets, 4)?, port).into())
        } else if kind == family(libc::AF_INET6) {
            let ip = Ipv6Addr::from(array_at::<16>(octets, 8)?);
            let flow = u32::from_ne_bytes(array_at(octets, 4)?);
            let scope = u32::from_ne_bytes(array_at(octets, 24)?);
            Some(SocketAddrV6::new(ip, port, flow, scope).into())
        } else {
            None
        }
    }
}

/// What the kernel pads control messages to, and the size of their length.
const WORD: usize = size_of::<usize>();

/// Octets before the content of a control message: its length, a level and a type.
const CONTROL_HEADER_OCTETS: usize = WORD + 2 * size_of::<libc::c_int>();

/// Room for the one control message that we ask for, with the longest content there is, `in6_pktinfo`.
const CONTROL_OCTETS: usize = (CONTROL_HEADER_OCTETS + 20).next_multiple_of(WORD);

/// A control message that tells the local address: its length, level and type, then `in_pktinfo` (interface, local
/// address, address in the packet) or `in6_pktinfo` (address, interface).
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_OCTETS]);

impl Control {
    const EMPTY: Self = Self([0; CONTROL_OCTETS]);

    fn set_local(&mut self, local: IpAddr) -> usize {
        self.0 = [0; CONTROL_OCTETS];
        // No interface is named: the routes decide, as they do for everything else.
        let (level, kind, content) = match local {
            IpAddr::V4(local) => {
                self.0[CONTROL_HEADER_OCTETS + 4..][..4].copy_from_slice(&local.octets());
                (libc::IPPROTO_IP, libc::IP_PKTINFO, size_of::<libc::in_pktinfo>())
            }
            IpAddr::V6(local) => {
                self.0[CONTROL_HEADER_OCTETS..][..16].copy_from_slice(&local.octets());
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, size_of::<libc::in6_pktinfo>())
            }
        };
        let length = CONTROL_HEADER_OCTETS + content;
        self.0[..WORD].copy_from_slice(&length.to_ne_bytes());
        self.0[WORD..][..4].copy_from_slice(&level.to_ne_bytes());
        self.0[WORD + 4..][..4].copy_from_slice(&kind.to_ne_bytes());
        length.next_multiple_of(WORD)
    }

    fn local(&self, length: usize) -> Option<IpAddr> {
        let octets = self.0.get(..length)?;
        let level = libc::c_int::from_ne_bytes(array_at(octets, WORD)?);
        let kind = libc::c_int::from_ne_bytes(array_at(octets, WORD + 4)?);
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                Some(Ipv4Addr::from(array_at::<4>(octets, CONTROL_HEADER_OCTETS + 4)?).into())
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                Some(Ipv6Addr::from(array_at::<16>(octets, CONTROL_HEADER_OCTETS)?).into())
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

fn array_at<const OCTETS: usize>(octets: &[u8], start: usize) -> Option<[u8; OCTETS]> {
    octets.get(start..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_keep_all_their_parts() {
        let link_local = SocketAddrV6::new("fe80::1".parse().unwrap(), 5353, 0x0102_0304, 7);
        for address in ["192.0.2.1:53".parse().unwrap(), "[2001:db8::1]:65535".parse().unwrap(), link_local.into()] {
            let mut name = Name::EMPTY;
            let length = name.set(address);
            assert_eq!(name.address(length.try_into().unwrap()), Some(address));
            assert_eq!(name.address(3), None);
            // What the C library's own reading of the same octets is.
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
            let length = control.set_local(local);
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
}
