//! The entities of a cluster: containers, services, stacks, hosts and networks.
//!
//! An entity is the object as the predecessor's server wrote it (spec: one JSON object per entity,
//! distinguished by `metadata_kind`), stored field by field so that nothing a client may ask for is lost,
//! together with what every service needs at hand already parsed. The object's helpers on the wire
//! (`serviceContainerLink`, `serviceLink`, `containerLink`) are folded into the entity they belong to,
//! so that a change of a link is a change of one entity.

use std::net::IpAddr;
use std::sync::Arc;

use crate::fingerprint::Fingerprint;
use crate::fingerprint::content::of_map;
use crate::value::{Map, Text, Value};

/// Field of a container: those of its addresses that other hosts reach. The predecessor had no such field, so that it is not
/// shown on the wire.
pub const ROUTED_IPS: &str = "routed_ips";

/// Separates a uuid that is another's already from the host that says it. No uuid of a host's own has it.
pub const MARK: char = '@';

/// Field of a stack or service that exists by labels of containers alone, not shown on the wire either.
pub const FROM_LABELS: &str = "from_labels";

/// Field of a service that is an alias by the word of hosts: for each link (`stack/service`) the uuids of the hosts whose containers
/// it leads to. Not shown on the wire.
pub const LINK_HOSTS: &str = "hosts_of_links";

/// Whether a container in this state runs or is about to; a source that reports no states has only running ones.
pub fn is_running_state(state: &str) -> bool {
    matches!(state, "" | "running" | "starting" | "updating-running")
}

/// Whether this `health_state` says that a container is well.
pub fn is_healthy_state(state: &str) -> bool {
    matches!(state, "healthy" | "updating-healthy")
}

/// Whether this `health_state` says that a container is not well; one that is initializing is neither.
pub fn is_unhealthy_state(state: &str) -> bool {
    matches!(state, "unhealthy" | "updating-unhealthy")
}

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
    fn name(&self) -> Option<&Text>;

    /// The host of a container, by its uuid, and the verdict about its health; other entities have none.
    fn verdict(&self) -> Option<(Option<&Text>, &str)> {
        None
    }

    /// Whether a stack exists by labels of containers alone, since no document and no server of the predecessor names it; or
    /// whether a service with a dot in its name does, in a stack that a document names.
    fn is_from_labels(&self) -> bool {
        self.fields().get(FROM_LABELS).and_then(Value::as_bool).unwrap_or_default()
    }
}

/// The uuid by which all hosts know the container that an engine calls `id`.
pub fn engine_uuid(id: &str) -> Text {
    Fingerprint::of(&("engine container", id)).to_string().into()
}

/// A container, running or not.
#[derive(Clone, Debug)]
pub struct Container {
    fields: Map,
    uuid: Text,
    name: Option<Text>,
    primary_ip: Option<IpAddr>,
    other_ips: Box<[IpAddr]>,
    create_index: i64,
    /// As its state says, which is asked for often.
    runs: bool,
    state: Option<Text>,
    health_state: Option<Text>,
    host_uuid: Option<Text>,
    network_from: Option<Text>,
    environment_uuid: Option<Text>,
    routed_ips: Option<Box<[IpAddr]>>,
    links: Map,
    fingerprint: Fingerprint,
}

impl Container {
    /// A container of this object and these links (name to the uuid of the container meant, or null).
    ///
    /// `None` when the object has no uuid.
    pub fn new(fields: Map, links: Map) -> Option<Self> {
        let of_fields = of_map(&fields);
        let mut container = Self::alone(fields, of_fields)?;
        container.link(links, of_fields);
        Some(container)
    }

    /// A container of this object, whose fingerprint is given, without links.
    pub(crate) fn alone(fields: Map, of_fields: Fingerprint) -> Option<Self> {
        let [
            create_index,
            environment_uuid,
            health_state,
            host_uuid,
            ips,
            name,
            network_from,
            primary_ip,
            routed_ips,
            state,
            uuid,
        ] = fields.pick([
            "create_index",
            "environment_uuid",
            "health_state",
            "host_uuid",
            "ips",
            "name",
            "network_from_container_uuid",
            "primary_ip",
            ROUTED_IPS,
            "state",
            "uuid",
        ]);
        let primary_ip = primary_ip.and_then(Value::as_text);
        let others = ips.and_then(Value::as_list).unwrap_or_default().iter().filter_map(Value::as_text);
        let others = others.filter(|text| Some(*text) != primary_ip).filter_map(|text| text.parse().ok());
        let routed = |list: &[Value]| list.iter().filter_map(|ip| ip.as_text()?.parse().ok()).collect();
        let links = Map::default();
        let fingerprint = Self::fingerprint_of(of_fields, &links);
        Some(Self {
            routed_ips: routed_ips.and_then(Value::as_list).map(routed),
            uuid: filled(uuid)?,
            name: text(name),
            primary_ip: primary_ip.and_then(|text| text.parse().ok()),
            other_ips: others.collect(),
            create_index: create_index.and_then(Value::as_int).unwrap_or_default(),
            runs: is_running_state(state.and_then(Value::as_text).map_or("", |state| state)),
            state: filled(state),
            health_state: filled(health_state),
            host_uuid: text(host_uuid),
            network_from: filled(network_from),
            environment_uuid: text(environment_uuid),
            links,
            fingerprint,
            fields,
        })
    }

