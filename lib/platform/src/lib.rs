//! Everything that differs between operating systems.
//!
//! The only crate with `cfg(unix)`, `cfg(windows)` or `unsafe`. Each file holds the public functions of one topic and
//! their documentation; the same private functions for each system stand in `TOPIC/unix.rs` and `TOPIC/windows.rs`.
//! Unix means Linux.

#[cfg(windows)]
mod adapter;
pub mod address;
pub mod batch;
pub mod broker;
pub mod cloud;
pub mod console;
#[cfg(target_os = "linux")]
mod descriptors;
pub mod disk;
pub mod engine;
pub mod executable;
pub mod family;
pub mod file;
pub mod handover;
pub mod ingress;
pub mod limits;
pub mod memory;
pub mod namespace;
#[cfg(unix)]
mod nobody;
pub mod privilege;
#[cfg(test)]
mod programs;
pub mod redirect;
pub mod resolvers;
#[cfg(any(windows, test))]
mod rights;
pub mod route;
pub mod schedule;
pub mod service;
pub mod socket;
pub mod stop;
pub mod sysctl;
pub mod usage;
