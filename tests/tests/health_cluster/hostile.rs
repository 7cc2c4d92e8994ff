//! A hostile host among those that check each other: it has the rights of one host in etcd, and uses them against the health of others.

use std::time::Duration;

use serde_json::{Value, json};
use tests::etcd::base64;
use tests::eventually;
use tests::wait::scaled;

use super::{ALL, World};

/// Its name.
const HOSTILE: &str = "host-9";

/// Containers that it says it has: far more than all others together, and fewer than with which health is ignored when most are
/// unhealthy (`docs/security.md` has that this is what a host can bring about).
const CONTAINERS: usize = 12;

/// Labels by which a check would do harm, or be none.
const LABELS: [(&str, &str); 8] = [
    ("request_line", "GET /\r\nGET /second HTTP/1.0"),
    ("request_line", "POST /shutdown HTTP/1.0"),
    ("interval", "0"),
    ("interval", "-1"),
    ("unhealthy_threshold", "99999999999999999999"),
    ("header.x\r\ny", "z"),
    ("from", "others"),
    ("type", "\u{1b}[31mtcp"),
];

/// Puts many keys below the prefix at once.
fn put_all(world: &World, keys: &[(String, Value)]) {
    for keys in keys.chunks(50) {
        let puts = keys.iter().map(|(key, value)| {
            let key = base64(&format!("/berth/v1/{key}"));
            json!({"request_put": {"key": key, "value": base64(&value.to_string())}})
        });
        world.hosts.etcd.ask("kv/txn", &json!({"success": puts.collect::<Vec<_>>()}));
    }
}

/// What the hostile host says of itself.
fn host(name: &str, checks: &str) -> (String, Value) {
    let labels = json!({"zone": "of its own"});
    let host = json!({"berth": 1, "name": name, "agent_ip": "10.44.0.99", "health_checks": checks, "labels": labels});
    (format!("hosts/{HOSTILE}/host"), host)
}

/// One of its containers, where nothing answers, said to be well, so that its failure is sudden.
fn container(number: usize) -> (String, Value) {
    let address = format!("10.44.0.{}", 100 + number);
    let mut labels = json!({"io.berth.health.port": "80", "io.berth.health.interval": "100ms"});
    if let Some((field, value)) = LABELS.get(number) {
        labels[format!("io.berth.health.{field}")] = json!(value);
    }
    let container = json!({
        "name": format!("bait-{number}"), "uuid": format!("bait-{number}"), "primary_ip": address, "ips": [address],
        "routed_ips": [address], "state": "running", "health_state": "healthy", "start_count": 1, "labels": labels,
    });
    (format!("hosts/{HOSTILE}/containers/bait-{number}"), container)
}

/// One host attacks the health of the others' containers in every way that its rights in etcd allow: nothing changes for these, and one
/// that fails is still left out in time.
pub(super) fn a_host_attacks(world: &World, both: &[&str]) {
    let uuid = |world: &World, host, name| world.health(host, name)["uuid"].as_str().unwrap().to_owned();
    let others = [("host-1", uuid(world, 0, "web-1")), ("host-2", uuid(world, 1, "web-2"))];
    let others = others.map(|(owner, uuid)| (owner, super::start(world, owner, &uuid), uuid));
    let keys: Vec<_> = (0..CONTAINERS).map(container).chain([host(HOSTILE, "made")]).collect();
    put_all(world, &keys);
    eventually("hosts check its containers", super::LIMIT, || {
        let targets = ALL.iter().filter_map(|host| {
            let counted = metrics(world, *host);
            let line = counted.lines().find(|line| line.contains("health_targets{from=\"others\"}"))?;
            line.rsplit(' ').next()?.parse::<usize>().ok()
        });
        (targets.sum::<usize>() > CONTAINERS).then_some(())
    });
    // It says that the others' are down and up again, and doubts itself now and then.
    let rounds = 30;
    for round in 0..rounds {
        let opinion = if round % 2 == 0 { "down" } else { "up" };
        let said = others.iter().flat_map(|(owner, start, uuid)| {
            let vote = json!({"berth": 1, "opinion": opinion, "start": start, "reason": "a lie\u{1b}[2J"});
            let hidden = json!({"berth": 1, "health_state": "unhealthy", "start": start, "reason": "a lie"});
            [(format!("votes/{HOSTILE}/{owner}/{uuid}"), vote), (format!("health/{HOSTILE}/{owner}/{uuid}"), hidden)]
        });
        let checks = if round % 3 == 0 { "suspect" } else { "made" };
        // Under the name of another one it is still the host of its key.
        let name = if round % 5 == 0 { "host-3" } else { HOSTILE };
        put_all(world, &said.chain([host(name, checks)]).collect::<Vec<_>>());
        for host in &ALL {
            assert_eq!(world.ask(*host), both, "host {} in round {round}", host + 1);
        }
    }
    for host in &ALL {
        let counted = metrics(world, *host);
        assert!(counted.contains("health_suspect 0"), "{counted}");
    }
    // Against all that, what is true is seen in time.
    world.set_well(0, "web-1", false);
    let took = world.say("beside a hostile host a container fails: left out by all hosts", &ALL, &both[1..]);
    assert!(took < scaled(Duration::from_secs(4)), "{took:?}");
    world.set_well(0, "web-1", true);
    world.say("it is well again: named by all hosts", &ALL, both);

    for path in [format!("votes/{HOSTILE}/"), format!("health/{HOSTILE}/"), format!("hosts/{HOSTILE}/")] {
        let (from, end) = (format!("/berth/v1/{path}"), format!("/berth/v1/{}0", path.trim_end_matches('/')));
        let range = json!({"key": base64(&from), "range_end": base64(&end)});
        world.hosts.etcd.ask("kv/deleterange", &range);
    }
    eventually("three others check it again", super::LIMIT, || {
        (world.checkers(0, "web-1") == ["host-2", "host-3", "host-4"]).then_some(())
    });
    world.say("the hostile host is gone", &ALL, both);
}

/// The metrics of the agent of a host.
fn metrics(world: &World, host: usize) -> String {
    world.hosts.switch.on(host, &["curl", "--silent", "--max-time", "5", "http://127.0.0.1:8112/metrics"])
}
