//! Load balancers: what a service's `lb_config` and labels want, as a plan for whichever proxy does it.
//!
//! [`LbPlan`] is a pure function of a snapshot, a balancer and the host that it runs on. The proxies follow it: Traefik reads
//! [`traefik`], HAProxy what crate `balancer` writes. Facts about the predecessor are in docs/balancer.md.

mod config;
mod members;
mod order;
mod plan;
mod rule;
mod selector;
mod target;
pub mod traefik;

pub use config::LbConfig;
pub use members::{Draining, LeftOut, Member, Place};
pub use plan::{Backend, LbPlan, Port, Route, Viewpoint, find};
pub use rule::{HostPattern, PortRule, Protocol, Stickiness, StickyMode, Target};
pub use selector::Selector;
pub use target::{HOSTS_OF, hosts_of_labels};
