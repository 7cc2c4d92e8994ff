//! etcd as a source: each host publishes its own document, all follow those of the others.

pub mod client;
pub mod error;
pub mod follow;
pub mod identity;
mod kept;
pub mod keys;
pub mod members;
pub mod options;
mod pages;
pub mod part;
mod plan;
pub mod prune;
pub mod publish;
mod reading;
pub mod segment;
mod transport;
pub mod txn;
mod value;
pub mod watch;
mod wire;
mod world;

pub use client::{At, EtcdClient, Listing};
pub use error::EtcdError;
pub use follow::follow;
pub use identity::Identity;
pub use keys::{Key, Kind, PartId, Span};
pub use members::{Member, MemberStatus, members};
pub use options::{Endpoint, EtcdOptions, OptionsError};
pub use part::{Batch, FOREIGN, PartChange};
pub use prune::{Pruned, PrunedKey, prune};
pub use publish::{Publishing, publish};
pub use txn::{Compare, Op, OpResult, Pair, Txn, TxnOutcome};
pub use watch::{Event, Events, Watch};
