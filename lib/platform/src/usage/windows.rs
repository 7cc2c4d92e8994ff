//! Our own use, from the functions of kernel32 that nanoserver has.

use std::time::Duration;

use windows_sys::Win32::Foundation::FILETIME;
use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, GetProcessHandleCount, GetProcessTimes};

use super::Usage;

pub(super) fn usage() -> Usage {
    Usage { resident_bytes: resident_bytes(), cpu: cpu(), open_descriptors: open_handles() }
}

fn resident_bytes() -> Option<u64> {
    let mut memory = PROCESS_MEMORY_COUNTERS::default();
    let length = u32::try_from(size_of_val(&memory)).ok()?;
    // SAFETY: the handle stands for this process and is always valid; the pointer is to a structure of the length given,
    // which lives until the call returns.
    #[expect(unsafe_code, reason = "std does not know memory")]
    let known = unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), &raw mut memory, length) } != 0;
    known.then(|| u64::try_from(memory.WorkingSetSize).ok())?
}

fn cpu() -> Option<Duration> {
    let [mut created, mut ended, mut kernel, mut user] = [FILETIME::default(); 4];
    // SAFETY: the handle stands for this process and is always valid; the pointers are to structures of their own, which
    // live until the call returns.
    #[expect(unsafe_code, reason = "std does not know the time of processors")]
    let known = unsafe {
        GetProcessTimes(GetCurrentProcess(), &raw mut created, &raw mut ended, &raw mut kernel, &raw mut user)
    } != 0;
    known.then(|| duration(kernel) + duration(user))
}

/// Windows counts in steps of 100 ns.
fn duration(time: FILETIME) -> Duration {
    let steps = u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime);
    Duration::from_micros(steps / 10) + Duration::from_nanos(steps % 10 * 100)
}

fn open_handles() -> Option<u64> {
    let mut count = 0;
    // SAFETY: the handle stands for this process and is always valid; the pointer is to a local variable.
    #[expect(unsafe_code, reason = "std does not know handles")]
    let known = unsafe { GetProcessHandleCount(GetCurrentProcess(), &raw mut count) } != 0;
    known.then_some(count.into())
}
