//! Messages of rtnetlink about links, addresses and routes.
//!
//! rtnetlink's types write the requests. Of the replies only what is wanted is read, so that an attribute which no
//! library knows yet hides no link and no route.

use std::io;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use rtnetlink::packet_core::{
    NLA_HEADER_SIZE, NLM_F_ACK_TLVS, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload, NlasIterator,
};
use rtnetlink::packet_route::address::AddressMessage;
use rtnetlink::packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use super::super::{Link, PROTOCOL, Route};

/// Lengths of the heads of messages about links (ifinfomsg), addresses (ifaddrmsg), routes (rtmsg) and next hops
/// (rtnexthop).
const LINK_HEAD: usize = 16;
const ADDRESS_HEAD: usize = 8;
const ROUTE_HEAD: usize = 12;
const HOP_HEAD: usize = 8;

/// Length of an error's head: its code, and the header of the request.
const ERROR_HEAD: usize = 4 + 16;

/// The attribute of an error that is a sentence (`NLMSGERR_ATTR_MSG`).
const SENTENCE: u16 = 1;

/// A message of a datagram.
#[derive(Debug)]
pub(super) struct Message<'d> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    /// The port of the socket whose request caused it; 0 for none.
    pub(super) port: u32,
    pub(super) body: &'d [u8],
}

/// Adds a request.
pub(super) fn encode(bytes: &mut Vec<u8>, flags: u16, sequence: u32, request: RouteNetlinkMessage) {
    let mut header = NetlinkHeader::default();
    (header.flags, header.sequence_number) = (flags, sequence);
    let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
    message.finalize();
    let start = bytes.len();
    bytes.resize(start + message.buffer_len(), 0);
    message.serialize(&mut bytes[start..]);
}

/// The messages of a datagram.
pub(super) fn messages(mut datagram: &[u8]) -> io::Result<Vec<Message<'_>>> {
    let mut found = Vec::new();
    while !datagram.is_empty() {
        let message = NetlinkBuffer::new_checked(datagram).map_err(io::Error::other)?;
        let length = usize::try_from(message.length()).map_err(io::Error::other)?;
        found.push(Message {
            kind: message.message_type(),
            flags: message.flags(),
            sequence: message.sequence_number(),
            port: message.port_number(),
            body: message.payload(),
        });
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(found)
}

/// The code of an error or of a list's end; 0 if it went well.
pub(super) fn code(message: &Message<'_>) -> io::Result<i32> {
    // Some lists end without one.
    if message.body.is_empty() { Ok(0) } else { number(message.body, 0).map(|code| code.cast_signed().wrapping_neg()) }
}

/// What the kernel says about an error besides its code.
pub(super) fn sentence(message: &Message<'_>) -> Option<String> {
    let attributes = message.body.get(ERROR_HEAD..).filter(|_| message.flags & NLM_F_ACK_TLVS != 0)?;
    let found = attribute(attributes, SENTENCE).ok()??;
    Some(String::from_utf8_lossy(found.strip_suffix(&[0]).unwrap_or(found)).into_owned())
}

pub(super) fn list_links() -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    // Half of each message otherwise.
    message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    RouteNetlinkMessage::GetLink(message)
}

pub(super) fn list_addresses() -> RouteNetlinkMessage {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    RouteNetlinkMessage::GetAddress(message)
}

/// Lists table main, or the routes of a protocol in it.
pub(super) fn list_routes(protocol: Option<u8>) -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = protocol.map(RouteProtocol::from).unwrap_or_default();
    RouteNetlinkMessage::GetRoute(message)
}

/// What makes a route of ours.
pub(super) fn new_route(route: &Route) -> RouteMessage {
    let mut message = old_route(route);
    message.header.scope = if route.via.is_some() { RouteScope::Universe } else { RouteScope::Link };
    message
}

