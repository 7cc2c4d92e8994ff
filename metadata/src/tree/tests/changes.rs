//! Versions of content, requests that wait for another value, and trees made of the tree before.

use proptest::prelude::*;

use super::*;
use crate::query::Wait;

#[test]
fn nothing_is_known_before_the_first_data() {
    let tree = Tree::empty();
    for (target, expected) in [
        ("/", "latest\n"),
        ("/latest", "404 Not found"),
        ("/latest/self/container", "404 Not found"),
        ("/2016-07-29", "404 Invalid version"),
        ("/favicon.ico", "404 404 page not found"),
    ] {
        check(&tree, "-", target, expected);
    }
    assert!(tree.is_empty() && tree.version().is_empty());
}

#[test]
fn equal_content_has_an_equal_version_and_is_no_news() {
    let tree = tree(SHOP);
    assert_eq!(tree.version(), snapshot(SHOP).fingerprint().to_string());
    check(&tree, "-", "/2015-07-25/version", tree.version());
    assert!(tree.next(&snapshot(SHOP)).is_none());
    let mut other = objects(SHOP);
    other.pop();
    let other = Arc::new(model::objects::read(other).0);
    assert_ne!(tree.next(&other).unwrap().version(), tree.version());
    // No data at all are data too.
    assert!(Tree::empty().next(&Arc::default()).is_some());
}

#[test]
fn waiting_compares_the_plain_value() {
    let tree = tree(SHOP);
    let ask = |target: &str, format| match Outcome::of(
        &tree,
        Method::Read,
        target.as_bytes(),
        client("-"),
        Wanted { format, page: false },
    ) {
        Outcome::Answer(answer) => answer.body,
        Outcome::Show(question) => shown(&tree, &question).body,
        Outcome::Wait(question, Wait { known, .. }) => {
            if question.differs(&tree, &known) {
                shown(&tree, &question).body
            } else {
                "waits".to_owned()
            }
        }
        Outcome::Hold(_) | Outcome::Changes(_) | Outcome::Balancer(_) => panic!("{target} is answered otherwise"),
    };
    for (target, expected) in [
        ("/latest/name?wait=true&value=prod", "waits"),
        ("/latest/name?wait=true&value=other", "prod"),
        ("/latest/NAME/?wait=true&value=prod", "waits"),
        ("/latest/nokey?wait=true&value=x", "waits"),
        ("/latest/region_name?wait=true&value=%3Cnil%3E", "waits"),
        ("/latest/region_name?wait=true&value=", ""),
        ("/latest/services/empty/sidekicks?wait=true&value=%5B%5D", "waits"),
        ("/latest/services/web/sidekicks?wait=true&value=%5Blog%5D", "waits"),
        ("/latest/services/web/links?wait=true&value=map%5Bdata/db:DB%5D", "waits"),
        ("/2014-01-01/name?wait=true", "Invalid version\n"),
        ("/latest/name?wait=true&value=a%26b", "prod"),
    ] {
        assert_eq!(ask(target, Format::Text), expected, "{target}");
    }
    assert_eq!(ask("/latest/name?wait=true&value=%22prod%22", Format::Json), "\"prod\"");
    assert_eq!(ask("/latest/name?wait=true&value=prod", Format::Json), "waits");
}

/// A cluster of a few names, so that changes meet each other.
fn any_cluster() -> impl Strategy<Value = Vec<Map>> {
    let small = || 0..4u8;
    let container = (0..12u8, small(), small(), 0..3i64, any::<bool>()).prop_map(|(uuid, name, ip, index, runs)| {
        serde_json::json!({"metadata_kind":"container","uuid":format!("c{uuid}"),"name":format!("Name-{name}"),
            "primary_ip":format!("10.0.0.{ip}"),"create_index":index,"host_uuid":format!("h{}", uuid % 2),
            "state": if runs {"running"} else {"stopped"}, "ports":[]})
    });
    let service = (small(), small(), small()).prop_map(|(uuid, name, stack)| {
        serde_json::json!({"metadata_kind":"service","uuid":format!("s{uuid}"),"name":format!("Name-{name}"),
            "stack_uuid":format!("st{}", stack % 2),"token":format!("tok-{uuid}"),"sidekicks":["X"]})
    });
    let link = (small(), small(), 0..12u8).prop_map(|(uuid, name, container)| {
        serde_json::json!({"metadata_kind":"serviceContainerLink","service_uuid":format!("s{uuid}"),
            "service_name":format!("Name-{name}"),"container_uuid":format!("c{container}")})
    });
    let stack = (small(), small()).prop_map(|(uuid, name)| {
        serde_json::json!({"metadata_kind":"stack","uuid":format!("st{uuid}"),"name":format!("N{name}")})
    });
    let host = (small(), small()).prop_map(
        |(uuid, name)| serde_json::json!({"metadata_kind":"host","uuid":format!("h{uuid}"),"name":format!("N{name}")}),
    );
    let network = (small(), small()).prop_map(|(uuid, name)| {
        serde_json::json!({"metadata_kind":"network","uuid":format!("n{uuid}"),"name":format!("N{name}")})
    });
    let own =
        small().prop_map(|version| serde_json::json!({"metadata_kind":"defaultData","version":version.to_string()}));
    let object = prop_oneof![6 => container, 3 => service, 4 => link, 1 => stack, 1 => host, 1 => network, 1 => own];
    let map = |object: serde_json::Value| -> Map { serde_json::from_value(object).unwrap() };
    prop::collection::vec(object.prop_map(map), 0..40)
}

/// Everything that these clients can see.
fn all(tree: &Tree) -> Vec<String> {
    let mut seen = Vec::new();
    for from in ["-", "10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3"] {
        for version in ["2015-07-25", "latest"] {
            seen.push(ask(tree, client(from), &format!("/{version}"), Format::Json).body);
            for step in [
                "containers/name-1/uuid",
                "containers/c3/name",
                "services/Name-2/uuid",
                "services/s1/name",
                "stacks/n1/uuid",
                "hosts/N2/uuid",
            ] {
                seen.push(ask(tree, client(from), &format!("/{version}/{step}"), Format::Text).body);
            }
        }
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn following_changes_gives_what_building_anew_gives(
        clusters in prop::collection::vec(any_cluster(), 1..5),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any_cluster()), 0..6),
    ) {
        let mut tree = Tree::empty();
        let mut last = Arc::new(Snapshot::default());
        let mut objects = Vec::new();
        // Whole new clusters, then clusters in which a few things changed.
        let steps = clusters.into_iter().map(|cluster| (None, cluster)).chain(edits.into_iter().map(|(at, few)| (Some(at), few)));
        for (at, cluster) in steps {
            match at {
                None => objects = cluster,
                Some(at) => {
                    let start = at.index(objects.len() + 1);
                    objects.truncate(objects.len().max(start));
                    objects.splice(start..objects.len().min(start + 2), cluster.into_iter().take(3));
                }
            }
            let snapshot = Arc::new(model::objects::read(objects.clone()).0.succeeding(&last));
            if let Some(next) = tree.next(&snapshot) {
                tree = next;
            }
            last = snapshot.clone();
            let rebuilt = Tree::empty().next(&snapshot).unwrap();
            prop_assert_eq!(tree.version(), rebuilt.version());
            prop_assert_eq!(all(&tree), all(&rebuilt));
        }
    }
}
