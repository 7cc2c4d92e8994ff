//! What one host tells of itself and its containers.

use std::net::IpAddr;

use model::{Defect, Map, Text};

/// What a host says of itself beside what its engine knows.
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    /// Its name, by which it is told from all other hosts; the engine's when it is not given.
    pub name: Option<Text>,
    /// Labels beside those of the engine, which they replace.
    pub labels: Vec<(Text, Text)>,
    /// Address under which other hosts reach it.
    pub public_ip: Option<IpAddr>,
    /// Name of the environment that it belongs to.
    pub environment: Option<Text>,
}

/// A host's word about itself: a cluster document (docs/document.md) with one host and what runs on it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostDocument {
    /// Name of the host; `document` lists exactly this one.
    pub host: Text,
    /// The document: `environment`, `host`, `hosts`, `networks`, `services`, `containers`.
    pub document: Map,
    /// What was left out, with the reason.
    pub defects: Vec<Defect>,
}