    /// Gives it its links.
    pub(crate) fn link(&mut self, links: Map, of_fields: Fingerprint) {
        if !links.is_empty() {
            self.fingerprint = Self::fingerprint_of(of_fields, &links);
            self.links = links;
        }
    }

    fn fingerprint_of(of_fields: Fingerprint, links: &Map) -> Fingerprint {
        Fingerprint::of(&(Self::KIND, of_fields, of_map(links)))
    }

    /// The container's uuid.
    pub fn uuid(&self) -> &Text {
        &self.uuid
    }

    /// Its main address; `None` while it has none, and when what the source says is no address.
    pub fn primary_ip(&self) -> Option<IpAddr> {
        self.primary_ip
    }

    /// Its addresses besides the main one; what is no address is passed over.
    pub(crate) fn other_ips(&self) -> &[IpAddr] {
        &self.other_ips
    }

    /// Those of its addresses that other hosts reach, when its host says so; all of them otherwise.
    pub fn routed_ips(&self) -> Option<&[IpAddr]> {
        self.routed_ips.as_deref()
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
        self.host_uuid.as_ref()
    }

    /// Its state as on the wire (`running`, `stopped`, …); empty when unknown.
    pub fn state(&self) -> &str {
        self.state.as_deref().unwrap_or_default()
    }

    /// Whether it runs or is about to; a source that reports no states has only running ones.
    pub fn runs(&self) -> bool {
        self.runs
    }

    /// Its health as on the wire; `None` when nothing checks it.
    pub fn health_state(&self) -> Option<&str> {
        self.health_state.as_deref()
    }

    /// The uuid of the container whose network it shares.
    pub fn network_from(&self) -> Option<&Text> {
        self.network_from.as_ref()
    }

    /// Its labels, as the source gave them.
    pub fn labels(&self) -> Option<&Map> {
        self.fields.map("labels")
    }

    /// The uuid of the environment it belongs to.
    pub fn environment_uuid(&self) -> Option<&Text> {
        self.environment_uuid.as_ref()
    }
}

/// A service: one launch configuration; a sidekick is a service of its own with its primary's uuid.
#[derive(Clone, Debug)]
pub struct Service {
    fields: Map,
    uuid: Text,
    id: Text,
    name: Text,
    kind: Option<Text>,
    stack_name: Option<Text>,
    stack_uuid: Option<Text>,
    primary_name: Text,
    environment_uuid: Option<Text>,
    members: Arc<[Text]>,
    links: Map,
    fingerprint: Fingerprint,
}

impl Service {
    /// The hosts to whose containers alone a link leads; `None` if it leads to all.
    pub fn link_hosts(&self, link: &str) -> Option<&[Value]> {
        self.fields.map(LINK_HOSTS)?.get(link)?.as_list()
    }

    /// The same service, known only from labels of containers.
    #[must_use]
    pub fn known_by_labels(&self) -> Self {
        let fields = self.fields.with([(FROM_LABELS.into(), Value::Bool(true))]);
        Self::new(fields, self.members.clone(), self.links.clone()).unwrap_or_else(|| self.clone())
    }

    /// A service of this object, the uuids of its containers in link order, and its links
    /// (`stack/service` to alias).
    ///
    /// `None` when the object has no uuid or no name.
    pub fn new(fields: Map, members: Arc<[Text]>, links: Map) -> Option<Self> {
        let [environment_uuid, kind, name, primary_name, stack_name, stack_uuid, uuid] = fields.pick([
            "environment_uuid",
            "kind",
            "name",
            "primary_service_name",
            "stack_name",
            "stack_uuid",
            "uuid",
        ]);
        let (uuid, name) = (filled(uuid)?, text(name)?);
        let fingerprint = Fingerprint::of(&(Self::KIND, of_map(&fields), &members, of_map(&links)));
        Some(Self {
            id: Self::id_of(&uuid, &name),
            primary_name: filled(primary_name).unwrap_or_else(|| name.clone()),
            uuid,
            kind: text(kind),
            stack_name: text(stack_name),
            stack_uuid: text(stack_uuid),
            environment_uuid: text(environment_uuid),
            name,
            members,
            links,
            fingerprint,
            fields,
        })
    }

