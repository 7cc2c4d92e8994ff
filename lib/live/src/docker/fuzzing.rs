//! What the fuzzer of inspections (`fuzz/src/inspection.rs`) and the test of noninterference
//! (`tests/tests/noninterference.rs`) call; no part of the service.

use std::collections::HashMap;

use bollard::models::SystemInfo;
use model::{Defect, Snapshot, Value, document};
use serde_json::Value as Json;

use super::baked::Baked;
use super::facts::Facts;
use super::host::Host;
use super::mapping::{self, NetworkFacts};
use crate::host::{HostDocument, HostOptions};

/// What a host publishes whose engine describes a container so, and what is wrong with that; `None` if it says nothing of it.
///
/// # Panics
///
/// Panics if what is published cannot be read.
pub fn published(inspection: &[u8]) -> Option<(Snapshot, Vec<Defect>)> {
    let container = serde_json::from_slice(inspection).ok()?;
    let made = document(&HostOptions::default(), Json::Array(Vec::new()), [(container, HashMap::new())]);
    if made.document.list("containers").is_empty() {
        return None;
    }
    Some(document::resolve_value(&Value::Map(made.document)).expect("what is published can be read"))
}

/// The document of a host whose engine describes its networks and containers so, each container with the labels of its
/// image; without containers whose description cannot be read.
pub fn document(
    options: &HostOptions,
    networks: Json,
    containers: impl IntoIterator<Item = (Json, HashMap<String, String>)>,
) -> HostDocument {
    let host = Host::of(&SystemInfo::default(), options, None);
    let networks: Vec<_> = serde_json::from_value(networks).unwrap_or_default();
    let facts = |(container, image): (Json, HashMap<String, String>)| {
        Facts::of("0123456789ab", &serde_json::from_value(container).ok()?, &Baked::of(Some(&image))).ok()
    };
    let facts: Vec<_> = containers.into_iter().filter_map(facts).collect();
    mapping::document(&host, &NetworkFacts::of(&networks), &facts, [])
}
