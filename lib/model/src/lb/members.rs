//! The members of a backend, and those that are left out, with the reason.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};

use super::plan::{Planned, Viewpoint, find};
use crate::entity::{Container, Entity as _, Service, texts};
use crate::members::unhealthy;
use crate::reach::Unreachable;
use crate::snapshot::Snapshot;
use crate::value::{Text, Value};

/// Label of a target: how long those who are led to a member may go on once that is stopping.
const DRAIN_LABEL: &str = "io.berth.lb.drain_timeout_ms";

/// The predecessor's field of a target for the same.
const DRAIN_FIELD: &str = "drain_timeout_ms";

/// Longest time to drain: no engine waits longer than this for a container to end.
const DRAIN_MAX: Duration = Duration::from_hours(1);

/// Where more than one of so many of all containers are looked up, a table by hash is made first: that costs about as much as these lookups in
/// the snapshot's, which is in order, and each costs a fourth.
const HASHED_FROM: usize = 10;

/// Where a member is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// At this address.
    Address(SocketAddr),
    /// At this name, which the proxy asks DNS for.
    Name(Text, u16),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

/// What a backend leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Where it is; no two members of a backend are at one place.
    pub place: Place,
    /// Its share; 0 gets no new clients.
    pub weight: u16,
    /// Its name.
    pub name: Text,
}

/// What a backend does not lead to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOut {
    /// Its name.
    pub name: Text,
    /// Why.
    pub reason: Text,
    /// That it is about to stop: those who are there may finish.
    pub draining: Option<Draining>,
}

/// A member that is about to stop.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Draining {
    /// Where it is.
    pub place: Place,
    /// How long those who are there may go on, as its service says; zero is not at all.
    pub limit: Option<Duration>,
}

/// Which of the containers a balancer uses (`io.rancher.lb_service.target`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locality {
    Any,
    Only,
    Prefer,
}

/// Finds members in a snapshot.
pub(super) struct Finder<'s> {
    pub(super) snapshot: &'s Snapshot,
    pub(super) view: &'s Viewpoint,
    pub(super) locality: Locality,
    here: OnceCell<HashSet<IpAddr>>,
    /// The containers by uuid, where many are looked up.
    by_uuid: Option<HashMap<&'s str, &'s Arc<Container>>>,
    /// Room for the members of one service after the other.
    found: Cell<Vec<&'s Arc<Container>>>,
}

impl<'s> Finder<'s> {
    pub(super) fn new(snapshot: &'s Snapshot, view: &'s Viewpoint, locality: Locality) -> Self {
        Self { snapshot, view, locality, here: OnceCell::new(), by_uuid: None, found: Cell::default() }
    }

    /// What follows looks up what these rules lead to.
    pub(super) fn prepare(&mut self, planned: &[Planned]) {
        let all = &self.snapshot.containers;
        let targets = planned.iter().flat_map(|planned| &planned.targets);
        if targets.map(|service| service.members().len()).sum::<usize>() > all.len() / HASHED_FROM {
            let mut table = HashMap::with_capacity(all.len());
            table.extend(all.iter().map(|(uuid, container)| (&**uuid, container)));
            self.by_uuid = Some(table);
        }
    }

    /// Adds what a rule leads to.
    pub(super) fn find(&self, planned: &Planned, members: &mut Vec<Member>, left_out: &mut Vec<LeftOut>) {
        let Some(port) = planned.rule.target_port else { return };
        let weight = planned.rule.weight;
        if let Some(container) = &planned.container {
            self.add(container, port, weight, members, left_out);
        }
        let mut seen: HashSet<&Text> = HashSet::new();
        let mut targets = planned.targets.iter();
        let mut open: Vec<&Arc<Service>> = Vec::new();
        while let Some(service) = open.pop().or_else(|| targets.next()) {
            let kind = service.kind();
            // Most rules lead to one service that leads no further: it needs no table.
            let is_alone = kind != "dnsService" && planned.targets.len() == 1 && seen.is_empty();
            // Aliases may lead in a circle.
            if !is_alone && !seen.insert(service.id()) {
                continue;
            }
            match kind {
                _ if matches!(
                    service.fields().text("state").map_or("", |state| state),
                    "inactive" | "deactivating" | "removed" | "removing"
                ) => {}
                "externalService" => external(service, port, weight, members),
                "dnsService" => open.extend(service.links().iter().filter_map(|(link, _)| find(self.snapshot, link))),
                _ => self.add_members(service, port, weight, members, left_out),
            }
        }
    }

