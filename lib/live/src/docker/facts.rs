//! What is stored of one container of an engine: its inspection, read once and checked.
//!
//! Nothing here depends on other containers, so that a change of one costs reading one.

use std::net::IpAddr;
use std::time::Duration;

use bollard::models::{
    ContainerInspectResponse, ContainerState, ContainerStateStatusEnum, EndpointSettings, Health, HealthStatusEnum,
    HostConfig, PortMap,
};
use model::printable::printable_lines;
use model::unwell::HEALTHCHECK_FAILS;
use model::{Defect, Map, Text, engine_uuid};

use super::baked::{Baked, without_baked};
use super::labels::{bounded, texts};
use super::names::{COMPOSE_SERVICE, Membership, is_alias};
use super::stopping::stop_signal;
use crate::host::PORTS_MAX;
use crate::moment::Moment;

/// Most networks of one container; the engine's own networks are limited by its address pools to far fewer.
const ATTACHMENTS_MAX: usize = 64;

/// Most aliases of a container on one network, and most links.
const ALIASES_MAX: usize = 64;

/// Most name servers and search suffixes of one container.
const RESOLVER_ENTRIES_MAX: usize = 32;

/// Length of the ids that the engine shows to people.
pub(super) const SHORT_ID: usize = 12;

/// Networks that every engine has; on them it knows no names, nor do we make any.
const PREDEFINED: [&str; 5] = ["bridge", "host", "none", "nat", "ingress"];

/// Most of the output of a `HEALTHCHECK` that is stored, in bytes: a few lines, and the engine stores no more than 4096.
const PROBE_OUTPUT_MAX: usize = 256;

/// Word for a search list that is meant to be empty, as the engine has it.
const NO_SEARCH: &str = ".";

/// Shares of processor time that stand for one processor.
const SHARES_OF_PROCESSOR: i64 = 1024;

/// Billionths of a processor in a thousandth of one.
const NANO_PER_MILLI: i64 = 1_000_000;

/// How long engines wait for a container that was asked to stop, where it states no other time.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest such time that counts; who wants more waits for ever.
const STOP_TIMEOUT_MAX: Duration = Duration::from_hours(24);

/// What is stored of one container.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Facts {
    /// The engine's id.
    pub(super) id: Text,
    pub(super) name: Text,
    pub(super) uuid: Text,
    /// In the words of documents.
    pub(super) state: &'static str,
    pub(super) health: Option<&'static str>,
    /// What its `HEALTHCHECK` says while it is unhealthy.
    pub(super) failing: Option<FailingProbe>,
    /// Creation in microseconds since 1970.
    pub(super) created: i64,
    pub(super) start_count: i64,
    /// When it was started last.
    pub(super) started: Option<Moment>,
    /// The signal that asks it to stop, and how long the engine then waits for it by default.
    pub(super) stop_signal: u8,
    pub(super) stop_timeout: Duration,
    pub(super) labels: Map,
    pub(super) membership: Membership,
    pub(super) network: NetworkMode,
    /// That with the default route first, as far as the container alone shows which one that is.
    pub(super) attachments: Vec<Attachment>,
    /// Its address on the engine's bridge for those that are only on overlays, from which it asks.
    pub(super) on_gateway_bridge: Option<IpAddr>,
    /// Name or id of another container and the alias for it.
    pub(super) links: Vec<(Text, Text)>,
    pub(super) ports: Vec<Text>,
    /// Ports as they were asked for, where the number is fixed.
    pub(super) wanted_ports: Vec<Text>,
    pub(super) expose: Vec<Text>,
    pub(super) hostname: Option<Text>,
    pub(super) dns: Vec<Text>,
    /// `None` if it is not stated; empty if none is wanted.
    pub(super) dns_search: Option<Vec<Text>>,
    pub(super) memory: Option<i64>,
    pub(super) milli_cpu: Option<i64>,
    pub(super) defects: Vec<Defect>,
}

/// How a container's `HEALTHCHECK` failed, as of its last change or the last look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FailingProbe {
    /// How often in a row.
    pub(super) streak: i64,
    /// The code of the last one; -1 if it took too long.
    pub(super) exit_code: Option<i64>,
    /// What the last one wrote, from its beginning.
    pub(super) output: Text,
}

