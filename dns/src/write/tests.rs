//! Responses as they leave, with hickory's messages as the reference.

use std::fmt::Write as _;
use std::net::IpAddr;

use hickory_proto::op::Message;
use hickory_proto::rr::rdata::{A, HINFO, NS, SOA, TXT};
use hickory_proto::rr::{Name, RData, Record};
use hickory_proto::serialize::binary::BinDecodable;
use proptest::prelude::*;

use super::*;
use crate::cookie::Cookie;
use crate::edns::UDP_ANSWER_MAX;
use crate::query::Reading;
use crate::testing::{find, query};
use crate::zone::answers::DnsAnswers;
use crate::zone::{Settings, snapshot};

/// A query for `WWW.example.org. A` with this OPT record.
fn message(opt: &[u8]) -> Vec<u8> {
    let head = [0, 77, 0x01, 0x10, 0, 1, 0, 0, 0, 0, 0, u8::from(!opt.is_empty())];
    [&head[..], b"\x03WWW\x07example\x03org\0\0\x01\0\x01", opt].concat()
}

const OPT: &[u8] = b"\0\0\x29\x04\xd0\0\0\0\0\0\0";

/// The reply to a message, over TCP or UDP.
fn replied(message: &[u8], reply: &Reply, extra: Extra<'_>) -> Vec<u8> {
    let mut room = vec![0xaa; usize::from(TCP_ANSWER_MAX)];
    let written = write_reply(&query(message), reply, extra, &mut room).unwrap();
    room.truncate(written.octets);
    room
}

const UDP: Extra<'_> = Extra { extended_error: None, cookie: None, connected: false, server: None };

const TCP: Extra<'_> = Extra { connected: true, ..UDP };

fn addresses(name: &Name, count: u16) -> Vec<Record> {
    let address = |last: u16| A::from(std::net::Ipv4Addr::from(0xc000_0200 + u32::from(last)));
    (0..count).map(|last| Record::from_rdata(name.clone(), 5, RData::A(address(last)))).collect()
}

#[test]
fn the_spelling_of_the_question_is_kept() {
    let octets = message(OPT);
    let name = Folded::verbatim(query(&octets).name);
    let reply = Reply { answers: addresses(&name, 1), authoritative: true, ..Reply::empty(ResponseCode::NoError) };
    let written = replied(&octets, &reply, UDP);
    assert_eq!(written[12..33], octets[12..33]);
    assert_eq!(written[33..35], [0xc0, 0x0c]);
    let message = Message::from_vec(&written).unwrap();
    assert!(message.metadata.authoritative && message.metadata.recursion_desired);
    assert!(message.metadata.checking_disabled && message.edns.is_some());
}

#[test]
fn replies_of_upstreams_are_cut_at_a_record() {
    let octets = message(OPT);
    let name = Folded::verbatim(query(&octets).name);
    let reply = Reply { answers: addresses(&name, 100), ..Reply::empty(ResponseCode::NoError) };
    for size in [512, 513, 1232] {
        let opt = [&b"\0\0\x29"[..], &u16::to_be_bytes(size), &[0; 6]].concat();
        let written = replied(&message(&opt), &reply, UDP);
        let message = Message::from_vec(&written).unwrap();
        assert!(written.len() <= usize::from(size) && written.len() + 16 > usize::from(size));
        assert!(message.metadata.truncation && message.edns.is_some());
    }
    let whole = Message::from_vec(&replied(&octets, &reply, TCP)).unwrap();
    assert_eq!((whole.answers.len(), whole.metadata.truncation), (100, false));
}

