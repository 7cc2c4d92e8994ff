//! What the page shows of a snapshot, counted once and kept up to date by what changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet, Vector};
use model::entity::{is_healthy_state, is_unhealthy_state};
use model::{Change, Container, Entity, Host, Snapshot, Text, changes};

/// Most changes that are remembered: what a person scrolls through; a wall display must not grow.
pub(crate) const CHANGES_MAX: usize = 1000;

/// Most changes of one snapshot that are listed one by one; with more, a line says how many there were.
const LISTED_MAX: usize = 200;

/// How a container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Life {
    /// It runs, and nothing says that it is not well.
    Running,
    /// It was started, and whether it is well is not known yet.
    Starting,
    /// It runs and is not well, or its host gave it up.
    Unhealthy,
    /// It does not run.
    Stopped,
}

impl Life {
    /// How a container is.
    pub(crate) fn of(container: &Container) -> Self {
        let health = container.health_state().unwrap_or_default();
        if model::health::failed(container).is_some() || container.runs() && is_unhealthy_state(health) {
            Self::Unhealthy
        } else if !container.runs() {
            Self::Stopped
        } else if container.state() == "starting" || !health.is_empty() && !is_healthy_state(health) {
            Self::Starting
        } else {
            Self::Running
        }
    }
}

/// How many containers are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts([u32; 4]);

impl Counts {
    /// How many are in this state.
    pub(crate) fn of(self, life: Life) -> u32 {
        self.0[life as usize]
    }

    /// How many there are.
    pub(crate) fn all(self) -> u32 {
        self.0.iter().sum()
    }

    fn add(&mut self, life: Life) {
        self.0[life as usize] += 1;
    }

    fn take(&mut self, life: Life) {
        self.0[life as usize] = self.0[life as usize].saturating_sub(1);
    }
}

/// A change that people are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Happened {
    /// Which one, in this process.
    pub(crate) number: u64,
    /// When it was seen, in seconds since 1970.
    pub(crate) at: i64,
    /// Its kind of entity.
    pub(crate) kind: &'static str,
    pub(crate) name: Text,
    /// The steps to its page.
    pub(crate) id: Text,
    /// What became of it.
    pub(crate) what: String,
}

/// What the page shows of one snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    /// The snapshot.
    pub(crate) snapshot: Arc<Snapshot>,
    /// Of all containers.
    pub(crate) totals: Counts,
    /// The hosts by name.
    pub(crate) by_name: Arc<[Arc<Host>]>,
    hosts: OrdMap<Text, Counts>,
    on_host: OrdSet<(Text, Text)>,
    services: OrdMap<Text, Counts>,
    /// Containers with the services that they are members of.
    memberships: OrdSet<(Text, Text)>,
    /// Uuids of the containers that are not well.
    pub(crate) unhealthy: OrdSet<Text>,
    /// The last changes, the newest first.
    pub(crate) happened: Vector<Happened>,
    numbers: u64,
    is_first: bool,
}

impl World {
    /// The world before there is a snapshot.
    pub(crate) fn empty() -> Self {
        Self { is_first: true, ..Self::default() }
    }

    /// The world as `snapshot` has it, seen now (in seconds since 1970); costs what is different.
    pub(crate) fn next(&self, snapshot: &Arc<Snapshot>, now: i64) -> Self {
        let (mut next, old) = (self.clone(), &self.snapshot);
        next.snapshot = snapshot.clone();
        next.is_first = false;
        if changes(&old.hosts, &snapshot.hosts).next().is_some() {
            let mut hosts: Vec<_> = snapshot.hosts.values().cloned().collect();
            hosts.sort_by(|a, b| (a.name(), a.uuid()).cmp(&(b.name(), b.uuid())));
            next.by_name = hosts.into();
        }
        let mut touched = BTreeSet::new();
        for change in changes(&old.services, &snapshot.services) {
            let (before, after) = both(&change);
            if let Some(before) = before {
                for member in before.members().iter() {
                    next.memberships.remove(&(member.clone(), before.id().clone()));
                }
                next.services.remove(before.id());
            }
            if let Some(after) = after {
                touched.insert(after.id().clone());
            }
        }
        for service in touched.iter().filter_map(|id| snapshot.services.get(id)) {
            for member in service.members().iter() {
                next.memberships.insert((member.clone(), service.id().clone()));
            }
        }
        for change in changes(&old.containers, &snapshot.containers) {
            let (before, after) = both(&change);
            if let Some(container) = before {
                next.lose(container);
            }
            if let Some(container) = after {
                next.gain(container);
            }
            if let Some(container) = before.or(after) {
                touched.extend(next.services_of(container.uuid()).cloned());
            }
        }
        for service in touched.iter().filter_map(|id| snapshot.services.get(id)) {
            let mut counts = Counts::default();
            for member in service.members().iter().filter_map(|uuid| snapshot.containers.get(uuid)) {
                counts.add(Life::of(member));
            }
            next.services.insert(service.id().clone(), counts);
        }
        if !self.is_first {
            next.note(old, snapshot, now);
        }
        next
    }

