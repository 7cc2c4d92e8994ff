//! etcd as a source: each host publishes its own document, all follow those of the others.

mod compare;
mod follow;
pub mod fuzzing;
mod identity;
pub mod keys;
mod mirror;
mod own_keys;
mod part;
mod pending;
mod plan;
mod prune;
mod publish;
mod reading;
mod stored;
mod value;
mod votes;

pub use follow::follow;
pub use identity::Identity;
pub use part::{Batch, FOREIGN, PartChange};
pub use prune::{Pruned, hosts_there, prune};
pub use publish::{PasswordExchange, Publishing, publish};
pub use stored::network_keys as stored_network_keys;
pub use votes::{Voting, vote};
