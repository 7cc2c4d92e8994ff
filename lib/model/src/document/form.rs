//! The keys that all objects of one kind have: put in order and allocated once for all of them.

use std::sync::{Arc, LazyLock};

use foldhash::HashMap;

use super::fields::{CONTAINER, Field, HOST, NETWORK, SERVICE};
use super::reader::Fields;
use super::written::Written;
use crate::checkers::{CHECKER, QUORUM};
use crate::entity::{ENGINE_NETWORKS, ROUTED_IPS};
use crate::health::FAILED;
use crate::unwell::{REASON, SINCE};
use crate::value::{Map, Text, Value};
use crate::votes::STARTED;

/// What hosts look like on the wire.
pub(super) static HOSTS: LazyLock<Form> = LazyLock::new(|| {
    let defaults = [("labels", Map::default().into()), ("state", Value::text("active"))];
    Form::new(
        "host",
        HOST,
        &["environment_uuid"],
        &["subnet", "router_ip"],
        &[CHECKER, QUORUM, ENGINE_NETWORKS],
        &defaults,
    )
});

/// What networks look like on the wire.
pub(super) static NETWORKS: LazyLock<Form> = LazyLock::new(|| {
    let defaults = ["is_default", "host_ports"].map(|key| (key, Value::Bool(false)));
    Form::new("network", NETWORK, &["environment_uuid"], &[], &[], &defaults)
});

/// What services look like on the wire.
pub(super) static SERVICES: LazyLock<Form> = LazyLock::new(|| {
    let derived = ["environment_uuid", "primary_service_name", "sidekicks", "stack_name", "stack_uuid"];
    let defaults = [
        ("kind", Value::text("service")),
        ("state", Value::text("active")),
        ("system", Value::Bool(false)),
        ("labels", Map::default().into()),
        ("metadata", Map::default().into()),
        ("external_ips", Value::List(Arc::default())),
        ("ports", Value::List(Arc::default())),
        ("expose", Value::List(Arc::default())),
    ];
    Form::new("service", SERVICE, &derived, &["stack", "sidekick_of", "links"], &[], &defaults)
});

/// What containers look like on the wire.
pub(super) static CONTAINERS: LazyLock<Form> = LazyLock::new(|| {
    let derived = [
        "environment_uuid",
        "host_ip",
        "host_uuid",
        "network_from_container_uuid",
        "network_uuid",
        "service_name",
        "stack_name",
        "stack_uuid",
    ];
    let defaults = [
        ("dns", Value::List(Arc::default())),
        ("start_count", Value::Int(1)),
        ("state", Value::text("running")),
        ("system", Value::Bool(false)),
    ];
    Form::new(
        "container",
        CONTAINER,
        &derived,
        &["service", "host", "network", "network_from", "links"],
        &[FAILED, REASON, ROUTED_IPS, SINCE, STARTED],
        &defaults,
    )
});

/// What ties a container to its service.
pub(super) static MEMBERS: LazyLock<Form> = LazyLock::new(|| {
    Form::new("serviceContainerLink", &[], &["service_uuid", "service_name", "container_uuid"], &[], &[], &[])
});

/// The keys of the objects of one kind, and the values of those that are left out.
pub(super) struct Form {
    keys: Vec<Text>,
    values: Vec<Value>,
    /// Where each key stands.
    places: HashMap<Text, usize>,
    /// Keys that only those objects have for which the document gives them.
    optional: &'static [&'static str],
}

impl Form {
    /// Objects with the fields of a table and derived ones, but for those that only the document has, and optional ones.
    fn new(
        kind: &str,
        table: &[Field],
        derived: &[&str],
        only_written: &[&str],
        optional: &'static [&'static str],
        defaults: &[(&'static str, Value)],
    ) -> Self {
        let fields =
            table.iter().map(|field| field.key).filter(|key| !only_written.contains(key) && !optional.contains(key));
        let mut keys: Vec<Text> = fields.chain(derived.iter().copied()).chain([KIND]).map(Text::from).collect();
        keys.sort();
        keys.dedup();
        let kind = (KIND, Value::text(kind));
        let value = |key: &Text| defaults.iter().chain([&kind]).find(|(own, _)| **own == **key);
        let values = keys.iter().map(|key| value(key).map(|(_, value)| value.clone()).unwrap_or_default()).collect();
        let places = keys.iter().cloned().zip(0..).collect();
        Self { keys, values, places, optional }
    }

    /// An object with the defaults alone.
    pub(super) fn empty(&self) -> Object<'_> {
        Object { form: self, values: self.values.clone(), optional: Vec::new() }
    }

    /// An object with the values that a document gives.
    pub(super) fn of(&self, fields: &Fields<impl Written>) -> Object<'_> {
        let mut object = self.empty();
        for (key, value) in fields.iter() {
            object.set(key, value.clone());
        }
        object
            .optional
            .extend(self.optional.iter().filter_map(|key| Some((Text::from(*key), fields.get(key)?.clone()))));
        object
    }
}

/// The field with the kind of an object.
const KIND: &str = "metadata_kind";

/// An object in the making.
pub(super) struct Object<'f> {
    form: &'f Form,
    values: Vec<Value>,
    optional: Vec<(Text, Value)>,
}

impl Object<'_> {
    /// Gives a key a value; what is no key of the form is passed over.
    pub(super) fn set(&mut self, key: &str, value: impl Into<Value>) {
        if let Some(known) = self.value(key) {
            *known = value.into();
        }
    }

    /// Gives a key a value where it has none yet.
    pub(super) fn default(&mut self, key: &str, value: impl FnOnce() -> Value) {
        if let Some(known) = self.value(key).filter(|value| value.is_null()) {
            *known = value();
        }
    }

    /// The object.
    pub(super) fn finish(self) -> Map {
        let object = Map::of_ordered(&self.form.keys, self.values);
        if self.optional.is_empty() { object } else { object.with(self.optional) }
    }

    fn value(&mut self, key: &str) -> Option<&mut Value> {
        Some(&mut self.values[*self.form.places.get(key)?])
    }
}
