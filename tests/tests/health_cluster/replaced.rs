//! Replacing across hosts: what a scheduler placed and fails is replaced once, while the schedulers that do it are killed.

use std::time::{Duration, Instant, SystemTime};

use tests::docker_hosts::DockerHosts;
use tests::service::Ended;
use tests::{Launch, Service, eventually, tell};

use super::{LIMIT, METADATA, World};

/// The unit, and its container.
const NAME: &str = "late";

/// Longest wait for a scheduler to take over what another one left: its lease, and what it began.
const TAKEOVER: Duration = Duration::from_mins(1);

/// Two schedulers with one ledger, on the first two hosts, which reach the engines of all.
struct Schedulers {
    launches: [Launch; 2],
    running: [Option<Service>; 2],
}

impl Schedulers {
    fn start(hosts: &DockerHosts) -> Self {
        let launches = [0, 1].map(|number| hosts.scheduler(number, METADATA));
        let mut schedulers = Self { launches, running: [None, None] };
        for number in [0, 1] {
            schedulers.run(number);
        }
        schedulers
    }

    fn run(&mut self, number: usize) {
        self.running[number] = Some(self.launches[number].start());
    }

    fn kill(&mut self, number: usize) {
        self.running[number].take().unwrap().kill();
    }

    /// What a subcommand ends with.
    fn ask(&mut self, world: &World, number: usize, words: &[&str]) -> Ended {
        let server = self.running[number].as_mut().unwrap().address().to_string();
        world.hosts.ask_scheduler(number, &server, words)
    }

    /// Waits until one of those that run begins to replace the unit; returns which one.
    fn beginner(&self) -> usize {
        eventually("it begins to be replaced", LIMIT, || {
            let begins = |one: &Service| !one.lines_with("its unit is replaced").is_empty();
            self.running.iter().position(|one| one.as_ref().is_some_and(begins))
        })
    }
}

/// Where there are containers of the unit, by host, with their ids.
fn found(world: &World) -> Vec<(usize, String)> {
    let engines = world.hosts.engines.iter().enumerate();
    let found = engines.flat_map(|(host, engine)| {
        let filter = format!("label=io.berth.request={NAME}");
        let ids = engine.docker(&["ps", "--all", "--quiet", "--no-trunc", "--filter", &filter]);
        ids.lines().map(|id| (host, id.to_owned())).collect::<Vec<_>>()
    });
    found.collect()
}

/// How often engines did this with containers of the unit.
fn count(world: &World, event: &str) -> usize {
    // A relative time would be cut to whole seconds, and the last second left out.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let until = format!("{}.{:09}", now.as_secs(), now.subsec_nanos());
    let counts = world.hosts.engines.iter().map(|engine| {
        let filters = [format!("event={event}"), "type=container".to_owned(), format!("label=io.berth.request={NAME}")];
        let [event, kind, label] = &filters;
        let events = ["events", "--since", "1h", "--until", &until, "--filter", event, "--filter", kind];
        engine.docker(&[&events[..], &["--filter", label, "--format", "{{.ID}}"]].concat()).lines().count()
    });
    counts.sum()
}

/// Waits until there is one container of the unit, which is well, and is none of these; returns its host and id.
fn settled(world: &World, before: &[String]) -> (usize, String) {
    eventually("another one is well", TAKEOVER, || {
        let [(host, id)] = &found(world)[..] else { return None };
        let shown = world.health(*host, NAME);
        (!before.contains(id) && shown["health_state"] == "healthy").then(|| (*host, id.clone()))
    })
}

#[test]
fn what_fails_is_replaced_once_while_schedulers_die() {
    let Some(world) = World::new() else { return };
    let mut schedulers = Schedulers::start(&world.hosts);
    let labels = ["port=80", "request_line=GET /health HTTP/1.0", "interval=200ms", "response_timeout=2s"];
    let labels = labels.map(|label| format!("--label=io.berth.health.{label}"));
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    let script = "mkdir -p /www; echo ok > /www/health; exec busybox httpd -f -p 80 -h /www";
    let run = ["run", "--name", NAME, "--stack", "shop", "--service", NAME, "--network", "net", "--stop-timeout", "1"];
    let words = [&run[..], &labels, &["box", "/bin/busybox", "sh", "-c", script]].concat();
    eventually("it is placed", LIMIT, || {
        let ended = schedulers.ask(&world, 0, &words);
        if ended.code != Some(0) {
            tell(&ended.errors);
        }
        (ended.code == Some(0)).then_some(())
    });
    let first = settled(&world, &[]);
    eventually("three others check it", LIMIT, || (world.checkers(first.0, NAME).len() == 3).then_some(()));

    // The scheduler that begins to replace it is killed at once.
    world.set_well(first.0, NAME, false);
    let begun = Instant::now();
    let beginner = schedulers.beginner();
    schedulers.kill(beginner);
    let second = settled(&world, std::slice::from_ref(&first.1));
    tell(&format!("another one is well {:?} after the first bad answer, its scheduler killed", begun.elapsed()));
    assert_eq!((count(&world, "create"), count(&world, "destroy")), (2, 1));

    // The other one is killed when the old container is gone.
    schedulers.run(beginner);
    eventually("it is back", LIMIT, || (schedulers.ask(&world, beginner, &["ps"]).code == Some(0)).then_some(()));
    world.set_well(second.0, NAME, false);
    let begun = Instant::now();
    eventually("the old one is removed", TAKEOVER, || {
        found(&world).iter().all(|(_, id)| *id != second.1).then_some(())
    });
    let other = 1 - beginner;
    schedulers.kill(other);
    let third = settled(&world, &[first.1.clone(), second.1.clone()]);
    tell(&format!(
        "and {:?} after the next one, 10 s of back-off in it: {first:?} {second:?} {third:?}",
        begun.elapsed()
    ));
    assert_eq!((count(&world, "create"), count(&world, "destroy")), (3, 2));
    // A host where it failed twice is the last choice.
    assert!(first.0 != second.0 || third.0 != first.0, "{first:?} {second:?} {third:?}");
    let shown = schedulers.ask(&world, beginner, &["ps"]).output;
    assert!(shown.contains("(2nd time, not again before "), "{shown}");
    assert_eq!(shown.lines().filter(|line| line.starts_with(NAME)).count(), 1, "{shown}");
}
