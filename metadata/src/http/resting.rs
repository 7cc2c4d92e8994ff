//! Connections that rest between two requests, oldest first: closed when others need the room, or when they rest too long.
//!
//! A connection changes between resting and busy with every request, so this costs one atomic operation. The table is put in
//! order only when a connection has to go.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// Connections that rest, each in a task of its own. Times are those since some moment.
#[derive(Default)]
pub(crate) struct Evictions {
    /// By a time at which each was busy or came to rest: it rests since then or later. The number distinguishes those of one
    /// time.
    table: Mutex<BTreeMap<(u64, u64), Arc<Entry>>>,
    numbers: AtomicU64,
    /// Whether no connection may rest any more; changed only while the table is locked.
    closed: AtomicBool,
}

struct Entry {
    number: u64,
    /// The time in its key; changed only while the table is locked.
    key: AtomicU64,
    /// Since when it rests, in microseconds, or one of the states below.
    state: AtomicU64,
    waker: Waker,
}

/// It answers a request.
const BUSY: u64 = u64::MAX;
/// It has to go, and is not in the table any more.
const EVICTED: u64 = u64::MAX - 1;
/// It was busy when the table was put in order, and is not in it any more.
const OUT: u64 = u64::MAX - 2;

/// A connection that may have to go whenever it rests, for as long as this lives.
#[derive(Default)]
pub(crate) struct Rest(Option<(Arc<Evictions>, Arc<Entry>)>);

impl Evictions {
    /// Since when the one rests that rests longest, or earlier.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.lock().first_key_value().map(|((since, _), _)| Duration::from_micros(*since))
    }

    /// Makes the one go that rests longest; returns whether there was one.
    pub(crate) fn evict(&self) -> bool {
        self.evict_since(Duration::MAX)
    }

    /// The same, if that one rests since this time or longer.
    pub(crate) fn evict_since(&self, time: Duration) -> bool {
        let time = micros(time);
        let mut table = self.lock();
        while let Some(first) = table.first_entry().filter(|first| first.key().0 <= time) {
            let (key, entry) = first.remove_entry();
            let since = entry.state.load(Ordering::Acquire);
            let next = match since {
                BUSY => OUT,
                // It came to rest later than its key says, so that it is perhaps not the oldest.
                since if since > key.0 => {
                    entry.key.store(since, Ordering::Relaxed);
                    table.insert((since, entry.number), entry);
                    continue;
                }
                _ => EVICTED,
            };
            if entry.state.compare_exchange(since, next, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // It has come to rest or has become busy just now.
                table.insert(key, entry);
            } else if next == EVICTED {
                drop(table);
                entry.waker.wake_by_ref();
                return true;
            }
        }
        false
    }

    /// Makes all go, and all that come to rest later.
    pub(crate) fn close(&self) {
        let table = self.lock();
        self.closed.store(true, Ordering::Release);
        drop(table);
        while self.evict() {}
    }

    /// Whether no connection may rest any more.
    pub(crate) fn are_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Held for a look into the table, never together with another lock.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u64, u64), Arc<Entry>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rest {
    /// The connection rests since `since`; `waker` wakes its task, the same one each time.
    pub(crate) fn begin(&mut self, evictions: &Arc<Evictions>, since: Duration, waker: &Waker) {
        let since = micros(since);
        let begun = self.0.as_ref().is_some_and(|(_, entry)| {
            entry.state.compare_exchange(BUSY, since, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        if begun {
            return;
        }
        let number = evictions.numbers.fetch_add(1, Ordering::Relaxed);
        let mut table = evictions.lock();
        let state = if evictions.are_closed() { EVICTED } else { since };
        let entry = Entry { number, key: since.into(), state: state.into(), waker: waker.clone() };
        let entry = Arc::new(entry);
        if state != EVICTED {
            table.insert((since, number), entry.clone());
        }
        drop(table);
        *self = Self(Some((evictions.clone(), entry)));
    }

    /// A connection that rested is busy again.
    pub(crate) fn end(&mut self) {
        let Some((_, entry)) = &self.0 else { return };
        let rests = |state| (state < OUT).then_some(BUSY);
        if entry.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, rests).is_err() {
            // Evicted, but what it was asked first is answered.
            self.0 = None;
        }
    }

    /// Whether the connection has to go.
    pub(crate) fn is_over(&self) -> bool {
        self.0.as_ref().is_some_and(|(_, entry)| entry.state.load(Ordering::Acquire) == EVICTED)
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        if let Some((evictions, entry)) = &self.0 {
            let mut table = evictions.lock();
            table.remove(&(entry.key.load(Ordering::Relaxed), entry.number));
        }
    }
}

/// A time as the table has it; the longest ones are states.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).min(OUT - 1)
}

impl fmt::Debug for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rest").finish_non_exhaustive()
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

    /// A connection that rests since then.
    fn rest(evictions: &Arc<Evictions>, seconds: u64) -> Rest {
        let mut rest = Rest::default();
        begin(&mut rest, evictions, seconds);
        rest
    }

    fn begin(rest: &mut Rest, evictions: &Arc<Evictions>, seconds: u64) {
        rest.begin(evictions, Duration::from_secs(seconds), Waker::noop());
    }

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_one_that_rests_longest_goes_first() {
        let evictions = Arc::new(Evictions::default());
        assert!(!evictions.evict());
        let (young, old, gone) = (rest(&evictions, 3), rest(&evictions, 2), rest(&evictions, 1));
        assert_eq!(evictions.oldest(), Some(at(1)));
        drop(gone);
        assert!(!evictions.evict_since(at(1)) && evictions.evict_since(at(2)));
        assert!(old.is_over() && !young.is_over());
        drop(old);
        assert!(evictions.evict() && !evictions.evict() && young.is_over());
        assert_eq!(evictions.oldest(), None);
    }

    #[test]
    fn one_that_was_busy_since_is_not_the_oldest() {
        let evictions = Arc::new(Evictions::default());
        let (mut first, second, mut busy) = (rest(&evictions, 1), rest(&evictions, 2), rest(&evictions, 0));
        first.end();
        begin(&mut first, &evictions, 3);
        busy.end();
        assert!(evictions.evict() && second.is_over() && !first.is_over() && !busy.is_over());
        // One that is busy does not go, and can go as soon as it rests again.
        assert!(evictions.evict() && first.is_over() && !evictions.evict() && !busy.is_over());
        begin(&mut busy, &evictions, 4);
        assert!(evictions.evict() && busy.is_over());
        drop((first, second, busy));
        assert_eq!(evictions.oldest(), None);
    }

    #[test]
    fn a_request_that_came_first_is_answered() {
        let evictions = Arc::new(Evictions::default());
        let mut late = rest(&evictions, 1);
        assert!(evictions.evict());
        late.end();
        assert!(!late.is_over());
        begin(&mut late, &evictions, 2);
        assert!(!late.is_over() && evictions.oldest() == Some(at(2)));
    }

    #[test]
    fn none_rests_any_more_once_they_are_closed() {
        let evictions = Arc::new(Evictions::default());
        let (before, mut busy) = (rest(&evictions, 1), rest(&evictions, 1));
        busy.end();
        assert!(!before.is_over() && !evictions.are_closed());
        evictions.close();
        assert!(before.is_over() && evictions.are_closed() && !busy.is_over());
        begin(&mut busy, &evictions, 2);
        assert!(busy.is_over() && rest(&evictions, 2).is_over());
        assert_eq!(evictions.oldest(), None);
    }
}
