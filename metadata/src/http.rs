//! HTTP: connections and their limits, requests as bytes, responses as bytes.

pub(crate) mod access;
pub(crate) mod asked;
pub(crate) mod changes;
pub(crate) mod connection;
pub(crate) mod head;
pub(crate) mod host;
pub(crate) mod limits;
pub(crate) mod proxies;
pub(crate) mod reply;
pub(crate) mod resting;
pub(crate) mod server;
pub(crate) mod service;
pub(crate) mod session;
pub(crate) mod sniff;
