//! What the fuzzer of inspections calls (`fuzz/src/inspection.rs`); no part of the service.

use bollard::models::SystemInfo;
use model::{Defect, Snapshot, Value, document};

use super::baked::Baked;
use super::facts::Facts;
use super::host::Host;
use super::mapping;
use crate::host::HostOptions;

/// What a host publishes whose engine describes a container so, and what is wrong with that; `None` if it says nothing of it.
///
/// # Panics
///
/// Panics if what is published cannot be read.
pub fn published(inspection: &[u8]) -> Option<(Snapshot, Vec<Defect>)> {
    let response = serde_json::from_slice(inspection).ok()?;
    let facts = Facts::of("0123456789ab", &response, &Baked::nothing()).ok()?;
    let host = Host::of(&SystemInfo::default(), &HostOptions::default(), None);
    let made = mapping::document(&host, &[], [&facts], []);
    Some(document::resolve_value(&Value::Map(made.document)).expect("what is published can be read"))
}
