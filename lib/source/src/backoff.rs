//! How long to wait before trying again: doubling, bounded, with jitter, so that clients that lost one peer do not
//! return together.

use std::cell::RefCell;
use std::time::Duration;

/// Random bytes that are asked for at once: a thousand checks a second need a few calls.
const SPARE_BYTES: usize = 256;

/// Waiting times between tries.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Waits about `first` after the first failure and at most `longest` after many.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// Forgets the failures.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// The time to wait after one more failure; `random` picks a point between a half and the whole of it.
    fn after_failure(&mut self, random: u8) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.longest);
        wait / 2 + wait / 2 * u32::from(random) / u32::from(u8::MAX)
    }

    /// [`Backoff::after_failure`] with a random number of the system.
    pub fn wait(&mut self) -> Duration {
        let mut random = [u8::MAX];
        // Without randomness the longest wait is taken: late, but right.
        let _ = getrandom::fill(&mut random);
        self.after_failure(random[0])
    }
}

/// About this time, up to a tenth less or more, so that processes that do the same do not do it together.
pub fn jittered(time: Duration) -> Duration {
    time * 9 / 10 + time / 5 * u32::from(random()) / u32::from(u8::MAX)
}

/// A random number of the system, which is asked for many at once.
fn random() -> u8 {
    thread_local! { static SPARE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) } }
    SPARE.with_borrow_mut(|spare| {
        if spare.is_empty() {
            spare.resize(SPARE_BYTES, u8::MAX / 2);
            // Without randomness they are about the middle.
            let _ = getrandom::fill(spare);
        }
        spare.pop().unwrap_or(u8::MAX / 2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_differ_by_a_tenth_at_most() {
        let times: Vec<_> = (0..100).map(|_| jittered(Duration::from_mins(1)).as_secs_f64()).collect();
        assert!(times.iter().all(|time| (54.0..=66.0).contains(time)), "{times:?}");
        assert!(times.iter().any(|time| *time < 60.0) && times.iter().any(|time| *time > 60.0), "{times:?}");
    }

    #[test]
    fn waits_double_up_to_the_longest_and_start_over() {
        let seconds = Duration::from_secs;
        let mut backoff = Backoff::new(seconds(1), seconds(4));
        let waits: Vec<_> = (0..4).map(|_| backoff.after_failure(u8::MAX)).collect();
        assert_eq!(waits, [seconds(1), seconds(2), seconds(4), seconds(4)]);
        backoff.reset();
        assert_eq!(backoff.after_failure(0), seconds(1) / 2);
    }
}
