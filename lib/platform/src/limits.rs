//! The bounds that the operating system sets to a process.

#[cfg_attr(unix, path = "limits/unix.rs")]
#[cfg_attr(windows, path = "limits/windows.rs")]
mod system;

/// How many descriptors this process may have open.
///
/// `None` where there is no such limit (Windows) or the system does not say.
pub fn descriptors() -> Option<u64> {
    system::descriptors()
}

/// Raises the number of descriptors this process may have open as far as it can without privileges.
///
/// Gives that number, or `None` where there is no such limit (Windows) or the system does not say. Programs started
/// afterwards inherit it.
pub fn raise_descriptor_limit() -> Option<u64> {
    system::raise_descriptor_limit()
}
