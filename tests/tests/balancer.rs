//! A balancer's plan in the real proxies: both lead requests where the plan says and follow the cluster without an error, and what
//! one of them refuses changes nothing else. Linux, with Debian's haproxy and hey, and Traefik from `PyPI`.
//!
//! `BERTH_LONG=1` sends a thousand requests a second for a minute while members are replaced, and chooses ten thousand times.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "balancer/chaos.rs"]
mod chaos;
#[path = "balancer/hostile.rs"]
mod hostile;
#[path = "balancer/sticky.rs"]
mod sticky;
#[path = "balancer/web.rs"]
mod web;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use model::lb::{LbPlan, Viewpoint, find};
use tests::battery::is_long;
use tests::cluster::replace;
use tests::http::get;
use tests::installed::{TRAEFIK, python_packages};
use tests::random::Random;
use tests::{Executable, Launch, Process, Service, eventually, ports, skip, tell};

use crate::web::{Web, ask, body};

/// Longest wait for a proxy to start, or to follow a change.
const LIMIT: Duration = Duration::from_secs(20);

/// Members of the service that is replaced, with `BERTH_LONG=1` and without.
const MEMBERS: [u8; 2] = [8, 4];

fn has_programs() -> bool {
    for program in ["haproxy", "hey"] {
        if Command::new("which").arg(program).stdout(Stdio::null()).status().is_ok_and(|found| found.success()) {
            continue;
        }
        skip(&format!("{program} is not installed"));
        return false;
    }
    true
}

/// A proxy that follows a cluster file.
enum Balancer {
    Haproxy(Service),
    /// With the metadata service that it asks.
    Traefik {
        _proxy: Process,
        _metadata: Service,
        log: PathBuf,
    },
}

impl Balancer {
    fn haproxy(file: &Path, folder: &Path, more: &[(&str, &str)]) -> Self {
        let launch = Launch::bare(Executable::Agent).logged().word("lb").word("haproxy").flag("--run");
        let launch = launch.with("--source", format!("file:{}", file.display())).with("--bind", "127.0.0.1");
        let launch = launch.with("--folder", folder.join("haproxy")).with("--admin", "127.0.0.1:0");
        let mut agent = more.iter().fold(launch, |launch, (flag, value)| launch.with(flag, value)).start();
        agent.ready();
        Self::Haproxy(agent)
    }

    fn traefik(file: &Path, folder: &Path) -> Option<Self> {
        let bin = python_packages("traefik", &[TRAEFIK])?;
        let mut metadata = Launch::metadata(file).start();
        let address = metadata.address();
        metadata.ready();
        let launch = Launch::bare(Executable::Agent).word("lb").word("traefik-static").with("--bind", "127.0.0.1");
        let launch =
            launch.with("--metadata", address.to_string()).with("--source", format!("file:{}", file.display()));
        let text = launch.run();
        assert_eq!(text.code, Some(0), "{}", text.errors);
        let (config, log) = (folder.join("traefik.yml"), folder.join("traefik.log"));
        std::fs::write(&config, text.output).unwrap();
        let output = std::fs::File::create(&log).unwrap();
        let mut command = Command::new(bin.join("traefik"));
        command.arg(format!("--configFile={}", config.display())).stdout(output.try_clone().unwrap()).stderr(output);
        Some(Self::Traefik { _proxy: Process::start(&mut command), _metadata: metadata, log })
    }

