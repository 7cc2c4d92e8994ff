//! What HAProxy is told of a load balancer's plan ([`model::lb`]).

mod haproxy;

pub use haproxy::{Configuration, Options};
