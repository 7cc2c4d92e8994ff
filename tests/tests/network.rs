//! The network between hosts: three namespaces with an engine each and one etcd, on one switch. What is asked comes from
//! inside containers.
//!
//! Linux, as root, with Debian's docker.io, etcd-server, nftables and busybox-static.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tests::docker_hosts::DockerHosts;
use tests::service::Ended;
use tests::{Executable, Launch, Service, battery, eventually, tell};

const LIMIT: Duration = Duration::from_secs(40);

/// Everything there is. Fields are dropped in this order.
struct World {
    agents: Vec<Service>,
    hosts: DockerHosts,
}

/// `agent network` with these words, on a host.
fn on_host(hosts: &DockerHosts, host: usize, words: &[&str]) -> Launch {
    let launch = Launch::bare(Executable::Agent).word("network").in_namespace(&hosts.switch.hosts[host]);
    let launch = words.iter().fold(launch, Launch::word);
    let engine = format!("--docker=unix://{}", hosts.engines[host].socket().display());
    let launch = launch.flag(&engine).with("--source", format!("etcd:{}", hosts.etcd.urls()));
    let launch =
        launch.with("--host", format!("host-{}", host + 1)).with("--public-ip", format!("10.44.0.{}", host + 1));
    launch.with("--state-dir", hosts.folder().join(format!("state-{host}")))
}

/// `agent network` with these words, as an operator.
fn operator(hosts: &DockerHosts, words: &[&str]) -> Ended {
    let launch = Launch::bare(Executable::Agent).word("network").in_namespace(&hosts.switch.switch);
    words.iter().fold(launch, Launch::word).with("--etcd", hosts.etcd.urls()).run()
}

fn done(ended: Ended) -> String {
    assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
    ended.output
}

/// What a change of the network could change on a host.
fn everything(hosts: &DockerHosts, host: usize) -> String {
    let on = |command: &[&str]| hosts.switch.on(host, command);
    let networks = hosts.engines[host].docker(&["network", "ls", "--format", "{{.Name}} {{.Driver}}"]);
    let mut networks: Vec<_> = networks.lines().collect();
    networks.sort_unstable();
    [
        on(&["ip", "-o", "address"]).lines().filter(|line| !line.contains("berth-")).collect::<Vec<_>>().join("\n"),
        on(&["ip", "route", "show", "table", "all"]),
        on(&["ip", "rule"]),
        on(&["nft", "-s", "list", "ruleset"]),
        on(&["sysctl", "net.ipv4.ip_forward"]),
        networks.join("\n"),
    ]
    .join("\n--\n")
}

impl World {
    /// `None`, with a word about it, where programs are missing.
    fn tools() -> Option<()> {
        let needed = [("nft", "--version"), ("curl", "--version"), ("dig", "-v")];
        tests::shared::there(&needed, "nftables, curl, dnsutils").then_some(())
    }

    fn new() -> Option<Self> {
        Self::with_engines_of(None)
    }

    /// With the engines of another suite of Debian.
    fn with_engines_of(suite: Option<&str>) -> Option<Self> {
        Self::tools()?;
        let hosts = DockerHosts::start_with(3, suite, 1)?;
        done(operator(&hosts, &["init", "--cidr", "10.42.0.0/16", "--allocate", "self"]));
        Some(Self { agents: Vec::new(), hosts })
    }

    fn start(&mut self) {
        self.agents = (0..3)
            .map(|host| {
                let agent = self.hosts.agent(host).flag("--network").flag("--serve-containers");
                agent.start()
            })
            .collect();
        for host in 0..3 {
            eventually("it has routes to both others", LIMIT, || {
                (self.hosts.switch.on(host, &["ip", "route", "show", "proto", "98"]).lines().count() == 2).then_some(())
            });
        }
    }

    /// Starts a web server in a container on the containers' network; gives its address and the process.
    fn serve(&self, host: usize, name: &str, flags: &[&str]) -> (String, String) {
        let engine = &self.hosts.engines[host];
        let line = format!("busybox mkdir /www; echo -n {name} > /www/index.html; exec busybox httpd -f -h /www");
        let run = ["run", "--detach", "--name", name, "--network", "berth"];
        engine.docker(&[&run[..], flags, &["box", "/bin/busybox", "sh", "-c", &line]].concat());
        let of = |format: &str| engine.docker(&["inspect", "--format", format, name]).trim().to_owned();
        (of("{{.NetworkSettings.Networks.berth.IPAddress}}"), of("{{.State.Pid}}"))
    }
}