/// What names a route of ours, and no other one.
pub(super) fn old_route(route: &Route) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: AddressFamily::Inet,
        destination_prefix_length: route.prefix.prefix_len(),
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::from(PROTOCOL),
        // Any scope.
        scope: RouteScope::NoWhere,
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    message.attributes.push(RouteAttribute::Destination(RouteAddress::Inet(route.prefix.network())));
    message.attributes.extend(route.via.map(|via| RouteAttribute::Gateway(RouteAddress::Inet(via))));
    message.attributes.push(RouteAttribute::Oif(route.link));
    message.attributes.push(RouteAttribute::Priority(route.metric));
    message
}

/// The link that a message describes, without addresses.
pub(super) fn link(body: &[u8]) -> io::Result<Option<Link>> {
    let (head, attributes) = split(body, LINK_HEAD)?;
    let name = attribute(attributes, libc::IFLA_IFNAME)?.unwrap_or_default();
    // Bytes to the kernel, which need not be UTF-8.
    let name = String::from_utf8_lossy(name.strip_suffix(&[0]).unwrap_or(name)).into_owned();
    Ok(Some(Link {
        index: number(head, 4)?,
        id: name.clone(),
        name,
        up: number(head, 8)? & libc::IFF_UP.cast_unsigned() != 0,
        mtu: attribute(attributes, libc::IFLA_MTU)?.map_or(Ok(0), |mtu| number(mtu, 0))?,
        metric: 0,
        addresses: Vec::new(),
    }))
}

/// The index of a link, and the address of it that a message describes.
pub(super) fn address(body: &[u8]) -> io::Result<Option<(u32, Ipv4Net)>> {
    let (head, attributes) = split(body, ADDRESS_HEAD)?;
    let far = attribute(attributes, libc::IFA_ADDRESS)?;
    let own = attribute(attributes, libc::IFA_LOCAL)?.or(far);
    let Some(own) = own else { return Ok(None) };
    // The prefix is that of the other end, where there is one.
    let length = if far.is_some_and(|far| far != own) { 32 } else { head[1] };
    Ok(Some((number(head, 4)?, prefix(own, length)?)))
}

/// The route that a message describes; `None` for one of another table, or for one type of service only.
pub(super) fn route(body: &[u8]) -> io::Result<Option<Route>> {
    let (head, attributes) = split(body, ROUTE_HEAD)?;
    let (length, tos, table, protocol) = (head[1], head[3], head[4], head[5]);
    if table != RouteHeader::RT_TABLE_MAIN || tos != 0 {
        return Ok(None);
    }
    let get = |kind| attribute(attributes, kind);
    let whole = |kind| get(kind)?.map(|value| number(value, 0)).transpose();
    let (mut via, mut link) = (get(libc::RTA_GATEWAY)?.map(v4).transpose()?, whole(libc::RTA_OIF)?);
    // Several next hops: the first one.
    if let Some(hops) = get(libc::RTA_MULTIPATH)? {
        let (head, _) = split(hops, HOP_HEAD)?;
        let end = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let attributes = hops.get(HOP_HEAD..end).ok_or_else(malformed)?;
        via = attribute(attributes, libc::RTA_GATEWAY)?.map(v4).transpose()?;
        link = Some(number(head, 4)?);
    }
    Ok(Some(Route {
        prefix: get(libc::RTA_DST)?.map_or_else(|| prefix(&[0; 4], length), |address| prefix(address, length))?,
        via,
        link: link.unwrap_or_default(),
        metric: whole(libc::RTA_PRIORITY)?.unwrap_or_default(),
        marked: protocol == PROTOCOL,
    }))
}

/// The value of the first attribute of a kind.
fn attribute(attributes: &[u8], kind: u16) -> io::Result<Option<&[u8]>> {
    for attribute in NlasIterator::new(attributes) {
        let attribute = attribute.map_err(io::Error::other)?;
        if attribute.kind() == kind {
            let length = usize::from(attribute.length());
            return Ok(attribute.into_inner().get(NLA_HEADER_SIZE..length));
        }
    }
    Ok(None)
}

