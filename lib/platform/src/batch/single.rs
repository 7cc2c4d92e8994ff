//! The same without calls for many datagrams: one after the other, of a socket that does not block.

use std::io;
use std::net::UdpSocket;

use super::{Buffers, DATAGRAMS, Ends, Leaving, Received, Sent};
use crate::socket::is_transient;

/// Takes what is there; when nothing is, calls `wait` once and looks again.
///
/// Waiting is apart from receiving because a receive with a time limit may lose, on Windows, the datagram that arrives as
/// the time ends.
pub(super) fn receive(
    socket: &UdpSocket,
    buffers: &mut Buffers,
    received: &mut Vec<Received>,
    wait: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    match take(socket, buffers, received) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            wait()?;
            take(socket, buffers, received)
        }
        done => done,
    }
}

/// Takes what is there; fails only when that is nothing.
fn take(socket: &UdpSocket, buffers: &mut Buffers, received: &mut Vec<Received>) -> io::Result<()> {
    // Each turn takes something out of the socket, be it an error.
    for slot in 0..DATAGRAMS {
        match socket.recv_from(buffers.slot_mut(slot)) {
            Ok((length, peer)) => received.push(Received { slot, length, ends: Ends { peer, local: None } }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return if slot == 0 { Err(error) } else { Ok(()) };
            }
            // Too long for the room, or about something sent earlier.
            Err(error) if is_transient(&error) => {}
            Err(error) => return if received.is_empty() { Err(error) } else { Ok(()) },
        }
    }
    Ok(())
}

pub(super) fn send(socket: &UdpSocket, buffers: &Buffers, leaving: &[Leaving]) -> Sent {
    let mut outcome = Sent::default();
    for (slot, leaving) in leaving.iter().enumerate() {
        let bytes = &buffers.slot(slot)[..leaving.length];
        let sent = match leaving.ends {
            Some(ends) => socket.send_to(bytes, ends.peer),
            None => socket.send(bytes),
        };
        match sent {
            Ok(_) => outcome.sent += 1,
            Err(error) => {
                outcome.lost += 1;
                outcome.error = Some(error);
            }
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::socket::udp_socket;

    #[test]
    fn datagrams_are_taken_one_after_the_other_and_answered() {
        let service = udp_socket(([127, 0, 0, 1], 0).into()).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        client.connect(service.local_addr().unwrap()).unwrap();
        let (mut buffers, mut received) = (Buffers::new(8), Vec::new());

        let error = receive(&service, &mut buffers, &mut received, || Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);

        let mut waited = 0;
        receive(&service, &mut buffers, &mut received, || {
            waited += 1;
            for number in 0..70_u8 {
                client.send(&[number])?;
            }
            Ok(())
        })
        .unwrap();
        assert_eq!((waited, received.len()), (1, DATAGRAMS));

        let peer = client.local_addr().unwrap();
        let leaving: Vec<Leaving> = received
            .iter()
            .map(|received| {
                assert_eq!((received.length, received.ends.peer), (1, peer));
                assert_eq!(usize::from(buffers.slot(received.slot)[0]), received.slot);
                Leaving { length: 1, ends: Some(received.ends) }
            })
            .collect();
        let sent = send(&service, &buffers, &leaving);
        assert_eq!((sent.sent, sent.lost), (DATAGRAMS, 0), "{sent:?}");
        for number in 0..64_u8 {
            let mut buffer = [0; 8];
            assert_eq!((client.recv(&mut buffer).unwrap(), buffer[0]), (1, number));
        }

        received.clear();
        receive(&service, &mut buffers, &mut received, || panic!("nothing to wait for")).unwrap();
        assert_eq!(received.len(), 6);
    }

    #[test]
    fn datagram_that_cannot_leave_stops_no_other() {
        let service = udp_socket(([127, 0, 0, 1], 0).into()).unwrap();
        let here = Ends { peer: service.local_addr().unwrap(), local: None };
        let leaving = [None, Some(here), None, Some(here)].map(|ends| Leaving { length: 4, ends });
        let sent = send(&service, &Buffers::new(8), &leaving);
        // The socket is not connected.
        assert_eq!((sent.sent, sent.lost), (2, 2), "{sent:?}");
        assert!(sent.error.is_some());
    }
}
