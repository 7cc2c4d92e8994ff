//! Hosts with a Docker Engine and an agent each, and one scheduler that keeps stacks on them.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::docker_hosts::DockerHosts;
use crate::service::Ended;
use crate::wait::eventually;
use crate::{Launch, Service};

/// Longest wait until the scheduler knows all hosts.
const LIMIT: Duration = Duration::from_mins(1);

/// Addresses of the agents on their hosts.
const DNS: &str = "127.0.0.1:5353";
const METADATA: &str = "127.0.0.1:8250";

/// Everything there is. Fields are dropped in this order.
#[derive(Debug)]
pub struct Stacked {
    scheduler: Service,
    /// Those that are there.
    pub agents: Vec<Service>,
    /// The engines, the etcd and the folder.
    pub hosts: DockerHosts,
}

impl Stacked {
    /// So many hosts, all of which the scheduler knows; `None`, with a word about it, where there can be none.
    pub fn start(hosts: u8) -> Option<Self> {
        Self::start_with(hosts, |scheduler, _| scheduler)
    }

    /// The same with another scheduler.
    pub fn start_with(hosts: u8, with: impl FnOnce(Launch, &DockerHosts) -> Launch) -> Option<Self> {
        let hosts = DockerHosts::start(hosts)?;
        let agent = |host| hosts.agent(host).with("--dns", DNS).with("--metadata", METADATA).start();
        let agents: Vec<Service> = (0..hosts.engines.len()).map(agent).collect();
        let scheduler = with(hosts.scheduler(0, METADATA), &hosts).start();
        let mut world = Self { scheduler, agents, hosts };
        let all = world.hosts.engines.len();
        eventually("the scheduler knows all hosts", LIMIT, || {
            let shown = world.ask(&["hosts", "--json"]);
            let shown: Value = serde_json::from_str(&shown.output).ok()?;
            (shown["hosts"].as_array()?.len() == all).then_some(())
        });
        Some(world)
    }

    /// Kills the scheduler and starts it as [`Stacked::start`] does.
    pub fn restart_scheduler(&mut self) {
        self.scheduler.kill();
        self.scheduler = self.hosts.scheduler(0, METADATA).start();
    }

    /// Where the scheduler answers, on the first host.
    pub fn address(&mut self) -> String {
        self.scheduler.address().to_string()
    }

    /// What a subcommand of the scheduler ends with.
    pub fn ask(&mut self, words: &[&str]) -> Ended {
        let address = self.address();
        self.hosts.ask_scheduler(0, &address, words)
    }

    /// What a subcommand prints on both outputs that has to end so.
    pub fn ends(&mut self, code: i32, words: &[&str]) -> String {
        let ended = self.ask(words);
        let said = ended.output + &ended.errors;
        assert_eq!(ended.code, Some(code), "{words:?}: {said}");
        said
    }

    /// What a subcommand prints as JSON.
    pub fn json(&mut self, words: &[&str]) -> Value {
        let ended = self.ask(&[words, &["--json"]].concat());
        serde_json::from_str(&ended.output).unwrap_or_else(|error| panic!("{error}: {}{}", ended.output, ended.errors))
    }

    /// A file with this text.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.hosts.folder().join(name);
        std::fs::write(&path, text).expect("a file can be written");
        path.display().to_string()
    }

    /// The volumes with names, by host.
    pub fn volumes(&self) -> BTreeSet<(usize, String)> {
        let of = |host: usize| {
            let names = self.hosts.engines[host].docker(&["volume", "ls", "--quiet"]);
            // A volume without a name has a digest for one.
            let found = names.lines().filter(|name| name.len() < 64).map(|name| (host, name.to_owned()));
            found.collect::<Vec<_>>()
        };
        (0..self.hosts.engines.len()).flat_map(of).collect()
    }

    /// How many containers of a stack run.
    pub fn running(&self, stack: &str) -> usize {
        let label = format!("label=io.berth.stack={stack}");
        let of = |engine: &crate::engine::Engine| engine.docker(&["ps", "--quiet", "--filter", &label]).lines().count();
        self.hosts.engines.iter().map(of).sum()
    }
}
