//! The entities of a cluster: containers, services, stacks, hosts and networks.
//!
//! An entity is the object as the predecessor's server wrote it (spec: one JSON object per entity,
//! told apart by `metadata_kind`), kept field by field so that nothing a client may ask for is lost,
//! together with what every service needs at hand already parsed. The object's helpers on the wire
//! (`serviceContainerLink`, `serviceLink`, `containerLink`) are folded into the entity they belong to,
//! so that a change of a link is a change of one entity.

use std::net::IpAddr;
use std::sync::Arc;

use crate::fingerprint::Fingerprint;
use crate::value::{Map, Text, Value};

/// What all entities have in common.
pub trait Entity: PartialEq + Sized {
    /// The `metadata_kind` on the wire.
    const KIND: &'static str;

    /// What no other entity of the kind has.
    fn id(&self) -> &Text;

    /// The object of the entity, as the source gave it, without its helpers.
    fn fields(&self) -> &Map;

    /// Stands for the whole content of the entity.
    fn fingerprint(&self) -> Fingerprint;

    /// The entity's name, when it has one.
    fn name(&self) -> Option<&Text> {
        self.fields().text("name")
    }
}

/// A container, running or not.
#[derive(Clone, Debug)]
pub struct Container {
    fields: Map,
    uuid: Text,
    primary_ip: Option<IpAddr>,
    create_index: i64,
    links: Map,
    fingerprint: Fingerprint,
}

impl Container {
    /// A container of this object and these links (name to the uuid of the container meant, or null).
    ///
    /// `None` when the object has no uuid.
    pub fn new(fields: Map, links: Map) -> Option<Self> {
        let uuid = fields.text("uuid").filter(|uuid| !uuid.is_empty())?.clone();
        let primary_ip = fields.text("primary_ip").and_then(|text| text.parse().ok());
        let create_index = fields.int("create_index").unwrap_or_default();
        let fingerprint = Fingerprint::of(&(Self::KIND, &fields, &links));
        Some(Self { fields, uuid, primary_ip, create_index, links, fingerprint })
    }

    /// The container's uuid.
    pub fn uuid(&self) -> &Text {
        &self.uuid
    }

    /// Its main address; `None` while it has none, and when what the source says is no address.
    pub fn primary_ip(&self) -> Option<IpAddr> {
        self.primary_ip
    }

    /// The order in which containers were made.
    pub fn create_index(&self) -> i64 {
        self.create_index
    }

    /// Link names, to the uuid of the container meant or null.
    pub fn links(&self) -> &Map {
        &self.links
    }

    /// The uuid of the host it runs on.
    pub fn host_uuid(&self) -> Option<&Text> {
        self.fields.text("host_uuid")
    }

    /// Its state as on the wire (`running`, `stopped`, …); empty when unknown.
    pub fn state(&self) -> &str {
        self.fields.text("state").map_or("", |state| state)
    }

    /// Its health as on the wire; `None` when nothing checks it.
    pub fn health_state(&self) -> Option<&str> {
        self.fields.text("health_state").map(|state| &**state).filter(|state| !state.is_empty())
    }

    /// The uuid of the container whose network it shares.
    pub fn network_from(&self) -> Option<&Text> {
        self.fields.text("network_from_container_uuid").filter(|uuid| !uuid.is_empty())
    }

    /// Its labels, as the source gave them.
    pub fn labels(&self) -> Option<&Map> {
        self.fields.map("labels")
    }

    /// The uuid of the environment it belongs to.
    pub fn environment_uuid(&self) -> Option<&Text> {
        self.fields.text("environment_uuid")
    }
}

/// A service: one launch configuration; a sidekick is a service of its own with its primary's uuid.
#[derive(Clone, Debug)]
pub struct Service {
    fields: Map,
    uuid: Text,
    id: Text,
    members: Arc<[Text]>,
    links: Map,
    fingerprint: Fingerprint,
}

impl Service {
    /// A service of this object, the uuids of its containers in link order, and its links
    /// (`stack/service` to alias).
    ///
    /// `None` when the object has no uuid or no name.
    pub fn new(fields: Map, members: Arc<[Text]>, links: Map) -> Option<Self> {
        let uuid = fields.text("uuid").filter(|uuid| !uuid.is_empty())?.clone();
        let id = Self::id_of(&uuid, fields.text("name")?);
        let fingerprint = Fingerprint::of(&(Self::KIND, &fields, &members, &links));
        Some(Self { fields, uuid, id, members, links, fingerprint })
    }

