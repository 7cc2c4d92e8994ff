//! Systems where a process stays who it is.

use std::io;
use std::path::Path;
use std::process::Command;

use super::User;

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

pub(super) fn in_own_group(_: &mut Command) {}

pub(super) fn become_user(_: User) -> io::Result<()> {
    Err(unsupported())
}
