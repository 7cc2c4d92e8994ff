//! Where snapshots come from, and the store they are published in.

pub mod format;
pub mod status;
pub mod store;

pub use status::Readiness;
pub use store::{Follower, Revision, Store, Watcher, derive};
