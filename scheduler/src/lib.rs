//! The scheduler: places containers on specific hosts and says why.
//!
//! A placement is a pure function of [`Room`]: what a snapshot says ([`Inventory`]) and what was promised since
//! ([`Promised`]). The modules `filter` and `score` find the host, `explain` says why not the others.

mod answer;
mod away;
mod bits;
mod body;
mod client;
mod clock;
mod command;
mod compose;
mod config;
mod constraint;
mod credentials;
mod difference;
mod docker;
mod docker_config;
mod endpoint;
mod event;
mod explain;
mod fields;
mod filter;
mod hosts;
mod invalid;
mod inventory;
mod journal;
mod keeper;
mod kept;
mod ledger;
mod life;
mod lock;
mod metrics;
mod patient;
mod placer;
mod platforms;
mod port;
mod promise;
mod rebalance;
mod registry;
mod replica;
mod report;
mod request;
mod room;
mod score;
mod server;
mod shared;
mod shared_keys;
mod start;
mod table;
mod taint;
mod unit;
mod what_if;
mod windows;

pub use answer::Placement;
pub use command::Command;
pub use config::Options;
pub use filter::Need;
pub use inventory::Inventory;
pub use ledger::LAPSE;
pub use placer::{Placer, Refusal};
pub use report::HostReport;
pub use request::Request;
pub use room::{Promised, Room};
pub use score::{Order, Strategy};
pub use server::Server;
pub use windows::{Build, Isolation, compatible};