impl FailingProbe {
    /// What an engine says of an unhealthy container.
    fn of(health: &Health) -> Self {
        let last = health.log.as_ref().and_then(|log| log.last());
        let output = last.and_then(|last| last.output.as_deref()).unwrap_or_default();
        Self {
            streak: health.failing_streak.unwrap_or_default().max(0),
            exit_code: last.and_then(|last| last.exit_code),
            output: cut(printable_lines(output.trim()), PROBE_OUTPUT_MAX).into(),
        }
    }

    /// The sentence about it that all hosts may read: without the output, which may have secrets.
    pub(super) fn reason(&self) -> String {
        let code = match self.exit_code {
            Some(code) if code >= 0 => format!(": exit code {code}"),
            Some(_) => ": no end in time".to_owned(),
            None => String::new(),
        };
        let times = if self.streak > 1 { format!(", {} times in a row", self.streak) } else { String::new() };
        format!("{HEALTHCHECK_FAILS}{code}{times}")
    }
}

/// The beginning of a text, at most so many bytes.
fn cut(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text
}

/// Whose network a container uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NetworkMode {
    /// Networks of the engine, or none.
    Own,
    /// That of the host.
    Host,
    /// That of another container, by id or name.
    From(Text),
}

/// A container's place on one network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attachment {
    pub(super) network: Text,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) mac: Option<Text>,
    /// Further names on this network.
    pub(super) aliases: Vec<Text>,
}

impl Attachment {
    /// Whether an engine resolves names on its network, as on all that people make.
    pub(super) fn has_names(&self) -> bool {
        !PREDEFINED.contains(&&*self.network)
    }
}

impl Facts {
    /// What an inspection says, of a container whose image has the labels `baked`; a defect when it says too little to
    /// show the container at all.
    pub(super) fn of(id: &str, response: &ContainerInspectResponse, baked: &Baked) -> Result<Self, Defect> {
        let name = response.name.as_deref().unwrap_or_default().trim_start_matches('/');
        if name.is_empty() {
            return Err(Defect::hidden(format!("containers/{id}"), "the engine states no name of it"));
        }
        let path = format!("containers/{name}");
        let id = response.id.as_deref().filter(|id| !id.is_empty()).unwrap_or(id);
        let mut defects = Vec::new();
        let config = response.config.clone().unwrap_or_default();
        let host_config = response.host_config.clone().unwrap_or_default();
        let settings = response.network_settings.clone().unwrap_or_default();
        let labels = without_baked(texts(config.labels.as_ref()), baked, &path, &mut defects);
        let labels = bounded(labels, &path, &mut defects);
        let (membership, problems) = Membership::of(&labels);
        defects.extend(problems.into_iter().map(|(key, text)| Defect::ignored(format!("{path}/labels/{key}"), text)));
        let created = response.created.as_deref().and_then(Moment::parse).map_or(0, Moment::micros);
        let (state, health) = state(response.state.as_ref());
        let probe = response.state.as_ref().and_then(|state| state.health.as_ref());
        let failing = probe.filter(|_| health == Some("unhealthy")).map(FailingProbe::of);
        let never_started = state == "creating";
        let restarts = response.restart_count.unwrap_or_default().clamp(0, i64::MAX - 1);
        let network = match host_config.network_mode.as_deref().unwrap_or_default() {
            "host" => NetworkMode::Host,
            mode => mode.strip_prefix("container:").map_or(NetworkMode::Own, |other| NetworkMode::From(other.into())),
        };
        // The engine and compose list names as aliases that other containers have too.
        let service = labels.text(COMPOSE_SERVICE).map_or("", |service| service);
        let own = |alias: &str| {
            alias.eq_ignore_ascii_case(name)
                || alias.eq_ignore_ascii_case(service)
                || (alias.len() >= SHORT_ID && id.starts_with(alias))
        };
        let attachments = match network {
            NetworkMode::Own => attachments(&settings.networks.unwrap_or_default(), &own, &path, &mut defects),
            // What the engine reports of them is not theirs alone.
            NetworkMode::Host | NetworkMode::From(_) => (Vec::new(), Vec::new()),
        };
        let (mut attachments, mut links) = attachments;
        if has_ended(state) {
            // After a crash of the engine, an inspection still shows the addresses of containers that ended with it. The
            // engine gives them to others.
            for on in &mut attachments {
                on.addresses.clear();
                on.mac = None;
            }
        }
        for link in host_config.links.iter().flatten() {
            // `/db:/web/database`: the container meant, and the alias as a path below the one that has the link.
            links.extend(link.rsplit_once(':').map(|(target, alias)| {
                let alias = alias.rsplit('/').next().unwrap_or_default();
                (Text::from(target.trim_start_matches('/')), Text::from(alias))
            }));
        }
        let links = some_links(links, &path, &mut defects);
        let bindings = ports(settings.ports.as_ref(), &path, &mut defects);
        let wanted_ports = ports(host_config.port_bindings.as_ref(), &path, &mut Vec::new());
        let exposed = config.exposed_ports.unwrap_or_default();
        let mut expose: Vec<Text> = exposed.iter().filter_map(|port| open_port(port)).collect();
        expose.sort();
        expose.truncate(PORTS_MAX);
        Ok(Self {
            uuid: engine_uuid(id),
            id: id.into(),
            name: name.into(),
            state,
            health,
            failing,
            created,
            start_count: if never_started { 0 } else { restarts + 1 },
            started: response
                .state
                .as_ref()
                .filter(|_| !never_started)
                .and_then(|state| Moment::parse(state.started_at.as_deref()?)),
            stop_signal: stop_signal(config.stop_signal.as_deref()),
            stop_timeout: config
                .stop_timeout
                .and_then(|time| time.try_into().ok())
                .map_or(STOP_TIMEOUT, Duration::from_secs)
                .min(STOP_TIMEOUT_MAX),
            labels,
            membership,
            network,
            attachments,
            on_gateway_bridge: None,
            links,
            // What has ended has no bindings, but would have them again.
            ports: if matches!(state, "running" | "stopping") { bindings } else { wanted_ports.clone() },
            wanted_ports,
            expose,
            hostname: config.hostname.filter(|name| !name.is_empty()).map(Text::from),
            dns: servers(host_config.dns.as_deref(), &path, &mut defects),
            dns_search: search(host_config.dns_search.as_deref(), &path, &mut defects),
            memory: [host_config.memory_reservation, host_config.memory].into_iter().flatten().find(|bytes| *bytes > 0),
            milli_cpu: milli_cpu(&host_config),
            defects,
        })
    }

