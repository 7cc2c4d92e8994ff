//! Doing something in the network namespace of another process, such as a container's.

#[cfg_attr(target_os = "linux", path = "namespace/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "namespace/other.rs")]
mod system;

use std::io;

/// What `work` gives in the network namespace of the process `pid`, on a thread of its own.
///
/// Sockets that `work` opens belong to that namespace. Needs root (the capability `SYS_ADMIN`) on Linux.
///
/// # Errors
///
/// Fails if there is no such process, the right is missing, the system has no such namespaces, or `work` panics.
pub fn within<T: Send>(pid: u32, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    system::within(pid, work)
}
