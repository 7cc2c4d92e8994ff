//! What every Berth executable does as a process: command line, log, admin listener, health, stop.
//!
//! A `main.rs` parses its arguments with [`arguments::normalise`], answers the subcommands of [`command`], and
//! serves through [`launch::launch`].

pub mod admin;
pub mod arguments;
pub mod command;
pub mod launch;
pub mod log;
pub mod options;
mod usage;

pub use launch::{Failure, Launch, launch};
pub use options::{LogFormat, ProcessOptions, StateOptions, listen_address};
