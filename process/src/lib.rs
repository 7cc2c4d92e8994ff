//! What every Berth executable does as a process: command line, log, admin listener, health, stop.
//!
//! A `main.rs` describes its executable as a [`Program`], which answers the subcommands that all of them have, and serves
//! through [`launch::launch`].

pub mod accept;
mod addresses;
pub mod admin;
pub mod arguments;
pub mod command;
pub mod help;
pub mod launch;
pub mod log;
pub mod options;
pub mod parts;
pub mod program;
mod usage;

pub use accept::Acceptor;
pub use launch::{Failure, Launch, launch};
pub use options::{LogFormat, ProcessOptions, StateOptions, listen_address};
pub use parts::Parts;
pub use program::Program;
