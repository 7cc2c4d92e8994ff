//! A hash map whose copies share what they have in common.
//!
//! It has one level of branches, all of them shared; each has its entries in one piece, and a table of where they are. A
//! change copies one branch and the root, so it costs nearly the same in a small map and in a large one: both are as long as
//! the root of the number of entries, some hundreds of either for 100,000 names. A library's map (imbl's) has smaller nodes
//! and more levels: building it takes several times as long, and each level is a place in memory that no cache of the
//! processor has at hand.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::slots::Slots;

/// A hash map whose copies share what they have in common.
pub(crate) struct Persistent<K, V> {
    hasher: RandomState,
    /// None while there is no entry.
    branches: Arc<[Arc<Branch<K, V>>]>,
    /// How many branches there are, as a power of two.
    bits: u32,
    len: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> Persistent<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        if self.len == 0 {
            return None;
        }
        let hash = self.hasher.hash_one(key);
        let branch = &self.branches[branch_of(hash, self.bits)];
        branch.find(hash, key).map(|at| &branch.entries[at].1)
    }

    pub(crate) fn contains_key<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Puts a value at a key, in place of the one that may stand there.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.grow();
        let hash = self.hasher.hash_one(&key);
        let branch = self.branch_mut(hash);
        if let Some(at) = branch.find(hash, &key) {
            branch.entries[at].1 = value;
        } else {
            branch.push(hash, key, value);
            self.len += 1;
        }
    }

    /// Takes the value of a key away.
    pub(crate) fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        // Not even a copy is made for a key that is not there.
        if !self.contains_key(key) {
            return None;
        }
        let hash = self.hasher.hash_one(key);
        let branch = self.branch_mut(hash);
        let at = branch.find(hash, key)?;
        let (_, value) = branch.take(at);
        self.len -= 1;
        Some(value)
    }

    /// The value of a key, to be changed; a default one when there was none.
    pub(crate) fn entry<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, own: impl FnOnce() -> K) -> &mut V
    where
        K: Borrow<Q>,
        V: Default,
    {
        self.grow();
        let hash = self.hasher.hash_one(key);
        let branch = Arc::make_mut(&mut Arc::make_mut(&mut self.branches)[branch_of(hash, self.bits)]);
        let at = branch.find(hash, key).unwrap_or_else(|| {
            self.len += 1;
            branch.push(hash, own(), V::default())
        });
        &mut branch.entries[at].1
    }

    /// The entries, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.branches.iter().flat_map(|branch| &branch.entries).map(|(key, value)| (key, value))
    }

    /// The values, in no order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The branch of a hash, to be changed.
    fn branch_mut(&mut self, hash: u64) -> &mut Branch<K, V> {
        Arc::make_mut(&mut Arc::make_mut(&mut self.branches)[branch_of(hash, self.bits)])
    }

    /// Makes room for one more entry.
    fn grow(&mut self) {
        if self.branches.is_empty() || self.len >= entries_of(self.bits + 1) {
            let mut collected = Collected { hasher: self.hasher.clone(), ..Collected::expecting(self.len + 1) };
            for (key, value) in self.iter() {
                collected.push(key.clone(), value.clone(), |_, _, _| {});
            }
            *self = collected.into_map();
        }
    }
}

/// Entries of a map that is made of all of them at once.
///
/// Costs a fraction of putting them in one after the other: they are spread once, and nothing is shared yet.
pub(crate) struct Collected<K, V> {
    hasher: RandomState,
    branches: Vec<Branch<K, V>>,
    bits: u32,
}

impl<K: Hash + Eq + Clone, V: Clone> Collected<K, V> {
    /// Room for about so many.
    pub(crate) fn expecting(entries: usize) -> Self {
        let bits = (0..usize::BITS / 2 - 1).find(|bits| entries_of(*bits) >= entries).unwrap_or_default();
        // Those of all branches lie side by side, where more of them are at hand than beside their entries.
        let slots: Vec<_> = (0..1 << bits).map(|_| Slots::expecting(entries >> bits)).collect();
        let branches = slots.into_iter().map(|slots| Branch::expecting(entries >> bits, slots)).collect();
        Self { hasher: RandomState::default(), branches, bits }
    }

    /// Adds an entry. What came first with a key stands, and may take something from the others.
    pub(crate) fn push(&mut self, key: K, value: V, meet: impl FnOnce(&K, &mut V, V)) {
        let hash = self.hasher.hash_one(&key);
        let branch = &mut self.branches[branch_of(hash, self.bits)];
        if let Some(at) = branch.find(hash, &key) {
            let (key, known) = &mut branch.entries[at];
            meet(key, known, value);
        } else {
            branch.push(hash, key, value);
        }
    }

