//! A real Docker Engine as a source: what it runs becomes the document of its host, whatever becomes of the engine.
//!
//! Linux, as root, with Debian's docker.io and busybox-static; images are imported, since there is no registry.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use live::docker::{Certificates, Endpoint};
use live::{HostDocument, HostOptions};
use model::{Node, Snapshot};
use serde_json::{Value, json};
use source::{Readiness, Reload, Store};
use tests::engine::Engine;
use tests::namespace::Pair;
use tests::wait::seconds;
use tests::{eventually, skip, tell};
use tokio::runtime::Runtime;

const LIMIT: Duration = Duration::from_secs(30);

/// Longest time from an engine's event to the document; far above what is measured, since other tests run beside.
const EVENT_LIMIT: Duration = Duration::from_secs(2);

const COMPOSE: &str = "com.docker.compose";

/// An engine with an image, in a namespace. Fields are dropped in this order.
struct World {
    engine: Engine,
    _pair: Pair,
}

impl World {
    /// `None`, with a word about it, where there can be none.
    fn new() -> Option<Self> {
        let busybox = Path::new("/bin/busybox");
        if !busybox.exists() {
            skip("/bin/busybox is missing (Debian: busybox-static)");
            return None;
        }
        let pair = match Pair::new("10.42.0.7") {
            Ok(pair) => pair,
            Err(refused) => {
                skip(&format!("no network namespaces without root: {refused}"));
                return None;
            }
        };
        let engine = Engine::start(&pair.host)?;
        engine.import("box", &[busybox], &[("sh", "busybox"), ("true", "busybox"), ("false", "busybox")]);
        Some(Self { engine, _pair: pair })
    }

    fn docker(&self, arguments: &[&str]) -> String {
        self.engine.docker(arguments)
    }

    /// Runs a container that sleeps, with these flags.
    fn run(&self, name: &str, flags: &[&str]) -> String {
        let run = ["run", "--detach", "--name", name];
        self.docker(&[&run[..], flags, &["box", "/bin/busybox", "sleep", "600"]].concat())
    }
}

/// An engine being followed.
struct Followed {
    told: Arc<Store<HostDocument>>,
    readiness: Arc<Readiness>,
    reload: Reload,
    runtime: Runtime,
}

impl Followed {
    fn new(engine: &Engine) -> Self {
        let endpoint: Endpoint = format!("unix://{}", engine.socket().display()).parse().unwrap();
        Self::at(endpoint, None)
    }

    fn at(endpoint: Endpoint, certificates: Option<Certificates>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (told, readiness) = (Arc::new(Store::new(HostDocument::default())), Arc::new(Readiness::default()));
        let (reload, requests) = Reload::channel();
        let options = HostOptions {
            name: Some("here".into()),
            labels: vec![("zone".into(), "a".into())],
            public_ip: Some("192.0.2.10".parse().unwrap()),
            environment: Some("prod".into()),
        };
        runtime.spawn(live::docker::follow(endpoint, certificates, options, told.clone(), readiness.clone(), requests));
        Self { told, readiness, reload, runtime }
    }

    fn document(&self) -> Value {
        serde_json::to_value(&self.told.load_full().document).unwrap()
    }

    /// What the document says of a container.
    fn container(&self, name: &str) -> Option<Value> {
        let document = self.document();
        let all = document["containers"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|container| container["name"] == name)
    }

    fn names(&self) -> Vec<String> {
        let document = self.document();
        let all = document["containers"].as_array().cloned().unwrap_or_default();
        let mut names: Vec<_> = all.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    }

    /// Waits until a field of a container has this value; gives the container.
    fn until(&self, name: &str, field: &str, expected: &Value) -> Value {
        let what = format!("{name} has {field} {expected}");
        eventually(&what, LIMIT, || self.container(name).filter(|container| container[field] == *expected))
    }

    /// The snapshot that the document resolves to, which has no defect.
    fn snapshot(&self) -> Snapshot {
        let told = self.told.load_full();
        let node = Node::from_value(&model::Value::Map(told.document.clone()));
        let (snapshot, defects) = model::document::resolve(&node).unwrap();
        assert_eq!((&defects[..], &told.defects[..]), (&[][..], &[][..]));
        snapshot
    }

    fn reason(&self) -> String {
        self.readiness.reasons().get(live::docker::follow::PART).cloned().unwrap_or_default()
    }

    fn ready(&self) {
        eventually("the engine was read", LIMIT, || self.reason().is_empty().then_some(()));
    }
}

/// Stands between an engine and who asks it, and answers some questions itself. Its threads end with the process.
struct Meddler {
    socket: PathBuf,
    harms: Arc<Mutex<Harms>>,
    _folder: tempfile::TempDir,
}

