//! The account of a container: what it adds to its host.

use model::{Container, Entity, Fingerprint, Text, Value};

use crate::place::hosts::{CPU_AT, INSTANCES_AT, MEMORY_AT, label_text};
use crate::place::inventory::key::{Kind, is_indexed, key, port_key};
use crate::place::inventory::{Inventory, PLACEMENT_LABEL, SERVICE_LABEL, USE_LABEL_PREFIX};
use crate::place::port::{Bound, Port, WILDCARD};

/// Longest list of labels of one container that is indexed, so that one absurd container costs no more than a thousand.
const INDEXED_LABELS_MAX: usize = 1024;

/// What one container adds to its host.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Account {
    /// Its host, when that is one of the inventory's.
    pub(crate) host: Option<u32>,
    /// Amounts by pool.
    pub(crate) amounts: Vec<(usize, i64)>,
    /// Ports it has taken.
    pub(crate) bound: Vec<Bound>,
    /// What it is found by.
    pub(crate) keys: Vec<Fingerprint>,
    /// The name under which the scheduler placed it.
    pub(crate) placement: Option<Text>,
    /// Whether rules about containers see it.
    pub(crate) visible: bool,
}

impl Account {
    /// Whether it takes room as a running container does.
    pub(crate) fn stands(&self) -> bool {
        self.amounts.iter().any(|(pool, _)| *pool == INSTANCES_AT)
    }

    pub(super) fn new(container: &Container, inventory: &Inventory) -> Self {
        let fields = container.fields();
        let labels = container.labels();
        let state = container.state();
        // A container that is being created or started will need what it asked for: its room must not be given away
        // in between.
        let stands = !matches!(state, "stopped" | "removing" | "removed" | "purging" | "purged" | "erroring" | "error");
        let mut amounts = Vec::new();
        if stands {
            amounts.push((INSTANCES_AT, 1));
        }
        for (pool, key) in [(CPU_AT, "milli_cpu_reservation"), (MEMORY_AT, "memory_reservation")] {
            amounts.extend(fields.int(key).filter(|amount| *amount > 0).map(|amount| (pool, amount)));
        }
        for (key, value) in labels.into_iter().flatten() {
            let amount = match value {
                Value::Text(text) => text.trim().parse().ok(),
                other => other.as_int(),
            };
            let pool = key.strip_prefix(USE_LABEL_PREFIX).and_then(|name| inventory.hosts.pool(name));
            amounts.extend(pool.zip(amount.filter(|amount| *amount > 0)));
        }
        let ports = if stands { fields.list("ports") } else { &[] };
        let bound = ports.iter().filter_map(Value::as_str).filter_map(Port::parse).filter(|port| port.public != 0);
        let owner = container.uuid();
        let bound = bound
            .map(|port| Bound {
                address: port.address.unwrap_or(WILDCARD),
                public: port.public,
                private: port.private,
                protocol: port.protocol,
                owner: owner.clone(),
            })
            .collect::<Vec<_>>();
        let visible = !matches!(state, "removing" | "removed" | "purging" | "purged" | "erroring" | "error");
        let mut keys = Vec::new();
        if visible {
            let named = |kind| move |text: &Text| key(kind, &[text]);
            keys.extend(container.name().map(named(Kind::Name)));
            keys.push(key(Kind::Name, &[container.uuid()]));
            keys.extend(fields.text("image").or_else(|| fields.text("image_uuid")).map(named(Kind::Image)));
            let label = labels.into_iter().flatten().take(INDEXED_LABELS_MAX).filter_map(crate::place::hosts::label);
            let label = label.filter(|(name, _)| is_indexed(name));
            keys.extend(label.map(|(name, value)| key(Kind::Label, &[&name, &value])));
        }
        if stands {
            keys.extend(service_of(container, inventory).map(|service| key(Kind::Service, &[&service])));
            keys.extend(bound.iter().map(|bound| port_key(bound.protocol, bound.public)));
        }
        keys.sort_unstable();
        keys.dedup();
        Self {
            host: container.host_uuid().and_then(|uuid| inventory.hosts.index(uuid)),
            amounts,
            bound,
            keys,
            placement: label_text(labels, PLACEMENT_LABEL).cloned(),
            visible,
        }
    }
}

/// The `stack/service` of a container: as its labels say, its fields, or the services that name it.
pub(super) fn service_of(container: &Container, inventory: &Inventory) -> Option<Text> {
    let fields = container.fields();
    let by_fields = || {
        let (stack, service) = (fields.text("stack_name")?, fields.text("service_name")?);
        Some(Text::from(format!("{stack}/{service}")))
    };
    label_text(container.labels(), SERVICE_LABEL)
        .cloned()
        .or_else(by_fields)
        .or_else(|| inventory.services_of.get(container.uuid()).cloned())
        .filter(|path| !path.is_empty())
}
