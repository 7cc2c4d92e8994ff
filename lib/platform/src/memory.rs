//! Memory: of which much is used at once, and which threads free.

#[cfg_attr(target_os = "linux", path = "memory/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "memory/other.rs")]
mod system;

use std::num::NonZeroUsize;

/// Least bytes of a buffer for which large pages are asked: two of them, of which one lies in it as a whole wherever it
/// begins.
const LARGE_MIN: usize = 4 << 20;

/// Asks for huge pages for the free room of a buffer that is about to be filled, to reduce page faults and TLB misses.
/// Best effort.
pub fn advise_huge_pages<T>(buffer: &mut Vec<T>) {
    let room = buffer.spare_capacity_mut();
    if size_of_val(room) >= LARGE_MIN {
        system::use_large_pages(room);
    }
}

/// Lets threads use what others have freed: there are no more pools of free memory (glibc's arenas) than processors.
///
/// By default there are eight times as many, so that nearly each thread has its own, and no other thread gets what is freed there. Counts for
/// threads that begin afterwards. Returns whether that is so; elsewhere than with glibc there is nothing to limit.
pub fn share_pools() -> bool {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    system::limit_pools(processors)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn threads_share_pools_of_free_memory() {
        assert_eq!(share_pools(), cfg!(all(target_os = "linux", target_env = "gnu")));
        let fill = |byte: u8| move || vec![byte; 100_000].iter().all(|own| *own == byte);
        let threads: Vec<_> = (0..16).map(|byte| thread::spawn(fill(byte))).collect();
        assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
    }

    #[test]
    fn anything_can_be_filled_in() {
        let mut buffer: Vec<(u64, String)> = Vec::with_capacity(LARGE_MIN / 8);
        advise_huge_pages(&mut buffer);
        buffer.resize(LARGE_MIN / 8, (7, "seven".to_owned()));
        assert!(buffer.iter().all(|(number, name)| (*number, &**name) == (7, "seven")));
        advise_huge_pages(&mut Vec::<()>::new());
    }

    #[test]
    fn what_is_in_a_buffer_stays() {
        for (filled, room) in [(0, 0), (3, 10), (5000, LARGE_MIN - 1), (0, LARGE_MIN), (12_345, 3 * LARGE_MIN)] {
            let bytes: Vec<u8> = (0..filled).map(|at| u8::try_from(at % 251).unwrap()).collect();
            let mut buffer = Vec::with_capacity(filled + room);
            buffer.extend_from_slice(&bytes);
            advise_huge_pages(&mut buffer);
            assert_eq!(buffer, bytes, "{room}");
            buffer.resize(filled + room, 7);
            assert_eq!(buffer[..filled], bytes, "{room}");
            assert!(buffer[filled..].iter().all(|byte| *byte == 7), "{room}");
        }
    }
}
