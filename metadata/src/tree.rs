//! The view: every version's tree for every client, as it follows from one snapshot.
//!
//! Nothing of it is laid out in memory. A place in a tree is a [`Node`], which looks at the snapshot and
//! applies on the way what its version changes ([`crate::tree::entities`]). What is stored beside the snapshot are
//! orders and indexes, in persistent maps: the tree after a change shares with the one before what did not
//! change.

pub(crate) mod entities;
pub(crate) mod hits;
pub(crate) mod lower;
pub(crate) mod node;
pub(crate) mod ordered;
pub(crate) mod version;

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

use model::answers::{Clients, DEFAULT_CLIENT};
use model::{ClientRule, Container, Entity, Host, Network, Service, Snapshot, Stack, Text};

use crate::config::ServiceTokens;
use crate::tree::hits::{Hits, Index};
use crate::tree::node::{Branch, Node};
use crate::tree::ordered::{Ordered, order};
use crate::tree::version::{LATEST, Version};

/// Everything that clients can ask for, as of one snapshot.
#[derive(Clone)]
pub struct Tree {
    /// `None` until there were data for the first time.
    snapshot: Option<Arc<Snapshot>>,
    version: Text,
    containers: Ordered<Container>,
    services: Ordered<Service>,
    stacks: Ordered<Stack>,
    hosts: Ordered<Host>,
    networks: Ordered<Network>,
    /// Networks in the order of the source.
    network_order: Arc<[Arc<Network>]>,
    /// Containers by the addresses that stand for them here, in the order of their uuids.
    addresses: Index<IpAddr, Arc<Container>>,
    /// Ids of services by the uuids of their containers.
    owners: Index<Text, Text>,
    /// Services by the uuid of their stack, in order.
    stacked: Index<Text, Arc<Service>>,
    /// The trees of the other environments.
    externals: Arc<[Arc<Self>]>,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    /// What a trusted proxy calls it; `None` when there is none, so that its address names it.
    pub(crate) name: Option<Text>,
    /// The address, when it is known or the name is one.
    pub(crate) address: Option<IpAddr>,
    /// Whether a proxy stands before the service, see [`Snapshot::client`].
    pub(crate) proxied: bool,
    /// Which tokens of services it is shown.
    pub(crate) tokens: ServiceTokens,
    /// Whether it connects itself to a service whose source is the engine of this host: then it is a container of this
    /// host, which may have been started just now, and no other host's container of that address.
    pub(crate) awaited: bool,
    /// The id that its engine has given it, when that is known from elsewhere than the address.
    pub(crate) engine_id: Option<Text>,
}

/// Why there is no tree for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// No such version.
    Version,
    /// The version is there, but nothing under the path.
    Value,
}

/// From where a place in the tree is seen.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'t> {
    pub(crate) tree: &'t Tree,
    pub(crate) snapshot: &'t Snapshot,
    pub(crate) version: Version,
    /// The container that asks, when it is one.
    pub(crate) client: Option<&'t Container>,
    /// Which tokens of services are shown.
    pub(crate) tokens: ServiceTokens,
    /// Whether the tree is shown as one of another tree's `environments`.
    pub(crate) external: bool,
}

impl Tree {
    /// The tree before there are any data.
    pub fn empty() -> Self {
        Self {
            snapshot: None,
            version: Text::from(""),
            containers: Ordered::default(),
            services: Ordered::default(),
            stacks: Ordered::default(),
            hosts: Ordered::default(),
            networks: Ordered::default(),
            network_order: Arc::new([]),
            addresses: Index::new(),
            owners: Index::new(),
            stacked: Index::new(),
            externals: Arc::new([]),
        }
    }

    /// The tree of this snapshot, sharing with `self` what did not change; `None` when nothing did.
    #[must_use]
    pub fn next(&self, snapshot: &Arc<Snapshot>) -> Option<Self> {
        let next = self.following(snapshot);
        (self.snapshot.is_none() || self.version != next.version).then_some(next)
    }