/// What a command prints that runs in the network of a container.
fn inside(pid: &str, command: &[&str]) -> String {
    let output = Command::new("nsenter").args(["--target", pid, "--net"]).args(command).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn containers_of_all_hosts_reach_each_other_at_their_own_addresses_and_nobody_else_does() {
    let Some(world) = World::new() else { return };
    containers_reach_each_other(world);
}

#[test]
fn newer_engines_behave_alike() {
    // Engines from 28 on drop what comes for containers from elsewhere, unless their network says otherwise.
    for (suite, version) in [("trixie", 26), ("forky", 28)] {
        if !battery::is_long() {
            return tell("BERTH_LONG=1 tries the engines of later suites");
        }
        let Some(world) = World::with_engines_of(Some(suite)) else { return };
        let shown = world.hosts.engines[0].docker(&["version", "--format", "{{.Server.Version}}"]);
        tell(&format!("the engine of {suite}: {}", shown.trim()));
        let first: u32 = shown.split('.').next().unwrap().parse().unwrap();
        assert!(first >= version, "{shown}");
        containers_reach_each_other(world);
    }
}

fn containers_reach_each_other(mut world: World) {
    world.start();
    let containers: Vec<_> = (0..3).map(|host| world.serve(host, &format!("web-{host}"), &[])).collect();
    let (published, _) = world.serve(2, "open", &["--publish", "8080:80"]);
    for (from, (own, pid)) in containers.iter().enumerate() {
        for (to, (address, _)) in containers.iter().enumerate() {
            eventually("the page of the other one", LIMIT, || {
                let page = inside(pid, &["curl", "-s", "-m", "2", &format!("http://{address}/")]);
                (page == format!("web-{to}")).then_some(())
            });
            // By its name, which leads to its own address.
            eventually("the name of the other one", LIMIT, || {
                let name = format!("web-{to}.rancher.internal");
                let found = inside(pid, &["dig", "+short", "+time=2", "+tries=1", "@169.254.169.251", &name]);
                (found == *address).then_some(())
            });
        }
        let name = inside(pid, &["curl", "-s", "-m", "5", "http://169.254.169.250/latest/self/container/name"]);
        assert_eq!(name, format!("web-{from}"), "at {own}");
        let range =
            inside(pid, &["curl", "-s", "-m", "5", "http://169.254.169.250/latest/networks/berth/metadata/cidr"]);
        assert_eq!(range, "10.42.0.0/16");
    }
    let switch = |command: &[&str]| {
        let output =
            tests::namespace::command(Some(&world.hosts.switch.switch), command[0]).args(&command[1..]).output();
        String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
    };
    // A machine that is no host of the cluster has a route, and is let in nowhere but to what is published.
    switch(&["ip", "route", "add", "10.42.0.0/16", "via", "10.44.0.3"]);
    assert_eq!(switch(&["curl", "-s", "-m", "2", &format!("http://{published}/")]), "");
    assert_eq!(switch(&["curl", "-s", "-m", "5", "http://10.44.0.3:8080/"]), "open");
    // The other hosts are of the cluster.
    assert_eq!(world.hosts.switch.on(0, &["curl", "-s", "-m", "5", &format!("http://{published}/")]), "open");
    // Outside, a container has its host's address.
    let (_, pid) = &containers[0];
    let seen = std::thread::scope(|scope| {
        let listening = scope.spawn(|| {
            let script = "import socket; s = socket.create_server(('10.44.0.254', 7777)); s.settimeout(20); print(s.accept()[1][0])";
            switch(&["python3", "-c", script])
        });
        // Refused until it listens.
        eventually("somebody outside is asked", LIMIT, || {
            inside(pid, &["curl", "-s", "-m", "1", "http://10.44.0.254:7777/"]);
            listening.is_finished().then_some(())
        });
        listening.join().unwrap()
    });
    assert_eq!(seen.trim(), "10.44.0.1");

    let doctor = |host: usize| {
        let engine = format!("--docker=unix://{}", world.hosts.engines[host].socket().display());
        let launch = Launch::bare(Executable::Agent).in_namespace(&world.hosts.switch.hosts[host]).word("doctor");
        let launch = launch.flag(&engine).flag("--json").with("--etcd", world.hosts.etcd.urls());
        let report: Value =
            serde_json::from_str(&launch.with("--host", format!("host-{}", host + 1)).run().output).unwrap();
        let findings = report["findings"].as_array().unwrap().clone();
        let finding = move |subject: &str| {
            let found = findings.iter().find(|finding| finding["subject"] == subject);
            let of = |key: &str| found.and_then(|finding| finding[key].as_str()).unwrap_or_default().to_owned();
            (of("outcome"), of("found"))
        };
        ["network of this host", "routes to hosts", "forwarding", "packet size (MTU)", "packets to hosts"].map(finding)
    };
    let well = doctor(0);
    assert!(well.iter().all(|(outcome, _)| outcome == "ok"), "{well:?}");
    // As a router of a cloud does that knows addresses of hosts only.
    let cloud = "table ip cloud { chain in { type filter hook input priority 0; ip saddr 10.42.0.0/16 udp dport 33434 drop; }; }";
    world.hosts.switch.on(1, &["sh", "-c", &format!("nft '{cloud}'")]);
    world.hosts.switch.on(2, &["sysctl", "-w", "net.ipv4.ip_forward=0"]);
    let [.., (outcome, found)] = doctor(0);
    assert!(outcome == "bad" && found.starts_with("host-2: the host answers, but not the gateway"), "{found}");
    let [_, _, (outcome, found), ..] = doctor(2);
    assert!(outcome == "bad" && found.contains("net.ipv4.ip_forward is 0"), "{found}");
}

#[test]
fn what_was_changed_is_undone_exactly() {
    let Some(world) = World::new() else { return };
    let before = everything(&world.hosts, 0);
    let planned = done(on_host(&world.hosts, 0, &["plan"]).run());
    assert!(planned.starts_with("claim the subnet 10.42."), "{planned}");
    assert_eq!(everything(&world.hosts, 0), before);
    // Another host has a subnet already.
    done(on_host(&world.hosts, 1, &["apply"]).run());
    let applied = done(on_host(&world.hosts, 0, &["apply"]).run());
    assert!(applied.contains("create the network berth") && applied.contains("add the route 10.42."), "{applied}");
    let after = everything(&world.hosts, 0);
    assert!(after != before && after.contains("proto 98 metric 4242") && after.contains("table ip berth"), "{after}");
    for _ in 0..2 {
        let again = on_host(&world.hosts, 0, &["plan"]).flag("--exit-code").run();
        assert_eq!((again.code, &*again.output), (Some(0), "nothing is to be changed\n"), "{}", again.errors);
    }
    let explained = on_host(&world.hosts, 0, &["explain", "host-2"]).flag("--json").run().output;
    let explained: Value = serde_json::from_str(&explained).unwrap();
    assert_eq!((&explained["peers"][0]["verdict"], &explained["peers"][0]["installed"]), (&"ok".into(), &true.into()));

    // A container is in the way, and is named.
    let (_, _) = world.serve(0, "in-the-way", &[]);
    let left = on_host(&world.hosts, 0, &["remove"]).run();
    assert_eq!(left.code, Some(1), "{}", left.output);
    assert!(left.errors.contains("1 containers are on it"), "{}", left.errors);
    world.hosts.engines[0].docker(&["rm", "--force", "in-the-way"]);
    done(on_host(&world.hosts, 0, &["remove"]).run());
    assert_eq!(everything(&world.hosts, 0), before);
    let nothing = done(on_host(&world.hosts, 0, &["remove"]).run());
    assert_eq!(nothing, "nothing was changed here\n");
}

#[test]
fn routes_stay_when_etcd_is_emptied_and_come_back_when_they_are_deleted() {
    let Some(mut world) = World::new() else { return };
    world.start();
    let routes = |host| world.hosts.switch.on(host, &["ip", "route", "show", "proto", "98"]);
    let before = routes(0);
    let first = before.lines().next().unwrap().split(' ').next().unwrap().to_owned();
    world.hosts.switch.on(0, &["ip", "route", "del", &first, "proto", "98"]);
    eventually("it is back", LIMIT, || (routes(0) == before).then_some(()));
    // The link goes, and the routes with it, of which the kernel says nothing.
    world.hosts.switch.on(0, &["ip", "link", "set", "eth0", "down"]);
    world.hosts.switch.on(0, &["ip", "link", "set", "eth0", "up"]);
    eventually("they are back", LIMIT, || (routes(0) == before).then_some(()));
    let foreign = ["ip", "route", "add", "10.99.0.0/16", "via", "10.44.0.2", "metric", "4242"];
    world.hosts.switch.on(0, &foreign);
    // An agent is killed: its peers keep their routes to it.
    world.agents.remove(2).kill();
    world.hosts.etcd.wipe();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(routes(0), before);
    assert_eq!(routes(1).lines().count(), 2);
    let kept = world.hosts.switch.on(0, &["ip", "route", "show", "10.99.0.0/16"]);
    assert!(kept.contains("10.99.0.0/16"), "{kept}");
    let state = world.hosts.folder().join("state-0");
    let restored = operator(&world.hosts, &["restore", "--state-dir", state.to_str().unwrap()]);
    assert!(done(restored).contains("wrote "));
    let claims = done(operator(&world.hosts, &["claims"]));
    assert!((1..=3).all(|host| claims.contains(&format!("host-{host}"))), "{claims}");
}

#[test]
fn the_example_of_three_hosts_shows_names_and_routes_and_leaves_nothing() {
    if World::tools().is_none() {
        return;
    }
    let text = tests::example::run("three-hosts");
    for part in ["\nthis is db on host-3\n", "\nnothing is to be changed\n", " via 10.44.0.3 dev eth0 metric 4242"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let namespaces = Command::new("ip").args(["netns", "list"]).output().unwrap();
    let namespaces = String::from_utf8(namespaces.stdout).unwrap();
    assert!(!namespaces.contains("berth-three-"), "{namespaces}{text}");
}

#[test]
fn subnets_are_given_once_and_given_back() {
    let Some(etcd) = tests::etcd::Etcd::start(1) else { return };
    let run = |words: &[&str]| {
        let launch = Launch::bare(Executable::Agent).word("network");
        words.iter().fold(launch, Launch::word).with("--etcd", etcd.urls()).run()
    };
    let refused = run(&["give", "a"]);
    assert!(refused.errors.contains("agent network init --cidr"), "{}", refused.errors);
    // Eight subnets, of which the first and the last one are not given.
    let made = done(run(&["init", "--cidr", "10.42.0.0/21"]));
    assert!(made.contains("6 subnets of /24"), "{made}");
    let hosts = ["a", "b", "c", "d", "e", "f"];
    let given: Vec<String> = std::thread::scope(|scope| {
        let giving: Vec<_> = hosts.iter().map(|host| scope.spawn(|| done(run(&["give", host])))).collect();
        giving.into_iter().map(|given| given.join().unwrap()).collect()
    });
    let mut subnets: Vec<_> = given.iter().map(|line| line.split(" has ").nth(1).unwrap().to_owned()).collect();
    subnets.sort();
    subnets.dedup();
    assert_eq!(subnets.len(), 6, "{given:?}");
    let seventh = run(&["give", "g"]);
    assert!(
        seventh.code == Some(1) && seventh.errors.contains("no subnet of 10.42.0.0/21 is free for g"),
        "{}",
        seventh.errors
    );
    assert_eq!(done(run(&["give", "a"])), given[0]);
    done(run(&["release", "a"]));
    // Not for a day, but to the same host.
    assert!(run(&["give", "g"]).errors.contains("is free for g"));
    assert_eq!(done(run(&["give", "a"])), given[0]);
    let smaller = run(&["init", "--cidr", "10.42.0.0/22"]);
    assert!(smaller.errors.contains("it can be widened"), "{}", smaller.errors);
    assert!(done(run(&["init", "--cidr", "10.42.0.0/20"])).contains("14 subnets"));
    done(run(&["give", "g"]));
}

#[test]
fn a_cluster_file_says_which_host_has_which_subnet() {
    let Some(switch) = tests::namespace::Switch::try_new(1) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cluster.yml");
    let write = |hosts: &str| {
        let range = "networks: [{ name: berth, metadata: { cidr: 10.42.0.0/16, owner: us } }]";
        let own = "{ name: host-1, agent_ip: 10.44.0.1, subnet: 10.42.1.0/24 }";
        std::fs::write(&file, format!("berth: 1\nhost: host-1\n{range}\nhosts:\n- {own}\n{hosts}...\n")).unwrap();
    };
    let launch = |words: &[&str]| {
        let launch = Launch::bare(Executable::Agent).in_namespace(&switch.hosts[0]);
        let launch = words.iter().fold(launch, Launch::word).with("--source", format!("file:{}", file.display()));
        launch.with("--state-dir", folder.path().join("state"))
    };
    let routes = || switch.on(0, &["ip", "route", "show", "proto", "98"]);
    let line = |host: u8, via: u8| format!("10.42.{host}.0/24 via 10.44.0.{via} dev eth0 metric 4242 \n");
    let (second, third) = (
        "- { name: host-2, agent_ip: 10.44.0.2, subnet: 10.42.2.0/24 }\n",
        "- { name: host-3, agent_ip: 192.0.2.3, router_ip: 10.44.0.3, subnet: 10.42.3.0/24 }\n",
    );
    write(&format!("{second}{third}"));
    let planned = done(launch(&["network", "plan"]).run());
    assert!(planned.contains("add the route 10.42.3.0/24 via 10.44.0.3 dev eth0"), "{planned}");
    let addresses = [("--metadata", "127.0.0.1:8250"), ("--dns", "127.0.0.1:8253"), ("--scheduler", "127.0.0.1:8251")];
    let agent = launch(&["up"]).flag("--network");
    let agent = addresses.into_iter().fold(agent, |agent, (flag, address)| agent.with(flag, address)).start();
    eventually("routes to both", LIMIT, || (routes() == line(2, 2) + &line(3, 3)).then_some(()));
    let label = "http://127.0.0.1:8250/latest/hosts/host-3/labels/io.rancher.network.per_host_subnet.router_ip";
    eventually("metadata has it", LIMIT, || (switch.on(0, &["curl", "-s", label]) == "10.44.0.3").then_some(()));
    // Another program routes to host-2, and a third host says that it has its subnet: each keeps what it has.
    switch.on(0, &["ip", "route", "add", "10.42.9.0/24", "via", "10.44.0.9", "metric", "4242"]);
    let thief = "- { name: host-4, agent_ip: 10.44.0.4, subnet: 10.42.2.0/24 }\n";
    let fifth = "- { name: host-5, agent_ip: 10.44.0.55, subnet: 10.42.5.0/24 }\n";
    write(&format!("{second}{thief}{fifth}- {{ name: host-9, agent_ip: 10.44.0.99, subnet: 10.42.9.0/24 }}\n"));
    let foreign = "10.42.9.0/24 via 10.44.0.9 dev eth0 metric 4242";
    eventually("a route to host-5, none to host-3", LIMIT, || (routes() == line(2, 2) + &line(5, 55)).then_some(()));
    let explained = done(launch(&["network", "explain"]).run());
    for (host, verdict) in [("host-2", "held: host-2 and host-4"), ("host-4", "held: host-2"), ("host-9", "taken: ")] {
        let line = explained.lines().find(|line| line.starts_with(host)).unwrap();
        assert!(line.contains(verdict), "{explained}");
    }
    let checked = Launch::bare(Executable::Agent).word("check").word(&file).run();
    assert!(checked.output.contains("host-2 has it too"), "{}{}", checked.output, checked.errors);
    for _ in 0..5 {
        eventually("it is back", LIMIT, || routes().contains("10.42.5.0/24").then_some(()));
        switch.on(0, &["ip", "route", "del", "10.42.5.0/24", "proto", "98"]);
    }
    // Another program means it.
    let warned = "the route to 10.42.5.0/24 was removed 5 times within a minute";
    eventually("it says so", LIMIT, || agent.log().contains(warned).then_some(()));
    assert_eq!(routes(), line(2, 2));
    drop(agent);
    done(launch(&["network", "remove"]).run());
    assert_eq!(routes(), "");
    assert!(switch.on(0, &["ip", "route", "show", "10.42.9.0/24"]).contains(foreign));
}

#[test]
fn with_another_user_root_keeps_the_network_in_a_process_of_its_own() {
    const USER: u32 = 64_123;
    let Some(switch) = tests::namespace::Switch::try_new(1) else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let (file, state) = (folder.path().join("cluster.yml"), folder.path().join("state"));
    let hosts = "- { name: host-1, agent_ip: 10.44.0.1, subnet: 10.42.1.0/24 }
- { name: host-2, agent_ip: 10.44.0.2, subnet: 10.42.2.0/24 }";
    let range = "networks: [{ name: berth, metadata: { cidr: 10.42.0.0/16, owner: us } }]";
    std::fs::write(&file, format!("berth: 1\nhost: host-1\n{range}\nhosts:\n{hosts}\n...\n")).unwrap();
    let routes = || switch.on(0, &["ip", "route", "show", "proto", "98"]);
    let launch = Launch::bare(Executable::Agent).word("up").word(&file).flag("--network").logged();
    let launch = launch.in_namespace(&switch.hosts[0]).with("--state-dir", &state).with("--user", USER.to_string());
    // Without a place for what it changes there is none, and a folder in one of that user's is no such place.
    let within = folder.path().join("within");
    std::fs::create_dir(&within).unwrap();
    std::os::unix::fs::chown(&within, Some(USER), Some(USER)).unwrap();
    let anywhere =
        Launch::bare(Executable::Agent).word("up").word(&file).flag("--network").with("--user", USER.to_string());
    for (refused, why) in [
        (anywhere.clone(), "--state-dir DIR"),
        (anywhere.with("--state-dir", within.join("state")), "belongs to the user"),
    ] {
        let ended = refused.in_namespace(&switch.hosts[0]).run();
        assert!(ended.code == Some(1) && ended.errors.contains(why), "{}", ended.errors);
    }
    let user_of = |path: &str| std::fs::metadata(path).unwrap().uid();
    for is_killed in [false, true] {
        let mut agent = launch.start();
        eventually("a route", LIMIT, || routes().starts_with("10.42.2.0/24 via 10.44.0.2").then_some(()));
        let pid = agent.pid();
        eventually("the agent is that user", LIMIT, || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let is_other = status.contains(&format!("Uid:\t{USER}")) && status.contains("CapEff:\t0000000000000400");
            is_other.then_some(())
        });
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let keeps = |child: &&str| {
            std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap().contains("--only-network")
        };
        let keeper = children.split_whitespace().find(keeps).unwrap();
        assert!(std::fs::read_to_string(format!("/proc/{keeper}/status")).unwrap().contains("Uid:\t0\t0\t0\t0"));
        assert_eq!(user_of(state.to_str().unwrap()), USER);
        assert_eq!(user_of(&format!("{}-network", state.display())), 0);
        // What it says of itself stands where one looks.
        let readyz = || switch.on(0, &["curl", "-s", "-m", "2", "http://127.0.0.1:8112/readyz"]);
        eventually("the agent is ready", LIMIT, || readyz().contains("\"ready\":true").then_some(()));
        let beside = "ip route replace 10.42.2.0/24 via 10.44.0.9 metric 1";
        switch.on(0, &beside.split(' ').collect::<Vec<_>>());
        switch.on(0, &["ip", "link", "set", "eth0", "down"]);
        switch.on(0, &["ip", "link", "set", "eth0", "up"]);
        eventually("the route is back", LIMIT, || routes().contains("10.42.2.0/24").then_some(()));
        if is_killed {
            assert!(Command::new("kill").args(["-KILL", keeper]).status().unwrap().success());
            assert_eq!(agent.ended(LIMIT).code(), Some(1));
            assert!(agent.log().contains("the process that keeps the network ended"), "{}", agent.log());
        } else {
            agent.stop();
        }
        let children: Vec<_> = children.split_whitespace().map(|child| format!("/proc/{child}")).collect();
        let is_gone = |process: &String| !std::path::Path::new(process).exists();
        eventually("the others end too", LIMIT, || children.iter().all(is_gone).then_some(()));
        assert!(routes().contains("10.42.2.0/24"), "what was changed stays");
    }
    let remove = Launch::bare(Executable::Agent).word("network").word("remove").in_namespace(&switch.hosts[0]);
    let remove = remove.with("--source", format!("file:{}", file.display()));
    done(remove.with("--state-dir", format!("{}-network", state.display())).run());
    assert_eq!(routes(), "");
}
