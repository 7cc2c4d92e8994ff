//! Which container a client is, and what it is shown therefore.

use super::*;

#[test]
fn clients_are_known_by_their_address() {
    let tree = tree(SHOP);
    for (from, target, expected) in [
        ("-", "/latest/self", "host/\n"),
        ("-", "/2015-07-25/self/host", r#"{"name":"Host1","uuid":"h1"}"#),
        ("10.42.0.1", "/latest/self", "container/\nhost/\nservice/\nstack/\n"),
        ("::ffff:10.42.0.1", "/latest/self/container/name", "web-1"),
        ("10.42.0.1", "/2015-12-19/self/host/hostId", "7"),
        ("10.42.0.1", "/latest/self/host/hostId", "404 Not found"),
        ("10.42.0.1", "/latest/self/stack/name", "shop"),
        ("10.42.0.1", "/2015-07-25/self/service/containers", "0\n1\n"),
        ("fd00::2", "/latest/self/service/name", "web"),
        ("10.42.0.9", "/latest/self", "container/\n"),
        ("10.0.0.2", "/latest/self", "container/\nhost/\n"),
        ("10.42.0.1", "/latest/name", "prod"),
        ("10.43.0.1", "/latest/self/container/name", "404 Not found"),
    ] {
        check(&tree, from, target, expected);
    }
}

#[test]
fn clients_named_by_a_proxy_are_taken_at_its_word() {
    let tree = tree(SHOP);
    for (name, expected) in [("10.42.0.1", 200), ("default", 404), ("10.42.0.1, 10.0.0.1", 404), ("", 404)] {
        assert_eq!(ask(&tree, Client::named(name), "/latest/self/container", Format::Text).status, expected, "{name}");
    }
}

#[test]
fn tokens_are_for_the_containers_of_their_service() {
    let tree = tree(SHOP);
    for (from, target, recorded, own) in [
        ("10.42.0.1", "/latest/self/service/token", "tok-web", "tok-web"),
        ("fd00::2", "/latest/self/service/token", "tok-web", "tok-web"),
        ("10.42.0.1", "/latest/services/web/token", "", ""),
        ("10.42.0.1", "/latest/services/log/token", "tok-web", ""),
        ("10.42.0.9", "/latest/services/log/token", "", ""),
        ("-", "/2015-12-19/stacks/Shop/services/Log/token", "", ""),
        ("-", "/latest/services/empty/token", "tok-empty", ""),
    ] {
        for (tokens, expected) in [(ServiceTokens::Recorded, recorded), (ServiceTokens::Own, own)] {
            let answer = ask(&tree, Client { tokens, ..client(from) }, target, Format::Text);
            assert_eq!((answer.status, &*answer.body), (200, expected), "{from} {target} {tokens:?}");
        }
    }
}

/// Every engine's own bridge has the same addresses; the older container is on the other host.
#[test]
fn another_hosts_container_with_the_same_address_is_not_the_client() {
    let container = |uuid: &str, host: &str, address: &str, index: u8| {
        format!(
            r#"{{"metadata_kind":"container","uuid":"{uuid}","name":"{uuid}","primary_ip":"{address}","host_uuid":"{host}",
                "state":"running","create_index":{index},"routed_ips":[]}}"#
        )
    };
    let cluster = |local: &str| {
        format!(
            r#"[{{"metadata_kind":"host","uuid":"h1","name":"one"}},{{"metadata_kind":"host","uuid":"h2","name":"two"}},
                {{"metadata_kind":"service","uuid":"s","name":"s","token":"secret"}},
                {{"metadata_kind":"serviceContainerLink","service_uuid":"s","service_name":"s","container_uuid":"old"}},
                {},{},{},{{"metadata_kind":"defaultData","version":"1","self":{{"host":{{"uuid":"{local}"}}}}}}]"#,
            container("old", "h1", "172.17.0.2", 1),
            container("young", "h2", "172.17.0.2", 2),
            container("alone", "h1", "172.17.0.3", 3),
        )
    };
    let mut tree = Tree::empty();
    for (local, name, token, alone) in
        [("h1", "old", "secret", "alone"), ("h2", "young", "404 Not found", "404 Not found")]
    {
        // The one follows from the other, too: the host that a snapshot is made for may get another name.
        tree = tree.next(&snapshot(&cluster(local))).unwrap();
        check(&tree, "172.17.0.2", "/latest/self/container/name", name);
        check(&tree, "172.17.0.2", "/latest/self/service/token", token);
        check(&tree, "172.17.0.3", "/latest/self/container/name", alone);
        check(&tree, "-", "/latest/containers/old/routed_ips", "404 Not found");
    }
    assert!(!ask(&tree, client("-"), "/latest/containers", Format::Json).body.contains("routed_ips"));
}

#[test]
fn no_container_of_another_host_stands_in_for_one_of_this_host() {
    let container = |host: &str, index: u8| {
        format!(
            r#"{{"metadata_kind":"container","uuid":"{host}-db","name":"shop-db-1","host_uuid":"{host}","create_index":{index}}},
               {{"metadata_kind":"serviceContainerLink","service_uuid":"s","service_name":"db","container_uuid":"{host}-db"}}"#
        )
    };
    let cluster = |local: &str| {
        format!(
            r#"[{{"metadata_kind":"host","uuid":"h1","name":"one"}},{{"metadata_kind":"host","uuid":"h2","name":"two"}},
                {{"metadata_kind":"host","uuid":"h3","name":"three"}},
                {{"metadata_kind":"service","uuid":"s","name":"db","stack_name":"shop"}},
                {},{},{{"metadata_kind":"defaultData","version":"1","self":{{"host":{{"uuid":"{local}"}}}}}}]"#,
            container("h1", 1),
            container("h2", 2),
        )
    };
    // On a host that has none of this name it is the first one's, as with the predecessor.
    for (local, host) in [("h1", "h1"), ("h2", "h2"), ("h3", "h1")] {
        let tree = tree(&cluster(local));
        check(&tree, "-", "/latest/containers/shop-db-1/host_uuid", host);
        check(&tree, "-", "/latest/services/db/containers/shop-db-1/host_uuid", host);
    }
}

#[test]
fn the_best_claim_to_a_shared_address_wins() {
    let container = |uuid: &str, more: &str| {
        format!(r#"{{"metadata_kind":"container","uuid":"{uuid}","name":"{uuid}","primary_ip":"10.0.0.1"{more}}}"#)
    };
    let ranked = [
        container("e", r#","state":"running","create_index":9"#),
        container("a", r#","state":"running","create_index":1"#),
        container("b", r#","state":"running","create_index":2"#),
        container("c", r#","state":"running","system":true"#),
        container("d", r#","state":"running","network_from_container_uuid":"x""#),
        container("f", r#","state":"stopped""#),
    ];
    let service = r#"{"metadata_kind":"service","uuid":"s","name":"s"},
        {"metadata_kind":"serviceContainerLink","service_uuid":"s","service_name":"s","container_uuid":"e"}"#;
    for first in 0..ranked.len() {
        let mut containers = ranked[first..].to_vec();
        containers.reverse();
        let tree = tree(&format!("[{service},{}]", containers.join(",")));
        let expected = ["e", "a", "b", "c", "d", "f"][first];
        check(&tree, "10.0.0.1", "/latest/self/container/uuid", expected);
    }
    // Behind a proxy the container of no service wins.
    let tree = tree(&format!("[{service},{}]", ranked.join(",")));
    let proxied = Client { proxied: true, ..client("10.0.0.1") };
    assert_eq!(ask(&tree, proxied, "/latest/self/container/uuid", Format::Text).body, "a");
}