    /// How messages name it.
    pub(super) fn path(&self) -> String {
        format!("containers/{}", self.name)
    }

    /// Whether it answers requests.
    pub(super) fn runs(&self) -> bool {
        self.state == "running"
    }

    /// Whether it ran and has ended, so that no address is its own.
    pub(super) fn has_ended(&self) -> bool {
        has_ended(self.state)
    }
}

fn has_ended(state: &str) -> bool {
    matches!(state, "stopped" | "error" | "removing")
}

/// The state and the health in the words of documents.
fn state(response: Option<&ContainerState>) -> (&'static str, Option<&'static str>) {
    let Some(response) = response else { return ("error", None) };
    let state = match response.status {
        Some(ContainerStateStatusEnum::CREATED) => "creating",
        Some(ContainerStateStatusEnum::RUNNING) => "running",
        // It occupies its room, but answers no request.
        Some(ContainerStateStatusEnum::PAUSED | ContainerStateStatusEnum::STOPPING) => "stopping",
        Some(ContainerStateStatusEnum::RESTARTING) => "restarting",
        Some(ContainerStateStatusEnum::REMOVING) => "removing",
        Some(ContainerStateStatusEnum::DEAD) => "error",
        Some(ContainerStateStatusEnum::EMPTY) | None if response.running == Some(true) => "running",
        Some(ContainerStateStatusEnum::EXITED | ContainerStateStatusEnum::EMPTY) | None => "stopped",
    };
    let health = response.health.as_ref().and_then(|health| health.status).and_then(|status| match status {
        HealthStatusEnum::STARTING => Some("initializing"),
        HealthStatusEnum::HEALTHY => Some("healthy"),
        HealthStatusEnum::UNHEALTHY => Some("unhealthy"),
        HealthStatusEnum::NONE | HealthStatusEnum::EMPTY => None,
    });
    // For a container that ended, the engine reports its health of before.
    (state, health.filter(|_| state == "running"))
}

