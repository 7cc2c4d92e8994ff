//! Our own use, from /proc/self and getrusage(2).

use std::fs;
use std::time::Duration;

use super::Usage;

pub(super) fn usage() -> Usage {
    Usage {
        resident_bytes: fs::read_to_string("/proc/self/status").ok().and_then(|status| resident_bytes(&status)),
        cpu: cpu(),
        open_descriptors: open_descriptors(),
    }
}

/// Finds `VmRSS:     1234 kB` in /proc/self/status; the unit there means 1024 bytes.
fn resident_bytes(status: &str) -> Option<u64> {
    let kibibytes: u64 =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix(" kB")?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn cpu() -> Option<Duration> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer is to room for the structure the call fills, which lives until it returns.
    #[expect(unsafe_code, reason = "std does not know the time of processors")]
    let known = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } == 0;
    if !known {
        return None;
    }
    // SAFETY: the call succeeded, so it filled the whole structure.
    #[expect(unsafe_code, reason = "the structure was filled by the call above")]
    let usage = unsafe { usage.assume_init() };
    Some(duration(usage.ru_utime)? + duration(usage.ru_stime)?)
}

fn duration(time: libc::timeval) -> Option<Duration> {
    Some(Duration::new(time.tv_sec.try_into().ok()?, u32::try_from(time.tv_usec).ok()?.checked_mul(1000)?))
}

/// Counts the entries of /proc/self/fd, less the one that the counting itself has open.
fn open_descriptors() -> Option<u64> {
    u64::try_from(fs::read_dir("/proc/self/fd").ok()?.count()).ok()?.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn open_files_are_counted() {
        // Other tests open and close some of their own meanwhile, but fewer.
        const FILES: u64 = 100;
        let before = open_descriptors().unwrap();
        let files: Vec<File> = (0..FILES).map(|_| File::open("/dev/null").unwrap()).collect();
        let after = open_descriptors().unwrap();
        assert!(after > before + FILES / 2, "{before} {after}");
        drop(files);
    }

    #[test]
    fn resident_memory_is_found_among_the_lines() {
        for (status, expected) in [
            ("Name:\tberth\nVmRSS:\t    2048 kB\nRssAnon:\t 1 kB\n", Some(2_097_152)),
            ("Name:\tkthreadd\n", None),
            ("VmRSS:\t2048 MB\n", None),
            ("VmRSS:\t99999999999999999999 kB\n", None),
        ] {
            assert_eq!(resident_bytes(status), expected, "{status}");
        }
    }
}
