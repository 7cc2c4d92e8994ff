//! A real Docker Engine as a source: what it runs becomes the document of its host, at once.
//!
//! Linux, as root, with Debian's docker.io and busybox-static; images are imported, since there is no registry.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engine::{Certificates, Endpoint};
use serde_json::{Value, json};
use tests::certificates::Authority;
use tests::engine::Boxed;
use tests::followed::Followed;
use tests::wait::scaled;
use tests::{Process, eventually, tell};

const LIMIT: Duration = Duration::from_secs(30);

/// Longest time from an engine's event to the document; far above what is measured, since other tests run beside.
const EVENT_LIMIT: Duration = Duration::from_secs(2);

const COMPOSE: &str = "com.docker.compose";

/// Mutual TLS in front of an engine: its arguments are the folder of certificates and the socket; it prints its port.
const TLS: &str = r#"
import socket, ssl, sys, threading
folder = sys.argv[1]
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder + "/ca.pem")
context.verify_mode = ssl.CERT_REQUIRED
context.load_cert_chain(folder + "/cert.pem", folder + "/key.pem")
def copy(source, target):
    try:
        while bytes := source.recv(65536):
            target.sendall(bytes)
    except OSError:
        pass
    for one in source, target:
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
def serve(client):
    try:
        client = context.wrap_socket(client, server_side=True)
    except (ssl.SSLError, OSError):
        return
    engine = socket.socket(socket.AF_UNIX)
    engine.connect(sys.argv[2])
    threading.Thread(target=copy, args=(engine, client), daemon=True).start()
    copy(client, engine)
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