    /// Whether there were data yet.
    pub fn is_empty(&self) -> bool {
        self.snapshot.is_none()
    }

    /// Stands for the content: what clients read as `version`. Empty before there are data.
    pub fn version(&self) -> &str {
        &self.version
    }

    fn following(&self, snapshot: &Arc<Snapshot>) -> Self {
        let mut tree = self.clone();
        let nothing = Snapshot::default();
        let old = self.snapshot.as_deref().unwrap_or(&nothing);
        let rebuilt = tree.containers.follow(&old.containers, &snapshot.containers, |change| {
            let (before, after) = change.sides();
            for (container, address) in before.into_iter().flat_map(|container| asking_from(old, container)) {
                hits::remove(&mut tree.addresses, &address, |other| other.uuid() == container.uuid());
            }
            for (container, address) in after.into_iter().flat_map(|container| asking_from(snapshot, container)) {
                hits::insert(&mut tree.addresses, address, container.clone(), |a, b| a.uuid().cmp(b.uuid()));
            }
        });
        let local = |snapshot: &Snapshot| {
            let host = snapshot.local_host.as_ref().map(|host| host.uuid().clone());
            // A container that names no host is local while there is one host.
            host.map(|host| (host, snapshot.hosts.len() <= 1))
        };
        if rebuilt || local(old) != local(snapshot) {
            let addressed = tree.containers.iter().flat_map(|container| asking_from(snapshot, container));
            let addressed = addressed.map(|(container, address)| (address, container.clone()));
            tree.addresses = hits::index(addressed, |a, b| a.uuid().cmp(b.uuid()));
        }
        let rebuilt = tree.services.follow(&old.services, &snapshot.services, |change| {
            let (old, new) = change.sides();
            own(&mut tree.owners, old, new);
            if let Some((service, stack)) = old.and_then(|old| Some((old, old.stack_uuid()?))) {
                hits::remove(&mut tree.stacked, stack, |other| other.id() == service.id());
            }
            if let Some((service, stack)) = new.and_then(|new| Some((new, new.stack_uuid()?))) {
                hits::insert(&mut tree.stacked, stack.clone(), service.clone(), |a, b| order(&**a, &**b));
            }
        });
        if rebuilt {
            let stacked =
                tree.services.iter().filter_map(|service| Some((service.stack_uuid()?.clone(), service.clone())));
            tree.stacked = hits::index(stacked, |_, _| Ordering::Equal);
            let owned = snapshot.services.values().flat_map(|service| {
                let mut members = service.members().to_vec();
                members.sort_unstable();
                members.dedup();
                members.into_iter().map(|container| (container, service.id().clone()))
            });
            tree.owners = hits::index(owned, Ord::cmp);
        }
        tree.stacks.follow(&old.stacks, &snapshot.stacks, |_| {});
        tree.hosts.follow(&old.hosts, &snapshot.hosts, |_| {});
        let mut networks_changed = false;
        let rebuilt = tree.networks.follow(&old.networks, &snapshot.networks, |_| networks_changed = true);
        if rebuilt || networks_changed {
            let mut networks: Vec<_> = snapshot.networks.values().cloned().collect();
            networks.sort_by_key(|network| network.position());
            tree.network_order = networks.into();
        }
        let external = |(index, external): (usize, &Arc<Snapshot>)| {
            let known = self.externals.get(index);
            match known {
                Some(known) if known.snapshot.as_ref().is_some_and(|own| Arc::ptr_eq(own, external)) => known.clone(),
                Some(known) => Arc::new(known.following(external)),
                None => Arc::new(Self::empty().following(external)),
            }
        };
        tree.externals = snapshot.externals.iter().enumerate().map(external).collect();
        tree.version = snapshot.fingerprint().to_string().into();
        tree.snapshot = Some(snapshot.clone());
        tree
    }

