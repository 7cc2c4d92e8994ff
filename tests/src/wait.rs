//! Waiting for something to become true, with a limit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::companion;

/// Time between two looks.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// How many times slower than a developer's machine this one is said to be (`BERTH_TIME_SCALE`, default 1).
pub fn scale() -> f64 {
    let given = std::env::var("BERTH_TIME_SCALE").ok().and_then(|text| text.parse().ok());
    given.filter(|scale: &f64| scale.is_finite() && *scale >= 1.0).unwrap_or(1.0)
}

/// A limit as this machine needs it.
pub fn scaled(limit: Duration) -> Duration {
    limit.mul_f64(scale())
}

/// A limit in milliseconds as this machine needs it.
pub fn millis(limit: u64) -> Duration {
    scaled(Duration::from_millis(limit))
}

/// A limit in seconds as this machine needs it.
pub fn seconds(limit: u64) -> Duration {
    scaled(Duration::from_secs(limit))
}

/// What `probe` finds, as soon as it finds something; `limit` is scaled. Panics afterwards, naming `what`; earlier when a
/// [`companion`](crate::companion) of this thread has.
pub fn eventually<T>(what: &str, limit: Duration, probe: impl FnMut() -> Option<T>) -> T {
    timed(what, limit, probe).0
}

/// The same with the time that it took.
pub fn timed<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Option<T>) -> (T, Duration) {
    let (begun, limit) = (Instant::now(), scaled(limit));
    loop {
        if let Some(found) = probe() {
            return (found, begun.elapsed());
        }
        companion::check();
        assert!(begun.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Sets a flag at the end of its scope, also when that panics: threads that watch the flag then end, and the scope that
/// waits for them does.
#[derive(Debug)]
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
