//! The inventory: what a snapshot says about room. The scheduler's view.
//!
//! Amounts stand in arrays by pool and host. What containers add to them is stored as one account per
//! container, so that a change takes the old account out and puts the new one in, and costs what changed.

pub(crate) mod account;
pub(crate) mod key;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::{HashMap, Vector};
use model::{Change, Container, Entity, Fingerprint, Service, Snapshot, Table, Text, changes};

use crate::place::hosts::HostTable;
use crate::place::inventory::account::Account;
use crate::place::port::Bound;

/// Container label with the name under which the scheduler placed it.
pub(crate) const PLACEMENT_LABEL: &str = "io.berth.placement";

/// Start of the container labels that say what it uses of further pools: `io.berth.use.gpu=1`.
pub(crate) const USE_LABEL_PREFIX: &str = "io.berth.use.";

/// Container label with `stack/service`.
pub(crate) const SERVICE_LABEL: &str = "io.rancher.stack_service.name";

/// Hosts and how often something occurs on each, by host.
pub(crate) type Occurrences = Arc<[(u32, u32)]>;

/// Occurrences while an inventory is built, when they are not shared yet: nothing is copied to add one.
type NewOccurrences = std::collections::HashMap<Fingerprint, BTreeMap<u32, u32>, foldhash::fast::RandomState>;

/// What a snapshot says about room.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    hosts: Arc<HostTable>,
    used: Vec<Arc<Vec<i64>>>,
    present: Arc<Vec<u32>>,
    bound: Vector<Arc<[Bound]>>,
    occurrences: HashMap<Fingerprint, Occurrences>,
    accounts: HashMap<Text, Arc<Account>>,
    services_of: HashMap<Text, Text>,
    placed: HashMap<Text, Arc<[Text]>>,
    containers: Table<Container>,
    services: Table<Service>,
    host_table: Table<model::Host>,
    local_host: Option<Arc<model::Host>>,
    own_host_only: bool,
    is_panic: bool,
}

impl Inventory {
    /// The inventory of a snapshot.
    pub fn new(snapshot: &Snapshot) -> Self {
        Self::build(snapshot, false)
    }

    /// The same for a scheduler that places on its own host only.
    pub(crate) fn of_own_host(snapshot: &Snapshot) -> Self {
        Self::build(snapshot, true)
    }

    fn build(snapshot: &Snapshot, own_host_only: bool) -> Self {
        let hosts = Arc::new(HostTable::new(&snapshot.hosts, snapshot.local_host.as_deref(), own_host_only));
        let len = hosts.len();
        let mut inventory = Self {
            used: hosts.pools.iter().map(|_| Arc::new(vec![0; len])).collect(),
            present: Arc::new(vec![0; len]),
            bound: std::iter::repeat_n(Arc::from([]), len).collect(),
            hosts,
            host_table: snapshot.hosts.clone(),
            local_host: snapshot.local_host.clone(),
            own_host_only,
            is_panic: snapshot.is_panic,
            ..Self::default()
        };
        let mut draft = NewOccurrences::default();
        inventory.follow_containers(snapshot, &mut Some(&mut draft));
        let finished = draft.into_iter().map(|(key, hosts)| (key, hosts.into_iter().collect()));
        inventory.occurrences = finished.collect();
        inventory
    }

    /// The inventory of a later snapshot; costs what changed, unless hosts came or went.
    #[must_use]
    pub fn succeeding(&self, snapshot: &Snapshot) -> Self {
        let mut next = Self { is_panic: snapshot.is_panic, ..self.clone() };
        if self.local_host != snapshot.local_host || changes(&self.host_table, &snapshot.hosts).next().is_some() {
            let hosts = HostTable::new(&snapshot.hosts, snapshot.local_host.as_deref(), self.own_host_only);
            if !hosts.same_layout(&self.hosts) {
                return Self::build(snapshot, self.own_host_only);
            }
            next.hosts = Arc::new(hosts);
            next.host_table = snapshot.hosts.clone();
            next.local_host.clone_from(&snapshot.local_host);
        }
        next.follow_containers(snapshot, &mut None);
        next
    }

    /// Whether the snapshot says nothing else.
    pub(crate) fn is_of(&self, snapshot: &Snapshot) -> bool {
        (&self.local_host, self.is_panic) == (&snapshot.local_host, snapshot.is_panic)
            && changes(&self.host_table, &snapshot.hosts).next().is_none()
            && changes(&self.containers, &snapshot.containers).next().is_none()
            && changes(&self.services, &snapshot.services).next().is_none()
    }

    /// All hosts.
    pub fn hosts(&self) -> &Arc<HostTable> {
        &self.hosts
    }

    /// Whether so few containers are healthy that their health is ignored.
    pub(crate) fn is_panic(&self) -> bool {
        self.is_panic
    }