    /// The id of the launch configuration `name` of the service `uuid`.
    ///
    /// Names of launch configurations differ by more than case (predecessor: lower-cased `uuid_name`).
    pub(crate) fn id_of(uuid: &str, name: &str) -> Text {
        let mut id = String::with_capacity(uuid.len() + 1 + name.len());
        id.push_str(uuid);
        id.push('_');
        id.push_str(name);
        if id.is_ascii() {
            id.make_ascii_lowercase();
        } else {
            id = id.to_lowercase();
        }
        id.into()
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
        self.kind.as_deref().unwrap_or_default()
    }

    /// The name of its stack.
    pub fn stack_name(&self) -> Option<&Text> {
        self.stack_name.as_ref()
    }

    /// The uuid of its stack.
    pub fn stack_uuid(&self) -> Option<&Text> {
        self.stack_uuid.as_ref()
    }

    /// The name of the service whose sidekick it is; its own name when it is no sidekick.
    pub fn primary_name(&self) -> &Text {
        &self.primary_name
    }

    /// Whether it is a sidekick of another launch configuration.
    pub fn is_sidekick(&self) -> bool {
        !self.name.eq_ignore_ascii_case(&self.primary_name)
    }

    /// Its labels, as the source gave them.
    pub fn labels(&self) -> Option<&Map> {
        self.fields.map("labels")
    }

    /// The uuid of the environment it belongs to.
    pub fn environment_uuid(&self) -> Option<&Text> {
        self.environment_uuid.as_ref()
    }
}

/// What every entity says of itself; `$id` is the field that no other entity of the kind has, `$named` its name.
macro_rules! entity {
    ($name:ident, $kind:literal, $id:ident, |$self:ident| $named:expr $(, |$whole:ident| $verdict:expr)?) => {
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

            fn name(&self) -> Option<&Text> {
                let $self = self;
                $named
            }

            $(fn verdict(&self) -> Option<(Option<&Text>, &str)> {
                let $whole = self;
                $verdict
            })?
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.fingerprint == other.fingerprint
            }
        }

        impl Eq for $name {}
    };
}

entity!(Container, "container", uuid, |container| container.name.as_ref(), |container| container
    .health_state()
    .map(|state| (container.host_uuid(), state)));
entity!(Service, "service", id, |service| Some(&service.name));

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
                let uuid = filled(fields.get("uuid"))?;
                let fingerprint = Fingerprint::of(&($kind, of_map(&fields), position));
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

        entity!($name, $kind, uuid, |plain| plain.fields.text("name"));
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

impl Stack {
    /// The same stack, known only from labels of containers.
    #[must_use]
    pub fn known_by_labels(&self) -> Self {
        let fields = self.fields.with([(FROM_LABELS.into(), Value::Bool(true))]);
        Self::new(fields, self.position).unwrap_or_else(|| self.clone())
    }
}

impl Host {
    /// The address under which other hosts reach it.
    pub fn address(&self) -> Option<IpAddr> {
        self.fields.text("agent_ip")?.parse().ok()
    }

    /// Its labels, as the source gave them.
    pub fn labels(&self) -> Option<&Map> {
        self.fields.map("labels")
    }

    /// Its state as on the wire (`active`, `inactive`, …); empty when unknown.
    pub fn state(&self) -> &str {
        self.fields.text("state").map_or("", |state| state)
    }

    /// The names of its engine's networks, if they are known.
    pub fn networks(&self) -> Option<impl Iterator<Item = &Text>> {
        self.fields.get(ENGINE_NETWORKS).map(|_| texts(&self.fields, ENGINE_NETWORKS))
    }

    /// What operators made it and why, if they gave it its state: `cordoned by anna: disk`.
    pub fn intended(&self) -> Option<&Text> {
        self.fields.text(INTENDED)
    }
}

/// Field of a host: its state in operators' words, with who said so and why. Not shown on the wire, where `state` has the
/// predecessor's word.
pub const INTENDED: &str = "intended_state";

/// Field of a host whose engine's networks are known: their names. Not shown on the wire.
pub const ENGINE_NETWORKS: &str = "networks";

/// Begins the `agent_state` of a host whose engine's disk is nearly full.
pub const LOW_ON_DISK: &str = "low on disk";

/// The text of a field.
fn text(value: Option<&Value>) -> Option<Text> {
    value?.as_text().cloned()
}

/// The text of a field, when it is not empty.
fn filled(value: Option<&Value>) -> Option<Text> {
    value?.as_text().filter(|text| !text.is_empty()).cloned()
}

/// The texts in a list field; elements that are no text are passed over.
pub fn texts<'a>(fields: &'a Map, key: &str) -> impl Iterator<Item = &'a Text> {
    fields.list(key).iter().filter_map(Value::as_text)
}
