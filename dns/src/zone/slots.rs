//! Slots: where things are in a list, by their hashes.
//!
//! A hash table with open addresses and linear probing that holds no things but their numbers, so that it is small and a
//! copy of it is a copy of bytes. Lists have thousands of things at most.

use std::num::NonZero;

/// Where things are in a list, by their hashes.
#[derive(Clone)]
pub(super) struct Slots {
    /// At least a quarter of them is free, so that few are looked at; as many as a power of two.
    slots: Box<[Option<Slot>]>,
}

/// Where one thing is.
#[derive(Clone, Copy)]
struct Slot {
    /// The end of its hash: where it should be in the table, and whether it is worth looking at.
    tag: u16,
    /// Its number in the list, the first one being 1.
    number: NonZero<u16>,
}

const _: () = assert!(size_of::<Option<Slot>>() == 4);

impl Slots {
    /// Room for so many things before there has to be more.
    pub(super) fn expecting(things: usize) -> Self {
        Self { slots: vec![None; (things + things / 3 + 1).next_power_of_two()].into() }
    }

    /// Where a thing with this hash is that fits.
    pub(super) fn find(&self, hash: u64, fits: impl Fn(usize) -> bool) -> Option<usize> {
        let tag = tag_of(hash);
        let mut at = self.home(tag);
        while let Some(slot) = self.slots[at] {
            if slot.tag == tag && fits(slot.place()) {
                return Some(slot.place());
            }
            at = self.next(at);
        }
        None
    }

    /// Remembers the thing that is put at the end of a list, and so where `len` is.
    pub(super) fn push(&mut self, hash: u64, len: usize) {
        if len + 1 > self.slots.len() / 4 * 3 {
            let old = std::mem::replace(self, Self::expecting(len + 1));
            old.slots.iter().flatten().for_each(|slot| self.put(*slot));
        }
        // A list of more is that of a map with more entries than any memory holds: see `Persistent`.
        let number = u16::try_from(len + 1).ok().and_then(NonZero::new).unwrap_or(NonZero::<u16>::MAX);
        self.put(Slot { tag: tag_of(hash), number });
    }

    /// Forgets the thing at `place`, which then is that of the one at `last`.
    pub(super) fn take(&mut self, place: usize, last: usize) {
        let slot_of = |place| self.slots.iter().position(|slot| slot.is_some_and(|slot| slot.place() == place));
        let (Some(taken), Some(moved)) = (slot_of(place), slot_of(last)) else { return };
        let number = self.slots[taken].map(|slot| slot.number);
        self.slots[moved] = self.slots[moved].zip(number).map(|(slot, number)| Slot { number, ..slot });
        // An entry behind a free slot is not found any more, unless it is at its own slot.
        let (mut free, mut at) = (taken, self.next(taken));
        while let Some(slot) = self.slots[at] {
            if self.steps(self.home(slot.tag), at) >= self.steps(free, at) {
                self.slots[free] = Some(slot);
                free = at;
            }
            at = self.next(at);
        }
        self.slots[free] = None;
    }

    /// Puts a slot into the first free place.
    fn put(&mut self, slot: Slot) {
        let mut at = self.home(slot.tag);
        while self.slots[at].is_some() {
            at = self.next(at);
        }
        self.slots[at] = Some(slot);
    }

    /// Where a thing should be.
    fn home(&self, tag: u16) -> usize {
        usize::from(tag) & (self.slots.len() - 1)
    }

    /// Where it is otherwise.
    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }

    /// How many times [`Self::next`] leads from one to the other.
    fn steps(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.slots.len() - 1)
    }
}

impl Slot {
    fn place(self) -> usize {
        usize::from(self.number.get()) - 1
    }
}

/// The end of a hash.
fn tag_of(hash: u64) -> u16 {
    let [.., upper, lower] = hash.to_be_bytes();
    u16::from_be_bytes([upper, lower])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Things are found where they are, however they came there, and nothing else is.
        #[test]
        fn things_are_found(steps in prop::collection::vec((any::<bool>(), 0..40u64, any::<prop::sample::Index>()), 0..300)) {
            let (mut slots, mut list) = (Slots::expecting(0), Vec::new());
            for (taken, hash, index) in steps {
                if taken && !list.is_empty() {
                    let at = index.index(list.len());
                    slots.take(at, list.len() - 1);
                    list.swap_remove(at);
                } else {
                    slots.push(hash, list.len());
                    list.push(hash);
                }
                for (at, hash) in list.iter().enumerate() {
                    prop_assert_eq!(slots.find(*hash, |found| found == at), Some(at));
                }
                for hash in 0..40 {
                    prop_assert_eq!(slots.find(hash, |_| true).is_some(), list.contains(&hash));
                }
                prop_assert_eq!(slots.slots.iter().flatten().count(), list.len());
            }
        }
    }
}
