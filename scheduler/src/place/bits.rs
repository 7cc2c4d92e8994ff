//! Sets of hosts, one bit each, by the host's dense index.

/// A set of hosts of one inventory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    /// No host of `len`.
    pub(crate) fn none(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(WORD)], len }
    }

    /// All `len` hosts.
    pub(crate) fn all(len: usize) -> Self {
        let mut bits = Self { words: vec![u64::MAX; len.div_ceil(WORD)], len };
        bits.trim();
        bits
    }

    /// Whether `host` is in the set.
    pub fn contains(&self, host: u32) -> bool {
        let host = host as usize;
        self.words.get(host / WORD).is_some_and(|word| word >> (host % WORD) & 1 == 1)
    }

    /// Puts `host` into the set; one beyond the hosts is passed over.
    pub(crate) fn insert(&mut self, host: u32) {
        let host = host as usize;
        if host < self.len {
            self.words[host / WORD] |= 1 << (host % WORD);
        }
    }

    /// Takes `host` out of the set.
    pub(crate) fn remove(&mut self, host: u32) {
        let host = host as usize;
        if host < self.len {
            self.words[host / WORD] &= !(1 << (host % WORD));
        }
    }

    /// Keeps the hosts that are in `other` too.
    pub(crate) fn intersect(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= other;
        }
    }

    /// Keeps the hosts that are not in `other`.
    pub(crate) fn subtract(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= !other;
        }
    }

    /// Adds the hosts of `other`.
    pub(crate) fn unite(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
        self.trim();
    }

    /// Keeps the hosts for which `keep` holds.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        for (at, word) in self.words.iter_mut().enumerate() {
            let mut rest = *word;
            while rest != 0 {
                let bit = rest.trailing_zeros();
                rest &= rest - 1;
                if !keep(index(at, bit)) {
                    *word &= !(1 << bit);
                }
            }
        }
    }

    /// Keeps the hosts that `keep` has in a word; it is given the first host of each word that is not empty.
    pub(crate) fn retain_words(&mut self, mut keep: impl FnMut(usize) -> u64) {
        for (at, word) in self.words.iter_mut().enumerate().filter(|(_, word)| **word != 0) {
            *word &= keep(at * WORD);
        }
    }

    /// The hosts in the set, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(at, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                (rest != 0).then(|| {
                    rest &= rest - 1;
                    index(at, bit)
                })
            })
        })
    }

    /// Does something with each host in the set, in order: the loop of [`Self::iter`] where each instruction counts.
    #[inline]
    pub(crate) fn for_each(&self, mut act: impl FnMut(u32)) {
        for (at, word) in self.words.iter().enumerate() {
            let mut rest = *word;
            while rest != 0 {
                act(index(at, rest.trailing_zeros()));
                rest &= rest - 1;
            }
        }
    }

    /// How many hosts are in the set.
    pub(crate) fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there is not one.
    pub(crate) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    fn trim(&mut self) {
        if let (Some(last), rest @ 1..) = (self.words.last_mut(), self.len % WORD) {
            *last &= (1 << rest) - 1;
        }
    }
}

/// Hosts per word.
pub(crate) const WORD: usize = u64::BITS as usize;

fn index(word: usize, bit: u32) -> u32 {
    // Inventories have fewer hosts than `u32` counts (`inventory::HOSTS_MAX`).
    u32::try_from(word * WORD).unwrap_or(u32::MAX).saturating_add(bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_do_what_sets_do() {
        let mut even = Bits::none(130);
        (0..130).step_by(2).for_each(|host| even.insert(host));
        even.insert(130);
        let mut odd = Bits::all(130);
        odd.subtract(&even);
        assert_eq!((even.count(), odd.count()), (65, 65));
        assert_eq!(odd.iter().take(3).collect::<Vec<_>>(), [1, 3, 5]);
        odd.retain(|host| host > 126);
        assert_eq!(odd.iter().collect::<Vec<_>>(), [127, 129]);
        odd.unite(&even);
        odd.remove(0);
        assert!(!odd.contains(0) && odd.contains(129) && !odd.contains(130));
        odd.intersect(&Bits::none(130));
        assert!(odd.is_empty());
        assert_eq!(Bits::all(64).count(), 64);
    }
}
