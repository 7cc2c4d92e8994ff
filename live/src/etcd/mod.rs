//! etcd as a source: each host publishes its own document, all follow those of the others.

pub mod client;
pub mod options;
pub mod txn;
pub mod watch;
mod wire;

pub use client::{At, EtcdClient, EtcdError, Listing};
pub use options::{Endpoint, EtcdOptions, OptionsError};
pub use txn::{Compare, Op, OpResult, Order, Pair, Txn, TxnOutcome, With};
pub use watch::{Event, Events, Watch};
