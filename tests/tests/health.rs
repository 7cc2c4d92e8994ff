//! Health checks of a running agent: what is asked of containers decides whether DNS names them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tests::cluster::{ClusterFolder, replace};
use tests::engine::Boxed;
use tests::service::Ended;
use tests::wait::{scaled, seconds, timed};
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
    assert_eq!(["web-1", "web-2"].map(state_of), ["unhealthy", "healthy"]);

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
    assert!(counted.contains("health_targets 2\n"), "{counted}");

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
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        assert_eq!(members(dns).len(), MANY);
    }
    let ready = http::get("/readyz").ask(admin);
    assert!(ready.status == 200 && ready.text().contains("health is ignored until half"), "{}", ready.text());
    // Four more are well: health counts again.
    (0..4).for_each(|number| many.set(number, true));
    eventually("health counts again", LIMIT, || (members(dns).len() == MANY - failing + 4).then_some(()));
    assert!(http::get("/metrics").ask(admin).text().contains("health_panic 0"));
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

/// A container that serves what is in `/www`, and ends only when it is killed.
fn serve_files(world: &Boxed, name: &str, flags: &[&str]) {
    let script = "trap '' TERM; mkdir -p /www; echo ok > /www/health; busybox httpd -p 80 -h /www; while :; do busybox sleep 1; done";
    let number = name.rsplit('-').next().unwrap();
    let labels = ["project=shop", "service=web", &format!("container-number={number}"), "oneoff=False"]
        .map(|label| format!("--label=com.docker.compose.{label}"));
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    let run = ["run", "--detach", "--name", name];
    world.engine.docker(&[&run[..], &labels, flags, &["box", "/bin/busybox", "sh", "-c", script]].concat());
}

/// An agent of an engine in a namespace, asked from there.
struct Inside<'w> {
    world: &'w Boxed,
    agent: Service,
    /// The file with its scheduler's token.
    token: String,
}

impl Inside<'_> {
    fn members(&mut self) -> usize {
        let dns = self.agent.address_of("dns");
        let (at, port) = (format!("@{}", dns.ip()), dns.port().to_string());
        let answer =
            self.world.pair.on_host(&["dig", "+short", "+tries=1", &at, "-p", &port, "web.shop.rancher.internal"]);
        answer.lines().count()
    }

    fn health(&mut self, name: &str) -> Ended {
        let admin = self.agent.admin().to_string();
        let launch = Launch::bare(Executable::Agent).word("health").word(name).with("--admin", admin);
        launch.in_namespace(&self.world.pair.host).run()
    }
}

