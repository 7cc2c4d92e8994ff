//! The metadata service: a container asks over HTTP who it is and who the others are.
//!
//! On the wire it is its predecessor byte for byte; the deliberate differences are in docs/differences.md. [`tree`] is the
//! view; `connection` reads requests and writes responses.

pub mod config;
#[doc(hidden)]
pub mod fuzzing;
pub mod server;
pub mod tree;

mod access;
mod asked;
mod change_log;
mod changes;
mod connection;
mod entities;
mod escape;
mod head;
mod hits;
mod host;
mod limits;
mod lower;
mod metrics;
mod negotiate;
mod node;
mod number;
mod ordered;
mod page;
mod parts;
mod path;
mod proxies;
mod query;
mod render;
mod renderings;
mod reply;
mod respond;
mod resting;
mod service;
mod session;
mod sniff;
mod version;
mod view;
mod weight;
mod whole;

pub use process::Networks;

pub use config::{Cors, Limits, Options, ServiceTokens, Tokens, WhenEmpty};
pub use server::{Server, StartError};
pub use tree::Tree;