/// Parts of request lines that are not passed on.
#[derive(Default)]
struct Harms {
    /// Those that are answered with an error.
    refused: Vec<String>,
    /// Those that are never answered.
    swallowed: Vec<String>,
}

impl Meddler {
    fn new(engine: &Engine) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (socket, target) = (folder.path().join("docker.sock"), engine.socket());
        let harms: Arc<Mutex<Harms>> = Arc::default();
        let listener = UnixListener::bind(&socket).unwrap();
        let meddling = harms.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(engine) = UnixStream::connect(&target) else { continue };
                let (mut from, mut to) = (engine.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
                let meddling = meddling.clone();
                std::thread::spawn(move || Self::requests(client, engine, &meddling));
            }
        });
        Self { socket, harms, _folder: folder }
    }

    /// Passes requests on, which have no bodies and come one after the other.
    fn requests(mut client: UnixStream, mut engine: UnixStream, harms: &Mutex<Harms>) -> Option<()> {
        let mut head = Vec::new();
        loop {
            let mut octet = [0];
            client.read_exact(&mut octet).ok()?;
            head.extend(octet);
            if head.ends_with(b"\r\n\r\n") {
                let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
                let has = |parts: &[String]| parts.iter().any(|part| line.contains(part.as_str()));
                let (refused, swallowed) = {
                    let harms = harms.lock().unwrap();
                    (has(&harms.refused), has(&harms.swallowed))
                };
                if refused {
                    let body = r#"{"message": "out of sorts"}"#;
                    let length = body.len();
                    let kind = "Content-Type: application/json";
                    let answer = format!("HTTP/1.1 500 No\r\n{kind}\r\nContent-Length: {length}\r\n\r\n{body}");
                    client.write_all(answer.as_bytes()).ok()?;
                } else if !swallowed {
                    engine.write_all(&head).ok()?;
                }
                head.clear();
            }
        }
    }

    fn refuse(&self, parts: &[&str]) {
        self.harms.lock().unwrap().refused = parts.iter().map(ToString::to_string).collect();
    }

    fn swallow(&self, parts: &[&str]) {
        self.harms.lock().unwrap().swallowed = parts.iter().map(ToString::to_string).collect();
    }

    fn endpoint(&self) -> Endpoint {
        format!("unix://{}", self.socket.display()).parse().unwrap()
    }
}

#[test]
fn one_container_that_cannot_be_inspected_harms_no_other() {
    let Some(world) = World::new() else { return };
    let (one, two) = (world.run("one", &[]), world.run("two", &[]));
    let meddler = Meddler::new(&world.engine);
    meddler.refuse(&[&one]);
    let followed = Followed::at(meddler.endpoint(), None);
    followed.ready();
    assert_eq!(followed.names(), ["two"]);
    let told = followed.told.load_full();
    let defects: Vec<_> = told.defects.iter().map(ToString::to_string).collect();
    assert!(defects.len() == 1 && defects[0].contains(&one) && defects[0].contains("out of sorts"), "{defects:?}");
    // It is asked about again by itself; and what was known stays when it can no longer be asked.
    meddler.refuse(&[]);
    followed.until("one", "state", &json!("running"));
    assert_eq!(followed.told.load_full().defects, []);
    meddler.refuse(&[&two]);
    world.docker(&["pause", "two"]);
    world.docker(&["pause", "one"]);
    followed.until("one", "state", &json!("stopping"));
    eventually("it is reported", LIMIT, || (followed.told.load_full().defects.len() == 1).then_some(()));
    assert_eq!(followed.container("two").unwrap()["state"], "running");

    // A list that fails takes nobody away.
    meddler.refuse(&["/containers/json"]);
    let refused = followed.runtime.block_on(followed.reload.request()).unwrap_err();
    assert!(refused.contains("out of sorts") && followed.reason().contains("out of sorts"), "{refused}");
    assert_eq!(followed.names(), ["one", "two"]);
    meddler.refuse(&[]);
    followed.ready();
    followed.until("two", "state", &json!("stopping"));
    world.docker(&["unpause", "two"]);
    followed.until("two", "state", &json!("running"));
}

#[test]
fn what_events_did_not_tell_is_read_all_the_same() {
    let Some(world) = World::new() else { return };
    world.run("leaves", &[]);
    let meddler = Meddler::new(&world.engine);
    meddler.swallow(&["/events"]);
    let followed = Followed::at(meddler.endpoint(), None);
    followed.ready();
    assert_eq!(followed.names(), ["leaves"]);
    world.run("comes", &[]);
    world.docker(&["rm", "--force", "leaves"]);
    assert_eq!(followed.names(), ["leaves"]);
    followed.runtime.block_on(followed.reload.request()).unwrap();
    assert_eq!(followed.names(), ["comes"]);
    // By itself it is read once a minute, give or take a tenth.
    world.run("later", &[]);
    let reading = Duration::from_secs(75);
    eventually("it is read by itself", reading, || (followed.names() == ["comes", "later"]).then_some(()));
}

