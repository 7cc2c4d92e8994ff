//! Receives in flight, over loopback.

use windows_sys::Win32::Networking::WinSock::WSAECONNRESET;

use super::*;
use crate::socket::udp_socket;

const WAIT: Duration = Duration::from_secs(5);

fn pair(room: usize) -> (Engine, UdpSocket) {
    let service = udp_socket(([127, 0, 0, 1], 0).into()).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(service.local_addr().unwrap()).unwrap();
    // The engine keeps the socket open by itself.
    (Engine::new(&service, room).unwrap(), client)
}

/// Receives until so many came; says what they were.
fn receive(engine: &mut Engine, count: usize) -> Vec<Vec<u8>> {
    let mut buffers = Buffers::new(engine.room);
    let mut all = Vec::new();
    while all.len() < count {
        let mut received = Vec::new();
        match engine.receive(&mut buffers, &mut received, WAIT) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        all.extend(received.iter().map(|received| buffers.slot(received.slot)[..received.length].to_vec()));
    }
    all
}

#[test]
fn more_datagrams_than_receives_arrive_whole_and_in_order() {
    let (mut engine, client) = pair(8);
    let (mut buffers, mut received) = (Buffers::new(8), Vec::new());
    let none = engine.receive(&mut buffers, &mut received, Duration::from_millis(1)).unwrap_err();
    assert_eq!((none.kind(), received.len()), (io::ErrorKind::WouldBlock, 0));
    for number in 0..200_u8 {
        client.send(&[number; 8][..usize::from(number % 9)]).unwrap();
    }
    let expected: Vec<_> = (0..200_u8).map(|number| vec![number; usize::from(number % 9)]).collect();
    assert_eq!(receive(&mut engine, 200), expected);
    assert_eq!(engine.peer(0), Some(client.local_addr().unwrap()));
}

#[test]
fn an_error_about_a_reply_ends_nothing() {
    let (mut engine, client) = pair(8);
    let (mut buffers, mut received) = (Buffers::new(8), Vec::new());
    for byte in [1, 2, 3] {
        client.send(&[byte]).unwrap();
    }
    let mut resets = 0;
    while received.is_empty() {
        let reset = |engine: &Engine, operation| {
            let outcome = engine.outcome(operation);
            // The first one says what Windows says after a reply that no client took.
            if resets == 0 {
                resets = 1;
                return Err(io::Error::from_raw_os_error(WSAECONNRESET));
            }
            outcome
        };
        match engine.take(&mut buffers, &mut received, WAIT, reset) {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
    assert_eq!((resets, buffers.slot(received[0].slot)[0]), (1, 2));
    assert!(engine.in_flight.iter().all(|in_flight| *in_flight));
    let rest = 2 - received.len();
    client.send(&[4]).unwrap();
    assert_eq!(receive(&mut engine, rest + 1).pop(), Some(vec![4]));
}

#[test]
fn other_errors_are_told_when_nothing_else_came() {
    let (mut engine, client) = pair(8);
    let (mut buffers, mut received) = (Buffers::new(8), Vec::new());
    client.send(&[1]).unwrap();
    let broken = |_: &Engine, _| Err(io::Error::from_raw_os_error(6));
    let error = engine.take(&mut buffers, &mut received, WAIT, broken).unwrap_err();
    assert_eq!((error.raw_os_error(), received.len()), (Some(6), 0));
    client.send(&[2]).unwrap();
    assert_eq!(receive(&mut engine, 1), [[2]]);
}

#[test]
fn what_is_told_of_a_receive_in_flight_is_not_its_end() {
    let (mut engine, client) = pair(8);
    engine.post_all().unwrap();
    let told = OVERLAPPED_ENTRY { lpOverlapped: engine.operations.cast(), ..EMPTY };
    assert_eq!(engine.number(&told), None);
    let elsewhere = OVERLAPPED_ENTRY { lpOverlapped: ptr::dangling_mut(), ..EMPTY };
    assert_eq!(engine.number(&elsewhere), None);
    client.send(&[5]).unwrap();
    assert_eq!(receive(&mut engine, 1), [[5]]);
}

#[test]
fn memory_comes_back_with_all_receives_in_flight_and_with_some_told_of() {
    for sent in [0, 3, 100] {
        let (mut engine, client) = pair(512);
        engine.post_all().unwrap();
        for _ in 0..sent {
            client.send(&[7; 512]).unwrap();
        }
        let socket = engine.socket.try_clone().unwrap();
        drop(engine);
        // A socket has one port for ever; others take its datagrams one after the other.
        assert!(Engine::new(&socket, 512).is_err());
        client.send(&[8]).unwrap();
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(WAIT)).unwrap();
        let mut bytes = [0; 512];
        while socket.recv(&mut bytes).unwrap() != 1 {}
        assert_eq!(bytes[0], 8);
    }
}

#[test]
fn addresses_are_read() {
    let v4 = [&AF_INET.to_ne_bytes()[..], &[0, 53], &[192, 0, 2, 1], &[0; 8]].concat();
    assert_eq!(address(&v4), Some("192.0.2.1:53".parse().unwrap()));
    let mut v6 = [&AF_INET6.to_ne_bytes()[..], &[0, 53], &[0; 4]].concat();
    v6.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    v6.extend(7_u32.to_ne_bytes());
    assert_eq!(address(&v6), Some(SocketAddrV6::new("fe80::1".parse().unwrap(), 53, 0, 7).into()));
    assert_eq!((address(&v4[..6]), address(&v6[..20]), address(&[9, 0, 0, 1])), (None, None, None));
}
