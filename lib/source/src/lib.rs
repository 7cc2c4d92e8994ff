//! Where snapshots come from, and the store they are published in.

pub mod backoff;
pub mod cluster_file;
pub mod file;
pub mod follow;
pub mod format;
mod metadata;
mod session;
pub mod state;
mod status;
mod store;

pub use cluster_file::publish;
pub use follow::{Following, Reload, ReloadRequests, Source, StoredSnapshot, follow};
pub use metadata::MetadataAddress;
pub use state::StateDir;
pub use status::{ETCD, ETCD_WRITES, PUBLISHED, Readiness, Reasons};
pub use store::{Derivation, Follower, Revision, Store, Watcher, derive};
