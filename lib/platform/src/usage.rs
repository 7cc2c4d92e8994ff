//! What our own process uses of the machine, for the page of metrics.

#[cfg_attr(unix, path = "usage/unix.rs")]
#[cfg_attr(windows, path = "usage/windows.rs")]
mod system;

use std::time::Duration;

/// A look at our own process. What the system does not report is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of memory in RAM.
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

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn every_number_is_known_and_plausible() {
        let usage = Usage::now();
        assert!(usage.resident_bytes.unwrap() > 100_000, "{usage:?}");
        // Not the number itself: Wine says 0.
        assert!(usage.open_descriptors.is_some(), "{usage:?}");
        assert!(usage.cpu.unwrap() < Duration::from_hours(1), "{usage:?}");
    }

    #[test]
    fn memory_in_use_is_counted() {
        const BYTES: usize = 64 << 20;
        let before = Usage::now().resident_bytes.unwrap();
        let memory = black_box(vec![1_u8; BYTES]);
        let after = Usage::now().resident_bytes.unwrap();
        assert!(after > before + BYTES as u64 / 2, "{before} {after}");
        drop(memory);
    }

    #[test]
    fn processor_time_grows_with_work() {
        let before = Usage::now().cpu.unwrap();
        let mut sum = 0_u64;
        while Usage::now().cpu.unwrap() <= before {
            sum = black_box(sum.wrapping_add(1));
        }
    }
}
