//! What `agent network` changes on a host is undone exactly, also when it is killed between any two changes and when the machine
//! restarts after that; and `apply` does what `plan` says.
//!
//! Linux, as root, with Debian's docker.io, etcd-server, nftables and busybox-static.
use std::time::{Duration, Instant};

use tests::docker_hosts::DockerHosts;
use tests::service::Ended;
use tests::{Executable, Launch, battery, claims, scaled, shared, tell};

/// Time for what the kernel and the engine do after their answer, such as checking an IPv6 address.
const SETTLED: Duration = Duration::from_secs(4);

/// More points of a command than there are: the first one that is not reached is the last one of the loop.
const POINTS_MAX: usize = 40;

/// One host with an engine in a cluster of three.
struct World {
    hosts: DockerHosts,
}

/// What a change of the network could change on a host.
const SHOWN: [&[&str]; 9] = [
    &["ip", "-j", "-p", "address"],
    &["ip", "-j", "-p", "link"],
    &["ip", "-j", "-p", "route", "show", "table", "all"],
    &["ip", "-6", "-j", "-p", "route", "show", "table", "all"],
    &["ip", "-j", "-p", "rule"],
    &["nft", "-s", "list", "ruleset"],
    // Without counters and times.
    &["sh", "-c", "iptables-save | sed -e '/^#/d' -e 's/ \\[.*//'"],
    // What changes by itself is left out.
    &["sh", "-c", "grep -rs '' /proc/sys/net | grep -v conntrack_count | sort"],
    &[
        "sh",
        "-c",
        "cd /etc && find iproute2 nftables.conf sysctl.conf sysctl.d systemd/network network docker -type f -exec cksum {} + 2>/dev/null | sort",
    ],
];

impl World {
    fn new() -> Option<Self> {
        if !shared::there(&[("nft", "--version"), ("iptables-save", "--version")], "nftables, iptables") {
            return None;
        }
        let world = Self { hosts: DockerHosts::start(1)? };
        let operator = |words: &[&str]| {
            let launch = Launch::bare(Executable::Agent).word("network").in_namespace(&world.hosts.switch.switch);
            done(&words.iter().fold(launch, Launch::word).with("--etcd", world.hosts.etcd.urls()).run());
        };
        operator(&["init", "--cidr", "10.42.0.0/16"]);
        operator(&["give", "host-1"]);
        for peer in 2..=3 {
            let via = format!("10.44.0.{peer}");
            claims::claim(&world.hosts.etcd, &format!("host-{peer}"), format!("10.42.24{peer}.0"), Some(via));
        }
        world.stop_forwarding();
        Some(world)
    }

    /// The engine switches it on when it starts, and then there is nothing to be done about it.
    fn stop_forwarding(&self) {
        self.hosts.switch.on(0, &["sysctl", "-qw", "net.ipv4.ip_forward=0"]);
    }

    fn command(&self, words: &[&str]) -> Launch {
        let launch = Launch::bare(Executable::Agent).word("network").in_namespace(&self.hosts.switch.hosts[0]);
        let launch = words.iter().fold(launch, Launch::word);
        let engine = format!("--docker=unix://{}", self.hosts.engines[0].socket().display());
        let launch = launch.flag(&engine).with("--source", format!("etcd:{}", self.hosts.etcd.urls()));
        let launch = launch.with("--host", "host-1").with("--public-ip", "10.44.0.1");
        launch.with("--state-dir", self.hosts.folder().join("state"))
    }

    fn run(&self, word: &str) -> String {
        done(&self.command(&[word]).run())
    }

    /// Whether the command was killed at a point; otherwise it has no such point, and went well.
    fn killed(&self, word: &str, point: usize) -> bool {
        let ended = self.command(&[word]).env("BERTH_KILLED_AT", point.to_string()).run();
        if ended.code.is_some() {
            done(&ended);
        }
        ended.code.is_none()
    }

    /// All of it, once the kernel has checked new IPv6 addresses, or does not any more.
    fn settled(&self) -> Vec<String> {
        let begun = Instant::now();
        loop {
            let all = self.everything();
            let is_checking = all.iter().any(|text| text.contains("\"tentative\": true"));
            if !is_checking || begun.elapsed() > scaled(SETTLED) {
                return all;
            }
        }
    }

