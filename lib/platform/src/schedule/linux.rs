//! The scheduler of Linux (`sched_setattr`, sched(7)): the runtime of a thread of the usual policy is its slice, and its nice value
//! decides what share of a processor it gets.

use std::io;
use std::time::Duration;

/// This thread, not its process.
const THIS_THREAD: libc::pid_t = 0;

/// Threads that it starts have the usual slice again (but the same nice value).
const RESET_ON_FORK: u64 = 1;

pub(super) fn shorten_slice(slice: Duration) -> io::Result<bool> {
    let changed = change(|attributes| attributes.sched_runtime = nanoseconds(slice))?;
    // Kernels that know of none take it and do nothing.
    Ok(changed && self::slice()? == slice)
}

pub(super) fn give_way(nice: i32) -> io::Result<bool> {
    change(|attributes| attributes.sched_nice = nice.max(attributes.sched_nice))
}

/// Changes how this thread is scheduled; returns whether its policy is the usual one. What an operator chose by another policy stays.
fn change(change: impl FnOnce(&mut libc::sched_attr)) -> io::Result<bool> {
    let mut attributes = attributes()?;
    if attributes.sched_policy != libc::SCHED_OTHER.unsigned_abs() {
        return Ok(false);
    }
    attributes.sched_flags |= RESET_ON_FORK;
    change(&mut attributes);
    // SAFETY: the kernel reads as many bytes as `size` of the structure says, which is its own size, and writes none.
    #[expect(unsafe_code, reason = "neither std nor libc has a function for it")]
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, &raw const attributes, 0) };
    if done == 0 { Ok(true) } else { Err(io::Error::last_os_error()) }
}

/// The slice of this thread; zero where the kernel knows of none.
pub(super) fn slice() -> io::Result<Duration> {
    Ok(Duration::from_nanos(attributes()?.sched_runtime))
}

/// The nice value of this thread.
#[cfg(test)]
pub(super) fn nice() -> io::Result<i32> {
    Ok(attributes()?.sched_nice)
}

fn nanoseconds(slice: Duration) -> u64 {
    u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX)
}

fn attributes() -> io::Result<libc::sched_attr> {
    let size = u32::try_from(size_of::<libc::sched_attr>()).unwrap_or_default();
    let mut attributes = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes at most `size` bytes to the structure, which is its size.
    #[expect(unsafe_code, reason = "neither std nor libc has a function for it")]
    let done = unsafe { libc::syscall(libc::SYS_sched_getattr, THIS_THREAD, &raw mut attributes, size, 0) };
    if done == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}
