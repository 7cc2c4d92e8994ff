//! A hash map whose copies share what they have in common.
//!
//! It has two levels of branches and then leaves of a few entries, all of them shared. A change copies one leaf, its branch
//! and the root, so it costs nearly the same in a small map and in a large one: both are as long as the root of the number
//! of leaves, some 250 pointers for 100,000 names. A library's map (imbl's) has smaller nodes and more levels: building it takes several
//! times as long, and each level is a place in memory that no cache of the processor has at hand.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::fast::RandomState;

/// Entries of a leaf when a map is made for a known number of them: they fill few lines of the processor's cache, and
/// nearly every place of a branch is used.
const LEAF_ENTRIES: usize = 4;

/// Entries of a leaf, on average, from which on all of them are spread over more leaves.
const LEAF_ENTRIES_MAX: usize = 16;

/// A hash map whose copies share what they have in common.
pub(crate) struct Persistent<K, V> {
    hasher: RandomState,
    /// The branches; none while there is no entry.
    root: Arc<Vec<Branch<K, V>>>,
    /// How many leaves there are, as a power of two.
    bits: u32,
    len: usize,
}

type Branch<K, V> = Arc<Vec<Leaf<K, V>>>;

type Leaf<K, V> = Arc<Vec<Entry<K, V>>>;

#[derive(Clone)]
struct Entry<K, V> {
    hash: u64,
    key: K,
    value: V,
}

impl<K: Hash + Eq + Clone, V: Clone> Persistent<K, V> {
    /// A map of these entries: what came first stands, and may take something from those with the same key.
    ///
    /// Costs a fraction of putting them in one after the other: each leaf gets the room that it needs.
    pub(crate) fn collected(entries: Vec<(K, V)>, mut meet: impl FnMut(&mut V, V)) -> Self {
        let mut map = Self::default();
        if entries.is_empty() {
            return map;
        }
        let leaves = (entries.len() / LEAF_ENTRIES).max(1).next_power_of_two();
        map.bits = leaves.trailing_zeros();
        let hashes: Vec<u64> = entries.iter().map(|(key, _)| map.hasher.hash_one(key)).collect();
        let mut lengths = vec![0_u32; leaves];
        for hash in &hashes {
            lengths[map.leaf_number(*hash)] += 1;
        }
        let mut filled: Vec<Vec<Entry<K, V>>> =
            lengths.into_iter().map(|length| Vec::with_capacity(length as usize)).collect();
        for (hash, (key, value)) in hashes.into_iter().zip(entries) {
            let leaf = &mut filled[map.leaf_number(hash)];
            match leaf.iter_mut().find(|entry| entry.hash == hash && entry.key == key) {
                Some(known) => meet(&mut known.value, value),
                None => leaf.push(Entry { hash, key, value }),
            }
        }
        map.len = filled.iter().map(Vec::len).sum();
        let mut filled = filled.into_iter().map(Arc::new);
        let length = 1 << map.branch_bits();
        let branch = |_| Arc::new(filled.by_ref().take(length).collect());
        map.root = Arc::new((0..leaves / length).map(branch).collect());
        map
    }

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
        let (branch, leaf) = self.place(hash);
        let leaf = &self.root[branch][leaf];
        let entry = leaf.iter().find(|entry| entry.hash == hash && entry.key.borrow() == key)?;
        Some(&entry.value)
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
        let leaf = self.leaf(hash);
        if let Some(known) = leaf.iter_mut().find(|entry| entry.hash == hash && entry.key == key) {
            known.value = value;
        } else {
            leaf.push(Entry { hash, key, value });
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
        let leaf = self.leaf(hash);
        let at = leaf.iter().position(|entry| entry.hash == hash && entry.key.borrow() == key)?;
        let entry = leaf.swap_remove(at);
        self.len -= 1;
        Some(entry.value)
    }

