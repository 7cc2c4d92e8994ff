//! A check: something that must hold for a host, judged for all hosts at once or for one.

use model::{Fingerprint, Text};

use crate::place::bits::Bits;
use crate::place::constraint::{Attribute, Constraint, Subject};
use crate::place::filter::amount::PoolNeed;
use crate::place::filter::choice::choose;
use crate::place::filter::domain::Domains;
use crate::place::hosts::Facts;
use crate::place::inventory::Inventory;
use crate::place::inventory::key::{Kind, is_indexed, key};
use crate::place::request::member::ImagePlatform;
use crate::place::room::{Addresses, PortGroup, Room};
use crate::place::taint::Toleration;
use crate::place::windows::Isolation;

/// Something that must hold for a host.
#[derive(Clone, Debug)]
pub(crate) enum Check {
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
    Room(PoolNeed),
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
    /// The host's containers have these settings.
    Settings {
        /// The hosts whose containers do.
        hosts: Bits,
        /// The names of the settings.
        names: Vec<&'static str>,
    },
    /// The host's engine has these networks, or does not say which it has.
    Networks {
        /// The hosts of which that is so.
        hosts: Bits,
        /// The networks' names.
        names: Vec<Text>,
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
    /// The endpoint of the host's engine is known.
    Engine(Bits),
    /// The host's engine answers as far as anything is known: the hosts where it does not, and why.
    Answering(Vec<(u32, String)>),
    /// The policy allows the subject to use the host.
    Permitted {
        /// The hosts that it may use.
        hosts: Bits,
        /// Who asks.
        subject: crate::subject::Subject,
    },
    /// Starting was not tried there in vain: the hosts where it was, and what their engines said.
    Untried(Vec<(u32, String)>),
    /// It is not this host, which is to be drained.
    Undrained(u32),
}

impl Check {
    /// The check of a constraint.
    pub(crate) fn of(constraint: &Constraint, inventory: &Inventory) -> Self {
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
                passing.retain(|host| test.passes(hosts.facts(host).attribute(attribute)));
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
    pub(crate) fn is_about_room(&self) -> bool {
        matches!(self, Self::Room(_) | Self::Ports(..))
    }

    /// Whether the check holds for a host: the rule that [`Check::narrow`] and [`Check::refuse`] apply.
    pub(crate) fn holds(&self, room: &Room<'_>, host: u32) -> bool {
        let hosts = room.inventory.hosts();
        let tolerated = |tolerations: &[Toleration], soft: bool| {
            !hosts.tainted.contains(host) || untolerated(hosts.facts(host), tolerations, soft).next().is_none()
        };
        match self {
            Self::Eligible => hosts.eligible.contains(host),
            Self::Requested { host: requested, .. } => *requested == Some(host),
            Self::Room(PoolNeed { pool: Some(pool), amount, .. }) => room.free(*pool, host) >= *amount,
            Self::Room(_) | Self::Never(_) => false,
            Self::Ports(groups, addresses) => room.assign(host, groups, *addresses).is_some(),
            Self::Demand(labels) => !hosts.demanding.contains(host) || accepts(hosts.facts(host), labels),
            Self::Host { passing, .. }
            | Self::Engine(passing)
            | Self::Permitted { hosts: passing, .. }
            | Self::Settings { hosts: passing, .. }
            | Self::Networks { hosts: passing, .. } => passing.contains(host),
            Self::Containers { key, scanned, not, .. } => (room.count(key, host) > 0 || scanned.contains(host)) != *not,
            Self::Taints(tolerations) => tolerated(tolerations, false),
            Self::Discouraging(tolerations) => tolerated(tolerations, true),
            Self::Systems { images, isolation } => unsuited(hosts.facts(host), images, *isolation).is_none(),
            Self::Beside { key, .. } => room.count(key, host) > 0,
            Self::Spread { label, max_skew, service, among } => {
                Domains::new(room, label, service.as_ref(), among).allow(room, label, host, *max_skew).is_ok()
            }
            Self::Alone(service) => room.count(service, host) == 0,
            Self::Untried(hosts) | Self::Answering(hosts) => hosts.iter().all(|(one, _)| *one != host),
            Self::Undrained(drained) => *drained != host,
        }
    }

    /// Keeps the hosts for which the check holds.
    ///
    /// What is a set of hosts already is applied as one; a property test compares the result with [`Check::holds`].
    pub(crate) fn narrow(&self, room: &Room<'_>, candidates: &mut Bits) {
        let hosts = room.inventory.hosts();
        match self {
            Self::Eligible => candidates.intersect(&hosts.eligible),
            Self::Host { passing, .. }
            | Self::Engine(passing)
            | Self::Permitted { hosts: passing, .. }
            | Self::Settings { hosts: passing, .. }
            | Self::Networks { hosts: passing, .. } => candidates.intersect(passing),
            Self::Room(PoolNeed { pool: Some(pool), amount, .. }) => {
                let pool = room.pool(*pool);
                candidates.retain_words(|first| pool.enough(first, *amount));
            }
            Self::Ports(groups, _) => {
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
                candidates.retain(|host| !doubtful.contains(host) || self.holds(room, host));
            }
            Self::Containers { key, scanned, not, .. } => {
                let mut having = room.hosts_with(key);
                having.unite(scanned);
                if *not {
                    candidates.subtract(&having);
                } else {
                    candidates.intersect(&having);
                }
            }
            Self::Beside { key, .. } => candidates.intersect(&room.hosts_with(key)),
            Self::Alone(service) => candidates.subtract(&room.hosts_with(service)),
            Self::Spread { label, max_skew, service, among } => {
                // The domains are counted once for all hosts.
                let domains = Domains::new(room, label, service.as_ref(), among);
                candidates.retain(|host| domains.allow(room, label, host, *max_skew).is_ok());
            }
            Self::Untried(hosts) | Self::Answering(hosts) => {
                for (host, _) in hosts {
                    candidates.remove(*host);
                }
            }
            Self::Undrained(host) => candidates.remove(*host),
            _ => candidates.retain(|host| self.holds(room, host)),
        }
    }
}

/// The first image that does not run on a host; without entries of any image, what is to be isolated there.
pub(super) fn unsuited<'a>(
    facts: &Facts,
    images: &'a [(Text, Vec<ImagePlatform>)],
    isolation: Option<Isolation>,
) -> Option<(&'a str, &'a [ImagePlatform])> {
    if images.is_empty() {
        // Only Windows isolates so; what the image is built for its engine finds out.
        let isolates = &*facts.system.os == "windows" && (isolation != Some(Isolation::Hyperv) || facts.system.hyperv);
        return (isolation.is_some() && !isolates).then_some(("the container", &[]));
    }
    let image = images.iter().find(|(_, platforms)| choose(facts, platforms, isolation).is_none());
    image.map(|(name, platforms)| (&**name, &**platforms))
}

fn accepts(facts: &Facts, labels: &[(Text, Text)]) -> bool {
    let labels = labels.iter().map(|(key, value)| (&**key, &**value));
    facts.require_any.as_ref().is_none_or(|demand| demand.accepts(labels))
}

pub(super) fn untolerated<'a>(
    facts: &'a Facts,
    tolerations: &'a [Toleration],
    soft: bool,
) -> impl Iterator<Item = String> + 'a {
    let stands = move |taint: &&crate::place::taint::Taint| {
        taint.is_soft() == soft && !tolerations.iter().any(|toleration| toleration.covers(taint))
    };
    facts.taints.iter().filter(stands).map(ToString::to_string)
}
