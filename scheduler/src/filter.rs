//! The filter: which hosts a unit can be on, and for each other one, everything that speaks against it.
//!
//! A [`Check`] judges all hosts at once (`narrow`, for placing) and one host with words (`refuse`, for
//! explaining). Both must say the same; a property test compares them.

use model::{Fingerprint, Text};

use crate::bits::Bits;
use crate::constraint::{Attribute, Constraint, Subject};
use crate::hosts::{CPU, Facts, INSTANCES, MEMORY, STORAGE};
use crate::inventory::{Inventory, Kind, is_indexed, key};
use crate::request::{ImagePlatform, Request};
use crate::room::{Addresses, PortGroup, Room};
use crate::taint::Toleration;
use crate::windows::{self, Isolation};

/// What a unit needs, in terms of one inventory.
#[derive(Clone, Debug)]
pub struct Need {
    /// What must hold.
    pub checks: Vec<Check>,
    /// What should, and what it weighs.
    pub wishes: Vec<(Check, u32)>,
    /// Amounts of pools, in the order of asking.
    pub amounts: Vec<Amount>,
    /// Under which key the service's own containers are found.
    pub service: Option<Fingerprint>,
    /// Under which keys containers of the same images are found.
    pub images: Vec<Fingerprint>,
}

/// How much of which pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amount {
    /// The pool's name.
    pub name: Text,
    /// Its index; `None` when no host has it.
    pub pool: Option<usize>,
    /// How much.
    pub amount: i64,
}

/// Something that must hold for a host.
#[derive(Clone, Debug)]
pub enum Check {
    /// The host takes containers.
    Eligible,
    /// It is this host.
    Requested {
        /// The host, when it is known.
        host: Option<u32>,
        /// The word for it.
        word: Text,
    },
    /// The host has room.
    Room(Amount),
    /// The host's ports are free.
    Ports(Vec<PortGroup>, Addresses),
    /// The host's demand for labels is met by these.
    Demand(Vec<(Text, Text)>),
    /// The host's attributes pass a test.
    Host {
        /// The rule.
        subject: Subject,
        /// The hosts that pass.
        passing: Bits,
    },
    /// Some container is (not) there.
    Containers {
        /// The rule.
        subject: Subject,
        /// Under which key such containers are found.
        key: Fingerprint,
        /// Hosts that are known to have one besides those found by key.
        scanned: Bits,
        /// Whether there must be none.
        not: bool,
    },
    /// Nothing passes.
    Never(Subject),
    /// The host's taints are tolerated.
    Taints(Vec<Toleration>),
    /// The host does not have taints that only discourage.
    Discouraging(Vec<Toleration>),
    /// The host can run the images.
    Systems {
        /// The entries of each image whose entries are known.
        images: Vec<(Text, Vec<ImagePlatform>)>,
        /// How the containers must be isolated.
        isolation: Option<Isolation>,
    },
    /// A container is there whose volumes or network are used.
    Beside {
        /// Its name or uuid.
        name: Text,
        /// Under which key it is found.
        key: Fingerprint,
    },
    /// The service stays evenly spread over the label's values.
    Spread {
        /// The label.
        label: Text,
        /// By how much the domains may differ.
        max_skew: u32,
        /// Under which key the service's containers are found.
        service: Option<Fingerprint>,
        /// The hosts whose domains count.
        among: Bits,
    },
    /// There is no container of the service yet.
    Alone(Fingerprint),
    /// Somebody says where the host's engine listens.
    Engine(Bits),
    /// Starting was not tried there in vain: the hosts where it was, and what their engines said.
    Untried(Vec<(u32, String)>),
}

/// Why a host was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// What all hosts refused for the same reason have in common.
    pub group: String,
    /// The same with what is special about this host.
    pub detail: String,
    /// What would have to change.
    pub change: Change,
}

impl Reason {
    /// A reason that is the same for all hosts it refuses.
    fn plain(reason: String, change: String) -> Self {
        Self { group: reason.clone(), detail: reason, change: Change::Words(change) }
    }
}

/// What would make a host fit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
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

