//! Steps are those that the answer takes.

use std::sync::Arc;

use hickory_proto::rr::RecordType;

use super::*;
use crate::answer::answer;
use crate::testing::{ask, message};
use crate::zone::{Settings, Zone, snapshot};

const SHOP: &str = r"
berth: 1
services:
  - {name: web, stack: shop, links: {data/db: database}}
  - {name: db, stack: data}
  - {name: out, stack: data, kind: externalService, hostname: db.data.rancher.internal}
  - {name: far, stack: data, kind: externalService, hostname: www.example.com}
containers:
  - {name: web-1, service: shop/web, primary_ip: 10.42.0.1, dns_search: [shop.rancher.internal]}
  - {name: db-1, service: data/db, primary_ip: 10.42.3.1}
";

fn zone() -> Zone {
    snapshot::build(&source::format::read(SHOP).unwrap().snapshot, &Settings::default(), 1)
}

fn steps(zone: &Zone, client: &str, name: &str, kind: RecordType) -> Vec<Step> {
    let scope = zone.scope(client.parse().unwrap()).map(|scope| &**scope);
    let mut steps = Steps::default();
    answer(zone, scope, Folded::parse(name).unwrap().wire(), kind, &mut steps);
    steps.0
}

fn shown(zone: &Zone, client: &str, name: &str, kind: RecordType) -> Vec<String> {
    let shown = |step: Step| {
        let search = step.search.map(|search| format!(" by {search}")).unwrap_or_default();
        format!("{:?} {}{search}: {:?}", step.section, step.name, step.found)
    };
    steps(zone, client, name, kind).into_iter().map(shown).collect()
}

#[test]
fn every_name_that_is_tried_is_told() {
    let zone = zone();
    assert_eq!(
        shown(&zone, "10.42.0.1", "web.", RecordType::A),
        [
            "Client web.: Nothing",
            "Client web.shop.rancher.internal. by shop.rancher.internal.: Nothing",
            "Client web.rancher.internal. by rancher.internal.: Nothing",
            "Default web.: Nothing",
            "Default web.shop.rancher.internal. by shop.rancher.internal.: Records",
        ]
    );
    assert_eq!(
        shown(&zone, "10.42.0.1", "database.rancher.internal.", RecordType::A),
        ["Client database.rancher.internal.: Records"]
    );
    assert_eq!(
        shown(&zone, "192.0.2.1", "out.data.rancher.internal.", RecordType::A),
        [
            "Default out.data.rancher.internal.: Alias(\"db.data.rancher.internal.\")",
            "Default db.data.rancher.internal.: Records"
        ]
    );
    assert_eq!(
        shown(&zone, "192.0.2.1", "db-1.rancher.internal.", RecordType::MX),
        ["Default db-1.rancher.internal.: OtherTypes"]
    );
}

#[test]
fn steps_end_at_records_when_the_answer_has_some() {
    let zone = zone();
    let names = ["web", "web.shop", "database", "db.data", "out.data", "far.data", "db-1", "no", "rancher-metadata"];
    for name in names {
        for domain in ["", ".rancher.internal", ".example.org"] {
            for client in ["10.42.0.1", "192.0.2.1"] {
                for kind in [RecordType::A, RecordType::AAAA, RecordType::TXT, RecordType::CNAME] {
                    let name = format!("{name}{domain}.");
                    let last = steps(&zone, client, &name, kind).pop().map(|step| step.found);
                    let outcome = ask(&zone, client, &message(&name, kind), 0);
                    let has_records = outcome
                        .as_ref()
                        .is_ok_and(|reply| reply.answers.iter().any(|record| record.record_type() == kind));
                    assert_eq!(last == Some(What::Records), has_records, "{name} {client} {last:?} {outcome:?}");
                }
            }
        }
    }
}

#[test]
fn a_name_that_only_others_search_for_is_told() {
    let mut snapshot = source::format::read(SHOP).unwrap().snapshot;
    for stack in snapshot.stacks.clone().values() {
        snapshot.stacks.insert(Arc::new(stack.known_by_labels()));
    }
    let zone = snapshot::build(&snapshot, &Settings::default(), 1);
    assert_eq!(
        shown(&zone, "192.0.2.1", "web.shop.", RecordType::A),
        ["Default web.shop.: Nothing", "Default web.shop.rancher.internal. by rancher.internal.: FullNameOnly"]
    );
}
