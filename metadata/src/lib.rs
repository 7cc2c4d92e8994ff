//! The metadata service: a container asks over HTTP who it is and who the others are.
//!
//! On the wire it is its predecessor byte for byte; the deliberate differences are in docs/differences.md. A request
//! is read in `http`, finds its value in `tree`, and is answered with what `body` makes of that.

#[doc(hidden)]
pub mod fuzzing;

mod body;
mod change_log;
mod config;
mod escape;
mod http;
mod metrics;
mod negotiate;
mod path;
mod query;
mod respond;
mod traefik;
mod tree;
mod view;

pub use process::Networks;

pub use config::{Cors, Limits, Options, ServiceTokens, Tokens, WhenEmpty};
pub use http::server::{Server, StartError};
pub use tree::Tree;
