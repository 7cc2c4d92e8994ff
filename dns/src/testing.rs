//! Queries and their responses in tests, with hickory's messages as the reference.

use std::net::IpAddr;

use hickory_proto::op::Message;
use hickory_proto::rr::{Name, RecordType};

use crate::answer::{Answer, answer};
use crate::edns::Extra;
use crate::name::{NAME_BYTES_MAX, fold, wire_of};
use crate::query::{Query, Reading};
use crate::reply::Forward;
use crate::write::write;
use crate::zone::Zone;

/// A query without EDNS for records of a name in this spelling.
pub(crate) fn message(name: &str, kind: RecordType) -> Vec<u8> {
    let name = wire_of(&Name::from_ascii(name).unwrap());
    let fixed = [u16::from(kind), 1].map(u16::to_be_bytes).concat();
    [b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0", &*name, &fixed].concat()
}

/// The query that a message is.
pub(crate) fn query(message: &[u8]) -> Query<'_> {
    match Query::read(message) {
        Reading::Query(query) => query,
        other => panic!("{other:?}"),
    }
}

/// The answer for a client.
pub(crate) fn find<'z>(zone: &'z Zone, client: &str, query: &Query<'_>) -> Answer<'z> {
    let scope = zone.scope(client.parse::<IpAddr>().unwrap()).map(|scope| &**scope);
    answer(zone, scope, fold(query.name, &mut [0; NAME_BYTES_MAX]), query.kind, &mut ())
}

/// The response to a client over TCP, as hickory reads it; otherwise what upstreams have to be asked.
pub(crate) fn ask(zone: &Zone, client: &str, message: &[u8], turn: usize) -> Result<Message, Box<Forward>> {
    let query = query(message);
    let answer = find(zone, client, &query);
    let extra = Extra { connected: true, ..Extra::default() };
    let mut room = vec![0xaa; usize::from(u16::MAX)];
    match write(&query, zone, &answer, || turn, extra, &mut room) {
        Some(written) => Ok(Message::from_vec(&room[..written.bytes]).unwrap()),
        None => Err(Box::new(Forward::of(&query, &answer, turn).unwrap())),
    }
}