#[test]
fn an_engine_is_followed_by_mutual_tls() {
    if !tests::shared::there(&[("python3", "--version")], "python3") {
        return;
    }
    let Some(world) = Boxed::start() else { return };
    world.engine.run_box("web", &[]);
    let folder = tempfile::tempdir().unwrap();
    let [ours, others] = ["ours", "others"].map(|name| Authority::new(name).folder(folder.path(), name));
    let mut command = Command::new("python3");
    command.args(["-c", TLS]).arg(&ours).arg(world.engine.socket());
    let mut front = Process::start(command.stdout(Stdio::piped()));
    let mut port = String::new();
    BufReader::new(front.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let endpoint = Endpoint::parse(&format!("tcp://127.0.0.1:{}", port.trim()), true).unwrap();

    let followed = Followed::at(endpoint.clone(), Some(Certificates::read(&ours).unwrap()));
    followed.ready();
    assert_eq!(followed.names(), ["web"]);
    world.engine.run_box("later", &[]);
    followed.until("later", "state", &json!("running"));
    // Of another authority: neither do we trust it, nor it us.
    let stranger = Followed::at(endpoint, Some(Certificates::read(&others).unwrap()));
    let what = "the certificate is refused";
    eventually(what, LIMIT, || stranger.reason().to_lowercase().contains("certificate").then_some(()));
    assert_eq!(stranger.names(), [""; 0]);
}

#[test]
fn what_compose_starts_comes_and_goes() {
    let Some(world) = Boxed::start() else { return };
    world.engine.docker(&["network", "create", "shop_default"]);
    let followed = Followed::new(&world.engine);
    followed.ready();
    let host = &followed.document()["hosts"][0];
    for (pointer, expected) in [
        ("/name", json!("here")),
        ("/agent_ip", json!("192.0.2.10")),
        ("/labels/zone", json!("a")),
        ("/labels/io.rancher.host.os", json!("linux")),
    ] {
        assert_eq!(host.pointer(pointer), Some(&expected), "{pointer} {host}");
    }
    assert!(host["milli_cpu"].as_i64().unwrap() >= 1000 && host["memory"].as_i64().unwrap() > 1 << 20, "{host}");
    assert_eq!(followed.names(), [""; 0]);

    // A service with a health check, published ports and an alias.
    let labels = |service: &str| {
        let label = |key: &str, value: &str| format!("--label={COMPOSE}.{key}={value}");
        [label("project", "shop"), label("service", service), label("container-number", "1"), label("oneoff", "False")]
    };
    let web = labels("web");
    let flags: Vec<&str> = web.iter().map(String::as_str).collect();
    let health = ["--health-cmd", "test -e /healthy", "--health-interval", "500ms", "--health-retries", "1"];
    let more =
        ["--network", "shop_default", "--network-alias", "web", "--network-alias", "www", "--publish", "18080:80"];
    world
        .engine
        .run_box("shop-web-1", &[&flags[..], &health, &more, &["--memory", "32m", "--dns", "192.0.2.53"]].concat());
    let found = followed.until("shop-web-1", "state", &json!("running"));
    let address = "{{.NetworkSettings.Networks.shop_default.IPAddress}}";
    let address = world.engine.docker(&["inspect", "--format", address, "shop-web-1"]);
    for (field, expected) in [
        ("service", json!("shop/web")),
        ("primary_ip", json!(address)),
        ("network", json!("shop_default")),
        ("ports", json!(["18080:80/tcp"])),
        ("memory_reservation", json!(32 << 20)),
        ("dns", json!(["192.0.2.53"])),
        ("host", json!("here")),
    ] {
        assert_eq!(found[field], expected, "{field}");
    }
    followed.until("shop-web-1", "health_state", &json!("unhealthy"));
    world.engine.docker(&["exec", "shop-web-1", "/bin/busybox", "touch", "/healthy"]);
    followed.until("shop-web-1", "health_state", &json!("healthy"));

    // Another one that shares its network, one alone, and what happens to them.
    let log = labels("log");
    let flags: Vec<&str> = log.iter().map(String::as_str).collect();
    world.engine.run_box("shop-log-1", &[&flags[..], &["--network", "container:shop-web-1"]].concat());
    assert_eq!(followed.until("shop-log-1", "network_from", &json!("shop-web-1"))["service"], json!("shop/web/log"));
    world.engine.run_box("alone", &[]);
    followed.until("alone", "state", &json!("running"));
    world.engine.docker(&["rename", "alone", "renamed"]);
    followed.until("renamed", "state", &json!("running"));
    assert_eq!(followed.container("alone"), None);
    world.engine.docker(&["network", "connect", "--alias", "friend", "shop_default", "renamed"]);
    let search = json!(["shop.rancher.internal", "rancher.internal"]);
    let joined = followed.until("renamed", "dns_search", &search);
    assert_eq!(joined["ips"].as_array().unwrap().len(), 2);
    followed.until("shop-web-1", "links", &json!({"friend": "renamed"}));
    let snapshot = followed.snapshot();
    assert_eq!((snapshot.containers.len(), snapshot.services.len(), snapshot.hosts.len()), (3, 3, 1));
    world.engine.docker(&["network", "disconnect", "shop_default", "renamed"]);
    followed.until("renamed", "dns_search", &Value::Null);
    world.engine.docker(&["pause", "renamed"]);
    followed.until("renamed", "state", &json!("stopping"));
    world.engine.docker(&["unpause", "renamed"]);
    followed.until("renamed", "state", &json!("running"));
    world.engine.docker(&["stop", "--time", "0", "renamed"]);
    let stopped = followed.until("renamed", "state", &json!("stopped"));
    assert_eq!(stopped["primary_ip"], Value::Null);
    world.engine.docker(&["update", "--memory-reservation", "16m", "shop-web-1"]);
    followed.until("shop-web-1", "memory_reservation", &json!(16 << 20));
    world.engine.docker(&["rm", "renamed"]);
    eventually("it is gone", LIMIT, || (followed.names() == ["shop-log-1", "shop-web-1"]).then_some(()));
    world.engine.docker(&["network", "create", "later"]);
    let has_network =
        || followed.document()["networks"].as_array()?.iter().any(|one| one["name"] == "later").then_some(());
    eventually("networks are followed", LIMIT, has_network);
    world.engine.docker(&["rm", "--force", "shop-log-1", "shop-web-1"]);
    eventually("all are gone", LIMIT, || followed.names().is_empty().then_some(()));
    followed.snapshot();
}

/// By which of its networks a container asks, only the engine knows: internal ones have no route, and containers on an
/// overlay leave by a bridge that no inspection shows.
#[test]
fn no_container_asks_from_an_address_that_is_not_known_as_its_own() {
    let Some(world) = Boxed::start() else { return };
    let docker = |arguments: &[&str]| world.engine.docker(arguments);
    docker(&["swarm", "init", "--advertise-addr", "127.0.0.1", "--listen-addr", "127.0.0.1"]);
    docker(&["network", "create", "--internal", "backend"]);
    docker(&["network", "create", "frontend"]);
    docker(&["network", "create", "--ipv6", "--subnet", "2001:db8:9::/64", "outer"]);
    docker(&["network", "create", "--driver", "overlay", "--attachable", "wide"]);
    let followed = Followed::new(&world.engine);
    followed.ready();
    for networks in [&["backend", "frontend"][..], &["frontend", "outer"], &["wide"]] {
        let name = networks.join("-");
        docker(&["create", "--name", &name, "--network", networks[0], "box", "/bin/busybox", "sleep", "3600"]);
        for network in &networks[1..] {
            docker(&["network", "connect", network, &name]);
        }
        docker(&["start", &name]);
        let route = docker(&["exec", &name, "/bin/busybox", "ip", "route", "get", "169.254.169.250"]);
        let asks_from = route.split(" src ").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
        let found = followed.until(&name, "state", &json!("running"));
        let known = found["ips"].as_array().unwrap();
        assert!(known.contains(&json!(asks_from)), "{name} asks from {asks_from}: {found}");
        if networks.len() > 1 {
            assert_eq!(found["primary_ip"], json!(asks_from), "{name}");
        } else {
            assert!(
                found["primary_ip"] != json!(asks_from) && found["routed_ips"] == json!([found["primary_ip"]]),
                "{found}"
            );
        }
    }
    docker(&["rm", "--force", "wide"]);
    docker(&["swarm", "leave", "--force"]);
}

#[test]
fn labels_of_an_image_make_no_container_a_member_of_anything() {
    let Some(world) = Boxed::start() else { return };
    let followed = Followed::new(&world.engine);
    followed.ready();
    let label = |key: &str, value: &str| format!("{COMPOSE}.{key}={value}");
    let (project, service) = (label("project", "data"), label("service", "db"));
    world.engine.docker(&["create", "--name", "plain", "box", "/bin/busybox"]);
    let baked = format!("LABEL {project} {service} io.berth.placement=web-1");
    world.engine.docker(&["commit", "--change", &baked, "plain", "built"]);
    world.engine.docker(&["rm", "plain"]);
    let run = |name: &str, image: &str, labels: &[&String]| {
        let labels: Vec<String> = labels.iter().map(|label| format!("--label={label}")).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let run = ["run", "--detach", "--name", name];
        world.engine.docker(&[&run[..], &labels, &[image, "/bin/busybox", "sleep", "3600"]].concat());
        followed.until(name, "state", &json!("running"))
    };
    let stranger = run("stranger", "built", &[]);
    assert_eq!(stranger["service"], Value::Null, "{stranger}");
    assert_eq!(stranger["labels"], json!({}), "{stranger}");
    let defects = || followed.told.load_full().defects.iter().map(ToString::to_string).collect::<Vec<_>>();
    let told = defects();
    assert!(told.len() == 1 && told[0].contains("stranger") && told[0].contains("came with its image"), "{told:?}");
    // Compose gives what it creates the labels that it has given the image when it built it.
    let (hash, number) = (label("config-hash", "8f3a"), label("container-number", "1"));
    let member = run("data_db_1", "built", &[&project, &service, &hash, &number]);
    assert_eq!(member["service"], json!("data/db"), "{member}");
    // An image that is a copy of a member is none.
    world.engine.docker(&["commit", "data_db_1", "copied"]);
    let copy = run("copy", "copied", &[]);
    assert_eq!(copy["service"], Value::Null, "{copy}");
    // By hand, at creation, of an image without labels.
    assert_eq!(run("by-hand", "box", &[&project, &service])["service"], json!("data/db"));
    // It stays so when everything is read again.
    followed.reload().unwrap();
    assert_eq!(followed.container("data_db_1").unwrap()["service"], json!("data/db"));
    assert_eq!(followed.container("stranger").unwrap()["service"], Value::Null);
}

#[test]
fn no_label_counts_of_a_container_whose_image_is_gone() {
    let Some(world) = Boxed::start() else { return };
    let (engine, followed) = (&world.engine, Followed::new(&world.engine));
    followed.ready();
    engine.docker(&["create", "--name", "plain", "box", "/bin/busybox"]);
    engine.docker(&["commit", "plain", "gone"]);
    engine.docker(&["rm", "plain"]);
    let run = ["run", "--detach", "--name", "member", "--label=io.rancher.stack_service.name=data/db"];
    engine.docker(&[&run[..], &["gone", "/bin/busybox", "sleep", "3600"]].concat());
    assert_eq!(followed.until("member", "state", &json!("running"))["service"], json!("data/db"));
    engine.docker(&["stop", "--time", "0", "member"]);
    engine.docker(&["rmi", "--force", "gone"]);
    engine.docker(&["start", "member"]);
    followed.until("member", "state", &json!("running"));
    // That the image had no such label was known, and does not count any more: whoever asks the engine only now is told nothing.
    followed.reload().unwrap();
    assert_eq!(followed.container("member").unwrap()["service"], Value::Null);
    let later = Followed::new(engine);
    later.ready();
    assert_eq!(later.container("member").unwrap()["service"], Value::Null);
}

#[test]
fn a_started_container_is_told_at_once() {
    let Some(world) = Boxed::start() else { return };
    for other in 0..5 {
        world.engine.run_box(&format!("other-{other}"), &[]);
    }
    let followed = Followed::new(&world.engine);
    followed.ready();
    assert_eq!(followed.names().len(), 5);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    for round in 0..3 {
        let name = format!("late-{round}");
        std::thread::scope(|scope| {
            let seen = scope.spawn(|| {
                followed.until(&name, "state", &json!("running"));
                SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
            });
            world.engine.run_box(&name, &[]);
            let seen = seen.join().unwrap();
            let since = format!("{}", since.as_secs());
            let filters = ["--filter", "event=start", "--filter", &format!("container={name}")];
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let now = format!("{}.{:09}", now.as_secs(), now.subsec_nanos());
            let events = ["events", "--since", &since, "--until", &now, "--format", "{{.TimeNano}}"];
            let started: u64 = world.engine.docker(&[&events[..], &filters].concat()).parse().unwrap();
            let took = seen.saturating_sub(Duration::from_nanos(started));
            tell(&format!("from the engine's event to the document: {took:?}"));
            assert!(took < scaled(EVENT_LIMIT), "{took:?}");
        });
    }
}
