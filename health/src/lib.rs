//! Who is healthy: what is checked, by which hosts, and what follows from their opinions.
//!
//! A *check* says what is asked and how. Each checker forms an *opinion* of the container from its results; it *votes* while its
//! opinion differs from the published state. The *verdict* is the container's `health_state`.

mod assigned;
mod budget;
pub mod check;
pub mod damping;
mod giving_up;
mod grpc;
pub mod metrics;
pub mod opinion;
mod pages;
mod patience;
mod reckoning;
pub mod request_line;
mod response;
pub mod run;
pub mod spec;
mod suspicion;
pub mod target;
pub mod verdict;
pub mod verdicts;
mod vote;
pub mod wheel;

pub use assigned::Scope;
pub use pages::{Outputs, PATH};
pub use spec::Spec;
