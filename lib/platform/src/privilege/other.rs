//! Systems where a process stays who it is.

use std::io;
use std::path::Path;
use std::process::Command;

use super::{Capability, User};

fn unsupported() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "a process becomes another user on Linux only")
}

pub(super) fn user(_: &str) -> io::Result<User> {
    Err(unsupported())
}

pub(super) fn create_folder_for(_: User, _: &Path) -> io::Result<()> {
    Err(unsupported())
}

pub(super) fn hand_over(_: User, _: &Path) -> io::Result<()> {
    Err(unsupported())
}

pub(super) fn owns(_: User, _: &Path) -> io::Result<bool> {
    Err(unsupported())
}

pub(super) fn in_own_group(_: &mut Command) {}

pub(super) fn become_user(_: User, _: Capability) -> io::Result<()> {
    Err(unsupported())
}

#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with linux.rs")]
pub(super) fn passes_network_on() -> io::Result<bool> {
    Ok(false)
}

pub(super) fn starting_with_network<T>(_: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    Err(unsupported())
}

pub(super) fn pass_network_on_no_more() -> io::Result<()> {
    Err(unsupported())
}

pub(super) fn keep_network_alone() -> io::Result<()> {
    Err(unsupported())
}
