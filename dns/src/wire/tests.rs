//! Queries as they come and replies as they leave.

use hickory_proto::op::Message;
use hickory_proto::rr::rdata::{A, SRV, TXT};
use hickory_proto::rr::{Name, RData};
use hickory_server::net::xfer::Protocol;
use hickory_server::server::Request;
use proptest::prelude::*;

use super::ResponseCode::{BADVERS, FormErr, NotImp, Refused};
use super::*;

/// A query for `www.example.org. A` with these flags, counts and what follows the question.
fn message(flags: u16, counts: [u16; 4], rest: &[u8]) -> Vec<u8> {
    let mut octets: Vec<u8> = [77, flags].into_iter().chain(counts).flat_map(u16::to_be_bytes).collect();
    octets.extend_from_slice(b"\x03WWW\x07example\x03org\0\0\x01\0\x01");
    octets.extend_from_slice(rest);
    octets
}

const ROOT_OPT: &[u8] = b"\0\0\x29\x04\xd0\0\0\0\0\0\0";

fn query(message: &[u8]) -> Query {
    match Query::read(message) {
        Reading::Query(query) => *query,
        other => panic!("{other:?}"),
    }
}

fn refused(message: &[u8]) -> Option<ResponseCode> {
    match Query::read(message) {
        Reading::Refuse(reply, code) => {
            assert!(reply.len() <= message.len() + OPT_OCTETS && reply[2] & 0x80 != 0 && reply[..2] == message[..2]);
            Message::from_vec(&reply).unwrap();
            Some(code)
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
        let mut octets = message(0, one, b"");
        let end = octets.len();
        octets[end - 4..end - 2].copy_from_slice(&kind.to_be_bytes());
        octets[end - 2..].copy_from_slice(&class.to_be_bytes());
        octets
    };
    for (octets, expected) in [
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
        assert_eq!(refused(&octets), expected, "{octets:02x?}");
    }
    let mut pointer = message(0, one, b"")[..12].to_vec();
    pointer.extend_from_slice(b"\xc0\x0c\0\x01\0\x01");
    assert_eq!(refused(&pointer), Some(FormErr));
}

#[test]
fn the_spelling_of_the_question_is_kept() {
    let octets = message(0x0110, [1, 0, 0, 1], ROOT_OPT);
    let query = query(&octets);
    assert_eq!(query.question.folded, Folded::parse("www.example.org").unwrap());
    let record = Record::from_rdata(query.question.name.clone(), 5, RData::A(A::new(192, 0, 2, 1)));
    let reply = Reply { answers: vec![record], authoritative: true, ..Reply::empty(ResponseCode::NoError) };
    let written = query.write(&reply, 512);
    assert_eq!(written[12..33], octets[12..33]);
    assert_eq!(written[33..35], [0xc0, 0x0c]);
    let message = Message::from_vec(&written).unwrap();
    assert!(message.metadata.authoritative && message.metadata.recursion_desired);
    assert!(message.metadata.checking_disabled && message.edns.is_some());
}

fn addresses(name: &Name, count: u8) -> Vec<Record> {
    (0..count).map(|last| Record::from_rdata(name.clone(), 5, RData::A(A::new(192, 0, 2, last)))).collect()
}

#[test]
fn what_does_not_fit_is_cut_at_a_record() {
    let query = query(&message(0, [1, 0, 0, 1], ROOT_OPT));
    let reply = Reply { answers: addresses(&query.question.name, 100), ..Reply::empty(ResponseCode::NoError) };
    for limit in [512, 513, 1232] {
        let written = query.write(&reply, limit);
        let message = Message::from_vec(&written).unwrap();
        assert!(written.len() <= usize::from(limit) && written.len() + 16 > usize::from(limit));
        assert!(message.metadata.truncation && message.edns.is_some());
    }
    let whole = Message::from_vec(&query.write(&reply, TCP_ANSWER_MAX)).unwrap();
    assert_eq!((whole.answers.len(), whole.metadata.truncation), (100, false));
}

#[test]
fn cookies_and_keepalive_are_answered() {
    let options = b"\0\0\x29\x04\xd0\0\0\0\0\0\x10\0\x0a\0\x08abcdefgh\0\x0b\0\0";
    let mut query = query(&message(0, [1, 0, 0, 1], options));
    assert_eq!(query.wishes.edns.unwrap().client_cookie, Some(*b"abcdefgh"));
    query.cookie = Some(*b"abcdefghijklmnopqrstuvwx");
    let reply = Reply::empty(ResponseCode::NoError).because(14);
    let tail = |limit| query.write(&reply, limit).split_off(33);
    assert_eq!(tail(512), b"\0\0\x29\x04\xd0\0\0\0\0\0\x22\0\x0a\0\x18abcdefghijklmnopqrstuvwx\0\x0f\0\x02\0\x0e");
    assert_eq!(
        tail(TCP_ANSWER_MAX),
        b"\0\0\x29\x04\xd0\0\0\0\0\0\x28\0\x0a\0\x18abcdefghijklmnopqrstuvwx\0\x0b\0\x02\0\x5a\0\x0f\0\x02\0\x0e"
    );
    for length in [0, 7, 9, 15, 41] {
        let option = [&[0, 10, 0, length][..], &[7; 41][..usize::from(length)]].concat();
        let opt = [b"\0\0\x29\x04\xd0\0\0\0\0\0".as_slice(), &[length + 4], &option].concat();
        assert_eq!(refused(&message(0, [1, 0, 0, 1], &opt)), Some(FormErr), "{length}");
    }
}

#[test]
fn the_server_is_named_to_who_asks() {
    let asks = b"\0\0\x29\x04\xd0\0\0\0\0\0\x04\0\x03\0\0".as_slice();
    let plain = b"\0\0\x29\x04\xd0\0\0\0\0\0\0".as_slice();
    let told = b"\0\0\x29\x04\xd0\0\0\0\0\0\x09\0\x03\0\x05berth".as_slice();
    for (opt, server, expected) in [(asks, Some("berth"), told), (asks, None, plain), (plain, Some("berth"), plain)] {
        let mut query = query(&message(0, [1, 0, 0, 1], opt));
        query.server = server.map(|server| server.as_bytes().into());
        assert_eq!(query.write(&Reply::empty(ResponseCode::NoError), 512).split_off(33), expected);
    }
}

#[test]
fn additional_records_are_left_out_rather_than_cut() {
    let query = query(&message(0, [1, 0, 0, 0], b""));
    let name = query.question.name.clone();
    let answers = vec![Record::from_rdata(name.clone(), 5, RData::SRV(SRV::new(0, 0, 80, name.clone())))];
    let reply = |count| Reply {
        answers: answers.clone(),
        additional: addresses(&name, count),
        ..Reply::empty(ResponseCode::NoError)
    };
    for (count, written) in [(10, 10), (100, 0)] {
        let message = Message::from_vec(&query.write(&reply(count), 512)).unwrap();
        assert_eq!((message.additionals.len(), message.metadata.truncation), (written, false));
    }
}

#[test]
fn sixty_four_kibibytes_hold_four_thousand_addresses() {
    let query = query(&message(0, [1, 0, 0, 0], b""));
    let record = Record::from_rdata(query.question.name.clone(), 5, RData::A(A::new(192, 0, 2, 1)));
    let reply = Reply { answers: vec![record; 4000], ..Reply::empty(ResponseCode::NoError) };
    assert_eq!(Message::from_vec(&query.write(&reply, TCP_ANSWER_MAX)).unwrap().answers.len(), 4000);
    let text = RData::TXT(TXT::new(vec!["x".repeat(255); 300]));
    let record = Record::from_rdata(query.question.name.clone(), 5, text);
    let huge = Reply { answers: vec![record], ..Reply::empty(ResponseCode::NoError) };
    assert!(Message::from_vec(&query.write(&huge, TCP_ANSWER_MAX)).unwrap().metadata.truncation);
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
        let mut octets: Vec<u8> =
            [77, flags & 0x0130, 1, 0, 0, u16::from(edns.is_some())].into_iter().flat_map(u16::to_be_bytes).collect();
        for label in &labels {
            octets.push(u8::try_from(label.len()).unwrap());
            octets.extend_from_slice(label.as_bytes());
        }
        octets.push(0);
        octets.extend([kind, 1].into_iter().flat_map(u16::to_be_bytes));
        if let Some((size, flags, data)) = &edns {
            octets.push(0);
            let length = u16::try_from(data.len()).unwrap() + 4;
            let fixed = [41, *size, 0, *flags, length, 65_001, length - 4];
            octets.extend(fixed.into_iter().flat_map(u16::to_be_bytes));
            octets.extend_from_slice(data);
        }
        for (at, octet) in changes {
            if let Some(place) = octets.get_mut(at) {
                *place = octet;
            }
        }
        let client = "192.0.2.1:53".parse().unwrap();
        let reference = Request::from_bytes(octets.clone(), client, Protocol::Udp);
        if let (Reading::Query(query), Ok(reference)) = (Query::read(&octets), reference) {
            let asked = reference.queries.queries()[0].original();
            prop_assert_eq!(query.id, reference.metadata.id);
            prop_assert!(query.question.name.eq_case(&asked.name), "{} {}", query.question.name, asked.name);
            prop_assert_eq!(query.question.kind, asked.query_type);
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
    fn anything_may_arrive(mut octets in prop::collection::vec(any::<u8>(), 0..80), query_like in any::<bool>()) {
        if query_like && octets.len() > 12 {
            octets[2] &= 0x01;
            let additional = octets[11] & 1;
            octets[4..12].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, additional]);
        }
        match Query::read(&octets) {
            Reading::Ignore => {}
            Reading::Refuse(reply, _) => { Message::from_vec(&reply).unwrap(); }
            Reading::Query(query) => {
                let written = query.write(&Reply::empty(ResponseCode::NXDomain), 512);
                let message = Message::from_vec(&written).unwrap();
                prop_assert_eq!(Folded::of(&message.queries[0].name), query.question.folded.clone());
                let end = 12 + query.question.folded.wire().len() + 4;
                prop_assert_eq!(&written[12..end], &octets[12..end]);
            }
        }
    }
}