    /// The value of a key, to be changed; a default one when there was none.
    pub(crate) fn entry<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, own: impl FnOnce() -> K) -> &mut V
    where
        K: Borrow<Q>,
        V: Default,
    {
        let hash = self.hasher.hash_one(key);
        let branch = &mut self.branches[branch_of(hash, self.bits)];
        let at = branch.find(hash, key).unwrap_or_else(|| branch.push(hash, own(), V::default()));
        &mut branch.entries[at].1
    }

    /// The map of them.
    pub(crate) fn into_map(self) -> Persistent<K, V> {
        let Self { hasher, mut branches, bits } = self;
        let len = branches.iter().map(|branch| branch.entries.len()).sum();
        for branch in &mut branches {
            branch.entries.shrink_to_fit();
        }
        Persistent { hasher, branches: branches.into_iter().map(Arc::new).collect(), bits, len }
    }
}

/// Entries whose hashes begin alike, and where they are.
#[derive(Clone)]
struct Branch<K, V> {
    slots: Slots,
    entries: Vec<(K, V)>,
}

impl<K, V> Branch<K, V> {
    /// Room for about so many entries.
    fn expecting(entries: usize, slots: Slots) -> Self {
        // By chance some branches get more than others.
        Self { slots, entries: Vec::with_capacity(entries + entries / 4 + 1) }
    }

    /// Where the entry of a key is.
    fn find<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        self.slots.find(hash, |at| self.entries.get(at).is_some_and(|entry| entry.0.borrow() == key))
    }

    /// Puts an entry at the end; returns where it is.
    fn push(&mut self, hash: u64, key: K, value: V) -> usize {
        let at = self.entries.len();
        self.slots.push(hash, at);
        self.entries.push((key, value));
        at
    }

    /// Takes an entry out; the last one gets its place.
    fn take(&mut self, at: usize) -> (K, V) {
        self.slots.take(at, self.entries.len() - 1);
        self.entries.swap_remove(at)
    }
}

/// How many entries there are when there are as many in each branch as there are branches.
fn entries_of(bits: u32) -> usize {
    1 << (2 * bits)
}

/// The branch of a hash among so many of them, as a power of two.
fn branch_of(hash: u64, bits: u32) -> usize {
    // The upper bits, since slots are found by the lower ones; there may be no bit to look at.
    (hash >> (63 - bits) >> 1) as usize
}

impl<K, V> Default for Persistent<K, V> {
    fn default() -> Self {
        Self { hasher: RandomState::default(), branches: Arc::default(), bits: 0, len: 0 }
    }
}

impl<K, V> Clone for Persistent<K, V> {
    fn clone(&self) -> Self {
        Self { hasher: self.hasher.clone(), branches: self.branches.clone(), bits: self.bits, len: self.len }
    }
}

impl<K: Hash + Eq + Clone + fmt::Debug, V: Clone + fmt::Debug> fmt::Debug for Persistent<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Does what the standard library's map does, and never changes a copy.
        #[test]
        fn is_a_map(sized in 0..500usize, steps in prop::collection::vec((0..300u16, prop::option::of(0..9u8)), 0..900)) {
            // Some keys are there twice: the first value stands.
            let first: Vec<_> = (0..sized).map(|turn| (u16::try_from(turn * 7 % 300).unwrap(), 7)).collect();
            let mut collected = Collected::expecting(0);
            for (key, value) in &first {
                collected.push(*key, *value, |_, known, other| *known = (*known).max(other));
            }
            let mut map = collected.into_map();
            let mut known: HashMap<_, _> = first.into_iter().collect();
            let mut copies = Vec::new();
            for (turn, (key, value)) in steps.iter().enumerate() {
                match value {
                    Some(9..) => *map.entry(key, || *key) = 0,
                    Some(value) if value % 2 == 0 => *map.entry(key, || *key) = *value,
                    Some(value) => map.insert(*key, *value),
                    None => prop_assert_eq!(map.remove(key), known.get(key).copied()),
                }
                match value {
                    Some(value) => drop(known.insert(*key, *value)),
                    None => drop(known.remove(key)),
                }
                if turn % 100 == 0 {
                    copies.push((map.clone(), known.clone()));
                }
            }
            copies.push((map, known));
            for (map, known) in &copies {
                prop_assert_eq!(map.len(), known.len());
                prop_assert_eq!(map.iter().map(|(key, value)| (*key, *value)).collect::<HashMap<_, _>>(), known.clone());
                for key in 0..300 {
                    prop_assert_eq!(map.get(&key), known.get(&key));
                }
            }
        }
    }

    #[test]
    fn a_change_copies_one_branch() {
        let mut collected = Collected::expecting(100_000);
        (0..100_000).for_each(|number| collected.push(number, 0, |_, _, _| {}));
        let map = collected.into_map();
        let mut next = map.clone();
        next.insert(7, 1);
        let branches = map.branches.iter().zip(next.branches.iter());
        let copied: Vec<_> = branches.filter(|(a, b)| !Arc::ptr_eq(a, b)).collect();
        assert_eq!(copied.len(), 1);
        let copied = map.branches.len() + copied[0].0.entries.len();
        assert!(copied < 1000, "{copied}");
        assert_eq!((map.get(&7), next.get(&7)), (Some(&0), Some(&1)));
    }
}
