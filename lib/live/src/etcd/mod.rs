//! etcd as a source: each host publishes its own document, all follow those of the others.

mod client;
mod error;
mod follow;
mod identity;
pub mod keys;
mod members;
mod mirror;
mod options;
mod pages;
mod part;
mod plan;
mod prune;
mod publish;
mod reading;
pub mod segment;
mod stored;
mod transport;
mod txn;
mod value;
mod watch;
mod wire;

pub use client::{At, EtcdClient};
pub use error::EtcdError;
pub use follow::follow;
pub use identity::Identity;
pub use members::{Member, MemberStatus, members};
pub use options::{Endpoint, EtcdOptions, OptionsError};
pub(crate) use options::{LEASE, PREFIX};
pub use part::{Batch, FOREIGN, PartChange};
pub use prune::{Pruned, prune};
pub use publish::{Publishing, publish};
pub use txn::{Compare, Op, OpResult, Pair, Txn};
pub use watch::{Event, Watch};
