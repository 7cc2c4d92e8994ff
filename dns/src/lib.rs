//! The DNS service: names of the cluster for each client, everything else forwarded.
//!
//! A [`zone`] is built from a snapshot, `answer` finds a value in it that `write` makes bytes of, `forward` asks upstreams
//! and [`server`] is the only part that listens.

mod answer;
pub mod answers_file;
mod cache;
mod certificate;
pub mod command;
pub mod config;
mod connection_end;
mod connections;
mod cookie;
mod doh;
mod edns;
mod explain;
mod forward;
#[doc(hidden)]
pub mod fuzzing;
mod hold;
mod metrics;
pub mod name;
mod pages;
mod query;
mod reply;
mod respond;
mod response_rate;
pub mod server;
mod shared;
mod sockets;
mod tcp;
#[cfg(test)]
mod testing;
mod udp;
mod upstream;
mod view;
mod write;
pub mod zone;

pub use config::Options;
pub use server::{Server, ServerError};
pub use sockets::Sockets;
pub use view::View;
pub use zone::answers::{BadAnswers, DnsAnswers};