    fn everything(&self) -> Vec<String> {
        let networks = ["network", "ls", "--no-trunc", "--format", "{{.Name}} {{.Driver}} {{.ID}}"];
        let networks = self.hosts.engines[0].docker(&networks);
        let mut networks: Vec<_> = networks.lines().collect();
        networks.sort_unstable();
        SHOWN.iter().map(|command| self.hosts.switch.on(0, command)).chain([networks.join("\n")]).collect()
    }

    /// The host is as it was before.
    fn is_as(&self, before: &[String], when: &str, same: impl Fn(&str) -> String) {
        let begun = Instant::now();
        loop {
            let now = self.everything();
            let differs = before.iter().zip(&now).find(|(before, now)| same(before) != same(now));
            let Some((before, now)) = differs else { return };
            if begun.elapsed() > scaled(SETTLED) {
                let lines = |one: &str, other: &str| {
                    let (one, other) = (same(one), same(other));
                    let other: Vec<_> = other.lines().collect();
                    one.lines().filter(|line| !other.contains(line)).flat_map(|line| [line, "\n"]).collect::<String>()
                };
                panic!("{when}: these are missing:\n{}and these are new:\n{}", lines(before, now), lines(now, before));
            }
        }
    }

    /// The machine loses its power and starts again: files stay.
    fn reboot(&mut self) {
        self.hosts.engines[0].kill();
        self.hosts.switch.renew(0);
        self.hosts.engines[0].restart();
        self.stop_forwarding();
    }
}

fn done(ended: &Ended) -> String {
    assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
    ended.output.clone()
}

/// What a restart of the machine does not change: numbers of interfaces, addresses of made-up network cards and what depends on
/// them are others, and the engine's own networks have other names.
fn of_one_start(text: &str) -> String {
    let changes =
        ["ifindex", "link_index", "link_netnsid", "\"address\":", "fe80", "\"local\": \"fe", "\"metric\": 256", "br_"];
    let lines = text.lines().filter(|line| !changes.iter().any(|part| line.contains(part)));
    let lines = lines.map(|line| {
        let own = ["bridge bridge ", "host host ", "none null "].iter().find(|own| line.starts_with(**own));
        own.map_or(line, |own| own)
    });
    // The kernel lists in the order in which things were made.
    let mut lines: Vec<_> = lines.collect();
    lines.sort_unstable();
    lines.join("\n")
}

#[test]
fn a_host_is_as_before_after_a_kill_at_any_point_and_a_restart() {
    let Some(mut world) = World::new() else { return };
    // Whatever loads a module for the first time adds settings.
    world.run("apply");
    world.run("remove");
    let before = world.settled();
    let (mut applying, mut removing) = (0, 0);
    for point in 1..POINTS_MAX {
        let (mut is_last, exactly) = (true, str::to_owned);
        if world.killed("apply", point) {
            (applying, is_last) = (point, false);
        }
        // The state directory says what was begun, and the kernel what was done.
        if point % 2 == 0 || battery::is_long() {
            world.run("apply");
            let ledger = std::fs::read_to_string(world.hosts.folder().join("state/network.json")).unwrap_or_default();
            assert!(ledger.contains("\"done\": true") && !ledger.contains("\"done\": false"), "{point}: {ledger}");
            let again = world.command(&["plan"]).flag("--exit-code").run();
            assert_eq!(again.code, Some(0), "apply was killed at point {point}: {}", again.output);
        }
        world.run("remove");
        world.is_as(&before, &format!("apply was killed at point {point}"), exactly);
        world.run("apply");
        if world.killed("remove", point) {
            (removing, is_last) = (point, false);
        }
        if point % 3 == 0 || battery::is_long() {
            world.run("apply");
        }
        world.run("remove");
        world.is_as(&before, &format!("remove was killed at point {point}"), exactly);
        if is_last {
            break;
        }
    }
    tell(&format!("killed at {applying} points of apply and {removing} of remove"));
    // Before and after the ledger is written and each change is made.
    assert!(applying >= 8 && removing >= 8, "{applying} {removing}");

    for (word, points) in [("apply", applying), ("remove", removing)] {
        for point in if battery::is_long() { 1..=points } else { points / 2..=points / 2 } {
            if word == "remove" {
                world.run("apply");
            }
            assert!(world.killed(word, point));
            world.reboot();
            if point % 2 == 0 {
                world.run("apply");
            }
            world.run("remove");
            world.is_as(&before, &format!("{word} was killed at point {point}, then a restart"), of_one_start);
        }
    }
}

