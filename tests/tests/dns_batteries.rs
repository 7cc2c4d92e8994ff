//! The hostile batteries against the DNS service; each has to end with `0 failed`.
//!
//! Against Windows executables under Wine they are shorter (see `tests::battery::is_short`).
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Map, Value, json};
use tests::battery;
use tests::cluster::ClusterFolder;
use tests::shared::{Exclusive, folder, python};
use tests::{Launch, Service, binaries, wait};

/// The domain that the batteries ask in.
const ZONE: &str = "example.test";

/// Addresses behind the name whose answer fits in no datagram.
const BIG: u8 = 100;

/// Versions that are published while the name is read all the time.
const VERSIONS: &str = "200";

/// Ports of the upstreams that the battery plays, by UDP and TCP; below those that systems give away by themselves.
const UPSTREAMS: [u16; 2] = [15297, 15298];

/// The zone of the batteries as an answers file: an empty non-terminal, chains of aliases, a loop, a large answer, and
/// a name whose addresses tell the version.
fn answers(version: usize) -> Value {
    let absolute = |name: &str| format!("{name}.{ZONE}.");
    let mut addresses = Map::new();
    let mut add = |name: &str, list: Vec<String>| addresses.insert(absolute(name), json!({ "answer": list }));
    add("www", vec!["10.42.0.10".to_owned()]);
    add("big", (1..=BIG).map(|last| format!("10.43.0.{last}")).collect());
    let changing = |last| format!("10.{}.{}.{last}", version >> 8, version & 255);
    add("churn", (1..=1 + version % 20).map(changing).collect());
    let aliases = [("alias", "www"), ("c1", "c2"), ("c2", "c3"), ("c3", "www"), ("loop1", "loop2"), ("loop2", "loop1")];
    let alias = |(name, target): &(&str, &str)| (absolute(name), json!({ "answer": absolute(target) }));
    let aliases: Map<_, _> = aliases.iter().map(alias).collect();
    let texts = json!({ absolute("_http._tcp"): { "answer": ["below an empty non-terminal"] } });
    json!({ "default": {
        "search": [], "recurse": [], "authoritative": [format!("{ZONE}.")],
        "a": addresses, "cname": aliases, "txt": texts,
    } })
}

/// The service over the zone of the batteries, and its folder.
fn serve(upstreams: &[SocketAddr]) -> (Service, ClusterFolder) {
    let files = ClusterFolder::empty();
    let file = files.path("answers.json");
    std::fs::write(&file, answers(1).to_string()).unwrap();
    let launch = Launch::dns().with("--answers", &file);
    let launch = upstreams.iter().fold(launch, |launch, upstream| launch.word("--upstream").word(upstream.to_string()));
    let mut service = launch.start();
    service.ready();
    (service, files)
}

/// A battery with the arguments that all have, when it can run here.
fn battery(script: &str, mode: &[&str], service: &mut Service) -> Option<Command> {
    let (shared, mut python) = (folder()?, python()?);
    let address = service.address();
    python.arg(shared.join("batteries").join(script)).args(mode);
    python.args([address.ip().to_string(), address.port().to_string()]);
    Some(python)
}

fn scaled(seconds: f64) -> String {
    (seconds * wait::scale()).to_string()
}

#[test]
fn dns_keeps_to_the_rules_of_edns() {
    let _processors = Exclusive::processors();
    let (mut service, _files) = serve(&[]);
    let Some(mut python) = battery("dns_edns_compliance.py", &[], &mut service) else { return };
    battery::pass(python.args(["--timeout", &scaled(2.0)]), "rules of EDNS");
}

#[test]
fn dns_bears_malformed_messages() {
    let _processors = Exclusive::processors();
    let (mut service, _files) = serve(&[]);
    let Some(mut python) = battery("dns_malformed.py", &[], &mut service) else { return };
    battery::watch(&mut python, &service);
    if !binaries::are_for_windows() {
        python.arg("--spoof");
    }
    if battery::is_short() {
        python.args(["--count", "1500", "--tcp-count", "100", "--rate", "300"]);
    }
    // The time is that of a whole question and answer on a machine that does much else.
    python.args(["--canary-ms", &scaled(250.0)]);
    battery::pass(&mut python, "malformed messages");
    assert!(service.is_running());
}

#[test]
fn dns_bears_abuse_over_connections() {
    let _processors = Exclusive::processors();
    let (mut service, _files) = serve(&[]);
    let Some(mut python) = battery("dns_tcp_abuse.py", &[], &mut service) else { return };
    battery::watch(&mut python, &service);
    if !binaries::are_for_windows() {
        python.arg("--emfile");
    }
    if battery::is_short() {
        python.args(["--conns", "200"]);
    }
    battery::pass(&mut python, "abuse over TCP");
    assert!(service.is_running());
}

#[test]
fn dns_forwards_without_believing() {
    let _processors = Exclusive::processors();
    let _ports = Exclusive::take("battery-upstreams");
    let upstreams = UPSTREAMS.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let (mut service, _files) = serve(&upstreams);
    let Some(mut python) = battery("dns_forwarder.py", &[], &mut service) else { return };
    let [first, second] = UPSTREAMS.map(|port| port.to_string());
    python.args(["--up", &first, "--up2", &second, "--stale", "--rebind"]);
    python.args(["--pid", &service.pid().to_string(), "--giveup", &scaled(5.0), "--seed", "1"]);
    battery::pass(&mut python, "forwarding");
    assert!(service.is_running());
}

#[test]
fn dns_answers_from_one_version_while_many_are_published() {
    let _processors = Exclusive::processors();
    let (mut service, files) = serve(&[]);
    let Some(mut python) = battery("churn.py", &["dns"], &mut service) else { return };
    // Each version lies beside the file and is put in its place by the battery.
    for version in 1..=VERSIONS.parse().unwrap() {
        std::fs::write(files.path(&format!("{version}.json")), answers(version).to_string()).unwrap();
    }
    let (next, file) = (files.path("{n}.json"), files.path("answers.json"));
    let publish = format!("mv {} {}", next.display(), file.display());
    python.args(["--publish", &publish, "--versions", VERSIONS, "--fresh", &scaled(1.0)]);
    python.args(["--pid", &service.pid().to_string()]);
    battery::pass(&mut python, "changes of DNS");
    assert!(service.is_running());
}
