//! What our own process uses of the machine, for the page of metrics.

#[cfg_attr(unix, path = "usage/unix.rs")]
#[cfg_attr(windows, path = "usage/windows.rs")]
mod system;

use std::time::Duration;

/// A look at our own process. What the system does not tell is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Octets of memory in RAM.
    pub resident_bytes: Option<u64>,
    /// Time of all processors spent so far, ours and the system's for us.
    pub cpu: Option<Duration>,
    /// Open descriptors; on Windows handles of any kind.
    pub open_descriptors: Option<u64>,
}

impl Usage {
    /// Looks now. Takes some microseconds and does not wait for anything.
    pub fn now() -> Self {
        system::usage()
    }
}
