//! Systems without capabilities.

use std::io;
use std::net::SocketAddr;
use std::process::Command;

fn unsupported() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "there is a broker on Linux only")
}

pub(super) fn start(_: Command) -> io::Result<()> {
    Err(unsupported())
}

pub(super) fn run_again() -> io::Error {
    unsupported()
}

pub(super) fn serve(_: &[SocketAddr]) -> io::Result<()> {
    Err(unsupported())
}

pub(super) fn is_used() -> bool {
    false
}

pub(super) fn is_gone() -> bool {
    false
}
