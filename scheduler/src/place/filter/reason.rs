//! A reason: why a check refuses a host, in words, and what would have to change.

use model::Text;

use crate::place::constraint::Subject;
use crate::place::filter::amount::{PoolNeed, amount_words, pool_words};
use crate::place::filter::check::{Check, accepts, attribute_of, unsuited, untolerated};
use crate::place::filter::domain::Domains;
use crate::place::hosts::Facts;
use crate::place::request::member::ImagePlatform;
use crate::place::room::{Addresses, PortGroup, Room};
use crate::place::taint::Toleration;

/// Why a host was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// What all hosts refused for the same reason have in common.
    pub(crate) group: String,
    /// The same with what is special about this host.
    pub(crate) detail: String,
    /// What would have to change.
    pub(crate) change: Change,
}

impl Reason {
    /// A reason that is the same for all hosts it refuses.
    fn plain(reason: String, change: String) -> Self {
        Self { group: reason.clone(), detail: reason, change: Change::Words(change) }
    }
}

/// What would make a host fit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    /// Something about the host or the request, in words.
    Words(String),
    /// So much less of a pool.
    Less {
        /// The pool.
        pool: Text,
        /// By how much.
        by: i64,
    },
}

impl Check {
    /// Why the check does not hold for a host; `None` when it does.
    pub(crate) fn refuse(&self, room: &Room<'_>, host: u32) -> Option<Reason> {
        let facts = room.inventory.hosts().facts(host);
        let plain = |reason: String, change: String| Some(Reason::plain(reason, change));
        match self {
            Self::Eligible => {
                let refusal = facts.refusal.as_ref()?;
                plain(refusal.clone(), "hosts that are active".into())
            }
            Self::Requested { host: Some(requested), .. } if *requested == host => None,
            Self::Requested { host, word } => {
                let valid = host.map(|host| room.inventory.hosts().facts(host).name.to_string()).unwrap_or_default();
                plain(
                    format!("not the requested host {word}: valid host(s) [{valid}]"),
                    "another requested_host".into(),
                )
            }
            Self::Room(PoolNeed { name, pool, amount }) => short(room, name, *pool, *amount, host),
            Self::Ports(groups, addresses) => {
                if room.assign(host, groups, *addresses).is_some() {
                    return None;
                }
                let blocked = blocked_ports(room, groups, *addresses, host);
                plain(format!("host needs ports {blocked} available"), format!("ports {blocked} free"))
            }
            Self::Demand(labels) => {
                if accepts(facts, labels) {
                    return None;
                }
                let demand = facts.require_any.as_ref().map(ToString::to_string).unwrap_or_default();
                plain(
                    format!("host only takes containers with one of the labels {demand}"),
                    format!("a container label of {demand}"),
                )
            }
            Self::Host { passing, .. } if passing.contains(host) => None,
            Self::Host { subject, .. } => Some(unlike(facts, subject)),
            Self::Containers { subject, key, scanned, not } => {
                let has = room.count(key, host) > 0 || scanned.contains(host);
                if has != *not {
                    return None;
                }
                let rest = subject.to_string();
                let rest = rest.split_once(' ').map_or(rest.as_str(), |(_, rest)| rest);
                let (must, change) = if *not { ("must not", "no") } else { ("must", "a") };
                plain(format!("host {must} have a {rest}"), format!("{change} {rest}"))
            }
            Self::Never(subject) => plain(format!("{subject}"), "that rule corrected".into()),
            Self::Taints(tolerations) => tainted(facts, tolerations, false),
            Self::Discouraging(tolerations) => tainted(facts, tolerations, true),
            Self::Systems { images, isolation } => {
                let (name, platforms) = unsuited(facts, images, *isolation)?;
                let system = describe_system(facts);
                let with = isolation.map_or(String::new(), |one| format!(" with {} isolation", one.name()));
                if platforms.is_empty() {
                    return plain(
                        format!("host is {system}, which runs nothing{with}"),
                        format!("a Windows host{with}"),
                    );
                }
                let has = describe_platforms(platforms);
                plain(format!("{name} is for {has}, host is {system}{with}"), format!("{name} for {system}"))
            }
            Self::Beside { name, key } => {
                if room.count(key, host) > 0 {
                    return None;
                }
                let hosts = room.inventory.hosts();
                let valid: Vec<_> =
                    room.hosts_with(key).iter().map(|host| hosts.facts(host).name.to_string()).collect();
                plain(
                    format!("must be beside container {name}: valid host(s) [{}]", valid.join(", ")),
                    format!("container {name}"),
                )
            }
            Self::Spread { label, max_skew, service, among } => {
                let domains = Domains::new(room, label, service.as_ref(), among);
                let problem = domains.allow(room, label, host, *max_skew).err()?;
                plain(problem, format!("a larger max_skew than {max_skew} over {label}"))
            }
            Self::Engine(known) => (!known.contains(host)).then(|| {
                let label = crate::start::endpoint::ENDPOINT_LABEL;
                plain(
                    format!("host has no Docker endpoint (label {label})"),
                    crate::start::endpoint::ENDPOINT_HINT.into(),
                )
            })?,
            Self::Answering(away) => {
                let (_, why) = away.iter().find(|(one, _)| *one == host)?;
                let group = "its Docker Engine does not answer".to_owned();
                Some(Reason { group, detail: why.clone(), change: Change::Words("an engine that answers".into()) })
            }
            Self::Untried(tried) => {
                let (_, message) = tried.iter().find(|(one, _)| *one == host)?;
                plain(format!("could not be started there: {message}"), "an engine that starts it".into())
            }
            Self::Alone(service) => (room.count(service, host) > 0)
                .then(|| plain("host has the global service already".into(), "nothing: it is there".into()))?,
        }
    }
}