#[test]
fn an_engine_that_hangs_is_noticed() {
    let Some(world) = World::new() else { return };
    world.run("web", &[]);
    let followed = Followed::new(&world.engine);
    followed.ready();
    let pid = std::fs::read_to_string(world.engine.socket().with_file_name("pid")).unwrap();
    let signal = |name: &str| assert!(Command::new("kill").args([name, pid.trim()]).status().unwrap().success());
    signal("-STOP");
    // Silence of 30 s, and 5 s without an answer.
    let noticed = Duration::from_mins(1);
    eventually("it is noticed", noticed, || followed.reason().contains("no answer").then_some(()));
    assert_eq!(followed.names(), ["web"]);
    signal("-CONT");
    followed.ready();
    assert_eq!(followed.names(), ["web"]);
}

/// Mutual TLS in front of an engine: its arguments are the folder of certificates and the socket; it prints its port.
const TLS: &str = r#"
import socket, ssl, sys, threading
folder = sys.argv[1]
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder + "/ca.pem")
context.verify_mode = ssl.CERT_REQUIRED
context.load_cert_chain(folder + "/cert.pem", folder + "/key.pem")
def copy(source, target):
    try:
        while octets := source.recv(65536):
            target.sendall(octets)
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

/// Ended when dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_engine_is_followed_by_mutual_tls() {
    if !tests::shared::has("openssl", "version") || !tests::shared::has("python3", "--version") {
        return skip("openssl or python3 is missing");
    }
    let Some(world) = World::new() else { return };
    world.run("web", &[]);
    let folder = tempfile::tempdir().unwrap();
    for name in ["ours", "others"] {
        let script = format!(
            "set -e; mkdir {name}; cd {name}
             openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=authority \
                 -keyout ca.key -out ca.pem -addext basicConstraints=critical,CA:TRUE
             openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost -keyout key.pem -out r
             printf 'subjectAltName=IP:127.0.0.1\n' > extensions
             openssl x509 -req -in r -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile extensions -out cert.pem"
        );
        let made = Command::new("sh").args(["-c", &script]).current_dir(folder.path()).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let (ours, others) = (folder.path().join("ours"), folder.path().join("others"));
    let mut command = Command::new("python3");
    command.args(["-c", TLS]).arg(&ours).arg(world.engine.socket());
    let mut front = Ended(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut port = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(front.0.stdout.take().unwrap()), &mut port).unwrap();
    let endpoint = Endpoint::parse(&format!("tcp://127.0.0.1:{}", port.trim()), true).unwrap();

    let followed = Followed::at(endpoint.clone(), Some(Certificates::read(&ours).unwrap()));
    followed.ready();
    assert_eq!(followed.names(), ["web"]);
    world.run("later", &[]);
    followed.until("later", "state", &json!("running"));
    // Of another authority: neither do we trust it, nor it us.
    let stranger = Followed::at(endpoint, Some(Certificates::read(&others).unwrap()));
    let what = "the certificate is refused";
    eventually(what, LIMIT, || stranger.reason().to_lowercase().contains("certificate").then_some(()));
    assert_eq!(stranger.names(), [""; 0]);
}

