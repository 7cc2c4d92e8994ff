//! Two engines in network namespaces, with an image of programs of this machine.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use tests::cluster::ClusterFolder;
use tests::engine::Engine;
use tests::namespace::Pair;
use tests::shared::{Exclusive, there};
use tests::{Launch, Service};

/// The engines: host, network of its containers, address of its end of the cable.
const ENGINES: [(&str, &str, &str); 2] = [("one", "172.31.1", "10.42.0.1"), ("two", "172.31.2", "10.42.0.2")];

/// Programs in the image: what asks for names and metadata, and what waits.
const PROGRAMS: [&str; 4] = ["sh", "getent", "curl", "sleep"];

/// The image's name.
pub(crate) const IMAGE: &str = "probe:1";

/// A host: its name, and its engine.
pub(crate) struct Host {
    pub(crate) name: &'static str,
    pub(crate) engine: Engine,
}

impl Host {
    fn start(name: &'static str, namespace: &str, network: &str) -> Option<Self> {
        let bridge = format!("{network}.1/24");
        // No rules: the namespace has no others, and the containers' networks are routed as they are.
        let flags = ["--bip", &bridge, "--iptables=false", "--ip6tables=false"];
        Some(Self { name, engine: Engine::start_with(namespace, &flags)? })
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.engine.socket().display())
    }

    pub(crate) fn address(&self, container: &str) -> String {
        self.engine.docker(&["inspect", "--format", "{{.NetworkSettings.IPAddress}}", container])
    }
}

/// Both engines with the image, the namespaces they are in, and a folder.
pub(crate) struct Engines {
    pub(crate) both: Vec<Host>,
    // Fields are dropped in this order: the engines need the others to end well.
    pub(crate) pair: Pair,
    pub(crate) files: ClusterFolder,
    _alone: Exclusive,
}

impl Engines {
    /// `None`, with a word about it, where they cannot run.
    pub(crate) fn start() -> Option<Self> {
        if !there(&[("ip", "-V"), ("curl", "--version")], "iproute2, curl") {
            return None;
        }
        let alone = Exclusive::take("engines");
        let pair = Pair::try_new(ENGINES[1].2)?;
        let files = ClusterFolder::empty();
        let image = image(&files.path("image"));
        let namespaces = [pair.host.clone(), pair.container.clone()];
        let both: Option<Vec<_>> = ENGINES
            .iter()
            .zip(&namespaces)
            .map(|((host, network, _), namespace)| Host::start(host, namespace, network))
            .collect();
        let both = both?;
        for (own, other) in [(0, 1), (1, 0)] {
            let (_, network, address) = ENGINES[other];
            let route = ["ip", "route", "add", &format!("{network}.0/24"), "via", address];
            if own == 0 {
                pair.on_host(&route)
            } else {
                pair.in_container(&route)
            };
        }
        for host in &both {
            host.engine.docker(&["import", image.to_str().unwrap(), IMAGE]);
        }
        let engines = Self { both, pair, files, _alone: alone };
        engines.describe(&[]);
        Some(engines)
    }

    /// Writes the cluster as it is, with these containers: name, service, host, address.
    pub(crate) fn describe(&self, containers: &[(&str, &str, &str, String)]) {
        let hosts: Vec<_> = ENGINES
            .iter()
            .map(|(name, _, address)| {
                json!({ "name": name, "uuid": format!("uuid-{name}"), "agent_ip": address, "memory": "8GiB", "milli_cpu": 4000,
                        "labels": { "side": name } })
            })
            .collect();
        let services: BTreeSet<_> = containers.iter().filter_map(|one| one.1.split_once('/')).collect();
        let services: Vec<_> =
            services.into_iter().map(|(stack, name)| json!({ "stack": stack, "name": name })).collect();
        let containers: Vec<_> = containers
            .iter()
            .map(|(name, service, host, address)| json!({ "name": name, "service": service, "host": host, "primary_ip": address }))
            .collect();
        let document = json!({ "berth": 1, "hosts": hosts, "services": services, "containers": containers });
        std::fs::write(self.files.file(), document.to_string()).unwrap();
        // Both are on the scheduler's machine, where no host but its own may say so itself.
        let listening: serde_json::Map<_, _> =
            self.both.iter().zip(ENGINES).map(|(host, (name, ..))| (name.to_owned(), json!(host.endpoint()))).collect();
        std::fs::write(self.files.path("engines.json"), serde_json::to_string(&listening).unwrap()).unwrap();
        // Containers may write there.
        let policy = json!({ "default": { "bind_sources": [self.files.path("out")] } });
        std::fs::write(self.files.path("policy.json"), policy.to_string()).unwrap();
    }

    pub(crate) fn launch(&self) -> Launch {
        Launch::scheduler()
            .with("--source", format!("file:{}", self.files.file().display()))
            .with("--docker-engines", self.files.path("engines.json"))
            .with("--policy", self.files.path("policy.json"))
            .with("--state-dir", self.files.path("state"))
    }

    pub(crate) fn scheduler(&self) -> (Service, SocketAddr) {
        let mut scheduler = self.launch().start();
        scheduler.ready();
        let address = scheduler.address();
        (scheduler, address)
    }

    pub(crate) fn agent(&self, namespace: &str) -> Service {
        let agent = Launch::agent(&self.files.file()).in_namespace(namespace);
        let agent = agent.with("--metadata", "169.254.169.250:80").with("--dns", "169.254.169.251:53");
        agent.flag("--add-address").with("--interface", "lo").start()
    }
}

/// An image of programs of this machine and what they are linked with.
fn image(folder: &Path) -> PathBuf {
    let root = folder.join("root");
    let copy = |file: &str| {
        let real = std::fs::canonicalize(file).unwrap();
        let to = root.join(file.trim_start_matches('/'));
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(real, to).unwrap();
    };
    for program in PROGRAMS {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
        let path = String::from_utf8(found.stdout).unwrap();
        copy(path.trim());
        let linked = Command::new("ldd").arg(path.trim()).output().unwrap();
        let linked = String::from_utf8(linked.stdout).unwrap();
        linked.split_whitespace().filter(|word| word.starts_with('/')).for_each(copy);
        if !path.trim().starts_with("/bin/") {
            std::fs::create_dir_all(root.join("bin")).unwrap();
            std::fs::copy(path.trim(), root.join("bin").join(program)).unwrap();
        }
    }
    std::fs::create_dir_all(root.join("etc")).unwrap();
    std::fs::write(root.join("etc/nsswitch.conf"), "hosts: files dns\n").unwrap();
    let tar = folder.join("image.tar");
    let packed = Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&tar).arg(".").status().unwrap();
    assert!(packed.success());
    tar
}
