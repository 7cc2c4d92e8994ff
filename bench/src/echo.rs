//! Sends every datagram back as its own answer: no server that sends one by one can cost less, since this does
//! nothing but the system calls.

use std::net::SocketAddr;

use platform::batch::{Incoming, Outgoing, make_blocking};
use platform::socket::udp_sockets;

use crate::Failure;

/// Longest datagram that comes back.
const ROOM: usize = 4096;

/// Serves until the process is ended.
pub(crate) fn serve(listen: SocketAddr) -> Result<(), Failure> {
    let socket = udp_sockets(listen, 1)?.remove(0);
    make_blocking(&socket)?;
    let (mut queries, mut replies) = (Incoming::new(ROOM), Outgoing::new(ROOM));
    loop {
        queries.receive(&socket)?;
        for query in queries.iter() {
            let Some(slot) = replies.slot() else { break };
            slot.room[..query.bytes.len()].copy_from_slice(query.bytes);
            // The bit that makes a question an answer, without which dnsperf would not take it.
            if let Some(flags) = slot.room.get_mut(2) {
                *flags |= 0x80;
            }
            slot.fill(query.bytes.len(), Some(query.ends));
        }
        replies.send(&socket);
    }
}