    fn name(&self) -> &'static str {
        if matches!(self, Self::Haproxy(_)) { "HAProxy" } else { "Traefik" }
    }

    /// Changes that came to HAProxy by a reload, the first configuration among them.
    fn reloads(&mut self) -> String {
        match self {
            Self::Haproxy(agent) => metric(agent, "berth_lb_applied_total{how=\"reload\"}"),
            Self::Traefik { .. } => String::new(),
        }
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let Self::Haproxy(agent) = self else { return };
        // One that is killed leaves its HAProxy.
        if agent.is_running() {
            agent.signal("TERM");
        }
        let begun = Instant::now();
        while agent.is_running() && begun.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The value of a metric.
fn metric(agent: &mut Service, name: &str) -> String {
    let text = get("/metrics").ask(agent.admin()).text();
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned()
}

/// A document with a balancer of these rules, and services of stack `s` with containers at these addresses and in these states.
fn document(rules: &str, services: &[(&str, Vec<(IpAddr, &str)>)], more: &str) -> String {
    let mut text =
        format!("berth: 1\nservices:\n- name: lb\n  stack: edge\n  lb_config:\n{more}    port_rules:\n{rules}");
    for (name, _) in services {
        let _ = writeln!(text, "- {{ name: {name}, stack: s }}");
    }
    text += "containers:\n";
    for (name, members) in services {
        for (ip, state) in members {
            let of = ip.to_string().replace('.', "-");
            let _ = writeln!(text, "- {{ name: {name}-{of}, service: s/{name}, primary_ip: {ip}, state: {state} }}");
        }
    }
    text + "...\n"
}

fn rule(port: u16, host: &str, path: &str, service: &str, target: u16) -> String {
    format!(
        "    - {{ source_port: {port}, hostname: \"{host}\", path: \"{path}\", service: s/{service}, target_port: {target} }}\n"
    )
}

#[test]
fn all_members_are_replaced_without_a_failed_request() {
    if !has_programs() {
        return;
    }
    let members = if is_long() { MEMBERS[0] } else { MEMBERS[1] };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cluster.yml");
    let [port, target] = ports::some(2)[..] else { unreachable!() };
    let rules = rule(port, "", "", "web", target);
    let write = |members: Vec<(IpAddr, &str)>| replace(&file, document(&rules, &[("web", members)], ""));
    let start = |number: u8| Web::start(number, target, "web");
    let proxy = SocketAddr::from(([127, 0, 0, 1], port));
    for (turn, kind) in ["Traefik", "HAProxy"].into_iter().enumerate() {
        let first = 1 + u8::try_from(turn).unwrap() * 100;
        let mut webs: Vec<_> = (first..first + members).map(start).collect();
        write(webs.iter().map(|web| (web.ip(), "running")).collect());
        let balancer = match kind {
            "HAProxy" => Some(Balancer::haproxy(&file, folder.path(), &[])),
            _ => Balancer::traefik(&file, folder.path()),
        };
        let Some(mut balancer) = balancer else { continue };
        eventually("the proxy serves", LIMIT, || body(proxy, "example.org", "/"));
        let reloads = balancer.reloads();
        // One of twenty answers takes 300 ms, for which its client waits.
        let (clients, rate) = if is_long() { ("50", "20") } else { ("10", "20") };
        let counted = folder.path().join("hey.txt");
        let mut load = Command::new("hey");
        load.args(["-z", "10m", "-c", clients, "-q", rate, &format!("http://{proxy}/")]);
        let mut load = Process::start(load.stdout(std::fs::File::create(&counted).unwrap()));
        let pause = Duration::from_millis(if is_long() { 3000 } else { 300 });
        for old in 0..usize::from(members) {
            let next = start(first + members + u8::try_from(old).unwrap());
            std::thread::sleep(pause);
            // The old one in this state, all others and the next one running.
            let states = |webs: &[Web], state: &'static str| {
                let old = |(at, web): (usize, &Web)| (web.ip(), if at == old { state } else { "running" });
                let all = webs.iter().enumerate().map(old).chain([(next.ip(), "running")]);
                write(all.filter(|(_, state)| *state != "gone").collect());
            };
            states(&webs, "running");
            eventually("the new member is led to", LIMIT, || (next.served() > 0).then_some(()));
            states(&webs, "stopping");
            // As `docker stop` by hand for each second one: it gets its signal when others learn that it stops. As a scheduler does it
            // for the others, after the drain: the new one is asked, and the old one is not any more.
            if old % 2 == 0 {
                eventually("the old member is left", LIMIT, || {
                    let before = (webs[old].served(), next.served());
                    std::thread::sleep(Duration::from_secs(1));
                    (webs[old].served() == before.0 && next.served() > before.1).then_some(())
                });
            }
            webs[old].stop();
            states(&webs, "gone");
            std::thread::sleep(pause / 3);
            webs[old] = next;
        }
        if is_long() {
            std::thread::sleep(Duration::from_secs(40));
        }
        load.signal("INT");
        assert!(load.ended_within(LIMIT).is_some(), "hey ends");
        let text = std::fs::read_to_string(&counted).unwrap();
        let statuses: Vec<_> = text.lines().filter(|line| line.trim_start().starts_with('[')).map(str::trim).collect();
        let count = statuses.first().and_then(|line| line.split('\t').nth(1)?.split(' ').next()?.parse::<u64>().ok());
        tell(&format!("{}: {} requests while {members} members were replaced", balancer.name(), count.unwrap_or(0)));
        assert!(statuses.len() == 1 && statuses[0].starts_with("[200]"), "{}: {text}", balancer.name());
        assert!(!text.contains("Error distribution") && count.is_some_and(|count| count > 300), "{text}");
        assert_eq!(balancer.reloads(), reloads, "members came and went without a reload");
        drop(balancer);
        assert!(ask(proxy, "example.org", "/").is_none(), "HAProxy ended with its agent");
    }
}