#[test]
fn containers_of_an_engine_are_checked_as_their_labels_say() {
    let Some(world) = Boxed::start() else { return };
    let check = ["port=80", "request_line=GET /health HTTP/1.0", "interval=200ms", "response_timeout=1s"];
    let check = check.map(|label| format!("--label=io.berth.health.{label}"));
    let check: Vec<&str> = check.iter().map(String::as_str).collect();
    serve_files(&world, "web-1", &check);
    serve_files(&world, "web-2", &check);
    let folder = tempfile::tempdir().unwrap();
    let launch = Launch::bare(Executable::Agent).word("up").logged().in_namespace(&world.pair.host);
    let launch = launch.flag(&format!("--docker=unix://{}", world.engine.socket().display()));
    let launch = launch.with("--state-dir", folder.path().join("state"));
    let ports = ["--metadata", "--dns", "--scheduler", "--admin"];
    let launch = ports.iter().fold(launch, |launch, flag| launch.with(flag, "127.0.0.1:0"));
    let mut inside = Inside { world: &world, agent: launch.start(), token: String::new() };
    eventually("both are well", LIMIT, || (inside.members() == 2).then_some(()));

    world.engine.docker(&["exec", "web-1", "/bin/busybox", "rm", "/www/health"]);
    let ((), took) = timed("one is left out", LIMIT, || (inside.members() == 1).then_some(()));
    tell(&format!("left out {took:?} after its first bad answer (3 checks, one each 200 ms)"));
    let shown = inside.health("web-1");
    assert!(
        shown.output.contains("unhealthy") && shown.output.contains("status 404"),
        "{}{}",
        shown.output,
        shown.errors
    );

    let query =
        Launch::bare(Executable::Dns).word("query").word("web.shop.rancher.internal").in_namespace(&world.pair.host);
    let query = query.with("--admin", inside.agent.admin().to_string()).run();
    assert!(query.output.contains("web-1") && query.output.contains("it is unhealthy"), "{}", query.output);

    // A restart of the agent changes nothing.
    inside.agent.stop();
    inside.agent = launch.start();
    eventually("it answers", LIMIT, || (inside.members() > 0).then_some(()));
    assert_eq!(inside.members(), 1);
    world.engine.docker(&["exec", "web-1", "/bin/busybox", "touch", "/www/health"]);
    eventually("both are well again", LIMIT, || (inside.members() == 2).then_some(()));

    let doctor = Launch::bare(Executable::Agent).word("doctor").in_namespace(&world.pair.host);
    let doctor = doctor.word(format!("--docker=unix://{}", world.engine.socket().display()));
    assert!(doctor.run().output.contains("2 containers answer their checks from here"));

    // What is asked to stop leaves before it is gone.
    let begun = Instant::now();
    let stopping = world.engine.command(&["stop", "--timeout", "20", "web-2"]).spawn();
    let mut stopping = stopping.unwrap();
    let ((), took) = timed("it leaves", LIMIT, || (inside.members() == 1).then_some(()));
    let status = world.engine.docker(&["inspect", "--format", "{{.State.Status}}", "web-2"]);
    tell(&format!("it left {took:?} after `docker stop` began, while it was {}", status.trim()));
    assert!(begun.elapsed() > scaled(seconds(2)) || status.trim() == "running", "{status}");
    world.engine.docker(&["kill", "web-2"]);
    stopping.wait().unwrap();

    // One with a wrong check is named and counts as unchecked.
    serve_files(&world, "web-3", &["--label=io.berth.health.port=80", "--label=io.berth.health.interval=1ms"]);
    eventually("it counts as unchecked", LIMIT, || (inside.members() == 2).then_some(()));
    assert!(inside.health("web-3").output.contains("unchecked: interval"));
    eventually("it is in the log", LIMIT, || (!inside.agent.lines_with("interval").is_empty()).then_some(()));
    // Started again, it is not named before it was asked.
    world.engine.docker(&["start", "web-2"]);
    eventually("the one that was stopped is back", LIMIT, || (inside.members() == 3).then_some(()));
}

/// The scheduler of an agent, asked from its namespace.
fn scheduler(inside: &mut Inside<'_>, words: &[&str]) -> Ended {
    let server = inside.agent.address_of("scheduler").to_string();
    let launch = Launch::bare(Executable::Scheduler).word(words[0]).word("--server").word(server);
    let token = format!("--token-file={}", inside.token);
    let launch = words[1..].iter().fold(launch.word(token), Launch::word);
    launch.in_namespace(&inside.world.pair.host).run()
}

