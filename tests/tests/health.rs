//! Health checks of a running agent: what is asked of containers decides whether DNS names them.
//!
//! Those in `with_engine` need Docker Engines.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "health/under_load.rs"]
mod under_load;
#[path = "health/with_engine.rs"]
mod with_engine;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tests::cluster::{ClusterFolder, replace};
use tests::service::Ended;
use tests::wait::timed;
use tests::{Companion, Executable, Launch, Question, Service, eventually, http, tell};

const LIMIT: Duration = Duration::from_secs(20);

/// The addresses of the two containers of [`Web`].
const MEMBERS: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 42, 61, 1), Ipv4Addr::new(127, 42, 61, 2)];

/// A server at both addresses, which answers each request with what it is to answer there.
struct Web {
    port: u16,
    is_well: Arc<[AtomicBool; 2]>,
    _serving: Vec<Companion<()>>,
}

impl Web {
    fn start() -> Self {
        let first = TcpListener::bind((MEMBERS[0], 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        let second = TcpListener::bind((MEMBERS[1], port)).unwrap();
        let is_well = Arc::new([const { AtomicBool::new(true) }; 2]);
        let serving = [first, second].into_iter().enumerate().map(|(index, listener)| {
            let is_well = is_well.clone();
            Companion::start(move || serve(&listener, &is_well[index]))
        });
        Self { port, _serving: serving.collect(), is_well }
    }

    fn file(&self, check: &str) -> String {
        let container = |number: usize| {
            format!("- {{ name: web-{number}, service: shop/web, host: h, primary_ip: {} }}\n", MEMBERS[number - 1])
        };
        format!(
            "berth: 1\nhosts:\n- {{ name: h, agent_ip: 192.0.2.1 }}\nservices:\n- {{ name: web, stack: shop, health_check: {{ port: {}, {check} }} }}\ncontainers:\n{}{}...\n",
            self.port,
            container(1),
            container(2)
        )
    }

    fn set(&self, member: usize, is_well: bool) {
        self.is_well[member].store(is_well, Ordering::SeqCst);
    }
}

/// Ends with the test's process.
fn serve(listener: &TcpListener, is_well: &AtomicBool) {
    loop {
        let Ok((mut stream, _)) = listener.accept() else { return };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
        let _ = stream.read(&mut [0; 1024]);
        let status = if is_well.load(Ordering::SeqCst) { "200 OK" } else { "503 Busy" };
        let _ = write!(stream, "HTTP/1.0 {status}\r\nContent-Length: 0\r\n\r\n");
    }
}

/// The members of the service, as DNS names them.
fn members(dns: SocketAddr) -> Vec<String> {
    let mut members = Question::a("web.shop").ask(dns).data();
    members.sort();
    members
}

fn both() -> Vec<String> {
    MEMBERS.map(|member| member.to_string()).to_vec()
}

/// `agent health` with these words, asked at an agent.
fn health(agent: &mut Service, words: &[&str]) -> Ended {
    let admin = agent.admin().to_string();
    let launch = Launch::bare(Executable::Agent).word("health").with("--admin", admin);
    words.iter().fold(launch, Launch::word).run()
}

#[test]
fn members_of_a_cluster_file_are_named_while_they_answer_well() {
    let web = Web::start();
    let check = "request_line: GET /health HTTP/1.0, interval: 100, response_timeout: 1000, healthy_threshold: 2, unhealthy_threshold: 3";
    let folder = ClusterFolder::new(web.file(check));
    let state = folder.path("state");
    let launch = Launch::agent(&folder.file()).with("--health", "all").with("--state-dir", &state);
    let mut agent = launch.start();
    agent.ready();
    let dns = agent.address_of("dns");
    eventually("both are well", LIMIT, || (members(dns) == both()).then_some(()));
    web.set(0, false);
    let ((), took) = timed("the first one is left out", LIMIT, || (members(dns) == both()[1..]).then_some(()));
    tell(&format!("left out {took:?} after its first bad answer (3 checks, one each 100 ms)"));
    let metadata = agent.address_of("metadata");
    let state_of = |name: &str| http::get(format!("/latest/containers/{name}/health_state")).ask(metadata).text();
    // Metadata makes its view beside dns: it may have it a moment later.
    eventually("metadata says so too", LIMIT, || {
        (["web-1", "web-2"].map(state_of) == ["unhealthy", "healthy"]).then_some(())
    });

    let shown = health(&mut agent, &["web-1"]);
    assert_eq!(shown.code, Some(0), "{}", shown.errors);
    let asked = format!("http {}:{}", MEMBERS[0], web.port);
    for part in ["CONTAINER", "web-1", "shop/web", "unhealthy", &asked, "fail: status 503"] {
        assert!(shown.output.contains(part), "{part} in {}", shown.output);
    }
    assert!(!shown.output.contains("web-2"), "{}", shown.output);
    let json: serde_json::Value = serde_json::from_str(&health(&mut agent, &["shop/web", "--json"]).output).unwrap();
    assert_eq!(
        (json[0]["health_state"].as_str(), json[1]["health_state"].as_str()),
        (Some("unhealthy"), Some("healthy"))
    );
    assert!(json[0]["check"]["results"].as_array().is_some_and(|results| (4..=10).contains(&results.len())), "{json}");
    let unknown = health(&mut agent, &["no-such"]);
    assert!(unknown.code == Some(1) && unknown.errors.contains("no-such is not checked"), "{}", unknown.errors);
    let counted = http::get("/metrics").ask(agent.admin()).text();
    assert!(counted.contains("health_targets{from=\"own\"} 2\n"), "{counted}");

    // After a restart it is known what was known: neither is left out who is well nor named who is not.
    agent.stop();
    let mut agent = launch.start();
    agent.ready();
    let dns = agent.address_of("dns");
    for _ in 0..50 {
        assert_eq!(members(dns), both()[1..]);
    }
    web.set(0, true);
    eventually("the first one is well again", LIMIT, || (members(dns) == both()).then_some(()));
}

/// How many containers [`Many`] has: more than a panic needs.
const MANY: usize = 30;

/// Servers at many addresses with one port, each of which accepts connections or refuses them.
struct Many {
    port: u16,
    listeners: Arc<Mutex<Vec<Option<TcpListener>>>>,
    _accepting: Companion<()>,
}

impl Many {
    fn address(number: usize) -> Ipv4Addr {
        Ipv4Addr::new(127, 42, 62, u8::try_from(number + 1).unwrap())
    }

    fn listener(number: usize, port: u16) -> TcpListener {
        let listener = TcpListener::bind((Self::address(number), port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    }

    fn start() -> Self {
        let first = Self::listener(0, 0);
        let port = first.local_addr().unwrap().port();
        let others = (1..MANY).map(|number| Self::listener(number, port));
        let listeners: Vec<_> = std::iter::once(first).chain(others).map(Some).collect();
        let listeners = Arc::new(Mutex::new(listeners));
        let accepted = listeners.clone();
        let accepting = Companion::start(move || {
            loop {
                for listener in accepted.lock().unwrap().iter().flatten() {
                    while listener.accept().is_ok() {}
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Self { port, listeners, _accepting: accepting }
    }

    fn set(&self, number: usize, is_well: bool) {
        self.listeners.lock().unwrap()[number] = is_well.then(|| Self::listener(number, self.port));
    }

    fn file(&self) -> String {
        let container = |number| {
            let address = Self::address(number);
            format!("- {{ name: web-{number}, service: shop/web, host: h, primary_ip: {address} }}\n")
        };
        let containers = (0..MANY).map(container).collect::<Vec<_>>().concat();
        format!(
            "berth: 1\nhosts:\n- {{ name: h, agent_ip: 192.0.2.1 }}\nservices:\n- {{ name: web, stack: shop, health_check: {{ port: {}, interval: 100 }} }}\ncontainers:\n{containers}...\n",
            self.port
        )
    }
}

#[test]
fn when_most_containers_fail_at_once_names_stay_until_half_are_well() {
    let many = Many::start();
    let folder = ClusterFolder::new(many.file());
    let mut agent = Launch::agent(&folder.file()).with("--health", "all").start();
    agent.ready();
    let (dns, admin) = (agent.address_of("dns"), agent.admin());
    eventually("all are well", LIMIT, || (members(dns).len() == MANY).then_some(()));
    let failing = MANY * 6 / 10;
    (0..failing).for_each(|number| many.set(number, false));
    eventually("health is ignored, and until then some are named", LIMIT, || {
        assert!(members(dns).len() >= MANY - failing);
        http::get("/metrics").ask(admin).text().contains("health_panic 1").then_some(())
    });
    // DNS and the metric each learn it by themselves.
    eventually("all are named again", LIMIT, || (members(dns).len() == MANY).then_some(()));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        assert_eq!(members(dns).len(), MANY);
    }
    let ready = http::get("/readyz").ask(admin);
    assert!(ready.status == 200 && ready.text().contains("health is ignored until half"), "{}", ready.text());
    // Four more are well: health counts again.
    (0..4).for_each(|number| many.set(number, true));
    eventually("health counts again", LIMIT, || (members(dns).len() == MANY - failing + 4).then_some(()));
    eventually("the metric says so", LIMIT, || {
        http::get("/metrics").ask(admin).text().contains("health_panic 0").then_some(())
    });
}

#[test]
fn a_wrong_check_is_left_out_and_named() {
    let web = Web::start();
    let folder = ClusterFolder::new(web.file("interval: 5"));
    let mut agent = Launch::agent(&folder.file()).with("--health", "all").start();
    agent.ready();
    eventually("it is in the log", LIMIT, || {
        let lines = agent.lines_with("health check is wrong");
        (lines.len() == 2 && lines[0].contains("interval")).then_some(())
    });
    let shown = health(&mut agent, &["web"]);
    assert!(shown.output.contains("unchecked: interval"), "{}{}", shown.output, shown.errors);
    // The file is mended.
    replace(&folder.file(), web.file("interval: 100"));
    let dns = agent.address_of("dns");
    eventually("it is checked", LIMIT, || (members(dns) == both()).then_some(()));
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let folder = ClusterFolder::new(tests::cluster::shop_text());
    for (which, words) in
        [("own", "--health all with a cluster file"), ("often", "possible values: cluster, own, all, off")]
    {
        let ended = Launch::agent(&folder.file()).with("--health", which).run();
        assert!(ended.code != Some(0) && ended.errors.contains(words), "{which}: {}", ended.errors);
    }
    let mut agent = Launch::agent(&folder.file()).start();
    agent.ready();
    let ended = health(&mut agent, &[]);
    assert!(ended.code == Some(1) && ended.errors.contains("checks nothing"), "{}", ended.errors);
}
