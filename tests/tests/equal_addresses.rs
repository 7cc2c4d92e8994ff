//! Three hosts with Docker's defaults and one etcd: the same addresses on each, and the same compose project with the same
//! names on two of them. Whatever is asked from inside a container is answered for that container and its host.
//!
//! Linux, as root, with Debian's docker.io, etcd-server and busybox-static.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use tests::docker_hosts::DockerHosts;
use tests::{Service, eventually};

const LIMIT: Duration = Duration::from_secs(40);

/// Where containers ask.
const METADATA: &str = "169.254.169.250";
const DNS: &str = "169.254.169.251";

/// The network of the compose project: the engines give it the same addresses everywhere.
const NETWORK: &str = "shop_default";

/// A container as it was started, and what its engine says of it.
struct Container {
    /// The number of its host.
    host: usize,
    name: String,
    /// `STACK/SERVICE`, or nothing.
    service: String,
    address: String,
    pid: String,
}

impl Container {
    /// What a command prints that runs in the container's network.
    fn inside(&self, command: &[&str]) -> String {
        let output = Command::new("nsenter").args(["--target", &self.pid, "--net"]).args(command).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// What metadata answers to it.
    fn told(&self, path: &str) -> String {
        self.inside(&["curl", "--silent", "--max-time", "5", &format!("http://{METADATA}/latest/{path}")])
    }

    /// What DNS answers to it, in order.
    fn asked(&self, question: &[&str]) -> Vec<String> {
        let dig = ["dig", "+short", "+time=3", "+tries=2", &format!("@{DNS}")];
        let mut lines: Vec<_> = self.inside(&[&dig[..], question].concat()).lines().map(ToOwned::to_owned).collect();
        lines.sort();
        lines
    }
}

/// Everything there is. Fields are dropped in this order.
struct World {
    agents: Vec<Service>,
    hosts: DockerHosts,
}

impl World {
    /// `None`, with a word about it, where there can be none.
    fn new() -> Option<Self> {
        let hosts = DockerHosts::start(3)?;
        let agent = |host| {
            let agent = hosts.agent(host).flag("--add-address").with("--interface", "docker0");
            agent.with("--metadata", format!("{METADATA}:80")).with("--dns", format!("{DNS}:53")).start()
        };
        Some(Self { agents: (0..3).map(agent).collect(), hosts })
    }