#[test]
fn what_compose_starts_comes_and_goes() {
    let Some(world) = World::new() else { return };
    world.docker(&["network", "create", "shop_default"]);
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
    world.run("shop-web-1", &[&flags[..], &health, &more, &["--memory", "32m", "--dns", "192.0.2.53"]].concat());
    let found = followed.until("shop-web-1", "state", &json!("running"));
    let address = "{{.NetworkSettings.Networks.shop_default.IPAddress}}";
    let address = world.docker(&["inspect", "--format", address, "shop-web-1"]);
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
    world.docker(&["exec", "shop-web-1", "/bin/busybox", "touch", "/healthy"]);
    followed.until("shop-web-1", "health_state", &json!("healthy"));

    // Another one that shares its network, one alone, and what happens to them.
    let log = labels("log");
    let flags: Vec<&str> = log.iter().map(String::as_str).collect();
    world.run("shop-log-1", &[&flags[..], &["--network", "container:shop-web-1"]].concat());
    assert_eq!(followed.until("shop-log-1", "network_from", &json!("shop-web-1"))["service"], json!("shop/web/log"));
    world.run("alone", &[]);
    followed.until("alone", "state", &json!("running"));
    world.docker(&["rename", "alone", "renamed"]);
    followed.until("renamed", "state", &json!("running"));
    assert_eq!(followed.container("alone"), None);
    world.docker(&["network", "connect", "--alias", "friend", "shop_default", "renamed"]);
    let search = json!(["shop.rancher.internal", "rancher.internal"]);
    let joined = followed.until("renamed", "dns_search", &search);
    assert_eq!(joined["ips"].as_array().unwrap().len(), 2);
    followed.until("shop-web-1", "links", &json!({"friend": "renamed"}));
    let snapshot = followed.snapshot();
    assert_eq!((snapshot.containers.len(), snapshot.services.len(), snapshot.hosts.len()), (3, 3, 1));
    world.docker(&["network", "disconnect", "shop_default", "renamed"]);
    followed.until("renamed", "dns_search", &Value::Null);
    world.docker(&["pause", "renamed"]);
    followed.until("renamed", "state", &json!("stopping"));
    world.docker(&["unpause", "renamed"]);
    followed.until("renamed", "state", &json!("running"));
    world.docker(&["stop", "--time", "0", "renamed"]);
    let stopped = followed.until("renamed", "state", &json!("stopped"));
    assert_eq!(stopped["primary_ip"], Value::Null);
    world.docker(&["update", "--memory-reservation", "16m", "shop-web-1"]);
    followed.until("shop-web-1", "memory_reservation", &json!(16 << 20));
    world.docker(&["rm", "renamed"]);
    eventually("it is gone", LIMIT, || (followed.names() == ["shop-log-1", "shop-web-1"]).then_some(()));
    world.docker(&["network", "create", "later"]);
    let has_network =
        || followed.document()["networks"].as_array()?.iter().any(|one| one["name"] == "later").then_some(());
    eventually("networks are followed", LIMIT, has_network);
    world.docker(&["rm", "--force", "shop-log-1", "shop-web-1"]);
    eventually("all are gone", LIMIT, || followed.names().is_empty().then_some(()));
    followed.snapshot();
}

#[test]
fn a_started_container_is_told_at_once() {
    let Some(world) = World::new() else { return };
    for other in 0..5 {
        world.run(&format!("other-{other}"), &[]);
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
            world.run(&name, &[]);
            let seen = seen.join().unwrap();
            let since = format!("{}", since.as_secs());
            let filters = ["--filter", "event=start", "--filter", &format!("container={name}")];
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let now = format!("{}.{:09}", now.as_secs(), now.subsec_nanos());
            let events = ["events", "--since", &since, "--until", &now, "--format", "{{.TimeNano}}"];
            let started: u64 = world.docker(&[&events[..], &filters].concat()).parse().unwrap();
            let took = seen.saturating_sub(Duration::from_nanos(started));
            tell(&format!("from the engine's event to the document: {took:?}"));
            assert!(took < seconds(EVENT_LIMIT.as_secs()), "{took:?}");
        });
    }
}

#[test]
fn a_lost_engine_leaves_what_it_said_last() {
    let Some(mut world) = World::new() else { return };
    world.run("keeps", &["--restart", "always"]);
    world.run("ends", &[]);
    // Absent at start.
    world.engine.kill();
    std::fs::remove_file(world.engine.socket()).unwrap();
    let followed = Followed::new(&world.engine);
    eventually("it says what to do", LIMIT, || followed.reason().contains("start the engine").then_some(()));
    assert_eq!(followed.names(), [""; 0]);
    let refused = followed.runtime.block_on(followed.reload.request()).unwrap_err();
    assert!(refused.contains("start the engine"), "{refused}");
    world.engine.restart();
    followed.ready();
    assert_eq!(followed.names(), ["ends", "keeps"]);
    // Without live-restore an engine ends what ran without it, and starts again what wants to be.
    followed.until("keeps", "state", &json!("running"));
    followed.until("ends", "state", &json!("stopped"));

    // Killed while it is followed, twice: nothing is taken back until it says so itself.
    for _ in 0..2 {
        let before = followed.document();
        world.engine.kill();
        eventually("it is missed", LIMIT, || (!followed.reason().is_empty()).then_some(()));
        assert_eq!(followed.document(), before);
        world.engine.restart();
        followed.ready();
        assert_eq!(followed.names(), ["ends", "keeps"]);
        followed.until("keeps", "state", &json!("running"));
    }
    world.docker(&["start", "ends"]);
    followed.until("ends", "state", &json!("running"));
    followed.runtime.block_on(followed.reload.request()).unwrap();
    world.docker(&["rm", "--force", "ends", "keeps"]);
    eventually("both are gone", LIMIT, || followed.names().is_empty().then_some(()));
}
