//! Both ways of answering say the same, octet for octet.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use crate::answer::{self, Outcome};
use crate::config::WhenNoneHealthy;
use crate::name::Folded;
use crate::wire::{Query, Reading, TCP_ANSWER_MAX};
use crate::zone::answers::DnsAnswers;
use crate::zone::{Settings, snapshot};

const LABELS: [&str; 12] =
    ["web", "shop", "db", "rancher", "internal", "dns", "ns", "hostmaster", "c1", "_80", "_tcp", "example"];

const CLIENTS: [&str; 5] = ["10.42.0.1", "10.42.0.2", "192.0.2.9", "fd00::1", "::ffff:10.42.0.2"];

const TYPES: [u16; 16] = [1, 1, 1, 28, 28, 16, 12, 5, 33, 6, 2, 15, 255, 65, 0, 252];

fn settings(ndots: usize) -> Settings {
    Settings {
        domain: Folded::parse("rancher.internal").unwrap(),
        ttl: 1,
        negative_ttl: 2,
        ndots,
        when_none_healthy: WhenNoneHealthy::Last,
        rancher_metadata: vec!["169.254.169.250".parse().unwrap()],
        never_recurse_to: Vec::new(),
        listen: None,
    }
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
    text.push_str(
        "  - {name: out, stack: shop, kind: externalService, hostname: db.shop.rancher.internal}\ncontainers:\n",
    );
    for (index, (label, service, address, search)) in containers.iter().enumerate() {
        let service = ["shop/web", "shop/db", "db/dns", "rancher/web"][*service];
        let search = search.map(|label| format!(", dns_search: [{}.rancher.internal]", LABELS[label]));
        let search = search.unwrap_or_default();
        writeln!(
            text,
            "  - {{name: {}-{index}, service: {service}, primary_ip: 10.42.0.{address}, ips: ['fd00::{address}']{search}}}",
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
            octets.extend([41, size, 0, flags, 0].into_iter().flat_map(u16::to_be_bytes));
        }
        octets
    }
}

fn asked() -> impl Strategy<Value = Asked> {
    let labels = prop::collection::vec(0..LABELS.len(), 0..5).prop_map(|labels| name(&labels));
    let within =
        prop::collection::vec(0..LABELS.len(), 0..3).prop_map(|labels| format!("{}.rancher.internal", name(&labels)));
    let service = ((0..4usize), any::<bool>()).prop_map(|(service, long)| {
        let service = ["web.shop", "db.shop", "dns.db", "out.shop"][service];
        if long { format!("{service}.rancher.internal") } else { service.to_owned() }
    });
    let reverse = (0..8u8).prop_map(|last| format!("{last}.0.42.10.in-addr.arpa"));
    let other_reverse = (0..255u8).prop_map(|last| format!("{last}.0.0.10.in-addr.arpa"));
    let container =
        (0..3usize, 0..6u8).prop_map(|(label, index)| format!("{}-{index}.rancher.internal", LABELS[label]));
    let names = prop_oneof![labels, within, service, reverse, other_reverse, container];
    let names = names.prop_map(|name| name.trim_start_matches('.').to_owned());
    let spelling = prop_oneof![4 => Just(0), 1 => any::<u64>()];
    let kind = (0..TYPES.len()).prop_map(|kind| TYPES[kind]);
    let edns = prop::option::of((prop_oneof![Just(512u16), Just(1232), any::<u16>()], any::<u16>()));
    (0..CLIENTS.len(), names, spelling, kind, any::<u16>(), edns, 0..1000usize).prop_map(
        |(client, name, spelling, kind, flags, edns, turn)| Asked { client, name, spelling, kind, flags, edns, turn },
    )
}

/// Asks in both ways; returns whether the short one knew the answer.
fn compare(zone: &Zone, asked: &Asked) -> bool {
    let client: IpAddr = CLIENTS[asked.client].parse().unwrap();
    let message = asked.message();
    let general = match Query::read(&message) {
        Reading::Query(query) => match answer::answer(zone, client, &query.question, asked.turn) {
            Outcome::Reply(reply) => Some((query, reply)),
            Outcome::Forward(_) | Outcome::Drop => None,
        },
        Reading::Refuse(..) | Reading::Ignore => None,
    };
    let mut known = false;
    for limit in [Limit::Datagram, Limit::Room] {
        // What stood there before is of no importance.
        let mut room = vec![0xaa; 1232];
        let direct = answer(zone, client, &message, || asked.turn, &mut room, limit);
        let Some(written) = direct else { continue };
        known = true;
        let (query, reply) = general.as_ref().unwrap_or_else(|| panic!("{asked:?} is no question for us"));
        let longest = if limit == Limit::Datagram { query.udp_answer_max() } else { TCP_ANSWER_MAX };
        let expected = query.write(reply, longest);
        assert_eq!(room[..written.octets], expected, "{asked:?} {limit:?}");
        assert_eq!(written.code, reply.code, "{asked:?}");
    }
    known
}

proptest! {
    #[test]
    fn both_ways_give_the_same_octets(
        containers in prop::collection::vec((0..3usize, 0..4usize, 0..8u8, prop::option::of(0..4usize)), 0..6),
        names in prop::collection::vec((prop::collection::vec(0..LABELS.len(), 1..4), any::<u8>()), 0..12),
        ndots in 0..3usize,
        questions in prop::collection::vec(asked(), 1..40),
    ) {
        let settings = settings(ndots);
        let reading = source::format::read(&cluster(&containers)).unwrap();
        let zones = [snapshot::build(&reading.snapshot, &settings, 7), answers(&names).zone(&settings, 8)];
        for zone in &zones {
            for question in &questions {
                compare(zone, question);
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
        if let Some(written) = answer(&zone, client, &message, || asked.turn, &mut room, Limit::Datagram) {
            let Reading::Query(query) = Query::read(&message) else { panic!("{message:02x?}") };
            let outcome = answer::answer(&zone, client, &query.question, asked.turn);
            let Outcome::Reply(reply) = outcome else { panic!("{outcome:?}") };
            prop_assert_eq!(&room[..written.octets], query.write(&reply, query.udp_answer_max()));
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
        (2, "out.shop.rancher.internal", 1, false),
        (2, "_80._tcp.web.shop.rancher.internal", 33, false),
        (2, "rancher.internal", 6, false),
        (2, "www.example.org", 1, false),
    ] {
        for spelling in [0, u64::MAX] {
            for edns in [None, Some((1232, 0x8000))] {
                let asked = Asked { client, name: name.to_owned(), spelling, kind, flags: 0x0110, edns, turn: 1 };
                assert_eq!(compare(&zone, &asked), short, "{asked:?}");
            }
        }
    }
}