#[test]
fn both_proxies_choose_the_backend_of_the_plan() {
    if !has_programs() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [target, haproxy, traefik] = ports::some(3)[..] else { unreachable!() };
    let names = ["a", "b", "c", "d", "e"];
    let webs: Vec<_> = (201..).zip(names).map(|(number, name)| Web::start(number, target, name)).collect();
    let hosts =
        ["", "www.example.org", "example.org", "*.example.org", "www.*", "*.org", "a b", "`\\\"", "www.example.net"];
    let paths = ["", "/a", "/A", "/a/b", "/a/b/c", "/a.b(c)", "/b", "bad", "/a*+"];
    let mut random = Random(0x0bad_5eed_0000_0001);
    let (rounds, samples) = if is_long() { (20, 500) } else { (2, 150) };
    for round in 0..rounds {
        let mut rules = String::new();
        for _ in 0..=random.below(30) {
            let (host, path, name) = (random.of(&hosts), random.of(&paths), random.of(&names));
            let priority = random.of(&[0, 0, 0, 1, 2]);
            let host = host.replace('\\', "\\\\").replace('"', "\\\"");
            let _ = writeln!(
                rules,
                "    - {{ source_port: PORT, hostname: \"{host}\", path: \"{path}\", service: s/{name}, target_port: {target}, priority: {priority} }}"
            );
        }
        let services: Vec<_> = webs.iter().zip(names).map(|(web, name)| (name, vec![(web.ip(), "running")])).collect();
        let text = |port: u16| document(&rules.replace("PORT", &port.to_string()), &services, "");
        let files = [traefik, haproxy].map(|port| {
            let file = folder.path().join(format!("{port}.yml"));
            replace(&file, text(port));
            (port, file)
        });
        let (reading, _) = source::cluster_file::read(&files[1].1, text(haproxy).into_bytes()).unwrap();
        let plan = LbPlan::of(&reading.snapshot, find(&reading.snapshot, "edge/lb").unwrap(), &Viewpoint::default());
        // HAProxy begins with the last configuration of its folder, which would be the rules of the round before.
        let own = folder.path().join(format!("round-{round}"));
        std::fs::create_dir(&own).unwrap();
        let mut balancers = vec![(haproxy, Balancer::haproxy(&files[1].1, &own, &[]))];
        balancers.extend(Balancer::traefik(&files[0].1, folder.path()).map(|balancer| (traefik, balancer)));
        for (port, balancer) in &balancers {
            let proxy = SocketAddr::from(([127, 0, 0, 1], *port));
            // Traefik listens before it knows a rule, and says 404 then as for a request without a rule.
            let known = plan.ports[0].routes.iter().find_map(|route| match &route.host {
                model::lb::HostPattern::Exact(host) => Some((host.to_string(), route.path.to_string())),
                model::lb::HostPattern::Any => Some(("none.invalid".into(), route.path.to_string())),
                _ => None,
            });
            let (host, path) = known.unwrap_or_else(|| ("www.example.org".into(), "/".into()));
            let path = if path.is_empty() { "/".to_owned() } else { path };
            eventually("the proxy has the rules", LIMIT, || {
                ask(proxy, &host, &path)
                    .filter(|(status, _)| !matches!(status, 404) || plan.route(haproxy, &host, &path).is_none())
            });
            let mut chosen = BTreeSet::new();
            for _ in 0..samples {
                let host = random.of(&[
                    "www.example.org",
                    "WWW.Example.ORG:8080",
                    "example.org",
                    "x.y.example.org",
                    "www.invalid",
                    "other",
                ]);
                let path =
                    random.of(&["/", "/a", "/A/b/c/d", "/a/b", "/ab", "/a.b(c)/", "/axb", "/b/a", "/a*+x", "/x?q=/a"]);
                let route = plan.route(haproxy, host, path.split('?').next().unwrap());
                // Rules of one host and path share a backend, which then leads to each of their services.
                let members = route.map(|route| &*plan.backends[route.backend].members);
                let services =
                    members.map(|members| members.iter().map(|member| member.name.split('-').next().unwrap()));
                let expected: Option<BTreeSet<_>> = services.map(Iterator::collect);
                let (status, body) = ask(proxy, host, path).unwrap();
                let found = (status == 200).then_some(&*body);
                let is_right = match (&expected, found) {
                    (Some(expected), Some(found)) => expected.contains(found),
                    (None, None) => true,
                    _ => false,
                };
                assert!(
                    is_right,
                    "{} led {host}{path} to {found:?} with {status} and not to {expected:?} in round {round}:\n{rules}",
                    balancer.name()
                );
                chosen.insert(found.map(str::to_owned));
            }
            if let Balancer::Traefik { log, .. } = balancer {
                let log = std::fs::read_to_string(log).unwrap();
                assert!(!log.contains("ERR"), "{log}");
            }
        }
    }
}