#[test]
fn cookies_and_keepalive_are_answered() {
    let octets = message(b"\0\0\x29\x04\xd0\0\0\0\0\0\x10\0\x0a\0\x08abcdefgh\0\x0b\0\0");
    assert_eq!(query(&octets).wishes.edns.unwrap().client_cookie, Some(*b"abcdefgh"));
    let cookie: Option<Cookie> = Some(*b"abcdefghijklmnopqrstuvwx");
    let reply = Reply::empty(ResponseCode::NoError).because(14);
    let tail = |extra| replied(&octets, &reply, Extra { cookie, ..extra }).split_off(33);
    assert_eq!(tail(UDP), b"\0\0\x29\x04\xd0\0\0\0\0\0\x22\0\x0a\0\x18abcdefghijklmnopqrstuvwx\0\x0f\0\x02\0\x0e");
    assert_eq!(
        tail(TCP),
        b"\0\0\x29\x04\xd0\0\0\0\0\0\x28\0\x0a\0\x18abcdefghijklmnopqrstuvwx\0\x0b\0\x02\0\x5a\0\x0f\0\x02\0\x0e"
    );
}

#[test]
fn the_server_is_named_to_clients_that_ask() {
    let asks = b"\0\0\x29\x04\xd0\0\0\0\0\0\x04\0\x03\0\0".as_slice();
    let named = b"\0\0\x29\x04\xd0\0\0\0\0\0\x09\0\x03\0\x05berth".as_slice();
    for (opt, server, expected) in [(asks, Some("berth"), named), (asks, None, OPT), (OPT, Some("berth"), OPT)] {
        let extra = Extra { server: server.map(str::as_bytes), ..UDP };
        let reply = Reply::empty(ResponseCode::NoError);
        assert_eq!(replied(&message(opt), &reply, extra).split_off(33), expected);
    }
}

#[test]
fn sixty_four_kibibytes_hold_four_thousand_addresses() {
    let octets = message(b"");
    let name = Folded::verbatim(query(&octets).name);
    let reply = Reply { answers: addresses(&name, 4000), ..Reply::empty(ResponseCode::NoError) };
    assert_eq!(Message::from_vec(&replied(&octets, &reply, TCP)).unwrap().answers.len(), 4000);
    let text = RData::TXT(TXT::new(vec!["x".repeat(255); 300]));
    let huge = Reply { answers: vec![Record::from_rdata(name, 5, text)], ..Reply::empty(ResponseCode::NoError) };
    assert!(Message::from_vec(&replied(&octets, &huge, TCP)).unwrap().metadata.truncation);
}

/// A service with so many containers.
fn service(containers: usize) -> Zone {
    let mut text = String::from("berth: 1\nservices: [{name: web, stack: shop, expose: [80/tcp]}]\ncontainers:\n");
    for number in 0..containers {
        let address = std::net::Ipv4Addr::from(0x0a2a_0000 + u32::try_from(number).unwrap());
        writeln!(text, "  - {{name: web-{number}, service: shop/web, primary_ip: {address}}}").unwrap();
    }
    snapshot::build(&source::format::read(&text).unwrap().snapshot, &Settings::default(), 7)
}

/// The response of a zone to a query, and how many octets it has.
fn response(zone: &Zone, message: &[u8], extra: Extra<'_>) -> (Message, usize) {
    let query = query(message);
    let mut room = vec![0xaa; usize::from(if extra.connected { TCP_ANSWER_MAX } else { UDP_ANSWER_MAX })];
    let written = write(&query, zone, &find(zone, "192.0.2.1", &query), || 0, extra, &mut room).unwrap();
    (Message::from_vec(&room[..written.octets]).unwrap(), written.octets)
}

#[test]
fn sets_of_the_zone_are_cut_at_a_record() {
    let message = crate::testing::message("web.shop.rancher.internal.", RecordType::A);
    for (containers, kept, octets) in [(28, 28, 491), (29, 29, 507), (30, 29, 507), (5000, 29, 507)] {
        let (response, length) = response(&service(containers), &message, UDP);
        assert_eq!((response.answers.len(), length), (kept, octets), "{containers}");
        assert_eq!(response.metadata.truncation, kept < containers);
    }
    let (whole, _) = response(&service(4000), &message, TCP);
    assert_eq!((whole.answers.len(), whole.metadata.truncation), (4000, false));
    let (cut, length) = response(&service(5000), &message, TCP);
    assert!(cut.metadata.truncation && length > 65_500, "{length}");
}

