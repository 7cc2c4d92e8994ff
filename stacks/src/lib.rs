//! Stacks: what should run, and the steps from what runs to that.
//!
//! Everything here is pure: [`plan`] takes what is wanted, what is there and the time, and returns steps that an executor
//! carries out one by one. It remembers nothing, so an executor that dies at any step goes on with the next plan.

mod catalog;
mod difference;
mod plan;
mod planner;
mod render;
mod service;
mod template;
mod unit;
mod update;

pub use catalog::{CatalogTemplate, CatalogVersion, Question, QuestionKind};
pub use difference::{Change, Difference, differences};
pub use plan::{Phase, Plan, Step, Turn, plan};
pub use planner::unit_id;
pub use service::{Rollout, Service, Stack, Stage};
pub use template::{Rendered, TEMPLATE_MAX, Template, TemplateError};
pub use unit::{State, Unit, World};
pub use update::{Invalid, OnFailure, Order, Update};