fn split(body: &[u8], head: usize) -> io::Result<(&[u8], &[u8])> {
    body.split_at_checked(head).ok_or_else(malformed)
}

fn number(bytes: &[u8], at: usize) -> io::Result<u32> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().map(u32::from_ne_bytes).ok_or_else(malformed)
}

fn v4(bytes: &[u8]) -> io::Result<Ipv4Addr> {
    bytes.first_chunk::<4>().copied().map(Ipv4Addr::from).ok_or_else(malformed)
}

fn prefix(address: &[u8], length: u8) -> io::Result<Ipv4Net> {
    Ipv4Net::new(v4(address)?, length).map_err(io::Error::other)
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel's reply is too short")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `10.42.7.0/24 via 192.0.2.10 dev 3 metric 4242 proto 98`.
    const ROUTE: &[u8] = b"\x02\x18\0\0\xfe\x62\0\x01\0\0\0\0\
        \x08\0\x01\0\x0a\x2a\x07\0\
        \x08\0\x05\0\xc0\0\x02\x0a\
        \x08\0\x04\0\x03\0\0\0\
        \x08\0\x06\0\x92\x10\0\0";

    fn ours() -> Route {
        Route::marked("10.42.7.0/24".parse().unwrap(), [192, 0, 2, 10].into(), 3)
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_route_is_written_and_read_as_the_kernel_does() {
        let mut bytes = Vec::new();
        encode(&mut bytes, 0x605, 7, RouteNetlinkMessage::NewRoute(new_route(&ours())));
        assert_eq!(bytes, [b"\x3c\0\0\0\x18\0\x05\x06\x07\0\0\0\0\0\0\0", ROUTE].concat());
        encode(&mut bytes, 5, 8, RouteNetlinkMessage::DelRoute(old_route(&ours())));
        let found = messages(&bytes).unwrap();
        let heads: Vec<_> = found.iter().map(|message| (message.kind, message.flags, message.sequence)).collect();
        assert_eq!(heads, [(24, 0x605, 7), (25, 5, 8)]);
        for message in found {
            assert_eq!(route(message.body).unwrap(), Some(ours()));
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn routes_are_read_whatever_else_they_have() {
        let with = |at: usize, byte| {
            let mut bytes = ROUTE.to_vec();
            bytes[at] = byte;
            bytes
        };
        assert_eq!(route(&with(5, 4)).unwrap(), Some(Route { marked: false, ..ours() }));
        assert_eq!(route(&with(3, 0x10)).unwrap(), None, "a type of service");
        assert_eq!(route(&with(4, 255)).unwrap(), None, "table local");
        // A default route whose next hops come as a list, and an unknown attribute.
        let hops = b"\x02\0\0\0\xfe\x10\0\x01\0\0\0\0\x05\0\xff\x3f\x09\0\0\0\x14\0\x09\0\
            \x10\0\0\0\x05\0\0\0\x08\0\x05\0\xc0\0\x02\x01";
        let read = route(hops).unwrap().unwrap();
        let default = Route { prefix: "0.0.0.0/0".parse().unwrap(), via: Some([192, 0, 2, 1].into()), ..read };
        assert_eq!((read, read.link, read.metric, read.marked), (default, 5, 0, false));
    }

    #[test]
    fn what_is_cut_off_is_an_error() {
        for length in 0..ROUTE.len() {
            // Without its last attributes it is another route.
            let attributes = length.checked_sub(ROUTE_HEAD);
            if attributes.is_none_or(|length| length % 8 != 0) {
                assert!(route(&ROUTE[..length]).is_err(), "{length}");
            }
            assert!(length >= LINK_HEAD || link(&ROUTE[..length]).is_err(), "{length}");
            assert!(length >= ADDRESS_HEAD || address(&ROUTE[..length]).is_err(), "{length}");
        }
        assert!(messages(&ROUTE[..15]).is_err());
        assert!(messages(&[0; 16]).is_err(), "of no length");
    }
}
