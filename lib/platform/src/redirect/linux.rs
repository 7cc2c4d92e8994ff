//! A table of nftables that its netlink socket owns (`NFT_TABLE_F_OWNER`).
//!
//! `nft list ruleset` shows it as
//!
//! ```text
//! table ip berth-169.254.169.250-80 { # progname agent
//!     flags owner
//!     chain prerouting { type nat hook prerouting priority -101; ip daddr 169.254.169.250 tcp dport 80 dnat to :336 … }
//!     chain output { type nat hook output priority -101; … }
//! }
//! ```
//!
//! The first rule that translates a connection is the only one, so that Docker's (priority -100) do not see ours.

use std::io::{self, Read as _};
use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

use crate::broker::{self, Request};
use crate::handover::Handed;

pub(super) const REDIRECTS: bool = true;

/// Before the rules that translate destinations, those of Docker among them (`NF_IP_PRI_NAT_DST` is -100).
const PRIORITY: i32 = libc::NF_IP_PRI_NAT_DST - 1;

/// Most tables with one name and different numbers behind it: one serves, others belong to processes that are ending.
const TABLES_MAX: u8 = 8;

/// Room for what the kernel says about one batch: a few hundred bytes.
const ANSWER_BYTES: usize = 16 << 10;

/// Length of the head of a netlink message (`nlmsghdr`).
const HEAD_BYTES: usize = 16;

/// The table goes with the socket that made it (`NFT_TABLE_F_OWNER`).
const OWNED: u32 = 2;

/// Where a rule holds what it compares, and what it gives to the translation.
const REGISTER: u32 = libc::NFT_REG_1.cast_unsigned();

/// The mark of attributes that consist of attributes (`NLA_F_NESTED`).
const NESTED: u16 = 1 << 15;

pub(super) fn is_listened_on(address: SocketAddr) -> bool {
    crate::socket::has_listener(|local| local == address)
}

/// The socket that owns the table.
#[derive(Debug)]
pub(super) struct Rules {
    owner: Socket,
}

impl Rules {
    pub(super) fn hand_on(&self, name: &str, handed: &mut Handed) -> io::Result<()> {
        handed.add(name, &self.owner)
    }

    pub(super) fn install(address: Ipv4Addr, from: u16, to: u16) -> io::Result<Self> {
        let owner = match broker::answered(&Request::Redirect(address, from), None) {
            Some(answer) => {
                let owner = answer?.descriptor.ok_or_else(|| io::Error::other("rules without what they live by"))?;
                Socket::from(owner)
            }
            None => Self::owner(address, from, to)?,
        };
        Ok(Self { owner })
    }

    /// Makes the rules; gives the socket that they live by.
    pub(super) fn owner(address: Ipv4Addr, from: u16, to: u16) -> io::Result<Socket> {
        let netlink = Some(Protocol::from(libc::NETLINK_NETFILTER));
        let owner = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, netlink)?;
        owner.set_nonblocking(true)?;
        let mut number = 0;
        loop {
            let name = match number {
                0 => format!("berth-{address}-{from}"),
                _ => format!("berth-{address}-{from}-{number}"),
            };
            // Without a destination it is for the kernel, which has answered when this returns.
            owner.send(&batch(&name, address, from, to))?;
            number += 1;
            match answer(&owner) {
                // A table of this name is another process's, or the right is missing.
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EEXIST)) && number < TABLES_MAX => {}
                answer => return answer.map(|()| owner),
            }
        }
    }
}

/// What the kernel said of a batch: all of it is read, or the rest would count as said of the next one.
fn answer(socket: &Socket) -> io::Result<()> {
    let mut done = Err(io::Error::other("nftables gave no answer"));
    let mut wrong = None;
    let mut buffer = vec![0; ANSWER_BYTES];
    loop {
        let length = match (&*socket).read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return wrong.map_or(done, Err),
            Err(error) => return Err(error),
        };
        let mut rest = &buffer[..length];
        while let Some((code, next)) = code(rest) {
            match code {
                Some(0) => done = Ok(()),
                // The kernel says what was wrong first.
                Some(code) => _ = wrong.get_or_insert_with(|| io::Error::from_raw_os_error(-code)),
                None => {}
            }
            rest = next;
        }
    }
}

