//! Other systems have no slices of a thread's own.

use std::io;
use std::time::Duration;

#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with linux.rs")]
pub(super) fn shorten_slice(_slice: Duration) -> io::Result<bool> {
    Ok(false)
}

#[cfg(test)]
#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with linux.rs")]
pub(super) fn slice() -> io::Result<Duration> {
    Ok(Duration::ZERO)
}
