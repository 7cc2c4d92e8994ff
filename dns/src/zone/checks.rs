//! What is wrong with the entities of a zone, by whom.
//!
//! Nothing here is needed to answer, so a zone is published first and looked through afterwards; of the zones that follow
//! only what changed is.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use model::entity::is_unhealthy_state;
use model::members::unhealthy;
use model::unwell::WhyUnhealthy;
use model::{Container, Defect, Entity, Service, Text, Unreachable};
use serde::Serialize;

use super::entry::Owner;
use super::members::{is_alias, is_external, is_local, path, rank, stands_for_members, unreachable};
use super::persistent::Persistent;
use super::records::{Making, Members};
use super::{Scope, Target, Zone};

/// What is wrong, by whom.
pub(super) type Findings = Persistent<Subject, Arc<[Defect]>>;

/// Whose defects they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Subject {
    /// A service, by its id.
    Service(Text),
    /// A container, by its uuid.
    Container(Text),
    /// What a container sees, by its address.
    Scope(IpAddr),
}

/// Containers that have no address for clients here.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Unreached {
    pub(crate) containers: usize,
    /// The uuids of their hosts.
    pub(crate) hosts: BTreeSet<Text>,
    /// The name of one of them.
    pub(crate) example: Option<Text>,
    /// Why that one is left out, and the way out.
    pub(crate) reason: Option<&'static str>,
}

/// A container without an address in an answer, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LeftOut {
    pub(crate) container: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    pub(crate) reason: Cow<'static, str>,
    /// Since when, in seconds from the beginning of 1970 by the clock of its host.
    #[serde(skip)]
    pub(crate) since: Option<u64>,
    /// For how many seconds, by this clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) for_s: Option<u64>,
}

impl Zone {
    /// What is wrong in what the zone was built from, by path; found out when it is asked for the first time.
    pub fn defects(&self) -> Vec<Defect> {
        self.vips();
        let findings = self.findings.get_or_init(|| self.all_findings());
        let mut defects: Vec<_> = findings.values().flat_map(|defects| defects.iter()).cloned().collect();
        defects.sort_by(|a, b| (&a.path, &a.problem).cmp(&(&b.path, &b.problem)));
        defects.dedup();
        defects
    }

    fn all_findings(&self) -> Findings {
        let mut findings = Findings::default();
        let environment = self.snapshot.environment_uuid();
        let services = self.snapshot.services.values();
        for service in services.filter(|service| is_local(environment, service.environment_uuid())) {
            self.check(Subject::Service(service.id().clone()), &mut findings);
        }
        for uuid in self.snapshot.containers.keys() {
            self.check(Subject::Container(uuid.clone()), &mut findings);
        }
        for (address, _) in self.addresses.iter() {
            self.check(Subject::Scope(*address), &mut findings);
        }
        findings
    }

    /// Containers of other hosts that have no address for clients here: how many, the hosts they are on, and one of them.
    pub(crate) fn unreachable(&self) -> Unreached {
        let mut unreached = Unreached::default();
        for (host, containers) in self.unreachable.iter() {
            unreached.containers += containers.len();
            unreached.hosts.insert(host.clone());
            let first =
                containers.first().filter(|first| unreached.example.as_ref().is_none_or(|known| *first < known));
            unreached.example = first.cloned().or(unreached.example);
        }
        if let Some(container) = unreached.example.as_ref().and_then(|uuid| self.container(uuid)) {
            unreached.reason = unreachable(self, container).map(Unreachable::reason);
            unreached.example = container.name().or(unreached.example.as_ref()).cloned();
        }
        unreached
    }

    /// The containers that are left out of the addresses of a name that all clients see, or that this client has of its own.
    pub(crate) fn left_out(&self, scope: Option<&Scope>, name: &[u8]) -> Vec<LeftOut> {
        let mut open = Vec::new();
        match scope.and_then(|scope| scope.link(name)) {
            Some(Target::Id(id)) => match self.container(id) {
                Some(container) => return self.left_out_of([container]),
                None => open.extend(self.snapshot.services.get(id)),
            },
            Some(Target::Name(target)) => match self.names.get(target).map(|entry| &entry.owner) {
                Some(Owner::Service(service)) => open.push(service),
                _ => return Vec::new(),
            },
            Some(Target::Node(_)) => return Vec::new(),
            None => match self.names.get(name).map(|entry| &entry.owner) {
                Some(Owner::Containers(claims)) => {
                    return self.left_out_of(claims.iter().max_by_key(|claim| rank(&self.snapshot, claim)));
                }
                Some(Owner::Service(service)) => open.push(service),
                _ => return Vec::new(),
            },
        }
        let mut seen: Vec<&Arc<Service>> = Vec::new();
        while let Some(service) = open.pop() {
            if !seen.iter().any(|known| known.id() == service.id()) {
                seen.push(service);
                if is_alias(service) {
                    open.extend(self.linked_services(service));
                }
            }
        }
        let containers = |service: &&Arc<Service>| {
            service.members().iter().filter_map(|uuid| self.container(uuid)).collect::<Vec<_>>()
        };
        let unhealthy = seen.iter().flat_map(|service| {
            let named = Making::new(self).members(service);
            let is_named = |container: &Arc<Container>| named.iter().any(|one| Arc::ptr_eq(one, container));
            let others = containers(service).into_iter().filter(|container| !is_named(container));
            others.filter_map(|container| self.one_unhealthy(container)).collect::<Vec<_>>()
        });
        let mut left_out: Vec<_> = unhealthy.collect();
        left_out.extend(self.left_out_of(seen.iter().flat_map(containers)));
        left_out
    }

