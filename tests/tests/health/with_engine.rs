//! Checks of the containers of an engine, and what a scheduler does about those that fail.
//!
//! Linux, as root, with Debian's docker.io and busybox-static.

use std::time::{Duration, Instant};

use tests::engine::Boxed;
use tests::service::Ended;
use tests::wait::{scaled, seconds, timed};
use tests::{Executable, Launch, Service, eventually, tell};

use super::LIMIT;

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

#[test]
fn a_healthcheck_of_the_engine_says_how_often_it_failed_and_what_it_wrote() {
    let Some(world) = Boxed::start() else { return };
    let probe = "--health-cmd=test -e /www/health || { echo no such page; exit 7; }";
    serve_files(&world, "web-1", &[probe, "--health-interval=200ms", "--health-retries=3"]);
    // Another member, since the last one stays although it is unhealthy.
    serve_files(&world, "web-2", &[]);
    let launch = Launch::bare(Executable::Agent).word("up").logged().in_namespace(&world.pair.host);
    let launch = launch.flag(&format!("--docker=unix://{}", world.engine.socket().display()));
    let ports = ["--metadata", "--dns", "--scheduler", "--admin"];
    let launch = ports.iter().fold(launch, |launch, flag| launch.with(flag, "127.0.0.1:0"));
    let mut inside = Inside { world: &world, agent: launch.start(), token: String::new() };
    eventually("both are well", LIMIT, || (inside.members() == 2).then_some(()));
    let shown = inside.health("web-1").output;
    assert!(shown.contains("healthy") && shown.contains("its HEALTHCHECK"), "{shown}");

    world.engine.docker(&["exec", "web-1", "/bin/busybox", "rm", "/www/health"]);
    // The engine may have tried once more before it was asked how often that was.
    let says_why = |text: &str| {
        let times = text.split("its HEALTHCHECK fails: exit code 7, ").nth(1).and_then(|rest| rest.split(' ').next());
        times.and_then(|times| times.parse::<u32>().ok()).is_some_and(|times| times >= 3)
            && text.contains(" times in a row")
    };
    let shown =
        eventually("it says why", LIMIT, || Some(inside.health("web-1").output).filter(|shown| says_why(shown)));
    assert!(shown.contains("HEALTHCHECK: no such page"), "{shown}");
    let query = Launch::bare(Executable::Dns).word("query").word("web.shop.rancher.internal");
    let query = query.with("--admin", inside.agent.admin().to_string()).in_namespace(&world.pair.host).run();
    assert!(query.output.contains("web-1 on ") && says_why(&query.output), "{}", query.output);
    // What it wrote may have secrets: only this host's `agent health` shows it.
    assert!(!query.output.contains("no such page"), "{}", query.output);
    world.engine.docker(&["exec", "web-1", "/bin/busybox", "touch", "/www/health"]);
    eventually("it is well again", LIMIT, || {
        let shown = inside.health("web-1").output;
        (!shown.contains("unhealthy") && !shown.contains("no such page")).then_some(())
    });
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
    let first = Instant::now();
    for name in ["again", "fresh", "left"] {
        fail(name);
    }
    let ((), took) = timed("another one takes its place", LIMIT, || {
        let ids = world.engine.docker(&["ps", "--quiet", "--no-trunc", "--filter", "name=fresh"]);
        (!ids.trim().is_empty() && ids.trim() != known[1].0).then_some(())
    });
    tell(&format!("another one took its place {took:?} after its first bad answer (3 checks, one each 200 ms)"));
    eventually("it is well", LIMIT, || is_well(&mut inside, "fresh"));
    // Started again, the same one makes its file again.
    eventually("it is started again", LIMIT, || (inspect("again", "{{.State.StartedAt}}") != known[0].1).then_some(()));
    eventually("it is well again", LIMIT, || is_well(&mut inside, "again"));
    assert_eq!(inspect("again", "{{.Id}}"), known[0].0);
    let left = (inspect("left", "{{.Id}}"), inspect("left", "{{.State.StartedAt}}"));
    assert_eq!(left, known[2]);
    let line = eventually("ps says so", LIMIT, || {
        let shown = scheduler(&mut inside, &["ps"]).output;
        let line = shown.lines().find(|line| line.contains(" left ")).unwrap_or_default().to_owned();
        let says = shown.contains("replaced at ") && shown.contains("(1st time, not again before ");
        (says && line.contains("unhealthy") && line.contains("status 404")).then_some(line)
    });
    assert!(!line.contains("replaced"), "{line}");

    // The end of its log is there for a while, and only for the scheduler's user.
    let logs: Vec<_> = std::fs::read_dir(state.join("replaced")).unwrap().flatten().collect();
    assert_eq!(logs.len(), 1, "{logs:?}");
    let log = std::fs::read_to_string(logs[0].path()).unwrap();
    assert!(log.starts_with("# fresh on ") && log.contains("status 404") && log.contains("begun"), "{log}");
    eventually("both are in the audit log", LIMIT, || {
        let audit = std::fs::read_to_string(state.join("audit.ndjson")).unwrap();
        (audit.contains(r#""action":"replace""#) && audit.contains(r#""action":"restart""#)).then_some(())
    });

    // The next time it waits, for ten seconds from the first time on.
    let second = inspect("fresh", "{{.Id}}");
    fail("fresh");
    eventually("it is replaced once more", LIMIT, || {
        let ids = world.engine.docker(&["ps", "--quiet", "--no-trunc", "--filter", "name=fresh"]);
        (!ids.trim().is_empty() && ids.trim() != second).then_some(())
    });
    assert!(first.elapsed() > Duration::from_secs(10), "{:?}", first.elapsed());
    eventually("ps says so", LIMIT, || {
        scheduler(&mut inside, &["ps"]).output.contains("(2nd time, not again").then_some(())
    });
    assert_eq!(scheduler(&mut inside, &["rm", "fresh"]).code, Some(0));
}
