//! A ledger in etcd that several schedulers share.
//!
//! One task follows etcd, one writes, one transaction at a time, and one renews the lease by which others know that
//! this scheduler is alive. The book learns even of our own writes from the follower alone, so it is always the state
//! of etcd at one revision.
//!
//! Each transaction expects the revision of this scheduler's presence key. That makes a lost response harmless: the
//! presence is put again, after which the lost transaction can no longer succeed, and what it did is known once that
//! revision was learned. A scheduler that was suspended until its lease expired cannot write either.
//!
//! Records of placements are sealed with the ledger's key (`seal`, `key_file`). A scheduler that has another key, or
//! none, neither follows nor writes.

mod context;
mod evictions;
mod follow;
pub(crate) mod key_file;
pub(crate) mod keys;
mod lease;
pub(crate) mod saved;
pub(crate) mod seal;
pub(crate) mod store;
pub(crate) mod sync;
pub(crate) mod unsealed;
mod write;
