//! Messages to the DNS service: read and answered by hand, with hickory-proto's reader as the reference.
#![no_main]

use std::net::IpAddr;
use std::sync::Mutex;

use dns::fuzzing::{Answerer, Read, read};
use dns::zone::Settings;
use dns::zone::snapshot::build;
use hickory_proto::op::{Message, MessageType, OpCode};
use hickory_proto::rr::{DNSClass, Name, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};
use libfuzzer_sys::fuzz_target;

const CLUSTER: &str = "
berth: 1
services:
- {name: web, stack: shop, links: {data/db: database}, expose: [80/tcp]}
- {name: db, stack: data}
- {name: out, stack: data, kind: externalService, hostname: web.shop.rancher.internal}
containers:
- {name: a, service: shop/web, primary_ip: 10.42.0.1, ips: ['fd00::1'], dns_search: [shop.rancher.internal]}
- {name: b, service: shop/web, primary_ip: 10.42.0.2}
- {name: c, service: data/db, primary_ip: 10.42.0.3}
...
";

/// What names are asked of.
static ZONE: Mutex<Option<Answerer>> = Mutex::new(None);

fuzz_target!(|bytes: &[u8]| {
    let ours = read(bytes);
    agree(&ours, bytes);
    if let Read::Refused(reply, code) = &ours {
        let reply = Message::from_vec(reply).expect("a refusal is well formed");
        assert_eq!(reply.metadata.message_type, MessageType::Response);
        assert_eq!(reply.metadata.response_code.low(), (*code & 15) as u8);
        assert_eq!(reply.metadata.id.to_be_bytes(), bytes[..2]);
    }
    let mut zone = ZONE.lock().unwrap();
    let zone = zone.get_or_insert_with(|| {
        let snapshot = source::format::read(CLUSTER).unwrap().snapshot;
        Answerer::new(build(&snapshot, &Settings::default(), 1))
    });
    let mut room = vec![0xaa; usize::from(u16::MAX)];
    for client in [[10, 42, 0, 1], [192, 0, 2, 1]].map(IpAddr::from) {
        for connected in [false, true] {
            if let Some(length) = zone.answer(bytes, client, connected, &mut room) {
                let reply = Message::from_vec(&room[..length]).expect("an answer is well formed");
                let Read::Query { id, name, .. } = &ours else { panic!("what is no query is answered") };
                assert_eq!((reply.metadata.id, reply.queries.len()), (*id, 1));
                assert_eq!(&room[12..12 + name.len()], &name[..]);
            }
        }
    }
});

/// What both readers accept they read alike, and what one of them refuses he refuses for a reason.
fn agree(ours: &Read, bytes: &[u8]) {
    let reference = Message::from_vec(bytes);
    match ours {
        Read::Query { id, name, kind, edns } => {
            let records = bytes[6..12] != [0; 6];
            let Ok(reference) = reference else {
                // What stands behind the question is not looked into, beyond where it ends.
                assert!(records, "only hickory refuses a bare question");
                return;
            };
            let asked = &reference.queries[0];
            assert_eq!((reference.metadata.id, reference.metadata.op_code), (*id, OpCode::Query));
            assert_eq!(reference.metadata.message_type, MessageType::Query);
            assert_eq!(reference.queries.len(), 1);
            assert!(Name::read(&mut BinDecoder::new(name)).unwrap().eq_case(&asked.name));
            assert_eq!((u16::from(asked.query_type), asked.query_class), (*kind, DNSClass::IN));
            let expected = reference.edns.as_ref();
            assert_eq!(expected.is_some(), edns.is_some());
            if let (Some(expected), Some((size, dnssec_ok))) = (expected, edns) {
                assert_eq!((expected.version(), expected.flags().dnssec_ok), (0, *dnssec_ok));
                assert_eq!(expected.max_payload().clamp(512, 1232), *size);
            }
        }
        Read::Ignored => {
            let response = bytes.len() >= 12 && bytes[2] & 0x80 != 0;
            assert!(response || bytes.len() < 12, "a whole query is ignored");
        }
        Read::Refused(_, code) => {
            let Ok(reference) = reference else { return };
            let asked = reference.queries.first();
            match code {
                // Options of EDNS of a length that cannot be, names in the question that point elsewhere, more or fewer
                // questions than one, OPT records where none may be, and pointers into the header.
                1 => {
                    let plain = bytes[4..12] == [0, 1, 0, 0, 0, 0, 0, 0];
                    let points = bytes[12..].first().is_none_or(|_| pointer_in_question(bytes));
                    assert!(!plain || points, "a plain question is refused");
                }
                4 => {
                    let kind = asked.map(|asked| asked.query_type);
                    let meta = kind.is_some_and(|kind| matches!(u16::from(kind), 0 | 41 | 249..=254));
                    assert!(reference.metadata.op_code != OpCode::Query || meta);
                }
                5 => {
                    let asked = asked.expect("there is a question");
                    let transfer = matches!(asked.query_type, RecordType::AXFR | RecordType::IXFR);
                    assert!(asked.query_class != DNSClass::IN || transfer);
                }
                16 => assert!(reference.edns.is_none_or(|edns| edns.version() != 0)),
                other => panic!("refused with {other}"),
            }
        }
    }
}

/// Whether the name in the question is not written out.
fn pointer_in_question(bytes: &[u8]) -> bool {
    let mut at = 12;
    while let Some(length) = bytes.get(at) {
        match length {
            0 => return false,
            1..=63 => at += usize::from(*length) + 1,
            _ => return true,
        }
    }
    true
}
