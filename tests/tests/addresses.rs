//! The real addresses, 169.254.169.250:80 and 169.254.169.251:53, put on an interface of a host of our own making
//! and asked from a container-like neighbour: the README's processes beside each other, as they stand there.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use tests::cluster::ClusterFolder;
use tests::engine::Boxed;
use tests::namespace::Pair;
use tests::process::Process;
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

/// The README's line for one host with an engine.
fn serve_containers(world: &Boxed) -> Launch {
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let line = readme.lines().find(|line| line.starts_with("agent up --docker ")).unwrap();
    let agent = line.split_whitespace().skip(1).fold(Launch::bare(Executable::Agent), Launch::word).logged();
    let engine = format!("unix://{}", world.engine.socket().display());
    agent.in_namespace(&world.pair.host).env("DOCKER_HOST", engine)
}

fn is_ready(world: &Boxed) {
    eventually("it is ready", LIMIT, || {
        let page = world.pair.on_host(&["curl", "-s", "-m", "2", "http://127.0.0.1:8112/readyz"]);
        page.contains("\"ready\":true").then_some(())
    });
}

/// What a command prints that runs in the network namespace of a container.
fn within(world: &Boxed, container: &str, command: &[&str]) -> String {
    let pid = world.engine.docker(&["inspect", "--format", "{{.State.Pid}}", container]);
    let output = Command::new("nsenter").args(["--net", "--target", &pid]).args(command).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A page of a container that publishes port 80, as a neighbour of the host asks for it.
const PUBLISHED: &str = "http://10.42.0.1/";

/// Runs a web server that says whose it is.
fn publish(world: &Boxed, name: &str, flags: &[&str]) {
    let serve =
        format!("busybox mkdir /www; echo -n {name} of a container > /www/index.html; exec busybox httpd -f -h /www");
    let run = ["run", "--detach", "--name", name];
    world.engine.docker(&[&run[..], flags, &["box", "/bin/busybox", "sh", "-c", &serve]].concat());
}

const SELF: &str = "http://169.254.169.250/latest/self/container/name";

/// Sends a request as the first thing that a container does, and waits for the answer.
const ASKS_AT_ONCE: &str =
    "(printf 'GET /latest/self/container/name HTTP/1.0\\r\\n\\r\\n'; sleep 2) | nc 169.254.169.250 80";

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
fn a_client_beyond_its_rate_is_not_left_without_an_answer() {
    let Some(pair) = pair() else { return };
    // The client is none of its containers.
    let folder = ClusterFolder::new(CLUSTER.replace("10.42.0.7", "10.42.0.8"));
    let agent = Launch::agent(&folder.file()).with("--dns", "10.42.0.1:53").with("--responses-per-second", "1");
    let _agent = agent.in_namespace(&pair.host).start();
    eventually("it answers its own host", LIMIT, || {
        let answer = pair.on_host(&["dig", "@10.42.0.1", "+short", "+time=1", "+tries=1", "web.shop.rancher.internal"]);
        answer.starts_with("10.42.0.8").then_some(())
    });
    let dig = |flags: &[&str]| {
        let names = ["web.shop.rancher.internal"; 6];
        pair.in_container(&[&["dig", "@10.42.0.1", "+short", "+time=1", "+tries=1"], flags, &names[..]].concat())
    };
    // All arrive within a moment, so that most are dropped or truncated; dig asks again over TCP what is truncated.
    let answered = |text: &str| text.lines().filter(|line| *line == "10.42.0.8").count();
    let (ignored, repeated) = (dig(&["+ignore"]), dig(&["+tries=3"]));
    assert!(answered(&ignored) < 6, "{ignored}");
    assert_eq!(answered(&repeated), 6, "{repeated}");
}

/// Opens 150 connections to each address from a source address, sends half a request on each, and keeps them.
const GREEDY: &str = "
import socket, sys
kept = []
for target in sys.argv[2:]:
    address, port = target.rsplit(':', 1)
    for _ in range(150):
        try:
            kept.append(socket.create_connection((address, int(port)), 1, (sys.argv[1], 0)))
            kept[-1].sendall(b'G')
        except OSError:
            pass
print('kept', flush=True)
sys.stdin.read()
";

/// Such a client in a namespace, which has opened what it can.
fn greedy(namespace: &str, source: &str, targets: &[&str]) -> Process {
    let mut python = tests::namespace::command(Some(namespace), "python3");
    python.args(["-c", GREEDY, source]).args(targets).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut greedy = Process::start(&mut python);
    let mut said = String::new();
    let mut output = BufReader::new(greedy.stdout.take().unwrap());
    output.read_line(&mut said).unwrap();
    assert_eq!(said, "kept\n");
    greedy
}

#[test]
fn a_greedy_client_takes_no_connection_of_others_where_descriptors_are_few() {
    // Windows does not limit descriptors; Wine fails in ways of its own.
    if tests::binaries::are_for_windows() {
        return;
    }
    let Some(pair) = pair() else { return };
    let folder = ClusterFolder::new(CLUSTER);
    let agent = Launch::agent(&folder.file()).with("--metadata", "10.42.0.1:80").with("--dns", "10.42.0.1:53");
    let mut agent = agent.in_namespace(&pair.host).through(&["prlimit", "--nofile=256:256"]).start();
    eventually("it answers its own host", LIMIT, || {
        let answer = pair.on_host(&["dig", "@10.42.0.1", "+short", "+time=1", "+tries=1", "web.shop.rancher.internal"]);
        (answer == "10.42.0.7\n").then_some(())
    });
    let (scheduler, admin) = (agent.address_of("scheduler").to_string(), agent.admin().to_string());
    eventually("all of it is ready", LIMIT, || {
        let page = pair.on_host(&["curl", "-s", "-m", "2", &format!("http://{admin}/readyz")]);
        page.contains("\"ready\":true").then_some(())
    });
    pair.in_container(&["ip", "address", "add", "10.42.0.9/16", "dev", "eth0"]);
    let _greedy = [
        greedy(&pair.container, CONTAINER, &["10.42.0.1:80", "10.42.0.1:53"]),
        greedy(&pair.host, "127.0.0.2", &[&scheduler]),
        greedy(&pair.host, "127.0.0.3", &[&admin]),
    ];
    for _ in 0..10 {
        let curl = ["curl", "-s", "-m", "5", "--interface", "10.42.0.9"];
        let name = pair.in_container(&[&curl[..], &["http://10.42.0.1/latest/self/container/name"]].concat());
        assert_eq!(name, "data-db-1");
        let dig = ["dig", "@10.42.0.1", "-b", "10.42.0.9", "+tcp", "+short", "+time=5", "+tries=1"];
        let address = pair.in_container(&[&dig[..], &["web.shop.rancher.internal"]].concat());
        assert_eq!(address, "10.42.0.7\n");
        let hosts = pair.on_host(&["curl", "-s", "-m", "5", &format!("http://{scheduler}/v1/hosts")]);
        assert!(hosts.contains("\"here\""), "{hosts}");
        assert_eq!(pair.on_host(&["curl", "-s", "-m", "5", &format!("http://{admin}/healthz")]), "ok\n");
    }
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
    // Wine takes a while to know new interfaces.
    if !tests::binaries::are_for_windows() {
        an_interface_that_goes_and_comes_back(&pair, &launch.clone().with("--interface", "shop0"));
    }
    let ended = launch.with("--interface", "nowhere0").run();
    // Wine at times passes on the code of another thread.
    assert!(ended.code == Some(1) || tests::binaries::are_for_windows(), "{:?}", ended.code);
    assert!(ended.errors.contains("nowhere0"), "{}", ended.errors);
    assert!(!has_address(&pair, "169.254.169.250"));
}

/// The address goes with its interface, and comes back with it; meanwhile the service is not ready and says why.
fn an_interface_that_goes_and_comes_back(pair: &Pair, launch: &Launch) {
    let make = || pair.on_host(&["ip", "link", "add", "shop0", "up", "type", "bridge"]);
    make();
    let mut metadata = launch.start();
    metadata.address();
    let readiness = || pair.on_host(&["curl", "-s", "-m", "2", "http://127.0.0.1:8112/readyz"]);
    eventually("it is ready", LIMIT, || readiness().contains("\"ready\":true").then_some(()));
    // Without a fall-back: the interface was named.
    pair.on_host(&["ip", "link", "delete", "shop0"]);
    let reason = "169.254.169.250 was taken away from interface shop0, so that no client is answered there: no network \
                  interface is called shop0";
    eventually("it is not ready", LIMIT, || readiness().contains(reason).then_some(()));
    make();
    eventually("it is ready again", LIMIT, || readiness().contains("\"ready\":true").then_some(()));
    assert!(pair.on_host(&["ip", "-o", "address", "show", "dev", "shop0"]).contains("169.254.169.250/32"));
    metadata.line("one line", |line| line["message"] == "the address was taken away, and cannot be put back yet");
    metadata.line("another line", |line| line["message"] == "the lost address was put back");
    metadata.stop();
    assert!(!has_address(pair, "169.254.169.250"));
}

#[test]
fn without_the_right_to_redirect_the_ports_themselves_are_bound() {
    if tests::binaries::are_for_windows() || !tests::shared::there(&[("setpriv", "--version")], "util-linux") {
        return;
    }
    let Some(pair) = pair() else { return };
    let folder = ClusterFolder::new(CLUSTER);
    // As somebody else has to put them there who has the right.
    for address in ["169.254.169.250/32", "169.254.169.251/32"] {
        pair.on_host(&["ip", "address", "add", address, "dev", "cable0"]);
    }
    let arguments = |launch: Launch| {
        let launch = launch.word("up").word(folder.file()).logged().flag("--add-address").in_namespace(&pair.host);
        launch.with("--metadata", "169.254.169.250:80").with("--dns", "169.254.169.251:53")
    };
    let agent = || Launch::bare(Executable::Agent);
    let restricted = agent().through(&["setpriv", "--bounding-set=-net_admin"]);
    for (launch, lines, ports) in [(restricted, 2, ["0050", "0035"]), (agent(), 0, ["0150", "0135"])] {
        let launch = arguments(launch);
        let mut agent = launch.start();
        // Clients find them where they always are.
        assert_eq!(agent.address_of("metadata").to_string(), "169.254.169.250:80");
        assert_eq!(agent.address_of("dns").to_string(), "169.254.169.251:53");
        let told = agent.lines_with("no redirect to another port: no container can publish port");
        assert_eq!(told.len(), lines, "{told:?}");
        assert!(told.iter().all(|line| line.contains("Operation not permitted")), "{told:?}");
        let listening = pair.on_host(&["cat", "/proc/net/tcp"]);
        for (address, port) in ["FAA9FEA9", "FBA9FEA9"].iter().zip(ports) {
            assert!(listening.contains(&format!("{address}:{port} 00000000:0000 0A")), "{port}: {listening}");
        }
        eventually("a container is answered", LIMIT, || {
            (pair.in_container(&["curl", "-s", "-m", "5", SELF]) == "shop-web-1").then_some(())
        });
        for transport in ["+notcp", "+tcp"] {
            let dig = ["dig", "@169.254.169.251", transport, "+short", "+time=2", "+tries=1", "db"];
            eventually(transport, LIMIT, || (pair.in_container(&dig) == "10.42.0.9\n").then_some(()));
        }
        agent.stop();
        assert!(has_address(&pair, "169.254.169.250"), "the address was not the agent's");
    }
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

#[test]
fn one_flag_serves_all_containers_of_the_engine_and_no_neighbour() {
    // An engine on Windows has other networks.
    if tests::binaries::are_for_windows() || pair().is_none() {
        return;
    }
    let Some(world) = Boxed::start() else { return };
    let mut agent = serve_containers(&world).start();
    assert_eq!(agent.address_of("metadata").to_string(), "169.254.169.250:80");
    assert_eq!(agent.address_of("dns").to_string(), "169.254.169.251:53");
    let docker0 = world.pair.on_host(&["ip", "-o", "address", "show", "dev", "docker0"]);
    assert!(docker0.contains("169.254.169.250/32") && docker0.contains("169.254.169.251/32"), "{docker0}");
    is_ready(&world);
    // One on the engine's own bridge, one on a network that is made later; both with Berth's ports published on all addresses.
    publish(&world, "web", &["--publish", "80:80"]);
    world.engine.docker(&["network", "create", "shop"]);
    world.engine.run_box("db", &["--network", "shop", "--publish", "53:53", "--publish", "53:53/udp"]);
    for name in ["web", "db"] {
        assert_eq!(within(&world, name, &["curl", "-s", "-m", "5", SELF]), name);
        let address = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
        let address = world.engine.docker(&["inspect", "--format", address, name]);
        let full = format!("{name}.rancher.internal");
        for transport in ["+notcp", "+tcp"] {
            let dig = ["dig", "@169.254.169.251", transport, "+short", "+time=2", "+tries=1", &full];
            assert_eq!(within(&world, name, &dig).trim(), address, "{name} {transport}");
        }
    }
    assert_eq!(world.pair.in_container(&["curl", "-s", "-m", "5", PUBLISHED]), "web of a container");
    // An address that somebody deletes is put back and serves on, with a line in the log.
    for address in ["169.254.169.250", "169.254.169.251"] {
        world.pair.on_host(&["ip", "address", "delete", &format!("{address}/32"), "dev", "docker0"]);
        let put_back = "the address was taken away by another program, and was put back";
        agent.line("that it is back", |line| line["message"] == put_back && line["address"] == address);
        assert!(has_address(&world.pair, address));
    }
    assert_eq!(within(&world, "web", &["curl", "-s", "-m", "5", SELF]), "web");
    is_ready(&world);
    who_asks_at_once_or_on_the_hosts_network_is_known(&world);
    on_the_hosts_network_names_are_those_of_the_host(&world);
    the_doctor_names_what_is_wrong_and_nothing_else(&world);

    the_host_is_answered_and_no_neighbour(&world);

    // A second one cannot start, and takes away what it added, not what the first one has.
    let second = serve_containers(&world).with("--metadata", "169.254.169.252:80").run();
    assert!(second.errors.contains("169.254.169.251:53"), "{}", second.errors);
    let has = |address: &str| has_address(&world.pair, address);
    assert!(!has("169.254.169.252"), "a failed start left its address");
    assert!(has("169.254.169.250") && has("169.254.169.251"), "a failed start took the addresses of another process");
    assert_eq!(within(&world, "web", &["curl", "-s", "-m", "5", SELF]), "web");

    // What a crash left is removed at the end of the next one, which starts beside containers that publish its ports.
    agent.kill();
    assert!(has("169.254.169.250"), "nobody could remove it");
    let theirs = world.pair.on_host(&["curl", "-s", "-m", "5", "http://169.254.169.250/"]);
    assert_eq!(theirs, "web of a container", "a redirect outlived its process");
    // Another user does all that as well.
    let mut agent = serve_containers(&world).with("--user", "64123").start();
    agent.line("that it was left", |line| line["message"] == "address was left by a process that is gone");
    is_ready(&world);
    assert_eq!(within(&world, "web", &["curl", "-s", "-m", "5", SELF]), "web");
    assert_eq!(world.pair.on_host(&["curl", "-s", "http://169.254.169.250/latest/self"]), "host/\n");
    assert_eq!(world.pair.in_container(&["curl", "-s", "-m", "5", PUBLISHED]), "web of a container");
    agent.stop();
    assert!(!has("169.254.169.250") && !has("169.254.169.251"), "the addresses are gone");
    addresses_stay_for_the_next_start(&world);
    let told = doctor(&world);
    let start =
        format!("-> as root: agent up --docker=unix://{} --serve-containers\n", world.engine.socket().display());
    assert!(told.contains(&start), "{told}");
    world.engine.hang();
    let told = doctor(&world);
    world.engine.go_on();
    assert!(told.contains("bad  engine") && told.contains("docker.sock hangs"), "{told}");
}

/// As a service of Windows leaves them, until they are released.
fn addresses_stay_for_the_next_start(world: &Boxed) {
    let release = || {
        let release = Launch::bare(Executable::Agent).word("service").word("release");
        release.in_namespace(&world.pair.host).run().output
    };
    let none = "there is no address that a Berth left which has stopped\n";
    assert_eq!(release(), none);
    for _ in 0..2 {
        let mut agent = serve_containers(world).word("--keep-address").start();
        is_ready(world);
        assert_eq!(release(), none, "it serves");
        agent.stop();
        assert!(has_address(&world.pair, "169.254.169.250") && has_address(&world.pair, "169.254.169.251"));
    }
    let mut released: Vec<_> = release().lines().map(str::to_owned).collect();
    released.sort();
    assert_eq!(released, ["169.254.169.250 is removed from docker0", "169.254.169.251 is removed from docker0"]);
    assert!(!has_address(&world.pair, "169.254.169.250") && !has_address(&world.pair, "169.254.169.251"));
}

/// Nobody is denied an answer because the engine reports a container a moment after it began to ask.
fn who_asks_at_once_or_on_the_hosts_network_is_known(world: &Boxed) {
    for number in 0..5 {
        let name = format!("asks-{number}");
        let answer =
            world.engine.docker(&["run", "--rm", "--name", &name, "box", "/bin/busybox", "sh", "-c", ASKS_AT_ONCE]);
        assert!(answer.starts_with("HTTP/1.0 200 ") && answer.ends_with(&name), "{answer}");
        let own = format!("{name}.rancher.internal");
        let asks =
            ["run", "--rm", "--name", &name, "--dns", "169.254.169.251", "box", "/bin/busybox", "nslookup", &own];
        let answer = world.engine.docker(&asks);
        assert!(answer.contains(&own) && !answer.contains("NXDOMAIN"), "{answer}");
    }
    // Several on the host's network, which share its address, and are told apart by their sockets.
    for name in ["on-host-1", "on-host-2"] {
        world.engine.run_box(name, &["--network", "host"]);
    }
    for name in ["on-host-2", "on-host-1"] {
        let answer = world.engine.docker(&["exec", name, "/bin/busybox", "sh", "-c", ASKS_AT_ONCE]);
        assert!(answer.starts_with("HTTP/1.0 200 ") && answer.ends_with(name), "{answer}");
        let waits = ASKS_AT_ONCE.replace(" HTTP", "?wait=true&value=x HTTP");
        let answer = world.engine.docker(&["exec", name, "/bin/busybox", "sh", "-c", &waits]);
        assert!(answer.starts_with("HTTP/1.0 200 ") && answer.ends_with(name), "a long poll: {answer}");
    }
}

/// A datagram does not say which process of the host sent it, so DNS sees the host: full names, and no search in the
/// container's own stack (docs/dns.md, "Short names").
fn on_the_hosts_network_names_are_those_of_the_host(world: &Boxed) {
    let of = |service: &str| format!("--label=com.docker.compose.service={service}");
    let project = "--label=com.docker.compose.project=back";
    world.engine.run_box("back-db-1", &[project, &of("db")]);
    world.engine.run_box("back-web-1", &[project, &of("web")]);
    world.engine.run_box("back-host-1", &[project, &of("host"), "--network", "host"]);
    let address = world.engine.docker(&["inspect", "--format", "{{.NetworkSettings.IPAddress}}", "back-db-1"]);
    let asked = |container: &str, transport: &str, name: &str| {
        let dig = ["dig", "@169.254.169.251", transport, "+short", "+time=3", "+tries=1", name];
        within(world, container, &dig).contains(&address)
    };
    eventually("both are known", LIMIT, || asked("back-web-1", "+tcp", "db").then_some(()));
    for transport in ["+notcp", "+tcp"] {
        for (container, name, found) in [
            ("back-web-1", "db", true),
            ("back-web-1", "db.back.rancher.internal", true),
            ("back-host-1", "db.back.rancher.internal", true),
            ("back-host-1", "back-db-1.rancher.internal", true),
            ("back-host-1", "db", false),
            ("back-host-1", "db.back", false),
        ] {
            assert_eq!(asked(container, transport, name), found, "{container} asks for {name}, {transport}");
        }
    }
    world.engine.docker(&["rm", "--force", "back-db-1", "back-web-1", "back-host-1"]);
}

/// What `agent doctor` says on the host.
fn doctor(world: &Boxed) -> String {
    let engine = format!("unix://{}", world.engine.socket().display());
    let doctor = Launch::bare(Executable::Agent).word("doctor").in_namespace(&world.pair.host);
    doctor.word(format!("--docker={engine}")).run().output
}

/// The doctor asks as containers do, and names the one that cannot.
fn the_doctor_names_what_is_wrong_and_nothing_else(world: &Boxed) {
    // Names that look like those of the Internet or cannot be one, and who is paused: nothing is wrong with them.
    let long = "b".repeat(70);
    for name in ["example.com", &long, "paused"] {
        world.engine.run_box(name, &[]);
    }
    world.engine.docker(&["pause", "paused"]);
    let told = doctor(world);
    assert!(told.contains("4 get their own metadata and find their own names"), "{told}");
    assert!(told.contains(", 0 bad"), "{told}");
    // One that is called like a service is no disease either.
    let of_service = ["--label=com.docker.compose.project=com", "--label=com.docker.compose.service=example"];
    world.engine.run_box("com-example-1", &of_service);
    let note = eventually("the doctor knows of both", LIMIT, || {
        doctor(world).lines().find(|line| line.contains("asked in example.com")).map(str::to_owned)
    });
    assert!(note.starts_with("odd ") && note.contains("has this name"), "{note}");
    within(world, "db", &["ip", "route", "delete", "default"]);
    let told = doctor(world);
    assert!(told.contains("asked in db") && told.contains("has no route to 169.254.169.250:80"), "{told}");
    // A firewall between containers and what runs is no reason to start it again.
    let rule = ["INPUT", "-i", "docker0", "-p", "tcp", "--dport", "336", "-j", "REJECT", "--reject-with", "tcp-reset"];
    world.pair.on_host(&[&["iptables", "-I"][..], &rule[..]].concat());
    let told = doctor(world);
    world.pair.on_host(&[&["iptables", "-D"][..], &rule[..]].concat());
    assert!(told.contains("let containers through the host's firewall to TCP port 336"), "{told}");
    assert!(!told.contains("agent up"), "{told}");
}

fn the_host_is_answered_and_no_neighbour(world: &Boxed) {
    // The host itself is answered, a neighbour on the local network is not: neither over its default route nor with one
    // to the address.
    assert_eq!(world.pair.on_host(&["curl", "-s", "http://169.254.169.250/latest/self"]), "host/\n");
    for route in [false, true] {
        if route {
            for address in ["169.254.169.250/32", "169.254.169.251/32"] {
                world.pair.in_container(&["ip", "route", "add", address, "dev", "eth0"]);
            }
        }
        let answer = world.pair.in_container(&["curl", "-s", "-m", "1", "-w", "%{http_code}", SELF]);
        assert_eq!(answer, "000", "with its own route: {route}");
        for transport in ["+notcp", "+tcp"] {
            let dig = ["dig", "@169.254.169.251", transport, "+short", "+time=1", "+tries=1", "web.rancher.internal"];
            let answer = world.pair.in_container(&dig);
            assert!(!answer.contains("172."), "{transport}, with its own route: {route}: {answer}");
        }
    }
}