    fn add_members(
        &self,
        service: &Service,
        port: u16,
        weight: u16,
        members: &mut Vec<Member>,
        left_out: &mut Vec<LeftOut>,
    ) {
        // All of them first, so that the processor fetches one while it looks for the next.
        let mut found = self.found.take();
        found.clear();
        found.extend(service.members().iter().filter_map(|uuid| self.container(uuid)));
        found.sort_by_key(|container| !container.runs());
        let (running, others) = found.split_at(found.partition_point(|container| container.runs()));
        let is_well = self.snapshot.is_well(service, running, self.view.panic_threshold);
        let ill = running.iter().filter(|container| !is_well(container));
        for container in ill.chain(others) {
            let reason = unhealthy(container).unwrap_or("it does not run");
            let place = (container.state() == "stopping").then(|| self.place(container, port).ok()).flatten();
            let draining = place.map(|place| Draining { place, limit: drain_limit(service) });
            left_out.push(LeftOut { name: name(container), reason: reason.into(), draining });
        }
        let well = || running.iter().filter(|container| is_well(container));
        let is_local_alone = match self.locality {
            Locality::Any => false,
            Locality::Only => true,
            Locality::Prefer => well().any(|container| self.is_local(container)),
        };
        members.reserve(running.len());
        for container in well() {
            if is_local_alone && !self.is_local(container) {
                let reason = "it is not on the balancer's host (io.rancher.lb_service.target)".into();
                left_out.push(LeftOut { name: name(container), reason, draining: None });
            } else {
                self.add(container, port, weight, members, left_out);
            }
        }
        self.found.set(found);
    }

    fn container(&self, uuid: &Text) -> Option<&'s Arc<Container>> {
        match &self.by_uuid {
            Some(table) => table.get(&**uuid).copied(),
            None => self.snapshot.containers.get(uuid),
        }
    }

    fn add(
        &self,
        container: &Container,
        port: u16,
        weight: u16,
        members: &mut Vec<Member>,
        left_out: &mut Vec<LeftOut>,
    ) {
        match self.place(container, port) {
            Ok(place) => members.push(Member { place, weight, name: name(container) }),
            Err(why) => {
                let reason = why.map_or("it has no address", Unreachable::reason).into();
                left_out.push(LeftOut { name: name(container), reason, draining: None });
            }
        }
    }

    fn place(&self, container: &Container, port: u16) -> Result<Place, Option<Unreachable>> {
        let is_here = |address: IpAddr| self.here().contains(&address);
        self.snapshot.port_from_here(container, port, &is_here).map(Place::Address)
    }

    /// The addresses of this host's running containers, which are only needed where hosts say which of theirs are routed.
    fn here(&self) -> &HashSet<IpAddr> {
        self.here.get_or_init(|| {
            let own = self.snapshot.containers.values().filter(|one| one.runs() && self.snapshot.is_local(one));
            own.flat_map(|one| one.addresses()).collect()
        })
    }

    fn is_local(&self, container: &Container) -> bool {
        match &self.view.host {
            Some(host) => container.host_uuid() == Some(host),
            None => self.snapshot.is_local(container),
        }
    }
}

/// How long those who are led to a member of this service may go on once that is stopping; `None` if it does not say so.
fn drain_limit(service: &Service) -> Option<Duration> {
    let said =
        service.labels().and_then(|labels| labels.get(DRAIN_LABEL)).or_else(|| service.fields().get(DRAIN_FIELD))?;
    let number = said.as_int().or_else(|| said.as_text()?.trim().parse().ok())?;
    Some(Duration::from_millis(u64::try_from(number).ok()?).min(DRAIN_MAX))
}

fn name(container: &Container) -> Text {
    container.name().unwrap_or_else(|| container.uuid()).clone()
}

fn external(service: &Service, port: u16, weight: u16, members: &mut Vec<Member>) {
    let name = super::plan::path(service);
    let addresses = texts(service.fields(), "external_ips").filter_map(|text| text.parse::<IpAddr>().ok());
    let mut places: Vec<_> = addresses.map(|address| Place::Address((address, port).into())).collect();
    let hostname = service.fields().get("hostname").and_then(Value::as_text).filter(|name| !name.is_empty());
    let exact = hostname.and_then(|name| match super::rule::HostPattern::parse(name) {
        Ok(super::rule::HostPattern::Exact(name)) => Some(name),
        _ => None,
    });
    if places.is_empty() {
        places.extend(exact.map(|name| Place::Name(name, port)));
    }
    members.extend(places.into_iter().map(|place| Member { place, weight, name: name.as_str().into() }));
}
