//! The Docker Engine of this host as a source (docs/docker.md).

mod baked;
mod client;
mod disk;
mod facts;
mod follow;
pub mod fuzzing;
mod hints;
mod host;
mod index;
mod labels;
mod mapping;
mod names;
mod services;
mod session;
mod stopping;

pub use follow::follow;