    /// The value of a key, to be changed; a default one when there was none.
    pub(crate) fn entry<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, own: impl FnOnce() -> K) -> &mut V
    where
        K: Borrow<Q>,
        V: Default,
    {
        self.grow();
        let hash = self.hasher.hash_one(key);
        let (branch, leaf) = self.place(hash);
        let leaf = Arc::make_mut(&mut Arc::make_mut(&mut Arc::make_mut(&mut self.root)[branch])[leaf]);
        let at = leaf.iter().position(|entry| entry.hash == hash && entry.key.borrow() == key);
        let at = at.unwrap_or_else(|| {
            leaf.push(Entry { hash, key: own(), value: V::default() });
            self.len += 1;
            leaf.len() - 1
        });
        &mut leaf[at].value
    }

    /// The entries, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let entries = self.root.iter().flat_map(|branch| branch.iter()).flat_map(|leaf| leaf.iter());
        entries.map(|entry| (&entry.key, &entry.value))
    }

    /// The values, in no order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The leaf of a hash, to be changed.
    fn leaf(&mut self, hash: u64) -> &mut Vec<Entry<K, V>> {
        let (branch, leaf) = self.place(hash);
        Arc::make_mut(&mut Arc::make_mut(&mut Arc::make_mut(&mut self.root)[branch])[leaf])
    }

    /// The number of the leaf of a hash among all of them.
    fn leaf_number(&self, hash: u64) -> usize {
        // The upper bits are the better ones; there may be no bit to look at.
        (hash >> (63 - self.bits) >> 1) as usize
    }

    /// The branch of a hash, and the leaf in it.
    fn place(&self, hash: u64) -> (usize, usize) {
        let leaf = self.leaf_number(hash);
        (leaf >> self.branch_bits(), leaf & ((1 << self.branch_bits()) - 1))
    }

    /// Leaves of a branch, as a power of two: there are as many branches, or twice as many, so that a change copies as few
    /// pointers as can be.
    fn branch_bits(&self) -> u32 {
        self.bits / 2
    }

    /// Makes room for one more entry.
    fn grow(&mut self) {
        if self.root.is_empty() {
            self.spread(self.bits);
        } else if self.len >= LEAF_ENTRIES_MAX << self.bits {
            self.spread(self.bits + 2);
        }
    }

    /// Spreads the entries over so many leaves, as a power of two.
    fn spread(&mut self, bits: u32) {
        let old = std::mem::take(&mut self.root);
        self.bits = bits;
        let (branches, leaves) = (1 << (self.bits - self.branch_bits()), 1 << self.branch_bits());
        let branch = || Arc::new((0..leaves).map(|_| Leaf::default()).collect::<Vec<_>>());
        self.root = Arc::new((0..branches).map(|_| branch()).collect());
        for leaf in old.iter().flat_map(|branch| branch.iter()) {
            for entry in leaf.iter() {
                self.leaf(entry.hash).push(entry.clone());
            }
        }
    }
}

impl<K, V> Default for Persistent<K, V> {
    fn default() -> Self {
        Self { hasher: RandomState::default(), root: Arc::default(), bits: 0, len: 0 }
    }
}

impl<K, V> Clone for Persistent<K, V> {
    fn clone(&self) -> Self {
        Self { hasher: self.hasher.clone(), root: self.root.clone(), bits: self.bits, len: self.len }
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
            let mut map = Persistent::collected(first.clone(), |known, other| *known = (*known).max(other));
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
    fn a_change_copies_one_leaf_and_one_branch() {
        let map = Persistent::collected((0..100_000).map(|number| (number, 0)).collect(), |_, _| {});
        let mut next = map.clone();
        next.insert(7, 1);
        let differing = |(a, b): &(&Branch<i32, i32>, &Branch<i32, i32>)| !Arc::ptr_eq(a, b);
        let branches: Vec<_> = map.root.iter().zip(next.root.iter()).filter(differing).collect();
        assert_eq!(branches.len(), 1);
        let leaves = branches[0].0.iter().zip(branches[0].1.iter());
        assert_eq!(leaves.filter(|(a, b)| !Arc::ptr_eq(a, b)).count(), 1);
        assert!(map.root.len() + map.root[0].len() < 500);
        assert_eq!((map.get(&7), next.get(&7)), (Some(&0), Some(&1)));
    }
}
