//! Nothing starts again in place: a service of Windows is tied to its process.

use std::fs::File;
use std::io;
use std::path::Path;

/// Why.
const UNSUPPORTED: &str = "only on Linux an agent starts again in place; install the newer package, which stops the service and starts it again";

#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with linux.rs")]
pub(super) fn obstacle() -> Option<&'static str> {
    Some(UNSUPPORTED)
}

pub(super) fn is_of(_: u32, _: &Path) -> io::Result<bool> {
    Err(unsupported())
}

pub(super) fn is_of_file(_: u32, _: &File) -> io::Result<bool> {
    Err(unsupported())
}

pub(super) fn create(_: &Path) -> io::Result<File> {
    Err(unsupported())
}

pub(super) fn take_rights(_: &File, _: &Path) -> io::Result<()> {
    Err(unsupported())
}

pub(super) fn restart(_: u32) -> io::Result<()> {
    Err(unsupported())
}

fn unsupported() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, UNSUPPORTED)
}