    fn left_out_of<'c>(&self, containers: impl IntoIterator<Item = &'c Arc<Container>>) -> Vec<LeftOut> {
        let left_out =
            |container: &'c Arc<Container>| Some(self.one_left_out(container, unreachable(self, container)?.reason()));
        containers.into_iter().filter_map(left_out).collect()
    }

    fn one_unhealthy(&self, container: &Container) -> Option<LeftOut> {
        let left_out = self.one_left_out(container, unhealthy(container)?);
        let is_unhealthy = container.state() != "stopping" && container.health_state().is_some_and(is_unhealthy_state);
        Some(match WhyUnhealthy::of(container).filter(|_| is_unhealthy) {
            Some(WhyUnhealthy { reason, since }) => {
                LeftOut { reason: format!("it is unhealthy: {reason}").into(), since, ..left_out }
            }
            None => left_out,
        })
    }

    fn one_left_out(&self, container: &Container, reason: &'static str) -> LeftOut {
        let host = container.host_uuid().and_then(|uuid| self.snapshot.hosts.get(uuid)).and_then(|host| host.name());
        let name = container.name().unwrap_or_else(|| container.uuid()).to_string();
        LeftOut {
            container: name,
            host: host.map(ToString::to_string),
            reason: reason.into(),
            since: None,
            for_s: None,
        }
    }

    /// Files what is wrong with one of them.
    pub(super) fn check(&self, subject: Subject, findings: &mut Findings) {
        let mut making = Making::new(self);
        match &subject {
            Subject::Service(id) => {
                if let Some(service) = self.snapshot.services.get(id) {
                    making.check_service(service);
                }
            }
            Subject::Container(uuid) => {
                if let Some(container) = self.container(uuid) {
                    making.check_container(container);
                }
            }
            Subject::Scope(address) => {
                if let Some(client) = self.addresses.get(address).and_then(|place| place.client(self)) {
                    drop(making.scope(client));
                }
            }
        }
        let mut defects = making.defects;
        if defects.is_empty() {
            findings.remove(&subject);
        } else {
            defects.sort_by(|a, b| (&a.path, &a.problem).cmp(&(&b.path, &b.problem)));
            defects.dedup();
            findings.insert(subject, defects.into());
        }
    }
}

impl Making<'_> {
    fn check_service(&mut self, service: &Arc<Service>) {
        if !service.links().is_empty() {
            drop(self.service_links(service));
        }
        let Some(name) = self.checked_name(|| path(service), self.zone.service_name(service)) else { return };
        if !self.zone.is_of(&name, service) {
            self.hidden(&path(service), format!("{name} is the name of something else already"));
            return;
        }
        if self.vip(service).is_some() {
            return;
        }
        if is_external(service) {
            drop(self.service_node(service));
        } else if is_alias(service) {
            drop(self.union_node(service, Members::All));
        } else if stands_for_members(service) {
            for uuid in service.members().iter().filter(|uuid| self.zone.container(uuid).is_none()) {
                self.defects.push(Defect::ignored(format!("{}/containers/{uuid}", path(service)), "no such container"));
            }
        }
    }

    /// Reports a name or a main address that is none; the container is then without.
    fn check_container(&mut self, container: &Arc<Container>) {
        if !is_local(self.zone.snapshot.environment_uuid(), container.environment_uuid()) {
            return;
        }
        let missing = container.primary_ip().is_none();
        let written = missing.then(|| container.fields().text("primary_ip")).flatten();
        if let Some(text) = written.filter(|text| !text.is_empty()) {
            let name = container.name().unwrap_or_else(|| container.uuid());
            self.ignored(format!("containers/{name}/primary_ip"), format!("{text:?} is no address"));
        }
        let at = || format!("containers/{}", container.name().unwrap_or_else(|| container.uuid()));
        if !container.runs() {
            return;
        }
        match self.zone.container_name(container) {
            Some(Err(error)) => self.hidden(&at(), error.to_string()),
            Some(Ok(name)) => {
                let entry = self.zone.names.get(&name);
                if entry.is_some_and(|entry| !matches!(entry.owner, Owner::Containers(_))) {
                    self.hidden(&at(), format!("{name} is the name of a service"));
                }
            }
            None => {}
        }
    }
}