#[test]
fn additional_records_are_left_out_rather_than_cut() {
    let message = crate::testing::message("_80._tcp.web.shop.rancher.internal.", RecordType::SRV);
    for (containers, additionals) in [(1, 1), (7, 7), (8, 0), (10, 0)] {
        let (response, _) = response(&service(containers), &message, UDP);
        assert_eq!((response.answers.len(), response.additionals.len()), (containers, additionals));
        assert!(!response.metadata.truncation);
    }
    let (whole, _) = response(&service(500), &message, TCP);
    assert_eq!((whole.answers.len(), whole.additionals.len(), whole.metadata.truncation), (500, 500, false));
}

/// Records of a set as hickory has them, with this owner.
fn expected(owner: &[u8], set: &RecordSet, first: usize) -> Vec<String> {
    let record =
        |encoded: EncodedRecord<'_>| Record::from_bytes(&[owner, encoded.behind_owner()].concat()).unwrap().to_string();
    let mut records: Vec<_> = set.records().map(record).collect();
    let first = first % records.len();
    records.rotate_left(first);
    records
}

fn shown(records: &[Record]) -> Vec<String> {
    records.iter().map(ToString::to_string).collect()
}

/// Compares a response with the answer that it is about, record by record; returns whether the zone had one.
fn check(zone: &Zone, client: &str, message: &[u8], turn: usize) -> bool {
    let Reading::Query(query) = Query::read(message) else { return false };
    let answer = find(zone, client, &query);
    let mut room = vec![0xaa; usize::from(TCP_ANSWER_MAX)];
    let Some(written) = write(&query, zone, &answer, || turn, TCP, &mut room) else {
        return false;
    };
    let response = Message::from_vec(&room[..written.octets]).unwrap();
    let (mut owner, mut answers) = (query.name, Vec::new());
    for alias in &answer.aliases {
        answers.extend(expected(owner, alias, 0).into_iter().take(1));
        owner = alias.target();
    }
    let soa = |owner: Name, apex: &Apex| {
        let (server, mailbox) = (apex.server.name(), apex.mailbox.name());
        let soa = SOA::new(server, mailbox, zone.serial, 3600, 600, 86_400, zone.negative_ttl);
        Record::from_rdata(owner, zone.negative_ttl, RData::SOA(soa)).to_string()
    };
    let of_names = |names: Vec<&[u8]>| -> Vec<String> {
        let sets = |name| zone.node(name).into_iter().flat_map(|node| node.address_sets());
        names
            .into_iter()
            .flat_map(|name| sets(name).flat_map(|set| expected(name, set, 0)).collect::<Vec<_>>())
            .collect()
    };
    let (mut code, mut authority, mut additional) = (ResponseCode::NoError, Vec::new(), Vec::new());
    let name = Folded::verbatim(owner);
    match answer.end {
        End::Records(set) => {
            answers.extend(expected(owner, set, turn));
            if set.kind() == RecordType::SRV {
                additional = of_names(set.records().map(|record| &record.data()[6..]).collect());
            }
        }
        End::Authority(apex) => answers.push(soa(name, apex)),
        End::NameServer(apex) => {
            let data = RData::NS(NS(apex.server.name()));
            answers.push(Record::from_rdata(name, zone.ttl, data).to_string());
            additional = of_names(vec![apex.server.wire()]);
        }
        End::Any => {
            let any = RData::HINFO(HINFO::new("RFC8482".to_owned(), String::new()));
            answers.push(Record::from_rdata(name, zone.ttl, any).to_string());
        }
        End::Nothing { code: said, apex, within } => {
            code = said;
            let owner = |apex: &Apex| if within { apex.folded.name() } else { Folded::from_wire(owner).name() };
            authority.extend(apex.map(|apex| soa(owner(apex), apex)));
        }
        End::Loop => code = ResponseCode::ServFail,
        End::Elsewhere { .. } => panic!("written, though it is elsewhere"),
    }
    assert_eq!(shown(&response.answers), answers);
    assert_eq!(shown(&response.authorities), authority);
    assert_eq!(shown(&response.additionals), additional);
    assert_eq!((response.metadata.response_code, written.code), (code, code));
    assert!(response.metadata.authoritative && !response.metadata.truncation);
    assert_eq!(&room[HEADER_OCTETS..query.head.len()], &query.head[HEADER_OCTETS..]);
    // Compressed as hickory compresses the same records.
    let reply = Reply {
        answers: response.answers.clone(),
        authority: response.authorities.clone(),
        authoritative: true,
        ..Reply::empty(code)
    };
    let mut reference = vec![0; usize::from(TCP_ANSWER_MAX)];
    let referred = write_reply(&query, &reply, TCP, &mut reference).unwrap();
    if additional.is_empty() {
        assert_eq!(room[..written.octets], reference[..referred.octets]);
    }
    true
}

