//! Both ways of answering say the same, octet for octet.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::rr::Record;
use hickory_proto::rr::rdata::{A, CNAME, MX, SOA};
use proptest::prelude::*;

use super::*;
use crate::answer::{self, Outcome};
use crate::answer::{Forward, Reply};
use crate::cache::{Cache, Key};
use crate::cookie::Secret;
use crate::forward::{Asking, complete};
use crate::name::Folded;
use crate::wire::{Query, Reading, TCP_ANSWER_MAX};
use crate::zone::answers::DnsAnswers;
use crate::zone::{Settings, snapshot};

const LABELS: [&str; 12] =
    ["web", "shop", "db", "rancher", "internal", "dns", "ns", "hostmaster", "c1", "_80", "_tcp", "example"];

const CLIENTS: [&str; 5] = ["10.42.0.1", "10.42.0.2", "192.0.2.9", "fd00::1", "::ffff:10.42.0.2"];

const TYPES: [u16; 16] = [1, 1, 1, 28, 28, 16, 12, 5, 33, 6, 2, 15, 255, 65, 0, 252];

fn settings(ndots: usize) -> Settings {
    Settings { negative_ttl: 2, ndots, ..Settings::default() }
}

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

const NOW: Duration = Duration::from_secs(7);

/// No answers that were written before.
fn recent() -> Rc<RefCell<Recent>> {
    // One of so many threads that it has room for a few only.
    let mut recent = Recent::new(1000, |_| ());
    recent.serve(1, NOW);
    Rc::new(recent.into())
}

/// What stands around a question in a test.
struct Around {
    turn: usize,
    secret: Secret,
    server: Option<Arc<[u8]>>,
    cache: RefCell<Cache>,
    now: Duration,
    recent: Rc<RefCell<Recent>>,
}

impl Around {
    fn new(turn: usize) -> Self {
        let server = turn.is_multiple_of(2).then(|| b"server one"[..].into());
        Self { turn, secret: Secret::new([7; 16]), server, cache: Cache::new(100).into(), now: NOW, recent: recent() }
    }

    /// Who is asked for the others.
    fn upstreams() -> Arc<[SocketAddr]> {
        Arc::new(["192.0.2.53:53".parse().unwrap()])
    }

    /// Keeps what upstreams said about names outside.
    fn keeping(self, names: &[(String, u8)]) -> Self {
        for (name, number) in names {
            let folded = Folded::parse(name).unwrap();
            let ttl = u32::from(*number);
            let owner = if number % 2 == 0 {
                folded.name()
            } else {
                Name::from_ascii(format!("{name}.").to_uppercase()).unwrap()
            };
            let address = |last| Record::from_rdata(owner.clone(), ttl, RData::A(A::new(192, 0, 2, last)));
            let target = Folded::parse(&format!("Cdn.{name}")).unwrap().name();
            let alias = Record::from_rdata(owner.clone(), ttl, RData::CNAME(CNAME(target.clone())));
            let soa = SOA::new(target.clone(), owner.clone(), 1, 2, 3, 4, 5);
            let proof = Record::from_rdata(owner.clone(), ttl, RData::SOA(soa));
            let ok = Reply { authentic: number % 3 == 0, ..Reply::empty(ResponseCode::NoError) };
            let (kind, reply) = match number % 5 {
                0 => (RecordType::A, Reply { answers: (0..=number / 5).map(address).collect(), ..ok }),
                1 => (
                    RecordType::A,
                    Reply { answers: vec![alias, Record::from_rdata(target, ttl, address(9).data)], ..ok },
                ),
                2 => (RecordType::A, Reply { authority: vec![proof], code: ResponseCode::NXDomain, ..ok }),
                3 => (RecordType::AAAA, Reply { authority: vec![proof], ..ok }),
                _ => {
                    let data = RData::MX(MX::new(10, target));
                    (RecordType::MX, Reply { answers: vec![Record::from_rdata(owner.clone(), ttl, data)], ..ok })
                }
            };
            for dnssec_ok in [false, true] {
                let key = Key {
                    name: folded.clone(),
                    kind,
                    upstreams: Self::upstreams(),
                    dnssec_ok,
                    checking_disabled: false,
                };
                let lifetime = Duration::from_secs(ttl.into());
                self.cache.borrow_mut().insert(&Arc::new(key), Arc::new(reply.clone()), lifetime, 0, Duration::ZERO);
            }
        }
        self
    }

    /// What the general way makes of a question for upstreams, when they said something before.
    fn known(&self, query: &Query, forward: &Forward) -> Option<Reply> {
        let asking = Asking::of(query);
        let (dnssec_ok, checking_disabled) = (asking.dnssec_ok, asking.checking_disabled);
        let (name, kind) = (forward.question.folded.clone(), forward.question.kind);
        let key = Key { name, kind, upstreams: Self::upstreams(), dnssec_ok, checking_disabled };
        let reply = self.cache.borrow_mut().get(&Arc::new(key), self.now).filter(|_| asking.recursion_desired)?;
        Some(complete(forward, reply))
    }
}

