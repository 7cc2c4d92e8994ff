//! Queries as they come.

use hickory_proto::op::Message;
use hickory_server::net::xfer::Protocol;
use hickory_server::server::Request;
use proptest::prelude::*;

use super::ResponseCode::{BADVERS, FormErr, NotImp, Refused};
use super::*;
use crate::edns::{Extra, OPT_BYTES};
use crate::name::{Folded, wire_of};
use crate::reply::Reply;
use crate::write::{write_refusal, write_reply};

/// A query for `www.example.org. A` with these flags, counts and what follows the question.
fn message(flags: u16, counts: [u16; 4], rest: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = [77, flags].into_iter().chain(counts).flat_map(u16::to_be_bytes).collect();
    bytes.extend_from_slice(b"\x03WWW\x07example\x03org\0\0\x01\0\x01");
    bytes.extend_from_slice(rest);
    bytes
}

const ROOT_OPT: &[u8] = b"\0\0\x29\x04\xd0\0\0\0\0\0\0";

fn written(refusal: &Refusal<'_>) -> Vec<u8> {
    let mut room = vec![0xaa; usize::from(PLAIN_ANSWER_MAX)];
    let written = write_refusal(refusal, &mut room).unwrap();
    room.truncate(written.bytes);
    room
}

fn refused(message: &[u8]) -> Option<ResponseCode> {
    match Query::read(message) {
        Reading::Refuse(refusal) => {
            let reply = written(&refusal);
            assert!(reply.len() <= message.len() + OPT_BYTES && reply[2] & 0x80 != 0 && reply[..2] == message[..2]);
            Message::from_vec(&reply).unwrap();
            Some(refusal.code)
        }
        Reading::Ignore => None,
        Reading::Query(query) => panic!("{query:?}"),
    }
}

#[test]
fn what_is_no_query_is_refused_or_ignored() {
    let one = [1, 0, 0, 0];
    let opt = [1, 0, 0, 1];
    let question = |kind: u16, class: u16| {
        let mut bytes = message(0, one, b"");
        let end = bytes.len();
        bytes[end - 4..end - 2].copy_from_slice(&kind.to_be_bytes());
        bytes[end - 2..].copy_from_slice(&class.to_be_bytes());
        bytes
    };
    for (bytes, expected) in [
        (vec![], None),
        (message(0, one, b"")[..11].to_vec(), None),
        (message(0x8000, one, b""), None),
        (message(0x2800, one, b""), Some(NotImp)),
        (message(0, one, b"")[..14].to_vec(), Some(FormErr)),
        (message(0, [0, 0, 0, 0], b""), Some(FormErr)),
        (message(0, [2, 0, 0, 0], b"\0\0\x01\0\x01"), Some(FormErr)),
        (message(0, [1, 1, 0, 0], b""), Some(FormErr)),
        (message(0, [1, 1, 0, 0], ROOT_OPT), Some(FormErr)),
        (message(0, [1, 0, 0, 2], &[ROOT_OPT, ROOT_OPT].concat()), Some(FormErr)),
        (message(0, opt, b"\0\0\x29\x04\xd0\0\x01\0\0\0\0"), Some(BADVERS)),
        (message(0, opt, b"\0\0\x29\x04\xd0\0\0\0\0\0\x03\0\x0a\0"), Some(FormErr)),
        (message(0, opt, b"\0\0\x29\x04\xd0\0\0\0\0\0\x04\0\x0a\0\x05"), Some(FormErr)),
        (question(252, 1), Some(Refused)),
        (question(1, 3), Some(Refused)),
        (question(250, 1), Some(NotImp)),
    ] {
        assert_eq!(refused(&bytes), expected, "{bytes:02x?}");
    }
    let mut pointer = message(0, one, b"")[..12].to_vec();
    pointer.extend_from_slice(b"\xc0\x0c\0\x01\0\x01");
    assert_eq!(refused(&pointer), Some(FormErr));
}