const LABELS: [&str; 12] =
    ["web", "shop", "db", "rancher", "internal", "dns", "ns", "hostmaster", "c1", "_80", "_tcp", "example"];

const CLIENTS: [&str; 5] = ["10.42.0.1", "10.42.0.2", "192.0.2.9", "fd00::1", "::ffff:10.42.0.2"];

const TYPES: [u16; 16] = [1, 1, 1, 28, 28, 16, 12, 5, 33, 6, 2, 15, 255, 65, 0, 252];

/// A name of these labels.
fn name(labels: &[usize]) -> String {
    labels.iter().map(|label| LABELS[*label]).collect::<Vec<_>>().join(".")
}

/// Services and containers with names of a few labels, so that they collide, hide and contain each other.
fn cluster(containers: &[(usize, usize, u8, Option<usize>)]) -> String {
    let mut text = String::from("berth: 1\nservices:\n");
    for (stack, service) in [(1, 0), (1, 2), (2, 5), (3, 0)] {
        let (stack, service) = (LABELS[stack], LABELS[service]);
        writeln!(text, "  - {{name: {service}, stack: {stack}, links: {{shop/db: example}}, expose: [80/tcp]}}")
            .unwrap();
    }
    // Aliases of what all see, of what services link to, of what some containers have names of their own for, one of these
    // dotted, and of each other.
    for (name, hostname) in [
        ("out", "db.shop.rancher.internal"),
        ("near", "example.rancher.internal"),
        ("mine", "peer"),
        ("mail", "mail.example.org"),
        ("far", "mail.shop.rancher.internal"),
    ] {
        writeln!(text, "  - {{name: {name}, stack: shop, kind: externalService, hostname: {hostname}}}").unwrap();
    }
    text.push_str("containers:\n");
    for (index, (label, service, address, search)) in containers.iter().enumerate() {
        let service = ["shop/web", "shop/db", "db/dns", "rancher/web"][*service];
        let search = search.map(|label| format!(", dns_search: [{}.rancher.internal]", LABELS[label]));
        let search = search.unwrap_or_default();
        // Under one alias each has another target.
        let other = (index + 1) % containers.len();
        let links = format!("peer: {0}-{other}, mail.example.org: {0}-{other}", LABELS[containers[other].0]);
        writeln!(
            text,
            "  - {{name: {}-{index}, service: {service}, primary_ip: 10.42.0.{address}, ips: ['fd00::{address}']{search}, links: {{{links}}}}}",
            LABELS[*label],
        )
        .unwrap();
    }
    text
}

