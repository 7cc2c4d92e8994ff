//! Where snapshots come from, and the store they are published in.

pub mod backoff;
pub mod cause;
pub mod cluster_file;
pub mod file;
pub mod follow;
pub mod format;
pub mod http;
pub mod metadata;
mod session;
pub mod state;
pub mod status;
pub mod store;

pub use cluster_file::publish;
pub use follow::{Following, Kept, Reload, ReloadRequests, Source, follow};
pub use metadata::MetadataAddress;
pub use state::StateDir;
pub use status::Readiness;
pub use store::{Derivation, Follower, Revision, Store, Watcher, derive};
