//! What the world looks like: snapshots of a cluster, its entities, and the documents they are read from.
//!
//! Everything here is pure: no I/O, no clock, no operating system. [`objects`] is the common form of all
//! sources; [`document`], [`answers`] and [`tree`] are the other forms a cluster is written in.

pub mod answers;
pub mod answers_file;
pub mod change_line;
pub mod checkers;
mod client;
mod defect;
mod delta;
pub mod document;
pub mod entity;
pub mod fingerprint;
pub mod health;
mod hex;
pub mod json;
pub mod lb;
pub mod members;
mod name_hash;
pub mod network_key;
pub mod node;
pub mod objects;
pub mod panic;
mod pool;
pub mod printable;
pub mod reach;
pub mod scalar;
mod snapshot;
mod table;
pub mod tree;
pub mod unwell;
pub mod value;
pub mod votes;

pub use answers::Answers;
pub use change_line::ChangeLine;
pub use client::{CLIENT_KNOWN_WITHIN, ClientRule, counted_as};
pub use defect::{Defect, Effect, Position};
pub use delta::Delta;
pub use entity::{Container, Entity, Host, INTENDED, LOW_ON_DISK, Network, Service, Stack, engine_uuid};
pub use fingerprint::Fingerprint;
pub use hex::{hex, unhex};
pub use name_hash::name_hash;
pub use network_key::NetworkKey;
pub use node::Node;
pub use pool::{Pool, ValueSeed};
pub use reach::{Reach, Unreachable, is_host_address};
pub use snapshot::Snapshot;
pub use table::{Change, Table, changes};
pub use value::{Map, Text, Value};
pub use votes::About;

/// The name of the metadata service, which every client finds and no container has.
pub const METADATA_NAME: &str = "rancher-metadata";
