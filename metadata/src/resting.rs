//! Connections that rest between two requests, oldest first: closed when others need the room, or when they rest too long.

use std::collections::BTreeMap;
use std::collections::btree_map::OccupiedEntry;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// Connections that rest, each in a task of its own. Times are those since some moment.
#[derive(Default)]
pub(crate) struct Evictions {
    /// By age; the number tells apart those of one age.
    resting: Mutex<BTreeMap<(Duration, u64), Resting>>,
    numbers: AtomicU64,
    /// Whether no connection may rest any more; changed only while the table is locked.
    closed: AtomicBool,
}

struct Resting {
    evicted: Arc<AtomicBool>,
    waker: Waker,
}

/// A connection among those that may have to go, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Rest {
    evictions: Arc<Evictions>,
    key: (Duration, u64),
    evicted: Arc<AtomicBool>,
}

impl Evictions {
    /// One connection more that rests since `since`; its task is woken when it has to go.
    pub(crate) fn rest(self: &Arc<Self>, since: Duration, waker: Waker) -> Rest {
        let key = (since, self.numbers.fetch_add(1, Ordering::Relaxed));
        let mut resting = self.lock();
        let evicted = Arc::new(AtomicBool::new(self.are_closed()));
        resting.insert(key, Resting { evicted: evicted.clone(), waker });
        drop(resting);
        Rest { evictions: self.clone(), key, evicted }
    }

    /// Since when the one rests that rests longest.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.lock().first_key_value().map(|((since, _), _)| *since)
    }

    /// Makes the one go that rests longest; returns whether there was one.
    pub(crate) fn evict(&self) -> bool {
        self.evict_since(Duration::MAX)
    }

    /// The same, if that one rests since this time or longer.
    pub(crate) fn evict_since(&self, time: Duration) -> bool {
        let mut resting = self.lock();
        let oldest = resting.first_entry().filter(|oldest| oldest.key().0 <= time).map(OccupiedEntry::remove);
        drop(resting);
        oldest.is_some_and(|Resting { evicted, waker }| {
            evicted.store(true, Ordering::Release);
            waker.wake();
            true
        })
    }

    /// Makes all go, and all that come to rest later.
    pub(crate) fn close(&self) {
        let resting = self.lock();
        self.closed.store(true, Ordering::Release);
        drop(resting);
        while self.evict() {}
    }

    /// Whether no connection may rest any more.
    pub(crate) fn are_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Held for a look into the table, never together with another lock.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Duration, u64), Resting>> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rest {
    /// Whether the connection has to go.
    pub(crate) fn is_over(&self) -> bool {
        self.evicted.load(Ordering::Acquire)
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        self.evictions.lock().remove(&self.key);
    }
}

impl fmt::Debug for Evictions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Evictions").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_one_that_rests_longest_goes_first() {
        let evictions = Arc::new(Evictions::default());
        assert!(!evictions.evict());
        let rest = |seconds| evictions.rest(at(seconds), Waker::noop().clone());
        let (young, old, gone) = (rest(3), rest(2), rest(1));
        assert_eq!(evictions.oldest(), Some(at(1)));
        drop(gone);
        assert!(!evictions.evict_since(at(1)) && evictions.evict_since(at(2)));
        assert!(old.is_over() && !young.is_over());
        drop(old);
        assert!(evictions.evict() && !evictions.evict() && young.is_over());
        assert_eq!(evictions.oldest(), None);
    }

    #[test]
    fn none_rests_any_more_once_they_are_closed() {
        let evictions = Arc::new(Evictions::default());
        let before = evictions.rest(at(1), Waker::noop().clone());
        assert!(!before.is_over() && !evictions.are_closed());
        evictions.close();
        assert!(before.is_over() && evictions.are_closed());
        assert!(evictions.rest(at(2), Waker::noop().clone()).is_over());
    }
}