/// Of how many families a network has a gateway for a container.
pub(super) fn gateways(on: &EndpointSettings) -> usize {
    let filled = |text: &&Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    [&on.gateway, &on.ipv6_gateway].into_iter().filter(filled).count()
}

/// The networks of a container, the main one first, and its links there.
///
/// The main one is that of the default route, from whose address the container asks: the engine takes the network with
/// the highest priority among those that have a gateway, of equal ones one with gateways of both families, then the
/// first by name. Internal networks come last, which only the networks show (`mapping`).
fn attachments(
    networks: &std::collections::HashMap<String, EndpointSettings>,
    own: &dyn Fn(&str) -> bool,
    path: &str,
    defects: &mut Vec<Defect>,
) -> (Vec<Attachment>, Vec<(Text, Text)>) {
    let mut sorted: Vec<_> = networks.iter().filter(|(name, _)| !name.is_empty()).collect();
    sorted.sort_by_key(|(name, settings)| {
        let gateways = gateways(settings);
        let priority = settings.gw_priority.unwrap_or_default();
        (gateways == 0, std::cmp::Reverse((priority, gateways)), *name)
    });
    if sorted.len() > ATTACHMENTS_MAX {
        let problem = format!("{} of them; the first {ATTACHMENTS_MAX} are used", sorted.len());
        defects.push(Defect::ignored(format!("{path}/networks"), problem));
        sorted.truncate(ATTACHMENTS_MAX);
    }
    let mut links = Vec::new();
    let mut found = Vec::with_capacity(sorted.len());
    for (name, settings) in sorted {
        let mut addresses = Vec::new();
        for text in [&settings.ip_address, &settings.global_ipv6_address].into_iter().flatten() {
            match text.parse::<IpAddr>() {
                Ok(address) if !address.is_unspecified() => addresses.push(address),
                _ if text.is_empty() => {}
                _ => {
                    let start: String = text.chars().take(64).collect();
                    let problem = format!("{start:?} is no address");
                    defects.push(Defect::ignored(format!("{path}/networks/{name}"), problem));
                }
            }
        }
        for link in settings.links.iter().flatten() {
            links.extend(link.rsplit_once(':').map(|(target, alias)| (Text::from(target), Text::from(alias))));
        }
        let further = settings.aliases.iter().flatten().filter(|alias| !own(alias));
        let mut aliases: Vec<Text> = further.map(|alias| alias.as_str().into()).collect();
        aliases.sort();
        aliases.dedup();
        if aliases.len() > ALIASES_MAX {
            let problem = format!("{} aliases; the first {ALIASES_MAX} are used", aliases.len());
            defects.push(Defect::ignored(format!("{path}/networks/{name}/aliases"), problem));
            aliases.truncate(ALIASES_MAX);
        }
        aliases.retain(|alias| {
            let good = is_alias(alias);
            if !good {
                let start: String = alias.chars().take(64).collect();
                let problem = format!("{start:?} is no name that could be asked for");
                defects.push(Defect::ignored(format!("{path}/networks/{name}/aliases"), problem));
            }
            good
        });
        let mac = settings.mac_address.as_deref().filter(|mac| !mac.is_empty()).map(Text::from);
        found.push(Attachment { network: name.as_str().into(), addresses, mac, aliases });
    }
    (found, links)
}

fn some_links(mut links: Vec<(Text, Text)>, path: &str, defects: &mut Vec<Defect>) -> Vec<(Text, Text)> {
    links.sort();
    links.dedup();
    if links.len() > ALIASES_MAX {
        let problem = format!("{} of them; the first {ALIASES_MAX} are used", links.len());
        defects.push(Defect::ignored(format!("{path}/links"), problem));
        links.truncate(ALIASES_MAX);
    }
    links.retain(|(_, alias)| {
        let good = is_alias(alias);
        if !good {
            let start: String = alias.chars().take(64).collect();
            let problem = format!("{start:?} is no name that could be asked for");
            defects.push(Defect::ignored(format!("{path}/links"), problem));
        }
        good
    });
    links
}