    /// The id of the launch configuration `name` of the service `uuid`.
    ///
    /// Names of launch configurations differ by more than case (predecessor: lower-cased `uuid_name`).
    pub fn id_of(uuid: &str, name: &str) -> Text {
        format!("{uuid}_{name}").to_lowercase().into()
    }

    /// The service's uuid, the same for all its launch configurations.
    pub fn uuid(&self) -> &Text {
        &self.uuid
    }

    /// The uuids of its containers.
    pub fn members(&self) -> &Arc<[Text]> {
        &self.members
    }

    /// Links, `stack/service` to alias.
    pub fn links(&self) -> &Map {
        &self.links
    }

    /// Its kind as on the wire: `service`, `loadBalancerService`, `externalService`, `dnsService`, …
    pub fn kind(&self) -> &str {
        self.fields.text("kind").map_or("", |kind| kind)
    }

    /// The name of its stack.
    pub fn stack_name(&self) -> Option<&Text> {
        self.fields.text("stack_name")
    }

    /// The uuid of its stack.
    pub fn stack_uuid(&self) -> Option<&Text> {
        self.fields.text("stack_uuid")
    }

    /// The name of the service whose sidekick it is; its own name when it is no sidekick.
    pub fn primary_name(&self) -> Option<&Text> {
        self.fields.text("primary_service_name").filter(|name| !name.is_empty()).or_else(|| self.name())
    }

    /// Whether it is a sidekick of another launch configuration.
    pub fn is_sidekick(&self) -> bool {
        let (own, primary) = (self.name(), self.primary_name());
        own.zip(primary).is_some_and(|(own, primary)| !own.eq_ignore_ascii_case(primary))
    }

    /// Its labels, as the source gave them.
    pub fn labels(&self) -> Option<&Map> {
        self.fields.map("labels")
    }

    /// The uuid of the environment it belongs to.
    pub fn environment_uuid(&self) -> Option<&Text> {
        self.fields.text("environment_uuid")
    }
}

/// What every entity says of itself; `$id` is the field that no other entity of the kind has.
macro_rules! entity {
    ($name:ident, $kind:literal, $id:ident) => {
        impl Entity for $name {
            const KIND: &'static str = $kind;

            fn id(&self) -> &Text {
                &self.$id
            }

            fn fields(&self) -> &Map {
                &self.fields
            }

            fn fingerprint(&self) -> Fingerprint {
                self.fingerprint
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.fingerprint == other.fingerprint
            }
        }

        impl Eq for $name {}
    };
}

entity!(Container, "container", uuid);
entity!(Service, "service", id);

macro_rules! plain_entity {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            fields: Map,
            uuid: Text,
            position: u32,
            fingerprint: Fingerprint,
        }

        impl $name {
            /// An entity of this object; `None` when the object has no uuid.
            ///
            /// `position` is its place among its kind where the source's order is part of its content, otherwise 0.
            pub fn new(fields: Map, position: u32) -> Option<Self> {
                let uuid = fields.text("uuid").filter(|uuid| !uuid.is_empty())?.clone();
                let fingerprint = Fingerprint::of(&($kind, &fields, position));
                Some(Self { fields, uuid, position, fingerprint })
            }

            /// The entity's uuid.
            pub fn uuid(&self) -> &Text {
                &self.uuid
            }

            /// Its place among its kind where the source's order counts (networks), otherwise 0.
            pub fn position(&self) -> u32 {
                self.position
            }

            /// The uuid of the environment it belongs to.
            pub fn environment_uuid(&self) -> Option<&Text> {
                self.fields.text("environment_uuid")
            }
        }

        entity!($name, $kind, uuid);
    };
}

plain_entity! {
    /// A stack: services under one name.
    Stack, "stack"
}
plain_entity! {
    /// A container host.
    Host, "host"
}
plain_entity! {
    /// A network that containers are on.
    Network, "network"
}

impl Host {
    /// Its labels, as the source gave them.
    pub fn labels(&self) -> Option<&Map> {
        self.fields.map("labels")
    }

    /// Its state as on the wire (`active`, `inactive`, …); empty when unknown.
    pub fn state(&self) -> &str {
        self.fields.text("state").map_or("", |state| state)
    }
}

/// The texts in a list field; elements that are no text are passed over.
pub fn texts<'a>(fields: &'a Map, key: &str) -> impl Iterator<Item = &'a Text> {
    fields.list(key).iter().filter_map(Value::as_text)
}
