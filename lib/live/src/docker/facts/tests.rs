use super::*;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

/// The facts of an inspection: a running container `web` with these parts besides.
fn facts(more: Json) -> Facts {
    let mut response = json!({
        "Id": "f".repeat(64), "Name": "/web", "Created": "2026-11-20T18:00:00.000001Z", "State": {"Status": "running"},
    });
    merge(&mut response, more);
    Facts::of("x", &serde_json::from_value(response).unwrap(), &Baked::nothing()).unwrap()
}

fn merge(into: &mut Json, more: Json) {
    match (into, more) {
        (Json::Object(into), Json::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Json::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

fn defects_of(facts: &Facts) -> Vec<String> {
    facts.defects.iter().map(ToString::to_string).collect()
}

#[test]
fn a_container_is_known_by_its_id() {
    let (one, two) = (facts(json!({})), facts(json!({"Id": "e".repeat(64)})));
    assert_eq!((&*one.name, one.id.len(), one.created, one.start_count), ("web", 64, 1_795_197_600_000_001, 1));
    assert_eq!(one.uuid, facts(json!({"Name": "/other"})).uuid);
    assert_ne!(one.uuid, two.uuid);
    assert_eq!(facts(json!({"RestartCount": 3})).start_count, 4);
    let nameless =
        Facts::of("x", &serde_json::from_value(json!({"Name": "/"})).unwrap(), &Baked::nothing()).unwrap_err();
    assert_eq!(nameless.to_string(), "containers/x: the engine states no name of it (left out)");
}

#[test]
fn states_and_health_get_the_words_of_documents() {
    for (state, expected) in [
        (json!({"Status": "created"}), ("creating", None)),
        (json!({"Status": "running"}), ("running", None)),
        (json!({"Status": "paused"}), ("stopping", None)),
        (json!({"Status": "restarting", "Health": {"Status": "healthy"}}), ("restarting", None)),
        (json!({"Status": "exited", "Health": {"Status": "unhealthy"}}), ("stopped", None)),
        (json!({"Status": "dead"}), ("error", None)),
        (json!({"Status": "removing"}), ("removing", None)),
        (json!({"Status": null, "Running": true}), ("running", None)),
        (json!({"Status": "", "Running": false}), ("stopped", None)),
        (json!({"Health": {"Status": "starting"}}), ("running", Some("initializing"))),
        (json!({"Health": {"Status": "healthy"}}), ("running", Some("healthy"))),
        (json!({"Health": {"Status": "unhealthy"}}), ("running", Some("unhealthy"))),
        (json!({"Health": {"Status": "none"}}), ("running", None)),
    ] {
        let found = facts(json!({"State": state}));
        assert_eq!((found.state, found.health), expected, "{state}");
    }
    assert_eq!(facts(json!({"State": {"Status": "created"}})).start_count, 0);
}

#[test]
fn a_healthcheck_that_fails_says_how_often_and_what_it_wrote() {
    let probe = |health: serde_json::Value| {
        facts(json!({"State": {"Status": "running", "Health": health}}))
            .failing
            .map(|failing| (failing.reason(), failing.output.to_string()))
    };
    let log = |code: i64, output: &str| json!([{"ExitCode": 0, "Output": "ok"}, {"ExitCode": code, "Output": output}]);
    for (health, reason, output) in [
        (
            json!({"Status": "unhealthy", "FailingStreak": 3, "Log": log(1, "no\u{1b}[31m database\nat all\n")}),
            "its HEALTHCHECK fails: exit code 1, 3 times in a row",
            "no[31m database\nat all",
        ),
        // Only an end in time has a code.
        (
            json!({"Status": "unhealthy", "FailingStreak": 1, "Log": log(-1, "")}),
            "its HEALTHCHECK fails: no end in time",
            "",
        ),
        (json!({"Status": "unhealthy"}), "its HEALTHCHECK fails", ""),
        (json!({"Status": "unhealthy", "FailingStreak": -7, "Log": []}), "its HEALTHCHECK fails", ""),
    ] {
        assert_eq!(probe(health.clone()), Some((reason.to_owned(), output.to_owned())), "{health}");
    }
    let much = probe(json!({"Status": "unhealthy", "Log": log(1, &"ä".repeat(500))})).unwrap().1;
    assert!(much.len() <= 256 && much.chars().all(|letter| letter == 'ä'), "{much}");
    // One that does not count has nothing to say: before its retries are used up, or of a container that ended.
    assert_eq!(probe(json!({"Status": "healthy", "FailingStreak": 2, "Log": log(1, "not yet")})), None);
}

#[test]
fn the_network_of_the_default_route_is_the_main_one() {
    let found = facts(json!({"NetworkSettings": {"Networks": {
        "bridge": {"IPAddress": "172.17.0.2", "Gateway": "172.17.0.1", "MacAddress": "02:42:ac:11:00:02"},
        "app": {"IPAddress": "172.20.0.2", "Gateway": "172.20.0.1", "GlobalIPv6Address": "2001:db8::2"},
        "aaa": {"IPAddress": "172.21.0.2", "Gateway": ""},
        "vip": {"IPAddress": "172.22.0.2", "Gateway": "172.22.0.1", "GwPriority": 5},
        "off": {"IPAddress": "", "GlobalIPv6Address": ""},
        "bad": {"IPAddress": "172.23.0.999"},
        "two": {"IPAddress": "172.24.0.2", "Gateway": "172.24.0.1", "IPv6Gateway": "2001:db8:1::1"},
    }}}));
    let names: Vec<_> = found.attachments.iter().map(|on| &*on.network).collect();
    assert_eq!(names, ["vip", "two", "app", "bridge", "aaa", "bad", "off"]);
    let addresses: Vec<_> = found.attachments[2].addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["172.20.0.2", "2001:db8::2"]);
    assert_eq!(found.attachments[3].mac.as_deref(), Some("02:42:ac:11:00:02"));
    assert_eq!(defects_of(&found), [r#"containers/web/networks/bad: "172.23.0.999" is no address (ignored)"#]);
}

/// An engine that crashed leaves them in the inspection.
#[test]
fn a_container_that_has_ended_has_no_address() {
    for (state, has_addresses) in [
        ("created", true),
        ("running", true),
        ("paused", true),
        ("restarting", true),
        ("exited", false),
        ("dead", false),
        ("removing", false),
    ] {
        let on =
            json!({"IPAddress": "172.17.0.3", "GlobalIPv6Address": "2001:db8::3", "MacAddress": "02:42:ac:11:00:03"});
        let found = facts(json!({"State": {"Status": state}, "NetworkSettings": {"Networks": {"bridge": on}}}));
        let on = &found.attachments[0];
        assert_eq!((&*on.network, on.addresses.len()), ("bridge", if has_addresses { 2 } else { 0 }), "{state}");
        assert_eq!(on.mac.is_some(), has_addresses, "{state}");
    }
}

#[test]
fn networks_of_others_are_not_its_own() {
    let networks = json!({"Networks": {"host": {"IPAddress": "10.0.0.1"}}});
    for (mode, expected) in [
        ("host", NetworkMode::Host),
        ("container:abc", NetworkMode::From("abc".into())),
        ("bridge", NetworkMode::Own),
        ("none", NetworkMode::Own),
    ] {
        let found = facts(json!({"HostConfig": {"NetworkMode": mode}, "NetworkSettings": networks}));
        assert_eq!(found.attachments.len(), usize::from(expected == NetworkMode::Own), "{mode}");
        assert_eq!(found.network, expected, "{mode}");
    }
}

/// The published ports of a container with these bindings, and how many defects they have.
fn check_ports(ports: &Json, expected: &[&str], defects: usize) {
    let found = facts(json!({"NetworkSettings": {"Ports": ports}}));
    let texts: Vec<_> = found.ports.iter().map(|port| &**port).collect();
    assert_eq!((&texts[..], found.defects.len()), (expected, defects), "{ports}");
}

#[test]
fn published_ports_are_those_that_are_bound() {
    let bound = |address: &str, port: &str| json!([{"HostIp": address, "HostPort": port}]);
    check_ports(&json!({"80/tcp": bound("0.0.0.0", "8080")}), &["8080:80/tcp"], 0);
    let both = json!([{"HostIp": "0.0.0.0", "HostPort": "53"}, {"HostIp": "::", "HostPort": "53"}]);
    check_ports(&json!({"53/udp": both, "53/tcp": null}), &["53:53/udp"], 0);
    check_ports(&json!({"80/tcp": bound("192.0.2.1", "80")}), &["192.0.2.1:80:80/tcp"], 0);
    check_ports(&json!({"80/TCP": bound("2001:db8::1", "80")}), &["[2001:db8::1]:80:80/tcp"], 0);
    check_ports(&json!({"80": bound("", "80")}), &["80:80/tcp"], 0);
    check_ports(&json!({"80/sctp": bound("", "80")}), &[], 1);
    check_ports(&json!({"x/tcp": bound("", "80"), "80/tcp": bound("x", "80")}), &[], 1);
    check_ports(&json!({"80/tcp": bound("", ""), "81/tcp": bound("", "0"), "82/tcp": []}), &[], 0);
    let stopped = facts(json!({"State": {"Status": "exited"}, "HostConfig": {"PortBindings": {
        "80/tcp": bound("", "8080"), "81/tcp": bound("", "")}}, "Config": {"ExposedPorts": {"81/tcp": {}, "x": {}}}}));
    let texts = |ports: &[Text]| ports.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        (texts(&stopped.ports), texts(&stopped.expose)),
        (vec!["8080:80/tcp".to_owned()], vec!["81/tcp".to_owned()])
    );
}

#[test]
fn reservations_come_from_whatever_says_them() {
    for (config, memory, milli_cpu) in [
        (json!({}), None, None),
        (
            json!({"Memory": 100, "MemoryReservation": 50, "CpuShares": 341, "NanoCpus": 2_000_000_000}),
            Some(50),
            Some(334),
        ),
        (
            json!({"Memory": 100, "MemoryReservation": 0, "CpuShares": 0, "NanoCpus": 2_000_000_000}),
            Some(100),
            Some(2000),
        ),
        (json!({"CpuShares": 512}), None, Some(500)),
        (json!({"CpuQuota": 50_000, "CpuPeriod": 100_000}), None, Some(500)),
        (json!({"CpuCount": 2}), None, Some(2000)),
        (json!({"CpuShares": i64::MAX, "Memory": -1, "NanoCpus": -1}), None, Some(9_007_199_254_740_992_000)),
    ] {
        let found = facts(json!({"HostConfig": config}));
        assert_eq!((found.memory, found.milli_cpu), (memory, milli_cpu), "{config}");
    }
    // The scheduler writes thousandths as shares, rounded down; they come back as they were.
    for milli in [1i64, 2, 333, 500, 999, 1001, 64_000] {
        let shares = (milli * 1024 / 1000).max(2);
        let found = facts(json!({"HostConfig": {"CpuShares": shares}})).milli_cpu.unwrap();
        assert!(found == milli || shares == 2, "{milli} {found}");
    }
}

#[test]
fn links_and_resolvers_are_taken_as_configured() {
    let found = facts(json!({
        "Config": {"Hostname": "inside"},
        "HostConfig": {"Links": ["/db:/web/database", "odd"], "Dns": ["192.0.2.53", "x"], "DnsSearch": ["example.org.", "a..b"]},
        "NetworkSettings": {"Networks": {"app": {"Links": ["shop-db-1:db", "cache:a b"], "Aliases": ["web", "w w", "www"]}}},
    }));
    let links: Vec<_> = found.links.iter().map(|(target, alias)| format!("{target}={alias}")).collect();
    assert_eq!(links, ["db=database", "shop-db-1=db"]);
    let aliases: Vec<_> = found.attachments[0].aliases.iter().map(|alias| &**alias).collect();
    assert_eq!(aliases, ["www"]);
    assert_eq!((&found.dns[..], found.hostname.as_deref()), (&["192.0.2.53".into()][..], Some("inside")));
    assert_eq!(found.dns_search, Some(vec!["example.org".into()]));
    assert_eq!(found.defects.len(), 4, "{:?}", defects_of(&found));
    assert_eq!(facts(json!({"HostConfig": {"DnsSearch": []}})).dns_search, None);
    assert_eq!(facts(json!({"HostConfig": {"DnsSearch": ["."]}})).dns_search, Some(Vec::new()));
}

#[test]
fn absurd_numbers_of_things_are_cut_and_reported() {
    let many = |make: &dyn Fn(usize) -> (String, Json)| Json::Object((0..2000).map(make).collect());
    let found = facts(json!({
        "Config": {"Labels": many(&|at| (format!("l{at}"), json!("x")))},
        "NetworkSettings": {
            "Ports": many(&|at| (format!("{}/tcp", at + 1), json!([{"HostPort": (at + 1).to_string()}]))),
            "Networks": many(&|at| (format!("n{at:04}"), json!({"Aliases": (0..100).map(|alias| format!("a{alias}")).collect::<Vec<_>>()}))),
        },
        "HostConfig": {"Links": (0..100).map(|at| format!("/a{at}:/web/b{at}")).collect::<Vec<_>>()},
    }));
    assert_eq!((found.labels.len(), found.ports.len(), found.attachments.len()), (1024, PORTS_MAX, ATTACHMENTS_MAX));
    assert_eq!((found.links.len(), found.attachments[0].aliases.len()), (ALIASES_MAX, ALIASES_MAX));
    let paths: std::collections::BTreeSet<_> = found.defects.iter().map(|defect| defect.path.clone()).collect();
    for path in ["labels", "ports", "networks", "links", "networks/n0000/aliases"] {
        assert!(paths.contains(&format!("containers/web/{path}")), "{path} {paths:?}");
    }
}

/// Any JSON with the keys that are read, of the right kinds or not.
pub(in crate::docker) fn inspection() -> impl Strategy<Value = Json> {
    let word = prop_oneof![
        "[a-c/.:-]{0,6}",
        Just(String::new()),
        Just("shop".to_owned()),
        Just("10.0.0.1".to_owned()),
        Just("2001:db8::1".to_owned()),
        Just("8080".to_owned()),
        Just("80/tcp".to_owned()),
        Just("container:b".to_owned()),
        Just("host".to_owned()),
        ".{0,300}",
    ];
    // Boxed, or the type of the whole takes minutes to compile.
    let word = word.boxed();
    let words = prop::collection::vec(word.clone(), 0..4).boxed();
    let label = prop_oneof![
        Just("com.docker.compose.project".to_owned()),
        Just("com.docker.compose.service".to_owned()),
        Just("com.docker.compose.depends_on".to_owned()),
        Just("io.rancher.stack_service.name".to_owned()),
        word.clone(),
    ];
    let labels = prop::collection::hash_map(label, word.clone(), 0..5).boxed();
    let number = prop_oneof![any::<i64>(), 0..5i64].boxed();
    let binding = (word.clone(), word.clone()).prop_map(|(ip, port)| json!([{"HostIp": ip, "HostPort": port}]));
    let ports = prop::collection::hash_map(word.clone(), binding, 0..3).boxed();
    let endpoint = (words.clone(), words.clone(), word.clone(), word.clone(), number.clone()).prop_map(
        |(aliases, links, address, gateway, priority)| {
            json!({"Aliases": aliases, "Links": links, "IPAddress": address, "GlobalIPv6Address": address,
                   "Gateway": gateway, "GwPriority": priority, "MacAddress": gateway})
        },
    );
    let networks =
        prop::collection::hash_map(prop_oneof![Just("app".to_owned()), word.clone()], endpoint, 0..3).boxed();
    let state = (
        prop_oneof![Just("running"), Just("created"), Just("exited"), Just("dead")],
        prop_oneof![Just("starting"), Just("healthy"), Just("")],
    );
    let state = state.boxed();
    let config = (labels, word.clone(), words.clone()).boxed();
    let host_config = (word.clone(), words.clone(), words.clone(), ports.clone(), number.clone(), words).boxed();
    (word.clone(), word.clone(), word, number, state, config, host_config, (ports, networks)).prop_map(
        |(id, name, created, count, (state, health), (labels, hostname, exposed), host, (ports, networks))| {
            let (mode, dns, search, bindings, amount, links) = host;
            let exposed: Json =
                exposed.into_iter().map(|port| (port, json!({}))).collect::<serde_json::Map<_, _>>().into();
            json!({
                "Id": id, "Name": name, "Created": created, "RestartCount": count,
                "State": {"Status": state, "Health": {"Status": health}},
                "Config": {"Labels": labels, "Hostname": hostname, "ExposedPorts": exposed},
                "HostConfig": {"NetworkMode": mode, "Dns": dns, "DnsSearch": search, "PortBindings": bindings,
                               "Memory": amount, "NanoCpus": amount, "CpuShares": amount, "CpuQuota": amount,
                               "CpuPeriod": count, "Links": links},
                "NetworkSettings": {"Ports": ports, "Networks": networks},
            })
        },
    )
}

proptest! {
    #[test]
    fn whatever_an_engine_says_is_read_without_harm(response in inspection()) {
        let response: ContainerInspectResponse = serde_json::from_value(response).unwrap();
        if let Ok(facts) = Facts::of("x", &response, &Baked::nothing()) {
            prop_assert!(!facts.name.is_empty() && facts.start_count >= 0 && facts.created >= 0);
        }
    }
}