/// Names with several texts, aliases of aliases, names outside of the domain and pointers of any spelling.
fn answers(names: &[(Vec<usize>, u8)]) -> DnsAnswers {
    let mut sections = [String::new(), String::new(), String::new(), String::new()];
    for (labels, kind) in names {
        let (name, kind) = (name(labels), *kind);
        let entry = match kind % 4 {
            0 => format!(
                r#""{name}.": {{"answer": [{}]}},"#,
                (0..=kind / 4).map(|last| format!(r#""10.0.0.{last}""#)).collect::<Vec<_>>().join(",")
            ),
            1 => format!(r#""{name}.": {{"answer": "Web.{name}.", "ttl": {kind}}},"#),
            2 => format!(r#""{kind}.0.0.10.in-addr.arpa.": {{"answer": "{name}.In-Addr.arpa."}},"#),
            _ => format!(r#""{name}.": {{"answer": ["{}", "b"]}},"#, "x".repeat(usize::from(kind))),
        };
        sections[usize::from(kind % 4)].push_str(&entry);
    }
    let [addresses, aliases, pointers, notes] = sections.map(|section| section.trim_end_matches(',').to_owned());
    let section = format!(r#""a": {{{addresses}}}, "cname": {{{aliases}}}, "ptr": {{{pointers}}}, "txt": {{{notes}}}"#);
    let text = format!(
        r#"{{"default": {{"search": ["rancher.internal"], "authoritative": ["rancher.internal", "shop"], {section}}},
            "10.42.0.1": {{"search": ["shop.rancher.internal"], {section}}}}}"#
    );
    DnsAnswers::from_value(&serde_json::from_str(&text).unwrap()).unwrap().0
}

/// What a client sends.
#[derive(Clone, Debug)]
struct Asked {
    client: usize,
    name: String,
    spelling: u64,
    kind: u16,
    flags: u16,
    edns: Option<(u16, u16)>,
    options: Vec<u8>,
    turn: usize,
}

impl Asked {
    fn message(&self) -> Vec<u8> {
        let words = [0x1234, self.flags & 0x07ff, 1, 0, 0, u16::from(self.edns.is_some())];
        let mut octets: Vec<u8> = words.into_iter().flat_map(u16::to_be_bytes).collect();
        let mut wire = Folded::parse(&self.name).unwrap().wire().to_vec();
        for (at, octet) in wire.iter_mut().enumerate().filter(|(_, octet)| octet.is_ascii_lowercase()) {
            if self.spelling >> (at % 64) & 1 == 1 {
                octet.make_ascii_uppercase();
            }
        }
        octets.extend(wire);
        octets.extend([self.kind, 1].into_iter().flat_map(u16::to_be_bytes));
        if let Some((size, flags)) = self.edns {
            octets.push(0);
            let length = u16::try_from(self.options.len()).unwrap();
            octets.extend([41, size, 0, flags, length].into_iter().flat_map(u16::to_be_bytes));
            octets.extend_from_slice(&self.options);
        }
        octets
    }
}

fn asked() -> impl Strategy<Value = Asked> {
    let labels = prop::collection::vec(0..LABELS.len(), 0..5).prop_map(|labels| name(&labels));
    let within =
        prop::collection::vec(0..LABELS.len(), 0..3).prop_map(|labels| format!("{}.rancher.internal", name(&labels)));
    let service = ((0..8usize), any::<bool>()).prop_map(|(service, long)| {
        let service =
            ["web.shop", "db.shop", "dns.db", "out.shop", "near.shop", "mine.shop", "mail.shop", "far.shop"][service];
        if long { format!("{service}.rancher.internal") } else { service.to_owned() }
    });
    let reverse = (0..8u8).prop_map(|last| format!("{last}.0.42.10.in-addr.arpa"));
    let other_reverse = (0..255u8).prop_map(|last| format!("{last}.0.0.10.in-addr.arpa"));
    let container =
        (0..3usize, 0..6u8).prop_map(|(label, index)| format!("{}-{index}.rancher.internal", LABELS[label]));
    let port = (0..4usize).prop_map(|service| {
        format!("_80._tcp.{}.rancher.internal", ["web.shop", "db.shop", "dns.db", "web.rancher"][service])
    });
    let outside = (0..8u8).prop_map(|number| format!("www{number}.example.org"));
    let names = prop_oneof![labels, within, service, reverse, other_reverse, container, port, outside];
    let names = names.prop_map(|name| name.trim_start_matches('.').to_owned());
    let spelling = prop_oneof![4 => Just(0), 1 => any::<u64>()];
    let kind = (0..TYPES.len()).prop_map(|kind| TYPES[kind]);
    let edns = prop::option::of((prop_oneof![Just(512u16), Just(1232), any::<u16>()], any::<u16>()));
    let options = prop::collection::vec(
        prop_oneof![
            Just(b"\0\x0a\0\x08abcdefgh".to_vec()),
            Just(b"\0\x0a\0\x18abcdefghABCDEFGHabcdefgh".to_vec()),
            Just(b"\0\x03\0\0".to_vec()),
            Just(b"\0\x0b\0\0".to_vec()),
            Just(b"\0\x08\0\x04\0\x01\0\0".to_vec()),
            Just(b"\0\x0a\0\x01a".to_vec()),
        ],
        0..3,
    );
    let options = prop_oneof![Just(Vec::new()), options.prop_map(|options| options.concat())];
    (0..CLIENTS.len(), names, spelling, kind, any::<u16>(), edns, options, 0..1000usize).prop_map(
        |(client, name, spelling, kind, flags, edns, options, turn)| Asked {
            client,
            name,
            spelling,
            kind,
            flags,
            edns,
            options,
            turn,
        },
    )
}

proptest! {
    /// What is written is what hickory reads, records and names in the order of the answer.
    #[test]
    fn responses_are_their_answers(
        containers in prop::collection::vec((0..3usize, 0..4usize, 0..8u8, prop::option::of(0..4usize)), 0..6),
        names in prop::collection::vec((prop::collection::vec(0..LABELS.len(), 1..4), any::<u8>()), 0..12),
        ndots in 0..3usize,
        questions in prop::collection::vec(asked(), 1..40),
    ) {
        let listen = Some(IpAddr::from([169, 254, 169, 251]));
        let settings = Settings { negative_ttl: 2, ndots, listen, ..Settings::default() };
        let reading = source::format::read(&cluster(&containers)).unwrap();
        let zones = [snapshot::build(&reading.snapshot, &settings, 7), answers(&names).zone(&settings, 8)];
        for (zone, asked) in zones.iter().flat_map(|zone| questions.iter().map(move |asked| (zone, asked))) {
            check(zone, CLIENTS[asked.client], &asked.message(), asked.turn);
        }
    }
}

/// The zone has the answers to most questions about its names.
#[test]
fn names_of_the_zone_are_answered() {
    let reading = source::format::read(&cluster(&[(0, 0, 1, None), (1, 1, 2, Some(1))])).unwrap();
    let zone = snapshot::build(&reading.snapshot, &Settings::default(), 7);
    for (client, name, kind, known) in [
        (2, "web.shop.rancher.internal.", RecordType::A, true),
        (2, "web.shop.", RecordType::AAAA, true),
        (2, "web.shop.rancher.internal.", RecordType::MX, true),
        (2, "web-0.rancher.internal.", RecordType::TXT, true),
        (2, "no.rancher.internal.", RecordType::A, true),
        (2, "rancher.internal.", RecordType::NS, true),
        (2, "rancher.internal.", RecordType::SOA, true),
        (0, "example.", RecordType::A, true),
        (2, "1.0.42.10.in-addr.arpa.", RecordType::PTR, true),
        (2, "web.shop.rancher.internal.", RecordType::ANY, true),
        (2, "out.shop.rancher.internal.", RecordType::A, true),
        (2, "_80._tcp.web.shop.rancher.internal.", RecordType::SRV, true),
        (2, "www.example.org.", RecordType::A, false),
    ] {
        let message = crate::testing::message(name, kind);
        assert_eq!(check(&zone, CLIENTS[client], &message, 1), known, "{name} {kind}");
    }
}
