//! The Docker Engine of this host as a source (docs/docker.md).

mod baked;
mod client;
mod connect;
mod endpoint;
mod engine;
mod facts;
mod follow;
mod hints;
mod host;
mod labels;
mod mapping;
mod names;
mod services;
mod session;

pub(crate) use connect::from_environment;
pub use connect::{Certificates, connect, io_kind};
pub use endpoint::{Endpoint, EndpointError};
pub use engine::{ASK_TIME, Engine, EngineError, Guard};
pub use follow::follow;
