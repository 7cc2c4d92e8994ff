//! Other systems have no slices of a thread's own, and none is known to need threads that give way.

use std::io;
use std::time::Duration;

#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with linux.rs")]
pub(super) fn shorten_slice(_slice: Duration) -> io::Result<bool> {
    Ok(false)
}

#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with linux.rs")]
pub(super) fn give_way(_nice: i32) -> io::Result<bool> {
    Ok(false)
}

#[cfg(test)]
#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with linux.rs")]
pub(super) fn nice() -> io::Result<i32> {
    Ok(0)
}

#[cfg(test)]
#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with linux.rs")]
pub(super) fn slice() -> io::Result<Duration> {
    Ok(Duration::ZERO)
}
