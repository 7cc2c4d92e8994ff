//! The filter: which hosts a unit can be on, and for each other one, everything that speaks against it.
//!
//! A [`Check`] judges all hosts at once (`narrow`, for placing) and one host with words (`refuse`, for
//! explaining). Both must say the same; a property test compares them.

pub(crate) mod amount;
pub(crate) mod check;
pub(crate) mod choice;
mod domain;
pub(crate) mod reason;

use std::collections::BTreeSet;

use model::{Fingerprint, Text};

use crate::place::bits::Bits;
use crate::place::constraint::Subject;
use crate::place::filter::amount::PoolNeed;
use crate::place::filter::check::Check;
use crate::place::filter::reason::Reason;
use crate::place::inventory::Inventory;
use crate::place::inventory::key::{Kind, key};
use crate::place::request::Request;
use crate::place::room::{Addresses, Room};

/// What a unit needs, in terms of one inventory.
#[derive(Clone, Debug)]
pub struct Need {
    pub(crate) checks: Vec<Check>,
    /// What should, and what it weighs.
    pub(crate) wishes: Vec<(Check, u32)>,
    /// Amounts of pools, in the order of asking.
    pub(crate) amounts: Vec<PoolNeed>,
    /// Under which key the service's own containers are found.
    pub(crate) service: Option<Fingerprint>,
    /// Under which keys containers of the same images are found.
    pub(crate) images: Vec<Fingerprint>,
}

impl Need {
    /// What the request needs of the hosts of this inventory.
    pub fn new(request: &Request, inventory: &Inventory, owners: &[Text]) -> Self {
        let hosts = inventory.hosts();
        let service = request.service_key;
        let amounts: Vec<PoolNeed> = request
            .amounts()
            .into_iter()
            .map(|(name, amount)| PoolNeed { pool: hosts.pool(&name), name, amount })
            .collect();
        let images: Vec<_> = request
            .members
            .iter()
            .filter(|member| !member.platforms.is_empty())
            .map(|member| (member.image.clone().unwrap_or_else(|| "image".into()), member.platforms.clone()))
            .collect();
        let groups = request.port_groups(owners);
        let mut checks = vec![Check::Eligible];
        let mut wishes = Vec::new();
        if let Some(word) = &request.requested_host {
            checks.push(Check::Requested { host: hosts.find(word), word: word.clone() });
        }
        if !images.is_empty() || request.isolation.is_some() {
            checks.push(Check::Systems { images, isolation: request.isolation });
        }
        let mut names: Vec<_> = request.members.iter().flat_map(|member| member.run.engine.linux_only()).collect();
        if !names.is_empty() {
            names.sort_unstable();
            names.dedup();
            let mut without = Bits::all(hosts.len());
            without.retain(|host| &*hosts.facts(host).system.os != "windows");
            checks.push(Check::Settings { hosts: without, names });
        }
        let wanted: BTreeSet<&Text> = request.members.iter().flat_map(|member| member.run.networks()).collect();
        if !wanted.is_empty() {
            let mut with = Bits::all(hosts.len());
            let has_all = |known: &BTreeSet<Text>| wanted.iter().all(|name| known.contains(*name));
            with.retain(|host| hosts.facts(host).networks.as_ref().is_none_or(has_all));
            checks.push(Check::Networks { hosts: with, names: wanted.into_iter().cloned().collect() });
        }
        let beside = request.members.iter().flat_map(|member| &member.beside);
        checks.extend(beside.map(|name| Check::Beside { name: name.clone(), key: key(Kind::Name, &[name]) }));
        // A request that names the host has decided; only what makes it impossible counts then, as in the predecessor.
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
                wishes
                    .push((Check::Discouraging(request.tolerations.clone()), crate::place::constraint::WEIGHT_DEFAULT));
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
                    check.narrow(&Room { inventory, promised: &crate::place::room::Promised::default() }, &mut among);
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
    pub(crate) fn rename(&mut self, owners: &[Text], request: &Request) {
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
    pub(crate) fn is_local(&self) -> bool {
        !self.checks.iter().any(|check| matches!(check, Check::Spread { .. }))
    }

    /// Whether a host fits, as [`Need::candidates`] says of all.
    pub(crate) fn fits(&self, room: &Room<'_>, host: u32) -> bool {
        self.checks.iter().all(|check| check.holds(room, host))
    }

    /// Everything that speaks against a host.
    pub fn reasons(&self, room: &Room<'_>, host: u32) -> Vec<Reason> {
        self.checks.iter().filter_map(|check| check.refuse(room, host)).collect()
    }
}
