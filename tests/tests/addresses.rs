//! The real addresses, 169.254.169.250:80 and 169.254.169.251:53, put on an interface of a host of our own making
//! and asked from a container-like neighbour: the README's processes beside each other, as they stand there.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use tests::cluster::ClusterFolder;
use tests::namespace::Pair;
use tests::{Executable, Launch, Service, eventually, repository};

const LIMIT: Duration = Duration::from_secs(15);

/// The address of the container in the documents here.
const CONTAINER: &str = "10.42.0.7";

const CLUSTER: &str = "berth: 1
host: here
hosts:
- { name: here, agent_ip: 10.42.0.1, memory: 8GiB, milli_cpu: 4000 }
services:
- { name: web, stack: shop, links: { data/db: db } }
- { name: db, stack: data }
containers:
- { name: shop-web-1, service: shop/web, host: here, primary_ip: 10.42.0.7 }
- { name: data-db-1, service: data/db, host: here, primary_ip: 10.42.0.9 }
...
";

fn pair() -> Option<Pair> {
    let needed = [("ip", "-V"), ("curl", "--version"), ("dig", "-v")];
    if tests::shared::there(&needed, "iproute2, curl, bind9-dnsutils") { Pair::try_new(CONTAINER) } else { None }
}

/// The README's command line of a service, with the files of this test.
fn readme_line(executable: Executable, folder: &ClusterFolder) -> Launch {
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let name = format!("{} ", executable.name());
    let line = readme.lines().find(|line| line.starts_with(&name) && line.contains("--state-dir"));
    let line = line.unwrap_or_else(|| panic!("README.md starts no {name}")).to_owned();
    let line = line.replace("/etc/berth/cluster.yml", folder.file().to_str().unwrap());
    let line = line.replace("/var/lib/berth", folder.path("state").to_str().unwrap());
    line.split_whitespace().skip(1).fold(Launch::bare(executable), Launch::word).logged()
}

fn has_address(pair: &Pair, address: &str) -> bool {
    pair.on_host(&["ip", "-o", "address", "show"]).contains(&format!("inet {address}/32 "))
}

#[test]
fn a_container_asks_the_real_addresses_and_gets_its_own_answers() {
    let Some(pair) = pair() else { return };
    let folder = ClusterFolder::new(CLUSTER);
    // In any order: the followers first.
    let mut running: Vec<Service> = [Executable::Scheduler, Executable::Dns, Executable::Metadata]
        .into_iter()
        .map(|executable| readme_line(executable, &folder).in_namespace(&pair.host).start())
        .collect();
    for (service, address) in
        running.iter_mut().rev().zip(["169.254.169.250:80", "169.254.169.251:53", "127.0.0.1:8254"])
    {
        assert_eq!(service.address().to_string(), address);
    }
    let ask = |path: &str| pair.in_container(&["curl", "-s", "-m", "5", &format!("http://169.254.169.250/{path}")]);
    eventually("the container's self", LIMIT, || (ask("latest/self/container/name") == "shop-web-1").then_some(()));
    // Wine binds a UDP socket of an adapter's address to all addresses of the adapter, so that answers leave from the
    // first of them: only TCP shows something there.
    let transport = if tests::binaries::are_for_windows() { "+tcp" } else { "+notcp" };
    let dig = |name: &str, more: &[&str]| {
        let question =
            [&["dig", "@169.254.169.251", transport, "+short", "+time=2", "+tries=1", name][..], more].concat();
        pair.in_container(&question)
    };
    eventually("the container's names", LIMIT, || (dig("db", &[]) == "10.42.0.9\n").then_some(()));
    for (name, more, expected) in [
        ("db", &["+tcp"][..], "10.42.0.9\n"),
        ("db.data.rancher.internal", &[], "10.42.0.9\n"),
        ("web", &[], "10.42.0.7\n"),
        ("rancher-metadata", &[], "169.254.169.250\n"),
    ] {
        assert_eq!(dig(name, more), expected, "{name} {more:?}");
    }
    // The host itself is no container.
    assert_eq!(pair.on_host(&["curl", "-s", "http://169.254.169.250/latest/self"]), "host/\n");
    let placed = eventually("the scheduler follows", LIMIT, || {
        let body = r#"{"image": "web", "dry_run": true}"#;
        let answer = pair.on_host(&["curl", "-s", "http://127.0.0.1:8254/v1/placements", "-d", body]);
        answer.contains("here").then_some(answer)
    });
    println!("{placed}");
    // Nothing administrative is within the container's reach.
    for address in ["169.254.169.250:8112", "169.254.169.251:8113", "10.42.0.1:8112", "10.42.0.1:8254"] {
        let answer =
            pair.in_container(&["curl", "-s", "-m", "2", "-w", "%{http_code}", &format!("http://{address}/healthz")]);
        assert_eq!(answer, "000", "{address}");
    }

    assert!(has_address(&pair, "169.254.169.250") && has_address(&pair, "169.254.169.251"));
    for service in &mut running {
        service.stop();
    }
    assert!(!has_address(&pair, "169.254.169.250") && !has_address(&pair, "169.254.169.251"), "the addresses are gone");
}

#[test]
fn an_address_that_was_there_before_stays() {
    let Some(pair) = pair() else { return };
    let folder = ClusterFolder::new(CLUSTER);
    pair.on_host(&["ip", "address", "add", "169.254.169.250/32", "dev", "cable0"]);
    let mut metadata = readme_line(Executable::Metadata, &folder).in_namespace(&pair.host).start();
    metadata.line("that it was there", |line| line["message"] == "address was there already");
    metadata.address();
    metadata.stop();
    assert!(has_address(&pair, "169.254.169.250"));
}

#[test]
fn the_interface_can_be_chosen_and_has_to_be_there() {
    let Some(pair) = pair() else { return };
    let folder = ClusterFolder::new(CLUSTER);
    let launch = readme_line(Executable::Metadata, &folder).in_namespace(&pair.host);
    let mut metadata = launch.clone().with("--interface", "lo").start();
    metadata.address();
    assert!(pair.on_host(&["ip", "-o", "address", "show", "dev", "lo"]).contains("169.254.169.250/32"));
    metadata.stop();
    let ended = launch.with("--interface", "nowhere0").run();
    // Wine at times passes on the code of another thread.
    assert!(ended.code == Some(1) || tests::binaries::are_for_windows(), "{:?}", ended.code);
    assert!(ended.errors.contains("nowhere0"), "{}", ended.errors);
    assert!(!has_address(&pair, "169.254.169.250"));
}

#[test]
fn without_the_address_and_without_adding_it_the_way_out_is_told() {
    let Some(pair) = pair() else { return };
    let folder = ClusterFolder::new(CLUSTER);
    let launch = Launch::bare(Executable::Metadata).with("--answers", folder.file()).in_namespace(&pair.host);
    let ended = launch.run();
    // Wine at times passes on the code of another thread.
    assert!(ended.code == Some(1) || tests::binaries::are_for_windows(), "{:?}", ended.code);
    assert!(ended.errors.contains("169.254.169.250:80") && ended.errors.contains("--add-address"), "{}", ended.errors);
}