#[test]
fn what_a_scheduler_placed_is_started_again_or_replaced_when_it_fails() {
    let Some(world) = Boxed::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let launch = Launch::bare(Executable::Agent).word("up").logged().in_namespace(&world.pair.host);
    let launch = launch.flag(&format!("--docker=unix://{}", world.engine.socket().display()));
    let launch = launch.with("--state-dir", &state);
    let ports = ["--metadata", "--dns", "--scheduler", "--admin"];
    let launch = ports.iter().fold(launch, |launch, flag| launch.with(flag, "127.0.0.1:0"));
    let token = state.join("scheduler.token").display().to_string();
    let mut inside = Inside { world: &world, agent: launch.start(), token };
    eventually("it places", LIMIT, || (scheduler(&mut inside, &["ps"]).code == Some(0)).then_some(()));
    let serve = "echo begun; trap 'exit 0' TERM; mkdir -p /www; echo ok > /www/health; busybox httpd -p 80 -h /www; while :; do busybox sleep 1 & wait $!; done";
    let run = |inside: &mut Inside<'_>, name: &str, strategy: &str| {
        let labels =
            ["port=80", "request_line=GET /health HTTP/1.0", "interval=200ms", "response_timeout=1s", strategy]
                .map(|label| format!("--label=io.berth.health.{label}"));
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let service = ["run", "--name", name, "--stack", "shop", "--service", name];
        let command = ["box", "/bin/busybox", "sh", "-c", serve];
        let ended = scheduler(inside, &[&service[..], &labels, &command].concat());
        assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
    };
    for (name, strategy) in [("again", "strategy=restart"), ("fresh", "port=80"), ("left", "strategy=none")] {
        run(&mut inside, name, strategy);
    }
    let inspect = |name: &str, what: &str| world.engine.docker(&["inspect", "--format", what, name]).trim().to_owned();
    let is_well = |inside: &mut Inside<'_>, name: &str| {
        let shown = inside.health(name).output;
        (shown.contains(" healthy ")).then_some(())
    };
    for name in ["again", "fresh", "left"] {
        eventually("it is well", LIMIT, || is_well(&mut inside, name));
    }
    let known =
        ["again", "fresh", "left"].map(|name| (inspect(name, "{{.Id}}"), inspect(name, "{{.State.StartedAt}}")));
    let fail = |name: &str| world.engine.docker(&["exec", name, "/bin/busybox", "rm", "/www/health"]);
    for name in ["again", "fresh", "left"] {
        fail(name);
    }
    let ((), took) = timed("another one takes its place", LIMIT, || {
        let ids = world.engine.docker(&["ps", "--quiet", "--no-trunc", "--filter", "name=fresh"]);
        (!ids.trim().is_empty() && ids.trim() != known[1].0).then_some(())
    });
    tell(&format!("another one took its place {took:?} after its first bad answer (3 checks, one each 200 ms)"));
    let first = Instant::now();
    eventually("it is well", LIMIT, || is_well(&mut inside, "fresh"));
    // Started again, the same one makes its file again.
    eventually("it is well again", LIMIT, || is_well(&mut inside, "again"));
    let again = (inspect("again", "{{.Id}}"), inspect("again", "{{.State.StartedAt}}"));
    assert!(again.0 == known[0].0 && again.1 != known[0].1, "{again:?} {known:?}");
    let left = (inspect("left", "{{.Id}}"), inspect("left", "{{.State.StartedAt}}"));
    assert_eq!(left, known[2]);
    let shown = scheduler(&mut inside, &["ps"]).output;
    assert!(shown.contains("replaced at ") && shown.contains("(1st time, not again before "), "{shown}");
    let line = shown.lines().find(|line| line.contains(" left ")).unwrap_or_default();
    assert!(line.contains("unhealthy") && line.contains("status 404") && !line.contains("replaced"), "{shown}");

    // The end of its log is there for a while, and only for the scheduler's user.
    let logs: Vec<_> = std::fs::read_dir(state.join("replaced")).unwrap().flatten().collect();
    assert_eq!(logs.len(), 1, "{logs:?}");
    let log = std::fs::read_to_string(logs[0].path()).unwrap();
    assert!(log.starts_with("# fresh on ") && log.contains("status 404") && log.contains("begun"), "{log}");
    let audit = std::fs::read_to_string(state.join("audit.ndjson")).unwrap();
    assert!(audit.contains(r#""action":"replace""#) && audit.contains(r#""action":"restart""#), "{audit}");

    // The next time it waits.
    let second = inspect("fresh", "{{.Id}}");
    fail("fresh");
    eventually("it is replaced once more", LIMIT, || {
        let ids = world.engine.docker(&["ps", "--quiet", "--no-trunc", "--filter", "name=fresh"]);
        (!ids.trim().is_empty() && ids.trim() != second).then_some(())
    });
    assert!(first.elapsed() > Duration::from_secs(8), "{:?}", first.elapsed());
    eventually("ps says so", LIMIT, || {
        scheduler(&mut inside, &["ps"]).output.contains("(2nd time, not again").then_some(())
    });
    assert_eq!(scheduler(&mut inside, &["rm", "fresh"]).code, Some(0));
}
