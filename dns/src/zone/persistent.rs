//! A hash map whose copies share what they have in common.
//!
//! It has one level of branches, all of them shared; each has its entries in one piece, in the order of their buckets. A
//! change copies one branch and the root, so it costs nearly the same in a small map and in a large one: both are as long as
//! the root of the number of entries, some hundreds of either for 100,000 names. A library's map (imbl's) has smaller nodes
//! and more levels: building it takes several times as long, and each level is a place in memory that no cache of the
//! processor has at hand.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::fast::RandomState;

/// Entries of a bucket when a map is made for a known number of them: they fill few lines of the processor's cache, and
/// nearly every bucket is used.
const BUCKET_ENTRIES: usize = 2;

/// Entries of a bucket, on average, from which on all of them are spread over more buckets.
const BUCKET_ENTRIES_MAX: usize = 8;

/// A hash map whose copies share what they have in common.
pub(crate) struct Persistent<K, V> {
    hasher: RandomState,
    /// None while there is no entry.
    branches: Arc<Vec<Arc<Branch<K, V>>>>,
    /// How many buckets there are, as a power of two.
    bits: u32,
    len: usize,
}

/// Neighbouring buckets.
#[derive(Clone)]
struct Branch<K, V> {
    /// Where each bucket ends, which is where the next one begins.
    ends: Vec<u32>,
    entries: Vec<Entry<K, V>>,
}

#[derive(Clone)]
struct Entry<K, V> {
    hash: u64,
    key: K,
    value: V,
}

/// Entries of a map that is made of all of them at once.
///
/// Costs a fraction of putting them in one after the other: each branch gets the room that it needs.
pub(crate) struct Collected<K, V> {
    hasher: RandomState,
    entries: Vec<Option<Entry<K, V>>>,
}

impl<K: Hash + Eq + Clone, V: Clone> Collected<K, V> {
    /// Room for so many.
    pub(crate) fn with_capacity(entries: usize) -> Self {
        Self { hasher: RandomState::default(), entries: Vec::with_capacity(entries) }
    }

    /// Room for so many, which can be appended to these.
    pub(crate) fn another(&self, entries: usize) -> Self {
        Self { hasher: self.hasher.clone(), entries: Vec::with_capacity(entries) }
    }

    /// Appends what is [`another`](Self::another) of this.
    pub(crate) fn append(&mut self, mut other: Self) {
        self.entries.append(&mut other.entries);
    }

    /// Adds an entry.
    pub(crate) fn push(&mut self, key: K, value: V) {
        // Now, while the key is close.
        let hash = self.hasher.hash_one(&key);
        self.entries.push(Some(Entry { hash, key, value }));
    }

