//! The page that people look at: hosts, services, names, placements and changes of the cluster, and what is wrong.
//!
//! Every view is a pure function of a [`world::World`] and of answers that other parts of the process gave. The same value is
//! written as HTML for a browser without script, and as the pieces by which a script keeps an open page up to date.

mod answers;
mod ask;
mod assets;
mod compressed;
mod guard;
mod hidden;
mod html;
mod options;
mod page;
pub mod prometheus;
mod query;
mod server;
mod stream;
pub mod ticket;
mod views;
mod world;

pub use options::{DEFAULT, Listen, Tls, UiOptions, url};
pub use server::{Server, Sources};
