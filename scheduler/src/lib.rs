//! The scheduler: places containers on specific hosts and says why.
//!
//! A placement is a pure function of [`Room`]: what a snapshot says ([`Inventory`]) and what was promised since
//! ([`Promised`]). The modules `filter` and `score` find the host, `explain` says why not the others.

mod api;
mod audit;
mod backup;
#[doc(hidden)]
pub mod benching;
mod cli;
mod clock;
mod config;
#[doc(hidden)]
pub mod fuzzing;
mod ledger;
mod lock;
mod place;
mod policy;
mod replace;
mod secret;
mod stack;
mod start;
mod subject;
mod token;

pub use api::Server;
pub use cli::Command;
pub use cli::evacuate::{DrainLeft, DrainQuestion, Evacuate};
pub use config::Options;
pub use ledger::LAPSE;
pub use place::Placer;
pub use place::answer::Placement;
pub use place::filter::Need;
pub use place::inventory::Inventory;
pub use place::refusal::Refusal;
pub use place::report::HostReport;
pub use place::request::Request;
pub use place::room::{Promised, Room};
pub use place::strategy::{Order, Strategy};
pub use place::windows::{Build, Isolation, compatible};
pub use policy::engine::EnginePolicy;