/// Published ports in the form of documents, each once; an address that stands for all is left out.
fn ports(response: Option<&PortMap>, path: &str, defects: &mut Vec<Defect>) -> Vec<Text> {
    let mut found = Vec::new();
    let mut odd = 0;
    for (port, bindings) in response.into_iter().flatten() {
        let bindings = bindings.iter().flatten();
        let Some((private, protocol)) = port_of(port) else {
            odd += bindings.count();
            continue;
        };
        for binding in bindings {
            let address = binding.host_ip.as_deref().unwrap_or_default();
            let public =
                binding.host_port.as_deref().and_then(|port| port.parse::<u16>().ok()).filter(|port| *port > 0);
            // Without a number the engine is to choose one.
            let Some(public) = public else { continue };
            match address.parse::<IpAddr>() {
                Ok(ip) if ip.is_unspecified() => found.push((private, protocol, public, String::new())),
                Ok(IpAddr::V4(ip)) => found.push((private, protocol, public, format!("{ip}:"))),
                Ok(IpAddr::V6(ip)) => found.push((private, protocol, public, format!("[{ip}]:"))),
                Err(_) if address.is_empty() => found.push((private, protocol, public, String::new())),
                Err(_) => odd += 1,
            }
        }
    }
    found.sort();
    found.dedup();
    let many = found.len().saturating_sub(PORTS_MAX);
    found.truncate(PORTS_MAX);
    if odd + many > 0 {
        let problem = format!("{} are left out: at most {PORTS_MAX}, of tcp and udp, are used", odd + many);
        defects.push(Defect::ignored(format!("{path}/ports"), problem));
    }
    let text = |(private, protocol, public, address)| format!("{address}{public}:{private}/{protocol}").into();
    found.into_iter().map(text).collect()
}

/// The number and protocol in `80/tcp`.
fn port_of(text: &str) -> Option<(u16, &'static str)> {
    let (number, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let protocol = ["tcp", "udp"].into_iter().find(|known| known.eq_ignore_ascii_case(protocol))?;
    Some((number.parse().ok().filter(|number| *number > 0)?, protocol))
}

fn open_port(text: &str) -> Option<Text> {
    port_of(text).map(|(number, protocol)| format!("{number}/{protocol}").into())
}

fn servers(response: Option<&[String]>, path: &str, defects: &mut Vec<Defect>) -> Vec<Text> {
    let mut found = Vec::new();
    for text in response.into_iter().flatten().take(RESOLVER_ENTRIES_MAX) {
        if let Ok(address) = text.parse::<IpAddr>() {
            found.push(address.to_string().into());
        } else {
            let start: String = text.chars().take(64).collect();
            defects.push(Defect::ignored(format!("{path}/dns"), format!("{start:?} is no address")));
        }
    }
    found
}

fn search(response: Option<&[String]>, path: &str, defects: &mut Vec<Defect>) -> Option<Vec<Text>> {
    let response = response.filter(|response| !response.is_empty())?;
    let mut found = Vec::new();
    for text in response.iter().take(RESOLVER_ENTRIES_MAX).filter(|text| *text != NO_SEARCH) {
        if is_alias(text.trim_end_matches('.')) {
            found.push(text.trim_end_matches('.').into());
        } else {
            let start: String = text.chars().take(64).collect();
            defects.push(Defect::ignored(format!("{path}/dns_search"), format!("{start:?} is no name")));
        }
    }
    Some(found)
}

/// Processor reserved for a container: its shares of time, else the most it may use.
fn milli_cpu(config: &HostConfig) -> Option<i64> {
    let positive = |number: Option<i64>| number.filter(|number| *number > 0);
    // Rounded up: the shares were rounded down from thousandths by the client.
    let shares = positive(config.cpu_shares).map(|shares| {
        let shares = i128::from(shares) * 1000;
        i64::try_from((shares + i128::from(SHARES_OF_PROCESSOR) - 1) / i128::from(SHARES_OF_PROCESSOR))
            .unwrap_or(i64::MAX)
    });
    let quota = || {
        let (quota, period) = positive(config.cpu_quota).zip(positive(config.cpu_period))?;
        i64::try_from(i128::from(quota) * 1000 / i128::from(period)).ok()
    };
    shares
        .or_else(|| positive(config.nano_cpus).map(|nanos| nanos / NANO_PER_MILLI))
        .or_else(quota)
        .or_else(|| positive(config.cpu_count).map(|count| count.saturating_mul(1000)))
        .filter(|milli| *milli > 0)
}

#[cfg(test)]
#[path = "facts/tests.rs"]
pub(super) mod tests;