#[test]
fn what_haproxy_refuses_and_what_fails_changes_nothing_else() {
    if !has_programs() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cluster.yml");
    let [port, target, taken] = ports::some(3)[..] else { unreachable!() };
    let proxy = SocketAddr::from(([127, 0, 0, 1], port));
    let (a, b) = (Web::start(231, target, "a"), Web::start(232, target, "b"));
    let services = [("a", vec![(a.ip(), "running")]), ("b", vec![(b.ip(), "running")])];
    let rules = |host: &str| rule(port, "", "", "a", target) + &rule(port, host, "", "b", target);
    replace(&file, document(&rules("b.example.org"), &services, ""));
    let mut balancer = Balancer::haproxy(&file, folder.path(), &[]);
    let Balancer::Haproxy(agent) = &mut balancer else { unreachable!() };
    eventually("HAProxy serves", LIMIT, || body(proxy, "b.example.org", "/").filter(|body| body == "b"));

    // Lines that HAProxy refuses are left out, and the new rule counts.
    let lines = "    config: \"defaults\\n  timeout server banana\\nfrontend 1\\n  lua-load /x\"\n";
    replace(&file, document(&rules("c.example.org"), &services, lines));
    eventually("the new rule counts", LIMIT, || body(proxy, "c.example.org", "/").filter(|body| body == "b"));
    for line in ["timeout server banana", "lua-load"] {
        agent.line("both lines are named", |said| said.to_string().contains(line));
    }

    // A port that is taken is left out alone.
    let _held = std::net::TcpListener::bind(("127.0.0.1", taken)).unwrap();
    let more = rules("d.example.org") + &rule(taken, "", "", "a", target);
    replace(&file, document(&more, &services, ""));
    eventually("the other port follows", LIMIT, || body(proxy, "d.example.org", "/").filter(|body| body == "b"));
    agent.line("the port is named", |said| said.to_string().contains(&format!("port {taken} is left out")));

    // A source that says less takes nothing away.
    replace(&file, "berth: 1\nservices:\n- { name: x, stack: y }\n...\n");
    eventually("the balancer is missed", LIMIT, || agent.reasons().contains("lb_config").then_some(()));
    assert_eq!(body(proxy, "d.example.org", "/").as_deref(), Some("b"));

    // A second agent keeps its hands off.
    let second = Launch::bare(Executable::Agent).logged().word("lb").word("haproxy").with("--admin", "127.0.0.1:0");
    let second = second.with("--folder", folder.path().join("haproxy")).with("--source", "file:none").run();
    assert!(second.code == Some(1) && second.errors.contains(&agent.pid().to_string()), "{}", second.errors);

    // Killed, it is started again with what it had, also while the source says nothing.
    let socket = folder.path().join("haproxy/master.sock");
    let master = pid_of_master(&socket);
    let killed = Command::new("kill").args(["-KILL", &master]).status().unwrap();
    assert!(killed.success());
    eventually("HAProxy is back", LIMIT, || (pid_of_master(&socket) != master).then_some(()));
    eventually("and serves", LIMIT, || body(proxy, "d.example.org", "/").filter(|body| body == "b"));

    // Killed itself, the agent takes over the HAProxy that it left, and its end ends it.
    let master = eventually("the master answers", LIMIT, || Some(pid_of_master(&socket)).filter(|pid| !pid.is_empty()));
    agent.kill();
    assert_eq!(body(proxy, "d.example.org", "/").as_deref(), Some("b"));
    replace(&file, document(&rules("e.example.org"), &services, ""));
    let mut balancer = Balancer::haproxy(&file, folder.path(), &[]);
    let Balancer::Haproxy(agent) = &mut balancer else { unreachable!() };
    eventually("it follows again", LIMIT, || body(proxy, "e.example.org", "/").filter(|body| body == "b"));
    // It restarts with each reload, and does not answer meanwhile.
    let answering = eventually("it answers", LIMIT, || Some(pid_of_master(&socket)).filter(|pid| !pid.is_empty()));
    assert_eq!(answering, master, "by a reload of the same HAProxy");

    // A worker that is silent while rules change is brought to them once it answers.
    let worker = eventually("a worker serves", LIMIT, || Some(pid_of("worker", &socket)).filter(|pid| !pid.is_empty()));
    let signal = |name: &str| assert!(Command::new("kill").args([name, &worker]).status().unwrap().success());
    signal("-STOP");
    replace(&file, document(&rules("silent.example.org"), &services, ""));
    eventually("the worker is missed", LIMIT, || agent.reasons().contains("does not answer").then_some(()));
    signal("-CONT");
    eventually("it has the new rules", LIMIT, || body(proxy, "silent.example.org", "/").filter(|body| body == "b"));
    replace(&file, document(&rules("e.example.org"), &services, ""));
    eventually("and those after", LIMIT, || body(proxy, "e.example.org", "/").filter(|body| body == "b"));

    // A master that does not answer has no second one beside it, and ends too.
    let halted = Command::new("kill").args(["-STOP", &master]).status().unwrap();
    assert!(halted.success());
    replace(&file, document(&rules("f.example.org"), &services, ""));
    eventually("the master is missed", LIMIT, || agent.reasons().contains("HAProxy").then_some(()));
    assert!(!agent.log().contains("HAProxy was started"), "{}", agent.log());
    agent.stop();
    eventually("HAProxy ends with its agent", LIMIT, || ask(proxy, "e.example.org", "/").is_none().then_some(()));
}

