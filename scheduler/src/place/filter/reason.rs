//! A reason: why a check refuses a host, in words, and what would have to change.

use model::{LOW_ON_DISK, Text};

use crate::place::constraint::Subject;
use crate::place::filter::amount::{PoolNeed, amount_words, pool_words};
use crate::place::filter::check::{Check, unsuited, untolerated};
use crate::place::filter::domain::Domains;
use crate::place::hosts::{Facts, HostTable};
use crate::place::request::member::ImagePlatform;
use crate::place::room::{Addresses, PortGroup, Room};
use crate::place::taint::Toleration;
use crate::start::endpoint::{ENDPOINT_HINT, ENDPOINT_LABEL};

/// Most hosts whose names are listed: enough to see a mistyped one in a small cluster.
const NAMED_MAX: usize = 5;

/// Why a host was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// What all hosts refused for the same reason have in common.
    pub(crate) group: String,
    /// The same with what is special about this host.
    pub(crate) detail: String,
    /// What would have to change.
    pub(crate) change: Remedy,
}

impl Reason {
    /// A reason that is the same for all hosts it refuses.
    fn plain(reason: String, change: String) -> Self {
        Self { group: reason.clone(), detail: reason, change: Remedy::Words(change) }
    }
}

/// What would make a host fit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Remedy {
    /// Something about the host or the request, in words.
    Words(String),
    /// Less of a pool.
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
        (!self.holds(room, host)).then(|| self.reason(room, host))
    }

    /// The words for a host for which the check does not hold.
    fn reason(&self, room: &Room<'_>, host: u32) -> Reason {
        let facts = room.inventory.hosts().facts(host);
        match self {
            Self::Eligible => not_eligible(facts.refusal.clone().unwrap_or_default()),
            Self::Requested { host: None, word } => {
                Reason::plain(format!("there is no host {word}"), existing(room.inventory.hosts()))
            }
            Self::Requested { host: Some(requested), word } => {
                let valid = &room.inventory.hosts().facts(*requested).name;
                Reason::plain(
                    format!("not the requested host {word}: valid host(s) [{valid}]"),
                    "another requested_host".into(),
                )
            }
            Self::Room(PoolNeed { name, pool, amount }) => short(room, name, *pool, *amount, host),
            Self::Ports(groups, addresses) => {
                let blocked = blocked_ports(room, groups, *addresses, host);
                Reason::plain(format!("host needs ports {blocked} available"), format!("ports {blocked} free"))
            }
            Self::Demand(_) => {
                let demand = facts.require_any.as_ref().map(ToString::to_string).unwrap_or_default();
                Reason::plain(
                    format!("host only takes containers with one of the labels {demand}"),
                    format!("a container label of {demand}"),
                )
            }
            Self::Host { subject, .. } => unlike(facts, subject),
            Self::Containers { subject, not, .. } => {
                let rest = subject.to_string();
                let rest = rest.split_once(' ').map_or(rest.as_str(), |(_, rest)| rest);
                let (must, change) = if *not { ("must not", "no") } else { ("must", "a") };
                Reason::plain(format!("host {must} have a {rest}"), format!("{change} {rest}"))
            }
            Self::Never(subject) => Reason::plain(subject.to_string(), "that rule corrected".into()),
            Self::Taints(tolerations) => tainted(facts, tolerations, false),
            Self::Discouraging(tolerations) => tainted(facts, tolerations, true),
            Self::Systems { images, isolation } => {
                let (name, platforms) = unsuited(facts, images, *isolation).unwrap_or_default();
                let system = describe_system(facts);
                let with = isolation.map_or(String::new(), |one| format!(" with {} isolation", one.name()));
                if platforms.is_empty() {
                    return Reason::plain(
                        format!("host is {system}, which runs nothing{with}"),
                        format!("a Windows host{with}"),
                    );
                }
                let has = describe_platforms(platforms);
                Reason::plain(format!("{name} is for {has}, host is {system}{with}"), format!("{name} for {system}"))
            }
            Self::Settings { names, .. } => {
                let names = names.join(", ");
                let system = describe_system(facts);
                Reason::plain(format!("host is {system}, whose containers have no {names}"), format!("no {names}"))
            }
            Self::Networks { names, .. } => {
                let is_there = |name: &&Text| facts.networks.as_ref().is_none_or(|known| known.contains(*name));
                let missing: Vec<_> = names.iter().filter(|name| !is_there(name)).map(|name| &**name).collect();
                let missing = missing.join(", ");
                Reason::plain(format!("host has no network {missing}"), format!("network {missing}"))
            }
            Self::Beside { name, key } => {
                let hosts = room.inventory.hosts();
                let valid: Vec<_> =
                    room.hosts_with(key).iter().map(|host| hosts.facts(host).name.to_string()).collect();
                Reason::plain(
                    format!("must be beside container {name}: valid host(s) [{}]", valid.join(", ")),
                    format!("container {name}"),
                )
            }
            Self::Spread { label, max_skew, service, among } => {
                let domains = Domains::new(room, label, service.as_ref(), among);
                let (problem, change) = domains.allow(room, label, host, *max_skew).err().unwrap_or_default();
                Reason::plain(problem, change)
            }
            Self::Engine(_) => {
                Reason::plain(format!("host has no Docker endpoint (label {ENDPOINT_LABEL})"), ENDPOINT_HINT.into())
            }
            Self::Permitted { subject, .. } => Reason::plain(
                format!("the policy's hosts do not allow {subject} to use it"),
                format!("the policy's hosts to allow {subject} to use it"),
            ),
            Self::Answering(silent) => {
                let why = said_of(silent, host);
                let group = "its Docker Engine does not answer".to_owned();
                Reason { group, detail: why, change: Remedy::Words("an engine that answers".into()) }
            }
            Self::Untried(tried) => {
                let message = said_of(tried, host);
                Reason::plain(format!("could not be started there: {message}"), "an engine that starts it".into())
            }
            Self::Undrained(_) => Reason::plain("host is to be drained".into(), "another host".into()),
            Self::Alone(_) => {
                Reason::plain("host has the global service already".into(), "nothing: it is there".into())
            }
        }
    }
}