proptest! {
    /// What both read, both read alike: hickory-server's reader is the reference.
    #[test]
    fn queries_are_read_as_hickory_reads_them(
        labels in prop::collection::vec("[a-zA-Z0-9_*-]{1,12}", 0..5),
        kind in any::<u16>(),
        flags in any::<u16>(),
        edns in prop::option::of((any::<u16>(), any::<u16>(), prop::collection::vec(any::<u8>(), 0..12))),
        changes in prop::collection::vec((2..60usize, any::<u8>()), 0..3),
    ) {
        let mut bytes: Vec<u8> =
            [77, flags & 0x0130, 1, 0, 0, u16::from(edns.is_some())].into_iter().flat_map(u16::to_be_bytes).collect();
        for label in &labels {
            bytes.push(u8::try_from(label.len()).unwrap());
            bytes.extend_from_slice(label.as_bytes());
        }
        bytes.push(0);
        bytes.extend([kind, 1].into_iter().flat_map(u16::to_be_bytes));
        if let Some((size, flags, data)) = &edns {
            bytes.push(0);
            let length = u16::try_from(data.len()).unwrap() + 4;
            let fixed = [41, *size, 0, *flags, length, 65_001, length - 4];
            bytes.extend(fixed.into_iter().flat_map(u16::to_be_bytes));
            bytes.extend_from_slice(data);
        }
        for (at, byte) in changes {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        let client = "192.0.2.1:53".parse().unwrap();
        let reference = Request::from_bytes(bytes.clone(), client, Protocol::Udp);
        if let (Reading::Query(query), Ok(reference)) = (Query::read(&bytes), reference) {
            let asked = reference.queries.queries()[0].original();
            prop_assert_eq!(&query.head[..2], reference.metadata.id.to_be_bytes());
            let name = Folded::verbatim(query.name);
            prop_assert!(name.eq_case(&asked.name), "{name} {}", asked.name);
            prop_assert_eq!(query.kind, asked.query_type);
            prop_assert_eq!(asked.query_class, DNSClass::IN);
            prop_assert_eq!(query.wishes.recursion_desired(), reference.metadata.recursion_desired);
            prop_assert_eq!(query.wishes.checking_disabled(), reference.metadata.checking_disabled);
            prop_assert_eq!(query.wishes.edns.is_some(), reference.edns.is_some());
            prop_assert_eq!(query.wishes.dnssec_ok(), reference.edns.as_ref().is_some_and(|edns| edns.flags().dnssec_ok));
            let payload = reference.max_payload().clamp(PLAIN_ANSWER_MAX, UDP_ANSWER_MAX);
            prop_assert_eq!(query.wishes.udp_answer_max(), payload);
        }
    }

    /// Whatever arrives: no panic, and what is answered is answered in well-formed messages.
    #[test]
    fn anything_may_arrive(mut bytes in prop::collection::vec(any::<u8>(), 0..80), query_like in any::<bool>()) {
        if query_like && bytes.len() > 12 {
            bytes[2] &= 0x01;
            let additional = bytes[11] & 1;
            bytes[4..12].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, additional]);
        }
        match Query::read(&bytes) {
            Reading::Ignore => {}
            Reading::Refuse(refusal) => { Message::from_vec(&written(&refusal)).unwrap(); }
            Reading::Query(query) => {
                let mut room = [0xaa; 512];
                let reply = Reply::empty(ResponseCode::NXDomain);
                let written = write_reply(&query, &reply, Extra::default(), &mut room).unwrap();
                let message = Message::from_vec(&room[..written.bytes]).unwrap();
                let name = wire_of(&message.queries[0].name);
                prop_assert_eq!(&*name, query.name);
                let end = 12 + query.name.len() + 4;
                prop_assert_eq!(&room[12..end], &bytes[12..end]);
            }
        }
    }
}
