//! The clock of promises.

use std::time::Duration;

use tokio::time::Instant;

/// Time since 1970 that never goes back while the process runs, so that it means about the same to the next one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    before: Duration,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), before }
    }

    pub(crate) fn now(self) -> Duration {
        self.before + self.start.elapsed()
    }
}
