//! HAProxy and a load balancer's plan ([`model::lb`]): its configuration, its slots for members, and what is said to it while it runs.
//!
//! All but [`RuntimeSocket`] and [`Metrics`] is pure: what should be said is the difference of two [`Slots`].

mod directives;
mod haproxy;
mod metrics;
mod parts;
mod seen;
mod slots;
mod socket;

pub use haproxy::{Configuration, Options, condition, config_defects, is_of_one_shape};
pub use metrics::{How, Metrics};
pub use parts::{Bisection, Part};
pub use seen::{SeenServer, ServerName, servers, sessions};
pub use slots::{Slot, Slots, differing, skeleton};
pub use socket::RuntimeSocket;