    fn lose(&mut self, container: &Container) {
        let life = Life::of(container);
        self.totals.take(life);
        self.unhealthy.remove(container.uuid());
        if let Some(host) = container.host_uuid() {
            self.on_host.remove(&(host.clone(), container.uuid().clone()));
            let mut counts = self.on(host);
            counts.take(life);
            if counts.all() == 0 {
                self.hosts.remove(host);
            } else {
                self.hosts.insert(host.clone(), counts);
            }
        }
    }

    fn gain(&mut self, container: &Container) {
        let life = Life::of(container);
        self.totals.add(life);
        if life == Life::Unhealthy {
            self.unhealthy.insert(container.uuid().clone());
        }
        if let Some(host) = container.host_uuid() {
            self.on_host.insert((host.clone(), container.uuid().clone()));
            self.hosts.entry(host.clone()).or_default().add(life);
        }
    }

    /// How the containers on a host are.
    pub(crate) fn on(&self, host: &str) -> Counts {
        self.hosts.get(host).copied().unwrap_or_default()
    }

    /// The containers on a host.
    pub(crate) fn containers_on(&self, host: &Text) -> impl Iterator<Item = &Arc<Container>> {
        let all = self.on_host.range((host.clone(), Text::default())..);
        let own = all.take_while(move |(on, _)| on == host);
        own.filter_map(|(_, uuid)| self.snapshot.containers.get(uuid))
    }

    /// How the containers of a service are, by its id.
    pub(crate) fn of_service(&self, id: &str) -> Counts {
        self.services.get(id).copied().unwrap_or_default()
    }

    /// The first service of a container.
    pub(crate) fn service_of(&self, container: &Text) -> Option<&Arc<model::Service>> {
        self.services_of(container).find_map(|id| self.snapshot.services.get(id))
    }

    /// The ids of the services of a container.
    fn services_of(&self, container: &Text) -> impl Iterator<Item = &Text> {
        let all = self.memberships.range((container.clone(), Text::default())..);
        all.take_while(move |(member, _)| member == container).map(|(_, service)| service)
    }

    /// Adds what happened from one snapshot to the next.
    fn note(&mut self, old: &Snapshot, new: &Snapshot, now: i64) {
        let mut found = Vec::new();
        let mut count = 0;
        let mut note = |kind, name: Option<&Text>, id: &Text, what: Option<String>| {
            count += usize::from(what.is_some());
            if let Some(what) = what.filter(|_| count <= LISTED_MAX) {
                let name = name.unwrap_or(id).clone();
                found.push(Happened { number: 0, at: now, kind, name, id: id.clone(), what });
            }
        };
        for change in changes(&old.hosts, &new.hosts) {
            let (before, after) = both(&change);
            let (Some(one), what) = (after.or(before), became(before, after, |host| host.state().to_owned())) else {
                continue;
            };
            note("host", one.name(), one.id(), what);
        }
        for change in changes(&old.services, &new.services) {
            let (before, after) = both(&change);
            let (Some(one), what) = (after.or(before), became(before, after, |_| String::new())) else { continue };
            note("service", one.name(), one.id(), what);
        }
        for change in changes(&old.containers, &new.containers) {
            let (before, after) = both(&change);
            let (Some(one), what) = (after.or(before), became(before, after, state)) else { continue };
            note("container", one.name(), one.id(), what);
        }
        if count > LISTED_MAX {
            let what = format!("and {} more changes at once", count - LISTED_MAX);
            found.push(Happened { number: 0, at: now, kind: "", name: Text::default(), id: Text::default(), what });
        }
        for mut one in found {
            self.numbers += 1;
            one.number = self.numbers;
            self.happened.push_front(one);
        }
        self.happened.truncate(CHANGES_MAX);
    }
}

/// The state of a container in words.
pub(crate) fn state(container: &Container) -> String {
    let state = if container.state().is_empty() { "running" } else { container.state() };
    container.health_state().map_or_else(|| state.to_owned(), |health| format!("{state}, {health}"))
}

/// The entity before and after a change.
fn both<'c, T>(change: &Change<'c, T>) -> (Option<&'c T>, Option<&'c T>) {
    let (old, new) = change.sides();
    (old.map(Arc::as_ref), new.map(Arc::as_ref))
}

/// What a change means to people; `None` if they would not call it one.
fn became<T: Entity>(before: Option<&T>, after: Option<&T>, state: impl Fn(&T) -> String) -> Option<String> {
    match (before, after) {
        (None, Some(after)) => Some(with("new", &state(after))),
        (Some(_), None) => Some("gone".to_owned()),
        (Some(before), Some(after)) => {
            let (from, to) = (state(before), state(after));
            Some(if from == to { "changed".to_owned() } else { format!("{from} → {to}") })
        }
        (None, None) => None,
    }
}

fn with(word: &str, state: &str) -> String {
    if state.is_empty() { word.to_owned() } else { format!("{word}: {state}") }
}

/// A generated cluster for tests: so many hosts with so many containers each.
#[cfg(test)]
pub(crate) mod generated {
    use model::{Map, Value, objects};

    use super::*;

