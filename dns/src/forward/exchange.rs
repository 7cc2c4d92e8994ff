//! Asking one upstream one question, over UDP and when that is not enough over TCP.
//!
//! Every question has an id and a port of its own; what does not repeat both and the question is no reply.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::RecordType;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpStream, UdpSocket};

use super::judge::{Heard, judge};
use crate::cache::Key;
use crate::edns::UDP_ANSWER_MAX;
use crate::query::HEADER_BYTES;

/// Wrong replies on one socket after which an attacker must be guessing, and TCP is used, where guessing does not help.
const WRONG_REPLIES_MAX: usize = 8;

/// Longest reply over UDP that is read, larger than what is asked for.
const UDP_REPLY_MAX: usize = 4096;

/// Asks one upstream.
pub(super) async fn ask(upstream: SocketAddr, key: &Key) -> io::Result<Heard> {
    let mut edns = true;
    loop {
        let (message, bytes) = match ask_udp(upstream, key, edns).await? {
            Some((message, bytes)) if !message.metadata.truncation => (message, bytes),
            _ => ask_tcp(upstream, key, edns).await?,
        };
        let code = message.metadata.response_code;
        if edns && message.edns.is_none() && matches!(code, ResponseCode::FormErr | ResponseCode::NotImp) {
            // A server from before EDNS (RFC 6891 section 7).
            edns = false;
            continue;
        }
        return Ok(judge(message, bytes, key));
    }
}

/// The query as bytes, with its id.
fn query(key: &Key, edns: bool) -> io::Result<(u16, Vec<u8>)> {
    let mut random = [0; 2];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let id = u16::from_be_bytes(random);
    let mut bytes = Vec::with_capacity(HEADER_BYTES + key.name.wire().len() + 15);
    let flags = 0x0100 | if key.checking_disabled { 0x0010 } else { 0 };
    for word in [id, flags, 1, 0, 0, u16::from(edns)] {
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    bytes.extend_from_slice(key.name.wire());
    for word in [u16::from(key.kind), 1] {
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    if edns {
        bytes.push(0);
        let flags = if key.dnssec_ok { 0x8000 } else { 0 };
        for word in [u16::from(RecordType::OPT), UDP_ANSWER_MAX, 0, flags, 0] {
            bytes.extend_from_slice(&word.to_be_bytes());
        }
    }
    Ok((id, bytes))
}

/// Whether this is the reply to a query: its id and its question, and nothing else, say so.
pub(crate) fn is_reply(reply: &[u8], id: u16, key: &Key) -> bool {
    let name = key.name.wire();
    let end = HEADER_BYTES + name.len();
    let (Some(header), Some(question), Some(fixed)) =
        (reply.get(..HEADER_BYTES), reply.get(HEADER_BYTES..end), reply.get(end..end + 4))
    else {
        return false;
    };
    header[..2] == id.to_be_bytes()
        && header[2] & 0xf8 == 0x80
        && header[4..6] == [0, 1]
        && question.eq_ignore_ascii_case(name)
        && fixed[..2] == u16::from(key.kind).to_be_bytes()
        && fixed[2..] == [0, 1]
}

/// `None` when forged replies arrive: then only TCP gives the answer.
async fn ask_udp(upstream: SocketAddr, key: &Key, edns: bool) -> io::Result<Option<(Message, usize)>> {
    let local = match upstream {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::from_std(platform::socket::udp_client_socket(SocketAddr::new(local, 0))?)?;
    socket.connect(upstream).await?;
    let (id, bytes) = query(key, edns)?;
    socket.send(&bytes).await?;
    for _ in 0..WRONG_REPLIES_MAX {
        // No process listens there (ICMP): no datagram follows, so waiting for one would use up the whole timeout.
        if socket.ready(Interest::READABLE | Interest::ERROR).await?.is_error() {
            return Err(socket.take_error()?.unwrap_or_else(|| io::ErrorKind::ConnectionRefused.into()));
        }
        if let Some(read) = receive(&socket, id, key)? {
            return Ok(Some(read));
        }
    }
    Ok(None)
}

/// Receives one datagram; `None` when it is not the reply. The buffer lives on the stack only while it is used.
fn receive(socket: &UdpSocket, id: u16, key: &Key) -> io::Result<Option<(Message, usize)>> {
    let mut buffer = [0; UDP_REPLY_MAX];
    let reply = match socket.try_recv(&mut buffer) {
        Ok(length) => &buffer[..length],
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        Err(error) => return Err(error),
    };
    if is_reply(reply, id, key) { decode(reply).map(Some) } else { Ok(None) }
}

async fn ask_tcp(upstream: SocketAddr, key: &Key, edns: bool) -> io::Result<(Message, usize)> {
    let mut stream = TcpStream::connect(upstream).await?;
    let (id, bytes) = query(key, edns)?;
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], &bytes].concat()).await?;
    let mut reply = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut reply).await?;
    if is_reply(&reply, id, key) {
        decode(&reply)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "a reply to another question"))
    }
}

pub(crate) fn decode(reply: &[u8]) -> io::Result<(Message, usize)> {
    let message = Message::from_vec(reply).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    if message.metadata.op_code != OpCode::Query {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a reply to another operation"));
    }
    Ok((message, reply.len()))
}
