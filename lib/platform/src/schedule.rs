//! How soon a thread gets a processor that others use.

#[cfg_attr(target_os = "linux", path = "schedule/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "schedule/other.rs")]
mod system;

use std::io;
use std::time::Duration;

/// The shortest slice that the kernel takes (sched(7), since Linux 6.12): some hundred answers.
const SLICE: Duration = Duration::from_micros(100);

/// Asks for a short slice for this thread, which is for threads that answer at once and sleep again: it then interrupts a thread that has a longer
/// slice instead of waiting for the end of that, some milliseconds. Its share of the processor stays what it was.
///
/// Returns whether the system knows such a thing: Linux before 6.12 does not, and on Windows a thread gets a processor sooner only
/// with a priority that takes it away from all others.
///
/// # Errors
///
/// Fails if the process may not change how it is scheduled.
pub fn shorten_slice() -> io::Result<bool> {
    system::shorten_slice(SLICE)
}

/// How nice a thread is that gives way (sched(7)): beside one that does not, it has a tenth of the processor.
const NICE: i32 = 10;

/// Has this thread, and those that it starts, leave a processor to the other threads that want it, which is for what a person looks at beside what programs wait for.
///
/// Returns whether it does: elsewhere than on Linux it does not.
///
/// # Errors
///
/// Fails if the process may not change how it is scheduled.
pub fn give_way() -> io::Result<bool> {
    system::give_way(NICE)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_threads_slice_is_its_own() {
        let asked = thread::spawn(|| {
            let knows = shorten_slice().unwrap();
            // Once more changes nothing.
            assert_eq!(shorten_slice().unwrap(), knows);
            (knows, system::slice().unwrap(), thread::spawn(|| system::slice().unwrap()).join().unwrap())
        });
        let (knows, own, of_its_child) = asked.join().unwrap();
        let usual = system::slice().unwrap();
        assert_eq!(own == SLICE, knows);
        assert_ne!(usual, SLICE);
        assert_eq!(of_its_child, usual);
    }

    #[test]
    fn a_thread_gives_way_with_those_that_it_starts() {
        let asked = thread::spawn(|| {
            let usual = system::nice().unwrap();
            let does = give_way().unwrap();
            (does, usual, system::nice().unwrap(), thread::spawn(|| system::nice().unwrap()).join().unwrap())
        });
        let (does, usual, own, of_its_child) = asked.join().unwrap();
        assert_eq!(own, if does { usual.max(NICE) } else { usual });
        assert_eq!(of_its_child, own);
        assert_eq!(system::nice().unwrap(), usual);
    }
}
