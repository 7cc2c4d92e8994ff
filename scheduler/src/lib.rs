//! The scheduler: places containers on specific hosts and says why.
//!
//! A placement is a pure function of [`room::Room`]: what a snapshot says ([`inventory`]) and what was promised
//! since ([`ledger`]). [`filter`] and [`score`] find the host, [`explain`] says why not the others.

pub mod answer;
mod away;
pub mod bits;
pub mod body;
pub mod client;
mod clock;
pub mod command;
pub mod compose;
pub mod config;
pub mod constraint;
pub mod credentials;
mod difference;
pub mod docker;
pub mod docker_config;
pub mod endpoint;
pub mod engine;
pub mod event;
pub mod explain;
mod fields;
pub mod filter;
pub mod hosts;
pub mod invalid;
pub mod inventory;
pub mod journal;
pub mod keeper;
mod kept;
pub mod ledger;
pub mod life;
mod lock;
mod metrics;
mod patient;
mod platforms;
pub mod port;
mod printable;
mod promise;
pub mod rebalance;
pub mod registry;
mod replica;
pub mod report;
pub mod request;
pub mod room;
pub mod score;
pub mod server;
pub mod shared;
pub mod shared_keys;
pub mod start;
mod table;
pub mod taint;
pub mod unit;
pub mod what_if;
pub mod windows;

pub use config::Options;
pub use engine::Engine;
pub use server::Server;