impl Need {
    /// What the request needs of the hosts of this inventory.
    pub fn new(request: &Request, inventory: &Inventory, owners: &[Text]) -> Self {
        let hosts = inventory.hosts();
        let service = request.service_key;
        let amounts: Vec<Amount> = request
            .amounts()
            .into_iter()
            .map(|(name, amount)| Amount { pool: hosts.pool(&name), name, amount })
            .collect();
        let images: Vec<_> = request
            .members
            .iter()
            .filter(|member| !member.platforms.is_empty())
            .map(|member| (member.image.clone().unwrap_or_else(|| "image".into()), member.platforms.clone()))
            .collect();
        let groups: Vec<PortGroup> = request
            .members
            .iter()
            .zip(owners)
            .filter(|(member, _)| !member.ports.is_empty())
            .map(|(member, owner)| PortGroup { owner: owner.clone(), ports: member.ports.clone() })
            .collect();
        let mut checks = vec![Check::Eligible];
        let mut wishes = Vec::new();
        if let Some(word) = &request.requested_host {
            checks.push(Check::Requested { host: hosts.find(word), word: word.clone() });
        }
        if !images.is_empty() {
            checks.push(Check::Systems { images, isolation: request.isolation });
        }
        let beside = request.members.iter().flat_map(|member| &member.beside);
        checks.extend(beside.map(|name| Check::Beside { name: name.clone(), key: key(Kind::Name, &[name]) }));
        // Who names the host has decided; only what makes it impossible counts then, as in the predecessor.
        if request.requested_host.is_none() {
            for constraint in &request.constraints {
                match constraint.weight {
                    Some(weight) if !request.global => wishes.push((Check::of(constraint, inventory), weight)),
                    None if !request.global || matches!(constraint.subject, Subject::Host { .. }) => {
                        checks.push(Check::of(constraint, inventory));
                    }
                    _ => {}
                }
            }
            if !hosts.tainted.is_empty() {
                checks.push(Check::Taints(request.tolerations.clone()));
                wishes.push((Check::Discouraging(request.tolerations.clone()), crate::constraint::WEIGHT_DEFAULT));
            }
            if !hosts.demanding.is_empty() {
                let labels = request.members.iter().flat_map(|member| member.labels.iter().cloned()).collect();
                checks.push(Check::Demand(labels));
            }
            checks.extend(amounts.iter().cloned().map(Check::Room));
            if !groups.is_empty() {
                checks.push(Check::Ports(groups, Addresses::Own));
            }
            if request.global {
                checks.extend(service.map(Check::Alone));
            } else if !request.spread.is_empty() {
                let mut among = hosts.eligible.clone();
                for check in checks.iter().filter(|check| matches!(check, Check::Host { .. } | Check::Taints(_))) {
                    // Neither looks at what was promised.
                    check.narrow(&Room { inventory, promised: &crate::room::Promised::default() }, &mut among);
                }
                checks.extend(request.spread.iter().map(|spread| Check::Spread {
                    label: spread.label.as_str().into(),
                    max_skew: spread.max_skew,
                    service,
                    among: among.clone(),
                }));
            }
        }
        let images = request.members.iter().filter_map(|member| member.image_key);
        Self { checks, wishes, amounts, service, images: images.collect() }
    }

    /// The same need for containers of other names.
    pub fn rename(&mut self, owners: &[Text], request: &Request) {
        for check in &mut self.checks {
            if let Check::Ports(groups, _) = check {
                let wanting = request.members.iter().zip(owners).filter(|(member, _)| !member.ports.is_empty());
                groups.iter_mut().zip(wanting).for_each(|(group, (_, owner))| group.owner = owner.clone());
            }
        }
    }

    /// The hosts that fit.
    pub fn candidates(&self, room: &Room<'_>) -> Bits {
        let mut candidates = Bits::all(room.inventory.hosts().len());
        for check in &self.checks {
            check.narrow(room, &mut candidates);
        }
        candidates
    }

    /// Whether one placement changes nothing for the hosts on which it is not.
    pub fn is_local(&self) -> bool {
        !self.checks.iter().any(|check| matches!(check, Check::Spread { .. }))
    }

    /// Whether a host fits, as [`Need::candidates`] says of all.
    pub fn fits(&self, room: &Room<'_>, host: u32) -> bool {
        self.checks.iter().all(|check| check.holds(room, host))
    }

