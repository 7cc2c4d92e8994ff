//! Hosts on one switch, each with a Docker Engine of its own, and etcd: what agents need to find each other.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::engine::Engine;
use crate::etcd::Etcd;
use crate::namespace::Switch;
use crate::service::Ended;
use crate::shared::Exclusive;
use crate::{Executable, Launch};

/// The address of the switch, on which etcd listens.
const SWITCH: Ipv4Addr = Ipv4Addr::new(10, 44, 0, 254);

/// Some hosts. Dropping this removes all of it.
#[derive(Debug)]
pub struct DockerHosts {
    // Fields are dropped in this order.
    /// The engine of each host, with the image `box`.
    pub engines: Vec<Engine>,
    /// Reached from each host.
    pub etcd: Etcd,
    /// The namespaces of the hosts, and what joins them.
    pub switch: Switch,
    folder: TempDir,
    _alone: Exclusive,
}

impl DockerHosts {
    /// Starts so many; `None`, with a word about it, where there can be none. With `CI=true` that is a failure.
    pub fn start(hosts: u8) -> Option<Self> {
        Self::start_with(hosts, None, 1)
    }

    /// The same with the engines of another suite of Debian, or with several members of etcd.
    pub fn start_with(hosts: u8, suite: Option<&str>, members: usize) -> Option<Self> {
        let switch = Switch::try_new(hosts)?;
        let alone = Exclusive::take("engines");
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let etcd = Etcd::start_within(&switch.switch, SWITCH, members)?;
        // Engines start beside each other: most of it is waiting.
        let engines: Vec<Option<Engine>> = std::thread::scope(|scope| {
            let starting: Vec<_> = (switch.hosts.iter())
                .map(|host| {
                    scope.spawn(move || {
                        let engine = match suite {
                            Some(suite) => Engine::start_of_suite(suite, host)?,
                            None => Engine::start(host)?,
                        };
                        engine.import_box()?;
                        Some(engine)
                    })
                })
                .collect();
            starting.into_iter().map(|engine| engine.join().expect("the engine starts")).collect()
        });
        let engines: Vec<Engine> = engines.into_iter().collect::<Option<_>>()?;
        Some(Self { engines, etcd, switch, folder, _alone: alone })
    }

    /// The agent of a host, which it calls `host-1` for the first one. Where it answers is left to be said.
    pub fn agent(&self, host: usize) -> Launch {
        let engine = format!("--docker=unix://{}", self.engines[host].socket().display());
        let agent = Launch::bare(Executable::Agent).word("up").logged().in_namespace(&self.switch.hosts[host]);
        let agent = agent.flag(&engine).with("--source", format!("etcd:{}", self.etcd.urls()));
        let agent = agent.with("--host", format!("host-{}", host + 1));
        let agent = agent.with("--public-ip", format!("10.44.0.{}", host + 1));
        agent.with("--state-dir", self.folder.path().join(format!("state-{host}")))
    }

    /// A scheduler on a host, which shares its ledger with all others, follows the metadata service at this address and
    /// reaches all engines.
    pub fn scheduler(&self, host: usize, metadata: &str) -> Launch {
        let sockets = self.engines.iter().enumerate().map(|(number, engine)| {
            (format!("host-{}", number + 1), format!("unix://{}", engine.socket().display()).into())
        });
        let sockets: serde_json::Map<_, _> = sockets.collect();
        let engines = self.folder.path().join("engines.json");
        let text = serde_json::to_string(&sockets).expect("a map of texts is JSON");
        std::fs::write(&engines, text).expect("the file of engines can be written");
        Launch::served(Executable::Scheduler)
            .in_namespace(&self.switch.hosts[host])
            .with("--source", format!("metadata:{metadata}"))
            .with("--ledger-etcd", self.etcd.urls())
            .with("--ledger-key", self.folder.path().join("ledger.key"))
            .with("--state-dir", self.scheduler_state(host))
            .with("--docker-engines", &engines)
    }

    /// What a subcommand of the scheduler on a host ends with, which answers at this address.
    pub fn ask_scheduler(&self, host: usize, address: &str, words: &[&str]) -> Ended {
        self.client_of_scheduler(host, address, words).run()
    }

    /// How a subcommand of the scheduler is started on a host.
    pub fn client_of_scheduler(&self, host: usize, address: &str, words: &[&str]) -> Launch {
        let token = self.scheduler_state(host).join("scheduler.token");
        // Commands of a catalog and of images have two words.
        let (command, rest) = words.split_at(if matches!(words[0], "catalog" | "images") { 2 } else { 1 });
        let launch = command.iter().fold(Launch::bare(Executable::Scheduler), Launch::word);
        let launch = launch.word("--server").word(address).word("--token-file").word(token);
        let launch = rest.iter().fold(launch, Launch::word);
        launch.in_namespace(&self.switch.hosts[host])
    }

    fn scheduler_state(&self, host: usize) -> PathBuf {
        self.folder.path().join(format!("scheduler-{host}"))
    }

    /// A folder for what a test writes.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