    pub(crate) fn containers(&self) -> &Table<Container> {
        &self.containers
    }

    /// What containers use of a pool, by host.
    pub(crate) fn used(&self, pool: usize) -> &[i64] {
        self.used.get(pool).map_or(&[], |used| used)
    }

    /// How many containers there are on each host, running or not.
    pub(crate) fn present(&self) -> &[u32] {
        &self.present
    }

    /// The ports taken on a host.
    pub(crate) fn bound(&self, host: u32) -> &[Bound] {
        self.bound.get(host as usize).map_or(&[], |bound| bound)
    }

    /// Where something occurs.
    pub(crate) fn occurrences(&self, key: &Fingerprint) -> &[(u32, u32)] {
        self.occurrences.get(key).map_or(&[], |hosts| hosts)
    }

    /// What a container adds.
    pub(crate) fn account(&self, uuid: &str) -> Option<&Arc<Account>> {
        self.accounts.get(uuid)
    }

    /// The containers whose label says that they were placed under this name; any client can set that label.
    pub(crate) fn placed(&self, name: &str) -> &[Text] {
        self.placed.get(name).map_or(&[], |uuids| uuids)
    }

    /// The `stack/service` of a container by the service that names it.
    pub(crate) fn service_of(&self, uuid: &str) -> Option<Text> {
        self.services_of.get(uuid).cloned()
    }

    /// What the inventory was made of, as far as room goes.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            hosts: self.host_table.clone(),
            local_host: self.local_host.clone(),
            containers: self.containers.clone(),
            services: self.services.clone(),
            ..Snapshot::default()
        }
    }

    /// Hosts with a container whose label has this value, for labels without an index.
    pub(crate) fn scan_labels(&self, key: &str, value: &str) -> Vec<(u32, u32)> {
        let mut found = BTreeMap::new();
        for container in self.containers.values() {
            let has = container.labels().into_iter().flatten().filter_map(crate::place::hosts::label);
            let host =
                self.accounts.get(container.uuid()).filter(|account| account.visible).and_then(|account| account.host);
            if let Some(host) = host
                && has.into_iter().any(|(own, is)| own.eq_ignore_ascii_case(key) && is.eq_ignore_ascii_case(value))
            {
                *found.entry(host).or_insert(0) += 1;
            }
        }
        found.into_iter().collect()
    }

    fn follow_containers(&mut self, snapshot: &Snapshot, draft: &mut Option<&mut NewOccurrences>) {
        let mut moved = BTreeSet::new();
        let old_services = std::mem::replace(&mut self.services, snapshot.services.clone());
        for change in changes(&old_services, &snapshot.services) {
            let (old, new) = change.sides();
            for member in old.into_iter().flat_map(|service| service.members().iter()) {
                self.services_of.remove(member);
                moved.insert(member.clone());
            }
            for (service, member) in
                new.into_iter().flat_map(|service| service.members().iter().map(move |uuid| (service, uuid)))
            {
                self.services_of.insert(member.clone(), service_path(service));
                moved.insert(member.clone());
            }
        }
        let old_containers = std::mem::replace(&mut self.containers, snapshot.containers.clone());
        for change in changes(&old_containers, &snapshot.containers) {
            let (uuid, container) = match change {
                Change::Added(new) | Change::Changed { new, .. } => (new.uuid(), Some(new)),
                Change::Removed(old) => (old.uuid(), None),
            };
            moved.remove(uuid);
            self.account_for(uuid, container, draft);
        }
        for uuid in moved {
            self.account_for(&uuid, snapshot.containers.get(&uuid), draft);
        }
    }

    /// Replaces what the container added by what it adds now.
    fn account_for(
        &mut self,
        uuid: &Text,
        container: Option<&Arc<Container>>,
        draft: &mut Option<&mut NewOccurrences>,
    ) {
        let new = container.map(|container| Arc::new(Account::new(container, self)));
        let old = self.accounts.get(uuid).cloned();
        if old == new {
            return;
        }
        match (&old, &new) {
            (Some(old), Some(new)) if old.host == new.host && old.host.is_some() && draft.is_none() => {
                self.change(uuid, old, new);
            }
            _ => {
                if let Some(old) = &old {
                    self.apply(uuid, old, -1, draft);
                }
                if let Some(new) = &new {
                    self.apply(uuid, new, 1, draft);
                }
            }
        }
        match new {
            Some(new) => drop(self.accounts.insert(uuid.clone(), new)),
            None => drop(self.accounts.remove(uuid)),
        }
    }

    /// Replaces an account by another on the same host: what both have in common is not touched, since each table that
    /// is touched has to be copied for this inventory.
    fn change(&mut self, uuid: &Text, old: &Account, new: &Account) {
        if old.placement != new.placement {
            self.label(old, uuid, false);
            self.label(new, uuid, true);
        }
        let Some(host) = old.host else { return };
        let at = host as usize;
        for pool in 0..self.used.len() {
            let sum = |account: &Account| -> i64 {
                account.amounts.iter().filter(|(own, _)| *own == pool).map(|(_, amount)| amount).sum()
            };
            let more = sum(new) - sum(old);
            if more != 0 {
                Arc::make_mut(&mut self.used[pool])[at] += more;
            }
        }
        if old.bound != new.bound {
            let others = self.bound[at].iter().filter(|bound| bound.owner != *uuid).cloned();
            let bound = others.chain(new.bound.iter().cloned()).collect();
            self.bound.set(at, bound);
        }
        for key in old.keys.iter().filter(|key| new.keys.binary_search(key).is_err()) {
            self.count(*key, host, false);
        }
        for key in new.keys.iter().filter(|key| old.keys.binary_search(key).is_err()) {
            self.count(*key, host, true);
        }
    }

    /// Notes under which name a container says that it was placed.
    fn label(&mut self, account: &Account, uuid: &Text, there: bool) {
        let Some(name) = &account.placement else { return };
        let others = self.placed(name).iter().filter(|other| *other != uuid).cloned();
        let all: Arc<[Text]> = others.chain(there.then(|| uuid.clone())).collect();
        if all.is_empty() {
            self.placed.remove(name);
        } else {
            self.placed.insert(name.clone(), all);
        }
    }

    fn count(&mut self, key: Fingerprint, host: u32, more: bool) {
        let hosts = self.occurrences.get(&key).map_or(&[][..], |hosts| hosts);
        let mut changed = hosts.to_vec();
        count(&mut changed, host, more);
        if changed.is_empty() {
            self.occurrences.remove(&key);
        } else {
            self.occurrences.insert(key, changed.into());
        }
    }

    fn apply(&mut self, uuid: &Text, account: &Account, sign: i64, draft: &mut Option<&mut NewOccurrences>) {
        self.label(account, uuid, sign > 0);
        let Some(host) = account.host else { return };
        let at = host as usize;
        for (pool, amount) in &account.amounts {
            Arc::make_mut(&mut self.used[*pool])[at] += sign * amount;
        }
        let present = &mut Arc::make_mut(&mut self.present)[at];
        *present = present.saturating_add_signed(if sign > 0 { 1 } else { -1 });
        if !account.bound.is_empty() {
            let others = self.bound[at].iter().filter(|bound| bound.owner != *uuid).cloned();
            let own = account.bound.iter().filter(|_| sign > 0).cloned();
            let bound = others.chain(own).collect();
            self.bound.set(at, bound);
        }
        if let Some(draft) = draft {
            for key in &account.keys {
                *draft.entry(*key).or_default().entry(host).or_default() += 1;
            }
            return;
        }
        for key in &account.keys {
            self.count(*key, host, sign > 0);
        }
    }
}