    /// Everything that speaks against a host.
    pub fn reasons(&self, room: &Room<'_>, host: u32) -> Vec<Reason> {
        self.checks.iter().filter_map(|check| check.refuse(room, host)).collect()
    }
}

impl Check {
    /// The check of a constraint.
    pub fn of(constraint: &Constraint, inventory: &Inventory) -> Self {
        let subject = constraint.subject.clone();
        let hosts = inventory.hosts();
        match &constraint.subject {
            Subject::Never { .. } => Self::Never(subject),
            Subject::Host { attribute: Attribute::Label(label), test } => {
                let mut passing = if test.passes(None) { Bits::all(hosts.len()) } else { Bits::none(hosts.len()) };
                for (value, having) in hosts.values(label) {
                    if test.passes(Some(value)) {
                        passing.unite(having);
                    } else {
                        passing.subtract(having);
                    }
                }
                Self::Host { subject, passing }
            }
            Subject::Host { attribute, test } => {
                let mut passing = Bits::all(hosts.len());
                passing.retain(|host| test.passes(attribute_of(hosts.facts(host), attribute)));
                Self::Host { subject, passing }
            }
            Subject::ContainerLabel { key: label, value, not } => {
                let mut scanned = Bits::none(hosts.len());
                if !is_indexed(label) {
                    inventory.scan_labels(label, value).iter().for_each(|(host, _)| scanned.insert(*host));
                }
                let key = key(Kind::Label, &[label, value]);
                Self::Containers { key, scanned, not: *not, subject }
            }
            Subject::Container { name, not } => {
                let (key, not) = (key(Kind::Name, &[name]), *not);
                Self::Containers { key, scanned: Bits::none(hosts.len()), not, subject }
            }
        }
    }

    /// Whether the check is about what is free, not about what the host is.
    pub fn is_about_room(&self) -> bool {
        matches!(self, Self::Room(_) | Self::Ports(..))
    }

    /// Whether the check holds for a host, as [`Check::narrow`] says of all.
    pub fn holds(&self, room: &Room<'_>, host: u32) -> bool {
        match self {
            Self::Eligible => room.inventory.hosts().eligible.contains(host),
            Self::Room(Amount { pool: Some(pool), amount, .. }) => room.free(*pool, host) >= *amount,
            Self::Host { passing, .. } | Self::Engine(passing) => passing.contains(host),
            Self::Containers { key, scanned, not, .. } => (room.count(key, host) > 0 || scanned.contains(host)) != *not,
            Self::Ports(groups, addresses) => room.assign(host, groups, *addresses).is_some(),
            other => other.refuse(room, host).is_none(),
        }
    }

    /// Keeps the hosts for which the check holds.
    pub fn narrow(&self, room: &Room<'_>, candidates: &mut Bits) {
        let hosts = room.inventory.hosts();
        match self {
            Self::Eligible => candidates.intersect(&hosts.eligible),
            Self::Requested { host, .. } => candidates.retain(|one| Some(one) == *host),
            Self::Room(Amount { pool: Some(pool), amount, .. }) => {
                let pool = room.pool(*pool);
                candidates.retain_words(|first| pool.enough(first, *amount));
            }
            Self::Room(_) | Self::Never(_) => *candidates = Bits::none(hosts.len()),
            Self::Ports(groups, addresses) => {
                // Where nothing is in the way and no address is to be chosen, there is nothing to look at.
                let named = groups.iter().flat_map(|group| &group.ports).any(|port| port.address.is_some());
                let mut doubtful = if named { Bits::all(hosts.len()) } else { hosts.addressed.clone() };
                room.hosts_with_ports(groups, &mut doubtful);
                let mut ports: Vec<_> =
                    groups.iter().flat_map(|group| &group.ports).map(|port| (port.protocol, port.public)).collect();
                ports.sort_unstable();
                if ports.windows(2).any(|pair| pair[0] == pair[1] && pair[0].1 != 0) {
                    // The unit is in its own way.
                    doubtful = Bits::all(hosts.len());
                }
                candidates.retain(|host| !doubtful.contains(host) || room.assign(host, groups, *addresses).is_some());
            }
            Self::Demand(labels) => {
                candidates.retain(|host| !hosts.demanding.contains(host) || accepts(hosts.facts(host), labels));
            }
            Self::Host { passing, .. } => candidates.intersect(passing),
            Self::Containers { key, scanned, not, .. } => {
                let mut having = room.hosts_with(key);
                having.unite(scanned);
                if *not {
                    candidates.subtract(&having);
                } else {
                    candidates.intersect(&having);
                }
            }
            Self::Taints(tolerations) => candidates.retain(|host| {
                !hosts.tainted.contains(host) || untolerated(hosts.facts(host), tolerations, false).next().is_none()
            }),
            Self::Discouraging(tolerations) => candidates.retain(|host| {
                !hosts.tainted.contains(host) || untolerated(hosts.facts(host), tolerations, true).next().is_none()
            }),
            Self::Systems { images, isolation } => {
                candidates.retain(|host| {
                    images.iter().all(|(_, platforms)| choose(hosts.facts(host), platforms, *isolation).is_some())
                });
            }
            Self::Beside { key, .. } => candidates.intersect(&room.hosts_with(key)),
            Self::Spread { label, max_skew, service, among } => {
                let domains = Domains::new(room, label, service.as_ref(), among);
                candidates.retain(|host| domains.allow(room, label, host, *max_skew).is_ok());
            }
            Self::Alone(service) => candidates.subtract(&room.hosts_with(service)),
            Self::Engine(known) => candidates.intersect(known),
            Self::Untried(tried) => tried.iter().for_each(|(host, _)| candidates.remove(*host)),
        }
    }