    /// The names of the versions, `latest` among them, in order.
    pub(crate) fn version_names(&self) -> Vec<&str> {
        let mut names: Vec<_> = match &self.snapshot {
            None => Vec::new(),
            Some(snapshot) => match &snapshot.answers {
                Some(answers) => answers.versions().keys().map(|name| &**name).collect(),
                None => Version::NAMED.map(|(name, _)| name).to_vec(),
            },
        };
        if let Err(at) = names.binary_search(&LATEST) {
            names.insert(at, LATEST);
        }
        names
    }

    /// The tree of the version that a client calls by `name`, as this client sees it.
    pub(crate) fn root(&self, name: &str, client: &Client) -> Result<Node<'_>, Missing> {
        let Some(snapshot) = self.snapshot.as_deref() else {
            return Err(if name == LATEST { Missing::Value } else { Missing::Version });
        };
        if let Some(answers) = &snapshot.answers {
            let versions = answers.versions();
            let newest = || (name == LATEST).then(|| versions.values().next_back()).flatten();
            let clients = versions.get(name).or_else(newest).ok_or(Missing::Version)?;
            return answer(clients, client).ok_or(Missing::Value);
        }
        let version = Version::named(name).ok_or(Missing::Version)?;
        let (client, tokens) = (self.container_at(client), client.tokens);
        Ok(Node::Map(Branch::Root(Scope { tree: self, snapshot, version, client, tokens, external: false })))
    }

    /// The container that asks; `None` if no container has the address.
    fn container_at(&self, client: &Client) -> Option<&Container> {
        let snapshot = self.snapshot.as_ref()?;
        if let Some(id) = &client.engine_id {
            let called = |container: &&Arc<Container>| {
                container.fields().get("external_id").and_then(model::Value::as_str) == Some(&**id)
                    && snapshot.is_local(container)
            };
            return self.containers.iter().find(called).map(|container| &**container);
        }
        let candidates = self.addresses.get(&canonical(client.address?))?.as_slice();
        let in_service = |container: &Container| self.owners.contains_key(container.uuid());
        let rule = ClientRule { in_service, proxied: client.proxied, guests: !client.awaited };
        Some(snapshot.client(candidates, &rule)?)
    }

    /// The snapshot that it is of.
    pub(crate) fn snapshot(&self) -> Option<&Arc<Snapshot>> {
        self.snapshot.as_ref()
    }

    /// The service of the container that asks; of several the first in order.
    pub(crate) fn service_of(&self, client: &Client) -> Option<&Arc<Service>> {
        let ids = self.owners.get(self.container_at(client)?.uuid())?.as_slice();
        let services = ids.iter().filter_map(|id| self.snapshot.as_ref()?.services.get(id));
        services.min_by(|a, b| order(&***a, &***b))
    }

    /// Whether it is known which container a client is.
    pub(crate) fn knows(&self, client: &Client) -> bool {
        self.container_at(client).is_some()
    }

    /// Containers in order and by name.
    pub(crate) fn containers(&self) -> &Ordered<Container> {
        &self.containers
    }

    /// Services in order and by name.
    pub(crate) fn services(&self) -> &Ordered<Service> {
        &self.services
    }

    /// Stacks in order and by name.
    pub(crate) fn stacks(&self) -> &Ordered<Stack> {
        &self.stacks
    }

    /// Hosts in order and by name.
    pub(crate) fn hosts(&self) -> &Ordered<Host> {
        &self.hosts
    }

    /// Networks in the order of the source.
    pub(crate) fn networks(&self) -> &[Arc<Network>] {
        &self.network_order
    }

    /// The services of a stack, in order.
    pub(crate) fn services_of(&self, stack: &str) -> &[Arc<Service>] {
        self.stacked.get(stack).map_or(&[], Hits::as_slice)
    }

    /// The trees of the other environments.
    pub(crate) fn externals(&self) -> &[Arc<Self>] {
        &self.externals
    }
}

impl Default for Tree {
    fn default() -> Self {
        Self::empty()
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree").field("version", &self.version).finish_non_exhaustive()
    }
}