    /// The map of them: what came first stands, and may take something from those with the same key.
    pub(crate) fn into_map(self, mut meet: impl FnMut(&K, &mut V, V)) -> Persistent<K, V> {
        let Self { hasher, mut entries } = self;
        let mut map = Persistent { hasher, ..Persistent::default() };
        if entries.is_empty() {
            return map;
        }
        let buckets = (entries.len() / BUCKET_ENTRIES).max(1).next_power_of_two();
        map.bits = buckets.trailing_zeros();
        // Where each bucket begins in the order of buckets, and in the end where the next one does.
        let mut places = vec![0; buckets + 1];
        for entry in entries.iter().flatten() {
            places[map.bucket(entry.hash) + 1] += 1;
        }
        for bucket in 1..places.len() {
            places[bucket] += places[bucket - 1];
        }
        let mut order = vec![0; entries.len()];
        for (at, entry) in entries.iter().flatten().enumerate() {
            let place = &mut places[map.bucket(entry.hash)];
            order[*place] = at;
            *place += 1;
        }
        let mut begin = 0;
        let branches = places[..buckets].chunks(1 << map.branch_bits()).map(|places| {
            let end = places.last().copied().unwrap_or(begin);
            let mut branch =
                Branch { ends: Vec::with_capacity(places.len()), entries: Vec::with_capacity(end - begin) };
            for end in places {
                let bucket = branch.entries.len();
                for at in &order[begin..*end] {
                    let Some(entry) = entries[*at].take() else { continue };
                    let mut known = branch.entries[bucket..].iter_mut();
                    match known.find(|known| known.hash == entry.hash && known.key == entry.key) {
                        Some(known) => meet(&known.key, &mut known.value, entry.value),
                        None => branch.entries.push(entry),
                    }
                }
                branch.ends.push(position(branch.entries.len()));
                begin = *end;
            }
            Arc::new(branch)
        });
        let branches: Vec<_> = branches.collect();
        map.len = branches.iter().map(|branch| branch.entries.len()).sum();
        map.branches = Arc::new(branches);
        map
    }
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
        let (branch, bucket) = self.place(hash);
        let branch = &self.branches[branch];
        branch.find(bucket, hash, key).map(|at| &branch.entries[at].value)
    }

    /// Looks at the key that this one probably is, so that it is close when it is looked for in a moment.
    pub(crate) fn prepare<Q: Hash + Eq + ?Sized>(&self, key: &Q, look: impl FnOnce(&K))
    where
        K: Borrow<Q>,
    {
        if self.len == 0 {
            return;
        }
        let hash = self.hasher.hash_one(key);
        let (branch, bucket) = self.place(hash);
        let branch = &self.branches[branch];
        if let Some(entry) = branch.bucket(bucket).iter().find(|entry| entry.hash == hash) {
            look(&entry.key);
        }
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
        let (branch, bucket) = self.branch_mut(hash);
        if let Some(at) = branch.find(bucket, hash, &key) {
            branch.entries[at].value = value;
        } else {
            branch.push(bucket, Entry { hash, key, value });
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
        let (branch, bucket) = self.branch_mut(hash);
        let at = branch.find(bucket, hash, key)?;
        let entry = branch.entries.remove(at);
        branch.ends[bucket..].iter_mut().for_each(|end| *end -= 1);
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
        let (branch, bucket) = self.place(hash);
        let branch = Arc::make_mut(&mut Arc::make_mut(&mut self.branches)[branch]);
        let at = branch.find(bucket, hash, key).unwrap_or_else(|| {
            self.len += 1;
            branch.push(bucket, Entry { hash, key: own(), value: V::default() })
        });
        &mut branch.entries[at].value
    }

    /// The entries, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let entries = self.branches.iter().flat_map(|branch| branch.entries.iter());
        entries.map(|entry| (&entry.key, &entry.value))
    }

    /// The values, in no order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The branch of a hash, to be changed, and the bucket in it.
    fn branch_mut(&mut self, hash: u64) -> (&mut Branch<K, V>, usize) {
        let (branch, bucket) = self.place(hash);
        (Arc::make_mut(&mut Arc::make_mut(&mut self.branches)[branch]), bucket)
    }

    /// The number of the bucket of a hash among all of them.
    fn bucket(&self, hash: u64) -> usize {
        // The upper bits are the better ones; there may be no bit to look at.
        (hash >> (63 - self.bits) >> 1) as usize
    }

    /// The branch of a hash, and the bucket in it.
    fn place(&self, hash: u64) -> (usize, usize) {
        let bucket = self.bucket(hash);
        (bucket >> self.branch_bits(), bucket & ((1 << self.branch_bits()) - 1))
    }

    /// Buckets of a branch, as a power of two: there are twice or four times as many branches, so that a change copies as
    /// few pointers and entries as can be.
    fn branch_bits(&self) -> u32 {
        self.bits.saturating_sub(1) / 2
    }

    /// Makes room for one more entry.
    fn grow(&mut self) {
        if self.branches.is_empty() {
            self.spread(self.bits);
        } else if self.len >= BUCKET_ENTRIES_MAX << self.bits {
            self.spread(self.bits + 2);
        }
    }

    /// Spreads the entries over so many buckets, as a power of two.
    fn spread(&mut self, bits: u32) {
        let old = std::mem::take(&mut self.branches);
        self.bits = bits;
        let (branches, buckets) = (1 << (self.bits - self.branch_bits()), 1 << self.branch_bits());
        let branch = || Arc::new(Branch { ends: vec![0; buckets], entries: Vec::new() });
        self.branches = Arc::new((0..branches).map(|_| branch()).collect());
        for entry in old.iter().flat_map(|branch| branch.entries.iter()) {
            let (branch, bucket) = self.branch_mut(entry.hash);
            branch.push(bucket, entry.clone());
        }
    }
}

impl<K, V> Branch<K, V> {
    /// The entries of a bucket.
    fn bucket(&self, bucket: usize) -> &[Entry<K, V>] {
        &self.entries[self.begin(bucket)..self.ends[bucket] as usize]
    }

    /// Where a bucket begins.
    fn begin(&self, bucket: usize) -> usize {
        bucket.checked_sub(1).map_or(0, |before| self.ends[before] as usize)
    }

    /// Where the entry of a key is.
    fn find<Q: Eq + ?Sized>(&self, bucket: usize, hash: u64, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        let at = self.bucket(bucket).iter().position(|entry| entry.hash == hash && entry.key.borrow() == key)?;
        Some(self.begin(bucket) + at)
    }

    /// Puts an entry at the end of its bucket; returns where it is.
    fn push(&mut self, bucket: usize, entry: Entry<K, V>) -> usize {
        let at = self.ends[bucket] as usize;
        self.entries.insert(at, entry);
        self.ends[bucket..].iter_mut().for_each(|end| *end += 1);
        at
    }
}

/// A place in a branch. As many entries as do not fit have no place in memory either.
fn position(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
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
            let mut collected = Collected::with_capacity(0);
            for (key, value) in &first {
                collected.push(*key, *value);
            }
            let mut map = collected.into_map(|_, known, other| *known = (*known).max(other));
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
        let mut collected = Collected::with_capacity(100_000);
        (0..100_000).for_each(|number| collected.push(number, 0));
        let map = collected.into_map(|_, _, _| {});
        let mut next = map.clone();
        next.insert(7, 1);
        let branches = map.branches.iter().zip(next.branches.iter());
        let copied: Vec<_> = branches.filter(|(a, b)| !Arc::ptr_eq(a, b)).collect();
        assert_eq!(copied.len(), 1);
        let copied = map.branches.len() + copied[0].0.entries.len() + copied[0].0.ends.len();
        assert!(copied < 1500, "{copied}");
        assert_eq!((map.get(&7), next.get(&7)), (Some(&0), Some(&1)));
    }
}
