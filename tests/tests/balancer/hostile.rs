//! What documents say to harm a proxy, and what sources fail to say.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tests::battery::is_long;
use tests::cluster::replace;
use tests::http::get;
use tests::random::Random;
use tests::{Launch, eventually, ports, tell};

use crate::web::{Web, ask, body};
use crate::{Balancer, LIMIT, document, has_programs, rule};

/// What ends words, lines, quotes and expressions, and what is a word of a proxy.
const PARTS: [&str; 32] = [
    "a",
    "b",
    "example.org",
    "*.",
    ".*",
    "*",
    "/",
    "'",
    "\"",
    "\\",
    "\n",
    "\r",
    "\0",
    "#",
    " ",
    "`",
    "}",
    "{",
    "é",
    "if",
    "%",
    "$",
    "-f",
    "-m",
    "--",
    "berth",
    "b1",
    "`) || Host(`",
    "(?i)",
    "[",
    "\u{2028}",
    "unless",
];

/// Text of some of these, as JSON, which is YAML too; some of it is 10 KiB long.
fn text(random: &mut Random) -> String {
    let count = random.below(6);
    let text: String = (0..count).map(|_| random.of(&PARTS)).collect();
    let text = if random.below(40) == 0 { text.repeat(10 << 10).chars().take(10 << 10).collect() } else { text };
    serde_json::to_string(&text).unwrap()
}

/// The rules of a hostile document, and what else its `lb_config` says.
fn hostile(random: &mut Random, port: u16) -> (String, String) {
    let mut rules = String::new();
    for _ in 0..random.below(12) {
        let [host, path, name, selector] = [(); 4].map(|()| text(random));
        let protocol = random.of(&["http", "http", "https", "tcp", "\"ht\\ntp\"", "42"]);
        let target = random.of(&["1", "0", "-1", "65536", "\"80\"", "[]", "null"]);
        let leads = if random.below(3) == 0 { format!("selector: {selector}") } else { "service: s/a".to_owned() };
        let _ = writeln!(
            rules,
            "    - {{ source_port: {port}, hostname: {host}, path: {path}, backend_name: {name}, protocol: {protocol}, {leads}, target_port: {target} }}"
        );
    }
    let [cookie, domain, certificate, lines] = [(); 4].map(|()| text(random));
    let sticky = random.of(&["insert", "rewrite", "prefix", "\"x\\ny\""]);
    let more = format!(
        "    stickiness_policy: {{ mode: {sticky}, cookie: {cookie}, domain: {domain} }}\n    certs: [{certificate}]\n    config: {lines}\n"
    );
    (rules, more)
}

/// A balancer's port, and the one server that its rules lead to.
struct Scene {
    folder: TempDir,
    file: PathBuf,
    port: u16,
    target: u16,
    proxy: SocketAddr,
    web: Web,
}

impl Scene {
    /// `number` is the last one of the server's address.
    fn new(number: u8) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cluster.yml");
        let [port, target] = ports::some(2)[..] else { unreachable!() };
        let proxy = SocketAddr::from(([127, 0, 0, 1], port));
        Self { folder, file, port, target, proxy, web: Web::start(number, target, "a") }
    }
}

#[test]
fn traefik_takes_what_hostile_documents_come_to() {
    let Scene { folder, file, port, target, proxy, web } = Scene::new(251);
    let services = [("a", vec![(web.ip(), "running")])];
    replace(&file, document(&rule(port, "begin.example.org", "", "a", target), &services, ""));
    let Some(balancer) = Balancer::traefik(&file, folder.path()) else { return };
    let Balancer::Traefik { log, .. } = &balancer else { unreachable!() };
    eventually("Traefik serves", LIMIT, || body(proxy, "begin.example.org", "/"));
    let mut random = Random(0x5eed_0000_0bad_0002);
    let rounds = if is_long() { 2000 } else { 25 };
    for round in 0..rounds {
        let (mut rules, more) = hostile(&mut random, port);
        if round == 0 {
            rules += &rule(port, &"a".repeat(1 << 20), "", "a", target);
        }
        // The first rule of a port decides what is spoken there.
        let good = format!("r{round}.example.org");
        let rules = rule(port, &good, "/deep", "a", target) + &rules;
        replace(&file, document(&rules, &services, &more));
        let what = format!("the good rule of round {round} counts: {rules}");
        eventually(&what, LIMIT, || body(proxy, &good, "/deep/er").filter(|body| body == "a"));
    }
    tell(&format!("Traefik took {rounds} hostile documents"));
    let said = std::fs::read_to_string(log).unwrap();
    assert!(!said.contains("ERR"), "{said}");
}