    /// Why the check does not hold for a host; `None` when it does.
    pub fn refuse(&self, room: &Room<'_>, host: u32) -> Option<Reason> {
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
            Self::Room(Amount { name, pool, amount }) => short(room, name, *pool, *amount, host),
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
                let (name, platforms) =
                    images.iter().find(|(_, platforms)| choose(facts, platforms, *isolation).is_none())?;
                let has = describe_platforms(platforms);
                let system = describe_system(facts);
                let isolation = isolation.map_or(String::new(), |one| format!(" with {} isolation", one.name()));
                plain(format!("{name} is for {has}, host is {system}{isolation}"), format!("{name} for {system}"))
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
                let label = crate::endpoint::ENDPOINT_LABEL;
                plain(format!("host has no Docker endpoint (label {label})"), format!("label {label}"))
            })?,
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

/// A pool in a person's words.
pub fn pool_words(pool: &str) -> &str {
    match pool {
        INSTANCES => "room for containers",
        CPU => "processor",
        MEMORY => "memory",
        STORAGE => "disk",
        other => other,
    }
}

/// An amount of a pool in a person's words.
pub fn amount_words(pool: &str, amount: i64) -> String {
    let octets = |octets: i64| {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        // The largest unit in which quarters are enough; amounts are rarely anything else.
        let unit = units.iter().find(|(shift, _)| octets >= 1 << shift && octets % (1 << (shift - 2)) == 0);
        unit.map_or_else(
            || format!("{octets} octets"),
            |(shift, unit)| {
                let quarters = ["", ".25", ".5", ".75"][usize::try_from(octets >> (shift - 2) & 3).unwrap_or(0)];
                format!("{}{quarters} {unit}", octets >> shift)
            },
        )
    };
    match pool {
        MEMORY => octets(amount),
        STORAGE => octets(amount.saturating_mul(1 << 20)),
        CPU => format!("{}.{:03} processors", amount / 1000, amount % 1000),
        _ => amount.to_string(),
    }
}

fn accepts(facts: &Facts, labels: &[(Text, Text)]) -> bool {
    let labels = labels.iter().map(|(key, value)| (&**key, &**value));
    facts.require_any.as_ref().is_none_or(|demand| demand.accepts(labels))
}

fn untolerated<'a>(facts: &'a Facts, tolerations: &'a [Toleration], soft: bool) -> impl Iterator<Item = String> + 'a {
    let stands = move |taint: &&crate::taint::Taint| {
        taint.soft == soft && !tolerations.iter().any(|toleration| toleration.covers(taint))
    };
    facts.taints.iter().filter(stands).map(ToString::to_string)
}

