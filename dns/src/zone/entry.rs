//! The entry of a name, an address or a uuid: its entity, and its records once a query has asked for them.
//!
//! Most names of a cluster are never asked for between two of its changes. So building a zone only finds out whose they
//! are; the records are made by the first question, and stay with the zones that follow until the entity changes.

use std::sync::{Arc, OnceLock};

use model::{ClientRule, Container, Service};

use super::members::{Claims, Ids, is_local};
use super::records::Making;
use super::{Links, Node, Scope, Zone};

/// The entry of a name.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(super) owner: Owner,
    node: OnceLock<Arc<Node>>,
}

/// Whose a name is.
#[derive(Clone, Debug)]
pub(super) enum Owner {
    /// Our own, or that of a file of answers: its records are there from the start.
    Zone,
    /// A service's.
    Service(Arc<Service>),
    /// A service without containers: the name has no records, and no other entity gets it.
    Reserved(Arc<Service>),
    /// The newest one's of these running containers.
    Containers(Claims),
}

impl Entry {
    /// A name with these records.
    pub(super) fn of_node(owner: Owner, node: Arc<Node>) -> Self {
        Self { owner, node: node.into() }
    }

    /// A name whose records are made when they are asked for.
    pub(super) fn of(owner: Owner) -> Self {
        Self { owner, node: OnceLock::new() }
    }

    /// Whether there is such a name.
    pub(super) fn exists(&self) -> bool {
        !matches!(self.owner, Owner::Reserved(_))
    }

    /// The service whose name it is.
    pub(super) fn service(&self) -> Option<&Arc<Service>> {
        match &self.owner {
            Owner::Service(service) | Owner::Reserved(service) => Some(service),
            Owner::Zone | Owner::Containers(_) => None,
        }
    }

    /// The records, built by the first query.
    pub(super) fn node<'z>(&'z self, zone: &Zone) -> Option<&'z Arc<Node>> {
        if let Some(node) = self.node.get() {
            return Some(node);
        }
        self.exists().then(|| self.node.get_or_init(|| Arc::new(self.owner.node(&mut Making::new(zone)))))
    }
}

impl Owner {
    /// The records of a name.
    fn node(&self, making: &mut Making<'_>) -> Node {
        match self {
            Self::Service(service) | Self::Reserved(service) => making.service_node(service).unwrap_or_default(),
            Self::Containers(claims) => making.container_node(claims),
            Self::Zone => Node::default(),
        }
    }
}

/// What is known by the uuid of a container.
#[derive(Clone, Debug, Default)]
pub(super) struct Member {
    /// The container; services may name one that is not there yet.
    pub(super) container: Option<Arc<Container>>,
    /// Ids of the services that it belongs to.
    pub(super) services: Ids,
    /// What links to it lead to.
    node: OnceLock<Arc<Node>>,
}

impl Member {
    /// The same services with this container, or without one.
    pub(super) fn with(&self, container: Option<Arc<Container>>) -> Self {
        Self { container, services: self.services.clone(), node: OnceLock::new() }
    }

    /// The target of links to it, independent of its name.
    pub(super) fn node<'z>(&'z self, zone: &Zone) -> Option<&'z Arc<Node>> {
        if let Some(node) = self.node.get() {
            return Some(node);
        }
        let local = |container: &&Arc<Container>| {
            container.runs() && is_local(zone.snapshot.environment_uuid(), container.environment_uuid())
        };
        let container = self.container.as_ref().filter(local)?;
        Some(self.node.get_or_init(|| Arc::new(Making::new(zone).members_node(&[container]))))
    }
}

/// What is known about an address.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The containers that have it.
    pub(super) claims: Claims,
    /// The name that it leads back to.
    pointer: OnceLock<Option<Arc<Node>>>,
    /// What is seen from there.
    scope: OnceLock<Option<Arc<Scope>>>,
}

impl Place {
    /// The address of these containers.
    pub(super) fn of(claims: Claims) -> Self {
        Self { claims, pointer: OnceLock::new(), scope: OnceLock::new() }
    }

    /// The name that it leads back to.
    pub(super) fn pointer<'z>(&'z self, zone: &Zone) -> Option<&'z Arc<Node>> {
        let make = || Some(Arc::new(Making::new(zone).pointer(&self.claims)?));
        self.pointer.get_or_init(make).as_ref()
    }

    /// What is seen from there.
    pub(super) fn scope<'z>(&'z self, zone: &Zone) -> Option<&'z Arc<Scope>> {
        let make = || Some(Arc::new(Making::new(zone).scope(self.client(zone)?)));
        self.scope.get_or_init(make).as_ref()
    }

    /// The container that asks from there.
    pub(super) fn client(&self, zone: &Zone) -> Option<&Arc<Container>> {
        let in_service = |container: &Container| !zone.member_of(container.uuid()).is_empty();
        zone.snapshot.client(self.claims.iter(), &ClientRule { in_service, proxied: false, guests: false })
    }
}

/// A service with links.
#[derive(Clone, Debug)]
pub(super) struct Linking {
    pub(super) service: Arc<Service>,
    links: OnceLock<Arc<Links>>,
}

impl Linking {
    /// The links of this service.
    pub(super) fn of(service: Arc<Service>) -> Self {
        Self { service, links: OnceLock::new() }
    }

    /// The names that its containers have by them.
    pub(super) fn links(&self, zone: &Zone) -> &Arc<Links> {
        self.links.get_or_init(|| Arc::new(Making::new(zone).service_links(&self.service)))
    }
}
