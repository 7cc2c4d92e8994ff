//! What every Berth executable does as a process: command line, log, admin listener, health, stop.
//!
//! A `main.rs` describes its executable as a [`Program`], which answers the subcommands that all of them have, and serves
//! through [`launch::launch`].

pub mod accept;
mod accepting;
mod addresses;
mod admin;
pub mod arguments;
mod clients;
pub mod command;
mod connections;
pub mod help;
pub mod launch;
mod listeners;
mod log;
mod options;
mod parts;
mod pid_file;
mod program;
pub mod quota;
mod restart;
pub mod table;
pub mod token;
mod usage;
mod web_page;
mod write_timeout;

pub use accept::Acceptor;
pub use accepting::Accepting;
pub use admin::serve;
pub use clients::{ClientOptions, Clients, Networks};
pub use connections::serve_connections;
pub use launch::{Launch, launch};
pub use listeners::Listeners;
pub use options::{LogFormat, ProcessOptions, StateOptions, hide_address_options, listen_address};
pub use parts::Parts;
pub use program::Program;
pub use web_page::{WebPage, refuse_web_page};
pub use write_timeout::WriteTimeout;

/// Why an executable cannot run; the text names the thing and the way out.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