/// Makes it one more or one less on `host`, in a list by host without zeros.
pub(crate) fn count(hosts: &mut Vec<(u32, u32)>, host: u32, more: bool) {
    match hosts.binary_search_by_key(&host, |(host, _)| *host) {
        Ok(at) if more => hosts[at].1 += 1,
        Ok(at) if hosts[at].1 > 1 => hosts[at].1 -= 1,
        Ok(at) => drop(hosts.remove(at)),
        Err(at) if more => hosts.insert(at, (host, 1)),
        Err(_) => {}
    }
}

fn service_path(service: &Service) -> Text {
    format!("{}/{}", service.stack_name().map_or("", |name| name), service.name().map_or("", |name| name)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::hosts::{INSTANCES_AT, MEMORY_AT};
    use crate::place::inventory::key::{Kind, key};
    use proptest::prelude::*;

    fn snapshot(json: &str) -> Snapshot {
        let objects: Vec<model::Map> = serde_json::from_str(json).unwrap();
        model::objects::read(objects).0
    }

    #[test]
    fn containers_use_what_they_reserve() {
        let inventory = Inventory::new(&snapshot(
            r#"[{"metadata_kind":"host","uuid":"h1","memory":100,"labels":{"io.berth.pool.gpu":"2"}},
                {"metadata_kind":"container","uuid":"c1","name":"a","host_uuid":"h1","state":"running","memory_reservation":30,
                 "ports":["80:8080/tcp"],"labels":{"io.berth.use.gpu":"1","io.rancher.stack_service.name":"Shop/Web"}},
                {"metadata_kind":"container","uuid":"c2","host_uuid":"h1","state":"stopped","memory_reservation":5,"ports":["81:81"]},
                {"metadata_kind":"container","uuid":"c3","host_uuid":"elsewhere","state":"running"}]"#,
        ));
        let gpu = inventory.hosts().pool("gpu").unwrap();
        let used: Vec<_> = [INSTANCES_AT, MEMORY_AT, gpu].map(|pool| inventory.used(pool)[0]).into();
        assert_eq!(used, [1, 35, 1]);
        assert_eq!(inventory.hosts().totals[gpu], [2]);
        assert_eq!(inventory.bound(0).len(), 1);
        assert_eq!(inventory.occurrences(&key(Kind::Service, &["shop/web"])), [(0, 1)]);
        assert_eq!(inventory.present(), [2]);
    }

    #[test]
    fn members_without_labels_count_for_their_service() {
        let with = |members: &str| {
            snapshot(&format!(
                r#"[{{"metadata_kind":"host","uuid":"h1"}},
                    {{"metadata_kind":"container","uuid":"c1","host_uuid":"h1","state":"running"}},
                    {{"metadata_kind":"service","uuid":"s1","name":"web","stack_name":"shop"}}{members}]"#
            ))
        };
        let link = r#",{"metadata_kind":"serviceContainerLink","service_uuid":"s1","service_name":"web","container_uuid":"c1"}"#;
        let web = key(Kind::Service, &["shop/web"]);
        let linked = Inventory::new(&with(link));
        assert_eq!(linked.occurrences(&web), [(0, 1)]);
        assert_eq!(linked.succeeding(&with("")).occurrences(&web), []);
    }

    fn any_snapshot() -> impl Strategy<Value = Snapshot> {
        let states = prop::sample::select(vec!["running", "stopped", "starting", "removed"]);
        let container = (0..6u8, 0..4u8, states, 0..3i64, 80..83u16, 0..3u8);
        let hosts = prop::collection::btree_set(0..3u8, 2..4);
        (hosts, prop::collection::vec(container, 0..8)).prop_map(|(hosts, containers)| {
            let hosts = hosts.iter().map(|host| format!(r#"{{"metadata_kind":"host","uuid":"h{host}","memory":9}}"#));
            let containers = containers.iter().map(|(uuid, host, state, memory, port, label)| {
                format!(
                    r#"{{"metadata_kind":"container","uuid":"c{uuid}","name":"n{uuid}","host_uuid":"h{host}","state":"{state}",
                        "memory_reservation":{memory},"ports":["{port}:80/tcp"],"labels":{{"l":"{label}","io.berth.placement":"p{label}"}}}}"#
                )
            });
            snapshot(&format!("[{}]", hosts.chain(containers).collect::<Vec<_>>().join(",")))
        })
    }

    fn sorted_bound(inventory: &Inventory, host: u32) -> Vec<String> {
        let mut bound: Vec<_> = inventory.bound(host).iter().map(|bound| format!("{bound:?}")).collect();
        bound.sort();
        bound
    }

    proptest! {
        #[test]
        fn following_changes_gives_what_building_anew_gives(snapshots in prop::collection::vec(any_snapshot(), 1..5)) {
            let mut followed = Inventory::new(&snapshots[0]);
            for snapshot in &snapshots {
                followed = followed.succeeding(snapshot);
                let new = Inventory::new(snapshot);
                prop_assert_eq!(&followed.used, &new.used);
                prop_assert_eq!(&followed.present, &new.present);
                prop_assert_eq!(&followed.occurrences, &new.occurrences);
                prop_assert_eq!(&followed.accounts, &new.accounts);
                for host in 0..u32::try_from(new.hosts.len()).unwrap() {
                    prop_assert_eq!(sorted_bound(&followed, host), sorted_bound(&new, host));
                }
            }
        }
    }

    #[test]
    fn a_scheduler_with_a_ledger_of_its_own_places_on_its_own_host_only() {
        let snapshot = |local: &str, state: &str| {
            let text = format!(
                r#"{{"host": "{local}", "hosts": [{{"name": "a", "state": "{state}"}}, {{"name": "b"}}, {{"name": "c"}}]}}"#
            );
            model::document::resolve_value(&serde_json::from_str(&text).unwrap()).unwrap().0
        };
        let eligible = |inventory: &Inventory| {
            let all = inventory.hosts().list.iter().filter(|facts| facts.refusal.is_none());
            all.map(|facts| facts.name.to_string()).collect::<Vec<_>>().concat()
        };
        let own = Inventory::of_own_host(&snapshot("b", "active"));
        assert_eq!(eligible(&own), "b");
        assert_eq!(eligible(&own.succeeding(&snapshot("a", "active"))), "a", "it stays so");
        assert_eq!(eligible(&own.succeeding(&snapshot("a", "inactive"))), "");
        let mut nowhere = snapshot("b", "active");
        nowhere.local_host = None;
        assert_eq!(eligible(&own.succeeding(&nowhere)), "");
        assert_eq!(eligible(&Inventory::new(&snapshot("b", "active"))).len(), 3);
    }
}
