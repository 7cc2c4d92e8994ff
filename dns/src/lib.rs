//! The DNS service: names of the cluster for each client, everything else forwarded.
//!
//! A [`zone`] is built from a snapshot, [`answer`] is a pure function of it, `forward` asks upstreams and
//! [`server`] is the only part that listens.

pub mod answer;
pub mod answers_file;
mod cache;
pub mod command;
pub mod config;
mod cookie;
mod direct;
mod edns;
mod explain;
mod forward;
#[doc(hidden)]
pub mod fuzzing;
#[doc(hidden)]
pub mod measuring;
mod metrics;
pub mod name;
mod pages;
mod recent;
pub mod server;
mod sockets;
mod tcp;
mod udp;
mod view;
mod wire;
pub mod zone;

pub use config::Options;
pub use server::{Server, ServerError};
pub use sockets::Sockets;
pub use view::View;
pub use zone::answers::{BadAnswers, DnsAnswers};
