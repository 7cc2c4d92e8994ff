//! The seeds of the fuzzers lead to what they are for.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use dns::fuzzing::{Read, judged, read};

fn seed(target: &str, name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/seeds");
    std::fs::read(format!("{folder}/{target}/{name}")).unwrap()
}

#[test]
fn messages_are_queries_and_others() {
    for (name, code) in
        [("a", None), ("srv", None), ("cookie", None), ("record", None), ("badvers", Some(16)), ("notify", Some(4))]
    {
        match (read(&seed("message", name)), code) {
            (Read::Query { .. }, None) => {}
            (Read::Refused(_, found), Some(code)) => assert_eq!(found, code, "{name}"),
            (read, _) => panic!("{name}: {read:?}"),
        }
    }
}

#[test]
fn replies_are_believed_in_part() {
    for (name, kind, records, lifetime) in [
        ("a", 1, 2, 60),
        ("alias", 1, 2, 60),
        ("nxdomain", 28, 1, 5),
        ("mx", 15, 1, 0),
        ("referral", 1, 0, 0),
        ("loop", 1, 2, 5),
    ] {
        let believed = judged(&seed("upstream", name)[1..], kind, false);
        let found = believed.map_or((0, 0), |believed| (believed.records.len(), believed.lifetime));
        assert_eq!(found, (records, lifetime), "{name}");
    }
}
