//! What is found under one key of an index: nearly always one thing.

use std::cmp::Ordering;
use std::net::IpAddr;
use std::sync::Arc;

use model::Text;
use model::value::beginning;

/// The things under one key, in the order the index keeps; never none.
#[derive(Clone, Debug)]
pub(crate) enum Hits<V> {
    /// The usual case, which costs no allocation.
    One(V),
    /// More than one.
    Many(Arc<[V]>),
}

impl<V: Clone> Hits<V> {
    /// The things, first one first.
    pub(crate) fn as_slice(&self) -> &[V] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Many(values) => values,
        }
    }

    /// The things as a list; `None` for none.
    pub(crate) fn of(mut values: Vec<V>) -> Option<Self> {
        match values.len() {
            0 => None,
            1 => values.pop().map(Self::One),
            _ => Some(Self::Many(values.into())),
        }
    }
}

/// An index: things by key.
pub(crate) type Index<K, V> = imbl::OrdMap<K, Hits<V>>;

/// What things are found by.
pub(crate) trait Key: Ord + Clone {
    /// A number that is ordered as keys are, but for those that begin alike: sorting by it first hardly ever has to look
    /// at the keys themselves, which may lie all over the memory.
    fn beginning(&self) -> u128;
}

impl Key for Text {
    fn beginning(&self) -> u128 {
        beginning(self)
    }
}

impl Key for IpAddr {
    fn beginning(&self) -> u128 {
        match self {
            Self::V4(address) => u128::from(address.to_bits()),
            // Those of 32 bits come first.
            Self::V6(address) => address.to_bits() >> 1 | 1 << 127,
        }
    }
}

/// The index of many things at once. Those under one key keep their order, unless `order` says otherwise.
pub(crate) fn index<K: Key, V: Clone>(
    entries: impl Iterator<Item = (K, V)>,
    order: impl Fn(&V, &V) -> Ordering,
) -> Index<K, V> {
    let mut entries: Vec<_> = entries.map(|(key, value)| (key.beginning(), key, value)).collect();
    entries.sort_by(|(a_begins, a_key, a), (b_begins, b_key, b)| {
        a_begins.cmp(b_begins).then_with(|| a_key.cmp(b_key)).then_with(|| order(a, b))
    });
    let mut index = Index::new();
    let mut entries = entries.into_iter().map(|(_, key, value)| (key, value)).peekable();
    while let Some((key, value)) = entries.next() {
        let hits = if entries.peek().is_some_and(|(other, _)| *other == key) {
            let more = std::iter::from_fn(|| entries.next_if(|(other, _)| *other == key));
            Hits::Many([value].into_iter().chain(more.map(|(_, value)| value)).collect())
        } else {
            Hits::One(value)
        };
        index.insert(key, hits);
    }
    index
}

/// Puts `value` under `key`, before the first thing that `order` puts behind it.
pub(crate) fn insert<K: Ord + Clone, V: Clone>(
    index: &mut Index<K, V>,
    key: K,
    value: V,
    order: impl Fn(&V, &V) -> Ordering,
) {
    let hits = match index.get(&key) {
        None => Hits::One(value),
        Some(hits) => {
            let mut values = hits.as_slice().to_vec();
            let at = values.partition_point(|other| order(other, &value).is_lt());
            values.insert(at, value);
            Hits::Many(values.into())
        }
    };
    index.insert(key, hits);
}

/// Takes what `is` recognises away from `key`.
pub(crate) fn remove<K: Ord + Clone, V: Clone>(index: &mut Index<K, V>, key: &K, is: impl Fn(&V) -> bool) {
    let Some(hits) = index.get(key) else { return };
    let values = hits.as_slice().iter().filter(|value| !is(value)).cloned().collect();
    match Hits::of(values) {
        Some(hits) => drop(index.insert(key.clone(), hits)),
        None => drop(index.remove(key)),
    }
}