impl<'t> Scope<'t> {
    /// Another environment's tree, seen from here.
    pub(crate) fn environment(&self, tree: &'t Tree) -> Option<Self> {
        let snapshot = tree.snapshot.as_deref()?;
        Some(Self { tree, snapshot, version: Version::V20160729, client: None, external: true, ..*self })
    }

    /// The service a container belongs to; of several the first in order.
    pub(crate) fn owner(&self, container: &Container) -> Option<&'t Service> {
        let ids = self.tree.owners.get(container.uuid())?.as_slice();
        let services = ids.iter().filter_map(|id| self.snapshot.services.get(id));
        services.min_by(|a, b| order(&***a, &***b)).map(|service| &**service)
    }

    /// The containers of a service, in the order of its links to them.
    pub(crate) fn members(&self, service: &'t Service) -> impl Iterator<Item = &'t Container> + use<'t> {
        let snapshot = self.snapshot;
        service.members().iter().filter_map(|uuid| snapshot.containers.get(uuid)).map(|container| &**container)
    }

    /// The launch configurations of the service with this uuid, in order.
    pub(crate) fn launch_configurations(&self, uuid: &str) -> Vec<&'t Arc<Service>> {
        // The table's ids are the uuid, `_` and the name, in lower case.
        let prefix = format!("{}_", uuid.to_lowercase());
        let after = self.snapshot.services.range::<_, str>((Bound::Included(&*prefix), Bound::Unbounded));
        let mut found: Vec<_> = after
            .take_while(|(id, _)| id.starts_with(&prefix))
            .map(|(_, service)| service)
            .filter(|service| &**service.uuid() == uuid)
            .collect();
        found.sort_by(|a, b| order(&***a, &***b));
        found
    }
}

impl Client {
    /// A client known by the address it connects from.
    pub(crate) fn at(address: IpAddr) -> Self {
        let address = Some(canonical(address));
        Self { name: None, address, proxied: false, tokens: ServiceTokens::default(), awaited: false, engine_id: None }
    }

    /// A client named by a trusted proxy.
    pub(crate) fn named(name: &str) -> Self {
        Self {
            name: Some(name.into()),
            address: name.parse().ok(),
            proxied: true,
            tokens: ServiceTokens::default(),
            awaited: false,
            engine_id: None,
        }
    }
}

/// An IPv4 client on an IPv6 socket is the IPv4 client.
fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// The answers for this client, completed by those for all.
fn answer<'t>(clients: &'t Clients, client: &Client) -> Option<Node<'t>> {
    let default = clients.get(DEFAULT_CLIENT);
    let own = match (&client.name, client.address) {
        (Some(name), _) => clients.get(name),
        (None, Some(address)) => clients.get(&*address.to_string()),
        (None, None) => None,
    };
    own.or(default)?;
    Some(Node::Map(Branch::Answers { own, default }))
}

/// Brings the owners of containers up to date with a service's change.
fn own(owners: &mut Index<Text, Text>, old: Option<&Arc<Service>>, new: Option<&Arc<Service>>) {
    let members = |service: Option<&Arc<Service>>| service.map(|service| service.members().clone()).unwrap_or_default();
    let (before, after) = (members(old), members(new));
    if before == after {
        return;
    }
    let known: HashSet<&Text> = before.iter().collect();
    let kept: HashSet<&Text> = after.iter().collect();
    if let Some(service) = old {
        for container in known.difference(&kept) {
            hits::remove(owners, container, |id| id == service.id());
        }
    }
    if let Some(service) = new {
        for container in kept.difference(&known) {
            hits::insert(owners, Text::clone(container), service.id().clone(), Ord::cmp);
        }
    }
}

/// A container with each of the addresses that it may ask from.
fn asking_from<'c>(
    snapshot: &Snapshot,
    container: &'c Arc<Container>,
) -> impl Iterator<Item = (&'c Arc<Container>, IpAddr)> + use<'c> {
    snapshot.standing_addresses(container).map(move |address| (container, canonical(address)))
}

#[cfg(test)]
mod tests;