    pub(crate) fn object(kind: &str, fields: &[(&str, Value)]) -> Map {
        let fields = fields.iter().map(|(key, value)| (Text::from(*key), value.clone()));
        Map::new(fields.chain([("metadata_kind".into(), Value::text(kind))]).collect())
    }

    /// One container in a hundred is not well.
    pub(crate) fn snapshot(hosts: usize, containers: usize) -> Snapshot {
        let mut all = Vec::new();
        let text = |text: String| Value::text(text);
        for host in 0..hosts {
            let labels = Map::new(vec![
                ("io.rancher.host.os".into(), Value::text(if host % 3 == 0 { "linux" } else { "windows" })),
                ("zone".into(), text(format!("zone-{}", host % 4))),
            ]);
            let fields = [
                ("uuid", text(format!("host-{host:05}-0000-4000-8000-000000000000"))),
                ("name", text(format!("win-{host:05}"))),
                ("agent_ip", text(format!("10.{}.{}.1", host / 250, host % 250))),
                ("state", Value::text(if host % 500 == 7 { "inactive" } else { "active" })),
                ("memory", Value::Int(64 << 30)),
                ("labels", Value::Map(labels)),
            ];
            all.push(object("host", &fields));
            for number in 0..containers {
                let (id, at) = (host * containers + number, (host * containers + number) / 30);
                let fields = [
                    ("uuid", text(format!("c-{id:06}"))),
                    ("name", text(format!("stack-{}-service-{at}-{}", at % 50, id % 30))),
                    ("host_uuid", text(format!("host-{host:05}-0000-4000-8000-000000000000"))),
                    ("state", Value::text(if id % 97 == 0 { "stopped" } else { "running" })),
                    ("health_state", Value::text(if id % 100 == 3 { "unhealthy" } else { "healthy" })),
                    ("primary_ip", text(format!("10.{}.{}.{}", host / 250, host % 250, number + 2))),
                ];
                all.push(object("container", &fields));
                if id % 30 == 0 {
                    let fields = [
                        ("uuid", text(format!("s-{at}"))),
                        ("name", text(format!("service-{at}"))),
                        ("stack_name", text(format!("stack-{}", at % 50))),
                        ("kind", Value::text("service")),
                        ("scale", Value::Int(30)),
                    ];
                    all.push(object("service", &fields));
                }
                let member = [
                    ("service_uuid", text(format!("s-{at}"))),
                    ("service_name", text(format!("service-{at}"))),
                    ("container_uuid", text(format!("c-{id:06}"))),
                ];
                all.push(object("serviceContainerLink", &member));
            }
        }
        objects::read(all).0
    }
}

#[cfg(test)]
mod tests {
    use model::{Value, objects};
    use proptest::prelude::*;

    use super::generated::object;
    use super::*;

    fn any_snapshot() -> impl Strategy<Value = Snapshot> {
        prop::collection::vec((0..8u8, 0..3u8, 0..4usize, 0..3u8), 0..12).prop_map(|containers| {
            let mut all = Vec::new();
            for (id, host, state, service) in containers {
                let states =
                    [("running", "healthy"), ("running", "unhealthy"), ("stopped", ""), ("starting", "initializing")];
                let id = Value::text(format!("c{id}"));
                all.push(object(
                    "container",
                    &[
                        ("uuid", id.clone()),
                        ("host_uuid", Value::text(format!("h{host}"))),
                        ("state", Value::text(states[state].0)),
                        ("health_state", Value::text(states[state].1)),
                    ],
                ));
                let name = Value::text(format!("s{service}"));
                all.push(object("service", &[("uuid", name.clone()), ("name", name.clone())]));
                let link = [("service_uuid", name.clone()), ("service_name", name), ("container_uuid", id)];
                all.push(object("serviceContainerLink", &link));
            }
            objects::read(all).0
        })
    }

    proptest! {
        #[test]
        fn after_any_changes_it_is_what_it_would_be_made_anew(chain in prop::collection::vec(any_snapshot(), 1..6)) {
            let mut world = World::empty();
            for snapshot in chain {
                let snapshot = Arc::new(snapshot.succeeding(&world.snapshot));
                world = world.next(&snapshot, 0);
                let anew = World::empty().next(&snapshot, 0);
                prop_assert_eq!(&world.totals, &anew.totals);
                prop_assert_eq!(&world.hosts, &anew.hosts);
                prop_assert_eq!(&world.on_host, &anew.on_host);
                prop_assert_eq!(&world.services, &anew.services);
                prop_assert_eq!(&world.unhealthy, &anew.unhealthy);
                prop_assert_eq!(&world.memberships, &anew.memberships);
            }
        }
    }

    #[test]
    fn the_list_of_changes_does_not_grow() {
        let (a, b) = (Arc::new(generated::snapshot(2, 300)), Arc::new(Snapshot::default()));
        let mut world = World::empty().next(&a, 0);
        assert!(world.happened.is_empty());
        for turn in 0..20 {
            world = world.next(if turn % 2 == 0 { &b } else { &a }, turn);
        }
        assert_eq!(world.happened.len(), CHANGES_MAX);
        assert!(world.happened.iter().any(|one| one.what.contains("more changes at once")));
    }
}