/// The hosts to ask for in place of one that does not exist, as they are typed.
fn existing(hosts: &HostTable) -> String {
    let mut active = hosts.eligible.iter();
    let typed = |host| format!("`--host {}`", hosts.facts(host).name);
    let mut names: Vec<_> = active.by_ref().take(NAMED_MAX).map(typed).collect();
    if active.next().is_some() {
        names.push("another one that `scheduler hosts` lists".to_owned());
    }
    match names.split_last() {
        None => "hosts that are active".to_owned(),
        Some((only, [])) => only.clone(),
        Some((last, names)) => format!("{} or {last}", names.join(", ")),
    }
}

fn not_eligible(why: String) -> Reason {
    if !why.contains(LOW_ON_DISK) {
        return Reason::plain(why, "hosts that are active".into());
    }
    // Folders differ from host to host.
    let group = format!("host is {LOW_ON_DISK}");
    let change = "room on the disk of its engine: `scheduler images prune`, or files that go".to_owned();
    Reason { group, detail: why, change: Remedy::Words(change) }
}

fn said_of(hosts: &[(u32, String)], host: u32) -> String {
    hosts.iter().find(|(one, _)| *one == host).map(|(_, why)| why.clone()).unwrap_or_default()
}

fn unlike(facts: &Facts, subject: &Subject) -> Reason {
    let found = match subject {
        Subject::Host { attribute, .. } => facts.attribute(attribute),
        _ => None,
    };
    let subject = subject.to_string();
    let group = format!("needs host with {subject}");
    let detail = match found {
        None => format!("{group}: it has none"),
        Some(value) => format!("{group}: it is {value}"),
    };
    Reason { detail, group, change: Remedy::Words(subject) }
}

fn tainted(facts: &Facts, tolerations: &[Toleration], soft: bool) -> Reason {
    let taints: Vec<_> = untolerated(facts, tolerations, soft).collect();
    let taints = taints.join(", ");
    Reason::plain(format!("host has taint {taints}"), format!("toleration of {taints}"))
}

fn short(room: &Room<'_>, name: &Text, pool: Option<usize>, amount: i64, host: u32) -> Reason {
    let Some(pool) = pool.filter(|pool| room.has_pool(*pool, host)) else {
        let group = format!("host has no {}", pool_words(name));
        let change = Remedy::Words(format!("hosts with {}", pool_words(name)));
        return Reason { detail: group.clone(), group, change };
    };
    let free = room.free(pool, host);
    Reason {
        group: format!("not enough {}", pool_words(name)),
        detail: format!(
            "not enough {}: needs {}, has {} free",
            pool_words(name),
            amount_words(name, amount),
            amount_words(name, free.max(0))
        ),
        change: Remedy::Less { pool: name.clone(), by: amount - free },
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_without_room_on_their_disks_have_one_reason_and_another_remedy() {
        let reason = not_eligible("host is low on disk: /srv has to have 5.0 GiB free".into());
        assert_eq!(
            (&*reason.group, &*reason.detail),
            ("host is low on disk", "host is low on disk: /srv has to have 5.0 GiB free")
        );
        assert!(
            matches!(&reason.change, Remedy::Words(words) if words.contains("scheduler images prune")),
            "{reason:?}"
        );
        let other = not_eligible("host is inactive".into());
        assert_eq!(other.change, Remedy::Words("hosts that are active".into()));
    }
}