#[test]
fn a_source_that_is_killed_or_emptied_or_broken_takes_no_route_from_traefik() {
    let Scene { folder, file, port, target, proxy, web } = Scene::new(252);
    let services = [("a", vec![(web.ip(), "running")])];
    let full = document(&rule(port, "", "", "a", target), &services, "");
    replace(&file, full.clone());
    let Some(mut balancer) = Balancer::traefik(&file, folder.path()) else { return };
    let Balancer::Traefik { _metadata: metadata, log, .. } = &mut balancer else { unreachable!() };
    eventually("Traefik serves", LIMIT, || body(proxy, "x.example.org", "/"));
    let address = metadata.address();
    let serves = |what: &str| {
        // Several of its questions later.
        for _ in 0..20 {
            assert_eq!(body(proxy, "x.example.org", "/").as_deref(), Some("a"), "{what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let status = |address| get("/v1/traefik?service=edge/lb&wait=0").ask(address).status;
    for (what, text) in [
        ("no balancer", "berth: 1\nservices:\n- { name: x, stack: y }\n...\n"),
        ("nothing but a version", "berth: 1\n...\n"),
        ("no document", "{\n"),
        ("empty", ""),
        ("no rules at all", "berth: 1\nservices:\n- { name: lb, stack: edge, lb_config: nonsense }\n...\n"),
    ] {
        replace(&file, text);
        std::thread::sleep(Duration::from_millis(500));
        serves(what);
        let found = status(address);
        // What is no document leaves the one before.
        assert!(matches!(found, 503 | 200), "{what}: {found}");
    }
    replace(&file, full.clone());
    eventually("the balancer is back", LIMIT, || (status(address) == 200).then_some(()));
    metadata.kill();
    serves("the metadata service is killed");
    // Without the balancer at first.
    replace(&file, "berth: 1\nservices:\n- { name: x, stack: y }\n...\n");
    let _metadata = Launch::metadata(&file).with("--listen", address.to_string()).start();
    eventually("it is back and knows no balancer", LIMIT, || {
        std::net::TcpStream::connect(address).ok().and_then(|_| (status(address) == 503).then_some(()))
    });
    serves("the metadata service was started again without the balancer");
    replace(&file, document(&rule(port, "new.example.org", "", "a", target), &services, ""));
    eventually("the next change counts", LIMIT, || {
        let old = ask(proxy, "x.example.org", "/").is_some_and(|(status, _)| status == 404);
        (old && body(proxy, "new.example.org", "/").is_some()).then_some(())
    });
    let said = std::fs::read_to_string(log).unwrap();
    assert!(!said.contains("ecode") && !said.contains("field not found"), "{said}");
}

#[test]
fn what_haproxy_refuses_is_left_out_alone() {
    if !has_programs() {
        return;
    }
    let Scene { folder, file, port, target, proxy, web } = Scene::new(253);
    let services = [("a", vec![(web.ip(), "running")])];
    let write = |host: &str, name: &str| {
        let rules: String =
            (0..20).map(|number| rule(port, &format!("h{number}.example.org"), "", "a", target)).collect();
        let rules = rules + &rule(port, "bad.example.org", "", "ext", 80) + &rule(port, host, "", "a", target);
        let lines = "    config: \"defaults\\n maxconn 77\\n timeout server banana\\n\"\n";
        let external =
            format!("- {{ name: ext, stack: s, kind: externalService, hostname: \"{name}\" }}\ncontainers:\n");
        replace(&file, document(&rules, &services, lines).replace("containers:\n", &external));
    };
    write("c.example.org", "a..b");
    let mut balancer = Balancer::haproxy(&file, folder.path(), &[]);
    let Balancer::Haproxy(agent) = &mut balancer else { unreachable!() };
    eventually("all other rules count", LIMIT, || body(proxy, "c.example.org", "/").filter(|body| body == "a"));
    let configuration = || std::fs::read_to_string(folder.path().join("haproxy/haproxy.cfg")).unwrap();
    let text = configuration();
    assert!(text.contains("maxconn 77") && text.contains("h19.example.org"), "{text}");
    assert!(!text.contains("banana") && !text.contains("a..b"), "{text}");
    let part = "line 3, `timeout server banana`: it is left out";
    agent.line(part, |line| line.to_string().contains(part));
    assert!(agent.reasons().is_empty() || agent.reasons().contains("left out"), "{}", agent.reasons());
    // Others are added, and a name that HAProxy would refuse as a server is none here either, until it is right.
    write("d.example.org", "a..b");
    eventually("a new rule counts", LIMIT, || body(proxy, "d.example.org", "/").filter(|body| body == "a"));
    write("d.example.org", "db.example.org");
    eventually("the rule counts once it is right", LIMIT, || {
        configuration().contains(" db.example.org:80").then_some(())
    });
}
