//! The Docker Engine of one host, and etcd across many, as sources of the cluster.
//!
//! Each host makes a cluster document of itself ([`HostDocument`]); a snapshot is made of the documents of all hosts
//! (`merge`). `docker` makes the document of this host from its engine, `etcd` publishes it and follows the others'.

mod assemble;
pub mod config;
pub mod docker;
mod drain;
pub mod etcd;
pub mod follow;
mod host;
pub mod intents;
pub mod label_files;
pub mod leave;
mod merge;
pub mod metrics;
pub mod moment;
mod owners;
mod start;
mod stored_host;

pub use config::{Options, Origin};
pub use host::{DocumentLayer, HostDocument, HostOptions, LayerTask};