/// The code in the first message, when it is an acknowledgement or an error, and what follows; `None` when that is all.
fn code(bytes: &[u8]) -> Option<(Option<i32>, &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let message = bytes.get(..length).filter(|message| message.len() >= HEAD_BYTES)?;
    let is_code = i32::from(kind) == libc::NLMSG_ERROR;
    let code = message[HEAD_BYTES..].first_chunk().filter(|_| is_code).map(|code| i32::from_ne_bytes(*code));
    Some((code, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// The messages that make the table with both chains and their rules, all or nothing.
fn batch(table: &str, address: Ipv4Addr, from: u16, to: u16) -> Vec<u8> {
    let message = |kind: i32| (libc::NFNL_SUBSYS_NFTABLES << 8) | kind;
    let name = |number, name: &str| attribute(number, &[name.as_bytes(), &[0]].concat());
    let mut batch = Vec::new();
    push(&mut batch, libc::NFNL_MSG_BATCH_BEGIN, 0, &[]);
    let new = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    push(&mut batch, message(libc::NFT_MSG_NEWTABLE), new, &[name(1, table), number(2, OWNED)]);
    // Packets from outside, and those of this host's own programs.
    for (chain, hook) in [("prerouting", libc::NF_INET_PRE_ROUTING), ("output", libc::NF_INET_LOCAL_OUT)] {
        let hook = nested(4, &[number(1, hook.cast_unsigned()), number(2, PRIORITY.cast_unsigned())]);
        push(&mut batch, message(libc::NFT_MSG_NEWCHAIN), new, &[name(1, table), name(3, chain), hook, name(7, "nat")]);
        for protocol in [libc::IPPROTO_TCP, libc::IPPROTO_UDP] {
            let expressions = nested(4, &rule(address, protocol, from, to));
            let flags = libc::NLM_F_CREATE | libc::NLM_F_APPEND | libc::NLM_F_ACK;
            push(&mut batch, message(libc::NFT_MSG_NEWRULE), flags, &[name(1, table), name(2, chain), expressions]);
        }
    }
    push(&mut batch, libc::NFNL_MSG_BATCH_END, 0, &[]);
    batch
}

/// `ip daddr ADDRESS PROTOCOL dport FROM dnat to :TO`
fn rule(address: Ipv4Addr, protocol: i32, from: u16, to: u16) -> [Vec<u8>; 8] {
    let expression =
        |name: &str, data: &[Vec<u8>]| nested(1, &[attribute(1, &[name.as_bytes(), &[0]].concat()), nested(2, data)]);
    let value = |bytes: &[u8]| nested(3, &[attribute(1, bytes)]);
    let equals = |bytes: &[u8]| {
        let is_equal = libc::NFT_CMP_EQ.cast_unsigned();
        expression("cmp", &[number(1, REGISTER), number(2, is_equal), value(bytes)])
    };
    let part = |base: i32, offset, length| {
        let place = [number(1, REGISTER), number(2, base.cast_unsigned()), number(3, offset), number(4, length)];
        expression("payload", &place)
    };
    [
        part(libc::NFT_PAYLOAD_NETWORK_HEADER, 16, 4),
        equals(&address.octets()),
        expression("meta", &[number(1, REGISTER), number(2, libc::NFT_META_L4PROTO.cast_unsigned())]),
        equals(&[u8::try_from(protocol).unwrap_or_default()]),
        part(libc::NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2),
        equals(&from.to_be_bytes()),
        expression("immediate", &[number(1, REGISTER), nested(2, &[attribute(1, &to.to_be_bytes())])]),
        {
            let destination = number(1, libc::NFT_NAT_DNAT.cast_unsigned());
            let family = number(2, libc::NFPROTO_IPV4.cast_unsigned());
            expression("nat", &[destination, family, number(5, REGISTER)])
        },
    ]
}

/// Adds a message for IPv4 with these attributes to a batch.
fn push(batch: &mut Vec<u8>, kind: i32, flags: i32, attributes: &[Vec<u8>]) {
    let short = |number: i32| u16::try_from(number).unwrap_or_default();
    let body: Vec<u8> = attributes.concat();
    // nfgenmsg: family, version, and for the ends of a batch which part of netfilter it is for.
    let family = libc::NFPROTO_IPV4.cast_unsigned().to_le_bytes()[0];
    let part = short(libc::NFNL_SUBSYS_NFTABLES).to_be_bytes();
    let length = HEAD_BYTES + 4 + body.len();
    batch.extend(u32::try_from(length).unwrap_or_default().to_ne_bytes());
    batch.extend(short(kind).to_ne_bytes());
    batch.extend(short(flags | libc::NLM_F_REQUEST).to_ne_bytes());
    // Neither a sequence number nor a port: one batch is sent at a time, and the kernel knows the socket.
    batch.extend([0; 8]);
    batch.extend([family, 0, part[0], part[1]]);
    batch.extend(body);
}

fn number(kind: u16, number: u32) -> Vec<u8> {
    attribute(kind, &number.to_be_bytes())
}

fn nested(kind: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NESTED, &attributes.concat())
}

/// An attribute: length, kind, value, and zeros up to the next multiple of four.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(4 + value.len()).unwrap_or_default().to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn a_comparison_is_written_as_the_kernel_reads_it() {
        let rule = rule([192, 0, 2, 1].into(), libc::IPPROTO_TCP, 80, 336);
        let expected = [
            &b"\x2c\0\x01\x80"[..],
            b"\x08\0\x01\0cmp\0",
            b"\x20\0\x02\x80",
            b"\x08\0\x01\0\0\0\0\x01",
            b"\x08\0\x02\0\0\0\0\0",
            b"\x0c\0\x03\x80",
            b"\x08\0\x01\0\xc0\0\x02\x01",
        ];
        assert_eq!(rule[1], expected.concat());
    }

    #[test]
    fn refusals_of_the_kernel_are_found_among_its_answers() {
        let answer = |code: i32| {
            let mut bytes = 20_u32.to_ne_bytes().to_vec();
            bytes.extend(2_u16.to_ne_bytes());
            bytes.extend([0; 10]);
            bytes.extend(code.to_ne_bytes());
            bytes
        };
        let both = [answer(0), answer(-libc::EPERM)].concat();
        let (first, rest) = code(&both).unwrap();
        let (second, end) = code(rest).unwrap();
        assert_eq!((first, second), (Some(0), Some(-libc::EPERM)));
        assert!(code(end).is_none());
        // Cut off, and with a length that leads nowhere.
        assert!(code(&both[..19]).is_none());
        assert!(code(&[0; 40]).is_none());
    }
}
