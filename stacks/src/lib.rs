//! Stacks: what should run, and the steps from what runs to that.
//!
//! Everything here is pure: [`plan`] takes what is wanted, what is there and the time, and returns steps that an executor
//! carries out one by one. It remembers nothing, so an executor that dies at any step goes on with the next plan.

mod difference;
mod plan;
mod planner;
mod render;
mod service;
mod unit;
mod update;

pub use difference::{Change, Difference, differences};
pub use plan::{Phase, Plan, Step, Turn, plan};
pub use service::{Rollout, Service, Stack, Stage};
pub use unit::{State, Unit, World};
pub use update::{Invalid, OnFailure, Order, Update};
