//! Connections that rest between two requests, oldest first: those that are closed when others need the room.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// Things that rest, by number and by age. Times are those since some moment.
#[derive(Debug)]
pub(crate) struct Resting<T> {
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
    oldest: Option<usize>,
    newest: Option<usize>,
}

#[derive(Debug)]
struct Slot<T> {
    thing: Option<T>,
    since: Duration,
    older: Option<usize>,
    newer: Option<usize>,
}

impl<T> Resting<T> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), oldest: None, newest: None }
    }

    /// The number that the next thing will have.
    pub(crate) fn next(&self) -> usize {
        self.free.last().copied().unwrap_or(self.slots.len())
    }

    /// A thing that begins to rest; returns its number, which nothing else has as long as it is here.
    pub(crate) fn insert(&mut self, thing: T, now: Duration) -> usize {
        let slot = Slot { thing: Some(thing), since: now, older: None, newer: None };
        let number = if let Some(number) = self.free.pop() {
            self.slots[number] = slot;
            number
        } else {
            self.slots.push(slot);
            self.slots.len() - 1
        };
        self.link(number);
        number
    }

    /// The thing with this number.
    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.slots.get_mut(number)?.thing.as_mut()
    }

    /// Takes out the thing with this number.
    pub(crate) fn remove(&mut self, number: usize) -> Option<T> {
        let thing = self.slots.get_mut(number)?.thing.take()?;
        self.unlink(number);
        self.free.push(number);
        Some(thing)
    }

    /// The thing with this number rests anew.
    pub(crate) fn renew(&mut self, number: usize, now: Duration) {
        if self.get_mut(number).is_some() {
            self.slots[number].since = now;
            if self.newest != Some(number) {
                self.unlink(number);
                self.link(number);
            }
        }
    }

    /// The number of the thing that rests longest, and since when.
    pub(crate) fn oldest(&self) -> Option<(usize, Duration)> {
        self.oldest.map(|number| (number, self.slots[number].since))
    }

    fn link(&mut self, number: usize) {
        let older = self.newest.replace(number);
        match older {
            Some(older) => self.slots[older].newer = Some(number),
            None => self.oldest = Some(number),
        }
        (self.slots[number].older, self.slots[number].newer) = (older, None);
    }

    fn unlink(&mut self, number: usize) {
        let (older, newer) = (self.slots[number].older, self.slots[number].newer);
        match older {
            Some(older) => self.slots[older].newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.slots[newer].older = older,
            None => self.newest = older,
        }
    }
}

/// Connections that rest each in a task of its own, and are told when they have to go.
#[derive(Default)]
pub(crate) struct Evictions {
    /// By age; the number tells apart those of one age.
    resting: Mutex<BTreeMap<(Duration, u64), Told>>,
    numbers: AtomicU64,
}

struct Told {
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
        let evicted = Arc::<AtomicBool>::default();
        self.lock().insert(key, Told { evicted: evicted.clone(), waker });
        Rest { evictions: self.clone(), key, evicted }
    }

    /// Since when the one rests that rests longest.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.lock().first_key_value().map(|((since, _), _)| *since)
    }

    /// Tells the one that rests longest to go; returns whether there was one.
    pub(crate) fn evict(&self) -> bool {
        let told = self.lock().pop_first();
        told.is_some_and(|(_, told)| {
            told.evicted.store(true, Ordering::Release);
            told.waker.wake();
            true
        })
    }

    /// Held for a look into the table, never together with another lock.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Duration, u64), Told>> {
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

    /// What is taken out, oldest first.
    fn drain(resting: &mut Resting<char>) -> String {
        let mut drained = String::new();
        while let Some((number, _)) = resting.oldest() {
            drained.extend(resting.remove(number));
        }
        drained
    }

    #[test]
    fn the_oldest_goes_first_and_numbers_are_used_again() {
        let mut resting = Resting::new();
        let numbers = ['a', 'b', 'c', 'd'].map(|thing| {
            let next = resting.next();
            assert_eq!(resting.insert(thing, at(1)), next);
            next
        });
        resting.renew(numbers[0], at(2));
        resting.renew(numbers[3], at(3));
        assert_eq!(resting.oldest(), Some((numbers[1], at(1))));
        assert_eq!((resting.remove(numbers[2]), resting.remove(numbers[2])), (Some('c'), None));
        resting.renew(numbers[2], at(4));
        assert_eq!(resting.next(), numbers[2]);
        assert_eq!(resting.insert('e', at(4)), numbers[2]);
        resting.renew(numbers[2], at(5));
        assert_eq!(drain(&mut resting), "bade");
        assert_eq!((resting.oldest(), resting.get_mut(0)), (None, None));
        assert_eq!(resting.insert('f', at(6)), numbers[2]);
        assert_eq!(drain(&mut resting), "f");
    }

    #[test]
    fn who_rests_longest_is_told_to_go() {
        let evictions = Arc::new(Evictions::default());
        assert!(!evictions.evict());
        let rest = |seconds| evictions.rest(at(seconds), Waker::noop().clone());
        let (young, old, gone) = (rest(3), rest(2), rest(1));
        assert_eq!(evictions.oldest(), Some(at(1)));
        drop(gone);
        assert!(evictions.evict());
        assert!(old.is_over() && !young.is_over());
        drop(old);
        assert!(evictions.evict() && !evictions.evict() && young.is_over());
        assert_eq!(evictions.oldest(), None);
    }
}