impl Surroundings for Around {
    fn turn(&self) -> usize {
        self.turn
    }

    fn cookie(&self, client_part: [u8; CLIENT_OCTETS], client: IpAddr) -> Cookie {
        self.secret.cookie(client_part, client, 1_000_000)
    }

    fn server(&self) -> Option<&[u8]> {
        self.server.as_deref()
    }

    fn kept(&self, wanted: &Wanted<'_>, room: &mut [u8]) -> Option<Kept> {
        let upstreams = Self::upstreams();
        self.cache.borrow_mut().write(&Wanted { upstreams: &upstreams, ..*wanted }, self.now, room)
    }
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

/// What the general way makes of a message.
fn general(zone: &Zone, client: IpAddr, message: &[u8], around: &Around) -> Option<(Box<Query>, Reply)> {
    let Reading::Query(mut query) = Query::read(message) else { return None };
    let client_part = query.wishes.edns.and_then(|edns| edns.client_cookie);
    query.cookie = client_part.map(|part| around.cookie(part, client));
    query.server.clone_from(&around.server);
    match answer::answer(zone, client, &query.question, around.turn) {
        Outcome::Reply(reply) => Some((query, reply)),
        Outcome::Forward(forward) => {
            let reply = around.known(&query, &forward)?;
            Some((query, reply))
        }
        Outcome::Drop => None,
    }
}

/// Asks in both ways; returns whether the short one knew the answer.
fn compare(zone: &Zone, asked: &Asked, around: &Around) -> bool {
    let client: IpAddr = CLIENTS[asked.client].parse().unwrap();
    let message = asked.message();
    let general = general(zone, client, &message, around);
    let mut known = false;
    for limit in [Limit::Datagram, Limit::Room] {
        // What stood there before is of no importance.
        let mut room = vec![0xaa; 1232];
        let direct = answer(
            zone,
            Asker::at(client, zone),
            &message,
            around,
            Some(&mut around.recent.borrow_mut()),
            &mut room,
            limit,
        );
        let Some(written) = direct else { continue };
        known = true;
        let (query, reply) = general.as_ref().unwrap_or_else(|| panic!("{asked:?} is no question for us"));
        let longest = if limit == Limit::Datagram { query.wishes.udp_answer_max() } else { TCP_ANSWER_MAX };
        let expected = query.write(reply, longest);
        assert_eq!(room[..written.octets], expected, "{asked:?} {limit:?}");
        assert_eq!(written.code, reply.code, "{asked:?}");
        assert_eq!(written.by == By::Zone, reply.authoritative, "{asked:?}");
    }
    known
}

proptest! {
    #[test]
    fn both_ways_give_the_same_octets(
        containers in prop::collection::vec((0..3usize, 0..4usize, 0..8u8, prop::option::of(0..4usize)), 0..6),
        names in prop::collection::vec((prop::collection::vec(0..LABELS.len(), 1..4), any::<u8>()), 0..12),
        kept in prop::collection::vec((0..8u8, any::<u8>()), 0..20),
        ndots in 0..3usize,
        questions in prop::collection::vec(asked(), 1..40),
    ) {
        let settings = settings(ndots);
        let reading = source::format::read(&cluster(&containers)).unwrap();
        let zones = [snapshot::build(&reading.snapshot, &settings, 7), answers(&names).zone(&settings, 8)];
        let recent = recent();
        for (zone, view) in zones.iter().zip(1..) {
            recent.borrow_mut().serve(view, NOW);
            for question in &questions {
                let kept: Vec<_> =
                    kept.iter().map(|(name, number)| (format!("www{name}.example.org"), *number)).collect();
                let around = Around { recent: recent.clone(), ..Around::new(question.turn) };
                // What was written just now must not be what others are told.
                compare(zone, question, &around.keeping(&kept));
            }
        }
    }

    /// Whatever arrives, what is written is what the general way writes.
    #[test]
    fn spoilt_questions_are_left_alone_or_answered_alike(
        asked in asked(),
        changes in prop::collection::vec((2..60usize, any::<u8>()), 0..3),
        cut in 0..80usize,
    ) {
        let reading = source::format::read(&cluster(&[(0, 0, 1, None), (1, 1, 2, Some(1))])).unwrap();
        let zone = snapshot::build(&reading.snapshot, &settings(0), 7);
        let mut message = asked.message();
        for (at, octet) in changes {
            if let Some(place) = message.get_mut(at) {
                *place = octet;
            }
        }
        message.truncate(message.len().min(cut + 12));
        let client = CLIENTS[asked.client].parse().unwrap();
        let mut room = [0; 1232];
        let around = Around::new(asked.turn);
        if let Some(written) = answer(&zone, Asker::at(client, &zone), &message, &around, Some(&mut around.recent.borrow_mut()), &mut room, Limit::Datagram) {
            let Some((query, reply)) = general(&zone, client, &message, &around) else { panic!("{message:02x?}") };
            prop_assert_eq!(&room[..written.octets], query.write(&reply, query.wishes.udp_answer_max()));
        }
    }
}

#[test]
fn usual_questions_take_the_short_way() {
    let reading = source::format::read(&cluster(&[(0, 0, 1, None), (1, 1, 2, Some(1))])).unwrap();
    let zone = snapshot::build(&reading.snapshot, &settings(0), 7);
    for (client, name, kind, short) in [
        (2, "web.shop.rancher.internal", 1, true),
        (2, "web.shop", 1, true),
        (2, "web.shop", 28, true),
        (2, "web.shop.rancher.internal", 15, true),
        (2, "web-0.rancher.internal", 16, true),
        (2, "no.rancher.internal", 1, true),
        (2, "no.dns.rancher.internal", 28, true),
        (2, "shop.rancher.internal", 1, true),
        (2, "rancher.internal", 1, true),
        (0, "example", 1, true),
        (1, "example.shop", 28, true),
        (4, "web", 1, true),
        (2, "1.0.42.10.in-addr.arpa", 12, true),
        (2, "web.shop.rancher.internal", 255, false),
        (2, "out.shop.rancher.internal", 1, true),
        (2, "out.shop.rancher.internal", 5, true),
        (2, "_80._tcp.web.shop.rancher.internal", 33, true),
        (2, "rancher.internal", 6, false),
        (2, "www.example.org", 1, false),
    ] {
        for spelling in [0, u64::MAX] {
            for (edns, options) in
                [(None, &b""[..]), (Some((1232, 0x8000)), b""), (Some((1232, 0)), b"\0\x0a\0\x08abcdefgh")]
            {
                let (name, options) = (name.to_owned(), options.to_vec());
                let asked = Asked { client, name, spelling, kind, flags: 0x0110, edns, options, turn: 1 };
                assert_eq!(compare(&zone, &asked, &Around::new(1)), short, "{asked:?}");
            }
        }
    }
}

#[test]
fn what_upstreams_said_takes_the_short_way() {
    let zone = snapshot::build(&source::format::read(&cluster(&[])).unwrap().snapshot, &settings(0), 7);
    let kept: Vec<_> = (0..5u8).map(|number| (format!("www{number}.example.org"), 50 + number)).collect();
    let around = Around::new(1).keeping(&kept);
    for (name, kind, spelling, short) in [
        ("www0.example.org", 1, 0, true),
        ("www1.example.org", 1, 0, true),
        ("www2.example.org", 1, 0, true),
        ("www3.example.org", 28, 0, true),
        ("www4.example.org", 15, 0, true),
        ("www4.example.org", 1, 0, false),
        ("www0.example.org", 1, u64::MAX, false),
        ("www9.example.org", 1, 0, false),
    ] {
        for edns in [None, Some((1232, 0x8000)), Some((512, 0))] {
            let options = Vec::new();
            let asked =
                Asked { client: 2, name: name.to_owned(), spelling, kind, flags: 0x0100, edns, options, turn: 1 };
            assert_eq!(compare(&zone, &asked, &around), short, "{asked:?}");
        }
    }
    // Without asking for recursion nothing is told that others said.
    let options = Vec::new();
    let name = "www0.example.org".to_owned();
    let asked = Asked { client: 2, name, spelling: 0, kind: 1, flags: 0, edns: None, options, turn: 1 };
    assert!(!compare(&zone, &asked, &around));
}

/// What an alias leads to depends on the names that the client has of its own: what one was told is not for the others.
#[test]
fn an_answer_behind_an_alias_is_not_given_to_other_clients() {
    let text = cluster(&[(0, 0, 1, None), (1, 1, 2, None), (2, 2, 3, None)]);
    let zone = snapshot::build(&source::format::read(&text).unwrap().snapshot, &settings(0), 7);
    let around = Around::new(1);
    around.recent.borrow_mut().serve(1, NOW);
    for name in ["mail.shop.rancher.internal", "mine.shop.rancher.internal", "far.shop.rancher.internal"] {
        // Everybody asks twice; the second time may be answered from memory.
        for client in [0, 1, 2, 1, 0, 2] {
            let (name, options) = (name.to_owned(), Vec::new());
            compare(
                &zone,
                &Asked { client, name, spelling: 0, kind: 1, flags: 0x0100, edns: None, options, turn: 1 },
                &around,
            );
        }
    }
}
