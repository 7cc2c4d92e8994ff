//! A client of the Docker Engine: where it listens, how it is connected to, its errors and limits, and what of its answers counts.

mod connect;
mod endpoint;
mod engine;
mod given;

pub use connect::{Certificates, ConnectError, connect, from_environment, io_kind};
pub use endpoint::{Endpoint, EndpointError};
pub use engine::{ASK_TIME, Engine, EngineError, Guard};
pub use given::{InImage, is_given};