fn unlike(facts: &Facts, subject: &Subject) -> Reason {
    let found = match subject {
        Subject::Host { attribute, .. } => attribute_of(facts, attribute),
        _ => None,
    };
    let subject = subject.to_string();
    let group = format!("needs host with {subject}");
    let detail = match found {
        None => format!("{group}: it has none"),
        Some(value) => format!("{group}: it is {value}"),
    };
    Reason { detail, group, change: Change::Words(subject) }
}

fn tainted(facts: &Facts, tolerations: &[Toleration], soft: bool) -> Option<Reason> {
    let taints: Vec<_> = untolerated(facts, tolerations, soft).collect();
    let taints = taints.join(", ");
    (!taints.is_empty()).then(|| Reason::plain(format!("host has taint {taints}"), format!("toleration of {taints}")))
}

fn short(room: &Room<'_>, name: &Text, pool: Option<usize>, amount: i64, host: u32) -> Option<Reason> {
    let Some(pool) = pool.filter(|pool| room.has_pool(*pool, host)) else {
        let group = format!("host has no {}", pool_words(name));
        let change = Change::Words(format!("hosts with {}", pool_words(name)));
        return Some(Reason { detail: group.clone(), group, change });
    };
    let free = room.free(pool, host);
    (free < amount).then(|| Reason {
        group: format!("not enough {}", pool_words(name)),
        detail: format!(
            "not enough {}: needs {}, has {} free",
            pool_words(name),
            amount_words(name, amount),
            amount_words(name, free.max(0))
        ),
        change: Change::Less { pool: name.clone(), by: amount - free },
    })
}

fn blocked_ports(room: &Room<'_>, groups: &[PortGroup], addresses: Addresses, host: u32) -> String {
    let ports = || groups.iter().flat_map(|group| group.ports.iter().map(move |port| (group, port)));
    let alone = |group: &PortGroup, port| {
        let one = PortGroup { owner: group.owner.clone(), ports: vec![port] };
        room.assign(host, &[one], addresses).is_none()
    };
    let blocked: Vec<_> =
        ports().filter(|(group, port)| alone(group, **port)).map(|(_, port)| port.to_string()).collect();
    if blocked.is_empty() {
        let all: Vec<_> = ports().map(|(_, port)| port.to_string()).collect();
        format!("{} together", all.join(", "))
    } else {
        blocked.join(", ")
    }
}

fn describe_platforms(platforms: &[ImagePlatform]) -> String {
    let describe = |platform: &ImagePlatform| {
        let build = platform.build.map(|build| format!(" {build}")).unwrap_or_default();
        let architecture = platform.architecture.as_ref().map(|word| format!("/{word}")).unwrap_or_default();
        format!("{}{build}{architecture}", platform.os)
    };
    let mut words: Vec<_> = platforms.iter().map(describe).collect();
    words.dedup();
    words.join(", ")
}

fn describe_system(facts: &Facts) -> String {
    let system = &facts.system;
    let build = match system.build {
        Some(build) => format!(" {build}"),
        None if &*system.os == "windows" => " of unknown build (label io.rancher.host.windows_build)".to_owned(),
        None => String::new(),
    };
    let architecture = system.architecture.as_ref().map(|word| format!("/{word}")).unwrap_or_default();
    let hyperv = if system.hyperv { " with Hyper-V" } else { "" };
    format!("{}{build}{architecture}{hyperv}", system.os)
}
