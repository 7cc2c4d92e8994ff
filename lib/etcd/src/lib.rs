//! A client of etcd through its JSON gateway, which needs no protocol compiler.

mod args;
mod auth;
mod client;
mod error;
mod history;
mod lease;
mod members;
mod options;
mod pages;
pub mod segment;
mod span;
mod transport;
mod txn;
mod watch;
mod wire;

pub use args::EtcdArgs;
pub use auth::Access;
pub use client::{EtcdClient, Listing};
pub use error::EtcdError;
pub use history::At;
pub use lease::Lease;
pub use members::{Member, MemberStatus, members};
pub use options::{Endpoint, EtcdOptions, LEASE, LEDGER, OptionsError, PREFIX, Pem, Secret};
pub use pages::Pages;
pub use span::{Span, prefix_end};
pub use transport::{KeyChange, next_password};
pub use txn::{Compare, OPS_MAX, Op, OpResult, Pair, Txn, TxnOutcome};
pub use watch::{Event, EventBatch, Watch};
