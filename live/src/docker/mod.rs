//! The Docker Engine of this host as a source (docs/docker.md).

mod asking;
mod baked;
pub mod connect;
pub mod endpoint;
mod facts;
pub mod follow;
mod hints;
mod host;
mod labels;
mod mapping;
mod names;
mod services;
mod session;

pub use connect::{CLIENT_TIME, Certificates, ConnectError, connect, from_environment, io_kind};
pub use endpoint::{Endpoint, EndpointError};
pub use follow::follow;