fn attribute_of<'a>(facts: &'a Facts, attribute: &Attribute) -> Option<&'a str> {
    match attribute {
        Attribute::Label(label) => {
            facts.labels.iter().find(|(key, _)| key.to_lowercase() == *label).map(|(_, value)| &**value)
        }
        Attribute::Uuid => Some(&facts.uuid),
        Attribute::Name => Some(&facts.name),
        Attribute::Os => Some(&facts.system.os),
        Attribute::Architecture => facts.system.architecture.as_deref(),
    }
}

/// The entry of an image that a host would run, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<'a> {
    /// The entry.
    pub platform: &'a ImagePlatform,
    /// The isolation, on Windows.
    pub isolation: Option<Isolation>,
    /// What may go wrong all the same.
    pub warning: Option<String>,
}

/// The best entry of an image for a host; `None` when it runs none of them.
///
/// Process isolation comes before Hyper-V when nobody says, unless the host's own default is Hyper-V; newer images
/// come before older ones, and revisions that are not newer than the host's before those that are.
pub fn choose<'a>(facts: &Facts, platforms: &'a [ImagePlatform], isolation: Option<Isolation>) -> Option<Choice<'a>> {
    let system = &facts.system;
    let suits = |platform: &&ImagePlatform| {
        let architecture = platform.architecture.as_ref().zip(system.architecture.as_ref());
        platform.os == system.os && architecture.is_none_or(|(image, host)| image == host)
    };
    if &*system.os != "windows" {
        let platform = platforms.iter().find(suits)?;
        return Some(Choice { platform, isolation: None, warning: None });
    }
    let order = match (isolation, system.isolation) {
        (Some(isolation), _) => vec![isolation],
        (None, Isolation::Hyperv) => vec![Isolation::Hyperv, Isolation::Process],
        (None, Isolation::Process) => vec![Isolation::Process, Isolation::Hyperv],
    };
    order.into_iter().filter(|isolation| *isolation == Isolation::Process || system.hyperv).find_map(|isolation| {
        let starts = |platform: &&ImagePlatform| match (system.build, platform.build) {
            (Some(host), Some(image)) => windows::compatible(host, image, isolation),
            // An image that does not tell its build is taken at its word; a host that does not, cannot be.
            (_, None) => true,
            (None, Some(_)) => false,
        };
        let newer = |platform: &ImagePlatform| {
            system.build.zip(platform.build).is_some_and(|(host, image)| windows::is_newer_revision(host, image))
        };
        let platform = platforms
            .iter()
            .filter(suits)
            .filter(starts)
            .max_by_key(|platform| (platform.build.map(|build| build.number), !newer(platform), platform.build))?;
        let warning =
            newer(platform).then(|| "the image's revision is newer than the host's: it may fail to start".to_owned());
        Some(Choice { platform, isolation: Some(isolation), warning })
    })
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

/// How many of the service's containers there are per value of a label.
struct Domains<'a> {
    counts: Vec<(&'a str, u32)>,
    least: u32,
}

impl<'a> Domains<'a> {
    fn new(room: &Room<'a>, label: &str, service: Option<&Fingerprint>, among: &Bits) -> Self {
        let hosts = room.inventory.hosts();
        let mut counts = Vec::new();
        for (value, having) in hosts.values(label) {
            let mut counting = having.clone();
            counting.intersect(among);
            if !counting.is_empty() {
                let own = service.into_iter().flat_map(|service| room.occurrences(service));
                let sum = own.filter(|(host, _)| having.contains(*host)).map(|(_, count)| count).sum();
                counts.push((&**value, sum));
            }
        }
        let least = counts.iter().map(|(_, count)| *count).min().unwrap_or(0);
        Self { counts, least }
    }

    fn allow(&self, room: &Room<'_>, label: &str, host: u32, max_skew: u32) -> Result<(), String> {
        let facts = room.inventory.hosts().facts(host);
        let value = attribute_of(facts, &Attribute::Label(label.to_owned()));
        let value = value.ok_or_else(|| format!("spread over {label}, which the host has not"))?;
        let count = self.counts.iter().find(|(known, _)| *known == value).map_or(0, |(_, count)| *count);
        if count + 1 > self.least + max_skew {
            return Err(format!(
                "spread over {label}: {value} has {count}, another has {}, and they may differ by {max_skew}",
                self.least
            ));
        }
        Ok(())
    }
}