#[test]
fn apply_does_what_plan_says() {
    let Some(world) = World::new() else { return };
    let twice = |words: &[&str]| {
        let plans = [done(&world.command(words).run()), done(&world.command(words).run())];
        assert_eq!(plans[0], plans[1]);
        plans[0].clone()
    };
    let before = world.settled();
    let planned = twice(&["plan"]);
    assert!(planned.starts_with("say in etcd that host-1 is reached through 10.44.0.1\n"), "{planned}");
    twice(&["plan", "--json"]);
    world.is_as(&before, "plan changes nothing", str::to_owned);
    assert_eq!(world.run("apply"), planned);
    // A peer has moved, another one is new, and a route was deleted by hand.
    claims::claim(&world.hosts.etcd, "host-2", "10.42.242.0", Some("10.44.0.77"));
    claims::claim(&world.hosts.etcd, "host-9", "10.42.99.0", Some("10.44.0.9"));
    world.hosts.switch.on(0, &["ip", "route", "delete", "10.42.243.0/24"]);
    let planned = twice(&["plan"]);
    twice(&["plan", "--json"]);
    for part in ["add the route 10.42.99.0/24", "add the route 10.42.243.0/24", "move the route 10.42.242.0/24"] {
        assert!(planned.contains(part), "{planned}");
    }
    assert_eq!(world.run("apply"), planned);
    assert_eq!(twice(&["plan"]), "nothing is to be changed\n");
}

#[test]
fn what_is_not_as_the_host_had_it_is_replaced_on_request_only() {
    let Some(world) = World::new() else { return };
    let before = world.settled();
    let subnet = || {
        world.hosts.engines[0].docker(&["network", "inspect", "berth", "--format", "{{(index .IPAM.Config 0).Subnet}}"])
    };
    world.run("apply");
    let first = subnet();

    // The same name on another machine, which has another state directory.
    let other = || {
        let folder = world.hosts.folder().join("state-of-another");
        world.command(&["apply"]).with("--state-dir", folder)
    };
    let refused = other().run();
    assert!(refused.code == Some(1) && refused.errors.contains("agent network apply --takeover"), "{}", refused.errors);
    done(&other().flag("--takeover").run());
    let refused = world.command(&["apply"]).run();
    assert!(refused.code == Some(1) && refused.errors.contains("another machine"), "{}", refused.errors);
    done(&world.command(&["apply"]).flag("--takeover").run());

    // Another subnet: the network of containers stays until an operator says that it may go, and while one is on it.
    let old = first.trim().trim_end_matches("/24").to_owned();
    claims::release(&world.hosts.etcd, "host-1", &old);
    claims::claim(&world.hosts.etcd, "host-1", "10.42.77.0", Some("10.44.0.1"));
    let said = format!("the network berth has {old}/24, wanted 10.42.77.0/24");
    let held = world.run("apply");
    assert!(held.contains(&said) && held.contains("agent network apply --recreate"), "{held}");
    world.hosts.engines[0].docker(&["create", "--name", "on-it", "--network", "berth", "box", "/bin/busybox", "true"]);
    let held = done(&world.command(&["apply"]).flag("--recreate").run());
    assert!(held.contains("1 containers are on it"), "{held}");
    assert_eq!(subnet(), first);
    world.hosts.engines[0].docker(&["rm", "on-it"]);
    let done_now = done(&world.command(&["apply"]).flag("--recreate").run());
    assert!(done_now.contains("create the network berth with 10.42.77.0/24"), "{done_now}");
    assert_eq!(subnet().trim(), "10.42.77.0/24");
    assert_eq!(world.run("plan"), "nothing is to be changed\n");

    // A ledger that is damaged is not guessed at; without one, what carries our mark is known all the same.
    let ledger = world.hosts.folder().join("state/network.json");
    std::fs::write(&ledger, "{").unwrap();
    let refused = world.command(&["remove"]).run();
    assert!(refused.code == Some(1) && refused.errors.contains("network.json"), "{}", refused.errors);
    std::fs::remove_file(&ledger).unwrap();
    world.run("remove");
    world.stop_forwarding();
    world.is_as(&before, "the ledger was lost", str::to_owned);
}
