//! The Docker Engine of this host as a source (docs/docker.md).

mod baked;
mod client;
pub mod connect;
pub mod endpoint;
mod engine;
mod facts;
pub mod follow;
mod hints;
mod host;
mod labels;
mod mapping;
mod names;
mod services;
mod session;

pub use connect::{Certificates, connect, from_environment, io_kind};
pub use endpoint::{Endpoint, EndpointError};
pub use engine::{ASK_TIME, Engine, EngineError, Guard};
pub use follow::follow;