/// The number of the master that answers; empty if none does.
fn pid_of_master(socket: &Path) -> String {
    pid_of("master", socket)
}

/// The number of the first process of this kind by the master at a socket; empty if none answers.
fn pid_of(kind: &str, socket: &Path) -> String {
    use std::io::{Read as _, Write as _};
    let asked = std::os::unix::net::UnixStream::connect(socket).and_then(|mut stream| {
        stream.write_all(b"show proc\n")?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    });
    let answer = asked.unwrap_or_default();
    let process = answer.lines().find(|line| line.contains(kind) && !line.starts_with('#'));
    process.and_then(|line| line.split_ascii_whitespace().next()).unwrap_or_default().to_owned()
}

#[test]
fn a_renewed_certificate_is_served_without_a_reload_and_a_broken_one_is_not() {
    if !has_programs() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, certs) = (folder.path().join("cluster.yml"), folder.path().join("certs"));
    std::fs::create_dir(&certs).unwrap();
    let [port, target] = ports::some(2)[..] else { unreachable!() };
    let web = Web::start(241, target, "web");
    let pair = || {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["www.example.org".to_owned()]).unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    };
    let (old, new, newest) = (pair(), pair(), pair());
    let write = |chain: &str, key: &str| replace(&certs.join("site.pem"), format!("{chain}{key}"));
    write(&old.0, &old.1);
    let rules = format!("    - {{ source_port: {port}, protocol: https, service: s/web, target_port: {target} }}\n");
    let more = "    certs: [site]\n    default_cert: site\n";
    replace(&file, document(&rules, &[("web", vec![(web.ip(), "running")])], more));
    let certs = certs.to_str().unwrap();
    let mut balancer = Balancer::haproxy(&file, folder.path(), &[("--certs", certs)]);
    // Whether it serves this very certificate.
    let serves = |chain: &str| {
        let authority = folder.path().join("ca.pem");
        std::fs::write(&authority, chain).unwrap();
        let output = Command::new("curl")
            .args(["-s", "--max-time", "5", "--resolve", &format!("www.example.org:{port}:127.0.0.1"), "--cacert"])
            .arg(authority)
            .arg(format!("https://www.example.org:{port}/"))
            .output()
            .unwrap();
        output.stdout == b"web"
    };
    eventually("the certificate is served", LIMIT, || serves(&old.0).then_some(()));
    let reloads = balancer.reloads();
    write(&new.0, &new.1);
    eventually("the renewed one is served", LIMIT, || serves(&new.0).then_some(()));
    // One that is silent just then serves it later.
    let socket = folder.path().join("haproxy/master.sock");
    let worker = pid_of("worker", &socket);
    let signal = |name: &str| assert!(Command::new("kill").args([name, &worker]).status().unwrap().success());
    signal("-STOP");
    write(&old.0, &old.1);
    if let Balancer::Haproxy(agent) = &mut balancer {
        eventually("the worker is missed", LIMIT, || agent.reasons().contains("does not answer").then_some(()));
    }
    signal("-CONT");
    eventually("what was renewed meanwhile is served", LIMIT, || serves(&old.0).then_some(()));
    write(&new.0, &new.1);
    eventually("and what comes after", LIMIT, || serves(&new.0).then_some(()));
    write(&newest.0, &old.1);
    let Balancer::Haproxy(agent) = &mut balancer else { unreachable!() };
    agent.line("the broken pair is named", |line| line.to_string().contains("the one before is served"));
    assert!(serves(&new.0));
    assert_eq!(balancer.reloads(), reloads);
}

#[test]
fn the_example_replaces_containers_without_a_failed_request_and_leaves_nothing() {
    if !has_programs() {
        return;
    }
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    if !is_root {
        return skip("only root makes network namespaces");
    }
    let text = tests::example::run("balanced");
    assert!(text.contains(" requests, 0 failed\n"), "{text}");
    assert!(text.contains("\nweb, version 2\n") && !text.contains("\nweb, version 1\nweb"), "{text}");
}
