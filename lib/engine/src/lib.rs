//! A client of the Docker Engine: where it listens, how it is connected to, its errors and limits.

mod connect;
mod endpoint;
mod engine;

pub use connect::{Certificates, ConnectError, connect, from_environment, io_kind};
pub use endpoint::{Endpoint, EndpointError};
pub use engine::{ASK_TIME, Engine, EngineError, Guard};