    /// Starts a container, of a service when one is named, as compose does it.
    fn run(&self, host: usize, name: &str, service: &str, flags: &[&str]) -> Container {
        let labels = service.split_once('/').map(|(project, service)| {
            let label = |key: &str, value: &str| format!("--label=com.docker.compose.{key}={value}");
            [label("project", project), label("service", service), label("container-number", "1")]
        });
        let labels: Vec<&str> = labels.iter().flatten().map(String::as_str).collect();
        let engine = &self.hosts.engines[host];
        engine.run_box(name, &[&labels[..], flags].concat());
        let format = "{{.State.Pid}} {{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
        let told = engine.docker(&["inspect", "--format", format, name]);
        let (pid, address) = told.split_once(' ').unwrap();
        let (pid, address) = (pid.to_owned(), address.to_owned());
        Container { host, name: name.to_owned(), service: service.to_owned(), address, pid }
    }
}

#[test]
fn hosts_with_equal_addresses_answer_for_their_own_containers() {
    let Some(mut world) = World::new() else { return };
    let mut all = Vec::new();
    for host in 0..3 {
        all.push(world.run(host, &format!("lone-{}", host + 1), "", &[]));
        // Only one of them has a port, and not on every host.
        let published: &[&str] = if host == 1 { &["--publish", "8082:80"] } else { &[] };
        all.push(world.run(host, &format!("api-{}", host + 1), "back/api", published));
        if host == 1 {
            // Published under its own port, and under another one.
            all.push(world.run(host, "same-2", "", &["--publish", "8080:8080"]));
            all.push(world.run(host, "other-2", "", &["--publish", "8081:80"]));
        } else {
            // The same project, in another order, so that an address belongs to something else on the other host.
            world.hosts.engines[host].docker(&["network", "create", NETWORK]);
            let mut services = ["web", "db", "cache"];
            services.rotate_left(host);
            for service in services {
                let (name, service) = (format!("shop_{service}_1"), format!("shop/{service}"));
                all.push(world.run(host, &name, &service, &["--network", NETWORK]));
            }
        }
    }
    // The addresses are the same indeed, or this says nothing.
    let addresses = |host: usize| all.iter().filter(move |one| one.host == host).map(|one| one.address.as_str());
    assert!(addresses(0).all(|address| addresses(2).any(|other| other == address)));
    assert!(addresses(1).any(|address| addresses(0).any(|other| other == address)));
    let own = |host: usize, name: &str| all.iter().find(|one| one.host == host && one.name == name);
    assert_ne!(own(0, "shop_web_1").unwrap().address, own(2, "shop_web_1").unwrap().address);

    // Every agent knows every container, its own and the others'.
    for (host, agent) in world.agents.iter_mut().enumerate() {
        assert!(agent.is_running(), "{}", agent.log());
        let known = || {
            let curl = ["curl", "--silent", "--max-time", "5", &format!("http://{METADATA}/latest/containers")];
            let told = world.hosts.switch.on(host, &curl);
            let names = told.lines().filter_map(|line| line.split_once('=')).map(|(_, name)| name.trim().to_owned());
            names.collect::<BTreeSet<_>>()
        };
        let expected: BTreeSet<String> = all.iter().map(|one| one.name.clone()).collect();
        eventually(&format!("host-{} knows all containers", host + 1), LIMIT, || (known() == expected).then_some(()));
        // DNS too, which makes its view beside metadata.
        eventually("and is ready", LIMIT, || {
            let page = ["curl", "--silent", "--max-time", "5", "http://127.0.0.1:8112/readyz"];
            world.hosts.switch.on(host, &page).contains("\"ready\":true").then_some(())
        });
    }

    let mut wrong = Vec::new();
    let mut check = |of: &Container, question: &str, answer: Vec<String>, expected: Vec<String>| {
        if answer != expected {
            let path = format!("{} on host-{} ({})", of.name, of.host + 1, of.address);
            wrong.push(format!("{path} asks for {question} and is told {answer:?}, expected {expected:?}"));
        }
    };
    for one in &all {
        // Who am I.
        let (stack, service) = one.service.split_once('/').unwrap_or_default();
        for (path, expected) in [
            ("self/container/name", one.name.clone()),
            ("self/container/primary_ip", one.address.clone()),
            ("self/host/name", format!("host-{}", one.host + 1)),
            ("self/service/name", service.to_owned()),
            ("self/stack/name", stack.to_owned()),
        ] {
            let told = one.told(path);
            let told = if told.contains("Not found") { String::new() } else { told };
            check(one, path, vec![told], vec![expected]);
        }
        // Where is everybody: those of this host have their addresses, those of others are not reached by theirs.
        let own_name = format!("{}.rancher.internal.", one.name);
        check(one, "its address", one.asked(&["-x", &one.address]), vec![own_name]);
        let names: BTreeSet<&str> = all.iter().map(|other| other.name.as_str()).collect();
        for name in names {
            let expected = match own(one.host, name) {
                Some(own) => vec![own.address.clone()],
                // All that it publishes has the same number on its host.
                None if name == "same-2" => vec!["10.44.0.2".to_owned()],
                None => Vec::new(),
            };
            check(one, name, one.asked(&[&format!("{name}.rancher.internal")]), expected);
        }
        // The port of a service: at the containers here, and where another host publishes it.
        let here = format!("0 0 80 api-{}.rancher.internal.", one.host + 1);
        let there = (one.host != 1).then(|| "0 0 8082 host-2.hosts.dns.rancher.internal.".to_owned());
        let answer = one.asked(&["_80._tcp.api.back.rancher.internal", "SRV"]);
        check(one, "the port 80 of back/api", answer, [here].into_iter().chain(there).collect());
        for service in ["back/api", "shop/web", "shop/db", "shop/cache"] {
            let (stack, name) = service.split_once('/').unwrap();
            let members = all.iter().filter(|other| other.host == one.host && other.service == service);
            let expected = members.map(|other| other.address.clone()).collect();
            check(one, service, one.asked(&[&format!("{name}.{stack}.rancher.internal")]), expected);
        }
    }
    assert!(wrong.is_empty(), "{} wrong answers:\n{}", wrong.len(), wrong.join("\n"));
}
